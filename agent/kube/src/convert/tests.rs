//! The meaning of each absent, empty or wrong field, by manifest.

use std::net::IpAddr;

use netpold_core::model::{
    Denial, Enforcement, IpBlock, Key, Labels, NamedPort, Namespace, Node, Peer, Pod, Policy,
    PortMatch, Protocol, Requirement, Rule, Selector,
};
use netpold_testkit::objects;

use super::*;
use crate::document::{MappingEntry, Value, parse};

mod cluster_policies;
mod services;

/// Converts a manifest. The same object from an API server must have the same meaning.
fn convert(text: &str) -> Converted {
    let node = &parse(text).unwrap()[0];
    let converted = match manifest(node) {
        Ok(Manifest::Object(object)) => *object,
        other => panic!("{other:?}"),
    };
    let read = read(kind_of(node), json_of(node).as_bytes(), true);
    assert_eq!((read.change.as_ref(), read.undecoded), (Some(&converted.change), false), "{text}");
    converted
}

fn kind_of(node: &DocumentNode) -> Kind {
    match node.text("kind").unwrap() {
        "Namespace" => Kind::Namespace,
        "Node" => Kind::Node,
        "Pod" => Kind::Pod,
        "Service" => Kind::Service,
        "EndpointSlice" => Kind::EndpointSlice,
        "NetworkPolicy" => Kind::NetworkPolicy,
        "ClusterNetworkPolicy" => Kind::ClusterNetworkPolicy,
        other => panic!("{other}"),
    }
}

/// Writes the document as JSON in the same order, on which the order of problems depends.
fn json_of(node: &DocumentNode) -> String {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    match &node.value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Text(value) => text(value),
        Value::List(items) => {
            let items: Vec<String> = items.iter().map(json_of).collect();
            format!("[{}]", items.join(","))
        }
        Value::Map(entries) => {
            let entry =
                |entry: &MappingEntry| format!("{}:{}", text(&entry.key), json_of(&entry.node));
            let entries: Vec<String> = entries.iter().map(entry).collect();
            format!("{{{}}}", entries.join(","))
        }
    }
}

fn error(text: &str) -> String {
    manifest(&parse(text).unwrap()[0]).unwrap_err().to_string()
}

/// A policy `default/p` with this spec, written as flow YAML or an indented block.
fn policy(spec: &str) -> Policy {
    let text = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p}}\nspec: {spec}"
    );
    let Change::Policy(policy) = convert(&text).change else { panic!("it is of another kind") };
    policy
}

/// The ingress rule of a policy with this one rule, and the problems.
fn rule(rule: &str) -> (Rule, Vec<String>) {
    let policy = policy(&format!("{{ingress: [{rule}]}}"));
    (policy.ingress.unwrap().remove(0), policy.problems)
}

fn pod_of(text: &str) -> (Pod, Vec<FieldProblem>) {
    let converted = convert(text);
    let Change::Pod(pod) = converted.change else { panic!("it is of another kind") };
    (pod, converted.problems)
}

fn labels_of<const N: usize>(labels: [(&str, &str); N]) -> Labels {
    labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn one(key: &str, value: &str) -> Selector {
    Selector { requirements: vec![Requirement::In(key.into(), vec![value.into()])] }
}

#[test]
fn policy_types_are_defaulted_as_the_api_server_does() {
    for (spec, ingress, egress) in [
        ("{}", true, false),
        ("", true, false),
        ("{ingress: []}", true, false),
        ("{ingress: [{}]}", true, false),
        // Egress is isolated if there are egress rules, not if the field is present.
        ("{egress: []}", true, false),
        ("{egress: [{}]}", true, true),
        ("{policyTypes: [], egress: [{}]}", true, true),
        ("{policyTypes: [Egress]}", false, true),
        ("{policyTypes: [Egress], ingress: [{}]}", false, true),
        ("{policyTypes: [Ingress], egress: [{}]}", true, false),
        ("{policyTypes: [Ingress, Egress]}", true, true),
    ] {
        let policy = policy(spec);
        assert_eq!(
            (policy.ingress.is_some(), policy.egress.is_some()),
            (ingress, egress),
            "{spec}"
        );
        assert!(policy.problems.is_empty(), "{spec}: {:?}", policy.problems);
    }
}

#[test]
fn a_policy_type_that_is_none_isolates_both() {
    let policy = policy("{policyTypes: [ingress]}");
    assert_eq!((policy.ingress, policy.egress), (Some(vec![]), Some(vec![])));
    assert_eq!(policy.problems, ["spec.policyTypes[0]: `ingress` is not Ingress or Egress"]);
}

#[test]
fn a_third_policy_type_isolates_both() {
    let policy = policy("{policyTypes: [Ingress, Ingress, Ingress], ingress: [{}]}");
    let everything = Rule { peers: None, ports: None };
    assert_eq!((policy.ingress, policy.egress), (Some(vec![everything]), Some(vec![])));
    assert_eq!(policy.problems, ["spec.policyTypes: has 3 items; API servers take at most 2"]);
}

#[test]
fn an_absent_spec_selects_all_and_denies_ingress() {
    let text = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\n";
    let Change::Policy(policy) = convert(text).change else { panic!() };
    assert_eq!(policy.pod_selector, Selector::default());
    assert_eq!((policy.ingress, policy.egress), (Some(vec![]), None));
}

#[test]
fn absent_and_empty_lists_in_a_rule_mean_everyone_and_everything() {
    let open = Rule { peers: None, ports: None };
    for text in ["{}", "{from: []}", "{ports: []}", "{from: [], ports: []}", "{from: , ports: }"] {
        assert_eq!(rule(text), (open.clone(), vec![]), "{text}");
    }
}

#[test]
fn pod_selectors_of_a_policy_that_are_wrong_select_every_pod() {
    assert_eq!(policy("{podSelector: {matchLabels: {a: b}}}").pod_selector, one("a", "b"));
    for spec in [
        "{podSelector: {matchLabels: {a: 'b c'}}}",
        "{podSelector: {matchLabels: {-a: b}}}",
        "{podSelector: {matchExpressions: [{key: a, operator: Like, values: [b]}]}}",
        "{podSelector: {matchLabels: {a: b}, matchLabel: {c: d}}}",
    ] {
        let policy = policy(spec);
        assert_eq!(policy.pod_selector, Selector::default(), "{spec}");
        assert_eq!(policy.problems.len(), 1, "{spec}: {:?}", policy.problems);
    }
}

#[test]
fn peers_with_selectors() {
    let pods = |namespaces, pods| vec![Peer::Pods { namespaces, pods }];
    for (text, peers) in [
        ("{podSelector: {}}", pods(None, Selector::default())),
        ("{podSelector: {matchLabels: {a: b}}}", pods(None, one("a", "b"))),
        ("{namespaceSelector: {}}", pods(Some(Selector::default()), Selector::default())),
        (
            "{namespaceSelector: {matchLabels: {t: x}}, podSelector: {matchLabels: {a: b}}}",
            pods(Some(one("t", "x")), one("a", "b")),
        ),
    ] {
        assert_eq!(rule(&format!("{{from: [{text}]}}")).0.peers, Some(peers), "{text}");
    }
}

#[test]
fn all_operators_are_read_sorted_and_once() {
    let spec = "{podSelector: {matchLabels: {e/a: ''}, matchExpressions: [
        {key: d, operator: DoesNotExist}, {key: c, operator: Exists, values: []},
        {key: b, operator: NotIn, values: ['y', x, 'y']}, {key: a, operator: In, values: [z]},
        {key: a, operator: In, values: [z]}]}}";
    let x_y = vec!["x".to_owned(), "y".to_owned()];
    let policy = policy(spec);
    assert_eq!(
        policy.pod_selector.requirements,
        [
            Requirement::In("a".into(), vec!["z".into()]),
            Requirement::In("e/a".into(), vec![String::new()]),
            Requirement::NotIn("b".into(), x_y),
            Requirement::Exists("c".into()),
            Requirement::DoesNotExist("d".into()),
        ],
        "{:?}",
        policy.problems
    );
}

#[test]
fn a_peer_that_is_wrong_matches_nothing_and_leaves_the_others() {
    for (peer, problem) in [
        ("{}", "spec.ingress[0].from[0]: needs podSelector, namespaceSelector or ipBlock"),
        (
            "{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}",
            "spec.ingress[0].from[0]: ipBlock cannot be combined with podSelector or namespaceSelector",
        ),
        (
            "{ipBlock: {cidr: 10.0.0.300/8}}",
            "spec.ingress[0].from[0].ipBlock.cidr: `10.0.0.300/8` is not a CIDR such as 10.0.0.0/8",
        ),
        (
            "{ipBlock: {cidr: 10.0.0.1}}",
            "spec.ingress[0].from[0].ipBlock.cidr: `10.0.0.1` is not a CIDR such as 10.0.0.0/8",
        ),
        (
            "{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}",
            "spec.ingress[0].from[0].ipBlock.except[0]: \
             11.0.0.0/16 is not strictly within 10.0.0.0/8",
        ),
        (
            "{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/8]}}",
            "spec.ingress[0].from[0].ipBlock.except[0]: 10.1.0.0/8 is not strictly within 10.0.0.0/8",
        ),
        (
            "{ipBlock: {cidr: 10.0.0.0/8, except: ['fd00::/64']}}",
            "spec.ingress[0].from[0].ipBlock.except[0]: fd00::/64 is not strictly within 10.0.0.0/8",
        ),
        (
            "{ipBlock: {cidr: '::ffff:10.0.0.0/104'}}",
            "spec.ingress[0].from[0].ipBlock.cidr: \
             ::ffff:10.0.0.0/104 is IPv4-mapped IPv6; write it as IPv4",
        ),
        (
            "{podSelector: {matchExpressions: [{key: a, operator: In}]}}",
            "spec.ingress[0].from[0].podSelector.matchExpressions[0].values: \
             operator In needs at least one value",
        ),
        (
            "{namespaceSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}",
            "spec.ingress[0].from[0].namespaceSelector.matchExpressions[0].values: \
             operator Exists takes no values",
        ),
        (
            "{podSelectr: {}, namespaceSelector: {}}",
            "spec.ingress[0].from[0].podSelectr: \
             unknown field; known fields: podSelector, namespaceSelector, ipBlock",
        ),
    ] {
        let (alone, problems) = rule(&format!("{{from: [{peer}]}}"));
        assert_eq!((alone.peers, problems), (Some(vec![]), vec![problem.to_owned()]), "{peer}");
        let (beside, _) = rule(&format!("{{from: [{peer}, {{podSelector: {{}}}}]}}"));
        assert_eq!(beside.peers.unwrap().len(), 1, "{peer}");
    }
}

#[test]
fn host_bits_are_masked() {
    let (rule, problems) = rule("{from: [{ipBlock: {cidr: 10.1.2.3/8, except: [10.9.9.9/16]}}]}");
    let block = IpBlock {
        cidr: "10.0.0.0/8".parse().unwrap(),
        except: vec!["10.9.0.0/16".parse().unwrap()],
    };
    assert_eq!((rule.peers, problems), (Some(vec![Peer::Block(block)]), vec![]));
}

#[test]
fn ports() {
    let range = PortMatch::Range;
    for (text, protocol, port) in [
        ("{}", Protocol::Tcp, PortMatch::Any),
        ("{protocol: UDP}", Protocol::Udp, PortMatch::Any),
        ("{port: 80}", Protocol::Tcp, range(80, 80)),
        ("{port: 1, endPort: 65535, protocol: SCTP}", Protocol::Sctp, range(1, 65535)),
        ("{port: 80, endPort: 80}", Protocol::Tcp, range(80, 80)),
        ("{port: http-1}", Protocol::Tcp, PortMatch::Named("http-1".into())),
    ] {
        let (rule, problems) = rule(&format!("{{ports: [{text}]}}"));
        let expected = netpold_core::model::PortRule { protocol, port };
        assert_eq!((rule.ports, problems), (Some(vec![expected]), vec![]), "{text}");
    }
}

#[test]
fn a_port_that_is_wrong_grants_nothing() {
    for (text, problem) in [
        ("{protocol: tcp}", ".protocol: `tcp` is not TCP, UDP or SCTP"),
        ("{protocol: ICMP}", ".protocol: `ICMP` is not TCP, UDP or SCTP"),
        ("{port: 0}", ".port: 0 is not a port, 1 to 65535"),
        ("{port: 65536}", ".port: 65536 is not a port, 1 to 65535"),
        ("{port: -1}", ".port: -1 is not a port, 1 to 65535"),
        ("{port: '80'}", ".port: \"80\" is text; write the number without quotes"),
        ("{port: HTTP}", ".port: `HTTP` is not a port name"),
        ("{port: a-very-long-port-name}", ".port: `a-very-long-port-name` is not a port name"),
        ("{port: 80, endPort: 79}", ".endPort: 79 is less than port 80"),
        ("{port: 80, endPort: 70000}", ".endPort: 70000 is not a port, 1 to 65535"),
        ("{endPort: 80}", ".endPort: needs a port to begin at"),
        ("{port: http, endPort: 80}", ".endPort: needs a port that is a number, not a name"),
        (
            "{port: 80, endport: 90}",
            ".endport: unknown field; known fields: protocol, port, endPort",
        ),
    ] {
        let (rule, problems) = rule(&format!("{{ports: [{text}]}}"));
        let expected = format!("spec.ingress[0].ports[0]{problem}");
        assert_eq!((rule.ports, problems), (Some(vec![]), vec![expected]), "{text}");
    }
}

#[test]
fn a_field_that_is_not_of_the_api_never_opens() {
    let nothing = Rule { peers: Some(vec![]), ports: Some(vec![]) };
    for text in ["{form: [{podSelector: {}}]}", "{to: []}", "{from.x: []}", "{port: [80]}"] {
        let (rule, problems) = rule(text);
        assert_eq!((rule, problems.len()), (nothing.clone(), 1), "{text}");
    }
    let policy = policy("{podSelectors: {}, ingres: [{}], ingress: [{ports: [{port: 1}]}]}");
    assert_eq!(policy.egress, Some(vec![]), "an unknown field may have been meant for egress");
    assert_eq!(policy.ingress.unwrap().len(), 1);
    assert_eq!(
        policy.problems,
        [
            "spec.podSelectors: unknown field; known fields: podSelector, policyTypes, ingress, egress",
            "spec.ingres: unknown field; known fields: podSelector, policyTypes, ingress, egress",
        ]
    );
}

#[test]
fn namespaces_carry_their_name_as_label() {
    let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: x, labels: {a: b}}\n";
    let labels = labels_of([("a", "b"), ("kubernetes.io/metadata.name", "x")]);
    assert_eq!(
        convert(text).change,
        Change::Namespace(Namespace { name: "x".into(), labels, denial: None })
    );
}

#[test]
fn nodes_have_internal_and_external_addresses() {
    let converted = convert(
        "{apiVersion: v1, kind: Node, metadata: {name: 'n', namespce: x}, status: {addresses: [
         {type: Hostname, address: 'n'}, {type: InternalIP, address: 192.168.0.1},
         {type: ExternalIP, address: '2001:db8::1'}, {type: InternalIP, address: nowhere}]}}",
    );
    let addresses = vec!["192.168.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    assert_eq!(
        converted.change,
        Change::Node(Node { name: "n".into(), addresses, ..Node::default() })
    );
    let problems: Vec<String> = converted.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "status.addresses[3].address: `nowhere` is not an address",
            "metadata.namespce: unknown field of metadata",
        ]
    );
}

#[test]
fn a_pod_with_everything() {
    let (pod, problems) = pod_of(
        "
apiVersion: v1
kind: Pod
metadata:
  name: a
  namespace: x
  uid: 1-2
  labels: {app: web}
  annotations: {netpold.io/check-source: 'off'}
  creationTimestamp: '1970-01-01T00:01:40Z'
  deletionTimestamp: '2026-01-01T00:00:00Z'
spec:
  nodeName: 'n'
  hostNetwork: true
  containers:
  - name: c
    ports:
    - {name: web, containerPort: 80}
    - {containerPort: 81}
    - {name: dns, containerPort: 53, protocol: UDP}
  initContainers:
  - {name: i, ports: [{name: init, containerPort: 1}]}
  - {name: s, restartPolicy: Always, ports: [{name: side, containerPort: 2}]}
status:
  phase: Running
  podIP: 10.0.0.9
  podIPs: [{ip: 'fd00::1'}, {ip: 10.0.0.1}, {ip: 10.0.0.1}]
",
    );
    let port = |name: &str, protocol, port| NamedPort { name: name.into(), protocol, port };
    let expected = Pod {
        uid: "1-2".into(),
        node: "n".into(),
        host_network: true,
        terminating: true,
        created: 100,
        ports: vec![
            port("dns", Protocol::Udp, 53),
            port("side", Protocol::Tcp, 2),
            port("web", Protocol::Tcp, 80),
        ],
        foreign_sources: true,
        ..objects::pod("x", "a", &[("app", "web")], &["10.0.0.1", "fd00::1"])
    };
    assert_eq!((pod, problems), (expected, vec![]));
}

#[test]
fn a_pod_that_asks_for_something_else_is_checked() {
    let (pod, problems) = pod_of(
        "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {netpold.io/check-source: 'no'}}}",
    );
    assert!(!pod.foreign_sources);
    let expected = "metadata.annotations.netpold.io/check-source: `no` is not `off`";
    assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
}

#[test]
fn a_pod_with_next_to_nothing() {
    let (pod, problems) = pod_of("{apiVersion: v1, kind: Pod, metadata: {name: a}}");
    assert_eq!((pod.key, pod.uid.as_str()), (Key::new("default", "a"), "default/a"));
    assert!(pod.addresses.is_empty() && pod.node.is_empty() && problems.is_empty());
    assert!(!pod.finished && !pod.terminating && !pod.host_network && pod.created == 0);
}

#[test]
fn phases_and_addresses_of_pods() {
    let with = |status: &str| {
        pod_of(&format!("{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, status: {status}}}"))
    };
    for (phase, finished) in
        [("Pending", false), ("Running", false), ("Succeeded", true), ("Failed", true)]
    {
        assert_eq!(with(&format!("{{phase: {phase}}}")).0.finished, finished, "{phase}");
    }
    for status in ["{podIP: 10.0.0.1}", "{podIP: 10.0.0.1, podIPs: []}", "{podIP: '::ffff:a00:1'}"]
    {
        assert_eq!(with(status).0.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap()], "{status}");
    }
    let (pod, problems) = with("{podIPs: [{ip: 10.0.0.1}, {ip: ten}]}");
    assert_eq!(pod.addresses.len(), 1);
    assert_eq!(problems[0].to_string(), "status.podIPs[1].ip: `ten` is not an address");
}

#[test]
fn other_kinds_are_left_alone_unless_they_are_a_slip() {
    for text in [
        "{apiVersion: apps/v1, kind: Deployment}",
        "{apiVersion: serving.knative.dev/v1, kind: Service}",
        "{apiVersion: projectcalico.org/v3, kind: NetworkPolicy}",
        "{apiVersion: networking.k8s.io/v1, kind: Ingress}",
        "{apiVersion: v1, kind: ConfigMap}",
    ] {
        let read = manifest(&parse(text).unwrap()[0]);
        assert!(matches!(read, Ok(Manifest::Other(..))), "{text}: {read:?}");
    }
    for (text, message) in [
        ("{a: b}", "line 1: not a Kubernetes object: no `kind`"),
        ("{kind: Pod}", "line 1: not a Kubernetes object: no `apiVersion`"),
        ("hello", "line 1: not a Kubernetes object: no `kind`"),
        (
            "kind: NetworkPolicy\napiVersion: extensions/v1beta1",
            "line 2: apiVersion: NetworkPolicy is read as networking.k8s.io/v1, \
             not extensions/v1beta1",
        ),
        (
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicies",
            "line 2: kind: networking.k8s.io/v1 has no NetworkPolicies, but NetworkPolicy",
        ),
        (
            "apiVersion: networking.k8s.io/v1\nkind: NetwrkPolicy",
            "line 2: kind: networking.k8s.io/v1 has no NetwrkPolicy, but NetworkPolicy",
        ),
        (
            "apiVersion: networking.k8s.io/v1\nkind: networkpolicy",
            "line 2: kind: networking.k8s.io/v1 has no networkpolicy, but NetworkPolicy",
        ),
        ("{apiVersion: v1, kind: Pod}", "line 1: metadata.name: the object has no name"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels:\n    v: 1\n",
            "line 6: metadata.labels.v: is integer `1`, expected a string; put it in quotes",
        ),
    ] {
        assert_eq!(error(text), message);
    }
}
