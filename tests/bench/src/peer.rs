//! What every queue on the bench can be asked to do. A rival is one file and one line in [`all`].

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::future::LocalBoxFuture;

use crate::hits::{self, Board};
use crate::peers;

/// One queue, at its best settings.
#[derive(Clone, Copy)]
pub struct Peer {
    pub name: &'static str,
    /// Also a part of its databases' names.
    pub key: &'static str,
    /// What its drain ran with, for the reader.
    pub settings: &'static str,
    /// Makes its tables in an empty database.
    pub prepare: fn(url: String) -> LocalBoxFuture<'static, Result<()>>,
    /// Enqueues jobs 0..n by its fastest way; the time of the calls alone.
    pub enqueue: fn(url: String, n: usize) -> LocalBoxFuture<'static, Result<Duration>>,
    /// Runs a worker until the database shows nothing unfinished.
    pub drain: fn(url: String, n: usize) -> LocalBoxFuture<'static, Result<Drained>>,
    /// Single jobs into an idle worker; none for what has no worker.
    pub pickup: Option<fn(url: String, plan: Plan) -> LocalBoxFuture<'static, Result<Vec<Pickup>>>>,
}

/// How a drain went.
#[derive(Clone, Debug, Default)]
pub struct Drained {
    /// From the start of the worker until the database showed no unfinished job.
    pub total: Duration,
    /// Until the first and until the last handler had begun; none where there are no handlers.
    pub first: Option<Duration>,
    pub handlers: Option<Duration>,
    /// Jobs whose handler ran more than once.
    pub repeated: usize,
}

/// How many jobs, and how far apart.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub jobs: usize,
    pub every: Duration,
}

/// One job's way to its handler, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Pickup {
    /// From the return of the insert call to the start of the handler; 0 when the handler was faster than the return.
    pub after_return: f64,
    /// From the start of the insert call.
    pub after_call: f64,
}

/// Long enough for the slowest, short enough to notice that one is stuck.
pub const LIMIT: Duration = Duration::from_secs(120);

pub fn all() -> Vec<Peer> {
    vec![
        peers::bare::PEER,
        peers::ours::PEER,
        #[cfg(feature = "graphile")]
        peers::graphile::PEER,
        #[cfg(feature = "river")]
        peers::river::PEER,
        #[cfg(feature = "awa")]
        peers::awa::PEER,
        #[cfg(feature = "apalis")]
        peers::apalis::PEER,
    ]
}

/// Waits for the handlers, then for the database: `done` is asked each 2 ms from the moment the last handler has begun, so that nobody's
/// drain pays for the counting.
pub async fn finished<F>(started: Instant, board: &Board, mut done: impl FnMut() -> F) -> Result<Drained>
where
    F: Future<Output = Result<bool>>,
{
    if !board.all(LIMIT).await {
        bail!("only {} handlers had begun after {} s", board.count(), LIMIT.as_secs());
    }
    let handlers = started.elapsed();
    while !done().await? {
        if started.elapsed() > LIMIT {
            bail!(
                "every handler ran, but the database still showed unfinished jobs after {} s",
                LIMIT.as_secs()
            );
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(Drained {
        total: started.elapsed(),
        first: board.first().map(|at| at.saturating_duration_since(started)),
        handlers: Some(handlers),
        repeated: board.repeated(),
    })
}

/// Inserts single jobs at an even pace and says how long each took to its handler.
pub async fn paced<F>(plan: Plan, mut insert: impl FnMut(u64) -> F) -> Result<Vec<Pickup>>
where
    F: Future<Output = Result<()>>,
{
    let board = hits::board(plan.jobs);
    let mut times = Vec::with_capacity(plan.jobs);
    let mut tick = tokio::time::interval(plan.every);
    for n in 0..plan.jobs {
        tick.tick().await;
        let call = Instant::now();
        insert(n as u64).await?;
        times.push((call, Instant::now()));
    }
    if !board.all(Duration::from_secs(30)).await {
        bail!(
            "only {} of {} handlers had begun 30 s after the last insert",
            board.count(),
            plan.jobs
        );
    }
    Ok(times
        .into_iter()
        .enumerate()
        .filter_map(|(n, (call, returned))| {
            let start = board.started(n)?;
            let ms = |from: Instant| start.saturating_duration_since(from).as_secs_f64() * 1000.0;
            Some(Pickup {
                after_return: ms(returned),
                after_call: ms(call),
            })
        })
        .collect())
}
