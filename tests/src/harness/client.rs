use std::fmt;

use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

/// Talks to the API as one person.
#[derive(Clone, Debug)]
pub struct Client {
    base: String,
    token: String,
    space_id: i64,
    http: reqwest::Client,
}

/// What came back, of whatever status.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// The body as JSON; `null` when it is none.
    pub json: Value,
    pub text: String,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.text)
    }
}

impl Answer {
    /// The job that a 202 promised.
    ///
    /// # Panics
    /// When the answer names none.
    #[must_use]
    pub fn job_id(&self) -> String {
        match &self.json["jobId"] {
            Value::String(s) => s.clone(),
            Value::Number(n) => n.to_string(),
            _ => panic!("no jobId in {self}"),
        }
    }
}

impl Client {
    /// For `token` at `base` (`http://host:port`); `space_id` is where things are put when nothing else is said.
    ///
    /// # Panics
    /// When the TLS provider cannot be set up.
    #[must_use]
    pub fn new(base: &str, token: &str, space_id: i64) -> Self {
        Self {
            base: base.trim_end_matches('/').to_owned(),
            token: token.to_owned(),
            space_id,
            http: http(),
        }
    }

    /// The same person with another token: wrong, revoked, empty.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// A request with the token on it; finish it and hand it to [`Client::send`].
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        if self.token.is_empty() {
            request
        } else {
            request.bearer_auth(&self.token)
        }
    }

    /// # Panics
    /// When no answer comes.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        self.try_send(request).await.unwrap_or_else(|e| panic!("no answer: {e:?}"))
    }

    /// For requests that may get no answer: the API is down, or the caller means to leave.
    ///
    /// # Errors
    /// What the transport says.
    pub async fn try_send(&self, request: reqwest::RequestBuilder) -> Result<Answer, reqwest::Error> {
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = String::from_utf8_lossy(&response.bytes().await?).into_owned();
        Ok(Answer {
            status,
            headers,
            json: serde_json::from_str(&text).unwrap_or_default(),
            text,
        })
    }

    /// # Panics
    /// When no answer comes.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    /// # Panics
    /// When no answer comes.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    /// Hands in a file's bytes under a name.
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn upload(&self, bytes: impl Into<bytes::Bytes>, name: &str) -> Answer {
        self.upload_to(bytes, name, self.space_id).await
    }

    /// # Panics
    /// When no answer comes.
    pub async fn upload_to(&self, bytes: impl Into<bytes::Bytes>, name: &str, space_id: i64) -> Answer {
        let query = query(&[("filename", name), ("spaceId", &space_id.to_string())]);
        self.send(
            self.request(Method::POST, &format!("/api/v1/uploads/direct?{query}"))
                .body(bytes.into()),
        )
        .await
    }

    /// Hands in a note.
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn remember(&self, text: &str) -> Answer {
        self.post("/api/v1/remember", &json!({"text": text, "spaceIds": [self.space_id.to_string()]}))
            .await
    }

    /// # Panics
    /// When no answer comes.
    pub async fn search(&self, question: &str) -> Answer {
        self.get(&format!("/api/v1/search?{}", query(&[("query", question)]))).await
    }

    /// # Panics
    /// When no answer comes.
    pub async fn job(&self, id: &str) -> Answer {
        self.get(&format!("/api/v1/jobs/{id}")).await
    }
}

fn query(pairs: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// A plain client. The TLS provider must be named once per process although the stories speak plain HTTP: the library asks
/// for it when it is built.
pub(crate) fn http() -> reqwest::Client {
    // An error only says that somebody was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // No proxy: a story talks to loopback whatever the machine's environment says.
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .tls_certs_only(Vec::<reqwest::Certificate>::new())
        .build()
        .expect("a client without special wishes")
}
