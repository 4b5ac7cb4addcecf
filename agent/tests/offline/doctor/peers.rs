//! Peers on the host's network beside other pods, namespaces of unknown labels, labels that miss pods by one, and ports of
//! another protocol.

use netpold_doctor::{DoctorReport, Severity};

use super::{examine, places};

const CLUSTER: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.168.5.11}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 192.168.5.12}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: x}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: edge}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: x, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, ports: [{containerPort: 8080}]}]}
status: {podIP: 10.0.1.5}
---
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: x, labels: {app: far}}
spec: {nodeName: n2, containers: [{name: c}]}
status: {podIP: 10.0.2.5}
---
apiVersion: v1
kind: Pod
metadata: {name: dns, namespace: kube-system, labels: {app: dns}}
spec: {nodeName: n2, containers: [{name: c, ports: [{containerPort: 9153}]}]}
status: {podIP: 10.0.2.6}
---
apiVersion: v1
kind: Pod
metadata: {name: in, namespace: edge, labels: {app: in}}
spec: {hostNetwork: true, nodeName: n2, containers: [{name: c, ports: [{containerPort: 80}]}]}
status: {podIP: 192.168.5.12}
---
";
const JOB: &str = "
apiVersion: batch/v1
kind: Job
metadata: {name: j, namespace: edge}
spec: {template: {metadata: {labels: {app: j}}, spec: {containers: [{name: c}]}}}
---
";
const FINISHED: &str = "
apiVersion: v1
kind: Pod
metadata: {name: j, namespace: edge, labels: {app: j}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {phase: Succeeded, podIP: 10.0.1.9}
---
";
const DAEMON: &str = "
apiVersion: v1
kind: Pod
metadata: {name: d, namespace: kube-system, labels: {app: d}}
spec: {hostNetwork: true, nodeName: n2, containers: [{name: c, ports: [{containerPort: 10249}]}]}
status: {podIP: 192.168.5.12}
---
";
const API: &str = "
apiVersion: v1
kind: Service
metadata: {name: kubernetes, namespace: default}
spec: {clusterIP: 10.96.0.1, ports: [{name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: k, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
ports: [{name: https, port: 6443}]
endpoints: [{addresses: [192.168.5.11]}]
---
";
const CHART: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: x}
spec: {template: {metadata: {labels: {app: webserver, release: r}}, spec: {containers: [{name: c}]}}}
---
";
const BY_LABEL: &str = "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: c}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {matchLabels: {name: x}}}
  ingress: [{action: Deny, from: [{namespaces: {}}]}]
";

fn policy(spec: &str) -> String {
    super::policy("p", spec)
}

fn ingress(from: &str) -> String {
    let rule = format!("{{from: [{from}], ports: [{{port: 8080}}]}}");
    policy(&format!("podSelector: {{matchLabels: {{app: web}}}}, ingress: [{rule}]"))
}

fn severity(report: &DoctorReport, check: &str) -> Option<Severity> {
    report.findings.iter().find(|it| it.check == check).map(|it| it.severity)
}

fn namespace(name: &str) -> String {
    format!("{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}}}")
}

#[test]
fn hosts_beside_jobs_and_other_pods() {
    let of = |more: &str, from: &str| examine(&format!("{CLUSTER}{more}{}", ingress(from))).1;
    let edge = namespace("edge");
    for more in ["", JOB, FINISHED] {
        let report = of(more, &edge);
        let found = severity(&report, "peer-on-host-network");
        assert_eq!(found, Some(Severity::Warning), "{more}: {report:#?}");
        let report = of(more, &format!("{edge}, {{ipBlock: {{cidr: 192.168.5.12/32}}}}"));
        assert_eq!(severity(&report, "peer-on-host-network"), None, "{more}: {report:#?}");
    }
    let running = FINISHED.replace("Succeeded", "Running");
    let check = "peer-partly-on-host-network";
    let report = of(&running, &edge);
    assert_eq!(severity(&report, check), Some(Severity::Info), "{report:#?}");
    for from in ["{namespaceSelector: {}}", "{podSelector: {}}"] {
        assert_eq!(severity(&of(&running, from), check), None, "{from}");
    }
    // Of kube-system, only pods with a port of ingress controllers.
    for (port, found) in [("10249", None), ("80", Some(Severity::Info))] {
        let report = of(&DAEMON.replace("10249", port), &namespace("kube-system"));
        assert_eq!(severity(&report, check), found, "{report:#?}");
    }
}

#[test]
fn the_api_server_is_in_no_namespace() {
    let check = "peer-on-host-network";
    let of = |ports: &str| {
        let rule = format!("{{to: [{}], ports: [{ports}]}}", namespace("kube-system"));
        let dns = "{ports: [{port: 53, protocol: UDP}]}";
        let spec = format!("podSelector: {{}}, policyTypes: [Egress], egress: [{dns}, {rule}]");
        examine(&format!("{CLUSTER}{API}{}", policy(&spec))).1
    };
    for ports in ["{port: 443}", "{port: 6443}"] {
        let report = of(ports);
        let finding = report.findings.iter().find(|it| it.check == check);
        let fix =
            "- {to: [{ipBlock: {cidr: 192.168.5.11/32}}], ports: [{protocol: TCP, port: 6443}]}";
        assert!(finding.is_some_and(|it| it.fix.ends_with(fix)), "{ports}: {report:#?}");
    }
    for ports in ["{port: 9153}", "{port: 443, protocol: UDP}", "{port: 1, endPort: 65535}"] {
        assert_eq!(severity(&of(ports), check), None, "{ports}");
    }
}

#[test]
fn labels_of_namespaces_that_are_not_among_the_objects() {
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: x}}\n---\n";
    let absent = CLUSTER.replace(namespace, "");
    let lead = "; Namespace x has no label name, but kubernetes.io/metadata.name=x";
    let other = ingress("{namespaceSelector: {matchLabels: {team: a}}}");
    for (objects, found, lead) in
        [(CLUSTER, Severity::Warning, lead), (&*absent, Severity::Info, "")]
    {
        let (_, report) = examine(&format!("{objects}{other}"));
        assert_eq!(severity(&report, "peer-without-pods"), Some(found), "{report:#?}");
        let (_, report) = examine(&format!("{objects}{BY_LABEL}"));
        assert_eq!(severity(&report, "selects-nothing"), Some(found), "{report:#?}");
        let place = format!("ClusterNetworkPolicy c: every pod of namespaces name=x{lead}");
        assert_eq!(places(&report)["selects-nothing"], [place]);
    }
}

#[test]
fn labels_that_miss_a_template_by_one() {
    for (labels, found) in [
        ("app: web, release: r", Severity::Warning),
        ("app: web", Severity::Info),
        ("app: worker, release: r", Severity::Info),
        ("app: web, release: s", Severity::Info),
    ] {
        let selector = format!("podSelector: {{matchLabels: {{{labels}}}}}");
        let (_, report) = examine(&format!("{CHART}{}", policy(&selector)));
        assert_eq!(severity(&report, "selects-nothing"), Some(found), "{labels}: {report:#?}");
        let peer = format!("podSelector: {{}}, ingress: [{{from: [{{{selector}}}]}}]");
        let (_, report) = examine(&format!("{CHART}{}", policy(&peer)));
        assert_eq!(severity(&report, "peer-without-pods"), Some(found), "{labels}: {report:#?}");
    }
    // Two labels are right, and the third one has a word of the template's value: a policy of a component.
    let chart = CHART.replace("release: r", "release: r, part: server-eligible");
    for (labels, found) in [
        ("app: webserver, release: r, part: server", Severity::Warning),
        ("app: webserver, release: r, part: broker", Severity::Info),
        ("release: r, part: server", Severity::Info),
    ] {
        let selector = format!("podSelector: {{matchLabels: {{{labels}}}}}");
        let (_, report) = examine(&format!("{chart}{}", policy(&selector)));
        assert_eq!(severity(&report, "selects-nothing"), Some(found), "{labels}: {report:#?}");
    }
}

/// The labels of the workload are not those of its pods.
#[test]
fn labels_of_a_workload_itself() {
    let workload = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: api, namespace: x, labels: {app: api-deploy, \
                    team: a}}, spec: {template: {metadata: {labels: {run: api}}, spec: {containers: [{name: c}]}}}}\n---\n";
    let (_, report) =
        examine(&format!("{workload}{}", policy("podSelector: {matchLabels: {app: api-deploy}}")));
    let lead = "Deployment x/api itself has these labels, its pods do not";
    assert_eq!(severity(&report, "selects-nothing"), Some(Severity::Warning), "{report:#?}");
    assert!(places(&report)["selects-nothing"][0].ends_with(lead), "{report:#?}");
    let peer = ingress("{podSelector: {matchLabels: {app: api-deploy}}}");
    let (_, report) = examine(&format!("{workload}{peer}"));
    assert_eq!(severity(&report, "peer-without-pods"), Some(Severity::Warning), "{report:#?}");
    assert!(places(&report)["peer-without-pods"][0].ends_with(lead), "{report:#?}");
    for labels in ["app: api", "app: api-deploy, tier: a", "run: api"] {
        let (_, report) = examine(&format!(
            "{workload}{}",
            policy(&format!("podSelector: {{matchLabels: {{{labels}}}}}"))
        ));
        let found = severity(&report, "selects-nothing");
        assert_eq!(found.filter(|it| *it != Severity::Info), None, "{labels}: {report:#?}");
    }
}

/// The pods of a Job are gone when the Job is.
#[test]
fn names_of_jobs() {
    for (label, found) in [
        ("job-name: migrate", Severity::Info),
        ("batch.kubernetes.io/job-name: migrate", Severity::Info),
        ("app: migrate", Severity::Warning),
    ] {
        let spec = format!("podSelector: {{matchLabels: {{{label}}}}}");
        let (_, report) = examine(&format!("{CLUSTER}{}", policy(&spec)));
        assert_eq!(severity(&report, "selects-nothing"), Some(found), "{label}: {report:#?}");
    }
}

#[test]
fn ports_of_another_protocol() {
    let port = "ports: [{containerPort: 8080}]";
    let listed = CLUSTER.replace(port, "ports: [{containerPort: 8125, protocol: UDP}]");
    let service = "
apiVersion: v1
kind: Service
metadata: {name: s, namespace: x}
spec: {clusterIP: 10.96.0.3, selector: {app: web}, ports: [{port: 8125, protocol: UDP}]}
---
";
    let served = format!("{}{service}", CLUSTER.replace(port, "image: x"));
    let open = super::policy("q", "podSelector: {}, ingress: [{}]");
    for objects in [listed, served] {
        for (ports, is_found) in [
            ("{port: 8125}", true),
            ("{port: 8125, protocol: UDP}", false),
            ("{port: 8125}, {port: 8125, protocol: UDP}", false),
            ("{port: 8126}", false),
        ] {
            let rule = format!("ingress: [{{ports: [{ports}]}}]");
            let policy = policy(&format!("podSelector: {{matchLabels: {{app: web}}}}, {rule}"));
            let finds =
                |objects: &str| places(&examine(objects).1).contains_key("port-of-other-protocol");
            assert_eq!(finds(&format!("{objects}{policy}")), is_found, "{ports}");
            assert!(!finds(&format!("{objects}{policy}{open}")), "{ports}");
        }
    }
}
