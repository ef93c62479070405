//! `endpoint`: where a capability is reached.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Subcommand;
use queue_schema::endpoint::{self, NewEndpoint};
use serde_json::json;

use super::ctx::{Ctx, actor, reason, say};

/// Where OCR and embedding are done
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  steadfast endpoint ls\n  steadfast endpoint set mine --capability embedding --protocol openai --url http://127.0.0.1:8080/v1 --model my-model --dims 384 --rank 1\n  steadfast endpoint set cloud --capability embedding --protocol openai --url https://api.example.com/v1 --model m --key-env EXAMPLE_KEY\n  steadfast endpoint off mine --reason maintenance --yes\n\nThe enabled endpoint with the lowest rank serves. A key stays in the workers' environment; only the variable's name is stored.\nNo verb here asks the provider, so a broken one can always be repaired."
)]
pub(crate) enum Verb {
    /// All endpoints
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
    Rm {
        name: String,
        #[arg(long, short)]
        yes: bool,
    },
    /// Use it again
    On {
        name: String,
        #[arg(long, default_value = "turned on by hand", value_parser = reason)]
        reason: String,
    },
    /// Leave it out; running calls finish
    Off {
        name: String,
        #[arg(long, value_parser = reason)]
        reason: String,
        #[arg(long, short)]
        yes: bool,
    },
    /// Forget its backoff: ask now
    Clear { name: String },
}

pub(crate) async fn run(verb: Verb, ctx: &Ctx) -> Result<ExitCode> {
    let db = ctx.db().await?;
    let (name, hit, said) = match verb {
        Verb::Ls => {
            let all = endpoint::list(&db).await?;
            if ctx.json {
                ctx.show(&all)?;
                return Ok(ExitCode::SUCCESS);
            }
            let rows = all
                .into_iter()
                .map(|e| {
                    let state = match (e.enabled, e.outage_streak) {
                        (false, _) => "OFF".to_owned(),
                        (true, 0) => "on".to_owned(),
                        (true, n) => format!("not answering ({n})"),
                    };
                    vec![
                        e.name,
                        e.capability,
                        state,
                        e.rank.to_string(),
                        e.protocol,
                        e.model,
                        e.url.unwrap_or_else(|| "inside the worker".to_owned()),
                        e.key_env.unwrap_or_default(),
                        e.trust.to_string(),
                    ]
                })
                .collect();
            ctx.table(
                &[
                    "endpoint",
                    "capability",
                    "state",
                    "rank",
                    "protocol",
                    "model",
                    "url",
                    "key in",
                    "trust",
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
        Verb::On { name, reason } => {
            let mut tx = db.begin().await?;
            let hit = endpoint::enable(&mut tx, &name, true, &actor(), &reason).await?.is_some();
            queue_schema::Db::commit(tx).await?;
            (name, hit, "is on")
        }
        Verb::Off { name, reason, yes } => {
            ctx.confirm(yes, &format!("leave endpoint {name} out"))?;
            let mut tx = db.begin().await?;
            let hit = endpoint::enable(&mut tx, &name, false, &actor(), &reason).await?.is_some();
            queue_schema::Db::commit(tx).await?;
            (name, hit, "is off")
        }
        Verb::Clear { name } => {
            let mut tx = db.begin().await?;
            let hit = endpoint::clear(&mut tx, &name).await?;
            queue_schema::Db::commit(tx).await?;
            (name, hit, "is due now")
        }
    };
    if !hit {
        bail!("there is no endpoint \"{name}\": see `steadfast endpoint ls`");
    }
    if ctx.json {
        ctx.show(&json!({ "endpoint": name, "state": said }))?
    } else {
        say(format_args!("{name} {said}"));
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
    use super::check;

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
