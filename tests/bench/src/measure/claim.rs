//! Whether a claim's price depends on what else lies in the table: a million waiting rows, or 300,000 that may not be taken now.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queue_schema::claim::{self, Taker};
use queue_schema::outcome::Outcome;
use queue_schema::retry::Pace;
use queue_schema::{Db, JobKind, worker};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::Bench;
use crate::facts;
use crate::peers::ours;
use crate::report::{Aim, Section};
use crate::stat::{number, percentile, range, ratios, show};

const TAKES: usize = 200;
/// The built-in endpoint's batch, so that both ways of claiming take the same.
const BATCH: usize = 16;

struct Scene {
    key: &'static str,
    name: &'static str,
    kind: JobKind,
    /// Rows that can be taken, and the SQL that makes those that cannot.
    free: i64,
    held: &'static str,
    /// Index of the scene that its ratio is against.
    base: usize,
    aim: bool,
}

/// 300,000 rows of line `$1` of tenant `$2`: not parameters, because several statements go in one string.
const SCENES: [Scene; 7] = [
    Scene { key: "free_1k", name: "ungated kind, 1,000 waiting", kind: JobKind::Noop, free: 1_000, held: "", base: 0, aim: false },
    Scene { key: "free_1m", name: "ungated kind, 1,000,000 waiting", kind: JobKind::Noop, free: 1_000_000, held: "", base: 0, aim: true },
    Scene {
        key: "free_held",
        name: "ungated kind, 1,000 waiting beside 300,000 of a suspended tenant",
        kind: JobKind::Noop,
        free: 1_000,
        held: "insert into tenants (name, state) values ('other', 'suspended');
               insert into lines (kind, lane, tenant_id, level, capability) select 'noop', 'batch', id, 1, null from tenants where name = 'other';",
        base: 0,
        aim: true,
    },
    Scene { key: "gated_1k", name: "gated kind, 1,000 waiting", kind: JobKind::Embed, free: 1_000, held: "", base: 3, aim: false },
    Scene { key: "gated_1m", name: "gated kind, 1,000,000 waiting", kind: JobKind::Embed, free: 1_000_000, held: "", base: 3, aim: true },
    Scene {
        key: "gated_other",
        name: "gated kind, 1,000 waiting beside 300,000 of another kind whose breaker is off",
        kind: JobKind::Embed,
        free: 1_000,
        held: "update capabilities set enabled = false where name = 'ocr';
               insert into lines (kind, lane, tenant_id, level, capability) values ('ocr', 'batch', 1, 1, 'ocr');",
        base: 3,
        aim: true,
    },
    Scene {
        key: "gated_same",
        name: "gated kind, 1,000 waiting beside 300,000 of the same kind whose tenant's breaker is off",
        kind: JobKind::Embed,
        free: 1_000,
        held: "insert into tenants (name) values ('other');
               insert into capabilities (name, tenant_id, enabled) select 'embedding', id, false from tenants where name = 'other';
               insert into lines (kind, lane, tenant_id, level, capability) select 'embed', 'batch', id, 1, 'embedding' from tenants where name = 'other';",
        base: 3,
        aim: true,
    },
];

pub async fn run(bench: &Bench) -> Result<Section> {
    let mut databases = Vec::new();
    for scene in &SCENES {
        eprintln!("  making: {}", scene.name);
        let url = bench.server.fresh(&format!("bench_claim_{}", scene.key)).await?;
        ours::prepare(url.clone()).await?;
        seed(&url, scene).await?;
        databases.push(worker::open(&url, 2)?);
    }
    let mut p50: Vec<Vec<f64>> = SCENES.iter().map(|_| Vec::new()).collect();
    let mut p95 = p50.clone();
    for round in 0..bench.rounds {
        eprintln!("  round {} of {}", round + 1, bench.rounds);
        for turn in 0..SCENES.len() {
            let i = (turn + round) % SCENES.len();
            bench.server.checkpoint().await?;
            facts::quiet(bench.patience).await;
            let times = takes(&databases[i], &SCENES[i]).await?;
            p50[i].push(percentile(&times, 0.5));
            p95[i].push(percentile(&times, 0.95));
        }
    }
    for (db, scene) in databases.into_iter().zip(&SCENES) {
        db.pool().close().await;
        bench.server.drop_database(&format!("bench_claim_{}", scene.key)).await?;
    }

    let mut section = Section::new(
        "Claim",
        format!(
            "One `claim::take` of {BATCH} jobs, its commit included, {TAKES} of them a round; milliseconds, median (least–greatest) of {} rounds. After \
             each take its jobs are settled and as many new ones enqueued, outside the clock. Gated kinds look at tenant, breaker, endpoint and \
             trust in the same statement.",
            bench.rounds
        ),
        &["what lies in the table", "p50 ms", "p95 ms", "÷ 1,000 waiting"],
    );
    for (i, scene) in SCENES.iter().enumerate() {
        let against = ratios(&p50[i], &p50[scene.base]);
        section.row([scene.name.to_owned(), show(&p50[i], 2), show(&p95[i], 2), show(&against, 2)]);
        if scene.aim {
            let got = range(&against).map_or(f64::NAN, |r| r.mid);
            section.aims.push(Aim::at_most(format!("claim: {}", scene.name), 1.5, got, 2, "×"));
        }
    }
    section.notes.push(format!(
        "Rows were seeded by one statement and vacuumed once; {} rows were never taken in the held scenes.",
        number(300_000.0, 0)
    ));
    Ok(section)
}

async fn seed(url: &str, scene: &Scene) -> Result<()> {
    let mut conn = PgConnection::connect(url).await?;
    let (kind, lane) = (scene.kind.as_str(), scene.kind.lane().as_str());
    let capability = scene.kind.capability().map_or("null".to_owned(), |c| format!("'{c}'"));
    let held = if scene.held.is_empty() {
        String::new()
    } else {
        format!("{} {}", scene.held, fill("select max(id) from lines", 300_000))
    };
    // Foreign keys are checked by triggers, a million times; the rows are right by construction.
    let sql = format!(
        "set session_replication_role = replica;
         insert into lines (kind, lane, tenant_id, level, capability) values ('{kind}', '{lane}', 1, 1, {capability});
         {}
         {held}
         vacuum analyze jobs; vacuum analyze lines; checkpoint",
        fill("select max(id) from lines", scene.free)
    );
    // One statement a trip: VACUUM refuses to run among others.
    for statement in sql.split(';').map(str::trim).filter(|s| !s.is_empty()) {
        sqlx::query(AssertSqlSafe(statement)).execute(&mut conn).await?;
    }
    Ok(conn.close().await?)
}

/// The held ones are older than the free ones: the worst order, since a claim wants the oldest.
fn fill(line: &str, n: i64) -> String {
    format!(
        "insert into jobs (line_id, tenant_id, kind, avail_at, created_at)
         select l.id, l.tenant_id, l.kind, now() - interval '1 day' + g * interval '1 ms', now() from lines l, generate_series(1, {n}) g where l.id = ({line});"
    )
}

async fn takes(db: &Db, scene: &Scene) -> Result<Vec<f64>> {
    let who = Taker {
        boot_id: 1,
        lease: Duration::from_secs(300),
        protocols: vec!["minilm".to_owned(), "tesseract".to_owned()],
        pace: Pace::default(),
    };
    let mut times = Vec::with_capacity(TAKES);
    for _ in 0..TAKES {
        let started = Instant::now();
        let claims = claim::take(db, &who, scene.kind, scene.kind.lane(), BATCH, None).await?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
        ensure!(
            claims.len() == BATCH,
            "took {} jobs instead of {BATCH}: {}",
            claims.len(),
            scene.name
        );
        let done: Vec<_> = claims.into_iter().map(|c| (Arc::new(c), Outcome::done())).collect();
        let settled = claim::settle(db, &done, &who.pace).await?;
        ensure!(
            settled.ours.len() == BATCH,
            "settled {} jobs instead of {BATCH}",
            settled.ours.len()
        );
        sqlx::query("insert into jobs (line_id, tenant_id, kind) select l.id, l.tenant_id, l.kind from lines l, generate_series(1, $2) where l.kind = $1 and l.tenant_id = 1")
            .bind(scene.kind.as_str())
            .bind(i32::try_from(BATCH)?)
            .execute(db.pool())
            .await?;
    }
    Ok(times)
}
