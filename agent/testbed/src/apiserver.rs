//! A real Kubernetes API server with its etcd, as processes, for tests.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use netpold_testbed::ApiServer;
//!
//! let server = ApiServer::start()?;
//! server.kubectl(&["create", "namespace", "shop"])?;
//! server.apply("{apiVersion: v1, kind: Namespace, metadata: {name: bank}}")?;
//! let kubeconfig = server.admin();
//! # Ok(())
//! # }
//! ```
//!
//! There are no controllers, scheduler or kubelets; a test does their work itself or does without it (service accounts
//! have no token Secrets, but [`ApiServer::token`] makes a token). RBAC authorizes requests, and an audit log records
//! each, see [`ApiServer::requests`].

mod access;
mod audit;
mod binaries;
mod etcd;
mod kubectl;
mod meter;
mod objects;
mod process;
mod proxy;
mod server;

pub use self::access::Credential;
pub use self::audit::{AUDIT_POLICY, Request, read_requests};
pub use self::binaries::{
    CACHED, KUBECTL_CACHED, KubeBinaries, KubectlBinary, VERSION, require_apiserver,
};
pub use self::kubectl::ask_kubectl;
pub use self::meter::{Meter, Passed};
pub use self::server::ApiServer;
