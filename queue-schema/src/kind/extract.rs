//! `extract`: a document's bytes in; pages out. Pages with text of their own become blocks at once, pictures become `ocr`
//! jobs, so a stopped OCR never holds a plain text (decision D15).

use serde::{Deserialize, Serialize};

use super::JobKind;
use crate::claim::Claim;
use crate::outcome::RetryClass;
use crate::{Conn, DbError};

/// What the handler reads before it starts.
#[derive(Clone, Debug)]
pub struct Input {
    pub document_id: i64,
    pub title: String,
    pub media_type: String,
    pub blob_key: String,
    /// False: its Space is gone, or who asked may not write there any more; it must not land anywhere (decision B27).
    pub place_stands: bool,
}

/// The document behind a claim; none when it was deleted in the meantime.
///
/// # Errors
/// When the database does not answer.
pub async fn input(db: &crate::Db, claim: &Claim) -> Result<Option<Input>, DbError> {
    let row: Option<(i64, String, String, String, bool)> = sqlx::query_as(sql!("document/for_extract"))
        .bind(claim.item_id)
        .bind(claim.item_version)
        .fetch_optional(&db.pool)
        .await?;
    Ok(row.map(|(document_id, title, media_type, blob_key, place_stands)| Input {
        document_id,
        title,
        media_type,
        blob_key,
        place_stands,
    }))
}

/// One page as found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Page {
    /// It had text; chunked already.
    Text { no: u32, chunks: Vec<String> },
    /// It is a picture, stored under this key.
    Picture { no: u32, image_key: String },
    /// It could not be read; the note says why, for a person.
    Unreadable { no: u32, note: String },
}

/// What comes out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Output {
    pub pages: Vec<Page>,
}

pub(super) async fn write(conn: &mut Conn, claim: &Claim, out: &Output) -> Result<Vec<JobKind>, DbError> {
    let Some(document_id) = claim.item_id else { return Ok(Vec::new()) };
    let mut woken = Vec::new();
    let (mut nos, mut sources, mut keys, mut status, mut notes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut chunks: Vec<super::embed::NewBlock> = Vec::new();
    for page in &out.pages {
        let (no, source, key, state, note) = match page {
            Page::Text { no, chunks: texts } => {
                chunks.extend(texts.iter().enumerate().map(|(i, t)| super::embed::NewBlock::new(*no, i, t)));
                (*no, "text", None, if texts.is_empty() { "empty" } else { "read" }, None)
            }
            Page::Picture { no, image_key } => (*no, "image", Some(image_key.as_str()), "waiting", None),
            Page::Unreadable { no, note } => (*no, "image", None, "failed", Some(note.as_str())),
        };
        nos.push(i32::try_from(no).unwrap_or(i32::MAX));
        sources.push(source);
        keys.push(key);
        status.push(state);
        notes.push(note);
    }
    let root = claim.root_id.unwrap_or(claim.job_id);
    // A document deleted in the meantime has no row to write to: nothing is inserted, nothing left behind.
    let waiting: Vec<i64> = sqlx::query_scalar(sql!("page/insert"))
        .bind(document_id)
        .bind(claim.item_version)
        .bind(&nos)
        .bind(&sources)
        .bind(&keys)
        .bind(&status)
        .bind(&notes)
        .fetch_all(&mut *conn)
        .await?;
    if !waiting.is_empty() {
        let level = super::level_of_document(&mut *conn, document_id).await?;
        super::follow(&mut *conn, claim, JobKind::Ocr, root, level, &waiting).await?;
        woken.push(JobKind::Ocr);
    }
    woken.extend(super::embed::insert_blocks(&mut *conn, claim, document_id, root, &chunks).await?);
    super::land(conn, document_id).await?;
    Ok(woken)
}

/// The cause under which our own reader says what is wrong with a file.
pub const UNREADABLE: &str = "unreadable";

pub(super) async fn ended_badly(conn: &mut Conn, document_id: i64, class: RetryClass, detail: Option<&str>) -> Result<(), DbError> {
    let sentence = match detail {
        Some(detail) => format!("{} ({detail})", class.sentence()),
        None => class.sentence().to_owned(),
    };
    sqlx::query(sql!("document/failed"))
        .bind(document_id)
        .bind(sentence)
        .execute(conn)
        .await
        .map(|_| ())
}
