//! Single pictures: header first, then pixels, then upright and grey.

use std::io::Cursor;

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{DynamicImage, ExtendedColorType, GrayImage, ImageDecoder, ImageEncoder, ImageError, ImageFormat, ImageReader};

use super::{Limits, PageContent, jpeg};
use crate::sniff::Kind;
use crate::{EngineError, guard};

/// The picture in `bytes` as a page. Of a moving picture, the first frame.
pub(super) fn page(bytes: &[u8], kind: Kind, limits: &Limits) -> Result<PageContent, EngineError> {
    let format = match kind {
        Kind::Png => ImageFormat::Png,
        Kind::Jpeg => ImageFormat::Jpeg,
        Kind::WebP => ImageFormat::WebP,
        Kind::Bmp => ImageFormat::Bmp,
        Kind::Pnm => ImageFormat::Pnm,
        Kind::Gif => ImageFormat::Gif,
        Kind::Tiff | Kind::Pdf | Kind::Text | Kind::Unknown => {
            return Err(EngineError::Failed(format!("{} is not a single picture", kind.name())));
        }
    };
    let what = format!("the {}", kind.name());
    if kind == Kind::Jpeg && !jpeg::is_whole(bytes) {
        return Err(EngineError::BadInput(format!("{what} is damaged or cut off: send it again")));
    }
    guard(&what, || {
        let failed = |error: ImageError| sentence(&what, &error);
        let mut decoder = ImageReader::with_format(Cursor::new(bytes), format)
            .into_decoder()
            .map_err(failed)?;
        let (width, height) = decoder.dimensions();
        limits.check_pixels(&what, width.into(), height.into())?;
        // Decoders also need room beside the pixels; deep formats need up to 8 bytes a pixel, which the byte limit holds down.
        let mut memory = image::Limits::no_limits();
        memory.max_alloc = Some(limits.max_pixels.saturating_mul(4).saturating_add(64 << 20));
        decoder.set_limits(memory).map_err(failed)?;
        // A broken orientation is not worth losing the picture for.
        let orientation = decoder.orientation().unwrap_or(image::metadata::Orientation::NoTransforms);
        let mut picture = DynamicImage::from_decoder(decoder).map_err(failed)?;
        picture = DynamicImage::ImageLuma8(grey(picture));
        picture.apply_orientation(orientation);
        encode(&picture.into_luma8())
    })
}

/// Grey on white paper: a transparent background would otherwise come out black under black letters.
fn grey(picture: DynamicImage) -> GrayImage {
    if !picture.color().has_alpha() {
        return picture.into_luma8();
    }
    let pixels = picture.into_luma_alpha8();
    let (width, height) = pixels.dimensions();
    let on_white = pixels.pixels().map(|pixel| {
        let [grey, alpha] = pixel.0.map(u32::from);
        ((grey * alpha + 255 * (255 - alpha)) / 255) as u8
    });
    GrayImage::from_vec(width, height, on_white.collect()).unwrap_or_default()
}

/// A grey picture as a page.
pub(super) fn encode(picture: &GrayImage) -> Result<PageContent, EngineError> {
    let (width, height) = picture.dimensions();
    if width == 0 || height == 0 {
        return Err(EngineError::BadInput("the picture has no pixels".into()));
    }
    let mut png = Vec::new();
    // Fast: the file lives for one page, on this machine.
    PngEncoder::new_with_quality(&mut png, CompressionType::Fast, FilterType::Adaptive)
        .write_image(picture.as_raw(), width, height, ExtendedColorType::L8)
        .map_err(|error| EngineError::Failed(format!("a page could not be encoded as PNG: {error}")))?;
    Ok(PageContent::Image { png, width, height })
}

fn sentence(what: &str, error: &ImageError) -> EngineError {
    EngineError::BadInput(match error {
        ImageError::Unsupported(_) => format!("{what} uses a variant that cannot be read: save it as a plain PNG or JPEG"),
        ImageError::Limits(_) => {
            format!("{what} needs too much memory to decode: save it with 8 bits per channel or at a lower resolution")
        }
        _ => format!("{what} is damaged or cut off: send it again"),
    })
}
