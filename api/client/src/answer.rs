//! An answer and how whole it is, which are not to be had apart.

use serde::Deserialize;

use crate::{Hit, Pagination, Passage};

/// What [`crate::Client::search`] found.
pub type SearchAnswer = Answer<Hit>;
/// What [`crate::Client::transcript_search`] found.
pub type TranscriptAnswer = Answer<Passage>;

/// An answer, still closed: [`Answer::read`] or [`Answer::tell`] open it.
#[derive(Clone, Debug, Deserialize)]
#[must_use = "an answer that is not read was asked for in vain: `read` or `tell` open it"]
pub struct Answer<H> {
    results: Vec<H>,
    // No default on purpose: an answer that does not say how whole it is must not be taken for a whole one.
    diagnostics: Diagnostics,
    query: String,
    pagination: Option<Pagination>,
}

/// An opened answer. A `match` names both, and a name given to the diagnostics must be used.
#[derive(Clone, Debug)]
#[must_use = "what was found, and whether it is all there is: `match` on it"]
pub enum Reading<H> {
    /// Everything that could be looked at was.
    Whole(Vec<H>),
    /// Something could not be looked at: there may be more and better results than these. [`Diagnostics::sentence`] says
    /// it to a person.
    Degraded(Vec<H>, Diagnostics),
}

impl<H> Answer<H> {
    /// Opens it.
    pub fn read(self) -> Reading<H> {
        if self.diagnostics.degraded {
            Reading::Degraded(self.results, self.diagnostics)
        } else {
            Reading::Whole(self.results)
        }
    }

    /// The results, after `tell` was told why they are not all; it is not called for a whole answer.
    ///
    /// For callers that show both kinds in the same way, with a line above the degraded one.
    #[must_use = "the results"]
    pub fn tell(self, tell: impl FnOnce(&Diagnostics)) -> Vec<H> {
        if self.diagnostics.degraded {
            tell(&self.diagnostics);
        }
        self.results
    }

    /// The results, whole or not.
    #[must_use = "the results"]
    #[deprecated(note = "a degraded answer looks like a whole one through this: `match answer.read()`, or `answer.tell(…)`")]
    pub fn hits_unchecked(self) -> Vec<H> {
        self.results
    }

    /// How it came about; also of a whole answer: what was done, how long it took, what is on its way.
    #[must_use]
    pub fn diagnostics(&self) -> &Diagnostics {
        &self.diagnostics
    }

    /// The question as the server understood it.
    #[must_use]
    pub fn query(&self) -> &str {
        &self.query
    }

    /// Where the list goes on; a list has ended only when there is none, not when a page is empty.
    #[must_use]
    pub fn next_cursor(&self) -> Option<&str> {
        self.pagination.as_ref()?.next_cursor.as_deref()
    }
}

/// How whole an answer is.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Diagnostics {
    /// Something that should have been looked at was not.
    pub degraded: bool,
    /// A sentence for a person, where something was stopped on purpose. [`Diagnostics::sentence`] has one in every case.
    #[serde(default)]
    pub notice: Option<String>,
    /// For programs: why, and about how much.
    #[serde(default)]
    pub reasons: Vec<Reason>,
    /// Capabilities that the answer had to do without, like `embedding`.
    #[serde(default)]
    pub unavailable: Vec<String>,
    /// What was done, in order, in words.
    #[serde(default)]
    pub steps: Vec<String>,
    #[serde(default)]
    pub took_ms: u64,
    /// Items saved a moment ago and on their way: no reason to worry.
    #[serde(default)]
    pub pending: i64,
}

/// One reason why an answer is not whole.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Reason {
    /// A stable word, like `stopped`, `held` or `behind`.
    pub code: String,
    /// Items concerned, where it is about items. Counting stops at 10,000.
    #[serde(default)]
    pub count: Option<i64>,
    /// Since when the oldest of them waits, in seconds.
    #[serde(default)]
    pub oldest_seconds: Option<i64>,
}

impl Diagnostics {
    /// What to show a person above a degraded answer: the operator's notice, else a fixed sentence for each reason. Empty
    /// for a whole one.
    #[must_use]
    pub fn sentence(&self) -> String {
        if !self.degraded {
            return String::new();
        }
        if let Some(notice) = self.notice.as_deref().map(str::trim).filter(|n| !n.is_empty()) {
            return notice.to_owned();
        }
        let mut said: Vec<&str> = Vec::new();
        for reason in &self.reasons {
            let sentence = sentence_for(&reason.code);
            if !said.contains(&sentence) {
                said.push(sentence);
            }
        }
        if said.is_empty() {
            said.push(UNKNOWN);
        }
        said.join(" ")
    }
}

/// For a reason that this version does not know: less than the truth, and nothing but.
const UNKNOWN: &str = "This answer may not be whole.";

/// One wording per reason. The TypeScript client has the same ones; a test below compares them.
const SENTENCES: &[(&str, &str)] = &[
    (
        "stopped",
        "Searching by meaning is paused for now; this answer is by words alone. Everything you handed in is stored safely.",
    ),
    (
        "held",
        "Some of what you handed in waits for something that is paused; it is stored safely and will be finished by itself.",
    ),
    (
        "behind",
        "Some of what you handed in is still being worked on; it will be found later.",
    ),
    (
        "dead",
        "Some of what you handed in could not be finished; it is stored safely, and an operator can have it tried again.",
    ),
    (
        "parked",
        "Some of what you handed in was set aside for an operator to look at; it is stored safely.",
    ),
    (
        "reindexing",
        "Some of what you handed in is being indexed anew; until that is done it is found by its words alone.",
    ),
    (
        "outage",
        "Searching by meaning gets no answer just now; this answer is by words alone.",
    ),
    (
        "no_worker",
        "Nobody is at work to search by meaning just now; this answer is by words alone.",
    ),
    (
        "no_endpoint",
        "Searching by meaning is not set up here; this answer is by words alone.",
    ),
    (
        "rate_limited",
        "Searching by meaning is in too great demand just now; this answer is by words alone.",
    ),
    (
        "semantic_failed",
        "Searching by meaning did not work just now; this answer is by words alone.",
    ),
    (
        "keyword_failed",
        "Searching by words did not work just now; this answer is by meaning alone.",
    ),
    ("diagnostics_failed", "How whole this answer is could not be told just now."),
];

/// All reasons that begin with `question_`: the question itself got no vector.
const QUESTION: &str = "The question could not be searched by meaning in time; this answer is by words alone.";

fn sentence_for(code: &str) -> &'static str {
    match SENTENCES.iter().find(|(known, _)| *known == code) {
        Some((_, sentence)) => sentence,
        None if code.starts_with("question_") => QUESTION,
        None => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnostics(json: &str) -> Diagnostics {
        serde_json::from_str(json).expect("diagnostics")
    }

    #[test]
    fn the_notice_is_the_sentence() {
        let d = diagnostics(r#"{"degraded":true,"notice":"Paused. It is safe.","reasons":[{"code":"stopped"}]}"#);
        assert_eq!(d.sentence(), "Paused. It is safe.");
    }

    #[test]
    fn without_a_notice_each_reason_has_its_sentence_once() {
        let d = diagnostics(
            r#"{"degraded":true,"notice":" ","reasons":[{"code":"question_timeout"},{"code":"question_embed_busy"},{"code":"dead","count":2}]}"#,
        );
        let dead = sentence_for("dead");
        assert_eq!(d.sentence(), format!("{QUESTION} {dead}"));
        assert_eq!(diagnostics(r#"{"degraded":true,"reasons":[{"code":"news"}]}"#).sentence(), UNKNOWN);
        assert_eq!(
            diagnostics(r#"{"degraded":true}"#).sentence(),
            UNKNOWN,
            "never nothing about a degraded answer"
        );
        assert_eq!(diagnostics(r#"{"degraded":false,"reasons":[]}"#).sentence(), "");
    }

    #[test]
    fn both_clients_say_the_same() {
        let theirs = include_str!("../../client-ts/src/sentences.ts");
        for (code, sentence) in SENTENCES {
            let line = format!("\n  {code}: \"{sentence}\",\n");
            assert!(theirs.contains(&line), "api/client-ts/src/sentences.ts lacks: {line}");
        }
        for (name, sentence) in [("QUESTION", QUESTION), ("UNKNOWN", UNKNOWN)] {
            assert!(theirs.contains(&format!("export const {name} = \"{sentence}\";")), "{name} differs");
        }
        assert_eq!(theirs.matches(".\",\n").count(), SENTENCES.len(), "it has some that are not here");
    }

    #[test]
    fn what_is_new_in_the_diagnostics_is_passed_over_and_what_is_missing_is_not() {
        let answer = |diagnostics: &str| {
            let json = format!(r#"{{"results":[],"query":"q","pagination":{{"limit":10}},"news":1,"diagnostics":{diagnostics}}}"#);
            serde_json::from_str::<SearchAnswer>(&json)
        };
        let new = answer(r#"{"degraded":true,"incident":{"id":7},"reasons":[{"code":"held","count":3,"oldestSeconds":9,"since":"now"}]}"#);
        match new.expect("tolerated").read() {
            Reading::Degraded(_, d) => assert_eq!((d.reasons[0].count, d.reasons[0].oldest_seconds), (Some(3), Some(9))),
            Reading::Whole(_) => panic!("degraded it is"),
        }
        assert!(answer("{}").is_err(), "it does not say how whole it is");
        assert!(serde_json::from_str::<SearchAnswer>(r#"{"results":[],"query":"q"}"#).is_err());
    }
}
