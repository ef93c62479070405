//! The pulse: renewals, the sign of life, and the sweep, on a thread and connections of their own, so that a handler that
//! burns every core or blocks every task cannot make this process look dead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use queue_schema::hint::Hinter;
use queue_schema::worker::{self, Presence, Registration, Tick};
use queue_schema::{Db, DbError, JobKind, claim, incident, notice, schedule};
use tokio::sync::{mpsc, oneshot};

use crate::config::Config;
use crate::engine::{Engine, Wake};

/// What the pulse needs to know of its process.
#[derive(Clone, Debug)]
pub struct Pulse {
    pub config: Config,
    pub presence: Presence,
    pub protocols: Vec<String>,
    pub engine: Arc<Engine>,
    pub wakes: Vec<Wake>,
    /// Rings when an endpoint is due for its probe.
    pub probe: mpsc::Sender<()>,
    /// True while LISTEN is healthy; without it the poll is four times as fast (decision D21).
    pub listening: tokio::sync::watch::Receiver<bool>,
}

/// A running pulse; [`Beating::stop`] ends it in order.
#[derive(Debug)]
pub struct Beating {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Beating {
    /// Signs off. Call after the last settlement: it stops the renewals too.
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            let _thread_may_be_gone = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // Joining blocks, so not on the runtime that still writes logs and closes pools.
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("the pulse thread ended in a panic");
            }
        }
    }
}

impl Pulse {
    /// Registers this process and starts beating; returns once it is known to the database.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub async fn start(self) -> std::io::Result<(Beating, oneshot::Receiver<()>)> {
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let thread =
            std::thread::Builder::new().name("pulse".to_owned()).spawn(move || {
                match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => runtime.block_on(self.beat(stopped, ready)),
                    Err(error) => tracing::error!(%error, "the pulse cannot start"),
                }
            })?;
        Ok((
            Beating {
                stop: Some(stop),
                thread: Some(thread),
            },
            is_ready,
        ))
    }

    async fn beat(self, mut stopped: oneshot::Receiver<()>, ready: oneshot::Sender<()>) {
        // A pool of its own: its sockets belong to this thread's runtime.
        let db = match worker::open(&self.config.database_url, 2) {
            Ok(db) => db,
            Err(error) => return tracing::error!(%error, "the pulse has no database"),
        };
        let hinter = Hinter::start(db.clone());
        let mut registration = None;
        let mut ready = Some(ready);
        let mut renew_at = Instant::now();
        let mut away = Trouble::default();
        // When this process came back after its session was lost.
        let mut back_since = None;
        loop {
            if registration.is_none() {
                match tokio::time::timeout(Duration::from_secs(10), worker::register(&self.config.database_url, &self.presence)).await {
                    Ok(Ok(r)) => {
                        registration = Some(r);
                        match ready.take() {
                            Some(ready) => {
                                let _nobody_waits = ready.send(());
                            }
                            None => back_since = Some(Instant::now()),
                        }
                    }
                    Ok(Err(error)) => away.say(&error),
                    Err(_) => away.say(&"no answer within 10 s"),
                }
            }
            if Instant::now() >= renew_at {
                renew_at = Instant::now() + self.config.renew;
                self.renew(&db, &mut registration, &mut away).await;
            }
            // D5, seen from here: whoever lost its session and came back takes nothing back for one lease, since the others may have lost
            // theirs with it. The server's own start time does not tell: recovery runs on its account, and a single backend that dies ends
            // all sessions without a new start.
            let rested = back_since.is_none_or(|at: Instant| at.elapsed() >= self.config.lease);
            let next = self
                .look(&db, &hinter, &mut registration, rested, &mut away)
                .await
                .min(renew_at.saturating_duration_since(Instant::now()));
            tokio::select! {
                _ = &mut stopped => break,
                () = tokio::time::sleep(next.max(Duration::from_millis(5))) => {}
            }
        }
        if let Some(r) = registration
            && let Err(error) = r.stop(self.presence.boot_id).await
        {
            tracing::debug!(%error, "could not sign off; the next worker to look will tidy up");
        }
    }

    /// Renews every lease by the database's clock, and gives up, before anybody else may take them, those that could not be.
    async fn renew(&self, db: &Db, registration: &mut Option<Registration>, away: &mut Trouble) {
        let limit = self.config.renew.min(Duration::from_secs(5)).max(Duration::from_millis(200));
        if let Some(r) = registration {
            match tokio::time::timeout(limit, r.beat(self.presence.boot_id)).await {
                Ok(Ok(())) => away.over(),
                Ok(Err(error)) => {
                    away.say(&error);
                    *registration = None;
                }
                Err(_) => {
                    away.say(&"no answer in time");
                    *registration = None;
                }
            }
        }
        let keys = self.engine.held();
        if !keys.is_empty() {
            let asked_at = Instant::now();
            match tokio::time::timeout(limit, claim::renew(db, &keys, self.config.lease)).await {
                Ok(Ok(kept)) => self.engine.renewed(&keys, &kept, asked_at),
                Ok(Err(error)) => away.say(&error),
                Err(_) => away.say(&"no answer in time"),
            }
        }
        // A third of the lease, at most 10 s, before its end (B31).
        self.engine
            .give_up_unrenewed(self.config.lease - (self.config.lease / 3).min(Duration::from_secs(10)));
    }

    /// One look; what it found is done here or rung for. Returns when to look again.
    async fn look(&self, db: &Db, hinter: &Hinter, registration: &mut Option<Registration>, rested: bool, away: &mut Trouble) -> Duration {
        let c = &self.config;
        let poll = if *self.listening.borrow() {
            c.poll
        } else {
            (c.poll / 4).max(Duration::from_millis(50))
        };
        let tick = tokio::time::timeout(
            Duration::from_secs(10),
            worker::tick(
                db,
                self.presence.boot_id,
                &self.presence.kinds,
                &self.protocols,
                c.lost_grace,
                c.lease,
            ),
        );
        let tick = match tick.await {
            Ok(Ok(tick)) => tick,
            Ok(Err(error)) => {
                away.say(&error);
                return poll.max(Duration::from_millis(500));
            }
            Err(_) => {
                away.say(&"no answer within 10 s");
                return poll;
            }
        };
        if !tick.due.is_empty() {
            for wake in &self.wakes {
                wake.wake(tick.due.iter().copied());
            }
        }
        if !tick.cancelled.is_empty() {
            self.engine.cancel(&tick.cancelled);
        }
        if !tick.interrupted.is_empty() {
            self.engine.interrupt(&tick.interrupted);
        }
        if tick.probe_due {
            let _already_ringing = self.probe.try_send(());
        }
        let reclaims = tick.leases_lapsed || tick.lost_ripe_in.is_some_and(|d| d.is_zero());
        // Over the session that holds our lock: it proves that the server has not been away since we came.
        let may_reclaim = reclaims && rested && self.is_present(registration).await;
        if let Err(error) = self.sweep(db, hinter, &tick, may_reclaim).await {
            away.say(&error);
        }
        if reclaims && !may_reclaim {
            return poll;
        }
        tick.lost_ripe_in.map_or(poll, |ripe| poll.min(ripe.max(Duration::from_millis(50))))
    }

    /// Whether the session of our registration lives; when not, it is dropped, and made again before the next look.
    async fn is_present(&self, registration: &mut Option<Registration>) -> bool {
        let Some(r) = registration else { return false };
        let beat = tokio::time::timeout(Duration::from_secs(5), r.beat(self.presence.boot_id)).await;
        let present = matches!(beat, Ok(Ok(())));
        if !present {
            *registration = None;
        }
        present
    }

    async fn sweep(&self, db: &Db, hinter: &Hinter, tick: &Tick, may_reclaim: bool) -> Result<(), DbError> {
        if may_reclaim {
            let back = claim::reclaim(db, self.config.lease, self.config.lost_grace).await?;
            if back.waiting + back.dead > 0 {
                tracing::warn!(waiting = back.waiting, dead = back.dead, "took back jobs of lost workers");
            }
            self.announce(hinter, back.woken);
        }
        if tick.landing_due {
            incident::land(db, &self.engine.taker.pace).await?;
        }
        if tick.notices_due && notice::enqueue_due(db).await? {
            self.announce(hinter, [JobKind::Notice]);
        }
        if tick.schedules_due {
            let kinds = schedule::run_due(db).await?;
            self.announce(hinter, kinds);
        }
        Ok(())
    }

    fn announce(&self, hinter: &Hinter, kinds: impl IntoIterator<Item = JobKind>) {
        for kind in kinds {
            hinter.wake(kind, kind.lane());
        }
    }
}

/// The database away is one fault: said once, and once when it is over.
#[derive(Debug, Default)]
struct Trouble(bool);

impl Trouble {
    fn say(&mut self, error: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.0, true) {
            tracing::warn!(%error, "the database does not answer; leases run on until it does or they lapse");
        }
    }

    fn over(&mut self) {
        if std::mem::take(&mut self.0) {
            tracing::info!("the database answers again");
        }
    }
}
