//! Programs of other owners on the interfaces that netpold judges.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use netpold_testbed::cluster::{ENFORCED, MOMENT, PORT, TestCluster, allow_from, isolate};
use netpold_testbed::{Cni, ProbeProtocol, require_root, skip_before};
use serde_json::Value;

use crate::traffic::load;

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_OBJ_PIN: libc::c_int = 6;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
/// Flag that attaches a program in front of all others.
const BPF_F_BEFORE: u32 = 1 << 3;
const BPF_XDP: u32 = 37;
const XDP_PASS: i32 = 2;
const TCX_NEXT: i32 = -1;
const TCX_PASS: i32 = 0;
const TCX_DROP: i32 = 2;

/// Skips a test on a kernel without TCX.
fn without_tcx(test: &str, why: &dyn std::fmt::Display) {
    skip_before((6, 6), test, format_args!("no TCX here: {why:#}"));
}

/// Start of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct Load {
    program_type: u32,
    count: u32,
    instructions: u64,
    license: u64,
    rest: [u64; 4],
}

/// Start of `union bpf_attr` for `BPF_LINK_CREATE`.
#[repr(C)]
struct Create {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
    rest: [u64; 4],
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the attributes have the given length, and their buffers outlive the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of_val(attributes))
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Loads a program with a constant return value: `r0 = answer; exit`.
fn program(program_type: u32, answer: i32) -> io::Result<OwnedFd> {
    load(program_type, &[constant(0, answer), EXIT])
}

const EXIT: u64 = 0x95;

/// `register = value`
const fn constant(register: u64, value: i32) -> u64 {
    (value as u32 as u64) << 32 | register << 8 | 0xb7
}

fn load(program_type: u32, instructions: &[u64]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    bpf(
        BPF_PROG_LOAD,
        &Load {
            program_type,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            license: license.as_ptr() as u64,
            rest: [0; 4],
        },
    )
}

/// Pins a classifier with a constant return value.
pub(crate) fn pin(answer: i32, path: &Path) -> io::Result<()> {
    let program = program(BPF_PROG_TYPE_SCHED_CLS, answer)?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let pin: [u64; 3] = [path.as_ptr() as u64, program.as_raw_fd() as u64, 0];
    // The call returns 0, which is not a descriptor.
    // SAFETY: pathname, bpf_fd and file_flags; the path outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_PIN, &raw const pin, 24) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Attaches a program with a constant return value after all others for packets into the pod; detached on drop.
fn attach(cluster: &TestCluster, pod: &str, answer: i32) -> io::Result<OwnedFd> {
    attach_at(cluster, pod, (BPF_PROG_TYPE_SCHED_CLS, BPF_TCX_EGRESS), answer)
}

/// Attaches an XDP program that passes everything to the pod's egress; detached on drop.
pub(crate) fn attach_xdp(cluster: &TestCluster, pod: &str) -> io::Result<OwnedFd> {
    attach_at(cluster, pod, (BPF_PROG_TYPE_XDP, BPF_XDP), XDP_PASS)
}

fn attach_at(
    cluster: &TestCluster,
    pod: &str,
    (program_type, attach_type): (u32, u32),
    answer: i32,
) -> io::Result<OwnedFd> {
    link(cluster, pod, &program(program_type, answer)?, attach_type, 0)
}

/// Attaches a program at the host side of a pod's veth; detached on drop.
fn link(
    cluster: &TestCluster,
    pod: &str,
    program: &OwnedFd,
    attach_type: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let ifindex = cluster.pod(pod).host_ifindex();
    let program = program.as_raw_fd() as u32;
    let create = Create { program, ifindex, attach_type, flags, rest: [0; 4] };
    cluster.nodes[0].run(|| bpf(BPF_LINK_CREATE, &create)).unwrap()
}

/// Attaches a program that accepts everything in front of all others.
fn accept_first(cluster: &TestCluster, pod: &str, attach_type: u32) -> io::Result<OwnedFd> {
    let program = program(BPF_PROG_TYPE_SCHED_CLS, TCX_PASS)?;
    link(cluster, pod, &program, attach_type, BPF_F_BEFORE)
}

fn guarded() -> TestCluster {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.policy("server", allow_from("server", "friend"));
    cluster
}

#[test]
fn programs_of_others_still_run() {
    require_root!();
    let mut cluster = guarded();
    let before = match attach(&cluster, "server", TCX_DROP) {
        Ok(link) => link,
        Err(e) => return without_tcx("programs_of_others_still_run", &e),
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

/// Another owner's program, attached earlier than netpold's, accepts everything: netpold's program still runs first.
#[test]
fn programs_of_others_do_not_overrule() {
    require_root!();
    let mut cluster = guarded();
    let _link = match attach(&cluster, "server", TCX_PASS) {
        Ok(link) => link,
        Err(e) => return without_tcx("programs_of_others_do_not_overrule", &e),
    };
    cluster.enforce();
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
}

/// Checks that the readback restores a link that an operator unpinned.
#[test]
fn a_program_that_was_removed_by_hand_is_put_back() {
    require_root!();
    let mut cluster = guarded();
    cluster.enforce();
    cluster.denied("stranger", "server");
    let ifindex = cluster.pod("server").host_ifindex();
    let pin = cluster.agents[0].bpffs().join(format!("links/{ifindex}-ingress"));
    match std::fs::remove_file(&pin) {
        Ok(()) => {}
        Err(e) => return without_tcx("a_program_that_was_removed_by_hand_is_put_back", &e),
    }
    let repaired = |status: &Value| status["repairs"] == 1;
    cluster.agents[0].wait_for("repaired", Duration::from_mins(1), repaired).unwrap();
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
}

/// Returns a cluster with a readback every second; the default is ten seconds.
fn looked_after() -> TestCluster {
    let mut cluster = guarded();
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    cluster.policy("stranger", isolate("stranger", &["Egress"])).enforce();
    cluster
}

fn put_right(times: u64) -> impl FnMut(&Value) -> bool {
    move |status| status["repaired"]["order"] == times
}

#[test]
fn a_program_put_in_front_is_put_behind() {
    const TEST: &str = "a_program_put_in_front_is_put_behind";
    require_root!();
    let mut cluster = looked_after();
    let first = match accept_first(&cluster, "server", BPF_TCX_EGRESS) {
        Ok(link) => link,
        Err(e) => return without_tcx(TEST, &e),
    };
    cluster.agents[0].wait_for("first again", ENFORCED, put_right(1)).unwrap();
    let second = accept_first(&cluster, "stranger", BPF_TCX_INGRESS).unwrap();
    cluster.agents[0].wait_for("first again", ENFORCED, put_right(2)).unwrap();
    cluster.denied("stranger", "server");
    cluster.denied("stranger", "friend");
    cluster.reaches("friend", "server");
    let log = cluster.agents[0].log();
    assert!(log.contains("reordered programs: netpold's first"), "{log}");
    // A new agent keeps the order of the programs.
    cluster.restart(0);
    cluster.denied("stranger", "server");
    drop((first, second));
    cluster.denied("stranger", "server");
}

/// Checks that allowed traffic continues while the order of the programs changes.
#[test]
fn traffic_goes_on_while_the_order_is_put_right() {
    require_root!();
    let mut cluster = load::guarded(Cni::Ptp);
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    cluster.enforce();
    // TCX_NEXT makes no decision, so policy stays in force all the time.
    let observer = program(BPF_PROG_TYPE_SCHED_CLS, TCX_NEXT).unwrap();
    let links = std::cell::RefCell::new(Vec::new());
    let intrude = |cluster: &mut TestCluster| {
        let both = [("server", BPF_TCX_EGRESS), ("friend", BPF_TCX_INGRESS)];
        let put = |(pod, at)| link(cluster, pod, &observer, at, BPF_F_BEFORE).unwrap();
        links.borrow_mut().extend(both.map(put));
        cluster.agents[0].wait_for("first again", ENFORCED, put_right(2)).unwrap();
    };
    load::under_load(&mut cluster, &[&intrude]);
    cluster.denied("stranger", "server");
}

/// Two programs that insist on the first position would reorder forever: netpold stops after three repairs, and
/// reports the other program.
#[test]
fn who_insists_on_being_first_is_named() {
    const TEST: &str = "who_insists_on_being_first_is_named";
    require_root!();
    let mut cluster = looked_after();
    let mut last = None;
    for times in 1..=3 {
        last = match accept_first(&cluster, "server", BPF_TCX_EGRESS) {
            Ok(link) => Some(link),
            Err(e) => return without_tcx(TEST, &e),
        };
        cluster.agents[0].wait_for("first again", ENFORCED, put_right(times)).unwrap();
        cluster.denied("stranger", "server");
    }
    drop(last);
    let last = accept_first(&cluster, "server", BPF_TCX_EGRESS).unwrap();
    let named = |status: &Value| {
        let problems = status["problems"].to_string();
        problems.contains("in front of netpold's again, after 3 moves")
            && problems.contains("ingress")
    };
    let status = cluster.agents[0].wait_for("aware of it", ENFORCED, named).unwrap();
    assert_eq!(status["repaired"]["order"], 3, "{status}");
    drop(last);
    let settled = |status: &Value| status["problems"].as_array().is_some_and(Vec::is_empty);
    cluster.agents[0].wait_for("rid of it", ENFORCED, settled).unwrap();
    cluster.denied("stranger", "server");
}

/// Redirects packets to a pod from another device of the node, as some CNIs do.
#[test]
fn packets_past_the_programs_are_named() {
    const TEST: &str = "packets_past_the_programs_are_named";
    require_root!();
    let mut cluster = guarded();
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    cluster.enforce();
    cluster.reaches("friend", "server");
    std::thread::sleep(Duration::from_secs(3));
    let status = cluster.agents[0].status().unwrap();
    assert_eq!(status["problems"].as_array().map(Vec::len), Some(0), "{status}");
    let to = cluster.pod("server").host_ifindex();
    let from = cluster.pod("stranger").host_interface();
    let past = match cluster.nodes[0].redirect_peer(from, to) {
        Ok(past) => past,
        Err(e) => return without_tcx(TEST, &e),
    };
    let server = cluster.pod("server").ip4().unwrap();
    let stranger = cluster.pod("stranger");
    for _ in 0..5 {
        let _ = stranger.probe(ProbeProtocol::Udp, server, PORT, MOMENT);
    }
    let name = cluster.pod("server").host_interface().to_owned();
    let named = |status: &Value| {
        let problems = status["problems"].as_array().map_or(&[][..], Vec::as_slice);
        let mut texts = problems.iter().filter_map(Value::as_str);
        texts.any(|text| text.contains(&name) && text.contains("past its programs"))
    };
    cluster.agents[0].wait_for("aware of it", ENFORCED, named).unwrap();
    drop(past);
}

/// The kernel removes the programs of a deleted interface, which is not a removal by another owner.
#[test]
fn programs_of_interfaces_that_go_are_not_reported_as_gone() {
    require_root!();
    let mut cluster = load::guarded(Cni::Ptp);
    cluster.arguments = ["--readback", "1"].map(str::to_owned).into();
    cluster.enforce();
    for round in 0..30 {
        let names: Vec<String> = (0..3).map(|n| format!("short{round}-{n}")).collect();
        names.iter().for_each(|name| cluster.add(0, name));
        cluster.enforce();
        let pods: Vec<_> = names.iter().map(|name| cluster.take(name)).collect();
        // Deletes the interface at varying phases of a readback.
        std::thread::sleep(Duration::from_millis(37 * round % 1000));
        drop(pods);
    }
    cluster.enforce();
    std::thread::sleep(Duration::from_secs(3));
    let log = cluster.agents[0].log();
    assert!(!log.contains("restored program"), "{log}");
}
