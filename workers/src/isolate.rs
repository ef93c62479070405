//! A job that was running when its worker died is a *suspect*, and runs from then on in a child process of its own (decision B7):
//! this same binary, started as `run-child`, with limits on memory and processor time and the first in line when memory runs out.
//! If the job kills again, it kills the child. This process lives on, its other jobs beside it, and settles the death as a crash.
//!
//! The child gets one JSON document by stdin and gives one back by stdout, on one line. It runs the very handler that would
//! have run here, and nothing else: lease, fence and settlement stay with the parent, so a child that goes mad can at worst
//! spoil its own result. It reads its input over a database connection of its own. To hand it the input instead would put every
//! document through two pipes, and every kind's way of reading into this file.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::panic::AssertUnwindSafe;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::FutureExt as _;
use queue_schema::blob::Blobs;
use queue_schema::claim::Claim;
use queue_schema::endpoint::Endpoint;
use queue_schema::outcome::{Failure, Outcome, RetryClass, sanitise};
use queue_schema::{Db, JobKind, Role};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStderr, Command};
use tokio_util::task::AbortOnDropHandle;

use crate::child::{Caps, limit_ourselves};
use crate::config::Config;
use crate::engine::{Group, Stop};
use crate::handlers;
use crate::local::Local;
use crate::provider::Clients;
use crate::run::{self, Context};

/// The first argument that makes this binary the child.
pub const ARGUMENT: &str = "run-child";
/// The longest result that is read: a book of a few thousand pages is a tenth of it.
const ANSWER_MAX: u64 = 128 << 20;
/// How much of what a child says on stderr goes into the log.
const WORDS_MAX: usize = 16 << 10;

/// Whether the job was running when a process died, and has not succeeded since.
#[must_use]
pub fn is_suspect(claim: &Claim) -> bool {
    claim.counters.crashes > 0
}

/// What the child is told. One definition for both sides: the parent lends, the child owns.
#[derive(Serialize, Deserialize)]
struct Task<S, C, E> {
    /// Who waits for the answer: a child whose parent died before the child could tie itself to it must not begin.
    parent: u32,
    cpu_seconds: u64,
    settings: S,
    claim: C,
    endpoint: Option<E>,
}

// ── The parent's side ────────────────────────────────────────────────────────────────────────────────────────────────

/// Runs each claim of a group in a child process of its own. Dropping the future kills the child and what it has started.
pub async fn run(context: &Context, group: &Group) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(group.claims.len());
    for claim in &group.claims {
        outcomes.push(one(context, group, claim).await);
    }
    outcomes
}

async fn one(context: &Context, group: &Group, claim: &Claim) -> Outcome {
    let endpoint = group.endpoint.as_deref();
    let task = Task {
        parent: std::process::id(),
        // As much as two busy cores can use within the time that the group has: a net for when nobody is left to kill it.
        cpu_seconds: handlers::max_hold(context, group).as_secs().max(1).saturating_mul(2),
        settings: &context.config,
        claim,
        endpoint,
    };
    let task = match serde_json::to_vec(&task) {
        Ok(task) => task,
        Err(error) => return not_started(&error),
    };
    let oom_kills = oom_kills();
    // Not current_exe(): after an upgrade in place that path names another binary, or none.
    let spawned = Command::new("/proc/self/exe")
        .arg0("steadfast-worker")
        .arg(ARGUMENT)
        .env_clear()
        .envs(environment(&context.config, claim.kind, endpoint))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return not_started(&error),
    };
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let (Some(pid), Some(mut stdin), Some(stdout), Some(stderr)) = (pid, child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return not_started(&"it has no pipes");
    };
    // Declared after `child`, so dropped before it: a group can be named as long as nobody has collected its leader.
    let leash = Leash(pid);
    tracing::info!(
        job.id = claim.job_id,
        attempt = claim.attempt,
        crashes = claim.counters.crashes,
        child = pid.as_raw_nonzero(),
        "a process died while this job ran: it runs in one of its own"
    );
    let words = AbortOnDropHandle::new(tokio::spawn(listen(stderr, claim.job_id, pid)));
    let (_told, answer) = tokio::join!(
        async move {
            // A child that dies before it has read everything says so by dying; a broken pipe here is not the message.
            let written = stdin.write_all(&task).await;
            drop(stdin);
            written
        },
        async {
            let mut answer = Vec::new();
            let read = BufReader::new(stdout).take(ANSWER_MAX).read_until(b'\n', &mut answer).await;
            read.map(|_| answer)
        }
    );
    let answer = answer.unwrap_or_default();
    if answer.last() == Some(&b'\n') || answer.len() as u64 == ANSWER_MAX {
        drop(leash);
        return understood(&answer)
            .unwrap_or_else(|| crashed(claim, "child_garbage", "the isolated process gave back nothing that makes sense"));
    }
    // It is dead, or dying. Looked at without collecting it, so that the leash can still end what it has left behind.
    let _seen = tokio::task::spawn_blocking(move || waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)).await;
    drop(leash);
    let status = match child.wait().await {
        Ok(status) => status,
        Err(error) => {
            return crashed(
                claim,
                "child_exit",
                &format!("the end of the isolated process was not seen: {error}"),
            );
        }
    };
    // Everything that could hold the other end has been killed; the second is for a machine on its knees.
    let words = tokio::time::timeout(Duration::from_secs(1), words).await.ok().and_then(Result::ok);
    let (cause, error) = death(status, &answer, words.unwrap_or_default().as_str(), oom_kills != self::oom_kills());
    crashed(claim, cause, &error)
}

/// Nobody's crash: this machine is short of something.
fn not_started(error: &dyn std::fmt::Display) -> Outcome {
    tracing::warn!(%error, "an isolated process could not be started");
    Outcome::Failed(
        Failure::new(
            RetryClass::Outage,
            "child_not_started",
            format!("the isolated process could not be started: {error}"),
        )
        .after(Duration::from_secs(10)),
    )
}

fn crashed(claim: &Claim, cause: &'static str, error: &str) -> Outcome {
    tracing::warn!(
        job.id = claim.job_id,
        attempt = claim.attempt,
        cause,
        error,
        "the isolated process of this job died; this one goes on"
    );
    Outcome::failed(RetryClass::Crash, cause, error)
}

/// What a child's end says: a cause and a sentence for an operator.
fn death(status: ExitStatus, answer: &[u8], words: &str, oom_killed: bool) -> (&'static str, String) {
    // What the standard library says before it aborts; see `std::alloc::handle_alloc_error`.
    let refused_memory = words.contains("memory allocation of ") && words.contains(" bytes failed");
    match (status.signal(), status.code()) {
        (Some(_), _) if refused_memory => (
            "child_oom",
            "the isolated process asked for more memory than it may have; --isolated-mb raises that".to_owned(),
        ),
        // The kernel's count is for the whole machine; that it rose in this very while and we got a SIGKILL nobody here sent is as good
        // as a signed letter.
        (Some(signal), _) if signal == Signal::KILL.as_raw() && oom_killed => (
            "child_oom",
            "the kernel ended the isolated process because memory ran out".to_owned(),
        ),
        (Some(signal), _) => (
            "child_signal",
            format!("the isolated process was ended by signal {signal}{}", name(signal)),
        ),
        (None, Some(0)) if !answer.is_empty() => (
            "child_garbage",
            "the isolated process gave back nothing that makes sense".to_owned(),
        ),
        (None, code) => (
            "child_exit",
            format!("the isolated process ended with code {} and no result", code.unwrap_or(-1)),
        ),
    }
}

fn name(signal: i32) -> &'static str {
    match signal {
        4 => " (illegal instruction)",
        6 => " (abort)",
        7 => " (bus error)",
        8 => " (arithmetic)",
        9 => " (kill)",
        11 => " (bad memory access)",
        24 => " (processor time)",
        _ => "",
    }
}

/// One outcome, made fit to be written: whoever wrote it may not have been in his right mind.
fn understood(answer: &[u8]) -> Option<Outcome> {
    let mut outcomes: Vec<Outcome> = serde_json::from_slice(answer).ok()?;
    let outcome = outcomes.pop().filter(|_| outcomes.is_empty())?;
    Some(match outcome {
        Outcome::Done(effect) => Outcome::Done(effect),
        Outcome::Failed(f) => Outcome::Failed(Failure {
            cause: Cow::Owned(sanitise(&f.cause)),
            error: sanitise(&f.error),
            ..f
        }),
    })
}

/// Logs what the child says, line by line, up to a bound; then only drains it, so that nobody has to wait for us. Gives back what it logged.
async fn listen(stderr: ChildStderr, job_id: i64, pid: Pid) -> String {
    let mut said = String::new();
    let mut stderr = BufReader::new(stderr);
    loop {
        let mut line = Vec::new();
        match (&mut stderr).take(4096).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return said,
            Ok(_) if said.len() > WORDS_MAX => {}
            Ok(_) => {
                let line = sanitise(String::from_utf8_lossy(&line).trim_end());
                tracing::warn!(job.id = job_id, child = pid.as_raw_nonzero(), "isolated: {line}");
                said.push_str(&line);
                said.push('\n');
            }
        }
    }
}

/// How many processes the kernel has ended for want of memory since it started; `None` where it does not say.
fn oom_kills() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/vmstat").ok()?;
    stat.lines().find_map(|l| l.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// What the child may see of our environment: the database, and of all else only what this one job needs. A job that has gone
/// mad in there finds one key.
fn environment(config: &Config, kind: JobKind, endpoint: Option<&Endpoint>) -> Vec<(OsString, OsString)> {
    const ALWAYS: [&str; 6] = ["PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "TESSDATA_PREFIX"];
    const WIRE: [&str; 3] = ["STEADFAST_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"];
    const BUCKET: [&str; 5] = [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "STEADFAST_S3_ENDPOINT",
    ];
    let wire = endpoint.filter(|e| matches!(e.protocol.as_str(), "openai" | "ocr_http"));
    let bucket = config.blobs.starts_with("s3:") && matches!(kind, JobKind::Extract | JobKind::Ocr | JobKind::Retention);
    let mail = kind == JobKind::Notice;
    let passed = |name: &str| {
        ALWAYS.contains(&name)
            // How to reach the database, where the URL leaves it open: PGPASSFILE, PGSSLROOTCERT and their like.
            || name.starts_with("PG")
            || wire.is_some_and(|e| WIRE.contains(&name) || e.key_env.as_deref() == Some(name))
            || (bucket && (BUCKET.contains(&name) || WIRE.contains(&name)))
            || (mail && (name == "STEADFAST_SMTP_URL" || WIRE.contains(&name)))
    };
    let mut env: Vec<_> = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(passed)).collect();
    env.extend([
        ("STEADFAST_DATABASE_URL".into(), config.database_url.clone().into()),
        // Under a limit on address space each thread of an allocator or a pool counts with what it reserves, not what it uses: on a machine
        // of many cores that alone would be more than the limit.
        ("MALLOC_ARENA_MAX".into(), "2".into()),
        ("RAYON_NUM_THREADS".into(), "2".into()),
    ]);
    env
}

/// Ends the child's process group when dropped, and what the child has put into groups of their own (Tesseract is, so that a
/// reading can be ended by itself).
struct Leash(Pid);

impl Drop for Leash {
    fn drop(&mut self) {
        let own = descendants(self.0);
        // Errors mean that there is nobody left.
        let _gone = kill_process_group(self.0, Signal::KILL);
        for pid in own {
            let _gone = kill_process(pid, Signal::KILL);
        }
    }
}

/// All processes below this one, as far as the system lists them.
fn descendants(pid: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    let mut found = Vec::new();
    for task in tasks.into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|p| Pid::from_raw(p.parse().ok()?)) {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

// ── The child's side ─────────────────────────────────────────────────────────────────────────────────────────────────

/// Reads the task, does it, says how it went. Returns the exit code: 0 with a result, 2 for a task that cannot be read, 3 when
/// the parent is gone.
#[must_use]
pub fn main() -> u8 {
    let mut task = Vec::new();
    if std::io::stdin().lock().read_to_end(&mut task).is_err() {
        return 3;
    }
    let Ok(task) = serde_json::from_slice::<Task<Config, Claim, Endpoint>>(&task) else {
        return 2;
    };
    limit_ourselves(&Caps {
        memory: u64::from(task.settings.isolated_mb) << 20,
        cpu_seconds: task.cpu_seconds,
        processes: None,
    });
    let parent = rustix::process::getppid().map(|p| p.as_raw_nonzero().get().unsigned_abs());
    if parent != Some(task.parent) {
        return 3;
    }
    // A panic's message may quote content; where it happened does not.
    std::panic::set_hook(Box::new(|panic| match panic.location() {
        Some(at) => eprintln!("panicked at {at}"),
        None => eprintln!("panicked"),
    }));
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .init();
    // One thread, and few beside it: there is one job.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(4)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return say(&not_started(&error)),
    };
    let outcome = runtime.block_on(work(task));
    let code = say(&outcome);
    // What still runs beside is nobody's any more.
    runtime.shutdown_background();
    code
}

async fn work(task: Task<Config, Claim, Endpoint>) -> Outcome {
    let context = match context(task.settings) {
        Ok(context) => context,
        Err(error) => return not_started(&error),
    };
    let group = Group {
        kind: task.claim.kind,
        lane: task.claim.lane,
        claims: vec![Arc::new(task.claim)],
        endpoint: task.endpoint.map(Arc::new),
        stop: Stop::default(),
    };
    match AssertUnwindSafe(run::handle(&context, &group)).catch_unwind().await {
        Ok(mut outcomes) => outcomes
            .pop()
            .unwrap_or_else(|| Outcome::failed(RetryClass::InvalidOutput, "no_outcome", "the handler said nothing of this job")),
        // As in the worker's own process: the handler's fault, and no crash.
        Err(_panic) => Outcome::failed(RetryClass::ItemError, "panic", "the handler panicked"),
    }
}

/// As the worker's, with nothing made before it is used.
fn context(mut settings: Config) -> Result<Context, String> {
    // Given to the child of a notice alone.
    settings.smtp_url = std::env::var("STEADFAST_SMTP_URL").ok();
    let url = std::env::var("STEADFAST_DATABASE_URL").unwrap_or_default();
    let db = Db::open(&url, Role::Worker, 2, "steadfast-worker-isolated").map_err(|e| format!("STEADFAST_DATABASE_URL: {e}"))?;
    let local = Local::for_one(&settings).map_err(|e| e.to_string())?;
    let blobs = settings.blobs.clone();
    let (mailer, pace) = (settings.mailer()?, settings.pace());
    Ok(Context {
        config: settings,
        db,
        blobs: LazyLock::new(Box::new(move || Blobs::open(&blobs).unwrap_or_else(|e| give_up(&e)))),
        clients: LazyLock::new(Box::new(|| Clients::new().unwrap_or_else(|e| give_up(&e)))),
        local,
        confirming: tokio::sync::Mutex::default(),
        mailer,
        hinter: None,
        pace,
    })
}

/// The parent has opened the very same at its start, so this is weather: it is said in good order instead of by dying.
fn give_up(error: &dyn std::fmt::Display) -> ! {
    std::process::exit(i32::from(say(&not_started(error))))
}

fn say(outcome: &Outcome) -> u8 {
    let mut out = std::io::stdout().lock();
    let said = serde_json::to_writer(&mut out, &[outcome])
        .map_err(std::io::Error::from)
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush());
    if said.is_ok() { 0 } else { 3 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b7_what_a_childs_end_says() {
        let signal = ExitStatus::from_raw;
        let code = |c: i32| ExitStatus::from_raw(c << 8);
        let refused = "memory allocation of 268435456 bytes failed\n";
        for (status, answer, words, oom_killed, cause) in [
            (signal(6), &b""[..], "", false, "child_signal"),
            (signal(6), b"", refused, false, "child_oom"),
            (signal(9), b"", "", false, "child_signal"),
            (signal(9), b"", "", true, "child_oom"),
            (signal(11), b"[{\"Done\":", "", true, "child_signal"),
            (code(3), b"", refused, false, "child_exit"),
            (code(0), b"", "", false, "child_exit"),
            (code(0), b"hello", "", false, "child_garbage"),
        ] {
            assert_eq!(
                death(status, answer, words, oom_killed).0,
                cause,
                "{status} {answer:?} {words:?} {oom_killed}"
            );
        }
    }

    #[test]
    fn an_answer_is_one_outcome_fit_to_be_written_or_nothing() {
        let failed = Outcome::Failed(Failure {
            class: RetryClass::ItemError,
            cause: "x\u{0}".into(),
            error: "e\u{0}".repeat(900),
            wait: None,
            doubted: false,
        });
        let line = serde_json::to_vec(&[failed]).expect("plain data");
        let Some(Outcome::Failed(f)) = understood(&line) else {
            panic!("one failure went in")
        };
        assert_eq!((f.cause.as_ref(), f.error.len()), ("x ", 500));
        assert!(matches!(understood(b"[{\"Done\":\"Nothing\"}]\n"), Some(Outcome::Done(_))));
        for bad in [&b""[..], b"\n", b"[]", b"{}", b"[{\"Done\":\"Nothing\"},{\"Done\":\"Nothing\"}]"] {
            assert!(understood(bad).is_none(), "{bad:?}");
        }
    }
}
