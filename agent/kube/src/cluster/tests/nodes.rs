//! This node is followed until policy depends on others; nothing is judged without them from then on.

use netpold_core::model::Node as ClusterNode;

use super::*;

/// Selector of the requests for this node.
const OWN: &str = "fieldSelector=metadata.name%3Dn";

/// A ClusterNetworkPolicy that denies traffic to nodes.
fn denial(version: &str) -> Value {
    let mut policy = object(None, "deny", version);
    let egress = json!([{ "action": "Deny", "to": [{ "nodes": {} }] }]);
    let subject = json!({ "namespaces": {} });
    policy["spec"] =
        json!({ "tier": "Admin", "priority": 1, "subject": subject, "egress": egress });
    policy
}

/// A pod that claims an address on a further network.
fn claimant(version: &str, address: &str) -> Value {
    let mut pod = object(Some("x"), "claimant", version);
    let status = json!([{ "name": "storage", "interface": "net1", "ips": [address] }]);
    pod["metadata"]["annotations"] =
        json!({ "k8s.v1.cni.cncf.io/network-status": status.to_string() });
    pod
}

/// Returns the nodes for a request, by its selector.
fn nodes(query: &str) -> Answer {
    match query {
        _ if query.contains("watch=true") => Answer(200, vec![], true),
        _ if query.contains(OWN) => list(vec![object(None, "n", "1")], "1"),
        _ => list(vec![object(None, "n", "1"), object(None, "other", "1")], "2"),
    }
}

fn name(change: &Change) -> Option<&str> {
    let Change::Node(ClusterNode { name, .. }) = change else { return None };
    Some(name)
}

async fn followed(server: &Server) -> (ObjectStream, TempDir) {
    server.watched_of(FollowedNodes::Needed, true, PATIENCE).await
}

#[tokio::test(flavor = "multi_thread")]
async fn other_nodes_are_not_followed_without_a_need() {
    let server = Server::start(|resource, query, _| match resource {
        "nodes" => nodes(query),
        _ => without_objects(query),
    });
    let (mut source, _directory) = followed(&server).await;
    until(&mut source, |batch, said| {
        assert!(said.iter().all(|change| name(change) == Some("n")), "{said:?}");
        batch.in_sync
    })
    .await;
    assert_eq!(server.requests("nodes "), server.requests(OWN));
}

/// One annotation of one pod must not cost every agent a list of all nodes.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_cannot_count_lists_no_nodes() {
    let server = Server::start(|resource, query, _| match (resource, query) {
        ("nodes", query) => nodes(query),
        ("pods", query) if query.contains("watch=true") => {
            Answer(200, vec![event("ADDED", claimant("2", "8.8.8.8"))], true)
        }
        _ => without_objects(query),
    });
    let (mut source, _directory) = followed(&server).await;
    let is_claimant =
        |change: &&Change| matches!(change, Change::Pod(pod) if &*pod.key.name == "claimant");
    until(&mut source, |_, said| said.iter().any(is_claimant)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(server.requests("nodes "), server.requests(OWN));
}

/// The server fails lists of all nodes at first.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_state_with_a_need_waits_for_all_nodes() {
    let server = Server::start(|resource, query, before| match (resource, query) {
        ("nodes", query) if !query.contains(OWN) && before < 3 => status(503, "Unavailable"),
        ("nodes", query) => nodes(query),
        ("clusternetworkpolicies", query) if !query.contains("watch=true") => {
            list(vec![denial("1")], "1")
        }
        _ => without_objects(query),
    });
    let (mut source, _directory) = followed(&server).await;
    until(&mut source, |batch, said| {
        let other = said.iter().any(|change| name(change) == Some("other"));
        assert!(!batch.in_sync || other, "in sync without the other node: {said:?}");
        batch.in_sync
    })
    .await;
}

/// Objects that other nodes matter for come later, and the server fails lists of all nodes at first.
#[tokio::test(flavor = "multi_thread")]
async fn what_allows_too_much_without_all_nodes_comes_with_them() {
    let scripts: [Script; 2] = [
        |resource, query, before| match (resource, query) {
            ("nodes", query) if !query.contains(OWN) && before < 3 => status(503, "Unavailable"),
            ("nodes", query) => nodes(query),
            ("clusternetworkpolicies", query) if query.contains("watch=true") => {
                Answer(200, vec![event("ADDED", denial("2"))], true)
            }
            _ => without_objects(query),
        },
        |resource, query, before| match (resource, query) {
            ("nodes", query) if !query.contains(OWN) && before < 3 => status(503, "Unavailable"),
            ("nodes", query) => nodes(query),
            ("pods", query) if query.contains("watch=true") => {
                Answer(200, vec![event("ADDED", claimant("2", "10.9.0.2"))], true)
            }
            _ => without_objects(query),
        },
    ];
    for script in scripts {
        let server = Server::start(script);
        let (mut source, _directory) = followed(&server).await;
        let networks = SecondaryNetworks::default();
        let depends = |change: &&&Change| node_use::depends_on_nodes(change, &networks);
        until(&mut source, |batch, said| {
            let other = said.iter().any(|change| name(change) == Some("other"));
            let found = said.iter().find(depends);
            assert!(!batch.in_sync || other || found.is_none(), "before all nodes: {found:?}");
            found.is_some() && other
        })
        .await;
    }
}
