//! A raw socket at an interface: sends frames unchanged, and receives arriving frames before the host's own stack.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;

use crate::host::Host;

/// Room for arrived frames that are not yet read.
const RECEIVE_BUFFER: libc::c_int = 32 << 20;
/// Buffer for one frame, larger than any with its headers.
const LONGEST: usize = 66_000;

/// `linux/if_packet.h`
const PACKET_VNET_HDR: i32 = 15;
/// `linux/sockios.h`, `linux/ethtool.h`
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_SFEATURES: u32 = 0x3b;
/// `ETH_SS_FEATURES`: the names of features.
const FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`
const NAME: usize = 32;
/// Features that a list of names has room for.
const MOST: usize = 128;

/// Work on a frame that is left to the card (`struct virtio_net_hdr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Offset of the checksum's coverage in the frame, and of the checksum field within that coverage.
    pub checksum: Option<(u16, u16)>,
    /// Kind of the segments to cut (`VIRTIO_NET_HDR_GSO_*`), their size, and the length of the headers.
    pub segments: Option<(u8, u16, u16)>,
}

impl Offload {
    /// Kinds: TCP of IPv4 and of IPv6, parts of UDP datagrams, UDP datagrams.
    pub const SEGMENTS: [u8; 4] = [1, 4, 3, 5];

    fn header(&self) -> [u8; 10] {
        let (start, field) = self.checksum.unwrap_or_default();
        let (kind, size, length) = self.segments.unwrap_or_default();
        let flags = [u8::from(self.checksum.is_some()), kind];
        let numbers = [length, size, start, field].map(u16::to_ne_bytes);
        let mut header = [0; 10];
        header[..2].copy_from_slice(&flags);
        header[2..].copy_from_slice(numbers.as_flattened());
        header
    }
}

/// A raw socket at one interface of a host.
#[derive(Debug)]
pub struct RawSocket {
    socket: OwnedFd,
}

impl Host {
    /// Opens a raw socket at an interface (`eth0` of a pod). The socket stays at the interface, regardless of the
    /// namespace in which it is used.
    ///
    /// # Errors
    /// When there is no such interface.
    pub fn wire(&self, interface: &str) -> Result<RawSocket> {
        self.run(|| RawSocket::open(interface))?
    }

    /// Makes the kernel complete checksums that are left to an interface's card.
    ///
    /// # Errors
    /// When there is no such interface.
    pub fn complete_checksums(&self, interface: &str) -> Result<()> {
        self.run(|| turn_off(interface, ETHTOOL_STXCSUM))?
    }

    /// Disables generic receive offload (GRO), so that the kernel does not merge an interface's arriving packets.
    ///
    /// # Errors
    /// When there is no such interface.
    pub fn without_receive_offload(&self, interface: &str) -> Result<()> {
        self.run(|| turn_off(interface, ETHTOOL_SGRO))?
    }

    /// Turns a feature of an interface on or off, by the name that `ethtool -k` shows.
    ///
    /// # Errors
    /// When there is no such interface or feature, or the feature is fixed.
    pub fn turn_feature(&self, interface: &str, feature: &str, on: bool) -> Result<()> {
        self.run(|| turn(interface, feature, on))?
    }

    /// Hardware address of an interface.
    ///
    /// # Errors
    /// When there is no such interface.
    pub fn hardware_address(&self, interface: &str) -> Result<[u8; 6]> {
        let find = || {
            let mut all = getifaddrs().ok()?.filter(|found| found.interface_name == interface);
            all.find_map(|found| found.address?.as_link_addr()?.addr())
        };
        self.run(find)?.with_context(|| format!("{} has no interface {interface}", self.name()))
    }
}

impl RawSocket {
    /// Sends a frame with work that is left to the card, in a header before the frame.
    ///
    /// # Errors
    /// As [`RawSocket::send`], and when the kernel refuses the header.
    pub fn send_with(&self, offload: &Offload, frame: &[u8]) -> Result<()> {
        set(&self.socket, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
        let sent = self.send(&[&offload.header()[..], frame].concat());
        set(&self.socket, libc::SOL_PACKET, PACKET_VNET_HDR, 0)?;
        sent
    }

    fn open(interface: &str) -> Result<Self> {
        let index =
            if_nametoindex(interface).with_context(|| format!("no interface {interface}"))?;
        // SAFETY: a plain system call without pointers.
        let socket = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        };
        let socket = Errno::result(socket).context("socket(AF_PACKET)")?;
        // SAFETY: the descriptor is new and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        // SAFETY: all zeroes is a valid sockaddr_ll.
        let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        at.sll_family = libc::AF_PACKET as u16;
        at.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        at.sll_ifindex = index as i32;
        // SAFETY: the address has the given length.
        let bound = unsafe {
            libc::bind(socket.as_raw_fd(), (&raw const at).cast(), size_of_val(&at) as u32)
        };
        Errno::result(bound).with_context(|| format!("cannot bind to {interface}"))?;
        Ok(Self { socket })
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// When the interface is down, or the frame is too short for an Ethernet header or exceeds the interface's MTU.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let fd = self.socket.as_raw_fd();
        // SAFETY: the buffer has that length.
        let sent = unsafe { libc::send(fd, frame.as_ptr().cast(), frame.len(), 0) };
        Errno::result(sent).with_context(|| format!("cannot send {} bytes", frame.len()))?;
        Ok(())
    }

    /// The next arrived frame, if any.
    #[must_use]
    pub fn arrived(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0_u8; LONGEST];
        let fd = self.socket.as_raw_fd();
        // SAFETY: the buffer has that length.
        let length = unsafe { libc::recv(fd, frame.as_mut_ptr().cast(), frame.len(), 0) };
        frame.truncate(usize::try_from(length).ok()?);
        Some(frame)
    }

    /// Number of frames lost for lack of room since the last call.
    ///
    /// # Errors
    /// Errors of getsockopt(2).
    pub fn lost(&self) -> Result<u32> {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of_val(&statistics) as u32;
        // SAFETY: value and length are locals of the right types.
        let got = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        Errno::result(got).context("PACKET_STATISTICS")?;
        Ok(statistics.tp_drops)
    }
}

fn set(socket: &OwnedFd, level: i32, name: i32, value: libc::c_int) -> Result<()> {
    // SAFETY: the value is an int, as these options take.
    let done = unsafe {
        let pointer = (&raw const value).cast();
        libc::setsockopt(socket.as_raw_fd(), level, name, pointer, size_of_val(&value) as u32)
    };
    Errno::result(done).with_context(|| format!("socket option {name}"))?;
    Ok(())
}

fn turn_off(interface: &str, feature: u32) -> Result<()> {
    // struct ethtool_value: command and value.
    ethtool(interface, &mut [feature, 0])?;
    Ok(())
}

fn turn(interface: &str, feature: &str, on: bool) -> Result<()> {
    // struct ethtool_gstrings: command, set, number of names, names.
    let mut names = vec![0_u32; 3 + MOST * NAME / 4];
    (names[0], names[1]) = (ETHTOOL_GSTRINGS, FEATURES);
    ethtool(interface, &mut names)?;
    let count = names[2] as usize;
    let bytes: Vec<u8> = names[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let is_it = |name: &[u8]| {
        name.strip_prefix(feature.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    };
    let place = bytes.chunks(NAME).take(count).position(is_it);
    let place = place.with_context(|| format!("no feature {feature}"))?;
    // struct ethtool_sfeatures: command, number of pairs, and pairs of words: which to change, and their values.
    let mut change = vec![0; 2 + 2 * count.div_ceil(32)];
    (change[0], change[1]) = (ETHTOOL_SFEATURES, count.div_ceil(32) as u32);
    change[2 + place / 32 * 2] = 1 << (place % 32);
    change[3 + place / 32 * 2] = u32::from(on) << (place % 32);
    let left = ethtool(interface, &mut change)?;
    ensure!(left == 0, "{feature} of {interface} is not changed: {left}");
    Ok(())
}

/// Runs a command of the interface's driver; returns its result.
fn ethtool(interface: &str, command: &mut [u32]) -> Result<i32> {
    // SAFETY: a plain system call without pointers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    let socket = Errno::result(socket).context("socket(AF_INET)")?;
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = command.as_mut_ptr().cast();
    // SAFETY: the request and the target of its pointer outlive the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw const request) };
    Errno::result(done).with_context(|| format!("ethtool command {:#x} of {interface}", command[0]))
}
