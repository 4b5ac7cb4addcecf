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
mod message;
mod table;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netlink_packet_route::AddressFamily;
use netpold_core::model::Change;
use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::mpsc;
use tracing::{debug, warn};

pub use self::device::Device;
use self::device::Links;
use self::message::{
    LinkEvent, addresses_request, bridge, global_address, host_route, link_event, links_request,
    own_addresses_request, peer_address, routes_request,
};
use self::table::{Table, Veth};
use crate::netlink::{Connection, Listener, Received};

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_ROUTE`
const OWN_GROUPS: [u32; 3] = [1, 7, 11];
/// `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR`
const ADDRESS_GROUPS: [u32; 2] = [5, 9];
/// kube-proxy's, in IPVS mode: it holds the address of every Service, which are not the node's to
/// policy. The name is fixed in kube-proxy (`DefaultDummyDevice`).
pub const SERVICE_DEVICE: &str = "kube-ipvs0";
/// Events of a kind that are taken in at once. Where there are as many addresses' events, a namespace
/// makes them as fast as they are read: none are for a while, and what comes then is one overrun.
const AT_ONCE: usize = 1024;
const BREATH: Duration = Duration::from_millis(20);
/// After a listing that failed.
const RETRY_SCAN: Duration = Duration::from_millis(500);

/// What discovery tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "almost every event is of the largest variant")]
pub enum Event {
    /// An interface came, changed or went.
    Interface(InterfaceEvent),
    /// The node's own addresses are these now: those of all interfaces in our namespace, but for
    /// loopback, link-local and [`SERVICE_DEVICE`].
    OwnAddresses(Vec<IpAddr>),
    /// The node's devices, other than veths, that packets leave it by, by index: these now.
    Devices(BTreeMap<u32, Device>),
    /// The interfaces, veths or others, that are ports of a bridge, by index, with the bridge's: these now.
    Ports(BTreeMap<u32, u32>),
    /// Everything that was there at the start has been sent: one listing got every answer.
    InSync,
}

/// A change of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceEvent {
    /// [`Change::Interface`] or [`Change::InterfaceGone`]. An interface is told as soon as it is
    /// there, its addresses may follow.
    pub change: Change,
    /// The interface's name; a new name alone is told too.
    pub name: String,
    /// Identifier of the namespace that its other side is in.
    pub namespace: i32,
    /// Addresses that the node's own routes lead to by it, one by one; sorted.
    pub routed: Vec<IpAddr>,
}

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

/// What discovery has been through, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Full listings.
    pub scans: AtomicU64,
    /// Listings that failed and were repeated.
    pub failed_scans: AtomicU64,
    /// Times that the kernel dropped events for want of buffer.
    pub overruns: AtomicU64,
    /// Events received.
    pub events: AtomicU64,
    /// Questions for the addresses behind an interface.
    pub questions: AtomicU64,
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
        let worker = Worker {
            requests: Connection::open().map_err(failed("opening a netlink socket"))?,
            links: Listener::open(&OWN_GROUPS, false, buffer)
                .map_err(failed("listening to link and route events"))?,
            addresses: Listener::open(&ADDRESS_GROUPS, true, buffer)
                .map_err(failed("listening to address events of all namespaces"))?,
            table: Table::default(),
            devices: Links::default(),
            ports: Links::default(),
            own: None,
            own_changed: false,
            storm: false,
            counters: Arc::clone(&counters),
            settings,
            events,
            stopped,
        };
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

/// The receiver is gone, or discovery was told to stop.
struct Stop;

/// What came of a full listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scan {
    /// Everything is known.
    Complete,
    /// All interfaces are, but not the addresses behind one that is still there.
    Unanswered,
    /// It has to be done again.
    Failed,
}

/// The thread's state.
struct Worker {
    requests: Connection,
    links: Listener,
    addresses: Listener,
    table: Table,
    devices: Links<Device>,
    /// Ports of bridges, with their bridge.
    ports: Links<u32>,
    /// The node's own addresses as told.
    own: Option<Vec<IpAddr>>,
    /// One of them may have changed since.
    own_changed: bool,
    /// More address events than are taken in at once.
    storm: bool,
    counters: Arc<Counters>,
    settings: Settings,
    events: mpsc::Sender<Event>,
    stopped: UnixStream,
}

impl Worker {
    fn run(mut self) {
        // Ends with Stop only.
        let _ = self.work();
    }

    fn work(&mut self) -> Result<(), Stop> {
        let mut next_scan = Instant::now();
        let (mut synced, mut waiting, mut lost) = (false, false, false);
        loop {
            lost |= self.take_events();
            if lost || next_scan <= Instant::now() {
                let scan = self.scan(lost);
                lost &= scan == Scan::Failed;
                // Told before InSync, so that the first update knows them.
                let own_known = self.list_own_addresses()?;
                self.tell()?;
                // Whoever acts on InSync takes an interface without answer for one without pod.
                if !synced && own_known && scan == Scan::Complete {
                    synced = true;
                    self.send(Event::InSync)?;
                } else if !synced && !std::mem::replace(&mut waiting, true) {
                    warn!(
                        "not all interfaces could be looked behind; nothing is changed until then"
                    );
                }
                let pause =
                    if synced && scan != Scan::Failed { self.settings.rescan } else { RETRY_SCAN };
                next_scan = Instant::now() + pause;
            }
            self.ask_for_addresses();
            self.tell()?;
            if std::mem::take(&mut self.own_changed) {
                self.list_own_addresses()?;
            }
            self.wait(next_scan)?;
        }
    }

    /// Takes in what is waiting; whether something was lost.
    fn take_events(&mut self) -> bool {
        let links = self.take_link_events();
        let addresses = self.take_address_events();
        if matches!(addresses, Ok(true)) {
            // Any pod can bring that about. What it costs is bounded, and no link was missed.
            self.counters.overruns.fetch_add(1, Ordering::Relaxed);
            self.table.any_peer_changed(Instant::now());
        }
        let lost = links.and_then(|links| addresses.map(|_| links));
        let lost = lost.unwrap_or_else(|error| {
            warn!(%error, "reading netlink events failed");
            // Never seen to happen; if it does not pass, listing takes the events' place.
            std::thread::sleep(RETRY_SCAN);
            true
        });
        if lost {
            self.counters.overruns.fetch_add(1, Ordering::Relaxed);
        }
        lost
    }

    fn take_link_events(&mut self) -> io::Result<bool> {
        let (table, counters) = (&mut self.table, &self.counters);
        let (devices, ports) = (&mut self.devices, &mut self.ports);
        drain(&mut self.links, |_, message| {
            counters.events.fetch_add(1, Ordering::Relaxed);
            if let Some(route) = host_route(message) {
                return table.route_is(route);
            }
            match link_event(message) {
                Some(LinkEvent::Now(veth)) => {
                    ports.is(veth.index, bridge(message));
                    table.link_is(veth);
                }
                Some(LinkEvent::Other(index, device)) => {
                    ports.is(index, bridge(message));
                    devices.is(index, device);
                }
                Some(LinkEvent::Gone(index)) => {
                    table.link_gone(index);
                    devices.gone(index);
                    ports.gone(index);
                }
                None => {}
            }
        })
    }

    fn take_address_events(&mut self) -> io::Result<bool> {
        let (table, counters) = (&mut self.table, &self.counters);
        let before = counters.events.load(Ordering::Relaxed);
        let (own_changed, now) = (&mut self.own_changed, Instant::now());
        drain(&mut self.addresses, |namespace, message| {
            counters.events.fetch_add(1, Ordering::Relaxed);
            // struct ifaddrmsg: the interface index is its second word.
            match (namespace, message.word(4)) {
                (Some(namespace), Some(peer)) => table.peer_changed(namespace, peer, now),
                _ => *own_changed = true,
            }
        })
        .inspect(|_| {
            let events = counters.events.load(Ordering::Relaxed) - before;
            self.storm = events >= AT_ONCE as u64;
        })
    }

    /// Tells the node's own addresses if they are others than before; whether they are known.
    fn list_own_addresses(&mut self) -> Result<bool, Stop> {
        let services = if_nametoindex(SERVICE_DEVICE).ok();
        let found = self.requests.dump(&own_addresses_request(), |message| {
            let address = global_address(message)?;
            (services.is_none() || message.word(4) != services).then_some(address)
        });
        match found {
            Ok(mut addresses) => {
                addresses.sort_unstable();
                addresses.dedup();
                if self.own.as_ref() != Some(&addresses) {
                    self.own = Some(addresses.clone());
                    self.send(Event::OwnAddresses(addresses))?;
                }
                Ok(true)
            }
            Err(error) => {
                warn!(%error, "listing the node's own addresses failed");
                self.own_changed = true;
                Ok(false)
            }
        }
    }

    /// Lists all links and the addresses behind veths anew. `lost`: events are missing.
    fn scan(&mut self, lost: bool) -> Scan {
        self.counters.scans.fetch_add(1, Ordering::Relaxed);
        let (mut devices, mut ports) = (BTreeMap::new(), BTreeMap::new());
        let found = self.requests.dump(&links_request(None), |message| match link_event(message) {
            Some(LinkEvent::Now(veth)) => {
                ports.extend(bridge(message).map(|bridge| (veth.index, bridge)));
                Some(veth)
            }
            Some(LinkEvent::Other(index, device)) => {
                ports.extend(bridge(message).map(|bridge| (index, bridge)));
                devices.extend(device.map(|device| (index, device)));
                None
            }
            _ => None,
        });
        let known = found.map(|veths| {
            self.table.links_are(veths, lost);
            self.devices.are(devices);
            self.ports.are(ports);
        });
        let known = known.and_then(|()| self.list_routes());
        match known.and_then(|()| self.list_addresses()) {
            Ok(scan) => scan,
            Err(error) => {
                warn!(%error, "listing interfaces failed");
                self.counters.failed_scans.fetch_add(1, Ordering::Relaxed);
                Scan::Failed
            }
        }
    }

    fn list_routes(&mut self) -> io::Result<()> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            match self.requests.dump(&routes_request(family), host_route) {
                Ok(found) => routes.extend(found),
                // The kernel has no such family.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                Err(error) => return Err(error),
            }
        }
        self.table.routes_are(routes);
        Ok(())
    }

    fn list_addresses(&mut self) -> io::Result<Scan> {
        let mut unanswered = Vec::new();
        for index in self.table.outside() {
            if !self.ask(index)? {
                unanswered.push(index);
            }
        }
        // Asked just now; those without address have a time to be asked again.
        self.table.nothing_due_at_once();
        unanswered.retain(|&index| self.is_there(index));
        if unanswered.is_empty() {
            return Ok(Scan::Complete);
        }
        debug!(?unanswered, "nothing is known of what is behind some interfaces");
        Ok(Scan::Unanswered)
    }

    /// Whether a link that gave no answer is there still, and so is the namespace it leads to: the
    /// kernel numbers no namespace (-1) that is just being taken down, its links with it.
    fn is_there(&mut self, index: u32) -> bool {
        self.look_at(index);
        self.table.veth(index).is_some_and(|veth| veth.namespace.is_some_and(|n| n >= 0))
    }

    /// Takes in how one link is now.
    fn look_at(&mut self, index: u32) {
        let mut answer = None;
        let asked = self.requests.request(links_request(Some(index)), 0, |message| {
            answer = link_event(message).or(answer.take());
        });
        match (answer, asked.map_err(|error| error.raw_os_error())) {
            (Some(LinkEvent::Now(veth)), _) => self.table.link_is(veth),
            (_, Err(Some(libc::ENODEV))) => self.table.link_gone(index),
            _ => {}
        }
    }

    /// Asks for what is due: links that may have moved, addresses that may have changed.
    fn ask_for_addresses(&mut self) {
        for index in self.table.uncertain() {
            self.look_at(index);
        }
        for index in self.table.due(Instant::now()) {
            if let Err(error) = self.ask(index) {
                warn!(index, %error, "listing the addresses behind an interface failed");
            }
        }
    }

    /// Asks for the addresses behind one interface; whether they are known now.
    fn ask(&mut self, index: u32) -> io::Result<bool> {
        let Some(&Veth { peer, namespace: Some(namespace), .. }) = self.table.veth(index) else {
            return Ok(true);
        };
        self.counters.questions.fetch_add(1, Ordering::Relaxed);
        let request = addresses_request(namespace, peer);
        let found = self.requests.dump(&request, |message| peer_address(message, peer));
        match found {
            Ok(addresses) => {
                self.table.addresses_are(index, addresses, Instant::now());
                Ok(true)
            }
            // The namespace or the peer is just going: the link's own event follows.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODEV)) => {
                self.table.addresses_unknown(index, Instant::now());
                Ok(false)
            }
            Err(error) => {
                self.table.addresses_unknown(index, Instant::now());
                Err(error)
            }
        }
    }

    fn tell(&mut self) -> Result<(), Stop> {
        for event in self.table.differences() {
            self.send(Event::Interface(event))?;
        }
        if let Some(devices) = self.devices.difference() {
            self.send(Event::Devices(devices))?;
        }
        self.ports.difference().map_or(Ok(()), |ports| self.send(Event::Ports(ports)))
    }

    fn send(&self, event: Event) -> Result<(), Stop> {
        self.events.blocking_send(event).map_err(|_| Stop)
    }

    /// Waits for an event, the next question that is due, or the next scan.
    fn wait(&self, next_scan: Instant) -> Result<(), Stop> {
        let until = self.table.next_due().map_or(next_scan, |due| due.min(next_scan));
        let until = if self.storm { until.min(Instant::now() + BREATH) } else { until };
        // Rounded up: poll counts milliseconds, and zero would spin.
        let millis = until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        let mut ready = [
            PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.links.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.addresses.as_fd(), PollFlags::POLLIN),
        ];
        let ready = if self.storm { &mut ready[..2] } else { &mut ready[..] };
        // EINTR and the like: look again.
        let _ = poll(ready, timeout);
        let told = ready[0].revents().is_some_and(|events| !events.is_empty());
        if told || self.events.is_closed() { Err(Stop) } else { Ok(()) }
    }
}

/// Receives until nothing is waiting, or enough has come; whether something was lost.
fn drain(
    listener: &mut Listener,
    mut each: impl FnMut(Option<i32>, crate::netlink::Message<'_>),
) -> io::Result<bool> {
    let mut lost = false;
    for _ in 0..AT_ONCE {
        match listener.receive(&mut each)? {
            Received::Messages => {}
            Received::Overrun => lost = true,
            Received::Nothing => break,
        }
    }
    Ok(lost)
}
