//! The script: which calls a rule is for, and what happens to them.

use base64::Engine as _;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::record::Route;

/// "For these calls, this often, do that." Conditions that are not set match everything; all that are set must hold.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// A substring of one of the call's texts; for an image, of its bytes, its file name or the text it shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Only calls to this route. Without it a rule is for the three that work, not for the list of models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<Route>,
    /// Only calls that came with the key of this label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Only the nth (from 1) of the calls that the other conditions let through since the rule was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nth: Option<u32>,
    /// How many calls it serves before it is spent; without it, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// Waits this long before the action, beside the provider's own latency: for an error just before a budget ends.
    #[serde(default)]
    pub after_ms: u64,
    /// What happens.
    pub then: Action,
}

impl Rule {
    /// For every call to a route that works.
    #[must_use]
    pub fn all() -> Self {
        Self {
            text: None,
            route: None,
            key: None,
            nth: None,
            times: None,
            after_ms: 0,
            then: Action::Normal,
        }
    }

    /// For calls one of whose texts contains `marker`.
    #[must_use]
    pub fn text(marker: impl Into<String>) -> Self {
        Self {
            text: Some(marker.into()),
            ..Self::all()
        }
    }

    /// For the nth call (from 1) counted from now on.
    #[must_use]
    pub fn nth(n: u32) -> Self {
        Self {
            nth: Some(n),
            ..Self::all()
        }
    }

    #[must_use]
    pub fn on(mut self, route: Route) -> Self {
        self.route = Some(route);
        self
    }

    #[must_use]
    pub fn key(mut self, label: impl Into<String>) -> Self {
        self.key = Some(label.into());
        self
    }

    #[must_use]
    pub fn times(mut self, n: u32) -> Self {
        self.times = Some(n);
        self
    }

    #[must_use]
    pub fn after_ms(mut self, ms: u64) -> Self {
        self.after_ms = ms;
        self
    }

    #[must_use]
    pub fn then(mut self, action: impl Into<Action>) -> Self {
        self.then = action.into();
        self
    }
}

/// What a call meets.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// The regular answer, with the regular work before it.
    Normal,
    /// This answer at once, with no work done.
    Answer { reply: Reply },
    /// A well-known answer at once, with no work done.
    Fixture { name: Fixture },
    /// Nothing more comes, until the caller goes away.
    Hang { at: At },
    /// The call stays open until `gate` is released, then meets `then`. A gate that was released before is still shut
    /// for the calls that arrive later.
    Hold {
        gate: String,
        #[serde(default = "normal")]
        then: Box<Action>,
    },
    /// The connection ends in a TCP reset.
    Reset { at: At },
    /// The connection is closed in good order, with no answer on it.
    Close,
    /// The regular answer, of which only the first half is sent before the connection closes.
    Cut { how: Framing },
    /// The regular answer, `bytes` at a time, `every_ms` apart, headers included.
    Trickle { bytes: usize, every_ms: u64 },
    /// The regular answer after this much longer work.
    Slow { ms: u64 },
    /// An embeddings answer with something wrong in it.
    Vectors { fault: VectorFault },
    /// The regular answer under another model's name.
    Model { name: String },
    /// Regular work, then an answer with status 200 and this body: an empty output, a page of HTML.
    Body { content_type: String, body: Body },
    /// Somewhere else, with this status (301, 302, 303, 307, 308).
    Redirect { status: u16, to: String },
}

impl Action {
    /// Keeps calls open until [`super::Provider::release`] of the same name, then answers regularly.
    #[must_use]
    pub fn hold(gate: impl Into<String>) -> Self {
        Self::hold_then(gate, Self::Normal)
    }

    /// Keeps calls open until the gate is released, then does `then` to them.
    #[must_use]
    pub fn hold_then(gate: impl Into<String>, then: impl Into<Self>) -> Self {
        Self::Hold {
            gate: gate.into(),
            then: Box::new(then.into()),
        }
    }

    /// Status 200 with this body after regular work.
    #[must_use]
    pub fn body(content_type: &str, body: impl Into<Body>) -> Self {
        Self::Body {
            content_type: content_type.to_owned(),
            body: body.into(),
        }
    }
}

fn normal() -> Box<Action> {
    Box::new(Action::Normal)
}

impl From<Reply> for Action {
    fn from(reply: Reply) -> Self {
        Self::Answer { reply }
    }
}

impl From<Fixture> for Action {
    fn from(name: Fixture) -> Self {
        Self::Fixture { name }
    }
}

impl From<VectorFault> for Action {
    fn from(fault: VectorFault) -> Self {
        Self::Vectors { fault }
    }
}

/// Where on the wire a fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum At {
    /// Nothing of the answer was sent.
    BeforeHeaders,
    /// The status line and one header went out, the empty line did not.
    InHeaders,
    /// All headers went out, nothing of the body.
    AfterHeaders,
    /// All headers and half of the body went out.
    MidBody,
}

/// How a body says where it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Framing {
    #[default]
    ContentLength,
    Chunked,
}

/// What is wrong with the vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VectorFault {
    /// One fewer than there were texts.
    OneShort,
    /// One more than there were texts.
    OneMore,
    /// None at all, as a well-formed answer.
    NoData,
    /// The first and the second carry index 0 (of one text: two vectors with index 0).
    DuplicateIndex,
    /// Every one carries index 0.
    AllIndexZero,
    /// The last comes first, each under its right index: correct, if one reads the index.
    Reversed,
    /// No index at all, in the right order.
    NoIndex,
    /// An index beyond the end.
    IndexOutOfRange,
    /// `NaN` as a bare word: not JSON, though some servers send it.
    NaN,
    /// `null` among the numbers: JSON's way to say NaN.
    Null,
    /// A number as a string.
    StringNumber,
    /// A number beyond f32.
    Huge,
    /// All numbers 0.
    Zero,
    /// An empty list of numbers.
    EmptyVector,
    /// This many numbers each.
    Dims(usize),
    /// The last one has a number less than the others.
    MixedDims,
    /// Scaled by this factor, so no unit vector.
    Scaled(f32),
}

/// An answer, byte by byte.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    pub status: u16,
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    #[serde(default)]
    pub body: Body,
}

impl Reply {
    #[must_use]
    pub fn new(status: u16, content_type: &str, body: impl Into<Body>) -> Self {
        Self {
            status,
            headers: vec![("content-type".into(), content_type.into())],
            body: body.into(),
        }
    }

    #[must_use]
    pub fn json(status: u16, body: &Value) -> Self {
        Self::new(status, "application/json", body.to_string())
    }

    /// An error in the shape that OpenAI's servers use.
    #[must_use]
    pub fn error(status: u16, kind: &str, code: &str, message: &str) -> Self {
        Self::json(
            status,
            &json!({"error": {"message": message, "type": kind, "param": null, "code": code}}),
        )
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    #[must_use]
    pub fn retry_after(self, value: impl Into<String>) -> Self {
        self.header("retry-after", value)
    }
}

/// A body: a string, `{"base64": …}` for bytes that are no text, or `{"repeat": …, "count": …}` for a large one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Body {
    Text(String),
    Bytes {
        #[serde(with = "base64_bytes")]
        base64: Bytes,
    },
    Repeat {
        repeat: String,
        count: usize,
    },
}

impl Default for Body {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl Body {
    /// The bytes that go over the wire.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        match self {
            Self::Text(s) => Bytes::copy_from_slice(s.as_bytes()),
            Self::Bytes { base64 } => base64.clone(),
            Self::Repeat { repeat, count } => Bytes::from(repeat.repeat(*count)),
        }
    }
}

impl From<&str> for Body {
    fn from(s: &str) -> Self {
        Self::Text(s.to_owned())
    }
}
impl From<String> for Body {
    fn from(s: String) -> Self {
        Self::Text(s)
    }
}
impl From<Vec<u8>> for Body {
    fn from(b: Vec<u8>) -> Self {
        Self::Bytes { base64: b.into() }
    }
}

mod base64_bytes {
    use super::{Bytes, Deserialize as _};
    use base64::{Engine as _, engine::general_purpose::STANDARD};

    pub(super) fn serialize<S: serde::Serializer>(b: &Bytes, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(b))
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(d)?;
        STANDARD.decode(text).map(Bytes::from).map_err(serde::de::Error::custom)
    }
}

/// Answers that real providers give, by name. The wording is foreign on purpose (`_foreign`, HTML): a classification must
/// not hang on one vendor's English.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fixture {
    /// 400 `exceed_context_size_error`, as llama.cpp's server says it.
    ExceedContextSize,
    /// 400 that blames the input for something else.
    BadRequest,
    /// 401 `invalid_api_key`.
    InvalidKey,
    /// 401 in another language, with no code at all.
    InvalidKeyForeign,
    /// 402, the account has no money.
    PaymentRequired,
    /// 403 as JSON.
    ForbiddenJson,
    /// 403 as a firewall's page.
    ForbiddenHtml,
    /// 404 `model_not_found`.
    ModelNotFound,
    /// 404 as plain text: a wrong path.
    NotFoundPlain,
    /// 413, the request's body is too large.
    PayloadTooLarge,
    /// 422, validation.
    Unprocessable,
    /// 429 with no Retry-After. For one with it see [`Reply::retry_after`].
    TooManyRequests,
    /// 429 with `Retry-After: 1`.
    TooManyRequestsRetryAfter,
    /// 429 `insufficient_quota`: no rate limit, though it looks like one.
    InsufficientQuota,
    /// 500 with a JSON error.
    InternalError,
    /// 500 whose text speaks of a bad key: still an outage.
    InternalErrorAboutKey,
    /// 502 as a proxy's page.
    BadGateway,
    /// 503 with a JSON error.
    ServiceUnavailable,
    /// 503 whose text says `exceed_context_size_error`: still an outage.
    ServiceUnavailableOversize,
    /// 503 with an escaped NUL in its JSON message.
    EscapedNul,
    /// 503 with a raw NUL byte in its text.
    RawNul,
    /// 503 with an escaped lone surrogate in its JSON message.
    LoneSurrogate,
    /// 503 with bytes that are no UTF-8.
    InvalidUtf8,
    /// 503 with five megabytes of text.
    FiveMegabytes,
    /// 200 with nothing in it.
    EmptyOk,
    /// 200 with a page of HTML: a captive portal.
    HtmlOk,
    /// 200 that carries an error object.
    ErrorInOk,
}

impl Fixture {
    /// The answer of that name; change its status or body for a variant (`400` with a NUL, …).
    #[must_use]
    pub fn reply(self) -> Reply {
        const HTML: &str = "text/html; charset=utf-8";
        match self {
            Self::ExceedContextSize => Reply::json(
                400,
                &json!({"error": {"code": 400, "message": "the request exceeds the available context size, try increasing it",
                                  "type": "exceed_context_size_error", "n_prompt_tokens": 9001, "n_ctx": 8192}}),
            ),
            Self::BadRequest => Reply::error(400, "invalid_request_error", "invalid_value", "'input' is not acceptable"),
            Self::InvalidKey => Reply::error(401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
            Self::InvalidKeyForeign => Reply::json(401, &json!({"fehler": "Der Schlüssel wird nicht angenommen."})),
            Self::PaymentRequired => Reply::error(402, "billing_error", "payment_required", "Your balance does not suffice."),
            Self::ForbiddenJson => Reply::error(403, "permission_error", "forbidden", "This key may not use this model."),
            Self::ForbiddenHtml => Reply::new(
                403,
                HTML,
                "<html><head><title>Access denied</title></head><body><h1>Error 1020</h1></body></html>",
            ),
            Self::ModelNotFound => Reply::error(
                404,
                "invalid_request_error",
                "model_not_found",
                "The model does not exist or you have no access to it.",
            ),
            Self::NotFoundPlain => Reply::new(404, "text/plain", "404 page not found\n"),
            Self::PayloadTooLarge => Reply::new(413, HTML, "<html><body><h1>413 Request Entity Too Large</h1></body></html>"),
            Self::Unprocessable => Reply::json(
                422,
                &json!({"detail": [{"loc": ["body", "input"], "msg": "value is not a valid list", "type": "type_error.list"}]}),
            ),
            Self::TooManyRequests => Reply::error(429, "requests", "rate_limit_exceeded", "Rate limit reached, slow down."),
            Self::TooManyRequestsRetryAfter => Self::TooManyRequests.reply().retry_after("1"),
            Self::InsufficientQuota => Reply::error(429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota."),
            Self::InternalError => Reply::error(
                500,
                "server_error",
                "internal_error",
                "The server had an error while processing the request.",
            ),
            Self::InternalErrorAboutKey => Reply::error(500, "server_error", "internal_error", "upstream said: invalid_api_key (401)"),
            Self::BadGateway => Reply::new(
                502,
                HTML,
                "<html><head><title>502 Bad Gateway</title></head><body><hr>proxy</body></html>",
            ),
            Self::ServiceUnavailable => Reply::error(503, "server_error", "overloaded", "The model is loading."),
            Self::ServiceUnavailableOversize => Reply {
                status: 503,
                ..Self::ExceedContextSize.reply()
            },
            Self::EscapedNul => Reply::new(
                503,
                "application/json",
                r#"{"error":{"message":"before\u0000after","type":"server_error"}}"#,
            ),
            Self::RawNul => Reply::new(503, "text/plain", b"before\0after".to_vec()),
            Self::LoneSurrogate => Reply::new(
                503,
                "application/json",
                r#"{"error":{"message":"high \ud83d, low \udc00","type":"server_error"}}"#,
            ),
            Self::InvalidUtf8 => Reply::new(503, "text/plain", b"bytes \xff\xfe\xc3( and text".to_vec()),
            Self::FiveMegabytes => Reply::new(
                503,
                "text/plain",
                Body::Repeat {
                    repeat: "overloaded ".into(),
                    count: 5 * 1024 * 1024 / 11 + 1,
                },
            ),
            Self::EmptyOk => Reply::new(200, "application/json", ""),
            Self::HtmlOk => Reply::new(200, HTML, "<html><body>Please log in to the guest network.</body></html>"),
            Self::ErrorInOk => Reply {
                status: 200,
                ..Self::InternalError.reply()
            },
        }
    }
}

/// The text that says which of an embeddings answer's numbers are what: faults that JSON itself cannot express need the
/// body to be written as text.
pub(super) fn embeddings_body(model: &str, vectors: Vec<Vec<f32>>, tokens: u64, base64: bool, fault: Option<&VectorFault>) -> String {
    use std::fmt::Write as _;

    let count = vectors.len();
    let mut items: Vec<(Option<usize>, Vec<f32>)> = vectors.into_iter().enumerate().map(|(i, v)| (Some(i), v)).collect();
    match fault {
        Some(VectorFault::OneShort) => {
            items.pop();
        }
        Some(VectorFault::OneMore) => items.extend(items.last().cloned().map(|(_, v)| (Some(count), v))),
        Some(VectorFault::NoData) => items.clear(),
        Some(VectorFault::DuplicateIndex) => {
            if let [one] = items.as_slice() {
                items.push(one.clone());
            } else if let Some(second) = items.get_mut(1) {
                second.0 = Some(0);
            }
        }
        Some(VectorFault::AllIndexZero) => items.iter_mut().for_each(|i| i.0 = Some(0)),
        Some(VectorFault::Reversed) => items.reverse(),
        Some(VectorFault::NoIndex) => items.iter_mut().for_each(|i| i.0 = None),
        Some(VectorFault::IndexOutOfRange) => {
            if let Some(last) = items.last_mut() {
                last.0 = Some(count + 5);
            }
        }
        Some(VectorFault::Zero) => items.iter_mut().for_each(|i| i.1.fill(0.0)),
        Some(VectorFault::EmptyVector) => items.iter_mut().for_each(|i| i.1.clear()),
        Some(VectorFault::Dims(n)) => items.iter_mut().for_each(|i| i.1.resize(*n, 0.01)),
        Some(VectorFault::MixedDims) => {
            if let Some(last) = items.last_mut() {
                last.1.pop();
            }
        }
        Some(VectorFault::Scaled(f)) => items.iter_mut().flat_map(|i| i.1.iter_mut()).for_each(|x| *x *= f),
        Some(VectorFault::NaN | VectorFault::Null | VectorFault::StringNumber | VectorFault::Huge) | None => {}
    }
    let odd = match fault {
        Some(VectorFault::NaN) => Some("NaN"),
        Some(VectorFault::Null) => Some("null"),
        Some(VectorFault::StringNumber) => Some("\"0.25\""),
        Some(VectorFault::Huge) => Some("1e300"),
        _ => None,
    };
    let mut out = String::from(r#"{"object":"list","data":["#);
    for (n, (index, vector)) in items.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        out.push_str(r#"{"object":"embedding","#);
        if let Some(i) = index {
            let _ = write!(out, r#""index":{i},"#);
        }
        out.push_str(r#""embedding":"#);
        if base64 && odd.is_none() {
            let raw: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            let _ = write!(out, "\"{}\"", base64::engine::general_purpose::STANDARD.encode(raw));
        } else {
            out.push('[');
            for (k, x) in vector.iter().enumerate() {
                if k > 0 {
                    out.push(',');
                }
                match odd {
                    Some(word) if k == 1 => out.push_str(word),
                    _ => {
                        let _ = write!(out, "{x}");
                    }
                }
            }
            out.push(']');
        }
        out.push('}');
    }
    let _ = write!(
        out,
        r#"],"model":{},"usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}}}"#,
        Value::from(model)
    );
    out
}
