//! Audit: compares the kernel's tables with their desired content, and repairs them.
//!
//! A pass covers all tables in slices; packets and updates continue in between. At 100,000 pods it reads about 70 MB of
//! memory, a load that slices hide. Only the agent writes these tables, and the engine runs no update during a slice,
//! so another process caused any difference.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::net::Ipv6Addr;

use aya::Pod;
use ipnet::Ipv6Net;
use netpold_core::compile::{Compiler, Cursor, DesiredElement};
use netpold_core::ops::{Op, TableWriter};
use netpold_ebpf::layout::{Endpoint, Row, Settings};

use super::maps::{TableError, at};
use super::tables::BpfTables;
use crate::bpf::mmap::{MappedArray, MmapError};

/// Repaired entries, by table.
pub type Repaired = BTreeMap<&'static str, u64>;

/// Progress of the search for unexpected IPv6 entries.
#[derive(Debug, Default)]
pub struct UnexpectedEntries {
    /// Next bucket of addresses.
    host: u32,
    block: Option<Ipv6Net>,
}

fn count_repaired(repaired: &mut Repaired, table: &'static str, wrong: u64) {
    if wrong > 0 {
        *repaired.entry(table).or_default() += wrong;
    }
}

fn table(desired: &DesiredElement<'_>) -> &'static str {
    match desired {
        DesiredElement::TrieRoot(..) | DesiredElement::TrieBlock(..) => "IPv4 trie",
        DesiredElement::Row(..) | DesiredElement::RowBlock(..) => "rows",
        DesiredElement::Bitmap(..) => "port bitmaps",
        DesiredElement::Endpoint(..) => "endpoints",
        DesiredElement::Host6(..) => "IPv6 addresses",
        DesiredElement::Block6(..) => "IPv6 prefixes",
        DesiredElement::Name(..) => "domain names",
    }
}

impl BpfTables {
    /// Compares the next of `slices` parts of the tables with their desired content after the compiler's last update,
    /// and repairs differences; `settings` are the written ones. Returns the start of the next part.
    ///
    /// # Errors
    /// A table cannot be read or written.
    pub fn audit(
        &mut self,
        settings: Settings,
        compiler: &Compiler,
        (cursor, slices): (Cursor, u32),
        unexpected: &mut UnexpectedEntries,
    ) -> Result<(Cursor, Repaired), TableError> {
        let mut repaired = Repaired::new();
        if cursor.is_start() {
            count_repaired(&mut repaired, "settings", self.check_settings(&settings)?);
        }
        let tables = compiler.desired();
        let budget = tables.count() / slices.max(1) + 1;
        let mut failed = Ok(());
        let next = tables.visit(cursor, budget, &mut |desired| match self.check(&desired) {
            Ok(wrong) => count_repaired(&mut repaired, table(&desired), wrong),
            Err(error) => failed = Err(error),
        });
        failed?;
        let removed = self.remove_unexpected(compiler, unexpected, slices)?;
        count_repaired(&mut repaired, "IPv6 addresses", removed.0);
        count_repaired(&mut repaired, "IPv6 prefixes", removed.1);
        if !repaired.is_empty() {
            self.next_revision()?;
        }
        Ok((next, repaired))
    }

    /// Compares an element and repairs it; returns the number of wrong words or entries.
    fn check(&mut self, desired: &DesiredElement<'_>) -> Result<u64, TableError> {
        match desired {
            DesiredElement::TrieRoot(first, wanted) => {
                words(&self.trie_root, 0, *first, wanted).map_err(at("TRIE_ROOT"))
            }
            DesiredElement::TrieBlock(id, wanted) => {
                words(&self.trie_blocks, *id, 0, &wanted[..]).map_err(at("TRIE_BLOCKS"))
            }
            DesiredElement::Row(id, wanted) => {
                let blocks = offset_of!(Row, blocks) as u32 / 4;
                wide_words(&self.rows, *id, &wanted.first)
                    .and_then(|wrong| Ok(wrong + words(&self.rows, *id, blocks, &wanted.blocks)?))
                    .and_then(|wrong| {
                        let (list, rows) = (&[wanted.names.list], &wanted.names.rows);
                        let names = offset_of!(Row, names) as u32 / 4;
                        let wrong = wrong + words(&self.rows, *id, names, list)?;
                        Ok(wrong + words(&self.rows, *id, names + 1, rows)?)
                    })
                    .map_err(at("ROWS"))
            }
            DesiredElement::RowBlock(id, wanted) => {
                wide_words(&self.row_blocks, *id, &wanted[..]).map_err(at("ROW_BLOCKS"))
            }
            DesiredElement::Bitmap(id, wanted) => {
                wide_words(&self.bitmaps, *id, &wanted[..]).map_err(at("PORT_BITMAPS"))
            }
            DesiredElement::Endpoint(slot, wanted) => {
                self.check_endpoint(*slot, *wanted).map_err(at("ENDPOINTS"))
            }
            DesiredElement::Host6(address, class) => {
                let settings = self.current_settings()?;
                let found = if self.overflow.contains(address) {
                    self.ipv6_blocks.get((*address).into())
                } else {
                    self.ipv6_hosts.get(&settings, *address)?
                };
                let wrong = self.check_v6(found, *class, Op::Host6(*address, *class))?;
                Ok(wrong + u64::from(self.ipv6_hosts.reveal(&settings, *address)?))
            }
            DesiredElement::Block6(net, class) => {
                let found = self.ipv6_blocks.get(*net);
                self.check_v6(found, *class, Op::Block6(*net, *class))
            }
            DesiredElement::Name(list, name, groups) => self.check_name(*list, name, *groups),
        }
    }

    fn check_v6(&mut self, found: Option<u32>, class: u32, write: Op) -> Result<u64, TableError> {
        if found == Some(class) {
            return Ok(0);
        }
        self.write(&write).map(|()| 1)
    }

    /// Writes the rows first, and keeps the slot's interface index throughout if it was right.
    fn check_endpoint(&self, slot: u32, wanted: Option<&Endpoint>) -> Result<u64, MmapError> {
        let wanted = wanted.copied().unwrap_or_default();
        let found = self.endpoints.read(slot)?;
        if found == wanted {
            return Ok(0);
        }
        let ifindex = offset_of!(Endpoint, ifindex);
        if wanted.ifindex == 0 {
            self.endpoints.store_u32(slot, ifindex, 0)?;
        }
        self.endpoints.store_u64(slot, offset_of!(Endpoint, rows), wanted.rows)?;
        if found.ifindex == wanted.ifindex {
            self.endpoints.write_element(slot, &wanted)?;
        } else {
            self.endpoints.write_element(slot, &Endpoint { ifindex: 0, ..wanted })?;
            self.endpoints.store_u32(slot, ifindex, wanted.ifindex)?;
        }
        Ok(1)
    }

    /// Repairs the settings that must stay as first written.
    fn check_settings(&self, wanted: &Settings) -> Result<u64, TableError> {
        let found = self.settings.read(0).map_err(at("SETTINGS"))?;
        let (revision, endpoint_probes) = (found.revision, self.endpoint_probes);
        let (ipv6_blocks_root, any_endpoint) = (self.ipv6_blocks.root(), self.any_endpoint());
        let wanted = Settings {
            ipv6_blocks_root,
            revision,
            endpoint_probes,
            any_endpoint,
            handover: 0,
            ..*wanted
        };
        if found == wanted {
            return Ok(0);
        }
        self.settings.write_element(0, &wanted).map_err(at("SETTINGS")).map(|()| 1)
    }

    /// Removes or corrects some unexpected IPv6 entries; returns the number of addresses and prefixes.
    fn remove_unexpected(
        &mut self,
        compiler: &Compiler,
        unexpected: &mut UnexpectedEntries,
        slices: u32,
    ) -> Result<(u64, u64), TableError> {
        const LEAST: u32 = 64;
        let tables = compiler.desired();
        let part = tables.count() / slices.max(1) + LEAST;
        let settings = self.current_settings()?;
        let mut hosts = 0;
        for _ in 0..part {
            let Some(addresses) = self.ipv6_hosts.bucket(unexpected.host)? else {
                unexpected.host = 0;
                break;
            };
            let known = |address: &Ipv6Addr| tables.has_host6(*address);
            for address in addresses.into_iter().filter(|address| !known(address)) {
                self.write(&Op::Host6Gone(address))?;
                hosts += 1;
            }
            let wrong = self.ipv6_hosts.check_filter(&settings, unexpected.host)?;
            hosts += u64::from(wrong);
            unexpected.host += 1;
        }
        let mut blocks = self.ipv6_blocks.audit(part as usize)?;
        for _ in 0..part {
            unexpected.block = self.ipv6_blocks.next(unexpected.block);
            let Some(net) = unexpected.block else { break };
            let overflow = net.prefix_len() == 128 && self.overflow.contains(&net.addr());
            if !overflow && !tables.has_block6(net) {
                self.write(&Op::Block6Gone(net))?;
                blocks += 1;
            }
        }
        Ok((hosts, blocks))
    }
}

/// Compares and repairs 32-bit words of an element, starting at word `first`.
fn words<T: Pod>(
    map: &MappedArray<T>,
    element: u32,
    first: u32,
    wanted: &[u32],
) -> Result<u64, MmapError> {
    let mut wrong = 0;
    for (index, word) in (first as usize..).zip(wanted) {
        if map.load_u32(element, index * 4)? != *word {
            map.store_u32(element, index * 4, *word)?;
            wrong += 1;
        }
    }
    Ok(wrong)
}

/// Compares and repairs the words of an element of 64-bit words.
fn wide_words<T: Pod>(
    map: &MappedArray<T>,
    element: u32,
    wanted: &[u64],
) -> Result<u64, MmapError> {
    let mut wrong = 0;
    for (index, word) in wanted.iter().enumerate() {
        if *word != DesiredElement::ANY && map.load_u64(element, index * 8)? != *word {
            map.store_u64(element, index * 8, *word)?;
            wrong += 1;
        }
    }
    Ok(wrong)
}
