//! Interfaces of pods on secondary networks: a second bridge for storage, as Multus attaches it.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;

use netpold_api::probe::EXPLAIN_REQUEST;
use netpold_testbed::cluster::{ENFORCED, NAMESPACE, TestCluster, all_pass, allow_from, none_pass};
use netpold_testbed::{Cni, TestPod, require_root, udp_frame};
use serde_json::{Value, json};

use crate::traffic::udp;

const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
const PORT: u16 = 4000;
/// Pods on the network, with the last number of their address there.
const PODS: [(&str, u8); 4] = [("server", 1), ("friend", 2), ("stranger", 3), ("hostile", 4)];

fn storage(number: u8) -> IpAddr {
    Ipv4Addr::new(192, 168, 77, number).into()
}

/// Returns the annotation as Multus writes it, with one secondary network.
fn status_of(pod: &TestPod, addresses: &[IpAddr]) -> String {
    let own: Vec<String> = pod.addresses().iter().map(ToString::to_string).collect();
    let further: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let first =
        json!({ "name": "testbed", "interface": "eth0", "ips": own, "default": true, "dns": {} });
    let second = json!({ "name": "shop/storage", "interface": "net1", "ips": further, "dns": {} });
    json!([first, second]).to_string()
}

fn annotate(cluster: &mut TestCluster, name: &str, addresses: &[IpAddr]) {
    let status = status_of(cluster.pod(name), addresses);
    cluster.pod_mut(name).annotate(STATUS, &status);
}

/// Returns a cluster with four pods on a secondary network, without annotations; the server allows ingress from
/// `friend` only.
fn world() -> TestCluster {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&PODS.map(|(name, _)| name));
    let node = &cluster.nodes[0];
    node.netns().ip("link add name storage type bridge\nlink set storage up\n").unwrap();
    for (name, number) in PODS {
        let pod = cluster.pod(name);
        let add = format!(
            "link add name sto{number} type veth peer name net1 netns {}\n\
             link set sto{number} master storage\nlink set sto{number} up\n",
            pod.netns().path().display()
        );
        node.netns().ip(&add).unwrap();
        let inside = format!("link set net1 up\naddress add {}/24 dev net1\n", storage(number));
        pod.netns().ip(&inside).unwrap();
    }
    cluster.policy("server", allow_from("server", "friend"));
    cluster
}

/// Returns the same cluster with the annotations that Multus writes.
fn annotated() -> TestCluster {
    let mut cluster = world();
    for (name, number) in PODS {
        annotate(&mut cluster, name, &[storage(number)]);
    }
    cluster
}

fn wait_for_line(cluster: &mut TestCluster, list: &str, words: &str) {
    let says = |status: &Value| {
        let mut all = status[list].as_array().into_iter().flatten().filter_map(Value::as_str);
        all.any(|line| line.contains(words))
    };
    cluster.agents[0].wait_for(words, ENFORCED, says).unwrap();
}

/// Waits until all secondary interfaces have their program.
fn attached(cluster: &mut TestCluster) {
    let index = |number: u8| cluster.nodes[0].ifindex(&format!("sto{number}")).unwrap().unwrap();
    let all = PODS.map(|(_, number)| u64::from(index(number)));
    let judged = |status: &Value| {
        let endpoints = status["endpoints"].as_array().map_or(&[][..], Vec::as_slice);
        let has = |index: &u64| {
            endpoints.iter().any(|it| it["ifindex"] == *index && !it["hook"].is_null())
        };
        all.iter().all(has)
    };
    cluster.agents[0].wait_for("the secondary interfaces", ENFORCED, judged).unwrap();
}

#[track_caller]
fn reaches(cluster: &TestCluster, from: &str) {
    all_pass(cluster.pod(from), cluster.pod("server"), &[storage(1)]);
}

#[track_caller]
fn denied(cluster: &TestCluster, from: &str) {
    none_pass(cluster.pod(from), cluster.pod("server"), &[storage(1)]);
}

#[test]
fn peers_by_label_match_on_a_further_network() {
    require_root!();
    let mut cluster = world();
    cluster.enforce();
    attached(&mut cluster);
    // The addresses belong to no known pod yet.
    wait_for_line(
        &mut cluster,
        "not_enforced",
        "the addresses of its secondary interface sto2 are not known",
    );
    ["friend", "stranger"].into_iter().for_each(|name| denied(&cluster, name));
    for (name, number) in PODS {
        annotate(&mut cluster, name, &[storage(number)]);
    }
    cluster.enforce();
    reaches(&cluster, "friend");
    denied(&cluster, "stranger");
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    explained(&cluster, ("friend", 2), "allow");
    explained(&cluster, ("stranger", 3), "deny");
    let status = cluster.agents[0].status().unwrap();
    assert_eq!(
        (&status["not_enforced"], &status["problems"]),
        (&json!([]), &json!([])),
        "{status}"
    );
    // The same holds after a restart.
    cluster.restart(0);
    reaches(&cluster, "friend");
    denied(&cluster, "stranger");
    // A device that is not a veth is named.
    let devices = json!([
        { "name": "shop/storage", "interface": "net1", "ips": [storage(2).to_string()] },
        { "name": "shop/lan", "interface": "net2", "ips": ["192.168.78.2"] },
        { "name": "shop/fast", "interface": "net3", "device-info": { "type": "pci" } },
    ]);
    cluster.pod_mut("friend").annotate(STATUS, &devices.to_string());
    cluster.enforce();
    for (interface, device) in
        [("net2 (network shop/lan)", "macvlan"), ("net3 (network shop/fast)", "pci")]
    {
        let line = format!("pod shop/friend: interface {interface} is not under policy");
        wait_for_line(&mut cluster, "not_enforced", &line);
        wait_for_line(&mut cluster, "not_enforced", device);
    }
    reaches(&cluster, "friend");
}

/// Asks the agent about a pod's traffic to the server: it must judge the addresses of both networks, each at its own
/// interface, and objects, tables and the kernel must agree.
fn explained(cluster: &TestCluster, (from, number): (&str, u8), verdict: &str) {
    let (from, to) = (format!("{NAMESPACE}/{from}"), format!("{NAMESPACE}/server"));
    let question = json!({ "from": from, "to": to, "protocol": "UDP", "port": PORT });
    let socket = cluster.agents[0].socket();
    let answer: Value =
        netpold_client::socket::request(&socket, EXPLAIN_REQUEST, &question).unwrap();
    let ends = answer["ends"].as_array().unwrap();
    let agree = |end: &Value| end["objects"] == end["tables"] && end["tables"] == end["kernel"];
    assert!(ends.iter().all(agree), "{answer:#}");
    let first = cluster.pod(from.rsplit('/').next().unwrap()).addresses()[0];
    for remote in [first, storage(number)] {
        let is_it = |end: &&Value| {
            end["direction"] == "ingress" && end["remote"] == remote.to_string().as_str()
        };
        let judged: Vec<&Value> = ends.iter().filter(is_it).collect();
        // At the server's two addresses.
        assert_eq!(judged.len(), 2, "{answer:#}");
        assert!(judged.iter().all(|end| end["kernel"] == verdict), "{answer:#}");
    }
    let of_network = |end: &&Value| {
        end["direction"] == "egress" && end["remote"] == storage(1).to_string().as_str()
    };
    assert_eq!(ends.iter().filter(of_network).count(), 2, "from each of its addresses: {answer:#}");
}

/// Returns the sources of the packets that arrive at the server's storage address: a pod's secondary interface sends a
/// datagram from each source, and then one of the friend's follows.
fn arrivals(cluster: &TestCluster, sender: &str, sources: &[IpAddr]) -> Vec<IpAddr> {
    let server = cluster.pod("server");
    let socket: UdpSocket = udp::socket(server, storage(1), PORT);
    let station = server.hardware_address("net1").unwrap();
    let send = |pod: &TestPod, from: IpAddr| {
        let own = pod.hardware_address("net1").unwrap();
        let frame =
            udp_frame(station, own, (from, 5000).into(), (storage(1), PORT).into(), b"hello")
                .unwrap();
        pod.send_frame("net1", &frame).unwrap();
    };
    sources.iter().for_each(|from| send(cluster.pod(sender), *from));
    std::thread::sleep(Duration::from_millis(100));
    send(cluster.pod("friend"), storage(2));
    let mut arrived = Vec::new();
    loop {
        let (_, from) = udp::receive(&socket).expect("the friend's datagram arrives");
        if from.ip() == storage(2) {
            return arrived;
        }
        arrived.push(from.ip());
    }
}

#[test]
fn a_pod_sends_from_its_own_address_on_a_further_network() {
    require_root!();
    let mut cluster = annotated();
    let open = json!({ "podSelector": { "matchLabels": { "app": "server" } }, "ingress": [{}] });
    cluster.policy("server", open).enforce();
    attached(&mut cluster);
    reaches(&cluster, "friend");
    let first = cluster.pod("hostile").ip4().unwrap();
    let of_friend = cluster.pod("friend").ip4().unwrap();
    let free: IpAddr = [192, 168, 77, 99].into();
    let sources = [storage(3), of_friend, first, free, storage(4)];
    assert_eq!(arrivals(&cluster, "hostile", &sources), [storage(4)]);
}

/// Writes annotations that a tenant may write to its own pod.
#[test]
fn forged_annotations_gain_nothing() {
    require_root!();
    let mut cluster = annotated();
    let service: IpAddr = [10, 96, 0, 9].into();
    cluster.objects.push(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": NAMESPACE, "name": "web" },
        "spec": { "clusterIP": service.to_string(), "clusterIPs": [service.to_string()],
                  "ports": [{ "port": 80, "protocol": "TCP" }] },
    }));
    cluster.policy("hostile", allow_from("server", "hostile"));
    cluster.enforce();
    attached(&mut cluster);
    reaches(&cluster, "friend");
    reaches(&cluster, "hostile");
    denied(&cluster, "stranger");
    // Claims the address of another pod, of the node, of a Service, of the Internet: the pod's earlier addresses stay
    // valid, and the owner of the claimed address is not a peer by the labels of the hostile pod.
    let of_stranger = cluster.pod("stranger").ip4().unwrap();
    let of_node = cluster.nodes[0].addresses()[0];
    let outside: IpAddr = [8, 8, 8, 8].into();
    for (claim, why) in [
        (of_stranger, "it is an address of pod shop/stranger"),
        (of_node, "it is an address of node/n1"),
        (service, "it is an address of svc/shop/web"),
        (outside, "it is in no block of --second-networks"),
    ] {
        annotate(&mut cluster, "hostile", &[storage(4), claim]);
        cluster.enforce();
        wait_for_line(&mut cluster, "problems", &format!("{claim} of interface net1"));
        wait_for_line(&mut cluster, "problems", why);
        reaches(&cluster, "friend");
        reaches(&cluster, "hostile");
        denied(&cluster, "stranger");
        cluster.denied("stranger", "server");
        assert_eq!(arrivals(&cluster, "hostile", &[claim, storage(4)]), [storage(4)], "{claim}");
    }
    // Claims another pod's address on the network: neither pod owns it, and the hostile pod gains no source address.
    annotate(&mut cluster, "hostile", &[storage(3), storage(4)]);
    cluster.enforce();
    wait_for_line(
        &mut cluster,
        "problems",
        "pod shop/stranger claims it too, so it counts for neither",
    );
    denied(&cluster, "stranger");
    reaches(&cluster, "friend");
    assert_eq!(arrivals(&cluster, "hostile", &[storage(3), storage(4)]), [storage(4)]);
    // Malformed annotation, and enforcement that the pod switches off for itself.
    cluster.pod_mut("hostile").annotate(STATUS, "[[[");
    cluster.pod_mut("hostile").annotate("netpold.io/second-interfaces", "open");
    cluster.enforce();
    denied(&cluster, "hostile");
    attached(&mut cluster);
}

/// Checks that results of CNI plugins, where they are kept, limit the addresses that the node's pods may have.
#[test]
fn answers_of_plugins_prove_addresses_on_further_networks() {
    require_root!();
    let mut cluster = annotated();
    let results = cluster.directory.path().join("results");
    std::fs::create_dir(&results).unwrap();
    for (name, number) in PODS {
        let pod = cluster.pod(name);
        let mut result = pod.cni_result(pod.uid());
        std::fs::write(results.join(format!("testbed-{name}-eth0")), result.to_string()).unwrap();
        let sandbox = result["netns"].clone();
        result["ifName"] = "net1".into();
        result["networkName"] = "storage".into();
        result["result"]["interfaces"] =
            json!([{ "name": format!("sto{number}") }, { "name": "net1", "sandbox": sandbox }]);
        result["result"]["ips"] =
            json!([{ "address": format!("{}/24", storage(number)), "interface": 1 }]);
        std::fs::write(results.join(format!("storage-{name}-net1")), result.to_string()).unwrap();
    }
    cluster.arguments = vec!["--cni-results".to_owned(), results.to_str().unwrap().to_owned()];
    // The hostile pod claims the friend's address, and not its own.
    annotate(&mut cluster, "hostile", &[storage(2)]);
    cluster.enforce();
    attached(&mut cluster);
    reaches(&cluster, "friend");
    ["stranger", "hostile"].into_iter().for_each(|name| denied(&cluster, name));
    let open = json!({ "podSelector": { "matchLabels": { "app": "server" } }, "ingress": [{}] });
    cluster.policy("server", open).enforce();
    assert_eq!(arrivals(&cluster, "hostile", &[storage(2), storage(3), storage(4)]), [storage(4)]);
    // The same holds without an annotation.
    cluster.pod_mut("hostile").annotate(STATUS, "[]");
    cluster.enforce();
    assert_eq!(arrivals(&cluster, "hostile", &[storage(3), storage(4)]), [storage(4)]);
}

#[test]
fn further_interfaces_are_open_where_the_operator_says_so() {
    require_root!();
    let mut cluster = world();
    annotate(&mut cluster, "server", &[storage(1)]);
    cluster.labels = vec![("netpold.io/second-interfaces", "open")];
    cluster.enforce();
    // Interfaces with known addresses are nevertheless under policy.
    wait_for_line(
        &mut cluster,
        "not_enforced",
        "pod shop/friend: its secondary interface sto2 is not under policy",
    );
    ["friend", "stranger"].into_iter().for_each(|name| denied(&cluster, name));
    cluster.pod_mut("server").annotate(STATUS, "[]");
    cluster.enforce();
    wait_for_line(
        &mut cluster,
        "not_enforced",
        "pod shop/server: its secondary interface sto1 is not under policy",
    );
    reaches(&cluster, "stranger");
    cluster.denied("stranger", "server");
    // Without the label the interfaces are under policy.
    cluster.labels.clear();
    cluster.enforce();
    attached(&mut cluster);
    denied(&cluster, "stranger");

    cluster.arguments = ["--second-interfaces", "off"].map(str::to_owned).to_vec();
    annotate(&mut cluster, "server", &[storage(1)]);
    cluster.agents.clear();
    cluster.enforce();
    wait_for_line(
        &mut cluster,
        "not_enforced",
        "sto1 is not under policy: --second-interfaces off",
    );
    reaches(&cluster, "stranger");
    cluster.denied("stranger", "server");

    cluster.arguments = ["--second-interfaces", "strict"].map(str::to_owned).to_vec();
    cluster.agents.clear();
    let all = json!({ "podSelector": { "matchLabels": { "app": "server" } }, "ingress": [{}] });
    cluster.policy("server", all).enforce();
    attached(&mut cluster);
    denied(&cluster, "stranger");
    annotate(&mut cluster, "stranger", &[storage(3)]);
    cluster.enforce();
    reaches(&cluster, "stranger");
}
