//! Files from strangers are taken apart in a child process: this same binary, started as `extract-child`, with limits on memory
//! and processor time, no database, no keys, and a kill at the deadline. Whatever a decoder does, it does it there.
//!
//! The document goes in by stdin. Frames come out by stdout: one line of JSON, then as many bytes as it names. One page at a
//! time, so neither side ever holds more than one picture.

use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use steadfast_engines::EngineError;
use steadfast_engines::extract::{Limits, PageContent, extract};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

/// The first argument that makes this binary the child.
pub const ARGUMENT: &str = "extract-child";
/// Address space of the child: a page of 60 million pixels in colour, decoded, turned and written, needs about half of it.
const MEMORY: u64 = 2 << 30;
/// Longest header line; longer is a child gone wrong.
const HEADER_MAX: u64 = 16 << 10;
/// Longest page.
const PAGE_MAX: usize = 256 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
enum Frame {
    Text { no: u32, len: usize },
    Picture { no: u32, len: usize },
    Unreadable { no: u32, note: String },
    End,
    Bad { sentence: String },
    Failed { sentence: String },
}

/// One page, as it comes.
#[derive(Debug)]
pub enum Page {
    Text { no: u32, text: String },
    Picture { no: u32, png: Bytes },
    Unreadable { no: u32, note: String },
}

/// Why there are no more pages.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The file's own fault; the sentence is for a person.
    #[error("{0}")]
    Bad(String),
    /// The child died or went wrong: a crash, if it happens again.
    #[error("{0}")]
    Broken(String),
    /// Nothing has looked at the file yet: this machine is short of something.
    #[error("the reading process could not be started: {0}")]
    NotStarted(String),
    /// A page could not be stored.
    #[error("the blob store did not take a page: {0}")]
    Store(String),
    #[error("it took longer than {}", humantime::format_duration(*.0))]
    Timeout(Duration),
}

/// Takes a document apart, handing over page after page. Dropping the future kills the child.
///
/// # Errors
/// See [`ChildError`].
pub async fn run<F, Fut>(bytes: Bytes, name: &str, media_type: &str, limit: Duration, mut page: F) -> Result<(), ChildError>
where
    F: FnMut(Page) -> Fut,
    Fut: Future<Output = Result<(), ChildError>>,
{
    let broken = |e: &dyn std::fmt::Display| ChildError::Broken(format!("the reading process went wrong: {e}"));
    // Not current_exe(): after an upgrade in place that path names another binary, or none.
    let mut child = Command::new("/proc/self/exe")
        .arg(ARGUMENT)
        .arg(name)
        .arg(media_type)
        .arg(limit.as_secs().max(1).to_string())
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| ChildError::NotStarted(e.to_string()))?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(ChildError::Broken("the reading process has no pipes".to_owned()));
    };
    let feed = tokio::spawn(async move {
        // A child that stops reading early says why on stdout; a broken pipe here is not the message.
        let _told_on_stdout = stdin.write_all(&bytes).await;
    });
    let read = async {
        let mut out = BufReader::new(stdout);
        loop {
            let mut line = String::new();
            (&mut out).take(HEADER_MAX).read_line(&mut line).await.map_err(|e| broken(&e))?;
            let frame: Frame = match serde_json::from_str(&line) {
                Ok(frame) => frame,
                Err(_) => {
                    let status = child.wait().await.map_err(|e| broken(&e))?;
                    return Err(ChildError::Broken(format!("the reading process ended early ({status})")));
                }
            };
            match frame {
                Frame::Text { no, len } => {
                    let text = body(&mut out, len).await.map_err(|e| broken(&e))?;
                    page(Page::Text {
                        no,
                        text: String::from_utf8_lossy(&text).into_owned(),
                    })
                    .await?;
                }
                Frame::Picture { no, len } => {
                    let png = body(&mut out, len).await.map_err(|e| broken(&e))?;
                    page(Page::Picture { no, png: png.into() }).await?;
                }
                Frame::Unreadable { no, note } => page(Page::Unreadable { no, note }).await?,
                Frame::End => return Ok(()),
                Frame::Bad { sentence } => return Err(ChildError::Bad(sentence)),
                Frame::Failed { sentence } => return Err(ChildError::Broken(sentence)),
            }
        }
    };
    let result = tokio::time::timeout(limit, read).await.unwrap_or(Err(ChildError::Timeout(limit)));
    feed.abort();
    result
}

async fn body(out: &mut (impl tokio::io::AsyncRead + Unpin), len: usize) -> std::io::Result<Vec<u8>> {
    if len > PAGE_MAX {
        return Err(std::io::Error::other("a page larger than 256 MB"));
    }
    let mut body = vec![0; len];
    out.read_exact(&mut body).await?;
    Ok(body)
}

/// The child's side. Returns the exit code.
#[must_use]
pub fn main(args: &[String]) -> i32 {
    let [name, media_type, seconds] = args else { return 2 };
    limit_ourselves(&Caps {
        memory: MEMORY,
        cpu_seconds: seconds.parse::<u64>().unwrap_or(300).saturating_mul(2),
        processes: Some(256),
    });
    let mut bytes = Vec::new();
    if std::io::stdin().lock().read_to_end(&mut bytes).is_err() {
        return 3;
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut sink = |page: steadfast_engines::extract::Page| {
        let (frame, body) = match page.content {
            PageContent::Text(text) => (
                Frame::Text {
                    no: page.no,
                    len: text.len(),
                },
                text.into_bytes(),
            ),
            PageContent::Image { png, .. } => (
                Frame::Picture {
                    no: page.no,
                    len: png.len(),
                },
                png,
            ),
            PageContent::Unreadable { note } => (Frame::Unreadable { no: page.no, note }, Vec::new()),
        };
        send(&mut out, &frame, &body).map_err(|e| EngineError::Failed(e.to_string()))
    };
    let media_type = Some(media_type.as_str()).filter(|m| !m.is_empty());
    let last = match extract(&bytes, name, media_type, &Limits::default(), &mut sink) {
        Ok(_) => Frame::End,
        Err(EngineError::BadInput(sentence)) => Frame::Bad { sentence },
        Err(other) => Frame::Failed {
            sentence: other.to_string(),
        },
    };
    match send(&mut out, &last, &[]) {
        Ok(()) => 0,
        Err(_) => 3, // the parent is gone
    }
}

fn send(out: &mut impl std::io::Write, frame: &Frame, body: &[u8]) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, frame)?;
    out.write_all(b"\n")?;
    out.write_all(body)?;
    out.flush()
}

/// What a child process may take, its own children included.
#[derive(Debug)]
pub(crate) struct Caps {
    /// Bytes of address space.
    pub memory: u64,
    /// Seconds of processor time.
    pub cpu_seconds: u64,
    /// Processes and threads of this user, our own and everybody else's: none for a child whose engines need threads.
    pub processes: Option<u64>,
}

/// Makes this process the one that goes first: with its parent, at its limits, and when memory runs out.
pub(crate) fn limit_ourselves(caps: &Caps) {
    use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
    let cap = |n| Rlimit {
        current: Some(n),
        maximum: Some(n),
    };
    // Best effort each: a kernel that refuses one leaves the deadline and the others.
    let _refused = set_parent_process_death_signal(Some(Signal::KILL));
    let _refused = setrlimit(Resource::As, cap(caps.memory));
    let _refused = setrlimit(Resource::Cpu, cap(caps.cpu_seconds));
    let _refused = setrlimit(Resource::Core, cap(0));
    if let Some(processes) = caps.processes {
        let _refused = setrlimit(Resource::Nproc, cap(processes));
    }
    // Rather this one than the worker, or the database beside it.
    let _refused = std::fs::write("/proc/self/oom_score_adj", "1000");
}
