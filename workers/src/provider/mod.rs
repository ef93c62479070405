//! The wire: the only place in the product that holds HTTP clients and provider keys.
//!
//! A call gives its answer or a [`ProviderFailure`] that already says what it was; nobody reads messages later. `http` is one
//! exchange under one deadline, `openai` and `ocr_http` are the two protocols, `vectors` is the door an embedding comes in by,
//! `symptom` and `retry_after` are pure.

mod http;
mod ocr_http;
mod openai;
mod retry_after;
mod symptom;
mod vectors;
mod words;

use std::time::Duration;

use queue_schema::endpoint::Endpoint;
use queue_schema::outcome::{Failure, sanitise};

pub(crate) use self::http::tls;
pub use self::http::{Clients, Key};
pub use self::ocr_http::OcrText;
pub use self::openai::Embedded;
pub use self::retry_after::retry_after;
pub use self::symptom::{Evidence, Reading, Symptom, class, read};
pub(crate) use self::words::withhold;

/// A call that gave nothing to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderFailure {
    pub symptom: Symptom,
    /// Short and machine-readable: `context_exceeded`, `connection_refused`, `model_not_found`, …
    pub cause: &'static str,
    /// For an operator: at most 500 characters, no control characters, neither the key nor anything that was sent.
    pub error: String,
    /// What the provider asked for; not yet capped and without jitter (`queue_schema::retry::rate_limit` does both).
    pub retry_after: Option<Duration>,
    /// The input to blame, counted from 0 in what was sent, when the answer names one.
    pub item: Option<usize>,
    /// The HTTP status, when there was one.
    pub status: Option<u16>,
}

impl ProviderFailure {
    /// `error` must be free of content and keys; it is bounded and stripped of control characters here.
    pub(crate) fn new(symptom: Symptom, cause: &'static str, error: impl AsRef<str>) -> Self {
        Self {
            symptom,
            cause,
            error: sanitise(error.as_ref()),
            retry_after: None,
            item: None,
            status: None,
        }
    }

    pub(crate) fn of_item(self, item: usize) -> Self {
        Self { item: Some(item), ..self }
    }

    /// The failure as the settling side takes it.
    #[must_use]
    pub fn into_failure(self, evidence: Evidence) -> Failure {
        Failure {
            class: class(self.symptom, evidence),
            cause: self.cause.into(),
            error: self.error,
            wait: self.retry_after,
            doubted: false,
        }
    }
}

impl std::fmt::Display for ProviderFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.cause, self.error)
    }
}

impl std::error::Error for ProviderFailure {}

/// A picture of the word "READY", 240 × 102: the control image.
const CONTROL_PNG: &[u8] = include_bytes!("control.png");

impl Clients {
    /// Asks the endpoint something that is known to be good: the text "ready", or a picture of it. Never a job.
    ///
    /// # Errors
    /// The failure of that call. Success means that address, key and model are well.
    pub async fn probe(&self, endpoint: &Endpoint, deadline: Duration) -> Result<(), ProviderFailure> {
        match endpoint.protocol.as_str() {
            "openai" => self.embed(endpoint, &["ready".to_owned()], deadline).await.map(drop),
            "ocr_http" => match self.ocr(endpoint, CONTROL_PNG, deadline).await {
                // Poor eyes, but it answers: whether its readings are any good is not what a probe asks.
                Err(f) if f.symptom == Symptom::EmptyOutput => Ok(()),
                other => other.map(drop),
            },
            other => Err(ProviderFailure::new(
                Symptom::NoKey,
                "protocol_not_http",
                format!("\"{other}\" is not reached over HTTP"),
            )),
        }
    }
}

#[cfg(test)]
mod tests;
