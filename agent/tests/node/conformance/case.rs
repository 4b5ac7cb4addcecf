//! Reads conformance cases: for each step, all Kubernetes objects and the expected verdicts.
//! `agent/core/conformance/README.md` describes the format.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use netpold_core::probe::IpProtocol;
use netpold_kube::decode::decode;
use netpold_kube::document;
use serde::Deserialize;
use serde_json::{Map, Value};

/// `apiVersion` of netpold's own documents.
const API_VERSION: &str = "netpold.dev/conformance";

/// Case from one file.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// File name without extension.
    pub(crate) name: String,
    /// Rule that the case shows, in one line.
    pub(crate) title: String,
    /// Source that the case restates.
    pub(crate) source: String,
    /// States of the cluster, in order.
    pub(crate) steps: Vec<Step>,
}

/// State of the cluster, with its checks.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// All Kubernetes objects of the state, including those of the topology.
    pub(crate) objects: Vec<Value>,
    /// Flows tried in this state.
    pub(crate) checks: Vec<Check>,
}

/// Flow with its expected verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// Side that opens the flow.
    pub(crate) from: Side,
    /// Side that receives the flow.
    pub(crate) to: Side,
    /// IP protocol; for ICMP the protocol of the addresses' family.
    pub(crate) protocol: IpProtocol,
    /// Destination port; 0 if the protocol has none.
    pub(crate) port: u16,
    /// Expected verdict.
    pub(crate) allow: bool,
}

/// One side of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    /// `namespace/pod`, or the name of a node or host.
    pub(crate) name: String,
    /// Address of the side; both sides of a check have the same family.
    pub(crate) address: IpAddr,
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdict = if self.allow { "allow" } else { "deny" };
        let (from, to) = (&self.from, &self.to);
        write!(f, "{verdict} {} ({}) to {} ({}), ", from.name, from.address, to.name, to.address)?;
        write!(f, "{} {}", self.protocol, self.port)
    }
}

/// Documents of netpold's own format.
#[derive(Deserialize)]
#[serde(tag = "kind", deny_unknown_fields, rename_all_fields = "camelCase")]
enum Document {
    Topology {
        hosts: BTreeMap<String, Vec<IpAddr>>,
    },
    Case {
        title: String,
        source: String,
    },
    Expect {
        protocols: Vec<IpProtocol>,
        #[serde(default)]
        ports: Vec<u16>,
        #[serde(default = "both_families")]
        families: Vec<u8>,
        #[serde(default)]
        with: Vec<String>,
        verdicts: Vec<String>,
    },
    Label {
        #[serde(default)]
        pod: Option<String>,
        #[serde(default)]
        namespace: Option<String>,
        labels: Map<String, Value>,
    },
    Delete {
        objects: Vec<String>,
    },
}

fn both_families() -> Vec<u8> {
    vec![4, 6]
}

/// Line `allow A to B` or `deny A to B`.
struct Verdict {
    allow: bool,
    from: String,
    to: String,
}

/// Loads the cases in `agent/core/conformance`, by name.
///
/// # Errors
/// A file cannot be read or does not follow the format.
pub(crate) fn load_all() -> Result<Vec<Case>> {
    load_from("cases")
}

/// Loads the cases about Services, judged in process only: on the wire they need a translating proxy.
///
/// # Errors
/// The errors of [`load_all`].
pub(crate) fn load_services() -> Result<Vec<Case>> {
    load_from("services")
}

fn load_from(directory: &str) -> Result<Vec<Case>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("core/conformance");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root.join(directory))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    paths.sort();
    let topology = std::fs::read_to_string(root.join("topology.yaml"))?;
    paths.iter().map(|path| load(&topology, path)).collect()
}

/// Returns the objects of the topology without a case.
///
/// # Errors
/// The errors of [`load_all`].
pub(crate) fn topology() -> Result<Vec<Value>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("core/conformance");
    let text = std::fs::read_to_string(root.join("topology.yaml"))?;
    let documents = documents(&text)?.into_iter();
    Ok(documents.filter(|document| document["apiVersion"] != API_VERSION).collect())
}

fn load(topology: &str, path: &Path) -> Result<Case> {
    let text = std::fs::read_to_string(path)?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    read(topology, &name, &text).with_context(|| path.display().to_string())
}

/// Reads a case from its text and the topology's text.
fn read(topology: &str, name: &str, text: &str) -> Result<Case> {
    let mut cluster = Cluster::default();
    for document in documents(topology)? {
        match own_document(&document)? {
            Some(Document::Topology { hosts }) => cluster.hosts = hosts,
            Some(_) => bail!("only Topology and Kubernetes objects belong in the topology"),
            None => cluster.put(document)?,
        }
    }
    let case =
        Case { name: name.to_owned(), title: String::new(), source: String::new(), steps: vec![] };
    let mut reader = Reader { cluster, case, changed: true };
    for document in documents(text)? {
        reader.document(document)?;
    }
    ensure!(!reader.case.title.is_empty(), "no Case document");
    ensure!(!reader.changed, "the last change is not followed by an Expect");
    Ok(reader.case)
}

fn documents(text: &str) -> Result<Vec<Value>> {
    let nodes = document::parse(text).map_err(|error| anyhow!("{error}"))?;
    nodes.iter().map(|node| decode(node).map_err(|error| anyhow!("{error}"))).collect()
}

fn own_document(document: &Value) -> Result<Option<Document>> {
    if document["apiVersion"] != API_VERSION {
        return Ok(None);
    }
    let mut document = document.clone();
    if let Some(fields) = document.as_object_mut() {
        fields.remove("apiVersion");
    }
    Ok(Some(serde_json::from_value(document)?))
}

struct Reader {
    cluster: Cluster,
    case: Case,
    /// Whether the cluster has changed since the last step.
    changed: bool,
}

impl Reader {
    fn document(&mut self, document: Value) -> Result<()> {
        match own_document(&document)? {
            Some(Document::Case { title, source }) => {
                self.case.title = title;
                self.case.source = source;
                return Ok(());
            }
            Some(Document::Expect { protocols, ports, families, with, verdicts }) => {
                let verdicts: Vec<Verdict> =
                    verdicts.iter().map(|line| verdict(line)).collect::<Result<_>>()?;
                let parties = self.cluster.parties(&with)?;
                let flows = flows(&protocols, &ports)?;
                let checks = checks(&parties, &families, &flows, &verdicts)?;
                self.expect(checks);
                return Ok(());
            }
            Some(Document::Label { pod, namespace, labels }) => {
                let id = match (pod, namespace) {
                    (Some(pod), None) => format!("Pod {pod}"),
                    (None, Some(namespace)) => format!("Namespace {namespace}"),
                    _ => bail!("Label names one pod or one namespace"),
                };
                self.cluster.label(&id, labels)?;
            }
            Some(Document::Delete { objects }) => {
                for id in objects {
                    self.cluster.objects.remove(&id).with_context(|| format!("no {id}"))?;
                }
            }
            Some(Document::Topology { .. }) => bail!("a Topology belongs in topology.yaml"),
            None => self.cluster.put(document)?,
        }
        self.changed = true;
        Ok(())
    }

    fn expect(&mut self, checks: Vec<Check>) {
        if std::mem::take(&mut self.changed) {
            let objects = self.cluster.objects.values().cloned().collect();
            self.case.steps.push(Step { objects, checks: Vec::new() });
        }
        if let Some(step) = self.case.steps.last_mut() {
            step.checks.extend(checks);
        }
    }
}

/// Objects by `Kind namespace/name`, and hosts by name.
#[derive(Default)]
struct Cluster {
    objects: BTreeMap<String, Value>,
    hosts: BTreeMap<String, Vec<IpAddr>>,
}

/// Sender or receiver of the verdict matrix.
struct Party {
    name: String,
    addresses: Vec<IpAddr>,
    is_pod: bool,
    /// Whether the party only receives.
    is_service: bool,
}

impl Cluster {
    fn put(&mut self, object: Value) -> Result<()> {
        let kind = object["kind"].as_str().context("no kind")?;
        let name = object["metadata"]["name"].as_str().context("no metadata.name")?;
        let id = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        };
        self.objects.insert(id, object);
        Ok(())
    }

    /// Sets labels; a null removes a label.
    fn label(&mut self, id: &str, labels: Map<String, Value>) -> Result<()> {
        let object = self.objects.get_mut(id).with_context(|| format!("no {id}"))?;
        let current = object["metadata"]["labels"].as_object_mut().context("no labels")?;
        for (key, value) in labels {
            if value.is_null() {
                current.remove(&key);
            } else {
                current.insert(key, value);
            }
        }
        Ok(())
    }

    /// Returns all running pods that are not on the host network, and the nodes, hosts and Services in `with`.
    fn parties(&self, with: &[String]) -> Result<Vec<Party>> {
        let mut parties = Vec::new();
        for (id, object) in &self.objects {
            let Some(name) = id.strip_prefix("Pod ") else { continue };
            let phase = object["status"]["phase"].as_str();
            let finished = matches!(phase, Some("Succeeded" | "Failed"));
            if finished || object["spec"]["hostNetwork"] == true {
                continue;
            }
            let addresses = addresses(&object["status"]["podIPs"], "ip")?;
            parties.push(Party {
                name: name.to_owned(),
                addresses,
                is_pod: true,
                is_service: false,
            });
        }
        for name in with {
            let service = name.strip_prefix("svc/");
            if let Some(service) = service.and_then(|s| self.objects.get(&format!("Service {s}"))) {
                let ips = service["spec"]["clusterIPs"].as_array().context("no clusterIPs")?;
                let ips = ips.iter().map(|ip| Ok(ip.as_str().context("no address")?.parse()?));
                let addresses = ips.collect::<Result<_>>()?;
                let name = name.clone();
                parties.push(Party { name, addresses, is_pod: false, is_service: true });
                continue;
            }
            let addresses = match (self.hosts.get(name), self.objects.get(&format!("Node {name}")))
            {
                (Some(host), _) => host.clone(),
                (None, Some(node)) => addresses(&node["status"]["addresses"], "address")?,
                (None, None) => bail!("no host, node or Service {name}"),
            };
            let name = name.clone();
            parties.push(Party { name, addresses, is_pod: false, is_service: false });
        }
        Ok(parties)
    }
}

fn addresses(list: &Value, field: &str) -> Result<Vec<IpAddr>> {
    let items = list.as_array().map_or(&[][..], Vec::as_slice);
    let parse = |item: &Value| Ok(item[field].as_str().context("no address")?.parse()?);
    items.iter().map(parse).collect()
}

fn verdict(line: &str) -> Result<Verdict> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (allow, from, to) = match words[..] {
        ["allow", from, "to", to] => (true, from, to),
        ["deny", from, "to", to] => (false, from, to),
        _ => bail!("{line:?} is not `allow A to B` or `deny A to B`"),
    };
    Ok(Verdict { allow, from: from.to_owned(), to: to.to_owned() })
}

fn flows(protocols: &[IpProtocol], ports: &[u16]) -> Result<Vec<(IpProtocol, u16)>> {
    let mut flows = Vec::new();
    for &protocol in protocols {
        if protocol.has_ports() {
            ensure!(!ports.is_empty(), "{protocol} needs ports");
            flows.extend(ports.iter().map(|&port| (protocol, port)));
        } else {
            flows.push((protocol, 0));
        }
    }
    Ok(flows)
}

/// Returns the checks of every party to every party, except pairs without a pod and flows from a Service.
fn checks(
    parties: &[Party],
    families: &[u8],
    flows: &[(IpProtocol, u16)],
    verdicts: &[Verdict],
) -> Result<Vec<Check>> {
    for verdict in verdicts {
        for pattern in [&verdict.from, &verdict.to] {
            let known = parties.iter().any(|party| matches(pattern, &party.name));
            ensure!(known, "{pattern} matches nobody");
        }
    }
    let mut checks = Vec::new();
    for from in parties.iter().filter(|from| !from.is_service) {
        for to in parties.iter().filter(|to| from.is_pod || to.is_pod) {
            let allow = expected(verdicts, &from.name, &to.name);
            for (source, destination) in pairs(from, to, families) {
                for &(protocol, port) in flows {
                    let icmp6 = protocol == IpProtocol::ICMP && source.is_ipv6();
                    let protocol = if icmp6 { IpProtocol(58) } else { protocol };
                    let from = Side { name: from.name.clone(), address: source };
                    let to = Side { name: to.name.clone(), address: destination };
                    checks.push(Check { from, to, protocol, port, allow });
                }
            }
        }
    }
    Ok(checks)
}

fn pairs<'p>(
    from: &'p Party,
    to: &'p Party,
    families: &[u8],
) -> impl Iterator<Item = (IpAddr, IpAddr)> {
    let (v4, v6) = (families.contains(&4), families.contains(&6));
    let sources = from.addresses.iter().filter(move |a| if a.is_ipv4() { v4 } else { v6 });
    sources.filter_map(|source| {
        let same_family = to.addresses.iter().find(|a| a.is_ipv4() == source.is_ipv4());
        same_family.map(|destination| (*source, *destination))
    })
}

/// Returns the verdict of the last matching line; allow if no line matches, and from a pod to itself.
fn expected(verdicts: &[Verdict], from: &str, to: &str) -> bool {
    let line = verdicts.iter().rfind(|v| matches(&v.from, from) && matches(&v.to, to));
    from == to || line.is_none_or(|line| line.allow)
}

/// Returns whether a name matches `*`, `namespace/*`, `*/pod` or a name.
fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.split_once('/'), name.split_once('/')) {
        _ if pattern == "*" => true,
        (Some(("*", pod)), Some((_, name))) => pod == name,
        (Some((namespace, "*")), Some((name, _))) => namespace == name,
        _ => pattern == name,
    }
}
