//! Tests at the loopback of a namespace of its own, which keeps the mark of a sender's packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{setsockopt, sockopt};

use super::*;

const PROOF: u32 = 1 << 28;
const LOOPBACK: u32 = 1;

fn isolated(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("needs root");
            run("ip link set lo up mtu 1500");
            test();
        });
        thread.join().unwrap();
    });
}

fn run(command: &str) {
    let mut words = command.split_whitespace();
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{command}");
}

/// Whether a datagram of this length and mark arrives, over IPv4 and over IPv6.
fn delivers(length: usize, mark: u32) -> [bool; 2] {
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].map(|address| {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        setsockopt(&socket, sockopt::Mark, &mark).unwrap();
        socket.send_to(&vec![7; length], socket.local_addr().unwrap()).unwrap();
        socket.recv(&mut [0; 8]).is_ok()
    })
}

const WHOLE: usize = 1000;
const FRAGMENTED: usize = 3000;

fn filters() -> bool {
    let filtered = delivers(FRAGMENTED, 0);
    assert_eq!(filtered[0], filtered[1], "both families");
    !filtered[0]
}

#[test]
fn fragments_without_the_proof_drop_unless_the_interface_is_listed() {
    isolated(|| {
        let mut filter = FragmentFilter::new(PROOF);
        assert!(!filters());
        filter.apply(Some(&[7].into()));
        assert_eq!(filter.failure, None);
        assert_eq!(delivers(WHOLE, 0), [true; 2], "no fragment");
        assert_eq!(delivers(FRAGMENTED, PROOF | 3), [true; 2], "with the proof");
        assert_eq!(delivers(FRAGMENTED, !PROOF), [false; 2]);
        assert!(!filter.reconcile(&[7].into()));
        assert_eq!(filter.dropped(), 6, "three fragments of each datagram");
        filter.apply(Some(&[7, LOOPBACK].into()));
        assert!(!filters());
        filter.apply(Some(&[].into()));
        assert!(filters());
        assert!(!filter.reconcile(&[].into()));
        assert_eq!(filter.dropped(), 12, "the rule is the same");
        filter.apply(None);
        assert!(!filters());
        assert_eq!(filter.failure, None);
    });
}

#[test]
fn changed_tables_are_written_again() {
    isolated(|| {
        let wanted: BTreeSet<u32> = (2..2 + 2 * ELEMENTS as u32).collect();
        let mut filter = FragmentFilter::new(PROOF);
        filter.apply(Some(&wanted));
        assert!(!filter.reconcile(&wanted), "nobody has changed anything");
        for change in [
            "delete table ip netpold-fragments",
            "delete table ip6 netpold-fragments",
            "flush chain ip netpold-fragments prerouting",
            "insert rule ip6 netpold-fragments prerouting accept",
            "add element ip netpold-fragments node-devices { lo }",
            "add table ip netpold-fragments { flags dormant ; }",
            "add chain ip netpold-fragments prerouting { policy drop ; }",
        ] {
            run(&format!("nft {change}"));
            assert!(filter.reconcile(&wanted), "{change}");
            assert!(filters(), "{change}");
            assert!(!filter.reconcile(&wanted), "{change}");
        }
        assert_eq!(delivers(WHOLE, 0), [true; 2], "the policy is back");
        // Only the failure of a set's change shows that the table is gone.
        run("nft delete table ip netpold-fragments");
        filter.apply(Some(&[LOOPBACK + 1].into()));
        assert!(filters());
    });
}

#[test]
fn tables_of_an_earlier_process_are_in_force_until_they_are_replaced() {
    isolated(|| {
        FragmentFilter::new(1 << 5).apply(Some(&[].into()));
        assert!(filters());
        let mut filter = FragmentFilter::new(PROOF);
        assert!(!filter.reconcile(&[].into()), "not this process' tables");
        assert_eq!(delivers(FRAGMENTED, PROOF), [true; 2]);
        assert_eq!(delivers(FRAGMENTED, 1 << 5), [false; 2]);
        FragmentFilter::new(PROOF).apply(None);
        assert!(!filters());
        filter.apply(Some(&[].into()));
        remove_all().unwrap();
        assert!(!filters());
        remove_all().unwrap();
    });
}
