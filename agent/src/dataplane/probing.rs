//! Packets of probes, shown to the programs by `BPF_PROG_TEST_RUN`.

use std::collections::BTreeMap;

use netpold_core::model::Direction;
use netpold_ebpf::reason::{Reason, counter};

use super::generation::Generation;
use super::role::Program;
use crate::bpf::test_run::{Run, run};
use crate::conntrack::{FlowKey, Place, Sweeper};

/// `TCX_DROP`, `TC_ACT_SHOT`.
const DROP: u32 = 2;

/// A packet that is shown to a pod's program.
#[derive(Clone, Debug)]
pub struct Shown<'p> {
    /// At which of the pod's hooks.
    pub direction: Direction,
    /// The pod's interface.
    pub ifindex: u32,
    /// The interface that it came by; 0: the node sends it.
    pub came_by: u32,
    /// The packet.
    pub frame: &'p [u8],
    /// The flow that it may begin.
    pub flow: Option<FlowKey>,
    /// Why it drops, if it does, by which it is counted.
    pub reason: Reason,
}

/// Drops that were probes', by counter, since this agent started.
#[derive(Debug, Default)]
pub(super) struct Probed(BTreeMap<u32, u64>);

impl Probed {
    /// Those of a counter.
    pub(super) fn of(&self, counter: u32) -> u64 {
        self.0.get(&counter).copied().unwrap_or(0)
    }

    /// Shows a packet to a generation's program, and removes the flow that it leaves in these tables.
    pub(super) fn show(
        &mut self,
        shown: &Shown<'_>,
        generation: &Generation,
        tables: Option<&Sweeper>,
    ) -> Result<bool, String> {
        let flow = shown.flow.as_ref().zip(tables);
        let place = flow.map(|(key, tables)| tables.place(key));
        if place == Some(Place::Full) {
            return Err("the flow table has no room there for the flow of a probe".to_owned());
        }
        let passes = answer(shown, generation)? != DROP;
        if let Some((key, tables)) = flow.filter(|_| place == Some(Place::Free)) {
            tables.remove(key);
        }
        if !passes {
            let index = counter(shown.direction == Direction::Egress, shown.reason);
            *self.0.entry(index).or_default() += 1;
        }
        Ok(passes)
    }
}

fn answer(shown: &Shown<'_>, generation: &Generation) -> Result<u32, String> {
    let program = generation.fd(Program::from(shown.direction)).map_err(|e| e.to_string())?;
    let Shown { ifindex, came_by: ingress_ifindex, frame: packet, .. } = *shown;
    let once = Run { packet, ifindex, ingress_ifindex, mark: 0, repeat: 1 };
    run(program, &once).map(|answer| answer.retval).map_err(|error| error.to_string())
}
