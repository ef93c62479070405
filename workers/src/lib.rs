//! Claim, run, settle: the worker process.
//!
//! `engine` holds what was claimed and writes back how it went; `pulse` keeps the leases on a thread that no handler can
//! starve; `adapter` is the only file that names apalis; `run` is one attempt as one sentence; `handlers` do the work, and
//! `isolate` has them do it in a child process, where a job may have killed its worker; `provider` holds the HTTP clients and
//! the keys; `work` puts them together.

pub mod adapter;
pub mod child;
pub mod config;
pub mod engine;
pub mod fault;
pub mod handlers;
pub mod isolate;
pub mod local;
pub mod mail;
pub mod provider;
pub mod pulse;
pub mod run;
pub mod work;
