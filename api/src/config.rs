//! Settings, from flags and the environment.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;

/// The HTTP API of Steadfast.
#[derive(Clone, Parser)]
#[command(
    name = "steadfast-api",
    version,
    about,
    after_help = "steadfast-api --openapi, alone, prints the OpenAPI document of all routes and ends; it needs no database."
)]
pub struct Config {
    /// Where the database is.
    #[arg(long, env = "STEADFAST_DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
    /// Address and port; port 0 takes a free one, and the first line of output names it.
    #[arg(long, env = "STEADFAST_BIND", default_value = "127.0.0.1:7787")]
    pub bind: SocketAddr,
    /// Allow an address that other machines reach (1). There is no TLS here: put a proxy that has it in between.
    #[arg(long, env = "STEADFAST_ALLOW_REMOTE", default_value = "0", value_parser = parse_flag, action = clap::ArgAction::Set)]
    pub allow_remote: bool,
    /// Where documents' bytes go: file:///dir or s3://bucket/prefix.
    #[arg(long, env = "STEADFAST_BLOBS", default_value = "file://./.steadfast/blobs")]
    pub blobs: String,
    /// The largest upload, in bytes or like 50MiB.
    #[arg(long, env = "STEADFAST_MAX_UPLOAD", default_value = "50MiB", value_parser = parse_bytes)]
    pub max_upload: u64,
    /// How long a search may wait for fresh material and for its question, together; 0s leaves only the question's own limit.
    #[arg(long, env = "STEADFAST_SYNC_BUDGET", default_value = "30s", value_parser = humantime::parse_duration)]
    pub sync_budget: Duration,
    /// How long a search waits for its question's vector before it answers by words alone. Below the 30 s after which
    /// common clients give up on the whole answer.
    #[arg(long, env = "STEADFAST_QUESTION_TIMEOUT", default_value = "15s", value_parser = humantime::parse_duration)]
    pub question_timeout: Duration,
    /// How long a body may pause.
    #[arg(long, env = "STEADFAST_BODY_IDLE", default_value = "60s", value_parser = humantime::parse_duration)]
    pub body_idle: Duration,
    /// How long a body may take in all.
    #[arg(long, env = "STEADFAST_BODY_TIMEOUT", default_value = "10m", value_parser = humantime::parse_duration)]
    pub body_timeout: Duration,
    /// Connections to the database.
    #[arg(long, env = "STEADFAST_API_CONNECTIONS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub connections: u32,
    /// End when the process with this id is gone.
    #[arg(long, env = "STEADFAST_PARENT_PID")]
    pub parent_pid: Option<u32>,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The database's URL may hold a password.
        f.debug_struct("Config")
            .field("bind", &self.bind)
            .field("max_upload", &self.max_upload)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Half-secure is refused, with the sentence that says how.
    ///
    /// # Errors
    /// When other machines could reach us and nobody said that this is meant.
    pub fn check(&self) -> Result<(), String> {
        if !self.bind.ip().is_loopback() && !self.allow_remote {
            return Err(format!(
                "{} is reachable from other machines and this server speaks plain HTTP: tokens and documents would be readable on the way. \
                 Bind to 127.0.0.1 behind a proxy with TLS, or set STEADFAST_ALLOW_REMOTE=1 where the network itself is private.",
                self.bind
            ));
        }
        Ok(())
    }

    /// How long a search waits for its question.
    #[must_use]
    pub fn question_wait(&self) -> Duration {
        if self.sync_budget.is_zero() {
            self.question_timeout
        } else {
            self.question_timeout.min(self.sync_budget)
        }
    }

    /// The limit of a request without a large body: its waiting, and then some.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.question_wait() + Duration::from_secs(45) + self.body_idle
    }

    /// The limit of an upload.
    #[must_use]
    pub fn upload_timeout(&self) -> Duration {
        self.body_timeout + Duration::from_secs(90)
    }
}

fn parse_flag(s: &str) -> Result<bool, String> {
    match s.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" => Ok(true),
        "0" | "false" | "no" | "" => Ok(false),
        _ => Err("1 or 0".into()),
    }
}

fn parse_bytes(s: &str) -> Result<u64, String> {
    let s = s.trim();
    let digits = s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    let (number, unit) = s.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "a number of bytes, or like 50MiB".to_owned())?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return Err("the unit is one of B, KiB, MiB, GiB".into()),
    };
    number
        .checked_mul(factor)
        .filter(|n| *n > 0)
        .ok_or_else(|| "more than 0, and not that much".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(args: &[&str]) -> Config {
        let fixed = ["steadfast-api", "--database-url", "postgres://localhost/x"];
        Config::try_parse_from(fixed.iter().chain(args)).expect("these flags are known")
    }

    #[test]
    fn an_address_others_reach_needs_a_word() {
        assert!(config(&[]).check().is_ok());
        assert!(config(&["--bind", "[::1]:0"]).check().is_ok());
        assert!(
            config(&["--bind", "0.0.0.0:80"])
                .check()
                .is_err_and(|e| e.contains("STEADFAST_ALLOW_REMOTE=1"))
        );
        assert!(config(&["--bind", "0.0.0.0:80", "--allow-remote", "1"]).check().is_ok());
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!(parse_bytes("1024"), Ok(1024));
        assert_eq!(parse_bytes("50MiB"), Ok(50 << 20));
        assert!(parse_bytes("0").is_err() && parse_bytes("x").is_err() && parse_bytes("5 parsec").is_err());
    }
}
