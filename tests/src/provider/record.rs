//! What the provider saw: one entry per call, kept in the order of arrival.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The doors of the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /ocr`
    Ocr,
    /// `GET /v1/models`
    Models,
    /// Anything else; answered 404.
    Other,
}

impl Route {
    /// Whether the call costs a provider work: these are counted, rules are for these.
    #[must_use]
    pub fn works(self) -> bool {
        matches!(self, Self::Embeddings | Self::Chat | Self::Ocr)
    }
}

/// One text of a call. For an image: the hash of its bytes and the text that it shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// Lower-case hex.
    pub sha256: String,
    pub text: String,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It has not.
    Open,
    /// The answer was sent whole.
    Answered,
    /// The caller closed the connection first.
    Cancelled,
    /// The script broke the answer off.
    Broken,
}

/// One call, as the provider saw it. Times are milliseconds since the provider started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// From 1, in the order of arrival.
    pub seq: u64,
    pub route: Route,
    pub path: String,
    pub in_ms: u64,
    pub out_ms: Option<u64>,
    /// Time spent waiting for one of the provider's slots.
    pub slot_wait_ms: u64,
    pub texts: Vec<Text>,
    pub tokens: u64,
    pub model: String,
    /// The label that the test gave the key; `none` without one, `unlisted-…` with a hash for one that nobody listed.
    pub key: String,
    /// Calls that work and were open when this one arrived, itself included.
    pub in_flight: usize,
    /// The status that was sent, if the headers went out.
    pub status: Option<u16>,
    pub outcome: Outcome,
    /// The token at which the provider noticed that the caller had gone: a multiple of 1,024, or 0 when it was waiting.
    pub cancelled_at: Option<u64>,
    /// The place in the list of the rule that decided, from 0 in the order of adding.
    pub rule: Option<usize>,
}

impl Call {
    /// Whether one of the texts contains `marker`, or has it as its hash.
    #[must_use]
    pub fn has(&self, marker: &str) -> bool {
        self.texts.iter().any(|t| t.text.contains(marker) || t.sha256 == marker)
    }

    /// Whether the regular answer reached the wire whole.
    #[must_use]
    pub fn completed(&self) -> bool {
        self.outcome == Outcome::Answered && self.status == Some(200)
    }
}

/// Lower-case hex SHA-256.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// The rate at which the seed's model reads: 7,117 tokens from 29,163 characters.
#[must_use]
pub fn tokens(text: &str) -> u64 {
    (text.chars().count() as u64 * 7_117).div_ceil(29_163)
}
