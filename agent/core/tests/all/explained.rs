//! Texts of explanations, word for word.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use netpold_core::explain::{Explainer, Explanation, Verdict};
use netpold_core::model::{
    Change, Denial, EndpointSlice, Key, Namespace, Peer, Pod, Policy, PortMatch, PortRule,
    Protocol, Rule, Selector, Service,
};
use netpold_core::probe::Probe;
use netpold_testkit::objects::{self, labels, named};

fn is(key: &str, value: &str) -> Selector {
    objects::select(&[(key, value)])
}

fn pod(key: Key, addresses: &[&str], app: &str) -> Pod {
    Pod {
        node: "n1".into(),
        ports: vec![named("https", Protocol::Tcp, 8443)],
        ..objects::pod(&key.namespace, &key.name, &[("app", app)], addresses)
    }
}

fn tcp(port: PortMatch) -> PortRule {
    PortRule { protocol: Protocol::Tcp, port }
}

/// Namespace `shop`: its web pods allow team a at ports 80 to 90, and blocks at a named port.
fn shop() -> Vec<Change> {
    let named = |name: &str| tcp(PortMatch::Named(name.to_owned()));
    let range = |first, last| tcp(PortMatch::Range(first, last));
    let blocks = objects::block("10.9.0.0/16", &["10.9.9.0/24"]);
    let clients = objects::pods(Some(is("team", "a")), is("app", "client"));
    let rules = vec![
        objects::rule(Some(vec![blocks]), Some(vec![named("https"), named("absent")])),
        objects::rule(Some(vec![clients]), Some(vec![range(80, 90), range(443, 443)])),
    ];
    let web = objects::policy("shop", "web", is("app", "web"), Some(rules), None);
    let deny = Policy {
        problems: vec!["spec.ingress[0].from[0]: neither selector nor ipBlock".to_owned()],
        ..objects::policy("shop", "deny", Selector::default(), Some(vec![]), None)
    };
    let namespace = |name: &str, team: &str| {
        Change::Namespace(Namespace {
            name: name.to_owned(),
            labels: labels(&[("team", team)]),
            denial: None,
        })
    };
    let node = |name: &str, address: &str| Change::Node(objects::node(name, &[address]));
    let key = Key::new;
    vec![
        namespace("shop", "b"),
        namespace("a", "a"),
        node("n1", "192.168.0.1"),
        node("n2", "192.168.0.2"),
        Change::Pod(pod(key("shop", "web"), &["10.0.0.1", "fd00::1"], "web")),
        Change::Pod(pod(key("shop", "db"), &["10.0.0.2"], "db")),
        Change::Pod(pod(key("a", "client"), &["10.0.0.3", "fd00::3"], "client")),
        Change::Pod(pod(key("a", "other"), &["10.0.0.4"], "other")),
        Change::Pod(Pod { finished: true, ..pod(key("a", "job"), &["10.0.0.5"], "client") }),
        Change::Pod(pod(key("a", "pending"), &[], "client")),
        Change::Pod(Pod {
            host_network: true,
            ..pod(key("a", "host"), &["192.168.0.1"], "client")
        }),
        Change::Policy(web),
        Change::Policy(deny),
    ]
}

fn ask(from: &str, to: &str, protocol: &str, port: u16) -> Explanation {
    explain([], &objects::probe_of(protocol, from, to, port))
}

/// With these objects in addition to the shop.
fn explain(more: impl IntoIterator<Item = Change>, probe: &Probe) -> Explanation {
    Explainer::new(&shop().into_iter().chain(more).collect()).explain(probe)
}

fn says(explanation: &Explanation, lines: &[&str]) {
    assert_eq!(explanation.lines(), lines, "\n{explanation}\n");
}

#[test]
fn the_rule_that_allows() {
    says(
        &ask("a/client", "shop/web", "TCP", 443),
        &[
            "allow: a/client to shop/web, TCP 443",
            "egress of pod a/client: allowed, no policy isolates its egress",
            "ingress of pod shop/web: allowed, ingress rule 2 of shop/web allows TCP 80-90, TCP 443 \
         from pods app=client of namespaces team=a",
            "  isolated by shop/deny, shop/web",
            "  not understood in shop/deny: spec.ingress[0].from[0]: neither selector nor ipBlock",
        ],
    );
}

/// Returns the indented ingress lines of a denied probe: the reasons why the nearest rules do not match.
fn nearest(from: &str, to: &str, protocol: &str, port: u16) -> Vec<String> {
    let explanation = ask(from, to, protocol, port);
    assert_eq!(explanation.verdict, Verdict::Deny, "{explanation}");
    let lines = explanation.ingress.unwrap().lines();
    assert!(lines[0].ends_with(": denied, no rule allows it"), "{lines:?}");
    lines.into_iter().filter(|line| line.starts_with("    ")).map(|l| l.trim().to_owned()).collect()
}

#[test]
fn what_the_nearest_rule_lacked() {
    for (from, protocol, port, lacks) in [
        ("a/client", "TCP", 79, vec!["port 79 is not in it"]),
        ("a/client", "UDP", 80, vec!["UDP is not in it"]),
        (
            "a/client",
            "ICMP",
            0,
            vec!["ICMP is not in it: a rule with ports allows no other protocol"],
        ),
        ("a/other", "TCP", 80, vec!["pod a/other has app=other, expected app=client"]),
        ("shop/db", "TCP", 80, vec!["namespace shop has team=b, expected team=a"]),
        ("8.8.8.8", "TCP", 80, vec!["8.8.8.8 is not a pod's address"]),
        ("192.168.0.2", "TCP", 80, vec!["192.168.0.2 is node n2, which only an ipBlock can name"]),
        ("10.9.9.9", "TCP", 8443, vec!["10.9.9.9 is in its except 10.9.9.0/24"]),
        ("10.10.0.1", "TCP", 8443, vec!["10.10.0.1 is not in 10.9.0.0/16"]),
        (
            "10.9.0.1",
            "TCP",
            443,
            vec![
                "port 443 is not in it: https is 8443 on pod shop/web; pod shop/web has no TCP port \
             named absent",
            ],
        ),
    ] {
        assert_eq!(nearest(from, "shop/web", protocol, port), lacks, "{from} {protocol} {port}");
    }
}

/// Each drop is explained: a policy of thousands of blocks must not make thousands of lines.
#[test]
fn long_lists_are_told_in_part() {
    let block = |n: u32| objects::block(&format!("11.0.{n}.0/24"), &[]);
    let rules = vec![objects::rule(Some((0..100).map(block).collect()), None)];
    let many = objects::policy("shop", "many", is("app", "db"), Some(rules), None);
    let probe = objects::probe("a/client", "shop/db", 80);
    let lines = explain([Change::Policy(many)], &probe).ingress.unwrap().lines();
    assert_eq!(
        lines[2],
        "  nearest: ingress rule 1 of shop/many allows everything from 11.0.0.0/24 or 11.0.1.0/24 or \
         11.0.2.0/24 or 11.0.3.0/24 or 11.0.4.0/24 or 11.0.5.0/24 or 11.0.6.0/24 or 11.0.7.0/24 or \
         92 more"
    );
    assert_eq!(lines[3], "    10.0.0.3 is not in 11.0.0.0/24");
    assert_eq!(lines[11], "    nor is it one of the 92 other peers");
    assert_eq!(lines.len(), 13, "{lines:?}");
}

#[test]
fn policies_without_rules() {
    let lines = ask("a/client", "shop/db", "TCP", 80).ingress.unwrap().lines();
    assert!(lines[0].ends_with("denied, the policies that isolate it have no rules"), "{lines:?}");
}

#[test]
fn what_passes_whatever_policies_say() {
    for (from, to, why) in [
        ("shop/db", "shop/db", "a pod always reaches itself"),
        ("192.168.0.1", "shop/db", "a pod and its own node always reach each other"),
        ("a/host", "shop/db", "a pod and its own node always reach each other"),
        ("shop/db", "a/host", "it uses the host's network and policies do not select it"),
    ] {
        let explanation = ask(from, to, "TCP", 1);
        assert_eq!(explanation.verdict, Verdict::Allow);
        assert!(explanation.ingress.unwrap().lines()[0].ends_with(why));
    }
}

#[test]
fn what_cannot_be_told() {
    for (from, to, reason) in [
        ("shop/none", "shop/web", "pod shop/none not found"),
        ("a/job", "shop/web", "pod a/job is finished (Succeeded or Failed): it has no traffic"),
        ("a/pending", "shop/web", "pod a/pending has no address (yet)"),
        ("1.1.1.1", "10.0.0.5", "neither 1.1.1.1 nor 10.0.0.5 is a pod's address"),
        ("::1", "shop/db", "the two sides have no address family in common"),
    ] {
        let explanation = ask(from, to, "TCP", 80);
        assert_eq!(explanation.verdict, Verdict::Unknown);
        assert_eq!(explanation.reason.as_deref(), Some(reason));
    }
}

#[test]
fn json_has_the_probe_and_the_verdict() {
    let answer = serde_json::to_value(ask("a/client", "shop/web", "TCP", 79)).unwrap();
    assert_eq!(answer["from"], "a/client");
    assert_eq!(answer["protocol"], "TCP");
    assert_eq!(answer["verdict"], "deny");
    assert_eq!(answer["ingress"]["cause"], "noRule");
    assert_eq!(answer["ingress"]["nearest"]["rule"]["index"], 1);
    assert_eq!(answer["ingress"]["isolated_by"][0]["name"], "deny");
    assert_eq!(answer["egress"]["verdict"], "allow");
}

/// The shop behind a Service with this address, service port 80 and these backends (with `!`: not ready, with `~`:
/// terminating and serving) on port 8443; an egress rule of the client's names a pod and a block.
fn ask_service(to: &str, backends: &[&str]) -> Explanation {
    let named = Peer::Pods { namespaces: Some(Selector::default()), pods: is("app", "db") };
    let egress = vec![
        Rule { peers: Some(vec![objects::block("10.96.0.0/16", &[])]), ports: None },
        Rule { peers: Some(vec![named]), ports: Some(vec![tcp(PortMatch::Any)]) },
    ];
    let out = objects::policy("a", "out", is("app", "client"), None, Some(egress));
    let front = objects::service(("shop", "s"), &["10.96.0.1"], &[("", 80, Some(30080))]);
    let addresses: Vec<&str> =
        backends.iter().map(|address| address.trim_start_matches(['!', '~'])).collect();
    let slice = EndpointSlice {
        not_ready: backends.iter().filter_map(|a| a.strip_prefix('!')?.parse().ok()).collect(),
        terminating: backends.iter().filter_map(|a| a.strip_prefix('~')?.parse().ok()).collect(),
        ..objects::slice(("shop", "s"), "s", &addresses, &[("", 8443)])
    };
    let all = vec![Rule { peers: None, ports: None }];
    let own = objects::policy("shop", "open", is("app", "db"), Some(all), None);
    let policies = [out, own].map(Change::Policy);
    let changes =
        [Change::Service(front), Change::EndpointSlice(slice)].into_iter().chain(policies);
    let port = if to.starts_with("192.") { 30080 } else { 80 };
    explain(changes, &objects::probe("a/client", to, port))
}

#[test]
fn services_are_judged_on_their_backends() {
    for (backends, verdict, note) in [
        (&["10.0.0.2"][..], Verdict::Allow, "Service shop/s: every backend is allowed"),
        (
            &["10.0.0.2", "10.0.0.4"],
            Verdict::Allow,
            "Service shop/s: its backends differ, 1 of 2 are allowed",
        ),
        (
            &["10.0.0.4"],
            Verdict::Deny,
            "Service shop/s: none of its backends is allowed; a rule allows the address itself, but the backends \
             behind it decide",
        ),
        (&[], Verdict::Deny, "Service shop/s has no ready backend: nothing answers"),
        (&["!10.0.0.2"], Verdict::Deny, "Service shop/s has no ready backend: nothing answers"),
        (
            &["10.0.0.4", "!10.0.0.2"],
            Verdict::Deny,
            "Service shop/s: none of its backends is allowed; a rule allows the address itself, but the backends \
             behind it decide",
        ),
        // Terminating ones count while none is ready.
        (&["10.0.0.2", "~10.0.0.4"], Verdict::Allow, "Service shop/s: every backend is allowed"),
        (
            &["10.0.0.4", "~10.0.0.2"],
            Verdict::Deny,
            "Service shop/s: none of its backends is allowed; a rule allows the address itself, but the backends \
             behind it decide",
        ),
        (
            &["~10.0.0.2", "!10.0.0.4"],
            Verdict::Allow,
            "Service shop/s: every backend is allowed; none is ready: terminating ones that still serve get the \
             connections",
        ),
    ] {
        let in_state = |state: char| backends.iter().filter(|it| it.starts_with(state)).count();
        let (not_ready, terminating) = (in_state('!'), in_state('~'));
        let count = match backends.len() - not_ready - terminating {
            0 => terminating,
            ready => ready,
        };
        for to in ["10.96.0.1", "svc/shop/s"] {
            let answer = ask_service(to, backends);
            assert_eq!(answer.note.as_deref(), Some(note), "{answer}");
            assert_eq!((answer.verdict, answer.backends.len()), (verdict, count));
        }
    }
}

/// Another node chooses the backend, and may consider other backends ready than this node.
#[test]
fn another_nodes_port_is_judged_on_every_backend() {
    const WHY: &str = "; another node chooses one, so the sender must be allowed every backend, or \
                       that node's address";
    for (backends, verdict, note) in [
        (&["10.0.0.2"][..], Verdict::Allow, "Service shop/s: every backend is allowed"),
        (&["10.0.0.4"], Verdict::Deny, "Service shop/s: none of its backends is allowed"),
        (
            &["10.0.0.2", "10.0.0.4"],
            Verdict::Deny,
            "Service shop/s: its backends differ, 1 of 2 are allowed",
        ),
        (&["10.0.0.2", "!10.0.0.4"], Verdict::Deny, "Service shop/s: every backend is allowed"),
    ] {
        let answer = ask_service("192.168.0.2", backends);
        assert_eq!((answer.verdict, answer.note), (verdict, Some(format!("{note}{WHY}"))));
        assert_eq!(answer.egress.unwrap().verdict, verdict, "{backends:?}");
    }
    let none = ask_service("192.168.0.2", &["!10.0.0.2"]);
    assert_eq!(none.verdict, Verdict::Deny, "no backend answers");
}

/// The address of a Service that this node's proxy does not serve is an ordinary address.
#[test]
fn a_service_of_another_proxy_is_no_service() {
    let with = |unserved| {
        let service = objects::service(("shop", "s"), &["203.0.113.9"], &[("", 80, None)]);
        let service = Change::Service(Service { cluster: vec![], unserved, ..service });
        let slice = objects::slice(("shop", "s"), "s", &["10.0.0.4"], &[("", 80)]);
        let slice = Change::EndpointSlice(slice);
        let ask = |to: &str| {
            explain([service.clone(), slice.clone()], &objects::probe("a/client", to, 80))
        };
        [ask("203.0.113.9"), ask("svc/shop/s")]
    };
    let [served, _] = with(false);
    assert_eq!(served.services.len(), 1);
    let [address, service] = with(true);
    assert!(address.services.is_empty() && address.backends.is_empty(), "{address}");
    let reason = service.reason.unwrap();
    assert!(reason.contains("Service shop/s is left to another proxy"), "{reason}");
}

#[test]
fn a_services_answer_in_full() {
    says(
        &ask_service("svc/shop/s", &["10.0.0.2"]),
        &[
            "allow: a/client to svc/shop/s, TCP 80",
            "Service shop/s: every backend is allowed",
            "backend 10.0.0.2 port 8443, pod shop/db: allow",
            "  egress of pod a/client: allowed, egress rule 2 of a/out allows TCP to pods app=db of \
             every namespace",
            "    isolated by a/out",
            "  ingress of pod shop/db: allowed, ingress rule 1 of shop/open allows everything from \
             anyone",
            "    isolated by shop/deny, shop/open",
            "    not understood in shop/deny: spec.ingress[0].from[0]: neither selector nor ipBlock",
        ],
    );
}

/// A denied probe that gets an answer has a line about it, and a field in JSON.
#[test]
fn what_is_rejected_is_said() {
    let deny = objects::policy("a", "deny", Selector::default(), None, Some(vec![]));
    let rejecting = Policy { denial: Some(Denial::Reject), ..deny.clone() };
    let ask = objects::probe_of("TCP", "a/client", "shop/db", 80);
    let line = "  rejected: the sender gets an error at once (netpold.io/deny: reject)";
    for (policy, rejected) in [(deny, false), (rejecting, true)] {
        let answer = explain([Change::Policy(policy)], &ask);
        let egress = answer.egress.unwrap();
        assert_eq!(egress.lines().contains(&line.to_owned()), rejected, "{egress:?}");
        assert_eq!(egress.rejected, rejected);
        // The other side drops.
        assert!(!answer.ingress.unwrap().rejected);
    }
}
