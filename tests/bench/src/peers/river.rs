//! riverqueue, the Rust client of River.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use riverqueue::migrate::PostgresMigrator;
use riverqueue::{BoxError, Client, Job, JobArgs, QueueConfig, WorkContext, WorkOutcome, Workers};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;

use crate::hits;
use crate::peer::{self, Drained, Peer, Pickup, Plan};

pub const PEER: Peer = Peer {
    name: "riverqueue 0.5",
    key: "river",
    settings: "insert_many in one call; 1,000 workers, fetch cooldown 1 ms, pool 10",
    prepare: |url| prepare(url).boxed_local(),
    enqueue: |url, n| enqueue(url, n).boxed_local(),
    drain: |url, n| drain(url, n).boxed_local(),
    pickup: Some(|url, plan| pickup(url, plan).boxed_local()),
};

#[derive(Clone, Debug, Deserialize, JobArgs, Serialize)]
#[river(kind = "noop")]
struct Noop {
    n: u64,
}

async fn noop(_: WorkContext, job: Job<Noop>) -> Result<WorkOutcome, BoxError> {
    hits::hit(job.args.n);
    Ok(WorkOutcome::Complete)
}

async fn pool(url: &str, size: u32) -> Result<sqlx::PgPool> {
    Ok(PgPoolOptions::new().max_connections(size).connect(url).await?)
}

async fn prepare(url: String) -> Result<()> {
    let pool = pool(&url, 2).await?;
    PostgresMigrator::new(pool.clone()).migrate_up().await?;
    pool.close().await;
    Ok(())
}

fn worker(pool: &sqlx::PgPool, workers: usize) -> Result<Client> {
    let mut kinds = Workers::new();
    kinds.add_fn(noop)?;
    // Its default of 100 ms holds back fetches and notifications; 1 ms is the least that it takes.
    Ok(Client::builder(pool.clone())
        .workers(kinds)
        .queue("default", QueueConfig::new(workers))
        .fetch_cooldown(Duration::from_millis(1))
        .build()?)
}

async fn enqueue(url: String, n: usize) -> Result<Duration> {
    let pool = pool(&url, 2).await?;
    let client = Client::builder(pool.clone()).build()?;
    let jobs: Vec<Noop> = (0..n).map(|n| Noop { n: n as u64 }).collect();
    let started = Instant::now();
    client.insert_many(jobs).await?;
    let took = started.elapsed();
    pool.close().await;
    Ok(took)
}

async fn drain(url: String, n: usize) -> Result<Drained> {
    let ask = pool(&url, 1).await?;
    let board = hits::board(n);
    let started = Instant::now();
    let pool = pool(&url, 10).await?;
    let mut run = worker(&pool, 1000)?.start()?;
    let drained = peer::finished(started, &board, || async {
        Ok(
            !sqlx::query_scalar::<_, bool>("select exists (select from river_job where finalized_at is null)")
                .fetch_one(&ask)
                .await?,
        )
    })
    .await;
    run.stop().await?;
    pool.close().await;
    ask.close().await;
    drained
}

async fn pickup(url: String, plan: Plan) -> Result<Vec<Pickup>> {
    let (pool, producer) = (pool(&url, 10).await?, pool(&url, 2).await?);
    let mut run = worker(&pool, 10)?.start()?;
    tokio::time::timeout(Duration::from_secs(10), run.wait_ready())
        .await
        .context("not ready after 10 s")??;
    let client = Client::builder(producer.clone()).fetch_cooldown(Duration::from_millis(1)).build()?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let samples = peer::paced(plan, |n| {
        let client = client.clone();
        async move {
            client.insert(Noop { n }).await?;
            Ok(())
        }
    })
    .await;
    run.stop().await?;
    pool.close().await;
    producer.close().await;
    samples
}
