//! Statuses as a function of objects and reports.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use netpold_api::crd::{NodeReport, PolicyOnNode, PolicyReport};
use netpold_core::budget::POLICY_UNITS;
use netpold_core::model::{
    Change, ClusterPolicy, Enforcement, Key, Labels, NamespacedPods, Node, Pod, Policy,
    PolicyVersion, Requirement, Selector, Tier,
};
use netpold_testbed::skip;
use netpold_testkit::objects;
use netpold_testkit::random::Random;
use serde_json::{Value, json};

use crate::evaluate::{ACCEPTED, ENFORCING, evaluate};
use crate::index::{AffectedPolicies, Index, Moment};

struct World {
    index: Index,
    now: Moment,
}

fn key() -> Key {
    Key::new("x", "p")
}

impl World {
    /// Creates a policy for the pods of the app `a`, and three nodes with one pod each.
    fn new() -> Self {
        let now = Moment { instant: Instant::now(), unix: 1_000_000 };
        let mut world = Self { index: Index::default(), now };
        for node in ["n1", "n2", "n3"] {
            world.say(Change::Node(Node { name: node.into(), ..Node::default() }));
            world.pod(node, "a", node);
        }
        world.policy(1, &[]);
        world
    }

    fn say(&mut self, change: Change) -> AffectedPolicies {
        let mut touched = AffectedPolicies::new();
        self.index.ingest(change, self.now, &mut touched);
        touched
    }

    fn pod(&mut self, name: &str, app: &str, node: &str) -> AffectedPolicies {
        let labels = Labels::from_iter([("app".to_owned(), app.to_owned())]);
        let key = Key::new("x", name);
        self.say(Change::Pod(pod(key, labels, node)))
    }

    fn policy(&mut self, generation: i64, problems: &[&str]) -> AffectedPolicies {
        self.policy_as(Enforcement::Enforce, generation, problems)
    }

    fn policy_as(
        &mut self,
        enforcement: Enforcement,
        generation: i64,
        problems: &[&str],
    ) -> AffectedPolicies {
        let of_app = Requirement::In("app".to_owned(), vec!["a".to_owned()]);
        self.say(Change::Policy(Policy {
            key: key(),
            pod_selector: Selector { requirements: vec![of_app] },
            ingress: Some(Vec::new()),
            egress: None,
            problems: problems.iter().map(|it| (*it).to_owned()).collect(),
            version: PolicyVersion { uid: "u".into(), generation },
            enforcement,
            denial: None,
        }))
    }

    fn report(
        &mut self,
        node: &str,
        generation: i64,
        enforced: bool,
        message: &str,
    ) -> AffectedPolicies {
        let policy = PolicyOnNode {
            uid: "u".into(),
            observed_generation: generation,
            enforced,
            message: message.into(),
            ..PolicyOnNode::default()
        };
        self.reports(node, NodeReport { policies: vec![policy], ..NodeReport::default() })
    }

    fn reports(&mut self, node: &str, report: NodeReport) -> AffectedPolicies {
        let renew_time = Some(Time(Timestamp::from_second(self.now.unix).unwrap()));
        let mut touched = AffectedPolicies::new();
        self.index.report(node, Some(&NodeReport { renew_time, ..report }), self.now, &mut touched);
        touched
    }

    fn pass(&mut self, seconds: u64) -> AffectedPolicies {
        self.now.instant += Duration::from_secs(seconds);
        self.now.unix += seconds as i64;
        let mut touched = AffectedPolicies::new();
        self.index.update_presence(self.now, &mut touched);
        touched
    }

    fn status(&self) -> PolicyReport {
        evaluate(&self.index, &key(), None, self.now).unwrap()
    }

    /// Returns the desired, enforced and failed nodes, and status and reason of both conditions.
    fn said(&self) -> (i32, i32, i32, String, String) {
        let status = self.status();
        let of = |name: &str| {
            let found = status.conditions.iter().find(|it| it.type_ == name).unwrap();
            format!("{} {}", found.status, found.reason)
        };
        let nodes = &status.nodes;
        (nodes.desired, nodes.enforced, nodes.failed, of(ACCEPTED), of(ENFORCING))
    }
}

fn pod(key: Key, labels: Labels, node: &str) -> Pod {
    let pod = objects::pod(&key.namespace, &key.name, &[], &[]);
    Pod { labels, node: node.into(), ..pod }
}

#[track_caller]
fn assert_said(world: &World, nodes: [i32; 3], accepted: &str, enforcing: &str) {
    let [desired, enforced, failed] = nodes;
    assert_eq!(world.said(), (desired, enforced, failed, accepted.into(), enforcing.into()));
}

/// Agents do not keep such a selector either: the policy isolates all pods of its namespace.
#[test]
fn a_pod_selector_over_the_budget_stands_for_every_pod_of_its_namespace() {
    let mut world = World::new();
    world.pod("n2", "b", "n2");
    let nodes = |world: &World| {
        let nodes = world.index.on_nodes(&key(), world.now).into_iter();
        nodes.map(|on_node| on_node.node.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(nodes(&world), ["n1", "n3"]);
    let values = (0..=POLICY_UNITS).map(|n| format!("{n:06}")).collect();
    let nobody = Selector { requirements: vec![Requirement::In("app".to_owned(), values)] };
    let huge = Policy {
        pod_selector: nobody,
        ..objects::policy("x", "p", Selector::default(), Some(Vec::new()), None)
    };
    world.say(Change::Policy(huge));
    assert_eq!(nodes(&world), ["n1", "n2", "n3"]);
}

#[test]
fn nodes_report_one_by_one() {
    let mut world = World::new();
    assert_said(&world, [3, 0, 0], "Unknown NotLookedAt", "False Pending");
    assert_eq!(world.report("n1", 1, true, "").len(), 1);
    assert!(world.report("n1", 1, true, "").is_empty(), "nothing new");
    assert_said(&world, [3, 1, 0], "True Honoured", "False Pending");
    for node in ["n2", "n3"] {
        world.report(node, 1, true, "");
    }
    assert_said(&world, [3, 3, 0], "True Honoured", "True AllNodes");
    assert_eq!(world.policy(2, &[]).len(), 1);
    assert_said(&world, [3, 0, 0], "Unknown NotLookedAt", "False Pending");
    world.report("n1", 2, false, "spec.ingress: closed: too large");
    assert_said(&world, [3, 0, 1], "False PartNotHonoured", "False NotHonoured");
    world.report("n1", 2, true, "spec.ingress[0]: not understood");
    assert_said(&world, [3, 1, 0], "False PartNotHonoured", "False Pending");
}

#[test]
fn a_cluster_policy_is_in_force_on_the_nodes_with_a_selected_pod() {
    let mut world = World::new();
    let label = |world: &mut World, namespace: &str, tenant: &str| {
        world.say(Change::Namespace(objects::namespace(namespace, &[("tenant", tenant)])))
    };
    world.say(Change::Pod(pod(Key::new("y", "other"), Labels::new(), "n3")));
    label(&mut world, "x", "red");
    let namespaces = objects::select(&[("tenant", "red")]);
    let touched = world.say(Change::ClusterPolicy(ClusterPolicy {
        subject: NamespacedPods { namespaces, pods: Selector::default() },
        version: PolicyVersion { uid: "c".into(), generation: 7 },
        ..objects::cluster_policy("tenants", (Tier::Admin, 100), Vec::new(), Vec::new())
    }));
    let key = Key::new("", "tenants");
    assert_eq!(touched, AffectedPolicies::from([key.clone()]));
    let nodes = |world: &World| {
        let report = evaluate(&world.index, &key, None, world.now).unwrap();
        assert_eq!(report.policy_generation, 7);
        [report.nodes.desired, report.nodes.enforced]
    };
    assert_eq!(nodes(&world), [3, 0]);
    let entry = PolicyOnNode {
        uid: "c".into(),
        observed_generation: 7,
        enforced: true,
        ..PolicyOnNode::default()
    };
    let report = NodeReport { policies: vec![entry], ..NodeReport::default() };
    assert!(world.reports("n1", report).contains(&key));
    assert_eq!(nodes(&world), [3, 1]);
    assert!(label(&mut world, "y", "blue").is_empty(), "selected neither before nor now");
    assert_eq!(label(&mut world, "x", "blue"), AffectedPolicies::from([key.clone()]));
    assert_eq!(nodes(&world), [0, 0]);
    assert_eq!(label(&mut world, "y", "red"), AffectedPolicies::from([key.clone()]));
    assert_eq!(nodes(&world), [1, 0], "n3");
    let placed = pod(Key::new("y", "late"), Labels::new(), "n2");
    assert_eq!(world.say(Change::Pod(placed)), AffectedPolicies::from([key.clone()]));
    assert_eq!(nodes(&world), [2, 0]);
    assert_eq!(world.say(Change::NamespaceGone("y".into())), AffectedPolicies::from([key.clone()]));
    world.say(Change::ClusterPolicyGone("tenants".into()));
    assert!(evaluate(&world.index, &key, None, world.now).is_none());
}

/// An annotation changes the mode but not `metadata.generation`, which counts changes of the spec.
#[test]
fn a_policy_on_trial_is_not_enforcing_whatever_nodes_report() {
    let mut world = World::new();
    for node in ["n1", "n2", "n3"] {
        world.report(node, 1, true, "");
    }
    assert_eq!(world.policy_as(Enforcement::Audit, 1, &[]).len(), 1);
    assert_said(&world, [3, 3, 0], "True Honoured", "False OnTrial");
    world.report("n1", 1, false, "audit mode");
    world.policy(1, &[]);
    assert_said(&world, [3, 2, 0], "True Honoured", "False Pending");
}

#[test]
fn a_part_that_is_not_understood_is_said_without_nodes() {
    let mut world = World::new();
    world.policy(1, &["spec.ingress[0]: odd"]);
    assert_said(&world, [3, 0, 0], "False PartNotHonoured", "False Pending");
}

#[test]
fn agents_fall_silent_and_return() {
    let mut world = World::new();
    for node in ["n1", "n2"] {
        world.report(node, 1, true, "");
    }
    assert!(world.pass(100).is_empty());
    world.report("n1", 1, true, "");
    assert_eq!(world.pass(100).len(), 1);
    assert_said(&world, [3, 1, 2], "True Honoured", "False AgentSilent");
    let failed = world.status().not_enforced;
    let failed: Vec<_> = failed.iter().map(|it| (&*it.node, &*it.reason)).collect();
    assert_eq!(failed, [("n2", "AgentSilent"), ("n3", "NoAgent")]);
    for node in ["n2", "n3"] {
        world.report(node, 1, true, "");
    }
    assert_said(&world, [3, 3, 0], "True Honoured", "True AllNodes");
    world.say(Change::NodeGone("n3".into()));
    assert_said(&world, [2, 2, 0], "True Honoured", "True AllNodes");
}

/// Renewals count even if the agent's clock is an hour slow.
#[test]
fn an_agent_with_a_wrong_clock_is_not_silent_for_long() {
    let mut world = World::new();
    let report = |world: &mut World| {
        world.now.unix -= 3600;
        world.report("n1", 1, true, "");
        world.now.unix += 3600;
    };
    report(&mut world);
    assert_eq!(world.said().2, 1);
    world.pass(60);
    report(&mut world);
    assert_eq!((world.said().1, world.said().2), (1, 0));
    world.pass(200);
    assert_eq!((world.said().1, world.said().2), (0, 3));
}

#[test]
fn nodes_that_omit_policies_leave_it_open() {
    let mut world = World::new();
    for node in ["n1", "n2"] {
        world.report(node, 1, true, "");
    }
    let touched = world.reports("n3", NodeReport { policies_omitted: 7, ..NodeReport::default() });
    assert_eq!(touched.len(), 1);
    assert_said(&world, [3, 2, 0], "True Honoured", "Unknown NotLookedAt");
}

#[test]
fn pods_that_do_not_count_do_not() {
    let mut world = World::new();
    for node in ["n1", "n2", "n3"] {
        world.report(node, 1, true, "");
    }
    assert!(world.pod("second", "a", "n1").is_empty(), "another of the same on the node");
    assert!(world.pod("other", "b", "n1").is_empty(), "no policy selects it");
    assert_eq!(world.say(Change::PodGone(Key::new("x", "n2"))).len(), 1);
    assert_said(&world, [2, 2, 0], "True Honoured", "True AllNodes");
    let host = Pod { host_network: true, ..pod(Key::new("x", "n3"), Labels::new(), "n3") };
    assert_eq!(world.say(Change::Pod(host)).len(), 1);
    for gone in ["n1", "second"] {
        world.say(Change::PodGone(Key::new("x", gone)));
    }
    assert_said(&world, [0, 0, 0], "True Honoured", "True NoPods");
}

#[test]
fn times_change_with_the_status_alone() {
    let mut world = World::new();
    let first = world.status();
    world.pass(5);
    let second = evaluate(&world.index, &key(), Some(&first), world.now).unwrap();
    assert_eq!(second, first);
    world.policy(2, &[]);
    let third = evaluate(&world.index, &key(), Some(&second), world.now).unwrap();
    assert_eq!(third.conditions[1].last_transition_time, first.conditions[1].last_transition_time);
    assert_eq!((first.policy_generation, third.policy_generation), (1, 2));
}

/// Verdict of kstatus, the library of Helm, Flux and kpt, on an object of any kind.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Current,
    InProgress,
    Failed,
}

/// The rules of kstatus for an object that is not being deleted.
fn kstatus(object: &Value) -> Verdict {
    let status = &object["status"];
    if status["observedGeneration"]
        .as_i64()
        .is_some_and(|it| object["metadata"]["generation"] != it)
    {
        return Verdict::InProgress;
    }
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is = |type_: &str| conditions.iter().find(|it| it["type"] == type_).map(|it| &it["status"]);
    if is("Stalled").is_some_and(|it| it == "True") {
        Verdict::Failed
    } else if is("Reconciling").is_some_and(|it| it == "True")
        || is("Ready").is_some_and(|it| it != "True")
    {
        Verdict::InProgress
    } else {
        Verdict::Current
    }
}

/// Statuses after each step of 200 random histories of edits, reports and pods, with the verdict that `Enforcing` implies.
fn histories() -> Vec<(Value, Verdict)> {
    let mut statuses = Vec::new();
    for seed in 1..=200 {
        let (mut random, mut world) = (Random(seed), World::new());
        let (mut generation, mut before) = (1, None);
        for _ in 0..20 {
            let node = ["n1", "n2", "n3"][random.below(3)];
            match random.below(8) {
                0 => {
                    generation += 1;
                    world.policy(generation, &[]);
                }
                1 => drop(world.pass(random.below(120) as u64)),
                2 => drop(world.say(Change::PodGone(Key::new("x", node)))),
                3 => drop(world.pod(node, "a", node)),
                4 => drop(world.report(node, generation, false, "spec.ingress: closed: too large")),
                _ => drop(world.report(node, generation - random.below(2) as i64, true, "")),
            }
            let report = evaluate(&world.index, &key(), before.as_ref(), world.now).unwrap();
            assert_eq!(report.policy_generation, generation);
            let enforcing = report.conditions.iter().find(|it| it.type_ == ENFORCING).unwrap();
            let verdict = match (&*enforcing.status, report.nodes.failed) {
                ("True", _) => Verdict::Current,
                (_, 0) => Verdict::InProgress,
                _ => Verdict::Failed,
            };
            let object = json!({ "metadata": { "generation": 1 }, "status": &report });
            statuses.push((object, verdict));
            before = Some(report);
        }
    }
    for verdict in [Verdict::Current, Verdict::InProgress, Verdict::Failed] {
        assert!(statuses.iter().filter(|(_, it)| *it == verdict).count() > 200, "{verdict:?}");
    }
    statuses
}

#[test]
fn kstatus_agrees_with_enforcing() {
    for (object, verdict) in histories() {
        assert_eq!(kstatus(&object), verdict, "{object}");
    }
    let next = json!({ "metadata": { "generation": 2 }, "status": { "observedGeneration": 1 } });
    assert_eq!(kstatus(&next), Verdict::InProgress);
}

#[test]
fn the_health_script_of_argo_cd_agrees_with_enforcing() {
    let script = include_str!("../../../deploy/gitops/health.lua");
    let config = include_str!("../../../deploy/gitops/argocd-cm.yaml");
    let indented = script.lines().filter(|line| !line.starts_with("--"));
    let indented = indented.map(|line| format!("    {line}\n")).collect::<String>();
    assert!(config.ends_with(&indented), "argocd-cm.yaml holds the script");
    let mut program = format!("local function health(obj)\n{script}\nend\n");
    let histories = histories();
    for (object, _) in &histories {
        writeln!(program, "print(health({}).status)", lua(object)).unwrap();
    }
    // Objects that the controller has not reported on.
    for object in
        [json!({ "metadata": { "generation": 1 } }), json!({ "metadata": {}, "status": {} })]
    {
        writeln!(program, "print(health({}).status)", lua(&object)).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), program).unwrap();
    let Ok(output) = Command::new("lua5.4").arg(file.path()).output() else {
        let test = "the_health_script_of_argo_cd_agrees_with_enforcing";
        return skip(test, "needs lua5.4 (`cargo xtask setup`)");
    };
    assert!(output.status.success(), "{output:?}");
    let states = String::from_utf8(output.stdout).unwrap();
    let expected = histories.iter().map(|(_, verdict)| match verdict {
        Verdict::Current => "Healthy",
        Verdict::InProgress => "Progressing",
        Verdict::Failed => "Degraded",
    });
    let expected = expected.chain(["Progressing", "Progressing"]).collect::<Vec<_>>();
    assert_eq!(states.lines().collect::<Vec<_>>(), expected);
}

/// Writes a value as a Lua constructor.
fn lua(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("{{{}}}", items.iter().map(lua).collect::<Vec<_>>().join(","))
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name}={}", lua(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        Value::Null => "nil".to_owned(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// A policy on trial is in the state that its author wants.
#[test]
fn a_policy_on_trial_is_ready_once_nodes_judge_with_it() {
    let mut world = World::new();
    world.policy_as(Enforcement::Audit, 1, &[]);
    let verdict = |world: &World| {
        kstatus(&json!({ "metadata": { "generation": 1 }, "status": world.status() }))
    };
    assert_eq!(verdict(&world), Verdict::InProgress);
    for node in ["n1", "n2", "n3"] {
        world.report(node, 1, true, "");
    }
    assert_eq!(verdict(&world), Verdict::Current);
}
