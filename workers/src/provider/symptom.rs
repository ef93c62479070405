//! From the wire to a symptom, and from a symptom to a class: two pure functions, so that a table can test them.
//!
//! The symptom is what one answer shows by itself. The class needs more: whether the endpoint was well at the time, and
//! whether the failure can be this item's alone. Nothing here reads a clock, a socket or the database.

use queue_schema::outcome::RetryClass;
use serde_json::Value;

use super::words;

/// What one call showed. Closed: everything that can come over the wire is exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symptom {
    /// No answer came: DNS, connect, TLS, a reset, a body that was cut off.
    Unreachable,
    /// Something in front of the provider answered, or the provider said "not now": 408, 5xx other than 500, HTML pages.
    Unavailable,
    /// The deadline of the call passed. Recognised by the timer that fired, never by a message.
    Timeout,
    RateLimited,
    /// 401, or a 403 that the provider itself wrote.
    KeyRefused,
    /// 402, or a code that says quota or billing.
    Quota,
    /// The model or the path is not there, after the residency retries; or the endpoint's address cannot be used.
    ModelRefused,
    /// Any 3xx. Never followed: a redirect could carry the key to another host or turn a POST into a GET.
    Redirected,
    /// 400, 413 or 422 that says the text is longer than the model's window. Never read out of a 5xx.
    Oversize,
    /// A refusal of the input for any other reason.
    BadItem,
    /// 500: the item's fault or the provider's; only evidence tells.
    ServerError,
    /// A success status around something that is no answer, or one that cannot be bound to what was sent.
    InvalidResponse,
    /// One vector of an otherwise readable answer is unusable.
    InvalidVector,
    /// An answer without content.
    EmptyOutput,
    /// The call could not be made from here: the key's variable is empty, or the client could not be set up. Nothing was sent.
    NoKey,
}

impl Symptom {
    pub const ALL: [Self; 15] = [
        Self::Unreachable,
        Self::Unavailable,
        Self::Timeout,
        Self::RateLimited,
        Self::KeyRefused,
        Self::Quota,
        Self::ModelRefused,
        Self::Redirected,
        Self::Oversize,
        Self::BadItem,
        Self::ServerError,
        Self::InvalidResponse,
        Self::InvalidVector,
        Self::EmptyOutput,
        Self::NoKey,
    ];

    /// Whether a batch that met this is worth asking again in smaller parts: one of its texts may be to blame.
    #[must_use]
    pub fn splits(self) -> bool {
        match self {
            Self::Oversize | Self::BadItem | Self::ServerError | Self::InvalidResponse | Self::InvalidVector | Self::EmptyOutput => true,
            Self::Unreachable
            | Self::Unavailable
            | Self::Timeout
            | Self::RateLimited
            | Self::KeyRefused
            | Self::Quota
            | Self::ModelRefused
            | Self::Redirected
            | Self::NoKey => false,
        }
    }

    /// Whether the provider itself answered: the address, the key and the model are well, whatever became of the item.
    #[must_use]
    pub fn answered(self) -> bool {
        matches!(self, Self::Oversize | Self::BadItem | Self::InvalidVector | Self::EmptyOutput)
    }
}

/// What the caller knows beside the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The endpoint answered another item since this job was claimed, or within the last minute, or a control text has just
    /// passed (decision D8).
    pub answered_lately: bool,
    /// The failed request carried this item and nothing else, or splitting singled it out. Without it nobody is to blame yet.
    pub alone: bool,
}

/// The class of a symptom under the evidence.
///
/// `Timeout` stays `Timeout`: whose it was is decided by the probe that follows it, not here (decisions B4, D3). A failure
/// that could be anyone's in a batch (`alone` false) never parks a neighbour: too long becomes a charged retry, which ends,
/// and an ambiguous one is nobody's.
#[must_use]
pub fn class(symptom: Symptom, evidence: Evidence) -> RetryClass {
    let proven = evidence.answered_lately && evidence.alone;
    match symptom {
        Symptom::Unreachable | Symptom::Unavailable => RetryClass::Outage,
        Symptom::Timeout => RetryClass::Timeout,
        Symptom::RateLimited => RetryClass::RateLimited,
        Symptom::KeyRefused | Symptom::Quota | Symptom::ModelRefused | Symptom::Redirected => RetryClass::Refused,
        Symptom::Oversize if evidence.alone => RetryClass::Oversize,
        Symptom::Oversize | Symptom::BadItem => RetryClass::ItemError,
        Symptom::ServerError if proven => RetryClass::ItemError,
        Symptom::InvalidResponse if proven => RetryClass::InvalidOutput,
        Symptom::ServerError | Symptom::InvalidResponse => RetryClass::Outage,
        Symptom::InvalidVector => RetryClass::InvalidOutput,
        Symptom::EmptyOutput => RetryClass::EmptyOutput,
        Symptom::NoKey => RetryClass::Unservable,
    }
}

/// An answer with an error status, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub symptom: Symptom,
    pub cause: &'static str,
    /// The input the provider named, counted from 0.
    pub item: Option<usize>,
    /// The provider's own code, when it looks like one; safe to show.
    pub code: Option<String>,
    /// The provider's own words. May repeat the input: shown only after [`words::withhold`].
    pub words: String,
}

/// Codes of the dialects that mean "longer than the model's window".
const OVERSIZE_CODES: [&str; 9] = [
    "context_length",
    "exceed_context_size",
    "string_above_max_length",
    "string_too_long",
    "max_length",
    "input_too_long",
    "too_many_tokens",
    "token_limit",
    "too_long",
];
/// Words of the dialects that have no code for it. Asked only of 400 and 422.
const OVERSIZE_WORDS: [&str; 14] = [
    "exceed_context_size",
    "context_length_exceeded",
    "context length",
    "context size",
    "context window",
    "too many tokens",
    "too long",
    "token limit",
    "maximum number of tokens",
    "maximum sequence length",
    "physical batch size",
    "must have less than",
    "too large",
    "maximum length",
];
const QUOTA_CODES: [&str; 8] = [
    "quota",
    "billing",
    "insufficient_balance",
    "insufficient_credit",
    "insufficient_funds",
    "payment_required",
    "arrearage",
    "credit_balance",
];
const KEY_CODES: [&str; 6] = [
    "invalid_api_key",
    "api_key_invalid",
    "incorrect_api_key",
    "invalid_authentication",
    "authentication_error",
    "unauthenticated",
];
const MODEL_CODES: [&str; 6] = [
    "model_not_found",
    "model_not_loaded",
    "model_unloaded",
    "invalid_model",
    "unknown_model",
    "model_not_available",
];
const FILTER_CODES: [&str; 5] = [
    "content_filter",
    "content_policy",
    "responsibleai",
    "data_inspection_failed",
    "moderation",
];
/// What a local server says when the model went away under the request, or is not there. Asked only beside the word "model".
const MODEL_WORDS: [&str; 11] = [
    "unloaded",
    "not loaded",
    "not found",
    "does not exist",
    "not exist",
    "not resident",
    "failed to load",
    "load was cancel",
    "loading was cancel",
    "load cancel",
    "operation canceled",
];
/// Of these, what says that the model is known but not in memory just now.
const RESIDENCY_WORDS: [&str; 7] = [
    "unloaded",
    "not loaded",
    "not resident",
    "failed to load",
    "load was cancel",
    "loading was cancel",
    "operation canceled",
];

/// Reads an answer whose status is not a success. Pure: status, content type and body in, one symptom out.
///
/// `body` is what the provider sent, with the texts that were sent taken out by the caller: a provider that quotes its input
/// must not be judged by the words of the input.
#[must_use]
pub fn read(status: u16, content_type: Option<&str>, body: &str) -> Reading {
    let told = Told::from(body);
    let html = words::is_html(content_type, body);
    let (symptom, cause) = verdict(status, html, &told);
    let words = if html {
        "an HTML page, not an answer of the provider".to_owned()
    } else {
        told.message
    };
    Reading {
        symptom,
        cause,
        item: told.item,
        code: told.codes.into_iter().find(|c| words::looks_like_a_code(c)),
        words,
    }
}

fn verdict(status: u16, html: bool, told: &Told) -> (Symptom, &'static str) {
    let quota = || told.code_has(&QUOTA_CODES);
    match status {
        300..=399 => (Symptom::Redirected, "redirected"),
        401 => (Symptom::KeyRefused, "key_refused"),
        402 => (Symptom::Quota, "quota"),
        403 if html => (Symptom::Unavailable, "html_403"),
        403 if quota() => (Symptom::Quota, "quota"),
        403 if told.typed => (Symptom::KeyRefused, "forbidden"),
        403 => (Symptom::Unavailable, "untyped_403"),
        407 => (Symptom::KeyRefused, "proxy_key_refused"),
        408 => (Symptom::Unavailable, "http_408"),
        413 => (Symptom::Oversize, "too_large"),
        // By code alone: there are providers whose plain per-minute limit speaks of "quota" and "billing" in its prose.
        429 if quota() => (Symptom::Quota, "quota"),
        429 => (Symptom::RateLimited, "rate_limited"),
        // A page in HTML is a proxy's, whatever its number: the provider was not reached.
        _ if html => (Symptom::Unavailable, "html_error"),
        404 | 405 | 410 => model(told).unwrap_or((Symptom::ModelRefused, "not_found")),
        400 | 422 => input(told),
        424 | 500 => (Symptom::ServerError, "server_error"),
        425 => (Symptom::Unavailable, "http_425"),
        502 => (Symptom::Unavailable, "http_502"),
        503 => (Symptom::Unavailable, "http_503"),
        504 => (Symptom::Unavailable, "http_504"),
        501..=599 => (Symptom::Unavailable, "http_5xx"),
        // Unknown is charged, so that it ends.
        _ => (Symptom::BadItem, "unspecified"),
    }
}

fn input(told: &Told) -> (Symptom, &'static str) {
    if told.code_has(&KEY_CODES) {
        return (Symptom::KeyRefused, "key_refused");
    }
    if told.code_has(&QUOTA_CODES) {
        return (Symptom::Quota, "quota");
    }
    if told.code_has(&FILTER_CODES) {
        return (Symptom::BadItem, "content_filter");
    }
    if told.code_has(&OVERSIZE_CODES) || told.says(&OVERSIZE_WORDS) {
        return (Symptom::Oversize, "context_exceeded");
    }
    // "ensure this value has at most 512 characters", "should have at most 512 tokens"
    if told.says(&["at most"]) && told.says(&["character", "token"]) {
        return (Symptom::Oversize, "context_exceeded");
    }
    model(told).unwrap_or((Symptom::BadItem, "input_refused"))
}

fn model(told: &Told) -> Option<(Symptom, &'static str)> {
    let about_the_model = told.says(&["model"]);
    if told.code_has(&["model_not_loaded", "model_unloaded"]) || (about_the_model && told.says(&RESIDENCY_WORDS)) {
        return Some((Symptom::ModelRefused, "model_not_resident"));
    }
    (told.code_has(&MODEL_CODES) || (about_the_model && told.says(&MODEL_WORDS))).then_some((Symptom::ModelRefused, "model_not_found"))
}

/// What a body says, in whichever of the dialects it says it.
#[derive(Debug, Default)]
struct Told {
    /// Every member that plays the part of a code, lower-case.
    codes: Vec<String>,
    message: String,
    lower: String,
    item: Option<usize>,
    /// The provider wrote it: a JSON object with a member that speaks of the error.
    typed: bool,
}

impl Told {
    fn from(body: &str) -> Self {
        let mut told = Self::default();
        match words::lenient(body) {
            Some(Value::Object(root)) => {
                let root = Value::Object(root);
                told.object(&root);
                match root.get("error") {
                    Some(Value::String(s)) => told.say(s),
                    Some(e @ Value::Object(_)) => told.object(e),
                    _ => {}
                }
                told.typed = ["error", "message", "detail", "code", "error_type", "errors"]
                    .iter()
                    .any(|m| root.get(m).is_some_and(|v| !v.is_null()));
            }
            Some(Value::String(s)) => told.say(&s),
            // Neither JSON nor nearly: whatever text there is.
            _ => told.say(body),
        }
        told.lower = told.message.to_lowercase();
        told
    }

    fn object(&mut self, o: &Value) {
        for member in ["code", "type", "error_type", "status", "reason"] {
            match o.get(member) {
                Some(Value::String(s)) => self.codes.push(s.to_lowercase()),
                Some(Value::Object(_)) => {}
                _ => {}
            }
        }
        for member in ["message", "msg", "error_message"] {
            if let Some(Value::String(s)) = o.get(member) {
                self.say(s);
            }
        }
        // Some gateways wrap the code of what they refused one level deeper.
        if let Some(inner @ Value::Object(_)) = o.get("innererror") {
            self.object(inner);
        }
        if let Some(param) = o.get("param").and_then(Value::as_str) {
            self.item = self.item.or_else(|| index_of(param));
        }
        match o.get("detail") {
            Some(Value::String(s)) => self.say(s),
            Some(Value::Array(list)) => {
                for entry in list.iter().take(20) {
                    if let Some(Value::Array(place)) = entry.get("loc") {
                        let mut after_input = place.iter().skip_while(|p| p.as_str() != Some("input")).skip(1);
                        let index = after_input.next().and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
                        self.item = self.item.or(index);
                    }
                    self.object(entry);
                }
            }
            Some(inner @ Value::Object(_)) => self.object(inner),
            _ => {}
        }
    }

    fn say(&mut self, s: &str) {
        if !self.message.is_empty() {
            self.message.push_str("; ");
        }
        self.message.push_str(s.trim());
    }

    fn code_has(&self, parts: &[&str]) -> bool {
        self.codes.iter().any(|c| parts.iter().any(|p| c.contains(p)))
    }

    fn says(&self, parts: &[&str]) -> bool {
        parts.iter().any(|p| self.lower.contains(p))
    }
}

/// `input[3]`, `input.3`: the input a provider blames.
fn index_of(param: &str) -> Option<usize> {
    let rest = param.strip_prefix("input")?.strip_prefix(['[', '.'])?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: Option<&str> = Some("application/json");
    const HTML: Option<&str> = Some("text/html; charset=utf-8");
    const PLAIN: Option<&str> = Some("text/plain");

    fn seen(status: u16, ct: Option<&str>, body: &str) -> (Symptom, &'static str) {
        let r = read(status, ct, body);
        (r.symptom, r.cause)
    }

    /// One fixture per line of decision B14 (and B4 and B12, which it names): what trips, and what must not.
    #[test]
    fn b14_one_fixture_per_line() {
        let lone = Evidence {
            answered_lately: true,
            alone: true,
        };
        let table: [(u16, Option<&str>, &str, Symptom, RetryClass); 27] = [
            (
                401,
                JSON,
                r#"{"error":{"code":"invalid_api_key","message":"Incorrect API key provided"}}"#,
                Symptom::KeyRefused,
                RetryClass::Refused,
            ),
            (401, PLAIN, "", Symptom::KeyRefused, RetryClass::Refused),
            (
                403,
                JSON,
                r#"{"error":{"type":"permission_error","message":"no access"}}"#,
                Symptom::KeyRefused,
                RetryClass::Refused,
            ),
            (
                403,
                HTML,
                "<html><title>Blocked</title></html>",
                Symptom::Unavailable,
                RetryClass::Outage,
            ),
            (403, None, "  <!DOCTYPE html><p>WAF", Symptom::Unavailable, RetryClass::Outage),
            (
                402,
                JSON,
                r#"{"error":{"message":"Payment required"}}"#,
                Symptom::Quota,
                RetryClass::Refused,
            ),
            (
                429,
                JSON,
                r#"{"error":{"code":"insufficient_quota","type":"insufficient_quota"}}"#,
                Symptom::Quota,
                RetryClass::Refused,
            ),
            (
                429,
                JSON,
                r#"{"error":{"code":"billing_hard_limit_reached"}}"#,
                Symptom::Quota,
                RetryClass::Refused,
            ),
            (
                429,
                JSON,
                r#"{"error":{"code":"rate_limit_exceeded","message":"check your plan and billing"}}"#,
                Symptom::RateLimited,
                RetryClass::RateLimited,
            ),
            (429, HTML, "<html>slow down</html>", Symptom::RateLimited, RetryClass::RateLimited),
            (
                404,
                JSON,
                r#"{"error":{"code":"model_not_found","message":"The model x does not exist"}}"#,
                Symptom::ModelRefused,
                RetryClass::Refused,
            ),
            (
                404,
                JSON,
                r#"{"error":"model \"m\" not found, try pulling it first"}"#,
                Symptom::ModelRefused,
                RetryClass::Refused,
            ),
            (404, PLAIN, "404 page not found", Symptom::ModelRefused, RetryClass::Refused),
            (
                400,
                JSON,
                r#"{"error":"Model was unloaded while the request was still in queue"}"#,
                Symptom::ModelRefused,
                RetryClass::Refused,
            ),
            (
                400,
                JSON,
                r#"{"error":"Failed to load model \"x\". Operation canceled."}"#,
                Symptom::ModelRefused,
                RetryClass::Refused,
            ),
            (
                400,
                JSON,
                r#"{"error":{"message":"invalid character in input"}}"#,
                Symptom::BadItem,
                RetryClass::ItemError,
            ),
            (400, HTML, "<html>Bad Request</html>", Symptom::Unavailable, RetryClass::Outage),
            (404, HTML, "<html>nothing here</html>", Symptom::Unavailable, RetryClass::Outage),
            (408, None, "", Symptom::Unavailable, RetryClass::Outage),
            (500, HTML, "<html>oops</html>", Symptom::Unavailable, RetryClass::Outage),
            (
                500,
                JSON,
                r#"{"error":{"message":"boom"}}"#,
                Symptom::ServerError,
                RetryClass::ItemError,
            ),
            (502, None, "", Symptom::Unavailable, RetryClass::Outage),
            (
                503,
                JSON,
                r#"{"error":{"code":"exceed_context_size","message":"maximum context length"}}"#,
                Symptom::Unavailable,
                RetryClass::Outage,
            ),
            (
                503,
                JSON,
                r#"{"error":{"message":"Loading model"}}"#,
                Symptom::Unavailable,
                RetryClass::Outage,
            ),
            (504, None, "", Symptom::Unavailable, RetryClass::Outage),
            (522, None, "", Symptom::Unavailable, RetryClass::Outage),
            (307, None, "", Symptom::Redirected, RetryClass::Refused),
        ];
        for (status, ct, body, symptom, expected) in table {
            let got = read(status, ct, body);
            assert_eq!((got.symptom, class(got.symptom, lone)), (symptom, expected), "{status} {body}");
        }
    }

    /// Decision B11: every symptom, under every evidence, is exactly one class.
    #[test]
    fn b11_every_symptom_has_one_class_under_every_evidence() {
        use RetryClass as C;
        // columns: (lately, alone), (lately, batch), (not lately, alone), (not lately, batch)
        let table = [
            (Symptom::Unreachable, [C::Outage; 4]),
            (Symptom::Unavailable, [C::Outage; 4]),
            (Symptom::Timeout, [C::Timeout; 4]),
            (Symptom::RateLimited, [C::RateLimited; 4]),
            (Symptom::KeyRefused, [C::Refused; 4]),
            (Symptom::Quota, [C::Refused; 4]),
            (Symptom::ModelRefused, [C::Refused; 4]),
            (Symptom::Redirected, [C::Refused; 4]),
            (Symptom::Oversize, [C::Oversize, C::ItemError, C::Oversize, C::ItemError]),
            (Symptom::BadItem, [C::ItemError; 4]),
            (Symptom::ServerError, [C::ItemError, C::Outage, C::Outage, C::Outage]),
            (Symptom::InvalidResponse, [C::InvalidOutput, C::Outage, C::Outage, C::Outage]),
            (Symptom::InvalidVector, [C::InvalidOutput; 4]),
            (Symptom::EmptyOutput, [C::EmptyOutput; 4]),
            (Symptom::NoKey, [C::Unservable; 4]),
        ];
        assert_eq!(table.map(|(s, _)| s), Symptom::ALL);
        for (symptom, expected) in table {
            let got = [(true, true), (true, false), (false, true), (false, false)]
                .map(|(answered_lately, alone)| class(symptom, Evidence { answered_lately, alone }));
            assert_eq!(got, expected, "{symptom:?}");
        }
    }

    #[test]
    fn case62_six_dialects_of_too_long() {
        for (status, body) in [
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 8192 tokens","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
            ),
            (400, r#"{"error":"input is too long to process"}"#),
            (
                400,
                r#"{"object":"error","message":"This model's maximum context length is 512 tokens.","type":"BadRequestError","code":null}"#,
            ),
            (413, r#"{"error":"Input validation error","error_type":"Validation"}"#),
            (
                422,
                r#"{"detail":[{"loc":["body","input",3],"msg":"ensure this value has at most 512 characters","type":"value_error.any_str.max_length"}]}"#,
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error","n_ctx":512}}"#,
            ),
            (400, r#"{"error":{"code":400,"message":"too many tokens: 900 > 512"}}"#),
            (
                422,
                r#"{"error":"Input validation error: `inputs` must have less than 512 tokens. Given: 900","error_type":"Validation"}"#,
            ),
        ] {
            assert_eq!(seen(status, JSON, body).0, Symptom::Oversize, "{status} {body}");
        }
        assert_eq!(
            read(422, JSON, r#"{"detail":[{"loc":["body","input",3],"msg":"too long","type":"x"}]}"#).item,
            Some(3)
        );
        assert_eq!(read(400, JSON, r#"{"error":{"message":"bad","param":"input[7]"}}"#).item, Some(7));
        assert_eq!(read(400, JSON, r#"{"error":{"message":"bad","param":"input"}}"#).item, None);
    }

    #[test]
    fn c38_a_5xx_that_echoes_the_marker_is_never_too_long() {
        for status in [500, 502, 503, 504, 520, 599] {
            assert_ne!(
                seen(status, JSON, r#"{"error":{"code":"context_length_exceeded","message":"too long"}}"#).0,
                Symptom::Oversize
            );
        }
        // case 53: over-long, said with a 500; splitting finds the text
        let s = seen(
            500,
            JSON,
            r#"{"error":{"code":500,"message":"input is too large to process. increase the physical batch size","type":"server_error"}}"#,
        );
        assert_eq!(s.0, Symptom::ServerError);
        assert!(s.0.splits());
    }

    #[test]
    fn case88_a_content_filter_is_about_the_text() {
        let body = r#"{"error":{"code":"content_filter","message":"The response was filtered, too many requests of this kind"}}"#;
        assert_eq!(seen(400, JSON, body), (Symptom::BadItem, "content_filter"));
    }

    #[test]
    fn a_lone_surrogate_in_the_message_does_not_hide_the_code() {
        let r = read(
            400,
            JSON,
            r#"{"error":{"message":"bad \ud83d thing \\ud83d","code":"context_length_exceeded"}}"#,
        );
        assert_eq!((r.symptom, r.code.as_deref()), (Symptom::Oversize, Some("context_length_exceeded")));
    }

    #[test]
    fn n30_a_message_that_says_timeout_is_not_a_timeout() {
        assert_eq!(seen(500, JSON, r#"{"error":"request timed out"}"#).0, Symptom::ServerError);
        assert_eq!(seen(400, JSON, r#"{"error":"timeout must be a number"}"#).0, Symptom::BadItem);
    }
}
