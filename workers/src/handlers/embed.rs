//! `embed`: a batch of blocks to vectors. A batch that is refused for one of its texts is halved until the one is alone, inside the
//! same claim; only that one is charged (decision B10).

use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use queue_schema::endpoint::{self, Endpoint};
use queue_schema::kind::Effect;
use queue_schema::kind::embed::{self, Output};
use queue_schema::outcome::{Outcome, RetryClass};
use steadfast_engines::EngineError;

use super::{blame, database_away, local_failure, well};
use crate::engine::Group;
use crate::fault;
use crate::provider::ProviderFailure;
use crate::run::{Context, all};

/// A text on its way: which claim it belongs to.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub at: usize,
    pub text: String,
}

pub async fn handle(context: &Context, group: &Group) -> Vec<Outcome> {
    let Some(endpoint) = group.endpoint.clone() else {
        return all(group, || {
            Outcome::failed(RetryClass::Unservable, "endpoint_gone", "the endpoint was removed")
        });
    };
    let inputs = match embed::input(&context.db, &group.claims).await {
        Ok(inputs) => inputs,
        Err(error) => return all(group, || database_away(&error)),
    };
    let mut texts: HashMap<i64, String> = inputs.into_iter().map(|i| (i.block_id, i.content)).collect();
    let mut outcomes: Vec<Option<Outcome>> = group.claims.iter().map(|_| None).collect();
    let mut pieces = Vec::new();
    for (at, claim) in group.claims.iter().enumerate() {
        match claim.item_id.and_then(|id| texts.remove(&id)) {
            None => {
                outcomes[at] = Some(Outcome::failed(
                    RetryClass::Superseded,
                    "block_gone",
                    "deleted or edited in the meantime",
                ))
            }
            // A provider refuses a whole batch for one blank text (public case 61): it is never sent.
            Some(text) if text.trim().is_empty() => {
                outcomes[at] = Some(Outcome::failed(RetryClass::NoContent, "blank", "there is no text to embed"));
            }
            Some(text) if too_long(&text, context.config.max_tokens) => {
                outcomes[at] = Some(Outcome::failed(
                    RetryClass::Oversize,
                    "estimated_too_long",
                    "the text is longer than the limit",
                ));
            }
            Some(text) => pieces.push(Piece { at, text }),
        }
    }
    pieces
        .iter()
        .for_each(|p| fault::asked_by_content(&context.config, p.text.as_bytes()));
    for (at, outcome) in vectors(context, group, &endpoint, pieces).await {
        outcomes[at] = Some(outcome);
    }
    outcomes
        .into_iter()
        .map(|o| o.unwrap_or_else(|| Outcome::failed(RetryClass::InvalidOutput, "no_outcome", "no vector came back for this text")))
        .collect()
}

/// characters / 4, as requirement C38 counts; 0 turns it off.
pub(super) fn too_long(text: &str, max_tokens: u32) -> bool {
    max_tokens > 0 && text.chars().count() / 4 > max_tokens as usize
}

/// Vectors for pieces, each with its outcome.
async fn vectors(context: &Context, group: &Group, endpoint: &Arc<Endpoint>, pieces: Vec<Piece>) -> Vec<(usize, Outcome)> {
    if pieces.is_empty() {
        return Vec::new();
    }
    if endpoint.protocol == "minilm" {
        local(context, endpoint, pieces).await
    } else {
        remote(context, group, endpoint.clone(), pieces).await
    }
}

fn embedded(piece: &Piece, model: &str, vector: Vec<f32>) -> (usize, Outcome) {
    (
        piece.at,
        Outcome::Done(Effect::Embedded(Output {
            model: model.to_owned(),
            vector,
        })),
    )
}

async fn local(context: &Context, endpoint: &Endpoint, pieces: Vec<Piece>) -> Vec<(usize, Outcome)> {
    let mut out = Vec::new();
    let mut pieces = pieces;
    // A text over the model's window is named by its place; the others go on without it.
    loop {
        let texts: Vec<String> = pieces.iter().map(|p| p.text.clone()).collect();
        match local_vectors(context, texts).await {
            Ok(vectors) => {
                out.extend(pieces.iter().zip(vectors).map(|(p, v)| embedded(p, &endpoint.model, v)));
                well(context, endpoint).await;
                return out;
            }
            Err(e @ EngineError::Oversize { index, .. }) if index < pieces.len() => {
                let piece = pieces.remove(index);
                out.push((piece.at, local_failure(&e)));
                if pieces.is_empty() {
                    return out;
                }
            }
            Err(e) => {
                out.extend(pieces.iter().map(|p| (p.at, local_failure(&e))));
                return out;
            }
        }
    }
}

/// The built-in model, beside the runtime.
pub(super) async fn local_vectors(context: &Context, texts: Vec<String>) -> Result<Vec<Vec<f32>>, EngineError> {
    let model = context.local.model().await?;
    tokio::task::spawn_blocking(move || model.embed(&texts))
        .await
        .map_err(|_| EngineError::Failed("the model panicked".to_owned()))?
}

/// One call for all; on a refusal that is about the input, halves, until the one is alone.
fn remote<'a>(context: &'a Context, group: &'a Group, endpoint: Arc<Endpoint>, pieces: Vec<Piece>) -> BoxFuture<'a, Vec<(usize, Outcome)>> {
    async move {
        let texts: Vec<String> = pieces.iter().map(|p| p.text.clone()).collect();
        let failure = match context.clients.embed(&endpoint, &texts, endpoint.timeout()).await {
            Ok(answer) => {
                well(context, &endpoint).await;
                return pieces
                    .iter()
                    .zip(answer.vectors)
                    .map(|(p, v)| embedded(p, &answer.model, v))
                    .collect();
            }
            Err(failure) => failure,
        };
        if pieces.len() > 1 && splits(context, group, &endpoint, &failure).await {
            // The typed one by itself, or halves.
            let (first, second) = match failure.item.filter(|i| *i < pieces.len()) {
                Some(i) => {
                    let mut rest = pieces;
                    let one = rest.remove(i);
                    (vec![one], rest)
                }
                None => {
                    let mut first = pieces;
                    let second = first.split_off(first.len() / 2);
                    (first, second)
                }
            };
            let mut out = remote(context, group, endpoint.clone(), first).await;
            // An outage that begins between the halves ends the splitting: the rest goes back as it is.
            out.extend(remote(context, group, endpoint, second).await);
            return out;
        }
        let mut out = Vec::with_capacity(pieces.len());
        let mut said: Option<Outcome> = None;
        for p in &pieces {
            let job_id = group.claims[p.at].job_id;
            let outcome = match &said {
                // One verdict about the endpoint is enough for the whole batch.
                Some(Outcome::Failed(f)) => Outcome::Failed(f.clone()),
                _ => blame(context, group, &endpoint, job_id, failure.clone(), pieces.len() == 1).await,
            };
            if let Outcome::Failed(f) = &outcome {
                said = Some(Outcome::Failed(f.clone()));
            }
            out.push((p.at, outcome));
        }
        out
    }
    .boxed()
}

/// Whether halving can help: the refusal is about the input, and for the ambiguous ones the endpoint has answered something else
/// within the minute (D7: never bisect during an outage).
async fn splits(context: &Context, group: &Group, endpoint: &Endpoint, failure: &ProviderFailure) -> bool {
    if failure.symptom.answered() {
        return true;
    }
    match group.claims.first() {
        Some(c) if failure.symptom.splits() => endpoint::answered_lately(&context.db, endpoint.id, c.job_id, context.pace())
            .await
            .unwrap_or(false),
        _ => false,
    }
}
