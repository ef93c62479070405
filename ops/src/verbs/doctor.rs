//! `doctor`: one line per thing that must be well, and what to do where it is not.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use queue_schema::{Db, JobKind, capability, endpoint, job, worker};
use serde::Serialize;

use super::ctx::{Ctx, FINDINGS, span};

/// Is everything well? One line each, and what to do
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  steadfast doctor\n  steadfast doctor --round-trip     # a job that does nothing goes through the queue\n  steadfast doctor --json\n\nExit code 0: all well; 4: there is something to do."
)]
pub(crate) struct Args {
    /// Send a job that does nothing through the queue and say how long it took
    #[arg(long)]
    round_trip: bool,
}

#[derive(Debug, Serialize)]
struct Finding {
    what: String,
    /// ok, warn, fail
    state: &'static str,
    say: String,
}

pub(crate) async fn run(args: Args, ctx: &Ctx) -> Result<ExitCode> {
    let mut all = Vec::new();
    let mut add = |what: &str, state: &'static str, say: String| {
        all.push(Finding {
            what: what.to_owned(),
            state,
            say,
        })
    };
    let db = ctx.db()?;
    match db.server().await {
        Ok(s) => {
            let vectors = if s.pgvector {
                "pgvector"
            } else {
                "no pgvector: sign bits and exact re-rank"
            };
            add("database", "ok", format!("Postgres {}, {vectors}", s.version));
            look(&db, &mut add).await?;
            if args.round_trip {
                match round_trip(&db).await {
                    Ok(took) => add("round trip", "ok", format!("a job that does nothing took {}", span(took))),
                    Err(error) => add("round trip", "fail", format!("{error:#}")),
                }
            }
        }
        Err(error) => add(
            "database",
            "fail",
            format!("does not answer ({error}): is it running, and is the address right?"),
        ),
    }
    match ctx.url() {
        Ok(url) => {
            let http = reqwest::Client::builder().timeout(Duration::from_secs(5)).no_proxy().build()?;
            match http.get(format!("{url}/health/ready")).send().await {
                Ok(a) if a.status().is_success() => add("API", "ok", format!("{url} is ready: database and blob store answer it")),
                Ok(a) => add(
                    "API",
                    "fail",
                    format!(
                        "{url} is not ready ({}): {}",
                        a.status(),
                        a.text().await.unwrap_or_default().chars().take(200).collect::<String>()
                    ),
                ),
                Err(_) => add("API", "fail", format!("{url} does not answer: is `ops/up` running?")),
            }
        }
        Err(error) => add("API", "warn", format!("{error:#}")),
    }
    let bad = all.iter().any(|f| f.state != "ok");
    if ctx.json {
        ctx.show(&all)?;
    } else {
        for f in &all {
            println!("{:<5} {:<18} {}", f.state, f.what, f.say);
        }
    }
    Ok(if bad { ExitCode::from(FINDINGS) } else { ExitCode::SUCCESS })
}

async fn look(db: &Db, add: &mut impl FnMut(&str, &'static str, String)) -> Result<()> {
    let workers = worker::list(db).await?;
    let alive: Vec<_> = workers.iter().filter(|w| w.lost_at.is_none() && w.silent_seconds < 60.0).collect();
    let unserved: Vec<&str> = JobKind::ALL
        .map(JobKind::as_str)
        .into_iter()
        .filter(|k| !alive.iter().any(|w| w.kinds.iter().any(|x| x == k)))
        .collect();
    match (alive.len(), unserved.as_slice()) {
        (0, _) => add(
            "workers",
            "fail",
            "none is alive: start steadfast-worker; what is handed in waits until then".to_owned(),
        ),
        (n, []) => add("workers", "ok", format!("{n} alive")),
        (n, kinds) => add(
            "workers",
            "warn",
            format!("{n} alive, but none works on {}: check their --kinds", kinds.join(", ")),
        ),
    }
    let late: i64 = worker::late_settles(db).await?;
    if late > 0 {
        add(
            "late settlements",
            "warn",
            format!(
                "{late} came after their lease was lost and were refused: nothing was written twice, but a worker stalls or its network does"
            ),
        );
    }
    for b in capability::list(db).await? {
        let whom = b.tenant_id.map_or_else(String::new, |t| format!(" (tenant {t})"));
        if b.enabled {
            add(&format!("breaker {}{whom}", b.name), "ok", "on".to_owned());
        } else {
            add(
                &format!("breaker {}{whom}", b.name),
                "fail",
                format!(
                    "off by {}: {}; {} jobs are held; once fixed: steadfast breaker on {}",
                    b.changed_by.unwrap_or_default(),
                    b.reason.unwrap_or_default(),
                    b.held_count,
                    b.name
                ),
            );
        }
    }
    for e in endpoint::list(db).await? {
        if e.enabled && e.outage_streak > 0 {
            add(
                &format!("endpoint {}", e.name),
                "warn",
                format!(
                    "does not answer; it is asked again by itself, or now: steadfast endpoint clear {}",
                    e.name
                ),
            );
        }
    }
    for c in job::counts(db).await? {
        if c.dead + c.parked > 0 {
            add(
                &format!("{} jobs", c.kind),
                "warn",
                format!("{} dead, {} parked: steadfast jobs ls --status dead", c.dead, c.parked),
            );
        }
        let oldest = Duration::from_secs_f64(c.oldest_seconds.unwrap_or(0.0).max(0.0));
        if c.due > 0 && oldest > Duration::from_secs(3600) {
            add(
                &format!("{} jobs", c.kind),
                "warn",
                format!(
                    "{} due, the oldest since {}: too few workers, or an endpoint that is down",
                    c.due,
                    span(oldest)
                ),
            );
        }
    }
    Ok(())
}

async fn round_trip(db: &Db) -> Result<Duration> {
    let scope = queue_schema::job::NewJob::new(JobKind::Noop, house_tenant(db).await?);
    let began = std::time::Instant::now();
    let mut tx = db.begin().await?;
    let id = job::enqueue(&mut tx, &scope)
        .await?
        .ok_or_else(|| anyhow::anyhow!("the job was not taken"))?;
    Db::commit(tx).await?;
    let hinter = queue_schema::hint::Hinter::start(db.clone());
    hinter.wake(JobKind::Noop, JobKind::Noop.lane());
    while began.elapsed() < Duration::from_secs(30) {
        let mut conn = db.begin().await?;
        if job::find(&mut conn, id).await?.is_some_and(|j| j.status == "done") {
            return Ok(began.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    anyhow::bail!("job {id} was not done within 30 s: no worker takes it")
}

async fn house_tenant(db: &Db) -> Result<i64> {
    Ok(queue_schema::schedule::house_tenant(db).await?)
}
