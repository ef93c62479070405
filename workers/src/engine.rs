//! What this process holds: claims in hand with their stop signals, and the writing back of how they went. Knows nothing of
//! apalis.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use queue_schema::claim::{self, Claim, Key, Taker};
use queue_schema::endpoint::{self, Endpoint};
use queue_schema::hint::Hinter;
use queue_schema::outcome::{Outcome, RetryClass};
use queue_schema::{Db, DbError, JobKind, Lane, db};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::isolate;

/// Why running work is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// The lease is not ours any more; nothing may be written.
    Lost = 1,
    /// Somebody cancelled the job.
    Cancelled = 2,
    /// This process is going away.
    Shutdown = 3,
    /// The breaker was turned off with the words "and now".
    Interrupted = 4,
}

/// A stop signal with its reason; the first reason stays.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    token: CancellationToken,
    why: Arc<AtomicU8>,
}

impl Stop {
    pub fn stop(&self, why: Why) {
        let _first = self.why.compare_exchange(0, why as u8, Ordering::SeqCst, Ordering::SeqCst);
        self.token.cancel();
    }

    #[must_use]
    pub fn why(&self) -> Option<Why> {
        match self.why.load(Ordering::SeqCst) {
            1 => Some(Why::Lost),
            2 => Some(Why::Cancelled),
            3 => Some(Why::Shutdown),
            4 => Some(Why::Interrupted),
            _ => None,
        }
    }

    pub async fn stopped(&self) -> Why {
        self.token.cancelled().await;
        self.why().unwrap_or(Why::Shutdown)
    }
}

/// What one place works on: claims of one kind, lane, tenant and endpoint (decision D14).
#[derive(Debug)]
pub struct Group {
    pub kind: JobKind,
    pub lane: Lane,
    pub claims: Vec<Arc<Claim>>,
    pub endpoint: Option<Arc<Endpoint>>,
    /// Stops the whole group: when this process goes away, or when no claim of it is left.
    pub stop: Stop,
}

#[derive(Debug)]
struct Held {
    /// Somebody asked to cancel this one, not its neighbours in the group.
    cancelled: bool,
    /// Its outcome is on its way to the database: a renewal that does not find the row may be looking at our own settlement, and
    /// whether the claim was lost is for the fence to say.
    settling: bool,
    /// When the lease was last known to be ours, by this process's clock: what self-fencing measures.
    renewed: Instant,
    /// Of the claim's group; and how many of the group are still ours.
    stop: Stop,
    left: Arc<AtomicUsize>,
}

enum Message {
    Settle(Vec<(Arc<Claim>, Outcome)>, oneshot::Sender<()>),
}

/// The registry and its settlers.
#[derive(Debug)]
pub struct Engine {
    pub db: Db,
    pub taker: Taker,
    pub hinter: Hinter,
    held: Mutex<HashMap<Key, Held>>,
    settlers: HashMap<Lane, mpsc::UnboundedSender<Message>>,
    endpoints: Mutex<HashMap<i64, (Instant, Arc<Endpoint>)>>,
    watermarks: Mutex<HashMap<(JobKind, Lane), Mark>>,
    pub late: AtomicUsize,
    pub settled: AtomicUsize,
    /// Nothing more is taken.
    pub stopping: AtomicBool,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
    /// Of the thread that owns `db`'s sockets; the pulse calls in from another.
    runtime: tokio::runtime::Handle,
}

/// Since when a watermark stands, and where.
type Mark = (Instant, DateTime<Utc>);

/// A mark is forgotten after this, so that a job whose transaction began early and committed late is seen within a poll's time.
const WATERMARK_LIFE: Duration = Duration::from_secs(2);

/// How many groups one settling transaction takes: enough to share the commit, few enough that nobody waits long.
const SETTLE_GROUPS: usize = 64;

impl Engine {
    #[must_use]
    pub fn start(db: Db, taker: Taker, hinter: Hinter) -> Arc<Self> {
        let mut settlers = HashMap::new();
        let mut receivers = Vec::new();
        // A settler per lane: a document of a thousand pages must not hold up the answer to a question.
        for lane in [Lane::Interactive, Lane::Batch] {
            let (tx, rx) = mpsc::unbounded_channel();
            settlers.insert(lane, tx);
            receivers.push(rx);
        }
        let engine = Arc::new(Self {
            db,
            taker,
            hinter,
            held: Mutex::default(),
            settlers,
            endpoints: Mutex::default(),
            watermarks: Mutex::default(),
            late: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            tasks: Mutex::default(),
            runtime: tokio::runtime::Handle::current(),
        });
        let tasks = receivers
            .into_iter()
            .map(|rx| AbortOnDropHandle::new(tokio::spawn(settler(Arc::downgrade(&engine), rx))))
            .collect();
        *lock(&engine.tasks) = tasks;
        engine
    }

    /// Takes jobs that can start now and registers their leases; grouped as they will run.
    ///
    /// # Errors
    /// When the take, or the look at its endpoint, did not run. What was taken comes back when its lease lapses.
    pub async fn take(&self, kind: JobKind, lane: Lane, limit: usize) -> Result<Vec<Group>, DbError> {
        if self.stopping.load(Ordering::SeqCst) {
            return Ok(Vec::new());
        }
        let claims = claim::take(&self.db, &self.taker, kind, lane, limit, self.watermark(kind, lane)).await?;
        self.remember(kind, lane, limit, &claims);
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let now = Instant::now();
        let endpoint = match claims[0].endpoint_id {
            Some(id) => self.endpoint(id, claims[0].endpoint_epoch).await?,
            None => None,
        };
        let mut groups = Vec::new();
        // Each suspect by itself, behind the others: its neighbours are not to share its process, nor to wait for it.
        let (suspects, clean): (Vec<_>, Vec<_>) = claims.into_iter().map(Arc::new).partition(|c| isolate::is_suspect(c));
        let together = clean.chunks(kind.group_max()).chain(suspects.chunks(1));
        let mut held = lock(&self.held);
        for group in together.map(<[_]>::to_vec) {
            let stop = Stop::default();
            let left = Arc::new(AtomicUsize::new(group.len()));
            for claim in &group {
                held.insert(
                    claim.key(),
                    Held {
                        cancelled: false,
                        settling: false,
                        renewed: now,
                        stop: stop.clone(),
                        left: left.clone(),
                    },
                );
            }
            groups.push(Group {
                kind,
                lane,
                claims: group,
                endpoint: endpoint.clone(),
                stop,
            });
        }
        Ok(groups)
    }

    /// Where the next scan of this kind may start (decision D22): index entries of rows taken before are dead, but under somebody's
    /// old snapshot they stay and would be walked again at every claim.
    fn watermark(&self, kind: JobKind, lane: Lane) -> Option<DateTime<Utc>> {
        let mut marks = lock(&self.watermarks);
        match marks.get(&(kind, lane)) {
            Some((since, _)) if since.elapsed() > WATERMARK_LIFE => {
                marks.remove(&(kind, lane));
                None
            }
            Some((_, at)) => Some(*at),
            None => None,
        }
    }

    fn remember(&self, kind: JobKind, lane: Lane, asked: usize, claims: &[Claim]) {
        let mut marks = lock(&self.watermarks);
        match claims.iter().map(|c| c.due_at).max() {
            Some(at) if claims.len() >= asked => {
                marks.entry((kind, lane)).or_insert((Instant::now(), at)).1 = at;
            }
            // A short take reached the end of the line: the next scan starts at its head again.
            _ => {
                marks.remove(&(kind, lane));
            }
        }
    }

    /// The endpoint a claim was given, read once per version of it.
    async fn endpoint(&self, id: i64, epoch: Option<i64>) -> Result<Option<Arc<Endpoint>>, DbError> {
        if let Some((read, known)) = lock(&self.endpoints).get(&id)
            && Some(known.epoch) == epoch
            && read.elapsed() < Duration::from_secs(60)
        {
            return Ok(Some(known.clone()));
        }
        let Some(found) = endpoint::find(&self.db, id).await? else {
            return Ok(None);
        };
        let found = Arc::new(found);
        lock(&self.endpoints).insert(id, (Instant::now(), found.clone()));
        Ok(Some(found))
    }

    /// Leases in hand, for renewal.
    #[must_use]
    pub fn held(&self) -> Vec<Key> {
        lock(&self.held).keys().copied().collect()
    }

    /// What a renewal said: what did not come back is lost, what somebody cancelled is told so.
    pub fn renewed(&self, asked: &[Key], kept: &[claim::Renewed], at: Instant) {
        let kept: HashMap<i64, bool> = kept.iter().map(|r| (r.job_id, r.cancelled)).collect();
        let mut lost = 0;
        let mut held = lock(&self.held);
        for key in asked {
            match kept.get(&key.job_id) {
                Some(cancelled) => {
                    if let Some(h) = held.get_mut(key) {
                        h.renewed = at;
                        if *cancelled {
                            h.cancelled = true;
                            h.stop.stop(Why::Cancelled);
                        }
                    }
                }
                None => {
                    if held.get(key).is_some_and(|h| !h.settling)
                        && let Some(h) = held.remove(key)
                    {
                        tracing::warn!(job.id = key.job_id, attempt = key.attempt, "lease lost: another worker has the job");
                        lose(&h);
                        lost += 1;
                    }
                }
            }
        }
        drop(held);
        self.count_late(lost);
    }

    /// Somebody asked to cancel these jobs.
    pub fn cancel(&self, ids: &[i64]) {
        for (key, h) in lock(&self.held).iter_mut() {
            if ids.contains(&key.job_id) {
                h.cancelled = true;
                h.stop.stop(Why::Cancelled);
            }
        }
    }

    /// The calls of these jobs are to be given up, and of their groups with them.
    pub fn interrupt(&self, ids: &[i64]) {
        for (key, h) in lock(&self.held).iter() {
            if ids.contains(&key.job_id) {
                h.stop.stop(Why::Interrupted);
            }
        }
    }

    /// Self-fencing (decision B31): a lease that could not be renewed is given up before anybody else may take it.
    pub fn give_up_unrenewed(&self, older_than: Duration) {
        let mut lost = 0;
        lock(&self.held).retain(|key, h| {
            let keep = h.renewed.elapsed() < older_than;
            if !keep {
                tracing::warn!(
                    job.id = key.job_id,
                    attempt = key.attempt,
                    "lease given up: it could not be renewed in time"
                );
                lose(h);
                lost += 1;
            }
            keep
        });
        self.count_late(lost);
    }

    /// Asks everything that runs to stop, for the same reason.
    pub fn stop_all(&self, why: Why) {
        for h in lock(&self.held).values() {
            h.stop.stop(why);
        }
    }

    /// Whether somebody asked to cancel this very claim.
    #[must_use]
    pub fn is_cancelled(&self, claim: &Claim) -> bool {
        lock(&self.held).get(&claim.key()).is_some_and(|h| h.cancelled)
    }

    /// Marks a claim as on its way to the database. False: it is not ours any more.
    fn settles(&self, claim: &Claim) -> bool {
        match lock(&self.held).get_mut(&claim.key()) {
            Some(h) => {
                h.settling = true;
                true
            }
            None => false,
        }
    }

    /// Writes back how a group went and waits until that is durable; what is not held any more is dropped, unwritten.
    pub async fn settle(&self, lane: Lane, results: Vec<(Arc<Claim>, Outcome)>) {
        let (done, wait) = oneshot::channel();
        if let Some(settler) = self.settlers.get(&lane)
            && settler.send(Message::Settle(results, done)).is_ok()
        {
            // An error means the settler dropped the batch because every lease in it was lost: nothing to wait for.
            let _settled_or_lost = wait.await;
        }
    }
}

fn lose(h: &Held) {
    if h.left.fetch_sub(1, Ordering::SeqCst) == 1 {
        h.stop.stop(Why::Lost);
    }
}

async fn settler(engine: std::sync::Weak<Engine>, mut rx: mpsc::UnboundedReceiver<Message>) {
    let mut messages = Vec::with_capacity(SETTLE_GROUPS);
    while rx.recv_many(&mut messages, SETTLE_GROUPS).await > 0 {
        let Some(engine) = engine.upgrade() else { return };
        let (mut batch, mut waiters) = (Vec::new(), Vec::new());
        for Message::Settle(results, done) in messages.drain(..) {
            batch.extend(results);
            waiters.push(done);
        }
        engine.write(batch).await;
        for done in waiters {
            let _gone_is_fine = done.send(());
        }
    }
}

impl Engine {
    /// Settles a batch, whatever it takes: a database that is away is waited for as long as the leases live, a row that the
    /// database refuses is settled as a failure so that its neighbours are not held up.
    async fn write(&self, mut batch: Vec<(Arc<Claim>, Outcome)>) {
        let mut wait = Duration::from_millis(20);
        loop {
            batch.retain(|(c, _)| self.settles(c));
            if batch.is_empty() {
                return;
            }
            match claim::settle(&self.db, &batch, &self.taker.pace).await {
                Ok(settled) => return self.written(&batch, &settled),
                Err(error) if db::is_transient(&error) => {
                    tracing::warn!(%error, jobs = batch.len(), "cannot settle yet; trying again while the leases live");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(2));
                }
                Err(error) if batch.len() == 1 => {
                    // Not the job's words: the database's refusal, which may quote content, stays in the operator's log level.
                    tracing::error!(job.id = batch[0].0.job_id, %error, "the database refused what this job wants to write");
                    if matches!(batch[0].1, Outcome::Failed(_)) {
                        // Nothing more can be written: let go, so that it is not renewed, the lease lapses and the sweep counts it.
                        lock(&self.held).remove(&batch[0].0.key());
                        return;
                    }
                    batch[0].1 = Outcome::failed(RetryClass::InvalidOutput, "write_refused", "the database refused the result");
                }
                Err(_) => {
                    // One row's refusal is not its neighbours' fault: each by itself.
                    for one in batch {
                        Box::pin(self.write(vec![one])).await;
                    }
                    return;
                }
            }
        }
    }

    fn written(&self, batch: &[(Arc<Claim>, Outcome)], settled: &claim::Settled) {
        let mut late = Vec::new();
        {
            let mut held = lock(&self.held);
            for (c, _) in batch {
                // One that the pulse has taken out of the registry meanwhile was counted there.
                if held.remove(&c.key()).is_some() && !settled.ours.contains(&c.job_id) {
                    late.push(c.job_id);
                }
            }
        }
        self.settled.fetch_add(settled.ours.len(), Ordering::Relaxed);
        if !late.is_empty() {
            tracing::warn!(jobs = ?late, "late settlement refused by the fence; nothing of it was written");
            self.count_late(late.len());
        }
        for kind in &settled.woken {
            self.hinter.wake(*kind, kind.lane());
        }
    }

    /// A claim that ended without our word on it is counted once, where an operator can see it.
    fn count_late(&self, n: usize) {
        if n == 0 {
            return;
        }
        self.late.fetch_add(n, Ordering::Relaxed);
        let (db, boot_id) = (self.db.clone(), self.taker.boot_id);
        self.runtime.spawn(async move {
            if let Err(error) = claim::count_late(&db, boot_id, n).await {
                tracing::warn!(%error, lost = n, "late settlements could not be counted");
            }
        });
    }
}

/// A lock whose data is plain counters and handles: a panic elsewhere leaves it usable.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pairs that may have work, shared between those who hear of it and the arm that claims it.
#[derive(Clone, Debug)]
pub struct Wake {
    pending: Arc<Mutex<HashSet<(JobKind, Lane)>>>,
    ring: mpsc::Sender<()>,
}

impl Wake {
    /// The bell holds one ring: a burst is one look, and none is lost.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<()>) {
        let (ring, heard) = mpsc::channel(1);
        (
            Self {
                pending: Arc::default(),
                ring,
            },
            heard,
        )
    }

    pub fn wake(&self, pairs: impl IntoIterator<Item = (JobKind, Lane)>) {
        lock(&self.pending).extend(pairs);
        // Full means a ring is already on its way.
        let _already_ringing = self.ring.try_send(());
    }

    #[must_use]
    pub fn drain(&self) -> HashSet<(JobKind, Lane)> {
        std::mem::take(&mut *lock(&self.pending))
    }
}
