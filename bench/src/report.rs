//! What was found: as tables for people, as JSON for programs, and against the stored baseline.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::cluster::Size;
use crate::control::Control;
use crate::engine::{self, Node};
use crate::flapping::{self, Flapping};
use crate::flood::{self, Flood};
use crate::forward::Forwarding;
use crate::host::Machine;
use crate::hostile::Hostile;
use crate::lookups::{self, CaseLookups};
use crate::maps::{self, Maps};
use crate::wire::{self, Wire};

/// Minimum and median of many runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
}

impl Spread {
    /// Of samples.
    pub(crate) fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
        Self { min: at(0), median: at(sorted.len() / 2) }
    }

    /// Of samples less those of an empty run: minimum less minimum, median less median.
    pub(crate) fn over(samples: &[f64], empty: &[f64]) -> Self {
        let (all, empty) = (Self::of(samples), Self::of(empty));
        Self { min: all.min - empty.min, median: all.median - empty.median }
    }
}

/// Highest and median of many runs, of what is better the more it is.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Rate {
    pub(crate) best: f64,
    pub(crate) median: f64,
}

impl Rate {
    /// Of samples.
    pub(crate) fn of(samples: &[f64]) -> Self {
        let median = Spread::of(samples).median;
        Self { best: samples.iter().copied().fold(f64::NAN, f64::max), median }
    }
}

/// One case of the packet part.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PacketFigure {
    #[serde(flatten)]
    pub(crate) size: Size,
    /// 4 or 6.
    pub(crate) family: u8,
    /// What the table is of that it belongs to.
    pub(crate) group: &'static str,
    pub(crate) case: &'static str,
    pub(crate) addresses: &'static str,
    /// Nanoseconds per packet over the empty program.
    pub(crate) over_empty: Spread,
    /// Nanoseconds per packet of the empty program, run in the same way.
    pub(crate) empty: Spread,
}

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
        self.print_packets();
        lookups::print(&self.lookups);
        print_hostile(&self.hostile);
        for control in &self.control {
            print_control(control);
        }
        self.node.iter().for_each(engine::print);
        self.flapping.iter().for_each(flapping::print);
        maps::print(&self.maps);
        if !self.forwarding.is_empty() {
            say(
                "\nForwarding: ns per 60-byte UDP packet from veth to veth, one core (minimum / median)",
            );
            let rows = self
                .forwarding
                .iter()
                .map(|f| vec![f.filter.clone(), spread(f.total), spread(f.over_none)]);
            table(&["filter", "in all", "over no filter"], rows);
        }
        flood::print(&self.flood);
        wire::print(&self.wire);
        for refused in &self.refused {
            say(&format!("NOT MEASURED: {refused}"));
        }
    }

    /// A table for each family and group: sizes down, cases across.
    fn print_packets(&self) {
        let tables = distinct(self.packet.iter().map(|f| (f.family, f.group)));
        for (family, group) in tables {
            let shown = || self.packet.iter().filter(|f| (f.family, f.group) == (family, group));
            let cases = distinct(shown().map(|f| (f.case, f.addresses)));
            say(&format!(
                "\nIPv{family}, {group}: ns per packet over the empty program (minimum / median)"
            ));
            let header: Vec<String> = cases.iter().map(|(c, a)| format!("{c}, {a}")).collect();
            let header: Vec<&str> =
                std::iter::once("cluster").chain(header.iter().map(String::as_str)).collect();
            let rows = distinct(shown().map(|f| f.size)).into_iter().map(|size| {
                let cell = |case: &(&str, &str)| {
                    let found = shown().find(|f| f.size == size && (f.case, f.addresses) == *case);
                    found.map_or_else(String::new, |figure| spread(figure.over_empty))
                };
                std::iter::once(size.to_string()).chain(cases.iter().map(cell)).collect()
            });
            table(&header, rows);
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

/// Each value once, in the order of their first appearance.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut known, value| {
        if !known.contains(&value) {
            known.push(value);
        }
        known
    })
}

fn print_hostile(figures: &[Hostile]) {
    if figures.is_empty() {
        return;
    }
    say("\nHostile tenants: what they write, by size");
    let rows = figures.iter().map(|f| {
        let times = [f.first_ms, f.edit_ms, f.relabel_ms, f.other_ms].map(|ms| format!("{ms:.1}"));
        let megabytes = format!("{:.0}", f.bytes as f64 / 1e6);
        let begin = [f.shape.to_owned(), f.size.to_string()];
        begin.into_iter().chain(times).chain([megabytes, f.work.to_string()]).collect()
    });
    let header = [
        "what",
        "size",
        "first ms",
        "edited ms",
        "relabelled ms",
        "another's edit, p99 ms",
        "MB",
        "steps",
    ];
    table(&header, rows);
}

fn print_control(control: &Control) {
    let Control { scale, compile_ms, load_ms, write_ms, operations, own_bytes, map_bytes, events } =
        control;
    let stack = if scale.dual_stack { "dual stack" } else { "IPv4" };
    say(&format!(
        "\nControl, {stack}: {} pods, {} namespaces, {} policies, {} local pods\n\
         first image: compiled in {compile_ms:.0} ms, maps and programs made in {load_ms:.0} ms, \
         {operations} operations written in {write_ms:.1} ms\n\
         memory: {:.0} MB of its own, {:.0} MB of maps",
        scale.pods,
        scale.namespaces,
        scale.policies,
        scale.local,
        *own_bytes as f64 / 1e6,
        *map_bytes as f64 / 1e6,
    ));
    let rows = events.iter().map(|e| {
        let time = |ms: f64| format!("{ms:.3}");
        let mean = |count: f64| format!("{count:.1}");
        let times = [e.p50_ms, e.p99_ms, e.max_ms].map(time);
        let counts = [e.operations, e.waits].map(mean);
        [e.event.to_owned(), e.events.to_string()].into_iter().chain(times).chain(counts).collect()
    });
    let header =
        ["from event to enforced", "events", "p50 ms", "p99 ms", "max ms", "operations", "waits"];
    table(&header, rows);
}

pub(crate) fn spread(spread: Spread) -> String {
    format!("{:.1} / {:.1}", spread.min, spread.median)
}

pub(crate) fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header.to_vec());
    rows.for_each(|row| _ = table.add_row(row));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    say(&table.to_string());
}

#[expect(clippy::print_stdout, reason = "the benchmark's output")]
pub(crate) fn say(text: &str) {
    println!("{text}");
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
