//! A probe in progress: a non-blocking socket and the answer it waits for.

use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use nix::poll::PollFlags;
use socket2::{Domain, Socket, Type};

use super::result::ProbeResult;
use crate::ProbeProtocol;
use crate::icmp;
use crate::sctp::{self, Chunk};
use crate::server::after_ip_header;

pub(super) struct Attempt {
    socket: Socket,
    to: SocketAddr,
    wire: RequestKind,
}

/// Kind of a request, with the values that identify its answer.
enum RequestKind {
    Connecting(String),
    Stream(String, Vec<u8>),
    Udp(String),
    Sctp { port: u16, tag: u32 },
    Icmp { identifier: u16 },
}

impl Attempt {
    /// Opens the socket, in the namespace of the calling thread.
    pub(super) fn open(protocol: ProbeProtocol, to: SocketAddr) -> io::Result<Self> {
        let (kind, number, wire) = match protocol {
            ProbeProtocol::Tcp => (Type::STREAM, 0, RequestKind::Connecting(nonce())),
            ProbeProtocol::Udp => (Type::DGRAM, 0, RequestKind::Udp(nonce())),
            ProbeProtocol::Sctp => {
                let port = 32_768 | unique();
                let tag = u32::from(unique()) << 16 | u32::from(port);
                (Type::RAW, libc::IPPROTO_SCTP, RequestKind::Sctp { port, tag })
            }
            ProbeProtocol::Icmp => {
                let number = if to.is_ipv6() { libc::IPPROTO_ICMPV6 } else { libc::IPPROTO_ICMP };
                (Type::RAW, number, RequestKind::Icmp { identifier: unique() })
            }
        };
        let number = (number != 0).then(|| number.into());
        let socket = Socket::new(Domain::for_address(to), kind, number)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, to, wire })
    }

    /// Connects, and sends the first request.
    pub(super) fn start(&mut self) -> io::Result<()> {
        let mut to = self.to;
        if matches!(self.wire, RequestKind::Sctp { .. } | RequestKind::Icmp { .. }) {
            // A raw IPv6 socket interprets the port as a protocol number.
            to.set_port(0);
        }
        match self.socket.connect(&to.into()) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
            _ => {}
        }
        self.repeat()
    }

    /// Sends the request again; does nothing for a connection.
    pub(super) fn repeat(&mut self) -> io::Result<()> {
        let request = match &self.wire {
            RequestKind::Connecting(_) | RequestKind::Stream(..) => return Ok(()),
            RequestKind::Udp(nonce) => format!("{nonce}\n").into_bytes(),
            RequestKind::Sctp { port, tag } => sctp::init(*port, self.to.port(), *tag),
            RequestKind::Icmp { identifier } => icmp::echo(self.to.is_ipv6(), *identifier),
        };
        self.socket.send(&request).map(drop)
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn interest(&self) -> PollFlags {
        if let RequestKind::Connecting(_) = self.wire {
            PollFlags::POLLOUT
        } else {
            PollFlags::POLLIN
        }
    }

    /// Continues after the socket became ready; `None`: no answer yet.
    pub(super) fn turn(&mut self) -> io::Result<Option<ProbeResult>> {
        if let RequestKind::Connecting(nonce) = &self.wire {
            if let Some(error) = self.socket.take_error()? {
                return Err(error);
            }
            self.socket.send(format!("{nonce}\n").as_bytes())?;
            self.wire = RequestKind::Stream(nonce.clone(), Vec::new());
            return Ok(None);
        }
        let mut buffer = [0; 2048];
        loop {
            let length = match (&self.socket).read(&mut buffer) {
                Ok(length) => length,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let answer = self.read(&buffer[..length])?;
            if answer.is_some() {
                return Ok(answer);
            }
        }
    }

    fn read(&mut self, data: &[u8]) -> io::Result<Option<ProbeResult>> {
        let v6 = self.to.is_ipv6();
        Ok(match &mut self.wire {
            RequestKind::Connecting(_) => None,
            RequestKind::Stream(nonce, pending) => {
                if data.is_empty() {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                pending.extend(data);
                named_answer(pending, nonce)
            }
            RequestKind::Udp(nonce) => named_answer(data, nonce),
            RequestKind::Sctp { port, tag } => {
                let data = if v6 { data } else { after_ip_header(data) };
                sctp_answer(data, self.to.port(), *port, *tag)
            }
            RequestKind::Icmp { identifier } => {
                let data = if v6 { data } else { after_ip_header(data) };
                let reply = icmp::is_reply(v6, *identifier, data);
                reply.then(|| ProbeResult::Connected(String::new()))
            }
        })
    }
}

/// A text unique among the requests of this process.
pub(crate) fn nonce() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{:x}-{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Parses `<name> <nonce>` and the end of the line.
fn named_answer(data: &[u8], nonce: &str) -> Option<ProbeResult> {
    let line = std::str::from_utf8(data).ok()?.strip_suffix('\n')?;
    let name = line.strip_suffix(nonce)?.strip_suffix(' ')?;
    Some(ProbeResult::Connected(name.into()))
}

fn sctp_answer(data: &[u8], from: u16, to: u16, tag: u32) -> Option<ProbeResult> {
    let packet = sctp::parse(data)?;
    if (packet.source, packet.destination, packet.tag) != (from, to, tag) {
        return None;
    }
    match packet.chunk {
        Chunk::InitAck { cookie } => {
            Some(ProbeResult::Connected(String::from_utf8_lossy(cookie).into_owned()))
        }
        Chunk::Abort => Some(ProbeResult::Refused),
        Chunk::Init { .. } => None,
    }
}

/// A number that distinguishes raw sockets, since each sees the packets of all.
fn unique() -> u16 {
    static COUNT: AtomicU16 = AtomicU16::new(1);
    COUNT.fetch_add(1, Ordering::Relaxed)
}
