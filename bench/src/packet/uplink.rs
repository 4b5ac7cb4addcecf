//! Cases of the programs at the node's uplinks, which run before the pod's own programs.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use netpold_dataplane::xdp::XdpProgram;
use netpold_ebpf::xdp::uplink::Scope;

use super::probe::{Effort, MANY, ONE, PacketCase, ProgramHook, Runnable};
use crate::bytecode::{Code, XDP};
use crate::cluster::{FlowCluster, Local, PORT};
use crate::frame::{ACK, SYN, tcp};
use crate::steer::Flows;
use crate::world::LoadedCluster;

/// `XDP_DROP` and `XDP_PASS`
const DROP: u32 = 1;
const PASS: u32 = 2;

/// The cases of one family; they leave no state.
pub(super) struct Uplink {
    pub(super) v6: bool,
    pub(super) probes: Vec<PacketCase>,
    allowed: Flows,
    denied: Flows,
}

impl Uplink {
    pub(super) fn new(
        cluster: &FlowCluster,
        isolated: Local,
        world: &mut LoadedCluster,
        effort: Effort,
        v6: bool,
    ) -> Result<Self> {
        let flows = (cluster.allowed(v6, effort.flows), cluster.denied(v6, effort.flows));
        let (one, other) = (flows.0[0], flows.1[0]);
        let (allowed, denied) = (Flows::new(&flows.0)?, Flows::new(&flows.1)?);
        let pod = (isolated.address(v6), PORT);
        let empty = Code::default().end(PASS as i32).load(XDP).context("no empty XDP program")?;
        let mut program = |scope| -> Result<OwnedFd> {
            Ok(world.generation.xdp(XdpProgram::Uplink(scope))?.0.try_clone_to_owned()?)
        };
        let (openings, all) = (program(Scope::Openings)?, program(Scope::All)?);
        let direct =
            |program: &OwnedFd| -> Result<Runnable> { Ok(Runnable::Direct(program.try_clone()?)) };
        let steered = |flows: &Flows, target: &OwnedFd| -> Result<Runnable> {
            Ok(Runnable::Steered(flows.before_xdp(target.as_fd(), true)?))
        };
        let probe = |name, program, frame, expected, baseline| {
            PacketCase::new(name, program, ProgramHook::Xdp, frame, expected, baseline)
        };
        let syn = |from| tcp(from, pod, SYN);
        // A packet between two remote pods.
        let passing = || tcp(one, other, SYN);
        let probes = vec![
            probe(("empty XDP", ONE), direct(&empty)?, passing(), PASS, None),
            probe(("empty XDP", MANY), steered(&allowed, &empty)?, syn(one), PASS, None),
            probe(("XDP, no local pod", ONE), direct(&openings)?, passing(), PASS, Some(0)),
            probe(("XDP, allowed", ONE), direct(&openings)?, syn(one), PASS, Some(0)),
            probe(("XDP, denied", ONE), direct(&openings)?, syn(other), DROP, Some(0)),
            probe(("XDP all, established", ONE), direct(&all)?, tcp(one, pod, ACK), PASS, Some(0)),
            probe(("XDP all, denied", ONE), direct(&all)?, tcp(other, pod, ACK), DROP, Some(0)),
            probe(("XDP, allowed", MANY), steered(&allowed, &openings)?, syn(one), PASS, Some(1)),
            probe(("XDP, denied", MANY), steered(&denied, &openings)?, syn(other), DROP, Some(1)),
        ];
        Ok(Self { v6, probes, allowed, denied })
    }

    pub(super) fn round(&mut self, effort: Effort) -> Result<()> {
        self.allowed.rewind()?;
        self.denied.rewind()?;
        for probe in &mut self.probes {
            let many = probe.addresses == MANY;
            if many {
                self.allowed.rewind()?;
            }
            probe.measure(if many { effort.flows } else { effort.hot })?;
        }
        Ok(())
    }
}
