//! The one Postgres that everybody is measured on: the caller's, or a throw-away one of our own.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

/// Durable as in earnest, and big enough that neither the cache nor a checkpoint decides a run of seconds.
const SETTINGS: [&str; 4] = ["shared_buffers=1GB", "max_wal_size=1GB", "fsync=on", "synchronous_commit=on"];
/// What is no setting of interest to a reader.
const PLUMBING: [&str; 6] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=200",
    "shared_preload_libraries=pg_stat_statements",
    // Loaded for the one measure that counts statements, and silent in all others.
    "pg_stat_statements.track=none",
    "log_min_messages=fatal",
];
/// Who Postgres runs as when we are root, as whom it does not.
const NOBODY: u32 = 65_534;

pub struct Server {
    url: String,
    /// When it is ours: the process, and the folder that goes with it.
    own: Option<(Child, tempfile::TempDir)>,
}

impl Server {
    /// The server behind `url`, or one of our own from the programs in `STEADFAST_PG_BIN`.
    pub async fn start(url: Option<&str>) -> Result<Self> {
        if let Some(url) = url {
            let server = Self {
                url: url.to_owned(),
                own: None,
            };
            server.admin().await.context("--database-url")?.close().await?;
            return Ok(server);
        }
        let bin = std::env::var_os("STEADFAST_PG_BIN").filter(|b| !b.is_empty()).map(PathBuf::from).context(
            "no Postgres to measure on: start this by tests/bench/run, which brings one, or set STEADFAST_PG_BIN to a folder with initdb and postgres, or use --database-url",
        )?;
        let folder = tempfile::Builder::new()
            .prefix("steadfast-bench-")
            .tempdir()
            .context("a folder for the throw-away Postgres")?;
        let data = folder.path().join("data");
        std::fs::create_dir(&data)?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY))?;
            std::os::unix::fs::chown(&data, Some(NOBODY), Some(NOBODY))?;
        }
        let made = program(&bin, "initdb")
            .args([
                "-A",
                "trust",
                "-U",
                "postgres",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-instructions",
                "-D",
            ])
            .arg(&data)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}/initdb", bin.display()))?;
        if !made.status.success() {
            bail!("initdb failed: {}", String::from_utf8_lossy(&made.stderr).trim());
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = program(&bin, "postgres");
        command
            .arg("-D")
            .arg(&data)
            .arg("-p")
            .arg(port.to_string())
            .current_dir(folder.path());
        for setting in SETTINGS.iter().chain(&PLUMBING) {
            command.arg("-c").arg(setting);
        }
        let log = std::fs::File::create(folder.path().join("log"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start postgres")?;
        let mut server = Self {
            url: format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable"),
            own: Some((child, folder)),
        };
        for _ in 0..300 {
            if let Ok(conn) = server.admin().await {
                conn.close().await?;
                return Ok(server);
            }
            if let Some((child, folder)) = &mut server.own
                && let Some(status) = child.try_wait()?
            {
                let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
                bail!("the throw-away Postgres ended ({status}): {}", log.trim());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("the throw-away Postgres did not answer within 30 s")
    }

    pub async fn admin(&self) -> Result<PgConnection> {
        let options: PgConnectOptions = self.url.parse()?;
        Ok(options.application_name("steadfast-bench").connect().await?)
    }

    /// The process whose children are the backends, when the server is ours.
    pub fn postmaster(&self) -> Option<i32> {
        self.own.as_ref().and_then(|(child, _)| i32::try_from(child.id()).ok())
    }

    /// The URL of one database.
    pub fn url(&self, database: &str) -> Result<String> {
        let mut url = url::Url::parse(&self.url)?;
        url.set_path(database);
        Ok(url.into())
    }

    /// An empty database, also when an earlier run left one of that name; gives its URL.
    pub async fn fresh(&self, database: &str) -> Result<String> {
        let mut conn = self.admin().await?;
        for sql in [
            format!("drop database if exists {database} with (force)"),
            format!("create database {database}"),
        ] {
            sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await?;
        }
        conn.close().await?;
        self.url(database)
    }

    pub async fn drop_database(&self, database: &str) -> Result<()> {
        let mut conn = self.admin().await?;
        sqlx::query(AssertSqlSafe(format!("drop database if exists {database} with (force)")))
            .execute(&mut conn)
            .await?;
        Ok(conn.close().await?)
    }

    /// So that no checkpoint falls into the measure, and its full-page images are nobody's in particular.
    pub async fn checkpoint(&self) -> Result<()> {
        let mut conn = self.admin().await?;
        sqlx::query("checkpoint").execute(&mut conn).await?;
        Ok(conn.close().await?)
    }

    /// Where the log is written to, in bytes.
    pub async fn wal(&self) -> Result<i64> {
        let mut conn = self.admin().await?;
        let at: i64 = sqlx::query_scalar("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
            .fetch_one(&mut conn)
            .await?;
        conn.close().await?;
        Ok(at)
    }

    /// Version and the settings that decide.
    pub async fn describe(&self) -> Result<String> {
        let mut conn = self.admin().await?;
        let version: String = sqlx::query_scalar("select current_setting('server_version')")
            .fetch_one(&mut conn)
            .await?;
        let mut said = Vec::new();
        for name in ["shared_buffers", "max_wal_size", "fsync", "synchronous_commit"] {
            let value: String = sqlx::query_scalar("select current_setting($1)")
                .bind(name)
                .fetch_one(&mut conn)
                .await?;
            said.push(format!("{name} = {value}"));
        }
        conn.close().await?;
        let whose = if self.own.is_some() {
            "started for this run"
        } else {
            "given by --database-url"
        };
        Ok(format!(
            "Postgres {version}, {whose}, on the same machine over loopback: {}",
            said.join(", ")
        ))
    }
}

/// A program of Postgres, as somebody whom it agrees to run as.
fn program(bin: &Path, name: &str) -> Command {
    let mut command = Command::new(bin.join(name));
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    // A Ctrl-C is ours to act on: the server must outlive the connections that still clean up.
    command.process_group(0);
    command
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((child, _folder)) = &mut self.own {
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
                // Immediate: nothing in it is to be kept.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
            }
            let _ = child.wait();
        }
    }
}
