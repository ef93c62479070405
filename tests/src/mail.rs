//! A mail as a reader sees it: what was encoded for the way is decoded again.

use mailparse::{MailHeaderMap as _, ParsedMail};

/// One mail that has arrived somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// Who gets it: the recipients of the envelope, without brackets. Not the `To` line, which promises nothing.
    pub to: Vec<String>,
    /// Who sends it: the envelope's sender, without brackets; empty for the null sender.
    pub from: String,
    pub subject: String,
    /// With its brackets; empty when there is none.
    pub message_id: String,
    /// All header lines in their order, values decoded.
    pub headers: Vec<(String, String)>,
    /// The plain text (of several parts the first that is plain, else the first that is text), lines ended by `\n`.
    pub body: String,
}

impl Mail {
    /// Reads a message as it went over the wire or lies in a mailbox. Whoever passed it on knows the envelope.
    ///
    /// # Errors
    /// What is wrong with it: a mail that cannot be read should not have been sent.
    pub fn read(raw: &[u8], from: &str, to: &[String]) -> Result<Self, String> {
        let parsed = mailparse::parse_mail(raw).map_err(|e| format!("no mail: {e}"))?;
        let body = match text(&parsed) {
            Some(part) => part.get_body().map_err(|e| format!("the text cannot be decoded: {e}"))?,
            None => String::new(),
        };
        let one = |name: &str| parsed.headers.get_first_value(name).unwrap_or_default();
        Ok(Self {
            to: to.to_vec(),
            from: from.to_owned(),
            subject: one("Subject"),
            message_id: one("Message-ID").trim().to_owned(),
            headers: parsed.headers.iter().map(|h| (h.get_key(), h.get_value())).collect(),
            body: body.replace("\r\n", "\n"),
        })
    }

    /// The first header of that name, in whatever case it is written.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// The part that a person reads.
fn text<'a>(mail: &'a ParsedMail<'a>) -> Option<&'a ParsedMail<'a>> {
    let leaves = || mail.parts().filter(|p| p.subparts.is_empty());
    leaves()
        .find(|p| p.ctype.mimetype == "text/plain")
        .or_else(|| leaves().find(|p| p.ctype.mimetype.starts_with("text/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_encoded_for_the_way_is_decoded() {
        let raw = b"From: =?utf-8?Q?J=C3=B6rg?= <j@example.org>\r\nSubject: =?utf-8?B?w5xiZXJyYXNjaHVuZw==?=\r\n =?utf-8?Q?_am_Montag?=\r\n\
                    message-id: <1@example.org>\r\nContent-Type: multipart/alternative; boundary=b\r\n\r\n--b\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<p>no</p>\r\n\
                    --b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\ngr=C3=BCn und =\r\nblau\r\n--b--\r\n";
        let mail = Mail::read(raw, "j@example.org", &["a@example.org".to_owned()]).expect("a mail");
        assert_eq!(
            (mail.subject.as_str(), mail.message_id.as_str()),
            ("Überraschung am Montag", "<1@example.org>")
        );
        assert_eq!(mail.body.trim_end(), "grün und blau");
        assert_eq!(mail.header("FROM"), Some("Jörg <j@example.org>"));
        let plain = Mail::read(
            b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\nZWlucw0KendlaQ0K\r\n",
            "",
            &[],
        );
        assert_eq!(plain.expect("a mail").body, "eins\nzwei\n");
    }
}
