//! Kinds of objects, and the result of a conversion.

use netpold_core::model::Change;

use super::problem::FieldProblem;

/// A kind of objects that policies depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `v1`
    Namespace,
    /// `v1`
    Node,
    /// `v1`
    Pod,
    /// `v1`
    Service,
    /// `discovery.k8s.io/v1`
    EndpointSlice,
    /// `networking.k8s.io/v1`
    NetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha2`
    ClusterNetworkPolicy,
}

impl Kind {
    /// Returns whether a field unknown to the API changes the meaning of an object of the kind.
    pub(super) const fn is_policy(self) -> bool {
        matches!(self, Self::NetworkPolicy | Self::ClusterNetworkPolicy)
    }
}

/// An object converted to netpold's model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The object, as a change that sets its current state.
    pub change: Change,
    /// Parts of the object that could not be interpreted.
    pub problems: Vec<FieldProblem>,
}
