//! The client crate as its users have it: against the shipped binaries, and as the example that people start from.

use std::collections::BTreeSet;
use std::time::Duration;

use steadfast_client::{
    Client, DocumentStatus, Documents, ErrorCode, Hit, JobStatus, Jobs, Paging, Reading, Remember, Replay, Retries, Search, SearchAnswer,
    TransportKind, Upload,
};
use steadfast_tests::harness::{Api, Db, Fleet, Opts, Output, Person, wait_until};
use steadfast_tests::provider::{Fixture, Provider, Rule};

const NOTE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/samples/note.txt");
const SOON: Duration = Duration::from_secs(30);

struct Stage {
    db: Db,
    provider: Provider,
    fleet: Fleet,
    api: Api,
    ann: Person,
}

impl Stage {
    async fn set() -> Self {
        let db = Db::new().await;
        let provider = Provider::start();
        db.openai_endpoint("vectors", &provider, 384).await;
        db.exec("update endpoints set enabled = false where protocol = 'minilm'").await;
        let fleet = Fleet::new(&db);
        let api = fleet.api().await;
        let ann = db.person("ann").await;
        Self {
            db,
            provider,
            fleet,
            api,
            ann,
        }
    }

    fn client(&self) -> Client {
        Client::new(&self.api.base, &self.ann.token).expect("loopback needs no TLS")
    }

    fn space(&self) -> String {
        self.ann.space_id.to_string()
    }

    async fn breaker(&self, to: &str) {
        let mut args = vec!["breaker", to, "embedding", "--reason", "key rotated"];
        if to == "off" {
            args.push("--yes");
        }
        let said = self.fleet.run("steadfast", &args, Opts::new()).await;
        assert_eq!(said.code, Some(0), "{said}");
    }

    async fn all_embedded(&self) {
        wait_until("every piece has its vector", SOON, async || {
            let left: i64 = self.db.one("select count(*) from blocks where embedding is null").await;
            if left == 0 { Ok(()) } else { Err(left) }
        })
        .await;
    }

    async fn example(&self, args: &[&str]) -> Output {
        let opts = Opts::new()
            .env("STEADFAST_URL", &self.api.base)
            .env("STEADFAST_TOKEN", &self.ann.token)
            // Nobody is there: a client that goes through it, although it talks to its own machine, finds nothing.
            .env("http_proxy", "http://127.0.0.1:9");
        self.fleet.run("examples/find", args, opts).await
    }
}

fn whole(answer: SearchAnswer) -> Vec<Hit> {
    match answer.read() {
        Reading::Whole(hits) => hits,
        Reading::Degraded(_, why) => panic!("it should be whole: {why:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p23_client_a_degraded_answer_cannot_be_taken_for_a_whole_one() {
    let s = Stage::set().await;
    let _worker = s.fleet.worker().await;
    let client = s.client();
    client.live().await.expect("it lives");
    client.ready().await.expect("it can serve");

    let accepted = client.upload(&Upload::file(NOTE, s.space())).await.expect("taken");
    let mut looks = 0;
    let job = client.wait_for_job(&accepted.job_id, |_| looks += 1).await.expect("an answer");
    assert_eq!(job.status, JobStatus::Completed, "{job:?}");
    assert!(looks > 0 && job.subject_id.as_ref() == Some(&accepted.document_id));
    let indexed = tokio::time::timeout(SOON, client.wait_for_document(&accepted.document_id, |_| ())).await;
    let indexed = indexed.expect("in time").expect("an answer");
    assert!(
        indexed.status == DocumentStatus::Processed && indexed.memory_count > 0,
        "{indexed:?}"
    );
    assert_eq!(s.db.one::<i64>("select count(*) from blocks where embedding is null").await, 0);
    let question = "which coffee machine leaks";
    let hits = whole(client.search(question).await.expect("an answer"));
    assert!(hits.iter().any(|h| h.document_id == accepted.document_id), "{hits:?}");
    let paths: BTreeSet<&str> = hits.iter().flat_map(|h| &h.explanation.paths).map(String::as_str).collect();
    assert!(paths.contains("vector"), "{hits:?}");
    let whole_of_transcript = client.transcript_search(question).await.expect("an answer").read();
    assert!(matches!(whole_of_transcript, Reading::Whole(passages) if passages.is_empty()));

    s.breaker("off").await;
    let answer = client
        .search(Search::new(question).space(s.space()).limit(3))
        .await
        .expect("still an answer");
    let notice = answer.diagnostics().notice.clone().expect("it was stopped on purpose");
    assert!(notice.contains("stored safely"), "{notice}");
    match answer.read() {
        Reading::Degraded(hits, why) => {
            assert_eq!(why.sentence(), notice);
            assert!(why.unavailable.iter().any(|u| u == "embedding"), "{why:?}");
            assert!(hits.iter().all(|h| h.explanation.paths == ["keyword"]), "{hits:?}");
        }
        Reading::Whole(hits) => panic!("taken for a whole one: {hits:?}"),
    }
    // Not waited out three times over, as a person's client would.
    let hasty = Client::builder(&s.api.base, &s.ann.token).retries(Retries::none()).build();
    let hasty = hasty.expect("loopback needs no TLS");
    let refusals = [
        hasty.search(Search::new(question).require_semantic()).await.map(drop),
        hasty.transcript_search(question).await.map(drop),
    ];
    for refused in refusals {
        let e = refused.expect_err("nothing can match now");
        assert_eq!(e.code(), Some(&ErrorCode::SemanticUnavailable), "{e}");
    }

    s.breaker("on").await;
    assert!(!whole(client.search(question).await.expect("an answer")).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn p31_p32_client_every_route_works_through_it() {
    let s = Stage::set().await;
    s.provider.rule(Rule::text("POISON").then(Fixture::PayloadTooLarge));
    let client = s.client();
    let spaces = client.spaces().await.expect("a list");
    assert!(
        spaces.data.iter().any(|space| space.id == s.space()) && spaces.next_cursor().is_none(),
        "{spaces:?}"
    );

    // The same key again is the same document; with another text it is a mistake.
    let note = |text: &str| {
        Remember::new(text, s.space())
            .title("Tea")
            .conversation("kitchen")
            .idempotency_key("tea-1")
    };
    let first = client.remember(&note("green tea")).await.expect("taken");
    let again = client.remember(&note("green tea")).await.expect("taken before");
    assert_eq!((&first.job_id, &first.document_id), (&again.job_id, &again.document_id));
    let e = client.remember(&note("black tea")).await.expect_err("another request");
    assert_eq!(e.code(), Some(&ErrorCode::IdempotencyMismatch), "{e}");
    let e = client.remember(&Remember::new("tea", "no such Space")).await.expect_err("refused");
    assert!(e.code() == Some(&ErrorCode::NotFound) && !e.is_transient(), "{e}");

    let _worker = s.fleet.worker().await;
    let poison = client
        .upload(&Upload::bytes("a POISON apple", "apple.txt", s.space()))
        .await
        .expect("taken");
    client.wait_for_job(&first.job_id, |_| ()).await.expect("over");
    client.wait_for_job(&poison.job_id, |_| ()).await.expect("over");
    let said = client.transcript_search("tea").await.expect("an answer").tell(|_| ());
    assert!(said.iter().any(|p| p.conversation_id == "kitchen"), "{said:?}");

    let dead = wait_until("the poison is given up", SOON, async || {
        let page = client.dead_jobs(&Paging::default().limit(5)).await.map_err(|e| e.to_string())?;
        page.data.into_iter().next().ok_or_else(|| "none yet".to_owned())
    })
    .await;
    assert_eq!(
        (dead.root_id.as_ref(), dead.kind.as_str()),
        (Some(&poison.job_id), "embed"),
        "{dead:?}"
    );
    match client.search("apple").await.expect("an answer").read() {
        Reading::Degraded(hits, why) => {
            assert!(hits.iter().any(|h| h.memory.content.contains("POISON")), "{hits:?}");
            assert!(!why.sentence().is_empty() && why.notice.is_none(), "{why:?}");
        }
        Reading::Whole(hits) => panic!("a piece of it is not indexed: {hits:?}"),
    }
    s.provider.clear_rules();
    assert!(!dead.retryable, "{dead:?}");
    let e = client
        .replay(&dead.id, &Replay::because("let us see"))
        .await
        .expect_err("it needs force");
    assert_eq!(e.code(), Some(&ErrorCode::Conflict), "{e}");
    let replayed = client
        .replay(&dead.id, &Replay::because("the rule is gone").force())
        .await
        .expect("queued");
    assert_eq!(replayed.job_ids, std::slice::from_ref(&dead.id));
    s.all_embedded().await;
    whole(client.search("apple").await.expect("an answer"));

    let jobs = client
        .jobs(&Jobs::default().status(JobStatus::Completed).page(Paging::default().limit(1)))
        .await
        .expect("a list");
    let next = jobs.next_cursor().expect("there are two");
    let rest = client
        .jobs(&Jobs::default().page(Paging::default().cursor(next)))
        .await
        .expect("a list");
    assert!(rest.data.iter().any(|j| j.id == first.job_id), "{rest:?}");
    let documents = client
        .documents(&Documents::default().status(DocumentStatus::Processed))
        .await
        .expect("a list");
    assert_eq!(documents.data.len(), 2, "{documents:?}");
    let tea = client.document(&first.document_id).await.expect("it is there");
    assert_eq!(
        (tea.title.as_str(), tea.conversation_id.as_deref(), tea.mine),
        ("Tea", Some("kitchen"), true)
    );
    client.delete_document(&first.document_id).await.expect("gone");
    for gone in [
        client.document(&first.document_id).await.map(drop),
        client.delete_document(&first.document_id).await,
        client.job("999999999").await.map(drop),
    ] {
        assert_eq!(gone.expect_err("not there").code(), Some(&ErrorCode::NotFound));
    }
    assert!(client.metrics().await.expect("numbers").contains("steadfast_jobs"));

    let stranger = Client::new(&s.api.base, "sf_hunter2").expect("a client");
    let e = stranger.search("tea").await.expect_err("nobody knows it");
    assert_eq!(e.code(), Some(&ErrorCode::Unauthorized));
    assert!(!format!("{e} {e:?} {stranger:?}").contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn client_the_example_hands_in_finds_and_says_calmly_what_is_missing() {
    let mut s = Stage::set().await;
    let worker = s.fleet.worker().await;
    let question = ["which", "coffee", "machine", "leaks"];
    let out = s.example(&[&["--file", NOTE][..], &question].concat()).await;
    assert_eq!(out.code, Some(0), "{out}");
    assert!(
        out.stderr.contains(": completed 100 %") && out.stdout.contains("1. note.txt"),
        "{out}"
    );
    assert!(!out.stdout.contains("paused"), "{out}");
    assert_eq!(
        s.db.one::<i64>("select count(*) from blocks where embedding is null").await,
        0,
        "it waited for that"
    );

    s.breaker("off").await;
    let out = s.example(&question).await;
    assert_eq!(out.code, Some(0), "{out}");
    assert!(out.stdout.contains("1. note.txt") && out.stdout.contains("stored safely"), "{out}");
    assert!(out.stderr.is_empty(), "nothing to be alarmed about: {out}");
    drop(worker);

    s.api.process.kill9().await;
    let out = s.example(&question).await;
    assert_eq!(out.code, Some(1), "{out}");
    assert!(
        out.stderr.contains(&TransportKind::Connect.to_string()) && out.stderr.contains(&s.api.base),
        "{out}"
    );
    assert!(!out.stderr.contains(&s.ann.token), "{out}");
    let out = s.fleet.run("examples/find", &question, Opts::new()).await;
    assert!(out.code == Some(1) && out.stderr.contains("STEADFAST_URL is not set"), "{out}");
}
