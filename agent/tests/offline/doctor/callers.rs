//! Pods that the API server calls: webhooks and aggregated APIs.

use super::{examine, places, policy};

const WEBHOOK: &str = "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: h}, \
                       webhooks: [{name: h.x.io, clientConfig: {service: {namespace: x, name: hook}}}]}\n---\n";
const API: &str = "{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.m}, spec: {service: {namespace: \
                   x, name: hook}}}\n---\n";
const CRD: &str = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: c}, spec: {conversion: \
                   {webhook: {clientConfig: {service: {namespace: x, name: hook, port: 443}}}}}}\n---\n";

/// Returns a Service in front of a pod on a node, and the API server on node n1.
fn cluster(node: &str, spec: &str) -> String {
    format!(
        "
{{apiVersion: v1, kind: Node, metadata: {{name: n1, labels: {{node-role.kubernetes.io/control-plane: ''}}}}, spec: {{podCIDR: \
         10.0.1.0/24}}, status: {{addresses: [{{type: InternalIP, address: 192.168.5.11}}]}}}}
---
{{apiVersion: v1, kind: Node, metadata: {{name: n2}}, spec: {{podCIDR: 10.0.2.0/24}}, status: {{addresses: [{{type: InternalIP, \
         address: 192.168.5.12}}]}}}}
---
{{apiVersion: v1, kind: Service, metadata: {{name: hook, namespace: x}}, spec: {{clusterIP: 10.96.0.9, selector: {{app: hook}}, \
         ports: [{{port: 443, targetPort: https}}]}}}}
---
{{apiVersion: v1, kind: Pod, metadata: {{name: hook, namespace: x, labels: {{app: hook}}}}, spec: {{nodeName: {node}, {spec}\
         containers: [{{name: c, ports: [{{name: https, containerPort: 9443}}]}}]}}, status: {{podIP: 10.0.2.9}}}}
---
"
    )
}

fn finds(objects: &str, rules: &str) -> Vec<String> {
    let spec = format!(
        "podSelector: {{matchLabels: {{app: hook}}}}, policyTypes: [Ingress], ingress: [{rules}]"
    );
    let (_, report) = examine(&format!("{objects}{}", policy("p", &spec)));
    let places = places(&report).remove("api-server-cannot-call").unwrap_or_default();
    places.iter().map(ToString::to_string).collect()
}

#[test]
fn rules_that_close_pods_to_the_api_server() {
    let far = cluster("n2", "");
    for (by, object) in [
        ("ValidatingWebhookConfiguration h", WEBHOOK),
        ("APIService v1.m", API),
        ("CustomResourceDefinition c", CRD),
    ] {
        let place = format!("NetworkPolicy x/p: Pod x/hook: TCP 9443, {by} by Service x/hook");
        let objects = format!("{far}{object}");
        for rules in [
            "",
            "{from: [{namespaceSelector: {}}]}",
            "{ports: [{port: 443}]}",
            "{from: [{ipBlock: {cidr: 203.0.113.0/24}}]}",
        ] {
            assert_eq!(finds(&objects, rules), [place.as_str()], "{by}: {rules}");
        }
        for rules in [
            "{ports: [{port: 9443}]}",
            "{ports: [{port: https}]}",
            "{from: [{ipBlock: {cidr: 192.168.5.11/32}}]}",
            // Packets of nodes may come from the address of a tunnel.
            "{from: [{ipBlock: {cidr: 10.0.0.0/16}}]}",
        ] {
            assert!(finds(&objects, rules).is_empty(), "{by}: {rules}");
        }
    }
}

#[test]
fn pods_that_the_api_server_reaches_otherwise() {
    let none: [&str; 0] = [];
    assert_eq!(finds(&cluster("n2", ""), ""), none, "nothing calls the Service");
    assert_eq!(finds(&format!("{}{WEBHOOK}", cluster("n1", "")), ""), none, "own node");
    let host = format!("{}{WEBHOOK}", cluster("n2", "hostNetwork: true, "));
    assert_eq!(finds(&host, ""), none, "host network");
    let proxy = "{apiVersion: v1, kind: Pod, metadata: {name: k, namespace: kube-system, labels: {k8s-app: konnectivity-agent}}, \
                 spec: {nodeName: n1}, status: {podIP: 10.0.1.9}}\n---\n";
    assert_eq!(finds(&format!("{}{WEBHOOK}{proxy}", cluster("n2", "")), ""), none, "a proxy calls");
}

#[test]
fn charts_without_nodes() {
    let chart = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: hook, namespace: x}, spec: {template: {metadata: {labels: \
                 {app: hook}}, spec: {containers: [{name: c, ports: [{containerPort: 9443}]}]}}}}\n---\n{apiVersion: v1, kind: \
                 Service, metadata: {name: hook, namespace: x}, spec: {selector: {app: hook}, ports: [{port: 443, targetPort: \
                 9443}]}}\n---\n";
    let objects = format!("{chart}{WEBHOOK}");
    assert_eq!(finds(&objects, "{from: [{podSelector: {}}]}").len(), 1);
    for open in ["{}", "{from: [{ipBlock: {cidr: 0.0.0.0/0}}], ports: [{port: 9443}]}"] {
        assert!(finds(&objects, open).is_empty(), "{open}");
    }
}

#[test]
fn only_closed_pods_are_counted() {
    let near = "
apiVersion: v1
kind: Pod
metadata: {name: near, namespace: x, labels: {app: hook}}
spec: {nodeName: n1, containers: [{name: c, ports: [{name: https, containerPort: 9443}]}]}
status: {podIP: 10.0.1.9}
---
";
    let by = "ValidatingWebhookConfiguration h by Service x/hook";
    let place = format!("NetworkPolicy x/p: Pod x/hook: TCP 9443, {by}");
    assert_eq!(finds(&format!("{}{near}{WEBHOOK}", cluster("n2", "")), ""), [place]);
}
