//! The clients against a server that does what real ones do: hangs, cuts, redirects, closes under the next request.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use queue_schema::endpoint::Endpoint;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{Clients, ProviderFailure, Symptom};

const LONG: Duration = Duration::from_secs(20);
const GOOD: &str = r#"{"object":"list","model":"m","data":[{"index":0,"embedding":[0.6,0.8]}],"usage":{"prompt_tokens":3}}"#;

/// What the server does with its next request.
#[derive(Clone, Debug)]
enum Act {
    Say(u16, &'static str, String),
    /// These bytes and then the end of the connection.
    Raw(String),
    /// These bytes and then nothing.
    Stall(String),
    Close,
}

fn json(status: u16, body: &str) -> Act {
    Act::Say(status, "content-type: application/json", body.to_owned())
}

struct Server {
    at: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Does `script` request by request, whatever the connection; its last act is repeated.
    async fn start(script: Vec<Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let at = listener.local_addr().expect("a bound socket has an address");
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let (script, all) = (Arc::new(script), heard.clone());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, script.clone(), all.clone()));
            }
        });
        Self { at, heard }
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("no panic while it was held").clone()
    }

    fn endpoint(&self) -> Endpoint {
        endpoint(&format!("http://{}/v1/", self.at))
    }
}

async fn serve(mut socket: TcpStream, script: Arc<Vec<Act>>, heard: Arc<Mutex<Vec<String>>>) {
    let mut buffer: Vec<u8> = Vec::new();
    loop {
        let request = loop {
            if let Some(n) = complete(&buffer) {
                break String::from_utf8_lossy(&buffer.drain(..n).collect::<Vec<u8>>()).into_owned();
            }
            if socket.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let turn = {
            let mut heard = heard.lock().expect("no panic while it was held");
            heard.push(request);
            heard.len() - 1
        };
        match script[turn.min(script.len() - 1)].clone() {
            Act::Say(status, header, body) => {
                let said = format!("HTTP/1.1 {status} X\r\n{header}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                let _ = socket.write_all(said.as_bytes()).await;
            }
            Act::Raw(said) => {
                let _ = socket.write_all(said.as_bytes()).await;
                return;
            }
            Act::Stall(said) => {
                let _ = socket.write_all(said.as_bytes()).await;
                let _ = socket.read_buf(&mut buffer).await;
                return;
            }
            Act::Close => return,
        }
    }
}

/// Length of the first whole request in the buffer.
fn complete(buffer: &[u8]) -> Option<usize> {
    let head = buffer.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let lines = String::from_utf8_lossy(&buffer[..head]).to_lowercase();
    let length = lines
        .lines()
        .find_map(|l| l.strip_prefix("content-length:")?.trim().parse::<usize>().ok())
        .unwrap_or(0);
    (buffer.len() >= head + length).then_some(head + length)
}

fn endpoint(url: &str) -> Endpoint {
    Endpoint {
        id: 1,
        name: "e".to_owned(),
        capability: "embed".to_owned(),
        protocol: "openai".to_owned(),
        url: Some(url.to_owned()),
        model: "m".to_owned(),
        dims: Some(2),
        key_env: None,
        trust: 0,
        batch: 8,
        timeout_ms: 1_000,
        rank: 0,
        enabled: true,
        epoch: 1,
        outage_streak: 0,
        last_ok_at: None,
        owner_tenant_id: None,
        tripped_at: None,
        refusal_count: 0,
        reason: None,
        changed_by: None,
        changed_at: chrono::DateTime::UNIX_EPOCH,
    }
}

fn clients() -> Clients {
    // Mounted secrets end in a newline more often than not.
    Clients::with_env(|name| (name == "TEST_KEY").then(|| "sk-test-4711\n".to_owned())).expect("clients without a proxy")
}

async fn embed(endpoint: &Endpoint, texts: &[&str], deadline: Duration) -> Result<super::Embedded, ProviderFailure> {
    let texts: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
    clients().embed(endpoint, &texts, deadline).await
}

async fn failure(endpoint: &Endpoint, deadline: Duration) -> ProviderFailure {
    embed(endpoint, &["a text"], deadline)
        .await
        .expect_err("this server gives no vector")
}

#[tokio::test]
async fn a_batch_goes_out_and_comes_back() {
    let server = Server::start(vec![json(200, GOOD)]).await;
    let endpoint = Endpoint {
        key_env: Some("TEST_KEY".to_owned()),
        ..server.endpoint()
    };
    let got = embed(&endpoint, &["a text"], LONG).await.expect("the server answers");
    assert_eq!(
        (got.vectors, got.model.as_str(), got.tokens, got.model_mismatch),
        (vec![vec![0.6, 0.8]], "m", Some(3), false)
    );
    let heard = server.heard();
    assert!(heard[0].starts_with("POST /v1/embeddings HTTP/1.1\r\n"), "{}", heard[0]);
    assert!(heard[0].contains("authorization: Bearer sk-test-4711\r\n"), "{}", heard[0]);
    assert!(
        heard[0].ends_with(r#"{"model":"m","input":["a text"],"encoding_format":"float"}"#),
        "{}",
        heard[0]
    );
}

#[tokio::test]
async fn case85_another_model_is_reported_and_is_what_is_stored() {
    let server = Server::start(vec![json(200, &GOOD.replace(r#""m""#, r#""other""#))]).await;
    let got = embed(&server.endpoint(), &["a text"], LONG).await.expect("the server answers");
    assert_eq!(
        (got.model.as_str(), got.served_model.as_deref(), got.model_mismatch),
        ("other", Some("other"), true)
    );
}

#[tokio::test]
async fn nothing_is_sent_without_a_key_or_for_a_blank_text_or_in_the_clear() {
    let server = Server::start(vec![json(200, GOOD)]).await;
    let f = failure(
        &Endpoint {
            key_env: Some("NOT_SET".to_owned()),
            ..server.endpoint()
        },
        LONG,
    )
    .await;
    assert_eq!((f.symptom, f.cause), (Symptom::NoKey, "no_key"));
    assert!(f.error.contains("NOT_SET"), "{}", f.error);
    let f = embed(&server.endpoint(), &["a", " \n"], LONG).await.expect_err("a blank text");
    assert_eq!((f.symptom, f.item), (Symptom::BadItem, Some(1)));
    let f = failure(
        &Endpoint {
            key_env: Some("TEST_KEY".to_owned()),
            ..endpoint("http://192.0.2.1/v1")
        },
        LONG,
    )
    .await;
    assert_eq!((f.symptom, f.cause), (Symptom::KeyRefused, "key_over_plain_http"));
    for url in ["", "h/v1", "ftp://h/v1", "http://user:secret@h/v1"] {
        let f = failure(&endpoint(url), LONG).await;
        assert_eq!((f.symptom, f.cause), (Symptom::ModelRefused, "url_invalid"), "{url}");
        assert!(!f.error.contains("secret"));
    }
    assert_eq!(server.heard().len(), 0);
}

#[tokio::test]
async fn case76_77_one_deadline_covers_every_phase() {
    let limit = Duration::from_millis(150);
    for said in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"data\""] {
        let server = Server::start(vec![Act::Stall(said.to_owned())]).await;
        let started = Instant::now();
        let f = failure(&server.endpoint(), limit).await;
        assert_eq!((f.symptom, f.cause), (Symptom::Timeout, "deadline"), "{said}");
        assert!(started.elapsed() < Duration::from_secs(3));
        assert_eq!(server.heard().len(), 1);
    }
    // Accepts and never says hello.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
    let url = format!("https://{}/v1", silent.local_addr().expect("a bound socket has an address"));
    assert_eq!(failure(&endpoint(&url), limit).await.symptom, Symptom::Timeout);
}

#[tokio::test]
async fn case79_a_cut_body_is_an_outage_and_rubbish_is_not() {
    for said in [
        "HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n{\"data\":[",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\n{\"data\":[\r\n",
    ] {
        let server = Server::start(vec![Act::Raw(said.to_owned())]).await;
        let f = failure(&server.endpoint(), LONG).await;
        assert_eq!(
            (f.symptom, f.cause, f.status),
            (Symptom::Unreachable, "cut_body", Some(200)),
            "{said}"
        );
    }
    let server = Server::start(vec![json(200, "{\"data\":[")]).await;
    assert_eq!(failure(&server.endpoint(), LONG).await.symptom, Symptom::InvalidResponse);
    let server = Server::start(vec![Act::Say(200, "content-encoding: gzip", "half".to_owned())]).await;
    assert_eq!(failure(&server.endpoint(), LONG).await.cause, "encoded_body");
    let server = Server::start(vec![Act::Stall("HTTP/1.1 200 OK\r\ncontent-length: 99000000\r\n\r\n".to_owned())]).await;
    assert_eq!(failure(&server.endpoint(), LONG).await.cause, "answer_too_large");
}

#[tokio::test]
async fn no_answer_at_all_is_unreachable() {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
    let at = closed.local_addr().expect("a bound socket has an address");
    drop(closed);
    let f = failure(&endpoint(&format!("http://{at}/v1?key=hidden")), LONG).await;
    assert_eq!((f.symptom, f.cause), (Symptom::Unreachable, "connection_refused"));
    assert!(!f.error.contains("hidden"), "{}", f.error);
    // A plain server under an https URL never completes a request, so it needs to answer unasked.
    let plain = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
    let url = format!("https://{}/v1", plain.local_addr().expect("a bound socket has an address"));
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = plain.accept().await {
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let f = failure(&endpoint(&url), LONG).await;
    assert_eq!((f.symptom, f.cause), (Symptom::Unreachable, "tls"), "{}", f.error);
}

#[tokio::test]
async fn case80_a_stale_connection_is_replayed_once_and_a_fresh_one_never() {
    let server = Server::start(vec![json(200, GOOD), Act::Close, json(200, GOOD)]).await;
    let (clients, texts, endpoint) = (clients(), ["a text".to_owned()], server.endpoint());
    clients
        .embed(&endpoint, &texts, LONG)
        .await
        .expect("the first opens the connection");
    clients
        .embed(&endpoint, &texts, LONG)
        .await
        .expect("the second finds it dead and goes again");
    assert_eq!(server.heard().len(), 3);

    let server = Server::start(vec![Act::Close, json(200, GOOD)]).await;
    let f = failure(&server.endpoint(), LONG).await;
    assert_eq!((f.symptom, server.heard().len()), (Symptom::Unreachable, 1));

    let server = Server::start(vec![json(200, GOOD), Act::Close]).await;
    let endpoint = server.endpoint();
    clients
        .embed(&endpoint, &texts, LONG)
        .await
        .expect("the first opens the connection");
    let f = clients.embed(&endpoint, &texts, LONG).await.expect_err("dead, and dead again");
    assert_eq!((f.symptom, server.heard().len()), (Symptom::Unreachable, 3));
}

#[tokio::test]
async fn case82_a_redirect_is_never_followed() {
    let elsewhere = Server::start(vec![json(200, GOOD)]).await;
    for status in [301, 302, 307, 308] {
        let to = format!("http://{}/other?token=hidden", elsewhere.at);
        let server = Server::start(vec![Act::Raw(format!(
            "HTTP/1.1 {status} X\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n"
        ))])
        .await;
        let f = failure(
            &Endpoint {
                key_env: Some("TEST_KEY".to_owned()),
                ..server.endpoint()
            },
            LONG,
        )
        .await;
        assert_eq!((f.symptom, f.cause, f.status), (Symptom::Redirected, "redirected", Some(status)));
        assert!(
            f.error.contains(&format!("redirected to http://{}/other", elsewhere.at)) && !f.error.contains("hidden"),
            "{}",
            f.error
        );
    }
    assert_eq!(elsewhere.heard().len(), 0);
}

#[tokio::test]
async fn case67_a_model_that_comes_back_and_one_that_does_not() {
    let away = json(400, r#"{"error":"Model was unloaded while the request was still in queue"}"#);
    let server = Server::start(vec![away.clone(), away.clone(), json(200, GOOD), away.clone()]).await;
    let (clients, texts, endpoint) = (clients(), ["a text".to_owned()], server.endpoint());
    clients.embed(&endpoint, &texts, LONG).await.expect("the third try finds the model");
    assert_eq!(server.heard().len(), 3);
    let f = clients.embed(&endpoint, &texts, LONG).await.expect_err("it never comes back");
    assert_eq!(
        (f.symptom, f.cause, server.heard().len()),
        (Symptom::ModelRefused, "evicted_mid_batch", 7)
    );

    let server = Server::start(vec![away.clone()]).await;
    let f = failure(&server.endpoint(), LONG).await;
    assert_eq!(
        (f.symptom, f.cause, server.heard().len()),
        (Symptom::ModelRefused, "never_resident", 4)
    );
    // Too little time to find out proves nothing.
    let f = failure(&server.endpoint(), Duration::from_millis(400)).await;
    assert_eq!((f.symptom, f.cause), (Symptom::Timeout, "model_not_resident_yet"));
}

#[tokio::test]
async fn case73_a_404_names_model_and_url() {
    let server = Server::start(vec![Act::Say(404, "content-type: text/plain", "404 page not found".to_owned())]).await;
    let f = failure(&server.endpoint(), LONG).await;
    assert_eq!((f.symptom, f.cause, server.heard().len()), (Symptom::ModelRefused, "not_found", 4));
    assert!(
        f.error.contains("model \"m\"") && f.error.contains(&format!("http://{}/v1/embeddings", server.at)),
        "{}",
        f.error
    );
}

#[tokio::test]
async fn c40_neither_the_key_nor_a_text_comes_back_in_an_error() {
    let text = "Mrs Miller has been ill since Tuesday, too long";
    let body = format!(r#"{{"error":{{"message":"cannot work with: {text}","code":"bad_thing"}}}}"#);
    let server = Server::start(vec![json(400, &body)]).await;
    let f = embed(&server.endpoint(), &["fine", text], LONG).await.expect_err("it refuses");
    // "too long" are the text's words, not the provider's.
    assert_eq!((f.symptom, f.cause), (Symptom::BadItem, "input_refused"));
    assert!(!f.error.contains("Miller") && f.error.contains("bad_thing"), "{}", f.error);

    let server = Server::start(vec![json(
        401,
        r#"{"error":{"message":"Incorrect key sk-test-4711 provided","code":"sk-test-4711"}}"#,
    )])
    .await;
    let f = failure(
        &Endpoint {
            key_env: Some("TEST_KEY".to_owned()),
            ..server.endpoint()
        },
        LONG,
    )
    .await;
    assert_eq!(f.symptom, Symptom::KeyRefused);
    assert!(!f.error.contains("4711") && f.error.contains("TEST_KEY"), "{}", f.error);
}

#[tokio::test]
async fn a_status_stands_whatever_its_body_does() {
    let server = Server::start(vec![Act::Raw(
        "HTTP/1.1 429 X\r\nretry-after: 2\r\ncontent-length: 500\r\n\r\nslow".to_owned(),
    )])
    .await;
    let f = failure(&server.endpoint(), LONG).await;
    assert_eq!(
        (f.symptom, f.retry_after, f.status),
        (Symptom::RateLimited, Some(Duration::from_secs(2)), Some(429))
    );
    let server = Server::start(vec![Act::Stall("HTTP/1.1 503 X\r\ncontent-length: 500\r\n\r\n".to_owned())]).await;
    assert_eq!(failure(&server.endpoint(), LONG).await.cause, "http_503");
    let server = Server::start(vec![json(422, r#"{"detail":[{"loc":["body","input",1],"msg":"bad"}]}"#)]).await;
    let f = embed(&server.endpoint(), &["one", "two"], LONG).await.expect_err("it refuses");
    assert_eq!((f.symptom, f.item), (Symptom::BadItem, Some(1)));
    let server = Server::start(vec![json(413, "\u{0}\u{7}bad\nline")]).await;
    let f = failure(&server.endpoint(), LONG).await;
    assert!(f.symptom == Symptom::Oversize && !f.error.contains(char::is_control), "{}", f.error);
}

#[tokio::test]
async fn a_page_goes_out_as_a_file_and_a_probe_is_the_control_image() {
    let server = Server::start(vec![
        json(200, r#"{"0":{"rec_txt":"READY","score":"0.9"}}"#),
        json(200, "{}"),
        json(500, r#"{"error":"x"}"#),
    ])
    .await;
    let endpoint = Endpoint {
        protocol: "ocr_http".to_owned(),
        url: Some(format!("http://{}/ocr", server.at)),
        ..server.endpoint()
    };
    let clients = clients();
    let read = clients.ocr(&endpoint, super::CONTROL_PNG, LONG).await.expect("it reads");
    assert_eq!((read.text.as_str(), read.confidence), ("READY", Some(0.9)));
    clients
        .probe(&endpoint, LONG)
        .await
        .expect("an engine that sees nothing still answers");
    assert_eq!(clients.probe(&endpoint, LONG).await.expect_err("500").symptom, Symptom::ServerError);
    let heard = server.heard();
    assert!(heard[1].starts_with("POST /ocr "), "{}", heard[1]);
    assert!(
        heard[1].contains(r#"name="image_file"; filename="page.png""#) && heard[1].to_lowercase().contains("content-type: image/png"),
        "{}",
        heard[1]
    );
}

#[tokio::test]
async fn a_probe_is_the_control_text() {
    let server = Server::start(vec![json(200, GOOD)]).await;
    clients().probe(&server.endpoint(), LONG).await.expect("the server answers");
    assert!(server.heard()[0].contains(r#""input":["ready"]"#));
    let f = clients()
        .probe(
            &Endpoint {
                protocol: "minilm".to_owned(),
                ..server.endpoint()
            },
            LONG,
        )
        .await
        .expect_err("not ours");
    assert_eq!(f.cause, "protocol_not_http");
}

#[test]
fn a_bad_proxy_is_said_without_its_value() {
    let e = Clients::with_env(|name| (name == "STEADFAST_PROXY").then(|| "http://user:secret@[".to_owned())).expect_err("not a URL");
    assert!(e.contains("STEADFAST_PROXY") && !e.contains("secret"), "{e}");
}
