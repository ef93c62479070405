//! The scripted provider as a process: for trying things by hand and for stories that need it outside the test.

use std::io::Write as _;
use std::net::SocketAddr;

use clap::Parser;
use steadfast_tests::provider::{Provider, Settings};

/// A provider of embeddings, chat and OCR that does what its script says (POST /control/rules, /control/settings, …).
#[derive(Parser)]
struct Args {
    /// Where to listen; port 0 takes a free one, which the first line of output names.
    #[arg(long, default_value = "127.0.0.1:0")]
    bind: SocketAddr,
    /// Numbers in a vector.
    #[arg(long, default_value_t = 384)]
    dims: usize,
    /// Tokens per second and slot; without it answers cost no time.
    #[arg(long)]
    speed: Option<f64>,
    /// Calls worked on at once.
    #[arg(long)]
    slots: Option<usize>,
    /// An accepted key as LABEL=KEY; may be repeated. Without one, every caller will do.
    #[arg(long = "key", value_parser = key)]
    keys: Vec<(String, String)>,
}

fn key(s: &str) -> Result<(String, String), String> {
    s.split_once('=')
        .map(|(l, k)| (l.to_owned(), k.to_owned()))
        .ok_or_else(|| "wanted LABEL=KEY".to_owned())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let settings = Settings {
        dims: args.dims,
        tokens_per_second: args.speed,
        slots: args.slots,
        keys: args.keys.into_iter().collect(),
        ..Settings::default()
    };
    let provider = Provider::start_on(args.bind, settings)?;
    let mut out = std::io::stdout();
    writeln!(out, "listening on {}", provider.url())?;
    out.flush()?;
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = term.recv() => {}
    }
    Ok(())
}
