//! One exchange with a provider: one deadline over every phase of it, no redirects, no surprises from the environment.

use std::cell::Cell;
use std::collections::HashSet;
use std::error::Error as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use queue_schema::endpoint::Endpoint;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Client, ClientBuilder, RequestBuilder, Response};
use url::{Host, Url};

use super::symptom::{self, Symptom};
use super::{ProviderFailure, retry_after, words};

/// Covers DNS, TCP and TLS; the call's own deadline still rules when it is shorter.
const CONNECT: Duration = Duration::from_secs(5);
/// Shorter than any keep-alive a server is likely to have, so that we are the side that hangs up: a POST written into a
/// connection the server is just closing is lost (public case 80).
const IDLE: Duration = Duration::from_millis(500);
/// How soon a reused connection must break for it to have been dead already. Later, the server may have worked on the request.
const STALE: Duration = Duration::from_secs(2);
/// A model that is being loaded is given this much (requirement N23).
const RESIDENCY_TRIES: u32 = 3;
const RESIDENCY_PAUSE: Duration = Duration::from_millis(500);
/// An error's body may add to what the status said; it may not hold the call, nor fill memory.
const ERROR_BODY: usize = 64 * 1024;
const ERROR_BODY_WAIT: Duration = Duration::from_secs(2);
/// A call without a limit would be a place lost for ever.
const LONGEST: Duration = Duration::from_secs(86_400);

/// A provider's key. It is read when it is needed and dropped after the call; nothing prints it.
#[derive(Clone)]
pub struct Key(String);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

tokio::task_local! {
    /// Whether this call had to open a connection. What is lost on one it did not open may just have been stale.
    static CONNECTED: Cell<bool>;
}

#[derive(Clone, Copy, Debug)]
struct NoteConnects;

impl<S> tower::Layer<S> for NoteConnects {
    type Service = NoteConnect<S>;

    fn layer(&self, inner: S) -> NoteConnect<S> {
        NoteConnect(inner)
    }
}

#[derive(Clone, Debug)]
struct NoteConnect<S>(S);

impl<R, S: tower::Service<R>> tower::Service<R> for NoteConnect<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> S::Future {
        // Outside a call there is nobody to tell.
        let _ = CONNECTED.try_with(|c| c.set(true));
        self.0.call(request)
    }
}

/// The HTTP clients of a worker. Cheap to clone; one per process is enough.
#[derive(Clone, Debug)]
pub struct Clients {
    pooled: Client,
    /// For the one replay: a connection that nobody has used.
    fresh: Client,
    env: fn(&str) -> Option<String>,
    /// Endpoints (and their model) that have served this process: tells "was evicted" from "was never there".
    served: Arc<Mutex<HashSet<(i64, String)>>>,
}

impl Clients {
    /// TLS by rustls with ring, roots of the system (`SSL_CERT_FILE` and `SSL_CERT_DIR` are honoured), or the built-in ones
    /// where the system has none. Proxies come from `STEADFAST_PROXY` alone: the usual variables of a shell must not decide
    /// who sees documents.
    ///
    /// # Errors
    /// When `STEADFAST_PROXY` is no URL or no client can be built.
    pub fn new() -> Result<Self, String> {
        Self::with_env(|name| std::env::var(name).ok())
    }

    pub(super) fn with_env(env: fn(&str) -> Option<String>) -> Result<Self, String> {
        let tls = tls()?;
        let proxy = env("STEADFAST_PROXY").filter(|p| !p.trim().is_empty());
        let build = |b: ClientBuilder| -> Result<Client, String> {
            let mut b = b
                .tls_backend_preconfigured(tls.clone())
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECT)
                .no_proxy()
                .user_agent(concat!("steadfast/", env!("CARGO_PKG_VERSION")))
                .connector_layer(NoteConnects);
            if let Some(proxy) = &proxy {
                // Its value may hold a password: the error names the variable only.
                let proxy =
                    reqwest::Proxy::all(proxy.trim()).map_err(|_| "STEADFAST_PROXY: not a URL; use e.g. http://proxy:3128".to_owned())?;
                b = b.proxy(proxy);
            }
            b.build().map_err(|e| format!("no HTTP client: {}", chain(&e)))
        };
        Ok(Self {
            pooled: build(Client::builder().pool_idle_timeout(IDLE))?,
            fresh: build(Client::builder().pool_max_idle_per_host(0))?,
            env,
            served: Arc::default(),
        })
    }

    /// The key the endpoint names, or none when it names none.
    fn key(&self, endpoint: &Endpoint) -> Result<Option<Key>, ProviderFailure> {
        let Some(name) = endpoint.key_env.as_deref().filter(|n| !n.is_empty()) else {
            return Ok(None);
        };
        // Mounted secrets like to end in a newline.
        let value = (self.env)(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let Some(value) = value else {
            let error = format!(
                "the environment variable {name}, which endpoint \"{}\" names for its key, is not set",
                endpoint.name
            );
            return Err(ProviderFailure::new(Symptom::NoKey, "no_key", error));
        };
        if !value.bytes().all(|b| b.is_ascii_graphic()) {
            let error =
                format!("the environment variable {name} holds something that is no key: a space, a line break or a letter outside ASCII");
            return Err(ProviderFailure::new(Symptom::NoKey, "no_key", error));
        }
        Ok(Some(Key(value)))
    }
}

/// The endpoint's address, checked.
pub(super) fn address(endpoint: &Endpoint) -> Result<Url, ProviderFailure> {
    let refuse = |why: &str| {
        let error = format!("endpoint \"{}\": {why}; set an address like https://host/v1", endpoint.name);
        ProviderFailure::new(Symptom::ModelRefused, "url_invalid", error)
    };
    let raw = endpoint
        .url
        .as_deref()
        .map(str::trim)
        .filter(|u| !u.is_empty())
        .ok_or_else(|| refuse("it has no URL"))?;
    let url = Url::parse(raw).map_err(|_| refuse("its URL cannot be read"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refuse("its URL is neither http nor https"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refuse(
            "its URL holds a password, which belongs into the variable that key_env names",
        ));
    }
    Ok(url)
}

/// A key goes over plain HTTP only to this very machine.
fn may_carry_a_key(url: &Url) -> bool {
    if url.scheme() == "https" {
        return true;
    }
    match url.host() {
        Some(Host::Ipv4(a)) => a.is_loopback(),
        Some(Host::Ipv6(a)) => IpAddr::V6(a).to_canonical().is_loopback(),
        Some(Host::Domain(d)) => d == "localhost" || d.ends_with(".localhost"),
        None => false,
    }
}

/// A URL without what may be secret in it.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.to_string()
}

/// One question to one endpoint.
pub(super) struct Ask<'a> {
    pub endpoint: &'a Endpoint,
    pub url: Url,
    /// What is sent, to recognise it in an error.
    pub texts: &'a [String],
    /// Bytes of a good answer above which it is not read on.
    pub limit: usize,
    /// Puts the body on a request; called once per try.
    pub body: &'a (dyn Fn(RequestBuilder) -> RequestBuilder + Sync),
}

impl Ask<'_> {
    /// A failure with the provider's own words, as far as they may be shown.
    fn failure(&self, reading: symptom::Reading, status: u16, key: Option<&Key>, more: &str) -> ProviderFailure {
        let said = words::withhold(&reading.words, self.texts, key.map(|k| k.0.as_str()));
        let mut error = format!("HTTP {status}");
        if let Some(code) = &reading.code {
            error.push_str(&format!(" {code}"));
        }
        error.push_str(more);
        match said.as_deref() {
            None => error.push_str(": (words withheld: they repeat what was sent)"),
            Some("") => {}
            Some(said) => error.push_str(&format!(": {said}")),
        }
        // A key can also come back inside a code.
        if let Some(key) = key {
            error = error.replace(&key.0, "***");
        }
        let item = reading.item.filter(|i| *i < self.texts.len());
        ProviderFailure {
            status: Some(status),
            item,
            ..ProviderFailure::new(reading.symptom, reading.cause, error)
        }
    }
}

impl Clients {
    /// Asks and reads the whole answer. The deadline covers DNS, connect, TLS, headers, body, the replay and the pauses for a
    /// model that is being loaded.
    ///
    /// # Errors
    /// Everything but a success status with a complete body within the limit.
    pub(super) async fn ask(&self, ask: &Ask<'_>, deadline: Duration) -> Result<Vec<u8>, ProviderFailure> {
        let key = self.key(ask.endpoint)?;
        if key.is_some() && !may_carry_a_key(&ask.url) {
            let error = format!(
                "endpoint \"{}\": a key is never sent over plain HTTP to another machine; use an https:// URL",
                ask.endpoint.name
            );
            return Err(ProviderFailure::new(Symptom::KeyRefused, "key_over_plain_http", error));
        }
        let deadline = deadline.min(LONGEST);
        match tokio::time::timeout(deadline, self.ask_until_resident(ask, key.as_ref(), Instant::now() + deadline)).await {
            Ok(answer) => answer,
            Err(_elapsed) => {
                let error = format!("no complete answer within {} ms from {}", deadline.as_millis(), shown(&ask.url));
                Err(ProviderFailure::new(Symptom::Timeout, "deadline", error))
            }
        }
    }

    /// A local server may have unloaded the model under the request or be loading it: a refused model counts once it has been
    /// refused four times over 1.5 s. A deadline that leaves no time for that proves nothing, and is a timeout.
    async fn ask_until_resident(&self, ask: &Ask<'_>, key: Option<&Key>, until: Instant) -> Result<Vec<u8>, ProviderFailure> {
        let served = (ask.endpoint.id, ask.endpoint.model.clone());
        let mut tries = 0;
        loop {
            match self.ask_once(ask, key).await {
                Ok(answer) => {
                    self.served.lock().unwrap_or_else(PoisonError::into_inner).insert(served);
                    return Ok(answer);
                }
                Err(f) if f.symptom == Symptom::ModelRefused && tries < RESIDENCY_TRIES => {
                    if until.saturating_duration_since(Instant::now()) <= RESIDENCY_PAUSE {
                        return Err(ProviderFailure {
                            symptom: Symptom::Timeout,
                            cause: "model_not_resident_yet",
                            ..f
                        });
                    }
                    tries += 1;
                    tokio::time::sleep(RESIDENCY_PAUSE).await;
                }
                Err(f) if f.cause == "model_not_resident" => {
                    let seen = self.served.lock().unwrap_or_else(PoisonError::into_inner).contains(&served);
                    return Err(ProviderFailure {
                        cause: if seen { "evicted_mid_batch" } else { "never_resident" },
                        ..f
                    });
                }
                Err(f) => return Err(f),
            }
        }
    }

    async fn ask_once(&self, ask: &Ask<'_>, key: Option<&Key>) -> Result<Vec<u8>, ProviderFailure> {
        let mut response = self.send(ask, key).await.map_err(|e| unreachable(&e, &ask.url))?;
        let status = response.status();
        if status.is_success() {
            if let Some(coding) = response.headers().get(CONTENT_ENCODING).filter(|c| c.as_bytes() != b"identity") {
                // We ask for none, so something between us and the provider did this; what it holds is not worth guessing.
                let error = format!(
                    "the body is encoded ({:.20}), which was not asked for",
                    String::from_utf8_lossy(coding.as_bytes())
                );
                return Err(ProviderFailure {
                    status: Some(status.as_u16()),
                    ..ProviderFailure::new(Symptom::Unavailable, "encoded_body", error)
                });
            }
            return body(&mut response, ask).await;
        }
        Err(refusal(response, ask, key).await)
    }

    /// Sends, and sends once more on a new connection when a reused one turned out to be dead before a byte of an answer came.
    /// Every request here may be sent twice without harm: it reads, and what it costs is the provider's time.
    async fn send(&self, ask: &Ask<'_>, key: Option<&Key>) -> Result<Response, reqwest::Error> {
        let started = Instant::now();
        let (sent, reused) = CONNECTED
            .scope(Cell::new(false), async {
                let sent = self.request(&self.pooled, ask, key).send().await;
                (sent, CONNECTED.with(|c| !c.get()))
            })
            .await;
        match sent {
            Err(e) if reused && e.is_request() && !e.is_timeout() && started.elapsed() < STALE => {
                self.request(&self.fresh, ask, key).send().await
            }
            other => other,
        }
    }

    fn request(&self, client: &Client, ask: &Ask<'_>, key: Option<&Key>) -> RequestBuilder {
        let mut request = client.post(ask.url.clone()).header(ACCEPT_ENCODING, "identity");
        if let Some(mut value) = key.and_then(|k| HeaderValue::try_from(format!("Bearer {}", k.0)).ok()) {
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        (ask.body)(request)
    }
}

/// A whole body, at most `ask.limit` bytes of it. Cut off is "unreachable": the provider did answer, but nothing arrived.
async fn body(response: &mut Response, ask: &Ask<'_>) -> Result<Vec<u8>, ProviderFailure> {
    let status = Some(response.status().as_u16());
    let mut bytes = Vec::new();
    let too_large = || {
        let error = format!("the answer is larger than {} bytes", ask.limit);
        ProviderFailure {
            status,
            ..ProviderFailure::new(Symptom::InvalidResponse, "answer_too_large", error)
        }
    };
    if response.content_length().is_some_and(|n| n > ask.limit as u64) {
        return Err(too_large());
    }
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if bytes.len() + chunk.len() > ask.limit => return Err(too_large()),
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
            Ok(None) => return Ok(bytes),
            Err(e) => {
                let error = format!("the answer was cut off after {} bytes: {}", bytes.len(), chain(&e));
                return Err(ProviderFailure {
                    status,
                    ..ProviderFailure::new(Symptom::Unreachable, "cut_body", error)
                });
            }
        }
    }
}

/// Reads what an error status says. Its body only adds words: cut off, slow or endless, the status stands.
async fn refusal(mut response: Response, ask: &Ask<'_>, key: Option<&Key>) -> ProviderFailure {
    let mut bytes: Vec<u8> = Vec::new();
    let reading = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            bytes.extend_from_slice(&chunk[..chunk.len().min(ERROR_BODY - bytes.len())]);
            if bytes.len() >= ERROR_BODY {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(ERROR_BODY_WAIT, reading).await;
    let status = response.status().as_u16();
    let text = words::text(&bytes);
    let content_type = header(response.headers(), &CONTENT_TYPE);
    let reading = symptom::read(status, content_type.as_deref(), &words::without(&text, ask.texts));
    let more = match reading.symptom {
        Symptom::ModelRefused => format!(" (model \"{}\" at {})", ask.endpoint.model, shown(&ask.url)),
        Symptom::KeyRefused | Symptom::Quota => match &ask.endpoint.key_env {
            Some(name) => format!(" (key of {name} at {})", shown(&ask.url)),
            None => format!(" (no key_env is set for endpoint \"{}\")", ask.endpoint.name),
        },
        Symptom::Redirected => {
            let to = header(response.headers(), &LOCATION);
            let to = to
                .and_then(|to| ask.url.join(&to).ok())
                .map_or_else(|| "nowhere".to_owned(), |to| shown(&to));
            format!(": redirected to {to}, which is not followed; set the endpoint's URL to where it should go")
        }
        _ => String::new(),
    };
    let asks_for_time = matches!(reading.symptom, Symptom::RateLimited | Symptom::Unavailable);
    let wait = if asks_for_time {
        retry_after(response.headers(), &text, SystemTime::now())
    } else {
        None
    };
    ProviderFailure {
        retry_after: wait,
        ..ask.failure(reading, status, key, &more)
    }
}

fn header(headers: &HeaderMap, name: &reqwest::header::HeaderName) -> Option<String> {
    headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
}

/// No answer came. The cause is for a person; the symptom is the same for all of them.
fn unreachable(e: &reqwest::Error, url: &Url) -> ProviderFailure {
    let mut cause = if e.is_timeout() && e.is_connect() {
        "connect_timeout"
    } else {
        "no_answer"
    };
    let mut at = e.source();
    while let Some(source) = at {
        if source.is::<rustls::Error>() {
            cause = "tls";
        } else if let Some(io) = source.downcast_ref::<std::io::Error>() {
            cause = match io.kind() {
                std::io::ErrorKind::ConnectionRefused => "connection_refused",
                std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::UnexpectedEof => {
                    "connection_reset"
                }
                std::io::ErrorKind::HostUnreachable | std::io::ErrorKind::NetworkUnreachable => "no_route",
                _ if holds_tls(io) => "tls",
                _ => cause,
            };
        }
        at = source.source();
    }
    ProviderFailure::new(Symptom::Unreachable, cause, format!("no answer from {}: {}", shown(url), chain(e)))
}

/// An error of TLS travels inside an I/O error, or inside one in another; `source` steps over what they hold.
fn holds_tls(e: &std::io::Error) -> bool {
    let Some(inner) = e.get_ref() else { return false };
    inner.is::<rustls::Error>() || inner.downcast_ref().is_some_and(holds_tls)
}

/// An error with its sources; never the URL, whose query may hold a secret.
fn chain(e: &reqwest::Error) -> String {
    let mut said: Vec<String> = Vec::new();
    let mut at = e.source();
    while let Some(source) = at {
        let words = source.to_string();
        if !said.contains(&words) {
            said.push(words);
        }
        at = source.source();
    }
    if said.is_empty() {
        "the exchange broke off".to_owned()
    } else {
        said.join(": ")
    }
}

/// The one TLS of a worker, for its HTTP clients and for mail.
pub(crate) fn tls() -> Result<rustls::ClientConfig, String> {
    let mut roots = rustls::RootCertStore::empty();
    // Some entries of a system's store are always unreadable; what counts is that there are others.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    // The provider is named here instead of being installed for the process: no order of start-up can leave it out.
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("TLS: {e}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_goes_over_plain_http_to_this_machine_only() {
        for (url, may) in [
            ("https://api.example.com/v1", true),
            ("http://127.0.0.1:9/v1", true),
            ("http://localhost/v1", true),
            ("http://[::1]/v1", true),
            ("http://[::ffff:127.0.0.1]/v1", true),
            ("http://10.0.0.5/v1", false),
            ("http://localhost.example.com/v1", false),
            ("http://api.example.com/v1", false),
        ] {
            assert_eq!(may_carry_a_key(&Url::parse(url).expect("a literal URL")), may, "{url}");
        }
    }

    #[test]
    fn a_key_is_never_printed() {
        assert_eq!(format!("{:?}", Key("sk-secret".to_owned())), "Key(…)");
    }
}
