//! Where a capability is reached, by whom, and its backoff. A breaker is a decision and closes by hand; a backoff is weather
//! and heals by itself (decision B17).

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::FromRow;

use crate::{Conn, Db, DbError};

/// An endpoint row. The key is never here: `key_env` names the variable of the worker's environment that holds it.
#[derive(Clone, Debug, FromRow, Serialize)]
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
    pub trust: i16,
    pub batch: i32,
    pub timeout_ms: i32,
    pub rank: i32,
    pub enabled: bool,
    pub epoch: i64,
    pub outage_streak: i32,
    pub last_ok_at: Option<DateTime<Utc>>,
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

/// Turns an endpoint on or off by hand.
///
/// # Errors
/// When the database does not answer.
pub async fn enable(conn: &mut Conn, name: &str, enabled: bool, actor: &str, reason: &str) -> Result<bool, DbError> {
    Ok(sqlx::query(sql!("endpoint/enable"))
        .bind(name)
        .bind(enabled)
        .bind(actor)
        .bind(reason)
        .execute(conn)
        .await?
        .rows_affected()
        > 0)
}

/// It answered. Written at most once a second: a busy endpoint's row must not become the hot row of the queue.
///
/// # Errors
/// When the database does not answer.
pub async fn well(db: &Db, id: i64) -> Result<(), DbError> {
    sqlx::query(sql!("endpoint/well")).bind(id).execute(&db.pool).await.map(|_| ())
}

/// It did not: from now on it is asked only a control text, once per backoff step, until that comes back. Evidence from
/// before the endpoint last changed does nothing. Returns the new streak.
///
/// # Errors
/// When the database does not answer.
pub async fn down(db: &Db, id: i64, epoch: i64, wait: Duration) -> Result<Option<i32>, DbError> {
    sqlx::query_scalar(sql!("endpoint/down"))
        .bind(id)
        .bind(epoch)
        .bind(wait.as_secs_f64())
        .fetch_optional(&db.pool)
        .await
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

/// An operator says "ask now".
///
/// # Errors
/// When the database does not answer.
pub async fn clear(conn: &mut Conn, name: &str) -> Result<bool, DbError> {
    Ok(sqlx::query(sql!("endpoint/clear")).bind(name).execute(conn).await?.rows_affected() > 0)
}

/// Whether the endpoint answered anything since the attempt was claimed, or within the last minute: what makes a failure the
/// item's own (decision D8).
///
/// # Errors
/// When the database does not answer.
pub async fn answered_lately(db: &Db, id: i64, job_id: i64) -> Result<bool, DbError> {
    sqlx::query_scalar(sql!("endpoint/answered_lately"))
        .bind(id)
        .bind(job_id)
        .fetch_optional(&db.pool)
        .await
        .map(|o| o.unwrap_or(false))
}

/// An endpoint that is down and due for its probe; whoever gets the row sends the control text. The next step is written
/// before the call, so a prober that dies or hangs only costs that step (public case 43).
///
/// # Errors
/// When the database does not answer.
pub async fn take_probe(db: &Db, protocols: &[String], jitter: f64) -> Result<Option<Endpoint>, DbError> {
    sqlx::query_as(sql!("endpoint/take_probe"))
        .bind(protocols)
        .bind(jitter)
        .fetch_optional(&db.pool)
        .await
}
