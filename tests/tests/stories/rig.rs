//! The rig itself: a story is worth no more than the tools it is told with.

use std::time::Duration;

use serde_json::json;
use sqlx::Connection as _;
use steadfast_tests::harness::{Client, Db, Fleet, Opts, wait_until};

fn state_of(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[tokio::test]
async fn rig_a_database_has_its_roles_and_goes_with_its_story() {
    let db = Db::new().await;
    let ann = db.person("ann").await;
    let bob = db.person_of("other", "bob").await;
    assert!(ann.tenant_id != bob.tenant_id && ann.token.len() == 46, "{ann:?} {bob:?}");
    let seen: bool = db
        .one(&format!("select exists (select from authenticate(sha256('{}'::bytea)))", ann.token))
        .await;
    assert!(seen, "the token opens the one door");

    for (role, sees) in [("steadfast_worker", 2_i64), ("steadfast_api", 0)] {
        let mut conn = sqlx::PgConnection::connect(&db.url_for(role))
            .await
            .expect("a connection in a role");
        let (me, users): (String, i64) = sqlx::query_as("select current_user::text, (select count(*) from users)")
            .fetch_one(&mut conn)
            .await
            .expect("an answer");
        assert_eq!((me.as_str(), users), (role, sees), "without a tenant the API's role sees nobody");
    }

    let (server, name) = (
        std::env::var("STEADFAST_TEST_PG").expect("it was there before"),
        db.one::<String>("select current_database()::text").await,
    );
    drop(db);
    let mut conn = sqlx::PgConnection::connect(&server).await.expect("the server");
    let left: bool = sqlx::query_scalar("select exists (select from pg_database where datname = $1)")
        .bind(&name)
        .fetch_one(&mut conn)
        .await
        .expect("an answer");
    assert!(!left, "{name} is gone");
}

#[tokio::test]
async fn rig_a_process_can_be_frozen_stopped_and_killed() {
    let db = Db::new().await;
    let fleet = Fleet::new(&db);
    let name = "steadfast-scripted-provider";
    let mut first = fleet.start(name, Opts::new().arg("--key").arg("op=sk-1"));
    let base = first.line("listening on ").await;
    let client = Client::new(&base, "sk-1", 0);
    let rule = json!({"text": "POISON", "then": {"do": "fixture", "name": "payload_too_large"}});
    assert_eq!(client.post("/control/rules", &rule).await.status, 200);
    assert_eq!(
        client
            .post("/v1/embeddings", &json!({"model": "m", "input": "a POISON"}))
            .await
            .status,
        413
    );

    let state = async |wanted: char| {
        let pid = first.pid();
        wait_until(&format!("the process is in state {wanted}"), Duration::from_secs(10), async || {
            let now = state_of(pid);
            if now == Some(wanted) { Ok(()) } else { Err(now) }
        })
        .await;
    };
    first.sigstop();
    state('T').await;
    first.sigcont();
    state('S').await;
    first.sigterm();
    assert_eq!(first.wait_exit().await.code(), Some(0), "{}", first.log());

    let mut second = fleet.start(name, Opts::new());
    second.line("listening on ").await;
    second.kill9().await;
    assert!(!second.is_alive());
    let third = fleet.start(name, Opts::new());
    third.line("listening on ").await;
    let pid = third.pid();
    drop(third);
    wait_until("a dropped process is dead", Duration::from_secs(10), async || match state_of(pid) {
        None | Some('Z') => Ok(()),
        alive => Err(alive),
    })
    .await;

    let refused = fleet.run(name, &["--key", "no-label"], Opts::new()).await;
    assert!(refused.code == Some(2) && refused.stderr.contains("LABEL=KEY"), "{refused}");
}
