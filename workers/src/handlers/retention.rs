//! `retention`: old rows go, then blobs that nothing names.

use queue_schema::outcome::Outcome;
use queue_schema::retention::{self, Keep};

use super::{blob_failure, database_away};
use crate::engine::Group;
use crate::run::{Context, all};

pub async fn handle(context: &Context, group: &Group) -> Vec<Outcome> {
    match sweep(context).await {
        Ok(()) => all(group, Outcome::done),
        Err(outcome) => {
            let mut outcomes = vec![outcome];
            outcomes.extend(group.claims.iter().skip(1).map(|_| Outcome::done()));
            outcomes
        }
    }
}

async fn sweep(context: &Context) -> Result<(), Outcome> {
    let keep = Keep::default();
    let rows = retention::sweep(&context.db, &keep).await.map_err(|e| database_away(&e))?;
    let mut blobs = 0;
    loop {
        let keys = retention::dropped(&context.db, 500).await.map_err(|e| database_away(&e))?;
        if keys.is_empty() {
            break;
        }
        for key in &keys {
            context.blobs.delete(key).await.map_err(|e| blob_failure(&e))?;
            blobs += 1;
        }
        retention::forget_dropped(&context.db, &keys).await.map_err(|e| database_away(&e))?;
    }
    let now = context.db.now().await.map_err(|e| database_away(&e))?;
    let old = context
        .blobs
        .list_older_than(now, keep.orphan_blobs, 10_000)
        .await
        .map_err(|e| blob_failure(&e))?;
    for keys in old.chunks(500) {
        for key in retention::orphans(&context.db, keys).await.map_err(|e| database_away(&e))? {
            context.blobs.delete(&key).await.map_err(|e| blob_failure(&e))?;
            blobs += 1;
        }
    }
    tracing::info!(rows, blobs, "retention: removed what was past its time");
    Ok(())
}
