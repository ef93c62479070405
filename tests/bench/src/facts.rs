//! What the figures were made on: the machine, how busy it was with other things, and whose processor time was spent.

use std::time::Duration;

/// Jiffies of all cores: all of them, and the idle ones.
fn jiffies() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let n: Vec<u64> = stat
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .filter_map(|w| w.parse().ok())
        .collect();
    Some((n.iter().take(8).sum(), n.get(3)? + n.get(4)?))
}

/// How much of the machine was used during `span`, 0 to 1.
async fn busy(span: Duration) -> Option<f64> {
    let before = jiffies()?;
    tokio::time::sleep(span).await;
    let after = jiffies()?;
    let all = after.0.checked_sub(before.0).filter(|n| *n > 0)?;
    Some(1.0 - after.1.saturating_sub(before.1) as f64 / all as f64)
}

/// Waits for a second in which the machine is under 35 % busy, at most `patience`; gives what it found. On two cores a neighbour's compiler
/// is half of every figure.
pub async fn quiet(patience: Duration) -> f64 {
    let until = tokio::time::Instant::now() + patience;
    let mut said = false;
    loop {
        let Some(now) = busy(Duration::from_secs(1)).await else {
            return f64::NAN;
        };
        if now < 0.35 || tokio::time::Instant::now() >= until {
            return now;
        }
        if !std::mem::replace(&mut said, true) {
            eprintln!(
                "    (the machine is {:.0} % busy with something else: waiting for a quiet second)",
                now * 100.0
            );
        }
    }
}

/// User and system time of this process so far, in seconds; the clock ticks a hundred times a second.
pub fn own_cpu() -> f64 {
    stat_cpu("/proc/self/stat").map_or(f64::NAN, |s| s.own as f64 / 100.0)
}

struct Cpu {
    parent: i32,
    own: u64,
    /// Of children that have ended.
    ended: u64,
}

fn stat_cpu(path: &str) -> Option<Cpu> {
    let stat = std::fs::read_to_string(path).ok()?;
    // The name may hold spaces and brackets: everything after the last one is fields.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let n = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok());
    Some(Cpu {
        parent: fields.get(1)?.parse().ok()?,
        own: n(11)? + n(12)?,
        ended: n(13)? + n(14)?,
    })
}

/// Processor time of a Postgres server, its ended backends included, in seconds. Asynchronous, because backends that were just let go are
/// still on their way out.
pub async fn server_cpu(postmaster: i32) -> f64 {
    let head = || stat_cpu(&format!("/proc/{postmaster}/stat"));
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let Some(before) = head() else { return f64::NAN };
        let mut ticks = before.own + before.ended;
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().filter(|n| n.bytes().all(|b| b.is_ascii_digit())) else {
                continue;
            };
            if let Some(cpu) = stat_cpu(&format!("/proc/{pid}/stat"))
                && cpu.parent == postmaster
            {
                ticks += cpu.own;
            }
        }
        // A child that was reaped while we read is in neither sum.
        if head().is_some_and(|after| after.ended == before.ended) {
            return ticks as f64 / 100.0;
        }
    }
    f64::NAN
}

/// Resident memory of a process in bytes: all of it, and the part that is its own rather than mapped from files.
pub fn memory(pid: u32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| -> Option<u64> {
        status
            .lines()
            .find_map(|l| l.strip_prefix(name))?
            .trim_start_matches(':')
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    };
    Some((field("VmRSS")? * 1024, field("RssAnon")? * 1024))
}

/// One line: processor, cores, memory, load when it began.
pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|c| {
            c.lines().find_map(|l| {
                l.strip_prefix("model name")
                    .map(|m| m.trim_start_matches([' ', '\t', ':']).to_owned())
            })
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let gib = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|m| m.lines().next()?.split_whitespace().nth(1)?.parse::<f64>().ok())
        .map_or(f64::NAN, |kib| kib / 1024.0 / 1024.0);
    let load = std::fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|l| l.split_whitespace().next().map(ToOwned::to_owned))
        .unwrap_or_default();
    format!("{cores} cores ({cpu}), {gib:.0} GiB, load {load} at the start")
}
