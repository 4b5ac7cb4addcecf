//! The nodes' network: a link between the two, routes to the pods behind each, and what CNI plugins
//! are told. There is no route to anything else.

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::state::{NODES, State};
use super::{Cni, Family, Layout};

/// Translated before they are sent, but the node itself looks for a route first.
const SERVICES4: &str = "10.96.0.0/16";
const SERVICES6: &str = "fd00:10:96::/112";

/// A node's address, and the networks of its pods.
pub(super) struct Addresses {
    pub(super) node4: Ipv4Addr,
    pub(super) node6: Ipv6Addr,
    pods4: String,
    pods6: String,
}

impl Addresses {
    /// Of a node by its place in [`NODES`].
    pub(super) fn of(index: usize) -> Self {
        let number = index as u8 + 1;
        Self {
            node4: Ipv4Addr::new(10, 89, 0, number),
            node6: Ipv6Addr::new(0xfd00, 0x10, 0x89, 0, 0, 0, 0, number.into()),
            pods4: format!("10.244.{number}.0/24"),
            pods6: format!("fd00:10:244:{number}::/64"),
        }
    }
}

impl Addresses {
    /// The first three numbers of its pods' IPv4 addresses.
    pub(super) fn pods4_prefix(&self) -> &str {
        self.pods4.trim_end_matches(".0/24")
    }
}

/// All pods' networks, as kube-proxy takes them.
pub(super) fn pods(layout: &Layout) -> &'static str {
    match layout.family {
        Family::Dual => "10.244.0.0/16,fd00:10:244::/56",
        Family::Ipv4 => "10.244.0.0/16",
    }
}

/// All Services' networks, as the API server takes them.
pub(super) fn services(layout: &Layout) -> String {
    match layout.family {
        Family::Dual => format!("{SERVICES4},{SERVICES6}"),
        Family::Ipv4 => SERVICES4.to_owned(),
    }
}

/// Links the nodes, whose inits run.
///
/// # Errors
/// With what `ip` says.
pub(super) fn link(state: &State, layout: &Layout) -> Result<()> {
    let (first, second) = (state.init(NODES[0])?, state.init(NODES[1])?);
    // Both ends are made where they belong, and never in the machine's network.
    ip(first.as_raw(), &format!("link add eth0 type veth peer name eth0 netns {second}\n"))?;
    for (index, init) in [first, second].into_iter().enumerate() {
        let (own, other) = (Addresses::of(index), Addresses::of(1 - index));
        let mut batch = format!(
            "link set lo up\naddress add {}/24 dev eth0\nlink set eth0 up\nroute add {} via {}\n\
             route add {SERVICES4} dev eth0\n",
            own.node4, other.pods4, other.node4
        );
        if layout.family == Family::Dual {
            batch += &format!(
                "address add {}/64 dev eth0 nodad\nroute add {} via {}\n\
                 route add {SERVICES6} dev eth0\n",
                own.node6, other.pods6, other.node6
            );
        }
        ip(init.as_raw(), &batch)?;
    }
    Ok(())
}

/// Feeds lines to `ip -batch` in the network of a process.
fn ip(process: i32, batch: &str) -> Result<()> {
    let mut child = Command::new("nsenter")
        .args([&format!("--target={process}"), "--net", "--", "ip", "-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run nsenter (util-linux)")?;
    child.stdin.take().context("no stdin")?.write_all(batch.as_bytes())?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip: {}\n{batch}", said.trim());
    Ok(())
}

/// Writes the one network that the runtime gives pods.
///
/// # Errors
/// It cannot be written.
pub(super) fn write_cni(folder: &Path, layout: &Layout, addresses: &Addresses) -> Result<()> {
    let config = serde_json::to_string_pretty(&conflist(layout, addresses))?;
    super::write(&folder.join("10-pods.conflist"), config)
}

fn conflist(layout: &Layout, addresses: &Addresses) -> Value {
    let mut ranges = vec![json!([{ "subnet": addresses.pods4 }])];
    let mut routes = vec![json!({ "dst": "0.0.0.0/0" })];
    if layout.family == Family::Dual {
        ranges.push(json!([{ "subnet": addresses.pods6 }]));
        routes.push(json!({ "dst": "::/0" }));
    }
    let ipam = json!({ "type": "host-local", "ranges": ranges, "routes": routes });
    let plugin = match layout.cni {
        Cni::Ptp => json!({ "type": "ptp", "ipMasq": false, "ipam": ipam }),
        Cni::Bridge => json!({
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "hairpinMode": true,
            "ipMasq": false,
            "ipam": ipam,
        }),
    };
    let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    json!({ "cniVersion": "0.4.0", "name": "pods", "plugins": [plugin, portmap] })
}

#[cfg(test)]
mod tests {
    use super::super::{Cni, Family, Layout, Proxy};
    use super::{Addresses, conflist};

    #[test]
    fn each_node_has_networks_of_its_own_and_both_families_where_asked() {
        let layout =
            |family| Layout { cni: Cni::Ptp, proxy: Proxy::Nftables, family, binary: None };
        let dual = conflist(&layout(Family::Dual), &Addresses::of(1));
        let ranges = &dual["plugins"][0]["ipam"]["ranges"];
        assert_eq!(ranges[0][0]["subnet"], "10.244.2.0/24");
        assert_eq!(ranges[1][0]["subnet"], "fd00:10:244:2::/64");
        let single = conflist(&layout(Family::Ipv4), &Addresses::of(0));
        let ranges = single["plugins"][0]["ipam"]["ranges"].as_array().map(Vec::len);
        assert_eq!(ranges, Some(1));
    }
}
