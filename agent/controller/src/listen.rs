//! The HTTP listener: `/metrics`, `/livez`, `/readyz`. It holds no secret and changes nothing. Pods always reach their
//! own node, so no client may block others: a connection serves one request, has a deadline, and takes one of the few
//! places of its source ([`ConnectionSlots`]). Connections of the node itself need no place.

mod places;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tracing::{debug, info};

pub(crate) use places::{ConnectionLimits, ConnectionSlots, ConnectionSource};

/// Limits of concurrent connections from elsewhere. One address may hide two Prometheus servers and a few people; no
/// scraper has a link-local address.
const LIMITS: ConnectionLimits = ConnectionLimits { total: 64, of_source: 4, of_link_local: 8 };
/// Media type of metrics.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Longest duration of a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for the header of a request.
const HEADER_PATIENCE: Duration = Duration::from_secs(2);
/// Longest time between turns of the main loop. It turns every ten seconds at least; an update of the largest cluster
/// takes seconds.
const STALLED: Duration = Duration::from_mins(2);

/// Address of a listener: `ADDRESS:PORT`, or `:PORT` for every address of both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    address: Option<IpAddr>,
    port: u16,
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
            return Ok(Self { address: None, port });
        }
        let listed: SocketAddr = text.parse().map_err(|_| {
            "give ADDRESS:PORT, [IPv6]:PORT or :PORT, as in 127.0.0.1:9417".to_owned()
        })?;
        Ok(Self { address: Some(listed.ip()), port: listed.port() })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => SocketAddr::new(address, self.port).fmt(f),
            None => write!(f, ":{}", self.port),
        }
    }
}

impl ListenAddress {
    pub(crate) fn bind(self) -> io::Result<std::net::TcpListener> {
        let bind = |address: IpAddr| std::net::TcpListener::bind((address, self.port));
        let listener = match self.address {
            Some(address) => bind(address),
            // By default the kernel accepts both families there; it may lack IPv6.
            None => bind(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| {
                if error.kind() == io::ErrorKind::AddrInUse {
                    Err(error)
                } else {
                    bind(Ipv4Addr::UNSPECIFIED.into())
                }
            }),
        }?;
        listener.set_nonblocking(true).map(|()| listener)
    }
}

/// Failure to open the listener.
#[derive(Debug, thiserror::Error)]
#[error("--listen {address}: {cause}; choose another address, or omit the option")]
pub struct ListenError {
    address: ListenAddress,
    cause: io::Error,
}

/// Liveness of the main loop.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    start: Instant,
    last: Arc<AtomicU64>,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self { start: Instant::now(), last: Arc::default() }
    }
}

impl Heartbeat {
    /// Records a turn of the loop.
    pub fn beat(&self) {
        self.last.store(self.start.elapsed().as_secs(), Ordering::Relaxed);
    }

    /// Answers `/livez`.
    #[must_use]
    pub fn live(&self) -> (StatusCode, String) {
        match self.stalled(Instant::now()) {
            None => (StatusCode::OK, "ok\n".to_owned()),
            Some(since) => {
                let text = format!("main loop stalled for {} s\n", since.as_secs());
                (StatusCode::SERVICE_UNAVAILABLE, text)
            }
        }
    }

    /// Time since the last turn of the loop, if above [`STALLED`].
    fn stalled(&self, now: Instant) -> Option<Duration> {
        let last = Duration::from_secs(self.last.load(Ordering::Relaxed));
        let since = now.saturating_duration_since(self.start).saturating_sub(last);
        (since > STALLED).then_some(since)
    }
}

/// A listener that is being served. Dropping it ends the service.
#[derive(Debug)]
pub struct Listener {
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    /// Opens a listener with these routes. Needs a tokio runtime.
    ///
    /// # Errors
    /// The address is in use, or is not an address of this machine.
    pub fn serve(address: ListenAddress, router: Router) -> Result<Self, ListenError> {
        let opened = address.bind().and_then(TcpListener::from_std);
        let listener = opened.map_err(|cause| ListenError { address, cause })?;
        info!(%address, "serving /metrics, /livez and /readyz");
        let serve = move |stream| serve(stream, router.clone());
        Ok(Self { task: tokio::spawn(accept(listener, ConnectionSlots::new(LIMITS), serve)) })
    }
}

/// Admission of a new connection.
pub(crate) enum Admission<'p> {
    /// The connection is served without a place.
    Free,
    /// The connection takes one of these places.
    In(&'p mut ConnectionSlots),
    /// The connection is closed.
    Refused,
}

/// Serves connections until the future is dropped.
pub(crate) async fn accept<S: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    mut places: impl AdmitConnection,
    serve: impl Fn(TcpStream) -> S,
) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match places.admit(&stream, peer) {
                Admission::Refused => debug!(%peer, "connection refused"),
                Admission::Free => drop(tokio::spawn(serve(stream))),
                Admission::In(places) => {
                    let served = tokio::spawn(serve(stream));
                    places.add_connection(ConnectionSource::from_peer(peer), served.abort_handle());
                }
            },
            Err(error) => {
                // Most likely out of file descriptors: give other connections time to end.
                debug!("listener: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Decides about new connections.
pub(crate) trait AdmitConnection {
    /// Returns the admission of a connection from `peer`.
    fn admit(&mut self, stream: &TcpStream, peer: SocketAddr) -> Admission<'_>;
}

impl AdmitConnection for ConnectionSlots {
    fn admit(&mut self, stream: &TcpStream, peer: SocketAddr) -> Admission<'_> {
        if is_own(stream, peer) { Admission::Free } else { Admission::In(self) }
    }
}

/// Whether the connection comes from the node itself, from one address to the same one, as with the kubelet's probes.
fn is_own(stream: &TcpStream, peer: SocketAddr) -> bool {
    stream.local_addr().is_ok_and(|local| local.ip() == peer.ip())
}

async fn serve(stream: TcpStream, router: Router) {
    let service = TowerToHyperService::new(router);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_PATIENCE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(PATIENCE, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!("HTTP connection: {error}"),
        Err(_) => debug!("HTTP connection: client timed out"),
    }
}

/// Builds the response to a scrape.
#[must_use]
pub fn metrics_response(text: Result<String, fmt::Error>) -> Response {
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for text in ["127.0.0.1:9417", "[fd00::1]:9417", ":9417"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["", "9417", ":", ":x", "localhost:9417", "fd00::1", "10.0.0.1", ":70000"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_loop_that_does_not_turn_is_noticed() {
        let heartbeat = Heartbeat::default();
        let start = heartbeat.start;
        assert_eq!(heartbeat.stalled(start + STALLED), None);
        let late = STALLED + Duration::from_secs(1);
        assert_eq!(heartbeat.stalled(start + late), Some(late));
        heartbeat.last.store(60, Ordering::Relaxed);
        assert_eq!(heartbeat.stalled(start + late), None);
    }
}
