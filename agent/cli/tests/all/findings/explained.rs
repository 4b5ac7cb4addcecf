//! Answers of `explain` about the same cluster: the nearest rule, and replicas by their names.

use super::{egress, folder, policy, run};

/// Returns the output of `explain` from the line of the nearest rule on.
fn nearest(rules: &str, more: &str, to: &str, port: &str) -> String {
    let objects = folder(&[&egress(rules), more]);
    let (status, text) =
        run(&["explain", "--from", "app/web", "--to", to, "--port", port], &objects);
    assert_eq!(status, 1, "{text}");
    text.split_once("nearest: ").unwrap().1.to_owned()
}

#[test]
fn the_nearest_rule_has_the_port_that_was_asked_for() {
    let api = "{to: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 8443}]}";
    let of_default = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}}";
    let web = "{ipBlock: {cidr: 0.0.0.0/0, except: [192.168.0.0/16, 10.0.0.0/8]}}";
    let hint = "port 6443 is not in it; 443 is the Service's port, which is translated first";
    for peer in [of_default, web] {
        let rules = format!("{api}, {{to: [{peer}], ports: [{{port: 443}}]}}");
        let text = nearest(&rules, "---", "svc/default/kubernetes", "443");
        assert!(text.starts_with("egress rule 3 of app/p") && text.contains(hint), "{text}");
    }
    // Only rules with the Service's port get the hint.
    let text = nearest(api, "---", "svc/default/kubernetes", "443");
    assert!(!text.contains("443 is the Service's port"), "{text}");
    // A rule without `to` for other ports is not nearer.
    let rules =
        format!("{{ports: [{{port: 80}}]}}, {{to: [{of_default}], ports: [{{port: 443}}]}}");
    let text = nearest(&rules, "---", "svc/default/kubernetes", "443");
    assert!(text.starts_with("egress rule 3 of app/p"), "{text}");
    // A block of the Service's address.
    let rules =
        format!("{api}, {{to: [{{ipBlock: {{cidr: 10.96.0.0/16}}}}], ports: [{{port: 444}}]}}");
    let text = nearest(&rules, "---", "svc/default/kubernetes", "443");
    assert!(text.starts_with("egress rule 3 of app/p"), "{text}");
}

#[test]
fn the_nearest_rule_has_the_load_balancers_address_or_the_pods_labels() {
    let service = "{apiVersion: v1, kind: Service, metadata: {namespace: app, name: api}, spec: {type: LoadBalancer, clusterIP: \
                   10.96.0.20, selector: {app: api}, ports: [{port: 80, targetPort: 8443}]}, status: {loadBalancer: {ingress: [{ip: \
                   198.51.100.8}]}}}";
    let block = "{ipBlock: {cidr: 198.51.100.8/32}}";
    for ports in ["{port: 80}", "{port: 8080}"] {
        let text =
            nearest(&format!("{{to: [{block}], ports: [{ports}]}}"), service, "svc/app/api", "80");
        assert!(text.starts_with("egress rule 2 of app/p"), "{text}");
    }
    // The labels of the backend show the author's intention better than the port.
    let api = "{to: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 9090}]}";
    let text = nearest(
        &format!("{{to: [{block}], ports: [{{port: 80}}]}}, {api}"),
        service,
        "svc/app/api",
        "80",
    );
    assert!(text.starts_with("egress rule 3 of app/p"), "{text}");
}

#[test]
fn the_name_of_a_replica_decides_its_labels() {
    let set = "{apiVersion: apps/v1, kind: StatefulSet, metadata: {namespace: new, name: db}, spec: {replicas: 3, template: \
               {metadata: {labels: {app: db}}, spec: {containers: [{name: c, ports: [{containerPort: 5432}]}]}}}}";
    let only = |label: &str, value: &str| {
        policy(
            "new",
            "first",
            &format!("podSelector: {{matchLabels: {{{label}: {value}}}}}, ingress: []"),
        )
    };
    for policy in [
        only("statefulset.kubernetes.io/pod-name", "db-0"),
        only("apps.kubernetes.io/pod-index", "'0'"),
    ] {
        for (to, expected) in [("new/db-0", 1), ("new/db-1", 0), ("new/db-10", 0), ("new/db", 2)] {
            let ask = ["explain", "--from", "app/web", "--to", to, "--port", "5432"];
            let (status, text) = run(&ask, &folder(&[set, &policy]));
            assert_eq!(status, expected, "{to}: {text}");
        }
    }
    let from = policy(
        "app",
        "p",
        "podSelector: {matchLabels: {app: api}}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: \
         {statefulset.kubernetes.io/pod-name: db-1}}}]}]",
    );
    for (sender, expected) in [("new/db-1", 0), ("new/db-0", 1)] {
        let ask = ["explain", "--from", sender, "--to", "app/api", "--port", "8443"];
        let (status, text) = run(&ask, &folder(&[set, &from]));
        assert_eq!(status, expected, "{sender}: {text}");
    }
}
