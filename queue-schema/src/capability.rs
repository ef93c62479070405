//! What providers can do, and whether we may ask now. A breaker goes off by an operator or by a refusal, one way; only an
//! operator turns it on. Held work is nowhere marked: the claim does not look behind a closed gate, so a flip is one row.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::FromRow;

use crate::{Conn, Db, DbError};

/// A breaker.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct Breaker {
    pub name: String,
    pub tenant_id: Option<i64>,
    pub enabled: bool,
    pub epoch: i64,
    pub reason: Option<String>,
    pub changed_by: Option<String>,
    pub changed_at: DateTime<Utc>,
    pub failure_count: i64,
    /// Jobs that wait behind it now; 0 while it is on.
    pub held_count: i64,
}

/// # Errors
/// When the database does not answer.
pub async fn list(db: &Db) -> Result<Vec<Breaker>, DbError> {
    sqlx::query_as(sql!("capability/list")).fetch_all(&db.pool).await
}

/// What a flip did.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct Flipped {
    /// False: it stood so already, and the first reason and actor remain (decision B19).
    pub changed: bool,
    pub enabled: bool,
    pub epoch: i64,
    pub reason: Option<String>,
    pub changed_by: Option<String>,
    pub changed_at: DateTime<Utc>,
}

/// Turns a breaker off. None: there is no such capability.
///
/// # Errors
/// When the database does not answer.
pub async fn off(conn: &mut Conn, name: &str, tenant_id: Option<i64>, actor: &str, reason: &str) -> Result<Option<Flipped>, DbError> {
    sqlx::query_as(sql!("capability/off"))
        .bind(name)
        .bind(tenant_id)
        .bind(actor)
        .bind(reason)
        .fetch_optional(conn)
        .await
}

/// Turns a breaker on: a new epoch, so evidence from before trips nothing (decision B18).
///
/// # Errors
/// When the database does not answer.
pub async fn on(conn: &mut Conn, name: &str, tenant_id: Option<i64>, actor: &str, reason: &str) -> Result<Option<Flipped>, DbError> {
    sqlx::query_as(sql!("capability/on"))
        .bind(name)
        .bind(tenant_id)
        .bind(actor)
        .bind(reason)
        .fetch_optional(conn)
        .await
}

/// A refusal seen by a worker. One worker wins, the first reason stays, later refusals are counted; evidence from before the
/// last enable trips nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trip {
    Tripped,
    /// It was off already; counted.
    Counted,
    /// The call began before the breaker was last turned on.
    Stale,
}

/// # Errors
/// When the database does not answer.
pub async fn trip(db: &Db, name: &str, tenant_id: Option<i64>, epoch: i64, actor: &str, reason: &str) -> Result<Trip, DbError> {
    let what: Option<String> = sqlx::query_scalar(sql!("capability/trip"))
        .bind(name)
        .bind(tenant_id)
        .bind(epoch)
        .bind(actor)
        .bind(reason)
        .fetch_optional(&db.pool)
        .await?;
    Ok(match what.as_deref() {
        Some("off") => Trip::Tripped,
        Some("counted") => Trip::Counted,
        _ => Trip::Stale,
    })
}

/// Whether the breaker is on and still in that epoch.
///
/// # Errors
/// When the database does not answer.
pub async fn is_on(db: &Db, name: &str, epoch: i64) -> Result<bool, DbError> {
    sqlx::query_scalar(sql!("capability/is_on"))
        .bind(name)
        .bind(epoch)
        .fetch_one(&db.pool)
        .await
}

/// One line of a breaker's history.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct Event {
    pub capability: String,
    pub tenant_id: Option<i64>,
    pub at: DateTime<Utc>,
    pub actor: String,
    pub action: String,
    pub reason: Option<String>,
    pub epoch: i64,
}

/// Newest first.
///
/// # Errors
/// When the database does not answer.
pub async fn history(db: &Db, name: Option<&str>, limit: i64) -> Result<Vec<Event>, DbError> {
    sqlx::query_as(sql!("capability/history"))
        .bind(name)
        .bind(limit)
        .fetch_all(&db.pool)
        .await
}
