//! Description of a layout version's tables: the place of each field by name.
//!
//! The names and the format of records are the interface between versions. They never change: a moved field keeps its
//! name, a field with a new meaning gets a new name. Each version reads the names known to it.

use std::collections::BTreeMap;
use std::mem::offset_of;

use netpold_ebpf::layout::{
    CT_BUSY, CT_EGRESS, CT_FIN_EGRESS, CT_FIN_INGRESS, CT_INGRESS, CT_NODE, CT_REPLIED, CT_RST,
    CT_RST_SENT, CT_STREAM, CT_SYN, CT_SYN_ACK, CT_VALID, Ct4Way, Ct6Way, Endpoint, NameEntry,
    Settings,
};

/// A pinned record: a name of 24 bytes, padded with zeros, then place and width.
pub(super) type PinnedRecord = [u32; 8];
/// Length of a name in bytes.
const NAME: usize = 24;

/// Flags that a flow carries from one version to another.
pub(super) const FLAGS: [(&str, u16); 11] = [
    ("flag.ingress", CT_INGRESS),
    ("flag.egress", CT_EGRESS),
    ("flag.replied", CT_REPLIED),
    ("flag.node", CT_NODE),
    ("flag.fin_ingress", CT_FIN_INGRESS),
    ("flag.fin_egress", CT_FIN_EGRESS),
    ("flag.rst", CT_RST),
    ("flag.syn", CT_SYN),
    ("flag.syn_ack", CT_SYN_ACK),
    ("flag.stream", CT_STREAM),
    ("flag.rst_sent", CT_RST_SENT),
];
/// Flags that mark a valid flow.
pub(super) const VALID_FLAGS: [&str; 2] = ["flag.valid", "flag.busy"];

/// Fields of a resolved address: name, place and width.
const RESOLVED: [(&str, usize, usize); 5] = [
    ("resolved", 0, size_of::<NameEntry>()),
    ("resolved.address", offset_of!(NameEntry, address), 16),
    // Endpoint and keyed hash of the name.
    ("resolved.name", offset_of!(NameEntry, name), 16),
    ("resolved.asked", offset_of!(NameEntry, asked), 8),
    ("resolved.until", offset_of!(NameEntry, until), 8),
];

/// Place of a field: in bytes from its record's start, or in bits of a control word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FieldPosition {
    pub(super) at: usize,
    pub(super) width: usize,
}

impl FieldPosition {
    /// Distance between records of this width: the kernel rounds the width up to 8 bytes. Never 0, even for a malformed
    /// width of 0.
    pub(super) fn stride(self) -> usize {
        self.width.next_multiple_of(8).max(8)
    }
}

/// Error: the description lacks a name.
#[derive(Debug, thiserror::Error)]
#[error("the other version's layout does not describe `{0}`")]
pub(crate) struct MissingName(String);

/// Places of a version's tables and fields, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Description(BTreeMap<String, FieldPosition>);

impl Description {
    /// Description of this version.
    pub(super) fn own() -> Self {
        let fields = [
            ("endpoint", 0, size_of::<Endpoint>()),
            ("endpoint.ifindex", offset_of!(Endpoint, ifindex), 4),
            ("endpoint.id", offset_of!(Endpoint, id), 4),
            ("endpoint.uid_hash", offset_of!(Endpoint, uid_hash), 8),
            ("endpoint.station", offset_of!(Endpoint, flags) + 2, 6),
            // All zero: the programs pass every packet of the endpoint. For versions before 14, which lack `settings.watch`.
            ("endpoint.rows", offset_of!(Endpoint, rows), 8),
            ("way4", offset_of!(Ct4Way, control), size_of::<Ct4Way>()),
            ("way4.endpoint", offset_of!(Ct4Way, key.endpoint), 4),
            ("way4.remote", offset_of!(Ct4Way, key.remote), 4),
            ("way4.local_port", offset_of!(Ct4Way, key.local_port), 2),
            ("way4.remote_port", offset_of!(Ct4Way, key.remote_port), 2),
            ("way4.protocol", offset_of!(Ct4Way, key.protocol), 4),
            ("way6", offset_of!(Ct6Way, control), size_of::<Ct6Way>()),
            ("way6.endpoint", offset_of!(Ct6Way, key.endpoint), 4),
            ("way6.remote", offset_of!(Ct6Way, key.remote), 16),
            ("way6.local_port", offset_of!(Ct6Way, key.local_port), 2),
            ("way6.remote_port", offset_of!(Ct6Way, key.remote_port), 2),
            ("way6.protocol", offset_of!(Ct6Way, key.protocol), 4),
            ("control.seen", 32, 32),
            ("settings.hash_seed", offset_of!(Settings, hash_seed), 8),
            // Bit 0 (`WATCH_ONLY`): the programs run in front of others, which judge. Bit 2 (`STANDS_ASIDE`): the programs at
            // pods' hooks leave every packet as it is. The name is that of all versions.
            ("settings.watch", offset_of!(Settings, handover), 4),
            ("settings.proof", offset_of!(Settings, proof), 4),
            // Not zero: all programs leave the proof.
            ("settings.demands_proof", offset_of!(Settings, demands_proof), 4),
        ];
        let fields = fields.into_iter().chain(RESOLVED);
        let [valid, busy] = VALID_FLAGS;
        let flags = FLAGS.into_iter().chain([(valid, CT_VALID), (busy, CT_BUSY)]);
        let flags = flags.map(|(name, flag)| (name, flag.trailing_zeros() as usize, 1));
        let all = fields.chain(flags);
        Self(all.map(|(name, at, width)| (name.to_owned(), FieldPosition { at, width })).collect())
    }

    /// Place of a name.
    pub(super) fn place(&self, name: &str) -> Result<FieldPosition, MissingName> {
        self.0.get(name).copied().ok_or_else(|| MissingName(name.to_owned()))
    }

    /// Place of a name; `None` in a version without the name.
    pub(super) fn find(&self, name: &str) -> Option<FieldPosition> {
        self.0.get(name).copied()
    }

    /// Whether resolved addresses have the layout of this version.
    pub(super) fn has_own_resolved(&self) -> bool {
        let same = |(name, at, width): &(&str, usize, usize)| {
            self.find(name) == Some(FieldPosition { at: *at, width: *width })
        };
        RESOLVED.iter().all(same)
    }

    /// Records to pin.
    pub(super) fn to_records(&self) -> Vec<PinnedRecord> {
        let record = |(name, place): (&String, &FieldPosition)| {
            let mut bytes = [0; NAME];
            let length = name.len().min(NAME);
            bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
            let mut record = [0, 0, 0, 0, 0, 0, place.at as u32, place.width as u32];
            for (word, chunk) in record.iter_mut().zip(bytes.chunks_exact(4)) {
                *word = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
            }
            record
        };
        self.0.iter().map(record).collect()
    }

    /// Parses pinned records.
    pub(super) fn from_records(records: impl Iterator<Item = PinnedRecord>) -> Self {
        let entry = |record: PinnedRecord| {
            let bytes = record[..NAME / 4].iter().flat_map(|word| word.to_le_bytes());
            let name: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
            let (at, width) = (record[6] as usize, record[7] as usize);
            (String::from_utf8_lossy(&name).into_owned(), FieldPosition { at, width })
        };
        Self(records.map(entry).filter(|(name, _)| !name.is_empty()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_survives_its_records() {
        let own = Description::own();
        assert_eq!(Description::from_records(own.to_records().into_iter()), own);
        assert!(own.0.keys().all(|name| name.len() <= NAME), "names fit");
        assert!(own.place("way4.colour").is_err());
    }
}
