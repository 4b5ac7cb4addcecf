//! Lists of packets that GRO joined (`rx-gro-list`, `SKB_GSO_FRAGLIST`). The pod joins packets to a denied end, and
//! rewrites the headers of the first one, which are those that a judgement reads. Where a list is cut, as before a card,
//! the others leave with their own: Linux 6.18 makes only addresses and ports equal to the first one's. Needs `NET_ADMIN`
//! in the pod's own namespace.

use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use crate::attacks::tunnel;
use crate::attacks::volley::{Volley, allow_one_port, pairs};
use netpold_testbed::cluster::{PATIENCE, TestCluster};
use netpold_testbed::packet::{frame, ipv4, ipv6, tcp_message, udp_message};
use netpold_testbed::{Cni, ProbeProtocol, RawSocket, TestPod, require_root};
use nix::errno::Errno;

/// Port of `victim` that policy allows; it allows no other port.
const ALLOWED: u16 = 4000;
const DENIED: u16 = 4001;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Identifier of a datagram in fragments.
const DATAGRAM: u16 = 77;
/// Offset of the later fragment, in units of 8 bytes.
const LATER: u16 = 16;
/// Lists of an attack.
const LISTS: usize = 50;
/// Packets of a list.
const MEMBERS: usize = 3;
/// Time in which the last packets would arrive.
const LONG_ENOUGH: Duration = Duration::from_millis(500);

/// A cluster where `hostile` may send to port 4000 of `victim` alone. The kernel cuts lists at the victim's veth, as
/// before a card.
fn world(cni: Cni) -> TestCluster {
    let mut cluster = TestCluster::one(cni).with_pods(&["hostile", "victim"]);
    allow_one_port(&mut cluster, ["UDP", "TCP"], ALLOWED);
    let victim = cluster.pod("victim").host_interface().to_owned();
    cluster.nodes[0].turn_feature(&victim, "tx-gso-list", false).unwrap();
    add_joining_tunnel(cluster.pod("hostile"));
    cluster
}

/// Gives a pod a tunnel device on a bridge with eth0. It joins the packets that arrive together, and a rule rewrites the
/// first one's headers: an IPv4 packet becomes a later fragment, and an IPv6 routing header becomes padding.
fn add_joining_tunnel(pod: &TestPod) {
    tunnel::add(pod);
    let bridged = pod.netns().ip("link add br0 type bridge stp_state 0 mcast_snooping 0\n\
         link set br0 up\n\
         link set vxlan9 master br0\n\
         link set eth0 master br0\n");
    bridged.unwrap();
    pod.turn_feature("vxlan9", "rx-gro-list", true).unwrap();
    let rules = format!(
        "table netdev lists {{ chain first {{ \
         type filter hook ingress device vxlan9 priority 0; \
         ip version 4 ip frag-off set {LATER} ip id set {DATAGRAM}; \
         ip6 nexthdr 43 ip6 nexthdr set 60 @nh,336,48 set 0x010400000000; }}; }}"
    );
    pod.netns().nft(&rules).unwrap();
}

/// Packets to the denied port (IPv4), or to an address beyond the allowed one (IPv6).
struct Attack<'a> {
    pod: &'a TestPod,
    station: [u8; 6],
    protocol: u8,
    ends: (IpAddr, IpAddr),
}

impl Attack<'_> {
    fn message(&self, port: u16, number: usize, payload: &[u8]) -> Vec<u8> {
        let (from, to) = ((self.ends.0, 5000).into(), (self.ends.1, port).into());
        let sequence = 1 + (number * payload.len()) as u32;
        match self.protocol {
            TCP => tcp_message(from, to, 0x10, (sequence, 1), payload),
            _ => udp_message(from, to, payload),
        }
    }

    fn packet(&self, number: usize, payload: &[u8]) -> Vec<u8> {
        match self.ends {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let message = self.message(DENIED, number, payload);
                ipv4((from, to), self.protocol, (0, 0x4000), &[], &message)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                // A segment routing header with one segment left.
                let header = [&[self.protocol, 2, 4, 1, 0, 0, 0, 0], &to.octets()[..]].concat();
                let message = self.message(ALLOWED, number, payload);
                ipv6((from, to), 43, &[header, message].concat())
            }
            _ => unreachable!("addresses of one family"),
        }
    }

    /// Sends the first fragment of the datagram that the lists pretend to belong to.
    fn begin_datagram(&self) {
        if let (IpAddr::V4(from), IpAddr::V4(to)) = self.ends {
            let message = self.message(ALLOWED, 0, &[0; 8 * LATER as usize]);
            let part = &message[..8 * usize::from(LATER)];
            let whole = ipv4((from, to), self.protocol, (DATAGRAM, 0x2000), &[], part);
            let whole = frame(self.station, self.pod.mac(), &whole);
            self.pod.wire("eth0").unwrap().send(&whole).unwrap();
        }
    }

    /// Sends lists by the tunnel: datagrams that arrive in one piece there.
    fn send(&self, payload: &[u8]) {
        let socket = tunnel::socket(self.pod);
        let members = [0, 1, 2].map(|number| {
            let packet = frame(self.station, self.pod.mac(), &self.packet(number, payload));
            [&tunnel::HEADER[..], &packet].concat()
        });
        let _: [_; MEMBERS] = members;
        let length = members[0].len() as libc::c_int;
        let (fd, pointer) = (socket.as_raw_fd(), (&raw const length).cast());
        // SAFETY: the value has that length.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_UDP, libc::UDP_SEGMENT, pointer, 4) };
        Errno::result(set).unwrap();
        for _ in 0..LISTS {
            self.begin_datagram();
            socket.send(&members.concat()).unwrap();
        }
    }

    /// Whether a frame has the headers that the first packet of its list had before.
    fn is_denied(&self, frame: &[u8]) -> bool {
        match self.ends.1 {
            IpAddr::V4(_) => frame[20..22] == [0x40, 0] && frame[36..38] == DENIED.to_be_bytes(),
            IpAddr::V6(_) => frame[20] == 43,
        }
    }

    /// Frames with a payload that arrive with rewritten headers, and with denied ones.
    fn run(&self, wire: &RawSocket, payload: &[u8], needed: usize) -> [usize; 2] {
        self.send(payload);
        let (mut seen, begun) = ([0; 2], Instant::now());
        loop {
            while let Some(frame) = wire.arrived() {
                let is_its = frame.windows(payload.len()).any(|part| part == payload);
                seen[usize::from(is_its && self.is_denied(&frame))] += usize::from(is_its);
            }
            let passed = begun.elapsed();
            if passed > PATIENCE || passed > LONG_ENOUGH && seen[1] >= needed {
                return seen;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn on(cni: Cni) {
    let mut cluster = world(cni);
    let mut leaks = Vec::new();
    for enforced in [false, true] {
        if enforced {
            cluster.enforce();
        }
        let (pod, victim) = (cluster.pod("hostile"), cluster.pod("victim"));
        let wire = victim.wire("eth0").unwrap();
        let station = if cni == Cni::Bridge { victim.mac() } else { pod.gateway_mac() };
        for protocol in [UDP, TCP] {
            for ends in pairs(pod, victim) {
                let payload = Volley::new().payload(0, 40);
                let attack = Attack { pod, station, protocol, ends };
                let needed = if enforced { 0 } else { LISTS };
                let [first, members] = attack.run(&wire, &payload, needed);
                let what = format!("protocol {protocol} to {}", ends.1);
                println!("{what}, with netpold: {enforced}: {first} first ones, {members} others");
                if !enforced {
                    assert!(members >= needed, "{what}: {members} without netpold");
                } else if members > 0 {
                    leaks.push(format!("{what}: {members} of {}", LISTS * (MEMBERS - 1)));
                }
            }
        }
    }
    assert!(leaks.is_empty(), "{leaks:#?}");
    // Datagrams and segments that are left to the card are no lists.
    let (pod, victim) = (cluster.pod("hostile"), cluster.pod("victim"));
    pod.netns().ip("link set eth0 nomaster\n").unwrap();
    victim.serve(ProbeProtocol::Tcp, ALLOWED).unwrap();
    for to in victim.addresses() {
        let flow = pod.open_flow(ProbeProtocol::Tcp, (*to, ALLOWED).into(), PATIENCE);
        assert!(flow.unwrap().ping(PATIENCE), "to {to}");
    }
}

#[test]
fn no_pod_sends_a_list_on_a_ptp_node() {
    require_root!();
    on(Cni::Ptp);
}

#[test]
fn no_pod_sends_a_list_on_a_bridge_node() {
    require_root!();
    on(Cni::Bridge);
}
