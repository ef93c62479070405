//! `breaker`: what may be asked of providers, and who decided it.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use queue_schema::capability::{self, Flipped};

use super::ctx::{Ctx, actor, ago};

/// Look at breakers and flip them
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  steadfast breaker ls\n  steadfast breaker off embedding --reason \"key rotated\" --yes\n  steadfast breaker on embedding --reason \"new key is in\"\n  steadfast breaker history embedding\n\nOff holds the work: uploads are accepted, search goes on by keyword and says so. Nothing turns a breaker on but this command."
)]
pub(crate) enum Verb {
    /// All breakers, with what waits behind them
    Ls,
    /// Stop asking: running calls finish, nothing new starts, the work is held
    Off {
        /// ocr or embedding
        name: String,
        /// Why, for the history and for the next operator
        #[arg(long)]
        reason: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Ask again: held work runs
    On {
        /// ocr or embedding
        name: String,
        /// What was fixed
        #[arg(long, default_value = "turned on by hand")]
        reason: String,
    },
    /// Who did what, when and why; newest first
    History {
        name: Option<String>,
        #[arg(long, default_value_t = 50)]
        limit: i64,
    },
}

pub(crate) async fn run(verb: Verb, ctx: &Ctx) -> Result<ExitCode> {
    let db = ctx.db()?;
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
        Verb::Off { name, reason, yes } => {
            ctx.confirm(
                yes,
                &format!("turn {name} off for everybody; its work is held until it is turned on again"),
            )?;
            let mut tx = db.begin().await?;
            let flipped = capability::off(&mut tx, &name, None, &actor(), &reason).await?;
            tell(ctx, &db, &name, flipped, tx).await?;
        }
        Verb::On { name, reason } => {
            let mut tx = db.begin().await?;
            let flipped = capability::on(&mut tx, &name, None, &actor(), &reason).await?;
            tell(ctx, &db, &name, flipped, tx).await?;
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

async fn tell(ctx: &Ctx, db: &queue_schema::Db, name: &str, flipped: Option<Flipped>, tx: queue_schema::Tx) -> Result<()> {
    let Some(f) = flipped else {
        let names: Vec<String> = capability::list(db).await?.into_iter().map(|b| b.name).collect();
        bail!("there is no breaker \"{name}\": there are {}", names.join(", "));
    };
    queue_schema::Db::commit(tx).await?;
    if ctx.json {
        return ctx.show(&f);
    }
    let state = if f.enabled { "on" } else { "off" };
    if f.changed {
        println!("{name} is {state}");
    } else {
        let now = db.now().await?;
        println!(
            "{name} is already {state} since {}, by {}: {}",
            ago(now, f.changed_at),
            f.changed_by.as_deref().unwrap_or("nobody known"),
            f.reason.as_deref().unwrap_or("no reason given")
        );
    }
    Ok(())
}
