//! `search`: a question, answered with passages, and with what the answer could not see.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::Value;

use super::ctx::{Ctx, NOTHING_FOUND, plain, say};

/// Find passages by words and by meaning
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  steadfast search when must the renter move out\n  steadfast search \"corrosion of the viaduct\" --limit 3 --json\n\nWhat the answer could not see stands on stderr. Exit code 3: nothing was found."
)]
pub(crate) struct Args {
    /// The question, as it comes
    #[arg(required = true, num_args = 1..)]
    query: Vec<String>,
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    limit: u32,
    /// Only this Space, by name or id
    #[arg(long)]
    space: Option<String>,
    /// Fail rather than answer by words alone
    #[arg(long)]
    require_semantic: bool,
}

pub(crate) async fn run(args: Args, ctx: &Ctx) -> Result<ExitCode> {
    let api = ctx.api()?;
    let mut query = vec![("query", args.query.join(" ")), ("limit", args.limit.to_string())];
    if let Some(space) = &args.space {
        query.push(("spaceId", super::add::space(&api, Some(space)).await?));
    }
    if args.require_semantic {
        query.push(("require", "semantic".to_owned()));
    }
    let answer = api.get("/api/v1/search", &query).await?;
    let Some(results) = answer.get("results").and_then(Value::as_array) else {
        bail!("the API's answer has no results")
    };
    if ctx.json {
        ctx.show(&answer)?;
    } else {
        for (i, r) in results.iter().enumerate() {
            let text = |p: &str| r.pointer(p).and_then(Value::as_str).unwrap_or("").to_owned();
            let score = r.get("score").and_then(Value::as_f64).unwrap_or(0.0);
            say(format_args!(
                "{}. {}  page {}  {}",
                i + 1,
                plain(&text("/memory/title")),
                r.get("page").and_then(Value::as_i64).unwrap_or(1),
                bar(score)
            ));
            say(format_args!("   {}", snippet(r)));
        }
        if results.is_empty() {
            eprintln!("nothing was found");
        }
    }
    // With --json too: stderr is for whoever watches, and the document on stdout says the same to the program.
    degraded(&answer);
    Ok(if results.is_empty() {
        ExitCode::from(NOTHING_FOUND)
    } else {
        ExitCode::SUCCESS
    })
}

/// Ten steps from nothing to first by words and by meaning.
fn bar(score: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0..=10
    let full = (score.clamp(0.0, 1.0) * 10.0).round() as usize;
    format!("{}{} {score:.2}", "█".repeat(full), "░".repeat(10 - full))
}

/// The passage, its matching words bold where somebody sees it. Control characters of a document never reach the terminal.
fn snippet(r: &Value) -> String {
    let text: Vec<char> = r
        .get("snippet")
        .and_then(Value::as_str)
        .unwrap_or("")
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let bold = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let marks: Vec<(usize, usize)> = r
        .get("highlights")
        .cloned()
        .and_then(|h| serde_json::from_value(h).ok())
        .unwrap_or_default();
    let mut out = String::new();
    for (i, c) in text.iter().enumerate() {
        if bold && marks.iter().any(|(s, _)| *s == i) {
            out.push_str("\x1b[1m");
        }
        out.push(*c);
        if bold && marks.iter().any(|(s, n)| s + n == i + 1) {
            out.push_str("\x1b[0m");
        }
    }
    out
}

/// Nobody should take a narrowed answer for the whole one.
fn degraded(answer: &Value) {
    let Some(d) = answer.get("diagnostics") else { return };
    if d.get("degraded").and_then(Value::as_bool) != Some(true) {
        return;
    }
    let notice = d
        .get("notice")
        .and_then(Value::as_str)
        .map_or_else(String::new, |n| format!(" {n}"));
    let reasons: Vec<String> = d
        .get("reasons")
        .and_then(Value::as_array)
        .map(|all| {
            all.iter()
                .map(|r| {
                    let code = words(r.get("code").and_then(Value::as_str).unwrap_or("?"));
                    r.get("count")
                        .and_then(Value::as_i64)
                        .map_or_else(|| code.to_owned(), |n| format!("{code} ({n})"))
                })
                .collect()
        })
        .unwrap_or_default();
    eprintln!("This answer is degraded, that is incomplete: {}.{notice}", reasons.join("; "));
}

/// The machine's reasons in a reader's words; one that is new here stands as it is.
fn words(code: &str) -> &str {
    match code {
        "stopped" => "searching by meaning was stopped",
        "held" => "documents that wait for something that was stopped",
        "dead" => "documents that could not be finished (see `steadfast jobs ls --status dead`; cancel what should not count any more)",
        "parked" => "documents set aside for a person (see `steadfast jobs ls --status parked`)",
        "behind" => "documents that are still being worked on",
        "outage" => "a service that does not answer",
        "reindexing" => "documents whose meaning was measured by another model",
        "no_worker" => "no worker is there to read the question",
        other => other,
    }
}
