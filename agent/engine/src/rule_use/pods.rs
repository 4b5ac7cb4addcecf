//! Names of pods: of local pods by endpoint number, of all pods by address. Names outlive their pods for a while, so
//! that flows and drops of a recently removed pod are attributed to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use netpold_core::cluster::{AddressOwner, Cluster, is_subject};
use netpold_core::compile::Compiler;
use netpold_core::model::{Key, Pod};

/// Time that names outlive their pods, in milliseconds: longer than TCP retransmits to an address that does not answer
/// (15 minutes, `net.ipv4.tcp_retries2`).
const KEPT: u64 = 20 * 60_000;
/// Maximum number of tenures of addresses kept.
const TENURES_MAX: usize = 16_384;
/// Maximum number of tenures kept of one address, the latest.
const OF_ADDRESS_MAX: usize = 4;
/// Maximum number of endpoints kept after their end.
const ENDED_MAX: usize = 4096;

/// A local pod at one of its interfaces.
#[derive(Debug)]
struct SweptPod {
    pod: Arc<Pod>,
    /// Time when the end of the endpoint was noticed, in milliseconds since the epoch.
    ended: Option<u64>,
}

/// Time in which a former pod had an address.
#[derive(Debug)]
struct AddressTenure {
    pod: Arc<Pod>,
    /// Time when the end was noticed, in milliseconds since the epoch.
    until: u64,
    /// Time when the next pod with the address was noticed.
    next: Option<u64>,
}

impl AddressTenure {
    fn began(&self) -> u64 {
        created(&self.pod)
    }
}

/// Returns [`Pod::created`] in milliseconds since the epoch.
fn created(pod: &Pod) -> u64 {
    u64::try_from(pod.created).unwrap_or(0).saturating_mul(1000)
}

/// Pods of a sweep's flows.
#[derive(Debug, Default)]
pub(super) struct SweptPods {
    /// Pods by endpoint number. Numbers are never reused.
    endpoints: BTreeMap<u32, SweptPod>,
    /// Latest endpoint of each interface.
    by_interface: BTreeMap<u32, u32>,
    /// [`Compiler::endpoints_version`] of the endpoints.
    version: Option<u64>,
    /// Ended tenures by address, oldest first; no list is empty.
    former: BTreeMap<IpAddr, Vec<AddressTenure>>,
    tenures: usize,
}

impl SweptPods {
    /// Records the addresses that a pod loses, before the cluster ingests its new state (`None`: removed). A pod first
    /// reported as finished had its addresses too.
    pub(super) fn record_lost_addresses(
        &mut self,
        key: &Key,
        new: Option<&Pod>,
        cluster: &Cluster,
        now: u64,
    ) {
        let listed = cluster.pods().get(key);
        let known = listed.filter(|pod| is_subject(pod));
        let holds = new.filter(|pod| is_subject(pod));
        if let Some(known) = known {
            let same = holds.filter(|pod| pod.uid == known.uid);
            let kept = same.map_or(&[][..], |pod| &pod.addresses[..]);
            for address in known.addresses.iter().filter(|address| !kept.contains(address)) {
                self.end(*address, known, now);
            }
        }
        if let Some(pod) = new.filter(|pod| pod.finished && !pod.host_network) {
            let lately = listed.is_some() || created(pod).saturating_add(KEPT) >= now;
            let ended = known.is_some_and(|known| known.addresses == pod.addresses);
            if lately && !ended {
                let pod = Arc::new(Pod { finished: false, ..pod.clone() });
                pod.addresses.iter().for_each(|address| self.end(*address, &pod, now));
            }
        }
        for address in holds.iter().flat_map(|pod| &pod.addresses) {
            if known.is_some_and(|known| known.addresses.contains(address)) {
                continue;
            }
            if let Some(former) = cluster.owner(*address).filter(|owner| owner.key != *key) {
                self.end(*address, former, now);
            }
            if let Some(last) = self.former.get_mut(address).and_then(|all| all.last_mut()) {
                last.next.get_or_insert(now);
            }
        }
    }

    fn end(&mut self, address: IpAddr, pod: &Arc<Pod>, now: u64) {
        if self.tenures >= TENURES_MAX && !self.former.contains_key(&address) {
            return;
        }
        let all = self.former.entry(address).or_default();
        if all.len() == OF_ADDRESS_MAX {
            all.remove(0);
            self.tenures -= 1;
        }
        all.push(AddressTenure { pod: Arc::clone(pod), until: now, next: None });
        self.tenures += 1;
    }

    /// Reads the endpoints' pods after an update, if the endpoints have changed.
    pub(super) fn follow(&mut self, compiler: &Compiler) {
        if self.version != Some(compiler.endpoints_version()) {
            self.read(compiler);
        }
    }

    /// Reads the endpoints' pods with their current labels; returns the endpoints' version.
    pub(super) fn read(&mut self, compiler: &Compiler) -> u64 {
        let cluster = compiler.cluster();
        for endpoint in compiler.endpoints().filter(|endpoint| !endpoint.waiting) {
            let ifindex = endpoint.ifindex;
            let interface = cluster.interfaces().get(&ifindex);
            let behind = interface.and_then(|interface| cluster.pod_behind(interface));
            // The cluster's pod has the current labels.
            let pod = cluster.pods().get(&endpoint.pod).or(behind);
            if let Some(pod) = pod {
                let pod = Arc::clone(pod);
                self.endpoints.insert(endpoint.id, SweptPod { pod, ended: None });
                self.by_interface.insert(ifindex, endpoint.id);
            }
        }
        *self.version.insert(compiler.endpoints_version())
    }

    /// Returns the local pods.
    pub(super) fn local(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.endpoints.values().filter(|local| local.ended.is_none()).map(|local| &local.pod)
    }

    /// Returns the pod of an endpoint number, until the sweep after the end of the endpoint.
    pub(super) fn pod_of(&self, endpoint: u32) -> Option<&Arc<Pod>> {
        self.endpoints.get(&endpoint).filter(|it| it.ended.is_none()).map(|it| &it.pod)
    }

    /// Returns the pod of an endpoint number, also after its end. For an unknown number, returns the pod of the
    /// interface (0: none): a veth belongs to one pod.
    pub(super) fn named(&self, endpoint: u32, ifindex: u32) -> Option<&Arc<Pod>> {
        let of_interface = || self.endpoints.get(self.by_interface.get(&ifindex)?);
        self.endpoints.get(&endpoint).or_else(of_interface).map(|local| &local.pod)
    }

    /// Returns the pod that had an address at a time (milliseconds since the epoch) and no longer has it. An address
    /// without a new pod counts as the last pod's.
    pub(super) fn former(&self, cluster: &Cluster, address: IpAddr, at: u64) -> Option<&Arc<Pod>> {
        let all = self.former.get(&address)?;
        let owner = cluster.owner(address);
        let is_owner = |pod: &Pod| owner.is_some_and(|owner| owner.uid == pod.uid);
        let then = all.iter().find(|tenure| tenure.began() <= at && at <= tenure.until);
        let after = || {
            let last = all.last()?;
            let taken = |owner| created(owner).min(last.next.unwrap_or(u64::MAX));
            owner.is_none_or(|owner| at < taken(owner)).then_some(last)
        };
        then.or_else(after).map(|tenure| &tenure.pod).filter(|pod| !is_owner(pod))
    }

    /// Returns the owner of an address at a time, in milliseconds since the epoch.
    pub(super) fn owner_of_address(
        &self,
        cluster: &Cluster,
        address: IpAddr,
        at: u64,
    ) -> AddressOwner {
        let pod =
            self.former(cluster, address, at).map(|pod| AddressOwner::Pod(Key::clone(&pod.key)));
        pod.unwrap_or_else(|| cluster.owner_of_address(address))
    }

    /// Forgets names that ended long before this sweep. `live` has the present endpoints. Returns whether a tenure was
    /// forgotten, so that explanations by it are outdated.
    pub(super) fn forget(&mut self, live: &BTreeSet<u32>, now: u64) -> bool {
        let recent = |ended: u64| now < ended.saturating_add(KEPT);
        for (number, local) in &mut self.endpoints {
            let ended = (!live.contains(number)).then_some(now);
            local.ended = local.ended.or(ended);
        }
        self.endpoints.retain(|_, local| local.ended.is_none_or(recent));
        let ended = self.endpoints.iter().filter(|(_, local)| local.ended.is_some());
        let ended: Vec<u32> = ended.map(|(number, _)| *number).collect();
        for number in &ended[..ended.len().saturating_sub(ENDED_MAX)] {
            self.endpoints.remove(number);
        }
        let endpoints = &self.endpoints;
        self.by_interface.retain(|_, number| endpoints.contains_key(number));
        self.former.retain(|_, all| {
            all.retain(|tenure| recent(tenure.until));
            !all.is_empty()
        });
        let tenures = self.former.values().map(Vec::len).sum();
        std::mem::replace(&mut self.tenures, tenures) != tenures
    }
}

#[cfg(test)]
mod tests {
    use netpold_core::model::Change;
    use netpold_testkit::objects;

    use super::*;

    const START: u64 = 1_700_000_000_000;

    fn pod(name: &str, address: &str, created: u64) -> Pod {
        let created = i64::try_from(created / 1000).unwrap();
        Pod { created, ..objects::pod("x", name, &[], &[address]) }
    }

    /// Ingests changes at their times; returns the owner of an address at a time, after all of them.
    #[expect(clippy::wildcard_enum_match_arm, reason = "only pods come and go here")]
    fn whose(changes: &[(u64, Change)], at: u64) -> String {
        let mut pods = SweptPods::default();
        let mut so_far = Vec::new();
        for (when, change) in changes {
            let cluster: Cluster = so_far.iter().cloned().collect();
            match change {
                Change::Pod(pod) => {
                    pods.record_lost_addresses(&pod.key, Some(pod), &cluster, *when);
                }
                Change::PodGone(key) => pods.record_lost_addresses(key, None, &cluster, *when),
                _ => panic!("{change:?}"),
            }
            so_far.push(change.clone());
        }
        let cluster: Cluster = so_far.into_iter().collect();
        pods.owner_of_address(&cluster, "10.0.0.1".parse().unwrap(), at).to_string()
    }

    #[test]
    fn an_address_is_of_the_pod_that_had_it_at_that_moment() {
        let (old, new) = (pod("old", "10.0.0.1", START), pod("new", "10.0.0.1", START + 60_000));
        let gone = Change::PodGone(old.key.clone());
        let mut changes = vec![(START + 1000, Change::Pod(old.clone())), (START + 50_000, gone)];
        for at in [START + 2000, START + 50_000, START + 300_000] {
            assert_eq!(whose(&changes, at), "x/old", "{at}: nobody else has it");
        }
        changes.push((START + 62_000, Change::Pod(new.clone())));
        for (at, name) in [
            (START + 2000, "x/old"),
            (START + 50_000, "x/old"),
            (START + 55_000, "x/old"),
            (START + 61_000, "x/new"),
            (START + 70_000, "x/new"),
        ] {
            assert_eq!(whose(&changes, at), name, "{at}");
        }
        // The next pod is removed too.
        changes.push((START + 90_000, Change::PodGone(new.key)));
        for (at, name) in
            [(START + 2000, "x/old"), (START + 70_000, "x/new"), (START + 95_000, "x/new")]
        {
            assert_eq!(whose(&changes, at), name, "{at}");
        }
        // A pod exists while another one begins to claim its address.
        let young = pod("young", "10.0.0.1", START + 30_000);
        let both = [(START + 1000, Change::Pod(old)), (START + 31_000, Change::Pod(young))];
        assert_eq!(whose(&both, START + 2000), "x/old");
        assert_eq!(whose(&both, START + 40_000), "x/young");
    }

    #[test]
    fn a_clock_of_the_api_server_that_is_ahead_gives_no_packet_to_the_former_pod_for_long() {
        let old = pod("old", "10.0.0.1", START);
        let new = pod("new", "10.0.0.1", START + 3_600_000);
        let changes = [
            (START + 1000, Change::Pod(old.clone())),
            (START + 50_000, Change::PodGone(old.key)),
            (START + 62_000, Change::Pod(new)),
        ];
        assert_eq!(whose(&changes, START + 63_000), "x/new");
    }

    #[test]
    fn a_pod_that_is_first_heard_of_when_it_is_over_had_its_address() {
        let job = Pod { finished: true, ..pod("job", "10.0.0.1", START) };
        let changes = |when| [(when, Change::Pod(job.clone()))];
        assert_eq!(whose(&changes(START + 2000), START + 1500), "x/job");
        let long_ago = START + 2 * KEPT;
        assert_eq!(whose(&changes(long_ago), long_ago), "outside", "an old Job, at the start");
        let host = Pod { host_network: true, ..job.clone() };
        assert_eq!(whose(&[(START, Change::Pod(host))], START), "outside");
    }

    #[test]
    fn names_are_forgotten_in_the_end_and_bounded() {
        let mut pods = SweptPods::default();
        let pod = Arc::new(pod("a", "10.0.0.1", START));
        let address = pod.addresses[0];
        let local = SweptPod { pod: Arc::clone(&pod), ended: None };
        pods.endpoints.insert(7, local);
        pods.by_interface.insert(5, 7);
        (0..10).for_each(|n| pods.end(address, &pod, START + n));
        assert_eq!(pods.tenures, OF_ADDRESS_MAX);
        let cluster = Cluster::default();
        assert!(pods.former(&cluster, address, START + 60_000).is_some());
        assert!(!pods.forget(&BTreeSet::from([7]), START + 1000), "nothing to forget");
        assert_eq!(pods.pod_of(7), Some(&pod));
        assert!(!pods.forget(&BTreeSet::new(), START + 2000));
        assert_eq!((pods.pod_of(7), pods.local().count()), (None, 0));
        assert_eq!(pods.named(7, 0), Some(&pod));
        assert_eq!(pods.named(99, 5), Some(&pod), "the interface's");
        assert_eq!(pods.named(99, 0), None);
        assert!(pods.forget(&BTreeSet::new(), START + 2000 + KEPT));
        assert_eq!((pods.named(7, 5), pods.tenures), (None, 0));
        assert!(pods.former(&cluster, address, START + 60_000).is_none());
        for n in 0..2 * TENURES_MAX as u32 {
            pods.end(std::net::Ipv4Addr::from_bits(n).into(), &pod, START);
        }
        assert_eq!((pods.tenures, pods.former.len()), (TENURES_MAX, TENURES_MAX));
        for number in 0..2 * ENDED_MAX as u32 {
            let ended = Some(START);
            pods.endpoints.insert(number, SweptPod { pod: Arc::clone(&pod), ended });
        }
        pods.forget(&BTreeSet::new(), START);
        assert_eq!(pods.endpoints.len(), ENDED_MAX);
        assert!(pods.named(2 * ENDED_MAX as u32 - 1, 0).is_some(), "the latest stay");
    }
}
