//! `steadfast-bench`: how fast, against the least SQL that could do it and against the rivals, on one Postgres in one run. Ratios first: on a
//! shared machine an absolute figure says little.

mod facts;
mod hits;
mod measure;
mod peer;
mod peers;
mod report;
mod server;
mod stat;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

use crate::measure::throughput::Wanted;
use crate::measure::{Bench, claim, enqueue, held, pickup, question, rest, throughput};
use crate::report::Section;
use crate::server::Server;

/// Measures Steadfast against bare SQL and against other queues, on one Postgres in one run
#[derive(Debug, Parser)]
#[command(
    name = "steadfast-bench",
    version,
    after_help = "Examples:\n  steadfast-bench all --markdown docs/performance.md\n  steadfast-bench drain --rounds 5 --without awa,apalis\n\nExit codes: 0 when everything was measured, whatever came out; 1 when something could not be measured."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// An existing server (a superuser's URL); without it, a throw-away Postgres from STEADFAST_PG_BIN. Databases bench_* on it are dropped
    #[arg(long, global = true, env = "STEADFAST_BENCH_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// Rounds of each measure; figures are their medians
    #[arg(long, global = true, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Jobs of a drain and of a bulk enqueue
    #[arg(long, global = true, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(500..=1_000_000))]
    jobs: u32,
    /// Also write the report here
    #[arg(long, global = true)]
    markdown: Option<PathBuf>,
    /// How long each measure waits for a second in which the machine is under 35 % busy
    #[arg(long, global = true, default_value = "60s", value_parser = humantime::parse_duration)]
    patience: Duration,
    /// The steadfast-worker to watch at rest; the tree's own by default
    #[arg(long, global = true)]
    worker: Option<PathBuf>,
    /// Rivals to leave out: graphile, river, awa, apalis
    #[arg(long, global = true, value_delimiter = ',')]
    without: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
enum Command {
    /// Everything below, in this order
    All,
    /// No-op jobs, worker start to last row settled: bare SQL, Steadfast, rivals
    Drain,
    /// Bulk enqueue against COPY into the same table
    Enqueue,
    /// From the insert's return to the handler's start, idle worker: Steadfast, rivals
    Pickup,
    /// Time of a claim with few, with many and with many held jobs
    Claim,
    /// Breakers flipped with many jobs held, failures settled, isolated children started
    Held,
    /// What a question costs over a direct provider call
    Question,
    /// Bytes of write-ahead log a job: bare SQL, Steadfast, rivals
    Wal,
    /// Statements and memory of a worker that has nothing to do
    Rest,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Some of what we measure brings a second TLS library along in theory; on loopback nobody uses either.
    let _already_there = rustls::crypto::ring::default_provider().install_default();
    // Two threads: what steadfast-worker itself runs on, and the same for everybody.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("steadfast-bench: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        tokio::select! {
            result = run(&args) => result,
            // Leaves by the same way as the end, so that the server and its folder go.
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(2));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steadfast-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<()> {
    let machine = facts::machine();
    let bench = Bench {
        server: Server::start(args.database_url.as_deref()).await?,
        rounds: usize::from(args.rounds),
        jobs: args.jobs as usize,
        patience: args.patience,
        worker: args.worker.clone(),
        without: args.without.clone(),
    };
    let postgres = bench.server.describe().await?;
    eprintln!("{machine}\n{postgres}");
    let wants = |c: Command| args.command == c || args.command == Command::All;
    let mut sections: Vec<Section> = Vec::new();
    let throughput = Wanted {
        drain: wants(Command::Drain),
        wal: wants(Command::Wal),
    };
    if throughput.drain || throughput.wal {
        eprintln!("drain and write-ahead log");
        sections.extend(throughput::run(&bench, throughput).await?);
    }
    if wants(Command::Enqueue) {
        eprintln!("bulk enqueue");
        sections.push(enqueue::run(&bench).await?);
    }
    if wants(Command::Pickup) {
        eprintln!("pickup");
        sections.push(pickup::run(&bench).await?);
    }
    if wants(Command::Claim) {
        eprintln!("claim");
        sections.push(claim::run(&bench).await?);
    }
    if wants(Command::Held) {
        eprintln!("held work");
        sections.push(held::run(&bench).await?);
    }
    if wants(Command::Question) {
        eprintln!("question");
        sections.push(question::run(&bench).await?);
    }
    if wants(Command::Rest) {
        eprintln!("a worker at rest");
        sections.push(rest::run(&bench).await?);
    }
    let report = render(args, &machine, &postgres, &sections);
    println!("{report}");
    if let Some(path) = &args.markdown {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        }
        std::fs::write(path, &report).with_context(|| format!("{}", path.display()))?;
        eprintln!("written to {}", path.display());
    }
    Ok(())
}

fn render(args: &Args, machine: &str, postgres: &str, sections: &[Section]) -> String {
    let mut line: Vec<String> = std::env::args().skip(1).collect();
    if let Some(url) = &args.database_url {
        // A URL may hold a password.
        for word in &mut line {
            *word = word.replace(url.as_str(), "URL");
        }
    }
    let mut out = format!(
        "# Performance\n\nMade by `steadfast-bench {}` (`tests/bench/run` builds it and runs it with what it needs). Read the ratios: they are \
         taken within a round, on one server; absolute figures belong to this machine.\n\n- {machine}\n- {postgres}\n- a measure begins when the machine was under 35 % busy for a second, or after {}\n\n",
        line.join(" "),
        humantime::format_duration(args.patience)
    );
    out.push_str(&report::aims(sections));
    for section in sections {
        out.push('\n');
        out.push_str(&section.markdown());
    }
    out
}
