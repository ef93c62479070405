//! Work under way, visible, so that "nothing has appeared yet" can be told from "it failed".

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::HeaderMap;
use chrono::{DateTime, Utc};
use queue_schema::document::{self, DeadJob, Request, RequestFilter};
use queue_schema::outcome::RetryClass;
use queue_schema::{Db, JobKind, diagnostics, job, notice};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::App;
use crate::auth::Caller;
use crate::error::{ApiError, ErrorBody};
use crate::input::{self, Page, Pieces, Query};

const STATUSES: [&str; 5] = ["queued", "running", "completed", "failed", "dead"];
/// The largest body of a replay.
const MAX_BODY: u64 = 16 << 10;

/// A request as its asker sees it: the first job, with all that followed from it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: String,
    /// queued, running, completed, failed, dead
    pub status: String,
    pub attempts: i32,
    pub queued_at: DateTime<Utc>,
    /// The document it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject_id: Option<String>,
    /// A fixed sentence, with what is wrong with the file where that is why; never a provider's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// 0 to 1, once it is known how much there is to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<DateTime<Utc>>,
    /// What it waits behind, when something was stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Hold {
    pub capability: String,
    pub since: DateTime<Utc>,
    pub notice: String,
}

/// The fixed sentence of a class that we know.
fn sentence(class: Option<&str>) -> Option<String> {
    class.and_then(RetryClass::parse).map(|c| c.sentence().to_owned())
}

/// The class's sentence, and what exactly is wrong with the file where our own reader says so: "cannot be read" alone would
/// leave its owner to guess.
fn reason(class: Option<&str>, detail: Option<&str>) -> Option<String> {
    let said = sentence(class)?;
    Some(match detail {
        Some(detail) => format!("{} ({detail}).", said.trim_end_matches('.')),
        None => said,
    })
}

fn show(r: Request, has_address: bool) -> Job {
    let ended_badly = matches!(r.status.as_str(), "failed" | "dead");
    #[allow(clippy::cast_precision_loss)] // a document has fewer than 2^53 pages
    let share = |done: i64, all: i64| done as f64 / all as f64;
    let progress = match r.status.as_str() {
        "completed" => Some(1.0),
        "running" | "queued" if r.done_count > 0 => Some(share(r.done_count, r.part_count.max(1))),
        _ => None,
    };
    let hold = r.hold.zip(r.hold_since).map(|(capability, since)| Hold {
        notice: notice::sentence(&capability, has_address),
        capability,
        since,
    });
    Job {
        id: r.id.to_string(),
        kind: r.kind,
        attempts: r.attempts,
        queued_at: r.created_at,
        subject_id: r.document_id.map(|d| d.to_string()),
        error: if ended_badly {
            reason(r.class.as_deref(), r.detail.as_deref())
        } else {
            None
        },
        progress,
        started_at: r.started_at,
        finished_at: r.finished_at,
        hold,
        status: r.status,
    }
}

/// What you asked for, newest first.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", security(("bearer" = [])),
    params(("limit" = Option<usize>, Query), ("cursor" = Option<String>, Query), ("status" = Option<Vec<String>>, Query), ("type" = Option<String>, Query)),
    responses((status = 200, body = Page<Job>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody)))]
pub async fn list(State(app): State<Arc<App>>, Caller(scope): Caller, RawQuery(query): RawQuery) -> Result<Json<Page<Job>>, ApiError> {
    let query = Query::parse(query.as_deref())?;
    let limit = query.number("limit", 20, 1, 100)?;
    let status = query.all(&["status"]);
    if let Some(bad) = status.iter().find(|s| !STATUSES.contains(&s.as_str())) {
        return Err(ApiError::invalid("status", format!("{bad:?} is none of {}", STATUSES.join(", "))));
    }
    let filter = RequestFilter {
        status,
        kind: query.one("type")?.map(str::to_owned),
        before: query.before()?,
        limit: i64::try_from(limit + 1).unwrap_or(101),
    };
    let mut tx = scope.begin(&app.db).await?;
    let rows = document::requests(&mut tx, &scope, &filter).await?;
    let has_address = diagnostics::has_address(&mut tx, &scope).await?;
    Ok(Json(Page::cut(rows, limit, |r| r.id, |r| show(r, has_address))))
}

/// One job of yours.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", tag = "jobs", security(("bearer" = [])), params(("id" = String, Path)),
    responses((status = 200, body = Job), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn get(State(app): State<Arc<App>>, Caller(scope): Caller, Path(id): Path<String>) -> Result<Json<Job>, ApiError> {
    let id = input::id("job", &id)?;
    let mut tx = scope.begin(&app.db).await?;
    let found = document::request(&mut tx, &scope, id)
        .await?
        .ok_or_else(|| ApiError::not_found("there is no such job"))?;
    let has_address = diagnostics::has_address(&mut tx, &scope).await?;
    Ok(Json(show(found, has_address)))
}

/// Work that gave up or was set aside.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: String,
    /// `dead`, or `failed` when it was set aside for a person.
    pub status: String,
    pub attempts: i32,
    pub queued_at: DateTime<Utc>,
    pub failed_at: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject_id: Option<String>,
    /// The job of the request it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// False: trying again will most likely end the same way; a replay needs `force`.
    pub retryable: bool,
}

fn retryable(class: Option<&str>) -> bool {
    !matches!(
        class.and_then(RetryClass::parse),
        Some(RetryClass::Crash | RetryClass::BadInput | RetryClass::Oversize)
    )
}

fn show_dead(d: DeadJob) -> DeadLetter {
    DeadLetter {
        id: d.id.to_string(),
        kind: d.kind,
        status: if d.status == "dead" { "dead".into() } else { "failed".into() },
        attempts: d.attempts,
        queued_at: d.created_at,
        failed_at: d.ended_at,
        subject_id: d.document_id.map(|i| i.to_string()),
        root_id: d.root_id.map(|i| i.to_string()),
        error: sentence(d.class.as_deref()),
        retryable: retryable(d.class.as_deref()),
    }
}

/// Your work that stopped, newest first.
#[utoipa::path(get, path = "/api/v1/jobs/dead", tag = "jobs", security(("bearer" = [])),
    params(("limit" = Option<usize>, Query), ("cursor" = Option<String>, Query), ("type" = Option<String>, Query)),
    responses((status = 200, body = Page<DeadLetter>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody)))]
pub async fn dead(
    State(app): State<Arc<App>>,
    Caller(scope): Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<DeadLetter>>, ApiError> {
    let query = Query::parse(query.as_deref())?;
    let limit = query.number("limit", 20, 1, 100)?;
    let mut tx = scope.begin(&app.db).await?;
    let rows = document::dead(
        &mut tx,
        &scope,
        query.one("type")?,
        query.before()?,
        i64::try_from(limit + 1).unwrap_or(101),
    )
    .await?;
    Ok(Json(Page::cut(rows, limit, |d| d.id, show_dead)))
}

/// Why, and whether even where it most likely will not help.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[allow(dead_code)] // describes the body; it is read member by member, so that a refusal can name the member
pub struct Replay {
    pub reason: Option<String>,
    pub force: Option<bool>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replayed {
    /// Always `queued`.
    pub status: String,
    pub job_id: String,
    /// Jobs made due again: the one named, or the parts of its request that had given up.
    pub job_ids: Vec<String>,
}

/// Puts given-up work back in the queue, with a full budget; the history stays.
#[utoipa::path(post, path = "/api/v1/jobs/dead/{id}/replay", tag = "jobs", security(("bearer" = [])), params(("id" = String, Path)),
    request_body = Replay,
    responses((status = 202, body = Replayed), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
              (status = 409, body = ErrorBody)))]
pub async fn replay(
    State(app): State<Arc<App>>,
    Caller(scope): Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<(axum::http::StatusCode, Json<Replayed>), ApiError> {
    let id = input::id("job", &id)?;
    let body = Pieces::of(body, &headers, MAX_BODY, &app.config).await?.whole().await?;
    let request = if body.is_empty() {
        serde_json::Map::new()
    } else {
        input::json_object(&body)?
    };
    let reason = match request.get("reason") {
        None | Some(Value::Null) => "asked for through the API".to_owned(),
        Some(Value::String(s)) => input::name("reason", s)?,
        Some(_) => return Err(ApiError::invalid("reason", "must be a text")),
    };
    let force = match request.get("force") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(b)) => *b,
        Some(_) => return Err(ApiError::invalid("force", "must be true or false")),
    };

    let mut tx = scope.begin(&app.db).await?;
    let parts = document::dead_parts(&mut tx, &scope, id).await?;
    if parts.is_empty() {
        return Err(ApiError::not_found("there is no such given-up job"));
    }
    let ids: Vec<i64> = parts.iter().map(|p| p.id).collect();
    let actor = format!("user {}", scope.user_id());
    let hit = job::retry(&mut tx, &ids, &actor, &reason, force).await?;
    if hit.is_empty() {
        let why = parts
            .iter()
            .find(|p| !retryable(p.class.as_deref()))
            .and_then(|p| sentence(p.class.as_deref()));
        return Err(ApiError::conflict(match why {
            Some(why) => format!("trying again will most likely end the same way ({why}) Send force: true to try all the same."),
            None => "the same work is already under way".to_owned(),
        }));
    }
    Db::commit(tx).await?;
    for kind in hit.iter().filter_map(|h| JobKind::parse(&h.kind)) {
        app.hinter.wake(kind, kind.lane());
    }
    let job_ids = hit.iter().map(|h| h.id.to_string()).collect();
    Ok((
        axum::http::StatusCode::ACCEPTED,
        Json(Replayed {
            status: "queued".into(),
            job_id: id.to_string(),
            job_ids,
        }),
    ))
}
