//! Objects of files that `-f` names.

use std::fs;

use tempfile::TempDir;

use super::{CANNOT_TELL, DIFFERENT, NAMESPACE, SAME, deployment};
use crate::command;
use crate::objects::{policy, service};

/// Runs `diff --manifests`, with the objects of `-f`.
fn applied(present: &[&str], change: &str, arguments: &[&str]) -> (i32, String) {
    let folder = TempDir::new().unwrap();
    let (all, file) = (folder.path().join("all"), folder.path().join("change.yaml"));
    fs::create_dir(&all).unwrap();
    fs::write(all.join("all.yaml"), present.join("\n---\n")).unwrap();
    fs::write(&file, change).unwrap();
    let mut process = command::plugin(&["diff", "--manifests"]);
    command::run(process.arg(all).arg("-f").arg(file).args(arguments))
}

#[test]
fn an_applied_service_replaces_the_former_one_in_the_namespace_of_n_too() {
    let (cart, web) = (deployment("cart", ""), deployment("web", ""));
    let rule = policy("web", "ingress: [{from: [{podSelector: {}}], ports: [{port: 8080}]}]");
    let front = service("selector: {app: web}, ports: [{port: 80, targetPort: 8080}]");
    let named = service("type: ExternalName, externalName: web.example.com, ports: [{port: 80}]");
    let wrong = front.replace("targetPort: 8080", "targetPort: 9090");
    let with = |service| [NAMESPACE, &cart, &web, &rule, service];
    for text in [wrong.clone(), wrong.replace("namespace: shop, ", "")] {
        let (status, text) = applied(&with(&front), &text, &["-n", "shop"]);
        assert_eq!(status, DIFFERENT, "{text}");
        assert!(text.contains("shop/cart, shop/web -> svc/shop/web: loses TCP 80"), "{text}");
    }
    let (status, text) = applied(&with(&front), &named, &[]);
    assert_eq!(status, CANNOT_TELL, "{text}");
    assert!(text.contains("connections to Service shop/web"), "{text}");
    // No pod had connections by the name that it could lose.
    let (status, text) = applied(&with(&named), &front, &[]);
    assert_eq!(status, SAME, "{text}");
    let (status, text) = applied(&with(&front), &front, &["--delete"]);
    assert_eq!(status, CANNOT_TELL, "{text}");
    assert!(text.contains("connections to Service shop/web: it is gone"), "{text}");
}

/// Outside of CI, users often mean the objects of a cluster.
#[test]
fn a_test_without_a_configured_cluster_is_reported() {
    let (cart, web) = (deployment("cart", ""), deployment("web", ""));
    let folder = TempDir::new().unwrap();
    let [assertions, objects] =
        ["assertions.yaml", "objects.yaml"].map(|name| folder.path().join(name));
    let assertion = "assertions:\n- {from: shop/cart, to: shop/web, port: 8080, expect: allow}\n";
    fs::write(&assertions, assertion).unwrap();
    fs::write(&objects, [NAMESPACE, &cart, &web].join("\n---\n")).unwrap();
    let mut process = command::plugin(&["test", "-f"]);
    let output = process.arg(assertions).arg("-f").arg(objects).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(SAME), "{text}");
    assert_eq!(text, "netpold: no cluster is configured: judged by the objects of -f alone\n");
}
