use std::fmt::Debug;
use std::time::Duration;

use tokio::time::Instant;

/// How often a condition is looked at. A story's own bounds are hundreds of these.
const LOOK: Duration = Duration::from_millis(20);

/// Looks at a condition until it holds, and returns what it found. The only clock of the stories: what can be awaited
/// (the provider's record, a process's output) is awaited, and what must be polled (SQL, HTTP) is polled here.
///
/// `look` returns `Some`, or `Ok`, when the condition holds. An `Err(value)` shows up in the failure's message as what was
/// seen last, so it is the better one wherever there is something to show.
///
/// # Panics
/// When it does not hold within `timeout`, with `desc` and what was seen last.
pub async fn wait_until<L: Look>(desc: &str, timeout: Duration, mut look: impl AsyncFnMut() -> L) -> L::Found {
    let begin = Instant::now();
    let mut looks = 0_u32;
    loop {
        looks += 1;
        let seen = match look().await.seen() {
            Ok(found) => return found,
            Err(seen) => seen,
        };
        assert!(
            begin.elapsed() < timeout,
            "waited {timeout:?} ({looks} looks) until {desc}; last seen: {seen}"
        );
        tokio::time::sleep(LOOK).await;
    }
}

/// What a look at a condition may return: an `Option`, or a `Result` whose error is what was seen instead.
pub trait Look {
    type Found;
    /// # Errors
    /// What was seen instead.
    fn seen(self) -> Result<Self::Found, String>;
}

impl<T> Look for Option<T> {
    type Found = T;
    fn seen(self) -> Result<T, String> {
        self.ok_or_else(|| "not yet (return Err(value) to see it here)".to_owned())
    }
}

impl<T, E: Debug> Look for Result<T, E> {
    type Found = T;
    fn seen(self) -> Result<T, String> {
        self.map_err(|e| format!("{e:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_returns_what_it_found() {
        let mut n = 0;
        let found = wait_until("three looks were made", Duration::from_secs(5), async || {
            n += 1;
            if n == 3 { Ok("third") } else { Err(n) }
        })
        .await;
        assert_eq!(found, "third");
    }

    #[tokio::test]
    #[should_panic(expected = "until pigs fly; last seen: 7")]
    async fn it_says_what_it_saw_last() {
        wait_until("pigs fly", Duration::ZERO, async || Err::<(), _>(7)).await;
    }
}
