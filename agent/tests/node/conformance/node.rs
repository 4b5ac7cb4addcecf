//! Compiler and tables of one node, updated from step to step as by an agent.

use std::net::IpAddr;

use anyhow::{Result, anyhow};
use netpold_core::compile::Compiler;
use netpold_core::model::{Change, Direction, Interface};
use netpold_core::ops::TableWriter;
use netpold_core::options::Options;
use netpold_testkit::flows::MemoryFlowTables;
use netpold_testkit::hooks::{Begun, Hooks};
use netpold_testkit::memory::MemoryTables;

use crate::conformance::case::Check;

/// Node with its pods behind interfaces.
pub(crate) struct CompiledNode {
    compiler: Compiler,
    tables: MemoryTables,
    hooks: Hooks,
    /// Objects in the compiler.
    state: Vec<Change>,
    name: &'static str,
}

impl CompiledNode {
    /// Returns a node without objects.
    pub(crate) fn new(name: &'static str) -> Self {
        let compiler = Compiler::new(Options { node: name.to_owned(), ..Options::default() });
        let (tables, hooks) = (MemoryTables::new(), Hooks::new());
        Self { compiler, tables, hooks, state: Vec::new(), name }
    }

    /// Applies the changes since the last step, in one update.
    pub(crate) fn become_state(&mut self, objects: &[Change]) -> Result<()> {
        let mut next = objects.to_vec();
        next.extend(self.interfaces(objects));
        let before = std::mem::replace(&mut self.state, next);
        let ids: Vec<Change> = self.state.iter().map(Change::removal).collect();
        let gone = before.iter().map(Change::removal).filter(|id| !ids.contains(id));
        let new = self.state.iter().filter(|object| !before.contains(object)).cloned();
        gone.chain(new).for_each(|change| self.compiler.ingest(change));
        for op in self.compiler.update()? {
            self.tables.write(&op).map_err(|error| anyhow!("{error}"))?;
        }
        self.compiler.grace_passed();
        Ok(())
    }

    /// Returns a veth for each running pod of the node.
    fn interfaces(&self, objects: &[Change]) -> impl Iterator<Item = Change> {
        let pods = objects.iter().filter_map(|object| {
            if let Change::Pod(pod) = object
                && pod.node == self.name
                && !pod.finished
            {
                Some(pod)
            } else {
                None
            }
        });
        pods.map(|pod| {
            let addresses = pod.addresses.clone();
            Change::Interface(Interface {
                index: index(&addresses),
                incarnation: 1,
                addresses,
                ..Interface::default()
            })
        })
    }

    /// Returns the interface of the local pod with an address.
    fn interface_of(&self, address: IpAddr) -> Option<&Interface> {
        self.state.iter().find_map(|object| {
            if let Change::Interface(i) = object
                && i.addresses.contains(&address)
            {
                Some(i)
            } else {
                None
            }
        })
    }

    /// Returns the numbers of packets that XDP dropped in front of the pods' hooks: connection attempts, all packets,
    /// packets from pods.
    pub(crate) fn dropped_early(&self) -> [u64; 3] {
        self.hooks.dropped()
    }

    fn is_node_address(&self, address: IpAddr) -> bool {
        self.state.iter().any(|object| {
            matches!(object, Change::Node(node)
                if node.name == self.name && node.addresses.contains(&address))
        })
    }

    /// Returns the compiler of the node.
    pub(crate) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Returns whether this node passes a flow: the egress of a local sender, and the ingress of a local receiver.
    /// Traffic of a pod with itself and packets of the node do not reach the tables.
    pub(crate) fn allows(&self, check: &Check) -> bool {
        self.begin(check, |_, _| {})
    }

    /// Does the same as [`Self::allows`], and passes the flow table to `left` after each direction.
    pub(crate) fn begin(
        &self,
        check: &Check,
        mut left: impl FnMut(Direction, &MemoryFlowTables),
    ) -> bool {
        let (from, to) = (check.from.address, check.to.address);
        let mut table = |local, direction, remote| {
            let Some(interface) = self.interface_of(local) else { return true };
            let (ifindex, protocol, port) = (interface.index, check.protocol.0, check.port);
            let allowed = self.tables.allows(ifindex, direction, remote, protocol, port);
            // The packet path agrees with the tables, and XDP in front of it drops exactly the expected packets.
            let begun = Begun { ifindex, direction, remote, protocol, port };
            let passes = self.hooks.begin(&self.tables, &begun);
            assert_eq!(passes, Ok(allowed), "{direction} at {ifindex}: {check}");
            left(direction, self.hooks.flows());
            allowed.unwrap_or(false)
        };
        from == to
            || table(from, Direction::Egress, to)
                && (self.is_node_address(from) || table(to, Direction::Ingress, from))
    }
}

/// Returns an interface index from the last number of the IPv4 address, which is unique on a node of the topology.
fn index(addresses: &[IpAddr]) -> u32 {
    addresses
        .iter()
        .find_map(|address| match address {
            IpAddr::V4(v4) => Some(100 + u32::from(v4.octets()[3])),
            IpAddr::V6(_) => None,
        })
        .unwrap_or(99)
}
