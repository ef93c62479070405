//! TIFF: one page per directory, each on its own feet.
//!
//! The chain of directories is walked here and the decoder is given one directory at a time. Letting the decoder walk it loses the whole
//! document at an odd first page (its constructor reads that page) and the rest of it at an odd later one.

use std::collections::HashSet;
use std::io::{Read, Seek, SeekFrom};

use image::metadata::Orientation;
use image::{DynamicImage, GrayImage};
use tiff::decoder::{BufferLayoutPreference, Decoder, DecodingResult};
use tiff::tags::Tag;
use tiff::{ColorType, TiffError};

use super::{Limits, PageContent, Pages, picture};
use crate::{EngineError, guard};

pub(super) fn pages(bytes: &[u8], limits: &Limits, out: &mut Pages<'_>) -> Result<(), EngineError> {
    let file = Layout::of(bytes).ok_or_else(|| EngineError::BadInput("the TIFF is cut off: send it again".into()))?;
    let (directories, broken) = file.directories(bytes);
    limits.check_pages(directories.len())?;
    for (index, offset) in directories.iter().enumerate() {
        limits.check_deadline()?;
        let what = format!("page {} of the TIFF", index + 1);
        let view = View {
            bytes,
            patches: file.only(bytes, *offset),
            at: 0,
        };
        let made = guard(&what, || page(view, &what, index == 0, limits));
        match made {
            Ok(None) => {}
            Ok(Some(content)) => out.push(content)?,
            Err(error) => out.push_or_note(Err(error))?,
        }
    }
    if broken {
        let note = "the TIFF is cut off or its list of pages is broken: pages after this one are missing".to_owned();
        out.push(PageContent::Unreadable { note })?;
    }
    Ok(())
}

/// `None` for a directory that holds only a smaller copy of another page.
fn page(view: View<'_>, what: &str, first: bool, limits: &Limits) -> Result<Option<PageContent>, EngineError> {
    let failed = |error: TiffError| sentence(what, &error);
    let mut decoder = Decoder::new(view).map_err(failed)?;
    let smaller_copy = decoder
        .find_tag_unsigned::<u32>(Tag::NewSubfileType)
        .ok()
        .flatten()
        .is_some_and(|kind| kind & 1 == 1);
    if smaller_copy && !first {
        return Ok(None);
    }
    let (width, height) = decoder.dimensions().map_err(failed)?;
    limits.check_pixels(what, width.into(), height.into())?;
    let color = decoder.colortype().map_err(failed)?;
    let mut memory = tiff::decoder::Limits::default();
    memory.decoding_buffer_size = usize::try_from(limits.max_pixels.saturating_mul(4)).unwrap_or(usize::MAX);
    memory.intermediate_buffer_size = memory.decoding_buffer_size;
    let mut decoder = decoder.with_limits(memory);
    let orientation = decoder
        .find_tag_unsigned::<u8>(Tag::Orientation)
        .ok()
        .flatten()
        .and_then(Orientation::from_exif)
        .unwrap_or(Orientation::NoTransforms);
    let mut samples = DecodingResult::U8(Vec::new());
    let layout = decoder.read_image_to_buffer(&mut samples).map_err(failed)?;
    let grey = grey(&samples, &layout, color, width as usize, height as usize).ok_or_else(|| {
        EngineError::BadInput(format!(
            "{what} has a colour layout that cannot be read ({color:?}): save it as grey or RGB"
        ))
    })?;
    let grey = GrayImage::from_vec(width, height, grey).ok_or_else(|| EngineError::BadInput(format!("{what} is cut off")))?;
    let mut upright = DynamicImage::ImageLuma8(grey);
    upright.apply_orientation(orientation);
    picture::encode(&upright.into_luma8()).map(Some)
}

/// The samples as 8-bit grey, or `None` for a layout unknown here.
fn grey(samples: &DecodingResult, layout: &BufferLayoutPreference, color: ColorType, width: usize, height: usize) -> Option<Vec<u8>> {
    match (samples, color) {
        (DecodingResult::U8(data), ColorType::Gray(bits @ (1 | 2 | 4))) => {
            let bits = usize::from(bits);
            let (row, per_byte, top) = ((width * bits).div_ceil(8), 8 / bits, (1_u16 << bits) - 1);
            let mut out = Vec::with_capacity(width * height);
            for line in data.get(..row * height)?.chunks_exact(row) {
                out.extend((0..width).map(|x| {
                    let sample = u16::from(line[x / per_byte] >> (8 - bits * (x % per_byte + 1))) & top;
                    (sample * 255 / top) as u8
                }));
            }
            Some(out)
        }
        (DecodingResult::U8(data), _) => mix(data, layout, color, width * height, |sample| sample),
        (DecodingResult::U16(data), _) => mix(data, layout, color, width * height, |sample| (sample >> 8) as u8),
        _ => None,
    }
}

/// Whole samples, interleaved or in planes, to grey.
fn mix<T: Copy>(
    data: &[T],
    layout: &BufferLayoutPreference,
    color: ColorType,
    pixels: usize,
    eight_bits: impl Fn(T) -> u8,
) -> Option<Vec<u8>> {
    let channels = match color {
        ColorType::Gray(_) => 1,
        ColorType::GrayA(_) => 2,
        ColorType::RGB(_) | ColorType::YCbCr(_) => 3,
        ColorType::RGBA(_) | ColorType::CMYK(_) => 4,
        // Grey with further samples (a mask, an infrared channel …): what the samples mean is not said, so nothing is guessed.
        _ => return None,
    };
    let (step, stride) = if layout.planes > 1 { (1, pixels) } else { (channels, 1) };
    if data.len() < pixels * channels {
        return None;
    }
    let at = |pixel: usize, channel: usize| u32::from(eight_bits(data[pixel * step + channel * stride]));
    let luma = |red: u32, green: u32, blue: u32| (red * 299 + green * 587 + blue * 114) / 1000;
    let white = |grey: u32, alpha: u32| (grey * alpha + 255 * (255 - alpha)) / 255;
    let grey = |p: usize| match color {
        ColorType::GrayA(_) => white(at(p, 0), at(p, 1)),
        ColorType::RGB(_) => luma(at(p, 0), at(p, 1), at(p, 2)),
        ColorType::RGBA(_) => white(luma(at(p, 0), at(p, 1), at(p, 2)), at(p, 3)),
        ColorType::CMYK(_) => luma(255 - at(p, 0), 255 - at(p, 1), 255 - at(p, 2)) * (255 - at(p, 3)) / 255,
        // Grey is grey, and Y is the grey of YCbCr.
        _ => at(p, 0),
    };
    Some((0..pixels).map(|pixel| grey(pixel) as u8).collect())
}

fn sentence(what: &str, error: &TiffError) -> EngineError {
    EngineError::BadInput(match error {
        TiffError::UnsupportedError(kind) => format!("{what} cannot be read ({kind}): save it as a PNG or a PDF"),
        TiffError::LimitsExceeded => format!("{what} needs too much memory to decode: scan it at a lower resolution"),
        _ => format!("{what} is damaged or cut off"),
    })
}

/// Byte order and flavour of a file: where its numbers are and how wide.
struct Layout {
    little: bool,
    big: bool,
}

impl Layout {
    fn of(bytes: &[u8]) -> Option<Layout> {
        let little = bytes.starts_with(b"II");
        let layout = Layout {
            little,
            big: bytes.get(if little { 2 } else { 3 }) == Some(&b'+'),
        };
        (bytes.len() >= layout.head_len()).then_some(layout)
    }

    fn head_len(&self) -> usize {
        if self.big { 16 } else { 8 }
    }

    /// Bytes of a directory's count, of one of its entries, and of an offset.
    fn widths(&self) -> (usize, u64, usize) {
        if self.big { (8, 20, 8) } else { (2, 12, 4) }
    }

    fn number(&self, bytes: &[u8], at: u64, width: usize) -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        let part = bytes.get(at..at.checked_add(width)?)?;
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(if self.little {
            part.iter().rev().fold(0, add)
        } else {
            part.iter().fold(0, add)
        })
    }

    /// Offsets of the directories in order, and whether the chain broke off (outside the file, or back into itself).
    fn directories(&self, bytes: &[u8]) -> (Vec<u64>, bool) {
        let (count_width, entry, pointer) = self.widths();
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let mut at = self.number(bytes, self.head_len() as u64 - pointer as u64, pointer);
        loop {
            match at {
                Some(0) => return (found, false),
                Some(offset) if seen.insert(offset) => {
                    let Some(entries) = self.number(bytes, offset, count_width) else {
                        return (found, true);
                    };
                    found.push(offset);
                    at = entries
                        .checked_mul(entry)
                        .and_then(|length| offset.checked_add(count_width as u64)?.checked_add(length))
                        .and_then(|next| self.number(bytes, next, pointer));
                }
                _ => return (found, true),
            }
        }
    }

    /// What to change in the file so that `directory` is its first and only one: the pointer in the head, and the pointer at the
    /// directory's end, because the decoder gives up on a chain that bites its tail.
    fn only(&self, bytes: &[u8], directory: u64) -> [(u64, Vec<u8>); 2] {
        let (count_width, entry, pointer) = self.widths();
        let first = if self.little {
            directory.to_le_bytes()[..pointer].to_vec()
        } else {
            directory.to_be_bytes()[8 - pointer..].to_vec()
        };
        let entries = self.number(bytes, directory, count_width).unwrap_or(0);
        let end = directory
            .saturating_add(count_width as u64)
            .saturating_add(entries.saturating_mul(entry));
        [((self.head_len() - pointer) as u64, first), (end, vec![0; pointer])]
    }
}

/// The file with a few bytes changed, without copying the file.
struct View<'a> {
    bytes: &'a [u8],
    patches: [(u64, Vec<u8>); 2],
    at: u64,
}

impl Read for View<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let from = usize::try_from(self.at)
            .ok()
            .and_then(|at| self.bytes.get(at..))
            .unwrap_or_default();
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        for (place, patch) in &self.patches {
            for (place, byte) in (*place..).zip(patch) {
                if let Some(hit) = place.checked_sub(self.at).and_then(|offset| into[..count].get_mut(offset as usize)) {
                    *hit = *byte;
                }
            }
        }
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for View<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => (self.bytes.len() as u64).checked_add_signed(offset),
            SeekFrom::Current(offset) => self.at.checked_add_signed(offset),
        };
        self.at = target.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
