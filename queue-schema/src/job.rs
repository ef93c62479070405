//! Work asked for and how it went: enqueue, find, list, cancel, retry.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::FromRow;

use crate::{Conn, Db, DbError, JobKind, Lane, notice};

/// A job to be. `item` makes it unique while open (decision D11).
#[derive(Clone, Debug)]
pub struct NewJob {
    pub kind: JobKind,
    pub lane: Lane,
    pub tenant_id: i64,
    pub user_id: Option<i64>,
    pub root_id: Option<i64>,
    /// Sensitivity, 0..=3.
    pub level: i16,
    pub item_id: Option<i64>,
    pub item_version: i32,
    pub payload: serde_json::Value,
    /// Not before this long from now, by the database's clock.
    pub delay: Duration,
    /// Charged attempts after which it is dead.
    pub max_charged: i32,
}

impl NewJob {
    #[must_use]
    pub fn new(kind: JobKind, tenant_id: i64) -> Self {
        Self {
            kind,
            lane: kind.lane(),
            tenant_id,
            user_id: None,
            root_id: None,
            level: 1,
            item_id: None,
            item_version: 1,
            payload: serde_json::Value::Object(serde_json::Map::new()),
            delay: Duration::ZERO,
            max_charged: MAX_CHARGED,
        }
    }
}

/// The default budget (decision B-0).
pub const MAX_CHARGED: i32 = 5;

/// The id of the line for this gate, made when first needed.
///
/// # Errors
/// When the database does not answer.
pub async fn line(conn: &mut Conn, kind: JobKind, lane: Lane, tenant_id: i64, level: i16) -> Result<i64, DbError> {
    loop {
        let id: Option<i64> = sqlx::query_scalar(sql!("line/ensure"))
            .bind(kind.as_str())
            .bind(lane.as_str())
            .bind(tenant_id)
            .bind(level)
            .bind(kind.capability())
            .fetch_optional(&mut *conn)
            .await?;
        if let Some(id) = id {
            return Ok(id);
        }
    }
}

/// Enqueues one job in the caller's transaction. None: the same work is already open.
///
/// # Errors
/// When the database does not answer.
pub async fn enqueue(conn: &mut Conn, job: &NewJob) -> Result<Option<i64>, DbError> {
    let ids = enqueue_many(conn, job, &[(job.item_id, job.item_version, job.payload.clone())]).await?;
    Ok(ids.first().copied())
}

/// Enqueues many in the caller's transaction, in one statement: jobs like `template`, one per (item, version, payload). Returns the
/// ids of those that were new; work that is already open is left alone. Work that a closed breaker holds from its birth makes its
/// person's notice in the same transaction (decision B24).
///
/// # Errors
/// When the database does not answer.
pub async fn enqueue_many(
    conn: &mut Conn,
    template: &NewJob,
    items: &[(Option<i64>, i32, serde_json::Value)],
) -> Result<Vec<i64>, DbError> {
    let line = line(&mut *conn, template.kind, template.lane, template.tenant_id, template.level).await?;
    let ids: Vec<i64> = sqlx::query_scalar(sql!("job/enqueue"))
        .bind(line)
        .bind(template.tenant_id)
        .bind(template.user_id)
        .bind(template.root_id)
        .bind(template.kind.as_str())
        .bind(template.delay.as_secs_f64())
        .bind(template.max_charged)
        .bind(items.iter().map(|i| i.0).collect::<Vec<_>>())
        .bind(items.iter().map(|i| i.1).collect::<Vec<_>>())
        .bind(items.iter().map(|i| &i.2).collect::<Vec<_>>())
        .fetch_all(&mut *conn)
        .await?;
    if let (Some(capability), Lane::Batch, Some(user_id), false) =
        (template.kind.capability(), template.lane, template.user_id, ids.is_empty())
    {
        notice::of_held(conn, capability, template.tenant_id, user_id).await?;
    }
    Ok(ids)
}

/// Enqueues one job per item, like `template`; returns how many were new.
pub(crate) async fn enqueue_items(conn: &mut Conn, template: &NewJob, items: &[i64]) -> Result<usize, DbError> {
    let items: Vec<_> = items.iter().map(|id| (Some(*id), 1, template.payload.clone())).collect();
    Ok(enqueue_many(conn, template, &items).await?.len())
}

/// Enqueues many jobs of one kind by COPY, in the caller's transaction: payloads only, no items, so nothing can conflict.
/// Items go through [`enqueue_many`], whose index decides. Owner's role only: Postgres does not COPY into a table under row-level
/// security, so workers and the API use [`enqueue_many`] too.
///
/// # Errors
/// When the database does not answer or refuses a payload.
pub async fn enqueue_bulk(
    conn: &mut Conn,
    template: &NewJob,
    payloads: impl Iterator<Item = serde_json::Value> + Send,
) -> Result<u64, DbError> {
    let line = line(&mut *conn, template.kind, template.lane, template.tenant_id, template.level).await?;
    let mut copy = conn.copy_in_raw_jobs().await?;
    let mut buf = Vec::with_capacity(1 << 16);
    let opt = |v: Option<i64>| v.map_or_else(|| "\\N".to_owned(), |n| n.to_string());
    let prefix = format!(
        "{line}\t{}\t{}\t{}\t{}\t{}\t",
        template.tenant_id,
        opt(template.user_id),
        opt(template.root_id),
        template.kind.as_str(),
        template.max_charged
    );
    for payload in payloads {
        buf.extend_from_slice(prefix.as_bytes());
        copy_escape(&mut buf, &payload.to_string());
        buf.push(b'\n');
        if buf.len() >= (1 << 16) - 4096 {
            copy.send(std::mem::take(&mut buf)).await?;
            buf.reserve(1 << 16);
        }
    }
    copy.send(buf).await?;
    copy.finish().await
}

/// COPY's text format escapes backslash, tab, newline and return.
fn copy_escape(out: &mut Vec<u8>, text: &str) {
    for b in text.bytes() {
        match b {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => out.push(b),
        }
    }
}

trait CopyJobs {
    async fn copy_in_raw_jobs(&mut self) -> Result<sqlx::postgres::PgCopyIn<&mut Conn>, DbError>;
}

impl CopyJobs for Conn {
    async fn copy_in_raw_jobs(&mut self) -> Result<sqlx::postgres::PgCopyIn<&mut Conn>, DbError> {
        self.copy_in_raw(sql!("job/copy")).await
    }
}

/// A job as it stands, wherever its row lives now.
#[derive(Clone, Debug, FromRow, serde::Serialize)]
pub struct JobRow {
    pub id: i64,
    pub kind: String,
    pub lane: Option<String>,
    pub tenant_id: i64,
    pub user_id: Option<i64>,
    pub root_id: Option<i64>,
    pub item_id: Option<i64>,
    pub item_version: i32,
    /// waiting, running, parked, dead; done, cancelled, superseded once it left the live table.
    pub status: String,
    pub attempts: i32,
    pub forgiven: i32,
    pub item_fails: i32,
    pub crashes: i32,
    /// Waiting: due; running: the lease's end.
    pub avail_at: DateTime<Utc>,
    pub claimed_by: Option<i64>,
    pub claimed_at: Option<DateTime<Utc>>,
    pub started_at: Option<DateTime<Utc>>,
    pub cancel_at: Option<DateTime<Utc>>,
    pub last_class: Option<String>,
    pub last_cause: Option<String>,
    /// For operators: sanitised, bounded, never shown to API consumers.
    pub last_error: Option<String>,
    pub created_at: DateTime<Utc>,
    pub finished_at: Option<DateTime<Utc>>,
    /// The capability whose closed breaker holds it.
    pub hold: Option<String>,
}

/// # Errors
/// When the database does not answer.
pub async fn find(conn: &mut Conn, id: i64) -> Result<Option<JobRow>, DbError> {
    sqlx::query_as(sql!("job/find")).bind(id).fetch_optional(conn).await
}

/// Which live jobs to list; newest first.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub status: Option<String>,
    pub kind: Option<String>,
    pub before: Option<i64>,
    pub held: Option<bool>,
    pub user_id: Option<i64>,
    pub limit: i64,
}

/// # Errors
/// When the database does not answer.
pub async fn list(conn: &mut Conn, f: &Filter) -> Result<Vec<JobRow>, DbError> {
    sqlx::query_as(sql!("job/list"))
        .bind(&f.status)
        .bind(&f.kind)
        .bind(f.before)
        .bind(f.held)
        .bind(f.user_id)
        .bind(f.limit)
        .fetch_all(conn)
        .await
}

/// Finished jobs, newest first; `status` and `held` of the filter do not apply.
///
/// # Errors
/// When the database does not answer.
pub async fn list_done(conn: &mut Conn, f: &Filter) -> Result<Vec<JobRow>, DbError> {
    sqlx::query_as(sql!("job/list_done"))
        .bind(&f.kind)
        .bind(f.before)
        .bind(f.user_id)
        .bind(f.limit)
        .fetch_all(conn)
        .await
}

/// One failed attempt.
#[derive(Clone, Debug, FromRow, serde::Serialize)]
pub struct Attempt {
    pub attempt: i32,
    pub class: String,
    pub cause: Option<String>,
    pub error: Option<String>,
    pub forgiven: bool,
    pub worker: Option<i64>,
    pub claimed_at: Option<DateTime<Utc>>,
    pub started_at: Option<DateTime<Utc>>,
    pub ended_at: DateTime<Utc>,
}

/// # Errors
/// When the database does not answer.
pub async fn attempts(conn: &mut Conn, id: i64) -> Result<Vec<Attempt>, DbError> {
    sqlx::query_as(sql!("job/attempts")).bind(id).fetch_all(conn).await
}

/// How the rest of a request stands, seen from its first job. Embedding does not count as open: a document has landed
/// when it can be found by its words (decision B26).
#[derive(Clone, Copy, Debug, Default, FromRow)]
pub struct Children {
    pub open_count: i64,
    pub running_count: i64,
    pub failed_count: i64,
    pub embed_count: i64,
}

/// # Errors
/// When the database does not answer.
pub async fn open_children(conn: &mut Conn, root_id: i64) -> Result<Children, DbError> {
    sqlx::query_as(sql!("job/open_children")).bind(root_id).fetch_one(conn).await
}

/// A job that followed from a request's first one.
#[derive(Clone, Debug, FromRow, serde::Serialize)]
pub struct Child {
    pub id: i64,
    pub kind: String,
    /// As in [`JobRow::status`].
    pub status: String,
    pub class: Option<String>,
    pub attempts: i32,
    pub created_at: DateTime<Utc>,
    pub finished_at: Option<DateTime<Utc>>,
    /// The capability whose closed breaker holds it.
    pub hold: Option<String>,
}

/// What followed from a request's first job, oldest first.
///
/// # Errors
/// When the database does not answer.
pub async fn children(conn: &mut Conn, root_id: i64, limit: i64) -> Result<Vec<Child>, DbError> {
    sqlx::query_as(sql!("job/children")).bind(root_id).bind(limit).fetch_all(conn).await
}

/// Finished non-embed follow-ups of a request: the numerator of its progress.
///
/// # Errors
/// When the database does not answer.
pub async fn done_children(conn: &mut Conn, root_id: i64) -> Result<i64, DbError> {
    sqlx::query_scalar(sql!("job/done_children")).bind(root_id).fetch_one(conn).await
}

/// A job that was made due again.
#[derive(Clone, Debug, FromRow, serde::Serialize)]
pub struct Retried {
    pub id: i64,
    pub kind: String,
    pub item_id: Option<i64>,
}

/// Makes jobs due now with a full budget; the history stays (decision B13). Without `force`, dead ones that cannot succeed by
/// being tried again (crash, bad input, oversize) are left alone. What is not returned was not touched.
///
/// # Errors
/// When the database does not answer.
pub async fn retry(conn: &mut Conn, ids: &[i64], actor: &str, reason: &str, force: bool) -> Result<Vec<Retried>, DbError> {
    let hit: Vec<Retried> = sqlx::query_as(sql!("job/retry"))
        .bind(ids)
        .bind(actor)
        .bind(reason)
        .bind(force)
        .fetch_all(&mut *conn)
        .await?;
    for r in &hit {
        // A page or document that said "failed" is under way again.
        if let (Some(item), Some(kind)) = (r.item_id, JobKind::parse(&r.kind)) {
            match kind {
                JobKind::Extract => {
                    sqlx::query(sql!("document/reopen")).bind(item).execute(&mut *conn).await?;
                }
                JobKind::Ocr => {
                    sqlx::query(sql!("page/reopen")).bind(item).execute(&mut *conn).await?;
                }
                JobKind::Notice => {
                    sqlx::query(sql!("notice/reopen")).bind(item).execute(&mut *conn).await?;
                }
                JobKind::Embed | JobKind::Question | JobKind::Retention | JobKind::FanOut | JobKind::Noop => {}
            }
        }
    }
    Ok(hit)
}

/// A job whose document was given a place again.
#[derive(Clone, Debug, FromRow, serde::Serialize)]
pub struct Moved {
    pub id: i64,
    pub kind: String,
    pub tenant_id: i64,
    /// How sensitive it is there: the greater of its own level and the Space's floor.
    pub level: i16,
    pub document_id: i64,
    pub space_id: i64,
}

/// Gives the documents behind these jobs a place again and makes the jobs that waited for one due (decision B27). `space`: an id or a
/// name within the document's own tenant; its owner must be a member of it. A document that has its place keeps it. What is not returned was
/// not moved; [`not_moved`] says why.
///
/// # Errors
/// When the database does not answer.
pub async fn move_to(conn: &mut Conn, ids: &[i64], space: &str, actor: &str, reason: &str) -> Result<Vec<Moved>, DbError> {
    let moved: Vec<Moved> = sqlx::query_as(sql!("job/move")).bind(ids).bind(space).fetch_all(&mut *conn).await?;
    for m in &moved {
        let Some(kind) = JobKind::parse(&m.kind) else { continue };
        let line = line(&mut *conn, kind, kind.lane(), m.tenant_id, m.level).await?;
        sqlx::query(sql!("job/set_line")).bind(m.id).bind(line).execute(&mut *conn).await?;
    }
    let all: Vec<i64> = moved.iter().map(|m| m.id).collect();
    sqlx::query(sql!("job/moved"))
        .bind(&all)
        .bind(actor)
        .bind(reason)
        .execute(&mut *conn)
        .await?;
    retry(conn, &all, actor, reason, false).await?;
    Ok(moved)
}

/// Why a job's document was not given a place.
#[derive(Clone, Debug, FromRow, serde::Serialize)]
pub struct NotMoved {
    pub id: i64,
    /// None: there is no live job of that id.
    pub kind: Option<String>,
    pub status: Option<String>,
    /// Its document has no Space, or none that its owner may write to.
    pub lacks_place: bool,
    pub tenant: Option<String>,
    pub owner: Option<String>,
    /// The Space of that name or id in its tenant.
    pub space: Option<String>,
    /// Whether its owner is a member there.
    pub member: bool,
}

/// Why [`move_to`] left these jobs alone, in their order.
///
/// # Errors
/// When the database does not answer.
pub async fn not_moved(conn: &mut Conn, ids: &[i64], space: &str) -> Result<Vec<NotMoved>, DbError> {
    sqlx::query_as(sql!("job/not_moved")).bind(ids).bind(space).fetch_all(conn).await
}

/// Work that waits for somebody to say where it belongs.
#[derive(Clone, Debug, FromRow, serde::Serialize)]
pub struct PlaceGone {
    pub kind: String,
    pub count: i64,
    /// The first five.
    pub ids: Vec<i64>,
}

/// # Errors
/// When the database does not answer.
pub async fn place_gone(db: &Db) -> Result<Vec<PlaceGone>, DbError> {
    sqlx::query_as(sql!("job/place_gone")).fetch_all(&db.pool).await
}

/// A job that was cancelled, or, when `running`, asked to stop.
#[derive(Clone, Copy, Debug, FromRow, serde::Serialize)]
pub struct Cancelled {
    pub id: i64,
    pub running: bool,
}

/// # Errors
/// When the database does not answer.
pub async fn cancel(conn: &mut Conn, ids: &[i64], actor: &str, reason: &str) -> Result<Vec<Cancelled>, DbError> {
    sqlx::query_as(sql!("job/cancel"))
        .bind(ids)
        .bind(actor)
        .bind(reason)
        .fetch_all(conn)
        .await
}

/// The gauges of decision B52, for one kind.
#[derive(Clone, Debug, FromRow, serde::Serialize)]
pub struct Counts {
    pub kind: String,
    pub due: i64,
    pub backing_off: i64,
    pub held: i64,
    pub running: i64,
    pub parked: i64,
    pub dead: i64,
    pub oldest_seconds: Option<f64>,
}

/// # Errors
/// When the database does not answer.
pub async fn counts(db: &Db) -> Result<Vec<Counts>, DbError> {
    sqlx::query_as(sql!("job/counts")).fetch_all(&db.pool).await
}
