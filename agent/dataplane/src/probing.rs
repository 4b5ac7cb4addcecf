//! Probes: packets that are judged by the programs in `BPF_PROG_TEST_RUN`.

use std::collections::BTreeMap;

use netpold_core::model::Direction;
use netpold_ebpf::reason::{Reason, counter};

use super::generation::Generation;
use super::role::Program;
use crate::bpf::test_run::{Run, run};
use crate::conntrack::{BucketState, FlowKey, Sweeper};

/// Actions on a denied packet: `TCX_DROP` (`TC_ACT_SHOT`), and `TCX_REDIRECT` (`TC_ACT_REDIRECT`) of its answer.
const DENIED: [u32; 2] = [2, 7];

/// A probe packet for a pod's program.
#[derive(Clone, Debug)]
pub struct ProbeRun<'p> {
    /// Hook of the pod.
    pub direction: Direction,
    /// Interface index of the pod.
    pub ifindex: u32,
    /// Interface that the packet arrived by; 0: the node sends it.
    pub came_by: u32,
    /// The packet.
    pub frame: &'p [u8],
    /// Flow that the packet may begin.
    pub flow: Option<FlowKey>,
    /// Reason of a drop, by which it is counted.
    pub reason: Reason,
}

/// Drops of probes by counter, since this agent started.
#[derive(Debug, Default)]
pub(super) struct Probed(BTreeMap<u32, u64>);

impl Probed {
    /// Number of a counter's drops.
    pub(super) fn drops_of(&self, counter: u32) -> u64 {
        self.0.get(&counter).copied().unwrap_or(0)
    }

    /// Runs a generation's program on a packet, and removes the flow that it leaves in these tables.
    pub(super) fn show(
        &mut self,
        shown: &ProbeRun<'_>,
        generation: &Generation,
        tables: Option<&Sweeper>,
    ) -> Result<bool, String> {
        let flow = shown.flow.as_ref().zip(tables);
        let place = flow.map(|(key, tables)| tables.place(key));
        if place == Some(BucketState::Full) {
            return Err("no room in the flow table for the flow of a probe".to_owned());
        }
        let passes = !DENIED.contains(&judge_probe(shown, generation)?);
        if let Some((key, tables)) = flow.filter(|_| place == Some(BucketState::Free)) {
            tables.remove(key);
        }
        if !passes {
            let index = counter(shown.direction == Direction::Egress, shown.reason);
            *self.0.entry(index).or_default() += 1;
        }
        Ok(passes)
    }
}

fn judge_probe(shown: &ProbeRun<'_>, generation: &Generation) -> Result<u32, String> {
    let program = generation.fd(Program::from(shown.direction)).map_err(|e| e.to_string())?;
    let ProbeRun { ifindex, came_by: ingress_ifindex, frame: packet, .. } = *shown;
    let once = Run { packet, ifindex, ingress_ifindex, mark: 0, cb: [0; 2], repeat: 1 };
    run(program, &once).map(|answer| answer.retval).map_err(|error| error.to_string())
}
