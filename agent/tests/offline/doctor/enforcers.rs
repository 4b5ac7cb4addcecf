//! DaemonSets and pods of other enforcers.

use super::{CLUSTER, examine, places};

#[test]
fn nodes_enforcers_and_tiers() {
    let agent = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: netpold-system, labels: \
                 {app.kubernetes.io/name: netpold}}, spec: {nodeName: n1, hostNetwork: true}}\n---\n";
    let node =
        |name: &str| format!("{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}}}\n---\n");
    let set = |name: &str, image: &str| {
        format!(
            "{{apiVersion: apps/v1, kind: DaemonSet, metadata: {{name: {name}, namespace: k}}, spec: \
             {{template: {{spec: {{containers: [{{image: '{image}'}}]}}}}}}}}\n---\n"
        )
    };
    let tier = |name: &str, tier: &str, priority: u16| {
        format!(
            "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: \
             {{name: {name}}}, spec: {{tier: {tier}, priority: {priority}, subject: {{namespaces: {{}}}}, \
             egress: [{{action: Deny, to: [{{nodes: {{matchLabels: {{os: none}}}}}}]}}]}}}}\n---\n"
        )
    };
    let objects = [
        CLUSTER.to_owned(),
        node("n1"),
        node("n2"),
        set("kindnet", "kindnetd:v1"),
        set("mine", "quay.io/calico/node:v3.32.0"),
        set("aws-node", "amazon-k8s-cni:v1"),
        tier("a", "Admin", 10),
        tier("b", "Admin", 10),
        tier("c", "Baseline", 10),
    ]
    .concat();
    let (status, report) = examine(&objects);
    assert_eq!(status, 1);
    let all = places(&report);
    assert_eq!(all["equal-priority"], ["Admin 10: a, b"]);
    assert_eq!(all["peer-without-nodes"].len(), 3);
    assert_eq!(
        all["other-enforcer-deployed"],
        [
            "DaemonSet k/mine (image quay.io/calico/node:v3.32.0)",
            "DaemonSet k/kindnet (image kindnetd:v1)"
        ]
    );
    assert!(!all.contains_key("no-agent"), "manifests need not hold the agents: {report:?}");
    let (_, report) = examine(&format!("{objects}{agent}"));
    assert_eq!(places(&report)["no-agent"], ["Node n2"]);
}

fn running(kind: &str, name: &str, containers: &str) -> String {
    let spec = format!("{{hostNetwork: true, nodeName: n1, containers: [{containers}]}}");
    let spec = if kind == "Pod" { spec } else { format!("{{template: {{spec: {spec}}}}}") };
    let version = if kind == "Pod" { "v1" } else { "apps/v1" };
    format!(
        "{{apiVersion: {version}, kind: {kind}, metadata: {{name: '{name}', namespace: kube-system}}, spec: {spec}}}\n---\n"
    )
}

/// Detects an enforcer by its name, by the image of a fork, by the command of a mirrored image, or by the container.
#[test]
fn enforcers_by_image_and_command() {
    for (enforcer, name, containers) in [
        (
            "Calico",
            "rke2-canal",
            "{name: a, image: 'rancher/hardened-calico:v3.29.2-build1'}, {name: b, image: 'rancher/hardened-flannel:v1'}",
        ),
        ("Calico", "cni", "{name: a, image: 'rancher/hardened-calico:v3.29.2-build1'}"),
        (
            "Calico",
            "cni",
            "{name: a, image: 'r.local/x@sha256:0', env: [{name: FELIX_IPTABLESBACKEND, value: NFT}]}",
        ),
        (
            "Azure NPM",
            "npm",
            "{name: a, image: 'mcr.microsoft.com/containernetworking/azure-npm:v1.5.45'}",
        ),
        (
            "Azure NPM",
            "npm",
            "{name: a, image: 'r.local/x:1', command: [azure-npm], args: [start]}",
        ),
        (
            "Weave Net",
            "weave-net",
            "{name: weave, image: 'weaveworks/weave-kube:2.8.1'}, {name: weave-npc, image: 'weaveworks/weave-npc:2.8.1'}",
        ),
        (
            "Kube-OVN",
            "kube-ovn-cni",
            "{name: a, image: 'docker.io/kubeovn/kube-ovn:v1.13.0', command: [bash, /kube-ovn/start-cniserver.sh]}",
        ),
        ("OVN-Kubernetes", "ovnkube-node", "{name: a, image: 'r.local/x@sha256:0'}"),
        (
            "OVN-Kubernetes",
            "n",
            "{name: a, image: x, command: [/bin/bash, -c, 'set -e; exec /usr/bin/ovnkube --init-node n1']}",
        ),
        ("kube-router", "r", "{name: a, image: 'docker.io/cloudnativelabs/kube-router:v2'}"),
        ("Cilium", "anetd", "{name: a, image: 'gke.gcr.io/cilium/cilium:v1'}"),
        (
            "Cilium",
            "n",
            "{name: a, image: 'r.local/mirrored-cilium-cilium:v1', command: [cilium-agent]}",
        ),
        ("Antrea", "n", "{name: a, image: 'antrea/antrea-agent-ubuntu:v2'}"),
        (
            "AWS network policy agent",
            "aws-node",
            "{name: a, image: 'x/amazon/aws-network-policy-agent:v1', args: [--enable-network-policy=true]}",
        ),
        (
            "kube-network-policies",
            "kube-flannel-ds",
            "{name: f, image: 'flannel:v1'}, {name: a, image: 'registry.k8s.io/networking/kube-network-policies:v1'}",
        ),
        (
            "Terway",
            "n",
            "{name: a, image: 'acs/terway:v1', command: [/usr/bin/terwayd]}, {name: b, image: x, command: [policyinit.sh], env: [{name: FELIX_LOGSEVERITYSYS, value: info}]}",
        ),
        ("Calico", "n", "{name: a, image: 'quay.io/tigera/operator:v1.36'}"),
        ("Calico", "n", "{name: a, image: 'docker.io/calico/typha:v3.29'}"),
        ("Romana", "romana-agent", "{name: a, image: 'quay.io/romana/agent:v2'}"),
    ] {
        let mut kinds = vec!["DaemonSet"];
        // The name of a pod alone identifies no enforcer.
        if name.len() < 4 {
            kinds.push("Pod");
        }
        if containers.contains("tigera") {
            kinds.push("Deployment");
        }
        for kind in kinds {
            let (_, report) = examine(&format!("{CLUSTER}{}", running(kind, name, containers)));
            let found: Vec<&str> = report.findings.iter().map(|it| it.problem.as_str()).collect();
            assert_eq!(found.len(), 1, "{kind} {name}: {report:#?}");
            assert!(found[0].starts_with(enforcer), "{enforcer}: {found:?}");
        }
    }
}

#[test]
fn what_enforces_nothing() {
    let weave = "{name: weave, image: 'weaveworks/weave-kube:2.8.1', env: [{name: EXPECT_NPC, value: '0'}]}";
    let (status, report) =
        examine(&format!("{CLUSTER}{}", running("DaemonSet", "weave-net", weave)));
    assert_eq!((status, report.findings.len()), (0, 0), "Weave Net without weave-npc: {report:#?}");
    for containers in [
        "{name: a, image: 'flannel/flannel:v1', command: [/opt/bin/flanneld]}",
        "{name: a, image: 'calico/node-driver-registrar:v3'}, {name: b, image: 'calico/csi:v3'}",
        "{name: a, image: 'quay.io/cilium/cilium-envoy:v1', command: [/usr/bin/cilium-envoy-starter]}",
        "{name: a, image: 'cloudnativelabs/kube-router:v2', args: [--run-router=true, --run-firewall=false]}",
        "{name: a, image: 'amazon/amazon-k8s-cni:v1'}, {name: b, image: 'amazon/aws-network-policy-agent:v1', args: [--enable-network-policy=false]}",
        "{name: a, image: 'weaveworks/weave-kube:2.8.1', command: [/home/weave/launch.sh]}",
        "{name: a, image: 'bitnami/kubectl', command: [kubectl, rollout, status, ds/calico-node]}",
        "{name: a, image: 'registry.k8s.io/kube-proxy:v1.36.2', command: [/usr/local/bin/kube-proxy]}",
    ] {
        for kind in ["DaemonSet", "Pod"] {
            let (status, report) = examine(&format!("{CLUSTER}{}", running(kind, "n", containers)));
            assert_eq!((status, report.findings.len()), (0, 0), "{containers}: {report:#?}");
        }
    }
}
