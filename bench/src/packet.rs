//! Nanoseconds per packet over the empty program, by BPF_PROG_TEST_RUN.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use aya::EbpfLoader;
use aya::programs::SchedClassifier;
use netpold::dataplane::test_run::{Run, run};
use netpold_core::model::Direction;

use crate::cluster::{Cluster, Local, PORT, Size};
use crate::frame::{ACK, SYN, tcp};
use crate::report::{PacketFigure, Spread};
use crate::steer::{Flows, Steered};
use crate::world::World;

/// The program that passes a packet on (TCX_NEXT), and the one that drops it.
const PASS: u32 = u32::MAX;
const DROP: u32 = 2;
/// `ingress_ifindex` of packets that come from elsewhere: any that is neither 0 nor a pod's.
const UPLINK: u32 = 2;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Times each case is run.
    pub(crate) rounds: u32,
    /// Packets of a run of one flow.
    pub(crate) hot: u32,
    /// Flows, and packets of a run over them.
    pub(crate) flows: u32,
    /// Flows of the runs over few flows, in a flow table of their own that stays in the CPU's
    /// caches; so often within each round.
    pub(crate) few: (u32, u32),
}

/// The programs under measurement.
struct Programs {
    ingress: OwnedFd,
    egress: OwnedFd,
    empty: OwnedFd,
}

/// One thing that is run again and again.
struct Probe {
    name: &'static str,
    addresses: &'static str,
    program: Runnable,
    frame: Vec<u8>,
    ifindex: u32,
    expected: u32,
    /// Place of what is subtracted; none for what is subtracted itself.
    baseline: Option<usize>,
    samples: Vec<f64>,
}

enum Runnable {
    Direct(OwnedFd),
    Steered(Steered),
}

impl AsFd for Runnable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Direct(program) => program.as_fd(),
            Self::Steered(program) => program.as_fd(),
        }
    }
}

impl Probe {
    /// Runs it once without taking its time.
    fn warm(&self, repeat: u32) -> Result<Duration> {
        let packet =
            Run { packet: &self.frame, ifindex: self.ifindex, ingress_ifindex: UPLINK, repeat };
        let start = Instant::now();
        let answer = run(self.program.as_fd(), &packet).with_context(|| self.name.to_owned())?;
        let took = start.elapsed();
        ensure!(
            answer.retval == self.expected,
            "{} ({}): the program answers {} instead of {}",
            self.name,
            self.addresses,
            answer.retval,
            self.expected
        );
        Ok(took)
    }

    fn measure(&mut self, repeat: u32) -> Result<()> {
        let took = self.warm(repeat)?;
        self.samples.push(took.as_secs_f64() * 1e9 / f64::from(repeat));
        Ok(())
    }
}

/// Places in [`Family::probes`].
const EMPTY: usize = 0;
const EMPTY_IN: usize = 1;
const EMPTY_OUT: usize = 2;
const NEW: usize = 3;
const FORWARD: usize = 4;
const REPLY: usize = 5;
const DENIED: usize = 6;
const HOT: std::ops::Range<usize> = 7..11;

/// Flows of a case.
const ONE: &str = "one flow";
const MANY: &str = "random flows";
const FEW: &str = "few flows";

/// The cases of one address family in one cluster.
struct Family {
    v6: bool,
    allowed: Flows,
    denied: Flows,
    probes: Vec<Probe>,
}

impl Family {
    fn new(
        cluster: &Cluster,
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
        let probe = |name, addresses, program, frame, expected, baseline| Probe {
            name,
            addresses,
            program,
            frame,
            ifindex: isolated.ifindex,
            expected,
            baseline,
            samples: Vec::new(),
        };
        let Programs { ingress, egress, empty } = programs;
        let (a, d) = (&allowed, &denied);
        let hot = ONE;
        let mut probes = vec![
            probe("empty", hot, direct(empty)?, to_pod(ACK), PASS, None),
            probe("empty", random, steered(a, empty, true)?, to_pod(ACK), PASS, None),
            probe("empty, out", random, steered(a, empty, false)?, from_pod(), PASS, None),
            probe("new allowed", random, steered(a, ingress, true)?, to_pod(SYN), PASS, Some(1)),
            probe("forward", random, steered(a, ingress, true)?, to_pod(ACK), PASS, Some(1)),
            probe("reply", random, steered(a, egress, false)?, from_pod(), PASS, Some(2)),
            probe("denied", random, steered(d, ingress, true)?, to_pod(SYN), DROP, Some(1)),
            probe("not isolated", hot, direct(ingress)?, to_pod(ACK), PASS, Some(0)),
            probe("forward", hot, direct(ingress)?, to_pod(ACK), PASS, Some(0)),
            probe("reply", hot, direct(egress)?, from_pod(), PASS, Some(0)),
            probe("denied", hot, direct(ingress)?, tcp(other, pod, SYN), DROP, Some(0)),
        ];
        if let Some(not_isolated) = probes.get_mut(HOT.start) {
            not_isolated.ifindex = open.ifindex;
        }
        Ok(Self { v6, allowed, denied, probes })
    }

    /// Every case once, each in the state that the ones before it left: new flows, their first
    /// replies (not timed), replies, forward packets.
    fn round(&mut self, world: &World, effort: Effort) -> Result<()> {
        let flows = self.allowed.count();
        world.clear_conntrack(self.v6)?;
        self.steered(NEW, flows)?;
        self.allowed.rewind()?;
        self.probes[REPLY].warm(flows)?;
        for place in [REPLY, FORWARD, EMPTY_IN, EMPTY_OUT] {
            self.steered(place, flows)?;
        }
        self.denied.rewind()?;
        self.probes[DENIED].measure(flows)?;
        // Of one flow there is no difference.
        if self.allowed.count() == effort.flows {
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

    fn figures(&self, size: Size) -> impl Iterator<Item = PacketFigure> {
        self.probes.iter().filter(|probe| !probe.samples.is_empty()).filter_map(move |probe| {
            let empty = self.probes.get(probe.baseline?)?;
            Some(PacketFigure {
                size,
                family: if self.v6 { 6 } else { 4 },
                case: probe.name,
                addresses: probe.addresses,
                over_empty: Spread::over(&probe.samples, &empty.samples),
                empty: Spread::of(&empty.samples),
            })
        })
    }
}

/// A cluster of one size, ready to be measured.
struct Subject {
    size: Size,
    /// Rounds within a round.
    times: u32,
    world: World,
    families: Vec<Family>,
}

/// What [`measure`] finds.
pub(crate) struct Found {
    /// Every case at every size.
    pub(crate) figures: Vec<PacketFigure>,
    /// Sizes that could not be measured, and why.
    pub(crate) refused: Vec<(Size, String)>,
    /// Name, verified instructions and bytes of machine code of the programs.
    pub(crate) programs: Vec<(String, u32, u32)>,
}

/// Measures all sizes, interleaved: each round runs every case at every size once. `locals` are
/// the pod under policy and one that is not; `pins` is a folder on a bpffs, or to be one.
pub(crate) fn measure(
    sizes: &[Size],
    effort: Effort,
    buckets: u32,
    locals: [Local; 2],
    pins: &Path,
    progress: &dyn Fn(&str),
) -> Result<Found> {
    let empty = load_empty()?;
    let mut found = Found { figures: Vec::new(), refused: Vec::new(), programs: Vec::new() };
    let mut subjects = Vec::new();
    for (number, size) in sizes.iter().enumerate() {
        progress(&format!("compiling and writing {size}"));
        let cluster = Cluster::new(*size, locals);
        let pins = pins.join(format!("packet{number}"));
        match World::new(&pins, cluster.changes(), buckets) {
            Ok(world) => {
                let flows = (effort.flows, MANY);
                subjects.push(subject(&cluster, *size, world, locals, &empty, flows)?);
            }
            Err(error) => found.refused.push((*size, format!("{error:#}"))),
        }
    }
    subjects.push(few_flows(effort, locals, pins, &empty)?);
    for round in 0..effort.rounds {
        progress(&format!("round {} of {}", round + 1, effort.rounds));
        for subject in &mut subjects {
            for family in &mut subject.families {
                (0..subject.times).try_for_each(|_| family.round(&subject.world, effort))?;
            }
        }
    }
    if let Some(subject) = subjects.first_mut() {
        found.programs = program_sizes(&mut subject.world)?;
    }
    let figures = subjects.iter().flat_map(|s| s.families.iter().flat_map(|f| f.figures(s.size)));
    found.figures = figures.collect();
    Ok(found)
}

/// The base size with few flows in a small table.
fn few_flows(effort: Effort, locals: [Local; 2], pins: &Path, empty: &OwnedFd) -> Result<Subject> {
    let (flows, times) = effort.few;
    let cluster = Cluster::new(Size::BASE, locals);
    let buckets = flows.next_power_of_two();
    let world = World::new(&pins.join("few"), cluster.changes(), buckets)?;
    let subject = subject(&cluster, Size::BASE, world, locals, empty, (flows, FEW))?;
    Ok(Subject { times, ..subject })
}

fn subject(
    cluster: &Cluster,
    size: Size,
    mut world: World,
    locals: [Local; 2],
    empty: &OwnedFd,
    flows: (u32, &'static str),
) -> Result<Subject> {
    let programs = Programs {
        ingress: program(&mut world, Direction::Ingress)?,
        egress: program(&mut world, Direction::Egress)?,
        empty: empty.try_clone()?,
    };
    let families = [false, true]
        .into_iter()
        .map(|v6| Family::new(cluster, locals, &programs, flows, v6))
        .collect::<Result<_>>()?;
    Ok(Subject { size, times: 1, world, families })
}

pub(crate) fn program(world: &mut World, direction: Direction) -> Result<OwnedFd> {
    Ok(world.generation.program(direction)?.fd()?.as_fd().try_clone_to_owned()?)
}

fn program_sizes(world: &mut World) -> Result<Vec<(String, u32, u32)>> {
    let sizes = Direction::BOTH.into_iter().map(|direction| {
        let info = world.generation.program(direction)?.info()?;
        let name = info.name_as_str().unwrap_or_default().to_owned();
        Ok((name, info.verified_instruction_count().unwrap_or(0), info.size_jitted()))
    });
    sizes.collect()
}

/// The object's own empty program; the maps that come with it are as small as can be.
pub(crate) fn load_empty() -> Result<OwnedFd> {
    let name = "netpold_empty";
    let mut loader = EbpfLoader::new();
    for map in ["TRIE_BLOCKS", "ROWS", "ROW_BLOCKS", "PORT_SETS", "PORT_BITMAPS", "CT4", "CT6"] {
        loader.map_max_entries(map, 1);
    }
    let mut bpf = loader.load(netpold::object::object()?)?;
    let program = bpf.program_mut(name).context("the object has no empty program")?;
    let program: &mut SchedClassifier = program.try_into()?;
    program.load()?;
    Ok(program.fd()?.as_fd().try_clone_to_owned()?)
}
