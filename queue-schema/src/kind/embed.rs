//! `embed`: a block's text in; its vector out, with the model that made it.

use std::sync::Arc;

use super::JobKind;
use crate::claim::Claim;
use crate::{Conn, DbError, Lane};

/// What the handler reads before it starts.
#[derive(Clone, Debug)]
pub struct Input {
    pub block_id: i64,
    pub content: String,
}

/// The blocks behind a group of claims, by id. Missing ones were deleted or have moved to another version.
///
/// # Errors
/// When the database does not answer.
pub async fn input(db: &crate::Db, claims: &[Arc<Claim>]) -> Result<Vec<Input>, DbError> {
    let ids: Vec<i64> = claims.iter().filter_map(|c| c.item_id).collect();
    let versions: Vec<i32> = claims.iter().filter(|c| c.item_id.is_some()).map(|c| c.item_version).collect();
    let rows: Vec<(i64, String)> = sqlx::query_as(sql!("block/for_embed"))
        .bind(&ids)
        .bind(&versions)
        .fetch_all(&db.pool)
        .await?;
    Ok(rows.into_iter().map(|(block_id, content)| Input { block_id, content }).collect())
}

/// What comes out: the vector, unit length, and the model that actually served (requirement C49).
#[derive(Clone, Debug)]
pub struct Output {
    pub model: String,
    pub vector: Vec<f32>,
}

/// The signs of a vector as the text of a bit string: what finds candidates where there is no pgvector.
#[must_use]
pub fn signs(v: &[f32]) -> String {
    v.iter().map(|x| if *x > 0.0 { '1' } else { '0' }).collect()
}

pub(super) async fn write(conn: &mut Conn, claim: &Claim, out: &Output) -> Result<Vec<JobKind>, DbError> {
    let dims = i32::try_from(out.vector.len()).unwrap_or(i32::MAX);
    // The column's type is the server's: one look at the catalogue's cache, not at the data.
    let vector: bool = sqlx::query_scalar(sql!("block/has_pgvector")).fetch_one(&mut *conn).await?;
    if vector {
        sqlx::query(sql!("block/store_pgvector"))
            .bind(claim.item_id)
            .bind(claim.item_version)
            .bind(&out.model)
            .bind(dims)
            .bind(&out.vector)
            .execute(conn)
            .await?;
    } else {
        sqlx::query(sql!("block/store_signbit"))
            .bind(claim.item_id)
            .bind(claim.item_version)
            .bind(&out.model)
            .bind(dims)
            .bind(super::question::pack(&out.vector))
            .bind(signs(&out.vector))
            .execute(conn)
            .await?;
    }
    Ok(Vec::new())
}

/// A block to come.
#[derive(Clone, Debug)]
pub(super) struct NewBlock<'a> {
    page_no: i32,
    no: i32,
    content: &'a str,
}

impl<'a> NewBlock<'a> {
    pub(super) fn new(page_no: u32, no: usize, content: &'a str) -> Self {
        Self {
            page_no: i32::try_from(page_no).unwrap_or(i32::MAX),
            no: i32::try_from(no).unwrap_or(i32::MAX),
            content,
        }
    }
}

/// Writes blocks and the jobs that will embed them.
pub(super) async fn insert_blocks(
    conn: &mut Conn,
    claim: &Claim,
    document_id: i64,
    root: i64,
    blocks: &[NewBlock<'_>],
) -> Result<Vec<JobKind>, DbError> {
    if blocks.is_empty() {
        return Ok(Vec::new());
    }
    let pages: Vec<i32> = blocks.iter().map(|b| b.page_no).collect();
    let nos: Vec<i32> = blocks.iter().map(|b| b.no).collect();
    let contents: Vec<&str> = blocks.iter().map(|b| b.content).collect();
    let ids: Vec<i64> = sqlx::query_scalar(sql!("block/insert"))
        .bind(document_id)
        .bind(&pages)
        .bind(&nos)
        .bind(&contents)
        .fetch_all(&mut *conn)
        .await?;
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let level = super::level_of_document(&mut *conn, document_id).await?;
    let line = crate::job::line(&mut *conn, JobKind::Embed, Lane::Batch, claim.tenant_id, level).await?;
    crate::job::enqueue_on(&mut *conn, line, JobKind::Embed, claim.tenant_id, claim.user_id, Some(root), &ids).await?;
    Ok(vec![JobKind::Embed])
}
