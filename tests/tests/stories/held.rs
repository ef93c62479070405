//! Work that is held: breakers that go off for good reasons only and on by a person only, and a queue that keeps what it was
//! given, where it was meant to go, for as long as it takes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, FromRow};
use steadfast_tests::harness::{Answer, Api, Client, Db, Fleet, Opts, Person, wait_until};
use steadfast_tests::provider::{Action, At, Fixture, Outcome, Provider, Reply, Route, Rule};

const SCAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/samples/contract-scan.png");
const SOON: Duration = Duration::from_secs(30);

/// A database, the scripted provider as the only one that embeds and reads pages, an API, a person; nobody works yet.
struct Stage {
    db: Db,
    provider: Provider,
    /// When the provider's clock began, to within what starting it takes.
    begun: Instant,
    fleet: Fleet,
    api: Api,
    ann: Person,
}

/// A breaker's row for everybody.
#[derive(Clone, Debug, PartialEq, FromRow)]
struct Breaker {
    enabled: bool,
    epoch: i64,
    reason: Option<String>,
    changed_by: Option<String>,
    changed_at: DateTime<Utc>,
    failure_count: i64,
}

impl Stage {
    async fn set() -> Self {
        let db = Db::new().await;
        let provider = Provider::start();
        let begun = Instant::now();
        db.openai_endpoint("vectors", &provider, 384).await;
        db.ocr_endpoint("reader", &provider).await;
        db.exec("update endpoints set enabled = false where protocol in ('minilm', 'tesseract')")
            .await;
        let mut fleet = Fleet::new(&db);
        fleet.set("STEADFAST_QUESTION_TIMEOUT", "3s");
        let api = fleet.api().await;
        let ann = db.person("ann").await;
        Self {
            db,
            provider,
            begun,
            fleet,
            api,
            ann,
        }
    }

    fn client(&self) -> Client {
        self.api.client(&self.ann)
    }

    /// Flips a breaker by the operator's command; returns what it said.
    async fn breaker(&self, to: &str, capability: &str, reason: &str) -> Value {
        let mut args = vec!["breaker", to, capability, "--reason", reason, "--json"];
        if to == "off" {
            args.push("--yes");
        }
        let said = self.fleet.run("steadfast", &args, Opts::new()).await;
        assert_eq!(said.code, Some(0), "{said}");
        let said = said.json();
        assert_eq!(said["enabled"], json!(to == "on"), "{said}");
        said
    }

    /// What `steadfast breaker ls --json` says of a capability, for everybody.
    async fn listed(&self, capability: &str) -> Value {
        let said = self.fleet.run("steadfast", &["breaker", "ls", "--json"], Opts::new()).await;
        assert_eq!(said.code, Some(0), "{said}");
        let all = said.json();
        let mut of = all.as_array().expect("a list").iter();
        of.find(|b| b["name"] == capability && b["tenant_id"].is_null())
            .unwrap_or_else(|| panic!("{capability} is not in {said}"))
            .clone()
    }

    async fn row(&self, capability: &str) -> Breaker {
        let rows: Vec<Breaker> = sqlx::query_as(
            "select enabled, epoch, reason, changed_by, changed_at, failure_count from capabilities where name = $1 and tenant_id is null",
        )
        .bind(capability)
        .fetch_all(&self.db.pool)
        .await
        .expect("breakers can be read");
        assert_eq!(rows.len(), 1, "one row for {capability}: {rows:?}");
        rows[0].clone()
    }

    async fn until_off(&self, capability: &str) -> Breaker {
        wait_until(&format!("{capability} is off"), SOON, async || match self.row(capability).await {
            row if !row.enabled => Ok(row),
            row => Err(row),
        })
        .await
    }

    async fn count(&self, table: &str) -> i64 {
        self.db.one(&format!("select count(*) from {table}")).await
    }

    async fn until(&self, what: &str, table: &str, n: i64) {
        wait_until(what, SOON, async || match self.count(table).await {
            found if found == n => Ok(()),
            found => Err(found),
        })
        .await;
    }

    async fn embedded(&self, blocks: i64) {
        self.until("every piece is there", "blocks", blocks).await;
        self.until("every piece has its vector", "blocks where embedding is not null", blocks)
            .await;
    }

    /// Until every living worker has given two more signs of life: it has looked for work at least as often.
    async fn two_beats(&self) {
        for _ in 0..2 {
            let last: DateTime<Utc> = self
                .db
                .one("select max(seen_at) from workers where stopped_at is null and lost_at is null")
                .await;
            wait_until("all workers have looked again", SOON, async || {
                let oldest: DateTime<Utc> = self
                    .db
                    .one("select min(seen_at) from workers where stopped_at is null and lost_at is null")
                    .await;
                if oldest > last { Ok(()) } else { Err(oldest) }
            })
            .await;
        }
    }

    /// Runs retention now; returns when it is through.
    async fn retention(&self) {
        let done = "jobs_done where kind = 'retention'";
        let before = self.count(done).await;
        self.db.exec("update schedules set next_at = now() where name = 'retention'").await;
        self.until("retention went round", done, before + 1).await;
    }

    /// Notes of Ann's with no worker at hand: `{word} 0`, `{word} 1`, …
    async fn notes(&self, word: &str, n: usize) {
        let ann = self.client();
        for i in 0..n {
            let added = ann.remember(&format!("{word} {i}")).await;
            assert_eq!(added.status, 202, "{added}");
        }
    }

    fn blobs(&self) -> Vec<PathBuf> {
        files(&self.fleet.dir().join("blobs"))
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .flat_map(|e| if e.path().is_dir() { files(&e.path()) } else { vec![e.path()] })
        .collect()
}

fn scan() -> Vec<u8> {
    std::fs::read(SCAN).expect("the sample scan")
}

fn diagnostics(answer: &Answer) -> &Value {
    assert_eq!(answer.status, 200, "{answer}");
    &answer.json["diagnostics"]
}

fn codes(answer: &Answer) -> BTreeSet<String> {
    let reasons = diagnostics(answer)["reasons"].as_array().expect("always there");
    reasons.iter().map(|r| r["code"].as_str().expect("a code").to_owned()).collect()
}

fn contents(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{answer}");
    let results = answer.json["results"].as_array().expect("always there");
    results
        .iter()
        .map(|r| r["memory"]["content"].as_str().expect("always there").to_owned())
        .collect()
}

fn id_of(answer: &Answer, member: &str) -> i64 {
    assert_eq!(answer.status, 202, "{answer}");
    answer.json[member].as_str().and_then(|id| id.parse().ok()).expect("an id")
}

// ── Breakers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn p1_each_capability_is_one_row_that_says_by_whom_why_and_since_when() {
    let s = Stage::set().await;
    for capability in ["embedding", "ocr"] {
        let row = s.row(capability).await;
        assert!(row.enabled && row.reason.is_none() && row.changed_by.is_none(), "as made: {row:?}");
        assert_eq!(s.listed(capability).await["enabled"], true);
    }
    s.notes("a note", 3).await;
    let _reader = s.fleet.worker_with(Opts::new().kinds("extract")).await;
    s.until("all three are read", "jobs where kind = 'embed'", 3).await;

    let ocr = s.row("ocr").await;
    let before: DateTime<Utc> = s.db.one("select now()").await;
    s.breaker("off", "embedding", "the key is being changed").await;
    let row = s.row("embedding").await;
    let who = row.changed_by.clone().expect("somebody did it");
    assert!(!who.is_empty() && who != "system", "{row:?}");
    assert!(!row.enabled && row.changed_at >= before, "{row:?}");
    assert_eq!(row.reason.as_deref(), Some("the key is being changed"));
    assert_eq!(s.row("ocr").await, ocr, "the other one is as it was");

    let told = s.listed("embedding").await;
    assert_eq!(
        (&told["enabled"], &told["reason"], &told["changed_by"], &told["held_count"]),
        (&json!(false), &json!("the key is being changed"), &json!(who), &json!(3)),
        "{told}"
    );
    let at: DateTime<Utc> = told["changed_at"].as_str().and_then(|t| t.parse().ok()).expect("a time");
    assert_eq!(at, row.changed_at);
    let said = s.fleet.run("steadfast", &["breaker", "ls"], Opts::new()).await;
    let line = |of: &str| said.stdout.lines().find(|l| l.contains(of)).unwrap_or_default().to_owned();
    for word in ["OFF", "3", &who, "the key is being changed"] {
        assert!(line("embedding").contains(word), "{word:?} is not told: {said}");
    }
    assert!(line("ocr").contains("on") && !line("ocr").contains("OFF"), "{said}");

    s.breaker("on", "embedding", "the new key is in").await;
    let on = s.row("embedding").await;
    assert!(on.enabled && on.changed_at > row.changed_at, "{on:?}");
    assert_eq!(on.reason.as_deref(), Some("the new key is in"));
    let none = s
        .fleet
        .run(
            "steadfast",
            &["breaker", "off", "telepathy", "--reason", "why not", "--yes"],
            Opts::new(),
        )
        .await;
    assert!(none.code != Some(0) && none.stderr.contains("embedding, ocr"), "{none}");
    assert_eq!(s.count("capabilities").await, 2);
}

/// A thousand, with the time between them left out: every backoff is over at once.
#[tokio::test(flavor = "multi_thread")]
async fn p3_a_thousand_outages_and_timeouts_turn_nothing_off() {
    let s = Stage::set().await;
    s.db.exec("update endpoints set batch = 1, timeout_ms = 300 where name = 'vectors'")
        .await;
    s.notes("a patient note", 40).await;
    let busy = || Opts::new().concurrency(20).env("STEADFAST_POLL", "50ms");
    let (_a, _b) = (s.fleet.worker_with(busy()).await, s.fleet.worker_with(busy()).await);

    let pool = s.db.pool.clone();
    let in_a_hurry = tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        loop {
            for sql in [
                "update endpoints set due_at = '-infinity', outage_streak = 0 where outage_streak > 0 or due_at > now()",
                "update jobs set avail_at = now(), timeouts_in_row = 0 where kind = 'embed' and status = 'waiting'",
                "update jobs set status = 'waiting', avail_at = now(), timeouts_in_row = 0 where kind = 'embed' and status = 'parked'",
            ] {
                sqlx::query(AssertSqlSafe(sql)).execute(&pool).await.expect("time can be hurried");
            }
            pace.tick().await;
        }
    });
    let faults: [(Action, usize); 5] = [
        (Fixture::ServiceUnavailable.into(), 500),
        (Action::Hang { at: At::BeforeHeaders }, 300),
        (Action::Reset { at: At::MidBody }, 80),
        (Fixture::BadGateway.into(), 80),
        // Slow down, and it speaks of a key.
        (
            Reply::error(429, "requests", "rate_limit_exceeded", "this key sends too much").into(),
            40,
        ),
    ];
    for (fault, n) in faults {
        s.provider.forget();
        s.provider.rule(Rule::all().then(fault.clone()));
        s.provider
            .wait_record(&format!("{n} times {fault:?}"), |calls| {
                (calls.iter().filter(|c| c.outcome != Outcome::Open).count() >= n).then_some(())
            })
            .await;
        s.provider.clear_rules();
    }
    let row = s.row("embedding").await;
    assert!(row.enabled && row.changed_by.is_none() && row.failure_count == 0, "{row:?}");
    assert_eq!(s.count("capability_events").await, 0, "it never was off, not even for a moment");
    assert!(s.db.one::<bool>("select enabled from endpoints where name = 'vectors'").await);
    // And nobody has to come: it goes on as soon as it can.
    s.embedded(40).await;
    in_a_hurry.abort();
    assert_eq!(
        s.count("jobs_done where kind = 'embed' and attempts > forgiven + 1").await,
        0,
        "none was charged"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn p5_p6_fifty_refusals_in_parallel_are_one_change_with_one_reason_and_all_are_counted() {
    let s = Stage::set().await;
    s.db.exec("update endpoints set batch = 1 where name = 'vectors'").await;
    s.notes("race", 25).await;
    s.notes("late", 25).await;
    s.provider
        .rule(Rule::text("race").then(Action::hold_then("race", Fixture::InvalidKey)));
    s.provider
        .rule(Rule::text("late").then(Action::hold_then("late", Fixture::PaymentRequired)));
    s.provider.rule(Rule::all().then(Fixture::InvalidKey));
    let many = || Opts::new().concurrency(16);
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(s.fleet.worker_with(many()).await);
    }
    s.provider.wait_calls(50).await;
    assert_eq!(s.provider.in_flight(), 50, "all fifty are out while it is on");
    let settled = "jobs where kind = 'embed' and status = 'waiting' and attempts = 1 and charged = 0";

    s.provider.release("race");
    let first = s.until_off("embedding").await;
    assert_eq!(first.changed_by.as_deref(), Some("system"), "{first:?}");
    assert!(first.reason.as_ref().is_some_and(|r| r.starts_with("vectors: ")), "{first:?}");
    s.until("the first half is back, uncharged", settled, 25).await;
    s.provider.release("late");
    s.until("all are back, uncharged", settled, 50).await;

    let last = s.row("embedding").await;
    assert_eq!(
        (&last.reason, &last.changed_by, last.changed_at, last.epoch),
        (&first.reason, &first.changed_by, first.changed_at, first.epoch),
        "what came later changed nothing"
    );
    assert_eq!(last.failure_count, 50, "the fiftieth does not look like the first");
    assert_eq!(s.listed("embedding").await["failure_count"], 50);
    assert_eq!(
        s.count("capability_events where capability = 'embedding' and action = 'off'").await,
        1
    );
    assert_eq!(
        s.count("capability_events where capability = 'embedding' and action <> 'off'")
            .await,
        0
    );

    s.provider.clear_rules();
    s.breaker("on", "embedding", "paid").await;
    s.embedded(50).await;
}

/// Nothing of it is a matter of minutes: both breakers tripped by themselves, then a quarter of a year goes by over a house whose
/// every process was killed.
#[tokio::test(flavor = "multi_thread")]
async fn p4_p10_p12_held_work_outlives_days_and_restarts_and_lands_in_its_place_when_a_person_says_so() {
    const SNAPSHOT: &str = "select coalesce(string_agg(concat_ws(' ', id, kind, item_id, user_id, root_id, status, attempts, forgiven, max_charged, payload), E'\n' order by id), '') from jobs";
    let mut s = Stage::set().await;
    let attic: i64 =
        s.db.one(&format!(
            "with s as (insert into spaces (tenant_id, name) values ({0}, 'attic') returning id)
             insert into space_members (tenant_id, space_id, user_id) select {0}, id, {1} from s returning space_id",
            s.ann.tenant_id, s.ann.user_id
        ))
        .await;
    s.provider.rule(Rule::all().then(Fixture::InvalidKey));
    s.provider.page("PNG", "the lease of the boat house ends in May");
    let mut worker = s.fleet.worker().await;
    let ann = s.client();
    let note = json!({"text": "a walnut from the first trip", "spaceIds": [s.ann.space_id.to_string()], "conversationId": "trip-1"});
    let note = ann.post("/api/v1/remember", &note).await;
    let upload = async |name: &str, conversation: &str, body: Vec<u8>| {
        let path = format!("/api/v1/uploads/direct?filename={name}&spaceId={attic}{conversation}");
        ann.send(ann.request(Method::POST, &path).body(body)).await
    };
    let file = upload("nut.txt", "&conversationId=trip-2", b"a hazelnut from the second trip".to_vec()).await;
    let lease = upload("lease.png", "", scan()).await;
    let meant: Vec<(i64, i64, Option<&str>)> = vec![
        (id_of(&note, "documentId"), s.ann.space_id, Some("trip-1")),
        (id_of(&file, "documentId"), attic, Some("trip-2")),
        (id_of(&lease, "documentId"), attic, None),
    ];
    s.until_off("embedding").await;
    s.until_off("ocr").await;
    s.until(
        "all is settled, and held",
        "jobs where status = 'waiting' and charged = 0 and kind in ('embed', 'ocr')",
        3,
    )
    .await;
    // Read when no refusal can come any more: each of them counts.
    let off = (s.row("embedding").await, s.row("ocr").await);
    assert_eq!(
        (off.0.changed_by.as_deref(), off.1.changed_by.as_deref()),
        (Some("system"), Some("system"))
    );
    assert_eq!(s.count("jobs_done where kind = 'extract'").await, 3);
    let kept: String = s.db.one(SNAPSHOT).await;

    // The provider is well, all processes die, and ninety days go by.
    s.provider.clear_rules();
    s.provider.forget();
    worker.kill9().await;
    s.api.process.kill9().await;
    for (table, times) in [
        ("jobs", vec!["created_at", "avail_at"]),
        ("jobs_done", vec!["created_at", "started_at", "finished_at"]),
        ("attempts", vec!["claimed_at", "started_at", "ended_at"]),
        ("documents", vec!["created_at"]),
        ("blocks", vec!["created_at"]),
        ("capabilities", vec!["changed_at"]),
        ("capability_events", vec!["at"]),
        ("endpoints", vec!["changed_at", "due_at"]),
    ] {
        let times: Vec<String> = times.iter().map(|t| format!("{t} = {t} - interval '90 days'")).collect();
        s.db.exec(&format!("update {table} set {}", times.join(", "))).await;
    }
    let blobs = s.blobs();
    for blob in &blobs {
        let then = SystemTime::now() - Duration::from_secs(90 * 86_400);
        std::fs::File::options()
            .write(true)
            .open(blob)
            .and_then(|f| f.set_modified(then))
            .expect("our own file");
    }
    s.api = s.fleet.api().await;
    let ann = s.client();
    let _workers = (s.fleet.worker().await, s.fleet.worker().await);
    s.retention().await;
    assert_eq!(
        s.count("jobs_done where kind <> 'retention'").await,
        0,
        "what is finished does go in ninety days"
    );
    s.two_beats().await;

    for (capability, then) in [("embedding", &off.0), ("ocr", &off.1)] {
        let now = s.row(capability).await;
        let same = Breaker {
            changed_at: now.changed_at,
            ..then.clone()
        };
        assert_eq!(now, same, "nobody turned {capability} on");
    }
    assert_eq!(s.provider.calls().len(), 0, "and nobody asked: {:#?}", s.provider.calls());
    assert_eq!(s.db.one::<String>(SNAPSHOT).await, kept, "nothing of it expired or moved");
    assert_eq!(s.blobs().len(), blobs.len());
    let listed = ann.get("/api/v1/documents?limit=100").await;
    assert_eq!(listed.json["data"].as_array().map(Vec::len), Some(3), "{listed}");

    s.breaker("on", "ocr", "the bill is paid").await;
    s.until("the scan is read", "documents where status = 'processed'", 3).await;
    s.breaker("on", "embedding", "the bill is paid").await;
    s.embedded(3).await;
    let landed: Vec<(i64, i64, Option<String>)> = sqlx::query_as(
        "select d.id, b.space_id, d.conversation from documents d join blocks b on b.document_id = d.id and b.space_id = d.space_id order by d.id",
    )
    .fetch_all(&s.db.pool)
    .await
    .expect("documents can be read");
    let landed: Vec<(i64, i64, Option<&str>)> = landed.iter().map(|(d, s, c)| (*d, *s, c.as_deref())).collect();
    assert_eq!(landed, meant, "each in its Space and conversation");
    for (question, space, found) in [
        ("lease of the boat house", attic, true),
        ("lease of the boat house", s.ann.space_id, false),
        ("walnut", s.ann.space_id, true),
        ("walnut", attic, false),
    ] {
        let answer = ann
            .get(&format!("/api/v1/search?query={}&spaceIds={space}", question.replace(' ', "+")))
            .await;
        let word = question.split(' ').next().expect("a word");
        let there = contents(&answer).iter().any(|c| c.contains(word));
        assert_eq!(there, found, "{question} in {space}: {answer}");
    }
    for text in ["walnut", "hazelnut", "boat house"] {
        let done = s
            .provider
            .calls()
            .iter()
            .filter(|c| c.route == Route::Embeddings && c.has(&format!("{text} ")))
            .count();
        assert_eq!(done, 1, "{text} was sent once");
    }
    assert_eq!(s.count("jobs").await, 0, "nothing is left over");
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_what_is_handed_in_while_ocr_is_off_is_accepted_stored_and_held() {
    let s = Stage::set().await;
    s.provider.rule(Rule::all().on(Route::Ocr).then(Fixture::InvalidKey));
    let _worker = s.fleet.worker().await;
    let ann = s.client();
    // One is in it when the key is refused, three come later.
    let mut jobs = vec![ann.upload(scan(), "contract 0.png").await];
    s.until_off("ocr").await;
    s.until("it is held", "jobs where kind = 'ocr' and status = 'waiting' and charged = 0", 1)
        .await;
    s.provider.clear_rules();
    s.provider.forget();
    for n in 1..=3 {
        let mut bytes = scan();
        // Behind the end of the picture, so that it is another file and the same page.
        bytes.extend(format!("copy {n}").bytes());
        jobs.push(ann.upload(bytes, &format!("contract {n}.png")).await);
    }
    let paused = "Reading scanned pages is paused";
    for added in &jobs[1..] {
        assert_eq!(added.status, 202, "{added}");
        assert!(added.json["note"].as_str().is_some_and(|n| n.contains(paused)), "{added}");
    }
    s.until("all four are held", "jobs where kind = 'ocr' and status = 'waiting'", 4)
        .await;
    s.two_beats().await;
    assert_eq!(s.provider.calls().len(), 0, "nobody was asked");
    assert_eq!(s.count("jobs where kind = 'ocr' and status = 'waiting' and charged = 0").await, 4);
    for (n, added) in jobs.iter().enumerate() {
        let job = ann.job(&added.job_id()).await;
        assert_eq!(
            (&job.json["status"], &job.json["hold"]["capability"]),
            (&json!("queued"), &json!("ocr")),
            "{job}"
        );
        assert!(job.json["hold"]["notice"].as_str().is_some_and(|n| n.contains(paused)), "{job}");
        let document = ann.get(&format!("/api/v1/documents/{}", id_of(added, "documentId"))).await;
        assert_eq!(document.json["title"], format!("contract {n}.png"), "{document}");
        assert_eq!(document.json["status"], "processing", "{document}");
    }
    // What was stored is what was handed in, to the byte.
    let keys: Vec<(String, String)> = sqlx::query_as("select title, blob_key from documents")
        .fetch_all(&s.db.pool)
        .await
        .expect("documents can be read");
    for (title, key) in keys {
        let bytes = std::fs::read(s.fleet.dir().join("blobs").join(&key)).unwrap_or_else(|e| panic!("{title}: {key}: {e}"));
        let n: usize = title
            .trim_start_matches("contract ")
            .trim_end_matches(".png")
            .parse()
            .expect("a number");
        let tail = if n == 0 { String::new() } else { format!("copy {n}") };
        assert!(bytes == [scan(), tail.into_bytes()].concat(), "{title} is not what was handed in");
    }
    // A text needs no OCR and does not wait for it.
    let text = ann.upload("plain words about quinces", "quince.txt").await;
    assert_eq!(text.status, 202, "{text}");
    wait_until("the text is found", SOON, async || match ann.search("quinces").await {
        found if contents(&found).len() == 1 => Ok(()),
        found => Err(found.text),
    })
    .await;

    s.breaker("on", "ocr", "a key that works").await;
    s.until("all are read", "documents where status = 'processed'", 5).await;
    for added in &jobs {
        assert_eq!(ann.job(&added.job_id()).await.json["status"], "completed");
    }
    let read = s.provider.calls().iter().filter(|c| c.route == Route::Ocr && c.completed()).count();
    assert_eq!(read, 4, "each page once");
}

/// As shipped but for the lease, which says only how soon this story can tell that all have looked.
#[tokio::test(flavor = "multi_thread")]
async fn p9_a_flip_is_seen_by_every_worker_and_by_the_api_within_a_second() {
    const WORKERS: i64 = 3;
    let s = Stage::set().await;
    s.db.exec("update endpoints set batch = 1 where name = 'vectors'").await;
    s.provider.set(|p| p.latency_ms = 80);
    s.notes("a drop in the stream", 300).await;
    let shipped = || Opts::new().concurrency(2).without("STEADFAST_POLL").without("STEADFAST_REAP");
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(s.fleet.worker_with(shipped()).await);
    }
    let at_work = "(select distinct claimed_by from jobs where kind = 'embed' and status = 'running') w";
    let ann = s.client();
    s.until("all three are at work", at_work, WORKERS).await;
    let busy = s.provider.calls().len();
    s.provider.wait_calls(busy + 30).await;
    assert!(!codes(&ann.search("stream").await).contains("stopped"));

    s.breaker("off", "embedding", "look how fast").await;
    let flipped = s.begun.elapsed();
    let next = ann.search("stream").await;
    assert!(codes(&next).contains("stopped"), "the very next request knows: {next}");
    s.until("what was out has come back", "jobs where kind = 'embed' and status = 'running'", 0)
        .await;
    s.two_beats().await;
    let last = s.provider.calls().iter().map(|c| c.in_ms).max().unwrap_or_default();
    let late = Duration::from_millis(last).saturating_sub(flipped);
    assert!(late <= Duration::from_secs(1), "a call {late:?} after the flip");
    println!("the last call came {late:?} after the flip was told");
    assert!(
        s.count("jobs where kind = 'embed' and status = 'waiting'").await > 50,
        "there was more to do"
    );
    assert_eq!(
        s.count("jobs where kind = 'embed' and charged > 0").await,
        0,
        "and it cost nobody anything"
    );

    s.provider.forget();
    s.breaker("on", "embedding", "look again").await;
    let flipped = s.begun.elapsed();
    assert!(!codes(&ann.search("stream").await).contains("stopped"));
    s.until("all three are at work again", at_work, WORKERS).await;
    // At its next claim: an idle worker looks every two seconds.
    let first = s.provider.calls().iter().map(|c| c.in_ms).min().expect("they are at work");
    let after = Duration::from_millis(first).saturating_sub(flipped);
    assert!(after < Duration::from_secs(3), "the first call {after:?} after it was on");
}

// ── The queue ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn p11_p21_a_jobs_row_says_whose_what_how_far_who_has_it_and_when() {
    type Told = (
        Option<i64>,
        String,
        String,
        bool,
        i32,
        Option<String>,
        Option<DateTime<Utc>>,
        Option<i64>,
    );
    let s = Stage::set().await;
    let bob = s.db.person("bob").await;
    let row = async |id: i64| -> Told {
        sqlx::query_as("select user_id, kind, status, jsonb_typeof(payload) = 'object', attempts, last_error, claimed_at, claimed_by from jobs where id = $1")
            .bind(id)
            .fetch_one(&s.db.pool)
            .await
            .unwrap_or_else(|e| panic!("job {id}: {e}"))
    };
    let (user, client) = (Some(s.ann.user_id), s.client());
    let added: DateTime<Utc> = s.db.one("select now()").await;
    let job = id_of(&client.upload(scan(), "contract.png").await, "jobId");
    assert_eq!(
        row(job).await,
        (user, "extract".into(), "waiting".into(), true, 0, None, None, None)
    );
    assert_eq!(s.api.client(&bob).remember("bob's own").await.status, 202);
    let word = async || {
        client.job(&job.to_string()).await.json["status"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(word().await, "queued");

    s.provider.rule(
        Rule::all()
            .on(Route::Ocr)
            .times(1)
            .then(Action::hold_then("gate", Fixture::BadRequest)),
    );
    let worker = s.fleet.worker().await;
    s.provider.wait_for("the page is being read", |c| c.route == Route::Ocr).await;
    let page: i64 = s.db.one("select id from jobs where kind = 'ocr'").await;
    let (_, kind, status, _, attempts, error, claimed_at, claimed_by) = row(page).await;
    assert_eq!(
        (kind.as_str(), status.as_str(), attempts, error, claimed_by),
        ("ocr", "running", 1, None, worker.boot),
        "who has it, and for the how manieth time"
    );
    assert!(claimed_at.is_some_and(|at| at >= added));
    assert_eq!(word().await, "running", "the request, of which the page is a part");
    s.provider.release("gate");
    wait_until("it is back with what went wrong", SOON, async || match row(page).await {
        (u, _, status, _, 1, Some(_), None, None) if status == "waiting" && u == user => Ok(()),
        other => Err(other),
    })
    .await;

    // The notice that belongs to it while it is held.
    s.breaker("off", "ocr", "a look at the notice").await;
    let told = client.job(&job.to_string()).await;
    assert!(
        told.json["hold"]["notice"].as_str().is_some_and(|n| n.contains("stored safely")),
        "{told}"
    );
    s.breaker("on", "ocr", "seen").await;
    s.db.exec(&format!("update jobs set avail_at = now() where id = {page}")).await;
    s.embedded(2).await;
    let finished: (i64, String, DateTime<Utc>, DateTime<Utc>, i32) =
        sqlx::query_as("select user_id, status, created_at, finished_at, attempts from jobs_done where id = $1")
            .bind(page)
            .fetch_one(&s.db.pool)
            .await
            .expect("it is finished");
    assert_eq!((finished.0, finished.1.as_str(), finished.4), (s.ann.user_id, "done", 2));
    assert!(added <= finished.2 && finished.2 < finished.3, "{finished:?}");
    let api = client.job(&job.to_string()).await;
    for member in ["id", "type", "status", "attempts", "queuedAt", "startedAt", "finishedAt"] {
        assert!(!api.json[member].is_null(), "{member}: {api}");
    }

    assert_eq!(
        word().await,
        "completed",
        "a caller that polls for another word would wait for ever"
    );
    for (ended, said) in [("parked", "failed"), ("dead", "dead")] {
        s.db.exec(&format!(
            "insert into jobs (line_id, tenant_id, user_id, kind, status) select id, tenant_id, {}, kind, '{ended}' from lines where kind = 'extract'",
            s.ann.user_id
        ))
        .await;
        let id: i64 = s.db.one("select max(id) from jobs").await;
        assert_eq!(client.job(&id.to_string()).await.json["status"], said);
        s.db.exec(&format!("delete from jobs where id = {id}")).await;
    }

    // With its user it goes, wherever it stands.
    s.breaker("off", "embedding", "so that something waits").await;
    assert_eq!(client.remember("waits").await.status, 202);
    s.until("it waits", "jobs where kind = 'embed' and status = 'waiting'", 1).await;
    s.db.exec(&format!("delete from users where id = {}", s.ann.user_id)).await;
    assert_eq!(s.count("jobs").await, 0, "what waited");
    for table in ["jobs_done", "documents"] {
        let hers = format!("{table} where user_id = {}", s.ann.user_id);
        assert_eq!(s.count(&hers).await, 0, "{table}: nothing of hers is left");
    }
    assert_eq!(s.count("blocks").await, 1, "bob's is there");
    assert!(s.count(&format!("jobs_done where user_id = {}", bob.user_id)).await >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn p14_a_worker_takes_its_own_kinds_only_and_the_oldest_first() {
    let s = Stage::set().await;
    s.db.exec("update endpoints set batch = 1 where name = 'vectors'").await;
    s.notes("note", 6).await;
    assert_eq!(s.client().upload(scan(), "contract.png").await.status, 202);
    let mut reader = s.fleet.worker_with(Opts::new().kinds("extract")).await;
    s.until(
        "all is taken apart",
        "jobs where kind in ('embed', 'ocr') and status = 'waiting'",
        7,
    )
    .await;
    reader.sigterm();
    assert!(reader.wait_exit().await.success());
    s.notes("late", 1).await;
    // The last handed in has waited longest, so that no order of ids looks like an order of age.
    s.db.exec("update jobs set created_at = now() - id * interval '1 minute', avail_at = now() - id * interval '1 minute'")
        .await;
    let oldest_first: Vec<String> =
        sqlx::query_scalar("select b.content from jobs j join blocks b on b.id = j.item_id where j.kind = 'embed' order by j.created_at")
            .fetch_all(&s.db.pool)
            .await
            .expect("jobs can be read");
    let _embedder = s.fleet.worker_with(Opts::new().kinds("embed").concurrency(1)).await;
    s.embedded(6).await;
    let asked: Vec<String> = s.provider.calls().iter().map(|c| c.texts[0].text.clone()).collect();
    assert_eq!((asked.len(), &asked), (6, &oldest_first));
    s.two_beats().await;
    let others = "jobs where kind in ('extract', 'ocr') and status = 'waiting' and attempts = 0";
    assert_eq!(s.count(others).await, 2, "older ones, of kinds that it does not take");
}

/// The API dies between the two: bytes without a row are collected, a row without bytes cannot be.
#[tokio::test(flavor = "multi_thread")]
async fn p13_bytes_are_stored_before_the_row_and_are_collected_when_it_never_comes() {
    let mut s = Stage::set().await;
    let ann = s.client();
    let _worker = s.fleet.worker().await;
    let good = ann.upload("a letter that arrived", "good.txt").await;
    s.embedded(1).await;
    assert_eq!(s.blobs().len(), 1);

    // Rows can be read and none can be made: whoever stores one waits here.
    let mut door = s.db.pool.begin().await.expect("a transaction");
    sqlx::query("lock table documents in share mode")
        .execute(&mut *door)
        .await
        .expect("the owner may");
    let sending = tokio::spawn({
        let ann = ann.clone();
        let path = format!("/api/v1/uploads/direct?filename=lost.txt&spaceId={}", s.ann.space_id);
        async move {
            ann.try_send(ann.request(Method::POST, &path).body("a letter that did not arrive"))
                .await
        }
    });
    wait_until("the API stands before the row", SOON, async || {
        let waiting: i64 =
            s.db.one("select count(*) from pg_stat_activity where datname = current_database() and application_name = 'steadfast-api' and wait_event_type = 'Lock'")
                .await;
        (waiting > 0).then_some(())
    })
    .await;
    let there: Vec<Vec<u8>> = s.blobs().iter().filter_map(|b| std::fs::read(b).ok()).collect();
    assert!(
        there.contains(&b"a letter that did not arrive".to_vec()),
        "the bytes are there already"
    );
    s.api.process.kill9().await;
    assert!(sending.await.expect("it ran").is_err(), "nobody was told that it was accepted");
    door.rollback().await.expect("the door opens");
    wait_until("its session is gone", SOON, async || {
        let left: i64 =
            s.db.one("select count(*) from pg_stat_activity where datname = current_database() and application_name = 'steadfast-api'")
                .await;
        (left == 0).then_some(())
    })
    .await;
    assert_eq!(
        (s.count("documents").await, s.count("jobs where kind <> 'retention'").await),
        (1, 0),
        "no row"
    );

    // Bytes of today may still get their row; bytes of the day before yesterday will not.
    s.retention().await;
    assert_eq!(s.blobs().len(), 2);
    for blob in s.blobs() {
        let then = SystemTime::now() - Duration::from_secs(2 * 86_400);
        std::fs::File::options()
            .write(true)
            .open(blob)
            .and_then(|f| f.set_modified(then))
            .expect("our own file");
    }
    s.retention().await;
    let left: Vec<Vec<u8>> = s.blobs().iter().filter_map(|b| std::fs::read(b).ok()).collect();
    assert_eq!(left, [b"a letter that arrived".to_vec()], "what a row names stays, however old");
    s.api = s.fleet.api().await;
    let kept = s.client().get(&format!("/api/v1/documents/{}", id_of(&good, "documentId"))).await;
    assert_eq!(kept.json["status"], "processed", "{kept}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p16_p20_a_job_whose_attempts_are_spent_is_left_alone_listed_apart_and_replayed_by_a_word() {
    let s = Stage::set().await;
    s.provider
        .rule(Rule::text("POISON").then(Reply::error(400, "invalid_request_error", "invalid_value", "not this one")));
    let ann = s.client();
    let worker = s.fleet.worker().await;
    // The endpoint answers others, so what fails alone is charged to itself.
    assert_eq!(ann.remember("a good note").await.status, 202);
    s.embedded(1).await;
    let request = ann.remember("a POISON note").await;
    let root = id_of(&request, "jobId");
    s.provider.wait_for("the poison is tried", |c| c.has("POISON")).await;
    let job: i64 = s.db.one("select max(id) from jobs where kind = 'embed'").await;
    for tried in 1..=5 {
        let row = wait_until("the attempt is settled", SOON, async || match s.db.job(job).await {
            Some(row) if row.status != "running" && row.attempts == tried => Ok(row),
            other => Err(other),
        })
        .await;
        assert_eq!(row.charged, tried, "{row:?}");
        let expected = if tried < 5 { "waiting" } else { "dead" };
        assert_eq!(row.status, expected, "{row:?}");
        s.db.exec(&format!("update jobs set avail_at = now() where id = {job}")).await;
    }
    // Due, and nobody takes it.
    let calls = s.provider.calls_for("POISON").len();
    assert_eq!(ann.remember("another good note").await.status, 202);
    s.until("another one is done beside it", "blocks where embedding is not null", 2)
        .await;
    s.two_beats().await;
    assert_eq!(s.provider.calls_for("POISON").len(), calls, "no sixth try");
    assert_eq!(s.db.job(job).await.expect("dead rows stay").attempts, 5);

    // A file that nobody can read ends at its first try.
    let noise = ann.upload(b"%PDF-1.4 and nothing else".to_vec(), "noise.pdf").await;
    let unreadable = id_of(&noise, "jobId");
    s.until("it is dead too", "jobs where status = 'dead'", 2).await;
    let dead = async || -> Vec<Value> {
        let listed = ann.get("/api/v1/jobs/dead?limit=100").await;
        assert_eq!(listed.status, 200, "{listed}");
        listed.json["data"].as_array().expect("a list").clone()
    };
    let listed = dead().await;
    let shown: Vec<(&Value, &Value, &Value, &Value)> = listed
        .iter()
        .map(|d| (&d["id"], &d["type"], &d["attempts"], &d["retryable"]))
        .collect();
    assert_eq!(
        shown,
        [
            (&json!(unreadable.to_string()), &json!("extract"), &json!(1), &json!(false)),
            (&json!(job.to_string()), &json!("embed"), &json!(5), &json!(true))
        ],
        "newest first, and nothing else"
    );
    assert_eq!(listed[1]["rootId"], root.to_string());
    let said = s
        .fleet
        .run("steadfast", &["jobs", "ls", "--status", "dead", "--json"], Opts::new())
        .await;
    assert!(said.code == Some(0) && said.stdout.contains(&job.to_string()), "{said}");

    // With a reason it lives again, its history kept and its budget full.
    let replay = async |id: i64, body: Value| ann.post(&format!("/api/v1/jobs/dead/{id}/replay"), &body).await;
    assert_eq!(replay(id_of(&request, "documentId") + 900_000, json!({})).await.status, 404);
    s.provider.clear_rules();
    let again = replay(job, json!({"reason": "the provider was mended"})).await;
    assert_eq!((again.status, &again.json["jobIds"]), (202, &json!([job.to_string()])), "{again}");
    s.embedded(3).await;
    let event: (String, String, String) = sqlx::query_as("select actor, action, reason from job_events where job_id = $1")
        .bind(job)
        .fetch_one(&s.db.pool)
        .await
        .expect("it was written down");
    assert_eq!(
        event,
        (
            format!("user {}", s.ann.user_id),
            "retry".to_owned(),
            "the provider was mended".to_owned()
        )
    );
    let counters: (i32, i32) = sqlx::query_as("select attempts, forgiven from jobs_done where id = $1")
        .bind(job)
        .fetch_one(&s.db.pool)
        .await
        .expect("it is done");
    assert_eq!(counters, (6, 5));

    // What cannot end otherwise takes more than a reason.
    let refused = replay(unreadable, json!({"reason": "I insist"})).await;
    assert_eq!(
        (refused.status, &refused.json["error"]["code"]),
        (409, &json!("CONFLICT")),
        "{refused}"
    );
    assert!(refused.text.contains("force"), "{refused}");
    assert_eq!(s.db.job(unreadable).await.expect("untouched").attempts, 1);
    let forced = replay(unreadable, json!({"reason": "I insist", "force": true})).await;
    assert_eq!(forced.status, 202, "{forced}");
    wait_until("it was tried again", SOON, async || match s.db.job(unreadable).await {
        Some(row) if row.status == "dead" && row.attempts == 2 => Ok(()),
        other => Err(other),
    })
    .await;
    assert_eq!(dead().await.len(), 1);
    drop(worker);
}

// ── What people see ──────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn p22_errors_that_people_see_have_neither_content_nor_a_providers_words() {
    const SECRETS: [&str; 5] = ["Petunia", "petunia", "sk-live", "upstream-7", "\u{1b}"];
    let s = Stage::set().await;
    let echo = "cannot embed: 'POISON aunt Petunia hides the money under the stairs' with key sk-live-12345\nat upstream-7\u{1b}[31m";
    s.provider
        .rule(Rule::text("POISON").then(Reply::error(400, "invalid_request_error", "invalid_value", echo)));
    s.provider.rule(
        Rule::all()
            .on(Route::Ocr)
            .then(Reply::error(422, "invalid_request_error", "bad_image", echo)),
    );
    let ann = s.client();
    s.breaker("off", "embedding", "until the budgets are set").await;
    s.breaker("off", "ocr", "until the budgets are set").await;
    let _worker = s.fleet.worker().await;
    let good = ann.remember("a good note").await;
    let note = ann.remember("POISON aunt Petunia hides the money under the stairs").await;
    let page = ann.upload(scan(), "petunia-free.png").await;
    assert_eq!(good.status, 202);
    s.until("all wait", "jobs where kind in ('embed', 'ocr') and status = 'waiting'", 3)
        .await;
    // One try each, that the story need not sit out five.
    s.db.exec("update jobs set max_charged = 1 where kind in ('embed', 'ocr')").await;
    s.breaker("on", "embedding", "go").await;
    s.until("the good one is done", "blocks where embedding is not null", 1).await;
    s.breaker("on", "ocr", "go").await;
    wait_until("both are dead", SOON, async || {
        let rows: Vec<(String, String, Option<String>)> = sqlx::query_as("select kind, status, last_error from jobs order by id")
            .fetch_all(&s.db.pool)
            .await
            .expect("jobs can be read");
        match rows.iter().filter(|r| r.1 == "dead").count() {
            2 if rows.len() == 2 => Ok(()),
            _ => Err(rows),
        }
    })
    .await;
    assert!(s.provider.calls().iter().any(|c| c.status == Some(400)), "the provider did say it");

    let dead: Vec<(i64, String, Option<String>)> = sqlx::query_as("select id, kind, last_error from jobs order by id")
        .fetch_all(&s.db.pool)
        .await
        .expect("jobs can be read");
    let mut told = vec![
        ann.get("/api/v1/jobs?limit=100").await,
        ann.get("/api/v1/jobs/dead?limit=100").await,
        ann.job(&note.job_id()).await,
        ann.job(&page.job_id()).await,
        ann.get(&format!("/api/v1/documents/{}", id_of(&page, "documentId"))).await,
        ann.get("/health/metrics").await,
    ];
    for (id, kind, error) in &dead {
        let job = ann.job(&id.to_string()).await;
        let sentence = job.json["error"].as_str().unwrap_or_default();
        assert!(
            job.json["status"] == "dead" && sentence.ends_with('.') && sentence.len() > 20,
            "{job}"
        );
        told.push(job);
        // The operator sees more, and of the content nothing either.
        let error = error.as_deref().unwrap_or_default();
        assert!(!error.is_empty() && error.chars().count() <= 500, "{kind}: {error}");
        assert!(!error.chars().any(char::is_control), "{kind}: {error:?}");
        assert!(kind != "embed" || !error.contains("Petunia"), "{error}");
    }
    for answer in &told {
        assert_eq!(answer.status, 200, "{answer}");
        for secret in SECRETS {
            let shown = answer.text.replace("petunia-free.png", "");
            assert!(!shown.contains(secret), "{secret:?} in {answer}");
        }
        assert!(
            !answer.text.contains("invalid_value") && !answer.text.contains("bad_image"),
            "{answer}"
        );
    }
    assert!(told[1].json["data"].as_array().is_some_and(|d| d.len() == 2), "{}", told[1]);
}

/// The members that clients read, their types, and which may be missing.
#[tokio::test(flavor = "multi_thread")]
async fn p24_p25_diagnostics_have_their_shape_whole_broken_and_stopped_where_nothing_failed() {
    fn shape(answer: &Answer, degraded: bool, unavailable: &[&str], notice: bool) {
        let d = diagnostics(answer);
        let strings = |v: &Value| -> Option<Vec<String>> { v.as_array()?.iter().map(|s| Some(s.as_str()?.to_owned())).collect() };
        let steps = strings(&d["steps"]).unwrap_or_else(|| panic!("steps are texts: {answer}"));
        assert!(!steps.is_empty() && steps.iter().all(|s| !s.is_empty()), "{answer}");
        assert_eq!(d["degraded"], json!(degraded), "{answer}");
        assert!(d["tookMs"].as_u64().is_some_and(|ms| ms < 60_000), "{answer}");
        assert_eq!(strings(&d["unavailable"]).unwrap_or_default(), unavailable, "{answer}");
        // Missing where there is nothing to say, never null or empty: a client tests for the member.
        let members = d.as_object().expect("an object");
        assert_eq!(members.contains_key("unavailable"), !unavailable.is_empty(), "{answer}");
        assert_eq!(members.contains_key("notice"), notice, "{answer}");
        if notice {
            let sentence = d["notice"].as_str().unwrap_or_default();
            assert!(sentence.ends_with('.') && sentence.contains(' '), "{answer}");
        }
        assert!(answer.json["query"].is_string() && answer.json["results"].is_array(), "{answer}");
    }
    let s = Stage::set().await;
    let ann = s.client();
    let _worker = s.fleet.worker().await;
    let said = json!({"text": "figs and dates", "spaceIds": [s.ann.space_id.to_string()], "conversationId": "kitchen"});
    assert_eq!(ann.post("/api/v1/remember", &said).await.status, 202);
    s.embedded(1).await;
    shape(&ann.search("figs").await, false, &[], false);
    shape(&ann.search("nothing like it at all").await, false, &[], false);
    shape(&ann.get("/api/v1/transcript/search?query=figs").await, false, &[], false);

    // Broken is not stopped: it heals by itself, and nobody is told a sentence about it.
    s.provider.rule(Rule::all().then(Fixture::ServiceUnavailable));
    shape(&ann.search("figs or dates").await, true, &["embedding"], false);
    s.provider.clear_rules();
    s.db.exec("update endpoints set due_at = '-infinity', outage_streak = 0").await;
    shape(&ann.search("dates and figs").await, false, &[], false);

    s.breaker("off", "embedding", "on purpose").await;
    let calls = s.provider.calls().len();
    let stopped = ann.search("figs").await;
    shape(&stopped, true, &["embedding"], true);
    // Nothing waits, nothing was tried and nothing failed: it says so all the same.
    assert_eq!(codes(&stopped), BTreeSet::from(["stopped".to_owned()]), "{stopped}");
    assert_eq!(s.provider.calls().len(), calls);
    s.breaker("off", "ocr", "on purpose").await;
    shape(&ann.search("figs").await, true, &["embedding", "ocr"], true);
    s.breaker("on", "embedding", "enough").await;
    // Reading pages is no step of a search: nothing of this answer is missing, and what is stopped is said all the same.
    shape(&ann.search("figs").await, false, &["ocr"], true);
    s.breaker("on", "ocr", "enough").await;
    shape(&ann.search("figs").await, false, &[], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn p29_writing_works_while_embedding_is_off_and_only_the_index_waits() {
    let s = Stage::set().await;
    s.breaker("off", "embedding", "a long weekend").await;
    let _worker = s.fleet.worker().await;
    let ann = s.client();
    let note = ann.remember("apricots are in the cellar").await;
    let file = ann.upload("the cellar has a red door", "door.txt").await;
    let wrong = ann.remember("apricots are in the attic").await;
    for (added, words) in [(&note, "apricots cellar"), (&file, "red door"), (&wrong, "apricots attic")] {
        assert_eq!(added.status, 202, "{added}");
        let document = id_of(added, "documentId").to_string();
        wait_until(&format!("{words} is found by its words"), SOON, async || {
            let found = ann.search(words).await;
            let first = &found.json["results"][0]["documentId"];
            if *first == document.as_str() { Ok(()) } else { Err(found.text) }
        })
        .await;
        let told = ann.get(&format!("/api/v1/documents/{document}")).await;
        assert_eq!(
            (&told.json["status"], &told.json["memoryCount"], &told.json["pendingCount"]),
            (&json!("processed"), &json!(1), &json!(1)),
            "written, and its index waits: {told}"
        );
        assert!(told.json["notice"].as_str().is_some_and(|n| n.contains("stored safely")), "{told}");
        assert_eq!(
            ann.job(&added.job_id()).await.json["status"],
            "completed",
            "the request is done with"
        );
    }
    let listed = ann.get("/api/v1/documents?limit=10").await;
    assert_eq!(listed.json["data"].as_array().map(Vec::len), Some(3), "{listed}");
    // Taking away works too.
    let path = format!("/api/v1/documents/{}", id_of(&wrong, "documentId"));
    assert_eq!(ann.send(ann.request(Method::DELETE, &path)).await.status, 204);
    assert!(contents(&ann.search("attic").await).is_empty());
    s.two_beats().await;
    assert_eq!(s.count("blocks where embedding is not null").await, 0);
    assert_eq!(
        s.count("jobs where kind = 'embed' and status = 'waiting' and attempts = 0").await,
        2
    );
    assert_eq!(s.provider.calls().len(), 0);

    s.breaker("on", "embedding", "Tuesday").await;
    s.embedded(2).await;
    let told = ann.get(&format!("/api/v1/documents/{}", id_of(&note, "documentId"))).await;
    assert!(told.json["pendingCount"] == 0 && told.json["notice"].is_null(), "{told}");
    assert_eq!(s.provider.completed("attic"), 0, "what was taken away is not paid for");
}

#[tokio::test(flavor = "multi_thread")]
async fn p33_alive_ready_and_the_numbers_are_three_doors() {
    let s = Stage::set().await;
    let _worker = s.fleet.worker().await;
    let ask = async |api: &Api, door: &str| {
        // Nobody's token: who looks after a machine has none.
        Client::new(&api.base, "", 0).get(&format!("/health/{door}")).await
    };
    let both = async |api: &Api| (ask(api, "live").await.status, ask(api, "ready").await.status);
    assert_eq!(both(&s.api).await, (200, 200));

    s.breaker("off", "embedding", "for the numbers").await;
    let numbers = ask(&s.api, "metrics").await;
    assert_eq!(numbers.status, 200, "{numbers}");
    let kind = numbers.headers["content-type"].to_str().expect("text");
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    let mut types = BTreeSet::new();
    for line in numbers.text.lines() {
        if let Some(named) = line.strip_prefix("# TYPE ") {
            let (name, kind) = named.split_once(' ').expect("a name and a type");
            assert!(["gauge", "counter", "histogram", "summary"].contains(&kind), "{line}");
            types.insert(name.to_owned());
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?} is no sample"));
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            let name = series.split('{').next().expect("a name");
            assert!(types.contains(name), "{name} has no type before it");
            assert!(series == name || series.ends_with("\"}"), "{line}");
        }
    }
    for sample in [
        "steadfast_breaker_on{capability=\"embedding\"} 0",
        "steadfast_breaker_on{capability=\"ocr\"} 1",
        "steadfast_workers{kind=\"embed\"} 1",
    ] {
        assert!(numbers.text.lines().any(|l| l == sample), "{sample} is not in {numbers}");
    }
    // A stopped breaker is no reason to restart or to send nobody here any more.
    assert_eq!(both(&s.api).await, (200, 200));

    // No documents can be stored: it lives, and is not ready.
    let (blobs, away) = (s.fleet.dir().join("blobs"), s.fleet.dir().join("away"));
    std::fs::rename(&blobs, &away).expect("our own folder");
    std::fs::write(&blobs, "no folder").expect("our own folder");
    assert_eq!(both(&s.api).await, (200, 503));
    assert_eq!(ask(&s.api, "metrics").await.status, 200, "the numbers need no documents");
    std::fs::remove_file(&blobs)
        .and_then(|()| std::fs::rename(&away, &blobs))
        .expect("our own folder");
    assert_eq!(both(&s.api).await, (200, 200));

    // No database, and a database that nobody set up.
    let empty = format!("{}_empty", s.db.one::<String>("select current_database()::text").await);
    s.db.exec(&format!("create database {empty}")).await;
    let unmigrated = s.db.url().replace(s.db.url().rsplit('/').next().expect("a name"), &empty);
    for url in ["postgres://nobody@127.0.0.1:1/none", &unmigrated] {
        let api = s.fleet.api_with(Opts::new().env("STEADFAST_DATABASE_URL", url)).await;
        assert_eq!(both(&api).await, (200, 503), "{url}");
        let ready = ask(&api, "ready").await;
        assert_eq!(ready.json["error"]["code"], "NOT_READY", "{ready}");
        assert_eq!(ask(&api, "metrics").await.status, 503, "no numbers are no zeros");
    }
    s.db.exec(&format!("drop database {empty} with (force)")).await;
}
