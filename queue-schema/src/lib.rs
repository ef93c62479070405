//! The nouns, and every SQL statement that touches them.
//!
//! A statement is one file, `sql/<noun>/<verb>.sql`, called by `<noun>::<verb>` here: one name, three places. Nothing
//! outside this crate can write SQL, because nothing outside it (but the migrations and the tests) depends on sqlx.

/// The text of `sql/<noun>/<verb>.sql`. `include_str!` makes rustc watch the file, so an edit is never missed by a
/// stale build; a test prepares every file against the migrated schema, which is the check that sqlx's macros would do,
/// without a database at compile time (docs/decisions/0003).
macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $name, ".sql"))
    };
}

pub mod blob;
pub mod capability;
pub mod claim;
pub mod db;
pub mod diagnostics;
pub mod document;
pub mod endpoint;
pub mod hint;
pub mod incident;
pub mod job;
pub mod kind;
pub mod lane;
pub mod notice;
pub mod outcome;
pub mod question;
pub mod retention;
pub mod retry;
pub mod schedule;
pub mod search;
pub mod tenant;
pub mod worker;

pub use db::{Conn, Db, DbError, Role, Tx};
pub use kind::JobKind;
pub use lane::Lane;
