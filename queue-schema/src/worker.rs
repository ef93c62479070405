//! Who works here: one row per process start, and the session lock that says it lives.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Connection as _, FromRow, PgConnection, Row as _};

use crate::{Db, DbError, JobKind, Lane, Role};

/// How a worker process presents itself.
#[derive(Clone, Debug)]
pub struct Presence {
    /// Random per process start, never a configured name: a restart is somebody else (public case 2).
    pub boot_id: i64,
    pub host: String,
    pub pid: i32,
    pub kinds: Vec<JobKind>,
    /// Groups it runs at once.
    pub places: usize,
    /// False behind a transaction pooler, where a session lock means nothing: then the lease alone decides.
    pub locked: bool,
}

/// The connection that holds the worker's advisory lock. While it lives, so does the worker, to everybody else.
#[derive(Debug)]
pub struct Registration {
    conn: PgConnection,
}

/// Registers (or, after a lost connection, re-registers) and takes the session lock on a connection of its own.
///
/// # Errors
/// When the database does not answer.
pub async fn register(url: &str, who: &Presence) -> Result<Registration, DbError> {
    let mut conn = PgConnection::connect(url).await?;
    sqlx::query("set role steadfast_worker").execute(&mut conn).await?;
    sqlx::query("set application_name = 'steadfast-worker-presence'")
        .execute(&mut conn)
        .await?;
    if who.locked {
        // Not pg_try_…: a predecessor of ours on a half-dead connection must let go first, and 5 s bound the wait.
        sqlx::query("set lock_timeout = '5s'").execute(&mut conn).await?;
        sqlx::query("select pg_advisory_lock($1)")
            .bind(who.boot_id)
            .execute(&mut conn)
            .await?;
    }
    let kinds: Vec<&str> = who.kinds.iter().map(|k| k.as_str()).collect();
    sqlx::query(sql!("worker/register"))
        .bind(who.boot_id)
        .bind(&who.host)
        .bind(who.pid)
        .bind(&kinds)
        .bind(who.locked)
        .bind(i32::try_from(who.places).unwrap_or(i32::MAX))
        .execute(&mut conn)
        .await?;
    Ok(Registration { conn })
}

impl Registration {
    /// Says "seen" over the very connection that holds the lock, so that its loss is noticed by its owner too.
    ///
    /// # Errors
    /// When the connection is gone: register again.
    pub async fn beat(&mut self, boot_id: i64) -> Result<(), DbError> {
        sqlx::query(sql!("worker/beat"))
            .bind(boot_id)
            .execute(&mut self.conn)
            .await
            .map(|_| ())
    }

    /// Leaves in order.
    ///
    /// # Errors
    /// When the connection is gone; the row is then tidied by whoever notices.
    pub async fn stop(mut self, boot_id: i64) -> Result<(), DbError> {
        sqlx::query(sql!("worker/stop")).bind(boot_id).execute(&mut self.conn).await?;
        self.conn.close().await
    }
}

/// What one look found.
#[derive(Clone, Debug, Default)]
pub struct Tick {
    /// Kinds and lanes with work that could start now.
    pub due: Vec<(JobKind, Lane)>,
    /// A lost worker's jobs may be reclaimed in this long; zero: now. None: nobody is lost, or they held nothing.
    pub lost_ripe_in: Option<Duration>,
    /// Leases have run out.
    pub leases_lapsed: bool,
    pub schedules_due: bool,
    pub probe_due: bool,
    /// An incident's held work may have landed.
    pub landing_due: bool,
    /// A part of a notice is due, and this worker can send.
    pub notices_due: bool,
    /// Jobs of mine that somebody asked to cancel.
    pub cancelled: Vec<i64>,
    /// Jobs of mine whose call is to be given up: `breaker off --now`.
    pub interrupted: Vec<i64>,
}

/// The idle worker's one statement per poll (decision D21: reaper, schedules and probes ride on it).
///
/// # Errors
/// When the statement did not run.
pub async fn tick(
    db: &Db,
    me: i64,
    kinds: &[JobKind],
    protocols: &[String],
    lost_grace: Duration,
    lease: Duration,
) -> Result<Tick, DbError> {
    let names: Vec<&str> = kinds.iter().map(|k| k.as_str()).collect();
    let row = sqlx::query(sql!("worker/tick"))
        .bind(me)
        .bind(&names)
        .bind(protocols)
        .bind(lost_grace.as_secs_f64())
        .bind(lease.as_secs_f64())
        .fetch_one(&db.pool)
        .await?;
    let due: Vec<String> = row.try_get("due")?;
    let ripe: Option<f64> = row.try_get("lost_ripe_in")?;
    let newly: bool = row.try_get("newly_lost")?;
    Ok(Tick {
        due: due
            .iter()
            .filter_map(|p| p.split_once(':'))
            .filter_map(|(k, l)| Some((JobKind::parse(k)?, Lane::parse(l)?)))
            .collect(),
        // The statement sees the rows as they were before its own update: a loss found just now ripens a grace from now.
        lost_ripe_in: ripe
            .map(|secs| Duration::from_secs_f64(secs.max(0.0)))
            .or(newly.then_some(lost_grace)),
        leases_lapsed: row.try_get("leases_lapsed")?,
        schedules_due: row.try_get("schedules_due")?,
        probe_due: row.try_get("probe_due")?,
        landing_due: row.try_get("landing_due")?,
        notices_due: row.try_get("notices_due")?,
        cancelled: row.try_get("cancelled")?,
        interrupted: row.try_get("interrupted")?,
    })
}

/// A worker as an operator sees it.
#[derive(Clone, Debug, FromRow)]
pub struct WorkerRow {
    pub boot_id: i64,
    pub host: String,
    pub pid: i32,
    pub kinds: Vec<String>,
    pub started_at: DateTime<Utc>,
    pub seen_at: DateTime<Utc>,
    pub lost_at: Option<DateTime<Utc>>,
    pub late_settle_count: i64,
    pub running_count: i64,
    /// Seconds since it was last seen, by the database's clock.
    pub silent_seconds: f64,
}

/// Workers that have not stopped, newest first.
///
/// # Errors
/// When the database does not answer.
pub async fn list(db: &Db) -> Result<Vec<WorkerRow>, DbError> {
    sqlx::query_as(sql!("worker/list")).fetch_all(&db.pool).await
}

/// Whether any live worker serves this kind: seen within `within`, not lost.
///
/// # Errors
/// When the database does not answer.
pub async fn serves(db: &Db, kind: JobKind, within: Duration) -> Result<bool, DbError> {
    sqlx::query_scalar(sql!("worker/serves"))
        .bind(kind.as_str())
        .bind(within.as_secs_f64())
        .fetch_one(&db.pool)
        .await
}

/// Settles that fences refused, over all workers known.
///
/// # Errors
/// When the database does not answer.
pub async fn late_settles(db: &Db) -> Result<i64, DbError> {
    sqlx::query_scalar("select coalesce(sum(late_settle_count), 0)::bigint from workers")
        .fetch_one(&db.pool)
        .await
}

/// The pool a worker's statements run on.
///
/// # Errors
/// When `url` is not a Postgres URL.
pub fn open(url: &str, max_connections: u32) -> Result<Db, DbError> {
    Db::open(url, Role::Worker, max_connections, "steadfast-worker")
}
