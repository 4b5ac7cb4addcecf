//! Cases that the API server of the other tests (1.20) does not produce: rare answers, and objects that no server
//! admits. A scripted server sends them.

mod hostile;
mod nodes;
mod own_pods;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netpold_api::source::SourceStatus;
use netpold_core::model::{Change, Policy};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::Batch;

const PATIENCE: Duration = Duration::from_secs(30);

/// A scripted answer: a status (0: no answer at all), and lines of JSON; a watch stays open after them.
struct Answer(u16, Vec<Value>, bool);

/// Returns the answer to a resource's request, by its query and the number of earlier such requests.
type Script = fn(resource: &str, query: &str, before: usize) -> Answer;

struct Server {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&seen);
                std::thread::spawn(move || answer(stream, script, &seen));
            }
        });
        Self { url, requests }
    }

    async fn watched(&self) -> (ObjectStream, TempDir) {
        self.watched_with(true).await
    }

    async fn watched_with(&self, cluster_policies: bool) -> (ObjectStream, TempDir) {
        self.watched_for(cluster_policies, PATIENCE).await
    }

    async fn watched_for(
        &self,
        cluster_policies: bool,
        timeout: Duration,
    ) -> (ObjectStream, TempDir) {
        self.watched_of(FollowedNodes::All, cluster_policies, timeout).await
    }

    async fn watched_of(
        &self,
        nodes: FollowedNodes,
        cluster_policies: bool,
        timeout: Duration,
    ) -> (ObjectStream, TempDir) {
        self.watched_by((nodes, FollowedPeers::Pods), cluster_policies, timeout).await
    }

    async fn watched_by(
        &self,
        (nodes, peers): (FollowedNodes, FollowedPeers),
        cluster_policies: bool,
        timeout: Duration,
    ) -> (ObjectStream, TempDir) {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("kubeconfig");
        let config = json!({
            "clusters": [{ "name": "c", "cluster": { "server": self.url } }],
            "users": [{ "name": "u", "user": {} }],
            "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
            "current-context": "x",
        });
        std::fs::write(&path, config.to_string()).unwrap();
        let access = Access { kubeconfig: Some(path), as_kubectl: false, context: None, timeout };
        let settings = WatchSettings {
            access,
            node: "n".into(),
            nodes,
            secondary_networks: SecondaryNetworks::default(),
            peers,
            cluster_policies,
        };
        let (source, _) = watch(settings).await.unwrap();
        (source, directory)
    }

    fn requests(&self, part: &str) -> usize {
        self.requests
            .lock()
            .unwrap()
            .iter()
            .filter(|request| format!("/{request}").contains(part))
            .count()
    }
}

fn answer(mut stream: TcpStream, script: Script, seen: &Mutex<Vec<String>>) {
    let mut head = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
    let request = head.next().unwrap();
    let head = head.take_while(|line| !line.is_empty());
    let headers: String = head.map(|line| format!("{}\n", line.to_lowercase())).collect();
    let uri = request.split(' ').nth(1).unwrap().to_owned();
    let (path, query) = uri.split_once('?').unwrap_or((&uri, ""));
    let resource = path.rsplit('/').next().unwrap();
    let kind =
        format!("{resource} {}", if query.contains("watch=true") { "watch" } else { "list" });
    let before = {
        let mut seen = seen.lock().unwrap();
        let before = seen.iter().filter(|s| s.starts_with(&kind)).count();
        seen.push(format!("{kind} {query}\n{headers}"));
        before
    };
    let Answer(code, lines, open) = script(resource, query, before);
    if code == 0 {
        return std::thread::sleep(PATIENCE * 2);
    }
    let head = format!(
        "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    for line in lines {
        let mut line = format!("{}\n", hostile(line.to_string()));
        let cut = line.find(CUT);
        line.truncate(cut.unwrap_or(line.len()));
        let _ = stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes());
        if cut.is_some() {
            return;
        }
    }
    if open {
        std::thread::sleep(PATIENCE * 2);
    }
    let _ = stream.write_all(b"0\r\n\r\n");
}

/// A value at which an answer and its connection end.
const CUT: &str = "\"@cut\"";

/// Replaces placeholder words by values that `serde_json` cannot hold.
fn hostile(mut line: String) -> String {
    for (word, value) in [
        ("\"@deep\"", || "[".repeat(100_000) + &"]".repeat(100_000)),
        ("@huge", || "x".repeat(split::PART_MAX)),
        ("\"@twice\":1", || "\"namespace\":\"y\",\"namespace\":\"z\"".to_owned()),
    ] as [(&str, fn() -> String); 3]
    {
        if line.contains(word) {
            line = line.replace(word, &value());
        }
    }
    line
}

fn status(code: u16, reason: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": reason,
    });
    Answer(code, vec![status], false)
}

fn object(namespace: Option<&str>, name: &str, version: &str) -> Value {
    let mut meta = json!({ "name": name, "resourceVersion": version, "uid": name });
    if let Some(namespace) = namespace {
        meta["namespace"] = namespace.into();
    }
    json!({ "metadata": meta, "spec": { "podSelector": {}, "containers": [] } })
}

fn list(items: Vec<Value>, version: &str) -> Answer {
    Answer(200, vec![json!({ "metadata": { "resourceVersion": version }, "items": items })], false)
}

fn event(kind: &str, object: Value) -> Value {
    json!({ "type": kind, "object": object })
}

async fn next(source: &mut ObjectStream) -> Batch {
    tokio::time::timeout(PATIENCE, source.batches.recv()).await.unwrap().unwrap()
}

/// Receives batches until the last versions of the objects fulfil a condition.
async fn until(source: &mut ObjectStream, done: impl Fn(&Batch, &[&Change]) -> bool) {
    let mut said = BTreeMap::new();
    loop {
        let batch = next(source).await;
        said.extend(batch.changes.iter().map(|c| (format!("{:?}", c.removal()), c.clone())));
        if done(&batch, &said.values().collect::<Vec<_>>()) {
            return;
        }
    }
}

async fn wait(
    source: &mut ObjectStream,
    condition: impl FnMut(&SourceStatus) -> bool,
) -> SourceStatus {
    let found = tokio::time::timeout(PATIENCE, source.status.wait_for(condition)).await;
    found.unwrap().unwrap().clone()
}

/// Compression and the omission of managed fields are requested in every list and watch of an agent.
#[tokio::test(flavor = "multi_thread")]
async fn answers_are_requested_without_managed_fields_and_compressed() {
    let server = Server::start(|_, query, _| without_objects(query));
    let (mut source, _directory) = server.watched().await;
    wait(&mut source, |status| status.in_sync).await;
    // One copy: requests of watches continue while it is read.
    let requests = server.requests.lock().unwrap().clone();
    for header in
        ["accept: application/json;drop=metadata.managedfields\n", "accept-encoding: gzip\n"]
    {
        assert!(requests.iter().all(|request| request.contains(header)), "{requests:?}");
    }
    assert_eq!(server.requests("/pods list "), 1, "a list, not a streaming one");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_went_between_two_lists_is_gone() {
    let server =
        Server::start(|resource, query, before| match (resource, query.contains("watch=true")) {
            ("pods", false) if before == 0 => list(vec![object(Some("x"), "a", "1")], "1"),
            ("pods", false) => list(vec![object(Some("x"), "b", "2")], "2"),
            // The 410 is the answer itself, not an event of a watch that began.
            ("pods", true) if query.contains("resourceVersion=1") => status(410, "Expired"),
            (_, true) => Answer(200, vec![], true),
            (_, false) => list(vec![], "1"),
        });
    let (mut source, _directory) = server.watched().await;
    until(&mut source, |batch, _| batch.in_sync).await;
    let batch = next(&mut source).await;
    assert!(
        matches!(&batch.changes[..], [Change::PodGone(a), Change::Pod(b)] if a.name == "a" && b.key.name == "b"),
        "in one batch: {:?}",
        batch.changes
    );
    let status = wait(&mut source, |status| status.problems.is_empty()).await;
    let pods = status.kinds.iter().find(|kind| kind.kind == "pods").unwrap();
    assert_eq!((pods.lists, pods.restarts, pods.objects), (2, 1, 1), "{pods:?}");
}

/// Answers for a kind without objects.
fn without_objects(query: &str) -> Answer {
    match query {
        _ if query.contains("watch=true") => Answer(200, vec![], true),
        _ => list(vec![], "1"),
    }
}

const SILENCE: Duration = Duration::from_secs(1);

/// Nothing changes, and with an etcd that reports no progress the server sends no bookmarks.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_watch_is_no_fault() {
    let server = Server::start(|_, query, _| without_objects(query));
    let (mut source, _directory) = server.watched_for(true, SILENCE).await;
    wait(&mut source, |status| status.in_sync).await;
    let asked_again = async {
        while server.requests("/pods watch ") < 4 {
            assert_eq!(source.status.borrow().problems, []);
            tokio::time::sleep(SILENCE / 10).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked_again).await.unwrap();
    let status = source.status.borrow().clone();
    assert!(status.kinds.iter().all(|kind| kind.restarts == 0), "{:?}", status.kinds);
}

/// A silent watch is a fault if the repeated request is not answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_whose_server_hangs_is_reported() {
    let server = Server::start(|resource, query, before| match resource {
        "pods" if query.contains("watch=true") && before > 0 => Answer(0, vec![], true),
        _ => without_objects(query),
    });
    let (mut source, _directory) = server.watched_for(true, SILENCE).await;
    let status = wait(&mut source, |status| !status.problems.is_empty()).await;
    let problems: Vec<String> = status.problems.iter().map(ToString::to_string).collect();
    assert!(problems[0].starts_with("cannot watch pods: http://"), "{problems:?}");
    assert!(problems[0].ends_with("has been silent for 1 s"), "{problems:?}");
}

/// "Not found" for a kind that every server has does not mean "there are none".
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_policies_is_not_believed() {
    let server = Server::start(|resource, query, _| match resource {
        "networkpolicies" | "endpointslices" => status(404, "NotFound"),
        _ => without_objects(query),
    });
    let (mut source, _directory) = server.watched().await;
    let status = wait(&mut source, |status| {
        status.kinds.iter().filter(|kind| kind.in_sync).count() == 6
            && status.kinds.iter().any(|kind| kind.restarts > 1)
    })
    .await;
    assert!(!status.in_sync);
    let problems: Vec<String> = status.problems.iter().map(ToString::to_string).collect();
    assert!(problems[0].starts_with("cannot list networkpolicies.networking.k8s.io: http://"));
    assert!(problems[1].ends_with("does not serve it; it counts as empty"), "{problems:?}");
}

const CLUSTER_POLICIES: &str = "clusternetworkpolicies.policy.networking.k8s.io";

fn cluster_policies(status: &SourceStatus) -> &KindStatus {
    status.kinds.iter().find(|kind| kind.kind == CLUSTER_POLICIES).unwrap()
}

/// Most clusters lack ClusterNetworkPolicies: that is not a problem, and nothing waits for them.
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_not_installed_is_nothing_to_report() {
    let server = Server::start(|resource, query, _| match resource {
        "clusternetworkpolicies" => status(404, "NotFound"),
        _ => without_objects(query),
    });
    let (mut source, _directory) = server.watched().await;
    let status = wait(&mut source, |status| status.in_sync).await;
    let kind = cluster_policies(&status);
    assert_eq!((kind.served, kind.in_sync, kind.restarts), (false, true, 0), "{kind:?}");
    assert_eq!(status.problems, []);
}

/// If ClusterNetworkPolicies are served, nothing is in sync before they are listed.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_in_sync_before_cluster_policies_are_known() {
    let server = Server::start(|resource, query, before| match resource {
        "clusternetworkpolicies" if before < 3 => status(503, "ServiceUnavailable"),
        _ if query.contains("watch=true") => Answer(200, vec![], true),
        "clusternetworkpolicies" => list(vec![object(None, "deny", "1")], "1"),
        _ => list(vec![], "1"),
    });
    let (mut source, _directory) = server.watched().await;
    until(&mut source, |batch, said| {
        assert!(!batch.in_sync || !said.is_empty());
        batch.in_sync && matches!(said, [Change::ClusterPolicy(policy)] if policy.name == "deny")
    })
    .await;
    assert!(server.requests("clusternetworkpolicies list ") > 3);
}

/// Missing permissions are reported, and do not keep the other kinds from being enforced.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_policies_that_may_not_be_read_hold_nothing_back() {
    let server = Server::start(|resource, query, _| match resource {
        "clusternetworkpolicies" => status(403, "Forbidden"),
        _ => without_objects(query),
    });
    let (mut source, _directory) = server.watched().await;
    let status = wait(&mut source, |status| status.in_sync).await;
    let kind = cluster_policies(&status);
    assert!(!kind.in_sync && kind.restarts >= 3, "{kind:?}");
    let problems: Vec<String> = status.problems.iter().map(ToString::to_string).collect();
    assert!(problems[0].contains("grant it (deploy/base/rbac.yaml); its last known objects stay"));
    assert_eq!(problems.len(), 1, "{problems:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_policies_are_not_asked_for_where_they_are_off() {
    let server = Server::start(|_, query, _| without_objects(query));
    let (mut source, _directory) = server.watched_with(false).await;
    let status = wait(&mut source, |status| status.in_sync).await;
    assert_eq!(status.kinds.len(), 6);
    assert_eq!(server.requests("clusternetworkpolicies"), 0);
}

/// For an unknown API group a server answers "404 page not found"; so does a proxy.
#[tokio::test(flavor = "multi_thread")]
async fn whether_a_group_is_missing_is_in_the_list_of_groups() {
    let server = Server::start(|resource, query, _| match resource {
        "clusternetworkpolicies" => Answer(404, vec![json!("404 page not found")], false),
        "apis" => {
            let version = json!([{
                "groupVersion": "policy.networking.k8s.io/v1alpha1", "version": "v1alpha1",
            }]);
            let group = json!({ "name": "policy.networking.k8s.io", "versions": version });
            Answer(200, vec![json!({ "kind": "APIGroupList", "groups": [group] })], false)
        }
        _ => without_objects(query),
    });
    let (mut source, _directory) = server.watched().await;
    let status = wait(&mut source, |status| status.in_sync).await;
    assert_eq!(status.problems, []);
    assert!(!cluster_policies(&status).served && server.requests("/apis ") == 1);
}
