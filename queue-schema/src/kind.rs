//! Every kind of work there is. A new kind is two files and two lines: `kind/<name>.rs` says what goes in and out,
//! `workers/src/handlers/<name>.rs` does it; a variant here and a match arm there join them, and the compiler asks.

pub mod embed;
pub mod extract;
pub mod fan_out;
pub mod noop;
pub mod notice;
pub mod ocr;
pub mod question;
pub mod retention;

use serde::{Deserialize, Serialize};

use crate::claim::Claim;
use crate::job::{self, NewJob};
use crate::outcome::RetryClass;
use crate::{Conn, DbError, Lane};

/// The closed set. A worker claims only kinds it knows, so an older one leaves a newer one's work alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// A document's bytes become pages: text where there is text, pictures where there is none.
    Extract,
    /// A page's picture becomes text.
    Ocr,
    /// A block's text becomes a vector.
    Embed,
    /// A question's text becomes a vector while somebody waits.
    Question,
    /// Old finished rows, stale keys and orphaned blobs go.
    Retention,
    /// An incident's notices, one for everybody with work behind its breaker.
    FanOut,
    /// One mail to one person about one incident.
    Notice,
    /// Nothing: `doctor --round-trip` and the benchmarks.
    Noop,
}

impl JobKind {
    pub const ALL: [Self; 8] = [
        Self::Extract,
        Self::Ocr,
        Self::Embed,
        Self::Question,
        Self::Retention,
        Self::FanOut,
        Self::Notice,
        Self::Noop,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Extract => "extract",
            Self::Ocr => "ocr",
            Self::Embed => "embed",
            Self::Question => "question",
            Self::Retention => "retention",
            Self::FanOut => "fan_out",
            Self::Notice => "notice",
            Self::Noop => "noop",
        }
    }

    #[must_use]
    pub fn parse(s: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.as_str() == s)
    }

    /// Which provider capability it needs; none means no gate, no endpoint and no shared counter.
    #[must_use]
    pub fn capability(self) -> Option<&'static str> {
        match self {
            Self::Ocr => Some("ocr"),
            Self::Embed | Self::Question => Some("embedding"),
            Self::Extract | Self::Retention | Self::FanOut | Self::Notice | Self::Noop => None,
        }
    }

    /// The lane of work that says nothing else. Explicit for every kind (requirement N4).
    #[must_use]
    pub fn lane(self) -> Lane {
        match self {
            Self::Question => Lane::Interactive,
            Self::Extract | Self::Ocr | Self::Embed | Self::Retention | Self::FanOut | Self::Notice | Self::Noop => Lane::Batch,
        }
    }

    /// The most jobs one group may hold (decision D14). Kinds with an endpoint are bounded by its `batch` as well.
    #[must_use]
    pub fn group_max(self) -> usize {
        match self {
            Self::Extract | Self::Ocr | Self::Question | Self::Retention | Self::FanOut | Self::Notice => 1,
            Self::Embed => 256,
            Self::Noop => 500,
        }
    }

    /// Questions leave no history and are not worth an fsync (decision B44).
    #[must_use]
    pub fn is_ephemeral(self) -> bool {
        matches!(self, Self::Question)
    }
}

/// What a finished job leaves behind, written in the transaction that settles it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub enum Effect {
    #[default]
    Nothing,
    Extracted(extract::Output),
    Read(ocr::Output),
    Embedded(embed::Output),
    Answered(question::Output),
    Noticed(notice::Output),
}

/// Writes an effect beside the row that it belongs to; says which kinds now have new work waiting. By reference: when the
/// commit fails, the whole settlement is tried again with the same effect.
pub(crate) async fn write(conn: &mut Conn, claim: &Claim, effect: &Effect) -> Result<Vec<JobKind>, DbError> {
    match effect {
        // Vectors are stored together, by the settlement itself.
        Effect::Nothing | Effect::Embedded(_) => Ok(Vec::new()),
        Effect::Extracted(out) => extract::write(conn, claim, out).await,
        Effect::Read(out) => ocr::write(conn, claim, out).await,
        Effect::Answered(out) => question::write(conn, claim, out).await,
        Effect::Noticed(out) => notice::write(conn, claim, out).await,
    }
}

/// A job ended dead or parked: whatever it was for says so, in a sentence for a person.
pub(crate) async fn ended_badly(
    conn: &mut Conn,
    kind: JobKind,
    item_id: i64,
    class: RetryClass,
    detail: Option<&str>,
) -> Result<(), DbError> {
    match kind {
        JobKind::Extract => extract::ended_badly(conn, item_id, class, detail).await,
        JobKind::Ocr => ocr::ended_badly(conn, item_id, class).await,
        JobKind::Notice => crate::notice::failed(conn, item_id).await,
        // The block stays findable by its words; diagnostics count it.
        JobKind::Embed | JobKind::Question | JobKind::Retention | JobKind::FanOut | JobKind::Noop => Ok(()),
    }
}

/// Enqueues what follows from a claim, in the transaction that settles it.
async fn follow(conn: &mut Conn, claim: &Claim, kind: JobKind, root: i64, level: i16, items: &[i64]) -> Result<(), DbError> {
    let next = NewJob {
        user_id: claim.user_id,
        root_id: Some(root),
        level,
        ..NewJob::new(kind, claim.tenant_id)
    };
    job::enqueue_items(conn, &next, items).await.map(|_| ())
}

/// How sensitive a document's pieces are: the greater of its own level and its Space's floor, unknown counting as the
/// strictest (requirements C44, C45).
async fn level_of_document(conn: &mut Conn, document_id: i64) -> Result<i16, DbError> {
    Ok(sqlx::query_scalar::<_, i16>(sql!("document/level"))
        .bind(document_id)
        .fetch_optional(conn)
        .await?
        .unwrap_or(3))
}

/// Where a document stands once one of its pages has settled.
async fn land(conn: &mut Conn, document_id: i64) -> Result<(), DbError> {
    sqlx::query(sql!("document/land")).bind(document_id).execute(conn).await.map(|_| ())
}
