use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use super::wait_until;

/// How long a program that is not ours may take until it answers; an interpreter on a busy machine takes its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many ports are tried: between our look at a free one and the program's bind somebody else may take it.
const PORTS: usize = 5;

/// A part that `ops/test` brings: what the variable `var` says.
///
/// # Panics
/// When it says nothing.
pub(super) fn part(var: &str, what: &str) -> PathBuf {
    std::env::var_os(var)
        .map(PathBuf::from)
        .unwrap_or_else(|| panic!("{var} names no {what}: run this through ops/test, which brings one"))
}

/// A server that is not ours, as a process of its own; killed when dropped.
#[derive(Debug)]
pub(super) struct Foreign {
    child: Child,
    log: PathBuf,
}

impl Foreign {
    /// Starts it in `dir` and waits until `answers` holds.
    ///
    /// # Errors
    /// What it said when it ended before that.
    ///
    /// # Panics
    /// When it cannot be started at all, or neither answers nor ends within a minute.
    pub(super) async fn start<E: std::fmt::Debug>(
        program: &Path,
        args: &[String],
        dir: &Path,
        mut answers: impl AsyncFnMut() -> Result<(), E>,
    ) -> Result<Self, String> {
        let log = dir.join("log");
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log in our own folder");
        let out = file.try_clone().expect("a second handle of a file");
        let child = Command::new(program)
            .args(args)
            // A folder without modules of its own, which an interpreter would prefer to the installed ones.
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|e| panic!("{} does not start: {e}; ops/test brings it", program.display()));
        let mut this = Self { child, log };
        wait_until(&format!("{} answers", program.display()), PATIENCE, async || {
            if !this.is_alive() {
                return Ok(Err(this.log()));
            }
            answers().await.map(Ok)
        })
        .await
        .map(|()| this)
    }

    /// As `start`, on a port that was free a moment ago and is told to `args` and `answers`.
    ///
    /// # Panics
    /// When it ends on every port that is tried.
    pub(super) async fn start_on_a_free_port<E: std::fmt::Debug>(
        program: &Path,
        dir: &Path,
        args: impl Fn(u16) -> Vec<String>,
        mut answers: impl AsyncFnMut(u16) -> Result<(), E>,
    ) -> (Self, u16) {
        let mut said = String::new();
        for _ in 0..PORTS {
            let port = free_port();
            match Self::start(program, &args(port), dir, async || answers(port).await).await {
                Ok(this) => return (this, port),
                Err(e) => said = e,
            }
        }
        panic!("{} ended at once; it said {said}", program.display())
    }

    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it said so far.
    pub(super) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Ends it, and waits until it is gone and its port with it.
    pub(super) async fn stop(mut self) {
        // An error means that it had ended by itself.
        let _ = self.child.kill().await;
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}
