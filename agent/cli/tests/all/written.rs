//! Objects as people write them: without a namespace, with a generated name, with a part that cannot be decoded, and on a
//! pipe.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::objects::folder;

const ALLOWED: i32 = 0;
const DENIED: i32 = 1;
const CANNOT_TELL: i32 = 2;

const NAMESPACE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";
const ASK: [&str; 6] = ["--from", "api", "--to", "web", "--port", "80"];
const SERVICE: &str = "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: \
                       [{port: 80}]}}";

/// A workload without a namespace.
fn deployment(name: &str) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: {name}}}, spec: {{template: {{metadata: {{labels: \
         {{app: {name}}}}}, spec: {{containers: [{{name: c}}]}}}}}}}}"
    )
}

/// A policy with a generated name, without a namespace.
fn generated(spec: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{generateName: web-}}, spec: {{podSelector: \
         {{matchLabels: {{app: web}}}}, {spec}}}}}"
    )
}

/// Runs a command about objects in namespace `shop`. Returns its exit status and its output.
fn netpold(command: &str, objects: &[&str], arguments: &[&str]) -> (i32, String) {
    let folder = folder(objects);
    let mut process = Command::new(env!("CARGO_BIN_EXE_kubectl-netpold"));
    process.arg(command).arg("--manifests").arg(folder.path()).args(["-n", "shop"]);
    let output = process.args(arguments).env_clear().output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[track_caller]
fn expect(
    command: &str,
    objects: &[&str],
    arguments: &[&str],
    (status, parts): (i32, &[&str]),
) -> String {
    let (found, text) = netpold(command, objects, arguments);
    assert_eq!(found, status, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    text
}

/// Writes a file of assertions: connections from `api` that are allowed.
fn assertions(folder: &Path, to: &[&str]) -> String {
    let items = to.iter().map(|to| format!("- {{from: api, to: {to}, port: 80, expect: allow}}\n"));
    let file = folder.join("assertions.yaml");
    fs::write(&file, format!("assertions:\n{}", items.collect::<String>())).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Two policies with one `generateName` are two policies.
#[test]
fn a_policy_with_a_generated_name_is_in_force() {
    let [web, api] = ["web", "api"].map(deployment);
    let (deny, allow) = (generated("policyTypes: [Ingress]"), generated("ingress: [{}]"));
    let named = "isolated by shop/web-*";
    expect("explain", &[NAMESPACE, &web, &api, &deny], &ASK, (DENIED, &[named]));
    let both = [NAMESPACE, &web, &api, &deny, &allow];
    let text = expect("explain", &both, &ASK, (ALLOWED, &[named]));
    assert!(!text.contains("twice"), "{text}");
    let folder = TempDir::new().unwrap();
    let file = assertions(folder.path(), &["web"]);
    expect("test", &both, &["-f", &file], (0, &["1 passed"]));
    let change = folder.path().join("change.yaml");
    fs::write(&change, &deny).unwrap();
    let begins = "ISOLATED: shop/web: shop/web-*";
    let file = change.to_str().unwrap();
    expect("diff", &[NAMESPACE, &web, &api], &["-f", file], (1, &[begins]));
    let (_, text) = netpold("doctor", &both, &[]);
    assert!(!text.contains("cannot be"), "{text}");
}

/// Objects and their details belong to the namespace of `-n`, in each command.
#[test]
fn objects_without_a_namespace_belong_to_the_one_of_the_flag() {
    let [web, api] = ["web", "api"].map(deployment);
    let objects = [NAMESPACE, &web, &api, SERVICE];
    let to_service = ["--from", "api", "--to", "svc/shop/web", "--port", "80"];
    let backend = "backend pod shop/web port 80: allow";
    expect("explain", &objects, &to_service, (ALLOWED, &[backend]));
    let folder = TempDir::new().unwrap();
    let file = assertions(folder.path(), &["svc/shop/web", "web"]);
    expect("test", &objects, &["-f", &file], (0, &["2 passed"]));
    // Also objects in the assertions' file.
    let text = [fs::read_to_string(&file).unwrap(), SERVICE.to_owned()].join("---\n");
    fs::write(&file, text).unwrap();
    expect("test", &objects[..3], &["-f", &file], (0, &["2 passed"]));
    let narrow = generated("policyTypes: [Ingress], ingress: [{ports: [{port: 80}]}]");
    let objects =
        [NAMESPACE, &web, &SERVICE.replace("port: 80", "port: 80, targetPort: 8080"), &narrow];
    let place = "NetworkPolicy shop/web-*";
    let service = "Service shop/web";
    expect("doctor", &objects, &[], (1, &["port-of-the-service", place, service]));
}

/// No answer is given if it may depend on an object that cannot be decoded; all other answers stay.
#[test]
fn an_object_that_cannot_be_decoded_leaves_answers_open() {
    let [web, api, other] = ["web", "api", "other"].map(deployment);
    let labels = web.replace("{app: web}", "{app: 1}");
    let deny = generated("policyTypes: [Ingress]");
    let reason = "cannot tell: the answer may depend on an object that cannot be decoded";
    let named = "Deployment shop/web: spec.template.metadata.labels.app: is integer `1`";
    let objects = [NAMESPACE, &labels, &api, &other, &deny, SERVICE];
    expect("explain", &objects, &ASK, (CANNOT_TELL, &[reason, named]));
    let patch =
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 3}}";
    let missing = "Deployment shop/web: spec.template: is missing";
    expect("explain", &[NAMESPACE, patch, &api, &deny], &ASK, (CANNOT_TELL, &[reason, missing]));
    let ask = |to| ["--from", "api", "--to", to, "--port", "80"];
    expect("explain", &objects, &ask("svc/shop/web"), (CANNOT_TELL, &[reason, named]));
    expect("explain", &objects, &ask("other"), (ALLOWED, &[]));
    expect("explain", &objects, &ask("192.0.2.1"), (ALLOWED, &[]));
    // The same holds for a sender to a Service.
    let from = ["--from", "web", "--to", "svc/shop/api", "--port", "80"];
    let service = SERVICE.replace("web", "api");
    let peer = "podSelector: {matchLabels: {app: api}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]";
    let by_label =
        deny.replace("podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]", peer);
    let sent = [NAMESPACE, &labels, &api, &by_label, &service];
    expect("explain", &sent, &from, (CANNOT_TELL, &[reason, named]));
    // No policy distinguishes its pods from others.
    let all = deny.replace("{matchLabels: {app: web}}", "{}");
    expect("explain", &[NAMESPACE, &labels, &api, &all], &ASK, (DENIED, &[]));
    expect("explain", &[NAMESPACE, &labels, &api], &ASK, (ALLOWED, &[]));
    let folder = TempDir::new().unwrap();
    let file = assertions(folder.path(), &["web", "other"]);
    expect("test", &objects, &["-f", &file], (CANNOT_TELL, &["1 passed, 0 failed, 1 depends"]));
    // A pod, a Service or a node may have the address.
    let broken = "{apiVersion: v1, kind: KIND, metadata: {name: x, namespace: shop, labels: 7}}";
    for (kind, status) in [("Pod", CANNOT_TELL), ("Service", CANNOT_TELL), ("Node", CANNOT_TELL)] {
        let broken = broken.replace("KIND", kind);
        let objects = [NAMESPACE, &web, &api, &broken];
        expect("explain", &objects, &ask("192.0.2.1"), (status, &[reason]));
        expect("explain", &objects, &ask("web"), (ALLOWED, &[]));
    }
    let change = folder.path().join("change.yaml");
    fs::write(&change, &other).unwrap();
    let arguments = ["-f", change.to_str().unwrap()];
    expect("diff", &objects, &arguments, (CANNOT_TELL, &["not compared: ", named]));
    fs::write(&change, &labels).unwrap();
    expect("diff", &[NAMESPACE, &web, &api], &arguments, (CANNOT_TELL, &["not compared: ", named]));
    // The change corrects the object, so everything is compared.
    fs::write(&change, &web).unwrap();
    let (_, text) = netpold("diff", &objects, &arguments);
    assert!(!text.contains("not compared"), "{text}");
    expect("doctor", &objects, &[], (1, &["object-not-read", named]));
}

/// Namespaces have no label `name`, unless a user sets it.
#[test]
fn a_namespace_selected_by_a_label_that_it_lacks_is_named() {
    let [web, api] = ["web", "api"].map(deployment);
    let rule = |labels: &str| {
        generated(&format!(
            "ingress: [{{from: [{{namespaceSelector: {{matchLabels: {{{labels}}}}}}}]}}]"
        ))
    };
    let lead = "namespaces name=shop; Namespace shop has no label name, but kubernetes.io/metadata.name=shop";
    let by_name = rule("name: shop");
    expect("doctor", &[NAMESPACE, &web, &api, &by_name], &[], (1, &["warning: ", lead]));
    let labelled = NAMESPACE.replace("name: shop", "name: shop, labels: {name: shop}");
    expect("doctor", &[&labelled, &web, &api, &by_name], &[], (0, &["nothing found"]));
    let own = rule("kubernetes.io/metadata.name: shop");
    expect("doctor", &[NAMESPACE, &web, &api, &own], &[], (0, &["nothing found"]));
    // Another namespace, of another chart.
    let other = expect("doctor", &[NAMESPACE, &web, &rule("name: mon")], &[], (0, &["info: "]));
    assert!(!other.contains("has no label"), "{other}");
}

/// `-f <(helm template)`: a shell's pipe is read only once, for everything that a command needs.
#[test]
fn a_pipe_is_read_as_a_file() {
    let [web, api] = ["web", "api"].map(deployment);
    let folder = folder(&[NAMESPACE, &web, &api]);
    let deny = generated("policyTypes: [Ingress]");
    let foreign = "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: x}}";
    let change = [&deny, SERVICE, foreign].join("\n---\n");
    let assertion = "assertions: [{from: api, to: svc/shop/web, port: 80, expect: deny}]";
    let with_assertions = [&change, assertion].join("\n---\n");
    for (command, text, status, parts) in [
        ("diff", &change, 1, ["Service shop/web is new", "CiliumNetworkPolicy shop/x"]),
        ("test", &with_assertions, 0, ["1 passed", "CiliumNetworkPolicy shop/x"]),
    ] {
        let binary = env!("CARGO_BIN_EXE_kubectl-netpold");
        let directory = folder.path().display();
        let script = format!(
            "exec {binary} {command} -n shop --manifests {directory} -f <(printf %s \"$1\")"
        );
        let mut bash = Command::new("bash");
        let output = bash.args(["-c", &script, "bash", text]).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}
