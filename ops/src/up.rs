//! `steadfast up`: everything on one machine, as children of one process that keeps them running.
//!
//! Order: lock the data folder, Postgres, migrations, logins, API and workers, token, `DIR/env`, samples; the last line begins with
//! `ready`. On the way out the same backwards. What each child may see of our environment: [`process::api_env`], [`process::worker_env`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use queue_schema::{Db, Role, tenant};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::env_file;
use fleet::{Fleet, Phase};
use process::Spec;
use say::Say;
use state::{Folder, Secrets, State};

mod first;
mod fleet;
mod postgres;
mod process;
mod say;
mod state;

/// Asked at the end of the first start. A scanned sample answers it in other words: none of these stands in any of them, so only meaning finds it.
const QUESTION: &str = "by what date does the renter have to be gone from the apartment?";

/// How long API and workers may finish what they hold; a worker's own grace is 30 s.
const GRACE: Duration = Duration::from_secs(35);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder for the database, files, logs and `env`
    #[arg(long, value_name = "DIR", env = "STEADFAST_DATA", default_value = ".steadfast")]
    data: PathBuf,

    /// Port of the API
    #[arg(long, value_name = "N", default_value_t = 7787, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,

    /// Address that the API listens on; the default is this machine alone
    #[arg(long, value_name = "ADDR", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,

    /// How many worker processes
    #[arg(long, value_name = "N", default_value_t = 2)]
    workers: u16,

    /// Places per worker [default: the worker's own choice]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: Option<u16>,

    /// Do not add the sample documents on the first start
    #[arg(long)]
    no_samples: bool,

    /// The `--database-url` of all verbs; here: use this Postgres (15 or newer) instead of the embedded one, with the owner's login
    #[arg(skip)]
    database_url: Option<String>,
}

impl Args {
    pub(crate) fn with_database(self, database_url: Option<String>) -> Self {
        Self { database_url, ..self }
    }
}

pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let say = Say::new();
    let mut signals = Signals::new()?;
    let mut fleet = Fleet::new(say);
    let outcome = tokio::select! {
        started = start(&args, say, &mut fleet) => started,
        name = signals.next() => { say.line(format!("{name}: stopping")); Ok(None) }
    };
    let failed = match outcome {
        Ok(Some(ready)) => {
            say.line(ready);
            let name = signals.next().await;
            say.line(format!(
                "{name}: draining, at most {} s; once more ends everything now",
                GRACE.as_secs()
            ));
            None
        }
        Ok(None) => None,
        Err(error) => Some(error),
    };
    if !fleet.is_empty() {
        let phase = fleet.phase();
        let stopped = fleet.stop();
        tokio::pin!(stopped);
        loop {
            tokio::select! {
                () = &mut stopped => break,
                _ = signals.next() => fleet::raise(&phase, Phase::Kill),
            }
        }
    }
    match failed {
        Some(error) => Err(error),
        None => {
            say.line("stopped");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Everything up to the line that begins with `ready`, which it gives.
async fn start(args: &Args, say: Say, fleet: &mut Fleet) -> Result<Option<String>> {
    let began = Instant::now();
    let parts = Parts::find()?;
    let folder = Folder::open(&args.data)?;
    let mut state = State::of(&folder)?;
    let address = SocketAddr::new(args.bind, args.port);
    // Found out before anything is started; the API itself binds it a moment later.
    if let Err(error) = TcpListener::bind(address) {
        if error.kind() == std::io::ErrorKind::AddrInUse {
            bail!("port {} is in use: choose another with --port N", args.port);
        }
        return Err(error).with_context(|| format!("cannot listen on {address} (--bind, --port)"));
    }

    let (owner_url, worker_url, api_url) = match &args.database_url {
        Some(url) => {
            check_url(url)?;
            (url.clone(), with_role(url, "steadfast_worker")?, with_role(url, "steadfast_api")?)
        }
        None => {
            let secrets = Secrets::of(&folder)?;
            let url = postgres::start(&folder, &secrets, &mut state, say, fleet).await?;
            let worker = postgres::url_for(&url, "steadfast_worker_login", &secrets.worker)?;
            let api = postgres::url_for(&url, "steadfast_api_login", &secrets.api)?;
            steadfast_migrations::create_database(&url).await?;
            (url, worker, api)
        }
    };
    let step = say.step("database: migrating", false);
    let files = steadfast_migrations::migrate(&owner_url)
        .await
        .with_context(|| match args.database_url {
            Some(_) => "--database-url",
            None => "the embedded database",
        })?;
    if args.database_url.is_none() {
        let secrets = Secrets::of(&folder)?;
        steadfast_migrations::logins(&owner_url, &secrets.worker, &secrets.api)
            .await
            .context("the database logins")?;
    }
    let db = Db::open(&owner_url, Role::Owner, 1, "steadfast-up")?;
    if !db.server().await?.pgvector {
        step.line("  no pgvector here: searching with sign bits and exact re-rank");
    }
    step.done(if files == 0 {
        "database: up to date".to_owned()
    } else {
        format!("database: {files} migration(s) applied")
    });

    let step = say.step("API and workers: starting", false);
    let blobs = std::env::var_os("STEADFAST_BLOBS").filter(|blobs| !blobs.is_empty());
    let blobs = blobs.unwrap_or_else(|| format!("file://{}", folder.join("blobs").display()).into());
    let shared = |url: &str| -> Vec<(OsString, OsString)> {
        vec![
            ("STEADFAST_DATABASE_URL".into(), url.into()),
            ("STEADFAST_BLOBS".into(), blobs.clone()),
            // Both leave when this one is gone, however it went.
            ("STEADFAST_PARENT_PID".into(), std::process::id().to_string().into()),
        ]
    };
    let mut env = process::api_env();
    env.extend(shared(&api_url));
    env.push(("STEADFAST_BIND".into(), address.to_string().into()));
    let api_health = fleet.start(child("api", parts.program("steadfast-api"), env, &folder), Phase::Drain)?;

    let mut worker_health = Vec::new();
    for no in 1..=args.workers {
        let mut env = process::worker_env();
        env.extend(shared(&worker_url));
        if let Some(model) = &parts.model {
            env.push(("STEADFAST_MODEL_DIR".into(), model.into()));
        }
        if let Some(places) = args.concurrency {
            env.push(("STEADFAST_CONCURRENCY".into(), places.to_string().into()));
        }
        worker_health.push(fleet.start(
            child(&format!("worker-{no}"), parts.program("steadfast-worker"), env, &folder),
            Phase::Drain,
        )?);
    }
    let reachable = if args.bind.is_unspecified() {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), args.port)
    } else {
        address
    };
    let api = first::Api::new(format!("http://{reachable}"))?;
    let mut all_well = Box::pin(api_health.or_death(api.ready())) as std::pin::Pin<Box<dyn Future<Output = Result<()>>>>;
    for health in &worker_health {
        all_well = Box::pin(health.or_death(all_well));
    }
    all_well.await?;
    step.done(format!("API on {reachable}, {} worker(s)", args.workers));

    let (token, another) = write_env(&folder, &api.url, &owner_url, &db).await?;
    if another || !state.welcomed {
        if !args.no_samples {
            // The house stands without them.
            if let Err(error) = first::welcome(&api, &token, QUESTION, say).await {
                say.line(format!("! the samples: {}", crate::in_one_line(&error)));
            }
        }
        state.welcomed = true;
        state.save(&folder)?;
    }
    say.line(format!(
        "  API {0}/api/v1   health {0}/health   logs {1}",
        api.url,
        folder.join("logs").display()
    ));
    say.line(format!(
        "  env {} (URL and token; elsewhere: export STEADFAST_ENV_FILE to it)",
        folder.join("env").display()
    ));
    let took = began.elapsed().as_secs_f64();
    // The lock lives as long as the process.
    std::mem::forget(folder);
    Ok(Some(format!("ready  {}  (in {took:.1} s; Ctrl-C drains and stops)", api.url)))
}

/// Writes `DIR/env`; gives its token and whether it is new, which is so when this database does not know the one of an earlier start.
async fn write_env(folder: &Folder, url: &str, owner_url: &str, db: &Db) -> Result<(String, bool)> {
    let file = folder.join("env");
    let known = if file.is_file() {
        env_file::read(&file)?.remove(env_file::TOKEN)
    } else {
        None
    };
    let known = match known {
        Some(token) if tenant::authenticate(db, &token).await.context("the database")?.is_some() => Some(token),
        _ => None,
    };
    let new = known.is_none();
    let token = match known {
        Some(token) => token,
        None => first_token(db).await.context("cannot make the first token")?,
    };
    let values = [(env_file::URL, url), (env_file::TOKEN, &token), (env_file::DATABASE_URL, owner_url)];
    let values: BTreeMap<String, String> = values.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    env_file::write(&file, &values)?;
    Ok((token, new))
}

/// A token for the person at this machine, with a Space to put documents into.
async fn first_token(db: &Db) -> Result<String> {
    Ok(tenant::create_token(db, "operator", "first start", "Documents", None).await?.token)
}

fn child(name: &str, program: PathBuf, env: Vec<(OsString, OsString)>, folder: &Folder) -> Spec {
    Spec {
        name: name.to_owned(),
        program,
        args: Vec::new(),
        env,
        log: folder.log(name),
        account: None,
        stop: Signal::TERM,
        force: Signal::KILL,
        grace: GRACE,
    }
}

/// Where `ops/up` put things; run by hand, the binaries are those beside this one.
#[derive(Debug)]
struct Parts {
    bin: PathBuf,
    model: Option<PathBuf>,
}

impl Parts {
    fn find() -> Result<Self> {
        let named = |name| {
            std::env::var_os(name)
                .filter(|value: &OsString| !value.is_empty())
                .map(PathBuf::from)
        };
        let bin = match named("STEADFAST_BIN_DIR") {
            Some(bin) => bin,
            None => std::env::current_exe()?
                .parent()
                .map(Path::to_path_buf)
                .context("this program has a folder")?,
        };
        let parts = Self {
            bin: std::path::absolute(bin)?,
            model: named("STEADFAST_MODEL_DIR"),
        };
        for name in ["steadfast-api", "steadfast-worker"] {
            let program = parts.program(name);
            if !program.is_file() {
                bail!(
                    "{} is not there: build it (`ops/up` does), or set STEADFAST_BIN_DIR",
                    program.display()
                );
            }
        }
        Ok(parts)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }
}

fn check_url(url: &str) -> Result<()> {
    // The URL holds a password, so no error repeats it.
    let parsed = url::Url::parse(url)
        .map_err(|error| anyhow::anyhow!("--database-url: {error}; it looks like postgres://user:password@host:5432/database"))?;
    if !matches!(parsed.scheme(), "postgres" | "postgresql") {
        bail!("--database-url begins with postgres://, not {}://", parsed.scheme());
    }
    Ok(())
}

/// The same login, but its sessions begin in the narrower `role`: `current_user` is that role, and row-level security binds it.
fn with_role(url: &str, role: &str) -> Result<String> {
    let mut url = url::Url::parse(url).map_err(|error| anyhow::anyhow!("--database-url: {error}"))?;
    let (options, others): (Vec<_>, Vec<_>) = url.query_pairs().into_owned().partition(|(name, _)| name == "options");
    let mut words: Vec<String> = options.into_iter().map(|(_, value)| value).collect();
    words.push(format!("-c role={role}"));
    let query: Vec<String> = others
        .into_iter()
        .chain([("options".to_owned(), words.join(" "))])
        .map(|(name, value)| format!("{name}={}", percent(&value)))
        .collect();
    url.set_query(Some(&query.join("&")));
    Ok(url.into())
}

/// Percent-encoding that libpq understands as well: a blank as %20, since it takes a plus for a plus.
fn percent(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes())
        .collect::<String>()
        .replace('+', "%20")
}

/// Whether Postgres has to be started as somebody else.
fn am_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What asks us to stop.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "interrupted",
            _ = self.terminate.recv() => "asked to end",
            _ = self.hangup.recv() => "the terminal is gone",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrower_role_is_one_more_option() {
        assert_eq!(
            with_role("postgres://me:pw@db/x", "steadfast_api").expect("a URL"),
            "postgres://me:pw@db/x?options=-c%20role%3Dsteadfast_api"
        );
        assert_eq!(
            with_role("postgres://db/x?options=-c%20jit%3Doff&sslmode=require", "steadfast_worker").expect("a URL"),
            "postgres://db/x?sslmode=require&options=-c%20jit%3Doff%20-c%20role%3Dsteadfast_worker"
        );
    }

    #[test]
    fn a_wrong_url_is_refused_without_repeating_it() {
        for wrong in ["secret", "mysql://me:secret@db/x"] {
            let error = check_url(wrong).expect_err("refused").to_string();
            assert!(error.contains("--database-url") && !error.contains("secret"), "{error}");
        }
    }
}
