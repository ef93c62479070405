//! `POST …/v1/embeddings`, as OpenAI defined it and everyone else more or less follows.

use std::time::Duration;

use queue_schema::endpoint::Endpoint;
use serde::Serialize;
use url::Url;

use super::http::{Ask, Clients, address};
use super::symptom::Symptom;
use super::vectors::{self, Read};
use super::{ProviderFailure, words};

/// Longest name of a model that is kept.
const MODEL_CHARS: usize = 200;
const MIB: usize = 1024 * 1024;

/// What came back for a batch, in the order it was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedded {
    /// One per text, each of length 1 (±1e-6): scaled where the provider's were not.
    pub vectors: Vec<Vec<f32>>,
    /// What is stored beside the vectors: the model that served, as the provider names it, or else as the endpoint does.
    pub model: String,
    /// The model as the reply named it, if it did.
    pub served_model: Option<String>,
    /// The reply named another model than the endpoint asks for: scores against older vectors would be noise (public case 85).
    pub model_mismatch: bool,
    /// What the provider says it has read. Much less than was sent is the only sign of silent truncation (public case 83).
    pub tokens: Option<u64>,
    /// How many vectors were more than 1 % off unit length and were scaled.
    pub rescaled: usize,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    input: &'a [String],
    encoding_format: &'a str,
}

impl Clients {
    /// Embeds a batch. All or nothing: one unusable vector or one missing index and nothing is given back, since a vector
    /// under the wrong text is worse than none. The failure's `item` then names the text to leave out.
    ///
    /// # Errors
    /// See [`Symptom`]. A blank text is refused here and never sent: providers refuse the whole batch for it (public case 61).
    pub async fn embed(&self, endpoint: &Endpoint, texts: &[String], deadline: Duration) -> Result<Embedded, ProviderFailure> {
        if let Some(blank) = texts.iter().position(|t| t.trim().is_empty()) {
            return Err(ProviderFailure::new(Symptom::BadItem, "blank_text", "a blank text was given to embed").of_item(blank));
        }
        let url = embeddings_url(&address(endpoint)?);
        if texts.is_empty() {
            return Ok(Embedded {
                vectors: Vec::new(),
                model: endpoint.model.clone(),
                served_model: None,
                model_mismatch: false,
                tokens: None,
                rescaled: 0,
            });
        }
        let body = Body {
            model: &endpoint.model,
            input: texts,
            encoding_format: "float",
        };
        // Serialised once: a try more must not cost a copy of the batch.
        let body = serde_json::to_vec(&body)
            .map(bytes::Bytes::from)
            .map_err(|_| ProviderFailure::new(Symptom::BadItem, "unspeakable", "the texts cannot be written as JSON"))?;
        let dims = usize::try_from(endpoint.dims.unwrap_or(8_192)).unwrap_or(8_192);
        let ask = Ask {
            endpoint,
            url,
            texts,
            limit: (MIB + texts.len() * dims * 32).min(64 * MIB),
            body: &|request| request.header(reqwest::header::CONTENT_TYPE, "application/json").body(body.clone()),
        };
        let bytes = self.ask(&ask, deadline).await?;
        let Read {
            vectors,
            model,
            tokens,
            rescaled,
        } = vectors::read(&words::text(&bytes), texts.len(), endpoint.dims).map_err(|f| ProviderFailure { status: Some(200), ..f })?;
        // A model's name that repeats a text is no name.
        let served_model = model
            .map(|m| {
                queue_schema::outcome::sanitise(&m)
                    .trim()
                    .chars()
                    .take(MODEL_CHARS)
                    .collect::<String>()
            })
            .filter(|m| !m.is_empty());
        let model_mismatch = served_model.as_deref().is_some_and(|served| !same_model(served, &endpoint.model));
        Ok(Embedded {
            vectors,
            model: served_model.clone().unwrap_or_else(|| endpoint.model.clone()),
            served_model,
            model_mismatch,
            tokens,
            rescaled,
        })
    }
}

fn same_model(a: &str, b: &str) -> bool {
    let plain = |s: &str| s.trim().to_lowercase().trim_end_matches(":latest").to_owned();
    plain(a) == plain(b)
}

/// `https://h`, `https://h/`, `https://h/v1`, `https://h/v1/` and the whole path all mean the same place (public case 73). A
/// path that holds a version somewhere is a base; a query is kept.
fn embeddings_url(base: &Url) -> Url {
    let mut url = base.clone();
    let path = base.path().trim_end_matches('/').to_owned();
    let versioned = path
        .split('/')
        .any(|s| s.strip_prefix('v').is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit())));
    if path.ends_with("/embeddings") {
        url.set_path(&path);
    } else if versioned {
        url.set_path(&format!("{path}/embeddings"));
    } else {
        url.set_path(&format!("{path}/v1/embeddings"));
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case73_every_spelling_of_the_base_url() {
        for (base, path) in [
            ("http://h:1", "/v1/embeddings"),
            ("http://h:1/", "/v1/embeddings"),
            ("http://h:1/v1", "/v1/embeddings"),
            ("http://h:1/v1/", "/v1/embeddings"),
            ("http://h:1/v1/embeddings", "/v1/embeddings"),
            ("http://h:1/v1/embeddings/", "/v1/embeddings"),
            ("http://h:1/proxy", "/proxy/v1/embeddings"),
            ("http://h:1/v1beta/openai/", "/v1beta/openai/embeddings"),
            ("http://h:1/deployments/x/embeddings?api-version=1", "/deployments/x/embeddings"),
        ] {
            let url = embeddings_url(&Url::parse(base).expect("a literal URL"));
            assert_eq!(url.path(), path, "{base}");
            assert_eq!(url.query(), base.split_once('?').map(|(_, q)| q));
        }
    }

    #[test]
    fn case85_another_model_is_noticed() {
        assert!(same_model("All-MiniLM:latest", "all-minilm"));
        assert!(!same_model("text-embedding-3-large", "text-embedding-3-small"));
    }
}
