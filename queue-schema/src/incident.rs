//! A breaker's outage, from the first off until it has been on for long enough and everything that was held under it has ended. Off, on
//! and off again is one incident with one apology (decision B23).

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::FromRow;

use crate::job::{self, NewJob};
use crate::retry::Pace;
use crate::{Conn, Db, DbError, JobKind, schedule};

/// Whether any batch work waits behind this breaker, open or closed.
///
/// # Errors
/// When the database does not answer.
pub async fn anything_held(conn: &mut Conn, capability: &str, tenant_id: Option<i64>) -> Result<bool, DbError> {
    sqlx::query_scalar(sql!("incident/anything_held"))
        .bind(capability)
        .bind(tenant_id)
        .fetch_one(conn)
        .await
}

/// Opens an incident, or goes on with the one that is open, in the transaction that closed the breaker; the fan-out of its notices is a
/// job, because writing a hundred thousand of them here would block the flip (B24).
pub(crate) async fn open(conn: &mut Conn, capability: &str, tenant_id: Option<i64>, actor: &str, reason: &str) -> Result<i64, DbError> {
    let id: i64 = sqlx::query_scalar(sql!("incident/open"))
        .bind(capability)
        .bind(tenant_id)
        .bind(actor)
        .bind(reason)
        .fetch_one(&mut *conn)
        .await?;
    fan_out(conn, id).await?;
    Ok(id)
}

/// The breaker is on again: what was held is known now, and whoever slipped in between is found by a second fan-out.
pub(crate) async fn enabled(conn: &mut Conn, capability: &str, tenant_id: Option<i64>) -> Result<(), DbError> {
    let id: Option<i64> = sqlx::query_scalar(sql!("incident/enabled"))
        .bind(capability)
        .bind(tenant_id)
        .fetch_optional(&mut *conn)
        .await?;
    match id {
        Some(id) => fan_out(conn, id).await,
        None => Ok(()),
    }
}

async fn fan_out(conn: &mut Conn, incident_id: i64) -> Result<(), DbError> {
    let job = NewJob {
        item_id: Some(incident_id),
        ..NewJob::new(JobKind::FanOut, schedule::house(&mut *conn).await?)
    };
    job::enqueue(&mut *conn, &job).await?;
    crate::hint::at_commit(conn, JobKind::FanOut).await
}

/// One more refusal, and by whom.
pub(crate) async fn count_failure(conn: &mut Conn, capability: &str, tenant_id: Option<i64>) -> Result<(), DbError> {
    sqlx::query(sql!("incident/count_failure"))
        .bind(capability)
        .bind(tenant_id)
        .execute(conn)
        .await
        .map(|_| ())
}

/// An incident as an operator sees it.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct Incident {
    pub id: i64,
    pub capability: String,
    pub tenant_id: Option<i64>,
    pub opened_at: DateTime<Utc>,
    pub opened_by: String,
    /// The first one.
    pub reason: String,
    /// Those that refused.
    pub endpoints: Vec<String>,
    pub failure_count: i64,
    /// When it was last turned on; none while stopped.
    pub enabled_at: Option<DateTime<Utc>>,
    pub closed_at: Option<DateTime<Utc>>,
    pub closed_by: Option<String>,
    /// People with work held under it.
    pub user_count: i64,
    /// Of their notices: waiting to be sent; perhaps sent; not to be sent (no address, refused).
    pub due_count: i64,
    pub unknown_count: i64,
    pub unsent_count: i64,
    /// Told that everything has come through; told that something needs them.
    pub landed_count: i64,
    pub attention_count: i64,
}

/// Newest first.
///
/// # Errors
/// When the database does not answer.
pub async fn list(db: &Db, open_only: bool, limit: i64) -> Result<Vec<Incident>, DbError> {
    sqlx::query_as(sql!("incident/list"))
        .bind(None::<i64>)
        .bind(open_only)
        .bind(limit)
        .fetch_all(&db.pool)
        .await
}

/// # Errors
/// When the database does not answer.
pub async fn find(db: &Db, id: i64) -> Result<Option<Incident>, DbError> {
    sqlx::query_as(sql!("incident/list"))
        .bind(Some(id))
        .bind(false)
        .bind(1_i64)
        .fetch_optional(&db.pool)
        .await
}

/// Closes one by hand, whatever is still held. False: there is no open one of that id.
///
/// # Errors
/// When the database does not answer.
pub async fn close(conn: &mut Conn, id: i64, actor: &str) -> Result<bool, DbError> {
    Ok(sqlx::query(sql!("incident/close"))
        .bind(id)
        .bind(actor)
        .execute(conn)
        .await?
        .rows_affected()
        > 0)
}

#[derive(FromRow)]
struct ToLand {
    id: i64,
    capability: String,
    tenant_id: Option<i64>,
    opened_at: DateTime<Utc>,
    last_job_id: i64,
    ripe: bool,
}

/// Between two looks at an incident.
const LOOK: Duration = Duration::from_secs(1);

/// Looks at one incident that is on again: whoever's held work has all ended gets the closing part of the notice (decision D18), and an
/// incident that is over is closed.
///
/// # Errors
/// When a statement did not run; the next look does it.
pub async fn land(db: &Db, pace: &Pace) -> Result<(), DbError> {
    let due: Option<ToLand> = sqlx::query_as(sql!("incident/to_land"))
        .bind(LOOK.as_secs_f64())
        .bind(pace.reopen_grace.as_secs_f64())
        .fetch_optional(&db.pool)
        .await?;
    let Some(i) = due else { return Ok(()) };
    let began = Instant::now();
    loop {
        let landed = sqlx::query(sql!("incident/land"))
            .bind(i.id)
            .bind(&i.capability)
            .bind(i.tenant_id)
            .bind(i.last_job_id)
            .bind(i.opened_at)
            .execute(&db.pool)
            .await?;
        if landed.rows_affected() == 0 {
            break;
        }
    }
    if i.ripe {
        sqlx::query(sql!("incident/close_ripe"))
            .bind(i.id)
            .bind(&i.capability)
            .bind(i.tenant_id)
            .bind(i.last_job_id)
            .execute(&db.pool)
            .await?;
    }
    // A look over very many rows is taken the more seldom the longer it takes: a twentieth of the time at most.
    let pause = began.elapsed() * 20;
    if pause > LOOK {
        sqlx::query(sql!("incident/look_later"))
            .bind(i.id)
            .bind(pause.as_secs_f64())
            .execute(&db.pool)
            .await?;
    }
    Ok(())
}
