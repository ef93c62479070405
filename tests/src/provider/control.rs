//! The same handle over HTTP, for a provider that runs as a process of its own.
//!
//! | call | what it does |
//! |---|---|
//! | `GET /control/record` | `{"calls": […], "max_concurrency": n, "in_flight": n}` |
//! | `GET /control/record?text=MARKER` | only the calls that have it |
//! | `DELETE /control/record` | forgets the calls so far |
//! | `GET /control/settings` | the settings, keys shown as `***` |
//! | `POST /control/settings` | changes the named ones, e.g. `{"slots": 1, "keys": {"new": "sk-…"}}` |
//! | `GET`, `POST`, `PUT`, `DELETE /control/rules` | list, append (one or a list), replace, clear |
//! | `POST /control/release` | `{"gate": "name"}`; without a name all of them |
//! | `POST /control/mode` | `{"mode": "deaf", "for_ms": 500}`: `open`, `deaf` or `refuse`; away for that long, or (deaf and refuse) for good |
//!
//! A rule: `{"text": "POISON", "times": 2, "then": {"do": "fixture", "name": "service_unavailable"}}`.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::http::Request;
use super::rule::{Reply, Rule};
use super::state::{Mode, Settings, State};

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(Box<Rule>),
    Many(Vec<Rule>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    gate: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetMode {
    mode: Mode,
    for_ms: Option<u64>,
}

pub(super) async fn answer(state: &Arc<State>, request: &Request) -> Reply {
    match act(state, request).await {
        Ok(value) => Reply::json(200, &value),
        Err((status, message)) => Reply::json(status, &json!({"error": message})),
    }
}

async fn act(state: &Arc<State>, request: &Request) -> Result<Value, (u16, String)> {
    let done = || Ok(json!({"ok": true}));
    match (request.method.as_str(), request.path.trim_start_matches("/control/")) {
        ("GET", "record") => {
            let text = url::form_urlencoded::parse(request.query.as_bytes()).find_map(|(k, v)| (k == "text").then(|| v.into_owned()));
            let inner = state.lock();
            let calls: Vec<_> = inner.calls.iter().filter(|c| text.as_ref().is_none_or(|t| c.has(t))).collect();
            Ok(json!({"calls": calls, "max_concurrency": inner.max_open, "in_flight": inner.open}))
        }
        ("DELETE", "record") => {
            state.forget();
            done()
        }
        ("GET", "settings") => {
            let mut shown = state.lock().settings.clone();
            shown.keys.values_mut().for_each(|k| *k = "***".into());
            Ok(json!(shown))
        }
        ("POST", "settings") => {
            let changes: serde_json::Map<String, Value> = parse(&request.body)?;
            {
                let mut inner = state.lock();
                let mut all = json!(inner.settings);
                for (name, value) in changes {
                    all[name] = value;
                }
                inner.settings = serde_json::from_value::<Settings>(all).map_err(|e| (400, e.to_string()))?;
            }
            state.give_slots();
            done()
        }
        ("GET", "rules") => Ok(json!(state.rules())),
        (method @ ("POST" | "PUT"), "rules") => {
            let rules = match parse(&request.body)? {
                OneOrMany::One(rule) => vec![*rule],
                OneOrMany::Many(rules) => rules,
            };
            if method == "PUT" {
                state.clear_rules();
            }
            state.add_rules(rules);
            done()
        }
        ("DELETE", "rules") => {
            state.clear_rules();
            done()
        }
        ("POST", "release") => {
            match parse::<Release>(&request.body)?.gate {
                Some(gate) => state.release(&gate),
                None => state.release_all(),
            }
            done()
        }
        ("POST", "mode") => {
            let SetMode { mode, for_ms } = parse(&request.body)?;
            if let Some(ms) = for_ms {
                let state = Arc::clone(state);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    state.mode.send_replace(Mode::Open);
                });
            }
            state.mode.send_replace(mode);
            done()
        }
        (method, path) => Err((404, format!("no {method} /control/{path}; see the module's table"))),
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, (u16, String)> {
    serde_json::from_slice(if body.is_empty() { b"{}" } else { body }).map_err(|e| (400, e.to_string()))
}
