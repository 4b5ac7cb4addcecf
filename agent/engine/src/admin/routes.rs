//! Routes to one JSON document or to a stream of JSON lines.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{StatusCode, header};
use axum::routing::{MethodRouter, any};
use futures::stream::unfold;
use netpold_api::socket::PATIENCE;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::debug;

use crate::engine::Engine;
use crate::lines::{LineSender, line};
use crate::questions::Questions;

/// Longest body of a request, in bytes.
pub(super) const REQUEST_MAX: usize = 2048;

/// Media type of the answers.
const JSON: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

/// Refusal of a request, with the reason.
type RequestRefusal = (StatusCode, String);

/// Route to one JSON document. `answer` runs on a thread that may block, for example on the engine.
pub fn answer<Q, A>(answer: impl Fn(Q) -> A + Clone + Send + Sync + 'static) -> MethodRouter
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + 'static,
{
    any(async move |body: Body| {
        let question = read(body).await?;
        let json = spawn_blocking(move || line(&answer(question)));
        let json = json.await.map_err(io::Error::other).flatten();
        json.map(|json| (JSON, json)).map_err(refused(StatusCode::INTERNAL_SERVER_ERROR))
    })
}

/// Route to one JSON document about the engine, without a question in the request. All requests that wait for the
/// engine share the next answer.
pub(super) fn shared<A: Serialize + 'static>(
    questions: &Arc<Questions>,
    answer: impl Fn(&Engine) -> A + Send + Sync + 'static,
) -> MethodRouter {
    let parts = Arc::new((Arc::clone(questions), answer));
    let last = Arc::new(tokio::sync::Mutex::new(None));
    any(async move || {
        let asked = Instant::now();
        let mut last = last.lock().await;
        if let Some((began, json)) = &*last
            && *began >= asked
        {
            return Ok((JSON, Bytes::clone(json)));
        }
        let next = spawn_blocking(move || {
            let (questions, answer) = &*parts;
            let (began, answer) = questions.ask(|engine| (Instant::now(), answer(engine)));
            line(&answer).map(|json| (began, Bytes::from(json)))
        });
        let next = next.await.map_err(io::Error::other).flatten();
        let next = next.map_err(refused(StatusCode::INTERNAL_SERVER_ERROR))?;
        Result::<_, RequestRefusal>::Ok((JSON, last.insert(next).1.clone()))
    })
}

/// Route to a stream of JSON lines. `begin` refuses, or returns the future that sends the lines.
pub fn stream<Q, B, S>(
    begin: impl Fn(Q, LineSender) -> B + Clone + Send + Sync + 'static,
) -> MethodRouter
where
    Q: DeserializeOwned + Send + 'static,
    B: Future<Output = Result<S, String>> + Send,
    S: Future<Output = io::Result<()>> + Send + 'static,
{
    any(async move |body: Body| {
        let (lines, receiver) = LineSender::new();
        let sent = begin(read(body).await?, lines).await.map_err(refused(StatusCode::CONFLICT))?;
        tokio::spawn(async move {
            if let Err(error) = sent.await {
                debug!("control stream: {error}");
            }
        });
        let texts = unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|text| (io::Result::Ok(text), receiver))
        });
        Result::<_, RequestRefusal>::Ok((JSON, Body::from_stream(texts)))
    })
}

fn refused<E: ToString>(status: StatusCode) -> impl Fn(E) -> RequestRefusal {
    move |error| (status, error.to_string())
}

/// Reads a request's body; an empty one is `null`.
async fn read<Q: DeserializeOwned>(body: Body) -> Result<Q, RequestRefusal> {
    let body = timeout(PATIENCE, to_bytes(body, REQUEST_MAX)).await;
    let body = body.map_err(refused(StatusCode::REQUEST_TIMEOUT))?;
    let body = body.map_err(refused(StatusCode::PAYLOAD_TOO_LARGE))?;
    let json = if body.is_empty() { b"null" } else { &body[..] };
    let invalid = |error| format!("invalid request: {error}");
    serde_json::from_slice(json).map_err(invalid).map_err(refused(StatusCode::BAD_REQUEST))
}
