//! Local pods by address, for the programs at uplinks.
//!
//! Programs compare the found endpoint with its own record, so the moment of adding or removing an address affects no
//! packet. An address that two endpoints claim is left out: routes decide which of them gets a packet, and the other
//! one's policy must not apply.

use std::collections::{BTreeMap, BTreeSet};

use aya::maps::{HashMap, MapData};
use aya::{Ebpf, Pod};
use netpold_core::ops::Op;
use netpold_ebpf::layout::{ENDPOINT_ADDRS, EP_ADDR4_SHIFT, EP_ADDR6_SHIFT, Endpoint};

use super::maps::TableError;

/// Endpoint slots by address, of one family.
#[derive(Debug)]
struct SlotsByAddress<K: Pod + Ord> {
    name: &'static str,
    map: HashMap<MapData, K, u32>,
    /// Addresses by slot.
    held: BTreeMap<u32, BTreeSet<K>>,
    holders: BTreeMap<K, BTreeSet<u32>>,
}

/// Endpoint slots by address.
#[derive(Debug)]
pub(super) struct LocalEndpointMaps {
    four: SlotsByAddress<u32>,
    six: SlotsByAddress<[u8; 16]>,
}

impl LocalEndpointMaps {
    /// Takes the tables out of a loaded object.
    pub(super) fn open(bpf: &mut Ebpf) -> Result<Self, TableError> {
        Ok(Self {
            four: SlotsByAddress::open(bpf, "LOCALS4")?,
            six: SlotsByAddress::open(bpf, "LOCALS6")?,
        })
    }

    /// Applies an operation on an endpoint slot.
    #[expect(clippy::wildcard_enum_match_arm, reason = "of the operations, those on this table")]
    pub(super) fn apply(&mut self, op: &Op) -> Result<(), TableError> {
        let (slot, endpoint) = match op {
            Op::Endpoint(slot, endpoint) | Op::EndpointAddrs(slot, endpoint) => (*slot, **endpoint),
            Op::EndpointGone(slot) => (*slot, Endpoint::default()),
            _ => return Ok(()),
        };
        let valid = |shift: u32| {
            (0..ENDPOINT_ADDRS).filter(move |n| endpoint.flags >> (shift + *n as u32) & 1 != 0)
        };
        self.four.set(slot, valid(EP_ADDR4_SHIFT).map(|n| endpoint.addr4[n]).collect())?;
        self.six.set(slot, valid(EP_ADDR6_SHIFT).map(|n| endpoint.addr6[n]).collect())
    }
}

impl<K: Pod + Ord> SlotsByAddress<K> {
    fn open(bpf: &mut Ebpf, name: &'static str) -> Result<Self, TableError> {
        let map = HashMap::try_from(bpf.take_map(name).ok_or(TableError::Missing(name))?)
            .map_err(|cause| TableError::Map { name, cause })?;
        Ok(Self { name, map, held: BTreeMap::new(), holders: BTreeMap::new() })
    }

    /// Sets the addresses of an endpoint slot.
    fn set(&mut self, slot: u32, addresses: BTreeSet<K>) -> Result<(), TableError> {
        let had = self.held.remove(&slot).unwrap_or_default();
        for changed in had.symmetric_difference(&addresses) {
            let holders = self.holders.entry(*changed).or_default();
            if !holders.remove(&slot) {
                holders.insert(slot);
            }
            let only = (holders.len() == 1).then(|| holders.first().copied()).flatten();
            if holders.is_empty() {
                self.holders.remove(changed);
            }
            self.write(changed, only)?;
        }
        if !addresses.is_empty() {
            self.held.insert(slot, addresses);
        }
        Ok(())
    }

    fn write(&mut self, address: &K, slot: Option<u32>) -> Result<(), TableError> {
        let result = match slot {
            Some(slot) => self.map.insert(address, slot, 0),
            None if self.map.get(address, 0).is_err() => Ok(()),
            None => self.map.remove(address),
        };
        result.map_err(|cause| TableError::Map { name: self.name, cause })
    }
}
