//! What providers can do, and whether we may ask now. A breaker goes off by an operator or by a refusal, one way; only an
//! operator turns it on. Held work is nowhere marked: the claim does not look behind a closed gate, so a flip is one row.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::FromRow;

use crate::{Conn, Db, DbError, JobKind, endpoint, incident};

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
    /// Groups that may be in flight at once, since it was turned on a moment ago; none: no ramp.
    pub ramp_limit: Option<i32>,
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

/// What turning a breaker off did.
#[derive(Clone, Debug, Serialize)]
pub struct TurnedOff {
    #[serde(flatten)]
    pub flipped: Flipped,
    /// Opened or gone on with; none where it was off already, or for a drill that holds nothing.
    pub incident_id: Option<i64>,
}

/// What turning a breaker on did.
#[derive(Clone, Debug, Serialize)]
pub struct TurnedOn {
    #[serde(flatten)]
    pub flipped: Flipped,
    /// Endpoints that refusals had stopped and that are asked again with it.
    pub endpoints: Vec<String>,
}

/// How many jobs wait behind this breaker, on or off; more than 10,000 are told as 10,001.
///
/// # Errors
/// When the database does not answer.
pub async fn held(db: &Db, name: &str, tenant_id: Option<i64>) -> Result<i64, DbError> {
    sqlx::query_scalar(sql!("capability/held"))
        .bind(name)
        .bind(tenant_id)
        .fetch_one(&db.pool)
        .await
}

/// How an operator turns a breaker off.
#[derive(Clone, Copy, Debug)]
pub struct Off<'a> {
    pub name: &'a str,
    /// None: for everybody.
    pub tenant_id: Option<i64>,
    pub actor: &'a str,
    pub reason: &'a str,
    /// A drill: open no incident where nothing is held.
    pub quiet: bool,
    /// Where it is off already: leave a note beside the first reason.
    pub annotate: bool,
}

/// Turns a breaker off, in the caller's transaction, which opens or rejoins its incident. None: there is no such capability, or no
/// such tenant.
///
/// # Errors
/// When the database does not answer.
pub async fn off(conn: &mut Conn, o: &Off<'_>) -> Result<Option<TurnedOff>, DbError> {
    ensure(&mut *conn, o.name, o.tenant_id).await?;
    let flipped: Option<Flipped> = sqlx::query_as(sql!("capability/off"))
        .bind(o.name)
        .bind(o.tenant_id)
        .bind(o.actor)
        .bind(o.reason)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(f) = flipped else { return Ok(None) };
    let mut incident_id = None;
    if f.changed && (!o.quiet || incident::anything_held(&mut *conn, o.name, o.tenant_id).await?) {
        incident_id = Some(incident::open(&mut *conn, o.name, o.tenant_id, o.actor, o.reason).await?);
    }
    if !f.changed && o.annotate {
        sqlx::query(sql!("capability/note"))
            .bind(o.name)
            .bind(o.tenant_id)
            .bind(o.actor)
            .bind(o.reason)
            .execute(&mut *conn)
            .await?;
    }
    Ok(Some(TurnedOff { flipped: f, incident_id }))
}

/// Gives up the calls under way behind a breaker that is off, uncharged. A transaction of its own, after the one that turned it off has
/// committed: within that one, a call that begins while the flip is being written would be missed, and job rows would be locked after the
/// breaker's, against the order of settlements.
///
/// # Errors
/// When the database does not answer; the breaker stays off, and this can be said again.
pub async fn interrupt(db: &Db, name: &str, tenant_id: Option<i64>) -> Result<(), DbError> {
    sqlx::query(sql!("capability/interrupt"))
        .bind(name)
        .bind(tenant_id)
        .execute(&db.pool)
        .await
        .map(|_| ())
}

/// Turns a breaker on, in the caller's transaction: a new epoch, so evidence from before trips nothing (decision B18), endpoints that
/// refusals had stopped are asked again, and few ask at first unless `full` (B22). None: there is no such breaker.
///
/// # Errors
/// When the database does not answer.
pub async fn on(
    conn: &mut Conn,
    name: &str,
    tenant_id: Option<i64>,
    actor: &str,
    reason: &str,
    full: bool,
) -> Result<Option<TurnedOn>, DbError> {
    let flipped: Option<Flipped> = sqlx::query_as(sql!("capability/on"))
        .bind(name)
        .bind(tenant_id)
        .bind(actor)
        .bind(reason)
        .bind(full)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(flipped) = flipped else { return Ok(None) };
    let mut endpoints = Vec::new();
    if flipped.changed {
        endpoints = endpoint::untrip(&mut *conn, name, tenant_id, actor, reason).await?;
        incident::enabled(&mut *conn, name, tenant_id).await?;
    } else if full {
        sqlx::query(sql!("capability/full"))
            .bind(name)
            .bind(tenant_id)
            .execute(&mut *conn)
            .await?;
    }
    for kind in JobKind::ALL.into_iter().filter(|k| k.capability() == Some(name)) {
        crate::hint::at_commit(&mut *conn, kind).await?;
    }
    Ok(Some(TurnedOn { flipped, endpoints }))
}

/// A tenant's own row, made when first needed.
async fn ensure(conn: &mut Conn, name: &str, tenant_id: Option<i64>) -> Result<(), DbError> {
    if let Some(tenant_id) = tenant_id {
        sqlx::query(sql!("capability/ensure"))
            .bind(name)
            .bind(tenant_id)
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// A refusal by an endpoint, as a worker saw it, with the epochs its claim had captured.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    pub endpoint_id: i64,
    pub endpoint_epoch: i64,
    pub capability_epoch: i64,
    pub actor: &'a str,
    /// Sanitised; it stays as the first reason if this is the first.
    pub reason: &'a str,
}

/// What a refusal did. One worker wins, the first reason stays, later refusals are counted; evidence from before the last enable
/// trips nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trip {
    /// The capability is off, and with it all its work is held.
    Tripped,
    /// Only this endpoint is off: another one serves on.
    EndpointOnly,
    /// It was off already; counted.
    Counted,
    /// The call began before the endpoint or the breaker was last turned on.
    Stale,
}

/// Stops the endpoint, and its capability when no other is left to serve it (decision B15): for everybody, or for the one tenant
/// whose own endpoint it is (B16). The incident and the fan-out of its notices are of the same transaction.
///
/// # Errors
/// When the database does not answer; nothing was stopped.
pub async fn refused(db: &Db, r: &Refusal<'_>) -> Result<Trip, DbError> {
    let mut tx = db.begin().await?;
    let _locked: Vec<i64> = sqlx::query_scalar(sql!("capability/lock_of"))
        .bind(r.endpoint_id)
        .fetch_all(&mut *tx)
        .await?;
    let Some(e) = endpoint::trip(&mut tx, r).await? else {
        return Ok(Trip::Stale);
    };
    let trip = match (e.what.as_str(), e.another_left) {
        ("stale", _) => Trip::Stale,
        ("off", true) => Trip::EndpointOnly,
        (_, true) => Trip::Counted,
        _ => {
            ensure(&mut tx, &e.capability, e.owner_tenant_id).await?;
            let what: Option<String> = sqlx::query_scalar(sql!("capability/trip"))
                .bind(&e.capability)
                .bind(e.owner_tenant_id)
                .bind(r.capability_epoch)
                .bind(r.actor)
                .bind(r.reason)
                .fetch_optional(&mut *tx)
                .await?;
            match what.as_deref() {
                Some("off") => {
                    incident::open(&mut tx, &e.capability, e.owner_tenant_id, r.actor, r.reason).await?;
                    Trip::Tripped
                }
                Some("counted") => Trip::Counted,
                _ => Trip::Stale,
            }
        }
    };
    if matches!(trip, Trip::Tripped | Trip::Counted) {
        incident::count_failure(&mut tx, &e.capability, e.owner_tenant_id).await?;
    }
    tx.commit().await?;
    Ok(trip)
}

/// How things stand before a refusal is believed.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct Standing {
    /// Breaker and endpoint are on and as the claim saw them.
    pub still_on: bool,
    /// It has answered somebody since it was last turned on: one stray refusal among good answers is then possible.
    pub has_answered: bool,
}

/// # Errors
/// When the database does not answer.
pub async fn standing(
    db: &Db,
    name: &str,
    tenant_id: Option<i64>,
    epoch: i64,
    endpoint_id: i64,
    endpoint_epoch: i64,
) -> Result<Standing, DbError> {
    sqlx::query_as(sql!("capability/standing"))
        .bind(name)
        .bind(tenant_id)
        .bind(epoch)
        .bind(endpoint_id)
        .bind(endpoint_epoch)
        .fetch_one(&db.pool)
        .await
}

/// A ramp's step, in the transaction that settles: `good` groups went well, or there was trouble.
pub(crate) async fn ramp(conn: &mut Conn, name: &str, tenant_id: i64, good: usize, trouble: bool) -> Result<(), DbError> {
    sqlx::query(sql!("capability/ramp"))
        .bind(name)
        .bind(tenant_id)
        .bind(i32::try_from(good).unwrap_or(i32::MAX))
        .bind(trouble)
        .execute(conn)
        .await
        .map(|_| ())
}

/// One line of a breaker's history.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct Event {
    pub capability: String,
    pub tenant_id: Option<i64>,
    /// The endpoint it was about; none: the capability itself.
    pub endpoint: Option<String>,
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
