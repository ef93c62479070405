//! What an operator sets: the server, the login, the sender. Read once, at the start, and refused there when half secure.

use std::fmt;
use std::sync::Arc;

use lettre::Address;
use lettre::message::Mailbox;
use percent_encoding::percent_decode_str;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use crate::provider;

/// The server and the sender, from `STEADFAST_SMTP_URL` and `STEADFAST_MAIL_FROM`.
#[derive(Clone)]
pub struct Smtp {
    pub(super) host: Host,
    pub(super) port: u16,
    pub(super) security: Security,
    /// User and password.
    pub(super) login: Option<(String, String)>,
    pub(super) from: Mailbox,
}

#[derive(Clone)]
pub(super) enum Security {
    /// To this very machine only.
    Plain,
    StartTls(TlsConnector),
    Tls(TlsConnector),
}

impl Smtp {
    /// - `smtps://USER:PASSWORD@HOST[:465]`: TLS from the first byte.
    /// - `smtp://[USER:PASSWORD@]HOST[:587]`: STARTTLS or nothing; plain text when HOST is a loopback address or `localhost`,
    ///   unless `?tls=required`.
    ///
    /// USER and PASSWORD are percent-encoded. `from` is `noreply@example.org` or `Name <noreply@example.org>`.
    ///
    /// # Errors
    /// A sentence that names the variable and the fix, and repeats nothing of the URL: a password that was not encoded can be
    /// in any part of it.
    pub fn parse(url: &str, from: &str) -> Result<Self, String> {
        Self::with_tls(url, from, provider::tls)
    }

    pub(super) fn with_tls(url: &str, from: &str, tls: impl FnOnce() -> Result<rustls::ClientConfig, String>) -> Result<Self, String> {
        let wrong = |fix: &str| Err(format!("STEADFAST_SMTP_URL: {fix}"));
        let Ok(url) = Url::parse(url.trim()) else {
            return wrong("not a URL; write smtps://USER:PASSWORD@HOST or smtp://USER:PASSWORD@HOST, user and password percent-encoded");
        };
        let from_start = match url.scheme() {
            "smtps" => true,
            "smtp" => false,
            _ => return wrong("write smtps://… (TLS from the first byte, port 465) or smtp://… (STARTTLS, port 587)"),
        };
        if !matches!(url.path(), "" | "/") || url.fragment().is_some() {
            return wrong("nothing may follow host and port; percent-encode / and # in the password as %2F and %23");
        }
        // In a scheme that browsers do not know, `url` leaves a name or IPv4 address unread.
        let host = match url.host() {
            Some(Host::Ipv6(a)) => Host::Ipv6(a),
            Some(Host::Domain(d)) if !d.is_empty() => match Host::parse(d.strip_suffix('.').unwrap_or(d)) {
                Ok(host) => host,
                Err(_) => return wrong("its host is no host name; write e.g. mail.example.org"),
            },
            _ => return wrong("it names no host; write e.g. smtps://USER:PASSWORD@mail.example.org"),
        };
        let port = match url.port() {
            Some(0) => return wrong("port 0 cannot be connected to; leave it out for 465 (smtps) or 587 (smtp)"),
            Some(port) => port,
            None => [587, 465][usize::from(from_start)],
        };
        let local = match &host {
            Host::Ipv4(a) => a.is_loopback(),
            Host::Ipv6(a) => a.to_canonical().is_loopback(),
            Host::Domain(d) => d == "localhost",
        };
        let mut required = from_start || !local;
        for (key, value) in url.query_pairs() {
            match (&*key, &*value) {
                ("tls", "required") => required = true,
                ("tls", "none") if local && !from_start => {}
                ("tls", "none" | "opportunistic") => {
                    return wrong(
                        "mail leaves this machine over TLS or not at all; drop ?tls=… (in the clear: smtp:// to 127.0.0.0/8, ::1, localhost)",
                    );
                }
                _ => return wrong("after ? only tls=required is understood; percent-encode ? in the password as %3F"),
            }
        }
        let login = match (decoded(url.username()), decoded(url.password().unwrap_or_default())) {
            (Some(user), Some(password)) if user.is_empty() == password.is_empty() => (!user.is_empty()).then_some((user, password)),
            (Some(_), Some(_)) => return wrong("user and password go together: write USER:PASSWORD@HOST, or neither"),
            _ => return wrong("user and password, percent-decoded, must be UTF-8 without control characters"),
        };
        let security = if required {
            let tls = TlsConnector::from(Arc::new(tls().map_err(|e| format!("STEADFAST_SMTP_URL: {e}"))?));
            if from_start { Security::Tls(tls) } else { Security::StartTls(tls) }
        } else {
            Security::Plain
        };
        Ok(Self {
            host,
            port,
            security,
            login,
            from: sender(from)?,
        })
    }
}

fn decoded(part: &str) -> Option<String> {
    let part = percent_decode_str(part).decode_utf8().ok()?;
    (!part.chars().any(char::is_control)).then(|| part.into_owned())
}

fn sender(from: &str) -> Result<Mailbox, String> {
    let wrong = |fix: &str| format!("STEADFAST_MAIL_FROM: {fix}");
    if from.chars().any(char::is_control) {
        return Err(wrong("holds a line break or another control character; remove it"));
    }
    let shape = "not a mail address; write noreply@example.org or Steadfast <noreply@example.org>";
    let mut from: Mailbox = from.trim().parse().map_err(|_| wrong(shape))?;
    from.email = in_ascii(from.email).ok_or_else(|| wrong(shape))?;
    if from.email.user().is_ascii() {
        Ok(from)
    } else {
        Err(wrong(
            "before the @ only ASCII: many servers take nothing else, and every letter has it",
        ))
    }
}

/// The address with its domain as DNS has it; the part before the @ has no ASCII form.
pub(super) fn in_ascii(address: Address) -> Option<Address> {
    if address.domain().is_ascii() {
        return Some(address);
    }
    let domain = Host::parse(address.domain()).ok()?.to_string();
    Address::new(address.user(), domain).ok()
}

/// Never the password.
impl fmt::Debug for Smtp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = match self.security {
            Security::Plain => "none",
            Security::StartTls(_) => "starttls",
            Security::Tls(_) => "from the first byte",
        };
        f.debug_struct("Smtp")
            .field("host", &self.host.to_string())
            .field("port", &self.port)
            .field("tls", &tls)
            .field("user", &self.login.as_ref().map(|(user, _)| user))
            .field("from", &self.from.to_string())
            .finish_non_exhaustive()
    }
}
