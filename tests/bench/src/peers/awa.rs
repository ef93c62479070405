//! awa: append-only segments instead of rows that change.

use std::time::{Duration, Instant};

use anyhow::Result;
use awa::model::QueueStorage;
use awa::{Client, InsertOpts, InsertParams, JobArgs, JobResult, QueueConfig, QueueStorageConfig};
use futures::FutureExt as _;
use serde::{Deserialize, Serialize};
use sqlx08::PgPool;
use sqlx08::postgres::PgPoolOptions;

use crate::hits;
use crate::peer::{self, Drained, Peer, Pickup, Plan};

pub const PEER: Peer = Peer {
    name: "awa 0.6",
    key: "awa",
    settings: "enqueue_params_copy 5,000 a call; 256 workers, claims of 512, no deadline, pool 20",
    prepare: |url| prepare(url).boxed_local(),
    enqueue: |url, n| enqueue(url, n).boxed_local(),
    drain: |url, n| drain(url, n).boxed_local(),
    pickup: Some(|url, plan| pickup(url, plan).boxed_local()),
};

const QUEUE: &str = "default";

#[derive(Serialize, Deserialize, JobArgs)]
#[awa(kind = "noop")]
struct Noop {
    n: u64,
}

async fn pool(url: &str, size: u32) -> Result<PgPool> {
    Ok(PgPoolOptions::new().max_connections(size).connect(url).await?)
}

/// A worker's first start turns a fresh schema to the segmented storage; without it, jobs go to the old tables.
async fn prepare(url: String) -> Result<()> {
    let pool = pool(&url, 4).await?;
    awa::migrations::run(&pool).await?;
    let client = worker(&pool, QueueConfig::default())?;
    client.start().await?;
    client.shutdown(Duration::from_secs(10)).await;
    pool.close().await;
    Ok(())
}

fn worker(pool: &PgPool, config: QueueConfig) -> Result<Client> {
    Ok(Client::builder(pool.clone())
        .queue(QUEUE, config)
        .register::<Noop, _, _>(|job, _| {
            hits::hit(job.n);
            async { Ok(JobResult::Completed) }
        })
        .build()?)
}

fn params(n: u64) -> InsertParams {
    InsertParams {
        kind: "noop".to_owned(),
        args: serde_json::json!({ "n": n }),
        opts: InsertOpts {
            queue: QUEUE.to_owned(),
            ..InsertOpts::default()
        },
    }
}

async fn enqueue(url: String, n: usize) -> Result<Duration> {
    let pool = pool(&url, 2).await?;
    let store = QueueStorage::new(QueueStorageConfig::default())?;
    let jobs: Vec<InsertParams> = (0..n).map(|n| params(n as u64)).collect();
    let started = Instant::now();
    for part in jobs.chunks(5000) {
        store.enqueue_params_copy(&pool, part).await?;
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
    let client = worker(
        &pool,
        QueueConfig {
            max_workers: 256,
            claim_batch_size: 512,
            claimers: 1,
            deadline_duration: Duration::ZERO,
            ..QueueConfig::default()
        },
    )?;
    client.start().await?;
    // Its own count of what is finished takes a second on 20,000 jobs; these are the places where finished ones are noted.
    let finished = "select coalesce((select sum(completed_count) from awa.receipt_completion_batches), 0)::bigint
                         + (select count(*) from awa.done_entries)
                         + coalesce((select sum(pruned_completed_count) from awa.queue_terminal_rollups), 0)::bigint";
    let drained = peer::finished(started, &board, || async {
        Ok(sqlx08::query_scalar::<_, i64>(finished).fetch_one(&ask).await? >= n as i64)
    })
    .await;
    client.shutdown(Duration::from_secs(10)).await;
    pool.close().await;
    ask.close().await;
    drained
}

async fn pickup(url: String, plan: Plan) -> Result<Vec<Pickup>> {
    let (pool, producer) = (pool(&url, 20).await?, pool(&url, 2).await?);
    let client = worker(&pool, QueueConfig::default())?;
    client.start().await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let samples = peer::paced(plan, |n| {
        let producer = producer.clone();
        async move {
            awa::insert_with(
                &producer,
                &Noop { n },
                InsertOpts {
                    queue: QUEUE.to_owned(),
                    ..InsertOpts::default()
                },
            )
            .await?;
            Ok(())
        }
    })
    .await;
    client.shutdown(Duration::from_secs(10)).await;
    pool.close().await;
    producer.close().await;
    samples
}
