//! Text files: find the encoding, and repair once, at the door, what the database or a reader behind would stumble over.

use super::Limits;
use crate::EngineError;
use crate::sniff::mostly_utf8;

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<String, EngineError> {
    if bytes.len() > limits.max_text_bytes {
        return Err(EngineError::BadInput(format!(
            "the text is {} bytes long, the limit is {}: split it into smaller files",
            bytes.len(),
            limits.max_text_bytes
        )));
    }
    let text = if let Some(rest) = bytes.strip_prefix(b"\xff\xfe") {
        utf16(rest, u16::from_le_bytes)
    } else if let Some(rest) = bytes.strip_prefix(b"\xfe\xff") {
        utf16(rest, u16::from_be_bytes)
    } else {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) if mostly_utf8(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Err(_) => bytes.iter().map(|byte| windows_1252(*byte)).collect(),
        }
    };
    Ok(repair(text))
}

/// Replace by U+FFFD what is no character: NUL, which Postgres cannot store in text, and the non-characters U+FFFE and U+FFFF, which
/// XML and JSON readers refuse. Lone surrogates cannot be in a Rust string: decoding has replaced them already.
#[must_use]
pub fn repair(text: String) -> String {
    const BAD: [char; 3] = ['\0', '\u{fffe}', '\u{ffff}'];
    if text.contains(BAD) { text.replace(BAD, "\u{fffd}") } else { text }
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let (pairs, odd) = bytes.as_chunks::<2>();
    let units = pairs.iter().map(|pair| unit(*pair));
    let mut text: String = char::decode_utf16(units).map(|char| char.unwrap_or('\u{fffd}')).collect();
    if !odd.is_empty() {
        text.push('\u{fffd}');
    }
    text
}

/// Latin-1 as it is really found: its control range 0x80 to 0x9f holds the quotes, dashes and the euro of Windows-1252.
fn windows_1252(byte: u8) -> char {
    const HIGH: [char; 32] = [
        '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}', '‘', '’', '“', '”', '•',
        '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
    ];
    match byte {
        0x80..=0x9f => HIGH[usize::from(byte - 0x80)],
        _ => char::from(byte),
    }
}
