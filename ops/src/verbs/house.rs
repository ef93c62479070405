//! Small verbs about the house itself: `migrate`, `workers`, `completion`.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory as _;
use queue_schema::worker;
use serde_json::json;

use super::ctx::{Ctx, say, span};

pub(crate) async fn migrate(ctx: &Ctx) -> Result<ExitCode> {
    let applied = steadfast_migrations::migrate(&ctx.database_url()?).await?;
    if ctx.json {
        ctx.show(&json!({ "applied": applied }))?;
    } else if applied == 0 {
        say("nothing to do: the database is up to date");
    } else {
        say(format_args!("{applied} migration(s) applied"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Worker processes that live, and what they hold
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  steadfast workers\n  steadfast workers ls --json")]
pub(crate) struct Workers {
    /// `ls`, for those who are used to the other verbs; the same without it
    #[arg(value_parser = ["ls"], hide = true)]
    _verb: Option<String>,
}

pub(crate) async fn workers(ctx: &Ctx) -> Result<ExitCode> {
    let workers = worker::list(&ctx.db().await?).await?;
    if ctx.json {
        let rows: Vec<_> = workers
            .iter()
            .map(|w| {
                json!({ "bootId": w.boot_id.to_string(), "host": w.host, "pid": w.pid, "kinds": w.kinds, "startedAt": w.started_at,
                        "silentSeconds": w.silent_seconds, "lost": w.lost_at.is_some(), "running": w.running_count, "lateSettlements": w.late_settle_count })
            })
            .collect();
        ctx.show(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = workers
        .iter()
        .map(|w| {
            vec![
                w.boot_id.to_string(),
                format!("{}:{}", w.host, w.pid),
                if w.lost_at.is_some() {
                    "lost".to_owned()
                } else {
                    format!("seen {} ago", span(std::time::Duration::from_secs_f64(w.silent_seconds.max(0.0))))
                },
                w.running_count.to_string(),
                w.late_settle_count.to_string(),
                w.kinds.join(","),
            ]
        })
        .collect();
    ctx.table(&["worker", "process", "state", "running", "late", "kinds"], rows);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn completion(shell: clap_complete::Shell) -> ExitCode {
    // Into memory first: clap_complete panics when its writer fails, and `… | head` is no reason to.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::Cli::command(), "steadfast", &mut script);
    say(String::from_utf8_lossy(&script).trim_end());
    ExitCode::SUCCESS
}
