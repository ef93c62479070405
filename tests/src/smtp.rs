//! The scripted mail server: takes mail like any other, until a [`Rule`] says that it refuses, waits, or vanishes, and at
//! which [`Step`] of the dialogue. It keeps a record of every message that it has read whole, answered or not.
//!
//! It runs inside a test on a thread of its own, like the scripted provider, so that it goes on answering while a test waits.
//! What a mail looks like to a server that is not ours is [`crate::harness::Sink`]'s to say.
//!
//! ```no_run
//! use steadfast_tests::smtp::{Act, Rule, Smtp, Step};
//!
//! # async fn story() {
//! let smtp = Smtp::start();
//! // The server has the whole message and says nothing: what a sender that dies now can never know.
//! smtp.rule(Rule::at(Step::Body).times(1).then(Act::hold("unsaid")));
//! // … the worker sends …
//! let message = smtp.wait_for("the first mail", |m| m.to == ["ann@example.org"]).await;
//! assert_eq!(message.answer, None);
//! // … and is killed here.
//! smtp.release("unsaid");
//! # }
//! ```

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::mail::Mail;
pub use crate::provider::Mode;

/// How long the waits below are prepared to wait before they call it a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// Beyond any mail of a story.
const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;

/// Where in the dialogue a rule speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The connection is made, the greeting is not said.
    Greeting,
    /// `EHLO` or `HELO`.
    Hello,
    /// `MAIL FROM`.
    Mail,
    /// `RCPT TO`, once for each recipient.
    Rcpt,
    /// `DATA`, before the message.
    Data,
    /// The whole message has been read and recorded, the reply to it is not said.
    Body,
}

/// What happens there.
#[derive(Clone, Debug)]
pub enum Act {
    /// The regular reply.
    Accept,
    /// This reply. At the greeting the connection is closed after it.
    Reply { code: u16, text: String },
    /// Nothing is said until `gate` is released, then `then`. A gate that was released before is still shut for whoever
    /// comes later; a sender that goes away is noticed.
    Hold { gate: String, then: Box<Act> },
    /// The connection is closed without a word.
    Vanish,
}

impl Act {
    /// E.g. `reply(451, "4.3.0 später noch einmal")`: 4xx is for now, 5xx for good.
    #[must_use]
    pub fn reply(code: u16, text: &str) -> Self {
        Self::Reply {
            code,
            text: text.to_owned(),
        }
    }

    /// Waits for [`Smtp::release`] of the same name, then goes on regularly.
    #[must_use]
    pub fn hold(gate: &str) -> Self {
        Self::hold_then(gate, Self::Accept)
    }

    #[must_use]
    pub fn hold_then(gate: &str, then: Self) -> Self {
        Self::Hold {
            gate: gate.to_owned(),
            then: Box::new(then),
        }
    }
}

/// "At this step, for these, this often, do that." The first rule that fits and has turns left decides.
#[derive(Clone, Debug)]
pub struct Rule {
    at: Step,
    recipient: Option<String>,
    connection: Option<usize>,
    nth: Option<u32>,
    times: Option<u32>,
    then: Act,
}

impl Rule {
    #[must_use]
    pub fn at(step: Step) -> Self {
        Self {
            at: step,
            recipient: None,
            connection: None,
            nth: None,
            times: None,
            then: Act::Accept,
        }
    }

    /// Only with this in a recipient's address: the one that is named at [`Step::Rcpt`], any of the accepted ones at
    /// [`Step::Data`] and [`Step::Body`]. Before that nobody knows a recipient, and such a rule fits never.
    #[must_use]
    pub fn to(mut self, recipient: &str) -> Self {
        self.recipient = Some(recipient.to_owned());
        self
    }

    /// Only on the nth connection (from 1) since the server started.
    #[must_use]
    pub fn on_connection(mut self, n: usize) -> Self {
        self.connection = Some(n);
        self
    }

    /// Only the nth time (from 1) that everything else fits.
    #[must_use]
    pub fn nth(mut self, n: u32) -> Self {
        self.nth = Some(n);
        self
    }

    /// How often it acts before it is spent; without it, always.
    #[must_use]
    pub fn times(mut self, n: u32) -> Self {
        self.times = Some(n);
        self
    }

    #[must_use]
    pub fn then(mut self, act: Act) -> Self {
        self.then = act;
        self
    }
}

/// A message that was read to its last dot.
#[derive(Clone, Debug)]
pub struct Received {
    /// From 1, in the order in which they were whole.
    pub seq: usize,
    /// On which connection, from 1.
    pub connection: usize,
    /// The envelope's sender, empty for the null sender.
    pub from: String,
    /// The recipients of the envelope that were accepted.
    pub to: Vec<String>,
    /// As it was sent, the dots of the transport taken away again.
    pub raw: Vec<u8>,
    /// The same, decoded.
    pub mail: Mail,
    /// The code of the reply that was sent; none when none was, or not yet.
    pub answer: Option<u16>,
}

/// A running server; gone when dropped.
#[derive(Debug)]
pub struct Smtp {
    addr: SocketAddr,
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    inner: Mutex<Inner>,
    /// Rises whenever the record does.
    changed: watch::Sender<u64>,
    mode: watch::Sender<Mode>,
    /// The mode that is really in force.
    applied: watch::Sender<Mode>,
}

#[derive(Debug, Default)]
struct Inner {
    rules: Vec<Armed>,
    gates: HashMap<String, watch::Sender<()>>,
    connections: usize,
    received: Vec<Received>,
    dialogue: Vec<String>,
}

#[derive(Debug)]
struct Armed {
    rule: Rule,
    matched: u32,
    served: u32,
}

/// An act and the gates before it. They are entered in the same breath in which the step becomes visible, so a test that has seen
/// a message can release it without losing a race.
#[derive(Debug)]
struct Decided {
    act: Act,
    gates: VecDeque<watch::Receiver<()>>,
}

impl Smtp {
    /// Starts one on a free loopback port.
    ///
    /// # Panics
    /// When no port is to be had.
    #[must_use]
    pub fn start() -> Self {
        let listener = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free loopback port");
        listener.set_nonblocking(true).expect("a socket of our own");
        let addr = listener.local_addr().expect("it is bound");
        let state = Arc::new(State {
            inner: Mutex::default(),
            changed: watch::Sender::new(0),
            mode: watch::Sender::new(Mode::Open),
            applied: watch::Sender::new(Mode::Open),
        });
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&state);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime for one thread");
        let thread = std::thread::Builder::new()
            .name("scripted-smtp".into())
            .spawn(move || {
                runtime.block_on(async move {
                    let listener = TcpListener::from_std(listener).expect("a listener that was just bound");
                    tokio::select! {
                        end = serve(shared, listener, addr) => end.expect("the port is still free when the server comes back"),
                        _ = stopped => {}
                    }
                });
            })
            .expect("a thread");
        Self {
            addr,
            state,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// `smtp://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("smtp://{}", self.addr)
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Appends a rule.
    pub fn rule(&self, rule: Rule) {
        self.state.lock().rules.push(Armed {
            rule,
            matched: 0,
            served: 0,
        });
    }

    /// Drops all rules. Who is held stays held.
    pub fn clear_rules(&self) {
        self.state.lock().rules.clear();
    }

    /// Lets go of whoever is held at `gate` now.
    pub fn release(&self, gate: &str) {
        self.state.lock().gates.entry(gate.to_owned()).or_default().send_replace(());
    }

    /// Makes the server reachable, deaf (the kernel connects, nobody greets) or gone (connections are refused); returns when it
    /// is so. Dialogues under way go on.
    ///
    /// # Panics
    /// When its thread is dead.
    pub async fn mode(&self, mode: Mode) {
        let mut applied = self.state.applied.subscribe();
        self.state.mode.send_replace(mode);
        tokio::time::timeout(PATIENCE, applied.wait_for(|m| *m == mode))
            .await
            .expect("the server's thread is alive")
            .expect("the server's state outlives its handle");
    }

    /// Every message that was read whole so far, whatever was answered.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        self.state.lock().received.clone()
    }

    /// Those of them whose sender was told 250.
    #[must_use]
    pub fn accepted(&self) -> Vec<Received> {
        let all = self.received();
        all.into_iter().filter(|m| m.answer == Some(250)).collect()
    }

    /// How many connections were accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state.lock().connections
    }

    /// What was said, line by line: `2> MAIL FROM:<…>` on the second connection, `2< 250 …` back. Messages are not in it.
    #[must_use]
    pub fn dialogue(&self) -> Vec<String> {
        self.state.lock().dialogue.clone()
    }

    /// Waits until at least `n` messages were read whole; returns all of them.
    ///
    /// # Panics
    /// After a minute, with what was said.
    pub async fn wait_received(&self, n: usize) -> Vec<Received> {
        self.wait_record(&format!("{n} messages"), |inner| {
            (inner.received.len() >= n).then(|| inner.received.clone())
        })
        .await
    }

    /// Waits for the first message of which `is` holds.
    ///
    /// # Panics
    /// After a minute, with what was said.
    pub async fn wait_for(&self, what: &str, is: impl Fn(&Received) -> bool) -> Received {
        self.wait_record(what, |inner| inner.received.iter().find(|m| is(m)).cloned()).await
    }

    /// Waits for a line of [`Smtp::dialogue`] that contains `part`: that a step was reached at which somebody is held.
    ///
    /// # Panics
    /// After a minute, with what was said.
    pub async fn wait_line(&self, part: &str) -> String {
        let what = format!("a line with {part:?}");
        self.wait_record(&what, |inner| inner.dialogue.iter().find(|l| l.contains(part)).cloned())
            .await
    }

    async fn wait_record<T>(&self, what: &str, look: impl Fn(&Inner) -> Option<T>) -> T {
        let mut changed = self.state.changed.subscribe();
        let wait = async {
            loop {
                changed.borrow_and_update();
                if let Some(found) = look(&self.state.lock()) {
                    return found;
                }
                changed.changed().await.expect("the server's state outlives its handle");
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(found) => found,
            Err(_) => panic!("the mail server waited {PATIENCE:?} for {what}; it heard {:#?}", self.dialogue()),
        }
    }
}

impl Drop for Smtp {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic of a test's closure must not hide behind a second one here.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    fn note(&self, connection: usize, way: char, line: &str) {
        self.lock().dialogue.push(format!("{connection}{way} {line}"));
        self.tell();
    }

    fn decide(&self, at: Step, connection: usize, recipients: &[String]) -> Decided {
        self.lock().decide(at, connection, recipients)
    }

    /// Records a message and decides about it at once.
    fn receive(&self, connection: usize, envelope: &Envelope, raw: Vec<u8>) -> (usize, Decided) {
        let mut inner = self.lock();
        let (from, to) = (envelope.from.clone().unwrap_or_default(), envelope.to.clone());
        let mail = Mail::read(&raw, &from, &to).unwrap_or_else(|e| Mail {
            to: to.clone(),
            from: from.clone(),
            subject: String::new(),
            message_id: String::new(),
            headers: Vec::new(),
            // What is no mail is for the test to stumble over, not for this thread.
            body: format!("unreadable: {e}"),
        });
        let seq = inner.received.len() + 1;
        inner.received.push(Received {
            seq,
            connection,
            from,
            to,
            raw,
            mail,
            answer: None,
        });
        let decided = inner.decide(Step::Body, connection, &envelope.to);
        drop(inner);
        self.tell();
        (seq, decided)
    }

    fn answered(&self, seq: usize, code: u16) {
        if let Some(message) = self.lock().received.get_mut(seq - 1) {
            message.answer = Some(code);
        }
        self.tell();
    }
}

impl Inner {
    fn decide(&mut self, at: Step, connection: usize, recipients: &[String]) -> Decided {
        let act = self
            .rules
            .iter_mut()
            .find_map(|r| r.fires(at, connection, recipients))
            .unwrap_or(Act::Accept);
        let mut gates = VecDeque::new();
        let mut step = &act;
        while let Act::Hold { gate, then } = step {
            gates.push_back(self.gates.entry(gate.clone()).or_default().subscribe());
            step = then;
        }
        Decided { act, gates }
    }
}

impl Armed {
    fn fires(&mut self, at: Step, connection: usize, recipients: &[String]) -> Option<Act> {
        let r = &self.rule;
        let fits = r.at == at
            && r.connection.is_none_or(|n| n == connection)
            && r.recipient
                .as_ref()
                .is_none_or(|part| recipients.iter().any(|to| to.contains(part.as_str())));
        if !fits {
            return None;
        }
        self.matched += 1;
        if r.nth.is_some_and(|n| n != self.matched) || r.times.is_some_and(|t| self.served >= t) {
            return None;
        }
        self.served += 1;
        Some(r.then.clone())
    }
}

async fn serve(state: Arc<State>, listener: TcpListener, addr: SocketAddr) -> io::Result<()> {
    let mut listener = Some(listener);
    let mut mode_of = state.mode.subscribe();
    let mut conns = JoinSet::new();
    loop {
        let mode = *mode_of.borrow_and_update();
        if mode == Mode::Refuse {
            listener = None;
        } else if listener.is_none() {
            listener = Some(TcpListener::bind(addr).await?);
        }
        state.applied.send_replace(mode);
        let accepted = async {
            match &listener {
                Some(l) if mode == Mode::Open => l.accept().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            Ok((stream, _)) = accepted => {
                let n = {
                    let mut inner = state.lock();
                    inner.connections += 1;
                    inner.connections
                };
                conns.spawn(Session::new(Arc::clone(&state), stream, n).run());
            }
            Some(_) = conns.join_next() => {}
            changed = mode_of.changed() => if changed.is_err() { return Ok(()) },
        }
    }
}

#[derive(Debug, Default)]
struct Envelope {
    from: Option<String>,
    to: Vec<String>,
}

/// One connection.
#[derive(Debug)]
struct Session {
    state: Arc<State>,
    stream: TcpStream,
    buf: BytesMut,
    n: usize,
}

/// Whether the dialogue goes on; the error of an exchange ends it like a goodbye.
#[derive(Debug, PartialEq, Eq)]
enum Then {
    /// The regular reply is to be said.
    Regular,
    /// Another one was said: this step did not succeed.
    Refused,
    /// The connection is to be closed.
    Close,
}

impl Session {
    fn new(state: Arc<State>, stream: TcpStream, n: usize) -> Self {
        Self {
            state,
            stream,
            buf: BytesMut::new(),
            n,
        }
    }

    async fn run(mut self) {
        // An error means that the sender is gone, which is its right.
        let _ = self.talk().await;
        let _ = self.stream.shutdown().await;
        self.state.note(self.n, '.', "closed");
    }

    async fn talk(&mut self) -> io::Result<()> {
        match self.ask(Step::Greeting, &[]).await? {
            Then::Regular => self.say("220 scripted.invalid ESMTP").await?,
            Then::Refused | Then::Close => return Ok(()),
        }
        let mut envelope = Envelope::default();
        while let Some(line) = self.line().await? {
            self.state.note(self.n, '>', &line);
            let verb: String = line
                .chars()
                .take_while(char::is_ascii_alphabetic)
                .collect::<String>()
                .to_uppercase();
            let (step, concerned) = match verb.as_str() {
                "EHLO" | "HELO" => (Step::Hello, Vec::new()),
                "MAIL" => (Step::Mail, Vec::new()),
                "RCPT" => (Step::Rcpt, vec![address(&line)]),
                "DATA" => (Step::Data, envelope.to.clone()),
                "RSET" | "NOOP" => {
                    if verb == "RSET" {
                        envelope = Envelope::default();
                    }
                    self.say("250 2.0.0 so be it").await?;
                    continue;
                }
                "QUIT" => return self.say("221 2.0.0 farewell").await,
                _ => {
                    self.say("502 5.5.1 not known here").await?;
                    continue;
                }
            };
            let out_of_turn = match step {
                Step::Rcpt => envelope.from.is_none(),
                Step::Data => envelope.to.is_empty(),
                _ => false,
            };
            if out_of_turn {
                self.say("503 5.5.1 not yet").await?;
                continue;
            }
            match self.ask(step, &concerned).await? {
                Then::Refused => continue,
                Then::Close => return Ok(()),
                Then::Regular => {}
            }
            match step {
                Step::Greeting | Step::Body => {}
                Step::Hello if verb == "HELO" => self.say("250 scripted.invalid").await?,
                Step::Hello => self.say("250-scripted.invalid\r\n250-8BITMIME\r\n250 SMTPUTF8").await?,
                Step::Mail => {
                    envelope = Envelope {
                        from: Some(address(&line)),
                        to: Vec::new(),
                    };
                    self.say("250 2.1.0 go on").await?;
                }
                Step::Rcpt => {
                    envelope.to.extend(concerned);
                    self.say("250 2.1.5 go on").await?;
                }
                Step::Data => {
                    self.say("354 end it with a dot").await?;
                    let raw = self.message().await?;
                    let (seq, decided) = self.state.receive(self.n, &envelope, raw);
                    envelope = Envelope::default();
                    match self.act(decided, Some(seq)).await? {
                        Then::Regular => self.conclude(Some(seq), 250, "2.0.0 taken").await?,
                        Then::Refused => {}
                        Then::Close => return Ok(()),
                    }
                }
            }
        }
        Ok(())
    }

    async fn ask(&mut self, step: Step, concerned: &[String]) -> io::Result<Then> {
        let decided = self.state.decide(step, self.n, concerned);
        self.act(decided, None).await
    }

    async fn act(&mut self, decided: Decided, seq: Option<usize>) -> io::Result<Then> {
        let Decided { mut act, mut gates } = decided;
        while let Act::Hold { gate, then } = act {
            self.state.note(self.n, '.', &format!("held at {gate}"));
            if let Some(mut open) = gates.pop_front() {
                tokio::select! {
                    _ = open.changed() => {}
                    gone = self.gone() => return Err(gone),
                }
            }
            act = *then;
        }
        match act {
            Act::Accept | Act::Hold { .. } => Ok(Then::Regular),
            Act::Reply { code, text } => {
                self.conclude(seq, code, &text).await?;
                Ok(Then::Refused)
            }
            Act::Vanish => Ok(Then::Close),
        }
    }

    /// The reply to a message is noted before it is said: a sender that has it must find it in the record.
    async fn conclude(&mut self, seq: Option<usize>, code: u16, text: &str) -> io::Result<()> {
        if let Some(seq) = seq {
            self.state.answered(seq, code);
        }
        self.say(&format!("{code} {text}")).await
    }

    async fn say(&mut self, reply: &str) -> io::Result<()> {
        self.state.note(self.n, '<', reply);
        self.stream.write_all(format!("{reply}\r\n").as_bytes()).await
    }

    /// Waits until the sender is gone. What it says meanwhile is kept.
    async fn gone(&mut self) -> io::Error {
        loop {
            match self.stream.read_buf(&mut self.buf).await {
                Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => {}
                Err(e) => return e,
            }
        }
    }

    /// The next line without its end; none when the sender has closed.
    async fn line(&mut self) -> io::Result<Option<String>> {
        Ok(self.until(b"\r\n").await?.map(|line| String::from_utf8_lossy(&line).into_owned()))
    }

    async fn until(&mut self, end: &[u8]) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(at) = self.buf.windows(end.len()).position(|w| w == end) {
                let line = self.buf.split_to(at).to_vec();
                self.buf.advance(end.len());
                return Ok(Some(line));
            }
            if self.buf.len() > MESSAGE_LIMIT {
                return Err(io::Error::other("a line without end"));
            }
            if self.stream.read_buf(&mut self.buf).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The message up to the line with nothing but a dot; doubled dots at the beginning of a line are single again.
    async fn message(&mut self) -> io::Result<Vec<u8>> {
        let mut raw = Vec::new();
        while let Some(line) = self.until(b"\r\n").await? {
            if line == b"." {
                return Ok(raw);
            }
            raw.extend_from_slice(line.strip_prefix(b".").unwrap_or(&line));
            raw.extend_from_slice(b"\r\n");
            if raw.len() > MESSAGE_LIMIT {
                break;
            }
        }
        // Cut off, or without end: not a message that was received.
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// What stands between the angle brackets.
fn address(line: &str) -> String {
    let inner = line.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    inner.map_or_else(String::new, |(address, _)| address.to_owned())
}
