//! PDF: a page with a text layer gives its text, any other page is drawn and handed on as a picture.
//!
//! One crate does both. hayro draws pages without native code; the same interpreter tells a [`Device`] which glyphs it would draw and what
//! characters they stand for, which is a text layer. A second crate for text would parse the file a second time with other opinions about
//! what is damaged. Of a page that mixes text and pictures of text, the text layer wins unless a picture covers the page.

use std::collections::HashSet;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hayro::hayro_interpret::font::{Glyph, GlyphRun};
use hayro::hayro_interpret::hayro_cmap::{BfString, WritingMode};
use hayro::hayro_interpret::hayro_syntax::object::Name;
use hayro::hayro_interpret::hayro_syntax::object::dict::keys::{BITS_PER_COMPONENT, BPC, COLORSPACE};
use hayro::hayro_interpret::hayro_syntax::page::Page;
use hayro::hayro_interpret::hayro_syntax::{DecryptionError, Filter, LoadPdfError, Pdf};
use hayro::hayro_interpret::{
    BlendMode, ClipPath, Context, Device, DrawMode, DrawProps, Image, ImageDrawProps, InterpreterCache, InterpreterSettings,
    InterpreterWarning, SoftMask, TransformExt, interpret_page,
};
use hayro::kurbo::{Affine, BezPath, Point, Rect, Vec2};
use hayro::vello_cpu::color::palette::css::WHITE;
use hayro::{PixmapSettings, RenderCache, RenderSettings};
use image::GrayImage;

use super::{Limits, PageContent, Pages, jpeg, picture, repair};
use crate::{EngineError, guard};

/// Visible characters below which a page under a large picture counts as a scan with a stamp on it.
const STAMP: usize = 200;
/// Share of the sheet from which on a picture is what the page is about.
const COVERS: f64 = 0.5;

pub(super) fn pages(bytes: &[u8], limits: &Limits, out: &mut Pages<'_>) -> Result<(), EngineError> {
    check_end(bytes)?;
    let pdf = guard("the PDF", || Pdf::new(bytes.to_vec()).map_err(load_error))?;
    let count = guard("the PDF", || Ok(pdf.pages().len()))?;
    limits.check_pages(count)?;
    for (index, page) in pdf.pages().iter().enumerate() {
        limits.check_deadline()?;
        let what = format!("page {} of the PDF", index + 1);
        // Fresh caches for each page: fonts are parsed again, but a thousand pages of pictures do not pile up.
        let made = guard(&what, || content(page, &what, limits));
        out.push_or_note(made)?;
    }
    Ok(())
}

/// Readers repair a file whose end is missing and show what is left. For an archive that is the worst outcome: a page that looks empty and
/// reports success. The end mark is the last thing a writer writes, so its absence is the one sure sign.
fn check_end(bytes: &[u8]) -> Result<(), EngineError> {
    let padding = bytes
        .iter()
        .rev()
        .take_while(|byte| **byte == 0 || byte.is_ascii_whitespace())
        .count();
    let bytes = &bytes[..bytes.len() - padding];
    let tail = &bytes[bytes.len().saturating_sub(4096)..];
    let has = |mark: &[u8]| tail.windows(mark.len()).any(|window| window == mark);
    if has(b"%%EOF") || has(b"startxref") {
        return Ok(());
    }
    Err(EngineError::BadInput(
        "the PDF is cut off: its end is missing, send the complete file".into(),
    ))
}

fn load_error(error: LoadPdfError) -> EngineError {
    EngineError::BadInput(
        match error {
            LoadPdfError::Decryption(DecryptionError::PasswordProtected) => {
                "the PDF is encrypted and needs a password: save it without one and send it again"
            }
            LoadPdfError::Decryption(_) => {
                "the PDF is encrypted in a way that cannot be read: save it without encryption and send it again"
            }
            LoadPdfError::Invalid => "the PDF is damaged and cannot be opened: export it again",
        }
        .into(),
    )
}

fn content<'a>(page: &'a Page<'a>, what: &str, limits: &Limits) -> Result<PageContent, EngineError> {
    let (width, height) = page.render_dimensions();
    if !(width.is_finite() && height.is_finite() && width >= 1.0 && height >= 1.0) {
        return Err(EngineError::BadInput(format!("{what} has no size")));
    }
    let layer = TextLayer::of(page, width.into(), height.into());
    // Known before any picture is unpacked: a small PDF can hold a picture that fills the memory.
    limits.check_pixels(&format!("a picture on {what}"), layer.largest.0.into(), layer.largest.1.into())?;
    if layer.swells {
        return Err(EngineError::BadInput(format!(
            "a picture on {what} unpacks to far more data than its size allows"
        )));
    }
    if layer.is_blank() {
        return Ok(PageContent::Text(String::new()));
    }
    if layer.is_enough() {
        return Ok(PageContent::Text(repair(layer.text)));
    }
    if layer.lost {
        return Err(lost_picture(what));
    }
    draw(page, what, &layer, limits)
}

fn lost_picture(what: &str) -> EngineError {
    EngineError::BadInput(format!("the picture on {what} is damaged or of a kind that cannot be read"))
}

/// The page as a picture.
fn draw<'a>(page: &'a Page<'a>, what: &str, layer: &TextLayer, limits: &Limits) -> Result<PageContent, EngineError> {
    let (width, height) = page.render_dimensions();
    let most = (limits.max_drawn_pixels as f32 / (width * height)).sqrt();
    // The canvas counts in 16 bits.
    let widest = 32_000.0 / width.max(height);
    let mut scale = (limits.pdf_dpi / 72.0).min(most).min(widest);
    if layer.pictures >= COVERS {
        // A scan is drawn pixel for pixel: more would only blow it up, and some writers call every pixel a point. Not below the width
        // of a small sheet, for the sake of what is printed over the picture.
        scale = scale.min((layer.native as f32).max(1200.0 / width.min(height)));
    }
    if !(scale > 0.0 && width * scale >= 1.0 && height * scale >= 1.0) {
        return Err(EngineError::BadInput(format!("{what} has a shape that cannot be drawn")));
    }
    let lost = Arc::new(AtomicBool::new(false));
    let settings = InterpreterSettings {
        warning_sink: {
            let lost = Arc::clone(&lost);
            Arc::new(move |warning| lost.store(lost.load(Ordering::Relaxed) || is_loss(warning), Ordering::Relaxed))
        },
        ..InterpreterSettings::default()
    };
    let canvas = PixmapSettings {
        x_scale: scale,
        y_scale: scale,
        bg_color: WHITE,
    };
    let drawn = hayro::render(page, &RenderCache::new(), &settings, &RenderSettings::default(), &canvas);
    // A lost logo is not worth losing the page; a lost scan leaves a white sheet that would pass for an empty page.
    if lost.load(Ordering::Relaxed) && layer.pictures >= COVERS {
        return Err(lost_picture(what));
    }
    let grey = drawn
        .data()
        .iter()
        .map(|p| ((u32::from(p.r) * 299 + u32::from(p.g) * 587 + u32::from(p.b) * 114) / 1000) as u8);
    let grey = GrayImage::from_vec(drawn.width().into(), drawn.height().into(), grey.collect())
        .ok_or_else(|| EngineError::Failed(format!("{what} was drawn with a wrong number of pixels")))?;
    picture::encode(&grey)
}

fn is_loss(warning: InterpreterWarning) -> bool {
    matches!(warning, InterpreterWarning::ImageDecodeFailure)
}

/// What a page says in characters, and how much of it is pictures.
#[derive(Default)]
struct TextLayer {
    sheet: Rect,
    text: String,
    /// Where the last character ended, how large it was and in which direction it ran.
    last: Option<(Point, f64, Vec2)>,
    /// Characters already seen at a place: bold by printing twice, and text that is both filled and stroked.
    seen: HashSet<(char, i64, i64)>,
    visible: usize,
    invisible: usize,
    /// Glyphs nobody knows the character of.
    unknown: usize,
    paths: usize,
    /// Share of the sheet that the largest picture covers, 0 to 1.
    pictures: f64,
    /// Pixels per point of that picture.
    native: f64,
    /// Width and height in pixels of the largest picture.
    largest: (u32, u32),
    /// A picture that covers the sheet is not all there.
    lost: bool,
    /// A picture unpacks to much more than it has pixels.
    swells: bool,
    /// Pictures whose data has been looked at.
    checked: HashSet<(u32, i32)>,
}

impl TextLayer {
    fn of<'a>(page: &Page<'a>, width: f64, height: f64) -> TextLayer {
        let sheet = Rect::new(0.0, 0.0, width, height);
        let mut layer = TextLayer {
            sheet,
            ..TextLayer::default()
        };
        let cache = InterpreterCache::new();
        let place = page.initial_transform(true).to_kurbo();
        let mut context = Context::new(place, sheet, &cache, page.xref(), InterpreterSettings::default());
        interpret_page(page, &mut context, &mut layer);
        layer
    }

    fn is_blank(&self) -> bool {
        self.visible + self.invisible + self.unknown + self.paths == 0 && self.largest == (0, 0)
    }

    fn is_enough(&self) -> bool {
        let known = self.visible + self.invisible;
        if known == 0 || self.unknown * 5 > known {
            return false;
        }
        // Invisible text over a picture is what an earlier reading left behind: use it. Little visible text over one is a stamp.
        self.pictures < COVERS || self.invisible > STAMP / 10 || self.visible >= STAMP
    }

    fn add(&mut self, glyph: &Glyph<'_>, place: Affine, invisible: bool, vertical: bool) {
        let origin = place * Point::ZERO;
        let size = (place * Point::new(0.0, 1000.0) - origin).hypot();
        let advance = match glyph {
            Glyph::Outline(outline) => outline.advance_width(),
            Glyph::Type3(drawn) => drawn.advance_width(),
        };
        let end = place * Point::new(advance.unwrap_or(500.0).into(), 0.0);
        let text = match glyph.as_unicode() {
            Some(BfString::Char(char)) => char.to_string(),
            Some(BfString::String(text)) => text,
            None => String::new(),
        };
        let Some(first) = text
            .chars()
            .next()
            .filter(|char| !matches!(char, '\u{e000}'..='\u{f8ff}' | '\u{fffd}' | '\0'))
        else {
            self.unknown += 1;
            return;
        };
        if !self.sheet.contains(origin) || !size.is_finite() || size == 0.0 {
            return;
        }
        if !first.is_whitespace() {
            if !self.seen.insert((first, (origin.x * 2.0) as i64, (origin.y * 2.0) as i64)) {
                return;
            }
            *(if invisible { &mut self.invisible } else { &mut self.visible }) += 1;
        }
        let along = (place * Point::new(1000.0, 0.0) - origin).normalize();
        if !vertical && let Some((last, last_size, last_along)) = self.last {
            let gap = origin - last;
            let ahead = gap.dot(along);
            let aside = gap.cross(along).abs();
            let line = size.max(last_size);
            let turned = along.dot(last_along) < 0.9;
            if turned || aside > 0.6 * line || ahead < -2.0 * line {
                let paragraph = !turned && aside > 1.9 * line;
                self.break_line(if paragraph { "\n\n" } else { "\n" });
            } else if ahead > 0.2 * size {
                self.space(first);
            }
        }
        self.text.push_str(&text);
        self.last = Some((end, size, along));
    }

    fn break_line(&mut self, with: &str) {
        let kept = self.text.trim_end_matches([' ', '\t']).len();
        self.text.truncate(kept);
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push_str(with);
        }
    }

    fn space(&mut self, next: char) {
        if !next.is_whitespace() && !self.text.ends_with(char::is_whitespace) && !self.text.is_empty() {
            self.text.push(' ');
        }
    }
}

impl<'a> Device<'a> for TextLayer {
    fn draw_path(&mut self, _: &BezPath, _: DrawProps<'a>, _: &DrawMode) {
        self.paths += 1;
    }

    fn push_clip_path(&mut self, _: &ClipPath) {}

    fn push_transparency_group(&mut self, _: f32, _: Option<SoftMask<'a>>, _: BlendMode) {}

    fn draw_glyph_run(&mut self, run: &GlyphRun<'_, 'a>, props: DrawProps<'a>, mode: &DrawMode) {
        let vertical = run.writing_mode() == WritingMode::Vertical;
        if vertical {
            self.break_line("\n");
        }
        for glyph in run.glyphs() {
            self.add(
                glyph,
                props.transform * glyph.transform(),
                matches!(mode, DrawMode::Invisible),
                vertical,
            );
        }
    }

    fn draw_image(&mut self, image: Image<'a, '_>, props: ImageDrawProps<'a>) {
        let (width, height) = (image.width(), image.height());
        // The transform places a picture of width × height units on the sheet.
        let placed = props
            .transform
            .transform_rect_bbox(Rect::new(0.0, 0.0, width.into(), height.into()));
        let covered = placed.intersect(self.sheet).area() / self.sheet.area();
        let pixels = f64::from(width) * f64::from(height);
        if covered > self.pictures {
            self.pictures = covered;
            self.native = (pixels / placed.area()).sqrt();
        }
        if pixels > f64::from(self.largest.0) * f64::from(self.largest.1) {
            self.largest = (width, height);
        }
        // Its place in the file names a picture; most are drawn once, a background may be drawn a thousand times.
        let stream = match &image {
            Image::Stencil(stencil) => stencil.stream().obj_id(),
            Image::Raster(raster) => raster.stream().obj_id(),
        };
        if !self.checked.insert((stream.obj_number, stream.gen_number)) {
            return;
        }
        match packing(&image) {
            Packing::Whole => {}
            Packing::Short => self.lost |= covered >= COVERS,
            Packing::Swells => self.swells = true,
        }
    }

    fn pop_clip(&mut self) {}

    fn pop_transparency_group(&mut self) {}
}

enum Packing {
    Whole,
    Short,
    Swells,
}

/// Look at a picture's data before anything unpacks it for good. The unpackers are lenient, as a viewer's should be: what is missing
/// becomes white or grey, and there is no end to what a small stream may swell to.
fn packing(image: &Image<'_, '_>) -> Packing {
    let (stream, bits) = match image {
        Image::Stencil(stencil) => (stencil.stream(), 1),
        Image::Raster(raster) => {
            let dict = raster.stream().dict();
            let bits = dict.get::<u8>(BITS_PER_COMPONENT).or_else(|| dict.get::<u8>(BPC));
            let channels = match dict.get::<Name<'_>>(COLORSPACE).as_deref() {
                Some(b"DeviceRGB") => 3,
                Some(b"DeviceCMYK") => 4,
                // One channel at least; a profile or a palette is not followed, which makes the check weaker and never wrong.
                _ => 1,
            };
            (raster.stream(), u64::from(bits.unwrap_or(8)) * channels)
        }
    };
    let pixels = u64::from(image.width()) * u64::from(image.height());
    let least = (u64::from(image.width()) * bits).div_ceil(8) * u64::from(image.height());
    // Four channels of 16 bits, a predictor byte per row, and some slack.
    let most = pixels * 8 + u64::from(image.height()) + (1 << 20);
    match stream.filters().as_slice() {
        [Filter::FlateDecode] => {
            let data = stream.raw_data();
            // A wrong checksum at the end is common and harmless, so only the amount counts.
            let mut unpacked = 0;
            let mut unpacker = flate2::read::ZlibDecoder::new(&*data);
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = unpacker.read(&mut buffer) {
                unpacked += count as u64;
                if unpacked > most {
                    return Packing::Swells;
                }
            }
            if unpacked * 100 < least * 95 {
                Packing::Short
            } else {
                Packing::Whole
            }
        }
        [Filter::DctDecode] if !jpeg::is_whole(&stream.raw_data()) => Packing::Short,
        _ => Packing::Whole,
    }
}
