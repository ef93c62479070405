//! What is printed and written: tables, and plain words on what was met and what was not.

use std::fmt::Write as _;

/// One measure's part of the report.
#[derive(Debug, Default)]
pub struct Section {
    pub title: String,
    /// How it was measured, so that the figures can be read without the source.
    pub about: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    pub aims: Vec<Aim>,
    /// What a reader should hold against the figures.
    pub notes: Vec<String>,
}

/// A number that was promised, and what came out.
#[derive(Clone, Debug)]
pub struct Aim {
    pub what: String,
    pub wanted: String,
    pub got: String,
    pub met: bool,
}

impl Aim {
    pub fn at_least(what: impl Into<String>, wanted: f64, got: f64, digits: usize) -> Self {
        Self {
            what: what.into(),
            wanted: format!("≥ {}", crate::stat::number(wanted, digits)),
            got: crate::stat::number(got, digits),
            met: got >= wanted,
        }
    }

    pub fn at_most(what: impl Into<String>, wanted: f64, got: f64, digits: usize, unit: &str) -> Self {
        Self {
            what: what.into(),
            wanted: format!("≤ {}{unit}", crate::stat::number(wanted, digits)),
            got: format!("{}{unit}", crate::stat::number(got, digits)),
            met: got <= wanted,
        }
    }
}

impl Section {
    pub fn new(title: &str, about: impl Into<String>, header: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            about: about.into(),
            header: header.iter().map(|h| (*h).to_owned()).collect(),
            ..Self::default()
        }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn markdown(&self) -> String {
        let mut out = format!("## {}\n\n{}\n\n", self.title, self.about);
        out.push_str(&table(&self.header, &self.rows));
        for note in &self.notes {
            let _ = write!(out, "\n- {note}");
        }
        if !self.notes.is_empty() {
            out.push('\n');
        }
        out
    }
}

fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let mut out = format!("| {} |\n|{}\n", header.join(" | "), " --- |".repeat(header.len()));
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    out
}

/// The aims of all sections: first what was missed.
pub fn aims(sections: &[Section]) -> String {
    let mut all: Vec<&Aim> = sections.iter().flat_map(|s| &s.aims).collect();
    if all.is_empty() {
        return String::new();
    }
    all.sort_by_key(|a| a.met);
    let missed = all.iter().filter(|a| !a.met).count();
    let word = match missed {
        0 => "All aims were met in this run.".to_owned(),
        n => format!("{n} of {} aims were missed in this run; they come first.", all.len()),
    };
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|a| {
            vec![
                if a.met { "met" } else { "**missed**" }.to_owned(),
                a.what.clone(),
                a.wanted.clone(),
                a.got.clone(),
            ]
        })
        .collect();
    let header: Vec<String> = ["", "what", "aim", "measured"].map(ToOwned::to_owned).to_vec();
    format!("## Aims\n\n{word}\n\n{}", table(&header, &rows))
}
