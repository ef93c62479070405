//! `breaker`: what may be asked of providers, and who decided it.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use queue_schema::capability::{self, Breaker, Flipped, Off};
use queue_schema::{Db, endpoint};
use serde_json::json;

use super::ctx::{Ctx, actor, ago, plain, reason, say, since};

/// Look at breakers and flip them
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  steadfast breaker ls\n  steadfast breaker off embedding --reason \"key rotated\" --yes\n  steadfast breaker on embedding --reason \"new key is in\"\n  steadfast breaker history embedding\n\nOff holds the work: uploads are accepted, search goes on by keyword and says so, and whoever has work behind it is told once by mail.\nNothing turns a breaker on but this command."
)]
pub(crate) enum Verb {
    /// All breakers, with what waits behind them
    #[command(
        after_help = "Examples:\n  steadfast breaker ls\n  steadfast breaker ls --json\n\n\"on, ramp 4\": turned on a moment ago; four calls may be under way at once, twice as many after as many successes."
    )]
    Ls,
    /// Stop asking: running calls finish, nothing new starts, the work is held
    #[command(
        after_help = "Examples:\n  steadfast breaker off embedding --reason \"key rotated\"\n  steadfast breaker off ocr --reason \"provider says stop\" --yes\n  steadfast breaker off ocr --now --reason \"it bills every call twice\" --yes        # calls under way are given up too\n  steadfast breaker off ocr --quiet --reason drill --yes                           # nobody is told where nothing is held\n  steadfast breaker off ocr --annotate --reason \"ticket 4711 at the provider\" --yes  # a note beside the first reason"
    )]
    Off {
        /// ocr or embedding
        name: String,
        /// Why, for the history and for the next operator
        #[arg(long, value_parser = reason)]
        reason: String,
        /// Only for this tenant, by id; by default for everybody
        #[arg(long, value_name = "ID")]
        tenant: Option<i64>,
        /// Give up the calls under way too, within a poll: their work goes back to be held, uncharged. Without it they finish
        #[arg(long)]
        now: bool,
        /// A drill: where nothing is held, open no incident, so that nobody is told. Held work opens one all the same
        #[arg(long)]
        quiet: bool,
        /// Where it is off already: put --reason beside the first reason, as a note in the history. The first one stays
        #[arg(long)]
        annotate: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Ask again: held work runs, and endpoints that a refusal had stopped are asked again
    #[command(
        after_help = "Examples:\n  steadfast breaker on embedding --reason \"new key is in\"\n  steadfast breaker on embedding --full     # or, on a ramp already: skip the rest of it\n\nOne call at a time at first, then 2, 4, 8 … as they succeed, so that two days of held work do not land on a key that was just repaired.\nQuestions are not held back by that."
    )]
    On {
        /// ocr or embedding
        name: String,
        /// What was fixed
        #[arg(long, default_value = "turned on by hand", value_parser = reason)]
        reason: String,
        /// The breaker of this tenant, by id; by default that of everybody
        #[arg(long, value_name = "ID")]
        tenant: Option<i64>,
        /// All at once, without the ramp of 1, 2, 4 … calls; where it is on already, the rest of its ramp is skipped
        #[arg(long)]
        full: bool,
    },
    /// Who did what to breakers and their endpoints, when and why; newest first
    #[command(after_help = "Examples:\n  steadfast breaker history\n  steadfast breaker history embedding --limit 10")]
    History {
        /// ocr or embedding; without it both
        name: Option<String>,
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
    },
}

pub(crate) async fn run(verb: Verb, ctx: &Ctx) -> Result<ExitCode> {
    let db = ctx.db().await?;
    match verb {
        Verb::Ls => {
            let breakers = capability::list(&db).await?;
            if ctx.json {
                ctx.show(&breakers)?;
                return Ok(ExitCode::SUCCESS);
            }
            let now = db.now().await?;
            let rows = breakers
                .into_iter()
                .map(|b| {
                    vec![
                        b.name,
                        b.tenant_id.map_or_else(|| "everybody".to_owned(), |t| format!("tenant {t}")),
                        state(b.enabled, b.ramp_limit),
                        b.held_count.to_string(),
                        b.failure_count.to_string(),
                        b.changed_by
                            .map_or_else(String::new, |who| format!("{who}, {}", ago(now, b.changed_at))),
                        b.reason.unwrap_or_default(),
                    ]
                })
                .collect();
            ctx.table(&["breaker", "for", "state", "held", "refusals", "changed", "reason"], rows);
        }
        Verb::Off {
            name,
            reason,
            tenant,
            now,
            quiet,
            annotate,
            yes,
        } => {
            let whom = tenant.map_or_else(|| "everybody".to_owned(), |t| format!("tenant {t}"));
            ctx.confirm(
                yes,
                &format!("turn {name} off for {whom}; its work is held until it is turned on again"),
            )?;
            let mut tx = db.begin().await?;
            let done = capability::off(
                &mut tx,
                &Off {
                    name: &name,
                    tenant_id: tenant,
                    actor: &actor(),
                    reason: &reason,
                    quiet,
                    annotate,
                },
            )
            .await?;
            let Some(done) = done else {
                drop(tx);
                return Err(unknown(&db, &name, tenant).await?);
            };
            Db::commit(tx).await?;
            if now {
                capability::interrupt(&db, &name, tenant).await?;
            }
            let held = capability::held(&db, &name, tenant).await?;
            if ctx.json {
                ctx.show(&with(&done, "held_count", json!(held))?)?;
                return Ok(ExitCode::SUCCESS);
            }
            say(tell(&db, &name, tenant, &done.flipped).await?);
            say(format_args!("  {} held", jobs_are(held)));
            match done.incident_id {
                Some(id) => say(format_args!(
                    "  whoever has work behind it is told once: steadfast incident show {id}"
                )),
                None if done.flipped.changed => say("  a drill: nothing is held, so no incident was opened"),
                None if annotate => say("  your reason is in the history, as a note"),
                None => {}
            }
            if now {
                say("  calls under way are given up within a poll");
            }
        }
        Verb::On {
            name,
            reason,
            tenant,
            full,
        } => {
            // Before the flip, so that its row is not locked while we count.
            let held = capability::held(&db, &name, tenant).await?;
            let mut tx = db.begin().await?;
            let Some(done) = capability::on(&mut tx, &name, tenant, &actor(), &reason, full).await? else {
                drop(tx);
                return Err(unknown(&db, &name, tenant).await?);
            };
            Db::commit(tx).await?;
            if ctx.json {
                let held = if done.flipped.changed { held } else { 0 };
                ctx.show(&with(&done, "held_count", json!(held))?)?;
                return Ok(ExitCode::SUCCESS);
            }
            say(tell(&db, &name, tenant, &done.flipped).await?);
            for line in follows(&done.endpoints, done.flipped.changed.then_some(held), full) {
                say(plain(&line));
            }
            for line in still(&db, &name, tenant).await? {
                say(plain(&line));
            }
        }
        Verb::History { name, limit } => {
            let events = capability::history(&db, name.as_deref(), limit).await?;
            if ctx.json {
                ctx.show(&events)?;
                return Ok(ExitCode::SUCCESS);
            }
            let now = db.now().await?;
            let rows = events
                .into_iter()
                .map(|e| {
                    vec![
                        ago(now, e.at),
                        e.capability,
                        e.tenant_id.map_or_else(|| "everybody".to_owned(), |t| format!("tenant {t}")),
                        e.endpoint.unwrap_or_default(),
                        e.action.replace('_', " "),
                        e.actor,
                        e.reason.unwrap_or_default(),
                    ]
                })
                .collect();
            ctx.table(&["when", "breaker", "for", "endpoint", "what", "who", "reason"], rows);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// "on", "on, ramp 4", "OFF".
fn state(enabled: bool, ramp: Option<i32>) -> String {
    match (enabled, ramp) {
        (false, _) => "OFF".to_owned(),
        (true, None) => "on".to_owned(),
        (true, Some(n)) => format!("on, ramp {n}"),
    }
}

fn whose(tenant: Option<i64>) -> String {
    tenant.map_or_else(String::new, |t| format!(" of tenant {t}"))
}

async fn unknown(db: &Db, name: &str, tenant: Option<i64>) -> Result<anyhow::Error> {
    let all = capability::list(db).await?;
    let names: Vec<String> = all.iter().map(|b| format!("{}{}", b.name, whose(b.tenant_id))).collect();
    Ok(anyhow::anyhow!(
        "there is no breaker {}{}: there are {}",
        plain(name),
        whose(tenant),
        names.join(", ")
    ))
}

/// The line of how it stands now.
async fn tell(db: &Db, name: &str, tenant: Option<i64>, f: &Flipped) -> Result<String> {
    let whose = whose(tenant);
    let state = if f.enabled { "on" } else { "off" };
    if f.changed {
        return Ok(format!("{name}{whose} is {state}"));
    }
    let now = db.now().await?;
    // A breaker that nobody ever flipped has no actor: it is on because the house was made so.
    let by = f.changed_by.as_ref().map_or_else(String::new, |who| format!(", by {who}"));
    let why = f.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    Ok(plain(&format!(
        "{name}{whose} is already {state}, since {}{by}{why}",
        since(now, f.changed_at)
    )))
}

/// What follows from turning it on. `held`: what waited behind it; none where it was on already.
fn follows(endpoints: &[String], held: Option<i64>, full: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if !endpoints.is_empty() {
        lines.push(format!("  asked again with it: {}", endpoints.join(", ")));
    }
    match (held, full) {
        (Some(0), _) => lines.push("  nothing was held".to_owned()),
        (Some(n), true) => lines.push(format!("  {} due now, all at once", jobs_are(n))),
        (Some(n), false) => lines.push(format!(
            "  {} due now; it starts with one call at a time, then 2, 4, 8 … (--full skips that)",
            jobs_are(n)
        )),
        (None, true) => lines.push("  the rest of its ramp is skipped".to_owned()),
        (None, false) => {}
    }
    lines
}

/// What still stands in the way of a capability whose breaker is on.
async fn still(db: &Db, name: &str, tenant: Option<i64>) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let others = capability::list(db).await?;
    let off = |b: &&Breaker| b.name == name && !b.enabled && (tenant.is_none() || b.tenant_id.is_none() || b.tenant_id == tenant);
    for b in others.iter().filter(off) {
        lines.push(match b.tenant_id {
            Some(t) => format!("  still off for tenant {t}: steadfast breaker on {name} --tenant {t}"),
            None => format!("  but it is off for everybody: steadfast breaker on {name}"),
        });
    }
    if tenant.is_none()
        && !endpoint::overview(db)
            .await?
            .iter()
            .any(|e| e.endpoint.capability == name && e.serves())
    {
        lines.push("  but none of its endpoints serves: steadfast endpoint ls".to_owned());
    }
    Ok(lines)
}

fn jobs_are(n: i64) -> String {
    match n {
        1 => "1 job is".to_owned(),
        10_001.. => "more than 10,000 jobs are".to_owned(),
        n => format!("{n} jobs are"),
    }
}

/// A JSON object with one more member.
fn with(value: &impl serde::Serialize, name: &str, more: serde_json::Value) -> Result<serde_json::Value> {
    let mut value = serde_json::to_value(value)?;
    match value.as_object_mut() {
        Some(object) => object.insert(name.to_owned(), more),
        None => bail!("not an object"),
    };
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramp_is_shown() {
        assert_eq!(state(true, Some(4)), "on, ramp 4");
        assert_eq!(state(true, None), "on");
        assert_eq!(state(false, Some(4)), "OFF");
    }

    #[test]
    fn what_follows_from_turning_it_on_is_told() {
        let told = follows(&["cloud".to_owned()], Some(12), false).join("\n");
        assert!(
            told.contains("cloud") && told.contains("12 jobs are") && told.contains("one call at a time") && told.contains("--full"),
            "{told}"
        );
        let full = follows(&[], Some(1), true).join("\n");
        assert!(full.contains("1 job is due now, all at once"), "{full}");
        assert_eq!(follows(&[], None, false), Vec::<String>::new());
        assert!(follows(&[], None, true)[0].contains("skipped"));
        assert!(follows(&[], Some(10_001), true)[0].contains("more than 10,000"));
    }
}
