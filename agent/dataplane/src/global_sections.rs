//! Tables at a fixed address, which the programs read without a lookup.
//!
//! To the eBPF object they are data sections, each a map of one element. The loader would create maps that cannot be
//! mapped into memory, so it gets pinned ones that can. It also pins the maps that it creates at such a path.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use aya::EbpfLoader;
use netpold_ebpf::layout::{ENDPOINT_SLOTS, Endpoint, Settings, TrieRoot};

use super::bpffs::{MapPins, remove_if_there};
use crate::bpf::sys;

/// A table at a fixed address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Name of the table.
    pub name: &'static str,
    /// Section of the object, which is also the name of its map.
    pub section: &'static str,
    bytes: usize,
}

/// The settings.
pub const SETTINGS: Section =
    Section { name: "SETTINGS", section: ".bss.settings", bytes: size_of::<Settings>() };
/// All endpoint slots.
pub const ENDPOINTS: Section = Section {
    name: "ENDPOINTS",
    section: ".bss.endpoints",
    bytes: size_of::<Endpoint>() * ENDPOINT_SLOTS as usize,
};
/// The root of the IPv4 trie.
pub const TRIE_ROOT: Section =
    Section { name: "TRIE_ROOT", section: ".bss.trie_root", bytes: size_of::<TrieRoot>() };

/// Pins for a single load, removed on drop.
#[derive(Debug)]
pub struct TemporaryPins {
    pins: Vec<PathBuf>,
}

impl TemporaryPins {
    /// Creates the maps and passes their pins to the loader, with paths for `own`: maps that the loader is to create
    /// although maps of the same name are pinned.
    ///
    /// # Errors
    /// The kernel refuses a map or a pin; returned with its name.
    pub fn to(
        loader: &mut EbpfLoader<'_>,
        pins: &MapPins,
        own: &[&'static str],
    ) -> Result<Self, (&'static str, io::Error)> {
        let mut offered = Self { pins: Vec::new() };
        for section in [SETTINGS, ENDPOINTS, TRIE_ROOT] {
            let path = offered.place(loader, pins, (section.name, section.section))?;
            section.offer(&path).map_err(|error| (section.name, error))?;
        }
        for &name in own {
            offered.place(loader, pins, (name, name))?;
        }
        Ok(offered)
    }

    /// A free path for a map, by its name as a table and its name to the loader.
    fn place(
        &mut self,
        loader: &mut EbpfLoader<'_>,
        pins: &MapPins,
        (name, map): (&'static str, &'static str),
    ) -> Result<PathBuf, (&'static str, io::Error)> {
        let path = pins.map(&format!("{name}_OFFERED"));
        remove_if_there(&path).map_err(|error| (name, error))?;
        loader.map_pin_path(map, path.clone());
        self.pins.push(path.clone());
        Ok(path)
    }
}

impl Drop for TemporaryPins {
    fn drop(&mut self) {
        for path in &self.pins {
            let _ = fs::remove_file(path);
        }
    }
}

impl Section {
    fn offer(self, path: &std::path::Path) -> io::Result<()> {
        let map = sys::array(self.bytes as u32, 1, sys::BPF_F_MMAPABLE)?;
        sys::obj_pin(map.as_fd(), path)
    }
}
