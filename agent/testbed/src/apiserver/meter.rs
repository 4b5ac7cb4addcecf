//! A proxy to an API server that counts bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::server::ApiServer;

/// Maximum number of bytes passed on at once.
const CHUNK: usize = 1 << 16;

/// A port that leads to an API server and counts the bytes its clients receive and send: payload of TCP segments, TLS
/// included. Dropping it ends all its connections.
#[derive(Debug)]
pub struct Meter {
    address: SocketAddr,
    shared: Arc<MeterState>,
}

/// Counters of a [`Meter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Bytes from the server.
    pub received: u64,
    /// Bytes to the server.
    pub sent: u64,
    /// Number of connections.
    pub connections: u64,
}

#[derive(Debug)]
struct MeterState {
    server: SocketAddr,
    received: AtomicU64,
    sent: AtomicU64,
    connections: AtomicU64,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
    /// Time of the last bytes in either direction.
    last: Mutex<Instant>,
}

impl ApiServer {
    /// A counting proxy to this server, which stays valid after a restart of the server.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn meter(&self) -> Result<Meter> {
        let server = SocketAddr::new(self.address(), self.port());
        // Threads stay in the namespace of the thread that started them.
        self.inside(|| Meter::start(server))?
    }
}

impl Meter {
    fn start(server: SocketAddr) -> Result<Self> {
        let any = SocketAddr::new(server.ip(), 0);
        let listener = TcpListener::bind(any).context("no port for counting")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(MeterState {
            server,
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            open: Mutex::default(),
            last: Mutex::new(Instant::now()),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept(&listener));
        Ok(Self { address, shared })
    }

    /// `https://ADDRESS:PORT`; the server's certificate is valid for it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Counters so far.
    #[must_use]
    pub fn passed(&self) -> Passed {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let MeterState { received, sent, connections, .. } = &*self.shared;
        Passed { received: of(received), sent: of(sent), connections: of(connections) }
    }

    /// Time since the last bytes in either direction.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.shared.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        for stream in self.shared.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // The connection wakes the accepting thread.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(100));
    }
}

impl MeterState {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            // While the server is down, the client's connection ends at once.
            let Some((client, server)) = client.ok().and_then(|client| self.connect(client)) else {
                continue;
            };
            self.connections.fetch_add(1, Ordering::Relaxed);
            let Some((to, from)) = client.try_clone().ok().zip(server.try_clone().ok()) else {
                continue;
            };
            let (up, down) = (Arc::clone(self), Arc::clone(self));
            std::thread::spawn(move || up.pass(client, server, &up.sent));
            std::thread::spawn(move || down.pass(from, to, &down.received));
        }
    }

    fn connect(&self, client: TcpStream) -> Option<(TcpStream, TcpStream)> {
        let server = TcpStream::connect(self.server).ok()?;
        client.set_nodelay(true).ok()?;
        server.set_nodelay(true).ok()?;
        let kept = [client.try_clone().ok()?, server.try_clone().ok()?];
        self.open.lock().unwrap_or_else(PoisonError::into_inner).extend(kept);
        Some((client, server))
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, counter: &AtomicU64) {
        let mut buffer = vec![0; CHUNK];
        while let Ok(length) = from.read(&mut buffer) {
            if length == 0 || to.write_all(&buffer[..length]).is_err() {
                break;
            }
            counter.fetch_add(length as u64, Ordering::Relaxed);
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        for stream in [from, to] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
