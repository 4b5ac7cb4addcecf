use std::net::{IpAddr, Ipv4Addr};

use netpold_api::learn::{LearnAnswer, LearnedPeer, ObservedFlow, merge};
use netpold_api::workload::Workload;
use netpold_core::cluster::Cluster;
use netpold_core::explain::PodFlow;
use netpold_core::model::{Change, Direction, DomainName, Key, Pod};
use netpold_core::probe::IpProtocol;
use netpold_testkit::objects;

use super::shares::{NAMESPACE_MAX, TOTAL_MAX};
use super::{FlowSighting, Recorder};

fn met(at: u64) -> FlowSighting {
    FlowSighting { endpoint: 1, at, is_new: true, on_trial: false }
}

fn address(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + number).into()
}

/// Records flows from one pod to another at some ports.
fn reach(recorder: &mut Recorder, from: &Pod, to: &Pod, ports: std::ops::Range<u16>) {
    let cluster: Cluster = [from, to].map(|pod| Change::Pod(pod.clone())).into_iter().collect();
    recorder.begin(true, 0);
    for port in ports {
        let (remote, protocol) = (from.addresses[0], IpProtocol::TCP);
        let flow = PodFlow { pod: to, direction: Direction::Ingress, remote, protocol, port };
        recorder.record_flow(&cluster, flow, |_| None, met(u64::from(port)), &mut 0);
    }
}

fn pod(namespace: &str, number: u32) -> Pod {
    let app = format!("app{number}");
    let address = address(number).to_string();
    objects::pod(namespace, &app, &[("app", &app)], &[&address])
}

/// Counts the recorded flows from pods of a namespace.
fn from(answer: &LearnAnswer, namespace: &str) -> usize {
    let is_meant = |flow: &&ObservedFlow| match &flow.peer {
        LearnedPeer::Workload(peer) => peer.namespace == namespace,
        LearnedPeer::Service(_) | LearnedPeer::Node | LearnedPeer::Address(_) => false,
    };
    answer.flows.iter().filter(is_meant).count()
}

#[test]
fn a_scan_displaces_nothing_but_itself() {
    let mut recorder = Recorder::new(0);
    let victim = pod("shop", 1);
    for friend in 0..40 {
        reach(&mut recorder, &pod("friends", 100 + friend), &victim, 80..82);
    }
    for scanner in 0..100 {
        reach(&mut recorder, &pod("evil", 1000 + scanner), &victim, 1..200);
    }
    for late in 0..40 {
        reach(&mut recorder, &pod("late", 500 + late), &victim, 80..82);
    }
    let answer = recorder.answer("n", 0);
    assert_eq!((from(&answer, "friends"), from(&answer, "late")), (80, 80));
    assert_eq!(answer.flows.len(), NAMESPACE_MAX);
    // At most 64 ports per scanner, less the displaced ones.
    let scanned = (NAMESPACE_MAX - 160) as u64;
    assert_eq!(answer.left_out["shop"], 100 * 199 - scanned);
}

#[test]
fn a_namespace_that_is_full_leaves_others_room() {
    let mut recorder = Recorder::new(0);
    let namespaces = (TOTAL_MAX / NAMESPACE_MAX) as u32 + 2;
    for number in 0..namespaces {
        for peer in 0..40 {
            let (from, to) = (pod("evil", 1000 + peer), pod(&format!("evil{number}"), number));
            reach(&mut recorder, &from, &to, 1..65);
        }
    }
    assert_eq!(recorder.answer("n", 0).flows.len(), TOTAL_MAX);
    reach(&mut recorder, &pod("friends", 100), &pod("shop", 1), 80..85);
    let answer = recorder.answer("n", 0);
    assert_eq!((from(&answer, "friends"), answer.flows.len()), (5, TOTAL_MAX));
    assert!(!answer.left_out.contains_key("shop"));
}

#[test]
fn the_next_agent_goes_on() {
    let mut recorder = Recorder::new(7000);
    reach(&mut recorder, &pod("friends", 100), &pod("shop", 1), 80..90);
    let dropped = PodFlow {
        pod: &pod("shop", 1),
        direction: Direction::Egress,
        remote: address(9),
        protocol: IpProtocol::UDP,
        port: 53,
    };
    recorder.denied(&Cluster::default(), dropped, |_| None, 3, 5000);
    let first = recorder.answer("n", 9000);
    let mut next = Recorder::new(8000);
    next.resume(first.clone());
    assert_eq!(next.answer("n", 9000), first);
    assert_eq!((first.flows.len(), first.since), (11, 7));
    reach(&mut next, &pod("friends", 100), &pod("shop", 1), 89..91);
    assert_eq!(next.answer("n", 9000).flows.len(), 12);
    // The counts of two nodes add up.
    let both = merge(vec![("b".to_owned(), next.answer("b", 9000)), ("a".to_owned(), first)]);
    let port = |port: u16| both.flows.iter().find(|flow| flow.port == port).unwrap().flows;
    assert_eq!((both.node.as_str(), port(89), port(90), port(80)), ("a,b", 3, 1, 2));
    let denied: Vec<u64> = both.flows.iter().map(|flow| flow.denied).filter(|d| *d > 0).collect();
    assert_eq!(denied, [6]);
}

/// Records a flow to the server of a workload from an address, at a time in milliseconds.
fn met_from(
    recorder: &mut Recorder,
    cluster: &Cluster,
    remote: IpAddr,
    former: Option<&Pod>,
    at: u64,
) {
    let server = pod("shop", 1);
    let flow = PodFlow {
        pod: &server,
        direction: Direction::Ingress,
        remote,
        protocol: IpProtocol::TCP,
        port: 80,
    };
    recorder.record_flow(cluster, flow, |_| former, met(at), &mut 0);
}

fn peers(recorder: &Recorder) -> Vec<(String, u64)> {
    let flows = recorder.answer("n", 0).flows.into_iter();
    flows.map(|flow| (flow.peer.to_string(), flow.flows)).collect()
}

#[test]
fn a_pod_whose_address_becomes_known_late_gives_its_flows_its_name() {
    const CREATED: u64 = 1_000_000;
    let (mut recorder, cluster) = (Recorder::new(0), Cluster::default());
    let remote = address(100);
    // A flow before the pod's creation, the pod's first flow, and a later flow that joins its record.
    met_from(&mut recorder, &cluster, address(101), None, CREATED - 60_000);
    met_from(&mut recorder, &cluster, remote, None, CREATED + 1000);
    let client = Pod { created: CREATED as i64 / 1000, ..pod("shop", 100) };
    let two = Pod { addresses: vec![remote, address(101)], ..client.clone() };
    let workload = Workload::of_pod(&client).unwrap().to_string();
    let nameless = Pod { addresses: Vec::new(), ..client.clone() };
    recorder.named(&nameless, &cluster, CREATED);
    assert_eq!(peers(&recorder).len(), 2);
    let with_nameless: Cluster = [Change::Pod(nameless)].into_iter().collect();
    recorder.named(&two, &with_nameless, CREATED + 3000);
    let outside = address(101).to_string();
    assert_eq!(peers(&recorder), [(workload.clone(), 1), (outside.clone(), 1)]);
    recorder.begin(true, CREATED + 3000);
    let known: Cluster = [Change::Pod(client.clone())].into_iter().collect();
    met_from(&mut recorder, &known, remote, None, CREATED + 4000);
    assert_eq!(peers(&recorder), [(workload.clone(), 2), (outside.clone(), 1)]);

    // No object has the address any more: it keeps its workload for a day, also with the next agent.
    recorder.begin(true, CREATED + 5000);
    met_from(&mut recorder, &cluster, remote, None, CREATED + 5000);
    assert_eq!(peers(&recorder), [(workload.clone(), 3), (outside.clone(), 1)]);
    let mut next = Recorder::new(0);
    next.resume(recorder.answer("n", CREATED));
    next.resume_addresses(recorder.peer_addresses());
    met_from(&mut next, &cluster, remote, None, CREATED + 6000);
    assert_eq!(peers(&next), [(workload.clone(), 4), (outside, 1)]);
    next.begin(true, CREATED + 3 * 86_400_000);
    assert_eq!(next.peer_addresses(), []);
    // A node has the address now.
    let node: Cluster =
        [Change::Node(objects::node("m", &[&remote.to_string()]))].into_iter().collect();
    recorder.begin(true, CREATED + 7000);
    met_from(&mut recorder, &node, remote, None, CREATED + 7000);
    assert!(peers(&recorder).contains(&(remote.to_string(), 1)), "{:?}", peers(&recorder));
}

#[test]
fn a_flow_is_of_the_pod_that_had_the_address_then() {
    let remote = address(100);
    let (old, new) = (pod("shop", 100), Pod { key: Key::new("shop", "new"), ..pod("shop", 101) });
    let new = Pod { addresses: vec![remote], ..new };
    let cluster: Cluster = [Change::Pod(new.clone())].into_iter().collect();
    let mut recorder = Recorder::new(0);
    met_from(&mut recorder, &cluster, remote, Some(&old), 1000);
    met_from(&mut recorder, &cluster, remote, None, 2000);
    met_from(&mut recorder, &cluster, remote, Some(&old), 1000);
    let mut expected = [&old, &new].map(|pod| Workload::of_pod(pod).unwrap().to_string());
    expected.sort();
    let mut seen: Vec<String> = peers(&recorder).into_iter().map(|(peer, _)| peer).collect();
    seen.sort();
    assert_eq!(seen, expected);
}

#[test]
fn a_record_keeps_the_names_of_its_address() {
    let (mut recorder, web) = (Recorder::new(0), pod("shop", 1));
    let cluster: Cluster = [Change::Pod(web.clone())].into_iter().collect();
    let (protocol, port) = (IpProtocol::TCP, 443);
    let name = |text: &str| DomainName::try_from(text.to_owned()).unwrap();
    let remote = "192.0.2.7".parse::<IpAddr>().unwrap();
    let flow = PodFlow { pod: &web, direction: Direction::Egress, remote, protocol, port };
    let id = recorder.record_flow(&cluster, flow, |_| None, met(1000), &mut 0);
    let names: Vec<DomainName> = (0..20)
        .map(|n| name(&format!("n{n:02}.example.com")))
        .chain([name("*.example.com")])
        .collect();
    recorder.resolved_to(id, names[20..].iter());
    recorder.resolved_to(id, names[..20].iter());
    recorder.resolved_to(0, names.iter());
    let answer = recorder.answer("n", 2000);
    let kept = &answer.flows[0].names;
    assert!(kept.len() == 8 && kept.contains(&names[20]), "{kept:?}");
    let mut next = Recorder::new(0);
    next.resume(answer.clone());
    assert_eq!(next.answer("n", 2000).flows, answer.flows);
    let other = LearnAnswer {
        flows: vec![ObservedFlow {
            names: [name("x.example.org")].into(),
            ..answer.flows[0].clone()
        }],
        ..answer.clone()
    };
    let all = merge(vec![("a".into(), answer), ("b".into(), other)]);
    assert_eq!(all.flows[0].names.len(), 9);
}
