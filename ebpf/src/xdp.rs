//! Packets that XDP drops, since the pod's own hook would: at the uplinks and at the pods' interfaces.

mod observer;
pub mod pod;
pub mod uplink;
