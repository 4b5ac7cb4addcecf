//! Packets of a pod to a Service: judged at the pod's veth by the Service's address, which marks the packet, and after
//! translation by the backend's address.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use netpold_core::model::Direction;
use netpold_dataplane::role::Program;
use netpold_ebpf::layout::{endpoint_slot, mark};
use netpold_testbed::SkbMarker;

use super::probe::{DROP, Effort, ONE, PASS, PacketCase, ProgramHook, Runnable, program};
use crate::cluster::{FlowCluster, Local};
use crate::frame::{ACK, SYN, tcp};
use crate::steer::Flows;
use crate::world::LoadedCluster;

/// Flows to one address and port differ only by the pod's port.
const FLOWS: u32 = 30_000;
const PORTS: &str = "30,000 flows";

/// The cases of one family.
pub(super) struct ServiceCases {
    pub(super) v6: bool,
    pub(super) probes: Vec<PacketCase>,
    flows: Flows,
}

impl ServiceCases {
    pub(super) fn new(
        isolated: Local,
        world: &mut LoadedCluster,
        empty: &OwnedFd,
        v6: bool,
    ) -> Result<Self> {
        let flows = FlowCluster::client_ports(isolated.address(v6), FLOWS);
        let pod = flows[0];
        let (service, [backend, stranger]) = (FlowCluster::service(v6), FlowCluster::backends(v6));
        let flows = Flows::new(&flows)?;
        let egress = program(world, Direction::Egress)?;
        let node = world.generation.program(Program::Node)?.fd()?.as_fd().try_clone_to_owned()?;
        let sender = world.compiler.endpoints().find(|e| e.ifindex == isolated.ifindex);
        let sender = sender.context("the isolated pod is no endpoint")?;
        let mark = u16::try_from(mark(endpoint_slot(sender.ifindex, 0), sender.id))?;
        let direct =
            |program: &OwnedFd| -> Result<Runnable> { Ok(Runnable::Direct(program.try_clone()?)) };
        let steered = |target: &OwnedFd| -> Result<Runnable> {
            Ok(Runnable::Steered(flows.before(target.as_fd(), true)?))
        };
        let marked = |target: &OwnedFd| -> Result<Runnable> {
            let marker =
                SkbMarker::before(target.as_fd(), mark).context("no program that marks")?;
            Ok(Runnable::Marked(marker))
        };
        let probe = |name, program: Runnable, to, flags, expected, baseline| {
            // Marked packets leave through another interface.
            let at = if matches!(program, Runnable::Marked(_)) { 1 } else { isolated.ifindex };
            let place = ProgramHook::Classifier(at);
            PacketCase::new(name, program, place, tcp(pod, to, flags), expected, baseline)
        };
        let answer = PacketCase::new(
            ("Service's answer", ONE),
            direct(&program(world, Direction::Ingress)?)?,
            ProgramHook::Classifier(isolated.ifindex),
            tcp(service, pod, ACK),
            PASS,
            Some(0),
        );
        let probes = vec![
            probe(("empty", ONE), direct(empty)?, service, ACK, PASS, None),
            probe(("empty, marked", ONE), marked(empty)?, backend, SYN, PASS, None),
            probe(("empty", PORTS), steered(empty)?, service, SYN, PASS, None),
            probe(("Service, new", PORTS), steered(&egress)?, service, SYN, PASS, Some(2)),
            probe(("Service, unanswered", ONE), direct(&egress)?, service, ACK, PASS, Some(0)),
            // Establishes the flow.
            answer,
            probe(("Service, established", ONE), direct(&egress)?, service, ACK, PASS, Some(0)),
            probe(("behind Service", ONE), marked(&node)?, backend, SYN, PASS, Some(1)),
            probe(("behind Service, denied", ONE), marked(&node)?, stranger, SYN, DROP, Some(1)),
        ];
        Ok(Self { v6, probes, flows })
    }

    pub(super) fn round(&mut self, world: &LoadedCluster, effort: Effort) -> Result<()> {
        world.clear_conntrack(self.v6)?;
        for probe in &mut self.probes {
            self.flows.rewind()?;
            probe.measure(if probe.addresses == PORTS { FLOWS } else { effort.hot })?;
        }
        Ok(())
    }
}
