//! What was found: as tables for people, as JSON for programs, and against the stored baseline.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::control::{self, Control};
use crate::engine::{self, Node};
use crate::figures::{say, table};
use crate::flapping::{self, Flapping};
use crate::flood::{self, Flood};
use crate::forward::{self, Forwarding};
use crate::host::Machine;
use crate::hostile::{self, Hostile};
use crate::lookups::{self, CaseLookups};
use crate::maps::{self, Maps};
use crate::packet::{self, PacketFigure};
use crate::wire::{self, Wire};

/// A program after the verifier.
#[derive(Debug, Serialize)]
pub(crate) struct Program {
    pub(crate) name: String,
    /// Instructions the verifier went through.
    pub(crate) verified: u32,
    /// Bytes of machine code.
    pub(crate) jited_bytes: u32,
}

/// Everything that a run found.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) quick: bool,
    pub(crate) programs: Vec<Program>,
    /// Nanoseconds.
    pub(crate) packet: Vec<PacketFigure>,
    /// Map lookups.
    pub(crate) lookups: Vec<CaseLookups>,
    /// Sizes that could not be installed.
    pub(crate) refused: Vec<String>,
    pub(crate) control: Vec<Control>,
    pub(crate) node: Option<Node>,
    /// Edits beside a tenant who flaps.
    pub(crate) flapping: Option<Flapping>,
    pub(crate) hostile: Vec<Hostile>,
    pub(crate) maps: Vec<Maps>,
    pub(crate) forwarding: Vec<Forwarding>,
    pub(crate) flood: Vec<Flood>,
    pub(crate) wire: Vec<Wire>,
}

impl Results {
    /// Prints all tables.
    pub(crate) fn print(&self) {
        let Machine { cpu, cpus, kernel, .. } = &self.machine;
        say(&format!("\n{cpu}, {cpus} processors, Linux {kernel}"));
        if !self.programs.is_empty() {
            let rows = self.programs.iter().map(|program| {
                vec![
                    program.name.clone(),
                    program.verified.to_string(),
                    program.jited_bytes.to_string(),
                ]
            });
            say("\nPrograms");
            table(&["program", "instructions verified", "bytes of machine code"], rows);
        }
        packet::print(&self.packet);
        lookups::print(&self.lookups);
        hostile::print(&self.hostile);
        self.control.iter().for_each(control::print);
        self.node.iter().for_each(engine::print);
        self.flapping.iter().for_each(flapping::print);
        maps::print(&self.maps);
        forward::print(&self.forwarding);
        flood::print(&self.flood);
        wire::print(&self.wire);
        for refused in &self.refused {
            say(&format!("NOT MEASURED: {refused}"));
        }
    }

    /// What should be the same on any machine: each figure relative to a cost of its own run.
    pub(crate) fn ratios(&self) -> BTreeMap<String, f64> {
        let mut ratios = BTreeMap::new();
        for figure in &self.packet {
            let PacketFigure { size, family, case, addresses, over_empty, empty, .. } = figure;
            let name = format!("packet, {size}: IPv{family} {case}, {addresses}");
            ratios.insert(name, over_empty.min / empty.min);
        }
        for control in &self.control {
            let stack = if control.scale.dual_stack { "dual stack" } else { "IPv4" };
            for event in &control.events {
                let name = format!("control, {stack}: {}", event.event);
                ratios.insert(name, 1e3 * event.p50_ms / control.compile_ms);
            }
        }
        for forwarding in &self.forwarding {
            let none = forwarding.total.min - forwarding.over_none.min;
            ratios
                .insert(format!("forwarding: {}", forwarding.filter), forwarding.total.min / none);
        }
        for flood in &self.flood {
            let floor = flood.total.min - flood.over_floor.min;
            ratios.insert(format!("flood: {}", flood.dropped_by), flood.total.min / floor);
        }
        self.wire_ratios(&mut ratios);
        if let Some((node, control)) = self.node.as_ref().zip(self.control.first()) {
            let relative = |ms: f64| 1e3 * ms / control.compile_ms;
            for attach in &node.attach {
                ratios.insert(format!("node: attach, {}", attach.mode), relative(attach.p50_ms));
            }
            ratios.insert("node: new pod".into(), relative(node.pod_p50_ms));
        }
        ratios
    }

    /// Against no filter; the greater, the slower.
    fn wire_ratios(&self, ratios: &mut BTreeMap<String, f64>) {
        let Some(none) = self.wire.first() else { return };
        for wire in &self.wire {
            let figures = [
                ("stream", none.stream.best / wire.stream.best),
                ("request", wire.request_p50.min / none.request_p50.min),
                ("connections", none.connections.best / wire.connections.best),
                ("datagrams", none.datagrams.best / wire.datagrams.best),
            ];
            for (what, ratio) in figures {
                ratios.insert(format!("wire, {what}: {}", wire.filter), ratio);
            }
        }
    }
}

/// Slower by that factor and that much of the unit is not noise.
const NOISE: (f64, f64) = (1.3, 0.1);

/// Compares with the stored ratios and says loudly what got slower; how many that were.
///
/// # Errors
/// The baseline is there but cannot be read.
pub(crate) fn compare(ratios: &BTreeMap<String, f64>, path: &Path) -> Result<usize> {
    if !path.exists() {
        say(&format!("\nno baseline at {}: nothing to compare with", path.display()));
        return Ok(0);
    }
    let text = std::fs::read_to_string(path)?;
    let stored: BTreeMap<String, f64> = serde_json::from_str(&text)
        .with_context(|| format!("{} is no baseline", path.display()))?;
    let known = ratios.iter().filter_map(|(name, now)| Some((name, *now, *stored.get(name)?)));
    let known: Vec<_> = known.collect();
    let worse = |now: f64, was: f64| now > was * NOISE.0 && now > was + NOISE.1;
    let slower: Vec<_> = known.iter().filter(|(_, now, was)| worse(*now, *was)).collect();
    let faster = known.iter().filter(|(_, now, was)| worse(*was, *now)).count();
    for (name, now, was) in &slower {
        say(&format!("SLOWER THAN THE BASELINE: {name}: ratio {now:.2}, was {was:.2}"));
    }
    say(&format!(
        "\ncompared with the baseline: {} figures, {} slower, {faster} faster",
        known.len(),
        slower.len()
    ));
    Ok(slower.len())
}
