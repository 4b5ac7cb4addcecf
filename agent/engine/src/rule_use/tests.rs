use std::net::Ipv4Addr;
use std::time::Instant;

use aya::maps::MapData;
use netpold_core::model::{
    Action, Direction, Interface, InterfaceOwner, Key, Pod, Policy, Rule, Tier,
};
use netpold_core::options::Options;
use netpold_dataplane::bpf::test_objects;
use netpold_dataplane::conntrack::{FlowKey, Sweeper, TrackedFlow};
use netpold_ebpf::flow::control::timeouts;
use netpold_ebpf::layout::{
    CT_EGRESS, CT_INGRESS, CT_NODE, CT_REPLIED, CT_VALID, Ct4Bucket, Ct4Key, Ct6Bucket, Settings,
};
use netpold_testkit::objects::{self, block, select};

use super::*;

const HZ: u32 = 250;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// A node with one pod, `x/server`, and a flow table without programs.
struct World {
    compiler: Compiler,
    sweeper: Sweeper,
    endpoint: u32,
    revision: u64,
    now: u32,
}

impl World {
    fn new(policies: Vec<Policy>, buckets: u32) -> Self {
        let mut compiler = Compiler::new(Options { node: "n".to_owned(), ..Options::default() });
        let server = Pod {
            node: "n".into(),
            ..objects::pod("x", "server", &[("app", "server")], &["10.200.0.1"])
        };
        let interface = Interface {
            index: 5,
            incarnation: 1,
            addresses: server.addresses.clone(),
            owner: InterfaceOwner::Unbound,
        };
        compiler.ingest(Change::Pod(server));
        compiler.ingest(Change::Interface(interface));
        policies.into_iter().for_each(|policy| compiler.ingest(Change::Policy(policy)));
        compiler.update().unwrap();
        let endpoint = compiler.endpoints().next().unwrap().id;
        let map = |size: usize, of| {
            MapData::from_fd(test_objects::array(size as u32, of, BPF_F_MMAPABLE)).unwrap()
        };
        let settings = Settings {
            timeouts: timeouts(HZ),
            ct4_mask: buckets - 1,
            hash_keys: netpold_ebpf::flow::key::hash_keys(7),
            ..Settings::default()
        };
        let four = map(size_of::<Ct4Bucket>(), buckets);
        let six = map(size_of::<Ct6Bucket>(), 1);
        let sweeper = Sweeper::new(&four, &six, settings, HZ).unwrap();
        Self { compiler, sweeper, endpoint, revision: 1, now: 1_000_000 }
    }

    fn ingest(&mut self, rules: &mut RuleUse, change: Change) {
        rules.record_change(&change, self.compiler.cluster());
        self.compiler.ingest(change);
        self.compiler.update().unwrap();
        self.revision += 1;
        rules.set_endpoints(&self.compiler);
    }

    /// Adds a flow in ingress or egress with a packet now; no other flow may displace it.
    fn packet(&self, remote: &str, [local_port, remote_port]: [u16; 2], flags: u16) {
        let remote = remote.parse::<Ipv4Addr>().unwrap().into();
        let endpoint = self.endpoint;
        let key = Ct4Key { endpoint, remote, local_port, remote_port, protocol: 17 };
        let flow = TrackedFlow {
            key: FlowKey::V4(key),
            flags: CT_VALID | CT_REPLIED | flags,
            seen: self.now,
        };
        self.sweeper.import(&flow, self.now).unwrap();
    }

    fn sweep(&self, rules: &mut RuleUse) {
        let live = self.compiler.endpoint_numbers();
        let mut round = rules.begin(&self.compiler, self.revision, false);
        let _ = self.sweeper.pass(self.now, Some(&live), |flow| round.visit_flow(flow));
        let met = round.finish();
        rules.end(&self.compiler, met);
    }

    fn wait(&mut self, seconds: u32) {
        self.now += seconds * HZ;
    }
}

fn from(cidr: &str) -> Rule {
    Rule { peers: Some(vec![block(cidr, &[])]), ports: None }
}

fn policy(name: &str, rules: Vec<Rule>) -> Policy {
    objects::policy("x", name, select(&[("app", "server")]), Some(rules), None)
}

/// Returns the number of flows by rule of a policy.
fn flows(rules: &RuleUse, name: &str) -> Vec<u64> {
    let all = rules.answer("n").rules.into_iter().filter(|rule| rule.name == name);
    all.map(|rule| rule.flows).collect()
}

#[test]
fn a_flow_marks_the_rules_that_allow_it_once() {
    let rules = vec![from("10.1.0.0/16"), from("10.2.0.0/16"), from("10.0.0.0/8")];
    let mut world = World::new(vec![policy("p", rules)], 64);
    let mut used = RuleUse::default();
    world.sweep(&mut used);
    assert_eq!(flows(&used, "p"), [0, 0, 0]);
    assert_eq!(used.answer("n").rules[0].last_used, None);
    world.wait(10);
    world.packet("10.1.0.1", [53, 4000], CT_INGRESS);
    for _ in 0..3 {
        world.sweep(&mut used);
        assert_eq!(flows(&used, "p"), [1, 0, 1], "counted once");
        world.wait(1);
    }
    // A packet of the node, one of the pod's own flow, and one without an allowing rule.
    world.packet("10.2.0.1", [53, 4000], CT_INGRESS | CT_NODE);
    world.packet("10.2.0.1", [53, 4001], CT_EGRESS);
    world.packet("192.168.0.1", [53, 4001], CT_INGRESS);
    world.sweep(&mut used);
    assert_eq!(flows(&used, "p"), [1, 0, 1]);
    // Times in the answer are wall-clock times.
    let last = used.answer("n").rules[0].last_used.unwrap();
    assert!(used.answer("n").as_of.abs_diff(last) < 30, "{last}");
}

#[test]
fn a_flow_that_is_over_is_counted_before_it_is_removed() {
    let mut world = World::new(vec![policy("p", vec![from("10.0.0.0/8")])], 64);
    // The kernel's clock runs faster than the wall clock here.
    let mut used = RuleUse { last: SweepResult::default(), ..RuleUse::default() };
    world.packet("10.1.0.1", [53, 4000], CT_INGRESS);
    world.wait(3600);
    world.sweep(&mut used);
    assert_eq!(flows(&used, "p"), [1]);
    assert_eq!(world.sweeper.pass(world.now, None, |_| panic!("it is removed")).v4.two_way, 0);
    assert_eq!(used.answer("n").missed_flows, 0);
}

#[test]
fn a_pod_that_goes_before_the_sweep_still_counts() {
    let rule = Rule {
        peers: Some(vec![netpold_core::model::Peer::Pods {
            namespaces: None,
            pods: select(&[("app", "client")]),
        }]),
        ports: None,
    };
    let mut world = World::new(vec![policy("p", vec![rule])], 64);
    let mut used = RuleUse::default();
    world.sweep(&mut used);
    let client = objects::pod("x", "client", &[("app", "client")], &["10.1.0.1"]);
    world.ingest(&mut used, Change::Pod(client.clone()));
    world.wait(1);
    world.packet("10.1.0.1", [53, 4000], CT_INGRESS);
    world.ingest(&mut used, Change::PodGone(client.key));
    world.ingest(&mut used, Change::PodGone(Key::new("x", "server")));
    world.ingest(&mut used, Change::InterfaceGone(5));
    world.sweep(&mut used);
    assert_eq!(flows(&used, "p"), [1], "also when the pod itself is gone");
    world.wait(1);
    world.packet("10.1.0.1", [53, 4001], CT_INGRESS);
    world.sweep(&mut used);
    assert_eq!(flows(&used, "p"), [2], "the name outlives the pod");
}

/// Returns direction, peer, port and number of each kind of flow.
fn kinds(rules: &RuleUse) -> Vec<String> {
    let flows = rules.flows("n").flows.into_iter();
    flows.map(|it| format!("{} {} {} {}", it.direction, it.peer, it.port, it.flows)).collect()
}

#[test]
fn an_answer_of_a_udp_server_is_recorded_as_the_flow_that_its_client_began() {
    let mut world = World::new(vec![policy("p", vec![from("10.0.0.0/8")])], 64);
    let mut used = RuleUse::default();
    world.sweep(&mut used);
    world.wait(10);
    // The table has only the answer, or the answer came first and the request from the kernel's conntrack.
    world.packet("10.1.0.1", [53, 40_000], CT_EGRESS);
    world.packet("10.1.0.2", [53, 40_000], CT_EGRESS | CT_INGRESS);
    world.packet("10.1.0.3", [40_000, 53], CT_INGRESS);
    // Ports that show no direction, and a request.
    world.packet("10.1.0.4", [53, 53], CT_EGRESS);
    world.packet("10.1.0.5", [50_000, 53], CT_EGRESS);
    world.sweep(&mut used);
    let expected = [
        "ingress 10.1.0.1 53 1",
        "ingress 10.1.0.2 53 1",
        "egress 10.1.0.3 53 1",
        "egress 10.1.0.4 53 1",
        "egress 10.1.0.5 53 1",
    ];
    assert_eq!(kinds(&used), expected);
}

#[test]
fn a_flow_keeps_its_peers_name_when_the_pod_is_gone() {
    let mut world = World::new(vec![policy("p", vec![from("10.0.0.0/8")])], 64);
    let mut used = RuleUse::default();
    world.sweep(&mut used);
    let client = objects::pod("x", "client", &[("app", "client")], &["10.1.0.1"]);
    world.ingest(&mut used, Change::Pod(client.clone()));
    world.wait(1);
    world.packet("10.1.0.1", [53, 40_000], CT_INGRESS);
    world.sweep(&mut used);
    world.ingest(&mut used, Change::PodGone(client.key));
    for port in [40_000, 40_001, 40_002] {
        world.wait(10);
        world.packet("10.1.0.1", [53, port], CT_INGRESS);
        world.sweep(&mut used);
    }
    assert_eq!(kinds(&used), ["ingress x app=client 53 3"], "two sweeps after it was gone");
    // A Job's pod is finished when its address is first reported.
    world.packet("10.1.0.9", [53, 40_000], CT_INGRESS);
    let lately = i64::try_from(unix_millis() / 1000).unwrap() - 60;
    let job = objects::pod("x", "job", &[("app", "job")], &["10.1.0.9"]);
    let job = Pod { finished: true, created: lately, ..job };
    world.ingest(&mut used, Change::Pod(job));
    world.wait(10);
    world.sweep(&mut used);
    assert_eq!(kinds(&used), ["ingress x app=client 53 3", "ingress x app=job 53 1"]);
}

#[test]
fn an_edit_begins_anew_with_the_rules_that_it_changes() {
    let (a, b) = (from("10.1.0.0/16"), from("10.2.0.0/16"));
    let mut world = World::new(vec![policy("p", vec![a.clone(), b.clone()])], 64);
    let mut used = RuleUse::default();
    world.packet("10.1.0.1", [53, 4000], CT_INGRESS);
    world.packet("10.2.0.1", [53, 4000], CT_INGRESS);
    world.sweep(&mut used);
    assert_eq!(flows(&used, "p"), [1, 1]);
    let wider = from("10.0.0.0/8");
    let edited = policy("p", vec![wider.clone(), b.clone()]);
    // The edit is later than the packets that it would allow too.
    std::thread::sleep(std::time::Duration::from_millis(100));
    world.ingest(&mut used, Change::Policy(edited));
    world.wait(1);
    world.sweep(&mut used);
    assert_eq!(flows(&used, "p"), [0, 1]);
    world.packet("10.9.0.1", [53, 4000], CT_INGRESS);
    world.sweep(&mut used);
    assert_eq!(flows(&used, "p"), [1, 1]);
    // A moved rule keeps its record; the rule of another object gets a new one.
    world.ingest(&mut used, Change::Policy(policy("p", vec![b.clone(), wider])));
    world.sweep(&mut used);
    assert_eq!(flows(&used, "p"), [1, 1]);
    let mut other = policy("p", vec![b]);
    other.version.uid = "another".to_owned();
    world.ingest(&mut used, Change::Policy(other));
    world.sweep(&mut used);
    assert_eq!(flows(&used, "p"), [0]);
    world.ingest(&mut used, Change::PolicyGone(Key::new("x", "p")));
    world.sweep(&mut used);
    assert_eq!(used.answer("n").rules, []);
}

/// One flow for each of 10,000 rules except one, and an agent's restart in between.
#[test]
fn of_ten_thousand_rules_all_that_were_used_are_marked_and_no_other() {
    const RULES: u32 = 10_000;
    const UNUSED: usize = 7_777;
    let address = |n: u32| format!("10.{}.{}.1", n >> 8, n & 255);
    let rules = (0..RULES).map(|n| from(&format!("{}/32", address(n)))).collect();
    let mut world = World::new(vec![policy("p", rules)], 8_192);
    let mut used = RuleUse::default();
    let (first, second) = (0..RULES / 2, RULES / 2..RULES);
    let begin = |world: &World, rules: std::ops::Range<u32>| {
        for n in rules.filter(|n| *n as usize != UNUSED) {
            world.packet(&address(n), [53, 4000], CT_INGRESS);
        }
    };
    begin(&world, first);
    world.sweep(&mut used);
    world.wait(10);
    let bytes = serde_json::to_vec(&used.saved()).unwrap();
    let mut used = RuleUse::default();
    used.resume(serde_json::from_slice(&bytes).unwrap());
    begin(&world, second);
    for _ in 0..2 {
        world.sweep(&mut used);
        world.wait(10);
    }
    let answer = used.answer("n");
    assert_eq!((answer.rules.len(), answer.missed_flows), (RULES as usize, 0));
    for (number, rule) in answer.rules.iter().enumerate() {
        assert_eq!((rule.index, rule.direction), (number, Direction::Ingress));
        let expected = u64::from(number != UNUSED);
        assert_eq!(
            (rule.flows, u64::from(rule.last_used.is_some())),
            (expected, expected),
            "{number}"
        );
    }
}

/// Flows beyond the budget of one sweep are counted by the next ones, without delay for another pod.
#[test]
fn a_sweep_ends_with_its_budget_and_the_next_goes_on() {
    // Each flow is compared with each of 2,000 rules.
    let rules = (1..=2_000_u16).map(|port| Rule {
        peers: None,
        ports: Some(vec![netpold_core::model::PortRule {
            protocol: netpold_core::model::Protocol::Udp,
            port: netpold_core::model::PortMatch::Range(port, port),
        }]),
    });
    let mut world = World::new(vec![policy("p", rules.collect())], 1_024);
    let mut used = RuleUse { last: SweepResult::default(), ..RuleUse::default() };
    for port in 1..=2_000 {
        world.packet("10.1.0.1", [port, 4000], CT_INGRESS);
    }
    let counted = |used: &RuleUse| flows(used, "p").into_iter().sum::<u64>();
    world.sweep(&mut used);
    let first = counted(&used);
    assert!((1..200).contains(&first), "{first}");
    for _ in 0..=2_000 / first {
        world.wait(1);
        world.sweep(&mut used);
    }
    assert!(flows(&used, "p").iter().all(|flows| *flows == 1));
    assert_eq!(used.answer("n").missed_flows, 0);
}

/// 400,000 flows in a table for 524,288.
#[test]
fn a_full_table_costs_little() {
    const FLOWS: u32 = 400_000;
    let rules = (0..100).map(|n| from(&format!("10.{n}.0.0/16"))).collect();
    let mut world = World::new(vec![policy("p", rules)], 131_072);
    let mut used = RuleUse { last: SweepResult::default(), ..RuleUse::default() };
    for n in 0..FLOWS {
        let remote = format!("10.{}.{}.1", n % 100, (n / 100) % 40);
        world.packet(&remote, [53, (n / 4_000) as u16 + 1_024], CT_INGRESS);
    }
    let mut sweep = |what: &str, world: &World| {
        let start = Instant::now();
        world.sweep(&mut used);
        let took = start.elapsed();
        let counted: u64 = flows(&used, "p").into_iter().sum();
        println!("{what}: {took:?}, {counted} of {FLOWS} flows counted");
        counted
    };
    let mut counted = sweep("all new", &world);
    while counted < FLOWS.into() {
        world.wait(1);
        let now = sweep("what was left", &world);
        assert!(now > counted);
        counted = now;
    }
    world.wait(1);
    assert_eq!(sweep("nothing new", &world), u64::from(FLOWS));
    let start = Instant::now();
    let mut flows = 0;
    let _ = world.sweeper.pass(world.now, None, |_| flows += 1);
    println!("without counting: {:?} for {flows} flows", start.elapsed());
}

#[test]
fn accept_rules_of_cluster_policies_are_counted_and_kept() {
    let rule = |action, cidr| objects::cluster_rule(action, vec![block(cidr, &[])], None);
    let accept = |cidr| rule(Action::Accept, cidr);
    let egress = vec![
        rule(Action::Deny, "10.3.0.0/16"),
        accept("10.1.0.0/16"),
        accept("10.2.0.0/16"),
        rule(Action::Pass, "0.0.0.0/0"),
    ];
    let guard = objects::cluster_policy("guard", (Tier::Admin, 10), Vec::new(), egress);
    let all = Some(vec![from("10.0.0.0/8")]);
    let own = objects::policy("x", "p", select(&[("app", "server")]), None, all);
    let mut world = World::new(vec![own], 64);
    let mut used = RuleUse::default();
    world.ingest(&mut used, Change::ClusterPolicy(guard));
    world.sweep(&mut used);
    world.wait(10);
    world.packet("10.1.0.1", [4000, 53], CT_EGRESS);
    world.sweep(&mut used);
    let rules = |used: &RuleUse| -> Vec<(String, usize, u64)> {
        let all = used.answer("n").rules.into_iter();
        all.map(|rule| (format!("{} {}", rule.kind, rule.name), rule.index, rule.flows)).collect()
    };
    let guard = || "ClusterNetworkPolicy guard".to_owned();
    let expected = [(guard(), 1, 1), (guard(), 2, 0), ("NetworkPolicy p".to_owned(), 0, 0)];
    assert_eq!(rules(&used), expected, "p was not asked; what denies and passes is not listed");
    let mut next = RuleUse::default();
    world.wait(10);
    next.resume(used.saved());
    world.sweep(&mut next);
    assert_eq!(rules(&next), expected);
}
