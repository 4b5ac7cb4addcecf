use netpold_core::model::{Change, Key, Pod};
use netpold_testkit::objects;

use super::CniAddresses;
use super::cache::{CniResult, parse};

/// Format of containerd's libcni, which repeats the arguments.
fn file(uid: &str, addresses: &[&str]) -> String {
    let ips: Vec<_> = addresses
        .iter()
        .map(|a| serde_json::json!({ "address": a, "interface": 2 }))
        .chain([serde_json::json!({ "address": "10.0.0.1/24", "interface": 0 })])
        .collect();
    serde_json::json!({
        "kind": "cniCacheV1",
        "containerId": "3f69",
        "config": "e30=",
        "ifName": "eth0",
        "networkName": "cbr0",
        "netns": "/var/run/netns/x",
        "cniArgs": [
            ["IgnoreUnknown", "true"], ["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web"],
            ["K8S_POD_UID", uid],
        ],
        "result": {
            "cniVersion": "1.0.0",
            "interfaces": [
                { "name": "cni0" }, { "name": "veth1" }, { "name": "eth0", "sandbox": "/var/run/netns/x" },
            ],
            "ips": ips,
            "dns": {},
        },
    })
    .to_string()
}

fn result(uid: &str, addresses: &[&str]) -> CniResult {
    parse(file(uid, addresses).as_bytes()).unwrap().unwrap()
}

fn pod(name: &str, uid: &str, addresses: &[&str]) -> Pod {
    Pod { uid: uid.to_owned(), node: "n1".into(), ..objects::pod("shop", name, &[], addresses) }
}

fn web(addresses: &[&str]) -> Change {
    Change::Pod(pod("web", "u1", addresses))
}

#[test]
fn results_are_read() {
    let read = result("u1", &["10.1.2.3/24", "fd00::3/64"]);
    assert_eq!(read.pod, Key::new("shop", "web"));
    assert_eq!(read.uid, "u1");
    let addresses: Vec<String> = read.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.1.2.3", "fd00::3"], "not that of the bridge");
    assert_eq!(read.interfaces, ["cni0", "veth1"], "on the node's side");
}

#[test]
fn other_files_are_none_of_a_pods_address() {
    let whole = file("u1", &["10.1.2.3/24"]);
    for other in [
        whole.replace("cniCacheV1", "other"),
        whole.replace("K8S_POD_NAME\"", "NAME\""),
        whole.replace("\"ips\"", "\"ip4\""),
    ] {
        assert_ne!(other, whole);
        assert_eq!(parse(other.as_bytes()).unwrap(), None, "{other}");
    }
    let further = whole.replace("\"eth0\",\"kind\"", "\"net1\",\"kind\"");
    assert_ne!(further, whole);
    let further = parse(further.as_bytes()).unwrap().unwrap();
    assert!(further.further && further.interfaces == ["cni0", "veth1"], "of another network");
    assert!(parse(&whole.as_bytes()[..whole.len() / 2]).is_err(), "half a file");
    assert!(parse(b"").is_err());
}

#[test]
fn an_answer_counts_until_there_is_a_status() {
    let mut pods = CniAddresses::new("n1".to_owned());
    assert_eq!(pods.set_results(vec![result("u1", &["10.1.2.3/24"])]), []);
    let mut changes = vec![web(&[])];
    pods.complete(&mut changes);
    assert_eq!(changes, [web(&["10.1.2.3"])]);
    // Labels change: the address stays.
    let mut changes = vec![web(&[])];
    pods.complete(&mut changes);
    assert_eq!(changes, [web(&["10.1.2.3"])]);
    let mut changes = vec![web(&["10.1.2.9"])];
    pods.complete(&mut changes);
    assert_eq!(changes, [web(&["10.1.2.9"])], "the status is believed");
    assert_eq!(pods.set_results(Vec::new()), [], "nothing hangs on it any more");
}

#[test]
fn the_pod_may_be_known_first() {
    let mut pods = CniAddresses::new("n1".to_owned());
    let mut changes = vec![web(&[])];
    pods.complete(&mut changes);
    assert_eq!(changes, [web(&[])]);
    let first = result("u1", &["10.1.2.3/24"]);
    assert_eq!(pods.set_results(vec![first.clone()]), [web(&["10.1.2.3"])]);
    // The sandbox is created again.
    let again = vec![first, result("u1", &["10.1.2.4/24"])];
    assert_eq!(pods.set_results(again), [web(&["10.1.2.4"])]);
    assert_eq!(pods.set_results(Vec::new()), [web(&[])]);
}

#[test]
fn answers_left_behind_are_nobodys() {
    let mut pods = CniAddresses::new("n1".to_owned());
    let former = vec![result("u0", &["10.1.2.3/24"])];
    assert_eq!(pods.set_results(former), []);
    let mut changes = vec![web(&[])];
    pods.complete(&mut changes);
    assert_eq!(changes, [web(&[])], "of a former pod of that name");

    pods.set_results(vec![result("u1", &["10.1.2.3/24"])]);
    // The status of another pod has the address.
    let other = |terminating| Change::Pod(Pod { terminating, ..pod("other", "u2", &["10.1.2.3"]) });
    let mut changes = vec![other(false)];
    pods.complete(&mut changes);
    assert_eq!(changes, [other(false), web(&[])]);
    let mut changes = vec![other(true)];
    pods.complete(&mut changes);
    assert_eq!(changes, [other(true), web(&["10.1.2.3"])], "a pod that ends yields it");
}

#[test]
fn pods_of_other_nodes_and_of_the_node_itself_are_left_alone() {
    let mut pods = CniAddresses::new("n1".to_owned());
    pods.set_results(vec![result("", &["10.1.2.3/24"])]);
    for one in [
        Pod { node: "n2".into(), ..pod("web", "u1", &[]) },
        Pod { host_network: true, ..pod("web", "u1", &[]) },
        Pod { finished: true, ..pod("web", "u1", &[]) },
    ] {
        let mut changes = vec![Change::Pod(one.clone())];
        pods.complete(&mut changes);
        assert_eq!(changes, [Change::Pod(one)]);
    }
    let mut changes = vec![web(&[])];
    pods.complete(&mut changes);
    assert_eq!(changes, [web(&["10.1.2.3"])], "a runtime that does not say the uid");
}

/// After a boot, pods may have new addresses.
#[test]
fn an_answer_counts_more_than_a_kept_address() {
    let mut pods = CniAddresses::new("n1".to_owned());
    let other = Change::Pod(pod("other", "u2", &["10.0.0.7"]));
    pods.restored(&[web(&["10.0.0.5"]), other]);
    assert_eq!(pods.set_results(Vec::new()), []);
    // After the boot, the other pod's address belongs to this one.
    let changes = pods.set_results(vec![result("u1", &["10.0.0.7/24"])]);
    assert_eq!(changes, [Change::Pod(pod("other", "u2", &[])), web(&["10.0.0.7"])]);
    // The source takes precedence.
    let mut batch = vec![web(&["10.0.0.5"])];
    pods.complete(&mut batch);
    assert_eq!(batch[0], web(&["10.0.0.5"]));
}
