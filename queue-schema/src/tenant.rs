//! On whose behalf. Every tenant-facing function takes a [`Scope`], and only three doors mint one: a token, a claim and the
//! operator's command. A transaction begun with it shows its tenant's rows and no others.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use rand::RngExt as _;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use sqlx::FromRow;

use crate::claim::Claim;
use crate::{Conn, Db, DbError, Tx};

/// A user of a tenant, known to be one. The fields are private so that nobody makes one out of numbers from a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    tenant_id: i64,
    user_id: i64,
}

impl Scope {
    #[must_use]
    pub fn tenant_id(&self) -> i64 {
        self.tenant_id
    }

    #[must_use]
    pub fn user_id(&self) -> i64 {
        self.user_id
    }

    /// The one for whom a job runs; none for work that no person asked for.
    #[must_use]
    pub fn of_claim(claim: &Claim) -> Option<Self> {
        Some(Self {
            tenant_id: claim.tenant_id,
            user_id: claim.user_id?,
        })
    }

    /// A transaction in which row-level security shows this tenant. The setting ends with the transaction, so a pooled
    /// connection carries nobody's scope to the next request.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn begin(&self, db: &Db) -> Result<Tx, DbError> {
        self.begin_within(db, Duration::ZERO).await
    }

    /// As [`Scope::begin`], and no statement in it runs longer than `limit`, rounded up to milliseconds; zero is no limit.
    /// The server ends it, so that a caller who has left does not keep a connection busy.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn begin_within(&self, db: &Db, limit: Duration) -> Result<Tx, DbError> {
        let mut tx = db.begin().await?;
        sqlx::query(sql!("tenant/enter"))
            .bind(self.tenant_id.to_string())
            .bind(limit.as_millis().to_string())
            .execute(&mut *tx)
            .await?;
        Ok(tx)
    }
}

/// Whose token this is. None: unknown, revoked or expired, and nobody is told which.
///
/// # Errors
/// When the database does not answer.
pub async fn authenticate(db: &Db, token: &str) -> Result<Option<Scope>, DbError> {
    let row: Option<(i64, i64)> = sqlx::query_as(sql!("token/authenticate"))
        .bind(hash(token))
        .fetch_optional(&db.pool)
        .await?;
    Ok(row.map(|(tenant_id, user_id)| Scope { tenant_id, user_id }))
}

/// The operator's door: a user by the names of tenant and user. None: there is no such user. Needs the owner's or the
/// worker's role.
///
/// # Errors
/// When the database does not answer.
pub async fn operator_scope(db: &Db, tenant: &str, user: &str) -> Result<Option<Scope>, DbError> {
    let row: Option<(i64, i64)> = sqlx::query_as(sql!("user/named"))
        .bind(tenant)
        .bind(user)
        .fetch_optional(&db.pool)
        .await?;
    Ok(row.map(|(tenant_id, user_id)| Scope { tenant_id, user_id }))
}

/// A token just made. Shown once: the database has only its hash.
#[derive(Clone, Serialize)]
pub struct NewToken {
    pub token: String,
    pub id: i64,
    pub tenant_id: i64,
    pub user_id: i64,
    pub space_id: i64,
    pub expires_at: Option<DateTime<Utc>>,
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken")
            .field("id", &self.id)
            .field("user_id", &self.user_id)
            .finish_non_exhaustive()
    }
}

/// What a token row says of itself; never the token.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct TokenRow {
    pub id: i64,
    pub name: String,
    pub tenant: String,
    pub user: String,
    pub created_at: DateTime<Utc>,
    pub last_used_at: Option<DateTime<Utc>>,
    pub expires_at: Option<DateTime<Utc>>,
    pub revoked_at: Option<DateTime<Utc>>,
}

/// The tenant that a single-tenant installation has.
pub const DEFAULT_TENANT: &str = "default";

/// Makes a token for `user` of the default tenant; user, Space and membership are made when they are missing. Owner's role.
///
/// # Errors
/// When the database does not answer, or the role may not.
pub async fn create_token(db: &Db, user: &str, name: &str, space: &str, expires: Option<Duration>) -> Result<NewToken, DbError> {
    create_token_in(db, DEFAULT_TENANT, user, name, space, expires).await
}

/// As [`create_token`], in a tenant that exists.
///
/// # Errors
/// [`DbError::RowNotFound`] when there is no such tenant; otherwise as [`create_token`].
pub async fn create_token_in(
    db: &Db,
    tenant: &str,
    user: &str,
    name: &str,
    space: &str,
    expires: Option<Duration>,
) -> Result<NewToken, DbError> {
    let token = new_token();
    let mut tx = db.begin().await?;
    let tenant_id: i64 = sqlx::query_scalar(sql!("tenant/named")).bind(tenant).fetch_one(&mut *tx).await?;
    let user_id: i64 = sqlx::query_scalar(sql!("user/ensure"))
        .bind(tenant_id)
        .bind(user)
        .fetch_one(&mut *tx)
        .await?;
    let space_id: i64 = sqlx::query_scalar(sql!("space/ensure"))
        .bind(tenant_id)
        .bind(space)
        .fetch_one(&mut *tx)
        .await?;
    sqlx::query(sql!("space/join"))
        .bind(tenant_id)
        .bind(space_id)
        .bind(user_id)
        .execute(&mut *tx)
        .await?;
    let (id, expires_at): (i64, Option<DateTime<Utc>>) = sqlx::query_as(sql!("token/create"))
        .bind(tenant_id)
        .bind(user_id)
        .bind(name)
        .bind(hash(&token))
        .bind(expires.map(|d| d.as_secs_f64()))
        .fetch_one(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(NewToken {
        token,
        id,
        tenant_id,
        user_id,
        space_id,
        expires_at,
    })
}

/// Where mails for this user go from now on. Owner's role.
///
/// # Errors
/// When the database does not answer, or the role may not.
pub async fn set_email(db: &Db, user_id: i64, email: &str) -> Result<(), DbError> {
    sqlx::query(sql!("user/set_email"))
        .bind(user_id)
        .bind(email)
        .execute(&db.pool)
        .await
        .map(|_| ())
}

/// All tokens, newest first. Owner's role.
///
/// # Errors
/// When the database does not answer, or the role may not.
pub async fn list_tokens(db: &Db) -> Result<Vec<TokenRow>, DbError> {
    sqlx::query_as(sql!("token/list")).fetch_all(&db.pool).await
}

/// Ends a token at once. False: there is none of that id, or it had ended before. Owner's role.
///
/// # Errors
/// When the database does not answer, or the role may not.
pub async fn revoke_token(db: &Db, id: i64) -> Result<bool, DbError> {
    Ok(sqlx::query(sql!("token/revoke")).bind(id).execute(&db.pool).await?.rows_affected() > 0)
}

/// A Space that a user may read and write.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct Space {
    pub id: i64,
    pub name: String,
    pub created_at: DateTime<Utc>,
    pub document_count: i64,
}

/// The Spaces of this user, by name.
///
/// # Errors
/// When the database does not answer.
pub async fn spaces(conn: &mut Conn, scope: &Scope) -> Result<Vec<Space>, DbError> {
    sqlx::query_as(sql!("space/list"))
        .bind(scope.tenant_id)
        .bind(scope.user_id)
        .fetch_all(conn)
        .await
}

/// The Space that this user calls so: its id, or else its name in any case. None: there is no such Space, or it is not theirs.
///
/// # Errors
/// When the database does not answer.
pub async fn space_of(conn: &mut Conn, scope: &Scope, id_or_name: &str) -> Result<Option<i64>, DbError> {
    sqlx::query_scalar(sql!("space/of"))
        .bind(scope.tenant_id)
        .bind(scope.user_id)
        .bind(id_or_name)
        .fetch_optional(conn)
        .await
}

/// Twelve random bytes, for a name that only must not repeat.
#[must_use]
pub fn nonce() -> [u8; 12] {
    rand::rng().random()
}

/// SHA-256: the token is 256 random bits, so it needs neither salt nor a slow hash.
fn hash(token: &str) -> Vec<u8> {
    Sha256::digest(token.as_bytes()).to_vec()
}

/// `sf_` and 43 characters of base64url: 32 bytes from the operating system's generator, by way of ChaCha.
fn new_token() -> String {
    let bytes: [u8; 32] = rand::rng().random();
    format!("sf_{}", URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_prefixed_long_and_never_the_same() {
        let (a, b) = (new_token(), new_token());
        assert_ne!(a, b);
        assert_eq!(a.len(), 46);
        assert!(a.starts_with("sf_"));
        assert_eq!(hash(&a).len(), 32);
    }
}
