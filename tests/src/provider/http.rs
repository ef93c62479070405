//! HTTP/1.1 by hand, as little as the script needs. A framework would not send half a header, a body shorter than it
//! promised or a reset, and those are what this server is for.

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::rule::{Framing, Reply};

const HEAD_LIMIT: usize = 64 * 1024;
const BODY_LIMIT: usize = 512 * 1024 * 1024;

/// One request, read whole.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    headers: Vec<(String, String)>,
    pub(super) body: Bytes,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
    }

    pub(super) fn bearer(&self) -> Option<&str> {
        let value = self.header("authorization")?;
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    }

    pub(super) fn keep_alive(&self) -> bool {
        !self.header("connection").is_some_and(|v| v.eq_ignore_ascii_case("close"))
    }
}

/// A connection, and what was read from it too early.
#[derive(Debug)]
pub(super) struct Conn {
    stream: TcpStream,
    buf: BytesMut,
}

impl Conn {
    pub(super) fn new(stream: TcpStream) -> Self {
        // Without it a trickle of single bytes waits for the peer's delayed acknowledgements.
        let _ = stream.set_nodelay(true);
        Self {
            stream,
            buf: BytesMut::new(),
        }
    }

    /// The next request, or `None` when the caller closed in good order. Cancelling it loses at most a half-read request.
    pub(super) async fn next(&mut self) -> io::Result<Option<Request>> {
        let end = loop {
            if let Some(end) = find(&self.buf, b"\r\n\r\n") {
                break end;
            }
            if self.buf.len() > HEAD_LIMIT {
                return Err(io::Error::other("the head of the request is too long"));
            }
            if self.stream.read_buf(&mut self.buf).await? == 0 {
                return Ok(None);
            }
        };
        let head = self.buf.split_to(end + 4);
        let head = String::from_utf8_lossy(&head);
        let mut lines = head.split("\r\n");
        let mut first = lines.next().unwrap_or_default().split(' ');
        let (method, target) = (first.next().unwrap_or_default().to_owned(), first.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers = lines
            .filter_map(|l| l.split_once(':'))
            .map(|(n, v)| (n.trim().to_owned(), v.trim().to_owned()))
            .collect();
        let mut request = Request {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            headers,
            body: Bytes::new(),
        };
        if request.header("expect").is_some_and(|v| v.eq_ignore_ascii_case("100-continue")) {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        request.body = if request
            .header("transfer-encoding")
            .is_some_and(|v| v.eq_ignore_ascii_case("chunked"))
        {
            self.chunks().await?
        } else {
            let length = request
                .header("content-length")
                .map_or(Ok(0), str::parse)
                .map_err(io::Error::other)?;
            self.exactly(length).await?
        };
        Ok(Some(request))
    }

    async fn chunks(&mut self) -> io::Result<Bytes> {
        let mut body = BytesMut::new();
        loop {
            let line = self.line().await?;
            let size = usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16).map_err(io::Error::other)?;
            if size == 0 {
                while !self.line().await?.is_empty() {}
                return Ok(body.freeze());
            }
            body.extend_from_slice(&self.exactly(size).await?);
            self.line().await?;
        }
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = find(&self.buf, b"\r\n") {
                let line = self.buf.split_to(end + 2);
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.more().await?;
        }
    }

    async fn exactly(&mut self, length: usize) -> io::Result<Bytes> {
        if length > BODY_LIMIT {
            return Err(io::Error::other("the body of the request is too long"));
        }
        while self.buf.len() < length {
            self.more().await?;
        }
        Ok(self.buf.split_to(length).freeze())
    }

    async fn more(&mut self) -> io::Result<()> {
        if self.stream.read_buf(&mut self.buf).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// Whether the caller has closed its side. Looks, does not wait.
    pub(super) fn is_gone(&mut self) -> bool {
        loop {
            match self.stream.try_read_buf(&mut self.buf) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) => return e.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Waits until the caller closes its side. What it sends meanwhile is kept for the next request.
    pub(super) async fn gone(&mut self) {
        while !matches!(self.stream.read_buf(&mut self.buf).await, Ok(0) | Err(_)) {}
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Ends in FIN.
    pub(super) async fn close(mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Ends in RST: a linger of zero makes the kernel drop what is unsent and reset.
    pub(super) fn reset(self) {
        let _ = self.stream.set_zero_linger();
    }
}

/// An answer, ready for the wire.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) status: u16,
    pub(super) head: Vec<u8>,
    pub(super) body: Bytes,
    pub(super) close: bool,
}

impl Wire {
    pub(super) fn of(reply: &Reply, framing: Framing, close: bool) -> Self {
        let body = reply.body.bytes();
        let mut head = format!("HTTP/1.1 {} {}\r\n", reply.status, reason(reply.status)).into_bytes();
        for (name, value) in &reply.headers {
            head.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        match framing {
            Framing::ContentLength => head.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes()),
            Framing::Chunked => head.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        }
        if close {
            head.extend_from_slice(b"connection: close\r\n");
        }
        head.extend_from_slice(b"\r\n");
        Self {
            status: reply.status,
            head,
            body,
            close,
        }
    }

    pub(super) fn first_half(&self) -> Bytes {
        self.body.slice(..self.body.len() / 2)
    }

    pub(super) fn whole(&self) -> Vec<u8> {
        [&self.head[..], &self.body[..]].concat()
    }
}

/// The part named `image_file` of a multipart body (or else its first part): file name and bytes.
pub(super) fn multipart(content_type: &str, body: &Bytes) -> Option<(String, Bytes)> {
    let boundary = content_type
        .split(';')
        .find_map(|p| p.trim().strip_prefix("boundary="))?
        .trim_matches('"');
    let mark = format!("--{boundary}");
    let mut rest = body.clone();
    rest.advance(find(&rest, mark.as_bytes())? + mark.len());
    let mut first = None;
    while !rest.starts_with(b"--") {
        let head_end = find(&rest, b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&rest[..head_end]).into_owned();
        rest.advance(head_end + 4);
        let end = find(&rest, format!("\r\n{mark}").as_bytes())?;
        let part = (quoted(&head, "filename=\"").unwrap_or_default(), rest.slice(..end));
        if head.contains("name=\"image_file\"") {
            return Some(part);
        }
        first = first.or(Some(part));
        rest.advance(end + 2 + mark.len());
    }
    first
}

fn quoted(head: &str, name: &str) -> Option<String> {
    let start = head.find(name)? + name.len();
    head[start..].split('"').next().map(str::to_owned)
}

/// Where `needle` begins in `hay`.
pub(super) fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    if needle.is_empty() {
        return Some(0);
    }
    // Hopping from one first byte to the next keeps a 100 MB image from costing a window compare per byte.
    let mut from = 0;
    while let Some(at) = hay[from..].iter().position(|b| *b == needle[0]) {
        let at = from + at;
        if hay[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        301 => "Moved Permanently",
        302 => "Found",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        413 => "Payload Too Large",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "Scripted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multipart_body_gives_the_part_that_is_asked_for() {
        let body = Bytes::from_static(
            b"--XX\r\nContent-Disposition: form-data; name=\"lang\"\r\n\r\neng\r\n--XX\r\nContent-Disposition: form-data; name=\"image_file\"; \
              filename=\"p 1.png\"\r\nContent-Type: image/png\r\n\r\n\x89PNG\r\n--X\r\n--XX--\r\n",
        );
        let (name, bytes) = multipart("multipart/form-data; boundary=XX", &body).expect("a part");
        assert_eq!((name.as_str(), &bytes[..]), ("p 1.png", &b"\x89PNG\r\n--X"[..]));
    }
}
