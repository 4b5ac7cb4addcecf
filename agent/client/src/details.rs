//! Object fields that only reviews read, not enforcement: containers' ports, targets of Services, policies as written, node
//! addresses in annotations, and policies of other APIs.

mod cluster;
pub mod complete;
mod fields;
mod files;
mod foreign_kinds;
mod manifest;
mod node;
mod pages;
mod pod;
mod service;
mod shapes;

pub use cluster::{read_cluster, read_details};
pub use fields::{
    ContainerProgram, Details, EndpointPod, EndpointsPort, Exposure, IgnoredPorts, Mesh,
    NodeAddress, PastProxy, PodDetails, PortReference, RoutedPort, RunningContainers,
    ServiceCaller, WorkloadTemplate, WrittenService, WrittenServicePort,
};
pub use foreign_kinds::{ForeignKind, ForeignPolicies, ForeignPolicy};
pub use manifest::{FileLine, PolicyManifest};
pub use service::is_selected;

#[cfg(test)]
mod tests;
