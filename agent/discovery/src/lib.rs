//! Endpoint discovery: reports the node's interfaces and the addresses behind them, by netlink alone.
//!
//! The interface of an endpoint is a veth in the agent's network namespace with its peer in another one. Discovery
//! reports the veth's name, the host routes through the veth and the global addresses of the peer;
//! `netpold_core::bindings` derives the pod from them. Discovery assumes no naming convention and asks no container
//! runtime.
//!
//! One thread listens to three sources, all in the namespace of the caller of [`Discovery::start`]:
//! - Link and route events of that namespace: veths appear, disappear and change.
//! - Address events of every namespace with an identifier in that namespace, so that no polling is needed. The kernel
//!   assigns the identifier when it reports a veth with a peer in the other namespace. Needs `CAP_NET_BROADCAST`. A
//!   pod can cause any number of these events; the number of queries per interface is bounded.
//! - Timers: an interface without an address is queried again at growing intervals, and a full listing every
//!   [`DiscoverySettings::rescan`] covers lost events.
//!
//! The same events and listings describe the node's other devices, see [`DiscoveryEvent::Devices`].
//!
//! Discovery sends only differences. Lost events (overrun of the socket's buffer) cause a listing at once. Discovery is
//! a thread and not a task, because a listing waits for the kernel's RTNL lock, which the removal of a namespace holds
//! for tens of milliseconds.

mod device;
mod event;
mod inventory;
mod listening;
mod message;
pub mod newcomers;
mod table;
mod worker;

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use netpold_dataplane::netlink::{NetlinkConnection, NetlinkListener};
use tokio::sync::mpsc;

pub use device::Device;
pub use event::DiscoveryEvent;
use listening::Listening;
use worker::Worker;
pub use worker::{DiscoveryCounters, SERVICE_DEVICE};

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_ROUTE`
const OWN_GROUPS: [u32; 3] = [1, 7, 11];
/// `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR`
const ADDRESS_GROUPS: [u32; 2] = [5, 9];

/// Parameters of discovery.
#[derive(Clone, Copy, Debug)]
pub struct DiscoverySettings {
    /// Interval of full listings.
    pub rescan: Duration,
    /// Receive buffer of each event socket, in bytes.
    pub receive_buffer: usize,
}

impl Default for DiscoverySettings {
    fn default() -> Self {
        Self { rescan: Duration::from_secs(5), receive_buffer: 4 << 20 }
    }
}

/// Failure to start discovery.
#[derive(Debug, thiserror::Error)]
#[error("endpoint discovery: {operation}: {cause}")]
pub struct DiscoveryError {
    operation: &'static str,
    cause: io::Error,
}

/// Running discovery; stops on drop.
#[derive(Debug)]
pub struct Discovery {
    counters: Arc<DiscoveryCounters>,
    /// Write end; its close stops the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Discovery {
    /// Starts discovery in the network namespace of the calling thread. Discovery ends when the receiver of `events` or
    /// the returned value is dropped.
    ///
    /// # Errors
    /// A netlink socket or the thread cannot be created.
    pub fn start(
        settings: DiscoverySettings,
        events: mpsc::Sender<DiscoveryEvent>,
    ) -> Result<Self, DiscoveryError> {
        let failed = |operation| move |cause| DiscoveryError { operation, cause };
        let buffer = settings.receive_buffer;
        let (stop, stopped) = UnixStream::pair().map_err(failed("creating a socket pair"))?;
        let counters = Arc::new(DiscoveryCounters::default());
        let links = NetlinkListener::open(&OWN_GROUPS, false, buffer)
            .map_err(failed("listening to link and route events"))?;
        let addresses = NetlinkListener::open(&ADDRESS_GROUPS, true, buffer)
            .map_err(failed("listening to address events of all namespaces"))?;
        let listening = Listening::new(links, addresses, stopped);
        let requests = NetlinkConnection::open().map_err(failed("opening a netlink socket"))?;
        let worker =
            Worker::new(requests, listening, settings.rescan, Arc::clone(&counters), events);
        let thread = std::thread::Builder::new()
            .name("endpoints".into())
            .spawn(move || worker.run())
            .map_err(failed("starting a thread"))?;
        Ok(Self { counters, stop: Some(stop), thread: Some(thread) })
    }

    /// Counters of this discovery.
    #[must_use]
    pub fn counters(&self) -> &DiscoveryCounters {
        &self.counters
    }

    /// Whether the thread runs. Without a drop of this value, the thread ends only once the receiver is dropped.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        // Not joined: the thread may block on the full channel. It borrows nothing from this value.
        drop(self.stop.take());
        drop(self.thread.take());
    }
}
