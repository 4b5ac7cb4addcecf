//! Updates under traffic: every packet is judged by the old or the new state.

use netpold_testbed::cluster::{TestCluster, allow_from};
use netpold_testbed::{Cni, require_root};
use serde_json::{Value, json};

use crate::traffic::load::{guarded, under_load};

/// Returns a policy that allows the addresses of `friend`.
fn allow_addresses_of_friend(cluster: &TestCluster) -> Value {
    let blocks = cluster.pod("friend").addresses().iter().map(|address| {
        let length = if address.is_ipv4() { 32 } else { 128 };
        json!({ "ipBlock": { "cidr": format!("{address}/{length}") } })
    });
    let blocks: Vec<Value> = blocks.collect();
    json!({ "podSelector": { "matchLabels": { "app": "server" } }, "ingress": [{ "from": blocks }] })
}

#[test]
fn no_update_shows_in_between() {
    require_root!();
    let mut cluster = guarded(Cni::Bridge);
    cluster.enforce();
    let by_address = |cluster: &mut TestCluster| {
        let policy = allow_addresses_of_friend(cluster);
        cluster.policy("from", policy).enforce();
    };
    let by_label = |cluster: &mut TestCluster| {
        cluster.policy("from", allow_from("server", "friend")).enforce();
    };
    let to_all = |cluster: &mut TestCluster| {
        let port = json!({ "ports": [{ "port": 80 }, { "port": 80, "protocol": "UDP" }] });
        let select = json!({ "matchLabels": { "app": "server" } });
        cluster.policy("from", json!({ "podSelector": select, "ingress": [port] })).enforce();
    };
    let more_pods = |cluster: &mut TestCluster| {
        cluster.add(0, "another");
        cluster.enforce();
    };
    let fewer_pods = |cluster: &mut TestCluster| {
        cluster.take("another").delete().unwrap();
        cluster.enforce();
    };
    let acts: [&dyn Fn(&mut TestCluster); 6] =
        [&by_address, &to_all, &by_label, &more_pods, &to_all, &fewer_pods];
    under_load(&mut cluster, &acts.repeat(4));
}

/// More distinct port sets than the initial tables hold: a larger generation replaces the tables.
#[test]
fn tables_grow_under_traffic() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    let bitmaps = |status: &Value| {
        let tables = status["tables"].as_array().unwrap();
        tables.iter().find(|t| t["name"] == "port bitmaps").unwrap()["capacity"].as_u64().unwrap()
    };
    let before = bitmaps(&cluster.agents[0].status().unwrap());
    let grow = |cluster: &mut TestCluster| {
        let rule = |n: u64| {
            let block = format!("198.18.{}.{}/32", n / 256, n % 256);
            let ports = json!([{ "port": 10_000 + n, "endPort": 20_000 + n }]);
            json!({ "from": [{ "ipBlock": { "cidr": block } }], "ports": ports })
        };
        let rules: Vec<Value> = (0..before + 10).map(rule).collect();
        let select = json!({ "matchLabels": { "app": "server" } });
        cluster.policy("many", json!({ "podSelector": select, "ingress": rules })).enforce();
    };
    let shrink = |cluster: &mut TestCluster| _ = cluster.without_policy("many").enforce();
    under_load(&mut cluster, &[&grow, &shrink]);
    assert!(bitmaps(&cluster.agents[0].status().unwrap()) > before, "the table has grown");
}
