//! Four questions that are not one (requirement P33): does the process live, can it serve, how whole are its answers, and what do the
//! numbers say. A readiness probe behind a liveness check would restart healthy processes because their database is away, and one behind
//! `/health` would take an API away that answers by words while a breaker is off.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use queue_schema::diagnostics::Trouble;
use queue_schema::{DbError, capability, diagnostics, job, worker};
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ErrorBody};

/// How long a probe may take.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    pub status: String,
}

fn ok() -> Json<Health> {
    Json(Health { status: "ok".into() })
}

/// How the house is as a whole.
#[derive(Debug, Serialize, ToSchema)]
pub struct HouseHealth {
    /// `ok`; `degraded`: answers come, less than whole, for the reasons below; `unhealthy`: nothing can be answered.
    pub status: String,
    pub reasons: Vec<HealthReason>,
}

/// One thing that is less than whole. Over all tenants; none is named.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct HealthReason {
    /// `stopped`: a breaker is off and the work behind it is held until an operator turns it on. `refused`: an endpoint is off because it
    /// refused our key, our quota or the model. `outage`: an endpoint does not answer and is asked again by itself. `no_worker`: nobody
    /// alive takes a kind of work. `no_mail`: notices wait and no live worker sends mail. `blobs`: the document store does not answer.
    /// `database`: the database does not answer. `not_migrated`: it is there, but not up to date.
    pub code: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    /// Not told where it is a tenant's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// It is about the own breakers or endpoints of this many tenants; left out where it is about everybody's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenants: Option<i64>,
    /// Since when, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
}

impl From<Trouble> for HealthReason {
    fn from(t: Trouble) -> Self {
        Self {
            code: t.code,
            capability: t.capability,
            endpoint: t.endpoint,
            kind: t.kind,
            tenants: (t.tenants > 0).then_some(t.tenants),
            // Seconds since a row changed: far below 2^53, and a fraction of one tells nobody anything.
            #[allow(clippy::cast_possible_truncation)]
            seconds: t.seconds.map(|s| s as i64),
        }
    }
}

/// How well the house is, for whoever watches it: 200 while it answers, if only degraded; 503 when it cannot.
#[utoipa::path(get, path = "/health", tag = "health", responses((status = 200, body = HouseHealth), (status = 503, body = HouseHealth)))]
pub async fn house(State(app): State<Arc<App>>) -> (StatusCode, Json<HouseHealth>) {
    let (database, blobs) = tokio::join!(
        tokio::time::timeout(PATIENCE, diagnostics::health(&app.watch)),
        tokio::time::timeout(PATIENCE, app.blobs.ping()),
    );
    let because = |code: &str| HealthReason {
        code: code.to_owned(),
        ..HealthReason::default()
    };
    let (away, mut reasons) = match database {
        Ok(Ok(troubles)) => (false, troubles.into_iter().map(HealthReason::from).collect()),
        Ok(Err(e)) if lacks_migration(&e) => (true, vec![because("not_migrated")]),
        Ok(Err(_)) | Err(_) => (true, vec![because("database")]),
    };
    if !matches!(blobs, Ok(Ok(()))) {
        reasons.push(because("blobs"));
    }
    let (code, status) = match (away, reasons.is_empty()) {
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "unhealthy"),
        (false, true) => (StatusCode::OK, "ok"),
        (false, false) => (StatusCode::OK, "degraded"),
    };
    (
        code,
        Json(HouseHealth {
            status: status.into(),
            reasons,
        }),
    )
}

/// There is no such role, table or column yet.
fn lacks_migration(e: &DbError) -> bool {
    let code = e.as_database_error().and_then(|d| d.code());
    code.is_some_and(|c| matches!(&*c, "22023" | "42P01" | "42703"))
}

/// The process lives.
#[utoipa::path(get, path = "/health/live", tag = "health", responses((status = 200, body = Health)))]
pub async fn live() -> Json<Health> {
    ok()
}

/// Database and document store are there, and the database is migrated.
#[utoipa::path(get, path = "/health/ready", tag = "health", responses((status = 200, body = Health), (status = 503, body = ErrorBody)))]
pub async fn ready(State(app): State<Arc<App>>) -> Result<Json<Health>, ApiError> {
    let not = |what: &str| ApiError::unavailable("NOT_READY", what.to_owned());
    match tokio::time::timeout(PATIENCE, diagnostics::migrated(&app.db)).await {
        Ok(Ok(true)) => {}
        Ok(Ok(false)) => return Err(not("the database is not migrated: run `steadfast migrate`")),
        Ok(Err(e)) if e.as_database_error().and_then(|d| d.code()).is_some_and(|c| c == "22023") => {
            return Err(not("the database does not know our role yet: run `steadfast migrate`"));
        }
        Ok(Err(_)) | Err(_) => return Err(not("the database does not answer")),
    }
    match tokio::time::timeout(PATIENCE, app.blobs.ping()).await {
        Ok(Ok(())) => Ok(ok()),
        Ok(Err(_)) | Err(_) => Err(not("the document store does not answer")),
    }
}

/// The numbers, for Prometheus. Over all tenants; no label names one.
#[utoipa::path(get, path = "/health/metrics", tag = "health",
    responses((status = 200, body = String, content_type = "text/plain"), (status = 503, body = ErrorBody)))]
pub async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let text = tokio::time::timeout(PATIENCE * 3, gather(&app))
        .await
        .map_err(|_| ApiError::took_too_long())??;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

async fn gather(app: &App) -> Result<String, DbError> {
    let mut out = String::new();
    let head = |out: &mut String, name: &str, kind: &str, help: &str| {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    };
    head(&mut out, "steadfast_jobs", "gauge", "Live jobs by kind and state.");
    let counts = job::counts(&app.watch).await?;
    for c in &counts {
        for (state, n) in [
            ("due", c.due),
            ("backing_off", c.backing_off),
            ("held", c.held),
            ("running", c.running),
            ("parked", c.parked),
            ("dead", c.dead),
        ] {
            let _ = writeln!(out, "steadfast_jobs{{kind=\"{}\",state=\"{state}\"}} {n}", c.kind);
        }
    }
    head(
        &mut out,
        "steadfast_oldest_waiting_seconds",
        "gauge",
        "Age of the oldest waiting job by kind.",
    );
    for c in &counts {
        let _ = writeln!(
            out,
            "steadfast_oldest_waiting_seconds{{kind=\"{}\"}} {:.3}",
            c.kind,
            c.oldest_seconds.unwrap_or(0.0)
        );
    }
    head(&mut out, "steadfast_workers", "gauge", "Live workers that take this kind.");
    for (kind, n) in diagnostics::workers(&app.watch).await? {
        let _ = writeln!(out, "steadfast_workers{{kind=\"{kind}\"}} {n}");
    }
    head(
        &mut out,
        "steadfast_breaker_on",
        "gauge",
        "1 while the capability may be used, 0 while it is stopped for everybody.",
    );
    for b in capability::list(&app.watch).await?.iter().filter(|b| b.tenant_id.is_none()) {
        let _ = writeln!(out, "steadfast_breaker_on{{capability=\"{}\"}} {}", b.name, i32::from(b.enabled));
    }
    head(
        &mut out,
        "steadfast_late_settles_total",
        "counter",
        "Settlements that the fence refused.",
    );
    let _ = writeln!(out, "steadfast_late_settles_total {}", worker::late_settles(&app.watch).await?);
    Ok(out)
}
