//! `jobs`: what is to be done, how it goes, and why it waits.

use std::process::ExitCode;

use anyhow::{Result, bail};
use chrono::{DateTime, Utc};
use clap::Subcommand;
use queue_schema::capability;
use queue_schema::job::{self, Filter, JobRow};
use serde_json::json;

use super::ctx::{Ctx, NOTHING_FOUND, actor, ago, span};

/// Look at jobs, try them again, cancel them
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  steadfast jobs ls --status dead\n  steadfast jobs ls --held --kind ocr\n  steadfast jobs show 42\n  steadfast jobs retry 42 --reason \"provider fixed\"\n  steadfast jobs retry --all-dead --kind ocr --reason \"new engine\" --yes\n  steadfast jobs cancel 42 --reason \"not wanted\" --yes\n  steadfast jobs stats"
)]
pub(crate) enum Verb {
    /// Live jobs, newest first
    Ls {
        #[arg(long, value_parser = ["waiting", "running", "parked", "dead"])]
        status: Option<String>,
        #[arg(long)]
        kind: Option<String>,
        /// Only those behind a breaker that is off
        #[arg(long)]
        held: bool,
        /// Finished ones instead
        #[arg(long, conflicts_with_all = ["status", "held"])]
        done: bool,
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
        /// Only those before this id: the next page
        #[arg(long)]
        before: Option<i64>,
    },
    /// One job: its row, its lost attempts, and what it waits for
    Show { id: i64 },
    /// Make jobs due now, with a full budget; clears a backoff, revives dead and parked ones
    Retry {
        #[arg(required_unless_present = "all_dead")]
        ids: Vec<i64>,
        /// Every dead or parked job (of --kind)
        #[arg(long, conflicts_with = "ids")]
        all_dead: bool,
        #[arg(long, requires = "all_dead")]
        kind: Option<String>,
        /// Also those that cannot succeed as they are: crash, unreadable file, too long
        #[arg(long)]
        force: bool,
        #[arg(long)]
        reason: String,
        #[arg(long, short)]
        yes: bool,
    },
    /// End jobs; a running one stops within a poll
    Cancel {
        #[arg(required = true)]
        ids: Vec<i64>,
        #[arg(long)]
        reason: String,
        #[arg(long, short)]
        yes: bool,
    },
    /// How many of each kind are due, held, running, dead
    Stats,
}

pub(crate) async fn run(verb: Verb, ctx: &Ctx) -> Result<ExitCode> {
    match verb {
        Verb::Ls {
            status,
            kind,
            held,
            done,
            limit,
            before,
        } => {
            let filter = Filter {
                status,
                kind,
                before,
                held: held.then_some(true),
                user_id: None,
                limit,
            };
            list(ctx, &filter, done).await
        }
        Verb::Show { id } => show(ctx, id).await,
        Verb::Retry {
            ids,
            all_dead,
            kind,
            force,
            reason,
            yes,
        } => retry(ctx, ids, all_dead, kind, force, &reason, yes).await,
        Verb::Cancel { ids, reason, yes } => cancel(ctx, &ids, &reason, yes).await,
        Verb::Stats => stats(ctx).await,
    }
}

async fn list(ctx: &Ctx, filter: &Filter, done: bool) -> Result<ExitCode> {
    let db = ctx.db()?;
    let mut tx = db.begin().await?;
    let rows = if done {
        job::list_done(&mut tx, filter).await?
    } else {
        job::list(&mut tx, filter).await?
    };
    if ctx.json {
        ctx.show(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    if rows.is_empty() {
        eprintln!("no such jobs");
        return Ok(ExitCode::from(NOTHING_FOUND));
    }
    let now = db.now().await?;
    let full = i64::try_from(rows.len()).unwrap_or(0) == filter.limit;
    let last = rows.last().map(|r| r.id);
    let table = rows
        .iter()
        .map(|r| {
            vec![
                r.id.to_string(),
                r.kind.clone(),
                r.hold.as_ref().map_or_else(|| r.status.clone(), |h| format!("held ({h})")),
                format!("{} ({} forgiven)", r.attempts, r.forgiven),
                waits(r, now),
                r.last_class.clone().unwrap_or_default(),
                ago(now, r.created_at),
            ]
        })
        .collect();
    ctx.table(&["job", "kind", "state", "attempts", "when", "last failure", "asked for"], table);
    if full && let Some(last) = last {
        eprintln!("more: add --before {last}");
    }
    Ok(ExitCode::SUCCESS)
}

/// When something happens to it next, in a few words.
fn waits(r: &JobRow, now: DateTime<Utc>) -> String {
    match r.status.as_str() {
        "waiting" if r.avail_at <= now => "due".to_owned(),
        "waiting" => format!("due {}", ago(now, r.avail_at)),
        "running" => format!("lease ends {}", ago(now, r.avail_at)),
        "parked" | "dead" => "needs `jobs retry`".to_owned(),
        _ => r.finished_at.map_or_else(String::new, |at| ago(now, at)),
    }
}

async fn show(ctx: &Ctx, id: i64) -> Result<ExitCode> {
    let db = ctx.db()?;
    let mut tx = db.begin().await?;
    let Some(r) = job::find(&mut tx, id).await? else {
        bail!("there is no job {id}")
    };
    let attempts = job::attempts(&mut tx, id).await?;
    let now = db.now().await?;
    let why = why(&db, &r, now).await?;
    if ctx.json {
        ctx.show(&json!({ "job": r, "attempts": attempts, "why": why }))?;
        return Ok(ExitCode::SUCCESS);
    }
    println!("job {} · {} · {}", r.id, r.kind, r.status);
    println!("  {why}");
    println!(
        "  asked for {}; attempts {}, of which {} forgiven",
        ago(now, r.created_at),
        r.attempts,
        r.forgiven
    );
    if let Some(item) = r.item_id {
        println!(
            "  about item {item}, version {}{}",
            r.item_version,
            r.root_id.map_or_else(String::new, |root| format!("; part of job {root}"))
        );
    }
    if let Some(class) = &r.last_class {
        println!(
            "  last failure: {class}{} {}",
            r.last_cause.as_ref().map_or_else(String::new, |c| format!(" ({c})")),
            r.last_error.as_deref().unwrap_or("")
        );
    }
    if !attempts.is_empty() {
        println!();
        let rows = attempts
            .into_iter()
            .map(|a| {
                let ran = a
                    .started_at
                    .map_or_else(|| "not started".to_owned(), |s| span((a.ended_at - s).to_std().unwrap_or_default()));
                vec![
                    a.attempt.to_string(),
                    a.class,
                    a.cause.unwrap_or_default(),
                    if a.forgiven { "forgiven" } else { "charged" }.to_owned(),
                    ran,
                    ago(now, a.ended_at),
                    a.error.unwrap_or_default(),
                ]
            })
            .collect();
        ctx.table(&["attempt", "class", "cause", "counts as", "ran", "ended", "said"], rows);
    }
    Ok(ExitCode::SUCCESS)
}

/// One sentence: what it waits for, or how it ended.
async fn why(db: &queue_schema::Db, r: &JobRow, now: DateTime<Utc>) -> Result<String> {
    if let Some(hold) = &r.hold {
        let breaker = capability::list(db).await?.into_iter().find(|b| &b.name == hold && !b.enabled);
        return Ok(match breaker {
            Some(b) => format!(
                "held: {hold} was turned off {} by {}: {}",
                ago(now, b.changed_at),
                b.changed_by.as_deref().unwrap_or("nobody known"),
                b.reason.as_deref().unwrap_or("no reason given")
            ),
            None => format!("held by {hold}"),
        });
    }
    Ok(match r.status.as_str() {
        "waiting" if r.avail_at <= now => {
            "due now: it waits for a free place, or for an endpoint that is up (see `steadfast endpoint ls`)".to_owned()
        }
        "waiting" => format!("backing off, due {}", ago(now, r.avail_at)),
        "running" => format!(
            "worker {} runs it since {}; its lease ends {}",
            r.claimed_by.unwrap_or(0),
            r.claimed_at.map_or_else(String::new, |at| ago(now, at)),
            ago(now, r.avail_at)
        ),
        "parked" => "set aside for a person: `steadfast jobs retry` with --reason".to_owned(),
        "dead" => {
            "dead: its budget is spent or it can never succeed as it is; `steadfast jobs retry` with --reason, perhaps --force".to_owned()
        }
        other => format!("{other} {}", r.finished_at.map_or_else(String::new, |at| ago(now, at))),
    })
}

async fn retry(ctx: &Ctx, ids: Vec<i64>, all_dead: bool, kind: Option<String>, force: bool, reason: &str, yes: bool) -> Result<ExitCode> {
    let db = ctx.db()?;
    let mut tx = db.begin().await?;
    let ids = if all_dead {
        let mut found = Vec::new();
        for status in ["dead", "parked"] {
            let filter = Filter {
                status: Some(status.to_owned()),
                kind: kind.clone(),
                limit: 100_000,
                ..Filter::default()
            };
            found.extend(job::list(&mut tx, &filter).await?.into_iter().map(|r| r.id));
        }
        if found.is_empty() {
            eprintln!("nothing is dead or parked");
            return Ok(ExitCode::from(NOTHING_FOUND));
        }
        ctx.confirm(yes, &format!("try {} jobs again", found.len()))?;
        found
    } else {
        ids
    };
    let hit = job::retry(&mut tx, &ids, &actor(), reason, force).await?;
    queue_schema::Db::commit(tx).await?;
    let hit: Vec<i64> = hit.into_iter().map(|r| r.id).collect();
    let left: Vec<i64> = ids.into_iter().filter(|id| !hit.contains(id)).collect();
    if ctx.json {
        ctx.show(&json!({ "retried": hit, "left": left }))?;
    } else {
        println!("{} due now", count(hit.len()));
        if !left.is_empty() {
            eprintln!("left alone: {left:?}: gone, running, already open again, or in need of --force (see `steadfast jobs show ID`)");
        }
    }
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn cancel(ctx: &Ctx, ids: &[i64], reason: &str, yes: bool) -> Result<ExitCode> {
    ctx.confirm(yes, &format!("cancel {}", count(ids.len())))?;
    let db = ctx.db()?;
    let mut tx = db.begin().await?;
    let hit = job::cancel(&mut tx, ids, &actor(), reason).await?;
    queue_schema::Db::commit(tx).await?;
    let left: Vec<i64> = ids.iter().copied().filter(|id| !hit.iter().any(|c| c.id == *id)).collect();
    if ctx.json {
        ctx.show(&json!({ "cancelled": hit.iter().filter(|c| !c.running).map(|c| c.id).collect::<Vec<_>>(), "asked": hit.iter().filter(|c| c.running).map(|c| c.id).collect::<Vec<_>>(), "left": left }))?;
    } else {
        for c in &hit {
            println!(
                "{} {}",
                c.id,
                if c.running {
                    "is running and was asked to stop"
                } else {
                    "is cancelled"
                }
            );
        }
        if !left.is_empty() {
            eprintln!("not live: {left:?}");
        }
    }
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn stats(ctx: &Ctx) -> Result<ExitCode> {
    let counts = job::counts(&ctx.db()?).await?;
    if ctx.json {
        ctx.show(&counts)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = counts
        .into_iter()
        .map(|c| {
            let oldest = c
                .oldest_seconds
                .map_or_else(String::new, |s| span(std::time::Duration::from_secs_f64(s.max(0.0))));
            vec![
                c.kind,
                c.due.to_string(),
                c.backing_off.to_string(),
                c.held.to_string(),
                c.running.to_string(),
                c.parked.to_string(),
                c.dead.to_string(),
                oldest,
            ]
        })
        .collect();
    ctx.table(
        &["kind", "due", "backing off", "held", "running", "parked", "dead", "oldest waits"],
        rows,
    );
    Ok(ExitCode::SUCCESS)
}

fn count(n: usize) -> String {
    if n == 1 { "1 job".to_owned() } else { format!("{n} jobs") }
}
