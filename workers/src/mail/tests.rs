//! The sender against a server that does what real ones do, and worse. Each row is one fault and the one thing that may be
//! said of the letter afterwards.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{Letter, Mailer, Post, Sent, Smtp};

/// For sends that end by themselves: never reached.
const LONG: Duration = Duration::from_secs(30);
/// For servers that fall silent; longer when the silence was not even reached, on a busy machine.
const SHORT: Duration = Duration::from_millis(500);
const PASSWORD: &str = "correct horse battery";
const FROM: &str = "Steadfast <noreply@example.org>";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Greeting,
    Ehlo,
    StartTls,
    /// Right after the handshake, and after its EHLO.
    Handshake,
    Auth,
    /// The user, then the password of AUTH LOGIN.
    User,
    Pass,
    Mail,
    Rcpt,
    Data,
    /// After the message was read to its end.
    Body,
    Quit,
}

/// Instead of the usual answer.
#[derive(Clone, Copy, Debug)]
enum Act {
    Say(&'static [u8]),
    /// Says it (the letter, the password, …) with what was just heard in it.
    Echo(&'static str),
    SayAndClose(&'static [u8]),
    /// One byte every 50 ms.
    Dribble(&'static [u8]),
    /// This byte until the client hangs up, and at most 64 MB of it.
    Flood(u8),
    /// The usual answer, and reads no more.
    Deaf,
    Hang,
    Close,
}
use Act::*;

#[derive(Clone, Default)]
struct Script {
    offers: Vec<&'static str>,
    acts: Vec<(At, Act)>,
    tls: Option<TlsAcceptor>,
    /// TLS from the first byte.
    smtps: bool,
}

#[derive(Debug, Default)]
struct Heard {
    connections: usize,
    commands: Vec<String>,
    /// Said before there was any TLS.
    in_the_clear: Vec<String>,
    /// Messages that came whole, without the dots that protect others.
    letters: Vec<String>,
    /// Of those, the ones the server did not say no to.
    kept: usize,
    /// The server has come to where it says nothing more.
    silent: bool,
    flooded: usize,
}

struct Server {
    at: SocketAddr,
    heard: Arc<Mutex<Heard>>,
}

impl Server {
    async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let at = listener.local_addr().expect("a bound socket has an address");
        let heard: Arc<Mutex<Heard>> = Arc::default();
        let all = heard.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                all.lock().expect("no panic while it was held").connections += 1;
                let (script, all) = (script.clone(), all.clone());
                tokio::spawn(async move {
                    let _ = serve(socket, script, all).await;
                });
            }
        });
        Self { at, heard }
    }

    fn heard<T>(&self, f: impl FnOnce(&Heard) -> T) -> T {
        f(&self.heard.lock().expect("no panic while it was held"))
    }
}

/// `None` ends the conversation.
type On = Option<()>;

async fn serve(socket: TcpStream, script: Script, heard: Arc<Mutex<Heard>>) -> On {
    let mut session = Session {
        io: BufReader::new(socket),
        script: script.clone(),
        heard,
        secure: false,
    };
    if !script.smtps {
        session.answer(At::Greeting, "220 mx.example.org ESMTP\r\n").await?;
        session.converse().await?;
    }
    // Still here: TLS is due.
    let tls = script.tls?.accept(session.io.into_inner()).await.ok()?;
    let mut session = Session {
        io: BufReader::new(tls),
        script: session.script,
        heard: session.heard,
        secure: true,
    };
    if script.smtps {
        session.answer(At::Greeting, "220 mx.example.org ESMTP\r\n").await?;
    }
    session.converse().await
}

struct Session<S> {
    io: BufReader<S>,
    script: Script,
    heard: Arc<Mutex<Heard>>,
    secure: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// Until the end, or until TLS is due (`Some`).
    async fn converse(&mut self) -> On {
        loop {
            let line = self.line().await?;
            self.note(&line);
            let verb = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
            match verb.as_str() {
                "EHLO" => {
                    let offers = self.script.offers.iter().filter(|o| !(self.secure && **o == "STARTTLS"));
                    let offers: String = offers.map(|o| format!("250-{o}\r\n")).collect();
                    let usual = format!("250-mx.example.org\r\n{offers}250 HELP\r\n");
                    let at = if self.secure && !self.script.smtps {
                        At::Handshake
                    } else {
                        At::Ehlo
                    };
                    self.answer(at, &usual).await?;
                }
                "STARTTLS" => {
                    if self.answer(At::StartTls, "220 go ahead\r\n").await? {
                        return Some(());
                    }
                }
                "AUTH" if line.ends_with("LOGIN") => {
                    self.answer(At::Auth, "334 VXNlcm5hbWU6\r\n").await?;
                    let user = self.line().await?;
                    self.note(&user);
                    self.answer(At::User, "334 UGFzc3dvcmQ6\r\n").await?;
                    let password = self.line().await?;
                    self.note(&password);
                    self.answer(At::Pass, "235 welcome\r\n").await?;
                }
                "AUTH" => drop(self.answer(At::Auth, "235 welcome\r\n").await?),
                "MAIL" => drop(self.answer(At::Mail, "250 ok\r\n").await?),
                "RCPT" => drop(self.answer(At::Rcpt, "250 ok\r\n").await?),
                "DATA" => {
                    if self.answer(At::Data, "354 go ahead\r\n").await? {
                        self.letter().await?;
                    }
                }
                "QUIT" => {
                    self.answer(At::Quit, "221 bye\r\n").await?;
                    return None;
                }
                _ => drop(self.say(b"500 what?\r\n").await?),
            }
        }
    }

    async fn letter(&mut self) -> On {
        let mut letter = String::new();
        loop {
            let line = self.line().await?;
            if line == "." {
                break;
            }
            letter.push_str(line.strip_prefix('.').unwrap_or(&line));
            letter.push('\n');
        }
        let act = self.act(At::Body);
        {
            let mut heard = self.heard.lock().expect("no panic while it was held");
            heard.letters.push(letter);
            let no = matches!(act, Some(Say(w)) if w.starts_with(b"4") || w.starts_with(b"5")) || matches!(act, Some(Echo(_)));
            heard.kept += usize::from(!no);
        }
        self.answer(At::Body, "250 queued\r\n").await.map(drop)
    }

    fn act(&self, at: At) -> Option<Act> {
        self.script.acts.iter().find(|(when, _)| *when == at).map(|(_, act)| *act)
    }

    /// `true` when it was the usual answer, or one that begins like it.
    async fn answer(&mut self, at: At, usual: &str) -> Option<bool> {
        let act = self.act(at);
        if matches!(act, Some(Hang | Deaf | Dribble(_))) {
            self.heard.lock().expect("no panic while it was held").silent = true;
        }
        match act {
            None => self.say(usual.as_bytes()).await.map(|()| true),
            Some(Say(words)) => {
                self.say(words).await?;
                Some(words.first() == usual.as_bytes().first())
            }
            Some(Echo(code)) => {
                let echo = self.heard(|h| {
                    let letter = h.letters.last().map(|l| l.replace('\n', " ")).unwrap_or_default();
                    format!("{code} you said {} and {letter} and {PASSWORD}\r\n", h.commands.join(" / "))
                });
                self.say(echo.as_bytes()).await.map(|()| false)
            }
            Some(SayAndClose(words)) => {
                self.say(words).await?;
                None
            }
            Some(Dribble(words)) => {
                let mut every = tokio::time::interval(Duration::from_millis(50));
                for byte in words {
                    every.tick().await;
                    self.say(&[*byte]).await?;
                }
                std::future::pending().await
            }
            Some(Flood(byte)) => {
                let flood = vec![byte; 64 * 1024];
                for _ in 0..1024 {
                    self.say(&flood).await?;
                    self.heard.lock().expect("no panic while it was held").flooded += flood.len();
                }
                None
            }
            Some(Deaf) => {
                self.say(usual.as_bytes()).await?;
                std::future::pending().await
            }
            Some(Hang) => std::future::pending().await,
            Some(Close) => None,
        }
    }

    fn heard<T>(&self, f: impl FnOnce(&Heard) -> T) -> T {
        f(&self.heard.lock().expect("no panic while it was held"))
    }

    fn note(&self, line: &str) {
        let mut heard = self.heard.lock().expect("no panic while it was held");
        heard.commands.push(line.to_owned());
        if !self.secure {
            heard.in_the_clear.push(line.to_owned());
        }
    }

    async fn say(&mut self, words: &[u8]) -> On {
        self.io.write_all(words).await.ok()?;
        self.io.flush().await.ok()
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        let n = self.io.read_until(b'\n', &mut line).await.ok()?;
        (n > 0).then(|| String::from_utf8_lossy(line.strip_suffix(b"\r\n").unwrap_or(&line)).into_owned())
    }
}

/// A server's TLS for `names`, and a client's that trusts it.
fn tls_for(names: &[&str]) -> (TlsAcceptor, rustls::ClientConfig) {
    let ring = || Arc::new(rustls::crypto::ring::default_provider());
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("a key");
    let server = rustls::ServerConfig::builder_with_provider(ring())
        .with_safe_default_protocol_versions()
        .expect("ring knows them")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .expect("the key is the certificate's");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(cert.der().clone()).expect("a certificate");
    let client = rustls::ClientConfig::builder_with_provider(ring())
        .with_safe_default_protocol_versions()
        .expect("ring knows them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (TlsAcceptor::from(Arc::new(server)), client)
}

fn letter() -> Letter {
    Letter {
        to: "anna@example.net".to_owned(),
        subject: "Reading scans is paused".to_owned(),
        body: "Your documents are safe.\nNothing is lost, and nothing is left for you to do.\n".to_owned(),
        message_id: "incident-7.user-3.opening.1@example.org".to_owned(),
    }
}

fn mailer(url: &str, limit: Duration) -> Mailer {
    Mailer::new(Smtp::parse(url, FROM).expect("a good setting"), limit)
}

/// What a row expects, in one word and the cause.
fn short(sent: &Sent) -> String {
    match sent {
        Sent::Accepted => "accepted".to_owned(),
        Sent::NotSent { why, cause, .. } => format!("{why:?} {cause}"),
        Sent::Unknown { cause, .. } => format!("unknown {cause}"),
    }
}

fn with(at: At, act: Act) -> Script {
    Script {
        acts: vec![(at, act)],
        ..Script::default()
    }
}

fn offering(offers: &[&'static str], acts: &[(At, Act)]) -> Script {
    Script {
        offers: offers.to_vec(),
        acts: acts.to_vec(),
        ..Script::default()
    }
}

/// A limit that ends too early says nothing of the silence; then a longer one is tried.
async fn until_silent(server: &Server, smtp: &Smtp, letter: &Letter) -> Sent {
    let mut limit = SHORT;
    loop {
        let sent = Mailer::new(smtp.clone(), limit).send(letter).await;
        if limit > LONG || server.heard(|h| h.silent) {
            return sent;
        }
        limit *= 4;
    }
}

/// Plays every row at the same time: the silent ones cost their limit once.
async fn play(rows: Vec<(&'static str, Script, &'static str)>, scheme: &str, tail: &str, tls: Option<rustls::ClientConfig>) {
    let all = rows.into_iter().map(|(name, script, expected)| {
        let tls = tls.clone();
        async move {
            let silent = expected.ends_with("timeout");
            let server = Server::start(script).await;
            let url = format!("{scheme}{}{tail}", server.at);
            let smtp = Smtp::with_tls(&url, FROM, || tls.ok_or_else(|| "no TLS here".to_owned())).expect("a good setting");
            let begun = std::time::Instant::now();
            let sent = if silent {
                until_silent(&server, &smtp, &letter()).await
            } else {
                Mailer::new(smtp, LONG).send(&letter()).await
            };
            assert_eq!(short(&sent), expected, "{name}: {sent:?}");
            let took = begun.elapsed();
            assert!(took < LONG / 2, "{name} took {took:?}");
            let kept = server.heard(|h| h.kept);
            match &sent {
                // The whole point: what may be sent again has not been taken, whatever the server did.
                Sent::NotSent { error, .. } => {
                    assert_eq!(kept, 0, "{name}");
                    assert!(!error.is_empty() && !error.contains("documents are safe"), "{name}: {error}");
                }
                Sent::Accepted => assert_eq!(kept, 1, "{name}"),
                Sent::Unknown { error, .. } => assert!(!error.is_empty() && !error.contains("documents are safe"), "{name}: {error}"),
            }
            assert!(server.heard(|h| h.flooded) < 16 * 1024 * 1024, "{name}: read on and on");
        }
    });
    futures::future::join_all(all).await;
}

#[tokio::test]
async fn b25_each_fault_says_one_thing_of_the_letter() {
    let bare = |act| with(At::Body, act);
    play(
        vec![
            ("all is well", Script::default(), "accepted"),
            // Before anything was said.
            ("silent after connect", with(At::Greeting, Hang), "Away timeout"),
            ("closes after connect", with(At::Greeting, Close), "Away connection_lost"),
            ("not now", with(At::Greeting, Say(b"421 too busy\r\n")), "Away server_busy"),
            ("not you", with(At::Greeting, Say(b"554 no service\r\n")), "Away server_refused"),
            (
                "a web server",
                with(At::Greeting, Say(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
                "Away reply_unreadable",
            ),
            ("5 MB in one line", with(At::Greeting, Flood(b'2')), "Away reply_unreadable"),
            ("5 MB of lines", with(At::Greeting, Flood(b'\n')), "Away reply_unreadable"),
            (
                "not UTF-8 at all",
                with(At::Greeting, Say(b"\xff\xfe\xfd\r\n")),
                "Away reply_unreadable",
            ),
            (
                "words that are not UTF-8",
                with(At::Greeting, Say(b"220 gr\xfc\xdf Gott\r\n")),
                "accepted",
            ),
            ("NUL in the words", with(At::Greeting, Say(b"220 a\0b\r\n")), "accepted"),
            (
                "a long greeting",
                with(At::Greeting, Say(b"220-one\r\n220-two\r\n220 three\r\n")),
                "accepted",
            ),
            (
                "byte by byte",
                with(At::Greeting, Dribble(b"220 this greeting never comes to its end at all")),
                "Away timeout",
            ),
            ("EHLO: not now", with(At::Ehlo, Say(b"421 too busy\r\n")), "Away server_busy"),
            ("EHLO: unknown", with(At::Ehlo, Say(b"502 what?\r\n")), "Away server_refused"),
            ("EHLO: silent", with(At::Ehlo, Hang), "Away timeout"),
            (
                "EHLO: a blank line among the offers",
                with(At::Ehlo, Say(b"250-mx\r\n250-   \r\n250 HELP\r\n")),
                "accepted",
            ),
            ("EHLO: bare codes", with(At::Ehlo, Say(b"250-mx\r\n250\r\n")), "accepted"),
            // Sender, recipient, leave to send.
            ("MAIL: 4xx", with(At::Mail, Say(b"451 later\r\n")), "Away server_busy"),
            ("MAIL: 5xx", with(At::Mail, Say(b"550 not from you\r\n")), "Refused sender_refused"),
            (
                "MAIL: a login is missing",
                with(At::Mail, Say(b"530 5.7.0 Authentication required\r\n")),
                "KeyRefused auth_refused",
            ),
            ("MAIL: silent", with(At::Mail, Hang), "Away timeout"),
            ("MAIL: closes", with(At::Mail, Close), "Away connection_lost"),
            ("MAIL: 3xx", with(At::Mail, Say(b"354 go\r\n")), "Away reply_unreadable"),
            ("RCPT: 4xx", with(At::Rcpt, Say(b"450 greylisted\r\n")), "Away server_busy"),
            (
                "RCPT: 5xx",
                with(At::Rcpt, Say(b"550-5.1.1 no such\r\n550 5.1.1 person\r\n")),
                "Refused recipient_refused",
            ),
            ("RCPT: silent", with(At::Rcpt, Hang), "Away timeout"),
            ("RCPT: closes", with(At::Rcpt, Close), "Away connection_lost"),
            ("RCPT: half a line", with(At::Rcpt, SayAndClose(b"250 o")), "Away connection_lost"),
            ("DATA: 4xx", with(At::Data, Say(b"452 full\r\n")), "Away server_busy"),
            (
                "DATA: 5xx",
                with(At::Data, Say(b"554 no valid recipients\r\n")),
                "Refused message_refused",
            ),
            ("DATA: silent", with(At::Data, Hang), "Away timeout"),
            ("DATA: closes", with(At::Data, Close), "Away connection_lost"),
            ("DATA: 2xx is no leave", with(At::Data, Say(b"250 ok\r\n")), "Away reply_unreadable"),
            (
                "DATA: accepted before it was sent",
                with(At::Data, Say(b"354 go ahead\r\n250 queued\r\n")),
                "Away reply_unreadable",
            ),
            // The message is out: only a no that was read to its end is a no.
            ("message: 4xx", bare(Say(b"451 4.3.0 later\r\n")), "Away server_busy"),
            ("message: 421", bare(Say(b"421 closing\r\n")), "Away server_busy"),
            ("message: 5xx", bare(Say(b"554 5.7.1 spam\r\n")), "Refused message_refused"),
            ("message: accepts and hangs", bare(Hang), "unknown timeout"),
            ("message: vanishes", bare(Close), "unknown connection_lost"),
            ("message: half a code", bare(SayAndClose(b"25")), "unknown connection_lost"),
            (
                "message: a yes without its end",
                bare(SayAndClose(b"250 queue")),
                "unknown connection_lost",
            ),
            (
                "message: a no without its end",
                bare(SayAndClose(b"550-spam\r\n")),
                "unknown connection_lost",
            ),
            (
                "message: byte by byte",
                bare(Dribble(b"250 this answer takes its time and does not end soon")),
                "unknown timeout",
            ),
            ("message: rubbish", bare(Say(b"hello\r\n")), "unknown reply_unreadable"),
            (
                "message: two codes",
                bare(Say(b"250-yes\r\n550 no\r\n")),
                "unknown reply_unreadable",
            ),
            ("message: 3xx", bare(Say(b"354 go on\r\n")), "unknown reply_unreadable"),
            ("message: 5 MB in one line", bare(Flood(b'2')), "unknown reply_unreadable"),
            ("message: yes in Latin-1", bare(Say(b"250 angenommen f\xfcr Anna\r\n")), "accepted"),
            ("message: a bare yes", bare(Say(b"250\r\n")), "accepted"),
            (
                "message: yes and gone",
                bare(SayAndClose(b"250 queued\r\n421 closing\r\n")),
                "accepted",
            ),
            (
                "leave given, then gone",
                with(At::Data, SayAndClose(b"354 go\r\n")),
                "unknown connection_lost",
            ),
            // After the yes.
            ("QUIT: silent", with(At::Quit, Hang), "accepted"),
            ("QUIT: closes", with(At::Quit, Close), "accepted"),
            ("QUIT: 5xx", with(At::Quit, Say(b"500 no\r\n")), "accepted"),
        ],
        "smtp://",
        "",
        None,
    )
    .await;
}

/// More than the buffers between the two can hold: the limit comes in the middle of the writing.
#[tokio::test]
async fn b25_a_letter_of_which_only_a_part_went_out_is_unknown() {
    let server = Server::start(with(At::Data, Deaf)).await;
    let smtp = Smtp::parse(&format!("smtp://{}", server.at), FROM).expect("a good setting");
    let long = Letter {
        body: "0123456789abcdef\n".repeat(1_000_000),
        ..letter()
    };
    let sent = until_silent(&server, &smtp, &long).await;
    assert_eq!(short(&sent), "unknown timeout", "{sent:?}");
}

#[tokio::test]
async fn a_server_that_is_not_there() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let at = listener.local_addr().expect("an address");
    drop(listener);
    let sent = mailer(&format!("smtp://{at}"), LONG).send(&letter()).await;
    assert_eq!(short(&sent), "Away connection_refused", "{sent:?}");
    let sent = mailer("smtp://nobody.invalid?tls=required", LONG).send(&letter()).await;
    assert_eq!(short(&sent), "Away dns_failed", "{sent:?}");
}

#[tokio::test]
async fn localhost_is_reached() {
    let server = Server::start(Script::default()).await;
    let sent = mailer(&format!("smtp://localhost:{}", server.at.port()), LONG)
        .send(&letter())
        .await;
    assert_eq!(sent, Sent::Accepted);
}

#[tokio::test]
async fn a_login_that_is_refused_stops_every_letter_and_not_this_one() {
    play(
        vec![
            ("PLAIN", offering(&["AUTH PLAIN LOGIN"], &[]), "accepted"),
            ("LOGIN", offering(&["AUTH LOGIN"], &[]), "accepted"),
            (
                "535",
                offering(&["AUTH PLAIN"], &[(At::Auth, Say(b"535 5.7.8 no\r\n"))]),
                "KeyRefused auth_refused",
            ),
            (
                "504",
                offering(&["AUTH PLAIN"], &[(At::Auth, Say(b"504 not that\r\n"))]),
                "KeyRefused auth_refused",
            ),
            (
                "454",
                offering(&["AUTH PLAIN"], &[(At::Auth, Say(b"454 later\r\n"))]),
                "Away server_busy",
            ),
            ("silent", offering(&["AUTH PLAIN"], &[(At::Auth, Hang)]), "Away timeout"),
            ("closes", offering(&["AUTH PLAIN"], &[(At::Auth, Close)]), "Away connection_lost"),
            (
                "asks on",
                offering(&["AUTH PLAIN"], &[(At::Auth, Say(b"334 bW9yZQ==\r\n"))]),
                "KeyRefused auth_no_mechanism",
            ),
            ("no AUTH", offering(&[], &[]), "KeyRefused auth_no_mechanism"),
            (
                "a foreign mechanism",
                offering(&["AUTH CRAM-MD5"], &[]),
                "KeyRefused auth_no_mechanism",
            ),
            (
                "LOGIN asks for a colour",
                offering(&["AUTH LOGIN"], &[(At::Auth, Say(b"334 Y29sb3Vy\r\n"))]),
                "KeyRefused auth_no_mechanism",
            ),
            (
                // No answer to QUIT either.
                "LOGIN refused, then silent",
                offering(&["AUTH LOGIN"], &[(At::Pass, Say(b"535 no\r\n")), (At::Quit, Hang)]),
                "KeyRefused auth_refused",
            ),
            (
                "the message is refused for the login",
                offering(&["AUTH PLAIN"], &[(At::Rcpt, Say(b"535 no\r\n"))]),
                "KeyRefused auth_refused",
            ),
        ],
        "smtp://user:correct%20horse%20battery@",
        "",
        None,
    )
    .await;
}

#[tokio::test]
async fn nothing_is_said_in_the_clear_when_tls_is_required() {
    let (acceptor, client) = tls_for(&["127.0.0.1"]);
    let starttls = |acts: &[(At, Act)]| Script {
        tls: Some(acceptor.clone()),
        ..offering(&["STARTTLS", "AUTH PLAIN"], acts)
    };
    let smtps = |acts: &[(At, Act)]| Script {
        smtps: true,
        tls: Some(acceptor.clone()),
        ..offering(&["AUTH PLAIN"], acts)
    };
    play(
        vec![
            ("STARTTLS", starttls(&[]), "accepted"),
            ("not offered", offering(&["AUTH PLAIN"], &[]), "Away starttls_missing"),
            (
                "refused",
                starttls(&[(At::StartTls, Say(b"454 no TLS today\r\n"))]),
                "Away server_busy",
            ),
            ("5xx", starttls(&[(At::StartTls, Say(b"501 no\r\n"))]), "Away server_refused"),
            ("silent", starttls(&[(At::StartTls, Hang)]), "Away timeout"),
            ("closes", starttls(&[(At::StartTls, SayAndClose(b"220 go\r\n"))]), "Away tls_failed"),
            (
                "an answer slipped in before the handshake",
                starttls(&[(At::StartTls, Say(b"220 go\r\n250 slipped in\r\n"))]),
                "Away reply_unreadable",
            ),
            ("greeting: silent", starttls(&[(At::Greeting, Hang)]), "Away timeout"),
            ("greeting: 5 MB", starttls(&[(At::Greeting, Flood(b'2'))]), "Away reply_unreadable"),
            (
                "greeting: 5xx",
                starttls(&[(At::Greeting, Say(b"554 no\r\n"))]),
                "Away server_refused",
            ),
            ("EHLO: closes", starttls(&[(At::Ehlo, Close)]), "Away connection_lost"),
            (
                "behind TLS: EHLO closes",
                starttls(&[(At::Handshake, Close)]),
                "Away connection_lost",
            ),
            ("behind TLS: vanishes", starttls(&[(At::Body, Close)]), "unknown connection_lost"),
            ("behind TLS: hangs", starttls(&[(At::Body, Hang)]), "unknown timeout"),
            (
                "behind TLS: refused",
                starttls(&[(At::Body, Say(b"554 spam\r\n"))]),
                "Refused message_refused",
            ),
        ],
        "smtp://user:correct%20horse%20battery@",
        "?tls=required",
        Some(client.clone()),
    )
    .await;
    play(
        vec![
            ("smtps", smtps(&[]), "accepted"),
            ("a server without TLS", with(At::Greeting, Say(b"220 plain\r\n")), "Away tls_failed"),
            ("silent", with(At::Greeting, Hang), "Away timeout"),
            ("hangs", smtps(&[(At::Body, Hang)]), "unknown timeout"),
            ("vanishes", smtps(&[(At::Body, Close)]), "unknown connection_lost"),
            ("5 MB", smtps(&[(At::Greeting, Flood(b'2'))]), "Away reply_unreadable"),
        ],
        "smtps://user:correct%20horse%20battery@",
        "",
        Some(client),
    )
    .await;
    // Neither a stranger's certificate nor one for another name will do.
    let (_, stranger) = tls_for(&["127.0.0.1"]);
    let (elsewhere, trusting) = tls_for(&["mx.example.org"]);
    for (acceptor, client) in [(acceptor, stranger), (elsewhere, trusting)] {
        let script = Script {
            tls: Some(acceptor),
            ..offering(&["STARTTLS", "AUTH PLAIN"], &[])
        };
        play(
            vec![("not this certificate", script, "Away tls_failed")],
            "smtp://u:p@",
            "?tls=required",
            Some(client),
        )
        .await;
    }
}

#[tokio::test]
async fn the_login_goes_over_tls_only() {
    let (acceptor, client) = tls_for(&["127.0.0.1"]);
    for (tls, expected) in [(Some(acceptor), "accepted"), (None, "Away starttls_missing")] {
        let offers: &[_] = if tls.is_some() {
            &["STARTTLS", "AUTH PLAIN"]
        } else {
            &["AUTH PLAIN"]
        };
        let server = Server::start(Script {
            tls,
            ..offering(offers, &[])
        })
        .await;
        let url = format!("smtp://user:correct%20horse%20battery@{}?tls=required", server.at);
        let smtp = Smtp::with_tls(&url, FROM, || Ok(client.clone())).expect("a good setting");
        let sent = Mailer::new(smtp, LONG).send(&letter()).await;
        assert_eq!(short(&sent), expected, "{sent:?}");
        let clear = server.heard(|h| h.in_the_clear.clone());
        assert!(
            clear.iter().all(|c| c.starts_with("EHLO") || c == "STARTTLS" || c == "QUIT"),
            "{clear:?}"
        );
    }
}

#[tokio::test]
async fn what_cannot_be_addressed_is_not_even_tried() {
    let server = Server::start(offering(&["SMTPUTF8", "8BITMIME"], &[])).await;
    let mailer = mailer(&format!("smtp://{}", server.at), LONG);
    let to = |to: &str| Letter {
        to: to.to_owned(),
        ..letter()
    };
    let subject = |subject: &str| Letter {
        subject: subject.to_owned(),
        ..letter()
    };
    let id = |id: &str| Letter {
        message_id: id.to_owned(),
        ..letter()
    };
    for (bad, cause) in [
        (to(""), "bad_address"),
        (to("anna"), "bad_address"),
        (to("@example.net"), "bad_address"),
        (to("anna@"), "bad_address"),
        (to("anna example@example.net"), "bad_address"),
        (to("Anna <anna@example.net>"), "bad_address"),
        (to("anna@example.net, bert@example.net"), "bad_address"),
        (to("anna@example.net>\r\nRCPT TO:<bert@example.net"), "bad_address"),
        (to("anna@example.net\r\n"), "bad_address"),
        (to("\"anna\r\nBcc: bert\"@example.net"), "bad_address"),
        (to("\"an\0na\"@example.net"), "bad_address"),
        // A line break to some readers, and a letter to lettre's parser.
        (to("anna\u{85}@example.net"), "bad_address"),
        (to(&format!("{}@example.net", "a".repeat(65))), "bad_address"),
        (subject("hello\r\nBcc: bert@example.net"), "bad_header"),
        (subject("hello\nthere"), "bad_header"),
        (subject("hel\rlo"), "bad_header"),
        (subject("hel\0lo"), "bad_header"),
        (id("x@y>\r\nBcc: <bert@example.net"), "bad_header"),
        (id("<x@example.org>"), "bad_header"),
        (id("x"), "bad_header"),
        (id("x@"), "bad_header"),
        (id("@y"), "bad_header"),
        (id("x@y@z"), "bad_header"),
        (id("x y@z"), "bad_header"),
        (id("ä@z"), "bad_header"),
        (id(&format!("{}@z", "x".repeat(250))), "bad_header"),
    ] {
        let sent = mailer.send(&bad).await;
        assert_eq!(short(&sent), format!("BadAddress {cause}"), "{bad:?}");
    }
    assert_eq!(server.heard(|h| h.connections), 0);
}

#[tokio::test]
async fn addresses_beyond_ascii() {
    let to = |to: &str| Letter {
        to: to.to_owned(),
        ..letter()
    };
    let able = Server::start(offering(&["SMTPUTF8", "8BITMIME"], &[])).await;
    let unable = Server::start(offering(&["8BITMIME"], &[])).await;
    // A domain has an ASCII form that every server takes.
    let sent = mailer(&format!("smtp://{}", unable.at), LONG)
        .send(&to("anna@bücher.example"))
        .await;
    assert_eq!(sent, Sent::Accepted);
    assert!(unable.heard(|h| h.commands.contains(&"RCPT TO:<anna@xn--bcher-kva.example>".to_owned())));
    let sent = mailer(&format!("smtp://{}", unable.at), LONG).send(&to("jürgen@example.net")).await;
    assert_eq!(short(&sent), "BadAddress no_smtputf8", "{sent:?}");
    let sent = mailer(&format!("smtp://{}", able.at), LONG).send(&to("jürgen@example.net")).await;
    assert_eq!(sent, Sent::Accepted);
    able.heard(|h| {
        assert!(
            h.commands
                .contains(&"MAIL FROM:<noreply@example.org> SMTPUTF8 BODY=8BITMIME".to_owned()),
            "{h:?}"
        );
        assert!(h.commands.contains(&"RCPT TO:<jürgen@example.net>".to_owned()), "{h:?}");
    });
}

#[tokio::test]
async fn the_letter_arrives_as_it_was_written_and_alone() {
    let server = Server::start(Script::default()).await;
    let long_id = format!("incident-7.{}@example.org", "x".repeat(120));
    let smuggled = Letter {
        subject: "Paused: \u{1}tests".to_owned(),
        body: "one\n.\ntwo\r.\rthree\r\n.\r\nMAIL FROM:<x@example.org>\n..four\u{0}\u{7}!\ttab".to_owned(),
        message_id: long_id.clone(),
        ..letter()
    };
    assert_eq!(mailer(&format!("smtp://{}", server.at), LONG).send(&smuggled).await, Sent::Accepted);
    server.heard(|h| {
        assert_eq!(h.letters.len(), 1, "{h:?}");
        let (head, body) = h.letters[0].split_once("\n\n").expect("headers, an empty line, a body");
        assert_eq!(
            body.trim_end_matches('\n'),
            "one\n.\ntwo\n.\nthree\n.\nMAIL FROM:<x@example.org>\n..four  !\ttab"
        );
        let head = head.replace("\n ", " ");
        for line in [
            "From: Steadfast <noreply@example.org>",
            "To: anna@example.net",
            "Subject: Paused:  tests",
            &format!("Message-ID: <{long_id}>"),
            "Auto-Submitted: auto-generated",
            "MIME-Version: 1.0",
            "Content-Type: text/plain; charset=utf-8",
        ] {
            assert_eq!(
                head.lines().filter(|l| l.replace(":  <", ": <") == line).count(),
                1,
                "{line} in\n{head}"
            );
        }
        assert_eq!(head.lines().filter(|l| l.starts_with("Date: ")).count(), 1, "{head}");
        assert_eq!(h.commands.iter().filter(|c| c.starts_with("MAIL")).count(), 1, "{h:?}");
        assert_eq!(
            h.commands[1..4],
            ["MAIL FROM:<noreply@example.org>", "RCPT TO:<anna@example.net>", "DATA"]
        );
    });
}

#[tokio::test]
async fn neither_password_nor_letter_comes_back_in_an_error() {
    let secrets = [
        PASSWORD,
        "Y29ycmVjdCBob3JzZSBiYXR0ZXJ5",
        "AHVzZXIAY29ycmVjdCBob3JzZSBiYXR0ZXJ5",
        "documents are safe",
        "nothing is left for you",
        "Reading scans",
    ];
    for (offer, at) in [
        ("AUTH PLAIN", At::Auth),
        ("AUTH LOGIN", At::Pass),
        ("AUTH PLAIN", At::Mail),
        ("AUTH LOGIN", At::Rcpt),
        ("AUTH PLAIN", At::Data),
        ("AUTH PLAIN", At::Body),
    ] {
        for code in ["451", "550"] {
            let server = Server::start(offering(&[offer], &[(at, Echo(code))])).await;
            let mailer = mailer(&format!("smtp://user:correct%20horse%20battery@{}", server.at), LONG);
            let (Sent::NotSent { error, .. } | Sent::Unknown { error, .. }) = mailer.send(&letter()).await else {
                panic!("{at:?} {code} was taken for a yes");
            };
            assert!(error.contains(code), "{error}");
            for secret in secrets {
                assert!(!error.contains(secret), "{at:?}: {error}");
            }
            let debug = format!("{mailer:?}");
            assert!(!debug.contains(PASSWORD) && debug.contains("user"), "{debug}");
        }
    }
    // Nor in the shape it had on the wire.
    let server = Server::start(with(At::Body, Echo("550"))).await;
    let foreign = Letter {
        // Too short to be recognised: it must be the text that is.
        subject: "Hi".to_owned(),
        body: "Ваши документы в безопасности, и ничего не потеряно.".to_owned(),
        ..letter()
    };
    let sent = mailer(&format!("smtp://{}", server.at), LONG).send(&foreign).await;
    assert!(server.heard(|h| h.letters[0].contains("base64")), "or this shows nothing");
    assert!(
        matches!(&sent, Sent::NotSent { error, .. } if error == "the message: the server said 550"),
        "{sent:?}"
    );
    // A harmless explanation stays: it is what an operator needs.
    let server = Server::start(with(At::Rcpt, Say(b"550 5.1.1 <anna@example.net>: user\x07unknown\r\n"))).await;
    let sent = mailer(&format!("smtp://{}", server.at), LONG).send(&letter()).await;
    let expected = "RCPT TO: the server said 550 5.1.1 <anna@example.net>: user unknown";
    assert!(matches!(&sent, Sent::NotSent { error, .. } if error == expected), "{sent:?}");
}

/// The server's leave to send comes, and the process is frozen before it can act on it. By the time it goes on, somebody
/// else may hold the job.
#[tokio::test(flavor = "current_thread")]
async fn a_process_that_was_frozen_over_its_deadline_sends_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let at = listener.local_addr().expect("an address");
    let limit = Duration::from_millis(300);
    let heard_after = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("a client");
        let mut io = BufReader::new(socket);
        for answer in ["220 hi\r\n", "250 mx\r\n", "250 ok\r\n", "250 ok\r\n", "354 go\r\n"] {
            if !answer.starts_with("220") {
                io.read_until(b'\n', &mut Vec::new()).await.expect("a command");
            }
            io.write_all(answer.as_bytes()).await.expect("an open connection");
        }
        // The only thread there is: the client stands still.
        let (_hold, never) = std::sync::mpsc::channel::<()>();
        let _ = never.recv_timeout(limit * 2);
        let mut rest = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut io, &mut rest).await;
        rest
    });
    let sent = mailer(&format!("smtp://{at}"), limit).send(&letter()).await;
    assert_eq!(short(&sent), "Away timeout", "{sent:?}");
    assert_eq!(heard_after.await.expect("no panic"), b"", "nothing of the message went out");
}

#[tokio::test]
async fn a_yes_is_told_at_once_and_the_goodbye_is_still_said() {
    let server = Server::start(with(At::Quit, Hang)).await;
    let begun = std::time::Instant::now();
    assert_eq!(mailer(&format!("smtp://{}", server.at), LONG).send(&letter()).await, Sent::Accepted);
    assert!(begun.elapsed() < super::QUIT, "waited for the answer to QUIT");
    let said = || server.heard(|h| h.commands.last().is_some_and(|c| c == "QUIT"));
    let mut every = tokio::time::interval(Duration::from_millis(10));
    tokio::time::timeout(LONG, async {
        while !said() {
            every.tick().await;
        }
    })
    .await
    .expect("QUIT was said");
}

#[test]
fn settings_that_are_understood() {
    for (url, expected) in [
        (
            "smtps://u:p@mail.example.org",
            r#"host: "mail.example.org", port: 465, tls: "from the first byte", user: Some("u")"#,
        ),
        (
            "smtps://u:p@mail.example.org:1465/",
            r#"host: "mail.example.org", port: 1465, tls: "from the first byte", user: Some("u")"#,
        ),
        (
            "smtps://mail.example.org?tls=required",
            r#"host: "mail.example.org", port: 465, tls: "from the first byte", user: None"#,
        ),
        (
            "smtp://u%40x:p@Mail.Example.org",
            r#"host: "mail.example.org", port: 587, tls: "starttls", user: Some("u@x")"#,
        ),
        (
            "smtp://mail.example.org:25?tls=required",
            r#"host: "mail.example.org", port: 25, tls: "starttls", user: None"#,
        ),
        ("smtp://10.0.0.1", r#"host: "10.0.0.1", port: 587, tls: "starttls", user: None"#),
        (
            "smtp://[2001:db8::1]",
            r#"host: "[2001:db8::1]", port: 587, tls: "starttls", user: None"#,
        ),
        (
            "smtp://localhost.example.org",
            r#"host: "localhost.example.org", port: 587, tls: "starttls", user: None"#,
        ),
        (
            "smtp://bücher.example",
            r#"host: "xn--bcher-kva.example", port: 587, tls: "starttls", user: None"#,
        ),
        ("smtp://127.0.0.1:1025", r#"host: "127.0.0.1", port: 1025, tls: "none", user: None"#),
        (" smtp://127.8.9.10 ", r#"host: "127.8.9.10", port: 587, tls: "none", user: None"#),
        (
            "smtp://u:p@localhost:1025?tls=none",
            r#"host: "localhost", port: 1025, tls: "none", user: Some("u")"#,
        ),
        (
            "smtp://LOCALHOST.:1025",
            r#"host: "localhost", port: 1025, tls: "none", user: None"#,
        ),
        ("smtp://[::1]:1025", r#"host: "[::1]", port: 1025, tls: "none", user: None"#),
        (
            "smtp://[::ffff:127.0.0.1]:1025",
            r#"host: "[::ffff:7f00:1]", port: 1025, tls: "none", user: None"#,
        ),
        (
            "smtp://localhost?tls=required",
            r#"host: "localhost", port: 587, tls: "starttls", user: None"#,
        ),
    ] {
        let smtp = Smtp::parse(url, FROM).unwrap_or_else(|e| panic!("{url}: {e}"));
        assert_eq!(
            format!("{smtp:?}"),
            format!("Smtp {{ {expected}, from: \"Steadfast <noreply@example.org>\", .. }}"),
            "{url}"
        );
    }
    for (from, header) in [
        ("noreply@example.org", "From: noreply@example.org\r\n"),
        (
            "\"Steadfast, Ltd\" <noreply@example.org>",
            "From: =?utf-8?b?U3RlYWRmYXN0LCBMdGQ=?= <noreply@example.org>\r\n",
        ),
        (
            "Grüße <noreply@bücher.example>",
            "From: =?utf-8?b?R3LDvMOfZQ==?= <noreply@xn--bcher-kva.example>\r\n",
        ),
    ] {
        let smtp = Smtp::parse("smtp://127.0.0.1", from).unwrap_or_else(|e| panic!("{from}: {e}"));
        let post = Post::write(&smtp.from, &letter()).unwrap_or_else(|e| panic!("{from}: {e:?}"));
        let bytes = String::from_utf8_lossy(&post.bytes);
        assert!(bytes.starts_with(header), "{bytes}");
    }
}

#[test]
fn settings_that_are_refused_say_which_and_why_and_keep_the_password() {
    for (url, fix) in [
        ("", "not a URL"),
        ("mail.example.org", "not a URL"),
        ("smtp://u:s3cr/et@mail.example.org", "not a URL"),
        ("smtp://u:12/s3cret@mail.example.org", "%2F"),
        ("smtp://u:12#s3cret@mail.example.org", "%23"),
        ("smtp://u:12?s3cret@mail.example.org", "%3F"),
        ("smtp://u:s3cret@mail.example.org/inbox", "%2F"),
        ("http://u:s3cret@mail.example.org", "smtps://"),
        ("u:s3cret@mail.example.org", "smtps://"),
        ("smtp:", "no host"),
        ("smtps://", "no host"),
        ("smtp://u:s3cret@", "not a URL"),
        ("smtp://u:s3cret@mail example.org", "not a URL"),
        ("smtp://u:s3cret@a%00b", "no host name"),
        ("smtp://u:s3cret@mail.example.org:0", "port 0"),
        ("smtp://u:s3cret@mail.example.org:99999", "not a URL"),
        ("smtp://u:s3cret@mail.example.org?tls=none", "over TLS or not at all"),
        ("smtp://u:s3cret@mail.example.org?tls=opportunistic", "over TLS or not at all"),
        ("smtp://mail.example.org?tls=none", "over TLS or not at all"),
        ("smtp://10.0.0.1?tls=none", "over TLS or not at all"),
        ("smtp://0.0.0.0?tls=none", "over TLS or not at all"),
        ("smtp://[::]?tls=none", "over TLS or not at all"),
        ("smtp://localhost.example.org?tls=none", "over TLS or not at all"),
        ("smtp://127.0.0.1?tls=opportunistic", "over TLS or not at all"),
        ("smtps://127.0.0.1?tls=none", "over TLS or not at all"),
        ("smtp://127.0.0.1?tls=no", "only tls=required"),
        ("smtp://127.0.0.1?verify=false", "only tls=required"),
        ("smtp://mail.example.org?tls=required&tls=none", "over TLS or not at all"),
        ("smtp://u@mail.example.org", "together"),
        ("smtp://:s3cret@mail.example.org", "together"),
        ("smtp://u:@mail.example.org", "together"),
        ("smtp://u:s3cret%00@mail.example.org", "UTF-8"),
        ("smtp://u:s3cret%ff@mail.example.org", "UTF-8"),
    ] {
        let said = Smtp::parse(url, FROM).err().unwrap_or_else(|| panic!("{url} was taken"));
        assert!(said.starts_with("STEADFAST_SMTP_URL: ") && said.contains(fix), "{url}: {said}");
        assert!(!said.contains("s3cr"), "{url}: {said}");
    }
    for (from, fix) in [
        ("", "not a mail address"),
        ("noreply", "not a mail address"),
        ("Steadfast", "not a mail address"),
        ("a@example.org, b@example.org", "not a mail address"),
        ("noreply@example.org\r\nBcc: x@example.org", "line break"),
        ("Stead\0fast <noreply@example.org>", "control character"),
        ("grüße@example.org", "only ASCII"),
    ] {
        let said = Smtp::parse("smtp://127.0.0.1", from)
            .err()
            .unwrap_or_else(|| panic!("{from} was taken"));
        assert!(said.starts_with("STEADFAST_MAIL_FROM: ") && said.contains(fix), "{from}: {said}");
    }
}
