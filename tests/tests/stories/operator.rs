//! The operator's hand: every verb about held work once, through the shipped command, with what is typed wrong; what `doctor` and
//! `GET /health` say of each state.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _};
use steadfast_tests::harness::{Api, Client, Db, Fleet, Opts, Output, Person, wait_until};
use steadfast_tests::provider::{Fixture, Mode, Provider, Route, Rule};
use steadfast_tests::smtp::{Act, Rule as MailRule, Smtp, Step};

const SOON: Duration = Duration::from_secs(30);
const SCAN: &[u8] = include_bytes!("../../../ops/samples/contract-scan.png");

/// A database, a provider for both capabilities, an API and a person; workers as each story wants them.
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
        db.ocr_endpoint("eyes", &provider).await;
        let fleet = Fleet::new(&db);
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

    /// The command, as ann where it talks to the API.
    async fn run(&self, args: &[&str]) -> Output {
        self.fleet.steadfast(&self.api, &self.ann, args).await
    }

    /// The command, which must end with this code; all that it said.
    async fn says(&self, code: i32, args: &[&str]) -> String {
        let out = self.run(args).await;
        assert_eq!(out.code, Some(code), "{args:?}: {out}");
        format!("{}{}", out.stdout, out.stderr)
    }

    async fn count(&self, table: &str) -> i64 {
        self.db.one(&format!("select count(*) from {table}")).await
    }

    async fn reaches(&self, what: &str, table: &str, n: i64) {
        wait_until(what, SOON, async || match self.count(table).await {
            now if now == n => Ok(()),
            now => Err(now),
        })
        .await;
    }

    /// The line of `endpoint ls` or `breaker ls` about one of them.
    async fn line(&self, verb: &str, name: &str) -> String {
        let all = self.says(0, &[verb, "ls"]).await;
        let found = all.lines().find(|l| l.trim_start().starts_with(name));
        found.unwrap_or_else(|| panic!("no {name} in {all}")).to_owned()
    }
}

/// Each of these is in what was said.
fn has(said: &str, all: &[&str]) {
    for part in all {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_breaker_says_what_it_did_and_what_follows() {
    let s = Stage::set().await;
    has(
        &s.says(1, &["breaker", "off", "smell", "--reason", "x", "--yes"]).await,
        &["there is no breaker smell", "embedding"],
    );
    has(&s.says(2, &["breaker", "off", "ocr", "--yes"]).await, &["--reason"]);
    has(&s.says(2, &["breaker", "off", "ocr", "--reason", " ", "--yes"]).await, &["say why"]);
    has(&s.says(1, &["breaker", "off", "ocr", "--reason", "x"]).await, &["--yes"]);
    assert_eq!(s.count("capability_events").await, 0, "nothing of that flipped anything");

    let drill = s
        .says(0, &["breaker", "off", "embedding", "--quiet", "--reason", "drill", "--yes"])
        .await;
    has(&drill, &["embedding is off", "0 jobs are held", "no incident was opened"]);
    assert_eq!(s.count("incidents").await, 0);
    has(
        &s.says(0, &["breaker", "on", "embedding", "--full"]).await,
        &["embedding is on", "nothing was held"],
    );

    // A key that is refused turns endpoint and breaker off; the operator's switch turns on both.
    s.provider.rule(Rule::all().on(Route::Embeddings).then(Fixture::InvalidKey));
    let worker = s.fleet.worker().await;
    for n in 0..3 {
        assert_eq!(s.client().remember(&format!("note {n} about a refused key")).await.status, 202);
    }
    s.reaches(
        "all are held",
        "jobs j, capabilities c where j.kind = 'embed' and j.status = 'waiting' and c.name = 'embedding' and not c.enabled",
        3,
    )
    .await;
    has(&s.line("endpoint", "vectors").await, &["REFUSED since", "refusal", "key_refused"]);
    has(&s.line("breaker", "embedding").await, &["OFF", "3"]);
    let again = s
        .says(
            0,
            &["breaker", "off", "embedding", "--annotate", "--reason", "ticket 4711", "--yes"],
        )
        .await;
    has(
        &again,
        &["already off, since", "by system: vectors", "3 jobs are held", "as a note"],
    );
    // Nobody works while the rest is looked at.
    drop(worker);
    s.provider.clear_rules();
    let on = s.says(0, &["breaker", "on", "embedding", "--reason", "new key"]).await;
    has(
        &on,
        &[
            "embedding is on",
            "asked again with it: vectors",
            "3 jobs are due now",
            "one call at a time",
            "--full",
        ],
    );
    has(&s.line("breaker", "embedding").await, &["on, ramp 1"]);
    has(
        &s.says(0, &["breaker", "on", "embedding"]).await,
        &["embedding is already on", "new key"],
    );
    has(
        &s.says(0, &["breaker", "on", "embedding", "--full"]).await,
        &["already on", "the rest of its ramp is skipped"],
    );
    assert!(!s.line("breaker", "embedding").await.contains("ramp"));

    let history = s.says(0, &["breaker", "history", "embedding"]).await;
    has(&history, &["endpoint", "ticket 4711", "already off", "note"]);
    assert!(
        history
            .lines()
            .any(|l| l.contains("vectors") && l.contains(" on ") && l.contains("new key")),
        "the endpoint is in its history: {history}"
    );
    let json = s
        .run(&["breaker", "off", "embedding", "--now", "--reason", "x", "--yes", "--json"])
        .await
        .json();
    assert_eq!((&json["changed"], &json["held_count"]), (&json!(true), &json!(3)), "{json}");
    assert!(json["incident_id"].is_i64(), "{json}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_endpoint_shows_how_each_one_stands_and_probes() {
    let s = Stage::set().await;
    for verb in ["on", "probe", "clear"] {
        has(
            &s.says(1, &["endpoint", verb, "nowhere"]).await,
            &["there is no endpoint \"nowhere\""],
        );
    }
    has(&s.says(2, &["endpoint", "off", "vectors", "--yes"]).await, &["--reason"]);
    has(&s.line("endpoint", "minilm").await, &["on, stands by behind vectors"]);
    s.db.exec("update endpoints set trust = 1 where name = 'vectors'").await;
    has(
        &s.line("endpoint", "minilm").await,
        &["stands by behind vectors; serves what is above level 1"],
    );
    let deaf = s.says(1, &["endpoint", "probe", "vectors"]).await;
    has(&deaf, &["due now", "no worker is alive"]);

    s.provider.mode(Mode::Refuse).await;
    let _worker = s.fleet.worker().await;
    let failed = s.says(1, &["endpoint", "probe", "vectors"]).await;
    has(&failed, &["vectors does not answer: connection_refused", "again by itself in"]);
    has(
        &s.line("endpoint", "vectors").await,
        &["backing off, next probe in", "connection_refused"],
    );
    let json = s.run(&["endpoint", "ls", "--json"]).await.json();
    let of = |name: &str| {
        json.as_array()
            .expect("a list")
            .iter()
            .find(|e| e["name"] == name)
            .expect("it is there")
            .clone()
    };
    assert!(
        of("vectors")["due_at"].is_string() && of("vectors")["outage_streak"].as_i64() > Some(1),
        "{json}"
    );
    assert_eq!(of("minilm")["stands_behind"], "vectors");

    // Work waits for it, and comes with the probe that is asked for, not at the end of a backoff of half a minute and more.
    assert_eq!(s.client().remember("waits for the probe").await.status, 202);
    s.reaches("its vector is asked for", "jobs where kind = 'embed' and status = 'waiting'", 1)
        .await;
    s.provider.mode(Mode::Open).await;
    has(&s.says(0, &["endpoint", "probe", "vectors"]).await, &["vectors answers"]);
    s.reaches("it has its vector", "jobs_done where kind = 'embed' and status = 'done'", 1)
        .await;
    assert_eq!(s.line("endpoint", "vectors").await.trim_end().rsplit("  ").next(), Some("on"));
    has(
        &s.says(0, &["endpoint", "clear", "vectors", "--no-wait"]).await,
        &["vectors is due now"],
    );

    let off = s.says(0, &["endpoint", "off", "vectors", "--reason", "maintenance", "--yes"]).await;
    has(&off, &["vectors is off"]);
    assert!(!off.contains("serves"), "minilm serves now: {off}");
    has(
        &s.says(0, &["endpoint", "off", "vectors", "--reason", "again", "--yes"]).await,
        &["already off, since", ": maintenance"],
    );
    has(&s.line("endpoint", "vectors").await, &["off: maintenance"]);
    has(
        &s.says(1, &["endpoint", "probe", "vectors"]).await,
        &["not asked anything", "steadfast endpoint on vectors"],
    );
    has(
        &s.says(0, &["endpoint", "off", "minilm", "--reason", "too slow", "--yes"]).await,
        &["no other endpoint of embedding serves"],
    );
    s.says(0, &["breaker", "off", "embedding", "--reason", "budget", "--yes"]).await;
    let on = s.says(0, &["endpoint", "on", "vectors"]).await;
    has(&on, &["vectors is on", "still held", "(budget)", "steadfast breaker on embedding"]);
    has(&s.says(0, &["endpoint", "on", "vectors"]).await, &["vectors is already on"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_incident_tells_who_was_told_and_sends_again() {
    let s = Stage::set().await;
    let smtp = Smtp::start();
    smtp.rule(
        MailRule::at(Step::Rcpt)
            .to("ann@")
            .times(1)
            .then(Act::reply(550, "5.1.1 <ann@example.org> no such mailbox")),
    );
    let bob = s.db.person("bob").await;
    s.db.exec("update users set email = null where name = 'bob'").await;
    assert_eq!(s.run(&["incident", "ls"]).await.code, Some(3));
    for args in [
        ["incident", "show", "999"],
        ["incident", "close", "999"],
        ["incident", "resend", "999"],
    ] {
        let code = if args[1] == "show" { 3 } else { 1 };
        has(&s.says(code, &args).await, &["there is no", "999"]);
    }
    assert_eq!(s.run(&["incident", "show", "seven"]).await.code, Some(2));

    let off = s
        .says(0, &["breaker", "off", "embedding", "--reason", "key rotated", "--yes"])
        .await;
    has(&off, &["steadfast incident show 1"]);
    let sends = Opts::new()
        .env("STEADFAST_SMTP_URL", smtp.url())
        .env("STEADFAST_MAIL_FROM", "house@example.org");
    let _worker = s.fleet.worker_with(sends).await;
    for who in [&s.ann, &bob] {
        assert_eq!(s.api.client(who).remember("held from its birth on").await.status, 202);
    }
    s.reaches("both parts have ended", "notices where opening in ('failed', 'no_address')", 2)
        .await;
    let notice = async |name: &str| -> String {
        s.db.one::<i64>(&format!(
            "select n.id from notices n join users u on u.id = n.user_id where u.name = '{name}'"
        ))
        .await
        .to_string()
    };
    let (of_ann, of_bob) = (notice("ann").await, notice("bob").await);

    has(
        &s.says(0, &["incident", "ls", "--open"]).await,
        &["open, off", "key rotated", "2 not sent"],
    );
    let shown = s.says(0, &["incident", "show", "1"]).await;
    has(
        &shown,
        &[
            "incident 1 · embedding · everybody",
            "steadfast breaker on embedding",
            "2 people",
            "failed",
            "no address",
            "550",
        ],
    );
    let json = s.run(&["incident", "show", "1", "--json"]).await;
    assert_eq!(json.json()["notices"].as_array().map(Vec::len), Some(2), "{json}");
    assert!(
        !shown.contains("@example.org") && !json.stdout.contains("@example.org"),
        "an address: {shown} {json}"
    );

    // The one that was refused, by its own job; once more is no second mail.
    has(&s.says(1, &["incident", "resend", &of_ann]).await, &["--yes"]);
    has(
        &s.says(0, &["incident", "resend", &of_ann, "--yes"]).await,
        &["is due again: its opening mail"],
    );
    smtp.wait_received(1).await;
    s.reaches("it is sent", "notices where opening = 'sent'", 1).await;
    has(
        &s.says(1, &["incident", "resend", &of_ann, "--yes"]).await,
        &["nothing of notice", "opening part is sent"],
    );
    s.reaches("the job that gave up has gone on", "jobs where kind = 'notice'", 0).await;
    assert_eq!(
        s.count("jobs_done where kind = 'notice' and status = 'done'").await,
        2,
        "one each: no second job"
    );

    // The one without an address, once there is one.
    has(
        &s.says(1, &["incident", "resend", &of_bob, "--yes"]).await,
        &["bob has no address", "--email"],
    );
    has(
        &s.says(2, &["token", "create", "--user", "bob", "--email", "bob"]).await,
        &["like ann@example.org"],
    );
    s.says(0, &["token", "create", "--user", "bob", "--email", "bob@example.org"]).await;
    has(&s.says(0, &["incident", "resend", &of_bob, "--yes"]).await, &["is due again"]);
    let mail = smtp.wait_for("bob's mail", |m| m.to == ["bob@example.org"]).await;
    has(&mail.mail.subject, &["paused"]);

    // Closed by hand, once. Its breaker stays off.
    has(&s.says(1, &["incident", "close", "1"]).await, &["--yes", "nobody is told any more"]);
    has(&s.says(0, &["incident", "close", "1", "--yes"]).await, &["incident 1 is closed"]);
    has(
        &s.says(0, &["incident", "close", "1"]).await,
        &["incident 1 is already closed, since", ", by "],
    );
    assert_eq!(s.run(&["incident", "ls", "--open"]).await.code, Some(3));
    has(&s.says(0, &["incident", "ls"]).await, &["closed"]);
    has(&s.line("breaker", "embedding").await, &["OFF"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_jobs_move_gives_a_place_again_and_says_why_not() {
    let s = Stage::set().await;
    s.db.exec("update endpoints set enabled = false where protocol in ('tesseract', 'minilm')")
        .await;
    s.says(0, &["breaker", "off", "ocr", "--quiet", "--reason", "test", "--yes"]).await;
    let _worker = s.fleet.worker().await;
    let ann = s.client();
    let tenant = s.ann.tenant_id;
    let space = async |name: &str, member: bool| -> i64 {
        let id: i64 =
            s.db.one(&format!(
                "insert into spaces (tenant_id, name) values ({tenant}, '{name}') returning id"
            ))
            .await;
        if member {
            s.db.exec(&format!("insert into space_members values ({tenant}, {id}, {})", s.ann.user_id))
                .await;
        }
        id
    };
    let (papers, kept, strange) = (
        space("Papers", true).await,
        space("Kept", true).await,
        space("Strange", false).await,
    );
    let added = ann.upload(SCAN, "parked.png").await;
    let (root, document) = (added.job_id(), added.json["documentId"].as_str().expect("an id").to_owned());
    assert_eq!(ann.upload_to(SCAN, "kept.png", kept).await.status, 202);
    s.reaches("both pages are held", "jobs where kind = 'ocr' and status = 'waiting'", 2)
        .await;
    let page = async |title: &str| -> String {
        s.db.one::<i64>(&format!(
            "select j.id from jobs j join pages p on p.id = j.item_id and j.kind = 'ocr' join documents d on d.id = p.document_id where d.title = '{title}'"
        ))
        .await
        .to_string()
    };
    let (parked, healthy) = (page("parked.png").await, page("kept.png").await);
    let tree = s.says(0, &["jobs", "show", &root]).await;
    has(&tree, &["followed by job", &parked, "ocr", "held (ocr)"]);
    let json = s.run(&["jobs", "show", &root, "--json"]).await.json();
    assert_eq!(
        (&json["children"][0]["kind"], &json["children"][0]["hold"]),
        (&json!("ocr"), &json!("ocr")),
        "{json}"
    );

    s.db.exec(&format!("delete from spaces where id = {}", s.ann.space_id)).await;
    // One moves while it is still held, without ever having been parked.
    let early = ann.upload_to(SCAN, "early.png", papers).await;
    s.reaches("its page is held", "jobs where kind = 'ocr' and status = 'waiting'", 3)
        .await;
    let early_page = page("early.png").await;
    s.db.exec(&format!(
        "update documents set space_id = null where title = 'early.png' and {} is not null",
        early.job_id()
    ))
    .await;
    has(
        &s.says(0, &["jobs", "move", &early_page, "--space", "papers", "--reason", "gone"])
            .await,
        &["1 document is in papers now; 1 job due now"],
    );

    s.says(0, &["breaker", "on", "ocr", "--full"]).await;
    s.reaches("it is parked", "jobs where status = 'parked' and last_class = 'place_gone'", 1)
        .await;
    has(
        &s.says(0, &["jobs", "show", &parked]).await,
        &["no place any more", &format!("steadfast jobs move {parked}")],
    );
    s.reaches("the others are read", "documents where status = 'processed'", 2).await;

    let to = |id: &str, space: &str| ["jobs", "move", id, "--space", space, "--reason", "its Space was deleted"].map(str::to_owned);
    let moves = async |code: i32, id: &str, space: &str| {
        let args = to(id, space);
        s.says(code, &args.each_ref().map(String::as_str)).await
    };
    has(&s.says(2, &["jobs", "move", &parked, "--space", "Papers"]).await, &["--reason"]);
    has(&s.says(2, &["jobs", "move", "--space", "Papers", "--reason", "x"]).await, &["IDS"]);
    has(&moves(2, &parked, "  ").await, &["name the Space"]);
    has(&moves(2, &parked, "\u{1b}[2J").await, &["control characters"]);
    has(
        &moves(1, &parked, "Atlantis").await,
        &[&format!("job {parked} was left alone"), "tenant default has no Space Atlantis"],
    );
    has(
        &moves(1, &parked, "Strange").await,
        &[
            "ann, whose document it is, is not a member of Strange",
            "steadfast token create --user ann --space Strange",
        ],
    );
    has(&moves(1, "999999", "Papers").await, &["no live job of that id"]);
    assert_eq!(s.count("documents where space_id is null").await, 1, "it has no place yet");

    // A place by its id, and one id that is wrong: what can be moved is.
    let both = s
        .says(
            1,
            &[
                "jobs",
                "move",
                &parked,
                "999999",
                "--space",
                &papers.to_string(),
                "--reason",
                "deleted",
            ],
        )
        .await;
    has(&both, &["1 document is in", "1 job due now", "job 999999 was left alone"]);
    wait_until("it is where it was moved to", SOON, async || {
        let d = ann.get(&format!("/api/v1/documents/{document}")).await;
        if d.json["status"] == "processed" && d.json["spaceId"] == json!(papers.to_string()) {
            Ok(())
        } else {
            Err(d.text)
        }
    })
    .await;
    has(&moves(1, &parked, "Papers").await, &["no live job of that id"]);

    // What has its place keeps it, whatever is asked.
    s.says(0, &["breaker", "off", "ocr", "--quiet", "--reason", "test", "--yes"]).await;
    assert_ne!(healthy, parked);
    assert_eq!(ann.upload_to(SCAN, "stays.png", kept).await.status, 202);
    s.reaches("its page is held", "jobs where kind = 'ocr' and status = 'waiting'", 1)
        .await;
    let stays = page("stays.png").await;
    has(&moves(1, &stays, "Papers").await, &["its document has its place (waiting)"]);
    assert_eq!(
        s.count(&format!("documents where title = 'stays.png' and space_id = {kept}")).await,
        1
    );
    assert_eq!(s.count(&format!("documents where space_id = {strange}")).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_add_does_not_call_it_completed_while_its_meaning_is_held() {
    let s = Stage::set().await;
    let _worker = s.fleet.worker().await;
    s.says(0, &["breaker", "off", "embedding", "--reason", "key rotated", "--yes"])
        .await;
    let file = s.fleet.dir().join("note.txt");
    std::fs::write(&file, "The espresso maker is fixed by Marta.").expect("a file in our own folder");
    let name = file.to_str().expect("a plain name");
    let out = s.run(&["add", name]).await;
    assert_eq!(out.code, Some(0), "{out}");
    has(
        &out.stdout,
        &["note.txt  found by its words; meaning follows when embedding is back"],
    );
    assert!(!out.stdout.contains("completed"), "{out}");
    has(&out.stderr, &["Searching by meaning is paused"]);
    has(&s.says(0, &["search", "espresso"]).await, &["note.txt"]);
    let json = s.run(&["add", name, "--json"]).await.json();
    assert_eq!(json[0]["status"], "words_only", "{json}");
    s.says(0, &["breaker", "on", "embedding", "--full"]).await;
    let out = s.run(&["add", name]).await;
    has(&out.stdout, &["completed"]);
}

/// The findings of `doctor`, by what they are about.
async fn doctor(s: &Stage) -> Vec<(String, String, String)> {
    let out = s.run(&["doctor", "--json"]).await;
    let text = |f: &Value, k: &str| f[k].as_str().expect("a text").to_owned();
    let all: Vec<_> = out
        .json()
        .as_array()
        .expect("a list")
        .iter()
        .map(|f| (text(f, "what"), text(f, "state"), text(f, "say")))
        .collect();
    let bad = all.iter().any(|(_, state, _)| state != "ok");
    assert_eq!(out.code, Some(if bad { 4 } else { 0 }), "{out}");
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_doctor_finds_every_state_and_its_fixes_are_commands() {
    let s = Stage::set().await;
    let _worker = s.fleet.worker().await;
    let well = doctor(&s).await;
    assert!(
        well.iter().all(|(_, state, _)| state == "ok"),
        "a house without a mail server is well: {well:?}"
    );

    s.db.exec(&format!(
        "with i as (insert into incidents (capability, opened_by, reason, endpoints, failure_count) values ('embedding', 'system', 'vectors: invalid_key', '{{vectors}}', 3) returning id),
              b as (update capabilities set enabled = false, reason = 'vectors: invalid_key', changed_by = 'system', changed_at = now() where name = 'embedding' and tenant_id is null),
              o as (update capabilities set ramp_limit = 1, changed_at = now() - interval '2 hours' where name = 'ocr' and tenant_id is null),
              e as (update endpoints set enabled = false, tripped_at = now(), refusal_count = 3, reason = 'vectors: invalid_key' where name = 'vectors'),
              d as (update endpoints set outage_streak = 3, due_at = now() + interval '5 minutes', probe_error = 'timeout: nothing came' where name = 'eyes')
         insert into notices (incident_id, tenant_id, user_id, wording_version, opening) select id, {}, {}, 1, 'due' from i",
        s.ann.tenant_id, s.ann.user_id
    ))
    .await;
    for (name, states) in [
        ("bob", "'unknown', null"),
        ("cat", "'sent', 'failed'"),
        ("dan", "'no_address', null"),
    ] {
        let who = s.db.person(name).await;
        s.db.exec(&format!(
            "insert into notices (incident_id, tenant_id, user_id, wording_version, opening, closing) select max(id), {}, {}, 1, {states} from incidents",
            who.tenant_id, who.user_id
        ))
        .await;
    }
    // A page whose place is gone, one that waits although nothing stands in its way, and one for which its time is not yet.
    s.db.exec(&format!(
        "with l as (insert into lines (kind, lane, tenant_id, level, capability) values ('ocr', 'batch', {0}, 1, 'ocr') returning id)
         insert into jobs (line_id, tenant_id, kind, status, last_class) select id, {0}, 'ocr', s, c from l, (values ('parked', 'place_gone'), ('waiting', null), ('dead', 'bad_input')) v (s, c)",
        s.ann.tenant_id
    ))
    .await;
    let found = doctor(&s).await;
    let loose: i64 = s.db.one("select id from jobs where last_class = 'place_gone'").await;
    for (what, state, parts) in [
        (
            "breaker embedding",
            "warn",
            &["off since", "by system: vectors: invalid_key", "steadfast breaker on embedding"][..],
        ),
        (
            "breaker ocr",
            "warn",
            &["on a ramp: 1 call at a time", "1 wait", "steadfast breaker on ocr --full"],
        ),
        (
            "endpoint vectors",
            "warn",
            &["REFUSED since", "3 refusals", "steadfast breaker on embedding turns it on too"],
        ),
        (
            "endpoint eyes",
            "warn",
            &["backing off, next probe in", "nothing came", "steadfast endpoint probe eyes"],
        ),
        ("incident 1", "warn", &["4 people have work behind it", "steadfast incident show 1"]),
        ("mail", "warn", &["1 notice waits", "STEADFAST_SMTP_URL", "STEADFAST_MAIL_FROM"]),
        (
            "notices",
            "warn",
            &[
                "1 may or may not have arrived, 1 could not be delivered",
                "steadfast incident show 1",
            ],
        ),
        ("addresses", "ok", &["1 person", "--email ADDRESS"]),
    ] {
        let line = found
            .iter()
            .find(|f| f.0 == what)
            .unwrap_or_else(|| panic!("no {what} in {found:#?}"));
        assert_eq!(line.1, state, "{line:?}");
        has(&line.2, parts);
    }
    let ocr: Vec<_> = found.iter().filter(|f| f.0 == "ocr jobs").map(|f| f.2.as_str()).collect();
    assert_eq!(ocr.len(), 2, "{ocr:?}");
    has(ocr[0], &["1 dead: steadfast jobs ls --kind ocr --status dead"]);
    has(
        ocr[1],
        &[&format!("1 parked for want of a place: steadfast jobs move {loose} --space NAME")],
    );

    // Whatever it says to type is understood by the command itself.
    for (_, _, said) in &found {
        for command in said.split("steadfast ").skip(1) {
            let words = command.split([';', ',', ':', '(', '`']).next().unwrap_or_default();
            let words = words.split(" turns it").next().unwrap_or_default();
            if words.starts_with("worker") || words.trim().is_empty() {
                continue;
            }
            let words = words
                .replace("NOTICE", "1")
                .replace("ADDRESS", "a@example.org")
                .replace(" ID", " 1");
            let args: Vec<&str> = words.split_whitespace().filter(|w| *w != "…").chain(["--help"]).collect();
            let help = s.run(&args).await;
            assert_eq!(help.code, Some(0), "{args:?} out of {said:?}: {help}");
        }
    }
    s.says(0, &["breaker", "on", "embedding", "--full"]).await;
    s.says(0, &["breaker", "on", "ocr", "--full"]).await;
    s.says(0, &["incident", "show", "1"]).await;
    let after = doctor(&s).await;
    for gone in ["breaker embedding", "breaker ocr", "endpoint vectors"] {
        assert!(
            after.iter().all(|(what, state, _)| what != gone || state == "ok"),
            "{gone}: {after:#?}"
        );
    }
    let incident = after.iter().find(|f| f.0 == "incident 1").expect("still open");
    assert!(incident.1 == "ok" && incident.2.contains("on again"), "{incident:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p33_health_tells_ok_degraded_and_unhealthy_with_reasons_and_names_no_tenant() {
    let s = Stage::set().await;
    let nobody = s.client().with_token("");
    let health = async || {
        let answer = nobody.get("/health").await;
        let codes: Vec<String> = answer.json["reasons"]
            .as_array()
            .unwrap_or_else(|| panic!("{answer}"))
            .iter()
            .map(|r| {
                ["code", "capability", "endpoint", "kind"]
                    .iter()
                    .filter_map(|k| r[k].as_str())
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect();
        (
            answer.status,
            answer.json["status"].as_str().unwrap_or_default().to_owned(),
            codes,
            answer,
        )
    };
    let is = async |status: u16, word: &str, codes: &[&str]| {
        let (is_status, is_word, is_codes, answer) = health().await;
        assert_eq!(
            (is_status, is_word.as_str(), is_codes),
            (status, word, codes.iter().map(|c| (*c).to_owned()).collect()),
            "{answer}"
        );
        answer
    };
    is(200, "degraded", &["no_worker embedding question", "no_worker extract"]).await;
    let worker = s.fleet.worker_with(Opts::new().kinds("extract,question,embed")).await;
    is(200, "ok", &[]).await;

    // A kind that nobody takes is a matter once there is work of it.
    assert_eq!(s.client().upload(SCAN, "scan.png").await.status, 202);
    s.reaches("a page waits", "jobs where kind = 'ocr' and status = 'waiting'", 1).await;
    is(200, "degraded", &["no_worker ocr ocr"]).await;
    s.says(0, &["breaker", "off", "ocr", "--reason", "secret reason", "--yes"]).await;
    // Held is not unserved; its notice waits, and so does the fan-out that makes the others.
    let stopped = is(200, "degraded", &["no_worker fan_out", "stopped ocr"]).await;
    assert!(!stopped.text.contains("secret"), "{stopped}");
    assert!(stopped.json["reasons"][1]["seconds"].as_i64().is_some_and(|t| t < 60), "{stopped}");
    let _fans = s.fleet.worker_with(Opts::new().kinds("fan_out")).await;
    s.reaches("ann is to be told", "notices where opening = 'due'", 1).await;
    s.reaches("the fan-out is over", "jobs where kind = 'fan_out'", 0).await;
    is(200, "degraded", &["no_mail notice", "stopped ocr"]).await;
    s.db.exec("update notices set opening = 'sent'").await;
    s.says(0, &["breaker", "on", "ocr", "--full"]).await;
    s.db.exec("delete from jobs where kind = 'ocr'").await;
    is(200, "ok", &[]).await;

    s.db.exec("update endpoints set outage_streak = 1 where name = 'vectors'").await;
    is(200, "degraded", &["outage embedding vectors"]).await;
    s.db.exec(
        "update endpoints set outage_streak = 0, enabled = false, tripped_at = now(), reason = 'secret reason' where name = 'vectors'",
    )
    .await;
    is(200, "degraded", &["refused embedding vectors"]).await;
    s.db.exec("update endpoints set enabled = true, tripped_at = null where name = 'vectors'")
        .await;

    // A tenant's own: a number, without a name.
    let other = s.db.person_of("acme", "bob").await.tenant_id;
    s.db.exec(&format!(
        "with c as (insert into capabilities (name, tenant_id, enabled) values ('embedding', {other}, false))
         insert into endpoints (name, capability, protocol, url, model, owner_tenant_id, enabled, tripped_at)
         values ('acme-cloud', 'embedding', 'openai', 'http://127.0.0.1:1/v1', 'm', {other}, false, now())"
    ))
    .await;
    let own = is(200, "degraded", &["refused embedding", "stopped embedding"]).await;
    assert!(!own.text.contains("acme"), "{own}");
    assert!(
        own.json["reasons"].as_array().expect("two").iter().all(|r| r["tenants"] == 1),
        "{own}"
    );
    s.db.exec(&format!("delete from tenants where id = {other}")).await;
    is(200, "ok", &[]).await;
    assert!(worker.stdout().iter().any(|l| l.contains("ready")));

    // Not migrated, then away: nothing can be answered.
    s.db.exec("alter table notices rename to notices_of_yesterday").await;
    is(503, "unhealthy", &["not_migrated"]).await;
    s.db.exec("alter table notices_of_yesterday rename to notices").await;
    is(200, "ok", &[]).await;
    let lost = Opts::new().env("STEADFAST_DATABASE_URL", "postgres://postgres@127.0.0.1:1/nowhere");
    let lost = s.fleet.api_with(lost).await;
    let answer = Client::new(&lost.base, "", 0).get("/health").await;
    assert_eq!(
        (answer.status, &answer.json),
        (503, &json!({"status": "unhealthy", "reasons": [{"code": "database"}]})),
        "{answer}"
    );
}

/// The processes that `up` started, by the name of their program, with their environment.
fn children(up: i32) -> Vec<(String, String)> {
    let list = std::fs::read_to_string(format!("/proc/{up}/task/{up}/children")).expect("Linux tells");
    list.split_whitespace()
        .filter_map(|pid| {
            let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
            let env = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            Some((
                program.file_name()?.to_string_lossy().into_owned(),
                String::from_utf8_lossy(&env).into_owned(),
            ))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_up_hands_the_mail_server_to_workers_alone_and_its_api_tells_the_houses_health() {
    let fleet = Fleet::without_database();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .expect("a free port")
        .port()
        .to_string();
    let data = fleet.dir().join("data");
    let pg =
        std::env::var("STEADFAST_PG_BIN").expect("STEADFAST_PG_BIN names the folder with initdb and postgres; run this through ops/test");
    let mut opts = Opts::new()
        .without("STEADFAST_BLOBS")
        .env("STEADFAST_PG_BIN", pg)
        .env("STEADFAST_SMTP_URL", "smtp://me:hunter2@127.0.0.1:1")
        .env("STEADFAST_MAIL_FROM", "house@example.org");
    for arg in [
        "up",
        "--data",
        data.to_str().expect("a plain name"),
        "--port",
        &port,
        "--workers",
        "1",
        "--no-samples",
    ] {
        opts = opts.arg(arg);
    }
    let up = fleet.start("steadfast", opts);
    up.line("ready").await;
    let seen: Vec<(String, bool)> = children(up.pid())
        .into_iter()
        .map(|(name, env)| (name, env.contains("hunter2")))
        .collect();
    for (name, knows) in [("steadfast-api", false), ("steadfast-worker", true), ("postgres", false)] {
        assert_eq!(seen.iter().find(|s| s.0 == name).map(|s| s.1), Some(knows), "{name}: {seen:?}");
    }
    // The API's own login, which may not become the worker, tells the numbers.
    let nobody = Client::new(&format!("http://127.0.0.1:{port}"), "", 0);
    // `up` says ready when the API is; its workers have registered a moment later.
    wait_until("the house is well", SOON, async || {
        let health = nobody.get("/health").await;
        if (health.status, &health.json["status"]) == (200, &json!("ok")) {
            Ok(())
        } else {
            Err(health)
        }
    })
    .await;
    let metrics = nobody.get("/health/metrics").await;
    assert!(
        metrics.status == 200 && metrics.text.contains("steadfast_workers{kind=\"notice\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn p33_who_counts_sees_nobodys_content() {
    let db = Db::new().await;
    let ann = db.person("ann").await;
    db.exec(&format!(
        "with l as (insert into lines (kind, lane, tenant_id, level) values ('noop', 'batch', {0}, 1) returning id)
         insert into jobs (line_id, tenant_id, user_id, kind, payload) select id, {0}, {1}, 'noop', '{{\"secret\": 1}}' from l",
        ann.tenant_id, ann.user_id
    ))
    .await;
    let mut watch = sqlx::PgConnection::connect(&db.url_for("steadfast_watch"))
        .await
        .expect("a connection in a role");
    let counted: i64 = sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(&mut watch)
        .await
        .expect("it counts");
    assert_eq!(counted, 1);
    for hidden in [
        "payload from jobs",
        "last_error from jobs",
        "user_id from jobs",
        "email from users",
        "count(*) from blocks",
        "title from documents",
        "name from tenants",
        "error from notices",
    ] {
        let refused = sqlx::query(AssertSqlSafe(format!("select {hidden}"))).execute(&mut watch).await;
        assert!(refused.is_err_and(|e| e.to_string().contains("permission denied")), "{hidden}");
    }
    let written = sqlx::query("update capabilities set enabled = false").execute(&mut watch).await;
    assert!(written.is_err_and(|e| e.to_string().contains("permission denied")));
}
