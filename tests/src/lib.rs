//! What the stories are told with: the scripted provider, and a harness that starts the shipped binaries over a database
//! of its own.
//!
//! # How to write a story
//!
//! A story is one test in `tests/tests/stories/<room>.rs`, named after what it shows (`sc1_…`, `case5_…`, `p15_…`); a new
//! room is one more `mod` line in `tests/tests/stories.rs`. There is one test binary on purpose: linking is what costs.
//!
//! 1. Set the stage: a [`harness::Db`], a [`provider::Provider`], an endpoint row that points at it, a [`harness::Fleet`].
//! 2. Script the fault: an ordered list of [`provider::Rule`]s; the first one that matches and has turns left decides.
//! 3. Await conditions, never time: [`provider::Provider::wait_calls`], [`harness::wait_until`].
//! 4. Assert on the provider's record and on SQL, never on our own log. For "never", name the window and show in the same
//!    test that the call can happen (a positive control).
//!
//! ```no_run
//! use std::time::Duration;
//! use steadfast_tests::harness::{Db, Fleet, wait_until};
//! use steadfast_tests::provider::{Action, Fixture, Provider, Rule};
//!
//! # async fn story() {
//! let db = Db::new().await;
//! let provider = Provider::start();
//! db.openai_endpoint("ep", &provider, 384).await;
//! let fleet = Fleet::new(&db);
//! let api = fleet.api().await;
//! let client = api.client(&db.person("ann").await);
//!
//! // One text is refused once and then held; everything else is answered.
//! provider.rule(Rule::text("POISON").times(1).then(Fixture::ServiceUnavailable));
//! provider.rule(Rule::text("POISON").then(Action::hold("gate")));
//! let _worker = fleet.worker().await;
//!
//! let added = client.remember("a POISON apple").await;
//! assert_eq!(added.status, 202, "{added}");
//! let call = provider.wait_for("the second try", |c| c.has("POISON") && c.seq > 1).await;
//! assert_eq!(call.in_flight, 1);
//! // The attempt is counted while it runs, not when it ends.
//! let job: i64 = db.one("select id from jobs where kind = 'embed'").await;
//! assert_eq!(db.job(job).await.expect("still live").attempts, 2);
//!
//! provider.release("gate");
//! wait_until("the embed job is done", Duration::from_secs(10), async || (db.status(job).await == "done").then_some(())).await;
//! assert_eq!(provider.completed("POISON"), 1);
//! # }
//! ```
//!
//! The binaries are looked for beside the test's own executable; `ops/test` builds them first. A test database server is
//! named by `STEADFAST_TEST_PG` (and `STEADFAST_TEST_PG15` for one without pgvector), which `ops/test` sets too.

pub mod harness;
pub mod mail;
pub mod provider;
pub mod smtp;
