//! The one door: a bearer token in, a [`Scope`] out.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use queue_schema::tenant::{self, Scope};

use crate::App;
use crate::error::ApiError;

/// Who asks. Taken before any body is read.
#[derive(Clone, Copy, Debug)]
pub struct Caller(pub Scope);

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let value = parts
            .headers
            .get(header::AUTHORIZATION)
            .and_then(|v| v.to_str().ok())
            .ok_or_else(ApiError::no_credential)?;
        let (scheme, token) = value.split_once(' ').ok_or_else(ApiError::no_credential)?;
        let token = token.trim();
        // A megabyte of "token" is not worth a hash and a statement.
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() || token.len() > 256 {
            return Err(ApiError::no_credential());
        }
        tenant::authenticate(&app.db, token)
            .await?
            .map(Caller)
            .ok_or_else(ApiError::no_credential)
    }
}
