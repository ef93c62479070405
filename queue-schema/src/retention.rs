//! What may go, and when. Waiting, held, parked and dead work never expires (decision B54).

use std::time::Duration;

use crate::{Db, DbError};

/// How long things stay.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// Finished jobs and attempts (B54: 30 days).
    pub done: Duration,
    /// Idempotency keys (B49: 24 h).
    pub keys: Duration,
    /// A blob that no row names (B50: never younger than 24 h).
    pub orphan_blobs: Duration,
}

impl Default for Keep {
    fn default() -> Self {
        let day = Duration::from_secs(86_400);
        Self {
            done: day * 30,
            keys: day,
            orphan_blobs: day,
        }
    }
}

/// Deletes what is past its time, in slices of 10,000 rows so that no statement holds locks for long; returns rows deleted.
///
/// # Errors
/// When a statement did not run; the next round goes on.
pub async fn sweep(db: &Db, keep: &Keep) -> Result<u64, DbError> {
    let mut total = 0;
    for (statement, age) in [
        (sql!("retention/done"), keep.done),
        (sql!("retention/attempts"), keep.done),
        (sql!("retention/keys"), keep.keys),
        (sql!("retention/answers"), Duration::from_secs(300)),
        (sql!("retention/question_vectors"), Duration::from_secs(7 * 86_400)),
        (sql!("retention/questions"), Duration::from_secs(300)),
        (sql!("retention/workers"), Duration::from_secs(86_400)),
    ] {
        loop {
            let n = sqlx::query(statement)
                .bind(age.as_secs_f64())
                .execute(&db.pool)
                .await?
                .rows_affected();
            total += n;
            if n < 10_000 {
                break;
            }
        }
    }
    Ok(total)
}

/// Of these blob keys, the ones that no document or page names.
///
/// # Errors
/// When the database does not answer.
pub async fn orphans(db: &Db, keys: &[String]) -> Result<Vec<String>, DbError> {
    sqlx::query_scalar(sql!("retention/orphans")).bind(keys).fetch_all(&db.pool).await
}

/// Keys of blobs whose rows were deleted (decision B50), at most `limit`.
///
/// # Errors
/// When the database does not answer.
pub async fn dropped(db: &Db, limit: i64) -> Result<Vec<String>, DbError> {
    sqlx::query_scalar(sql!("retention/dropped")).bind(limit).fetch_all(&db.pool).await
}

/// These are gone from the store.
///
/// # Errors
/// When the database does not answer; then they are deleted once more, which does nothing.
pub async fn forget_dropped(db: &Db, keys: &[String]) -> Result<(), DbError> {
    sqlx::query(sql!("retention/forget_dropped"))
        .bind(keys)
        .execute(&db.pool)
        .await
        .map(|_| ())
}
