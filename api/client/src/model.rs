//! What comes back. Members that only some answers have are optional; members that are new are passed over.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::Value;

/// One page of a list.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Page<T> {
    pub data: Vec<T>,
    pub pagination: Pagination,
}

impl<T> Page<T> {
    /// Where the list goes on; it has ended only when there is none, not when a page is empty (requirement P35).
    #[must_use]
    pub fn next_cursor(&self) -> Option<&str> {
        self.pagination.next_cursor.as_deref()
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Pagination {
    pub limit: u64,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// What was handed in is on disk and in a row; [`crate::Client::wait_for_job`] follows it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Accepted {
    pub job_id: String,
    pub document_id: String,
    /// For a person: what happens next.
    #[serde(default)]
    pub note: String,
    /// False when nobody is there to work on it now; it is stored all the same.
    #[serde(default)]
    pub extracting: bool,
}

/// A request with all that followed from it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Job {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub status: JobStatus,
    pub attempts: u32,
    pub queued_at: DateTime<Utc>,
    /// The document it is about.
    #[serde(default)]
    pub subject_id: Option<String>,
    /// A fixed sentence for a person.
    #[serde(default)]
    pub error: Option<String>,
    /// 0 to 1, once it is known how much there is to do.
    #[serde(default)]
    pub progress: Option<f64>,
    #[serde(default)]
    pub started_at: Option<DateTime<Utc>>,
    #[serde(default)]
    pub finished_at: Option<DateTime<Utc>>,
    /// What it waits behind, when something was stopped.
    #[serde(default)]
    pub hold: Option<Hold>,
}

impl Job {
    /// Nothing more happens to it by itself.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.status, JobStatus::Completed | JobStatus::Failed | JobStatus::Dead)
    }
}

/// Why a job waits: an operator, or a refused key, stopped what it needs. It is safe, and runs by itself afterwards.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Hold {
    pub capability: String,
    pub since: DateTime<Utc>,
    /// For a person.
    pub notice: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum JobStatus {
    /// Waiting, or held: see [`Job::hold`].
    Queued,
    Running,
    Completed,
    /// Set aside for a person.
    Failed,
    /// Given up; a replay takes it up again.
    Dead,
    /// One that this version of the client does not know.
    #[serde(untagged)]
    Other(String),
}

impl fmt::Display for JobStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Dead => "dead",
            Self::Other(word) => word,
        })
    }
}

/// Work that gave up or was set aside.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeadLetter {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub status: JobStatus,
    pub attempts: u32,
    pub queued_at: DateTime<Utc>,
    pub failed_at: DateTime<Utc>,
    #[serde(default)]
    pub subject_id: Option<String>,
    /// The job of the request it belongs to.
    #[serde(default)]
    pub root_id: Option<String>,
    #[serde(default)]
    pub error: Option<String>,
    /// False: trying again will most likely end the same way; a replay needs `force`.
    #[serde(default)]
    pub retryable: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Replayed {
    pub job_id: String,
    /// Jobs made due again: the one named, or the parts of its request that had given up.
    #[serde(default)]
    pub job_ids: Vec<String>,
}

/// Where material is kept.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Space {
    pub id: String,
    pub name: String,
    pub created_at: DateTime<Utc>,
    #[serde(default)]
    pub document_count: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Document {
    pub id: String,
    pub title: String,
    pub status: DocumentStatus,
    pub content_type: String,
    pub bytes: u64,
    pub created_at: DateTime<Utc>,
    pub space_id: String,
    /// Pieces that can be found.
    #[serde(default)]
    pub memory_count: u64,
    /// Of these, the ones that can be found by their words but not yet by meaning.
    #[serde(default)]
    pub pending_count: u64,
    /// A sentence for a person, when what is still to do is held.
    #[serde(default)]
    pub notice: Option<String>,
    #[serde(default)]
    pub page_count: Option<u32>,
    #[serde(default)]
    pub conversation_id: Option<String>,
    #[serde(default)]
    pub metadata: Value,
    #[serde(default)]
    pub mine: bool,
    /// A fixed sentence for a person.
    #[serde(default)]
    pub error: Option<String>,
    #[serde(default)]
    pub processed_at: Option<DateTime<Utc>>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DocumentStatus {
    Pending,
    Processing,
    Processed,
    /// Read, and nothing was in it.
    Empty,
    Failed,
    /// One that this version of the client does not know.
    #[serde(untagged)]
    Other(String),
}

impl fmt::Display for DocumentStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Processing => "processing",
            Self::Processed => "processed",
            Self::Empty => "empty",
            Self::Failed => "failed",
            Self::Other(word) => word,
        })
    }
}

/// One result of a search.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Hit {
    pub memory: Memory,
    /// 0 to 1; 1 is first by words and by meaning.
    pub score: f64,
    #[serde(default)]
    pub explanation: Explanation,
    pub document_id: String,
    /// From 1.
    pub page: u32,
    /// The passage around the words that matched: plain text, to be escaped where it is shown.
    pub snippet: String,
    /// Where the words that matched stand in `snippet`: start and length in characters.
    #[serde(default)]
    pub highlights: Vec<(usize, usize)>,
}

/// A piece of a document.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Memory {
    pub id: String,
    /// The document's.
    pub title: String,
    pub content: String,
    #[serde(default)]
    pub mine: bool,
    #[serde(default)]
    pub version: u32,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    #[serde(default)]
    pub space_ids: Vec<String>,
    /// `{"name": …}` of whoever put it there, when that was not you.
    #[serde(default)]
    pub shared_by: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Explanation {
    /// `vector`, `keyword`
    #[serde(default)]
    pub paths: Vec<String>,
    #[serde(default)]
    pub vector_score: Option<f64>,
    #[serde(default)]
    pub structured_score: Option<f64>,
}

/// Something that was said in a conversation.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Passage {
    pub passage_id: String,
    pub conversation_id: String,
    pub content: String,
    /// A similarity; higher is nearer.
    pub score: f64,
    pub started_at: DateTime<Utc>,
    pub document_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_is_new_is_kept_as_a_word() {
        let read = |word: &str| serde_json::from_value::<JobStatus>(Value::from(word)).expect("a word");
        assert_eq!(read("dead"), JobStatus::Dead);
        let new = read("resting");
        assert_eq!(new, JobStatus::Other("resting".into()));
        assert_eq!(new.to_string(), "resting");
        let read = |word: &str| serde_json::from_value::<DocumentStatus>(Value::from(word)).expect("a word");
        assert_eq!(
            (read("empty"), read("resting").to_string()),
            (DocumentStatus::Empty, "resting".to_owned())
        );
    }
}
