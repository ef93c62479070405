//! One letter to one SMTP server, with the one answer that matters: may it have been accepted?
//!
//! lettre's `send` gives the same error for a server that was never reached and for one that took the whole message and then
//! fell silent. After the second, sending again makes two mails (decision B25). So its low-level connection is driven here
//! step by step, and where a step broke says what is known: before the message's first byte nothing can have been accepted;
//! from then on only a final answer that was read to its end says anything.

mod post;
mod smtp;
mod wire;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, AsyncTokioStream};
use lettre::transport::smtp::commands::{Auth, Data, Mail, Quit, Rcpt};
use lettre::transport::smtp::extension::{ClientId, Extension, MailBodyParameter, MailParameter};
use lettre::transport::smtp::response::Response;
use queue_schema::outcome::sanitise;
use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use url::Host;

use self::post::Post;
use self::smtp::Security;
pub use self::smtp::Smtp;
use self::wire::Wire;
use crate::provider;

/// One address of a server with several; a dead one must not use up the time of the next.
const CONNECT: Duration = Duration::from_secs(5);
/// A polite goodbye that nobody waits for.
const QUIT: Duration = Duration::from_secs(2);
/// A send without a limit would be a place lost for ever.
const LONGEST: Duration = Duration::from_secs(86_400);

/// One message to one person.
#[derive(Clone, Debug)]
pub struct Letter {
    /// A bare address: `someone@example.org`.
    pub to: String,
    pub subject: String,
    /// Plain text; any line ends.
    pub body: String,
    /// Without `<>`: `incident-7.user-3.opening.1@example.org`. The same for every try, so that a mailbox can tell.
    pub message_id: String,
}

/// What is known of a letter afterwards. `cause` is short and machine-readable; `error` is for an operator: at most 500
/// characters, neither the password nor anything of the letter's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The server has taken it on.
    Accepted,
    /// The server has not got it: it may be sent again.
    NotSent { why: NotSent, cause: &'static str, error: String },
    /// The message went out, in part or whole, and no final answer was read. Sending again may make two.
    Unknown { cause: &'static str, error: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// The letter cannot be written down for this server: no address, a line break in a header, a local part it cannot take.
    BadAddress,
    /// A 5xx to sender, recipient or message: this letter, for good.
    Refused,
    /// Not reached, no TLS, a 4xx, silence or rubbish before the message went out: later.
    Away,
    /// The login was refused or is missing: no letter will pass until an operator has changed it.
    KeyRefused,
}

/// Sends letters, each over a connection of its own. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Mailer {
    smtp: Arc<Smtp>,
    limit: Duration,
}

impl Mailer {
    /// `limit` is for one whole send, from the name's resolution to the final answer.
    #[must_use]
    pub fn new(smtp: Smtp, limit: Duration) -> Self {
        Self {
            smtp: Arc::new(smtp),
            limit: limit.min(LONGEST),
        }
    }

    /// The sender's domain: what Message-IDs end in.
    #[must_use]
    pub fn domain(&self) -> &str {
        self.smtp.from.email.domain()
    }

    /// Sends once, within the limit, and tries nothing twice. Who drops the future before its end must take the letter for
    /// [`Sent::Unknown`].
    pub async fn send(&self, letter: &Letter) -> Sent {
        match self.try_send(letter).await {
            Ok(()) => Sent::Accepted,
            Err(fault) => {
                let error = self.told(&fault, letter);
                match fault.why {
                    Some(why) => Sent::NotSent {
                        why,
                        cause: fault.cause,
                        error,
                    },
                    None => Sent::Unknown { cause: fault.cause, error },
                }
            }
        }
    }

    async fn try_send(&self, letter: &Letter) -> Result<(), Fault> {
        let post = Post::write(&self.smtp.from, letter)?;
        let mut talk = Talk::open(&self.smtp, Instant::now() + self.limit).await?;
        let end = match talk.introduce(&self.smtp, &post).await {
            Ok(()) => talk.hand_over(&post).await,
            no => no,
        };
        if end.as_ref().err().is_none_or(|fault| fault.in_step) {
            talk.leave();
        }
        end
    }

    /// The server's words follow ours unless they repeat the letter or the login, in clear or as they went over the wire.
    fn told(&self, fault: &Fault, letter: &Letter) -> String {
        let Some(said) = &fault.said else {
            return sanitise(&fault.what);
        };
        let mut texts = vec![letter.subject.clone(), letter.body.clone()];
        texts.extend(Post::write(&self.smtp.from, letter).ok().map(|post| post.body()));
        let mut password = None;
        if let Some((user, secret)) = &self.smtp.login {
            texts.extend([secret.clone(), format!("\0{user}\0{secret}")].map(|clear| STANDARD.encode(clear)));
            password = Some(secret.as_str());
        }
        let said = provider::withhold(said, &texts, password).unwrap_or_default();
        sanitise(format!("{} {said}", fault.what).trim_end())
    }
}

/// Where a send has come to; what is refused there follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Connect,
    Tls,
    Greeting,
    StartTls,
    Auth,
    Sender,
    Recipient,
    Data,
    Message,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Connect => "connecting",
            Self::Tls => "the TLS handshake",
            Self::Greeting => "greeting and EHLO",
            Self::StartTls => "STARTTLS",
            Self::Auth => "AUTH",
            Self::Sender => "MAIL FROM",
            Self::Recipient => "RCPT TO",
            Self::Data => "DATA",
            Self::Message => "the message",
        }
    }
}

/// Why a letter is not accepted.
#[derive(Debug)]
struct Fault {
    /// `None`: it may be accepted all the same.
    why: Option<NotSent>,
    cause: &'static str,
    /// Our words: free of secrets and content.
    what: String,
    /// The server's: not to be shown before [`Mailer::told`] has looked at them.
    said: Option<String>,
    /// The server's no was read to its end, or nothing was asked: it knows where we are, and so do we.
    in_step: bool,
}

impl Fault {
    /// Known on our side.
    fn ours(why: NotSent, cause: &'static str, what: impl Into<String>) -> Self {
        Self {
            why: Some(why),
            cause,
            what: what.into(),
            said: None,
            in_step: true,
        }
    }

    /// The conversation broke off in this step.
    fn broken(step: Step, cause: &'static str, what: impl fmt::Display) -> Self {
        Self {
            why: Some(NotSent::Away),
            cause,
            what: format!("{}: {what}", step.name()),
            said: None,
            in_step: false,
        }
    }

    fn io(step: Step, e: &io::Error) -> Self {
        let cause = match (step, e.kind()) {
            (Step::Tls, _) => "tls_failed",
            (_, io::ErrorKind::ConnectionRefused) => "connection_refused",
            (Step::Connect, _) => "connect_failed",
            (_, io::ErrorKind::InvalidData) => "reply_unreadable",
            _ => "connection_lost",
        };
        Self::broken(step, cause, e)
    }

    fn lettre(step: Step, e: &lettre::transport::smtp::Error) -> Self {
        let source = std::error::Error::source(e);
        if let Some(code) = e.status() {
            return Self::refused(step, code.into(), source.map(ToString::to_string).unwrap_or_default());
        }
        match source.and_then(|s| s.downcast_ref()) {
            Some(e) => Self::io(step, e),
            // Its parser's words repeat what it stumbled over.
            None => Self::broken(step, "reply_unreadable", "the server's answer is not SMTP"),
        }
    }

    /// The server's no.
    fn refused(step: Step, code: u16, said: String) -> Self {
        let (why, cause) = match (code, step) {
            (..500, _) => (NotSent::Away, "server_busy"),
            // A server that wants a login first says so wherever it likes; the letter is not to blame.
            (530 | 534 | 535 | 538, _) | (_, Step::Auth) => (NotSent::KeyRefused, "auth_refused"),
            (_, Step::Sender) => (NotSent::Refused, "sender_refused"),
            (_, Step::Recipient) => (NotSent::Refused, "recipient_refused"),
            (_, Step::Data | Step::Message) => (NotSent::Refused, "message_refused"),
            (_, Step::Connect | Step::Tls | Step::Greeting | Step::StartTls) => (NotSent::Away, "server_refused"),
        };
        Self {
            why: Some(why),
            cause,
            what: format!("{}: the server said {code}", step.name()),
            said: Some(said),
            in_step: true,
        }
    }
}

/// Nothing is begun after the deadline: a process that was frozen over it must not go on where it stopped.
async fn within<T>(deadline: Instant, step: Step, work: impl Future<Output = T>) -> Result<T, Fault> {
    let late = || Fault::broken(step, "timeout", "not done within the limit for one letter");
    if Instant::now() >= deadline {
        return Err(late());
    }
    timeout_at(deadline, work).await.map_err(|_| late())
}

/// `wanted`: first digits of the answers that go on from here.
fn judge(step: Step, reply: Response, wanted: &[u16]) -> Result<Response, Fault> {
    let code = u16::from(reply.code());
    if wanted.contains(&(code / 100)) {
        return Ok(reply);
    }
    let said = reply.message().collect::<Vec<_>>().join(" ");
    Err(match code {
        400.. => Fault::refused(step, code, said),
        _ => Fault {
            said: Some(said),
            ..Fault::broken(step, "reply_unreadable", format_args!("{code} is no answer to this"))
        },
    })
}

/// The same for what lettre gives, which has made a no an error already.
fn answered(step: Step, reply: Result<Response, lettre::transport::smtp::Error>, wanted: &[u16]) -> Result<Response, Fault> {
    match reply {
        Ok(reply) => judge(step, reply, wanted),
        Err(e) => Err(Fault::lettre(step, &e)),
    }
}

/// A conversation with the server.
struct Talk {
    conn: AsyncSmtpConnection,
    deadline: Instant,
    /// Bytes that went out, as the wire counts them.
    written: Arc<AtomicUsize>,
}

impl Talk {
    async fn open(smtp: &Smtp, deadline: Instant) -> Result<Self, Fault> {
        let tcp = within(deadline, Step::Connect, connect(&smtp.host, smtp.port)).await??;
        let both = tcp.local_addr().and_then(|us| Ok((us, tcp.peer_addr()?)));
        let (us, peer) = both.map_err(|e| Fault::io(Step::Connect, &e))?;
        // The host's own name is often one that the world does not know; the address is always true (RFC 5321, section 4.1.4).
        let hello = match us.ip() {
            IpAddr::V4(a) => ClientId::Ipv4(a),
            IpAddr::V6(a) => ClientId::Ipv6(a),
        };
        let written = Arc::<AtomicUsize>::default();
        let wire = |io| Wire::new(io, peer, written.clone());
        let stream: Box<dyn AsyncTokioStream> = match &smtp.security {
            Security::Plain => Box::new(Wire::new(tcp, peer, written.clone())),
            Security::Tls(tls) => Box::new(wire(within(deadline, Step::Tls, encrypt(tls, &smtp.host, tcp)).await??)),
            Security::StartTls(tls) => {
                let tcp = within(deadline, Step::StartTls, start_tls(Wire::new(tcp, peer, Arc::default()), &hello)).await??;
                Box::new(wire(within(deadline, Step::Tls, encrypt(tls, &smtp.host, tcp)).await??).greeted(220))
            }
        };
        let greeted = AsyncSmtpConnection::connect_with_transport(stream, &hello);
        let conn = within(deadline, Step::Greeting, greeted).await?;
        let conn = conn.map_err(|e| Fault::lettre(Step::Greeting, &e))?;
        Ok(Self { conn, deadline, written })
    }

    async fn say(&mut self, step: Step, command: impl fmt::Display, wanted: &[u16]) -> Result<Response, Fault> {
        let reply = within(self.deadline, step, self.conn.command(command)).await?;
        answered(step, reply, wanted)
    }

    /// Everything up to the server's word that the message may come.
    async fn introduce(&mut self, smtp: &Smtp, post: &Post) -> Result<(), Fault> {
        if let Some((user, password)) = &smtp.login {
            self.log_in(Credentials::new(user.clone(), password.clone())).await?;
        }
        let mut options = Vec::new();
        if !post.to.user().is_ascii() {
            if !self.conn.server_info().supports_feature(Extension::SmtpUtfEight) {
                let what = "the part of the address before the @ is not ASCII, and the server does not offer SMTPUTF8";
                return Err(Fault::ours(NotSent::BadAddress, "no_smtputf8", what));
            }
            options.push(MailParameter::SmtpUtfEight);
            // Then the address is in the headers too. The body never needs it: it is encoded to ASCII.
            if self.conn.server_info().supports_feature(Extension::EightBitMime) {
                options.push(MailParameter::Body(MailBodyParameter::EightBitMime));
            }
        }
        self.say(Step::Sender, Mail::new(Some(smtp.from.email.clone()), options), &[2])
            .await?;
        self.say(Step::Recipient, Rcpt::new(post.to.clone(), Vec::new()), &[2]).await?;
        self.say(Step::Data, Data, &[3]).await?;
        Ok(())
    }

    /// lettre's own `auth` says QUIT when it is refused in the middle and waits for the answer to that: a server that does
    /// not answer would turn a refused key into a timeout.
    async fn log_in(&mut self, login: Credentials) -> Result<(), Fault> {
        let Some(mechanism) = self.conn.server_info().get_auth_mechanism(DEFAULT_MECHANISMS) else {
            let what = "STEADFAST_SMTP_URL holds a login, and the server offers neither AUTH PLAIN nor AUTH LOGIN";
            return Err(Fault::ours(NotSent::KeyRefused, "auth_no_mechanism", what));
        };
        let foreign = |_| {
            let what = "AUTH: the server asks for something else than user and password";
            Fault::ours(NotSent::KeyRefused, "auth_no_mechanism", what)
        };
        let auth = Auth::new(mechanism, login.clone(), None).map_err(foreign)?;
        let mut reply = self.say(Step::Auth, auth, &[2, 3]).await?;
        // PLAIN says it all at once; LOGIN is asked for the user and then for the password.
        for wanted in [&[3][..], &[2]] {
            if u16::from(reply.code()) / 100 == 2 {
                return Ok(());
            }
            let auth = Auth::new_from_response(mechanism, login.clone(), &reply).map_err(foreign)?;
            reply = self.say(Step::Auth, auth, wanted).await?;
        }
        Ok(())
    }

    /// The message itself. From its first byte on only a no that was read to its end is a no.
    async fn hand_over(&mut self, post: &Post) -> Result<(), Fault> {
        let before = self.written.load(Ordering::Relaxed);
        let reply = within(self.deadline, Step::Message, self.conn.message(&post.bytes)).await;
        let end = reply.and_then(|reply| answered(Step::Message, reply, &[2]));
        let begun = self.written.load(Ordering::Relaxed) > before;
        end.map(drop).map_err(|fault| Fault {
            why: if fault.in_step || !begun { fault.why } else { None },
            ..fault
        })
    }

    /// Beside the caller: between the server's yes and the caller's note of it lies the gap of decision B25, and waiting
    /// here would widen it.
    fn leave(mut self) {
        tokio::spawn(async move {
            let _ = timeout(QUIT, self.conn.command(Quit)).await;
        });
    }
}

async fn connect(host: &Host, port: u16) -> Result<TcpStream, Fault> {
    let addresses: Vec<SocketAddr> = match host {
        Host::Ipv4(a) => vec![(*a, port).into()],
        Host::Ipv6(a) => vec![(*a, port).into()],
        // Not asked of anybody: the name is what allows plain text.
        Host::Domain(d) if d == "localhost" => vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()],
        Host::Domain(d) => match tokio::net::lookup_host((d.as_str(), port)).await {
            Ok(found) => found.collect(),
            Err(e) => return Err(Fault::broken(Step::Connect, "dns_failed", format_args!("{d}: {e}"))),
        },
    };
    let mut last = Fault::broken(Step::Connect, "dns_failed", format_args!("{host} has no address"));
    for at in addresses {
        last = match timeout(CONNECT, TcpStream::connect(at)).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(e)) => Fault::io(Step::Connect, &io::Error::new(e.kind(), format!("{at}: {e}"))),
            Err(_) => Fault::broken(Step::Connect, "timeout", format_args!("{at} does not answer")),
        };
    }
    Err(last)
}

/// lettre's own STARTTLS keeps what its reader had taken in before the handshake, so that anybody on the line can put
/// answers in front of the server's. This one hands over the bare socket, or nothing.
async fn start_tls(mut wire: Wire<TcpStream>, hello: &ClientId) -> Result<TcpStream, Fault> {
    let lost = |step| move |e: io::Error| Fault::io(step, &e);
    judge(Step::Greeting, wire.reply().await.map_err(lost(Step::Greeting))?, &[2])?;
    let ehlo = format!("EHLO {hello}\r\n");
    wire.write_all(ehlo.as_bytes()).await.map_err(lost(Step::Greeting))?;
    let offers = judge(Step::Greeting, wire.reply().await.map_err(lost(Step::Greeting))?, &[2])?;
    if !offers.message().any(|line| line.eq_ignore_ascii_case("STARTTLS")) {
        let what = "the server offers no STARTTLS, and in the clear nothing is sent; if it has a port for TLS, use smtps://";
        return Err(Fault::ours(NotSent::Away, "starttls_missing", what));
    }
    wire.write_all(b"STARTTLS\r\n").await.map_err(lost(Step::StartTls))?;
    judge(Step::StartTls, wire.reply().await.map_err(lost(Step::StartTls))?, &[2])?;
    wire.into_inner().map_err(lost(Step::StartTls))
}

async fn encrypt(tls: &TlsConnector, host: &Host, tcp: TcpStream) -> Result<tokio_rustls::client::TlsStream<TcpStream>, Fault> {
    let name = match host {
        Host::Ipv4(a) => ServerName::from(IpAddr::from(*a)),
        Host::Ipv6(a) => ServerName::from(IpAddr::from(*a)),
        Host::Domain(d) => ServerName::try_from(d.clone()).map_err(|e| Fault::broken(Step::Tls, "tls_failed", e))?,
    };
    tls.connect(name, tcp).await.map_err(|e| Fault::io(Step::Tls, &e))
}

#[cfg(test)]
mod tests;
