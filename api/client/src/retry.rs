//! When to try again, and how long to wait: the contract that the API tells its clients (requirement P36).

use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

/// How often a request is tried and how long is waited in between.
///
/// The wait before try *n + 1* is drawn from 0 to `base × 2ⁿ⁻¹`, at most `cap`: full jitter, because callers that were turned
/// away together must not come back together. A `Retry-After` of the server comes on top of the draw and so is the least
/// that is waited, up to `longest_retry_after`.
///
/// Written here rather than taken from a backoff crate: `backon`, the best kept one, adds its jitter on top of the full step, so its
/// waits lie between one and two steps and never near zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retries {
    /// Tries in all; 1 is none again.
    pub tries: u32,
    pub base: Duration,
    pub cap: Duration,
    /// No server's word makes a caller wait longer for one try.
    pub longest_retry_after: Duration,
}

impl Default for Retries {
    /// Three tries, 0.25 s to 8 s, five minutes of `Retry-After` at most.
    fn default() -> Self {
        Self {
            tries: 3,
            base: Duration::from_millis(250),
            cap: Duration::from_secs(8),
            longest_retry_after: Duration::from_secs(300),
        }
    }
}

impl Retries {
    /// One try: for callers that have a retry loop of their own.
    #[must_use]
    pub fn none() -> Self {
        Self {
            tries: 1,
            ..Self::default()
        }
    }

    /// The wait after the `failed`-th try (from 1). `draw` is uniform in 0..1.
    #[must_use]
    pub fn wait(&self, failed: u32, retry_after: Option<Duration>, draw: f64) -> Duration {
        let doublings = i32::try_from(failed.saturating_sub(1).min(63)).unwrap_or(63);
        let ceiling = (self.base.as_secs_f64() * 2f64.powi(doublings)).min(self.cap.as_secs_f64());
        let floor = retry_after.unwrap_or_default().min(self.longest_retry_after);
        floor + Duration::from_secs_f64(ceiling * draw.clamp(0.0, 1.0))
    }
}

/// Whether a status is worth another try.
pub(crate) fn is_worth_it(status: u16) -> bool {
    status == 429 || (500..600).contains(&status)
}

/// The server's `Retry-After`: seconds, or a moment, which is measured against the server's own `Date`, for our clock may be
/// another. What cannot be read counts as not said.
pub(crate) fn retry_after(headers: &HeaderMap, now: impl FnOnce() -> DateTime<Utc>) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
    let said = text(RETRY_AFTER)?;
    if !said.is_empty() && said.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than a number holds still mean "very long".
        return Some(Duration::from_secs(said.parse().unwrap_or(u64::from(u32::MAX))));
    }
    let moment = |s: &str| DateTime::parse_from_rfc2822(s).ok().map(|d| d.with_timezone(&Utc));
    let at = moment(said)?;
    let now = text(DATE).and_then(moment).unwrap_or_else(now);
    Some((at - now).to_std().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn p36_waits_are_full_jitter_between_a_quarter_second_and_eight() {
        let r = Retries::default();
        assert_eq!(r.tries, 3);
        let most: Vec<f64> = (1..=8).map(|n| r.wait(n, None, 1.0).as_secs_f64()).collect();
        assert_eq!(most, [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]);
        assert_eq!(r.wait(3, None, 0.0), Duration::ZERO, "full jitter reaches down to nothing");
        assert_eq!(r.wait(u32::MAX, None, 1.0), r.cap);
    }

    #[test]
    fn p36_retry_after_is_a_floor_with_a_cap() {
        let r = Retries::default();
        assert_eq!(r.wait(1, Some(S * 5), 0.0), S * 5);
        assert!(r.wait(1, Some(S * 5), 0.7) > S * 5, "spread, so that not all come back at once");
        assert_eq!(r.wait(1, Some(S * 86_400), 0.0), S * 300);
        assert_eq!(r.wait(1, Some(S * 86_400), 1.0).as_secs_f64(), 300.25);
    }

    #[test]
    fn p36_only_what_may_pass_is_tried_again() {
        for worth in [429, 500, 502, 503, 504] {
            assert!(is_worth_it(worth), "{worth}");
        }
        for not in [200, 202, 301, 400, 401, 403, 404, 408, 409, 413, 422, 600] {
            assert!(!is_worth_it(not), "{not}");
        }
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let read = |said: &str, date: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, said.parse().expect("a header"));
            if let Some(date) = date {
                headers.insert(DATE, date.parse().expect("a header"));
            }
            retry_after(&headers, || DateTime::from_timestamp(784_111_770, 0).expect("a moment"))
        };
        assert_eq!(read("7", None), Some(S * 7));
        assert_eq!(read(" 0 ", None), Some(Duration::ZERO));
        assert_eq!(read("99999999999999999999999", None), Some(S * u32::MAX));
        let at = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(
            read(at, Some("Sun, 06 Nov 1994 08:49:30 GMT")),
            Some(S * 7),
            "by the server's clock"
        );
        assert_eq!(read(at, None), Some(S * 7), "by ours");
        assert_eq!(read(at, Some("Sun, 06 Nov 1994 08:50:00 GMT")), Some(Duration::ZERO), "gone by");
        for junk in ["", "soon", "-3", "1.5"] {
            assert_eq!(read(junk, None), None, "{junk:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), || unreachable!("nothing was said")), None);
    }
}
