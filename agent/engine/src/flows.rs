//! Reads pages of flows without the engine's lock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;

use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use netpold_dataplane::conntrack::{EndpointFlow, Sighting, Sweeper};
use netpold_dataplane::import_conntrack::{ImportRequest, KernelFlow, kernel_flows};
use netpold_ebpf::direction::{Egress, Ingress};
use netpold_ebpf::flow::cached_verdict::CachedVerdict;
use netpold_ebpf::flow::control::Control;
use netpold_ebpf::layout::{CT_EGRESS, CT_INGRESS, CT_NODE, CT_REPLIED};

use netpold_api::flows::{
    CachedVerdicts, DnatFlow, FlowFilter, FlowPage, FlowState, FlowsRequest, ListedFlow, PAGE,
    PodFlows, TranslatedFlow,
};

/// Maximum number of flows in the page of the kernel's conntrack.
const KERNEL_PAGE: u32 = 65_536;

/// A pod of this node.
#[derive(Clone, Debug)]
pub struct LocalPod {
    /// Key of the pod.
    pub key: Key,
    /// Addresses of the pod.
    pub addresses: Vec<IpAddr>,
}

/// Reader of the node's flows, with pods and revision as of its creation; see [`crate::engine::flows::flow_reader`].
#[derive(Debug)]
pub struct FlowReader {
    /// Name of the node.
    pub(crate) node: String,
    /// Tables, time in jiffies, and current revision of cached verdicts.
    pub(crate) tables: (Sweeper, u32, u32),
    /// Pods by endpoint number.
    pub(crate) pods: BTreeMap<u32, LocalPod>,
    /// Pods without entries in netpold's flow table.
    pub(crate) untracked: ImportRequest,
}

impl FlowReader {
    /// Reads a page.
    #[must_use]
    pub fn page(&self, request: &FlowsRequest) -> FlowPage {
        let mut taken = PageContent::default();
        let (mut next, mut problem) = (None, None);
        if request.kernel {
            taken.limit = request.limit.min(KERNEL_PAGE) as usize;
            problem = self.read_kernel(&request.filter, &mut taken).err();
            // Without such pods, no listed flow depends on the kernel's conntrack.
            problem = problem.filter(|_| !self.untracked.endpoints.is_empty());
        } else {
            taken.limit = request.limit.min(PAGE) as usize;
            next = self.read_table(request, &mut taken);
        }
        let count = |(endpoint, flows)| {
            let pod = self.pods.get(&endpoint)?.key.clone();
            Some(PodFlows { pod, flows })
        };
        let others = std::mem::take(&mut taken.others);
        let left_out = others.into_iter().filter_map(count).collect();
        let PageContent { flows, translated, .. } = taken;
        FlowPage { node: self.node.clone(), flows, left_out, next, problem, translated }
    }

    /// Reads netpold's flow table; returns the way at which the next page starts.
    fn read_table(&self, request: &FlowsRequest, taken: &mut PageContent) -> Option<u32> {
        let (tables, now, _) = &self.tables;
        let mut next = None;
        tables.walk(*now, request.from, |at| {
            let Some((tuple, pod)) = at.tuple().and_then(|tuple| {
                let pod = self.pods.get(&tuple.endpoint)?;
                request.filter.selects(&pod.key).then_some((tuple, pod))
            }) else {
                return ControlFlow::Continue(());
            };
            if request.limit > 0 && taken.is_full() {
                next = Some(at.way);
                return ControlFlow::Break(());
            }
            taken.add_flow(tuple.endpoint, || ListedFlow {
                idle_ms: Some(u64::try_from(at.idle().as_millis()).unwrap_or(u64::MAX)),
                cached: self.cached(at),
                ..flow(pod, &tuple, at.control)
            });
            ControlFlow::Continue(())
        });
        next
    }

    fn read_kernel(&self, filter: &FlowFilter, taken: &mut PageContent) -> Result<(), String> {
        let (_, now, _) = &self.tables;
        let tracked = self.pods.iter().filter(|(_, pod)| filter.selects(&pod.key));
        let tracked: BTreeSet<IpAddr> =
            tracked.flat_map(|(_, pod)| pod.addresses.iter().copied()).collect();
        let is_wanted = |flow: &KernelFlow| self.untracked.sides(flow, *now).next().is_some();
        let read = kernel_flows(is_wanted, |flow_of_kernel| {
            let sent_on = sent_on(&flow_of_kernel).filter(|it| tracked.contains(&it.from.ip()));
            if let Some(sent_on) = sent_on
                && taken.translated.len() < taken.limit
            {
                taken.translated.push(sent_on);
            }
            for side in self.untracked.sides(&flow_of_kernel, *now) {
                let tuple = EndpointFlow::from(side.key);
                let Some(pod) = self.pods.get(&tuple.endpoint) else { continue };
                if filter.selects(&pod.key) {
                    let control = Control::new(*now, 0, side.flags);
                    taken.add_flow(tuple.endpoint, || ListedFlow {
                        kernel: true,
                        ..flow(pod, &tuple, control)
                    });
                }
            }
        });
        read.map_err(|error| {
            let pods = self.pods.values().filter(|pod| filter.selects(&pod.key));
            let of = |pod: &&LocalPod| {
                pod.addresses.iter().any(|at| self.untracked.endpoints.contains_key(at))
            };
            let count = pods.filter(of).count();
            format!(
                "the flows of {count} pods that no policy isolates are unknown: cannot read the kernel's conntrack \
                 ({error})"
            )
        })
    }

    fn cached(&self, at: &Sighting<'_>) -> Option<CachedVerdicts> {
        let (_, _, revision) = self.tables;
        let word = at.cached_verdict();
        let incarnation = at.control.incarnation();
        let own = CachedVerdict::nothing((word.0 >> 32) as u32, incarnation);
        let text = |reason: Option<netpold_ebpf::reason::Reason>| {
            reason.map(|reason| reason.as_str().to_owned())
        };
        let [ingress, egress] =
            [text(word.reason::<Ingress>(own)), text(word.reason::<Egress>(own))];
        let stale = own != CachedVerdict::nothing(revision, incarnation);
        (ingress.is_some() || egress.is_some()).then_some(CachedVerdicts { stale, ingress, egress })
    }
}

/// Returns the translation of a flow with a translated destination.
fn sent_on(flow: &KernelFlow) -> Option<DnatFlow> {
    let (protocol, [[from, to], on]) = flow.sent_on()?;
    let on = TranslatedFlow { from: on[0], to: on[1] };
    Some(DnatFlow { protocol: IpProtocol(protocol), from, to, on })
}

/// Content of a page.
#[derive(Default)]
struct PageContent {
    limit: usize,
    flows: Vec<ListedFlow>,
    others: BTreeMap<u32, u64>,
    translated: Vec<DnatFlow>,
}

impl PageContent {
    fn is_full(&self) -> bool {
        self.flows.len() >= self.limit
    }

    fn add_flow(&mut self, endpoint: u32, flow: impl FnOnce() -> ListedFlow) {
        if self.is_full() {
            *self.others.entry(endpoint).or_default() += 1;
        } else {
            self.flows.push(flow());
        }
    }
}

fn flow(pod: &LocalPod, tuple: &EndpointFlow, control: Control) -> ListedFlow {
    let flags = control.flags();
    let directions = [(CT_INGRESS, Direction::Ingress), (CT_EGRESS, Direction::Egress)];
    let began = directions.into_iter().filter(|(flag, _)| flags & flag != 0);
    let same_family = |address: &&IpAddr| address.is_ipv4() == tuple.remote.is_ipv4();
    ListedFlow {
        pod: pod.key.clone(),
        began: began.map(|(_, direction)| direction).collect(),
        from_node: flags & CT_NODE != 0,
        protocol: IpProtocol(tuple.protocol),
        local: pod.addresses.iter().find(same_family).copied(),
        local_port: tuple.local_port,
        remote: tuple.remote,
        remote_port: tuple.remote_port,
        remote_name: None,
        translated: None,
        to_own_node: false,
        state: match () {
            () if control.is_closed() => FlowState::Closed,
            () if control.is_closing() => FlowState::Closing,
            () if flags & CT_REPLIED != 0 => FlowState::Open,
            () => FlowState::Opening,
        },
        idle_ms: None,
        cached: None,
        kernel: false,
    }
}
