//! Flows of a pod that is gone, and a pod with the address of the former one: agents end before they sweep, so only the
//! endpoints' numbers keep the two apart.

use netpold_testbed::cluster::{NAMESPACE, PORT, TestCluster, allow_to, isolate};
use netpold_testbed::{Cni, PodSpec, require_root};
use nix::sys::signal::Signal;

use crate::attacks::volley::{BOTH, Sender, Tally, Volley, pairs};

const CLIENT_PORT: u16 = 5000;

/// Kills the agent after a pod has gone. A number that only this pod's flows have is above those of all endpoints.
#[test]
fn no_pod_gets_a_number_that_flows_still_have() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server"]);
    cluster.arguments = ["--readback", "3600"].map(str::to_owned).into();
    cluster.policy("client", isolate("client", &BOTH));
    cluster.policy("to", allow_to("client", "server")).enforce();
    let mut addresses = Vec::new();
    let mut tally = Tally::default();
    // Each agent begins anew to give numbers, and first sweeps with the pods that it finds.
    for is_new in [false, true, true] {
        cluster.agents[0].end(Signal::SIGKILL);
        let name = "client";
        let spec = PodSpec::new(NAMESPACE, name).label("app", name).addresses(&addresses);
        cluster.add_as(0, spec);
        cluster.write();
        cluster.restart(0);
        addresses = cluster.pod(name).addresses().to_vec();
        let wire = cluster.pod(name).wire("eth0").unwrap();
        for (server, client) in pairs(cluster.pod("server"), cluster.pod(name)) {
            let ends = ((server, PORT).into(), (client, CLIENT_PORT).into());
            let send =
                |volley| Sender::pod(cluster.pod("server")).datagrams(volley, ends.0, ends.1);
            if is_new {
                let volley = Volley::new();
                send(volley);
                tally.note(&format!("to a new pod at {client}"), volley.leaked(&wire));
            }
            Sender::pod(cluster.pod(name)).datagrams(Volley::new(), ends.1, ends.0);
            let volley = Volley::new();
            send(volley);
            volley.arrives(&wire, "answers to the pod's own packets");
        }
        cluster.take(name).delete().unwrap();
        cluster.enforce();
    }
    tally.holds();
}
