//! Layout of a cluster: chosen at `up` and read by later steps.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::common::write;
use super::state::ClusterFolder;

const FILE: &str = "control/layout.json";

/// Options of `up`.
#[derive(clap::Args, Clone, Serialize, Deserialize)]
pub(super) struct ClusterLayout {
    /// CNI plugin that gives pods their interfaces
    #[arg(long, global = true, value_enum, default_value = "ptp")]
    pub(super) cni: CniPlugin,
    /// Mode of kube-proxy
    #[arg(long, global = true, value_enum, default_value = "nftables")]
    pub(super) proxy: ServiceProxy,
    /// Address families of nodes, pods and Services
    #[arg(long, global = true, value_enum, default_value = "dual")]
    pub(super) family: AddressFamily,
    /// Put this static netpold into the image instead of building one
    #[arg(long, global = true, value_name = "PATH")]
    pub(super) binary: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(super) enum CniPlugin {
    /// A host route to each pod
    Ptp,
    /// A bridge for the pods of a node
    Bridge,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(super) enum ServiceProxy {
    /// Kubernetes 1.31 or later
    Nftables,
    Iptables,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(super) enum AddressFamily {
    /// IPv4 and IPv6
    Dual,
    /// IPv6 and IPv4: addresses of IPv6 are the first of everything that has both
    Ipv6First,
    Ipv4,
    Ipv6,
}

impl AddressFamily {
    /// Returns the values of the families in use, the first family first.
    pub(super) fn order<T>(self, ipv4: T, ipv6: T) -> Vec<T> {
        match self {
            Self::Dual => vec![ipv4, ipv6],
            Self::Ipv6First => vec![ipv6, ipv4],
            Self::Ipv4 => vec![ipv4],
            Self::Ipv6 => vec![ipv6],
        }
    }

    /// Returns the value of the first family.
    pub(super) fn first<T>(self, ipv4: T, ipv6: T) -> T {
        match self {
            Self::Dual | Self::Ipv4 => ipv4,
            Self::Ipv6First | Self::Ipv6 => ipv6,
        }
    }
}

impl ClusterLayout {
    /// Saves the layout for later steps, until `down`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn save(&self, state: &ClusterFolder) -> Result<()> {
        write(&state.path(FILE), serde_json::to_string_pretty(self)?)
    }

    /// Returns the layout of the running cluster.
    ///
    /// # Errors
    /// No cluster is running.
    pub(super) fn of(state: &ClusterFolder) -> Result<Self> {
        let text = std::fs::read_to_string(state.path(FILE)).context("no cluster is up")?;
        serde_json::from_str(&text).context(FILE)
    }
}
