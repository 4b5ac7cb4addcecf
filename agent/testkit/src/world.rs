//! A compiler and the tables in memory that it fills.

use netpold_core::compile::Compiler;
use netpold_core::model::{Change, Direction};
use netpold_core::ops::TableWriter;
use netpold_core::options::Options;

use crate::memory::MemoryTables;
use crate::objects::{NODE, ip};

/// A compiler and the tables it fills.
#[derive(Debug)]
pub struct World {
    /// Of [`NODE`].
    pub compiler: Compiler,
    /// What is installed.
    pub tables: MemoryTables,
}

impl World {
    /// With these objects installed.
    #[must_use]
    pub fn new(changes: impl IntoIterator<Item = Change>) -> Self {
        let options = Options { node: NODE.into(), ..Options::default() };
        let mut world = Self { compiler: Compiler::new(options), tables: MemoryTables::new() };
        world.apply(changes);
        world
    }

    /// Takes in changes as one update; returns the number of operations.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> usize {
        changes.into_iter().for_each(|change| self.compiler.ingest(change));
        let ops = self.compiler.update().expect("the tables are large enough");
        for op in &ops {
            self.tables.write(op).expect("operations are in order");
        }
        self.compiler.grace_passed();
        ops.len()
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
