//! The API server and its etcd, as processes.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use super::audit::{AUDIT_POLICY, Request, read_requests};
use super::binaries::KubeBinaries;
use super::etcd::Etcd;
use super::process::{INTERVAL, PATIENCE, Process};
use super::proxy::KubectlProxy;
use crate::netns::Netns;
use crate::node::TestNode;

/// Token of the administrator.
pub(super) const ADMIN_TOKEN: &str = "admin-of-a-test";

/// An API server and its etcd. Dropping it kills both and removes their directory.
#[derive(Debug)]
pub struct ApiServer {
    proxy: OnceLock<KubectlProxy>,
    // Dropped before etcd: without etcd the server only logs errors.
    server: Process,
    etcd: Etcd,
    port: u16,
    address: Ipv4Addr,
    pub(super) netns: Option<Arc<Netns>>,
    binaries: KubeBinaries,
    directory: Directory,
}

impl ApiServer {
    /// Starts a server on this machine's loopback, at free ports.
    ///
    /// # Errors
    /// When the binaries are missing (see [`require_apiserver`](super::require_apiserver)) or do not start.
    pub fn start() -> Result<Self> {
        let ports = [free_port()?, free_port()?, free_port()?];
        Self::start_at(None, Ipv4Addr::LOCALHOST, ports)
    }

    /// Starts a server inside a node; agents on linked nodes reach it at the node's address.
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    pub fn start_on(node: &TestNode) -> Result<Self> {
        let IpAddr::V4(address) = node.addresses()[0] else { bail!("a node without IPv4") };
        Self::start_at(Some(Arc::clone(node.netns())), address, [6443, 2379, 2380])
    }

    fn start_at(
        netns: Option<Arc<Netns>>,
        address: Ipv4Addr,
        [port, client, peer]: [u16; 3],
    ) -> Result<Self> {
        let binaries = KubeBinaries::find()?;
        let directory = Directory::make()?;
        let admin = format!("{ADMIN_TOKEN},admin,admin,\"system:masters\"\n");
        fs::write(directory.0.join("tokens"), admin)?;
        fs::write(directory.0.join("audit-policy"), AUDIT_POLICY)?;
        let etcd =
            Etcd::start(&binaries.etcd, netns.clone(), directory.0.join("etcd"), (client, peer))?;
        let server = Process::new(
            &binaries.apiserver,
            netns.clone(),
            arguments(&directory.0, address, port, client, netns.is_some()),
            directory.0.join("kube-apiserver.log"),
        )?;
        let proxy = OnceLock::new();
        let mut server = Self { proxy, server, etcd, port, address, netns, binaries, directory };
        server.wait_ready()?;
        Ok(server)
    }

    /// Directory of the server's files, also for files of a test.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory.0
    }

    /// `https://ADDRESS:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}:{}", self.address, self.port)
    }

    /// Address of the server.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        IpAddr::V4(self.address)
    }

    /// Port of the server.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Paths of the binaries in use.
    #[must_use]
    pub const fn binaries(&self) -> &KubeBinaries {
        &self.binaries
    }

    /// The process id of the API server.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Log of the API server.
    #[must_use]
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// All requests of a user so far, or of all users if `user` is empty.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn requests(&self, user: &str) -> Result<Vec<Request>> {
        let requests = read_requests(&self.directory().join("audit.log"))?;
        Ok(requests.into_iter().filter(|request| [&request.user, ""].contains(&user)).collect())
    }

    /// Kills the API server (SIGKILL) or ends it gracefully (SIGTERM), and waits for its end.
    pub fn end(&mut self, signal: Signal) {
        self.server.end(signal);
    }

    /// Starts the server again, with the same data, certificate and port, and waits until it answers.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn restart(&mut self) -> Result<()> {
        self.server.restart()?;
        self.wait_ready()
    }

    /// Pauses the server (SIGSTOP): connections stay, but get no answers.
    pub fn freeze(&self) {
        self.server.signal(Signal::SIGSTOP);
    }

    /// Resumes the server (SIGCONT).
    pub fn thaw(&self) {
        self.server.signal(Signal::SIGCONT);
    }

    /// The etcd of the API server.
    pub fn etcd(&mut self) -> &mut Etcd {
        &mut self.etcd
    }

    /// Runs a closure in the network namespace of the server's loopback.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T> {
        match &self.netns {
            Some(netns) => netns.run(body),
            None => Ok(body()),
        }
    }

    /// Waits until the server reports to be ready.
    ///
    /// # Errors
    /// When the server ends or the time is over, with the end of its log.
    pub fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.listens()? && self.is_ready() {
                return Ok(());
            }
            self.server.still_runs()?;
            if Instant::now() > deadline || crate::interrupted() {
                bail!("kube-apiserver is not ready after {PATIENCE:?}:\n{}", self.server.log_end());
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Whether the server accepts connections; by then it has its certificate.
    fn listens(&self) -> Result<bool> {
        self.inside(|| TcpStream::connect((self.address, self.port)).is_ok())
    }

    fn is_ready(&self) -> bool {
        let ready = (("GET", "/readyz"), ("", ""), Duration::from_secs(5));
        let answer = self.proxy().and_then(|proxy| proxy.ask(ready.0, ready.1, ready.2));
        answer.is_ok_and(|(code, _)| code == 200)
    }

    /// The running `kubectl proxy`, started at the first request.
    pub(super) fn proxy(&self) -> Result<&KubectlProxy> {
        if self.proxy.get().is_none() {
            self.write_admin()?;
            let proxy =
                KubectlProxy::start(&self.binaries.kubectl, self.netns.clone(), self.directory())?;
            let _ = self.proxy.set(proxy);
        }
        self.proxy.get().context("no proxy")
    }
}

fn arguments(
    directory: &Path,
    address: Ipv4Addr,
    port: u16,
    etcd: u16,
    everywhere: bool,
) -> Vec<String> {
    let file = |name: &str| directory.join(name).display().to_string();
    let bind = if everywhere { Ipv4Addr::UNSPECIFIED } else { address };
    // The key of the certificate that the server generates also signs the service accounts' tokens.
    let key = file("certs/apiserver.key");
    vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        format!("--bind-address={bind}"),
        format!("--advertise-address={address}"),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", file("certs")),
        format!("--token-auth-file={}", file("tokens")),
        "--authorization-mode=RBAC".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-signing-key-file={key}"),
        format!("--service-account-key-file={key}"),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        // The plugin would refuse pods, since no controller makes the service account `default`.
        "--disable-admission-plugins=ServiceAccount".into(),
        "--allow-privileged=true".into(),
        "--endpoint-reconciler-type=none".into(),
        format!("--audit-log-path={}", file("audit.log")),
        format!("--audit-policy-file={}", file("audit-policy")),
        "--audit-log-mode=blocking".into(),
    ]
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

/// A directory of this process, swept like those of agents.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    fn make() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("np-{}-{number}-apiserver", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
