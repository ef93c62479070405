use std::str::FromStr as _;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine as _;
use chrono::{DateTime, Utc};
use sha2::{Digest as _, Sha256};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, FromRow, PgConnection, PgPool};

use crate::provider::Provider;

/// A migrated database of its own, dropped with this. Named `t_<pid>_<n>` on the server of `STEADFAST_TEST_PG`; set
/// `STEADFAST_TEST_KEEP=1` to look at it afterwards.
#[derive(Debug)]
pub struct Db {
    /// Connections as the owner, who sees everything.
    pub pool: PgPool,
    url: String,
    server: String,
    name: String,
}

/// Somebody with a token, a Space and a membership in it.
#[derive(Clone, Debug)]
pub struct Person {
    pub tenant_id: i64,
    pub user_id: i64,
    pub space_id: i64,
    pub token: String,
}

/// A row of `jobs`, as far as the stories ask.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Job {
    pub id: i64,
    pub kind: String,
    pub item_id: Option<i64>,
    pub item_version: i32,
    pub status: String,
    pub avail_at: DateTime<Utc>,
    pub attempts: i32,
    pub forgiven: i32,
    pub charged: i32,
    pub item_fails: i32,
    pub crashes: i32,
    pub timeouts_in_row: i32,
    pub claimed_by: Option<i64>,
    pub started_at: Option<DateTime<Utc>>,
    pub endpoint_id: Option<i64>,
    pub last_class: Option<String>,
    pub last_cause: Option<String>,
    pub last_error: Option<String>,
}

/// A row of `attempts`: one that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Attempt {
    pub attempt: i32,
    pub class: String,
    pub cause: Option<String>,
    pub error: Option<String>,
    pub forgiven: bool,
    pub worker: Option<i64>,
}

impl Db {
    /// On the server of `STEADFAST_TEST_PG`, which has pgvector.
    ///
    /// # Panics
    /// Without that variable, or when the database cannot be made.
    pub async fn new() -> Self {
        Self::on("STEADFAST_TEST_PG").await
    }

    /// On the server of `STEADFAST_TEST_PG15`: the oldest Postgres that we promise, and no pgvector.
    ///
    /// # Panics
    /// Without that variable, or when the database cannot be made.
    pub async fn new_on15() -> Self {
        Self::on("STEADFAST_TEST_PG15").await
    }

    async fn on(var: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = std::env::var(var).unwrap_or_else(|_| {
            panic!("{var} names no test server (postgres://superuser@host:port/postgres); run this through ops/test, which starts one")
        });
        let name = format!("t_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        admin(&server, &format!("create database {name}"))
            .await
            .unwrap_or_else(|e| panic!("{name} cannot be made on {var}: {e}"));
        let mut url = url::Url::parse(&server).unwrap_or_else(|e| panic!("{var} is no URL: {e}"));
        url.set_path(&name);
        let url = String::from(url);
        // Made before the migration, so that a migration that fails leaves no database behind either.
        let options = PgConnectOptions::from_str(&url)
            .unwrap_or_else(|e| panic!("{var}: {e}"))
            .application_name("story");
        let pool = PgPoolOptions::new().max_connections(4).connect_lazy_with(options);
        let db = Self { pool, url, server, name };
        steadfast_migrations::migrate(&db.url)
            .await
            .unwrap_or_else(|e| panic!("{} does not migrate: {e}", db.name));
        db
    }

    /// The owner's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A URL whose sessions have put on `role` from their first moment.
    #[must_use]
    pub fn url_for(&self, role: &str) -> String {
        let joint = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{joint}options=-c%20role%3D{role}", self.url)
    }

    /// Runs a statement without parameters; returns how many rows it touched.
    ///
    /// # Panics
    /// When it fails.
    pub async fn exec(&self, sql: &str) -> u64 {
        match sqlx::query(AssertSqlSafe(sql)).execute(&self.pool).await {
            Ok(done) => done.rows_affected(),
            Err(e) => panic!("{sql}: {e}"),
        }
    }

    /// The one value that a statement without parameters gives.
    ///
    /// # Panics
    /// When it fails or gives no row.
    pub async fn one<T>(&self, sql: &str) -> T
    where
        T: Send + Unpin,
        (T,): for<'r> FromRow<'r, PgRow>,
    {
        match sqlx::query_as::<_, (T,)>(AssertSqlSafe(sql)).fetch_one(&self.pool).await {
            Ok((value,)) => value,
            Err(e) => panic!("{sql}: {e}"),
        }
    }

    /// A user of this name in the default tenant, with a Space of the same name and a token.
    ///
    /// # Panics
    /// When the rows cannot be written.
    pub async fn person(&self, name: &str) -> Person {
        self.person_of("default", name).await
    }

    /// A user with a Space and a token in `tenant`, which is made when it is new.
    ///
    /// # Panics
    /// When the rows cannot be written.
    pub async fn person_of(&self, tenant: &str, name: &str) -> Person {
        let random: [u8; 32] = rand::random();
        let token = format!("sf_{}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(random));
        let ids: (i64, i64, i64) = sqlx::query_as(
            "with t as (insert into tenants (name) values ($1) on conflict (name) do update set name = excluded.name returning id),
                  u as (insert into users (tenant_id, name, email) select id, $2, $2 || '@example.org' from t returning id, tenant_id),
                  s as (insert into spaces (tenant_id, name) select id, $2 from t returning id),
                  m as (insert into space_members (tenant_id, space_id, user_id) select u.tenant_id, s.id, u.id from u, s),
                  k as (insert into tokens (tenant_id, user_id, name, hash) select u.tenant_id, u.id, 'story', $3 from u)
             select u.tenant_id, u.id, s.id from u, s",
        )
        .bind(tenant)
        .bind(name)
        .bind(Sha256::digest(token.as_bytes()).to_vec())
        .fetch_one(&self.pool)
        .await
        .unwrap_or_else(|e| panic!("{name} of {tenant} cannot be made: {e}"));
        Person {
            tenant_id: ids.0,
            user_id: ids.1,
            space_id: ids.2,
            token,
        }
    }

    /// An embedding endpoint that is the provider, ranked before the built-in one. Returns its id.
    ///
    /// # Panics
    /// When the row cannot be written.
    pub async fn openai_endpoint(&self, name: &str, provider: &Provider, dims: i32) -> i64 {
        self.endpoint(name, "embedding", "openai", &provider.url(), "scripted", Some(dims))
            .await
    }

    /// An OCR endpoint that is the provider, ranked before the built-in one. Returns its id.
    ///
    /// # Panics
    /// When the row cannot be written.
    pub async fn ocr_endpoint(&self, name: &str, provider: &Provider) -> i64 {
        self.endpoint(name, "ocr", "ocr_http", &format!("{}/ocr", provider.url()), "scripted", None)
            .await
    }

    async fn endpoint(&self, name: &str, capability: &str, protocol: &str, url: &str, model: &str, dims: Option<i32>) -> i64 {
        sqlx::query_scalar(
            "insert into endpoints (name, capability, protocol, url, model, dims, trust, rank) values ($1, $2, $3, $4, $5, $6, 3, 1) returning id",
        )
        .bind(name)
        .bind(capability)
        .bind(protocol)
        .bind(url)
        .bind(model)
        .bind(dims)
        .fetch_one(&self.pool)
        .await
        .unwrap_or_else(|e| panic!("endpoint {name} cannot be made: {e}"))
    }

    /// The job's row in the live table, `None` once it has left it.
    ///
    /// # Panics
    /// When the database does not answer.
    pub async fn job(&self, id: i64) -> Option<Job> {
        sqlx::query_as(
            "select id, kind, item_id, item_version, status, avail_at, attempts, forgiven, charged, item_fails, crashes, timeouts_in_row,
                    claimed_by, started_at, endpoint_id, last_class, last_cause, last_error from jobs where id = $1",
        )
        .bind(id)
        .fetch_optional(&self.pool)
        .await
        .unwrap_or_else(|e| panic!("job {id}: {e}"))
    }

    /// The job's status wherever it lives now: `waiting`, `running`, `parked`, `dead`, `done`, `cancelled`, `superseded`,
    /// or `unknown`.
    ///
    /// # Panics
    /// When the database does not answer.
    pub async fn status(&self, id: i64) -> String {
        sqlx::query_scalar("select status from jobs where id = $1 union all select status from jobs_done where id = $1")
            .bind(id)
            .fetch_optional(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("status of job {id}: {e}"))
            .unwrap_or_else(|| "unknown".to_owned())
    }

    /// The job's attempts that did not succeed, in their order.
    ///
    /// # Panics
    /// When the database does not answer.
    pub async fn attempts(&self, id: i64) -> Vec<Attempt> {
        sqlx::query_as("select attempt, class, cause, error, forgiven, worker from attempts where job_id = $1 order by attempt")
            .bind(id)
            .fetch_all(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("attempts of job {id}: {e}"))
    }
}

async fn admin(server: &str, sql: &str) -> Result<(), sqlx::Error> {
    let mut conn = PgConnection::connect(server).await?;
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await?;
    conn.close().await
}

impl Drop for Db {
    fn drop(&mut self) {
        if std::env::var_os("STEADFAST_TEST_KEEP").is_some() {
            eprintln!("kept: {}", self.url);
            return;
        }
        // A test's runtime cannot be blocked on from here, and may be shutting down: a thread with its own can.
        let (server, sql) = (self.server.clone(), format!("drop database if exists {} with (force)", self.name));
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map(|r| r.block_on(async { tokio::time::timeout(std::time::Duration::from_secs(10), admin(&server, &sql)).await }))
        });
        // Best effort: a server that went down with the story keeps its database.
        let _ = dropping.join();
    }
}
