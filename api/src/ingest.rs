//! Material in: bytes to the blob store, then document, job and idempotency key in one transaction, then 202. Never 202
//! without a durable row (decision B53); never a row whose bytes are not there (P13).

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use queue_schema::document::{self, Key, NewDocument};
use queue_schema::tenant::{self, Scope};
use queue_schema::{Conn, Db, JobKind, Lane, diagnostics, notice};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use crate::App;
use crate::auth::Caller;
use crate::error::{ApiError, ErrorBody};
use crate::input::{self, MAX_JSON, MAX_METADATA, Pieces, Query};

/// How sensitive material is that says nothing of itself: plain, so that endpoints trusted for plain material may read it.
const LEVEL: i16 = 1;

/// What `remember` takes. `content` is another name for `text`, `spaceId` for a single one of `spaceIds`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code)] // describes the body; it is read member by member, so that a refusal can name the member
pub struct Remember {
    pub text: String,
    pub title: Option<String>,
    /// One Space, by id or name.
    pub space_ids: Vec<String>,
    pub conversation_id: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Value>,
}

/// The answer to everything that was handed in.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Accepted {
    /// Always `queued`.
    pub status: String,
    pub job_id: String,
    pub document_id: String,
    /// For a person: what happens next.
    pub note: String,
    /// False when nobody is there to work on it now; it is stored all the same.
    pub extracting: bool,
}

/// Keeps a note.
#[utoipa::path(
    post, path = "/api/v1/remember", tag = "ingest", security(("bearer" = [])), request_body = Remember,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key and request again: the first answer again")),
    responses((status = 202, body = Accepted), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
              (status = 413, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody))
)]
pub async fn remember(State(app): State<Arc<App>>, Caller(scope): Caller, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let key = input::idempotency_key(&headers)?;
    let _place = app.body_place().await?;
    let body = Pieces::of(body, &headers, MAX_JSON, &app.config).await?.whole().await?;
    let request = input::json_object(&body)?;
    drop(body);

    let text = text_member(&request, "text")?.or(text_member(&request, "content")?);
    let text = text.ok_or_else(|| ApiError::invalid("text", "is required: the text to remember"))?;
    if text.trim().is_empty() {
        return Err(ApiError::invalid("text", "must not be empty"));
    }
    let title = match text_member(&request, "title")? {
        Some(t) if !t.trim().is_empty() => input::name("title", t)?,
        _ => first_line(text),
    };
    let conversation = text_member(&request, "conversationId")?
        .map(|c| input::name("conversationId", c))
        .transpose()?;
    let metadata = match request.get("metadata") {
        None | Some(Value::Null) => json!({}),
        Some(m @ Value::Object(_)) if m.to_string().len() <= MAX_METADATA => m.clone(),
        Some(Value::Object(_)) => {
            return Err(ApiError::invalid(
                "metadata",
                format!("must be at most {MAX_METADATA} bytes of JSON"),
            ));
        }
        Some(_) => return Err(ApiError::invalid("metadata", "must be an object")),
    };
    let named = spaces_member(&request)?;
    let space_id = resolve_space(
        &app.db,
        &scope,
        &named,
        if request.contains_key("spaceId") { "spaceId" } else { "spaceIds" },
    )
    .await?;
    let request_hash = Sha256::digest(input::canonical(&Value::Object(request.clone())).as_bytes()).to_vec();

    let bytes = Bytes::copy_from_slice(text.as_bytes());
    if let Some(key) = &key
        && let Some(answer) = seen(&app.db, &scope, "remember", key, &request_hash).await?
    {
        return Ok(answer);
    }
    let new = NewDocument {
        space_id,
        conversation,
        title,
        media_type: "text/plain".into(),
        byte_count: i64::try_from(bytes.len()).unwrap_or(i64::MAX),
        sha256: Sha256::digest(&bytes).to_vec(),
        blob_key: app.blobs.put(scope.tenant_id(), bytes).await?,
        level: Some(LEVEL),
        metadata,
    };
    accept(&app, &scope, "remember", key.as_deref(), &request_hash, &new).await
}

/// Takes a file, as the raw body.
#[utoipa::path(
    post, path = "/api/v1/uploads/direct", tag = "ingest", security(("bearer" = [])),
    params(
        ("filename" = String, Query, description = "As a person calls it; becomes the title"),
        ("spaceId" = String, Query, description = "One Space, by id or name"),
        ("conversationId" = Option<String>, Query),
        ("title" = Option<String>, Query),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key and request again: the first answer again"),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 202, body = Accepted), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
              (status = 408, body = ErrorBody), (status = 413, body = ErrorBody), (status = 422, body = ErrorBody), (status = 429, body = ErrorBody),
              (status = 503, body = ErrorBody))
)]
pub async fn upload(
    State(app): State<Arc<App>>,
    Caller(scope): Caller,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    // All that can be refused is refused before the first byte of the file is read.
    let query = Query::parse(query.as_deref())?;
    let filename = input::name(
        "filename",
        query.one("filename")?.ok_or_else(|| ApiError::invalid("filename", "is required"))?,
    )?;
    let title = query
        .one("title")?
        .map(|t| input::name("title", t))
        .transpose()?
        .unwrap_or_else(|| filename.clone());
    let conversation = query.one("conversationId")?.map(|c| input::name("conversationId", c)).transpose()?;
    let key = input::idempotency_key(&headers)?;
    let media_type = input::media_type(&headers);
    let space_id = resolve_space(&app.db, &scope, &query.all(&["spaceId", "spaceIds"]), "spaceId").await?;

    let _place = app.body_place().await?;
    let pieces = Pieces::of(body, &headers, app.config.max_upload, &app.config).await?;
    let (blob_key, sha256, byte_count) = receive(&app, &scope, pieces).await?;

    let request = json!({
        "filename": filename, "title": title, "space": space_id, "conversation": conversation, "type": media_type,
        "sha256": sha256.iter().map(|b| format!("{b:02x}")).collect::<String>(),
    });
    let request_hash = Sha256::digest(input::canonical(&request).as_bytes()).to_vec();
    let new = NewDocument {
        space_id,
        conversation,
        title,
        media_type,
        byte_count,
        sha256,
        blob_key,
        level: Some(LEVEL),
        metadata: json!({ "filename": filename }),
    };
    accept(&app, &scope, "uploads/direct", key.as_deref(), &request_hash, &new).await
}

/// A body into the blob store, hashed on the way; on any fault nothing stays there.
async fn receive(app: &App, scope: &Scope, mut pieces: Pieces) -> Result<(String, Vec<u8>, i64), ApiError> {
    let mut writer = app.blobs.writer(scope.tenant_id());
    let (mut hash, mut count) = (Sha256::new(), 0_i64);
    let fault = loop {
        match pieces.next().await {
            Ok(Some(piece)) => {
                hash.update(&piece);
                count += i64::try_from(piece.len()).unwrap_or(0);
                if let Err(e) = writer.write(piece).await {
                    break Some(ApiError::from(e));
                }
            }
            Ok(None) if count == 0 => break Some(ApiError::invalid("body", "is empty: send the file's bytes")),
            Ok(None) => break None,
            Err(e) => break Some(e),
        }
    };
    if let Some(fault) = fault {
        writer.abort().await;
        return Err(fault);
    }
    Ok((writer.finish().await?, hash.finalize().to_vec(), count))
}

/// The one transaction, and the answer. Of several requests with one key the first writes; the others wait for it on the
/// key's index and are given its answer.
async fn accept(
    app: &App,
    scope: &Scope,
    route: &str,
    key: Option<&str>,
    request_hash: &[u8],
    new: &NewDocument,
) -> Result<Response, ApiError> {
    match write(&app.db, scope, route, key, request_hash, new).await {
        Ok(Written::New(response)) => {
            app.hinter.wake(JobKind::Extract, Lane::Batch);
            Ok((StatusCode::ACCEPTED, Json(response)).into_response())
        }
        Ok(Written::Before(known)) => {
            discard(app, &new.blob_key).await;
            answer_again(known)
        }
        // The commit may have happened with only its answer lost: the bytes stay, and if no row points at them they are
        // collected a day later.
        Err(e) => Err(e),
    }
}

enum Written {
    New(Value),
    Before(Key),
}

async fn write(
    db: &Db,
    scope: &Scope,
    route: &str,
    key: Option<&str>,
    request_hash: &[u8],
    new: &NewDocument,
) -> Result<Written, ApiError> {
    let mut tx = scope.begin(db).await?;
    if let Some(key) = key {
        match document::take_key(&mut tx, scope, route, key, request_hash).await? {
            Key::Ours => {}
            known => return Ok(Written::Before(known)),
        }
    }
    let made = document::create(&mut tx, scope, new).await?;
    let (note, extracting) = outlook(&mut tx, scope).await?;
    let response = json!({
        "status": "queued", "jobId": made.job_id.to_string(), "documentId": made.document_id.to_string(), "note": note, "extracting": extracting,
    });
    if let Some(key) = key {
        document::keep(&mut tx, scope, route, key, &response).await?;
    }
    Db::commit(tx).await?;
    tracing::info!(
        job.id = made.job_id,
        document.id = made.document_id,
        tenant.id = scope.tenant_id(),
        "accepted"
    );
    Ok(Written::New(response))
}

/// What will become of it now: a sentence for a person, and whether anybody is at work.
async fn outlook(conn: &mut Conn, scope: &Scope) -> Result<(String, bool), ApiError> {
    let stopped: Vec<String> = diagnostics::breakers(&mut *conn, scope)
        .await?
        .into_iter()
        .map(|s| notice::sentence(&s.name, s.has_address))
        .collect();
    let extracting = diagnostics::extracting(conn).await?;
    let note = if !extracting {
        "Stored safely, but no worker is running: it will be read as soon as one is.".to_owned()
    } else if stopped.is_empty() {
        "Stored; it can be found in a moment.".to_owned()
    } else {
        format!("Stored. {}", stopped.join(" "))
    };
    Ok((note, extracting))
}

/// The answer given before under this key, if any.
async fn seen(db: &Db, scope: &Scope, route: &str, key: &str, request_hash: &[u8]) -> Result<Option<Response>, ApiError> {
    let mut tx = scope.begin(db).await?;
    document::find_key(&mut tx, scope, route, key, request_hash)
        .await?
        .map(answer_again)
        .transpose()
}

fn answer_again(known: Key) -> Result<Response, ApiError> {
    let Key::Answered(response) = known else {
        return Err(ApiError::mismatch());
    };
    let mut response = (StatusCode::ACCEPTED, Json(response)).into_response();
    response
        .headers_mut()
        .insert("idempotency-replayed", HeaderValue::from_static("true"));
    Ok(response)
}

async fn discard(app: &App, blob_key: &str) {
    if let Err(error) = app.blobs.delete(blob_key).await {
        tracing::debug!(%error, "bytes that no row points at are left for the collector");
    }
}

/// The one Space that was named. Never a guess, not even where there is only one (requirement P30).
async fn resolve_space(db: &Db, scope: &Scope, named: &[String], field: &str) -> Result<i64, ApiError> {
    let mut tx = scope.begin(db).await?;
    if let [one] = named {
        if let Some(id) = tenant::space_of(&mut tx, scope, one).await? {
            return Ok(id);
        }
        return Err(ApiError::unknown(
            field,
            format!("there is no such Space; {}", list_of(&mut tx, scope).await?),
        ));
    }
    let there = list_of(&mut tx, scope).await?;
    Err(ApiError::invalid(
        field,
        if named.is_empty() {
            format!("name the Space to keep it in; {there}")
        } else {
            format!("name one Space; {there}")
        },
    ))
}

async fn list_of(conn: &mut Conn, scope: &Scope) -> Result<String, ApiError> {
    let spaces = tenant::spaces(conn, scope).await?;
    if spaces.is_empty() {
        return Ok("you have none yet".into());
    }
    let names: Vec<String> = spaces.iter().take(50).map(|s| format!("{} (id {})", s.name, s.id)).collect();
    Ok(format!("you have: {}", names.join(", ")))
}

fn text_member<'a>(request: &'a serde_json::Map<String, Value>, name: &str) -> Result<Option<&'a str>, ApiError> {
    match request.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(s)) => Ok(Some(s)),
        Some(_) => Err(ApiError::invalid(name, "must be a text")),
    }
}

/// `spaceIds` as a list or a single one, or `spaceId`; ids may come as numbers.
fn spaces_member(request: &serde_json::Map<String, Value>) -> Result<Vec<String>, ApiError> {
    let mut named = Vec::new();
    for member in ["spaceIds", "spaceId"] {
        let items = match request.get(member) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(items)) => items.clone(),
            Some(one) => vec![one.clone()],
        };
        for item in items {
            match item {
                Value::String(s) if !s.is_empty() => named.push(s),
                Value::Number(n) => named.push(n.to_string()),
                _ => return Err(ApiError::invalid(member, "must name Spaces by id or name")),
            }
        }
    }
    named.dedup();
    Ok(named)
}

/// A title for a text that has none.
fn first_line(text: &str) -> String {
    let line: String = text
        .trim()
        .lines()
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|c| !c.is_control())
        .take(80)
        .collect();
    let line = line.trim();
    if line.is_empty() { "Note".to_owned() } else { line.to_owned() }
}
