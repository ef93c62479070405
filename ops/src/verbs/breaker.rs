//! `breaker`: what may be asked of providers, and who decided it.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use queue_schema::capability::{self, Flipped, Off};
use queue_schema::{Db, Tx};

use super::ctx::{Ctx, actor, ago, plain, reason, say, since};

/// Look at breakers and flip them
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  steadfast breaker ls\n  steadfast breaker off embedding --reason \"key rotated\" --yes\n  steadfast breaker on embedding --reason \"new key is in\"\n  steadfast breaker history embedding\n\nOff holds the work: uploads are accepted, search goes on by keyword and says so. Nothing turns a breaker on but this command."
)]
pub(crate) enum Verb {
    /// All breakers, with what waits behind them
    Ls,
    /// Stop asking: running calls finish, nothing new starts, the work is held
    #[command(
        after_help = "Examples:\n  steadfast breaker off embedding --reason \"key rotated\"\n  steadfast breaker off ocr --reason \"provider says stop\" --yes"
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
        /// Give up the calls under way too; their work is held uncharged
        #[arg(long)]
        now: bool,
        /// A drill: where nothing is held, open no incident
        #[arg(long)]
        quiet: bool,
        /// Where it is off already: put --reason beside the first reason, as a note
        #[arg(long)]
        annotate: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Ask again: held work runs
    #[command(after_help = "Examples:\n  steadfast breaker on embedding --reason \"new key is in\"")]
    On {
        /// ocr or embedding
        name: String,
        /// What was fixed
        #[arg(long, default_value = "turned on by hand", value_parser = reason)]
        reason: String,
        /// The breaker of this tenant, by id; by default that of everybody
        #[arg(long, value_name = "ID")]
        tenant: Option<i64>,
        /// All at once, without the ramp of 1, 2, 4 … calls
        #[arg(long)]
        full: bool,
    },
    /// Who did what, when and why; newest first
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
                        if b.enabled { "on" } else { "OFF" }.to_owned(),
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
            let flipped = capability::off(
                &mut tx,
                &Off {
                    name: &name,
                    tenant_id: tenant,
                    actor: &actor(),
                    reason: &reason,
                    now,
                    quiet,
                    annotate,
                },
            )
            .await?;
            tell(ctx, &db, &name, tenant, flipped, tx).await?;
        }
        Verb::On {
            name,
            reason,
            tenant,
            full,
        } => {
            let mut tx = db.begin().await?;
            let flipped = capability::on(&mut tx, &name, tenant, &actor(), &reason, full).await?;
            tell(ctx, &db, &name, tenant, flipped, tx).await?;
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
                .map(|e| vec![ago(now, e.at), e.capability, e.action, e.actor, e.reason.unwrap_or_default()])
                .collect();
            ctx.table(&["when", "breaker", "what", "who", "reason"], rows);
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn tell(ctx: &Ctx, db: &Db, name: &str, tenant: Option<i64>, flipped: Option<Flipped>, tx: Tx) -> Result<()> {
    let whose = |tenant: Option<i64>| tenant.map_or_else(String::new, |t| format!(" of tenant {t}"));
    let Some(f) = flipped else {
        drop(tx);
        let all = capability::list(db).await?;
        let names: Vec<String> = all.iter().map(|b| format!("{}{}", b.name, whose(b.tenant_id))).collect();
        bail!("there is no breaker {name}{}: there are {}", whose(tenant), names.join(", "));
    };
    let whose = whose(tenant);
    Db::commit(tx).await?;
    if ctx.json {
        return ctx.show(&f);
    }
    let state = if f.enabled { "on" } else { "off" };
    if f.changed {
        say(format_args!("{name}{whose} is {state}"));
    } else {
        let now = db.now().await?;
        // A breaker that nobody ever flipped has no actor: it is on because the house was made so.
        let by = f.changed_by.map_or_else(String::new, |who| format!(", by {who}"));
        let why = f.reason.map_or_else(String::new, |why| format!(": {why}"));
        say(plain(&format!(
            "{name}{whose} is already {state}, since {}{by}{why}",
            since(now, f.changed_at)
        )));
    }
    Ok(())
}
