//! `add`: files in, and a look at how they get on until they can be found.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use super::ctx::{Api, Ctx};

/// Hand in documents
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  steadfast add contract.png letter.tiff report.pdf\n  steadfast add notes/*.txt --space Contracts --no-wait\n  fortune | steadfast add - --title quote.txt\n\nWaits until each document can be found; Ctrl-C only stops the waiting. Exit code 1: at least one was refused or failed."
)]
pub(crate) struct Args {
    /// Files; - reads standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The Space to put them into, by name or id; needed when there are several
    #[arg(long)]
    space: Option<String>,
    /// A conversation they belong to
    #[arg(long)]
    conversation: Option<String>,
    /// A name for standard input
    #[arg(long)]
    title: Option<String>,
    /// Return when they are accepted, not when they can be found
    #[arg(long)]
    no_wait: bool,
    /// Longest time to wait
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// What became of one file.
#[derive(Debug, Default)]
struct Added {
    name: String,
    job: Option<String>,
    document: Option<String>,
    status: String,
    error: Option<String>,
    /// What is held, and that it is safe.
    notice: Option<String>,
}

pub(crate) async fn run(args: Args, ctx: &Ctx) -> Result<ExitCode> {
    let api = ctx.api()?;
    let space = space(&api, args.space.as_deref()).await?;
    let bars = MultiProgress::new();
    let one = |file: PathBuf| {
        let (api, space, args, bars) = (&api, &space, &args, &bars);
        async move {
            let name = if file.as_os_str() == "-" {
                args.title.clone().unwrap_or_else(|| "stdin.txt".to_owned())
            } else {
                file.file_name()
                    .map_or_else(|| file.display().to_string(), |n| n.to_string_lossy().into_owned())
            };
            let bar = bars.add(ProgressBar::new(0));
            bar.set_style(
                ProgressStyle::with_template("{spinner} {wide_msg} {bytes}/{total_bytes} {bar:20}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.set_message(name.clone());
            let mut added = Added {
                name,
                status: "refused".to_owned(),
                ..Added::default()
            };
            match upload(api, space, args, &file, &added.name, &bar).await {
                Ok((job, document, note)) => {
                    added.status = "queued".to_owned();
                    (added.job, added.document) = (Some(job), document);
                    if !args.no_wait
                        && let Err(error) = follow(api, &mut added, args.timeout, &bar, &note).await
                    {
                        added.error = Some(format!("{error:#}"));
                    }
                }
                Err(error) => added.error = Some(format!("{error:#}")),
            }
            bar.finish_and_clear();
            added
        }
    };
    // Four at a time: enough to keep the wire busy, few enough that a person sees what happens.
    let all: Vec<Added> = futures::stream::iter(args.files.clone()).map(one).buffered(4).collect().await;
    let failed = all.iter().any(|a| a.error.is_some());
    if ctx.json {
        let rows: Vec<_> = all.iter().map(|a| json!({ "file": a.name, "jobId": a.job, "documentId": a.document, "status": a.status, "error": a.error, "notice": a.notice })).collect();
        ctx.show(&rows)?;
    } else {
        for a in &all {
            if let Some(notice) = &a.notice {
                eprintln!("{}  {notice}", a.name);
            }
            match &a.error {
                None => println!(
                    "{}  {}  (document {}, job {})",
                    a.name,
                    a.status,
                    a.document.as_deref().unwrap_or("?"),
                    a.job.as_deref().unwrap_or("?")
                ),
                Some(error) => eprintln!("{}  {}: {error}", a.name, a.status),
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The id of the Space that was named, or of the only one there is.
pub(crate) async fn space(api: &Api, named: Option<&str>) -> Result<String> {
    let answer = api.get("/api/v1/spaces", &[]).await?;
    let spaces: Vec<(String, String)> = answer
        .get("data")
        .and_then(Value::as_array)
        .map(|all| {
            all.iter()
                .filter_map(|s| Some((s.get("id")?.as_str()?.to_owned(), s.get("name")?.as_str()?.to_owned())))
                .collect()
        })
        .unwrap_or_default();
    let names = || {
        spaces
            .iter()
            .map(|(id, name)| format!("{name} ({id})"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    match named {
        Some(n) => match spaces.iter().find(|(id, name)| name == n || id == n) {
            Some((id, _)) => Ok(id.clone()),
            None => bail!("--space {n}: there is none of that name or id; yours are {}", names()),
        },
        None => match spaces.as_slice() {
            [(id, _)] => Ok(id.clone()),
            [] => bail!("you have no Space: `steadfast token create --user NAME --space NAME` makes one"),
            _ => bail!("name the Space with --space; yours are {}", names()),
        },
    }
}

async fn upload(
    api: &Api,
    space: &str,
    args: &Args,
    file: &Path,
    name: &str,
    bar: &ProgressBar,
) -> Result<(String, Option<String>, String)> {
    let body = if file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        tokio::io::stdin().read_to_end(&mut bytes).await?;
        bar.set_length(bytes.len() as u64);
        bar.set_position(bytes.len() as u64);
        reqwest::Body::from(bytes)
    } else {
        let meta = tokio::fs::metadata(file)
            .await
            .with_context(|| format!("{} cannot be read", file.display()))?;
        if meta.is_dir() {
            bail!("{} is a folder: add its files with {}/*", file.display(), file.display());
        }
        bar.set_length(meta.len());
        let opened = tokio::fs::File::open(file)
            .await
            .with_context(|| format!("{} cannot be read", file.display()))?;
        let bar = bar.clone();
        reqwest::Body::wrap_stream(tokio_util::io::ReaderStream::with_capacity(opened, 1 << 16).inspect(move |chunk| {
            if let Ok(bytes) = chunk {
                bar.inc(bytes.len() as u64);
            }
        }))
    };
    let mut query = vec![("filename", name), ("spaceId", space)];
    if let Some(c) = &args.conversation {
        query.push(("conversationId", c));
    }
    let url = url::Url::parse_with_params(&format!("{}/api/v1/uploads/direct", api.base), query)?;
    let answer = api
        .send(api.http.post(url).header("content-type", "application/octet-stream").body(body))
        .await?;
    let text = |k: &str| answer.get(k).and_then(Value::as_str).map(str::to_owned);
    let job = text("jobId").context("the API's answer names no job")?;
    Ok((job, text("documentId"), text("note").unwrap_or_default()))
}

/// Looks every now and then until the document can be found, has failed, or is held.
async fn follow(api: &Api, added: &mut Added, timeout: Duration, bar: &ProgressBar, note: &str) -> Result<()> {
    bar.set_style(ProgressStyle::with_template("{spinner} {wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(120));
    let job = added.job.clone().unwrap_or_default();
    let deadline = tokio::time::Instant::now() + timeout;
    let mut wait = Duration::from_millis(150);
    loop {
        let answer = api.get(&format!("/api/v1/jobs/{job}"), &[]).await?;
        let status = answer.get("status").and_then(Value::as_str).unwrap_or("").to_owned();
        let error = answer.get("error").and_then(Value::as_str).unwrap_or("no reason given");
        added.status.clone_from(&status);
        match status.as_str() {
            "completed" => {
                let Some(document) = added.document.clone() else { return Ok(()) };
                let d = api.get(&format!("/api/v1/documents/{document}"), &[]).await?;
                let pending = d.get("pendingCount").and_then(Value::as_i64).unwrap_or(0);
                if pending == 0 {
                    "completed".clone_into(&mut added.status);
                    return Ok(());
                }
                // It can be found by its words; by meaning in a moment, unless that is stopped.
                if let Some(notice) = d.get("notice").and_then(Value::as_str) {
                    added.notice = Some(notice.to_owned());
                    return Ok(());
                }
                bar.set_message(format!("{}: embedding, {pending} pieces to go", added.name));
                "embedding".clone_into(&mut added.status);
            }
            "dead" | "failed" => bail!("{error} (job {job})"),
            _ => {}
        }
        if let Some(hold) = answer.get("hold").filter(|h| !h.is_null()) {
            added.status = "held".to_owned();
            added.notice = Some(hold.get("notice").and_then(Value::as_str).unwrap_or(note).to_owned());
            return Ok(());
        }
        let progress = answer
            .get("progress")
            .and_then(Value::as_f64)
            .map_or_else(String::new, |p| format!(" {:.0} %", p * 100.0));
        if added.status != "embedding" {
            bar.set_message(format!("{}: {status}{progress}", added.name));
        }
        if tokio::time::Instant::now() > deadline {
            bail!(
                "not finished within {}: it goes on; look with `steadfast jobs show {job}`",
                humantime::format_duration(timeout)
            );
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = tokio::signal::ctrl_c() => bail!("no longer waiting; the work goes on (job {job})"),
        }
        wait = (wait * 3 / 2).min(Duration::from_secs(2));
    }
}
