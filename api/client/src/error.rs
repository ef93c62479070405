//! What can go wrong, typed. No variant ever holds the token, and none repeats a question.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;

/// Why a call did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client could not be made; the sentence names the argument.
    #[error("{0}")]
    Setup(String),
    /// Refused before anything was sent.
    #[error("{field}: {wrong}")]
    Input { field: &'static str, wrong: String },
    /// The API said no, or that it cannot now.
    #[error(transparent)]
    Api(#[from] Box<ApiError>),
    /// No answer came.
    #[error("{kind} {at} (tries: {tries})")]
    Transport {
        kind: TransportKind,
        /// Scheme, host and port.
        at: String,
        tries: u32,
        /// Without the address, which would repeat the question.
        #[source]
        source: reqwest::Error,
    },
    /// An answer came that is none of this API: a proxy's page, a redirect, a body without what it must have.
    #[error("the answer (status {status}) is none of this API: {wrong}")]
    Unreadable { status: u16, wrong: String },
    /// The file to upload cannot be read.
    #[error("{path} cannot be read")]
    File {
        path: String,
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// The API's code, when it was the API that refused.
    #[must_use]
    pub fn code(&self) -> Option<&ErrorCode> {
        match self {
            Self::Api(e) => Some(&e.code),
            _ => None,
        }
    }

    /// Whether another try later may work: what the client itself tried again, in vain.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Transport { .. } => true,
            Self::Api(e) => crate::retry::is_worth_it(e.status),
            Self::Unreadable { status, .. } => crate::retry::is_worth_it(*status),
            Self::Setup(_) | Self::Input { .. } | Self::File { .. } => false,
        }
    }
}

/// How a transport failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportKind {
    /// Nobody is there. Nothing was done.
    Connect,
    /// No answer in time. Whether it was done is not known.
    Timeout,
    /// The connection broke off. Whether it was done is not known.
    BrokeOff,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "no connection to",
            Self::Timeout => "no answer in time from",
            Self::BrokeOff => "the connection broke off before the answer was whole:",
        })
    }
}

/// A refusal, as the API words it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ApiError {
    /// The HTTP status.
    pub status: u16,
    /// Branch on this.
    pub code: ErrorCode,
    /// For a person.
    pub message: String,
    /// Which member or parameter is wrong, and how.
    pub fields: BTreeMap<String, String>,
    /// Quote it to an operator.
    pub request_id: String,
    /// How long the server asked to wait, where it did.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {}", self.message, self.status, self.code)?;
        if !self.request_id.is_empty() {
            write!(f, ", request {}", self.request_id)?;
        }
        f.write_str(")")
    }
}

impl std::error::Error for ApiError {}

/// Declares the codes once, with the word each has on the wire.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// The API's stable codes.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
            /// One that this version of the client does not know.
            Other(String),
        }

        impl ErrorCode {
            /// The word on the wire.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$name => $word,)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<String> for ErrorCode {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $($word => Self::$name,)*
                    _ => Self::Other(word),
                }
            }
        }
    };
}

codes! {
    /// [`ApiError::fields`] names what is wrong.
    Validation = "VALIDATION_ERROR",
    /// The token is missing, wrong or revoked.
    Unauthorized = "UNAUTHORIZED",
    /// Not there, or not yours.
    NotFound = "NOT_FOUND",
    MethodNotAllowed = "METHOD_NOT_ALLOWED",
    /// A replay that would most likely end the same way, or of work that is already under way.
    Conflict = "CONFLICT",
    PayloadTooLarge = "PAYLOAD_TOO_LARGE",
    /// The body stalled on its way; nothing was stored.
    BodyTimeout = "BODY_TIMEOUT",
    /// The `Idempotency-Key` was used with another request.
    IdempotencyMismatch = "IDEMPOTENCY_MISMATCH",
    RateLimited = "RATE_LIMITED",
    /// The database or the document store is away; nothing was stored.
    Unavailable = "UNAVAILABLE",
    /// Nothing can match now, which is not the same as nothing matched.
    SemanticUnavailable = "SEMANTIC_UNAVAILABLE",
    Timeout = "TIMEOUT",
    NotReady = "NOT_READY",
    Internal = "INTERNAL_ERROR",
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `{error:{code,message,fields,requestId}}`
#[derive(Deserialize)]
struct Body {
    error: Detail,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Detail {
    code: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    fields: BTreeMap<String, String>,
    #[serde(default)]
    request_id: String,
}

/// A response that is no success, as an error.
pub(crate) fn of(status: u16, body: &[u8], retry_after: Option<Duration>) -> Error {
    match serde_json::from_slice::<Body>(body) {
        Ok(Body { error }) => Error::Api(Box::new(ApiError {
            status,
            code: error.code.into(),
            message: error.message,
            fields: error.fields,
            request_id: error.request_id,
            retry_after,
        })),
        Err(_) => Error::Unreadable {
            status,
            wrong: if (300..400).contains(&status) {
                "it points to another address, and a token is not sent after it; name the right address".to_owned()
            } else {
                "it has no {error:{code,…}}; is the address right, and is there a proxy in between?".to_owned()
            },
        },
    }
}
