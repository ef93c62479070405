//! One fixture per line of what can go wrong: whatever a provider answers is one class, with its price; what is clearly
//! permanent turns the breaker off and nothing else does; and what no provider says has its class too.
//!
//! Every message is in another language than the product's: a class must not hang on one vendor's English.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::FromRow;
use steadfast_tests::harness::{Client, Db, Fleet, Llmock, Opts, Process, wait_until};
use steadfast_tests::provider::{Action, At, Body, Fixture, Framing, Mode, Provider, Reply, Route, Rule, VectorFault, sha256};

const SOON: Duration = Duration::from_secs(30);
/// For a table of a hundred cases on a machine that is busy with other stories.
const TABLE: Duration = Duration::from_secs(90);
/// For an endpoint that is to be too slow.
const SHORT_MS: i32 = 500;

/// What is at work: text to a vector, or a picture to text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Embed,
    Ocr,
}

impl Kind {
    fn capability(self) -> &'static str {
        match self {
            Self::Embed => "embedding",
            Self::Ocr => "ocr",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Ocr => "ocr",
        }
    }

    fn route(self) -> Route {
        match self {
            Self::Embed => Route::Embeddings,
            Self::Ocr => Route::Ocr,
        }
    }

    fn url(self, base: &str) -> String {
        match self {
            Self::Embed => base.to_owned(),
            Self::Ocr => format!("{base}/ocr"),
        }
    }
}

/// A database, a folder of blobs, whoever works.
struct Stage {
    db: Db,
    fleet: Fleet,
}

/// Whose work it is.
#[derive(Clone, Copy, Debug)]
struct Place {
    tenant: i64,
    user: i64,
    space: i64,
}

/// A job as it stands after an attempt, with that attempt.
#[derive(Debug, FromRow)]
struct Seen {
    job_id: i64,
    attempt: i32,
    class: String,
    cause: Option<String>,
    error: Option<String>,
    forgiven: bool,
    worker: Option<i64>,
    status: String,
    last_class: Option<String>,
    charged: i32,
    item_fails: i32,
    /// From the settlement to when it is due again, by the database's clock.
    delay: f64,
}

impl Stage {
    async fn set() -> Self {
        let db = Db::new().await;
        // The engines of the house stand back: what is scripted is all there is.
        db.exec("update endpoints set enabled = false where protocol in ('minilm', 'tesseract')")
            .await;
        let fleet = Fleet::new(&db);
        Self { db, fleet }
    }

    async fn place(&self, tenant: &str) -> Place {
        let person = self.db.person_of(tenant, tenant).await;
        Place {
            tenant: person.tenant_id,
            user: person.user_id,
            space: person.space_id,
        }
    }

    /// An endpoint for one tenant alone, or for all.
    async fn endpoint(&self, name: &str, kind: Kind, url: &str, owner: Option<Place>) -> i64 {
        let (protocol, dims) = match kind {
            Kind::Embed => ("openai", Some(384)),
            Kind::Ocr => ("ocr_http", None),
        };
        sqlx::query_scalar(
            "insert into endpoints (name, capability, protocol, url, model, dims, owner_tenant_id, trust, rank, timeout_ms)
             values ($1, $2, $3, $4, 'scripted', $5, $6, 3, 1, 60000) returning id",
        )
        .bind(name)
        .bind(kind.capability())
        .bind(protocol)
        .bind(url)
        .bind(dims)
        .bind(owner.map(|p| p.tenant))
        .fetch_one(&self.db.pool)
        .await
        .expect("an endpoint")
    }

    /// A piece of work: a block with this text, or a page whose picture has these words in its bytes.
    async fn job(&self, at: Place, kind: Kind, content: &str) -> i64 {
        let item = match kind {
            Kind::Embed => {
                "insert into blocks (tenant_id, space_id, document_id, content, no, level) select $1, $3, d.id, $4, 0, 1 from d returning id"
            }
            Kind::Ocr => {
                "insert into pages (tenant_id, document_id, no, source, image_key, status) select $1, d.id, 1, 'image', $4, 'waiting' from d returning id"
            }
        };
        let content = match kind {
            Kind::Embed => content.to_owned(),
            Kind::Ocr => self.picture(content),
        };
        let sql = format!(
            "with d as (insert into documents (tenant_id, user_id, space_id, title, media_type, byte_count, sha256, blob_key, status)
                        values ($1, $2, $3, 'a paper', 'text/plain', 1, 'x', 'x', 'processing') returning id),
                  i as ({item}),
                  l as (insert into lines (kind, lane, tenant_id, level, capability) values ('{kind}', 'batch', $1, 1, '{capability}')
                        on conflict (kind, lane, tenant_id, level) do update set capability = excluded.capability returning id)
             insert into jobs (line_id, tenant_id, user_id, kind, item_id) select l.id, $1, $2, '{kind}', i.id from l, i returning id",
            kind = kind.name(),
            capability = kind.capability(),
        );
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .bind(at.tenant)
            .bind(at.user)
            .bind(at.space)
            .bind(content)
            .fetch_one(&self.db.pool)
            .await
            .expect("a job")
    }

    /// A stored picture. An engine behind HTTP gets its bytes as they are, so a few words will do.
    fn picture(&self, words: &str) -> String {
        let key = format!("story/{}", sha256(words.as_bytes()));
        let path: PathBuf = self.fleet.dir().join("blobs").join(&key);
        std::fs::create_dir_all(path.parent().expect("a folder above")).expect("a folder in our own folder");
        std::fs::write(path, words).expect("a file in our own folder");
        key
    }

    /// The jobs that have been tried once and not more, as their first attempt left them.
    async fn tried_once(&self) -> Vec<Seen> {
        sqlx::query_as(
            "select a.job_id, a.attempt, a.class, a.cause, a.error, a.forgiven, a.worker, j.status, j.last_class, j.charged, j.item_fails,
                    extract(epoch from j.avail_at - a.ended_at)::float8 as delay
               from attempts a join jobs j on j.id = a.job_id where j.attempts = 1 and j.status <> 'running'",
        )
        .fetch_all(&self.db.pool)
        .await
        .expect("an answer of the database")
    }

    async fn until_tried(&self, job: i64) -> Seen {
        wait_until("the first attempt is settled", SOON, async || {
            self.tried_once().await.into_iter().find(|s| s.job_id == job)
        })
        .await
    }

    async fn until(&self, job: i64, status: &str) {
        wait_until(&format!("job {job} is {status}"), SOON, async || match self.db.status(job).await {
            s if s == status => Ok(()),
            other => Err(other),
        })
        .await;
    }

    /// What an operator does who knows that all is well again: ask now.
    async fn ask_now(&self) {
        self.db.exec("update endpoints set due_at = '-infinity', outage_streak = 0").await;
        self.db.exec("update jobs set avail_at = now() where status = 'waiting'").await;
    }
}

// ── What a provider answers ──────────────────────────────────────────────────────────────────────────────────────────

/// One scripted result and the one class that it is.
struct Case {
    name: String,
    kind: Kind,
    fault: Fault,
    /// Has the endpoint answered another item within the minute? Ambiguous failures are the item's then.
    warm: bool,
    class: &'static str,
    cause: Option<&'static str>,
    delay: Option<RangeInclusive<f64>>,
}

enum Fault {
    Scripted(Action),
    /// The endpoint's deadline is short, and this happens.
    TooSlow(Action),
    /// Another address.
    At(String),
    /// The endpoint names a variable for its key that nobody has set.
    NoKey,
}

/// What follows from a class, in this file's own words: status, forgiven, failures of the item, seconds until it is due.
fn consequence(class: &str) -> (&'static str, bool, i32, RangeInclusive<f64>) {
    match class {
        // When it is due again is for the endpoint's probe to say: slow or dead?
        "timeout" => ("waiting", true, 0, 0.0..=f64::INFINITY),
        "unservable" => ("waiting", true, 0, 60.0..=60.0),
        // 30 s ± 20 %: the endpoint's own step.
        "outage" => ("waiting", true, 0, 24.0..=36.0),
        // A minute unless the provider says otherwise, and up to a tenth more.
        "rate_limited" => ("waiting", true, 0, 60.0..=66.0),
        "item_error" | "empty_output" | "invalid_output" => ("waiting", false, 1, 60.0..=60.0),
        "oversize" => ("parked", false, 0, 0.0..=0.0),
        other => panic!("{other} is no class of this table"),
    }
}

impl Case {
    fn of(kind: Kind, name: &str, fault: Fault, class: &'static str) -> Self {
        Self {
            name: format!("{}: {name}", kind.name()),
            kind,
            fault,
            warm: true,
            class,
            cause: None,
            delay: None,
        }
    }

    /// The endpoint has not answered anything yet.
    fn cold(mut self) -> Self {
        self.warm = false;
        self.name.push_str(", and nothing else was answered");
        self
    }

    fn cause(mut self, cause: &'static str) -> Self {
        self.cause = Some(cause);
        self
    }

    fn due_in(mut self, delay: RangeInclusive<f64>) -> Self {
        self.delay = Some(delay);
        self
    }

    /// What is wrong with what was seen, if anything.
    fn complaint(&self, seen: Option<&Seen>, worker: Option<i64>) -> Option<String> {
        let Some(seen) = seen else {
            return (self.class != "done").then(|| format!("{}: expected {}, but it succeeded", self.name, self.class));
        };
        let wrong = |what: String| Some(format!("{}: {what}\n    in {seen:?}", self.name));
        if self.class == "done" {
            return wrong("expected to succeed".to_owned());
        }
        let (status, forgiven, item_fails, delay) = consequence(self.class);
        if seen.class != self.class || seen.last_class.as_deref() != Some(self.class) {
            return wrong(format!("expected {}", self.class));
        }
        if self.cause.is_some() && seen.cause.as_deref() != self.cause {
            return wrong(format!("expected cause {:?}", self.cause));
        }
        let found = (seen.attempt, seen.status.as_str(), seen.forgiven, seen.charged, seen.item_fails);
        let expected = (1, status, forgiven, i32::from(!forgiven), item_fails);
        if found != expected {
            return wrong(format!("expected attempt, status, forgiven, charged, item_fails {expected:?}"));
        }
        let delay = self.delay.clone().unwrap_or(delay);
        // The database adds to microseconds.
        if seen.delay < delay.start() - 0.001 || seen.delay > delay.end() + 0.001 {
            return wrong(format!("expected to be due in {delay:?} s"));
        }
        if worker.is_none() || seen.worker != worker {
            return wrong("expected the one worker".to_owned());
        }
        let error = seen.error.as_deref().unwrap_or_default();
        if error.chars().count() > 500 || error.chars().any(char::is_control) {
            return wrong("expected at most 500 characters of one line".to_owned());
        }
        None
    }
}

/// A body of more than five megabytes.
fn five_megabytes() -> Body {
    Body::Repeat {
        repeat: "überlastet ".into(),
        count: 5 * 1024 * 1024 / 12 + 1,
    }
}

fn error(status: u16, code: &str, message: &str) -> Action {
    Reply::json(
        status,
        &json!({"error": {"message": message, "type": "fehler", "param": null, "code": code}}),
    )
    .into()
}

fn plain(status: u16, text: &str) -> Reply {
    Reply::new(status, "text/plain; charset=utf-8", text)
}

fn html(status: u16) -> Action {
    Reply::new(
        status,
        "text/html",
        "<!DOCTYPE html><html><body><h1>Zugang über das Portal</h1></body></html>",
    )
    .into()
}

fn raw(status: u16, content_type: &str, body: impl Into<Body>) -> Action {
    Reply::new(status, content_type, body).into()
}

const JSON: &str = "application/json";

/// What every protocol that travels over HTTP has in common.
fn over_http(kind: Kind, dead: &str, deaf: &str) -> Vec<Case> {
    let case = |name: &str, action: Action, class: &'static str| Case::of(kind, name, Fault::Scripted(action), class);
    let slow = |name: &str, action: Action| Case::of(kind, name, Fault::TooSlow(action), "timeout");
    let code = "allgemein";
    vec![
        // timeout: the deadline of the call, at whatever point of the answer it ends.
        slow("hangs before the headers", Action::Hang { at: At::BeforeHeaders }),
        slow("hangs in the headers", Action::Hang { at: At::InHeaders }),
        slow("an early 200 that hangs before the body", Action::Hang { at: At::AfterHeaders }),
        slow("an early 200 that hangs in the body", Action::Hang { at: At::MidBody }),
        slow("trickles", Action::Trickle { bytes: 1, every_ms: 100 }),
        slow("works for too long", Action::Slow { ms: 60_000 }),
        Case::of(kind, "connects and nobody is there", Fault::At(kind.url(deaf)), "timeout").cold(),
        // outage: nothing in order came from the provider itself.
        Case::of(kind, "connection refused", Fault::At(kind.url(dead)), "outage").cold(),
        case("reset before the headers", Action::Reset { at: At::BeforeHeaders }, "outage"),
        case("reset in the headers", Action::Reset { at: At::InHeaders }, "outage"),
        case("an early 200, then reset", Action::Reset { at: At::AfterHeaders }, "outage"),
        case("an early 200, then reset in the body", Action::Reset { at: At::MidBody }, "outage"),
        case("closed without an answer", Action::Close, "outage"),
        case(
            "an early 200 that breaks off",
            Action::Cut {
                how: Framing::ContentLength,
            },
            "outage",
        ),
        case(
            "an early 200 that breaks off between chunks",
            Action::Cut { how: Framing::Chunked },
            "outage",
        ),
        case("408", plain(408, "zu lange gewartet").into(), "outage"),
        case("502 as a proxy's page", Fixture::BadGateway.into(), "outage"),
        case("502 in JSON", error(502, code, "das Tor ist zu"), "outage"),
        case("503", error(503, code, "überlastet"), "outage"),
        case("503 without a word", plain(503, "").into(), "outage"),
        case("504", error(504, code, "keine Antwort von hinten"), "outage"),
        case("529", error(529, code, "überlastet"), "outage"),
        case(
            "503 about an input that is too long",
            Fixture::ServiceUnavailableOversize.into(),
            "outage",
        ),
        case("503 about a key", error(503, "invalid_api_key", "Schlüssel ungültig"), "outage"),
        case("503 with an escaped NUL", Fixture::EscapedNul.into(), "outage"),
        case("503 with a NUL", Fixture::RawNul.into(), "outage"),
        case("503 with half a surrogate pair", Fixture::LoneSurrogate.into(), "outage"),
        case("503 that is no UTF-8", Fixture::InvalidUtf8.into(), "outage"),
        case("503 of five megabytes", raw(503, "text/plain", five_megabytes()), "outage"),
        case("400 as a page", html(400), "outage"),
        case("403 as a page", html(403), "outage"),
        case("404 as a page", html(404), "outage"),
        case("500 as a page", html(500), "outage"),
        case("500", error(500, code, "interner Fehler"), "outage").cold(),
        case("500 about a key", Fixture::InternalErrorAboutKey.into(), "outage").cold(),
        case("200 as a page", html(200), "outage").cold(),
        case("200 with nothing in it", Fixture::EmptyOk.into(), "outage").cold(),
        case(
            "200, packed though nobody asked for it",
            Reply::new(200, JSON, "{}").header("content-encoding", "br").into(),
            "outage",
        ),
        // rate_limited: the provider's word is a floor with a ceiling, and words that are none are none.
        case("429", error(429, "rate_limit_exceeded", "langsamer bitte"), "rate_limited"),
        case("429 without a word", plain(429, "").into(), "rate_limited"),
        case("429 as a page", html(429), "rate_limited"),
        case(
            "429 whose prose speaks of a quota",
            error(429, "rate_limit_exceeded", "Kontingent (quota) pro Minute erreicht, siehe billing"),
            "rate_limited",
        ),
        case(
            "429 with Retry-After 20",
            plain(429, "später").retry_after("20").into(),
            "rate_limited",
        )
        .due_in(20.0..=22.0),
        case(
            "429 with Retry-After 19.5",
            plain(429, "später").retry_after("19.5").into(),
            "rate_limited",
        )
        .due_in(19.5..=22.0),
        case(
            "429 with retry-after-ms 15000",
            plain(429, "später").header("retry-after-ms", "15000").into(),
            "rate_limited",
        )
        .due_in(15.0..=16.5),
        case(
            "429 with Retry-After of a day",
            plain(429, "später").retry_after("86400").into(),
            "rate_limited",
        )
        .due_in(300.0..=330.0),
        case(
            "429 with Retry-After -3",
            plain(429, "später").retry_after("-3").into(),
            "rate_limited",
        ),
        case(
            "429 with Retry-After bald",
            plain(429, "später").retry_after("bald").into(),
            "rate_limited",
        ),
        // item_error: about this item, or unknown, which is charged so that it ends.
        case("400", error(400, code, "'input' wird nicht angenommen"), "item_error"),
        case("400", error(400, code, "Eingabe ungültig"), "item_error").cold(),
        case("400 in plain text", plain(400, "输入无效").into(), "item_error"),
        case("400 without a word", plain(400, "").into(), "item_error"),
        case("422", Fixture::Unprocessable.into(), "item_error"),
        case(
            "400 of a filter",
            error(400, "content_filter", "von der Richtlinie abgelehnt"),
            "item_error",
        ),
        case(
            "400 with an escaped NUL",
            raw(400, JSON, r#"{"error":{"message":"vor\u0000nach"}}"#),
            "item_error",
        ),
        case("400 with a NUL", raw(400, "text/plain", b"vor\0nach".to_vec()), "item_error"),
        case(
            "400 with half a surrogate pair",
            raw(400, JSON, r#"{"error":{"message":"hoch \ud83d, tief \udc00"}}"#),
            "item_error",
        ),
        case(
            "400 that is no UTF-8",
            raw(400, "text/plain", b"\xff\xfe\xc3( und Text".to_vec()),
            "item_error",
        ),
        case("400 of five megabytes", raw(400, "text/plain", five_megabytes()), "item_error"),
        case("409", error(409, code, "Konflikt"), "item_error").cause("unspecified"),
        case("418", plain(418, "ich bin eine Teekanne").into(), "item_error").cause("unspecified"),
        case("451", error(451, code, "gesperrt"), "item_error").cause("unspecified"),
        case("799, which is no status", plain(799, "?").into(), "item_error").cause("unspecified"),
        case("500", error(500, code, "interner Fehler"), "item_error"),
        case("500 about a key", Fixture::InternalErrorAboutKey.into(), "item_error"),
        case(
            "500 that speaks of time",
            error(500, "timeout", "request timed out: Zeitüberschreitung"),
            "item_error",
        ),
        case("424", error(424, code, "eine Vorbedingung fehlt"), "item_error"),
        // oversize: set aside for a person, by code before words.
        case("400 exceed_context_size", Fixture::ExceedContextSize.into(), "oversize"),
        case(
            "400 by its code alone",
            error(400, "context_length_exceeded", "Der Text ist zu lang."),
            "oversize",
        ),
        case("413", Fixture::PayloadTooLarge.into(), "oversize"),
        case("413 in JSON", error(413, code, "zu groß"), "oversize").cold(),
        // invalid_output: a success that holds none. Alone in its call, and the endpoint answers others.
        case("200 with nothing in it", Fixture::EmptyOk.into(), "invalid_output"),
        case("204", plain(204, "").into(), "invalid_output"),
        case("200 as a page", html(200), "invalid_output"),
        case("200 in prose", plain(200, "alles in Ordnung").into(), "invalid_output"),
        case(
            "an early 200 that turns into an error",
            raw(200, JSON, "  \n \n{\"error\":{\"message\":\"Speicher erschöpft\",\"code\":500}}"),
            "invalid_output",
        ),
        case("200 with an error in it", Fixture::ErrorInOk.into(), "invalid_output"),
        case(
            "200 of another service",
            raw(200, JSON, r#"{"ergebnis":"\u0000","zahl":1}"#),
            "invalid_output",
        ),
        case("200 with a NUL", raw(200, JSON, b"{\"data\":\"\0\"}\0".to_vec()), "invalid_output"),
        case(
            "200 that is no UTF-8",
            raw(200, JSON, b"\xff\xfe\x00{\xc3(".to_vec()),
            "invalid_output",
        ),
        case(
            "200 with nothing but half a surrogate pair",
            raw(200, JSON, r#""\ud83d""#),
            "invalid_output",
        ),
        case("200 of five megabytes", raw(200, JSON, five_megabytes()), "invalid_output"),
        // unservable: it could not be asked from here.
        Case::of(kind, "its key's variable is not set", Fault::NoKey, "unservable").cause("no_key"),
    ]
}

fn vectors() -> Vec<Case> {
    let case = |name: &str, action: Action, class: &'static str| Case::of(Kind::Embed, name, Fault::Scripted(action), class);
    let fault = |name: &str, fault: VectorFault, class: &'static str| case(name, fault.into(), class);
    let nameless = format!(
        r#"{{"data":[{{"index":0,"embedding":[{}]}}],"model":"\ud83d"}}"#,
        ["0.5"; 384].join(",")
    );
    vec![
        fault("NaN", VectorFault::NaN, "invalid_output"),
        fault("NaN", VectorFault::NaN, "invalid_output").cold(),
        fault("null among the numbers", VectorFault::Null, "invalid_output"),
        fault("a number as a string", VectorFault::StringNumber, "invalid_output"),
        fault("a number beyond 32 bits", VectorFault::Huge, "invalid_output"),
        fault("zeros", VectorFault::Zero, "invalid_output"),
        fault("no numbers", VectorFault::EmptyVector, "invalid_output"),
        fault("wrong dimension", VectorFault::Dims(7), "invalid_output"),
        fault("wrong dimension", VectorFault::Dims(1024), "invalid_output").cold(),
        fault("an index beyond the end", VectorFault::IndexOutOfRange, "invalid_output"),
        fault("index 0 twice", VectorFault::DuplicateIndex, "invalid_output"),
        fault("one vector too few", VectorFault::OneShort, "invalid_output"),
        fault("one vector too many", VectorFault::OneMore, "invalid_output"),
        fault("no data", VectorFault::NoData, "invalid_output"),
        case(
            "an early 200 that turns into an error among the numbers",
            raw(
                200,
                JSON,
                r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,0.2,{"error":{"message":"Speicher erschöpft"}}"#,
            ),
            "invalid_output",
        ),
        case(
            "422 about tokens",
            raw(
                422,
                JSON,
                r#"{"detail":[{"loc":["body","input",0],"msg":"ensure this value has at most 512 tokens","type":"wert"}]}"#,
            ),
            "oversize",
        ),
        // Odd, but an answer.
        fault("no index", VectorFault::NoIndex, "done"),
        fault("ten times too long", VectorFault::Scaled(10.0), "done"),
        case("a model's name that is half a surrogate pair", Action::body(JSON, nameless), "done"),
    ]
}

fn pages() -> Vec<Case> {
    let case = |name: &str, action: Action, class: &'static str| Case::of(Kind::Ocr, name, Fault::Scripted(action), class);
    let answer = |name: &str, body: &str, class: &'static str| case(name, Action::body(JSON, body), class);
    let runaway = format!(r#"{{"text":"{}"}}"#, "noch einmal ".repeat(200_000));
    vec![
        // empty_output: an answer without content (N32: white space is none).
        answer("no text", r#"{"text":"","confidence":0.9}"#, "empty_output"),
        answer("white space", r#"{"text":" \n\t \u00a0"}"#, "empty_output"),
        answer("null", r#"{"text":null}"#, "empty_output"),
        answer("no lines", "{}", "empty_output"),
        answer("an empty list", "[]", "empty_output"),
        answer("no text", r#"{"text":""}"#, "empty_output").cold(),
        answer("a NUL alone", r#"{"text":"\u0000"}"#, "empty_output"),
        answer("a text that is a number", r#"{"text":3}"#, "invalid_output"),
        answer("stopped at its limit", r#"{"text":"halb","finish_reason":"length"}"#, "item_error"),
        answer(
            "refused by its filter",
            r#"{"choices":[{"message":{"content":""},"finish_reason":"content_filter"}]}"#,
            "item_error",
        ),
        answer("a text that ran away", &runaway, "item_error"),
        answer(
            "half a surrogate pair and a NUL in the text",
            r#"{"text":"a\ud83db\u0000c"}"#,
            "done",
        ),
        case(
            "bytes that are no UTF-8 in the text",
            Action::body(JSON, b"{\"text\":\"gr\xfcn\"}".to_vec()),
            "done",
        ),
    ]
}

/// A case in play.
struct Played {
    case: Case,
    place: Place,
    endpoint: i64,
    job: i64,
}

/// Each case has a tenant and an endpoint of its own, so that none is in the way of another and all are asked at once.
#[tokio::test(flavor = "multi_thread")]
async fn b11_every_scripted_result_is_one_class_and_the_worker_works_on() {
    let s = Stage::set().await;
    let provider = Provider::start();
    let deaf = Provider::start();
    deaf.mode(Mode::Deaf).await;
    let dead = Provider::start();
    dead.mode(Mode::Refuse).await;
    let mut cases = over_http(Kind::Embed, &dead.url(), &deaf.url());
    cases.extend(over_http(Kind::Ocr, &dead.url(), &deaf.url()));
    cases.extend(vectors());
    cases.extend(pages());

    let mut played = Vec::new();
    for (n, case) in cases.into_iter().enumerate() {
        let tenant = format!("t{n}");
        let place = s.place(&tenant).await;
        let endpoint = s.endpoint(&tenant, case.kind, &case.kind.url(&provider.url()), Some(place)).await;
        let job = if case.warm {
            s.job(place, case.kind, &format!("something good for {tenant}")).await
        } else {
            0
        };
        played.push(Played {
            case,
            place,
            endpoint,
            job,
        });
    }
    let mut worker = s.fleet.worker_with(Opts::new().kinds("embed,ocr").concurrency(8)).await;
    let boot = worker.boot;
    drained(&s, "something good was done for all that are to be warm").await;
    assert_eq!(s.db.one::<i64>("select count(*) from attempts").await, 0, "the calls can succeed");

    for (n, p) in played.iter_mut().enumerate() {
        let marker = format!("⟦{n}⟧");
        let action = match &p.case.fault {
            Fault::Scripted(action) => Some(action),
            Fault::TooSlow(action) => {
                change(&s.db, p.endpoint, &format!("timeout_ms = {SHORT_MS}")).await;
                Some(action)
            }
            Fault::At(url) => {
                let timeout = if p.case.class == "timeout" { SHORT_MS } else { 60_000 };
                change(&s.db, p.endpoint, &format!("url = '{url}', timeout_ms = {timeout}")).await;
                None
            }
            Fault::NoKey => {
                change(&s.db, p.endpoint, "key_env = 'STEADFAST_STORY_UNSET'").await;
                None
            }
        };
        if let Some(action) = action {
            provider.rule(Rule::text(&marker).then(action.clone()));
        }
        p.job = s.job(p.place, p.case.kind, &format!("trouble {marker} here")).await;
    }
    // As each is after its first attempt: the second of some is not far.
    let mut seen: HashMap<i64, Seen> = HashMap::new();
    wait_until("every case has been tried", TABLE, async || {
        for one in s.tried_once().await {
            seen.entry(one.job_id).or_insert(one);
        }
        let over: Vec<i64> = sqlx::query_scalar("select id from jobs_done")
            .fetch_all(&s.db.pool)
            .await
            .expect("what is done");
        let open = played.iter().filter(|p| !seen.contains_key(&p.job) && !over.contains(&p.job));
        let open: Vec<&str> = open.map(|p| p.case.name.as_str()).collect();
        if open.is_empty() { Ok(()) } else { Err(open.join("; ")) }
    })
    .await;
    let mut complaints = Vec::new();
    for p in &played {
        complaints.extend(p.case.complaint(seen.get(&p.job), boot));
    }
    assert!(
        complaints.is_empty(),
        "{} of {} cases:\n{}",
        complaints.len(),
        played.len(),
        complaints.join("\n")
    );
    assert!(
        s.db.one::<bool>("select bool_and(enabled) from capabilities").await,
        "nothing of this stops anything"
    );
    let stored: String = s
        .db
        .one("select coalesce(string_agg(content, '|' order by content), '') from blocks where content like 'a%c' or content like 'gr%'")
        .await;
    assert_eq!(stored, "a\u{FFFD}b c|gr\u{FFFD}n", "mended at the door");

    // All is well again, and the same process works on: what waits and what is new.
    provider.clear_rules();
    for p in &played {
        let url = p.case.kind.url(&provider.url());
        change(&s.db, p.endpoint, &format!("url = '{url}', timeout_ms = 60000, key_env = null")).await;
        s.job(p.place, p.case.kind, "something good again").await;
    }
    s.ask_now().await;
    drained(&s, "all that was not set aside is done").await;
    assert!(worker.is_alive());
    let workers: i64 = s.db.one("select count(*) from workers").await;
    assert_eq!(workers, 1, "and never was another one");
    for p in &played {
        let (status, forgiven) = match p.case.class {
            "done" => ("waiting", true),
            class => (consequence(class).0, consequence(class).1),
        };
        if status == "parked" {
            assert_eq!(s.db.status(p.job).await, "parked", "{}", p.case.name);
            continue;
        }
        let charged: i32 =
            s.db.one(&format!(
                "select attempts - forgiven from jobs_done where id = {} and status = 'done'",
                p.job
            ))
            .await;
        assert_eq!(
            charged,
            if forgiven { 1 } else { 2 },
            "{}: the success itself and what was charged before",
            p.case.name
        );
    }
    println!("{} cases", played.len());
}

/// A changed endpoint is a new one: the worker must not go by what it remembers.
async fn change(db: &Db, endpoint: i64, set: &str) {
    db.exec(&format!("update endpoints set {set}, epoch = epoch + 1 where id = {endpoint}"))
        .await;
}

/// What reading made for embedding is not asked of anybody here.
const SERVED: &str = "exists (select from endpoints e where e.owner_tenant_id = j.tenant_id
    and e.capability = case j.kind when 'ocr' then 'ocr' else 'embedding' end)";

/// Until nothing of the table waits or runs.
async fn drained(s: &Stage, what: &str) {
    let open = format!("select count(*) from jobs j where status in ('waiting', 'running') and {SERVED}");
    wait_until(what, TABLE, async || match s.db.one::<i64>(&open).await {
        0 => Ok(()),
        n => Err(n),
    })
    .await;
}

// ── What is clearly permanent ────────────────────────────────────────────────────────────────────────────────────────

/// What a capability's only endpoint answers to everything, the control text too, and whether the breaker goes off for it.
struct Line {
    name: &'static str,
    fault: Fault,
    /// The rule is spent after so many calls.
    times: Option<u32>,
    class: &'static str,
    trips: bool,
}

fn lines(kind: Kind, dead: &str) -> Vec<Line> {
    let line = |name: &'static str, action: Action, class: &'static str, trips: bool| Line {
        name,
        fault: Fault::Scripted(action),
        times: None,
        class,
        trips,
    };
    let missing = || error(404, "model_not_found", "Das Modell gibt es nicht.");
    vec![
        line("401", Fixture::InvalidKeyForeign.into(), "refused", true),
        line(
            "403 typed",
            error(403, "permission_denied", "Dieser Schlüssel darf das nicht."),
            "refused",
            true,
        ),
        line("403 as a page", html(403), "outage", false),
        line("402", error(402, "zahlung", "Das Guthaben reicht nicht."), "refused", true),
        line(
            "429 with a quota's code",
            error(429, "insufficient_quota", "Das Guthaben ist aufgebraucht."),
            "refused",
            true,
        ),
        line("429", error(429, "rate_limit_exceeded", "langsamer bitte"), "rate_limited", false),
        line("404 about the model", missing(), "refused", true),
        line(
            "400 about the model",
            error(400, "model_not_found", "Das Modell gibt es nicht."),
            "refused",
            true,
        ),
        Line {
            times: Some(3),
            ..line("404 about a model that is there at the third look again", missing(), "done", false)
        },
        // A redirect is not followed: it could carry the key elsewhere (public case 82).
        line(
            "307",
            Action::Redirect {
                status: 307,
                to: "http://127.0.0.1:9/".into(),
            },
            "refused",
            true,
        ),
        line(
            "400 about the input",
            error(400, "ungueltig", "Diese Eingabe wird nicht angenommen."),
            "item_error",
            false,
        ),
        Line {
            fault: Fault::TooSlow(Action::Hang { at: At::BeforeHeaders }),
            ..line("timeout", Action::Normal, "timeout", false)
        },
        // The endpoint has just answered others, so it is this item's.
        line("500", error(500, "intern", "invalid_api_key (401)"), "item_error", false),
        line("503", error(503, "invalid_api_key", "überlastet"), "outage", false),
        Line {
            fault: Fault::At(kind.url("http://nirgends.invalid:9")),
            ..line("no such host", Action::Normal, "outage", false)
        },
        Line {
            fault: Fault::At(kind.url(dead)),
            ..line("connection refused", Action::Normal, "outage", false)
        },
    ]
}

/// Turns a breaker on as an operator does.
async fn turn_on(s: &Stage, kind: Kind) {
    let args = ["breaker", "on", kind.capability(), "--reason", "the next line", "--json"];
    let said = s.fleet.run("steadfast", &args, Opts::new()).await;
    assert_eq!(said.code, Some(0), "{said}");
}

/// Whether the capability's breaker is on, and how often it went off so far.
async fn breaker(s: &Stage, kind: Kind) -> (bool, i64) {
    let sql = "select enabled, (select count(*) from capability_events e where e.capability = c.name and e.action = 'off')
                 from capabilities c where name = $1 and tenant_id is null";
    sqlx::query_as(sql)
        .bind(kind.capability())
        .fetch_one(&s.db.pool)
        .await
        .expect("the breaker's row")
}

/// Plays all lines one after the other, on a stage where nobody does anything else; returns what is wrong.
async fn play(kind: Kind, dead: &str) -> Vec<String> {
    let s = Stage::set().await;
    let name = format!("the-{}-endpoint", kind.name());
    let ann = s.place("ann").await;
    let provider = Provider::start();
    let url = kind.url(&provider.url());
    let endpoint = s.endpoint(&name, kind, &url, None).await;
    let mut workers = [
        s.fleet.worker_with(Opts::new().kinds(kind.name())).await,
        s.fleet.worker_with(Opts::new().kinds(kind.name())).await,
    ];
    let mut wrong = Vec::new();
    for line in lines(kind, dead) {
        let mut complain = |what: String| wrong.push(format!("{}: {}: {what}", kind.name(), line.name));
        provider.forget();
        match &line.fault {
            Fault::Scripted(action) => {
                let rule = Rule::all().on(kind.route()).then(action.clone());
                provider.rule(line.times.iter().fold(rule, |rule, n| rule.times(*n)));
            }
            Fault::TooSlow(action) => {
                provider.rule(Rule::all().on(kind.route()).then(action.clone()));
                change(&s.db, endpoint, &format!("timeout_ms = {SHORT_MS}")).await;
            }
            Fault::At(url) => change(&s.db, endpoint, &format!("url = '{url}'")).await,
            Fault::NoKey => change(&s.db, endpoint, "key_env = 'STEADFAST_STORY_UNSET'").await,
        }
        let (_, before) = breaker(&s, kind).await;
        let words = format!("words about {}", line.name);
        let job = s.job(ann, kind, &words).await;
        let class = wait_until(&format!("{}: {} is settled", kind.name(), line.name), SOON, async || {
            let over = s.db.status(job).await == "done";
            let tried = s.tried_once().await.into_iter().find(|s| s.job_id == job);
            tried.map_or_else(|| over.then(|| "done".to_owned()), |t| Some(t.class))
        })
        .await;
        if class != line.class {
            complain(format!("{class}, not {}", line.class));
        }
        // The breaker goes off before the attempt that saw the refusal is settled.
        let (on, after) = breaker(&s, kind).await;
        if (on, after - before) != (!line.trips, i64::from(line.trips)) {
            complain(format!("the breaker is on: {on}, and went off {} times", after - before));
        }
        if line.trips && !on {
            let reason: Option<String> =
                s.db.one(&format!(
                    "select reason from capabilities where name = '{}' and tenant_id is null",
                    kind.capability()
                ))
                .await;
            if !reason.as_deref().is_some_and(|r| r.contains(&name)) {
                complain(format!("the reason does not name the endpoint: {reason:?}"));
            }
            let row = s.db.job(job).await.expect("it is held");
            if (row.status.as_str(), row.attempts, row.charged) != ("waiting", 1, 0) {
                complain(format!("it is not held uncharged: {row:?}"));
            }
        }
        // A model may be on its way into memory: it is looked for three times more, half a second apart, before it is refused.
        let looks = provider.calls_for(&sha256(words.as_bytes())).len();
        if line.name.contains("about the model") && looks != 4 {
            complain(format!("{looks} looks, not four"));
        }

        // All is well again, and what waited is done by the same workers.
        provider.clear_rules();
        let well = format!("url = '{url}', timeout_ms = 60000, key_env = null, enabled = true, due_at = '-infinity', outage_streak = 0");
        change(&s.db, endpoint, &well).await;
        if !on {
            turn_on(&s, kind).await;
        }
        s.db.exec(&format!("update jobs set avail_at = now() where id = {job} and status = 'waiting'"))
            .await;
        s.until(job, "done").await;
    }
    assert!(workers.iter_mut().all(Process::is_alive));
    assert_eq!(
        s.db.one::<i64>(&format!("select count(*) from jobs where kind = '{}'", kind.name()))
            .await,
        0,
        "all of them are done"
    );
    wrong
}

#[tokio::test(flavor = "multi_thread")]
async fn b14_what_is_clearly_permanent_turns_the_breaker_off_and_nothing_else_does() {
    let dead = Provider::start();
    dead.mode(Mode::Refuse).await;
    let dead = dead.url();
    // Apart from each other: what is read would be embedded, and two capabilities of one database would be in each other's way.
    let (mut wrong, more) = tokio::join!(play(Kind::Embed, &dead), play(Kind::Ocr, &dead));
    wrong.extend(more);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// ── What no provider says ────────────────────────────────────────────────────────────────────────────────────────────

/// The rest of the closed set, each by what makes it. Not here, because nothing in the house makes them yet: `caller_timeout`
/// and `client_gone`.
#[tokio::test(flavor = "multi_thread")]
async fn b11_what_no_provider_says_has_its_class_too() {
    let s = Stage::set().await;
    let provider = Provider::start();
    let ann = s.place("ann").await;
    let endpoint = s.endpoint("vectors", Kind::Embed, &provider.url(), None).await;
    let over = async |job: i64| -> String {
        s.db.one(&format!(
            "select status || ' ' || coalesce(last_class, '') || ' ' || attempts || ' ' || forgiven from jobs_done where id = {job}"
        ))
        .await
    };
    let row = |seen: &Seen| (seen.class.clone(), seen.status.clone(), seen.forgiven, seen.charged);

    // shutdown: the worker is told to go while it works.
    provider.rule(Rule::text("SHUTDOWN").times(1).then(Action::hold("never")));
    let job = s.job(ann, Kind::Embed, "a SHUTDOWN in the middle").await;
    let mut first = s
        .fleet
        .worker_with(Opts::new().kinds("embed").env("STEADFAST_DRAIN", "100ms"))
        .await;
    provider.wait_for("the call", |c| c.has("SHUTDOWN")).await;
    first.sigterm();
    assert!(first.wait_exit().await.success());
    // A claim that was under way when it was told to go is given back the same way: one attempt or two, none of them charged.
    let history = s.db.attempts(job).await;
    assert!(
        history.iter().all(|a| a.class == "shutdown" && a.forgiven) && !history.is_empty(),
        "{history:?}"
    );
    let left = s.db.job(job).await.expect("it was given back");
    assert_eq!(
        (left.status.as_str(), left.charged, left.last_class.as_deref()),
        ("waiting", 0, Some("shutdown")),
        "{left:?}"
    );
    let due: bool = s.db.one(&format!("select avail_at <= now() from jobs where id = {job}")).await;
    assert!(due, "and it is due at once: {left:?}");

    // crash: it is killed while it works. Somebody else finds it.
    provider.rule(Rule::text("CRASH").times(1).then(Action::hold("never")));
    let job = s.job(ann, Kind::Embed, "a CRASH in the middle").await;
    let mut second = s.fleet.worker_with(Opts::new().kinds("embed")).await;
    provider.wait_for("the call", |c| c.has("CRASH")).await;
    second.kill9().await;
    let mut worker = s.fleet.worker_with(Opts::new().kinds("embed,extract,ocr")).await;
    s.until(job, "done").await;
    assert_eq!(over(job).await, "done crash 2 0", "the crash stays charged");
    let history = s.db.attempts(job).await;
    assert_eq!(
        (history.len(), history[0].class.as_str(), history[0].forgiven),
        (1, "crash", false),
        "{history:?}"
    );
    s.ask_now().await;
    wait_until("the one that was given back is done too", SOON, async || {
        match s.db.one::<i64>("select count(*) from jobs where kind = 'embed'").await {
            0 => Ok(()),
            n => Err(n),
        }
    })
    .await;

    // cancelled, and preempted: the one in the batch that is not wanted any more, and the one that shared its call.
    provider.rule(Rule::text("BATCH").times(1).then(Action::hold("never")));
    s.db.exec("update endpoints set enabled = false").await;
    let (unwanted, neighbour) = (
        s.job(ann, Kind::Embed, "a BATCH of two").await,
        s.job(ann, Kind::Embed, "is one BATCH").await,
    );
    change(&s.db, endpoint, "enabled = true").await;
    let call = provider.wait_for("the call", |c| c.has("BATCH")).await;
    assert_eq!(call.texts.len(), 2, "both in one call");
    let id = unwanted.to_string();
    let said = s
        .fleet
        .run(
            "steadfast",
            &["jobs", "cancel", &id, "--yes", "--reason", "not wanted"],
            Opts::new(),
        )
        .await;
    assert_eq!(said.code, Some(0), "{said}");
    s.until(unwanted, "cancelled").await;
    assert_eq!(over(unwanted).await, "cancelled cancelled 1 0");
    s.until(neighbour, "done").await;
    assert_eq!(over(neighbour).await, "done preempted 2 1");
    let history = s.db.attempts(neighbour).await;
    assert_eq!(
        (history.len(), history[0].class.as_str(), history[0].forgiven),
        (1, "preempted", true),
        "{history:?}"
    );

    // superseded, no_content, oversize: found before a call, so nobody is asked.
    let before = provider.calls().len();
    s.db.exec("update endpoints set enabled = false").await;
    let edited = s.job(ann, Kind::Embed, "an old version").await;
    s.db.exec(&format!(
        "update blocks set version = 2 where id = (select item_id from jobs where id = {edited})"
    ))
    .await;
    let blank = s.job(ann, Kind::Embed, " \n\t ").await;
    let long = s.job(ann, Kind::Embed, &"lang ".repeat(24_000)).await;
    change(&s.db, endpoint, "enabled = true").await;
    s.until(edited, "superseded").await;
    assert_eq!(over(edited).await, "superseded superseded 1 0");
    s.until(blank, "done").await;
    assert_eq!(over(blank).await, "done no_content 1 0");
    let seen = s.until_tried(long).await;
    assert_eq!(row(&seen), ("oversize".into(), "parked".into(), false, 1), "{seen:?}");
    assert_eq!(provider.calls().len(), before, "nobody was asked: {:#?}", provider.calls());
    let again = s.job(ann, Kind::Embed, "and this is sent").await;
    s.until(again, "done").await;
    assert_eq!(provider.calls().len(), before + 1);

    // bad_input: a file that can never be read.
    let api = s.fleet.api().await;
    let bob = s.db.person("bob").await;
    let client = api.client(&bob);
    let answer = client.upload(&b"\x89PNG\r\n\x1a\nand then no picture"[..], "bild.png").await;
    assert_eq!(answer.status, 202, "{answer}");
    let job: i64 = answer.job_id().parse().expect("a number");
    let seen = s.until_tried(job).await;
    assert_eq!(row(&seen), ("bad_input".into(), "dead".into(), false, 1), "{seen:?}");
    let shown = client.job(&answer.job_id()).await;
    assert_eq!(shown.json["status"], "dead", "{shown}");

    // place_gone: whose page it is may not write into the Space any more. It is read by nobody, and set aside for a person.
    s.endpoint("reader", Kind::Ocr, &Kind::Ocr.url(&provider.url()), None).await;
    let cid = s.place("cid").await;
    let read = s.job(cid, Kind::Ocr, "a page while cid is a member").await;
    s.until(read, "done").await;
    s.db.exec(&format!("delete from space_members where user_id = {}", cid.user)).await;
    let pages = || provider.calls().iter().filter(|c| c.route == Route::Ocr).count();
    let before = pages();
    let stray = s.job(cid, Kind::Ocr, "a page when cid is none").await;
    let seen = s.until_tried(stray).await;
    assert_eq!(row(&seen), ("place_gone".into(), "parked".into(), false, 1), "{seen:?}");
    assert_eq!((before, pages()), (1, 1), "nobody was asked");

    // too_slow: three calls for a text that hangs, while the endpoint is well. Nobody waits for the backoffs here.
    provider.rule(Rule::text("SLOW").then(Action::Hang { at: At::BeforeHeaders }));
    change(&s.db, endpoint, &format!("timeout_ms = {SHORT_MS}")).await;
    let job = s.job(ann, Kind::Embed, "a SLOW one").await;
    wait_until("it is set aside", SOON, async || {
        s.db.exec("update endpoints set due_at = now() where outage_streak > 0 and due_at > now()")
            .await;
        s.db.exec(&format!(
            "update jobs set avail_at = now() where id = {job} and status = 'waiting' and avail_at > now()"
        ))
        .await;
        match s.db.job(job).await {
            Some(row) if row.status == "parked" => Ok(()),
            other => Err(other),
        }
    })
    .await;
    let last = s.db.job(job).await.expect("it stays");
    assert_eq!(last.last_class.as_deref(), Some("too_slow"), "{last:?}");
    assert_eq!(provider.calls_for("SLOW").len(), 3, "three calls and not one more");
    let classes: Vec<String> = s.db.attempts(job).await.into_iter().map(|a| a.class).collect();
    assert_eq!(classes[..2], ["timeout", "timeout"], "{classes:?}");

    // Whoever is left works on.
    provider.clear_rules();
    s.ask_now().await;
    let last = s.job(ann, Kind::Embed, "the last one").await;
    s.until(last, "done").await;
    assert!(worker.is_alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn n25_a_batch_whose_vectors_cannot_be_bound_stores_none_of_them_and_each_is_asked_alone() {
    let s = Stage::set().await;
    let provider = Provider::start();
    let ann = s.place("ann").await;
    let endpoint = s.endpoint("vectors", Kind::Embed, &provider.url(), None).await;
    let _worker = s.fleet.worker_with(Opts::new().kinds("embed")).await;
    let good = s.job(ann, Kind::Embed, "a good one before").await;
    s.until(good, "done").await;
    for fault in [VectorFault::AllIndexZero, VectorFault::DuplicateIndex, VectorFault::OneShort] {
        provider.forget();
        s.db.exec("update endpoints set enabled = false").await;
        let mut jobs = Vec::new();
        for n in 0..4 {
            jobs.push(s.job(ann, Kind::Embed, &format!("piece {n} of {fault:?}")).await);
        }
        // The first call and both its halves: the calls 1, 2 and 5. A rule counts only what the rules before it have let pass.
        for nth in [1, 1, 3] {
            provider.rule(Rule::nth(nth).then(fault.clone()));
        }
        change(&s.db, endpoint, "enabled = true").await;
        for job in jobs {
            s.until(job, "done").await;
            let charged: i32 =
                s.db.one(&format!("select attempts - forgiven from jobs_done where id = {job}"))
                    .await;
            assert_eq!(charged, 1, "{fault:?}: within the one claim");
        }
        let sizes: Vec<usize> = provider.calls().iter().map(|c| c.texts.len()).collect();
        assert_eq!(sizes, [4, 2, 1, 1, 2, 1, 1], "{fault:?}");
        provider.clear_rules();
    }
    // Each has its own vector, not its neighbour's: all alike would be one of them.
    let different: i64 =
        s.db.one("select count(distinct embedding::text) from blocks where embedding is not null")
            .await;
    assert_eq!(different, 13);
}

// ── What somebody else thinks of it ──────────────────────────────────────────────────────────────────────────────────

fn embedding_request(text: &str) -> Value {
    json!({"model": "text-embedding-3-small", "input": [text], "encoding_format": "float"})
}

#[tokio::test(flavor = "multi_thread")]
async fn b12_llmock_finds_no_ignored_retry_after() {
    const BLOCKS: usize = 36;
    const LIMITED: i64 = 10;
    let s = Stage::set().await;
    let llmock = Llmock::start(&[]).await;
    llmock
        .script(json!({"type": "fail", "status": 429, "retry_after": 0.7, "times": LIMITED}))
        .await;
    let ann = s.place("ann").await;
    let endpoint = s.endpoint("judge", Kind::Embed, &format!("{}/v1", llmock.url()), None).await;
    // One text a call: llmock knows a call again by its body.
    change(&s.db, endpoint, "model = 'text-embedding-3-small', dims = 1536, batch = 1").await;
    for n in 0..BLOCKS {
        s.job(ann, Kind::Embed, &format!("block number {n}")).await;
    }
    let _workers = (
        s.fleet.worker_with(Opts::new().kinds("embed")).await,
        s.fleet.worker_with(Opts::new().kinds("embed")).await,
    );
    wait_until("all blocks have their vectors", TABLE, async || {
        match s.db.one::<i64>("select count(*) from jobs").await {
            0 => Ok(()),
            n => Err(n),
        }
    })
    .await;
    let limited: i64 =
        s.db.one("select count(*) from attempts where class = 'rate_limited' and forgiven")
            .await;
    assert_eq!(
        (limited, s.db.one::<i64>("select count(*) from attempts").await),
        (LIMITED, LIMITED)
    );
    let verdict = llmock.verdict().await;
    assert_eq!(verdict["attempts"], json!(BLOCKS as i64 + LIMITED), "{verdict}");
    assert_eq!(verdict["calls"], json!(BLOCKS), "every refused call was tried again: {verdict}");
    assert!(!llmock.findings().await.contains(&"retry_after_ignored".to_owned()), "{verdict}");
    assert_eq!(verdict["passed"], json!(true), "{verdict}");

    // A careless client at another one: this is what would have been found.
    let other = Llmock::start(&[]).await;
    other
        .script(json!({"type": "fail", "status": 429, "retry_after": 0.7, "times": 2}))
        .await;
    let careless = Client::new(&other.url(), "", 0);
    let mut tries = 0;
    while careless.post("/v1/embeddings", &embedding_request("block number 1")).await.status != 200 {
        tries += 1;
    }
    assert_eq!(tries, 2);
    let verdict = other.verdict().await;
    assert!(other.findings().await.contains(&"retry_after_ignored".to_owned()), "{verdict}");
    assert_eq!(verdict["passed"], json!(false), "{verdict}");
}
