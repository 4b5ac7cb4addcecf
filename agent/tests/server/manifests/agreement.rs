//! Agreement of the objects with netpold and with one another.

use std::collections::BTreeSet;

use clap::Parser;
use netpold::cli::{Cli, Command};
use serde_json::{Value, json};

use crate::manifests::rendered::{can_render, deploy, everything, find, option, render};

fn container() -> Value {
    find(&render("base"), "DaemonSet", "netpold")["spec"]["template"]["spec"]["containers"][0]
        .clone()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Checks that each variable corresponds to a flag, and that the paths in the variables are mounted.
#[test]
fn the_agent_has_the_flags_it_is_started_with() {
    if !can_render("the_agent_has_the_flags_it_is_started_with") {
        return;
    }
    let container = container();
    let mut line = vec!["netpold".to_owned()];
    line.extend(list(&container["args"]).iter().map(|a| a.as_str().unwrap().to_owned()));
    for variable in list(&container["env"]) {
        let name = variable["name"].as_str().unwrap().strip_prefix("NETPOLD_").unwrap();
        line.push(format!("--{}", name.to_lowercase().replace('_', "-")));
        let value = variable["value"].as_str().unwrap_or("node-1");
        line.extend((value != "true").then(|| value.to_owned()));
    }
    let Command::Run(run) = Cli::try_parse_from(&line).unwrap().command else {
        panic!("not `netpold run`: {line:?}");
    };
    let mounted = |path: &std::path::Path| {
        let mounts = list(&container["volumeMounts"]).iter();
        mounts
            .filter(|m| m["readOnly"] != true)
            .any(|m| path.starts_with(m["mountPath"].as_str().unwrap()))
    };
    assert!(mounted(&run.bpffs) && mounted(&run.socket), "they are written to");
    assert!(run.take_over, "or the next agent could not start beside this one");
    let port = container["livenessProbe"]["httpGet"]["port"].as_u64().unwrap();
    assert_eq!(run.listen.unwrap().to_string(), format!(":{port}"));
    assert!(
        container["ports"].is_null(),
        "the scheduler places no two pods with one port of a node"
    );
    for probe in ["startupProbe", "readinessProbe"] {
        let command =
            list(&container[probe]["exec"]["command"]).iter().map(|it| it.as_str().unwrap());
        let command = Cli::try_parse_from(command).unwrap().command;
        assert!(
            matches!(command, Command::Ask(netpold_cli::Command::Status(status)) if status.ready),
            "{probe}"
        );
    }
}

/// Checks that the standby watches the same pin root and has no other rights.
#[test]
fn a_standby_runs_beside_the_agent() {
    if !can_render("a_standby_runs_beside_the_agent") {
        return;
    }
    let base = render("base");
    let pod = &find(&base, "DaemonSet", "netpold")["spec"]["template"]["spec"];
    let [agent, standby] = list(&pod["containers"]) else { panic!("two containers") };
    let line = list(&standby["args"]).iter().map(|it| it.as_str().unwrap());
    let command = Cli::try_parse_from(std::iter::once("netpold").chain(line)).unwrap().command;
    assert!(matches!(command, Command::Standby(_)));
    let of = |container: &Value, name: &str| {
        let all = list(&container["env"]).iter();
        all.filter(|it| it["name"] == name).map(|it| it["value"].clone()).next()
    };
    assert_eq!(of(standby, "NETPOLD_BPFFS"), of(agent, "NETPOLD_BPFFS"));
    let added = &standby["securityContext"]["capabilities"]["add"];
    assert_eq!(*added, json!(["BPF", "NET_ADMIN", "SYS_NICE"]));
    let mounts = list(&standby["volumeMounts"]);
    assert!(mounts.iter().all(|mount| list(&agent["volumeMounts"]).contains(mount)), "{mounts:?}");
}

/// Checks that the capabilities equal those of the systemd unit, with which `tests/deploy` runs the agent.
#[test]
fn the_agent_may_do_what_it_needs_and_no_more() {
    if !can_render("the_agent_may_do_what_it_needs_and_no_more") {
        return;
    }
    let container = container();
    let security = &container["securityContext"];
    let unit = std::fs::read_to_string(deploy().join("standalone/netpold.service")).unwrap();
    let set = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let set: BTreeSet<&str> = set.split(' ').map(|name| name.trim_start_matches("CAP_")).collect();
    let added = list(&security["capabilities"]["add"]).iter().map(|c| c.as_str().unwrap());
    assert_eq!(added.collect::<BTreeSet<_>>(), set);
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["privileged"], false);
}

#[test]
fn every_node_has_an_agent_that_nothing_drives_away() {
    if !can_render("every_node_has_an_agent_that_nothing_drives_away") {
        return;
    }
    let base = render("base");
    let set = &find(&base, "DaemonSet", "netpold")["spec"];
    let pod = &set["template"]["spec"];
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(pod["tolerations"], json!([{ "operator": "Exists" }]));
    assert_eq!(pod["hostNetwork"], true);
    let update = &set["updateStrategy"]["rollingUpdate"];
    assert_eq!((&update["maxSurge"], &update["maxUnavailable"]), (&json!("10%"), &json!(0)));
    let account = find(&base, "ServiceAccount", "netpold");
    assert_eq!(pod["serviceAccountName"], account["metadata"]["name"]);
    let subject = &find(&base, "ClusterRoleBinding", "netpold")["subjects"][0];
    assert_eq!(subject["name"], account["metadata"]["name"]);
    assert_eq!(subject["namespace"], account["metadata"]["namespace"]);
    assert_eq!(set["selector"]["matchLabels"], set["template"]["metadata"]["labels"]);
    let namespace = &find(&base, "Namespace", "")["metadata"]["name"];
    let namespaced = base.iter().map(|o| &o["metadata"]["namespace"]).filter(|n| !n.is_null());
    assert!(namespaced.into_iter().all(|n| n == namespace));
}

#[test]
fn the_overlays_name_what_is_there() {
    if !can_render("the_overlays_name_what_is_there") {
        return;
    }
    let protection = option("api-protection");
    let accounts = ["netpold", "netpold-controller"];
    for schema in protection.iter().filter(|o| o["kind"] == "FlowSchema") {
        let level = schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap();
        find(&protection, "PriorityLevelConfiguration", level);
        for subject in schema["spec"]["rules"].as_array().unwrap() {
            let account = &subject["subjects"][0]["serviceAccount"];
            assert_eq!(account["namespace"], "netpold-system");
            assert!(accounts.iter().any(|name| account["name"] == *name), "{account}");
        }
    }

    let admission = option("admission");
    for binding in admission.iter().filter(|o| o["kind"] == "ValidatingAdmissionPolicyBinding") {
        let policy = binding["spec"]["policyName"].as_str().unwrap();
        let policy = &find(&admission, "ValidatingAdmissionPolicy", policy)["spec"];
        let parameters = &binding["spec"]["paramRef"];
        assert_eq!(parameters.is_null(), policy["paramKind"].is_null());
        if let Some(name) = parameters["name"].as_str() {
            let found = find(&admission, policy["paramKind"]["kind"].as_str().unwrap(), name);
            assert_eq!(parameters["namespace"], found["metadata"]["namespace"]);
        }
    }
    for (overlay, objects) in everything() {
        for kind in ["ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"] {
            let named = |object: &&Value| object["kind"] == format!("{kind}Binding");
            for binding in objects.iter().filter(named) {
                find(&objects, kind, binding["spec"]["policyName"].as_str().unwrap());
            }
            let policies = objects.iter().filter(|object| object["kind"] == kind).count();
            assert_eq!(objects.iter().filter(named).count(), policies, "{overlay}: each is bound");
        }
    }
    let kind = render("overlays/kind");
    let container = &find(&kind, "DaemonSet", "")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "localhost/netpold:dev");
    let bpffs = list(&container["volumeMounts"]).iter().find(|m| m["name"] == "bpffs").unwrap();
    assert_eq!(bpffs["mountPropagation"], "Bidirectional");
    assert_eq!(bpffs["mountPath"], "/sys/fs/bpf");
    assert_eq!(container["securityContext"]["privileged"], true);
    assert!(container["securityContext"]["capabilities"].is_null());
}

/// `kubectl apply` looks up the kind of every object before it creates the first one, so an object of a kind that the
/// same folder defines needs a second apply.
#[test]
fn one_apply_installs_each_folder() {
    if !can_render("one_apply_installs_each_folder") {
        return;
    }
    for (name, objects) in everything() {
        let defined = objects.iter().filter(|o| o["kind"] == "CustomResourceDefinition");
        let defined: Vec<_> = defined.map(|o| &o["spec"]["names"]["kind"]).collect();
        assert!(objects.iter().all(|o| !defined.contains(&&o["kind"])), "{name}");
    }
}

/// Checks that the webhook's configuration leads to the controller, that the quota admits the controller, and that
/// the controller tolerates the startup taint.
#[test]
fn the_controller_is_where_others_look_for_it() {
    if !can_render("the_controller_is_where_others_look_for_it") {
        return;
    }
    let (base, quotas) = (render("base"), option("quotas"));
    let webhook = option("readiness-gate-webhook").remove(0);
    let wanted = &webhook["webhooks"][0]["clientConfig"]["service"];
    let set = find(&base, "Deployment", "netpold-controller");
    let service = find(&base, "Service", "netpold-controller");
    assert_eq!(service["metadata"]["name"], wanted["name"]);
    assert_eq!(service["metadata"]["namespace"], wanted["namespace"]);
    assert_eq!(service["spec"]["ports"][0]["port"], wanted["port"]);
    let pod = &set["spec"]["template"]["spec"];
    let ports = list(&pod["containers"][0]["ports"]);
    assert!(ports.iter().any(|port| port["name"] == service["spec"]["ports"][0]["targetPort"]));
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&service["spec"]["selector"], labels);
    let budget = find(&base, "PodDisruptionBudget", "netpold-controller");
    assert_eq!(&budget["spec"]["selector"]["matchLabels"], labels);
    let classes = &find(&quotas, "ResourceQuota", "critical-pods")["spec"]["scopeSelector"];
    let classes = list(&classes["matchExpressions"][0]["values"]);
    assert!(classes.contains(&pod["priorityClassName"]), "{pod}");
    let tolerated = |key: &str| list(&pod["tolerations"]).iter().any(|it| it["key"] == key);
    assert!(tolerated("netpold.io/agent-not-ready"), "{pod}");
}

/// Checks that the expressions read exactly the shipped limits.
#[test]
fn the_limits_are_those_that_are_read() {
    if !can_render("the_limits_are_those_that_are_read") {
        return;
    }
    let objects = option("admission");
    let limits = find(&objects, "ConfigMap", "network-policy-limits")["data"].as_object().unwrap();
    let policy = find(&objects, "ValidatingAdmissionPolicy", "netpold-limits").to_string();
    let read = policy.match_indices("params.data.").map(|(at, found)| {
        let rest = &policy[at + found.len()..];
        &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap()]
    });
    assert_eq!(read.collect::<BTreeSet<_>>(), limits.keys().map(String::as_str).collect());
}
