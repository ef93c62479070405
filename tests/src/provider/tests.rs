//! Every action really does on the wire what it says: checked with a bare socket where a client would hide it.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::harness::{Client, wait_until};

fn client(p: &Provider) -> Client {
    Client::new(&p.url(), "", 0)
}

async fn embed(p: &Provider, texts: &[&str]) -> crate::harness::Answer {
    client(p).post("/v1/embeddings", &json!({"model": "m", "input": texts})).await
}

/// Sends one embeddings call on a socket of its own.
async fn raw(p: &Provider, text: &str) -> TcpStream {
    let mut s = TcpStream::connect(p.addr()).await.expect("the provider listens");
    let body = json!({"model": "m", "input": text}).to_string();
    let head = format!(
        "POST /v1/embeddings HTTP/1.1\r\nhost: p\r\nauthorization: Bearer sk-old\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    s.write_all(format!("{head}{body}").as_bytes()).await.expect("sent");
    s
}

/// Reads to the end of the stream: what came, and how it ended.
async fn drain(s: &mut TcpStream) -> (String, io::Result<()>) {
    let mut got = Vec::new();
    let end = s.read_to_end(&mut got).await.map(|_| ());
    (String::from_utf8_lossy(&got).into_owned(), end)
}

fn floats(v: &Value) -> Vec<f32> {
    serde_json::from_value(v["embedding"].clone()).expect("a vector")
}

#[tokio::test]
async fn in_order_it_answers_like_a_provider_and_keeps_a_record() {
    let p = Provider::start();
    p.set(|s| s.dims = 16);
    let got = embed(&p, &["green tea", "black coffee"]).await;
    assert_eq!(got.status, 200, "{got}");
    assert_eq!(floats(&got.json["data"][1]), vector::of("black coffee", 16));
    assert_eq!(got.json["data"][1]["index"], 1);
    assert_eq!(got.json["usage"]["prompt_tokens"], tokens("green tea") + tokens("black coffee"));

    let chat = client(&p)
        .post(
            "/v1/chat/completions",
            &json!({"model": "c", "messages": [{"role": "user", "content": "why?"}]}),
        )
        .await;
    assert_eq!(chat.json["choices"][0]["message"]["content"], "scripted answer to: why?");

    p.page("MARK", "what the page says");
    let c = client(&p);
    for (image, says) in [
        ("xxMARKxx", "what the page says"),
        ("other", "scripted page 2"),
        ("other", "scripted page 2"),
        ("third", "scripted page 3"),
    ] {
        let ocr = c.send(c.request(reqwest::Method::POST, "/ocr").body(image)).await;
        assert_eq!(ocr.json, json!({"text": says, "confidence": 0.98}));
    }
    assert_eq!(c.get("/v1/models").await.json["data"][0]["id"], "scripted");
    assert_eq!(embed(&p, &[]).await.status, 400);
    assert_eq!(c.get("/elsewhere").await.status, 404);

    let calls = p.wait_calls(7).await;
    assert_eq!(
        (calls[0].seq, calls[0].in_flight, calls[0].model.as_str(), calls[0].key.as_str()),
        (1, 1, "m", "none")
    );
    assert_eq!(
        calls[2].texts,
        vec![Text {
            sha256: sha256(b"xxMARKxx"),
            text: "what the page says".into()
        }]
    );
    assert_eq!(
        (
            p.completed("green tea"),
            p.completed("coffee"),
            p.calls_for(&sha256(b"other")).len()
        ),
        (1, 1, 2)
    );
    assert_eq!((p.max_concurrency(), p.in_flight()), (1, 0));
}

#[tokio::test]
async fn rules_are_asked_in_order_and_are_spent() {
    let p = Provider::start();
    p.rule(Rule::text("POISON").times(2).then(Fixture::InternalError));
    p.rule(Rule::text("POISON").then(Reply::error(400, "t", "c", "m")));
    p.rule(Rule::nth(2).on(Route::Embeddings).then(Fixture::TooManyRequestsRetryAfter));
    let mut statuses = Vec::new();
    for text in ["a", "POISON", "b", "a POISON b", "POISON", "c"] {
        statuses.push(embed(&p, &["good", text]).await.status);
    }
    assert_eq!(statuses, [200, 500, 429, 500, 400, 200]);
    assert_eq!(
        p.calls().iter().map(|c| c.rule).collect::<Vec<_>>(),
        [None, Some(0), Some(2), Some(0), Some(1), None]
    );
    let got = p.calls_for("POISON");
    assert!(got.iter().all(|c| c.outcome == Outcome::Answered && !c.completed()));
}

#[tokio::test]
async fn fixtures_reach_the_wire_byte_by_byte() {
    let p = Provider::start();
    for (fixture, status, bytes) in [
        (Fixture::ExceedContextSize, 400, &b"exceed_context_size_error"[..]),
        (Fixture::InvalidKey, 401, b"invalid_api_key"),
        (Fixture::PaymentRequired, 402, b"balance"),
        (Fixture::ForbiddenJson, 403, b"permission_error"),
        (Fixture::ForbiddenHtml, 403, b"<html>"),
        (Fixture::ModelNotFound, 404, b"model_not_found"),
        (Fixture::NotFoundPlain, 404, b"404 page not found\n"),
        (Fixture::PayloadTooLarge, 413, b"413"),
        (Fixture::Unprocessable, 422, b"detail"),
        (Fixture::InsufficientQuota, 429, b"insufficient_quota"),
        (Fixture::BadGateway, 502, b"502"),
        (Fixture::ServiceUnavailableOversize, 503, b"exceed_context_size_error"),
        (Fixture::EscapedNul, 503, br"before\u0000after"),
        (Fixture::RawNul, 503, b"before\0after"),
        (Fixture::LoneSurrogate, 503, br"\ud83d, low \udc00"),
        (Fixture::InvalidUtf8, 503, b"\xff\xfe\xc3("),
        (Fixture::FiveMegabytes, 503, b"overloaded overloaded"),
        (Fixture::EmptyOk, 200, b""),
        (Fixture::HtmlOk, 200, b"<html>"),
        (Fixture::ErrorInOk, 200, b"server_error"),
    ] {
        p.clear_rules();
        p.rule(Rule::all().then(fixture));
        let response = reqwest_post(&p).await.expect("an answer");
        assert_eq!(response.status().as_u16(), status, "{fixture:?}");
        let body = response.bytes().await.expect("a body");
        assert!(http::find(&body, bytes).is_some(), "{fixture:?}: {body:?}");
        assert_eq!(fixture == Fixture::FiveMegabytes, body.len() > 5 << 20);
        assert_eq!(fixture == Fixture::EmptyOk, body.is_empty());
    }
    p.clear_rules();
    p.rule(
        Rule::all()
            .times(1)
            .then(Fixture::TooManyRequests.reply().retry_after("Wed, 21 Oct 2035 07:28:00 GMT")),
    );
    assert_eq!(
        reqwest_post(&p).await.expect("an answer").headers()["retry-after"],
        "Wed, 21 Oct 2035 07:28:00 GMT"
    );
    p.rule(Rule::all().then(Action::Redirect {
        status: 308,
        to: "http://127.0.0.1:9/x".into(),
    }));
    let elsewhere = reqwest_post(&p).await.expect("an answer");
    assert_eq!(
        (elsewhere.status().as_u16(), &elsewhere.headers()["location"]),
        (308, &"http://127.0.0.1:9/x".parse().expect("a value"))
    );
}

async fn reqwest_post(p: &Provider) -> Result<reqwest::Response, reqwest::Error> {
    client(p)
        .request(reqwest::Method::POST, "/v1/embeddings")
        .json(&json!({"model": "m", "input": ["one text"]}))
        .send()
        .await
}

#[tokio::test]
async fn vectors_can_be_wrong_in_every_way() {
    let p = Provider::start();
    p.set(|s| s.dims = 4);
    for (fault, shape) in [
        (VectorFault::OneShort, (vec![Some(0)], vec![4])),
        (VectorFault::OneMore, (vec![Some(0), Some(1), Some(2)], vec![4, 4, 4])),
        (VectorFault::NoData, (vec![], vec![])),
        (VectorFault::DuplicateIndex, (vec![Some(0), Some(0)], vec![4, 4])),
        (VectorFault::AllIndexZero, (vec![Some(0), Some(0)], vec![4, 4])),
        (VectorFault::Reversed, (vec![Some(1), Some(0)], vec![4, 4])),
        (VectorFault::NoIndex, (vec![None, None], vec![4, 4])),
        (VectorFault::IndexOutOfRange, (vec![Some(0), Some(7)], vec![4, 4])),
        (VectorFault::EmptyVector, (vec![Some(0), Some(1)], vec![0, 0])),
        (VectorFault::Dims(9), (vec![Some(0), Some(1)], vec![9, 9])),
        (VectorFault::MixedDims, (vec![Some(0), Some(1)], vec![4, 3])),
    ] {
        p.clear_rules();
        p.rule(Rule::all().then(fault.clone()));
        let got = embed(&p, &["alpha", "beta"]).await;
        let data = got.json["data"].as_array().expect("a list").clone();
        let seen: (Vec<Option<u64>>, Vec<usize>) = (
            data.iter().map(|d| d["index"].as_u64()).collect(),
            data.iter().map(|d| d["embedding"].as_array().map_or(99, Vec::len)).collect(),
        );
        assert_eq!(seen, shape, "{fault:?}: {got}");
        if fault == VectorFault::Reversed {
            assert_eq!(floats(&data[0]), vector::of("beta", 4));
        }
    }
    for (fault, word) in [
        (VectorFault::NaN, ",NaN,"),
        (VectorFault::Null, ",null,"),
        (VectorFault::StringNumber, ",\"0.25\","),
        (VectorFault::Huge, ",1e300,"),
        (VectorFault::Zero, "[0,0,0,0]"),
    ] {
        p.clear_rules();
        p.rule(Rule::all().then(fault.clone()));
        let got = embed(&p, &["alpha"]).await;
        assert!(got.text.contains(word), "{fault:?}: {got}");
    }
    p.clear_rules();
    p.rule(Rule::all().times(1).then(VectorFault::Scaled(3.0)));
    p.rule(Rule::all().times(1).then(Action::Model { name: "another".into() }));
    let long = floats(&embed(&p, &["alpha"]).await.json["data"][0]);
    assert!((long.iter().map(|x| x * x).sum::<f32>().sqrt() - 3.0).abs() < 1e-3, "{long:?}");
    assert_eq!(embed(&p, &["alpha"]).await.json["model"], "another");
}

#[tokio::test]
async fn the_wire_breaks_where_the_script_says() {
    let p = Provider::start();
    p.rule(Rule::text("RESET").then(Action::Reset { at: At::BeforeHeaders }));
    p.rule(Rule::text("CLOSE").then(Action::Close));
    p.rule(Rule::text("CUT-LENGTH").then(Action::Cut {
        how: Framing::ContentLength,
    }));
    p.rule(Rule::text("CUT-CHUNK").then(Action::Cut { how: Framing::Chunked }));
    p.rule(Rule::text("MIDWAY").then(Action::Reset { at: At::MidBody }));

    let (got, end) = drain(&mut raw(&p, "RESET").await).await;
    assert_eq!(
        (got.as_str(), end.expect_err("a reset").kind()),
        ("", io::ErrorKind::ConnectionReset)
    );
    let (got, end) = drain(&mut raw(&p, "CLOSE").await).await;
    assert!(got.is_empty() && end.is_ok(), "{got} {end:?}");

    let (got, end) = drain(&mut raw(&p, "CUT-LENGTH").await).await;
    let (head, body) = got.split_once("\r\n\r\n").expect("a head");
    let promised: usize = head
        .lines()
        .find_map(|l| l.strip_prefix("content-length: "))
        .expect("a length")
        .parse()
        .expect("a number");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && end.is_ok() && body.len() == promised / 2,
        "{head}"
    );

    let (got, end) = drain(&mut raw(&p, "CUT-CHUNK").await).await;
    assert!(
        got.contains("transfer-encoding: chunked") && !got.ends_with("0\r\n\r\n") && got.contains("embedding") && end.is_ok(),
        "{got}"
    );
    let (_, end) = drain(&mut raw(&p, "MIDWAY").await).await;
    assert_eq!(end.expect_err("a reset").kind(), io::ErrorKind::ConnectionReset);

    let calls = p.wait_calls(5).await;
    assert!(calls.iter().all(|c| c.outcome == Outcome::Broken), "{calls:#?}");
    assert_eq!(
        calls.iter().map(|c| c.status).collect::<Vec<_>>(),
        [None, None, Some(200), Some(200), Some(200)]
    );
}

#[tokio::test]
async fn a_hanging_call_hangs_until_its_caller_leaves() {
    let p = Provider::start();
    for (at, ends) in [
        (At::BeforeHeaders, ""),
        (At::InHeaders, "x-scripted: yes\r\n"),
        (At::AfterHeaders, "\r\n\r\n"),
        (At::MidBody, ""),
    ] {
        p.clear_rules();
        p.forget();
        p.rule(Rule::all().then(Action::Hang { at }));
        let s = raw(&p, "HANG").await;
        p.wait_calls(1).await;
        let mut got = Vec::new();
        wait_until("the start of the answer is here", Duration::from_secs(10), async || {
            let _ = s.try_read_buf(&mut got);
            let text = String::from_utf8_lossy(&got);
            let there = match at {
                At::BeforeHeaders => text.is_empty(),
                At::MidBody => text.split_once("\r\n\r\n").is_some_and(|(_, b)| !b.is_empty()),
                _ => text.ends_with(ends),
            };
            if there { Ok(()) } else { Err(text.into_owned()) }
        })
        .await;
        assert_eq!((p.in_flight(), p.calls()[0].outcome), (1, Outcome::Open));
        drop(s);
        let call = p.wait_for("the caller is missed", |c| c.outcome == Outcome::Cancelled).await;
        assert_eq!((call.cancelled_at, p.in_flight()), (Some(0), 0));
    }
}

#[tokio::test]
async fn held_calls_go_when_they_are_let_go() {
    let p = Provider::start();
    p.rule(Rule::text("LATE").then(Action::hold_then("gate", Fixture::InvalidKey)));
    p.rule(Rule::all().then(Action::hold("gate")));
    let story = async {
        let calls = p.wait_calls(3).await;
        assert_eq!((calls[2].in_flight, p.max_concurrency(), p.in_flight()), (3, 3, 3));
        p.release("gate");
    };
    let (a, b, late, ()) = tokio::join!(embed(&p, &["a"]), embed(&p, &["b"]), embed(&p, &["LATE"]), story);
    assert_eq!((a.status, b.status, late.status), (200, 200, 401));
    // Let go were those that were there; who comes later is held again.
    let again = embed(&p, &["c"]);
    let story = async {
        p.wait_calls(4).await;
        p.release_all();
    };
    assert_eq!(tokio::join!(again, story).0.status, 200);
}

#[tokio::test]
async fn slots_serialise_and_a_departed_caller_is_noticed_at_a_step() {
    let p = Provider::start();
    // 12,288 tokens are 50,351 characters: 12 steps of 50 ms.
    p.set(|s| (s.slots, s.tokens_per_second) = (Some(1), Some(20_480.0)));
    let long = "x".repeat(50_351);
    assert_eq!(tokens(&long), 12_288);
    let first = raw(&p, &long).await;
    p.wait_calls(1).await;
    let second = tokio::spawn({
        let c = client(&p);
        async move { c.post("/v1/embeddings", &json!({"model": "m", "input": "short"})).await }
    });
    p.wait_calls(2).await;
    drop(first);
    let left = p
        .wait_for("the departure is noticed", |c| c.seq == 1 && c.outcome == Outcome::Cancelled)
        .await;
    let at = left.cancelled_at.expect("a token");
    assert!((1..12).contains(&(at / 1_024)) && at % 1_024 == 0, "{at}");
    assert_eq!(second.await.expect("no panic").status, 200);
    let second = &p.calls()[1];
    assert!(second.slot_wait_ms > 0 && second.out_ms >= left.out_ms, "{second:?} {left:?}");
    assert_eq!(p.max_concurrency(), 2, "both had arrived; only one was worked on");
}

#[tokio::test]
async fn keys_are_known_by_their_labels_only() {
    let p = Provider::start();
    p.accept_key("new", "sk-new");
    p.rule(Rule::all().key("new").times(1).then(Fixture::PaymentRequired));
    let mut statuses = Vec::new();
    for key in ["sk-new", "sk-new", "sk-old", ""] {
        let c = client(&p).with_token(key);
        statuses.push(c.post("/v1/embeddings", &json!({"model": "m", "input": "t"})).await.status);
    }
    assert_eq!(statuses, [402, 200, 401, 401]);
    let record = client(&p).get("/control/record").await.text + &client(&p).get("/control/settings").await.text;
    assert!(!record.contains("sk-"), "{record}");
    let keys: Vec<String> = p.calls().into_iter().map(|c| c.key).collect();
    assert_eq!((keys[0].as_str(), &keys[2][..9], keys[3].as_str()), ("new", "unlisted-", "none"));
    p.set(|s| (s.models, s.context_tokens) = (vec!["m".into()], Some(10)));
    let c = client(&p).with_token("sk-new");
    assert_eq!(
        c.post("/v1/embeddings", &json!({"model": "x", "input": "t"})).await.json["error"]["code"],
        "model_not_found"
    );
    let long = c.post("/v1/embeddings", &json!({"model": "m", "input": "t".repeat(100)})).await;
    assert_eq!(
        (long.status, &long.json["error"]["type"]),
        (400, &json!("exceed_context_size_error"))
    );
}

#[tokio::test]
async fn a_provider_that_is_away_can_come_back_on_its_port() {
    let p = Provider::start();
    let c = client(&p);
    assert_eq!(c.get("/v1/models").await.status, 200);
    p.mode(Mode::Refuse).await;
    let refused = TcpStream::connect(p.addr()).await.expect_err("nobody listens");
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    p.mode(Mode::Deaf).await;
    // The kernel takes the connection and the call; nobody reads it before the provider hears again.
    let mut s = raw(&p, "unheard").await;
    assert!(p.calls_for("unheard").is_empty());
    p.mode(Mode::Open).await;
    p.wait_for("it is heard", |c| c.has("unheard")).await;
    let mut start = [0; 12];
    s.read_exact(&mut start).await.expect("an answer");
    assert_eq!(&start, b"HTTP/1.1 200");
}

#[tokio::test]
async fn trickled_and_stale_connections_are_what_they_say() {
    let p = Provider::start();
    p.set(|s| (s.dims, s.drops_idle) = (2, true));
    p.rule(Rule::text("TRICKLE").then(Action::Trickle { bytes: 100, every_ms: 1 }));
    let answer = embed(&p, &["TRICKLE"]).await;
    assert_eq!(answer.json["data"][0]["index"], 0, "{answer}");
    let (got, end) = drain(&mut raw(&p, "kept alive, it says").await).await;
    assert!(end.is_ok() && !got.contains("connection: close"), "{got}");
    p.set(|s| s.keep_alive = false);
    let (got, end) = drain(&mut raw(&p, "closes and says so").await).await;
    assert!(end.is_ok() && got.contains("connection: close"), "{got}");
}

#[tokio::test]
async fn the_same_handle_over_http() {
    let p = Provider::start();
    let c = client(&p);
    let ok = json!({"ok": true});
    let rule = json!({"text": "POISON", "times": 1, "then": {"do": "hold", "gate": "g", "then": {"do": "answer", "reply": {"status": 503, "body": {"base64": "AP8="}}}}});
    assert_eq!(c.post("/control/rules", &rule).await.json, ok);
    assert_eq!(c.post("/control/settings", &json!({"dims": 3, "slots": 2})).await.json, ok);
    let wrong = c.post("/control/settings", &json!({"slotz": 2})).await;
    assert!(wrong.status == 400 && wrong.text.contains("slotz"), "{wrong}");
    let held = embed(&p, &["POISON"]);
    let story = async {
        p.wait_calls(1).await;
        assert_eq!(c.post("/control/release", &json!({"gate": "g"})).await.json, ok);
    };
    assert_eq!(tokio::join!(held, story).0.status, 503);
    assert_eq!(floats(&embed(&p, &["fine"]).await.json["data"][0]).len(), 3);
    let record = c.get("/control/record?text=POISON").await;
    assert_eq!(
        (record.json["calls"].as_array().map(Vec::len), &record.json["calls"][0]["status"]),
        (Some(1), &json!(503)),
        "{record}"
    );
    assert_eq!(c.get("/control/rules").await.json[0]["then"]["do"], "hold");
    c.send(c.request(reqwest::Method::DELETE, "/control/record")).await;
    assert!(p.calls().is_empty() && p.max_concurrency() == 0);
}
