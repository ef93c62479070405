//! What a person sees while things start: a spinner on a terminal, plain lines in a log.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

#[derive(Debug, Clone, Copy)]
pub(super) struct Say {
    terminal: bool,
}

/// A step under way; [`Step::done`] ends it with what came of it. Dropped before that, it leaves its name as unfinished.
#[derive(Debug)]
pub(super) struct Step {
    say: Say,
    bar: Option<ProgressBar>,
    began: Instant,
}

impl Say {
    pub(super) fn new() -> Self {
        Self {
            terminal: std::io::stdout().is_terminal(),
        }
    }

    pub(super) fn line(self, text: impl AsRef<str>) {
        // A reader that has gone (`ops/up | head`) is no reason to stop, so not println!, which panics.
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{}", text.as_ref());
        let _ = out.flush();
    }

    /// Says that `text` has begun. Without a terminal only steps that end are lines, unless `long`.
    pub(super) fn step(self, text: impl Into<String>, long: bool) -> Step {
        let text = text.into();
        let bar = if self.terminal {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_message(text);
            bar.enable_steady_tick(Duration::from_millis(100));
            Some(bar)
        } else {
            if long {
                self.line(format!("… {text}"));
            }
            None
        };
        Step {
            say: self,
            bar,
            began: Instant::now(),
        }
    }
}

impl Step {
    pub(super) fn note(&self, text: impl Into<String>) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.into());
        }
    }

    /// A line beside the spinner.
    pub(super) fn line(&self, text: impl AsRef<str>) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.say.line(text)),
            None => self.say.line(text),
        }
    }

    pub(super) fn done(mut self, text: impl AsRef<str>) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let took = self.began.elapsed();
        let took = if took < Duration::from_millis(100) {
            String::new()
        } else {
            format!("  ({:.1} s)", took.as_secs_f64())
        };
        self.say.line(format!("✓ {}{took}", text.as_ref()));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
