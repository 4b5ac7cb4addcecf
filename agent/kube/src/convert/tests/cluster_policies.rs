//! ClusterNetworkPolicy.

use netpold_core::model::{
    Action, ClusterPolicy, ClusterRule, NamespacedPods, PortRule, Protocol, Tier,
};

use super::*;

fn cluster_policy(spec: &str) -> ClusterPolicy {
    let text = format!(
        "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\n\
         metadata: {{name: p, uid: u, generation: 3}}\nspec: {spec}"
    );
    let Change::ClusterPolicy(policy) = convert(&text).change else {
        panic!("it is of another kind")
    };
    policy
}

const HEAD: &str = "tier: Admin, priority: 7, subject: {namespaces: {}}";

/// The egress rule of a policy with this one rule, and the problems.
fn egress(rule: &str) -> (ClusterRule, Vec<String>) {
    let mut policy = cluster_policy(&format!("{{{HEAD}, egress: [{rule}]}}"));
    assert_eq!(policy.egress.len(), 1);
    (policy.egress.remove(0), policy.problems)
}

fn ports(protocols: &str) -> Vec<PortRule> {
    let rule = format!("{{action: Deny, to: [{{namespaces: {{}}}}], protocols: [{protocols}]}}");
    let (rule, problems) = egress(&rule);
    assert_eq!(problems, Vec::<String>::new(), "{protocols}");
    rule.matches.ports.unwrap()
}

const EVERYONE: Rule = Rule { peers: None, ports: None };

fn nobody() -> Rule {
    Rule { peers: Some(Vec::new()), ports: None }
}

#[test]
fn every_field_is_read() {
    let policy = cluster_policy(
        "{tier: Baseline, priority: 1000, subject: {pods: {namespaceSelector: {matchLabels: {a: b}}, \
         podSelector: {matchLabels: {c: d}}}}, \
         ingress: [{name: one, action: Pass, from: [{namespaces: {matchLabels: {e: f}}}]}], \
         egress: [{action: Accept, to: [{nodes: {}}, {networks: [10.0.0.7/8, 'fd00::/8']}, \
         {pods: {podSelector: {}}}]}]}",
    );
    assert_eq!(policy.problems, Vec::<String>::new());
    assert_eq!((policy.name.as_str(), policy.tier, policy.priority), ("p", Tier::Baseline, 1000));
    assert_eq!((policy.version.uid.as_str(), policy.version.generation), ("u", 3));
    assert_eq!(policy.subject, NamespacedPods { namespaces: one("a", "b"), pods: one("c", "d") });
    let pods = |namespaces, pods| Peer::Pods { namespaces: Some(namespaces), pods };
    let rule = |name: &str, action, peers| ClusterRule {
        name: name.into(),
        action,
        matches: Rule { peers: Some(peers), ports: None },
    };
    let block = |cidr: &str| Peer::Block(IpBlock { cidr: cidr.parse().unwrap(), except: vec![] });
    let all = Selector::default;
    assert_eq!(policy.ingress, [rule("one", Action::Pass, vec![pods(one("e", "f"), all())])]);
    let peers =
        vec![Peer::Nodes(all()), block("10.0.0.0/8"), block("fd00::/8"), pods(all(), all())];
    assert_eq!(policy.egress, [rule("", Action::Accept, peers)]);
}

#[test]
fn protocols_and_ports() {
    let range = |protocol, first, last| PortRule { protocol, port: PortMatch::Range(first, last) };
    assert_eq!(
        ports(
            "{tcp: {destinationPort: {number: 80}}}, \
             {udp: {destinationPort: {range: {start: 1, end: 65535}}}}, \
             {sctp: {destinationPort: {number: 9}}}"
        ),
        [range(Protocol::Tcp, 80, 80), range(Protocol::Udp, 1, 65535), range(Protocol::Sctp, 9, 9)]
    );
    let named = |protocol| PortRule { protocol, port: PortMatch::Named("dns".into()) };
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    assert_eq!(ports("{destinationNamedPort: dns}"), all.map(named));
}

/// A broken Accept matches nothing, other broken rules deny everything; problems have the path.
#[test]
fn a_rule_that_is_not_understood_fails_closed() {
    let pods = "{namespaces: {}}";
    for (parts, problem) in [
        (
            "to: [{domainNames: ['a.*.example']}]",
            "to[0].domainNames[0]: `a.*.example` is not a domain name such as api.example.com or *.example.com, of at \
             least two labels of letters, digits, - and _",
        ),
        ("to: [{domainNames: []}]", "to[0].domainNames: is empty; it needs at least one item"),
        ("to: [{}]", "to[0]: needs exactly one of namespaces, pods, nodes, networks, domainNames"),
        (
            "to: [{namespaces: {}, nodes: {}}]",
            "to[0]: needs exactly one of namespaces, pods, nodes, networks, domainNames",
        ),
        ("to: []", "to: is empty; it needs at least one item"),
        ("to: 5", "to: is not a list"),
        ("protocols: null", "to: is missing; it needs at least one peer"),
        ("to: [{namespaces: 5}]", "to[0].namespaces: is integer `5`, expected LabelSelector"),
        ("to: [{pods: {}}]", "to[0].pods: needs podSelector; {} is every pod"),
        ("to: [{networks: []}]", "to[0].networks: is empty; it needs at least one item"),
        ("to: [{networks: [10/8]}]", "to[0].networks[0]: `10/8` is not a CIDR such as 10.0.0.0/8"),
        ("to: [PODS], protocols: []", "protocols: is empty; it needs at least one item"),
        (
            "to: [PODS], protocols: [{icmp: {}}]",
            "protocols[0].icmp: unknown field; known fields: tcp, udp, sctp, destinationNamedPort",
        ),
        ("to: [PODS], protocols: [{tcp: {}}]", "protocols[0].tcp: needs destinationPort"),
        (
            "to: [PODS], protocols: [{tcp: {destinationPort: {}}}]",
            "protocols[0].tcp.destinationPort: needs exactly one of number, range",
        ),
        (
            "to: [PODS], protocols: [{udp: {destinationPort: {number: 0}}}]",
            "protocols[0].udp.destinationPort.number: 0 is not a port, 1 to 65535",
        ),
        (
            "to: [PODS], protocols: [{udp: {destinationPort: {range: {start: 9, end: 8}}}}]",
            "protocols[0].udp.destinationPort.range.end: 8 is less than start 9",
        ),
        (
            "to: [{nodes: {}}], protocols: [{destinationNamedPort: dns}]",
            "protocols[0].destinationNamedPort: networks, nodes and domain names have no named ports",
        ),
        (
            "to: [PODS], protocols: [{destinationNamedPort: '53'}]",
            "protocols[0].destinationNamedPort: `53` is not a port name",
        ),
        (
            "to: [PODS], unless: rain",
            "unless: unknown field; known fields: name, action, to, protocols",
        ),
        ("to: [PODS], name: [x]", "name: is sequence, expected a string"),
    ] {
        let parts = parts.replace("PODS", pods);
        for (action, expected, matches, outcome) in [
            ("Accept", Action::Accept, nobody(), "the rule matches nothing"),
            ("Deny", Action::Deny, EVERYONE, "the rule denies everything"),
            ("Pass", Action::Deny, EVERYONE, "the rule denies everything"),
        ] {
            let (rule, problems) = egress(&format!("{{action: {action}, {parts}}}"));
            assert_eq!((rule.action, rule.matches), (expected, matches), "{action} {parts}");
            assert!(
                problems[0].starts_with(&format!("spec.egress[0].{problem}"))
                    && problems[0].ends_with(&format!("; {outcome}")),
                "{action} {parts}: {problems:?}"
            );
        }
    }
}

#[test]
fn an_action_that_is_none_denies_everything() {
    for (given, reason) in [
        ("action: Allow", "`Allow` is not Accept, Deny or Pass"),
        ("name: x", "is missing; it is Accept, Deny or Pass"),
    ] {
        let (rule, problems) = egress(&format!("{{{given}, to: [{{namespaces: {{}}}}]}}"));
        assert_eq!((rule.action, rule.matches), (Action::Deny, EVERYONE));
        let expected = format!("spec.egress[0].action: {reason}; the rule denies everything");
        assert_eq!(problems, [expected]);
    }
}

/// Rules with unknown subject or order allow nothing.
#[test]
fn without_subject_tier_or_priority_only_denials_count() {
    let rules = "ingress: [{action: Accept, from: [{namespaces: {}}]}, \
                 {action: Pass, from: [{namespaces: {}}]}, {action: Deny, from: [{namespaces: {}}]}]";
    for (head, problem) in [
        (
            "tier: Middle, priority: 1, subject: {namespaces: {}}",
            "spec.tier: `Middle` is not Admin or Baseline",
        ),
        (
            "priority: 1, subject: {namespaces: {}}",
            "spec.tier: is missing; it is Admin or Baseline",
        ),
        (
            "tier: Admin, priority: 1001, subject: {namespaces: {}}",
            "spec.priority: 1001 is not 0 to 1000",
        ),
        (
            "tier: Admin, priority: -1, subject: {namespaces: {}}",
            "spec.priority: -1 is not 0 to 1000",
        ),
        ("tier: Admin, subject: {namespaces: {}}", "spec.priority: is missing; it is 0 to 1000"),
        ("tier: Admin, priority: 1", "spec.subject: needs namespaces or pods; it is every pod"),
        (
            "tier: Admin, priority: 1, subject: {}",
            "spec.subject: needs namespaces or pods; it is every pod",
        ),
        (
            "tier: Admin, priority: 1, subject: {namespaces: {}, pods: {podSelector: {}}}",
            "spec.subject: has both namespaces and pods; it is every pod",
        ),
        (
            "tier: Admin, priority: 1, subject: {namespaces: {}, services: {}}",
            "spec.subject.services: unknown field; known fields: namespaces, pods; it is every pod",
        ),
        (
            "tier: Admin, priority: 1, subject: {namespaces: {}}, from: [1]",
            "spec.from: unknown field; known fields: tier, priority, subject, ingress, egress",
        ),
    ] {
        let policy = cluster_policy(&format!("{{{head}, {rules}}}"));
        assert_eq!(policy.problems[0], problem);
        assert_eq!(policy.problems[1], "spec: therefore only Deny rules take effect");
        assert_eq!(policy.subject, NamespacedPods::default(), "{head}");
        assert_eq!(policy.tier, Tier::Admin);
        let [accept, pass, deny] = &policy.ingress[..] else { panic!("{policy:?}") };
        assert_eq!((accept.action, &accept.matches), (Action::Accept, &nobody()), "{head}");
        assert_eq!((pass.action, &pass.matches), (Action::Pass, &nobody()), "{head}");
        assert_eq!(deny.action, Action::Deny);
        assert_eq!(deny.matches.peers.as_ref().map(Vec::len), Some(1), "as written: {head}");
    }
}

#[test]
fn rules_that_are_no_list_deny_everything() {
    let policy = cluster_policy(&format!("{{{HEAD}, ingress: {{}}, egress: null}}"));
    assert_eq!(policy.problems, ["spec.ingress: is not a list; everything is denied"]);
    assert_eq!((policy.ingress[0].action, &policy.ingress[0].matches), (Action::Deny, &EVERYONE));
    assert_eq!(policy.egress, []);
    let policy = cluster_policy("5");
    assert_eq!(policy.problems[0], "spec: is missing or not a mapping");
}

/// An API server has checked its own objects, perhaps by other limits.
#[test]
fn limits_of_the_definition_count_for_objects_without_uid() {
    let to = |peers: &str, more: &str| format!("{{action: Accept, to: [{peers}]{more}}}");
    let many = |item: &str| vec![item; 26].join(", ");
    let all = "{namespaces: {}}";
    let ports = format!(", protocols: [{}]", many("{tcp: {destinationPort: {number: 1}}}"));
    for (rules, problem) in [
        (many(&to(all, "")), "spec.egress: has 26 items"),
        (to(&many(all), ""), "spec.egress[0].to: has 26 items"),
        (
            format!("{}, {}", to(all, ""), to(&format!("{{networks: [{}]}}", many("::/0")), "")),
            "spec.egress[1].to[0].networks: has 26 items",
        ),
        (to(all, &ports), "spec.egress[0].protocols: has 26 items"),
        (to(all, &format!(", name: {}", "n".repeat(101))), "spec.egress[0].name: has more"),
    ] {
        for (metadata, count) in [("name: p", 1), ("name: p, uid: u", 0)] {
            let text = format!(
                "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\n\
                 metadata: {{{metadata}}}\nspec: {{{HEAD}, egress: [{rules}]}}"
            );
            let Change::ClusterPolicy(policy) = convert(&text).change else {
                panic!("another kind")
            };
            assert_eq!(policy.problems.len(), count, "{problem}: {:?}", policy.problems);
            assert!(policy.problems.iter().all(|it| it.starts_with(problem)), "{problem}");
            assert!(!policy.egress[0].matches.peers.as_ref().unwrap().is_empty(), "{problem}");
        }
    }
}

#[test]
fn only_the_word_audit_puts_a_policy_on_trial() {
    let problem = "`Audit` is not enforce or audit; the policy is enforced";
    for (value, enforcement, text) in [
        ("enforce", Enforcement::Enforce, None),
        ("audit", Enforcement::Audit, None),
        ("Audit", Enforcement::Enforce, Some(problem)),
    ] {
        let expected: Vec<String> = text
            .map(|text| format!("metadata.annotations.netpold.io/enforcement: {text}"))
            .into_iter()
            .collect();
        let metadata = format!(
            "metadata: {{name: p, annotations: {{other: x, netpold.io/enforcement: {value}}}}}"
        );
        let converted = convert(&format!(
            "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\n{metadata}\n\
             spec: {{{HEAD}}}"
        ));
        let Change::ClusterPolicy(policy) = converted.change else { panic!("another kind") };
        assert_eq!((policy.enforcement, &policy.problems), (enforcement, &expected));
        let converted = convert(&format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n{metadata}\nspec: {{}}"
        ));
        let Change::Policy(policy) = converted.change else { panic!("another kind") };
        assert_eq!((policy.enforcement, &policy.problems), (enforcement, &expected));
    }
}

#[test]
fn only_the_word_reject_asks_for_answers() {
    let problem = "`Reject` is not drop or reject; denied packets are dropped";
    for (value, denial, text) in [
        ("{}", None, None),
        ("{netpold.io/deny: drop}", Some(Denial::Drop), None),
        ("{netpold.io/deny: reject}", Some(Denial::Reject), None),
        ("{netpold.io/deny: Reject}", Some(Denial::Drop), Some(problem)),
    ] {
        let expected: Vec<String> = text
            .map(|text| format!("metadata.annotations.netpold.io/deny: {text}"))
            .into_iter()
            .collect();
        let object = |version: &str, kind: &str, spec: &str| {
            let metadata = format!("metadata: {{name: p, annotations: {value}}}");
            convert(&format!("apiVersion: {version}\nkind: {kind}\n{metadata}\n{spec}"))
        };
        let spec = format!("spec: {{{HEAD}}}");
        let (version, kind) = ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy");
        let Change::ClusterPolicy(policy) = object(version, kind, &spec).change else {
            panic!("another kind")
        };
        assert_eq!((policy.denial, &policy.problems), (denial, &expected));
        let (version, kind) = ("networking.k8s.io/v1", "NetworkPolicy");
        let Change::Policy(policy) = object(version, kind, "spec: {}").change else {
            panic!("another kind")
        };
        assert_eq!((policy.denial, &policy.problems), (denial, &expected));
        let converted = object("v1", "Namespace", "");
        let problems: Vec<String> = converted.problems.iter().map(ToString::to_string).collect();
        let Change::Namespace(namespace) = converted.change else { panic!("another kind") };
        assert_eq!((namespace.denial, problems), (denial, expected));
    }
}

#[test]
fn other_versions_and_misspelt_kinds_are_refused() {
    let head = |version: &str, kind: &str| {
        format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: p}}")
    };
    assert_eq!(
        error(&head("policy.networking.k8s.io/v1alpha1", "ClusterNetworkPolicy")),
        "line 1: apiVersion: ClusterNetworkPolicy is read as policy.networking.k8s.io/v1alpha2, not \
         policy.networking.k8s.io/v1alpha1"
    );
    assert_eq!(
        error(&head("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicies")),
        "line 2: kind: policy.networking.k8s.io/v1alpha2 has no ClusterNetworkPolicies, but \
         ClusterNetworkPolicy"
    );
    let node = &parse(&head("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy")).unwrap()[0];
    assert!(matches!(manifest(node), Ok(Manifest::Other(..))));
}

/// If a value cannot be read at all, the rule loses its matches, but not its action.
#[test]
fn an_object_that_cannot_be_decoded_keeps_its_subject_and_actions() {
    let twice = r#"{"metadata":{"name":"p","uid":"u"},"spec":{"tier":"Baseline","priority":3,
        "subject":{"namespaces":{"matchLabels":{"a":"b"}}},
        "ingress":[{"action":"Accept","from":[{"namespaces":{},"namespaces":{}}]}],
        "egress":[{"action":"Deny","name":"d","to":[{"nodes":{}}]}]}}"#;
    let read = read(Kind::ClusterNetworkPolicy, twice.as_bytes(), true);
    assert!(read.undecoded);
    let Some(Change::ClusterPolicy(policy)) = read.change else { panic!("{:?}", read.problems) };
    assert_eq!((policy.tier, policy.priority), (Tier::Baseline, 3));
    assert_eq!(policy.subject.namespaces, one("a", "b"));
    assert_eq!((policy.ingress[0].action, &policy.ingress[0].matches), (Action::Accept, &nobody()));
    assert_eq!((policy.egress[0].action, &policy.egress[0].matches), (Action::Deny, &EVERYONE));
    assert_eq!(
        policy.problems,
        [
            "spec.ingress[0].from[0].namespaces: is given twice; the policy cannot be decoded: its Accept \
          rules match nothing, the others deny everything"
        ]
    );
    let read = super::read(Kind::ClusterNetworkPolicy, br#"{"metadata":{"name":"p"},"#, true);
    assert_eq!((read.change, read.undecoded), (None, true));
    assert_eq!(read.identity.name.as_deref(), Some("p"));
}
