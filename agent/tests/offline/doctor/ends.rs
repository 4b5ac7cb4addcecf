//! Connections that the policies of one end allow and those of the other end deny, and clients outside of the cluster.

use netpold_doctor::{DoctorReport, Severity};

use super::{examine, places, policy};

/// Three nodes, a pod `web` on the first one, `client` on the second one, and a controller in another namespace.
const OBJECTS: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: x, labels: {kubernetes.io/metadata.name: x}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: edge, labels: {kubernetes.io/metadata.name: edge}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.168.5.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 192.168.5.2}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: x, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}
status: {podIP: 10.0.1.1}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: x, labels: {app: client}}
spec: {nodeName: n2, containers: [{name: c}]}
status: {podIP: 10.0.2.1}
---
apiVersion: v1
kind: Pod
metadata: {name: proxy, namespace: edge, labels: {app: proxy}}
spec: {nodeName: n2, containers: [{name: c, ports: [{containerPort: 80}]}]}
status: {podIP: 10.0.2.2}
---
";

fn report(more: &str) -> DoctorReport {
    examine(&format!("{OBJECTS}{more}")).1
}

/// Returns the places of a check's findings.
fn at(more: &str, check: &str) -> Vec<String> {
    let report = report(more);
    let all = places(&report);
    all.get(check).map_or_else(Vec::new, |it| it.iter().map(ToString::to_string).collect())
}

fn severity(report: &DoctorReport, check: &str) -> Option<Severity> {
    report.findings.iter().find(|it| it.check == check).map(|it| it.severity)
}

const NONE: [&str; 0] = [];
const DENY: &str = "podSelector: {}, policyTypes: [Ingress, Egress]";

fn ingress(from: &str) -> String {
    let rule = format!("{{from: [{from}], ports: [{{port: 8080}}]}}");
    policy("in", &format!("podSelector: {{matchLabels: {{app: web}}}}, ingress: [{rule}]"))
}

fn egress(to: &str) -> String {
    policy(
        "out",
        &format!(
            "podSelector: {{matchLabels: {{app: client}}}}, policyTypes: [Egress], egress: [{{to: [{to}]}}]"
        ),
    )
}

const CLIENT: &str = "{podSelector: {matchLabels: {app: client}}}";
const WEB: &str = "{podSelector: {matchLabels: {app: web}}}";

#[test]
fn both_ends_allow_a_connection() {
    let check = "allowed-at-one-end";
    let deny = policy("deny", DENY);
    assert_eq!(
        at(&format!("{deny}{}", ingress(CLIENT)), check),
        [
            "NetworkPolicy x/in: spec.ingress[0].from[0]: pods app=client of this namespace; NetworkPolicy x/deny: no egress rule of \
          Pod x/client for Pod x/web"
        ]
    );
    assert_eq!(
        at(&format!("{deny}{}", egress(WEB)), check),
        [
            "NetworkPolicy x/out: spec.egress[0].to[0]: pods app=web of this namespace; NetworkPolicy x/deny: no ingress rule of Pod \
          x/web for Pod x/client"
        ]
    );
    let of_edge = policy("deny", DENY).replace("namespace: x", "namespace: edge");
    let from_edge = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: edge}}}";
    assert_eq!(at(&format!("{of_edge}{}", ingress(from_edge)), check).len(), 1);
    for objects in [
        // The other end has a rule, at whichever port.
        format!("{deny}{}{}", ingress(CLIENT), egress(WEB)),
        format!("{deny}{}{}", ingress(CLIENT), egress("{ipBlock: {cidr: 10.0.0.0/8}}")),
        format!("{deny}{}{}", ingress(CLIENT), egress("{namespaceSelector: {}}")),
        // Nothing isolates the other end.
        ingress(CLIENT),
        egress(WEB),
        // The rule names nobody.
        format!("{deny}{}", ingress("{podSelector: {}}")),
        format!("{deny}{}", ingress("{namespaceSelector: {}}")),
        format!("{deny}{}", ingress("{ipBlock: {cidr: 10.0.2.1/32}}")),
        // Another pod with the label may connect.
        format!(
            "{deny}{}",
            ingress(
                "{namespaceSelector: {}, podSelector: {matchExpressions: [{key: app, operator: Exists}]}}"
            )
        ),
    ] {
        assert_eq!(at(&objects, check), NONE, "{objects}");
    }
    let chart = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: NAME, namespace: x}, spec: {template: {metadata: \
                 {labels: {app: NAME}}, spec: {containers: [{name: c}]}}}}\n---\n";
    let chart = chart.replace("NAME", "web") + &chart.replace("NAME", "client");
    let (_, report) = examine(&format!("{chart}{deny}{}", ingress(CLIENT)));
    assert_eq!(severity(&report, check), Some(Severity::Info), "{report:#?}");
}

/// Returns Service `x/web` of a type.
fn service(spec: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: x}}, spec: {{clusterIP: 10.96.0.5, selector: \
         {{app: web}}, ports: [{{port: 80, targetPort: http}}], {spec}}}}}\n---\n"
    )
}

const OUTSIDE: &str = "{ipBlock: {cidr: 203.0.113.0/24}}";

#[test]
fn nodes_replace_the_addresses_of_clients() {
    let check = "client-address-replaced";
    let finds = |spec: &str, from: &str| at(&(service(spec) + &ingress(from)), check);
    let place = "NetworkPolicy x/in: spec.ingress[0].from[0]: 203.0.113.0/24; Service x/web";
    let (balanced, ports) = ("type: LoadBalancer", "type: NodePort");
    for spec in [balanced, ports, "externalIPs: [198.51.100.7]"] {
        assert_eq!(finds(spec, OUTSIDE), [place], "{spec}");
    }
    let report = |spec: &str| report(&(service(spec) + &ingress(OUTSIDE)));
    assert_eq!(severity(&report(balanced), check), Some(Severity::Warning));
    assert_eq!(severity(&report(ports), check), Some(Severity::Info));
    for (spec, from) in [
        ("type: LoadBalancer, externalTrafficPolicy: Local", OUTSIDE),
        ("type: LoadBalancer, allocateLoadBalancerNodePorts: false", OUTSIDE),
        ("type: ClusterIP", OUTSIDE),
        (balanced, CLIENT),
        (balanced, "{ipBlock: {cidr: 10.0.0.0/8}}"),
        (balanced, "{ipBlock: {cidr: 203.0.113.0/24}}, {ipBlock: {cidr: 192.168.5.2/32}}"),
        (balanced, "{ipBlock: {cidr: 0.0.0.0/0}}"),
    ] {
        assert_eq!(finds(spec, from), NONE, "{spec} {from}");
    }
    let direct = "{name: web, annotations: {service.beta.kubernetes.io/aws-load-balancer-nlb-target-type: ip},";
    let direct = service(balanced).replace("{name: web,", direct);
    assert_eq!(at(&(direct + &ingress(OUTSIDE)), check), NONE);
    let metrics = ingress(OUTSIDE).replace("8080", "9090");
    assert_eq!(at(&(service(balanced) + &metrics), check), NONE, "another port");
}

#[test]
fn pods_of_services_for_clients_outside() {
    let check = "closed-to-outside";
    let finds = |spec: &str, from: &str| at(&(service(spec) + &ingress(from)), check);
    let balanced = "type: LoadBalancer";
    assert_eq!(finds(balanced, CLIENT), ["Service x/web: Pod x/web (NetworkPolicy x/in)"]);
    let of = |spec: &str| severity(&report(&(service(spec) + &ingress(CLIENT))), check);
    assert_eq!(of(balanced), Some(Severity::Warning));
    assert_eq!(of("type: LoadBalancer, externalTrafficPolicy: Local"), Some(Severity::Warning));
    assert_eq!(of("type: NodePort"), Some(Severity::Info));
    assert_eq!(of("type: ClusterIP"), None);
    assert_eq!(of("type: LoadBalancer, allocateLoadBalancerNodePorts: false"), None);
    for from in [OUTSIDE, "{ipBlock: {cidr: 192.168.5.0/24}}"] {
        assert_eq!(finds(balanced, &format!("{CLIENT}, {from}")), NONE, "{from}");
    }
    assert_eq!(at(&service(balanced), check), NONE, "no policy");
    // k3s' load balancer is pods, which hand packets on with their own addresses.
    let k3s = "{apiVersion: v1, kind: Node, metadata: {name: n3}, status: {nodeInfo: {kubeletVersion: v1.31.1+k3s1}}}\n---\n";
    let balancer = "{apiVersion: v1, kind: Pod, metadata: {name: svclb, namespace: x, labels: \
                    {svccontroller.k3s.cattle.io/svcname: web}}, spec: {nodeName: n1, containers: [{name: c, ports: \
                    [{containerPort: 80}]}]}, status: {podIP: 10.0.1.9}}\n---\n";
    let objects = format!("{}{}{k3s}", service(balanced), ingress(CLIENT));
    assert_eq!(at(&objects, check), NONE);
    assert_eq!(at(&format!("{objects}{balancer}"), check), NONE);
    let all = policy("all", "podSelector: {}, ingress: [{from: [{podSelector: {}}]}]");
    assert_eq!(
        at(&format!("{objects}{balancer}{all}"), check),
        ["Service x/web: Pod x/svclb (NetworkPolicy x/all)"]
    );
}

#[test]
fn pods_behind_an_ingress() {
    let check = "ingress-closed";
    let route = "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: shop, namespace: x}, spec: {rules: [{http: \
                 {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}}\n---\n";
    let objects = format!("{route}{}", service("type: ClusterIP"));
    let finds = |from: &str| at(&format!("{objects}{}", ingress(from)), check);
    let place = "NetworkPolicy x/in: Pod x/web: TCP 8080, Ingress x/shop by Service x/web";
    assert_eq!(finds(CLIENT), [place]);
    assert_eq!(finds("{podSelector: {}}"), [place]);
    for from in [
        OUTSIDE,
        "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: edge}}}",
        "{namespaceSelector: {}, podSelector: {matchLabels: {app: proxy}}}",
    ] {
        assert_eq!(finds(from), NONE, "{from}");
    }
    assert_eq!(at(&objects, check), NONE, "no policy");
    // The controller is in the pods' own namespace.
    let own = OBJECTS
        .replace("namespace: edge, labels: {app: proxy}", "namespace: x, labels: {app: proxy}");
    let (_, report) = examine(&format!("{own}{objects}{}", ingress("{podSelector: {}}")));
    assert!(!places(&report).contains_key(check), "{report:#?}");
}
