use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::{Client, Db, Person};

/// How long a process may take to say its first word, or to end once it was told to. Not a bound of any story.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many lines of a process's log a failed story shows.
const TAIL: usize = 120;

/// Shipped binaries as real processes over one database. All of them are killed when this and their handles are dropped; a
/// story that fails prints the end of each one's log.
///
/// Leases and polls run at a tenth of the shipped pace, all ratios kept (lease 3 s, renewal 1 s, poll 200 ms, …); a story
/// about the defaults takes them back with [`Opts::shipped_pace`].
#[derive(Debug)]
pub struct Fleet {
    env: BTreeMap<String, String>,
    dir: tempfile::TempDir,
    count: AtomicU32,
}

/// What to start a process with, beside what the fleet sets.
#[derive(Clone, Debug, Default)]
pub struct Opts {
    env: BTreeMap<String, Option<String>>,
    args: Vec<String>,
}

impl Opts {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.insert(name.to_owned(), Some(value.into()));
        self
    }

    /// Unsets what the fleet would set.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.env.insert(name.to_owned(), None);
        self
    }

    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Only these kinds, comma-separated.
    #[must_use]
    pub fn kinds(self, kinds: &str) -> Self {
        self.env("STEADFAST_KINDS", kinds)
    }

    #[must_use]
    pub fn concurrency(self, n: u32) -> Self {
        self.env("STEADFAST_CONCURRENCY", n.to_string())
    }

    /// Lease, renewal, polls and graces as shipped.
    #[must_use]
    pub fn shipped_pace(self) -> Self {
        PACE.iter().fold(self, |opts, (name, _)| opts.without(name))
    }
}

const PACE: [(&str, &str); 6] = [
    ("STEADFAST_LEASE", "3s"),
    ("STEADFAST_RENEW", "1s"),
    ("STEADFAST_POLL", "200ms"),
    ("STEADFAST_REAP", "500ms"),
    ("STEADFAST_LOST_GRACE", "300ms"),
    ("STEADFAST_DRAIN", "3s"),
];

impl Fleet {
    /// Blobs in a folder of its own, nothing started yet.
    ///
    /// # Panics
    /// When no temporary folder can be made.
    #[must_use]
    pub fn new(db: &Db) -> Self {
        let mut fleet = Self::without_database();
        fleet.set("STEADFAST_DATABASE_URL", db.url());
        fleet
    }

    /// For what brings a database of its own, which is `steadfast up`.
    ///
    /// # Panics
    /// When no temporary folder can be made.
    #[must_use]
    pub fn without_database() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("steadfast-story-")
            .tempdir()
            .expect("a temporary folder");
        let blobs = dir.path().join("blobs");
        std::fs::create_dir(&blobs).expect("a folder in a new folder");
        let mut env: BTreeMap<String, String> = PACE.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        env.insert("STEADFAST_BLOBS".into(), format!("file://{}", blobs.display()));
        env.insert("STEADFAST_CONCURRENCY".into(), "4".into());
        env.insert("RUST_BACKTRACE".into(), "1".into());
        // Only what a process needs of the machine, so that a developer's settings do not tell the story.
        for name in [
            "PATH",
            "HOME",
            "TMPDIR",
            "LD_LIBRARY_PATH",
            "TESSDATA_PREFIX",
            "RUST_LOG",
            "STEADFAST_LOG",
        ] {
            if let Ok(value) = std::env::var(name) {
                env.insert(name.to_owned(), value);
            }
        }
        Self {
            env,
            dir,
            count: AtomicU32::new(0),
        }
    }

    /// Sets a variable for every process that is started from now on.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.env.insert(name.to_owned(), value.into());
    }

    /// The folder of this fleet: `blobs/` and the logs.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// An API on a free port.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn api(&self) -> Api {
        self.api_with(Opts::new()).await
    }

    /// # Panics
    /// When it does not start.
    pub async fn api_with(&self, opts: Opts) -> Api {
        let opts = if opts.env.contains_key("STEADFAST_BIND") {
            opts
        } else {
            opts.env("STEADFAST_BIND", "127.0.0.1:0")
        };
        let process = self.start("steadfast-api", opts);
        let base = process.line("listening on ").await;
        Api { process, base }
    }

    /// A worker for all kinds, four places.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn worker(&self) -> Process {
        self.worker_with(Opts::new()).await
    }

    /// Returns when the worker has registered; [`Process::boot`] is its boot id then.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn worker_with(&self, opts: Opts) -> Process {
        let mut process = self.start("steadfast-worker", opts);
        let boot = process.line("worker ready boot=").await;
        process.boot = boot.trim().parse().ok();
        process
    }

    /// Starts any of the binaries and waits for nothing: for the ones that are expected to refuse.
    ///
    /// # Panics
    /// When there is no such binary.
    #[must_use]
    pub fn start(&self, name: &str, opts: Opts) -> Process {
        let log = self
            .dir
            .path()
            .join(format!("{}-{name}.log", self.count.fetch_add(1, Ordering::Relaxed)));
        let file = std::fs::File::create(&log).expect("a log in our own folder");
        let mut command = self.command(name, &opts);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{name} does not start: {e}"));
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .expect("a process that has just been started has a pid");
        let out = child.stdout.take().expect("stdout was asked for");
        let said = watch::Sender::new(Said::default());
        let lines = said.subscribe();
        tokio::spawn(async move {
            let mut out = BufReader::new(out).lines();
            while let Ok(Some(line)) = out.next_line().await {
                said.send_modify(|s| s.lines.push(line));
            }
            said.send_modify(|s| s.ended = true);
        });
        Process {
            name: name.to_owned(),
            pid,
            boot: None,
            child,
            lines,
            log,
            status: None,
        }
    }

    /// Runs the operator's command to its end, as `who` where it talks to `api`.
    ///
    /// # Panics
    /// When it cannot be started or does not end within a minute.
    pub async fn steadfast(&self, api: &Api, who: &Person, args: &[&str]) -> Output {
        let opts = Opts::new().env("STEADFAST_URL", &api.base).env("STEADFAST_TOKEN", &who.token);
        self.run("steadfast", args, opts).await
    }

    /// Runs any of the binaries to its end.
    ///
    /// # Panics
    /// When it cannot be started or does not end within a minute.
    pub async fn run(&self, name: &str, args: &[&str], opts: Opts) -> Output {
        let mut command = self.command(name, &opts);
        command.args(args).stdin(Stdio::null()).kill_on_drop(true);
        let out = tokio::time::timeout(PATIENCE, command.output())
            .await
            .unwrap_or_else(|_| panic!("{name} {args:?} did not end within {PATIENCE:?}"))
            .unwrap_or_else(|e| panic!("{name} does not start: {e}"));
        Output {
            code: out.status.code(),
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        }
    }

    fn command(&self, name: &str, opts: &Opts) -> Command {
        let mut command = Command::new(binary(name));
        // The working folder is ours, so that no .steadfast/env of the tree is found.
        command.env_clear().envs(&self.env).current_dir(self.dir.path()).args(&opts.args);
        for (name, value) in &opts.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }
}

/// The binary of that name, beside the test's own executable (`target/<profile>/deps/…`), or in `STEADFAST_BIN_DIR`.
fn binary(name: &str) -> PathBuf {
    let dir = std::env::var_os("STEADFAST_BIN_DIR").map(PathBuf::from).or_else(|| {
        let exe = std::env::current_exe().ok()?;
        let dir = exe.parent()?;
        Some(if dir.ends_with("deps") { dir.parent()? } else { dir }.to_owned())
    });
    let path = dir.expect("a test knows its own executable").join(name);
    assert!(
        path.is_file(),
        "{} is not built: run this through ops/test, or `cargo build --workspace --bins` first",
        path.display()
    );
    path
}

/// A running API.
#[derive(Debug)]
pub struct Api {
    pub process: Process,
    /// `http://127.0.0.1:PORT`
    pub base: String,
}

impl Api {
    #[must_use]
    pub fn client(&self, who: &Person) -> Client {
        Client::new(&self.base, &who.token, who.space_id)
    }
}

/// What a command said.
#[derive(Clone, Debug)]
pub struct Output {
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit {:?}\n--- stdout\n{}\n--- stderr\n{}", self.code, self.stdout, self.stderr)
    }
}

impl Output {
    /// Its standard output as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {self}"))
    }
}

#[derive(Debug, Default)]
struct Said {
    lines: Vec<String>,
    ended: bool,
}

/// One of our binaries, running; killed when dropped, together with the children it has left.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: i32,
    /// The boot id of a worker that has registered.
    pub boot: Option<i64>,
    child: Child,
    lines: watch::Receiver<Said>,
    log: PathBuf,
    status: Option<ExitStatus>,
}

impl Process {
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for a line of standard output that begins with `start`; returns the rest of it.
    ///
    /// # Panics
    /// When the process ends, or a minute passes, before it says so.
    pub async fn line(&self, start: &str) -> String {
        let mut lines = self.lines.clone();
        let find = |s: &Said| s.lines.iter().find_map(|l| l.strip_prefix(start)).map(str::to_owned);
        let waited = tokio::time::timeout(PATIENCE, lines.wait_for(|s| s.ended || find(s).is_some())).await;
        let said = match waited {
            Ok(Ok(said)) => find(&said),
            _ => None,
        };
        said.unwrap_or_else(|| panic!("{} never said {start:?}; it said {:?}", self.name, self.lines.borrow().lines))
    }

    /// Its standard output so far.
    #[must_use]
    pub fn stdout(&self) -> Vec<String> {
        self.lines.borrow().lines.clone()
    }

    /// Its log (standard error) so far. For a person to read: stories assert on the provider's record and on SQL.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Ends it with no chance to say goodbye, and waits until it is gone.
    ///
    /// # Panics
    /// When it stays.
    pub async fn kill9(&mut self) {
        self.signal(Signal::KILL);
        self.wait_exit().await;
    }

    /// Asks it to stop; [`Process::wait_exit`] says when it did.
    pub fn sigterm(&self) {
        self.signal(Signal::TERM);
    }

    /// Freezes it.
    pub fn sigstop(&self) {
        self.signal(Signal::STOP);
    }

    /// Thaws it.
    pub fn sigcont(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        // After the exit was seen the pid may be somebody else's.
        if self.status.is_none() {
            send(self.pid, signal);
        }
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// When it has not within a minute.
    pub async fn wait_exit(&mut self) -> ExitStatus {
        if let Some(status) = self.status {
            return status;
        }
        let status = tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .unwrap_or_else(|_| panic!("{} (pid {}) did not end within {PATIENCE:?}", self.name, self.pid))
            .unwrap_or_else(|e| panic!("{} cannot be waited for: {e}", self.name));
        self.status = Some(status);
        status
    }

    /// Whether it still runs; a frozen one does.
    ///
    /// # Panics
    /// When the system cannot say.
    pub fn is_alive(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self
                .child
                .try_wait()
                .unwrap_or_else(|e| panic!("{} cannot be looked at: {e}", self.name));
        }
        self.status.is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_alive() {
            // Engines that run as children first, while the tree still shows whose they are. No process group of its own:
            // a runner that kills the test's group must get these too.
            for child in descendants(self.pid) {
                send(child, Signal::KILL);
            }
            self.signal(Signal::KILL);
        }
        if std::thread::panicking() {
            let log = self.log();
            let from = log.lines().count().saturating_sub(TAIL);
            eprintln!("──── {} (pid {}), last lines of its log", self.name, self.pid);
            for line in log.lines().skip(from) {
                eprintln!("{line}");
            }
        }
    }
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

fn descendants(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let files = tasks.map(|t| t.path().join("children").into_os_string());
    let children: Vec<i32> = files
        .filter_map(|f: OsString| std::fs::read_to_string(f).ok())
        .flat_map(|s| s.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<_>>())
        .collect();
    children.iter().flat_map(|c| descendants(*c).into_iter().chain([*c])).collect()
}
