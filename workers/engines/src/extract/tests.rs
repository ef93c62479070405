use std::io::Cursor;
use std::time::Instant;

use image::{DynamicImage, GrayImage, ImageFormat, Luma, Rgba, RgbaImage};

use super::*;

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/", $name)).as_slice()
    };
}

macro_rules! sample {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../ops/samples/", $name)).as_slice()
    };
}

fn take_with(bytes: &[u8], name: &str, media_type: Option<&str>, limits: &Limits) -> Result<(Summary, Vec<PageContent>), EngineError> {
    let mut pages = Vec::new();
    let summary = extract(bytes, name, media_type, limits, &mut |page| {
        assert_eq!(page.no as usize, pages.len() + 1);
        pages.push(page.content);
        Ok(())
    })?;
    assert_eq!(summary.pages as usize, pages.len());
    assert_eq!(summary.pages, summary.text_pages + summary.image_pages + summary.unreadable_pages);
    Ok((summary, pages))
}

fn take(bytes: &[u8], name: &str) -> Result<Vec<PageContent>, EngineError> {
    take_with(bytes, name, None, &Limits::default()).map(|(_, pages)| pages)
}

fn refusal(bytes: &[u8], name: &str) -> String {
    match take(bytes, name) {
        Err(EngineError::BadInput(sentence)) => sentence,
        other => panic!("{name} should be refused, not {other:?}"),
    }
}

fn text_of(bytes: &[u8]) -> String {
    match take(bytes, "note.txt").expect("text").as_slice() {
        [PageContent::Text(text)] => text.clone(),
        other => panic!("one page of text, not {other:?}"),
    }
}

fn png_of(picture: &DynamicImage) -> Vec<u8> {
    let mut out = Cursor::new(Vec::new());
    picture.write_to(&mut out, ImageFormat::Png).expect("encoded");
    out.into_inner()
}

fn pixels(content: &PageContent) -> GrayImage {
    match content {
        PageContent::Image { png, width, height } => {
            let picture = image::load_from_memory_with_format(png, ImageFormat::Png).expect("a PNG file");
            assert_eq!((picture.width(), picture.height()), (*width, *height));
            assert_eq!(picture.color(), image::ColorType::L8);
            picture.into_luma8()
        }
        other => panic!("a picture, not {other:?}"),
    }
}

/// The fixtures show a black box from (10, 10) to (50, 30) on white.
fn shows_the_box(content: &PageContent) {
    let picture = pixels(content);
    assert_eq!(picture.dimensions(), (120, 60));
    assert!(picture.get_pixel(30, 20).0[0] < 40, "black inside");
    assert!(picture.get_pixel(90, 45).0[0] > 215, "white outside");
}

#[test]
fn text_in_its_encodings() {
    assert_eq!(text_of("Grüße, 世界\n".as_bytes()), "Grüße, 世界\n");
    assert_eq!(text_of(b"\xef\xbb\xbfmarked"), "marked");
    assert_eq!(text_of(b"\xff\xfeG\0\xfc\0"), "Gü");
    assert_eq!(text_of(b"\xfe\xff\0G\0\xfc"), "Gü");
    assert_eq!(text_of(b"Gr\xfc\xdfe f\xfcr 5 \x80"), "Grüße für 5 €");
}

#[test]
fn text_is_repaired_at_the_door() {
    assert_eq!(text_of(b"a\0b"), "a\u{fffd}b");
    assert_eq!(text_of("a\u{fffe}b\u{ffff}".as_bytes()), "a\u{fffd}b\u{fffd}");
    // A lone surrogate, in UTF-16 and smuggled through UTF-8; an odd byte at the end.
    assert_eq!(text_of(b"\xff\xfea\0\x00\xd8b\0"), "a\u{fffd}b");
    assert_eq!(text_of(b"\xff\xfea\0b"), "a\u{fffd}");
    let smuggled = ["ééééééééééééééééééééééééééé ".as_bytes(), b"\xed\xa0\x80 end"].concat();
    assert!(text_of(&smuggled).ends_with("\u{fffd} end"));
}

#[test]
fn a_claim_that_does_not_hold_is_refused() {
    assert!(refusal(b"/etc/hostname\n", "upload.png").starts_with("not an image: "));
    assert!(refusal(b"some words", "report.pdf").starts_with("not a PDF: "));
    assert!(refusal(b"\x00\x01\x02\x03\x04\x05\x06", "photo.JPG").starts_with("not an image"));
    assert!(refusal(b"PK\x03\x04\x00\x00\x00\x00\x00", "letter.docx").contains("no kind that can be read"));
    assert_eq!(refusal(b"", "note.txt"), "the file is empty");
    let refused = take_with(b"some words", "upload", Some("image/png"), &Limits::default());
    assert!(matches!(refused, Err(EngineError::BadInput(text)) if text.starts_with("not an image: ")));
    // The other way round the bytes win: a picture is a picture under any name.
    shows_the_box(&take(fixture!("bilevel.tiff"), "bilevel.txt").expect("a picture")[0]);
}

#[test]
fn long_texts_and_late_starts_are_refused() {
    let limits = Limits {
        max_text_bytes: 10,
        ..Limits::default()
    };
    assert!(matches!(take_with(b"eleven byte", "a.txt", None, &limits), Err(EngineError::BadInput(text)) if text.contains("limit is 10")));
    let limits = Limits {
        deadline: Some(Instant::now()),
        ..Limits::default()
    };
    assert_eq!(take_with(b"words", "a.txt", None, &limits), Err(EngineError::Timeout));
}

#[test]
fn pictures_come_out_grey_upright_and_on_white() {
    let mut drawn = RgbaImage::from_pixel(4, 2, Rgba([0, 0, 0, 0]));
    drawn.put_pixel(3, 0, Rgba([0, 0, 0, 255]));
    let pages = take(&png_of(&DynamicImage::ImageRgba8(drawn)), "a.png").expect("a picture");
    let picture = pixels(&pages[0]);
    assert_eq!((picture.get_pixel(0, 0).0[0], picture.get_pixel(3, 0).0[0]), (255, 0));

    // Stored lying, marked to be turned right: the box moves from the upper left to the upper right.
    let turned = pixels(&take(fixture!("turned.jpg"), "turned.jpg").expect("a picture")[0]);
    assert_eq!(turned.dimensions(), (60, 120));
    assert!(turned.get_pixel(40, 30).0[0] < 40 && turned.get_pixel(10, 30).0[0] > 215);

    for format in [
        ImageFormat::Jpeg,
        ImageFormat::WebP,
        ImageFormat::Bmp,
        ImageFormat::Pnm,
        ImageFormat::Gif,
        ImageFormat::Tiff,
    ] {
        let mut file = Cursor::new(Vec::new());
        DynamicImage::ImageRgb8(image::RgbImage::from_pixel(9, 5, image::Rgb([200, 200, 200])))
            .write_to(&mut file, format)
            .expect("encoded");
        let pages = take(file.get_ref(), "picture").expect("a picture");
        assert!(pixels(&pages[0]).pixels().all(|pixel| pixel.0[0].abs_diff(200) < 6), "{format:?}");
    }
}

#[test]
fn a_bomb_is_refused_by_its_header() {
    // The header of a PNG of 20,000 × 20,000 pixels; its data would never be reached.
    let mut bomb = png_of(&DynamicImage::ImageLuma8(GrayImage::new(1, 1)));
    bomb[16..24].copy_from_slice(&[0, 0, 0x4e, 0x20, 0, 0, 0x4e, 0x20]);
    let mut crc = 0xffff_ffff_u32;
    for byte in &bomb[12..29] {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    bomb[29..33].copy_from_slice(&(!crc).to_be_bytes());
    let sentence = refusal(&bomb, "bomb.png");
    assert!(sentence.contains("20000 × 20000") && sentence.contains("60 million"), "{sentence}");
}

#[test]
fn damaged_pictures_are_refused() {
    let scan = sample!("contract-scan.png");
    for length in [8, 20, 40, 1000, scan.len() / 2] {
        assert!(refusal(&scan[..length], "scan.png").contains("damaged or cut off"), "{length}");
    }
    let photo = fixture!("turned.jpg");
    for length in [20, photo.len() / 2, photo.len() - 2] {
        assert!(refusal(&photo[..length], "photo.jpg").contains("damaged or cut off"), "{length}");
    }
    let whole = [photo, b"\xff\xdb\0\0 appended by the camera"].concat();
    assert!(take(&whole, "photo.jpg").is_ok());
    let scan = sample!("letter-scan.tiff");
    for length in [4, 8, 2000] {
        refusal(&scan[..length], "scan.tiff");
    }
    // Of a fax cut in the middle the first page is there, and it is said that there was more.
    let pages = take(&scan[..scan.len() / 2], "scan.tiff").expect("the first page");
    assert!(
        matches!(pages.as_slice(), [PageContent::Image { .. }, PageContent::Unreadable { .. }]),
        "{pages:?}"
    );
    assert!(refusal(b"P5\n3 4\n255\nab", "cut.pgm").contains("damaged or cut off"));
}

#[test]
fn every_page_of_a_tiff() {
    let (summary, pages) =
        take_with(sample!("letter-scan.tiff"), "letter.tiff", Some("image/tiff"), &Limits::default()).expect("two pages");
    assert_eq!((summary.kind, summary.pages, summary.image_pages), (Kind::Tiff, 2, 2));
    for page in &pages {
        let picture = pixels(page);
        assert_eq!(picture.dimensions(), (1240, 1754));
        // Black letters on white, not the negative.
        let white = picture.pixels().filter(|pixel| **pixel == Luma([255])).count();
        assert!(white * 10 > picture.pixels().len() * 8, "the sheet is white");
    }
    let limits = Limits {
        max_pages: 1,
        ..Limits::default()
    };
    assert!(
        matches!(take_with(sample!("letter-scan.tiff"), "a.tif", None, &limits), Err(EngineError::BadInput(text)) if text.contains("2 pages"))
    );
}

#[test]
fn kinds_of_tiff() {
    for file in [fixture!("bilevel.tiff"), fixture!("jpeg.tiff"), fixture!("cmyk.tiff")] {
        shows_the_box(&take(file, "a.tiff").expect("readable")[0]);
    }
    for file in [fixture!("palette.tiff"), fixture!("group3.tiff")] {
        assert!(refusal(file, "a.tiff").contains("page 1 of the TIFF"));
    }
}

#[test]
fn an_odd_page_does_not_cost_its_neighbours() {
    let (summary, pages) = take_with(fixture!("odd-first.tiff"), "odd.tiff", None, &Limits::default()).expect("one page is good");
    assert_eq!((summary.unreadable_pages, summary.image_pages), (1, 1));
    assert!(
        matches!(&pages[0], PageContent::Unreadable { note } if note.contains("page 1") && note.contains("colour layout")),
        "{:?}",
        pages[0]
    );
    shows_the_box(&pages[1]);
}

#[test]
fn a_tiff_that_bites_its_tail_ends() {
    // The directory chain of a file with one page, bent back to its own first directory.
    let mut file = fixture!("bilevel.tiff").to_vec();
    let start = u32::from_le_bytes([file[4], file[5], file[6], file[7]]) as usize;
    let entries = usize::from(u16::from_le_bytes([file[start], file[start + 1]]));
    let next = start + 2 + entries * 12;
    file[next..next + 4].copy_from_slice(&(start as u32).to_le_bytes());
    let pages = take(&file, "a.tiff").expect("its page is good");
    shows_the_box(&pages[0]);
    assert!(matches!(&pages[1], PageContent::Unreadable { note } if note.contains("broken")));
    assert_eq!(pages.len(), 2);
}

#[test]
fn a_text_layer_is_used() {
    let (summary, pages) = take_with(fixture!("text.pdf"), "text.pdf", Some("application/pdf"), &Limits::default()).expect("three pages");
    assert_eq!((summary.kind, summary.text_pages), (Kind::Pdf, 3));
    assert_eq!(
        pages[0],
        PageContent::Text("The first line of the page.\nAnd the second, in two strokes.".into())
    );
    assert_eq!(pages[1], PageContent::Text("What an earlier reading left behind a scan.".into()));
    assert_eq!(pages[2], PageContent::Text(String::new()));
}

#[test]
fn a_page_without_text_is_drawn() {
    let (summary, pages) = take_with(sample!("report-scan.pdf"), "report.pdf", None, &Limits::default()).expect("a page");
    assert_eq!((summary.pages, summary.image_pages), (1, 1));
    let picture = pixels(&pages[0]);
    assert!(
        picture.width().abs_diff(1240) <= 1 && picture.height().abs_diff(1754) <= 1,
        "pixel for pixel"
    );
    assert!(picture.pixels().any(|pixel| pixel.0[0] < 60) && picture.pixels().any(|pixel| pixel.0[0] > 250));

    let limits = Limits {
        max_drawn_pixels: 100_000,
        ..Limits::default()
    };
    let (_, pages) = take_with(sample!("report-scan.pdf"), "report.pdf", None, &limits).expect("a page");
    assert!(pixels(&pages[0]).pixels().len() <= 100_000);

    // What the picture inside would unpack to is known before it is unpacked.
    let limits = Limits {
        max_pixels: 1_000_000,
        ..Limits::default()
    };
    let refused = take_with(sample!("report-scan.pdf"), "report.pdf", None, &limits);
    assert!(matches!(refused, Err(EngineError::BadInput(text)) if text.contains("1240 × 1754")));
}

#[test]
fn locked_pdfs() {
    assert!(refusal(fixture!("user-locked.pdf"), "a.pdf").contains("encrypted and needs a password"));
    // Only printing and the like is forbidden: it opens without a password.
    let pages = take(fixture!("owner-locked.pdf"), "a.pdf").expect("readable");
    assert!(matches!(&pages[0], PageContent::Text(text) if text.starts_with("The first line")));
}

#[test]
fn damaged_pdfs() {
    let scan = sample!("report-scan.pdf");
    for length in [8, 100, 2000, scan.len() / 2, scan.len() - 30] {
        assert!(refusal(&scan[..length], "scan.pdf").contains("cut off"), "{length}");
    }
    assert!(refusal(b"%PDF-1.7\nnothing in here\n%%EOF\n", "a.pdf").contains("damaged"));
    // A scan whose picture is spoilt would be drawn as a white sheet and pass for an empty page.
    let end = find_last(scan, b"endstream");
    let start = find_last(&scan[..end], b"stream\n") + 7;
    for from in [start, start + 9000] {
        let mut spoilt = scan.to_vec();
        spoilt[from..from + 2000].fill(0xff);
        assert!(refusal(&spoilt, "a.pdf").contains("picture on page 1"), "spoilt at {from}");
    }
}

#[test]
fn a_picture_in_a_pdf_that_swells_is_refused() {
    // The same page, said to be 8 × 8 pixels large.
    let mut small = sample!("report-scan.pdf").to_vec();
    let at = find_last(&small, b"/Width 1240 /Height 1754");
    small[at..at + 24].copy_from_slice(b"/Width    8 /Height    8");
    // Two megabytes of pixels are above the slack of one.
    assert!(refusal(&small, "a.pdf").contains("unpacks to far more"));
}

fn find_last(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes
        .windows(wanted.len())
        .rposition(|window| window == wanted)
        .expect("it is in there")
}

#[test]
fn the_sink_can_stop_the_work() {
    let mut seen = 0;
    let stopped = extract(sample!("letter-scan.tiff"), "letter.tiff", None, &Limits::default(), &mut |_| {
        seen += 1;
        Err(EngineError::Cancelled)
    });
    assert_eq!((stopped, seen), (Err(EngineError::Cancelled), 1));
}

#[test]
fn a_panic_in_a_decoder_is_a_sentence() {
    let refused: Result<(), _> = crate::guard("the file", || panic!("index out of bounds"));
    assert!(matches!(refused, Err(EngineError::BadInput(text)) if text.starts_with("the file is damaged") && !text.contains("index")));
}
