//! Questions. Two legs run beside each other, by words and by meaning; either may fail and the other still answers, and the
//! answer says what it had to do without. It never fails because the semantic half did (decision B43).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{RawQuery, State};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use queue_schema::diagnostics::{self, Diagnostics};
use queue_schema::question::{self, Answer, Vector};
use queue_schema::search::{self, Found, Hit, Said, Shown, Terms, Within};
use queue_schema::tenant::{self, Scope};
use queue_schema::{Db, DbError, JobKind, Lane, job};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use utoipa::ToSchema;

use crate::App;
use crate::answers::Waiter;
use crate::auth::Caller;
use crate::error::{ApiError, ErrorBody};
use crate::input::{MAX_QUESTION, Pagination, Query};

/// How long the server may work on one statement of a search.
const STATEMENT: Duration = Duration::from_secs(8);
/// How long a whole leg may take, its place in the pool included, waiting for the question's vector not.
const LEG: Duration = Duration::from_secs(15);
/// A waiter also looks by itself, for hints get lost (decision B55).
const LOOK: Duration = Duration::from_secs(1);

/// What was found, and how whole the answer is.
#[derive(Debug, Serialize, ToSchema)]
pub struct SearchResponse {
    pub results: Vec<SearchResult>,
    pub diagnostics: SearchDiagnostics,
    /// Echoed, so that an empty answer can be told from a question that was sent wrongly.
    pub query: String,
    pub pagination: Pagination,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchResult {
    pub memory: Memory,
    /// 0 to 1; 1 is first by words and by meaning.
    pub score: f64,
    pub explanation: Explanation,
    pub document_id: String,
    /// From 1.
    pub page: i32,
    /// The passage around the words that matched: plain text, to be escaped where it is shown.
    pub snippet: String,
    /// Where the words that matched stand in `snippet`: [start, length] in characters.
    pub highlights: Vec<(usize, usize)>,
}

/// A piece of a document, in the shape that clients know.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    pub id: String,
    /// Always `knowledge`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Always `active`.
    pub state: String,
    pub mine: bool,
    /// The document's.
    pub title: String,
    pub content: String,
    pub confidence: f64,
    pub importance: f64,
    #[schema(value_type = Vec<Object>)]
    pub entities: Vec<Value>,
    #[schema(value_type = Vec<Object>)]
    pub sources: Vec<Value>,
    #[schema(value_type = Vec<Object>)]
    pub evidence: Vec<Value>,
    #[schema(value_type = Object)]
    pub temporal: Value,
    pub version: i32,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    pub space_ids: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub shared_by: Option<Value>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `vector`, `keyword`
    pub paths: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector_score: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_score: Option<f64>,
}

/// Read `degraded` before showing results: search narrows rather than fails.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchDiagnostics {
    pub steps: Vec<String>,
    pub degraded: bool,
    pub took_ms: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unavailable: Vec<String>,
    /// A sentence for a person, only when something was stopped on purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    pub reasons: Vec<Reason>,
    /// Items of yours saved a moment ago and on their way.
    pub pending: i64,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reason {
    pub code: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_seconds: Option<i64>,
}

impl From<Diagnostics> for SearchDiagnostics {
    fn from(d: Diagnostics) -> Self {
        let reason = |r: diagnostics::Reason| Reason {
            code: r.code,
            count: r.count,
            oldest_seconds: r.oldest_seconds,
        };
        Self {
            steps: d.steps,
            degraded: d.degraded,
            took_ms: d.took_ms,
            unavailable: d.unavailable.into_iter().collect(),
            notice: d.notice,
            reasons: d.reasons.into_iter().map(reason).collect(),
            pending: d.pending,
        }
    }
}

/// Where a list goes on, and of which question: a cursor of another one would skip and repeat.
#[derive(Deserialize, Serialize)]
struct Cursor {
    offset: usize,
    hash: String,
}

impl Cursor {
    fn parse(text: Option<&str>, hash: &str) -> Result<usize, ApiError> {
        let Some(text) = text else { return Ok(0) };
        let cursor: Option<Self> = URL_SAFE_NO_PAD.decode(text).ok().and_then(|b| serde_json::from_slice(&b).ok());
        match cursor {
            Some(c) if c.hash == hash => Ok(c.offset),
            Some(_) => Err(ApiError::invalid("cursor", "belongs to another question")),
            None => Err(ApiError::invalid("cursor", "is not one that a search gave out")),
        }
    }

    fn write(offset: usize, hash: &str) -> String {
        let cursor = Self {
            offset,
            hash: hash.to_owned(),
        };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&cursor).unwrap_or_default())
    }
}

/// The question's text, or 400.
fn question_of(query: &Query) -> Result<String, ApiError> {
    let text = match query.one("query")? {
        Some(q) => Some(q),
        None => query.one("q")?,
    };
    let text = text
        .map(str::trim)
        .filter(|t| !t.is_empty())
        .ok_or_else(|| ApiError::invalid("query", "is required: what to look for"))?;
    if text.len() > MAX_QUESTION {
        return Err(ApiError::invalid("query", format!("must be at most {MAX_QUESTION} bytes")));
    }
    Ok(text.to_owned())
}

/// Finds what you know, by words and by meaning.
#[utoipa::path(get, path = "/api/v1/search", tag = "search", security(("bearer" = [])),
    params(
        ("query" = String, Query, description = "At most 8 KiB; `q` does too"), ("limit" = Option<usize>, Query, description = "1 to 100, 10 when not given"),
        ("cursor" = Option<String>, Query), ("spaceIds" = Option<Vec<String>>, Query, description = "Only these Spaces, by id or name; `spaceId` does too"),
        ("minScore" = Option<f64>, Query, description = "0 to 1"),
        ("require" = Option<String>, Query, description = "`semantic`: 503 instead of an answer by words alone"),
    ),
    responses((status = 200, body = SearchResponse), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
              (status = 503, body = ErrorBody)))]
pub async fn search(State(app): State<Arc<App>>, Caller(scope): Caller, RawQuery(raw): RawQuery) -> Result<Json<SearchResponse>, ApiError> {
    let started = Instant::now();
    let query = Query::parse(raw.as_deref())?;
    let text = question_of(&query)?;
    let limit = query.number("limit", 10, 1, 100)?;
    let min_score = min_score(&query)?;
    let require_semantic = match query.one("require")? {
        None => false,
        Some("semantic") => true,
        Some(_) => return Err(ApiError::invalid("require", "can only be semantic")),
    };
    for flag in ["includeHistorical", "includeEvidence", "explain"] {
        query.flag(flag)?;
    }
    let types = query.all(&["types"]);
    let within = Within {
        spaces: spaces(&app.db, &scope, &query).await?,
        said: Said::Anything,
    };
    let hash = hash(&text, within.spaces.as_deref(), min_score);
    let offset = Cursor::parse(query.one("cursor")?, &hash)?;

    let (picture, by_words, by_meaning) = tokio::join!(
        picture(&app, &scope, &within),
        by_words(&app, &scope, &within, &text),
        by_meaning(&app, &scope, &within, &text)
    );

    let mut d = picture;
    let words = by_words.tell(&mut d);
    let obstacle = by_meaning.obstacle();
    let meaning = by_meaning.tell(&mut d);
    if require_semantic && meaning.is_none() {
        return Err(ApiError::semantic_unavailable(&why_not(&d, obstacle)));
    }
    let terms = words.as_ref().map(|w| w.terms.clone()).unwrap_or_default();
    let hits = match (&words, &meaning) {
        (None, None) => {
            return Err(ApiError::unavailable(
                "UNAVAILABLE",
                "neither search by words nor by meaning is possible now; try again shortly",
            ));
        }
        (w, m) => search::fuse(w.as_ref().map_or(&[], |w| &w.found), m.as_deref().unwrap_or(&[])),
    };
    let mut hits: Vec<Hit> = hits.into_iter().filter(|h| h.score >= min_score).collect();
    if !types.is_empty() && !types.iter().any(|t| t == "knowledge") {
        d.step("types: everything here is of type knowledge, so none of those asked for");
        hits.clear();
    }
    let page: Vec<Hit> = hits.iter().skip(offset).take(limit).copied().collect();
    let end = offset.saturating_add(limit);
    let next_cursor = (end < hits.len()).then(|| Cursor::write(end, &hash));
    d.step(format!("fusion: {} pieces in one list", hits.len()));

    let results = show(&app.db, &scope, &page, &terms).await?;
    d.took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Json(SearchResponse {
        results,
        diagnostics: d.into(),
        query: text,
        pagination: Pagination { limit, next_cursor },
    }))
}

fn min_score(query: &Query) -> Result<f64, ApiError> {
    let Some(text) = query.one("minScore")? else { return Ok(0.0) };
    text.parse()
        .ok()
        .filter(|n| (0.0..=1.0).contains(n))
        .ok_or_else(|| ApiError::invalid("minScore", "must be a number from 0 to 1"))
}

/// The Spaces asked for; none asked for: all of the caller's.
async fn spaces(db: &Db, scope: &Scope, query: &Query) -> Result<Option<Vec<i64>>, ApiError> {
    let named = query.all(&["spaceIds", "spaceId"]);
    if named.is_empty() {
        return Ok(None);
    }
    if named.len() > 100 {
        return Err(ApiError::invalid("spaceIds", "names more than 100 Spaces"));
    }
    let mut tx = scope.begin_within(db, STATEMENT).await?;
    let mut ids = Vec::new();
    for name in &named {
        let id = tenant::space_of(&mut tx, scope, name).await?;
        ids.push(id.ok_or_else(|| ApiError::unknown("spaceIds", "names a Space that is not there; GET /api/v1/spaces lists yours"))?);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(ids))
}

fn hash(text: &str, spaces: Option<&[i64]>, min_score: f64) -> String {
    let digest = Sha256::digest(json!([text, spaces, min_score]).to_string().as_bytes());
    URL_SAFE_NO_PAD.encode(&digest[..9])
}

async fn show(db: &Db, scope: &Scope, page: &[Hit], terms: &Terms) -> Result<Vec<SearchResult>, ApiError> {
    if page.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = page.iter().map(|h| h.id).collect();
    let mut tx = scope.begin_within(db, STATEMENT).await?;
    let shown = search::show(&mut tx, scope, &ids, terms).await?;
    let by_id: std::collections::HashMap<i64, &Hit> = page.iter().map(|h| (h.id, h)).collect();
    Ok(shown
        .into_iter()
        .filter_map(|s| by_id.get(&s.id).map(|h| result(s, h, scope)))
        .collect())
}

fn result(s: Shown, hit: &Hit, scope: &Scope) -> SearchResult {
    let (snippet, highlights) = s.snippet();
    let mine = s.user_id == scope.user_id();
    let document_id = s.document_id.to_string();
    let mut paths = Vec::new();
    if hit.vector.is_some() {
        paths.push("vector".to_owned());
    }
    if hit.keyword.is_some() {
        paths.push("keyword".to_owned());
    }
    SearchResult {
        score: hit.score,
        explanation: Explanation {
            paths,
            vector_score: hit.vector,
            structured_score: hit.keyword,
        },
        page: s.page_no,
        memory: Memory {
            id: s.id.to_string(),
            kind: "knowledge".into(),
            state: "active".into(),
            mine,
            title: s.title,
            // What was read was read; how surely, nobody measured.
            confidence: 1.0,
            importance: 0.5,
            entities: Vec::new(),
            sources: vec![json!({ "id": document_id, "provider": "upload", "type": s.media_type })],
            evidence: vec![json!({ "id": s.id.to_string(), "excerpt": snippet, "documentId": document_id })],
            temporal: json!({ "current": true }),
            version: s.version,
            created_at: s.created_at,
            updated_at: s.embedded_at.unwrap_or(s.created_at),
            space_ids: vec![s.space_id.to_string()],
            shared_by: (!mine).then(|| json!({ "name": s.owner })),
            content: s.content,
        },
        document_id,
        snippet,
        highlights,
    }
}

// ── The three that run beside each other ─────────────────────────────────────────────────────────────────────────────

async fn picture(app: &App, scope: &Scope, within: &Within) -> Diagnostics {
    let look = async {
        let mut tx = scope.begin_within(&app.db, STATEMENT).await?;
        diagnostics::picture(&mut tx, scope, within.spaces.as_deref()).await
    };
    bounded("diagnostics", look).await.unwrap_or_else(|| {
        let mut d = Diagnostics::default();
        d.because("diagnostics_failed");
        d
    })
}

/// A database step of a search: none when it failed or took too long, which is logged here, where it is handled.
async fn bounded<T>(what: &str, step: impl Future<Output = Result<T, DbError>>) -> Option<T> {
    match timeout(LEG, step).await {
        Ok(Ok(done)) => Some(done),
        Ok(Err(error)) => {
            tracing::warn!(%error, "search: {what} failed, the answer goes on without");
            None
        }
        Err(_) => {
            tracing::warn!("search: {what} took too long, the answer goes on without");
            None
        }
    }
}

struct Words {
    terms: Terms,
    found: Vec<Found>,
}

/// The keyword leg's end.
struct ByWords(Option<Words>);

impl ByWords {
    fn tell(self, d: &mut Diagnostics) -> Option<Words> {
        match &self.0 {
            None => {
                d.step("keyword: failed");
                d.because("keyword_failed");
            }
            Some(w) if w.terms.word_count == 0 => d.step("keyword: no terms, the question has nothing but stop-words or signs"),
            Some(w) => d.step(format!("keyword: {} words, {} pieces", w.terms.word_count, w.found.len())),
        }
        self.0
    }
}

async fn by_words(app: &App, scope: &Scope, within: &Within, text: &str) -> ByWords {
    let look = async {
        let mut tx = scope.begin_within(&app.db, STATEMENT).await?;
        let terms = search::terms(&mut tx, text).await?;
        let found = search::keyword(&mut tx, scope, within, &terms).await?;
        Ok(Words { terms, found })
    };
    ByWords(bounded("the keyword leg", look).await)
}

/// The semantic leg's end.
enum ByMeaning {
    Found {
        found: Vec<Found>,
        model: String,
        other_models: i64,
        cached: bool,
    },
    /// Not asked, or not answered; the reason's code.
    Without(String),
}

impl ByMeaning {
    fn obstacle(&self) -> Option<String> {
        match self {
            Self::Found { .. } => None,
            Self::Without(code) => Some(code.clone()),
        }
    }

    fn tell(self, d: &mut Diagnostics) -> Option<Vec<Found>> {
        match self {
            Self::Found {
                found,
                model,
                other_models,
                cached,
            } => {
                let known = if cached { ", known from before" } else { "" };
                d.step(format!("semantic: the question by {model}{known}, {} pieces", found.len()));
                if other_models > 0 {
                    d.degraded = true;
                    d.reasons.push(diagnostics::Reason {
                        code: "reindexing".into(),
                        count: Some(other_models),
                        oldest_seconds: None,
                    });
                }
                Some(found)
            }
            Self::Without(code) => {
                d.step(format!("semantic: left out ({code})"));
                d.because(code);
                d.unavailable.insert("embedding".to_owned());
                None
            }
        }
    }
}

/// Why there was no semantic half, in words for a message.
fn why_not(d: &Diagnostics, code: Option<String>) -> String {
    match d.notice.clone() {
        Some(notice) => notice,
        None => format!("searching by meaning is not possible ({})", code.unwrap_or_default()),
    }
}

async fn by_meaning(app: &Arc<App>, scope: &Scope, within: &Within, text: &str) -> ByMeaning {
    let failed = || ByMeaning::Without("semantic_failed".into());
    let (vector, cached) = match vector_of(app, scope, text).await {
        Ok(v) => v,
        Err(code) => return ByMeaning::Without(code),
    };
    let look = async {
        let mut tx = scope.begin_within(&app.db, STATEMENT).await?;
        let found = search::nearest(&mut tx, scope, within, &vector).await?;
        let other_models = diagnostics::other_models(&mut tx, scope, within.spaces.as_deref(), &vector.model).await?;
        Ok((found, other_models))
    };
    match bounded("the semantic leg", look).await {
        Some((found, other_models)) => ByMeaning::Found {
            found,
            model: vector.model,
            other_models,
            cached,
        },
        None => failed(),
    }
}

/// The first step towards a question's vector.
enum Ask {
    /// Nothing to wait for: this stands in the way.
    Obstacle(String),
    Known(Vector),
    Asked(Asked),
}

/// The question's vector and whether it was known before, or why there is none, as a reason's code.
async fn vector_of(app: &Arc<App>, scope: &Scope, text: &str) -> Result<(Vector, bool), String> {
    let patience = app.config.question_wait();
    let until = tokio::time::Instant::now() + patience;
    let ask = async {
        let mut tx = scope.begin_within(&app.db, STATEMENT).await?;
        let obstacle = diagnostics::obstacle(&mut tx, scope, patience).await?;
        // Stopped is stopped, even for a question known from before: an answer that is sometimes whole would hide it.
        if let Some(code) = obstacle.as_ref().filter(|o| *o == "stopped") {
            return Ok(Ask::Obstacle(code.clone()));
        }
        if let Some(known) = question::cached(&mut tx, scope, text).await? {
            return Ok(Ask::Known(known));
        }
        if let Some(code) = obstacle {
            return Ok(Ask::Obstacle(code));
        }
        let id = question::ask(&mut tx, scope, text).await?;
        let asked = Asked {
            app: app.clone(),
            scope: *scope,
            id,
            waiter: app.answers.wait_for(id),
        };
        Db::commit(tx).await?;
        Ok(Ask::Asked(asked))
    };
    match bounded("asking the question", ask).await {
        None => Err("semantic_failed".into()),
        Some(Ask::Obstacle(code)) => Err(code),
        Some(Ask::Known(vector)) => Ok((vector, true)),
        Some(Ask::Asked(asked)) => {
            app.hinter.wake(JobKind::Question, Lane::Interactive);
            asked.wait(until).await.map(|v| (v, false))
        }
    }
}

/// A question under way. Dropped, it is forgotten, also when its asker has gone.
struct Asked {
    app: Arc<App>,
    scope: Scope,
    id: i64,
    waiter: Waiter,
}

impl Asked {
    async fn wait(self, until: tokio::time::Instant) -> Result<Vector, String> {
        loop {
            let look = tokio::time::Instant::now() + LOOK;
            let _ = tokio::time::timeout_at(look.min(until), self.waiter.heard()).await;
            match self.look().await {
                Ok(Some(Answer::Vector(vector))) => return Ok(vector),
                Ok(Some(Answer::Failed(class))) => return Err(format!("question_{class}")),
                Ok(None) => {}
                // The database may be back before the time is up.
                Err(error) => tracing::debug!(%error, "cannot look for an answer"),
            }
            if tokio::time::Instant::now() >= until {
                return Err(self.too_late().await);
            }
            if let Some(code) = self.hopeless(until).await {
                return Err(code);
            }
        }
    }

    async fn look(&self) -> Result<Option<Answer>, DbError> {
        let mut tx = self.scope.begin_within(&self.app.db, STATEMENT).await?;
        question::answer(&mut tx, self.id).await
    }

    /// Why no further attempt can begin before the time is up, once one has failed: whoever asked is told at once and not
    /// after waiting in vain.
    async fn hopeless(&self, until: tokio::time::Instant) -> Option<String> {
        let look = async {
            let mut tx = self.scope.begin_within(&self.app.db, STATEMENT).await?;
            let Some(row) = job::find(&mut tx, self.id).await?.filter(|r| r.status == "waiting") else {
                return Ok(None);
            };
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            let obstacle = diagnostics::obstacle(&mut tx, &self.scope, left).await?;
            Ok::<_, DbError>(obstacle.and_then(|gate| match row.last_class {
                _ if gate == "stopped" => Some(gate),
                Some(class) if row.attempts > 0 => Some(format!("question_{class}")),
                _ => None,
            }))
        };
        timeout(LOOK, look).await.ok().and_then(Result::ok).flatten()
    }

    /// Whether nobody had time for it, or whoever took it did not finish.
    async fn too_late(&self) -> String {
        let look = async {
            let mut tx = self.scope.begin_within(&self.app.db, STATEMENT).await?;
            job::find(&mut tx, self.id).await
        };
        match timeout(LOOK, look).await {
            Ok(Ok(Some(row))) if row.status == "waiting" && row.attempts == 0 => "question_embed_busy".into(),
            _ => "question_timeout".into(),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let (app, scope, id) = (self.app.clone(), self.scope, self.id);
        tokio::spawn(async move {
            let forget = async {
                let mut tx = scope.begin_within(&app.db, STATEMENT).await?;
                question::forget(&mut tx, id).await?;
                Db::commit(tx).await
            };
            if let Err(error) = forget.await {
                tracing::debug!(%error, "a question is left for retention");
            }
        });
    }
}

// ── What was said ────────────────────────────────────────────────────────────────────────────────────────────────────

#[derive(Debug, Serialize, ToSchema)]
pub struct TranscriptResponse {
    pub query: String,
    pub results: Vec<TranscriptResult>,
    pub diagnostics: SearchDiagnostics,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TranscriptResult {
    pub passage_id: String,
    pub conversation_id: String,
    pub content: String,
    /// Empty: passages are kept whole, not by turn.
    pub turn_ids: Vec<String>,
    /// A similarity; higher is nearer.
    pub score: f64,
    pub started_at: DateTime<Utc>,
    pub document_id: String,
}

/// Finds what was said in conversations, by meaning alone: 503 where that is not possible.
#[utoipa::path(get, path = "/api/v1/transcript/search", tag = "search", security(("bearer" = [])),
    params(("query" = String, Query), ("limit" = Option<usize>, Query, description = "1 to 100, 10 when not given"), ("conversationId" = Option<String>, Query)),
    responses((status = 200, body = TranscriptResponse), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn transcript(
    State(app): State<Arc<App>>,
    Caller(scope): Caller,
    RawQuery(raw): RawQuery,
) -> Result<Json<TranscriptResponse>, ApiError> {
    let started = Instant::now();
    let query = Query::parse(raw.as_deref())?;
    let text = question_of(&query)?;
    let limit = query.number("limit", 10, 1, 100)?;
    let said = query
        .one("conversationId")?
        .map_or(Said::InAnyConversation, |c| Said::In(c.to_owned()));
    let within = Within { spaces: None, said };

    let (picture, by_meaning) = tokio::join!(picture(&app, &scope, &within), by_meaning(&app, &scope, &within, &text));
    let mut d = picture;
    let obstacle = by_meaning.obstacle();
    let Some(found) = by_meaning.tell(&mut d) else {
        return Err(ApiError::semantic_unavailable(&why_not(&d, obstacle)));
    };
    let page: Vec<Found> = found.into_iter().take(limit).collect();
    let ids: Vec<i64> = page.iter().map(|f| f.id).collect();
    let mut tx = scope.begin_within(&app.db, STATEMENT).await?;
    let shown = search::show(&mut tx, &scope, &ids, &Terms::default()).await?;
    let scores: std::collections::HashMap<i64, f64> = page.iter().map(|f| (f.id, f.score)).collect();
    let results = shown
        .into_iter()
        .filter_map(|s| {
            Some(TranscriptResult {
                passage_id: s.id.to_string(),
                conversation_id: s.conversation?,
                score: *scores.get(&s.id)?,
                content: s.content,
                turn_ids: Vec::new(),
                started_at: s.created_at,
                document_id: s.document_id.to_string(),
            })
        })
        .collect();
    d.took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Json(TranscriptResponse {
        query: text,
        results,
        diagnostics: d.into(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case113_a_cursor_belongs_to_its_question() {
        let mine = hash("cats", None, 0.0);
        let cursor = Cursor::write(20, &mine);
        assert_eq!(Cursor::parse(Some(&cursor), &mine).expect("its own"), 20);
        assert!(Cursor::parse(Some(&cursor), &hash("dogs", None, 0.0)).is_err());
        assert!(Cursor::parse(Some(&cursor), &hash("cats", Some(&[1]), 0.0)).is_err());
        assert!(Cursor::parse(Some("nonsense"), &mine).is_err());
    }

    #[test]
    fn a_leg_that_failed_is_told_and_the_other_stays() {
        let mut d = Diagnostics::default();
        assert!(ByWords(None).tell(&mut d).is_none());
        assert!(ByMeaning::Without("question_timeout".into()).tell(&mut d).is_none());
        assert!(d.degraded);
        assert_eq!(
            d.reasons.iter().map(|r| r.code.as_str()).collect::<Vec<_>>(),
            ["keyword_failed", "question_timeout"]
        );
    }
}
