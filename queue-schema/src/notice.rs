//! One message to one person about one incident, in two parts: that work is held, and how it ended. The words stand here and nowhere
//! else, one wording per capability: three wordings would read as three promises (requirement P26).

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::FromRow;

use crate::job::{self, NewJob};
use crate::outcome::RetryClass;
use crate::{Conn, Db, DbError, JobKind};

/// What is said about a capability. Sentences for a person, in the person's terms.
#[derive(Clone, Copy, Debug)]
pub struct Wording {
    /// What is paused.
    pub paused: &'static str,
    /// Subject of the opening part.
    pub paused_subject: &'static str,
    /// What has come through.
    pub landed: &'static str,
    /// Subject of the closing part where all is well.
    pub landed_subject: &'static str,
}

/// Which edition of the words below a notice was made with; +1 with every change of them.
pub const VERSION: i16 = 1;

const SAFE: &str = "Everything you hand in is stored safely and will be finished by itself as soon as it is back.";
const PROMISE: &str = "You will get an email when it is done.";

/// The catalogue.
#[must_use]
pub fn wording(capability: &str) -> Wording {
    match capability {
        "ocr" => Wording {
            paused: "Reading scanned pages is paused for now.",
            paused_subject: "Reading scanned pages is paused; your documents are safe",
            landed: "Your scanned pages have been read. They are where you put them and can be searched.",
            landed_subject: "Your scanned pages have been read",
        },
        "embedding" => Wording {
            paused: "Searching by meaning is paused for now; searching by words works.",
            paused_subject: "Searching by meaning is paused; your documents are safe",
            landed: "Everything you handed in can be searched by meaning again.",
            landed_subject: "Searching by meaning is back",
        },
        _ => Wording {
            paused: "A part of the processing is paused for now.",
            paused_subject: "A part of the processing is paused; your documents are safe",
            landed: "Everything you handed in has been processed.",
            landed_subject: "Your documents have been processed",
        },
    }
}

/// The sentence for a stopped capability, in answers and in mails alike. The mail is promised only to who has an address.
#[must_use]
pub fn sentence(capability: &str, has_address: bool) -> String {
    let paused = wording(capability).paused;
    if has_address {
        format!("{paused} {SAFE} {PROMISE}")
    } else {
        format!("{paused} {SAFE}")
    }
}

/// Which part of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Opening,
    Closing,
}

/// Work of this person's was just made that a closed breaker holds: the transaction that made it makes the notice too, if there is an
/// open incident and none yet (decision B24).
pub(crate) async fn of_held(conn: &mut Conn, capability: &str, tenant_id: i64, user_id: i64) -> Result<(), DbError> {
    sqlx::query(sql!("notice/of_held"))
        .bind(capability)
        .bind(tenant_id)
        .bind(user_id)
        .bind(VERSION)
        .execute(conn)
        .await
        .map(|_| ())
}

/// Makes jobs of parts that are due and have none, in the pulse of a worker that can send. A house without a mail server makes none:
/// its notices wait as rows, and the queue is not filled with work that nobody can do. Says whether there are any.
///
/// # Errors
/// When the transaction did not commit; the next look does it.
pub async fn enqueue_due(db: &Db) -> Result<bool, DbError> {
    let mut tx = db.begin().await?;
    let due: Vec<(i64, i64, i32)> = sqlx::query_as(sql!("notice/due")).fetch_all(&mut *tx).await?;
    for (id, tenant_id, version) in &due {
        let job = NewJob {
            item_id: Some(*id),
            item_version: *version,
            ..NewJob::new(JobKind::Notice, *tenant_id)
        };
        job::enqueue(&mut tx, &job).await?;
    }
    tx.commit().await?;
    Ok(!due.is_empty())
}

/// How many people one step of a fan-out tells.
const FAN: i64 = 500;

/// One step of a fan-out: notices for people with work behind the breaker who have none yet. 0: all are told.
///
/// # Errors
/// When the statement did not run; the next attempt goes on where it stopped.
pub async fn fan_out(db: &Db, incident_id: i64) -> Result<u64, DbError> {
    let made = sqlx::query(sql!("notice/fan_out"))
        .bind(incident_id)
        .bind(FAN)
        .bind(VERSION)
        .execute(&db.pool)
        .await?;
    Ok(made.rows_affected())
}

/// What the handler reads before it sends.
#[derive(Clone, Debug, FromRow)]
pub struct Input {
    pub id: i64,
    pub incident_id: i64,
    pub capability: String,
    pub opened_at: DateTime<Utc>,
    pub user_id: i64,
    pub email: Option<String>,
    pub opening: String,
    pub closing: Option<String>,
    pub closing_wording: Option<String>,
    pub round: i32,
}

/// None: the incident or the person is gone.
///
/// # Errors
/// When the database does not answer.
pub async fn input(db: &Db, id: i64) -> Result<Option<Input>, DbError> {
    sqlx::query_as(sql!("notice/input")).bind(id).fetch_optional(&db.pool).await
}

/// A piece of this person's that did not come through.
#[derive(Clone, Debug, FromRow)]
pub struct Unfinished {
    pub title: String,
    pub job_id: i64,
    pub class: Option<String>,
}

/// How many of them a mail names.
pub const NAMED: i64 = 20;

/// # Errors
/// When the database does not answer.
pub async fn unfinished(db: &Db, n: &Input) -> Result<Vec<Unfinished>, DbError> {
    sqlx::query_as(sql!("notice/unfinished"))
        .bind(n.user_id)
        .bind(&n.capability)
        .bind(i64::MAX)
        .bind(n.opened_at)
        .bind(NAMED)
        .fetch_all(&db.pool)
        .await
}

/// Subject and body of a part. `replay` is where a person may try a job again, with `{id}` in place of its number.
#[must_use]
pub fn compose(n: &Input, part: Part, unfinished: &[Unfinished], replay: Option<&str>) -> (String, String) {
    let w = wording(&n.capability);
    match (part, n.closing_wording.as_deref()) {
        (Part::Opening, _) => (w.paused_subject.to_owned(), format!("{}\n", sentence(&n.capability, true))),
        (Part::Closing, Some("needs_attention")) => {
            let mut body =
                "The pause is over, but some of what you handed in did not come through and needs your attention:\n\n".to_owned();
            for u in unfinished {
                let why = u.class.as_deref().and_then(RetryClass::parse).unwrap_or(RetryClass::ItemError);
                body.push_str(&format!("- {} (job {}): {}\n", one_line(&u.title), u.job_id, why.sentence()));
                if let Some(replay) = replay {
                    body.push_str(&format!("  To try it again: {}\n", replay.replace("{id}", &u.job_id.to_string())));
                }
            }
            if unfinished.is_empty() {
                body.push_str("- what it was has been removed in the meantime\n");
            }
            body.push_str("\nNothing of it was deleted. Everything else has come through.\n");
            ("Some of your documents need your attention".to_owned(), body)
        }
        (Part::Closing, _) => (w.landed_subject.to_owned(), format!("{}\n", w.landed)),
    }
}

/// A title in a mail: one line, and not for ever.
fn one_line(title: &str) -> String {
    title.chars().map(|c| if c.is_control() { ' ' } else { c }).take(120).collect()
}

/// Marks a part as on its way. False: it was not due, or somebody has begun, or its round is over.
///
/// # Errors
/// When the database does not answer: then nothing may be sent.
pub async fn begin(db: &Db, id: i64, part: Part, round: i32) -> Result<bool, DbError> {
    let begun: Option<i64> = sqlx::query_scalar(sql!("notice/begin"))
        .bind(id)
        .bind(part == Part::Opening)
        .bind(round)
        .fetch_optional(&db.pool)
        .await?;
    Ok(begun.is_some())
}

/// Nothing was sent for certain: due again, if it is still wanted.
///
/// # Errors
/// When the database does not answer; then the part is found `sending` and becomes `unknown`, which errs on the calm side.
pub async fn back(db: &Db, id: i64, part: Part, round: i32, error: &str) -> Result<(), DbError> {
    sqlx::query(sql!("notice/back"))
        .bind(id)
        .bind(part == Part::Opening)
        .bind(error)
        .bind(round)
        .execute(&db.pool)
        .await
        .map(|_| ())
}

/// Ends the part that its job gave up on.
pub(crate) async fn failed(conn: &mut Conn, id: i64) -> Result<(), DbError> {
    sqlx::query(sql!("notice/failed")).bind(id).execute(conn).await.map(|_| ())
}

/// Makes the part that failed, or that may or may not have arrived, due again, by an operator's word. A job that gave up on it goes on;
/// where there is none, the pulse of a worker that sends makes one. False: nothing of it is to be sent again.
///
/// # Errors
/// When the database does not answer.
pub async fn resend(conn: &mut Conn, id: i64, actor: &str, reason: &str) -> Result<bool, DbError> {
    let again: Option<i64> = sqlx::query_scalar(sql!("notice/reopen"))
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?;
    if again.is_none() {
        return Ok(false);
    }
    let gave_up: Vec<i64> = sqlx::query_scalar(sql!("notice/dead_job")).bind(id).fetch_all(&mut *conn).await?;
    job::retry(&mut *conn, &gave_up, actor, reason, true).await?;
    Ok(true)
}

/// A notice as an operator sees it. No address: who may read it asks the users table.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct NoticeRow {
    pub id: i64,
    pub incident_id: i64,
    pub tenant_id: i64,
    pub user_id: i64,
    pub user_name: String,
    pub has_address: bool,
    pub opening: String,
    pub opening_at: Option<DateTime<Utc>>,
    pub closing: Option<String>,
    pub closing_wording: Option<String>,
    pub closing_at: Option<DateTime<Utc>>,
    pub round: i32,
    pub error: Option<String>,
    pub created_at: DateTime<Utc>,
}

/// # Errors
/// When the database does not answer.
pub async fn list(db: &Db, incident_id: i64, limit: i64) -> Result<Vec<NoticeRow>, DbError> {
    let all: Vec<NoticeRow> = sqlx::query_as(sql!("notice/list"))
        .bind(incident_id)
        .bind(limit)
        .fetch_all(&db.pool)
        .await?;
    Ok(all.into_iter().map(NoticeRow::without_addresses).collect())
}

impl NoticeRow {
    fn without_addresses(mut self) -> Self {
        self.error = self.error.map(|e| without_addresses(&e));
        self
    }
}

/// A mail server's words without the addresses that it likes to repeat.
fn without_addresses(text: &str) -> String {
    let words: Vec<&str> = text
        .split_whitespace()
        .map(|w| if w.contains('@') { "(address)" } else { w })
        .collect();
    words.join(" ")
}

/// # Errors
/// When the database does not answer.
pub async fn find(db: &Db, id: i64) -> Result<Option<NoticeRow>, DbError> {
    let found: Option<NoticeRow> = sqlx::query_as(sql!("notice/find")).bind(id).fetch_optional(&db.pool).await?;
    Ok(found.map(NoticeRow::without_addresses))
}

/// Notices by what became of them. All but `due` are of incidents that are open or closed less than a week ago.
#[derive(Clone, Debug, Default, FromRow, Serialize)]
pub struct Counts {
    /// Wait to be sent.
    pub due: i64,
    /// May or may not have arrived.
    pub unknown: i64,
    /// The mail server will not take them.
    pub failed: i64,
    /// Nobody can be told.
    pub no_address: i64,
    /// Why one of those that are due was not sent yet; sanitised.
    pub last_error: Option<String>,
    /// Some of the incidents that have unknown or failed ones.
    pub incidents: Vec<i64>,
}

/// # Errors
/// When the database does not answer.
pub async fn counts(db: &Db) -> Result<Counts, DbError> {
    let mut counts: Counts = sqlx::query_as(sql!("notice/counts")).fetch_one(&db.pool).await?;
    counts.last_error = counts.last_error.map(|e| without_addresses(&e));
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p26_one_wording_per_capability_says_what_that_it_is_safe_and_that_a_mail_comes() {
        for c in ["ocr", "embedding", "something new"] {
            let n = sentence(c, true);
            assert!(n.contains("paused") && n.contains("stored safely") && n.contains("email"), "{n}");
            assert!(n.starts_with(&sentence(c, false)), "the same words, with and without the promise");
            assert!(!sentence(c, false).contains("email"), "no promise that cannot be kept");
        }
        assert_ne!(sentence("ocr", true), sentence("embedding", true));
    }

    #[test]
    fn no_address_is_shown_whatever_the_server_said() {
        assert_eq!(
            without_addresses("RCPT TO: the server said 550 5.1.1 <anna@example.net>: user unknown"),
            "RCPT TO: the server said 550 5.1.1 (address) user unknown"
        );
    }

    #[test]
    fn b26_what_did_not_come_through_is_named() {
        let n = Input {
            id: 1,
            incident_id: 7,
            capability: "ocr".into(),
            opened_at: DateTime::UNIX_EPOCH,
            user_id: 3,
            email: None,
            opening: "sent".into(),
            closing: Some("due".into()),
            closing_wording: Some("needs_attention".into()),
            round: 1,
        };
        let lost = [Unfinished {
            title: "lease\nX-Header: no".into(),
            job_id: 42,
            class: Some("place_gone".into()),
        }];
        let (subject, body) = compose(&n, Part::Closing, &lost, Some("https://example.org/replay/{id}"));
        assert!(subject.contains("attention"));
        assert!(
            body.contains("lease X-Header: no (job 42)") && body.contains("place") && body.contains("/replay/42"),
            "{body}"
        );
        assert_ne!(compose(&n, Part::Opening, &[], None).0, subject);
    }
}
