//! `incident`: a breaker's outage from open to landed, and who was told what about it.

use std::process::ExitCode;

use anyhow::{Result, bail};
use chrono::{DateTime, Utc};
use clap::Subcommand;
use queue_schema::diagnostics::WORKER_ALIVE;
use queue_schema::incident::{self, Incident};
use queue_schema::notice::{self, NoticeRow};
use queue_schema::{Db, JobKind, worker};
use serde_json::json;

use super::ctx::{Ctx, NOTHING_FOUND, actor, ago, plain, reason, say, since};

/// Look at incidents and at who was told, close one, send a mail again
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  steadfast incident ls\n  steadfast incident show 7\n  steadfast incident resend 12 --yes\n  steadfast incident close 7 --yes\n\nAn incident opens when a breaker goes off and closes by itself when it has been on for a while (STEADFAST_REOPEN_GRACE) and all that was\nheld under it has ended. Off, on and off again in between is one incident, with one mail to each person and one at its end."
)]
pub(crate) enum Verb {
    /// Incidents, newest first
    #[command(after_help = "Examples:\n  steadfast incident ls\n  steadfast incident ls --open --json")]
    Ls {
        /// Only those that are open
        #[arg(long)]
        open: bool,
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
    },
    /// One incident: its reason, and per person what was told, and what went wrong with that; never an address
    #[command(
        after_help = "Examples:\n  steadfast incident show 7\n  steadfast incident show 7 --json\n\nA part is: due (waits to be sent), sending, sent, unknown (the mail server may have taken it; not sent again by itself), failed (refused by\nthe mail server), no address, skipped (it was over before it was sent), none (nothing of theirs was left to tell of). The opening part says\nthat work is held, the closing part how it ended: landed, or needs attention."
    )]
    Show {
        /// As `incident ls` prints it
        id: i64,
        /// Most people to list
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(i64).range(1..=100_000))]
        limit: i64,
    },
    /// End one by hand: nobody is told any more how it ended; what is held stays held
    #[command(after_help = "Examples:\n  steadfast incident close 7\n  steadfast incident close 7 --yes")]
    Close {
        /// As `incident ls` prints it
        id: i64,
        #[arg(long, short)]
        yes: bool,
    },
    /// Send the mail again that was refused, or of which nobody knows whether it arrived
    #[command(
        after_help = "Examples:\n  steadfast incident resend 12\n  steadfast incident resend 12 --reason \"address corrected\" --yes\n\nThe number is the notice's, as `incident show` prints it. An unknown one may arrive twice; its Message-ID is the same both times."
    )]
    Resend {
        /// As `incident show` prints it
        notice_id: i64,
        /// Why, for the job's history
        #[arg(long, default_value = "sent again by hand", value_parser = reason)]
        reason: String,
        #[arg(long, short)]
        yes: bool,
    },
}

pub(crate) async fn run(verb: Verb, ctx: &Ctx) -> Result<ExitCode> {
    match verb {
        Verb::Ls { open, limit } => list(ctx, open, limit).await,
        Verb::Show { id, limit } => show(ctx, id, limit).await,
        Verb::Close { id, yes } => close(ctx, id, yes).await,
        Verb::Resend { notice_id, reason, yes } => resend(ctx, notice_id, &reason, yes).await,
    }
}

async fn list(ctx: &Ctx, open: bool, limit: i64) -> Result<ExitCode> {
    let db = ctx.db().await?;
    let all = incident::list(&db, open, limit).await?;
    let outcome = ExitCode::from(if all.is_empty() { NOTHING_FOUND } else { 0 });
    if ctx.json {
        ctx.show(&all)?;
        return Ok(outcome);
    }
    if all.is_empty() {
        eprintln!("{}", if open { "no incident is open" } else { "there were no incidents" });
        return Ok(outcome);
    }
    let now = db.now().await?;
    let rows = all
        .into_iter()
        .map(|i| {
            vec![
                i.id.to_string(),
                i.capability.clone(),
                i.tenant_id.map_or_else(|| "everybody".to_owned(), |t| format!("tenant {t}")),
                state(&i).to_owned(),
                ago(now, i.opened_at),
                i.user_count.to_string(),
                mails(&i),
                i.opened_by,
                i.reason,
            ]
        })
        .collect();
    ctx.table(
        &[
            "incident",
            "breaker",
            "for",
            "state",
            "opened",
            "people",
            "mails",
            "by",
            "first reason",
        ],
        rows,
    );
    Ok(outcome)
}

/// Where it stands, in a word or two.
pub(super) fn state(i: &Incident) -> &'static str {
    match (i.closed_at, i.enabled_at) {
        (Some(_), _) => "closed",
        (None, None) => "open, off",
        (None, Some(_)) => "open, on again",
    }
}

/// What became of its mails; what is not there is not told.
fn mails(i: &Incident) -> String {
    let all = [
        (i.due_count, "due"),
        (i.unknown_count, "unknown"),
        (i.unsent_count, "not sent"),
        (i.landed_count, "landed"),
        (i.attention_count, "need attention"),
    ];
    let told: Vec<String> = all.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    told.join(", ")
}

async fn show(ctx: &Ctx, id: i64, limit: i64) -> Result<ExitCode> {
    let db = ctx.db().await?;
    let Some(i) = incident::find(&db, id).await? else {
        eprintln!("there is no incident {id}: see `steadfast incident ls`");
        return Ok(ExitCode::from(NOTHING_FOUND));
    };
    let people = notice::list(&db, id, limit).await?;
    if ctx.json {
        ctx.show(&json!({ "incident": i, "notices": people }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = db.now().await?;
    for line in head(&i, now) {
        say(plain(&line));
    }
    if people.is_empty() {
        say("  nobody has work behind it");
        return Ok(ExitCode::SUCCESS);
    }
    say("");
    let listed = i64::try_from(people.len()).unwrap_or(limit);
    let rows = people
        .into_iter()
        .map(|n| {
            let opening = part(Some(&n.opening), n.opening_at, now);
            let closing = part(n.closing.as_deref(), n.closing_at, now);
            vec![
                n.id.to_string(),
                n.user_name,
                opening,
                closing,
                n.closing_wording.unwrap_or_default().replace('_', " "),
                n.error.unwrap_or_default(),
            ]
        })
        .collect();
    ctx.table(&["notice", "person", "opening", "closing", "wording", "error"], rows);
    if listed < i.user_count {
        eprintln!("and {} more: --limit", i.user_count - listed);
    }
    Ok(ExitCode::SUCCESS)
}

fn head(i: &Incident, now: DateTime<Utc>) -> Vec<String> {
    let whom = i.tenant_id.map_or_else(|| "everybody".to_owned(), |t| format!("tenant {t}"));
    let mut lines = vec![
        format!("incident {} · {} · {whom} · {}", i.id, i.capability, state(i)),
        format!("  opened {}, by {}: {}", since(now, i.opened_at), i.opened_by, i.reason),
    ];
    if i.failure_count > 0 {
        let n = i.failure_count;
        lines.push(format!(
            "  {} by {}",
            if n == 1 { "1 refusal".to_owned() } else { format!("{n} refusals") },
            if i.endpoints.is_empty() {
                "endpoints that are gone".to_owned()
            } else {
                i.endpoints.join(", ")
            }
        ));
    }
    let flag = i.tenant_id.map_or_else(String::new, |t| format!(" --tenant {t}"));
    match (i.closed_at, i.enabled_at) {
        (Some(at), _) => lines.push(format!(
            "  closed {}, by {}",
            since(now, at),
            i.closed_by.as_deref().unwrap_or("nobody known")
        )),
        (None, Some(at)) => lines.push(format!(
            "  on again {}; it closes by itself when all that was held has ended",
            since(now, at)
        )),
        (None, None) => lines.push(format!(
            "  its work is held; once that is fixed: steadfast breaker on {}{flag}",
            i.capability
        )),
    }
    let mails = mails(i);
    let people = if i.user_count == 1 {
        "1 person".to_owned()
    } else {
        format!("{} people", i.user_count)
    };
    lines.push(if mails.is_empty() {
        format!("  {people}")
    } else {
        format!("  {people}; mails: {mails}")
    });
    lines
}

/// A part of a notice: how it stands, and when it was settled.
fn part(state: Option<&str>, at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> String {
    let state = state.unwrap_or("").replace('_', " ");
    match at {
        Some(at) if !state.is_empty() => format!("{state} {}", ago(now, at)),
        _ => state,
    }
}

async fn close(ctx: &Ctx, id: i64, yes: bool) -> Result<ExitCode> {
    let db = ctx.db().await?;
    let Some(i) = incident::find(&db, id).await? else {
        bail!("there is no incident {id}: see `steadfast incident ls`");
    };
    let mut closed = false;
    if i.closed_at.is_none() {
        let off = if i.enabled_at.is_none() {
            "; its breaker stays off, and work held from now on tells nobody"
        } else {
            ""
        };
        ctx.confirm(yes, &format!("close incident {id}: nobody is told any more how it ended{off}"))?;
        let mut tx = db.begin().await?;
        closed = incident::close(&mut tx, id, &actor()).await?;
        Db::commit(tx).await?;
    }
    if ctx.json {
        ctx.show(&json!({ "incident": id, "state": "closed", "changed": closed }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if closed {
        say(format_args!("incident {id} is closed"));
        return Ok(ExitCode::SUCCESS);
    }
    let (now, i) = (db.now().await?, incident::find(&db, id).await?.unwrap_or(i));
    let at = i.closed_at.map_or_else(String::new, |at| format!(", since {}", since(now, at)));
    let by = i.closed_by.map_or_else(String::new, |who| format!(", by {who}"));
    say(plain(&format!("incident {id} is already closed{at}{by}")));
    Ok(ExitCode::SUCCESS)
}

async fn resend(ctx: &Ctx, id: i64, reason: &str, yes: bool) -> Result<ExitCode> {
    let db = ctx.db().await?;
    let Some(n) = notice::find(&db, id).await? else {
        bail!("there is no notice {id}: `steadfast incident show ID` lists those of an incident");
    };
    let (part, state) = current(&n);
    let mut again = false;
    match state {
        "due" | "sending" => {}
        "unknown" | "failed" | "no_address" => {
            if !n.has_address {
                bail!(
                    "{} has no address: steadfast token create --user NAME --email ADDRESS gives one, then send it again",
                    plain(&n.user_name)
                );
            }
            let twice = if state == "unknown" { "; it may arrive twice" } else { "" };
            ctx.confirm(
                yes,
                &format!("send the {part} mail of notice {id} to {} again{twice}", plain(&n.user_name)),
            )?;
            let mut tx = db.begin().await?;
            again = notice::resend(&mut tx, id, &actor(), reason).await?;
            Db::commit(tx).await?;
        }
        other => bail!("nothing of notice {id} is to be sent again: its {part} part is {other}"),
    }
    if ctx.json {
        ctx.show(&json!({ "notice": id, "part": part, "state": "due", "changed": again }))?;
    } else if again {
        say(format_args!("notice {id} is due again: its {part} mail"));
    } else {
        say(format_args!("notice {id} is on its way already: its {part} mail is {state}"));
    }
    if !worker::serves(&db, JobKind::Notice, WORKER_ALIVE).await? {
        eprintln!("no live worker sends mail: {SENDER}");
    }
    Ok(ExitCode::SUCCESS)
}

/// How a worker is made one that sends.
pub(super) const SENDER: &str = "set STEADFAST_SMTP_URL and STEADFAST_MAIL_FROM in a worker's environment and start it again \
                                 (`ops/up` hands on its own)";

/// The part that matters now, and its state.
fn current(n: &NoticeRow) -> (&'static str, &str) {
    match n.closing.as_deref() {
        Some(state) => ("closing", state),
        None => ("opening", &n.opening),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn an_incident() -> Incident {
        Incident {
            id: 7,
            capability: "ocr".to_owned(),
            tenant_id: None,
            opened_at: DateTime::UNIX_EPOCH,
            opened_by: "system".to_owned(),
            reason: "far: invalid_key".to_owned(),
            endpoints: vec!["far".to_owned()],
            failure_count: 3,
            enabled_at: None,
            closed_at: None,
            closed_by: None,
            user_count: 2,
            due_count: 1,
            unknown_count: 0,
            unsent_count: 0,
            landed_count: 1,
            attention_count: 0,
        }
    }

    #[test]
    fn an_incident_says_what_is_to_be_done() {
        let now = DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(60);
        let mut i = an_incident();
        let off = head(&i, now).join("\n");
        assert!(off.contains("open, off") && off.contains("3 refusals by far"), "{off}");
        assert!(
            off.contains("steadfast breaker on ocr") && off.contains("2 people; mails: 1 due, 1 landed"),
            "{off}"
        );
        i.tenant_id = Some(4);
        assert!(head(&i, now).join("\n").contains("steadfast breaker on ocr --tenant 4"));
        i.enabled_at = Some(now);
        assert!(head(&i, now).join("\n").contains("closes by itself"));
        (i.closed_at, i.closed_by) = (Some(now), Some("ann@here".to_owned()));
        assert!(head(&i, now).join("\n").contains("by ann@here"));
    }

    #[test]
    fn a_part_that_is_not_there_is_not_told() {
        let now = DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(60);
        assert_eq!(part(Some("no_address"), None, now), "no address");
        assert_eq!(part(Some("sent"), Some(DateTime::UNIX_EPOCH), now), "sent 1m ago");
        assert_eq!(part(None, None, now), "");
    }
}
