//! Delays: pure, so that a table can test them. Rust says how long, the database says when.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How fast failures come round again. Every duration is a setting, so that a story of an hour runs in a minute with all its
/// ratios kept (decision D23).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pace {
    /// First step of an item's own backoff (requirement C36: 60 s).
    pub item_base: Duration,
    /// Its cap (C36: 86,400 s).
    pub item_cap: Duration,
    /// First step of an endpoint's backoff (decision B4: 30 s).
    pub endpoint_base: Duration,
    /// Its cap (B4: 10 min).
    pub endpoint_cap: Duration,
    /// How long an endpoint's last answer speaks for it (D8: 60 s).
    pub evidence: Duration,
    /// A 429 that names no time (B12: 60 s).
    pub rate_limit_default: Duration,
    /// The longest we take a provider's word for (B12: 300 s); an operator can clear it sooner.
    pub rate_limit_cap: Duration,
    /// How long a breaker must have been on before its incident may close (B23: 30 min).
    pub reopen_grace: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            item_base: Duration::from_secs(60),
            item_cap: Duration::from_secs(86_400),
            endpoint_base: Duration::from_secs(30),
            endpoint_cap: Duration::from_secs(600),
            evidence: Duration::from_secs(60),
            rate_limit_default: Duration::from_secs(60),
            rate_limit_cap: Duration::from_secs(300),
            reopen_grace: Duration::from_secs(1800),
        }
    }
}

/// `base × 2^(streak − 1)`, capped. Saturates: a streak of 305 is the cap, not the year 2274 and not zero.
#[must_use]
pub fn exponential(base: Duration, cap: Duration, streak: u32) -> Duration {
    let doublings = streak.saturating_sub(1).min(63);
    let secs = base.as_secs_f64() * 2f64.powi(i32::try_from(doublings).unwrap_or(63));
    Duration::from_secs_f64(secs.min(cap.as_secs_f64()))
}

impl Pace {
    /// An item's own backoff after its `fails`-th failure.
    #[must_use]
    pub fn item(&self, fails: u32) -> Duration {
        exponential(self.item_base, self.item_cap, fails)
    }

    /// An endpoint's backoff after `streak` outages in a row, spread by ±20 % so that a fleet does not probe in step.
    /// `jitter` is uniform in 0..1.
    #[must_use]
    pub fn endpoint(&self, streak: u32, jitter: f64) -> Duration {
        exponential(self.endpoint_base, self.endpoint_cap, streak).mul_f64(0.8 + 0.4 * jitter.clamp(0.0, 1.0))
    }

    /// What a 429 costs: the provider's word as a floor, up to the cap, plus up to 10 % (jitter only later, never sooner).
    #[must_use]
    pub fn rate_limit(&self, retry_after: Option<Duration>, jitter: f64) -> Duration {
        let floor = retry_after.unwrap_or(self.rate_limit_default).min(self.rate_limit_cap);
        floor.mul_f64(1.0 + 0.1 * jitter.clamp(0.0, 1.0)).max(Duration::from_millis(250))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> Pace {
        Pace::default()
    }

    #[test]
    fn case22_backoff_never_overflows() {
        for streak in [0, 1, 2, 36, 37, 63, 64, 305, u32::MAX] {
            let d = pace().item(streak);
            assert!(d >= pace().item_base && d <= pace().item_cap, "{streak}: {d:?}");
        }
        assert_eq!([1, 2, 3].map(|n| pace().item(n)).map(|d| d.as_secs()), [60, 120, 240]);
    }

    #[test]
    fn endpoint_backoff_is_spread_around_its_step() {
        assert_eq!(pace().endpoint(1, 0.5).as_secs(), 30);
        assert_eq!(pace().endpoint(1, 0.0).as_secs(), 24);
        assert_eq!(pace().endpoint(99, 1.0).as_secs(), 720);
    }

    #[test]
    fn retry_after_is_a_floor_with_a_ceiling() {
        assert!(pace().rate_limit(Some(Duration::from_secs(2)), 0.0) >= Duration::from_secs(2));
        assert!(pace().rate_limit(Some(Duration::ZERO), 0.0) > Duration::ZERO);
        assert!(pace().rate_limit(Some(Duration::from_secs(31_536_000)), 1.0) <= Duration::from_secs(330));
        assert_eq!(pace().rate_limit(None, 0.0), pace().rate_limit_default);
    }
}
