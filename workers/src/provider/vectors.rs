//! The door a vector comes in by: bound to its text, of the right length, finite, not zero, of unit length.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::symptom::Symptom;
use super::{ProviderFailure, words};

/// How far from 1 a norm may be before it counts as another provider's idea of a vector (requirement C49).
const NORM_TOLERANCE: f64 = 0.01;

#[derive(Debug)]
pub(super) struct Read {
    pub vectors: Vec<Vec<f32>>,
    pub model: Option<String>,
    pub tokens: Option<u64>,
    pub rescaled: usize,
}

/// Members are taken as they are and read one by one: a `1e999` or a string in one vector must not cost the whole answer its
/// meaning, and nothing that we do not need may be wrong enough to refuse it.
#[derive(Deserialize)]
struct Reply<'a> {
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, default)]
    index: Option<&'a RawValue>,
    #[serde(borrow, default)]
    embedding: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    total_tokens: Option<u64>,
}

fn rubbish(cause: &'static str, error: impl AsRef<str>) -> ProviderFailure {
    ProviderFailure::new(Symptom::InvalidResponse, cause, error)
}

/// Reads a reply to `sent` texts. `dims` is the length the endpoint promises, if it does.
///
/// A dense `index` binds; without any index the order does; anything between (all zero, doubled, missing, too many or too
/// few) refuses the whole answer (requirement N25).
pub(super) fn read(body: &str, sent: usize, dims: Option<i32>) -> Result<Read, ProviderFailure> {
    // Mended only when it must be: an answer can be tens of megabytes.
    let mended;
    let reply: Reply<'_> = match serde_json::from_str(body) {
        Ok(reply) => reply,
        Err(_) => {
            mended = words::repair(body);
            serde_json::from_str(&mended).map_err(|e| {
                let html = if words::is_html(None, body) { " (an HTML page)" } else { "" };
                // Position and kind only: serde's own words can quote the body.
                rubbish(
                    "not_json",
                    format!(
                        "the answer is not the JSON of a list of embeddings{html}: fault at line {} column {}",
                        e.line(),
                        e.column()
                    ),
                )
            })?
        }
    };
    // A derived reader also takes a list for a struct, member by member.
    if !body.trim_start().starts_with('{') {
        return Err(rubbish("not_json", "the answer is not a JSON object"));
    }
    let data = reply.data.map(RawValue::get).filter(|d| *d != "null");
    let Some(data) = data else {
        let cause = if reply.error.is_some_and(|e| e.get() != "null") {
            "error_in_success"
        } else {
            "no_data"
        };
        return Err(rubbish(cause, "the answer has no \"data\""));
    };
    let items: Vec<&RawValue> = serde_json::from_str(data).map_err(|_| rubbish("no_data", "\"data\" is not a list"))?;
    if items.is_empty() {
        return Err(rubbish("no_data", "\"data\" is empty"));
    }
    if items.len() != sent {
        return Err(rubbish(
            "wrong_count",
            format!("{} vectors came back for {sent} texts", items.len()),
        ));
    }
    let mut bound: Vec<Option<&str>> = vec![None; sent];
    let mut indexed = 0;
    let mut taken = vec![false; sent];
    for (position, item) in items.iter().enumerate() {
        let item: Item<'_> = Some(item.get())
            .filter(|raw| raw.starts_with('{'))
            .and_then(|raw| serde_json::from_str(raw).ok())
            .ok_or_else(|| rubbish("bad_item", format!("entry {position} of \"data\" is not an object")))?;
        let place = match item.index.map(RawValue::get).filter(|i| *i != "null") {
            None => position,
            Some(index) => {
                indexed += 1;
                let index = index.parse::<usize>().ok().filter(|i| *i < sent);
                index.ok_or_else(|| rubbish("bad_index", format!("entry {position} of \"data\" has an index outside 0..{sent}")))?
            }
        };
        if std::mem::replace(&mut taken[place], true) {
            return Err(rubbish("bad_index", format!("two vectors say that they are number {place}")));
        }
        bound[place] = item.embedding.map(RawValue::get);
    }
    if indexed != 0 && indexed != sent {
        return Err(rubbish("bad_index", format!("{indexed} of {sent} vectors have an index")));
    }
    let mut rescaled = 0;
    let mut vectors: Vec<Vec<f32>> = Vec::with_capacity(sent);
    let promised = dims.and_then(|d| usize::try_from(d).ok());
    for (at, raw) in bound.into_iter().enumerate() {
        let spoilt = |cause: &'static str, error: String| Err(ProviderFailure::new(Symptom::InvalidVector, cause, error).of_item(at));
        let Some(mut vector) = raw.and_then(numbers) else {
            return spoilt(
                "not_finite",
                format!("vector {at} is missing or holds something that is not a finite number"),
            );
        };
        if vector.is_empty() {
            return spoilt("empty_vector", format!("vector {at} is empty"));
        }
        if let Some(expected) = promised.or_else(|| vectors.first().map(Vec::len)).filter(|e| *e != vector.len()) {
            return spoilt("wrong_dims", format!("vector {at} has {} dimensions, not {expected}", vector.len()));
        }
        match unit(&mut vector) {
            None => return spoilt("zero_vector", format!("vector {at} has no direction: every number is zero")),
            Some(norm) => rescaled += usize::from((norm - 1.0).abs() > NORM_TOLERANCE),
        }
        vectors.push(vector);
    }
    let usage: Option<Usage> = reply.usage.and_then(|u| serde_json::from_str(u.get()).ok());
    let model: Option<String> = reply.model.and_then(|m| serde_json::from_str(m.get()).ok());
    Ok(Read {
        vectors,
        model,
        tokens: usage.and_then(|u| u.prompt_tokens.or(u.total_tokens)),
        rescaled,
    })
}

/// The numbers of a raw JSON list, or none if one of them is no finite number of 32 bits. The text has been checked to be JSON,
/// so a token that parses as a float is one.
fn numbers(raw: &str) -> Option<Vec<f32>> {
    let inner = raw.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
    if inner.is_empty() {
        return Some(Vec::new());
    }
    inner
        .split(',')
        .map(|token| token.trim().parse::<f32>().ok().filter(|x| x.is_finite()))
        .collect()
}

/// Scales to length 1 and returns the length it had; none for a vector without direction. In 64 bits: squares of 32-bit numbers
/// would overflow or vanish.
fn unit(vector: &mut [f32]) -> Option<f64> {
    let norm = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if !(norm.is_finite() && norm > 0.0) {
        return None;
    }
    for x in vector.iter_mut() {
        // Narrowing is the point: what is stored has 32 bits.
        *x = (f64::from(*x) / norm) as f32;
    }
    Some(norm)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(body: &str, sent: usize) -> (Symptom, &'static str, Option<usize>) {
        let f = read(body, sent, Some(2)).expect_err(body);
        (f.symptom, f.cause, f.item)
    }

    fn good(body: &str, sent: usize) -> Vec<Vec<f32>> {
        read(body, sent, Some(2)).unwrap_or_else(|e| panic!("{body}: {e}")).vectors
    }

    #[test]
    fn case58_bound_by_index_or_by_order_or_not_at_all() {
        let a_then_b = vec![vec![1.0, 0.0], vec![0.0, 1.0]];
        assert_eq!(
            good(r#"{"data":[{"index":1,"embedding":[0,1]},{"index":0,"embedding":[1,0]}]}"#, 2),
            a_then_b
        );
        assert_eq!(good(r#"{"data":[{"embedding":[1,0]},{"embedding":[0,1]}]}"#, 2), a_then_b);
        for body in [
            r#"{"data":[{"index":0,"embedding":[0,1]},{"index":0,"embedding":[1,0]}]}"#,
            r#"{"data":[{"index":0,"embedding":[0,1]},{"embedding":[1,0]}]}"#,
            r#"{"data":[{"index":0,"embedding":[0,1]},{"index":2,"embedding":[1,0]}]}"#,
            r#"{"data":[{"index":-1,"embedding":[0,1]},{"index":"1","embedding":[1,0]}]}"#,
        ] {
            let (symptom, cause, item) = failed(body, 2);
            assert_eq!((symptom, cause, item), (Symptom::InvalidResponse, "bad_index", None), "{body}");
        }
        assert_eq!(failed(r#"{"data":[{"index":0,"embedding":[0,1]}]}"#, 2).1, "wrong_count");
        assert_eq!(
            failed(r#"{"data":[{"embedding":[0,1]},{"embedding":[0,1]},{"embedding":[0,1]}]}"#, 2).1,
            "wrong_count"
        );
    }

    #[test]
    fn case55_56_59_a_vector_that_is_none() {
        let second = |v: &str| format!(r#"{{"data":[{{"index":0,"embedding":[1,0]}},{{"index":1{v}}}]}}"#);
        for (vector, cause) in [
            (r#","embedding":[null,null]"#, "not_finite"),
            (r#","embedding":[0.5,null]"#, "not_finite"),
            (r#","embedding":["NaN",1]"#, "not_finite"),
            (r#","embedding":[NaN,1]"#, "not_finite"),
            (r#","embedding":[1e999,1]"#, "not_finite"),
            (r#","embedding":[1e39,1]"#, "not_finite"),
            (r#","embedding":"AAAA""#, "not_finite"),
            (r#","embedding":null"#, "not_finite"),
            (r#","embedding":[[1],2]"#, "not_finite"),
            ("", "not_finite"),
            (r#","embedding":[]"#, "empty_vector"),
            (r#","embedding":[0,-0.0]"#, "zero_vector"),
            (r#","embedding":[1,0,0]"#, "wrong_dims"),
        ] {
            assert_eq!(failed(&second(vector), 2), (Symptom::InvalidVector, cause, Some(1)), "{vector}");
        }
        let f = read(r#"{"data":[{"embedding":[1,0]},{"embedding":[1,0,0]}]}"#, 2, None).expect_err("lengths differ");
        assert_eq!((f.cause, f.item), ("wrong_dims", Some(1)));
    }

    #[test]
    fn case86_lenient_where_it_does_not_matter() {
        assert_eq!(good(r#"{"data":[{"embedding":[3,4]}]}"#, 1), [[0.6, 0.8]]);
        assert_eq!(
            good(
                r#"{"x":{"y":1e999},"usage":null,"model":7,"data":[{"z":[],"embedding":[ 1 , 0 ]}],"object":3}"#,
                1
            ),
            [[1.0, 0.0]]
        );
        for (body, cause) in [
            ("{}", "no_data"),
            (r#"{"data":null}"#, "no_data"),
            (r#"{"data":[]}"#, "no_data"),
            (r#"{"data":{}}"#, "no_data"),
            (r#"{"error":{"message":"x"}}"#, "error_in_success"),
            ("[1]", "not_json"),
            ("", "not_json"),
            (r#"{"data":[{"embedding":[1,0]}"#, "not_json"),
            (r#"{"data":[3]}"#, "bad_item"),
            (r#"{"data":[[0,[1,0]]]}"#, "bad_item"),
        ] {
            assert_eq!(failed(body, 1), (Symptom::InvalidResponse, cause, None), "{body}");
        }
    }

    #[test]
    fn c49_every_vector_leaves_with_length_one() {
        let r = read(r#"{"data":[{"embedding":[3e20,4e20]},{"embedding":[1e-30,0]},{"embedding":[1.0,0.001]}],"usage":{"total_tokens":9},"model":"m"}"#, 3, None)
            .expect("all have a direction");
        for v in &r.vectors {
            let norm: f64 = v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            assert!((norm - 1.0).abs() < 1e-6, "{v:?}");
        }
        assert_eq!((r.rescaled, r.tokens, r.model.as_deref()), (2, Some(9), Some("m")));
    }
}
