//! Waits until all earlier runs of programs have ended. Only then may an update reuse a number that it freed, or set an
//! address to a class that no earlier packet may read.
//!
//! A program at a TC or XDP hook runs with bottom halves disabled, and is not preempted there unless the kernel is
//! built for real time. So a thread that runs on a processor proves that no earlier program still runs on it, and
//! after a visit to every processor all of them have ended. (The kernel's `Documentation/RCU/whatisRCU.rst` builds
//! `synchronize_rcu` in the same way.) A visit takes about 20 µs per processor, an RCU grace period 8 to 16 ms.
//!
//! The grace period is used where a visit proves nothing or takes long: on a real-time kernel, or one that reserves
//! processors; if the agent may not run on every processor; and if a processor is too busy.

use std::fs::File;
use std::io::Read as _;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::sys::statfs::{SYSFS_MAGIC, fstatfs};
use nix::unistd::Pid;

use crate::priority;

/// Time limit of a visit: half a grace period.
const PATIENCE: Duration = Duration::from_millis(4);
const PROCESSORS: &str = "/sys/devices/system/cpu";
/// The calling thread, for `sched_setaffinity(2)` and similar calls.
const THIS_THREAD: Pid = Pid::from_raw(0);

/// Receiver of a visit's result: whether it succeeded.
type VisitOrder = SyncSender<bool>;

/// Returns once every program that ran before the call has ended.
pub(super) fn wait_for_programs() {
    if !visit_from_a_thread() {
        grace_period();
    }
}

/// Returns once every packet that was being judged at the call has been judged, and most of these packets have reached
/// their exit. [`wait_for_programs`] does not wait for the latter.
///
/// `MEMBARRIER_CMD_GLOBAL` (kernel 4.3) waits for an RCU grace period, and programs run inside RCU
/// read sections.
pub fn grace_period() {
    // SAFETY: membarrier(2) takes no pointers.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done != 0 {
        // nohz_full kernels refuse it; a program runs for microseconds.
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Runs a thread on each processor; `false`: that failed, or is not finished in time.
fn visit_from_a_thread() -> bool {
    static VISITOR: OnceLock<Option<SyncSender<VisitOrder>>> = OnceLock::new();
    let Some(visitor) = VISITOR.get_or_init(|| proves_something().then(visitor).flatten()) else {
        return false;
    };
    let (done, visited) = sync_channel(1);
    // If the channel is full, the thread still waits for a busy processor in an earlier visit.
    visitor.try_send(done).is_ok() && visited.recv_timeout(PATIENCE).unwrap_or(false)
}

/// Starts a thread that visits the processors on request.
fn visitor() -> Option<SyncSender<VisitOrder>> {
    let (orders, ordered) = sync_channel(1);
    let visit = move || serve(&ordered);
    std::thread::Builder::new().name("quiescence".into()).spawn(visit).ok().map(|_| orders)
}

fn serve(orders: &Receiver<VisitOrder>) {
    priority::raise("updates wait longer for packets in flight");
    let everywhere = sched_getaffinity(THIS_THREAD);
    while let Ok(done) = orders.recv() {
        let visited = online().is_some_and(|all| visit(&all, Instant::now() + PATIENCE));
        // The requester may have given up.
        let _ = done.send(visited);
        if let Ok(everywhere) = &everywhere {
            let _ = sched_setaffinity(THIS_THREAD, everywhere);
        }
    }
}

/// Runs this thread on each of the processors, and stays on the last; returns whether it reached all of them.
fn visit(processors: &[usize], deadline: Instant) -> bool {
    processors.iter().all(|&processor| {
        let mut only = CpuSet::new();
        let moved = only.set(processor).and_then(|()| sched_setaffinity(THIS_THREAD, &only));
        // Another process may have moved the thread.
        moved.is_ok() && sched_getcpu() == Ok(processor) && Instant::now() < deadline
    })
}

/// Whether a thread on a processor proves that no program runs there, and may run on every processor.
fn proves_something() -> bool {
    static PROVES: OnceLock<bool> = OnceLock::new();
    *PROVES.get_or_init(|| {
        let reserved = ["isolated", "nohz_full"].map(read);
        preempts_programs() == Some(false)
            && reserved.iter().flatten().all(|list| parse(list).is_none_or(|all| all.is_empty()))
    })
}

/// Whether this kernel preempts programs; `None`: unknown.
#[must_use]
pub fn preempts_programs() -> Option<bool> {
    let kernel = nix::sys::utsname::uname().ok()?;
    Some(is_real_time(&kernel.version().to_string_lossy()))
}

/// Whether the kernel's build description names a real-time kernel, which preempts programs.
fn is_real_time(version: &str) -> bool {
    version.contains("PREEMPT_RT") || version.contains("PREEMPT RT")
}

/// All running processors.
fn online() -> Option<Vec<usize>> {
    parse(&read("online")?).filter(|all| !all.is_empty())
}

/// A list of processors from the kernel's sysfs; containers may have other files at its path.
fn read(name: &str) -> Option<String> {
    let mut file = File::open(format!("{PROCESSORS}/{name}")).ok()?;
    if fstatfs(&file).ok()?.filesystem_type() != SYSFS_MAGIC {
        return None;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Parses numbers and ranges separated by commas; `None` for other text.
fn parse(list: &str) -> Option<Vec<usize>> {
    let parts = list.trim().split(',').filter(|part| !part.is_empty());
    let ranges = parts.map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    });
    Some(ranges.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::attach::{AttachMode, Attacher, Hook};
    use crate::bpf::mmap::MappedArray;
    use crate::bpf::{sys, test_objects};
    use netpold_core::model::Direction;
    use nix::sched::{CloneFlags, unshare};

    #[test]
    fn lists_of_processors() {
        assert_eq!(parse("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(parse("\n"), Some(vec![]));
        assert_eq!(parse("(null)\n"), None, "what nohz_full says where it is unknown");
        assert!(is_real_time("#1 SMP PREEMPT_RT Debian 6.12") && is_real_time("#9 SMP PREEMPT RT"));
        assert!(!is_real_time("#1 SMP PREEMPT_DYNAMIC"));
        assert!(online().is_some_and(|all| all.contains(&0)));
    }

    #[test]
    fn where_it_cannot_go_it_says_so() {
        std::thread::spawn(|| {
            let soon = Instant::now() + Duration::from_mins(1);
            assert!(visit(&online().unwrap(), soon));
            assert!(!visit(&[0, 1023], soon), "no such processor");
            assert!(!visit(&[0], Instant::now()), "too late");
        })
        .join()
        .unwrap();
    }

    /// A program of about a millisecond runs again and again on the processors that send.
    #[test]
    fn programs_that_ran_before_have_ended() {
        let counts = test_objects::array(16, 1, sys::BPF_F_MMAPABLE);
        let program = test_objects::slow_classifier(counts.as_fd());
        let counts = MappedArray::<[u64; 2]>::from_fd(counts.as_fd(), 1).unwrap();
        let pins = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET).expect("needs root");
                let up =
                    std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
                assert!(up.unwrap().success());
                let mut attacher = Attacher::new(pins.path(), AttachMode::Clsact).unwrap();
                let hook = Hook { ifindex: 1, direction: Direction::Egress };
                attacher.attach(program.as_fd(), hook).unwrap();
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                let to = socket.local_addr().unwrap();
                let done = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            socket.send_to(b"x", to).unwrap();
                        }
                    });
                    let (mut met, mut visited, mut missed) = (0, 0, None);
                    let end = Instant::now() + Duration::from_secs(20);
                    while (met < 50 || visited < 50) && missed.is_none() && Instant::now() < end {
                        let [begun, ended] = counts.read(0).unwrap();
                        if visit_from_a_thread() {
                            let after = counts.read(0).unwrap()[1];
                            missed = (after < begun).then_some((begun, after));
                            visited += 1;
                            met += u32::from(begun != ended);
                        }
                        wait_for_programs();
                    }
                    done.store(true, Ordering::Relaxed);
                    assert_eq!(missed, None, "so many had begun before, so many have ended");
                    // The visits met running programs.
                    assert!(met >= 50 && visited >= 50, "{met} runs were met in {visited} visits");
                });
            });
            thread.join().unwrap();
        });
    }
}
