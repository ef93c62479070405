//! What every verb shares: where the house is, who asks, and how an answer is shown.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use chrono::{DateTime, Utc};
use comfy_table::{ContentArrangement, Table, presets};
use queue_schema::{Db, DbError, Role};
use serde::Serialize;
use serde_json::Value;

use crate::env_file;

/// What may stand before or behind any verb.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Global {
    /// Print JSON for programs
    #[arg(long, global = true)]
    json: bool,
    /// The API; by default from STEADFAST_URL or .steadfast/env
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// A bearer token; by default from STEADFAST_TOKEN or .steadfast/env
    #[arg(long, global = true, value_name = "TOKEN")]
    token: Option<String>,
    /// The owner's connection; by default from STEADFAST_DATABASE_URL or .steadfast/env (`up` goes by this flag alone)
    #[arg(long = "database-url", global = true, value_name = "URL")]
    database: Option<String>,
}

/// The answer's way out, and the ways in.
#[derive(Debug)]
pub(crate) struct Ctx {
    pub(crate) json: bool,
    global: Global,
}

/// Nothing was found that was asked for.
pub(crate) const NOTHING_FOUND: u8 = 3;
/// `doctor` found something.
pub(crate) const FINDINGS: u8 = 4;

impl Ctx {
    pub(crate) fn new(global: Global) -> Self {
        Self { json: global.json, global }
    }

    /// Only what the command line says: what `up` goes by, which makes the rest itself.
    pub(crate) fn named_database(&self) -> Option<String> {
        self.global.database.clone()
    }

    pub(crate) fn database_url(&self) -> Result<String> {
        match &self.global.database {
            Some(url) => Ok(url.clone()),
            None => env_file::get(env_file::DATABASE_URL),
        }
    }

    /// A pool that has answered once, so that what is wrong is said in words here and not by the first statement of a verb.
    pub(crate) async fn db(&self) -> Result<Db> {
        let url = self.database_url()?;
        let db = Db::open(&url, Role::Owner, 2, "steadfast").map_err(|error| {
            anyhow!("--database-url (or STEADFAST_DATABASE_URL) is not understood: {error}; it looks like postgres://user:password@host:5432/database")
        })?;
        match queue_schema::schedule::house_tenant(&db).await {
            Ok(_) => Ok(db),
            Err(error) if is_unmigrated(&error) => bail!("{} is not migrated: run `steadfast migrate`", place(&url)),
            Err(DbError::PoolTimedOut) => bail!(
                "no Postgres answers at {}: is it running (`ops/up` starts one), and is the address right (--database-url, STEADFAST_DATABASE_URL)?",
                place(&url)
            ),
            Err(error) => Err(anyhow!("{}: {error}", place(&url))),
        }
    }

    /// The API's address without a slash at its end. It may be repeated in errors: one that holds a password is refused here.
    pub(crate) fn url(&self) -> Result<String> {
        let url = match &self.global.url {
            Some(url) => url.clone(),
            None => env_file::get(env_file::URL)?,
        };
        api_address(&url)
    }

    pub(crate) fn api(&self) -> Result<Api> {
        let token = match &self.global.token {
            Some(token) => token.clone(),
            None => env_file::get(env_file::TOKEN).context("no token: make one with `steadfast token create --user NAME`")?,
        };
        Api::new(self.url()?, token)
    }

    /// Prints one JSON document.
    #[allow(clippy::unused_self)] // reads as what it is at every call
    pub(crate) fn show(&self, value: &impl Serialize) -> Result<()> {
        say(serde_json::to_string_pretty(value)?);
        Ok(())
    }

    /// Prints a table, as wide as the terminal, without colours.
    pub(crate) fn table(&self, head: &[&str], rows: Vec<Vec<String>>) {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(head.to_vec());
        for row in rows {
            table.add_row(row.iter().map(|cell| plain(cell)).collect::<Vec<_>>());
        }
        for line in table.to_string().lines() {
            say(line.trim_end());
        }
    }

    /// Asks before something that cannot be taken back; without a terminal `--yes` must say it.
    pub(crate) fn confirm(&self, yes: bool, what: &str) -> Result<()> {
        if yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            bail!("{what}: say --yes to do that without being asked");
        }
        eprint!("{what}? [y/N] ");
        io::stderr().flush()?;
        let mut line = String::new();
        io::stdin().read_line(&mut line)?;
        if matches!(line.trim(), "y" | "Y" | "yes") {
            Ok(())
        } else {
            bail!("not done")
        }
    }
}

/// Prints a line on stdout. A reader that has seen enough (`… | head`) ends the command quietly; `println!` would panic.
pub(crate) fn say(line: impl fmt::Display) {
    if let Err(error) = writeln!(io::stdout().lock(), "{line}") {
        if error.kind() == io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("steadfast: standard output: {error}");
        std::process::exit(1);
    }
}

/// Text of others for a terminal: what a document, a provider or another operator wrote must not move the cursor or colour the line.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A word of a command line that is shown to be copied; quoted where a shell would take it apart.
pub(crate) fn word(text: &str) -> String {
    let text = plain(text);
    let bare = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '@' | ':' | '/');
    if !text.is_empty() && text.chars().all(bare) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// A `--reason`: somebody reads it later, so there must be something to read.
pub(crate) fn reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("say why, in a few words".to_owned()),
        text if text.chars().count() > 500 => Err("500 characters at most".to_owned()),
        text if text.chars().any(char::is_control) => Err("one line, without control characters".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// Host, port and database of a connection string, without user and password.
fn place(url: &str) -> String {
    url::Url::parse(url).map_or_else(
        |_| "the database".to_owned(),
        |u| format!("{}:{}{}", u.host_str().unwrap_or("localhost"), u.port().unwrap_or(5432), u.path()),
    )
}

/// A table or column that a statement needs is not there.
pub(crate) fn is_unmigrated(error: &DbError) -> bool {
    matches!(error, DbError::Database(d) if matches!(d.code().as_deref(), Some("42P01" | "42703")))
}

fn api_address(url: &str) -> Result<String> {
    // What was given is not repeated: a token or a password may have been put into the wrong place.
    let parsed = url::Url::parse(url)
        .map_err(|error| anyhow!("--url (or STEADFAST_URL) is not a URL: {error}; it looks like http://127.0.0.1:7787"))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        bail!("--url (or STEADFAST_URL) must begin with http:// or https://");
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        bail!("--url (or STEADFAST_URL) must not hold a password: the API takes a token (--token, STEADFAST_TOKEN)");
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Who flips and retries, for the history.
pub(crate) fn actor() -> String {
    let user = ["SUDO_USER", "USER", "LOGNAME"]
        .iter()
        .find_map(|n| std::env::var(n).ok().filter(|v| !v.is_empty()));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!(
        "{}@{host}",
        user.unwrap_or_else(|| format!("uid{}", rustix::process::getuid().as_raw()))
    )
}

/// "3m 12s", two units at most.
pub(crate) fn span(d: Duration) -> String {
    let short = if d.as_secs() >= 60 {
        Duration::from_secs(d.as_secs())
    } else {
        Duration::from_millis(u64::try_from(d.as_millis()).unwrap_or(0))
    };
    humantime::format_duration(short)
        .to_string()
        .split(' ')
        .take(2)
        .collect::<Vec<_>>()
        .join(" ")
}

/// How long ago `at` was, or how far ahead it is, by the database's clock.
pub(crate) fn ago(now: DateTime<Utc>, at: DateTime<Utc>) -> String {
    match (now - at).to_std() {
        Ok(past) => format!("{} ago", span(past)),
        Err(_) => format!("in {}", span((at - now).to_std().unwrap_or_default())),
    }
}

/// A moment for a sentence, with how long ago it was: `2026-05-01 10:00:00 UTC (3m 12s ago)`.
pub(crate) fn since(now: DateTime<Utc>, at: DateTime<Utc>) -> String {
    format!("{} ({})", at.format("%Y-%m-%d %H:%M:%S UTC"), ago(now, at))
}

/// The API said nothing, or that it cannot say anything now: it may do so in a moment.
#[derive(Debug)]
pub(crate) struct NoAnswer(String);

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoAnswer {}

/// A client of the API.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) http: reqwest::Client,
    pub(crate) base: String,
    token: String,
}

impl Api {
    fn new(base: String, token: String) -> Result<Self> {
        let parsed = url::Url::parse(&base).with_context(|| format!("{base} is not a URL"))?;
        let local = matches!(parsed.host_str(), Some("127.0.0.1" | "localhost" | "[::1]"));
        if parsed.scheme() == "http" && !local {
            eprintln!(
                "steadfast: {} is plain http: the token can be read on the way",
                parsed.host_str().unwrap_or("it")
            );
        }
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(120))
            .connect_timeout(Duration::from_secs(10))
            .no_proxy()
            .build()?;
        Ok(Self { http, base, token })
    }

    pub(crate) async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value> {
        let url = url::Url::parse_with_params(&format!("{}{path}", self.base), query)?;
        self.send(self.http.get(url)).await
    }

    /// Sends with the token; an error is the API's own sentence, naming fields.
    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Result<Value> {
        let answer = request.bearer_auth(&self.token).send().await.map_err(|e| {
            // reqwest's own words are left out: they repeat the whole address, and with it the question.
            let base = &self.base;
            if e.is_builder() {
                return anyhow!("the request to {base} cannot be made: is the token one line, as `steadfast token create` printed it?");
            }
            NoAnswer(if e.is_timeout() {
                format!("{base} took too long to answer: see `steadfast doctor`")
            } else if e.is_connect() {
                format!("no API answers at {base}: is `ops/up` running, and is the address right (--url, STEADFAST_URL)?")
            } else {
                format!("the connection to {base} broke off before it answered: see `steadfast doctor`")
            })
            .into()
        })?;
        let status = answer.status();
        let body = answer
            .text()
            .await
            .map_err(|_| NoAnswer(format!("the answer of {} broke off", self.base)))?;
        let json: Value = serde_json::from_str(&body).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(json);
        }
        let message = json.pointer("/error/message").and_then(Value::as_str).unwrap_or("no reason given");
        let mut said = format!("{status}: {message}");
        for (field, wrong) in json.pointer("/error/fields").and_then(Value::as_object).into_iter().flatten() {
            let wrong = wrong.as_str().unwrap_or("is wrong");
            if !said.contains(wrong) {
                said = format!("{said}; {field}: {wrong}");
            }
        }
        if status == reqwest::StatusCode::UNAUTHORIZED {
            said.push_str("; make a token with `steadfast token create --user NAME`, or go where .steadfast/env is");
        }
        let said = plain(&said);
        if status.is_server_error() {
            return Err(NoAnswer(said).into());
        }
        bail!("{said}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units_at_most() {
        assert_eq!(span(Duration::from_secs(3 * 3600 + 62)), "3h 1m");
        assert_eq!(span(Duration::from_millis(1500)), "1s 500ms");
        assert_eq!(span(Duration::ZERO), "0s");
    }

    #[test]
    fn the_past_and_the_future_are_told_apart() {
        let at = |s: i64| DateTime::from_timestamp(s, 0).expect("a time");
        assert_eq!(ago(at(192), at(0)), "3m 12s ago");
        assert_eq!(ago(at(0), at(90)), "in 1m 30s");
        assert_eq!(since(at(60), at(0)), "1970-01-01 00:00:00 UTC (1m ago)");
    }

    #[test]
    fn no_password_is_repeated() {
        assert_eq!(place("postgres://me:hunter2@db:5433/house?sslmode=require"), "db:5433/house");
        assert_eq!(place("hunter2"), "the database");
        for wrong in ["hunter2", "http://me:hunter2@h/", "ftp://hunter2/"] {
            let error = api_address(wrong).expect_err("refused").to_string();
            assert!(error.contains("--url") && !error.contains("hunter2"), "{error}");
        }
        assert_eq!(api_address("http://127.0.0.1:7787/").expect("an address"), "http://127.0.0.1:7787");
    }

    #[test]
    fn a_reason_says_something() {
        for nothing in ["", "  ", "two\nlines", &"x".repeat(501)] {
            assert!(reason(nothing).is_err());
        }
        assert_eq!(reason(" key rotated ").expect("a reason"), "key rotated");
    }

    #[test]
    fn a_word_to_copy_stays_one_word() {
        assert_eq!(word("Contracts"), "Contracts");
        assert_eq!(word("Ann's papers; rm"), "'Ann'\\''s papers; rm'");
        assert_eq!(word(""), "''");
    }

    #[test]
    fn what_others_wrote_cannot_drive_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\r\nc\u{9b}d"), "a [2Jb  c d");
    }
}
