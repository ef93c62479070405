//! A worker that has nothing to do: what it asks of the database and how much memory it keeps.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use queue_schema::question::{self, Answer};
use queue_schema::{Db, Role, tenant};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::Bench;
use crate::facts;
use crate::peers::ours;
use crate::report::{Aim, Section};
use crate::stat::number;

const WATCHED: Duration = Duration::from_secs(30);
const MIB: f64 = 1024.0 * 1024.0;

pub async fn run(bench: &Bench) -> Result<Section> {
    let worker = binary(bench.worker.as_deref())?;
    let model = std::env::var_os("STEADFAST_MODEL_DIR").filter(|d| !d.is_empty()).map(PathBuf::from);
    let mut section = Section::new(
        "A worker at rest",
        format!(
            "The worker's own binary ({}), at its defaults, for all kinds; watched for {} s without work.",
            worker.file_name().unwrap_or_default().to_string_lossy(),
            WATCHED.as_secs()
        ),
        &["worker", "statements/s", "resident MiB", "of which its own (not mapped files) MiB"],
    );
    let plain = watch(bench, &worker, None).await?;
    section.row([
        "without the embedding model".to_owned(),
        plain.rate(),
        number(plain.resident / MIB, 1),
        number(plain.own / MIB, 1),
    ]);
    section
        .aims
        .push(Aim::at_most("statements of a worker at rest", 1.0, plain.statements, 2, "/s"));
    section.aims.push(Aim::at_most(
        "memory of a worker without the embedding model",
        40.0,
        plain.resident / MIB,
        1,
        " MiB",
    ));
    match model {
        Some(model) => {
            let loaded = watch(bench, &worker, Some(&model)).await?;
            section.row([
                "with the embedding model loaded".to_owned(),
                loaded.rate(),
                number(loaded.resident / MIB, 1),
                number(loaded.own / MIB, 1),
            ]);
            section.aims.push(Aim::at_most(
                "memory of a worker with the embedding model",
                250.0,
                loaded.resident / MIB,
                1,
                " MiB",
            ));
        }
        None => section
            .notes
            .push("No model folder is set (STEADFAST_MODEL_DIR), so the worker with the model loaded was not measured.".to_owned()),
    }
    if !plain.exact {
        section
            .notes
            .push("The server has no pg_stat_statements, so transactions were counted, which is at most as many as statements.".to_owned());
    }
    Ok(section)
}

struct Rest {
    statements: f64,
    exact: bool,
    resident: f64,
    own: f64,
}

impl Rest {
    fn rate(&self) -> String {
        number(self.statements, 2)
    }
}

async fn watch(bench: &Bench, worker: &Path, model: Option<&Path>) -> Result<Rest> {
    let database = "bench_rest";
    let url = bench.server.fresh(database).await?;
    ours::prepare(url.clone()).await?;
    let mut conn = PgConnection::connect(&url).await?;
    let exact = counted(&mut conn, database).await;
    let Running {
        mut child,
        blobs: _blobs,
    } = start(&url, worker, model, &[]).await?;
    if model.is_some() {
        eprintln!("  one question, so that the model is loaded");
        one_question(&url).await?;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    eprintln!(
        "  watching the worker {} the model for {} s",
        if model.is_some() { "with" } else { "without" },
        WATCHED.as_secs()
    );
    let before = statements(&mut conn, exact).await?;
    tokio::time::sleep(WATCHED).await;
    let after = statements(&mut conn, exact).await?;
    let pid = child.id().context("the worker ended by itself")?;
    let (resident, own) = facts::memory(pid).context("the worker's memory cannot be read")?;
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    }
    tokio::time::timeout(Duration::from_secs(40), child.wait())
        .await
        .context("the worker does not stop")??;
    conn.close().await?;
    bench.server.drop_database(database).await?;
    Ok(Rest {
        statements: (after - before) as f64 / WATCHED.as_secs_f64(),
        exact,
        resident: resident as f64,
        own: own as f64,
    })
}

/// A worker's own binary over a database, killed with this.
pub(super) struct Running {
    child: Child,
    blobs: tempfile::TempDir,
}

/// Returns when it has registered.
pub(super) async fn start(url: &str, worker: &Path, model: Option<&Path>, args: &[&str]) -> Result<Running> {
    let blobs = tempfile::tempdir()?;
    let mut command = Command::new(worker);
    command
        .env_remove("STEADFAST_MODEL_DIR")
        .env("STEADFAST_DATABASE_URL", url)
        .env("STEADFAST_BLOBS", format!("file://{}", blobs.path().display()))
        .env("RUST_LOG", "warn")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if let Some(model) = model {
        command.env("STEADFAST_MODEL_DIR", model);
    }
    let mut child = command.spawn().with_context(|| format!("cannot start {}", worker.display()))?;
    ready(&mut child).await?;
    Ok(Running { child, blobs })
}

/// Turns the counting of statements on for this database's next sessions; false: the server cannot.
async fn counted(conn: &mut PgConnection, database: &str) -> bool {
    let on = format!("alter database {database} set pg_stat_statements.track = 'top'");
    sqlx::query("create extension pg_stat_statements").execute(&mut *conn).await.is_ok()
        && sqlx::query(AssertSqlSafe(on)).execute(&mut *conn).await.is_ok()
        && sqlx::query("select count(*) from pg_stat_statements")
            .execute(&mut *conn)
            .await
            .is_ok()
}

/// What everybody but this connection has run here so far.
async fn statements(conn: &mut PgConnection, exact: bool) -> Result<i64> {
    // This session began before the counting was turned on, so it is not counted.
    let sql = if exact {
        "select coalesce(sum(calls), 0)::bigint from pg_stat_statements where dbid = (select oid from pg_database where datname = current_database())"
    } else {
        "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
    };
    Ok(sqlx::query_scalar(sql).fetch_one(conn).await?)
}

async fn ready(child: &mut Child) -> Result<()> {
    let out = child.stdout.take().context("no output to read")?;
    let mut lines = BufReader::new(out).lines();
    let wait = async {
        while let Some(line) = lines.next_line().await? {
            if line.starts_with("worker ready") {
                return Ok(());
            }
        }
        bail!("the worker ended before it was ready")
    };
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .context("the worker is not ready after 20 s")?
}

async fn one_question(url: &str) -> Result<()> {
    let db = Db::open(url, Role::Owner, 1, "bench-owner")?;
    let someone = tenant::create_token(&db, "bench", "bench", "bench", None).await?;
    let scope = tenant::authenticate(&db, &someone.token)
        .await?
        .context("the token just made is unknown")?;
    let mut tx = scope.begin(&db).await?;
    let id = question::ask(&mut tx, &scope, "how much memory does the model take").await?;
    Db::commit(tx).await?;
    for _ in 0..600 {
        let mut tx = scope.begin(&db).await?;
        match question::answer(&mut tx, id).await? {
            Some(Answer::Vector(_)) => {
                drop(tx);
                db.pool().close().await;
                return Ok(());
            }
            Some(Answer::Failed(class)) => bail!("the model did not answer: {class}"),
            None => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    bail!("the model did not answer within a minute")
}

/// The worker to watch: as told, or the one that this tree built last.
pub(super) fn binary(told: Option<&Path>) -> Result<PathBuf> {
    if let Some(told) = told {
        return Ok(told.to_owned());
    }
    let folder = std::env::var_os("STEADFAST_BIN_DIR").map(PathBuf::from);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found = folder
        .into_iter()
        .chain([root.join("target/release"), root.join("target/debug")])
        .map(|d| d.join("steadfast-worker"))
        .find(|p| p.is_file());
    found.context("no steadfast-worker found: build it (cargo build -p steadfast-workers), or name it with --worker")
}
