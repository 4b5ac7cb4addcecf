//! System calls that the kernel refuses for a while: no memory, a full map, lost privileges.
//!
//! seccomp holds each bpf(2) call of the agent, and the test answers it (`SECCOMP_RET_USER_NOTIF`; continuing a call
//! needs kernel 5.5). So the calls of one command fail while the agent runs, and later succeed again.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{ENFORCED, TestCluster, allow_from, isolate};
use netpold_testbed::{Cni, require_root};
use nix::poll::{PollFd, PollFlags, poll};
use serde_json::Value;

use crate::traffic::failures::from_many;
use crate::traffic::kernel::NOTIFY_OF_BPF;

const MAP_CREATE: u32 = 0;
const MAP_UPDATE_ELEM: u32 = 2;
const PROG_LOAD: u32 = 5;
const OBJ_PIN: u32 = 6;
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;

/// Descriptor of the listener in the child, until the test takes it.
const LISTENER: libc::c_int = 200;

const SECCOMP_IOCTL_NOTIF_RECV: libc::c_ulong = 0xc050_2100;
const SECCOMP_IOCTL_NOTIF_SEND: libc::c_ulong = 0xc018_2101;

/// Installs the seccomp listener between fork and exec of the agent.
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "system calls in a row")]
fn listened_to(command: &mut Command) {
    let install = || {
        let length = NOTIFY_OF_BPF.len() as u16;
        let filter = NOTIFY_OF_BPF.as_ptr().cast_mut();
        let program = libc::sock_fprog { len: length, filter };
        // SAFETY: the pointer is to a local of the right type, which the kernel only reads.
        let listener = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
            let mode = libc::SECCOMP_SET_MODE_FILTER;
            libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) as libc::c_int
        };
        // SAFETY: integer arguments.
        let moved = listener >= 0 && unsafe { libc::dup2(listener, LISTENER) } >= 0;
        moved.then_some(()).ok_or_else(io::Error::last_os_error)
    };
    // SAFETY: the closure only makes system calls, which are async-signal-safe.
    unsafe { command.pre_exec(install) };
}

/// Thread that answers the agent's bpf(2) calls.
struct Injector {
    /// Commands of bpf(2) that fail, one bit each, with the errno above these bits.
    refused: Arc<AtomicU64>,
    /// Number of refused calls.
    count: Arc<AtomicU64>,
}

impl Injector {
    /// Starts the injector of a process that was [`listened_to`]; its thread ends with the process.
    fn of(pid: u32) -> Self {
        let listener = listener(pid).expect("the agent's listener");
        let (refused, count) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let injector = Self { refused: Arc::clone(&refused), count: Arc::clone(&count) };
        std::thread::spawn(move || while answer(&listener, &refused, &count) {});
        injector
    }

    fn refuse(&self, commands: &[u32], errno: libc::c_int) {
        let commands = commands.iter().fold(0, |bits, command| bits | 1 << command);
        self.count.store(0, Ordering::SeqCst);
        self.refused.store(commands | (errno as u64) << 48, Ordering::SeqCst);
    }

    /// Stops refusing calls, and asserts that at least one was refused.
    fn relent(&self) {
        self.refused.store(0, Ordering::SeqCst);
        assert!(self.count.load(Ordering::SeqCst) > 0, "nothing was refused");
    }
}

/// Takes the listener's descriptor, once the process has it.
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "system calls in a row")]
fn listener(pid: u32) -> io::Result<OwnedFd> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        // SAFETY: integer arguments; the returned descriptor belongs to the caller.
        let taken = unsafe {
            let process = libc::syscall(libc::SYS_pidfd_open, pid, 0) as libc::c_int;
            let taken = libc::syscall(libc::SYS_pidfd_getfd, process, LISTENER, 0) as libc::c_int;
            libc::close(process);
            taken
        };
        if taken >= 0 {
            // SAFETY: the descriptor is new and has no other owner.
            return Ok(unsafe { OwnedFd::from_raw_fd(taken) });
        }
        if Instant::now() > deadline {
            return Err(io::Error::last_os_error());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Answers one call. Returns false if there will be no other.
fn answer(listener: &OwnedFd, refused: &AtomicU64, count: &AtomicU64) -> bool {
    let mut waiting = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    let woken = poll(&mut waiting, 1000u16);
    let events = waiting[0].revents().unwrap_or(PollFlags::empty());
    if events.contains(PollFlags::POLLHUP) {
        return false;
    }
    if woken != Ok(1) {
        return true;
    }
    // SAFETY: zero is valid for a block of integers; the kernel requires zeroes.
    let mut call: libc::seccomp_notif = unsafe { zeroed() };
    // SAFETY: the block of this ioctl. ENOENT: the caller was killed meanwhile.
    if unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) } < 0 {
        return true;
    }
    let wanted = refused.load(Ordering::SeqCst);
    let is_refused = call.data.args[0] < 48 && wanted >> call.data.args[0] & 1 != 0;
    // SAFETY: zero is valid for a block of integers.
    let mut response: libc::seccomp_notif_resp = unsafe { zeroed() };
    response.id = call.id;
    if is_refused {
        count.fetch_add(1, Ordering::SeqCst);
        response.error = -((wanted >> 48) as i32);
    } else {
        response.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    }
    // SAFETY: the block of this ioctl.
    unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) };
    true
}

fn guarded() -> (TestCluster, Injector) {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.prepare = listened_to;
    cluster.policy("server", allow_from("server", "friend"));
    cluster.write();
    cluster.start();
    let injector = Injector::of(cluster.agents[0].pid());
    cluster.wait();
    as_before(&cluster);
    (cluster, injector)
}

#[track_caller]
fn as_before(cluster: &TestCluster) {
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

/// Returns a condition on a problem with these words in the status.
fn complains(words: &str) -> impl Fn(&Value) -> bool {
    move |status| status["problems"].to_string().contains(words)
}

/// Refuses calls: enforcement stays as it was, and the status names the failure and the affected pods. Afterwards
/// everything is enforced without further action.
fn outage(
    cluster: &mut TestCluster,
    injector: &Injector,
    commands: &[u32],
    errno: i32,
    words: &str,
) {
    injector.refuse(commands, errno);
    cluster.add(0, "late");
    cluster.policy("late", isolate("late", &["Ingress", "Egress"]));
    cluster.write();
    cluster.agents[0].wait_for("complaining", ENFORCED, complains(words)).unwrap();
    as_before(cluster);
    injector.relent();
    cluster.wait();
    as_before(cluster);
    cluster.denied("friend", "late");
    let settled = |status: &Value| status["problems"].as_array().is_some_and(Vec::is_empty);
    cluster.agents[0].wait_for("without problems", ENFORCED, settled).unwrap();
    drop(cluster.take("late"));
    cluster.without_policy("late").enforce();
}

#[test]
fn no_memory_for_larger_tables() {
    require_root!();
    let (mut cluster, injector) = guarded();
    cluster.policy("many", from_many());
    outage(&mut cluster, &injector, &[MAP_CREATE], libc::ENOMEM, "Cannot allocate memory");
}

/// Programs are loaded again for larger tables, after the maps were created.
#[test]
fn no_memory_for_the_programs_of_larger_tables() {
    require_root!();
    let (mut cluster, injector) = guarded();
    cluster.policy("many", from_many());
    outage(&mut cluster, &injector, &[PROG_LOAD], libc::ENOMEM, "Cannot allocate memory");
}

/// Only the IPv6 tables are written by system calls.
#[test]
fn a_map_that_is_full() {
    require_root!();
    let (mut cluster, injector) = guarded();
    outage(&mut cluster, &injector, &[MAP_UPDATE_ELEM], libc::E2BIG, "Argument list too long");
    outage(&mut cluster, &injector, &[MAP_UPDATE_ELEM], libc::ENOMEM, "Cannot allocate memory");
}

#[test]
fn programs_that_cannot_be_attached() {
    require_root!();
    let (mut cluster, injector) = guarded();
    outage(&mut cluster, &injector, &[LINK_CREATE], libc::ENOMEM, "Cannot allocate memory");
    outage(&mut cluster, &injector, &[OBJ_PIN], libc::ENOSPC, "No space left on device");
}

/// Refuses calls as for a process without its capabilities.
#[test]
fn privileges_that_are_lost() {
    require_root!();
    let (mut cluster, injector) = guarded();
    cluster.policy("many", from_many());
    let all = [MAP_CREATE, MAP_UPDATE_ELEM, PROG_LOAD, OBJ_PIN, LINK_CREATE, LINK_UPDATE];
    outage(&mut cluster, &injector, &all, libc::EPERM, "Operation not permitted");
}
