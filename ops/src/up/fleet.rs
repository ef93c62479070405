//! Keeps what was started running, and ends it in the right order: who uses the database before the database.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::Signal;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::process::{self, Spec};
use super::say::Say;

/// How far the shutdown has come; only ever rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Run,
    /// API and workers finish what they hold.
    Drain,
    /// Then the database.
    Database,
    /// Everybody, now.
    Kill,
}

#[derive(Debug)]
pub(super) struct Fleet {
    say: Say,
    phase: watch::Sender<Phase>,
    members: Vec<Member>,
}

/// A part under supervision.
#[derive(Debug)]
struct Member {
    leaves_at: Phase,
    task: JoinHandle<()>,
}

/// Sees a part die while its start is still awaited.
#[derive(Debug, Clone)]
pub(super) struct Health {
    name: String,
    log: PathBuf,
    /// How long the log was before this start.
    log_from: usize,
    deaths: watch::Receiver<Option<ExitStatus>>,
}

impl Health {
    /// `work`'s result, or an error with the end of the log when the part dies first.
    pub(super) async fn or_death<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut deaths = self.deaths.clone();
        tokio::select! {
            done = work => done,
            died = async { deaths.wait_for(Option::is_some).await.map(|status| *status) } => {
                let how = died.ok().flatten().map_or_else(|| "it is gone".to_owned(), |status| status.to_string());
                bail!("{} ended at once ({how}); the end of {}:\n{}", self.name, self.log.display(), process::tail(&self.log, self.log_from, 12));
            }
        }
    }
}

impl Fleet {
    pub(super) fn new(say: Say) -> Self {
        Self {
            say,
            phase: watch::Sender::new(Phase::Run),
            members: Vec::new(),
        }
    }

    /// Starts a part and keeps it running until the fleet's phase reaches `leaves_at`.
    pub(super) fn start(&mut self, spec: Spec, leaves_at: Phase) -> Result<Health> {
        let log_from = std::fs::metadata(&spec.log).map_or(0, |log| usize::try_from(log.len()).unwrap_or(0));
        let child = spec.spawn()?;
        let (deaths, seen) = watch::channel(None);
        let health = Health {
            name: spec.name.clone(),
            log: spec.log.clone(),
            log_from,
            deaths: seen,
        };
        let task = tokio::spawn(keep(self.say, spec, child, self.phase.subscribe(), leaves_at, deaths));
        self.members.push(Member { leaves_at, task });
        Ok(health)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// For the second Ctrl-C.
    pub(super) fn phase(&self) -> watch::Sender<Phase> {
        self.phase.clone()
    }

    /// Ends everybody in order and waits until they are gone.
    pub(super) async fn stop(&mut self) {
        for phase in [Phase::Drain, Phase::Database] {
            raise(&self.phase, phase);
            for member in self.members.extract_if(.., |member| member.leaves_at <= phase) {
                // A supervisor that panicked has nothing left to wait for.
                let _ = member.task.await;
            }
        }
    }
}

/// Moves on to `phase`, never back.
pub(super) fn raise(phases: &watch::Sender<Phase>, phase: Phase) {
    phases.send_if_modified(|now| {
        let further = *now < phase;
        *now = phase.max(*now);
        further
    });
}

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// After this long without dying it counts as well again.
const WELL_AFTER: Duration = Duration::from_secs(30);

async fn keep(
    say: Say,
    spec: Spec,
    mut child: Child,
    mut phases: watch::Receiver<Phase>,
    leaves_at: Phase,
    deaths: watch::Sender<Option<ExitStatus>>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let born = Instant::now();
        let pid = process::pid_of(&child);
        let status = tokio::select! {
            status = child.wait() => Some(status),
            _ = phases.wait_for(|now| *now >= leaves_at) => None,
        };
        let Some(status) = status else {
            return end(say, &spec, child, &mut phases).await;
        };
        // What it had started (an OCR engine) must not work on beside its successor.
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
        if let Ok(status) = status {
            let _ = deaths.send(Some(status));
        }
        if born.elapsed() >= WELL_AFTER {
            pause = FIRST_PAUSE;
        }
        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        say.line(format!(
            "! {} ended ({how}); starting it again in {:.1} s, see {}",
            spec.name,
            pause.as_secs_f64(),
            spec.log.display()
        ));
        child = loop {
            let wait = pause;
            pause = (pause * 2).min(LONGEST_PAUSE);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = phases.wait_for(|now| *now >= leaves_at) => return,
            }
            match spec.spawn() {
                Ok(child) => break child,
                Err(error) => say.line(format!("! {error:#}; trying again in {:.1} s", pause.as_secs_f64())),
            }
        };
    }
}

async fn end(say: Say, spec: &Spec, mut child: Child, phases: &mut watch::Receiver<Phase>) {
    process::signal(&child, spec.stop);
    tokio::select! {
        _ = child.wait() => return,
        () = tokio::time::sleep(spec.grace) => say.line(format!("! {} did not end within {} s: ending it now", spec.name, spec.grace.as_secs())),
        _ = phases.wait_for(|now| *now == Phase::Kill) => {}
    }
    if spec.force == Signal::KILL {
        process::signal_group(&child, spec.force);
    } else {
        process::signal(&child, spec.force);
    }
    if tokio::time::timeout(Duration::from_secs(5), child.wait()).await.is_err() {
        process::signal_group(&child, Signal::KILL);
        let _ = child.wait().await;
    }
}
