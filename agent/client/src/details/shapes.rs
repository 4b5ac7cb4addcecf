//! Deserialized fields of all kinds. Absent or invalid values of other fields do not fail the parse.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::IgnoredAny;

use netpold_core::model::Labels;

use super::fields::RoutedPort;

/// Text, or a value of another type in its place.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Text {
    Is(String),
    Other(IgnoredAny),
}

impl Text {
    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Is(text) => Some(text),
            Self::Other(_) => None,
        }
    }

    fn into_string(self) -> Option<String> {
        match self {
            Self::Is(text) => Some(text),
            Self::Other(_) => None,
        }
    }
}

/// List of the API server.
#[derive(Deserialize)]
pub(super) struct RawList<T> {
    #[serde(default)]
    pub(super) metadata: RawListMetadata,
    pub(super) items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawListMetadata {
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// Object of any kind.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawNamedObject {
    pub(super) metadata: RawMetadata,
}

/// Pod, workload, Node or Namespace.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawObject {
    pub(super) metadata: RawMetadata,
    pub(super) spec: RawObjectSpec,
    pub(super) status: RawStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawStatus {
    pub(super) phase: Option<String>,
    #[serde(rename = "hostIP")]
    host_ip: Option<Text>,
    #[serde(rename = "hostIPs")]
    host_ips: Option<Vec<RawHostIp>>,
    #[serde(rename = "nodeInfo")]
    node_info: Option<RawNodeInfo>,
}

/// `status.nodeInfo` of a Node.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawNodeInfo {
    kubelet_version: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawHostIp {
    ip: String,
}

impl RawStatus {
    /// Returns the version of a Node's kubelet, as `v1.31.1+k3s1`.
    pub(super) fn kubelet_version(&self) -> &str {
        let info = self.node_info.as_ref();
        info.and_then(|it| it.kubelet_version.as_ref()).and_then(Text::as_str).unwrap_or_default()
    }

    /// Returns the addresses of a pod's node: `hostIP` and `hostIPs`.
    pub(super) fn host_addresses(self) -> impl Iterator<Item = IpAddr> {
        let one = self.host_ip.and_then(Text::into_string);
        let all = self.host_ips.into_iter().flatten().map(|host| host.ip);
        one.into_iter().chain(all).filter_map(|ip| ip.parse().ok())
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawMetadata {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    labels: Option<BTreeMap<String, Text>>,
    annotations: Option<BTreeMap<String, Text>>,
}

impl RawMetadata {
    pub(super) fn labels(&mut self) -> Labels {
        let labels = self.labels.take().into_iter().flatten();
        labels.filter_map(|(key, value)| Some((key, value.into_string()?))).collect()
    }

    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(name)?.as_str()
    }
}

/// `spec` of a pod, of a workload, or of a Node.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawObjectSpec {
    pub(super) containers: Option<Vec<RawContainer>>,
    pub(super) init_containers: Option<Vec<RawContainer>>,
    pub(super) host_network: Option<bool>,
    pub(super) node_name: Option<String>,
    pub(super) dns_policy: Option<String>,
    pub(super) automount_service_account_token: Option<bool>,
    pub(super) service_account_name: Option<Text>,
    /// Pod template of a workload.
    pub(super) template: Option<Box<RawTemplate>>,
    /// Job template of a CronJob.
    pub(super) job_template: Option<Box<RawTemplate>>,
    /// `podCIDR` of a Node.
    #[serde(rename = "podCIDR")]
    pub(super) pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pub(super) pod_cidrs: Option<Vec<String>>,
}

/// Template of pods or of Jobs.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawTemplate {
    pub(super) metadata: RawMetadata,
    pub(super) spec: RawObjectSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawContainer {
    pub(super) name: Option<String>,
    pub(super) image: Option<String>,
    pub(super) command: Option<Vec<Text>>,
    pub(super) args: Option<Vec<Text>>,
    pub(super) env: Option<Vec<RawVariable>>,
    pub(super) ports: Option<Vec<RawContainerPort>>,
}

impl RawContainer {
    /// Takes command and arguments.
    pub(super) fn words(&mut self) -> Vec<String> {
        let words = self.command.take().into_iter().chain(self.args.take()).flatten();
        words.filter_map(Text::into_string).collect()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawVariable {
    pub(super) name: String,
    pub(super) value: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawContainerPort {
    pub(super) protocol: Option<String>,
    pub(super) container_port: i64,
    pub(super) host_port: Option<i64>,
}

/// Webhook configuration, `APIService` or `CustomResourceDefinition`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawServiceCaller {
    pub(super) metadata: RawMetadata,
    webhooks: Option<Vec<Webhook>>,
    spec: CallerSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CallerSpec {
    service: Option<ServiceReference>,
    conversion: Conversion,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Conversion {
    webhook: Option<Webhook>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Webhook {
    client_config: ClientConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClientConfig {
    service: Option<ServiceReference>,
}

/// Service that the API server calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub(super) struct ServiceReference {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Absent: 443.
    pub(super) port: Option<u16>,
}

impl RawServiceCaller {
    /// Returns the called Services.
    pub(super) fn services(self) -> impl Iterator<Item = ServiceReference> {
        let webhooks = self.webhooks.into_iter().flatten().chain(self.spec.conversion.webhook);
        let services = webhooks.filter_map(|webhook| webhook.client_config.service);
        services.chain(self.spec.service)
    }
}

/// Ingress.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawIngress {
    pub(super) metadata: RawMetadata,
    spec: IngressSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct IngressSpec {
    default_backend: Option<IngressBackend>,
    rules: Option<Vec<IngressRule>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IngressRule {
    http: Option<IngressPaths>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IngressPaths {
    paths: Option<Vec<IngressPath>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IngressPath {
    backend: IngressBackend,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IngressBackend {
    service: Option<IngressService>,
}

/// Service of an Ingress.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct IngressService {
    pub(super) name: String,
    port: IngressPort,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IngressPort {
    name: Option<String>,
    number: Option<i32>,
}

impl IngressService {
    /// Returns the port of the Service.
    pub(super) fn port(self) -> Option<RoutedPort> {
        let IngressPort { name, number } = self.port;
        number.map(RoutedPort::Number).or(name.map(RoutedPort::Name))
    }
}

impl RawIngress {
    /// Returns the Services to which the Ingress leads clients.
    pub(super) fn services(self) -> impl Iterator<Item = IngressService> {
        let rules = self.spec.rules.into_iter().flatten().filter_map(|rule| rule.http);
        let paths = rules.flat_map(|http| http.paths.into_iter().flatten());
        let backends = paths.map(|path| path.backend).chain(self.spec.default_backend);
        backends.filter_map(|backend| backend.service)
    }
}
