//! A file to pages, one at a time: each page is text, a picture that somebody has to read, or a note that says why it is neither.
//!
//! Pages go to a sink as they are made, so that a document of a thousand pages needs the memory of one. What a file is, is decided by its
//! bytes ([`crate::sniff`]); its name and media type are only held against them, so that a text named `.png` is refused instead
//! of being handed on as a picture.

mod jpeg;
mod pdf;
mod picture;
mod text;
mod tiff;

use std::fmt;
use std::time::Instant;

use crate::EngineError;
use crate::sniff::{Kind, sniff};

pub use text::repair;

/// Bounds on one document, all checked before memory is spent.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Pixels of one picture, read from its header before it is decoded. 60 million: an A3 sheet at 500 dpi; 60 MB grey, 180 MB in colour
    /// while it is decoded.
    pub max_pixels: u64,
    /// Pages of one document.
    pub max_pages: u32,
    /// Bytes of one text file.
    pub max_text_bytes: usize,
    /// Resolution at which PDF pages without a text layer are drawn. 200 dpi: small print stays readable, more only costs time.
    pub pdf_dpi: f32,
    /// Pixels of a drawn PDF page; larger sheets are drawn coarser instead of refused.
    pub max_drawn_pixels: u64,
    /// No new page is begun after this moment. A page in work is finished: stopping in the middle takes a process.
    pub deadline: Option<Instant>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_pixels: 60_000_000,
            max_pages: 1_000,
            max_text_bytes: 32 << 20,
            pdf_dpi: 200.0,
            max_drawn_pixels: 16_000_000,
            deadline: None,
        }
    }
}

impl Limits {
    fn check_deadline(&self) -> Result<(), EngineError> {
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(EngineError::Timeout),
            _ => Ok(()),
        }
    }

    fn check_pixels(&self, what: &str, width: u64, height: u64) -> Result<(), EngineError> {
        if width.saturating_mul(height) > self.max_pixels {
            return Err(EngineError::BadInput(format!(
                "{what} is {width} × {height} pixels, the limit is {} million pixels: scan it at a lower resolution",
                self.max_pixels as f64 / 1e6
            )));
        }
        Ok(())
    }

    fn check_pages(&self, pages: usize) -> Result<(), EngineError> {
        if pages > self.max_pages as usize {
            return Err(EngineError::BadInput(format!(
                "the document has {pages} pages, the limit is {}: split it into smaller files",
                self.max_pages
            )));
        }
        Ok(())
    }
}

/// One page of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Counted from 1, in the order of the document.
    pub no: u32,
    /// What is on it.
    pub content: PageContent,
}

/// What a page holds. Its `Debug` shows sizes only: documents do not belong into logs.
#[derive(Clone, PartialEq, Eq)]
pub enum PageContent {
    /// Text that needs no reading. Empty for a page with nothing on it.
    Text(String),
    /// A picture, upright, 8-bit grey, as a PNG file.
    Image {
        /// The PNG file.
        png: Vec<u8>,
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// This page cannot be read, the others may.
    Unreadable {
        /// Why, for a person.
        note: String,
    },
}

impl fmt::Debug for PageContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageContent::Text(text) => write!(f, "Text({} characters)", text.chars().count()),
            PageContent::Image { png, width, height } => write!(f, "Image({width} × {height}, {} bytes)", png.len()),
            PageContent::Unreadable { note } => write!(f, "Unreadable({note:?})"),
        }
    }
}

/// What a document turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// What the bytes said.
    pub kind: Kind,
    /// Pages given to the sink: the sum of the three below.
    pub pages: u32,
    /// Pages that came as text.
    pub text_pages: u32,
    /// Pages that came as pictures.
    pub image_pages: u32,
    /// Pages that could not be read.
    pub unreadable_pages: u32,
}

/// Take `bytes` apart and hand its pages to `sink` in order.
///
/// `file_name` and `media_type` are what the sender claims. The bytes decide, with one exception: a text that claims to be an image or a
/// PDF is refused, because a reader that trusted the claim would treat it as a list of files to open.
///
/// # Errors
/// `BadInput` with a sentence for a person: not a kind that is read here, a claim that does not hold, damaged, encrypted, above a limit,
/// or a document of which no page at all could be read (its pages have then been handed out as `Unreadable`).
/// `Timeout` when the deadline passed between two pages. Whatever the sink returns as an error stops the work and is passed on.
pub fn extract(
    bytes: &[u8],
    file_name: &str,
    media_type: Option<&str>,
    limits: &Limits,
    sink: &mut dyn FnMut(Page) -> Result<(), EngineError>,
) -> Result<Summary, EngineError> {
    let kind = sniff(bytes);
    check_claim(bytes, kind, file_name, media_type)?;
    limits.check_deadline()?;
    let mut out = Pages {
        sink,
        summary: Summary {
            kind,
            pages: 0,
            text_pages: 0,
            image_pages: 0,
            unreadable_pages: 0,
        },
        first_note: None,
    };
    match kind {
        Kind::Text => out.push(PageContent::Text(text::decode(bytes, limits)?))?,
        Kind::Tiff => tiff::pages(bytes, limits, &mut out)?,
        Kind::Pdf => pdf::pages(bytes, limits, &mut out)?,
        Kind::Png | Kind::Jpeg | Kind::WebP | Kind::Bmp | Kind::Pnm | Kind::Gif => out.push(picture::page(bytes, kind, limits)?)?,
        Kind::Unknown => return Err(EngineError::BadInput("the file is of no known kind".into())),
    }
    if out.summary.unreadable_pages == out.summary.pages {
        let why = out.first_note.unwrap_or_else(|| "it has no pages".into());
        return Err(EngineError::BadInput(format!("no page of the document can be read: {why}")));
    }
    Ok(out.summary)
}

/// The sink and the count beside it.
struct Pages<'a> {
    sink: &'a mut dyn FnMut(Page) -> Result<(), EngineError>,
    summary: Summary,
    first_note: Option<String>,
}

impl Pages<'_> {
    fn push(&mut self, content: PageContent) -> Result<(), EngineError> {
        self.summary.pages += 1;
        match &content {
            PageContent::Text(_) => self.summary.text_pages += 1,
            PageContent::Image { .. } => self.summary.image_pages += 1,
            PageContent::Unreadable { note } => {
                self.summary.unreadable_pages += 1;
                self.first_note.get_or_insert_with(|| note.clone());
            }
        }
        (self.sink)(Page {
            no: self.summary.pages,
            content,
        })
    }

    /// One page of several: what is wrong with it becomes its note and does not cost the others.
    fn push_or_note(&mut self, made: Result<PageContent, EngineError>) -> Result<(), EngineError> {
        match made {
            Ok(content) => self.push(content),
            Err(EngineError::BadInput(note)) => self.push(PageContent::Unreadable { note }),
            Err(other) => Err(other),
        }
    }
}

fn check_claim(bytes: &[u8], kind: Kind, file_name: &str, media_type: Option<&str>) -> Result<(), EngineError> {
    if bytes.is_empty() {
        return Err(EngineError::BadInput("the file is empty".into()));
    }
    let ending = file_name
        .rsplit_once('.')
        .map(|(_, ending)| ending.to_ascii_lowercase())
        .unwrap_or_default();
    let media_type = media_type.unwrap_or_default().to_ascii_lowercase();
    let image_ending = matches!(
        ending.as_str(),
        "png" | "jpg" | "jpeg" | "jpe" | "jfif" | "tif" | "tiff" | "webp" | "bmp" | "dib" | "gif" | "pnm" | "pbm" | "pgm" | "ppm" | "pam"
    );
    let claims_image = image_ending || media_type.starts_with("image/");
    let claims_pdf = ending == "pdf" || media_type == "application/pdf";
    match kind {
        Kind::Text if claims_image => Err(EngineError::BadInput(
            "not an image: the file claims to be one but holds text".into(),
        )),
        Kind::Text if claims_pdf => Err(EngineError::BadInput("not a PDF: the file claims to be one but holds text".into())),
        Kind::Unknown if claims_image => Err(EngineError::BadInput(
            "not an image that can be read: send PNG, JPEG, TIFF, WebP, BMP, GIF or PNM".into(),
        )),
        Kind::Unknown if claims_pdf => Err(EngineError::BadInput("not a PDF: the file does not begin like one".into())),
        Kind::Unknown => Err(EngineError::BadInput(
            "the file is of no kind that can be read: send text, an image or a PDF".into(),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
