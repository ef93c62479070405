use reqwest::Method;
use serde_json::{Value, json};

use super::foreign::{Foreign, part};
use super::{Answer, Client};

/// A provider that is not ours and judges its client: llmock. It speaks OpenAI's protocol below `/v1`.
#[derive(Debug)]
pub struct Llmock {
    client: Client,
    url: String,
    _server: Foreign,
    _dir: tempfile::TempDir,
}

impl Llmock {
    /// Starts `llmock serve` with `args` (`["--rpm", "60"]`, `["--error-rate", "503=0.1"]`, …) on a free loopback port, and
    /// returns when it answers.
    ///
    /// # Panics
    /// Without `STEADFAST_LLMOCK` (the program), or when it does not start.
    pub async fn start(args: &[&str]) -> Self {
        let program = part("STEADFAST_LLMOCK", "program llmock 0.2.2");
        let dir = tempfile::Builder::new()
            .prefix("steadfast-llmock-")
            .tempdir()
            .expect("a temporary folder");
        let all = |port: u16| {
            let mut all = ["serve", "--host", "127.0.0.1", "--log-level", "warning", "--port"]
                .map(str::to_owned)
                .to_vec();
            all.push(port.to_string());
            all.extend(args.iter().map(|a| (*a).to_owned()));
            all
        };
        let (server, port) = Foreign::start_on_a_free_port(&program, dir.path(), all, async |port: u16| {
            let client = Client::new(&format!("http://127.0.0.1:{port}"), "", 0);
            client.try_send(client.request(Method::GET, "/_llmock/verdict")).await.map(drop)
        })
        .await;
        let url = format!("http://127.0.0.1:{port}");
        Self {
            client: Client::new(&url, "", 0),
            url,
            _server: server,
            _dir: dir,
        }
    }

    /// `http://127.0.0.1:PORT`, without a path.
    #[must_use]
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// What it thinks of its clients: `{"passed", "calls", "attempts", "faults_injected", "errors", "warnings", "findings":
    /// [{"code": "retry_after_ignored", "requests": [1, 2], …}]}`. Calls with the same body are tries of one call.
    ///
    /// # Panics
    /// When it does not answer.
    pub async fn verdict(&self) -> Value {
        ok(self.client.get("/_llmock/verdict").await).json
    }

    /// The codes of what it found.
    ///
    /// # Panics
    /// When it does not answer.
    pub async fn findings(&self) -> Vec<String> {
        let verdict = self.verdict().await;
        let found = verdict["findings"].as_array().unwrap_or_else(|| panic!("no findings in {verdict}"));
        found.iter().map(|f| f["code"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Queues what the next requests meet, e.g. `{"type": "fail", "status": 429, "retry_after": 1.5, "times": 3}`.
    ///
    /// # Panics
    /// When it refuses.
    pub async fn script(&self, behavior: Value) {
        ok(self.client.post("/_llmock/scenario", &json!({"behaviors": [behavior]})).await);
    }

    /// Every request that it has answered, oldest first: `{"seq", "path", "status", "retry_after", "started_at", …}`.
    ///
    /// # Panics
    /// When it does not answer.
    pub async fn requests(&self) -> Vec<Value> {
        let answer = ok(self.client.get("/_llmock/requests").await);
        answer.json["requests"]
            .as_array()
            .cloned()
            .unwrap_or_else(|| panic!("no requests in {answer}"))
    }
}

fn ok(answer: Answer) -> Answer {
    assert!(matches!(answer.status, 200 | 201), "{answer}");
    answer
}
