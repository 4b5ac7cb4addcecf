//! Number of records per namespace, and the choice of the record to displace.

use std::collections::BTreeMap;

/// Maximum number of records of one namespace's workloads.
pub(super) const NAMESPACE_MAX: usize = 2048;
/// Maximum number of records in total.
pub(super) const TOTAL_MAX: usize = 16_384;

/// Refusal for lack of room, with the record to displace if the requester has fewer records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NoRoom {
    /// Namespace of the workloads.
    pub(super) owner: Option<String>,
    /// Namespace of the peers; empty for outside addresses.
    pub(super) source: Option<String>,
}

/// Number of records by namespace of the workload, then by namespace of the peer.
#[derive(Debug, Default)]
pub(super) struct Shares {
    total: usize,
    owners: BTreeMap<String, NamespaceShare>,
}

#[derive(Debug, Default)]
struct NamespaceShare {
    records: usize,
    sources: BTreeMap<String, usize>,
}

impl NamespaceShare {
    /// Returns the source with most records, and their number.
    fn largest(&self) -> (Option<&String>, usize) {
        let largest = self.sources.iter().max_by_key(|(_, records)| **records);
        (largest.map(|(name, _)| name), largest.map_or(0, |(_, records)| *records))
    }
}

impl Shares {
    /// Checks whether there is room for a record.
    pub(super) fn room(&self, owner: &str, source: &str) -> Result<(), NoRoom> {
        let own = self.owners.get(owner);
        if let Some(own) = own.filter(|own| own.records >= NAMESPACE_MAX) {
            let has = own.sources.get(source).copied().unwrap_or(0);
            let (largest, records) = own.largest();
            return Err(match largest.filter(|_| records > has + 1) {
                Some(largest) => {
                    NoRoom { owner: Some(owner.to_owned()), source: Some(largest.clone()) }
                }
                None => NoRoom::default(),
            });
        }
        if self.total < TOTAL_MAX {
            return Ok(());
        }
        let has = own.map_or(0, |own| own.records);
        let largest = self.owners.iter().max_by_key(|(_, of)| of.records);
        Err(match largest.filter(|(_, of)| of.records > has + 1) {
            Some((name, of)) => {
                NoRoom { owner: Some(name.clone()), source: of.largest().0.cloned() }
            }
            None => NoRoom::default(),
        })
    }

    pub(super) fn add(&mut self, owner: &str, source: &str) {
        self.total += 1;
        let owner = self.owners.entry(owner.to_owned()).or_default();
        owner.records += 1;
        *owner.sources.entry(source.to_owned()).or_default() += 1;
    }

    pub(super) fn remove(&mut self, owner: &str, source: &str) {
        let Some(of) = self.owners.get_mut(owner) else { return };
        self.total = self.total.saturating_sub(1);
        of.records = of.records.saturating_sub(1);
        if let Some(records) = of.sources.get_mut(source) {
            *records = records.saturating_sub(1);
            if *records == 0 {
                of.sources.remove(source);
            }
        }
        if of.records == 0 {
            self.owners.remove(owner);
        }
    }
}
