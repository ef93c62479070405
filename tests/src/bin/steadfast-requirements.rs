//! Which test shows which requirement: joins the catalogue (`tests/requirements.toml`) with the log of a whole `ops/test` into
//! `docs/requirements.md`, and refuses when a must row of a finished system has lost its test.
//!
//! A test names its rows by beginning with their ids: `p15_p17_a_worker_…`, `b49_p31_case31_…`. Ids count in the run of short
//! tokens (letters and digits) that a name begins with, and only when the catalogue has them: decisions (`b49`), cases (`case31`)
//! and stories (`sc6`) are namespaces of their own. Not anywhere in a name: `waits_as_long_as_the_p95_says` speaks of no row, and
//! whoever hides an id in the middle finds out at once, because the row then has no test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use serde::Deserialize;

/// Which test shows which requirement.
#[derive(Parser)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["write", "check"])))]
struct Args {
    /// What a whole run of the tests printed; ops/test keeps it as tests.log in the target folder
    #[arg(long, value_name = "FILE")]
    log: PathBuf,
    /// Rewrite docs/requirements.md
    #[arg(long)]
    write: bool,
    /// Exit with 1 when a must row of a finished system has no test or its test did not pass, or when docs/requirements.md tells
    /// of other rows or tests
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let found = match run(&Args::parse()) {
        Ok(found) => found,
        Err(error) => vec![format!("{error:#}")],
    };
    for line in &found {
        eprintln!("requirements: {line}");
    }
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What is amiss, one sentence each.
fn run(args: &Args) -> Result<Vec<String>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (rows, page) = (here.join("requirements.toml"), here.join("../docs/requirements.md"));
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let catalogue = Catalogue::parse(&read(&rows)?).with_context(|| rows.display().to_string())?;
    // Not every line of a test run is UTF-8: what a story's processes print is part of it.
    let log = std::fs::read(&args.log).with_context(|| format!("cannot read {}", args.log.display()))?;
    let tests = Tests::of(&catalogue, &results(&String::from_utf8_lossy(&log)));
    ensure!(tests.seen > 0, "{} has no line about a test: did one compile?", args.log.display());
    let fresh = render(&catalogue, &tests);
    if args.write {
        std::fs::write(&page, fresh).with_context(|| format!("cannot write {}", page.display()))?;
        return Ok(Vec::new());
    }
    let mut found = gaps(&catalogue, &tests);
    let stale = differing(&catalogue, &fresh, &std::fs::read_to_string(&page).unwrap_or_default());
    if !stale.is_empty() {
        let me = PathBuf::from(std::env::args_os().next().unwrap_or_default());
        found.push(format!(
            "docs/requirements.md tells of other rows or tests than there are: {}. Rewrite it: {} --write --log {}",
            some(&stale),
            from_here(&me).display(),
            from_here(&args.log).display()
        ));
    }
    Ok(found)
}

/// As somebody in this folder would type it.
fn from_here(path: &Path) -> &Path {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path)
}

/// The first few of many.
fn some(ids: &[String]) -> String {
    const FEW: usize = 12;
    let more = ids.len().saturating_sub(FEW);
    let told = ids.iter().take(FEW).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more == 0 { told } else { format!("{told} and {more} more") }
}

// ── The catalogue ────────────────────────────────────────────────────────────────────────────────────────────────────

/// The longest statement: one line of a table.
const MAX_STATEMENT: usize = 90;

/// A row's place: its system's letter and its number.
type Id = (char, u32);

struct Catalogue {
    systems: BTreeMap<char, System>,
}

struct System {
    title: String,
    source: String,
    /// Every must row of it has a test from now on.
    finished: bool,
    rows: BTreeMap<u32, Row>,
}

/// How much a row is wanted, and its statement.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Row {
    Must(String),
    Should(String),
    Could(String),
}

impl Row {
    fn statement(&self) -> &str {
        let (Self::Must(s) | Self::Should(s) | Self::Could(s)) = self;
        s
    }

    fn priority(&self) -> &'static str {
        match self {
            Self::Must(_) => "M",
            Self::Should(_) => "s",
            Self::Could(_) => "c",
        }
    }

    fn is_must(&self) -> bool {
        matches!(self, Self::Must(_))
    }
}

impl Catalogue {
    /// Systems are tables of one capital letter, their rows `P15.must = "…"`, numbered from 1 without a gap, so that none is lost
    /// by a slip of the editor.
    fn parse(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            title: String,
            source: String,
            finished: bool,
            rows: BTreeMap<String, Row>,
        }
        let written: BTreeMap<char, Written> = toml::from_str(text)?;
        let mut systems = BTreeMap::new();
        for (letter, w) in written {
            ensure!(
                letter.is_ascii_uppercase(),
                "a system is named by one capital letter, not {letter:?}"
            );
            let mut rows = BTreeMap::new();
            for (name, row) in w.rows {
                let no: Option<u32> = name.strip_prefix(letter).and_then(|n| n.parse().ok());
                let Some(no) = no else {
                    bail!("{name} is no id of system {letter}")
                };
                let length = row.statement().chars().count();
                ensure!(length <= MAX_STATEMENT, "{name} has {length} characters, more than {MAX_STATEMENT}");
                ensure!(
                    length > 0 && !row.statement().contains(['|', '\n']),
                    "{name} must fit into a cell of a table"
                );
                rows.insert(no, row);
            }
            if let Some(missing) = (1..).zip(rows.keys()).find_map(|(n, have)| (n != *have).then_some(n)) {
                bail!("{letter}{missing} is missing: rows are numbered from 1 without a gap");
            }
            let (title, source, finished) = (w.title, w.source, w.finished);
            systems.insert(
                letter,
                System {
                    title,
                    source,
                    finished,
                    rows,
                },
            );
        }
        Ok(Self { systems })
    }

    fn has(&self, (letter, no): Id) -> bool {
        self.systems.get(&letter).is_some_and(|s| s.rows.contains_key(&no))
    }

    fn rows(&self) -> impl Iterator<Item = (Id, &System, &Row)> {
        self.systems
            .iter()
            .flat_map(|(letter, s)| s.rows.iter().map(move |(no, row)| ((*letter, *no), s, row)))
    }

    /// The rows that a test's name begins with.
    fn named_by(&self, test: &str) -> BTreeSet<Id> {
        let short = |token: &&str| {
            let digits = token.trim_start_matches(|c: char| c.is_ascii_lowercase());
            // `case76_77_…`: a bare number goes on with the token before it.
            !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
        };
        test.split('_')
            .take_while(short)
            .filter_map(|token| {
                let mut letters = token.chars();
                let id = (letters.next()?.to_ascii_uppercase(), letters.as_str().parse().ok()?);
                self.has(id).then_some(id)
            })
            .collect()
    }
}

// ── The log ──────────────────────────────────────────────────────────────────────────────────────────────────────────

/// How a test ended; of several programs that hold the same test, the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    /// `#[ignore]`: it runs at night.
    Nightly,
    Passed,
    /// Announced, and no result could be read.
    Unclear,
    Failed,
}

impl Ending {
    fn word(self) -> &'static str {
        match self {
            Self::Nightly => "nightly",
            Self::Passed => "passed",
            Self::Unclear => "unclear",
            Self::Failed => "failed",
        }
    }
}

/// The tests of a log, by their path within their program (`claims::p15_…`).
///
/// The shape is libtest's `test PATH ... ok`, where name and result are two writes: what another thread or process prints falls
/// between them, before them, or on the same line. The list of failures at a program's end has the last word, so that no stray
/// "ok" turns a failure into a pass. Doctests have a file name and spaces in their path and name no row.
fn results(log: &str) -> BTreeMap<String, Ending> {
    let mut found: BTreeMap<String, Ending> = BTreeMap::new();
    let mut put = |name: &str, ending: Ending| {
        let had = found.entry(name.to_owned()).or_insert(ending);
        *had = ending.max(*had);
    };
    let mut waiting: Option<String> = None;
    let mut among_failures = false;
    for line in log.lines() {
        if line.starts_with("test result: ") || is_start(line) {
            among_failures = false;
            if let Some(name) = waiting.take() {
                put(&name, Ending::Unclear);
            }
        } else if line == "failures:" {
            among_failures = true;
        } else if among_failures {
            // What failed tests had printed, and then their names, four columns in.
            if let Some(name) = line.strip_prefix("    ").map(plain).filter(|n| is_path(n)) {
                put(name, Ending::Failed);
                if waiting.as_deref() == Some(name) {
                    waiting = None;
                }
            }
        } else if let Some((name, rest)) = announced(line) {
            if let Some(name) = waiting.replace(name.to_owned()) {
                put(&name, Ending::Unclear);
            }
            if let Some(ending) = ending(rest) {
                put(name, ending);
                waiting = None;
            }
        } else if let Some(ending) = ending(line)
            && let Some(name) = waiting.take()
        {
            put(&name, ending);
        }
    }
    if let Some(name) = waiting {
        put(&name, Ending::Unclear);
    }
    found
}

/// `running 12 tests`: a program begins, whatever became of the one before.
fn is_start(line: &str) -> bool {
    line.strip_prefix("running ")
        .is_some_and(|l| l.ends_with(" tests") || l.ends_with(" test"))
}

fn announced(line: &str) -> Option<(&str, &str)> {
    let (before, rest) = line.split_once(" ... ").or_else(|| line.strip_suffix(" ...").map(|b| (b, "")))?;
    let (_noise, name) = before.rsplit_once("test ")?;
    let name = plain(name);
    is_path(name).then_some((name, rest))
}

fn plain(name: &str) -> &str {
    name.strip_suffix(" - should panic").unwrap_or(name)
}

fn is_path(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}

fn ending(text: &str) -> Option<Ending> {
    let text = text.trim();
    let words = [("ok", Ending::Passed), ("FAILED", Ending::Failed), ("ignored", Ending::Nightly)];
    // `ok <1.2s>`, `ignored, nightly`
    let begins = words.iter().find(|(word, _)| {
        text.strip_prefix(word)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ',']))
    });
    // Behind what somebody printed without an end of line.
    let ends = || words.iter().find(|(word, _)| text.ends_with(word));
    begins.or_else(ends).map(|(_, ending)| *ending)
}

// ── What shows what ──────────────────────────────────────────────────────────────────────────────────────────────────

/// The tests that name each row, by function name.
struct Tests {
    of: BTreeMap<Id, BTreeMap<String, Ending>>,
    /// All tests of the log.
    seen: usize,
}

impl Tests {
    fn of(catalogue: &Catalogue, results: &BTreeMap<String, Ending>) -> Self {
        let mut of: BTreeMap<Id, BTreeMap<String, Ending>> = BTreeMap::new();
        for (path, ending) in results {
            let name = path.rsplit("::").next().unwrap_or(path);
            for id in catalogue.named_by(name) {
                let had = of.entry(id).or_default().entry(name.to_owned()).or_insert(*ending);
                *had = (*had).max(*ending);
            }
        }
        Self { of, seen: results.len() }
    }

    fn for_row(&self, id: Id) -> impl Iterator<Item = (&str, Ending)> {
        self.of
            .get(&id)
            .into_iter()
            .flatten()
            .map(|(name, ending)| (name.as_str(), *ending))
    }

    fn any(&self, id: Id) -> bool {
        self.of.contains_key(&id)
    }
}

/// Must rows of finished systems without a test that passed or runs at night, one sentence each.
fn gaps(catalogue: &Catalogue, tests: &Tests) -> Vec<String> {
    let mut found = Vec::new();
    for ((letter, no), system, row) in catalogue.rows() {
        if !system.finished || !row.is_must() {
            continue;
        }
        let id = (letter, no);
        if !tests.any(id) {
            found.push(format!(
                "{letter}{no} has no test: {} One whose name begins with {}{no}_ must show it.",
                row.statement(),
                letter.to_ascii_lowercase()
            ));
        }
        for (name, ending) in tests.for_row(id) {
            if ending > Ending::Passed {
                found.push(format!(
                    "{letter}{no} is not shown: {name} {}.",
                    match ending {
                        Ending::Unclear => "has no result in the log",
                        _ => "failed",
                    }
                ));
            }
        }
    }
    found
}

/// The whole page. No times in it: a difference is a real change.
fn render(catalogue: &Catalogue, tests: &Tests) -> String {
    let mut out = String::from(
        "# Requirements\n\n\
         What the systems behind this project ask for, row by row, and the tests that show it. Made by `steadfast-requirements` from\n\
         `tests/requirements.toml` and the log of a whole `ops/test`; not to be edited by hand.\n\n\
         A test shows a row by beginning with its id (`ops/test p15_` runs those of P15). M is a must, s a should, c a could; *nightly* runs with\n\
         `ops/test --nightly` only. In a finished system every M row has a test, or `ops/test` fails.\n\n\
         | system | finished | rows | with a test | M rows | with a test |\n|---|---|---|---|---|---|\n",
    );
    // Writing into a string cannot fail.
    for (letter, s) in &catalogue.systems {
        let with_test = |must: bool| {
            s.rows
                .iter()
                .filter(|(no, row)| (!must || row.is_must()) && tests.any((*letter, **no)))
                .count()
        };
        let _ = writeln!(
            out,
            "| {letter} | {} | {} | {} | {} | {} |",
            if s.finished { "yes" } else { "no" },
            s.rows.len(),
            with_test(false),
            s.rows.values().filter(|r| r.is_must()).count(),
            with_test(true),
        );
    }
    for (letter, s) in &catalogue.systems {
        let _ = write!(
            out,
            "\n## {letter}: {}\n\nAfter {}.\n\n| id | pr | what | test | result |\n|---|---|---|---|---|\n",
            s.title, s.source
        );
        for (no, row) in &s.rows {
            let (names, endings): (Vec<String>, Vec<&str>) = tests
                .for_row((*letter, *no))
                .map(|(name, e)| (format!("`{name}`"), e.word()))
                .unzip();
            let cell = |parts: String| if parts.is_empty() { "–".to_owned() } else { parts };
            let _ = writeln!(
                out,
                "| {letter}{no} | {} | {} | {} | {} |",
                row.priority(),
                row.statement(),
                cell(names.join("<br>")),
                cell(endings.join("<br>"))
            );
        }
    }
    out
}

/// The rows that two pages tell differently, results aside: those belong to a run, the rest to the tree.
fn differing(catalogue: &Catalogue, fresh: &str, page: &str) -> Vec<String> {
    let rows = |text: &str| -> BTreeMap<Id, String> {
        text.lines()
            .filter_map(|line| {
                let cells = line.strip_prefix("| ")?;
                let (name, _) = cells.split_once(" |")?;
                let mut letters = name.chars();
                let id = (letters.next()?, letters.as_str().parse().ok()?);
                let (told, _result) = cells.trim_end_matches([' ', '|']).rsplit_once(" | ")?;
                Some((id, told.to_owned()))
            })
            .collect()
    };
    let (fresh, page) = (rows(fresh), rows(page));
    let gone = page.keys().filter(|id| !catalogue.has(**id));
    let changed = fresh.iter().filter(|(id, told)| page.get(id) != Some(told)).map(|(id, _)| id);
    changed.chain(gone).map(|(letter, no)| format!("{letter}{no}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = r#"
        [C]
        title = "An arm"
        source = "somewhere"
        finished = false
        [C.rows]
        C1.must = "It goes on."
        C2.should = "It goes on well."
        [P]
        title = "Breakers"
        source = "elsewhere"
        finished = true
        [P.rows]
        P1.must = "It is a row."
        P2.must = "It goes off."
        P3.must = "It stays off."
        P4.could = "It hums."
    "#;

    fn catalogue() -> Catalogue {
        Catalogue::parse(ROWS).expect("a catalogue")
    }

    fn ids(test: &str) -> String {
        let ids = catalogue().named_by(test);
        ids.iter().map(|(l, n)| format!("{l}{n}")).collect::<Vec<_>>().join(" ")
    }

    fn shown(log: &str) -> Tests {
        Tests::of(&catalogue(), &results(log))
    }

    const ALL: &str = "running 3 tests\ntest a::p1_a ... ok\ntest a::p2_a ... ok\ntest a::p3_a ... ok\n";

    #[test]
    fn ids_count_at_the_front_and_only_those_of_the_catalogue() {
        assert_eq!(ids("p1_it_is_a_row"), "P1");
        assert_eq!(ids("p1_p3_c2_many_at_once"), "C2 P1 P3");
        assert_eq!(ids("b49_p2_case31_d5_sc6_p3_between_others"), "P2 P3");
        assert_eq!(ids("case76_77_p4_a_bare_number"), "P4");
        for none in [
            "up_postgres",
            "s_a_worker_at_rest",
            "p99_no_such_row",
            "n1_no_such_system",
            "p1x_no_id",
            "pp1_no_id",
            "main_job_p1_in_the_middle",
            "waits_p2",
            "p",
            "p_1_apart",
            "persistmemory_0_2_0",
            "",
        ] {
            assert_eq!(ids(none), "", "{none}");
        }
    }

    #[test]
    fn every_way_a_test_can_end_is_read() {
        let log = "running 6 tests\n\
                   test a::one ... ok\n\
                   test a::two ... FAILED\n\
                   test b::c::three ... ignored\n\
                   test four ... ignored, nightly\n\
                   test five - should panic ... ok\n\
                   test six ... ok <1.234s>\n\
                   test seven has been running for over 60 seconds\n\
                   \nfailures:\n\n---- a::two stdout ----\ntest a::three ... ok\n\nfailures:\n    a::two\n\n\
                   test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        let expected = [
            ("a::one", Ending::Passed),
            ("a::two", Ending::Failed),
            ("b::c::three", Ending::Nightly),
            ("five", Ending::Passed),
            ("four", Ending::Nightly),
            ("six", Ending::Passed),
        ];
        let found = results(log);
        assert_eq!(found.iter().map(|(n, e)| (n.as_str(), *e)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_others_print_in_between_costs_no_result() {
        // The first program dies before it has summed up.
        let log = "running 7 tests\n\
                   test own_line ... 12:00 WARN somebody else\nok\n\
                   test no_end_of_line ... half a sentenceok\n\
                   no end of line eithertest behind_noise ... ok\n\
                   test much ... one\n  two ... dots\nthree\nignored\n\
                   test lied ... it took a look\n12:01 all is ok\nFAILED\n\
                   test cut ...\nsomething\n\
                   test last ... ok\n\
                   \nfailures:\n    lied\n\
                   Running tests/other.rs\nrunning 1 test\ntest never_ended ... something\n";
        let expected = [
            ("behind_noise", Ending::Passed),
            ("cut", Ending::Unclear),
            ("last", Ending::Passed),
            ("lied", Ending::Failed),
            ("much", Ending::Nightly),
            ("never_ended", Ending::Unclear),
            ("no_end_of_line", Ending::Passed),
            ("own_line", Ending::Passed),
        ];
        let found = results(log);
        assert_eq!(found.iter().map(|(n, e)| (n.as_str(), *e)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn doctests_are_no_tests_of_a_row() {
        let log = "running 3 tests\n\
                   test tests/src/lib.rs - (line 15) - compile ... ok\n\
                   test queue-schema/src/retry.rs - p1_delay (line 3) ... FAILED\n\
                   test a::p1_real ... ok\n\
                   \nfailures:\n    queue-schema/src/retry.rs - p1_delay (line 3)\n\
                   test result: FAILED. 2 passed\n";
        assert_eq!(
            results(log).into_iter().collect::<Vec<_>>(),
            [("a::p1_real".to_owned(), Ending::Passed)]
        );
    }

    #[test]
    fn the_worst_of_two_programs_counts_and_running_beats_resting() {
        let log = "test a::p1_x ... FAILED\ntest a::p1_x ... ok\n\
                   test a::p2_x ... ignored\ntest a::p2_x ... ok\n\
                   test a::p3_x ... ok\ntest b::p3_x ... FAILED\n";
        let tests = shown(log);
        assert_eq!(tests.for_row(('P', 1)).collect::<Vec<_>>(), [("p1_x", Ending::Failed)]);
        assert_eq!(tests.for_row(('P', 2)).collect::<Vec<_>>(), [("p2_x", Ending::Passed)]);
        assert_eq!(tests.for_row(('P', 3)).collect::<Vec<_>>(), [("p3_x", Ending::Failed)]);
    }

    #[test]
    fn a_must_row_of_a_finished_system_needs_a_test_that_passed_or_runs_at_night() {
        let gaps = |log: &str| super::gaps(&catalogue(), &shown(log));
        assert_eq!(gaps(ALL), Vec::<String>::new(), "C is open, P4 only a could");
        assert_eq!(gaps(&ALL.replace("p2_a ... ok", "p2_a ... ignored, nightly")), Vec::<String>::new());
        assert_eq!(
            gaps(&ALL.replace("p2_a", "two")),
            ["P2 has no test: It goes off. One whose name begins with p2_ must show it."]
        );
        assert_eq!(
            gaps(&ALL.replace("p2_a ... ok", "p2_a ... FAILED")),
            ["P2 is not shown: p2_a failed."]
        );
        assert_eq!(
            gaps(&ALL.replace("p3_a ... ok", "p3_a ... ")),
            ["P3 is not shown: p3_a has no result in the log."]
        );
    }

    #[test]
    fn the_page_tells_rows_tests_and_results() {
        let log = format!("{ALL}test p1_b ... ignored\ntest c2_p4_c ... FAILED\n");
        let page = render(&catalogue(), &shown(&log));
        for line in [
            "| C | no | 2 | 1 | 1 | 0 |",
            "| P | yes | 4 | 4 | 3 | 3 |",
            "| C1 | M | It goes on. | – | – |",
            "| C2 | s | It goes on well. | `c2_p4_c` | failed |",
            "| P1 | M | It is a row. | `p1_a`<br>`p1_b` | passed<br>nightly |",
            "| P4 | c | It hums. | `c2_p4_c` | failed |",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn a_page_is_stale_by_rows_and_tests_and_not_by_results() {
        let catalogue = catalogue();
        let page = render(&catalogue, &shown(ALL));
        let against = |other: &str| differing(&catalogue, &page, other);
        let none = Vec::<String>::new();
        assert_eq!(against(&page), none);
        assert_eq!(
            against(&render(&catalogue, &shown(&ALL.replace("ok", "FAILED")))),
            none,
            "another run"
        );
        assert_eq!(against(&render(&catalogue, &shown(&ALL.replace("p2_a", "p2_b")))), ["P2"]);
        assert_eq!(against(&render(&catalogue, &shown(&ALL.replace("p2_a", "p3_b")))), ["P2", "P3"]);
        assert_eq!(against(&page.replace("It goes off.", "It went off.")), ["P2"]);
        assert_eq!(against(&page.replace("| P4 | c |", "| P4 | M |")), ["P4"]);
        assert_eq!(against(&format!("{page}| P5 | M | It is new. | – | – |\n")), ["P5"]);
        assert_eq!(against(""), ["C1", "C2", "P1", "P2", "P3", "P4"]);
    }

    #[test]
    fn a_catalogue_with_a_slip_is_refused_by_name() {
        for (from, to, said) in [
            ("P2.must", "P5.must", "P2 is missing"),
            ("P2.must", "Q2.must", "Q2 is no id of system P"),
            ("P2.must", "P2.ought", "ought"),
            ("It goes off.", "", "P2"),
            ("It goes off.", "a | b", "P2"),
            ("It goes off.", &"x".repeat(91), "P2 has 91 characters"),
            ("[P]", "[P]\ncolour = 1", "colour"),
        ] {
            let refused = Catalogue::parse(&ROWS.replace(from, to)).err().map(|e| format!("{e:#}"));
            assert!(refused.as_ref().is_some_and(|r| r.contains(said)), "{said}: {refused:?}");
        }
    }

    #[test]
    fn the_catalogue_of_this_tree_is_whole() {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/requirements.toml")).expect("the catalogue");
        let catalogue = Catalogue::parse(&text).expect("it reads");
        let rows = catalogue
            .systems
            .iter()
            .map(|(letter, s)| (*letter, s.rows.len()))
            .collect::<Vec<_>>();
        assert_eq!(rows, [('C', 78), ('N', 63), ('P', 38)]);
    }
}
