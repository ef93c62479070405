//! The right to settle one attempt: take, start, renew, settle, reclaim. `attempts` rises at every take and never falls,
//! so it is also the fence: a settle names job and attempt, no row means Lost, and Lost writes nothing.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::kind::Effect;
use crate::outcome::{self, Counters, Failure, Next, Outcome, RetryClass};
use crate::retry::Pace;
use crate::{Conn, Db, DbError, JobKind, Lane, capability};

/// One attempt of one job, held by this process. Not `Clone`: settling spends it. It travels to the isolated child as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct Claim {
    pub job_id: i64,
    pub attempt: i32,
    pub kind: JobKind,
    pub lane: Lane,
    pub tenant_id: i64,
    pub user_id: Option<i64>,
    pub root_id: Option<i64>,
    pub item_id: Option<i64>,
    pub item_version: i32,
    pub payload: serde_json::Value,
    pub charged: i32,
    pub max_charged: i32,
    pub counters: Counters,
    /// How its last failed attempt ended.
    pub last_class: Option<String>,
    pub created_at: DateTime<Utc>,
    /// When it was taken: the same moment for all claims of one take, so it also tells groups apart.
    pub claimed_at: DateTime<Utc>,
    /// Taken while its capability's breaker has just been turned on and few may ask (decision B22).
    pub ramped: bool,
    /// When the last of its take had been due: where the next claim's scan may start.
    pub due_at: DateTime<Utc>,
    pub endpoint_id: Option<i64>,
    pub endpoint_epoch: Option<i64>,
    pub capability_epoch: Option<i64>,
}

impl Claim {
    /// Names the attempt in the registry of leases and in every statement.
    #[must_use]
    pub fn key(&self) -> Key {
        Key {
            job_id: self.job_id,
            attempt: self.attempt,
        }
    }

    fn from_row(row: &PgRow, kind: JobKind, lane: Lane) -> Result<Self, DbError> {
        let count = |name: &str| -> Result<u32, DbError> { Ok(u32::try_from(row.try_get::<i32, _>(name)?).unwrap_or(0)) };
        Ok(Self {
            job_id: row.try_get("id")?,
            attempt: row.try_get("attempts")?,
            kind,
            lane,
            tenant_id: row.try_get("tenant_id")?,
            user_id: row.try_get("user_id")?,
            root_id: row.try_get("root_id")?,
            item_id: row.try_get("item_id")?,
            item_version: row.try_get("item_version")?,
            payload: row.try_get("payload")?,
            charged: row.try_get("charged")?,
            max_charged: row.try_get("max_charged")?,
            counters: Counters {
                item_fails: count("item_fails")?,
                crashes: count("crashes")?,
                timeouts_in_row: count("timeouts_in_row")?,
            },
            last_class: row.try_get("last_class")?,
            created_at: row.try_get("created_at")?,
            claimed_at: row.try_get("claimed_at")?,
            ramped: row.try_get("ramped")?,
            due_at: row.try_get("due_at")?,
            endpoint_id: row.try_get("endpoint_id")?,
            endpoint_epoch: row.try_get("endpoint_epoch")?,
            capability_epoch: row.try_get("capability_epoch")?,
        })
    }
}

/// (job, attempt): the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub job_id: i64,
    pub attempt: i32,
}

/// Who takes: identity of this process start, lease length, and the endpoint protocols it can speak.
#[derive(Clone, Debug)]
pub struct Taker {
    pub boot_id: i64,
    pub lease: Duration,
    pub protocols: Vec<String>,
    pub pace: Pace,
}

/// Takes at most `limit` jobs of one kind and lane that can start now. For kinds with a capability they are one group:
/// one tenant, one endpoint, at most its batch (decision D14).
///
/// # Errors
/// When the statement did not run; nothing was taken, or its leases lapse by themselves.
pub async fn take(
    db: &Db,
    who: &Taker,
    kind: JobKind,
    lane: Lane,
    limit: usize,
    watermark: Option<DateTime<Utc>>,
) -> Result<Vec<Claim>, DbError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = if let Some(capability) = kind.capability() {
        let rows = gated(who, kind, lane, limit, false).fetch_all(&db.pool).await?;
        if rows.is_empty() && lane == Lane::Batch {
            take_ramped(db, who, kind, capability, limit).await?
        } else {
            rows
        }
    } else {
        sqlx::query(sql!("claim/take_free"))
            .bind(kind.as_str())
            .bind(lane.as_str())
            .bind(limit)
            .bind(who.boot_id)
            .bind(who.lease.as_secs_f64())
            .bind(watermark)
            .fetch_all(&db.pool)
            .await?
    };
    let mut claims = rows.iter().map(|r| Claim::from_row(r, kind, lane)).collect::<Result<Vec<_>, _>>()?;
    claims.sort_by_key(|c| c.job_id); // UPDATE returns rows in any order; oldest first is what the handler is promised
    Ok(claims)
}

fn gated(
    who: &Taker,
    kind: JobKind,
    lane: Lane,
    limit: i64,
    ramped: bool,
) -> sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments> {
    sqlx::query(sql!("claim/take"))
        .bind(kind.as_str())
        .bind(lane.as_str())
        .bind(limit)
        .bind(who.boot_id)
        .bind(who.lease.as_secs_f64())
        .bind(&who.protocols)
        .bind(if kind.is_ephemeral() { "off" } else { "on" })
        .bind(ramped)
}

/// Behind a breaker that was turned on a moment ago few may ask at once, over the whole fleet. The breaker's row is locked first and
/// the take is a statement of its own, so that it counts what the taker before it took: one statement would count by its old snapshot
/// and overshoot.
async fn take_ramped(db: &Db, who: &Taker, kind: JobKind, capability: &str, limit: i64) -> Result<Vec<PgRow>, DbError> {
    let mut tx = db.begin().await?;
    let ramping: Vec<i64> = sqlx::query_scalar(sql!("capability/ramping"))
        .bind(capability)
        .fetch_all(&mut *tx)
        .await?;
    if ramping.is_empty() {
        return Ok(Vec::new());
    }
    let rows = gated(who, kind, Lane::Batch, limit, true).fetch_all(&mut *tx).await?;
    tx.commit().await?;
    Ok(rows)
}

/// The look just before the first side effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// Still ours and the breaker is on: go.
    Go,
    /// Still ours, but the breaker went off since the take.
    GateClosed,
    /// Not ours any more.
    Lost,
}

/// Marks the claims as started, if their gate is still open (decision B20).
///
/// # Errors
/// When the statement did not run; then nothing may be called.
pub async fn start(db: &Db, claims: &[Arc<Claim>]) -> Result<Vec<Started>, DbError> {
    let Some(first) = claims.first() else { return Ok(Vec::new()) };
    let (ids, attempts) = keys(claims.iter().map(|c| c.key()));
    let rows: Vec<(i64, bool)> = sqlx::query_as(sql!("claim/start"))
        .bind(&ids)
        .bind(&attempts)
        .bind(first.kind.capability().unwrap_or(""))
        .bind(first.tenant_id)
        .bind(first.endpoint_id)
        .fetch_all(&db.pool)
        .await?;
    let seen: HashMap<i64, bool> = rows.into_iter().collect();
    Ok(claims
        .iter()
        .map(|c| match seen.get(&c.job_id) {
            Some(true) => Started::Go,
            Some(false) => Started::GateClosed,
            None => Started::Lost,
        })
        .collect())
}

/// What a renewal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    pub job_id: i64,
    /// Somebody asked to cancel it.
    pub cancelled: bool,
}

/// Renews leases by the database's clock; claims that do not come back are lost.
///
/// # Errors
/// When the statement did not run; the leases run on from the last renewal.
pub async fn renew(db: &Db, held: &[Key], lease: Duration) -> Result<Vec<Renewed>, DbError> {
    let (ids, attempts) = keys(held.iter().copied());
    let rows: Vec<(i64, bool)> = sqlx::query_as(sql!("claim/renew"))
        .bind(&ids)
        .bind(&attempts)
        .bind(lease.as_secs_f64())
        .fetch_all(&db.pool)
        .await?;
    Ok(rows.into_iter().map(|(job_id, cancelled)| Renewed { job_id, cancelled }).collect())
}

/// What a settlement did.
#[derive(Debug, Default)]
pub struct Settled {
    /// The jobs whose claims were written; the others had been lost and nothing of theirs was.
    pub ours: HashSet<i64>,
    /// Kinds that have new work waiting because of it.
    pub woken: HashSet<JobKind>,
}

/// Settles claims in one transaction: rows, effects and follow-up jobs together, or nothing at all.
/// The engine keeps one entry per claim in hand and gives it away here, so nothing is settled twice by this process; the fence
/// sees to all others.
///
/// # Errors
/// When the transaction did not commit. Nothing was written, and the same batch may be tried again while the lease lives.
pub async fn settle(db: &Db, batch: &[(Arc<Claim>, Outcome)], pace: &Pace) -> Result<Settled, DbError> {
    if batch.is_empty() {
        return Ok(Settled::default());
    }
    let total = batch.len();
    // Nothing but successes without effects: one statement is its own transaction, two trips less.
    if batch
        .iter()
        .all(|(c, o)| matches!(o, Outcome::Done(Effect::Nothing)) && !c.kind.is_ephemeral() && !c.ramped)
    {
        let (ids, attempts) = keys(batch.iter().map(|(c, _)| c.key()));
        let ours = sqlx::query_scalar(sql!("claim/settle_done"))
            .bind(&ids)
            .bind(&attempts)
            .fetch_all(&db.pool)
            .await?;
        return Ok(Settled {
            ours: ours.into_iter().collect(),
            woken: HashSet::new(),
        });
    }
    // Nothing but failures that only wait: one statement too. A row that somebody cancelled meanwhile is left to the long way.
    if batch.iter().all(|(c, o)| only_waits(c, o, pace)) {
        let mut conn = db.pool.acquire().await?;
        let mut ours: HashSet<i64> = settle_failures(&mut conn, batch, pace, true)
            .await?
            .iter()
            .map(|e| e.job_id)
            .collect();
        drop(conn);
        if ours.len() < total {
            let mut tx = db.begin().await?;
            for e in settle_failures(&mut tx, batch, pace, false).await? {
                ours.insert(e.job_id);
                e.consequences(&mut tx).await?;
            }
            tx.commit().await?;
        }
        return Ok(Settled {
            ours,
            woken: HashSet::new(),
        });
    }
    let mut tx = db.begin().await?;
    let ephemeral = batch.iter().all(|(c, _)| c.kind.is_ephemeral());
    if ephemeral {
        sqlx::query("set local synchronous_commit = off").execute(&mut *tx).await?;
    }
    // 1. rows, fenced. What comes back is ours.
    let done: Vec<Key> = batch
        .iter()
        .filter(|(c, o)| matches!(o, Outcome::Done(_)) && !c.kind.is_ephemeral())
        .map(|(c, _)| c.key())
        .collect();
    let mut ours: HashSet<i64> = HashSet::with_capacity(total);
    if !done.is_empty() {
        let (ids, attempts) = keys(done.into_iter());
        ours.extend(
            sqlx::query_scalar::<_, i64>(sql!("claim/settle_done"))
                .bind(&ids)
                .bind(&attempts)
                .fetch_all(&mut *tx)
                .await?,
        );
    }
    if batch.iter().any(|(c, _)| c.kind.is_ephemeral()) {
        ours.extend(settle_ephemeral(&mut tx, batch).await?);
    }
    let ended = settle_failures(&mut tx, batch, pace, false).await?;
    ours.extend(ended.iter().map(|e| e.job_id));

    // 2. effects of what is ours, with the rows or not at all.
    let mut woken = HashSet::new();
    let mut embedded = Vec::new();
    for (claim, outcome) in batch {
        match outcome {
            Outcome::Done(_) if !ours.contains(&claim.job_id) => {}
            Outcome::Done(Effect::Embedded(out)) => embedded.push((claim.as_ref(), out)),
            Outcome::Done(effect) => woken.extend(crate::kind::write(&mut tx, claim, effect).await?),
            Outcome::Failed(_) => {}
        }
    }
    if !embedded.is_empty() {
        crate::kind::embed::write(&mut tx, db, &embedded).await?;
    }
    for e in &ended {
        e.consequences(&mut tx).await?;
    }
    // Whose endpoint has answered somebody between the timeout and this line: its probe, which would have decided, is over.
    let doubtful = |(c, o): &(Arc<Claim>, Outcome)| c.endpoint_id.filter(|_| matches!(o, Outcome::Failed(f) if f.doubted));
    for endpoint_id in batch.iter().filter_map(doubtful).collect::<BTreeSet<_>>() {
        crate::endpoint::decide(&mut tx, endpoint_id).await?;
    }
    woken.extend(move_ramps(&mut tx, batch, &ours).await?);
    tx.commit().await?;
    Ok(Settled { ours, woken })
}

/// A failure after which the job does nothing but wait for its next turn: no effect, no end, no other row.
fn only_waits(claim: &Claim, outcome: &Outcome, pace: &Pace) -> bool {
    let Outcome::Failed(f) = outcome else { return false };
    let c = outcome::consequence(f.class, claim.counters, f.wait, f.doubted, pace);
    !claim.kind.is_ephemeral()
        && !claim.ramped
        && !f.doubted
        && matches!(c.next, Next::Wait(_))
        && claim.charged - i32::from(c.forgiven) < claim.max_charged
}

/// Successes widen a ramp, an outage or a rate limit narrows it (decision B22). Returns the kinds that may be asked by more now.
async fn move_ramps(conn: &mut Conn, batch: &[(Arc<Claim>, Outcome)], ours: &HashSet<i64>) -> Result<Vec<JobKind>, DbError> {
    let mut woken = Vec::new();
    let ramped = || batch.iter().filter(|(c, _)| c.ramped && ours.contains(&c.job_id));
    for (kind, tenant_id) in ramped().map(|(c, _)| (c.kind, c.tenant_id)).collect::<BTreeSet<_>>() {
        let Some(capability) = kind.capability() else { continue };
        let of_it = || ramped().filter(|(c, _)| (c.kind, c.tenant_id) == (kind, tenant_id));
        // One success a group: a group is one call.
        let good: HashSet<_> = of_it()
            .filter(|(_, o)| matches!(o, Outcome::Done(_)))
            .map(|(c, _)| c.claimed_at)
            .collect();
        let trouble =
            of_it().any(|(_, o)| matches!(o, Outcome::Failed(f) if matches!(f.class, RetryClass::Outage | RetryClass::RateLimited | RetryClass::Timeout)));
        capability::ramp(&mut *conn, capability, tenant_id, good.len(), trouble).await?;
        // Room for the next, here or elsewhere.
        woken.push(kind);
    }
    Ok(woken)
}

/// Questions leave no history: answered ones go, failed ones go too once whoever waits has been told why.
async fn settle_ephemeral(tx: &mut crate::Tx, batch: &[(Arc<Claim>, Outcome)]) -> Result<Vec<i64>, DbError> {
    let gone: Vec<&(Arc<Claim>, Outcome)> = batch.iter().filter(|(c, o)| c.kind.is_ephemeral() && ends(c, o)).collect();
    let (ids, attempts) = keys(gone.iter().map(|(c, _)| c.key()));
    let ours: Vec<i64> = sqlx::query_scalar(sql!("claim/settle_ephemeral"))
        .bind(&ids)
        .bind(&attempts)
        .fetch_all(&mut **tx)
        .await?;
    for (claim, outcome) in gone {
        if let Outcome::Failed(f) = outcome
            && ours.contains(&claim.job_id)
        {
            crate::kind::question::write_failed(tx, claim.job_id, f.class.as_str()).await?;
        }
    }
    Ok(ours)
}

/// A question gets up to three attempts, a second apart (N21), and only where another one can help.
fn ends(claim: &Claim, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Done(_) => true,
        Outcome::Failed(f) => match f.class {
            RetryClass::Timeout | RetryClass::Outage | RetryClass::RateLimited => claim.attempt >= QUESTION_ATTEMPTS,
            RetryClass::Shutdown | RetryClass::Preempted => false,
            _ => true,
        },
    }
}

/// One try and two retries (requirement N21).
const QUESTION_ATTEMPTS: i32 = 3;

/// A row that a failure moved, with what it became.
#[derive(Debug)]
pub(crate) struct Ended {
    job_id: i64,
    kind: Option<JobKind>,
    item_id: Option<i64>,
    status: String,
    cancelled: bool,
    class: String,
    /// What our own reader says is wrong with a file: fit for a person. A provider's words never are.
    detail: Option<String>,
}

impl Ended {
    pub(crate) fn from_row(row: &PgRow) -> Result<Self, DbError> {
        Ok(Self {
            job_id: row.try_get("id")?,
            kind: JobKind::parse(row.try_get("kind")?),
            item_id: row.try_get("item_id")?,
            status: row.try_get("status")?,
            cancelled: row.try_get("cancelled")?,
            class: row.try_get("class")?,
            detail: match row.try_get::<Option<&str>, _>("cause")? {
                Some(crate::kind::extract::UNREADABLE) => row.try_get("error")?,
                _ => None,
            },
        })
    }

    /// What else must be true once the row is where it is: a cancel that was asked for happens, and a document whose work
    /// died says so instead of looking as if it were still under way.
    pub(crate) async fn consequences(&self, tx: &mut crate::Tx) -> Result<(), DbError> {
        if self.cancelled && self.status == "waiting" {
            sqlx::query(sql!("claim/archive_cancelled"))
                .bind(vec![self.job_id])
                .execute(&mut **tx)
                .await?;
        }
        if matches!(self.status.as_str(), "dead" | "parked")
            && let (Some(kind), Some(item)) = (self.kind, self.item_id)
        {
            let class = RetryClass::parse(&self.class).unwrap_or(RetryClass::ItemError);
            crate::kind::ended_badly(tx, kind, item, class, self.detail.as_deref()).await?;
        }
        Ok(())
    }
}

/// `waiting_only`: rows that somebody asked to cancel are left alone.
async fn settle_failures(conn: &mut Conn, batch: &[(Arc<Claim>, Outcome)], pace: &Pace, waiting_only: bool) -> Result<Vec<Ended>, DbError> {
    #[derive(Default)]
    struct Columns<'a> {
        ids: Vec<i64>,
        attempts: Vec<i32>,
        status: Vec<&'static str>,
        delay: Vec<f64>,
        forgive: Vec<bool>,
        item_fails: Vec<i32>,
        crashes: Vec<i32>,
        timeouts: Vec<i32>,
        class: Vec<&'static str>,
        cause: Vec<&'a str>,
        error: Vec<&'a str>,
        doubt: Vec<Option<i64>>,
    }
    let mut stay = Columns::default();
    let (mut gone_ids, mut gone_attempts, mut gone_status, mut gone_class) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let int = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    for (claim, outcome) in batch {
        let Outcome::Failed(Failure {
            class,
            cause,
            error,
            wait,
            doubted,
        }) = outcome
        else {
            continue;
        };
        if claim.kind.is_ephemeral() && ends(claim, outcome) {
            continue;
        }
        let wait = if claim.kind.is_ephemeral() {
            Some(Duration::from_secs(1))
        } else {
            *wait
        };
        let c = outcome::consequence(*class, claim.counters, wait, *doubted, pace);
        let (status, delay) = match c.next {
            Next::Wait(d) => ("waiting", d),
            Next::Park => ("parked", Duration::ZERO),
            Next::Die => ("dead", Duration::ZERO),
            Next::Leave(status) => {
                gone_ids.push(claim.job_id);
                gone_attempts.push(claim.attempt);
                gone_status.push(status);
                gone_class.push(class.as_str());
                continue;
            }
            Next::Finish => {
                gone_ids.push(claim.job_id);
                gone_attempts.push(claim.attempt);
                gone_status.push("done");
                gone_class.push(class.as_str());
                continue;
            }
        };
        // Timed out three times in a row is what a person looks for under its own name.
        let class = if *class == RetryClass::Timeout && status == "parked" {
            RetryClass::TooSlow
        } else {
            *class
        };
        stay.ids.push(claim.job_id);
        stay.attempts.push(claim.attempt);
        stay.status.push(status);
        stay.delay.push(delay.as_secs_f64());
        stay.forgive.push(c.forgiven);
        stay.item_fails.push(int(c.item_fails));
        stay.crashes.push(int(c.crashes));
        stay.timeouts.push(int(c.timeouts_in_row));
        stay.class.push(class.as_str());
        stay.cause.push(cause);
        stay.error.push(error);
        stay.doubt
            .push(claim.endpoint_id.filter(|_| *doubted && class == RetryClass::Timeout));
    }
    let mut ended = Vec::new();
    if !stay.ids.is_empty() {
        let rows = sqlx::query(sql!("claim/settle_failed"))
            .bind(&stay.ids)
            .bind(&stay.attempts)
            .bind(&stay.status)
            .bind(&stay.delay)
            .bind(&stay.forgive)
            .bind(&stay.item_fails)
            .bind(&stay.crashes)
            .bind(&stay.timeouts)
            .bind(&stay.class)
            .bind(&stay.cause)
            .bind(&stay.error)
            .bind(&stay.doubt)
            .bind(waiting_only)
            .fetch_all(&mut *conn)
            .await?;
        for row in &rows {
            ended.push(Ended::from_row(row)?);
        }
    }
    if !gone_ids.is_empty() {
        let rows: Vec<i64> = sqlx::query_scalar(sql!("claim/settle_gone"))
            .bind(&gone_ids)
            .bind(&gone_attempts)
            .bind(&gone_status)
            .bind(&gone_class)
            .fetch_all(&mut *conn)
            .await?;
        ended.extend(rows.into_iter().map(|job_id| Ended {
            job_id,
            kind: None,
            item_id: None,
            status: "done".to_owned(),
            cancelled: false,
            class: String::new(),
            detail: None,
        }));
    }
    Ok(ended)
}

/// Brings dead leases back; see `sql/claim/reclaim.sql` for which, and whose fault it was.
///
/// # Errors
/// When the transaction did not commit; the next sweep does it.
pub async fn reclaim(db: &Db, lease: Duration, lost_grace: Duration) -> Result<Reclaimed, DbError> {
    let mut tx = db.begin().await?;
    let rows = sqlx::query(sql!("claim/reclaim"))
        .bind(lease.as_secs_f64())
        .bind(lost_grace.as_secs_f64())
        .bind(i32::try_from(outcome::MAX_CRASHES).unwrap_or(3))
        .bind(1000_i64)
        .fetch_all(&mut *tx)
        .await?;
    let mut out = Reclaimed::default();
    for row in &rows {
        let ended = Ended::from_row(row)?;
        match (ended.status.as_str(), ended.kind) {
            ("waiting", Some(kind)) => {
                out.waiting += 1;
                out.woken.insert(kind);
            }
            ("waiting", None) => out.waiting += 1,
            _ => out.dead += 1,
        }
        ended.consequences(&mut tx).await?;
    }
    tx.commit().await?;
    Ok(out)
}

/// What a sweep brought back.
#[derive(Debug, Default)]
pub struct Reclaimed {
    pub waiting: usize,
    pub dead: usize,
    pub woken: HashSet<JobKind>,
}

/// Counts settles that the fence refused, where an operator can see them.
///
/// # Errors
/// When the statement did not run; the log line stands in for it.
pub async fn count_late(db: &Db, boot_id: i64, n: usize) -> Result<(), DbError> {
    sqlx::query(sql!("claim/late"))
        .bind(boot_id)
        .bind(i64::try_from(n).unwrap_or(0))
        .execute(&db.pool)
        .await
        .map(|_| ())
}

fn keys(held: impl Iterator<Item = Key>) -> (Vec<i64>, Vec<i32>) {
    held.map(|k| (k.job_id, k.attempt)).unzip()
}
