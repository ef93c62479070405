//! The measures, each a part of the report.

pub mod claim;
pub mod enqueue;
pub mod held;
pub mod pickup;
pub mod question;
pub mod rest;
pub mod throughput;

use std::path::PathBuf;
use std::time::Duration;

use crate::server::Server;

/// What every measure needs to know.
pub struct Bench {
    pub server: Server,
    pub rounds: usize,
    pub jobs: usize,
    /// How long a measure waits for a quiet second.
    pub patience: Duration,
    pub worker: Option<PathBuf>,
    /// Keys of the rivals to leave out.
    pub without: Vec<String>,
}

impl Bench {
    pub fn peers(&self) -> Vec<crate::peer::Peer> {
        crate::peer::all()
            .into_iter()
            .filter(|p| !self.without.iter().any(|w| w == p.key))
            .collect()
    }
}
