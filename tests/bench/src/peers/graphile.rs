//! graphile_worker: the fastest rival.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::FutureExt as _;
use graphile_worker::{IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext, WorkerOptions};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;

use crate::hits;
use crate::peer::{self, Drained, Peer, Pickup, Plan};

pub const PEER: Peer = Peer {
    name: "graphile_worker 0.14",
    key: "graphile",
    settings: "add_jobs 5,000 a call; concurrency 64, local queue 500, completions batched for 1 ms, pool 20",
    prepare: |url| prepare(url).boxed_local(),
    enqueue: |url, n| enqueue(url, n).boxed_local(),
    drain: |url, n| drain(url, n).boxed_local(),
    pickup: Some(|url, plan| pickup(url, plan).boxed_local()),
};

#[derive(Clone, Deserialize, Serialize)]
struct Noop {
    n: u64,
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        hits::hit(self.n);
        Ok::<(), String>(())
    }
}

async fn pool(url: &str, size: u32) -> Result<sqlx::PgPool> {
    Ok(PgPoolOptions::new().max_connections(size).connect(url).await?)
}

async fn worker(pool: &sqlx::PgPool, shape: impl FnOnce(WorkerOptions) -> WorkerOptions) -> Result<Arc<Worker>> {
    let options = WorkerOptions::default()
        .define_job::<Noop>()
        .pg_pool(pool.clone())
        .listen_os_shutdown_signals(false);
    Ok(Arc::new(shape(options).init().await?))
}

fn spawn(worker: &Arc<Worker>) -> tokio::task::JoinHandle<Result<()>> {
    let worker = worker.clone();
    tokio::spawn(async move { Ok(worker.run().await?) })
}

async fn prepare(url: String) -> Result<()> {
    let pool = pool(&url, 2).await?;
    drop(worker(&pool, |o| o).await?);
    pool.close().await;
    Ok(())
}

async fn enqueue(url: String, n: usize) -> Result<Duration> {
    let pool = pool(&url, 2).await?;
    let utils = worker(&pool, |o| o).await?.create_utils();
    let spec = JobSpec::default();
    let started = Instant::now();
    for from in (0..n).step_by(5000) {
        let jobs: Vec<_> = (from..n.min(from + 5000)).map(|n| (Noop { n: n as u64 }, &spec)).collect();
        utils.add_jobs(&jobs).await?;
    }
    let took = started.elapsed();
    pool.close().await;
    Ok(took)
}

async fn drain(url: String, n: usize) -> Result<Drained> {
    let ask = pool(&url, 1).await?;
    let board = hits::board(n);
    let started = Instant::now();
    let pool = pool(&url, 20).await?;
    let worker = worker(&pool, |o| {
        o.concurrency(64)
            .local_queue(LocalQueueConfig::default().with_size(500))
            .complete_job_batch_delay(Duration::from_millis(1))
    })
    .await?;
    let run = spawn(&worker);
    let drained = peer::finished(started, &board, || async {
        Ok(
            !sqlx::query_scalar::<_, bool>("select exists (select from graphile_worker._private_jobs)")
                .fetch_one(&ask)
                .await?,
        )
    })
    .await;
    worker.request_shutdown();
    run.await??;
    pool.close().await;
    ask.close().await;
    drained
}

async fn pickup(url: String, plan: Plan) -> Result<Vec<Pickup>> {
    let (pool, producer) = (pool(&url, 20).await?, pool(&url, 2).await?);
    let worker = worker(&pool, |o| o.concurrency(10)).await?;
    let utils = self::worker(&producer, |o| o).await?.create_utils();
    let run = spawn(&worker);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let utils = &utils;
    let samples = peer::paced(plan, |n| async move {
        utils.add_job(Noop { n }, JobSpec::default()).await?;
        Ok(())
    })
    .await;
    worker.request_shutdown();
    run.await??;
    pool.close().await;
    producer.close().await;
    samples
}
