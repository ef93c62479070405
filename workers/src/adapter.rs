//! The only file that names apalis: our table and statements as its `Backend`, its monitor, layers and shutdown around our
//! `run`. Replacing it by a bare tokio loop is a day's work and stays so (docs/decisions/0002).
//!
//! Three of its habits shape this file. An error from `poll_next` ends the worker and drops what runs in it, so errors are
//! logged and waited out here. A handler's panic kills the worker without `catch_panic`. And when every worker has ended,
//! `run_with_signal` still waits for the signal, so ends are watched for and the process exits non-zero.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use apalis::layers::WorkerBuilderExt as _;
use apalis::prelude::{Data, Event, Monitor, WorkerBuilder};
use apalis_core::backend::finalize::Ephemeral;
use apalis_core::backend::{Backend, BackendConfig};
use apalis_core::error::BoxDynError;
use apalis_core::task::Task;
use apalis_core::task::builder::TaskBuilder;
use apalis_core::task::task_id::TaskId;
use apalis_core::worker::context::WorkerContext;
use apalis_core::worker::ext::parallelize::ParallelizeExt as _;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use queue_schema::claim::Claim;
use queue_schema::outcome::{Outcome, RetryClass};
use queue_schema::{DbError, JobKind, Lane};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::engine::{Engine, Group, Wake, Why};
use crate::run::{self, Runner};

/// One set of places in a process and what may sit on them.
#[derive(Clone, Debug)]
pub struct Arm {
    pub name: &'static str,
    pub kinds: Vec<JobKind>,
    /// The places kept for interactive work take nothing else.
    pub interactive_only: bool,
    pub places: usize,
    /// Groups on a place now, written back or not: what "free" is measured by.
    pub busy: Arc<AtomicUsize>,
    /// For the batch arm: the reserved places. It takes interactive work only when those are all busy.
    pub reserved: Option<Box<Arm>>,
}

impl Arm {
    #[must_use]
    pub fn new(name: &'static str, kinds: Vec<JobKind>, interactive_only: bool, places: usize) -> Self {
        Self {
            name,
            kinds,
            interactive_only,
            places,
            busy: Arc::default(),
            reserved: None,
        }
    }

    fn free(&self) -> usize {
        self.places.saturating_sub(self.busy.load(Ordering::SeqCst))
    }

    fn takes(&self, (kind, lane): (JobKind, Lane)) -> bool {
        self.kinds.contains(&kind)
            && match lane {
                Lane::Interactive => self.reserved.as_ref().is_none_or(|r| r.free() == 0),
                Lane::Batch => !self.interactive_only,
            }
    }
}

/// How many jobs of a kind without a gate one claim takes at most, where a group is smaller than this.
const SMALL_JOBS: usize = 64;

/// apalis wants task arguments it can clone; a group must not be cloned. So the argument is a ticket for it.
#[derive(Clone, Debug)]
pub struct Ticket(Arc<Group>);

type Taken = Result<Vec<Group>, DbError>;

/// Our queue as apalis sees it: one per arm.
pub struct Queue {
    engine: Arc<Engine>,
    arm: Arm,
    wake: Wake,
    heard: mpsc::Receiver<()>,
    /// Pairs that may have work, in the order they get their turn.
    hungry: VecDeque<(JobKind, Lane)>,
    buffer: VecDeque<Group>,
    take: Option<((JobKind, Lane), usize, BoxFuture<'static, Taken>)>,
    close: Option<BoxFuture<'static, ()>>,
    pause: Pin<Box<Sleep>>,
    pausing: bool,
    errors: u32,
    freed: Arc<Freed>,
}

/// Tells the queue that a place is free: the settle layer rings, `poll_next` listens.
#[derive(Debug, Default)]
struct Freed(Mutex<Option<std::task::Waker>>);

impl Freed {
    fn ring(&self) {
        if let Some(w) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            w.wake();
        }
    }

    fn listen(&self, cx: &Context<'_>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
    }
}

impl Queue {
    #[must_use]
    pub fn new(engine: Arc<Engine>, arm: Arm, wake: Wake, heard: mpsc::Receiver<()>) -> Self {
        Self {
            engine,
            arm,
            wake,
            heard,
            hungry: VecDeque::new(),
            buffer: VecDeque::new(),
            take: None,
            close: None,
            pause: Box::pin(tokio::time::sleep(Duration::ZERO)),
            pausing: false,
            errors: 0,
            freed: Arc::default(),
        }
    }

    fn hear(&mut self) {
        let pending: HashSet<_> = self.wake.drain();
        for pair in pending {
            if self.arm.kinds.contains(&pair.0) && !self.hungry.contains(&pair) {
                // Interactive first, always; batch kinds in turn.
                if pair.1 == Lane::Interactive {
                    self.hungry.push_front(pair)
                } else {
                    self.hungry.push_back(pair)
                }
            }
        }
    }

    fn taken(&mut self, pair: (JobKind, Lane), asked: usize, result: Taken) {
        match result {
            Ok(groups) => {
                self.errors = 0;
                let got: usize = groups.iter().map(|g| g.claims.len()).sum();
                // Behind a gate one take is one tenant's group, so only an empty one says there is nothing; without a gate a
                // short one does.
                let more = if pair.0.capability().is_some() { got > 0 } else { got >= asked };
                if more && !self.hungry.contains(&pair) {
                    if pair.1 == Lane::Interactive {
                        self.hungry.push_front(pair)
                    } else {
                        self.hungry.push_back(pair)
                    }
                }
                self.buffer.extend(groups);
            }
            Err(error) => {
                self.errors += 1;
                let wait = Duration::from_millis(100 << self.errors.min(6)).min(Duration::from_secs(5));
                if self.errors == 1 {
                    tracing::warn!(%error, arm = self.arm.name, "cannot claim; trying again");
                }
                self.hungry.push_back(pair);
                self.pausing = true;
                self.pause.as_mut().reset(tokio::time::Instant::now() + wait);
            }
        }
    }
}

/// Never made: this backend has no error to give (see the head of the file).
#[derive(Debug, thiserror::Error)]
#[error("the queue's backend has no errors")]
pub struct Never;

impl Backend for Queue {
    type Task = Task<Ticket>;
    type Error = Never;

    fn poll_ready(&mut self, _: &mut Context<'_>, _: &WorkerContext) -> Poll<Result<(), Never>> {
        Poll::Ready(Ok(()))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, _: &WorkerContext) -> Poll<Option<Result<Task<Ticket>, Never>>> {
        loop {
            if let Some(group) = self.buffer.pop_front() {
                self.arm.busy.fetch_add(1, Ordering::SeqCst);
                return Poll::Ready(Some(Ok(ticket(group))));
            }
            if let Some((pair, asked, take)) = self.take.as_mut() {
                let (pair, asked) = (*pair, *asked);
                let Poll::Ready(result) = take.as_mut().poll(cx) else {
                    return Poll::Pending;
                };
                self.take = None;
                self.taken(pair, asked, result);
                continue;
            }
            if self.pausing {
                if self.pause.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.pausing = false;
            }
            while self.heard.poll_recv(cx).is_ready() {
                self.hear();
            }
            self.freed.listen(cx);
            let free = self.arm.free();
            if free == 0 {
                return Poll::Pending;
            }
            let arm = &self.arm;
            // What this arm may not take right now (the reserved place is free) is forgotten: its own arm has heard it too.
            self.hungry.retain(|pair| pair.1 == Lane::Batch || arm.takes(*pair));
            let Some(at) = self.hungry.iter().position(|pair| arm.takes(*pair)) else {
                return Poll::Pending;
            };
            let Some(pair) = self.hungry.remove(at) else { return Poll::Pending };
            // Only what can start now: one group behind a gate, else as many groups as there are places, but of big groups one a
            // statement: then the next is claimed while this one is written back.
            let asked = if pair.0.capability().is_some() {
                pair.0.group_max()
            } else {
                free.saturating_mul(pair.0.group_max()).min(pair.0.group_max().max(SMALL_JOBS))
            };
            let engine = self.engine.clone();
            self.take = Some((pair, asked, async move { engine.take(pair.0, pair.1, asked).await }.boxed()));
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>, _: &WorkerContext) -> Poll<Result<(), Never>> {
        // A take under way may still bring rows: wait for it, then give them back uncharged.
        if let Some((_, _, take)) = self.take.as_mut() {
            let Poll::Ready(result) = take.as_mut().poll(cx) else {
                return Poll::Pending;
            };
            self.take = None;
            if let Ok(groups) = result {
                self.buffer.extend(groups);
            }
        }
        if self.close.is_none() {
            let groups: Vec<Group> = self.buffer.drain(..).collect();
            let engine = self.engine.clone();
            self.close = Some(
                async move {
                    for group in groups {
                        engine.settle(group.lane, given_back(&group.claims)).await;
                    }
                }
                .boxed(),
            );
        }
        match self.close.as_mut() {
            Some(close) => close.as_mut().poll(cx).map(Ok),
            None => Poll::Ready(Ok(())),
        }
    }
}

fn given_back(claims: &[Arc<Claim>]) -> Vec<(Arc<Claim>, Outcome)> {
    claims
        .iter()
        .map(|c| {
            (
                c.clone(),
                Outcome::failed(RetryClass::Shutdown, "not_started", "the worker is going away"),
            )
        })
        .collect()
}

fn ticket(group: Group) -> Task<Ticket> {
    let first = group.claims.first();
    let id = first.map_or(0, |c| u64::try_from(c.job_id).unwrap_or(0));
    // The take has counted the attempt; apalis adds one when the handler is first polled.
    let attempt = first.map_or(0, |c| usize::try_from(c.attempt - 1).unwrap_or(0));
    TaskBuilder::new(Ticket(Arc::new(group)))
        .task_id(TaskId::from_int(id))
        .attempt(attempt)
        .build()
}

impl BackendConfig for Queue {
    type Args = Ticket;
    type Id = u64;
    type Kind = Ephemeral; // the arguments come out of the backend ready-made
    type Config = ();
    type Layer = SettleLayer;

    fn config(&self) -> &() {
        &()
    }

    fn middleware(&mut self, _: &mut WorkerContext) -> SettleLayer {
        SettleLayer {
            engine: self.engine.clone(),
            busy: self.arm.busy.clone(),
            freed: self.freed.clone(),
        }
    }
}

/// Outermost: sees the final result, also a panic's, and writes it back before the place counts as free. That is also the
/// back-pressure: claims cannot run ahead of settlements.
#[derive(Clone)]
pub struct SettleLayer {
    engine: Arc<Engine>,
    busy: Arc<AtomicUsize>,
    freed: Arc<Freed>,
}

impl<S> tower::Layer<S> for SettleLayer {
    type Service = SettleService<S>;

    fn layer(&self, inner: S) -> SettleService<S> {
        SettleService {
            inner,
            layer: self.clone(),
        }
    }
}

#[derive(Clone)]
pub struct SettleService<S> {
    inner: S,
    layer: SettleLayer,
}

/// Frees the place however the future ends.
struct Place(Arc<AtomicUsize>, Arc<Freed>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
        self.1.ring();
    }
}

impl<S> tower::Service<Task<Ticket>> for SettleService<S>
where
    S: tower::Service<Task<Ticket>, Response = Vec<Outcome>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxDynError>,
{
    type Response = ();
    type Error = BoxDynError;
    type Future = BoxFuture<'static, Result<(), BoxDynError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxDynError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, task: Task<Ticket>) -> Self::Future {
        let group = task.args.0.clone();
        let engine = self.layer.engine.clone();
        let place = Place(self.layer.busy.clone(), self.layer.freed.clone());
        let work = self.inner.call(task);
        async move {
            let _place = place;
            let result = work.await.map_err(Into::into);
            let (outcomes, answer) = match result {
                Ok(outcomes) => (outcomes, Ok(())),
                Err(error) => {
                    // run() itself returns no error, so this is a caught panic. Its message may quote content.
                    let outcomes = group
                        .claims
                        .iter()
                        .map(|_| Outcome::failed(RetryClass::ItemError, "panic", "the handler panicked"));
                    (outcomes.collect(), Err(error))
                }
            };
            if group.stop.why() != Some(Why::Lost) {
                engine
                    .settle(group.lane, group.claims.iter().cloned().zip(outcomes).collect())
                    .await;
            }
            answer
        }
        .boxed()
    }
}

async fn handle(ticket: Ticket, runner: Data<Arc<Runner>>) -> Result<Vec<Outcome>, BoxDynError> {
    Ok(run::run(&runner, &ticket.0).await)
}

/// Runs the arms until `signal`, lets running work finish within `drain`, then stops it.
///
/// # Errors
/// When a worker ended by itself, or the monitor failed: the process must not look alive.
pub async fn run_until(
    runner: Arc<Runner>,
    arms: Vec<(Arm, Wake, mpsc::Receiver<()>)>,
    signal: impl Future<Output = ()> + Send + 'static,
    drain: Duration,
) -> Result<(), String> {
    let stopping = Arc::new(AtomicBool::new(false));
    let (ended, mut has_ended) = mpsc::channel::<String>(1);
    let mut monitor = Monitor::new().on_event({
        let stopping = stopping.clone();
        move |worker, event| {
            if matches!(event, Event::Exit) && !stopping.load(Ordering::SeqCst) {
                let _one_is_enough = ended.try_send(worker.name().to_string());
            }
        }
    });
    for (arm, wake, heard) in arms {
        // The monitor may call the factory again after a failure; we never let it (a restarted worker would have no bell), so
        // the queue is handed out once.
        let queue = Mutex::new(Some(Queue::new(runner.engine.clone(), arm.clone(), wake, heard)));
        let (runner, engine) = (runner.clone(), runner.engine.clone());
        monitor = monitor.register(move |_restarts| {
            let queue = queue.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_else(|| {
                let (wake, heard) = Wake::new();
                Queue::new(engine.clone(), arm.clone(), wake, heard)
            });
            WorkerBuilder::new(arm.name)
                .backend(queue)
                .data(runner.clone())
                // First added is outermost: the limit holds a place for the whole run, panics become results inside it.
                .concurrency(arm.places)
                .catch_panic()
                .parallelize(|work| AbortOnDropHandle::new(tokio::spawn(work)))
                .build(handle)
        });
    }
    let monitor = monitor.should_restart(|_, _| false);
    let control = monitor.context();
    let engine = runner.engine.clone();
    let failed: Arc<Mutex<Option<String>>> = Arc::default();
    let watch = {
        let failed = failed.clone();
        async move {
            tokio::select! {
                () = signal => {}
                name = has_ended.recv() => {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("worker {} ended by itself", name.unwrap_or_default()));
                }
            }
            stopping.store(true, Ordering::SeqCst);
            engine.stopping.store(true, Ordering::SeqCst);
            tracing::info!(grace = %humantime::format_duration(drain), running = engine.held().len(), "stopping: no new claims; running work may finish");
            // The monitor waits for what runs as long as it takes; at the end of the grace what still runs is told to give its job back.
            tokio::spawn(async move {
                tokio::time::sleep(drain).await;
                engine.stop_all(Why::Shutdown);
            });
            Ok::<(), std::io::Error>(())
        }
    };
    let ran = monitor.run_with_signal(watch).await;
    drop(control);
    if let Some(why) = failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(why);
    }
    ran.map_err(|e| format!("the monitor failed: {e}"))
}
