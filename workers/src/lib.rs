//! Claim, run, settle: the worker process.
//!
//! `engine` holds what was claimed and writes back how it went; `pulse` keeps the leases on a thread that no handler can
//! starve; `adapter` is the only file that names apalis; `run` is one attempt as one sentence; `handlers` do the work;
//! `provider` holds the HTTP clients and the keys; `work` puts them together.

pub mod adapter;
pub mod child;
pub mod config;
pub mod engine;
pub mod handlers;
pub mod local;
pub mod mail;
pub mod provider;
pub mod pulse;
pub mod run;
pub mod work;
