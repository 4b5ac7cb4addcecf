//! Manifests for the page.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

/// Returns a directory with these objects.
pub(crate) fn directory(items: &[Value]) -> TempDir {
    let directory = TempDir::new().unwrap();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    fs::write(directory.path().join("all.json"), list.to_string()).unwrap();
    directory
}

pub(crate) fn namespace(name: &str) -> Value {
    let labels = json!({ "kubernetes.io/metadata.name": name });
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } })
}

/// A pod of the Deployment `app`.
pub(crate) fn pod(namespace: &str, app: &str, number: u32, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("{app}-6d9f7c-{number:05}"), "namespace": namespace,
            "labels": { "app": app, "pod-template-hash": "6d9f7c" },
        },
        "spec": { "nodeName": "n1" },
        "status": { "phase": "Running", "podIP": address },
    })
}

/// A policy for the pods of `app` (all of the namespace if empty) with ingress from `namespace/app` at a port.
pub(crate) fn admits(namespace: &str, app: &str, from: &[&str], port: u16) -> Value {
    let labels = if app.is_empty() { json!({}) } else { json!({ "app": app }) };
    let peers: Vec<Value> = from
        .iter()
        .map(|peer| {
            let (namespace, app) = peer.split_once('/').unwrap();
            let namespace = json!({ "matchLabels": { "kubernetes.io/metadata.name": namespace } });
            json!({ "namespaceSelector": namespace, "podSelector": { "matchLabels": { "app": app } } })
        })
        .collect();
    let ingress = if from.is_empty() {
        json!([])
    } else {
        json!([{ "from": peers, "ports": [{ "port": port }] }])
    };
    let name = if app.is_empty() { "default-deny" } else { app };
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "podSelector": { "matchLabels": labels }, "policyTypes": ["Ingress"], "ingress": ingress },
    })
}

/// Sets a policy to audit.
pub(crate) fn on_trial(mut policy: Value) -> Value {
    policy["metadata"]["annotations"] = json!({ "netpold.io/enforcement": "audit" });
    policy
}

/// Adds egress to `namespace/app` or to a block, at a port.
pub(crate) fn sends(mut policy: Value, to: &[&str], port: u16) -> Value {
    let peer = |peer: &&str| match peer.split_once('/') {
        Some((address, _)) if address.contains('.') => json!({ "ipBlock": { "cidr": peer } }),
        Some((namespace, app)) => json!({
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
            "podSelector": { "matchLabels": { "app": app } },
        }),
        None => json!({ "podSelector": { "matchLabels": { "app": peer } } }),
    };
    let peers: Vec<Value> = to.iter().map(peer).collect();
    policy["spec"]["policyTypes"] = json!(["Ingress", "Egress"]);
    policy["spec"]["egress"] = json!([{ "to": peers, "ports": [{ "port": port }] }]);
    policy
}

/// A small shop: `web` may reach `cart`, `cart` is to be reached by `web` alone, `db` is closed.
pub(crate) fn shop() -> Vec<Value> {
    vec![
        namespace("shop"),
        pod("shop", "web", 1, "10.0.0.1"),
        pod("shop", "cart", 1, "10.0.0.2"),
        pod("shop", "db", 1, "10.0.0.3"),
        admits("shop", "", &[], 1),
        sends(admits("shop", "web", &[], 1), &["shop/cart", "shop/db"], 8080),
        admits("shop", "cart", &["shop/web"], 8080),
    ]
}

/// Workloads with some pods each, in namespaces of 20, each workload with ingress from `degree` others.
pub(crate) fn generated(workloads: usize, pods: usize, degree: usize) -> Vec<Value> {
    let name = |index: usize| (format!("team-{:02}", index / 20), format!("service-{index:04}"));
    let mut items: Vec<Value> =
        (0..workloads.div_ceil(20)).map(|it| namespace(&format!("team-{it:02}"))).collect();
    let mut address = 0_u32;
    for index in 0..workloads {
        let (namespace, app) = name(index);
        for number in 0..pods {
            address += 1;
            let at = std::net::Ipv4Addr::from(0x0a00_0000 + address).to_string();
            items.push(pod(&namespace, &app, u32::try_from(number).unwrap(), &at));
        }
        let peers = (1..=degree).map(|step| name((index + step * step * 7 + step) % workloads));
        let peers: Vec<String> =
            peers.map(|(namespace, app)| format!("{namespace}/{app}")).collect();
        let peers: Vec<&str> = peers.iter().map(String::as_str).collect();
        items.push(admits(&namespace, &app, &peers, 8080));
    }
    items
}

/// [`generated`] with 100 nodes, and a Service for each workload.
pub(crate) fn generated_with_services(workloads: usize, pods: usize, degree: usize) -> Vec<Value> {
    const NODES: u32 = 100;
    let mut items = generated(workloads, pods, degree);
    let mut number = 0;
    for item in items.iter_mut().filter(|item| item["kind"] == "Pod") {
        number += 1;
        item["spec"]["nodeName"] = json!(format!("n{}", number % NODES));
    }
    let address = |base: u32, number: u32| std::net::Ipv4Addr::from(base + number).to_string();
    items.extend((0..NODES).map(|node| {
        let addresses =
            json!([{ "type": "InternalIP", "address": address(0xc0a8_0000, node + 1) }]);
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": format!("n{node}") },
            "status": { "addresses": addresses },
        })
    }));
    for index in 0..u32::try_from(workloads).unwrap() {
        let (namespace, app) = (format!("team-{:02}", index / 20), format!("service-{index:04}"));
        let pods = u32::try_from(pods).unwrap();
        let endpoints: Vec<Value> = (1..=pods)
            .map(|pod| json!({ "addresses": [address(0x0a00_0000, index * pods + pod)] }))
            .collect();
        items.push(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": app, "namespace": namespace },
            "spec": {
                "selector": { "app": app }, "clusterIP": address(0x0a60_0000, index),
                "ports": [{ "port": 80, "targetPort": 8080, "protocol": "TCP" }],
            },
        }));
        items.push(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": app, "namespace": namespace, "labels": { "kubernetes.io/service-name": app },
            },
            "addressType": "IPv4", "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
            "endpoints": endpoints,
        }));
    }
    items
}

/// A cluster with names that engineers know, for pictures.
pub(crate) fn pictured() -> Vec<Value> {
    const NAMESPACES: [(&str, &[&str]); 8] = [
        (
            "shop",
            &[
                "web",
                "cart",
                "checkout",
                "catalog",
                "search",
                "recommend",
                "images",
                "session-cache",
                "orders",
            ],
        ),
        ("billing", &["api", "invoices", "ledger", "ledger-db", "mailer", "tax"]),
        ("identity", &["login", "tokens", "users", "users-db", "audit-log"]),
        ("data", &["kafka", "kafka-connect", "warehouse", "etl", "reports"]),
        ("monitoring", &["prometheus", "grafana", "alertmanager", "loki", "tempo"]),
        ("ingress", &["gateway", "waf"]),
        ("kube-system", &["coredns", "metrics-server"]),
        ("sandbox", &["jobs", "notebook"]),
    ];
    let mut items = Vec::new();
    let mut address = 10_u32;
    for (space, apps) in NAMESPACES {
        items.push(namespace(space));
        for app in apps {
            for number in 0..2 {
                address += 1;
                items.push(pod(space, app, number, &format!("10.1.0.{address}")));
            }
        }
    }
    items.extend(["shop", "billing", "identity"].map(|space| admits(space, "", &[], 1)));
    let web = admits("shop", "web", &["ingress/gateway"], 8080);
    items.push(sends(web, &["shop/cart", "shop/catalog", "shop/search", "identity/login"], 8080));
    let cart = admits("shop", "cart", &["shop/web"], 8080);
    items.push(sends(cart, &["shop/session-cache", "shop/checkout"], 8080));
    let mailer = admits("billing", "mailer", &["billing/api", "billing/invoices"], 587);
    items.push(sends(mailer, &["203.0.113.0/24"], 587));
    let api = admits("billing", "api", &["shop/checkout", "shop/orders"], 8080);
    items.push(sends(api, &["billing/ledger", "billing/tax", "billing/mailer"], 8080));
    let login = admits("identity", "login", &["shop/web", "ingress/gateway"], 8080);
    items.push(sends(login, &["identity/tokens", "identity/users"], 8080));
    items.extend([
        admits("shop", "checkout", &["shop/cart"], 8080),
        admits("shop", "catalog", &["shop/web", "shop/search", "shop/recommend"], 8080),
        admits("shop", "search", &["shop/web"], 8080),
        admits("shop", "orders", &["shop/checkout", "data/etl"], 8080),
        admits("shop", "session-cache", &["shop/cart", "shop/web"], 6379),
        admits("shop", "images", &["ingress/gateway"], 8080),
        admits("billing", "ledger", &["billing/api", "billing/invoices"], 8080),
        admits("billing", "ledger-db", &["billing/ledger"], 5432),
        admits("billing", "tax", &["billing/api"], 8080),
        admits("identity", "tokens", &["identity/login", "shop/web", "billing/api"], 8080),
        admits("identity", "users", &["identity/login"], 8080),
        admits("identity", "users-db", &["identity/users"], 5432),
        admits("identity", "audit-log", &["identity/login", "identity/tokens"], 8080),
        admits(
            "data",
            "kafka",
            &["shop/orders", "data/kafka-connect", "data/etl", "billing/ledger"],
            9092,
        ),
        on_trial(admits("data", "warehouse", &["data/etl", "data/reports"], 5432)),
        admits("monitoring", "loki", &["monitoring/grafana", "ingress/gateway"], 3100),
        on_trial(admits("monitoring", "tempo", &["monitoring/grafana"], 3200)),
    ]);
    items
}

/// A change of the pictured cluster.
pub(crate) const CHANGE: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: orders
  namespace: shop
spec:
  podSelector:
    matchLabels: {app: orders}
  policyTypes: [Ingress]
  ingress:
  - from:
    - podSelector:
        matchLabels: {app: checkout}
    ports:
    - port: 9090
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: default-deny
  namespace: monitoring
spec:
  podSelector: {}
  policyTypes: [Ingress]
";
