//! Services and EndpointSlices.

use std::net::IpAddr;

use netpold_core::model::{EndpointSlice, Key, Protocol, Service, ServicePort, SlicePort};

use super::{convert, error};
use crate::convert::*;

fn problems(converted: &Converted) -> Vec<String> {
    converted.problems.iter().map(ToString::to_string).collect()
}

fn service_of(rest: &str) -> (Service, Vec<String>) {
    let text = format!("{{apiVersion: v1, kind: Service, metadata: {{name: s}}, {rest}}}");
    let converted = convert(&text);
    let problems = problems(&converted);
    let Change::Service(service) = converted.change else { panic!("it is of another kind") };
    (service, problems)
}

fn slice_of(rest: &str) -> (EndpointSlice, Vec<String>) {
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: s-1, labels: \
         {{kubernetes.io/service-name: s}}}}, {rest}}}"
    );
    let converted = convert(&text);
    let problems = problems(&converted);
    let Change::EndpointSlice(slice) = converted.change else { panic!("it is of another kind") };
    (slice, problems)
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn port(name: &str, protocol: Protocol, port: u16, node_port: Option<u16>) -> ServicePort {
    ServicePort { name: name.into(), protocol, port, node_port }
}

#[test]
fn a_service_with_everything() {
    let (service, problems) = service_of(
        "spec: {type: LoadBalancer, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, 'fd96::1'],
         externalIPs: [198.51.100.7], ports: [
         {name: web, port: 80, targetPort: http, nodePort: 30080},
         {name: dns, port: 53, protocol: UDP, targetPort: 5353}]},
         status: {loadBalancer: {ingress: [{ip: 203.0.113.1}, {ip: 203.0.113.2, ipMode: Proxy},
         {ip: 203.0.113.3, ipMode: VIP}, {hostname: lb.example}]}}",
    );
    assert_eq!(service.key, Key::new("default", "s"));
    let addresses = ["10.96.0.1", "198.51.100.7", "203.0.113.1", "203.0.113.3", "fd96::1"];
    assert_eq!(service.addresses, ips(&addresses));
    let ports = [port("dns", Protocol::Udp, 53, None), port("web", Protocol::Tcp, 80, Some(30080))];
    assert_eq!((service.ports, problems), (ports.to_vec(), vec![]));
}

#[test]
fn services_without_a_cluster_address_have_none_that_is_translated() {
    for rest in [
        "spec: {clusterIP: None, externalIPs: [10.0.0.1], ports: [{port: 1, nodePort: 2}]}",
        "spec: {clusterIPs: [None], ports: [{port: 1, nodePort: 2}]}",
        "spec: {type: ExternalName, externalName: a.b, clusterIP: 10.96.0.1, ports: [{port: 1}]}",
        "spec: {ports: [{port: 1, nodePort: 2}]}",
    ] {
        let (service, problems) = service_of(rest);
        let ports = vec![port("", Protocol::Tcp, 1, None)];
        assert_eq!((service.addresses, service.ports, problems), (vec![], ports, vec![]), "{rest}");
    }
    let (service, problems) = service_of("spec: ");
    assert!(service.addresses.is_empty() && service.ports.is_empty() && problems.is_empty());
}

#[test]
fn parts_of_a_service_that_are_wrong_are_left_out() {
    let with = |clause: &str| service_of(&format!("spec: {{clusterIP: 10.96.0.1, {clause}}}"));
    for (clause, problem) in [
        ("externalIPs: [ten]", "spec.externalIPs[0]: `ten` is not an address"),
        ("externalIPs: [10.0.0]", "spec.externalIPs[0]: `10.0.0` is not an address"),
        ("externalIPs: [10.0..1]", "spec.externalIPs[0]: `10.0..1` is not an address"),
        (
            "externalIPs: [127.0.0.1]",
            "spec.externalIPs[0]: 127.0.0.1 cannot be the address of a Service or of a backend",
        ),
        ("ports: [{port: 0}]", "spec.ports[0].port: 0 is not a port, 1 to 65535"),
        (
            "ports: [{port: 1, protocol: tcp}]",
            "spec.ports[0].protocol: `tcp` is not TCP, UDP or SCTP",
        ),
    ] {
        let (service, problems) = with(clause);
        assert_eq!((service.addresses, service.ports), (ips(&["10.96.0.1"]), vec![]), "{clause}");
        assert_eq!(problems, [problem], "{clause}");
    }
    let (service, problems) = with("ports: [{port: 1, nodePort: 70000}, {port: 2, nodePort: 0}]");
    let ports = [port("", Protocol::Tcp, 1, None), port("", Protocol::Tcp, 2, None)];
    assert_eq!(service.ports, ports);
    assert_eq!(problems, ["spec.ports[0].nodePort: 70000 is not a port, 1 to 65535"]);
}

#[test]
fn endpoints_that_get_packets() {
    for (conditions, not_ready, terminating) in [
        ("", false, false),
        (", conditions: {}", false, false),
        (", conditions: {ready: true}", false, false),
        (", conditions: {ready: false}", true, false),
        (", conditions: {ready: false, serving: true}", true, false),
        (", conditions: {ready: false, serving: true, terminating: true}", false, true),
        (", conditions: {ready: false, terminating: true}", false, true),
        (", conditions: {ready: false, serving: false, terminating: true}", true, true),
        (", conditions: {ready: true, terminating: true}", false, false),
    ] {
        let rest = format!("addressType: IPv4, endpoints: [{{addresses: [10.0.0.1]{conditions}}}]");
        let (slice, problems) = slice_of(&rest);
        let is_in = [!slice.not_ready.is_empty(), !slice.terminating.is_empty()];
        assert_eq!((is_in, problems), ([not_ready, terminating], vec![]), "{conditions}");
        assert_eq!(slice.addresses, ips(&["10.0.0.1"]), "{conditions}");
        assert_eq!(slice.ready().count(), usize::from(!not_ready && !terminating), "{conditions}");
        assert_eq!(slice.serving().count(), usize::from(!not_ready && terminating), "{conditions}");
    }
}

#[test]
fn a_slice_with_everything() {
    let (slice, problems) = slice_of(
        "addressType: IPv6, endpoints: [{addresses: ['fd00::2', 'fd00::1'], nodeName: 'n'},
         {addresses: ['fd00::2', 10.0.0.1, '::ffff:10.0.0.1']}],
         ports: [{name: web, port: 8080, appProtocol: http}, {port: 53, protocol: UDP},
         {name: all}, {name: bad, port: 65536}]",
    );
    let slice_port = |name: &str, protocol, port| SlicePort { name: name.into(), protocol, port };
    let expected = EndpointSlice {
        key: Key::new("default", "s-1"),
        service: "s".into(),
        ports: vec![slice_port("", Protocol::Udp, 53), slice_port("web", Protocol::Tcp, 8080)],
        addresses: ips(&["fd00::1", "fd00::2"]),
        not_ready: vec![],
        terminating: vec![],
    };
    assert_eq!(slice, expected);
    assert_eq!(
        problems,
        [
            "ports[3].port: 65536 is not a port, 1 to 65535",
            "endpoints[1].addresses[1]: 10.0.0.1 is not of the slice's family, IPv6",
            "endpoints[1].addresses[2]: ::ffff:10.0.0.1 is not of the slice's family, IPv6",
        ]
    );
}

/// A backend that kube-proxy accepts and netpold does not would escape policy.
#[test]
fn backends_are_read_as_the_nodes_proxy_reads_them() {
    let (slice, problems) = slice_of(
        "addressType: IPv4, endpoints: [{addresses: ['010.001.0.09']},
         {addresses: ['::ffff:10.2.0.1']}, {addresses: ['::ffff:010.2.0.2']}]",
    );
    assert_eq!(slice.addresses, ips(&["10.1.0.9", "10.2.0.1", "10.2.0.2"]));
    assert!(problems.is_empty(), "{problems:?}");
}

/// kube-proxy's informers exclude both labels, regardless of their value.
#[test]
fn what_the_nodes_proxy_does_not_serve() {
    for label in ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"] {
        for value in ["other", ""] {
            let metadata = format!("metadata: {{name: s, labels: {{{label}: '{value}'}}}}");
            let service = format!(
                "{{apiVersion: v1, kind: Service, {metadata}, spec: {{clusterIP: 10.96.0.1, \
                 externalIPs: [203.0.113.1], ports: [{{port: 80}}]}}}}"
            );
            let Change::Service(service) = convert(&service).change else { panic!("no Service") };
            assert!(service.unserved, "{label}={value}");
            let slice = format!(
                "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: s-1, \
                 labels: {{kubernetes.io/service-name: s, {label}: '{value}'}}}}, addressType: IPv4, \
                 endpoints: [{{addresses: [10.0.0.1]}}]}}"
            );
            let Change::EndpointSlice(slice) = convert(&slice).change else { panic!("no slice") };
            assert_eq!(slice.service, "", "{label}={value}: no Service's");
        }
    }
    assert!(!service_of("spec: {clusterIP: 10.96.0.1}").0.unserved);
}

#[test]
fn slices_of_names_are_ignored_and_said_to_be() {
    let (slice, problems) = slice_of("addressType: FQDN, endpoints: [{addresses: [a.example]}]");
    assert!(slice.addresses.is_empty());
    let problem = "addressType: `FQDN` is not IPv4 or IPv6; the slice's endpoints are ignored";
    assert_eq!(problems, [problem]);
}

#[test]
fn other_versions_of_slices_are_refused() {
    let text = "{apiVersion: discovery.k8s.io/v1beta1, kind: EndpointSlice, metadata: {name: s}}";
    let message = "line 1: apiVersion: EndpointSlice is read as discovery.k8s.io/v1, \
                   not discovery.k8s.io/v1beta1";
    assert_eq!(error(text), message);
}
