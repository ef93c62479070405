//! `steadfast-api`: the process around the routes.

use std::future::IntoFuture as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use steadfast_api::config::Config;
use steadfast_api::{App, description, router};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// How long requests under way may take to end after the signal.
const GRACE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> ExitCode {
    // Before the settings are looked at, which name a database: what the routes are is known without one.
    if std::env::args_os().skip(1).eq(["--openapi"]) {
        return print_description();
    }
    let config = Config::parse();
    start_log();
    match run(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("steadfast-api: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// The OpenAPI document, as `/api/v1/openapi.json` serves it: what clients are generated from.
fn print_description() -> ExitCode {
    let printed = serde_json::to_string_pretty(&description())
        .map_err(std::io::Error::from)
        .and_then(|text| writeln!(std::io::stdout().lock(), "{text}"));
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("steadfast-api: {e}");
            ExitCode::FAILURE
        }
    }
}

fn start_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::env::var("STEADFAST_LOG").is_ok_and(|v| v == "json") {
        log.json().init()
    } else {
        log.with_ansi(false).init()
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    config.check().map_err(anyhow::Error::msg)?;
    let (bind, parent) = (config.bind, config.parent_pid);
    let listener = tokio::net::TcpListener::bind(bind)
        .await
        .map_err(|e| anyhow::anyhow!("cannot listen on {bind}: {e}"))?;
    let app = Arc::new(App::new(config)?);
    println!("listening on http://{}", listener.local_addr()?);
    std::io::stdout().flush()?;

    let stop = Arc::new(tokio::sync::Notify::new());
    let served = axum::serve(listener, router(&app)).with_graceful_shutdown({
        let stop = stop.clone();
        async move { stop.notified().await }
    });
    let server = tokio::spawn(served.into_future());
    stopped(parent).await?;
    stop.notify_one();
    match tokio::time::timeout(GRACE, server).await {
        Ok(ended) => ended??,
        Err(_) => tracing::warn!("requests were still under way after the grace"),
    }
    Ok(())
}

/// Until somebody wants us to end, or whoever started us has.
async fn stopped(parent: Option<u32>) -> anyhow::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
        () = orphaned(parent) => tracing::info!("the process that started this one is gone"),
    }
    Ok(())
}

async fn orphaned(parent: Option<u32>) {
    let Some(pid) = parent else { return std::future::pending().await };
    // Our own parent cannot be mistaken for a stranger with its recycled id; anybody else we can only look up.
    let ours = std::os::unix::process::parent_id() == pid;
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        let alive = if ours {
            std::os::unix::process::parent_id() == pid
        } else {
            std::path::Path::new(&format!("/proc/{pid}")).exists()
        };
        if !alive {
            return;
        }
    }
}
