//! `steadfast-worker`: reads its settings, registers, claims and runs until told to stop.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Parser as _;
use queue_schema::blob::Blobs;
use queue_schema::claim::Taker;
use queue_schema::hint::{self, Channel, Heard, Hinter};
use queue_schema::worker::{self, Presence};
use steadfast_workers::adapter::{self, Arm};
use steadfast_workers::child;
use steadfast_workers::config::Config;
use steadfast_workers::engine::{Engine, Wake};
use steadfast_workers::handlers;
use steadfast_workers::local::Local;
use steadfast_workers::provider::Clients;
use steadfast_workers::pulse::Pulse;
use steadfast_workers::run::Context;
use tokio::sync::{mpsc, watch};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|a| a == child::ARGUMENT) {
        return ExitCode::from(u8::try_from(child::main(&args[2..])).unwrap_or(1));
    }
    let config = Config::parse();
    if let Err(why) = config.check() {
        eprintln!("steadfast-worker: {why}");
        return ExitCode::from(2);
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).with_writer(std::io::stderr);
    if std::env::var("STEADFAST_LOG").is_ok_and(|v| v == "json") { logs.json().init() } else { logs.init() }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("steadfast-worker: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(work(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            tracing::error!(why, "stopped");
            eprintln!("steadfast-worker: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn work(config: Config) -> Result<(), String> {
    let kinds = config.kinds();
    let places = config.places();
    let local = Local::find(&config).map_err(|e| e.to_string())?;
    let protocols = local.protocols();
    let blobs = Blobs::open(&config.blobs).map_err(|e| e.to_string())?;
    let connections = u32::try_from(places + 3).unwrap_or(u32::MAX).min(10);
    let db = worker::open(&config.database_url, connections).map_err(|e| format!("STEADFAST_DATABASE_URL: {e}"))?;
    let hinter = Hinter::start(db.clone());
    // Positive, so that both halves of the lock's key are; random, so that a restart is somebody else.
    let boot_id = (rand::random::<u64>() >> 1) as i64;
    let taker = Taker { boot_id, lease: config.lease, protocols: protocols.clone() };
    let engine = Engine::start(db.clone(), taker, hinter);
    let context = Arc::new(Context { config: config.clone(), db, engine: engine.clone(), blobs, clients: Clients::new()?, local });

    let reserved = Arm::new("interactive", kinds.clone(), true, 1);
    let batch = Arm { reserved: Some(Box::new(reserved.clone())), ..Arm::new("batch", kinds.clone(), false, places) };
    let (wake_reserved, heard_reserved) = Wake::new();
    let (wake_batch, heard_batch) = Wake::new();
    let wakes = vec![wake_reserved.clone(), wake_batch.clone()];

    let (listening_tx, listening) = watch::channel(false);
    let listener = (!config.pooler).then(|| listen(&config.database_url, wakes.clone(), kinds.clone(), listening_tx));
    let (probe, mut probe_due) = mpsc::channel(1);
    let prober = tokio::spawn({
        let (context, protocols) = (context.clone(), protocols.clone());
        async move {
            while probe_due.recv().await.is_some() {
                handlers::probe(&context, &protocols).await;
            }
        }
    });
    let presence = Presence {
        boot_id,
        host: host(),
        pid: i32::try_from(std::process::id()).unwrap_or(0),
        kinds: kinds.clone(),
        locked: !config.pooler,
    };
    let pulse = Pulse { config: config.clone(), presence, protocols: protocols.clone(), engine: engine.clone(), wakes, probe, listening };
    let (beating, ready) = pulse.start().await.map_err(|e| format!("the pulse thread cannot be started: {e}"))?;
    let stop = stop_signal(config.parent_pid);
    tokio::spawn(async move {
        if ready.await.is_ok() {
            println!("worker ready boot={boot_id}");
            tracing::info!(boot_id, places, protocols = protocols.join(","), kinds = %kinds.iter().map(|k| k.as_str()).collect::<Vec<_>>().join(","), "worker ready");
        }
    });
    let arms = vec![(reserved, wake_reserved, heard_reserved), (batch, wake_batch, heard_batch)];
    let result = adapter::run_until(context, arms, stop, config.drain).await;
    // Renewals go on until the last settlement is written, then the sign-off.
    prober.abort();
    drop(listener);
    beating.stop().await;
    tracing::info!(settled = engine.settled.load(Ordering::Relaxed), lost = engine.late.load(Ordering::Relaxed), "stopped");
    result
}

/// Hints become rings; a subscription that is new means looking at everything once.
fn listen(url: &str, wakes: Vec<Wake>, kinds: Vec<queue_schema::JobKind>, healthy: watch::Sender<bool>) -> tokio_util::task::AbortOnDropHandle<()> {
    let (mut heard, task) = hint::listen(url, Channel::Jobs);
    tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        let _listener = task;
        while let Some(h) = heard.recv().await {
            match h {
                Heard::Jobs(kind, lane) => wakes.iter().for_each(|w| w.wake([(kind, lane)])),
                Heard::Subscribed => {
                    healthy.send_replace(true);
                    wakes.iter().for_each(|w| w.wake(kinds.iter().map(|k| (*k, k.lane()))));
                }
                Heard::Lost => {
                    healthy.send_replace(false);
                    tracing::warn!("no wake-up hints for now: polling faster until the subscription is back");
                }
                Heard::Answer(_) => {}
            }
        }
    }))
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
    let Some(parent) = parent else { return std::future::pending().await };
    let mut every = tokio::time::interval(Duration::from_secs(1));
    loop {
        every.tick().await;
        if rustix::process::getppid().map(rustix::process::Pid::as_raw_nonzero).map(std::num::NonZero::get) != Some(parent) {
            return;
        }
    }
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
