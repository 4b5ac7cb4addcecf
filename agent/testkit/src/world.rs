//! A compiler and the tables in memory that it fills.

use netpold_core::compile::Compiler;
use netpold_core::model::{Change, Direction};
use netpold_core::ops::Op;
use netpold_core::options::Options;

use crate::memory::MemoryTables;
use crate::objects::{NODE, ip};

/// A compiler and the tables it fills.
#[derive(Debug)]
pub struct World {
    /// Of [`NODE`], or another one.
    pub compiler: Compiler,
    /// What is installed.
    pub tables: MemoryTables,
}

impl World {
    /// With these objects installed.
    #[must_use]
    pub fn new(changes: impl IntoIterator<Item = Change>) -> Self {
        Self::on(NODE, changes)
    }

    /// The same, on another node.
    #[must_use]
    pub fn on(node: &str, changes: impl IntoIterator<Item = Change>) -> Self {
        let options = Options { node: node.into(), ..Options::default() };
        let mut world = Self { compiler: Compiler::new(options), tables: MemoryTables::new() };
        world.apply(changes);
        world
    }

    /// Takes in changes as one update; returns the number of operations.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> usize {
        changes.into_iter().for_each(|change| self.compiler.ingest(change));
        self.update().len()
    }

    /// Writes what was taken in; the operations.
    pub fn update(&mut self) -> Vec<Op> {
        let ops = self.compiler.update().expect("the tables are large enough");
        self.tables.fill(&ops);
        self.compiler.grace_passed();
        ops
    }

    /// Whether the tables let TCP through between an interface's pod and a remote address.
    #[must_use]
    pub fn allows(&self, ifindex: u32, direction: Direction, remote: &str, port: u16) -> bool {
        let allows = self.tables.allows(ifindex, direction, ip(remote), 6, port);
        allows.expect("the interface is an endpoint")
    }

    /// As [`World::allows`], to the pod.
    #[must_use]
    pub fn ingress(&self, ifindex: u32, remote: &str, port: u16) -> bool {
        self.allows(ifindex, Direction::Ingress, remote, port)
    }

    /// As [`World::allows`], from the pod.
    #[must_use]
    pub fn egress(&self, ifindex: u32, remote: &str, port: u16) -> bool {
        self.allows(ifindex, Direction::Egress, remote, port)
    }
}
