//! XDP at the device by which packets reach the node.

use netpold_testbed::cluster::{TestCluster, allow_from, isolate};
use netpold_testbed::{Agent, require_root};
use nix::sys::signal::Signal;

/// Returns a cluster with a server on the second node that admits only `friend` on the first.
fn guarded(drops: &str) -> TestCluster {
    let mut cluster = TestCluster::two().with_pods(&["friend", "stranger"]);
    cluster.add(1, "server");
    cluster.arguments =
        ["--xdp-uplink", "li*k*", "--xdp-uplink-drops", drops].map(str::to_owned).into();
    cluster.policy("server", allow_from("server", "friend")).enforce();
    cluster
}

/// Returns the mode of the program at the link to the other node.
fn mode(agent: &Agent) -> String {
    let status = agent.status().unwrap();
    let uplinks = status["uplinks"].as_array().unwrap();
    assert_eq!(uplinks.len(), 1, "{status}");
    assert!(uplinks[0]["interface"].as_str().unwrap().starts_with("link"), "{status}");
    uplinks[0]["mode"].as_str().unwrap().to_owned()
}

#[test]
fn xdp_drops_what_policy_denies() {
    require_root!();
    for drops in ["openings", "all"] {
        let mut cluster = guarded(drops);
        assert_eq!(mode(&cluster.agents[1]), "native");
        cluster.reaches("friend", "server");
        cluster.denied("stranger", "server");
        // Answers reach a pod that admits no connection.
        cluster.policy("friend", isolate("friend", &["Ingress"])).enforce();
        cluster.reaches("friend", "server");
        cluster.denied("server", "friend");

        // XDP outlives the agent, and the next agent takes it over.
        cluster.agents[1].end(Signal::SIGKILL);
        cluster.reaches("friend", "server");
        cluster.denied("stranger", "server");
        cluster.restart(1);
        cluster.enforce();
        assert_eq!(mode(&cluster.agents[1]), "native");
        cluster.reaches("friend", "server");
        cluster.denied("stranger", "server");
    }
}
