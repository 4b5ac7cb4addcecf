//! Blocking netlink: connections for rtnetlink requests, listeners for its events, and netfilter requests and batches.
//!
//! Requests to rtnetlink are the library's typed messages. Responses are only split into attributes: a typed parser
//! rejects the whole message if a newer kernel changes one attribute, and the agent needs a handful of them. Sockets
//! stay in the network namespace in which they were opened.

pub mod link;

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_packet_route::RouteNetlinkMessage;
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use rtnetlink::sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use rtnetlink::sys::{Socket, SocketAddr};

/// Size of receive buffers; the kernel's dumps come in pieces of up to 32 KiB.
const BUFFER: usize = 64 * 1024;
/// `struct nfgenmsg`: family, version, resource.
pub const NETFILTER_HEADER: usize = 4;
/// Message types around a batch (`linux/netfilter/nfnetlink.h`).
const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;
/// `NLA_F_NESTED` of `linux/netlink.h`.
pub(crate) const NLA_F_NESTED: u16 = 1 << 15;
/// Attempts to read a dump without a change in the middle.
const DUMP_ATTEMPTS: u32 = 8;

/// One message of a response or event, without the netlink header.
#[derive(Clone, Copy, Debug)]
pub struct MessageBody<'a> {
    /// `RTM_*`
    pub kind: u16,
    /// Fixed header and attributes.
    pub payload: &'a [u8],
}

impl<'a> MessageBody<'a> {
    /// Returns the 32 bits at `offset`, in host byte order.
    #[must_use]
    pub fn word(&self, offset: usize) -> Option<u32> {
        word(self.payload.get(offset..)?)
    }

    /// Returns the attributes after a fixed header of `header` bytes: type without flags, and value.
    pub fn attributes(&self, header: usize) -> impl Iterator<Item = (u16, &'a [u8])> {
        attributes(self.payload.get(header..).unwrap_or_default())
    }
}

/// Returns the attributes in a buffer, up to the first malformed one.
pub fn attributes(buffer: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(buffer).map_while(Result::ok).map(|nla| {
        let (kind, length) = (nla.kind(), nla.value_length());
        let value = nla.into_inner();
        (kind, value.get(4..4 + length).unwrap_or_default())
    })
}

/// Returns the first 32 bits, in host byte order.
#[must_use]
pub fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Connection for requests and their responses.
#[derive(Debug)]
pub struct NetlinkConnection {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl NetlinkConnection {
    /// Opens a connection to the network namespace of the calling thread.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        // Without strict checking (kernel 4.20) the kernel ignores the filters of a dump request.
        socket.set_netlink_get_strict_chk(true)?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(BUFFER) })
    }

    /// Sends a request with acknowledgement. Calls `each` for the messages before the acknowledgement.
    ///
    /// # Errors
    /// The kernel's or the socket's error.
    pub fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(MessageBody<'_>),
    ) -> io::Result<()> {
        self.send(message, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        self.answers(&mut each).map(drop)
    }

    /// Requests a dump and collects the items. If the kernel reports an inconsistent dump, starts again, up to
    /// [`DUMP_ATTEMPTS`] times.
    ///
    /// # Errors
    /// The kernel's or the socket's error; the dump stays inconsistent.
    pub fn dump<T>(
        &mut self,
        message: &RouteNetlinkMessage,
        mut item: impl FnMut(MessageBody<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut items = Vec::new();
            self.send(message.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            if self.answers(&mut |message| items.extend(item(message)))? {
                return Ok(items);
            }
        }
        Err(io::Error::new(ErrorKind::Interrupted, "the list kept changing while it was read"))
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.sequence_number = self.sequence;
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).map(drop)
    }

    /// Calls `each` for every response to the last request. Returns whether the dump is consistent.
    fn answers(&mut self, each: &mut dyn FnMut(MessageBody<'_>)) -> io::Result<bool> {
        let mut consistent = true;
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0)?;
            for (header, message) in messages(&self.buffer) {
                if header.sequence != self.sequence {
                    continue;
                }
                consistent &= header.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => return status(message).map(|()| consistent),
                    _ => each(message),
                }
            }
        }
    }
}

/// Sends netfilter a request (`linux/netfilter/nfnetlink.h`) with attributes for an address family (0: all), in the
/// calling thread's network namespace. `flags` must request a dump or an acknowledgement. Calls `each` for every
/// response.
///
/// # Errors
/// The kernel's or the socket's error.
pub fn ask_netfilter(
    kind: u16,
    flags: u16,
    (family, attributes): (u8, &[u8]),
    mut each: impl FnMut(MessageBody<'_>),
) -> io::Result<()> {
    exchange(&netfilter_message(kind, flags, (family, 0), attributes), 1, &mut each)
}

/// One change within a batch for netfilter: message type without subsystem, flags, address family, attributes.
pub(crate) type NetfilterChange = (u8, u16, u8, Vec<u8>);

/// Sends netfilter changes of one subsystem (`NFNL_SUBSYS_*`) in one batch, in the calling thread's network namespace:
/// all come into force, or none.
///
/// # Errors
/// The kernel's error for the first change that it refuses, or the socket's.
pub(crate) fn change_netfilter(subsystem: u8, changes: &[NetfilterChange]) -> io::Result<()> {
    let subsystem = u16::from(subsystem);
    let mark = |kind| netfilter_message(kind, 0, (0, subsystem), &[]);
    let mut batch = mark(NFNL_MSG_BATCH_BEGIN);
    for (kind, flags, family, attributes) in changes {
        let kind = subsystem << 8 | u16::from(*kind);
        batch.extend(netfilter_message(kind, flags | NLM_F_ACK, (*family, 0), attributes));
    }
    batch.extend(mark(NFNL_MSG_BATCH_END));
    // Each change has one acknowledgement; a batch refused as a whole has one.
    exchange(&batch, changes.len(), &mut |_| ())
}

/// Sends netfilter a request or a batch, and receives until its last acknowledgement or the end of its dump.
fn exchange(
    request: &[u8],
    mut acknowledgements: usize,
    each: &mut dyn FnMut(MessageBody<'_>),
) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.send_to(request, &SocketAddr::new(0, 0), 0)?;
    let mut buffer = Vec::with_capacity(BUFFER);
    while acknowledgements > 0 {
        buffer.clear();
        socket.recv(&mut buffer, 0)?;
        for (_, message) in messages(&buffer) {
            match message.kind {
                NLMSG_DONE | NLMSG_ERROR => {
                    status(message)?;
                    acknowledgements = acknowledgements.saturating_sub(1);
                }
                _ => each(message),
            }
        }
    }
    Ok(())
}

/// Encodes a message to netfilter with its header: address family, and the resource of a batch.
fn netfilter_message(
    kind: u16,
    flags: u16,
    (family, resource): (u8, u16),
    attributes: &[u8],
) -> Vec<u8> {
    let length = (16 + NETFILTER_HEADER + attributes.len()) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes().into_iter().chain((NLM_F_REQUEST | flags).to_ne_bytes()));
    // Sequence number and port, then struct nfgenmsg.
    bytes.extend([0; 8]);
    bytes.extend([family, 0].into_iter().chain(resource.to_be_bytes()));
    bytes.extend(attributes);
    bytes
}

/// Encodes a netlink attribute, padded.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len() as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Fields of the netlink header.
struct Header {
    sequence: u32,
    flags: u16,
}

/// Returns the error in an acknowledgement or at the end of a dump: a negative errno, or 0.
fn status(message: MessageBody<'_>) -> io::Result<()> {
    match message.word(0).map(u32::cast_signed) {
        Some(code) if code < 0 => Err(io::Error::from_raw_os_error(-code)),
        _ => Ok(()),
    }
}

/// Splits received bytes into messages.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (Header, MessageBody<'_>)> {
    std::iter::from_fn(move || {
        let buffer = NetlinkBuffer::new_checked(bytes).ok()?;
        let header = Header { sequence: buffer.sequence_number(), flags: buffer.flags() };
        let message = MessageBody { kind: buffer.message_type(), payload: buffer.payload() };
        let length = (buffer.length() as usize).next_multiple_of(4);
        bytes = bytes.get(length..).unwrap_or_default();
        Some((header, message))
    })
}

/// Receiver of events.
#[derive(Debug)]
pub struct NetlinkListener {
    socket: Socket,
    buffer: Vec<u8>,
}

/// Result of one attempt to receive.
#[derive(Debug, PartialEq, Eq)]
pub enum ReceiveResult {
    /// Messages were received.
    Messages,
    /// No message is waiting.
    Nothing,
    /// Events were lost: the receive buffer was full.
    Overrun,
}

impl NetlinkListener {
    /// Subscribes to multicast groups (`RTNLGRP_*`) of the calling thread's network namespace; with `all_namespaces`
    /// also to those of the namespaces with an identifier in it (`CAP_NET_BROADCAST`).
    ///
    /// # Errors
    /// The socket cannot be opened, or a group is refused.
    pub fn open(groups: &[u32], all_namespaces: bool, receive_buffer: usize) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        // A size beyond net.core.rmem_max needs CAP_NET_ADMIN in the initial user namespace.
        if setsockopt(&socket, RcvBufForce, &receive_buffer).is_err() {
            socket.set_rx_buf_sz(i32::try_from(receive_buffer).unwrap_or(i32::MAX))?;
        }
        if all_namespaces {
            socket.set_listen_all_namespaces(true)?;
        }
        for &group in groups {
            socket.add_membership(group)?;
        }
        Ok(Self { socket, buffer: vec![0; BUFFER] })
    }

    /// Receives once without waiting. `each` also gets the identifier of the sender's namespace, `None` for the
    /// listener's own.
    ///
    /// # Errors
    /// The socket's error.
    pub fn receive(
        &mut self,
        mut each: impl FnMut(Option<i32>, MessageBody<'_>),
    ) -> io::Result<ReceiveResult> {
        let (length, namespace) = match self.receive_raw() {
            Ok(received) => received,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => Ok(ReceiveResult::Nothing),
                    Some(libc::ENOBUFS) => Ok(ReceiveResult::Overrun),
                    _ => Err(error),
                };
            }
        };
        for (_, message) in messages(&self.buffer[..length.min(BUFFER)]) {
            each(namespace, message);
        }
        Ok(ReceiveResult::Messages)
    }

    fn receive_raw(&mut self) -> io::Result<(usize, Option<i32>)> {
        // Room for one control message with an int, aligned as cmsghdr must be.
        let mut control = [0u64; 8];
        let mut data =
            libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
        // SAFETY: all fields of msghdr may be zero.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut data;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        // SAFETY: the header describes buffers that outlive the call.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, 0) };
        let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the kernel filled in a valid header and control messages.
        Ok((length, unsafe { namespace_id(&header) }))
    }
}

impl AsFd for NetlinkListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the namespace identifier in the ancillary data of a message from another namespace.
///
/// # Safety
/// `header` was filled in by recvmsg, and its control buffer still exists.
unsafe fn namespace_id(header: &libc::msghdr) -> Option<i32> {
    // SAFETY: the caller's promise.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: null or within msg_controllen, as CMSG_FIRSTHDR and CMSG_NXTHDR give it.
    while let Some(control) = unsafe { next.as_ref() } {
        if control.cmsg_level == libc::SOL_NETLINK
            && control.cmsg_type == libc::NETLINK_LISTEN_ALL_NSID
        {
            // SAFETY: a header within msg_controllen.
            let data = unsafe { libc::CMSG_DATA(control) }.cast::<[u8; 4]>();
            // SAFETY: the content of this control message is an int.
            return Some(i32::from_ne_bytes(unsafe { data.read() }));
        }
        // SAFETY: as before.
        next = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
    None
}
