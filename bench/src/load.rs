//! Load between two namespaces over plain sockets: streams, requests, connections, datagrams.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netpold_testbed::Netns;

use crate::cluster::PORT;
use crate::control::percentile;

/// Results of one run of all loads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadResults {
    /// Gbit/s of one TCP stream.
    pub(crate) stream: f64,
    /// Microseconds from a one-byte request to its answer, over one connection; median.
    pub(crate) request_p50: f64,
    /// Microseconds, 99th percentile.
    pub(crate) request_p99: f64,
    /// Sequential connections per second: opened, one byte each way, closed.
    pub(crate) connections: f64,
    /// UDP packets of 60 bytes received per second from one sender.
    pub(crate) datagrams: f64,
}

/// Servers in one namespace, clients in another.
pub(crate) struct TrafficLoad<'a> {
    client: &'a Netns,
    address: IpAddr,
    listener: TcpListener,
    socket: UdpSocket,
}

/// Bytes per read and write of a stream.
const CHUNK: usize = 128 << 10;
/// Payload that makes a frame 60 bytes long.
const PAYLOAD: [u8; 18] = [0; 18];
/// Timeout of every operation.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time without a datagram after which all have arrived.
const QUIET: Duration = Duration::from_millis(20);

impl<'a> TrafficLoad<'a> {
    /// Listens on [`PORT`] of the server's address.
    ///
    /// # Errors
    /// The sockets cannot be opened.
    pub(crate) fn new(client: &'a Netns, server: &Netns, address: IpAddr) -> Result<Self> {
        let at = SocketAddr::new(address, PORT);
        let (listener, socket) = server.run(|| (TcpListener::bind(at), UdpSocket::bind(at)))?;
        let socket = socket.context("cannot open a UDP socket")?;
        socket.set_read_timeout(Some(QUIET))?;
        Ok(Self { client, address, listener: listener.context("cannot listen")?, socket })
    }

    /// Runs each load once, for this time.
    ///
    /// # Errors
    /// A connection is not allowed or breaks.
    pub(crate) fn run(&self, time: Duration) -> Result<LoadResults> {
        let stream = self.stream(time).context("TCP stream")?;
        let times = self.requests(time).context("TCP requests")?;
        ensure!(!times.is_empty(), "no request was answered");
        Ok(LoadResults {
            stream,
            request_p50: percentile(&times, 0.5),
            request_p99: percentile(&times, 0.99),
            connections: self.connections(time).context("TCP connections")?,
            datagrams: self.datagrams(time).context("UDP")?,
        })
    }

    /// Whether a connection to a port without listener is dropped on its way, instead of refused by the server.
    pub(crate) fn is_cut(&self, port: u16) -> Result<bool> {
        let at = SocketAddr::new(self.address, port);
        let patience = Duration::from_millis(200);
        let result = self.client.run(|| TcpStream::connect_timeout(&at, patience))?;
        Ok(result.is_err_and(|error| error.kind() == std::io::ErrorKind::TimedOut))
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&SocketAddr::new(self.address, PORT), PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Runs a client in its namespace and a server thread with the listener.
    fn against<S: Send, C: Send>(
        &self,
        server: impl FnOnce(&TcpListener) -> std::io::Result<S> + Send,
        client: impl FnOnce() -> std::io::Result<C> + Send,
    ) -> Result<(S, C)> {
        thread::scope(|scope| {
            let served = scope.spawn(|| server(&self.listener));
            let answer = self.client.run(client)?.context("client")?;
            let served = served.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((served.context("server")?, answer))
        })
    }

    fn stream(&self, time: Duration) -> Result<f64> {
        let server = |listener: &TcpListener| {
            let (mut stream, _) = listener.accept()?;
            let mut chunk = vec![0; CHUNK];
            let mut bytes = 0;
            loop {
                match stream.read(&mut chunk)? {
                    0 => return Ok((bytes, Instant::now())),
                    read => bytes += read,
                }
            }
        };
        let client = || {
            let mut stream = self.connect()?;
            let chunk = vec![0; CHUNK];
            let start = Instant::now();
            while start.elapsed() < time {
                stream.write_all(&chunk)?;
            }
            Ok(start)
        };
        let ((bytes, end), start) = self.against(server, client)?;
        Ok(bytes as f64 * 8.0 / 1e9 / (end - start).as_secs_f64())
    }

    /// Microseconds per request.
    fn requests(&self, time: Duration) -> Result<Vec<f64>> {
        let server = |listener: &TcpListener| {
            let (mut stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            let mut byte = [0];
            while stream.read(&mut byte)? == 1 {
                stream.write_all(&byte)?;
            }
            Ok(())
        };
        let client = || {
            let mut stream = self.connect()?;
            let mut times = Vec::new();
            let begin = Instant::now();
            while begin.elapsed() < time {
                let start = Instant::now();
                exchange(&mut stream, 1)?;
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
            Ok(times)
        };
        Ok(self.against(server, client)?.1)
    }

    fn connections(&self, time: Duration) -> Result<f64> {
        const LAST: u8 = 9;
        // The server closes first, so that ports of the client are free again at once.
        let server = |listener: &TcpListener| {
            let mut byte = [0];
            while byte[0] != LAST {
                let (mut stream, _) = listener.accept()?;
                stream.read_exact(&mut byte)?;
                stream.write_all(&byte)?;
            }
            Ok(())
        };
        let client = || {
            let begin = Instant::now();
            let mut count = 0_u32;
            while begin.elapsed() < time {
                let mut stream = self.connect()?;
                exchange(&mut stream, 1)?;
                stream.read_to_end(&mut Vec::new())?;
                count += 1;
            }
            let took = begin.elapsed();
            exchange(&mut self.connect()?, LAST)?;
            Ok(f64::from(count) / took.as_secs_f64())
        };
        Ok(self.against(server, client)?.1)
    }

    fn datagrams(&self, time: Duration) -> Result<f64> {
        thread::scope(|scope| {
            let sender = scope.spawn(|| self.client.run(|| self.send_datagrams(time)));
            let mut count = 0_u32;
            let mut first_and_last = None;
            let mut buffer = [0; 64];
            while !sender.is_finished() || first_and_last.is_none() {
                while self.socket.recv(&mut buffer).is_ok() {
                    let now = Instant::now();
                    let (first, _) = first_and_last.unwrap_or((now, now));
                    first_and_last = Some((first, now));
                    count += 1;
                }
                if sender.is_finished() {
                    break;
                }
            }
            sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))??;
            let (first, last) = first_and_last.context("no packet arrived")?;
            ensure!(count > 1, "only one packet arrived");
            Ok(f64::from(count) / (last - first).as_secs_f64())
        })
    }

    fn send_datagrams(&self, time: Duration) -> Result<()> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(SocketAddr::new(self.address, PORT))?;
        let begin = Instant::now();
        while begin.elapsed() < time {
            for _ in 0..64 {
                socket.send(&PAYLOAD)?;
            }
        }
        Ok(())
    }
}

/// Sends a byte and receives one.
fn exchange(stream: &mut TcpStream, byte: u8) -> std::io::Result<()> {
    let mut answer = [byte];
    stream.write_all(&answer)?;
    stream.read_exact(&mut answer)
}
