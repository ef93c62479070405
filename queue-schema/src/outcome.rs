//! What happened to an attempt, whose fault it was, and what follows. One pure table; nobody matches strings later.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::kind::Effect;
use crate::retry::Pace;

/// The closed set of decision B11, with D9's split of `permanent` into `refused` and `bad_input`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryClass {
    CallerTimeout,
    ClientGone,
    Timeout,
    Outage,
    RateLimited,
    ItemError,
    Oversize,
    EmptyOutput,
    InvalidOutput,
    Refused,
    BadInput,
    Preempted,
    Shutdown,
    Unservable,
    NoContent,
    Crash,
    TooSlow,
    PlaceGone,
    Superseded,
    Cancelled,
}

impl RetryClass {
    pub const ALL: [Self; 20] = [
        Self::CallerTimeout,
        Self::ClientGone,
        Self::Timeout,
        Self::Outage,
        Self::RateLimited,
        Self::ItemError,
        Self::Oversize,
        Self::EmptyOutput,
        Self::InvalidOutput,
        Self::Refused,
        Self::BadInput,
        Self::Preempted,
        Self::Shutdown,
        Self::Unservable,
        Self::NoContent,
        Self::Crash,
        Self::TooSlow,
        Self::PlaceGone,
        Self::Superseded,
        Self::Cancelled,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CallerTimeout => "caller_timeout",
            Self::ClientGone => "client_gone",
            Self::Timeout => "timeout",
            Self::Outage => "outage",
            Self::RateLimited => "rate_limited",
            Self::ItemError => "item_error",
            Self::Oversize => "oversize",
            Self::EmptyOutput => "empty_output",
            Self::InvalidOutput => "invalid_output",
            Self::Refused => "refused",
            Self::BadInput => "bad_input",
            Self::Preempted => "preempted",
            Self::Shutdown => "shutdown",
            Self::Unservable => "unservable",
            Self::NoContent => "no_content",
            Self::Crash => "crash",
            Self::TooSlow => "too_slow",
            Self::PlaceGone => "place_gone",
            Self::Superseded => "superseded",
            Self::Cancelled => "cancelled",
        }
    }

    #[must_use]
    pub fn parse(s: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.as_str() == s)
    }

    /// What a person is told; a provider's own words never leave the operator's view (decision B57).
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::CallerTimeout | Self::ClientGone => "The request that was waiting for it ended; it goes on in the background.",
            Self::Timeout => "It took too long and will be tried again.",
            Self::Outage => "The service that does this is not answering; it will be tried again.",
            Self::RateLimited => "The service that does this asked us to wait.",
            Self::ItemError => "The service could not work with this piece; it will be tried a few more times.",
            Self::Oversize => "This piece is too long for the service.",
            Self::EmptyOutput => "The service returned nothing for this piece.",
            Self::InvalidOutput => "The service returned something unusable for this piece.",
            Self::Refused => "The service refused our credentials or model; the work is held until an operator has fixed it.",
            Self::BadInput => "This file cannot be read.",
            Self::Preempted => "It made room for more urgent work and will go on.",
            Self::Shutdown => "A worker was shutting down; it will go on elsewhere.",
            Self::Unservable => "No service that may see this piece is available.",
            Self::NoContent => "There was nothing to do.",
            Self::Crash => "It stopped the process that worked on it, repeatedly.",
            Self::TooSlow => "It took too long three times in a row and was set aside.",
            Self::PlaceGone => "The place it was meant for is gone.",
            Self::Superseded => "A newer version took its place.",
            Self::Cancelled => "It was cancelled.",
        }
    }
}

/// Where the job's row goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Waiting, due after the delay; dead instead when the budget is spent.
    Wait(Duration),
    /// Set aside for a person; replayable.
    Park,
    /// Over, listed apart.
    Die,
    /// Out of the live table as `superseded` or `cancelled`.
    Leave(&'static str),
    /// Out of the live table as done: nothing was left to do.
    Finish,
}

/// The counters as they were when the attempt was claimed.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    pub item_fails: u32,
    pub crashes: u32,
    pub timeouts_in_row: u32,
}

/// What a class means for the row: counters of decision B-0 and the next state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consequence {
    pub next: Next,
    /// +1 on `forgiven`: not the item's fault, so the budget is not touched.
    pub forgiven: bool,
    pub item_fails: u32,
    pub crashes: u32,
    pub timeouts_in_row: u32,
}

/// Crashes after which a job is dead (decision B7).
pub const MAX_CRASHES: u32 = 3;
/// Background timeouts in a row after which it is parked as too slow (B2).
pub const MAX_TIMEOUTS: u32 = 3;

/// The table. `wait` is what the provider asked for, or how long its endpoint backs off; `doubted` that a timeout's blame is
/// still open: the endpoint's next control text says whose it was, and only then does `timeouts_in_row` move (decision D3).
#[must_use]
pub fn consequence(class: RetryClass, now: Counters, wait: Option<Duration>, doubted: bool, pace: &Pace) -> Consequence {
    let same = Consequence {
        next: Next::Wait(Duration::ZERO),
        forgiven: true,
        item_fails: now.item_fails,
        crashes: now.crashes,
        timeouts_in_row: now.timeouts_in_row,
    };
    match class {
        RetryClass::CallerTimeout | RetryClass::Preempted | RetryClass::Shutdown => same,
        // Held, not delayed: the closed breaker keeps it, and it is due the moment an operator opens it.
        RetryClass::Refused => same,
        RetryClass::ClientGone | RetryClass::Unservable => Consequence {
            next: Next::Wait(pace.item_base),
            ..same
        },
        RetryClass::Timeout => {
            let n = now.timeouts_in_row + 1;
            if doubted {
                return Consequence {
                    next: Next::Wait(pace.item(n)),
                    ..same
                };
            }
            let next = if n >= MAX_TIMEOUTS { Next::Park } else { Next::Wait(pace.item(n)) };
            Consequence {
                next,
                timeouts_in_row: n,
                ..same
            }
        }
        RetryClass::Outage => Consequence {
            next: Next::Wait(wait.unwrap_or(Duration::ZERO)),
            ..same
        },
        RetryClass::RateLimited => Consequence {
            next: Next::Wait(wait.unwrap_or(pace.rate_limit_default)),
            ..same
        },
        RetryClass::ItemError | RetryClass::EmptyOutput | RetryClass::InvalidOutput => {
            let n = now.item_fails + 1;
            Consequence {
                next: Next::Wait(pace.item(n)),
                forgiven: false,
                item_fails: n,
                ..same
            }
        }
        RetryClass::Oversize | RetryClass::TooSlow | RetryClass::PlaceGone => Consequence {
            next: Next::Park,
            forgiven: false,
            ..same
        },
        RetryClass::BadInput => Consequence {
            next: Next::Die,
            forgiven: false,
            ..same
        },
        RetryClass::Crash => {
            let n = now.crashes + 1;
            let next = if n >= MAX_CRASHES { Next::Die } else { Next::Wait(pace.item_base) };
            Consequence {
                next,
                forgiven: false,
                crashes: n,
                ..same
            }
        }
        RetryClass::NoContent => Consequence {
            next: Next::Finish,
            forgiven: false,
            ..same
        },
        RetryClass::Superseded => Consequence {
            next: Next::Leave("superseded"),
            forgiven: false,
            ..same
        },
        RetryClass::Cancelled => Consequence {
            next: Next::Leave("cancelled"),
            forgiven: false,
            ..same
        },
    }
}

/// A failure as the place that knows it says it: class, a short machine-readable cause, and words for an operator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    pub class: RetryClass,
    /// Short and machine-readable; owned only when it came from another process.
    pub cause: Cow<'static, str>,
    /// Sanitised and bounded by [`sanitise`]; never content.
    pub error: String,
    /// What the provider asked for, or how long its endpoint backs off.
    pub wait: Option<Duration>,
    /// A timeout whose blame the endpoint's probe decides (decision D3).
    pub doubted: bool,
}

impl Failure {
    #[must_use]
    pub fn new(class: RetryClass, cause: impl Into<Cow<'static, str>>, error: impl AsRef<str>) -> Self {
        Self {
            class,
            cause: cause.into(),
            error: sanitise(error.as_ref()),
            wait: None,
            doubted: false,
        }
    }

    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// Leaves it to the endpoint's probe whose fault this timeout was.
    #[must_use]
    pub fn doubted(self) -> Self {
        Self { doubted: true, ..self }
    }
}

/// How one attempt ended.
#[derive(Debug, Serialize, Deserialize)]
pub enum Outcome {
    Done(Effect),
    Failed(Failure),
}

impl Outcome {
    #[must_use]
    pub fn done() -> Self {
        Self::Done(Effect::Nothing)
    }

    #[must_use]
    pub fn failed(class: RetryClass, cause: impl Into<Cow<'static, str>>, error: impl AsRef<str>) -> Self {
        Self::Failed(Failure::new(class, cause, error))
    }
}

/// At most 500 characters, no control characters (Postgres refuses NUL; a log line stays one line), cut between
/// characters (requirement C40).
#[must_use]
pub fn sanitise(s: &str) -> String {
    let mut out = String::new();
    for c in s.chars().take(500) {
        out.push(if c.is_control() || c == '\u{FFFE}' || c == '\u{FFFF}' {
            ' '
        } else {
            c
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_one_consequence_and_parses_back() {
        for class in RetryClass::ALL {
            assert_eq!(RetryClass::parse(class.as_str()), Some(class));
            assert!(!class.sentence().is_empty());
            let c = consequence(class, Counters::default(), None, false, &Pace::default());
            let charged = !c.forgiven;
            let expected = matches!(
                class,
                RetryClass::ItemError
                    | RetryClass::EmptyOutput
                    | RetryClass::InvalidOutput
                    | RetryClass::Oversize
                    | RetryClass::TooSlow
                    | RetryClass::PlaceGone
                    | RetryClass::BadInput
                    | RetryClass::Crash
                    | RetryClass::NoContent
                    | RetryClass::Superseded
                    | RetryClass::Cancelled
            );
            assert_eq!(charged, expected, "{class:?}");
        }
    }

    #[test]
    fn b2_the_third_timeout_in_a_row_parks() {
        let pace = Pace::default();
        let at = |n, doubted| {
            let now = Counters {
                timeouts_in_row: n,
                ..Counters::default()
            };
            let c = consequence(RetryClass::Timeout, now, None, doubted, &pace);
            (c.next, c.timeouts_in_row)
        };
        assert_eq!(
            [at(0, false), at(1, false), at(2, false)],
            [(Next::Wait(pace.item(1)), 1), (Next::Wait(pace.item(2)), 2), (Next::Park, 3)]
        );
        // D3: while the blame is open nothing is counted, however often.
        assert_eq!(at(2, true), (Next::Wait(pace.item(3)), 2));
    }

    #[test]
    fn b7_the_third_crash_kills() {
        let at = |n| {
            let now = Counters {
                crashes: n,
                ..Counters::default()
            };
            consequence(RetryClass::Crash, now, None, false, &Pace::default()).next
        };
        assert!(matches!(at(1), Next::Wait(_)));
        assert_eq!(at(2), Next::Die);
    }

    #[test]
    fn c40_error_text_is_bounded_and_has_no_control_characters() {
        let s = sanitise(&format!("a\u{0}b\nc{}", "ß".repeat(900)));
        assert_eq!(s.chars().count(), 500);
        assert!(s.starts_with("a b c"));
    }
}
