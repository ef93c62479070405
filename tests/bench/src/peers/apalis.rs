//! apalis-postgres: apalis' own storage, not the runtime that we build on.

use std::time::{Duration, Instant};

use ::apalis::layers::WorkerBuilderExt as _;
use ::apalis::prelude::{BoxDynError, TaskSink as _, WorkerBuilder};
use anyhow::Result;
use apalis_postgres::{Config, PostgresStorage};
use futures::FutureExt as _;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use tokio::sync::oneshot;

use crate::hits;
use crate::peer::{self, Drained, Peer, Pickup, Plan};

pub const PEER: Peer = Peer {
    name: "apalis-postgres 1.0",
    key: "apalis",
    settings: "push_bulk 2,000 a call; concurrency 1,000, batch 1,000, tasks locked, pool 8, pubsub",
    prepare: |url| prepare(url).boxed_local(),
    enqueue: |url, n| enqueue(url, n).boxed_local(),
    drain: |url, n| drain(url, n).boxed_local(),
    pickup: Some(|url, plan| pickup(url, plan).boxed_local()),
};

const QUEUE: &str = "noop";

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Noop {
    n: u64,
}

async fn noop(job: Noop) -> Result<(), BoxDynError> {
    hits::hit(job.n);
    Ok(())
}

async fn pool(url: &str, size: u32) -> Result<sqlx::PgPool> {
    Ok(PgPoolOptions::new().max_connections(size).connect(url).await?)
}

/// Its first migrations ask for pgcrypto, which some servers do not bring, and its last one does without: only then the line is left out.
async fn prepare(url: String) -> Result<()> {
    let pool = pool(&url, 2).await?;
    let there: bool = sqlx::query_scalar("select exists (select from pg_available_extensions where name = 'pgcrypto')")
        .fetch_one(&pool)
        .await?;
    if there {
        PostgresStorage::<()>::setup(&pool).await?;
    } else {
        for migration in PostgresStorage::<()>::migrations()
            .iter()
            .filter(|m| m.migration_type.is_up_migration())
        {
            let sql = migration.sql.as_str().replace("CREATE EXTENSION IF NOT EXISTS pgcrypto;", "");
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await?;
        }
    }
    pool.close().await;
    Ok(())
}

fn storage(pool: &sqlx::PgPool, batch: usize) -> PostgresStorage<Noop> {
    PostgresStorage::new(pool).with_config(Config::default().queue(QUEUE).batch_size(batch))
}

async fn enqueue(url: String, n: usize) -> Result<Duration> {
    let pool = pool(&url, 2).await?;
    let mut storage = storage(&pool, 1000);
    let started = Instant::now();
    for from in (0..n).step_by(2000) {
        storage
            .push_bulk((from..n.min(from + 2000)).map(|n| Noop { n: n as u64 }).collect())
            .await?;
    }
    let took = started.elapsed();
    pool.close().await;
    Ok(took)
}

async fn drain(url: String, n: usize) -> Result<Drained> {
    let ask = pool(&url, 1).await?;
    let board = hits::board(n);
    let started = Instant::now();
    let pool = pool(&url, 8).await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = WorkerBuilder::new("bench")
        .backend(storage(&pool, 1000).with_pubsub())
        .concurrency(1000)
        .build(noop);
    let run = tokio::spawn(worker.run_until(async move {
        let _ = stopped.await;
        Ok::<(), std::io::Error>(())
    }));
    let drained = peer::finished(started, &board, || async {
        Ok(
            !sqlx::query_scalar::<_, bool>("select exists (select from apalis.jobs where status <> 'Done')")
                .fetch_one(&ask)
                .await?,
        )
    })
    .await;
    let _ = stop.send(());
    let _ = tokio::time::timeout(Duration::from_secs(10), run).await;
    pool.close().await;
    ask.close().await;
    drained
}

async fn pickup(url: String, plan: Plan) -> Result<Vec<Pickup>> {
    let (pool, producer) = (pool(&url, 8).await?, pool(&url, 2).await?);
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = WorkerBuilder::new("bench")
        .backend(storage(&pool, 10).with_pubsub())
        .concurrency(10)
        .build(noop);
    let run = tokio::spawn(worker.run_until(async move {
        let _ = stopped.await;
        Ok::<(), std::io::Error>(())
    }));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let samples = peer::paced(plan, |n| {
        let mut storage = storage(&producer, 10);
        async move {
            storage.push(Noop { n }).await?;
            Ok(())
        }
    })
    .await;
    let _ = stop.send(());
    let _ = tokio::time::timeout(Duration::from_secs(10), run).await;
    pool.close().await;
    producer.close().await;
    samples
}
