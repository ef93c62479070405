//! `doctor`: one line per thing that must be well, and what to do where it is not.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};
use queue_schema::capability::{self, Breaker};
use queue_schema::diagnostics::WORKER_ALIVE;
use queue_schema::endpoint::{self, Seen};
use queue_schema::incident::{self, Incident};
use queue_schema::job::{self, PlaceGone};
use queue_schema::{Db, DbError, JobKind, Lane, notice, worker};
use serde::Serialize;

use super::ctx::{Ctx, FINDINGS, ago, is_unmigrated, plain, say, since, span, word};

/// Is everything well? One line each, and what to do
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  steadfast doctor\n  steadfast doctor --round-trip     # a job that does nothing goes through the queue\n  steadfast doctor --json\n\nExit code 0: all well; 4: there is something to do."
)]
pub(crate) struct Args {
    /// Send a job that does nothing through the queue and say how long it took
    #[arg(long)]
    round_trip: bool,
}

#[derive(Debug, Serialize)]
struct Finding {
    what: String,
    /// ok, warn, fail
    state: &'static str,
    say: String,
}

impl Finding {
    fn new(what: impl Into<String>, state: &'static str, say: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            state,
            say: say.into(),
        }
    }
}

pub(crate) async fn run(args: Args, ctx: &Ctx) -> Result<ExitCode> {
    let mut all = Vec::new();
    // Whatever fails is a line, never the end: the other checks may say why.
    match database(ctx, &mut all).await {
        Ok(db) => {
            if let Err(error) = look(&db, &mut all).await {
                let hint = if is_unmigrated(&error) { ": run `steadfast migrate`" } else { "" };
                all.push(Finding::new("queue", "fail", format!("cannot be looked at: {error}{hint}")));
            }
            if args.round_trip {
                all.push(match round_trip(&db).await {
                    Ok(took) => Finding::new("round trip", "ok", format!("a job that does nothing took {}", span(took))),
                    Err(error) => Finding::new("round trip", "fail", format!("{error:#}")),
                });
            }
        }
        Err(error) => {
            all.push(Finding::new("database", "fail", crate::in_one_line(&error)));
            if args.round_trip {
                all.push(Finding::new("round trip", "fail", "needs the database"));
            }
        }
    }
    all.push(api(ctx).await);
    let bad = all.iter().any(|f| f.state != "ok");
    if ctx.json {
        ctx.show(&all)?;
    } else {
        let wide = all.iter().map(|f| f.what.chars().count()).max().unwrap_or(0);
        for f in &all {
            say(plain(&format!("{:<5} {:<wide$}  {}", f.state, f.what, f.say)));
        }
    }
    Ok(if bad { ExitCode::from(FINDINGS) } else { ExitCode::SUCCESS })
}

/// The database answers, is new enough and migrated.
async fn database(ctx: &Ctx, all: &mut Vec<Finding>) -> Result<Db> {
    let db = ctx.db().await?;
    let server = db.server().await?;
    let vectors = if server.pgvector {
        "pgvector"
    } else {
        "no pgvector: sign bits and exact re-rank"
    };
    all.push(if server.version < 15 {
        Finding::new("database", "fail", format!("Postgres {}: 15 or newer is needed", server.version))
    } else {
        Finding::new("database", "ok", format!("Postgres {}, {vectors}", server.version))
    });
    Ok(db)
}

async fn api(ctx: &Ctx) -> Finding {
    let url = match ctx.url() {
        Ok(url) => url,
        Err(error) => return Finding::new("API", "warn", format!("not asked: {}", crate::in_one_line(&error))),
    };
    let asked = async {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(5)).no_proxy().build()?;
        http.get(format!("{url}/health/ready")).send().await
    };
    match asked.await {
        Ok(a) if a.status().is_success() => Finding::new("API", "ok", format!("{url} is ready: database and blob store answer it")),
        Ok(a) => {
            let status = a.status();
            let body: String = a.text().await.unwrap_or_default().chars().take(200).collect();
            Finding::new("API", "fail", format!("{url} is not ready ({status}): {body}"))
        }
        Err(_) => Finding::new(
            "API",
            "fail",
            format!("{url} does not answer: is `ops/up` running, and is the address right?"),
        ),
    }
}

async fn look(db: &Db, all: &mut Vec<Finding>) -> Result<(), DbError> {
    let workers = worker::list(db).await?;
    let alive: Vec<&[String]> = workers
        .iter()
        .filter(|w| w.lost_at.is_none() && w.silent_seconds < WORKER_ALIVE.as_secs_f64())
        .map(|w| w.kinds.as_slice())
        .collect();
    all.push(staffed(&alive));
    let late: i64 = worker::late_settles(db).await?;
    if late > 0 {
        all.push(Finding::new(
            "late settlements",
            "warn",
            format!(
                "{late} came after their lease was lost and were refused: nothing was written twice, but a worker stalls or its network does; \
                 which one: steadfast workers"
            ),
        ));
    }
    let now = db.now().await?;
    let counts = job::counts(db).await?;
    let breakers = capability::list(db).await?;
    for b in &breakers {
        all.push(breaker(b, &counts, now));
    }
    endpoints(&endpoint::overview(db).await?, &breakers, now, all);
    let open = incident::list(db, true, 1000).await?;
    for i in &open {
        all.push(told(i, now));
    }
    let sends = worker::serves(db, JobKind::Notice, WORKER_ALIVE).await?;
    let oldest = counts
        .iter()
        .find(|c| c.kind == JobKind::Notice.as_str())
        .and_then(|c| c.oldest_seconds);
    mail(sends, !open.is_empty(), &notice::counts(db).await?, oldest, all);
    let loose = job::place_gone(db).await?;
    queue(&counts, &loose, all);
    Ok(())
}

fn breaker(b: &Breaker, counts: &[job::Counts], now: DateTime<Utc>) -> Finding {
    let (whom, flag) = b
        .tenant_id
        .map_or_else(Default::default, |t| (format!(" (tenant {t})"), format!(" --tenant {t}")));
    let what = format!("breaker {}{whom}", b.name);
    if !b.enabled {
        return Finding::new(
            what,
            "warn",
            format!(
                "off since {}, by {}: {}; {} held; once that is fixed: steadfast breaker on {}{flag}",
                since(now, b.changed_at),
                b.changed_by.as_deref().unwrap_or("nobody known"),
                b.reason.as_deref().unwrap_or("no reason given"),
                jobs(b.held_count),
                b.name
            ),
        );
    }
    let Some(limit) = b.ramp_limit else {
        return Finding::new(what, "ok", "on");
    };
    let calls = if limit == 1 {
        "1 call".to_owned()
    } else {
        format!("{limit} calls")
    };
    let on = format!("on since {}, on a ramp: {calls} at a time", since(now, b.changed_at));
    let waits: i64 = counts
        .iter()
        .filter(|c| JobKind::parse(&c.kind).is_some_and(|k| k.capability() == Some(&b.name) && k.lane() == Lane::Batch))
        .map(|c| c.due)
        .sum();
    // A ramp without work moves nowhere and harms nobody.
    if waits > 0 && (now - b.changed_at).to_std().is_ok_and(|age| age > RAMP) {
        Finding::new(
            what,
            "warn",
            format!(
                "{on}, and {waits} wait: it does not get through; all at once: steadfast breaker on {}{flag} --full",
                b.name
            ),
        )
    } else {
        Finding::new(what, "ok", on)
    }
}

/// After this long a ramp that holds work up is no longer a start.
const RAMP: Duration = Duration::from_secs(1800);

fn endpoints(seen: &[Seen], breakers: &[Breaker], now: DateTime<Utc>, all: &mut Vec<Finding>) {
    for capability in JobKind::ALL.iter().filter_map(|k| k.capability()).collect::<BTreeSet<_>>() {
        let of = |s: &&Seen| s.endpoint.capability == capability && s.endpoint.owner_tenant_id.is_none();
        if seen.iter().filter(of).any(Seen::serves) {
            continue;
        }
        let off = breakers.iter().any(|b| b.name == capability && b.tenant_id.is_none() && !b.enabled);
        if off && seen.iter().filter(of).any(|s| s.endpoint.tripped_at.is_some()) {
            // A refusal turned both off, and the breaker's line says how both come back.
            continue;
        }
        let waits_for = seen
            .iter()
            .filter(of)
            .find_map(|s| Some((&s.endpoint.name, s.stands_behind.as_ref()?)));
        all.push(Finding::new(
            format!("endpoints {capability}"),
            "fail",
            match waits_for {
                Some((engine, other)) => format!(
                    "none serves: {engine} only stands by behind {other}; once {other} is right: steadfast endpoint on {0}; to go on without it: \
                     steadfast endpoint rm {0} --yes",
                    word(other)
                ),
                None => {
                    "none is on, so nothing can be asked: steadfast endpoint ls, then steadfast endpoint on NAME, or steadfast endpoint set"
                        .to_owned()
                }
            },
        ));
    }
    for s in seen {
        let e = &s.endpoint;
        let whose = e.owner_tenant_id.map_or_else(String::new, |t| format!(" (tenant {t})"));
        let what = format!("endpoint {}{whose}", e.name);
        if e.tripped_at.is_some() && !e.enabled {
            // Where its capability is off as well, one switch turns both on.
            let off = breakers
                .iter()
                .find(|b| b.name == e.capability && !b.enabled && b.tenant_id == e.owner_tenant_id);
            let fix = match off {
                Some(b) => format!(
                    "steadfast breaker on {}{} turns it on too",
                    b.name,
                    b.tenant_id.map_or_else(String::new, |t| format!(" --tenant {t}"))
                ),
                None => format!("steadfast endpoint on {}", word(&e.name)),
            };
            all.push(Finding::new(
                what,
                "warn",
                format!("{}; once that is fixed: {fix}", super::endpoint::state(s, now)),
            ));
        } else if e.enabled && e.outage_streak > 0 {
            all.push(Finding::new(
                what,
                "warn",
                format!(
                    "{}; it is asked again by itself, or now: steadfast endpoint probe {}",
                    super::endpoint::state(s, now),
                    word(&e.name)
                ),
            ));
        }
    }
}

/// An open incident. One whose breaker is on again closes by itself.
fn told(i: &Incident, now: DateTime<Utc>) -> Finding {
    let whose = i.tenant_id.map_or_else(String::new, |t| format!(" (tenant {t})"));
    let people = if i.user_count == 1 {
        "1 person has".to_owned()
    } else {
        format!("{} people have", i.user_count)
    };
    let (state, how) = match i.enabled_at {
        None => ("warn", String::new()),
        Some(at) => (
            "ok",
            format!(", on again {}; it closes by itself when that has ended", ago(now, at)),
        ),
    };
    Finding::new(
        format!("incident {}", i.id),
        state,
        format!(
            "{}{whose} stopped {}: {}; {people} work behind it{how}; steadfast incident show {}",
            i.capability,
            since(now, i.opened_at),
            i.reason,
            i.id
        ),
    )
}

/// Whether people are told. `sends`: a live worker takes notices; `open`: an incident is open; `oldest`: how long a mail has waited, seconds.
fn mail(sends: bool, open: bool, n: &notice::Counts, oldest: Option<f64>, all: &mut Vec<Finding>) {
    let wait = if n.due == 1 {
        "1 notice waits".to_owned()
    } else {
        format!("{} notices wait", n.due)
    };
    let oldest = Duration::from_secs_f64(oldest.unwrap_or(0.0).max(0.0));
    all.push(match (sends, n.due) {
        (false, 0) if !open => Finding::new("mail", "ok", "no live worker sends mail, and no notice waits for one"),
        (false, 0) => Finding::new(
            "mail",
            "warn",
            format!("an incident is open, but no live worker sends mail: {}", super::incident::SENDER),
        ),
        (false, _) => Finding::new(
            "mail",
            "warn",
            format!("{wait}, but no live worker sends mail: {}", super::incident::SENDER),
        ),
        (true, due) if due > 0 && oldest > MAIL_LATE => Finding::new(
            "mail",
            "warn",
            format!(
                "{wait}, the oldest since {}; tried again by itself ({}): steadfast jobs ls --kind notice",
                span(oldest),
                n.last_error.as_deref().unwrap_or("not tried yet"),
            ),
        ),
        (true, 0) => Finding::new("mail", "ok", "a live worker sends notices, and none waits"),
        (true, _) => Finding::new("mail", "ok", format!("{wait} and is about to be sent")),
    });
    if n.unknown + n.failed > 0 {
        let states = [(n.unknown, "may or may not have arrived"), (n.failed, "could not be delivered")];
        let told: Vec<String> = states
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!("{n} {what}"))
            .collect();
        let looks: Vec<String> = n.incidents.iter().map(|id| format!("steadfast incident show {id}")).collect();
        all.push(Finding::new(
            "notices",
            "warn",
            format!("{}: {}; then steadfast incident resend NOTICE", told.join(", "), looks.join(", ")),
        ));
    }
    if n.no_address > 0 {
        all.push(Finding::new(
            "addresses",
            "ok",
            format!(
                "{} could not be told for want of an address: steadfast token create --user NAME --email ADDRESS, then steadfast incident resend NOTICE",
                if n.no_address == 1 { "1 person".to_owned() } else { format!("{} people", n.no_address) }
            ),
        ));
    }
}

/// A mail that waits for longer is not just about to go out.
const MAIL_LATE: Duration = Duration::from_secs(60);

/// Whether every kind has somebody who works on it.
fn staffed(alive: &[&[String]]) -> Finding {
    let unserved: Vec<&str> = JobKind::ALL
        .map(JobKind::as_str)
        .into_iter()
        // Who sends mail is told apart: a house without a mail server is whole until somebody is to be told something.
        .filter(|kind| *kind != JobKind::Notice.as_str())
        .filter(|kind| !alive.iter().any(|kinds| kinds.iter().any(|k| k == kind)))
        .collect();
    match (alive.len(), unserved.as_slice()) {
        (0, _) => Finding::new(
            "workers",
            "fail",
            "none is alive: start steadfast-worker; what is handed in waits until then",
        ),
        (n, []) => Finding::new("workers", "ok", format!("{n} alive, every kind is worked on")),
        (n, kinds) => Finding::new(
            "workers",
            "fail",
            format!("{n} alive, but none works on {}: check their --kinds", kinds.join(", ")),
        ),
    }
}

/// What waits, and what waits for a person.
fn queue(counts: &[job::Counts], loose: &[PlaceGone], all: &mut Vec<Finding>) {
    let sum = |f: fn(&job::Counts) -> i64| counts.iter().map(f).sum::<i64>();
    let oldest = counts.iter().filter_map(|c| c.oldest_seconds).fold(0.0, f64::max);
    let waits = if oldest > 0.0 {
        format!("; the oldest waits since {}", span(Duration::from_secs_f64(oldest)))
    } else {
        String::new()
    };
    all.push(Finding::new(
        "queue",
        "ok",
        format!(
            "{} due, {} backing off, {} held, {} running{waits}",
            sum(|c| c.due),
            sum(|c| c.backing_off),
            sum(|c| c.held),
            sum(|c| c.running)
        ),
    ));
    for c in counts {
        let loose = loose.iter().find(|l| l.kind == c.kind);
        let parked = c.parked - loose.map_or(0, |l| l.count);
        let states = [(c.dead, "dead"), (parked, "parked")].into_iter().filter(|(n, _)| *n > 0);
        let told: Vec<String> = states.clone().map(|(n, state)| format!("{n} {state}")).collect();
        if !told.is_empty() {
            let looks: Vec<String> = states
                .map(|(_, state)| format!("steadfast jobs ls --kind {} --status {state}", c.kind))
                .collect();
            all.push(Finding::new(
                format!("{} jobs", c.kind),
                "warn",
                format!(
                    "{}: {}; then steadfast jobs retry ID --reason WHY, or steadfast jobs cancel ID --reason WHY --yes",
                    told.join(", "),
                    looks.join(", ")
                ),
            ));
        }
        if let Some(l) = loose {
            let ids: Vec<String> = l.ids.iter().map(i64::to_string).collect();
            let more = if l.count > i64::try_from(l.ids.len()).unwrap_or(l.count) {
                " …"
            } else {
                ""
            };
            all.push(Finding::new(
                format!("{} jobs", c.kind),
                "warn",
                format!(
                    "{} parked for want of a place: steadfast jobs move {}{more} --space NAME --reason WHY",
                    l.count,
                    ids.join(" ")
                ),
            ));
        }
        let oldest = Duration::from_secs_f64(c.oldest_seconds.unwrap_or(0.0).max(0.0));
        if c.due > 0 && oldest > LONG {
            all.push(Finding::new(
                format!("{} jobs", c.kind),
                "warn",
                format!(
                    "{} due, the oldest since {}: too few workers, or an endpoint that is down",
                    c.due,
                    span(oldest)
                ),
            ));
        }
    }
}

/// Work that was due for longer than this is a matter of too few hands.
const LONG: Duration = Duration::from_secs(3600);

fn jobs(n: i64) -> String {
    if n == 1 { "1 job is".to_owned() } else { format!("{n} jobs are") }
}

async fn round_trip(db: &Db) -> Result<Duration> {
    let scope = queue_schema::job::NewJob::new(JobKind::Noop, house_tenant(db).await?);
    let began = std::time::Instant::now();
    let mut tx = db.begin().await?;
    let id = job::enqueue(&mut tx, &scope)
        .await?
        .ok_or_else(|| anyhow::anyhow!("the job was not taken"))?;
    Db::commit(tx).await?;
    let hinter = queue_schema::hint::Hinter::start(db.clone());
    hinter.wake(JobKind::Noop, JobKind::Noop.lane());
    while began.elapsed() < Duration::from_secs(30) {
        let mut conn = db.begin().await?;
        if job::find(&mut conn, id).await?.is_some_and(|j| j.status == "done") {
            return Ok(began.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    anyhow::bail!("job {id} was not done within 30 s: no worker takes it")
}

async fn house_tenant(db: &Db) -> Result<i64> {
    Ok(queue_schema::schedule::house_tenant(db).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_nobody_works_on_is_found() {
        let of = |kinds: &[JobKind]| kinds.iter().map(|k| k.as_str().to_owned()).collect::<Vec<_>>();
        assert_eq!(staffed(&[]).state, "fail");
        assert_eq!(staffed(&[&of(&JobKind::ALL)]).state, "ok");
        let without_mail: Vec<JobKind> = JobKind::ALL.into_iter().filter(|k| *k != JobKind::Notice).collect();
        assert_eq!(staffed(&[&of(&without_mail)]).state, "ok", "a house may do without a mail server");
        let (a, b) = (of(&[JobKind::Ocr]), of(&[JobKind::Extract, JobKind::Embed]));
        let half = staffed(&[&a, &b]);
        assert_eq!(half.state, "fail");
        assert!(
            half.say.contains("none works on question, retention, fan_out, noop"),
            "{}",
            half.say
        );
    }

    #[test]
    fn the_queue_is_summed_and_the_dead_are_named() {
        let counts = |dead, parked, oldest| job::Counts {
            kind: "ocr".to_owned(),
            due: 2,
            backing_off: 1,
            held: 0,
            running: 0,
            parked,
            dead,
            oldest_seconds: oldest,
        };
        let told = |c: job::Counts| {
            let mut all = Vec::new();
            queue(&[c], &[], &mut all);
            all
        };
        let well = told(counts(0, 0, Some(192.0)));
        assert_eq!(well.len(), 1);
        assert_eq!(
            well[0].say,
            "2 due, 1 backing off, 0 held, 0 running; the oldest waits since 3m 12s"
        );
        let bad = told(counts(3, 0, Some(7200.0)));
        assert_eq!(bad.iter().filter(|f| f.state == "warn").count(), 2);
        assert!(
            bad[1].say.starts_with("3 dead: steadfast jobs ls --kind ocr --status dead"),
            "{}",
            bad[1].say
        );
    }

    #[test]
    fn work_without_a_place_is_not_told_to_be_retried() {
        let counts = job::Counts {
            kind: "ocr".to_owned(),
            due: 0,
            backing_off: 0,
            held: 0,
            running: 0,
            parked: 7,
            dead: 0,
            oldest_seconds: None,
        };
        let mut all = Vec::new();
        let loose = PlaceGone {
            kind: "ocr".to_owned(),
            count: 7,
            ids: vec![1, 2, 3, 4, 5],
        };
        queue(&[counts], &[loose], &mut all);
        assert_eq!(all.len(), 2);
        assert!(all[1].say.contains("steadfast jobs move 1 2 3 4 5 … --space"), "{}", all[1].say);
    }

    #[test]
    fn an_engine_that_only_stands_by_serves_nothing() {
        let seen = |name: &str, url: Option<&str>, tripped: bool, behind: Option<&str>| {
            Seen {
            endpoint: serde_json::from_value(serde_json::json!({
                "id": 1, "name": name, "capability": "ocr", "protocol": "p", "url": url, "model": "m", "dims": null, "key_env": null,
                "owner_tenant_id": null, "trust": 3, "batch": 1, "timeout_ms": 1, "rank": 1, "enabled": !tripped, "epoch": 1, "outage_streak": 0,
                "last_ok_at": null, "tripped_at": tripped.then_some("1970-01-01T00:00:00Z"), "refusal_count": 1, "reason": "key", "changed_by": null,
                "changed_at": "1970-01-01T00:00:00Z"
            }))
            .expect("an endpoint"),
            due_at: None,
            probe_error: None,
            stands_behind: behind.map(str::to_owned),
            stands_behind_to: behind.map(|_| 3),
        }
        };
        let told = |breaker_on: bool| {
            let mut ocr = on(None);
            (ocr.tenant_id, ocr.enabled) = (None, breaker_on);
            let all_seen = [seen("far", Some("http://h/"), true, None), seen("near", None, false, Some("far"))];
            let mut all = Vec::new();
            endpoints(&all_seen, &[ocr], DateTime::UNIX_EPOCH, &mut all);
            all.retain(|f| f.what.contains("ocr") || f.what.contains("far"));
            all
        };
        let open = told(true);
        assert_eq!(open.len(), 2);
        assert!(
            open[0].state == "fail"
                && open[0].say.contains("near only stands by behind far")
                && open[0].say.contains("steadfast endpoint rm far"),
            "{}",
            open[0].say
        );
        assert!(open[1].say.contains("steadfast endpoint on far"), "{}", open[1].say);
        let closed = told(false);
        assert_eq!(closed.len(), 1, "the breaker's own line says the rest");
        assert!(
            closed[0].say.contains("steadfast breaker on ocr turns it on too"),
            "{}",
            closed[0].say
        );
    }

    fn on(ramp_limit: Option<i32>) -> Breaker {
        Breaker {
            name: "ocr".to_owned(),
            tenant_id: Some(3),
            enabled: true,
            epoch: 2,
            reason: None,
            changed_by: None,
            changed_at: DateTime::UNIX_EPOCH,
            failure_count: 0,
            ramp_limit,
            held_count: 0,
        }
    }

    #[test]
    fn a_ramp_is_a_finding_only_where_it_holds_work_up_for_long() {
        let at = |s: i64| DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(s);
        let ocr = |due| {
            vec![job::Counts {
                kind: "ocr".to_owned(),
                due,
                backing_off: 0,
                held: 0,
                running: 0,
                parked: 0,
                dead: 0,
                oldest_seconds: None,
            }]
        };
        assert_eq!(breaker(&on(None), &ocr(9), at(9999)).say, "on");
        let young = breaker(&on(Some(2)), &ocr(9), at(60));
        assert!(young.state == "ok" && young.say.contains("2 calls at a time"), "{}", young.say);
        assert_eq!(breaker(&on(Some(2)), &ocr(0), at(9999)).state, "ok", "nothing waits");
        let stale = breaker(&on(Some(1)), &ocr(9), at(9999));
        assert!(
            stale.state == "warn" && stale.say.contains("steadfast breaker on ocr --tenant 3 --full"),
            "{}",
            stale.say
        );
    }

    #[test]
    fn mail_is_a_matter_only_where_somebody_is_to_be_told() {
        let told = |sends, open, counts: notice::Counts, oldest| {
            let mut all = Vec::new();
            mail(sends, open, &counts, oldest, &mut all);
            all
        };
        let due = |due| notice::Counts {
            due,
            ..notice::Counts::default()
        };
        assert_eq!(told(false, false, due(0), None)[0].state, "ok");
        assert_eq!(told(false, true, due(0), None)[0].state, "warn");
        let waits = &told(false, true, due(2), None)[0];
        assert!(
            waits.state == "warn" && waits.say.contains("2 notices wait") && waits.say.contains("STEADFAST_SMTP_URL"),
            "{}",
            waits.say
        );
        assert_eq!(told(true, true, due(1), Some(2.0))[0].state, "ok");
        assert_eq!(told(true, true, due(1), Some(600.0))[0].state, "warn");
        let bad = told(
            true,
            true,
            notice::Counts {
                unknown: 1,
                failed: 2,
                no_address: 1,
                incidents: vec![7],
                ..due(0)
            },
            None,
        );
        assert_eq!(bad.len(), 3);
        assert!(
            bad[1]
                .say
                .starts_with("1 may or may not have arrived, 2 could not be delivered: steadfast incident show 7"),
            "{}",
            bad[1].say
        );
        assert!(bad[2].say.contains("--email"), "{}", bad[2].say);
    }
}
