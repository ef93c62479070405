//! Where material is kept.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use queue_schema::tenant;
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::auth::Caller;
use crate::error::{ApiError, ErrorBody};
use crate::input::{Page, Pagination};

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Space {
    pub id: String,
    pub name: String,
    /// Always `user`.
    pub kind: String,
    pub created_at: DateTime<Utc>,
    pub document_count: i64,
}

/// The Spaces that you may read and write, by name; all on one page.
#[utoipa::path(get, path = "/api/v1/spaces", tag = "spaces", security(("bearer" = [])),
    responses((status = 200, body = Page<Space>), (status = 401, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn list(State(app): State<Arc<App>>, Caller(scope): Caller) -> Result<Json<Page<Space>>, ApiError> {
    let mut tx = scope.begin(&app.db).await?;
    let data: Vec<Space> = tenant::spaces(&mut tx, &scope)
        .await?
        .into_iter()
        .map(|s| Space {
            id: s.id.to_string(),
            name: s.name,
            kind: "user".into(),
            created_at: s.created_at,
            document_count: s.document_count,
        })
        .collect();
    let limit = data.len();
    Ok(Json(Page {
        data,
        pagination: Pagination { limit, next_cursor: None },
    }))
}
