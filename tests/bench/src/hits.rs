//! Where every handler, ours and the rivals', reports that it has begun. One measure runs at a time, so there is one board.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

#[derive(Debug)]
pub struct Board {
    base: Instant,
    count: AtomicUsize,
    /// Nanoseconds since `base` at the first start of each job; 0: not yet.
    at: Vec<AtomicU64>,
    runs: Vec<AtomicU8>,
    news: Notify,
}

static BOARD: RwLock<Option<Arc<Board>>> = RwLock::new(None);

/// A fresh board for jobs 0..n; whatever still reports to the old one is not seen any more.
pub fn board(n: usize) -> Arc<Board> {
    let board = Arc::new(Board {
        base: Instant::now(),
        count: AtomicUsize::new(0),
        at: (0..n).map(|_| AtomicU64::new(0)).collect(),
        runs: (0..n).map(|_| AtomicU8::new(0)).collect(),
        news: Notify::new(),
    });
    *BOARD.write().unwrap_or_else(PoisonError::into_inner) = Some(board.clone());
    board
}

/// Job `n`'s handler has begun.
pub fn hit(n: u64) {
    let board = BOARD.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(board) = board.as_ref() {
        board.hit(n);
    }
}

impl Board {
    fn hit(&self, n: u64) {
        let Some(i) = usize::try_from(n).ok().filter(|i| *i < self.at.len()) else {
            return;
        };
        let now = u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
        if self.runs[i].fetch_add(1, Ordering::Relaxed) == 0 {
            self.at[i].store(now, Ordering::Relaxed);
            if self.count.fetch_add(1, Ordering::AcqRel) + 1 == self.at.len() {
                self.news.notify_waiters();
            }
        }
    }

    /// When job `i` first began.
    pub fn started(&self, i: usize) -> Option<Instant> {
        match self.at.get(i)?.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(self.base + Duration::from_nanos(ns)),
        }
    }

    /// When the first of all began.
    pub fn first(&self) -> Option<Instant> {
        let ns = self.at.iter().map(|at| at.load(Ordering::Relaxed)).filter(|ns| *ns > 0).min()?;
        Some(self.base + Duration::from_nanos(ns))
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Until every job has begun; false: it took longer than `limit`.
    pub async fn all(&self, limit: Duration) -> bool {
        let wait = async {
            loop {
                let news = self.news.notified();
                tokio::pin!(news);
                // Registered before the look, so that the last hit cannot fall in between.
                news.as_mut().enable();
                if self.count() >= self.at.len() {
                    return;
                }
                news.await;
            }
        };
        tokio::time::timeout(limit, wait).await.is_ok()
    }

    /// How many jobs began more than once.
    pub fn repeated(&self) -> usize {
        self.runs.iter().filter(|r| r.load(Ordering::Relaxed) > 1).count()
    }
}
