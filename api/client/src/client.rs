//! The client, and one method for each route.

use std::fmt;
use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Method};
use url::{Host, Url};

use crate::send::Call;
use crate::{
    Accepted, DeadLetter, Document, DocumentStatus, Documents, Error, Job, Jobs, Page, Paging, Remember, Replay, Replayed, Retries, Search,
    SearchAnswer, Space, TranscriptAnswer, TranscriptSearch, Upload,
};

/// Longer than the server itself works on any request without a large body.
const TIMEOUT: Duration = Duration::from_secs(125);
/// Longer than the server waits for a body, so that the refusal is told by it.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(12 * 60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How soon a job is looked at again, first and at most.
const FIRST_LOOK: Duration = Duration::from_millis(150);
const LAST_LOOK: Duration = Duration::from_secs(2);

/// Talks to one API as one person. Cheap to clone; one per process keeps its connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) http: reqwest::Client,
    pub(crate) token: HeaderValue,
    pub(crate) retries: Retries,
    pub(crate) timeout: Duration,
    upload_timeout: Duration,
    base: Url,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("at", &self.at())
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}

/// A client that is not made yet.
#[derive(Clone)]
#[must_use]
pub struct Builder {
    base: String,
    token: String,
    retries: Retries,
    timeout: Duration,
    upload_timeout: Duration,
    allow_plain_http: bool,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The base too may hold a password before it has been looked at.
        f.debug_struct("Builder").field("retries", &self.retries).finish_non_exhaustive()
    }
}

impl Builder {
    pub fn retries(mut self, retries: Retries) -> Self {
        self.retries = retries;
        self
    }

    /// For one try of a request; uploads have [`Builder::upload_timeout`].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// For one try of an upload.
    pub fn upload_timeout(mut self, timeout: Duration) -> Self {
        self.upload_timeout = timeout;
        self
    }

    /// Plain HTTP to another machine: everybody on the way can read the token and the documents. For networks that are
    /// private themselves.
    pub fn allow_plain_http(mut self) -> Self {
        self.allow_plain_http = true;
        self
    }

    /// # Errors
    /// [`Error::Setup`] when the address is none, holds a password, or is plain HTTP to another machine without
    /// [`Builder::allow_plain_http`]; when the token cannot be one; when this machine has no TLS roots and needs them.
    pub fn build(self) -> Result<Client, Error> {
        let setup = |wrong: String| Err(Error::Setup(wrong));
        // What was given is not repeated: a token or a password may have been put into the wrong place.
        let base = match Url::parse(self.base.trim()) {
            Ok(base) => base,
            Err(e) => return setup(format!("base: is not a URL ({e}); it looks like https://steadfast.example")),
        };
        let plain = match base.scheme() {
            "http" => true,
            "https" => false,
            _ => return setup("base: must begin with https:// (or http://, on this machine)".into()),
        };
        if !base.username().is_empty() || base.password().is_some() {
            return setup("base: must not hold a password; the API takes a token".into());
        }
        if base.query().is_some() || base.fragment().is_some() {
            return setup("base: must end with the path; no ? and no #".into());
        }
        let loopback = match base.host() {
            Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => ip.is_loopback(),
            None => return setup("base: names no host".into()),
        };
        if plain && !loopback && !self.allow_plain_http {
            return setup(
                "base: is plain http to another machine, where the token could be read on the way; use https, or allow_plain_http() where the \
                 network itself is private"
                    .into(),
            );
        }
        let token = self.token.trim();
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return setup("token: must be one word, as `steadfast token create` printed it".into());
        }
        let Ok(mut token) = HeaderValue::from_str(&format!("Bearer {token}")) else {
            return setup("token: must be one word, as `steadfast token create` printed it".into());
        };
        token.set_sensitive(true);

        // The library under us wants a process-wide choice when it is built; an error only says that somebody was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("steadfast-client/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(Policy::none());
        if loopback {
            http = http.no_proxy();
        }
        if plain {
            // So that a machine without root certificates can still talk to itself.
            http = http.tls_certs_only(Vec::<Certificate>::new());
        }
        match http.build() {
            Ok(http) => Ok(Client {
                http,
                token,
                retries: self.retries,
                timeout: self.timeout,
                upload_timeout: self.upload_timeout,
                base,
            }),
            Err(e) => setup(format!(
                "no HTTPS here: {e}; are there root certificates (Debian: ca-certificates, or SSL_CERT_FILE)?"
            )),
        }
    }
}

/// Query parameters as they are said.
type Pairs<'a> = Vec<(&'static str, std::borrow::Cow<'a, str>)>;

fn paging<'a>(pairs: &mut Pairs<'a>, page: &'a Paging) {
    pairs.extend(page.limit.map(|n| ("limit", n.to_string().into())));
    pairs.extend(page.cursor.as_deref().map(|c| ("cursor", c.into())));
}

impl Client {
    /// A client as most want it. `base` like `https://steadfast.example`, or `http://127.0.0.1:7787` on this machine.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(base: &str, token: &str) -> Result<Self, Error> {
        Self::builder(base, token).build()
    }

    /// A client with wishes.
    pub fn builder(base: &str, token: &str) -> Builder {
        Builder {
            base: base.to_owned(),
            token: token.to_owned(),
            retries: Retries::default(),
            timeout: TIMEOUT,
            upload_timeout: UPLOAD_TIMEOUT,
            allow_plain_http: false,
        }
    }

    /// Scheme, host and port.
    pub(crate) fn at(&self) -> String {
        self.base.origin().ascii_serialization()
    }

    fn url(&self, path: &[&str], query: Pairs<'_>) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            // It cannot fail: http and https addresses have a path.
            segments.pop_if_empty().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    fn get(&self, path: &[&str], query: Pairs<'_>) -> Call<'static> {
        Call::new(self, Method::GET, self.url(path, query))
    }

    fn post(&self, path: &[&str], query: Pairs<'_>) -> Call<'static> {
        Call::new(self, Method::POST, self.url(path, query))
    }

    /// Keeps a note. When this returns it is on disk and in a row.
    ///
    /// # Errors
    /// [`Error::Api`] naming the field; `VALIDATION_ERROR` lists your Spaces when none was named rightly.
    pub async fn remember(&self, note: &Remember) -> Result<Accepted, Error> {
        let call = self.post(&["api", "v1", "remember"], Vec::new());
        self.fetch(call.key(note.idempotency_key.as_deref())?.json(note)?).await
    }

    /// Keeps a file. When this returns it is on disk and in a row.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read; [`Error::Api`] with `PAYLOAD_TOO_LARGE` when it is larger than the server takes. A refusal in the
    /// middle of a body may show as [`Error::Transport`].
    pub async fn upload(&self, file: &Upload) -> Result<Accepted, Error> {
        let mut query: Pairs<'_> = vec![("filename", (&file.filename).into()), ("spaceId", (&file.space).into())];
        query.extend(file.title.as_deref().map(|t| ("title", t.into())));
        query.extend(file.conversation_id.as_deref().map(|c| ("conversationId", c.into())));
        let call = Call::new(self, Method::POST, self.url(&["api", "v1", "uploads", "direct"], query))
            .key(file.idempotency_key.as_deref())?
            .content(&file.content, file.media_type.as_deref(), self.upload_timeout)?;
        self.fetch(call).await
    }

    /// Finds what you know, by words and by meaning. The answer is closed until its diagnostics are looked at.
    ///
    /// # Errors
    /// [`Error::Api`]; a half that cannot search is no error but a degraded answer, unless [`Search::require_semantic`] was said.
    pub async fn search(&self, question: impl Into<Search>) -> Result<SearchAnswer, Error> {
        let q = question.into();
        let mut query: Pairs<'_> = vec![("query", (&q.query).into())];
        query.extend(q.limit.map(|n| ("limit", n.to_string().into())));
        query.extend(q.cursor.as_deref().map(|c| ("cursor", c.into())));
        query.extend(q.spaces.iter().map(|s| ("spaceIds", s.into())));
        query.extend(q.min_score.map(|n| ("minScore", n.to_string().into())));
        query.extend(q.require_semantic.then(|| ("require", "semantic".into())));
        self.fetch(self.get(&["api", "v1", "search"], query)).await
    }

    /// Finds what was said in conversations, by meaning alone.
    ///
    /// # Errors
    /// [`Error::Api`]; `SEMANTIC_UNAVAILABLE` where searching by meaning is not possible: nothing *can* match then, which is
    /// not the same as nothing matched.
    pub async fn transcript_search(&self, question: impl Into<TranscriptSearch>) -> Result<TranscriptAnswer, Error> {
        let q = question.into();
        let mut query: Pairs<'_> = vec![("query", (&q.query).into())];
        query.extend(q.limit.map(|n| ("limit", n.to_string().into())));
        query.extend(q.conversation_id.as_deref().map(|c| ("conversationId", c.into())));
        self.fetch(self.get(&["api", "v1", "transcript", "search"], query)).await
    }

    /// What you asked for, newest first.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub async fn jobs(&self, which: &Jobs) -> Result<Page<Job>, Error> {
        let mut query: Pairs<'_> = which.status.iter().map(|s| ("status", s.to_string().into())).collect();
        query.extend(which.kind.as_deref().map(|k| ("type", k.into())));
        paging(&mut query, &which.page);
        self.fetch(self.get(&["api", "v1", "jobs"], query)).await
    }

    /// One job of yours.
    ///
    /// # Errors
    /// [`Error::Api`]; `NOT_FOUND` when it is not there or not yours.
    pub async fn job(&self, id: &str) -> Result<Job, Error> {
        self.fetch(self.get(&["api", "v1", "jobs", checked(id)?], Vec::new())).await
    }

    /// Looks at a job until nothing more happens to it by itself, or until it is held ([`Job::hold`]): that may last, and its
    /// notice is what to tell. `seen` is called at each look. To give up earlier, wrap it in a timeout: it can be dropped.
    ///
    /// A failed or dead job is an `Ok` here; look at [`Job::status`].
    ///
    /// # Errors
    /// As [`Client::job`].
    pub async fn wait_for_job(&self, id: &str, mut seen: impl FnMut(&Job)) -> Result<Job, Error> {
        let mut wait = FIRST_LOOK;
        loop {
            let job = self.job(id).await?;
            seen(&job);
            if job.is_over() || job.hold.is_some() {
                return Ok(job);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 3 / 2).min(LAST_LOOK);
        }
    }

    /// Looks at a document whose job is completed until all of it can be found by meaning too, or until that is held
    /// ([`Document::notice`]). Its words can be found before, and an answer without the rest counts as whole for half a minute.
    ///
    /// A piece that was given up is never found by meaning, so wrap this in a timeout of about that half minute: answers say
    /// by themselves what they lack from then on.
    ///
    /// # Errors
    /// As [`Client::document`].
    pub async fn wait_for_document(&self, id: &str, mut seen: impl FnMut(&Document)) -> Result<Document, Error> {
        let mut wait = FIRST_LOOK;
        loop {
            let document = self.document(id).await?;
            seen(&document);
            let read = matches!(
                document.status,
                DocumentStatus::Processed | DocumentStatus::Empty | DocumentStatus::Failed
            );
            if (read && document.pending_count == 0) || document.notice.is_some() {
                return Ok(document);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 3 / 2).min(LAST_LOOK);
        }
    }

    /// Work of yours that gave up or was set aside, newest first.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub async fn dead_jobs(&self, page: &Paging) -> Result<Page<DeadLetter>, Error> {
        let mut query = Vec::new();
        paging(&mut query, page);
        self.fetch(self.get(&["api", "v1", "jobs", "dead"], query)).await
    }

    /// Puts given-up work back in the queue, with a full budget; the history stays.
    ///
    /// # Errors
    /// [`Error::Api`]; `CONFLICT` when it would most likely end the same way ([`Replay::force`]), `NOT_FOUND` when there is no such given-up
    /// job. That may also be because a first try worked and its answer was lost.
    pub async fn replay(&self, id: &str, replay: &Replay) -> Result<Replayed, Error> {
        let call = self.post(&["api", "v1", "jobs", "dead", checked(id)?, "replay"], Vec::new());
        self.fetch(call.key(replay.idempotency_key.as_deref())?.json(replay)?).await
    }

    /// The Spaces that you may read and write.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub async fn spaces(&self) -> Result<Page<Space>, Error> {
        self.fetch(self.get(&["api", "v1", "spaces"], Vec::new())).await
    }

    /// Documents in your Spaces, newest first.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub async fn documents(&self, which: &Documents) -> Result<Page<Document>, Error> {
        let mut query: Pairs<'_> = which.status.iter().map(|s| ("status", s.to_string().into())).collect();
        paging(&mut query, &which.page);
        self.fetch(self.get(&["api", "v1", "documents"], query)).await
    }

    /// One document.
    ///
    /// # Errors
    /// [`Error::Api`]; `NOT_FOUND` when it is not there or not yours.
    pub async fn document(&self, id: &str) -> Result<Document, Error> {
        self.fetch(self.get(&["api", "v1", "documents", checked(id)?], Vec::new())).await
    }

    /// Takes a document of yours away, with all that was made of it.
    ///
    /// # Errors
    /// [`Error::Api`]; `NOT_FOUND` when it is not there or not yours.
    pub async fn delete_document(&self, id: &str) -> Result<(), Error> {
        let url = self.url(&["api", "v1", "documents", checked(id)?], Vec::new());
        self.done(Call::new(self, Method::DELETE, url).gone_is_done()).await
    }

    /// The API's process lives.
    ///
    /// # Errors
    /// [`Error::Transport`] when nobody answers.
    pub async fn live(&self) -> Result<(), Error> {
        self.done(self.get(&["health", "live"], Vec::new())).await
    }

    /// It can serve: database and document store are there.
    ///
    /// # Errors
    /// [`Error::Api`] with `NOT_READY` and what is missing.
    pub async fn ready(&self) -> Result<(), Error> {
        self.done(self.get(&["health", "ready"], Vec::new())).await
    }

    /// The numbers, in Prometheus' text format.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub async fn metrics(&self) -> Result<String, Error> {
        self.text(self.get(&["health", "metrics"], Vec::new())).await
    }
}

/// An id as the server gives them out. Anything else could name another route.
fn checked(id: &str) -> Result<&str, Error> {
    if !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')) {
        Ok(id)
    } else {
        Err(Error::Input {
            field: "id",
            wrong: "is none that the API gave out".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "sf_hunter2";

    fn refusal(base: &str) -> String {
        match Client::new(base, TOKEN) {
            Ok(client) => panic!("{base} makes {client:?}"),
            Err(e) => format!("{e} {e:?}"),
        }
    }

    #[test]
    fn a_token_is_not_sent_in_plain_to_another_machine() {
        for base in [
            "http://steadfast.example",
            "http://10.0.0.1:7787",
            "http://localhost.example",
            "http://0.0.0.0:7787",
        ] {
            assert!(refusal(base).contains("plain http"), "{base}");
            assert!(Client::builder(base, TOKEN).allow_plain_http().build().is_ok(), "{base}");
        }
        for base in [
            "http://127.0.0.1:7787",
            "http://localhost:1/",
            "http://[::1]:7787",
            "http://127.9.9.9/steadfast",
        ] {
            assert!(Client::new(base, TOKEN).is_ok(), "{base}");
        }
    }

    #[test]
    fn a_wrong_address_is_named_and_not_repeated() {
        for base in [
            "hunter2",
            "ftp://hunter2/",
            "http://me:hunter2@127.0.0.1/",
            "http://127.0.0.1/?hunter2",
        ] {
            let said = refusal(base);
            assert!(said.contains("base: ") && !said.contains("hunter2"), "{said}");
        }
        for token in ["", " ", "two words", "hunter2\nx", "schlüssel-hunter2"] {
            let e = Client::new("http://127.0.0.1:1", token).expect_err("refused");
            let said = format!("{e} {e:?}");
            assert!(said.contains("token: ") && !said.contains("hunter2"), "{said}");
        }
    }

    #[test]
    fn the_token_is_in_no_debug_output() {
        let builder = Client::builder("http://127.0.0.1:7787", TOKEN);
        let client = builder.clone().build().expect("a client");
        let call = client.get(&["health", "live"], Vec::new());
        let request = client
            .http
            .get("http://127.0.0.1/")
            .header(reqwest::header::AUTHORIZATION, client.token.clone());
        for said in [
            format!("{builder:?}"),
            format!("{client:#?}"),
            format!("{call:?}"),
            format!("{request:?}"),
        ] {
            assert!(!said.contains("hunter2"), "{said}");
        }
        assert!(format!("{client:?}").contains("http://127.0.0.1:7787"));
    }

    #[test]
    fn addresses_are_put_together_under_the_base() {
        for base in ["http://127.0.0.1/house", "http://127.0.0.1/house/"] {
            let client = Client::new(base, TOKEN).expect("a client");
            let url = client.url(&["api", "v1", "search"], vec![("query", "a&b c/ü".into())]);
            assert_eq!(url.as_str(), "http://127.0.0.1/house/api/v1/search?query=a%26b+c%2F%C3%BC");
        }
        for id in ["", "..", "dead/1", "1?x", "1 "] {
            assert!(checked(id).is_err(), "{id:?}");
        }
        assert_eq!(checked("17").expect("an id"), "17");
    }
}
