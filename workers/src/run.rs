//! One attempt as one sentence: start, do, or stop; and say for each claim how it went.

use std::sync::Arc;
use std::time::Duration;

use queue_schema::blob::Blobs;
use queue_schema::claim::{self, Claim, Started};
use queue_schema::outcome::{Outcome, RetryClass};
use queue_schema::retry::Pace;
use queue_schema::{Db, JobKind};

use crate::config::Config;
use crate::engine::{Engine, Group, Why};
use crate::handlers;
use crate::local::Local;
use crate::mail::Mailer;
use crate::provider::Clients;

/// What handlers work with.
pub struct Context {
    pub config: Config,
    pub db: Db,
    pub engine: Arc<Engine>,
    pub blobs: Blobs,
    pub clients: Clients,
    pub local: Local,
    /// Held while a refusal is being confirmed, so that a burst of them asks once.
    pub confirming: tokio::sync::Mutex<()>,
    pub on_start: Option<OnStart>,
    /// None: this worker sends no mail.
    pub mailer: Option<Mailer>,
}

impl Context {
    /// How fast failures come round again.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.engine.taker.pace
    }
}

/// Told of each claim just before its handler: what the benchmark's latency is measured by.
pub type OnStart = Arc<dyn Fn(&Claim) + Send + Sync>;

/// Runs a group; the result has one outcome per claim, in their order. It returns early when the group is told to stop.
pub async fn run(context: &Context, group: &Group) -> Vec<Outcome> {
    let limit = handlers::max_hold(context, group);
    tokio::select! {
        biased;
        why = group.stop.stopped() => group.claims.iter().map(|c| stopped(context, c, why)).collect(),
        outcomes = start_and_do(context, group) => outcomes,
        () = tokio::time::sleep(limit) => all(group, || Outcome::failed(RetryClass::Timeout, "max_hold", "it ran longer than its kind may")),
    }
}

async fn start_and_do(context: &Context, group: &Group) -> Vec<Outcome> {
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
    if let Some(tell) = &context.on_start {
        group.claims.iter().for_each(|claim| tell(claim));
    }
    match group.kind {
        JobKind::Extract => handlers::extract::handle(context, group).await,
        JobKind::Ocr => handlers::ocr::handle(context, group).await,
        JobKind::Embed => handlers::embed::handle(context, group).await,
        JobKind::Question => handlers::question::handle(context, group).await,
        JobKind::Retention => handlers::retention::handle(context, group).await,
        JobKind::FanOut => handlers::fan_out::handle(context, group).await,
        JobKind::Notice => handlers::notice::handle(context, group).await,
        JobKind::Noop => all(group, Outcome::done),
    }
}

fn stopped(context: &Context, claim: &Claim, why: Why) -> Outcome {
    match why {
        Why::Shutdown | Why::Lost => Outcome::failed(RetryClass::Shutdown, "shutdown", "the worker is going away"),
        Why::Cancelled if context.engine.is_cancelled(claim) => {
            Outcome::failed(RetryClass::Cancelled, "cancelled", "cancelled while it ran")
        }
        Why::Interrupted => Outcome::failed(RetryClass::Preempted, "interrupted", "the breaker was turned off with --now"),
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
