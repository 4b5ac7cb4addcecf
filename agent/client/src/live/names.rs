//! Names of objects, without the objects.

use std::fmt::Debug;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::{ListParams, PartialObjectMeta};
use kube::config::Kubeconfig;
use kube::core::{NamespaceResourceScope, Resource};
use kube::{Api, Client};
use netpold_kube::cluster::{self, PAGE};
use serde::de::DeserializeOwned;

use super::args::{ClusterArgs, SILENCE};

/// Kinds of objects to list by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedKind {
    /// Pods.
    Pod,
    /// Services.
    Service,
}

/// Source of names. Objects that cannot be listed yield no names.
pub struct NameLister {
    client: Client,
    namespace: String,
}

impl NameLister {
    /// Connects to the API server; an absent `namespace` is the context's.
    ///
    /// # Errors
    /// There is no cluster to connect to, or the credentials are not accepted.
    pub async fn open(args: &ClusterArgs, namespace: Option<&str>) -> Result<Self> {
        let client = cluster::client(&args.access(SILENCE)).await?;
        let namespace = namespace.unwrap_or_else(|| client.default_namespace()).to_owned();
        Ok(Self { client, namespace })
    }

    /// Returns the contexts of the kubeconfig.
    #[must_use]
    pub fn contexts(args: &ClusterArgs) -> Vec<String> {
        let read = match &args.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let contexts = read.map(|file| file.contexts).unwrap_or_default();
        contexts.into_iter().map(|context| context.name).collect()
    }

    /// Returns all namespaces; if they may not be listed, only the namespace of [`NameLister::open`].
    pub async fn namespaces(&self) -> Vec<String> {
        match list(&Api::<Namespace>::all(self.client.clone())).await {
            names if names.is_empty() => vec![self.namespace.clone()],
            names => names,
        }
    }

    /// Returns the objects of a kind in a namespace; the default is the namespace of [`NameLister::open`].
    pub async fn list(&self, kind: ListedKind, namespace: Option<&str>) -> Vec<String> {
        let namespace = namespace.unwrap_or(&self.namespace);
        match kind {
            ListedKind::Pod => list(&self.api::<Pod>(namespace)).await,
            ListedKind::Service => list(&self.api::<Service>(namespace)).await,
        }
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}

async fn list<K: Clone + Debug + DeserializeOwned>(api: &Api<K>) -> Vec<String> {
    let listed = api.list_metadata(&ListParams::default().limit(PAGE)).await;
    let items = listed.map(|list| list.items).unwrap_or_default();
    let names = items.into_iter().filter_map(|item: PartialObjectMeta<K>| item.metadata.name);
    // Characters that Kubernetes allows in names; none of them is special to a shell.
    let is_name = |name: &String| {
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
    };
    names.filter(is_name).collect()
}
