//! One listener for all who wait: a connection per waiting search would empty the pool (decision B55).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use queue_schema::hint::{self, Channel, Heard};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

type Waiting = Arc<Mutex<HashMap<i64, Arc<Notify>>>>;

/// Who waits for which question.
#[derive(Debug)]
pub struct Answers {
    waiting: Waiting,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl Answers {
    #[must_use]
    pub fn start(url: &str) -> Self {
        let waiting = Waiting::default();
        let (mut heard, listener) = hint::listen(url, Channel::Answers);
        let fan_out = tokio::spawn({
            let waiting = waiting.clone();
            async move {
                while let Some(h) = heard.recv().await {
                    // After a loss nothing is to be done: every waiter looks each second by itself.
                    if let Heard::Answer(id) = h
                        && let Some(one) = waiting.lock().ok().and_then(|w| w.get(&id).cloned())
                    {
                        one.notify_one();
                    }
                }
            }
        });
        Self {
            waiting,
            _tasks: [listener, AbortOnDropHandle::new(fan_out)],
        }
    }

    /// A place to wait at for this question. Take it before the question is committed, or its answer may come first.
    #[must_use]
    pub fn wait_for(&self, job_id: i64) -> Waiter {
        let bell = Arc::new(Notify::new());
        if let Ok(mut w) = self.waiting.lock() {
            w.insert(job_id, bell.clone());
        }
        Waiter {
            job_id,
            bell,
            waiting: self.waiting.clone(),
        }
    }
}

/// Somebody who waits; gone from the list when dropped.
#[derive(Debug)]
pub struct Waiter {
    job_id: i64,
    bell: Arc<Notify>,
    waiting: Waiting,
}

impl Waiter {
    /// Until the hint comes; it may never come.
    pub async fn heard(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Ok(mut w) = self.waiting.lock() {
            w.remove(&self.job_id);
        }
    }
}
