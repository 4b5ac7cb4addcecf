//! What another tool on the node, or a pod, does to packets: they go past the programs, or round them. Neither is
//! ours to repair, so it is said.

use netpold_ebpf::layout::Unproven;

use super::bypass::Bypass;
use super::interfaces::{NodeInterfaces, pod_of};
use super::reconciler::Reconciler;
use super::unproven::Missing;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Interference {
    /// Packets that went past the programs.
    bypass: Bypass,
    /// Packets whose proof the exits miss.
    missing: Missing,
}

impl Interference {
    /// Looks at what was counted since the last look.
    pub(super) fn look(&mut self, reconciler: &Reconciler, interfaces: &NodeInterfaces) {
        self.bypass.look(&reconciler.compiler, interfaces);
        if self.missing.look(&reconciler.compiler, &reconciler.dataplane) {
            for problem in self.unproven(reconciler, interfaces) {
                tracing::warn!(problem, "packets of pods miss their proof");
            }
        }
    }

    /// Where packets are not judged, for want of being seen.
    pub(super) fn unjudged(
        &self,
        reconciler: &Reconciler,
        interfaces: &NodeInterfaces,
    ) -> Vec<String> {
        let order = reconciler.dataplane.hooks().order_problems().map(|(hook, text)| {
            format!("{} ({}): {text}", interfaces.label(hook.ifindex), hook.direction)
        });
        order.chain(self.bypass.problems(interfaces)).collect()
    }

    /// What is wrong with pods' packets where they leave, and by whose fault.
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

    /// Packets that reached isolated pods unjudged, since the agent's start.
    pub(super) fn bypassed(&self) -> u64 {
        self.bypass.packets()
    }

    /// Packets that exits missed something at, since the agent's start.
    pub(super) fn without_proof(&self) -> Unproven {
        self.missing.total()
    }
}
