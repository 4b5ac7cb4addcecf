use std::collections::{BTreeMap, BTreeSet};

use netpold_core::model::{Direction, Key, Protocol};

use super::fields::PodDetails;
use super::foreign_kinds::ForeignKind;
use super::pages::{PAGES, foreign_groups, foreign_lists};
use super::{Details, EndpointsPort, PortReference};

fn read(text: &str) -> Details {
    let mut details = Details::default();
    details.add_text("f.yaml", text.as_bytes());
    details
}

#[test]
fn pods_and_their_containers() {
    let details = read("
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: x}
spec:
  automountServiceAccountToken: false
  containers:
  - {name: one, ports: [{containerPort: 80}, {containerPort: 53, protocol: UDP}]}
  - {name: two}
  initContainers: [{name: side, ports: [{name: s, containerPort: 90, protocol: SCTP}]}]
---
{apiVersion: v1, kind: Pod, metadata: {name: none, namespace: x}, spec: {containers: [{name: one}]}}
---
{apiVersion: v1, kind: Pod, metadata: 3, spec: [], items: 4}
---
{apiVersion: v1, kind: Pod, metadata: {name: odd}, spec: {containers: [{ports: [7, {containerPort: x}]}, 8]}}
---
apiVersion: apps/v1
kind: DaemonSetList
items:
- metadata: {name: kindnet, namespace: kube-system}
  spec: {template: {spec: {containers: [{image: docker.io/kindest/kindnetd:v1, command: [a, 7], args: [b]}, {name: no-image}]}}}
");
    let ports = BTreeSet::from([(Protocol::Tcp, 80), (Protocol::Udp, 53), (Protocol::Sctp, 90)]);
    let pod = PodDetails { ports, no_token: true, ..PodDetails::default() };
    assert_eq!(details.pods, BTreeMap::from([(Key::new("x", "a"), pod)]));
    let [running] = &details.running[..] else { panic!("{details:?}") };
    assert_eq!(running.key, Key::new("kube-system", "kindnet"));
    assert_eq!(running.containers[0].image, "docker.io/kindest/kindnetd:v1");
    assert_eq!(running.containers[0].words, ["a", "b"], "what is no text is left out");
    let source = &details.sources[&("DaemonSet", running.key.clone())];
    assert_eq!(source.to_string(), "f.yaml:21");
}

#[test]
fn a_broken_document_hides_no_other() {
    let details = read("
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x}, spec: {containers: [{ports: [{containerPort: 80}]}]}}
---
a: [
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: x}
spec: {containers: [{ports: [{containerPort: 79}]}]}
spec: {containers: [{ports: [{containerPort: 81}]}]}
");
    let ports = |name| details.pods[&Key::new("x", name)].ports.clone();
    assert_eq!(ports("a"), [(Protocol::Tcp, 80)].into());
    assert_eq!(ports("b"), [(Protocol::Tcp, 81)].into(), "the last of repeated keys counts");
}

#[test]
fn where_services_lead() {
    let details = read("
apiVersion: v1
kind: Service
metadata: {name: a, namespace: x}
spec: {selector: {app: a}, ports: [{port: 80}, {port: 53, targetPort: dns, protocol: UDP}, {port: 81, targetPort: 8081}]}
---
{apiVersion: v1, kind: Service, metadata: {name: odd, namespace: x}, spec: {selector: {app: a}, ports: [{port: 80, targetPort: 70000}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: outside, namespace: x}, spec: {type: ExternalName, externalName: e, selector: {app: a}}}
---
apiVersion: v1
kind: Endpoints
metadata: {name: a, namespace: x}
subsets: [{addresses: [{ip: 10.0.0.1}, {ip: none}], ports: [{port: 8443}, {port: 0}]}]
");
    let ports: Vec<(i32, Protocol, PortReference)> = details.services[&Key::new("x", "a")]
        .ports
        .iter()
        .map(|port| (port.port, port.protocol, port.target.clone()))
        .collect();
    let expected = [
        (80, Protocol::Tcp, PortReference::Number(80)),
        (53, Protocol::Udp, PortReference::Name("dns".to_owned())),
        (81, Protocol::Tcp, PortReference::Number(8081)),
    ];
    assert_eq!(ports, expected);
    assert_eq!(details.services[&Key::new("x", "odd")].ports, []);
    assert_eq!(details.services.len(), 2);
    assert_eq!(details.external_names[&Key::new("x", "outside")], "e");
    let backend = EndpointsPort {
        addresses: vec!["10.0.0.1".parse().unwrap()],
        port: (String::new(), Protocol::Tcp, 8443),
    };
    assert_eq!(details.endpoints[&Key::new("x", "a")], [backend]);
}

#[test]
fn policies_have_lines() {
    let details = read(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p, namespace: x}
spec:
  policyTypes: [Ingress]
  egress:
  - to:
    - ipBlock:
        cidr: 10.0.0.5/8
",
    );
    let manifest = &details.policies[&Key::new("x", "p")];
    let line = |path: &str| manifest.source(path).unwrap().to_string();
    assert_eq!(line(""), "f.yaml:2");
    assert_eq!(line("spec.egress[0].to[0].ipBlock.cidr"), "f.yaml:10");
    assert_eq!(line("spec.egress[0].to[0]"), "f.yaml:9");
    assert_eq!(manifest.void_rules(Direction::Egress), Some(1));
    assert_eq!(manifest.void_rules(Direction::Ingress), None);
    let cidrs: Vec<_> = manifest.cidrs().collect();
    assert_eq!(cidrs, [("spec.egress[0].to[0].ipBlock.cidr".to_owned(), "10.0.0.5/8")]);
}

#[test]
fn addresses_of_nodes() {
    let details = read(
        "
apiVersion: v1
kind: Node
metadata:
  name: 'n'
  annotations:
    projectcalico.org/IPv4Address: 192.0.2.1/24
    k8s.ovn.org/node-subnets: '{\"default\":[\"10.128.0.0/23\",\"fd00::/64\"]}'
    alpha.kubernetes.io/provided-node-ip: 192.0.2.1,2001:db8::1
    flannel.alpha.coreos.com/public-ip: not-an-address
spec: {podCIDRs: [10.1.2.0/24, 10.9.9.9/32]}
",
    );
    for address in ["192.0.2.1", "2001:db8::1", "10.128.0.2", "fd00::2", "10.1.2.0", "10.1.2.1"] {
        let (node, _) = details.node_of(address.parse().unwrap()).unwrap();
        assert_eq!(node, "n", "{address}");
    }
    for address in ["10.1.2.2", "10.9.9.9", "10.128.0.1"] {
        assert_eq!(details.node_of(address.parse().unwrap()), None, "{address}");
    }
}

#[test]
fn pages_of_the_api_server() {
    // Deep nesting in other fields does no harm.
    let fields = format!("{}1{}", "{\"f:a\":".repeat(500), "}".repeat(500));
    let pod = format!(
        r#"{{"metadata":{{"name":"a","namespace":"x","managedFields":[{fields}]}},
           "spec":{{"containers":[{{"name":"c","ports":[{{"containerPort":80}}]}}]}}}}"#
    );
    let page = |next: &str, items: &str| {
        format!(r#"{{"kind":"PodList","metadata":{{"continue":"{next}"}},"items":{items}}}"#)
    };
    let mut details = Details::default();
    let next = details.add_page(PAGES[0], &page("more", &format!("[{pod}]"))).unwrap();
    assert_eq!(next.as_deref(), Some("more"));
    assert!(details.pods[&Key::new("x", "a")].ports.contains(&(Protocol::Tcp, 80)));
    assert_eq!(details.add_page(PAGES[0], &page("", "null")).unwrap().as_deref(), Some(""));
    details.add_page(PAGES[0], "[]").unwrap_err();
    let services = PAGES.into_iter().find(|page| page.path.ends_with("/services")).unwrap();
    let list = r#"{"kind":"ServiceList","metadata":{},"items":[{"metadata":{"name":"b","namespace":"x"},
        "spec":{"selector":{"app":"b"},"ports":[{"port":443,"targetPort":"https"}]}}]}"#;
    details.add_page(services, list).unwrap();
    let target = PortReference::Name("https".to_owned());
    assert_eq!(details.services[&Key::new("x", "b")].ports[0].target, target);
    let webhooks = PAGES.into_iter().find(|page| page.path.contains("/validating")).unwrap();
    let list = r#"{"metadata":{},"items":[{"metadata":{"name":"h"},"webhooks":[{"clientConfig":{"url":"https://x"}},
        {"clientConfig":{"service":{"namespace":"x","name":"b","port":8443}}}]}]}"#;
    details.add_page(webhooks, list).unwrap();
    let apis = PAGES.into_iter().find(|page| page.path.ends_with("/apiservices")).unwrap();
    let list = r#"{"metadata":{},"items":[{"metadata":{"name":"v1.apps"},"spec":{"service":null}},
        {"metadata":{"name":"v1.m"},"spec":{"service":{"namespace":"x","name":"b"}}}]}"#;
    details.add_page(apis, list).unwrap();
    let called = details.called.iter().map(|((key, port), called)| (key, *port, &*called.by));
    let key = Key::new("x", "b");
    let expected =
        [(&key, 443, "APIService v1.m"), (&key, 8443, "ValidatingWebhookConfiguration h")];
    assert_eq!(called.collect::<Vec<_>>(), expected);
}

/// Discovery finds the versions of known groups, and their lists.
#[test]
fn lists_of_policies_of_other_apis() {
    let groups = r#"{"kind":"APIGroupList","groups":[
        {"name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}]},
        {"name":"policy.networking.k8s.io","versions":[{"groupVersion":"policy.networking.k8s.io/v1alpha2"},
            {"groupVersion":"policy.networking.k8s.io/v1alpha1"}]},
        {"name":"cilium.io","versions":[{"groupVersion":"cilium.io/v2"}]}]}"#;
    let paths = foreign_groups(groups).unwrap();
    let tiers = ["v1alpha2", "v1alpha1"].map(|it| format!("/apis/policy.networking.k8s.io/{it}"));
    assert_eq!(paths, [&tiers[0], &tiers[1], "/apis/cilium.io/v2"]);
    let resources =
        r#"{"resources":[{"name":"adminnetworkpolicies"},{"name":"clusternetworkpolicies"}]}"#;
    let lists = foreign_lists(&tiers[1], resources).unwrap();
    let lists: Vec<(&str, &str)> =
        lists.iter().map(|(kind, path)| (kind.kind, path.as_str())).collect();
    let path = "/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies";
    assert_eq!(lists, [("AdminNetworkPolicy", path)]);
    let mut details = Details::default();
    let kind = ForeignKind::of("policy.networking.k8s.io", "AdminNetworkPolicy").unwrap();
    let list = r#"{"metadata":{"continue":"c"},"items":[{"metadata":{"name":"old"},"spec":{"priority":5}}]}"#;
    assert_eq!(details.add_foreign_page(kind, list).unwrap().as_deref(), Some("c"));
    assert_eq!(details.foreign[kind].objects[0].to_string(), "old");
    foreign_groups("7").unwrap_err();
}
