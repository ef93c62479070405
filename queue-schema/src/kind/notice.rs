//! `notice`: a notice's number in; one mail out, at most once (decision B25). `item_version` 1 is the opening part, more is the closing
//! part of that round.

use serde::{Deserialize, Serialize};

use super::JobKind;
use crate::claim::Claim;
use crate::notice::Part;
use crate::{Conn, DbError};

/// Which part a job is about.
#[must_use]
pub fn part(claim: &Claim) -> Part {
    if claim.item_version == 1 { Part::Opening } else { Part::Closing }
}

/// The round it is for; the opening part has none of its own.
#[must_use]
pub fn round(claim: &Claim) -> i32 {
    (claim.item_version - 1).max(1)
}

/// How the sending ended, for the notice's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Sent,
    /// The server may have taken it; not sent again but by an operator.
    Unknown,
    /// The person has no address.
    NoAddress,
}

/// What comes out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Output {
    pub state: State,
    /// For an operator; sanitised.
    pub error: Option<String>,
}

pub(super) async fn write(conn: &mut Conn, claim: &Claim, out: &Output) -> Result<Vec<JobKind>, DbError> {
    let state = match out.state {
        State::Sent => "sent",
        State::Unknown => "unknown",
        State::NoAddress => "no_address",
    };
    sqlx::query(sql!("notice/write"))
        .bind(claim.item_id)
        .bind(part(claim) == Part::Opening)
        .bind(state)
        .bind(&out.error)
        .bind(round(claim))
        .execute(conn)
        .await?;
    Ok(Vec::new())
}
