//! Creates the engine, and collects the state of an earlier agent.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use netpold_core::bindings::Inherited;
use netpold_core::compile::{Compiler, WAITING};
use netpold_core::model::{Change, Pod};
use netpold_core::ops::Capacity;
use netpold_core::options::Options;
use netpold_dataplane::attach::{Attached, Attacher};
use netpold_dataplane::bpffs::PinRoot;
use netpold_dataplane::conntrack::Buckets;
use netpold_dataplane::flow_numbers::highest_number;
use netpold_dataplane::pinned_state::PinnedState;
use netpold_dataplane::{Dataplane, DataplaneOptions};
use netpold_ebpf::layout::Endpoint;
use netpold_engine::Engine;
use netpold_kube::inputs::last_good_objects;

use crate::config::RunConfig;

/// Creates an engine that has written nothing yet; it continues the pinned state of an earlier agent. `judged`: the
/// interfaces with programs of that agent, see [`Options::judged`].
pub(super) fn engine(
    config: &RunConfig,
    pins: PinRoot,
    attacher: Attacher,
    pinned: &PinnedState,
    judged: Option<BTreeSet<u32>>,
) -> Result<Engine> {
    let capacity = Capacity::SMALL;
    let known = pinned.endpoints.iter().map(|e| ((e.ifindex, e.uid_hash), e.id)).collect();
    let last = pinned.endpoints.iter().map(|e| e.id).chain(highest_number(&pins)).max();
    let random = random().context("cannot read random bytes")?;
    let options = Options {
        capacity,
        first_endpoint_id: first_endpoint_id(last, pinned.hash_seed.is_some(), random),
        known_endpoints: known,
        known_slots: pinned.slots.clone(),
        judged,
        ..config.options.clone()
    };
    let seed = pinned.hash_seed.unwrap_or(random);
    let dataplane = DataplaneOptions {
        proof: 1 << config.hooks.mark_bit,
        uplinks: config.hooks.uplinks.clone(),
        pod_xdp: config.hooks.pod_xdp,
        rejections: config.hooks.rejections,
        ..DataplaneOptions::new(Buckets::for_this_node(), seed)
    };
    let dataplane = Dataplane::new(pins, attacher, dataplane);
    let mut engine = Engine::new(Compiler::new(options), dataplane, capacity);
    engine.judge_at(config.hooks.node_devices.clone());
    engine.trust(config.hooks.trusted_devices.clone());
    Ok(engine)
}

/// Returns the pod of each interface by the tables of the previous agent. A program that is still attached shows that
/// the interface is still the same one, because a program disappears with its interface.
pub(super) fn bound(pinned: &PinnedState, attached: &[Attached]) -> BTreeMap<u32, Inherited> {
    let since: BTreeSet<u32> = attached.iter().map(|found| found.hook.ifindex).collect();
    let endpoints = pinned.endpoints.iter();
    let known = endpoints.filter(|e| since.contains(&e.ifindex) && e.uid_hash != WAITING);
    let inherited = |endpoint: &Endpoint| Inherited {
        uid_hash: endpoint.uid_hash,
        station: endpoint.unpack_station(),
    };
    known.map(|endpoint| (endpoint.ifindex, inherited(endpoint))).collect()
}

/// Returns this node's pods in the last good state, in case the source no longer has them.
pub(super) fn remembered(config: &RunConfig) -> Vec<Pod> {
    let objects =
        last_good_objects(&config.files.state, &config.node, "pods deleted since are unknown");
    let pods = objects
        .into_iter()
        .filter_map(|object| if let Change::Pod(pod) = object { Some(pod) } else { None });
    pods.filter(|pod| pod.node == config.node && !pod.host_network).collect()
}

/// Returns the first endpoint number. `last`: the highest number among the endpoints and flows of earlier agents. The
/// previous agent may still give numbers while this one starts, so numbers continue well above it. Without a highest
/// number, the first number is random in the lower half, so that enough numbers remain.
fn first_endpoint_id(last: Option<u32>, inherited: bool, random: u64) -> u32 {
    const GAP: u32 = 1 << 16;
    match last {
        Some(last) => last.checked_add(GAP).unwrap_or(1),
        None if inherited => u32::try_from(random >> 33).map_or(1, |id| id.max(1)),
        None => 1,
    }
}

fn random() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::first_endpoint_id;

    #[test]
    fn numbers_of_endpoints_that_conntrack_may_know_are_not_given_again() {
        assert_eq!(first_endpoint_id(None, false, u64::MAX), 1, "nothing is tracked yet");
        assert_eq!(first_endpoint_id(Some(7), true, u64::MAX), 7 + (1 << 16));
        assert_eq!(first_endpoint_id(Some(u32::MAX), true, 0), 1);
        assert_eq!(first_endpoint_id(None, true, u64::MAX), u32::MAX >> 1);
        assert_eq!(first_endpoint_id(None, true, 0), 1, "never 0");
    }
}
