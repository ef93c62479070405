//! Delays: pure, so that a table can test them. Rust says how long, the database says when.

use std::time::Duration;

/// First step of an item's own backoff (requirement C36).
pub const ITEM_BASE: Duration = Duration::from_secs(60);
/// Its cap (C36: 86,400 s).
pub const ITEM_CAP: Duration = Duration::from_secs(86_400);
/// First step of an endpoint's backoff (decision B4).
pub const ENDPOINT_BASE: Duration = Duration::from_secs(30);
/// Its cap (B4: 10 min).
pub const ENDPOINT_CAP: Duration = Duration::from_secs(600);
/// A 429 that names no time (B12).
pub const RATE_LIMIT_DEFAULT: Duration = Duration::from_secs(60);
/// The longest we take a provider's word for (B12); an operator can clear it sooner.
pub const RATE_LIMIT_CAP: Duration = Duration::from_secs(300);

/// `base × 2^(streak − 1)`, capped. Saturates: a streak of 305 is the cap, not the year 2274 and not zero.
#[must_use]
pub fn exponential(base: Duration, cap: Duration, streak: u32) -> Duration {
    let doublings = streak.saturating_sub(1).min(63);
    let secs = base.as_secs_f64() * 2f64.powi(i32::try_from(doublings).unwrap_or(63));
    Duration::from_secs_f64(secs.min(cap.as_secs_f64()))
}

/// An item's own backoff after its `fails`-th failure.
#[must_use]
pub fn item(fails: u32) -> Duration {
    exponential(ITEM_BASE, ITEM_CAP, fails)
}

/// An endpoint's backoff after `streak` outages in a row, spread by ±20 % so that a fleet does not probe in step.
/// `jitter` is uniform in 0..1.
#[must_use]
pub fn endpoint(streak: u32, jitter: f64) -> Duration {
    let plain = exponential(ENDPOINT_BASE, ENDPOINT_CAP, streak).as_secs_f64();
    Duration::from_secs_f64(plain * (0.8 + 0.4 * jitter.clamp(0.0, 1.0)))
}

/// What a 429 costs: the provider's word as a floor, up to the cap, plus up to 10 % (jitter only later, never sooner).
#[must_use]
pub fn rate_limit(retry_after: Option<Duration>, jitter: f64) -> Duration {
    let floor = retry_after.unwrap_or(RATE_LIMIT_DEFAULT).min(RATE_LIMIT_CAP);
    floor.mul_f64(1.0 + 0.1 * jitter.clamp(0.0, 1.0)).max(Duration::from_millis(250))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case22_backoff_never_overflows() {
        for streak in [0, 1, 2, 36, 37, 63, 64, 305, u32::MAX] {
            let d = item(streak);
            assert!(d >= ITEM_BASE && d <= ITEM_CAP, "{streak}: {d:?}");
        }
        assert_eq!([item(1), item(2), item(3)].map(|d| d.as_secs()), [60, 120, 240]);
    }

    #[test]
    fn endpoint_backoff_is_spread_around_its_step() {
        assert_eq!(endpoint(1, 0.5).as_secs(), 30);
        assert_eq!(endpoint(1, 0.0).as_secs(), 24);
        assert_eq!(endpoint(99, 1.0).as_secs(), 720);
    }

    #[test]
    fn retry_after_is_a_floor_with_a_ceiling() {
        assert!(rate_limit(Some(Duration::from_secs(2)), 0.0) >= Duration::from_secs(2));
        assert!(rate_limit(Some(Duration::ZERO), 0.0) > Duration::ZERO);
        assert!(rate_limit(Some(Duration::from_secs(31_536_000)), 1.0) <= Duration::from_secs(330));
        assert_eq!(rate_limit(None, 0.0), RATE_LIMIT_DEFAULT);
    }
}
