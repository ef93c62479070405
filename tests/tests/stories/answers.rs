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
            if all == blocks && done == blocks {
                Ok(())
            } else {
                Err((all, done))
            }
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
    entries.map(|e| if e.path().is_dir() { files(&e.path()) } else { 1 }).sum()
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
    results(answer)
        .iter()
        .map(|r| r["memory"]["content"].as_str().expect("always there"))
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
    assert_eq!(
        answer.headers["x-request-id"], id,
        "the answer and its header name the same request"
    );
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
    assert!(
        diagnostics(&whole)["notice"].is_null() && paths(&whole).contains("vector"),
        "{whole}"
    );

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
    let state =
        "select enabled || '|' || coalesce(changed_by, '') || '|' || coalesce(reason, '') from capabilities where name = 'embedding'";
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
    assert_eq!(
        s.db.one::<String>(state).await,
        tripped,
        "the first reason stays, and nothing turned it on"
    );
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

// ── One leg without the other ────────────────────────────────────────────────────────────────────────────────────────

const ENGLISH: &str = "the lighthouse keeper slept through the storm";
const CHINESE: &str = "灯塔看守人睡着了";

/// Asks a new question each time: a vector that is known from before would hide the fault.
struct Asker {
    client: Client,
    asked: u32,
}

impl Asker {
    async fn ask(&mut self, words: &str) -> Answer {
        self.asked += 1;
        let begun = Instant::now();
        let answer = self.client.search(&format!("{words} q{}", self.asked)).await;
        let took = begun.elapsed();
        assert!(took < QUESTION + Duration::from_secs(3), "{took:?}: {answer}");
        answer
    }

    /// Both languages are answered by their words; returns the reasons that were told.
    async fn degraded(&mut self) -> BTreeSet<String> {
        let mut why = BTreeSet::new();
        for text in [ENGLISH, CHINESE] {
            let answer = self.ask(text).await;
            assert_eq!(contents(&answer).first(), Some(&text), "{answer}");
            assert!(degraded(&answer), "{answer}");
            assert_eq!(diagnostics(&answer)["unavailable"], json!(["embedding"]), "{answer}");
            assert_eq!(paths(&answer), BTreeSet::from(["keyword".to_owned()]), "{answer}");
            why.extend(codes(&answer));
        }
        why
    }

    async fn whole(&mut self) {
        for text in [ENGLISH, CHINESE] {
            let answer = self.ask(text).await;
            assert!(!degraded(&answer), "{answer}");
            assert_eq!(contents(&answer).first(), Some(&text), "{answer}");
            assert_eq!(
                paths(&answer),
                BTreeSet::from(["keyword".to_owned(), "vector".to_owned()]),
                "{answer}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p23_p24_case106_a_question_without_its_vector_is_answered_by_words_and_says_why() {
    let s = Stage::set().await;
    let mut worker = s.fleet.worker().await;
    let mut ann = Asker {
        client: s.client(),
        asked: 0,
    };
    for text in [ENGLISH, CHINESE] {
        assert_eq!(ann.client.remember(text).await.status, 202);
    }
    s.embedded(2).await;
    ann.whole().await;

    // The first question meets the fault itself, the second what is known of it by then.
    let faults: [(Action, &[&str]); 6] = [
        (Action::Hang { at: At::BeforeHeaders }, &["question_timeout"]),
        (Fixture::TooManyRequests.into(), &["question_rate_limited", "rate_limited"]),
        (Fixture::ServiceUnavailable.into(), &["outage", "question_outage"]),
        // Two ways to be unusable: one class.
        (VectorFault::Dims(7).into(), &["question_invalid_output"]),
        (VectorFault::NaN.into(), &["question_invalid_output"]),
        (Fixture::InvalidKey.into(), &["question_refused", "stopped"]),
    ];
    for (fault, expected) in faults {
        s.provider.rule(Rule::all().then(fault.clone()));
        assert_eq!(Vec::from_iter(ann.degraded().await), expected, "{fault:?}");
        s.provider.clear_rules();
        s.forget_backoff().await;
        s.breaker("on", "the next part of the story").await;
        ann.whole().await;
    }

    s.breaker("off", "on purpose").await;
    let before = s.provider.calls().len();
    assert_eq!(Vec::from_iter(ann.degraded().await), ["stopped"]);
    assert_eq!(s.provider.calls().len(), before, "no call at all");
    s.breaker("on", "enough").await;

    worker.sigterm();
    assert!(worker.wait_exit().await.success());
    assert_eq!(Vec::from_iter(ann.degraded().await), ["no_worker"]);
    let _worker = s.fleet.worker().await;
    ann.whole().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case107_a_dead_keyword_leg_leaves_the_other_and_both_dead_are_no_empty_answer() {
    let s = Stage::set().await;
    let _worker = s.fleet.worker().await;
    let ann = s.client();
    assert_eq!(ann.remember(ENGLISH).await.status, 202);
    s.embedded(1).await;

    // All but the column that the keyword leg needs.
    let grant = |but: &str| {
        format!(
            "do $$ declare c text; begin
               revoke select on blocks from steadfast_api;
               for c in select attname from pg_attribute where attrelid = 'blocks'::regclass and attnum > 0 and not attisdropped and attname not in ({but}) loop
                 execute format('grant select (%I) on blocks to steadfast_api', c);
               end loop;
             end $$"
        )
    };
    s.db.exec(&grant("'words'")).await;
    let found = ann.search("lighthouse keeper").await;
    assert_eq!(contents(&found), [ENGLISH], "{found}");
    assert_eq!(paths(&found), BTreeSet::from(["vector".to_owned()]), "{found}");
    assert!(degraded(&found), "{found}");
    assert_eq!(codes(&found), ["keyword_failed"], "{found}");

    s.db.exec("revoke select (embedding) on blocks from steadfast_api").await;
    let none = ann.search("lighthouse keeper").await;
    refused(&none, 503, "UNAVAILABLE");
    assert!(none.headers.contains_key("retry-after"), "{none}");

    s.db.exec("grant select on blocks to steadfast_api").await;
    let whole = ann.search("lighthouse keeper").await;
    assert!(!degraded(&whole) && contents(&whole) == [ENGLISH], "{whole}");
}

#[tokio::test(flavor = "multi_thread")]
async fn case109_case110_no_question_is_an_error_and_stop_words_alone_find_nothing_by_words() {
    let s = Stage::set().await;
    let worker = s.fleet.worker().await;
    let ann = s.client();
    for text in [
        "to be or not to be, that is the question",
        "don will come on a Monday",
        "What's new: mail John <j@x.y>",
    ] {
        assert_eq!(ann.remember(text).await.status, 202);
    }
    s.embedded(3).await;

    let thousand = "'".repeat(1000);
    let syntax = [
        "(",
        ")",
        ":*",
        "&",
        "!",
        "|",
        "<->",
        "a:b",
        "a:*",
        "What's",
        "John <j@x.y>",
        "\\",
        "a\\",
        "'\\''",
        "\u{2018}x\u{2019}",
        "don\u{2BC}t",
        "\u{FF07}",
        "a & | b",
        "!!(a",
        "'; drop table blocks; --",
        "\"half",
        "%",
        "_",
        "$1",
        "{}",
        "<b>x</b>",
        "\u{1F680}",
        "\u{202E}abc",
        "a\tb\nc",
        &thousand,
        // Addresses stay whole, signs and all, when words are cut out of a text.
        "http://h.example/a?b=(c)&d='e'|f:*",
        "ftp.example.org/~o'neil",
        "see example.com/a&b|c:d'e",
    ];
    for question in syntax {
        let answer = ann.search(question).await;
        assert_eq!(answer.status, 200, "{question:?}: {answer}");
        assert!(!degraded(&answer), "{question:?}: {answer}");
        assert_eq!(answer.json["query"], question.trim(), "{answer}");
        let steps = diagnostics(&answer)["steps"].to_string().to_lowercase();
        assert!(!steps.contains("tsquery") && !steps.contains("syntax"), "{question:?}: {answer}");
    }
    assert_eq!(
        contents(&ann.search("John <j@x.y>").await).first(),
        Some(&"What's new: mail John <j@x.y>"),
        "and they find what they say"
    );

    let stop_words = ["the", "to be or not to be", "a", "on", "will"];
    for question in stop_words {
        let answer = ann.search(question).await;
        assert!(!degraded(&answer), "{question:?}: {answer}");
        let steps = diagnostics(&answer)["steps"].to_string();
        assert!(steps.contains("keyword: no terms"), "{question:?}: {answer}");
        assert!(steps.contains("semantic: the question by"), "the other leg was asked: {answer}");
        for r in results(&answer) {
            assert_eq!(r["explanation"]["paths"], json!(["vector"]), "{question:?}: {answer}");
        }
    }
    // A name that looks like a stop-word is found by its meaning's leg at least; here by its word.
    assert_eq!(contents(&ann.search("don").await).first(), Some(&"don will come on a Monday"));

    // With the other leg stopped there is nothing to be found, and not everything.
    s.breaker("off", "words alone").await;
    for question in stop_words {
        let answer = ann.search(question).await;
        assert!(results(&answer).is_empty() && degraded(&answer), "{question:?}: {answer}");
    }
    for empty in ["", " ", "\t\n "] {
        refused(&ann.search(empty).await, 400, "VALIDATION_ERROR");
    }
    refused(&ann.get("/api/v1/search").await, 400, "VALIDATION_ERROR");
    refused(&ann.search(&"x".repeat(8193)).await, 400, "VALIDATION_ERROR");
    drop(worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn case113_pages_of_a_list_where_all_is_alike_have_everything_once_and_in_one_order() {
    const TEXT: &str = "minutes of the meeting about green tea";
    let s = Stage::set().await;
    let _worker = s.fleet.worker().await;
    let ann = s.client();
    let bob = s.api.client(&s.db.person_of("other", "bob").await);
    for _ in 0..60 {
        assert_eq!(ann.remember(TEXT).await.status, 202);
    }
    s.embedded(60).await;

    let mut rounds: Vec<Vec<String>> = Vec::new();
    for _ in 0..2 {
        let (mut ids, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let page = ann
                .get(&format!("/api/v1/search?query=meeting+about+tea&limit=10&cursor={cursor}"))
                .await;
            ids.extend(results(&page).iter().map(|r| r["documentId"].as_str().expect("an id").to_owned()));
            pages += 1;
            assert!(pages <= 7, "it ends");
            // Somebody unrelated goes on handing in the same text.
            assert_eq!(bob.remember(TEXT).await.status, 202);
            match page.json["pagination"]["nextCursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        assert_eq!(pages, 6);
        rounds.push(ids);
    }
    let different: HashSet<&String> = rounds[0].iter().collect();
    assert_eq!((rounds[0].len(), different.len()), (60, 60));
    assert_eq!(rounds[0], rounds[1]);

    for bad in [
        "limit=0",
        "limit=101",
        "limit=-1",
        "limit=ten",
        "cursor=nonsense",
        "minScore=2",
        "spaceIds=0",
    ] {
        let answer = ann.get(&format!("/api/v1/search?query=tea&{bad}")).await;
        assert!(matches!(answer.status, 400 | 404), "{bad}: {answer}");
    }
    let first = ann.get("/api/v1/search?query=meeting&limit=10").await;
    let cursor = first.json["pagination"]["nextCursor"].as_str().expect("more to come");
    let other = ann.get(&format!("/api/v1/search?query=tea&limit=10&cursor={cursor}")).await;
    refused(&other, 400, "VALIDATION_ERROR");
}

// ── Nobody else's ────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn p32_case115_two_tenants_with_the_same_text_see_each_their_own() {
    const TEXT: &str = "the treaty of Tordesillas divided the ocean";
    let s = Stage::set().await;
    let _worker = s.fleet.worker().await;
    let bob = s.db.person_of("other", "bob").await;
    // Of Ann's tenant, in a Space of her own.
    let cat = s.db.person("cat").await;
    let people: Vec<(&Person, Client)> = [&s.ann, &bob, &cat].map(|p| (p, s.api.client(p))).into();
    let mut own: Vec<(String, String)> = Vec::new();
    for (_, client) in &people {
        let added = client.remember(TEXT).await;
        assert_eq!(added.status, 202, "{added}");
        own.push((added.json["documentId"].as_str().expect("an id").to_owned(), added.job_id()));
    }
    s.embedded(3).await;

    for mode in ["whole", "by words"] {
        if mode == "by words" {
            s.breaker("off", "the other half of the story").await;
        }
        for (n, (who, client)) in people.iter().enumerate() {
            for question in ["treaty of Tordesillas", "Tordesillas", "ocean treaty"] {
                let found = client.search(question).await;
                assert_eq!(degraded(&found), mode == "by words", "{found}");
                let seen: Vec<&str> = results(&found).iter().map(|r| r["documentId"].as_str().expect("an id")).collect();
                assert_eq!(seen, [own[n].0.as_str()], "{mode}: {question}: {found}");
                assert_eq!(
                    results(&found)[0]["memory"]["spaceIds"],
                    json!([who.space_id.to_string()]),
                    "{found}"
                );
            }
        }
    }
    for (n, (_, client)) in people.iter().enumerate() {
        for list in ["documents", "jobs"] {
            let page = client.get(&format!("/api/v1/{list}?limit=100")).await;
            let ids: Vec<&str> = page.json["data"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|d| d["id"].as_str().expect("an id"))
                .collect();
            let mine = if list == "documents" { &own[n].0 } else { &own[n].1 };
            assert_eq!(ids, [mine.as_str()], "{list}: {page}");
        }
        let spaces = client.get("/api/v1/spaces").await;
        assert_eq!(spaces.json["data"].as_array().expect("a list").len(), 1, "{spaces}");

        for (m, (whose, _)) in people.iter().enumerate().filter(|(m, _)| *m != n) {
            let (document, job) = &own[m];
            // Guessed: told apart from nothing that was ever there.
            for (kind, id) in [("documents", document), ("jobs", job)] {
                let theirs = client.get(&format!("/api/v1/{kind}/{id}")).await;
                refused(&theirs, 404, "NOT_FOUND");
                let nobodys = client.get(&format!("/api/v1/{kind}/999999999")).await;
                assert_eq!(theirs.json["error"]["message"], nobodys.json["error"]["message"]);
            }
            refused(
                &client
                    .send(client.request(Method::DELETE, &format!("/api/v1/documents/{document}")))
                    .await,
                404,
                "NOT_FOUND",
            );
            refused(
                &client.post(&format!("/api/v1/jobs/dead/{job}/replay"), &json!({})).await,
                404,
                "NOT_FOUND",
            );
            let there = client
                .get(&format!("/api/v1/search?query=treaty&spaceIds={}", whose.space_id))
                .await;
            refused(&there, 404, "NOT_FOUND");
            refused(&client.upload_to("mine", "mine.txt", whose.space_id).await, 404, "NOT_FOUND");
            let into = client
                .post(
                    "/api/v1/remember",
                    &json!({"text": "mine", "spaceIds": [whose.space_id.to_string()]}),
                )
                .await;
            refused(&into, 404, "NOT_FOUND");
        }
    }
    assert_eq!(s.count("documents").await, 3, "nothing was deleted, nothing was put anywhere");

    let metrics = people[0].1.get("/health/metrics").await;
    assert!(metrics.text.contains("steadfast_workers{kind="), "{metrics}");
    for name in ["ann", "bob", "cat", "other", "tenant", "Tordesillas"] {
        assert!(!metrics.text.contains(&format!("\"{name}")), "{name} in {metrics}");
    }
    // A row without a tenant cannot be: nobody has to ask who sees it.
    let orphan = sqlx::query("update blocks set tenant_id = null").execute(&s.db.pool).await;
    assert!(orphan.is_err_and(|e| e.to_string().contains("not-null")));
}

// ── The doors' manners ───────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn p30_remember_without_a_space_names_yours_and_keeps_nothing() {
    let s = Stage::set().await;
    let ann = s.client();
    let spaces = format!("ann (id {})", s.ann.space_id);
    for body in [
        json!({"text": "where to?"}),
        json!({"text": "where to?", "spaceIds": []}),
        json!({"text": "where to?", "spaceIds": null}),
    ] {
        let answer = ann.post("/api/v1/remember", &body).await;
        refused(&answer, 400, "VALIDATION_ERROR");
        assert!(
            answer.json["error"]["message"].as_str().is_some_and(|m| m.contains(&spaces)),
            "{answer}"
        );
        assert!(answer.json["error"]["fields"]["spaceIds"].is_string(), "{answer}");
    }
    let upload = ann
        .send(ann.request(Method::POST, "/api/v1/uploads/direct?filename=x.txt").body("where to?"))
        .await;
    refused(&upload, 400, "VALIDATION_ERROR");
    assert!(upload.text.contains(&spaces), "{upload}");
    let unknown = ann.post("/api/v1/remember", &json!({"text": "x", "spaceIds": ["Atlantis"]})).await;
    refused(&unknown, 404, "NOT_FOUND");
    assert!(unknown.text.contains(&spaces), "{unknown}");
    assert_eq!((s.count("documents").await, s.count("jobs").await, s.blobs()), (0, 0, 0));
    // By its name it is found.
    assert_eq!(
        ann.post("/api/v1/remember", &json!({"text": "x", "spaceIds": ["ann"]}))
            .await
            .status,
        202
    );
    assert_eq!((s.count("documents").await, s.count("jobs").await, s.blobs()), (1, 1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn p32_every_refusal_has_one_shape() {
    let s = Stage::set().await;
    let ann = s.client();
    refused(&ann.get("/api/v1/nowhere").await, 404, "NOT_FOUND");
    refused(&ann.get("/api/v1/remember").await, 405, "METHOD_NOT_ALLOWED");
    refused(&ann.get("/api/v1/jobs/not-a-number").await, 404, "NOT_FOUND");
    refused(&ann.get("/api/v1/jobs/99999999999999999999").await, 404, "NOT_FOUND");
    refused(&ann.get("/api/v1/documents?status=lost").await, 400, "VALIDATION_ERROR");
    refused(&ann.post("/api/v1/remember", &json!(["text"])).await, 400, "VALIDATION_ERROR");
    let half = ann
        .send(ann.request(Method::POST, "/api/v1/remember").body(r#"{"text": "x", "spaceIds": ["#))
        .await;
    refused(&half, 400, "VALIDATION_ERROR");
    assert!(
        half.json["error"]["fields"]["spaceIds.0"].is_string() || half.json["error"]["fields"]["spaceIds"].is_string(),
        "{half}"
    );

    // A caller's own request id goes through when it is sane, and is replaced when it is not.
    let id = |value: &'static str| ann.request(Method::GET, "/api/v1/nowhere").header("x-request-id", value);
    let own = ann.send(id("my-request.7")).await;
    assert_eq!(own.json["error"]["requestId"], "my-request.7");
    let odd = ann.send(id("not sane \"quoted\"")).await;
    refused(&odd, 404, "NOT_FOUND");
    assert!(!odd.text.contains("sane"), "{odd}");
}

#[tokio::test(flavor = "multi_thread")]
async fn b49_p31_case31_fifty_at_once_with_one_key_are_one() {
    let s = Stage::set().await;
    let _worker = s.fleet.worker().await;
    let ann = s.client();
    let path = "/api/v1/remember";
    let body = json!({"text": "once and only once", "spaceIds": [s.ann.space_id.to_string()], "metadata": {"a": 1, "b": [2, 3]}});
    let send = |client: &Client, key: &str, body: &str| {
        let (client, body) = (client.clone(), body.to_owned());
        let request = client.request(Method::POST, path).header("idempotency-key", key).body(body);
        async move { client.send(request).await }
    };
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..50 {
        all.spawn(send(&ann, "key-1", &body.to_string()));
    }
    let answers = all.join_all().await;
    let mut seen: HashMap<(String, String), u32> = HashMap::new();
    for a in &answers {
        assert_eq!(a.status, 202, "{a}");
        *seen.entry((a.json["documentId"].to_string(), a.job_id())).or_default() += 1;
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(
        answers.iter().filter(|a| !a.headers.contains_key("idempotency-replayed")).count(),
        1
    );
    s.embedded(1).await;
    // Also after a worker has finished it: the same answer, and no second job.
    let late = send(&ann, "key-1", &body.to_string()).await;
    assert_eq!((late.status, late.job_id()), (202, answers[0].job_id()));
    let jobs = "select (select count(*) from jobs where kind = 'extract') + (select count(*) from jobs_done where kind = 'extract')";
    assert_eq!((s.count("documents").await, s.db.one::<i64>(jobs).await), (1, 1));
    wait_until("the bytes of the others are gone", SOON, async || match s.blobs() {
        1 => Ok(()),
        n => Err(n),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b49_p31_case32_a_key_belongs_to_its_request() {
    let s = Stage::set().await;
    let ann = s.client();
    let bob = s.db.person_of("other", "bob").await;
    let remember = |client: &Client, key: &str, body: String| {
        let client = client.clone();
        let request = client
            .request(Method::POST, "/api/v1/remember")
            .header("idempotency-key", key)
            .header("content-type", "application/json")
            .body(body);
        async move { client.send(request).await }
    };
    let space = s.ann.space_id;
    let first = remember(
        &ann,
        "K",
        format!(r#"{{"text":"A","spaceIds":["{space}"],"metadata":{{"x":1,"y":2}}}}"#),
    )
    .await;
    assert_eq!(first.status, 202, "{first}");
    // Another order of members, other white space, an escape: the same request.
    let same = remember(
        &ann,
        "K",
        format!("{{ \"metadata\": {{\"y\": 2, \"x\": 1}},\n \"spaceIds\": [\"{space}\"], \"text\": \"\\u0041\" }}"),
    )
    .await;
    assert_eq!((same.status, same.job_id()), (202, first.job_id()), "{same}");
    assert_eq!(same.headers["idempotency-replayed"], "true");
    for other in [
        format!(r#"{{"text":"B","spaceIds":["{space}"],"metadata":{{"x":1,"y":2}}}}"#),
        format!(r#"{{"text":"A","spaceIds":["{space}"],"metadata":{{"x":1,"y":3}}}}"#),
        format!(r#"{{"text":"A","spaceIds":["{space}"]}}"#),
    ] {
        let answer = remember(&ann, "K", other).await;
        refused(&answer, 422, "IDEMPOTENCY_MISMATCH");
        assert!(answer.json["error"]["fields"]["Idempotency-Key"].is_string(), "{answer}");
    }
    assert_eq!(s.count("documents").await, 1);
    // Another route, another tenant: other keys.
    let upload = ann
        .request(Method::POST, &format!("/api/v1/uploads/direct?filename=a.txt&spaceId={space}"))
        .header("idempotency-key", "K");
    let upload = ann.send(upload.body("A")).await;
    assert_eq!(upload.status, 202, "{upload}");
    let theirs = remember(
        &s.api.client(&bob),
        "K",
        format!(r#"{{"text":"other","spaceIds":["{}"]}}"#, bob.space_id),
    )
    .await;
    assert_eq!(theirs.status, 202, "{theirs}");
    assert_ne!(theirs.job_id(), first.job_id());
    assert_eq!(s.count("documents").await, 3);

    // While the first still runs: its transaction has the key, and has not committed.
    let mut running = s.db.pool.begin().await.expect("a transaction");
    sqlx::query(
        "insert into idempotency_keys (tenant_id, user_id, route, key, request_hash, response) values ($1, $2, 'remember', 'L', $3, '{}')",
    )
    .bind(s.ann.tenant_id)
    .bind(s.ann.user_id)
    .bind(vec![0_u8; 32])
    .execute(&mut *running)
    .await
    .expect("the key is free");
    let second = tokio::spawn(remember(&ann, "L", format!(r#"{{"text":"C","spaceIds":["{space}"]}}"#)));
    wait_until("the second waits for the first", SOON, async || {
        let waiting: i64 =
            s.db.one("select count(*) from pg_stat_activity where application_name = 'steadfast-api' and wait_event_type = 'Lock'")
                .await;
        (waiting > 0).then_some(())
    })
    .await;
    running.commit().await.expect("the first is through");
    refused(&second.await.expect("it ran"), 422, "IDEMPOTENCY_MISMATCH");
    assert_eq!(s.count("documents").await, 3);
    assert_eq!(s.blobs(), 3, "what was refused left nothing");
    for bad in ["", &"k".repeat(256)] {
        refused(
            &remember(&ann, bad, format!(r#"{{"text":"D","spaceIds":["{space}"]}}"#)).await,
            400,
            "VALIDATION_ERROR",
        );
    }
}

// ── The real client ──────────────────────────────────────────────────────────────────────────────────────────────────

/// `persistmemory` 0.2.0 as its makers published it, through the built-in engines.
#[tokio::test(flavor = "multi_thread")]
async fn p21_persistmemory_0_2_0_unmodified_remembers_uploads_searches_and_sees_completed() {
    let python = std::env::var("STEADFAST_CLIENT_PYTHON")
        .expect("STEADFAST_CLIENT_PYTHON names a Python that has persistmemory 0.2.0; run this through ops/test, which makes one");
    let model = std::env::var("STEADFAST_MODEL_DIR").expect("STEADFAST_MODEL_DIR names the built-in model; run this through ops/test");
    let db = Db::new().await;
    let fleet = Fleet::new(&db);
    let api = fleet.api().await;
    let ann = db.person("ann").await;
    let _worker: Process = fleet.worker_with(Opts::new().env("STEADFAST_MODEL_DIR", model)).await;

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client/remember_upload_search.py");
    let run = tokio::process::Command::new(python)
        .args(["-I", script, SCAN])
        .env("PERSISTMEMORY_API_KEY", &ann.token)
        .env("STEADFAST_URL", &api.base)
        .kill_on_drop(true)
        .output();
    let out = tokio::time::timeout(Duration::from_secs(120), run)
        .await
        .expect("within two minutes")
        .expect("a Python that starts");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}\n{}", String::from_utf8_lossy(&out.stderr));
    let said: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));

    assert_eq!(said["version"], "0.2.0");
    assert_eq!(
        said["fingerprint"], "60d32583e4f92f62387920d54b732f735adeff8b19a0793d3b44c0bd6e1df81a",
        "as published: {said}"
    );
    assert_eq!(said["spaces"], json!(["ann"]));
    assert_eq!(said["remembered"]["status"], "queued");
    assert_eq!(
        (&said["jobs"]["note"], &said["jobs"]["scan"]),
        (&json!("completed"), &json!("completed")),
        "{said}"
    );
    // Neither question shares a word with what it finds.
    assert_eq!(said["found"]["note"]["first"], said["remembered"]["documentId"], "{said}");
    assert_eq!(said["found"]["scan"]["first"], said["uploaded"]["documentId"], "{said}");
    assert_eq!(
        (&said["found"]["note"]["degraded"], &said["found"]["scan"]["degraded"]),
        (&json!(false), &json!(false)),
        "{said}"
    );
    assert_eq!(said["refused"]["kind"], "ValidationError", "{said}");
    assert!(
        said["refused"]["message"].as_str().is_some_and(|m| m.contains("ann (id ")),
        "{said}"
    );
    assert_eq!(said["missing"], "NotFoundError", "{said}");
    assert_eq!(said["stranger"], "AuthenticationError", "{said}");
    assert_eq!(said["repeated"], json!(true), "one key, one job: {said}");
}
