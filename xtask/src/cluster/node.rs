//! Namespaces of a node, and the programs that run on every node.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::binaries::ClusterBinaries;
use super::common::{wait, write};
use super::control::{self, ApiUser};
use super::init::{InitPlan, MOUNTED, NodeProgram, PLAN};
use super::layout::{ClusterLayout, ServiceProxy};
use super::network::{self, NodeNetworks};
use super::state::{ClusterFolder, NODES};

/// Path of the runtime's socket on each node.
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";
/// Startup taint of new nodes until netpold enforces there (deploy/status.md).
pub(super) const TAINT: &str = "netpold.io/agent-not-ready";
/// Image of the pod sandbox: busybox, which only sleeps.
pub(super) const PAUSE: &str = "localhost/netpold-cluster/pause:1";

/// Writes the plan of a node's init.
///
/// # Errors
/// The file cannot be written.
pub(super) fn plan(state: &ClusterFolder, name: &str, programs: Vec<NodeProgram>) -> Result<()> {
    let plan = InitPlan { name: name.to_owned(), programs };
    write(&state.node(name).join(PLAN), serde_json::to_string_pretty(&plan)?)
}

/// Starts a node's init in its own namespaces. It starts the programs after [`ClusterFolder::go`].
///
/// # Errors
/// The kernel refuses a namespace, or a mount cannot be made.
pub(super) fn start(state: &ClusterFolder, name: &str) -> Result<()> {
    let folder = state.node(name);
    let log = std::fs::File::create(state.log(name, "init"))?;
    // In its own session, so that it outlives this process and its terminal.
    let mut child = Command::new("setsid")
        .args(["unshare", "--fork", "--kill-child", "--pid", "--net", "--mount", "--uts", "--ipc"])
        .args(["--propagation", "private"])
        .arg(std::env::current_exe().context("no path of this program")?)
        .arg("cluster-node")
        .arg(&folder)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot run setsid and unshare (util-linux)")?;
    wait(&format!("node {name}"), Duration::from_secs(20), || {
        if let Some(status) = child.try_wait()? {
            let log = std::fs::read_to_string(state.log(name, "init")).unwrap_or_default();
            anyhow::bail!("node {name} ended ({status}): {}", log.trim());
        }
        anyhow::ensure!(folder.join(MOUNTED).exists(), "its mounts are not made");
        Ok(())
    })
}

/// Writes the configuration of a node's containerd, kubelet and kube-proxy, and returns their command lines.
///
/// # Errors
/// A file cannot be written.
pub(super) fn programs(
    state: &ClusterFolder,
    binaries: &ClusterBinaries,
    layout: &ClusterLayout,
    index: usize,
) -> Result<Vec<NodeProgram>> {
    let name = NODES[index];
    let folder = state.node(name);
    let addresses = NodeNetworks::of(index);
    let file = |name: &str| folder.join(name).display().to_string();
    network::write_cni(&folder.join("cni"), layout, &addresses)?;
    write(&folder.join("containerd.toml"), containerd(&folder, binaries))?;
    // Empty: no name server.
    write(&folder.join("resolv.conf"), "")?;
    let kubelet = kubelet(&folder, &state.cgroup(name), binaries.minor());
    write(&folder.join("kubelet.json"), serde_json::to_string_pretty(&kubelet)?)?;
    let proxy = proxy(&folder, layout, name);
    write(&folder.join("proxy.json"), serde_json::to_string_pretty(&proxy)?)?;
    let kubeconfig = folder.join("kubelet.kubeconfig");
    control::write_kubeconfig(state, layout, &ApiUser::Node(index), &kubeconfig)?;
    control::write_kubeconfig(state, layout, &ApiUser::Proxy, &folder.join("proxy.kubeconfig"))?;
    let node_ip =
        layout.family.order(addresses.node4.to_string(), addresses.node6.to_string()).join(",");
    let program = |name: &str, command: Vec<String>| NodeProgram {
        command,
        path: binaries.path(),
        log: state.log(NODES[index], name),
    };
    let kubernetes = |name: &str| binaries.kubernetes(name).display().to_string();
    Ok(vec![
        program(
            "containerd",
            vec![
                binaries.containerd.display().to_string(),
                format!("--config={}", file("containerd.toml")),
            ],
        ),
        program(
            "kubelet",
            vec![
                kubernetes("kubelet"),
                format!("--config={}", file("kubelet.json")),
                format!("--kubeconfig={}", file("kubelet.kubeconfig")),
                format!("--container-runtime-endpoint=unix://{SOCKET}"),
                format!("--hostname-override={name}"),
                format!("--node-ip={node_ip}"),
                // Until netpold enforces on the node (deploy/status.md).
                format!("--register-with-taints={TAINT}=:NoSchedule"),
            ],
        ),
        program(
            "kube-proxy",
            vec![kubernetes("kube-proxy"), format!("--config={}", file("proxy.json"))],
        ),
    ])
}

/// Returns containerd's configuration, with all paths in directories of the node's own.
fn containerd(folder: &Path, binaries: &ClusterBinaries) -> String {
    let runc = binaries.runc.display();
    let plugins = binaries.plugins.display();
    let cni = folder.join("cni");
    let cni = cni.display();
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{SOCKET}"

[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
# Nobody but the machine's root may lower a score.
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{cni}"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"#
    )
}

fn kubelet(folder: &Path, cgroup: &str, minor: u32) -> serde_json::Value {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        // The kubelet is unreachable from outside, and the API server has no client certificate for it.
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": false,
        // The disk is the machine's: its fill level must not cause evictions or image removal.
        "evictionHard": { "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%" },
        "imageGCHighThresholdPercent": 100,
        "resolvConf": folder.join("resolv.conf"),
        "makeIPTablesUtilChains": false,
    });
    if minor >= 31 {
        // Kubernetes 1.35 refuses cgroups of version 1 by default.
        config["failCgroupV1"] = false.into();
    }
    config
}

fn proxy(folder: &Path, layout: &ClusterLayout, name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": { "kubeconfig": folder.join("proxy.kubeconfig") },
        "hostnameOverride": name,
        "mode": match layout.proxy {
            ServiceProxy::Nftables => "nftables",
            ServiceProxy::Iptables => "iptables",
        },
        "clusterCIDR": network::pods(layout),
        // The machine's conntrack limits must not change.
        "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::kubelet;

    #[test]
    fn a_kubelet_gets_only_fields_that_it_knows() {
        let folder = Path::new("/node");
        assert!(kubelet(folder, "/cgroup", 30).get("failCgroupV1").is_none());
        assert_eq!(kubelet(folder, "/cgroup", 31)["failCgroupV1"], false);
    }
}
