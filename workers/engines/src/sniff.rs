//! What a file is, by its first bytes: the name and the declared media type are claims, the bytes are facts.
//!
//! Own checks instead of a crate: only eleven answers are needed, each must be strict enough that prose is never mistaken for an image
//! ("BM…" opens a bitmap and also the word BMW; "P1 2 items" opens a portable bitmap and also a list), and the answer guards
//! [`crate::tesseract`], where a wrong "image" becomes a file disclosure.

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// PNG image.
    Png,
    /// JPEG image.
    Jpeg,
    /// TIFF or BigTIFF, possibly with many pages.
    Tiff,
    /// WebP image.
    WebP,
    /// Windows bitmap.
    Bmp,
    /// Portable bitmap, greymap, pixmap or anymap (P1 to P7).
    Pnm,
    /// GIF image.
    Gif,
    /// PDF document.
    Pdf,
    /// Text in UTF-8, UTF-16 with a byte order mark, or a Latin single-byte encoding.
    Text,
    /// None of these, or empty.
    Unknown,
}

impl Kind {
    /// True for everything that is a picture. A PDF is not one: it may hold several, or none.
    #[must_use]
    pub fn is_image(self) -> bool {
        matches!(
            self,
            Kind::Png | Kind::Jpeg | Kind::Tiff | Kind::WebP | Kind::Bmp | Kind::Pnm | Kind::Gif
        )
    }

    /// A name for sentences to people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Png => "PNG image",
            Kind::Jpeg => "JPEG image",
            Kind::Tiff => "TIFF image",
            Kind::WebP => "WebP image",
            Kind::Bmp => "BMP image",
            Kind::Pnm => "PNM image",
            Kind::Gif => "GIF image",
            Kind::Pdf => "PDF",
            Kind::Text => "text",
            Kind::Unknown => "unknown",
        }
    }
}

/// Name the kind of `bytes`. Looks at the head of the file for magic numbers and at all of it for text; never fails.
#[must_use]
pub fn sniff(bytes: &[u8]) -> Kind {
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        Kind::Png
    } else if bytes.starts_with(b"\xff\xd8\xff") {
        Kind::Jpeg
    } else if is_tiff(bytes) {
        Kind::Tiff
    } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        Kind::WebP
    } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        Kind::Gif
    } else if is_bmp(bytes) {
        Kind::Bmp
    } else if is_pnm(bytes) {
        Kind::Pnm
    } else if is_pdf(bytes) {
        Kind::Pdf
    } else if is_text(bytes) {
        Kind::Text
    } else {
        Kind::Unknown
    }
}

fn is_tiff(bytes: &[u8]) -> bool {
    [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"]
        .iter()
        .any(|magic| bytes.starts_with(*magic))
}

/// "BM" alone would take a text about BMW: the reserved words must be zero and the size of the second header one that exists.
fn is_bmp(bytes: &[u8]) -> bool {
    bytes.starts_with(b"BM")
        && bytes.get(6..10) == Some(&[0; 4])
        && bytes.get(14..18).is_some_and(|size| {
            matches!(
                u32::from_le_bytes([size[0], size[1], size[2], size[3]]),
                12 | 16 | 40 | 52 | 56 | 64 | 108 | 124
            )
        })
}

/// P1 to P6 must go on with a width and a height, P7 with its WIDTH line or another of its keywords.
fn is_pnm(bytes: &[u8]) -> bool {
    let Some((&[b'P', digit @ b'1'..=b'7'], rest)) = bytes.split_first_chunk::<2>() else {
        return false;
    };
    if digit == b'7' {
        return [&b"\nWIDTH "[..], b"\nHEIGHT ", b"\nDEPTH ", b"\nMAXVAL ", b"\nTUPLTYPE ", b"\n#"]
            .iter()
            .any(|key| rest.starts_with(key));
    }
    // The maximum value of a pixmap is left to the decoder; two numbers are what prose does not have here.
    let mut numbers = 0;
    let mut at = 0;
    while numbers < 2 {
        let before = at;
        while let Some(byte) = rest.get(at) {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => at += 1,
                b'#' => at += rest[at..].iter().take_while(|byte| **byte != b'\n').count(),
                _ => break,
            }
        }
        let digits = rest[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if at == before || digits == 0 {
            return false;
        }
        at += digits;
        numbers += 1;
    }
    rest.get(at).is_some_and(|byte| byte.is_ascii_whitespace())
}

/// Readers look for the mark in the first kilobyte. Here it must open the file (white space and a byte order mark aside), so that
/// a text that talks about PDFs stays a text.
fn is_pdf(bytes: &[u8]) -> bool {
    bytes
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(bytes)
        .trim_ascii_start()
        .starts_with(b"%PDF-")
}

fn is_text(bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return false;
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return true;
    }
    let controls = bytes.iter().filter(|byte| is_control(**byte)).count();
    if std::str::from_utf8(bytes).is_ok() {
        // A stray NUL or two is repaired at the door; an archive of NUL-padded blocks is no text although it is valid UTF-8.
        return controls <= 4.max(bytes.len() / 50);
    }
    let high = bytes.iter().filter(|byte| **byte >= 0x80).count();
    let broken_utf8 = mostly_utf8(bytes) && controls <= 4.max(bytes.len() / 50);
    // A single-byte Latin text has no control bytes and is ASCII for the most part, which compressed data never is.
    broken_utf8 || (controls == 0 && high * 2 <= bytes.len())
}

fn is_control(byte: u8) -> bool {
    (byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b)) || byte == 0x7f
}

/// True when far more non-ASCII characters are well-formed UTF-8 than not: a UTF-8 text with a few broken places (a cut end, a lone
/// surrogate) and not a text in another encoding.
pub(crate) fn mostly_utf8(bytes: &[u8]) -> bool {
    let (mut good, mut broken) = (0_usize, 0_usize);
    for piece in bytes.utf8_chunks() {
        good += piece.valid().chars().filter(|char| !char.is_ascii()).count();
        broken += usize::from(!piece.invalid().is_empty());
    }
    good > 8 * broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magic_numbers_name_the_kind() {
        assert_eq!(sniff(b"\x89PNG\r\n\x1a\n...."), Kind::Png);
        assert_eq!(sniff(b"\xff\xd8\xff\xe0JFIF"), Kind::Jpeg);
        assert_eq!(sniff(b"II*\0\x08\0\0\0"), Kind::Tiff);
        assert_eq!(sniff(b"MM\0+\0\x08\0\0"), Kind::Tiff);
        assert_eq!(sniff(b"RIFF\x10\0\0\0WEBPVP8 "), Kind::WebP);
        assert_eq!(sniff(b"GIF89a\x01\0"), Kind::Gif);
        assert_eq!(sniff(b"P5\n# a comment\n3 4\n255\n"), Kind::Pnm);
        assert_eq!(sniff(b"P7\nWIDTH 4\n"), Kind::Pnm);
        assert_eq!(sniff(b"\n%PDF-1.7\n%\xe2\xe3\xcf\xd3"), Kind::Pdf);
        let mut bmp = b"BM\x40\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
        assert_eq!(sniff(&bmp), Kind::Bmp);
        bmp[14] = 41;
        assert_ne!(sniff(&bmp), Kind::Bmp);
    }

    #[test]
    fn prose_that_opens_like_an_image_is_text() {
        for text in [
            "BMW recalls a car",
            "P1 2 items for Monday",
            "P5 is the fifth person",
            "P7 matters",
            "GIF is a format",
            "II* is a grade",
        ] {
            assert_eq!(sniff(text.as_bytes()), Kind::Text, "{text}");
        }
        assert_eq!(sniff(b"/etc/hostname\n"), Kind::Text);
        assert_eq!(sniff(b"The mark is %PDF-1.7 at the start"), Kind::Text);
    }

    #[test]
    fn text_in_its_encodings() {
        assert_eq!(sniff("Grüße, 世界".as_bytes()), Kind::Text);
        assert_eq!(sniff(b"\xff\xfeh\0i\0"), Kind::Text);
        assert_eq!(sniff(b"Gr\xfc\xdfe aus K\xf6ln"), Kind::Text);
        assert_eq!(sniff(b"one\0stray NUL"), Kind::Text);
        assert_eq!(
            sniff(
                "Привет мир и ещё немного слов"
                    .as_bytes()
                    .split_last()
                    .map(|(_, head)| head)
                    .unwrap_or_default()
            ),
            Kind::Text
        );
    }

    #[test]
    fn binaries_and_nothing_are_unknown() {
        assert_eq!(sniff(b""), Kind::Unknown);
        assert_eq!(sniff(b"PK\x03\x04\x14\0\0\0\x08\0\x9c\xfe\x11"), Kind::Unknown);
        assert_eq!(sniff(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"), Kind::Unknown);
        assert_eq!(sniff(&[0; 512]), Kind::Unknown);
    }
}
