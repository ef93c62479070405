//! `jobs`: what is to be done, how it goes, and why it waits.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Result;
use chrono::{DateTime, Utc};
use clap::Subcommand;
use queue_schema::JobKind;
use queue_schema::capability;
use queue_schema::job::{self, Filter, JobRow, NotMoved};
use queue_schema::tenant::DEFAULT_TENANT;
use serde_json::json;

use super::ctx::{Ctx, NOTHING_FOUND, actor, ago, plain, reason, say, since, span, word};

/// Look at jobs, try them again, cancel them
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  steadfast jobs ls --status dead\n  steadfast jobs ls --held --kind ocr\n  steadfast jobs show 42\n  steadfast jobs retry 42 --reason \"provider fixed\"\n  steadfast jobs retry --all-dead --kind ocr --reason \"new engine\" --yes\n  steadfast jobs cancel 42 --reason \"not wanted\" --yes\n  steadfast jobs move 42 --space Contracts --reason \"its Space was deleted\"\n  steadfast jobs stats"
)]
pub(crate) enum Verb {
    /// Live jobs, newest first
    #[command(
        after_help = "Examples:\n  steadfast jobs ls --status dead --kind ocr\n  steadfast jobs ls --held\n  steadfast jobs ls --done --limit 10 --json"
    )]
    Ls {
        #[arg(long, value_parser = ["waiting", "running", "parked", "dead"])]
        status: Option<String>,
        #[arg(long, value_parser = kind)]
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
    /// One job: its row, its lost attempts, what it waits for, and what followed from it
    #[command(after_help = "Examples:\n  steadfast jobs show 42\n  steadfast jobs show 42 --json")]
    Show {
        /// As `jobs ls` and `add` print it
        id: i64,
    },
    /// Make jobs due now, with a full budget; clears a backoff, revives dead and parked ones
    #[command(
        after_help = "Examples:\n  steadfast jobs retry 42 43 --reason \"provider fixed\"\n  steadfast jobs retry 42 --force --reason \"file replaced\"\n  steadfast jobs retry --all-dead --kind ocr --reason \"new engine\" --yes"
    )]
    Retry {
        /// As `jobs ls` prints them
        #[arg(required_unless_present = "all_dead")]
        ids: Vec<i64>,
        /// Every dead or parked job (of --kind)
        #[arg(long, conflicts_with = "ids")]
        all_dead: bool,
        /// With --all-dead: only this kind
        #[arg(long, requires = "all_dead", value_parser = kind)]
        kind: Option<String>,
        /// Also those that cannot succeed as they are: crash, unreadable file, too long
        #[arg(long)]
        force: bool,
        /// Why, for the job's history
        #[arg(long, value_parser = reason)]
        reason: String,
        #[arg(long, short)]
        yes: bool,
    },
    /// End jobs; a running one stops within a poll
    #[command(
        after_help = "Examples:\n  steadfast jobs cancel 42 --reason \"not wanted\"\n  steadfast jobs cancel 42 43 --reason \"not wanted\" --yes"
    )]
    Cancel {
        /// As `jobs ls` prints them
        #[arg(required = true)]
        ids: Vec<i64>,
        /// Why, for the job's history
        #[arg(long, value_parser = reason)]
        reason: String,
        #[arg(long, short)]
        yes: bool,
    },
    /// Give documents a place again whose Space is gone, or whose owner was taken out of it; their work goes on
    #[command(
        name = "move",
        after_help = "Examples:\n  steadfast jobs move 42 --space Contracts --reason \"its Space was deleted\"\n  steadfast jobs move 42 43 --space 7 --reason \"owner left the team\"\n\nThe Space is one of the document's own tenant, and its owner must be a member of it. A document that has its place keeps it."
    )]
    Move {
        /// As `jobs ls --status parked` prints them
        #[arg(required = true)]
        ids: Vec<i64>,
        /// Where to, by name or id
        #[arg(long, value_parser = place)]
        space: String,
        /// Why, for the job's history
        #[arg(long, value_parser = reason)]
        reason: String,
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
        Verb::Move { ids, space, reason } => move_to(ctx, &ids, &space, &reason).await,
        Verb::Stats => stats(ctx).await,
    }
}

/// A Space as somebody may call it.
fn place(name: &str) -> Result<String, String> {
    match name.trim() {
        "" => Err("name the Space, or give its id".to_owned()),
        name if name.chars().count() > 200 => Err("no Space has so long a name".to_owned()),
        name if name.chars().any(char::is_control) => Err("a Space's name has no control characters".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// A kind by name: a typing error must not look like "there are none".
fn kind(name: &str) -> Result<String, String> {
    match JobKind::parse(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(format!(
            "there is no such kind; there are {}",
            JobKind::ALL.map(JobKind::as_str).join(", ")
        )),
    }
}

async fn list(ctx: &Ctx, filter: &Filter, done: bool) -> Result<ExitCode> {
    let db = ctx.db().await?;
    let mut tx = db.begin().await?;
    let rows = if done {
        job::list_done(&mut tx, filter).await?
    } else {
        job::list(&mut tx, filter).await?
    };
    let outcome = ExitCode::from(if rows.is_empty() { NOTHING_FOUND } else { 0 });
    if ctx.json {
        ctx.show(&rows)?;
        return Ok(outcome);
    }
    if rows.is_empty() {
        eprintln!("no such jobs");
        return Ok(outcome);
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
        "parked" if is_loose(r) => "needs `jobs move`".to_owned(),
        "parked" | "dead" => "needs `jobs retry`".to_owned(),
        _ => r.finished_at.map_or_else(String::new, |at| ago(now, at)),
    }
}

/// Whether it waits for somebody to say where it belongs.
fn is_loose(r: &JobRow) -> bool {
    r.status == "parked" && r.last_class.as_deref() == Some("place_gone")
}

/// Follow-ups of a job listed one by one; a book has more pages than a screen has lines.
const MOST_CHILDREN: i64 = 100;

async fn show(ctx: &Ctx, id: i64) -> Result<ExitCode> {
    let db = ctx.db().await?;
    let mut tx = db.begin().await?;
    let Some(r) = job::find(&mut tx, id).await? else {
        eprintln!("there is no job {id}: finished ones are kept for a while only; see `steadfast jobs ls --done`");
        return Ok(ExitCode::from(NOTHING_FOUND));
    };
    let attempts = job::attempts(&mut tx, id).await?;
    let most = if ctx.json { 100_000 } else { MOST_CHILDREN };
    let children = job::children(&mut tx, id, most + 1).await?;
    let now = db.now().await?;
    let why = why(&db, &r, now).await?;
    if ctx.json {
        ctx.show(&json!({ "job": r, "attempts": attempts, "children": children, "why": why }))?;
        return Ok(ExitCode::SUCCESS);
    }
    say(format_args!("job {} · {} · {}", r.id, r.kind, r.status));
    say(format_args!("  {why}"));
    say(format_args!(
        "  asked for {}; attempts {}, of which {} forgiven",
        since(now, r.created_at),
        r.attempts,
        r.forgiven
    ));
    if let Some(item) = r.item_id {
        say(format_args!(
            "  about item {item}, version {}{}",
            r.item_version,
            r.root_id.map_or_else(String::new, |root| format!("; part of job {root}"))
        ));
    }
    if let Some(class) = &r.last_class {
        let cause = r.last_cause.as_ref().map_or_else(String::new, |c| format!(" ({c})"));
        let error = r.last_error.as_ref().map_or_else(String::new, |e| format!(": {e}"));
        say(plain(&format!("  last failure: {class}{cause}{error}")));
    }
    if !attempts.is_empty() {
        say("");
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
    if !children.is_empty() {
        say("");
        let more = children.len() > usize::try_from(MOST_CHILDREN).unwrap_or(usize::MAX);
        let rows = children
            .into_iter()
            .take(usize::try_from(MOST_CHILDREN).unwrap_or(usize::MAX))
            .map(|c| {
                vec![
                    c.id.to_string(),
                    c.kind,
                    c.hold.map_or(c.status, |h| format!("held ({h})")),
                    c.class.unwrap_or_default(),
                    c.attempts.to_string(),
                    c.finished_at.map_or_else(String::new, |at| ago(now, at)),
                ]
            })
            .collect();
        ctx.table(&["followed by job", "kind", "state", "class", "attempts", "finished"], rows);
        if more {
            eprintln!("and more: --json lists them all");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One sentence: what it waits for, or how it ended.
async fn why(db: &queue_schema::Db, r: &JobRow, now: DateTime<Utc>) -> Result<String> {
    if let Some(hold) = &r.hold {
        let breaker = capability::list(db)
            .await?
            .into_iter()
            .find(|b| &b.name == hold && !b.enabled && b.tenant_id.is_none_or(|t| t == r.tenant_id));
        return Ok(match breaker {
            Some(b) => plain(&format!(
                "held: the breaker {hold} is off since {}, by {} ({}); once that is fixed: steadfast breaker on {hold}{}",
                since(now, b.changed_at),
                b.changed_by.as_deref().unwrap_or("nobody known"),
                b.reason.as_deref().unwrap_or("no reason given"),
                b.tenant_id.map_or_else(String::new, |t| format!(" --tenant {t}")),
            )),
            // It was turned on between the two looks.
            None => "due now: the breaker that held it is on again".to_owned(),
        });
    }
    Ok(match r.status.as_str() {
        "waiting" if r.avail_at <= now => {
            "due now: it waits for a free place, or for an endpoint that is up (see `steadfast endpoint ls`)".to_owned()
        }
        "waiting" => format!("backing off, due {}", ago(now, r.avail_at)),
        "running" => format!(
            "worker {} took it {}; its lease, renewed while it works, ends {}{}",
            r.claimed_by.unwrap_or(0),
            r.claimed_at.map_or_else(String::new, |at| ago(now, at)),
            ago(now, r.avail_at),
            r.cancel_at
                .map_or_else(String::new, |at| format!("; it was asked to stop {}", ago(now, at)))
        ),
        "parked" if is_loose(r) => format!(
            "its document has no place any more: steadfast jobs move {} --space NAME --reason WHY",
            r.id
        ),
        "parked" => "set aside for a person: `steadfast jobs retry` with --reason".to_owned(),
        "dead" => {
            "dead: its budget is spent or it can never succeed as it is; `steadfast jobs retry` with --reason, perhaps --force".to_owned()
        }
        other => format!("{other} {}", r.finished_at.map_or_else(String::new, |at| ago(now, at))),
    })
}

async fn retry(ctx: &Ctx, ids: Vec<i64>, all_dead: bool, kind: Option<String>, force: bool, reason: &str, yes: bool) -> Result<ExitCode> {
    let db = ctx.db().await?;
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
        ctx.confirm(yes, &format!("try {} again", count(found.len())))?;
        found
    } else {
        ids
    };
    let hit = job::retry(&mut tx, &ids, &actor(), reason, force).await?;
    let hit: BTreeSet<i64> = hit.into_iter().map(|r| r.id).collect();
    let left: Vec<i64> = ids.into_iter().filter(|id| !hit.contains(id)).collect();
    // Read in the same transaction, so that what is told is what the statement saw.
    let mut why = Vec::new();
    for id in left.iter().copied().take(MOST_TOLD) {
        why.push((id, not_retried(job::find(&mut tx, id).await?.as_ref(), force)));
    }
    queue_schema::Db::commit(tx).await?;
    if ctx.json {
        let why: Vec<_> = why.iter().map(|(id, why)| json!({ "id": id, "why": why })).collect();
        ctx.show(&json!({ "retried": hit, "left": left, "why": why }))?;
    } else {
        say(format_args!("{} due now", count(hit.len())));
        for (id, why) in &why {
            eprintln!("job {id} was left alone: {why}");
        }
        if left.len() > why.len() {
            eprintln!("and {} more", left.len() - why.len());
        }
    }
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reasons told one by one; more than a screen of them helps nobody.
const MOST_TOLD: usize = 20;

/// Why a retry did not touch a job.
fn not_retried(row: Option<&JobRow>, force: bool) -> String {
    let Some(r) = row else {
        return "there is none of that id".to_owned();
    };
    match (r.status.as_str(), r.last_class.as_deref()) {
        ("running", _) => "it is running".to_owned(),
        ("parked" | "dead", Some(class @ ("crash" | "bad_input" | "oversize"))) if !force => {
            format!("trying again most likely ends the same way ({class}); --force tries all the same")
        }
        ("waiting" | "parked" | "dead", _) => "the same work is already open as another job".to_owned(),
        (ended, _) => format!("it is over ({ended})"),
    }
}

async fn cancel(ctx: &Ctx, ids: &[i64], reason: &str, yes: bool) -> Result<ExitCode> {
    let db = ctx.db().await?;
    ctx.confirm(yes, &format!("cancel {}", count(ids.len())))?;
    let mut tx = db.begin().await?;
    let hit = job::cancel(&mut tx, ids, &actor(), reason).await?;
    queue_schema::Db::commit(tx).await?;
    let left: Vec<i64> = ids.iter().copied().filter(|id| !hit.iter().any(|c| c.id == *id)).collect();
    if ctx.json {
        ctx.show(&json!({ "cancelled": hit.iter().filter(|c| !c.running).map(|c| c.id).collect::<Vec<_>>(), "asked": hit.iter().filter(|c| c.running).map(|c| c.id).collect::<Vec<_>>(), "left": left }))?;
    } else {
        for c in &hit {
            say(format_args!(
                "{} {}",
                c.id,
                if c.running {
                    "is running and was asked to stop"
                } else {
                    "is cancelled"
                }
            ));
        }
        if !left.is_empty() {
            let left: Vec<String> = left.iter().map(i64::to_string).collect();
            eprintln!("not among the live jobs, so left alone: {}", left.join(", "));
        }
    }
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn move_to(ctx: &Ctx, ids: &[i64], space: &str, reason: &str) -> Result<ExitCode> {
    let db = ctx.db().await?;
    let mut tx = db.begin().await?;
    // Asked first, in the same transaction: afterwards the document has its place.
    let before = job::not_moved(&mut tx, ids, space).await?;
    let moved = job::move_to(&mut tx, ids, space, &actor(), reason).await?;
    queue_schema::Db::commit(tx).await?;
    // A document's other pages come along, so more may have moved than was asked for.
    let hit: BTreeSet<i64> = moved.iter().map(|m| m.id).collect();
    let left: Vec<(i64, String)> = before
        .iter()
        .filter(|n| !hit.contains(&n.id))
        .map(|n| (n.id, plain(&why_left(n, space))))
        .collect();
    if ctx.json {
        let left: Vec<_> = left.iter().map(|(id, why)| json!({ "id": id, "why": why })).collect();
        ctx.show(&json!({ "moved": moved, "left": left }))?;
    } else {
        let documents: BTreeSet<i64> = moved.iter().map(|m| m.document_id).collect();
        if !moved.is_empty() {
            let n = documents.len();
            say(plain(&format!(
                "{} in {space} now; {} due now",
                if n == 1 {
                    "1 document is".to_owned()
                } else {
                    format!("{n} documents are")
                },
                count(moved.len())
            )));
        }
        for (id, why) in left.iter().take(MOST_TOLD) {
            eprintln!("job {id} was left alone: {why}");
        }
        if left.len() > MOST_TOLD {
            eprintln!("and {} more", left.len() - MOST_TOLD);
        }
    }
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Why a job's document did not get that place.
fn why_left(n: &NotMoved, space: &str) -> String {
    let tenant = n.tenant.as_deref().unwrap_or("its tenant");
    let owner = n.owner.as_deref().unwrap_or("its owner");
    match (n.kind.as_deref(), n.space.as_deref()) {
        (None, _) => "there is no live job of that id".to_owned(),
        (Some("extract" | "ocr"), _) if !n.lacks_place => {
            format!("its document has its place ({})", n.status.as_deref().unwrap_or("over"))
        }
        (Some("extract" | "ocr"), None) => format!("tenant {tenant} has no Space {space}"),
        (Some("extract" | "ocr"), Some(space)) if !n.member => {
            let fix = if tenant == DEFAULT_TENANT {
                format!(": steadfast token create --user {} --space {} makes one", word(owner), word(space))
            } else {
                String::new()
            };
            format!("{owner}, whose document it is, is not a member of {space}{fix}")
        }
        (Some("extract" | "ocr"), Some(_)) => "it began to run just now: look again".to_owned(),
        (Some(kind), _) => format!("a job of kind {kind} has no place of its own; name its document's extract or ocr job"),
    }
}

async fn stats(ctx: &Ctx) -> Result<ExitCode> {
    let counts = job::counts(&ctx.db().await?).await?;
    if ctx.json {
        ctx.show(&counts)?;
        return Ok(ExitCode::SUCCESS);
    }
    if counts.is_empty() {
        eprintln!("no live jobs: everything that was asked for is finished");
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(status: &str, class: Option<&str>) -> JobRow {
        JobRow {
            id: 1,
            kind: "ocr".to_owned(),
            lane: None,
            tenant_id: 1,
            user_id: None,
            root_id: None,
            item_id: None,
            item_version: 1,
            status: status.to_owned(),
            attempts: 1,
            forgiven: 0,
            item_fails: 0,
            crashes: 0,
            avail_at: DateTime::UNIX_EPOCH,
            claimed_by: None,
            claimed_at: None,
            started_at: None,
            cancel_at: None,
            last_class: class.map(str::to_owned),
            last_cause: None,
            last_error: None,
            created_at: DateTime::UNIX_EPOCH,
            finished_at: None,
            hold: None,
        }
    }

    #[test]
    fn a_job_left_alone_says_why() {
        let why = |status, class, force| not_retried(Some(&row(status, class)), force);
        assert!(not_retried(None, false).contains("none of that id"));
        assert!(why("running", None, true).contains("running"));
        assert!(why("dead", Some("bad_input"), false).contains("--force"));
        assert!(why("dead", Some("bad_input"), true).contains("already open"));
        assert!(why("dead", Some("item"), false).contains("already open"));
        assert!(why("cancelled", None, false).contains("over (cancelled)"));
    }

    #[test]
    fn what_happens_next_is_told_by_the_given_clock() {
        let now = DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(10);
        let mut r = row("waiting", None);
        assert_eq!(waits(&r, now), "due");
        r.avail_at = now + chrono::TimeDelta::seconds(90);
        assert_eq!(waits(&r, now), "due in 1m 30s");
        assert_eq!(waits(&row("dead", None), now), "needs `jobs retry`");
        assert_eq!(waits(&row("parked", Some("too_slow")), now), "needs `jobs retry`");
        assert_eq!(waits(&row("parked", Some("place_gone")), now), "needs `jobs move`");
    }

    #[test]
    fn a_document_that_was_not_moved_says_why() {
        let why = |kind: Option<&str>, lacks_place, there: bool, member| {
            let n = NotMoved {
                id: 1,
                kind: kind.map(str::to_owned),
                status: kind.map(|_| "parked".to_owned()),
                lacks_place,
                tenant: Some("default".to_owned()),
                owner: Some("ann".to_owned()),
                space: there.then(|| "Contracts".to_owned()),
                member,
            };
            why_left(&n, "contracts")
        };
        assert!(why(None, false, false, false).contains("no live job"));
        assert!(why(Some("embed"), false, false, false).contains("no place of its own"));
        assert!(why(Some("ocr"), false, true, true).contains("has its place"));
        assert_eq!(why(Some("ocr"), true, false, false), "tenant default has no Space contracts");
        assert!(why(Some("ocr"), true, true, false).starts_with("ann, whose document it is, is not a member of Contracts"));
    }

    #[test]
    fn a_space_that_cannot_be_is_refused() {
        for wrong in ["", "  ", "a\u{1b}[2J", &"x".repeat(201)] {
            assert!(place(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(place(" Contracts ").expect("a name"), "Contracts");
    }

    #[test]
    fn a_kind_that_does_not_exist_is_refused() {
        assert!(kind("ocr").is_ok());
        assert!(kind("orc").expect_err("refused").contains("extract, ocr"));
    }
}
