//! `steadfast`: the operator's hand. Every verb is a module that says what it does, does it and tells how it went.
//!
//! Exit codes: 0 done, 1 it did not work (the reason is on standard error), 2 the command line was not understood, 3 nothing was
//! found, 4 `doctor` found something to do.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::verbs::ctx::{Ctx, Global};

mod env_file;
mod up;
mod verbs;

/// Durable search over your documents: one Postgres, a fleet of workers, an API.
#[derive(Debug, Parser)]
#[command(name = "steadfast", version, propagate_version = true, arg_required_else_help = true, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

const AFTER_HELP: &str = "Examples:\n  steadfast up                                   start everything here\n  steadfast add scan.png note.txt                hand in documents\n  steadfast search when must the renter move out\n  steadfast doctor                               is everything well?\n\nThe address, the token and the database come from --url, --token, --database-url; else from STEADFAST_URL, STEADFAST_TOKEN,\nSTEADFAST_DATABASE_URL; else from the .steadfast/env of this folder or one above.\n\nExit codes: 0 done; 1 it did not work; 2 the command line was not understood; 3 nothing was found; 4 doctor found something.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start everything: Postgres, API, workers; restart what dies; drain on Ctrl-C
    Up(up::Args),
    Add(verbs::add::Args),
    Search(verbs::search::Args),
    #[command(subcommand)]
    Jobs(verbs::jobs::Verb),
    #[command(subcommand)]
    Breaker(verbs::breaker::Verb),
    #[command(subcommand)]
    Endpoint(verbs::endpoint::Verb),
    #[command(subcommand)]
    Incident(verbs::incident::Verb),
    #[command(subcommand)]
    Token(verbs::token::Verb),
    Workers(verbs::house::Workers),
    Doctor(verbs::doctor::Args),
    /// Bring the database up to date
    Migrate,
    /// Completions for a shell: steadfast completion bash > /etc/bash_completion.d/steadfast
    Completion {
        shell: clap_complete::Shell,
    },
}

// One thread: the command waits far more than it computes. `up` relies on it too: a child's "my parent died" signal is bound to
// the thread that started it, and the only thread here lives as long as the process.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // reqwest is built without a TLS backend of its own choice (decided at the root: ring). A second install is no harm.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = Cli::parse();
    let ctx = Ctx::new(cli.global);
    let outcome = match cli.verb {
        Verb::Up(args) => up::run(args.with_database(ctx.named_database())).await,
        Verb::Add(args) => verbs::add::run(args, &ctx).await,
        Verb::Search(args) => verbs::search::run(args, &ctx).await,
        Verb::Jobs(verb) => verbs::jobs::run(verb, &ctx).await,
        Verb::Breaker(verb) => verbs::breaker::run(verb, &ctx).await,
        Verb::Endpoint(verb) => verbs::endpoint::run(verb, &ctx).await,
        Verb::Incident(verb) => verbs::incident::run(verb, &ctx).await,
        Verb::Token(verb) => verbs::token::run(verb, &ctx).await,
        Verb::Workers(_) => verbs::house::workers(&ctx).await,
        Verb::Doctor(args) => verbs::doctor::run(args, &ctx).await,
        Verb::Migrate => verbs::house::migrate(&ctx).await,
        Verb::Completion { shell } => Ok(verbs::house::completion(shell)),
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
