use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpStream;

use super::foreign::{Foreign, part};
use super::wait_until;
use crate::mail::Mail;

/// A mail server that is not ours: aiosmtpd, which takes every mail and keeps it in a Maildir. What counts as delivered is
/// what lies here, not what a row says.
#[derive(Debug)]
pub struct Sink {
    server: Option<Foreign>,
    port: u16,
    dir: tempfile::TempDir,
}

impl Sink {
    /// Starts one on a free loopback port, and returns when it greets.
    ///
    /// # Panics
    /// Without `STEADFAST_MAIL_PYTHON` (a Python that has aiosmtpd), or when it does not start.
    pub async fn start() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("steadfast-sink-")
            .tempdir()
            .expect("a temporary folder");
        let (server, port) = Foreign::start_on_a_free_port(
            &python(),
            dir.path(),
            |port| args(port, &maildir(dir.path())),
            async |port| greets(port).await,
        )
        .await;
        Self {
            server: Some(server),
            port,
            dir,
        }
    }

    /// `smtp://127.0.0.1:PORT`; the same after [`Sink::start_again`].
    #[must_use]
    pub fn url(&self) -> String {
        format!("smtp://127.0.0.1:{}", self.port)
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends the server; connections are refused until it starts again. What it has taken stays.
    pub async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
    }

    /// Starts it again, on the same port and over the same mailbox.
    ///
    /// # Panics
    /// When it does not start: somebody else has the port by now.
    pub async fn start_again(&mut self) {
        self.stop().await;
        let (port, dir) = (self.port, self.dir.path());
        let server = Foreign::start(&python(), &args(port, &maildir(dir)), dir, async || greets(port).await).await;
        self.server = Some(server.unwrap_or_else(|said| panic!("the mail sink does not start again: {said}")));
    }

    /// Everything that was taken so far, in the order of arrival. A mail lies here before its sender gets the 250.
    ///
    /// # Panics
    /// When a mail cannot be read.
    pub async fn mails(&self) -> Vec<Mail> {
        let mut files: Vec<PathBuf> = ["new", "cur"]
            .iter()
            .filter_map(|sub| std::fs::read_dir(maildir(self.dir.path()).join(sub)).ok())
            .flat_map(|entries| entries.flatten().map(|e| e.path()))
            .collect();
        files.sort_by_key(|file| arrived(file));
        let mut mails = Vec::with_capacity(files.len());
        for file in files {
            let raw = tokio::fs::read(&file).await.expect("a file that was just listed");
            mails.push(read(&raw).unwrap_or_else(|e| panic!("{e}:\n{}", String::from_utf8_lossy(&raw))));
        }
        mails
    }

    /// Waits until at least `n` mails have arrived; returns all of them.
    ///
    /// # Panics
    /// When they have not within a minute.
    pub async fn wait_mails(&self, n: usize) -> Vec<Mail> {
        wait_until(&format!("{n} mails arrived"), Duration::from_secs(60), async || {
            let mails = self.mails().await;
            if mails.len() >= n { Ok(mails) } else { Err(mails) }
        })
        .await
    }
}

fn python() -> PathBuf {
    part("STEADFAST_MAIL_PYTHON", "Python that has aiosmtpd")
}

/// Not there before the server has made it, with the three folders that it wants in it.
fn maildir(dir: &Path) -> PathBuf {
    dir.join("mail")
}

fn args(port: u16, maildir: &Path) -> Vec<String> {
    let listen = format!("127.0.0.1:{port}");
    let folder = maildir.to_str().expect("a temporary folder has a plain name");
    // -n: it would become "nobody" otherwise, who may not write here.
    ["-m", "aiosmtpd", "-n", "-l", &listen, "-c", "aiosmtpd.handlers.Mailbox", folder]
        .map(str::to_owned)
        .to_vec()
}

async fn greets(port: u16) -> std::io::Result<()> {
    let mut lines = BufReader::new(TcpStream::connect(("127.0.0.1", port)).await?).lines();
    match lines.next_line().await? {
        Some(line) if line.starts_with("220") => Ok(()),
        other => Err(std::io::Error::other(format!("no greeting: {other:?}"))),
    }
}

/// A Maildir's file is named after the moment: seconds, then `M` and microseconds without leading zeros.
fn arrived(file: &Path) -> (u64, u64) {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let mut parts = name.split('.');
    let seconds = parts.next().and_then(|s| s.parse().ok()).unwrap_or(0);
    let digits: String = parts
        .next()
        .unwrap_or_default()
        .chars()
        .skip(1)
        .take_while(char::is_ascii_digit)
        .collect();
    (seconds, digits.parse().unwrap_or(0))
}

/// The server notes the envelope in the header.
fn read(raw: &[u8]) -> Result<Mail, String> {
    let mail = Mail::read(raw, "", &[])?;
    let noted = |name| mail.header(name).map(str::to_owned);
    let from = noted("X-MailFrom").unwrap_or_default();
    let to = noted("X-RcptTo").ok_or("the sink noted no recipient")?;
    let to = to.split(',').map(|a| a.trim().to_owned()).collect();
    Ok(Mail { from, to, ..mail })
}
