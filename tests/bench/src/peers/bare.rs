//! No queue at all: the least SQL that claims and archives, driven by two connections with no handler between. Everything else is
//! measured against it.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::FutureExt as _;
use sqlx::{Connection as _, PgConnection, Row as _};

use crate::peer::{Drained, Peer};

pub const PEER: Peer = Peer {
    name: "bare SQL archive",
    key: "bare",
    settings: "2 connections; claim 500, then move them to a history table; enqueued by COPY",
    prepare: |url| prepare(url).boxed_local(),
    enqueue: |url, n| enqueue(url, n).boxed_local(),
    drain: |url, n| drain(url, n).boxed_local(),
    pickup: None,
};

const CONNECTIONS: usize = 2;

async fn prepare(url: String) -> Result<()> {
    let mut conn = PgConnection::connect(&url).await?;
    sqlx::raw_sql(
        "create table bare_jobs (
           id bigint generated always as identity primary key,
           kind text not null,
           payload jsonb not null,
           status text not null default 'waiting',
           avail_at timestamptz not null default now(),
           attempts integer not null default 0,
           created_at timestamptz not null default now());
         create index bare_to_claim on bare_jobs (avail_at, id) where status = 'waiting';
         create table bare_done (
           id bigint primary key,
           kind text not null,
           attempts integer not null,
           created_at timestamptz not null,
           finished_at timestamptz not null default now())",
    )
    .execute(&mut conn)
    .await?;
    Ok(conn.close().await?)
}

async fn enqueue(url: String, n: usize) -> Result<Duration> {
    let mut conn = PgConnection::connect(&url).await?;
    let lines: String = (0..n).map(|n| format!("noop\t{{\"n\": {n}}}\n")).collect();
    let started = Instant::now();
    let mut copy = conn.copy_in_raw("copy bare_jobs (kind, payload) from stdin").await?;
    for part in lines.as_bytes().chunks(1 << 16) {
        copy.send(part).await?;
    }
    copy.finish().await?;
    let took = started.elapsed();
    conn.close().await?;
    Ok(took)
}

async fn drain(url: String, n: usize) -> Result<Drained> {
    let started = Instant::now();
    let loops = (0..CONNECTIONS).map(|_| tokio::spawn(one(url.clone())));
    let mut done = 0;
    for moved in futures::future::join_all(loops).await {
        done += moved??;
    }
    let total = started.elapsed();
    anyhow::ensure!(done == n, "moved {done} of {n} jobs");
    Ok(Drained {
        total,
        ..Drained::default()
    })
}

async fn one(url: String) -> Result<usize> {
    let mut conn = PgConnection::connect(&url).await?;
    let mut moved = 0;
    loop {
        let rows = sqlx::query(
            "with due as materialized (
               select id from bare_jobs where status = 'waiting' and avail_at <= now() order by avail_at, id limit 500 for update skip locked)
             update bare_jobs j set status = 'running', attempts = j.attempts + 1 from due where j.id = due.id returning j.id, j.payload",
        )
        .fetch_all(&mut conn)
        .await?;
        if rows.is_empty() {
            conn.close().await?;
            return Ok(moved);
        }
        let ids = rows.iter().map(|r| r.try_get::<i64, _>("id")).collect::<Result<Vec<_>, _>>()?;
        moved += usize::try_from(
            sqlx::query(
                "with gone as (delete from bare_jobs where id = any ($1) returning id, kind, attempts, created_at)
                 insert into bare_done (id, kind, attempts, created_at) select id, kind, attempts, created_at from gone",
            )
            .bind(&ids)
            .execute(&mut conn)
            .await?
            .rows_affected(),
        )?;
    }
}
