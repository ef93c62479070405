//! The right to settle one attempt: who has it, who lost it, and what a process that dies, stops or leaves does to it.

use std::time::{Duration, Instant};

use steadfast_tests::harness::{Api, Db, Fleet, Opts, Person, Process, wait_until};
use steadfast_tests::provider::{Action, Provider, Route, Rule};

const SCAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/samples/contract-scan.png");
const SOON: Duration = Duration::from_secs(30);

/// A database, a provider that reads pages, an API, a person; nobody works yet.
struct Stage {
    db: Db,
    ocr: Provider,
    fleet: Fleet,
    api: Api,
    ann: Person,
}

impl Stage {
    async fn set() -> Self {
        let db = Db::new().await;
        let ocr = Provider::start();
        db.ocr_endpoint("reader", &ocr).await;
        let fleet = Fleet::new(&db);
        let api = fleet.api().await;
        let ann = db.person("ann").await;
        Self { db, ocr, fleet, api, ann }
    }

    /// Hands in a scan and waits until it is a page that waits for OCR; returns the `ocr` job.
    async fn scanned_page(&self) -> i64 {
        let mut taking_apart = self.fleet.worker_with(Opts::new().kinds("extract")).await;
        let answer = self
            .api
            .client(&self.ann)
            .upload(std::fs::read(SCAN).expect("the sample scan"), "contract.png")
            .await;
        assert_eq!(answer.status, 202, "{answer}");
        let job = wait_until("the page waits for OCR", SOON, async || self.ocr_job().await).await;
        taking_apart.sigterm();
        assert!(taking_apart.wait_exit().await.success());
        job
    }

    async fn ocr_job(&self) -> Option<i64> {
        let id: i64 = self.db.one("select coalesce(min(id), 0) from jobs where kind = 'ocr'").await;
        (id > 0).then_some(id)
    }

    async fn reader(&self) -> Process {
        self.fleet.worker_with(Opts::new().kinds("ocr").concurrency(1)).await
    }

    async fn blocks(&self) -> i64 {
        self.db.one("select count(*) from blocks").await
    }

    async fn late(&self) -> i64 {
        self.db.one("select sum(late_settle_count)::bigint from workers").await
    }

    async fn until_done(&self, job: i64) {
        wait_until("the job is done", Duration::from_secs(60), async || {
            match self.db.status(job).await {
                s if s == "done" => Ok(()),
                other => Err(other),
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p15_p17_a_worker_killed_in_mid_ocr_has_tried_and_the_job_runs_again_at_shipped_pace() {
    let s = Stage::set().await;
    let job = s.scanned_page().await;
    s.ocr.rule(Rule::nth(1).then(Action::hold("never")));
    let shipped = || Opts::new().kinds("ocr").concurrency(1).shipped_pace();
    let mut first = s.fleet.worker_with(shipped()).await;
    s.ocr.wait_calls(1).await;
    let row = s.db.job(job).await.expect("it runs");
    assert_eq!(
        (row.status.as_str(), row.attempts, row.claimed_by),
        ("running", 1, first.boot),
        "counted while it runs, not when it ends"
    );

    let _second = s.fleet.worker_with(shipped()).await;
    let killed = Instant::now();
    first.kill9().await;
    s.ocr.wait_calls(2).await;
    let took = killed.elapsed();
    s.until_done(job).await;
    // D25: within lease + sweep whatever happens; a free session lock makes it about five seconds.
    assert!(took < Duration::from_secs(35), "{took:?}");
    assert!(took < Duration::from_secs(8), "the free session lock was not noticed: {took:?}");
    println!("run again {took:?} after kill -9");
    assert_eq!(s.ocr.calls().iter().filter(|c| c.completed()).count(), 1, "done once");
    assert_eq!(s.blocks().await, 1);
    let attempts: i32 = s.db.one(&format!("select attempts from jobs_done where id = {job}")).await;
    assert_eq!(attempts, 2);
    let history = s.db.attempts(job).await;
    assert_eq!(
        (history.len(), history[0].class.as_str(), history[0].forgiven),
        (1, "crash", false),
        "{history:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn b31_a_worker_stopped_past_its_lease_settles_too_late_and_writes_nothing() {
    let s = Stage::set().await;
    let job = s.scanned_page().await;
    s.ocr.rule(Rule::all().on(Route::Ocr).times(1).then(Action::hold("first")));
    s.ocr.rule(Rule::all().on(Route::Ocr).times(1).then(Action::hold("second")));
    let first = s.reader().await;
    s.ocr.wait_calls(1).await;
    let _second = s.reader().await;
    first.sigstop();
    s.ocr.wait_calls(2).await;
    assert_eq!(s.db.job(job).await.expect("it runs again").attempts, 2);
    s.ocr.release("first");
    first.sigcont();
    wait_until("the late settlement is counted", SOON, async || match s.late().await {
        1 => Ok(()),
        n => Err(n),
    })
    .await;
    let row = s.db.job(job).await.expect("the second run goes on");
    assert_eq!((row.status.as_str(), row.attempts), ("running", 2), "the late one wrote nothing");
    assert_eq!(s.blocks().await, 0);
    s.ocr.release("second");
    s.until_done(job).await;
    assert_eq!(s.blocks().await, 1, "one run's text, once");
    assert_eq!(s.late().await, 1);
}

/// The fence itself: the late worker was never told, its settlement reaches the database while another attempt runs.
#[tokio::test(flavor = "multi_thread")]
async fn n56_a_settlement_is_fenced_by_job_and_attempt() {
    let s = Stage::set().await;
    let job = s.scanned_page().await;
    s.ocr.rule(Rule::all().on(Route::Ocr).times(1).then(Action::hold("first")));
    s.ocr.rule(Rule::all().on(Route::Ocr).times(1).then(Action::hold("second")));
    // Renews once in twenty minutes: nothing but the fence will tell it.
    let unaware = Opts::new()
        .kinds("ocr")
        .concurrency(1)
        .env("STEADFAST_LEASE", "1h")
        .env("STEADFAST_RENEW", "20m")
        .env("STEADFAST_POLL", "1h");
    let _unaware = s.fleet.worker_with(unaware).await;
    s.ocr.wait_calls(1).await;
    let _second = s.reader().await;
    s.db.exec(&format!("update jobs set avail_at = now() - interval '1 second' where id = {job}"))
        .await;
    s.ocr.wait_calls(2).await;
    s.ocr.release("first");
    wait_until("the fence refused it", SOON, async || match s.late().await {
        1 => Ok(()),
        n => Err(n),
    })
    .await;
    let row = s.db.job(job).await.expect("the second attempt's row is untouched");
    assert_eq!((row.status.as_str(), row.attempts), ("running", 2));
    assert_eq!(s.blocks().await, 0);
    s.ocr.release("second");
    s.until_done(job).await;
    assert_eq!(s.blocks().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn case4_p18_a_slow_but_live_run_is_not_stolen() {
    let s = Stage::set().await;
    let job = s.scanned_page().await;
    s.ocr.rule(Rule::nth(1).then(Action::hold("slow")));
    let _a = s.reader().await;
    s.ocr.wait_calls(1).await;
    let (_b, _c) = (s.reader().await, s.reader().await);
    // Lease 3 s: three of them have passed when the lease's end, renewed, lies nine seconds after the claim.
    wait_until("three leases have been renewed through", SOON, async || {
        let so_far: f64 =
            s.db.one(&format!(
                "select extract(epoch from avail_at - claimed_at)::float8 from jobs where id = {job}"
            ))
            .await;
        if so_far > 11.0 { Ok(()) } else { Err(so_far) }
    })
    .await;
    assert_eq!(s.db.job(job).await.expect("it runs").attempts, 1);
    s.ocr.release("slow");
    s.until_done(job).await;
    assert_eq!(s.ocr.calls().len(), 1, "sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn case7_b42_five_rolling_restarts_during_one_job_charge_nothing() {
    let s = Stage::set().await;
    let job = s.scanned_page().await;
    s.ocr.rule(Rule::all().on(Route::Ocr).times(5).then(Action::hold("never")));
    for restart in 1..=5 {
        let mut worker = s
            .fleet
            .worker_with(Opts::new().kinds("ocr").concurrency(1).env("STEADFAST_DRAIN", "100ms"))
            .await;
        s.ocr.wait_calls(restart).await;
        worker.sigterm();
        assert!(worker.wait_exit().await.success(), "an orderly stop");
        let row = s.db.job(job).await.expect("given back");
        let n = i32::try_from(restart).expect("small");
        assert_eq!((row.status.as_str(), row.attempts, row.charged), ("waiting", n, 0), "{row:?}");
    }
    let _worker = s.reader().await;
    s.until_done(job).await;
    let (attempts, forgiven): (i32, i32) = (
        s.db.one(&format!("select attempts from jobs_done where id = {job}")).await,
        s.db.one(&format!("select forgiven from jobs_done where id = {job}")).await,
    );
    assert_eq!((attempts, forgiven), (6, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn case8_a_verdict_that_comes_during_the_drain_is_kept() {
    let s = Stage::set().await;
    let job = s.scanned_page().await;
    s.ocr.rule(Rule::nth(1).then(Action::hold("verdict")));
    let mut worker = s
        .fleet
        .worker_with(Opts::new().kinds("ocr").concurrency(1).env("STEADFAST_DRAIN", "20s"))
        .await;
    s.ocr.wait_calls(1).await;
    worker.sigterm();
    wait_until("it stopped claiming", SOON, async || {
        worker.log().contains("stopping: no new claims").then_some(())
    })
    .await;
    s.ocr.release("verdict");
    assert!(worker.wait_exit().await.success());
    assert_eq!(s.db.status(job).await, "done");
    assert_eq!(s.db.one::<i64>("select count(*) from jobs where status = 'running'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn p19_case5_a_job_that_loses_three_workers_is_dead_and_visible_and_never_stuck() {
    let s = Stage::set().await;
    let job = s.scanned_page().await;
    s.ocr.rule(Rule::all().on(Route::Ocr).then(Action::hold("never")));
    for lost in 1..=3 {
        let mut worker = s.reader().await;
        s.ocr.wait_calls(lost).await;
        assert_eq!(s.db.job(job).await.expect("it runs").attempts, i32::try_from(lost).expect("small"));
        worker.kill9().await;
        // Somebody must live for the dead to be found.
        let mut heir = s.fleet.worker_with(Opts::new().kinds("noop")).await;
        wait_until("it has left running", SOON, async || match s.db.status(job).await {
            s if s != "running" => Ok(()),
            other => Err(other),
        })
        .await;
        heir.sigterm();
        heir.wait_exit().await;
    }
    let row = s.db.job(job).await.expect("dead rows stay");
    assert_eq!(
        (row.status.as_str(), row.crashes, row.last_class.as_deref()),
        ("dead", 3, Some("crash")),
        "{row:?}"
    );
    let page: String = s.db.one("select status from pages").await;
    assert_eq!(page, "failed", "the page says so too");
    assert_eq!(s.db.one::<String>("select status from documents").await, "failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn p14_c10_four_workers_claim_each_job_once() {
    let db = Db::new().await;
    let fleet = Fleet::new(&db);
    db.exec("insert into lines (kind, lane, tenant_id, level) values ('noop', 'batch', 1, 1)")
        .await;
    db.exec("insert into jobs (line_id, tenant_id, kind) select lines.id, 1, 'noop' from lines, generate_series(1, 5000)")
        .await;
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(fleet.worker_with(Opts::new().kinds("noop")).await);
    }
    wait_until("all are done", SOON, async || {
        match db.one::<i64>("select count(*) from jobs_done").await {
            5000 => Ok(()),
            n => Err(n),
        }
    })
    .await;
    assert_eq!(
        db.one::<i64>("select count(*) from jobs_done where attempts <> 1 or status <> 'done'")
            .await,
        0
    );
    assert_eq!(
        db.one::<i64>("select count(*) from jobs").await,
        0,
        "finished rows leave the live table"
    );
    assert_eq!(
        db.one::<i64>("select coalesce(sum(late_settle_count), 0)::bigint from workers")
            .await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn case35_a_kind_nobody_here_knows_is_left_alone_until_somebody_does() {
    let db = Db::new().await;
    let fleet = Fleet::new(&db);
    db.exec("insert into lines (kind, lane, tenant_id, level) values ('from_the_future', 'batch', 1, 1), ('noop', 'batch', 1, 1)")
        .await;
    let strange: i64 = db
        .one("insert into jobs (line_id, tenant_id, kind) select id, 1, kind from lines where kind = 'from_the_future' returning id")
        .await;
    let known: i64 = db
        .one("insert into jobs (line_id, tenant_id, kind) select id, 1, kind from lines where kind = 'noop' returning id")
        .await;
    let _worker = fleet.worker().await;
    wait_until("the known one is done", SOON, async || {
        (db.status(known).await == "done").then_some(())
    })
    .await;
    let row = db.job(strange).await.expect("untouched");
    assert_eq!((row.status.as_str(), row.attempts), ("waiting", 0));
    db.exec(&format!(
        "update jobs j set kind = 'noop', line_id = l.id from lines l where l.kind = 'noop' and j.id = {strange}"
    ))
    .await;
    wait_until("it runs once its kind is known", SOON, async || {
        (db.status(strange).await == "done").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case37_a_running_job_that_is_cancelled_stops_within_a_poll_and_says_so() {
    let s = Stage::set().await;
    let job = s.scanned_page().await;
    s.ocr.rule(Rule::all().on(Route::Ocr).then(Action::hold("never")));
    let _worker = s.reader().await;
    s.ocr.wait_calls(1).await;
    let asked = s
        .fleet
        .steadfast(
            &s.api,
            &s.ann,
            &["jobs", "cancel", &job.to_string(), "--yes", "--reason", "not wanted"],
        )
        .await;
    assert_eq!(asked.code, Some(0), "{asked}");
    wait_until("it is cancelled", SOON, async || match s.db.status(job).await {
        s if s == "cancelled" => Ok(()),
        other => Err(other),
    })
    .await;
    s.ocr.wait_for("the provider sees the call end", |c| c.out_ms.is_some()).await;
    assert_eq!(s.ocr.calls().len(), 1, "no further call");
    assert_eq!(s.blocks().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn b54_recurring_work_comes_round_once_whoever_looks() {
    let db = Db::new().await;
    let fleet = Fleet::new(&db);
    db.exec("update schedules set next_at = now() - interval '3 hours' where name = 'retention'")
        .await;
    let _a = fleet.worker().await;
    let _b = fleet.worker().await;
    wait_until("it was done", SOON, async || {
        match db.one::<i64>("select count(*) from jobs_done where kind = 'retention'").await {
            0 => None,
            n => Some(n),
        }
    })
    .await;
    let next: bool = db
        .one("select next_at > now() and next_at <= now() + every from schedules where name = 'retention'")
        .await;
    assert!(next, "missed rounds are not made up for, the next is the first to come");
    assert_eq!(
        db.one::<i64>("select (select count(*) from jobs where kind = 'retention') + count(*) from jobs_done where kind = 'retention'")
            .await,
        1
    );
}
