//! `DIR/env`: where a running house answers and with which token, written by `up` and read by every other verb.
//!
//! A name is looked up in the process's environment first, then in the file that `STEADFAST_ENV_FILE` names, and without that
//! in the first `.steadfast/env` in this folder or one above it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// Where the API answers, e.g. `http://127.0.0.1:7787`, without a slash at its end.
pub(crate) const URL: &str = "STEADFAST_URL";
/// A bearer token for the API.
pub(crate) const TOKEN: &str = "STEADFAST_TOKEN";
/// The owner's connection: migrations, tokens and every verb that changes rows need it.
pub(crate) const DATABASE_URL: &str = "STEADFAST_DATABASE_URL";

/// The value of `name`, or an error that says where it was looked for.
pub(crate) fn get(name: &str) -> Result<String> {
    find(name)?.with_context(|| {
        format!(
            "{name} is not known: no such environment variable, and {}; start `ops/up` here, or set {name} or STEADFAST_ENV_FILE",
            match file() {
                Some(file) => format!("{} does not have it", file.display()),
                None => "no .steadfast/env in this folder or above it".to_owned(),
            }
        )
    })
}

/// The value of `name`, or `None` when nobody says.
///
/// # Errors
/// When the file is there and cannot be read or understood.
pub(crate) fn find(name: &str) -> Result<Option<String>> {
    if let Ok(value) = std::env::var(name)
        && !value.is_empty()
    {
        return Ok(Some(value));
    }
    Ok(match file() {
        Some(file) => read(&file)?.remove(name),
        None => None,
    })
}

/// The file that [`find`] reads.
pub(crate) fn file() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("STEADFAST_ENV_FILE").filter(|name| !name.is_empty()) {
        return Some(named.into());
    }
    let here = std::env::current_dir().ok()?;
    here.ancestors()
        .map(|folder| folder.join(".steadfast/env"))
        .find(|file| file.is_file())
}

/// All names of one such file.
pub(crate) fn read(file: &Path) -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    parse(&text).with_context(|| format!("cannot understand {}", file.display()))
}

/// Writes all names at once or not at all, readable by nobody else (0600).
pub(crate) fn write(file: &Path, values: &BTreeMap<String, String>) -> Result<()> {
    let text = format!(
        "# Written by `steadfast up`. It holds secrets. For a shell: set -a; . this-file\n{}",
        render(values)
    );
    write_private(file, text.as_bytes())
}

/// Puts `bytes` in the place of `file` in one step, mode 0600.
pub(crate) fn write_private(file: &Path, bytes: &[u8]) -> Result<()> {
    let folder = file.parent().context("a file has a folder")?;
    let put = || -> std::io::Result<()> {
        let mut new = tempfile::Builder::new()
            .permissions(std::fs::Permissions::from_mode(0o600))
            .tempfile_in(folder)?;
        new.write_all(bytes)?;
        new.as_file().sync_all()?;
        new.persist(file).map_err(|error| error.error)?;
        Ok(())
    };
    put().with_context(|| format!("cannot write {}", file.display()))
}

fn render(values: &BTreeMap<String, String>) -> String {
    values
        .iter()
        .map(|(name, value)| format!("{name}='{}'\n", value.replace('\'', r"'\''")))
        .collect()
}

/// The part of a shell's syntax that [`render`] writes, plus bare and double-quoted words that a person may have typed.
fn parse(text: &str) -> Result<BTreeMap<String, String>> {
    let mut values = BTreeMap::new();
    for (no, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, word)) = line.strip_prefix("export ").unwrap_or(line).split_once('=') else {
            bail!("line {}: NAME='value' expected", no + 1);
        };
        let value = unquote(word).with_context(|| format!("line {}: a quote is not closed", no + 1))?;
        values.insert(name.trim().to_owned(), value);
    }
    Ok(values)
}

fn unquote(word: &str) -> Option<String> {
    let mut value = String::new();
    let mut letters = word.chars();
    while let Some(letter) = letters.next() {
        match letter {
            quote @ ('\'' | '"') => loop {
                match letters.next()? {
                    end if end == quote => break,
                    '\\' if quote == '"' => value.push(letters.next()?),
                    inside => value.push(inside),
                }
            },
            '\\' => value.push(letters.next()?),
            plain => value.push(plain),
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let values = BTreeMap::from([
            (URL.to_owned(), "http://127.0.0.1:1".to_owned()),
            (TOKEN.to_owned(), r#"it's "odd" $HOME \x"#.to_owned()),
        ]);
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("env");
        write(&file, &values).expect("written");
        assert_eq!(read(&file).expect("read"), values);
        assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_a_person_types_is_understood() {
        let values = parse("# note\n\nexport A=1\nB=\"two words\"\nC='it'\\''s'\n").expect("parsed");
        assert_eq!(values["A"], "1");
        assert_eq!(values["B"], "two words");
        assert_eq!(values["C"], "it's");
        assert!(parse("A='open").is_err());
        assert!(parse("nonsense").is_err());
    }
}
