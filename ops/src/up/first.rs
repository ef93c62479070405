//! The first start: a token, a few documents, and one real answer.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::say::Say;

/// How long the first start waits for an answer by meaning before it goes on without.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client of our own API.
#[derive(Debug)]
pub(super) struct Api {
    http: reqwest::Client,
    pub(super) url: String,
}

impl Api {
    pub(super) fn new(url: String) -> Result<Self> {
        // A proxy from the environment has no business between us and our own machine.
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build()?;
        Ok(Self { http, url })
    }

    /// Waits until the API says that it is ready.
    pub(super) async fn ready(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            let answer = self
                .http
                .get(format!("{}/health/ready", self.url))
                .timeout(Duration::from_secs(5))
                .send()
                .await;
            let why = match answer {
                Ok(answer) if answer.status().is_success() => return Ok(()),
                Ok(answer) => format!("it answers {}", answer.status()),
                Err(error) => format!("{:#}", anyhow::Error::from(error)),
            };
            if began.elapsed() > Duration::from_secs(30) {
                bail!("the API is not ready after 30 s: {why}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn json<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder, token: &str) -> Result<T> {
        let answer = request.bearer_auth(token).send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        if !status.is_success() {
            // The API's own sentence when it has one.
            let said = serde_json::from_str::<Value>(&text).ok();
            let said = said
                .as_ref()
                .and_then(|body| body.pointer("/error/message"))
                .and_then(Value::as_str)
                .unwrap_or(&text);
            bail!("the API answers {status}: {said}");
        }
        serde_json::from_str(&text).context("the API's answer is not as expected")
    }

    fn at(&self, path: &str, query: &[(&str, &str)]) -> Result<url::Url> {
        Ok(url::Url::parse_with_params(&format!("{}{path}", self.url), query)?)
    }

    async fn first_space(&self, token: &str) -> Result<String> {
        let spaces: Value = self.json(self.http.get(format!("{}/api/v1/spaces", self.url)), token).await?;
        match spaces.pointer("/data/0/id") {
            Some(Value::String(id)) => Ok(id.clone()),
            Some(id) if id.is_number() => Ok(id.to_string()),
            _ => bail!("there is no Space to put them in"),
        }
    }

    /// Hands a file in; gives its job.
    async fn add(&self, token: &str, space: &str, file: &Path) -> Result<String> {
        let name = file.file_name().and_then(|name| name.to_str()).context("a sample has a name")?;
        let bytes = tokio::fs::read(file)
            .await
            .with_context(|| format!("cannot read {}", file.display()))?;
        let request = self
            .http
            .post(self.at("/api/v1/uploads/direct", &[("filename", name), ("spaceId", space)])?)
            // A first start that was cut short is repeated, its documents are not.
            .header("idempotency-key", format!("sample-{name}"))
            .header("content-type", "application/octet-stream")
            .body(bytes);
        Ok(self.json::<Added>(request, token).await?.job_id)
    }

    /// Whether nothing more will become of a job: it is done, has failed for good, or is held until somebody acts.
    async fn has_ended(&self, token: &str, job: &str) -> Result<bool> {
        let job: Job = self.json(self.http.get(format!("{}/api/v1/jobs/{job}", self.url)), token).await?;
        Ok(matches!(job.status.as_str(), "completed" | "failed" | "dead") || job.hold.is_some_and(|hold| !hold.is_null()))
    }

    async fn search(&self, token: &str, question: &str) -> Result<Answer> {
        self.json(
            self.http.get(self.at("/api/v1/search", &[("query", question), ("limit", "3")])?),
            token,
        )
        .await
    }
}

/// The samples that came with the source, sorted; empty when there are none.
pub(super) fn samples() -> Vec<PathBuf> {
    let Some(folder) = std::env::var_os("STEADFAST_SAMPLES") else {
        return Vec::new();
    };
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file() && is_sample(path))
        .collect();
    files.sort();
    files
}

fn is_sample(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !name.starts_with('.') && !name.starts_with("README") && !name.ends_with(".py")
}

/// Hands the samples in and asks until the answer comes by meaning.
pub(super) async fn welcome(api: &Api, token: &str, question: &str, say: Say) -> Result<()> {
    let files = samples();
    if files.is_empty() {
        return Ok(());
    }
    let step = say.step(format!("adding {} sample documents", files.len()), true);
    let space = api.first_space(token).await?;
    let mut reading = Vec::new();
    for (no, file) in files.iter().enumerate() {
        step.note(format!(
            "adding sample {} of {}: {}",
            no + 1,
            files.len(),
            file.file_name().unwrap_or_default().to_string_lossy()
        ));
        let job = api.add(token, &space, file).await;
        reading.push(job.with_context(|| format!("cannot add {}", file.display()))?);
    }
    step.done(format!("{} sample documents handed in", files.len()));

    let step = say.step(format!("reading them, then asking: {question}"), true);
    let began = Instant::now();
    // Asked only when all of them are read: before, the best answer may be one that merely came first.
    while let Some(job) = reading.last() {
        if api.has_ended(token, job).await? {
            reading.pop();
            continue;
        }
        if began.elapsed() > PATIENCE {
            step.done(format!(
                "{} of the samples are still being read: search in a while, `steadfast jobs ls` shows how far they are",
                reading.len()
            ));
            return Ok(());
        }
        step.note(format!(
            "reading {} of {} samples, then asking: {question}",
            reading.len(),
            files.len()
        ));
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    loop {
        let answer = api.search(token, question).await?;
        let pending = answer.diagnostics.pending;
        if !answer.diagnostics.degraded
            && pending == 0
            && let Some(hit) = answer.results.first()
        {
            step.done(format!("asked: {question}"));
            say.line(format!("  found in {}", hit.in_one_line()));
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            step.done(format!(
                "the samples are still being read ({pending} pending): search in a while, `steadfast jobs ls` shows how far they are"
            ));
            return Ok(());
        }
        step.note(format!("reading them ({pending} pending), then asking: {question}"));
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// What we read of an accepted upload.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Added {
    job_id: String,
}

/// What we read of a job.
#[derive(Deserialize)]
struct Job {
    status: String,
    hold: Option<Value>,
}

/// What we read of a search answer.
#[derive(Deserialize)]
struct Answer {
    results: Vec<Hit>,
    diagnostics: Diagnostics,
}

#[derive(Deserialize)]
struct Hit {
    memory: Memory,
    snippet: String,
}

#[derive(Deserialize)]
struct Memory {
    title: String,
}

#[derive(Deserialize)]
struct Diagnostics {
    degraded: bool,
    /// Pieces that are not searchable by meaning yet.
    pending: u64,
}

impl Hit {
    fn in_one_line(&self) -> String {
        let text = self.snippet.split_whitespace().collect::<Vec<_>>().join(" ");
        let short: String = text.chars().take(200).collect();
        let dots = if short.len() < text.len() { " …" } else { "" };
        format!("{}: “{short}{dots}”", self.memory.title)
    }
}
