//! `fan_out`: a notice for everybody with work behind the closed breaker, a few hundred people a transaction.

use queue_schema::notice;
use queue_schema::outcome::Outcome;

use super::database_away;
use crate::engine::Group;
use crate::run::Context;

pub async fn handle(context: &Context, group: &Group) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(group.claims.len());
    for claim in &group.claims {
        outcomes.push(match claim.item_id {
            Some(incident_id) => tell_all(context, incident_id).await,
            None => Outcome::done(),
        });
    }
    outcomes
}

/// Insert or ignore: a run that dies in the middle is simply run again.
async fn tell_all(context: &Context, incident_id: i64) -> Outcome {
    loop {
        match notice::fan_out(&context.db, incident_id).await {
            Ok(0) => return Outcome::done(),
            Ok(_) => {}
            Err(error) => return database_away(&error),
        }
    }
}
