//! What goes over the wire, against a listener that says what it was told to say and keeps what it heard.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use steadfast_client::{
    Client, Documents, Error, ErrorCode, JobStatus, Jobs, Paging, Remember, Replay, Retries, Search, TransportKind, Upload,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What the listener does with one request.
#[derive(Clone, Debug)]
enum Say {
    /// Status, extra headers, body.
    Answer(u16, &'static str, String),
    /// Hears all of it and hangs up.
    HangUp,
    /// Hears all of it and says nothing.
    Nothing,
}

fn say(status: u16, body: &str) -> Say {
    Say::Answer(status, "", body.to_owned())
}

fn refuse(status: u16, headers: &'static str, code: &str) -> Say {
    let body =
        format!(r#"{{"error":{{"code":"{code}","message":"no: {code}","fields":{{"text":"is odd"}},"requestId":"r-1","hint":"new"}}}}"#);
    Say::Answer(status, headers, body)
}

const ACCEPTED: &str = r#"{"status":"queued","jobId":"7","documentId":"8","note":"Stored.","extracting":true,"eta":3}"#;

/// One request as it was heard.
#[derive(Clone, Debug)]
struct Heard {
    line: String,
    head: String,
    body: String,
}

impl Heard {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| {
            let (n, v) = l.split_once(':')?;
            n.eq_ignore_ascii_case(name).then(|| v.trim())
        })
    }
}

struct Server {
    base: String,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Server {
    async fn start(script: Vec<Say>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ears = heard.clone();
        tokio::spawn(async move {
            let mut kept = Vec::new();
            for say in script {
                let (mut stream, _) = listener.accept().await.expect("a caller");
                let request = hear(&mut stream).await;
                ears.lock().expect("nobody panics with it").push(request);
                match say {
                    Say::Answer(status, headers, body) => {
                        let text = format!(
                            "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}",
                            body.len()
                        );
                        let _ = stream.write_all(text.as_bytes()).await;
                    }
                    Say::HangUp => drop(stream),
                    Say::Nothing => kept.push(stream),
                }
            }
            drop(listener);
            if !kept.is_empty() {
                // Held open, or the silence would end with this task.
                std::future::pending::<()>().await;
            }
        });
        Self { base, heard }
    }

    fn client(&self) -> Client {
        Client::new(&self.base, "sf_hunter2").expect("a client")
    }

    fn heard(&self) -> Vec<Heard> {
        self.heard.lock().expect("nobody panics with it").clone()
    }
}

async fn hear(stream: &mut TcpStream) -> Heard {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let n = stream.read(&mut piece).await.expect("bytes");
        assert!(n > 0, "hung up in the middle of a request");
        bytes.extend_from_slice(&piece[..n]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let (line, head) = head.split_once("\r\n").unwrap_or((head, ""));
            let heard = Heard {
                line: line.to_owned(),
                head: head.to_owned(),
                body: body.to_owned(),
            };
            let length: usize = heard.header("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
            if body.len() >= length {
                return heard;
            }
        }
    }
}

fn note() -> Remember {
    Remember::new("a note", "default").title("A title")
}

#[tokio::test]
async fn p36_p31_a_post_is_tried_three_times_under_one_key() {
    let server = Server::start(vec![refuse(503, "", "UNAVAILABLE"), Say::HangUp, say(202, ACCEPTED)]).await;
    let accepted = server.client().remember(&note()).await.expect("the third try");
    assert_eq!((accepted.job_id.as_str(), accepted.document_id.as_str()), ("7", "8"));
    let heard = server.heard();
    let keys: Vec<&str> = heard.iter().filter_map(|h| h.header("idempotency-key")).collect();
    assert_eq!(keys.len(), 3);
    assert!(keys[0].len() == 32 && keys.iter().all(|k| *k == keys[0]), "{keys:?}");
    for h in &heard {
        assert_eq!(h.line, "POST /api/v1/remember HTTP/1.1");
        assert_eq!(h.header("authorization"), Some("Bearer sf_hunter2"));
        assert_eq!(h.body, r#"{"text":"a note","spaceIds":["default"],"title":"A title"}"#);
    }

    // Another call is another request, unless its caller says that it is the same.
    let server = Server::start(vec![say(202, ACCEPTED), say(202, ACCEPTED)]).await;
    server.client().remember(&note()).await.expect("accepted");
    server.client().remember(&note().idempotency_key("mine-1")).await.expect("accepted");
    let heard = server.heard();
    assert_ne!(heard[0].header("idempotency-key"), Some(keys[0]));
    assert_eq!(heard[1].header("idempotency-key"), Some("mine-1"));
    let e = server
        .client()
        .remember(&note().idempotency_key("two words"))
        .await
        .expect_err("refused");
    assert!(
        matches!(
            e,
            Error::Input {
                field: "idempotency_key",
                ..
            }
        ),
        "{e:?}"
    );
}

#[tokio::test]
async fn p36_it_gives_up_after_three_tries_and_says_what_the_last_one_said() {
    let server = Server::start(vec![
        refuse(500, "", "INTERNAL_ERROR"),
        refuse(500, "", "INTERNAL_ERROR"),
        refuse(503, "retry-after: 5\r\n", "UNAVAILABLE"),
    ])
    .await;
    let e = server.client().job("7").await.expect_err("it never works");
    assert_eq!(e.code(), Some(&ErrorCode::Unavailable));
    let Error::Api(api) = &e else { panic!("{e:?}") };
    assert_eq!(
        (api.status, api.retry_after),
        (503, Some(Duration::from_secs(5))),
        "told, not waited for"
    );
    assert_eq!((api.fields["text"].as_str(), api.request_id.as_str()), ("is odd", "r-1"));
    assert_eq!(e.to_string(), "no: UNAVAILABLE (503 UNAVAILABLE, request r-1)");
    assert_eq!(server.heard().len(), 3);
}

#[tokio::test]
async fn p36_retry_after_is_waited_out() {
    let server = Server::start(vec![
        refuse(429, "retry-after: 1\r\n", "RATE_LIMITED"),
        say(200, r#"{"status":"ok"}"#),
    ])
    .await;
    let begin = Instant::now();
    server.client().live().await.expect("the second try");
    assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(server.heard().len(), 2);
}

#[tokio::test]
async fn p36_what_will_not_pass_is_not_tried_again() {
    let refusals = [
        (400, "VALIDATION_ERROR", ErrorCode::Validation),
        (401, "UNAUTHORIZED", ErrorCode::Unauthorized),
        (404, "NOT_FOUND", ErrorCode::NotFound),
        (408, "BODY_TIMEOUT", ErrorCode::BodyTimeout),
        (409, "CONFLICT", ErrorCode::Conflict),
        (413, "PAYLOAD_TOO_LARGE", ErrorCode::PayloadTooLarge),
        (422, "IDEMPOTENCY_MISMATCH", ErrorCode::IdempotencyMismatch),
        (451, "SOMETHING_NEW", ErrorCode::Other("SOMETHING_NEW".into())),
    ];
    for (status, word, code) in refusals {
        let server = Server::start(vec![refuse(status, "", word), say(202, ACCEPTED)]).await;
        let e = server.client().remember(&note()).await.expect_err("refused");
        assert_eq!(e.code(), Some(&code), "{e:?}");
        assert!(!e.is_transient());
        assert_eq!(server.heard().len(), 1, "{word}");
    }
    let once = |server: &Server| {
        Client::builder(&server.base, "sf_hunter2")
            .retries(Retries::none())
            .build()
            .expect("a client")
    };
    let server = Server::start(vec![refuse(503, "", "UNAVAILABLE"), say(202, ACCEPTED)]).await;
    assert!(once(&server).remember(&note()).await.expect_err("one try").is_transient());
    assert_eq!(server.heard().len(), 1);
}

#[tokio::test]
async fn answers_that_are_none_of_this_api_say_so_and_a_redirect_is_not_followed() {
    let elsewhere = Server::start(vec![say(200, r#"{"status":"ok"}"#)]).await;
    let location: &'static str = format!("location: {}/\r\n", elsewhere.base).leak();
    let server = Server::start(vec![
        say(200, "<html>welcome</html>"),
        Say::Answer(307, location, String::new()),
        say(502, "<html>bad gateway</html>"),
        say(502, "<html>bad gateway</html>"),
        say(502, "<html>bad gateway</html>"),
        say(200, r#"{"results":[],"query":"q","pagination":{"limit":1},"diagnostics":{}}"#),
    ])
    .await;
    let client = server.client();
    let mut said = Vec::new();
    for status in [200, 307, 502] {
        let e = client.spaces().await.expect_err("no list");
        assert!(matches!(e, Error::Unreadable { status: s, .. } if s == status), "{e:?}");
        said.push(e.to_string());
    }
    assert!(said[1].contains("another address") && said[2].contains("proxy"), "{said:?}");
    // An answer that does not say how whole it is.
    let e = client.search("q").await.expect_err("not to be taken for a whole one");
    assert!(e.to_string().contains("degraded"), "{e}");
    assert!(elsewhere.heard().is_empty(), "the token went after a redirect");
}

#[tokio::test]
async fn transport_failures_are_told_apart_and_hold_neither_token_nor_question() {
    // A port that nobody listens on any more.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .expect("a free port");
    let gone = format!("http://{port}");
    let quick = Retries {
        base: Duration::from_millis(1),
        ..Retries::default()
    };
    let client = |base: &str| {
        Client::builder(base, "sf_hunter2")
            .retries(quick)
            .timeout(Duration::from_millis(300))
            .build()
            .expect("a client")
    };
    let silent = Server::start(vec![Say::Nothing, Say::Nothing, Say::Nothing]).await;
    let rude = Server::start(vec![Say::HangUp, Say::HangUp, Say::HangUp]).await;
    for (base, expected) in [
        (&gone, TransportKind::Connect),
        (&silent.base, TransportKind::Timeout),
        (&rude.base, TransportKind::BrokeOff),
    ] {
        let e = client(base).search("a secret question").await.expect_err("no answer");
        assert!(matches!(&e, Error::Transport { kind, tries: 3, .. } if *kind == expected), "{e:?}");
        let mut said = format!("{e} {e:?}");
        let mut source = std::error::Error::source(&e);
        while let Some(s) = source {
            said = format!("{said} {s} {s:?}");
            source = s.source();
        }
        assert!(!said.contains("hunter2") && !said.contains("secret"), "{said}");
        assert!(said.contains(base.as_str()), "{said}");
    }
}

#[tokio::test]
async fn a_file_is_sent_again_from_its_beginning() {
    let dir = std::env::temp_dir().join(format!("steadfast-client-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let path = dir.join("a note ü.txt");
    std::fs::write(&path, "some text").expect("a file");
    let server = Server::start(vec![refuse(503, "", "UNAVAILABLE"), say(202, ACCEPTED), say(202, ACCEPTED)]).await;
    let client = server.client();
    let upload = Upload::file(&path, "default").media_type("text/plain");
    client.upload(&upload).await.expect("the second try");
    client
        .upload(&Upload::bytes(vec![b'x'; 3], "x.bin", "1").title("X"))
        .await
        .expect("accepted");
    std::fs::remove_dir_all(&dir).expect("ours");
    let heard = server.heard();
    for h in &heard[..2] {
        assert_eq!(
            h.line,
            "POST /api/v1/uploads/direct?filename=a+note+%C3%BC.txt&spaceId=default HTTP/1.1"
        );
        assert_eq!((h.body.as_str(), h.header("content-type")), ("some text", Some("text/plain")));
        assert_eq!(h.header("content-length"), Some("9"));
    }
    assert_eq!(heard[0].header("idempotency-key"), heard[1].header("idempotency-key"));
    assert_eq!(
        heard[2].line,
        "POST /api/v1/uploads/direct?filename=x.bin&spaceId=1&title=X HTTP/1.1"
    );
    assert_eq!(
        (heard[2].body.as_str(), heard[2].header("content-type")),
        ("xxx", Some("application/octet-stream"))
    );

    let e = client.upload(&upload).await.expect_err("it is gone");
    assert!(
        matches!(&e, Error::File { path, .. } if path.ends_with(".txt")) && !e.is_transient(),
        "{e:?}"
    );
}

#[tokio::test]
async fn a_delete_whose_answer_was_lost_is_done() {
    let server = Server::start(vec![
        Say::HangUp,
        refuse(404, "", "NOT_FOUND"),
        refuse(404, "", "NOT_FOUND"),
        Say::HangUp,
        refuse(404, "", "NOT_FOUND"),
    ])
    .await;
    let client = server.client();
    client.delete_document("8").await.expect("it is gone, which was the wish");
    let e = client.delete_document("8").await.expect_err("it was not there to begin with");
    assert_eq!(e.code(), Some(&ErrorCode::NotFound));
    // Nothing else is done by not being there.
    let e = client.document("8").await.expect_err("it is not there");
    assert_eq!(e.code(), Some(&ErrorCode::NotFound));
}

#[tokio::test]
async fn every_question_is_spelt_as_the_api_reads_it() {
    let list = r#"{"data":[],"pagination":{"limit":2,"nextCursor":"9"}}"#;
    let job = |status: &str, more: &str| {
        let json = format!(r#"{{"id":"7","type":"extract","status":"{status}","attempts":1,"queuedAt":"2026-01-01T00:00:00Z"{more}}}"#);
        say(200, &json)
    };
    let document = |status: &str, pending: u32, more: &str| {
        let json = format!(
            r#"{{"id":"8","title":"t","status":"{status}","contentType":"text/plain","bytes":1,"createdAt":"2026-01-01T00:00:00Z","spaceId":"1",
                "pendingCount":{pending}{more}}}"#
        );
        say(200, &json)
    };
    let found = r#"{"results":[],"query":"q","diagnostics":{"degraded":false}}"#;
    let server = Server::start(vec![
        say(200, found),
        say(200, found),
        say(200, list),
        say(200, list),
        say(200, list),
        say(202, r#"{"status":"queued","jobId":"7","jobIds":["8","9"]}"#),
        job("queued", ""),
        job("resting", r#","progress":0.5"#),
        job("completed", ""),
        job(
            "queued",
            r#","hold":{"capability":"ocr","since":"2026-01-01T00:00:00Z","notice":"Paused."}"#,
        ),
        document("processing", 0, ""),
        document("processed", 2, ""),
        document("processed", 0, ""),
        document("processed", 2, r#","notice":"Paused.""#),
        say(200, "# TYPE x gauge\nx 1\n"),
    ])
    .await;
    let client = server.client();
    let search = Search::new("a b")
        .limit(3)
        .space("one")
        .space("two")
        .min_score(0.5)
        .cursor("c")
        .require_semantic();
    assert!(client.search(search).await.expect("an answer").tell(|_| ()).is_empty());
    assert!(client.transcript_search("a b").await.expect("an answer").tell(|_| ()).is_empty());
    let page = Paging::default().limit(2).cursor("5");
    let which = Jobs::default()
        .status(JobStatus::Dead)
        .status(JobStatus::Failed)
        .kind("ocr")
        .page(page.clone());
    assert_eq!(client.jobs(&which).await.expect("a list").next_cursor(), Some("9"));
    client.dead_jobs(&page).await.expect("a list");
    client.documents(&Documents::default()).await.expect("a list");
    let replayed = client.replay("7", &Replay::because("try again").force()).await.expect("queued");
    assert_eq!(replayed.job_ids, ["8", "9"]);
    let mut seen = Vec::new();
    let over = client.wait_for_job("7", |j| seen.push(j.status.to_string())).await.expect("over");
    assert_eq!(
        (over.status, seen),
        (
            JobStatus::Completed,
            vec!["queued".to_owned(), "resting".into(), "completed".into()]
        )
    );
    let held = client.wait_for_job("7", |_| ()).await.expect("held");
    assert_eq!(held.hold.map(|h| h.notice), Some("Paused.".to_owned()));
    let mut looks = 0;
    let indexed = client.wait_for_document("8", |_| looks += 1).await.expect("indexed");
    assert_eq!(
        (looks, indexed.notice),
        (3, None),
        "not before it is read, nor while a piece is left"
    );
    let held = client.wait_for_document("8", |_| ()).await.expect("held");
    assert_eq!(held.notice.as_deref(), Some("Paused."));
    assert!(client.metrics().await.expect("numbers").starts_with("# TYPE"));

    let heard = server.heard();
    let lines: Vec<&str> = heard.iter().map(|h| h.line.trim_end_matches(" HTTP/1.1")).collect();
    assert_eq!(
        lines,
        [
            "GET /api/v1/search?query=a+b&limit=3&cursor=c&spaceIds=one&spaceIds=two&minScore=0.5&require=semantic",
            "GET /api/v1/transcript/search?query=a+b",
            "GET /api/v1/jobs?status=dead&status=failed&type=ocr&limit=2&cursor=5",
            "GET /api/v1/jobs/dead?limit=2&cursor=5",
            "GET /api/v1/documents",
            "POST /api/v1/jobs/dead/7/replay",
            "GET /api/v1/jobs/7",
            "GET /api/v1/jobs/7",
            "GET /api/v1/jobs/7",
            "GET /api/v1/jobs/7",
            "GET /api/v1/documents/8",
            "GET /api/v1/documents/8",
            "GET /api/v1/documents/8",
            "GET /api/v1/documents/8",
            "GET /health/metrics",
        ]
    );
    assert_eq!(heard[5].body, r#"{"reason":"try again","force":true}"#);
}
