//! What providers say, made safe to read and safe to show: text that is nearly JSON, and errors that quote the input.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value;

/// A run of this many characters of a sent text inside an error is content.
const ECHO: usize = 16;

/// Any bytes as text; what is no UTF-8 becomes U+FFFD. A byte order mark is dropped.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes))
}

/// JSON, or JSON as soon as what [`repair`] mends is mended.
pub(super) fn lenient(body: &str) -> Option<Value> {
    serde_json::from_str(body).ok().or_else(|| serde_json::from_str(&repair(body)).ok())
}

/// Mends the two things that real servers write and a JSON reader must refuse: escapes of half a surrogate pair (become
/// U+FFFD), and the bare words `NaN` and `Infinity` (become `null`).
pub(super) fn repair(body: &str) -> String {
    let b = body.as_bytes();
    let mut out: Vec<u8> = Vec::with_capacity(b.len());
    let mut in_string = false;
    let mut i = 0;
    while i < b.len() {
        let rest = &b[i..];
        if in_string {
            if rest[0] == b'\\' {
                let step = match (unit(rest), rest.get(6..).and_then(unit)) {
                    (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
                    (Some(0xD800..=0xDFFF), _) => {
                        out.extend_from_slice(b"\\uFFFD");
                        i += 6;
                        continue;
                    }
                    _ => 2,
                };
                out.extend_from_slice(&rest[..step.min(rest.len())]);
                i += step;
                continue;
            }
            in_string = rest[0] != b'"';
        } else if rest[0] == b'"' {
            in_string = true;
        } else if let Some(word) = [&b"NaN"[..], b"-Infinity", b"Infinity", b"-NaN"]
            .into_iter()
            .find(|w| rest.starts_with(w))
        {
            out.extend_from_slice(b"null");
            i += word.len();
            continue;
        }
        out.push(rest[0]);
        i += 1;
    }
    String::from_utf8(out).unwrap_or_else(|_| body.to_owned())
}

/// The code unit of a leading `\uXXXX`.
fn unit(b: &[u8]) -> Option<u16> {
    let hex = b.strip_prefix(b"\\u")?.get(..4)?;
    if !hex.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
}

pub(super) fn is_html(content_type: Option<&str>, body: &str) -> bool {
    if content_type.is_some_and(|c| c.trim_start().to_ascii_lowercase().starts_with("text/html")) {
        return true;
    }
    let start: String = body.trim_start().chars().take(15).collect::<String>().to_ascii_lowercase();
    start.starts_with("<!doctype html") || start.starts_with("<html") || start.starts_with("<head")
}

/// Short, and of the letters codes are made of: a sentence or a piece of content is not.
pub(super) fn looks_like_a_code(s: &str) -> bool {
    (1..=64).contains(&s.len()) && s.bytes().all(|c| c.is_ascii_alphanumeric() || b"_.:-".contains(&c))
}

/// Takes whole quotations of the sent texts out of a body, so that it is judged by the provider's words and not by ours.
pub(super) fn without<'a>(body: &'a str, texts: &[String]) -> Cow<'a, str> {
    let mut body = Cow::Borrowed(body);
    for text in texts.iter().filter(|t| t.len() >= 4) {
        let escaped = serde_json::to_string(text).unwrap_or_default();
        for form in [text.as_str(), escaped.trim_matches('"')] {
            if !form.is_empty() && body.contains(form) {
                body = Cow::Owned(body.replace(form, " "));
            }
        }
    }
    body
}

/// A provider's words with the key masked, or nothing at all when they repeat what was sent: a run of 16 characters of a
/// text, or the whole of a shorter one.
pub(crate) fn withhold(said: &str, texts: &[String], key: Option<&str>) -> Option<String> {
    let mut said: String = said.chars().take(600).collect();
    if let Some(key) = key.filter(|k| !k.is_empty()) {
        said = said.replace(key, "***");
    }
    if echoes(&said, texts) { None } else { Some(said) }
}

fn echoes(said: &str, texts: &[String]) -> bool {
    let said = folded(said);
    let windows: HashSet<&[char]> = said.windows(ECHO).collect();
    texts.iter().any(|text| {
        let text = folded(text);
        if text.len() >= ECHO {
            text.windows(ECHO).any(|w| windows.contains(w))
        } else {
            text.len() >= 4 && said.windows(text.len()).any(|w| w == text.as_slice())
        }
    })
}

/// Lower case, and every run of white space one blank: how a quotation usually differs from what it quotes.
fn folded(s: &str) -> Vec<char> {
    let mut out: Vec<char> = Vec::with_capacity(s.len());
    for c in s.trim().chars() {
        let c = if c.is_whitespace() || c.is_control() { ' ' } else { c };
        if c != ' ' || out.last() != Some(&' ') {
            out.extend(c.to_lowercase());
        }
    }
    out
}

/// Text as the house keeps it: no NUL and no other control characters but line feed and tab, no U+FFFE and U+FFFF; one kind
/// of line end. Done once, at the door, so that nothing behind it has to.
pub(super) fn clean(s: &str) -> String {
    let s = s.replace("\r\n", "\n");
    let kept = s.chars().map(|c| match c {
        '\n' | '\t' => c,
        '\r' | '\u{000C}' | '\u{000B}' => '\n',
        '\u{FFFE}' | '\u{FFFF}' => '\u{FFFD}',
        c if c.is_control() => ' ',
        c => c,
    });
    kept.collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_mends_half_pairs_and_leaves_the_rest() {
        for (raw, expected) in [
            (r#""a\ud83db""#, "a\u{FFFD}b"),
            (r#""\ude00""#, "\u{FFFD}"),
            (r#""\ud83d\ude00""#, "\u{1F600}"),
            (r#""\\ud83d""#, "\\ud83d"),
            (r#""\ud83d\n""#, "\u{FFFD}\n"),
            (r#""NaN""#, "NaN"),
            (r#""ü\"\ud800""#, "ü\"\u{FFFD}"),
        ] {
            assert_eq!(lenient(raw), Some(Value::String(expected.to_owned())), "{raw}");
        }
        assert_eq!(lenient("[NaN,-Infinity,1]"), Some(serde_json::json!([null, null, 1])));
        assert_eq!(lenient("{"), None);
        assert_eq!(lenient("\"\\"), None);
    }

    #[test]
    fn c40_words_that_repeat_the_input_are_withheld() {
        let texts = vec!["the patient was admitted\non Tuesday".to_owned(), "short".to_owned()];
        assert_eq!(withhold("bad input: 'THE PATIENT WAS admitted…'", &texts, None), None);
        assert_eq!(withhold("bad input: 'short'", &texts, None), None);
        assert_eq!(withhold("model not found", &texts, None).as_deref(), Some("model not found"));
        assert_eq!(
            withhold("key sk-abc refused", &texts, Some("sk-abc")).as_deref(),
            Some("key *** refused")
        );
    }

    #[test]
    fn case100_text_is_cleaned_once() {
        assert_eq!(clean("a\u{0}b\r\nc\rd\u{FFFE}\u{E000}\t "), "a b\nc\nd\u{FFFD}\u{E000}");
    }
}
