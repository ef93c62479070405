//! `question`: text in, vector out, while somebody waits.

use serde::{Deserialize, Serialize};

use super::JobKind;
use crate::claim::Claim;
use crate::{Conn, DbError};

/// What goes in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Input {
    pub text: String,
}

/// What comes out: the vector, unit length, and the model that served.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Output {
    pub text: String,
    pub model: String,
    pub vector: Vec<f32>,
}

/// Little-endian f32, the form in which vectors are stored where there is no pgvector.
#[must_use]
pub fn pack(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The way back; a trailing fragment is ignored.
#[must_use]
pub fn unpack(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]))
        .collect()
}

pub(super) async fn write(conn: &mut Conn, claim: &Claim, out: &Output) -> Result<Vec<JobKind>, DbError> {
    sqlx::query(sql!("question/write"))
        .bind(claim.job_id)
        .bind(&out.model)
        .bind(crate::question::text_hash(&out.text))
        .bind(pack(&out.vector))
        .execute(conn)
        .await?;
    Ok(Vec::new())
}

/// A question that will not be answered: whoever waits hears why, at once.
pub(crate) async fn write_failed(conn: &mut Conn, job_id: i64, class: &str) -> Result<(), DbError> {
    sqlx::query(sql!("question/write_failed"))
        .bind(job_id)
        .bind(class)
        .execute(conn)
        .await
        .map(|_| ())
}
