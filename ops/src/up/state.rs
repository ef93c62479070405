//! What `up` remembers in the data folder, and the lock that keeps a second one out.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

/// The data folder, ours alone for as long as this lives.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// Held, not read: the kernel lets go of it however we end.
    _lock: File,
}

impl Folder {
    /// Makes the folder when it is missing and locks it.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let made = || -> std::io::Result<PathBuf> {
            // As root, Postgres runs as somebody else and has to get through; what lies in it is closed by itself.
            let mode = if super::am_root() { 0o711 } else { 0o700 };
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            make_dir(path, mode)?;
            let path = path.canonicalize()?;
            make_dir(&path.join("logs"), 0o700)?;
            make_dir(&path.join("blobs"), 0o700)?;
            Ok(path)
        };
        let path = made().with_context(|| format!("cannot make the data folder {} (choose another with --data)", path.display()))?;
        let lock = lock(&path)?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.path.join("logs").join(format!("{name}.log"))
    }
}

fn make_dir(path: &Path, mode: u32) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn lock(folder: &Path) -> Result<File> {
    let name = folder.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&name)
        .with_context(|| format!("cannot write {}: is the folder somebody else's?", name.display()))?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        let _ = file.read_to_string(&mut holder);
        bail!(
            "{} is already in use by another `up` (process {}): stop that one, or choose another folder with --data and another --port",
            folder.display(),
            holder.trim()
        );
    }
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

/// Passwords of the embedded server, made once. They never leave this file, `DIR/env` and the processes' environments.
#[derive(Serialize, Deserialize)]
pub(super) struct Secrets {
    pub(super) owner: String,
    pub(super) worker: String,
    pub(super) api: String,
}

impl Secrets {
    pub(super) fn of(folder: &Folder) -> Result<Self> {
        let file = folder.join("secrets.json");
        if let Some(secrets) = read_json(&file)? {
            return Ok(secrets);
        }
        let secrets = Self {
            owner: word(),
            worker: word(),
            api: word(),
        };
        crate::env_file::write_private(&file, &serde_json::to_vec_pretty(&secrets)?)?;
        Ok(secrets)
    }
}

/// 192 random bits in letters that need no quoting in a URL.
fn word() -> String {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(rand::random::<[u8; 24]>())
}

/// Small things that the next start wants to know.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct State {
    pub(super) postgres_port: Option<u16>,
    /// The first start is over: samples were added or declined.
    pub(super) welcomed: bool,
}

impl State {
    pub(super) fn of(folder: &Folder) -> Result<Self> {
        Ok(read_json(&folder.join("state.json"))?.unwrap_or_default())
    }

    pub(super) fn save(&self, folder: &Folder) -> Result<()> {
        crate::env_file::write_private(&folder.join("state.json"), &serde_json::to_vec_pretty(self)?)
    }
}

fn read_json<T: serde::de::DeserializeOwned>(file: &Path) -> Result<Option<T>> {
    match std::fs::read(file) {
        Ok(text) => Ok(Some(
            serde_json::from_slice(&text).with_context(|| format!("cannot understand {}", file.display()))?,
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}
