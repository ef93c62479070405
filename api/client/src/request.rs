//! What is asked. Each begins with what must be said; the rest are chained words.

use std::path::PathBuf;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};

/// A note to keep.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[must_use]
pub struct Remember {
    pub(crate) text: String,
    pub(crate) space_ids: [String; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) conversation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Map<String, Value>>,
    #[serde(skip)]
    pub(crate) idempotency_key: Option<String>,
}

impl Remember {
    /// `space` by id or name; the server never guesses one.
    pub fn new(text: impl Into<String>, space: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            space_ids: [space.into()],
            title: None,
            conversation_id: None,
            metadata: None,
            idempotency_key: None,
        }
    }

    /// Instead of its first line.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    pub fn conversation(mut self, id: impl Into<String>) -> Self {
        self.conversation_id = Some(id.into());
        self
    }

    pub fn metadata(mut self, metadata: Map<String, Value>) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// One that outlives this process, so that a restarted caller may send it again; without it each call makes its own.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

/// A file to keep.
#[derive(Clone, Debug)]
#[must_use]
pub struct Upload {
    pub(crate) content: Content,
    pub(crate) filename: String,
    pub(crate) space: String,
    pub(crate) title: Option<String>,
    pub(crate) conversation_id: Option<String>,
    pub(crate) media_type: Option<String>,
    pub(crate) idempotency_key: Option<String>,
}

/// Something that can be sent twice: a retry needs the body again, which is why no stream is taken.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    File(PathBuf),
    Bytes(Bytes),
}

impl Upload {
    /// A file on disk, read while it is sent and named as it is there. `space` by id or name.
    pub fn file(path: impl Into<PathBuf>, space: impl Into<String>) -> Self {
        let path = path.into();
        let filename = path.file_name().map(|n| n.to_string_lossy().into_owned());
        Self::of(Content::File(path), filename.unwrap_or_default(), space.into())
    }

    /// Bytes in memory, under a name as a person would call the file. `space` by id or name.
    pub fn bytes(bytes: impl Into<Bytes>, filename: impl Into<String>, space: impl Into<String>) -> Self {
        Self::of(Content::Bytes(bytes.into()), filename.into(), space.into())
    }

    fn of(content: Content, filename: String, space: String) -> Self {
        Self {
            content,
            filename,
            space,
            title: None,
            conversation_id: None,
            media_type: None,
            idempotency_key: None,
        }
    }

    /// Instead of the file's name.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    pub fn conversation(mut self, id: impl Into<String>) -> Self {
        self.conversation_id = Some(id.into());
        self
    }

    /// What the caller knows it to be, like `application/pdf`; without it the server looks at the bytes.
    pub fn media_type(mut self, media_type: impl Into<String>) -> Self {
        self.media_type = Some(media_type.into());
        self
    }

    /// One that outlives this process, so that a restarted caller may send it again; without it each call makes its own.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

/// A question. A plain text is one too: `client.search("…")`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Search {
    pub(crate) query: String,
    pub(crate) spaces: Vec<String>,
    pub(crate) limit: Option<u32>,
    pub(crate) cursor: Option<String>,
    pub(crate) min_score: Option<f64>,
    pub(crate) require_semantic: bool,
}

impl Search {
    pub fn new(query: impl Into<String>) -> Self {
        Self {
            query: query.into(),
            spaces: Vec::new(),
            limit: None,
            cursor: None,
            min_score: None,
            require_semantic: false,
        }
    }

    /// Only in this Space, by id or name; called again, in this one too.
    pub fn space(mut self, space: impl Into<String>) -> Self {
        self.spaces.push(space.into());
        self
    }

    /// 1 to 100; the server's default is 10.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Where an earlier answer to the same question said that it goes on.
    pub fn cursor(mut self, cursor: impl Into<String>) -> Self {
        self.cursor = Some(cursor.into());
        self
    }

    /// 0 to 1.
    pub fn min_score(mut self, min_score: f64) -> Self {
        self.min_score = Some(min_score);
        self
    }

    /// Refused ([`crate::ErrorCode::SemanticUnavailable`]) rather than answered by words alone.
    pub fn require_semantic(mut self) -> Self {
        self.require_semantic = true;
        self
    }
}

impl<T: Into<String>> From<T> for Search {
    fn from(query: T) -> Self {
        Self::new(query)
    }
}

/// A question about what was said in conversations. A plain text is one too.
#[derive(Clone, Debug)]
#[must_use]
pub struct TranscriptSearch {
    pub(crate) query: String,
    pub(crate) conversation_id: Option<String>,
    pub(crate) limit: Option<u32>,
}

impl TranscriptSearch {
    pub fn new(query: impl Into<String>) -> Self {
        Self {
            query: query.into(),
            conversation_id: None,
            limit: None,
        }
    }

    /// Only in this one.
    pub fn conversation(mut self, id: impl Into<String>) -> Self {
        self.conversation_id = Some(id.into());
        self
    }

    /// 1 to 100; the server's default is 10.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }
}

impl<T: Into<String>> From<T> for TranscriptSearch {
    fn from(query: T) -> Self {
        Self::new(query)
    }
}

/// Which page of a list. The default is the first, of the server's size.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Paging {
    pub(crate) limit: Option<u32>,
    pub(crate) cursor: Option<String>,
}

impl Paging {
    /// 1 to 100; the server's default is 20.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Where the page before said that the list goes on.
    pub fn cursor(mut self, cursor: impl Into<String>) -> Self {
        self.cursor = Some(cursor.into());
        self
    }
}

/// Which jobs. The default is all of them, newest first.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Jobs {
    pub(crate) status: Vec<crate::JobStatus>,
    pub(crate) kind: Option<String>,
    pub(crate) page: Paging,
}

impl Jobs {
    /// Only of this status; called again, of this one too.
    pub fn status(mut self, status: crate::JobStatus) -> Self {
        self.status.push(status);
        self
    }

    /// Only of this type.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    pub fn page(mut self, page: Paging) -> Self {
        self.page = page;
        self
    }
}

/// Which documents. The default is all of them, newest first.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Documents {
    pub(crate) status: Vec<crate::DocumentStatus>,
    pub(crate) page: Paging,
}

impl Documents {
    /// Only of this status; called again, of this one too.
    pub fn status(mut self, status: crate::DocumentStatus) -> Self {
        self.status.push(status);
        self
    }

    pub fn page(mut self, page: Paging) -> Self {
        self.page = page;
        self
    }
}

/// Why given-up work is taken up again.
#[derive(Clone, Debug, Serialize)]
#[must_use]
pub struct Replay {
    pub(crate) reason: String,
    pub(crate) force: bool,
    #[serde(skip)]
    pub(crate) idempotency_key: Option<String>,
}

impl Replay {
    /// The reason stands in the history.
    pub fn because(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            force: false,
            idempotency_key: None,
        }
    }

    /// Even where it will most likely end the same way.
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// As in [`Upload::idempotency_key`].
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}
