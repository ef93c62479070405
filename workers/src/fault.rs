//! Faults on demand, so that a story can show what a job costs that ends its own process. Nothing here happens unless the hidden
//! setting `STEADFAST_FAULTS` is `on`.

use crate::config::Config;
use crate::engine::Group;

/// A text, or a picture's bytes, with this inside aborts the process that is about to hand it to an engine.
pub const MARKER: &str = "steadfast-fault:abort";

/// `noop` with `{"fault": "abort" | "segfault" | "oom" | "exit"}`. Does not return when one was asked for.
pub fn asked_by_payload(config: &Config, group: &Group) {
    if !config.faults {
        return;
    }
    for claim in &group.claims {
        match claim.payload["fault"].as_str() {
            Some("abort") => std::process::abort(),
            Some("segfault") => segfault(),
            Some("oom") => oom(),
            Some("exit") => std::process::exit(3),
            _ => {}
        }
    }
}

/// `embed` and `ocr`: what is about to be sent holds the [`MARKER`]. Does not return when it does.
pub fn asked_by_content(config: &Config, content: &[u8]) {
    if config.faults && content.windows(MARKER.len()).any(|w| w == MARKER.as_bytes()) {
        std::process::abort();
    }
}

/// The signal itself: a real bad access needs `unsafe`. More than once, because the runtime's handler for stack overflows takes
/// the first one for itself and steps aside.
fn segfault() -> ! {
    loop {
        let _sent = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::SEGV);
    }
}

/// Address space until there is none. It is never touched: outside the isolated child there is no limit, and a test must not
/// drive a machine into swapping.
fn oom() -> ! {
    let mut hoard = Vec::new();
    loop {
        hoard.push(std::hint::black_box(Vec::<u8>::with_capacity(256 << 20)));
    }
}
