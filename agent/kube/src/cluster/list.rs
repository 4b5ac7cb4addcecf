//! All objects of a kind, listed once: for commands that answer and exit, and for the first list of a follower.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use kube::api::ListParams;
use kube::core::{Request, Resource};
use netpold_core::model::Change;

use super::answer::ResponseStream;
use super::connection::{Access, ConnectError, Connection};
use super::failure::Failure;
use super::kind::{Absence, ClusterNetworkPolicy, WatchedKind, kind_name};
use super::split::ResponsePart;
use super::store::Store;
use crate::convert::{self, Read};

/// Objects per page, as in kubectl and client-go.
pub const PAGE: u32 = 500;
/// Number of attempts at a list if history is compacted before its last page.
const ATTEMPTS: usize = 3;

/// Result of listing a kind.
#[derive(Debug, Default)]
pub struct KindListing {
    /// The objects.
    pub objects: Vec<Change>,
    /// Problems with the objects; if there are many, some of them.
    pub problems: Vec<String>,
    /// Whether the server serves the kind.
    pub served: bool,
}

/// Lists kinds once.
#[derive(Debug)]
pub struct Lister {
    connection: Connection,
}

impl Lister {
    /// Connects to the API server.
    ///
    /// # Errors
    /// No API server is configured, or the credentials are unusable.
    pub async fn open(access: Access) -> Result<Self, ConnectError> {
        Ok(Self { connection: Connection::open(access).await? })
    }

    /// Returns the client of the connection.
    #[must_use]
    pub fn client(&self) -> Client {
        self.connection.client()
    }

    /// Returns the server's address, in the form `https://address:port`.
    #[must_use]
    pub fn server(&self) -> &str {
        self.connection.server()
    }

    /// Lists all objects, or those of a namespace. An optional kind that the server does not serve is empty.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn list(
        &self,
        kind: convert::Kind,
        namespace: Option<&str>,
    ) -> Result<KindListing, Failure> {
        match kind {
            convert::Kind::Namespace => self.list_all::<Namespace>(None).await,
            convert::Kind::Node => self.list_all::<Node>(None).await,
            convert::Kind::Pod => self.list_all::<Pod>(namespace).await,
            convert::Kind::Service => self.list_all::<Service>(namespace).await,
            convert::Kind::EndpointSlice => self.list_all::<EndpointSlice>(namespace).await,
            convert::Kind::NetworkPolicy => self.list_all::<NetworkPolicy>(namespace).await,
            convert::Kind::ClusterNetworkPolicy => {
                self.list_all::<ClusterNetworkPolicy>(None).await
            }
        }
    }

    /// Reads one namespace by name, which may be allowed if listing namespaces is not.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn namespace(&self, name: &str) -> Result<KindListing, Failure> {
        let request = Request::new(Namespace::url_path(&(), None));
        let request = request.get(name, &kube::api::GetParams::default());
        let request =
            request.map_err(|error| Failure::from_error(kube::Error::BuildRequest(error)))?;
        let text = self.client().request_text(request).await.map_err(Failure::from_error)?;
        let mut store = Store::<Namespace>::new();
        let objects = store.update(&convert::read(convert::Kind::Namespace, text.as_bytes(), true));
        Ok(listed(&mut store, objects.into_iter().collect()))
    }

    /// Returns the name of a kind in RBAC, such as `networkpolicies.networking.k8s.io`.
    #[must_use]
    pub fn name(kind: convert::Kind) -> String {
        match kind {
            convert::Kind::Namespace => kind_name::<Namespace>(),
            convert::Kind::Node => kind_name::<Node>(),
            convert::Kind::Pod => kind_name::<Pod>(),
            convert::Kind::Service => kind_name::<Service>(),
            convert::Kind::EndpointSlice => kind_name::<EndpointSlice>(),
            convert::Kind::NetworkPolicy => kind_name::<NetworkPolicy>(),
            convert::Kind::ClusterNetworkPolicy => kind_name::<ClusterNetworkPolicy>(),
        }
    }

    async fn list_all<K: WatchedKind>(
        &self,
        namespace: Option<&str>,
    ) -> Result<KindListing, Failure> {
        let mut attempts = 1;
        loop {
            match self.pages::<K>(namespace).await {
                Err(Failure::Gone) if attempts < ATTEMPTS => attempts += 1,
                Err(failure) => return self.empty_if_not_served::<K>(failure).await,
                listed => return listed,
            }
        }
    }

    async fn pages<K: WatchedKind>(&self, namespace: Option<&str>) -> Result<KindListing, Failure> {
        let (client, timeout) = (self.client(), self.connection.timeout());
        let (mut store, mut objects) = (Store::<K>::new(), Vec::new());
        let mut params = params::<K>(K::FIELDS);
        store.begin();
        loop {
            let take = |read: &Read| objects.extend(store.listed(read));
            let metadata = page::<K>(&client, namespace, &params, timeout, take).await?;
            params.continue_token = metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(listed(&mut store, objects));
            }
        }
    }

    /// Returns an empty list if a failure shows that an optional kind is not served. A user without the right to list a
    /// kind gets 403 even if the server lacks the kind, but may read the list of served kinds.
    async fn empty_if_not_served<K: WatchedKind>(
        &self,
        failure: Failure,
    ) -> Result<KindListing, Failure> {
        let not_served = match &failure {
            Failure::NotServed => K::ABSENCE != Absence::Wrong,
            Failure::NoPath(_) | Failure::Forbidden(_) => {
                K::ABSENCE == Absence::Usual
                    && matches!(is_served::<K>(&self.connection).await, Ok(Ok(false)))
            }
            Failure::Gone
            | Failure::Unauthorized(_)
            | Failure::NotUnderstood(_)
            | Failure::Silent(_)
            | Failure::Refused(_)
            | Failure::Unreachable(_)
            | Failure::Undecodable(_) => false,
        };
        if not_served { Ok(KindListing::default()) } else { Err(failure) }
    }
}

fn listed<K: WatchedKind>(store: &mut Store<K>, objects: Vec<Change>) -> KindListing {
    let problems = store.problems().unwrap_or_default();
    let more = (problems.more > 0)
        .then(|| format!("{} more problems of {}", problems.more, kind_name::<K>()));
    let problems = problems.texts.into_iter().chain(more).collect();
    KindListing { objects, problems, served: true }
}

/// Returns the parameters of a list, narrowed by a field selector.
pub(super) fn params<K: WatchedKind>(fields: Option<&str>) -> ListParams {
    ListParams {
        field_selector: fields.map(str::to_owned),
        label_selector: K::LABELS.map(str::to_owned),
        limit: Some(PAGE),
        ..ListParams::default()
    }
}

/// Reads one page: passes its objects to `take`, and returns its metadata.
pub(super) async fn page<K: WatchedKind>(
    client: &Client,
    namespace: Option<&str>,
    params: &ListParams,
    patience: Duration,
    mut take: impl FnMut(&Read),
) -> Result<ListMeta, Failure> {
    let request = Request::new(K::url_path(&(), namespace)).list(params);
    let request = request.map_err(|error| Failure::from_error(kube::Error::BuildRequest(error)))?;
    let mut answer = ResponseStream::to(client, request, patience).await?;
    let (mut listed, mut metadata) = (false, None);
    let mut part = |part: ResponsePart<'_>| match part {
        ResponsePart::Item(raw) => take(&convert::read(K::KIND, raw.text, raw.whole)),
        ResponsePart::Field(b"metadata", raw) => {
            metadata = serde_json::from_slice::<ListMeta>(raw.text).ok();
        }
        ResponsePart::Field(b"items", raw) => listed = raw.text == b"null",
        ResponsePart::Items => listed = true,
        ResponsePart::Field(..) | ResponsePart::End => {}
    };
    while answer.parts(&mut part).await? {}
    if !answer.is_whole() {
        return Err(Failure::Refused("the list ended early".into()));
    }
    let metadata = metadata.filter(|_| listed);
    let no_list = || Failure::Undecodable("not a list".into());
    metadata.ok_or_else(no_list)
}

/// Returns whether the server's discovery documents contain a kind.
pub(super) async fn is_served<K: WatchedKind>(
    connection: &Connection,
) -> Result<kube::Result<bool>, tokio::time::error::Elapsed> {
    let asked = async {
        let (client, version) = (connection.client(), K::api_version(&()));
        let groups = client.list_api_groups().await?.groups;
        if !groups.iter().any(|group| group.versions.iter().any(|v| v.group_version == version)) {
            return Ok(false);
        }
        let resources = client.list_api_group_resources(&version).await?.resources;
        Ok(resources.iter().any(|resource| resource.name == K::plural(&())))
    };
    tokio::time::timeout(connection.timeout(), asked).await
}

/// First minor version of an API server that answers a list without a version from its cache, once the cache has every
/// change (`ConsistentListFromCache`).
const CONSISTENT: u32 = 31;

/// Returns whether the server's cache answers lists consistently; false if its version is unknown.
pub(super) async fn is_cache_consistent(connection: &Connection) -> bool {
    let client = connection.client();
    let version = tokio::time::timeout(connection.timeout(), client.apiserver_version()).await;
    matches!(version, Ok(Ok(version)) if is_consistent_since(&version.major, &version.minor))
}

/// Takes the version's numbers as the server gives them, such as `31+`.
fn is_consistent_since(major: &str, minor: &str) -> bool {
    let digits = minor.trim_end_matches(|it: char| !it.is_ascii_digit());
    major == "1" && digits.parse().is_ok_and(|minor: u32| minor >= CONSISTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_known_version_answers_from_an_older_cache() {
        let consistent = [("1", "31"), ("1", "36+")];
        assert!(consistent.iter().all(|(major, minor)| is_consistent_since(major, minor)));
        let others = [("1", "20"), ("1", "30+"), ("", ""), ("1", "x")];
        assert!(!others.iter().any(|(major, minor)| is_consistent_since(major, minor)));
    }
}
