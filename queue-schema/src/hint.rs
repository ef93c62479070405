//! NOTIFY as a hint, polling as the truth.
//!
//! A hint never rides in the transaction that enqueues: at commit NOTIFY takes a lock that serialises every notifying
//! commit, and when the server's queue is full the commit itself fails (public cases 13 and 26). It is sent after the commit,
//! by one task per process, and a burst is one message. A lost hint costs one poll interval, nothing else.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::{Notify, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::{Conn, Db, DbError, JobKind, Lane};

const JOBS: &str = "steadfast_jobs";
const ANSWERS: &str = "steadfast_answers";

/// Sends hints, coalesced: what is asked for while one message is under way goes out with the next.
#[derive(Clone, Debug)]
pub struct Hinter {
    shared: Arc<Shared>,
    _task: Arc<AbortOnDropHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<HashSet<String>>,
    asked: Notify,
}

impl Hinter {
    #[must_use]
    pub fn start(db: Db) -> Self {
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn({
            let shared = shared.clone();
            async move {
                loop {
                    shared.asked.notified().await;
                    let batch: Vec<String> = shared.pending.lock().map(|mut p| p.drain().collect()).unwrap_or_default();
                    if batch.is_empty() {
                        continue;
                    }
                    let sent = sqlx::query("select pg_notify($1, h) from unnest($2::text[]) as h")
                        .bind(JOBS)
                        .bind(&batch)
                        .execute(&db.pool)
                        .await;
                    if let Err(error) = sent {
                        // The poll finds the work; a warning per lost hint would only repeat what the next statement says.
                        tracing::debug!(%error, "a wake-up hint was not sent");
                    }
                }
            }
        });
        Self {
            shared,
            _task: Arc::new(AbortOnDropHandle::new(task)),
        }
    }

    /// Says that work of this kind waits. Never blocks, never fails.
    pub fn wake(&self, kind: JobKind, lane: Lane) {
        if let Ok(mut p) = self.shared.pending.lock() {
            p.insert(format!("{}:{}", kind.as_str(), lane.as_str()));
        }
        self.shared.asked.notify_one();
    }
}

/// The one exception to the head of this file: a flip of a breaker is rare and by hand, and its hint may ride in its transaction.
pub(crate) async fn at_commit(conn: &mut Conn, kind: JobKind) -> Result<(), DbError> {
    sqlx::query("select pg_notify($1, $2)")
        .bind(JOBS)
        .bind(format!("{}:{}", kind.as_str(), kind.lane().as_str()))
        .execute(conn)
        .await
        .map(|_| ())
}

/// What a listener hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Work of this kind and lane waits.
    Jobs(JobKind, Lane),
    /// The question with this job id has its answer.
    Answer(i64),
    /// The subscription is new (first, or again after a loss): look once, hints may have been missed.
    Subscribed,
    /// The subscription is gone; poll faster until `Subscribed`.
    Lost,
}

/// Which channel to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    Jobs,
    Answers,
}

/// One subscription on a connection of its own. It looks after itself: a lost or half-open connection (no FIN, no RST) is
/// noticed within 15 s by a statement sent over it, and replaced.
pub fn listen(url: &str, channel: Channel) -> (mpsc::Receiver<Heard>, AbortOnDropHandle<()>) {
    let (tx, rx) = mpsc::channel(1024);
    let url = url.to_owned();
    let task = tokio::spawn(async move {
        let mut wait = Duration::from_millis(200);
        loop {
            match tokio::time::timeout(Duration::from_secs(10), subscribe(&url, channel)).await {
                Ok(Ok(listener)) => {
                    wait = Duration::from_millis(200);
                    if tx.send(Heard::Subscribed).await.is_err() {
                        return;
                    }
                    hear(listener, &tx).await;
                    if tx.is_closed() || tx.send(Heard::Lost).await.is_err() {
                        return;
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "cannot listen"),
                Err(_) => tracing::debug!("cannot listen: no answer"),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(5));
        }
    });
    (rx, AbortOnDropHandle::new(task))
}

async fn subscribe(url: &str, channel: Channel) -> Result<PgListener, sqlx::Error> {
    let mut listener = PgListener::connect(url).await?;
    listener.eager_reconnect(false);
    listener
        .listen(match channel {
            Channel::Jobs => JOBS,
            Channel::Answers => ANSWERS,
        })
        .await?;
    Ok(listener)
}

async fn hear(mut listener: PgListener, tx: &mpsc::Sender<Heard>) {
    loop {
        match tokio::time::timeout(Duration::from_secs(10), listener.try_recv()).await {
            Ok(Ok(Some(n))) => {
                let heard = if n.channel() == ANSWERS {
                    n.payload().parse().ok().map(Heard::Answer)
                } else {
                    n.payload()
                        .split_once(':')
                        .and_then(|(k, l)| Some(Heard::Jobs(JobKind::parse(k)?, Lane::parse(l)?)))
                };
                // A full channel drops the hint, not the listener: whoever is that far behind will look anyway.
                if let Some(heard) = heard
                    && matches!(tx.try_send(heard), Err(mpsc::error::TrySendError::Closed(_)))
                {
                    return;
                }
            }
            Ok(Ok(None) | Err(_)) => return,
            Err(_) => {
                let alive = tokio::time::timeout(Duration::from_secs(5), sqlx::query("select 1").execute(&mut listener)).await;
                if !matches!(alive, Ok(Ok(_))) {
                    return;
                }
            }
        }
    }
}
