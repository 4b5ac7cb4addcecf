//! Reflection by the node: the node's reply to a forged source is a packet of the node itself.

use netpold_testbed::cluster::TestCluster;
use netpold_testbed::packet::icmp_packet;
use netpold_testbed::{Cni, require_root};

use crate::attacks::volley::{PACKETS, Sender, Tally, try_both};

fn mirror(cni: Cni, rp_filter: &str, tally: &mut Tally) {
    let mut cluster = TestCluster::one(cni).with_pods(&["hostile", "victim"]);
    // The source check would drop the forged packet at the hostile pod's interface.
    cluster.arguments = ["--check-source", "off"].map(str::to_owned).to_vec();
    let keys = ["all", "default", "cni0", cluster.pod("hostile").host_interface()];
    for key in keys {
        let _ = cluster.nodes[0].netns().sysctl(&format!("ipv4/conf/{key}/rp_filter"), rp_filter);
    }
    let wire = cluster.pod("victim").wire("eth0").unwrap();
    for family in 0..2 {
        let node = cluster.nodes[0].addresses()[family];
        let victim = cluster.pod("victim").addresses()[family];
        let case = format!("echo of {node}, {cni:?}, rp_filter {rp_filter}");
        try_both(&mut cluster, (&case, "victim"), &wire, tally, |cluster, volley| {
            let sender = Sender::pod(cluster.pod("hostile"));
            for number in 0..PACKETS {
                let kind = if node.is_ipv4() { (8, 0) } else { (128, 0) };
                let payload = volley.payload(number, 1000);
                sender.send(&icmp_packet((victim, node), kind, [0, 9, 0, 1], &payload));
            }
        });
    }
}

#[test]
fn the_node_is_no_mirror() {
    require_root!();
    let mut tally = Tally::default();
    for cni in [Cni::Ptp, Cni::Bridge] {
        for rp_filter in ["0", "2"] {
            mirror(cni, rp_filter, &mut tally);
        }
    }
    tally.holds();
}
