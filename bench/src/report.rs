//! The results: as tables, as JSON, and as figures to compare.

use serde::Serialize;

use crate::control::{self, ControlResults};
use crate::engine::{self, NodeResults};
use crate::figures::{Spread, say, table};
use crate::flapping::{self, Flapping};
use crate::flood::{self, Flood};
use crate::forward::{self, Forwarding};
use crate::host::Machine;
use crate::hostile::{self, Hostile};
use crate::lookups::{self, CaseLookups};
use crate::maps::{self, MapSizes};
use crate::names::{self, NamesResults};
use crate::observe::{self, ObserveResults};
use crate::packet::{self, PacketFigure};
use crate::questions::{self, Questioned};
use crate::regression::{Figure, Figures};
use crate::scale::{self, ApiLoad};
use crate::wire::{self, WireFigure};

/// Statistics of a loaded program.
#[derive(Debug, Serialize)]
pub(crate) struct ProgramStats {
    pub(crate) name: String,
    /// Instructions processed by the verifier.
    pub(crate) verified: u32,
    /// Bytes of machine code.
    pub(crate) jited_bytes: u32,
}

/// All results of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) quick: bool,
    pub(crate) programs: Vec<ProgramStats>,
    /// Nanoseconds per packet.
    pub(crate) packet: Vec<PacketFigure>,
    /// Map lookups per packet.
    pub(crate) lookups: Vec<CaseLookups>,
    /// Sizes that could not be installed.
    pub(crate) refused: Vec<String>,
    pub(crate) control: Vec<ControlResults>,
    pub(crate) node: Option<NodeResults>,
    /// Edits while another tenant flaps.
    pub(crate) flapping: Option<Flapping>,
    /// Pod events while clients query the control socket.
    pub(crate) questions: Vec<Questioned>,
    pub(crate) hostile: Vec<Hostile>,
    pub(crate) maps: Vec<MapSizes>,
    pub(crate) forwarding: Vec<Forwarding>,
    pub(crate) flood: Vec<Flood>,
    /// A flood with an observer.
    pub(crate) observed: Option<ObserveResults>,
    pub(crate) wire: Vec<WireFigure>,
    /// Lookups of names.
    pub(crate) names: Option<NamesResults>,
    /// Load on the API server per agent, by size of the cluster.
    pub(crate) scale: Vec<ApiLoad>,
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
        questions::print(&self.questions);
        maps::print(&self.maps);
        forward::print(&self.forwarding);
        flood::print(&self.flood);
        self.observed.iter().for_each(observe::print);
        wire::print(&self.wire);
        self.names.iter().for_each(names::print);
        self.scale.iter().for_each(scale::print);
        for refused in &self.refused {
            say(&format!("NOT MEASURED: {refused}"));
        }
    }

    /// Figures that should be equal on all machines: each relative to a cost of the same run.
    pub(crate) fn figures(&self) -> Figures {
        let mut figures = Figures::new();
        let mut insert = |name: String, spread: Spread, unit| {
            figures.insert(name, Figure::new(spread.min, spread.median, unit));
        };
        for figure in &self.packet {
            let PacketFigure { size, family, case, addresses, over_empty, empty, .. } = figure;
            insert(packet::name(size, *family, case, addresses), *over_empty, empty.min);
        }
        for forwarding in &self.forwarding {
            let none = forwarding.total.min - forwarding.over_none.min;
            insert(format!("forward: {}", forwarding.filter), forwarding.total, none);
        }
        for flood in &self.flood {
            let floor = flood.total.min - flood.over_floor.min;
            insert(format!("flood: {}", flood.dropped_by), flood.total, floor);
        }
        if let Some(none) = self.wire.first() {
            for wire in &self.wire {
                let mut insert = |what, spread, unit| {
                    insert(format!("wire, {what}: {}", wire.filter), spread, unit);
                };
                insert("request", wire.request_p50, none.request_p50.min);
                insert("stream", wire.stream.time(), none.stream.time().min);
                insert("connections", wire.connections.time(), none.connections.time().min);
                insert("datagrams", wire.datagrams.time(), none.datagrams.time().min);
            }
        }
        self.control_figures(&mut figures);
        figures
    }

    /// Times from event to enforcement, in thousandths of the compile time of the first image.
    fn control_figures(&self, figures: &mut Figures) {
        for control in &self.control {
            let stack = if control.scale.dual_stack { "dual stack" } else { "IPv4" };
            for event in &control.events {
                let figure = Figure::new(event.p50_ms, event.p75_ms, control.compile_ms / 1e3);
                figures.insert(format!("control, {stack}: {}", event.event), figure);
            }
        }
        let Some((node, control)) = self.node.as_ref().zip(self.control.first()) else { return };
        let unit = control.compile_ms / 1e3;
        for attach in &node.attach {
            let figure = Figure::new(attach.p50_ms, attach.p75_ms, unit);
            figures.insert(format!("control, node: attach, {}", attach.mode), figure);
        }
        let pod = Figure::new(node.pod_p50_ms, node.pod_p75_ms, unit);
        figures.insert("control, node: new pod".into(), pod);
    }
}
