//! Texts of explanations about ClusterNetworkPolicies, word for word.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use netpold_core::explain::{Cause, Explainer, Explanation, ResolvedNames, Verdict};
use netpold_core::model::{
    Action, Change, ClusterPolicy, ClusterRule, Direction, DomainName, Enforcement, Key,
    NamespacedPods, Node, Peer, Pod, PortMatch, PortRule, Protocol, Rule, Selector, Tier,
};
use netpold_core::probe::IpProtocol;
use netpold_testkit::objects::{
    self, block, ip, labels, namespace, pod, policy, rule, select, tcp,
};

/// A rule of this action about these peers, everyone if there are none, and TCP ports.
fn about(action: Action, peers: Option<Vec<Peer>>, ports: &[u16]) -> ClusterRule {
    let ports = (!ports.is_empty()).then(|| ports.iter().map(|port| tcp(*port)).collect());
    ClusterRule { name: String::new(), action, matches: Rule { peers, ports } }
}

fn team(name: &str) -> Option<Vec<Peer>> {
    let namespaces = Some(select(&[("team", name)]));
    Some(vec![Peer::Pods { namespaces, pods: Selector::default() }])
}

/// About the pods of team b.
fn tier(
    (tier, name, priority): (Tier, &str, u16),
    ingress: Vec<ClusterRule>,
    egress: Vec<ClusterRule>,
) -> Change {
    let policy = objects::cluster_policy(name, (tier, priority), ingress, egress);
    let namespaces = select(&[("team", "b")]);
    let subject = NamespacedPods { namespaces, pods: Selector::default() };
    Change::ClusterPolicy(ClusterPolicy { subject, ..policy })
}

/// Team a's client and team b's shop, on nodes n1 and n2.
fn cluster() -> Vec<Change> {
    let on_n1 = |pod: Pod| Change::Pod(Pod { node: "n1".into(), ..pod });
    let node = |name: &str, address: &str, role: &str| {
        let labels = labels(&[("role", role)]);
        Change::Node(Node {
            name: name.into(),
            addresses: vec![ip(address)],
            labels,
            ..Node::default()
        })
    };
    vec![
        Change::Namespace(namespace("a", &[("team", "a")])),
        Change::Namespace(namespace("shop", &[("team", "b")])),
        node("n1", "192.168.0.1", "worker"),
        node("n2", "192.168.0.2", "control"),
        on_n1(pod("a", "client", &[], &["10.0.0.1"])),
        on_n1(pod("shop", "web", &[("app", "web")], &["10.0.0.2"])),
        on_n1(pod("shop", "db", &[("app", "db")], &["10.0.0.3"])),
    ]
}

/// `shop/web` isolated in both directions, with nothing granted.
fn closed() -> Change {
    let web = select(&[("app", "web")]);
    Change::Policy(policy("shop", "closed", web, Some(vec![]), Some(vec![])))
}

fn ask(more: Vec<Change>, from: &str, to: &str, port: u16) -> Explanation {
    let probe = objects::probe(from, to, port);
    let cluster = cluster().into_iter().chain(more).collect();
    let explainer = Explainer::new(&cluster);
    let answer = explainer.explain(&probe);
    assert_eq!(explainer.verdict(&probe), (answer.verdict, answer.reason.clone()));
    answer
}

/// The lines about the ingress of `shop/web` from `a/client`.
fn ingress(more: Vec<Change>, port: u16) -> Vec<String> {
    ask(more, "a/client", "shop/web", port).ingress.unwrap().lines()
}

#[test]
fn admin_denies_before_network_policy_is_asked() {
    let metadata = Some(vec![block("169.254.169.254/32", &[])]);
    let rules = vec![
        about(Action::Accept, team("b"), &[]),
        ClusterRule { name: "metadata".into(), ..about(Action::Deny, metadata, &[]) },
    ];
    let no_metadata = tier((Tier::Admin, "no-metadata", 10), vec![], rules);
    let answer = ask(vec![no_metadata, closed()], "shop/web", "169.254.169.254", 80);
    assert_eq!(
        answer.lines(),
        [
            "deny: shop/web to 169.254.169.254, TCP 80",
            "egress of pod shop/web: denied, egress rule 2 (metadata) of Admin policy no-metadata, priority 10, \
             denies everything to 169.254.169.254/32; NetworkPolicy was not evaluated",
        ]
    );
}

#[test]
fn admin_accepts_what_network_policy_does_not_grant() {
    let rules = vec![about(Action::Accept, team("a"), &[80])];
    let lines = ingress(vec![tier((Tier::Admin, "open", 5), rules, vec![]), closed()], 80);
    assert_eq!(
        lines,
        [
            "ingress of pod shop/web: allowed, ingress rule 1 of Admin policy open, priority 5, accepts TCP 80 from \
             pods of namespaces team=a; NetworkPolicy was not evaluated"
        ]
    );
}

#[test]
fn pass_leaves_the_tier() {
    let passes = tier(
        (Tier::Admin, "passes", 1),
        vec![about(Action::Pass, team("a"), &[]), about(Action::Deny, None, &[])],
        vec![],
    );
    let denies = tier((Tier::Admin, "denies", 2), vec![about(Action::Deny, None, &[])], vec![]);
    let all = vec![denies, passes];
    assert_eq!(
        ingress(all.iter().cloned().chain([closed()]).collect(), 80),
        [
            "ingress of pod shop/web: denied, the policies that isolate it have no rules",
            "  passed to NetworkPolicy: ingress rule 1 of Admin policy passes, priority 1, passes \
             everything from pods of namespaces team=a",
            "  isolated by shop/closed",
        ]
    );
    assert_eq!(
        ingress(all.clone(), 80)[0],
        "ingress of pod shop/web: allowed, no policy isolates its ingress"
    );
    let last = tier(
        (Tier::Baseline, "last", 9),
        vec![about(Action::Pass, team("b"), &[]), about(Action::Deny, team("a"), &[])],
        vec![],
    );
    let lines = ingress(all.into_iter().chain([last]).collect(), 80);
    assert_eq!(
        lines[0],
        "ingress of pod shop/web: denied, ingress rule 2 of Baseline policy last, priority 9, denies \
         everything from pods of namespaces team=a"
    );
    assert!(lines[1].starts_with("  passed to NetworkPolicy: ingress rule 1"), "{lines:?}");
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[test]
fn baseline_is_asked_where_no_network_policy_isolates() {
    let rules = || vec![about(Action::Pass, team("a"), &[443]), about(Action::Deny, None, &[80])];
    let base = || tier((Tier::Baseline, "base", 0), rules(), vec![]);
    assert_eq!(
        ingress(vec![base()], 80),
        [
            "ingress of pod shop/web: denied, ingress rule 2 of Baseline policy base, priority 0, denies \
          TCP 80 from anyone"
        ]
    );
    assert_eq!(
        ingress(vec![base()], 443),
        [
            "ingress of pod shop/web: allowed, no policy isolates its ingress and no Baseline rule \
             decides",
            "  passed to the default: ingress rule 1 of Baseline policy base, priority 0, passes TCP \
             443 from pods of namespaces team=a",
        ]
    );
    assert_eq!(
        ingress(vec![base()], 22),
        [
            "ingress of pod shop/web: allowed, no policy isolates its ingress and no Baseline rule \
             decides",
            "  no rule matches in Baseline policy base",
        ]
    );
    let open = Some(vec![rule(None, Some(vec![tcp(80)]))]);
    let grants = Change::Policy(policy("shop", "grants", Selector::default(), open, None));
    assert_eq!(
        ingress(vec![base(), grants], 80),
        [
            "ingress of pod shop/web: allowed, ingress rule 1 of shop/grants allows TCP 80 from anyone",
            "  isolated by shop/grants",
        ]
    );
}

#[test]
fn priority_then_name_then_place_decide() {
    let one = |name: &str, priority, action| {
        tier((Tier::Admin, name, priority), vec![about(action, None, &[])], vec![])
    };
    for (policies, by) in [
        (vec![one("a", 2, Action::Accept), one("z", 1, Action::Deny)], ("z", 1)),
        (vec![one("z", 1, Action::Deny), one("a", 1, Action::Accept)], ("a", 1)),
        (vec![one("a", 1000, Action::Accept), one("z", 0, Action::Deny)], ("z", 0)),
    ] {
        let answer = ask(policies, "a/client", "shop/web", 80);
        let rule = answer.ingress.unwrap().tiers.decided_by.unwrap();
        assert_eq!((rule.policy.policy.as_str(), rule.policy.priority), by);
    }
}

#[test]
fn what_was_not_understood_fails_closed_and_is_told() {
    let Change::ClusterPolicy(policy) =
        tier((Tier::Admin, "newer", 3), vec![about(Action::Deny, None, &[])], vec![])
    else {
        unreachable!("that is what it makes")
    };
    let problems = vec!["spec.ingress[0].from[0]: no known kind of peer".to_owned()];
    let newer = Change::ClusterPolicy(ClusterPolicy { problems, ..policy });
    assert_eq!(
        ingress(vec![newer], 80),
        [
            "ingress of pod shop/web: denied, ingress rule 1 of Admin policy newer, priority 3, denies everything \
             from anyone; NetworkPolicy was not evaluated",
            "  not understood in ClusterNetworkPolicy newer: spec.ingress[0].from[0]: no known kind of \
             peer",
        ]
    );
}

#[test]
fn many_policies_are_told_in_part() {
    let quiet = |n: u16| {
        let rules = vec![about(Action::Deny, team("nobody"), &[])];
        tier((Tier::Admin, &format!("p{n:03}"), n), rules, vec![])
    };
    let lines = ingress((0..100).map(quiet).collect(), 80);
    let named: Vec<String> = (0..8).map(|n| format!("Admin policy p{n:03}")).collect();
    assert_eq!(lines[1], format!("  no rule matches in {}, 92 more", named.join(", ")));
}

#[test]
fn nodes_are_peers_and_the_own_node_can_be_denied() {
    let nodes = |role: &str| Some(vec![Peer::Nodes(select(&[("role", role)]))]);
    let deny = |role: &str| {
        let rules = vec![about(Action::Deny, nodes(role), &[])];
        vec![tier((Tier::Baseline, "nodes", 7), vec![], rules)]
    };
    let lines = |more, to: &str| ask(more, "shop/web", to, 22).egress.unwrap().lines();
    let denied = "egress of pod shop/web: denied, egress rule 1 of Baseline policy nodes, priority 7, \
                  denies everything to nodes role=";
    assert_eq!(lines(deny("control"), "192.168.0.2"), [format!("{denied}control")]);
    assert_eq!(lines(deny("worker"), "192.168.0.1"), [format!("{denied}worker")]);
    let isolated = deny("worker").into_iter().chain([closed()]).collect();
    let lines = lines(isolated, "192.168.0.1");
    assert!(lines[0].ends_with("a pod and its own node always reach each other"), "{lines:?}");
    let to_pod = tier((Tier::Admin, "in", 0), vec![about(Action::Deny, None, &[])], vec![]);
    let from_node = ask(vec![to_pod], "192.168.0.1", "shop/web", 22);
    assert_eq!(
        from_node.verdict,
        Verdict::Allow,
        "what the node sends reaches its pods: {from_node}"
    );
}

/// A Service on port 80 and node port 30080 with these backends on port 8080.
fn service(backends: &[&str]) -> [Change; 2] {
    let key = ("shop", "s");
    let service = objects::service(key, &["10.96.0.1"], &[("", 80, Some(30080))]);
    let slice = objects::slice(key, "s", backends, &[("", 8080)]);
    [Change::Service(service), Change::EndpointSlice(slice)]
}

/// Deny of all traffic from team b to these blocks.
fn no_egress(blocks: &[&str]) -> Change {
    let peers = blocks.iter().map(|cidr| block(cidr, &[])).collect();
    tier((Tier::Admin, "out", 4), vec![], vec![about(Action::Deny, Some(peers), &[])])
}

#[test]
fn a_service_is_denied_if_a_tier_denies_every_backend() {
    let both = ["10.0.0.1", "10.0.0.3"];
    let ask = |denied: &[&str], to: &str| {
        let port = if to == "10.96.0.1" { 80 } else { 30080 };
        let more = service(&both).into_iter().chain([no_egress(denied)]).collect();
        ask(more, "shop/web", to, port)
    };
    for (denied, to, verdict, cause) in [
        (&["10.0.0.1/32"][..], "10.96.0.1", Verdict::Allow, Cause::NotIsolated),
        (&["10.0.0.0/24"], "10.96.0.1", Verdict::Deny, Cause::BackendDenied),
        (&["10.96.0.0/16"], "10.96.0.1", Verdict::Allow, Cause::Backend),
        (&["10.0.0.1/32"], "192.168.0.2", Verdict::Deny, Cause::BackendDenied),
        (&["10.0.0.9/32"], "192.168.0.2", Verdict::Allow, Cause::NotIsolated),
        (&["192.168.0.2/32"], "192.168.0.2", Verdict::Allow, Cause::Backend),
        // This node's port is translated here, but the rule denies the node's address.
        (&["192.168.0.1/32"], "192.168.0.1", Verdict::Deny, Cause::TierRule),
        (&["10.0.0.1/32"], "192.168.0.1", Verdict::Allow, Cause::OwnNode),
        (&["10.0.0.0/24"], "192.168.0.1", Verdict::Deny, Cause::OwnNode),
    ] {
        let answer = ask(denied, to);
        let told = (answer.verdict, answer.egress.as_ref().unwrap().cause);
        assert_eq!(told, (verdict, cause), "{denied:?} {to}: {answer}");
    }
    let note = |denied: &[&str], to: &str| ask(denied, to).note.unwrap();
    assert_eq!(
        note(&["10.0.0.0/24"], "10.96.0.1"),
        "Service shop/s: none of its backends is allowed"
    );
    assert_eq!(
        note(&["192.168.0.1/32"], "192.168.0.1"),
        "Service shop/s: every backend is allowed; but egress rule 1 of Admin policy out, priority 4, \
         denies everything to 192.168.0.1/32"
    );
    assert_eq!(
        note(&["10.0.0.1/32"], "192.168.0.2"),
        "Service shop/s: its backends differ, 1 of 2 are allowed; another node chooses one, so the \
         sender must be allowed every backend, or that node's address; but egress rule 1 of Admin \
         policy out, priority 4, denies everything to 10.0.0.1/32"
    );
    assert_eq!(
        ask(&["10.0.0.0/24"], "10.96.0.1").egress.unwrap().lines(),
        [
            "egress of pod shop/web: denied, by the backends behind the address: egress rule 1 of Admin policy out, \
             priority 4, denies everything to 10.0.0.0/24; NetworkPolicy was not evaluated"
        ]
    );
}

#[test]
fn a_pod_reaches_itself_by_its_address_whatever_tiers_say() {
    let closed_in =
        || tier((Tier::Admin, "in", 4), vec![about(Action::Deny, team("b"), &[])], vec![]);
    let all = || vec![no_egress(&["0.0.0.0/0"]), closed_in(), closed()];
    assert_eq!(ask(all(), "shop/web", "10.0.0.2", 80).verdict, Verdict::Allow);
    // Through a Service it is subject to tiers, in both directions, and to no NetworkPolicy.
    for (more, verdict) in [
        (vec![closed()], Verdict::Allow),
        (vec![closed(), no_egress(&["10.96.0.0/16"])], Verdict::Allow),
        (vec![closed(), no_egress(&["10.0.0.2/32"])], Verdict::Deny),
        (vec![closed(), closed_in()], Verdict::Deny),
        (vec![closed_in()], Verdict::Deny),
    ] {
        let more = more.into_iter().chain(service(&["10.0.0.2", "10.0.0.1"])).collect::<Vec<_>>();
        // A second backend does not open the port to a pod that must not reach itself.
        let answer = ask(more, "shop/web", "svc/shop/s", 80);
        let veth = answer.egress.as_ref().unwrap().verdict;
        assert_eq!((answer.verdict, veth), (verdict, verdict), "{answer}");
    }
}

#[test]
fn named_ports_are_the_receivers() {
    let named = PortRule { protocol: Protocol::Udp, port: PortMatch::Named("dns".into()) };
    let matches = Rule { peers: team("b"), ports: Some(vec![named]) };
    let rules = vec![ClusterRule { name: String::new(), action: Action::Deny, matches }];
    let dns = tier((Tier::Admin, "dns", 4), rules.clone(), rules);
    let ports = vec![objects::named("dns", Protocol::Udp, 5353)];
    let server = Pod { ports, ..pod("shop", "dns", &[], &["10.0.0.7"]) };
    let ask = |port: u16| {
        let more = vec![dns.clone(), Change::Pod(server.clone())];
        let probe = objects::probe_of("UDP", "shop/web", "shop/dns", port);
        let cluster = cluster().into_iter().chain(more).collect();
        let answer = Explainer::new(&cluster).explain(&probe);
        (answer.egress.unwrap().verdict, answer.ingress.unwrap().verdict)
    };
    assert_eq!(ask(5353), (Verdict::Deny, Verdict::Deny));
    assert_eq!(ask(53), (Verdict::Allow, Verdict::Allow));
}

#[test]
fn what_is_on_trial_is_told_of_what_it_would_deny() {
    let Change::ClusterPolicy(deny) =
        tier((Tier::Admin, "no-a", 1), vec![about(Action::Deny, team("a"), &[80])], vec![])
    else {
        panic!("a tier");
    };
    let on_trial = |name: &str| {
        Change::ClusterPolicy(ClusterPolicy {
            name: name.to_owned(),
            enforcement: Enforcement::Audit,
            ..deny.clone()
        })
    };
    let line = "  would be denied by policies in audit mode: ClusterNetworkPolicy no-a";
    assert_eq!(ingress(vec![on_trial("no-a")], 80)[1..], [line]);
    assert_eq!(ingress(vec![on_trial("no-a")], 81).len(), 1, "it says nothing of this port");
    let Change::Policy(closed) = closed() else { panic!("a NetworkPolicy") };
    let closed = netpold_core::model::Policy { enforcement: Enforcement::Audit, ..closed };
    let name = closed.key.clone();
    let line = format!("  would be denied by policies in audit mode: {name}");
    assert_eq!(ingress(vec![Change::Policy(closed)], 80)[1..], [line]);
    assert_eq!(
        ingress(vec![Change::ClusterPolicy(deny.clone()), on_trial("z")], 80).len(),
        1,
        "it is denied"
    );
}

#[test]
fn json_names_the_rule() {
    let rules = vec![
        about(Action::Pass, team("b"), &[]),
        ClusterRule { name: "no-a".into(), ..about(Action::Deny, team("a"), &[79, 80]) },
    ];
    let admin = tier((Tier::Admin, "lock", 12), rules, vec![]);
    let first = tier((Tier::Admin, "first", 2), vec![about(Action::Deny, None, &[1])], vec![]);
    let answer = ask(vec![admin, first, closed()], "a/client", "shop/web", 80);
    let json = serde_json::to_value(&answer).unwrap();
    let ingress = &json["ingress"];
    assert_eq!((&json["verdict"], &ingress["verdict"]), (&"deny".into(), &"deny".into()));
    assert_eq!(ingress["cause"], "tierRule");
    assert_eq!(ingress["isolated_by"][0]["name"], "closed");
    assert_eq!(
        ingress["decided_by"],
        serde_json::json!({
            "tier": "Admin", "policy": "lock", "priority": 12, "direction": "ingress", "index": 1,
            "name": "no-a", "action": "Deny", "peer": 0, "port": 1,
            "matches": "TCP 79, TCP 80 from pods of namespaces team=a",
        })
    );
    assert_eq!(
        ingress["asked"],
        serde_json::json!([
            { "tier": "Admin", "policy": "first", "priority": 2 },
            { "tier": "Admin", "policy": "lock", "priority": 12 },
        ])
    );
    assert!(ingress.get("passed_by").is_none() && ingress.get("tier_problems").is_none());
}

/// A name matches the addresses that the pod itself resolved it to.
#[test]
fn names_match_what_the_pod_resolved() {
    let name = |text: &str| DomainName::try_from(text.to_owned()).unwrap();
    let peers = ["*.example.com", "other.example.org"].map(|text| Peer::Domain(name(text)));
    let rules =
        vec![about(Action::Accept, Some(peers.to_vec()), &[443]), about(Action::Deny, None, &[])];
    let names = tier((Tier::Admin, "names", 10), vec![], rules);
    let cluster = cluster().into_iter().chain([names]).collect();
    let mut resolved = ResolvedNames::default();
    let web = Key::new("shop", "web");
    let (left, found) = (Duration::from_secs(48), ip("192.0.2.7"));
    resolved.insert(&web, &name("*.example.com"), found, left);
    resolved.insert(&Key::new("shop", "db"), &name("other.example.org"), found, left);
    let judge = |explainer: Explainer<'_>, pod: &str, to: &str| {
        let (pod, to) = (Key::new("shop", pod), ip(to));
        let kind = (IpProtocol::TCP, 443);
        let judged = explainer.judge(&pod, Direction::Egress, to, kind.0, kind.1).unwrap();
        (judged.verdict, judged.lines().join("\n"))
    };
    let explainer = Explainer::new(&cluster).with_resolved(&resolved);
    let (verdict, lines) = judge(explainer, "web", "192.0.2.7");
    assert_eq!(verdict, Verdict::Allow, "{lines}");
    let said = "the pod resolved *.example.com to 192.0.2.7, which counts for another 48 s";
    assert!(lines.contains(said), "{lines}");
    let (verdict, lines) = judge(explainer, "web", "192.0.2.8");
    assert_eq!(verdict, Verdict::Deny, "another address");
    let others = "  no answer that counts leads the pod to 192.0.2.8; it resolved *.example.com (counts for another 48 s)";
    assert!(lines.ends_with(others), "{lines}");
    assert_eq!(judge(explainer, "db", "192.0.2.7").0, Verdict::Allow, "another name");
    assert_eq!(judge(Explainer::new(&cluster), "web", "192.0.2.7").0, Verdict::Deny, "unknown");
}

/// A denial lists the names that the pod resolved, those that count longest first, if a name could have allowed the
/// traffic.
#[test]
fn denials_list_the_resolved_names() {
    let name = |text: &str| DomainName::try_from(text.to_owned()).unwrap();
    let peers = (1..=8).map(|n| Peer::Domain(name(&format!("n{n}.example.com")))).collect();
    let rules = vec![about(Action::Accept, Some(peers), &[443]), about(Action::Deny, None, &[])];
    let names = tier((Tier::Admin, "names", 10), vec![], rules);
    let cluster = cluster().into_iter().chain([names]).collect();
    let web = Key::new("shop", "web");
    let lines = |resolved: &ResolvedNames, to: &str, port| {
        let explainer = Explainer::new(&cluster).with_resolved(resolved);
        let judged = explainer.judge(&web, Direction::Egress, ip(to), IpProtocol::TCP, port);
        let judged = judged.unwrap();
        assert_eq!(judged.verdict, Verdict::Deny);
        judged.lines().join("\n")
    };
    let mut resolved = ResolvedNames::default();
    let none = "no answer that counts leads the pod to 192.0.2.8; it resolved no name of its rules";
    assert!(lines(&resolved, "192.0.2.8", 443).contains(none));
    for n in 1..=7 {
        let found = ip(&format!("192.0.2.{}", 100 + n));
        resolved.insert(&web, &name(&format!("n{n}.example.com")), found, Duration::from_secs(n));
    }
    resolved.insert(&web, &name("n1.example.com"), ip("192.0.2.99"), Duration::from_mins(1));
    let text = lines(&resolved, "192.0.2.8", 443);
    let order =
        ["n1.example.com (counts for another 60 s)", "n7.example.com (counts for another 7 s)"];
    let listed = format!("it resolved {}", order.join(", "));
    assert!(
        text.contains(&listed) && text.contains("n4.example.com (counts for another 4 s), 2 more"),
        "{text}"
    );
    assert!(
        !lines(&resolved, "192.0.2.8", 80).contains("no answer"),
        "no rule with names has the port"
    );
    assert!(!lines(&resolved, "192.0.2.101", 80).contains("no answer"), "it was resolved");
}

/// The programs do not record the names of an audited policy, so a report of its denials mentions the names that could
/// decide.
#[test]
fn names_on_trial_are_not_recorded() {
    let name = |text: &str| DomainName::try_from(text.to_owned()).unwrap();
    let rules = |names: &[&str]| {
        let peers = names.iter().map(|text| Peer::Domain(name(text))).collect();
        vec![about(Action::Accept, Some(peers), &[443]), about(Action::Deny, None, &[])]
    };
    let on_trial = |rules| {
        let Change::ClusterPolicy(policy) = tier((Tier::Admin, "names", 10), vec![], rules) else {
            panic!("a tier");
        };
        Change::ClusterPolicy(ClusterPolicy { enforcement: Enforcement::Audit, ..policy })
    };
    let accept =
        vec![about(Action::Accept, Some(vec![Peer::Domain(name("known.example.org"))]), &[443])];
    let enforced = tier((Tier::Admin, "first", 5), vec![], accept);
    let trial = on_trial(rules(&["*.example.com", "known.example.org"]));
    let cluster = cluster().into_iter().chain([enforced, trial]).collect();
    let (web, mut resolved) = (Key::new("shop", "web"), ResolvedNames::default());
    resolved.insert(&web, &name("known.example.org"), ip("192.0.2.8"), Duration::from_mins(1));
    let explainer = Explainer::new(&cluster).with_resolved(&resolved);
    let lines = |to: &str, port| {
        let judged = explainer.judge(&web, Direction::Egress, ip(to), IpProtocol::TCP, port);
        let judged = judged.unwrap();
        assert_eq!(judged.verdict, Verdict::Allow);
        judged.lines()[1..].join("\n")
    };
    let denied = "would be denied by policies in audit mode: ClusterNetworkPolicy names";
    let unless = "  egress rule 1 of names would accept it if the pod has resolved *.example.com to 192.0.2.7: names of \
                  policies in audit mode are not recorded";
    let text = lines("192.0.2.7", 443);
    assert!(text.contains(denied) && text.contains(unless), "{text}");
    let text = lines("192.0.2.7", 80);
    assert!(text.contains(denied) && !text.contains("*.example.com"), "the port differs: {text}");
    let text = lines("192.0.2.8", 443);
    assert!(!text.contains(denied), "an enforced rule records the name: {text}");
    let pod = cluster.pods().get(&web).unwrap();
    let on_trial = |to: &str| {
        explainer.denied_on_trial(pod, Direction::Egress, ip(to), IpProtocol::TCP, 443).len()
    };
    assert_eq!((on_trial("192.0.2.7"), on_trial("192.0.2.8")), (1, 0));
}
