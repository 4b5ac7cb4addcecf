//! Maps and constants that several objects of one generation are loaded with.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use aya::maps::{Map, MapData};
use aya::{Ebpf, EbpfLoader};

use super::checksum::ChecksumFields;

/// Maps by name, without those of the object's constants.
pub(super) type MapsByName = BTreeMap<String, OwnedFd>;

/// Maps and constants of a generation for its traced programs.
#[derive(Debug)]
pub struct SharedMaps {
    pub(super) maps: MapsByName,
    pub(super) globals: Globals,
    /// Identifier of the program for pod ingress, which identifies the generation.
    pub(super) generation: u32,
}

/// Constants that programs are loaded with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Globals {
    pub(super) asks_for_namespace: u8,
    pub(super) connection_offset: u32,
    pub(super) tuples_offset: u32,
    pub(super) checksum: ChecksumFields,
}

impl Globals {
    /// Sets the constants of a loader.
    pub(super) fn set_constants<'g>(&'g self, loader: &mut EbpfLoader<'g>) {
        loader.override_global("ASKS_FOR_NAMESPACE", &self.asks_for_namespace, true);
        loader.override_global("CONNECTION_OFFSET", &self.connection_offset, true);
        loader.override_global("TUPLES_OFFSET", &self.tuples_offset, true);
        loader.override_global("CHECKSUM", &self.checksum.words, true);
        loader.override_global("CUT", &self.checksum.lists, true);
    }
}

/// All maps of a loaded object, without those of its constants.
pub(super) fn maps(bpf: &Ebpf) -> io::Result<MapsByName> {
    let own = |(name, _): &(&str, &Map)| !name.starts_with(".rodata");
    let copy = |(name, map): (&str, &Map)| {
        let data =
            data(map).ok_or_else(|| io::Error::other(format!("a map of unknown kind: {name}")))?;
        Ok((name.to_owned(), data.fd().as_fd().try_clone_to_owned()?))
    };
    bpf.maps().filter(own).map(copy).collect()
}

/// The data of a map, for the kinds in the object.
#[expect(clippy::wildcard_enum_match_arm, reason = "of all kinds of maps, those of the object")]
pub(super) fn data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::RingBuf(data) => Some(data),
        _ => None,
    }
}
