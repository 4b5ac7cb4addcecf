//! Bridges that hand nothing to the node without a proof of judgement, and how programs know that the agent
//! lives: the rule is in [`netpold_ebpf::proof`].
//!
//! A bridge is one of them while each of its ports has a program that leaves the proof. Netlink tells of a
//! port that has none yet: until it has, nothing is demanded of its bridge.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use netpold_ebpf::layout::{BRIDGE_ISOLATED, BRIDGES};

use super::attach::Mode;
use super::role::Role;
use super::{Dataplane, tables};

/// A bridge that has pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// All of its ports, by interface index.
    pub ports: BTreeSet<u32>,
    /// Policy isolates one of its pods for egress.
    pub isolated: bool,
}

/// What is demanded of bridges.
#[derive(Debug, Default)]
pub(super) struct Bridges {
    /// By interface index.
    known: BTreeMap<u32, Bridge>,
    /// Interfaces with a program that leaves the proof, of whatever generation.
    proving: BTreeSet<u32>,
    /// See [`Bridges::agent_port`].
    agent: Option<UdpSocket>,
}

impl Bridges {
    /// The port, in network byte order, of a socket that ends with this process; 0 if there is none.
    pub(super) fn agent_port(&mut self) -> u32 {
        let port = |socket: &UdpSocket| Ok(u32::from(socket.local_addr()?.port().to_be()));
        let own = || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.connect(socket.local_addr()?)?;
            Ok(socket)
        };
        let found = match &self.agent {
            Some(socket) => port(socket),
            None => own().and_then(|socket| port(self.agent.insert(socket))),
        };
        found.unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "no socket at 127.0.0.1: packets that go round a pod's program on a bridge drop only if \
                 they have a pod's source"
            );
            0
        })
    }

    /// An interface has programs of this role now.
    pub(super) fn attached(&mut self, ifindex: u32, role: Role) {
        if role.proves() {
            self.proving.insert(ifindex);
        } else {
            self.proving.remove(&ifindex);
        }
    }

    /// An interface has its programs no more, or is gone.
    pub(super) fn detached(&mut self, ifindex: u32) {
        self.proving.remove(&ifindex);
    }

    /// What programs are to know of the bridges whose ports all prove, as
    /// [`Settings::bridges`](netpold_ebpf::layout::Settings::bridges) has it; by interface index.
    fn wanted(&self) -> BTreeMap<u32, u32> {
        let complete = self.known.iter().filter(|(_, it)| it.ports.is_subset(&self.proving));
        let flag = |it: &Bridge| if it.isolated { BRIDGE_ISOLATED } else { 0 };
        complete.map(|(bridge, it)| (*bridge, bridge | flag(it))).collect()
    }
}

impl Dataplane {
    /// These bridges have pods. From now on nothing is demanded of those with a port that has no program;
    /// of others it is after the next [`Dataplane::attach`].
    pub fn bridges_are(&mut self, bridges: BTreeMap<u32, Bridge>) {
        self.bridges.known = bridges;
        let wanted = self.bridges.wanted();
        self.demand_of(|now| wanted.get(&(now & !BRIDGE_ISOLATED)).copied().unwrap_or(0));
    }

    /// Demands the proof of all bridges that it can be demanded of. Gives those that there was no room
    /// for, with the reason.
    pub(super) fn demand_of_bridges(&mut self) -> Vec<(u32, String)> {
        let Some(settings) = self.settings else { return Vec::new() };
        let mut fresh = self.bridges.wanted();
        for known in settings.bridges {
            fresh.remove(&(known & !BRIDGE_ISOLATED));
        }
        if fresh.is_empty() {
            return Vec::new();
        }
        // What came by before is on its way. To attach a link takes as long.
        if self.mode() == Mode::Clsact {
            tables::grace_period();
        }
        self.demand_of(|now| {
            let place = (now == 0).then(|| fresh.pop_first()).flatten();
            place.map_or(now, |(_, word)| word)
        });
        let reason = format!(
            "more than {BRIDGES} bridges have pods: packets that go round a pod's program are not found on \
             this one"
        );
        fresh.into_keys().map(|bridge| (bridge, reason.clone())).collect()
    }

    /// Changes the bridges that the proof is demanded of, place by place.
    fn demand_of(&mut self, mut of: impl FnMut(u32) -> u32) {
        let (Some(settings), Some(generation)) = (&mut self.settings, &mut self.generation) else {
            return;
        };
        for (place, now) in settings.bridges.iter_mut().enumerate() {
            let wanted = of(*now);
            if wanted == *now {
                continue;
            }
            match generation.tables().demand_of(place, wanted) {
                Ok(()) => *now = wanted,
                Err(error) => tracing::error!(%error, "what is demanded of bridges stays"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::role::Link;
    use super::*;

    #[test]
    fn a_bridge_proves_all_once_each_of_its_ports_does() {
        let mut bridges = Bridges::default();
        let bridge =
            |ports: &[u32], isolated| Bridge { ports: ports.iter().copied().collect(), isolated };
        bridges.known = [(2, bridge(&[5, 6], true)), (3, bridge(&[7], false))].into();
        assert!(bridges.wanted().is_empty());
        bridges.attached(5, Role::Pod(1));
        bridges.attached(6, Role::Device(Link::Ethernet));
        bridges.attached(7, Role::Device(Link::EthernetTunnel));
        assert_eq!(bridges.wanted(), [(3, 3)].into(), "an uplink proves nothing by itself");
        bridges.attached(6, Role::Device(Link::Port));
        assert_eq!(bridges.wanted(), [(2, 2 | BRIDGE_ISOLATED), (3, 3)].into());
        bridges.known.insert(2, bridge(&[5, 6, 8], true));
        assert_eq!(bridges.wanted(), [(3, 3)].into(), "a port that has just come");
        bridges.attached(8, Role::Device(Link::Veth));
        bridges.attached(8, Role::Pod(2));
        assert_eq!(bridges.wanted().len(), 2);
        bridges.detached(5);
        bridges.attached(7, Role::Device(Link::Ethernet));
        assert!(bridges.wanted().is_empty());
    }
}
