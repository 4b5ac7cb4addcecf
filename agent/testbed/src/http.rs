//! One HTTP request over an open connection.

use std::io::{Read, Write};

use anyhow::{Context, Result};

/// Sends a request with a body of this media type; returns status code and body of the answer.
///
/// # Errors
/// When the connection breaks, or the answer is no HTTP.
pub(crate) fn exchange(
    mut stream: impl Read + Write,
    (method, path): (&str, &str),
    (media, body): (&str, &str),
) -> Result<(u16, String)> {
    // With HTTP 1.0, the answer is not chunked and ends with the connection.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: {media}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8(answer).context("the answer is no text")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP in the answer")?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.context("no status in the answer")?, body.to_owned()))
}
