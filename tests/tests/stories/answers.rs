//! Answers: they come whatever is stopped, broken or slow, they say what they had to do without, and they are nobody else's.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use steadfast_tests::harness::{Answer, Api, Client, Db, Fleet, Opts, Person, Process, wait_until};
use steadfast_tests::provider::{Action, At, Fixture, Provider, Route, Rule, VectorFault};

const SCAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/samples/contract-scan.png");
const SOON: Duration = Duration::from_secs(30);
/// How long a question may wait for its vector in these stories.
const QUESTION: Duration = Duration::from_secs(3);

/// A database, the scripted provider as the only one that embeds, an API, a person; nobody works yet.
struct Stage {
    db: Db,
    provider: Provider,
    fleet: Fleet,
    api: Api,
    ann: Person,
}

impl Stage {
    async fn set() -> Self {
        let db = Db::new().await;
        let provider = Provider::start();
        db.openai_endpoint("vectors", &provider, 384).await;
        db.exec("update endpoints set enabled = false where protocol = 'minilm'").await;
        let mut fleet = Fleet::new(&db);
        fleet.set("STEADFAST_QUESTION_TIMEOUT", format!("{}s", QUESTION.as_secs()));
        let api = fleet.api().await;
        let ann = db.person("ann").await;
        Self {
            db,
            provider,
            fleet,
            api,
            ann,
        }
    }

    fn client(&self) -> Client {
        self.api.client(&self.ann)
    }

    /// Flips embedding's breaker by the operator's command; returns what it said.
    async fn breaker(&self, to: &str, reason: &str) -> Value {
        let mut args = vec!["breaker", to, "embedding", "--reason", reason, "--json"];
        if to == "off" {
            args.push("--yes");
        }
        let said = self.fleet.run("steadfast", &args, Opts::new()).await;
        assert_eq!(said.code, Some(0), "{said}");
        said.json()
    }

    async fn embedded(&self, blocks: i64) {
        wait_until("every piece has its vector", SOON, async || {
            let (all, done): (i64, i64) = sqlx::query_as("select count(*), count(embedding) from blocks")
                .fetch_one(&self.db.pool)
                .await
                .expect("blocks can be counted");
            if all == blocks && done == blocks { Ok(()) } else { Err((all, done)) }
        })
        .await;
    }

    async fn count(&self, table: &str) -> i64 {
        self.db.one(&format!("select count(*) from {table}")).await
    }

    /// Until every living worker has given two more signs of life: it has looked for work at least as often.
    async fn two_beats(&self) {
        for _ in 0..2 {
            let last: chrono::DateTime<chrono::Utc> = self.db.one("select max(seen_at) from workers where stopped_at is null").await;
            wait_until("all workers have looked again", SOON, async || {
                let oldest: chrono::DateTime<chrono::Utc> = self.db.one("select min(seen_at) from workers where stopped_at is null").await;
                if oldest > last { Ok(()) } else { Err(oldest) }
            })
            .await;
        }
    }

    /// Everything that an operator's "ask now" does, for all endpoints.
    async fn forget_backoff(&self) {
        self.db.exec("update endpoints set due_at = '-infinity', outage_streak = 0").await;
    }

    /// What lies in the blob store.
    fn blobs(&self) -> usize {
        files(&self.fleet.dir().join("blobs"))
    }
}

fn files(dir: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|e| if e.path().is_dir() { files(&e.path()) } else { 1 })
        .sum()
}

fn diagnostics(answer: &Answer) -> &Value {
    assert_eq!(answer.status, 200, "{answer}");
    &answer.json["diagnostics"]
}

fn degraded(answer: &Answer) -> bool {
    diagnostics(answer)["degraded"].as_bool().expect("always there")
}

fn codes(answer: &Answer) -> Vec<String> {
    let reasons = diagnostics(answer)["reasons"].as_array().expect("always there");
    reasons.iter().map(|r| r["code"].as_str().expect("a code").to_owned()).collect()
}

fn results(answer: &Answer) -> &Vec<Value> {
    assert_eq!(answer.status, 200, "{answer}");
    answer.json["results"].as_array().expect("always there")
}

fn contents(answer: &Answer) -> Vec<&str> {
    let text = |r: &'_ Value| -> &str { unreachable!("{r}") };
    results(answer)
        .iter()
        .map(|r| r["memory"]["content"].as_str().unwrap_or_else(|| text(r)))
        .collect()
}

/// By which legs the first result was found.
fn paths(answer: &Answer) -> BTreeSet<String> {
    let first = results(answer).first().unwrap_or_else(|| panic!("nothing found: {answer}"));
    let paths = first["explanation"]["paths"].as_array().expect("always there");
    paths.iter().map(|p| p.as_str().expect("a word").to_owned()).collect()
}

/// The shape of every refusal (P32).
fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{answer}");
    let error = &answer.json["error"];
    assert_eq!(error["code"], code, "{answer}");
    assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{answer}");
    assert!(error["fields"].is_object(), "{answer}");
    let id = error["requestId"].as_str().unwrap_or_default();
    assert!(!id.is_empty(), "{answer}");
    assert_eq!(answer.headers["x-request-id"], id, "the answer and its header name the same request");
    for word in ["sqlx", "select ", "postgres", "relation", "panicked", "/home", "/tmp"] {
        assert!(!answer.text.to_lowercase().contains(word), "{word:?} in {answer}");
    }
}

// ── Embedding stopped ────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn p7_p23_embedding_off_asks_nobody_keeps_everything_and_says_so() {
    let s = Stage::set().await;
    let _worker = s.fleet.worker().await;
    let ann = s.client();

    // The calls can happen: one for a piece, one for a question.
    assert_eq!(ann.remember("green tea from the first crate").await.status, 202);
    s.embedded(1).await;
    let whole = ann.search("crate of tea").await;
    assert!(!degraded(&whole), "{whole}");
    assert!(paths(&whole).contains("vector"), "{whole}");
    assert!(diagnostics(&whole)["notice"].is_null(), "{whole}");
    assert!(s.provider.calls().len() >= 2);

    let off = s.breaker("off", "key rotated").await;
    assert_eq!((&off["changed"], &off["enabled"]), (&json!(true), &json!(false)), "{off}");
    assert_eq!(s.provider.in_flight(), 0);
    let before = s.provider.calls().len();

    for round in 1..=4 {
        let note = ann.remember(&format!("oolong note number {round}")).await;
        assert_eq!(note.status, 202, "{note}");
        assert!(note.json["note"].as_str().is_some_and(|n| n.contains("paused")), "{note}");
        let file = ann.upload(format!("oolong file number {round}"), "leaf.txt").await;
        assert_eq!(file.status, 202, "{file}");
        // The same question as before too: its vector is known, and using it would hide that something is stopped.
        for question in ["crate of tea".to_owned(), format!("tea, round {round}")] {
            let found = ann.search(&question).await;
            assert!(degraded(&found), "{found}");
            assert_eq!(diagnostics(&found)["unavailable"], json!(["embedding"]), "{found}");
            assert!(codes(&found).contains(&"stopped".to_owned()), "{found}");
            let notice = diagnostics(&found)["notice"].as_str().unwrap_or_default();
            assert!(notice.contains("paused") && notice.contains("stored safely"), "{found}");
            assert!(contents(&found).contains(&"green tea from the first crate"), "{found}");
            assert_eq!(paths(&found), BTreeSet::from(["keyword".to_owned()]), "{found}");
        }
    }
    let held = "jobs where kind = 'embed' and status = 'waiting' and attempts = 0";
    wait_until("all eight are held", SOON, async || match s.count(held).await {
        8 => Ok(()),
        n => Err(n),
    })
    .await;
    s.two_beats().await;
    assert_eq!(s.count(held).await, 8, "nobody touched them");
    assert_eq!(s.provider.calls().len(), before, "nobody was asked: {:#?}", s.provider.calls());
    // What came in while it was off is found by its words.
    let found = ann.search("oolong").await;
    assert_eq!(contents(&found).len(), 8, "{found}");

    let again = s.breaker("off", "somebody else's reason").await;
    assert_eq!(
        (&again["changed"], &again["reason"]),
        (&json!(false), &json!("key rotated")),
        "the first reason stays: {again}"
    );
    let on = s.breaker("on", "the new key is in").await;
    assert_eq!((&on["changed"], &on["enabled"]), (&json!(true), &json!(true)), "{on}");
    s.embedded(9).await;
    let whole = ann.search("crate of tea").await;
    assert!(!degraded(&whole), "{whole}");
    assert!(diagnostics(&whole)["notice"].is_null() && paths(&whole).contains("vector"), "{whole}");

    let history: Vec<(String, String, String)> =
        sqlx::query_as("select action, coalesce(reason, ''), actor from capability_events where capability = 'embedding' order by id")
            .fetch_all(&s.db.pool)
            .await
            .expect("the history");
    let said: Vec<(&str, &str)> = history.iter().map(|(a, r, _)| (a.as_str(), r.as_str())).collect();
    assert_eq!(
        said,
        [
            ("off", "key rotated"),
            ("already_off", "somebody else's reason"),
            ("on", "the new key is in")
        ]
    );
    assert!(history.iter().all(|(_, _, who)| !who.is_empty() && who != "system"), "{history:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_b14_a_refused_key_stops_embedding_once_and_nothing_but_an_operator_starts_it() {
    let s = Stage::set().await;
    s.provider.rule(Rule::all().on(Route::Embeddings).then(Fixture::InvalidKey));
    let ann = s.client();
    for n in 1..=3 {
        assert_eq!(ann.remember(&format!("note number {n}")).await.status, 202);
    }
    let (_a, _b) = (s.fleet.worker().await, s.fleet.worker().await);
    let state = "select enabled || '|' || coalesce(changed_by, '') || '|' || coalesce(reason, '') from capabilities where name = 'embedding'";
    let tripped = wait_until("the breaker is off", SOON, async || match s.db.one::<String>(state).await {
        off if off.starts_with("false") => Ok(off),
        on => Err(on),
    })
    .await;
    assert!(tripped.starts_with("false|system|vectors:"), "who, and which endpoint: {tripped}");
    assert!(s.provider.calls().iter().any(|c| c.status == Some(401)));

    let settled = "jobs where kind = 'embed' and status = 'waiting' and charged = 0";
    wait_until("all three are held and uncharged", SOON, async || match s.count(settled).await {
        3 => Ok(()),
        n => Err(n),
    })
    .await;
    // The provider is well again. Nobody finds that out by asking.
    s.provider.clear_rules();
    let before = s.provider.calls().len();
    let later = ann.remember("note number 4").await;
    assert_eq!(later.status, 202, "{later}");
    wait_until("it is held too", SOON, async || match s.count(settled).await {
        4 => Ok(()),
        n => Err(n),
    })
    .await;
    s.two_beats().await;
    assert_eq!(s.provider.calls().len(), before);
    assert_eq!(s.db.one::<String>(state).await, tripped, "the first reason stays, and nothing turned it on");
    assert_eq!(s.count("capability_events where action = 'off'").await, 1, "it tripped once");
    assert_eq!(s.count(settled).await, 4);
    assert_eq!(s.count("jobs where status = 'dead'").await, 0);

    s.breaker("on", "a key that works").await;
    s.embedded(4).await;
    assert_eq!(s.count("jobs_done where kind = 'embed' and attempts - forgiven > 1").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn b71_case71_a_stray_401_among_good_answers_stops_nobody() {
    let s = Stage::set().await;
    s.provider.rule(Rule::text("STRAY").times(1).then(Fixture::InvalidKey));
    let _worker = s.fleet.worker().await;
    let ann = s.client();
    assert_eq!(ann.remember("a good note").await.status, 202);
    s.embedded(1).await;
    assert_eq!(ann.remember("a STRAY note").await.status, 202);
    let stray = s
        .provider
        .wait_for("the refusal", |c| c.has("STRAY") && c.status == Some(401))
        .await;
    // The control text is what tells a stray refusal from a key that is no good.
    s.provider
        .wait_for("the control text", |c| c.seq > stray.seq && !c.has("STRAY") && c.completed())
        .await;
    let job: i64 = s.db.one("select max(id) from jobs where kind = 'embed'").await;
    wait_until("the attempt is settled", SOON, async || match s.db.status(job).await {
        w if w == "waiting" => Ok(()),
        other => Err(other),
    })
    .await;
    assert_eq!(ann.remember("another good note").await.status, 202);
    s.db.exec(&format!("update jobs set avail_at = now() where id = {job}")).await;
    s.embedded(3).await;
    assert!(s.db.one::<bool>("select bool_and(enabled) from capabilities").await);
    assert_eq!(s.count("capability_events").await, 0, "it never was off, not even for a moment");
}

// ── The question's own vector ────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn case106_a_question_without_its_vector_is_answered_by_words_and_says_why() {
    const ENGLISH: &str = "the lighthouse keeper slept through the storm";
    const CHINESE: &str = "灯塔看守人睡着了";
    let s = Stage::set().await;
    let mut worker = s.fleet.worker().await;
    let ann = s.client();
    for text in [ENGLISH, CHINESE] {
        assert_eq!(ann.remember(text).await.status, 202);
    }
    s.embedded(2).await;
    let mut asked = 0;
    // A new question each time: a vector that is known from before would hide the fault.
    let mut ask = async |text: &str, words: &str| {
        asked += 1;
        let begun = Instant::now();
        let answer = ann.search(&format!("{words} q{asked}")).await;
        let took = begun.elapsed();
        assert!(took < QUESTION + Duration::from_secs(3), "{took:?}: {answer}");
        assert_eq!(contents(&answer).first(), Some(&text), "{answer}");
        answer
    };
    let well = async |ask: &mut dyn AsyncAsk| {
        let answer = ask.ask(ENGLISH, "lighthouse keeper").await;
        assert!(!degraded(&answer), "{answer}");
        assert_eq!(paths(&answer), BTreeSet::from(["keyword".to_owned(), "vector".to_owned()]), "{answer}");
    };
    let _ = (&mut ask, well, &mut worker);
}
