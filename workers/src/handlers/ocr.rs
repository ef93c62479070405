//! `ocr`: fetch the page's picture, have it read, cut the text into chunks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use queue_schema::claim::Claim;
use queue_schema::endpoint::Endpoint;
use queue_schema::kind::Effect;
use queue_schema::kind::ocr::{self, Output};
use queue_schema::outcome::{Outcome, RetryClass};
use steadfast_engines::EngineError;

use super::{blame, blob_failure, database_away, local_failure, place_gone, well};
use crate::engine::Group;
use crate::fault;
use crate::provider::Symptom;
use crate::run::{Context, all};

pub async fn handle(context: &Context, group: &Group) -> Vec<Outcome> {
    let Some(endpoint) = group.endpoint.clone() else {
        return all(group, || {
            Outcome::failed(RetryClass::Unservable, "endpoint_gone", "the endpoint was removed")
        });
    };
    let mut outcomes = Vec::with_capacity(group.claims.len());
    for claim in &group.claims {
        outcomes.push(one(context, group, &endpoint, claim).await);
    }
    outcomes
}

async fn one(context: &Context, group: &Group, endpoint: &Endpoint, claim: &Arc<Claim>) -> Outcome {
    let input = match ocr::input(&context.db, claim).await {
        Ok(Some(input)) => input,
        Ok(None) => return Outcome::failed(RetryClass::Superseded, "page_gone", "deleted in the meantime"),
        Err(error) => return database_away(&error),
    };
    if !input.place_stands {
        return place_gone();
    }
    let png = match context.blobs.get(&input.image_key).await {
        Ok(png) => png,
        Err(error) => return blob_failure(&error),
    };
    fault::asked_by_content(&context.config, &png);
    let (text, confidence) = if endpoint.protocol == "tesseract" {
        match tesseract(context, png).await {
            Ok(read) => read,
            Err(error) => return local_failure(&error),
        }
    } else {
        match context.clients.ocr(endpoint, &png, endpoint.timeout()).await {
            Ok(read) => (read.text, read.confidence),
            // Twice nothing is a blank page, which is an answer; once may be a reader that stumbled (requirement N32).
            Err(failure)
                if failure.symptom == Symptom::EmptyOutput && claim.last_class.as_deref() == Some(RetryClass::EmptyOutput.as_str()) =>
            {
                (String::new(), None)
            }
            Err(failure) => return blame(context, group, endpoint, claim.job_id, failure, true).await,
        }
    };
    well(context, endpoint).await;
    Outcome::Done(Effect::Read(Output {
        page_id: input.page_id,
        document_id: input.document_id,
        page_no: u32::try_from(input.page_no).unwrap_or(1),
        chunks: context.local.chunker.chunks(&text),
        confidence,
    }))
}

/// Stops the reading when the future that waits for it is dropped: a blocking thread cannot be, its child can.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn tesseract(context: &Context, png: bytes::Bytes) -> Result<(String, Option<f32>), EngineError> {
    let engine = context.local.tesseract()?;
    let stop = StopOnDrop(Arc::default());
    let (cancel, limit) = (stop.0.clone(), context.config.ocr_timeout);
    let read = tokio::task::spawn_blocking(move || engine.read(&png, limit, &cancel))
        .await
        .map_err(|_| EngineError::Failed("the reading thread panicked".to_owned()))??;
    drop(stop);
    Ok((read.text, read.mean_confidence.map(|c| c / 100.0)))
}
