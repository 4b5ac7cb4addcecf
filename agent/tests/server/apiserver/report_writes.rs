//! Writes of the node's report that the API server refuses, or that it stores without the agent's knowledge.

use std::time::Duration;

use netpold_testbed::apiserver::Request;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::apiserver::in_force::eventually;
use crate::apiserver::world::{USER, World, allow_from, rbac_file};

/// Longer than the agent's pause between two reports.
const NEXT_REPORT: Duration = Duration::from_secs(8);

impl World {
    /// Returns the agents' writes of the report.
    fn report_writes(&self) -> Vec<Request> {
        let requests = self.server.requests(USER).unwrap().into_iter();
        requests.filter(|it| it.verb == "patch" && it.resource.starts_with("nodepolicy")).collect()
    }

    /// Returns the number of writes of the report with this HTTP status.
    fn answered(&self, code: u64) -> usize {
        self.report_writes().iter().filter(|it| it.code == code).count()
    }

    fn node_report(&self) -> Value {
        self.server.get("nodepolicystatus", "", "n1").unwrap().unwrap_or_default()["status"].take()
    }

    /// Returns the `resourceVersion` of the report.
    fn object_version(&self) -> Value {
        let object = self.server.get("nodepolicystatus", "", "n1").unwrap();
        object.unwrap_or_default()["metadata"]["resourceVersion"].take()
    }

    /// Returns whether the API server is busy with a write.
    fn waits_for_etcd(&self) -> bool {
        let metrics = self.server.kubectl(&["get", "--raw", "/metrics"]).unwrap();
        let name = "apiserver_current_inflight_requests{request_kind=\"mutating\"} ";
        metrics.lines().any(|it| it.strip_prefix(name).is_some_and(|count| count != "0"))
    }

    /// Returns the names of the policies in the report; `None` without a list.
    fn reported_names(&self) -> Option<Vec<String>> {
        let report = self.node_report();
        let name = |it: &Value| it["name"].as_str().unwrap_or_default().to_owned();
        Some(report["policies"].as_array()?.iter().map(name).collect())
    }

    /// Grants or withdraws the agent's right to list pods, without which it is not in sync.
    fn grant_pods(&self, granted: bool) {
        let text = std::fs::read_to_string(rbac_file()).unwrap();
        let all = "[namespaces, nodes, pods, services]";
        assert!(text.contains(all));
        let without = text.replace(all, "[namespaces, nodes, services]");
        self.server.apply(if granted { &text } else { &without }).unwrap();
    }

    /// Waits until the report has exactly these policies, and checks that no write was refused as malformed.
    #[track_caller]
    fn reports_policies(&self, names: &[&str]) {
        eventually(self, &format!("a report of {names:?}"), || {
            self.reported_names().is_some_and(|found| found == names)
        });
        assert_eq!(self.answered(422), 0, "{:#?}", self.report_writes());
    }
}

/// An agent that is not in sync reports this before it knows its policies. Its next report has a list of policies for
/// an object without a list, or with the list of its predecessor.
#[test]
fn the_first_list_of_policies_replaces_any_former_one() {
    const TEST: &str = "the_first_list_of_policies_replaces_any_former_one";
    let Some(mut world) = World::new(TEST) else { return };
    ["server", "friend"].into_iter().for_each(|name| world.add(name));
    world.policy("server", allow_from("server", "friend"));
    world.grant_pods(false);
    world.start_agent();
    eventually(&world, "not in sync", || world.node_report()["inSync"] == false);
    assert_eq!(world.reported_names(), None, "an object without a list");
    world.grant_pods(true);
    world.reports_policies(&["server"]);

    world.agent().end(Signal::SIGTERM);
    world.without_policy("server");
    world.policy("friend", allow_from("friend", "server"));
    world.grant_pods(false);
    let (agent, node) = (world.agent.as_mut().unwrap(), &world.node);
    agent.restart(node).unwrap();
    eventually(&world, "not in sync again", || world.node_report()["inSync"] == false);
    assert_eq!(world.reported_names().unwrap(), ["server"], "the predecessor's list");
    world.grant_pods(true);
    world.reports_policies(&["friend"]);

    // The API server answers a write to an object that another client has changed with a conflict.
    let conflicts = world.answered(409);
    let note = ["annotate", "nodepolicystatus", "n1", "example.com/note=seen"];
    world.server.kubectl(&note).unwrap();
    world.policy("server", allow_from("server", "friend"));
    world.reports_policies(&["friend", "server"]);
    assert_eq!(world.answered(409), conflicts + 1, "{:#?}", world.report_writes());
}

/// The API server stores a report, and its answer is lost: the agent does not know the object's version.
#[test]
fn a_report_after_a_lost_answer_is_not_refused() {
    const TEST: &str = "a_report_after_a_lost_answer_is_not_refused";
    let Some(mut world) = World::new(TEST) else { return };
    ["server", "friend", "late"].into_iter().for_each(|name| world.add(name));
    world.policy("server", allow_from("server", "friend"));
    world.start_agent();
    world.reports_policies(&["server"]);
    eventually(&world, "all enforced", || world.node_report()["podsEnforced"] == json!(3));
    std::thread::sleep(NEXT_REPORT);
    let (version, stored) = (world.object_version(), world.answered(200));
    // The request reaches the API server, which waits for etcd.
    world.server.etcd().freeze();
    let gone = format!("link del {}\n", world.pod("late").host_interface());
    world.node.netns().ip(&gone).unwrap();
    eventually(&world, "on its way", || world.waits_for_etcd());
    world.partition(true);
    world.server.etcd().thaw();
    eventually(&world, "stored", || world.answered(200) > stored);
    assert_ne!(world.object_version(), version);
    assert_eq!(world.node_report()["podsEnforced"], 2);
    // The agent gives up waiting for the answer.
    let log = |world: &World| world.agent.as_ref().unwrap().log();
    let lost = "cannot report enforcement to the API server";
    eventually(&world, "without an answer", || log(&world).contains(lost));
    world.partition(false);
    world.policy("friend", allow_from("friend", "server"));
    world.reports_policies(&["friend", "server"]);
    let refused = world.report_writes().into_iter().filter(|it| it.code >= 400);
    assert_eq!(refused.filter(|it| it.code != 404).collect::<Vec<_>>(), []);
}
