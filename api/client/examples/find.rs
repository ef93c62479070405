//! Asks a question; with `--file`, hands in a file first and waits until it has been read.
//!
//! ```text
//! cargo run -p steadfast-client --example find -- "when must the renter move out"
//! cargo run -p steadfast-client --example find -- --file ops/samples/note.txt "which coffee machine leaks"
//! ```
//!
//! `STEADFAST_URL` and `STEADFAST_TOKEN` say where and who, or the file that `ops/up` wrote: `STEADFAST_ENV_FILE`, else the first
//! `.steadfast/env` in this folder or one above it.

use std::error::Error;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use steadfast_client::{Client, Hit, Job, JobStatus, Reading, Search, Upload};

const INDEXING: Duration = Duration::from_secs(30);

const USAGE: &str = "usage: find [--file FILE] [--space NAME] QUESTION...";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("find: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let (mut file, mut space, mut question) = (None, None, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--file" => file = Some(arguments.next().ok_or(USAGE)?),
            "--space" => space = Some(arguments.next().ok_or(USAGE)?),
            flag if flag.starts_with("--") => return Err(USAGE.into()),
            _ => question.push(argument),
        }
    }
    if question.is_empty() {
        return Err(USAGE.into());
    }
    let client = Client::new(&setting("STEADFAST_URL")?, &setting("STEADFAST_TOKEN")?)?;

    let mut search = Search::new(question.join(" ")).limit(5);
    if let Some(space) = &space {
        search = search.space(space);
    }
    if let Some(file) = file {
        hand_in(&client, &file, space).await?;
    }

    // The one place where the habit shows: there is no way to the hits past the second arm.
    match client.search(search).await?.read() {
        Reading::Whole(hits) => show(&hits),
        Reading::Degraded(hits, why) => {
            show(&hits);
            println!("{}", plain(&why.sentence()));
        }
    }
    Ok(())
}

/// Uploads, and waits until it can be found or is held.
async fn hand_in(client: &Client, file: &str, space: Option<String>) -> Result<(), Box<dyn Error>> {
    let space = match space {
        Some(space) => space,
        None => match client.spaces().await?.data.as_slice() {
            [only] => only.id.clone(),
            several => {
                let names: Vec<&str> = several.iter().map(|s| s.name.as_str()).collect();
                return Err(format!("name the Space with --space; yours are {}", names.join(", ")).into());
            }
        },
    };
    let accepted = client.upload(&Upload::file(file, space)).await?;
    let mut last = String::new();
    let job = client.wait_for_job(&accepted.job_id, |job| progress(job, &mut last)).await?;
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    match (&job.status, job.hold) {
        (JobStatus::Completed, _) => {
            // Its words can be found now, its meaning in a moment. Past this time the answer itself says what it lacks.
            let indexed = client.wait_for_document(&accepted.document_id, |_| ());
            if let Ok(document) = tokio::time::timeout(INDEXING, indexed).await {
                document?;
            }
            Ok(())
        }
        (_, Some(hold)) => {
            println!("{}", plain(&hold.notice));
            Ok(())
        }
        (status, None) => {
            let why = job.error.unwrap_or_else(|| "no reason given".to_owned());
            Err(format!("job {} is {status}: {why}", job.id).into())
        }
    }
}

/// One line on stderr that a terminal overwrites; elsewhere a line for each change.
fn progress(job: &Job, last: &mut String) {
    let share = job.progress.map_or_else(String::new, |p| format!(" {:.0} %", p * 100.0));
    let line = format!("job {}: {}{share}", job.id, job.status);
    if *last == line {
        return;
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
    } else {
        eprintln!("{line}");
    }
    *last = line;
}

fn show(hits: &[Hit]) {
    for (n, hit) in hits.iter().enumerate() {
        println!("{}. {}  page {}  {:.2}", n + 1, plain(&hit.memory.title), hit.page, hit.score);
        println!("   {}", plain(&hit.snippet));
    }
    if hits.is_empty() {
        println!("nothing was found");
    }
}

/// What a document says must not move the cursor.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// From the environment, else from the file that `ops/up` writes: lines of `NAME='value'`.
fn setting(name: &str) -> Result<String, Box<dyn Error>> {
    if let Some(value) = std::env::var(name).ok().filter(|v| !v.is_empty()) {
        return Ok(value);
    }
    let named = std::env::var_os("STEADFAST_ENV_FILE").map(PathBuf::from);
    let here = std::env::current_dir()?;
    let file = named.or_else(|| here.ancestors().map(|a| a.join(".steadfast/env")).find(|f| f.is_file()));
    let Some(file) = file else {
        return Err(format!("{name} is not set, and there is no .steadfast/env here or above: start ops/up, or set it").into());
    };
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let value = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('='));
    let value = value.ok_or_else(|| format!("{} has no {name}", file.display()))?;
    Ok(value.trim().trim_matches(['\'', '"']).to_owned())
}
