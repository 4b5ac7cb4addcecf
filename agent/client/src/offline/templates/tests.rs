use netpold_core::model::WorkloadRef;

use super::*;
use crate::offline::{read_text, review_text};

/// Kinds, the API versions that served them, and the field that holds the template.
const WORKLOADS: [(&str, &[&str], &str); 7] = [
    ("Deployment", &["apps/v1", "apps/v1beta1", "apps/v1beta2", "extensions/v1beta1"], "template"),
    ("ReplicaSet", &["apps/v1", "apps/v1beta2", "extensions/v1beta1"], "template"),
    ("DaemonSet", &["apps/v1", "apps/v1beta2", "extensions/v1beta1"], "template"),
    ("StatefulSet", &["apps/v1", "apps/v1beta1", "apps/v1beta2"], "template"),
    ("ReplicationController", &["v1"], "template"),
    ("Job", &["batch/v1"], "template"),
    ("CronJob", &["batch/v1", "batch/v1beta1", "batch/v2alpha1"], "jobTemplate"),
];

const POD: &str = "metadata: {labels: {app: web}}, spec: {hostNetwork: false, containers: [{name: c, ports: \
    [{name: http, containerPort: 80}, {containerPort: 81}]}], initContainers: [{name: s, restartPolicy: Always, \
    ports: [{name: side, containerPort: 82}]}, {name: i, ports: [{name: once, containerPort: 83}]}]}";

fn spec(field: &str) -> String {
    match field {
        "jobTemplate" => {
            format!("{{suspend: true, jobTemplate: {{spec: {{template: {{{POD}}}}}}}}}")
        }
        _ => format!("{{replicas: 0, template: {{{POD}}}}}"),
    }
}

fn workload(kind: &str, version: &str, field: &str, metadata: &str) -> String {
    let spec = spec(field);
    format!(
        "---\n{{apiVersion: {version}, kind: {kind}, metadata: {{{metadata}}}, spec: {spec}}}\n"
    )
}

fn objects(text: &str) -> Vec<Change> {
    read_text("t.yaml", text.as_bytes(), "shop").unwrap()
}

fn pods(objects: Vec<Change>) -> Vec<Pod> {
    let pods = objects
        .into_iter()
        .filter_map(|it| if let Change::Pod(pod) = it { Some(pod) } else { None });
    pods.collect()
}

fn titles(text: &str) -> Vec<String> {
    pods(stand_in(objects(text)))
        .iter()
        .map(|pod| format!("{} is {}", pod.key, pod.title()))
        .collect()
}

#[test]
fn every_kind_and_version_has_one_pod_for_its_template() {
    for (kind, versions, field) in WORKLOADS {
        for version in versions {
            for (metadata, namespace) in [("name: web", "shop"), ("name: web, namespace: x", "x")] {
                let text = workload(kind, version, field, metadata);
                let list = format!(
                    "apiVersion: v1\nkind: List\nitems:\n- {}",
                    text.trim_start_matches("---\n")
                );
                for text in [text, list] {
                    let all = pods(stand_in(objects(&text)));
                    let [pod] = &all[..] else { panic!("{kind} {version}: {all:?}") };
                    assert_eq!(pod.key, Key::new(namespace, "web"), "{kind} {version}");
                    assert_eq!(pod.title(), format!("{kind} {namespace}/web (template)"));
                    assert_eq!(pod.labels.get("app").map(String::as_str), Some("web"));
                    let ports: Vec<_> =
                        pod.ports.iter().map(|port| (port.name.as_str(), port.port)).collect();
                    assert_eq!(ports, [("http", 80), ("side", 82)], "{kind} {version}");
                    assert!(pod.addresses.is_empty() && !pod.host_network && pod.node.is_empty());
                    let is_job = kind == "Job";
                    assert_eq!(pod.labels.contains_key("batch.kubernetes.io/job-name"), is_job);
                }
            }
        }
    }
    // A kind of the same name in another API group is not Kubernetes' own.
    assert_eq!(titles(&workload("Deployment", "example.org/v1", "template", "name: web")), [""; 0]);
    let generated = workload("Job", "batch/v1", "template", "generateName: load-");
    assert_eq!(titles(&generated), ["shop/load is Job shop/load (template)"]);
}

#[test]
fn a_template_stands_in_where_no_pod_of_its_workload_runs() {
    let pod = |name: &str, more: &str, phase: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, {more}}}, status: \
             {{phase: {phase}, podIP: 10.0.0.1}}}}\n"
        )
    };
    let owned = |kind: &str, name: &str| {
        format!(
            "labels: {{app: web}}, ownerReferences: [{{kind: {kind}, name: {name}, controller: true}}]"
        )
    };
    let web = |kind: &str| {
        let (_, versions, field) = WORKLOADS.iter().find(|(it, ..)| *it == kind).unwrap();
        workload(kind, versions[0], field, "name: web")
    };
    for (kind, metadata, name) in [
        ("Deployment", "labels: {app: web, pod-template-hash: 5f6}".to_owned(), "web-5f6-abcde"),
        ("Deployment", "labels: {app: web}".to_owned(), "web-5f6d7c8b9-bcdfg"),
        ("StatefulSet", owned("StatefulSet", "web"), "any"),
        ("DaemonSet", "labels: {app: web, controller-revision-hash: 5f6}".to_owned(), "web-abcde"),
        ("ReplicaSet", owned("ReplicaSet", "web"), "web-abcde"),
        ("ReplicationController", owned("ReplicationController", "web"), "web-abcde"),
        ("Job", "labels: {app: web, job-name: web}".to_owned(), "web-abcde"),
        ("CronJob", owned("Job", "web-29380000"), "web-29380000-abcde"),
    ] {
        let running = web(kind) + &pod(name, &metadata, "Running");
        assert_eq!(titles(&running), [format!("shop/{name} is shop/{name}")], "{kind}");
        let finished = web(kind) + &pod(name, &metadata, "Succeeded");
        let both = [
            format!("shop/{name} is shop/{name}"),
            format!("shop/web is {kind} shop/web (template)"),
        ];
        assert_eq!(titles(&finished), both, "{kind}");
        // Pods that do not belong to the workload, by name, labels, owner or namespace.
        for other in [
            pod("web", "labels: {app: web}", "Running"),
            pod("web2-5f6-abcde", "labels: {app: web}", "Running"),
            pod("web-5f6-abcde", "labels: {app: other}", "Running"),
            pod("web-5f6-abcde", &owned("Rollout", "web"), "Running"),
            pod(name, &metadata, "Running").replace("namespace: shop", "namespace: x"),
        ] {
            assert_eq!(titles(&(web(kind) + &other)).len(), 2, "{kind} {other}");
        }
    }
}

#[test]
fn a_workload_has_one_template_and_a_name_of_its_own() {
    let owner = "ownerReferences: [{kind: Deployment, name: web, controller: true}]";
    let set = workload("ReplicaSet", "apps/v1", "template", &format!("name: web-5f6, {owner}"));
    let current = set.replace("replicas: 0", "replicas: 2");
    let deployment = workload("Deployment", "apps/v1", "template", "name: web");
    // A former revision, the current one alone, and both below their Deployment.
    assert_eq!(titles(&set), [""; 0]);
    assert_eq!(titles(&current), ["shop/web is Deployment shop/web (template)"]);
    assert_eq!(titles(&(current + &deployment)), ["shop/web is Deployment shop/web (template)"]);
    let cron_job = workload("CronJob", "batch/v1", "jobTemplate", "name: web");
    let bare = "---\n{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}}\n";
    assert_eq!(
        titles(&format!("{cron_job}{deployment}")),
        [
            "shop/web is Deployment shop/web (template)",
            "shop/cronjob.web is CronJob shop/web (template)"
        ]
    );
    assert_eq!(
        titles(&format!("{deployment}{bare}")),
        ["shop/web is shop/web", "shop/deployment.web is Deployment shop/web (template)"]
    );
}

#[test]
fn a_template_that_cannot_be_read_is_named_and_voids_nothing() {
    let text = workload("Deployment", "apps/v1", "template", "name: web")
        .replace("{app: web}", "{app: 1}");
    let more = workload("Job", "batch/v1", "template", "name: fine");
    let reviewed = review_text("t.yaml", (text + &more).as_bytes(), "shop");
    assert_eq!(reviewed.gaps().len(), 1);
    assert_eq!(pods(stand_in(reviewed.objects)).len(), 2);
    let problems: Vec<String> = reviewed.problems.iter().map(ToString::to_string).collect();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(problem.starts_with("t.yaml:2: Deployment shop/web: spec.template."), "{problem}");
    assert!(problem.contains("labels"), "{problem}");
}

#[test]
fn an_agent_takes_templates_for_no_pods() {
    let text = workload("Deployment", "apps/v1", "template", "name: web");
    let (objects, problems) =
        netpold_kube::manifests::read_text("t.yaml", text.as_bytes()).unwrap();
    assert_eq!((objects.len(), problems.len()), (0, 0));
}

fn running(name: &str, labels: &[(&str, &str)]) -> Change {
    let pod = netpold_testkit::objects::pod("shop", name, labels, &["10.0.0.1"]);
    let ports = [("http", 80), ("side", 82)].map(|(name, port)| {
        netpold_testkit::objects::named(name, netpold_core::model::Protocol::Tcp, port)
    });
    Change::Pod(Pod { ports: ports.to_vec(), ..pod })
}

#[test]
fn a_workload_that_is_applied_replaces_pods_that_it_would_not_make() {
    let template = workload("Deployment", "apps/v1", "template", "name: web");
    let labels = [("app", "web"), ("pod-template-hash", "5f6")];
    let before = [running("web-5f6-abcde", &labels), running("other", &[("app", "other")])];
    let after = |text: &str| {
        let keys =
            pods(stand_in(apply(&before, &objects(text)))).into_iter().map(|pod| pod.key.name);
        keys.collect::<Vec<_>>()
    };
    assert_eq!(after(&template), ["other", "web-5f6-abcde"]);
    for (former, now) in [
        ("{app: web}", "{app: web, v: '2'}"),
        ("containerPort: 80", "containerPort: 8080"),
        ("hostNetwork: false", "hostNetwork: true"),
    ] {
        assert_eq!(after(&template.replace(former, now)), ["other", "web"], "{now}");
    }
    let changed = objects(&template);
    let gone: Vec<Key> =
        pods_of(&before, &changed[0]).filter_map(as_pod).map(|pod| pod.key.clone()).collect();
    assert_eq!(gone, [Key::new("shop", "web-5f6-abcde")]);
}

#[test]
fn owners_are_read_of_pods() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {pod-template-hash: 5f6}, ownerReferences: \
        [{kind: Node, name: 'n'}, {kind: ReplicaSet, name: web-5f6, controller: true}]}}";
    let all = pods(objects(text));
    let expected = WorkloadRef {
        kind: "Deployment".into(),
        name: "web".into(),
        is_template: false,
        is_indexed: false,
    };
    assert_eq!(all[0].workload.as_deref(), Some(&expected));
}
