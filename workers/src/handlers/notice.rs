//! `notice`: one part of one notice, as a mail, at most once. Its row says `sending` before the first byte leaves; whoever finds it so
//! later cannot know whether it arrived, so it becomes `unknown` and is not sent again by itself (decision B25).

use queue_schema::claim::Claim;
use queue_schema::kind::Effect;
use queue_schema::kind::notice::{Output, State, part, round};
use queue_schema::notice::{self, Input, Part};
use queue_schema::outcome::{Failure, Outcome, RetryClass};

use super::database_away;
use crate::engine::Group;
use crate::mail::{Letter, Mailer, NotSent, Sent};
use crate::run::Context;

pub async fn handle(context: &Context, group: &Group) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(group.claims.len());
    for claim in &group.claims {
        outcomes.push(one(context, claim).await.unwrap_or_else(|error| database_away(&error)));
    }
    outcomes
}

async fn one(context: &Context, claim: &Claim) -> Result<Outcome, queue_schema::DbError> {
    let Some(mailer) = &context.mailer else {
        return Ok(Outcome::failed(
            RetryClass::Unservable,
            "no_smtp",
            "this worker has no STEADFAST_SMTP_URL",
        ));
    };
    let part = part(claim);
    let input = match claim.item_id {
        Some(id) => notice::input(&context.db, id).await?,
        None => None,
    };
    let Some(input) = input else {
        return Ok(Outcome::failed(
            RetryClass::Superseded,
            "notice_gone",
            "the incident or the person is gone",
        ));
    };
    let state = match part {
        Part::Opening => Some(input.opening.as_str()),
        // Of a round that is over, nothing is left to send: the next one has a job of its own.
        Part::Closing => input.closing.as_deref().filter(|_| input.round == round(claim)),
    };
    match state {
        Some("due") => {}
        Some("sending") => {
            tracing::warn!(
                notice.id = input.id,
                "a mail may or may not have been sent before a worker died: not sent again by itself"
            );
            return Ok(noticed(State::Unknown, Some("the worker that was sending it died".to_owned())));
        }
        // Landed before it could be told, or a round that is over.
        _ => return Ok(Outcome::failed(RetryClass::NoContent, "not_due", "there is nothing to send")),
    }
    let Some(to) = input.email.clone().filter(|e| !e.trim().is_empty()) else {
        return Ok(noticed(State::NoAddress, None));
    };
    let letter = letter(context, mailer, &input, part, to).await?;
    if !notice::begin(&context.db, input.id, part, round(claim)).await? {
        return Ok(Outcome::failed(
            RetryClass::NoContent,
            "begun_elsewhere",
            "somebody else has begun to send it",
        ));
    }
    Ok(match mailer.send(&letter).await {
        Sent::Accepted => noticed(State::Sent, None),
        Sent::Unknown { cause, error } => {
            tracing::warn!(
                notice.id = input.id,
                cause,
                error,
                "a mail may or may not have been accepted: not sent again by itself"
            );
            noticed(State::Unknown, Some(error))
        }
        Sent::NotSent { why, cause, error } => {
            match why {
                // The job ends dead, and with it the part says `failed`.
                // A refused sender is our setting's fault and not the letter's: it waits like a refused password.
                NotSent::BadAddress | NotSent::Refused if cause != "sender_refused" => {
                    return Ok(Outcome::failed(RetryClass::BadInput, cause, error));
                }
                NotSent::KeyRefused | NotSent::BadAddress | NotSent::Refused => {
                    tracing::error!(
                        cause,
                        error,
                        "the mail server refuses our login or sender: notices wait until STEADFAST_SMTP_URL or STEADFAST_MAIL_FROM is mended"
                    );
                }
                NotSent::Away => {}
            }
            notice::back(&context.db, input.id, part, round(claim), &error).await?;
            let streak = u32::try_from(claim.attempt).unwrap_or(u32::MAX);
            Outcome::Failed(Failure::new(RetryClass::Outage, cause, error).after(context.pace().endpoint(streak, rand::random())))
        }
    })
}

async fn letter(context: &Context, mailer: &Mailer, input: &Input, part: Part, to: String) -> Result<Letter, queue_schema::DbError> {
    let unfinished = match (part, input.closing_wording.as_deref()) {
        (Part::Closing, Some("needs_attention")) => notice::unfinished(&context.db, input).await?,
        _ => Vec::new(),
    };
    let replay = context
        .config
        .public_url
        .as_ref()
        .map(|url| format!("POST {}/api/v1/jobs/dead/{{id}}/replay", url.trim_end_matches('/')));
    let (subject, body) = notice::compose(input, part, &unfinished, replay.as_deref());
    let which = match part {
        Part::Opening => "opening".to_owned(),
        Part::Closing => format!("closing.{}", input.round),
    };
    Ok(Letter {
        to,
        subject,
        body,
        // The same for the same part of the same notice, whoever sends it: a mail server or client can tell a repetition.
        message_id: format!("incident-{}.user-{}.{which}@{}", input.incident_id, input.user_id, mailer.domain()),
    })
}

fn noticed(state: State, error: Option<String>) -> Outcome {
    Outcome::Done(Effect::Noticed(Output { state, error }))
}
