//! A job that kills the process it runs in: what it costs, who pays, and how it ends. The handlers here abort when a text asks for it
//! (`STEADFAST_FAULTS=on`), or the story kills them from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use steadfast_tests::harness::{Api, Db, Fleet, Opts, Person, Process, wait_until};
use steadfast_tests::provider::{Action, Outcome, Provider, Route, Rule};

/// Whoever is about to hand a text with this inside to an engine aborts.
const FAULT: &str = "steadfast-fault:abort";
const SCAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/samples/contract-scan.png");
const SOON: Duration = Duration::from_secs(30);
/// For a hundred jobs, dozens of them in processes of their own, beside other stories.
const LONG: Duration = Duration::from_secs(120);

/// A database, the scripted provider as the only one that embeds, a document to hang texts on; nobody works yet.
struct Stage {
    db: Db,
    provider: Provider,
    fleet: Fleet,
    ann: Person,
    document: i64,
}

impl Stage {
    /// `batch`: how many texts the endpoint takes at once.
    async fn set(batch: u32) -> Self {
        let db = Db::new().await;
        let provider = Provider::start();
        db.openai_endpoint("vectors", &provider, 384).await;
        db.exec("update endpoints set enabled = false where protocol = 'minilm'").await;
        db.exec(&format!("update endpoints set batch = {batch} where name = 'vectors'"))
            .await;
        let mut fleet = Fleet::new(&db);
        fleet.set("STEADFAST_FAULTS", "on");
        let ann = db.person("ann").await;
        let (tenant, user, space) = (ann.tenant_id, ann.user_id, ann.space_id);
        let document = db
            .one(&format!(
                "insert into documents (tenant_id, user_id, space_id, title, media_type, byte_count, sha256, blob_key)
                 values ({tenant}, {user}, {space}, 'story', 'text/plain', 1, '\\x00', 'none') returning id"
            ))
            .await;
        db.exec(&format!(
            "insert into lines (kind, lane, tenant_id, level, capability) values ('embed', 'batch', {tenant}, 1, 'embedding'), ('noop', 'batch', {tenant}, 1, null)"
        ))
        .await;
        Self {
            db,
            provider,
            fleet,
            ann,
            document,
        }
    }

    /// One `embed` job per text, oldest first. `crashes`: as if that many processes had died of each.
    async fn embed<S: AsRef<str>>(&self, texts: &[S], crashes: u32) -> Vec<i64> {
        let mut jobs = Vec::new();
        for text in texts {
            let (tenant, document, text) = (self.ann.tenant_id, self.document, text.as_ref());
            jobs.push(
                self.db
                    .one(&format!(
                        "with b as (insert into blocks (tenant_id, space_id, document_id, no, content, level)
                                    select {tenant}, {space}, {document}, count(*), '{text}', 1 from blocks returning id)
                         insert into jobs (line_id, tenant_id, kind, item_id, crashes, attempts)
                         select l.id, {tenant}, 'embed', b.id, {crashes}, {crashes} from b, lines l where l.kind = 'embed' returning id",
                        space = self.ann.space_id
                    ))
                    .await,
            );
        }
        jobs
    }

    async fn noop(&self, payload: &str, crashes: u32) -> i64 {
        self.db
            .one(&format!(
                "insert into jobs (line_id, tenant_id, kind, payload, crashes, attempts)
                 select id, tenant_id, 'noop', '{payload}', {crashes}, {crashes} from lines where kind = 'noop' returning id"
            ))
            .await
    }

    async fn embedder(&self, places: u32) -> Process {
        self.fleet.worker_with(Opts::new().kinds("embed").concurrency(places)).await
    }

    async fn until(&self, job: i64, wanted: &str) {
        wait_until(&format!("job {job} is {wanted}"), SOON, async || match self.db.status(job).await {
            s if s == wanted => Ok(()),
            _ => Err(self.db.job(job).await),
        })
        .await;
    }

    async fn until_all_are_done(&self, n: i64) {
        wait_until("all are done", SOON, async || {
            match self.db.one::<i64>("select count(*) from jobs_done where status = 'done'").await {
                done if done == n => Ok(()),
                done => Err(done),
            }
        })
        .await;
    }

    /// Waits until `n` crashes of the job are settled and it waits; checks that it is due in a minute; makes it due now.
    async fn crashed_and_due_in_a_minute(&self, job: i64, n: i32) {
        wait_until(&format!("crash {n} of job {job} is settled"), SOON, async || {
            match self.db.job(job).await {
                Some(j) if j.status == "waiting" && j.crashes == n => Ok(()),
                other => Err(other),
            }
        })
        .await;
        let due: f64 = self
            .db
            .one(&format!(
                "select extract(epoch from avail_at - now())::float8 from jobs where id = {job}"
            ))
            .await;
        assert!((30.0..=60.0).contains(&due), "due in a minute, not in {due} s");
        self.due_now(job).await;
    }

    async fn due_now(&self, job: i64) {
        self.db
            .exec(&format!("update jobs set avail_at = now() where id = {job} and status = 'waiting'"))
            .await;
    }

    /// Causes of the attempts that were lost, in their order; `(forgiven)` where nobody was charged.
    async fn causes(&self, job: i64) -> Vec<String> {
        let history = self.db.attempts(job).await;
        history
            .iter()
            .map(|a| {
                format!(
                    "{}/{}{}",
                    a.class,
                    a.cause.as_deref().unwrap_or("-"),
                    if a.forgiven { " (forgiven)" } else { "" }
                )
            })
            .collect()
    }
}

/// The isolated children of a worker.
fn isolated(worker: &Process) -> Vec<i32> {
    children(worker.pid())
        .into_iter()
        .filter(|pid| command_line(*pid).contains("run-child"))
        .collect()
}

fn children(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    lists
        .flat_map(|l| l.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<i32>>())
        .collect()
}

fn command_line(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
        .unwrap_or_default()
        .replace('\0', " ")
}

async fn one_isolated(worker: &Process) -> i32 {
    wait_until("a job runs in a process of its own", SOON, async || {
        match isolated(worker).as_slice() {
            [pid] => Ok(*pid),
            other => Err(other.to_vec()),
        }
    })
    .await
}

async fn gone(pid: i32) {
    wait_until(
        &format!("process {pid} is gone"),
        Duration::from_secs(10),
        async || match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) if !stat.contains(") Z ") => Err(stat),
            _ => Ok(()),
        },
    )
    .await;
}

fn kill9(pid: i32) {
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("it lives");
}

/// Workers under somebody who starts another one for each that dies.
struct Crew<'a> {
    fleet: &'a Fleet,
    opts: Opts,
    workers: Vec<Process>,
    deaths: usize,
}

impl<'a> Crew<'a> {
    async fn start(fleet: &'a Fleet, n: usize, opts: Opts) -> Self {
        let mut workers = Vec::new();
        for _ in 0..n {
            workers.push(fleet.worker_with(opts.clone()).await);
        }
        Self {
            fleet,
            opts,
            workers,
            deaths: 0,
        }
    }

    async fn tend(&mut self) {
        for worker in &mut self.workers {
            if !worker.is_alive() {
                self.deaths += 1;
                *worker = self.fleet.worker_with(self.opts.clone()).await;
            }
        }
    }
}

// ── SC8, the crash half ──────────────────────────────────────────────────────────────────────────────────────────────

/// 28 good texts are in flight on seven of eight places when the eighth takes the poison, with three good ones in its batch.
async fn a_poison_among_a_hundred(processes: usize, places: u32) {
    let s = Stage::set(4).await;
    let good: Vec<String> = (0..100).map(|n| format!("good-{n:03} is a text like any other")).collect();
    s.provider
        .rule(Rule::all().on(Route::Embeddings).then(Action::hold("first volley")));
    let mut jobs = s.embed(&good[..28], 0).await;
    let opts = Opts::new().kinds("embed").concurrency(places);
    let mut crew = Crew::start(&s.fleet, processes, opts).await;
    s.provider.wait_calls(7).await;
    let poison = s.embed(&[format!("poison {FAULT}")], 0).await[0];
    jobs.extend(s.embed(&good[28..], 0).await);
    wait_until("the first worker dies", SOON, async || {
        crew.tend().await;
        (crew.deaths > 0).then_some(())
    })
    .await;
    s.provider.clear_rules();
    s.provider.release_all();

    wait_until("the poison is dead and the others are done", LONG, async || {
        crew.tend().await;
        // Its minute of waiting, once it has been seen.
        s.db.exec(&format!(
            "update jobs set avail_at = now() where id = {poison} and status = 'waiting' and avail_at > now() + interval '30 seconds'"
        ))
        .await;
        let done: i64 = s.db.one("select count(*) from jobs_done where status = 'done'").await;
        match s.db.status(poison).await {
            dead if dead == "dead" && done == 100 => Ok(()),
            other => Err((other, done)),
        }
    })
    .await;
    crew.tend().await;
    assert_eq!(crew.deaths, 1, "three at most if isolation fails, one if it works");

    let row = s.db.job(poison).await.expect("dead rows stay");
    assert_eq!(
        (row.last_class.as_deref(), row.attempts, row.charged, row.crashes),
        (Some("crash"), 3, 3, 3),
        "{row:?}"
    );
    assert_eq!(
        s.causes(poison).await,
        ["crash/worker_lost", "crash/child_signal", "crash/child_signal"]
    );
    let mut twice = 0;
    for text in &good {
        let name = &text[..8];
        let calls = s.provider.calls_for(name).len();
        assert!(calls <= 2, "{name} was sent {calls} times for one kill");
        assert_eq!(s.provider.completed(name), 1, "{name}");
        twice += calls - 1;
    }
    assert!(
        twice >= 4 || processes > 1 && places == 1,
        "the dead worker held more than its poison: {twice}"
    );
    for job in jobs {
        let causes = s.causes(job).await;
        let charged = causes.iter().filter(|c| !c.ends_with("(forgiven)")).count();
        assert!(
            charged <= 1
                && causes
                    .iter()
                    .all(|c| c.starts_with("crash/worker_lost") || c.starts_with("preempted/")),
            "{job}: {causes:?}"
        );
    }
    assert_eq!(s.db.one::<i64>("select count(*) from jobs where status = 'running'").await, 0);

    let id = poison.to_string();
    let retry = |force: bool| {
        let mut args = vec!["jobs", "retry", &id, "--reason", "story"];
        args.extend(force.then_some("--force"));
        let (fleet, args) = (&s.fleet, args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
        async move {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            fleet.run("steadfast", &args, Opts::new()).await
        }
    };
    let refused = retry(false).await;
    assert!(refused.code == Some(1) && refused.stderr.contains("--force"), "{refused}");
    assert_eq!(s.db.status(poison).await, "dead");
    s.db.exec("update blocks set content = 'cured' where content like 'poison%'").await;
    let forced = retry(true).await;
    assert_eq!(forced.code, Some(0), "{forced}");
    s.until(poison, "done").await;
    assert_eq!(s.provider.completed("cured"), 1);
    crew.tend().await;
    assert_eq!(crew.deaths, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sc8_one_of_eight_workers_dies_of_a_poison_and_a_hundred_good_jobs_are_done() {
    a_poison_among_a_hundred(8, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sc8_one_of_two_workers_with_four_places_dies_of_a_poison_and_a_hundred_good_jobs_are_done() {
    a_poison_among_a_hundred(2, 4).await;
}

/// The call itself is what kills: whoever makes it is killed from outside, first the worker, then its child.
#[tokio::test(flavor = "multi_thread")]
async fn case5_b7_whoever_sends_one_text_is_killed_and_after_three_calls_it_is_dead() {
    let s = Stage::set(1).await;
    s.provider.rule(Rule::text("KILLME").then(Action::hold("never")));
    let bad = s.embed(&["KILLME"], 0).await[0];
    let opts = Opts::new().kinds("embed").concurrency(2);
    let mut crew = Crew::start(&s.fleet, 1, opts).await;
    s.provider.wait_calls(1).await;
    assert_eq!(
        s.db.job(bad).await.expect("it runs").attempts,
        1,
        "counted before anything is recovered"
    );
    let good = s.embed(&(0..20).map(|n| format!("good-{n:02}")).collect::<Vec<_>>(), 0).await;
    s.until_all_are_done(20).await;
    crew.workers[0].kill9().await;
    crew.tend().await;

    for crash in 2..=3 {
        wait_until("it is sent again", SOON, async || {
            let calls = s.provider.calls_for("KILLME").len();
            if calls == crash { Ok(()) } else { Err(calls) }
        })
        .await;
        let child = one_isolated(&crew.workers[0]).await;
        let killed = Instant::now();
        kill9(child);
        if crash == 2 {
            s.crashed_and_due_in_a_minute(bad, 2).await;
            assert!(
                killed.elapsed() < Duration::from_secs(5),
                "seen at once, not by a lease: {:?}",
                killed.elapsed()
            );
        }
    }
    s.until(bad, "dead").await;
    let row = s.db.job(bad).await.expect("dead rows stay");
    assert_eq!(
        (row.last_class.as_deref(), row.attempts, row.crashes),
        (Some("crash"), 3, 3),
        "{row:?}"
    );
    assert_eq!(
        s.causes(bad).await,
        ["crash/worker_lost", "crash/child_signal", "crash/child_signal"]
    );
    assert_eq!(s.provider.calls_for("KILLME").len(), 3);
    assert_eq!(
        s.db.one::<i64>("select count(*) from jobs_done where status = 'done'").await,
        i64::try_from(good.len()).expect("few")
    );
    crew.tend().await;
    assert_eq!(crew.deaths, 1, "the children's deaths were theirs alone");
}

// ── Innocents ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn b8_what_ran_beside_a_poison_is_charged_once_runs_alone_once_and_is_cleared() {
    let s = Stage::set(1).await;
    s.provider.rule(Rule::text("sibling").then(Action::hold("first")));
    let siblings = s.embed(&["sibling-1", "sibling-2", "sibling-3"], 0).await;
    let mut first = s.embedder(4).await;
    s.provider.wait_calls(3).await;
    let poison = s.embed(&[FAULT], 0).await[0];
    assert_eq!(first.wait_exit().await.signal(), Some(6), "it holds four and dies of one");
    s.provider.clear_rules();
    s.provider.rule(Rule::text("sibling").then(Action::hold("second")));

    let second = s.embedder(4).await;
    s.provider.wait_calls(6).await;
    // The poison's own is dying beside them.
    wait_until("each of them runs in a process of its own", SOON, async || {
        match isolated(&second).len() {
            3 => Ok(()),
            n => Err(n),
        }
    })
    .await;
    for job in &siblings {
        let row = s.db.job(*job).await.expect("it runs");
        assert_eq!((row.status.as_str(), row.crashes, row.attempts), ("running", 1, 2), "{row:?}");
    }
    s.crashed_and_due_in_a_minute(poison, 2).await;
    s.provider.release("second");
    for job in &siblings {
        s.until(*job, "done").await;
        assert_eq!(s.causes(*job).await, ["crash/worker_lost"], "charged once");
    }
    for n in 1..=3 {
        assert_eq!(s.provider.completed(&format!("sibling-{n}")), 1);
    }
    s.until(poison, "dead").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b7_a_suspect_runs_alone_and_the_others_of_its_claim_stay_together() {
    let s = Stage::set(8).await;
    s.embed(&["clean-1", "clean-2"], 0).await;
    s.embed(&["suspect-3"], 1).await;
    s.embed(&["clean-4", "clean-5"], 0).await;
    let worker = s.embedder(2).await;
    s.until_all_are_done(5).await;
    let sent: BTreeSet<Vec<String>> = s
        .provider
        .calls()
        .iter()
        .map(|c| c.texts.iter().map(|t| t.text.clone()).collect())
        .collect();
    let together = ["clean-1", "clean-2", "clean-4", "clean-5"].map(str::to_owned).to_vec();
    assert_eq!(sent, BTreeSet::from([together, vec!["suspect-3".to_owned()]]));
    assert_eq!(s.db.one::<i64>("select count(*) from blocks where embedding is not null").await, 5);
    assert!(isolated(&worker).is_empty(), "it went when it was done");
}

#[tokio::test(flavor = "multi_thread")]
async fn b8_suspects_that_wait_for_a_place_are_not_charged_when_their_worker_dies() {
    let s = Stage::set(4).await;
    s.provider.rule(Rule::all().on(Route::Embeddings).then(Action::hold("never")));
    let jobs = s.embed(&["one", "two", "three", "four"], 1).await;
    let mut first = s.embedder(1).await;
    s.provider.wait_calls(1).await;
    assert_eq!(s.db.one::<i64>("select count(*) from jobs where status = 'running'").await, 4);
    first.kill9().await;
    let _heir = s.fleet.worker_with(Opts::new().kinds("noop")).await;
    let mut counts = BTreeMap::new();
    for job in jobs {
        s.until(job, "waiting").await;
        let row = s.db.job(job).await.expect("waiting");
        *counts.entry((row.crashes, row.charged)).or_insert(0) += 1;
    }
    assert_eq!(counts, BTreeMap::from([((1, 1), 3), ((2, 2), 1)]), "only the one that had begun");
}

/// Every kind that a document and a question go through, with the engines that are shipped, each in a process of its own; and over a
/// bucket, whose keys only some of them are given.
#[tokio::test(flavor = "multi_thread")]
async fn b7_the_whole_main_job_can_run_isolated() {
    let part = |var: &str| std::env::var(var).unwrap_or_else(|_| panic!("{var} names no part: run this through ops/test, which brings it"));
    let db = Db::new().await;
    db.exec("create function suspect() returns trigger language plpgsql as $$ begin new.crashes := 1; return new; end $$")
        .await;
    db.exec("create trigger suspect before insert on jobs for each row execute function suspect()")
        .await;
    let mut fleet = Fleet::new(&db);
    let root = fleet.dir().join("s3");
    std::fs::create_dir_all(root.join("papers")).expect("a bucket, which is a folder");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    drop(listener);
    let _server = tokio::process::Command::new(part("STEADFAST_S3S_FS"))
        .args([
            "--host",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--access-key",
            "AKSTORY",
            "--secret-key",
            "a-secret",
        ])
        .arg(&root)
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("s3s-fs starts");
    wait_until("the bucket answers", SOON, async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.map(drop)
    })
    .await;
    fleet.set("STEADFAST_BLOBS", format!("s3://papers/house?endpoint=http://127.0.0.1:{port}"));
    fleet.set("AWS_ACCESS_KEY_ID", "AKSTORY");
    fleet.set("AWS_SECRET_ACCESS_KEY", "a-secret");
    fleet.set("STEADFAST_MODEL_DIR", part("STEADFAST_MODEL_DIR"));
    fleet.set("STEADFAST_QUESTION_TIMEOUT", "30s");
    let api = fleet.api_with(Opts::new().env("STEADFAST_SYNC_BUDGET", "30s")).await;
    let client = api.client(&db.person("ann").await);
    let worker = fleet.worker_with(Opts::new().concurrency(1)).await;
    let added = client.upload(std::fs::read(SCAN).expect("the sample scan"), "contract.png").await;
    assert_eq!(added.status, 202, "{added}");
    let mut seen = 0;
    wait_until("it is read and embedded", LONG, async || {
        seen = seen.max(isolated(&worker).len());
        let (jobs, blocks): (i64, i64) = (
            db.one("select count(*) from jobs").await,
            db.one("select count(*) from blocks where embedding is not null").await,
        );
        if jobs == 0 && blocks > 0 { Ok(()) } else { Err((jobs, blocks)) }
    })
    .await;
    assert!(seen > 0, "nothing was seen to run in a process of its own");
    let kinds: String = db
        .one("select string_agg(distinct kind || ' ' || attempts, ', ' order by kind || ' ' || attempts) from jobs_done where status = 'done'")
        .await;
    assert_eq!(kinds, "embed 1, extract 1, ocr 1");
    wait_until("a question is answered by meaning", SOON, async || {
        let answer = client.search("when must the renter move out").await;
        match answer.json["diagnostics"]["degraded"].as_bool() {
            Some(false) if answer.json["results"].as_array().is_some_and(|r| !r.is_empty()) => Ok(()),
            _ => Err(answer.text),
        }
    })
    .await;
}

// ── The child ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn b7_the_child_has_one_key_bounded_memory_and_the_first_place_when_memory_runs_out() {
    let s = Stage::set(1).await;
    s.provider.accept_key("ours", "sk-ours-4711");
    s.db.exec("update endpoints set key_env = 'STORY_KEY' where name = 'vectors'").await;
    s.provider
        .rule(Rule::all().on(Route::Embeddings).times(1).then(Action::hold("look")));
    let job = s.embed(&["a secret sentence"], 1).await[0];
    let opts = Opts::new()
        .kinds("embed")
        .env("STORY_KEY", "sk-ours-4711")
        .env("OTHER_API_KEY", "sk-other")
        .env("AWS_ACCESS_KEY_ID", "id")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("STEADFAST_SMTP_URL", "smtp://user:password@127.0.0.1:2525")
        .env("STEADFAST_MAIL_FROM", "story@example.org")
        .env("STEADFAST_ISOLATED_MB", "1024");
    let worker = s.fleet.worker_with(opts).await;
    s.provider.wait_calls(1).await;
    let child = one_isolated(&worker).await;
    let environment = |pid: i32| -> BTreeMap<String, String> {
        let raw = std::fs::read_to_string(format!("/proc/{pid}/environ")).expect("our own process");
        let pairs = raw.split('\0').filter_map(|p| p.split_once('='));
        pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
    };
    let theirs = environment(worker.pid());
    assert!(
        theirs.contains_key("OTHER_API_KEY") && theirs.contains_key("AWS_SECRET_ACCESS_KEY"),
        "the worker has more"
    );
    let env = environment(child);
    assert_eq!(env.get("STORY_KEY").map(String::as_str), Some("sk-ours-4711"));
    let allowed = [
        "STORY_KEY",
        "STEADFAST_DATABASE_URL",
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "LD_LIBRARY_PATH",
        "TESSDATA_PREFIX",
        "MALLOC_ARENA_MAX",
        "RAYON_NUM_THREADS",
    ];
    let others: Vec<&String> = env.keys().filter(|n| !allowed.contains(&n.as_str())).collect();
    assert!(others.is_empty(), "{others:?}");
    let line = command_line(child);
    assert_eq!(
        line.trim(),
        "steadfast-worker run-child",
        "no secret where every user of the machine can read it"
    );

    let limits = std::fs::read_to_string(format!("/proc/{child}/limits")).expect("our own process");
    let limit = |name: &str| -> String {
        let line = limits.lines().find(|l| l.starts_with(name)).unwrap_or_default();
        line[name.len()..].split_whitespace().next().unwrap_or_default().to_owned()
    };
    assert_eq!(limit("Max address space"), (1_u64 << 30).to_string());
    assert_eq!(limit("Max core file size"), "0");
    assert!(limit("Max cpu time").parse::<u64>().is_ok(), "{limits}");
    let first = std::fs::read_to_string(format!("/proc/{child}/oom_score_adj")).expect("our own process");
    assert_eq!(first.trim(), "1000");
    let status = std::fs::read_to_string(format!("/proc/{child}/status")).expect("our own process");
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let peak: u32 = peak.expect("the kernel says so").parse().expect("a number");
    println!("in its provider call the child has taken {peak} kB");
    assert!(peak < 30_000, "it makes only what its job needs, not {peak} kB");

    s.provider.release("look");
    s.until(job, "done").await;
    assert_eq!(s.provider.calls()[0].key, "ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn b7_however_a_child_ends_it_is_a_crash_of_its_job_alone() {
    let s = Stage::set(1).await;
    let faults = [
        ("oom", "child_oom"),
        ("abort", "child_signal"),
        ("segfault", "child_signal"),
        ("exit", "child_exit"),
    ];
    let mut jobs = Vec::new();
    for (fault, cause) in faults {
        jobs.push((s.noop(&format!("{{\"fault\": \"{fault}\"}}"), 1).await, cause));
    }
    let fine = s.noop("{}", 1).await;
    let mut worker = s.fleet.worker_with(Opts::new().kinds("noop").concurrency(2)).await;
    for (job, cause) in &jobs {
        s.crashed_and_due_in_a_minute(*job, 2).await;
        s.until(*job, "dead").await;
        let row = s.db.job(*job).await.expect("dead rows stay");
        let said = (row.last_class.as_deref(), row.last_cause.as_deref(), row.crashes, row.charged);
        assert_eq!(said, (Some("crash"), Some(*cause), 3, 3), "{row:?}");
    }
    s.until(fine, "done").await;
    assert!(worker.is_alive(), "{}", worker.log());

    // The same in the worker's own process is the worker's end; and nobody can ask for it where the setting is off.
    let asks = s.noop("{\"fault\": \"abort\"}", 0).await;
    assert_eq!(worker.wait_exit().await.signal(), Some(6));
    let _deaf = s.fleet.worker_with(Opts::new().kinds("noop").without("STEADFAST_FAULTS")).await;
    s.until(asks, "done").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b7_a_child_that_cannot_be_started_is_nobodys_crash() {
    let s = Stage::set(1).await;
    let worker = s.embedder(1).await;
    // Everything it needs is open; nothing more can be.
    let warm = s.embed(&["warm"], 0).await[0];
    s.until(warm, "done").await;
    let pid = Pid::from_raw(worker.pid());
    let usual = getrlimit(Resource::Nofile);
    let none = Rlimit { current: Some(3), ..usual };
    prlimit(pid, Resource::Nofile, none).expect("our own process");
    let job = s.embed(&["suspect"], 1).await[0];
    wait_until("it comes back", SOON, async || match s.db.job(job).await {
        Some(j) if j.status == "waiting" && j.forgiven > 0 => Ok(()),
        other => Err(other),
    })
    .await;
    let row = s.db.job(job).await.expect("waiting");
    assert_eq!(
        (row.crashes, row.charged, row.last_class.as_deref()),
        (1, 1, Some("outage")),
        "{row:?}"
    );
    assert_eq!(s.causes(job).await, ["outage/child_not_started (forgiven)"]);
    let due: f64 =
        s.db.one(&format!(
            "select extract(epoch from avail_at - now())::float8 from jobs where id = {job}"
        ))
        .await;
    assert!((0.0..=10.0).contains(&due), "due in ten seconds, not in {due}");
    prlimit(pid, Resource::Nofile, usual).expect("our own process");
    s.due_now(job).await;
    s.until(job, "done").await;
}

/// It starts, and finds that what it needs has gone since its parent started.
#[tokio::test(flavor = "multi_thread")]
async fn b7_a_child_that_cannot_set_itself_up_is_nobodys_crash() {
    let s = Stage::set(1).await;
    let api = s.fleet.api().await;
    let added = api.client(&s.ann).remember("a note").await;
    assert_eq!(added.status, 202, "{added}");
    let job: i64 = s.db.one("update jobs set crashes = 1 where kind = 'extract' returning id").await;
    let (blobs, aside) = (s.fleet.dir().join("blobs"), s.fleet.dir().join("aside"));
    s.db.exec("update jobs set avail_at = now() + interval '1 hour'").await;
    let _worker = s.fleet.worker_with(Opts::new().kinds("extract")).await;
    std::fs::rename(&blobs, &aside).expect("our own folder");
    std::fs::write(&blobs, "a file where the folder was").expect("our own folder");
    s.due_now(job).await;
    wait_until("it comes back", SOON, async || match s.causes(job).await.as_slice() {
        [one] => Ok(one.clone()),
        other => Err(other.to_vec()),
    })
    .await;
    assert_eq!(s.causes(job).await, ["outage/child_not_started (forgiven)"]);
    let row = s.db.job(job).await.expect("waiting");
    assert_eq!((row.crashes, row.charged), (1, 0), "{row:?}");
    std::fs::remove_file(&blobs).expect("our own file");
    std::fs::rename(&aside, &blobs).expect("our own folder");
    s.due_now(job).await;
    s.until(job, "done").await;
}

// ── Its end ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn b7_the_child_goes_with_its_lease_its_cancelled_job_and_its_workers_drain() {
    let s = Stage::set(1).await;
    s.provider.rule(Rule::all().on(Route::Embeddings).then(Action::hold("never")));
    let mut worker = s
        .fleet
        .worker_with(Opts::new().kinds("embed").concurrency(1).env("STEADFAST_DRAIN", "100ms"))
        .await;

    let lost = s.embed(&["lost"], 1).await[0];
    s.provider.wait_calls(1).await;
    let child = one_isolated(&worker).await;
    s.db.exec(&format!(
        "update jobs set attempts = attempts + 1, claimed_by = 1, avail_at = now() + interval '1 hour' where id = {lost}"
    ))
    .await;
    gone(child).await;
    let row = s.db.job(lost).await.expect("somebody else has it");
    assert_eq!(
        (row.status.as_str(), row.attempts, row.crashes),
        ("running", 3, 1),
        "nothing was written: {row:?}"
    );

    let cancelled = s.embed(&["cancelled"], 1).await[0];
    s.provider.wait_calls(2).await;
    let child = one_isolated(&worker).await;
    s.db.exec(&format!("update jobs set cancel_at = now() where id = {cancelled}"))
        .await;
    gone(child).await;
    s.until(cancelled, "cancelled").await;

    let drained = s.embed(&["drained"], 1).await[0];
    s.provider.wait_calls(3).await;
    let child = one_isolated(&worker).await;
    worker.sigterm();
    assert!(worker.wait_exit().await.success());
    gone(child).await;
    let row = s.db.job(drained).await.expect("given back");
    assert_eq!((row.status.as_str(), row.forgiven, row.crashes), ("waiting", 1, 1), "{row:?}");
    assert_eq!(s.causes(drained).await, ["shutdown/shutdown (forgiven)"]);
    wait_until("the provider saw each of them leave", SOON, async || {
        let calls = s.provider.calls();
        if calls.iter().all(|c| c.outcome == Outcome::Cancelled) {
            Ok(())
        } else {
            Err(calls)
        }
    })
    .await;
    assert_eq!(s.provider.calls().len(), 3);
}

/// A reader that reads for ever, in the place of Tesseract, below an isolated child.
struct Reading {
    s: Stage,
    api: Api,
    path: String,
    job: i64,
}

impl Reading {
    async fn set() -> Self {
        let s = Stage::set(1).await;
        let api = s.fleet.api().await;
        let mut taking_apart = s.fleet.worker_with(Opts::new().kinds("extract")).await;
        let answer = api
            .client(&s.ann)
            .upload(std::fs::read(SCAN).expect("the sample scan"), "contract.png")
            .await;
        assert_eq!(answer.status, 202, "{answer}");
        let job = wait_until("the page waits for OCR", SOON, async || {
            let id: i64 = s.db.one("select coalesce(min(id), 0) from jobs where kind = 'ocr'").await;
            (id > 0).then_some(id)
        })
        .await;
        taking_apart.sigterm();
        taking_apart.wait_exit().await;
        s.db.exec(&format!("update jobs set crashes = 1 where id = {job}")).await;

        let bin = s.fleet.dir().join("bin");
        std::fs::create_dir(&bin).expect("a folder in our own folder");
        let script = "#!/bin/sh\nif [ \"$1\" = --list-langs ]; then echo eng; else exec /bin/sleep 600; fi\n";
        let program = bin.join("tesseract");
        std::fs::write(&program, script).expect("a file in our own folder");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("our own file");
        let path = bin.display().to_string();
        Self { s, api, path, job }
    }

    /// A worker for it, its isolated child, and the reader below that.
    async fn begun(&self, path: String) -> (Process, i32, i32) {
        let worker = self
            .s
            .fleet
            .worker_with(Opts::new().kinds("ocr").concurrency(1).env("PATH", path))
            .await;
        let (child, reader) = wait_until("the page is being read", SOON, async || {
            let child = *isolated(&worker).first()?;
            let reader = children(child).into_iter().find(|pid| command_line(*pid).contains("sleep"))?;
            Some((child, reader))
        })
        .await;
        (worker, child, reader)
    }
}

/// Without `setpriv` on the path nothing but our own look at the process tree ends it.
#[tokio::test(flavor = "multi_thread")]
async fn b7_what_the_child_has_started_goes_with_it() {
    let r = Reading::set().await;
    let (mut worker, child, reader) = r.begun(r.path.clone()).await;
    let job = r.job.to_string();
    let asked =
        r.s.fleet
            .steadfast(&r.api, &r.s.ann, &["jobs", "cancel", &job, "--yes", "--reason", "not wanted"])
            .await;
    assert_eq!(asked.code, Some(0), "{asked}");
    gone(child).await;
    gone(reader).await;
    r.s.until(r.job, "cancelled").await;
    assert!(worker.is_alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn b7_the_child_and_what_it_has_started_go_with_a_killed_worker() {
    let r = Reading::set().await;
    let path = format!("{}:{}", r.path, std::env::var("PATH").unwrap_or_default());
    let (mut worker, child, reader) = r.begun(path).await;
    worker.kill9().await;
    gone(child).await;
    gone(reader).await;
}
