//! The most impatient job: a question waits for its vector while somebody waits for an answer (decision B44). The API
//! holds no provider client; it asks here and listens.

use sha2::{Digest as _, Sha256};

use crate::kind::question::unpack;
use crate::tenant::Scope;
use crate::{Conn, DbError, JobKind, Lane};

/// A vector and the model that made it.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    pub model: String,
    pub values: Vec<f32>,
}

/// What became of a question.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Vector(Vector),
    /// It failed; the class as in [`crate::outcome::RetryClass`].
    Failed(String),
}

#[derive(sqlx::FromRow)]
struct Row {
    class: Option<String>,
    model: Option<String>,
    vector: Option<Vec<u8>>,
}

/// SHA-256 of the question's text: the key of the small cache.
#[must_use]
pub fn text_hash(text: &str) -> Vec<u8> {
    Sha256::digest(text.as_bytes()).to_vec()
}

/// The same words, asked before of the model that would serve now.
///
/// # Errors
/// When the database does not answer.
pub async fn cached(conn: &mut Conn, scope: &Scope, text: &str) -> Result<Option<Vector>, DbError> {
    let row: Option<(String, Vec<u8>)> = sqlx::query_as(sql!("question/cached"))
        .bind(text_hash(text))
        .bind(scope.tenant_id())
        .fetch_optional(conn)
        .await?;
    Ok(row.map(|(model, bytes)| Vector {
        model,
        values: unpack(&bytes),
    }))
}

/// Enqueues the question; the caller commits, wakes the workers and waits for [`crate::hint::Heard::Answer`].
///
/// # Errors
/// When the database does not answer.
pub async fn ask(conn: &mut Conn, scope: &Scope, text: &str) -> Result<i64, DbError> {
    // A question is as sensitive as what it may find; endpoints trusted for plain material serve it (level 1).
    const LEVEL: i16 = 1;
    loop {
        let id: Option<i64> = sqlx::query_scalar(sql!("question/ask"))
            .bind(scope.tenant_id())
            .bind(scope.user_id())
            .bind(text)
            .bind(LEVEL)
            .fetch_optional(&mut *conn)
            .await?;
        if let Some(id) = id {
            return Ok(id);
        }
        crate::job::line(&mut *conn, JobKind::Question, Lane::Interactive, scope.tenant_id(), LEVEL).await?;
    }
}

/// What there is for this question, if anything yet. The truth behind the hint: a waiter also looks each second.
///
/// # Errors
/// When the database does not answer.
pub async fn answer(conn: &mut Conn, job_id: i64) -> Result<Option<Answer>, DbError> {
    let row: Option<Row> = sqlx::query_as(sql!("question/answer")).bind(job_id).fetch_optional(conn).await?;
    Ok(row.map(|r| match r {
        Row {
            class: None,
            model: Some(model),
            vector: Some(bytes),
        } => Answer::Vector(Vector {
            model,
            values: unpack(&bytes),
        }),
        Row { class, .. } => Answer::Failed(class.unwrap_or_else(|| "item_error".to_owned())),
    }))
}

/// The asker has what it wants, or has gone: the question and its answer go too.
///
/// # Errors
/// When the database does not answer; they are then swept by retention.
pub async fn forget(conn: &mut Conn, job_id: i64) -> Result<(), DbError> {
    sqlx::query(sql!("question/forget")).bind(job_id).execute(conn).await.map(|_| ())
}
