//! Conversations over UDP, and connections to the addresses in the answers.

use std::net::IpAddr;
use std::time::Duration;

use netpold_core::cluster::Cluster;
use netpold_core::explain::{Explainer, ResolvedNames, ResolvedWithin, Verdict};
use netpold_core::model::{Action, Change, ClusterRule, Direction, DomainName, Key};
use netpold_core::probe::IpProtocol;
use netpold_ebpf::layout::{NAME_GROUPS, RESOLVER_SLOTS};
use netpold_ebpf::packet::protocol::{TCP, TCP_ACK, TCP_SYN, UDP};
use netpold_testkit::flows::HZ;
use netpold_testkit::frames::{tcp as tcp_header, udp};
use netpold_testkit::names::{Record, answer, message, query, wire};
use netpold_testkit::objects::{self, block, cluster_rule, ip, tcp};
use netpold_testkit::oracle::Oracle;
use netpold_testkit::random::Random;

use super::net::{API, BACKEND, DNS, FOUND, Net, accept, cluster, domain, found, only, pointer};

#[test]
fn who_resolved_a_name_reaches_its_address_at_the_port_of_the_rule() {
    let net = Net::of_api();
    assert!(!net.reaches(1, FOUND, 443), "not resolved yet");
    net.resolve("API.Example.COM", &found("api.example.com", 5));
    assert!(net.reaches(1, FOUND, 443));
    assert!(!net.reaches(1, FOUND, 80), "another port");
    assert!(!net.reaches(1, "192.0.2.8", 443), "another address");
    assert!(!net.reaches(2, FOUND, 443), "another pod");
    net.flows.later(60 * HZ);
    assert!(net.reaches(1, FOUND, 443), "at least 60 seconds");
    net.flows.later(HZ);
    assert!(!net.reaches(1, FOUND, 443), "and then no longer");
}

#[test]
fn aliases_are_followed_within_one_answer() {
    let net = Net::of_api();
    let (edge, cdn) = (wire("edge.example.net"), wire("x.cdn.example"));
    net.resolve(
        API,
        &[
            Record::alias(pointer(), edge.clone()),
            Record::address(wire("other.example"), ip("192.0.2.99"), 300),
            Record::alias(edge, cdn.clone()),
            Record::address(cdn.clone(), ip(FOUND), 300),
            Record::address(cdn, ip("2001:db8::7"), 300),
        ],
    );
    assert!(net.reaches(1, FOUND, 443) && net.reaches(1, "2001:db8::7", 443));
    assert!(!net.reaches(1, "192.0.2.99", 443), "a record of another name");
}

#[test]
fn wildcards_are_one_or_more_labels() {
    let net = Net::new(vec![accept(vec![domain("*.wild.example")], None)]);
    for (name, matches) in [
        ("a.wild.example", true),
        ("a.b.WILD.example", true),
        ("wild.example", false),
        ("awild.example", false),
        ("a.wild.example.org", false),
    ] {
        net.resolve(name, &[Record::address(pointer(), ip(FOUND), 300)]);
        assert_eq!(net.reaches(1, FOUND, 443), matches, "{name}");
        net.flows.later(301 * HZ);
    }
}

#[test]
fn sixty_four_records_are_read() {
    let net = Net::of_api();
    let at = |n: u32| IpAddr::from([198, 18, 0, n as u8]);
    let records: Vec<_> = (1..=70).map(|n| Record::address(pointer(), at(n), 300)).collect();
    net.resolve(API, &records);
    let reached = (1..=70).filter(|n| net.reaches(1, &at(*n).to_string(), 443));
    assert_eq!(reached.count(), 64);
}

/// Answers that open nothing, each with the reason.
#[test]
fn forged_and_malformed_answers_open_nothing() {
    type Attack = fn(&Net, &[u8], &[u8]);
    let attacks: [(&str, Attack); 12] = [
        ("unasked", |net, _, good| _ = net.deliver(1, DNS, 5000, good)),
        ("from elsewhere", |net, asked, good| {
            net.send(1, DNS, 5000, asked);
            net.deliver(1, "10.96.0.11", 5000, good);
        }),
        ("from the other resolver", |net, asked, good| {
            net.send(1, DNS, 5000, asked);
            net.deliver(1, BACKEND, 5000, good);
        }),
        ("asked of no resolver", |net, asked, good| {
            net.send(1, "192.0.2.53", 5000, asked);
            net.deliver(1, "192.0.2.53", 5000, good);
        }),
        ("asked by another pod", |net, asked, good| {
            net.send(2, DNS, 5000, asked);
            net.deliver(1, DNS, 5000, good);
        }),
        ("another port", |net, asked, good| {
            net.send(1, DNS, 5000, asked);
            net.deliver(1, DNS, 5001, good);
        }),
        ("another identifier", |net, asked, good| {
            net.send(1, DNS, 5000, asked);
            let mut other = good.to_vec();
            other[1] ^= 1;
            net.deliver(1, DNS, 5000, &other);
        }),
        ("another name was asked", |net, _, good| {
            net.send(1, DNS, 5000, &query(7, &wire("mine.example")));
            net.deliver(1, DNS, 5000, good);
        }),
        ("too late", |net, asked, good| {
            net.send(1, DNS, 5000, asked);
            net.flows.later(10 * HZ + 1);
            net.deliver(1, DNS, 5000, good);
        }),
        ("a question as answer", |net, asked, good| {
            net.send(1, DNS, 5000, asked);
            let mut other = good.to_vec();
            other[2] &= 0x7f;
            net.deliver(1, DNS, 5000, &other);
        }),
        ("an error", |net, asked, good| {
            net.send(1, DNS, 5000, asked);
            let mut other = good.to_vec();
            other[3] |= 3;
            net.deliver(1, DNS, 5000, &other);
        }),
        ("cut off", |net, asked, good| {
            net.send(1, DNS, 5000, asked);
            net.deliver(1, DNS, 5000, &good[..good.len() - 1]);
        }),
    ];
    let (asked, good) = (query(7, &wire(API)), answer(7, &wire(API), &found(API, 300)));
    for (what, attack) in attacks {
        let net = Net::of_api();
        attack(&net, &asked, &good);
        assert!(!net.reaches(1, FOUND, 443), "{what}");
        net.send(1, DNS, 5000, &asked);
        net.deliver(1, DNS, 5000, &good);
        assert!(net.reaches(1, FOUND, 443), "{what}: the pod's own lookup works afterwards");
    }
}

#[test]
fn names_that_are_no_names_open_nothing() {
    let long = vec!["abcdefg"; 32].join(".");
    // Owner names, for a record at offset 33; true: the bytes are a valid name if an alias with them comes first.
    let owners: [(Vec<u8>, bool); 6] = [
        (vec![0xc0, 40], true),
        (vec![0xc0, 33], true),
        ([&b"\x03api"[..], &[0xc0, 33]].concat(), true),
        (vec![0xff, 0xff], false),
        ([&[0x40][..], &[b'a'; 64], &[0]].concat(), false),
        ([wire(&long), wire(API)].concat(), false),
    ];
    for (owner, is_name) in owners {
        let net = Net::of_api();
        net.resolve(API, &[Record::address(owner.clone(), ip(FOUND), 300)]);
        assert!(!net.reaches(1, FOUND, 443), "{owner:?}");
        let alias = Record::alias(pointer(), owner.clone());
        net.resolve(API, &[alias, Record::address(owner.clone(), ip(FOUND), 300)]);
        assert_eq!(net.reaches(1, FOUND, 443), is_name, "{owner:?}");
    }
    let net = Net::of_api();
    let loops = [&[0xc0, 12][..]].concat();
    net.send(1, DNS, 5000, &message(7, 0x0100, &loops, &[]));
    net.deliver(1, DNS, 5000, &message(7, 0x8180, &loops, &found(API, 300)));
    assert!(!net.reaches(1, FOUND, 443), "a question that is a pointer to itself");
}

#[test]
fn a_question_is_answered_once() {
    let net = Net::of_api();
    net.resolve(API, &[]);
    net.deliver(1, DNS, 5000, &answer(7, &wire(API), &found(API, 300)));
    assert!(!net.reaches(1, FOUND, 443));
}

#[test]
fn an_earlier_deny_and_a_pass_win_over_a_name() {
    let outside = |action| cluster_rule(action, vec![block("192.0.2.0/24", &[])], None);
    let names = || accept(vec![domain(API)], Some(vec![tcp(443)]));
    for (rules, reached) in [
        (vec![outside(Action::Deny), names()], false),
        (vec![names(), outside(Action::Deny)], true),
        // After a Pass nothing isolates the pods for egress, so the address is allowed, regardless of its name.
        (vec![outside(Action::Pass), names()], true),
    ] {
        let net = Net::new(rules.clone());
        net.resolve(API, &found(API, 300));
        assert_eq!(net.reaches(1, FOUND, 443), reached, "{rules:?}");
    }
}

#[test]
fn each_rule_has_its_own_ports() {
    let net = Net::new(vec![
        accept(vec![domain(API)], Some(vec![tcp(443)])),
        accept(vec![domain("*.example.com")], Some(vec![tcp(80)])),
        accept(vec![domain("db.example.com")], Some(vec![tcp(80)])),
    ]);
    net.resolve(API, &found(API, 300));
    assert!(net.reaches(1, FOUND, 443) && net.reaches(1, FOUND, 80), "both match");
    let other = "192.0.2.8";
    net.resolve("db.example.com", &[Record::address(pointer(), ip(other), 300)]);
    assert!(!net.reaches(1, other, 443) && net.reaches(1, other, 80));
}

#[test]
fn an_address_of_a_service_belongs_to_no_name() {
    let mut net = Net::of_api();
    let service = objects::service(("a", "web"), &["10.96.0.80"], &[("", 443, None)]);
    let slice = objects::slice(("a", "web-1"), "web", &["10.0.0.2"], &[("", 443)]);
    net.world.apply([Change::Service(service), Change::EndpointSlice(slice)]);
    net.resolve(API, &[Record::address(pointer(), ip("10.96.0.80"), 300)]);
    assert!(!net.reaches(1, "10.96.0.80", 443));
}

#[test]
fn an_open_flow_outlives_its_name_and_ends_with_its_rule() {
    let mut net = Net::of_api();
    net.resolve(API, &found(API, 60));
    let sends = |net: &Net, flags| {
        let data = tcp_header(40_000, 443, flags);
        !net.packet(1, Direction::Egress, FOUND, TCP, &data).is_drop()
    };
    let gets = |net: &Net, flags| {
        let data = tcp_header(443, 40_000, flags);
        !net.packet(1, Direction::Ingress, FOUND, TCP, &data).is_drop()
    };
    assert!(!gets(&net, TCP_SYN | TCP_ACK), "nothing was sent");
    assert!(sends(&net, TCP_SYN) && gets(&net, TCP_SYN | TCP_ACK) && sends(&net, TCP_ACK));
    for _ in 0..10 {
        net.flows.later(100 * HZ);
        assert!(sends(&net, TCP_ACK) && gets(&net, TCP_ACK));
    }
    net.flows.later(61 * HZ);
    let another = tcp_header(40_001, 443, TCP_SYN);
    assert!(net.packet(1, Direction::Egress, FOUND, TCP, &another).is_drop(), "a new flow");
    let stray = tcp_header(40_002, 443, TCP_ACK);
    assert!(net.packet(1, Direction::Egress, FOUND, TCP, &stray).is_drop(), "no flow");
    assert!(sends(&net, TCP_ACK));
    net.world.apply([only(vec![accept(vec![domain("else.example.com")], None)])]);
    net.flows.settings.revision += 1;
    assert!(!sends(&net, TCP_ACK) && !gets(&net, TCP_ACK), "the rule is gone");
}

/// Two names resolved to one address; one of them now resolves to another.
#[test]
fn a_flow_prolongs_the_address_for_the_names_that_allow_it() {
    let rules = [("a.example", 443), ("b.example", 80)];
    let rules = rules.map(|(name, port)| accept(vec![domain(name)], Some(vec![tcp(port)])));
    let net = Net::new(rules.to_vec());
    for name in ["a.example", "b.example"] {
        net.resolve(name, &[Record::address(pointer(), ip(FOUND), 60)]);
    }
    let sends = |port, flags| {
        let data = tcp_header(40_000, port, flags);
        !net.packet(1, Direction::Egress, FOUND, TCP, &data).is_drop()
    };
    assert!(sends(443, TCP_SYN) && sends(80, TCP_SYN), "both are open");
    net.flows.forget_flows();
    assert!(sends(443, TCP_SYN));
    let data = tcp_header(443, 40_000, TCP_SYN | TCP_ACK);
    assert!(!net.packet(1, Direction::Ingress, FOUND, TCP, &data).is_drop());
    for _ in 0..3 {
        net.flows.later(50 * HZ);
        assert!(sends(443, TCP_ACK));
    }
    assert!(sends(443, TCP_SYN), "prolonged by its flow");
    assert!(!sends(80, TCP_SYN), "another name's flow prolongs nothing");
}

#[test]
fn a_node_has_a_thousand_resolvers_at_most() {
    let mut net = Net::of_api();
    let many: Vec<String> =
        (0..2_000_u32).map(|n| format!("10.1.{}.{}", n / 250, n % 250)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let slice = objects::slice(("kube-system", "dns-2"), "kube-dns", &many, &[("", 53)]);
    net.world.apply([Change::EndpointSlice(slice)]);
    assert_eq!(net.world.tables.resolvers.len(), RESOLVER_SLOTS as usize);
    assert!(net.world.tables.resolvers.contains_key(&ip(DNS)), "the Service comes first");
}

#[test]
fn names_known_before_stay_after_an_edit() {
    let mut net = Net::of_api();
    net.resolve(API, &found(API, 300));
    net.world.apply([only(vec![
        accept(vec![domain("first.example.com")], None),
        accept(vec![domain(API)], Some(vec![tcp(8443)])),
    ])]);
    assert!(net.reaches(1, FOUND, 8443), "the rule's new port");
    assert!(!net.reaches(1, FOUND, 443));
    net.world.apply([Change::ClusterPolicyGone("names".into())]);
    net.world.apply([only(vec![])]);
    assert!(net.world.tables.names.is_empty() && net.world.tables.resolvers.is_empty());
}

pub(crate) const NAMES: [&str; 6] =
    ["a.example", "b.example", "x.a.example", "y.x.a.example", "c.test", "x.c.test"];
const PATTERNS: [&str; 7] =
    ["a.example", "*.a.example", "b.example", "*.x.a.example", "c.test", "*.c.test", "none.test"];
pub(crate) const ADDRESSES: [&str; 6] =
    ["192.0.2.1", "192.0.2.2", "198.51.100.1", "10.0.0.2", "2001:db8::1", "2001:db8:1::1"];
const BLOCKS: [&str; 5] =
    ["192.0.2.0/24", "198.51.100.0/24", "10.0.0.0/8", "2001:db8::/48", "192.0.2.2/32"];

/// Rules of all actions about names and blocks.
pub(crate) fn random_rules(random: &mut Random) -> Vec<ClusterRule> {
    let ports = [None, Some(vec![tcp(443)]), Some(vec![tcp(80), tcp(443)])];
    // An answer opens addresses for the names in the rules at its arrival, so these rules have all names.
    let all = accept(PATTERNS.map(domain).to_vec(), Some(vec![tcp(1)]));
    let rules = (0..random.below(7)).map(|_| {
        let ports = ports[random.below(3)].clone();
        let peer = block(BLOCKS[random.below(5)], &[]);
        match random.below(5) {
            0 => cluster_rule(Action::Deny, vec![peer], ports),
            1 => cluster_rule(Action::Pass, vec![peer], ports),
            2 => accept(vec![peer, domain(PATTERNS[random.below(7)])], ports),
            _ => {
                let names = (0..=random.below(2)).map(|_| domain(PATTERNS[random.below(7)]));
                accept(names.collect(), ports)
            }
        }
    });
    rules.chain([all]).collect()
}

/// Generated rules and DNS conversations, with edits in between: the packet path agrees with the oracle, which records
/// the answers of each pod.
#[test]
fn conversations_agree_with_the_oracle() {
    for seed in 1..=400_u64 {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let changes = |rules| cluster().into_iter().chain([only(rules)]);
        let rules = random_rules(random);
        let mut net = Net::new(rules.clone());
        let mut oracle: Oracle = changes(rules.clone()).collect();
        let mut rules = rules;
        for step in 0..25 {
            let ifindex = 1 + random.below(2) as u32;
            let key = Key::new("a", if ifindex == 1 { "p" } else { "q" });
            let name = NAMES[random.below(6)];
            let id = random.below(3) as u16;
            let (asks, honest) = (random.below(10) > 1, random.below(10) > 1);
            let mixed: String = name
                .chars()
                .map(|c| if random.below(2) == 0 { c.to_ascii_uppercase() } else { c })
                .collect();
            if asks {
                net.send(ifindex, DNS, 5000, &query(id, &wire(&mixed)));
            }
            let (records, resolved) = random_records(random, name);
            let id = if honest { id } else { id + 100 };
            net.deliver(ifindex, DNS, 5000, &answer(id, &wire(name), &records));
            if asks && honest {
                oracle
                    .resolved
                    .extend(resolved.into_iter().map(|at| (key.clone(), name.into(), at)));
            }
            if random.below(8) == 0 {
                rules = random_rules(random);
                net.world.apply([only(rules.clone())]);
                oracle.ingest(only(rules.clone()));
            }
            agrees(&net, &oracle, ifindex, &format!("seed {seed}, step {step}: {rules:#?}"));
        }
    }
}

/// Asserts that a pod reaches the addresses that the oracle lets it reach, and no others.
pub(crate) fn agrees(net: &Net, oracle: &Oracle, ifindex: u32, when: &str) {
    let key = Key::new("a", if ifindex == 1 { "p" } else { "q" });
    let pod = oracle.pods.iter().find(|pod| pod.key == key).unwrap();
    for address in ADDRESSES.into_iter().filter(|at| !pod.addresses.contains(&ip(at))) {
        for port in [80, 443, 22] {
            let expected = oracle.judge(pod, Direction::Egress, ip(address), 6, port);
            let resolved = &oracle.resolved;
            assert_eq!(
                net.reaches(ifindex, address, port),
                expected,
                "{key} to {address}:{port}, {resolved:?}, {when}"
            );
        }
    }
}

/// Records of an answer about a name, and the addresses in them that are the name's.
pub(crate) fn random_records(random: &mut Random, name: &str) -> (Vec<Record>, Vec<IpAddr>) {
    let mut records = Vec::new();
    let (mut owner, mut resolved) = (wire(name), Vec::new());
    for _ in 0..random.below(4) {
        let address = ip(ADDRESSES[random.below(6)]);
        match random.below(5) {
            0 => {
                let target = wire(NAMES[random.below(6)]);
                records.push(Record::alias(owner, target.clone()));
                owner = target;
            }
            1 => records.push(Record::address(wire("other.test"), address, 600)),
            _ => {
                records.push(Record::address(owner.clone(), address, 600));
                resolved.push(address);
            }
        }
    }
    (records, resolved)
}

#[test]
fn a_rule_without_ports_is_for_every_protocol() {
    let net = Net::new(vec![accept(vec![domain(API)], None)]);
    net.resolve(API, &found(API, 300));
    let datagram = udp(40_000, 9, b"x");
    assert!(!net.packet(1, Direction::Egress, FOUND, UDP, &datagram).is_drop());
}

fn read(name: &str) -> DomainName {
    DomainName::try_from(name.to_owned()).unwrap()
}

/// Pod a/p in a cluster with these rules of the only ClusterNetworkPolicy.
fn explained(rules: Vec<ClusterRule>) -> (Cluster, Key) {
    (cluster().into_iter().chain([only(rules)]).collect(), Key::new("a", "p"))
}

/// The answer for a name, and its blocks: `allow`, `deny`, or both with their blocks.
fn by_name(rules: Vec<ClusterRule>, name: &str, within: &ResolvedWithin, port: u16) -> String {
    let (cluster, pod) = explained(rules);
    let kind = (IpProtocol::TCP, port);
    let answer = Explainer::new(&cluster).by_name(&pod, &read(name), within, kind).unwrap();
    match answer.verdict {
        Verdict::Unknown => answer.depends_on(),
        verdict @ (Verdict::Allow | Verdict::Deny) => verdict.to_string(),
    }
}

/// Groups beyond the limit allow nothing, in the tables as in explanations, and the policy is named.
#[test]
fn groups_beyond_the_limit_match_nothing() {
    let rules: Vec<ClusterRule> = (0..NAME_GROUPS as u16 + 2)
        .map(|n| accept(vec![domain(&format!("n{n}.example.com"))], Some(vec![tcp(1000 + n)])))
        .collect();
    let net = Net::new(rules.clone());
    let (cluster, pod) = explained(rules.clone());
    let mut resolved = ResolvedNames::default();
    for n in 0..rules.len() as u16 {
        let name = format!("n{n}.example.com");
        let at = ip(&format!("192.0.2.{n}"));
        net.resolve(&name, &[Record::address(wire(&name), at, 300)]);
        resolved.insert(&pod, &read(&name), at, Duration::from_mins(5));
    }
    let explainer = Explainer::new(&cluster).with_resolved(&resolved);
    for n in 0..rules.len() as u16 {
        let (name, port) = (format!("n{n}.example.com"), 1000 + n);
        let at = format!("192.0.2.{n}");
        let counts = usize::from(n) < NAME_GROUPS;
        assert_eq!(net.reaches(1, &at, port), counts, "{name}");
        let judged =
            explainer.judge(&pod, Direction::Egress, ip(&at), IpProtocol::TCP, port).unwrap();
        assert_eq!(judged.verdict == Verdict::Allow, counts, "{name}");
        let verdict = if counts { "allow" } else { "deny" };
        assert_eq!(
            by_name(rules.clone(), &name, &ResolvedWithin::public(), port),
            verdict,
            "{name}"
        );
        let line = format!(
            "  egress rule {} of names: its domain names match nothing, since they are beyond the pod's first 15 groups",
            n + 2
        );
        assert_eq!(judged.lines().contains(&line), !counts, "{:?}", judged.lines());
        let unknown = Explainer::new(&cluster);
        let unknown =
            unknown.judge(&pod, Direction::Egress, ip(&at), IpProtocol::TCP, port).unwrap();
        assert_eq!(unknown.tiers.unresolved.is_empty(), !counts, "{:?}", unknown.tiers);
    }
    let problems: Vec<String> =
        net.world.compiler.problems().iter().map(ToString::to_string).collect();
    let named = "the names of the last groups (of ClusterNetworkPolicy names) allow nothing";
    assert!(problems.iter().any(|problem| problem.contains(named)), "{problems:?}");
}

#[test]
fn a_name_is_judged_without_its_addresses() {
    let https = || Some(vec![tcp(443)]);
    let names = || accept(vec![domain("*.example.com"), domain("API.other.test.")], https());
    let any = ResolvedWithin::default();
    for (name, port, verdict) in [
        ("a.example.com", 443, "allow"),
        ("b.A.Example.com.", 443, "allow"),
        ("*.a.example.com", 443, "allow"),
        ("example.com", 443, "deny"),
        ("api.other.test", 443, "allow"),
        ("*.other.test", 443, "deny"),
        ("a.example.com", 80, "deny"),
    ] {
        let except = ["10.0.0.0/8", "fd96::/16"].map(|block| block.parse().unwrap());
        let resolvers_aside = ResolvedWithin { except: except.to_vec(), ..any.clone() };
        assert_eq!(by_name(vec![names()], name, &resolvers_aside, port), verdict, "{name}");
    }
    // The rule for the resolvers decides at their addresses.
    let depends = by_name(vec![names()], "example.com", &any, 443);
    assert_eq!(
        depends,
        "depends on the address: allowed in 10.0.5.5/32, 10.96.0.10/32, fd96::10/128; denied in 0.0.0.0/0, ::/0"
    );
    let internal = || cluster_rule(Action::Deny, vec![block("10.0.0.0/8", &[])], None);
    let depends = by_name(vec![internal(), names()], "a.example.com", &any, 443);
    assert!(depends.ends_with("; denied in 10.0.0.0/8"), "{depends}");
    let denied_later = by_name(vec![names(), internal()], "a.example.com", &any, 443);
    assert_eq!(denied_later, "allow");
    let public = ResolvedWithin::public();
    assert_eq!(by_name(vec![internal(), names()], "a.example.com", &public, 443), "allow");
    // A Deny for the port only.
    let deny_80 = cluster_rule(Action::Deny, vec![block("0.0.0.0/0", &[])], Some(vec![tcp(80)]));
    assert_eq!(by_name(vec![deny_80, names()], "a.example.com", &public, 443), "allow");
}

/// A question is attributed to the four matching names with the fewest labels.
#[test]
fn a_question_counts_for_four_names() {
    let name = "a.b.c.d.example.com";
    let patterns = ["*.example.com", "*.d.example.com", "*.c.d.example.com", "*.b.c.d.example.com"];
    let mut rules: Vec<ClusterRule> = (0..4)
        .map(|n| accept(vec![domain(patterns[usize::from(n)])], Some(vec![tcp(1000 + n)])))
        .collect();
    rules.push(accept(vec![domain(name)], Some(vec![tcp(443)])));
    let net = Net::new(rules.clone());
    net.resolve(name, &found(name, 300));
    for (port, allowed) in [(1000, true), (1003, true), (443, false)] {
        assert_eq!(net.reaches(1, FOUND, port), allowed, "{port}");
        let verdict = if allowed { "allow" } else { "deny" };
        assert_eq!(
            by_name(rules.clone(), name, &ResolvedWithin::public(), port),
            verdict,
            "{port}"
        );
    }
}

/// Generated rules: the answer for a name holds at each address that a pod resolves the name to.
#[test]
fn answers_for_names_agree_with_the_packet_path() {
    let mut depends = 0;
    for seed in 1..=30_u64 {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let rules = random_rules(random);
        let (cluster, pod) = explained(rules.clone());
        for name in NAMES {
            let explainer = Explainer::new(&cluster);
            for address in ADDRESSES.into_iter().filter(|at| *at != "10.0.0.2") {
                let net = Net::new(rules.clone());
                net.resolve(name, &[Record::address(wire(name), ip(address), 600)]);
                for port in [80, 443, 22] {
                    let kind = (IpProtocol::TCP, port);
                    let answer = explainer
                        .by_name(&pod, &read(name), &ResolvedWithin::default(), kind)
                        .unwrap();
                    depends += usize::from(answer.verdict == Verdict::Unknown);
                    let around = answer.parts.iter().filter(|it| it.block.contains(&ip(address)));
                    let part = around.max_by_key(|it| it.block.prefix_len()).unwrap();
                    assert_eq!(
                        part.is_allowed,
                        net.reaches(1, address, port),
                        "seed {seed}: {name} at {address}, {port}: {answer:?}\n{rules:#?}"
                    );
                }
            }
        }
    }
    assert!(depends > 10, "{depends}");
}
