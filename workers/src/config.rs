//! What a worker process can be told. Every duration is a setting (decision D23).

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use queue_schema::JobKind;
use queue_schema::retry::Pace;

use crate::mail::{Mailer, Smtp};
use serde::{Deserialize, Serialize};

/// Claims jobs, runs them and settles them, until told to stop. Travels to the isolated child as JSON.
#[derive(Clone, Debug, Parser, Serialize, Deserialize)]
#[command(
    name = "steadfast-worker",
    version,
    after_help = "Examples:\n  steadfast-worker --concurrency 4\n  steadfast-worker --kinds ocr,extract --concurrency 2\n\nSIGTERM or Ctrl-C: stops claiming, lets running work finish within --drain, then gives it back uncharged.\nExit codes: 0 after an orderly stop, 1 when its workers ended by themselves, 2 for wrong settings."
)]
pub struct Config {
    /// Postgres, 15 or newer; the role is narrowed to steadfast_worker by itself
    #[arg(long, env = "STEADFAST_DATABASE_URL", hide_env_values = true)]
    #[serde(skip)] // it holds a password: to the child by its environment
    pub database_url: String,
    /// Where documents' bytes are: file:///folder or s3://bucket/prefix
    #[arg(long, env = "STEADFAST_BLOBS", default_value = "file://./.steadfast/blobs")]
    pub blobs: String,
    /// Kinds to work on; all by default
    #[arg(long, env = "STEADFAST_KINDS", value_delimiter = ',', value_parser = kind)]
    pub kinds: Vec<JobKind>,
    /// Groups of jobs at once, beside one place kept for interactive work
    #[arg(long, env = "STEADFAST_CONCURRENCY", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub concurrency: Option<u16>,
    /// Folder with the weights of the built-in embedding model; without it this worker embeds over HTTP only
    #[arg(long, env = "STEADFAST_MODEL_DIR")]
    pub model_dir: Option<PathBuf>,
    /// How long a claim is ours without a sign of life
    #[arg(long, env = "STEADFAST_LEASE", default_value = "30s", value_parser = humantime::parse_duration)]
    pub lease: Duration,
    /// How often it is renewed; at most a third of the lease
    #[arg(long, env = "STEADFAST_RENEW", default_value = "10s", value_parser = humantime::parse_duration)]
    pub renew: Duration,
    /// Fallback for lost wake-up hints
    #[arg(long, env = "STEADFAST_POLL", default_value = "2s", value_parser = humantime::parse_duration)]
    pub poll: Duration,
    /// How long after another worker's session vanished its jobs are taken back
    #[arg(long, env = "STEADFAST_LOST_GRACE", default_value = "3s", value_parser = humantime::parse_duration)]
    pub lost_grace: Duration,
    /// How long running work may go on after SIGTERM
    #[arg(long, env = "STEADFAST_DRAIN", default_value = "30s", value_parser = humantime::parse_duration)]
    pub drain: Duration,
    /// The database is reached through a transaction pooler: no session lock, no LISTEN; the lease and the poll decide
    #[arg(long, env = "STEADFAST_POOLER")]
    pub pooler: bool,
    /// Most characters of a block; its overlap with the next is a seventh of it
    #[arg(long, env = "STEADFAST_CHUNK_CHARS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=20_000))]
    pub chunk_chars: u32,
    /// A text estimated above this many tokens (characters / 4) is set aside unsent; 0 turns the check off
    #[arg(long, env = "STEADFAST_MAX_TOKENS", default_value_t = 24_000)]
    pub max_tokens: u32,
    /// Longest time for one page of OCR by the built-in engine
    #[arg(long, env = "STEADFAST_OCR_TIMEOUT", default_value = "120s", value_parser = humantime::parse_duration)]
    pub ocr_timeout: Duration,
    /// Longest time for taking one document apart
    #[arg(long, env = "STEADFAST_EXTRACT_TIMEOUT", default_value = "300s", value_parser = humantime::parse_duration)]
    pub extract_timeout: Duration,
    /// One attempt at a question's vector
    #[arg(long, env = "STEADFAST_QUESTION_TIMEOUT", default_value = "15s", value_parser = humantime::parse_duration)]
    pub question_timeout: Duration,
    /// First wait after an item's own failure; each further one doubles it
    #[arg(long, env = "STEADFAST_ITEM_BACKOFF", default_value = "60s", value_parser = humantime::parse_duration, help_heading = "Pace of failures")]
    pub item_backoff: Duration,
    /// Longest of these waits
    #[arg(long, env = "STEADFAST_ITEM_BACKOFF_CAP", default_value = "24h", value_parser = humantime::parse_duration, help_heading = "Pace of failures")]
    pub item_backoff_cap: Duration,
    /// First wait before an endpoint that is down is asked its control text; each further one doubles it
    #[arg(long, env = "STEADFAST_ENDPOINT_BACKOFF", default_value = "30s", value_parser = humantime::parse_duration, help_heading = "Pace of failures")]
    pub endpoint_backoff: Duration,
    /// Longest of these waits
    #[arg(long, env = "STEADFAST_ENDPOINT_BACKOFF_CAP", default_value = "10m", value_parser = humantime::parse_duration, help_heading = "Pace of failures")]
    pub endpoint_backoff_cap: Duration,
    /// How long an endpoint's last answer speaks for it: a failure within that time is the item's own
    #[arg(long, env = "STEADFAST_EVIDENCE", default_value = "60s", value_parser = humantime::parse_duration, help_heading = "Pace of failures")]
    pub evidence: Duration,
    /// Wait after a 429 that names no time
    #[arg(long, env = "STEADFAST_RATE_LIMIT_WAIT", default_value = "60s", value_parser = humantime::parse_duration, help_heading = "Pace of failures")]
    pub rate_limit_wait: Duration,
    /// The longest a provider's Retry-After is believed
    #[arg(long, env = "STEADFAST_RATE_LIMIT_CAP", default_value = "5m", value_parser = humantime::parse_duration, help_heading = "Pace of failures")]
    pub rate_limit_cap: Duration,
    /// How long a breaker must have been on before its incident may close
    #[arg(long, env = "STEADFAST_REOPEN_GRACE", default_value = "30m", value_parser = humantime::parse_duration, help_heading = "Pace of failures")]
    pub reopen_grace: Duration,
    /// Where notices are sent from: smtps://user:password@host or smtp://user:password@host (STARTTLS; plain text only to this machine).
    /// Without it this worker sends none, and they wait for one that does
    #[arg(long, env = "STEADFAST_SMTP_URL", hide_env_values = true, help_heading = "Mail")]
    #[serde(skip)] // as above, and only to a child that sends a mail
    pub smtp_url: Option<String>,
    /// The sender's address
    #[arg(long, env = "STEADFAST_MAIL_FROM", requires = "smtp_url", help_heading = "Mail")]
    pub mail_from: Option<String>,
    /// Longest time for handing over one mail
    #[arg(long, env = "STEADFAST_SMTP_TIMEOUT", default_value = "60s", value_parser = humantime::parse_duration, help_heading = "Mail")]
    pub smtp_timeout: Duration,
    /// Where people reach the API, for links in mails
    #[arg(long, env = "STEADFAST_PUBLIC_URL", help_heading = "Mail")]
    pub public_url: Option<String>,
    /// Most memory (MiB of address space) for the child process in which a job runs that was running when a worker died
    #[arg(long, env = "STEADFAST_ISOLATED_MB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(512..=1_048_576))]
    pub isolated_mb: u32,
    /// On: jobs that ask for it end their process (see `fault`). For tests
    #[arg(long, env = "STEADFAST_FAULTS", hide = true, default_value = "off", action = clap::ArgAction::Set, value_parser = on_or_off)]
    pub faults: bool,
    /// Stop when this process is gone (set by `steadfast up`)
    #[arg(long, env = "STEADFAST_PARENT_PID", hide = true)]
    pub parent_pid: Option<i32>,
}

fn kind(s: &str) -> Result<JobKind, String> {
    JobKind::parse(s.trim()).ok_or_else(|| format!("no such kind; there are {}", JobKind::ALL.map(JobKind::as_str).join(", ")))
}

fn on_or_off(s: &str) -> Result<bool, String> {
    match s {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("use on or off".to_owned()),
    }
}

impl Config {
    /// Says what does not go together, naming the setting and the fix.
    ///
    /// # Errors
    /// A sentence for the person who started the process.
    pub fn check(&self) -> Result<(), String> {
        if self.renew * 3 > self.lease {
            return Err(format!(
                "--renew {} is more than a third of --lease {}: one late renewal would lose the claim; lower it or raise the lease",
                humantime::format_duration(self.renew),
                humantime::format_duration(self.lease)
            ));
        }
        for (base, cap, name) in [
            (self.item_backoff, self.item_backoff_cap, "item"),
            (self.endpoint_backoff, self.endpoint_backoff_cap, "endpoint"),
        ] {
            // A cap at or below the first step makes the backoff inert (requirement N45).
            if base >= cap {
                return Err(format!(
                    "--{name}-backoff {} must be less than --{name}-backoff-cap {}: otherwise no wait ever grows",
                    humantime::format_duration(base),
                    humantime::format_duration(cap)
                ));
            }
            if base.is_zero() {
                return Err(format!(
                    "--{name}-backoff 0 would ask without a pause; give it at least a few milliseconds"
                ));
            }
        }
        if self.smtp_url.is_some() && self.mail_from.is_none() {
            return Err(
                "--smtp-url (STEADFAST_SMTP_URL) needs --mail-from (STEADFAST_MAIL_FROM): whom shall the notices come from?".to_owned(),
            );
        }
        if self.smtp_url.is_none() && self.kinds.contains(&JobKind::Notice) {
            return Err("--kinds names notice, but without --smtp-url (STEADFAST_SMTP_URL) no mail can be sent".to_owned());
        }
        for (name, value) in [("--lease", self.lease), ("--renew", self.renew), ("--poll", self.poll)] {
            if value.is_zero() {
                return Err(format!("{name} 0 would spin; give it at least a few milliseconds"));
            }
        }
        Ok(())
    }

    #[must_use]
    pub fn kinds(&self) -> Vec<JobKind> {
        if self.kinds.is_empty() {
            // A worker without a mail server leaves notices to one that has it.
            JobKind::ALL
                .into_iter()
                .filter(|k| *k != JobKind::Notice || self.smtp_url.is_some())
                .collect()
        } else {
            self.kinds.clone()
        }
    }

    /// How fast failures come round again.
    #[must_use]
    pub fn pace(&self) -> Pace {
        Pace {
            item_base: self.item_backoff,
            item_cap: self.item_backoff_cap,
            endpoint_base: self.endpoint_backoff,
            endpoint_cap: self.endpoint_backoff_cap,
            evidence: self.evidence,
            rate_limit_default: self.rate_limit_wait,
            rate_limit_cap: self.rate_limit_cap,
            reopen_grace: self.reopen_grace,
        }
    }

    /// The mail server, where one is set.
    ///
    /// # Errors
    /// A sentence that names the setting; never the password.
    pub fn mailer(&self) -> Result<Option<Mailer>, String> {
        let (Some(url), Some(from)) = (&self.smtp_url, &self.mail_from) else {
            return Ok(None);
        };
        Ok(Some(Mailer::new(Smtp::parse(url, from)?, self.smtp_timeout)))
    }

    /// Batch places: what was asked for, or one per core.
    #[must_use]
    pub fn places(&self) -> usize {
        self.concurrency.map_or_else(
            || std::thread::available_parallelism().map_or(2, std::num::NonZero::get),
            usize::from,
        )
    }
}
