//! What was handed in.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use queue_schema::document::{self, DocumentRow};
use queue_schema::notice;
use queue_schema::{Db, tenant::Scope};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::App;
use crate::auth::Caller;
use crate::error::{ApiError, ErrorBody};
use crate::input::{self, Page, Query};

const STATUSES: [&str; 5] = ["pending", "processing", "processed", "empty", "failed"];

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    pub id: String,
    /// Always `upload`.
    pub source_id: String,
    pub content_type: String,
    /// What reads it: `text`, `pdf`, `image` or `other`.
    pub plugin: String,
    /// pending, processing, processed, empty, failed
    pub status: String,
    pub created_at: DateTime<Utc>,
    pub title: String,
    pub bytes: i64,
    /// Pieces that can be found.
    pub memory_count: i64,
    /// Of these, the ones that can be found by their words but not yet by meaning.
    pub pending_count: i64,
    /// A sentence for a person, when what is still to do is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_count: Option<i32>,
    pub space_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    #[schema(value_type = Object)]
    pub metadata: Value,
    pub mine: bool,
    /// A fixed sentence, never a provider's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processed_at: Option<DateTime<Utc>>,
}

fn show(d: DocumentRow, scope: &Scope) -> Document {
    let plugin = match d.media_type.as_str() {
        "application/pdf" => "pdf",
        t if t.starts_with("text/") => "text",
        t if t.starts_with("image/") => "image",
        _ => "other",
    };
    Document {
        id: d.id.to_string(),
        source_id: "upload".into(),
        plugin: plugin.into(),
        content_type: d.media_type,
        status: d.status,
        created_at: d.created_at,
        title: d.title,
        bytes: d.byte_count,
        memory_count: d.block_count,
        notice: d
            .stopped
            .filter(|_| d.pending_count > 0)
            .map(|c| notice::sentence(&c, d.has_address)),
        pending_count: d.pending_count,
        page_count: d.page_count,
        space_id: d.space_id.to_string(),
        conversation_id: d.conversation,
        metadata: d.metadata,
        mine: d.user_id == scope.user_id(),
        error: d.error,
        processed_at: d.processed_at,
    }
}

/// Documents in your Spaces, newest first.
#[utoipa::path(get, path = "/api/v1/documents", tag = "documents", security(("bearer" = [])),
    params(("limit" = Option<usize>, Query), ("cursor" = Option<String>, Query), ("status" = Option<Vec<String>>, Query)),
    responses((status = 200, body = Page<Document>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody)))]
pub async fn list(State(app): State<Arc<App>>, Caller(scope): Caller, RawQuery(query): RawQuery) -> Result<Json<Page<Document>>, ApiError> {
    let query = Query::parse(query.as_deref())?;
    let limit = query.number("limit", 20, 1, 100)?;
    let status = query.all(&["status"]);
    if let Some(bad) = status.iter().find(|s| !STATUSES.contains(&s.as_str())) {
        return Err(ApiError::invalid("status", format!("{bad:?} is none of {}", STATUSES.join(", "))));
    }
    let mut tx = scope.begin(&app.db).await?;
    let rows = document::list(&mut tx, &scope, &status, query.before()?, i64::try_from(limit + 1).unwrap_or(101)).await?;
    Ok(Json(Page::cut(rows, limit, |d| d.id, |d| show(d, &scope))))
}

/// One document.
#[utoipa::path(get, path = "/api/v1/documents/{id}", tag = "documents", security(("bearer" = [])), params(("id" = String, Path)),
    responses((status = 200, body = Document), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn get(State(app): State<Arc<App>>, Caller(scope): Caller, Path(id): Path<String>) -> Result<Json<Document>, ApiError> {
    let id = input::id("document", &id)?;
    let mut tx = scope.begin(&app.db).await?;
    let found = document::find(&mut tx, &scope, id)
        .await?
        .ok_or_else(|| ApiError::not_found("there is no such document"))?;
    Ok(Json(show(found, &scope)))
}

/// Takes a document of yours away, with all that was made of it.
#[utoipa::path(delete, path = "/api/v1/documents/{id}", tag = "documents", security(("bearer" = [])), params(("id" = String, Path)),
    responses((status = 204), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn delete(State(app): State<Arc<App>>, Caller(scope): Caller, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    let id = input::id("document", &id)?;
    let mut tx = scope.begin(&app.db).await?;
    let keys = document::delete(&mut tx, &scope, id)
        .await?
        .ok_or_else(|| ApiError::not_found("there is no such document of yours"))?;
    Db::commit(tx).await?;
    for key in keys {
        // The row is gone, so what stays behind is an orphan and is collected.
        if let Err(error) = app.blobs.delete(&key).await {
            tracing::debug!(%error, "a blob is left for the collector");
        }
    }
    Ok(StatusCode::NO_CONTENT)
}
