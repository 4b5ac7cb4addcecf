//! Later fragments that skip the program of their veth (see [`crate::attacks::bounce`]) and meet a first fragment that
//! passed. Conntrack reassembles by addresses and identification, whatever the interface, and the datagram has the mark
//! of its first fragment. Needs `NET_ADMIN` in the pod.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use netpold_testbed::cluster::{TestCluster, allow_from, allow_to, isolate};
use netpold_testbed::{Proxy, TestPod, require_root};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::attacks::bounce::{bounce_bursts, can_bounce};
use crate::attacks::refragmented::{PART, PORT, fragments4, fragments6};
use crate::attacks::volley::{BOTH, PACKETS, Sender, Tally, Volley, pairs};

/// Datagrams at a time. Conntrack drops IPv4 fragments that are more than 64 fragments of their sender apart
/// (`ipfrag_max_dist`).
const ROUND: usize = 50;
/// Time after which the pod's `ifb` has sent the packets that it held: the first one waits at the old rate.
const HELD: Duration = Duration::from_secs(1);

/// Identification of fragments without a first one.
const DECOY: u32 = 1;

/// Builds the two fragments of a datagram.
fn fragments((from, to): (IpAddr, IpAddr), ident: u32, payload: &[u8]) -> [Vec<u8>; 2] {
    let parts = match from {
        IpAddr::V4(_) => fragments4(from, to, ident, &[], payload),
        IpAddr::V6(_) => fragments6(from, to, ident, payload),
    };
    parts.try_into().unwrap()
}

/// Sends datagrams in two fragments: the later ones, with the volley's payload, around the program of `hostile`; then
/// the first ones by the program of `first`.
fn send(first: &TestPod, hostile: &TestPod, ends: (IpAddr, IpAddr), volley: Volley) {
    let (sender, around, other) = (Sender::pod(first), Sender::pod(hostile), Volley::new());
    let idents = idents();
    for round in (0..PACKETS).step_by(ROUND) {
        let numbers = round..round + ROUND;
        let part = |volley: Volley, number: usize, part: usize| {
            let payload = volley.payload(number, 2 * PART);
            fragments(ends, idents + number as u32, &payload)[part].clone()
        };
        bounce_bursts(hostile, 1600, || {
            // The token bucket passes it at once, and the program sees it.
            around.send(&fragments(ends, DECOY, &other.payload(0, 2 * PART))[1]);
            numbers.clone().for_each(|number| around.send(&part(volley, number, 1)));
        });
        std::thread::sleep(HELD);
        numbers.for_each(|number| sender.send(&part(other, number, 0)));
    }
}

/// Returns the first of [`PACKETS`] new identifications.
fn idents() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0x100);
    NEXT.fetch_add(PACKETS as u32, Ordering::Relaxed)
}

/// State of the nodes during an attack.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Policy {
    /// No agent has run.
    Absent,
    Enforced,
    /// The agents were killed.
    Kept,
}

/// Attacks a pod on the same node and one on the other, which accept packets of `friend`, as `source`: `friend`, whose
/// first fragments meet later ones of `hostile`, or `hostile` itself.
fn attack(test: &str, node: usize, source: &str) {
    let mut cluster = TestCluster::two();
    for (at, name) in [(node, "hostile"), (node, "friend"), (node, "near"), (1 - node, "far")] {
        cluster.add(at, name);
    }
    if !can_bounce(cluster.pod("hostile"), test) {
        return;
    }
    for node in &cluster.nodes {
        node.translate(Proxy::Nftables, &[]).unwrap();
    }
    let mut tally = Tally::default();
    for policy in [Policy::Absent, Policy::Enforced, Policy::Kept] {
        for victim in ["near", "far"] {
            if policy == Policy::Enforced {
                // With a port, a later fragment that the program sees before its first one drops.
                let mut egress = allow_to("hostile", victim);
                egress["egress"][0]["ports"] = json!([{ "protocol": "UDP", "port": PORT }]);
                if source != "hostile" {
                    egress = isolate("hostile", &BOTH);
                }
                cluster.policy("hostile", egress);
                cluster.policy(victim, allow_from(victim, source)).enforce();
            }
            let [hostile, first, to] = ["hostile", source, victim].map(|name| cluster.pod(name));
            let wire = to.wire("eth0").unwrap();
            for ends in pairs(first, to) {
                let (volley, what) = (Volley::new(), format!("{policy:?}, to {victim}, {ends:?}"));
                send(first, hostile, ends, volley);
                if policy == Policy::Absent {
                    volley.arrives(&wire, &what);
                } else {
                    tally.note(&what, volley.leaked(&wire));
                }
                if policy == Policy::Kept && victim == "near" && source == "hostile" {
                    continue;
                }
                // Both fragments by the program.
                let (volley, sender, idents) = (Volley::new(), Sender::pod(first), idents());
                for number in 0..PACKETS {
                    let payload = volley.payload(number, 2 * PART);
                    let parts = fragments(ends, idents + number as u32, &payload);
                    parts.iter().for_each(|part| sender.send(part));
                }
                volley.arrives(&wire, &format!("{what}, by the program"));
            }
        }
        if policy == Policy::Enforced {
            cluster.agents.iter_mut().for_each(|agent| agent.end(Signal::SIGKILL));
        }
    }
    tally.holds();
}

#[test]
fn later_fragments_of_its_own_on_a_ptp_node() {
    require_root!();
    attack("later_fragments_of_its_own_on_a_ptp_node", 0, "hostile");
}

#[test]
fn later_fragments_of_its_own_on_a_bridge_node() {
    require_root!();
    attack("later_fragments_of_its_own_on_a_bridge_node", 1, "hostile");
}

#[test]
fn later_fragments_of_anothers_datagram_on_a_ptp_node() {
    require_root!();
    attack("later_fragments_of_anothers_datagram_on_a_ptp_node", 0, "friend");
}

#[test]
fn later_fragments_of_anothers_datagram_on_a_bridge_node() {
    require_root!();
    attack("later_fragments_of_anothers_datagram_on_a_bridge_node", 1, "friend");
}
