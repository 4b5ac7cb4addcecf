//! Deserialized fields of all kinds. Absent or invalid values of other fields do not fail the parse.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::IgnoredAny;

use netpold_core::model::Labels;

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
pub(super) struct List<T> {
    #[serde(default)]
    pub(super) metadata: ListMetadata,
    pub(super) items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ListMetadata {
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// Object of any kind.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    pub(super) metadata: Metadata,
}

/// Pod, workload, Node or Namespace.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Object {
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
    pub(super) status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) phase: Option<String>,
    #[serde(rename = "hostIP")]
    host_ip: Option<Text>,
    #[serde(rename = "hostIPs")]
    host_ips: Option<Vec<HostIp>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HostIp {
    ip: String,
}

impl Status {
    /// Returns the addresses of a pod's node: `hostIP` and `hostIPs`.
    pub(super) fn host_addresses(self) -> impl Iterator<Item = IpAddr> {
        let one = self.host_ip.and_then(Text::into_string);
        let all = self.host_ips.into_iter().flatten().map(|host| host.ip);
        one.into_iter().chain(all).filter_map(|ip| ip.parse().ok())
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Metadata {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    labels: Option<BTreeMap<String, Text>>,
    annotations: Option<BTreeMap<String, Text>>,
}

impl Metadata {
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
pub(super) struct Spec {
    pub(super) containers: Option<Vec<Container>>,
    pub(super) init_containers: Option<Vec<Container>>,
    pub(super) host_network: Option<bool>,
    pub(super) node_name: Option<String>,
    pub(super) dns_policy: Option<String>,
    pub(super) automount_service_account_token: Option<bool>,
    pub(super) service_account_name: Option<Text>,
    /// Pod template of a workload.
    pub(super) template: Option<Box<Template>>,
    /// Job template of a CronJob.
    pub(super) job_template: Option<Box<Template>>,
    /// `podCIDR` of a Node.
    #[serde(rename = "podCIDR")]
    pub(super) pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pub(super) pod_cidrs: Option<Vec<String>>,
}

/// Template of pods or of Jobs.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Template {
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Container {
    pub(super) name: Option<String>,
    pub(super) image: Option<String>,
    pub(super) command: Option<Vec<Text>>,
    pub(super) args: Option<Vec<Text>>,
    pub(super) env: Option<Vec<Variable>>,
    pub(super) ports: Option<Vec<Port>>,
}

impl Container {
    /// Takes command and arguments.
    pub(super) fn words(&mut self) -> Vec<String> {
        let words = self.command.take().into_iter().chain(self.args.take()).flatten();
        words.filter_map(Text::into_string).collect()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Port {
    pub(super) protocol: Option<String>,
    pub(super) container_port: i64,
    pub(super) host_port: Option<i64>,
}

/// Webhook configuration, `APIService` or `CustomResourceDefinition`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Caller {
    pub(super) metadata: Metadata,
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

impl Caller {
    /// Returns the called Services.
    pub(super) fn services(self) -> impl Iterator<Item = ServiceReference> {
        let webhooks = self.webhooks.into_iter().flatten().chain(self.spec.conversion.webhook);
        let services = webhooks.filter_map(|webhook| webhook.client_config.service);
        services.chain(self.spec.service)
    }
}
