//! Kernel memory of each map, by the size of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use aya::maps::loaded_maps;
use netpold_core::ops::Capacity;
use serde::Serialize;

use crate::control::Scale;
use crate::figures::{say, table};
use crate::host::map_memory;
use crate::world::LoadedCluster;

/// Maps of one cluster.
#[derive(Debug, Serialize)]
pub(crate) struct MapSizes {
    /// Pods of the cluster, each with addresses of both families.
    pub(crate) pods: u32,
    /// Bytes by map name.
    pub(crate) bytes: BTreeMap<String, u64>,
}

/// Measures the maps of a cluster of this size.
pub(crate) fn measure(scale: Scale, buckets: u32, pins: &Path) -> Result<MapSizes> {
    let before = map_memory("self")?;
    // The initial sizes of the agent.
    let _world = LoadedCluster::sized(pins, scale.changes(), buckets, Capacity::SMALL)?;
    let mut maps = map_memory("self")?;
    maps.retain(|id, _| !before.contains_key(id));
    Ok(MapSizes { pods: scale.pods, bytes: by_name(&maps)? })
}

/// Bytes by map name, of maps by identifier.
///
/// # Errors
/// The maps of the machine cannot be listed.
pub(crate) fn by_name(maps: &BTreeMap<u32, u64>) -> Result<BTreeMap<String, u64>> {
    let mut bytes = BTreeMap::new();
    for info in loaded_maps() {
        let info = info.context("cannot list maps")?;
        if let Some(used) = maps.get(&info.id()) {
            // Data sections at fixed addresses have no name.
            let name = info.name_as_str().context("a map without a name")?;
            let name = if name.is_empty() { "at fixed addresses" } else { name };
            *bytes.entry(name.to_owned()).or_default() += used;
        }
    }
    Ok(bytes)
}

/// Prints the table.
pub(crate) fn print(sizes: &[MapSizes]) {
    if sizes.is_empty() {
        return;
    }
    say("\nKernel memory of the maps, dual stack, in kB");
    let names: BTreeSet<&String> = sizes.iter().flat_map(|maps| maps.bytes.keys()).collect();
    let columns: Vec<String> = sizes.iter().map(|maps| format!("{} pods", maps.pods)).collect();
    let header: Vec<&str> =
        std::iter::once("map").chain(columns.iter().map(String::as_str)).collect();
    let cell = |bytes: u64| format!("{:.1}", bytes as f64 / 1e3);
    let rows = names.into_iter().map(|name| {
        let sizes = sizes.iter().map(|maps| cell(maps.bytes.get(name).copied().unwrap_or(0)));
        std::iter::once(name.clone()).chain(sizes).collect()
    });
    let sum = sizes.iter().map(|maps| cell(maps.bytes.values().sum()));
    let sum = std::iter::once(std::iter::once("all".to_owned()).chain(sum).collect());
    table(&header, rows.chain(sum));
}
