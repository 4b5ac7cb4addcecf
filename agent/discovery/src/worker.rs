//! Thread of discovery: receives events, queries the kernel and sends differences.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netlink_packet_route::AddressFamily;
use netpold_dataplane::netlink::{MessageBody, NetlinkConnection};
use nix::net::if_::if_nametoindex;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::event::DiscoveryEvent;
use crate::inventory::Inventory;
use crate::listening::Listening;
use crate::message::{
    LinkEvent, addresses_request, bridge, host_route, link_event, link_inside_request,
    links_request, own_address, own_addresses_request, peer_address, routes_request, station,
};
use crate::table::VethLink;

/// Dummy device of kube-proxy in IPVS mode. It holds the addresses of all Services, which are not the node's own for
/// policies. kube-proxy hard-codes the name (`DefaultDummyDevice`).
pub const SERVICE_DEVICE: &str = "kube-ipvs0";
/// Devices with addresses of Services: kube-proxy's, and kube-router's.
const SERVICE_DEVICES: [&str; 2] = [SERVICE_DEVICE, "kube-dummy-if"];
/// Delay after a failed listing.
const RETRY_SCAN: Duration = Duration::from_millis(500);

/// Counters of discovery for metrics.
#[derive(Debug, Default)]
pub struct DiscoveryCounters {
    /// Full listings.
    pub scans: AtomicU64,
    /// Listings that failed and were repeated.
    pub failed_scans: AtomicU64,
    /// Buffer overruns of the event sockets, and failed reads.
    pub overruns: AtomicU64,
    /// Events received.
    pub events: AtomicU64,
    /// Queries for the addresses behind an interface.
    pub questions: AtomicU64,
}
/// Reason to end the thread: the receiver is gone, or discovery was stopped.
struct StopReason;

/// Result of a full listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingResult {
    /// All interfaces and the addresses behind them are known.
    Complete,
    /// All interfaces are known, but not the addresses behind one that still exists.
    Unanswered,
    /// The listing failed and has to be repeated.
    Failed,
}

/// State of the thread.
pub(super) struct Worker {
    requests: NetlinkConnection,
    listening: Listening,
    inventory: Inventory,
    /// Last reported addresses of the node.
    own: Option<Vec<IpAddr>>,
    /// Whether an address of the node may have changed since.
    own_changed: bool,
    /// Interval of full listings.
    rescan: Duration,
    counters: Arc<DiscoveryCounters>,
    events: mpsc::Sender<DiscoveryEvent>,
}

impl Worker {
    /// Creates a worker without any known interface.
    pub(super) fn new(
        requests: NetlinkConnection,
        listening: Listening,
        rescan: Duration,
        counters: Arc<DiscoveryCounters>,
        events: mpsc::Sender<DiscoveryEvent>,
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

    /// Runs until the receiver is dropped or discovery is stopped.
    pub(super) fn run(mut self) {
        // The only error is Stop.
        let _ = self.work();
    }

    fn work(&mut self) -> Result<(), StopReason> {
        let mut next_scan = Instant::now();
        let (mut synced, mut waiting, mut lost) = (false, false, false);
        loop {
            lost |= self.take_events();
            if lost || next_scan <= Instant::now() {
                let scan = self.scan(lost);
                lost &= scan == ListingResult::Failed;
                // Sent before InSync, so that the first update includes them.
                let own_known = self.list_own_addresses()?;
                self.send_differences()?;
                // Receivers of InSync treat an interface without a known address as one without a pod.
                if !synced && own_known && scan == ListingResult::Complete {
                    synced = true;
                    self.send(DiscoveryEvent::InSync)?;
                } else if !synced && !std::mem::replace(&mut waiting, true) {
                    warn!(
                        "cannot read the peers of some interfaces; enforcement does not change until they are read"
                    );
                }
                let pause =
                    if synced && scan != ListingResult::Failed { self.rescan } else { RETRY_SCAN };
                next_scan = Instant::now() + pause;
            }
            self.ask_for_addresses();
            self.send_differences()?;
            if std::mem::take(&mut self.own_changed) {
                self.list_own_addresses()?;
            }
            let due = self.inventory.veths.next_due();
            let until = due.map_or(next_scan, |due| due.min(next_scan));
            if !self.listening.wait(until) || self.events.is_closed() {
                return Err(StopReason);
            }
        }
    }

    /// Handles the pending events. Returns whether link events were lost.
    fn take_events(&mut self) -> bool {
        let links = self.take_link_events();
        let addresses = self.take_address_events();
        if matches!(addresses, Ok(true)) {
            // Any pod can cause such an overrun. Its cost is bounded, and no link event was lost.
            self.counters.overruns.fetch_add(1, Ordering::Relaxed);
            self.inventory.veths.any_peer_changed(Instant::now());
        }
        let lost = links.and_then(|links| addresses.map(|_| links));
        let lost = lost.unwrap_or_else(|error| {
            warn!(%error, "cannot read netlink events");
            // The delay limits the rate of listings, which replace the events if the error persists. Never observed.
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
                inventory.veths.set_route(route);
            } else if let Some(link) = link(message) {
                inventory.set_link(link);
            }
        })
    }

    fn take_address_events(&mut self) -> io::Result<bool> {
        let Self { listening, inventory, counters, own_changed, .. } = self;
        let now = Instant::now();
        listening.addresses(|namespace, message| {
            counters.events.fetch_add(1, Ordering::Relaxed);
            // struct ifaddrmsg: the second word is the interface index.
            match (namespace, message.word(4)) {
                (Some(namespace), Some(peer)) => inventory.veths.peer_changed(namespace, peer, now),
                _ => *own_changed = true,
            }
        })
    }

    /// Sends the node's own addresses if they have changed. Returns whether they are known.
    fn list_own_addresses(&mut self) -> Result<bool, StopReason> {
        let services = SERVICE_DEVICES.map(|name| if_nametoindex(name).ok());
        let found = self.requests.dump(&own_addresses_request(), |message| {
            let address = own_address(message)?;
            let device = message.word(4);
            (device.is_none() || !services.contains(&device)).then_some(address)
        });
        match found {
            Ok(mut addresses) => {
                addresses.sort_unstable();
                addresses.dedup();
                if self.own.as_ref() != Some(&addresses) {
                    self.own = Some(addresses.clone());
                    self.send(DiscoveryEvent::OwnAddresses(addresses))?;
                }
                Ok(true)
            }
            Err(error) => {
                warn!(%error, "cannot list the node's own addresses");
                self.own_changed = true;
                Ok(false)
            }
        }
    }

    /// Lists all links, routes and the addresses behind veths. `lost`: events before it are missing.
    fn scan(&mut self, lost: bool) -> ListingResult {
        self.counters.scans.fetch_add(1, Ordering::Relaxed);
        let found = self.requests.dump(&links_request(None), link);
        let known = found.map(|links| self.inventory.set_links(links, lost));
        let known = known.and_then(|()| self.list_routes());
        match known.and_then(|()| self.list_addresses()) {
            Ok(scan) => scan,
            Err(error) => {
                warn!(%error, "cannot list interfaces");
                self.counters.failed_scans.fetch_add(1, Ordering::Relaxed);
                ListingResult::Failed
            }
        }
    }

    fn list_routes(&mut self) -> io::Result<()> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            match self.requests.dump(&routes_request(family), host_route) {
                Ok(found) => routes.extend(found),
                // Kernel without this family.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                Err(error) => return Err(error),
            }
        }
        self.inventory.veths.set_routes(routes);
        Ok(())
    }

    fn list_addresses(&mut self) -> io::Result<ListingResult> {
        let mut unanswered = Vec::new();
        for index in self.inventory.veths.outside() {
            if !self.query_addresses(index)? {
                unanswered.push(index);
            }
        }
        // All links were just queried; those without an address have a time for the next query.
        self.inventory.veths.nothing_due_at_once();
        unanswered.retain(|&index| self.is_there(index));
        if unanswered.is_empty() {
            return Ok(ListingResult::Complete);
        }
        debug!(?unanswered, "cannot read the peers of some interfaces");
        Ok(ListingResult::Unanswered)
    }

    /// Whether a link without a response still exists, and its peer's namespace too: the kernel reports the identifier
    /// -1 for a namespace that is being removed together with its links.
    fn is_there(&mut self, index: u32) -> bool {
        self.query_link(index);
        self.inventory.veths.veth(index).is_some_and(|veth| veth.namespace.is_some_and(|n| n >= 0))
    }

    /// Queries one link and applies the response.
    fn query_link(&mut self, index: u32) {
        let mut answer = None;
        let asked = self.requests.request(links_request(Some(index)), 0, |message| {
            answer = link_event(message).or(answer.take());
        });
        match (answer, asked.map_err(|error| error.raw_os_error())) {
            (Some(LinkEvent::Now(veth)), _) => self.inventory.veths.set_link(veth),
            (_, Err(Some(libc::ENODEV))) => self.inventory.veths.remove_link(index),
            _ => {}
        }
    }

    /// Queries the due links: those that may have moved, and those with possibly changed addresses.
    fn ask_for_addresses(&mut self) {
        for index in self.inventory.veths.uncertain() {
            self.query_link(index);
        }
        for index in self.inventory.veths.take_due(Instant::now()) {
            if let Err(error) = self.query_addresses(index) {
                warn!(index, %error, "cannot list the addresses of an interface's peer");
            }
        }
    }

    /// Queries the addresses behind one interface. Returns whether they are known.
    fn query_addresses(&mut self, index: u32) -> io::Result<bool> {
        let Some(&VethLink { peer, namespace: Some(namespace), .. }) =
            self.inventory.veths.veth(index)
        else {
            return Ok(true);
        };
        self.counters.questions.fetch_add(1, Ordering::Relaxed);
        let mut found = None;
        let request = link_inside_request(namespace, peer);
        // An error here repeats in the query for addresses, which handles it.
        let asked = self.requests.request(request, 0, |message| found = station(message).or(found));
        if let (Ok(()), Some(station)) = (asked, found) {
            self.inventory.veths.set_station(index, station);
        }
        let request = addresses_request(namespace, peer);
        let found = self.requests.dump(&request, |message| peer_address(message, peer));
        match found {
            Ok(addresses) => {
                self.inventory.veths.set_addresses(index, addresses, Instant::now());
                Ok(true)
            }
            // The namespace or the peer is being removed: an event of the link follows.
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

    fn send_differences(&mut self) -> Result<(), StopReason> {
        self.inventory.differences().into_iter().try_for_each(|event| self.send(event))
    }

    fn send(&self, event: DiscoveryEvent) -> Result<(), StopReason> {
        self.events.blocking_send(event).map_err(|_| StopReason)
    }
}

/// Parses a link message, and returns the bridge if the link is a port.
fn link(message: MessageBody<'_>) -> Option<(LinkEvent, Option<u32>)> {
    link_event(message).map(|link| (link, bridge(message)))
}
