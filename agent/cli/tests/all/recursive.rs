//! `-R`: objects of subdirectories.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

const NAMESPACE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";
const DENY: &str = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: deny}, \
                    spec: {podSelector: {}, policyTypes: [Ingress]}}";
/// A policy that no API server accepts; it isolates the pods nevertheless.
const BROKEN: &str = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: broken}, \
                      spec: {podSelector: {}, ingress: 7}}";

fn deployment(name: &str) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{namespace: shop, name: {name}}}, spec: {{template: \
         {{metadata: {{labels: {{app: {name}}}}}, spec: {{containers: [{{name: c}}]}}}}}}}}"
    )
}

/// Writes files and creates the directories in their paths.
fn directory(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn run(arguments: &[&str]) -> (i32, String) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_kubectl-netpold"));
    let output = process.args(arguments).env_clear().output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn explain(folder: &Path) -> (i32, String) {
    let folder = folder.to_str().unwrap();
    run(&[
        "explain",
        "-R",
        "--manifests",
        folder,
        "--from",
        "shop/cart",
        "--to",
        "shop/web",
        "--port",
        "80",
    ])
}

#[test]
fn objects_of_subdirectories_count() {
    let (cart, web) = (deployment("cart"), deployment("web"));
    let open =
        directory(&[("a.yaml", NAMESPACE), ("apps/cart.yaml", &cart), ("apps/more/web.yml", &web)]);
    let closed = directory(&[
        ("a.yaml", NAMESPACE),
        ("apps/cart.yaml", &cart),
        ("apps/more/web.yml", &web),
        ("policies/x/y/z/deny.json", DENY),
    ]);
    assert_eq!(explain(open.path()).0, 0, "{}", explain(open.path()).1);
    assert_eq!(explain(closed.path()).0, 1, "{}", explain(closed.path()).1);
    let [open, closed] = [&open, &closed].map(|it| it.path().to_str().unwrap());
    let (status, text) = run(&["diff", "-R", "--from", open, "--to", closed]);
    assert!(status == 1 && text.contains("ISOLATED: shop/web"), "{text}");
    let policies = format!("{closed}/policies");
    let (status, text) = run(&["diff", "--recursive", "--manifests", open, "-f", &policies]);
    assert!(status == 1 && text.contains("ISOLATED: shop/web"), "{text}");
    let (status, text) = run(&["doctor", "-R", "--manifests", closed]);
    assert!(!text.contains("subdirector"), "{status}: {text}");
    let assertions = directory(&[(
        "a.yaml",
        "assertions: [{from: {namespace: shop, labels: {app: cart}}, to: shop/web, port: 80, expect: deny}]",
    )]);
    let file = assertions.path().join("a.yaml");
    let file = file.to_str().unwrap();
    assert_eq!(run(&["test", "-R", "-f", file, "--manifests", closed]).0, 0);
    assert_eq!(run(&["test", "-R", "-f", file, "--manifests", open]).0, 1);
    // Without the flag, `doctor` names the subdirectories.
    let (_, text) = run(&["doctor", "--manifests", closed]);
    assert!(
        text.contains(
            "subdirectories not read: apps (2 files), policies (1 file); -R reads them, too"
        ),
        "{text}"
    );
}

/// A bad object or document in one file does not affect the others, and an object defined in two files is named.
#[test]
fn bad_objects_of_subdirectories_are_named_and_void_nothing() {
    let (cart, web) = (deployment("cart"), deployment("web"));
    let folder = directory(&[
        ("a.yaml", NAMESPACE),
        ("apps/cart.yaml", &cart),
        ("apps/web.yaml", &web),
        ("policies/broken.yaml", BROKEN),
        ("policies/deny.yaml", DENY),
        ("policies/again/deny.yaml", DENY),
    ]);
    let (status, text) = explain(folder.path());
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("policies/broken.yaml"), "{text}");
    let (_, text) = run(&["doctor", "-R", "--manifests", folder.path().to_str().unwrap()]);
    assert!(text.contains("defined twice") && text.contains("policies/deny.yaml"), "{text}");
    fs::write(folder.path().join("policies/unreadable.yaml"), "{{ unclosed").unwrap();
    let (status, text) = explain(folder.path());
    assert!(
        status == 2
            && text.contains("may depend on a document that cannot be read: ")
            && text.contains("policies/unreadable.yaml:1: "),
        "{status}: {text}"
    );
}

#[test]
fn links_to_directories_are_not_followed_and_named_if_they_lead_elsewhere() {
    let (cart, web) = (deployment("cart"), deployment("web"));
    let elsewhere = directory(&[("deny.yaml", DENY)]);
    let folder =
        directory(&[("a.yaml", NAMESPACE), ("apps/cart.yaml", &cart), ("apps/web.yaml", &web)]);
    symlink(folder.path(), folder.path().join("apps/loop")).unwrap();
    symlink(folder.path().join("apps"), folder.path().join("same")).unwrap();
    let (status, text) = explain(folder.path());
    assert!(status == 0 && !text.contains("not read"), "{status}: {text}");
    symlink(elsewhere.path(), folder.path().join("apps/policies")).unwrap();
    let (_, text) = explain(folder.path());
    let named = "link not read: apps/policies (1 file); links to directories are not followed";
    assert!(text.contains(named), "{text}");
    // A link to a file is followed.
    symlink(elsewhere.path().join("deny.yaml"), folder.path().join("apps/deny.yaml")).unwrap();
    assert_eq!(explain(folder.path()).0, 1);
}

#[test]
fn kustomizations_in_subdirectories_are_refused_by_name() {
    let folder =
        directory(&[("a.yaml", NAMESPACE), ("overlays/prod/kustomization.yaml", "resources: []")]);
    let path = folder.path().to_str().unwrap();
    let refused = format!("{path}/overlays/prod: kustomization.yaml is not rendered");
    for arguments in [
        &["explain", "-R", "--manifests", path, "--from", "a/b", "--to", "a/c", "--port", "1"][..],
        &["doctor", "-R", "--manifests", path],
        &["test", "-R", "-f", "-", "--manifests", path],
        &["diff", "-R", "--from", path, "--to", path],
    ] {
        let (status, text) = run(arguments);
        assert!(status == 2 && text.contains(&refused), "{arguments:?}: {status}: {text}");
    }
}
