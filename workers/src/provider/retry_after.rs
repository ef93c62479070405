//! How long a provider asks us to wait: in a header, as seconds or a date, or only in prose.

use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, RETRY_AFTER};

/// Longest span this reports; what of it is honoured is decided where the wait is written (`queue_schema::retry`).
pub(super) const MAX: Duration = Duration::from_secs(366 * 86_400);

/// What the provider asked for: the longest of what its headers say, else what its words say, else nothing.
///
/// Whole or decimal seconds (rounded up) and the three date forms of HTTP are understood; a date that has passed is zero.
/// Anything else (`-3`, `2abc`, an empty value) is as if nothing had been said: a guess could be zero, and zero is a hot
/// loop. `now` is passed in so that one clock rules.
#[must_use]
pub fn retry_after(headers: &HeaderMap, body: &str, now: SystemTime) -> Option<Duration> {
    let named = headers
        .get_all(RETRY_AFTER)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .filter_map(|v| value(v, now));
    let millis = headers
        .get_all("retry-after-ms")
        .iter()
        .filter_map(|v| v.to_str().ok())
        .filter_map(|v| decimal(v.trim()));
    let millis = millis.map(|ms| seconds(ms / 1000.0));
    named.chain(millis).max().or_else(|| prose(body))
}

fn value(v: &str, now: SystemTime) -> Option<Duration> {
    let v = v.trim();
    if let Some(s) = decimal(v) {
        return Some(seconds(s.ceil()));
    }
    let at = httpdate::parse_http_date(v).ok()?;
    Some(at.duration_since(now).unwrap_or(Duration::ZERO).min(MAX))
}

/// Digits with at most one point between them: no sign, no exponent, no unit.
fn decimal(v: &str) -> Option<f64> {
    let well_formed = v.starts_with(|c: char| c.is_ascii_digit())
        && v.ends_with(|c: char| c.is_ascii_digit())
        && v.chars().all(|c| c.is_ascii_digit() || c == '.')
        && v.matches('.').count() <= 1;
    well_formed.then(|| v.parse().ok()).flatten()
}

fn seconds(s: f64) -> Duration {
    Duration::try_from_secs_f64(s).unwrap_or(MAX).min(MAX)
}

/// Words after which a span is a wait. "in" alone is not among them: "3 requests in 1 minute" is a limit.
const BEFORE: [&str; 9] = [
    "after",
    "again in",
    "retry in",
    "wait",
    "resets in",
    "reset in",
    "retrydelay",
    "retry_after",
    "retry-after",
];

fn prose(body: &str) -> Option<Duration> {
    let lower = body.get(..body.floor_char_boundary(8_192)).unwrap_or(body).to_lowercase();
    BEFORE
        .iter()
        .flat_map(|word| {
            let member = word.contains(['_', '-']);
            lower.match_indices(word).filter_map({
                let lower = &lower;
                move |(at, w)| span(lower.get(at + w.len()..)?, member)
            })
        })
        .max()
}

/// `20s`, `20 seconds`, `1m30s`, `6m0s`, `2 hours`; a bare number only where it is a member's value.
fn span(text: &str, bare: bool) -> Option<Duration> {
    let mut rest = text.trim_start_matches([' ', ':', '"', '\'', '=', '~']);
    let mut total: Option<f64> = None;
    loop {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let Some(n) = decimal(rest[..end].trim_end_matches('.')) else {
            break;
        };
        let tail = rest[end..].trim_start_matches(' ');
        let unit_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let scale = match &tail[..unit_end] {
            "ms" | "millisecond" | "milliseconds" => 0.001,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hour" | "hours" => 3_600.0,
            _ if bare && total.is_none() => return Some(seconds(n.ceil())),
            _ => break,
        };
        total = Some(total.unwrap_or(0.0) + n * scale);
        rest = &tail[unit_end..];
    }
    total.map(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SystemTime {
        httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").expect("a literal date")
    }

    fn headers(values: &[&str]) -> HeaderMap {
        let mut h = HeaderMap::new();
        for v in values {
            h.append(RETRY_AFTER, v.parse().expect("a literal header value"));
        }
        h
    }

    #[test]
    fn case49_every_form_of_the_header() {
        let secs = |s| Some(Duration::from_secs(s));
        for (values, expected) in [
            (&["0"][..], secs(0)),
            (&["2"], secs(2)),
            (&[" 2 "], secs(2)),
            (&["1.5"], secs(2)),
            (&["-3"], None),
            (&["2abc"], None),
            (&["1e3"], None),
            (&[".5"], None),
            (&[""], None),
            (&["Sun, 06 Nov 1994 08:50:37 GMT"], secs(60)),
            (&["Sun, 06 Nov 1994 08:48:37 GMT"], secs(0)),
            (&["Sunday, 06-Nov-94 08:50:07 GMT"], secs(30)),
            (&["Sun Nov  6 08:49:47 1994"], secs(10)),
            (&["2", "7"], secs(7)),
            (&["junk", "4"], secs(4)),
            (&["1234567890123456789012345"], Some(MAX)),
            (&[], None),
        ] {
            assert_eq!(retry_after(&headers(values), "", now()), expected, "{values:?}");
        }
    }

    #[test]
    fn case52_a_wait_in_prose() {
        let none = HeaderMap::new();
        for (body, expected) in [
            ("Please retry after 20 seconds.", Some(20_000)),
            (
                r#"{"error":{"message":"Rate limit reached. Please try again in 20s. Visit"}}"#,
                Some(20_000),
            ),
            ("try again in 1m30s", Some(90_000)),
            ("try again in 6m0s.", Some(360_000)),
            ("try again in 250ms", Some(250)),
            (r#"{"details":[{"retryDelay":"13s"}]}"#, Some(13_000)),
            (r#"{"retry_after": 4.2}"#, Some(5_000)),
            ("Limit: 3 requests in 1 minute", None),
            ("please try again later", None),
            ("after 2024 things changed", None),
            ("", None),
        ] {
            assert_eq!(retry_after(&none, body, now()), expected.map(Duration::from_millis), "{body}");
        }
        assert_eq!(
            retry_after(&headers(&["2"]), "after 20 seconds", now()),
            Some(Duration::from_secs(2))
        );
    }
}
