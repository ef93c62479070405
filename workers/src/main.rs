//! `steadfast-worker`: reads its settings, then works until told to stop.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use steadfast_workers::config::Config;
use steadfast_workers::work::{Hooks, work};
use steadfast_workers::{child, isolate};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|a| a == child::ARGUMENT) {
        return ExitCode::from(u8::try_from(child::main(&args[2..])).unwrap_or(1));
    }
    if args.get(1).is_some_and(|a| a == isolate::ARGUMENT) {
        return ExitCode::from(isolate::main());
    }
    let config = Config::parse();
    if let Err(why) = config.check() {
        eprintln!("steadfast-worker: {why}");
        return ExitCode::from(2);
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr);
    if std::env::var("STEADFAST_LOG").is_ok_and(|v| v == "json") {
        logs.json().init()
    } else {
        logs.init()
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("steadfast-worker: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let stop = stop_signal(config.parent_pid);
    let hooks = Hooks {
        on_ready: Some(Box::new(|boot_id| println!("worker ready boot={boot_id}"))),
        ..Hooks::default()
    };
    match runtime.block_on(work(config, hooks, stop)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            tracing::error!(why, "stopped");
            eprintln!("steadfast-worker: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn stop_signal(parent: Option<i32>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        tracing::error!("cannot listen for signals; stop this process with SIGKILL, its jobs come back by themselves");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
        () = orphaned(parent) => tracing::warn!("the process that started this one is gone"),
    }
}

/// Ends when our parent is no longer the process we were told; never, when we were told of none.
async fn orphaned(parent: Option<i32>) {
    let Some(parent) = parent else {
        return std::future::pending().await;
    };
    let mut every = tokio::time::interval(Duration::from_secs(1));
    loop {
        every.tick().await;
        if rustix::process::getppid()
            .map(rustix::process::Pid::as_raw_nonzero)
            .map(std::num::NonZero::get)
            != Some(parent)
        {
            return;
        }
    }
}
