//! Pinned state of an earlier agent.

use std::collections::{BTreeMap, BTreeSet};

use aya::Pod;
use aya::maps::{MapData, MapError};
use netpold_core::error_chain::with_causes;
use netpold_ebpf::endpoint::Rows;
use netpold_ebpf::layout::{BRIDGES, Endpoint, Settings};

use super::bpffs::PinRoot;
use super::generation::{GenerationError, pin_error};
use super::other_layout::OtherLayout;
use crate::bpf::mmap::MappedArray;

/// Pinned state of an earlier agent.
#[derive(Debug, Default)]
pub struct PinnedState {
    /// Seed of the hashes in the shared tables; without them, in the tables of another layout version with resolved
    /// addresses to migrate.
    pub hash_seed: Option<u64>,
    /// Bit of `skb->mark` that the earlier agent's programs set as the proof; `None` until all of them set it.
    pub proof: Option<u32>,
    /// Bridges on which the earlier agent's programs demand the proof, as [`Settings::bridges`].
    pub bridges: [u32; BRIDGES],
    /// Endpoints of the earlier agent, one for each interface index.
    pub endpoints: Vec<Endpoint>,
    /// Slots of the endpoints, by interface index: programs of other layout versions leave marks too.
    pub slots: BTreeMap<u32, u32>,
    /// Numbers of the endpoints with domain names in their rules; empty if programs of another layout version have judged
    /// packets, because the table of doubted connections to resolvers is complete only for programs of this version, and
    /// after an agent that was killed while flow tables grew, since two programs may have read the same packets.
    pub(super) named: BTreeSet<u32>,
}

impl PinnedState {
    /// Reads the pins of this layout version, and the endpoints and the seed of others. Missing pins mean a first
    /// start.
    ///
    /// # Errors
    /// A pin exists but cannot be read.
    pub fn read(pins: &PinRoot) -> Result<Self, GenerationError> {
        let settings = pinned::<Settings>(pins, "SETTINGS")?;
        let endpoints = pinned::<Endpoint>(pins, "ENDPOINTS")?;
        let settings = settings.and_then(|s| s.read(0).ok());
        let hash_seed = settings.map(|s| s.hash_seed);
        let proof = settings.filter(|s| s.demands_proof != 0).map(|s| s.proof);
        let bridges = settings.map_or([0; BRIDGES], |s| s.bridges);
        let records = endpoints.into_iter().flat_map(|map| {
            let read = |slot| Some((slot, map.read(slot).ok()?));
            (0..map.elements()).filter_map(read).collect::<Vec<(u32, Endpoint)>>()
        });
        let records: Vec<_> = records.filter(|(_, endpoint)| endpoint.ifindex != 0).collect();
        let slots = records.iter().map(|(slot, endpoint)| (endpoint.ifindex, *slot)).collect();
        let endpoints: Vec<Endpoint> = records.into_iter().map(|(_, endpoint)| endpoint).collect();
        let has_names = |endpoint: &&Endpoint| Rows(endpoint.rows).has_names();
        let named = endpoints.iter().filter(has_names).map(|it| it.id).collect();
        let mut state = Self { hash_seed, proof, bridges, endpoints, slots, named };
        for directory in pins.other_tables() {
            state.named.clear();
            // The migration of flows reports unreadable tables.
            let Ok(other) = OtherLayout::open(&directory) else { continue };
            state.hash_seed = state.hash_seed.or(other.hash_seed());
            state.proof = state.proof.or(other.proof());
            if let Ok(others) = other.endpoints() {
                state.add(others);
            }
        }
        Ok(state)
    }

    /// Adds another version's endpoints by slot, except for interfaces with a known one.
    fn add(&mut self, mut others: Vec<(u32, Endpoint)>) {
        let known: BTreeSet<u32> = self.endpoints.iter().map(|e| e.ifindex).collect();
        others.retain(|(_, endpoint)| !known.contains(&endpoint.ifindex));
        self.slots.extend(others.iter().map(|(slot, endpoint)| (endpoint.ifindex, *slot)));
        self.endpoints.extend(others.into_iter().map(|(_, endpoint)| endpoint));
    }
}

fn pinned<T: Pod>(
    pins: &PinRoot,
    name: &'static str,
) -> Result<Option<MappedArray<T>>, GenerationError> {
    let path = pins.map(name);
    if !path.exists() {
        return Ok(None);
    }
    let failed = |reason: String| pin_error(pins.map(name), name, reason);
    let map = MapData::from_pin(&path).map_err(|e: MapError| failed(with_causes(&e)))?;
    MappedArray::flat(&map).map(Some).map_err(|e| failed(with_causes(&e)))
}
