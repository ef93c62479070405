//! An OCR engine behind HTTP: the page as multipart field `image_file`, the text back in one of the shapes such engines use.

use std::time::Duration;

use bytes::Bytes;
use queue_schema::endpoint::Endpoint;
use reqwest::Body;
use reqwest::multipart::{Form, Part};
use serde_json::Value;

use super::http::{Ask, Clients, address};
use super::symptom::Symptom;
use super::{ProviderFailure, words};

/// Text of one page above which it is a repetition that ran away (public case 94).
const TEXT_LIMIT: usize = 2 * 1024 * 1024;
/// Boxes and scores come around the text.
const ANSWER_LIMIT: usize = 16 * 1024 * 1024;

/// What was read off a page: clean text, never blank.
#[derive(Clone, Debug, PartialEq)]
pub struct OcrText {
    pub text: String,
    /// 0 to 1; the mean over the lines where the engine scores lines. None: the engine does not say.
    pub confidence: Option<f32>,
}

impl Clients {
    /// Reads one page.
    ///
    /// # Errors
    /// See [`Symptom`]. A page on which nothing was read is `EmptyOutput`; an answer that the engine itself calls unfinished or
    /// filtered is `BadItem` and its text is not taken.
    pub async fn ocr(&self, endpoint: &Endpoint, png: &[u8], deadline: Duration) -> Result<OcrText, ProviderFailure> {
        let png = Bytes::copy_from_slice(png);
        let ask = Ask {
            endpoint,
            url: address(endpoint)?,
            texts: &[],
            limit: ANSWER_LIMIT,
            body: &|request| {
                let part = Part::stream_with_length(Body::from(png.clone()), png.len() as u64).file_name("page.png");
                // A literal media type always parses; without it the part would still be a file.
                match part.mime_str("image/png") {
                    Ok(part) => request.multipart(Form::new().part("image_file", part)),
                    Err(_) => request,
                }
            },
        };
        let bytes = self.ask(&ask, deadline).await?;
        read(&words::text(&bytes)).map_err(|f| ProviderFailure { status: Some(200), ..f })
    }
}

/// Reads an answer. Broken escapes and NUL are mended here, once, so that nobody behind this door has to (public case 100).
fn read(body: &str) -> Result<OcrText, ProviderFailure> {
    let rubbish = |cause, error: &str| ProviderFailure::new(Symptom::InvalidResponse, cause, error);
    let reply = words::lenient(body).ok_or_else(|| rubbish("not_json", "the answer is not JSON"))?;
    if let Some(reason) = finish_reason(&reply) {
        let (cause, error) = match reason {
            "length" | "max_tokens" => (
                "finish_length",
                "the engine stopped at its limit; what it wrote so far is not the page",
            ),
            "content_filter" => ("content_filter", "the engine's filter refused the page"),
            _ => ("finish_reason", "the engine did not finish the page"),
        };
        return Err(ProviderFailure::new(Symptom::BadItem, cause, error));
    }
    let (text, confidence) = found(&reply).ok_or_else(|| rubbish("no_text", "the answer holds no text that we know how to find"))?;
    if text.len() > TEXT_LIMIT {
        return Err(ProviderFailure::new(
            Symptom::BadItem,
            "text_too_large",
            format!("more than {TEXT_LIMIT} bytes of text for one page"),
        ));
    }
    let text = words::clean(&text);
    if text.is_empty() {
        return Err(ProviderFailure::new(
            Symptom::EmptyOutput,
            "empty_output",
            "no text was read on the page",
        ));
    }
    Ok(OcrText { text, confidence })
}

/// Why the engine stopped, unless it simply was done.
fn finish_reason(reply: &Value) -> Option<&str> {
    let choice = reply.get("choices").and_then(|c| c.get(0)).and_then(|c| c.get("finish_reason"));
    let reason = choice.or_else(|| reply.get("finish_reason"))?.as_str()?;
    (!matches!(reason, "stop" | "end_turn" | "eos" | "")).then_some(reason)
}

/// Text and confidence in one of three shapes: `{text, confidence}`; lines as `{"0": {rec_txt, score, dt_boxes}, …}` or a list
/// of such; a chat completion.
fn found(reply: &Value) -> Option<(String, Option<f32>)> {
    if let Some(list) = reply.as_array() {
        return lines(list.iter().collect());
    }
    let object = reply.as_object()?;
    if let Some(text) = object.get("text") {
        // An engine that saw nothing may say null.
        let text = if text.is_null() { "" } else { text.as_str()? };
        return Some((text.to_owned(), object.get("confidence").and_then(share)));
    }
    if let Some(choices) = object.get("choices") {
        let content = choices.get(0)?.get("message")?.get("content")?;
        return Some((content.as_str().unwrap_or_default().to_owned(), None));
    }
    // Numbered lines; no line at all is an empty page. Anything else without a number is another engine's answer.
    let mut numbered: Vec<(u64, &Value)> = Vec::with_capacity(object.len());
    for (number, line) in object {
        numbered.push((number.parse().ok()?, line));
    }
    numbered.sort_by_key(|(number, _)| *number);
    lines(numbered.into_iter().map(|(_, line)| line).collect())
}

fn lines(of: Vec<&Value>) -> Option<(String, Option<f32>)> {
    let mut text = String::new();
    let mut scores: Vec<f32> = Vec::new();
    for line in of {
        let said = line.get("rec_txt").or_else(|| line.get("text"))?.as_str()?;
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(said);
        scores.extend(line.get("score").or_else(|| line.get("confidence")).and_then(share));
    }
    let mean = (!scores.is_empty()).then(|| scores.iter().sum::<f32>() / scores.len() as f32);
    Some((text, mean))
}

/// A confidence as a share of 1: engines say 0.93, 93 or "0.93".
fn share(v: &Value) -> Option<f32> {
    let n = match v {
        Value::Number(n) => n.as_f64()?,
        Value::String(s) => s.trim().parse().ok()?,
        _ => return None,
    };
    let n = if n > 1.0 { n / 100.0 } else { n };
    (n.is_finite() && (0.0..=1.0).contains(&n)).then_some(n as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(body: &str) -> (String, Option<f32>) {
        let t = read(body).unwrap_or_else(|e| panic!("{body}: {e}"));
        (t.text, t.confidence)
    }

    fn failed(body: &str) -> (Symptom, &'static str) {
        let f = read(body).expect_err(body);
        (f.symptom, f.cause)
    }

    #[test]
    fn every_shape_of_an_answer() {
        assert_eq!(text(r#"{"text":"a\nb","confidence":0.5}"#), ("a\nb".to_owned(), Some(0.5)));
        assert_eq!(text(r#"{"text":"a","confidence":50}"#), ("a".to_owned(), Some(0.5)));
        assert_eq!(text(r#"{"text":"a"}"#), ("a".to_owned(), None));
        let rapid = r#"{"10":{"rec_txt":"third","score":"0.5"},"0":{"rec_txt":"first","dt_boxes":[[1,2]],"score":"1.0"},"2":{"rec_txt":"second","score":0.75}}"#;
        assert_eq!(text(rapid), ("first\nsecond\nthird".to_owned(), Some(0.75)));
        assert_eq!(text(r#"[{"rec_txt":"x","score":1},{"text":"y"}]"#).0, "x\ny");
        assert_eq!(text(r#"{"choices":[{"message":{"content":"z"},"finish_reason":"stop"}]}"#).0, "z");
    }

    #[test]
    fn n32_nothing_read_is_said_so() {
        for body in ["{}", r#"{"text":" \n "}"#, r#"{"text":null}"#, "[]"] {
            assert_eq!(failed(body), (Symptom::EmptyOutput, "empty_output"), "{body}");
        }
        for body in ["", "<html>", r#"{"result":"x"}"#, r#"{"text":3}"#, r#"{"0":{"x":1}}"#] {
            assert_eq!(failed(body).0, Symptom::InvalidResponse, "{body}");
        }
    }

    #[test]
    fn case94_an_unfinished_page_is_not_read() {
        let chat =
            |content: &str, reason: &str| format!(r#"{{"choices":[{{"message":{{"content":"{content}"}},"finish_reason":"{reason}"}}]}}"#);
        assert_eq!(
            failed(&chat(&"line\\n".repeat(5000), "length")),
            (Symptom::BadItem, "finish_length")
        );
        assert_eq!(failed(&chat("", "content_filter")), (Symptom::BadItem, "content_filter"));
        assert_eq!(
            failed(r#"{"text":"half a","finish_reason":"length"}"#),
            (Symptom::BadItem, "finish_length")
        );
        let endless = format!(r#"{{"text":"{}"}}"#, "again ".repeat(TEXT_LIMIT / 6 + 1));
        assert_eq!(failed(&endless), (Symptom::BadItem, "text_too_large"));
    }

    #[test]
    fn case100_broken_characters_are_mended_at_the_door() {
        assert_eq!(
            text(r#"{"text":"a\ud83db\u0000c\ufffe \ud83d\ude00"}"#).0,
            "a\u{FFFD}b c\u{FFFD} \u{1F600}"
        );
    }
}
