//! A typed client of Steadfast's HTTP API.
//!
//! ```no_run
//! use std::io::Write as _;
//! use steadfast_client::{Client, Reading, Upload};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), steadfast_client::Error> {
//! # let mut out = std::io::stdout();
//! let client = Client::new("http://127.0.0.1:7787", "sf_…")?;
//!
//! let accepted = client.upload(&Upload::file("contract.pdf", "default")).await?;
//! client.wait_for_job(&accepted.job_id, |job| eprintln!("{}", job.status)).await?;
//!
//! match client.search("when must the renter move out").await?.read() {
//!     Reading::Whole(hits) => println!("{} passages", hits.len()),
//!     Reading::Degraded(hits, why) => println!("{} passages, but: {}", hits.len(), why.sentence()),
//! }
//! # out.flush().ok();
//! # Ok(())
//! # }
//! ```
//!
//! # The habit
//!
//! Search narrows rather than fails: with embedding stopped it still answers, by words alone. Such an answer looks like a
//! whole one, and whoever shows it as one tells a person "there is nothing" about a document that is safely there. So the
//! results have no door of their own: [`Answer::read`] hands out a [`Reading`], whose two variants a `match` must both name, and
//! [`Answer::tell`] hands out the results after it has told why they are fewer. The one shortcut past them is deprecated,
//! and using it is a compiler warning. Each careless way below is an error in a crate that denies warnings, and an ordinary
//! warning in one that does not.
//!
//! The shortcut:
//!
//! ```compile_fail
//! #![deny(warnings)]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), steadfast_client::Error> {
//! # let client = steadfast_client::Client::new("http://127.0.0.1:7787", "sf_…")?;
//! for hit in client.search("when must the renter move out").await?.hits_unchecked() {
//!     println!("{}", hit.snippet);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The same, with the diagnostics looked at, compiles:
//!
//! ```no_run
//! #![deny(warnings)]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), steadfast_client::Error> {
//! # let client = steadfast_client::Client::new("http://127.0.0.1:7787", "sf_…")?;
//! for hit in client.search("when must the renter move out").await?.tell(|why| eprintln!("{}", why.sentence())) {
//!     println!("{}", hit.snippet);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A degraded answer's results without its diagnostics (`why` is never used):
//!
//! ```compile_fail
//! #![deny(warnings)]
//! # use steadfast_client::{Client, Reading};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), steadfast_client::Error> {
//! # let client = Client::new("http://127.0.0.1:7787", "sf_…")?;
//! match client.search("when must the renter move out").await?.read() {
//!     Reading::Whole(hits) => println!("{}", hits.len()),
//!     Reading::Degraded(hits, why) => println!("{}", hits.len()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! ```no_run
//! #![deny(warnings)]
//! # use steadfast_client::{Client, Reading};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), steadfast_client::Error> {
//! # let client = Client::new("http://127.0.0.1:7787", "sf_…")?;
//! match client.search("when must the renter move out").await?.read() {
//!     Reading::Whole(hits) => println!("{}", hits.len()),
//!     Reading::Degraded(hits, why) => println!("{}, but {}", hits.len(), why.sentence()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Only the fair-weather half, with no second arm (an error in any crate):
//!
//! ```compile_fail
//! # use steadfast_client::{Client, Reading};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), steadfast_client::Error> {
//! # let client = Client::new("http://127.0.0.1:7787", "sf_…")?;
//! match client.search("when must the renter move out").await?.read() {
//!     Reading::Whole(hits) => println!("{}", hits.len()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Who means it can still write `|_| ()` or `Degraded(hits, _)`: that stands in the code for a reviewer to see.
//!
//! # What else it does for you
//!
//! - **Retries** what is worth it, and only that: 429, 5xx and transport, three tries, full jitter, the server's `Retry-After` as
//!   the least wait ([`Retries`]). Every POST carries an `Idempotency-Key`, so a second try is not a second document.
//! - **Errors** are the API's own, typed: branch on [`Error::code`], show [`ApiError::message`], name [`ApiError::fields`].
//! - **The token** never shows in `Debug` or in an error, is never sent after a redirect, and not over plain HTTP to another
//!   machine unless [`Builder::allow_plain_http`] says so. On loopback no proxy of the environment is used.
//! - **Members it does not know** in an answer are passed over, and a status it does not know is kept as a word: a newer server is
//!   no reason to fail.

#![doc(test(attr(deny(warnings))))]

mod answer;
mod client;
mod error;
mod model;
mod request;
mod retry;
mod send;

pub use answer::{Answer, Diagnostics, Reading, Reason, SearchAnswer, TranscriptAnswer};
pub use client::{Builder, Client};
pub use error::{ApiError, Error, ErrorCode, TransportKind};
pub use model::{
    Accepted, DeadLetter, Document, DocumentStatus, Explanation, Hit, Hold, Job, JobStatus, Memory, Page, Pagination, Passage, Replayed,
    Space,
};
pub use request::{Documents, Jobs, Paging, Remember, Replay, Search, TranscriptSearch, Upload};
pub use retry::Retries;
