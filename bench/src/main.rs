//! netpold's benchmarks: `cargo xtask bench`. `README.md` describes the measurements.

mod agent;
mod bytecode;
mod cluster;
mod control;
mod effect;
mod engine;
mod figures;
mod filter;
mod flapping;
mod flood;
mod forward;
mod frame;
mod host;
mod hostile;
mod live;
mod load;
mod lookups;
mod maps;
mod names;
mod observe;
mod packet;
mod plots;
mod questions;
mod random;
mod regression;
mod report;
mod scale;
mod steer;
mod wire;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};

use cluster::{Local, Size};
use control::Scale;
use packet::Effort;
use regression::{Baseline, compare};
use report::{ProgramStats, Results};

#[derive(Parser)]
#[command(name = "netpold-bench", about)]
struct Arguments {
    /// Fewer sizes and rounds: under three minutes
    #[arg(long)]
    quick: bool,
    /// Only these parts
    #[arg(long, value_enum, value_name = "PART")]
    part: Vec<BenchmarkPart>,
    /// Measure only clusters of this many nodes (part `scale`)
    #[arg(long, value_name = "NUMBER")]
    nodes: Option<u32>,
    /// Directory for results.json
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    output: PathBuf,
    /// Baseline to compare with
    #[arg(long, value_name = "FILE", default_value = "bench/baseline.json")]
    baseline: PathBuf,
    /// Save this run's figures as the baseline, and draw them
    #[arg(long)]
    save_baseline: bool,
    /// Only draw the charts of the baseline, beside it
    #[arg(long, conflicts_with = "save_baseline")]
    draw_baseline: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BenchmarkPart {
    /// A large cluster: first image, memory, event to enforcement; hostile tenants
    Control,
    /// The part of control with edits while another tenant flaps: five minutes
    Flapping,
    /// Pod events while clients query the control socket
    Questions,
    /// Nanoseconds per packet
    Packet,
    /// Forwarding between veths
    Forward,
    /// A denied flood, by dropping filter
    Flood,
    /// CPU time of an agent that observes a denied flood
    Observe,
    /// Sockets between two pods
    Wire,
    /// Lookups of names, and connections behind them
    Names,
    /// Load of agents on an API server; only if named: ten minutes
    Scale,
}

impl BenchmarkPart {
    /// Name on the command line, which is also the prefix of its figures.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Buckets of the IPv4 conntrack table, four flows each; the agent's default.
const BUCKETS: u32 = 131_072;
/// Both pods and rules large.
const LARGE: Size = Size { pods: 100_000, rules: 10_000, ..Size::BASE };
/// Values per dimension; the others stay at [`Size::BASE`].
const PODS: [u32; 4] = [10, 1000, 10_000, 100_000];
const RULES: [u32; 3] = [1, 100, 10_000];
const CIDRS: [u32; 3] = [0, 10_000, 100_000];
const RANGES: [u32; 3] = [1, 100, 1000];
const TIERS: [u32; 2] = [0, 100];
/// Nodes of the simulated clusters on an API server, and the number of measured agents of either kind.
const NODES: [(u32, u32); 3] = [(100, 10), (1000, 3), (5000, 1)];

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    if arguments.draw_baseline {
        return draw(&Baseline::read(&arguments.baseline)?, &arguments.baseline);
    }
    host::seclude()?;
    let pins = Pins::new()?;
    let wanted = |part| arguments.part.is_empty() || arguments.part.contains(&part);
    let mut results = Results {
        machine: host::Machine::here(),
        quick: arguments.quick,
        programs: Vec::new(),
        packet: Vec::new(),
        lookups: Vec::new(),
        refused: Vec::new(),
        control: Vec::new(),
        node: None,
        flapping: None,
        questions: Vec::new(),
        hostile: Vec::new(),
        maps: Vec::new(),
        forwarding: Vec::new(),
        flood: Vec::new(),
        observed: None,
        wire: Vec::new(),
        names: None,
        scale: Vec::new(),
    };
    // First, while the process has little other memory.
    if wanted(BenchmarkPart::Control) {
        control(arguments.quick, &pins, &mut results)?;
    }
    if wanted(BenchmarkPart::Control) || wanted(BenchmarkPart::Flapping) {
        let time = Duration::from_secs(if arguments.quick { 20 } else { 300 });
        let pins = pins.folder("flapping");
        results.flapping = Some(flapping::measure(time, BUCKETS, &pins, &tell)?);
    }
    if wanted(BenchmarkPart::Questions) {
        let time = Duration::from_secs(if arguments.quick { 3 } else { 10 });
        let scale = Scale { events: 0, ..scales(true)[0] };
        results.questions =
            questions::measure(scale, time, BUCKETS, &pins.folder("questions"), &tell)?;
    }
    if wanted(BenchmarkPart::Packet) {
        packets(arguments.quick, &pins, &mut results)?;
    }
    if wanted(BenchmarkPart::Forward) {
        forwarding(arguments.quick, &pins, &mut results)?;
    }
    if wanted(BenchmarkPart::Flood) {
        flood(arguments.quick, &pins, &mut results)?;
    }
    if wanted(BenchmarkPart::Observe) {
        let time = Duration::from_secs(if arguments.quick { 5 } else { 20 });
        results.observed = Some(observe::measure(time, &tell)?);
    }
    if wanted(BenchmarkPart::Wire) {
        wire(arguments.quick, &pins, &mut results)?;
    }
    if wanted(BenchmarkPart::Names) {
        let (pairs, time) = if arguments.quick { (10_000, 4) } else { (100_000, 24) };
        results.names = Some(names::measure(pairs, Duration::from_secs(time), &tell)?);
    }
    if arguments.part.contains(&BenchmarkPart::Scale) {
        let wanted = |(nodes, _): &(u32, u32)| arguments.nodes.is_none_or(|only| only == *nodes);
        for (nodes, agents) in NODES.into_iter().filter(wanted) {
            results.scale.push(scale::measure(nodes, agents, &tell)?);
        }
    }
    results.print();
    let json = serde_json::to_string_pretty(&results)?;
    host::write(&arguments.output.join("results.json"), &json)?;
    plots::draw(&results, &arguments.output)?;
    let now = Baseline { machine: results.machine.clone(), figures: results.figures() };
    if arguments.save_baseline {
        return draw(&now.save(&arguments.baseline)?, &arguments.baseline);
    }
    compare(&now, &arguments.baseline, &arguments.output.join("again"), arguments.quick)
}

/// Draws the charts of a baseline into its folder.
fn draw(baseline: &Baseline, file: &Path) -> Result<()> {
    for (name, text) in plots::of_baseline(&baseline.figures)? {
        host::write(&file.with_file_name(name), &text)?;
    }
    Ok(())
}

fn control(quick: bool, pins: &Pins, results: &mut Results) -> Result<()> {
    let scales = scales(quick);
    for scale in &scales {
        let pins = pins.folder("control");
        results.control.push(control::measure(*scale, BUCKETS, &pins, &tell)?);
    }
    let Some(scale) = scales.first() else { return Ok(()) };
    let (new_pods, time) = if quick { (50, 2) } else { (100, 5) };
    let time = Duration::from_secs(time);
    let pins = pins.folder("node");
    results.node = Some(engine::measure(*scale, new_pods, time, BUCKETS, &pins, &tell)?);
    let small = Scale { pods: 1000, namespaces: 20, policies: 60, local: 30, ..*scale };
    let large = [10_000, 100_000].map(|pods| Scale { pods, ..*scale });
    for scale in [small].into_iter().chain(large) {
        let Scale { pods, .. } = scale;
        tell(&format!("control: maps at {pods} pods"));
        let scale = Scale { dual_stack: true, ..scale };
        results.maps.push(maps::measure(scale, BUCKETS, &pins.join(format!("maps{pods}")))?);
    }
    results.hostile = hostile::measure(&tell)?;
    Ok(())
}

fn packets(quick: bool, pins: &Pins, results: &mut Results) -> Result<()> {
    host::ip(&["link add bench0 index 100 type veth peer name bench1 index 101"])?;
    // Not the loopback interface, which is the origin of packets in XDP test runs.
    let (isolated, open) = (host::ifindex("bench1")?, host::ifindex("bench0")?);
    let locals = [Local::isolated(isolated), Local::open(open)];
    let effort = Effort {
        rounds: if quick { 8 } else { 20 },
        hot: 200_000,
        flows: 100_000,
        few: (1000, 20),
    };
    let found =
        packet::measure(&sizes(quick), effort, BUCKETS, locals, &pins.folder("packet"), &tell)?;
    results.packet = found.figures;
    for size in sizes(quick) {
        results.lookups.extend(lookups::count(size, locals)?);
    }
    results.refused =
        found.refused.iter().map(|(size, reason)| format!("{size}: {reason}")).collect();
    results.programs = found
        .programs
        .into_iter()
        .map(|(name, verified, jited_bytes)| ProgramStats { name, verified, jited_bytes })
        .collect();
    Ok(())
}

fn forwarding(quick: bool, pins: &Pins, results: &mut Results) -> Result<()> {
    let sizes = [Size::BASE, LARGE];
    let (rounds, packets) = if quick { (6, 200_000) } else { (12, 500_000) };
    let found = forward::measure(&sizes, rounds, packets, BUCKETS, &pins.folder("forward"), &tell)?;
    results.forwarding = found.figures;
    results.refused.extend(found.refused);
    Ok(())
}

fn flood(quick: bool, pins: &Pins, results: &mut Results) -> Result<()> {
    let (rounds, packets) = if quick { (5, 100_000) } else { (12, 300_000) };
    let found = flood::measure(rounds, packets, BUCKETS, &pins.folder("flood"), &tell)?;
    results.flood = found.figures;
    results.refused.extend(found.refused);
    Ok(())
}

fn wire(quick: bool, pins: &Pins, results: &mut Results) -> Result<()> {
    let sizes = [Size { rules: 1, ..Size::BASE }, LARGE];
    let (rounds, milliseconds) = if quick { (3, 100) } else { (10, 200) };
    let time = Duration::from_millis(milliseconds);
    let found = wire::measure(&sizes, rounds, time, BUCKETS, &pins.folder("wire"), &tell)?;
    results.wire = found.figures;
    results.refused.extend(found.refused);
    Ok(())
}

fn sizes(quick: bool) -> Vec<Size> {
    let pods = PODS.map(|pods| Size { pods, ..Size::BASE });
    let rules = RULES.map(|rules| Size { rules, ..Size::BASE });
    let cidrs = CIDRS.map(|cidrs| Size { cidrs, ..Size::BASE });
    let ranges = RANGES.map(|ranges| Size { ranges, ..Size::BASE });
    let mut sizes: Vec<Size> = Vec::new();
    let tiers = TIERS.map(|tiers| Size { tiers, ..Size::BASE });
    for size in pods.into_iter().chain(rules).chain(cidrs).chain(ranges).chain(tiers) {
        if !sizes.contains(&size) {
            sizes.push(size);
        }
    }
    if quick {
        let kept = [
            Size::BASE,
            Size { pods: 100_000, ..Size::BASE },
            Size { rules: 10_000, ..Size::BASE },
            Size { cidrs: 10_000, ..Size::BASE },
            Size { tiers: 100, ..Size::BASE },
        ];
        sizes.retain(|size| kept.contains(size));
    }
    sizes
}

fn scales(quick: bool) -> Vec<Scale> {
    let scale = Scale {
        pods: 100_000,
        namespaces: 1000,
        policies: 5000,
        local: 110,
        dual_stack: false,
        events: if quick { 100 } else { 200 },
    };
    if quick { vec![scale] } else { vec![scale, Scale { dual_stack: true, ..scale }] }
}

/// A bpffs for pins, in the private mount namespace.
struct Pins(PathBuf);

const PINS: &str = "netpold-bench-";

impl Pins {
    fn new() -> Result<Self> {
        sweep();
        let path = std::env::temp_dir().join(format!("{PINS}{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        host::mount_bpffs(&path)?;
        Ok(Self(path))
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Removes empty folders of killed runs.
fn sweep() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PINS));
        if process.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

fn tell(what: &str) {
    complain(&format!("    {what}"));
}

#[expect(clippy::print_stderr, reason = "progress and errors are not the output")]
fn complain(text: &str) {
    eprintln!("{text}");
}
