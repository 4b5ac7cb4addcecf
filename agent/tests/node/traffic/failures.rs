//! Failures, and netpold's reports and reactions.

use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use netpold_testbed::cluster::{ENFORCED, TestCluster, allow_from, binary, isolate, remount};
use netpold_testbed::{Cni, KillOnDrop, Unmount, require_root, without_twins};
use nix::sys::signal::Signal;

use crate::traffic::kernel;

fn guarded() -> TestCluster {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.policy("server", allow_from("server", "friend")).enforce();
    cluster
}

/// Returns a `netpold run` command in the node's namespace, with a control socket of its own.
fn second(cluster: &TestCluster, bpffs: &Path) -> Command {
    let mut command = cluster.nodes[0].command(binary()).unwrap();
    command.args(["run", "--node-name", "n1", "--manifests"]).arg(cluster.manifests.directory());
    command.arg("--bpffs").arg(bpffs);
    command.arg("--socket").arg(cluster.directory.path().join("second.sock"));
    command.arg("--state").arg(cluster.directory.path().join("state"));
    without_twins(&mut command);
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn refused(output: &Output, message: &str) {
    let said = stderr(output);
    assert!(said.contains(message), "{message:?} is not in {said:?}");
    assert_eq!(output.status.code(), Some(1), "{said}");
}

#[test]
fn two_agents_on_one_pin_root() {
    require_root!();
    let mut cluster = guarded();
    let output = second(&cluster, &cluster.agents[0].bpffs()).output().unwrap();
    refused(&output, "another netpold agent is running on this pin root; nothing was changed");
    cluster.policy("stranger", allow_from("server", "stranger")).enforce();
    cluster.reaches("stranger", "server");
    cluster.without_policy("stranger").enforce();
    cluster.denied("stranger", "server");
}

#[test]
fn a_broken_manifest_keeps_the_last_good_state() {
    require_root!();
    let mut cluster = guarded();
    let broken = "{\"apiVersion\": \"v1\",
\"kind\": ] }
";
    cluster.manifests.write("state.json", broken).unwrap();
    let names =
        |status: &serde_json::Value| status["source"]["problems"][0]["file"] == "state.json";
    cluster.agents[0].wait_for("aware of the problem", ENFORCED, names).unwrap();
    let output = cluster.agents[0].command(&["status"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("state.json:1: mismatched bracket"), "{text}");
    assert!(
        cluster.agents[0].log().contains("state.json:1: mismatched bracket"),
        "{}",
        cluster.agents[0].log()
    );
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    cluster.policy("server", allow_from("server", "stranger")).enforce();
    cluster.reaches("stranger", "server");
    let status = cluster.agents[0].status().unwrap();
    assert_eq!(status["source"]["problems"].as_array().map(Vec::len), Some(0), "{status}");
}

/// Returns a policy with ingress from more networks than fit into the tables without growth.
pub(crate) fn from_many() -> serde_json::Value {
    let cidrs = (0..70).flat_map(|x| (0..=255).map(move |y| format!("11.{x}.{y}.1/32")));
    let peers: Vec<_> =
        cidrs.map(|cidr| serde_json::json!({ "ipBlock": { "cidr": cidr } })).collect();
    serde_json::json!({
        "podSelector": { "matchLabels": { "app": "server" } },
        "ingress": [{ "from": peers }],
    })
}

/// A pod that is created while updates fail is named, and enforced once they succeed.
#[test]
fn updates_that_fail_for_a_while() {
    require_root!();
    let mut cluster = guarded();
    let pins = cluster.agents[0].bpffs();
    remount(&pins, "ro");
    cluster.add(0, "late");
    cluster.policy("late", isolate("late", &["Ingress", "Egress"])).policy("many", from_many());
    cluster.write();
    let named = |status: &serde_json::Value| {
        let problems = status["problems"].to_string();
        problems
            .contains("cannot compile large policies and Services, will retry: cannot create the")
            && problems.contains("attached, but not pinned, so it ends with the agent")
    };
    cluster.agents[0].wait_for("aware of the problems", ENFORCED, named).unwrap();
    // Small policies and the new pod do not wait.
    cluster.denied("friend", "late");
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    remount(&pins, "rw");
    cluster.wait();
    cluster.reaches("friend", "server");
    cluster.denied("friend", "late");
    let fine =
        |status: &serde_json::Value| status["problems"].as_array().is_some_and(Vec::is_empty);
    cluster.agents[0].wait_for("without a problem", ENFORCED, fine).unwrap();
}

/// Drops capabilities, as for root in a container without them.
fn without_capabilities(command: &mut Command, which: Range<libc::c_int>) -> &mut Command {
    let drop_all = move || {
        for capability in which.clone() {
            // SAFETY: integer arguments; the kernel rejects numbers beyond the last capability.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        }
        Ok(())
    };
    // SAFETY: the closure only makes prctl system calls, which are async-signal-safe.
    unsafe { command.pre_exec(drop_all) }
}

const CAP_SYS_ADMIN: libc::c_int = 21;

#[test]
fn without_privileges() {
    require_root!();
    let mut cluster = guarded();
    cluster.agents[0].end(Signal::SIGTERM);
    let pins = cluster.agents[0].bpffs();
    let output = without_capabilities(&mut second(&cluster, &pins), 0..64).output().unwrap();
    refused(&output, "missing privileges: CAP_BPF (maps and programs), CAP_NET_ADMIN (");
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

#[test]
fn without_bpffs() {
    require_root!();
    let cluster = TestCluster::one(Cni::Ptp);
    let elsewhere = cluster.directory.path().join("bpf");
    let mut command = second(&cluster, &elsewhere);
    without_capabilities(&mut command, CAP_SYS_ADMIN..CAP_SYS_ADMIN + 1);
    let output = command.output().unwrap();
    refused(&output, "not on a BPF file system, and mounting one there failed: EPERM");
    assert!(stderr(&output).contains("mount it beforehand: mount -t bpf bpf "));
    assert!(stderr(&output).contains("install with agent.mountBpffs=true"));
}

/// The agent keeps trying, since a lack of memory may be the reason, and reports the failure at once.
#[test]
fn without_ebpf() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp);
    cluster.write();
    let elsewhere = cluster.directory.path().join("bpf");
    let _mounted = Unmount(&elsewhere);
    let mut command = second(&cluster, &elsewhere);
    kernel::without_bpf(&mut command);
    let mut agent = KillOnDrop(command.stderr(Stdio::piped()).spawn().unwrap());
    let log = BufReader::new(agent.0.stderr.take().unwrap());
    let told = log.lines().map_while(Result::ok).find(|line| line.contains("ERROR"));
    let told = told.expect("an error is logged");
    assert!(told.contains("cannot create the eBPF maps"), "{told}");
    assert!(told.contains("kernel 5.12 or later"), "{told}");
}

/// A kernel built without BTF is refused, with the reason.
#[test]
fn without_btf() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp);
    cluster.write();
    let elsewhere = cluster.directory.path().join("bpf");
    let _mounted = Unmount(&elsewhere);
    let mut command = second(&cluster, &elsewhere);
    kernel::without_btf(&mut command);
    let output = command.output().unwrap();
    refused(&output, "has no BTF (no /sys/kernel/btf/vmlinux, or BPF_BTF_LOAD is refused)");
}
