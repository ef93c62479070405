//! Where a capability is reached, by whom, and its backoff. A breaker is a decision and closes by hand; a backoff is weather
//! and heals by itself (decision B17).

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::FromRow;

use crate::capability::Refusal;
use crate::claim::Ended;
use crate::outcome::MAX_TIMEOUTS;
use crate::retry::Pace;
use crate::{Conn, Db, DbError, Tx};

/// An endpoint row. The key is never here: `key_env` names the variable of the worker's environment that holds it.
#[derive(Clone, Debug, FromRow, Serialize, Deserialize)]
pub struct Endpoint {
    pub id: i64,
    pub name: String,
    pub capability: String,
    /// minilm, openai, tesseract, ocr_http
    pub protocol: String,
    pub url: Option<String>,
    pub model: String,
    pub dims: Option<i32>,
    pub key_env: Option<String>,
    /// Whose it is; none: everybody's.
    pub owner_tenant_id: Option<i64>,
    pub trust: i16,
    pub batch: i32,
    pub timeout_ms: i32,
    pub rank: i32,
    pub enabled: bool,
    pub epoch: i64,
    pub outage_streak: i32,
    pub last_ok_at: Option<DateTime<Utc>>,
    /// A refusal stopped it; none while on, or when it was turned off by hand.
    pub tripped_at: Option<DateTime<Utc>>,
    pub refusal_count: i64,
    pub reason: Option<String>,
    pub changed_by: Option<String>,
    pub changed_at: DateTime<Utc>,
}

impl Endpoint {
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.timeout_ms).unwrap_or(1))
    }
}

/// # Errors
/// When the database does not answer.
pub async fn list(db: &Db) -> Result<Vec<Endpoint>, DbError> {
    sqlx::query_as(sql!("endpoint/list")).fetch_all(&db.pool).await
}

/// An endpoint as an operator sees it.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct Seen {
    #[sqlx(flatten)]
    #[serde(flatten)]
    pub endpoint: Endpoint,
    /// While down: when the next control text goes out; else, after a 429: when the next call may. None: now.
    pub due_at: Option<DateTime<Utc>>,
    /// What came of the last control text, while down.
    pub probe_error: Option<String>,
    /// An engine inside the workers: the remote endpoint that serves in its stead, or is waited for where it is away or was refused.
    pub stands_behind: Option<String>,
    /// Up to this level; what is more sensitive is done by the engine itself.
    pub stands_behind_to: Option<i16>,
}

impl Seen {
    /// Whether it serves documents of the usual level for everybody, when it is up: on, trusted, and not only standing by.
    #[must_use]
    pub fn serves(&self) -> bool {
        let e = &self.endpoint;
        e.enabled
            && e.trust >= 1
            && e.owner_tenant_id.is_none()
            && (self.stands_behind.is_none() || self.stands_behind_to.is_some_and(|to| to < 1))
    }
}

/// All of them, in the order in which they serve.
///
/// # Errors
/// When the database does not answer.
pub async fn overview(db: &Db) -> Result<Vec<Seen>, DbError> {
    sqlx::query_as(sql!("endpoint/overview")).fetch_all(&db.pool).await
}

/// # Errors
/// When the database does not answer.
pub async fn find(db: &Db, id: i64) -> Result<Option<Endpoint>, DbError> {
    sqlx::query_as(sql!("endpoint/find")).bind(id).fetch_optional(&db.pool).await
}

/// What an operator says of an endpoint.
#[derive(Clone, Debug)]
pub struct NewEndpoint {
    pub name: String,
    pub capability: String,
    pub protocol: String,
    pub url: Option<String>,
    pub model: String,
    pub dims: Option<i32>,
    pub key_env: Option<String>,
    pub trust: i16,
    pub batch: i32,
    pub timeout_ms: i32,
    pub rank: i32,
}

/// Adds an endpoint or changes the one of that name; never asks the provider (public case 74).
///
/// # Errors
/// When the database refuses a value or does not answer.
pub async fn set(conn: &mut Conn, e: &NewEndpoint, actor: &str) -> Result<i64, DbError> {
    sqlx::query_scalar(sql!("endpoint/set"))
        .bind(&e.name)
        .bind(&e.capability)
        .bind(&e.protocol)
        .bind(&e.url)
        .bind(&e.model)
        .bind(e.dims)
        .bind(&e.key_env)
        .bind(e.trust)
        .bind(e.batch)
        .bind(e.timeout_ms)
        .bind(e.rank)
        .bind(actor)
        .fetch_one(conn)
        .await
}

/// Takes an endpoint away. False: there is none of that name.
///
/// # Errors
/// When the database does not answer.
pub async fn remove(conn: &mut Conn, name: &str) -> Result<bool, DbError> {
    Ok(sqlx::query(sql!("endpoint/remove")).bind(name).execute(conn).await?.rows_affected() > 0)
}

/// What a flip by hand found.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct Flipped {
    /// False: it stood so already, and the first reason and actor remain (decision B19).
    pub changed: bool,
    /// As they were before.
    pub reason: Option<String>,
    pub changed_by: Option<String>,
    pub changed_at: DateTime<Utc>,
}

/// Turns an endpoint on or off by hand; the act is in the breakers' history. None: there is none of that name.
///
/// # Errors
/// When the database does not answer.
pub async fn enable(conn: &mut Conn, name: &str, enabled: bool, actor: &str, reason: &str) -> Result<Option<Flipped>, DbError> {
    sqlx::query_as(sql!("endpoint/enable"))
        .bind(name)
        .bind(enabled)
        .bind(actor)
        .bind(reason)
        .fetch_optional(conn)
        .await
}

/// What a refusal did to its endpoint.
#[derive(Debug, FromRow)]
pub(crate) struct Tripped {
    /// off, counted, stale
    pub what: String,
    pub capability: String,
    pub owner_tenant_id: Option<i64>,
    pub another_left: bool,
}

/// None: the endpoint is gone.
pub(crate) async fn trip(conn: &mut Conn, r: &Refusal<'_>) -> Result<Option<Tripped>, DbError> {
    sqlx::query_as(sql!("endpoint/trip"))
        .bind(r.endpoint_id)
        .bind(r.endpoint_epoch)
        .bind(r.actor)
        .bind(r.reason)
        .bind(r.capability_epoch)
        .fetch_optional(conn)
        .await
}

/// Turns on what refusals had stopped; their names.
pub(crate) async fn untrip(
    conn: &mut Conn,
    capability: &str,
    tenant_id: Option<i64>,
    actor: &str,
    reason: &str,
) -> Result<Vec<String>, DbError> {
    sqlx::query_scalar(sql!("endpoint/untrip"))
        .bind(capability)
        .bind(tenant_id)
        .bind(actor)
        .bind(reason)
        .fetch_all(conn)
        .await
}

/// It answered. Written at most once a second: a busy endpoint's row must not become the hot row of the queue. Where this ends an
/// outage, timeouts that were in doubt were the items' own.
///
/// # Errors
/// When the database does not answer.
pub async fn well(db: &Db, id: i64) -> Result<(), DbError> {
    let ended: Option<bool> = sqlx::query_scalar(sql!("endpoint/well")).bind(id).fetch_optional(&db.pool).await?;
    if ended == Some(true) {
        let mut tx = db.begin().await?;
        blame_items(&mut tx, id).await?;
        tx.commit().await?;
    }
    Ok(())
}

async fn blame_items(tx: &mut Tx, id: i64) -> Result<(), DbError> {
    let rows = sqlx::query(sql!("endpoint/blame_items"))
        .bind(id)
        .bind(i32::try_from(MAX_TIMEOUTS).unwrap_or(3))
        .fetch_all(&mut **tx)
        .await?;
    for row in &rows {
        Ended::from_row(row)?.consequences(tx).await?;
    }
    Ok(())
}

/// A timeout in doubt has just been written: where the endpoint has answered somebody in the meantime, nobody would come to decide it.
pub(crate) async fn decide(tx: &mut Tx, id: i64) -> Result<(), DbError> {
    let well: Option<bool> = sqlx::query_scalar(sql!("endpoint/is_well"))
        .bind(id)
        .fetch_optional(&mut **tx)
        .await?;
    if well == Some(true) { blame_items(tx, id).await } else { Ok(()) }
}

/// A probe failed: no item is to blame for the timeouts before it (decision D3). `error`: sanitised, for an operator.
///
/// # Errors
/// When the database does not answer.
pub async fn still_down(db: &Db, id: i64, error: &str) -> Result<(), DbError> {
    sqlx::query(sql!("endpoint/blame_itself"))
        .bind(id)
        .bind(error)
        .execute(&db.pool)
        .await
        .map(|_| ())
}

/// It did not: from now on it is asked only a control text, once per backoff step, until that comes back. Evidence from
/// before the endpoint last changed does nothing. Returns whether it was well until now.
///
/// # Errors
/// When the database does not answer.
pub async fn down(db: &Db, id: i64, epoch: i64, wait: Duration) -> Result<bool, DbError> {
    let newly: Option<bool> = sqlx::query_scalar(sql!("endpoint/down"))
        .bind(id)
        .bind(epoch)
        .bind(wait.as_secs_f64())
        .fetch_optional(&db.pool)
        .await?;
    Ok(newly.unwrap_or(false))
}

/// It asked for time (429): nothing is sent before `wait` is over. No outage, no probe.
///
/// # Errors
/// When the database does not answer.
pub async fn pause(db: &Db, id: i64, wait: Duration) -> Result<(), DbError> {
    sqlx::query(sql!("endpoint/pause"))
        .bind(id)
        .bind(wait.as_secs_f64())
        .execute(&db.pool)
        .await
        .map(|_| ())
}

/// An operator says "ask now": the next look of a worker sends the control text, and work follows if that comes back. Returns the step
/// it is on: 0 later means that it answered, more that it is being asked; [`Seen::probe_error`] is set once it failed. None: there is none of that
/// name that is on.
///
/// # Errors
/// When the database does not answer.
pub async fn probe(conn: &mut Conn, name: &str) -> Result<Option<i32>, DbError> {
    sqlx::query_scalar(sql!("endpoint/probe")).bind(name).fetch_optional(conn).await
}

/// Whether the endpoint answered anything since the attempt was claimed, or within `pace.evidence`: what makes a failure the
/// item's own (decision D8).
///
/// # Errors
/// When the database does not answer.
pub async fn answered_lately(db: &Db, id: i64, job_id: i64, pace: &Pace) -> Result<bool, DbError> {
    sqlx::query_scalar(sql!("endpoint/answered_lately"))
        .bind(id)
        .bind(job_id)
        .bind(pace.evidence.as_secs_f64())
        .fetch_optional(&db.pool)
        .await
        .map(|o| o.unwrap_or(false))
}

/// An endpoint that is down and due for its probe; whoever gets the row sends the control text. The next step is written
/// before the call, so a prober that dies or hangs only costs that step (public case 43).
///
/// # Errors
/// When the database does not answer.
pub async fn take_probe(db: &Db, protocols: &[String], jitter: f64, pace: &Pace) -> Result<Option<Endpoint>, DbError> {
    sqlx::query_as(sql!("endpoint/take_probe"))
        .bind(protocols)
        .bind(jitter)
        .bind(pace.endpoint_base.as_secs_f64())
        .bind(pace.endpoint_cap.as_secs_f64())
        .fetch_optional(&db.pool)
        .await
}
