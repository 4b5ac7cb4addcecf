//! Parts of policies without pods, policies of other APIs, and pod templates of other controllers.

use super::{CANNOT_TELL, DIFFERENT, NAMESPACE, SAME, deployment, expect, pod};
use crate::objects::policy;

/// A typical chart: its policies name pods of other charts, or pods that an operator creates.
#[test]
fn parts_of_policies_without_pods_are_not_compared_in_a_chart() {
    let (cart, web) = (deployment("cart", ""), deployment("web", ""));
    let from = |peer: &str, port: u16| {
        policy("web", &format!("ingress: [{{from: [{peer}], ports: [{{port: {port}}}]}}]"))
    };
    let nginx = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}";
    let agent = "{podSelector: {matchLabels: {app: agent}}}";
    let kept = "{podSelector: {matchLabels: {app: cart}}}";
    let side = |policy| [NAMESPACE.to_owned(), cart.clone(), web.clone(), policy];
    let compare = |before: &str, after: &str, status, parts: &[&str]| {
        let (before, after) = (side(before.to_owned()), side(after.to_owned()));
        let [before, after] = [&before, &after].map(|all| all.each_ref().map(String::as_str));
        expect(&before, &after, status, parts)
    };
    let no_pod = "no connection is cut or opened among those compared\nnot compared: NetworkPolicy shop/web: ingress from pods of \
                  namespaces kubernetes.io/metadata.name=ingress-nginx: no pod matches\n";
    compare(&from(nginx, 80), &from(nginx, 8080), CANNOT_TELL, &[no_pod]);
    let added = from(&format!("{kept}, {agent}"), 80);
    let no_agent =
        "NetworkPolicy shop/web: ingress from pods app=agent of namespace shop: no pod matches\n";
    compare(&from(kept, 80), &added, CANNOT_TELL, &[no_agent]);
    // An unchanged part changes no connection, regardless of its pods.
    let text = compare(&added, &from(&format!("{agent}, {kept}"), 80), SAME, &[]);
    assert_eq!(text.lines().next(), Some("no connection is cut or opened"));
    let other = from(nginx, 80).replace("app: web", "app: operated");
    let nobody = "not compared: NetworkPolicy shop/web: it selects no pod\n";
    compare(&other, &other.replace("port: 80", "port: 8080"), CANNOT_TELL, &[nobody]);
    compare(&other, &other, SAME, &["no connection is cut or opened\n"]);
    // Labels that controllers set are those of some pod.
    let hash = "{podSelector: {matchLabels: {app: cart, pod-template-hash: 5f6}}}";
    let text = compare(&from(kept, 80), &from(&format!("{kept}, {hash}"), 80), SAME, &[]);
    assert!(!text.contains("no pod matches"), "{text}");
    let tier = |namespace: &str, priority: u16| {
        format!(
            "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: tier}}, spec: {{tier: \
             Admin, priority: {priority}, subject: {{namespaces: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}}}, \
             ingress: [{{action: Deny, from: [{{namespaces: {{matchLabels: {{team: b}}}}}}]}}]}}}}"
        )
    };
    let nobody = "not compared: ClusterNetworkPolicy tier: it selects no pod\n";
    compare(&tier("other", 1), &tier("other", 2), CANNOT_TELL, &[nobody]);
    let no_team =
        "ClusterNetworkPolicy tier: ingress from pods of namespaces team=b: no pod matches\n";
    compare(&tier("shop", 1), &tier("shop", 1).replace("Deny", "Accept"), CANNOT_TELL, &[no_team]);
}

/// A checkout without the Namespace objects: the same labels hold on both sides.
#[test]
fn a_namespace_that_one_side_has_counts_for_both() {
    let (cart, web) = (deployment("cart", ""), deployment("web", ""));
    let labelled = "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}";
    let rule = "ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}}]}]";
    let rule = policy("web", rule);
    let (with, without) = ([labelled, &cart, &web, &rule], [&*cart, &web, &rule]);
    let before =
        "not compared: Namespace shop is not among the objects before: labels as on the other side";
    let after = before.replace("before", "after");
    expect(&with, &without, CANNOT_TELL, &["no connection is cut or opened", &after]);
    expect(&without, &with, CANNOT_TELL, &["no connection is cut or opened", before]);
    let closed = policy("web", "ingress: []");
    let closed = [&*cart, &web, &closed];
    expect(
        &with,
        &closed,
        DIFFERENT,
        &["shop/cart, shop/web -> shop/web: loses everything", &after],
    );
}

/// A cluster's objects show every pod that exists.
#[test]
fn parts_of_policies_without_pods_are_noted_in_a_cluster() {
    let (web, cart) = (pod("web", "n1", "10.0.0.1"), pod("cart", "n2", "10.0.0.2"));
    let from = |peer: &str| policy("web", &format!("ingress: [{{from: [{peer}]}}]"));
    let kept = "{podSelector: {matchLabels: {app: cart}}}";
    let (before, after) =
        (from(kept), from(&format!("{kept}, {{podSelector: {{matchLabels: {{app: agent}}}}}}")));
    let note = "without effect on the pods that exist: NetworkPolicy shop/web: ingress from pods app=agent of namespace shop: no \
                pod matches\n";
    let text = expect(
        &[NAMESPACE, &web, &cart, &before],
        &[NAMESPACE, &web, &cart, &after],
        SAME,
        &[note],
    );
    assert_eq!(text.lines().next(), Some("no connection is cut or opened"));
    let other = after.replace("app: web", "app: nobody");
    let note = "without effect on the pods that exist: NetworkPolicy shop/web: it selects no pod\n";
    expect(&[NAMESPACE, &web, &cart], &[NAMESPACE, &web, &cart, &other], SAME, &[note]);
}

/// A policy of another API on one side only may decide connections where its enforcer runs.
#[test]
fn policies_of_other_apis_that_come_or_go_are_not_compared() {
    let web = deployment("web", "");
    let cilium = "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: a, namespace: shop}, spec: {}}";
    let text = "not enforced by netpold, and not part of this answer: CiliumNetworkPolicy shop/a\n";
    let (without, with) = ([NAMESPACE, web.as_str()], [NAMESPACE, web.as_str(), cilium]);
    let of_gaps = format!("not compared: {text}");
    expect(&without, &with, CANNOT_TELL, &[&of_gaps]);
    expect(&with, &without, CANNOT_TELL, &[&of_gaps]);
    let same = expect(&with, &with, SAME, &[text]);
    assert!(!same.contains("not compared"), "{same}");
}

/// Workloads of controllers that Kubernetes does not have itself.
#[test]
fn pod_templates_of_other_controllers_are_compared() {
    let rule = |port: u16| {
        policy(
            "web",
            &format!(
                "ingress: [{{from: [{{podSelector: {{matchLabels: {{app: cart}}}}}}], ports: [{{port: {port}}}]}}]"
            ),
        )
    };
    for (version, kind) in [
        ("argoproj.io/v1alpha1", "Rollout"),
        ("apps.kruise.io/v1alpha1", "CloneSet"),
        ("apps.kruise.io/v1beta1", "StatefulSet"),
        ("apps.openshift.io/v1", "DeploymentConfig"),
    ] {
        let of = |name: &str| {
            deployment(name, "")
                .replace("apps/v1, kind: Deployment", &format!("{version}, kind: {kind}"))
        };
        let (cart, web) = (of("cart"), of("web"));
        let text = "shop/cart -> shop/web: loses TCP 8080, gains TCP 80\n";
        let by = format!(
            "by pod template, no pods exist: {kind} shop/cart (template), {kind} shop/web (template)"
        );
        expect(
            &[NAMESPACE, &cart, &web, &rule(8080)],
            &[NAMESPACE, &cart, &web, &rule(80)],
            DIFFERENT,
            &[text, &by],
        );
    }
    // A Rollout's pods belong to a ReplicaSet, and a Rollout may refer to a Deployment.
    let rollout = deployment("web", "")
        .replace("apps/v1, kind: Deployment", "argoproj.io/v1alpha1, kind: Rollout");
    let pod = "{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web-5f6-abcde, labels: {app: web, \
               rollouts-pod-template-hash: 5f6}, ownerReferences: [{kind: ReplicaSet, name: web-5f6, controller: true}]}, spec: {nodeName: \
               n1, containers: [{name: c}]}, status: {podIP: 10.0.0.1}}";
    let by_reference = "{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {namespace: shop, name: api}, spec: {workloadRef: {kind: \
                        Deployment, name: api}}}";
    let objects = [NAMESPACE, &rollout, pod, by_reference];
    let text = expect(&objects, &objects, SAME, &["no connection is cut or opened\n"]);
    assert!(!text.contains("template"), "{text}");
}

/// A CronJob is one workload, whether its run has ended, still runs, or was cleaned up.
#[test]
fn runs_of_a_cron_job_are_the_cron_job() {
    let schedule = "{apiVersion: batch/v1, kind: CronJob, metadata: {namespace: shop, name: bk}, spec: {jobTemplate: {spec: {template: \
                    {metadata: {labels: {app: cart}}, spec: {containers: [{name: c}]}}}}}}";
    let run = |number: &str, phase: &str| {
        let name = format!("bk-{number}");
        pod(&format!("{name}-abcde"), "n1", "10.0.0.9")
            .replace("Running", phase)
            .replace("labels: {", &format!("labels: {{job-name: {name}, "))
            .replace(&format!("app: {name}-abcde"), "app: cart")
    };
    let [goes_on, over] = [run("29012345", "Running"), run("29012350", "Succeeded")];
    let web = pod("web", "n2", "10.0.0.2");
    let rule = |port: u16| {
        let from = "{podSelector: {matchLabels: {app: cart}}}";
        policy("web", &format!("ingress: [{{from: [{from}], ports: [{{port: {port}}}]}}]"))
    };
    let (old, new) = (rule(80), rule(81));
    for runs in [[&goes_on, &over], [&over, &goes_on], [&over, &over]] {
        let [before, after] = runs.map(|run| [NAMESPACE, schedule, run, &web, &old]);
        expect(&before, &after, SAME, &["no connection is cut or opened\n"]);
        let after = [NAMESPACE, schedule, runs[1], &web, &new];
        let parts = ["shop/bk -> shop/web: loses TCP 80, gains TCP 81\n", "cut: 1 pair, opened"];
        let text = expect(&before, &after, DIFFERENT, &parts);
        assert!(!text.contains("not compared"), "{text}");
    }
    let before = [NAMESPACE, schedule, &over, &web, &old];
    expect(&before, &[NAMESPACE, schedule, &web, &old], SAME, &["no connection is cut or opened"]);
}

#[test]
fn workloads_on_the_hosts_network_alone_are_the_reason_that_nothing_is_compared() {
    let exporter = deployment("web", "hostNetwork: true,");
    let objects = [NAMESPACE, &exporter, &policy("web", "ingress: []")];
    let text =
        "nothing was compared: the pods in both use the host's network, where no policy applies\n";
    expect(&objects, &objects, CANNOT_TELL, &[text]);
}
