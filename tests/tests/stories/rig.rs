//! The rig itself: a story is worth no more than the tools it is told with.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use sqlx::Connection as _;
use steadfast_tests::harness::{Client, Db, Fleet, Llmock, Opts, Sink, wait_until};
use steadfast_tests::smtp::{Act, Mode, Rule, Smtp, Step};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

fn state_of(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[tokio::test]
async fn rig_a_database_has_its_roles_and_goes_with_its_story() {
    let db = Db::new().await;
    let ann = db.person("ann").await;
    let bob = db.person_of("other", "bob").await;
    assert!(ann.tenant_id != bob.tenant_id && ann.token.len() == 46, "{ann:?} {bob:?}");
    let seen: bool = db
        .one(&format!("select exists (select from authenticate(sha256('{}'::bytea)))", ann.token))
        .await;
    assert!(seen, "the token opens the one door");

    for (role, sees) in [("steadfast_worker", 2_i64), ("steadfast_api", 0)] {
        let mut conn = sqlx::PgConnection::connect(&db.url_for(role))
            .await
            .expect("a connection in a role");
        let (me, users): (String, i64) = sqlx::query_as("select current_user::text, (select count(*) from users)")
            .fetch_one(&mut conn)
            .await
            .expect("an answer");
        assert_eq!((me.as_str(), users), (role, sees), "without a tenant the API's role sees nobody");
    }

    let (server, name) = (
        std::env::var("STEADFAST_TEST_PG").expect("it was there before"),
        db.one::<String>("select current_database()::text").await,
    );
    drop(db);
    let mut conn = sqlx::PgConnection::connect(&server).await.expect("the server");
    let left: bool = sqlx::query_scalar("select exists (select from pg_database where datname = $1)")
        .bind(&name)
        .fetch_one(&mut conn)
        .await
        .expect("an answer");
    assert!(!left, "{name} is gone");
}

#[tokio::test]
async fn rig_a_process_can_be_frozen_stopped_and_killed() {
    let db = Db::new().await;
    let fleet = Fleet::new(&db);
    let name = "steadfast-scripted-provider";
    let mut first = fleet.start(name, Opts::new().arg("--key").arg("op=sk-1"));
    let base = first.line("listening on ").await;
    let client = Client::new(&base, "sk-1", 0);
    let rule = json!({"text": "POISON", "then": {"do": "fixture", "name": "payload_too_large"}});
    assert_eq!(client.post("/control/rules", &rule).await.status, 200);
    assert_eq!(
        client
            .post("/v1/embeddings", &json!({"model": "m", "input": "a POISON"}))
            .await
            .status,
        413
    );

    let state = async |wanted: char| {
        let pid = first.pid();
        wait_until(&format!("the process is in state {wanted}"), Duration::from_secs(10), async || {
            let now = state_of(pid);
            if now == Some(wanted) { Ok(()) } else { Err(now) }
        })
        .await;
    };
    first.sigstop();
    state('T').await;
    first.sigcont();
    state('S').await;
    first.sigterm();
    assert_eq!(first.wait_exit().await.code(), Some(0), "{}", first.log());

    let mut second = fleet.start(name, Opts::new());
    second.line("listening on ").await;
    second.kill9().await;
    assert!(!second.is_alive());
    let third = fleet.start(name, Opts::new());
    third.line("listening on ").await;
    let pid = third.pid();
    drop(third);
    wait_until("a dropped process is dead", Duration::from_secs(10), async || match state_of(pid) {
        None | Some('Z') => Ok(()),
        alive => Err(alive),
    })
    .await;

    let refused = fleet.run(name, &["--key", "no-label"], Opts::new()).await;
    assert!(refused.code == Some(2) && refused.stderr.contains("LABEL=KEY"), "{refused}");
}

// ── Mail ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

/// A sender, word by word.
struct Sender(BufReader<TcpStream>);

impl Sender {
    /// Connects to `smtp://…` and hears the greeting.
    async fn to(url: &str) -> (Self, String) {
        let addr = url.strip_prefix("smtp://").expect("the address of a mail server");
        let mut sender = Self(BufReader::new(TcpStream::connect(addr).await.expect("a connection")));
        let greeting = sender.reply().await;
        (sender, greeting)
    }

    /// The last line of a reply; empty when the server has closed.
    async fn reply(&mut self) -> String {
        loop {
            let mut line = String::new();
            // A reset is a way to close.
            let read = self.0.read_line(&mut line).await.unwrap_or(0);
            if read == 0 || line.as_bytes().get(3) != Some(&b'-') {
                return line.trim_end().to_owned();
            }
        }
    }

    async fn put(&mut self, words: &str) {
        self.0
            .write_all(format!("{words}\r\n").as_bytes())
            .await
            .expect("words to a mail server");
    }

    /// Says a line and hears the code of the reply; 0 when the server has closed.
    async fn say(&mut self, line: &str) -> u16 {
        self.put(line).await;
        self.code().await
    }

    async fn code(&mut self) -> u16 {
        self.reply().await.get(..3).and_then(|c| c.parse().ok()).unwrap_or(0)
    }

    /// Everything up to the message; each reply but the last must be a good one.
    async fn envelope(&mut self, recipients: &[&str]) -> u16 {
        assert_eq!(self.say("EHLO story.invalid").await, 250);
        assert_eq!(self.say("MAIL FROM:<house@example.org>").await, 250);
        for recipient in recipients {
            assert_eq!(self.say(&format!("RCPT TO:<{recipient}>")).await, 250, "{recipient}");
        }
        self.say("DATA").await
    }

    async fn send(&mut self, recipients: &[&str], message: &str) -> u16 {
        assert_eq!(self.envelope(recipients).await, 354);
        self.say(&format!("{message}\r\n.")).await
    }
}

const LETTER: &str = "Message-ID: <n1@house.example>\r\nFrom: House <house@example.org>\r\nTo: everybody <all@example.org>\r\n\
    Subject: =?utf-8?Q?Gr=C3=BC=C3=9Fe?= from the house\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\
    Content-Transfer-Encoding: quoted-printable\r\n\r\nYour paper =E2=80=9Ccontract=E2=80=9D is stored safely, and =\r\nwill be read later.\r\n..\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn rig_the_mail_sink_keeps_what_it_takes_and_comes_back_on_its_port() {
    let mut sink = Sink::start().await;
    assert_eq!(sink.mails().await, []);
    let url = sink.url();
    let (mut sender, greeting) = Sender::to(&url).await;
    assert!(greeting.starts_with("220") && greeting.contains("SMTP"), "{greeting}");
    assert_eq!(sender.send(&["ann@example.org", "bob@example.org"], LETTER).await, 250);
    // Who has the 250 finds the mail there: nothing to wait for.
    let mails = sink.mails().await;
    assert_eq!(mails.len(), 1, "{mails:#?}");
    let mail = &mails[0];
    assert_eq!(mail.to, ["ann@example.org", "bob@example.org"], "the envelope's, not the header's");
    assert_eq!(mail.from, "house@example.org");
    assert_eq!(
        (mail.subject.as_str(), mail.message_id.as_str()),
        ("Grüße from the house", "<n1@house.example>")
    );
    assert_eq!(
        mail.body.trim_end(),
        "Your paper “contract” is stored safely, and will be read later.\n."
    );
    assert_eq!(mail.header("to"), Some("everybody <all@example.org>"));

    let held = sender;
    sink.stop().await;
    let addr = url.strip_prefix("smtp://").expect("an address");
    let refused = TcpStream::connect(addr).await.expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    drop(held);
    sink.start_again().await;
    assert_eq!(sink.url(), url);
    let (mut sender, _) = Sender::to(&url).await;
    let base64 =
        "Subject: second\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n4pyTIGdlbGVzZW4K\r\n";
    assert_eq!(sender.send(&["cid@example.org"], base64).await, 250);
    let mails = sink.wait_mails(2).await;
    let second = mails.last().expect("two mails");
    assert_eq!(
        (second.subject.as_str(), second.body.as_str(), second.message_id.as_str()),
        ("second", "✓ gelesen\n", ""),
        "in the order of arrival"
    );

    drop(sink);
    wait_until("a dropped sink is gone", Duration::from_secs(10), async || {
        TcpStream::connect(addr).await.err().map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rig_the_scripted_mail_server_refuses_where_it_is_told_to() {
    let smtp = Smtp::start();
    for (step, code) in [(Step::Hello, 421), (Step::Mail, 451), (Step::Data, 554), (Step::Body, 452)] {
        smtp.rule(Rule::at(step).times(1).then(Act::reply(code, "4.3.0 jetzt nicht")));
    }
    smtp.rule(Rule::at(Step::Rcpt).to("gone@").then(Act::reply(550, "5.1.1 unbekannt")));
    let (mut sender, _) = Sender::to(&smtp.url()).await;
    assert_eq!(sender.say("EHLO story.invalid").await, 421);
    assert_eq!(sender.say("EHLO story.invalid").await, 250);
    assert_eq!(sender.say("MAIL FROM:<house@example.org>").await, 451);
    assert_eq!(sender.say("RCPT TO:<ann@example.org>").await, 503, "there is no envelope yet");
    assert_eq!(sender.say("MAIL FROM:<house@example.org>").await, 250);
    assert_eq!(sender.say("RCPT TO:<gone@example.org>").await, 550);
    assert_eq!(sender.say("DATA").await, 503, "there is no recipient");
    assert_eq!(sender.say("RCPT TO:<ann@example.org>").await, 250);
    assert_eq!(sender.say("RCPT TO:<bob@example.org>").await, 250);
    assert_eq!(sender.say("DATA").await, 554);
    assert_eq!(sender.say("DATA").await, 354);
    assert_eq!(smtp.received().len(), 0);
    assert_eq!(sender.say(&format!("{LETTER}.")).await, 452, "after the message");
    assert_eq!(sender.send(&["cid@example.org"], LETTER).await, 250, "the rules are spent");

    let all = smtp.received();
    let seen: Vec<_> = all.iter().map(|m| (m.to.join(" "), m.answer, m.mail.message_id.as_str())).collect();
    assert_eq!(
        seen,
        [
            ("ann@example.org bob@example.org".to_owned(), Some(452), "<n1@house.example>"),
            ("cid@example.org".to_owned(), Some(250), "<n1@house.example>")
        ]
    );
    assert_eq!(smtp.accepted().len(), 1);
    assert!(all[0].mail.body.ends_with("\n.\n"), "one dot of two: {:?}", all[0].mail.body);
    assert_eq!(sender.say("QUIT").await, 221);
    assert_eq!(sender.reply().await, "", "and closed");

    // At the door, and on one connection alone.
    smtp.rule(Rule::at(Step::Greeting).on_connection(2).then(Act::reply(554, "kein Dienst")));
    let (mut second, greeting) = Sender::to(&smtp.url()).await;
    assert_eq!((greeting.as_str(), second.reply().await.as_str()), ("554 kein Dienst", ""));
    let (_third, greeting) = Sender::to(&smtp.url()).await;
    assert!(greeting.starts_with("220"), "{greeting}");
    assert_eq!(smtp.connections(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn rig_the_scripted_mail_server_waits_and_vanishes_between_the_message_and_its_250() {
    let smtp = Smtp::start();
    smtp.rule(Rule::at(Step::Body).to("ann@").times(1).then(Act::hold("unsaid")));
    smtp.rule(Rule::at(Step::Body).to("bob@").nth(1).then(Act::hold("lost")));
    smtp.rule(
        Rule::at(Step::Body)
            .to("cid@")
            .then(Act::hold_then("late", Act::reply(451, "doch nicht"))),
    );
    smtp.rule(Rule::at(Step::Body).to("dan@").then(Act::Vanish));
    let message = format!("{LETTER}.");

    let (mut ann, _) = Sender::to(&smtp.url()).await;
    assert_eq!(ann.envelope(&["ann@example.org"]).await, 354);
    ann.put(&message).await;
    let whole = smtp.wait_for("the whole message", |m| m.to == ["ann@example.org"]).await;
    assert_eq!((whole.answer, whole.mail.message_id.as_str()), (None, "<n1@house.example>"));
    let heard = tokio::time::timeout(Duration::from_millis(100), ann.0.read_u8()).await;
    assert!(heard.is_err(), "nothing is said: {heard:?}");

    // One that dies while it waits for its 250, as a killed worker does: the message stays on record, unanswered.
    let (mut bob, _) = Sender::to(&smtp.url()).await;
    assert_eq!(bob.envelope(&["bob@example.org"]).await, 354);
    bob.put(&message).await;
    smtp.wait_received(2).await;
    drop(bob);
    smtp.wait_line("2. closed").await;
    smtp.release("lost");

    let (mut cid, _) = Sender::to(&smtp.url()).await;
    assert_eq!(cid.envelope(&["cid@example.org"]).await, 354);
    cid.put(&message).await;
    smtp.wait_received(3).await;
    smtp.release("late");
    assert_eq!(cid.code().await, 451);

    let (mut dan, _) = Sender::to(&smtp.url()).await;
    assert_eq!(dan.send(&["dan@example.org"], LETTER).await, 0, "closed without a word");

    smtp.release("unsaid");
    assert_eq!(ann.code().await, 250);
    let answers: Vec<_> = smtp.received().iter().map(|m| (m.seq, m.connection, m.answer)).collect();
    assert_eq!(answers, [(1, 1, Some(250)), (2, 2, None), (3, 3, Some(451)), (4, 4, None)]);
    let (mut again, _) = Sender::to(&smtp.url()).await;
    assert_eq!(again.send(&["bob@example.org"], LETTER).await, 250, "only the first time");

    // A message without its last dot was not received.
    let (mut cut, _) = Sender::to(&smtp.url()).await;
    assert_eq!(cut.envelope(&["eve@example.org"]).await, 354);
    cut.put("Subject: half").await;
    drop(cut);
    smtp.wait_line("6. closed").await;
    assert_eq!(smtp.received().len(), 5);

    smtp.mode(Mode::Refuse).await;
    let refused = TcpStream::connect(smtp.addr()).await.expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    smtp.mode(Mode::Open).await;
    let (_back, greeting) = Sender::to(&smtp.url()).await;
    assert!(greeting.starts_with("220"), "{greeting}");
}

// ── A provider that judges ───────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(flavor = "multi_thread")]
async fn rig_llmock_limits_and_judges() {
    let llmock = Llmock::start(&["--rpm", "2"]).await;
    let clean = llmock.verdict().await;
    assert_eq!((&clean["passed"], &clean["calls"]), (&json!(true), &json!(0)), "{clean}");
    let client = Client::new(&llmock.url(), "", 0);
    let ask = async |text: &str| {
        let body = json!({"model": "text-embedding-3-small", "input": [text]});
        client.send(client.request(Method::POST, "/v1/embeddings").json(&body)).await
    };
    let first = ask("one").await;
    assert_eq!(first.status, 200, "{first}");
    assert_eq!(first.json["data"][0]["embedding"].as_array().map(Vec::len), Some(1536));
    llmock
        .script(json!({"type": "fail", "status": 503, "retry_after": 0.01, "times": 1}))
        .await;
    assert_eq!(ask("two").await.status, 503);
    assert_eq!(ask("three").await.status, 200);
    let limited = ask("four").await;
    assert!(limited.status == 429 && limited.headers.contains_key("retry-after"), "{limited}");
    assert_eq!(llmock.requests().await.len(), 4);
    assert!(!llmock.findings().await.contains(&"retry_after_ignored".to_owned()));
    // The same again, at once: that is what it is there to notice.
    assert_eq!(ask("four").await.status, 429);
    let verdict = llmock.verdict().await;
    assert!(llmock.findings().await.contains(&"retry_after_ignored".to_owned()), "{verdict}");
    assert_eq!(verdict["passed"], json!(false), "{verdict}");
}
