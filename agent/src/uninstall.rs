//! `netpold uninstall`: removes every program, link and pin, and reports them.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use netpold_api::crd::NODE_CONDITION;
use netpold_dataplane::attach::{AttachMode, Attacher};
use netpold_dataplane::bpffs::PinRoot;
use netpold_dataplane::{barrier, fragments, gate, xdp};
use netpold_kube::cluster::{self, Access, ConnectError};
use serde_json::json;

use crate::cli::UninstallArgs;

/// Longest wait for the API server to remove the Node's condition.
const PATIENCE: Duration = Duration::from_secs(10);

/// Removes the state that `netpold run` left in force. Afterwards pods are not under policy.
///
/// # Errors
/// An agent runs on this pin root, or the kernel refuses. Detached interfaces are printed before the pins are removed.
pub fn run(args: &UninstallArgs) -> Result<()> {
    let pins = PinRoot::open(&args.bpffs)?;
    let mut attacher = Attacher::new(&pins.links(), AttachMode::probe())?;
    let attached = attacher.attached()?;
    attacher.retain(|_| false)?;
    let links = pins.links();
    let early = xdp::detach_all(&links).context("cannot detach XDP programs")?;
    attacher.stop_watching().context("cannot detach programs left by an upgrade")?;
    barrier::remove_all().context("cannot remove the nftables table of new interfaces")?;
    fragments::remove_all().context("cannot remove the nftables tables of fragments")?;
    gate::open_all().context("cannot open interfaces that are closed until programs are loaded")?;
    for found in &attached {
        let (ifindex, direction) = (found.hook.ifindex, found.hook.direction);
        anstream::println!("detached: interface {ifindex}, {direction}");
    }
    early.iter().for_each(|ifindex| anstream::println!("detached: interface {ifindex}, XDP"));
    let root = args.bpffs.display();
    let removed =
        pins.remove_all().with_context(|| format!("--bpffs {root}: cannot remove pins"))?;
    anstream::println!(
        "removed: {} programs, {removed} pins in {root}",
        attached.len() + early.len()
    );
    if let Some(node) = &args.node_name {
        remove_condition(args, node);
    }
    Ok(())
}

/// Removes the Node's condition, which is no longer renewed. A machine outside any cluster has none.
fn remove_condition(args: &UninstallArgs, node: &str) {
    let access = Access {
        kubeconfig: args.kubeconfig.clone(),
        as_kubectl: false,
        context: None,
        timeout: PATIENCE,
    };
    match retract(access, node) {
        Ok(true) => anstream::println!("removed: condition {NODE_CONDITION} of Node {node}"),
        Ok(false) => {}
        Err(error) => anstream::eprintln!(
            "Node {node} still has the condition {NODE_CONDITION}, which is not renewed any more: {error:#}"
        ),
    }
}

/// Returns whether there is a cluster; its Node then has no condition of netpold's left.
fn retract(access: Access, node: &str) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = match cluster::client(&access).await {
            Err(ConnectError::NotInCluster(_)) => return Ok(false),
            client => client?,
        };
        let condition = json!({ "type": NODE_CONDITION, "$patch": "delete" });
        let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
        let nodes = Api::<Node>::all(client);
        let parameters = PatchParams::default();
        tokio::time::timeout(PATIENCE, nodes.patch_status(node, &parameters, &patch))
            .await
            .context("the API server does not answer")??;
        Ok(true)
    })
}
