//! The one way to the database: a pool that has put on its role, and transactions over it.

use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

/// What a statement runs on: a pooled connection, a transaction's, or a caller's own.
pub type Conn = sqlx::PgConnection;
/// A transaction; dropped without `commit`, it rolls back.
pub type Tx = sqlx::Transaction<'static, sqlx::Postgres>;
/// Why a statement did not run.
pub type DbError = sqlx::Error;

/// Who we are to the database (decisions D17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Migrations and the operator's command: whoever the URL names.
    Owner,
    /// Sees every tenant, makes no users, tokens or settings.
    Worker,
    /// Bound by row-level security to the tenant of its request.
    Api,
    /// Counts over all tenants, sees nobody's content.
    Watch,
}

/// A pool of connections in one role.
#[derive(Clone, Debug)]
pub struct Db {
    pub(crate) pool: sqlx::PgPool,
    /// Whether `blocks.embedding` is pgvector's type; fixed by the migration, so asked once.
    pgvector: Arc<OnceLock<bool>>,
}

impl Db {
    /// Makes the pool; connects when first used, so a process may start before its database.
    ///
    /// # Errors
    /// When `url` is not a Postgres URL.
    pub fn open(url: &str, role: Role, max_connections: u32, app: &str) -> Result<Self, DbError> {
        let mut options = PgConnectOptions::from_str(url)?.application_name(app);
        // The narrowing is part of the start-up packet: there is no moment at which the session has more rights.
        options = match role {
            Role::Owner => options,
            Role::Worker => options.options([("role", "steadfast_worker")]),
            Role::Api => options.options([("role", "steadfast_api")]),
            Role::Watch => options.options([("role", "steadfast_watch")]),
        };
        let pool = PgPoolOptions::new()
            .max_connections(max_connections)
            .acquire_timeout(Duration::from_secs(5))
            .idle_timeout(Duration::from_secs(300))
            // A ping before each statement doubles what an idle worker asks. A worker meets a dead connection with a retry; a
            // person who waits for the API should not.
            .test_before_acquire(role != Role::Worker)
            .connect_lazy_with(options);
        Ok(Self {
            pool,
            pgvector: Arc::default(),
        })
    }

    /// # Errors
    /// When no connection is to be had.
    pub async fn begin(&self) -> Result<Tx, DbError> {
        self.pool.begin().await
    }

    /// Commits a transaction got from [`Db::begin`]; here so that callers need no sqlx in scope.
    ///
    /// # Errors
    /// When the commit did not reach the server or was refused by it.
    pub async fn commit(tx: Tx) -> Result<(), DbError> {
        tx.commit().await
    }

    /// One round trip that says whether the database answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ping(&self) -> Result<(), DbError> {
        sqlx::query("select 1").execute(&self.pool).await.map(|_| ())
    }

    /// The database's clock: the only one that decides anything.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn now(&self) -> Result<chrono::DateTime<chrono::Utc>, DbError> {
        sqlx::query_scalar("select now()").fetch_one(&self.pool).await
    }

    /// The server's major version and whether pgvector carries our vectors.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn server(&self) -> Result<Server, DbError> {
        let (version, pgvector): (i32, bool) = sqlx::query_as(
            "select current_setting('server_version_num')::int / 10000,
                    exists (select from information_schema.columns where table_name = 'blocks' and column_name = 'embedding' and udt_name = 'vector')",
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(Server { version, pgvector })
    }

    /// Whether vectors are pgvector's here. Asked over the caller's own connection: a second one from the pool, while this one is
    /// held, could wait for itself (public case 28).
    pub(crate) async fn has_pgvector(&self, conn: &mut Conn) -> Result<bool, DbError> {
        if let Some(known) = self.pgvector.get() {
            return Ok(*known);
        }
        let found: bool = sqlx::query_scalar(sql!("block/has_pgvector")).fetch_one(conn).await?;
        Ok(*self.pgvector.get_or_init(|| found))
    }

    /// For tests and the bench, which may write SQL of their own.
    #[doc(hidden)]
    pub fn pool(&self) -> &sqlx::PgPool {
        &self.pool
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Server {
    pub version: i32,
    pub pgvector: bool,
}

/// True where the statement may be tried again as it is: the connection went or was not let in, the server is starting, stopping or
/// read-only, a deadlock or a serialisation failure was resolved against us, or the pool was exhausted.
#[must_use]
pub fn is_transient(e: &DbError) -> bool {
    match e {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(d) => d.code().is_some_and(|c| {
            // 55000: the database takes no connections for now; 3D000: it is being made again; 28…: its door is being changed.
            ["08", "28", "53", "57", "58"].iter().any(|class| c.starts_with(class))
                || matches!(&*c, "40001" | "40P01" | "25006" | "55P03" | "55000" | "3D000")
        }),
        _ => false,
    }
}
