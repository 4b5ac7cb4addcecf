//! What goes wrong, and what netpold says and does then.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use netpold_testbed::{Cni, require_root, without_twins};
use nix::sys::signal::Signal;

use crate::cluster::{Cluster, ENFORCED, allow_from, binary};

fn guarded() -> Cluster {
    let mut cluster = Cluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.policy("server", allow_from("server", "friend")).enforce();
    cluster
}

/// `netpold run` in the node's namespace, with a control socket of its own.
fn second(cluster: &Cluster, bpffs: &Path) -> Command {
    let mut command = cluster.nodes[0].command(binary()).unwrap();
    command.args(["run", "--node-name", "n1", "--manifests"]).arg(cluster.manifests.directory());
    command.arg("--bpffs").arg(bpffs);
    command.arg("--socket").arg(cluster.directory.path().join("second.sock"));
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
    if !require_root("two_agents_on_one_pin_root") {
        return;
    }
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
    if !require_root("a_broken_manifest_keeps_the_last_good_state") {
        return;
    }
    let mut cluster = guarded();
    cluster
        .manifests
        .write("state.json", "{\"apiVersion\": \"v1\",\n\"kind\": \"List\", oops")
        .unwrap();
    let names =
        |status: &serde_json::Value| status["source"]["problems"][0]["file"] == "state.json";
    cluster.agents[0].wait_for("aware of the problem", ENFORCED, names).unwrap();
    let mut status = Command::new(binary());
    let output = without_twins(&mut status)
        .args(["status", "--socket"])
        .arg(cluster.agents[0].socket())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("state.json:2: "), "{text}");
    assert!(cluster.agents[0].log().contains("state.json:2: "), "{}", cluster.agents[0].log());
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    cluster.policy("server", allow_from("server", "stranger")).enforce();
    cluster.reaches("stranger", "server");
    let status = cluster.agents[0].status().unwrap();
    assert_eq!(status["source"]["problems"].as_array().map(Vec::len), Some(0), "{status}");
}

/// As root of a container that was given no capability.
fn without_capabilities(command: &mut Command) -> &mut Command {
    let drop_all = || {
        // SAFETY: prctl with integer arguments; numbers beyond the last capability are refused.
        (0..64).for_each(|capability| {
            _ = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }
        });
        Ok(())
    };
    // SAFETY: the closure only makes prctl system calls, which are async-signal-safe.
    unsafe { command.pre_exec(drop_all) }
}

#[test]
fn without_privileges() {
    if !require_root("without_privileges") {
        return;
    }
    let mut cluster = guarded();
    let elsewhere = cluster.directory.path().join("bpf");
    let output = without_capabilities(&mut second(&cluster, &elsewhere)).output().unwrap();
    refused(&output, "not on a BPF file system, and mounting one there failed: EPERM");
    assert!(stderr(&output).contains("Run as root with CAP_SYS_ADMIN"), "{}", stderr(&output));

    cluster.agents[0].end(Signal::SIGTERM);
    let pins = cluster.agents[0].bpffs();
    let output = without_capabilities(&mut second(&cluster, &pins)).output().unwrap();
    refused(&output, "CAP_BPF");
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

/// What a kernel without the system call answers.
fn without_bpf(command: &mut Command) -> &mut Command {
    const DENY: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_bpf as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, DENY),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = move || {
        let mut program = program;
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: the pointers are to locals of the right types.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                    == 0
        };
        done.then_some(()).ok_or_else(std::io::Error::last_os_error)
    };
    // SAFETY: the closure only makes prctl system calls, which are async-signal-safe.
    unsafe { command.pre_exec(filter) }
}

#[test]
fn without_ebpf() {
    if !require_root("without_ebpf") {
        return;
    }
    let cluster = guarded();
    let elsewhere = cluster.directory.path().join("bpf");
    let mounted = Mounted(&elsewhere);
    let mut command = second(&cluster, &elsewhere);
    command.stderr(std::process::Stdio::piped());
    let mut child = without_bpf(&mut command).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let said = stderr(&output);
    assert!(said.contains("kernel 5.15 or later"), "{said}");
    drop(mounted);
}

/// What an agent that was killed has left mounted.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}
