//! The stories: what is promised, told through the shipped binaries. How to write one is at the head of `steadfast_tests`.
//!
//! One binary for all of them, because linking is what a test costs on two cores.

#[path = "stories/answers.rs"]
mod answers;
#[path = "stories/breakers.rs"]
mod breakers;
#[path = "stories/claims.rs"]
mod claims;
#[path = "stories/classes.rs"]
mod classes;
#[path = "stories/clients.rs"]
mod clients;
#[path = "stories/crashes.rs"]
mod crashes;
#[path = "stories/doors.rs"]
mod doors;
#[path = "stories/held.rs"]
mod held;
#[path = "stories/incidents.rs"]
mod incidents;
#[path = "stories/operator.rs"]
mod operator;
#[path = "stories/parts.rs"]
mod parts;
#[path = "stories/rig.rs"]
mod rig;
#[path = "stories/schema.rs"]
mod schema;
