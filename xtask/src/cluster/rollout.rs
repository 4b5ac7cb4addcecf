//! Rollout of fifty pods behind a Service, under default deny. From the first packet of the first pod on, no denied
//! request is answered, no allowed request fails, and no client repeats a SYN: no first packet of an allowed request, nor
//! its answer, is lost.
//!
//! A client on each node continuously sends requests to the Service, which policy allows. A stranger on each node
//! continuously sends requests to the Service and to every address that a server can get on either node.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::common::wait;
use super::images::BUSYBOX;
use super::kubectl::Kubectl;
use super::network::pods_after;
use super::smoke::wait_gates;
use super::state::NODES;
use crate::step;

const NAMESPACE: &str = "netpold-rollout";
const REPLICAS: u32 = 50;
const PATIENCE: &str = "--timeout=6m";
/// Number of addresses per node that strangers try: fifty pods, twice during a rollout, and the strangers.
const ADDRESSES: u8 = 120;
/// Minimum number of requests of each client, and rounds of each stranger, for a valid result; time for them on a loaded
/// machine.
const LEAST: u64 = 10;
const ASKING: Duration = Duration::from_mins(5);
/// Seconds for an allowed request: a server's process may be late where others want the processors. A lost SYN is counted
/// on its own.
const ANSWER: u32 = 20;
/// Script that prints the number of SYNs that the pod's kernel has sent again.
const SYN_REPEATS: &str = r#"/busybox awk '/^TcpExt:/ { for (i = 1; i <= NF; i++) if (at) { if (i == at) print $i }
else if ($i == "TCPSynRetrans") { found = i } at = found }' /proc/net/netstat"#;

/// Runs the rollout, and removes its namespace.
///
/// # Errors
/// A denied request was answered, or an allowed one failed.
pub(super) fn run(kubectl: &Kubectl) -> Result<()> {
    step::title(&format!("rollout: {REPLICAS} pods behind a Service, under default deny"));
    kubectl.check_in(NAMESPACE, "rollout", roll_out)
}

fn roll_out(kubectl: &Kubectl) -> Result<()> {
    let labels = json!({ "netpold.io/readiness-gate": "enabled" });
    apply(kubectl, &object("v1", "Namespace", NAMESPACE, json!({}), &labels))?;
    wait_gates(kubectl, NAMESPACE)?;
    for (name, spec) in policies() {
        apply(kubectl, &object("networking.k8s.io/v1", "NetworkPolicy", name, spec, &json!({})))?;
    }
    let service =
        json!({ "selector": { "app": "server" }, "ports": [{ "port": 80, "targetPort": 8080 }] });
    apply(kubectl, &object("v1", "Service", "server", service, &json!({})))?;
    let get = ["get", "service", "server", "-n", NAMESPACE, "-o", "jsonpath={.spec.clusterIP}"];
    let address = kubectl.run(&get)?;
    let mut askers = Vec::new();
    let mut start = |app: &'static str, node: &str, script: &str| {
        let name = format!("{app}-{node}");
        let spec = pod(script, json!({ "kubernetes.io/hostname": node }));
        askers.push((app, name.clone()));
        apply(kubectl, &object("v1", "Pod", &name, spec, &json!({ "app": app })))
    };
    let ready = ["wait", "pod", "--all", "--for=condition=Ready", PATIENCE];
    for node in NODES {
        start("client", node, &client(&address))?;
    }
    ask(kubectl, &ready)?;
    // Later pods get later addresses.
    let clients = addresses(kubectl, "client")?;
    let asked: Vec<IpAddr> =
        clients.iter().flat_map(|client| pods_after(*client, ADDRESSES)).collect();
    for node in NODES {
        start("stranger", node, &stranger(&asked, &address))?;
    }
    ask(kubectl, &ready)?;
    let asking = Instant::now();
    apply(kubectl, &deployment())?;
    let rolled = ["rollout", "status", "deployment/server", PATIENCE];
    ask(kubectl, &rolled)?;
    let all = ["wait", "networkpolicystatus", "--all", "--for=condition=Enforcing", PATIENCE];
    ask(kubectl, &all)?;
    step::note(&format!("{REPLICAS} pods are available after {:.0?}", asking.elapsed()));
    // From here on the Service always has a ready pod.
    for (_, name) in askers.iter().filter(|(app, _)| *app == "client") {
        exec(kubectl, name, ": > /tmp/begin")?;
    }
    ask(kubectl, &["rollout", "restart", "deployment/server"])?;
    ask(kubectl, &rolled)?;
    step::note(&format!("all pods are replaced after {:.0?}", asking.elapsed()));
    for server in addresses(kubectl, "server")? {
        ensure!(asked.contains(&server), "no stranger asks {server}: nothing is shown");
    }
    for (app, name) in &askers {
        judge(kubectl, app, name)?;
    }
    Ok(())
}

/// Returns the first addresses of the pods with a label.
fn addresses(kubectl: &Kubectl, app: &str) -> Result<Vec<IpAddr>> {
    let selector = format!("app={app}");
    let addresses = "jsonpath={.items[*].status.podIP}";
    let told = kubectl.run(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", addresses])?;
    told.split_whitespace().map(|address| address.parse().context("an address")).collect()
}

/// Checks the recorded requests of a client or a stranger.
fn judge(kubectl: &Kubectl, app: &str, name: &str) -> Result<()> {
    let count = |outcome: &str| -> Result<u64> {
        let script = format!("/busybox grep -c ^{outcome} /tmp/met; true");
        let said = exec(kubectl, name, &script)?;
        said.trim().parse().with_context(|| format!("{name} has counted {said:?}"))
    };
    wait(&format!("requests of {name}"), ASKING, || {
        let asked = count("asked")?;
        ensure!(asked >= LEAST, "{asked} requests");
        Ok(())
    })?;
    let (asked, wrong) = (count("asked")?, count("wrong")?);
    let shown = exec(kubectl, name, "/busybox grep ^wrong /tmp/met | /busybox head -n 5; true")?;
    let what = if app == "client" { "failed" } else { "were answered" };
    ensure!(wrong == 0, "{name}: {wrong} of {asked} requests {what}:\n{shown}");
    if app != "client" {
        step::note(&format!("{name}: of {asked} rounds of requests none {what}"));
        return Ok(());
    }
    let repeats = exec(kubectl, name, SYN_REPEATS)?;
    ensure!(
        repeats.trim() == "0",
        "{name}: SYNs sent again in {asked} requests: {}",
        repeats.trim()
    );
    step::note(&format!("{name}: of {asked} requests none {what}, and no SYN was sent again"));
    Ok(())
}

/// Returns the script of a client: repeated requests to a Service, once `/tmp/begin` exists. A failed request is recorded
/// with its duration and the message of nc: a timeout or a refusal.
fn client(service: &str) -> String {
    format!(
        ": > /tmp/met; /busybox httpd -p 8080 -h /tmp; \
         while [ ! -e /tmp/begin ]; do /busybox usleep 100000; done; \
         while :; do echo asked >> /tmp/met; begun=$(/busybox date +%s); \
         {} || echo wrong $(/busybox date +%T) after $(($(/busybox date +%s) - begun)) s: $(/busybox cat /tmp/said) \
         >> /tmp/met; done",
        request(service, 80, ANSWER, "/tmp/said")
    )
}

/// Returns the script of a stranger: repeated requests to a Service and to addresses.
fn stranger(addresses: &[IpAddr], service: &str) -> String {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let asks = request("$i", 8080, 1, "/dev/null");
    let round = format!(
        "for i in {}; do {{ {asks} && echo wrong $i >> /tmp/met; }} & done; ",
        addresses.join(" ")
    );
    // In a subshell: `wait` in the first shell would also wait for the daemon.
    format!(
        ": > /tmp/met; /busybox httpd -p 8080 -h /tmp; \
         while :; do ( {{ {} && echo wrong {service} >> /tmp/met; }} & {round} wait ); \
         echo asked >> /tmp/met; done",
        request(service, 80, 1, "/dev/null")
    )
}

/// Returns a command that succeeds if a server of the Deployment answers within the given seconds. nc writes its errors
/// to a file.
fn request(address: &str, port: u16, seconds: u32, errors: &str) -> String {
    format!(
        "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | /busybox nc -w {seconds} {address} {port} 2> {errors} \
         | /busybox grep -q ^server"
    )
}

fn policies() -> [(&'static str, Value); 3] {
    let app = |name: &str| json!({ "matchLabels": { "app": name } });
    [
        ("deny", json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] })),
        (
            "server",
            json!({ "podSelector": app("server"), "ingress": [{ "from": [{ "podSelector": app("client") }] }] }),
        ),
        // Egress is allowed, so that only the servers' ingress isolation stops strangers.
        (
            "askers",
            json!({
                "podSelector": { "matchExpressions": [
                    { "key": "app", "operator": "In", "values": ["client", "stranger"] },
                ] },
                "policyTypes": ["Egress"],
                "egress": [{}],
            }),
        ),
    ]
}

fn deployment() -> Value {
    // The server ignores SIGTERM: kube-proxy removes its rules after the pod has begun to end.
    let serve = "trap '' TERM; echo server > /tmp/index.html; /busybox httpd -f -p 8080 -h /tmp";
    let mut template = pod(serve, json!({}));
    template["terminationGracePeriodSeconds"] = json!(10);
    let spec = json!({
        "replicas": REPLICAS,
        "selector": { "matchLabels": { "app": "server" } },
        "strategy": { "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 10 } },
        "template": { "metadata": { "labels": { "app": "server" } }, "spec": template },
    });
    object("apps/v1", "Deployment", "server", spec, &json!({}))
}

fn pod(script: &str, node_selector: Value) -> Value {
    json!({
        "nodeSelector": node_selector,
        "terminationGracePeriodSeconds": 0,
        "containers": [{
            "name": "busybox",
            "image": BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["/busybox", "sh", "-c", script],
            "readinessProbe": { "tcpSocket": { "port": 8080 }, "periodSeconds": 1 },
        }],
    })
}

fn object(version: &str, kind: &str, name: &str, spec: Value, labels: &Value) -> Value {
    let mut object = json!({
        "apiVersion": version,
        "kind": kind,
        "metadata": { "name": name, "labels": labels },
        "spec": spec,
    });
    if kind != "Namespace" {
        object["metadata"]["namespace"] = json!(NAMESPACE);
    }
    object
}

fn apply(kubectl: &Kubectl, object: &Value) -> Result<()> {
    kubectl.apply(&object.to_string())
}

fn ask(kubectl: &Kubectl, arguments: &[&str]) -> Result<()> {
    kubectl.run(&[arguments, &["-n", NAMESPACE]].concat()).map(drop)
}

fn exec(kubectl: &Kubectl, pod: &str, script: &str) -> Result<String> {
    kubectl.run(&["exec", "-n", NAMESPACE, pod, "--", "/busybox", "sh", "-c", script])
}
