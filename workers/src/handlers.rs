//! One file per kind: what it does between its input and its output.

pub mod embed;
pub mod extract;
pub mod fan_out;
pub mod notice;
pub mod ocr;
pub mod question;
pub mod retention;

use std::time::Duration;

use queue_schema::JobKind;
use queue_schema::capability::{self, Refusal, Trip};
use queue_schema::endpoint::{self, Endpoint};
use queue_schema::outcome::{Failure, Outcome, RetryClass};
use steadfast_engines::EngineError;

use crate::engine::Group;
use crate::provider::{Evidence, ProviderFailure, Symptom, class};
use crate::run::{Context, HOLD_MARGIN};

/// How long a group may sit on its place (decision B30): its own limit and a minute.
#[must_use]
pub fn max_hold(context: &Context, group: &Group) -> Duration {
    let call = group.endpoint.as_ref().map_or(Duration::from_secs(300), |e| e.timeout());
    match group.kind {
        JobKind::Extract => context.config.extract_timeout + HOLD_MARGIN,
        JobKind::Ocr => call.max(context.config.ocr_timeout) + HOLD_MARGIN,
        JobKind::Embed => call + HOLD_MARGIN,
        JobKind::Question => context.config.question_timeout + Duration::from_secs(5),
        JobKind::Retention | JobKind::FanOut => Duration::from_secs(3600),
        JobKind::Notice => context.config.smtp_timeout + HOLD_MARGIN,
        JobKind::Noop => HOLD_MARGIN,
    }
}

/// The endpoint answered: what every failure of a neighbour is measured against (decision D8).
async fn well(context: &Context, endpoint: &Endpoint) {
    if let Err(error) = endpoint::well(&context.db, endpoint.id).await {
        tracing::debug!(%error, endpoint = endpoint.name, "could not note that it answered");
    }
}

/// A failure from the wire becomes an outcome: the symptom is what it looked like, the endpoint's evidence says whose fault it
/// was, and the endpoint or the breaker is told.
/// `alone`: the failed call carried this item and nothing else.
async fn blame(context: &Context, group: &Group, endpoint: &Endpoint, job_id: i64, failure: ProviderFailure, alone: bool) -> Outcome {
    let pace = context.pace();
    let answered_lately = endpoint::answered_lately(&context.db, endpoint.id, job_id, pace)
        .await
        .unwrap_or(false);
    let mut class = class(failure.symptom, Evidence { answered_lately, alone });
    if class == RetryClass::Refused && !refused(context, group, endpoint, &failure).await {
        // The same key and model passed with a control text a moment later: a stray refusal, or one about this item only.
        class = RetryClass::ItemError;
    }
    let jitter: f64 = rand::random();
    let mut outcome = Failure::new(class, failure.cause, &failure.error);
    match class {
        RetryClass::Outage => {
            // A provider that says when it will be back (503 with Retry-After) is believed, as a floor and up to the same cap as a 429.
            let asked = failure.retry_after.unwrap_or_default().min(pace.rate_limit_cap);
            let wait = pace.endpoint(1, jitter).max(asked);
            down(context, endpoint, wait, failure.cause).await;
            outcome = outcome.after(wait);
        }
        RetryClass::Timeout if group.kind != JobKind::Question => {
            // Slow or dead? The control text decides (D3, D7); until it is back, nobody else is sent there and nobody is blamed.
            down(context, endpoint, pace.endpoint(1, jitter), failure.cause).await;
            outcome = outcome.doubted();
        }
        RetryClass::RateLimited => {
            let wait = pace.rate_limit(failure.retry_after, jitter);
            if let Err(error) = endpoint::pause(&context.db, endpoint.id, wait).await {
                tracing::warn!(%error, "could not note that the endpoint asked for time");
            }
            outcome = outcome.after(wait);
        }
        _ => {}
    }
    Outcome::Failed(outcome)
}

async fn down(context: &Context, endpoint: &Endpoint, wait: Duration, cause: &str) {
    match endpoint::down(&context.db, endpoint.id, endpoint.epoch, wait).await {
        Ok(true) => tracing::warn!(
            endpoint = endpoint.name,
            cause,
            "endpoint does not answer: held back until a control text comes through"
        ),
        Ok(false) => {}
        Err(error) => tracing::warn!(%error, "could not note that the endpoint does not answer"),
    }
}

/// A refusal stops the endpoint, and with the last one its capability. It is believed at once where nothing has come through since
/// the breaker was last turned on; otherwise the control text is asked first, because a single stray 401 among good answers must not
/// stop everybody (public case 71). False: not confirmed.
async fn refused(context: &Context, group: &Group, endpoint: &Endpoint, failure: &ProviderFailure) -> bool {
    let (Some(name), Some(claim)) = (group.kind.capability(), group.claims.first()) else {
        return true;
    };
    let (Some(capability_epoch), Some(endpoint_epoch)) = (claim.capability_epoch, claim.endpoint_epoch) else {
        return true;
    };
    // One at a time in this process: the second finds the breaker off and asks nobody.
    let _one = context.confirming.lock().await;
    let standing = capability::standing(
        &context.db,
        name,
        endpoint.owner_tenant_id,
        capability_epoch,
        endpoint.id,
        endpoint_epoch,
    )
    .await;
    match standing {
        Ok(s) if s.still_on && s.has_answered => {
            let limit = endpoint.timeout().min(Duration::from_secs(30));
            if context.clients.probe(endpoint, limit).await.is_ok() {
                tracing::warn!(
                    endpoint = endpoint.name,
                    cause = failure.cause,
                    "refused once, but the control text passed: the breaker stays on"
                );
                return false;
            }
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "could not look at the breaker"),
    }
    let reason = queue_schema::outcome::sanitise(&format!("{}: {}: {}", endpoint.name, failure.cause, failure.error));
    let refusal = Refusal {
        endpoint_id: endpoint.id,
        endpoint_epoch,
        capability_epoch,
        actor: "system",
        reason: &reason,
    };
    match capability::refused(&context.db, &refusal).await {
        Ok(Trip::Tripped) => tracing::error!(
            capability = name,
            reason,
            "breaker off: the work is held until an operator turns it on"
        ),
        Ok(Trip::EndpointOnly) => tracing::error!(
            endpoint = endpoint.name,
            reason,
            "endpoint off until an operator turns it on; another one serves on"
        ),
        Ok(Trip::Counted | Trip::Stale) => {}
        Err(error) => tracing::error!(%error, capability = name, "the breaker could not be tripped"),
    }
    true
}

/// The Space it was meant for is gone, or who asked may not write there any more: never loose, never somewhere else (decision B27).
fn place_gone() -> Outcome {
    Outcome::failed(
        RetryClass::PlaceGone,
        "place_gone",
        "its Space is gone, or its owner is not a member of it any more",
    )
}

/// A failure of an engine in this process; never the wire's.
fn local_failure(error: &EngineError) -> Outcome {
    let (class, cause) = match error {
        EngineError::BadInput(_) => (RetryClass::BadInput, "bad_input"),
        EngineError::Oversize { .. } => (RetryClass::Oversize, "too_long"),
        EngineError::Unavailable(_) => (RetryClass::Unservable, "engine_missing"),
        EngineError::Timeout => (RetryClass::Timeout, "deadline"),
        EngineError::Cancelled => (RetryClass::Preempted, "stopped"),
        EngineError::Failed(_) => (RetryClass::ItemError, "engine_failed"),
    };
    Outcome::failed(class, cause, error.to_string())
}

/// The database did not answer while the input was read: nobody's fault, due again soon.
fn database_away(error: &queue_schema::DbError) -> Outcome {
    tracing::warn!(%error, "cannot read what the job is about");
    Outcome::Failed(Failure::new(RetryClass::Outage, "database_away", "the database did not answer").after(Duration::from_secs(1)))
}

/// The blob store did not answer, or has lost the bytes.
fn blob_failure(error: &queue_schema::blob::BlobError) -> Outcome {
    match error {
        queue_schema::blob::BlobError::NotFound(_) => Outcome::failed(RetryClass::BadInput, "blob_missing", "the stored file is gone"),
        other => Outcome::Failed(Failure::new(RetryClass::Outage, "blob_store_away", other.to_string()).after(Duration::from_secs(10))),
    }
}

/// Asks an endpoint that is down for its control text; one prober in the fleet gets the row, the next step is written already.
pub async fn probe(context: &Context, protocols: &[String]) {
    let endpoint = match endpoint::take_probe(&context.db, protocols, rand::random(), context.pace()).await {
        Ok(Some(endpoint)) => endpoint,
        Ok(None) => return,
        Err(error) => return tracing::debug!(%error, "could not look for an endpoint to probe"),
    };
    let limit = endpoint.timeout().min(Duration::from_secs(60));
    let failure = match endpoint.protocol.as_str() {
        // It answers; that the answer is a refusal is for the next job's evidence and the breaker to say.
        "openai" | "ocr_http" => context.clients.probe(&endpoint, limit).await.err().filter(|f| {
            !matches!(
                f.symptom,
                Symptom::KeyRefused | Symptom::Quota | Symptom::ModelRefused | Symptom::RateLimited
            )
        }),
        // An engine in this process is as well as this process.
        _ => None,
    };
    let Some(failure) = failure else {
        tracing::info!(endpoint = endpoint.name, "endpoint answers again");
        return well(context, &endpoint).await;
    };
    let why = queue_schema::outcome::sanitise(&format!("{}: {}", failure.cause, failure.error));
    if let Err(error) = endpoint::still_down(&context.db, endpoint.id, &why).await {
        tracing::debug!(%error, "could not note that it is the endpoint's fault");
    }
}
