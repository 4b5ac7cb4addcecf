//! Endpoint discovery: which interface leads to which addresses, by netlink alone.
//!
//! An endpoint's interface is a veth in our network namespace whose peer is in another one. Told of it
//! are its name, the host routes that lead out of it and the peer's global addresses; whose it is by
//! these is decided in `netpold_core::bindings`. No interface naming, no container runtime is asked.
//!
//! One thread listens to three sources, all in the namespace that [`Discovery::start`] is called
//! in:
//! - link and route events of our namespace: veths come, go and change;
//! - address events of every namespace that has an identifier in ours (the kernel gives one as soon
//!   as it tells us of a veth that leads there), so that a pod's address is seen without polling;
//!   needs `CAP_NET_BROADCAST`. A pod can make any number of them, so they are gathered: what they
//!   lead to is bounded for each interface;
//! - time: an interface without address is asked again in growing intervals, and everything is
//!   listed anew every [`Settings::rescan`], in case an event did not reach us.
//!
//! The node's other devices are told from the same events and listings, see [`Event::Devices`].
//!
//! Only differences are sent. Lost events (the socket's buffer was full) lead to a new listing at
//! once. A thread and not a task: a listing waits for the kernel's configuration lock, which the
//! removal of a namespace holds for tens of milliseconds.

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

use tokio::sync::mpsc;

pub use self::device::Device;
pub use self::event::Event;
use self::listening::Listening;
use self::worker::Worker;
pub use self::worker::{Counters, SERVICE_DEVICE};
use crate::netlink::{Connection, Listener};

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_ROUTE`
const OWN_GROUPS: [u32; 3] = [1, 7, 11];
/// `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR`
const ADDRESS_GROUPS: [u32; 2] = [5, 9];

/// How discovery goes about it.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Interval of full listings.
    pub rescan: Duration,
    /// Receive buffer of each event socket, in bytes.
    pub receive_buffer: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { rescan: Duration::from_secs(5), receive_buffer: 4 << 20 }
    }
}

/// Discovery could not start.
#[derive(Debug, thiserror::Error)]
#[error("endpoint discovery: {operation}: {cause}")]
pub struct Error {
    operation: &'static str,
    cause: io::Error,
}

/// A running discovery; stops on drop.
#[derive(Debug)]
pub struct Discovery {
    counters: Arc<Counters>,
    /// Closed to stop the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Discovery {
    /// Starts discovery in the network namespace of the calling thread. It ends when the receiver
    /// is dropped or the returned value is.
    ///
    /// # Errors
    /// The netlink sockets or the thread cannot be made.
    pub fn start(settings: Settings, events: mpsc::Sender<Event>) -> Result<Self, Error> {
        let failed = |operation| move |cause| Error { operation, cause };
        let buffer = settings.receive_buffer;
        let (stop, stopped) = UnixStream::pair().map_err(failed("making a socket pair"))?;
        let counters = Arc::new(Counters::default());
        let links = Listener::open(&OWN_GROUPS, false, buffer)
            .map_err(failed("listening to link and route events"))?;
        let addresses = Listener::open(&ADDRESS_GROUPS, true, buffer)
            .map_err(failed("listening to address events of all namespaces"))?;
        let listening = Listening::new(links, addresses, stopped);
        let requests = Connection::open().map_err(failed("opening a netlink socket"))?;
        let worker =
            Worker::new(requests, listening, settings.rescan, Arc::clone(&counters), events);
        let thread = std::thread::Builder::new()
            .name("endpoints".into())
            .spawn(move || worker.run())
            .map_err(failed("starting a thread"))?;
        Ok(Self { counters, stop: Some(stop), thread: Some(thread) })
    }

    /// What it has been through.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether it still runs; it only ends by itself when the receiver is gone.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        // Not joined: the thread may be waiting for room in the channel, and owns all it uses.
        drop(self.stop.take());
        drop(self.thread.take());
    }
}
