//! `embed`: a block's text in; its vector out, with the model that made it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::JobKind;
use crate::claim::Claim;
use crate::{Conn, Db, DbError};

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
pub async fn input(db: &Db, claims: &[Arc<Claim>]) -> Result<Vec<Input>, DbError> {
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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Output {
    pub model: String,
    pub vector: Vec<f32>,
}

/// The signs of a vector as the text of a bit string: what finds candidates where there is no pgvector.
#[must_use]
pub fn signs(v: &[f32]) -> String {
    v.iter().map(|x| if *x > 0.0 { '1' } else { '0' }).collect()
}

/// Stores the vectors of a settlement, in the order of their blocks, so that two settlements never wait for each other in a ring.
pub(crate) async fn write(conn: &mut Conn, db: &Db, stored: &[(&Claim, &Output)]) -> Result<(), DbError> {
    let mut stored: Vec<_> = stored.iter().filter_map(|(c, o)| Some((c.item_id?, c.item_version, *o))).collect();
    stored.sort_by_key(|(id, ..)| *id);
    let ids: Vec<i64> = stored.iter().map(|s| s.0).collect();
    let versions: Vec<i32> = stored.iter().map(|s| s.1).collect();
    let models: Vec<&str> = stored.iter().map(|s| s.2.model.as_str()).collect();
    let dims: Vec<i32> = stored.iter().map(|s| i32::try_from(s.2.vector.len()).unwrap_or(i32::MAX)).collect();
    if db.has_pgvector(&mut *conn).await? {
        let vectors: Vec<String> = stored.iter().map(|s| literal(&s.2.vector)).collect();
        sqlx::query(sql!("block/store_pgvector"))
            .bind(ids)
            .bind(versions)
            .bind(models)
            .bind(dims)
            .bind(vectors)
            .execute(conn)
            .await?;
    } else {
        let vectors: Vec<Vec<u8>> = stored.iter().map(|s| super::question::pack(&s.2.vector)).collect();
        let signs: Vec<String> = stored.iter().map(|s| signs(&s.2.vector)).collect();
        sqlx::query(sql!("block/store_signbit"))
            .bind(ids)
            .bind(versions)
            .bind(models)
            .bind(dims)
            .bind(vectors)
            .bind(signs)
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// pgvector's text form; Rust prints the shortest digits that read back as the same f32.
fn literal(v: &[f32]) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(v.len() * 12 + 2);
    out.push('[');
    for (i, x) in v.iter().enumerate() {
        // Writing to a String cannot fail.
        let _infallible = write!(out, "{}{x}", if i > 0 { "," } else { "" });
    }
    out.push(']');
    out
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
        // Its Space went between the look and this write: refused, so that the next attempt finds it gone and says so.
        if sqlx::query_scalar(sql!("document/place_gone"))
            .bind(document_id)
            .fetch_one(&mut *conn)
            .await?
        {
            return Err(DbError::Protocol("the Space it was meant for is gone".to_owned()));
        }
        return Ok(Vec::new());
    }
    let level = super::level_of_document(&mut *conn, document_id).await?;
    super::follow(&mut *conn, claim, JobKind::Embed, root, level, &ids).await?;
    Ok(vec![JobKind::Embed])
}
