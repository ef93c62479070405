//! What every verb shares: where the house is, who asks, and how an answer is shown.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use chrono::{DateTime, Utc};
use comfy_table::{ContentArrangement, Table, presets};
use queue_schema::{Db, Role};
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
    /// The owner's connection; by default from STEADFAST_DATABASE_URL or .steadfast/env
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

    pub(crate) fn db(&self) -> Result<Db> {
        Db::open(&self.database_url()?, Role::Owner, 2, "steadfast")
            .context("the database's address (STEADFAST_DATABASE_URL or --database-url)")
    }

    pub(crate) fn url(&self) -> Result<String> {
        let url = match &self.global.url {
            Some(url) => url.clone(),
            None => env_file::get(env_file::URL)?,
        };
        Ok(url.trim_end_matches('/').to_owned())
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
        let mut out = std::io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, value)?;
        writeln!(out)?;
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
            table.add_row(row);
        }
        for line in table.to_string().lines() {
            println!("{}", line.trim_end());
        }
    }

    /// Asks before something that cannot be taken back; without a terminal `--yes` must say it.
    pub(crate) fn confirm(&self, yes: bool, what: &str) -> Result<()> {
        if yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() {
            bail!("{what}: say --yes to do that without being asked");
        }
        eprint!("{what}? [y/N] ");
        std::io::stderr().flush()?;
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        if matches!(line.trim(), "y" | "Y" | "yes") {
            Ok(())
        } else {
            bail!("not done")
        }
    }
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
            anyhow::anyhow!(
                "{} does not answer ({}): is `ops/up` running?",
                self.base,
                if e.is_timeout() { "timeout" } else { "no connection" }
            )
        })?;
        let status = answer.status();
        let body = answer.text().await.context("the answer broke off")?;
        let json: Value = serde_json::from_str(&body).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(json);
        }
        let message = json.pointer("/error/message").and_then(Value::as_str).unwrap_or("no reason given");
        let fields = json
            .pointer("/error/fields")
            .filter(|f| f.as_object().is_some_and(|o| !o.is_empty()))
            .map(|f| format!(" {f}"))
            .unwrap_or_default();
        bail!("{status}: {message}{fields}")
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
}
