//! Writes beside a read without an answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use netpold_core::lock::lock;
use netpold_core::model::{Change, Peer, Requirement, Selector};
use netpold_slices::MAX_PODS;
use netpold_testkit::objects;
use serde_json::{Value, json};

use super::*;

const LONGEST: Duration = Duration::from_secs(8);

/// API server of slices. The first write of `peers-0` fails, and reads of single slices wait.
#[derive(Default)]
struct FakeServer {
    slices: BTreeMap<String, Value>,
    version: u64,
    has_failed: bool,
    /// Number of reads of single slices that have begun.
    reads: usize,
    /// Whether they are answered.
    answers: bool,
}

type Shared = Arc<Mutex<FakeServer>>;

impl FakeServer {
    fn store(&mut self, name: &str, slice: &[u8]) -> Response {
        if name == "peers-0" && !std::mem::replace(&mut self.has_failed, true) {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
        self.version += 1;
        let mut slice: Value = serde_json::from_slice(slice).unwrap();
        slice["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.slices.insert(name.to_owned(), slice.clone());
        answer(&slice)
    }
}

fn answer(object: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], object.to_string()).into_response()
}

async fn list(State(server): State<Shared>, uri: Uri) -> Response {
    let name = uri.query().and_then(|query| query.split_once("metadata.name%3D"));
    let name = name.map(|(_, rest)| rest.split('&').next().unwrap_or_default());
    if name.is_some() {
        lock(&server).reads += 1;
    }
    while name.is_some() && !lock(&server).answers {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let server = lock(&server);
    let items = server.slices.iter().filter(|(of, _)| name.is_none_or(|name| name == *of));
    let items: Vec<&Value> = items.map(|(_, slice)| slice).collect();
    answer(&json!({
        "apiVersion": "netpold.io/v1alpha1", "kind": "PeerSliceList", "metadata": {}, "items": items,
    }))
}

async fn create(State(server): State<Shared>, slice: Bytes) -> Response {
    let object: Value = serde_json::from_slice(&slice).unwrap();
    lock(&server).store(object["metadata"]["name"].as_str().unwrap(), &slice)
}

async fn replace(State(server): State<Shared>, Path(name): Path<String>, slice: Bytes) -> Response {
    lock(&server).store(&name, &slice)
}

fn client(server: &Shared) -> Client {
    let all = "/apis/netpold.io/v1alpha1/peerslices";
    let router = Router::new()
        .route(all, get(list).post(create))
        .route(&format!("{all}/{{name}}"), put(replace))
        .with_state(Arc::clone(server));
    Client::new(router, "default")
}

fn pod(number: usize, a: &str) -> Change {
    let address = format!("10.0.{}.{}", number / 250, number % 250 + 1);
    Change::Pod(objects::pod("x", &format!("p{number:03}"), &[("a", a)], &[&address]))
}

fn input(changes: Vec<Change>) -> PeerInput {
    PeerInput { at: Instant::now(), changes, in_sync: true, version: 1 }
}

/// Waits until the condition holds.
async fn wait(server: &Shared, what: &str, condition: impl Fn(&FakeServer) -> bool) {
    let begin = Instant::now();
    while !condition(&lock(server)) {
        assert!(begin.elapsed() < LONGEST, "not {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn writes_go_on_while_a_slice_is_read() {
    let server = Shared::default();
    let (inputs, input_receiver) = mpsc::unbounded_channel();
    let (_status, source) = watch::channel(SourceStatus::default());
    let leading = ElectionView::for_ever();
    let slices = PeerSlices::new(client(&server), leading, input_receiver, source);
    tokio::spawn(slices.run());
    let pods = Selector { requirements: vec![Requirement::Exists("a".into())] };
    let peers = Some(vec![Peer::Pods { namespaces: None, pods }]);
    let rules = Some(vec![objects::rule(peers, None)]);
    let policy = objects::policy("x", "p", Selector::default(), rules, None);
    let pods = (0..3 * MAX_PODS).map(|number| pod(number, "first"));
    let all = [Change::Policy(policy)].into_iter().chain(pods).collect();
    inputs.send(input(all)).unwrap();
    wait(&server, "reading", |server| server.reads > 0).await;
    assert!(!lock(&server).slices.contains_key("peers-0"));
    inputs.send(input(vec![pod(2 * MAX_PODS, "second")])).unwrap();
    let has = |server: &FakeServer, name: &str, label: &str| {
        server.slices.get(name).is_some_and(|slice| slice.to_string().contains(label))
    };
    wait(&server, "written", |server| has(server, "peers-2", "second")).await;
    assert!(!lock(&server).slices.contains_key(HEARTBEAT), "the state of a slice is unknown");
    lock(&server).answers = true;
    wait(&server, "written again", |server| has(server, "peers-0", "first")).await;
    wait(&server, "renewed", |server| server.slices.contains_key(HEARTBEAT)).await;
}
