//! Connection to the API server: its address, the agent's credentials, and errors of either.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use netpold_core::lock::lock;
use thiserror::Error;

/// Shortest time between two renewals of a connection.
const RENEWAL: Duration = Duration::from_secs(1);
/// Longest time for connecting, TLS included.
const CONNECT: Duration = Duration::from_secs(10);

/// Error of a configuration with which no API server can be reached.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The agent runs outside of a pod and has no kubeconfig.
    #[error(
        "not in a cluster ({0}): name a kubeconfig with --kubeconfig, or a directory of objects \
         with --manifests"
    )]
    NotInCluster(String),
    /// The kubeconfig cannot be read.
    #[error("--kubeconfig {}: {error}", .path.display())]
    Unreadable {
        /// Path from the flag.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The file is not a valid kubeconfig.
    #[error("--kubeconfig {}: {reason}", .path.display())]
    Kubeconfig {
        /// Path from the flag.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// The kubeconfig has no such context.
    #[error(
        "--context {context}: not found in {}; known contexts: {}", .path.display(),
        if .known.is_empty() { "none".to_owned() } else { .known.join(", ") }
    )]
    Context {
        /// Context from the flag.
        context: String,
        /// Path from the flag.
        path: PathBuf,
        /// Contexts of the kubeconfig.
        known: Vec<String>,
    },
    /// The certificates or credentials are unusable.
    #[error("cannot use the API server's certificate authority or the credentials: {0}")]
    Credentials(String),
}

/// Access to the API server.
#[derive(Clone, Debug)]
pub struct Access {
    /// Kubeconfig; without one, the service account that the kubelet mounts into each pod.
    pub kubeconfig: Option<PathBuf>,
    /// Whether kubectl's own kubeconfig, if there is one, takes precedence when `kubeconfig` is absent.
    pub as_kubectl: bool,
    /// Context other than the current one.
    pub context: Option<String>,
    /// Time without any data after which the API server counts as gone.
    pub timeout: Duration,
}

/// A client that can be renewed.
pub struct Connection {
    access: Access,
    server: String,
    current: Mutex<(Client, Instant)>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) async fn open(access: Access) -> Result<Self, ConnectError> {
        let (client, server) = connect(&access).await?;
        let current = Mutex::new((client, Instant::now()));
        Ok(Self { access, server, current })
    }

    /// Returns the server's address, in the form `https://address:port`.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Returns [`Access::timeout`].
    pub(crate) const fn timeout(&self) -> Duration {
        self.access.timeout
    }

    /// Returns the current client.
    #[must_use]
    pub fn client(&self) -> Client {
        lock(&self.current).0.clone()
    }

    /// Reads configuration and credentials again: tokens and certificate authorities are rotated. If that fails, the
    /// last good ones stay.
    pub async fn renew(&self) {
        let last = lock(&self.current).1;
        if last.elapsed() < RENEWAL {
            return;
        }
        let made = connect(&self.access).await;
        let mut current = lock(&self.current);
        current.1 = Instant::now();
        match made {
            Ok((client, _)) => current.0 = client,
            Err(error) => {
                tracing::warn!(%error, "cannot reload the configuration; the former one stays");
            }
        }
    }
}

/// Creates a client of the API server. The client rereads a token file; other credentials stay as they are.
///
/// # Errors
/// No API server is configured, or the credentials are unusable.
pub async fn client(access: &Access) -> Result<Client, ConnectError> {
    Ok(connect(access).await?.0)
}

/// Returns the namespace of the context, or `default`, without interactive login.
///
/// # Errors
/// No API server is configured.
pub async fn default_namespace(access: &Access) -> Result<String, ConnectError> {
    Ok(configuration(access).await?.default_namespace)
}

/// Returns whether an API server is configured: by a kubeconfig, also one that cannot be read, or by a pod's environment.
#[must_use]
pub fn is_configured(access: &Access) -> bool {
    let has_file = access.kubeconfig.is_some()
        || access.context.is_some()
        || access.as_kubectl && !matches!(users_kubeconfig(), Ok(None));
    has_file || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

async fn configuration(access: &Access) -> Result<Config, ConnectError> {
    let found = match &access.kubeconfig {
        Some(path) => Some((path.clone(), read(path)?)),
        None if access.as_kubectl => users_kubeconfig()?,
        None => None,
    };
    match found {
        Some((path, file)) => from_kubeconfig(&path, file, access.context.as_deref()).await,
        None => Config::incluster_env().map_err(not_in_cluster),
    }
}

async fn connect(access: &Access) -> Result<(Client, String), ConnectError> {
    let mut config = configuration(access).await?;
    config.connect_timeout = Some(CONNECT.min(access.timeout));
    config.read_timeout = Some(access.timeout);
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let client =
        Client::try_from(config).map_err(|error| ConnectError::Credentials(error.to_string()))?;
    Ok((client, server))
}

fn not_in_cluster(error: InClusterError) -> ConnectError {
    let variables = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set";
    let is_absent = matches!(error, InClusterError::ReadEnvironmentVariable(_));
    ConnectError::NotInCluster(if is_absent { variables.to_owned() } else { error.to_string() })
}

/// Reads kubectl's kubeconfig: the files of `KUBECONFIG`, else `~/.kube/config`.
fn users_kubeconfig() -> Result<Option<(PathBuf, Kubeconfig)>, ConnectError> {
    let variable = PathBuf::from("$KUBECONFIG");
    let named = Kubeconfig::from_env().map_err(|error| of_kubeconfig(&variable, error))?;
    if let Some(file) = named {
        return Ok(Some((variable, file)));
    }
    let home = std::env::home_dir().map(|home| home.join(".kube/config"));
    let home = home.filter(|path| path.exists());
    home.map(|path| read(&path).map(|file| (path, file))).transpose()
}

fn read(path: &Path) -> Result<Kubeconfig, ConnectError> {
    Kubeconfig::read_from(path).map_err(|error| of_kubeconfig(path, error))
}

async fn from_kubeconfig(
    path: &Path,
    file: Kubeconfig,
    context: Option<&str>,
) -> Result<Config, ConnectError> {
    let at = |error| of_kubeconfig(path, error);
    if let Some(context) = context {
        let known: Vec<String> = file.contexts.iter().map(|c| c.name.clone()).collect();
        if !known.iter().any(|name| name == context) {
            let (context, path) = (context.to_owned(), path.to_owned());
            return Err(ConnectError::Context { context, path, known });
        }
    }
    let options =
        KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(file, &options).await.map_err(at)
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "an enum of another crate, open to further variants"
)]
fn of_kubeconfig(path: &Path, error: KubeconfigError) -> ConnectError {
    let path = path.to_owned();
    match error {
        // The variable may list several files: name the one with the error.
        KubeconfigError::ReadConfig(error, path) => ConnectError::Unreadable { path, error },
        KubeconfigError::CurrentContextNotSet => ConnectError::Kubeconfig {
            path,
            reason: "it has no current-context: choose one with --context".into(),
        },
        error => ConnectError::Kubeconfig { path, reason: error.to_string() },
    }
}
