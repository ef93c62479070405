//! Medians and ranges: with a few rounds on a shared machine nothing finer is honest.

/// Middle, least and greatest of some rounds.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub mid: f64,
    pub min: f64,
    pub max: f64,
}

/// None when there is nothing to look at.
pub fn range(values: &[f64]) -> Option<Range> {
    let mut v: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
    v.sort_by(f64::total_cmp);
    let (min, max) = (*v.first()?, *v.last()?);
    let mid = if v.len() % 2 == 1 {
        v[v.len() / 2]
    } else {
        (v[v.len() / 2 - 1] + v[v.len() / 2]) / 2.0
    };
    Some(Range { mid, min, max })
}

/// The value below which `p` (0 to 1) of the sample lies: the nearest rank, so that it is a value that occurred.
pub fn percentile(values: &[f64], p: f64) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    if v.is_empty() {
        return f64::NAN;
    }
    let rank = (p * v.len() as f64).ceil() as usize;
    v[rank.clamp(1, v.len()) - 1]
}

/// Pairwise `a / b`, round by round: what two things did under the same weather.
pub fn ratios(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a / b).collect()
}

/// `12,345`, with `digits` after the point.
pub fn number(x: f64, digits: usize) -> String {
    if !x.is_finite() {
        return "–".to_owned();
    }
    let text = format!("{:.digits$}", x.abs());
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), ""), |(w, r)| (w, r));
    let mut out = String::new();
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    if !rest.is_empty() {
        out.push('.');
        out.push_str(rest);
    }
    if x < 0.0 && out.bytes().any(|b| (b'1'..=b'9').contains(&b)) {
        format!("-{out}")
    } else {
        out
    }
}

/// `median (least–greatest)`; the range only where there is more than one round.
pub fn show(values: &[f64], digits: usize) -> String {
    match range(values) {
        None => "–".to_owned(),
        Some(r) if values.len() < 2 => number(r.mid, digits),
        Some(r) => format!("{} ({}–{})", number(r.mid, digits), number(r.min, digits), number(r.max, digits)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranks() {
        assert_eq!(range(&[3.0, 1.0, 2.0]).map(|r| r.mid), Some(2.0));
        assert_eq!(range(&[4.0, 1.0, 2.0, 3.0]).map(|r| r.mid), Some(2.5));
        assert!(range(&[]).is_none());
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 0.5), 50.0);
        assert_eq!(percentile(&hundred, 0.99), 99.0);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(number(1_234_567.0, 0), "1,234,567");
        assert_eq!(number(0.456, 2), "0.46");
        assert_eq!(number(-12.3, 1), "-12.3");
        assert_eq!(number(f64::NAN, 1), "–");
        assert_eq!(show(&[1.0], 1), "1.0");
        assert_eq!(show(&[1.0, 3.0, 2.0], 1), "2.0 (1.0–3.0)");
    }
}
