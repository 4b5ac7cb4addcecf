//! Flows that stay open while policies change around them.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use socket2::{Domain, Socket, Type};

use crate::ProbeProtocol;
use crate::host::Host;
use crate::probe::nonce;

impl Host {
    /// Opens a lasting flow, over TCP or UDP.
    ///
    /// # Errors
    /// When the connection is not established in time.
    pub fn open_flow(
        &self,
        protocol: ProbeProtocol,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<TestFlow> {
        TestFlow::open(self, None, (protocol, to), timeout)
    }

    /// [`Host::open_flow`] from a given address and port.
    ///
    /// # Errors
    /// As [`Host::open_flow`], and when that port is taken.
    pub fn open_flow_from(
        &self,
        own: SocketAddr,
        protocol: ProbeProtocol,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<TestFlow> {
        TestFlow::open(self, Some(own), (protocol, to), timeout)
    }
}

/// An open TCP connection, or a UDP socket that keeps its port.
#[derive(Debug)]
pub struct TestFlow {
    socket: Socket,
    protocol: ProbeProtocol,
    pending: Vec<u8>,
}

impl TestFlow {
    pub(crate) fn open(
        from: &Host,
        own: Option<SocketAddr>,
        (protocol, to): (ProbeProtocol, SocketAddr),
        timeout: Duration,
    ) -> Result<Self> {
        let kind = match protocol {
            ProbeProtocol::Tcp => Type::STREAM,
            ProbeProtocol::Udp => Type::DGRAM,
            ProbeProtocol::Sctp | ProbeProtocol::Icmp => {
                bail!("{protocol} has no flows that stay open here")
            }
        };
        let socket = from.run(|| Socket::new(Domain::for_address(to), kind, None))?;
        let socket = socket.context("socket")?;
        if let Some(own) = own {
            // Zero linger ends the connection with a reset, which frees the port.
            socket.set_linger(Some(Duration::ZERO))?;
            socket.bind(&own.into()).with_context(|| format!("{} has no {own}", from.name()))?;
        }
        socket
            .connect_timeout(&to.into(), timeout)
            .with_context(|| format!("{} cannot connect to {to}", from.name()))?;
        socket.set_nonblocking(false)?;
        if protocol == ProbeProtocol::Tcp {
            socket.set_tcp_nodelay(true)?;
        }
        Ok(Self { socket, protocol, pending: Vec::new() })
    }

    /// Sends a request and returns whether its answer arrived in time. The kernel sends a lost TCP request again (at
    /// least once a second where `tcp_rto_max_ms` exists), so a flow that is allowed again resumes after that time. A
    /// UDP request is sent twice.
    pub fn ping(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let request = format!("{}\n", nonce());
        if self.protocol == ProbeProtocol::Udp {
            let middle = Instant::now() + timeout / 2;
            return self.ask(&request, middle) || self.ask(&request, deadline);
        }
        self.ask(&request, deadline)
    }

    /// Local address and port.
    ///
    /// # Errors
    /// Errors of getsockname(2).
    pub fn local(&self) -> Result<SocketAddr> {
        self.socket.local_addr()?.as_socket().context("not an IP socket")
    }

    fn ask(&mut self, request: &str, deadline: Instant) -> bool {
        if self.socket.send(request.as_bytes()).is_err() {
            return false;
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.socket.set_read_timeout(Some(left)).is_err() {
                return false;
            }
            let mut buffer = [0; 4096];
            match std::io::Read::read(&mut &self.socket, &mut buffer) {
                Ok(0) => return false,
                Ok(n) => self.pending.extend(&buffer[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => return false,
            }
            if self.answers().any(|line| line.ends_with(request.as_bytes())) {
                return true;
            }
        }
    }

    /// Takes the complete lines out of `pending`.
    fn answers(&mut self) -> impl Iterator<Item = Vec<u8>> + use<> {
        let end = self.pending.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        let lines: Vec<u8> = self.pending.drain(..end).collect();
        lines.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter()
    }
}
