//! One read-only picture of how whole an answer is, for the one who asked: search, `/health`, the console and
//! `steadfast doctor` show the same. Counts are of items this caller may read, never of anybody else's.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::FromRow;

use crate::tenant::Scope;
use crate::{Conn, Db, DbError, notice};

/// How long a save may take to show up before an answer without it counts as degraded (decision B46).
pub const FRESHNESS_SLO: Duration = Duration::from_secs(30);
/// A worker not seen for longer is not counted on.
pub const WORKER_ALIVE: Duration = Duration::from_secs(60);

/// Why an answer is less than whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reason {
    /// `held`, `parked`, `dead`, `behind`, `reindexing`, `outage`, `stopped`, `no_worker`, `no_endpoint`, `rate_limited`,
    /// `question_…` with a class of [`crate::outcome::RetryClass`], `keyword_failed`, `semantic_failed`, `diagnostics_failed`.
    pub code: String,
    /// Items concerned, where it is about items; bounded counts stop at 10,000 (1,000 for `reindexing`).
    pub count: Option<i64>,
    pub oldest_seconds: Option<i64>,
}

/// The picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diagnostics {
    /// What was done, in order, in words.
    pub steps: Vec<String>,
    pub degraded: bool,
    pub took_ms: u64,
    /// Capabilities that this answer had to do without, or that are stopped.
    pub unavailable: BTreeSet<String>,
    /// A sentence for a person, only when something was stopped on purpose.
    pub notice: Option<String>,
    pub reasons: Vec<Reason>,
    /// Items saved a moment ago and on their way: no reason to worry.
    pub pending: i64,
}

impl Diagnostics {
    /// A reason that is not about items.
    pub fn because(&mut self, code: impl Into<String>) {
        let code = code.into();
        self.degraded = true;
        if !self.reasons.iter().any(|r| r.code == code) {
            self.reasons.push(Reason {
                code,
                count: None,
                oldest_seconds: None,
            });
        }
    }

    pub fn step(&mut self, step: impl Into<String>) {
        self.steps.push(step.into());
    }
}

#[derive(FromRow)]
struct Items {
    code: String,
    count: i64,
    oldest_seconds: Option<f64>,
}

/// How things stand for this caller in these Spaces (none: all of his), before any search step is taken.
///
/// # Errors
/// When the database does not answer.
pub async fn picture(conn: &mut Conn, scope: &Scope, spaces: Option<&[i64]>) -> Result<Diagnostics, DbError> {
    let mut d = Diagnostics::default();
    let mut notices = Vec::new();
    for Stopped { name, has_address, .. } in breakers(&mut *conn, scope).await? {
        notices.push(notice::sentence(&name, has_address));
        if name == "embedding" {
            // The index is stopped even where nobody tried it and nothing failed (requirement P24).
            d.because("stopped");
        }
        d.unavailable.insert(name);
    }
    d.notice = (!notices.is_empty()).then(|| notices.join(" "));

    let items: Vec<Items> = sqlx::query_as(sql!("diagnostics/items"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(spaces)
        .bind(FRESHNESS_SLO.as_secs_f64())
        .fetch_all(conn)
        .await?;
    for i in items {
        if i.code == "fresh" {
            d.pending = i.count;
        } else {
            d.degraded = true;
            // Seconds since a row was made: far below 2^53, and a fraction of one tells nobody anything.
            #[allow(clippy::cast_possible_truncation)]
            let oldest_seconds = i.oldest_seconds.map(|s| s as i64);
            d.reasons.push(Reason {
                code: i.code,
                count: Some(i.count),
                oldest_seconds,
            });
        }
    }
    Ok(d)
}

/// A capability that is off for this caller.
#[derive(Clone, Debug, FromRow)]
pub struct Stopped {
    pub name: String,
    pub since: DateTime<Utc>,
    /// Whether the caller has an address that a mail can go to.
    pub has_address: bool,
}

/// Capabilities that are off for this caller.
///
/// # Errors
/// When the database does not answer.
pub async fn breakers(conn: &mut Conn, scope: &Scope) -> Result<Vec<Stopped>, DbError> {
    sqlx::query_as(sql!("diagnostics/breakers"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .fetch_all(conn)
        .await
}

/// Whether a mail can go to this caller.
///
/// # Errors
/// When the database does not answer.
pub async fn has_address(conn: &mut Conn, scope: &Scope) -> Result<bool, DbError> {
    sqlx::query_scalar(sql!("diagnostics/has_address"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .fetch_one(conn)
        .await
}

/// What stands between a question and its vector now, as a reason's code; none: ask. A backoff that ends within `patience`
/// is no obstacle.
///
/// # Errors
/// When the database does not answer.
pub async fn obstacle(conn: &mut Conn, scope: &Scope, patience: Duration) -> Result<Option<String>, DbError> {
    sqlx::query_scalar(sql!("diagnostics/gate"))
        .bind(scope.tenant_id())
        .bind(WORKER_ALIVE.as_secs_f64())
        .bind(patience.as_secs_f64())
        .fetch_one(conn)
        .await
}

/// How many blocks in these Spaces have vectors of another model than the question's; "1,000" means "many".
///
/// # Errors
/// When the database does not answer.
pub async fn other_models(conn: &mut Conn, scope: &Scope, spaces: Option<&[i64]>, model: &str) -> Result<i64, DbError> {
    sqlx::query_scalar(sql!("diagnostics/other_models"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(spaces)
        .bind(model)
        .fetch_one(conn)
        .await
}

/// Whether a live worker would take up what is handed in now.
///
/// # Errors
/// When the database does not answer.
pub async fn extracting(conn: &mut Conn) -> Result<bool, DbError> {
    sqlx::query_scalar(sql!("diagnostics/extracting"))
        .bind(WORKER_ALIVE.as_secs_f64())
        .fetch_one(conn)
        .await
}

/// One thing that is less than whole, for the house and not for a caller: no tenant is named.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct Trouble {
    /// `stopped`: a breaker is off. `refused`: an endpoint is off because it refused us. `outage`: an endpoint does not answer and is asked
    /// again by itself. `no_worker`: nobody alive takes a kind. `no_mail`: notices wait and nobody alive sends mail.
    pub code: String,
    pub capability: Option<String>,
    /// None where it is a tenant's own.
    pub endpoint: Option<String>,
    pub kind: Option<String>,
    /// How many tenants it is about alone; 0: everybody.
    pub tenants: i64,
    /// Since when, where that is known.
    pub seconds: Option<f64>,
}

/// What is less than whole, over all tenants, in one statement. Empty: all well. Needs the watch's role or the owner's.
///
/// # Errors
/// When the database does not answer or is not migrated.
pub async fn health(db: &Db) -> Result<Vec<Trouble>, DbError> {
    sqlx::query_as(sql!("diagnostics/health"))
        .bind(WORKER_ALIVE.as_secs_f64())
        .fetch_all(&db.pool)
        .await
}

/// Whether the house stands in this database.
///
/// # Errors
/// When the database does not answer, or does not know the role.
pub async fn migrated(db: &Db) -> Result<bool, DbError> {
    sqlx::query_scalar(sql!("diagnostics/migrated")).fetch_one(&db.pool).await
}

/// Live workers by kind.
///
/// # Errors
/// When the database does not answer.
pub async fn workers(db: &Db) -> Result<Vec<(String, i64)>, DbError> {
    sqlx::query_as(sql!("diagnostics/workers"))
        .bind(WORKER_ALIVE.as_secs_f64())
        .fetch_all(&db.pool)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once() {
        let mut d = Diagnostics::default();
        d.because("stopped");
        d.because("stopped");
        assert!(d.degraded);
        assert_eq!(d.reasons.len(), 1);
    }
}
