//! The rig of a story: a database of its own, the shipped binaries as real processes, a client, the operator's command.

mod client;
mod db;
mod fleet;
mod foreign;
mod llmock;
mod sink;
mod wait;

pub use client::{Answer, Client};
pub use db::{Attempt, Db, Job, Person};
pub use fleet::{Api, Fleet, Opts, Output, Process};
pub use llmock::Llmock;
pub use sink::Sink;
pub use wait::wait_until;
