//! What a person hands in and what becomes of it, seen from that person: documents, the request each made, and the keys that
//! let a client send the same twice. What a worker writes is in `kind/`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::FromRow;

use crate::job::{self, NewJob};
use crate::tenant::Scope;
use crate::{Conn, DbError, JobKind};

/// A document to be; its bytes are stored already.
#[derive(Clone, Debug)]
pub struct NewDocument {
    pub space_id: i64,
    pub conversation: Option<String>,
    pub title: String,
    pub media_type: String,
    pub byte_count: i64,
    pub sha256: Vec<u8>,
    pub blob_key: String,
    /// Sensitivity, 0..=3; none counts as 3.
    pub level: Option<i16>,
    pub metadata: serde_json::Value,
}

/// A document and the job that will read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub document_id: i64,
    pub job_id: i64,
}

/// Writes the document and enqueues its `extract` job in the caller's transaction; the caller commits and wakes the workers.
///
/// # Errors
/// When the database does not answer, or the Space is not of this tenant.
pub async fn create(conn: &mut Conn, scope: &Scope, new: &NewDocument) -> Result<Accepted, DbError> {
    let (document_id, level): (i64, i16) = sqlx::query_as(sql!("document/create"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(new.space_id)
        .bind(&new.conversation)
        .bind(&new.title)
        .bind(&new.media_type)
        .bind(new.byte_count)
        .bind(&new.sha256)
        .bind(&new.blob_key)
        .bind(new.level)
        .bind(&new.metadata)
        .fetch_one(&mut *conn)
        .await?;
    let job = NewJob {
        user_id: Some(scope.user_id()),
        level,
        item_id: Some(document_id),
        ..NewJob::new(JobKind::Extract, scope.tenant_id())
    };
    // The document is new, so no other work is open for it and the index lets the job in.
    let job_id = job::enqueue(conn, &job).await?.ok_or(DbError::RowNotFound)?;
    Ok(Accepted { document_id, job_id })
}

/// A document as its readers see it.
#[derive(Clone, Debug, FromRow)]
pub struct DocumentRow {
    pub id: i64,
    pub user_id: i64,
    pub space_id: i64,
    pub conversation: Option<String>,
    pub title: String,
    pub media_type: String,
    pub byte_count: i64,
    pub metadata: serde_json::Value,
    /// pending, processing, processed, empty, failed
    pub status: String,
    pub page_count: Option<i32>,
    pub block_count: i64,
    /// Of these, the ones that have no vector yet.
    pub pending_count: i64,
    /// The capability they wait for, when it was stopped.
    pub stopped: Option<String>,
    /// Whether a mail can go to this reader.
    pub has_address: bool,
    pub error: Option<String>,
    pub created_at: DateTime<Utc>,
    pub processed_at: Option<DateTime<Utc>>,
}

/// None: there is no such document in a Space of this user.
///
/// # Errors
/// When the database does not answer.
pub async fn find(conn: &mut Conn, scope: &Scope, id: i64) -> Result<Option<DocumentRow>, DbError> {
    sqlx::query_as(sql!("document/find"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(id)
        .fetch_optional(conn)
        .await
}

/// The documents in this user's Spaces, newest first, with ids below `before`.
///
/// # Errors
/// When the database does not answer.
pub async fn list(conn: &mut Conn, scope: &Scope, status: &[String], before: Option<i64>, limit: i64) -> Result<Vec<DocumentRow>, DbError> {
    sqlx::query_as(sql!("document/list"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind((!status.is_empty()).then_some(status))
        .bind(before)
        .bind(limit)
        .fetch_all(conn)
        .await
}

/// Deletes a document with its pages and blocks; waiting jobs about them go, running ones are asked to stop. Returns the keys
/// of its blobs, to be deleted after the commit: the other way round a failed commit would leave a row without bytes.
/// None: there is no such document, or its owner is somebody else.
///
/// # Errors
/// When the database does not answer.
pub async fn delete(conn: &mut Conn, scope: &Scope, id: i64) -> Result<Option<Vec<String>>, DbError> {
    let owned: Option<i64> = sqlx::query_scalar(sql!("document/lock_own"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?;
    if owned.is_none() {
        return Ok(None);
    }
    let keys = sqlx::query_scalar(sql!("document/blob_keys"))
        .bind(scope.tenant_id())
        .bind(id)
        .fetch_all(&mut *conn)
        .await?;
    sqlx::query(sql!("document/drop_jobs"))
        .bind(scope.tenant_id())
        .bind(id)
        .execute(&mut *conn)
        .await?;
    sqlx::query(sql!("document/delete"))
        .bind(scope.tenant_id())
        .bind(id)
        .execute(conn)
        .await?;
    Ok(Some(keys))
}

/// A job as the person who asked for it sees it: with all that followed from it.
#[derive(Clone, Debug, FromRow)]
pub struct Request {
    pub id: i64,
    pub kind: String,
    /// queued, running, completed, failed, dead (decision B48)
    pub status: String,
    pub attempts: i32,
    /// The document it is about.
    pub document_id: Option<i64>,
    /// Why the worst part of it failed; as in [`crate::outcome::RetryClass`].
    pub class: Option<String>,
    /// What is wrong with the file, for a person, where the class is `bad_input`: that is said by our own reader alone.
    pub detail: Option<String>,
    /// The capability whose closed breaker holds a part of it.
    pub hold: Option<String>,
    pub hold_since: Option<DateTime<Utc>>,
    pub done_count: i64,
    pub part_count: i64,
    pub created_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub finished_at: Option<DateTime<Utc>>,
}

/// Which requests to list; newest first.
#[derive(Clone, Debug, Default)]
pub struct RequestFilter {
    /// In the words of [`Request::status`]; empty for all.
    pub status: Vec<String>,
    pub kind: Option<String>,
    pub before: Option<i64>,
    pub limit: i64,
}

/// What this user asked for: first jobs only, each with the state of what followed from it.
///
/// # Errors
/// When the database does not answer.
pub async fn requests(conn: &mut Conn, scope: &Scope, f: &RequestFilter) -> Result<Vec<Request>, DbError> {
    sqlx::query_as(sql!("document/requests"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(None::<i64>)
        .bind((!f.status.is_empty()).then_some(&f.status))
        .bind(&f.kind)
        .bind(f.before)
        .bind(f.limit)
        .fetch_all(conn)
        .await
}

/// One job of this user, first or following. None: there is no such job, or it is somebody else's.
///
/// # Errors
/// When the database does not answer.
pub async fn request(conn: &mut Conn, scope: &Scope, id: i64) -> Result<Option<Request>, DbError> {
    sqlx::query_as(sql!("document/requests"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(Some(id))
        .bind(None::<Vec<String>>)
        .bind(None::<String>)
        .bind(None::<i64>)
        .bind(1_i64)
        .fetch_optional(conn)
        .await
}

/// A job of this user that gave up or was set aside.
#[derive(Clone, Debug, FromRow)]
pub struct DeadJob {
    pub id: i64,
    pub root_id: Option<i64>,
    pub kind: String,
    /// dead or parked
    pub status: String,
    pub attempts: i32,
    pub document_id: Option<i64>,
    pub class: Option<String>,
    /// When it gave up.
    pub ended_at: DateTime<Utc>,
    pub created_at: DateTime<Utc>,
}

/// # Errors
/// When the database does not answer.
pub async fn dead(conn: &mut Conn, scope: &Scope, kind: Option<&str>, before: Option<i64>, limit: i64) -> Result<Vec<DeadJob>, DbError> {
    sqlx::query_as(sql!("document/dead"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(kind)
        .bind(before)
        .bind(limit)
        .fetch_all(conn)
        .await
}

/// A given-up job with its reason.
#[derive(Clone, Debug, FromRow)]
pub struct DeadPart {
    pub id: i64,
    pub kind: String,
    pub class: Option<String>,
}

/// The given-up jobs behind one id of this user's: that job, and those that followed from it. A person knows a request by
/// its first job, which may be done while one of its pages is dead.
///
/// # Errors
/// When the database does not answer.
pub async fn dead_parts(conn: &mut Conn, scope: &Scope, id: i64) -> Result<Vec<DeadPart>, DbError> {
    sqlx::query_as(sql!("document/dead_parts"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(id)
        .fetch_all(conn)
        .await
}

/// What an idempotency key says.
#[derive(Clone, Debug, PartialEq)]
pub enum Key {
    /// It is new and now ours: write the response with [`keep`] in the same transaction.
    Ours,
    /// The same request was answered so.
    Answered(serde_json::Value),
    /// The key belongs to another request.
    Mismatch,
}

/// How long a key is remembered (decision B49).
pub const KEY_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Takes the key in the caller's transaction. A second request with it waits here, on the index, until the first has
/// committed or rolled back: the losers of a race get the winner's answer and never an error (public case 31).
///
/// # Errors
/// When the database does not answer.
pub async fn take_key(conn: &mut Conn, scope: &Scope, route: &str, key: &str, request_hash: &[u8]) -> Result<Key, DbError> {
    let ours: Option<bool> = sqlx::query_scalar(sql!("idempotency/take"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(route)
        .bind(key)
        .bind(request_hash)
        .bind(KEY_LIFE.as_secs_f64())
        .fetch_optional(&mut *conn)
        .await?;
    if ours.is_some() {
        return Ok(Key::Ours);
    }
    Ok(find_key(conn, scope, route, key, request_hash).await?.unwrap_or(Key::Mismatch))
}

/// What the key says without taking it; none when it is free. Spares a retried upload its second trip to the blob store.
///
/// # Errors
/// When the database does not answer.
pub async fn find_key(conn: &mut Conn, scope: &Scope, route: &str, key: &str, request_hash: &[u8]) -> Result<Option<Key>, DbError> {
    let row: Option<(bool, Option<serde_json::Value>)> = sqlx::query_as(sql!("idempotency/find"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(route)
        .bind(key)
        .bind(request_hash)
        .bind(KEY_LIFE.as_secs_f64())
        .fetch_optional(conn)
        .await?;
    Ok(row.map(|(same, response)| match (same, response) {
        (true, Some(r)) => Key::Answered(r),
        // A committed key without a response cannot be: both are written in one transaction. Refusing is the safe reading.
        _ => Key::Mismatch,
    }))
}

/// Remembers the response under a key that is [`Key::Ours`].
///
/// # Errors
/// When the database does not answer.
pub async fn keep(conn: &mut Conn, scope: &Scope, route: &str, key: &str, response: &serde_json::Value) -> Result<(), DbError> {
    sqlx::query(sql!("idempotency/keep"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(route)
        .bind(key)
        .bind(response)
        .execute(conn)
        .await
        .map(|_| ())
}
