//! Breakers and backoffs: a decision stops work until an operator ends it, weather passes by itself, and neither is ever silent.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use steadfast_tests::harness::{Answer, Api, Client, Db, Fleet, Opts, Output, Person, Process, wait_until};
use steadfast_tests::provider::{Action, At, Call, Fixture, Mode, Outcome, Provider, Reply, Route, Rule};

const SCAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/samples/contract-scan.png");
const SOON: Duration = Duration::from_secs(30);
/// What does not scale with a story's pace: polls, and processes on a busy machine.
const POLLS: Duration = Duration::from_secs(2);
/// What a probe sends.
const CONTROL: &str = "ready";

/// A database, an API, a person; providers and workers as the story needs them.
struct Stage {
    db: Db,
    fleet: Fleet,
    api: Api,
    ann: Person,
}

#[derive(Debug, PartialEq, Eq, sqlx::FromRow)]
struct Breaker {
    enabled: bool,
    epoch: i64,
    reason: Option<String>,
    changed_by: Option<String>,
    failure_count: i64,
    ramp_limit: Option<i32>,
}

#[derive(Debug, PartialEq, Eq, sqlx::FromRow)]
struct Endpoint {
    enabled: bool,
    tripped: bool,
    epoch: i64,
    reason: Option<String>,
    outage_streak: i32,
}

impl Stage {
    /// A second is a minute: backoffs of half a second to ten.
    async fn set() -> Self {
        Self::at_pace(Duration::from_secs(1), &[]).await
    }

    /// All paces of failure as shipped, with `minute` for a minute; and settings of the story's own.
    async fn at_pace(minute: Duration, settings: &[(&str, &str)]) -> Self {
        let db = Db::new().await;
        let mut fleet = Fleet::new(&db);
        for (name, seconds) in [
            ("STEADFAST_ENDPOINT_BACKOFF", 30),
            ("STEADFAST_ENDPOINT_BACKOFF_CAP", 600),
            ("STEADFAST_ITEM_BACKOFF", 60),
            ("STEADFAST_ITEM_BACKOFF_CAP", 86_400),
            ("STEADFAST_EVIDENCE", 60),
            ("STEADFAST_RATE_LIMIT_WAIT", 60),
        ] {
            fleet.set(name, format!("{}ms", (minute * seconds / 60).as_millis()));
        }
        fleet.set("STEADFAST_QUESTION_TIMEOUT", "2s");
        for (name, value) in settings {
            fleet.set(name, *value);
        }
        let api = fleet.api().await;
        let ann = db.person("ann").await;
        Self { db, fleet, api, ann }
    }

    fn client(&self) -> Client {
        self.api.client(&self.ann)
    }

    /// An embedding endpoint that takes one text a call, so that a job is a call.
    async fn embeds(&self, name: &str, rank: i32, provider: &Provider) -> i64 {
        let id = self.db.openai_endpoint(name, provider, 384).await;
        self.db
            .exec(&format!("update endpoints set batch = 1, rank = {rank} where id = {id}"))
            .await;
        id
    }

    async fn workers(&self, n: usize, places: u32) -> Vec<Process> {
        let mut all = Vec::new();
        for _ in 0..n {
            all.push(
                self.fleet
                    .worker_with(Opts::new().kinds("embed,question,fan_out").concurrency(places))
                    .await,
            );
        }
        all
    }

    /// Texts of one document that wait to be embedded, the first the oldest; returns their jobs.
    async fn texts<T: AsRef<str>>(&self, who: &Person, texts: &[T]) -> Vec<i64> {
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        sqlx::query_scalar(
            "with l as (insert into lines (kind, lane, tenant_id, level, capability) values ('embed', 'batch', $1, 1, 'embedding')
                          on conflict (kind, lane, tenant_id, level) do update set capability = excluded.capability returning id),
                  d as (insert into documents (tenant_id, user_id, space_id, title, media_type, byte_count, sha256, blob_key, status)
                          values ($1, $2, $3, 'texts', 'text/plain', 1, '\\x00', 'none', 'processed') returning id),
                  b as (insert into blocks (tenant_id, space_id, document_id, no, content, level)
                          select $1, $3, d.id, t.no, t.content, 1 from d, unnest($4::text[]) with ordinality as t(content, no) returning id, no)
             insert into jobs (line_id, tenant_id, user_id, kind, item_id) select l.id, $1, $2, 'embed', b.id from l, b order by b.no returning id",
        )
        .bind(who.tenant_id)
        .bind(who.user_id)
        .bind(who.space_id)
        .bind(texts)
        .fetch_all(&self.db.pool)
        .await
        .expect("texts can be written")
    }

    async fn steadfast(&self, args: &[&str]) -> Output {
        self.fleet.steadfast(&self.api, &self.ann, args).await
    }

    /// The operator's command, which must succeed.
    async fn operator(&self, args: &[&str]) -> Output {
        let out = self.steadfast(args).await;
        assert_eq!(out.code, Some(0), "{args:?}: {out}");
        out
    }

    async fn off(&self, more: &[&str]) -> Output {
        let off = ["breaker", "off", "embedding", "--reason", "a story's reason", "--yes"];
        self.operator(&[&off[..], more].concat()).await
    }

    async fn on(&self, more: &[&str]) -> Output {
        let on = ["breaker", "on", "embedding", "--reason", "it is fixed"];
        self.operator(&[&on[..], more].concat()).await
    }

    /// Embedding's breaker: everybody's, or one tenant's.
    async fn breaker(&self, tenant: Option<i64>) -> Breaker {
        sqlx::query_as(
            "select enabled, epoch, reason, changed_by, failure_count, ramp_limit from capabilities
              where name = 'embedding' and tenant_id is not distinct from $1",
        )
        .bind(tenant)
        .fetch_one(&self.db.pool)
        .await
        .expect("there is such a breaker")
    }

    async fn endpoint(&self, name: &str) -> Endpoint {
        sqlx::query_as("select enabled, tripped_at is not null as tripped, epoch, reason, outage_streak from endpoints where name = $1")
            .bind(name)
            .fetch_one(&self.db.pool)
            .await
            .expect("there is such an endpoint")
    }

    /// What happened to breakers and endpoints, oldest first: `off by system`, `A: stale_evidence by system`.
    async fn history(&self) -> Vec<String> {
        sqlx::query_scalar(
            "select what from (
               select at, 0 as part, id, action || case when actor = 'system' then ' by system' else '' end as what from capability_events
               union all
               select at, 1, id, endpoint || ': ' || action || case when actor = 'system' then ' by system' else '' end from endpoint_events) e
              order by at, part desc, id",
        )
        .fetch_all(&self.db.pool)
        .await
        .expect("the history")
    }

    async fn count(&self, table: &str) -> i64 {
        self.db.one(&format!("select count(*) from {table}")).await
    }

    async fn until_count(&self, what: &str, n: i64, table: &str, timeout: Duration) {
        wait_until(what, timeout, async || match self.count(table).await {
            found if found == n => Ok(()),
            found => Err(found),
        })
        .await;
    }

    async fn until_embedded(&self, n: i64) {
        self.until_count(
            "all texts are embedded",
            n,
            "jobs_done where kind = 'embed' and status = 'done'",
            SOON,
        )
        .await;
    }

    async fn until_off(&self, tenant: Option<i64>) -> Breaker {
        wait_until("the breaker is off", SOON, async || {
            let row: Option<Breaker> = sqlx::query_as(
                "select enabled, epoch, reason, changed_by, failure_count, ramp_limit from capabilities
                  where name = 'embedding' and tenant_id is not distinct from $1",
            )
            .bind(tenant)
            .fetch_optional(&self.db.pool)
            .await
            .expect("an answer");
            row.filter(|b| !b.enabled)
        })
        .await
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

    /// Looks again and again until `end`, and makes at least one look.
    async fn watch(&self, end: Instant, every: Duration, mut look: impl AsyncFnMut(u32)) {
        let mut ticks = tokio::time::interval(every);
        let mut n = 0;
        loop {
            ticks.tick().await;
            n += 1;
            look(n).await;
            if Instant::now() >= end {
                return;
            }
        }
    }
}

fn numbered(prefix: &str, n: usize) -> Vec<String> {
    (1..=n).map(|i| format!("{prefix} {i:03}.")).collect()
}

fn is_control(call: &Call) -> bool {
    call.texts.len() == 1 && call.texts[0].text == CONTROL
}

/// The texts of the calls that are open now, sorted; control texts aside.
fn open(calls: &[Call]) -> Vec<String> {
    let open = calls.iter().filter(|c| c.outcome == Outcome::Open && !is_control(c));
    let mut texts: Vec<String> = open.flat_map(|c| c.texts.iter().map(|t| t.text.clone())).collect();
    texts.sort();
    texts
}

async fn until_open(provider: &Provider, n: usize) -> Vec<String> {
    provider
        .wait_record(&format!("{n} calls in flight"), |calls| Some(open(calls)).filter(|o| o.len() == n))
        .await
}

/// Calls that are no probes.
fn work(provider: &Provider) -> Vec<Call> {
    provider.calls().into_iter().filter(|c| !is_control(c)).collect()
}

/// What a search said about itself.
#[derive(Debug)]
struct Said {
    degraded: bool,
    codes: BTreeSet<String>,
    unavailable: Vec<String>,
    notice: Option<String>,
    /// Over all results.
    paths: BTreeSet<String>,
    found: usize,
}

impl Said {
    fn by(answer: &Answer) -> Self {
        assert_eq!(answer.status, 200, "{answer}");
        let strings = |v: &Value| -> Vec<String> {
            let list = v.as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().map(|s| s.as_str().expect("a word").to_owned()).collect()
        };
        let d = &answer.json["diagnostics"];
        let results = answer.json["results"].as_array().expect("always there");
        Self {
            degraded: d["degraded"].as_bool().expect("always there"),
            codes: d["reasons"]
                .as_array()
                .expect("always there")
                .iter()
                .map(|r| r["code"].as_str().expect("a code").to_owned())
                .collect(),
            unavailable: strings(&d["unavailable"]),
            notice: d["notice"].as_str().map(str::to_owned),
            paths: results.iter().flat_map(|r| strings(&r["explanation"]["paths"])).collect(),
            found: results.len(),
        }
    }

    fn says(&self, code: &str) -> bool {
        self.degraded && self.codes.contains(code)
    }

    fn whole(&self) -> bool {
        !self.degraded && self.codes.is_empty() && self.unavailable.is_empty() && self.notice.is_none()
    }
}

// ── Weather ──────────────────────────────────────────────────────────────────────────────────────────────────────────

/// SC7 with `minute` for a minute: 503 for twenty, refused connections for twenty, silence for twenty, then all is well.
async fn an_hour_of_outage(minute: Duration) {
    let seconds = |n: u32| minute * n / 60;
    let s = Stage::at_pace(minute, &[]).await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    // A probe may take a minute, or the endpoint's own limit: which scales.
    s.db.exec(&format!("update endpoints set timeout_ms = {}", seconds(60).as_millis()))
        .await;
    let poisoned = || Rule::text("POISON").then(Fixture::InternalError);
    // Everybody is under way when it begins.
    let volley = |then: Fixture| Action::hold_then("volley", then);
    provider.rule(Rule::text("POISON").times(1).then(volley(Fixture::InternalError)));
    provider.rule(poisoned());
    provider.rule(Rule::all().times(15).then(volley(Fixture::ServiceUnavailable)));
    provider.rule(Rule::all().then(Fixture::ServiceUnavailable));
    let poison = s.texts(&s.ann, &["the POISON text is the oldest"]).await[0];
    let good = numbered("a good text of the backlog, number", 200);
    s.texts(&s.ann, &good).await;
    // The built-in engine stands by, and is not asked for.
    let model = std::env::var("STEADFAST_MODEL_DIR").expect("STEADFAST_MODEL_DIR names the built-in model; run this through ops/test");
    let mut workers = Vec::new();
    for _ in 0..4 {
        let opts = Opts::new()
            .kinds("embed,question,fan_out")
            .concurrency(4)
            .env("STEADFAST_MODEL_DIR", &model);
        workers.push(s.fleet.worker_with(opts).await);
    }
    let warnings = || -> usize {
        workers
            .iter()
            .map(|w| w.log().lines().filter(|l| l.contains(" WARN ")).count())
            .sum()
    };

    until_open(&provider, 16).await;
    let began = Instant::now();
    provider.release("volley");
    let client = s.client();
    wait_until("search says that there is an outage", seconds(30) + POLLS, async || {
        let said = Said::by(&client.search("backlog of the first minute").await);
        if said.says("outage") { Ok(()) } else { Err(said) }
    })
    .await;
    println!("degraded after {:?}", began.elapsed());

    let nobodys_decision = async |n: u32| {
        let (off, told, dead, charged, all): (i64, i64, i64, i64, i64) = sqlx::query_as(
            "select (select count(*) from capabilities where not enabled) + (select count(*) from endpoints where not enabled)
                      + (select count(*) from capability_events) + (select count(*) from endpoint_events),
                    (select count(*) from notices) + (select count(*) from incidents),
                    count(*) filter (where status in ('dead', 'parked')), coalesce(sum(charged) filter (where status = 'waiting'), 0), count(*)
               from jobs where kind = 'embed'",
        )
        .fetch_one(&s.db.pool)
        .await
        .expect("an answer");
        assert_eq!(
            (off, told, dead, charged, all),
            (0, 0, 0, 0, 201),
            "breakers off, people told, dead, charged, kept"
        );
        let said = Said::by(&client.search(&format!("backlog of look {n} after {:?}", began.elapsed())).await);
        assert!(said.says("outage") && said.notice.is_none(), "{said:?}");
        assert_eq!(said.paths, BTreeSet::from(["keyword".to_owned()]), "{said:?}");
    };
    s.watch(began + seconds(20 * 60), minute / 2, nobodys_decision).await;
    provider.mode(Mode::Refuse).await;
    s.watch(began + seconds(40 * 60), minute / 2, nobodys_decision).await;
    provider.clear_rules();
    provider.rule(poisoned());
    provider.rule(Rule::all().then(Action::Hang { at: At::BeforeHeaders }));
    provider.mode(Mode::Open).await;
    s.watch(began + seconds(60 * 60), minute / 2, nobodys_decision).await;
    let doctor = s.steadfast(&["doctor"]).await;
    assert!(doctor.code == Some(4) && doctor.stdout.contains("endpoint vectors"), "{doctor}");

    provider.clear_rules();
    provider.rule(poisoned());
    let well_again = Instant::now();
    let calls = provider.calls();
    let streak = s.endpoint("vectors").await.outage_streak;
    let probes = calls.iter().filter(|c| is_control(c)).count();
    let volley = calls.len() - probes;
    println!(
        "in the outage: {volley} calls of the first volley, {probes} probes arrived of {}",
        streak - 1
    );
    assert_eq!(volley, 16, "one volley, and no more");
    assert_eq!(calls.iter().filter(|c| c.has("POISON")).count(), 1);
    // 30 s, 1, 2, 4, 8, 10, 10 … min are ten at most in an hour; a fifth more for the jitter.
    assert!((3..=12).contains(&(streak - 1)), "{streak}");
    assert!(probes <= 12, "{probes}");
    assert_eq!(warnings(), 1, "one change of state, one warning");

    wait_until("the recovery is noticed", seconds(12 * 60) + POLLS, async || {
        provider.calls().iter().any(|c| is_control(c) && c.completed()).then_some(())
    })
    .await;
    let noticed = Instant::now();
    s.until_count(
        "all good texts are embedded",
        200,
        "jobs_done where kind = 'embed' and status = 'done'",
        seconds(120) + SOON,
    )
    .await;
    let drained = noticed.elapsed();
    wait_until("the poison is dead", seconds(20 * 60) + POLLS * 4, async || {
        let job = s.db.job(poison).await.expect("it stays");
        if job.status == "dead" { Ok(()) } else { Err(job) }
    })
    .await;
    let died = noticed.elapsed();
    println!(
        "noticed after {:?}, drained {drained:?} later, the poison dead {died:?} later",
        noticed - well_again
    );
    assert!(drained * 3 < died, "the others are done long before");
    let job = s.db.job(poison).await.expect("it stays");
    assert_eq!((job.charged, job.item_fails), (5, 5), "{job:?}");
    let attempts = s.db.attempts(poison).await;
    assert!(
        attempts
            .iter()
            .all(|a| a.forgiven == (a.class == "outage") && (a.forgiven || a.class == "item_error")),
        "{attempts:?}"
    );
    assert_eq!(
        s.count("jobs_done where attempts - forgiven <> 1").await,
        0,
        "nobody else was charged for it"
    );
    for text in &good {
        assert_eq!(provider.completed(text), 1, "{text}");
    }
    assert_eq!(s.count("blocks where embedding_model = 'scripted'").await, 200);
    let later = i64::try_from(attempts.iter().filter(|a| a.forgiven).count()).expect("few");
    assert!(
        warnings() <= 1 + usize::try_from(later).expect("few"),
        "still one for a change of state"
    );
    assert_eq!(s.history().await, Vec::<String>::new());
    let said = Said::by(&client.search("backlog when all is over").await);
    assert_eq!(said.codes, BTreeSet::from(["dead".to_owned()]), "{said:?}");
    assert!(said.paths.contains("vector"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sc7_p3_b4_b5_b17_d7_d8_an_hour_of_outage_in_a_minute_is_nobodys_decision() {
    an_hour_of_outage(Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly"]
async fn sc7_p3_b4_b5_b17_d7_d8_an_hour_of_outage_at_full_length_is_nobodys_decision() {
    an_hour_of_outage(Duration::from_secs(60)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sc7_n45_an_operator_brings_the_recovery_forward() {
    let s = Stage::at_pace(
        Duration::from_secs(1),
        &[("STEADFAST_ENDPOINT_BACKOFF", "10m"), ("STEADFAST_ENDPOINT_BACKOFF_CAP", "1h")],
    )
    .await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    provider.rule(Rule::all().then(Fixture::ServiceUnavailable));
    s.texts(&s.ann, &numbered("text", 20)).await;
    let _workers = s.workers(2, 4).await;
    wait_until("the endpoint is held back", SOON, async || {
        match s.endpoint("vectors").await.outage_streak {
            1 => Ok(()),
            n => Err(n),
        }
    })
    .await;
    s.until_count("all wait", 20, "jobs where status = 'waiting'", SOON).await;
    provider.clear_rules();
    let before = provider.calls().len();
    assert!(before <= 8, "one volley: {before}");
    s.two_beats().await;
    assert_eq!(provider.calls().len(), before, "the next probe is minutes away");

    s.operator(&["endpoint", "clear", "vectors"]).await;
    let cleared = Instant::now();
    provider.wait_calls(before + 1).await;
    assert!(cleared.elapsed() < POLLS, "at once: {:?}", cleared.elapsed());
    // Those that failed themselves have the endpoint's backoff as their own; `jobs retry` is what ends that.
    s.until_count(
        "the untouched ones are embedded",
        i64::try_from(20 - before).expect("few"),
        "jobs_done",
        SOON,
    )
    .await;
    let ids: Vec<String> = sqlx::query_scalar("select id::text from jobs")
        .fetch_all(&s.db.pool)
        .await
        .expect("the rest");
    let mut retry = vec!["jobs", "retry", "--reason", "it is well again"];
    retry.extend(ids.iter().map(String::as_str));
    s.operator(&retry).await;
    s.until_embedded(20).await;
    assert_eq!(s.history().await, Vec::<String>::new());
}

// ── One capability, several endpoints ────────────────────────────────────────────────────────────────────────────────

fn refusal(words: &str) -> Action {
    Reply::error(401, "invalid_request_error", "invalid_api_key", words).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn b15_a_refusal_stops_its_endpoint_and_the_last_one_its_capability() {
    let s = Stage::set().await;
    let (a, b) = (Provider::start(), Provider::start());
    s.embeds("A", 1, &a).await;
    s.embeds("B", 2, &b).await;
    a.rule(Rule::all().then(refusal("A has no such key")));
    s.texts(&s.ann, &numbered("text", 12)).await;
    let _workers = s.workers(2, 4).await;
    s.until_embedded(12).await;
    let stopped = s.endpoint("A").await;
    assert!(!stopped.enabled && stopped.tripped, "{stopped:?}");
    assert!(
        stopped
            .reason
            .as_deref()
            .is_some_and(|r| r.starts_with("A: ") && r.contains("A has no such key")),
        "{stopped:?}"
    );
    assert!(s.breaker(None).await.enabled, "another one serves on");
    assert_eq!(s.history().await, ["A: off by system"]);
    assert_eq!(
        (s.count("incidents").await, s.count("notices").await),
        (0, 0),
        "nobody has to be told"
    );
    assert!(a.calls().len() <= 8, "not more than were in flight: {}", a.calls().len());
    assert_eq!(b.completed("text"), 12);
    assert_eq!(
        s.count("jobs_done where attempts - forgiven <> 1").await,
        0,
        "nobody was charged for the key"
    );
    let client = s.client();
    let said = Said::by(&client.search("text by the other one").await);
    assert!(said.whole() && said.paths.contains("vector"), "{said:?}");

    b.rule(Rule::all().then(refusal("B has no such key")));
    s.texts(&s.ann, &numbered("later text", 8)).await;
    let off = s.until_off(None).await;
    assert_eq!(off.changed_by.as_deref(), Some("system"));
    assert!(
        off.reason
            .as_deref()
            .is_some_and(|r| r.starts_with("B: ") && r.contains("B has no such key")),
        "{off:?}"
    );
    let (reason, endpoints): (String, Vec<String>) = sqlx::query_as("select reason, endpoints from incidents where closed_at is null")
        .fetch_one(&s.db.pool)
        .await
        .expect("one incident");
    assert!(reason.starts_with("B: "), "{reason}");
    assert_eq!(endpoints, ["A", "B"], "who refused");
    s.until_count(
        "all are held, uncharged",
        8,
        "jobs where kind = 'embed' and status = 'waiting' and charged = 0",
        SOON,
    )
    .await;
    let (at_a, at_b) = (a.calls().len(), b.calls().len());
    s.two_beats().await;
    assert_eq!((a.calls().len(), b.calls().len()), (at_a, at_b), "nobody is asked");
    let said = Said::by(&client.search("text while all is stopped").await);
    assert!(said.says("stopped") && said.unavailable == ["embedding"], "{said:?}");
    assert_eq!(s.history().await, ["A: off by system", "B: off by system", "off by system"]);

    for provider in [&a, &b] {
        provider.clear_rules();
        provider.forget();
    }
    s.on(&["--full"]).await;
    s.until_embedded(20).await;
    for name in ["A", "B"] {
        let e = s.endpoint(name).await;
        assert!(e.enabled && !e.tripped && e.epoch == 2, "{name}: {e:?}");
    }
    assert_eq!(
        (a.completed("later text"), b.calls().len()),
        (8, 0),
        "the first in rank serves again"
    );
}

/// The vectors of another engine are other vectors: nobody asked for those. An operator's word is.
#[tokio::test(flavor = "multi_thread")]
async fn b15_a_built_in_engine_stands_in_for_nobody_until_the_operator_says_so() {
    const BUILT_IN: &str = "blocks where embedding_model = 'all-MiniLM-L6-v2'";
    let s = Stage::set().await;
    let provider = Provider::start();
    s.embeds("remote", 1, &provider).await;
    let model = std::env::var("STEADFAST_MODEL_DIR").expect("STEADFAST_MODEL_DIR names the built-in model; run this through ops/test");
    let opts = Opts::new()
        .kinds("embed,question,fan_out")
        .concurrency(2)
        .env("STEADFAST_MODEL_DIR", model);
    let _worker = s.fleet.worker_with(opts).await;
    let client = s.client();

    // Away: waited for.
    provider.mode(Mode::Refuse).await;
    s.texts(&s.ann, &["written while it was away"]).await;
    wait_until("it was asked for", SOON, async || match s.endpoint("remote").await.outage_streak {
        0 => None,
        n => Some(n),
    })
    .await;
    s.two_beats().await;
    assert_eq!(s.count(BUILT_IN).await, 0);
    let said = Said::by(&client.search("written by whom").await);
    assert!(said.says("outage"), "{said:?}");

    // Refused: held.
    provider.rule(Rule::all().then(Fixture::InvalidKey));
    provider.mode(Mode::Open).await;
    s.until_off(None).await;
    s.two_beats().await;
    assert_eq!(s.count(BUILT_IN).await, 0);
    assert_eq!(s.count("jobs where kind = 'embed' and status = 'waiting'").await, 1);

    // The operator does without it: turned off by hand, it stays off when the breaker is turned on.
    s.operator(&["endpoint", "off", "remote", "--reason", "we do without it", "--yes"])
        .await;
    s.on(&[]).await;
    let asked = provider.calls().len();
    s.until_count("the built-in engine serves", 1, BUILT_IN, SOON).await;
    let remote = s.endpoint("remote").await;
    assert!(
        !remote.enabled && remote.reason.as_deref().is_some_and(|r| r.starts_with("remote: ")),
        "the first reason stays: {remote:?}"
    );
    assert_eq!(provider.calls().len(), asked);
    assert!(s.breaker(None).await.enabled);

    // Turned on again it serves again; removed, it is not waited for.
    provider.clear_rules();
    s.operator(&["endpoint", "on", "remote"]).await;
    s.texts(&s.ann, &["written when it was back"]).await;
    s.until_count("the remote one serves", 1, "blocks where embedding_model = 'scripted'", SOON)
        .await;
    let said = Said::by(&client.search("written by both").await);
    assert_eq!(
        said.codes,
        BTreeSet::from(["reindexing".to_owned()]),
        "two engines, two kinds of vectors: {said:?}"
    );
    s.operator(&["endpoint", "off", "remote", "--reason", "maintenance", "--yes"]).await;
    s.texts(&s.ann, &["written during maintenance"]).await;
    s.until_count("the built-in engine serves again", 2, BUILT_IN, SOON).await;
    s.operator(&["endpoint", "rm", "remote", "--yes"]).await;
    s.texts(&s.ann, &["written when it was gone"]).await;
    s.until_count("and goes on", 3, BUILT_IN, SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b16_c50_a_tenants_own_refused_key_stops_that_tenant_alone() {
    let s = Stage::set().await;
    let (shared, private) = (Provider::start(), Provider::start());
    s.embeds("shared", 2, &shared).await;
    let id = s.embeds("private", 1, &private).await;
    let (tom, uma) = (s.db.person_of("T", "tom").await, s.db.person_of("U", "uma").await);
    s.db.exec(&format!("update endpoints set owner_tenant_id = {} where id = {id}", tom.tenant_id))
        .await;
    s.texts(&tom, &numbered("TOMS text", 6)).await;
    s.texts(&uma, &numbered("UMAS text", 6)).await;
    let _workers = s.workers(2, 4).await;
    s.until_embedded(12).await;
    assert_eq!((private.completed("TOMS"), shared.completed("UMAS")), (6, 6), "each by its own");

    private.rule(Rule::all().then(Fixture::InvalidKey));
    s.texts(&tom, &numbered("later TOMS text", 6)).await;
    s.texts(&uma, &numbered("later UMAS text", 6)).await;
    let off = s.until_off(Some(tom.tenant_id)).await;
    assert!(off.reason.as_deref().is_some_and(|r| r.starts_with("private: ")), "{off:?}");
    s.until_embedded(18).await;
    assert_eq!(shared.completed("later UMAS"), 6, "U's work goes on");
    assert!(s.breaker(None).await.enabled && s.endpoint("shared").await.enabled);
    let whose: Vec<Option<i64>> = sqlx::query_scalar("select tenant_id from incidents")
        .fetch_all(&s.db.pool)
        .await
        .expect("incidents");
    assert_eq!(whose, [Some(tom.tenant_id)]);
    let said = Said::by(&s.api.client(&tom).search("text of his").await);
    assert!(
        said.says("stopped") && said.unavailable == ["embedding"] && said.paths == BTreeSet::from(["keyword".to_owned()]),
        "{said:?}"
    );
    let said = Said::by(&s.api.client(&uma).search("text of hers").await);
    assert!(said.whole() && said.paths.contains("vector"), "{said:?}");

    s.until_count(
        "his are held, uncharged",
        6,
        "jobs where kind = 'embed' and status = 'waiting' and charged = 0",
        SOON,
    )
    .await;
    s.two_beats().await;
    assert_eq!(s.count("jobs where kind = 'embed' and status = 'waiting'").await, 6);

    private.clear_rules();
    let tenant = tom.tenant_id.to_string();
    s.on(&["--tenant", &tenant, "--full"]).await;
    s.until_embedded(24).await;
    // Away instead of refused: what is meant for his own provider waits for it too.
    private.mode(Mode::Refuse).await;
    s.texts(&tom, &["the last TOMS text"]).await;
    wait_until("it is known to be away", SOON, async || {
        match s.endpoint("private").await.outage_streak {
            0 => None,
            n => Some(n),
        }
    })
    .await;
    let said = Said::by(&s.api.client(&tom).search("TOMS question meanwhile").await);
    assert!(said.says("outage"), "{said:?}");
    s.two_beats().await;
    assert_eq!(s.count("jobs where kind = 'embed' and status = 'waiting'").await, 1);
    private.mode(Mode::Open).await;
    s.until_embedded(25).await;
    assert_eq!(shared.calls_for("TOMS").len(), 0, "no word of his went to the shared one");
    assert_eq!(private.calls_for("UMAS").len(), 0, "nor of hers to his");
}

// ── Evidence from before ─────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn b18_a_refusal_of_the_old_key_trips_nothing_after_the_new_one_is_in() {
    let s = Stage::set().await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    let _workers = s.workers(1, 4).await;
    provider.rule(
        Rule::text("by hand")
            .times(1)
            .then(Action::hold_then("by hand", Fixture::InvalidKey)),
    );
    provider.rule(
        Rule::text("endpoint")
            .times(1)
            .then(Action::hold_then("endpoint", Fixture::InvalidKey)),
    );
    provider.rule(
        Rule::text("tripped")
            .times(1)
            .then(Action::hold_then("tripped", Fixture::InvalidKey)),
    );
    provider.rule(Rule::text("first to fail").times(1).then(Fixture::InvalidKey));

    let stale = async |text: &str, flips: i64| {
        provider.release(text);
        provider.wait_for("the refusal", |c| c.has(text) && c.status == Some(401)).await;
        provider.wait_for("the second try", |c| c.has(text) && c.completed()).await;
        assert!(s.breaker(None).await.enabled, "{text}: {:?}", s.history().await);
        let e = s.endpoint("vectors").await;
        assert!(e.enabled && !e.tripped, "{text}: {e:?} {:?}", s.history().await);
        assert!(e.epoch == flips, "{text}: {e:?}");
        let again = s.count("attempts where class = 'refused' and not forgiven").await;
        assert_eq!(again, 0, "{text}: nobody's fault");
    };

    // A decision, taken back.
    s.texts(&s.ann, &["flipped by hand"]).await;
    until_open(&provider, 1).await;
    s.off(&[]).await;
    s.on(&["--full"]).await;
    stale("by hand", s.endpoint("vectors").await.epoch).await;
    let history = s.history().await;
    assert_eq!(history[..2], ["off", "on"], "{history:?}");
    assert!(history[2..].iter().any(|h| h.ends_with("stale_evidence by system")), "{history:?}");

    // The endpoint's own breaker.
    s.texts(&s.ann, &["the endpoint was flipped"]).await;
    until_open(&provider, 1).await;
    s.operator(&["endpoint", "off", "vectors", "--reason", "a new key", "--yes"]).await;
    s.operator(&["endpoint", "on", "vectors"]).await;
    stale("endpoint", s.endpoint("vectors").await.epoch).await;
    let history = s.history().await;
    assert_eq!(
        history.last().map(String::as_str),
        Some("vectors: stale_evidence by system"),
        "{history:?}"
    );

    // A real one, mended while another call of the old key hangs.
    s.texts(&s.ann, &["a call that hangs while it is tripped"]).await;
    until_open(&provider, 1).await;
    provider.rule(Rule::text(CONTROL).times(1).then(Fixture::InvalidKey));
    s.texts(&s.ann, &["the first to fail"]).await;
    s.until_off(None).await;
    s.on(&["--full"]).await;
    stale("tripped", s.endpoint("vectors").await.epoch).await;
    s.until_embedded(4).await;
    assert_eq!(s.count("capability_events where action = 'off' and actor = 'system'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn b19_the_first_reason_stays_and_later_acts_are_on_record() {
    let s = Stage::set().await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    let off = async |who: &str, reason: &str, more: &[&str]| {
        let args = [&["breaker", "off", "embedding", "--reason", reason, "--yes"][..], more].concat();
        let opts = Opts::new().env("USER", who).env("STEADFAST_URL", &s.api.base);
        let out = s.fleet.run("steadfast", &args, opts).await;
        assert_eq!(out.code, Some(0), "{out}");
        out.stdout
    };
    off("olga", "the contract has ended", &[]).await;
    let first = s.breaker(None).await;
    assert!(first.changed_by.as_deref().is_some_and(|w| w.starts_with("olga@")), "{first:?}");
    let told = off("otto", "the bill is too high", &[]).await;
    assert!(
        told.contains("already off, since") && told.contains("by olga@") && told.contains("the contract has ended"),
        "{told}"
    );
    off("otto", "called them, they are looking", &["--annotate"]).await;
    assert_eq!(s.breaker(None).await, first);
    let acts: Vec<(String, String, String)> =
        sqlx::query_as("select action, split_part(actor, '@', 1), reason from capability_events order by id")
            .fetch_all(&s.db.pool)
            .await
            .expect("the history");
    let acts: Vec<(&str, &str, &str)> = acts.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str())).collect();
    assert_eq!(
        acts,
        [
            ("off", "olga", "the contract has ended"),
            ("already_off", "otto", "the bill is too high"),
            ("already_off", "otto", "called them, they are looking"),
            ("note", "otto", "called them, they are looking"),
        ]
    );
    let history = s.operator(&["breaker", "history", "embedding"]).await;
    assert!(history.stdout.contains("called them, they are looking"), "{history}");
    s.on(&[]).await;

    // The other way round: an operator comes after the system.
    provider.rule(Rule::all().then(refusal("no such key")));
    s.texts(&s.ann, &["a text"]).await;
    let _workers = s.workers(1, 1).await;
    let tripped = s.until_off(None).await;
    off("olga", "I had seen it coming", &[]).await;
    let endpoint = s.endpoint("vectors").await;
    s.operator(&["endpoint", "off", "vectors", "--reason", "I had seen it coming", "--yes"])
        .await;
    assert_eq!(s.breaker(None).await, tripped);
    assert_eq!(s.endpoint("vectors").await.reason, endpoint.reason);
    let incidents: Vec<(String, i64)> = sqlx::query_as("select reason, failure_count from incidents order by id")
        .fetch_all(&s.db.pool)
        .await
        .expect("incidents");
    assert_eq!(
        incidents,
        [("the contract has ended".to_owned(), 1)],
        "off again soon after: the same one, with its first reason"
    );
}

// ── Flips ────────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn p9_b20_a_flip_is_seen_by_all_workers_and_calls_under_way_finish() {
    let s = Stage::set().await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    let _workers = s.workers(3, 4).await;
    provider.rule(Rule::text("text").times(6).then(Action::hold("some")));
    provider.rule(Rule::text("text").times(6).then(Action::hold("others")));
    s.texts(&s.ann, &numbered("text", 40)).await;
    until_open(&provider, 12).await;

    s.off(&[]).await;
    let said = Said::by(&s.client().search("what is it").await);
    assert!(said.says("stopped"), "the API's very next answer: {said:?}");
    for (gate, done) in [("some", 6), ("others", 12)] {
        provider.release(gate);
        s.until_embedded(done).await;
        // Their places are free, and work is due.
        s.two_beats().await;
        assert_eq!(provider.calls().len(), 12, "calls under way finish, nobody begins one");
    }
    assert_eq!(s.count("jobs where kind = 'embed' and attempts = 0").await, 28, "held is not tried");

    // In full flight: many calls a second, and none begun once the flip is through.
    provider.rule(Rule::all().then(Action::Slow { ms: 10 }));
    s.on(&["--full"]).await;
    s.texts(&s.ann, &numbered("more text", 2000)).await;
    provider.wait_calls(150).await;
    s.off(&[]).await;
    let said = provider.calls().len();
    let returned: chrono::DateTime<chrono::Utc> = s.db.one("select clock_timestamp()").await;
    s.two_beats().await;
    let late: i64 = sqlx::query_scalar(
        "select (select count(*) from jobs where started_at > $1) + (select count(*) from jobs_done where kind = 'embed' and started_at > $1)",
    )
    .bind(returned)
    .fetch_one(&s.db.pool)
    .await
    .expect("a number");
    assert_eq!(late, 0, "none was begun after the command returned");
    let still = provider.calls().len();
    assert!(still - said <= 12, "what was begun before it: {said} and then {still}");
    assert!(s.count("jobs where kind = 'embed'").await > 100, "there was more to do");
    s.two_beats().await;
    assert_eq!(provider.calls().len(), still);
    assert_eq!(s.count("jobs where status = 'running'").await, 0);
    assert_eq!(s.count("jobs where charged > 0").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn b20_off_now_gives_up_the_calls_under_way_uncharged() {
    let s = Stage::set().await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    let _workers = s.workers(3, 4).await;
    provider.rule(Rule::all().then(Action::hold("never")));
    s.texts(&s.ann, &numbered("text", 20)).await;
    until_open(&provider, 12).await;
    let asking = tokio::spawn({
        let client = s.client();
        async move { (client.search("what is it").await, Instant::now()) }
    });
    until_open(&provider, 13).await;

    s.off(&["--now"]).await;
    let flipped = Instant::now();
    until_open(&provider, 0).await;
    let took = flipped.elapsed();
    assert!(took < POLLS, "within a poll: {took:?}");
    let calls = provider.calls();
    assert!(calls.iter().all(|c| c.outcome == Outcome::Cancelled), "{calls:#?}");
    let (answer, at) = asking.await.expect("it was asked");
    let said = Said::by(&answer);
    assert!(said.says("stopped") && at < flipped + POLLS, "who asks is told: {said:?}");
    s.until_count(
        "all are held, uncharged",
        20,
        "jobs where kind = 'embed' and status = 'waiting' and charged = 0 and attempts = forgiven",
        SOON,
    )
    .await;
    assert_eq!(
        s.count("attempts where class = 'preempted' and forgiven and job_id in (select id from jobs where kind = 'embed')")
            .await,
        12
    );
    s.two_beats().await;
    assert_eq!(provider.calls().len(), 13);
    provider.clear_rules();
    s.on(&["--full"]).await;
    s.until_embedded(20).await;
}

/// The moment between the take and the call: the flip comes in between, and the second look sees it.
#[tokio::test(flavor = "multi_thread")]
async fn b20_a_claim_that_a_flip_has_overtaken_makes_no_call() {
    let s = Stage::set().await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    let _workers = s.workers(1, 1).await;
    // A take waits here, done but not committed, for as long as the story wants.
    for sql in [
        "create function wait_here() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock_shared(7); return null; end $$",
        "create trigger taken after update on jobs for each row when (old.status = 'waiting' and new.status = 'running') execute function wait_here()",
    ] {
        s.db.exec(sql).await;
    }
    for (n, flip) in ["breaker", "endpoint"].into_iter().enumerate() {
        let mut gate = s.db.pool.begin().await.expect("a transaction");
        sqlx::query("select pg_advisory_xact_lock(7)")
            .execute(&mut *gate)
            .await
            .expect("the lock");
        let text = format!("taken before the {flip} was off");
        let job = s.texts(&s.ann, &[&text]).await[0];
        wait_until("it is being taken", SOON, async || {
            let waiting: i64 =
                s.db.one("select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'")
                    .await;
            (waiting == 1).then_some(())
        })
        .await;
        let name = if flip == "breaker" { "embedding" } else { "vectors" };
        s.operator(&[flip, "off", name, "--reason", "a story's reason", "--yes"]).await;
        gate.commit().await.expect("nothing was written");
        wait_until("it has come back", SOON, async || match s.db.attempts(job).await.as_slice() {
            [a] if a.forgiven && a.cause.as_deref() == Some("gate_closed") => Ok(()),
            other => Err(other.to_vec()),
        })
        .await;
        s.two_beats().await;
        assert_eq!(provider.calls().len(), n, "no call for this one");
        s.operator(&[flip, "on", name]).await;
        s.until_embedded(i64::try_from(n + 1).expect("small")).await;
    }
}

/// The other moment: the flip is written but not yet true when a call begins, and `--now` means that one too.
#[tokio::test(flavor = "multi_thread")]
async fn b20_off_now_gives_up_a_call_that_began_while_the_flip_was_written() {
    let s = Stage::set().await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    provider.rule(Rule::all().then(Action::hold("never")));
    let _workers = s.workers(1, 1).await;
    // A flip waits here, written but not committed.
    for sql in [
        "create function wait_here() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock_shared(7); return null; end $$",
        "create constraint trigger flipped after update on capabilities deferrable initially deferred for each row execute function wait_here()",
    ] {
        s.db.exec(sql).await;
    }
    let mut gate = s.db.pool.begin().await.expect("a transaction");
    sqlx::query("select pg_advisory_xact_lock(7)")
        .execute(&mut *gate)
        .await
        .expect("the lock");
    let meanwhile = async {
        wait_until("the flip is written", SOON, async || {
            let waiting: i64 =
                s.db.one("select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'")
                    .await;
            (waiting == 1).then_some(())
        })
        .await;
        s.texts(&s.ann, &["a text"]).await;
        until_open(&provider, 1).await;
        gate.commit().await.expect("nothing was written");
    };
    tokio::join!(s.off(&["--now"]), meanwhile);
    until_open(&provider, 0).await;
    s.until_count(
        "it is held, uncharged",
        1,
        "jobs where kind = 'embed' and status = 'waiting' and charged = 0",
        SOON,
    )
    .await;
    s.two_beats().await;
    assert_eq!(provider.calls().len(), 1);
}

/// The same moment from two sides: a settlement that widens the ramp, and an operator who ends it.
#[tokio::test(flavor = "multi_thread")]
async fn b20_b22_off_now_and_a_settlement_on_a_ramp_do_not_wait_for_each_other() {
    let s = Stage::set().await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    s.off(&["--quiet"]).await;
    s.texts(&s.ann, &numbered("text", 4)).await;
    let _workers = s.workers(1, 2).await;
    provider.rule(Rule::all().then(Action::hold("gate")));
    s.on(&[]).await;
    until_open(&provider, 1).await;
    let waits = async |who: &str, n: usize| {
        wait_until(&format!("{who} waits for the breaker's row"), SOON, async || {
            let waiting: Vec<String> =
                sqlx::query_scalar("select query from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
                    .fetch_all(&s.db.pool)
                    .await
                    .expect("who waits");
            if waiting.len() == n { Ok(()) } else { Err(waiting) }
        })
        .await;
    };
    let mut busy = s.db.pool.begin().await.expect("a transaction");
    sqlx::query("select from capabilities where name = 'embedding' for update")
        .execute(&mut *busy)
        .await
        .expect("the row");
    waits("who looks whether one more may be taken", 1).await;
    let off = async {
        let args = ["breaker", "off", "embedding", "--reason", "in an emergency", "--now", "--yes"];
        s.steadfast(&args).await
    };
    let meanwhile = async {
        waits("the operator", 2).await;
        provider.release("gate");
        waits("the settlement", 3).await;
        busy.commit().await.expect("it only looked");
    };
    let (off, ()) = tokio::join!(off, meanwhile);
    assert_eq!(off.code, Some(0), "{off}");
    assert!(!s.breaker(None).await.enabled);
    s.until_embedded(1).await;
    let rings: i64 =
        s.db.one("select deadlocks from pg_stat_database where datname = current_database()")
            .await;
    assert_eq!(rings, 0, "Postgres had to break a ring of waiters");
}

#[tokio::test(flavor = "multi_thread")]
async fn p5_p6_fifty_refusals_at_once_are_one_flip_with_the_first_reason_and_a_count_of_fifty() {
    let s = Stage::set().await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    let texts = numbered("text", 50);
    for (n, text) in texts.iter().enumerate() {
        let own = Action::hold_then("all at once", refusal(&format!("refused with number {n:02}")));
        provider.rule(Rule::text(text).then(own));
    }
    s.texts(&s.ann, &texts).await;
    let _workers = s.workers(4, 13).await;
    until_open(&provider, 50).await;
    provider.release("all at once");
    let first = s.until_off(None).await;
    s.until_count(
        "all have come back",
        50,
        "jobs where kind = 'embed' and status = 'waiting' and attempts = 1",
        SOON,
    )
    .await;
    let last = s.breaker(None).await;
    assert_eq!(last.failure_count, 50);
    assert_eq!(
        (&last.reason, &last.changed_by, last.epoch),
        (&first.reason, &Some("system".to_owned()), first.epoch)
    );
    let reason = last.reason.expect("a reason");
    assert!(reason.contains("refused with number"), "{reason}");
    let incidents: Vec<(String, i64, Vec<String>)> = sqlx::query_as("select reason, failure_count, endpoints from incidents")
        .fetch_all(&s.db.pool)
        .await
        .expect("incidents");
    assert_eq!(incidents, [(reason.clone(), 50, vec!["vectors".to_owned()])]);
    assert_eq!(s.endpoint("vectors").await.reason, Some(reason));
    assert_eq!(s.history().await, ["vectors: off by system", "off by system"], "one change of each");
    assert_eq!(s.count("jobs where charged > 0").await, 0);
    assert_eq!(provider.calls().len(), 50, "nobody had to confirm what nobody had contradicted");
}

// ── Coming back ──────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn b22_held_work_comes_back_by_one_two_four_and_eight_and_questions_do_not_wait() {
    let s = Stage::set().await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    provider.rule(Rule::text("question").then(Action::Normal));
    provider.rule(Rule::all().then(Action::hold("gate")));
    let _workers = s.workers(4, 4).await;
    s.off(&[]).await;
    s.texts(&s.ann, &numbered("text", 64)).await;
    s.two_beats().await;
    assert_eq!(provider.calls().len(), 0);

    s.on(&[]).await;
    let mut done = 0;
    for limit in [1_usize, 2, 4, 8, 16] {
        until_open(&provider, limit).await;
        s.two_beats().await;
        assert_eq!(open(&provider.calls()).len(), limit);
        assert_eq!(provider.max_concurrency(), limit, "never one more");
        let ramp = s.breaker(None).await.ramp_limit;
        assert_eq!(ramp, i32::try_from(limit).ok().filter(|l| *l < 16), "all places: no ramp any more");
        if limit == 1 {
            let asked = Instant::now();
            let said = Said::by(&s.client().search("a question meanwhile").await);
            assert!(
                !said.codes.contains("question_embed_busy") && said.unavailable.is_empty(),
                "{said:?} after {:?}",
                asked.elapsed()
            );
            assert!(provider.completed("question") == 1 && asked.elapsed() < POLLS);
            assert_eq!(open(&provider.calls()).len(), 1, "and it has not moved the ramp");
        }
        provider.forget();
        provider.release("gate");
        done += i64::try_from(limit).expect("small");
        s.until_embedded(done).await;
    }

    // Skipped: from the beginning, and half-way.
    for skip in ["from the beginning", "half-way"] {
        s.off(&["--now"]).await;
        until_open(&provider, 0).await;
        if skip == "half-way" {
            s.on(&[]).await;
            until_open(&provider, 1).await;
        }
        s.on(&["--full"]).await;
        until_open(&provider, 16).await;
    }
    provider.clear_rules();
    provider.release("gate");
    s.until_embedded(64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b22_trouble_on_the_way_halves_the_ramp_and_a_refusal_ends_it_with_one_call() {
    let s = Stage::set().await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    let texts = numbered("text", 60);
    // 1, then 2 and 3, then 4 to 7: of these 4 meets an outage, and of the next ones 8 a rate limit.
    provider.rule(Rule::text(CONTROL).then(Action::Normal));
    provider.rule(
        Rule::text(&texts[3])
            .times(1)
            .then(Action::hold_then("trouble", Fixture::ServiceUnavailable)),
    );
    provider.rule(
        Rule::text(&texts[7])
            .times(1)
            .then(Action::hold_then("trouble", Fixture::TooManyRequests)),
    );
    for text in &texts {
        provider.rule(Rule::text(text).then(Action::hold(text)));
    }
    let _workers = s.workers(4, 4).await;
    s.off(&[]).await;
    s.texts(&s.ann, &texts).await;
    s.on(&[]).await;
    let until_limit = async |n: i32| {
        wait_until(&format!("the limit is {n}"), SOON, async || {
            match s.breaker(None).await.ramp_limit {
                Some(limit) if limit == n => Ok(()),
                other => Err(other),
            }
        })
        .await;
    };
    for limit in [1, 2] {
        for text in until_open(&provider, limit).await {
            provider.release(&text);
        }
    }
    assert_eq!(until_open(&provider, 4).await, texts[3..7]);

    provider.release("trouble");
    until_limit(2).await;
    wait_until("the endpoint is well again", SOON, async || {
        match s.endpoint("vectors").await.outage_streak {
            0 if provider.completed(CONTROL) > 0 => Ok(()),
            n => Err(n),
        }
    })
    .await;
    s.two_beats().await;
    assert_eq!(open(&provider.calls()), texts[4..7], "three are more than two: nobody follows");
    provider.release(&texts[4]);
    s.two_beats().await;
    assert_eq!(open(&provider.calls()), texts[5..7], "two are two");
    provider.release(&texts[5]);
    // Three new ones beside the one that is left: the one that failed is due later than those.
    until_limit(4).await;
    assert_eq!(until_open(&provider, 4).await, texts[6..10]);
    provider.release("trouble");
    until_limit(2).await;
    assert_eq!(s.count("jobs where charged > 0 and status = 'waiting'").await, 0);

    // The key goes bad: the work that is under way is given up, and the next attempt is one call.
    s.off(&["--now"]).await;
    until_open(&provider, 0).await;
    provider.clear_rules();
    provider.rule(Rule::all().then(Fixture::InvalidKey));
    provider.forget();
    s.on(&[]).await;
    let off = s.until_off(None).await;
    assert_eq!(off.changed_by.as_deref(), Some("system"));
    s.two_beats().await;
    assert_eq!(provider.calls().len(), 1, "the canary");
    assert_eq!(s.count("incidents").await, 1, "it is the same incident still");
}

#[tokio::test(flavor = "multi_thread")]
async fn b22_two_tenants_take_turns_on_a_ramp_however_old_the_ones_work_is() {
    let s = Stage::set().await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    provider.rule(Rule::all().then(Action::hold("gate")));
    let (tom, uma) = (s.db.person_of("T", "tom").await, s.db.person_of("U", "uma").await);
    let _workers = s.workers(4, 4).await;
    s.off(&[]).await;
    s.texts(&tom, &numbered("TOM", 20)).await;
    s.texts(&uma, &numbered("UMA", 20)).await;
    s.on(&[]).await;
    let mut served = (0_i32, 0_i32);
    for limit in [1, 2, 4, 8] {
        for text in until_open(&provider, limit).await {
            if text.starts_with("TOM") { served.0 += 1 } else { served.1 += 1 }
        }
        assert_eq!(served.0 - served.1, 1, "TOM, UMA, TOM, UMA … up to {limit} at once: {served:?}");
        provider.release("gate");
    }
}

// ── Too slow ─────────────────────────────────────────────────────────────────────────────────────────────────────────

async fn limit_of_a_call(s: &Stage, limit: Duration) {
    s.db.exec(&format!("update endpoints set timeout_ms = {}", limit.as_millis())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_b2_a_text_that_hangs_beside_a_healthy_endpoint_is_called_three_times_and_set_aside() {
    let s = Stage::at_pace(Duration::from_secs(1), &[("STEADFAST_ITEM_BACKOFF", "300ms")]).await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    limit_of_a_call(&s, Duration::from_millis(300)).await;
    provider.rule(Rule::text("SLOW").then(Action::Hang { at: At::BeforeHeaders }));
    let slow = s.texts(&s.ann, &["a SLOW text"]).await[0];
    let good = s.texts(&s.ann, &numbered("good text", 5)).await;
    let _workers = s.workers(2, 4).await;
    let mut counted = Vec::new();
    for n in 1..=3_usize {
        let call = provider
            .wait_record("the next call", |calls| calls.iter().filter(|c| c.has("SLOW")).nth(n - 1).cloned())
            .await;
        counted.push(s.db.job(slow).await.expect("it runs").timeouts_in_row);
        // What the last timeout was is decided by a control text, and only then does the next call come.
        let between = |c: &&Call| is_control(c) && c.completed() && c.seq < call.seq;
        assert_eq!(provider.calls().iter().filter(between).count(), n - 1, "{:#?}", provider.calls());
    }
    assert_eq!(counted, [0, 1, 2]);
    wait_until("it is set aside", SOON, async || {
        let job = s.db.job(slow).await.expect("it stays");
        if job.status == "parked" { Ok(()) } else { Err(job) }
    })
    .await;
    let job = s.db.job(slow).await.expect("it stays");
    assert_eq!(
        (job.last_class.as_deref(), job.timeouts_in_row, job.attempts, job.charged),
        (Some("too_slow"), 3, 3, 0),
        "{job:?}"
    );
    for id in good {
        assert_eq!(s.db.status(id).await, "done");
    }
    s.two_beats().await;
    assert_eq!(provider.calls_for("SLOW").len(), 3);
    assert!(
        provider.calls_for("SLOW").iter().all(|c| c.outcome == Outcome::Cancelled),
        "each was hung up on"
    );
    assert_eq!(s.history().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_a_timeout_is_nobodys_while_the_control_text_does_not_pass_either() {
    let s = Stage::at_pace(Duration::from_secs(1), &[("STEADFAST_ITEM_BACKOFF", "300ms")]).await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    limit_of_a_call(&s, Duration::from_millis(300)).await;
    provider.rule(Rule::all().then(Action::Hang { at: At::BeforeHeaders }));
    let texts = numbered("text", 6);
    s.texts(&s.ann, &texts).await;
    let _workers = s.workers(2, 3).await;
    wait_until("three probes have failed", SOON, async || {
        match s.endpoint("vectors").await.outage_streak {
            n if n >= 4 => Ok(()),
            n => Err(n),
        }
    })
    .await;
    let jobs: Vec<(String, i32, i32, String)> =
        sqlx::query_as("select status, timeouts_in_row, charged, last_class from jobs where kind = 'embed'")
            .fetch_all(&s.db.pool)
            .await
            .expect("the jobs");
    assert_eq!(jobs, vec![("waiting".to_owned(), 0, 0, "outage".to_owned()); 6]);
    assert_eq!(work(&provider).len(), 6, "each was tried once");

    // And the one text that really hangs has three calls of its own beside that one.
    provider.clear_rules();
    provider.rule(Rule::text(&texts[5]).then(Action::Hang { at: At::BeforeHeaders }));
    s.until_embedded(5).await;
    s.until_count(
        "it is set aside",
        1,
        "jobs where status = 'parked' and last_class = 'too_slow'",
        SOON,
    )
    .await;
    assert_eq!(provider.calls_for(&texts[5]).len(), 4);
    for text in &texts[..5] {
        assert_eq!(provider.completed(text), 1, "{text}");
    }
}

/// The verdict comes by whatever answer is the next: by a neighbour's, perhaps before the timeout itself is written.
#[tokio::test(flavor = "multi_thread")]
async fn d3_b2_a_neighbours_answer_between_a_timeout_and_its_settlement_is_a_verdict_too() {
    let s = Stage::at_pace(
        Duration::from_secs(1),
        &[
            ("STEADFAST_ITEM_BACKOFF", "300ms"),
            ("STEADFAST_LEASE", "30s"),
            ("STEADFAST_RENEW", "10s"),
        ],
    )
    .await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    limit_of_a_call(&s, Duration::from_millis(1000)).await;
    provider.rule(Rule::text("SLOW").then(Action::Hang { at: At::BeforeHeaders }));
    for n in 1..=3 {
        provider.rule(Rule::text(format!("neighbour {n}")).then(Action::hold(format!("neighbour {n}"))));
    }
    let slow = s.texts(&s.ann, &["a SLOW text"]).await[0];
    let _workers = s.workers(1, 4).await;
    for n in 1..=3_usize {
        let calls = provider
            .wait_record("the next call", |calls| {
                Some(calls.iter().filter(|c| c.has("SLOW")).count()).filter(|k| *k == n)
            })
            .await;
        assert_eq!(
            (calls, s.db.job(slow).await.expect("it runs").timeouts_in_row),
            (n, i32::try_from(n - 1).expect("small"))
        );
        // Half a limit later, so that its own has not passed when it answers.
        let began = Instant::now();
        wait_until("half its time is over", SOON, async || {
            (began.elapsed() > Duration::from_millis(500)).then_some(())
        })
        .await;
        s.texts(&s.ann, &[format!("neighbour {n}")]).await;
        until_open(&provider, 2).await;
        // Whoever looks at the job holds its settlement up for a moment.
        let mut looking = s.db.pool.begin().await.expect("a transaction");
        sqlx::query("select from jobs where id = $1 for update")
            .bind(slow)
            .execute(&mut *looking)
            .await
            .expect("the row");
        wait_until("the timeout is known", SOON, async || {
            match s.endpoint("vectors").await.outage_streak {
                0 => None,
                n => Some(n),
            }
        })
        .await;
        provider.release(&format!("neighbour {n}"));
        wait_until("the endpoint has answered", SOON, async || {
            match s.endpoint("vectors").await.outage_streak {
                0 => Ok(()),
                n => Err(n),
            }
        })
        .await;
        looking.commit().await.expect("it only looked");
    }
    s.until_count(
        "it is set aside",
        1,
        "jobs where status = 'parked' and last_class = 'too_slow'",
        SOON,
    )
    .await;
    s.two_beats().await;
    assert_eq!(provider.calls_for("SLOW").len(), 3);
    s.until_embedded(3).await;
}

// ── Never silently ───────────────────────────────────────────────────────────────────────────────────────────────────

/// How long a question waits for its vector in the matrix.
const QUESTION: Duration = Duration::from_millis(1500);

/// One row of the matrix: what an answer must say of a fault.
struct Row<'a> {
    fault: &'a str,
    /// The reason of the first question, which meets the fault, and of the next ones, which find it known.
    codes: [&'a str; 2],
    unavailable: &'a [&'a str],
    /// Whether the semantic half goes on.
    meaning: bool,
    /// Whether something else was stopped on purpose: only of what was, there is a sentence for a person.
    stopped: bool,
}

impl<'a> Row<'a> {
    fn without_meaning(fault: &'a str, codes: [&'a str; 2]) -> Self {
        Self {
            fault,
            codes,
            unavailable: &["embedding"],
            meaning: false,
            stopped: false,
        }
    }

    fn of_items(fault: &'a str, code: &'a str) -> Self {
        Self {
            fault,
            codes: [code, code],
            unavailable: &[],
            meaning: true,
            stopped: false,
        }
    }
}

/// Somebody who asks a new question each time: a vector that is known from before would hide the fault.
struct Asker {
    client: Client,
    name: &'static str,
    asked: u32,
}

impl Asker {
    fn new(name: &'static str, client: Client) -> Self {
        Self { client, name, asked: 0 }
    }

    async fn ask(&mut self, path: &str, more: &str) -> Answer {
        self.asked += 1;
        let began = Instant::now();
        let answer = self
            .client
            .get(&format!("{path}?query=lighthouse+{}+{}{more}", self.name, self.asked))
            .await;
        let took = began.elapsed();
        assert!(took < QUESTION + POLLS, "{took:?}: {answer}");
        answer
    }

    async fn search(&mut self) -> Said {
        Said::by(&self.ask("/api/v1/search", "").await)
    }

    /// Search, transcript search and a caller who wants meaning or nothing, all under the fault.
    async fn meets(&mut self, row: &Row<'_>) {
        let mut codes = Vec::new();
        for code in row.codes {
            let said = self.search().await;
            let fault = format!("{}: {said:?}", row.fault);
            assert!(said.degraded, "{fault}");
            assert_eq!(said.codes, BTreeSet::from([code.to_owned()]), "{fault}");
            assert_eq!(said.unavailable, row.unavailable, "{fault}");
            assert_eq!(said.notice.is_some(), code == "stopped" || row.stopped, "{fault}");
            assert!(said.found > 0, "{fault}");
            assert!(
                said.paths.contains("keyword") && said.paths.contains("vector") == row.meaning,
                "{fault}"
            );
            codes.push(code);
        }
        let transcript = self.ask("/api/v1/transcript/search", "").await;
        let required = self.ask("/api/v1/search", "&require=semantic").await;
        for answer in [transcript, required] {
            if row.meaning {
                assert!(Said::by(&answer).degraded, "{}: {answer}", row.fault);
            } else {
                // Nothing can match: not the same as nothing matched.
                assert_eq!(
                    (answer.status, &answer.json["error"]["code"]),
                    (503, &json!("SEMANTIC_UNAVAILABLE")),
                    "{}: {answer}",
                    row.fault
                );
                assert!(answer.headers.contains_key("retry-after"), "{}: {answer}", row.fault);
            }
        }
        println!("{:<40} {}", row.fault, codes.join(", then "));
    }

    async fn whole(&mut self, when: &str) {
        wait_until(&format!("answers are whole {when}"), SOON, async || {
            let said = self.search().await;
            if said.whole() && said.paths.len() == 2 { Ok(()) } else { Err(said) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p23_p24_p34_b46_no_answer_falls_back_silently_whatever_is_broken() {
    let s = Stage::at_pace(
        Duration::from_secs(1),
        &[
            ("STEADFAST_QUESTION_TIMEOUT", "1500ms"),
            // What is known of a fault stays known until the story forgets it.
            ("STEADFAST_ENDPOINT_BACKOFF", "10m"),
            ("STEADFAST_ENDPOINT_BACKOFF_CAP", "1h"),
            ("STEADFAST_RATE_LIMIT_WAIT", "60s"),
            ("STEADFAST_EVIDENCE", "60s"),
            ("STEADFAST_ITEM_BACKOFF", "50ms"),
        ],
    )
    .await;
    let (provider, ocr) = (Provider::start(), Provider::start());
    s.embeds("vectors", 1, &provider).await;
    s.db.ocr_endpoint("reader", &ocr).await;
    s.db.exec("update endpoints set enabled = false where protocol = 'minilm'").await;
    let start = async || {
        s.fleet
            .worker_with(Opts::new().kinds("extract,ocr,embed,question,fan_out").concurrency(3))
            .await
    };
    let mut worker = start().await;

    let said = |text: &str, who: &Person| json!({"text": text, "spaceIds": [who.space_id.to_string()], "conversationId": "evening"});
    let (bob, tom, sue) = (
        s.db.person("bob").await,
        s.db.person_of("T", "tom").await,
        s.db.person_of("suspended", "sue").await,
    );
    let mut ann = Asker::new("ann", s.client());
    let mut bob = Asker::new("robert", {
        let client = s.api.client(&bob);
        assert_eq!(
            client
                .post("/api/v1/remember", &said("bob was at the lighthouse too", &bob))
                .await
                .status,
            202
        );
        client
    });
    let mut tom = Asker::new("tom", {
        let client = s.api.client(&tom);
        assert_eq!(
            client
                .post("/api/v1/remember", &said("another house's lighthouse", &tom))
                .await
                .status,
            202
        );
        client
    });
    for text in [
        "the lighthouse keeper slept through the storm",
        "no ship saw the lighthouse that night",
    ] {
        assert_eq!(ann.client.post("/api/v1/remember", &said(text, &s.ann)).await.status, 202);
    }
    s.until_embedded(4).await;
    let forget = async || {
        s.db.exec("update endpoints set due_at = '-infinity', outage_streak = 0").await;
        s.db.exec("update jobs set avail_at = now() where status = 'waiting'").await;
    };

    // The rig can show a whole answer, and an empty one that is whole.
    for asker in [&mut ann, &mut bob, &mut tom] {
        asker.whole("before all").await;
    }
    let found = ann.ask("/api/v1/transcript/search", "").await;
    assert!(
        found.status == 200 && found.json["results"].as_array().is_some_and(|r| r.len() == 2),
        "{found}"
    );
    let nothing = ann.ask("/api/v1/transcript/search", "&conversationId=morning").await;
    assert!(Said::by(&nothing).whole() && nothing.json["results"] == json!([]), "{nothing}");
    assert_eq!(ann.ask("/api/v1/search", "&require=semantic").await.status, 200);

    // What the provider can do.
    let faults: [(&str, Action, [&str; 2]); 10] = [
        ("key refused", Fixture::InvalidKey.into(), ["question_refused", "stopped"]),
        (
            "model refused",
            Fixture::ModelNotFound.into(),
            ["question_timeout", "question_timeout"],
        ),
        ("no money", Fixture::PaymentRequired.into(), ["question_refused", "stopped"]),
        ("not available", Fixture::ServiceUnavailable.into(), ["question_outage", "outage"]),
        (
            "too many requests",
            Fixture::TooManyRequests.into(),
            ["question_rate_limited", "rate_limited"],
        ),
        (
            "silence",
            Action::Hang { at: At::BeforeHeaders },
            ["question_timeout", "question_timeout"],
        ),
        (
            "half an answer",
            Action::Hang { at: At::MidBody },
            ["question_timeout", "question_timeout"],
        ),
        (
            "connection reset",
            Action::Reset { at: At::BeforeHeaders },
            ["question_outage", "outage"],
        ),
        (
            "a page of HTML",
            Fixture::HtmlOk.into(),
            ["question_invalid_output", "question_invalid_output"],
        ),
        ("too slow", Action::Slow { ms: 60_000 }, ["question_timeout", "question_timeout"]),
    ];
    for (fault, action, codes) in faults {
        provider.rule(Rule::all().then(action));
        ann.meets(&Row::without_meaning(fault, codes)).await;
        provider.clear_rules();
        forget().await;
        s.on(&["--full"]).await;
        ann.whole(&format!("after \"{fault}\"")).await;
    }
    provider.mode(Mode::Refuse).await;
    ann.meets(&Row::without_meaning("nobody listens", ["question_outage", "outage"]))
        .await;
    provider.mode(Mode::Open).await;
    forget().await;
    ann.whole("when somebody listens again").await;

    // What an operator can do.
    s.off(&[]).await;
    let before = provider.calls().len();
    ann.meets(&Row::without_meaning("breaker off", ["stopped", "stopped"])).await;
    assert_eq!(provider.calls().len(), before, "nobody tried, so nothing failed");
    s.on(&["--full"]).await;
    ann.whole("after the breaker").await;
    let tenant = s.db.one::<i64>("select id from tenants where name = 'T'").await.to_string();
    s.off(&["--tenant", &tenant]).await;
    tom.meets(&Row::without_meaning("the tenant's breaker off", ["stopped", "stopped"]))
        .await;
    ann.whole("while another tenant is stopped").await;
    s.on(&["--tenant", &tenant, "--full"]).await;
    tom.whole("after the tenant's breaker").await;
    s.operator(&["endpoint", "off", "vectors", "--reason", "maintenance", "--yes"])
        .await;
    ann.meets(&Row::without_meaning("endpoint off", ["no_endpoint", "no_endpoint"]))
        .await;
    s.operator(&["endpoint", "on", "vectors"]).await;
    ann.whole("after the endpoint").await;
    s.operator(&["endpoint", "rm", "vectors", "--yes"]).await;
    ann.meets(&Row::without_meaning("endpoint removed", ["no_endpoint", "no_endpoint"]))
        .await;
    let url = provider.url();
    let set = [
        "endpoint",
        "set",
        "vectors",
        "--capability",
        "embedding",
        "--protocol",
        "openai",
        "--url",
        &url,
        "--model",
        "scripted",
    ];
    let trusted = |n: &'static str| [&set[..], &["--dims", "384", "--rank", "1", "--batch", "1", "--trust", n]].concat();
    s.operator(&trusted("0")).await;
    ann.meets(&Row::without_meaning("endpoint not trusted", ["no_endpoint", "no_endpoint"]))
        .await;
    s.operator(&trusted("3")).await;
    ann.whole("when it is trusted again").await;

    // What becomes of the caller's own material; of nobody else's.
    provider.rule(Rule::text("BAD").then(Fixture::BadRequest));
    provider.rule(Rule::text("LONG").then(Fixture::ExceedContextSize));
    provider.rule(Rule::text("LATER").then(Action::hold("later")));
    for (text, status) in [("BAD", "dead"), ("LONG", "parked")] {
        let job = s.texts(&s.ann, &[format!("a {text} lighthouse")]).await[0];
        wait_until("its budget is spent, or it is set aside", SOON, async || {
            match s.db.status(job).await {
                found if found == status => Ok(()),
                other => Err(other),
            }
        })
        .await;
        ann.meets(&Row::of_items(&format!("{status} items"), status)).await;
        bob.whole("for somebody else").await;
        s.db.exec(&format!(
            "delete from blocks where id = (select item_id from jobs where id = {job})"
        ))
        .await;
        s.db.exec(&format!("delete from jobs where id = {job}")).await;
        ann.whole(&format!("without {status} items")).await;
    }
    let later = s.texts(&s.ann, &["a LATER lighthouse"]).await[0];
    until_open(&provider, 1).await;
    ann.whole("while something is on its way").await;
    let older = async |job: i64| {
        let sql = format!("update jobs set created_at = now() - interval '31 seconds' where id = {job}");
        s.db.exec(&sql).await;
    };
    older(later).await;
    ann.meets(&Row::of_items("items behind", "behind")).await;
    bob.whole("for somebody else").await;
    provider.release("later");
    ann.whole("when it has come").await;
    s.db.exec(
        "update blocks set embedding_model = 'older' where id = (select min(id) from blocks where content like 'the lighthouse keeper%')",
    )
    .await;
    ann.meets(&Row::of_items("vectors of another model", "reindexing")).await;
    s.db.exec("update blocks set embedding_model = 'scripted'").await;
    ann.whole("when all are of one model").await;

    // The other capability.
    let scan = std::fs::read(SCAN).expect("the sample scan");
    let scanned = async |name: &str| -> i64 {
        let added = s.client().upload(scan.clone(), name).await;
        assert_eq!(added.status, 202, "{added}");
        wait_until("the page waits for OCR", SOON, async || {
            let id: i64 =
                s.db.one("select coalesce(max(id), 0) from jobs where kind = 'ocr' and status = 'waiting'")
                    .await;
            (id > 0).then_some(id)
        })
        .await
    };
    s.operator(&["breaker", "off", "ocr", "--reason", "a story's reason", "--yes"])
        .await;
    scanned("held.png").await;
    let held = Row {
        unavailable: &["ocr"],
        stopped: true,
        ..Row::of_items("OCR off, a scan held", "held")
    };
    ann.meets(&held).await;
    let others = bob.search().await;
    assert!(
        !others.degraded && others.unavailable == ["ocr"],
        "nothing of his is held, and scans cannot be read: {others:?}"
    );
    s.operator(&["breaker", "on", "ocr", "--full"]).await;
    ann.whole("when the scan is read").await;
    ocr.rule(Rule::all().on(Route::Ocr).then(Fixture::ServiceUnavailable));
    let behind = scanned("behind.png").await;
    wait_until("the reader is known to be away", SOON, async || {
        match s.endpoint("reader").await.outage_streak {
            0 => None,
            n => Some(n),
        }
    })
    .await;
    older(behind).await;
    ann.meets(&Row::of_items("OCR away, a scan behind", "behind")).await;
    bob.whole("for somebody else").await;
    ocr.clear_rules();
    forget().await;
    ann.whole("when the reader is back").await;

    // Who works.
    worker.sigstop();
    ann.meets(&Row::without_meaning(
        "nobody has time",
        ["question_embed_busy", "question_embed_busy"],
    ))
    .await;
    worker.sigcont();
    ann.whole("when somebody has").await;
    s.db.exec("update tenants set state = 'suspended' where name = 'suspended'").await;
    s.texts(&sue, &["a lighthouse that nobody works for"]).await;
    let mut sue = Asker::new("sue", s.api.client(&sue));
    sue.meets(&Row::without_meaning(
        "the tenant is suspended",
        ["question_embed_busy", "question_embed_busy"],
    ))
    .await;
    worker.sigterm();
    assert!(worker.wait_exit().await.success());
    ann.meets(&Row::without_meaning("nobody works", ["no_worker", "no_worker"])).await;
    let _worker = start().await;
    ann.whole("when somebody does").await;
    s.operator(&["endpoint", "off", "vectors", "--reason", "the built-in one is as good", "--yes"])
        .await;
    s.operator(&["endpoint", "on", "minilm"]).await;
    ann.meets(&Row::without_meaning(
        "workers without the engine",
        ["question_embed_busy", "question_embed_busy"],
    ))
    .await;
    s.operator(&["endpoint", "on", "vectors"]).await;
    ann.whole("after all").await;
}

// ── Again ────────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn b13_p20_a_replay_gives_a_full_budget_and_changes_no_history() {
    let s = Stage::at_pace(Duration::from_secs(1), &[("STEADFAST_ITEM_BACKOFF", "50ms")]).await;
    let provider = Provider::start();
    s.embeds("vectors", 1, &provider).await;
    provider.rule(Rule::text("BAD").then(Fixture::BadRequest));
    let job = s.texts(&s.ann, &["a BAD text"]).await[0];
    let worker = s.workers(1, 1).await.remove(0);
    wait_until("its budget is spent", SOON, async || match s.db.status(job).await {
        dead if dead == "dead" => Ok(()),
        other => Err(other),
    })
    .await;
    let dead = s.db.job(job).await.expect("it stays");
    assert_eq!((dead.attempts, dead.charged, dead.item_fails), (5, 5, 5));
    let history = s.db.attempts(job).await;

    // Stopped, it is made due and held.
    s.off(&[]).await;
    let id = job.to_string();
    s.operator(&["jobs", "retry", &id, "--reason", "they have mended it"]).await;
    let again = s.db.job(job).await.expect("it waits");
    assert_eq!(
        (
            again.status.as_str(),
            again.attempts,
            again.forgiven,
            again.charged,
            again.item_fails
        ),
        ("waiting", 5, 5, 0, 0),
        "{again:?}"
    );
    s.two_beats().await;
    assert_eq!(provider.calls_for("BAD").len(), 5);
    assert_eq!(s.client().get(&format!("/api/v1/jobs/{id}")).await.json["status"], "queued");
    assert_eq!(s.db.attempts(job).await, history, "what was is not rewritten");
    let event: (String, String, String) =
        sqlx::query_as("select action, split_part(actor, '@', 1), reason from job_events where job_id = $1")
            .bind(job)
            .fetch_one(&s.db.pool)
            .await
            .expect("one event");
    assert!(
        event.0 == "retry" && !event.1.is_empty() && event.2 == "they have mended it",
        "{event:?}"
    );
    s.on(&["--full"]).await;
    // The whole budget again.
    wait_until("that budget is spent too", SOON, async || {
        match s.db.job(job).await.expect("it stays") {
            j if j.status == "dead" => Ok(()),
            other => Err(other),
        }
    })
    .await;
    let dead = s.db.job(job).await.expect("it stays");
    assert_eq!((dead.attempts, dead.forgiven, dead.charged), (10, 5, 5));
    provider.clear_rules();
    s.operator(&["jobs", "retry", &id, "--reason", "now they have"]).await;
    s.until_embedded(1).await;
    let (attempts, forgiven): (i32, i32) = sqlx::query_as("select attempts, forgiven from jobs_done where id = $1")
        .bind(job)
        .fetch_one(&s.db.pool)
        .await
        .expect("it is done");
    assert_eq!((attempts, forgiven), (11, 10));
    drop(worker);

    // What ends the same way again needs to be meant.
    let classes = ["item_error", "too_slow", "place_gone", "crash", "bad_input", "oversize"];
    let ids = s.texts(&s.ann, &classes).await;
    for (id, class) in ids.iter().zip(classes) {
        let status = if matches!(class, "too_slow" | "place_gone" | "oversize") {
            "parked"
        } else {
            "dead"
        };
        s.db.exec(&format!(
            "update jobs set status = '{status}', last_class = '{class}', attempts = 7, forgiven = 2, item_fails = 5, crashes = 3, timeouts_in_row = 3 where id = {id}"
        ))
        .await;
    }
    let state = async |id: i64| {
        let j = s.db.job(id).await.expect("it stays");
        (j.status, j.attempts, j.charged, j.item_fails, j.crashes, j.timeouts_in_row)
    };
    let client = s.client();
    let words: Vec<String> = ids.iter().map(i64::to_string).collect();
    let retry = |more: &[&str]| {
        let args: Vec<&str> = ["jobs", "retry", "--reason", "a story's reason"]
            .into_iter()
            .chain(words.iter().map(String::as_str))
            .collect();
        [&args[..], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let args = retry(&[]);
    let out = s.steadfast(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(out.code, Some(1), "{out}");
    for (id, class) in ids.iter().zip(classes) {
        let needs_force = matches!(class, "crash" | "bad_input" | "oversize");
        let untouched = (if class == "oversize" { "parked" } else { "dead" }.to_owned(), 7, 5, 5, 3, 3);
        let full = ("waiting".to_owned(), 7, 0, 0, 3, 0);
        assert_eq!(state(*id).await, if needs_force { untouched } else { full }, "{class}");
        assert_eq!(
            out.stderr.contains(&format!("job {id} was left alone")),
            needs_force,
            "{class}: {out}"
        );
        if needs_force {
            let path = format!("/api/v1/jobs/dead/{id}/replay");
            let answer = client.post(&path, &json!({"reason": "please"})).await;
            assert!(answer.status == 409 && answer.text.contains("force"), "{class}: {answer}");
        }
    }
    let path = format!("/api/v1/jobs/dead/{}/replay", ids[3]);
    let answer = client
        .send(
            client
                .request(Method::POST, &path)
                .json(&json!({"reason": "the new reader is in", "force": true})),
        )
        .await;
    assert_eq!(answer.status, 202, "{answer}");
    assert_eq!(
        state(ids[3]).await,
        ("waiting".to_owned(), 7, 0, 0, 0, 0),
        "crashes are forgotten only on purpose"
    );
    let args = retry(&["--force"]);
    s.operator(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for id in &ids[4..] {
        assert_eq!(state(*id).await, ("waiting".to_owned(), 7, 0, 0, 0, 0));
    }
    let by_user: Vec<(String, String)> = sqlx::query_as("select actor, reason from job_events where job_id = $1 and actor like 'user %'")
        .bind(ids[3])
        .fetch_all(&s.db.pool)
        .await
        .expect("events");
    assert_eq!(by_user, [(format!("user {}", s.ann.user_id), "the new reader is in".to_owned())]);
}
