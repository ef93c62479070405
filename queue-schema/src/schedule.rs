//! Work that comes round: `schedules` rows become jobs when their time has come, once, whoever looks.

use crate::{Conn, Db, DbError, JobKind, Lane};

/// Enqueues what is due and moves each schedule on; returns the kinds that now have work.
///
/// # Errors
/// When the statement did not run; the next look does it.
pub async fn run_due(db: &Db) -> Result<Vec<JobKind>, DbError> {
    let mut tx = db.begin().await?;
    let due: Vec<(String, serde_json::Value)> = sqlx::query_as(sql!("schedule/due")).fetch_all(&mut *tx).await?;
    let mut kinds = Vec::new();
    for (kind, payload) in due {
        // A kind of a newer version stays scheduled; this worker leaves it to one that knows it.
        let Some(kind) = JobKind::parse(&kind) else { continue };
        let tenant = house(&mut tx).await?;
        let job = crate::job::NewJob {
            lane: Lane::Batch,
            payload,
            ..crate::job::NewJob::new(kind, tenant)
        };
        crate::job::enqueue(&mut tx, &job).await?;
        kinds.push(kind);
    }
    tx.commit().await?;
    Ok(kinds)
}

/// The tenant that the house's own work belongs to: the first.
///
/// # Errors
/// When the database does not answer.
pub async fn house_tenant(db: &Db) -> Result<i64, DbError> {
    sqlx::query_scalar(sql!("schedule/house_tenant")).fetch_one(&db.pool).await
}

/// The same, in the caller's transaction.
pub(crate) async fn house(conn: &mut Conn) -> Result<i64, DbError> {
    sqlx::query_scalar(sql!("schedule/house_tenant")).fetch_one(conn).await
}
