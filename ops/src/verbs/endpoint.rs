//! `endpoint`: where a capability is reached.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use chrono::{DateTime, Utc};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use queue_schema::diagnostics::WORKER_ALIVE;
use queue_schema::endpoint::{self, Flipped, NewEndpoint, Seen};
use queue_schema::{Db, capability, worker};
use serde_json::json;

use super::ctx::{Ctx, actor, ago, plain, reason, say, since, span};

/// Where OCR and embedding are done
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  steadfast endpoint ls\n  steadfast endpoint set mine --capability embedding --protocol openai --url http://127.0.0.1:8080/v1 --model my-model --dims 384 --rank 1\n  steadfast endpoint set cloud --capability embedding --protocol openai --url https://api.example.com/v1 --model m --key-env EXAMPLE_KEY\n  steadfast endpoint off mine --reason maintenance --yes\n  steadfast endpoint probe mine\n\nThe enabled endpoint with the lowest rank serves. A key stays in the workers' environment; only the variable's name is stored.\nAn engine inside the workers stands by behind a remote endpoint of lower rank, also while that is away or was refused; take the remote one\naway (endpoint rm) or turn it off by hand to let the engine serve.\nOnly probe asks the provider, by way of a worker: a broken one can always be repaired."
)]
pub(crate) enum Verb {
    /// All endpoints, and how each one stands
    #[command(
        after_help = "Examples:\n  steadfast endpoint ls\n  steadfast endpoint ls --json\n\nStates: on; on, stands by behind NAME; on, asked for time (a 429); backing off (it does not answer and is asked again by itself);\noff (by hand); REFUSED (it refused our key, our quota or the model: fix that, then `endpoint on NAME`, or `breaker on` for all of its\ncapability's)."
    )]
    Ls,
    /// Add one, or change the one of that name
    #[command(
        after_help = "Examples:\n  steadfast endpoint set mine --capability embedding --protocol openai --url http://127.0.0.1:8080/v1 --model my-model --dims 384 --rank 1\n  steadfast endpoint set cloud --capability embedding --protocol openai --url https://api.example.com/v1 --model m --key-env EXAMPLE_KEY --timeout 30s"
    )]
    Set {
        name: String,
        /// ocr or embedding
        #[arg(long, value_parser = ["ocr", "embedding"])]
        capability: String,
        /// openai (POST …/v1/embeddings) or ocr_http (POST, multipart field image_file); minilm and tesseract are inside the workers
        #[arg(long, value_parser = ["openai", "ocr_http", "minilm", "tesseract"])]
        protocol: String,
        #[arg(long)]
        url: Option<String>,
        #[arg(long)]
        model: String,
        /// Length of its vectors; checked when given
        #[arg(long, value_parser = clap::value_parser!(i32).range(1..=65_535))]
        dims: Option<i32>,
        /// NAME of the workers' environment variable that holds the key
        #[arg(long)]
        key_env: Option<String>,
        /// What it may see: 0 open … 3 credentials
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i16).range(0..=3))]
        trust: i16,
        /// Most texts of one call
        #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(i32).range(1..=2048))]
        batch: i32,
        /// Longest background call
        #[arg(long, default_value = "30m", value_parser = humantime::parse_duration)]
        timeout: Duration,
        /// The lowest enabled one serves; the built-in ones have 1000
        #[arg(long, default_value_t = 100)]
        rank: i32,
    },
    /// Take one away
    #[command(after_help = "Examples:\n  steadfast endpoint rm mine --yes")]
    Rm {
        name: String,
        #[arg(long, short)]
        yes: bool,
    },
    /// Use it again; what a refusal had stopped is asked again
    #[command(
        after_help = "Examples:\n  steadfast endpoint on cloud --reason \"new key is in\"\n\nWhere its capability's own breaker is off, the work stays held: `steadfast breaker on` turns on both."
    )]
    On {
        name: String,
        #[arg(long, default_value = "turned on by hand", value_parser = reason)]
        reason: String,
    },
    /// Leave it out; running calls finish
    #[command(after_help = "Examples:\n  steadfast endpoint off mine --reason maintenance --yes")]
    Off {
        name: String,
        #[arg(long, value_parser = reason)]
        reason: String,
        #[arg(long, short)]
        yes: bool,
    },
    /// Ask it a control text now instead of at the end of its backoff, and tell whether it answers
    #[command(
        visible_alias = "clear",
        after_help = "Examples:\n  steadfast endpoint probe mine\n  steadfast endpoint probe mine --no-wait\n\nA worker asks, with its own key; work follows when the answer has come. Exit code 1: it did not answer, or no worker asked.\nThat it answers does not say that it takes our key: the next job finds out."
    )]
    Probe {
        name: String,
        /// Return at once; `endpoint ls` shows what came of it
        #[arg(long)]
        no_wait: bool,
        /// Longest time to wait
        #[arg(long, default_value = "90s", value_parser = humantime::parse_duration)]
        timeout: Duration,
    },
}

pub(crate) async fn run(verb: Verb, ctx: &Ctx) -> Result<ExitCode> {
    let db = ctx.db().await?;
    let (name, hit, said) = match verb {
        Verb::Ls => {
            let all = endpoint::overview(&db).await?;
            if ctx.json {
                ctx.show(&all)?;
                return Ok(ExitCode::SUCCESS);
            }
            let now = db.now().await?;
            let rows = all
                .into_iter()
                .map(|s| {
                    let state = state(&s, now);
                    let e = s.endpoint;
                    vec![
                        e.name,
                        e.capability,
                        e.rank.to_string(),
                        e.protocol,
                        e.model,
                        e.url.unwrap_or_else(|| "inside the worker".to_owned()),
                        e.key_env.unwrap_or_default(),
                        e.trust.to_string(),
                        state,
                    ]
                })
                .collect();
            ctx.table(
                &[
                    "endpoint",
                    "capability",
                    "rank",
                    "protocol",
                    "model",
                    "url",
                    "key in",
                    "trust",
                    "state",
                ],
                rows,
            );
            return Ok(ExitCode::SUCCESS);
        }
        Verb::Set {
            name,
            capability,
            protocol,
            url,
            model,
            dims,
            key_env,
            trust,
            batch,
            timeout,
            rank,
        } => {
            let url = check(&capability, &protocol, url, key_env.as_deref())?;
            for (field, value) in [("NAME", &name), ("--model", &model)] {
                if value.trim().is_empty() || value.len() > 200 || value.chars().any(char::is_control) {
                    bail!("{field} is empty, longer than 200 bytes or has control characters");
                }
            }
            let timeout_ms = match i32::try_from(timeout.as_millis()) {
                Ok(ms) if ms > 0 => ms,
                _ => bail!("--timeout must be between 1ms and 24days"),
            };
            let new = NewEndpoint {
                name: name.clone(),
                capability,
                protocol,
                url,
                model,
                dims,
                key_env,
                trust,
                batch,
                timeout_ms,
                rank,
            };
            let mut tx = db.begin().await?;
            endpoint::set(&mut tx, &new, &actor()).await?;
            queue_schema::Db::commit(tx).await?;
            (name, true, "is set")
        }
        Verb::Rm { name, yes } => {
            ctx.confirm(yes, &format!("remove endpoint {name}"))?;
            let mut tx = db.begin().await?;
            let hit = endpoint::remove(&mut tx, &name).await?;
            queue_schema::Db::commit(tx).await?;
            (name, hit, "is removed")
        }
        Verb::On { name, reason } => return flip(ctx, &db, &name, true, &reason).await,
        Verb::Off { name, reason, yes } => {
            ctx.confirm(yes, &format!("leave endpoint {} out", plain(&name)))?;
            return flip(ctx, &db, &name, false, &reason).await;
        }
        Verb::Probe { name, no_wait, timeout } => return probe(ctx, &db, &name, no_wait, timeout).await,
    };
    if !hit {
        return Err(unknown(&name));
    }
    if ctx.json {
        ctx.show(&json!({ "endpoint": name, "state": said }))?
    } else {
        say(format_args!("{name} {said}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn unknown(name: &str) -> anyhow::Error {
    anyhow::anyhow!("there is no endpoint \"{}\": see `steadfast endpoint ls`", plain(name))
}

async fn find(db: &Db, name: &str) -> Result<Seen> {
    let all = endpoint::overview(db).await?;
    all.into_iter().find(|s| s.endpoint.name == name).ok_or_else(|| unknown(name))
}

/// How it stands, in a few words.
pub(super) fn state(s: &Seen, now: DateTime<Utc>) -> String {
    let e = &s.endpoint;
    let why = |what: Option<&String>| what.map_or_else(String::new, |why| format!(": {why}"));
    match (e.enabled, e.tripped_at) {
        (false, Some(at)) => {
            let n = e.refusal_count;
            let refusals = if n == 1 { "1 refusal".to_owned() } else { format!("{n} refusals") };
            return format!("REFUSED since {} ({refusals}){}", since(now, at), why(e.reason.as_ref()));
        }
        (false, None) => return format!("off{}", why(e.reason.as_ref())),
        (true, _) => {}
    }
    if e.outage_streak > 0 {
        let next = s
            .due_at
            .map_or_else(|| "probe due now".to_owned(), |at| format!("next probe {}", ago(now, at)));
        return format!("backing off, {next}{}", why(s.probe_error.as_ref()));
    }
    if let Some(at) = s.due_at {
        return format!("on, asked for time: next call {}", ago(now, at));
    }
    match (&s.stands_behind, s.stands_behind_to) {
        (Some(other), Some(to)) if to < e.trust => format!("on, stands by behind {other}; serves what is above level {to}"),
        (Some(other), _) => format!("on, stands by behind {other}"),
        _ => "on".to_owned(),
    }
}

async fn flip(ctx: &Ctx, db: &Db, name: &str, on: bool, reason: &str) -> Result<ExitCode> {
    let mut tx = db.begin().await?;
    let flipped = endpoint::enable(&mut tx, name, on, &actor(), reason).await?;
    Db::commit(tx).await?;
    let Some(f) = flipped else { return Err(unknown(name)) };
    let state = if on { "is on" } else { "is off" };
    if ctx.json {
        ctx.show(&json!({ "endpoint": name, "state": state, "changed": f.changed }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = db.now().await?;
    say(plain(&flipped_line(name, on, &f, now)));
    let capability = find(db, name).await?.endpoint.capability;
    if on {
        for b in capability::list(db)
            .await?
            .into_iter()
            .filter(|b| b.name == capability && !b.enabled)
        {
            let (whom, flag) = b
                .tenant_id
                .map_or_else(Default::default, |t| (format!(" for tenant {t}"), format!(" --tenant {t}")));
            say(plain(&format!(
                "  its work is still held{whom}: the breaker {capability} is off since {} ({}); steadfast breaker on {capability}{flag}",
                since(now, b.changed_at),
                b.reason.as_deref().unwrap_or("no reason given"),
            )));
        }
    } else if !endpoint::overview(db)
        .await?
        .iter()
        .any(|s| s.endpoint.capability == capability && s.serves())
    {
        say(format_args!(
            "  no other endpoint of {capability} serves: its work waits (steadfast endpoint ls)"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// What a flip did, or that it stood so already.
fn flipped_line(name: &str, on: bool, f: &Flipped, now: DateTime<Utc>) -> String {
    let state = if on { "on" } else { "off" };
    if f.changed {
        return format!("{name} is {state}");
    }
    // One that nobody ever flipped has no reason: it is on because it was set so.
    let by = f.changed_by.as_ref().map_or_else(String::new, |who| format!(", by {who}"));
    let why = f.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    format!("{name} is already {state}, since {}{by}{why}", since(now, f.changed_at))
}

/// Between two looks at a probe.
const LOOK: Duration = Duration::from_millis(100);

async fn probe(ctx: &Ctx, db: &Db, name: &str, no_wait: bool, timeout: Duration) -> Result<ExitCode> {
    let was = find(db, name).await?;
    if !was.endpoint.enabled {
        let state = state(&was, db.now().await?);
        bail!(
            "{name} is not asked anything: {}; `steadfast endpoint on {name}` once that is right",
            plain(&state)
        );
    }
    let mut tx = db.begin().await?;
    let Some(step) = endpoint::probe(&mut tx, name).await? else {
        bail!("{name} was turned off or taken away just now: see `steadfast endpoint ls`");
    };
    Db::commit(tx).await?;
    if no_wait {
        if ctx.json {
            ctx.show(&json!({ "endpoint": name, "state": "is due now" }))?;
        } else {
            say(format_args!("{name} is due now: a worker asks it at its next look"));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let alive = worker::list(db)
        .await?
        .iter()
        .any(|w| w.lost_at.is_none() && w.silent_seconds < WORKER_ALIVE.as_secs_f64());
    if !alive {
        bail!("{name} is due now, but no worker is alive to ask it: start steadfast-worker");
    }
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(120));
    bar.set_message(format!("{name}: a worker asks it at its next look"));
    let began = tokio::time::Instant::now();
    let ended = loop {
        let s = find(db, name).await?;
        let e = &s.endpoint;
        match () {
            () if !e.enabled => {
                let state = state(&s, db.now().await?);
                break Err(format!("was turned off meanwhile: {state}"));
            }
            () if e.outage_streak == 0 => break Ok(began.elapsed()),
            // Not the end of a probe that was under way before.
            () if s.probe_error.is_some() && e.outage_streak > step => {
                let now = db.now().await?;
                let again = s.due_at.map_or_else(|| "soon".to_owned(), |at| ago(now, at));
                break Err(format!(
                    "does not answer: {}; it is asked again by itself {again}",
                    s.probe_error.unwrap_or_default()
                ));
            }
            () if began.elapsed() > timeout && e.outage_streak > step => {
                break Err(format!(
                    "was asked and has not answered within {}; `steadfast endpoint ls` shows what comes of it",
                    span(timeout)
                ));
            }
            () if began.elapsed() > timeout => {
                break Err(format!(
                    "is due, but no worker asked it within {}: does one speak {}? steadfast workers",
                    span(timeout),
                    e.protocol
                ));
            }
            () if e.outage_streak > step => bar.set_message(format!("{name}: asked, waiting for its answer")),
            () => {}
        }
        tokio::time::sleep(LOOK).await;
    };
    bar.finish_and_clear();
    match ended {
        Ok(took) if ctx.json => ctx.show(&json!({ "endpoint": name, "state": "answers", "tookMs": took.as_millis() }))?,
        Ok(took) => say(format_args!("{name} answers (after {})", span(took))),
        Err(why) if ctx.json => {
            ctx.show(&json!({ "endpoint": name, "state": "does not answer", "why": why }))?;
            return Ok(ExitCode::FAILURE);
        }
        Err(why) => bail!("{}", plain(&format!("{name} {why}"))),
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what does not go together before a row says it to a worker.
fn check(capability: &str, protocol: &str, url: Option<String>, key_env: Option<&str>) -> Result<Option<String>> {
    let (over_http, fits) = match protocol {
        "openai" => (true, "embedding"),
        "ocr_http" => (true, "ocr"),
        "minilm" => (false, "embedding"),
        _ => (false, "ocr"),
    };
    if fits != capability {
        bail!("--protocol {protocol} does {fits}, not {capability}");
    }
    if let Some(name) = key_env {
        let like_a_name = name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        if !like_a_name || name.len() > 64 {
            bail!("--key-env takes the NAME of an environment variable of the workers (capitals, digits, _), never the key itself");
        }
    }
    match (over_http, url) {
        (true, None) => bail!("--protocol {protocol} needs --url"),
        (false, Some(_)) => bail!("--protocol {protocol} is inside the worker: leave --url out"),
        (false, None) => Ok(None),
        (true, Some(url)) => {
            let parsed = url::Url::parse(&url).map_err(|e| anyhow::anyhow!("--url {url} is not a URL: {e}"))?;
            if !matches!(parsed.scheme(), "http" | "https") {
                bail!("--url must be http:// or https://");
            }
            if !parsed.username().is_empty() || parsed.password().is_some() {
                bail!("--url must not hold a password: use --key-env");
            }
            Ok(Some(url))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen {
        serde_json::from_value::<queue_schema::endpoint::Endpoint>(json!({
            "id": 1, "name": "cloud", "capability": "embedding", "protocol": "openai", "url": "http://h/", "model": "m", "dims": null, "key_env": "K",
            "owner_tenant_id": null, "trust": 2, "batch": 1, "timeout_ms": 1, "rank": 1, "enabled": true, "epoch": 1, "outage_streak": 0,
            "last_ok_at": null, "tripped_at": null, "refusal_count": 0, "reason": null, "changed_by": null, "changed_at": "1970-01-01T00:00:00Z"
        }))
        .map(|endpoint| Seen {
            endpoint,
            due_at: None,
            probe_error: None,
            stands_behind: None,
            stands_behind_to: None,
        })
        .expect("an endpoint")
    }

    #[test]
    fn every_state_has_its_words() {
        let now = DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(60);
        let told = |change: fn(&mut Seen)| {
            let mut s = seen();
            change(&mut s);
            state(&s, now)
        };
        assert_eq!(told(|_| {}), "on");
        assert_eq!(
            told(|s| {
                s.endpoint.enabled = false;
                s.endpoint.tripped_at = Some(DateTime::UNIX_EPOCH);
                s.endpoint.refusal_count = 3;
                s.endpoint.reason = Some("invalid key".to_owned());
            }),
            "REFUSED since 1970-01-01 00:00:00 UTC (1m ago) (3 refusals): invalid key"
        );
        assert_eq!(
            told(|s| {
                s.endpoint.enabled = false;
                s.endpoint.reason = Some("maintenance".to_owned());
            }),
            "off: maintenance"
        );
        assert_eq!(
            told(|s| {
                s.endpoint.outage_streak = 2;
                s.due_at = Some(DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(90));
                s.probe_error = Some("connection_refused".to_owned());
            }),
            "backing off, next probe in 30s: connection_refused"
        );
        assert_eq!(told(|s| s.endpoint.outage_streak = 1), "backing off, probe due now");
        assert_eq!(
            told(|s| s.due_at = Some(DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(65))),
            "on, asked for time: next call in 5s"
        );
        let behind = |s: &mut Seen, to: i16| (s.stands_behind, s.stands_behind_to) = (Some("far".to_owned()), Some(to));
        let mut s = seen();
        behind(&mut s, 2);
        assert_eq!(state(&s, now), "on, stands by behind far");
        assert!(!s.serves());
        behind(&mut s, 1);
        assert_eq!(state(&s, now), "on, stands by behind far; serves what is above level 1");
    }

    #[test]
    fn a_flip_that_changes_nothing_says_already() {
        let mut f = Flipped {
            changed: true,
            reason: Some("maintenance".to_owned()),
            changed_by: Some("ann@here".to_owned()),
            changed_at: DateTime::UNIX_EPOCH,
        };
        let now = DateTime::UNIX_EPOCH;
        assert_eq!(flipped_line("cloud", false, &f, now), "cloud is off");
        f.changed = false;
        let said = flipped_line("cloud", false, &f, now);
        assert!(
            said.starts_with("cloud is already off, since 1970-01-01") && said.ends_with(", by ann@here: maintenance"),
            "{said}"
        );
    }

    #[test]
    fn a_key_is_never_taken_for_the_name_of_its_variable() {
        for key in ["sk-proj-abc123", "s3cret", "lower_case", "", "1KEY"] {
            assert!(
                check("embedding", "openai", Some("http://127.0.0.1:1/v1".into()), Some(key)).is_err(),
                "{key}"
            );
        }
        assert!(check("embedding", "openai", Some("http://127.0.0.1:1/v1".into()), Some("OPENAI_KEY")).is_ok());
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        assert!(check("ocr", "openai", Some("http://h/".into()), None).is_err());
        assert!(check("embedding", "openai", None, None).is_err());
        assert!(check("embedding", "openai", Some("ftp://h/".into()), None).is_err());
        assert!(check("embedding", "openai", Some("https://u:p@h/".into()), None).is_err());
        assert!(check("embedding", "minilm", Some("http://h/".into()), None).is_err());
        assert_eq!(check("ocr", "tesseract", None, None).expect("goes together"), None);
    }
}
