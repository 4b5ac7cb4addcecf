//! The servers of one namespace: one thread that answers every request with the host's name.
//!
//! A request is a line (TCP) or a datagram (UDP); the answer is `<name> <request>`, so the request identifies its
//! answer.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Socket, Type};

use crate::ProbeProtocol;
use crate::message;
use crate::netns::Netns;
use crate::sctp::{self, Chunk};

/// The thread and its inbox. Closing `wake` ends the thread.
#[derive(Debug)]
pub(crate) struct Servers {
    name: String,
    sctp_ports: Arc<Mutex<BTreeSet<u16>>>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    inbox: Sender<Item>,
    wake: UnixStream,
    thread: JoinHandle<()>,
    speaks_sctp: bool,
}

/// A socket that the thread polls.
enum Item {
    Listener(Socket),
    Connection(TcpStream, Vec<u8>),
    Udp(Socket),
    Sctp(Socket, /* IPv4: the IP header comes first */ bool),
}

impl Servers {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), sctp_ports: Arc::default(), running: Mutex::default() }
    }

    /// Serves a port on both families. When this returns, the port answers.
    pub(crate) fn serve(&self, netns: &Netns, protocol: ProbeProtocol, port: u16) -> Result<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            *running = Some(self.start()?);
        }
        let Some(running) = running.as_mut() else { return Ok(()) };
        let what = || format!("{} cannot serve {protocol} port {port}", self.name);
        let items = match protocol {
            ProbeProtocol::Tcp => {
                vec![Item::Listener(netns.run(|| listener(port))?.with_context(what)?)]
            }
            ProbeProtocol::Udp => vec![Item::Udp(netns.run(|| udp(port))?.with_context(what)?)],
            ProbeProtocol::Sctp => {
                self.sctp_ports.lock().unwrap_or_else(PoisonError::into_inner).insert(port);
                if std::mem::replace(&mut running.speaks_sctp, true) {
                    return Ok(());
                }
                let v4 = netns.run(|| raw_sctp(Domain::IPV4))?.with_context(what)?;
                let v6 = netns.run(|| raw_sctp(Domain::IPV6))?.with_context(what)?;
                vec![Item::Sctp(v4, true), Item::Sctp(v6, false)]
            }
            ProbeProtocol::Icmp => {
                bail!("the kernel answers echo requests, there is nothing to serve")
            }
        };
        for item in items {
            running.inbox.send(item).ok().context("the server thread is gone")?;
        }
        running.wake.write_all(b"!").context("the server thread is gone")
    }

    fn start(&self) -> Result<Running> {
        let (inbox, items) = channel();
        let (wake, waker) = UnixStream::pair().context("socketpair")?;
        waker.set_nonblocking(true)?;
        let server = ServerThread {
            name: self.name.clone(),
            sctp_ports: Arc::clone(&self.sctp_ports),
            items,
        };
        let thread = std::thread::Builder::new()
            .name(format!("serve {}", self.name))
            .spawn(move || server.run(&waker))
            .context("cannot start a server thread")?;
        Ok(Running { inbox, wake, thread, speaks_sctp: false })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Running { wake, thread, .. }) = running {
            drop(wake);
            let _ = thread.join();
        }
    }
}

/// The data of the thread.
struct ServerThread {
    name: String,
    sctp_ports: Arc<Mutex<BTreeSet<u16>>>,
    items: Receiver<Item>,
}

impl ServerThread {
    fn run(&self, mut waker: &UnixStream) {
        let mut items: Vec<Item> = Vec::new();
        loop {
            let mut fds: Vec<PollFd<'_>> =
                items.iter().map(|i| PollFd::new(i.fd(), PollFlags::POLLIN)).collect();
            fds.push(PollFd::new(waker.as_fd(), PollFlags::POLLIN));
            if poll(&mut fds, PollTimeout::NONE).is_err() {
                continue;
            }
            let mut ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            if ready.pop() == Some(true) {
                let mut bytes = [0; 64];
                if matches!(waker.read(&mut bytes), Ok(0)) {
                    return;
                }
            }
            let mut next = Vec::with_capacity(items.len() + 1);
            for (item, ready) in items.drain(..).zip(ready) {
                if ready { self.turn(item, &mut next) } else { next.push(item) }
            }
            next.extend(self.items.try_iter());
            items = next;
        }
    }

    /// Handles a ready item; pushes the item if it stays, and new items.
    fn turn(&self, item: Item, stay: &mut Vec<Item>) {
        match item {
            Item::Listener(socket) => {
                while let Ok((connection, _)) = socket.accept() {
                    if connection.set_nonblocking(true).is_ok() {
                        stay.push(Item::Connection(connection.into(), Vec::new()));
                    }
                }
                stay.push(Item::Listener(socket));
            }
            Item::Connection(stream, pending) => stay.extend(self.answer_lines(stream, pending)),
            Item::Udp(socket) => {
                let mut buffer = [0; 2048];
                while let Ok(Some(request)) = message::receive(&socket, &mut buffer) {
                    let answer = [self.name.as_bytes(), b" ", &buffer[..request.length]].concat();
                    let _ = message::reply(&socket, &request, &answer);
                }
                stay.push(Item::Udp(socket));
            }
            Item::Sctp(socket, v4) => {
                self.answer_inits(&socket, v4);
                stay.push(Item::Sctp(socket, v4));
            }
        }
    }

    /// Answers complete lines; `None` when the peer has closed.
    fn answer_lines(&self, mut stream: TcpStream, mut pending: Vec<u8>) -> Option<Item> {
        let mut buffer = [0; 4096];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(n) => pending.extend(&buffer[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        while let Some(end) = pending.iter().position(|b| *b == b'\n') {
            let request: Vec<u8> = pending.drain(..=end).collect();
            stream.write_all(&[self.name.as_bytes(), b" ", &request].concat()).ok()?;
        }
        Some(Item::Connection(stream, pending))
    }

    fn answer_inits(&self, socket: &Socket, v4: bool) {
        let mut buffer = [0; 2048];
        while let Ok(Some(request)) = message::receive(socket, &mut buffer) {
            let packet = &buffer[..request.length];
            let packet = if v4 { after_ip_header(packet) } else { packet };
            let Some(asked) = sctp::parse(packet) else { continue };
            let Chunk::Init { tag } = asked.chunk else { continue };
            let ports = self.sctp_ports.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = if ports.contains(&asked.destination) {
                sctp::init_ack(asked.destination, asked.source, tag, self.name.as_bytes())
            } else {
                sctp::abort(asked.destination, asked.source, tag)
            };
            let _ = message::reply(socket, &request, &answer);
        }
    }
}

impl Item {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Listener(s) | Self::Udp(s) | Self::Sctp(s, _) => s.as_fd(),
            Self::Connection(s, _) => s.as_fd(),
        }
    }
}

/// Removes the IP header, options included, which a raw IPv4 socket delivers.
pub(crate) fn after_ip_header(packet: &[u8]) -> &[u8] {
    let length = packet.first().map_or(0, |b| usize::from(b & 0x0f) * 4);
    packet.get(length..).unwrap_or_default()
}

fn listener(port: u16) -> Result<Socket> {
    let socket = dual_stack(Type::STREAM, port)?;
    socket.listen(1024)?;
    Ok(socket)
}

fn udp(port: u16) -> Result<Socket> {
    let socket = dual_stack(Type::DGRAM, port)?;
    message::tell_local(&socket, true)?;
    Ok(socket)
}

fn dual_stack(kind: Type, port: u16) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV6, kind, None)?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(kind == Type::STREAM)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    Ok(socket)
}

fn raw_sctp(domain: Domain) -> Result<Socket> {
    let socket = Socket::new(domain, Type::RAW, Some(libc::IPPROTO_SCTP.into()))?;
    socket.set_nonblocking(true)?;
    message::tell_local(&socket, domain == Domain::IPV6)?;
    Ok(socket)
}
