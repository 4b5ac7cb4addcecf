//! One request and its streamed answer: the parts of a list, or the events of a watch.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures::FutureExt;
use futures::io::{AsyncBufRead, AsyncBufReadExt};
use hyper::header::{ACCEPT, HeaderValue};
use kube::Client;
use kube::core::Status;
use kube::core::watch::Bookmark;
use kube::runtime::watcher;
use tokio::time::timeout;

use super::failure::Failure;
use super::split::{RawValue, ResponsePart, Splitter};
use crate::convert::{self, ObjectIdentity, Read};

/// Maximum number of bytes taken in at once if they are already available.
const AT_ONCE: usize = 1 << 20;
/// Media type of answers. Servers since Kubernetes 1.38 omit `metadata.managedFields` (KEP-5958), a third to a half of
/// an object; older servers ignore the parameter.
const MEDIA_TYPE: HeaderValue =
    HeaderValue::from_static("application/json;drop=metadata.managedFields");

/// A streamed answer.
pub(super) struct ResponseStream {
    body: Pin<Box<dyn AsyncBufRead + Send>>,
    splitter: Splitter,
    /// Longest time without data before the answer counts as silent.
    patience: Duration,
}

impl ResponseStream {
    /// Sends the request; returns when the answer begins.
    pub(super) async fn to(
        client: &Client,
        mut request: hyper::Request<Vec<u8>>,
        patience: Duration,
    ) -> Result<Self, Failure> {
        request.headers_mut().insert(ACCEPT, MEDIA_TYPE);
        let body = timeout(patience, client.request_stream(request))
            .await
            .map_err(|_| Failure::Silent(patience))?
            .map_err(Failure::from_error)?;
        Ok(Self { body: Box::pin(body), splitter: Splitter::default(), patience })
    }

    /// Waits for the next parts, and passes them to `out` together with the ones already available. Returns false at
    /// the end of the answer.
    pub(super) async fn parts(
        &mut self,
        mut out: impl FnMut(ResponsePart<'_>),
    ) -> Result<bool, Failure> {
        let mut taken = 0;
        while taken < AT_ONCE {
            let chunk = if taken == 0 {
                let chunk = timeout(self.patience, self.body.fill_buf()).await;
                chunk.map_err(|_| Failure::Silent(self.patience))?
            } else {
                let Some(chunk) = self.body.fill_buf().now_or_never() else { break };
                chunk
            };
            let chunk = match chunk {
                Ok([]) => return Ok(taken > 0),
                Ok(chunk) => chunk,
                Err(error) => match ended(&error) {
                    Some(BodyEnd::Early) => return Ok(taken > 0),
                    Some(BodyEnd::Silent) => return Err(Failure::Silent(self.patience)),
                    None => return Err(Failure::of_body(&error)),
                },
            };
            let fed = self.splitter.feed(chunk, &mut out);
            let length = chunk.len();
            fed.map_err(|error| Failure::Undecodable(error.to_string()))?;
            self.body.as_mut().consume(length);
            taken += length;
        }
        Ok(true)
    }

    /// Returns whether the answer ended outside of any object.
    pub(super) fn is_whole(&self) -> bool {
        self.splitter.is_outside()
    }
}

/// Kind of end that an I/O error of a body indicates.
#[derive(Debug, PartialEq, Eq)]
enum BodyEnd {
    /// Truncated body: a server or proxy that shuts down may close a watch without the end that HTTP requires.
    Early,
    /// Read timeout of the client.
    Silent,
}

/// Returns whether a watch of kube was answered and then hit the client's read timeout. kube repeats the request.
#[must_use]
pub fn is_quiet(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::WatchFailed(kube::Error::ReadEvents(error)) if ended(error) == Some(BodyEnd::Silent)
    )
}

/// Returns the kind of end that an error, or one of its causes, indicates.
fn ended(error: &io::Error) -> Option<BodyEnd> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        match io.map(io::Error::kind) {
            Some(io::ErrorKind::UnexpectedEof) => return Some(BodyEnd::Early),
            Some(io::ErrorKind::TimedOut) => return Some(BodyEnd::Silent),
            _ if error.to_string().contains("unexpected EOF during chunk") => {
                return Some(BodyEnd::Early);
            }
            _ => {}
        }
        // The inner error of an io::Error is not its source.
        cause = match io.and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// An event of a watch.
#[derive(Debug)]
pub(super) enum WatchEvent {
    /// The object exists in this version.
    Object(Box<Read>),
    /// The object was deleted.
    Gone(ObjectIdentity),
    /// A version from which a watch can continue.
    Bookmark(String),
    /// The watch failed.
    Failed(Failure),
}

/// Assembles events from their parts.
#[derive(Debug, Default)]
pub(super) struct Events {
    kind: Option<Vec<u8>>,
    /// An object that arrived before its event's type.
    early: Option<(Vec<u8>, bool)>,
    event: Option<WatchEvent>,
}

impl Events {
    /// Takes a part; returns the event that it completes.
    pub(super) fn part(&mut self, of: convert::Kind, part: ResponsePart<'_>) -> Option<WatchEvent> {
        match (part, self.kind.as_deref()) {
            (ResponsePart::Field(b"type", raw), _) => self.kind = Some(raw.text.to_vec()),
            (ResponsePart::Field(b"object", raw), Some(kind)) => {
                self.event = Some(event(of, kind, raw));
            }
            (ResponsePart::Field(b"object", raw), None) => {
                self.early = Some((raw.text.to_vec(), raw.whole));
            }
            (ResponsePart::End, kind) => {
                let early = kind.zip(self.early.as_ref());
                let early = early
                    .map(|(kind, (text, whole))| event(of, kind, RawValue { text, whole: *whole }));
                let nothing = || {
                    let reason = "an event has no type or no object".to_owned();
                    WatchEvent::Failed(Failure::Undecodable(reason))
                };
                let complete = self.event.take().or(early).unwrap_or_else(nothing);
                *self = Self::default();
                return Some(complete);
            }
            (ResponsePart::Field(..) | ResponsePart::Item(_) | ResponsePart::Items, _) => {}
        }
        None
    }
}

fn event(of: convert::Kind, kind: &[u8], object: RawValue<'_>) -> WatchEvent {
    let undecodable = |error: &dyn ToString| {
        WatchEvent::Failed(Failure::Undecodable(format!("an event: {}", error.to_string())))
    };
    match kind {
        b"\"ADDED\"" | b"\"MODIFIED\"" => {
            WatchEvent::Object(Box::new(convert::read(of, object.text, object.whole)))
        }
        b"\"DELETED\"" => WatchEvent::Gone(ObjectIdentity::parse_identity(object.text)),
        b"\"BOOKMARK\"" => match serde_json::from_slice::<Bookmark>(object.text) {
            Ok(Bookmark { metadata, .. }) => WatchEvent::Bookmark(metadata.resource_version),
            Err(error) => undecodable(&error),
        },
        b"\"ERROR\"" => match serde_json::from_slice::<Status>(object.text) {
            Ok(status) => WatchEvent::Failed(Failure::of_status(&status)),
            Err(error) => undecodable(&error),
        },
        other => undecodable(&format!("of type {}", other.escape_ascii())),
    }
}
