//! How long a single job waits for an idle worker.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::Bench;
use crate::facts;
use crate::peer::{Pickup, Plan};
use crate::report::{Aim, Section};
use crate::stat::{percentile, range, show};

const PLAN: Plan = Plan {
    jobs: 200,
    every: Duration::from_millis(50),
};
const SHARES: [f64; 4] = [0.50, 0.95, 0.99, 1.0];

pub async fn run(bench: &Bench) -> Result<Section> {
    let peers: Vec<_> = bench.peers().into_iter().filter_map(|p| Some((p, p.pickup?))).collect();
    let mut all: Vec<Vec<Vec<Pickup>>> = peers.iter().map(|_| Vec::new()).collect();
    let mut failed: Vec<Option<String>> = peers.iter().map(|_| None).collect();
    for round in 0..bench.rounds {
        for turn in 0..peers.len() {
            let i = (turn + round) % peers.len();
            let (peer, pickup) = &peers[i];
            if failed[i].is_some() {
                continue;
            }
            eprintln!("  round {} of {}: {}", round + 1, bench.rounds, peer.name);
            let database = format!("bench_pickup_{}", peer.key);
            let url = bench.server.fresh(&database).await?;
            let measure = async {
                (peer.prepare)(url.clone()).await?;
                bench.server.checkpoint().await?;
                facts::quiet(bench.patience).await;
                pickup(url.clone(), PLAN).await
            };
            match measure.await {
                Ok(samples) => all[i].push(samples),
                Err(error) if peer.key == "ours" => return Err(error).context(peer.name),
                Err(error) => {
                    eprintln!("    {} failed: {error:#}", peer.name);
                    failed[i] = Some(format!("{error:#}"));
                }
            }
            bench.server.drop_database(&database).await?;
        }
    }

    let mut section = Section::new(
        "Pickup",
        format!(
            "{} single jobs, 20 a second, into a worker that has nothing else to do; milliseconds, median (least–greatest) over {} rounds of \
             each round's percentile. The first four columns run from the return of the insert call to the start of the handler, the last one \
             from the start of the call. Producer and worker share a process but no connections.",
            PLAN.jobs, bench.rounds
        ),
        &["queue", "p50", "p95", "p99", "max", "p50 from the call"],
    );
    let of = |rounds: &[Vec<Pickup>], p: f64, from: fn(&Pickup) -> f64| -> Vec<f64> {
        rounds
            .iter()
            .map(|r| percentile(&r.iter().map(from).collect::<Vec<_>>(), p))
            .collect()
    };
    for (i, (peer, _)) in peers.iter().enumerate() {
        if let Some(why) = &failed[i] {
            section.row([
                peer.name.to_owned(),
                "failed".into(),
                "–".into(),
                "–".into(),
                "–".into(),
                why.clone(),
            ]);
            continue;
        }
        let mut cells = vec![peer.name.to_owned()];
        cells.extend(SHARES.map(|p| show(&of(&all[i], p, |s| s.after_return), 1)));
        cells.push(show(&of(&all[i], 0.5, |s| s.after_call), 1));
        section.row(cells);
    }
    section.notes.push(
        "Settings: Steadfast's defaults; graphile_worker and apalis-postgres with concurrency 10, the latter with pubsub; riverqueue with 10 \
         workers and its least fetch cooldown, 1 ms, on both sides (its default of 100 ms decides its latency otherwise); awa's defaults."
            .to_owned(),
    );
    let mid = |i: usize, p: f64, from| range(&of(&all[i], p, from)).map_or(f64::NAN, |r| r.mid);
    if let Some(ours) = peers.iter().position(|(p, _)| p.key == "ours") {
        for (p, name) in [(0.5, "p50"), (0.95, "p95"), (0.99, "p99")] {
            let best = (0..peers.len())
                .filter(|i| *i != ours && failed[*i].is_none())
                .map(|i| (mid(i, p, |s: &Pickup| s.after_return), peers[i].0.name))
                .min_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((best, whose)) = best {
                let what = format!("idle pickup {name}, against the fastest rival ({whose})");
                section
                    .aims
                    .push(Aim::at_most(what, best, mid(ours, p, |s: &Pickup| s.after_return), 1, " ms"));
            }
        }
    }
    Ok(section)
}
