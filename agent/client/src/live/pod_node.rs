//! Node of a pod.

use anyhow::{Result, anyhow, bail};
use kube::Api;
use netpold_core::model::Key;
use netpold_core::printable::printable;
use netpold_kube::cluster::Lister;
use netpold_kube::cluster::failure::Failure;

use super::args::{ClusterArgs, SILENCE};
use super::read_pod::ReadPod;

/// Returns the name of a pod's node.
///
/// # Errors
/// The cluster cannot be reached, the pod may not be read, does not exist, or is not scheduled yet.
pub async fn node_of(args: &ClusterArgs, pod: &Key) -> Result<String> {
    let lister = Lister::open(args.access(SILENCE)).await?;
    let api = Api::<ReadPod>::namespaced(lister.client(), &pod.namespace);
    let found = api.get_opt(&pod.name).await.map_err(|error| {
        let text = Failure::from_error(error).text("get the pod", lister.server());
        anyhow!(printable(&text).into_owned())
    })?;
    let Some(found) = found else { bail!("pod {} not found", printable(&pod.to_string())) };
    let node = found.spec.node_name.filter(|node| !node.is_empty());
    node.ok_or_else(|| anyhow!("pod {} is not scheduled yet", printable(&pod.to_string())))
}
