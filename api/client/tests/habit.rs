//! The warnings themselves. Each `expect` here is an error of this file when its lint does not fire, so none of the guards can
//! get lost unseen; the doctests in `lib.rs` show the same to a reader, but could fail for any reason.
#![deny(unfulfilled_lint_expectations)]

use steadfast_client::{Reading, SearchAnswer};

fn answer(degraded: bool) -> SearchAnswer {
    let hit = r#"{"memory":{"id":"1","title":"t","content":"c","createdAt":"2026-01-01T00:00:00Z","updatedAt":"2026-01-01T00:00:00Z"},
        "score":1,"documentId":"2","page":1,"snippet":"c"}"#;
    let json = format!(
        r#"{{"results":[{hit}],"query":"q","pagination":{{"limit":10,"nextCursor":"more"}},
            "diagnostics":{{"degraded":{degraded},"notice":null,"reasons":[{{"code":"outage"}}]}}}}"#
    );
    serde_json::from_str(&json).expect("an answer")
}

#[test]
fn the_shortcut_warns() {
    #[expect(deprecated)]
    let hits = answer(true).hits_unchecked();
    assert_eq!(hits.len(), 1);
}

#[test]
fn an_answer_that_is_not_opened_warns() {
    #[expect(unused_must_use)]
    {
        answer(true);
    }
    #[expect(unused_must_use)]
    {
        answer(true).read();
    }
    #[expect(unused_must_use)]
    {
        answer(true).tell(|_| ());
    }
}

#[test]
fn diagnostics_that_are_not_looked_at_warn() {
    #[expect(unused_variables)]
    let hits = match answer(true).read() {
        Reading::Whole(hits) => hits,
        Reading::Degraded(hits, why) => hits,
    };
    assert_eq!(hits.len(), 1);
}

#[test]
fn both_ways_in_tell_of_a_degraded_answer_and_only_of_that() {
    let mut told = Vec::new();
    assert_eq!(answer(false).tell(|why| told.push(why.sentence())).len(), 1);
    assert!(told.is_empty());
    assert_eq!(answer(true).tell(|why| told.push(why.sentence())).len(), 1);
    assert!(matches!(&told[..], [one] if one.contains("by words alone")), "{told:?}");

    assert!(matches!(answer(false).read(), Reading::Whole(hits) if hits.len() == 1));
    let answer = answer(true);
    assert_eq!((answer.query(), answer.next_cursor()), ("q", Some("more")));
    assert!(matches!(answer.read(), Reading::Degraded(hits, why) if hits.len() == 1 && why.degraded));
}
