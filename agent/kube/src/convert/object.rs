//! Conversion of an object by its kind.

use k8s_openapi::api::core::v1 as core;
use netpold_core::labels::NAMESPACE_NAME;
use netpold_core::model::{Change, Namespace, Node};

use super::cluster_policy::cluster_network_policy;
use super::converted::{Converted, Kind};
use super::metadata::{denial, labels, name};
use super::pod::{parse_addresses, pod};
use super::policy::network_policy;
use super::problem::{FieldProblem, Unknown};
use super::service::{endpoint_slice, service};
use crate::decode::{Mismatch, typed};
use crate::document::DocumentNode;

/// Converts the used part of an object; `unknown` are a policy's fields beyond the API's.
pub(super) fn object(
    kind: Kind,
    node: &DocumentNode,
    unknown: &[Unknown],
) -> Result<Converted, Mismatch> {
    let converted = match kind {
        Kind::Namespace => namespace(&typed(node)?),
        Kind::Node => self::node(&typed(node)?),
        Kind::Pod => pod(&typed(node)?),
        Kind::Service => service(&typed(node)?),
        Kind::EndpointSlice => endpoint_slice(&typed(node)?),
        Kind::NetworkPolicy => network_policy(&typed(node)?, unknown),
        Kind::ClusterNetworkPolicy => return cluster_network_policy(node, unknown),
    };
    Ok(converted?)
}

fn namespace(namespace: &core::Namespace) -> Result<Converted, FieldProblem> {
    let name = name(&namespace.metadata)?;
    let mut labels = labels(&namespace.metadata);
    labels.insert(NAMESPACE_NAME.into(), name.clone());
    let mut problems = Vec::new();
    let denial = denial(&namespace.metadata, &mut problems);
    Ok(Converted { change: Change::Namespace(Namespace { name, labels, denial }), problems })
}

fn node(node: &core::Node) -> Result<Converted, FieldProblem> {
    let name = name(&node.metadata)?;
    let mut problems = Vec::new();
    let given = node.status.iter().flat_map(|s| s.addresses.iter().flatten()).enumerate();
    let addresses = given
        .filter(|(_, a)| a.type_ == "InternalIP" || a.type_ == "ExternalIP")
        .map(|(n, a)| (format!("status.addresses[{n}].address"), a.address.as_str()));
    let addresses = parse_addresses(addresses, &mut problems);
    let spec = node.spec.as_ref();
    let several = spec.and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default();
    let one = spec.and_then(|spec| spec.pod_cidr.as_ref()).filter(|_| several.is_empty());
    // An invalid block contains none of the pods' addresses.
    let pod_ranges = several.iter().chain(one).filter_map(|range| range.parse().ok()).collect();
    let labels = labels(&node.metadata);
    Ok(Converted { change: Change::Node(Node { name, addresses, labels, pod_ranges }), problems })
}
