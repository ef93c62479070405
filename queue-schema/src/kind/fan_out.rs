//! `fan_out`: an incident's number in; a notice for everybody with work behind its breaker out, insert or ignore. What it writes is in
//! `queue_schema::notice`.
