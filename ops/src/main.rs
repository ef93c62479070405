//! `steadfast`: the operator's hand. Every verb is a module that says what it does, does it and tells how it went.
//!
//! Exit codes: 0 done, 1 it did not work (the reason is on standard error), 2 the command line was not understood.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod env_file;
mod up;
mod verbs;

/// Durable search over your documents: one Postgres, a fleet of workers, an API.
#[derive(Debug, Parser)]
#[command(name = "steadfast", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start everything: Postgres, API, workers; restart what dies; drain on Ctrl-C
    Up(up::Args),
}

// One thread: the command waits far more than it computes. `up` relies on it too: a child's "my parent died" signal is bound to
// the thread that started it, and the only thread here lives as long as the process.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // reqwest is built without a TLS backend of its own choice (decided at the root: ring). A second install is no harm.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let outcome = match Cli::parse().verb {
        Verb::Up(args) => up::run(args).await,
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("steadfast: {}", in_one_line(&error));
        ExitCode::FAILURE
    })
}

/// An error and its causes, without those that the one before already quotes.
pub(crate) fn in_one_line(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .fold(String::new(), |said, cause| match said {
            said if said.is_empty() => cause,
            said if said.contains(&cause) => said,
            said => format!("{said}: {cause}"),
        })
}
