//! Maps of a loaded object, by name.

use std::os::fd::{AsFd, OwnedFd};

use aya::maps::{Map, MapData, MapError};
use aya::{Ebpf, Pod};

use super::global_sections::Section;
use crate::bpf::mmap::{MappedArray, MmapError};

/// Failure to open or to write a table.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The eBPF object has no such map: object and agent are of different versions.
    #[error("the eBPF object has no map {0}; agent and object are of different versions")]
    Missing(&'static str),
    /// The kernel refused.
    #[error("map {name}: {cause}")]
    Map {
        /// Name of the map.
        name: &'static str,
        /// Error of the kernel.
        cause: MapError,
    },
    /// The map has no free element, although its size should suffice.
    #[error("map {name}: no element is free")]
    Full {
        /// Name of the map.
        name: &'static str,
    },
    /// mmap or an access through it failed.
    #[error("map {name}: {cause}")]
    Mapped {
        /// Name of the map.
        name: &'static str,
        /// Error of the access.
        cause: MmapError,
    },
}

/// The array map `name` of a loaded object.
///
/// # Errors
/// The map is missing, or not an array.
pub(super) fn array<'a>(bpf: &'a Ebpf, name: &'static str) -> Result<&'a MapData, TableError> {
    match bpf.map(name) {
        Some(Map::Array(data)) => Ok(data),
        _ => Err(TableError::Missing(name)),
    }
}

/// The table of a data section.
pub(super) fn section<T: Pod>(bpf: &Ebpf, section: Section) -> Result<MappedArray<T>, TableError> {
    MappedArray::flat(array(bpf, section.section)?).map_err(at(section.name))
}

/// A new descriptor of a loaded object's map.
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

/// The array map `name`, mapped into memory.
pub(super) fn mapped<T: Pod>(bpf: &Ebpf, name: &'static str) -> Result<MappedArray<T>, TableError> {
    MappedArray::new(array(bpf, name)?).map_err(at(name))
}

/// Adds the table's name to an error of an access through mmap.
pub(super) fn at(name: &'static str) -> impl Fn(MmapError) -> TableError {
    move |cause| TableError::Mapped { name, cause }
}
