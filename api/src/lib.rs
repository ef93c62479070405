//! HTTP in, JSON out. Thin: a request becomes a [`Scope`](queue_schema::tenant::Scope), its input is checked here, and the
//! rest is statements of `queue-schema`. No provider client and no provider key lives in this process (decision B44).

pub mod answers;
pub mod auth;
pub mod config;
pub mod documents;
pub mod error;
pub mod health;
pub mod ingest;
pub mod input;
pub mod jobs;
pub mod search;
pub mod spaces;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use queue_schema::blob::{BlobError, Blobs};
use queue_schema::hint::Hinter;
use queue_schema::{Db, Role};
use tokio::sync::Semaphore;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::answers::Answers;
use crate::config::Config;
use crate::error::ApiError;

/// What every request can reach. Nothing in it is a copy of the database's state: a flip of a breaker is seen by the next
/// request (requirement P9).
#[derive(Debug)]
pub struct App {
    /// In the API's role, bound by row-level security.
    pub db: Db,
    /// In a role that counts and sees nobody's content, for `/health` alone: its numbers are over all tenants and name none.
    pub watch: Db,
    pub blobs: Blobs,
    pub hinter: Hinter,
    pub answers: Answers,
    pub config: Config,
    /// Bodies that are being received. Each may hold some MiB, so their number is what bounds the memory.
    bodies: Semaphore,
    /// Requests under way.
    requests: Semaphore,
}

/// Bodies received at once; more wait a little and are then asked to come back.
const BODIES: usize = 32;
/// Requests at once; more are asked to come back.
const REQUESTS: usize = 512;
/// How long a body waits for its place.
const BODY_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("STEADFAST_DATABASE_URL is not a Postgres URL: {0}")]
    Database(queue_schema::DbError),
    #[error(transparent)]
    Blobs(#[from] BlobError),
}

impl App {
    /// Connects to nothing yet: the database may start after us.
    ///
    /// # Errors
    /// When an address in the configuration cannot be used.
    pub fn new(config: Config) -> Result<Self, StartError> {
        let url = &config.database_url;
        let db = Db::open(url, Role::Api, config.connections, "steadfast-api").map_err(StartError::Database)?;
        let watch = Db::open(url, Role::Watch, 2, "steadfast-api-health").map_err(StartError::Database)?;
        Ok(Self {
            hinter: Hinter::start(db.clone()),
            answers: Answers::start(url),
            blobs: Blobs::open(&config.blobs)?,
            db,
            watch,
            config,
            bodies: Semaphore::new(BODIES),
            requests: Semaphore::new(REQUESTS),
        })
    }

    /// A place for one body.
    ///
    /// # Errors
    /// 429 when none becomes free in time.
    pub async fn body_place(&self) -> Result<tokio::sync::SemaphorePermit<'_>, ApiError> {
        match tokio::time::timeout(BODY_PATIENCE, self.bodies.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(ApiError::busy()),
        }
    }
}

/// The routes that the description tells of, and the description.
fn described() -> (Router<Arc<App>>, utoipa::openapi::OpenApi) {
    let (router, mut api) = OpenApiRouter::<Arc<App>>::new()
        .routes(routes!(ingest::remember))
        .routes(routes!(ingest::upload))
        .routes(routes!(search::search))
        .routes(routes!(search::transcript))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::dead))
        .routes(routes!(jobs::replay))
        .routes(routes!(jobs::get))
        .routes(routes!(spaces::list))
        .routes(routes!(documents::list))
        .routes(routes!(documents::get, documents::delete))
        .routes(routes!(health::house))
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .split_for_parts();
    describe(&mut api);
    (router, api)
}

/// The OpenAPI document of all routes.
#[must_use]
pub fn description() -> utoipa::openapi::OpenApi {
    described().1
}

/// All routes.
pub fn router(app: &Arc<App>) -> Router {
    let (router, api) = described();
    let description = serde_json::to_value(&api).unwrap_or_default();
    router
        .route(
            "/api/v1/openapi.json",
            axum::routing::get(move || async move { axum::Json(description) }),
        )
        .fallback(async || ApiError::not_found("there is no such route; /api/v1/openapi.json lists them"))
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        // Bodies are bounded where they are read, by limits of their own.
        .layer(DefaultBodyLimit::disable())
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(app.clone(), around))
        .with_state(app.clone())
}

fn describe(api: &mut utoipa::openapi::OpenApi) {
    api.info.title = "Steadfast".into();
    api.info.version = env!("CARGO_PKG_VERSION").into();
    api.info.description = Some("Documents in, answers out. Every error is {error:{code,message,fields,requestId}}.".into());
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    api.components.get_or_insert_default().add_security_scheme("bearer", bearer);
    // A function's name is unique in its room only (there are three lists); an operation's must be in the whole document, or
    // a generated client takes one route's parameters for another's.
    for item in api.paths.paths.values_mut() {
        for operation in [&mut item.get, &mut item.post, &mut item.delete].into_iter().flatten() {
            if let (Some(id), Some([tag, ..])) = (&mut operation.operation_id, operation.tags.as_deref()) {
                *id = format!("{tag}_{id}");
            }
        }
    }
}

// The panic's message may hold content; what is kept is that there was one, with the request's id.
#[allow(clippy::needless_pass_by_value)]
fn panicked(_: Box<dyn std::any::Any + Send + 'static>) -> Response {
    ApiError::internal().into_response()
}

/// Around every request: its id, its time limit, its error body, and its one line in the log.
async fn around(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = error::request_id(request.headers());
    request.extensions_mut().insert(error::RequestId(id.clone()));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let started = std::time::Instant::now();
    let limit = if path.starts_with("/api/v1/uploads") {
        app.config.upload_timeout()
    } else {
        app.config.request_timeout()
    };

    // Health is answered however busy we are: a probe that fails under load would take the process away from the load.
    let place = if path == "/health" || path.starts_with("/health/") {
        None
    } else {
        Some(app.requests.try_acquire())
    };
    let response = match place {
        Some(Err(_)) => ApiError::busy().into_response(),
        _ => tokio::time::timeout(limit, next.run(request))
            .await
            .unwrap_or_else(|_| ApiError::took_too_long().into_response()),
    };
    let response = error::finish(response, &id);
    tracing::info!(
        request.id = %id, method = %method, path = %path, status = response.status().as_u16(),
        took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX), "request"
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The routes that the real client calls, and ours beside them: each is served and described.
    #[test]
    fn every_route_is_in_the_description() {
        let (_, api) = described();
        let mut there: Vec<String> = Vec::new();
        let api = serde_json::to_value(&api).expect("a description is JSON");
        for (path, methods) in api["paths"].as_object().expect("paths") {
            there.extend(methods.as_object().expect("methods").keys().map(|m| format!("{m} {path}")));
        }
        there.sort();
        let mut expected = [
            "post /api/v1/remember",
            "post /api/v1/uploads/direct",
            "get /api/v1/search",
            "get /api/v1/transcript/search",
            "get /api/v1/jobs",
            "get /api/v1/jobs/dead",
            "post /api/v1/jobs/dead/{id}/replay",
            "get /api/v1/jobs/{id}",
            "get /api/v1/spaces",
            "get /api/v1/documents",
            "get /api/v1/documents/{id}",
            "delete /api/v1/documents/{id}",
            "get /health",
            "get /health/live",
            "get /health/ready",
            "get /health/metrics",
        ];
        expected.sort_unstable();
        assert_eq!(there, expected);
    }

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let api = serde_json::to_value(description()).expect("a description is JSON");
        let methods = api["paths"].as_object().expect("paths").values();
        let mut names: Vec<&str> = methods
            .flat_map(|m| m.as_object().expect("methods").values())
            .map(|operation| operation["operationId"].as_str().expect("a name"))
            .collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "{names:?}");
    }
}
