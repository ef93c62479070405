//! Steadfast itself: the `noop` kind through the very loop that `steadfast-worker` runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use futures::FutureExt as _;
use queue_schema::hint::Hinter;
use queue_schema::job::{self, NewJob};
use queue_schema::{Db, JobKind, Lane, Role};
use sqlx::Connection as _;
use sqlx::postgres::PgPoolOptions;
use steadfast_workers::config::Config;
use steadfast_workers::work::{Hooks, work};
use tokio::sync::oneshot;

use crate::hits;
use crate::peer::{self, Drained, Peer, Pickup, Plan};

pub const PEER: Peer = Peer {
    name: "steadfast",
    key: "ours",
    settings: "`--kinds noop`, otherwise the defaults; enqueued by COPY",
    prepare: |url| prepare(url).boxed_local(),
    enqueue: |url, n| enqueue(url, n).boxed_local(),
    drain: |url, n| drain(url, n).boxed_local(),
    pickup: Some(|url, plan| pickup(url, plan).boxed_local()),
};

/// The tenant that every installation has.
pub const TENANT: i64 = 1;

pub async fn prepare(url: String) -> Result<()> {
    steadfast_migrations::migrate(&url).await?;
    Ok(())
}

pub fn payload(n: usize) -> serde_json::Value {
    serde_json::json!({ "n": n })
}

async fn enqueue(url: String, n: usize) -> Result<Duration> {
    let mut conn = sqlx::PgConnection::connect(&url).await?;
    let template = NewJob::new(JobKind::Noop, TENANT);
    let started = Instant::now();
    let mut tx = conn.begin().await?;
    let copied = job::enqueue_bulk(&mut tx, &template, (0..n).map(payload)).await?;
    tx.commit().await?;
    let took = started.elapsed();
    conn.close().await?;
    anyhow::ensure!(copied == n as u64, "copied {copied} of {n} jobs");
    Ok(took)
}

async fn drain(url: String, n: usize) -> Result<Drained> {
    let ask = PgPoolOptions::new().max_connections(1).connect(&url).await?;
    let board = hits::board(n);
    let started = Instant::now();
    let worker = Worker::start(&url, &["--kinds", "noop"])?;
    let drained = peer::finished(started, &board, || async {
        Ok(!sqlx::query_scalar::<_, bool>("select exists (select from jobs)")
            .fetch_one(&ask)
            .await?)
    })
    .await;
    worker.stop().await?;
    // A fast queue that loses or doubles a job has not been fast.
    let (rows, right): (i64, i64) =
        sqlx::query_as("select count(*), count(*) filter (where status = 'done' and attempts = 1 and forgiven = 0) from jobs_done")
            .fetch_one(&ask)
            .await?;
    ask.close().await;
    let drained = drained?;
    anyhow::ensure!(
        rows == n as i64 && right == rows,
        "of {n} jobs {rows} are finished, {right} of them done at the first attempt"
    );
    Ok(drained)
}

async fn pickup(url: String, plan: Plan) -> Result<Vec<Pickup>> {
    let worker = Worker::start(&url, &[])?;
    worker.idle().await?;
    let db = Db::open(&url, Role::Owner, 4, "bench-producer")?;
    let hinter = Hinter::start(db.clone());
    let samples = peer::paced(plan, |n| {
        let (db, hinter) = (db.clone(), hinter.clone());
        async move {
            let mut tx = db.begin().await?;
            let job = NewJob {
                payload: serde_json::json!({ "n": n }),
                ..NewJob::new(JobKind::Noop, TENANT)
            };
            job::enqueue(&mut tx, &job).await?.context("the job was not new")?;
            Db::commit(tx).await?;
            // The way of the API: the row is durable first, then somebody is told.
            hinter.wake(JobKind::Noop, Lane::Batch);
            Ok(())
        }
    })
    .await;
    // Dropped, not closed: closing waits for every connection to come home, and the hinter's task holds the pool as long as it lives.
    drop(hinter);
    drop(db);
    worker.stop().await?;
    samples
}

/// A worker in this process, at the settings of a command line.
pub struct Worker {
    stop: oneshot::Sender<()>,
    ready: oneshot::Receiver<i64>,
    task: tokio::task::JoinHandle<Result<(), String>>,
    url: String,
}

impl Worker {
    pub fn start(url: &str, arguments: &[&str]) -> Result<Self> {
        let blobs = std::env::temp_dir().join("steadfast-bench-blobs");
        let blobs = format!("file://{}", blobs.display());
        let line = ["steadfast-worker", "--database-url", url, "--blobs", &blobs]
            .into_iter()
            .chain(arguments.iter().copied());
        let config = Config::try_parse_from(line)?;
        config.check().map_err(anyhow::Error::msg)?;
        let (stop, stopped) = oneshot::channel();
        let (ready_tx, ready) = oneshot::channel();
        let hooks = Hooks {
            on_ready: Some(Box::new(move |boot_id| {
                let _ = ready_tx.send(boot_id);
            })),
            on_start: Some(Arc::new(|claim| {
                if let Some(n) = claim.payload.get("n").and_then(serde_json::Value::as_u64) {
                    hits::hit(n);
                }
            })),
        };
        let task = tokio::spawn(work(config, hooks, async move {
            let _ = stopped.await;
        }));
        Ok(Self {
            stop,
            ready,
            task,
            url: url.to_owned(),
        })
    }

    /// Until it is known to the database and listens, and a little longer.
    pub async fn idle(&self) -> Result<()> {
        let mut conn = sqlx::PgConnection::connect(&self.url).await?;
        let listens =
            "select exists (select from pg_stat_activity where datname = current_database() and query ilike 'listen %steadfast_jobs%')";
        for _ in 0..200 {
            if sqlx::query_scalar::<_, bool>(listens).fetch_one(&mut conn).await? {
                conn.close().await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("the worker does not listen after 10 s")
    }

    pub async fn stop(mut self) -> Result<()> {
        let _ = self.stop.send(());
        self.ready.close();
        self.task.await?.map_err(anyhow::Error::msg)
    }
}
