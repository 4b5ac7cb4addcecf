//! Writes [`Op`]s to the kernel's maps, by aligned stores through mmap.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::net::Ipv6Addr;

use aya::Ebpf;
use ipnet::Ipv6Net;
use netpold_core::model::DomainName;
use netpold_core::ops::{Op, TableWriter};
use netpold_ebpf::endpoint::Rows;
use netpold_ebpf::layout::{
    ANY_ISOLATES_EGRESS, ANY_OBSERVED, ANY_OVER_TCP, ANY_UNCHECKED, ENDPOINT_SLOTS,
    EP_CHECK_SOURCE, EP_OBSERVE, Endpoint, PortBitmap, PortWord, Row, RowBlock, Settings, TIMEOUTS,
    TrieBlock, TrieRoot, Unproven, endpoint_slot,
};

use super::global_sections;
use super::ipv6_blocks::Ipv6Blocks;
use super::ipv6_hosts::Ipv6Hosts;
use super::local_endpoints::LocalEndpointMaps;
pub use super::maps::TableError;
use super::maps::{at, mapped, section};
use super::names::NameMaps;
use super::quiescence::wait_for_programs;
use crate::bpf::mmap::{MappedArray, MmapError};

/// All tables of compiled policy, of one generation.
pub struct BpfTables {
    pub(super) settings: MappedArray<Settings>,
    pub(super) endpoints: MappedArray<Endpoint>,
    pub(super) trie_root: MappedArray<TrieRoot>,
    pub(super) trie_blocks: MappedArray<TrieBlock>,
    pub(super) rows: MappedArray<Row>,
    pub(super) row_blocks: MappedArray<RowBlock>,
    pub(super) bitmaps: MappedArray<PortBitmap>,
    pub(super) ipv6_hosts: Ipv6Hosts,
    pub(super) ipv6_blocks: Ipv6Blocks,
    /// IPv6 addresses that did not fit in the hash table, written as /128 blocks instead.
    pub(super) overflow: BTreeSet<Ipv6Addr>,
    /// [`Settings::endpoint_probes`]
    pub(super) endpoint_probes: u32,
    /// Slots of endpoints that policy isolates for egress ([`ANY_ISOLATES_EGRESS`]).
    isolating: BTreeSet<u32>,
    /// Slots of observed endpoints ([`ANY_OBSERVED`]).
    observed: BTreeSet<u32>,
    /// Slots of endpoints without a check of the source address ([`ANY_UNCHECKED`]).
    unchecked: BTreeSet<u32>,
    /// Whether programs read DNS answers over TCP ([`ANY_OVER_TCP`]).
    over_tcp: bool,
    /// The settings as first written, with the keys of the hash tables.
    hashing: Settings,
    local_endpoints: LocalEndpointMaps,
    names: NameMaps,
    unproven: MappedArray<Unproven>,
    /// Numbers of all endpoints that were ever in the table; once [`SEEN`] are recorded, every endpoint counts as seen.
    seen: BTreeSet<u32>,
}

/// Maximum number of recorded numbers of endpoints.
const SEEN: usize = 1 << 16;

impl BpfTables {
    /// Maps the tables of a loaded object.
    ///
    /// # Errors
    /// A map is missing or cannot be mapped.
    pub fn open(bpf: &mut Ebpf) -> Result<Self, TableError> {
        Ok(Self {
            settings: section(bpf, global_sections::SETTINGS)?,
            endpoints: section(bpf, global_sections::ENDPOINTS)?,
            trie_root: section(bpf, global_sections::TRIE_ROOT)?,
            trie_blocks: mapped(bpf, "TRIE_BLOCKS")?,
            rows: mapped(bpf, "ROWS")?,
            row_blocks: mapped(bpf, "ROW_BLOCKS")?,
            bitmaps: mapped(bpf, "PORT_BITMAPS")?,
            ipv6_hosts: Ipv6Hosts::open(bpf)?,
            ipv6_blocks: Ipv6Blocks::open(bpf)?,
            overflow: BTreeSet::new(),
            endpoint_probes: 1,
            isolating: BTreeSet::new(),
            observed: BTreeSet::new(),
            unchecked: BTreeSet::new(),
            over_tcp: false,
            hashing: Settings::default(),
            local_endpoints: LocalEndpointMaps::open(bpf)?,
            names: NameMaps::open(bpf)?,
            unproven: mapped(bpf, "UNPROVEN")?,
            seen: BTreeSet::new(),
        })
    }

    /// Writes the settings before any program is attached, and returns the written ones. Operations use the hash keys
    /// of the settings, which never change.
    ///
    /// # Errors
    /// The map is smaller than one element.
    pub fn write_settings(&mut self, settings: Settings) -> Result<Settings, TableError> {
        let (ipv6_hosts_mask, ipv6_blocks_root) = (self.ipv6_hosts.mask(), self.ipv6_blocks.root());
        let endpoint_probes = self.endpoint_probes;
        let any_endpoint = self.any_endpoint();
        let settings = Settings {
            ipv6_hosts_mask,
            ipv6_blocks_root,
            endpoint_probes,
            any_endpoint,
            ..settings
        };
        self.settings.write_element(0, &settings).map_err(at("SETTINGS"))?;
        self.hashing = settings;
        Ok(settings)
    }

    /// Changes the timeouts, each by one store, while packets are judged.
    ///
    /// # Errors
    /// The map is smaller than one element.
    pub fn write_timeouts(&self, timeouts: &[u32; TIMEOUTS]) -> Result<(), TableError> {
        let mut places = (offset_of!(Settings, timeouts)..).step_by(size_of::<u32>());
        let mut written = timeouts.iter().zip(&mut places);
        written
            .try_for_each(|(timeout, place)| self.settings.store_u32(0, place, *timeout))
            .map_err(at("SETTINGS"))
    }

    /// Invalidates cached verdicts, after the last word of an update.
    ///
    /// # Errors
    /// The map is smaller than one element.
    pub fn next_revision(&self) -> Result<(), TableError> {
        const REVISION: usize = offset_of!(Settings, revision);
        self.settings
            .load_u32(0, REVISION)
            .and_then(|now| self.settings.store_u32(0, REVISION, now.wrapping_add(1)))
            .map_err(at("SETTINGS"))
    }

    /// Counters of an interface's packets with an incomplete proof at exits.
    pub(super) fn unproven(&self, ifindex: u32) -> Unproven {
        self.unproven.read(endpoint_slot(ifindex, 0)).unwrap_or_default()
    }

    /// Sets [`Settings::handover`].
    pub(super) fn set_handover(&self, flags: u32) -> Result<(), TableError> {
        self.settings.store_u32(0, offset_of!(Settings, handover), flags).map_err(at("SETTINGS"))
    }

    /// Sets the bridge (0: none) at a place of [`netpold_ebpf::layout::Settings::bridges`].
    ///
    /// # Errors
    /// The map is smaller than one element.
    pub(super) fn write_bridge(&self, place: usize, bridge: u32) -> Result<(), TableError> {
        let offset = offset_of!(Settings, bridges) + place * size_of::<u32>();
        self.settings.store_u32(0, offset, bridge).map_err(at("SETTINGS"))
    }

    /// Sets the interface (0: none) at a place of [`netpold_ebpf::layout::Settings::devices`].
    ///
    /// # Errors
    /// The map is smaller than one element.
    pub(super) fn write_device(&self, place: usize, ifindex: u32) -> Result<(), TableError> {
        let offset = offset_of!(Settings, devices) + place * size_of::<u32>();
        self.settings.store_u32(0, offset, ifindex).map_err(at("SETTINGS"))
    }

    /// Sets whether exits drop packets without the proof from unknown interfaces (0: no), see
    /// [`Settings::closes_unknown`].
    ///
    /// # Errors
    /// The map is smaller than one element.
    pub(super) fn close_unknown(&self, closes: u32) -> Result<(), TableError> {
        let offset = offset_of!(Settings, closes_unknown);
        self.settings.store_u32(0, offset, closes).map_err(at("SETTINGS"))
    }

    /// Makes exits judge the packets of endpoints that lack the proof, see [`Settings::demands_proof`].
    ///
    /// # Errors
    /// The map is smaller than one element.
    pub(super) fn demand_proof(&self) -> Result<(), TableError> {
        let offset = offset_of!(Settings, demands_proof);
        self.settings.store_u32(0, offset, 1).map_err(at("SETTINGS"))
    }
}

impl TableWriter for BpfTables {
    type Error = TableError;

    fn write(&mut self, op: &Op) -> Result<(), TableError> {
        match op {
            Op::Bitmap(i, bits) => self.bitmaps.write_element(*i, bits).map_err(at("PORT_BITMAPS")),
            Op::RowBlock(i, block) => {
                self.row_blocks.write_element(*i, block).map_err(at("ROW_BLOCKS"))
            }
            Op::RowBlockWord { block: i, column, ports: word } => self
                .row_blocks
                .store_u64(*i, usize::from(*column) * size_of::<PortWord>(), *word)
                .map_err(at("ROW_BLOCKS")),
            Op::Row(i, row) => self.rows.write_element(*i, row).map_err(at("ROWS")),
            Op::RowFirst { row: i, class, ports: word } => self
                .rows
                .store_u64(*i, usize::from(*class) * size_of::<PortWord>(), *word)
                .map_err(at("ROWS")),
            Op::RowWord { row: i, index, block: word } => self
                .rows
                .store_u32(*i, offset_of!(Row, blocks) + usize::from(*index) * 4, *word)
                .map_err(at("ROWS")),
            Op::TrieBlock(i, block) => {
                self.trie_blocks.write_element(*i, block).map_err(at("TRIE_BLOCKS"))
            }
            Op::TrieWord { block: i, index, word } => self
                .trie_blocks
                .store_u32(*i, usize::from(*index) * 4, *word)
                .map_err(at("TRIE_BLOCKS")),
            Op::TrieRootWord { index, word } => {
                self.trie_root.store_u32(0, usize::from(*index) * 4, *word).map_err(at("TRIE_ROOT"))
            }
            Op::Host6(..) | Op::Host6Gone(_) | Op::Block6(..) | Op::Block6Gone(_) => {
                self.apply_v6(op)
            }
            Op::Endpoint(..)
            | Op::EndpointRows { .. }
            | Op::EndpointAddrs(..)
            | Op::EndpointGone(_) => {
                self.apply_endpoint(op).map_err(at("ENDPOINTS"))?;
                self.local_endpoints.apply(op)
            }
            Op::Name { .. } | Op::NameGone(..) | Op::Resolver(..) | Op::ResolverGone(_) => {
                if matches!(op, Op::Resolver(_, true)) && !self.over_tcp {
                    self.over_tcp = true;
                    self.write_any().map_err(at("SETTINGS"))?;
                }
                self.names.apply(op, &self.hashing)
            }
            Op::Grace => {
                wait_for_programs();
                Ok(())
            }
        }
    }
}

impl BpfTables {
    #[expect(clippy::wildcard_enum_match_arm, reason = "of the operations, those on this table")]
    fn apply_v6(&mut self, op: &Op) -> Result<(), TableError> {
        match op {
            Op::Host6(address, class) => self.set_host6(*address, *class),
            Op::Host6Gone(address) if self.overflow.contains(address) => {
                self.set_block((*address).into(), None)?;
                self.overflow.remove(address);
                Ok(())
            }
            Op::Host6Gone(address) => self.ipv6_hosts.remove(&self.hashing, *address).map(drop),
            Op::Block6(net, class) => self.set_block(*net, Some(*class)),
            Op::Block6Gone(net) => self.set_block(*net, None),
            _ => Ok(()),
        }
    }

    /// Sets the class of an address: in the hash table, or as a /128 block if its buckets are full.
    fn set_host6(&mut self, address: Ipv6Addr, class: u32) -> Result<(), TableError> {
        if !self.overflow.contains(&address)
            && let Ok(()) = self.ipv6_hosts.set(&self.hashing, address, class)?
        {
            return Ok(());
        }
        self.set_block(address.into(), Some(class))?;
        self.overflow.insert(address);
        Ok(())
    }

    /// Sets the class of a block, or removes it.
    fn set_block(&mut self, net: Ipv6Net, class: Option<u32>) -> Result<(), TableError> {
        let before = self.ipv6_blocks.root();
        let edited = match class {
            Some(class) => self.ipv6_blocks.set(net, class),
            None => self.ipv6_blocks.remove(net).map(drop),
        };
        if self.ipv6_blocks.root() != before {
            self.write_root()?;
        }
        edited
    }

    /// Writes the root of the block tree to the settings.
    pub(super) fn write_root(&self) -> Result<(), TableError> {
        let offset = offset_of!(Settings, ipv6_blocks_root);
        self.settings.store_u32(0, offset, self.ipv6_blocks.root()).map_err(at("SETTINGS"))
    }

    /// Compares a name's groups with the table, and repairs the entry; returns the number of repaired entries, 0 or 1.
    pub(super) fn check_name(
        &mut self,
        list: u32,
        name: &DomainName,
        groups: u32,
    ) -> Result<u64, TableError> {
        if self.names.groups(&self.hashing, list, name) == Some(groups) {
            return Ok(0);
        }
        self.write(&Op::Name { list, name: Box::new(name.clone()), groups }).map(|()| 1)
    }

    /// The settings as programs read them.
    pub(super) fn current_settings(&self) -> Result<Settings, TableError> {
        self.settings.read(0).map_err(at("SETTINGS"))
    }

    /// Raises the number of probed slots to include `slot` for the interface.
    fn extend_probes(&mut self, slot: u32, ifindex: u32) -> Result<(), MmapError> {
        let beyond = slot.wrapping_sub(endpoint_slot(ifindex, 0)) & (ENDPOINT_SLOTS - 1);
        if beyond < self.endpoint_probes {
            return Ok(());
        }
        self.endpoint_probes = beyond + 1;
        self.settings.store_u32(0, offset_of!(Settings, endpoint_probes), self.endpoint_probes)
    }

    /// Numbers of the endpoints to which operations give the first domain names, or the first resolvers over TCP. Endpoints
    /// that are new to the table are left out: the interface of a new pod is closed until its programs are attached.
    #[expect(clippy::wildcard_enum_match_arm, reason = "of the operations, those on this table")]
    pub(super) fn endpoints_gaining_names(&self, ops: &[Op]) -> BTreeSet<u32> {
        // Until the first resolver over TCP, the programs store no doubts.
        let begins = !self.over_tcp && ops.iter().any(|op| matches!(op, Op::Resolver(_, true)));
        let mut gaining = if begins { self.named() } else { BTreeSet::new() };
        for op in ops {
            let (slot, fresh) = match op {
                Op::Endpoint(_, endpoint) if self.is_new(endpoint.id) => continue,
                Op::Endpoint(slot, endpoint) | Op::EndpointAddrs(slot, endpoint) => {
                    (*slot, **endpoint)
                }
                Op::EndpointRows { slot, rows } => {
                    let now = self.endpoints.read(*slot).unwrap_or_default();
                    (*slot, Endpoint { rows: *rows, ..now })
                }
                _ => continue,
            };
            if Rows(fresh.rows).has_names() && !self.has_names(slot, fresh.id) {
                gaining.insert(fresh.id);
            }
        }
        gaining
    }

    fn is_new(&self, endpoint: u32) -> bool {
        self.seen.len() < SEEN && !self.seen.contains(&endpoint)
    }

    fn mark_seen(&mut self, endpoint: u32) {
        if self.seen.len() < SEEN {
            self.seen.insert(endpoint);
        }
    }

    /// Records the endpoints that were in a former generation's table.
    pub(super) fn inherit_seen(&mut self, former: &Self) {
        former.seen.iter().for_each(|endpoint| self.mark_seen(*endpoint));
    }

    fn has_names(&self, slot: u32, endpoint: u32) -> bool {
        let now = self.endpoints.read(slot).unwrap_or_default();
        now.ifindex != 0 && now.id == endpoint && Rows(now.rows).has_names()
    }

    /// Numbers of the endpoints with domain names in their rules.
    pub(super) fn named(&self) -> BTreeSet<u32> {
        let all = (0..self.endpoints.elements()).filter_map(|slot| self.endpoints.read(slot).ok());
        all.filter(|it| Rows(it.rows).has_names()).map(|it| it.id).collect()
    }

    /// Value of [`Settings::any_endpoint`].
    pub(super) fn any_endpoint(&self) -> u32 {
        let flag = |slots: &BTreeSet<u32>, flag| if slots.is_empty() { 0 } else { flag };
        flag(&self.isolating, ANY_ISOLATES_EGRESS)
            | flag(&self.observed, ANY_OBSERVED)
            | flag(&self.unchecked, ANY_UNCHECKED)
            | if self.over_tcp { ANY_OVER_TCP } else { 0 }
    }

    /// Sets the flags of an endpoint's new rows and flags in [`Settings::any_endpoint`], before programs find the rows
    /// and flags. [`Self::record_rows`] and [`Self::record_flags`] clear flags that no longer hold after the store, so
    /// the word covers all endpoints at every moment.
    fn announce_endpoint(&mut self, slot: u32, rows: u64, flags: u64) -> Result<(), MmapError> {
        if Rows(rows).isolates_egress() {
            self.record_rows(slot, rows)?;
        }
        let (observed, unchecked) = (self.observed.contains(&slot), self.unchecked.contains(&slot));
        let observe = if observed { EP_OBSERVE } else { 0 };
        let check = if unchecked { !EP_CHECK_SOURCE } else { u64::MAX };
        self.record_flags(slot, (flags | observe) & check)
    }

    /// Records the rows of the endpoint in `slot`, and updates [`Settings::any_endpoint`].
    fn record_rows(&mut self, slot: u32, rows: u64) -> Result<(), MmapError> {
        self.record_slot(slot, Rows(rows).isolates_egress(), |tables| &mut tables.isolating)
    }

    /// Records the flags of the endpoint in `slot`, and updates [`Settings::any_endpoint`].
    fn record_flags(&mut self, slot: u32, flags: u64) -> Result<(), MmapError> {
        self.record_slot(slot, flags & EP_OBSERVE != 0, |tables| &mut tables.observed)?;
        self.record_slot(slot, flags & EP_CHECK_SOURCE == 0, |tables| &mut tables.unchecked)
    }

    /// Adds `slot` to a set of slots, or removes it, and updates [`Settings::any_endpoint`].
    fn record_slot(
        &mut self,
        slot: u32,
        has: bool,
        slots: fn(&mut Self) -> &mut BTreeSet<u32>,
    ) -> Result<(), MmapError> {
        let before = self.any_endpoint();
        if has {
            slots(self).insert(slot);
        } else {
            slots(self).remove(&slot);
        }
        if self.any_endpoint() == before { Ok(()) } else { self.write_any() }
    }

    fn write_any(&self) -> Result<(), MmapError> {
        let offset = offset_of!(Settings, any_endpoint);
        self.settings.store_u32(0, offset, self.any_endpoint())
    }

    /// Stores in the order that `layout::Endpoint` guarantees: the interface index last when a slot is filled, first
    /// when it is freed; flags after the addresses that they make valid.
    #[expect(clippy::wildcard_enum_match_arm, reason = "of the operations, those on this table")]
    fn apply_endpoint(&mut self, op: &Op) -> Result<(), MmapError> {
        const IFINDEX: usize = offset_of!(Endpoint, ifindex);
        const FLAGS: usize = offset_of!(Endpoint, flags);
        match op {
            Op::Endpoint(slot, endpoint) => {
                self.extend_probes(*slot, endpoint.ifindex)?;
                self.mark_seen(endpoint.id);
                self.announce_endpoint(*slot, endpoint.rows, endpoint.flags)?;
                self.endpoints.write_element(*slot, &Endpoint { ifindex: 0, ..**endpoint })?;
                self.endpoints.store_u32(*slot, IFINDEX, endpoint.ifindex)?;
                self.record_rows(*slot, endpoint.rows)?;
                self.record_flags(*slot, endpoint.flags)
            }
            Op::EndpointRows { slot, rows } => {
                self.announce_endpoint(*slot, *rows, EP_CHECK_SOURCE)?;
                self.endpoints.store_u64(*slot, offset_of!(Endpoint, rows), *rows)?;
                self.record_rows(*slot, *rows)
            }
            Op::EndpointAddrs(slot, endpoint) => {
                self.mark_seen(endpoint.id);
                self.announce_endpoint(*slot, 0, endpoint.flags)?;
                let now = self.endpoints.read(*slot)?;
                self.endpoints
                    .write_element(*slot, &Endpoint { flags: now.flags, ..**endpoint })?;
                self.endpoints.store_u64(*slot, FLAGS, endpoint.flags)?;
                self.record_flags(*slot, endpoint.flags)
            }
            Op::EndpointGone(slot) => {
                self.endpoints.store_u32(*slot, IFINDEX, 0)?;
                self.record_rows(*slot, 0)?;
                self.record_flags(*slot, EP_CHECK_SOURCE)?;
                self.endpoints.write_element(*slot, &Endpoint::default())
            }
            _ => Ok(()),
        }
    }
}
