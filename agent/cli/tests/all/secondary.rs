//! Reviews of objects with secondary networks, as Multus reports them: `explain`, `test`, `diff` and `doctor`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command;
use crate::objects::{folder, policy, service};

const ALLOWED: i32 = 0;
const DENIED: i32 = 1;
const CANNOT_TELL: i32 = 2;
/// Exit status of `diff` and `doctor` without and with a finding.
const NOTHING: i32 = 0;
const FOUND: i32 = 1;
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// Runs the plugin. Returns its exit status and its output.
fn netpold(arguments: &[&str]) -> (i32, String) {
    command::run(&mut command::plugin(arguments))
}

/// Explains TCP 2049, and compares the exit status and parts of the text.
#[track_caller]
fn explained(objects: &[String], from: &str, to: &str, status: i32, parts: &[&str]) {
    let folder = folder(objects);
    let manifests = folder.path().to_str().unwrap();
    let ends = ["--manifests", manifests, "--from", from, "--to", to, "--port", "2049"];
    command::states(netpold(&[&["explain"], &ends[..]].concat()), status, parts);
}

/// Compares two sets of objects: exit status, and parts of the text.
#[track_caller]
fn compared(before: &[String], after: &[String], status: i32, parts: &[&str]) {
    let [from, to] = [folder(before), folder(after)];
    let [from, to] = [&from, &to].map(|it| it.path().to_str().unwrap());
    command::states(netpold(&["diff", "--from", from, "--to", to]), status, parts);
}

/// An entry of the annotation: the interface, its network and its addresses.
fn net(interface: &str, network: &str, addresses: &[&str]) -> Value {
    json!({ "name": network, "interface": interface, "ips": addresses, "dns": {} })
}

/// A pod with one address, and these entries in addition to its first interface's.
fn annotated(name: &str, annotation: &str, address: &str, second: &[Value]) -> String {
    let first = json!({ "name": "cbr0", "interface": "eth0", "ips": [address], "default": true, "dns": {} });
    let entries: Vec<&Value> = [&first].into_iter().chain(second).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": "shop", "name": name, "labels": { "app": name },
            "annotations": { annotation: json!(entries).to_string() } },
        "spec": { "nodeName": "n1", "containers": [{ "name": "c", "ports": [{ "containerPort": 2049 }] }] },
        "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] },
    })
    .to_string()
}

fn pod(name: &str, address: &str, second: &[Value]) -> String {
    annotated(name, STATUS, address, second)
}

/// A node, a namespace, the server `nfs`, the client `cl`, and a policy of the server.
fn world(nfs: &[Value], cl: &[Value], rule: &str) -> Vec<String> {
    vec![
        "{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: \
         192.168.5.11}]}}"
            .to_owned(),
        "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}".to_owned(),
        pod("nfs", "10.244.1.30", nfs),
        pod("cl", "10.244.2.31", cl),
        policy("nfs", &format!("policyTypes: [Ingress], ingress: [{{from: [{rule}], ports: [{{port: 2049}}]}}]")),
    ]
}

fn storage(address: &str) -> [Value; 1] {
    [net("net1", "shop/storage", &[address])]
}

const BY_LABEL: &str = "{podSelector: {matchLabels: {app: cl}}}";
const NETWORK: &str = "{ipBlock: {cidr: 172.30.5.0/24}}";
const PODS: &str = "{ipBlock: {cidr: 10.244.0.0/16}}";

#[test]
fn a_pod_sends_from_its_address_on_the_network_of_the_receiver() {
    let (nfs, cl) = (storage("172.30.5.2"), storage("172.30.5.3"));
    let sends = "sends from 172.30.5.3, interface net1 (network shop/storage)";
    let block = world(&nfs, &cl, NETWORK);
    explained(&block, "shop/cl", "172.30.5.2", ALLOWED, &[sends]);
    explained(&block, "172.30.5.3", "172.30.5.2", ALLOWED, &[]);
    explained(&block, "10.244.2.31", "172.30.5.2", DENIED, &[]);
    explained(&block, "shop/cl", "shop/nfs", DENIED, &["10.244.2.31 is not in 172.30.5.0/24"]);
    let denied = "172.30.5.3 is not in 10.244.0.0/16";
    explained(&world(&nfs, &cl, PODS), "shop/cl", "172.30.5.2", DENIED, &[sends, denied]);
    explained(&world(&nfs, &cl, BY_LABEL), "shop/cl", "172.30.5.2", ALLOWED, &[sends]);
    // The older name of the annotation.
    let mut old = block.clone();
    old[2] = annotated("nfs", "k8s.v1.cni.cncf.io/networks-status", "10.244.1.30", &nfs);
    old[3] = annotated("cl", "k8s.v1.cni.cncf.io/networks-status", "10.244.2.31", &cl);
    explained(&old, "shop/cl", "172.30.5.2", ALLOWED, &[sends]);
    // `netpold test` answers the same.
    let folder = folder(&block);
    let manifests = folder.path().to_str().unwrap();
    let assertions = TempDir::new().unwrap();
    let file = assertions.path().join("a.yaml");
    for (expect, status) in [("allow", NOTHING), ("deny", FOUND)] {
        let one = format!("{{from: shop/cl, to: 172.30.5.2, port: 2049, expect: {expect}}}");
        fs::write(&file, format!("assertions: [{one}]")).unwrap();
        let (found, text) =
            netpold(&["test", "-f", file.to_str().unwrap(), "--manifests", manifests]);
        assert_eq!(found, status, "{text}");
    }
}

#[test]
fn a_receiver_on_another_network_gets_packets_from_any_interface() {
    let nfs = storage("172.30.5.2");
    // The same subnet on another network, or another attachment to the same one.
    let other = [net("net1", "shop/other", &["172.30.5.9"])];
    let differs = "10.244.2.31 to 172.30.5.2 is not";
    explained(
        &world(&nfs, &other, NETWORK),
        "shop/cl",
        "172.30.5.2",
        CANNOT_TELL,
        &[differs, "172.30.5.9 to 172.30.5.2 is allowed"],
    );
    explained(&world(&nfs, &other, BY_LABEL), "shop/cl", "172.30.5.2", ALLOWED, &[]);
    // Without a secondary network the packet comes from the only address.
    explained(&world(&nfs, &[], NETWORK), "shop/cl", "172.30.5.2", DENIED, &[]);
    // Two interfaces on the network of the receiver, and one elsewhere.
    let two = [
        net("net1", "shop/storage", &["172.30.5.3"]),
        net("net2", "shop/storage", &["172.30.6.3"]),
        net("net3", "shop/backup", &["172.30.7.3"]),
    ];
    let parts = ["172.30.5.3 to 172.30.5.2 is allowed", "172.30.6.3 to 172.30.5.2 is not"];
    explained(&world(&nfs, &two, NETWORK), "shop/cl", "172.30.5.2", CANNOT_TELL, &parts);
    let both = "{ipBlock: {cidr: 172.30.4.0/22}}";
    explained(&world(&nfs, &two, both), "shop/cl", "172.30.5.2", ALLOWED, &[]);
}

#[test]
fn the_families_of_a_secondary_network_are_its_own() {
    let nfs = [net("net1", "shop/storage", &["172.30.5.2", "fd77::2"])];
    let cl = [net("net1", "shop/storage", &["172.30.5.3", "fd77::3"])];
    let block = world(&nfs, &cl, "{ipBlock: {cidr: 'fd77::/64'}}");
    // The first interfaces have IPv4 addresses only.
    explained(&block, "shop/cl", "fd77::2", ALLOWED, &["sends from fd77::3"]);
    explained(&block, "shop/cl", "172.30.5.2", DENIED, &["sends from 172.30.5.3"]);
}

#[test]
fn claimants_of_an_address_that_does_not_count_are_judged() {
    let public = world(&storage("203.0.113.2"), &storage("203.0.113.3"), BY_LABEL);
    let refused = "203.0.113.2 of interface net1 (network shop/storage) does not count as an address of pod shop/nfs";
    let elsewhere = "it is in no block of --second-networks";
    explained(&public, "shop/cl", "203.0.113.2", DENIED, &[refused, elsewhere]);
    explained(&public, "203.0.113.3", "203.0.113.2", DENIED, &[refused]);
    explained(&public, "192.0.2.1", "203.0.113.2", DENIED, &[refused]);
    // A rule that allows the source does not suffice: the sender's node does not accept it.
    let block = "{ipBlock: {cidr: 203.0.113.0/24}}";
    let block = world(&storage("203.0.113.2"), &storage("203.0.113.3"), block);
    let dropped = "its node drops packets from there unless a CNI result proves the address";
    explained(&block, "shop/cl", "203.0.113.2", CANNOT_TELL, &[dropped]);
    // Both pods claim the address, and a third one is on the network.
    let mut twice = world(&storage("172.30.5.2"), &storage("172.30.5.2"), BY_LABEL);
    twice.push(pod("web", "10.244.2.40", &storage("172.30.5.4")));
    let parts = ["it depends on the pod that has the address", "shop/web to shop/nfs is denied"];
    explained(&twice, "shop/web", "172.30.5.2", CANNOT_TELL, &parts);
    twice.push(policy("cl", "policyTypes: [Ingress]"));
    let contested = "claims it too, so it counts for neither";
    explained(&twice, "shop/web", "172.30.5.2", DENIED, &[contested]);
    // A claimant may reach itself, or the other one.
    let parts = ["shop/cl to shop/cl is allowed", "shop/cl to shop/nfs is denied"];
    explained(&twice, "shop/cl", "172.30.5.2", CANNOT_TELL, &parts);
    // The same address on another network does not reach the sender's one.
    let mut apart = world(&storage("172.30.5.2"), &[], BY_LABEL);
    apart.push(pod("db", "10.244.2.41", &[net("net1", "shop/other", &["172.30.5.2"])]));
    apart.push(pod("web", "10.244.2.40", &storage("172.30.5.4")));
    explained(&apart, "shop/web", "172.30.5.2", DENIED, &["pod shop/db claims it too"]);
    // An address of another object is that object's.
    let of_node = world(&storage("192.168.5.11"), &[], BY_LABEL);
    explained(&of_node, "shop/cl", "192.168.5.11", ALLOWED, &[]);
}

/// Endpoints on a secondary network, as controllers for them write.
#[test]
fn a_service_leads_to_claimants_of_an_address_that_does_not_count() {
    let backed_by = |address: &str| {
        let mut objects = world(&storage(address), &[], BY_LABEL);
        objects.push(pod("web", "10.244.2.40", &[]));
        objects
            .push(service("clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], ports: [{port: 2049}]"));
        objects.push(format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{namespace: shop, name: web-1, labels: \
             {{kubernetes.io/service-name: web}}}}, addressType: IPv4, ports: [{{name: '', port: 2049, protocol: TCP}}], \
             endpoints: [{{addresses: [{address}]}}]}}"
        ));
        objects
    };
    for address in ["172.30.5.2", "203.0.113.2"] {
        let behind = format!("{address} port 2049, pod shop/nfs");
        explained(&backed_by(address), "shop/cl", "10.96.0.9", ALLOWED, &[&behind]);
        explained(&backed_by(address), "shop/web", "10.96.0.9", DENIED, &[&behind]);
    }
}

#[test]
fn an_unknown_address_and_a_device_without_policy_are_named() {
    let unknown = [net("net1", "shop/storage", &[])];
    let world_of = |rule| world(&storage("172.30.5.2"), &unknown, rule);
    explained(&world_of(BY_LABEL), "shop/cl", "172.30.5.2", DENIED, &[]);
    let lacks = "it depends on the address of shop/cl on the secondary network";
    explained(&world_of(NETWORK), "shop/cl", "172.30.5.2", CANNOT_TELL, &[lacks]);
    let mut device = net("net1", "shop/storage", &["172.30.5.2"]);
    device["device-info"] = json!({ "type": "pci" });
    let device = world(&[device], &storage("172.30.5.3"), PODS);
    let open =
        "interface net1 (network shop/storage) of pod shop/nfs is not under policy: it is no veth";
    explained(&device, "shop/cl", "172.30.5.2", CANNOT_TELL, &[open]);
    explained(&device, "shop/cl", "shop/nfs", ALLOWED, &[]);
}

#[test]
fn a_change_of_the_addresses_that_count_is_compared() {
    let before = world(&storage("172.30.5.2"), &storage("172.30.5.3"), BY_LABEL);
    compared(&before, &before, NOTHING, &[]);
    let contested = world(&storage("172.30.5.2"), &storage("172.30.5.2"), BY_LABEL);
    let note = "addresses on secondary networks that begin or cease to count";
    compared(&before, &contested, FOUND, &["shop/cl", "shop/nfs", "TCP 2049", note]);
    compared(&contested, &before, FOUND, &["TCP 2049", note]);
    let public = world(&storage("172.30.5.2"), &storage("203.0.113.3"), BY_LABEL);
    compared(&before, &public, FOUND, &["TCP 2049", "203.0.113.3 of shop/cl, before 172.30.5.3"]);
    let none = [net("net1", "shop/storage", &[])];
    let unknown = world(&none, &none, BY_LABEL);
    let gap = "its IPv4 addresses on the secondary network shop/storage are 1 before and 0 after";
    compared(&before, &unknown, CANNOT_TELL, &[gap]);
    let gone = world(&[], &[], BY_LABEL);
    compared(&before, &gone, CANNOT_TELL, &[gap]);
    // An address of another object is not an address of the pod.
    let of_node = world(&storage("192.168.5.11"), &storage("172.30.5.3"), BY_LABEL);
    compared(&of_node, &of_node, NOTHING, &[]);
    let held = "other objects have, before or after, addresses that it claims on the secondary network shop/storage";
    compared(&before, &of_node, CANNOT_TELL, &[held]);
    // Addresses that change within a block are as before.
    let moved = world(&storage("172.30.5.7"), &storage("172.30.5.8"), BY_LABEL);
    compared(&before, &moved, NOTHING, &[]);
    // A block of one address on the network, which no other address represents.
    let one = |number: u8| {
        let rule = format!("{{ipBlock: {{cidr: 172.30.5.{number}/32}}}}");
        world(&storage("172.30.5.2"), &storage("172.30.5.3"), &rule)
    };
    compared(&one(3), &one(4), FOUND, &["shop/cl", "TCP 2049"]);
}

#[test]
fn doctor_names_addresses_that_do_not_count() {
    let doctor = |objects: &[String]| -> Vec<(String, String)> {
        let folder = folder(objects);
        let manifests = folder.path().to_str().unwrap();
        let (_, text) = netpold(&["doctor", "-o", "json", "--manifests", manifests]);
        let report: Value = serde_json::from_str(&text).unwrap();
        let findings = report["findings"].as_array().unwrap().iter().flat_map(|finding| {
            let check = finding["check"].as_str().unwrap().to_owned();
            let places = finding["places"].as_array().unwrap().iter();
            places.map(move |place| (check.clone(), place.as_str().unwrap().to_owned()))
        });
        findings.filter(|(check, _)| check.starts_with("second-")).collect()
    };
    let one = |objects: &[String], check: &str, parts: &[&str]| {
        let found = doctor(objects);
        assert!(!found.is_empty(), "{check}");
        assert!(found.iter().all(|(it, _)| it == check), "{found:?}");
        for part in parts {
            assert!(found.iter().any(|(_, place)| place.contains(part)), "{part}: {found:?}");
        }
    };
    let good = world(&storage("172.30.5.2"), &storage("172.30.5.3"), BY_LABEL);
    assert_eq!(doctor(&good), []);
    for (address, reason) in [
        ("203.0.113.3", "it is in no block of --second-networks"),
        ("172.30.5.2", "pod shop/nfs claims it too"),
        ("192.168.5.11", "it is an address of node/n1"),
        ("10.244.1.30", "it is an address of pod shop/nfs"),
    ] {
        let refused = world(&storage("172.30.5.2"), &storage(address), BY_LABEL);
        let place =
            format!("Pod shop/cl: {address} of interface net1 (network shop/storage): {reason}");
        one(&refused, "second-address-refused", &[&place]);
    }
    // The address of the pod's status, repeated in the annotation.
    let repeated = [net("net1", "shop/storage", &["172.30.5.3", "10.244.2.31"])];
    assert_eq!(doctor(&world(&storage("172.30.5.2"), &repeated, BY_LABEL)), []);
    let none = [net("net1", "shop/storage", &[])];
    let mut unknown = world(&storage("172.30.5.2"), &none, BY_LABEL);
    let place = "Pod shop/cl: interface net1 (network shop/storage)";
    one(&unknown, "second-address-unknown", &[place]);
    // Networks that a pod requests, without a status.
    unknown[3] = annotated("cl", "k8s.v1.cni.cncf.io/networks", "10.244.2.31", &[]);
    one(&unknown, "second-address-unknown", &["network-status none"]);
    // An open namespace, and a device that is not a veth.
    let mut open = world(&none, &[], BY_LABEL);
    open[1] = "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {netpold.io/second-interfaces: open}}}"
        .to_owned();
    one(
        &open,
        "second-interface-open",
        &["Pod shop/nfs: interface net1 (network shop/storage): no known address"],
    );
    let mut device = net("net1", "shop/storage", &["172.30.5.2"]);
    device["device-info"] = json!({ "type": "pci" });
    one(&world(&[device], &[], BY_LABEL), "second-interface-open", &["no veth (device-info pci)"]);
}
