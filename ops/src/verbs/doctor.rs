//! `doctor`: one line per thing that must be well, and what to do where it is not.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use queue_schema::diagnostics::WORKER_ALIVE;
use queue_schema::{Db, DbError, JobKind, capability, endpoint, job, worker};
use serde::Serialize;

use super::ctx::{Ctx, FINDINGS, is_unmigrated, plain, say, span};

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

impl Finding {
    fn new(what: impl Into<String>, state: &'static str, say: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            state,
            say: say.into(),
        }
    }
}

pub(crate) async fn run(args: Args, ctx: &Ctx) -> Result<ExitCode> {
    let mut all = Vec::new();
    // Whatever fails is a line, never the end: the other checks may say why.
    match database(ctx, &mut all).await {
        Ok(db) => {
            if let Err(error) = look(&db, &mut all).await {
                let hint = if is_unmigrated(&error) { ": run `steadfast migrate`" } else { "" };
                all.push(Finding::new("queue", "fail", format!("cannot be looked at: {error}{hint}")));
            }
            if args.round_trip {
                all.push(match round_trip(&db).await {
                    Ok(took) => Finding::new("round trip", "ok", format!("a job that does nothing took {}", span(took))),
                    Err(error) => Finding::new("round trip", "fail", format!("{error:#}")),
                });
            }
        }
        Err(error) => {
            all.push(Finding::new("database", "fail", crate::in_one_line(&error)));
            if args.round_trip {
                all.push(Finding::new("round trip", "fail", "needs the database"));
            }
        }
    }
    all.push(api(ctx).await);
    let bad = all.iter().any(|f| f.state != "ok");
    if ctx.json {
        ctx.show(&all)?;
    } else {
        let wide = all.iter().map(|f| f.what.chars().count()).max().unwrap_or(0);
        for f in &all {
            say(plain(&format!("{:<5} {:<wide$}  {}", f.state, f.what, f.say)));
        }
    }
    Ok(if bad { ExitCode::from(FINDINGS) } else { ExitCode::SUCCESS })
}

/// The database answers, is new enough and migrated.
async fn database(ctx: &Ctx, all: &mut Vec<Finding>) -> Result<Db> {
    let db = ctx.db().await?;
    let server = db.server().await?;
    let vectors = if server.pgvector {
        "pgvector"
    } else {
        "no pgvector: sign bits and exact re-rank"
    };
    all.push(if server.version < 15 {
        Finding::new("database", "fail", format!("Postgres {}: 15 or newer is needed", server.version))
    } else {
        Finding::new("database", "ok", format!("Postgres {}, {vectors}", server.version))
    });
    Ok(db)
}

async fn api(ctx: &Ctx) -> Finding {
    let url = match ctx.url() {
        Ok(url) => url,
        Err(error) => return Finding::new("API", "warn", format!("not asked: {}", crate::in_one_line(&error))),
    };
    let asked = async {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(5)).no_proxy().build()?;
        http.get(format!("{url}/health/ready")).send().await
    };
    match asked.await {
        Ok(a) if a.status().is_success() => Finding::new("API", "ok", format!("{url} is ready: database and blob store answer it")),
        Ok(a) => {
            let status = a.status();
            let body: String = a.text().await.unwrap_or_default().chars().take(200).collect();
            Finding::new("API", "fail", format!("{url} is not ready ({status}): {body}"))
        }
        Err(_) => Finding::new(
            "API",
            "fail",
            format!("{url} does not answer: is `ops/up` running, and is the address right?"),
        ),
    }
}

async fn look(db: &Db, all: &mut Vec<Finding>) -> Result<(), DbError> {
    let workers = worker::list(db).await?;
    let alive: Vec<&[String]> = workers
        .iter()
        .filter(|w| w.lost_at.is_none() && w.silent_seconds < WORKER_ALIVE.as_secs_f64())
        .map(|w| w.kinds.as_slice())
        .collect();
    all.push(staffed(&alive));
    let late: i64 = worker::late_settles(db).await?;
    if late > 0 {
        all.push(Finding::new(
            "late settlements",
            "warn",
            format!(
                "{late} came after their lease was lost and were refused: nothing was written twice, but a worker stalls or its network does; \
                 which one: steadfast workers"
            ),
        ));
    }
    for b in capability::list(db).await? {
        let (whom, flag) = b
            .tenant_id
            .map_or_else(Default::default, |t| (format!(" (tenant {t})"), format!(" --tenant {t}")));
        let what = format!("breaker {}{whom}", b.name);
        all.push(if b.enabled {
            Finding::new(what, "ok", "on")
        } else {
            Finding::new(
                what,
                "warn",
                format!(
                    "off by {}: {}; {} held; once that is fixed: steadfast breaker on {}{flag}",
                    b.changed_by.as_deref().unwrap_or("nobody known"),
                    b.reason.as_deref().unwrap_or("no reason given"),
                    jobs(b.held_count),
                    b.name
                ),
            )
        });
    }
    let endpoints = endpoint::list(db).await?;
    for capability in JobKind::ALL.iter().filter_map(|k| k.capability()).collect::<BTreeSet<_>>() {
        if !endpoints.iter().any(|e| e.enabled && e.capability == capability) {
            all.push(Finding::new(
                format!("endpoints {capability}"),
                "fail",
                "none is on, so nothing can be asked: steadfast endpoint on NAME, or steadfast endpoint set",
            ));
        }
    }
    for e in endpoints.iter().filter(|e| e.enabled && e.outage_streak > 0) {
        all.push(Finding::new(
            format!("endpoint {}", e.name),
            "warn",
            format!(
                "does not answer; it is asked again by itself, or now: steadfast endpoint clear {}",
                e.name
            ),
        ));
    }
    queue(&job::counts(db).await?, all);
    Ok(())
}

/// Whether every kind has somebody who works on it.
fn staffed(alive: &[&[String]]) -> Finding {
    let unserved: Vec<&str> = JobKind::ALL
        .map(JobKind::as_str)
        .into_iter()
        .filter(|kind| !alive.iter().any(|kinds| kinds.iter().any(|k| k == kind)))
        .collect();
    match (alive.len(), unserved.as_slice()) {
        (0, _) => Finding::new(
            "workers",
            "fail",
            "none is alive: start steadfast-worker; what is handed in waits until then",
        ),
        (n, []) => Finding::new("workers", "ok", format!("{n} alive, every kind is worked on")),
        (n, kinds) => Finding::new(
            "workers",
            "fail",
            format!("{n} alive, but none works on {}: check their --kinds", kinds.join(", ")),
        ),
    }
}

/// What waits, and what waits for a person.
fn queue(counts: &[job::Counts], all: &mut Vec<Finding>) {
    let sum = |f: fn(&job::Counts) -> i64| counts.iter().map(f).sum::<i64>();
    let oldest = counts.iter().filter_map(|c| c.oldest_seconds).fold(0.0, f64::max);
    let waits = if oldest > 0.0 {
        format!("; the oldest waits since {}", span(Duration::from_secs_f64(oldest)))
    } else {
        String::new()
    };
    all.push(Finding::new(
        "queue",
        "ok",
        format!(
            "{} due, {} backing off, {} held, {} running{waits}",
            sum(|c| c.due),
            sum(|c| c.backing_off),
            sum(|c| c.held),
            sum(|c| c.running)
        ),
    ));
    for c in counts {
        if c.dead + c.parked > 0 {
            let states = [(c.dead, "dead"), (c.parked, "parked")].into_iter().filter(|(n, _)| *n > 0);
            let told: Vec<String> = states.clone().map(|(n, state)| format!("{n} {state}")).collect();
            let looks: Vec<String> = states
                .map(|(_, state)| format!("steadfast jobs ls --kind {} --status {state}", c.kind))
                .collect();
            all.push(Finding::new(
                format!("{} jobs", c.kind),
                "warn",
                format!("{}: {}; then retry or cancel them", told.join(", "), looks.join(", ")),
            ));
        }
        let oldest = Duration::from_secs_f64(c.oldest_seconds.unwrap_or(0.0).max(0.0));
        if c.due > 0 && oldest > LONG {
            all.push(Finding::new(
                format!("{} jobs", c.kind),
                "warn",
                format!(
                    "{} due, the oldest since {}: too few workers, or an endpoint that is down",
                    c.due,
                    span(oldest)
                ),
            ));
        }
    }
}

/// Work that was due for longer than this is a matter of too few hands.
const LONG: Duration = Duration::from_secs(3600);

fn jobs(n: i64) -> String {
    if n == 1 { "1 job is".to_owned() } else { format!("{n} jobs are") }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_nobody_works_on_is_found() {
        let of = |kinds: &[JobKind]| kinds.iter().map(|k| k.as_str().to_owned()).collect::<Vec<_>>();
        assert_eq!(staffed(&[]).state, "fail");
        assert_eq!(staffed(&[&of(&JobKind::ALL)]).state, "ok");
        let (a, b) = (of(&[JobKind::Ocr]), of(&[JobKind::Extract, JobKind::Embed]));
        let half = staffed(&[&a, &b]);
        assert_eq!(half.state, "fail");
        assert!(half.say.contains("none works on question, retention, noop"), "{}", half.say);
    }

    #[test]
    fn the_queue_is_summed_and_the_dead_are_named() {
        let counts = |dead, parked, oldest| job::Counts {
            kind: "ocr".to_owned(),
            due: 2,
            backing_off: 1,
            held: 0,
            running: 0,
            parked,
            dead,
            oldest_seconds: oldest,
        };
        let told = |c: job::Counts| {
            let mut all = Vec::new();
            queue(&[c], &mut all);
            all
        };
        let well = told(counts(0, 0, Some(192.0)));
        assert_eq!(well.len(), 1);
        assert_eq!(
            well[0].say,
            "2 due, 1 backing off, 0 held, 0 running; the oldest waits since 3m 12s"
        );
        let bad = told(counts(3, 0, Some(7200.0)));
        assert_eq!(bad.iter().filter(|f| f.state == "warn").count(), 2);
        assert!(
            bad[1].say.starts_with("3 dead: steadfast jobs ls --kind ocr --status dead"),
            "{}",
            bad[1].say
        );
    }
}
