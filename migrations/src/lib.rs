//! How the database got here: numbered files, applied once each under a lock, by the owner's role.

/// The numbered `.sql` files of `migrations/sql`, embedded in the binary.
pub static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../migrations/sql");

/// Applies what is missing to the database behind `url` and says how many files that were.
///
/// # Errors
/// When the database cannot be reached, is older than Postgres 15, or a file does not apply.
pub async fn migrate(url: &str) -> Result<usize, MigrateError> {
    use sqlx::Connection as _;
    let mut conn = sqlx::PgConnection::connect(url).await?;
    let version: i32 = sqlx::query_scalar("select current_setting('server_version_num')::int")
        .fetch_one(&mut conn)
        .await?;
    if version < 150_000 {
        return Err(MigrateError::TooOld(version / 10_000));
    }
    let before = applied(&mut conn).await;
    MIGRATIONS.run(&mut conn).await?;
    let after = applied(&mut conn).await;
    conn.close().await?;
    Ok(after - before)
}

async fn applied(conn: &mut sqlx::PgConnection) -> usize {
    // The table is not there before the first run, which is an answer too.
    sqlx::query_scalar::<_, i64>("select count(*) from _sqlx_migrations")
        .fetch_one(conn)
        .await
        .map_or(0, |n| usize::try_from(n).unwrap_or(0))
}

/// Makes the database that `url` names when the server does not have it yet; says whether it was made.
///
/// # Errors
/// When the server cannot be reached or the login may not create databases.
pub async fn create_database(url: &str) -> Result<bool, MigrateError> {
    use sqlx::migrate::MigrateDatabase as _;
    if sqlx::Postgres::database_exists(url).await? {
        return Ok(false);
    }
    sqlx::Postgres::create_database(url).await?;
    Ok(true)
}

/// Gives the two processes logins of their own, `steadfast_worker_login` and `steadfast_api_login`, with these passwords. Both
/// change at once into the role that [`migrate`] made, so `current_user` is `steadfast_worker` or `steadfast_api`, as it
/// is on a server where one login serves all. The API's may also become `steadfast_watch`, which counts. May be repeated: the passwords are set anew.
///
/// # Errors
/// When the server cannot be reached or the login behind `url` may not create roles.
pub async fn logins(url: &str, worker_password: &str, api_password: &str) -> Result<(), MigrateError> {
    use sqlx::Connection as _;
    let mut conn = sqlx::PgConnection::connect(url).await?;
    // A statement that fails is written to the server's log as it stands, and these hold passwords.
    sqlx::query("set log_min_error_statement = panic").execute(&mut conn).await?;
    sqlx::query("set log_statement = none").execute(&mut conn).await?;
    for (login, role, more, password) in [
        ("steadfast_worker_login", "steadfast_worker", None, worker_password),
        ("steadfast_api_login", "steadfast_api", Some("steadfast_watch"), api_password),
    ] {
        // DDL takes no parameters; the server itself quotes names and words.
        let statements: Vec<String> = sqlx::query_scalar(
            "select unnest(array[
               format(case when exists (select from pg_roles where rolname = $1) then 'alter' else 'create' end || ' role %I login password %L', $1, $3),
               format('grant %I to %I', $2, $1),
               format('grant %I to %I', coalesce($4, $2), $1),
               format('alter role %I set role to %L', $1, $2)])",
        )
        .bind(login)
        .bind(role)
        .bind(password)
        .bind(more)
        .fetch_all(&mut conn)
        .await?;
        for statement in statements {
            sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut conn).await?;
        }
    }
    conn.close().await?;
    Ok(())
}

#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("the database cannot be reached: {0}")]
    Connect(#[from] sqlx::Error),
    #[error("Postgres {0} is too old: 15 or newer is needed")]
    TooOld(i32),
    #[error("a migration did not apply: {0}")]
    Apply(#[from] sqlx::migrate::MigrateError),
}
