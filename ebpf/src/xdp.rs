//! XDP at the uplinks and at the pods' interfaces: early drops of packets that the pod's own hook would drop.

mod observer;
pub mod pod;
pub mod uplink;
