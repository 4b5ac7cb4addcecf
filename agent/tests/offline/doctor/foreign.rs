//! Policies of other APIs, which no component enforces.

use super::{CLUSTER, examine, places};

fn object(version: &str, kind: &str, namespaced: bool) -> String {
    let namespace = if namespaced { ", namespace: x" } else { "" };
    // Fields that no NetworkPolicy has, and that must not make the object invalid.
    format!(
        "{{apiVersion: {version}, kind: {kind}, metadata: {{name: f{namespace}}}, spec: {{template: 3, containers: {{}}, ingress: 7}}}}\n---\n"
    )
}

#[test]
fn policies_of_other_apis() {
    for (version, kind, namespaced) in [
        ("cilium.io/v2", "CiliumNetworkPolicy", true),
        ("cilium.io/v2", "CiliumClusterwideNetworkPolicy", false),
        ("projectcalico.org/v3", "NetworkPolicy", true),
        ("crd.projectcalico.org/v1", "GlobalNetworkPolicy", false),
        ("crd.projectcalico.org/v1", "NetworkPolicy", true),
        ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy", false),
        ("policy.networking.k8s.io/v1alpha1", "BaselineAdminNetworkPolicy", false),
        ("crd.antrea.io/v1beta1", "ClusterNetworkPolicy", false),
        ("crd.antrea.io/v1beta1", "NetworkPolicy", true),
        ("networking.k8s.aws/v1alpha1", "ApplicationNetworkPolicy", true),
        ("networking.k8s.aws/v1alpha1", "ClusterNetworkPolicy", false),
        ("k8s.ovn.org/v1", "EgressFirewall", true),
        // Not of a known API.
        ("networking.k8s/v1", "NetworkPolicy", true),
        ("policy.example.com/v1alpha2", "ClusterNetworkPolicy", false),
    ] {
        let text = object(version, kind, namespaced);
        let (status, report) = examine(&format!("{CLUSTER}{text}"));
        let name = if namespaced { "x/f" } else { "f" };
        assert_eq!(
            places(&report)["foreign-policy"],
            [format!("{kind} {name}")],
            "{version}: {report:#?}"
        );
        assert_eq!((status, report.findings.len()), (1, 1), "{report:#?}");
        // The same object in a list. In a typed list, only the list has the kind.
        let item = text.trim_end_matches("\n---\n");
        let list = format!("{{apiVersion: v1, kind: List, items: [{item}]}}\n---\n");
        assert_eq!(
            places(&examine(&format!("{CLUSTER}{list}")).1)["foreign-policy"].len(),
            1,
            "{kind}"
        );
        let bare = item.replace(&format!("apiVersion: {version}, kind: {kind}, "), "");
        let list = format!("{{apiVersion: {version}, kind: {kind}List, items: [{bare}]}}\n---\n");
        assert_eq!(
            places(&examine(&format!("{CLUSTER}{list}")).1)["foreign-policy"].len(),
            1,
            "{kind}List"
        );
    }
}

#[test]
fn what_is_enforced_is_not_foreign() {
    let own = "{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: c}, spec: {tier: Admin, \
               priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}\n---\n";
    let others = [
        object("security.istio.io/v1", "AuthorizationPolicy", true),
        object("networking.k8s.io/v1", "Ingress", true),
        object("policy/v1", "PodDisruptionBudget", true),
        object("kyverno.io/v1", "ClusterPolicy", false),
        object("cilium.io/v2", "CiliumEndpoint", true),
        object("crd.projectcalico.org/v1", "IPPool", false),
    ];
    let (_, report) = examine(&format!("{CLUSTER}{own}{}", others.concat()));
    assert!(!places(&report).contains_key("foreign-policy"), "{report:#?}");
    // The object together with its own enforcer, which is a separate finding.
    let cilium = "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: cilium, namespace: kube-system}, spec: {template: {spec: \
                  {containers: [{name: cilium-agent, image: 'quay.io/cilium/cilium:v1.20'}]}}}}\n---\n";
    let policies = [
        object("cilium.io/v2", "CiliumNetworkPolicy", true),
        object("projectcalico.org/v3", "NetworkPolicy", true),
    ];
    let (_, report) = examine(&format!("{CLUSTER}{cilium}{}", policies.concat()));
    let all = places(&report);
    assert_eq!(all["foreign-policy-of-other-enforcer"], ["CiliumNetworkPolicy x/f"]);
    assert_eq!(all["foreign-policy"], ["NetworkPolicy x/f"]);
}

#[test]
fn many_are_counted() {
    let many: String = (0..1500)
        .map(|n| {
            object("cilium.io/v2", "CiliumNetworkPolicy", true)
                .replace("name: f", &format!("name: f{n}"))
        })
        .collect();
    let (_, report) = examine(&format!("{CLUSTER}{many}"));
    let finding = report.findings.iter().find(|it| it.check == "foreign-policy").unwrap();
    assert_eq!((finding.count, finding.places.len()), (1500, 100));
    assert!(
        finding.places[0].starts_with("CiliumNetworkPolicy x/f0 (all.yaml:"),
        "{}",
        finding.places[0]
    );
}
