//! Other programs on the interfaces that netpold judges.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use netpold_testbed::{Cni, require_root};

use crate::cluster::{Cluster, allow_from};

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_TCX_EGRESS: u32 = 47;
const BPF_XDP: u32 = 37;
const XDP_PASS: i32 = 2;
const TCX_PASS: i32 = 0;
const TCX_DROP: i32 = 2;

/// The beginning of `union bpf_attr` for BPF_PROG_LOAD.
#[repr(C)]
struct Load {
    program_type: u32,
    count: u32,
    instructions: u64,
    license: u64,
    rest: [u64; 4],
}

/// The same for BPF_LINK_CREATE.
#[repr(C)]
struct Create {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
    rest: [u64; 4],
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the attributes are as long as is said, and what they point to outlives the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of_val(attributes))
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor of ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// A program that always gives the same answer: `r0 = answer; exit`.
fn program(program_type: u32, answer: i32) -> io::Result<OwnedFd> {
    let instructions: [u64; 2] = [(answer as u32 as u64) << 32 | 0xb7, 0x95];
    let license = c"GPL";
    bpf(
        BPF_PROG_LOAD,
        &Load {
            program_type,
            count: 2,
            instructions: instructions.as_ptr() as u64,
            license: license.as_ptr() as u64,
            rest: [0; 4],
        },
    )
}

/// Puts such a program at the end of what sees packets into the pod; dropped, it is gone.
fn attach(cluster: &Cluster, pod: &str, answer: i32) -> io::Result<OwnedFd> {
    attach_at(cluster, pod, (BPF_PROG_TYPE_SCHED_CLS, BPF_TCX_EGRESS), answer)
}

/// Puts an XDP program that passes everything at what the pod sends; dropped, it is gone.
pub(crate) fn attach_xdp(cluster: &Cluster, pod: &str) -> io::Result<OwnedFd> {
    attach_at(cluster, pod, (BPF_PROG_TYPE_XDP, BPF_XDP), XDP_PASS)
}

fn attach_at(
    cluster: &Cluster,
    pod: &str,
    (program_type, attach_type): (u32, u32),
    answer: i32,
) -> io::Result<OwnedFd> {
    let ifindex = cluster.pod(pod).host_ifindex();
    let create = || {
        let program = program(program_type, answer)?;
        let program = program.as_raw_fd() as u32;
        bpf(BPF_LINK_CREATE, &Create { program, ifindex, attach_type, flags: 0, rest: [0; 4] })
    };
    cluster.nodes[0].run(create).unwrap()
}

fn guarded() -> Cluster {
    let mut cluster = Cluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.policy("server", allow_from("server", "friend"));
    cluster
}

#[test]
fn programs_of_others_still_run() {
    if !require_root("programs_of_others_still_run") {
        return;
    }
    let mut cluster = guarded();
    let before = match attach(&cluster, "server", TCX_DROP) {
        Ok(link) => link,
        Err(e) => return eprintln!("SKIPPED programs_of_others_still_run: no TCX here: {e}"),
    };
    cluster.enforce();
    cluster.denied("friend", "server");
    drop(before);
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    let after = attach(&cluster, "server", TCX_DROP).unwrap();
    cluster.denied("friend", "server");
    drop(after);
    cluster.reaches("friend", "server");
}

/// One that lets everything pass was there first; netpold's word comes before its.
#[test]
fn programs_of_others_do_not_overrule() {
    if !require_root("programs_of_others_do_not_overrule") {
        return;
    }
    let mut cluster = guarded();
    let _link = match attach(&cluster, "server", TCX_PASS) {
        Ok(link) => link,
        Err(e) => return eprintln!("SKIPPED programs_of_others_do_not_overrule: no TCX: {e}"),
    };
    cluster.enforce();
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
}

/// A link that somebody unpins by hand is put back within the interval of the look-over.
#[test]
fn a_program_that_was_removed_by_hand_is_put_back() {
    if !require_root("a_program_that_was_removed_by_hand_is_put_back") {
        return;
    }
    let mut cluster = guarded();
    cluster.enforce();
    cluster.denied("stranger", "server");
    let ifindex = cluster.pod("server").host_ifindex();
    let pin = cluster.agents[0].bpffs().join(format!("links/{ifindex}-ingress"));
    match std::fs::remove_file(&pin) {
        Ok(()) => {}
        Err(e) => return eprintln!("SKIPPED a program removed by hand: no TCX link here: {e}"),
    }
    let repaired = |status: &serde_json::Value| status["repairs"] == 1;
    cluster.agents[0].wait_for("repaired", Duration::from_secs(60), repaired).unwrap();
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
}
