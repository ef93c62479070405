//! The life of a worker process, from its settings to its sign-off. In the library, so that the benchmark measures exactly what the
//! binary runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use queue_schema::blob::Blobs;
use queue_schema::claim::Taker;
use queue_schema::hint::{self, Channel, Heard, Hinter};
use queue_schema::worker::{self, Presence};
use tokio::sync::{mpsc, watch};

use crate::adapter::{self, Arm};
use crate::config::Config;
use crate::engine::{Engine, Wake};
use crate::handlers;
use crate::local::Local;
use crate::provider::Clients;
use crate::pulse::Pulse;
use crate::run::{Context, OnStart, Runner, made};

/// What somebody outside wants to be told of.
#[derive(Default)]
pub struct Hooks {
    /// Called once with the boot id, when the database knows this worker.
    pub on_ready: Option<Box<dyn FnOnce(i64) + Send>>,
    /// Called for each claim just before its handler.
    pub on_start: Option<OnStart>,
}

/// Registers, claims and runs until `stop` is over, then lets running work finish within the configured drain.
///
/// # Errors
/// A sentence for the person who started the process: settings that do not work here, or workers that ended by themselves.
pub async fn work(config: Config, hooks: Hooks, stop: impl Future<Output = ()> + Send + 'static) -> Result<(), String> {
    let kinds = config.kinds();
    let places = config.places();
    if config.faults {
        tracing::warn!("STEADFAST_FAULTS is on: jobs can end this process at will. Not for anything but tests");
    }
    let local = Local::find(&config).map_err(|e| e.to_string())?;
    let protocols = local.protocols();
    let mailer = config.mailer()?;
    let blobs = Blobs::open(&config.blobs).map_err(|e| e.to_string())?;
    let connections = u32::try_from(places + 3).unwrap_or(u32::MAX).min(10);
    let db = worker::open(&config.database_url, connections).map_err(|e| format!("STEADFAST_DATABASE_URL: {e}"))?;
    let hinter = Hinter::start(db.clone());
    // Positive, so that both halves of the lock's key are; random, so that a restart is somebody else.
    let boot_id = (rand::random::<u64>() >> 1) as i64;
    let taker = Taker {
        boot_id,
        lease: config.lease,
        protocols: protocols.clone(),
        pace: config.pace(),
    };
    let engine = Engine::start(db.clone(), taker, hinter.clone());
    let Hooks { on_ready, on_start } = hooks;
    let runner = Arc::new(Runner {
        context: Context {
            config: config.clone(),
            db,
            blobs: made(blobs),
            clients: made(Clients::new()?),
            local,
            confirming: tokio::sync::Mutex::default(),
            mailer,
            hinter: Some(hinter),
            pace: config.pace(),
        },
        engine: engine.clone(),
        on_start,
    });

    let reserved = Arm::new("interactive", kinds.clone(), true, 1);
    let batch = Arm {
        reserved: Some(Box::new(reserved.clone())),
        ..Arm::new("batch", kinds.clone(), false, places)
    };
    let (wake_reserved, heard_reserved) = Wake::new();
    let (wake_batch, heard_batch) = Wake::new();
    let wakes = vec![wake_reserved.clone(), wake_batch.clone()];

    let (listening_tx, listening) = watch::channel(false);
    let listener = (!config.pooler).then(|| listen(&config.database_url, wakes.clone(), kinds.clone(), listening_tx));
    let (probe, mut probe_due) = mpsc::channel(1);
    let prober = tokio::spawn({
        let (runner, protocols) = (runner.clone(), protocols.clone());
        async move {
            while probe_due.recv().await.is_some() {
                handlers::probe(&runner.context, &protocols).await;
            }
        }
    });
    let presence = Presence {
        boot_id,
        host: host(),
        pid: i32::try_from(std::process::id()).unwrap_or(0),
        kinds: kinds.clone(),
        places,
        locked: !config.pooler,
    };
    let pulse = Pulse {
        config: config.clone(),
        presence,
        protocols: protocols.clone(),
        engine: engine.clone(),
        wakes,
        probe,
        listening,
    };
    let (beating, ready) = pulse
        .start()
        .await
        .map_err(|e| format!("the pulse thread cannot be started: {e}"))?;
    tokio::spawn(async move {
        if ready.await.is_ok() {
            if let Some(tell) = on_ready {
                tell(boot_id);
            }
            tracing::info!(boot_id, places, protocols = protocols.join(","), kinds = %kinds.iter().map(|k| k.as_str()).collect::<Vec<_>>().join(","), "worker ready");
        }
    });
    let arms = vec![(reserved, wake_reserved, heard_reserved), (batch, wake_batch, heard_batch)];
    let result = adapter::run_until(runner, arms, stop, config.drain).await;
    // Renewals go on until the last settlement is written, then the sign-off.
    prober.abort();
    drop(listener);
    beating.stop().await;
    tracing::info!(
        settled = engine.settled.load(Ordering::Relaxed),
        lost = engine.late.load(Ordering::Relaxed),
        "stopped"
    );
    result
}

/// Hints become rings; a subscription that is new means looking at everything once.
fn listen(
    url: &str,
    wakes: Vec<Wake>,
    kinds: Vec<queue_schema::JobKind>,
    healthy: watch::Sender<bool>,
) -> tokio_util::task::AbortOnDropHandle<()> {
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

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
