//! Node with its chains and devices.

use std::fs;
use std::path::Path;

use netpold_testbed::{Cni, TestNode, require_root};

use super::{BINARY, doctor, places};

/// Examines a node with traces of other enforcers, and a node without.
#[test]
fn other_enforcers_on_a_node() {
    require_root!();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none");
    let bpffs = directory.path().join("bpf");
    let arguments = ["--socket", socket.to_str().unwrap(), "--bpffs", bpffs.to_str().unwrap()];
    let node = TestNode::new("doctor", Cni::Ptp, "10.9.1.0/24", "fd00:9:1::/64").unwrap();
    let (status, report) = doctor(&mut node.command(BINARY).unwrap(), &arguments);
    assert_eq!(status, 1);
    let clean = places(&report);
    assert_eq!(clean["agent"].len(), 1, "{report:?}");
    assert_eq!(clean["bpffs"], [bpffs.to_str().unwrap()]);
    assert!(!clean.contains_key("other-enforcer"), "{report:?}");
    assert!(!clean.contains_key("kernel"), "{report:?}");
    assert!(report.unknown.is_empty(), "{report:?}");

    let run = |program: &str, arguments: &[&str]| {
        let done = node.command(program).unwrap().args(arguments).output().unwrap();
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    };
    run("nft", &["add", "table", "inet", "kindnet-network-policies"]);
    run("iptables-nft", &["-N", "KUBE-POD-FW-ABCDEF"]);
    run("iptables-legacy", &["-N", "cali-FORWARD"]);
    run("ip6tables-legacy", &["-N", "CILIUM_FORWARD"]);
    run("ip6tables-legacy", &["-N", "MY-cali-FORWARD"]);
    run("ip", &["link", "add", "cilium_host", "type", "veth", "peer", "name", "other"]);
    let shown = node.command(BINARY).unwrap().arg("doctor").args(arguments).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/doctor.md");
    let page = fs::read_to_string(page).unwrap();
    let example =
        page.split("```\n").find(|block| block.starts_with("error: kube-router")).unwrap();
    assert!(shown.contains(example), "{shown}");
    run("ip", &["link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "ipvs1"]);
    let (_, report) = doctor(&mut node.command(BINARY).unwrap(), &arguments);
    assert_eq!(places(&report)["ipvs"], ["device kube-ipvs0"]);
    assert!(!clean.contains_key("ipvs"), "{clean:?}");
    let mut signs = places(&report)["other-enforcer"].clone();
    signs.sort_unstable();
    assert_eq!(
        signs,
        [
            "chain CILIUM_FORWARD of ip6tables table filter",
            "chain KUBE-POD-FW-ABCDEF of nftables table ip filter",
            "chain cali-FORWARD of iptables table filter",
            "device cilium_host",
            "nftables table inet kindnet-network-policies",
        ],
        "{report:?}"
    );
    let whose = report.findings.iter().filter(|finding| finding.check == "other-enforcer");
    assert_eq!(whose.count(), 4, "Calico, Cilium, kindnet, kube-router");
    assert!(Path::new(&bpffs).read_dir().is_err(), "nothing was made");
}
