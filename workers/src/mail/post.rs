//! A letter as it goes over the wire.

use lettre::Address;
use lettre::address::Envelope;
use lettre::message::header::{ContentType, HeaderName, HeaderValue, MIME_VERSION_1_0};
use lettre::message::{Mailbox, Message};

use super::smtp::in_ascii;
use super::{Fault, Letter, NotSent};

pub(super) struct Post {
    pub(super) to: Address,
    /// Headers and body; ASCII unless the address is not.
    pub(super) bytes: Vec<u8>,
}

impl Post {
    /// # Errors
    /// [`NotSent::BadAddress`]: what would not stay inside its header, or is no address. The words repeat none of it.
    pub(super) fn write(from: &Mailbox, letter: &Letter) -> Result<Self, Fault> {
        let bad = |cause, what: &str| Fault::ours(NotSent::BadAddress, cause, what);
        // Before parsing: what is not ASCII may be in a local part, and some of that is a line break.
        let address = (!letter.to.chars().any(char::is_control)).then(|| letter.to.parse().ok().and_then(in_ascii));
        let no = "the recipient is no mail address; correct it in the person's account";
        let to: Address = address.flatten().ok_or_else(|| bad("bad_address", no))?;
        if letter.subject.contains(['\r', '\n', '\0']) {
            return Err(bad("bad_header", "the subject holds a line break or a NUL"));
        }
        let id = letter.message_id.as_bytes();
        let whole = id.split(|b| *b == b'@').all(|part| !part.is_empty()) && id.iter().filter(|b| **b == b'@').count() == 1;
        if !whole || id.len() > 250 || !id.iter().all(|b| b.is_ascii_graphic() && !b"<>()[]\\,;:\"".contains(b)) {
            return Err(bad("bad_header", "the Message-ID is not of the form name@example.org in ASCII"));
        }
        let envelope = Envelope::new(Some(from.email.clone()), vec![to.clone()]).map_err(|e| bad("bad_address", &e.to_string()))?;
        let body = letter.body.replace("\r\n", "\n").replace('\r', "\n");
        let message = Message::builder()
            .from(from.clone())
            .to(Mailbox::new(None, to.clone()))
            .subject(printable(&letter.subject))
            .date_now()
            .message_id(Some(format!("<{}>", letter.message_id)))
            // No out-of-office answer to a machine (RFC 3834).
            .raw_header(HeaderValue::new(
                HeaderName::new_from_ascii_str("Auto-Submitted"),
                "auto-generated".to_owned(),
            ))
            .header(MIME_VERSION_1_0)
            .header(ContentType::TEXT_PLAIN)
            .envelope(envelope)
            // CRLF throughout: a lone CR or LF before a dot is how a second letter is smuggled in. And made here, because
            // lettre does it in time that grows with the square of the lines.
            .body(printable(&body).trim_end().replace('\n', "\r\n"))
            .map_err(|e| bad("bad_header", &e.to_string()))?;
        Ok(Self {
            to,
            bytes: message.formatted(),
        })
    }

    /// The text as it is encoded for the wire.
    pub(super) fn body(&self) -> String {
        let all = String::from_utf8_lossy(&self.bytes);
        all.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }
}

fn printable(text: &str) -> String {
    let visible = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { ' ' } else { c };
    text.chars().map(visible).collect()
}
