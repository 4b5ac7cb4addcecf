//! Tests at the loopback and a veth of their own namespace, with programs that return a constant.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::super::barrier;
use super::super::bpffs::PinRoot;
use super::*;
use crate::bpf::test_objects::classifier;
use netpold_core::model::Direction;

/// `TCX_NEXT` and `TC_ACT_UNSPEC`: continue with the next program.
const NEXT: i32 = -1;
/// `TCX_PASS` and `TC_ACT_OK`: pass, without further programs.
const PASS: i32 = 0;
/// `TCX_DROP` and `TC_ACT_SHOT`.
const DROP: i32 = 2;

const MODES: [AttachMode; 2] = [AttachMode::Tcx, AttachMode::Clsact];
const LOOPBACK: [Hook; 2] = [
    Hook { ifindex: 1, direction: Direction::Ingress },
    Hook { ifindex: 1, direction: Direction::Egress },
];

/// Runs a test in network and mount namespaces of its own, with a bpffs.
fn isolated(test: impl FnOnce(&Path) + Send) {
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("needs root");
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            mount(Some("bpf"), directory.path(), Some("bpf"), MsFlags::empty(), none).unwrap();
            run("ip link set lo up");
            test(directory.path());
        });
        thread.join().unwrap();
    });
}

fn run(command: &str) {
    let mut words = command.split_whitespace();
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{command}");
}

/// Whether a datagram passes both hooks of the loopback.
fn delivers() -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    // A packet dropped at egress is an error to the sender (ENOBUFS).
    let sent = socket.send_to(b"x", socket.local_addr().unwrap());
    sent.is_ok() && socket.recv(&mut [0; 8]).is_ok()
}

fn hooks(attacher: &mut Attacher) -> Vec<Hook> {
    attacher.attached().unwrap().iter().map(|found| found.hook).collect()
}

#[test]
fn this_kernel_is_probed_as_its_version_says() {
    let version = netpold_testbed::kernel_version().unwrap();
    assert_eq!(AttachMode::probe() == AttachMode::Tcx, version >= (6, 6), "{version:?}");
}

#[test]
fn attach_replace_detach_at_each_hook() {
    for mode in MODES {
        isolated(|pins| {
            let mut attacher = Attacher::new(&pins.join("links"), mode).unwrap();
            let [next, drop] = [NEXT, DROP].map(classifier);
            for hook in LOOPBACK {
                assert!(delivers());
                attacher.attach(next.as_fd(), hook).unwrap();
                assert!(delivers(), "{mode} {hook:?}: passes on");
                let before = attacher.attached().unwrap();
                attacher.attach(drop.as_fd(), hook).unwrap();
                assert!(!delivers(), "{mode} {hook:?}: replaced");
                let after = attacher.attached().unwrap();
                assert_eq!((before.len(), after.len(), after[0].hook), (1, 1, hook), "{mode}");
                assert_ne!(before[0].program, after[0].program, "{mode}");
                attacher.detach(hook).unwrap();
                assert!(delivers(), "{mode} {hook:?}: gone");
                attacher.detach(hook).unwrap();
                assert_eq!(hooks(&mut attacher), [], "{mode}");
            }
        });
    }
}

#[test]
fn attachments_outlive_the_agent_and_are_found_again() {
    for mode in MODES {
        isolated(|pins| {
            let mut attacher = Attacher::new(pins, mode).unwrap();
            let program = classifier(DROP);
            for hook in LOOPBACK {
                attacher.attach(program.as_fd(), hook).unwrap();
            }
            drop((attacher, program));
            assert!(!delivers(), "{mode}");
            let mut attacher = Attacher::new(pins, mode).unwrap();
            assert_eq!(hooks(&mut attacher), LOOPBACK, "{mode}");
            assert_eq!(attacher.retain(|found| found.hook == LOOPBACK[1]).unwrap(), 1);
            assert_eq!(hooks(&mut attacher), [LOOPBACK[1]], "{mode}");
            attacher.attach(classifier(NEXT).as_fd(), LOOPBACK[1]).unwrap();
            assert!(delivers(), "{mode}: replaced by the next agent");
        });
    }
}

#[test]
fn ours_is_first_and_others_still_run() {
    for mode in MODES {
        isolated(|pins| {
            let hook = LOOPBACK[1];
            let other = classifier(DROP);
            let foreign = match mode {
                AttachMode::Tcx => {
                    Some(sys::tcx_link_create(other.as_fd(), 1, LOOPBACK[1].tcx_type()).unwrap())
                }
                AttachMode::Clsact => {
                    let pin = pins.join("other");
                    sys::obj_pin(other.as_fd(), &pin).unwrap();
                    run("tc qdisc add dev lo clsact");
                    let pin = pin.display();
                    // Filters of netpold's priority, and of a later one.
                    for priority in [1, 2] {
                        run(&format!(
                            "tc filter add dev lo ingress prio {priority} bpf da object-pinned {pin}"
                        ));
                    }
                    None
                }
            };
            let mut attacher = Attacher::new(&pins.join("links"), mode).unwrap();
            attacher.attach(classifier(PASS).as_fd(), hook).unwrap();
            assert!(delivers(), "{mode}: ours is asked first");
            attacher.attach(classifier(NEXT).as_fd(), hook).unwrap();
            assert!(!delivers(), "{mode}: the other is asked next");
            assert_eq!(hooks(&mut attacher), [hook], "{mode}: the other is not ours");
            attacher.detach(hook).unwrap();
            assert!(!delivers(), "{mode}: the other stays");
            drop(foreign);
        });
    }
}

#[test]
fn ours_goes_in_front_of_what_was_put_there() {
    for mode in MODES {
        isolated(|pins| {
            let hook = LOOPBACK[1];
            let links = pins.join("links");
            let mut attacher = Attacher::new(&links, mode).unwrap();
            let [ours, other] = [DROP, PASS].map(classifier);
            attacher.attach(ours.as_fd(), hook).unwrap();
            assert!(attacher.attached().unwrap()[0].ahead.is_empty(), "{mode}");
            let foreign = match mode {
                AttachMode::Tcx => {
                    Some(sys::tcx_link_create(other.as_fd(), 1, LOOPBACK[1].tcx_type()).unwrap())
                }
                AttachMode::Clsact => {
                    let pin = pins.join("other");
                    sys::obj_pin(other.as_fd(), &pin).unwrap();
                    let pin = pin.display();
                    run(&format!("tc filter add dev lo ingress prio 1 bpf da object-pinned {pin}"));
                    None
                }
            };
            assert!(delivers(), "{mode}: the other accepts first");
            let found = attacher.attached().unwrap();
            assert_eq!(found.iter().map(|f| f.ahead.len()).collect::<Vec<_>>(), [1], "{mode}");
            attacher.put_first(ours.as_fd(), hook).unwrap();
            assert!(!delivers(), "{mode}: ours is asked first");
            let again = attacher.attached().unwrap();
            assert_eq!((again.len(), again[0].program), (1, found[0].program), "{mode}");
            assert!(again[0].ahead.is_empty(), "{mode}");
            // The pin is that of the new link.
            drop(attacher);
            let mut attacher = Attacher::new(&links, mode).unwrap();
            assert!(!delivers(), "{mode}");
            attacher.detach(hook).unwrap();
            assert!(delivers(), "{mode}: nothing of ours is left");
            drop(foreign);
        });
    }
}

#[test]
fn a_filter_of_another_protocol_in_our_place_is_named() {
    isolated(|pins| {
        run("tc qdisc add dev lo clsact");
        let pin = pins.join("other");
        sys::obj_pin(classifier(PASS).as_fd(), &pin).unwrap();
        let pin = pin.display();
        run(&format!("tc filter add dev lo ingress prio 1 protocol ip bpf da object-pinned {pin}"));
        let mut attacher = Attacher::new(pins, AttachMode::Clsact).unwrap();
        let error = attacher.attach(classifier(DROP).as_fd(), LOOPBACK[1]).unwrap_err();
        assert!(
            error.to_string().contains("priority 1 is taken by another tool's filter"),
            "{error}"
        );
    });
}

#[test]
fn the_qdisc_goes_with_its_last_filter() {
    isolated(|pins| {
        let mut attacher = Attacher::new(pins, AttachMode::Clsact).unwrap();
        let clsact = || {
            let list = Command::new("tc").args(["qdisc", "show", "dev", "lo"]).output().unwrap();
            String::from_utf8(list.stdout).unwrap().contains("clsact")
        };
        let program = classifier(NEXT);
        for hook in LOOPBACK {
            attacher.attach(program.as_fd(), hook).unwrap();
        }
        attacher.detach(LOOPBACK[0]).unwrap();
        assert!(clsact());
        attacher.detach(LOOPBACK[1]).unwrap();
        assert!(!clsact());
    });
}

#[test]
fn an_interface_that_goes_leaves_nothing_that_hinders_the_next_with_its_index() {
    for mode in MODES {
        isolated(|pins| {
            let links = pins.join("links");
            let mut attacher = Attacher::new(&links, mode).unwrap();
            let program = classifier(NEXT);
            let hook = Hook { ifindex: 77, direction: Direction::Egress };
            let error = attacher.attach(program.as_fd(), hook).unwrap_err();
            assert!(error.is_gone(), "{mode}: {error}");
            run("ip link add v0 index 77 type veth peer name v1");
            attacher.attach(program.as_fd(), hook).unwrap();
            run("ip link del v0");
            // The pin still exists, its interface does not: the attachment replaces the pin.
            run("ip link add v0 index 77 type veth peer name v1");
            attacher.attach(program.as_fd(), hook).unwrap();
            assert_eq!(hooks(&mut attacher), [hook], "{mode}");
            run("ip link del v0");
            assert_eq!(hooks(&mut attacher), [], "{mode}");
            let left = links.read_dir().map_or(0, Iterator::count);
            assert_eq!(left, 0, "{mode}: pins of interfaces that are gone are removed");
            attacher.detach(hook).unwrap();
        });
    }
}

#[test]
fn a_rename_does_not_matter_and_foreign_files_are_left_alone() {
    isolated(|pins| {
        let mut attacher = Attacher::new(pins, AttachMode::Tcx).unwrap();
        let foreign = classifier(NEXT);
        sys::obj_pin(foreign.as_fd(), &pins.join("something")).unwrap();
        run("ip link add v0 index 77 type veth peer name v1");
        let hook = Hook { ifindex: 77, direction: Direction::Ingress };
        attacher.attach(foreign.as_fd(), hook).unwrap();
        run("ip link set v0 name v7");
        assert_eq!(hooks(&mut attacher), [hook]);
        assert!(pins.join("something").exists());
    });
}

#[test]
fn hooks_and_file_names_are_one_to_one() {
    for hook in LOOPBACK {
        assert_eq!(Hook::from_file_name(&hook.file_name()), Some(hook));
    }
    for name in ["", "1", "1-", "-ingress", "1-both", "01-ingress", "+1-egress", "1-egress-2"] {
        assert_eq!(Hook::from_file_name(name), None, "{name}");
    }
}

/// Below a qdisc of the kind `ingress`, a filter for packets to the pod would judge the packets that it sends.
#[test]
fn an_ingress_qdisc_is_no_place_for_both() {
    isolated(|pins| {
        run("tc qdisc add dev lo ingress");
        let mut attacher = Attacher::new(pins, AttachMode::Clsact).unwrap();
        let error = attacher.attach(classifier(DROP).as_fd(), LOOPBACK[0]).unwrap_err();
        assert!(error.to_string().contains("the interface has an ingress qdisc"), "{error}");
        assert!(delivers());
        attacher.attach(classifier(DROP).as_fd(), LOOPBACK[1]).unwrap();
        assert!(!delivers(), "what the pod sends is judged");
    });
}

/// Ends a loop on another thread, also where an assertion fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A guard of another process finds a program at every moment of a promotion, also if the promoting process is killed.
#[test]
fn a_guard_finds_a_program_throughout_a_promotion() {
    isolated(|pins| {
        let mut attacher = Attacher::new(pins, AttachMode::Tcx).unwrap();
        let hook = LOOPBACK[1];
        attacher.attach(classifier(NEXT).as_fd(), hook).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _done = Done(&is_done);
            scope.spawn(|| {
                let guard = HookCloser::new(pins.to_owned(), AttachMode::Tcx);
                while !is_done.load(Ordering::Relaxed) {
                    guard.close(hook, false);
                }
            });
            for _ in 0..20 {
                let fresh = classifier(NEXT);
                assert!(attacher.attach_in_front(fresh.as_fd(), hook).unwrap());
                attacher.promote(hook).unwrap();
                let programs = sys::programs(hook.ifindex, hook.tcx_type()).unwrap();
                assert_eq!(programs, [sys::program_id(fresh.as_fd()).unwrap()]);
            }
        });
    });
}

#[test]
fn a_guard_closes_where_nothing_can_be_pinned() {
    isolated(|pins| {
        let none = None::<&str>;
        let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(none, pins, none, read_only, none).unwrap();
        let hook = LOOPBACK[1];
        let guard = HookCloser::new(pins.to_owned(), AttachMode::Tcx);
        guard.close(hook, false);
        let programs = sys::programs(hook.ifindex, hook.tcx_type()).unwrap();
        assert_eq!(programs, [guard.program().unwrap().id]);
    });
}

/// An agent that hands over may end after it has created a link and before it pins the link.
#[test]
fn a_guard_closes_again_what_another_one_could_not_pin_before_its_end() {
    isolated(|pins| {
        let hook = LOOPBACK[1];
        let guard = HookCloser::new(pins.to_owned(), AttachMode::Tcx);
        let program = guard.program().unwrap();
        let other = sys::tcx_link_create(program.as_fd(), 1, hook.tcx_type()).unwrap();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| guard.close(hook, false));
            std::thread::sleep(Duration::from_millis(50));
            drop(other);
            closing.join().unwrap();
        });
        let programs = sys::programs(hook.ifindex, hook.tcx_type()).unwrap();
        assert_eq!(programs, [program.id]);
        drop(guard);
        assert!(!delivers(), "the link is pinned");
    });
}

/// The engine releases the hooks of a former interface while a new one with its index appears.
#[test]
fn a_new_interface_is_closed_once_the_engine_leaves_the_former_one() {
    isolated(|pins| {
        let mut attacher = Attacher::new(pins, AttachMode::Tcx).unwrap();
        let guard = attacher.closing().clone();
        let leave = |attacher: &mut Attacher, is_new: Option<bool>| {
            for hook in LOOPBACK {
                attacher.attach(classifier(NEXT).as_fd(), hook).unwrap();
                guard.forget(hook.ifindex);
                attacher.claim_hook(hook);
                is_new.iter().for_each(|is_new| guard.close(hook, *is_new));
                attacher.release_hook(hook).unwrap();
            }
            delivers()
        };
        assert!(leave(&mut attacher, None), "unwanted");
        assert!(leave(&mut attacher, Some(false)), "it existed before");
        assert!(!leave(&mut attacher, Some(true)), "closed");
        // A guard that closes late.
        attacher.attach(classifier(NEXT).as_fd(), LOOPBACK[0]).unwrap();
        guard.close(LOOPBACK[0], true);
        attacher.release_hook(LOOPBACK[0]).unwrap();
        assert_eq!(attacher.attached().unwrap().len(), 1, "it closes no interface that was judged");
    });
}

#[test]
fn a_barrier_closes_until_a_program_is_attached() {
    for mode in MODES {
        isolated(|pins| {
            let guard = HookCloser::new(pins.to_owned(), mode);
            let found = || HookCloser::new(pins.to_owned(), mode).barred_hooks();
            guard.bar(1, true);
            assert!(!delivers(), "{mode}: barred");
            assert_eq!((guard.barred_hooks(), found()), (LOOPBACK.into(), LOOPBACK.into()));
            LOOPBACK.into_iter().for_each(|hook| guard.close(hook, true));
            assert!(!delivers(), "{mode}: closed by the program");
            assert_eq!((guard.barred_hooks(), found()), ([].into(), [].into()));
        });
    }
}

#[test]
fn a_barrier_stays_when_its_interface_gets_another_name() {
    isolated(|pins| {
        let guard = HookCloser::new(pins.to_owned(), AttachMode::Tcx);
        guard.renamed(1);
        assert_eq!(guard.barred_hooks(), [].into(), "no barrier to keep");
        guard.bar(1, false);
        run("ip link set lo down");
        run("ip link set lo name other");
        run("ip link set other up");
        guard.renamed(1);
        assert!(!delivers());
        assert_eq!(guard.barred_hooks(), LOOPBACK.into());
        guard.forget(1);
        assert!(delivers());
    });
}

/// This happens when an agent attaches its programs while a standby starts.
#[test]
fn a_barrier_that_another_process_has_removed_stays_removed() {
    isolated(|pins| {
        let agent = HookCloser::new(pins.to_owned(), AttachMode::Tcx);
        agent.bar(1, false);
        let standby = HookCloser::new(pins.to_owned(), AttachMode::Tcx);
        standby.renamed(1);
        assert!(!delivers(), "it drops while it is renewed");
        agent.forget(1);
        assert!(delivers());
        standby.renamed(1);
        let other = HookCloser::new(pins.to_owned(), AttachMode::Tcx);
        assert!(delivers());
        assert_eq!(other.barred_hooks(), [].into());
        // A new interface with the same index and name.
        standby.bar(1, false);
        assert!(!delivers());
    });
}

/// This happens when an agent ends while it moves its program to the front.
#[test]
fn a_link_on_its_way_to_the_front_ends_with_the_next_agent() {
    isolated(|pins| {
        let hook = LOOPBACK[1];
        let mut attacher = Attacher::new(pins, AttachMode::Tcx).unwrap();
        attacher.attach(classifier(NEXT).as_fd(), hook).unwrap();
        drop(attacher);
        let front = sys::tcx_link_create(classifier(DROP).as_fd(), 1, hook.tcx_type()).unwrap();
        sys::obj_pin(front.as_fd(), &pins.join(format!("{}{FIRST}", hook.file_name()))).unwrap();
        drop(front);
        assert!(!delivers());
        let mut attacher = Attacher::new(pins, AttachMode::Tcx).unwrap();
        assert!(delivers());
        assert_eq!(attacher.attached().unwrap().len(), 1);
    });
}

#[test]
fn a_barrier_that_cannot_be_removed_is_removed_later() {
    isolated(|pins| {
        let mut attacher = Attacher::new(pins, AttachMode::Tcx).unwrap();
        attacher.closing().bar(1, false);
        without_rights(|| attacher.closing().forget(1));
        assert_eq!(attacher.closing().barred_hooks(), LOOPBACK.into());
        attacher.attached().unwrap();
        assert_eq!(attacher.closing().barred_hooks(), [].into());
        assert!(delivers());
    });
}

/// Calls `act` without the effective capabilities of root, in this thread only.
fn without_rights(act: impl FnOnce()) {
    let become_user = |user: libc::uid_t| {
        // SAFETY: the system call takes three numbers; the C library's function would change all threads.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
        assert_eq!(result, 0);
    };
    become_user(65534);
    act();
    become_user(0);
}

/// This happens when an agent ends while it moves its program to the front.
#[test]
fn a_relay_without_its_target_drops() {
    isolated(|_| {
        let target = classifier(NEXT);
        let relay = Relay::to(target.as_fd()).unwrap();
        let _link = sys::tcx_link_create(relay.as_fd(), 1, LOOPBACK[1].tcx_type()).unwrap();
        assert!(delivers());
        drop(relay);
        // The kernel empties the map asynchronously, from a workqueue.
        let empties = || std::thread::sleep(Duration::from_millis(10));
        assert!((0..500).any(|_| !delivers() || {
            empties();
            false
        }));
    });
}

#[test]
fn the_barrier_of_a_guard_that_ended_goes_with_the_engines_program() {
    isolated(|pins| {
        HookCloser::new(pins.to_owned(), AttachMode::Tcx).bar(1, false);
        let mut attacher = Attacher::new(pins, AttachMode::Tcx).unwrap();
        assert_eq!(attacher.closing().barred_hooks(), LOOPBACK.into());
        for hook in LOOPBACK {
            assert!(!delivers(), "{hook:?}");
            attacher.attach(classifier(NEXT).as_fd(), hook).unwrap();
        }
        assert!(delivers());
        // A guard that starts after the programs are in force.
        for guard in [attacher.closing(), &HookCloser::new(pins.to_owned(), AttachMode::Tcx)] {
            guard.bar(1, false);
            assert_eq!(guard.barred_hooks(), [].into());
            assert!(delivers(), "a hook with a program is not barred");
        }
    });
}

#[test]
fn barriers_of_gone_interfaces_and_of_uninstalled_agents_are_removed() {
    isolated(|pins| {
        let guard = HookCloser::new(pins.to_owned(), AttachMode::Tcx);
        guard.bar(1, false);
        run("ip link add gone type veth peer name end");
        let gone = nix::net::if_::if_nametoindex("gone").unwrap();
        guard.bar(gone, false);
        assert_eq!(guard.barred_hooks().len(), 4);
        run("ip link delete gone");
        guard.forget(gone);
        assert_eq!(guard.barred_hooks(), LOOPBACK.into());
        // A later interface of the same name is not barred.
        run("ip link add gone type veth peer name end");
        assert_eq!(
            HookCloser::new(pins.to_owned(), AttachMode::Tcx).barred_hooks(),
            LOOPBACK.into()
        );
        barrier::remove_all().unwrap();
        assert!(delivers());
        barrier::remove_all().unwrap();
    });
}

/// Agents in containers have equal process identifiers.
#[test]
fn watchers_of_an_agent_that_ended_are_in_nobodys_way() {
    isolated(|pins| {
        let hook = LOOPBACK[1];
        let programs = [NEXT; 3].map(classifier);
        let [first, killed, next] = programs.each_ref();
        let mut attacher = Attacher::new(pins, AttachMode::Tcx).unwrap();
        attacher.attach(first.as_fd(), hook).unwrap();
        assert!(attacher.attach_in_front(killed.as_fd(), hook).unwrap());
        drop(attacher);
        let mut attacher = Attacher::new(pins, AttachMode::Tcx).unwrap();
        assert!(attacher.attach_in_front(next.as_fd(), hook).unwrap());
        attacher.promote(hook).unwrap();
        attacher.stop_watching().unwrap();
        let programs = sys::programs(hook.ifindex, hook.tcx_type()).unwrap();
        assert_eq!(programs, [sys::program_id(next.as_fd()).unwrap()]);
    });
}

#[test]
fn nothing_is_left_of_a_pin_root() {
    isolated(|pins| {
        let root = pins.join("netpold");
        for others in [false, true] {
            let found = PinRoot::open(&root).unwrap();
            let mut attacher = Attacher::new(&found.links(), AttachMode::Tcx).unwrap();
            attacher.attach(classifier(NEXT).as_fd(), LOOPBACK[0]).unwrap();
            let foreign = root.join("foreign");
            if others {
                sys::obj_pin(classifier(NEXT).as_fd(), &foreign).unwrap();
            }
            assert_eq!(found.remove_all().unwrap(), 1);
            assert_eq!((root.exists(), foreign.exists()), (others, others));
        }
    });
}
