//! Sender of raw IPv4 packets with random sources, as fast as the kernel accepts them.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use netpold_testbed::TestPod;

/// Number of packets per system call.
const BATCH: usize = 256;
/// Length of an Ethernet header and an IPv4 header.
const HEADERS: usize = 34;
/// Option of `SOL_PACKET` that bypasses the queueing discipline.
const PACKET_QDISC_BYPASS: libc::c_int = 20;

/// Kind of the packets; all other fields are random.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// SYN to a port.
    Syn(u16),
    /// Datagram to a port.
    Udp(u16),
    /// First fragment of a datagram to a port.
    FirstFragment(u16),
    /// Later fragment without a first one.
    LaterFragment,
    /// Packet of a protocol without ports (RFC 3692: for experiments).
    Unknown,
}

/// Packet socket at a pod's interface.
pub(crate) struct Sender {
    socket: OwnedFd,
    interface: libc::c_int,
    macs: [u8; 12],
    to: Ipv4Addr,
    random: u64,
}

impl Sender {
    /// Opens a sender in a pod that sends by the pod's router to an address.
    pub(crate) fn new(pod: &TestPod, to: Ipv4Addr) -> Self {
        let socket = pod
            .run(|| {
                // SAFETY: a system call without pointers.
                let fd = unsafe {
                    libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0)
                };
                assert!(fd >= 0, "socket(AF_PACKET): {}", io::Error::last_os_error());
                // SAFETY: the descriptor is new and has no other owner.
                unsafe { OwnedFd::from_raw_fd(fd) }
            })
            .unwrap();
        let yes: libc::c_int = 1;
        // SAFETY: the option's value is valid for the given length. Without the option, the sender is only slower.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_QDISC_BYPASS,
                (&raw const yes).cast(),
                size_of_val(&yes) as u32,
            )
        };
        let interface = pod.ifindex("eth0").unwrap().unwrap() as libc::c_int;
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&pod.gateway_mac());
        macs[6..].copy_from_slice(&pod.mac());
        Self { socket, interface, macs, to, random: 0x1234_5678_9abc_def1 }
    }

    /// Sends the given number of packets.
    pub(crate) fn send(&mut self, kind: Kind, count: usize) {
        let mut left = count;
        while left > 0 {
            let batch = left.min(BATCH);
            let frames: Vec<Vec<u8>> = (0..batch).map(|_| self.frame(kind)).collect();
            self.send_all(&frames);
            left -= batch;
        }
    }

    fn send_all(&self, frames: &[Vec<u8>]) {
        // SAFETY: all zeroes is a valid sockaddr_ll.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = self.interface;
        let mut parts: Vec<libc::iovec> = frames
            .iter()
            .map(|f| libc::iovec { iov_base: f.as_ptr().cast_mut().cast(), iov_len: f.len() })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = parts
            .iter_mut()
            .map(|part| {
                // SAFETY: all zeroes is a valid mmsghdr.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_name = (&raw mut to).cast();
                message.msg_hdr.msg_namelen = size_of_val(&to) as u32;
                message.msg_hdr.msg_iov = part;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        let mut sent = 0;
        while sent < messages.len() {
            let rest = &mut messages[sent..];
            // SAFETY: the messages and their buffers outlive the call.
            let done = unsafe {
                libc::sendmmsg(self.socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, 0)
            };
            match done {
                // The queue is full: the packet was not sent, and counts as sent.
                ..=0 => sent += 1,
                done => sent += done as usize,
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn frame(&mut self, kind: Kind) -> Vec<u8> {
        let random = self.next();
        // Addresses 20.0.0.0 to 83.255.255.255, which no host of the test has.
        let source = 0x1400_0000 + (random as u32 & 0x3fff_ffff);
        let from = (random >> 32) as u16 | 0x400;
        let (protocol, part, data) = match kind {
            Kind::Syn(port) => (6, 0, [from.to_be_bytes(), port.to_be_bytes()].concat()),
            Kind::Udp(port) => (17, 0, [from.to_be_bytes(), port.to_be_bytes()].concat()),
            Kind::FirstFragment(port) => {
                (17, 0x2000, [from.to_be_bytes(), port.to_be_bytes()].concat())
            }
            Kind::LaterFragment => (17, 3, random.to_be_bytes().to_vec()),
            Kind::Unknown => (253, 0, random.to_be_bytes().to_vec()),
        };
        let data = transport(protocol, data);
        let mut frame = Vec::with_capacity(HEADERS + data.len());
        frame.extend(self.macs);
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend((20 + data.len() as u16).to_be_bytes());
        frame.extend(((random >> 16) as u16).to_be_bytes());
        frame.extend(u16::to_be_bytes(part));
        frame.extend([64, protocol, 0, 0]);
        frame.extend(source.to_be_bytes());
        frame.extend(self.to.octets());
        let header = checksum(&frame[14..HEADERS], 0);
        frame[24..26].copy_from_slice(&header.to_be_bytes());
        frame.extend(data);
        if protocol == 6 {
            let pseudo = u32::from(protocol) + 20;
            let ends = checksum_of(&frame[26..HEADERS]);
            let sum = checksum(&frame[HEADERS..], pseudo + ends);
            frame[50..52].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    }
}

/// Adds the rest of the transport header after the ports; a UDP checksum of 0 means none.
fn transport(protocol: u8, mut data: Vec<u8>) -> Vec<u8> {
    match protocol {
        6 => data.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 4, 0, 0, 0, 0, 0]),
        17 if data.len() == 4 => data.extend([0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
        _ => {}
    }
    data
}

fn checksum_of(bytes: &[u8]) -> u32 {
    let (words, _) = bytes.as_chunks::<2>();
    words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum()
}

/// Computes the checksum of RFC 1071.
fn checksum(bytes: &[u8], more: u32) -> u16 {
    let mut sum = checksum_of(bytes) + more;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
