//! Owner of a veth: changes inside the pod's namespace or missing API objects open nothing.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use netpold_testbed::cluster::{
    ENFORCED, NAMESPACE, TestCluster, all_pass, allow_from, allow_to, isolate, none_pass,
};
use netpold_testbed::{Cni, Netns, PodSpec, TestPod, require_root, udp_frame};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::traffic::udp;

const BOTH: [&str; 2] = ["Ingress", "Egress"];
const PORT: u16 = 4000;

/// Returns a cluster where `locked` may do nothing, `server` admits `friend` only, and `stranger` is under no policy.
fn world(cni: Cni) -> TestCluster {
    let mut cluster = TestCluster::one(cni).with_pods(&["locked", "friend", "server", "stranger"]);
    cluster.policy("locked", isolate("locked", &BOTH));
    cluster.policy("server", allow_from("server", "friend")).enforce();
    cluster
}

/// Returns the source addresses of the packets that arrive at `to`: `sender` sends a frame from each address of
/// `from`, and then an allowed frame follows.
fn arrivals(cluster: &TestCluster, sender: &TestPod, from: &[IpAddr], to: &str) -> Vec<IpAddr> {
    let to = cluster.pod(to);
    let address = to.ip4().unwrap();
    let socket = udp::socket(to, address, PORT);
    let send = |pod: &TestPod, interface: &str, from: IpAddr| {
        let (from, to) = ((from, 5000).into(), (address, PORT).into());
        let frame = udp_frame(pod.gateway_mac(), pod.mac(), from, to, b"hello").unwrap();
        pod.send_frame(interface, &frame).unwrap();
    };
    from.iter().for_each(|from| send(sender, "eth0", *from));
    std::thread::sleep(Duration::from_millis(100));
    let (friend, mut arrived) = (cluster.pod("friend"), Vec::new());
    send(friend, "eth0", friend.ip4().unwrap());
    loop {
        let (_, from) = udp::receive(&socket).expect("what is allowed arrives");
        if from.ip() == friend.ip4().unwrap() {
            return arrived;
        }
        arrived.push(from.ip());
    }
}

/// Returns the number of datagrams with the friend's source that arrive at the server: one sent by `liar`, one by the
/// friend.
fn of_friend(cluster: &TestCluster, liar: &TestPod) -> usize {
    let (friend, server) = (cluster.pod("friend"), cluster.pod("server"));
    let (source, address) = (friend.ip4().unwrap(), server.ip4().unwrap());
    let socket = udp::socket(server, address, PORT);
    for (pod, port) in [(liar, 5001), (friend, 5002)] {
        let (from, to) = ((source, port).into(), (address, PORT).into());
        let frame = udp_frame(pod.gateway_mac(), pod.mac(), from, to, b"hello").unwrap();
        pod.send_frame("eth0", &frame).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut arrived = 0;
    loop {
        let (_, from) = udp::receive(&socket).expect("what is allowed arrives");
        arrived += 1;
        if from.port() == 5002 {
            return arrived;
        }
    }
}

/// Asserts that no packet leaves `locked` under its own address, and none enters.
fn stays_locked(cluster: &TestCluster) {
    let locked = cluster.pod("locked");
    let own = [locked.ip4().unwrap()];
    assert!(arrivals(cluster, locked, &own, "stranger").is_empty(), "out");
    none_pass(cluster.pod("stranger"), locked, locked.addresses());
}

fn says(cluster: &mut TestCluster, words: &str) {
    let said = |status: &Value| status["problems"].to_string().contains(words);
    cluster.agents[0].wait_for(words, ENFORCED, said).unwrap();
}

fn fine(cluster: &mut TestCluster) {
    let fine = |status: &Value| status["problems"].as_array().is_some_and(Vec::is_empty);
    cluster.agents[0].wait_for("without a problem", ENFORCED, fine).unwrap();
}

/// Moves the pod's addresses from its interface to another one, or to another scope.
fn inside(cluster: &TestCluster, addresses: &str) {
    let locked = cluster.pod("locked");
    // The scope of an IPv6 address is part of the address.
    let scoped = addresses.contains("scope");
    let lines: String = (locked.addresses().iter())
        .filter(|own| own.is_ipv4() || !scoped)
        .map(|own| format!("address add {own} dev {addresses}\n"))
        .collect();
    locked.netns().ip(&format!("address flush dev eth0\naddress flush dev lo\n{lines}")).unwrap();
}

fn hidden_addresses(cni: Cni) {
    let mut cluster = world(cni);
    fine(&mut cluster);
    cluster.keep_neighbour("stranger", "locked");
    for addresses in ["lo", "eth0 scope link"] {
        inside(&cluster, addresses);
        says(&mut cluster, "has none of its addresses");
        stays_locked(&cluster);
        cluster.restart(0);
        says(&mut cluster, "has none of its addresses");
        stays_locked(&cluster);
        inside(&cluster, "eth0");
        fine(&mut cluster);
    }
}

#[test]
fn an_address_that_is_hidden_inside_opens_nothing_on_a_ptp_node() {
    require_root!();
    hidden_addresses(Cni::Ptp);
}

#[test]
fn an_address_that_is_hidden_inside_opens_nothing_on_a_bridge_node() {
    require_root!();
    hidden_addresses(Cni::Bridge);
}

/// Replaces the pod's own address by another pod's, also before a restart of the agent.
fn anothers_address(cni: Cni) {
    let mut cluster = world(cni);
    let friend = cluster.pod("friend").ip4().unwrap();
    let netns = std::sync::Arc::clone(cluster.pod("locked").netns());
    netns.ip(&format!("address add {friend}/32 dev eth0\n")).unwrap();
    says(&mut cluster, "it stays bound to shop/locked");
    let is_not = |cluster: &TestCluster| {
        let locked = cluster.pod("locked");
        // Without the check, both frames with the friend's source would arrive at the server.
        assert_eq!(of_friend(cluster, locked), 1);
        stays_locked(cluster);
    };
    is_not(&cluster);
    netns.ip(&format!("address flush dev eth0\naddress add {friend}/32 dev eth0\n")).unwrap();
    says(&mut cluster, "has none of its addresses");
    cluster.restart(0);
    says(&mut cluster, "has none of its addresses");
    is_not(&cluster);
    // The interface also gets a new name.
    netns.ip("link set eth0 down\nlink set eth0 name other\nlink set other up\n").unwrap();
    cluster.restart(0);
    let locked = cluster.pod("locked");
    none_pass(cluster.pod("stranger"), locked, locked.addresses());
    netns.ip("link set other down\nlink set other name eth0\nlink set eth0 up\n").unwrap();
    is_not(&cluster);
}

#[test]
fn another_pods_address_inside_gives_nothing_on_a_ptp_node() {
    require_root!();
    anothers_address(Cni::Ptp);
}

#[test]
fn another_pods_address_inside_gives_nothing_on_a_bridge_node() {
    require_root!();
    anothers_address(Cni::Bridge);
}

/// Moves the pod's side of the veth to a namespace that the pod created.
#[test]
fn a_veth_that_is_moved_within_its_pod_stays_the_pods() {
    require_root!();
    let mut cluster = world(Cni::Ptp);
    let nested = Netns::create("nested").unwrap();
    let own = cluster.pod("locked").ip4().unwrap();
    let to = format!("link set eth0 netns {}\n", nested.path().display());
    cluster.pod("locked").netns().ip(&to).unwrap();
    let setup = format!(
        "link set lo up\nlink set eth0 up\naddress add {own}/32 dev eth0\n\
         route add 169.254.1.1 dev eth0 scope link\nroute add default via 169.254.1.1\n"
    );
    nested.ip(&setup).unwrap();
    let stranger = cluster.pod("stranger").ip4().unwrap();
    let closed = |cluster: &TestCluster| {
        let receiver = udp::socket(cluster.pod("stranger"), stranger, PORT);
        receiver.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let sender = nested.run(|| UdpSocket::bind((own, 5000))).unwrap().unwrap();
        (0..5).for_each(|_| _ = sender.send_to(b"hello", (stranger, PORT)).unwrap());
        assert!(udp::receive(&receiver).is_none(), "the pod's policy is on it still");
    };
    closed(&cluster);
    // The periodic listing finds the new namespace of the other side, as a listing after an overrun would.
    std::thread::sleep(Duration::from_secs(6));
    closed(&cluster);
    cluster.restart(0);
    closed(&cluster);
}

/// Deletes a pod from the API while its veth and its processes remain.
fn deleted(cni: Cni) {
    let mut cluster = world(cni);
    cluster.policy("stranger", isolate("stranger", &["Egress"]));
    cluster.policy("friend", allow_from("friend", "stranger")).enforce();
    let zombie = cluster.take("stranger");
    cluster.deleted.insert(zombie.name().to_owned(), zombie.host_ifindex());
    cluster.enforce();
    says(&mut cluster, "was deleted, but its interface");
    let locked = |cluster: &TestCluster| {
        none_pass(&zombie, cluster.pod("friend"), cluster.pod("friend").addresses());
    };
    locked(&cluster);
    // A later policy applies to the pod, and the pod is no longer a peer of other pods' policies.
    cluster.policy("stranger", allow_to("stranger", "server"));
    cluster.policy("server", allow_from("server", "stranger")).enforce();
    locked(&cluster);
    none_pass(&zombie, cluster.pod("server"), cluster.pod("server").addresses());
    cluster.without_policy("server").enforce();
    all_pass(&zombie, cluster.pod("server"), cluster.pod("server").addresses());
    locked(&cluster);
    // The next agent reads the pod from the last good state.
    kept(&cluster);
    cluster.restart(0);
    says(&mut cluster, "was deleted, but its interface");
    all_pass(&zombie, cluster.pod("server"), cluster.pod("server").addresses());
    locked(&cluster);
    cluster.deleted.clear();
    zombie.delete().unwrap();
    cluster.enforce();
    fine(&mut cluster);
}

/// Waits until the agent has written a new state file.
fn kept(cluster: &TestCluster) {
    let (file, now) = (cluster.agents[0].state().join("last"), std::time::SystemTime::now());
    let deadline = std::time::Instant::now() + ENFORCED;
    let newer = || std::fs::metadata(&file).and_then(|m| m.modified()).is_ok_and(|at| at > now);
    while !newer() && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_deleted_pod_keeps_its_last_policy_on_a_ptp_node() {
    require_root!();
    deleted(Cni::Ptp);
}

#[test]
fn a_deleted_pod_keeps_its_last_policy_on_a_bridge_node() {
    require_root!();
    deleted(Cni::Bridge);
}

/// Deletes a pod while no agent runs and no state file describes it.
#[test]
fn a_pod_of_which_nothing_is_known_any_more_is_denied() {
    require_root!();
    let mut cluster = world(Cni::Bridge);
    cluster.agents[0].end(Signal::SIGKILL);
    let _ = std::fs::remove_file(cluster.agents[0].state().join("last"));
    let zombie = cluster.take("locked");
    cluster.write();
    cluster.restart(0);
    says(&mut cluster, "its present pod is unknown: denied");
    none_pass(&zombie, cluster.pod("stranger"), cluster.pod("stranger").addresses());
    none_pass(cluster.pod("stranger"), &zombie, zombie.addresses());
}

/// Creates a pod with the same name and address on a new veth, while the old veth is still in use.
#[test]
fn a_pod_that_is_made_again_inherits_nothing_and_leaves_nothing() {
    require_root!();
    let mut cluster = world(Cni::Bridge);
    let old = cluster.take("locked");
    let spec = PodSpec::new(NAMESPACE, "locked").label("app", "free");
    cluster.add_as(0, spec.addresses(old.addresses()));
    cluster.write();
    says(&mut cluster, "was deleted, but its interface");
    let address = old.ip4().unwrap();
    let new = cluster.pod("locked").host_ifindex();
    let both = |status: &Value| {
        let all = status["endpoints"].as_array().map_or(&[][..], Vec::as_slice);
        let here = all.iter().filter(|e| e["pod"]["name"] == "locked" && !e["hook"].is_null());
        let here: Vec<u64> = here.filter_map(|e| e["ifindex"].as_u64()).collect();
        here.len() == 2 && here.contains(&old.host_ifindex().into()) && here.contains(&new.into())
    };
    cluster.agents[0].wait_for("judging both", ENFORCED, both).unwrap();
    assert!(
        arrivals(&cluster, &old, &[address], "stranger").is_empty(),
        "the old one stays locked"
    );
    let new = cluster.pod("locked");
    assert_eq!(arrivals(&cluster, new, &[address], "stranger"), [address], "the new one is free");
}

/// Creates a younger pod with the address of `locked` in its status.
#[test]
fn a_pod_that_claims_anothers_address_does_not_get_its_veth() {
    require_root!();
    for cni in [Cni::Ptp, Cni::Bridge] {
        let mut cluster = world(cni);
        let mut claimer = cluster.pod("locked").manifest();
        claimer["metadata"]["name"] = "claimer".into();
        claimer["metadata"]["uid"] = "11111111-0000-4000-8000-000000000000".into();
        claimer["metadata"]["labels"] = serde_json::json!({ "app": "claimer" });
        claimer["metadata"]["creationTimestamp"] = "2030-01-01T00:00:00Z".into();
        cluster.objects.push(claimer);
        cluster.write();
        let known = |status: &Value| status["endpoints"].to_string().contains("claimer");
        let known = cluster.agents[0].wait_for("aware of the claim", ENFORCED, known).unwrap();
        let of_veth = |e: &&Value| e["ifindex"] == cluster.pod("locked").host_ifindex();
        let all = known["endpoints"].as_array().unwrap();
        assert_eq!(all.iter().find(of_veth).unwrap()["pod"]["name"], "locked");
        stays_locked(&cluster);
        // The same holds after a restart, from the contents of the tables.
        cluster.agents[0].restart(&cluster.nodes[0]).unwrap();
        cluster.agents[0].wait_enforced(ENFORCED).unwrap();
        stays_locked(&cluster);
    }
}

/// Adds a second interface to a pod: the pod's policies apply to it.
#[test]
fn further_interfaces_of_a_pod_are_judged_as_it_is() {
    require_root!();
    let mut cluster = world(Cni::Ptp);
    let (node, locked) = (&cluster.nodes[0], cluster.pod("locked"));
    let add = format!(
        "link add name second type veth peer name net1 netns {}\nlink set second up\n\
         address add 192.168.77.1/24 dev second\n",
        locked.netns().path().display()
    );
    node.netns().ip(&add).unwrap();
    locked.netns().ip("link set net1 up\naddress add 192.168.77.2/24 dev net1\n").unwrap();
    let index = u64::from(node.ifindex("second").unwrap().unwrap());
    let judged = |status: &Value| {
        let all = status["endpoints"].as_array().map_or(&[][..], Vec::as_slice);
        let second = all.iter().find(|e| e["ifindex"] == index);
        second.is_some_and(|e| e["pod"]["name"] == "locked" && !e["hook"].is_null())
    };
    cluster.agents[0].wait_for("aware of the second interface", ENFORCED, judged).unwrap();
    let (locked, stranger) = (cluster.pod("locked"), cluster.pod("stranger"));
    let to = stranger.ip4().unwrap();
    locked.netns().ip(&format!("route replace {to} via 192.168.77.1 dev net1\n")).unwrap();
    none_pass(locked, stranger, &[to]);
    // The node reaches the interface, and the interface reaches the node.
    all_pass(&cluster.nodes[0], locked, &["192.168.77.2".parse().unwrap()]);
}

/// Adds a CNI result for a pod without an API object, like a static pod in an outage: the policies of its namespace
/// apply, with the labels of its manifest where one exists.
#[test]
fn a_static_pod_that_nobody_has_listed_is_under_policy() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Bridge).with_pods(&["friend", "server", "stranger"]);
    let results = cluster.directory.path().join("results");
    let manifests = cluster.directory.path().join("static");
    std::fs::create_dir(&results).unwrap();
    std::fs::create_dir(&manifests).unwrap();
    cluster.arguments = [("--cni-results", &results), ("--static-pods", &manifests)]
        .into_iter()
        .flat_map(|(flag, path)| [flag.to_owned(), path.to_str().unwrap().to_owned()])
        .collect();
    cluster.policy("web", allow_from("web", "friend"));
    cluster.enforce();
    cluster.add(0, "web-n1");
    let web = cluster.take("web-n1");
    let path = results.join(format!("testbed-{}-eth0", web.uid()));
    std::fs::write(&path, web.cni_result("0123456789abcdef").to_string()).unwrap();
    says(&mut cluster, "its labels are unknown");
    for name in ["friend", "stranger"] {
        none_pass(cluster.pod(name), &web, web.addresses());
    }
    all_pass(&web, cluster.pod("stranger"), cluster.pod("stranger").addresses());
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  namespace: shop\n  \
                    labels: {app: web}\nspec:\n  containers: [{name: main, image: example/main}]\n";
    std::fs::write(manifests.join("web.yaml"), manifest).unwrap();
    says(&mut cluster, "judged by its manifest");
    all_pass(cluster.pod("friend"), &web, web.addresses());
    none_pass(cluster.pod("stranger"), &web, web.addresses());
    // The API server is available again and has the kubelet's mirror pod, with a UID of its own.
    let mut mirror = web.manifest();
    mirror["metadata"]["annotations"] = serde_json::json!({
        "kubernetes.io/config.mirror": "0123456789abcdef",
        "kubernetes.io/config.hash": "0123456789abcdef",
    });
    mirror["metadata"]["labels"] = serde_json::json!({ "app": "web" });
    cluster.objects.push(mirror);
    cluster.deleted.insert(web.name().to_owned(), web.host_ifindex());
    cluster.enforce();
    fine(&mut cluster);
    all_pass(cluster.pod("friend"), &web, web.addresses());
    none_pass(cluster.pod("stranger"), &web, web.addresses());
}
