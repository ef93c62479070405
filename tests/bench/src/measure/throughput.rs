//! Enqueue many, drain them, and what that costs: one pass gives three tables.

use anyhow::{Context as _, Result};

use super::Bench;
use crate::facts;
use crate::peer::Peer;
use crate::report::{Aim, Section};
use crate::stat::{number, range, ratios, show};

/// One queue's figures, a value a round.
#[derive(Debug, Default)]
struct Figures {
    enqueue: Vec<f64>,
    drain: Vec<f64>,
    /// Milliseconds from the start of the worker to the first handler.
    first: Vec<f64>,
    handlers: Vec<f64>,
    client_cpu: Vec<f64>,
    server_cpu: Vec<f64>,
    wal_in: Vec<f64>,
    wal_out: Vec<f64>,
    repeated: usize,
    /// Why it has no figures.
    failed: Option<String>,
}

/// Which of the three tables to give back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    pub drain: bool,
    pub wal: bool,
}

pub async fn run(bench: &Bench, wanted: Wanted) -> Result<Vec<Section>> {
    let peers = bench.peers();
    let mut all: Vec<Figures> = peers.iter().map(|_| Figures::default()).collect();
    let mut busiest: f64 = 0.0;
    for round in 0..bench.rounds {
        for turn in 0..peers.len() {
            // Each round another one begins, so that nobody always follows the same neighbour.
            let i = (turn + round) % peers.len();
            if all[i].failed.is_some() {
                continue;
            }
            eprintln!("  round {} of {}: {}", round + 1, bench.rounds, peers[i].name);
            match one(bench, &peers[i], &mut all[i]).await {
                Ok(busy) => busiest = busiest.max(busy),
                Err(error) if peers[i].key == "bare" || peers[i].key == "ours" => return Err(error.context(peers[i].name)),
                // A rival that fails must not take the others' figures along.
                Err(error) => {
                    eprintln!("    {} failed: {error:#}", peers[i].name);
                    all[i].failed = Some(format!("{error:#}"));
                }
            }
        }
    }
    let mut sections = Vec::new();
    if wanted.drain {
        sections.push(drain_section(bench, &peers, &all, busiest));
    }
    if wanted.wal {
        sections.push(wal_section(&peers, &all));
    }
    Ok(sections)
}

/// One queue, one round; gives how busy the machine was before.
async fn one(bench: &Bench, peer: &Peer, figures: &mut Figures) -> Result<f64> {
    let (server, jobs) = (&bench.server, bench.jobs as f64);
    let database = format!("bench_{}", peer.key);
    let url = server.fresh(&database).await?;
    (peer.prepare)(url.clone()).await.context("its tables cannot be made")?;

    server.checkpoint().await?;
    let mut busy = facts::quiet(bench.patience).await;
    let wal = server.wal().await?;
    let took = (peer.enqueue)(url.clone(), bench.jobs).await.context("enqueue")?;
    let wal_in = server.wal().await? - wal;

    server.checkpoint().await?;
    busy = busy.max(facts::quiet(bench.patience).await);
    let wal = server.wal().await?;
    let postmaster = server.postmaster();
    let server_cpu = async || match postmaster {
        Some(pid) => facts::server_cpu(pid).await,
        None => f64::NAN,
    };
    let server_before = server_cpu().await;
    let client_before = facts::own_cpu();
    let drained = (peer.drain)(url, bench.jobs).await.context("drain")?;
    let client_cpu = facts::own_cpu() - client_before;
    let wal_out = server.wal().await? - wal;
    let server_cpu = server_cpu().await - server_before;

    eprintln!(
        "    enqueue {}/s, drain {}/s",
        number(jobs / took.as_secs_f64(), 0),
        number(jobs / drained.total.as_secs_f64(), 0)
    );
    figures.enqueue.push(jobs / took.as_secs_f64());
    figures.drain.push(jobs / drained.total.as_secs_f64());
    figures.first.extend(drained.first.map(|t| t.as_secs_f64() * 1000.0));
    figures.handlers.extend(drained.handlers.map(|t| jobs / t.as_secs_f64()));
    figures.client_cpu.push(client_cpu * 1e6 / jobs);
    figures.server_cpu.push(server_cpu * 1e6 / jobs);
    figures.wal_in.push(wal_in as f64 / jobs);
    figures.wal_out.push(wal_out as f64 / jobs);
    figures.repeated += drained.repeated;
    server.drop_database(&database).await?;
    Ok(busy)
}

fn drain_section(bench: &Bench, peers: &[Peer], all: &[Figures], busiest: f64) -> Section {
    let find = |key: &str| peers.iter().position(|p| p.key == key).map(|i| &all[i]);
    let bare = find("bare").map(|f| f.drain.clone()).unwrap_or_default();
    let mut section = Section::new(
        "Drain",
        format!(
            "{} no-op jobs, from the start of the worker until the database shows none unfinished; median (least–greatest) of {} rounds, all \
             queues in turn in each round. `÷ bare` is against the first row of the same round. The worker, the producer and Postgres share \
             the machine, and every queue runs in the benchmark's own process on two threads.",
            number(bench.jobs as f64, 0),
            bench.rounds
        ),
        &[
            "queue",
            "drain jobs/s",
            "÷ bare",
            "first handler after, ms",
            "all handlers begun, jobs/s",
            "enqueue jobs/s",
            "client CPU µs/job",
            "Postgres CPU µs/job",
            "settings",
        ],
    );
    for (peer, f) in peers.iter().zip(all) {
        if let Some(why) = &f.failed {
            section.row([
                peer.name.to_owned(),
                "failed".into(),
                "–".into(),
                "–".into(),
                "–".into(),
                "–".into(),
                "–".into(),
                "–".into(),
                why.clone(),
            ]);
            continue;
        }
        section.row([
            peer.name.to_owned(),
            show(&f.drain, 0),
            show(&ratios(&f.drain, &bare), 2),
            show(&f.first, 0),
            show(&f.handlers, 0),
            show(&f.enqueue, 0),
            show(&f.client_cpu, 0),
            show(&f.server_cpu, 0),
            peer.settings.to_owned(),
        ]);
        if f.repeated > 0 {
            section
                .notes
                .push(format!("{}: {} handlers ran a second time.", peer.name, f.repeated));
        }
    }
    section.notes.push(
        "Steadfast's row asserts after every round that each job is in the finished table, done, with exactly one attempt.".to_owned(),
    );
    section.notes.push(
        "The bare row runs no handler, keeps no lease and cannot tell a lost claim from a live one; it is the floor, not a queue."
            .to_owned(),
    );
    if busiest >= 0.35 {
        section.notes.push(format!(
            "Not every measure found a quiet second first: the machine was up to {:.0} % busy with other things.",
            busiest * 100.0
        ));
    }
    let mid = |v: &[f64]| range(v).map_or(f64::NAN, |r| r.mid);
    if let Some(ours) = find("ours") {
        section.aims.push(Aim::at_least(
            "drain, against bare claim-and-archive SQL",
            0.7,
            mid(&ratios(&ours.drain, &bare)),
            2,
        ));
        for (peer, f) in peers
            .iter()
            .zip(all)
            .filter(|(p, f)| !["bare", "ours"].contains(&p.key) && f.failed.is_none())
        {
            section.aims.push(Aim::at_least(
                format!("drain, against {}", peer.name),
                1.0,
                mid(&ratios(&ours.drain, &f.drain)),
                2,
            ));
        }
    }
    section
}

fn wal_section(peers: &[Peer], all: &[Figures]) -> Section {
    let mut section = Section::new(
        "Write-ahead log",
        "Bytes a job, from the drain's runs: how much Postgres writes to its log, and so to every replica and backup. A checkpoint comes before \
         each phase and none during it.",
        &["queue", "enqueue B/job", "drain B/job", "both"],
    );
    for (peer, f) in peers.iter().zip(all).filter(|(_, f)| f.failed.is_none()) {
        let both: Vec<f64> = f.wal_in.iter().zip(&f.wal_out).map(|(a, b)| a + b).collect();
        section.row([peer.name.to_owned(), show(&f.wal_in, 0), show(&f.wal_out, 0), show(&both, 0)]);
    }
    section
}
