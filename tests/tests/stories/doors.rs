//! Bad input, at the door and behind it: a clear refusal or a dead job with a reason that a person understands; API and worker
//! go on, nothing is lost, and never a 202 without a durable row.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _};
use steadfast_tests::harness::{Answer, Api, Client, Db, Fleet, Opts, Person, Process, wait_until};
use steadfast_tests::provider::{Fixture, Provider, Rule};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const SOON: Duration = Duration::from_secs(30);

macro_rules! fixture {
    ($name:literal) => {
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../workers/engines/fixtures/", $name)).expect("a fixture")
    };
}

/// A database, a provider that embeds, an API, a person, one worker.
struct House {
    db: Db,
    provider: Provider,
    fleet: Fleet,
    api: Api,
    ann: Person,
    worker: Process,
}

impl House {
    async fn build(api: Opts) -> Self {
        let db = Db::new().await;
        let provider = Provider::start();
        db.openai_endpoint("vectors", &provider, 384).await;
        let fleet = Fleet::new(&db);
        let api = fleet.api_with(api).await;
        let ann = db.person("ann").await;
        let worker = fleet.worker().await;
        Self {
            db,
            provider,
            fleet,
            api,
            ann,
            worker,
        }
    }

    fn client(&self) -> Client {
        self.api.client(&self.ann)
    }

    async fn count(&self, table: &str) -> i64 {
        self.db.one(&format!("select count(*) from {table}")).await
    }

    fn blobs(&self) -> usize {
        files(&self.fleet.dir().join("blobs"))
    }

    fn upload_path(&self, name: &str) -> String {
        format!("/api/v1/uploads/direct?filename={name}&spaceId={}", self.ann.space_id)
    }

    /// Both processes are the ones that were started, and a document goes all the way through them.
    async fn goes_on(&mut self) {
        assert!(self.api.process.is_alive() && self.worker.is_alive());
        let ann = self.client();
        let added = ann.upload("A good document about persimmons.", "good.txt").await;
        assert_eq!(added.status, 202, "{added}");
        let done = ended(&ann, &added.job_id()).await;
        assert_eq!(done["status"], "completed", "{done}");
        wait_until("it is found by words and by meaning", SOON, async || {
            let found = ann.search("persimmons document").await;
            let whole = found.json["results"][0]["explanation"]["paths"] == json!(["vector", "keyword"]);
            if whole { Ok(()) } else { Err(found.text) }
        })
        .await;
    }
}

fn files(dir: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| if e.path().is_dir() { files(&e.path()) } else { 1 }).sum()
}

/// The job as the API tells it once nothing of it is under way.
async fn ended(client: &Client, job: &str) -> Value {
    wait_until(&format!("job {job} has ended"), Duration::from_secs(60), async || {
        let told = client.job(job).await;
        match told.json["status"].as_str() {
            Some("completed" | "failed" | "dead") => Ok(told.json),
            _ => Err(told.text),
        }
    })
    .await
}

fn refused(answer: &Answer, status: u16, code: &str, field: Option<&str>) {
    assert_eq!((answer.status, &answer.json["error"]["code"]), (status, &json!(code)), "{answer}");
    assert!(answer.json["error"]["message"].as_str().is_some_and(|m| m.len() > 10), "{answer}");
    if let Some(field) = field {
        let fields = answer.json["error"]["fields"].as_object().expect("always there");
        assert!(fields.keys().any(|f| f.starts_with(field)), "{field} is not named: {answer}");
        assert!(
            answer.json["error"]["message"].as_str().is_some_and(|m| m.contains(field)),
            "clients show the message alone: {answer}"
        );
    }
}

/// The most memory the process ever had, in KiB.
fn peak_kib(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).expect("it lives");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("Linux tells");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// A request by hand: its head is sent, its body is the story's affair.
async fn by_hand(api: &Api, token: &str, path: &str, headers: &str) -> TcpStream {
    let host = api.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).await.expect("the API listens");
    let head = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.expect("a head fits");
    stream
}

/// The status and the JSON of what comes back.
async fn answer(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> (u16, String, Value) {
    let mut got = Vec::new();
    let read = async {
        loop {
            let text = String::from_utf8_lossy(&got).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head
                    .to_lowercase()
                    .lines()
                    .find_map(|l| l.strip_prefix("content-length: ").and_then(|n| n.trim().parse::<usize>().ok()));
                if length.is_some_and(|n| body.len() >= n) {
                    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
                    return (status, head.to_owned(), serde_json::from_str(body).unwrap_or_default());
                }
            }
            let mut piece = [0; 4096];
            let n = stream.read(&mut piece).await.unwrap_or_else(|e| panic!("{e} after {text:?}"));
            assert!(n > 0, "closed without an answer: {text:?}");
            got.extend_from_slice(&piece[..n]);
        }
    };
    tokio::time::timeout(SOON, read).await.expect("an answer comes")
}

// ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────

/// 20,000 × 20,000 white pixels in 49 kB: 400 million to whoever believes its header.
fn bomb() -> Vec<u8> {
    fn chunk(png: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
        png.extend(u32::try_from(data.len()).expect("small").to_be_bytes());
        png.extend(kind);
        png.extend(data);
        let mut crc = flate2::Crc::new();
        crc.update(kind);
        crc.update(data);
        png.extend(crc.sum().to_be_bytes());
    }
    let mut rows = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    let row = [0_u8; 1 + 20_000 / 8];
    for _ in 0..20_000 {
        rows.write_all(&row).expect("into memory");
    }
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut head = [20_000_u32.to_be_bytes(), 20_000_u32.to_be_bytes()].concat();
    head.extend([1, 0, 0, 0, 0]);
    chunk(&mut png, b"IHDR", &head);
    chunk(&mut png, b"IDAT", &rows.finish().expect("into memory"));
    chunk(&mut png, b"IEND", &[]);
    assert!(png.len() < 76_000, "{}", png.len());
    png
}

/// A PDF whose page tree is its own child.
fn circular_pdf() -> Vec<u8> {
    let mut pdf = b"%PDF-1.4\n".to_vec();
    let mut at = Vec::new();
    for object in [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[2 0 R 2 0 R]/Count 2/Parent 2 0 R>>",
    ] {
        at.push(pdf.len());
        writeln!(pdf, "{} 0 obj{object}endobj", at.len()).expect("into memory");
    }
    let table = pdf.len();
    write!(pdf, "xref\n0 3\n0000000000 65535 f \n").expect("into memory");
    for offset in at {
        writeln!(pdf, "{offset:010} 00000 n ").expect("into memory");
    }
    write!(pdf, "trailer<</Size 3/Root 1 0 R>>\nstartxref\n{table}\n%%EOF\n").expect("into memory");
    pdf
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_case91_case92_files_that_cannot_be_read_end_once_with_a_reason() {
    let mut s = House::build(Opts::new()).await;
    let ann = s.client();
    let empty = ann.upload(Vec::new(), "empty.txt").await;
    refused(&empty, 400, "VALIDATION_ERROR", Some("body"));
    assert_eq!((s.count("documents").await, s.count("jobs").await, s.blobs()), (0, 0, 0));

    let scan = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/samples/contract-scan.png")).expect("the sample scan");
    let pdf = fixture!("text.pdf");
    let noise: Vec<u8> = (0..4096_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 | 0x80).collect();
    let bad: [(&str, Vec<u8>, &str); 9] = [
        ("cut.png", scan[..scan.len() / 2].to_vec(), "damaged or cut off"),
        ("head.png", scan[..20].to_vec(), "damaged or cut off"),
        ("bomb.png", bomb(), "20000 × 20000 pixels"),
        ("locked.pdf", fixture!("user-locked.pdf"), "needs a password"),
        ("note.png", b"This is only text, whatever its name says.".to_vec(), "holds text"),
        ("cut.pdf", pdf[..pdf.len() / 2].to_vec(), "cut off"),
        ("noise.pdf", noise.clone(), "not a PDF"),
        ("circle.pdf", circular_pdf(), "it has no pages"),
        ("noise.bin", noise, "of no kind that can be read"),
    ];
    let mut jobs = Vec::new();
    for (name, bytes, why) in bad {
        let added = ann.upload(bytes, name).await;
        assert_eq!(added.status, 202, "{name}: {added}");
        jobs.push((
            name,
            added.job_id(),
            added.json["documentId"].as_str().expect("an id").to_owned(),
            why,
        ));
        // A good one after each.
        assert_eq!(ann.upload(format!("good text after {name}"), "good.txt").await.status, 202);
    }
    for (name, job, document, why) in &jobs {
        let told = ended(&ann, job).await;
        assert_eq!(told["status"], "dead", "{name}: {told}");
        let reason = told["error"].as_str().unwrap_or_default();
        assert!(
            reason.starts_with("This file cannot be read") && reason.contains(why),
            "{name}: {told}"
        );
        assert_eq!(told["attempts"], 1, "{name} is not tried again: {told}");
        let document = ann.get(&format!("/api/v1/documents/{document}")).await;
        assert_eq!(document.json["status"], "failed", "{name}: {document}");
        assert!(
            document.json["error"]
                .as_str()
                .is_some_and(|e| e.starts_with("This file cannot be read")),
            "{name}: {document}"
        );
        // Again would end the same way: that takes a word.
        let again = ann.post(&format!("/api/v1/jobs/dead/{job}/replay"), &json!({})).await;
        refused(&again, 409, "CONFLICT", None);
    }
    let listed = ann.get("/api/v1/jobs/dead?limit=100").await;
    let ids: BTreeSet<&str> = listed.json["data"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|d| d["id"].as_str())
        .collect();
    assert_eq!(ids, jobs.iter().map(|(_, job, ..)| job.as_str()).collect(), "{listed}");

    // A lock that only forbids is no lock to a reader.
    let open = ann.upload(fixture!("owner-locked.pdf"), "owner-locked.pdf").await;
    assert_eq!(ended(&ann, &open.job_id()).await["status"], "completed");
    s.goes_on().await;
    let good: i64 = s.count("documents where status = 'processed' and title = 'good.txt'").await;
    assert_eq!(good, 10, "nothing was lost beside the bad ones");
}

/// What a failure says of itself may hold what Postgres cannot store.
#[tokio::test(flavor = "multi_thread")]
async fn bad_input_case10_a_failure_whose_text_cannot_be_stored_is_stored_all_the_same() {
    let mut s = House::build(Opts::new()).await;
    let ann = s.client();
    // The endpoint answers others: what fails alone is its own fault.
    s.goes_on().await;
    for (n, fixture) in [Fixture::EscapedNul, Fixture::LoneSurrogate, Fixture::RawNul, Fixture::InvalidUtf8]
        .into_iter()
        .enumerate()
    {
        let marker = format!("POISON{n}");
        let mut reply = fixture.reply();
        reply.status = 400;
        s.provider.rule(Rule::text(&marker).then(reply));
        let text = format!("{marker} among good neighbours");
        assert_eq!(ann.remember(&text).await.status, 202);
        assert_eq!(ann.remember(&format!("a good neighbour of number {n}")).await.status, 202);
    }
    wait_until("all four are settled, and their neighbours have vectors", SOON, async || {
        let settled = s
            .count("jobs where kind = 'embed' and status = 'waiting' and last_error is not null")
            .await;
        let embedded = s
            .count("blocks where embedding is not null and content like 'a good neighbour%'")
            .await;
        if (settled, embedded) == (4, 4) {
            Ok(())
        } else {
            Err((settled, embedded))
        }
    })
    .await;
    let rows: Vec<(String, i32, i32, String)> =
        sqlx::query_as("select last_class, attempts, charged, last_error from jobs where kind = 'embed' order by id")
            .fetch_all(&s.db.pool)
            .await
            .expect("rows that can be read");
    assert_eq!(rows.len(), 4, "{rows:?}");
    for (class, attempts, charged, error) in &rows {
        assert_eq!(
            (class.as_str(), *attempts, *charged),
            ("item_error", 1, 1),
            "it left running on its first try: {rows:?}"
        );
        assert!(!error.is_empty() && !error.chars().any(char::is_control), "{rows:?}");
    }
    assert_eq!(s.count("attempts where class = 'item_error'").await, 4);
    s.provider.clear_rules();
    s.goes_on().await;
}

// ── Words ────────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_case11_what_postgres_cannot_keep_is_refused_by_name() {
    let mut s = House::build(Opts::new()).await;
    let ann = s.client();
    let space = s.ann.space_id;
    let remember = async |members: &str| {
        let body = format!(r#"{{"spaceIds":["{space}"],{members}}}"#);
        ann.send(ann.request(Method::POST, "/api/v1/remember").body(body)).await
    };
    for (members, field) in [
        (r#""text":"a\u0000b""#, "text"),
        (r#""text":"a\ud83d""#, "text"),
        (r#""text":"x","title":"a\u0000""#, "title"),
        (r#""text":"x","title":"\udc00 low""#, "title"),
        (r#""text":"x","title":"two\nlines""#, "title"),
        (r#""text":"x","conversationId":"\u0000""#, "conversationId"),
        (r#""text":"x","metadata":{"k":"\u0000"}"#, "metadata.k"),
        (r#""text":"x","metadata":{"k":{"deep":["ok","\u0000"]}}"#, "metadata.k.deep.1"),
        (r#""text":"x","metadata":{"k":"\ud83d alone"}"#, "metadata.k"),
        (r#""text":"x","metadata":{"k":["\udc00"]}"#, "metadata.k.0"),
        (r#""text":"x","metadata":{"a\u0000b":1}"#, "metadata.a"),
        (r#""text":"x","metadata":{"\ud800":1}"#, "metadata"),
        (r#""text":"x","spaceId":"\u0000""#, "spaceId"),
        (r#""text":"x","metadata":"no object""#, "metadata"),
    ] {
        refused(&remember(members).await, 400, "VALIDATION_ERROR", Some(field));
    }
    for raw in [&b"{\"text\":\"a\x00b\"}"[..], b"{\"text\":\"a\xff\"}", b"\xff\xfe", b""] {
        let answer = ann.send(ann.request(Method::POST, "/api/v1/remember").body(raw.to_vec())).await;
        refused(&answer, 400, "VALIDATION_ERROR", None);
    }
    let bad_names = [
        "a%00b.txt",
        "%ED%A0%BD.txt",
        "%ED%B0%80.txt",
        "%FF.txt",
        "%C3%28.txt",
        "%G1.txt",
        "%4",
        "a%0Ab.txt",
        "%20",
        "%1B[31m",
    ];
    for name in bad_names {
        let answer = ann.send(ann.request(Method::POST, &s.upload_path(name)).body("text")).await;
        refused(&answer, 400, "VALIDATION_ERROR", Some("filename"));
        let titled = ann.request(Method::POST, &format!("{}&title={name}", s.upload_path("fine.txt")));
        let answer = ann.send(titled.body("text")).await;
        refused(&answer, 400, "VALIDATION_ERROR", Some("title"));
    }
    for question in ["%00", "a%00b", "%ED%A0%BD", "%FF"] {
        refused(
            &ann.get(&format!("/api/v1/search?query={question}")).await,
            400,
            "VALIDATION_ERROR",
            Some("query"),
        );
    }
    assert_eq!(
        (s.count("documents").await, s.count("jobs").await, s.blobs()),
        (0, 0, 0),
        "nothing was stored"
    );

    // A whole pair is a letter like any other, and comes back as it went in.
    let fine =
        remember(r#""text":"smile \ud83d\ude00","title":"\ud83d\ude00 day","metadata":{"\u00e9":"\ud83d\ude00","n":[1,null]}"#).await;
    assert_eq!(fine.status, 202, "{fine}");
    let kept = ann
        .get(&format!("/api/v1/documents/{}", fine.json["documentId"].as_str().expect("an id")))
        .await;
    assert_eq!(
        (&kept.json["title"], &kept.json["metadata"]),
        (&json!("😀 day"), &json!({"é": "😀", "n": [1, null]})),
        "{kept}"
    );
    let file = ann.upload("words", "résumé 😀 + 100%.txt").await;
    assert_eq!(file.status, 202, "{file}");
    let kept = ann
        .get(&format!("/api/v1/documents/{}", file.json["documentId"].as_str().expect("an id")))
        .await;
    assert_eq!(kept.json["title"], "résumé 😀 + 100%.txt", "{kept}");
    // Inside a file they are the reader's affair, and no worker falls over them.
    let odd = ann.upload(b"words \xed\xa0\xbd and \xff more".to_vec(), "odd.txt").await;
    assert_eq!(odd.status, 202, "{odd}");
    let nul = ann.upload(b"a text\0with a NUL".to_vec(), "nul.txt").await;
    assert_eq!(nul.status, 202, "{nul}");
    for job in [odd.job_id(), nul.job_id()] {
        let told = ended(&ann, &job).await;
        assert!(told["status"] == "completed" || told["error"].is_string(), "{told}");
    }
    s.goes_on().await;
}

// ── Bodies ───────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_case118_a_body_over_the_limit_is_refused_early_and_never_held_in_memory() {
    const MIB: usize = 1 << 20;
    let mut s = House::build(Opts::new()).await;
    let ann = s.client();
    s.goes_on().await;
    let blobs = s.blobs();
    let before = peak_kib(&s.api.process);

    // Told before the first byte of the body, where the client asks first.
    let path = s.upload_path("big.bin");
    let begun = Instant::now();
    let mut asking = by_hand(&s.api, &s.ann.token, &path, "content-length: 104857600\r\nexpect: 100-continue\r\n").await;
    let (status, head, body) = answer(&mut asking).await;
    assert_eq!((status, &body["error"]["code"]), (413, &json!("PAYLOAD_TOO_LARGE")), "{head}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());

    // Sent all the same, with its length told and untold.
    let big = bytes::Bytes::from(vec![b'x'; 100 * MIB]);
    refused(&ann.upload(big.clone(), "big.bin").await, 413, "PAYLOAD_TOO_LARGE", Some("body"));
    let stream = by_hand(&s.api, &s.ann.token, &path, "transfer-encoding: chunked\r\n").await;
    let (mut reader, mut writer) = stream.into_split();
    let sending = tokio::spawn(async move {
        for _ in 0..100 {
            let sent = async {
                writer.write_all(b"100000\r\n").await?;
                writer.write_all(&big[..MIB]).await?;
                writer.write_all(b"\r\n").await
            };
            if sent.await.is_err() {
                break;
            }
        }
        let _refused = writer.write_all(b"0\r\n\r\n").await;
        // Kept: to close this half would say that nobody waits for the answer.
        std::future::pending::<()>().await;
    });
    let (status, head, body) = answer(&mut reader).await;
    assert_eq!((status, &body["error"]["code"]), (413, &json!("PAYLOAD_TOO_LARGE")), "{head}");
    sending.abort();
    let grown = peak_kib(&s.api.process) - before;
    assert!(grown < 48 * 1024, "three bodies of 100 MB cost {grown} KiB");
    println!("three bodies of 100 MB cost {grown} KiB");

    let text = "x".repeat(9 * MIB);
    refused(&ann.remember(&text).await, 413, "PAYLOAD_TOO_LARGE", Some("body"));
    let metadata = json!({"text": "x", "spaceIds": [s.ann.space_id.to_string()], "metadata": {"k": "x".repeat(MIB)}});
    refused(
        &ann.post("/api/v1/remember", &metadata).await,
        400,
        "VALIDATION_ERROR",
        Some("metadata"),
    );
    let deep = format!(
        r#"{{"text":"x","spaceIds":["{}"],"metadata":{}1{}}}"#,
        s.ann.space_id,
        r#"{"k":"#.repeat(10_000),
        "}".repeat(10_000)
    );
    let deep = ann.send(ann.request(Method::POST, "/api/v1/remember").body(deep)).await;
    refused(&deep, 400, "VALIDATION_ERROR", Some("metadata"));
    assert_eq!((s.count("documents").await, s.blobs()), (1, blobs), "nothing of them was kept");

    // To the byte.
    let small = s.fleet.api_with(Opts::new().env("STEADFAST_MAX_UPLOAD", "64KiB")).await;
    let ann = small.client(&s.ann);
    for (length, status) in [(65_535, 202), (65_536, 202), (65_537, 413)] {
        let letters = "many words ".repeat(6000);
        let answer = ann.upload(letters[..length].to_owned(), "letters.txt").await;
        assert_eq!(answer.status, status, "{length}: {answer}");
        if status == 202 {
            assert_eq!(ended(&ann, &answer.job_id()).await["status"], "completed");
            let document = format!("/api/v1/documents/{}", answer.json["documentId"].as_str().expect("an id"));
            assert_eq!(ann.send(ann.request(Method::DELETE, &document)).await.status, 204);
            assert_eq!(ann.get(&document).await.status, 404, "what was stored can be taken away again");
        }
    }
    s.goes_on().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_a_body_that_stalls_or_never_ends_is_given_up_and_leaves_nothing() {
    let quick = Opts::new().env("STEADFAST_BODY_IDLE", "1s").env("STEADFAST_BODY_TIMEOUT", "4s");
    let mut s = House::build(quick).await;
    let (upload, remember) = (s.upload_path("slow.txt"), "/api/v1/remember".to_owned());

    for path in [&upload, &remember] {
        let mut stalled = by_hand(&s.api, &s.ann.token, path, "content-length: 1000\r\n").await;
        stalled.write_all(b"{\"text\":").await.expect("a few bytes");
        let begun = Instant::now();
        let (status, head, body) = answer(&mut stalled).await;
        assert_eq!((status, &body["error"]["code"]), (408, &json!("BODY_TIMEOUT")), "{head}");
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());

        // Never silent for long, and never done.
        let endless = by_hand(&s.api, &s.ann.token, path, "transfer-encoding: chunked\r\n").await;
        let (mut reader, mut writer) = endless.into_split();
        let begun = Instant::now();
        let sending = tokio::spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_millis(200));
            while writer.write_all(b"1\r\nx\r\n").await.is_ok() {
                pace.tick().await;
            }
        });
        let (status, head, body) = answer(&mut reader).await;
        assert_eq!((status, &body["error"]["code"]), (408, &json!("BODY_TIMEOUT")), "{head}");
        assert!((3..8).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        sending.abort();

        // Gone in the middle.
        let mut gone = by_hand(&s.api, &s.ann.token, path, "content-length: 1000\r\n").await;
        gone.write_all(b"{\"text\":\"half").await.expect("a few bytes");
        drop(gone);
    }
    s.goes_on().await;
    assert_eq!((s.count("documents").await, s.blobs()), (1, 1), "only the good one is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn p32_bad_input_more_bodies_than_places_are_asked_to_come_back() {
    let mut s = House::build(Opts::new()).await;
    let ann = s.client();
    let mut held = Vec::new();
    for _ in 0..32 {
        let mut one = by_hand(&s.api, &s.ann.token, &s.upload_path("slow.txt"), "content-length: 10\r\n").await;
        one.write_all(b"x").await.expect("a byte");
        held.push(one);
    }
    let busy = wait_until("there is no place left", SOON, async || {
        let answer = ann.remember("is there a place").await;
        if answer.status == 429 { Ok(answer) } else { Err(answer.text) }
    })
    .await;
    refused(&busy, 429, "RATE_LIMITED", None);
    let seconds: u32 = busy.headers["retry-after"].to_str().expect("text").parse().expect("seconds");
    assert!(seconds > 0);
    // Who only reads is not in the way of any of them.
    assert_eq!(ann.get("/health/live").await.status, 200);
    assert_eq!(ann.search("anything").await.status, 200);
    drop(held);
    s.goes_on().await;
}

// ── Strangers ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_without_a_good_token_nothing_is_read_or_told() {
    let mut s = House::build(Opts::new()).await;
    let ann = s.client();
    let (revoked, expired) = (s.db.person("rita").await, s.db.person("ed").await);
    s.db.exec(&format!("update tokens set revoked_at = now() where user_id = {}", revoked.user_id))
        .await;
    s.db.exec(&format!("update tokens set expires_at = now() where user_id = {}", expired.user_id))
        .await;
    let mut said = BTreeSet::new();
    let wrong = format!("{}x", s.ann.token);
    for token in [
        "",
        "sf_wrong",
        &wrong,
        &s.ann.token[..20],
        &revoked.token,
        &expired.token,
        &"x".repeat(5000),
    ] {
        let who = ann.with_token(token);
        let answers = [
            who.search("anything").await,
            who.remember("anything").await,
            who.upload("anything", "x.txt").await,
            who.get("/api/v1/spaces").await,
            who.get("/api/v1/jobs/1").await,
            who.get("/api/v1/documents").await,
        ];
        for answer in answers {
            refused(&answer, 401, "UNAUTHORIZED", None);
            assert!(answer.headers.contains_key("www-authenticate"), "{answer}");
            said.insert(answer.json["error"]["message"].to_string());
        }
    }
    assert_eq!(said.len(), 1, "unknown, revoked and expired are told alike: {said:?}");
    let basic = ann.with_token("");
    let basic = basic
        .send(basic.request(Method::GET, "/api/v1/spaces").basic_auth("ann", Some(&s.ann.token)))
        .await;
    refused(&basic, 401, "UNAUTHORIZED", None);
    // Told before the first byte of 40 MB.
    let mut stranger = by_hand(&s.api, "sf_wrong", &s.upload_path("big.bin"), "content-length: 41943040\r\n").await;
    assert_eq!(answer(&mut stranger).await.0, 401);

    for space in ["0", "-1", "999999", "99999999999999999999", "Atlantis", "' or 1=1 --"] {
        let unknown = ann.post("/api/v1/remember", &json!({"text": "x", "spaceIds": [space]})).await;
        refused(&unknown, 404, "NOT_FOUND", None);
        assert!(unknown.json["error"]["fields"]["spaceIds"].is_string(), "{unknown}");
    }
    refused(&ann.upload_to("x", "x.txt", 999_999).await, 404, "NOT_FOUND", None);
    assert_eq!((s.count("documents").await, s.count("jobs").await, s.blobs()), (0, 0, 0));
    s.goes_on().await;
}

// ── The database away ────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn p33_bad_input_an_api_without_its_database_says_503_and_takes_nothing() {
    let db = Db::new().await;
    let fleet = Fleet::new(&db);
    let nowhere = Opts::new().env("STEADFAST_DATABASE_URL", "postgres://nobody:s3cret@127.0.0.1:1/none");
    let mut api = fleet.api_with(nowhere).await;
    let ann = api.client(&db.person("ann").await);
    assert_eq!(ann.get("/health/live").await.status, 200, "it lives, it cannot serve");
    let begun = Instant::now();
    let (ready, search, remember, upload, jobs) = tokio::join!(
        ann.get("/health/ready"),
        ann.search("anything"),
        ann.remember("anything"),
        ann.upload("anything", "x.txt"),
        ann.get("/api/v1/jobs")
    );
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    refused(&ready, 503, "NOT_READY", None);
    for answer in [search, remember, upload, jobs] {
        refused(&answer, 503, "UNAVAILABLE", None);
        let seconds: u32 = answer.headers["retry-after"].to_str().expect("text").parse().expect("seconds");
        assert!(seconds > 0 && !answer.text.contains("127.0.0.1"), "{answer}");
    }
    assert_eq!(files(&fleet.dir().join("blobs")), 0);
    assert!(!api.process.log().contains("s3cret"), "a password in the log");
    assert!(api.process.is_alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_case53_a_database_that_goes_away_in_the_middle_costs_no_promise() {
    let mut s = House::build(Opts::new()).await;
    s.goes_on().await;
    let ann = s.client();
    let name: String = s.db.one("select current_database()::text").await;
    let server = std::env::var("STEADFAST_TEST_PG").expect("it was there before");
    let mut admin = sqlx::PgConnection::connect(&server).await.expect("the server");
    let mut run = async |sql: String| {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut admin)
            .await
            .expect("a superuser may");
    };

    let stop = Arc::new(AtomicBool::new(false));
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel::<Answer>();
    for n in 0..4 {
        let (ann, stop, told) = (ann.clone(), stop.clone(), told.clone());
        tokio::spawn(async move {
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let _ended = told.send(ann.remember(&format!("promise {n} of round {round}")).await);
            }
        });
    }
    drop(told);
    let mut promised: Vec<i64> = Vec::new();
    let mut refusals = 0_usize;
    let mut hear = async |kept: usize, not: usize| {
        let (kept, not) = (promised.len() + kept, refusals + not);
        while promised.len() < kept || refusals < not {
            let Some(answer) = heard.recv().await else {
                return (promised.clone(), refusals);
            };
            match answer.status {
                202 => promised.push(answer.json["documentId"].as_str().and_then(|i| i.parse().ok()).expect("an id")),
                _ => {
                    refused(&answer, 503, "UNAVAILABLE", None);
                    assert!(answer.headers.contains_key("retry-after"), "{answer}");
                    refusals += 1;
                }
            }
        }
        (promised.clone(), refusals)
    };
    hear(20, 0).await;
    for _ in 0..2 {
        run(format!("alter database {name} allow_connections false")).await;
        run(format!(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
        ))
        .await;
        hear(0, 12).await;
        assert_eq!(ann.get("/health/ready").await.status, 503);
        assert_eq!(ann.get("/health/live").await.status, 200);
        run(format!("alter database {name} allow_connections true")).await;
        hear(20, 0).await;
    }
    stop.store(true, Ordering::Relaxed);
    let (promised, refusals) = hear(usize::MAX / 2, 0).await;

    let rows: Vec<i64> = sqlx::query_scalar("select id from documents where title like 'promise%'")
        .fetch_all(&s.db.pool)
        .await
        .expect("it is back");
    let rows: BTreeSet<i64> = rows.into_iter().collect();
    let kept: BTreeSet<i64> = promised.iter().copied().collect();
    assert_eq!(kept.len(), promised.len(), "no id was promised twice");
    assert!(kept.is_subset(&rows), "promised and not there: {:?}", kept.difference(&rows));
    // A commit whose answer was lost may leave a row that was not promised, never more than were refused.
    assert!(rows.len() - kept.len() <= refusals, "{} rows, {} promised", rows.len(), kept.len());
    wait_until("all of them are read and embedded", Duration::from_secs(60), async || {
        let open = s.count("documents where status <> 'processed'").await;
        let bare = s.count("blocks where embedding is null").await;
        if (open, bare) == (0, 0) { Ok(()) } else { Err((open, bare)) }
    })
    .await;
    assert_eq!(s.count("blocks").await, s.count("documents").await, "each once");
    s.goes_on().await;
    println!("{} promised, {refusals} refused, {} rows", kept.len(), rows.len());
}
