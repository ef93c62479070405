//! `ocr`: a page's picture in; its text, in chunks, out.

use serde::{Deserialize, Serialize};

use super::JobKind;
use crate::claim::Claim;
use crate::outcome::RetryClass;
use crate::{Conn, DbError};

/// What the handler reads before it starts.
#[derive(Clone, Debug)]
pub struct Input {
    pub page_id: i64,
    pub document_id: i64,
    pub page_no: i32,
    pub image_key: String,
    /// False: its Space is gone, or who asked may not write there any more; it must not land anywhere (decision B27).
    pub place_stands: bool,
}

/// The page behind a claim; none when its document was deleted in the meantime.
///
/// # Errors
/// When the database does not answer.
pub async fn input(db: &crate::Db, claim: &Claim) -> Result<Option<Input>, DbError> {
    let row: Option<(i64, i64, i32, String, bool)> = sqlx::query_as(sql!("page/for_ocr"))
        .bind(claim.item_id)
        .fetch_optional(&db.pool)
        .await?;
    Ok(row.map(|(page_id, document_id, page_no, image_key, place_stands)| Input {
        page_id,
        document_id,
        page_no,
        image_key,
        place_stands,
    }))
}

/// What comes out. No chunks: a blank page, which is an answer and not a failure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Output {
    pub page_id: i64,
    pub document_id: i64,
    pub page_no: u32,
    pub chunks: Vec<String>,
    /// 0..1, where the engine says.
    pub confidence: Option<f32>,
}

pub(super) async fn write(conn: &mut Conn, claim: &Claim, out: &Output) -> Result<Vec<JobKind>, DbError> {
    let note = out.confidence.map(|c| format!("read with confidence {:.0} %", c * 100.0));
    let updated = sqlx::query(sql!("page/read"))
        .bind(out.page_id)
        .bind(if out.chunks.is_empty() { "empty" } else { "read" })
        .bind(note)
        .execute(&mut *conn)
        .await?
        .rows_affected();
    if updated == 0 {
        return Ok(Vec::new()); // deleted in the meantime
    }
    let blocks: Vec<_> = out
        .chunks
        .iter()
        .enumerate()
        .map(|(i, t)| super::embed::NewBlock::new(out.page_no, i, t))
        .collect();
    let woken = super::embed::insert_blocks(&mut *conn, claim, out.document_id, claim.root_id.unwrap_or(claim.job_id), &blocks).await?;
    super::land(conn, out.document_id).await?;
    Ok(woken)
}

pub(super) async fn ended_badly(conn: &mut Conn, page_id: i64, class: RetryClass) -> Result<(), DbError> {
    let document: Option<i64> = sqlx::query_scalar(sql!("page/failed"))
        .bind(page_id)
        .bind(class.sentence())
        .fetch_optional(&mut *conn)
        .await?;
    match document {
        Some(document_id) => super::land(conn, document_id).await,
        None => Ok(()),
    }
}
