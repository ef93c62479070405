//! The server: takes connections, reads calls, does to them what the script says.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::control;
use super::http::{Conn, Request, Wire, multipart};
use super::record::{Outcome, Route, Text, sha256, tokens};
use super::rule::{Action, At, Body, Fixture, Framing, Reply, VectorFault, embeddings_body};
use super::state::{Arrival, Mode, State};
use super::vector;

/// How often a working provider looks whether its caller is still there, in tokens.
const STEP: u64 = 1_024;

pub(super) async fn serve(state: Arc<State>, listener: TcpListener, addr: SocketAddr) -> io::Result<()> {
    let mut listener = Some(listener);
    let mut mode_of = state.mode.subscribe();
    let mut conns = JoinSet::new();
    loop {
        let mode = *mode_of.borrow_and_update();
        if mode == Mode::Refuse {
            listener = None;
        } else if listener.is_none() {
            listener = Some(TcpListener::bind(addr).await?);
        }
        state.applied.send_replace(mode);
        match &listener {
            Some(l) if mode == Mode::Open => {
                tokio::select! {
                    accepted = l.accept() => {
                        if let Ok((stream, _)) = accepted {
                            conns.spawn(connection(Arc::clone(&state), stream));
                        }
                    }
                    Some(_) = conns.join_next() => {}
                    changed = mode_of.changed() => if changed.is_err() { return Ok(()) },
                }
            }
            _ => {
                if mode_of.changed().await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

async fn connection(state: Arc<State>, stream: TcpStream) {
    let mut conn = Conn::new(stream);
    let mut mode = state.mode.subscribe();
    loop {
        let request = tokio::select! {
            request = conn.next() => request,
            // A provider that is away keeps no idle connection that a pooled caller could go on using.
            _ = mode.wait_for(|m| *m != Mode::Open) => return,
        };
        let Ok(Some(request)) = request else { return };
        let keep_alive = request.keep_alive();
        if request.path.starts_with("/control/") {
            let reply = control::answer(&state, &request).await;
            if conn.send(&Wire::of(&reply, Framing::ContentLength, false).whole()).await.is_err() {
                return;
            }
            continue;
        }
        let Some(back) = call(&state, conn, request).await else { return };
        if !keep_alive {
            return back.close().await;
        }
        conn = back;
    }
}

/// A call in its parts, as far as a rule or the regular answer needs them.
#[derive(Debug)]
struct Asked {
    route: Route,
    texts: Vec<Text>,
    model: String,
    bearer: Option<String>,
    dims: Option<usize>,
    base64: bool,
    confidence: f64,
    /// What is wrong with the call itself.
    bad: Option<String>,
}

/// Plays one call through. Gives the connection back if it can carry another one.
async fn call(state: &Arc<State>, mut conn: Conn, request: Request) -> Option<Conn> {
    let (asked, hay) = read(state, &request);
    let decided = state.arrive(Arrival {
        route: asked.route,
        path: request.path,
        texts: asked.texts.clone(),
        hay,
        model: asked.model.clone(),
        bearer: asked.bearer.clone(),
    });
    let seq = decided.seq;
    // From here on the call is open; whatever way we leave, also by being aborted, it is closed.
    let mut end = End {
        state: Arc::clone(state),
        seq,
        route: asked.route,
        outcome: Outcome::Broken,
    };

    let wait = state.lock().settings.latency_ms + decided.after_ms;
    if wait > 0 && pause(&mut conn, Duration::from_millis(wait)).await.is_err() {
        return cancelled(state, &mut end, 0);
    }
    let mut action = decided.action;
    let mut gates = decided.gates;
    while let Action::Hold { then, .. } = action {
        if let Some(mut gate) = gates.pop_front() {
            tokio::select! {
                _ = gate.changed() => {}
                () = conn.gone() => return cancelled(state, &mut end, 0),
            }
        }
        action = *then;
    }

    let (keep_alive, drops_idle) = {
        let s = &state.lock().settings;
        (s.keep_alive, s.drops_idle)
    };
    let plan = Plan::of(&action);
    let reply = match plan.reply {
        Some(reply) => reply,
        None => match refusal(state, &asked) {
            Some(reply) => reply,
            None => match work(state, &mut conn, seq, &asked, plan.extra).await {
                Ok(()) => regular(state, &asked, &plan),
                Err(token) => return cancelled(state, &mut end, token),
            },
        },
    };
    let wire = Wire::of(&reply, plan.framing, !keep_alive);
    let sent = |status| state.note(seq, |c| c.status = Some(status));

    match plan.fault {
        None => {}
        Some(Fault::Close) => {
            // The record first, here and below: a caller that has seen the end must find it there.
            drop(end);
            conn.close().await;
            return None;
        }
        Some(Fault::Trickle { bytes, every }) => {
            sent(wire.status);
            for piece in wire.whole().chunks(bytes.max(1)) {
                if conn.send(piece).await.is_err() || pause(&mut conn, every).await.is_err() {
                    return cancelled(state, &mut end, 0);
                }
            }
            end.outcome = Outcome::Answered;
            return (!wire.close).then_some(conn);
        }
        Some(Fault::Stop { at, how }) => {
            let start: Bytes = match at {
                At::BeforeHeaders => Bytes::new(),
                At::InHeaders => {
                    let line = wire.head.iter().position(|b| *b == b'\n').map_or(0, |i| i + 1);
                    [&wire.head[..line], b"x-scripted: yes\r\n"].concat().into()
                }
                At::AfterHeaders => wire.head.clone().into(),
                At::MidBody if plan.framing == Framing::Chunked => {
                    let half = wire.first_half();
                    [&wire.head[..], format!("{:x}\r\n", half.len()).as_bytes(), &half[..], b"\r\n"]
                        .concat()
                        .into()
                }
                At::MidBody => [&wire.head[..], &wire.first_half()[..]].concat().into(),
            };
            if matches!(at, At::AfterHeaders | At::MidBody) {
                sent(wire.status);
            }
            if !start.is_empty() && conn.send(&start).await.is_err() {
                return cancelled(state, &mut end, 0);
            }
            match how {
                Stop::Hang => {
                    conn.gone().await;
                    return cancelled(state, &mut end, 0);
                }
                Stop::Close => {
                    drop(end);
                    conn.close().await;
                }
                Stop::Reset => {
                    drop(end);
                    conn.reset();
                }
            }
            return None;
        }
    }
    sent(wire.status);
    end.outcome = Outcome::Answered;
    let seen = end.close_now();
    if conn.send(&wire.whole()).await.is_err() {
        state.note(seen, |c| c.outcome = Outcome::Cancelled);
        return None;
    }
    if drops_idle || wire.close {
        conn.close().await;
        return None;
    }
    Some(conn)
}

/// Closes the record of a call when dropped.
struct End {
    state: Arc<State>,
    seq: u64,
    route: Route,
    outcome: Outcome,
}

impl End {
    fn close_now(self) -> u64 {
        self.seq
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.state.leave(self.seq, self.route, self.outcome);
    }
}

fn cancelled(state: &State, end: &mut End, token: u64) -> Option<Conn> {
    end.outcome = Outcome::Cancelled;
    state.note(end.seq, |c| c.cancelled_at = Some(token));
    None
}

/// An action, taken apart: which answer (`None`: the regular one), after how much more work, and how it breaks off.
#[derive(Debug, Default)]
struct Plan {
    reply: Option<Reply>,
    extra: Duration,
    framing: Framing,
    fault: Option<Fault>,
    vectors: Option<VectorFault>,
    model: Option<String>,
    body: Option<(String, Body)>,
}

#[derive(Debug)]
enum Fault {
    Close,
    Trickle { bytes: usize, every: Duration },
    Stop { at: At, how: Stop },
}

#[derive(Debug)]
enum Stop {
    Hang,
    Close,
    Reset,
}

impl Plan {
    fn of(action: &Action) -> Self {
        let at_once = |reply| Self {
            reply: Some(reply),
            ..Self::default()
        };
        let fault = |fault| Self {
            fault: Some(fault),
            ..Self::default()
        };
        let placeholder = || Reply::json(200, &json!({"never": "sent whole"}));
        match action {
            Action::Normal | Action::Hold { .. } => Self::default(),
            Action::Answer { reply } => at_once(reply.clone()),
            Action::Fixture { name } => at_once(name.reply()),
            Action::Redirect { status, to } => at_once(Reply::new(*status, "text/plain", "elsewhere").header("location", to)),
            Action::Hang { at } => Self {
                fault: Some(Fault::Stop { at: *at, how: Stop::Hang }),
                ..at_once(placeholder())
            },
            Action::Reset { at } => Self {
                fault: Some(Fault::Stop { at: *at, how: Stop::Reset }),
                ..at_once(placeholder())
            },
            Action::Close => Self {
                fault: Some(Fault::Close),
                ..at_once(placeholder())
            },
            Action::Cut { how } => Self {
                framing: *how,
                ..fault(Fault::Stop {
                    at: At::MidBody,
                    how: Stop::Close,
                })
            },
            Action::Trickle { bytes, every_ms } => fault(Fault::Trickle {
                bytes: *bytes,
                every: Duration::from_millis(*every_ms),
            }),
            Action::Slow { ms } => Self {
                extra: Duration::from_millis(*ms),
                ..Self::default()
            },
            Action::Vectors { fault } => Self {
                vectors: Some(fault.clone()),
                ..Self::default()
            },
            Action::Model { name } => Self {
                model: Some(name.clone()),
                ..Self::default()
            },
            Action::Body { content_type, body } => Self {
                body: Some((content_type.clone(), body.clone())),
                ..Self::default()
            },
        }
    }
}

fn read(state: &State, request: &Request) -> (Asked, Vec<Bytes>) {
    let route = match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/v1/embeddings") => Route::Embeddings,
        ("POST", "/v1/chat/completions") => Route::Chat,
        ("POST", "/ocr") => Route::Ocr,
        ("GET", "/v1/models") => Route::Models,
        _ => Route::Other,
    };
    let mut asked = Asked {
        route,
        texts: Vec::new(),
        model: String::new(),
        bearer: request.bearer().map(str::to_owned),
        dims: None,
        base64: false,
        confidence: 0.0,
        bad: None,
    };
    let mut hay = Vec::new();
    match route {
        Route::Embeddings | Route::Chat => match serde_json::from_slice::<Value>(&request.body) {
            Err(e) => asked.bad = Some(format!("the body is not JSON: {e}")),
            Ok(body) => {
                asked.model = body["model"].as_str().unwrap_or_default().to_owned();
                asked.dims = body["dimensions"].as_u64().and_then(|n| usize::try_from(n).ok());
                asked.base64 = body["encoding_format"] == "base64";
                let texts = if route == Route::Embeddings {
                    inputs(&body["input"])
                } else {
                    messages(&body["messages"])
                };
                match texts {
                    Ok(texts) => {
                        asked.texts = texts
                            .into_iter()
                            .map(|t| Text {
                                sha256: sha256(t.as_bytes()),
                                text: t,
                            })
                            .collect()
                    }
                    Err(e) => asked.bad = Some(e.to_owned()),
                }
            }
        },
        Route::Ocr => {
            let kind = request.header("content-type").unwrap_or_default();
            let part = if kind.starts_with("multipart/") {
                multipart(kind, &request.body)
            } else {
                Some((String::new(), request.body.clone()))
            };
            match part {
                Some((file, image)) if !image.is_empty() => {
                    let (text, confidence) = state.page(&image, &file);
                    asked.confidence = confidence;
                    asked.texts = vec![Text {
                        sha256: sha256(&image),
                        text,
                    }];
                    hay = vec![image, Bytes::from(file)];
                }
                _ => asked.bad = Some("no image in field image_file".to_owned()),
            }
        }
        Route::Models | Route::Other => {}
    }
    (asked, hay)
}

fn inputs(input: &Value) -> Result<Vec<String>, &'static str> {
    match input {
        Value::String(s) => Ok(vec![s.clone()]),
        Value::Array(list) if !list.is_empty() => list
            .iter()
            .map(|v| v.as_str().map(str::to_owned).ok_or("'input' holds something that is no string"))
            .collect(),
        _ => Err("'input' is neither a string nor a list of strings"),
    }
}

fn messages(messages: &Value) -> Result<Vec<String>, &'static str> {
    let list = messages.as_array().filter(|l| !l.is_empty()).ok_or("'messages' is not a list")?;
    list.iter()
        .map(|m| m["content"].as_str().map(str::to_owned).ok_or("a message without 'content'"))
        .collect()
}

/// What a provider answers that is in order to a call that is not.
fn refusal(state: &State, asked: &Asked) -> Option<Reply> {
    let inner = state.lock();
    let s = &inner.settings;
    if asked.route == Route::Other {
        return Some(Fixture::NotFoundPlain.reply());
    }
    if !s.accepts(asked.bearer.as_deref()) {
        return Some(Fixture::InvalidKey.reply());
    }
    if let Some(bad) = &asked.bad {
        return Some(Reply::error(400, "invalid_request_error", "invalid_value", bad));
    }
    if matches!(asked.route, Route::Embeddings | Route::Chat) && !s.has_model(&asked.model) {
        return Some(Fixture::ModelNotFound.reply());
    }
    let limit = s.context_tokens?;
    let longest = asked.texts.iter().map(|t| tokens(&t.text)).max()?;
    (asked.route != Route::Ocr && longest > limit).then(|| {
        let message = format!("the request ({longest} tokens) exceeds the available context size ({limit} tokens), try increasing it");
        Reply::json(
            400,
            &json!({"error": {"code": 400, "message": message, "type": "exceed_context_size_error", "n_prompt_tokens": longest, "n_ctx": limit}}),
        )
    })
}

/// Takes a slot and the time that the tokens take. The error is the token at which the caller was found gone.
async fn work(state: &Arc<State>, conn: &mut Conn, seq: u64, asked: &Asked, extra: Duration) -> Result<(), u64> {
    if !asked.route.works() {
        return Ok(());
    }
    let asked_at = state.now_ms();
    let slot = tokio::select! {
        slot = state.slot() => slot,
        () = conn.gone() => return Err(0),
    };
    let waited = state.now_ms() - asked_at;
    if waited > 0 {
        state.note(seq, |c| c.slot_wait_ms = waited);
    }
    let (rate, notices, chat) = {
        let s = &state.lock().settings;
        (s.tokens_per_second, s.notices_disconnect, s.chat_tokens)
    };
    let total = asked.texts.iter().map(|t| tokens(&t.text)).sum::<u64>() + if asked.route == Route::Chat { chat } else { 0 };
    let begin = Instant::now();
    if let Some(rate) = rate.filter(|r| *r > 0.0) {
        let mut done = 0;
        while done < total {
            done = (done + STEP).min(total);
            // From the beginning, so that late timers do not add up.
            sleep_until(begin + Duration::from_secs_f64(done as f64 / rate)).await;
            if notices && conn.is_gone() {
                return Err(done);
            }
        }
    }
    if extra > Duration::ZERO {
        let until = Instant::now() + extra;
        if notices {
            pause(conn, extra).await.map_err(|()| total)?;
        } else {
            sleep_until(until).await;
        }
    }
    drop(slot);
    if conn.is_gone() { Err(total) } else { Ok(()) }
}

/// Lets time pass, unless the caller goes.
async fn pause(conn: &mut Conn, time: Duration) -> Result<(), ()> {
    tokio::select! {
        () = sleep_until(Instant::now() + time) => Ok(()),
        () = conn.gone() => Err(()),
    }
}

/// The answer of a provider at work.
fn regular(state: &State, asked: &Asked, plan: &Plan) -> Reply {
    if let Some((kind, body)) = &plan.body {
        return Reply::new(200, kind, body.clone());
    }
    let model = plan.model.as_ref().unwrap_or(&asked.model);
    let total: u64 = asked.texts.iter().map(|t| tokens(&t.text)).sum();
    match asked.route {
        Route::Embeddings => {
            let dims = asked.dims.unwrap_or(state.lock().settings.dims);
            let vectors = asked.texts.iter().map(|t| vector::of(&t.text, dims)).collect();
            Reply::new(
                200,
                "application/json",
                embeddings_body(model, vectors, total, asked.base64, plan.vectors.as_ref()),
            )
        }
        Route::Chat => {
            let last: String = asked.texts.last().map(|t| t.text.chars().take(80).collect()).unwrap_or_default();
            let out = state.lock().settings.chat_tokens;
            let message = json!({"role": "assistant", "content": format!("scripted answer to: {last}")});
            Reply::json(
                200,
                &json!({"id": "scripted", "object": "chat.completion", "created": 0, "model": model,
                        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                        "usage": {"prompt_tokens": total, "completion_tokens": out, "total_tokens": total + out}}),
            )
        }
        Route::Ocr => {
            let text = asked.texts.first().map_or("", |t| t.text.as_str());
            Reply::json(200, &json!({"text": text, "confidence": asked.confidence}))
        }
        Route::Models | Route::Other => {
            let models = match state.lock().settings.models.clone() {
                m if m.is_empty() => vec!["scripted".to_owned()],
                m => m,
            };
            let data: Vec<Value> = models
                .iter()
                .map(|id| json!({"id": id, "object": "model", "created": 0, "owned_by": "scripted"}))
                .collect();
            Reply::json(200, &json!({"object": "list", "data": data}))
        }
    }
}
