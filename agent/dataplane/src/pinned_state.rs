//! Pinned state of an earlier agent.

use std::collections::BTreeSet;

use aya::Pod;
use aya::maps::{MapData, MapError};
use netpold_ebpf::endpoint::Rows;
use netpold_ebpf::layout::{BRIDGES, Endpoint, Settings};

use super::bpffs::PinRoot;
use super::generation::{GenerationError, chain, pin_error};
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
        let endpoints: Vec<Endpoint> = endpoints
            .map(|map| (0..map.elements()).filter_map(|i| map.read(i).ok()).collect::<Vec<_>>())
            .unwrap_or_default()
            .into_iter()
            .filter(|e| e.ifindex != 0)
            .collect();
        let has_names = |endpoint: &&Endpoint| Rows(endpoint.rows).has_names();
        let named = endpoints.iter().filter(has_names).map(|it| it.id).collect();
        let mut state = Self { hash_seed, proof, bridges, endpoints, named };
        for directory in pins.other_tables() {
            state.named.clear();
            // The migration of flows reports unreadable tables.
            let Ok(other) = OtherLayout::open(&directory) else { continue };
            state.hash_seed = state.hash_seed.or(other.hash_seed());
            if let Ok(others) = other.endpoints() {
                state.add(others);
            }
        }
        Ok(state)
    }

    /// Adds another version's endpoints, except for interfaces with a known one.
    fn add(&mut self, others: Vec<Endpoint>) {
        let known: BTreeSet<u32> = self.endpoints.iter().map(|e| e.ifindex).collect();
        self.endpoints.extend(others.into_iter().filter(|e| !known.contains(&e.ifindex)));
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
    let map = MapData::from_pin(&path).map_err(|e: MapError| failed(chain(&e)))?;
    MappedArray::flat(&map).map(Some).map_err(|e| failed(chain(&e)))
}
