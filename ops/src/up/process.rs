//! How a part is started: directly (no shell in between), in a process group of its own, with an environment we chose, writing to
//! its own log, and told by the kernel when we are gone.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};

/// The account that Postgres runs as when we are root, which it refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Everything needed to start a part, and to start it again.
#[derive(Debug, Clone)]
pub(super) struct Spec {
    /// For people and for the name of the log.
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
    /// The whole environment of the process.
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) log: PathBuf,
    pub(super) account: Option<Account>,
    /// Asks it to end in order.
    pub(super) stop: Signal,
    /// Ends it when it did not within `grace`.
    pub(super) force: Signal,
    pub(super) grace: Duration,
}

impl Spec {
    /// Starts it now. The child of this process is the program itself: what is put before it (`setpriv`) replaces itself by it.
    pub(super) fn spawn(&self) -> Result<Child> {
        let log = open_log(&self.log)?;
        let mut command = self.command(signal_name(self.stop));
        let start = || -> std::io::Result<Child> {
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            // A Ctrl-C at the terminal is for us alone; we pass it on in the right order.
            command.process_group(0);
            command.spawn()
        };
        start().with_context(|| format!("cannot start {} ({})", self.name, self.program.display()))
    }

    fn command(&self, when_orphaned: &str) -> Command {
        let mut command = match setpriv() {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", when_orphaned]);
                if let Some(Account { uid, gid }) = self.account {
                    command
                        .arg(format!("--reuid={uid}"))
                        .arg(format!("--regid={gid}"))
                        .arg("--clear-groups");
                }
                command.arg("--").arg(&self.program);
                command
            }
            // Then a kill -9 of ours leaves it behind; the next start finds Postgres, and the others watch their parent themselves.
            None => {
                let mut command = Command::new(&self.program);
                if let Some(Account { uid, gid }) = self.account {
                    // std also drops root's other groups when it sets a uid.
                    command.gid(gid).uid(uid);
                }
                command
            }
        };
        command
            .args(&self.args)
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir("/");
        command
    }

    /// Runs it to its end, without a log; gives what it wrote.
    pub(super) async fn output(&self) -> Result<std::process::Output> {
        let mut command = self.command("KILL");
        command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        command
            .output()
            .await
            .with_context(|| format!("cannot start {} ({})", self.name, self.program.display()))
    }
}

fn setpriv() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(|| find_program("setpriv")).as_deref()
}

/// The program of this name in PATH, or where Debian keeps it.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| {
            file.is_absolute() && std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
}

fn signal_name(signal: Signal) -> &'static str {
    match signal {
        Signal::INT => "INT",
        Signal::KILL => "KILL",
        _ => "TERM",
    }
}

const LOG_LIMIT: u64 = 20 << 20;

fn open_log(log: &Path) -> Result<File> {
    // One older log is enough to see what happened before; more is the business of a real log collector.
    if std::fs::metadata(log).is_ok_and(|log| log.len() > LOG_LIMIT) {
        let _ = std::fs::rename(log, log.with_extension("log.1"));
    }
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(log)
        .with_context(|| format!("cannot write {}", log.display()))
}

/// The last lines of what was written to a log after its first `from` bytes, for an error message.
pub(super) fn tail(log: &Path, from: usize, lines: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    // A log that was set aside meanwhile is new from its beginning.
    let text = String::from_utf8_lossy(text.get(from..).unwrap_or(&text));
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..]
        .iter()
        .map(|line| format!("    {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Sends a signal to the child's whole group, so that what it started (an OCR engine) ends with it.
pub(super) fn signal_group(child: &Child, signal: Signal) {
    if let Some(pid) = pid_of(child) {
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

/// Sends a signal to the child alone.
pub(super) fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = pid_of(child) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

pub(super) fn pid_of(child: &Child) -> Option<Pid> {
    // None once it was waited for, so a recycled number is never signalled.
    Pid::from_raw(i32::try_from(child.id()?).ok()?)
}

/// What the API may see of our environment: how to run, its own settings, and how to reach the blob store.
///
/// Names: PATH, HOME, LANG, LC_*, TZ, TMPDIR, RUST_LOG, RUST_BACKTRACE, SSL_CERT_*, STEADFAST_* and AWS_*; but of STEADFAST_*
/// nothing that `up` itself decides or that is somebody's secret (…_TOKEN, …_KEY, …_PASSWORD, the owner's database URL).
pub(super) fn api_env() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| for_api(name)).collect()
}

/// What a worker may see: what the API may, and in addition providers' keys (any name that ends in _KEY or _API_TOKEN, and those listed
/// in STEADFAST_PASS_ENV, separated by commas), STEADFAST_PROXY, through which providers are reached, STEADFAST_SMTP_URL, which may hold a
/// password, and TESSDATA_PREFIX. The API gets none of
/// them: it has no provider client.
pub(super) fn worker_env() -> Vec<(OsString, OsString)> {
    let named = std::env::var("STEADFAST_PASS_ENV").unwrap_or_default();
    let named: Vec<&str> = named.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    std::env::vars_os()
        .filter(|(name, _)| for_api(name) || for_worker(name, &named))
        .collect()
}

fn for_api(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    const PLAIN: [&str; 8] = ["PATH", "HOME", "LANG", "TZ", "TMPDIR", "RUST_LOG", "RUST_BACKTRACE", "USER"];
    if PLAIN.contains(&name) || ["LC_", "SSL_CERT_", "AWS_"].iter().any(|start| name.starts_with(start)) {
        return true;
    }
    const OURS: [&str; 10] = [
        "STEADFAST_DATABASE_URL",
        "STEADFAST_URL",
        "STEADFAST_BIND",
        "STEADFAST_ENV_FILE",
        "STEADFAST_DATA",
        "STEADFAST_PG_BIN",
        "STEADFAST_BIN_DIR",
        "STEADFAST_PASS_ENV",
        "STEADFAST_PROXY",
        "STEADFAST_SMTP_URL",
    ];
    let secret = ["_TOKEN", "_KEY", "_PASSWORD", "_SECRET"].iter().any(|end| name.ends_with(end));
    name.starts_with("STEADFAST_") && !secret && !OURS.contains(&name)
}

fn for_worker(name: &OsStr, named: &[&str]) -> bool {
    let Some(name) = name.to_str() else { return false };
    name.ends_with("_KEY")
        || name.ends_with("_API_TOKEN")
        || ["STEADFAST_PROXY", "STEADFAST_SMTP_URL", "TESSDATA_PREFIX"].contains(&name)
        || named.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_providers_key_reaches_workers_alone() {
        for (name, api, worker) in [
            ("OPENAI_API_KEY", false, true),
            ("STEADFAST_OCR_KEY", false, true),
            ("STEADFAST_TOKEN", false, false),
            ("STEADFAST_DATABASE_URL", false, false),
            ("STEADFAST_LEASE", true, true),
            ("AWS_SECRET_ACCESS_KEY", true, true),
            ("GITHUB_TOKEN", false, false),
            ("STEADFAST_PROXY", false, true),
            ("STEADFAST_SMTP_URL", false, true),
            ("PATH", true, true),
            ("LD_PRELOAD", false, false),
        ] {
            assert_eq!(for_api(OsStr::new(name)), api, "{name} for the API");
            assert_eq!(
                for_api(OsStr::new(name)) || for_worker(OsStr::new(name), &[]),
                worker,
                "{name} for a worker"
            );
        }
        assert!(for_worker(OsStr::new("ODD"), &["ODD"]));
    }
}
