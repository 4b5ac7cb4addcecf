//! Completion of names of a live cluster, through the protocols of shells and kubectl.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use netpold_testbed::ApiServer;
use serde_json::json;
use tempfile::TempDir;

use super::{VIEW, user};
use crate::apiserver::world::binary;

/// Returns the candidates for the last word, requested in bash's way.
fn offered(server: &ApiServer, kubeconfig: &Path, words: &[&str]) -> Vec<String> {
    let mut command = Command::new(binary());
    command.args(["--", "netpold"]).args(words).env_clear();
    command.env("NETPOLD_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    command.env("NETPOLD_KUBECONFIG", kubeconfig);
    let output = server.inside(|| command.output()).unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

pub(super) fn names_of_the_cluster(server: &ApiServer) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "bank", "name": "db" },
        "spec": { "ports": [{ "port": 80 }] },
    });
    server.apply(&service.to_string()).unwrap();
    let admin = server.admin();
    let ask = |words: &[&str]| offered(server, &admin, words);
    assert_eq!(ask(&["explain", "--from", "sh"]), ["shop/"]);
    assert_eq!(ask(&["explain", "--from", "shop/"]), ["shop/cart", "shop/web"]);
    assert_eq!(ask(&["explain", "--from", "shop/w"]), ["shop/web"]);
    assert_eq!(ask(&["explain", "--to=bank/"]), ["--to=bank/db"]);
    assert_eq!(ask(&["explain", "--to", "s"]), ["shop/", "svc/"]);
    assert_eq!(ask(&["explain", "--to", "svc/b"]), ["svc/bank/"]);
    assert_eq!(ask(&["explain", "--to", "svc/bank/"]), ["svc/bank/db"]);
    assert_eq!(ask(&["explain", "-n", "ban"]), ["bank"]);
    assert_eq!(ask(&["explain", "-n", "shop", "--from", "w"]), ["web"], "of the namespace");
    assert_eq!(ask(&["flows", "-n", "shop", "--pod", ""]), ["cart", "web"]);
    assert_eq!(ask(&["observe", "--pod", "bank/"]), ["bank/db"]);
    let kubectl = TempDir::new().unwrap();
    let hook = kubectl.path().join("kubectl_complete-netpold");
    symlink(binary(), &hook).unwrap();
    let of_kubectl = |words: &[&str]| {
        let mut command = Command::new(&hook);
        command.args(words).env_clear().env("KUBECONFIG", &admin);
        String::from_utf8(server.inside(|| command.output()).unwrap().unwrap().stdout).unwrap()
    };
    assert_eq!(of_kubectl(&["explain", "--from", "ban"]), "bank/\n:6\n");
    assert_eq!(of_kubectl(&["explain", "--from", "bank/"]), "bank/db\n:4\n");

    // A user with `view` in one namespace gets candidates of that namespace only.
    let eve = user(server, "eve", &[(VIEW, "shop")]);
    let of_eve = |words: &[&str]| offered(server, &eve, words);
    assert_eq!(of_eve(&["explain", "-n", "shop", "--from", "s"]), ["shop/", "svc/"]);
    assert_eq!(of_eve(&["explain", "--from", "shop/"]), ["shop/cart", "shop/web"]);
    assert_eq!(of_eve(&["explain", "--from", "bank/"]), [""; 0]);

    // Completion gives up on an API server that does not answer.
    server.freeze();
    let began = Instant::now();
    let silent = ask(&["explain", "--from", "shop/"]);
    let waited = began.elapsed();
    server.thaw();
    assert_eq!(silent, [""; 0]);
    assert!(waited >= Duration::from_secs(1), "it was asked: {waited:?}");
    assert!(waited < Duration::from_secs(4), "{waited:?}");
    assert_eq!(offered(server, Path::new("/none"), &["explain", "--from", "s"]), [""; 0]);
}
