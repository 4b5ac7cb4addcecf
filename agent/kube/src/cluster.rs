//! Kubernetes objects of an API server, followed as they change.
//!
//! ```text
//! Follower<Pod> ──┐ Update                    ┌─► Batch    (engine)
//! Follower<…> ────┼────────► Hub ─────────────┤
//! Follower<…> ────┘ 1 ms                      └─► SourceStatus
//! ```
//!
//! Each kind is followed independently: a kind that cannot be read does not stop the others. The same holds for each
//! object: `split.rs` splits answers without parsing the objects, `convert` reads the fields of each object that
//! policies need, and an object that cannot be decoded is reported and does not affect the others.
//! Nothing is in sync before every kind was listed once; a server may lack ClusterNetworkPolicy. After that an outage
//! of any length changes nothing: the known objects stay, and the next list reveals missed changes, including
//! deletions. `outage.rs` lets all kinds return together.

mod all_pods;
mod answer;
mod availability;
pub mod connection;
mod denials;
mod event;
mod event_recorder;
pub mod failure;
mod follower;
mod hub;
mod kind;
mod list;
mod node_use;
mod outage;
mod own_entries;
mod peers;
mod slice_follower;
mod slice_health;
mod slice_set;
mod split;
mod store;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use netpold_api::source::KindStatus;
use netpold_core::cluster::SecondaryNetworks;
use tokio::sync::{mpsc, watch as watch_channel};

use self::all_pods::StartPods;
pub use self::answer::is_quiet;
use self::connection::Connection;
pub use self::connection::{Access, ConnectError, client, default_namespace, is_configured};
pub use self::denials::{DenialReport, Denials, DropKey};
pub use self::event_recorder::{EventRecorder, Unsupported};
use self::follower::{FieldSelector, Follower};
use self::hub::{Hub, KindUpdate, KindVersion, NodeScope};
use self::kind::{ClusterNetworkPolicy, WatchedKind};
pub use self::list::{KindListing, Lister, PAGE};
use self::node_use::NodeUse;
pub use self::outage::random_part;
use self::outage::{Following, Outage};
use self::peers::{AskServer, PeerChannels, PeerKinds, Peers};
pub use self::slice_health::PeerTimes;
use crate::ObjectStream;

/// Capacity of the channels of updates and of batches.
const IN_FLIGHT: usize = 64;

/// Nodes to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowedNodes {
    /// All of them.
    All,
    /// This node.
    Own,
    /// This node; all nodes once policy on this node depends on other nodes.
    Needed,
}

/// Origin of the pods of other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FollowedPeers {
    /// A watch of all pods.
    #[default]
    Pods,
    /// Slices, which the controller writes; a watch of all pods while it does not renew them.
    Slices(PeerTimes),
}

/// Objects to follow.
#[derive(Clone, Debug)]
pub struct WatchSettings {
    /// Access to the API server.
    pub access: Access,
    /// Name of this node.
    pub node: String,
    /// Nodes to follow.
    pub nodes: FollowedNodes,
    /// Blocks in which pods' claims to addresses on secondary networks count.
    pub secondary_networks: SecondaryNetworks,
    /// Origin of the pods of other nodes.
    pub peers: FollowedPeers,
    /// Whether to follow ClusterNetworkPolicies, if the server serves them.
    pub cluster_policies: bool,
}

/// Follows a cluster. Returns at once; the status shows whether the API server can be reached. Needs a tokio
/// runtime.
///
/// # Errors
/// No API server is configured, or the credentials are unusable.
pub async fn watch(settings: WatchSettings) -> Result<(ObjectStream, EventRecorder), ConnectError> {
    let connection = Arc::new(Connection::open(settings.access.clone()).await?);
    let (updates, received) = mpsc::channel(IN_FLIGHT);
    let (batches, source) = mpsc::channel(IN_FLIGHT);
    let outage = Outage::new();
    let mut starter =
        Starter { connection: Arc::clone(&connection), outage, updates, kinds: Vec::new() };
    let (scope, narrow) = starter.node_scope(&settings);
    starter.start::<Node>(narrow);
    starter.start::<Namespace>(None);
    starter.start::<NetworkPolicy>(None);
    let pods = starter.kinds.len();
    starter.start::<Pod>(match settings.peers {
        FollowedPeers::Pods => None,
        FollowedPeers::Slices(_) => Some(pods_of(&settings.node)),
    });
    starter.start::<Service>(None);
    starter.start::<EndpointSlice>(None);
    if settings.cluster_policies {
        starter.start::<ClusterNetworkPolicy>(None);
    }
    let received = match settings.peers {
        FollowedPeers::Pods => received,
        FollowedPeers::Slices(times) => {
            starter.start_peers(pods, (&settings.node, times), received)
        }
    };
    let origin = format!("API server {}", connection.server());
    let (hub, status) = Hub::new(origin, starter.kinds, scope, received, batches);
    tokio::spawn(hub.run());
    let event_recorder = EventRecorder::start(connection, settings.node);
    Ok((ObjectStream { batches: source, status, partial: false }, event_recorder))
}

/// Follows the inputs of the status of policies: nodes, namespaces, policies and pods. Otherwise like [`watch`]. The second
/// value is the `resourceVersion` up to which the batches in the channel contain all changes of pods.
///
/// # Errors
/// As [`watch`].
pub async fn watch_policies(
    access: Access,
) -> Result<(ObjectStream, watch_channel::Receiver<u64>), ConnectError> {
    let connection = Arc::new(Connection::open(access).await?);
    let (updates, received) = mpsc::channel(IN_FLIGHT);
    let (batches, source) = mpsc::channel(IN_FLIGHT);
    let origin = format!("API server {}", connection.server());
    let outage = Outage::new();
    let mut starter = Starter { connection, outage, updates, kinds: Vec::new() };
    starter.start::<Node>(None);
    starter.start::<Namespace>(None);
    starter.start::<NetworkPolicy>(None);
    starter.start::<ClusterNetworkPolicy>(None);
    let (sent, version) = watch_channel::channel(0);
    let pods = KindVersion { kind: starter.kinds.len(), sent, known: 0 };
    starter.start::<Pod>(None);
    let (hub, status) = Hub::new(origin, starter.kinds, None, received, batches);
    tokio::spawn(hub.with_version(pods).run());
    Ok((ObjectStream { batches: source, status, partial: false }, version))
}

struct Starter {
    connection: Arc<Connection>,
    outage: Arc<Outage>,
    updates: mpsc::Sender<KindUpdate>,
    kinds: Vec<KindStatus>,
}

impl Starter {
    /// Returns how the scope of the next kind, the nodes, is decided, and its selector until then.
    fn node_scope(&self, settings: &WatchSettings) -> (Option<NodeScope>, Option<FieldSelector>) {
        let (nodes, own) = (settings.nodes, settings.node.as_str());
        if nodes == FollowedNodes::All {
            return (None, None);
        }
        let (widen, widened) = watch_channel::channel(false);
        let fields = format!("metadata.name={own}");
        let node_use = NodeUse::of_node(own.to_owned(), settings.secondary_networks.clone());
        let scope = NodeScope { kind: self.kinds.len(), node_use, widen, due: None };
        (
            (nodes == FollowedNodes::Needed).then_some(scope),
            Some(FieldSelector { fields, is_indexed: false, widened }),
        )
    }

    /// Merges the updates of all kinds so far with slices; returns the receiver for the hub. `pods` is the kind of pods.
    fn start_peers(
        &mut self,
        pods: usize,
        of_node: (&str, PeerTimes),
        updates: mpsc::Receiver<KindUpdate>,
    ) -> mpsc::Receiver<KindUpdate> {
        let (out, merged) = mpsc::channel(IN_FLIGHT);
        let (events, slices) = mpsc::channel(IN_FLIGHT);
        let kinds = PeerKinds { pods, slices: self.kinds.len() };
        self.kinds.push(slice_set::slice_status());
        let connection = Arc::clone(&self.connection);
        tokio::spawn(slice_follower::follow(connection, self.outage.member(), events));
        let (connection, outage) = (Arc::clone(&self.connection), Arc::clone(&self.outage));
        let sender = self.updates.clone();
        let start_pods: StartPods = Box::new(move |number| {
            let member = outage.member_in(Following::Rests);
            let (connection, updates) = (Arc::clone(&connection), sender.clone());
            tokio::spawn(Follower::<Pod>::new(connection, member, updates, number, None).run())
        });
        let (connection, outage) = (Arc::clone(&self.connection), Arc::clone(&self.outage));
        let ask: AskServer = Box::new(move || {
            tokio::spawn(slice_follower::request_heartbeat(
                Arc::clone(&connection),
                Arc::clone(&outage),
            ))
        });
        let channels = PeerChannels { updates, out, slices };
        let outage = Arc::clone(&self.outage);
        tokio::spawn(Peers::new(channels, kinds, of_node, outage, (start_pods, ask)).run());
        merged
    }

    fn start<K: WatchedKind>(&mut self, narrow: Option<FieldSelector>) {
        let (connection, updates) = (Arc::clone(&self.connection), self.updates.clone());
        let member = self.outage.member();
        let follower = Follower::<K>::new(connection, member, updates, self.kinds.len(), narrow);
        self.kinds.push(follower.status());
        tokio::spawn(follower.run());
    }
}

/// Returns the selector of a node's pods.
fn pods_of(node: &str) -> FieldSelector {
    let finished = Pod::FIELDS.unwrap_or_default();
    let fields = format!("spec.nodeName={node},{finished}");
    // This selector is never widened.
    let (_, widened) = watch_channel::channel(false);
    FieldSelector { fields, is_indexed: true, widened }
}

#[cfg(test)]
mod tests;
