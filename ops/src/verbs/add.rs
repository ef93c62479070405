//! `add`: files in, and a look at how they get on until they can be found.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::CommandFactory as _;
use clap::error::ErrorKind;
use futures::StreamExt as _;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tokio::io::AsyncRead;
use tokio_util::sync::CancellationToken;

use super::ctx::{Api, Ctx, NoAnswer, plain, say};

/// Hand in documents
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  steadfast add contract.png letter.tiff report.pdf\n  steadfast add notes/*.txt --space Contracts --no-wait\n  fortune | steadfast add - --title quote.txt\n\nWaits until each document can be found, by its words and by meaning; Ctrl-C only stops the waiting for what was handed in, the work goes on.\nExit code 1: at least one was refused, failed or was not done within --timeout."
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
    /// What to call it, instead of its file name; for one file or standard input
    #[arg(long)]
    title: Option<String>,
    /// Return when they are accepted, not when they can be found
    #[arg(long)]
    no_wait: bool,
    /// Return when they can be found, by their words and by meaning; so without it
    #[arg(long, conflicts_with = "no_wait")]
    wait: bool,
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

/// The state of a document whose text has landed while its vectors are held.
const WORDS_ONLY: &str = "words_only";

/// A state in words for a person.
fn told(status: &str) -> &str {
    match status {
        WORDS_ONLY => "found by its words; meaning follows when embedding is back",
        other => other,
    }
}

/// How long a wait bears an API that does not answer, for it may just be restarting.
const PATIENCE: Duration = Duration::from_secs(30);

/// A little above what the API itself allows a body (10 minutes by default), so that the refusal is told by it.
const LONGEST_UPLOAD: Duration = Duration::from_secs(11 * 60);

pub(crate) async fn run(args: Args, ctx: &Ctx) -> Result<ExitCode> {
    let stdins = args.files.iter().filter(|f| f.as_os_str() == "-").count();
    let misuse = match () {
        () if stdins > 1 => Some("standard input (-) can be read only once"),
        () if args.title.is_some() && args.files.len() > 1 => Some("--title names one document, and there are several files"),
        () => None,
    };
    if let Some(misuse) = misuse {
        crate::Cli::command().error(ErrorKind::ArgumentConflict, misuse).exit();
    }
    let api = ctx.api()?;
    let space = space(&api, args.space.as_deref()).await?;
    let bars = MultiProgress::new();
    let stop = CancellationToken::new();
    let one = |file: PathBuf| {
        let (api, space, args, bars, stop) = (&api, &space, &args, &bars, &stop);
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
            let uploaded = tokio::select! {
                biased;
                () = stop.cancelled() => Err(anyhow::anyhow!("interrupted before it was handed in")),
                uploaded = upload(api, space, args, &file, &added.name, &bar) => uploaded,
            };
            match uploaded {
                Ok((job, document, note)) => {
                    added.status = "queued".to_owned();
                    (added.job, added.document) = (Some(job), document);
                    if !args.no_wait
                        && let Err(error) = follow(api, &mut added, args.timeout, &bar, &note, stop).await
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
    let all = futures::stream::iter(args.files.clone())
        .map(one)
        .buffered(4)
        .collect::<Vec<Added>>();
    tokio::pin!(all);
    let all = tokio::select! {
        all = &mut all => all,
        // Once for all files: each ends in its own way, at once.
        _ = tokio::signal::ctrl_c() => {
            stop.cancel();
            all.await
        }
    };
    let failed = all.iter().any(|a| a.error.is_some());
    if ctx.json {
        let rows: Vec<_> = all.iter().map(|a| json!({ "file": a.name, "jobId": a.job, "documentId": a.document, "status": a.status, "error": a.error, "notice": a.notice })).collect();
        ctx.show(&rows)?;
    } else {
        for a in &all {
            if let Some(notice) = &a.notice {
                eprintln!("{}", plain(&format!("{}  {notice}", a.name)));
            }
            match &a.error {
                None => say(plain(&format!(
                    "{}  {}  (document {}, job {})",
                    a.name,
                    told(&a.status),
                    a.document.as_deref().unwrap_or("?"),
                    a.job.as_deref().unwrap_or("?")
                ))),
                Some(error) => eprintln!("{}", plain(&format!("{}  {}: {error}", a.name, told(&a.status)))),
            }
        }
    }
    if stop.is_cancelled() || stdins > 0 {
        // A read of a pipe or a terminal that is under way cannot be called back, and the runtime would wait for it to end.
        std::process::exit(i32::from(failed));
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
    let mut length = None;
    let source: Box<dyn AsyncRead + Send + Unpin> = if file.as_os_str() == "-" {
        // As it comes, not collected first: the API refuses what is too long, whatever its length is.
        Box::new(tokio::io::stdin())
    } else {
        let meta = tokio::fs::metadata(file)
            .await
            .with_context(|| format!("{} cannot be read", file.display()))?;
        if meta.is_dir() {
            bail!("{} is a folder: add its files with {}/*", file.display(), file.display());
        }
        // Said in advance, the API refuses what is too long before it is sent. A pipe's length is not known.
        length = meta.is_file().then_some(meta.len());
        bar.set_length(meta.len());
        let opened = tokio::fs::File::open(file)
            .await
            .with_context(|| format!("{} cannot be read", file.display()))?;
        Box::new(opened)
    };
    let counted = bar.clone();
    let body = reqwest::Body::wrap_stream(tokio_util::io::ReaderStream::with_capacity(source, 1 << 16).inspect(move |chunk| {
        if let Ok(bytes) = chunk {
            counted.inc(bytes.len() as u64);
        }
    }));
    let mut query = vec![("filename", name), ("spaceId", space)];
    if let Some(c) = &args.conversation {
        query.push(("conversationId", c));
    }
    if let Some(title) = &args.title {
        query.push(("title", title));
    }
    let url = url::Url::parse_with_params(&format!("{}/api/v1/uploads/direct", api.base), query)?;
    let mut request = api
        .http
        .post(url)
        .timeout(LONGEST_UPLOAD)
        .header("content-type", "application/octet-stream");
    if let Some(length) = length {
        request = request.header("content-length", length);
    }
    let answer = api.send(request.body(body)).await.map_err(|error| {
        // A refusal in the middle of a body is often lost with the connection, so the likely reason is said here.
        let sent = bar.position();
        if error.is::<NoAnswer>() && sent > 1 << 20 {
            anyhow::anyhow!("{error} ({sent} bytes were sent; is it larger than the API takes, STEADFAST_MAX_UPLOAD?)")
        } else {
            error
        }
    })?;
    let text = |k: &str| answer.get(k).and_then(Value::as_str).map(str::to_owned);
    let job = text("jobId").context("the API's answer names no job")?;
    Ok((job, text("documentId"), text("note").unwrap_or_default()))
}

/// Looks every now and then until the document can be found, has failed, or is held.
async fn follow(api: &Api, added: &mut Added, timeout: Duration, bar: &ProgressBar, note: &str, stop: &CancellationToken) -> Result<()> {
    bar.set_style(ProgressStyle::with_template("{spinner} {wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(120));
    let job = added.job.clone().unwrap_or_default();
    let deadline = tokio::time::Instant::now() + timeout;
    let mut answered = tokio::time::Instant::now();
    let mut wait = Duration::from_millis(150);
    loop {
        let looked = tokio::select! {
            looked = look(api, &job, added, note) => looked,
            () = stop.cancelled() => Ok(Look::Waits(String::new())),
        };
        match looked {
            Ok(Look::Over) => return Ok(()),
            Ok(Look::Waits(what)) => {
                answered = tokio::time::Instant::now();
                bar.set_message(format!("{}: {what}", added.name));
            }
            Err(error) if error.is::<NoAnswer>() => {
                if answered.elapsed() > PATIENCE {
                    return Err(error.context(format!("it was handed in (job {job}) and the work goes on, but")));
                }
                bar.set_message(format!("{}: the API does not answer just now, looking again", added.name));
            }
            Err(error) => return Err(error),
        }
        if stop.is_cancelled() {
            added.notice = Some(format!("no longer waiting; the work goes on: steadfast jobs show {job}"));
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            bail!(
                "not finished within {}; the work goes on: steadfast jobs show {job}",
                humantime::format_duration(timeout)
            );
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => {}
        }
        wait = (wait * 3 / 2).min(Duration::from_secs(2));
    }
}

/// What one look at a document found.
enum Look {
    /// It can be found, or is held; `Added` says which.
    Over,
    /// Not yet; a few words for the bar.
    Waits(String),
}

async fn look(api: &Api, job: &str, added: &mut Added, note: &str) -> Result<Look> {
    let answer = api.get(&format!("/api/v1/jobs/{job}"), &[]).await?;
    let status = answer.get("status").and_then(Value::as_str).unwrap_or("").to_owned();
    added.status.clone_from(&status);
    match status.as_str() {
        "completed" => {
            let Some(document) = added.document.clone() else {
                return Ok(Look::Over);
            };
            let d = api.get(&format!("/api/v1/documents/{document}"), &[]).await?;
            let pending = d.get("pendingCount").and_then(Value::as_i64).unwrap_or(0);
            if pending == 0 {
                return Ok(Look::Over);
            }
            // It can be found by its words; by meaning in a moment, unless that is stopped or has given up.
            if let Some(notice) = d.get("notice").and_then(Value::as_str) {
                WORDS_ONLY.clone_into(&mut added.status);
                added.notice = Some(notice.to_owned());
                return Ok(Look::Over);
            }
            if let Some((id, why)) = given_up(api, job).await? {
                bail!("can be found by its words alone: {why} (steadfast jobs show {id})");
            }
            "embedding".clone_into(&mut added.status);
            return Ok(Look::Waits(format!("embedding, {pending} to go")));
        }
        "dead" | "failed" => {
            let error = answer.get("error").and_then(Value::as_str).unwrap_or("no reason given");
            bail!("{error} (steadfast jobs show {job})")
        }
        _ => {}
    }
    if let Some(hold) = answer.get("hold").filter(|h| !h.is_null()) {
        added.status = "held".to_owned();
        added.notice = Some(hold.get("notice").and_then(Value::as_str).unwrap_or(note).to_owned());
        return Ok(Look::Over);
    }
    let progress = answer
        .get("progress")
        .and_then(Value::as_f64)
        .map_or_else(String::new, |p| format!(" {:.0} %", p * 100.0));
    Ok(Look::Waits(match status.as_str() {
        "queued" => "waiting for a worker".to_owned(),
        _ => format!("reading{progress}"),
    }))
}

/// A part of the request that waits for a person now, with the API's sentence for why. The request itself counts as completed
/// once its text can be found, so without this a wait for the vectors would only end with its time.
async fn given_up(api: &Api, job: &str) -> Result<Option<(String, String)>> {
    let dead = api.get("/api/v1/jobs/dead", &[("limit", "100".to_owned())]).await?;
    let parts = dead.get("data").and_then(Value::as_array).into_iter().flatten();
    Ok(parts
        .filter(|d| d.get("rootId").and_then(Value::as_str) == Some(job))
        .map(|d| {
            let text = |k: &str, or: &str| d.get(k).and_then(Value::as_str).unwrap_or(or).to_owned();
            (text("id", "ID"), text("error", "no reason given"))
        })
        .next())
}
