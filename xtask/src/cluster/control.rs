//! Control plane on the first node: etcd, API server, controllers and scheduler.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use netpold_testbed::apiserver::AUDIT_POLICY;
use serde_json::json;

use super::audit;
use super::binaries::ClusterBinaries;
use super::common::write;
use super::init::NodeProgram;
use super::layout::ClusterLayout;
use super::network::{self, NodeNetworks};
use super::state::{ClusterFolder, NODES};

const PORT: u16 = 6443;

/// User of the API server, authenticated by token.
#[derive(Clone, Copy)]
pub(super) enum ApiUser {
    Admin,
    Controllers,
    Scheduler,
    Proxy,
    Node(usize),
}

impl ApiUser {
    fn all() -> Vec<Self> {
        let nodes = (0..NODES.len()).map(Self::Node);
        [Self::Admin, Self::Controllers, Self::Scheduler, Self::Proxy]
            .into_iter()
            .chain(nodes)
            .collect()
    }

    /// Returns the user name, as in the API server's default roles.
    fn name(self) -> String {
        match self {
            Self::Admin => "admin".into(),
            Self::Controllers => "system:kube-controller-manager".into(),
            Self::Scheduler => "system:kube-scheduler".into(),
            Self::Proxy => "system:kube-proxy".into(),
            Self::Node(index) => format!("system:node:{}", NODES[index]),
        }
    }

    fn group(self) -> &'static str {
        match self {
            Self::Admin => "system:masters",
            Self::Controllers | Self::Scheduler | Self::Proxy => "",
            Self::Node(_) => "system:nodes",
        }
    }
}

/// Files and programs of a control plane.
pub(super) struct ControlPlane<'a> {
    state: &'a ClusterFolder,
    binaries: &'a ClusterBinaries,
    layout: &'a ClusterLayout,
}

/// Writes the tokens, the audit policy and the kubeconfigs.
///
/// # Errors
/// A file cannot be written.
pub(super) fn prepare<'a>(
    state: &'a ClusterFolder,
    binaries: &'a ClusterBinaries,
    layout: &'a ClusterLayout,
) -> Result<ControlPlane<'a>> {
    let control = ControlPlane { state, binaries, layout };
    let mut tokens = String::new();
    for user in ApiUser::all() {
        let name = user.name();
        tokens += &format!("{},{name},{name},\"{}\"\n", token()?, user.group());
    }
    write(&control.path("tokens"), tokens)?;
    write(&control.path("audit-policy"), AUDIT_POLICY)?;
    for user in [ApiUser::Admin, ApiUser::Controllers, ApiUser::Scheduler] {
        let path = control.path(&format!("{}.kubeconfig", user.name()));
        write_kubeconfig(state, layout, &user, &path)?;
    }
    Ok(control)
}

/// Returns the path of the administrator's kubeconfig.
pub(super) fn admin(state: &ClusterFolder) -> PathBuf {
    state.path("control/admin.kubeconfig")
}

impl ControlPlane<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.state.path("control").join(name)
    }

    /// Returns the programs for the first node's init.
    pub(super) fn programs(&self) -> Vec<NodeProgram> {
        let file = |name: &str| self.path(name).display().to_string();
        let client = "http://127.0.0.1:2379";
        let peer = "http://127.0.0.1:2380";
        let address = NodeNetworks::of(0).first(self.layout.family);
        // The server generates a certificate; its key also signs the tokens of service accounts.
        let key = file("certs/apiserver.key");
        let etcd = vec![
            format!("--data-dir={}", file("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            // The data do not outlive the cluster.
            "--unsafe-no-fsync".into(),
        ];
        let server = vec![
            format!("--etcd-servers={client}"),
            format!("--bind-address={}", self.layout.family.first("0.0.0.0", "::")),
            format!("--advertise-address={address}"),
            format!("--secure-port={PORT}"),
            format!("--cert-dir={}", file("certs")),
            format!("--token-auth-file={}", file("tokens")),
            "--authorization-mode=Node,RBAC".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-account-signing-key-file={key}"),
            format!("--service-account-key-file={key}"),
            format!("--service-cluster-ip-range={}", network::services(self.layout)),
            "--kubelet-preferred-address-types=InternalIP".into(),
            "--allow-privileged=true".into(),
            format!("--audit-policy-file={}", file("audit-policy")),
            format!("--audit-log-path={}", audit::log(self.state).display()),
        ];
        let kubeconfig = |user: ApiUser| {
            format!("--kubeconfig={}", file(&format!("{}.kubeconfig", user.name())))
        };
        let controllers = vec![
            kubeconfig(ApiUser::Controllers),
            "--leader-elect=false".into(),
            "--bind-address=127.0.0.1".into(),
            // The API server grants each controller its own permissions, and only few to their common user.
            "--use-service-account-credentials=true".into(),
            format!("--service-account-private-key-file={key}"),
            format!("--root-ca-file={}", file("certs/apiserver.crt")),
        ];
        let scheduler = vec![
            kubeconfig(ApiUser::Scheduler),
            "--leader-elect=false".into(),
            "--bind-address=127.0.0.1".into(),
        ];
        let kubernetes = |name: &str| self.binaries.kubernetes(name);
        vec![
            self.program("etcd", &self.binaries.etcd, etcd),
            self.program("kube-apiserver", &kubernetes("kube-apiserver"), server),
            self.program(
                "kube-controller-manager",
                &kubernetes("kube-controller-manager"),
                controllers,
            ),
            self.program("kube-scheduler", &kubernetes("kube-scheduler"), scheduler),
        ]
    }

    fn program(&self, name: &str, binary: &Path, arguments: Vec<String>) -> NodeProgram {
        let command = std::iter::once(binary.display().to_string()).chain(arguments).collect();
        NodeProgram { command, path: self.binaries.path(), log: self.state.log(NODES[0], name) }
    }
}

/// Writes a kubeconfig for a user in the token file.
///
/// # Errors
/// The token is missing, or the file cannot be written.
pub(super) fn write_kubeconfig(
    state: &ClusterFolder,
    layout: &ClusterLayout,
    user: &ApiUser,
    path: &Path,
) -> Result<()> {
    let tokens = std::fs::read_to_string(state.path("control/tokens")).context("no tokens")?;
    let name = user.name();
    let token = tokens
        .lines()
        .filter_map(|line| line.split_once(','))
        .find_map(|(token, rest)| (rest.split(',').next() == Some(name.as_str())).then_some(token));
    let token = token.with_context(|| format!("no token of {name}"))?;
    let server = SocketAddr::new(NodeNetworks::of(0).first(layout.family), PORT);
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "cluster", "cluster": {
            "server": format!("https://{server}"),
            "certificate-authority": state.path("control/certs/apiserver.crt"),
        } }],
        "users": [{ "name": name, "user": { "token": token } }],
        "contexts": [{ "name": "cluster", "context": { "cluster": "cluster", "user": name } }],
        "current-context": "cluster",
    });
    write(path, serde_json::to_string_pretty(&config)?)
}

/// Returns 128 random bits in hexadecimal.
fn token() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut bytes))
        .context("/dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
