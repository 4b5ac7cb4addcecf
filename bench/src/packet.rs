//! Nanoseconds per packet over the empty program, by `BPF_PROG_TEST_RUN`.

mod between;
mod floor;
mod probe;
mod service;
mod uplink;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result};
use aya::EbpfLoader;
use aya::programs::SchedClassifier;
use netpold_core::model::Direction;

use crate::cluster::{FlowCluster, Local, PORT, Size};
use crate::figures::{say, spread, table};
use crate::frame::{ACK, SYN, echo, tcp};
use crate::steer::Flows;
use crate::world::LoadedCluster;

use between::Between;
use floor::floor;
use probe::{DROP, PASS, PacketCase, ProgramHook, Runnable, figures};
use service::ServiceCases;
use uplink::Uplink;

pub(crate) use probe::{Effort, FEW, MANY, ONE, PacketFigure, program};

/// Name of a figure in the baseline.
pub(crate) fn name(size: &Size, family: u8, case: &str, addresses: &str) -> String {
    format!("packet, {size}: IPv{family} {case}, {addresses}")
}

/// The programs under measurement.
struct Programs {
    ingress: OwnedFd,
    egress: OwnedFd,
    empty: OwnedFd,
    /// Minimum cost of random flows, for IPv4 and IPv6.
    floors: [OwnedFd; 2],
}

/// Indexes in [`FamilyCases::probes`].
const EMPTY: usize = 0;
const EMPTY_IN: usize = 1;
const EMPTY_OUT: usize = 2;
const NEW: usize = 3;
const FORWARD: usize = 4;
const REPLY: usize = 5;
const DENIED: usize = 6;
const AGAIN: usize = 7;
const HOT: std::ops::Range<usize> = 8..13;
const FLOOR: usize = HOT.end;

/// The cases of one address family in one cluster.
struct FamilyCases {
    v6: bool,
    allowed: Flows,
    denied: Flows,
    probes: Vec<PacketCase>,
}

impl FamilyCases {
    fn new(
        cluster: &FlowCluster,
        locals: [Local; 2],
        programs: &Programs,
        flows: (u32, &'static str),
        v6: bool,
    ) -> Result<Self> {
        let (flows, random) = flows;
        let [isolated, open] = locals;
        let (allowed_flows, denied_flows) = (cluster.allowed(v6, flows), cluster.denied(v6, flows));
        let (allowed, denied) = (Flows::new(&allowed_flows)?, Flows::new(&denied_flows)?);
        let pod = (isolated.address(v6), PORT);
        let (one, other) = (allowed_flows[0], denied_flows[0]);
        let to_pod = |flags| tcp(one, pod, flags);
        let from_pod = || tcp(pod, one, ACK);
        let steered = |flows: &Flows, target: &OwnedFd, sender| -> Result<Runnable> {
            let program = flows.before(target.as_fd(), sender);
            Ok(Runnable::Steered(program.context("cannot put flows before a program")?))
        };
        let direct =
            |program: &OwnedFd| -> Result<Runnable> { Ok(Runnable::Direct(program.try_clone()?)) };
        let at = |local: Local| ProgramHook::Classifier(local.ifindex);
        let probe = |name, addresses, program, frame, expected, baseline| {
            PacketCase::new((name, addresses), program, at(isolated), frame, expected, baseline)
        };
        let Programs { ingress, egress, empty, floors } = programs;
        let (a, d) = (&allowed, &denied);
        let (hot, floor) = (ONE, &floors[usize::from(v6)]);
        let mut probes = vec![
            probe("empty", hot, direct(empty)?, to_pod(ACK), PASS, None),
            probe("empty", random, steered(a, empty, true)?, to_pod(ACK), PASS, None),
            probe("empty, out", random, steered(a, empty, false)?, from_pod(), PASS, None),
            probe("new allowed", random, steered(a, ingress, true)?, to_pod(SYN), PASS, Some(1))
                .also_over(FLOOR, "new allowed over one bucket"),
            probe("forward", random, steered(a, ingress, true)?, to_pod(ACK), PASS, Some(1))
                .also_over(FLOOR, "forward over one bucket"),
            probe("reply", random, steered(a, egress, false)?, from_pod(), PASS, Some(2)),
            probe("denied", random, steered(d, ingress, true)?, to_pod(SYN), DROP, Some(1)),
            probe("judged again", random, steered(a, ingress, true)?, to_pod(ACK), PASS, Some(1)),
            probe("not isolated", hot, direct(ingress)?, to_pod(ACK), PASS, Some(0)),
            probe("forward", hot, direct(ingress)?, to_pod(ACK), PASS, Some(0)),
            probe("reply", hot, direct(egress)?, from_pod(), PASS, Some(0)),
            probe("denied", hot, direct(ingress)?, tcp(other, pod, SYN), DROP, Some(0)),
            probe("echo, denied", hot, direct(ingress)?, echo(other.0, pod.0), DROP, Some(0)),
            probe("one bucket", random, steered(a, floor, true)?, to_pod(ACK), PASS, Some(1)),
        ];
        if let Some(not_isolated) = probes.get_mut(HOT.start) {
            not_isolated.place = at(open);
        }
        Ok(Self { v6, allowed, denied, probes })
    }

    /// Runs every case once, each in the state left by the previous ones: new flows; their first replies (not timed);
    /// forward packets with conntrack entries that lack a verdict of the present policy, as after every change of
    /// policy; and, once both directions are judged, replies and forward packets.
    fn round(&mut self, world: &LoadedCluster, effort: Effort) -> Result<()> {
        let flows = self.allowed.count();
        // Clearing may bypass the CPU's caches, and then the first reader has the misses. So another program reads the
        // table first: afterwards the cleared entries are as warm as the data of the other cases.
        for _ in 0..2 {
            world.clear_conntrack(self.v6)?;
            self.allowed.rewind()?;
            self.probes[FLOOR].warm(flows)?;
        }
        world.clear_conntrack(self.v6)?;
        self.steered(NEW, flows)?;
        self.allowed.rewind()?;
        self.probes[REPLY].warm(flows)?;
        self.steered(AGAIN, flows)?;
        self.allowed.rewind()?;
        self.probes[REPLY].warm(flows)?;
        for place in [REPLY, FORWARD, EMPTY_IN, EMPTY_OUT] {
            self.steered(place, flows)?;
        }
        self.denied.rewind()?;
        self.probes[DENIED].measure(flows)?;
        // A small flow table does not change the cases with one flow.
        if self.allowed.count() == effort.flows {
            self.steered(FLOOR, flows)?;
            for place in [EMPTY].into_iter().chain(HOT) {
                self.probes[place].measure(effort.hot)?;
            }
        }
        Ok(())
    }

    fn steered(&mut self, place: usize, flows: u32) -> Result<()> {
        self.allowed.rewind()?;
        self.probes[place].measure(flows)
    }
}

/// A cluster of one size, ready to be measured.
struct MeasuredCluster {
    size: Size,
    /// Number of runs per round.
    times: u32,
    world: LoadedCluster,
    families: Vec<FamilyCases>,
    /// XDP, local pods and Services, for each family; empty for few flows.
    uplinks: Vec<Uplink>,
    between: Vec<Between>,
    services: Vec<ServiceCases>,
}

/// Results of [`measure`].
pub(crate) struct PacketResults {
    /// Every case at every size.
    pub(crate) figures: Vec<PacketFigure>,
    /// Sizes that could not be measured, with the reason.
    pub(crate) refused: Vec<(Size, String)>,
    /// Name, number of verified instructions and bytes of machine code of each program.
    pub(crate) programs: Vec<(String, u32, u32)>,
}

/// Measures all sizes, interleaved: each round runs every case of every size once. `locals` are the pod under policy
/// and a pod without policy; `pins` is a (new) folder on a bpffs.
pub(crate) fn measure(
    sizes: &[Size],
    effort: Effort,
    buckets: u32,
    locals: [Local; 2],
    pins: &Path,
    progress: &dyn Fn(&str),
) -> Result<PacketResults> {
    let empty = load_empty()?;
    let mut found =
        PacketResults { figures: Vec::new(), refused: Vec::new(), programs: Vec::new() };
    let mut subjects = Vec::new();
    for (number, size) in sizes.iter().enumerate() {
        progress(&format!("compiling and writing {size}"));
        let cluster = FlowCluster::new(*size, locals);
        let pins = pins.join(format!("packet{number}"));
        match LoadedCluster::new(&pins, cluster.changes(), buckets) {
            Ok(world) => {
                let flows = (effort.flows, MANY);
                let mut subject = subject(&cluster, *size, world, locals, &empty, flows)?;
                subject.add(&cluster, locals, &empty, effort)?;
                subjects.push(subject);
            }
            Err(error) => found.refused.push((*size, format!("{error:#}"))),
        }
    }
    subjects.push(few_flows(effort, locals, pins, &empty)?);
    for round in 0..effort.rounds {
        progress(&format!("round {} of {}", round + 1, effort.rounds));
        for subject in &mut subjects {
            subject.round(effort)?;
        }
    }
    if let Some(subject) = subjects.first_mut() {
        found.programs = program_sizes(&mut subject.world)?;
    }
    found.figures = subjects.iter().flat_map(MeasuredCluster::figures).collect();
    Ok(found)
}

/// The base size with few flows in a small table.
fn few_flows(
    effort: Effort,
    locals: [Local; 2],
    pins: &Path,
    empty: &OwnedFd,
) -> Result<MeasuredCluster> {
    let (flows, times) = effort.few;
    let cluster = FlowCluster::new(Size::BASE, locals);
    let buckets = flows.next_power_of_two();
    let world = LoadedCluster::new(&pins.join("few"), cluster.changes(), buckets)?;
    let subject = subject(&cluster, Size::BASE, world, locals, empty, (flows, FEW))?;
    Ok(MeasuredCluster { times, ..subject })
}

fn subject(
    cluster: &FlowCluster,
    size: Size,
    mut world: LoadedCluster,
    locals: [Local; 2],
    empty: &OwnedFd,
    flows: (u32, &'static str),
) -> Result<MeasuredCluster> {
    let programs = Programs {
        ingress: program(&mut world, Direction::Ingress)?,
        egress: program(&mut world, Direction::Egress)?,
        empty: empty.try_clone()?,
        floors: [floor(&world, false)?, floor(&world, true)?],
    };
    let families = [false, true]
        .into_iter()
        .map(|v6| FamilyCases::new(cluster, locals, &programs, flows, v6))
        .collect::<Result<_>>()?;
    let (uplinks, between, services) = (Vec::new(), Vec::new(), Vec::new());
    Ok(MeasuredCluster { size, times: 1, world, families, uplinks, between, services })
}

impl MeasuredCluster {
    /// Adds the cases of uplinks, of packets between local pods, and of Services.
    fn add(
        &mut self,
        cluster: &FlowCluster,
        locals: [Local; 2],
        empty: &OwnedFd,
        effort: Effort,
    ) -> Result<()> {
        let [isolated, _] = locals;
        for v6 in [false, true] {
            self.uplinks.push(Uplink::new(cluster, isolated, &mut self.world, effort, v6)?);
            self.between.push(Between::new(cluster, locals, &mut self.world, empty, v6)?);
            self.services.push(ServiceCases::new(isolated, &mut self.world, empty, v6)?);
        }
        Ok(())
    }

    fn round(&mut self, effort: Effort) -> Result<()> {
        for family in &mut self.families {
            (0..self.times).try_for_each(|_| family.round(&self.world, effort))?;
        }
        // These cases use the flows of the previous ones.
        self.uplinks.iter_mut().try_for_each(|uplink| uplink.round(effort))?;
        self.between.iter_mut().try_for_each(|between| between.round(effort))?;
        self.services.iter_mut().try_for_each(|service| service.round(&self.world, effort))
    }

    fn figures(&self) -> Vec<PacketFigure> {
        let families = self.families.iter().map(|it| ("pods", &it.probes, it.v6));
        let uplinks = self.uplinks.iter().map(|it| ("uplinks", &it.probes, it.v6));
        let between = self.between.iter().map(|it| ("between pods", &it.probes, it.v6));
        let services = self.services.iter().map(|it| ("Services", &it.probes, it.v6));
        let all = families.chain(uplinks).chain(between).chain(services);
        all.flat_map(|(group, probes, v6)| figures(probes, group, self.size, v6)).collect()
    }
}

fn program_sizes(world: &mut LoadedCluster) -> Result<Vec<(String, u32, u32)>> {
    let sizes = Direction::BOTH.into_iter().map(|direction| {
        let info = world.generation.program(direction)?.info()?;
        let name = info.name_as_str().unwrap_or_default().to_owned();
        Ok((name, info.verified_instruction_count().unwrap_or(0), info.size_jitted()))
    });
    sizes.collect()
}

/// The empty program of netpold's eBPF object; maps of the object are made as small as possible.
pub(crate) fn load_empty() -> Result<OwnedFd> {
    let name = "netpold_empty";
    let mut loader = EbpfLoader::new();
    for map in ["TRIE_BLOCKS", "ROWS", "ROW_BLOCKS", "PORT_SETS", "PORT_BITMAPS", "CT4", "CT6"] {
        loader.map_max_entries(map, 1);
    }
    let mut bpf = loader.load(netpold_dataplane::object::object()?)?;
    let program = bpf.program_mut(name).context("the object has no empty program")?;
    let program: &mut SchedClassifier = program.try_into()?;
    program.load()?;
    Ok(program.fd()?.as_fd().try_clone_to_owned()?)
}

/// Prints one table per family and group: sizes in rows, cases in columns.
pub(crate) fn print(figures: &[PacketFigure]) {
    let tables = distinct(figures.iter().map(|f| (f.family, f.group)));
    for (family, group) in tables {
        let shown = || figures.iter().filter(|f| (f.family, f.group) == (family, group));
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

/// Distinct values, in the order of their first appearance.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut known, value| {
        if !known.contains(&value) {
            known.push(value);
        }
        known
    })
}
