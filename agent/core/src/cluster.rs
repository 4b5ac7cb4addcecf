//! The current state of the cluster's objects, without history, and the indexes for compiling.
//!
//! [`Cluster`] has one part per kind of object ([`pods`], [`policies`], [`nodes`], [`services`] …) and answers queries
//! across kinds; [`intake`] changes it, [`pod_policies`] finds the policies about a pod.

mod address_owner;
mod claims;
mod cluster_policies;
mod dirty;
mod intake;
mod interfaces;
mod label_groups;
mod name_groups;
mod namespaces;
mod networks;
mod nodes;
mod objects;
mod pod_policies;
mod pods;
mod pods_by_name;
mod policies;
mod secondary;
pub(crate) mod services;
mod slice_limits;
mod small_vec;
mod state;
mod strings;

pub use address_owner::AddressOwner;
pub(crate) use dirty::{AddressList, Dirty};
pub(crate) use intake::Intake;
pub(crate) use label_groups::LabelGroup;
pub(crate) use name_groups::beyond_limit;
pub use networks::{PRIVATE_RANGES, SecondaryNetworks};
pub(crate) use objects::Object;
pub use objects::ObjectKey;
pub use pod_policies::PodPolicies;
pub(crate) use pods::precedence;
pub use pods::{is_subject, is_unaddressed};
pub use pods_by_name::PodsByName;
pub use secondary::ClaimRefusal;
pub use slice_limits::SliceSums;
pub use state::Cluster;
