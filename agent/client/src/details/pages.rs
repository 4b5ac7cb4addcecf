//! Details of a cluster's objects, from pages of the API server's lists.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1 as api;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::fields::Details;
use super::foreign_kinds::{FOREIGN_KINDS, ForeignKind};
use super::manifest::{FileLine, PolicyManifest, RawPolicySpec};
use super::pod::key;
use super::shapes::{RawList, RawMetadata, RawNamedObject, RawObject, RawServiceCaller};

/// List of the API server.
#[derive(Clone, Copy, Debug)]
pub(super) struct DetailList {
    /// Path of the list.
    pub(super) path: &'static str,
    /// Information that is missing without the list.
    pub(super) effect: &'static str,
    kind: &'static str,
    /// Whether explanations use these objects.
    pub(super) is_for_explain: bool,
}

const fn page(
    path: &'static str,
    effect: &'static str,
    kind: &'static str,
    is_for_explain: bool,
) -> DetailList {
    DetailList { path, effect, kind, is_for_explain }
}

/// Lists to read. Jobs and other workloads come last: a user may lack rights on them.
pub(super) const PAGES: [DetailList; 13] = [
    page("/api/v1/pods", "containers", "Pod", false),
    page("/api/v1/services", "targetPorts", "Service", true),
    page("/api/v1/nodes", "addresses of tunnels", "Node", true),
    page("/api/v1/namespaces", "meshes of namespaces", "Namespace", false),
    page(
        "/apis/networking.k8s.io/v1/networkpolicies",
        "policies as written",
        "NetworkPolicy",
        true,
    ),
    page("/apis/apps/v1/daemonsets", "other enforcers", "DaemonSet", false),
    page("/apis/apps/v1/deployments", WORKLOADS, "Deployment", false),
    page("/apis/apps/v1/statefulsets", WORKLOADS, "StatefulSet", false),
    page("/apis/batch/v1/jobs", WORKLOADS, "Job", false),
    page("/apis/batch/v1/cronjobs", WORKLOADS, "CronJob", false),
    page(
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        CALLED,
        "ValidatingWebhookConfiguration",
        false,
    ),
    page(
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
        CALLED,
        "MutatingWebhookConfiguration",
        false,
    ),
    page("/apis/apiregistration.k8s.io/v1/apiservices", CALLED, "APIService", false),
];
const CALLED: &str = "Services that the API server calls";
const WORKLOADS: &str = "workloads without pods";

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListedPolicy {
    metadata: RawMetadata,
    spec: RawPolicySpec,
}

/// Response of `/apis`.
#[derive(Deserialize)]
struct ApiGroups {
    groups: Vec<ApiGroup>,
}

#[derive(Deserialize)]
struct ApiGroup {
    name: String,
    versions: Vec<ApiGroupVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiGroupVersion {
    group_version: String,
}

/// Response of `/apis/GROUP/VERSION`.
#[derive(Deserialize)]
struct ApiResources {
    resources: Vec<ApiResource>,
}

#[derive(Deserialize)]
struct ApiResource {
    name: String,
}

impl Details {
    /// Adds a page of a list. Returns the token of the next page.
    ///
    /// # Errors
    /// The page is no list of that kind.
    pub(super) fn add_page(&mut self, page: DetailList, json: &str) -> Result<Option<String>> {
        match page.kind {
            "Service" => each(json, |service: api::Service| self.add_service(service)),
            "NetworkPolicy" => each(json, |policy: ListedPolicy| {
                let manifest = PolicyManifest::new(policy.spec, None);
                self.policies.insert(key(&policy.metadata), manifest);
            }),
            "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" | "APIService" => {
                each(json, |caller: RawServiceCaller| self.add_caller(page.kind, caller, None))
            }
            kind => each(json, |object: RawObject| self.add_plain_object(kind, object)),
        }
    }

    /// Adds a page of policies of another API. Returns the token of the next page.
    ///
    /// # Errors
    /// The page is no list.
    pub(super) fn add_foreign_page(
        &mut self,
        kind: &'static ForeignKind,
        json: &str,
    ) -> Result<Option<String>> {
        each(json, |object: RawNamedObject| self.add_foreign(kind, &object.metadata, None))
    }

    pub(super) fn add_foreign(
        &mut self,
        kind: &'static ForeignKind,
        metadata: &RawMetadata,
        source: Option<FileLine>,
    ) {
        let namespace = kind.namespaced.then(|| key(metadata).namespace);
        self.foreign.entry(kind).or_default().add(namespace, metadata.name.clone(), source);
    }
}

fn each<T: DeserializeOwned>(json: &str, take: impl FnMut(T)) -> Result<Option<String>> {
    let list: RawList<T> = serde_json::from_str(json).context("cannot parse the list")?;
    list.items.into_iter().flatten().for_each(take);
    Ok(list.metadata.next)
}

/// Returns the paths of the versions of groups with policies of other APIs; the preferred version of a group comes
/// first.
///
/// # Errors
/// The text is no response of `/apis`.
pub(super) fn foreign_groups(json: &str) -> Result<Vec<String>> {
    let groups: ApiGroups = serde_json::from_str(json).context("cannot parse /apis")?;
    let known: BTreeSet<&str> = FOREIGN_KINDS.iter().map(|kind| kind.group).collect();
    let groups = groups.groups.into_iter().filter(|group| known.contains(group.name.as_str()));
    let versions = groups.flat_map(|group| group.versions);
    Ok(versions.map(|version| format!("/apis/{}", version.group_version)).collect())
}

/// Returns the lists of policies of other APIs in a group's version, with their paths.
///
/// # Errors
/// The text is no response of `/apis/GROUP/VERSION`.
pub(super) fn foreign_lists(path: &str, json: &str) -> Result<Vec<(&'static ForeignKind, String)>> {
    let has: ApiResources =
        serde_json::from_str(json).with_context(|| format!("cannot parse {path}"))?;
    let group = path.trim_start_matches("/apis/").split('/').next().unwrap_or_default();
    let kinds = FOREIGN_KINDS.iter().filter(|kind| kind.group == group);
    let served = kinds.filter(|kind| has.resources.iter().any(|it| it.name == kind.plural));
    Ok(served.map(|kind| (kind, format!("{path}/{}", kind.plural))).collect())
}
