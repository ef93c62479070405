//! What stands between the SMTP code and the socket: whole, tidy lines, and a count of what went out.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use lettre::transport::smtp::client::AsyncTokioStream;
use lettre::transport::smtp::response::Response;
use tokio::io::{AsyncBufRead as _, AsyncBufReadExt as _, AsyncRead, AsyncWrite, BufReader, ReadBuf};

/// Bytes a server may say in one conversation; a talkative one says four thousand.
const MOST: usize = 256 * 1024;

/// A stream (the socket, or TLS over it) that hands out one line per read, so that no reader above it ever holds a byte
/// that came after the answer it waits for.
///
/// lettre's own reader takes a line in whole before it looks at its length, and takes what follows an answer for the answer
/// to the next command; both are for this side to prevent, since the first costs memory and the second can call a letter
/// accepted that was not.
pub(super) struct Wire<S> {
    io: BufReader<S>,
    peer: SocketAddr,
    line: Vec<u8>,
    /// How much of `line` the reader has; it is replaced when that is all.
    given: usize,
    whole: bool,
    heard: usize,
    written: Arc<AtomicUsize>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// `written` counts the bytes that this stream has taken for the server.
    pub(super) fn new(io: S, peer: SocketAddr, written: Arc<AtomicUsize>) -> Self {
        Self {
            io: BufReader::new(io),
            peer,
            line: Vec::new(),
            given: 0,
            whole: false,
            heard: 0,
            written,
        }
    }

    /// Begins with this greeting: after STARTTLS a server says none, and lettre wants to read one.
    pub(super) fn greeted(self, code: u16) -> Self {
        Self {
            line: format!("{code} \r\n").into_bytes(),
            whole: true,
            ..self
        }
    }

    /// One answer, however many lines it has.
    ///
    /// # Errors
    /// `UnexpectedEof` when the connection ended, `InvalidData` when it is no SMTP.
    pub(super) async fn reply(&mut self) -> io::Result<Response> {
        let mut lines = BufReader::new(self);
        let mut said = String::new();
        loop {
            let start = said.len();
            lines.read_line(&mut said).await?;
            if said.as_bytes().get(start + 3) != Some(&b'-') {
                return said.parse().map_err(|e| io::Error::new(ErrorKind::InvalidData, e));
            }
        }
    }

    /// The bare stream again, for TLS. Nothing that was said in the clear may be believed behind the handshake.
    ///
    /// # Errors
    /// When there is such a thing.
    pub(super) fn into_inner(self) -> io::Result<S> {
        self.in_turn()?;
        Ok(self.io.into_inner())
    }

    fn in_turn(&self) -> io::Result<()> {
        if self.whole || !self.line.is_empty() || !self.io.buffer().is_empty() {
            return Err(io::Error::new(ErrorKind::InvalidData, "the server spoke before it was asked"));
        }
        Ok(())
    }
}

/// Makes a line what lettre can read: ASCII (the words may be in any encoding, the code is what counts), no control
/// characters, no trailing blanks (a blank line in an EHLO answer panics lettre), and a blank behind a bare code, which
/// RFC 5321 section 4.2 lets a server leave out.
fn tidy(line: &mut Vec<u8>) {
    for byte in line.iter_mut() {
        *byte = match *byte {
            b if b.is_ascii_control() => b' ',
            b if b.is_ascii() => b,
            _ => b'?',
        };
    }
    line.truncate(line.trim_ascii_end().len());
    if line.len() == 3 {
        line.push(b' ');
    }
    line.extend_from_slice(b"\r\n");
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Wire<S> {
    /// A connection that ended is an error here: no answer may be taken for one.
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        while !me.whole {
            let seen = ready!(Pin::new(&mut me.io).poll_fill_buf(cx))?;
            if seen.is_empty() {
                return Poll::Ready(Err(ErrorKind::UnexpectedEof.into()));
            }
            let end = seen.iter().position(|b| *b == b'\n').map(|i| i + 1);
            let take = end.unwrap_or(seen.len());
            me.line.extend_from_slice(&seen[..take]);
            me.io.consume(take);
            me.heard += take;
            if me.heard > MOST {
                return Poll::Ready(Err(io::Error::new(ErrorKind::InvalidData, "the server says too much")));
            }
            if end.is_some() {
                tidy(&mut me.line);
                me.whole = true;
            }
        }
        let rest = &me.line[me.given..];
        let take = rest.len().min(out.remaining());
        out.put_slice(&rest[..take]);
        me.given += take;
        if me.given == me.line.len() {
            me.line.clear();
            me.given = 0;
            me.whole = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let me = self.get_mut();
        // Whatever is unread now would be taken for the answer to what is written here.
        me.in_turn()?;
        let n = ready!(Pin::new(&mut me.io).poll_write(cx, bytes))?;
        me.written.fetch_add(n, Ordering::Relaxed);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

/// Says nothing of the bytes.
impl<S> fmt::Debug for Wire<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> AsyncTokioStream for Wire<S> {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}
