//! Domain names of policy, and trusted resolvers: the maps from which programs know whose answers count and for what.

use std::net::IpAddr;

use aya::maps::{HashMap, MapData, MapError};
use aya::{Ebpf, Pod};
use netpold_core::model::DomainName;
use netpold_core::ops::Op;
use netpold_ebpf::layout::{NameKey, Settings};
use netpold_ebpf::names::name::Points;

use super::maps::TableError;

const NAMES: &str = "NAMES";
const RESOLVERS: &str = "RESOLVERS";

/// Names by list, and resolvers by address.
#[derive(Debug)]
pub(super) struct Names {
    names: HashMap<MapData, NameKey, u32>,
    resolvers: HashMap<MapData, [u8; 16], u32>,
}

impl Names {
    /// Takes the tables out of a loaded object.
    pub(super) fn open(bpf: &mut Ebpf) -> Result<Self, TableError> {
        Ok(Self { names: open(bpf, NAMES)?, resolvers: open(bpf, RESOLVERS)? })
    }

    /// Applies an operation on a name or a resolver; names are hashed with the keys of the settings.
    #[expect(clippy::wildcard_enum_match_arm, reason = "of the operations, those on these tables")]
    pub(super) fn apply(&mut self, op: &Op, settings: &Settings) -> Result<(), TableError> {
        let (name, result) = match op {
            Op::Name(list, name, groups) => {
                (NAMES, self.names.insert(key(settings, *list, name), *groups, 0))
            }
            Op::NameGone(list, name) => (NAMES, gone(&mut self.names, key(settings, *list, name))),
            Op::Resolver(address) => (RESOLVERS, self.resolvers.insert(mapped(*address), 1, 0)),
            Op::ResolverGone(address) => (RESOLVERS, gone(&mut self.resolvers, mapped(*address))),
            _ => return Ok(()),
        };
        result.map_err(|cause| TableError::Map { name, cause })
    }

    /// Groups of a name in the table.
    pub(super) fn groups(&self, settings: &Settings, list: u32, name: &DomainName) -> Option<u32> {
        self.names.get(&key(settings, list, name), 0).ok()
    }
}

fn open<K: Pod>(
    bpf: &mut Ebpf,
    name: &'static str,
) -> Result<HashMap<MapData, K, u32>, TableError> {
    HashMap::try_from(bpf.take_map(name).ok_or(TableError::Missing(name))?)
        .map_err(|cause| TableError::Map { name, cause })
}

/// Removes an entry, if it is there.
fn gone<K: Pod>(map: &mut HashMap<MapData, K, u32>, key: K) -> Result<(), MapError> {
    if map.get(&key, 0).is_err() { Ok(()) } else { map.remove(&key) }
}

fn key(settings: &Settings, list: u32, name: &DomainName) -> NameKey {
    let (points, canonical) = (Points::of(settings), name.canonical());
    let hash =
        if name.is_wildcard() { points.hash_below(&canonical) } else { points.hash(&canonical) };
    NameKey { list, hash }
}

/// An address as in an IPv6 header, IPv4 as `::ffff:0:0/96`.
fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
