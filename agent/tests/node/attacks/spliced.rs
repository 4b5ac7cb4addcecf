//! Headers in pages that the sending pod still writes (time of check, time of use). `vmsplice` and `splice` attach a
//! page of the process to a datagram without a copy; a VXLAN device of the pod unpacks the datagram, so the page's
//! bytes become the headers of a packet that leaves the pod. The pod rewrites them afterwards, from an allowed to a
//! denied destination. Needs `NET_ADMIN` in the pod's own namespace.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{NAMESPACE, PATIENCE, TestCluster};
use netpold_testbed::packet::{frame, packet, udp_packet};
use netpold_testbed::{Cni, PodSpec, RawSocket, TestPod, require_root};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::attacks::tunnel;
use crate::attacks::volley::{Volley, allow_one_port};

/// Port of `victim` that policy allows; it allows no other port, and nothing to `other`.
const ALLOWED: u16 = 4000;
const DENIED: u16 = 4001;
/// Packets of an attack under policy. Without the defence one of twenty arrives where policy denies it, or all.
const PACKETS: usize = 3_000;
/// Packets between two reads of the receivers; the receivers' buffers have room for them.
const ROUND: usize = 100;
/// Time in which the last packets would arrive.
const LONG_ENOUGH: Duration = Duration::from_millis(300);

/// A priority tag, of no VLAN. The tunnel device does not copy the IP header behind the tag.
const PRIORITY_TAG: [u8; 4] = [0x81, 0, 0x20, 0];
const PAGE: usize = 4096;

/// Bytes to send in two versions, which differ in the eight bytes from `word` on alone.
struct Versions {
    first: Vec<u8>,
    word: usize,
    values: [u64; 2],
}

impl Versions {
    fn new([first, second]: [Vec<u8>; 2], word: usize) -> Self {
        let rest = |bytes: &[u8]| [&bytes[..word], &bytes[word + 8..]].concat();
        assert_eq!(rest(&first), rest(&second), "one store makes one version the other");
        let value = |bytes: &[u8]| u64::from_ne_bytes(*bytes[word..].first_chunk().unwrap());
        let values = [value(&first), value(&second)];
        Self { first, word, values }
    }

    /// Puts bytes in front of both versions.
    fn behind(self, bytes: &[u8]) -> Self {
        let first = [bytes, &self.first].concat();
        Self { first, word: self.word + bytes.len(), values: self.values }
    }

    /// The least offset from `least` on in aligned memory at which the changing word is aligned.
    fn place(&self, least: usize) -> usize {
        (least + self.word).next_multiple_of(8) - self.word
    }
}

/// Memory that a process shares with the kernel.
struct Shared {
    start: *mut u64,
    length: usize,
}

impl Shared {
    /// Anonymous memory, or the ring of a packet socket.
    fn new(length: usize, ring: Option<&OwnedFd>) -> Self {
        let kind = if ring.is_some() { 0 } else { libc::MAP_ANONYMOUS };
        let (flags, fd) = (libc::MAP_SHARED | kind, ring.map_or(-1, AsRawFd::as_raw_fd));
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { libc::mmap(null_mut(), length, access, flags, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", Errno::last());
        Self { start: start.cast(), length }
    }

    /// Writes the first of two versions at an offset; returns the word that differs.
    fn write(&self, at: usize, versions: &Versions) -> &AtomicU64 {
        let bytes = &versions.first;
        assert!(at + bytes.len() <= self.length);
        let target = self.at(at);
        // SAFETY: room for the bytes.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let word = target.wrapping_add(versions.word).cast();
        // SAFETY: within those bytes, and aligned by `Versions::place`.
        unsafe { AtomicU64::from_ptr(word) }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.start.cast::<u8>().wrapping_add(offset)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing else refers to.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// Sends a page's bytes in datagrams to the pod's own tunnel device.
struct Splicer {
    page: Shared,
    socket: UdpSocket,
    read: OwnedFd,
    write: OwnedFd,
}

impl Splicer {
    fn new(pod: &TestPod) -> Self {
        let socket = tunnel::socket(pod);
        let (read, write) = nix::unistd::pipe().unwrap();
        Self { page: Shared::new(PAGE, None), socket, read, write }
    }

    fn send(&self, at: usize, length: usize) {
        let bytes = libc::iovec { iov_base: self.page.at(at).cast(), iov_len: length };
        // SAFETY: the page outlives the call, and may change while the kernel reads it.
        let given = unsafe { libc::vmsplice(self.write.as_raw_fd(), &raw const bytes, 1, 0) };
        assert_eq!(Errno::result(given).unwrap(), length as isize);
        let (from, to) = (self.read.as_raw_fd(), self.socket.as_raw_fd());
        // SAFETY: two descriptors, without offsets.
        let sent = unsafe { libc::splice(from, null_mut(), to, null_mut(), length, 0) };
        assert_eq!(Errno::result(sent).unwrap(), length as isize);
    }
}

/// Sends frames of a ring in memory that process and kernel share (`PACKET_TX_RING`, `linux/if_packet.h`).
struct Ring {
    socket: OwnedFd,
    memory: Shared,
}

impl Ring {
    const VERSION: (libc::c_int, libc::c_int) = (10, 1);
    const TX_RING: libc::c_int = 13;
    const HAS_OFFSET: libc::c_int = 19;
    const HEADER: usize = size_of::<libc::tpacket2_hdr>();
    const SEND_REQUEST: u32 = 1;

    fn new(pod: &TestPod) -> Self {
        let open = || {
            // SAFETY: a plain system call without pointers.
            let socket =
                unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
            // SAFETY: the descriptor is new and has no other owner.
            let socket = unsafe { OwnedFd::from_raw_fd(Errno::result(socket).unwrap()) };
            (socket, if_nametoindex("eth0").unwrap())
        };
        let (socket, index) = pod.run(open).unwrap();
        set(&socket, Self::VERSION.0, &[Self::VERSION.1]);
        set(&socket, Self::HAS_OFFSET, &[1]);
        // struct tpacket_req: one block of one frame.
        set(&socket, Self::TX_RING, &[PAGE as i32, 1, PAGE as i32, 1]);
        // SAFETY: all zeroes is a valid sockaddr_ll.
        let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        at.sll_family = libc::AF_PACKET as u16;
        at.sll_ifindex = index as i32;
        // SAFETY: the address has the given length.
        let bound = unsafe {
            libc::bind(socket.as_raw_fd(), (&raw const at).cast(), size_of_val(&at) as u32)
        };
        Errno::result(bound).unwrap();
        let memory = Shared::new(PAGE, Some(&socket));
        Self { socket, memory }
    }

    fn send(&self, at: usize, length: usize) {
        // SAFETY: the ring's frame begins with this header, which the kernel reads during the call below alone.
        let header = unsafe { &mut *self.memory.start.cast::<libc::tpacket2_hdr>() };
        header.tp_len = length as u32;
        header.tp_mac = at as u16;
        // SAFETY: a field of the header.
        let status = unsafe { AtomicU32::from_ptr(&raw mut header.tp_status) };
        status.store(Self::SEND_REQUEST, Ordering::Release);
        // SAFETY: no buffer.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), null(), 0, 0) };
        assert_eq!(Errno::result(sent).unwrap(), length as isize);
    }
}

fn set(socket: &OwnedFd, name: libc::c_int, value: &[i32]) {
    let (fd, pointer) = (socket.as_raw_fd(), value.as_ptr().cast());
    // SAFETY: the value has that length.
    let done =
        unsafe { libc::setsockopt(fd, libc::SOL_PACKET, name, pointer, size_of_val(value) as u32) };
    Errno::result(done).unwrap();
}

/// Runs a closure while another thread stores two values in turn, on another processor if there is one.
fn while_rewritten(word: &AtomicU64, values: [u64; 2], body: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool, CpuSet);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
            sched_setaffinity(Pid::from_raw(0), &self.1).unwrap();
        }
    }
    let every = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let mut processors = (0..CpuSet::count()).filter(|cpu| every.is_set(*cpu).unwrap());
    let [own, other] = [processors.next(), processors.next()];
    let move_to = |processor: Option<usize>| {
        let mut only = CpuSet::new();
        only.set(processor.or(own).unwrap()).unwrap();
        sched_setaffinity(Pid::from_raw(0), &only).unwrap();
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            move_to(other);
            while !over.load(Ordering::Relaxed) {
                values.iter().for_each(|value| word.store(*value, Ordering::Relaxed));
            }
        });
        let _stop = Stop(&over, every);
        move_to(own);
        body();
    });
}

/// Receivers of the packets.
enum Receivers {
    /// Interface of a pod, and the offset of the destination port in its frames.
    Ports(RawSocket, usize),
    /// Interfaces of two pods, the allowed one first.
    Pods([RawSocket; 2]),
}

impl Receivers {
    fn ports(pod: &TestPod, address: IpAddr) -> Self {
        Self::Ports(pod.wire("eth0").unwrap(), 14 + header(address) + 2)
    }

    fn pods(pods: [&TestPod; 2]) -> Self {
        Self::Pods(pods.map(|pod| pod.wire("eth0").unwrap()))
    }

    /// Numbers of packets with a payload that have arrived since the last call, at the allowed end and the denied one.
    fn arrived(&self, payload: &[u8]) -> [usize; 2] {
        let all = |wire: &RawSocket| -> Vec<Vec<u8>> {
            let is_its = |frame: &Vec<u8>| frame.windows(payload.len()).any(|part| part == payload);
            std::iter::from_fn(|| wire.arrived()).filter(is_its).collect()
        };
        match self {
            Self::Ports(wire, at) => {
                let frames = all(wire);
                [ALLOWED, DENIED].map(|port| {
                    let is_to = |frame: &&Vec<u8>| frame[*at..*at + 2] == port.to_be_bytes();
                    frames.iter().filter(is_to).count()
                })
            }
            Self::Pods(wires) => wires.each_ref().map(|wire| all(wire).len()),
        }
    }
}

/// The moment of the change.
#[derive(Clone, Copy, PartialEq)]
enum Rewritten {
    /// All the while, by another thread. Without the defence, packets of which the judgement reads one version and the
    /// node the other arrive at the denied end.
    Meanwhile,
    /// After each packet is sent. Without the defence, the receiver reads the second version.
    Behind,
}

/// A way to send packets with headers that change.
enum Way {
    Spliced(Splicer),
    Ring(Ring),
}

struct Attack {
    what: String,
    way: Way,
    rewritten: Rewritten,
    versions: Versions,
    payload: Vec<u8>,
    receivers: Receivers,
}

impl Attack {
    /// Sends at least so many packets, until some have arrived at each receiver of `needed`; returns the arrivals.
    fn run(&self, packets: usize, needed: &[usize]) -> [usize; 2] {
        let (memory, least) = match &self.way {
            Way::Spliced(splicer) => (&splicer.page, 0),
            Way::Ring(ring) => (&ring.memory, Ring::HEADER),
        };
        let (at, length) = (self.versions.place(least), self.versions.first.len());
        let word = memory.write(at, &self.versions);
        let [first, second] = self.versions.values;
        let (seen, sent) = (Cell::new([0; 2]), Cell::new(0));
        let look = || {
            let new = self.receivers.arrived(&self.payload);
            seen.set([0, 1].map(|n| seen.get()[n] + new[n]));
        };
        let send = || match &self.way {
            Way::Spliced(splicer) => splicer.send(at, length),
            Way::Ring(ring) => ring.send(at, length),
        };
        let send_all = || {
            let deadline = Instant::now() + PATIENCE;
            let is_enough = || sent.get() >= packets && needed.iter().all(|n| seen.get()[*n] > 0);
            while !is_enough() && Instant::now() < deadline {
                for _ in 0..ROUND {
                    if self.rewritten == Rewritten::Behind {
                        word.store(first, Ordering::Relaxed);
                        send();
                        word.store(second, Ordering::Relaxed);
                        look();
                    } else {
                        send();
                    }
                }
                look();
                sent.set(sent.get() + ROUND);
            }
        };
        match self.rewritten {
            Rewritten::Meanwhile => while_rewritten(word, self.versions.values, send_all),
            Rewritten::Behind => send_all(),
        }
        std::thread::sleep(LONG_ENOUGH);
        look();
        let (seen, sent) = (seen.get(), sent.get());
        println!("{}: {seen:?} of {sent} arrive at the allowed and the denied end", self.what);
        seen
    }
}

/// Offset of the transport header in a packet to an address.
fn header(to: IpAddr) -> usize {
    if to.is_ipv4() { 20 } else { 40 }
}

/// Datagrams to two ports, with their checksums.
fn datagrams(from: IpAddr, to: IpAddr, payload: &[u8]) -> Versions {
    let to_port = |port| udp_packet((from, 5000).into(), (to, port).into(), payload);
    Versions::new([ALLOWED, DENIED].map(to_port), header(to))
}

/// SCTP packets to two ports. The node looks for no socket of theirs, which would move their ports to its own memory.
fn sctp_packets(from: IpAddr, to: IpAddr, payload: &[u8]) -> Versions {
    const SCTP: u8 = 132;
    const INIT: u8 = 1;
    let to_port = |port: u16| {
        let [high, low] = port.to_be_bytes();
        let header = [0x13, 0x88, high, low, 0, 0, 0, 0, 0, 0, 0, 0, INIT, 0, 0, 44];
        packet(from, to, SCTP, &[&header, payload].concat())
    };
    Versions::new([ALLOWED, DENIED].map(to_port), header(to))
}

/// Datagrams to two addresses. The second one keeps the first one's checksums.
fn to_addresses(from: IpAddr, to: [IpAddr; 2], payload: &[u8]) -> Versions {
    let [first, mut second] = to.map(|to| {
        let to: SocketAddr = (to, ALLOWED).into();
        udp_packet((from, 5000).into(), to, payload)
    });
    let transport = header(to[0]);
    second[transport..].copy_from_slice(&first[transport..]);
    // The last eight bytes of the header: both addresses, or the lower half of the destination.
    Versions::new([first, second], transport - 8)
}

/// The frame of a packet between two stations, as a datagram of the tunnel.
fn tunnelled(stations: [[u8; 6]; 2], tag: &[u8], packet: Versions) -> Versions {
    let whole = frame(stations[0], stations[1], &packet.first);
    let (link, kind) = (&whole[..12], &whole[12..14]);
    packet.behind(&[&tunnel::HEADER[..], link, tag, kind].concat())
}

/// A cluster where `router`, `bridger` and `ringer` may send to port 4000 of `victim` alone.
fn world() -> TestCluster {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["victim"]);
    let [victim, _] = cluster.pod("victim").addresses() else { panic!("two addresses") };
    let IpAddr::V4(victim) = victim else { panic!("IPv4 first") };
    // Another address with the same sum, so that both are right with one header checksum.
    let other = IpAddr::from((victim.to_bits() + (1 << 16) - 1).to_be_bytes());
    let other = [other, "fd00:1:1::99".parse().unwrap()];
    cluster.add_as(0, PodSpec::new(NAMESPACE, "other").addresses(&other));
    for name in ["router", "bridger", "ringer"] {
        cluster.add_as(0, PodSpec::new(NAMESPACE, name).label("app", "hostile"));
    }
    allow_one_port(&mut cluster, ["UDP", "SCTP"], ALLOWED);
    cluster
}

/// Gives a pod a tunnel device that unpacks its own datagrams, and keeps the rest of its frames in pages.
fn add_tunnel(pod: &TestPod) {
    tunnel::add(pod);
    pod.without_receive_offload("vxlan9").unwrap();
}

/// Packets that the pod routes: their ports lie in its page.
fn routed(cluster: &TestCluster) -> Vec<Attack> {
    let (pod, victim) = (cluster.pod("router"), cluster.pod("victim"));
    add_tunnel(pod);
    let forwarding = [
        ("ipv4/ip_forward", "1"),
        ("ipv4/conf/vxlan9/accept_local", "1"),
        ("ipv6/conf/all/forwarding", "1"),
    ];
    pod.netns().sysctls(&forwarding).unwrap();
    crate::attacks::volley::pairs(pod, victim)
        .into_iter()
        .map(|(from, to)| {
            let payload = Volley::new().payload(0, 40);
            let packet = sctp_packets(from, to, &payload);
            Attack {
                what: format!("ports in a page, routed from {from}"),
                way: Way::Spliced(Splicer::new(pod)),
                rewritten: Rewritten::Behind,
                versions: tunnelled([tunnel::MAC, tunnel::PEER_MAC], &[], packet),
                payload,
                receivers: Receivers::ports(victim, to),
            }
        })
        .collect()
}

/// Frames that the pod bridges: their IP header and ports lie in its page.
fn bridged(cluster: &TestCluster) -> Vec<Attack> {
    let pod = cluster.pod("bridger");
    add_tunnel(pod);
    let made = pod.netns().ip("link add br0 type bridge stp_state 0 mcast_snooping 0\n\
         link set br0 up\n\
         link set vxlan9 master br0\n\
         link set eth0 master br0\n");
    made.unwrap();
    let ends = [cluster.pod("victim"), cluster.pod("other")];
    [0, 1]
        .into_iter()
        .map(|family| {
            let from = pod.addresses()[family];
            let payload = Volley::new().payload(0, 40);
            let packet = to_addresses(from, ends.map(|end| end.addresses()[family]), &payload);
            Attack {
                what: format!("addresses in a page, bridged from {from}"),
                way: Way::Spliced(Splicer::new(pod)),
                rewritten: Rewritten::Meanwhile,
                versions: tunnelled([pod.gateway_mac(), pod.mac()], &PRIORITY_TAG, packet),
                payload,
                receivers: Receivers::pods(ends),
            }
        })
        .collect()
}

/// Frames of a ring: all but the link header lies in the process's memory, until the pod's veth copies it.
fn ringed(cluster: &TestCluster) -> Vec<Attack> {
    let (pod, victim) = (cluster.pod("ringer"), cluster.pod("victim"));
    crate::attacks::volley::pairs(pod, victim)
        .into_iter()
        .map(|(from, to)| {
            let payload = Volley::new().payload(0, 40);
            let packet = datagrams(from, to, &payload);
            let whole = frame(pod.gateway_mac(), pod.mac(), &packet.first);
            Attack {
                what: format!("ports in a ring, from {from}"),
                way: Way::Ring(Ring::new(pod)),
                rewritten: Rewritten::Meanwhile,
                versions: packet.behind(&whole[..14]),
                payload,
                receivers: Receivers::ports(victim, to),
            }
        })
        .collect()
}

/// Asserts that packets with headers that change arrive at both ends without netpold, and with it at the allowed one
/// alone.
fn hold(attacks: fn(&TestCluster) -> Vec<Attack>) {
    let mut cluster = world();
    let all = attacks(&cluster);
    for attack in &all {
        let needed: &[usize] = if attack.rewritten == Rewritten::Behind { &[1] } else { &[0, 1] };
        let seen = attack.run(ROUND, needed);
        let arrive = needed.iter().all(|end| seen[*end] > 0);
        assert!(arrive, "{}: {seen:?} without netpold", attack.what);
    }
    cluster.enforce();
    let mut leaks = Vec::new();
    for attack in &all {
        let [allowed, denied] = attack.run(PACKETS, &[0]);
        if denied > 0 {
            leaks.push(format!("{}: {denied} beside {allowed}", attack.what));
        } else {
            assert!(allowed > 0, "{}: nothing arrives where policy allows it", attack.what);
        }
    }
    assert!(leaks.is_empty(), "{leaks:#?}");
}

#[test]
fn ports_in_a_pods_page_are_those_that_were_judged() {
    require_root!();
    hold(routed);
}

#[test]
fn addresses_in_a_pods_page_are_those_that_were_judged() {
    require_root!();
    hold(bridged);
}

#[test]
fn headers_in_a_ring_are_those_that_were_judged() {
    require_root!();
    hold(ringed);
}
