//! `question`: one text to one vector, while somebody waits.

use queue_schema::kind::Effect;
use queue_schema::kind::question::{Input, Output};
use queue_schema::outcome::{Outcome, RetryClass};

use super::embed::{local_vectors, too_long};
use super::{blame, local_failure, well};
use crate::engine::Group;
use crate::run::{Context, all};

pub async fn handle(context: &Context, group: &Group) -> Vec<Outcome> {
    let Some(endpoint) = group.endpoint.clone() else {
        return all(group, || {
            Outcome::failed(RetryClass::Unservable, "endpoint_gone", "the endpoint was removed")
        });
    };
    let mut outcomes = Vec::with_capacity(group.claims.len());
    for claim in &group.claims {
        let Ok(Input { text }) = serde_json::from_value(claim.payload.clone()) else {
            outcomes.push(Outcome::failed(RetryClass::BadInput, "payload", "the question has no text"));
            continue;
        };
        if text.trim().is_empty() || too_long(&text, context.config.max_tokens) {
            outcomes.push(Outcome::failed(
                RetryClass::BadInput,
                "text",
                "the question is blank or too long to embed",
            ));
            continue;
        }
        let answer = if endpoint.protocol == "minilm" {
            local_vectors(context, vec![text.clone()])
                .await
                .map(|v| (endpoint.model.clone(), v))
                .map_err(|e| local_failure(&e))
        } else {
            match context
                .clients
                .embed(&endpoint, std::slice::from_ref(&text), context.config.question_timeout)
                .await
            {
                Ok(a) => Ok((a.model, a.vectors)),
                Err(f) => Err(blame(context, group, &endpoint, claim.job_id, f, true).await),
            }
        };
        outcomes.push(match answer {
            Ok((model, mut vectors)) if vectors.len() == 1 => {
                well(context, &endpoint).await;
                Outcome::Done(Effect::Answered(Output {
                    text,
                    model,
                    vector: vectors.remove(0),
                }))
            }
            Ok(_) => Outcome::failed(RetryClass::InvalidOutput, "count", "not one vector for one question"),
            Err(outcome) => outcome,
        });
    }
    outcomes
}
