//! The maps of a loaded object, by name.

use std::os::fd::{AsFd, OwnedFd};

use aya::maps::{Map, MapData, MapError};
use aya::{Ebpf, Pod};

use super::global_sections::Section;
use crate::bpf::mmap::{MappedArray, MmapError};

/// Why a table could not be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The eBPF object has no such map: object and agent do not belong together.
    #[error("the eBPF object has no map {0}; agent and object are of different versions")]
    Missing(&'static str),
    /// The kernel refused.
    #[error("map {name}: {cause}")]
    Map {
        /// Map.
        name: &'static str,
        /// Why.
        cause: MapError,
    },
    /// It has no room; its size was meant to be enough.
    #[error("map {name}: no element of it is free")]
    Full {
        /// Map.
        name: &'static str,
    },
    /// mmap or an access through it failed.
    #[error("map {name}: {cause}")]
    Mapped {
        /// Map.
        name: &'static str,
        /// Why.
        cause: MmapError,
    },
}

/// The array map `name` of a loaded object.
///
/// # Errors
/// The map is missing or no array.
pub(super) fn array<'a>(bpf: &'a Ebpf, name: &'static str) -> Result<&'a MapData, TableError> {
    match bpf.map(name) {
        Some(Map::Array(data)) => Ok(data),
        _ => Err(TableError::Missing(name)),
    }
}

/// The table in a data section.
pub(super) fn section<T: Pod>(bpf: &Ebpf, section: Section) -> Result<MappedArray<T>, TableError> {
    MappedArray::flat(array(bpf, section.section)?).map_err(at(section.name))
}

/// A descriptor of its own of a loaded object's map.
pub(super) fn descriptor(bpf: &Ebpf, name: &'static str) -> Result<OwnedFd, TableError> {
    let Some(
        Map::Array(data) | Map::LruHashMap(data) | Map::PerCpuArray(data) | Map::RingBuf(data),
    ) = bpf.map(name)
    else {
        return Err(TableError::Missing(name));
    };
    let copy = data.fd().as_fd().try_clone_to_owned();
    copy.map_err(|error| TableError::Map { name, cause: MapError::IoError(error) })
}

/// The array map `name` in memory.
pub(super) fn mapped<T: Pod>(bpf: &Ebpf, name: &'static str) -> Result<MappedArray<T>, TableError> {
    MappedArray::new(array(bpf, name)?).map_err(at(name))
}

/// Says which table an access through mmap failed at.
pub(super) fn at(name: &'static str) -> impl Fn(MmapError) -> TableError {
    move |cause| TableError::Mapped { name, cause }
}
