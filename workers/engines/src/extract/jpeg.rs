//! Is a JPEG all there?
//!
//! Its decoder fills what is missing with grey and reports success, as a browser does for a picture that is still on its way. Here half a
//! page must not pass for a page.

/// True when the marker for the end of the image follows the image data. Whatever comes behind it (some cameras append films) is ignored, and
/// so are the thumbnails inside, which have end markers of their own.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    let mut at = 2;
    loop {
        // To the next marker: between segments directly, after a scan behind its data, in which 0xff is followed by 0 or a restart mark.
        let Some(step) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == 0xff)) else {
            return false;
        };
        at += step + 1;
        match bytes.get(at) {
            None => return false,
            Some(0xd9) => return true,
            Some(0x00 | 0x01 | 0xd0..=0xd8) => at += 1,
            // A fill byte: the marker is still to come.
            Some(0xff) => {}
            Some(_) => {
                let Some(&[high, low]) = bytes.get(at + 1..at + 3) else {
                    return false;
                };
                at += 1 + usize::from(u16::from_be_bytes([high, low])).max(2);
            }
        }
    }
}
