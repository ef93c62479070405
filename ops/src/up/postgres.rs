//! The embedded Postgres: made once under the data folder, started as our own child, found again after a crash.

use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal};

use super::fleet::{Fleet, Phase};
use super::process::{Account, Spec, find_program};
use super::say::Say;
use super::state::{Folder, Secrets, State};

const OWNER: &str = "steadfast";

/// Starts the server, making the cluster first when there is none; gives the owner's URL.
pub(super) async fn start(folder: &Folder, secrets: &Secrets, state: &mut State, say: Say, fleet: &mut Fleet) -> Result<String> {
    let bin = binaries()?;
    let version = version(&bin).await?;
    let place = Place::find(folder, &bin, say).await?;
    if !place.data.join("PG_VERSION").exists() {
        let step = say.step(format!("Postgres {version}: making a cluster in {}", place.root.display()), true);
        create(&bin, version, &place, secrets).await?;
        step.done(format!("Postgres {version}: cluster made in {}", place.root.display()));
    }
    let of_cluster = std::fs::read_to_string(place.data.join("PG_VERSION")).context("cannot read the cluster's PG_VERSION")?;
    if of_cluster.trim() != version.to_string() {
        bail!(
            "{} was made by Postgres {}, and {} holds Postgres {version}: start it with the old binaries (STEADFAST_PG_BIN), pg_dump, and load that into a new --data folder",
            place.data.display(),
            of_cluster.trim(),
            bin.display()
        );
    }
    let step = say.step(format!("Postgres {version}: starting"), false);
    if let Some(pid) = left_behind(&place.data) {
        step.line(format!(
            "! a Postgres of an earlier start still runs (process {}): stopping it first",
            pid.as_raw_pid()
        ));
        stop_left_behind(&place.data, pid).await?;
    }
    let port = free_port(state.postgres_port)?;
    if state.postgres_port != Some(port) {
        state.postgres_port = Some(port);
        state.save(folder)?;
    }
    let before = pid_file(&place.data);
    let spec = server(&bin, &place, port, folder.log("postgres"));
    let health = fleet.start(spec, Phase::Database)?;
    health.or_death(ready(&place.data, before)).await?;
    step.done(format!("Postgres {version} on 127.0.0.1:{port}"));
    Ok(format!(
        "postgres://{OWNER}:{}@127.0.0.1:{port}/steadfast?sslmode=disable",
        secrets.owner
    ))
}

/// A login's URL on the server whose owner's URL this is.
pub(super) fn url_for(owner_url: &str, login: &str, password: &str) -> Result<String> {
    let mut url = url::Url::parse(owner_url).context("the owner's URL")?;
    url.set_username(login)
        .and_then(|()| url.set_password(Some(password)))
        .map_err(|()| anyhow::anyhow!("the owner's URL takes no login"))?;
    Ok(url.into())
}

fn binaries() -> Result<PathBuf> {
    let Some(bin) = std::env::var_os("STEADFAST_PG_BIN")
        .filter(|bin| !bin.is_empty())
        .map(PathBuf::from)
    else {
        bail!(
            "no Postgres to start: run `ops/up`, which brings one, or set STEADFAST_PG_BIN to a folder with initdb and postgres, or use a server of yours with --database-url"
        );
    };
    for program in ["initdb", "postgres"] {
        if !bin.join(program).is_file() {
            bail!("STEADFAST_PG_BIN is {}, and there is no {program} in it", bin.display());
        }
    }
    bin.canonicalize().with_context(|| format!("STEADFAST_PG_BIN {}", bin.display()))
}

/// The major version, from words like `postgres (PostgreSQL) 18.6` or `… 15.18 (Debian 15.18-0+deb12u1)`.
async fn version(bin: &Path) -> Result<u32> {
    let program = bin.join("postgres");
    let output = tokio::process::Command::new(&program).arg("--version").output().await;
    let output = output.with_context(|| format!("cannot run {}: is it made for this machine?", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let word = text.split_whitespace().nth(2).unwrap_or_default();
    let major = word
        .split(|letter: char| !letter.is_ascii_digit())
        .next()
        .and_then(|digits| digits.parse().ok());
    let major: u32 = major.with_context(|| format!("cannot understand `{} --version`: {text:?}", program.display()))?;
    if major < 15 {
        bail!("{} is Postgres {major}; 15 or newer is needed", program.display());
    }
    Ok(major)
}

/// Where the cluster lies and who runs it.
#[derive(Debug)]
struct Place {
    /// Ours: the cluster and, while it is made, its password.
    root: PathBuf,
    data: PathBuf,
    /// Set when we are root, as whom Postgres does not run.
    account: Option<Account>,
}

impl Place {
    async fn find(folder: &Folder, bin: &Path, say: Say) -> Result<Self> {
        let link = folder.join("postgres");
        if let Ok(root) = link.canonicalize() {
            let owner = root.metadata()?;
            let account = super::am_root().then_some(Account {
                uid: owner.uid(),
                gid: owner.gid(),
            });
            if account.is_none() && owner.uid() != rustix::process::geteuid().as_raw() {
                bail!(
                    "{} belongs to another account (uid {}): start as that one, or choose another --data",
                    root.display(),
                    owner.uid()
                );
            }
            return Ok(Self {
                data: root.join("data"),
                root,
                account,
            });
        }
        if link.is_symlink() {
            bail!(
                "{} points to a cluster that is gone: bring it back, or remove the link to start empty",
                link.display()
            );
        }
        if !super::am_root() {
            std::fs::DirBuilder::new()
                .mode(0o700)
                .create(&link)
                .with_context(|| format!("cannot make {}", link.display()))?;
            return Ok(Self {
                data: link.join("data"),
                root: link,
                account: None,
            });
        }
        let (name, account) = account(say).await?;
        if let Some(closed) = closed_folder(&bin.join("postgres")) {
            bail!(
                "Postgres does not run as root, and the account {name} cannot get through {} to its binaries: start with STEADFAST_CACHE=/var/cache/steadfast",
                closed.display()
            );
        }
        let mut root = link.clone();
        if let Some(closed) = closed_folder(&root) {
            // Opening a folder that somebody closed is not ours to do, so the cluster goes where its account can reach it.
            let unique: [u8; 4] = rand::random();
            let flat = folder.path.to_string_lossy().trim_matches('/').replace('/', "-");
            root = Path::new("/var/lib/steadfast").join(format!("{flat}-{:08x}", u32::from_be_bytes(unique)));
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o711)
                .create("/var/lib/steadfast")
                .context("cannot make /var/lib/steadfast")?;
            say.line(format!(
                "  Postgres runs as {name}, which cannot get through {}: its data lie in {}, linked from {}",
                closed.display(),
                root.display(),
                link.display()
            ));
        }
        let made = || -> std::io::Result<()> {
            std::fs::DirBuilder::new().mode(0o700).create(&root)?;
            std::os::unix::fs::chown(&root, Some(account.uid), Some(account.gid))?;
            if root != link {
                std::os::unix::fs::symlink(&root, &link)
            } else {
                Ok(())
            }
        };
        made().with_context(|| format!("cannot make {}", root.display()))?;
        Ok(Self {
            data: root.join("data"),
            root,
            account: Some(account),
        })
    }
}

/// The first folder on the way to `path` that others may not pass.
fn closed_folder(path: &Path) -> Option<PathBuf> {
    let folders: Vec<&Path> = path.ancestors().skip(1).collect();
    let closed = |folder: &&&Path| std::fs::metadata(folder).is_ok_and(|found| found.permissions().mode() & 0o001 == 0);
    folders.iter().rev().find(closed).map(|folder| folder.to_path_buf())
}

/// The account `steadfast`, made when the machine can; else `nobody`.
async fn account(say: Say) -> Result<(&'static str, Account)> {
    if let Some(found) = passwd("steadfast") {
        return Ok(("steadfast", found));
    }
    if let Some(useradd) = find_program("useradd") {
        let made = tokio::process::Command::new(useradd)
            .args([
                "--system",
                "--user-group",
                "--no-create-home",
                "--home-dir",
                "/nonexistent",
                "--shell",
                "/usr/sbin/nologin",
                "steadfast",
            ])
            .output()
            .await?;
        if let (true, Some(found)) = (made.status.success(), passwd("steadfast")) {
            say.line("  Postgres does not run as root: made the system account `steadfast` for it");
            return Ok(("steadfast", found));
        }
    }
    let found = passwd("nobody")
        .context("Postgres does not run as root, and there is neither an account `steadfast` nor `nobody`: `useradd --system steadfast`")?;
    say.line("  Postgres does not run as root: it runs as `nobody`");
    Ok(("nobody", found))
}

fn passwd(name: &str) -> Option<Account> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some(Account {
        uid: fields.next()?.parse().ok()?,
        gid: fields.next()?.parse().ok()?,
    })
}

async fn create(bin: &Path, version: u32, place: &Place, secrets: &Secrets) -> Result<()> {
    // Made beside its place and moved there when whole: an interrupted initdb is never taken for a cluster.
    let new = place.root.join("new");
    if new.exists() {
        std::fs::remove_dir_all(&new).with_context(|| format!("cannot remove {}", new.display()))?;
    }
    let password = place.root.join("password");
    let _ = std::fs::remove_file(&password);
    let write = || -> std::io::Result<()> {
        use std::io::Write as _;
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&password)?;
        writeln!(file, "{}", secrets.owner)?;
        match place.account {
            Some(account) => std::os::unix::fs::chown(&password, Some(account.uid), Some(account.gid)),
            None => Ok(()),
        }
    };
    write().with_context(|| format!("cannot write {}", password.display()))?;

    let mut args: Vec<OsString> = vec!["--pgdata".into(), new.clone().into(), "--pwfile".into(), password.clone().into()];
    args.extend(
        [
            "--username",
            OWNER,
            "--auth",
            "scram-sha-256",
            "--encoding",
            "UTF8",
            "--locale",
            "C.UTF-8",
            "--data-checksums",
        ]
        .map(OsString::from),
    );
    if version >= 17 {
        // Sorts and folds the same on every machine, whatever its libc says.
        args.extend(["--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"].map(OsString::from));
    }
    let initdb = Spec {
        args,
        ..program("initdb", bin, place, PathBuf::new())
    };
    let output = initdb.output().await;
    let _ = std::fs::remove_file(&password);
    let output = output?;
    if !output.status.success() {
        bail!(
            "initdb failed ({}):\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    std::fs::rename(&new, &place.data).with_context(|| format!("cannot move the new cluster to {}", place.data.display()))
}

fn program(name: &str, bin: &Path, place: &Place, log: PathBuf) -> Spec {
    Spec {
        name: name.to_owned(),
        program: bin.join(name),
        args: Vec::new(),
        env: [("PATH", "/usr/bin:/bin"), ("LC_MESSAGES", "C")]
            .map(|(name, value)| (name.into(), value.into()))
            .to_vec(),
        log,
        account: place.account,
        // Fast shutdown: sessions are ended, everything committed is kept, no recovery at the next start.
        stop: Signal::INT,
        // Immediate shutdown: the next start recovers.
        force: Signal::QUIT,
        grace: Duration::from_secs(30),
    }
}

fn server(bin: &Path, place: &Place, port: u16, log: PathBuf) -> Spec {
    let mut args: Vec<OsString> = vec!["-D".into(), place.data.clone().into()];
    for setting in [
        // Loopback only, and no socket: one way in, which asks for a password.
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        &format!("port={port}"),
        "max_connections=200",
        "shared_buffers=128MB",
        // Many short statements: compiling them costs more than it gives.
        "jit=off",
        "wal_compression=on",
        "max_wal_size=2GB",
        "timezone=UTC",
        "log_timezone=UTC",
        "log_line_prefix=%m [%p] %u ",
    ] {
        args.extend(["-c".into(), setting.into()]);
    }
    Spec {
        args,
        name: "postgres".into(),
        ..program("postgres", bin, place, log)
    }
}

fn pid_file(data: &Path) -> Vec<String> {
    std::fs::read_to_string(data.join("postmaster.pid"))
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Waits until the server says so in its pid file (its eighth line; the first and third are process and start time). This asks nobody to log in.
async fn ready(data: &Path, before: Vec<String>) -> Result<()> {
    for _ in 0..6000 {
        let now = pid_file(data);
        let another = now.first() != before.first() || now.get(2) != before.get(2);
        if another && now.get(7).is_some_and(|word| word.trim() == "ready") {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!("Postgres is not ready after a minute; recovering after a crash may take long, logs/postgres.log says how far it is")
}

/// The server of this very cluster, when one runs that is not ours. A pid file alone proves nothing, the number may be another program's by now:
/// a postmaster's working folder is its cluster.
fn left_behind(data: &Path) -> Option<Pid> {
    let pid = pid_file(data).first()?.trim().parse().ok()?;
    let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    (folder == data.canonicalize().ok()?).then(|| Pid::from_raw(pid)).flatten()
}

async fn stop_left_behind(data: &Path, pid: Pid) -> Result<()> {
    for (signal, seconds) in [(Signal::INT, 20), (Signal::QUIT, 10)] {
        rustix::process::kill_process(pid, signal).or_else(|error| if error == rustix::io::Errno::SRCH { Ok(()) } else { Err(error) })?;
        for _ in 0..seconds * 50 {
            if left_behind(data).is_none() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    bail!("the Postgres in process {} does not stop: end it and start again", pid.as_raw_pid())
}

/// The remembered port when it is still free, so that URLs that were handed out stay true.
fn free_port(remembered: Option<u16>) -> Result<u16> {
    let try_port = |port| {
        TcpListener::bind(("127.0.0.1", port))
            .and_then(|listener| listener.local_addr())
            .map(|address| address.port())
    };
    remembered
        .and_then(|port| try_port(port).ok())
        .map_or_else(|| try_port(0).context("no free port on 127.0.0.1"), Ok)
}
