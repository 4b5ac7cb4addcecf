//! Places of connections at a listener, shared among their sources.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use tokio::task::AbortHandle;

/// Source of a connection, by a property that the client cannot choose: its address; for link-local addresses (RFC 4291
/// section 2.5.6, RFC 3927), of which a pod may use any number, the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ConnectionSource {
    /// All link-local addresses behind the interface with this index; 0 for IPv4.
    LinkLocal(u32),
    /// Any other address.
    Address(IpAddr),
}

impl ConnectionSource {
    pub(crate) fn from_peer(peer: SocketAddr) -> Self {
        match peer {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => Self::LinkLocal(v6.scope_id()),
            SocketAddr::V4(_) | SocketAddr::V6(_) => match peer.ip().to_canonical() {
                IpAddr::V4(v4) if v4.is_link_local() => Self::LinkLocal(0),
                address @ (IpAddr::V4(_) | IpAddr::V6(_)) => Self::Address(address),
            },
        }
    }

    /// Group of sources that one client can choose from: all link-local ones, a /24, a /64.
    fn network(self) -> SourceNetwork {
        match self {
            Self::LinkLocal(_) => SourceNetwork::LinkLocal,
            Self::Address(IpAddr::V4(v4)) => SourceNetwork::V4(v4.to_bits() >> 8),
            Self::Address(IpAddr::V6(v6)) => SourceNetwork::V6(v6.to_bits() >> 64),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SourceNetwork {
    LinkLocal,
    V4(u32),
    V6(u128),
}

/// Limits of concurrent connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Limit for all sources together.
    pub(crate) total: usize,
    /// Limit for one source.
    pub(crate) of_source: usize,
    /// Limit for all link-local sources together.
    pub(crate) of_link_local: usize,
}

/// Connections that hold places, the oldest first. New connections are never refused: above a limit, the oldest
/// connection of the source with the most connections, in the network with the most, is closed.
pub(crate) struct ConnectionSlots {
    limits: ConnectionLimits,
    held: VecDeque<ConnectionSlot>,
}

struct ConnectionSlot {
    source: ConnectionSource,
    connection: AbortHandle,
}

impl ConnectionSlots {
    pub(crate) const fn new(limits: ConnectionLimits) -> Self {
        Self { limits, held: VecDeque::new() }
    }

    /// Gives a connection a place; above a limit another connection loses its place.
    pub(crate) fn add_connection(&mut self, source: ConnectionSource, connection: AbortHandle) {
        self.held.retain(|place| !place.connection.is_finished());
        self.held.push_back(ConnectionSlot { source, connection });
        let ConnectionLimits { total, of_source, of_link_local } = self.limits;
        let count = |test: &dyn Fn(ConnectionSource) -> bool| {
            self.held.iter().filter(|place| test(place.source)).count()
        };
        let crowd = if count(&|it| it == source) > of_source {
            Some(source)
        } else if count(&|it| it.network() == SourceNetwork::LinkLocal) > of_link_local {
            self.most(|source| source, |it| it.network() == SourceNetwork::LinkLocal)
        } else if self.held.len() > total {
            let network = self.most(ConnectionSource::network, |_| true);
            self.most(|source| source, |it| Some(it.network()) == network)
        } else {
            None
        };
        let oldest = self.held.iter().position(|place| Some(place.source) == crowd);
        if let Some(place) = oldest.and_then(|oldest| self.held.remove(oldest)) {
            place.connection.abort();
        }
    }

    /// Returns the key with the most places among the sources that `of` accepts; of equal ones, the holder of the
    /// oldest place.
    fn most<K: Copy + Eq + Hash>(
        &self,
        who: impl Fn(ConnectionSource) -> K,
        of: impl Fn(ConnectionSource) -> bool,
    ) -> Option<K> {
        let held = || self.held.iter().map(|place| place.source).filter(|it| of(*it)).map(&who);
        let mut counts: HashMap<K, usize> = HashMap::new();
        held().for_each(|it| *counts.entry(it).or_default() += 1);
        let most = counts.values().copied().max()?;
        held().find(|it| counts.get(it) == Some(&most))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use tokio::task::JoinHandle;

    use super::*;

    const LIMITS: ConnectionLimits = ConnectionLimits { total: 64, of_source: 4, of_link_local: 8 };

    /// Listener with clients that connect and wait.
    struct CrowdedListener {
        places: ConnectionSlots,
        tasks: Vec<JoinHandle<()>>,
    }

    impl CrowdedListener {
        fn new() -> Self {
            Self { places: ConnectionSlots::new(LIMITS), tasks: Vec::new() }
        }

        /// Connects a client that waits; returns the number of its connection.
        fn connect(&mut self, peer: &str) -> usize {
            let source = ConnectionSource::from_peer(peer.parse().unwrap());
            let task = tokio::spawn(std::future::pending::<()>());
            self.places.add_connection(source, task.abort_handle());
            self.tasks.push(task);
            self.tasks.len() - 1
        }

        async fn is_served(&self, connection: usize) -> bool {
            // Let every task run.
            for _ in 0..self.tasks.len() * 2 {
                tokio::task::yield_now().await;
            }
            !self.tasks[connection].is_finished()
        }

        fn of(&self, peer: &str) -> usize {
            let source = ConnectionSource::from_peer(peer.parse().unwrap());
            self.places.held.iter().filter(|place| place.source == source).count()
        }
    }

    #[tokio::test]
    async fn the_oldest_connection_of_who_holds_most_gives_way() {
        let mut crowded = CrowdedListener::new();
        let peer = |n: u32| format!("10.0.{n}.1:1");
        for n in 0..16 {
            (0..6).for_each(|_| _ = crowded.connect(&peer(n)));
        }
        assert_eq!(crowded.places.held.len(), 64, "four each of sixteen");
        assert!(!crowded.is_served(0).await && !crowded.is_served(1).await);
        let late = crowded.connect("10.0.99.1:1");
        assert!(crowded.is_served(late).await);
        assert_eq!(crowded.places.held.len(), 64);
        assert_eq!((crowded.of(&peer(0)), crowded.of(&peer(1))), (3, 4), "the one that is first");
    }

    /// A pod may use any number of link-local addresses, and a host a /64.
    #[tokio::test]
    async fn addresses_that_a_client_chooses_crowd_nobody_out() {
        for network in ["fe80::", "2001:db8::"] {
            let mut crowded = CrowdedListener::new();
            let peer = |n: u32, interface: u32| match network {
                "fe80::" => format!("[fe80::{n:x}%{interface}]:1"),
                _ => format!("[2001:db8::{n:x}]:1"),
            };
            (0..200).for_each(|n| _ = crowded.connect(&peer(n, n % 5)));
            // Three replicas of Prometheus.
            let scrapes: Vec<usize> =
                (1..=3).map(|n| crowded.connect(&format!("10.0.0.{n}:1"))).collect();
            (200..2000).for_each(|n| _ = crowded.connect(&peer(n, n % 5)));
            for scrape in scrapes {
                assert!(crowded.is_served(scrape).await, "{network}");
            }
            if network == "fe80::" {
                assert_eq!(crowded.places.held.len(), 3 + LIMITS.of_link_local);
                assert!(crowded.of("[fe80::7%1]:1") <= LIMITS.of_source);
            }
        }
    }

    #[test]
    fn a_client_is_told_from_others_by_what_it_cannot_choose() {
        let of = |peer: &str| ConnectionSource::from_peer(peer.parse().unwrap());
        assert_eq!(of("[fe80::1%7]:1"), of("[fe80::2%7]:2"));
        assert_ne!(of("[fe80::1%7]:1"), of("[fe80::1%8]:1"));
        assert_eq!(of("169.254.1.1:1"), of("169.254.1.2:1"));
        assert_eq!(of("[::ffff:10.0.0.1]:1"), of("10.0.0.1:1"));
        assert_ne!(of("[fd00::1]:1"), of("[fd00::2]:1"));
        let mapped = Ipv4Addr::new(169, 254, 1, 1).to_ipv6_mapped();
        assert_eq!(ConnectionSource::from_peer((mapped, 1).into()), of("169.254.1.1:1"));
        assert_eq!(of("[::1]:1"), ConnectionSource::Address(Ipv6Addr::LOCALHOST.into()));
    }
}
