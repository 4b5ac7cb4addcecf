//! `netpold explain --socket`: objects, compiled tables and the kernel's programs agree on every question, and a
//! question leaves neither drops nor flows.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netpold_api::probe::EXPLAIN_REQUEST;
use netpold_dataplane::bpf::mmap::MappedArray;
use netpold_ebpf::layout::{ENDPOINT_SLOTS, Endpoint};
use netpold_testbed::cluster::{MOMENT, PORT, TestCluster};
use netpold_testbed::services::{SERVICE_PORT, TestService, provide};
use netpold_testbed::{Cni, ProbeProtocol, Proxy, require_root};
use serde_json::{Value, json};

use crate::traffic::readback::pinned;

const QUESTIONS: usize = 2000;
const PODS: [&str; 5] = ["a", "b", "c", "server", "other"];

/// Pseudo-random numbers, the same in each run (xorshift: Marsaglia, 2003).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    fn of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len())]
    }
}

fn world() -> TestCluster {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&PODS);
    // The readback would repair a manual change of the tables.
    cluster.arguments = ["--readback", "3600"].map(str::to_owned).to_vec();
    let service = TestService::new(1, "both").pods(&cluster, &["server", "other"]);
    provide(&mut cluster, Proxy::Nftables, std::slice::from_ref(&service));
    let pods = |app: &str| json!({ "podSelector": { "matchLabels": { "app": app } } });
    let node4 = cluster.nodes[0].addresses()[0];
    let server = json!({
        "podSelector": { "matchLabels": { "app": "server" } },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            { "from": [pods("a")] },
            { "from": [pods("b")], "ports": [{ "port": PORT }, { "protocol": "UDP", "port": 100, "endPort": 300 }] },
            { "from": [{ "ipBlock": { "cidr": "198.51.100.0/24", "except": ["198.51.100.64/26"] } }],
              "ports": [{ "protocol": "SCTP", "port": PORT }, { "protocol": "TCP" }] },
            { "from": [{ "ipBlock": { "cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"] } }] },
        ],
        "egress": [{ "to": [pods("c")], "ports": [{ "port": 443 }] }],
    });
    let a = json!({
        "podSelector": { "matchLabels": { "app": "a" } },
        "policyTypes": ["Egress"],
        "egress": [
            { "to": [pods("server")] },
            { "to": [{ "ipBlock": { "cidr": "198.51.100.0/24" } }, { "ipBlock": { "cidr": "2001:db8::/32" } }],
              "ports": [{ "protocol": "UDP" }] },
        ],
    });
    let c = json!({
        "podSelector": { "matchLabels": { "app": "c" } },
        "ingress": [{ "from": [{ "ipBlock": { "cidr": format!("{node4}/32") } }] }],
    });
    cluster.policy("server", server).policy("a", a).policy("c", c).enforce();
    cluster
}

fn ask(cluster: &TestCluster, question: &Value) -> Value {
    netpold_client::socket::request(&cluster.agents[0].socket(), EXPLAIN_REQUEST, question).unwrap()
}

fn differs(end: &Value) -> bool {
    end["objects"] != end["tables"] || end["tables"] != end["kernel"]
}

/// Returns drops by reason, the latest drops, and the flows of netpold's table.
fn traces(cluster: &TestCluster) -> (Value, Value, BTreeSet<String>) {
    let status = cluster.agents[0].status().unwrap();
    let arguments = ["flows", "-o", "json", "--limit", "0"];
    let output = cluster.agents[0].command(&arguments).output().unwrap();
    let flows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let flows = flows["flows"].as_array().unwrap().iter();
    let flows = flows.filter(|flow| flow["kernel"] != json!(true));
    let parts = ["pod", "protocol", "local_port", "remote", "remote_port"];
    let flows = flows.map(|flow| parts.map(|part| flow[part].to_string()).join(" "));
    (status["drops"].clone(), status["recent_drops"].clone(), flows.collect())
}

#[test]
fn objects_tables_and_kernel_agree_and_questions_leave_nothing() {
    require_root!();
    let mut cluster = world();
    cluster.denied("c", "server");
    cluster.reaches("a", "server");
    std::thread::sleep(MOMENT);
    let before = traces(&cluster);
    let mut parties: Vec<String> = PODS.iter().map(|name| format!("shop/{name}")).collect();
    parties.extend(cluster.nodes[0].addresses().map(|address| address.to_string()));
    let outside = ["198.51.100.1", "198.51.100.65", "203.0.113.9", "2001:db8::1", "2001:db8:1::1"];
    parties.extend(outside.map(str::to_owned));
    let mut targets = parties.clone();
    targets.push("svc/shop/both".to_owned());
    let protocols = ["TCP", "UDP", "SCTP", "ICMP", "47"];
    let ports = [PORT, SERVICE_PORT, 99, 100, 200, 300, 301, 443, 65_535];
    let mut numbers = Numbers(42);
    let mut verdicts = [[0; 2]; 2];
    let begin = Instant::now();
    for _ in 0..QUESTIONS {
        let question = json!({
            "from": numbers.of(&parties), "to": numbers.of(&targets),
            "protocol": numbers.of(&protocols), "port": numbers.of(&ports),
        });
        let answer = ask(&cluster, &question);
        for end in answer["ends"].as_array().unwrap() {
            assert!(!differs(end), "{question}: {end}");
            let egress = usize::from(end["direction"] == "egress");
            verdicts[egress][usize::from(end["kernel"] == "allow")] += 1;
        }
    }
    println!("{QUESTIONS} questions, {verdicts:?} in {:?}", begin.elapsed());
    assert!(verdicts.as_flattened().iter().all(|times| *times > 100), "{verdicts:?}");
    std::thread::sleep(MOMENT);
    let left = traces(&cluster);
    assert_eq!((&left.0, &left.1), (&before.0, &before.1), "no drop is reported");
    let new: Vec<_> = left.2.difference(&before.2).collect();
    assert_eq!(new, [] as [&String; 0], "no flow is left");
    // Real drops are still counted and reported, from the next second on: the questions may have used up the event
    // budget of this second.
    std::thread::sleep(Duration::from_secs(1));
    cluster.denied("c", "server");
    let after = traces(&cluster);
    assert!(after.0 != before.0 && after.1 != before.1, "{after:?}");

    assert_manual_change_is_reported(&mut cluster);
}

/// Opens the server's ingress only in the kernel's table; asserts that `netpold explain` reports the difference.
fn assert_manual_change_is_reported(cluster: &mut TestCluster) {
    let endpoints = MappedArray::<Endpoint>::flat(&pinned(cluster, "ENDPOINTS")).unwrap();
    let index = cluster.pod("server").host_ifindex();
    let mut slots = 0..ENDPOINT_SLOTS;
    let slot = slots.find(|slot| endpoints.read(*slot).unwrap().ifindex == index).unwrap();
    endpoints.store_u64(slot, offset_of!(Endpoint, rows), 0).unwrap();
    let to = match cluster.pod("server").ip4() {
        Some(IpAddr::V4(to)) => IpAddr::V4(to),
        _ => panic!("the server has no address"),
    };
    let through = cluster.pod("c").probe(ProbeProtocol::Tcp, to, PORT, MOMENT);
    assert!(through.connected(), "the manual change has an effect: {through}");
    let arguments = ["explain", "--from", "shop/c", "--to", "shop/server", "--port", "80"];
    let output = cluster.agents[0].command(&arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("DIFFERENT: ingress of shop/server from"), "{text}");
    assert!(first.contains("objects deny, tables deny (policy), kernel allow"), "{text}");
}
