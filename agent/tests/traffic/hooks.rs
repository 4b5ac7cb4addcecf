//! Other programs on the interfaces that netpold judges.

use netpold_testbed::{Cni, require_root};

use crate::cluster::{Cluster, allow_from};

/// Runs `tc` on the node; what it says when it fails.
fn tc(cluster: &Cluster, arguments: &str) -> Result<(), String> {
    let mut command = cluster.nodes[0].command("tc").unwrap();
    let output = command.args(arguments.split_whitespace()).output().map_err(|e| e.to_string())?;
    let said = || format!("tc {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    output.status.success().then_some(()).ok_or_else(said)
}

/// A filter of somebody else that drops what netpold allows: it has its say, before and after
/// netpold comes, and netpold has its own.
#[test]
fn filters_of_others_still_run() {
    if !require_root("filters_of_others_still_run") {
        return;
    }
    let mut cluster = Cluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.policy("server", allow_from("server", "friend"));
    let interface = cluster.pod("server").host_interface().to_owned();
    let filter = |verb, more| format!("filter {verb} dev {interface} egress {more}");
    let add = filter("add", "protocol all prio 1 matchall action drop");
    if let Err(why) =
        tc(&cluster, &format!("qdisc add dev {interface} clsact")).and_then(|()| tc(&cluster, &add))
    {
        eprintln!("SKIPPED filters_of_others_still_run: {why}");
        return;
    }
    cluster.enforce();
    cluster.denied("friend", "server");
    tc(&cluster, &filter("del", "")).unwrap();
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    tc(&cluster, &add).unwrap();
    cluster.denied("friend", "server");
}
