//! The thread that discovers: it takes events in, asks, and tells what differs.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netlink_packet_route::AddressFamily;
use nix::net::if_::if_nametoindex;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::event::Event;
use super::inventory::Inventory;
use super::listening::Listening;
use super::message::{
    LinkEvent, addresses_request, bridge, global_address, host_route, link_event,
    link_inside_request, links_request, own_addresses_request, peer_address, routes_request,
    station,
};
use super::table::Veth;
use crate::netlink::{Connection, Message};

/// kube-proxy's, in IPVS mode: it holds the address of every Service, which are not the node's to
/// policy. The name is fixed in kube-proxy (`DefaultDummyDevice`).
pub const SERVICE_DEVICE: &str = "kube-ipvs0";
/// After a listing that failed.
const RETRY_SCAN: Duration = Duration::from_millis(500);

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
pub(super) struct Worker {
    requests: Connection,
    listening: Listening,
    inventory: Inventory,
    /// The node's own addresses as told.
    own: Option<Vec<IpAddr>>,
    /// One of them may have changed since.
    own_changed: bool,
    /// Interval of full listings.
    rescan: Duration,
    counters: Arc<Counters>,
    events: mpsc::Sender<Event>,
}

impl Worker {
    /// Nothing is known yet.
    pub(super) fn new(
        requests: Connection,
        listening: Listening,
        rescan: Duration,
        counters: Arc<Counters>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        let inventory = Inventory::default();
        Self {
            requests,
            listening,
            inventory,
            own: None,
            own_changed: false,
            rescan,
            counters,
            events,
        }
    }

    /// Discovers until nobody listens any more, or it is told to stop.
    pub(super) fn run(mut self) {
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
                let pause = if synced && scan != Scan::Failed { self.rescan } else { RETRY_SCAN };
                next_scan = Instant::now() + pause;
            }
            self.ask_for_addresses();
            self.tell()?;
            if std::mem::take(&mut self.own_changed) {
                self.list_own_addresses()?;
            }
            let due = self.inventory.veths.next_due();
            let until = due.map_or(next_scan, |due| due.min(next_scan));
            if !self.listening.wait(until) || self.events.is_closed() {
                return Err(Stop);
            }
        }
    }

    /// Takes in what is waiting; whether something was lost.
    fn take_events(&mut self) -> bool {
        let links = self.take_link_events();
        let addresses = self.take_address_events();
        if matches!(addresses, Ok(true)) {
            // Any pod can bring that about. What it costs is bounded, and no link was missed.
            self.counters.overruns.fetch_add(1, Ordering::Relaxed);
            self.inventory.veths.any_peer_changed(Instant::now());
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
        let Self { listening, inventory, counters, .. } = self;
        listening.links(|message| {
            counters.events.fetch_add(1, Ordering::Relaxed);
            if let Some(route) = host_route(message) {
                inventory.veths.route_is(route);
            } else if let Some(link) = link(message) {
                inventory.link_is(link);
            }
        })
    }

    fn take_address_events(&mut self) -> io::Result<bool> {
        let Self { listening, inventory, counters, own_changed, .. } = self;
        let now = Instant::now();
        listening.addresses(|namespace, message| {
            counters.events.fetch_add(1, Ordering::Relaxed);
            // struct ifaddrmsg: the interface index is its second word.
            match (namespace, message.word(4)) {
                (Some(namespace), Some(peer)) => inventory.veths.peer_changed(namespace, peer, now),
                _ => *own_changed = true,
            }
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
        let found = self.requests.dump(&links_request(None), link);
        let known = found.map(|links| self.inventory.links_are(links, lost));
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
        self.inventory.veths.routes_are(routes);
        Ok(())
    }

    fn list_addresses(&mut self) -> io::Result<Scan> {
        let mut unanswered = Vec::new();
        for index in self.inventory.veths.outside() {
            if !self.ask(index)? {
                unanswered.push(index);
            }
        }
        // Asked just now; those without address have a time to be asked again.
        self.inventory.veths.nothing_due_at_once();
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
        self.inventory.veths.veth(index).is_some_and(|veth| veth.namespace.is_some_and(|n| n >= 0))
    }

    /// Takes in how one link is now.
    fn look_at(&mut self, index: u32) {
        let mut answer = None;
        let asked = self.requests.request(links_request(Some(index)), 0, |message| {
            answer = link_event(message).or(answer.take());
        });
        match (answer, asked.map_err(|error| error.raw_os_error())) {
            (Some(LinkEvent::Now(veth)), _) => self.inventory.veths.link_is(veth),
            (_, Err(Some(libc::ENODEV))) => self.inventory.veths.link_gone(index),
            _ => {}
        }
    }

    /// Asks for what is due: links that may have moved, addresses that may have changed.
    fn ask_for_addresses(&mut self) {
        for index in self.inventory.veths.uncertain() {
            self.look_at(index);
        }
        for index in self.inventory.veths.due(Instant::now()) {
            if let Err(error) = self.ask(index) {
                warn!(index, %error, "listing the addresses behind an interface failed");
            }
        }
    }

    /// Asks for the addresses behind one interface; whether they are known now.
    fn ask(&mut self, index: u32) -> io::Result<bool> {
        let Some(&Veth { peer, namespace: Some(namespace), .. }) = self.inventory.veths.veth(index)
        else {
            return Ok(true);
        };
        self.counters.questions.fetch_add(1, Ordering::Relaxed);
        let mut found = None;
        let request = link_inside_request(namespace, peer);
        // Where that fails, so does the question for addresses.
        let asked = self.requests.request(request, 0, |message| found = station(message).or(found));
        if let (Ok(()), Some(station)) = (asked, found) {
            self.inventory.veths.station_is(index, station);
        }
        let request = addresses_request(namespace, peer);
        let found = self.requests.dump(&request, |message| peer_address(message, peer));
        match found {
            Ok(addresses) => {
                self.inventory.veths.addresses_are(index, addresses, Instant::now());
                Ok(true)
            }
            // The namespace or the peer is just going: the link's own event follows.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODEV)) => {
                self.inventory.veths.addresses_unknown(index, Instant::now());
                Ok(false)
            }
            Err(error) => {
                self.inventory.veths.addresses_unknown(index, Instant::now());
                Err(error)
            }
        }
    }

    fn tell(&mut self) -> Result<(), Stop> {
        self.inventory.differences().into_iter().try_for_each(|event| self.send(event))
    }

    fn send(&self, event: Event) -> Result<(), Stop> {
        self.events.blocking_send(event).map_err(|_| Stop)
    }
}

/// What a link message says, and the bridge that the link is a port of.
fn link(message: Message<'_>) -> Option<(LinkEvent, Option<u32>)> {
    link_event(message).map(|link| (link, bridge(message)))
}
