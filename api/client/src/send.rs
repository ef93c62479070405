//! One request on its way: its tries, its answer, its error.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use reqwest::Method;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;

use crate::error::{self, Error, ErrorCode, TransportKind};
use crate::request::Content;
use crate::{Client, retry};

/// No answer of this API is larger: a hundred results of a few pages each are far below it.
const MAX_ANSWER: usize = 64 << 20;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A request that can be sent more than once.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    method: Method,
    url: Url,
    key: Option<HeaderValue>,
    body: Body<'a>,
    patience: Duration,
    gone_is_done: bool,
}

#[derive(Debug)]
enum Body<'a> {
    None,
    Json(Bytes),
    Content(&'a Content, HeaderValue),
}

struct Answered {
    status: u16,
    retry_after: Option<Duration>,
    body: Vec<u8>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(client: &Client, method: Method, url: Url) -> Self {
        Self {
            method,
            url,
            key: None,
            body: Body::None,
            patience: client.timeout,
            gone_is_done: false,
        }
    }

    /// The same key on every try, whether given or made here: it is what makes a second try of a POST safe.
    pub(crate) fn key(mut self, given: Option<&str>) -> Result<Self, Error> {
        let key = match given {
            Some(key) => key.to_owned(),
            None => format!("{:032x}", rand::random::<u128>()),
        };
        let fits = !key.is_empty() && key.len() <= 255 && key.bytes().all(|b| b.is_ascii_graphic());
        let key = HeaderValue::from_str(&key).ok().filter(|_| fits);
        self.key = Some(key.ok_or_else(|| Error::Input {
            field: "idempotency_key",
            wrong: "must be 1 to 255 printable ASCII characters without spaces".into(),
        })?);
        Ok(self)
    }

    pub(crate) fn json(mut self, body: &impl Serialize) -> Result<Self, Error> {
        let json = serde_json::to_vec(body).map_err(|e| Error::Input {
            field: "body",
            wrong: format!("is no JSON: {e}"),
        })?;
        self.body = Body::Json(json.into());
        Ok(self)
    }

    pub(crate) fn content(mut self, content: &'a Content, media_type: Option<&str>, patience: Duration) -> Result<Self, Error> {
        let media_type = match media_type {
            None => BYTES,
            Some(m) => HeaderValue::from_str(m).map_err(|_| Error::Input {
                field: "media_type",
                wrong: "must be like application/pdf".into(),
            })?,
        };
        self.body = Body::Content(content, media_type);
        self.patience = patience;
        Ok(self)
    }

    /// For a DELETE: "not there" after a try whose answer was lost means that it worked.
    pub(crate) fn gone_is_done(mut self) -> Self {
        self.gone_is_done = true;
        self
    }
}

impl Client {
    /// Sends, again where that is worth it, and reads the answer.
    pub(crate) async fn fetch<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, Error> {
        let answered = self.send(call).await?;
        serde_json::from_slice(&answered.body).map_err(|e| Error::Unreadable {
            status: answered.status,
            // serde names the place and the member; it quotes no text.
            wrong: format!("{e}"),
        })
    }

    /// Sends, and wants no more than success.
    pub(crate) async fn done(&self, call: Call<'_>) -> Result<(), Error> {
        self.send(call).await.map(drop)
    }

    pub(crate) async fn text(&self, call: Call<'_>) -> Result<String, Error> {
        let answered = self.send(call).await?;
        Ok(String::from_utf8_lossy(&answered.body).into_owned())
    }

    async fn send(&self, call: Call<'_>) -> Result<Answered, Error> {
        let (mut tries, mut maybe_done) = (0, false);
        loop {
            tries += 1;
            let (failed, retry_after) = match self.once(&call, tries).await {
                Ok(answered) if (200..300).contains(&answered.status) => return Ok(answered),
                Ok(answered) => (
                    error::of(answered.status, &answered.body, answered.retry_after),
                    answered.retry_after,
                ),
                Err(e) => (e, None),
            };
            if call.gone_is_done && maybe_done && failed.code() == Some(&ErrorCode::NotFound) {
                return Ok(Answered {
                    status: 204,
                    retry_after: None,
                    body: Vec::new(),
                });
            }
            if tries >= self.retries.tries || !failed.is_transient() {
                return Err(failed);
            }
            maybe_done |= !matches!(
                failed,
                Error::Transport {
                    kind: TransportKind::Connect,
                    ..
                }
            );
            tokio::time::sleep(self.retries.wait(tries, retry_after, rand::random())).await;
        }
    }

    async fn once(&self, call: &Call<'_>, tries: u32) -> Result<Answered, Error> {
        let mut request = self
            .http
            .request(call.method.clone(), call.url.clone())
            .header(AUTHORIZATION, self.token.clone())
            .timeout(call.patience);
        if let Some(key) = &call.key {
            request = request.header(IDEMPOTENCY_KEY, key.clone());
        }
        request = match &call.body {
            Body::None => request,
            Body::Json(json) => request.header(CONTENT_TYPE, JSON).body(json.clone()),
            Body::Content(Content::Bytes(bytes), media_type) => request.header(CONTENT_TYPE, media_type.clone()).body(bytes.clone()),
            Body::Content(Content::File(path), media_type) => {
                let cannot = |source| Error::File {
                    path: path.display().to_string(),
                    source,
                };
                let file = tokio::fs::File::open(path).await.map_err(cannot)?;
                let about = file.metadata().await.map_err(cannot)?;
                if about.is_dir() {
                    return Err(cannot(std::io::ErrorKind::IsADirectory.into()));
                }
                // Said in advance, the API refuses what is too long before it is sent. A pipe's length is not known.
                if about.is_file() {
                    request = request.header(CONTENT_LENGTH, about.len());
                }
                request.header(CONTENT_TYPE, media_type.clone()).body(file)
            }
        };
        let lost = |e: reqwest::Error| self.lost(e, tries);
        let mut response = request.send().await.map_err(lost)?;
        let status = response.status().as_u16();
        // Only for a server that names a moment and no `Date`; nothing of ours is timed by it.
        let retry_after = retry::retry_after(response.headers(), || DateTime::<Utc>::from(std::time::SystemTime::now()));
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(lost)? {
            if body.len() + piece.len() > MAX_ANSWER {
                return Err(Error::Unreadable {
                    status,
                    wrong: format!("it is larger than {MAX_ANSWER} bytes"),
                });
            }
            body.extend_from_slice(&piece);
        }
        Ok(Answered { status, retry_after, body })
    }

    fn lost(&self, e: reqwest::Error, tries: u32) -> Error {
        Error::Transport {
            kind: if e.is_connect() {
                TransportKind::Connect
            } else if e.is_timeout() {
                TransportKind::Timeout
            } else {
                TransportKind::BrokeOff
            },
            at: self.at(),
            tries,
            source: e.without_url(),
        }
    }
}
