//! Vectors out of words alone: texts that share words are near, the same text is always the same point.

use sha2::{Digest as _, Sha256};

/// Words that say nothing about what a text is about.
const STOP: [&str; 24] = [
    "a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "in", "is", "it", "of", "on", "or", "that", "the", "this", "to", "was",
    "were", "what", "with",
];

/// Each coordinate hit by a word, so that two unrelated words rarely meet.
const PLACES: usize = 8;

/// The unit vector of `text` in `dims` dimensions: every word adds ±1 at eight places chosen by its hash.
///
/// A text without words (punctuation, nothing) is hashed as a whole, so that its vector is never zero.
#[must_use]
pub fn of(text: &str, dims: usize) -> Vec<f32> {
    let mut v = vec![0.0_f32; dims];
    if dims == 0 {
        return v;
    }
    let lower = text.to_lowercase();
    let words = || lower.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty());
    for word in words().filter(|w| !STOP.contains(w)) {
        add(&mut v, word);
    }
    // Words may cancel each other out, or there may be stop words only.
    if norm(&v) == 0.0 {
        add(&mut v, &lower);
    }
    let n = norm(&v);
    if n == 0.0 {
        v[0] = 1.0;
    } else {
        v.iter_mut().for_each(|x| *x /= n);
    }
    v
}

/// The cosine of two vectors of [`of`], which are unit vectors.
#[must_use]
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn add(v: &mut [f32], word: &str) {
    let hash = Sha256::digest(word.as_bytes());
    for pair in hash.chunks_exact(4).take(PLACES) {
        let n = u32::from_le_bytes([pair[0], pair[1], pair[2], pair[3]]);
        let place = (n >> 1) as usize % v.len();
        v[place] += if n & 1 == 0 { 1.0 } else { -1.0 };
    }
}

fn norm(v: &[f32]) -> f32 {
    v.iter().map(|x| x * x).sum::<f32>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_share_words_are_near() {
        let question = of("Which invoice was for green tea?", 384);
        let near = of("Invoice 2024-0137: three crates of green tea", 384);
        let far = of("The lighthouse keeper slept through the storm", 384);
        assert!((norm(&near) - 1.0).abs() < 1e-5);
        assert!(cosine(&question, &near) > 0.4, "{}", cosine(&question, &near));
        assert!(cosine(&question, &far).abs() < 0.2, "{}", cosine(&question, &far));
        assert_eq!(of("Green TEA", 64), of("green tea", 64));
        assert!((norm(&of("?!", 384)) - 1.0).abs() < 1e-5);
    }
}
