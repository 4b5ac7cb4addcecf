//! Packets of probes, shown to the programs by `BPF_PROG_TEST_RUN`.

use std::os::fd::BorrowedFd;

use netpold_core::model::Direction;
use netpold_ebpf::layout::Settings;
use netpold_ebpf::reason::{Reason, counter};

use super::Dataplane;
use super::role::Program;
use crate::bpf::test_run::{Run, run};
use crate::conntrack::{FlowKey, Place};

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

impl Dataplane {
    /// Whether the attached program lets a packet pass. What it records is removed, and that it drops is
    /// left out of what is said to have dropped ([`Dataplane::probed`]).
    ///
    /// # Errors
    /// Why that cannot be told.
    pub fn show(&mut self, shown: &Shown<'_>) -> Result<bool, String> {
        let tables = match shown.flow {
            Some(_) => self.flow_tables().map_err(|error| error.to_string())?,
            None => None,
        };
        let flow = shown.flow.as_ref().zip(tables.as_ref().map(|(tables, ..)| tables));
        let place = flow.map(|(key, tables)| tables.place(key));
        if place == Some(Place::Full) {
            return Err("the flow table has no room there for the flow of a probe".to_owned());
        }
        let answer = self.run(shown)?;
        if let Some((key, tables)) = flow.filter(|_| place == Some(Place::Free)) {
            tables.remove(key);
        }
        let passes = answer != DROP;
        if !passes {
            let index = counter(shown.direction == Direction::Egress, shown.reason);
            *self.probed.entry(index).or_default() += 1;
        }
        Ok(passes)
    }

    fn run(&self, shown: &Shown<'_>) -> Result<u32, String> {
        let generation =
            self.generation.as_ref().ok_or("nothing has been written to the kernel")?;
        let program: BorrowedFd<'_> =
            generation.fd(Program::from(shown.direction)).map_err(|error| error.to_string())?;
        let Shown { ifindex, came_by: ingress_ifindex, frame: packet, .. } = *shown;
        let once = Run { packet, ifindex, ingress_ifindex, mark: 0, repeat: 1 };
        run(program, &once).map(|answer| answer.retval).map_err(|error| error.to_string())
    }

    /// The settings that were written; `None` before the first generation.
    #[must_use]
    pub fn written_settings(&self) -> Option<Settings> {
        self.settings.written()
    }

    /// Drops by a counter that were probes', since this agent started.
    #[must_use]
    pub fn probed(&self, counter: u32) -> u64 {
        self.probed.get(&counter).copied().unwrap_or(0)
    }
}
