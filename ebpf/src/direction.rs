//! The direction of a packet, as the pod sees it.

use crate::layout::{CT_EGRESS, CT_FIN_EGRESS, CT_FIN_INGRESS, CT_INGRESS};

/// Direction of a packet, as the pod sees it.
pub trait PodDirection {
    /// Whether this is pod egress.
    const EGRESS: bool;
    /// Conntrack flag: this direction was allowed by policy and seen.
    const SEEN: u16 = if Self::EGRESS { CT_EGRESS } else { CT_INGRESS };
    /// Conntrack flag of the other direction.
    const OTHER_SEEN: u16 = if Self::EGRESS { CT_INGRESS } else { CT_EGRESS };
    /// Conntrack flag: FIN seen in this direction.
    const FIN: u16 = if Self::EGRESS { CT_FIN_EGRESS } else { CT_FIN_INGRESS };
}

/// Pod ingress.
#[derive(Clone, Copy, Debug)]
pub struct Ingress;

/// Pod egress.
#[derive(Clone, Copy, Debug)]
pub struct Egress;

impl PodDirection for Ingress {
    const EGRESS: bool = false;
}

impl PodDirection for Egress {
    const EGRESS: bool = true;
}
