//! Packets that other tools or pods lead past the programs or around them. netpold cannot repair either; it reports
//! both.

use netpold_ebpf::layout::Unproven;

use super::bypass::Bypass;
use super::interfaces::{NodeInterfaces, pod_of};
use super::reconciler::Reconciler;
use super::unproven::UnprovenPackets;

/// Counts of packets that escaped a program, and of missing proofs.
#[derive(Debug, Default)]
pub(super) struct Interference {
    /// Packets that passed by the programs.
    bypass: Bypass,
    /// Packets that exits saw without their proof.
    missing: UnprovenPackets,
}

impl Interference {
    /// Reads the counters since the last call.
    pub(super) fn read_counters(&mut self, reconciler: &Reconciler, interfaces: &NodeInterfaces) {
        self.bypass.count_bypassed(&reconciler.compiler, interfaces);
        if self.missing.read_counters(&reconciler.compiler, &reconciler.dataplane) {
            for problem in self.unproven(reconciler, interfaces) {
                tracing::warn!(problem, "packets of pods without proof");
            }
        }
    }

    /// Returns the places where packets pass unjudged because the programs do not see them.
    pub(super) fn unjudged(
        &self,
        reconciler: &Reconciler,
        interfaces: &NodeInterfaces,
    ) -> Vec<String> {
        let order = reconciler.dataplane.hooks().order_problems().map(|(hook, text)| {
            format!("{} ({}): {text}", interfaces.label(hook.ifindex), hook.direction)
        });
        let fragments = reconciler.dataplane.fragments_problem().map(|reason| {
            format!(
                "fragments that bypass a pod's program may join datagrams of others: no nftables rule for them: {reason}"
            )
        });
        order.chain(self.bypass.problems(interfaces)).chain(fragments).collect()
    }

    /// Returns problems of pods' packets at their exits, with the probable cause.
    pub(super) fn unproven(
        &self,
        reconciler: &Reconciler,
        interfaces: &NodeInterfaces,
    ) -> Vec<String> {
        let name = |ifindex, id| {
            let pod = pod_of(&reconciler.compiler, id);
            let pod = pod.map_or_else(String::new, |pod| format!("pod {pod} "));
            format!("{pod}({})", interfaces.label(ifindex))
        };
        self.missing.problems(reconciler.dataplane.active().proof(), &name)
    }

    /// Returns the number of packets that reached isolated pods unjudged, since the agent's start.
    pub(super) fn bypassed(&self) -> u64 {
        self.bypass.packets()
    }

    /// Returns the number of packets without proof or witness at exits, since the agent's start.
    pub(super) fn without_proof(&self) -> Unproven {
        self.missing.total()
    }

    /// Returns the number of fragments without proof in front of the node's reassembly, since the agent's start.
    pub(super) fn fragments_without_proof(&self) -> u64 {
        self.missing.fragments()
    }
}
