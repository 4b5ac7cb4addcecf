//! One case: a program run repeatedly on a packet; and its figure.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netpold_core::model::Direction;
use netpold_dataplane::bpf::test_run::{Run, run};
use netpold_ebpf::judge::proof::DEFAULT_BIT;
use netpold_testbed::SkbMarker;
use serde::Serialize;

use crate::bytecode::run_xdp;
use crate::cluster::Size;
use crate::figures::Spread;
use crate::steer::Steered;
use crate::world::LoadedCluster;

/// Return values of a passing program (`TCX_NEXT`) and of a dropping one.
pub(super) const PASS: u32 = u32::MAX;
pub(super) const DROP: u32 = 2;

/// `ingress_ifindex` of packets from outside: neither 0 nor a pod's.
const UPLINK: u32 = 2;

/// `skb->mark` of packets that a pod's program has judged.
const PROOF: u32 = 1 << DEFAULT_BIT;

/// Flows of a case.
pub(crate) const ONE: &str = "one flow";
pub(crate) const MANY: &str = "random flows";
pub(crate) const FEW: &str = "few flows";

/// Number of repetitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Rounds.
    pub(crate) rounds: u32,
    /// Packets per run of a single flow.
    pub(crate) hot: u32,
    /// Number of flows, and of packets per run over them.
    pub(crate) flows: u32,
    /// Number of flows in the runs over few flows, with a separate flow table that stays in the CPU's caches; and the
    /// number of such runs per round.
    pub(crate) few: (u32, u32),
}

/// One case of the packet part.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PacketFigure {
    #[serde(flatten)]
    pub(crate) size: Size,
    /// 4 or 6.
    pub(crate) family: u8,
    /// Heading of the table that lists this case.
    pub(crate) group: &'static str,
    pub(crate) case: &'static str,
    pub(crate) addresses: &'static str,
    /// Nanoseconds per packet above the empty program, or above the floor for cases named after it.
    pub(crate) over_empty: Spread,
    /// Nanoseconds per packet of the empty program or the floor, run in the same way.
    pub(crate) empty: Spread,
}

/// Hook of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramHook {
    /// TC at this interface.
    Classifier(u32),
    /// XDP
    Xdp,
}

/// One case.
pub(super) struct PacketCase {
    pub(super) name: &'static str,
    pub(super) addresses: &'static str,
    pub(super) program: Runnable,
    pub(super) frame: Vec<u8>,
    pub(super) place: ProgramHook,
    pub(super) expected: u32,
    /// Index of the case to subtract; `None` for such a case itself.
    pub(super) baseline: Option<usize>,
    /// Name of a second figure, and index of the case to subtract for it.
    floor: Option<(&'static str, usize)>,
    /// `ingress_ifindex`
    from: u32,
    samples: Vec<f64>,
}

pub(super) enum Runnable {
    Direct(OwnedFd),
    Steered(Steered),
    /// After a program that marks the packet.
    Marked(SkbMarker),
}

impl AsFd for Runnable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Direct(program) => program.as_fd(),
            Self::Steered(program) => program.as_fd(),
            Self::Marked(program) => program.as_fd(),
        }
    }
}

impl PacketCase {
    /// A case without samples; `addresses` names its flows.
    pub(super) fn new(
        (name, addresses): (&'static str, &'static str),
        program: Runnable,
        place: ProgramHook,
        frame: Vec<u8>,
        expected: u32,
        baseline: Option<usize>,
    ) -> Self {
        let (floor, from, samples) = (None, UPLINK, Vec::new());
        Self { name, addresses, program, frame, place, expected, baseline, floor, from, samples }
    }

    /// Sets the interface by which the packet arrived.
    pub(super) fn from(self, ifindex: u32) -> Self {
        Self { from: ifindex, ..self }
    }

    /// Adds a second figure of this name, above the case at this index.
    pub(super) fn also_over(self, place: usize, name: &'static str) -> Self {
        Self { floor: Some((name, place)), ..self }
    }

    /// Runs the case without recording a sample.
    pub(super) fn warm(&self, repeat: u32) -> Result<Duration> {
        let (answer, took) = self.run(repeat).with_context(|| self.name.to_owned())?;
        ensure!(
            answer == self.expected,
            "{} ({}): the program answers {answer} instead of {}",
            self.name,
            self.addresses,
            self.expected
        );
        Ok(took)
    }

    /// Return value of the program, and the time of all runs.
    fn run(&self, repeat: u32) -> io::Result<(u32, Duration)> {
        let ProgramHook::Classifier(ifindex) = self.place else {
            let (answer, mean) = run_xdp(self.program.as_fd(), &self.frame, repeat)?;
            // The kernel's own measurement, because the call also waits for a grace period.
            return Ok((answer, Duration::from_nanos(u64::from(mean) * u64::from(repeat))));
        };
        let mark = if matches!(self.program, Runnable::Marked(_)) { PROOF } else { 0 };
        let (packet, ingress_ifindex) = (&self.frame[..], self.from);
        let packet = Run { packet, ifindex, ingress_ifindex, mark, cb: [0; 2], repeat };
        let start = Instant::now();
        let answer = run(self.program.as_fd(), &packet)?;
        Ok((answer.retval, start.elapsed()))
    }

    pub(super) fn measure(&mut self, repeat: u32) -> Result<()> {
        let took = self.warm(repeat)?;
        self.samples.push(took.as_secs_f64() * 1e9 / f64::from(repeat));
        Ok(())
    }
}

/// The program of a direction.
pub(crate) fn program(world: &mut LoadedCluster, direction: Direction) -> Result<OwnedFd> {
    Ok(world.generation.program(direction)?.fd()?.as_fd().try_clone_to_owned()?)
}

/// Figures of all cases above the cases to subtract.
pub(super) fn figures(
    probes: &[PacketCase],
    group: &'static str,
    size: Size,
    v6: bool,
) -> impl Iterator<Item = PacketFigure> {
    let over = |probe: &PacketCase| [probe.baseline.map(|place| (probe.name, place)), probe.floor];
    let cases = probes.iter().flat_map(move |probe| {
        over(probe).into_iter().flatten().map(move |(case, place)| (probe, case, place))
    });
    cases.filter_map(move |(probe, case, place)| {
        let empty = probes.get(place)?;
        if probe.samples.is_empty() || empty.samples.is_empty() {
            return None;
        }
        Some(PacketFigure {
            size,
            family: if v6 { 6 } else { 4 },
            group,
            case,
            addresses: probe.addresses,
            over_empty: Spread::over(&probe.samples, &empty.samples),
            empty: Spread::of(&empty.samples),
        })
    })
}
