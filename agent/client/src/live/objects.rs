//! One-time list of a cluster's objects, as far as RBAC allows.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use netpold_core::model::Change;
use netpold_core::printable::printable;
use netpold_kube::cluster::failure::Failure;
use netpold_kube::cluster::{KindListing, Lister, default_namespace};
use netpold_kube::convert::{DEFAULT_NAMESPACE, Kind};

use super::args::{ClusterArgs, SILENCE};
use super::runtime::block_on;
use crate::arguments::check_namespace;
use crate::offline::{self, Recursive, Reviewed};

/// All kinds, in list order: policies come after pods, so that no policy is older than the pods it selects.
const KINDS: [Kind; 7] = [
    Kind::Namespace,
    Kind::Node,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::Pod,
    Kind::NetworkPolicy,
    Kind::ClusterNetworkPolicy,
];

/// Returns the objects of a directory or of standard input, or else of the selected cluster, together with the pods of
/// all pod templates: the input of [`offline::stand_in`]. Manifests without a namespace belong to `namespace`, else to
/// `default`. Standard error gets the problems.
///
/// # Errors
/// Neither source is given, or it cannot be read, see [`objects`] and [`offline::review_directory`].
pub fn all_objects(
    manifests: Option<&Path>,
    depth: Recursive,
    cluster: &ClusterArgs,
    namespace: Option<&str>,
) -> Result<Reviewed> {
    match manifests {
        Some(directory) => {
            let namespace = namespace.unwrap_or(DEFAULT_NAMESPACE);
            let reviewed = offline::review_directory("--manifests", directory, namespace, depth)?;
            Ok(reviewed.reported_with_subdirectories())
        }
        None if cluster.is_requested() => {
            let objects = block_on(objects(cluster, namespace))?;
            Ok(Reviewed { objects, ..Reviewed::default() })
        }
        None => bail!(
            "no source of objects: give --manifests <DIR> for a directory, or --kubeconfig <FILE> or --context \
             <NAME> for a cluster; `kubectl netpold` uses kubectl's cluster"
        ),
    }
}

/// Returns the default namespace: the given one, else that of the cluster's context, else `default`.
///
/// # Errors
/// The name is not a valid namespace name, or the kubeconfig cannot be read.
pub fn namespace(
    manifests: Option<&Path>,
    cluster: &ClusterArgs,
    given: Option<&str>,
) -> Result<String> {
    let name = match given {
        Some(name) => name.to_owned(),
        None if manifests.is_none() && cluster.is_requested() => {
            block_on(async { Ok(default_namespace(&cluster.access(SILENCE)).await?) })?
        }
        None => DEFAULT_NAMESPACE.to_owned(),
    };
    check_namespace(&name)?;
    Ok(name)
}

/// Returns the objects of a cluster. A kind that RBAC forbids to list in all namespaces is listed in one namespace: the
/// given one, or the context's. Standard error gets a report of unknown objects and the effects.
///
/// # Errors
/// The cluster cannot be reached, or not even the pods and NetworkPolicies of one namespace may be listed.
pub async fn objects(args: &ClusterArgs, namespace: Option<&str>) -> Result<Vec<Change>> {
    let lister = Lister::open(args.access(SILENCE)).await?;
    let namespace = match namespace {
        Some(name) => name.to_owned(),
        None => lister.client().default_namespace().to_owned(),
    };
    check_namespace(&namespace)?;
    let mut seen = ObjectReader {
        lister,
        namespace,
        objects: Vec::new(),
        partly: Vec::new(),
        warnings: Vec::new(),
    };
    for kind in KINDS {
        seen.read_kind(kind).await?;
    }
    let (objects, warnings) = seen.into_parts();
    for warning in warnings {
        anstream::eprintln!("netpold: {}", printable(&warning));
    }
    Ok(objects)
}

/// Objects and warnings collected so far.
struct ObjectReader {
    lister: Lister,
    /// Namespace to list where all namespaces may not be listed.
    namespace: String,
    objects: Vec<Change>,
    /// Kinds listed in this namespace only.
    partly: Vec<String>,
    warnings: Vec<String>,
}

impl ObjectReader {
    async fn read_kind(&mut self, kind: Kind) -> Result<()> {
        let all = self.lister.list(kind, None).await;
        let Err(Failure::Forbidden(words)) = all else { return self.add(kind, all) };
        let own = match kind {
            Kind::Pod | Kind::NetworkPolicy | Kind::Service | Kind::EndpointSlice => {
                self.lister.list(kind, Some(&self.namespace)).await
            }
            Kind::Namespace => self.lister.namespace(&self.namespace).await,
            Kind::Node | Kind::ClusterNetworkPolicy => Err(Failure::Forbidden(words)),
        };
        if own.is_ok() {
            self.partly.push(Lister::name(kind));
        }
        match (own, effect(kind)) {
            (Err(Failure::Forbidden(words)), Some(effect)) => {
                self.warnings.push(format!("{words}; {effect}"));
                Ok(())
            }
            (Err(Failure::Forbidden(words)), None) => Err(anyhow!(
                "{}; no answer is possible without them (deploy/access.yaml grants access; -n names another \
                 namespace)",
                printable(&words)
            )),
            (own, _) => self.add(kind, own),
        }
    }

    fn add(&mut self, kind: Kind, listed: Result<KindListing, Failure>) -> Result<()> {
        let name = Lister::name(kind);
        let listed = listed.map_err(|failure| {
            let text = failure.text(&format!("list {name}"), self.lister.server());
            anyhow!(printable(&text).into_owned())
        })?;
        self.objects.extend(listed.objects);
        self.warnings.extend(listed.problems);
        if let (false, Some(effect)) = (listed.served, effect(kind))
            && kind != Kind::ClusterNetworkPolicy
        {
            let server = self.lister.server();
            self.warnings.push(format!(
                "{server} does not serve {name} in the version that netpold reads; {effect}"
            ));
        }
        Ok(())
    }

    fn into_parts(mut self) -> (Vec<Change>, Vec<String>) {
        if !self.partly.is_empty() {
            let (namespace, kinds) = (&self.namespace, self.partly.join(", "));
            self.warnings.insert(
                0,
                format!(
                    "{kinds} are known in namespace {namespace} only (list in all namespaces is not allowed); \
                     addresses of pods elsewhere count as outside the cluster"
                ),
            );
        }
        (self.objects, self.warnings)
    }
}

/// Returns the effect on answers if objects of a kind cannot be read; `None` if no answer is possible.
const fn effect(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Pod | Kind::NetworkPolicy => None,
        Kind::Namespace => {
            Some("namespaceSelectors match no label but kubernetes.io/metadata.name")
        }
        Kind::Node => Some("addresses of nodes count as outside the cluster"),
        Kind::Service => Some("Services are not known"),
        Kind::EndpointSlice => Some("Services count as without backends"),
        Kind::ClusterNetworkPolicy => {
            Some("ClusterNetworkPolicies precede NetworkPolicies, so verdicts may differ")
        }
    }
}
