//! One attempt as one sentence: start, do, or stop; and say for each claim how it went.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use queue_schema::blob::Blobs;
use queue_schema::claim::{self, Claim, Started};
use queue_schema::hint::Hinter;
use queue_schema::outcome::{Outcome, RetryClass};
use queue_schema::retry::Pace;
use queue_schema::{Db, JobKind};

use crate::config::Config;
use crate::engine::{Engine, Group, Why};
use crate::local::Local;
use crate::mail::Mailer;
use crate::provider::Clients;
use crate::{fault, handlers, isolate};

/// What handlers work with. No engine: a handler cannot claim or settle, and the isolated child has none.
pub struct Context {
    pub config: Config,
    pub db: Db,
    pub blobs: Lazy<Blobs>,
    pub clients: Lazy<Clients>,
    pub local: Local,
    /// Held while a refusal is being confirmed, so that a burst of them asks once.
    pub confirming: tokio::sync::Mutex<()>,
    /// None: this worker sends no mail.
    pub mailer: Option<Mailer>,
    /// Tells the fleet of new work. None in the isolated child, which ends too soon to tell anybody: the poll finds it.
    pub hinter: Option<Hinter>,
    pub pace: Pace,
}

/// Made when first used: the isolated child starts for one job, and most jobs need one of them.
pub type Lazy<T> = LazyLock<T, Box<dyn FnOnce() -> T + Send>>;

/// One that is there already.
pub fn made<T: Send + 'static>(value: T) -> Lazy<T> {
    LazyLock::new(Box::new(move || value))
}

/// What a worker process runs groups with.
pub struct Runner {
    pub context: Context,
    pub engine: Arc<Engine>,
    pub on_start: Option<OnStart>,
}

impl Context {
    /// How fast failures come round again.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.pace
    }
}

/// Told of each claim just before its handler: what the benchmark's latency is measured by.
pub type OnStart = Arc<dyn Fn(&Claim) + Send + Sync>;

/// Runs a group; the result has one outcome per claim, in their order. It returns early when the group is told to stop.
pub async fn run(runner: &Runner, group: &Group) -> Vec<Outcome> {
    let limit = handlers::max_hold(&runner.context, group);
    tokio::select! {
        biased;
        why = group.stop.stopped() => group.claims.iter().map(|c| stopped(&runner.engine, c, why)).collect(),
        outcomes = start_and_do(runner, group) => outcomes,
        () = tokio::time::sleep(limit) => all(group, || Outcome::failed(RetryClass::Timeout, "max_hold", "it ran longer than its kind may")),
    }
}

async fn start_and_do(runner: &Runner, group: &Group) -> Vec<Outcome> {
    let context = &runner.context;
    if group.kind.capability().is_some() {
        match claim::start(&context.db, &group.claims).await {
            Err(error) => {
                tracing::warn!(%error, "cannot mark as started, so nothing is called");
                return all(group, || {
                    Outcome::failed(RetryClass::Preempted, "not_started", "the database did not answer before the call")
                });
            }
            Ok(started) if started.iter().any(|s| *s != Started::Go) => {
                // The breaker went off between the take and the call, or the claim is lost (the fence sees to those).
                return all(group, || {
                    Outcome::failed(RetryClass::Preempted, "gate_closed", "the breaker was turned off before the call")
                });
            }
            Ok(_) => {}
        }
    }
    if let Some(tell) = &runner.on_start {
        group.claims.iter().for_each(|claim| tell(claim));
    }
    if group.claims.iter().any(|c| isolate::is_suspect(c)) {
        return isolate::run(context, group).await;
    }
    handle(context, group).await
}

/// The work itself, in this process: the worker's, or the isolated child's.
pub async fn handle(context: &Context, group: &Group) -> Vec<Outcome> {
    match group.kind {
        JobKind::Extract => handlers::extract::handle(context, group).await,
        JobKind::Ocr => handlers::ocr::handle(context, group).await,
        JobKind::Embed => handlers::embed::handle(context, group).await,
        JobKind::Question => handlers::question::handle(context, group).await,
        JobKind::Retention => handlers::retention::handle(context, group).await,
        JobKind::FanOut => handlers::fan_out::handle(context, group).await,
        JobKind::Notice => handlers::notice::handle(context, group).await,
        JobKind::Noop => {
            fault::asked_by_payload(&context.config, group);
            all(group, Outcome::done)
        }
    }
}

fn stopped(engine: &Engine, claim: &Claim, why: Why) -> Outcome {
    match why {
        Why::Shutdown | Why::Lost => Outcome::failed(RetryClass::Shutdown, "shutdown", "the worker is going away"),
        Why::Interrupted => Outcome::failed(RetryClass::Preempted, "interrupted", "the breaker was turned off with --now"),
        Why::Cancelled if engine.is_cancelled(claim) => Outcome::failed(RetryClass::Cancelled, "cancelled", "cancelled while it ran"),
        Why::Cancelled => Outcome::failed(
            RetryClass::Preempted,
            "neighbour_cancelled",
            "another piece of its batch was cancelled",
        ),
    }
}

/// The same outcome for every claim of a group.
pub fn all(group: &Group, outcome: impl Fn() -> Outcome) -> Vec<Outcome> {
    group.claims.iter().map(|_| outcome()).collect()
}

/// How long past its own time limit a call may hold its place before it is taken away (decision B30).
pub const HOLD_MARGIN: Duration = Duration::from_secs(60);
