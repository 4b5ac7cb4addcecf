//! The objects that policy depends on, reduced to the fields that NetworkPolicy reads.
//!
//! The converter (`convert.rs` of netpold-kube) decides whether a field was absent or empty, so that here every
//! value has one meaning.

mod change;
mod cluster_policy;
mod denial;
mod domain_name;
mod interface;
mod object;
mod pod;
mod policy;
mod selector;
mod service;
mod shared_str;
mod traffic;

pub use change::Change;
pub use cluster_policy::{Action, ClusterPolicy, ClusterRule, NamespacedPods, Tier};
pub use denial::Denial;
pub use domain_name::{DomainName, NotDomainName};
pub use interface::{Bound, Interface, InterfaceOwner, Standing};
pub use object::{Key, Labels, Namespace, Node};
pub(crate) use pod::uid_hash;
pub use pod::{NamedPort, Pod, SecondaryInterface, WorkloadRef};
pub use policy::{Enforcement, IpBlock, Peer, Policy, PolicyVersion, PortMatch, PortRule, Rule};
pub use selector::{Requirement, Selector};
pub use service::{EndpointSlice, Service, ServicePort, SlicePort};
pub use shared_str::SharedStr;
pub use traffic::{Direction, Protocol};
