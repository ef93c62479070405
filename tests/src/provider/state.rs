//! What the provider remembers: settings, script, record, slots and gates, all behind one lock that is never held across
//! an await.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use super::http::find;
use super::record::{Call, Outcome, Route, Text, sha256, tokens};
use super::rule::{Action, Rule};

/// What holds for every call that no rule is for. May be changed at any time; a call reads it when it needs it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Numbers in a vector, unless the call asks for `dimensions`.
    pub dims: usize,
    /// Tokens that one slot works off in a second. `None`: no work at all.
    pub tokens_per_second: Option<f64>,
    /// How many calls are worked on at once; the others wait, first come, first served. `None`: any number.
    pub slots: Option<usize>,
    /// Before any answer, faults included.
    pub latency_ms: u64,
    /// Label → key. Empty: any key and none will do. The record shows labels only.
    pub keys: BTreeMap<String, String>,
    /// Models that exist; the others get `model_not_found`. Empty: all do.
    pub models: Vec<String>,
    /// A text with more tokens gets `exceed_context_size`. `None`: no limit.
    pub context_tokens: Option<u64>,
    /// Tokens that a chat answer costs beside its question.
    pub chat_tokens: u64,
    /// What the scans say, first match first. Others say `scripted page N`, N in the order in which images were first seen.
    pub pages: Vec<ScriptedPage>,
    /// Whether work stops at the next 1,024 tokens when the caller has gone. `false`: it goes on to its end.
    pub notices_disconnect: bool,
    /// `false`: every answer says `connection: close`.
    pub keep_alive: bool,
    /// Closes the connection after each answer although it promised to keep it: a stale connection in the caller's pool.
    pub drops_idle: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dims: 384,
            tokens_per_second: None,
            slots: None,
            latency_ms: 0,
            keys: BTreeMap::new(),
            models: Vec::new(),
            context_tokens: None,
            chat_tokens: 64,
            pages: Vec::new(),
            notices_disconnect: true,
            keep_alive: true,
            drops_idle: false,
        }
    }
}

/// What one scan says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedPage {
    /// The hex SHA-256 of the image, or a substring of its bytes or file name.
    pub image: String,
    pub text: String,
    #[serde(default = "sure")]
    pub confidence: f64,
}

fn sure() -> f64 {
    0.98
}

/// Whether anybody can reach the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Open,
    /// Connections are made by the kernel, nobody takes them.
    Deaf,
    /// Connections are refused: nobody listens.
    Refuse,
}

#[derive(Debug)]
pub(super) struct State {
    started: Instant,
    inner: Mutex<Inner>,
    /// Rises whenever the record does.
    pub(super) changed: watch::Sender<u64>,
    pub(super) mode: watch::Sender<Mode>,
    /// The mode that is really in force.
    pub(super) applied: watch::Sender<Mode>,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) settings: Settings,
    rules: Vec<Armed>,
    pub(super) calls: Vec<Call>,
    pub(super) open: usize,
    pub(super) max_open: usize,
    busy: usize,
    waiters: VecDeque<oneshot::Sender<Slot>>,
    /// Image hash → its number among the images seen.
    seen: HashMap<String, usize>,
    gates: HashMap<String, watch::Sender<()>>,
    forgotten: u64,
}

#[derive(Debug)]
struct Armed {
    rule: Rule,
    matched: u32,
    served: u32,
}

/// A call as it arrived, before it is recorded.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) route: Route,
    pub(super) path: String,
    pub(super) texts: Vec<Text>,
    /// Where else a rule's marker may be: an image's bytes and file name.
    pub(super) hay: Vec<bytes::Bytes>,
    pub(super) model: String,
    pub(super) bearer: Option<String>,
}

/// What was decided about an arrival. The gates are entered in the same breath in which the call becomes visible, so a
/// test that saw it arrive can release it without losing a race.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) seq: u64,
    pub(super) action: Action,
    pub(super) after_ms: u64,
    pub(super) gates: VecDeque<watch::Receiver<()>>,
}

impl State {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            inner: Mutex::new(Inner {
                settings,
                ..Inner::default()
            }),
            changed: watch::Sender::new(0),
            mode: watch::Sender::new(Mode::Open),
            applied: watch::Sender::new(Mode::Open),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic in a test's closure must not hide behind a second one here.
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn arrive(&self, a: Arrival) -> Decided {
        let in_ms = self.now_ms();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let key = inner.settings.label(a.bearer.as_deref());
        let hit = inner.rules.iter_mut().enumerate().find_map(|(i, r)| r.fires(&a, &key).then_some(i));
        let (action, after_ms) = hit.map_or((Action::Normal, 0), |i| {
            (inner.rules[i].rule.then.clone(), inner.rules[i].rule.after_ms)
        });
        let mut gates = VecDeque::new();
        let mut step = &action;
        while let Action::Hold { gate, then } = step {
            gates.push_back(inner.gates.entry(gate.clone()).or_default().subscribe());
            step = then;
        }
        if a.route.works() {
            inner.open += 1;
            inner.max_open = inner.max_open.max(inner.open);
        }
        let seq = inner.forgotten + inner.calls.len() as u64 + 1;
        inner.calls.push(Call {
            seq,
            route: a.route,
            path: a.path,
            in_ms,
            out_ms: None,
            slot_wait_ms: 0,
            tokens: a.texts.iter().map(|t| tokens(&t.text)).sum(),
            texts: a.texts,
            model: a.model,
            key,
            in_flight: inner.open,
            status: None,
            outcome: Outcome::Open,
            cancelled_at: None,
            rule: hit,
        });
        drop(guard);
        self.tell();
        Decided {
            seq,
            action,
            after_ms,
            gates,
        }
    }

    /// Changes the record of one call.
    pub(super) fn note(&self, seq: u64, change: impl FnOnce(&mut Call)) {
        let mut inner = self.lock();
        let at = seq.checked_sub(inner.forgotten + 1).and_then(|i| usize::try_from(i).ok());
        if let Some(call) = at.and_then(|i| inner.calls.get_mut(i)) {
            change(call);
        }
        drop(inner);
        self.tell();
    }

    pub(super) fn leave(&self, seq: u64, route: Route, outcome: Outcome) {
        let now = self.now_ms();
        if route.works() {
            let mut inner = self.lock();
            inner.open = inner.open.saturating_sub(1);
        }
        self.note(seq, |c| {
            c.out_ms = Some(now);
            c.outcome = outcome;
        });
    }

    /// Forgets the calls so far; their numbers are not given again.
    pub(super) fn forget(&self) {
        let mut inner = self.lock();
        inner.forgotten += inner.calls.len() as u64;
        inner.calls.clear();
        inner.max_open = inner.open;
        drop(inner);
        self.tell();
    }

    pub(super) fn tell(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    pub(super) fn add_rules(&self, rules: impl IntoIterator<Item = Rule>) {
        self.lock().rules.extend(rules.into_iter().map(|rule| Armed {
            rule,
            matched: 0,
            served: 0,
        }));
    }

    pub(super) fn clear_rules(&self) {
        self.lock().rules.clear();
    }

    pub(super) fn rules(&self) -> Vec<Rule> {
        self.lock().rules.iter().map(|r| r.rule.clone()).collect()
    }

    pub(super) fn release(&self, gate: &str) {
        self.lock().gates.entry(gate.to_owned()).or_default().send_replace(());
    }

    pub(super) fn release_all(&self) {
        self.lock().gates.values().for_each(|g| {
            g.send_replace(());
        });
    }

    /// What an image says, and how surely.
    pub(super) fn page(&self, image: &bytes::Bytes, file: &str) -> (String, f64) {
        let hash = sha256(image);
        let mut inner = self.lock();
        let next = inner.seen.len() + 1;
        let n = *inner.seen.entry(hash.clone()).or_insert(next);
        let scripted = inner
            .settings
            .pages
            .iter()
            .find(|p| p.image == hash || file.contains(&p.image) || find(image, p.image.as_bytes()).is_some());
        scripted.map_or_else(|| (format!("scripted page {n}"), sure()), |p| (p.text.clone(), p.confidence))
    }

    /// Waits for one of the slots, in the order of asking.
    pub(super) async fn slot(self: &Arc<Self>) -> Slot {
        let ticket = {
            let mut inner = self.lock();
            if inner.settings.slots.is_none_or(|n| inner.busy < n) && inner.waiters.is_empty() {
                inner.busy += 1;
                return Slot(Arc::clone(self));
            }
            let (give, ticket) = oneshot::channel();
            inner.waiters.push_back(give);
            ticket
        };
        match ticket.await {
            Ok(slot) => slot,
            // Senders live in the state that we hold; they are only ever used, never dropped.
            Err(_) => std::future::pending().await,
        }
    }

    /// Gives free slots to those who wait. Also to be called when there are more slots than before.
    pub(super) fn give_slots(self: &Arc<Self>) {
        loop {
            let mut inner = self.lock();
            if inner.settings.slots.is_some_and(|n| inner.busy >= n) {
                return;
            }
            let Some(waiter) = inner.waiters.pop_front() else { return };
            inner.busy += 1;
            drop(inner);
            // Whoever stopped waiting gives the slot back by dropping it, which comes here again.
            let _ = waiter.send(Slot(Arc::clone(self)));
        }
    }
}

/// One of the provider's slots, until dropped.
#[derive(Debug)]
pub(super) struct Slot(Arc<State>);

impl Drop for Slot {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.busy = inner.busy.saturating_sub(1);
        drop(inner);
        self.0.give_slots();
    }
}

impl Settings {
    /// A name for a key that may be shown.
    fn label(&self, bearer: Option<&str>) -> String {
        let Some(key) = bearer else { return "none".into() };
        self.keys
            .iter()
            .find(|(_, k)| *k == key)
            .map_or_else(|| format!("unlisted-{}", &sha256(key.as_bytes())[..8]), |(l, _)| l.clone())
    }

    pub(super) fn accepts(&self, bearer: Option<&str>) -> bool {
        self.keys.is_empty() || bearer.is_some_and(|b| self.keys.values().any(|k| k == b))
    }

    pub(super) fn has_model(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|m| m == model)
    }
}

impl Armed {
    fn fires(&mut self, a: &Arrival, key: &str) -> bool {
        let r = &self.rule;
        let fits = r.route.map_or(a.route.works(), |x| x == a.route)
            && r.key.as_ref().is_none_or(|k| k == key)
            && r.text.as_ref().is_none_or(|m| {
                a.texts.iter().any(|t| t.text.contains(m.as_str())) || a.hay.iter().any(|h| find(h, m.as_bytes()).is_some())
            });
        if !fits {
            return false;
        }
        self.matched += 1;
        if r.nth.is_some_and(|n| n != self.matched) || r.times.is_some_and(|t| self.served >= t) {
            return false;
        }
        self.served += 1;
        true
    }
}
