//! What the queue adds to a call that somebody waits for: the provider asked directly, and through a job.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use queue_schema::endpoint::{self, NewEndpoint};
use queue_schema::hint::{self, Channel, Heard, Hinter};
use queue_schema::question::{self, Answer};
use queue_schema::tenant::{self, Scope};
use queue_schema::{Db, JobKind, Lane, Role, diagnostics};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::Bench;
use crate::facts;
use crate::peers::ours::{self, Worker};
use crate::report::{Aim, Section};
use crate::stat::{percentile, range, show};

const QUESTIONS: usize = 200;
const DIMS: usize = 384;

pub async fn run(bench: &Bench) -> Result<Section> {
    let (address, _provider) = provider().await?;
    let url = bench.server.fresh("bench_question").await?;
    ours::prepare(url.clone()).await?;
    let owner = Db::open(&url, Role::Owner, 1, "bench-owner")?;
    let someone = tenant::create_token(&owner, "bench", "bench", "bench", None).await?;
    let scope = tenant::authenticate(&owner, &someone.token)
        .await?
        .context("the token just made is unknown")?;
    let mut tx = owner.begin().await?;
    let provider = NewEndpoint {
        name: "bench".to_owned(),
        capability: "embedding".to_owned(),
        protocol: "openai".to_owned(),
        url: Some(address.clone()),
        model: "bench".to_owned(),
        dims: Some(i32::try_from(DIMS)?),
        key_env: None,
        trust: 3,
        batch: 16,
        timeout_ms: 10_000,
        rank: 1,
    };
    endpoint::set(&mut tx, &provider, "bench").await?;
    Db::commit(tx).await?;
    owner.pool().close().await;

    let worker = Worker::start(&url, &[])?;
    worker.idle().await?;
    let asker = Asker::start(&url, scope)?;
    let client = reqwest::Client::builder().no_proxy().build()?;
    let (mut direct, mut queued) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds {
        eprintln!("  round {} of {}", round + 1, bench.rounds);
        facts::quiet(bench.patience).await;
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for n in 0..QUESTIONS {
            let text = format!("question {n} of round {round}");
            let started = Instant::now();
            ask_directly(&client, &address, &text).await?;
            a.push(started.elapsed().as_secs_f64() * 1000.0);
            let started = Instant::now();
            asker.ask(&text).await?;
            b.push(started.elapsed().as_secs_f64() * 1000.0);
        }
        direct.push(a);
        queued.push(b);
    }
    drop(asker);
    worker.stop().await?;
    bench.server.drop_database("bench_question").await?;

    let mut section = Section::new(
        "Question",
        format!(
            "{QUESTIONS} questions, each different, one after the other, through the steps that the API takes (breaker and cache looked at, job \
             enqueued, worker woken, provider called, answer stored, asker woken, answer read), beside the same call made directly; \
             milliseconds, median (least–greatest) of {} rounds. The provider answers at once with a fixed vector.",
            bench.rounds
        ),
        &["way", "p50", "p95", "p99"],
    );
    let of = |rounds: &[Vec<f64>], p: f64| rounds.iter().map(|r| percentile(r, p)).collect::<Vec<_>>();
    for (name, rounds) in [("provider called directly", &direct), ("through a job", &queued)] {
        section.row([
            name.to_owned(),
            show(&of(rounds, 0.5), 1),
            show(&of(rounds, 0.95), 1),
            show(&of(rounds, 0.99), 1),
        ]);
    }
    let over = |p: f64| of(&queued, p).iter().zip(of(&direct, p)).map(|(a, b)| a - b).collect::<Vec<_>>();
    section.row([
        "difference".to_owned(),
        show(&over(0.5), 1),
        show(&over(0.95), 1),
        show(&over(0.99), 1),
    ]);
    section.aims.push(Aim::at_most(
        "question, over a direct provider call, p50",
        10.0,
        range(&over(0.5)).map_or(f64::NAN, |r| r.mid),
        1,
        " ms",
    ));
    Ok(section)
}

/// The API's side of a question.
struct Asker {
    db: Db,
    hinter: Hinter,
    scope: Scope,
    answers: tokio::sync::Mutex<tokio::sync::mpsc::Receiver<Heard>>,
    _listener: AbortOnDropHandle<()>,
}

impl Asker {
    fn start(url: &str, scope: Scope) -> Result<Self> {
        let db = Db::open(url, Role::Api, 4, "bench-api")?;
        let (answers, listener) = hint::listen(url, Channel::Answers);
        Ok(Self {
            hinter: Hinter::start(db.clone()),
            db,
            scope,
            answers: tokio::sync::Mutex::new(answers),
            _listener: listener,
        })
    }

    async fn ask(&self, text: &str) -> Result<()> {
        const STATEMENT: Duration = Duration::from_secs(8);
        let mut tx = self.scope.begin_within(&self.db, STATEMENT).await?;
        if let Some(obstacle) = diagnostics::obstacle(&mut tx, &self.scope, STATEMENT).await? {
            bail!("questions cannot be asked: {obstacle}");
        }
        if question::cached(&mut tx, &self.scope, text).await?.is_some() {
            bail!("the question was asked before: this would measure the cache");
        }
        let id = question::ask(&mut tx, &self.scope, text).await?;
        Db::commit(tx).await?;
        self.hinter.wake(JobKind::Question, Lane::Interactive);
        loop {
            let heard = async { self.answers.lock().await.recv().await };
            match tokio::time::timeout(Duration::from_secs(1), heard).await {
                Ok(Some(Heard::Answer(other))) if other != id => continue,
                Ok(Some(_)) | Err(_) => {}
                Ok(None) => bail!("the listener for answers ended"),
            }
            let mut tx = self.scope.begin_within(&self.db, STATEMENT).await?;
            match question::answer(&mut tx, id).await? {
                Some(Answer::Vector(v)) if v.values.len() == DIMS => break,
                Some(other) => bail!("not the answer that was expected: {other:?}"),
                None => {}
            }
        }
        // As the API does: when the answer has gone out, and not on its way.
        let (db, scope) = (self.db.clone(), self.scope);
        tokio::spawn(async move {
            if let Ok(mut tx) = scope.begin_within(&db, STATEMENT).await
                && question::forget(&mut tx, id).await.is_ok()
            {
                let _ = Db::commit(tx).await;
            }
        });
        Ok(())
    }
}

async fn ask_directly(client: &reqwest::Client, address: &str, text: &str) -> Result<()> {
    let body = serde_json::json!({ "model": "bench", "input": [text], "encoding_format": "float" });
    let answer: serde_json::Value = client
        .post(format!("{address}/v1/embeddings"))
        .json(&body)
        .send()
        .await?
        .error_for_status()?
        .json()
        .await?;
    anyhow::ensure!(
        answer["data"][0]["embedding"].as_array().is_some_and(|v| v.len() == DIMS),
        "not a vector of {DIMS}"
    );
    Ok(())
}

/// A provider that answers at once: one unit vector, whatever it is asked.
async fn provider() -> Result<(String, AbortOnDropHandle<()>)> {
    let value = 1.0 / (DIMS as f64).sqrt();
    let answer = serde_json::json!({
        "object": "list", "model": "bench", "usage": { "prompt_tokens": 8, "total_tokens": 8 },
        "data": [{ "object": "embedding", "index": 0, "embedding": vec![value; DIMS] }],
    });
    let answer = Bytes::from(answer.to_string());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let answer = answer.clone();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let answer = answer.clone();
                    async move {
                        // Read to its end, or the connection cannot be used again.
                        request.into_body().collect().await?;
                        let response = Response::builder()
                            .header("content-type", "application/json")
                            .body(Full::new(answer));
                        Ok::<_, hyper::Error>(response.unwrap_or_default())
                    }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    Ok((address, AbortOnDropHandle::new(task)))
}
