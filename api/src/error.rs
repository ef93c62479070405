//! What a caller is told when it does not work: one body for all, `{error:{code,message,fields,requestId}}` (requirement P32).
//! A database's or a provider's own words never get into it.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use queue_schema::DbError;
use queue_schema::blob::BlobError;
use serde::Serialize;
use utoipa::ToSchema;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Seconds after which a caller may find the database or the store back.
const RETRY_AFTER: u32 = 5;

/// An error on its way to a caller.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    fields: BTreeMap<String, String>,
    retry_after: Option<u32>,
}

/// The body of every response that is not a success.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorDetail {
    /// Stable; branch on this.
    pub code: String,
    /// For a person.
    pub message: String,
    /// Which member or parameter is wrong, and how.
    pub fields: BTreeMap<String, String>,
    /// As in the response's `x-request-id` and in our log.
    pub request_id: String,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            fields: BTreeMap::new(),
            retry_after: None,
        }
    }

    /// A field, and what is wrong with it; the message says both, for clients that show only that.
    pub fn invalid(field: impl Into<String>, wrong: impl Into<String>) -> Self {
        let (field, wrong) = (field.into(), wrong.into());
        let mut e = Self::new(StatusCode::BAD_REQUEST, "VALIDATION_ERROR", format!("{field}: {wrong}"));
        e.fields.insert(field, wrong);
        e
    }

    pub fn no_credential() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "UNAUTHORIZED",
            "a valid token is needed: Authorization: Bearer sf_… (made by `steadfast token create`)",
        )
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NOT_FOUND", message)
    }

    /// A field that names something that is not there.
    pub fn unknown(field: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        let mut e = Self::not_found(message.clone());
        e.fields.insert(field.to_owned(), message);
        e
    }

    pub fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "METHOD_NOT_ALLOWED",
            "this route does not know this method",
        )
    }

    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "CONFLICT", message)
    }

    pub fn too_large(limit: u64) -> Self {
        let mut e = Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "PAYLOAD_TOO_LARGE",
            format!("the body is larger than the {limit} bytes allowed here"),
        );
        e.fields.insert("body".into(), format!("at most {limit} bytes"));
        e
    }

    pub fn body_stalled() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "BODY_TIMEOUT",
            "the body did not arrive in time; nothing was stored",
        )
    }

    pub fn mismatch() -> Self {
        let mut e = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "IDEMPOTENCY_MISMATCH",
            "this Idempotency-Key was used with another request in the last 24 hours",
        );
        e.fields
            .insert("Idempotency-Key".into(), "belongs to another request; use a new one".into());
        e
    }

    pub fn busy() -> Self {
        Self {
            retry_after: Some(1),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "RATE_LIMITED",
                "too much at once; try again in a moment",
            )
        }
    }

    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(RETRY_AFTER),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
        }
    }

    pub fn semantic_unavailable(why: &str) -> Self {
        // A short Retry-After: clients wait it out inside one call, three times over.
        Self::unavailable(
            "SEMANTIC_UNAVAILABLE",
            format!("nothing can match now, which is not the same as nothing matched: {why}"),
        )
    }

    pub fn took_too_long() -> Self {
        Self::unavailable("TIMEOUT", "the request took too long and was given up")
    }

    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "INTERNAL_ERROR",
            "something went wrong on our side; quote the request id to an operator",
        )
    }
}

impl From<DbError> for ApiError {
    fn from(e: DbError) -> Self {
        // Logged here, where it is handled; its words stay here too.
        tracing::error!(error = %e, "a statement did not run");
        let code = e.as_database_error().and_then(|d| d.code()).unwrap_or_default();
        // Not migrated yet: no such role, table or function. Not let in, no such database, or one that takes no connections:
        // the same to a caller.
        let not_ready = matches!(&*code, "22023" | "42P01" | "42883" | "3D000" | "55000") || code.starts_with("28");
        if queue_schema::db::is_transient(&e) || not_ready {
            Self::unavailable(
                "UNAVAILABLE",
                "the database is not available; nothing was stored, try again shortly",
            )
        } else {
            Self::internal()
        }
    }
}

impl From<BlobError> for ApiError {
    fn from(e: BlobError) -> Self {
        tracing::error!(error = %e, "the blob store did not do it");
        Self::unavailable(
            "UNAVAILABLE",
            "the document store is not available; nothing was stored, try again shortly",
        )
    }
}

impl IntoResponse for ApiError {
    /// The body comes later, in [`finish`], which knows the request's id.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// The id of the request under way.
#[derive(Clone, Debug)]
pub struct RequestId(pub String);

/// The caller's own id when it is sane (it goes into our log), else a new one.
pub fn request_id(headers: &HeaderMap) -> String {
    let sane = |s: &&str| !s.is_empty() && s.len() <= 64 && s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    headers.get(REQUEST_ID).and_then(|v| v.to_str().ok()).filter(sane).map_or_else(
        || {
            let n = queue_schema::tenant::nonce();
            URL_SAFE_NO_PAD.encode(n)
        },
        ToOwned::to_owned,
    )
}

/// Gives an error its body and every response its id.
pub fn finish(mut response: Response, id: &str) -> Response {
    if let Some(e) = response.extensions_mut().remove::<ApiError>() {
        let detail = ErrorDetail {
            code: e.code.into(),
            message: e.message,
            fields: e.fields,
            request_id: id.to_owned(),
        };
        response = (e.status, axum::Json(ErrorBody { error: detail })).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = e.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if e.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"steadfast\""));
        }
        if matches!(e.status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
            // The rest of the body is not going to be read.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
    if let Ok(value) = HeaderValue::from_str(id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}
