//! `netpold diff` of workloads with different pods before and after, or without pods.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::diff::commands::{diff, directory, text};

/// Kinds of workloads, their version and the field with the template.
const KINDS: [(&str, &str, &str); 7] = [
    ("Deployment", "apps/v1", "template"),
    ("StatefulSet", "apps/v1", "template"),
    ("DaemonSet", "apps/v1", "template"),
    ("ReplicaSet", "apps/v1", "template"),
    ("ReplicationController", "v1", "template"),
    ("Job", "batch/v1", "template"),
    ("CronJob", "batch/v1", "jobTemplate"),
];

fn workload((kind, version, field): (&str, &str, &str), name: &str, labels: &str) -> String {
    let pod = format!(
        "metadata: {{labels: {{{labels}}}}}, spec: {{containers: [{{name: c, ports: [{{name: http, containerPort: 8080}}]}}]}}"
    );
    let spec = match field {
        "jobTemplate" => format!("jobTemplate: {{spec: {{template: {{{pod}}}}}}}"),
        _ => format!("template: {{{pod}}}"),
    };
    format!(
        "---\n{{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}, namespace: shop}}, spec: {{{spec}}}}}\n"
    )
}

/// Returns a policy that isolates the ingress of pods with these labels; `rules` is its list.
fn policy(labels: &str, rules: &str) -> String {
    format!(
        "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: guard, namespace: shop}}, \
         spec: {{podSelector: {{matchLabels: {{{labels}}}}}, policyTypes: [Ingress], ingress: [{rules}]}}}}\n"
    )
}

fn from_client(port: &str) -> String {
    format!(
        "{{from: [{{podSelector: {{matchLabels: {{app: client}}}}}}], ports: [{{port: {port}}}]}}"
    )
}

fn client() -> String {
    workload(KINDS[0], "client", "app: client")
}

/// Returns a pod as an API server stores it: its labels and, if it has one, its owner.
fn pod(name: &str, labels: &str, owner: &str, phase: &str, address: &str) -> String {
    let mut metadata = format!("name: {name}, namespace: shop, labels: {{{labels}}}");
    if let Some((kind, name)) = owner.split_once('/') {
        let _ = write!(
            metadata,
            ", ownerReferences: [{{kind: {kind}, name: {name}, controller: true}}]"
        );
    }
    format!(
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{{metadata}}}, spec: {{nodeName: n1}}, status: {{phase: {phase}, \
         podIP: {address}}}}}\n"
    )
}

/// Returns the output for two directories, and the exit status.
fn compared(before: &str, after: &str, more: &[&str]) -> (String, Option<i32>) {
    let [before, after] = [before, after].map(|objects| directory(&[("all.yaml", objects)]));
    let directories = ["--from", text(before.path()), "--to", text(after.path())];
    let output = diff(&[&directories[..], more].concat());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

fn document(before: &str, after: &str) -> (Value, Option<i32>) {
    let (text, status) = compared(before, after, &["-o", "json"]);
    (serde_json::from_str(&text).unwrap(), status)
}

#[test]
fn templates_of_every_kind_are_compared() {
    for kind in KINDS {
        let name = kind.0;
        let objects = |rules: &str| {
            client() + &workload(kind, "web", "app: web") + &policy("app: web", rules)
        };
        let before = objects(&from_client("http"));
        let (text, status) = compared(&before, &objects(&from_client("80")), &[]);
        let mut titles =
            ["Deployment shop/client (template)".to_owned(), format!("{name} shop/web (template)")];
        titles.sort();
        let expected = format!(
            "shop/client -> shop/web: loses TCP 8080, gains TCP 80\n\
             cut: 1 pair, opened: 1 pair\n\
             by pod template, no pods exist: {}\n",
            titles.join(", ")
        );
        assert_eq!((text, status), (expected, Some(1)), "{name}");
        let (same, status) = document(&before, &objects(&from_client("8080")));
        assert_eq!((status, &same["compared"]), (Some(0), &2.into()), "{name}: {same}");
        assert_eq!(same["templates"], serde_json::json!(titles));
    }
}

#[test]
fn the_replicas_of_a_template_are_compared_with_each_other() {
    let web = workload(KINDS[0], "web", "app: web");
    let own = "{from: [{podSelector: {matchLabels: {app: web}}}]}";
    let (text, status) =
        compared(&(web.clone() + &policy("app: web", own)), &(web + &policy("app: web", "")), &[]);
    assert!(text.starts_with("shop/web -> shop/web: loses everything\n"), "{text}");
    assert_eq!(status, Some(1));
}

#[test]
fn a_label_that_changes_opens_a_workload_of_every_kind() {
    let guard = policy("app: web, version: '1'", "");
    for kind in KINDS {
        let objects = |version: &str| {
            client() + &workload(kind, "web", &format!("app: web, version: '{version}'")) + &guard
        };
        let (text, status) = compared(&objects("1"), &objects("2"), &[]);
        let first = "OPEN: shop/web: no policy isolates its ingress any more, shop/guard did\n";
        assert!(text.starts_with(first), "{}: {text}", kind.0);
        assert!(text.contains("-> shop/web: gains everything\n"), "{}: {text}", kind.0);
        assert_eq!(status, Some(1));
        let (text, status) = compared(&objects("2"), &objects("1"), &["--fail-on", "cut"]);
        assert!(
            text.starts_with("ISOLATED: shop/web: shop/guard isolates its ingress\n"),
            "{text}"
        );
        assert_eq!(status, Some(1));
        let (back, status) = document(&objects("1"), &objects("2"));
        assert_eq!(status, Some(1));
        assert_eq!(back["open"][0]["workload"], "shop/web");
        assert_eq!(back["open"][0]["directions"], serde_json::json!(["ingress"]));
        assert_eq!(back["open"][0]["policies"], serde_json::json!(["shop/guard"]));
        assert_eq!((&back["gone"], &back["new"]), (&serde_json::json!([]), &serde_json::json!([])));
    }
}

/// Pod of a revision or run: name, labels and owner.
type Revision = (&'static str, &'static str, &'static str);
const REVISIONS: [(&str, Revision, Revision); 8] = [
    (
        "a Deployment's, by labels",
        ("web-5f6-abcde", "app: web, pod-template-hash: 5f6", ""),
        ("web-77c-fghij", "app: web, pod-template-hash: 77c", ""),
    ),
    (
        "a Deployment's, by owners",
        ("web-5f6-abcde", "app: web, pod-template-hash: 5f6", "ReplicaSet/web-5f6"),
        ("web-77c-fghij", "app: web, pod-template-hash: 77c", "ReplicaSet/web-77c"),
    ),
    (
        "a Deployment's, by names alone",
        ("web-5f6d7c8b9-abcde", "app: web", ""),
        ("web-77c9d5b4f-fghij", "app: web", ""),
    ),
    (
        "a StatefulSet's",
        ("web-0", "app: web, controller-revision-hash: web-5f6", ""),
        ("web-1", "app: web, controller-revision-hash: web-77c", ""),
    ),
    (
        "a DaemonSet's",
        ("web-abcde", "app: web, controller-revision-hash: 5f6", "DaemonSet/web"),
        ("web-fghij", "app: web, controller-revision-hash: 77c", "DaemonSet/web"),
    ),
    (
        "a CronJob's",
        (
            "web-29380000-abcde",
            "app: web, job-name: web-29380000, controller-uid: a",
            "Job/web-29380000",
        ),
        (
            "web-29380060-fghij",
            "app: web, job-name: web-29380060, controller-uid: b",
            "Job/web-29380060",
        ),
    ),
    (
        "a Job's, by labels",
        ("web-1-abcde", "app: web, batch.kubernetes.io/job-name: web-1", ""),
        ("web-2-fghij", "app: web, batch.kubernetes.io/job-name: web-2", ""),
    ),
    ("bare ones", ("web-29380", "app: web", ""), ("web-29381", "app: web", "")),
];

#[test]
fn revisions_and_runs_are_matched_by_their_workload() {
    let client = pod("client", "app: client", "", "Running", "10.0.0.9");
    let guard = policy("app: web, version: '1'", "");
    for (case, before, after) in REVISIONS {
        // A Job's run may be over on either side.
        let is_job = case.contains("Job") || case == "bare ones";
        let phases: &[[&str; 2]] = match is_job {
            true => &[
                ["Running", "Running"],
                ["Succeeded", "Running"],
                ["Running", "Failed"],
                ["Succeeded"; 2],
            ],
            false => &[["Running", "Running"]],
        };
        for [first, second] in phases {
            let side =
                |(name, labels, owner): Revision, version: &str, phase: &str, address: &str| {
                    let labels = format!("{labels}, version: '{version}'");
                    client.clone() + &guard + &pod(name, &labels, owner, phase, address)
                };
            let case = format!("{case}, {first} and {second}");
            let isolated = side(before, "1", first, "10.0.0.1");
            let (same, status) = document(&isolated, &side(after, "1", second, "10.0.0.2"));
            let none = serde_json::json!([]);
            assert_eq!(
                (status, &same["not_compared"], &same["compared"]),
                (Some(0), &none, &2.into()),
                "{case}: {same}"
            );
            if ["names alone", "bare", "a Job's"].iter().any(|it| case.contains(it)) {
                // Only the labels relate these pods: with another version they may be another workload.
                continue;
            }
            let (text, status) = compared(&isolated, &side(after, "2", second, "10.0.0.2"), &[]);
            assert!(text.starts_with("OPEN: shop/web"), "{case}: {text}");
            assert_eq!(status, Some(1), "{case}");
        }
    }
}

#[test]
fn workloads_of_one_side_only_are_reported_as_not_compared() {
    let guard = policy("app: web", "");
    let web = workload(KINDS[0], "web", "app: web") + &guard;
    let other = workload(KINDS[0], "other", "app: other");
    let nothing = "nothing was compared: no pod and no pod template is in both\n";
    assert_eq!(compared(&guard, &guard, &[]), (nothing.to_owned(), Some(2)));
    let state = "shop/other (open: no policy isolates it)";
    let templates = "by pod template, no pods exist: Deployment shop/other (template), Deployment shop/web \
                     (template)\n";
    let summary = "no connection is cut or opened among those compared\n";
    let both = web.clone() + &other;
    assert_eq!(
        compared(&web, &both, &[]),
        (format!("{summary}new, so not compared: {state}\n{templates}"), Some(2))
    );
    assert_eq!(
        compared(&both, &web, &[]),
        (format!("{summary}gone, so not compared: {state}\n{templates}"), Some(2))
    );
    let isolated = "shop/web (ingress isolated by shop/guard)";
    let (text, status) = compared(&other, &both, &[]);
    assert!(text.contains(&format!("\nnew, so not compared: {isolated}\n")), "{text}");
    assert_eq!(status, Some(2));
    // A new workload cuts nothing, and a removed one opens nothing.
    for (before, after, kind, expected) in [
        (&web, &both, "cut", 0),
        (&web, &both, "open", 2),
        (&both, &web, "cut", 2),
        (&both, &web, "open", 0),
    ] {
        assert_eq!(compared(before, after, &["--fail-on", kind]).1, Some(expected), "{kind}");
    }
    let (known, status) = document(&web, &both);
    assert_eq!(status, Some(2));
    let expected = serde_json::json!([
        { "workload": "shop/other", "reason": "new", "isolated": [], "policies": [] }
    ]);
    assert_eq!(
        (&known["not_compared"], &known["new"]),
        (&expected, &serde_json::json!(["shop/other"]))
    );
    // Two pods have the same address, so the verdicts of neither can be computed.
    let twin = |name: &str| pod(name, &format!("app: {name}"), "", "Running", "10.0.0.1");
    let (text, status) = compared(&(twin("a") + &twin("b")), &(twin("a") + &twin("b")), &[]);
    assert!(text.contains("\nnot compared: shop/a: its pods have no unshared addresses"), "{text}");
    assert_eq!(status, Some(2));
}

#[test]
fn opened_workloads_are_listed_first() {
    let all =
        ["a", "web", "z"].map(|name| workload(KINDS[0], name, &format!("app: {name}"))).concat();
    let guard = |app: &str, port: &str| {
        policy(&format!("app: {app}"), &from_client(port)).replace("guard", &format!("guard-{app}"))
    };
    let before = client() + &all + &guard("a", "1") + &guard("web", "1");
    let after = client() + &all + &guard("a", "2") + &guard("z", "1");
    let (text, status) = compared(&before, &after, &[]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "OPEN: shop/web: no policy isolates its ingress any more, shop/guard-web did"
    );
    assert_eq!(lines[1], "ISOLATED: shop/z: shop/guard-z isolates its ingress");
    assert!(lines[2].contains(" -> shop/"), "{text}");
    assert_eq!(status, Some(1));
    let (markdown, _) = compared(&before, &after, &["-o", "markdown"]);
    assert!(markdown.starts_with("**OPEN: shop/web: no policy"), "{markdown}");
    let (mermaid, _) = compared(&before, &after, &["-o", "mermaid"]);
    assert!(mermaid.contains("\n  %% open: shop/web: no policy"), "{mermaid}");
}

#[test]
fn a_workload_on_the_host_network_is_reported_as_open() {
    let web = workload(KINDS[2], "web", "app: web");
    let host = web.replace("containers: [", "hostNetwork: true, containers: [");
    let (before, after) =
        (client() + &web + &policy("app: web", ""), client() + &host + &policy("app: web", ""));
    let (text, status) = compared(&before, &after, &[]);
    assert!(text.starts_with("OPEN: shop/web: "), "{text}");
    assert_eq!(status, Some(1));
}

#[test]
fn a_pod_that_starts_or_stops_using_the_host_network_is_not_compared() {
    let web = workload(KINDS[2], "web", "app: web");
    let host = web.replace("containers: [", "hostNetwork: true, containers: [");
    for (before, after, why) in [
        (&web, &host, "it uses the host's network now"),
        (&host, &web, "it used the host's network before"),
    ] {
        let (text, status) = compared(&(client() + before), &(client() + after), &[]);
        let lines = format!("among those compared\nnot compared: shop/web: {why}\n");
        assert!(text.contains(&lines), "{text}");
        assert_eq!(status, Some(2));
    }
}

/// Nodes, and a policy that isolates the ingress of every pod.
const NODES: &str = "---
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 192.168.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n3}, status: {addresses: [{type: InternalIP, address: 192.168.0.3}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: quiet, namespace: shop}, spec: {podSelector: {}}}
";

#[test]
fn a_pod_that_moves_keeps_the_connections_with_its_own_node() {
    let labels = "app: web, pod-template-hash: 5f6";
    let on = |node: &str| {
        let pod = pod("web-5f6-abcde", labels, "", "Running", "10.0.0.1");
        NODES.to_owned() + &pod.replace("nodeName: n1", &format!("nodeName: {node}"))
    };
    let template = NODES.to_owned() + &workload(KINDS[0], "web", "app: web");
    let none = "no connection is cut or opened\n";
    for (before, after) in [
        (on("n1"), on("n2")),
        (on("n1"), on("n1").replace("spec: {nodeName: n1}", "spec: {}")),
        (on("n1"), template.clone()),
        (template, on("n2")),
    ] {
        let (text, status) = compared(&before, &after, &[]);
        assert!(text.starts_with(none), "{text}");
        assert_eq!(status, Some(0));
    }
    // Nodes that are the pod's own neither before nor after.
    let denied = on("n2").replace("podSelector: {}", "podSelector: {}, policyTypes: [Egress]");
    let (text, status) = compared(&on("n1"), &denied, &["--fail-on", "cut"]);
    assert!(text.contains("shop/web -> other nodes, outside: loses everything\n"), "{text}");
    assert_eq!(status, Some(1));
}

#[test]
fn an_address_family_of_one_side_is_not_compared() {
    let one = pod("web", "app: web", "", "Running", "10.0.0.1");
    let both = one.replace("podIP: 10.0.0.1", "podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]");
    for (before, after, why) in [
        (&one, &both, "its pods have IPv6 addresses only now"),
        (&both, &one, "its pods had IPv6 addresses only before"),
    ] {
        let (text, status) = compared(before, after, &[]);
        assert!(text.contains(&format!("\nnot compared: shop/web: {why}\n")), "{text}");
        assert_eq!(status, Some(2));
    }
}

#[test]
fn jobs_with_numbers_in_their_names_are_workloads_of_their_own() {
    let job = |name: &str, app: &str| workload(KINDS[5], name, &format!("app: {app}"));
    for [first, second] in [["report-2024", "report-2025"], ["sync-29380000", "sync-29380060"]] {
        let jobs = client() + &job(first, "old") + &job(second, "new");
        let guard = |app: &str| {
            policy(
                "app: client",
                &format!("{{from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}]}}"),
            )
        };
        let before = jobs.clone() + &guard("old");
        let (text, status) = compared(&before, &(jobs + &guard("nobody")), &[]);
        assert!(text.contains(" -> shop/client: loses everything\n"), "{text}");
        assert_eq!(status, Some(1));
    }
}

#[test]
fn blocks_are_compared_with_the_addresses_that_templates_may_get() {
    let objects = |block: &str| {
        let rules = format!("{{from: [{{ipBlock: {{cidr: {block}}}}}]}}");
        client() + &workload(KINDS[0], "web", "app: web") + &policy("app: web", &rules)
    };
    // Blocks with all, some or none of the addresses that pods may get.
    let line = |before: &str, after: &str, more: &[&str]| {
        let (text, status) = compared(&objects(before), &objects(after), more);
        assert_eq!(status, Some(1));
        text.lines().find(|line| line.contains("shop/client")).unwrap_or_default().to_owned()
    };
    assert_eq!(
        line("203.0.113.0/24", "0.0.0.0/0", &[]),
        "shop/client, shop/web, anywhere else outside -> shop/web: gains everything"
    );
    assert!(
        line("203.0.113.0/24", "10.0.0.0/8", &[])
            .contains("gains everything (some pods or addresses)")
    );
    assert!(
        line("203.0.113.0/24", "10.0.0.0/8", &["--pod-cidrs", "10.244.0.0/16"])
            .ends_with("gains everything")
    );
    let (text, _) = compared(
        &objects("203.0.113.0/24"),
        &objects("10.0.0.0/8"),
        &["--pod-cidrs", "172.16.0.0/12"],
    );
    assert!(!text.contains("shop/client ->") && !text.contains("shop/client,"), "{text}");
}

#[test]
fn applied_workloads_replace_their_pods() {
    let guard = policy("app: web, version: '1'", "");
    let running = pod(
        "web-5f6-abcde",
        "app: web, version: '1', pod-template-hash: 5f6",
        "",
        "Running",
        "10.0.0.1",
    );
    let client = pod("client", "app: client", "", "Running", "10.0.0.9");
    let cluster = directory(&[("all.yaml", &(client + &running + &guard))]);
    for (version, status, first) in [
        ("1", 0, "no connection is cut or opened\n"),
        ("2", 1, "OPEN: shop/web: no policy isolates its ingress any more, shop/guard did\n"),
    ] {
        // The template's container has a port, the running pod's container has none.
        let applied = workload(KINDS[0], "web", &format!("app: web, version: '{version}'"));
        let applied = applied.replace("ports: [{name: http, containerPort: 8080}]", "ports: []");
        let applied = directory(&[("web.yaml", &applied)]);
        let file = format!("{}/web.yaml", text(applied.path()));
        let output = diff(&["--manifests", text(cluster.path()), "-f", &file]);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.starts_with(first), "{printed}");
        assert_eq!(output.status.code(), Some(status), "{printed}");
        let output = diff(&["--manifests", text(cluster.path()), "-f", &file, "--delete"]);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(
            printed.contains("gone, so not compared: shop/web (ingress isolated by shop/guard)"),
            "{printed}"
        );
        assert_eq!(output.status.code(), Some(2));
    }
}

/// Returns the output of the command with the given standard input.
fn piped(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpold"));
    let command = command.arg("diff").args(arguments).env_clear();
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that refuses its arguments does not read standard input.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn standard_input_is_any_one_of_the_files() {
    let before = client() + &workload(KINDS[0], "web", "app: web") + &policy("app: web", "");
    let after = policy("app: web", &from_client("80"));
    let [old, new] = [before.clone(), before.clone() + &after]
        .map(|objects| directory(&[("all.yaml", &objects)]));
    let [old, new] = [&old, &new].map(|directory| text(directory.path()));
    for (arguments, input) in [
        (["--from", "-", "--to", new], &before),
        (["--from", old, "--to", "-"], &(before.clone() + &after)),
        (["--manifests", old, "-f", "-"], &after),
        (["--manifests", "-", "-f", new], &before),
    ] {
        let output = piped(&arguments, input);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(
            printed.starts_with("shop/client -> shop/web: gains TCP 80\n"),
            "{arguments:?}: {printed}"
        );
        assert_eq!(output.status.code(), Some(1));
    }
    for (arguments, message) in [
        (
            ["--from", "-", "--to", "-"],
            "--to -: standard input is read once, and --from - reads it; give a file",
        ),
        (
            ["--manifests", "-", "-f", "-"],
            "--manifests -: standard input is read once, and --file - reads it",
        ),
    ] {
        let output = piped(&arguments, &before);
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(printed.contains(message), "{printed}");
        assert_eq!(output.status.code(), Some(2));
    }
    let output = piped(&["--from", old, "--to", "-"], "kind: [\n");
    assert!(
        String::from_utf8(output.stderr).unwrap().contains("standard input:1: unclosed bracket")
    );
}

/// A label that the objects lack decides whether connections change.
#[test]
fn a_missing_label_may_decide_about_connections() {
    let client = client().replace("namespace: shop", "namespace: team");
    let base = workload(KINDS[0], "web", "app: web") + &client;
    let from = |label: &str| {
        policy(
            "app: web",
            &format!("{{from: [{{namespaceSelector: {{matchLabels: {{{label}}}}}}}]}}"),
        )
    };
    let compare = |objects: &str, before: &str, after: &str| {
        let [before, after] = [before, after]
            .map(|policy| directory(&[("a.yaml", &format!("{base}{objects}{policy}"))]));
        let output = diff(&["--from", text(before.path()), "--to", text(after.path())]);
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (blue, red) = (from("color: blue"), from("color: red"));
    let (status, printed) = compare("", &blue, &red);
    let named =
        "connections that depend on label color of Namespace team, which is not among the objects";
    assert!(status == 2 && printed.contains(named), "{status}: {printed}");
    assert_eq!(compare("", &blue, &blue).0, 0);
    let namespaces = ["team", "shop"].map(|name| {
        format!("---\n{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {{color: blue}}}}}}\n")
    });
    let (status, printed) = compare(&namespaces.concat(), &blue, &red);
    assert!(status == 1 && !printed.contains("depend"), "{status}: {printed}");
    let name = |name: &str| from(&format!("kubernetes.io/metadata.name: {name}"));
    let (status, printed) = compare("", &name("team"), &name("other"));
    assert!(status == 1 && !printed.contains("depend"), "{status}: {printed}");
    let hash = |value: &str| policy(&format!("app: web, pod-template-hash: {value}"), "");
    let (_, printed) = compare("", &hash("a"), &hash("b"));
    let named = "connections that depend on label pod-template-hash, which a controller sets on the pods of Deployment shop/web";
    assert!(printed.contains(named), "{printed}");
}
