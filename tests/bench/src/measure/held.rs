//! Work that is held: what a flip costs with 100,000 jobs behind it, what a settled failure costs beside a settled success, and what an
//! isolated child costs before it does anything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use queue_schema::capability::{self, Off};
use queue_schema::claim::{self, Taker};
use queue_schema::outcome::{Outcome, RetryClass};
use queue_schema::retry::Pace;
use queue_schema::{Db, JobKind, worker};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::Bench;
use crate::facts;
use crate::peers::ours;
use crate::report::{Aim, Section};
use crate::stat::{percentile, range, ratios, show};

const HELD: usize = 100_000;
const FLIPS: usize = 20;
const SETTLES: usize = 300;
const CHILDREN: usize = 20;

pub async fn run(bench: &Bench) -> Result<Section> {
    let mut section = Section::new(
        "Held work",
        format!(
            "`breaker off` and `breaker on` with {HELD} jobs held, commit included, {FLIPS} of each a round; {SETTLES} settlements of one job each, as done \
             and as an item's own failure, in turn; {CHILDREN} starts of `steadfast-worker run-child` until it has read a job that does nothing and answered. \
             Milliseconds, median (least–greatest) of {} rounds.",
            bench.rounds
        ),
        &["what", "p50 ms", "p95 ms", "ratio"],
    );
    flips(bench, &mut section).await?;
    settlements(bench, &mut section).await?;
    children(bench, &mut section).await?;
    Ok(section)
}

async fn execute(url: &str, sql: &str) -> Result<()> {
    let mut conn = PgConnection::connect(url).await?;
    for statement in sql.split(';').map(str::trim).filter(|s| !s.is_empty()) {
        sqlx::query(AssertSqlSafe(statement)).execute(&mut conn).await?;
    }
    Ok(conn.close().await?)
}

async fn flips(bench: &Bench, section: &mut Section) -> Result<()> {
    let url = bench.server.fresh("bench_flip").await?;
    ours::prepare(url.clone()).await?;
    execute(
        &url,
        &format!(
            "insert into users (tenant_id, name) select 1, 'u' || g from generate_series(1, 1000) g;
             insert into lines (kind, lane, tenant_id, level, capability) values ('embed', 'batch', 1, 1, 'embedding');
             insert into jobs (line_id, tenant_id, user_id, kind) select 1, 1, (select min(id) from users) + g % 1000, 'embed' from generate_series(1, {HELD}) g;
             vacuum analyze jobs"
        ),
    )
    .await?;
    let db = worker::open(&url, 2)?;
    let places: &str = "select md5(string_agg(ctid::text || xmin::text, ',' order by id)) from jobs where kind = 'embed'";
    let before: String = sqlx::query_scalar(places).fetch_one(db.pool()).await?;
    let (mut off_p50, mut off_p95, mut on_p50, mut on_p95) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        facts::quiet(bench.patience).await;
        let (mut offs, mut ons) = (Vec::new(), Vec::new());
        for _ in 0..FLIPS {
            let started = Instant::now();
            let mut tx = db.begin().await?;
            let off = Off {
                name: "embedding",
                tenant_id: None,
                actor: "bench",
                reason: "measured",
                quiet: false,
                annotate: false,
            };
            let flipped = capability::off(&mut tx, &off).await?;
            Db::commit(tx).await?;
            offs.push(started.elapsed().as_secs_f64() * 1000.0);
            ensure!(flipped.is_some_and(|f| f.flipped.changed), "it was not turned off");
            let started = Instant::now();
            let mut tx = db.begin().await?;
            let flipped = capability::on(&mut tx, "embedding", None, "bench", "measured", false).await?;
            Db::commit(tx).await?;
            ons.push(started.elapsed().as_secs_f64() * 1000.0);
            ensure!(flipped.is_some_and(|f| f.flipped.changed), "it was not turned on");
        }
        off_p50.push(percentile(&offs, 0.5));
        off_p95.push(percentile(&offs, 0.95));
        on_p50.push(percentile(&ons, 0.5));
        on_p95.push(percentile(&ons, 0.95));
    }
    let after: String = sqlx::query_scalar(places).fetch_one(db.pool()).await?;
    ensure!(before == after, "a flip rewrote rows of held jobs");
    db.pool().close().await;
    bench.server.drop_database("bench_flip").await?;
    for (what, p50, p95) in [("off", &off_p50, &off_p95), ("on", &on_p50, &on_p95)] {
        section.row([format!("breaker {what}, {HELD} jobs held"), show(p50, 2), show(p95, 2), "–".to_owned()]);
        let worst = range(p95).map_or(f64::NAN, |r| r.max);
        section.aims.push(Aim::at_most(format!("breaker {what} with {HELD} held jobs, p95"), 100.0, worst, 1, " ms"));
    }
    section
        .notes
        .push(format!("No row of the {HELD} held jobs was rewritten by the flips (physical place and version of each compared)."));
    Ok(())
}

async fn settlements(bench: &Bench, section: &mut Section) -> Result<()> {
    let url = bench.server.fresh("bench_settle").await?;
    ours::prepare(url.clone()).await?;
    execute(&url, "insert into lines (kind, lane, tenant_id, level, capability) values ('embed', 'batch', 1, 1, 'embedding')").await?;
    let db = worker::open(&url, 2)?;
    let who = Taker {
        boot_id: 1,
        lease: Duration::from_secs(300),
        protocols: vec!["minilm".to_owned()],
        pace: Pace::default(),
    };
    let (mut done_p50, mut done_p95, mut failed_p50, mut failed_p95) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        facts::quiet(bench.patience).await;
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for n in 0..SETTLES * 2 {
            sqlx::query("insert into jobs (line_id, tenant_id, kind) select id, 1, 'embed' from lines where kind = 'embed'")
                .execute(db.pool())
                .await?;
            let mut claims = claim::take(&db, &who, JobKind::Embed, JobKind::Embed.lane(), 1, None).await?;
            let claim = Arc::new(claims.pop().context("there is a job to take")?);
            let outcome = if n % 2 == 0 {
                Outcome::done()
            } else {
                Outcome::failed(RetryClass::ItemError, "input_refused", "the provider refuses this input")
            };
            let started = Instant::now();
            let settled = claim::settle(&db, &[(claim, outcome)], &who.pace).await?;
            let took = started.elapsed().as_secs_f64() * 1000.0;
            ensure!(settled.ours.len() == 1, "the settlement was lost");
            if n % 2 == 0 { done.push(took) } else { failed.push(took) }
        }
        done_p50.push(percentile(&done, 0.5));
        done_p95.push(percentile(&done, 0.95));
        failed_p50.push(percentile(&failed, 0.5));
        failed_p95.push(percentile(&failed, 0.95));
    }
    db.pool().close().await;
    bench.server.drop_database("bench_settle").await?;
    let against = ratios(&failed_p50, &done_p50);
    section.row(["a settled success".to_owned(), show(&done_p50, 2), show(&done_p95, 2), "1".to_owned()]);
    section.row(["a settled failure".to_owned(), show(&failed_p50, 2), show(&failed_p95, 2), show(&against, 2)]);
    let got = range(&against).map_or(f64::NAN, |r| r.mid);
    section.aims.push(Aim::at_most("a settled failure, against a settled success", 1.3, got, 2, "×"));
    Ok(())
}

/// A job that was running when a worker died, started and finished in a process of its own; beside it the same job in the worker's.
async fn children(bench: &Bench, section: &mut Section) -> Result<()> {
    let binary = super::rest::binary(bench.worker.as_deref())?;
    let url = bench.server.fresh("bench_child").await?;
    ours::prepare(url.clone()).await?;
    execute(&url, "insert into lines (kind, lane, tenant_id, level) values ('noop', 'batch', 1, 1)").await?;
    let db = worker::open(&url, 2)?;
    let _worker = super::rest::start(&url, &binary, None, &["--kinds", "noop"]).await?;
    let (mut inside, mut apart) = (Vec::new(), Vec::new());
    let (mut apart_p50, mut apart_p95, mut extra) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        facts::quiet(bench.patience).await;
        inside.clear();
        apart.clear();
        for n in 0..CHILDREN * 2 {
            let crashes = i32::from(n % 2 == 1);
            let id: i64 = sqlx::query_scalar(
                "insert into jobs (line_id, tenant_id, kind, crashes, attempts) select id, 1, 'noop', $1, $1 from lines where kind = 'noop' returning id",
            )
            .bind(crashes)
            .fetch_one(db.pool())
            .await?;
            sqlx::query("select pg_notify('steadfast_jobs', 'noop:batch')").execute(db.pool()).await?;
            let until = Instant::now() + Duration::from_secs(30);
            let took: f64 = loop {
                let done: Option<f64> =
                    sqlx::query_scalar("select extract(epoch from finished_at - started_at)::float8 * 1000 from jobs_done where id = $1 and status = 'done'")
                        .bind(id)
                        .fetch_optional(db.pool())
                        .await?;
                match done {
                    Some(took) => break took,
                    None => ensure!(Instant::now() < until, "job {id} did not come back within 30 s"),
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            };
            if crashes == 1 { apart.push(took) } else { inside.push(took) }
        }
        apart_p50.push(percentile(&apart, 0.5));
        apart_p95.push(percentile(&apart, 0.95));
        extra.push(percentile(&apart, 0.5) - percentile(&inside, 0.5));
    }
    db.pool().close().await;
    section.row([
        "a job in an isolated child, from its claim to its settlement".to_owned(),
        show(&apart_p50, 1),
        show(&apart_p95, 1),
        format!("{} ms more than in the worker", show(&extra, 1)),
    ]);
    let got = range(&extra).map_or(f64::NAN, |r| r.mid);
    section
        .aims
        .push(Aim::at_most("an isolated child, started, heard and settled, over the same job inside", 50.0, got, 1, " ms"));
    Ok(())
}
