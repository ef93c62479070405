//! The scripted provider: one server that stands for every model, every vendor and every fault they have.
//!
//! It speaks OpenAI's `POST /v1/embeddings`, `POST /v1/chat/completions` and `GET /v1/models`, and `POST /ocr` (multipart
//! field `image_file`, or the raw image; answers `{"text": …, "confidence": …}`). [`Settings`] say how fast it is and whom
//! it knows, an ordered list of [`Rule`]s what goes wrong, and a record of [`Call`]s what it saw. It runs inside a test on
//! a thread of its own ([`Provider::start`]), or as `steadfast-scripted-provider` with the same handle over HTTP.

mod control;
mod http;
mod record;
mod rule;
mod serve;
mod state;
#[cfg(test)]
mod tests;
pub mod vector;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

pub use record::{Call, Outcome, Route, Text, sha256, tokens};
pub use rule::{Action, At, Body, Fixture, Framing, Reply, Rule, VectorFault};
pub use state::{Mode, ScriptedPage, Settings};

use state::State;

/// How long the waits below are prepared to wait before they call it a failure. Far beyond any story's own bounds: those
/// are asserted by the story.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running provider; gone when dropped.
#[derive(Debug)]
pub struct Provider {
    addr: SocketAddr,
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Provider {
    /// Starts one on a free loopback port, with default settings.
    ///
    /// # Panics
    /// When no port is to be had.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(Settings::default())
    }

    /// # Panics
    /// When no port is to be had.
    #[must_use]
    pub fn start_with(settings: Settings) -> Self {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0)), settings).expect("a free loopback port")
    }

    /// # Errors
    /// When the address cannot be bound.
    pub fn start_on(addr: SocketAddr, settings: Settings) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let state = State::new(settings);
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&state);
        // A runtime of its own: it must go on answering while a test blocks on a child process.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("scripted-provider".into()).spawn(move || {
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener that was just bound");
                tokio::select! {
                    end = serve::serve(shared, listener, addr) => end.expect("the port is still free when the provider comes back"),
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self {
            addr,
            state,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://127.0.0.1:PORT`, without a path.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    // ── Script ──────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Appends a rule; the first of the list that matches and has turns left decides.
    pub fn rule(&self, rule: Rule) {
        self.state.add_rules([rule]);
    }

    /// Drops all rules. Calls that are held or hang stay as they are.
    pub fn clear_rules(&self) {
        self.state.clear_rules();
    }

    /// Lets go of the calls that are held at `gate` now.
    pub fn release(&self, gate: &str) {
        self.state.release(gate);
    }

    /// Lets go of everything that is held now.
    pub fn release_all(&self) {
        self.state.release_all();
    }

    /// Changes settings. Calls that wait for a slot see more slots at once.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.state.lock().settings);
        self.state.give_slots();
    }

    /// Accepts this key too; from the first on, every other one gets a 401. The record shows the label.
    pub fn accept_key(&self, label: &str, key: &str) {
        self.set(|s| {
            s.keys.insert(label.to_owned(), key.to_owned());
        });
    }

    /// What the scan with `image` in its bytes (or as its hash, or in its file name) says.
    pub fn page(&self, image: &str, text: &str) {
        self.set(|s| {
            s.pages.push(ScriptedPage {
                image: image.to_owned(),
                text: text.to_owned(),
                confidence: 0.98,
            })
        });
    }

    /// Makes the provider reachable or not; returns when it is so. Idle connections are closed, calls under way go on.
    pub async fn mode(&self, mode: Mode) {
        let mut applied = self.state.applied.subscribe();
        self.state.mode.send_replace(mode);
        tokio::time::timeout(PATIENCE, applied.wait_for(|m| *m == mode))
            .await
            .expect("the provider's thread is alive")
            .expect("the provider's state outlives its handle");
    }

    // ── Record ──────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Everything seen so far, in the order of arrival.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.state.lock().calls.clone()
    }

    /// The calls that had `marker` in one of their texts, or as a text's hash.
    #[must_use]
    pub fn calls_for(&self, marker: &str) -> Vec<Call> {
        self.state.lock().calls.iter().filter(|c| c.has(marker)).cloned().collect()
    }

    /// How many calls with `marker` got their regular answer whole.
    #[must_use]
    pub fn completed(&self, marker: &str) -> usize {
        self.state.lock().calls.iter().filter(|c| c.has(marker) && c.completed()).count()
    }

    /// The most calls that were ever open at once. A cancelled one counts until the provider notices.
    #[must_use]
    pub fn max_concurrency(&self) -> usize {
        self.state.lock().max_open
    }

    /// Calls open now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.state.lock().open
    }

    /// Forgets the calls so far. Numbers go on, the peak starts from what is open.
    pub fn forget(&self) {
        self.state.forget();
    }

    /// Waits until at least `n` calls that work have arrived; returns all of them.
    ///
    /// # Panics
    /// After a minute, with the record.
    pub async fn wait_calls(&self, n: usize) -> Vec<Call> {
        self.wait_record(&format!("{n} calls"), |calls| {
            let work: Vec<Call> = calls.iter().filter(|c| c.route.works()).cloned().collect();
            (work.len() >= n).then_some(work)
        })
        .await
    }

    /// Waits for the first call of which `is` holds.
    ///
    /// # Panics
    /// After a minute, with the record.
    pub async fn wait_for(&self, what: &str, is: impl Fn(&Call) -> bool) -> Call {
        self.wait_record(what, |calls| calls.iter().find(|c| is(c)).cloned()).await
    }

    /// Waits until `look` finds in the record what it looks for. It is asked at every change, so nothing is polled.
    ///
    /// # Panics
    /// After a minute, with the record.
    pub async fn wait_record<T>(&self, what: &str, look: impl Fn(&[Call]) -> Option<T>) -> T {
        let mut changed = self.state.changed.subscribe();
        let wait = async {
            loop {
                changed.borrow_and_update();
                if let Some(found) = look(&self.state.lock().calls) {
                    return found;
                }
                changed.changed().await.expect("the provider's state outlives its handle");
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(found) => found,
            Err(_) => panic!("the provider waited {PATIENCE:?} for {what}; it saw {:#?}", self.calls()),
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
