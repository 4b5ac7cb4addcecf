//! Samples for tests of other crates.

use netpold_core::cluster::AddressOwner;
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;

use crate::events::TrafficVerdict;
use crate::observe::{Attribution, ObservedEvent};

/// Node of the samples.
pub const NODE: &str = "n1";

/// A drop with a number as its explanation.
#[must_use]
pub fn event(number: u32) -> ObservedEvent {
    ObservedEvent {
        time: "2026-11-23T10:00:00.000Z".into(),
        node: NODE.into(),
        verdict: TrafficVerdict::Deny,
        reason: "policy".into(),
        direction: Direction::Ingress,
        pod: Some(Key::new("shop", "db")),
        workload: None,
        interface: None,
        local: Some([10, 0, 0, 1].into()),
        local_port: 5432,
        peer: Some(AddressOwner::Pod(Key::new("shop", "web"))),
        peer_workload: None,
        remote: Some([10, 0, 0, 2].into()),
        remote_port: 4000,
        protocol: Some(IpProtocol::TCP),
        port: Some(5432),
        attribution: Attribution {
            explanation: vec![format!("{number}")],
            ..Attribution::default()
        },
    }
}
