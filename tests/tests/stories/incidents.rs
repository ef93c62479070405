//! Incidents and notices: work that a closed breaker holds comes through in its own place, and whoever waits for it is told once that it
//! is held and once how it ended, whatever happens to mails, workers, Spaces and people in between.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use steadfast_tests::harness::{Answer, Api, Client, Db, Fleet, Opts, Person, Process, Sink, wait_until};
use steadfast_tests::mail::Mail;
use steadfast_tests::provider::{Action, Fixture, Provider, Rule, ScriptedPage, sha256};
use steadfast_tests::smtp::{Act, Mode, Rule as MailRule, Smtp, Step};

const SOON: Duration = Duration::from_secs(30);

// ── Stage ────────────────────────────────────────────────────────────────────────────────────────────────────────────

/// A database, two providers (one reads pages, one embeds), an API. Tesseract and its endpoint are there too: nobody turned them off.
struct House {
    db: Db,
    eyes: Provider,
    vectors: Provider,
    fleet: Fleet,
    api: Api,
}

impl House {
    async fn build() -> Self {
        Self::build_with(&[]).await
    }

    /// With these variables for every process.
    async fn build_with(env: &[(&str, &str)]) -> Self {
        let db = Db::new().await;
        let (eyes, vectors) = (Provider::start(), Provider::start());
        db.ocr_endpoint("eyes", &eyes).await;
        db.openai_endpoint("vectors", &vectors, 384).await;
        let mut fleet = Fleet::new(&db);
        // What is not under test comes round fast.
        for (name, value) in [
            ("STEADFAST_ITEM_BACKOFF", "50ms"),
            ("STEADFAST_ENDPOINT_BACKOFF", "50ms"),
            ("STEADFAST_ENDPOINT_BACKOFF_CAP", "200ms"),
            ("STEADFAST_QUESTION_TIMEOUT", "3s"),
        ] {
            fleet.set(name, value);
        }
        for (name, value) in env {
            fleet.set(name, *value);
        }
        let api = fleet.api().await;
        Self {
            db,
            eyes,
            vectors,
            fleet,
            api,
        }
    }

    fn client(&self, who: &Person) -> Client {
        self.api.client(who)
    }

    /// A worker that sends its mails there.
    async fn worker(&self, smtp: &str) -> Process {
        self.worker_with(Opts::new(), smtp).await
    }

    async fn worker_with(&self, opts: Opts, smtp: &str) -> Process {
        let opts = opts
            .env("STEADFAST_SMTP_URL", smtp)
            .env("STEADFAST_MAIL_FROM", "Steadfast <steadfast@example.org>");
        self.fleet.worker_with(opts).await
    }

    /// Flips a breaker by the operator's command; returns what it said.
    async fn breaker(&self, to: &str, capability: &str, reason: &str) -> Value {
        let mut args = vec!["breaker", to, capability, "--reason", reason, "--json"];
        if to == "off" {
            args.push("--yes");
        }
        let said = self.fleet.run("steadfast", &args, Opts::new()).await;
        assert_eq!(said.code, Some(0), "{said}");
        said.json()
    }

    async fn count(&self, of: &str) -> i64 {
        self.db.one(&format!("select count(*) from {of}")).await
    }

    async fn until(&self, what: &str, of: &str, wanted: i64) {
        self.until_within(what, of, wanted, SOON).await;
    }

    async fn until_within(&self, what: &str, of: &str, wanted: i64, patience: Duration) {
        wait_until(what, patience, async || match self.count(of).await {
            n if n == wanted => Ok(()),
            n => Err(n),
        })
        .await;
    }

    /// One text, or null's stand-in `-`, of a statement.
    async fn text(&self, sql: &str) -> String {
        self.db.one(&format!("select coalesce(({sql})::text, '-')")).await
    }

    async fn texts(&self, sql: &str) -> Vec<String> {
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(&self.db.pool)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    /// Until every living worker has looked for work at least once more, whatever it was doing: `rounds` times.
    async fn looks(&self, rounds: u32) {
        for _ in 0..rounds {
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

    /// A person's notices, one `opening/closing/wording` per incident in its order; `-` for what is not there yet.
    async fn notices_of(&self, who: &Person) -> Vec<String> {
        self.texts(&format!(
            "select concat_ws('/', opening, coalesce(closing, '-'), coalesce(closing_wording, '-')) from notices where user_id = {} order by incident_id, id",
            who.user_id
        ))
        .await
    }

    async fn until_notices(&self, who: &Person, wanted: &[&str]) {
        wait_until(&format!("the notices are {wanted:?}"), SOON, async || {
            let seen = self.notices_of(who).await;
            if seen == wanted { Ok(()) } else { Err(seen) }
        })
        .await;
    }

    /// The picture behind a page, as the reader gets it.
    fn picture(&self, image_key: &str) -> String {
        sha256(&std::fs::read(self.blob(image_key)).expect("the picture of a page that waits"))
    }

    fn blob(&self, key: &str) -> PathBuf {
        self.fleet.dir().join("blobs").join(key)
    }

    /// Decides what every page that waits says: `title`, and its number. Titles are words.
    async fn write_pages(&self) {
        let pages: Vec<(String, String)> = sqlx::query_as(
            "select p.image_key, 'ledger of ' || d.title || ' sheet ' || p.no from pages p join documents d on d.id = p.document_id where p.status = 'waiting'",
        )
        .fetch_all(&self.db.pool)
        .await
        .expect("pages");
        let pages: Vec<ScriptedPage> = pages
            .into_iter()
            .map(|(key, text)| ScriptedPage {
                image: self.picture(&key),
                text,
                confidence: 0.97,
            })
            .collect();
        self.eyes.set(|s| s.pages = pages);
    }

    /// Both providers were asked so often.
    fn asked(&self) -> (usize, usize) {
        (self.eyes.calls().len(), self.vectors.calls().len())
    }
}

/// A scan that nobody else has: a PNG of 16 × 4 grey dots that spell `n`.
fn scan(n: usize) -> Vec<u8> {
    fn chunk(png: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
        png.extend(u32::try_from(data.len()).expect("small").to_be_bytes());
        png.extend(kind);
        png.extend(data);
        let mut crc = flate2::Crc::new();
        crc.update(kind);
        crc.update(data);
        png.extend(crc.sum().to_be_bytes());
    }
    let mut rows = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    for row in 0..4 {
        rows.write_all(&[0]).expect("into memory");
        rows.write_all(&dots(n, row)).expect("into memory");
    }
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let head = [&16_u32.to_be_bytes()[..], &4_u32.to_be_bytes(), &[8, 0, 0, 0, 0]].concat();
    chunk(&mut png, b"IHDR", &head);
    chunk(&mut png, b"IDAT", &rows.finish().expect("into memory"));
    chunk(&mut png, b"IEND", &[]);
    png
}

fn dots(n: usize, row: usize) -> [u8; 16] {
    std::array::from_fn(|column| {
        if (n >> column) & 1 == 1 {
            20 + u8::try_from(row).expect("few rows")
        } else {
            235
        }
    })
}

/// Hands a scan in; its title is words, so that they can be searched for.
async fn hand_in(client: &Client, title: &str, n: usize) -> Answer {
    let added = client.upload(scan(n), title).await;
    assert_eq!(added.status, 202, "{added}");
    added
}

fn diagnostics(answer: &Answer) -> &Value {
    assert_eq!(answer.status, 200, "{answer}");
    &answer.json["diagnostics"]
}

fn notice_in(answer: &Answer) -> String {
    diagnostics(answer)["notice"]
        .as_str()
        .unwrap_or_else(|| panic!("no notice: {answer}"))
        .to_owned()
}

/// Titles of what was found.
fn titles(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{answer}");
    let results = answer.json["results"].as_array().expect("always there");
    results
        .iter()
        .map(|r| r["memory"]["title"].as_str().expect("always there").to_owned())
        .collect()
}

const PAUSED: &str = "paused";
const READ: &str = "have been read";
const BACK: &str = "by meaning is back";
const ATTENTION: &str = "need your attention";

/// Mails to one person, by a part of their subject.
fn to<'a>(mails: &'a [Mail], name: &str, subject: &str) -> Vec<&'a Mail> {
    let address = format!("{name}@example.org");
    mails
        .iter()
        .filter(|m| m.to == [address.as_str()] && m.subject.contains(subject))
        .collect()
}

fn told(mails: &[Mail]) -> Vec<String> {
    mails.iter().map(|m| format!("{}: {}", m.to.join(","), m.subject)).collect()
}

// ── One apology, one promise kept ────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn p27_p28_b23_flipping_twice_is_one_incident_with_one_apology_until_it_is_over() {
    let h = House::build().await;
    let sink = Sink::start().await;
    let _worker = h.worker(&sink.url()).await;
    let ann = h.db.person("ann").await;
    let client = h.client(&ann);

    h.breaker("off", "ocr", "key rotated").await;
    hand_in(&client, "first deed", 1).await;
    h.until_notices(&ann, &["sent/-/-"]).await;

    // On: its work runs, and is still in the provider's hands when it goes off again.
    h.eyes.rule(Rule::all().times(1).then(Action::hold("slow")));
    h.breaker("on", "ocr", "perhaps").await;
    h.eyes.wait_calls(1).await;
    h.breaker("off", "ocr", "no, not yet").await;
    hand_in(&client, "second deed", 2).await;
    h.until("the second is held too", "jobs where kind = 'ocr' and status = 'waiting'", 1)
        .await;
    h.eyes.release("slow");
    h.until("the first came through", "pages where status = 'read'", 1).await;
    h.looks(2).await;
    assert_eq!(h.count("incidents").await, 1);
    assert_eq!(
        h.text("select reason from incidents").await,
        "key rotated",
        "the first reason, for good"
    );
    assert_eq!(h.notices_of(&ann).await, ["sent/-/-"], "one row, and nothing has landed yet");
    assert_eq!(told(&sink.mails().await).len(), 1, "{:?}", told(&sink.mails().await));

    h.breaker("on", "ocr", "the new key is in").await;
    h.until_notices(&ann, &["sent/sent/landed"]).await;
    h.looks(2).await;
    assert_eq!(h.count("incidents where closed_at is null").await, 1, "the half hour is not over");
    // Twenty-nine minutes and a bit later it would rejoin; after thirty-one it is over.
    h.db.exec("update incidents set enabled_at = enabled_at - interval '29 minutes'")
        .await;
    h.looks(2).await;
    assert_eq!(h.count("incidents where closed_at is null").await, 1);
    h.db.exec("update incidents set enabled_at = enabled_at - interval '2 minutes'")
        .await;
    h.until("it is over", "incidents where closed_at is not null and closed_by = 'system'", 1)
        .await;

    h.breaker("off", "ocr", "the next one").await;
    hand_in(&client, "third deed", 3).await;
    h.until_notices(&ann, &["sent/sent/landed", "sent/-/-"]).await;
    assert_eq!(h.count("incidents").await, 2);
    h.breaker("on", "ocr", "and back").await;
    h.until_notices(&ann, &["sent/sent/landed", "sent/sent/landed"]).await;
    let mails = sink.mails().await;
    assert_eq!(
        (to(&mails, "ann", PAUSED).len(), to(&mails, "ann", READ).len()),
        (2, 2),
        "{:?}",
        told(&mails)
    );
    assert_eq!(mails.len(), 4, "{:?}", told(&mails));
    let ids: BTreeSet<&str> = mails.iter().map(|m| m.message_id.as_str()).collect();
    assert_eq!(ids.len(), 4, "each has its own id: {ids:?}");
}

// ── A mail that may have been sent ───────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn b25_a_worker_killed_between_the_message_and_its_250_sends_no_second_mail() {
    let h = House::build().await;
    let smtp = Smtp::start();
    smtp.rule(MailRule::at(Step::Body).times(1).then(Act::hold("unsaid")));
    let ann = h.db.person("ann").await;
    h.breaker("off", "ocr", "key rotated").await;
    let mut first = h.worker(&smtp.url()).await;
    hand_in(&h.client(&ann), "a deed", 1).await;
    let whole = smtp.wait_for("the whole message", |m| m.to == ["ann@example.org"]).await;
    assert_eq!(whole.answer, None, "nothing was said to it");
    assert_eq!(h.notices_of(&ann).await, ["sending/-/-"], "marked before the first byte left");
    first.kill9().await;

    let _second = h.worker(&smtp.url()).await;
    h.until_notices(&ann, &["unknown/-/-"]).await;
    smtp.release("unsaid");
    h.looks(4).await;
    assert_eq!(h.notices_of(&ann).await, ["unknown/-/-"]);
    assert_eq!(smtp.received().len(), 1, "{:?}", smtp.dialogue());
    assert_eq!(h.count("jobs where kind = 'notice'").await, 0, "nothing is left that could send it");
    let why = h.text("select error from notices").await;
    assert!(why.contains("died"), "an operator sees why: {why}");

    // The second worker does send: the other part of the same notice.
    h.breaker("on", "ocr", "the new key is in").await;
    h.until_notices(&ann, &["unknown/sent/landed"]).await;
    let all = smtp.received();
    assert_eq!(all.len(), 2, "{:?}", smtp.dialogue());
    assert!(all[1].mail.subject.contains(READ), "{:?}", all[1]);
    assert_ne!(all[0].mail.message_id, all[1].mail.message_id);
}

// ── Embedding stopped ────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn p24_p26_p29_embedding_off_tells_the_same_words_everywhere_and_keeps_its_word() {
    let h = House::build().await;
    let sink = Sink::start().await;
    let _worker = h.worker(&sink.url()).await;
    let ann = h.db.person("ann").await;
    let client = h.client(&ann);

    // The calls can happen, and there is something to find.
    let added = client.remember("green tea from the first crate").await;
    assert_eq!(added.status, 202, "{added}");
    h.until("it is embedded", "blocks where embedding is not null", 1).await;
    let whole = client.search("crate of tea").await;
    assert_eq!(diagnostics(&whole)["degraded"], json!(false), "{whole}");
    assert!(h.vectors.calls().len() >= 2);

    h.breaker("off", "embedding", "key rotated").await;
    let before = h.asked();
    let added = client.remember("oolong from the second crate").await;
    assert_eq!(added.status, 202, "{added}");
    h.until(
        "its words are there and its meaning is held",
        "jobs where kind = 'embed' and status = 'waiting'",
        1,
    )
    .await;
    let found = client.search("crate").await;
    assert_eq!(titles(&found).len(), 2, "{found}");
    let d = diagnostics(&found);
    assert_eq!(
        (&d["degraded"], &d["unavailable"]),
        (&json!(true), &json!(["embedding"])),
        "{found}"
    );
    let failed: Vec<&Value> = d["steps"]
        .as_array()
        .expect("always there")
        .iter()
        .filter(|s| s.to_string().contains("fail"))
        .collect();
    assert!(failed.is_empty(), "degraded although nothing failed: {found}");
    assert!(d["steps"].as_array().is_some_and(|s| s.iter().all(Value::is_string)), "{found}");
    let codes: Vec<&str> = d["reasons"]
        .as_array()
        .expect("always there")
        .iter()
        .filter_map(|r| r["code"].as_str())
        .collect();
    assert!(
        codes.iter().all(|c| !c.contains("failed") && !c.starts_with("question_")),
        "{found}"
    );
    let held: i64 = h.db.one("select id from jobs where kind = 'embed' and status = 'waiting'").await;
    let job = client.job(&held.to_string()).await;
    assert_eq!(
        (&job.json["status"], &job.json["hold"]["capability"]),
        (&json!("queued"), &json!("embedding")),
        "{job}"
    );
    let document = client
        .get(&format!(
            "/api/v1/documents/{}",
            added.json["documentId"].as_str().expect("a document")
        ))
        .await;

    // One wording, wherever a person meets it.
    let said = notice_in(&found);
    h.until_notices(&ann, &["sent/-/-"]).await;
    let mails = sink.wait_mails(1).await;
    assert_eq!(mails[0].to, ["ann@example.org"]);
    assert_eq!(mails[0].body.trim_end(), said, "the mail says what search says");
    assert_eq!(job.json["hold"]["notice"], json!(said), "{job}");
    assert!(added.json["note"].as_str().is_some_and(|n| n.contains(&said)), "{added}");
    assert_eq!(document.json["notice"], json!(said), "{document}");
    for promised in ["paused", "stored safely", "email"] {
        assert!(said.contains(promised), "{said}");
    }

    h.looks(2).await;
    assert_eq!(h.asked(), before, "nobody was asked");
    assert_eq!(sink.mails().await.len(), 1, "and nobody was told twice");

    h.breaker("on", "embedding", "the new key is in").await;
    h.until_notices(&ann, &["sent/sent/landed"]).await;
    h.until("both are embedded", "blocks where embedding is not null", 2).await;
    let whole = client.search("crate of oolong").await;
    let d = diagnostics(&whole);
    assert_eq!(d["degraded"], json!(false), "{whole}");
    assert!(d["notice"].is_null() && d["unavailable"].is_null(), "{whole}");
    let mails = sink.mails().await;
    assert_eq!(
        (to(&mails, "ann", PAUSED).len(), to(&mails, "ann", BACK).len()),
        (1, 1),
        "{:?}",
        told(&mails)
    );
    assert_eq!(mails.len(), 2);
}

// ── Mail servers that fail ───────────────────────────────────────────────────────────────────────────────────────────

/// Nine people with something held, and a mail server that is at first away, then deaf, then has something against each of them.
#[tokio::test(flavor = "multi_thread")]
async fn b25_p28_a_mail_server_that_fails_costs_nobody_their_mail_and_sends_none_twice() {
    let h = House::build_with(&[("STEADFAST_SMTP_TIMEOUT", "400ms")]).await;
    let smtp = Smtp::start();
    smtp.mode(Mode::Refuse).await;
    let mut worker = h.worker_with(Opts::new().concurrency(2), &smtp.url()).await;
    let mut people = Vec::new();
    for name in ["ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal", "ida"] {
        people.push(h.db.person(name).await);
    }
    let [ann, bob, cid, dan, eve, fay, gus, hal, ida] = &people[..] else {
        unreachable!()
    };
    // Nobody's address, one that would write a header of its own, and none at all.
    h.db.exec("update users set email = 'gus at home' where name = 'gus'").await;
    h.db.exec("update users set email = E'hal@example.org\\r\\nBcc: everybody@example.org' where name = 'hal'")
        .await;
    h.db.exec("update users set email = null where name = 'ida'").await;

    h.breaker("off", "embedding", "key rotated").await;
    for who in &people {
        let added = h.client(who).remember("a note about barges").await;
        assert_eq!(added.status, 202, "{added}");
    }
    let reachable = [ann, bob, cid, dan, eve, fay];
    let users = list(reachable.iter().map(|p| p.user_id));
    // How many of the six have met this by now.
    let met = |class: &str, cause: &str| {
        format!(
            "notices n where n.user_id in ({users}) and exists (select from attempts a join jobs j on j.id = a.job_id
               where j.kind = 'notice' and j.item_id = n.id and a.class = '{class}' and a.cause = '{cause}' and a.forgiven)"
        )
    };
    h.until("nobody listens", &met("outage", "connection_refused"), 6).await;
    h.until_notices(ida, &["no_address/-/-"]).await;
    for (who, address) in [(gus, "at home"), (hal, "everybody")] {
        h.until_notices(who, &["failed/-/-"]).await;
        let ended = h
            .text(&format!("select concat_ws(' ', j.status, last_class, last_cause, last_error) from jobs j join notices n on n.id = j.item_id where j.kind = 'notice' and n.user_id = {}", who.user_id))
            .await;
        assert!(
            ended.starts_with("dead bad_input bad_address ") && !ended.contains(address),
            "{ended}"
        );
    }

    smtp.mode(Mode::Deaf).await;
    h.until("nobody greets", &met("outage", "timeout"), 6).await;
    assert_eq!(smtp.received().len(), 0);
    assert_eq!(
        h.count(&format!("notices where user_id in ({users}) and opening in ('due', 'sending')"))
            .await,
        6,
        "all wait"
    );

    // One for now, one that wants a login, one that takes everything and closes, one that closes before it, one for good. The first
    // connection is held at the greeting, after which nothing was sent.
    smtp.rule(MailRule::at(Step::Greeting).times(1).then(Act::hold("never")));
    smtp.rule(MailRule::at(Step::Rcpt).to("bob@").times(2).then(Act::reply(451, "4.3.0 später")));
    smtp.rule(
        MailRule::at(Step::Rcpt)
            .to("cid@")
            .times(2)
            .then(Act::reply(535, "5.7.8 wer sind Sie?")),
    );
    smtp.rule(MailRule::at(Step::Body).to("dan@").then(Act::Vanish));
    smtp.rule(MailRule::at(Step::Data).to("eve@").times(2).then(Act::Vanish));
    smtp.rule(MailRule::at(Step::Rcpt).to("fay@").then(Act::reply(550, "5.1.1 unbekannt")));
    smtp.mode(Mode::Open).await;
    for who in [ann, bob, cid, eve] {
        h.until_notices(who, &["sent/-/-"]).await;
    }
    h.until_notices(dan, &["unknown/-/-"]).await;
    h.until_notices(fay, &["failed/-/-"]).await;
    let causes = |who: &Person| {
        format!(
            "select coalesce(string_agg(distinct a.class || ':' || a.cause, ' '), '') from attempts a
               left join jobs j on j.id = a.job_id left join jobs_done d on d.id = a.job_id
               join notices n on n.id = coalesce(j.item_id, d.item_id) where coalesce(j.kind, d.kind) = 'notice' and n.user_id = {}",
            who.user_id
        )
    };
    for (who, wanted) in [
        (bob, "outage:server_busy"),
        (cid, "outage:auth_refused"),
        (eve, "outage:connection_lost"),
        (fay, "bad_input:recipient_refused"),
    ] {
        let seen = h.text(&causes(who)).await;
        assert!(seen.contains(wanted), "{wanted}: {seen}");
    }
    h.looks(4).await;
    let words = |m: &steadfast_tests::smtp::Received| format!("{} {:?}", m.to.join(","), m.answer);
    let seen: Vec<String> = smtp.received().iter().map(words).collect();
    let seen: BTreeSet<&str> = seen.iter().map(String::as_str).collect();
    assert_eq!(
        seen,
        BTreeSet::from([
            "ann@example.org Some(250)",
            "bob@example.org Some(250)",
            "cid@example.org Some(250)",
            "eve@example.org Some(250)",
            "dan@example.org None"
        ])
    );
    assert_eq!(smtp.received().len(), 5, "each once, what may have arrived included");
    assert_eq!(h.count("jobs where kind = 'notice' and status in ('waiting', 'running')").await, 0);
    assert!(worker.is_alive());

    // The other part is another mail: it goes out to all who can have one, the one whose first may have got lost included.
    smtp.clear_rules();
    h.breaker("on", "embedding", "the new key is in").await;
    for (who, wanted) in [
        (ann, "sent"),
        (bob, "sent"),
        (cid, "sent"),
        (dan, "unknown"),
        (eve, "sent"),
        (fay, "failed"),
    ] {
        h.until_notices(who, &[&format!("{wanted}/sent/landed")]).await;
    }
    h.until_notices(gus, &["failed/failed/landed"]).await;
    h.until_notices(ida, &["no_address/no_address/landed"]).await;
    assert_eq!(smtp.received().len(), 5 + 6);
    let hidden = smtp
        .received()
        .iter()
        .filter(|m| String::from_utf8_lossy(&m.raw).contains("everybody@"))
        .count();
    assert_eq!(hidden, 0, "nobody's address became a header");
    assert_eq!(
        h.count("blocks where embedding is null").await,
        0,
        "the work itself was never in question"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn p28_without_a_mail_server_the_notice_waits_where_it_is_seen() {
    let h = House::build().await;
    let ann = h.db.person("ann").await;
    let client = h.client(&ann);
    let mut deaf = h.fleet.worker().await;
    h.breaker("off", "embedding", "key rotated").await;
    assert_eq!(client.remember("a note about barges").await.status, 202);
    h.until_notices(&ann, &["due/-/-"]).await;
    h.looks(3).await;
    assert_eq!(h.count("jobs where kind = 'notice'").await, 0, "no work is made that nobody can do");
    assert_eq!(h.notices_of(&ann).await, ["due/-/-"], "it waits");
    // The worker goes on with everything else.
    assert!(deaf.is_alive());
    assert_eq!(client.remember("a second note about barges").await.status, 202);
    h.until("the second is held too", "jobs where kind = 'embed' and status = 'waiting'", 2)
        .await;

    let sink = Sink::start().await;
    let _mailer = h.worker(&sink.url()).await;
    h.until_notices(&ann, &["sent/-/-"]).await;
    assert_eq!(sink.mails().await.len(), 1);
}

// ── Places and people that go ────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn b27_what_has_no_place_any_more_is_set_aside_and_what_has_no_owner_is_gone() {
    let h = House::build().await;
    let sink = Sink::start().await;
    let mut worker = h.worker(&sink.url()).await;
    let mut people = Vec::new();
    for name in ["ann", "bob", "cid", "dan"] {
        people.push(h.db.person(name).await);
    }
    let [ann, bob, cid, dan] = &people[..] else { unreachable!() };
    // Bob may write in Ann's Space, for now; Dan reads along everywhere.
    for (space, who) in [(ann, bob), (ann, dan), (bob, dan), (cid, dan)] {
        h.db.exec(&format!(
            "insert into space_members (tenant_id, space_id, user_id) values ({}, {}, {})",
            space.tenant_id, space.space_id, who.user_id
        ))
        .await;
    }
    // Cid's is in the provider's hands when Cid goes.
    h.eyes.rule(Rule::all().times(1).then(Action::hold("slow")));
    hand_in(&h.client(cid), "deed of cid", 1).await;
    h.eyes.wait_calls(1).await;
    h.breaker("off", "ocr", "key rotated").await;
    hand_in(&h.client(ann), "deed of ann", 2).await;
    let of_bob = h.client(bob).upload_to(scan(3), "deed of bob", ann.space_id).await;
    assert_eq!(of_bob.status, 202, "{of_bob}");
    let own = hand_in(&h.client(bob), "own deed of bob", 4).await;
    h.until("three are held", "jobs where kind = 'ocr' and status = 'waiting'", 3).await;
    h.write_pages().await;

    let keys = h.texts("select blob_key from documents where title = 'deed of cid' union all select image_key from pages p join documents d on d.id = p.document_id where d.title = 'deed of cid'").await;
    assert!(keys.len() == 2 && keys.iter().all(|k| h.blob(k).exists()));
    h.db.exec(&format!("delete from users where id = {}", cid.user_id)).await;
    h.eyes.release("slow");
    h.until("the late result is refused by the fence", "workers where late_settle_count = 1", 1)
        .await;
    h.until("bytes without an owner are collected", "dropped_blobs", 0).await;
    assert!(keys.iter().all(|k| !h.blob(k).exists()), "0 blobs");
    for of in [
        "documents where title = 'deed of cid'",
        "blocks",
        "pages where status = 'read'",
        "attempts a where not exists (select from jobs where id = a.job_id)",
    ] {
        assert_eq!(h.count(of).await, 0, "{of}");
    }

    // Bob may not any more, then the Space itself goes. His own document in his own Space is not touched by either.
    h.db.exec(&format!(
        "delete from space_members where space_id = {} and user_id = {}",
        ann.space_id, bob.user_id
    ))
    .await;
    h.breaker("on", "ocr", "the new key is in").await;
    h.until_notices(bob, &["sent/sent/needs_attention"]).await;
    h.until_notices(ann, &["sent/sent/landed"]).await;
    let place_gone = |title: &str| {
        format!(
            "jobs j join pages p on j.kind = 'ocr' and p.id = j.item_id join documents d on d.id = p.document_id where d.title = '{title}' and j.status = 'parked' and j.last_class = 'place_gone' and j.attempts = 1"
        )
    };
    assert_eq!(h.count(&place_gone("deed of bob")).await, 1);
    assert_eq!(h.client(bob).job(&own.job_id()).await.json["status"], "completed");
    assert_eq!(h.client(bob).job(&of_bob.job_id()).await.json["status"], "failed");
    let calls = h.eyes.calls().len();
    assert_eq!(
        h.eyes.calls_for("ledger of deed of bob").len(),
        0,
        "nobody was shown what has no place: {calls}"
    );

    h.breaker("off", "ocr", "again").await;
    hand_in(&h.client(ann), "last deed of ann", 5).await;
    h.until("it is held", "jobs where kind = 'ocr' and status = 'waiting'", 1).await;
    h.write_pages().await;
    h.db.exec(&format!("delete from spaces where id = {}", ann.space_id)).await;
    assert_eq!(
        h.count("documents where title = 'deed of ann'").await,
        0,
        "what had landed in it went with it"
    );
    h.breaker("on", "ocr", "and back").await;
    h.until("it is set aside", &place_gone("last deed of ann"), 1).await;
    assert_eq!(
        h.count("documents where title = 'last deed of ann' and space_id is null").await,
        1,
        "the document is kept"
    );
    let kept = h.texts("select blob_key from documents where title = 'last deed of ann' union all select image_key from pages p join documents d on d.id = p.document_id where d.title = 'last deed of ann'").await;
    assert!(kept.len() == 2 && kept.iter().all(|k| h.blob(k).exists()), "and its bytes");
    assert_eq!(h.eyes.calls().len(), calls, "and nobody was asked");
    for who in [ann, bob, dan] {
        let found = titles(&h.client(who).search("deed").await);
        assert!(!found.iter().any(|t| t == "last deed of ann" || t == "deed of bob"), "{found:?}");
    }
    let found = titles(&h.client(dan).search("own deed").await);
    assert_eq!(found, ["own deed of bob"], "what has its place is found");

    // A Space that goes while the provider reads: what it brings is not written, and next time nobody is asked.
    h.eyes.rule(Rule::text("late deed of bob").then(Action::hold("slow")));
    h.breaker("off", "ocr", "to write the page").await;
    hand_in(&h.client(bob), "late deed of bob", 6).await;
    h.until("it is held", "jobs where kind = 'ocr' and status = 'waiting'", 1).await;
    h.write_pages().await;
    h.breaker("on", "ocr", "written").await;
    h.eyes.wait_for("its call", |c| c.has("late deed of bob")).await;
    h.db.exec(&format!("delete from spaces where id = {}", bob.space_id)).await;
    h.eyes.release("slow");
    h.until(
        "it is set aside too",
        "jobs j join pages p on j.kind = 'ocr' and p.id = j.item_id join documents d on d.id = p.document_id where d.title = 'late deed of bob' and j.last_class = 'place_gone' and j.status = 'parked'",
        1,
    )
    .await;
    assert_eq!(h.eyes.calls_for("late deed of bob").len(), 1);
    assert_eq!(h.count("blocks where content like '%late deed%'").await, 0);
    assert!(worker.is_alive());
}

// ── Two capabilities ─────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn b28_reading_and_embedding_stopped_are_two_incidents_and_each_tells_once() {
    let h = House::build().await;
    let sink = Sink::start().await;
    let _worker = h.worker(&sink.url()).await;
    let ann = h.db.person("ann").await;
    let client = h.client(&ann);
    h.breaker("off", "ocr", "one key rotated").await;
    h.breaker("off", "embedding", "the other one too").await;
    let scanned = hand_in(&client, "deed", 1).await;
    assert_eq!(client.remember("a note about barges").await.status, 202);
    h.until(
        "one of each is held",
        "jobs where kind in ('ocr', 'embed') and status = 'waiting'",
        2,
    )
    .await;
    h.write_pages().await;
    h.until_notices(&ann, &["sent/-/-", "sent/-/-"]).await;
    let found = client.search("barges").await;
    assert_eq!(diagnostics(&found)["unavailable"], json!(["embedding", "ocr"]), "{found}");
    let mails = sink.mails().await;
    for mail in &mails {
        assert!(notice_in(&found).contains(mail.body.trim_end()), "both sentences: {found}");
    }
    let wordings: BTreeSet<&str> = mails.iter().map(|m| m.body.as_str()).collect();
    assert_eq!((mails.len(), wordings.len()), (2, 2), "{:?}", told(&mails));

    h.breaker("on", "ocr", "the new key is in").await;
    h.until_notices(&ann, &["sent/sent/landed", "sent/-/-"]).await;
    let found = client.search("ledger").await;
    assert_eq!(titles(&found), ["deed"], "its words are found");
    let d = diagnostics(&found);
    assert_eq!(
        (&d["degraded"], &d["unavailable"]),
        (&json!(true), &json!(["embedding"])),
        "{found}"
    );
    assert_eq!(
        client.job(&scanned.job_id()).await.json["status"],
        "completed",
        "its words have landed"
    );
    h.until("its meaning is held", "jobs where kind = 'embed' and status = 'waiting'", 2)
        .await;
    h.looks(2).await;
    assert_eq!(h.vectors.calls().len(), 0);
    let mails = sink.mails().await;
    assert_eq!(
        (to(&mails, "ann", READ).len(), mails.len()),
        (1, 3),
        "no second apology: {:?}",
        told(&mails)
    );

    h.breaker("on", "embedding", "that one too").await;
    h.until_notices(&ann, &["sent/sent/landed", "sent/sent/landed"]).await;
    assert_eq!(h.count("incidents").await, 2);
    let mails = sink.mails().await;
    assert_eq!(
        (
            to(&mails, "ann", PAUSED).len(),
            to(&mails, "ann", READ).len(),
            to(&mails, "ann", BACK).len()
        ),
        (2, 1, 1)
    );
    assert_eq!(mails.len(), 4, "{:?}", told(&mails));
    let whole = client.search("ledger deed").await;
    assert_eq!(diagnostics(&whole)["degraded"], json!(false), "{whole}");
}

// ── How it ended, and for whom ───────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn b26_one_of_three_that_did_not_come_through_is_named_in_the_one_closing_mail() {
    let h = House::build_with(&[("STEADFAST_PUBLIC_URL", "https://papers.example.org/")]).await;
    let sink = Sink::start().await;
    let _worker = h.worker(&sink.url()).await;
    let ann = h.db.person("ann").await;
    let client = h.client(&ann);
    h.breaker("off", "ocr", "key rotated").await;
    for (n, title) in ["good deed", "torn deed", "other deed"].into_iter().enumerate() {
        hand_in(&client, title, n + 1).await;
    }
    h.until("three are held", "jobs where kind = 'ocr' and status = 'waiting'", 3).await;
    h.write_pages().await;
    h.eyes.rule(Rule::text("torn deed").then(Fixture::BadRequest));
    h.breaker("on", "ocr", "the new key is in").await;
    h.until_notices(&ann, &["sent/sent/needs_attention"]).await;
    let torn = h
        .text("select j.id from jobs j where j.kind = 'ocr' and j.status = 'dead' and j.last_class = 'item_error' and j.charged = 5")
        .await;
    assert_eq!(h.eyes.calls_for("torn deed").len(), 5);
    h.looks(3).await;
    let mails = sink.mails().await;
    assert_eq!(
        (to(&mails, "ann", PAUSED).len(), to(&mails, "ann", ATTENTION).len(), mails.len()),
        (1, 1, 2),
        "{:?}",
        told(&mails)
    );
    let body = &mails[1].body;
    assert!(body.contains(&format!("- torn deed (job {torn}): ")), "{body}");
    assert!(
        body.contains(&format!("https://papers.example.org/api/v1/jobs/dead/{torn}/replay")),
        "{body}"
    );
    for fine in ["good deed", "other deed", "400", "not acceptable"] {
        assert!(!body.contains(fine), "{fine:?} in {body}");
    }

    // Put back by its owner, it comes through; the mail was sent once and stays so.
    h.eyes.clear_rules();
    let again = client
        .post(
            &format!("/api/v1/jobs/dead/{torn}/replay"),
            &json!({"reason": "it can be read now"}),
        )
        .await;
    assert_eq!(again.status, 202, "{again}");
    h.until("all three are read", "pages where status = 'read'", 3).await;
    h.looks(3).await;
    assert_eq!(sink.mails().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn b24_who_has_nothing_held_gets_no_mail_and_is_told_where_it_matters() {
    let h = House::build().await;
    let sink = Sink::start().await;
    let _worker = h.worker(&sink.url()).await;
    let (ann, bob, cat) = (h.db.person("ann").await, h.db.person("bob").await, h.db.person("cat").await);
    h.db.exec(&format!(
        "insert into space_members (tenant_id, space_id, user_id) values ({}, {}, {})",
        ann.tenant_id, ann.space_id, bob.user_id
    ))
    .await;
    // A drill while nothing is held tells nobody, not even the books.
    let quiet = ["breaker", "off", "ocr", "--reason", "a drill", "--yes", "--quiet"];
    let said = h.fleet.run("steadfast", &quiet, Opts::new()).await;
    assert_eq!(said.code, Some(0), "{said}");
    h.breaker("on", "ocr", "end of the drill").await;
    assert_eq!(h.count("incidents").await, 0);

    // One is in line when it goes off, one comes later: the fan-out finds the first, the second is told in its own transaction.
    h.eyes.rule(Rule::all().times(1).then(Action::hold("slow")));
    hand_in(&h.client(&ann), "deed of ann", 1).await;
    h.eyes.wait_calls(1).await;
    h.breaker("off", "ocr", "key rotated").await;
    h.until_notices(&ann, &["sent/-/-"]).await;
    hand_in(&h.client(&ann), "second deed of ann", 2).await;
    h.until("it is held", "jobs where kind = 'ocr' and status = 'waiting'", 1).await;

    for (who, degraded) in [(&bob, true), (&cat, false)] {
        let found = h.client(who).search("deed").await;
        let d = diagnostics(&found);
        assert!(notice_in(&found).contains("Reading scanned pages is paused"), "{found}");
        assert_eq!(
            (&d["unavailable"], d["degraded"].as_bool()),
            (&json!(["ocr"]), Some(degraded)),
            "{found}"
        );
        assert_eq!(h.client(who).remember("a note that needs no eyes").await.status, 202);
    }
    h.until("their notes went all the way", "blocks where embedding is not null", 2)
        .await;
    h.looks(2).await;
    assert_eq!(h.count("notices").await, 1);
    let mails = sink.mails().await;
    assert_eq!((mails.len(), to(&mails, "ann", PAUSED).len()), (1, 1), "{:?}", told(&mails));
    h.eyes.release("slow");
    h.breaker("on", "ocr", "the new key is in").await;
    h.until_notices(&ann, &["sent/sent/landed"]).await;
    assert_eq!(sink.mails().await.len(), 2);
}

// ── Again before it is over ──────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn b23_p28_work_held_again_after_the_closing_mail_has_a_closing_mail_of_its_own() {
    let h = House::build().await;
    let sink = Sink::start().await;
    let _worker = h.worker(&sink.url()).await;
    let ann = h.db.person("ann").await;
    let client = h.client(&ann);
    h.breaker("off", "ocr", "key rotated").await;
    hand_in(&client, "first deed", 1).await;
    h.until_notices(&ann, &["sent/-/-"]).await;
    h.breaker("on", "ocr", "the new key is in").await;
    h.until_notices(&ann, &["sent/sent/landed"]).await;

    // Handed in while it is on, in line while the endpoint rests, and so held when it goes off again.
    h.db.exec("update endpoints set due_at = now() + interval '1 hour' where name = 'eyes'")
        .await;
    hand_in(&client, "second deed", 2).await;
    h.until(
        "it is in line",
        "jobs where kind = 'ocr' and status = 'waiting' and attempts = 0",
        1,
    )
    .await;
    h.breaker("off", "ocr", "refused again").await;
    h.db.exec("update endpoints set due_at = now() where name = 'eyes'").await;
    h.until("everybody was looked for", "jobs where kind = 'fan_out'", 0).await;
    h.looks(2).await;
    assert_eq!((h.count("incidents").await, sink.mails().await.len()), (1, 2), "no second apology");
    h.breaker("on", "ocr", "really").await;
    h.until("both are read", "pages where status = 'read'", 2).await;
    wait_until("the second promise is kept too", SOON, async || {
        let mails = sink.mails().await;
        if to(&mails, "ann", READ).len() == 2 {
            Ok(())
        } else {
            Err((told(&mails), h.notices_of(&ann).await))
        }
    })
    .await;
    h.looks(2).await;
    assert_eq!(sink.mails().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn b23_p28_work_held_again_before_the_closing_mail_is_out_is_in_it() {
    let h = House::build().await;
    let mut sink = Sink::start().await;
    let _worker = h.worker(&sink.url()).await;
    let ann = h.db.person("ann").await;
    let client = h.client(&ann);
    h.breaker("off", "ocr", "key rotated").await;
    hand_in(&client, "first deed", 1).await;
    h.until_notices(&ann, &["sent/-/-"]).await;
    sink.stop().await;
    h.breaker("on", "ocr", "the new key is in").await;
    h.until("it has landed", "notices where closing_wording = 'landed'", 1).await;
    h.breaker("off", "ocr", "refused again").await;
    hand_in(&client, "second deed", 2).await;
    h.until("it is held", "jobs where kind = 'ocr' and status = 'waiting'", 1).await;
    sink.start_again().await;
    h.looks(4).await;
    let mails = sink.mails().await;
    assert_eq!(to(&mails, "ann", READ).len(), 0, "not yet: one page waits: {:?}", told(&mails));
    h.breaker("on", "ocr", "really").await;
    wait_until("the promise is kept", SOON, async || {
        let mails = sink.mails().await;
        if to(&mails, "ann", READ).len() == 1 {
            Ok(())
        } else {
            Err((told(&mails), h.notices_of(&ann).await))
        }
    })
    .await;
    h.looks(2).await;
    assert_eq!(sink.mails().await.len(), 2, "one apology, one closing mail");
}

#[tokio::test(flavor = "multi_thread")]
async fn p28_an_apology_that_could_not_go_out_is_not_sent_after_the_event() {
    let h = House::build_with(&[("STEADFAST_SMTP_TIMEOUT", "20s")]).await;
    let smtp = Smtp::start();
    // The server takes the connection and says nothing for as long as it likes, then closes: nothing was sent.
    smtp.rule(MailRule::at(Step::Greeting).times(1).then(Act::hold_then("mute", Act::Vanish)));
    let _worker = h.worker(&smtp.url()).await;
    let ann = h.db.person("ann").await;
    h.breaker("off", "ocr", "key rotated").await;
    hand_in(&h.client(&ann), "a deed", 1).await;
    h.until("its sending has begun", "notices where opening = 'sending'", 1).await;
    h.breaker("on", "ocr", "the new key is in").await;
    h.until("it has landed meanwhile", "notices where closing_wording = 'landed'", 1)
        .await;
    smtp.release("mute");
    h.until("the end was told", "notices where closing = 'sent'", 1).await;
    h.until("nothing is left to send", "jobs where kind = 'notice'", 0).await;
    let subjects: Vec<String> = smtp.received().iter().map(|m| m.mail.subject.clone()).collect();
    assert_eq!(subjects.len(), 1, "{subjects:?}");
    assert!(subjects[0].contains(READ), "{subjects:?}");
    assert_eq!(h.notices_of(&ann).await, ["skipped/sent/landed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn p28_a_refused_apology_and_a_closing_mail_end_each_by_itself() {
    let h = House::build_with(&[("STEADFAST_SMTP_TIMEOUT", "20s")]).await;
    let smtp = Smtp::start();
    // The first connection is slow, and ends in a no for good; the second goes through meanwhile.
    smtp.rule(
        MailRule::at(Step::Rcpt)
            .on_connection(1)
            .then(Act::hold_then("slow", Act::reply(550, "5.7.1 nein"))),
    );
    let _worker = h.worker(&smtp.url()).await;
    let (ann, bob) = (h.db.person("ann").await, h.db.person("bob").await);
    h.breaker("off", "ocr", "key rotated").await;
    hand_in(&h.client(&ann), "a deed", 1).await;
    smtp.wait_line("1> RCPT").await;
    h.breaker("on", "ocr", "the new key is in").await;
    h.until_notices(&ann, &["sending/sent/landed"]).await;
    smtp.release("slow");
    h.until_notices(&ann, &["failed/sent/landed"]).await;

    // And when the end is still to be told, it is not taken for what was refused.
    smtp.rule(
        MailRule::at(Step::Rcpt)
            .on_connection(3)
            .then(Act::hold_then("slow", Act::reply(550, "5.7.1 nein"))),
    );
    h.breaker("off", "ocr", "again").await;
    hand_in(&h.client(&bob), "b deed", 2).await;
    smtp.wait_line("3> RCPT").await;
    smtp.mode(Mode::Refuse).await;
    h.breaker("on", "ocr", "and back").await;
    h.until_notices(&bob, &["sending/due/landed"]).await;
    smtp.release("slow");
    h.until_notices(&bob, &["failed/due/landed"]).await;
    smtp.mode(Mode::Open).await;
    h.until_notices(&bob, &["failed/sent/landed"]).await;
    let seen: Vec<String> = smtp
        .received()
        .iter()
        .map(|m| format!("{}: {}", m.to.join(","), m.mail.subject))
        .collect();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen.iter().all(|s| s.contains(READ)), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn b22_a_call_of_before_that_hangs_does_not_hold_up_what_was_turned_on() {
    let h = House::build().await;
    let sink = Sink::start().await;
    let _worker = h.worker(&sink.url()).await;
    let ann = h.db.person("ann").await;
    h.eyes.rule(Rule::all().times(1).then(Action::hold("hangs")));
    hand_in(&h.client(&ann), "deed that hangs", 1).await;
    h.eyes.wait_calls(1).await;
    h.breaker("off", "ocr", "key rotated").await;
    for n in 2..5 {
        hand_in(&h.client(&ann), &format!("deed number {n}"), n).await;
    }
    h.until("three are held", "jobs where kind = 'ocr' and status = 'waiting'", 3).await;
    h.breaker("on", "ocr", "the new key is in").await;
    h.until("they are read", "pages where status = 'read'", 3).await;
    let calls = h.eyes.calls();
    assert_eq!(
        (calls.len(), calls[1].in_flight),
        (4, 2),
        "one beside the one that hangs: {calls:#?}"
    );
    h.eyes.release("hangs");
    h.until_notices(&ann, &["sent/sent/landed"]).await;
}

/// The window between the bytes and their row, of which SC6 asks too: whoever dies in it leaves no row, and bytes that are collected.
#[tokio::test(flavor = "multi_thread")]
async fn sc6_p13_b50_an_api_killed_between_the_bytes_and_their_row_leaves_neither() {
    let mut h = House::build().await;
    let ann = h.db.person("ann").await;
    let mut held = h.db.pool.begin().await.expect("a transaction");
    sqlx::query("lock table documents in exclusive mode")
        .execute(&mut *held)
        .await
        .expect("a lock");
    let client = h.client(&ann);
    let upload = tokio::spawn(async move {
        let path = format!("/api/v1/uploads/direct?filename=deed&spaceId={}", ann.space_id);
        client
            .try_send(client.request(Method::POST, &path).body(scan(1)))
            .await
            .map(|a| a.status)
    });
    h.until(
        "it waits to write its row",
        "pg_stat_activity where datname = current_database() and application_name = 'steadfast-api' and wait_event_type = 'Lock'",
        1,
    )
    .await;
    let blobs = h.fleet.dir().join("blobs");
    assert_eq!(files(&blobs), 1, "the bytes are there before the row");
    h.api.process.kill9().await;
    assert!(upload.await.expect("it ran").is_err(), "nobody was promised anything");
    held.rollback().await.expect("unlocked");
    h.until(
        "its session is gone",
        "pg_stat_activity where datname = current_database() and application_name = 'steadfast-api'",
        0,
    )
    .await;
    assert_eq!((h.count("documents").await, h.count("jobs").await), (0, 0));

    // A day is what they stay, in case a row is on its way.
    let _worker = h.fleet.worker().await;
    for (hours, left) in [(23, 1), (2, 0)] {
        age(&blobs, Duration::from_secs(hours * 3600));
        let rounds = h.count("jobs_done where kind = 'retention'").await;
        h.db.exec("update schedules set next_at = now() where name = 'retention'").await;
        h.until("the collector came by", "jobs_done where kind = 'retention'", rounds + 1)
            .await;
        assert_eq!(files(&blobs), left, "after {hours} more hours");
    }
}

fn files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|e| if e.path().is_dir() { files(&e.path()) } else { 1 }).sum()
}

// ── SC6: the refused key, two days ───────────────────────────────────────────────────────────────────────────────────

const PEOPLE: usize = 20;
/// Each hands in this many.
const EACH: usize = 25;
/// The first five hand in one that has this many pages, before anybody knows that the key is no good.
const SHEETS: usize = 3;
/// What one call to the provider takes once its key is good.
const UNIT: Duration = Duration::from_millis(150);
/// Handing in and reading five hundred scans, on a machine that may be busy with other stories.
const LONG: Duration = Duration::from_secs(180);

/// A TIFF of `SHEETS` pages that nobody else has.
fn scans(n: usize) -> Vec<u8> {
    let mut tiff = b"II*\0\x08\0\0\0".to_vec();
    for sheet in 0..SHEETS {
        let at = tiff.len();
        let (entries, pixels) = (9_u16, 64_u32);
        let end = at + 2 + 12 * usize::from(entries) + 4;
        let number = |n: usize| u32::try_from(n).expect("a small file");
        tiff.extend(entries.to_le_bytes());
        for (tag, value) in [
            (256_u16, 16),      // width
            (257, 4),           // height
            (258, 8),           // bits per sample
            (259, 1),           // not compressed
            (262, 1),           // black is zero
            (273, number(end)), // where the dots are
            (277, 1),           // samples per pixel
            (278, 4),           // rows per strip
            (279, pixels),      // how many bytes
        ] {
            tiff.extend(
                [
                    &tag.to_le_bytes()[..],
                    &4_u16.to_le_bytes(),
                    &1_u32.to_le_bytes(),
                    &value.to_le_bytes(),
                ]
                .concat(),
            );
        }
        let next = if sheet + 1 < SHEETS { end + 64 } else { 0 };
        tiff.extend(number(next).to_le_bytes());
        (0..4).for_each(|row| tiff.extend(dots(n * SHEETS + sheet + 10_000, row)));
    }
    tiff
}

/// What somebody handed in, and where it belongs.
#[derive(Clone, Debug)]
struct Handed {
    who: usize,
    title: String,
    space_id: i64,
    conversation: String,
    sheets: usize,
    document_id: i64,
    job: String,
}

/// Everybody of SC6 and what they handed in.
struct Archive {
    h: House,
    sink: Sink,
    people: Vec<Person>,
    /// Has nothing held, and reads.
    zoe: Person,
    /// A second Space of the one who will delete it.
    attic: i64,
    handed: Vec<Handed>,
    workers: Vec<Process>,
    began: Instant,
}

/// Who deletes a Space, who is deleted, and for whom the published client speaks.
const LEAVES_A_SPACE: usize = 2;
const LEAVES: usize = 4;
const SPEAKS: usize = 0;

/// How a restart ends what runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    InOrder,
    Killed,
}

/// Document, Space, conversation, page and text of a piece.
type Landed = (i64, Option<i64>, Option<String>, i32, String);

impl Archive {
    async fn open() -> Self {
        let h = House::build_with(&[("STEADFAST_REOPEN_GRACE", "1s"), ("STEADFAST_SMTP_TIMEOUT", "10s")]).await;
        h.db.exec("update endpoints set key_env = 'EYES_KEY' where name = 'eyes'").await;
        h.eyes.accept_key("new", "sk-new");
        let mut people = Vec::new();
        for who in 0..PEOPLE {
            people.push(h.db.person(&format!("p{who:02}")).await);
        }
        let zoe = h.db.person("zoe").await;
        let p = &people[LEAVES_A_SPACE];
        let attic: i64 =
            h.db.one(&format!(
                "insert into spaces (tenant_id, name) values ({}, 'attic') returning id",
                p.tenant_id
            ))
            .await;
        h.db.exec(&format!(
            "insert into space_members (tenant_id, space_id, user_id) values ({}, {attic}, {})",
            p.tenant_id, p.user_id
        ))
        .await;
        Self {
            h,
            sink: Sink::start().await,
            people,
            zoe,
            attic,
            handed: Vec::new(),
            workers: Vec::new(),
            began: Instant::now(),
        }
    }

    fn lap(&self, what: &str) {
        println!("sc6 {:5.1} s: {what}", self.began.elapsed().as_secs_f64());
    }

    /// Four workers of four places, with this key.
    async fn hire(&mut self, key: &str) {
        for _ in 0..4 {
            let opts = Opts::new().concurrency(4).env("EYES_KEY", key);
            self.workers.push(self.h.worker_with(opts, &self.sink.url()).await);
        }
    }

    /// Everybody hands in what has these numbers, five people at a time.
    async fn hand_in(&mut self, numbers: Range<usize>) {
        let mut lanes = tokio::task::JoinSet::new();
        for lane in 0..5 {
            let people: Vec<(usize, Client, i64)> = (lane..PEOPLE)
                .step_by(5)
                .map(|who| (who, self.h.client(&self.people[who]), self.people[who].space_id))
                .collect();
            let (attic, numbers) = (self.attic, numbers.clone());
            lanes.spawn(async move {
                let mut handed = Vec::new();
                for n in numbers {
                    // The first of the first five was there before.
                    for (who, client, space) in people.iter().filter(|p| n > 0 || p.0 >= 5) {
                        let space_id = if *who == LEAVES_A_SPACE && n % 2 == 1 { attic } else { *space };
                        handed.push(one(client, *who, n, space_id).await);
                    }
                }
                handed
            });
        }
        while let Some(lane) = lanes.join_next().await {
            self.handed.extend(lane.expect("all were accepted"));
        }
    }

    /// What must be so all the time: nothing charged, nothing given up, nobody asked, turned on by people alone; and the one who asks is
    /// told that it is held.
    async fn checkpoint(&self, when: &str, calls: usize) {
        let h = &self.h;
        let sums = h
            .text("select concat_ws(' ', coalesce(sum(charged), 0), count(*) filter (where status in ('parked', 'dead'))) from jobs where kind = 'ocr' and status <> 'running'")
            .await;
        assert_eq!(sums, "0 0", "charged, given up {when}");
        assert_eq!(h.eyes.calls().len(), calls, "{when}");
        assert_eq!(
            h.count("capability_events where action = 'on' and (actor = '' or actor ilike '%system%')")
                .await,
            0,
            "{when}"
        );
        assert_eq!(
            h.count("capability_events where action = 'off' and actor = 'system'").await,
            1,
            "{when}"
        );
        assert_eq!(
            h.count("endpoints where protocol = 'tesseract' and last_ok_at is not null").await,
            0,
            "nobody stands in"
        );
        assert_eq!(h.count("incidents").await, 1, "{when}");
        let handed = self
            .handed
            .iter()
            .rfind(|d| d.who == 7)
            .or(self.handed.last())
            .expect("something was handed in");
        let client = h.client(&self.people[handed.who]);
        let job = wait_until("its page is held", SOON, async || {
            let job = client.job(&handed.job).await;
            if job.json["hold"].is_object() { Ok(job) } else { Err(job.text) }
        })
        .await;
        assert_eq!(
            (&job.json["status"], &job.json["hold"]["capability"]),
            (&json!("queued"), &json!("ocr")),
            "{when}: {job}"
        );
    }

    /// Everybody with held work has one mail, the same one; nobody else has any.
    async fn everybody_is_told_once(&self) {
        let h = &self.h;
        h.until("everybody's is sent", "notices where opening = 'sent' and closing is null", 20)
            .await;
        let mails = self.sink.mails().await;
        assert_eq!(mails.len(), PEOPLE, "{:?}", told(&mails));
        for who in 0..PEOPLE {
            assert_eq!(to(&mails, &format!("p{who:02}"), PAUSED).len(), 1, "{:?}", told(&mails));
        }
        let texts: BTreeSet<(&str, &str)> = mails.iter().map(|m| (m.subject.as_str(), m.body.as_str())).collect();
        assert_eq!(texts.len(), 1, "{texts:?}");
        let search = h.client(&self.zoe).search("deed").await;
        assert_eq!(
            mails[0].body.trim_end(),
            notice_in(&search),
            "what search says, also to who has nothing held"
        );
        assert_eq!(h.notices_of(&self.zoe).await, Vec::<String>::new());
    }

    /// Everything goes and comes again, sixteen hours later: by the time of the rows and of the stored bytes. Of Postgres the sessions go;
    /// its process stays, for it is not ours alone.
    async fn restart(&mut self, how: Ending, key: &str) {
        let h = &mut self.h;
        let begun: DateTime<Utc> = h.db.one("select clock_timestamp()").await;
        h.db.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
            .await;
        if how == Ending::InOrder {
            // They find their way back before they are asked to go.
            wait_until("all have a new session", SOON, async || {
                let sessions: i64 = h
                    .db
                    .one(&format!(
                        "select count(distinct (client_port)) from pg_stat_activity where datname = current_database() and application_name <> 'story' and backend_start > '{begun}'"
                    ))
                    .await;
                if sessions >= 5 { Ok(()) } else { Err(sessions) }
            })
            .await;
            h.api.process.sigterm();
            self.workers.iter().for_each(Process::sigterm);
            assert!(h.api.process.wait_exit().await.success());
            for worker in &mut self.workers {
                assert!(worker.wait_exit().await.success(), "{}", worker.log());
            }
        } else {
            h.api.process.kill9().await;
            for worker in &mut self.workers {
                worker.kill9().await;
            }
        }
        self.workers.clear();
        for sql in h
            .texts(
                "select format('update %I set %s', table_name, string_agg(format('%1$I = %1$I - make_interval(hours => 16)', column_name), ', '))
                   from information_schema.columns
                  where table_schema = 'public' and data_type = 'timestamp with time zone' and table_name not in ('workers', 'tokens', '_sqlx_migrations')
                  group by table_name",
            )
            .await
        {
            h.db.exec(&sql).await;
        }
        age(&h.fleet.dir().join("blobs"), Duration::from_secs(16 * 3600));
        h.api = h.fleet.api().await;
        self.hire(key).await;
    }

    /// What the published client sees, as the first of the people.
    async fn speak(&self, args: &[&str]) -> Value {
        let python = std::env::var("STEADFAST_CLIENT_PYTHON")
            .expect("STEADFAST_CLIENT_PYTHON names a Python that has persistmemory 0.2.0; run this through ops/test, which makes one");
        let run = tokio::process::Command::new(python)
            .args(["-I", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client/held_and_back.py")])
            .args(args)
            .env("PERSISTMEMORY_API_KEY", &self.people[SPEAKS].token)
            .env("STEADFAST_URL", &self.h.api.base)
            .kill_on_drop(true)
            .output();
        let out = tokio::time::timeout(LONG, run)
            .await
            .expect("it ends")
            .expect("a Python that starts");
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success(),
            "{said}
{}",
            String::from_utf8_lossy(&out.stderr)
        );
        serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
    }

    /// A scan in a file, for programs.
    fn scan_file(&self, name: &str, n: usize) -> String {
        let file = self.h.fleet.dir().join(name);
        std::fs::write(&file, scan(n)).expect("a file in our own folder");
        file.to_str().expect("a temporary folder has a plain name").to_owned()
    }

    /// Asks until `enough`, a new question each time; returns how long each took and how many had to do without its meaning.
    async fn questions(&self, what: &str, enough: impl AsyncFn(usize) -> bool) -> (Vec<Duration>, usize) {
        let client = self.h.client(&self.people[1]);
        let (mut took, mut by_words_alone) = (Vec::new(), 0);
        while !enough(took.len()).await {
            let asked = Instant::now();
            let answer = client.search(&format!("{what} {}", took.len())).await;
            took.push(asked.elapsed());
            by_words_alone += usize::from(diagnostics(&answer)["reasons"].to_string().contains("question_"));
        }
        took.sort();
        (took, by_words_alone)
    }

    /// Those whose documents must all come through.
    fn survivors(&self) -> impl Iterator<Item = &Handed> {
        self.handed.iter().filter(|d| d.who != LEAVES && d.space_id != self.attic)
    }

    /// Each text where it belongs and nowhere else.
    async fn each_is_in_its_place(&self) {
        let h = &self.h;
        let rows: Vec<Landed> = sqlx::query_as(
            "select d.id, b.space_id, d.conversation, b.page_no, b.content from blocks b join documents d on d.id = b.document_id and d.space_id = b.space_id
              where d.status = 'processed' and d.media_type <> 'text/plain' order by 1, 4",
        )
        .fetch_all(&h.db.pool)
        .await
        .expect("blocks");
        let seen: BTreeSet<Landed> = rows.into_iter().collect();
        let spoken: i64 = h.db.one("select count(*) from documents where title = 'berth.png'").await;
        let mut wanted = 0;
        for d in self.survivors() {
            for sheet in 1..=d.sheets {
                let no = i32::try_from(sheet).expect("few");
                let text = format!("ledger of {} sheet {no}", d.title);
                assert_eq!(h.eyes.completed(&text), 1, "{text} was read once");
                let row = (d.document_id, Some(d.space_id), Some(d.conversation.clone()), no, text);
                assert!(seen.contains(&row), "{row:?} is missing");
                wanted += 1;
            }
        }
        assert_eq!(seen.len(), wanted + usize::try_from(spoken).expect("few"), "and nothing else");
    }

    /// The deleted Space: every job set aside with its document, nothing of it to be found by anybody.
    async fn nothing_is_loose(&self) {
        let h = &self.h;
        let lost: Vec<&Handed> = self.handed.iter().filter(|d| d.space_id == self.attic).collect();
        assert_eq!(lost.len(), EACH / 2);
        let ids = list(lost.iter().map(|d| d.document_id));
        assert_eq!(
            h.count(&format!("documents where id in ({ids}) and space_id is null")).await,
            12,
            "the documents are kept"
        );
        assert_eq!(h.count(&format!("blocks where document_id in ({ids})")).await, 0);
        assert_eq!(
            h.count(&format!(
                "jobs j join pages p on p.id = j.item_id where j.kind = 'ocr' and p.document_id in ({ids}) and j.status = 'parked' and j.last_class = 'place_gone'"
            ))
            .await,
            12
        );
        let keys = h
            .texts(&format!(
                "select blob_key from documents where id in ({ids}) union all select image_key from pages where document_id in ({ids})"
            ))
            .await;
        assert!(keys.len() == 24 && keys.iter().all(|k| h.blob(k).exists()), "their bytes are kept");
        let owner = h.client(&self.people[LEAVES_A_SPACE]);
        for d in &lost {
            let job = owner.job(&d.job).await;
            assert_eq!(job.json["status"], "failed", "{job}");
        }
        for who in [&self.people[LEAVES_A_SPACE], &self.people[SPEAKS], &self.zoe] {
            let found = h.client(who).search(&lost[0].title).await;
            assert!(!titles(&found).contains(&lost[0].title), "{found}");
        }
    }
}

/// Every file is older now, as far as its own word goes.
fn age(folder: &Path, by: Duration) {
    for entry in std::fs::read_dir(folder).expect("a folder of our own").flatten() {
        let path = entry.path();
        if path.is_dir() {
            age(&path, by);
        } else {
            let file = std::fs::File::options().append(true).open(&path).expect("a file of our own");
            let then = file.metadata().and_then(|m| m.modified()).expect("a time") - by;
            file.set_modified(then).expect("a file of our own");
        }
    }
}

fn list(ids: impl Iterator<Item = i64>) -> String {
    ids.map(|id| id.to_string()).collect::<Vec<_>>().join(", ")
}

/// How many may be in flight on a ramp when so many have come through: 1, then 2, 4 and 8, each for as many successes.
fn ramp(done: usize) -> usize {
    match done {
        0 => 1,
        1..3 => 2,
        3..7 => 4,
        7..15 => 8,
        _ => 16,
    }
}

fn p95(sorted: &[Duration]) -> Duration {
    sorted[sorted.len() * 95 / 100]
}

/// Hands one in; whatever is stopped, that is a 202 with a job.
async fn one(client: &Client, who: usize, n: usize, space_id: i64) -> Handed {
    let title = format!("deed number {n} of p{who:02}");
    let conversation = format!("talk {} of p{who:02}", n % 3);
    let sheets = if n == 0 && who < 5 { SHEETS } else { 1 };
    let bytes = if sheets > 1 { scans(who) } else { scan(who * EACH + n + 1) };
    let space = space_id.to_string();
    let query = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs([("filename", title.as_str()), ("spaceId", &space), ("conversationId", &conversation)])
        .finish();
    let path = format!("/api/v1/uploads/direct?{query}");
    let added = client.send(client.request(Method::POST, &path).body(bytes)).await;
    assert_eq!(added.status, 202, "{added}");
    let document = added.json["documentId"].as_str().and_then(|d| d.parse().ok());
    Handed {
        who,
        title,
        space_id,
        conversation,
        sheets,
        document_id: document.unwrap_or_else(|| panic!("no document: {added}")),
        job: added.job_id(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sc6_the_refused_key_two_days() {
    let mut s = Archive::open().await;

    // ── The key is refused: five documents, fifteen calls in the provider's hands ──
    let gate = |gate: &str, then: Fixture| Action::hold_then(gate, then);
    s.h.eyes.rule(Rule::all().times(1).then(gate("first", Fixture::InvalidKey)));
    s.h.eyes
        .rule(Rule::all().times(1).then(gate("old key", Fixture::InvalidKeyForeign)));
    s.h.eyes.rule(Rule::all().times(5).then(gate("others", Fixture::ForbiddenJson)));
    s.h.eyes.rule(Rule::all().times(5).then(gate("others", Fixture::PaymentRequired)));
    s.h.eyes.rule(Rule::all().times(3).then(gate("others", Fixture::InvalidKeyForeign)));
    s.h.eyes.rule(Rule::all().times(1).then(gate("canary", Fixture::InvalidKey)));
    s.hire("sk-old").await;
    for who in 0..5 {
        let handed = one(&s.h.client(&s.people[who]), who, 0, s.people[who].space_id).await;
        s.handed.push(handed);
    }
    let flying = 5 * SHEETS;
    s.h.eyes.wait_calls(flying).await;
    assert_eq!(s.h.eyes.in_flight(), flying);
    s.h.eyes.release("first");
    s.h.until("the breaker is off", "capabilities where name = 'ocr' and not enabled", 1)
        .await;
    s.h.eyes.release("others");
    s.h.until(
        "the later ones are counted",
        "capabilities where name = 'ocr' and failure_count = 14",
        1,
    )
    .await;
    s.h.until("all but one are held", "jobs where kind = 'ocr' and status = 'waiting'", 14)
        .await;
    s.lap("tripped");
    let row = "select concat_ws(' by ', reason, changed_by) from capabilities where name = 'ocr'";
    let first = s.h.text(row).await;
    assert!(first.starts_with("eyes: ") && first.ends_with(" by system"), "{first}");
    assert!(
        first.contains("invalid_api_key") || first.contains("Incorrect API key"),
        "the first one's: {first}"
    );
    assert_eq!(s.h.text("select failure_count from incidents").await, "14");
    s.checkpoint("after the trip", flying).await;

    // ── An operator: off (it is), on, and off again within minutes, the key as bad as before; one call of before still hangs ──
    let off = s.h.breaker("off", "ocr", "I saw errors").await;
    assert_eq!((&off["changed"], &off["changed_by"]), (&json!(false), &json!("system")), "{off}");
    assert_eq!(s.h.text(row).await, first, "the first reason and actor stay (B19)");
    s.hand_in(0..9).await;
    s.lap("a third is handed in");
    s.h.breaker("on", "ocr", "perhaps it was a hiccup").await;
    s.h.eyes.release("old key");
    let stale = "(select from capability_events where action = 'stale_evidence' union all select from endpoint_events where action = 'stale_evidence') e";
    s.h.until("what the old call brings is noted", stale, 1).await;
    let calls = s.h.eyes.wait_calls(flying + 1).await;
    assert!(
        calls[flying].in_flight <= 2,
        "one is asked at first, beside the old one: {:?}",
        calls[flying]
    );
    assert_eq!(
        s.h.count("capabilities where name = 'ocr' and enabled").await,
        1,
        "it tripped nothing (B18)"
    );
    s.h.breaker("off", "ocr", "no, still refused").await;
    s.h.eyes.release("canary");
    s.h.until("everything is held", "jobs where kind = 'ocr' and status = 'running'", 0)
        .await;
    s.checkpoint("after on and off", flying + 1).await;
    assert_eq!(
        s.h.text("select reason || ' by ' || opened_by from incidents").await,
        first,
        "the same incident, its first reason"
    );

    // ── Two days, three restarts of everything, and what people do in the meantime ──
    s.everybody_is_told_once().await;
    s.restart(Ending::InOrder, "sk-old").await;
    s.checkpoint("after the first restart", flying + 1).await;
    let spoken = s.speak(&["held", &s.scan_file("berth.png", 5_000)]).await;
    s.hand_in(9..17).await;
    s.restart(Ending::Killed, "sk-old").await;
    s.checkpoint("after the second restart", flying + 1).await;
    s.hand_in(17..EACH).await;
    assert_eq!(s.handed.len(), 500);
    s.lap("all five hundred are handed in");
    s.h.until_within("all are taken apart", "jobs where kind = 'extract'", 0, LONG)
        .await;
    s.lap("and taken apart");
    let sheets = i64::try_from(500 + 5 * (SHEETS - 1) + 1).expect("few");
    s.h.until("all are held", "jobs where kind = 'ocr' and status = 'waiting'", sheets)
        .await;

    s.h.db.exec(&format!("delete from spaces where id = {}", s.attic)).await;
    let leaves = s.people[LEAVES].user_id;
    let theirs = format!(
        "select blob_key from documents where user_id = {leaves} union all select image_key from pages p join documents d on d.id = p.document_id where d.user_id = {leaves}"
    );
    let keys = s.h.texts(&theirs).await;
    assert!(
        keys.len() == 2 * EACH + SHEETS - 1 && keys.iter().all(|k| s.h.blob(k).exists()),
        "{}",
        keys.len()
    );
    let their_jobs = list(
        s.h.texts(&format!(
            "select id::text from jobs where user_id = {leaves} union all select id::text from jobs_done where user_id = {leaves}"
        ))
        .await
        .iter()
        .map(|id| id.parse().expect("a number")),
    );
    s.h.db.exec(&format!("delete from users where id = {leaves}")).await;
    s.h.until("bytes without an owner are collected", "dropped_blobs", 0).await;
    assert_eq!(keys.iter().filter(|k| s.h.blob(k).exists()).count(), 0, "0 blobs");
    s.checkpoint("at the end of the outage", flying + 1).await;
    s.restart(Ending::InOrder, "sk-new").await;
    assert_eq!(s.sink.mails().await.len(), PEOPLE, "nobody was told twice");

    // ── The key is repaired, and an operator says so ──
    s.h.write_pages().await;
    s.h.eyes.clear_rules();
    s.h.eyes
        .set(|settings| settings.latency_ms = u64::try_from(UNIT.as_millis()).expect("short"));
    let (before, blind_before) = s.questions("calm", async |n| n >= 20).await;
    s.checkpoint("until an operator says so", flying + 1).await;
    s.h.breaker("on", "ocr", "the new key is in").await;
    s.lap("on");
    let drained = async |_| {
        s.h.count("jobs where kind in ('ocr', 'embed') and status in ('waiting', 'running')")
            .await
            == 0
    };
    let (during, blind) = s.questions("busy", drained).await;
    s.lap("drained");
    println!(
        "questions: p95 {:?} of {} before, {:?} of {} during",
        p95(&before),
        before.len(),
        p95(&during),
        during.len()
    );
    assert_eq!((blind_before, blind), (0, 0), "questions got their vectors");
    // A unit of batch work is one call; the second is for a machine that is busy with other stories.
    let allowed = p95(&before) + UNIT + Duration::from_secs(1);
    assert!(p95(&during) <= allowed, "{:?} of {allowed:?}", p95(&during));

    // 2, 7: nobody with the old key, and few at first.
    let calls = &s.h.eyes.calls()[flying + 1..];
    for call in calls {
        let done = calls
            .iter()
            .filter(|c| c.completed() && c.out_ms.is_some_and(|out| out <= call.in_ms))
            .count();
        assert!(
            call.in_flight <= ramp(done),
            "{} in flight after {done} successes: {call:?}",
            call.in_flight
        );
        assert_eq!(call.key, "new", "{call:?}");
    }
    let most = calls.iter().map(|c| c.in_flight).max();
    assert!(most >= Some(12), "and many in the end: {most:?}");

    // 8
    s.each_is_in_its_place().await;
    s.nothing_is_loose().await;
    for d in s.survivors() {
        let job = s.h.client(&s.people[d.who]).job(&d.job).await;
        assert_eq!(job.json["status"], "completed", "{job}");
    }
    for of in s.h.texts(&format!("select table_name || ' where user_id = {leaves}' from information_schema.columns where table_schema = 'public' and column_name = 'user_id'")).await {
        assert_eq!(s.h.count(&of).await, 0, "{of}");
    }
    for of in ["attempts", "job_events"] {
        assert_eq!(s.h.count(&format!("{of} where job_id in ({their_jobs})")).await, 0, "{of}");
    }
    assert_eq!(keys.iter().filter(|k| s.h.blob(k).exists()).count(), 0);

    // 9
    let survivors = PEOPLE - 1;
    s.h.until("everybody's has ended", "notices where closing = 'sent'", 19).await;
    let mails = s.sink.mails().await;
    assert_eq!(mails.len(), PEOPLE + survivors, "{:?}", told(&mails));
    for who in (0..PEOPLE).filter(|w| *w != LEAVES) {
        let name = format!("p{who:02}");
        let (landed, attention) = (to(&mails, &name, READ).len(), to(&mails, &name, ATTENTION).len());
        assert_eq!(
            (landed, attention),
            if who == LEAVES_A_SPACE { (0, 1) } else { (1, 0) },
            "{name}: {:?}",
            told(&mails)
        );
    }
    let asks = &to(&mails, &format!("p{LEAVES_A_SPACE:02}"), ATTENTION)[0].body;
    for d in s.handed.iter().filter(|d| d.space_id == s.attic) {
        assert!(asks.contains(&format!("{} (job ", d.title)), "{} is not named:\n{asks}", d.title);
    }
    assert!(asks.contains("place"), "{asks}");
    s.h.until("the incident is over", "incidents where closed_by = 'system'", 1).await;
    let history: Vec<(String, String)> = sqlx::query_as("select action, actor from capability_events where capability = 'ocr' order by id")
        .fetch_all(&s.h.db.pool)
        .await
        .expect("the history");
    let actions: Vec<&str> = history.iter().map(|(a, _)| a.as_str()).filter(|a| *a != "stale_evidence").collect();
    assert_eq!(actions, ["off", "already_off", "on", "off", "on"]);
    assert!(
        history
            .iter()
            .all(|(a, who)| a == "off" || a == "stale_evidence" || who != "system"),
        "{history:?}"
    );

    // 10: the same in the words of a client that is not ours.
    assert_eq!(
        (&spoken["note"]["status"], &spoken["noteStatus"]),
        (&json!("queued"), &json!("completed")),
        "{spoken}"
    );
    assert_eq!(
        (&spoken["scanJob"]["status"], &spoken["scanJob"]["hold"]["capability"]),
        (&json!("queued"), &json!("ocr")),
        "{spoken}"
    );
    let d = &spoken["search"]["diagnostics"];
    assert_eq!((&d["degraded"], &d["unavailable"]), (&json!(true), &json!(["ocr"])), "{spoken}");
    assert!(
        d["steps"]
            .as_array()
            .is_some_and(|s| !s.is_empty() && s.iter().all(Value::is_string)),
        "{spoken}"
    );
    assert_eq!(d["notice"], spoken["scanJob"]["hold"]["notice"], "{spoken}");
    assert_eq!(d["notice"].as_str(), Some(mails[0].body.trim_end()), "{spoken}");
    assert_eq!(
        spoken["search"]["results"][0]["documentId"], spoken["note"]["documentId"],
        "{spoken}"
    );
    let id = |of: &Value| of["jobId"].as_str().expect("a job").to_owned();
    let back = s.speak(&["back", &id(&spoken["note"]), &id(&spoken["scan"]), "ledger berth"]).await;
    assert_eq!(back["statuses"], json!(["completed", "completed"]), "{back}");
    assert_eq!(back["search"]["results"][0]["documentId"], spoken["scan"]["documentId"], "{back}");
    let d = &back["search"]["diagnostics"];
    assert!(
        d["degraded"] == json!(false) && d["notice"].is_null() && d["unavailable"].is_null(),
        "{back}"
    );
    assert_eq!(back["dead"]["data"], json!([]), "{back}");
    s.h.eyes.rule(Rule::all().then(Fixture::BadRequest));
    let dead = s.speak(&["dead", &s.scan_file("torn.png", 5_001)]).await;
    assert_eq!(dead["job"]["status"], "dead", "{dead}");
    assert_eq!(dead["dead"]["data"][0]["rootId"], dead["scan"]["jobId"], "{dead}");
    s.h.eyes.clear_rules();
    let replayed = s.speak(&["replay", &id(&dead["scan"])]).await;
    assert_eq!(
        (&replayed["replayed"]["status"], &replayed["job"]["status"]),
        (&json!("queued"), &json!("completed")),
        "{replayed}"
    );
    assert_eq!(replayed["dead"]["data"], json!([]), "{replayed}");
    let why =
        s.h.text("select string_agg(distinct reason, '; ') from job_events where action = 'retry'")
            .await;
    assert_eq!(why, "the provider has learnt to read it");
    s.lap("told");
}
