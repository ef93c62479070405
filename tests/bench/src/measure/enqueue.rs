//! What the product's bulk enqueue adds to COPY itself.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::Result;
use queue_schema::job::{self, NewJob};
use queue_schema::{Db, JobKind, Role};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::Bench;
use crate::facts;
use crate::peers::ours::{self, TENANT};
use crate::report::{Aim, Section};
use crate::stat::{number, range, ratios, show};

const ONE_BY_ONE: usize = 2000;

pub async fn run(bench: &Bench) -> Result<Section> {
    let url = bench.server.fresh("bench_enqueue").await?;
    ours::prepare(url.clone()).await?;
    let mut conn = PgConnection::connect(&url).await?;
    let line = job::line(&mut conn, JobKind::Noop, JobKind::Noop.lane(), TENANT, 1).await?;
    for (table, keys) in [
        ("bare_copy", ""),
        (
            "bare_copy_keys",
            ", foreign key (line_id) references lines, foreign key (tenant_id) references tenants",
        ),
    ] {
        // The same columns, defaults, checks and indexes; the second with the foreign keys that the first leaves out.
        let sql = format!("create table {table} (like jobs including all{keys})");
        sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await?;
    }
    // What our call sends, made beforehand: the bare rows pay for the database alone.
    let mut lines = String::new();
    for n in 0..bench.jobs {
        let _ = writeln!(lines, "{line}\t{TENANT}\t\\N\t\\N\tnoop\t5\t{}", ours::payload(n));
    }
    let (mut bare, mut keyed, mut bulk, mut single) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let jobs = bench.jobs as f64;
    for round in 0..bench.rounds {
        eprintln!("  round {} of {}", round + 1, bench.rounds);
        for turn in 0..3 {
            sqlx::raw_sql("truncate jobs, bare_copy, bare_copy_keys; checkpoint")
                .execute(&mut conn)
                .await?;
            facts::quiet(bench.patience).await;
            match (turn + round) % 3 {
                0 => bare.push(jobs / copy(&mut conn, "bare_copy", &lines).await?),
                1 => keyed.push(jobs / copy(&mut conn, "bare_copy_keys", &lines).await?),
                _ => {
                    let started = Instant::now();
                    let mut tx = conn.begin().await?;
                    job::enqueue_bulk(&mut tx, &NewJob::new(JobKind::Noop, TENANT), (0..bench.jobs).map(ours::payload)).await?;
                    tx.commit().await?;
                    bulk.push(jobs / started.elapsed().as_secs_f64());
                }
            }
        }
        let started = Instant::now();
        for n in 0..ONE_BY_ONE {
            let mut tx = conn.begin().await?;
            job::enqueue(
                &mut tx,
                &NewJob {
                    payload: ours::payload(n),
                    ..NewJob::new(JobKind::Noop, TENANT)
                },
            )
            .await?;
            tx.commit().await?;
        }
        single.push(ONE_BY_ONE as f64 / started.elapsed().as_secs_f64());
    }
    conn.close().await?;

    let mut section = Section::new(
        "Bulk enqueue",
        format!(
            "{} jobs in one transaction into an empty table; median (least–greatest) of {} rounds. The bare rows send lines that were made \
             beforehand; ours makes them from JSON values meanwhile.",
            number(jobs, 0),
            bench.rounds
        ),
        &["way", "jobs/s", "÷ bare COPY", "÷ bare COPY with the foreign keys"],
    );
    for (name, v) in [
        ("bare COPY into the same columns, checks and indexes", &bare),
        ("bare COPY, with the foreign keys too", &keyed),
        ("steadfast, `job::enqueue_bulk`", &bulk),
    ] {
        section.row([name.to_owned(), show(v, 0), show(&ratios(v, &bare), 2), show(&ratios(v, &keyed), 2)]);
    }
    section.row([
        "steadfast, one transaction each".to_owned(),
        show(&single, 0),
        "–".into(),
        "–".into(),
    ]);
    let ratio = range(&ratios(&bulk, &keyed)).map_or(f64::NAN, |r| r.mid);
    section
        .aims
        .push(Aim::at_least("bulk enqueue, against COPY into the same table shape", 0.7, ratio, 2));
    for (role, name) in [(Role::Worker, "worker"), (Role::Api, "api")] {
        if let Err(error) = as_role(&url, role).await {
            section
                .notes
                .push(format!("`enqueue_bulk` does not work in the {name}'s role: {error}."));
        }
    }
    bench.server.drop_database("bench_enqueue").await?;
    Ok(section)
}

/// Seconds that one COPY and its commit took.
async fn copy(conn: &mut PgConnection, table: &str, lines: &str) -> Result<f64> {
    let sql = format!("copy {table} (line_id, tenant_id, user_id, root_id, kind, max_charged, payload) from stdin");
    let started = Instant::now();
    let mut tx = conn.begin().await?;
    let mut copy = tx.copy_in_raw(&sql).await?;
    for part in lines.as_bytes().chunks(1 << 16) {
        copy.send(part).await?;
    }
    copy.finish().await?;
    tx.commit().await?;
    Ok(started.elapsed().as_secs_f64())
}

async fn as_role(url: &str, role: Role) -> Result<()> {
    let db = Db::open(url, role, 1, "bench-role")?;
    let mut tx = db.begin().await?;
    sqlx::query("select set_config('steadfast.tenant', $1, true)")
        .bind(TENANT.to_string())
        .execute(&mut *tx)
        .await?;
    job::enqueue_bulk(&mut tx, &NewJob::new(JobKind::Noop, TENANT), (0..10).map(ours::payload)).await?;
    tx.commit().await?;
    db.pool().close().await;
    Ok(())
}
