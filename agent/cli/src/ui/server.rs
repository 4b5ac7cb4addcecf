//! HTTP server of the page: its files, and one route for each question.

use std::convert::Infallible;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use clap::ValueEnum;
use futures::stream::unfold;
use netpold_api::flows::{FlowFilter, merge};
use netpold_api::rules::{RulesAnswer, merge as merge_rules};
use netpold_client::live;
use netpold_client::printable_document::printable_json;
use netpold_core::printable::printable;
use netpold_core::probe::IpProtocol;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::access::AccessCheck;
use super::follow::{self, FollowQuestion};
use super::queue::{self, ChangeQueue, EndsOnDrop};
use super::snapshot::{ObjectSnapshot, ObjectSource};
use super::what_if::{self, WhatIf};
use super::{answers, in_force, map, page};
use crate::init::{self, Preset};
use netpold_core::lock::lock;

/// Longest body of a request, in bytes.
const BODY: usize = 4 << 20;
/// Time for a request's body to arrive.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most questions answered at once, beside a change to judge.
const AT_ONCE: usize = 4;
/// Most streams of events.
const STREAMS: usize = 4;
/// Capacity of a stream, in events.
const EVENTS: usize = 256;
/// Most flows of each node on the map.
const FLOWS: u32 = 20_000;

/// What the page may load, and from where: its own files. Scripts cannot turn text into markup (Trusted Types).
const CONTENT_SECURITY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of each response.
const HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// State of the server.
pub(super) struct UiServer {
    source: ObjectSource,
    world: Mutex<Arc<ObjectSnapshot>>,
    /// Held while the objects are read: a revision belongs to one reading.
    reading: Arc<tokio::sync::Mutex<()>>,
    work: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    changes: ChangeQueue,
}

type SharedServer = Arc<UiServer>;
/// Answer, or status and reason.
type UiAnswer = Result<Value, (StatusCode, String)>;

impl UiServer {
    pub(super) fn new(source: ObjectSource, world: ObjectSnapshot) -> SharedServer {
        Arc::new(Self {
            source,
            world: Mutex::new(Arc::new(world)),
            reading: Arc::default(),
            work: Arc::new(Semaphore::new(AT_ONCE)),
            streams: Arc::new(Semaphore::new(STREAMS)),
            changes: ChangeQueue::default(),
        })
    }

    /// Returns the routes, behind the checks of access.
    pub(super) fn router(self: SharedServer, access: AccessCheck) -> Router {
        let mut router = Router::new();
        for file in page::FILES {
            let content = ([(header::CONTENT_TYPE, file.media)], file.text);
            router = router.route(file.path, get(async move || content));
        }
        let questions = Router::new()
            .route("/api/map", post(answer_map))
            .route("/api/flows", post(answer_flows))
            .route("/api/edge", post(answer_edge))
            .route("/api/workload", post(answer_workload))
            .route("/api/rules", post(answer_rules))
            .route("/api/what-if", post(answer_what_if))
            .route("/api/preset", post(answer_preset))
            .route("/api/learn", post(answer_learn))
            .route("/api/in-force", post(answer_in_force))
            .route("/api/doctor", post(answer_doctor))
            .route("/api/follow", post(answer_follow));
        let questions = questions.layer(from_fn_with_state(access.clone(), check_token));
        router.merge(questions).layer(from_fn_with_state(access, check_sender)).with_state(self)
    }

    fn world(&self) -> Arc<ObjectSnapshot> {
        Arc::clone(&lock(&self.world))
    }

    /// Returns the objects of a reading, for indexes of the map of that reading.
    fn world_of(&self, revision: u64) -> Result<Arc<ObjectSnapshot>, (StatusCode, String)> {
        let world = self.world();
        match world.revision == revision {
            true => Ok(world),
            false => {
                Err((StatusCode::CONFLICT, "the objects were read anew: reload the map".into()))
            }
        }
    }

    /// Reads the objects again, unless a reading began after the question at revision `asked`: a reading that was under
    /// way then had the next revision. One reading at a time, see `reading`.
    fn read_again(&self, asked: u64) -> Result<Arc<ObjectSnapshot>> {
        let present = self.world();
        if present.revision >= asked + 2 {
            return Ok(present);
        }
        let next = Arc::new(self.source.read(present.revision + 1)?);
        *lock(&self.world) = Arc::clone(&next);
        Ok(next)
    }
}

/// Checks the sender, and adds the headers of each response.
async fn check_sender(State(access): State<AccessCheck>, request: Request, next: Next) -> Response {
    let mut response = match access.check_sender(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refuse(StatusCode::FORBIDDEN, refusal.text()),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn check_token(State(access): State<AccessCheck>, request: Request, next: Next) -> Response {
    match access.check_token(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refuse(StatusCode::UNAUTHORIZED, refusal.text()),
    }
}

fn refuse(status: StatusCode, reason: &str) -> Response {
    let document = json!({ "error": printable(reason) });
    (status, [(header::CONTENT_TYPE, "application/json")], document.to_string()).into_response()
}

/// Reads a question: JSON, of at most [`BODY`] bytes.
async fn read<Q: DeserializeOwned>(request: Request) -> Result<Q, (StatusCode, String)> {
    let media = request.headers().get(header::CONTENT_TYPE);
    if media.is_none_or(|media| media.as_bytes() != b"application/json") {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "send application/json".into()));
    }
    let body = timeout(PATIENCE, to_bytes(request.into_body(), BODY)).await;
    let body = body.map_err(|_| (StatusCode::REQUEST_TIMEOUT, "no body arrived".into()))?;
    let body = body.map_err(|_| {
        (StatusCode::PAYLOAD_TOO_LARGE, format!("a request has at most {} MiB", BODY >> 20))
    })?;
    serde_json::from_slice(&body).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))
}

/// Answers a question on a thread that may block; a few at once.
async fn work<Q: DeserializeOwned + Send + 'static>(
    server: SharedServer,
    request: Request,
    answer: impl FnOnce(&UiServer, Q) -> UiAnswer + Send + 'static,
) -> Response {
    match read(request).await {
        Ok(question) => work_on(server, question, answer).await,
        Err((status, reason)) => refuse(status, &reason),
    }
}

async fn work_on<Q: Send + 'static>(
    server: SharedServer,
    question: Q,
    answer: impl FnOnce(&UiServer, Q) -> UiAnswer + Send + 'static,
) -> Response {
    let Ok(permit) = Arc::clone(&server.work).acquire_owned().await else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "the server ends");
    };
    blocking(move || {
        let _permit = permit;
        answer(&server, question)
    })
    .await
}

async fn blocking(answer: impl FnOnce() -> UiAnswer + Send + 'static) -> Response {
    let rendered = tokio::task::spawn_blocking(move || {
        answer().map(|mut document| {
            let text = document.as_object_mut().and_then(|fields| fields.remove(YAML));
            printable_json(&mut document);
            if let (Some(text), Some(fields)) = (text, document.as_object_mut()) {
                fields.insert(YAML.to_owned(), text);
            }
            document.to_string()
        })
    });
    match rendered.await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Ok(Err((status, reason))) => refuse(status, &reason),
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the answer failed"),
    }
}

/// Field with a text of several lines.
const YAML: &str = "yaml";

fn failed(error: anyhow::Error) -> (StatusCode, String) {
    (StatusCode::UNPROCESSABLE_ENTITY, format!("{error:#}"))
}

fn needs_agents(server: &UiServer) -> Result<(), (StatusCode, String)> {
    match server.source.is_live() {
        true => Ok(()),
        false => Err((StatusCode::NOT_FOUND, "manifests have no agents to ask".into())),
    }
}

/// A question without parts.
#[derive(Deserialize)]
struct NoQuestion {}

#[derive(Deserialize)]
struct MapQuestion {
    /// Whether the objects are read again.
    #[serde(default)]
    fresh: bool,
}

async fn answer_map(State(server): State<SharedServer>, request: Request) -> Response {
    let fresh = match read(request).await {
        Ok(MapQuestion { fresh }) => fresh,
        Err((status, reason)) => return refuse(status, &reason),
    };
    let asked = server.world().revision;
    // The turn is taken before a thread: readings that wait keep no other question from its thread.
    let turn = match fresh {
        true => Some(Arc::clone(&server.reading).lock_owned().await),
        false => None,
    };
    work_on(server, turn, move |server, turn| {
        let world = match &turn {
            Some(_) => server.read_again(asked).map_err(failed)?,
            None => server.world(),
        };
        drop(turn);
        Ok(map::document(&world, server.source.is_live()))
    })
    .await
}

#[derive(Deserialize)]
struct ReadingNumber {
    revision: u64,
}

async fn answer_flows(State(server): State<SharedServer>, request: Request) -> Response {
    work(server, request, |server, question: ReadingNumber| {
        needs_agents(server)?;
        let world = server.world_of(question.revision)?;
        let all = netpold_client::flows::ask_cluster(
            &server.source.cluster,
            &FlowFilter::default(),
            Some(FLOWS),
        );
        let all = all.map_err(failed)?;
        let unanswered = all.unanswered();
        let mut document = map::flows(&world, &merge(all.answers));
        document["unanswered"] = json!(unanswered);
        Ok(document)
    })
    .await
}

#[derive(Deserialize)]
struct EdgeQuestion {
    revision: u64,
    from: usize,
    to: usize,
    protocol: Option<IpProtocol>,
    port: Option<u16>,
}

async fn answer_edge(State(server): State<SharedServer>, request: Request) -> Response {
    work(server, request, |server, question: EdgeQuestion| {
        let world = server.world_of(question.revision)?;
        let kind = question.protocol.map(|protocol| (protocol, question.port.unwrap_or(0)));
        answers::explain_pair(&world, (question.from, question.to), kind).map_err(failed)
    })
    .await
}

#[derive(Deserialize)]
struct WorkloadQuestion {
    revision: u64,
    id: usize,
}

async fn answer_workload(State(server): State<SharedServer>, request: Request) -> Response {
    work(server, request, |server, question: WorkloadQuestion| {
        let world = server.world_of(question.revision)?;
        answers::describe_party(&world, question.id).map_err(failed)
    })
    .await
}

async fn answer_rules(State(server): State<SharedServer>, request: Request) -> Response {
    work(server, request, |server, _: NoQuestion| {
        needs_agents(server)?;
        let all =
            live::request_all::<RulesAnswer>(&server.source.cluster, &["rules", "-o", "json"]);
        let all = all.map_err(failed)?;
        let unanswered = all.unanswered();
        serde_json::to_value(merge_rules(all.answers, unanswered)).map_err(|it| failed(it.into()))
    })
    .await
}

async fn answer_what_if(State(server): State<SharedServer>, request: Request) -> Response {
    let change: WhatIf = match read(request).await {
        Ok(change) => change,
        Err((status, reason)) => return refuse(status, &reason),
    };
    if change.page.len() > queue::NAME {
        return refuse(StatusCode::BAD_REQUEST, "the name of the page is too long");
    }
    let Some(turn) = server.changes.wait_for_turn(&change.page).await else {
        return refuse(StatusCode::CONFLICT, "a newer change was sent");
    };
    let ended = Arc::new(AtomicBool::new(false));
    let _ends = EndsOnDrop(Arc::clone(&ended));
    blocking(move || {
        let _turn = turn;
        what_if::compare_change(&server.source, &server.world(), &change, &ended).map_err(failed)
    })
    .await
}

#[derive(Deserialize)]
struct PresetQuestion {
    preset: String,
    namespace: String,
    #[serde(default)]
    enforce: bool,
}

async fn answer_preset(State(server): State<SharedServer>, request: Request) -> Response {
    work(server, request, |_, question: PresetQuestion| {
        let preset = Preset::from_str(&question.preset, false);
        let preset = preset.map_err(|error| (StatusCode::BAD_REQUEST, error))?;
        let text = init::policies(preset, &question.namespace, question.enforce).map_err(failed)?;
        Ok(json!({ YAML: text, "warning": preset.warning(&question.namespace) }))
    })
    .await
}

#[derive(Deserialize)]
struct LearnQuestion {
    namespace: String,
}

async fn answer_learn(State(server): State<SharedServer>, request: Request) -> Response {
    work(server, request, |server, question: LearnQuestion| {
        needs_agents(server)?;
        answers::learn_policies(&server.source, &question.namespace).map_err(failed)
    })
    .await
}

async fn answer_in_force(State(server): State<SharedServer>, request: Request) -> Response {
    work(server, request, |server, _: NoQuestion| {
        in_force::document(&server.source, &server.world()).map_err(failed)
    })
    .await
}

async fn answer_doctor(State(server): State<SharedServer>, request: Request) -> Response {
    work(server, request, |server, _: NoQuestion| {
        answers::doctor_report(&server.source, &server.world()).map_err(failed)
    })
    .await
}

/// Answers with a stream of server-sent events.
async fn answer_follow(State(server): State<SharedServer>, request: Request) -> Response {
    let begun = async {
        let question: FollowQuestion = read(request).await?;
        needs_agents(&server)?;
        let wanted = question.request();
        let wanted = wanted.map_err(|error| (StatusCode::BAD_REQUEST, format!("{error:#}")))?;
        let permit = Arc::clone(&server.streams).try_acquire_owned();
        let permit = permit.map_err(|_| {
            let reason = format!("{STREAMS} streams are open: close another page");
            (StatusCode::TOO_MANY_REQUESTS, reason)
        })?;
        Ok((wanted, permit))
    };
    let (wanted, permit) = match begun.await {
        Ok(begun) => begun,
        Err((status, reason)) => return refuse(status, &reason),
    };
    let (sender, receiver) = mpsc::channel(EVENTS);
    let (cluster, world) = (server.source.cluster.clone(), server.world());
    tokio::spawn(async move {
        let _permit = permit;
        if let Err(error) = follow::send(cluster, world, wanted, sender.clone()).await {
            let problem = json!({ "problem": printable(&format!("{error:#}")) });
            let _ = sender.send(format!("data: {problem}\n\n")).await;
        }
    });
    let events = unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|event| (Ok::<_, Infallible>(event), receiver))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}
