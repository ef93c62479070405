//! The stories: what is promised, told through the shipped binaries. How to write one is at the head of `steadfast_tests`.
//!
//! One binary for all of them, because linking is what a test costs on two cores.

#[path = "stories/schema.rs"]
mod schema;
