//! What comes in, checked before anything is done with it: query strings, ids, headers, JSON. A refusal names the field.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::config::Config;
use crate::error::ApiError;

/// The longest title, file name, conversation id or Space name, in characters.
pub const MAX_NAME: usize = 500;
/// The longest question, in bytes.
pub const MAX_QUESTION: usize = 8 << 10;
/// The largest JSON body: `remember` is for notes; files go through uploads, which are not held in memory.
pub const MAX_JSON: u64 = 8 << 20;
/// The largest `metadata` of a document, in bytes of JSON.
pub const MAX_METADATA: usize = 256 << 10;
/// How long a body that is refused is still read and thrown away. Closing on a client that is still sending resets the
/// connection, and it would never see why.
const LINGER: Duration = Duration::from_secs(5);

/// A query string, decoded strictly: what is not UTF-8 is refused, not repaired.
#[derive(Debug, Default)]
pub struct Query(BTreeMap<String, Vec<String>>);

impl Query {
    /// # Errors
    /// 400 naming the parameter that is not UTF-8, has a broken escape or a NUL.
    pub fn parse(raw: Option<&str>) -> Result<Self, ApiError> {
        let mut params: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in raw.unwrap_or_default().split('&').filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name).map_err(|wrong| ApiError::invalid("query string", wrong))?;
            let value = decode(value).map_err(|wrong| ApiError::invalid(name.clone(), wrong))?;
            if value.contains('\0') {
                return Err(ApiError::invalid(name, "must not contain a NUL character"));
            }
            params.entry(name).or_default().push(value);
        }
        Ok(Self(params))
    }

    /// The value of a parameter that is given at most once; an empty one counts as not given.
    ///
    /// # Errors
    /// 400 when it is given twice.
    pub fn one(&self, name: &str) -> Result<Option<&str>, ApiError> {
        match self.0.get(name).map(Vec::as_slice) {
            None | Some([]) => Ok(None),
            Some([v]) => Ok(Some(v.as_str()).filter(|v| !v.is_empty())),
            Some(_) => Err(ApiError::invalid(name, "is given more than once")),
        }
    }

    /// All values of a parameter that may be repeated, under any of its names.
    #[must_use]
    pub fn all(&self, names: &[&str]) -> Vec<String> {
        names
            .iter()
            .filter_map(|n| self.0.get(*n))
            .flatten()
            .filter(|v| !v.is_empty())
            .cloned()
            .collect()
    }

    /// # Errors
    /// 400 when it is neither `true` nor `false`.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.one(name)? {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(ApiError::invalid(name, "must be true or false")),
        }
    }

    /// A number within bounds, or `default`.
    ///
    /// # Errors
    /// 400 naming the bounds.
    pub fn number(&self, name: &str, default: usize, min: usize, max: usize) -> Result<usize, ApiError> {
        let Some(text) = self.one(name)? else { return Ok(default) };
        text.parse()
            .ok()
            .filter(|n| (min..=max).contains(n))
            .ok_or_else(|| ApiError::invalid(name, format!("must be a number from {min} to {max}")))
    }

    /// The id after which a list goes on.
    ///
    /// # Errors
    /// 400 when it is not one of ours.
    pub fn before(&self) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.one("cursor")? else { return Ok(None) };
        text.parse()
            .map(Some)
            .map_err(|_| ApiError::invalid("cursor", "is not one that this list gave out"))
    }
}

/// `application/x-www-form-urlencoded`, strictly.
fn decode(s: &str) -> Result<String, String> {
    let mut out = Vec::with_capacity(s.len());
    let mut bytes = s.bytes();
    while let Some(b) = bytes.next() {
        match b {
            b'+' => out.push(b' '),
            b'%' => {
                let hex = |d: Option<u8>| d.and_then(|d| char::from(d).to_digit(16));
                match (hex(bytes.next()), hex(bytes.next())) {
                    // Two hexadecimal digits are below 256.
                    (Some(high), Some(low)) => out.push(u8::try_from(high * 16 + low).unwrap_or(0)),
                    _ => return Err("has a broken percent escape".into()),
                }
            }
            b => out.push(b),
        }
    }
    // Lone surrogates end here too: in UTF-8 they have no encoding.
    String::from_utf8(out).map_err(|_| "is not valid UTF-8".into())
}

/// A short text for a person to read: a title, a file name, a conversation's id.
///
/// # Errors
/// 400 when it is empty, too long or has control characters.
pub fn name(field: &str, value: &str) -> Result<String, ApiError> {
    let value = value.trim();
    if value.is_empty() {
        return Err(ApiError::invalid(field, "must not be empty"));
    }
    if value.chars().count() > MAX_NAME {
        return Err(ApiError::invalid(field, format!("must be at most {MAX_NAME} characters")));
    }
    if value.chars().any(char::is_control) {
        return Err(ApiError::invalid(field, "must not contain control characters"));
    }
    Ok(value.to_owned())
}

/// An id from a path. What is not a number is nobody's id.
///
/// # Errors
/// 404.
pub fn id(what: &str, text: &str) -> Result<i64, ApiError> {
    text.parse().map_err(|_| ApiError::not_found(format!("there is no such {what}")))
}

/// The caller's key for "I may send this again".
///
/// # Errors
/// 400 when it is empty, too long or not printable.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let key = value.to_str().unwrap_or_default().trim();
    if key.is_empty() || key.len() > 255 {
        return Err(ApiError::invalid("Idempotency-Key", "must be 1 to 255 printable ASCII characters"));
    }
    Ok(Some(key.to_owned()))
}

/// The media type without its parameters; what cannot be read as one is just bytes.
#[must_use]
pub fn media_type(headers: &HeaderMap) -> String {
    let token = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b));
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .map(|v| v.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
        .filter(|v| v.len() <= 127 && v.split_once('/').is_some_and(|(a, b)| token(a) && token(b)))
        .unwrap_or_else(|| "application/octet-stream".to_owned())
}

/// A body, piece by piece, within a size and a time.
#[derive(Debug)]
pub struct Pieces {
    stream: axum::body::BodyDataStream,
    limit: u64,
    got: u64,
    idle: Duration,
    until: tokio::time::Instant,
}

impl Pieces {
    /// # Errors
    /// 413 when the declared length is over the limit already.
    pub async fn of(body: Body, headers: &HeaderMap, limit: u64, config: &Config) -> Result<Self, ApiError> {
        let declared: Option<u64> = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.parse().ok());
        let mut pieces = Self {
            stream: body.into_data_stream(),
            limit,
            got: 0,
            idle: config.body_idle,
            until: tokio::time::Instant::now() + config.body_timeout,
        };
        // A client that waits for "100 Continue" has sent nothing yet and needs no lingering; the rest hear us after it.
        if declared.is_some_and(|n| n > limit) {
            if !headers.contains_key(header::EXPECT) {
                pieces.linger().await;
            }
            return Err(ApiError::too_large(limit));
        }
        Ok(pieces)
    }

    /// The next piece; none at the end.
    ///
    /// # Errors
    /// 413 past the limit, 408 when it stalls or takes too long, 400 when the connection breaks off.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let by = self.until.min(tokio::time::Instant::now() + self.idle);
        match tokio::time::timeout_at(by, self.stream.next()).await {
            Err(_) => Err(ApiError::body_stalled()),
            Ok(None) => Ok(None),
            Ok(Some(Err(_))) => Err(ApiError::invalid("body", "broke off before its end")),
            Ok(Some(Ok(piece))) => {
                self.got += piece.len() as u64;
                if self.got > self.limit {
                    self.linger().await;
                    return Err(ApiError::too_large(self.limit));
                }
                Ok(Some(piece))
            }
        }
    }

    /// All of it, in memory.
    ///
    /// # Errors
    /// As [`Pieces::next`].
    pub async fn whole(mut self) -> Result<Bytes, ApiError> {
        let mut all = BytesMut::new();
        while let Some(piece) = self.next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }

    async fn linger(&mut self) {
        let _ = tokio::time::timeout(LINGER, async { while let Some(Ok(_)) = self.stream.next().await {} }).await;
    }
}

/// A JSON object.
///
/// # Errors
/// 400 naming the member at which it stops being one, or that has a NUL in its text or name.
pub fn json_object(body: &[u8]) -> Result<serde_json::Map<String, Value>, ApiError> {
    let value: Value = serde_json::from_slice(body).map_err(|e| {
        let field = field_at(body, e.line(), e.column());
        // serde's sentence says what is wrong and where; it does not quote the text.
        ApiError::invalid(
            if field.is_empty() { "body".to_owned() } else { field },
            format!("is not valid JSON: {e}"),
        )
    })?;
    if let Some(field) = nul_in(&value, "") {
        return Err(ApiError::invalid(field, "must not contain a NUL character"));
    }
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(ApiError::invalid("body", "must be a JSON object")),
    }
}

/// The first place with a NUL, which JSON can say and Postgres cannot keep.
fn nul_in(value: &Value, path: &str) -> Option<String> {
    let below = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    match value {
        Value::String(s) if s.contains('\0') => Some(path.to_owned()),
        Value::Array(items) => items.iter().enumerate().find_map(|(i, v)| nul_in(v, &below(&i.to_string()))),
        Value::Object(map) => map.iter().find_map(|(k, v)| {
            let place = below(&k.replace('\0', "\u{FFFD}"));
            if k.contains('\0') { Some(place) } else { nul_in(v, &place) }
        }),
        _ => None,
    }
}

/// Which member a position in a JSON text belongs to, as a dotted path: the parser knows the position only.
fn field_at(body: &[u8], line: usize, column: usize) -> String {
    enum Level {
        Object { key: String, at_key: bool },
        Array(usize),
    }
    let start: usize = body
        .split_inclusive(|b| *b == b'\n')
        .take(line.saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    // Before the byte that was one too many: it may close the very level that it broke.
    let end = (start + column.saturating_sub(1)).min(body.len());
    let mut levels: Vec<Level> = Vec::new();
    let mut i = 0;
    while i < end {
        match body[i] {
            b'{' => levels.push(Level::Object {
                key: String::new(),
                at_key: true,
            }),
            b'[' => levels.push(Level::Array(0)),
            b'}' | b']' => {
                levels.pop();
            }
            b':' => {
                if let Some(Level::Object { at_key, .. }) = levels.last_mut() {
                    *at_key = false;
                }
            }
            b',' => match levels.last_mut() {
                Some(Level::Object { at_key, .. }) => *at_key = true,
                Some(Level::Array(n)) => *n += 1,
                None => {}
            },
            b'"' => {
                let from = i + 1;
                i = from;
                while i < end && body[i] != b'"' {
                    i += if body[i] == b'\\' { 2 } else { 1 };
                }
                if let Some(Level::Object { key, at_key: true }) = levels.last_mut() {
                    *key = String::from_utf8_lossy(&body[from.min(end)..i.min(end)]).chars().take(80).collect();
                }
            }
            _ => {}
        }
        i += 1;
    }
    let parts: Vec<String> = levels
        .iter()
        .take(10)
        .map(|l| match l {
            Level::Object { key, .. } => key.clone(),
            Level::Array(n) => n.to_string(),
        })
        .filter(|p| !p.is_empty())
        .collect();
    parts.join(".")
}

/// JSON with its members in order: two texts that mean the same are the same.
#[must_use]
pub fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, &Value> = map.iter().collect();
            let members: Vec<String> = sorted
                .into_iter()
                .map(|(k, v)| format!("{}:{}", Value::String(k.clone()), canonical(v)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

/// How a list ends: only by the absence of `nextCursor` (requirement P35).
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pagination {
    pub limit: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The envelope of every list.
#[derive(Debug, Serialize, ToSchema)]
pub struct Page<T> {
    pub data: Vec<T>,
    pub pagination: Pagination,
}

impl<T> Page<T> {
    /// From one row more than the page holds: that one says that there is a next page.
    pub fn cut<R>(mut rows: Vec<R>, limit: usize, id: impl Fn(&R) -> i64, show: impl FnMut(R) -> T) -> Self {
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next_cursor = if more { rows.last().map(|r| id(r).to_string()) } else { None };
        Self {
            data: rows.into_iter().map(show).collect(),
            pagination: Pagination { limit, next_cursor },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields_of(result: Result<impl std::fmt::Debug, ApiError>) -> String {
        format!("{:?}", result.expect_err("it must be refused"))
    }

    #[test]
    fn case11_what_postgres_cannot_keep_is_refused_by_name() {
        for (body, field) in [
            (r#"{"text":"a\u0000b"}"#, "text"),
            (r#"{"text":"x","metadata":{"a":[1,"\ud83d"]}}"#, "metadata.a.1"),
            (r#"{"text":"x","metadata":{"low":"\udc00"}}"#, "metadata.low"),
            (r#"{"text":"x","metadata":{"k\u0000":1}}"#, "metadata.k\u{FFFD}"),
            (r#"{"text":"x","title":}"#, "title"),
        ] {
            let e = fields_of(json_object(body.as_bytes()));
            assert!(e.contains(&format!("{field:?}:")), "{body}: {e}");
        }
        assert_eq!(
            json_object(r#"{"t":"\ud83d\ude00"}"#.as_bytes()).expect("a pair is a character")["t"],
            "😀"
        );
        let deep = format!("{{\"metadata\":{}1{}}}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(fields_of(json_object(deep.as_bytes())).contains("metadata"));
    }

    #[test]
    fn a_query_string_is_not_repaired() {
        assert!(fields_of(Query::parse(Some("filename=%ED%A0%80"))).contains("filename"));
        assert!(fields_of(Query::parse(Some("filename=a%00b"))).contains("NUL"));
        assert!(fields_of(Query::parse(Some("q=%4"))).contains("escape"));
        let q = Query::parse(Some("q=a+b%26&spaceIds=1&spaceIds=2&explain=true")).expect("valid");
        assert_eq!(q.one("q").expect("once"), Some("a b&"));
        assert_eq!(q.all(&["spaceId", "spaceIds"]), ["1", "2"]);
        assert_eq!(q.flag("explain").expect("a flag"), Some(true));
        assert!(q.one("spaceIds").is_err());
    }

    #[test]
    fn case32_the_order_of_members_does_not_matter() {
        let a = serde_json::json!({"b": [1, {"y": 1, "x": 2}], "a": "\"q\""});
        let b: Value = serde_json::from_str(r#"{"a":"\"q\"","b":[1,{"x":2,"y":1}]}"#).expect("JSON");
        assert_eq!(canonical(&a), canonical(&b));
    }
}
