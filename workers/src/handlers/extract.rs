//! `extract`: fetch the bytes, take them apart in a child, store pictures as they come, cut texts into chunks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue_schema::kind::Effect;
use queue_schema::kind::extract::{self, Output, Page};
use queue_schema::outcome::{Failure, Outcome, RetryClass};

use super::{blob_failure, database_away, place_gone};
use crate::child::{self, ChildError};
use crate::engine::Group;
use crate::run::Context;

pub async fn handle(context: &Context, group: &Group) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(group.claims.len());
    for claim in &group.claims {
        outcomes.push(one(context, claim).await);
    }
    outcomes
}

async fn one(context: &Context, claim: &Arc<queue_schema::claim::Claim>) -> Outcome {
    let input = match extract::input(&context.db, claim).await {
        Ok(Some(input)) => input,
        Ok(None) => return Outcome::failed(RetryClass::Superseded, "document_gone", "deleted or replaced in the meantime"),
        Err(error) => return database_away(&error),
    };
    if !input.place_stands {
        return place_gone();
    }
    let bytes = match context.blobs.get(&input.blob_key).await {
        Ok(bytes) => bytes,
        Err(error) => return blob_failure(&error),
    };
    let pages: Arc<Mutex<Vec<Page>>> = Arc::default();
    let result = child::run(bytes, &input.title, &input.media_type, context.config.extract_timeout, |page| {
        let pages = pages.clone();
        async move {
            let page = match page {
                child::Page::Text { no, text } => Page::Text {
                    no,
                    chunks: context.local.chunker.chunks(&text),
                },
                child::Page::Unreadable { no, note } => Page::Unreadable { no, note },
                child::Page::Picture { no, png } => {
                    // Stored before any row points at it; a run that dies here leaves an orphan for retention.
                    let image_key = context
                        .blobs
                        .put(claim.tenant_id, png)
                        .await
                        .map_err(|e| ChildError::Store(e.to_string()))?;
                    Page::Picture { no, image_key }
                }
            };
            pages.lock().unwrap_or_else(PoisonError::into_inner).push(page);
            Ok(())
        }
    })
    .await;
    match result {
        Ok(()) => {
            let pages = std::mem::take(&mut *pages.lock().unwrap_or_else(PoisonError::into_inner));
            Outcome::Done(Effect::Extracted(Output { pages }))
        }
        Err(ChildError::Bad(sentence)) => Outcome::failed(RetryClass::BadInput, extract::UNREADABLE, sentence),
        Err(ChildError::Broken(what)) => Outcome::failed(RetryClass::ItemError, "reader_broke", what),
        Err(e @ (ChildError::NotStarted(_) | ChildError::Store(_))) => {
            Outcome::Failed(Failure::new(RetryClass::Outage, "not_the_file", e.to_string()).after(Duration::from_secs(10)))
        }
        Err(e @ ChildError::Timeout(_)) => Outcome::failed(RetryClass::Timeout, "extract_timeout", e.to_string()),
    }
}
