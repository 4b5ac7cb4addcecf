//! A compiler and tables in memory.

use netpold_core::compile::Compiler;
use netpold_core::model::{Change, Direction};
use netpold_core::ops::Op;
use netpold_core::options::Options;

use crate::memory::MemoryTables;
use crate::objects::{NODE, ip};

/// A compiler and the tables that it fills.
#[derive(Debug)]
pub struct World {
    /// Compiler of [`NODE`] or another node.
    pub compiler: Compiler,
    /// The installed tables.
    pub tables: MemoryTables,
}

impl World {
    /// A world with these objects installed.
    #[must_use]
    pub fn new(changes: impl IntoIterator<Item = Change>) -> Self {
        Self::on(NODE, changes)
    }

    /// A world of another node.
    #[must_use]
    pub fn on(node: &str, changes: impl IntoIterator<Item = Change>) -> Self {
        let options = Options { node: node.into(), names_over_tcp: true, ..Options::default() };
        let mut world = Self { compiler: Compiler::new(options), tables: MemoryTables::new() };
        world.apply(changes);
        world
    }

    /// Applies changes in one update; returns the number of operations.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> usize {
        changes.into_iter().for_each(|change| self.compiler.ingest(change));
        self.update().len()
    }

    /// Installs the pending changes; returns the operations.
    pub fn update(&mut self) -> Vec<Op> {
        let ops = self.compiler.update().expect("the tables are large enough");
        self.tables.fill(&ops);
        self.compiler.grace_passed();
        ops
    }

    /// Whether the tables allow TCP between an interface's pod and a remote address.
    #[must_use]
    pub fn allows(&self, ifindex: u32, direction: Direction, remote: &str, port: u16) -> bool {
        let allows = self.tables.allows(ifindex, direction, ip(remote), 6, port);
        allows.expect("the interface is an endpoint")
    }

    /// [`World::allows`] for traffic to the pod.
    #[must_use]
    pub fn ingress(&self, ifindex: u32, remote: &str, port: u16) -> bool {
        self.allows(ifindex, Direction::Ingress, remote, port)
    }

    /// [`World::allows`] for traffic from the pod.
    #[must_use]
    pub fn egress(&self, ifindex: u32, remote: &str, port: u16) -> bool {
        self.allows(ifindex, Direction::Egress, remote, port)
    }
}
