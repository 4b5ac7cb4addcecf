//! Network of the nodes: a link between the two, routes to each other's pods, and the CNI configuration. No other
//! routes exist.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::common::write;
use super::layout::{AddressFamily, ClusterLayout, CniPlugin};
use super::state::{ClusterFolder, NODES};

/// Service addresses are translated before packets are sent, but the node's route lookup comes first.
const SERVICES4: &str = "10.96.0.0/16";
const SERVICES6: &str = "fd00:10:96::/112";

/// Address of a node, and networks of its pods.
pub(super) struct NodeNetworks {
    pub(super) node4: Ipv4Addr,
    pub(super) node6: Ipv6Addr,
    pods4: String,
    pods6: String,
}

impl NodeNetworks {
    /// Returns the addresses of a node by its index in [`NODES`].
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

impl NodeNetworks {
    /// Returns the node's address of the first family.
    pub(super) fn first(&self, family: AddressFamily) -> IpAddr {
        family.first(self.node4.into(), self.node6.into())
    }

    /// Returns the first addresses that the node's pods can have, of the first family.
    pub(super) fn pods(&self, family: AddressFamily, count: u8) -> Vec<IpAddr> {
        // Address 1 is the gateway on the node.
        let pod4 = |number: u8| format!("{}{number}", self.pods4.trim_end_matches("0/24"));
        let pod6 = |number: u8| format!("{}{number:x}", self.pods6.trim_end_matches("/64"));
        let all = (2..2 + count).map(|number| family.first(pod4(number), pod6(number)));
        all.filter_map(|address| address.parse().ok()).collect()
    }
}

/// Returns the addresses that the plugin host-local gives after a pod's: it counts on, and starts again at the end of an
/// IPv4 network.
pub(super) fn pods_after(pod: IpAddr, count: u8) -> Vec<IpAddr> {
    let after = |step: u8| match pod {
        IpAddr::V4(pod) => {
            let [first, second, third, last] = pod.octets();
            // 1 is the gateway, 255 the broadcast address.
            let number = (u16::from(last.saturating_sub(2)) + u16::from(step)) % 253 + 2;
            IpAddr::from([first, second, third, number as u8])
        }
        IpAddr::V6(pod) => Ipv6Addr::from(u128::from(pod) + u128::from(step)).into(),
    };
    (1..=count).map(after).collect()
}

/// Returns the networks of all pods, in the format of kube-proxy.
pub(super) fn pods(layout: &ClusterLayout) -> String {
    layout.family.order("10.244.0.0/16", "fd00:10:244::/56").join(",")
}

/// Returns the networks of all Services, in the format of the API server.
pub(super) fn services(layout: &ClusterLayout) -> String {
    layout.family.order(SERVICES4, SERVICES6).join(",")
}

/// Links the two nodes. Their inits must run.
///
/// # Errors
/// `ip` fails; the error has its message.
pub(super) fn link(state: &ClusterFolder, layout: &ClusterLayout) -> Result<()> {
    let (first, second) = (state.init(NODES[0])?, state.init(NODES[1])?);
    // Creates both ends in the nodes' namespaces, never in the machine's.
    ip(first.as_raw(), &format!("link add eth0 type veth peer name eth0 netns {second}\n"))?;
    for (index, init) in [first, second].into_iter().enumerate() {
        let (own, other) = (NodeNetworks::of(index), NodeNetworks::of(1 - index));
        let ipv4 = format!(
            "address add {}/24 dev eth0\nlink set eth0 up\nroute add {} via {}\n\
             route add {SERVICES4} dev eth0\n",
            own.node4, other.pods4, other.node4
        );
        let ipv6 = format!(
            "address add {}/64 dev eth0 nodad\nlink set eth0 up\nroute add {} via {}\n\
             route add {SERVICES6} dev eth0\n",
            own.node6, other.pods6, other.node6
        );
        let batch = format!("link set lo up\n{}", layout.family.order(ipv4, ipv6).concat());
        ip(init.as_raw(), &batch)?;
    }
    Ok(())
}

/// Deletes the first node's end of the link if it still exists: the kernel would delete it with the second node's
/// namespace, but later.
pub(super) fn unlink(state: &ClusterFolder) {
    if let Ok(init) = state.init(NODES[0]) {
        let _ = ip(init.as_raw(), "link delete eth0\n");
    }
}

/// Runs lines with `ip -batch` in the network namespace of a process.
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

/// Writes the CNI configuration of the pods' network.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write_cni(
    folder: &Path,
    layout: &ClusterLayout,
    addresses: &NodeNetworks,
) -> Result<()> {
    let config = serde_json::to_string_pretty(&conflist(layout, addresses))?;
    write(&folder.join("10-pods.conflist"), config)
}

fn conflist(layout: &ClusterLayout, addresses: &NodeNetworks) -> Value {
    let subnet = |pods: &String| json!([{ "subnet": pods }]);
    let ranges = layout.family.order(subnet(&addresses.pods4), subnet(&addresses.pods6));
    let routes = layout.family.order(json!({ "dst": "0.0.0.0/0" }), json!({ "dst": "::/0" }));
    let ipam = json!({ "type": "host-local", "ranges": ranges, "routes": routes });
    let plugin = match layout.cni {
        CniPlugin::Ptp => json!({ "type": "ptp", "ipMasq": false, "ipam": ipam }),
        CniPlugin::Bridge => json!({
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
    use super::super::layout::{AddressFamily, ClusterLayout, CniPlugin, ServiceProxy};
    use super::{NodeNetworks, conflist, pods_after};

    #[test]
    fn each_node_has_networks_of_its_own_and_both_families_where_asked() {
        let layout = |family| ClusterLayout {
            cni: CniPlugin::Ptp,
            proxy: ServiceProxy::Nftables,
            family,
            binary: None,
        };
        for (family, subnets) in [
            (AddressFamily::Dual, &["10.244.2.0/24", "fd00:10:244:2::/64"][..]),
            (AddressFamily::Ipv6First, &["fd00:10:244:2::/64", "10.244.2.0/24"]),
            (AddressFamily::Ipv4, &["10.244.2.0/24"]),
            (AddressFamily::Ipv6, &["fd00:10:244:2::/64"]),
        ] {
            let conflist = conflist(&layout(family), &NodeNetworks::of(1));
            let ipam = &conflist["plugins"][0]["ipam"];
            let ranges = ipam["ranges"].as_array().map(Vec::as_slice).unwrap_or_default();
            let given: Vec<_> = ranges.iter().filter_map(|r| r[0]["subnet"].as_str()).collect();
            assert_eq!(given, subnets);
            assert_eq!(ipam["routes"].as_array().map(Vec::len), Some(subnets.len()));
        }
    }

    #[test]
    fn pods_get_the_addresses_that_are_looked_at() {
        let pods = |family| {
            NodeNetworks::of(0)
                .pods(family, 252)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(pods(AddressFamily::Dual)[0], "10.244.1.2");
        assert_eq!(pods(AddressFamily::Dual)[251], "10.244.1.253");
        assert_eq!(pods(AddressFamily::Ipv6First)[14], "fd00:10:244:1::10");
        assert_eq!(pods(AddressFamily::Ipv6).len(), 252);
    }

    #[test]
    fn later_pods_get_the_addresses_that_are_looked_at() {
        let after = |pod: &str| {
            let pod = pod.parse().expect("an address");
            pods_after(pod, 3).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(after("10.244.1.4"), ["10.244.1.5", "10.244.1.6", "10.244.1.7"]);
        assert_eq!(after("10.244.1.253"), ["10.244.1.254", "10.244.1.2", "10.244.1.3"]);
        assert_eq!(
            after("fd00:10:244:2::fe"),
            ["fd00:10:244:2::ff", "fd00:10:244:2::100", "fd00:10:244:2::101"]
        );
    }
}
