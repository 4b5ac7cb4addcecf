//! Commands of a user's terminal on a live cluster: its objects, and its agents through the API server.
//!
//! No kubelet runs here: `netpold_testbed::Kubelet` implements the kubelet's part of exec. Agents, API server, RBAC
//! and the processes that exec starts are real.

mod completed;
mod learned;
mod probed;
mod two_nodes;
mod ui;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use futures::StreamExt;
use netpold_client::live::{Agents, ClusterArgs, NodeError, block_on};
use netpold_testbed::cluster::{PORT, eventually, network_policy};
use netpold_testbed::{
    ApiServer, Container, Credential, Kubelet, ProbeProtocol, require_apiserver,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::apiserver::trace;
use crate::apiserver::world::{PATIENCE, World, allow_from, binary};

const AGENTS: &str = "netpold-system";
/// Part of the role `view`, which no controller aggregates here.
const VIEW: &str = "system:aggregate-to-view";

/// Runs `netpold` in the network namespace from which the API server is reachable.
fn netpold(server: &ApiServer, kubeconfig: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).env_clear().env("NETPOLD_KUBECONFIG", kubeconfig);
    server.inside(|| command.output()).unwrap().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Returns the pod of an agent, with its container in `state`.
fn agent_pod(name: &str, node: &str, state: Value) -> Value {
    let status = json!({
        "name": "netpold", "image": "netpold", "imageID": "", "ready": true, "restartCount": 0,
        "state": state,
    });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": AGENTS, "name": name, "labels": { "app.kubernetes.io/name": "netpold" },
        },
        "spec": {
            "nodeName": node,
            "hostNetwork": true,
            "containers": [{ "name": "netpold", "image": "netpold" }],
        },
        "status": { "phase": "Running", "containerStatuses": [status] },
    })
}

fn running() -> Value {
    json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } })
}

/// Returns a kubeconfig of a new service account. Each role is bound in the given namespace, or cluster-wide if the
/// namespace is empty.
fn user(server: &ApiServer, name: &str, roles: &[(&str, &str)]) -> PathBuf {
    server.kubectl(&["create", "serviceaccount", name, "-n", "default"]).unwrap();
    let account = format!("--serviceaccount=default:{name}");
    for (number, (role, namespace)) in roles.iter().enumerate() {
        let (binding, role) = (format!("{name}-{number}"), format!("--clusterrole={role}"));
        let kind = if namespace.is_empty() { "clusterrolebinding" } else { "rolebinding" };
        let place = if namespace.is_empty() { vec![] } else { vec!["-n", namespace] };
        let create = ["create", kind, &binding, &role, &account];
        server.kubectl(&[&create[..], &place].concat()).unwrap();
    }
    let token = server.token("default", name).unwrap();
    server.write_kubeconfig(&format!("{name}.kubeconfig"), &Credential::Token(&token)).unwrap()
}

/// Returns the output of a command in `deploy/live.md`.
fn shown(command: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/live.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(&format!("\n$ kubectl netpold {command}\n")).unwrap();
    rest.split_once("\n```").unwrap().0.to_owned()
}

/// Returns the terminal output, with the API server address of the page.
fn printed(server: &ApiServer, output: &Output) -> String {
    let text = format!("{}{}", stdout(output), stderr(output));
    text.replace(&server.address().to_string(), "10.0.0.1").trim_end().to_owned()
}

/// Applies `deploy/access.yaml`, the rights that a user needs.
fn grant(server: &ApiServer) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/access.yaml");
    server.apply(&fs::read_to_string(file).unwrap()).unwrap();
}

/// Returns a container with the agent's binary and the environment that the DaemonSet sets.
fn container(socket: &Path) -> Container {
    Container {
        programs: BTreeMap::from([("/netpold".to_owned(), binary().into())]),
        environment: BTreeMap::from([
            ("NETPOLD_SOCKET".to_owned(), socket.display().to_string()),
            // The agent's kubeconfig: a command in its pod still asks the agent.
            ("NETPOLD_KUBECONFIG".to_owned(), "/none".to_owned()),
        ]),
        ..Container::default()
    }
}

#[test]
fn agents_answer_through_the_api_server() {
    let Some(mut world) = World::new("agents_answer_through_the_api_server") else { return };
    ["server", "client"].into_iter().for_each(|name| world.add(name));
    world.policy("server", allow_from("server", "client"));
    world.start_agent();
    world
        .wait("isolating the server", |status| crate::apiserver::world::isolated(status, "server"));
    assert!(world.reaches("client", "server"));

    let kubelet = Kubelet::start(&world.node).unwrap();
    let socket = world.agent().socket();
    world.create(agent_pod("netpold-a", "n1", running()));
    kubelet.runs("netpold-system/netpold-a/netpold", container(&socket));
    // The connection to the agent on n2 is cut in the middle of the answer.
    let mut cut = world.node.manifest();
    cut["metadata"]["name"] = json!("n2");
    world.create(cut);
    world.create(agent_pod("netpold-b", "n2", running()));
    let short = Container { breaks_off_after: Some(100), ..container(&socket) };
    kubelet.runs("netpold-system/netpold-b/netpold", short);
    // No kubelet listens on n3.
    let mut away = world.control.manifest();
    away["metadata"]["name"] = json!("n3");
    world.create(away.clone());
    world.create(agent_pod("netpold-c", "n3", running()));
    let waiting = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off" } });
    away["metadata"]["name"] = json!("n4");
    world.create(away.clone());
    world.create(agent_pod("netpold-d", "n4", waiting));
    // Node n5 has no agent.
    away["metadata"]["name"] = json!("n5");
    world.create(away);

    status_of_all_nodes(&world.server);
    // A second agent starts on n1 while the first still runs.
    world.create(agent_pod("netpold-e", "n1", running()));
    kubelet.runs("netpold-system/netpold-e/netpold", container(&socket));
    let output = netpold(&world.server, &world.server.admin(), &["status", "-o", "json"]);
    let said = "node n1 has several agents: querying netpold-";
    assert!(stderr(&output).contains(said), "{}", stderr(&output));
    rules_of_all_nodes(&world.server);
    connections_of_all_nodes(&world);
    verdicts_of_the_nodes(&world);
    flows_that_were_seen(&world.server);
    ui::the_page_is_fed_by_agents(&world);
    learned::policies_are_what_the_api_server_keeps(&world.server);
    lines_come_while_a_command_runs(&world.server, &kubelet);
    trace::a_pod_is_traced_on_its_node(&world, &kubelet);
    rights_decide(&world.server);
    probed::connections_from_pods(&mut world, &kubelet);
    two_nodes::connections_are_named_once(&mut world);
}

fn status_of_all_nodes(server: &ApiServer) {
    let admin = &server.admin();
    let output = netpold(server, admin, &["status", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = status["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 1, "{status}");
    assert_eq!((&nodes[0]["node"], &nodes[0]["in_sync"]), (&json!("n1"), &json!(true)));
    assert_eq!(nodes[0]["policies"], 1);
    let why = |node: &str| status["unanswered"][node].as_str().unwrap_or_default().to_owned();
    assert!(why("n2").contains("connection ended"), "{status}");
    assert!(
        why("n3").contains("cannot ask the agent") && why("n3").contains("refused"),
        "{status}"
    );
    assert!(why("n4").contains("pod netpold-d: CrashLoopBackOff: back-off"), "{status}");
    assert!(why("n5").contains("no agent:"), "{status}");

    // The agent reports 4 s of silence as a failure, so a problem may show for a moment.
    let printed = || printed(server, &netpold(server, admin, &["status"]));
    let expected = where_slices_are_served(server, shown("status"));
    eventually(PATIENCE, || printed() == expected, printed);
}

/// Returns the status on the page; without its problem if this server serves EndpointSlices (since Kubernetes 1.21).
fn where_slices_are_served(server: &ApiServer, shown: String) -> String {
    if server.kubectl(&["get", "--raw", "/apis/discovery.k8s.io/v1"]).is_err() {
        return shown;
    }
    let (table, problems) = shown.split_once("\n\nproblems\n").unwrap();
    let (_, unanswered) = problems.split_once('\n').unwrap();
    format!("{}\n{unanswered}", table.replace("0      1", "0      0"))
}

fn rules_of_all_nodes(server: &ApiServer) {
    let admin = &server.admin();
    let deadline = Instant::now() + PATIENCE;
    let rules = loop {
        let output = netpold(server, admin, &["rules", "-n", "shop", "-o", "json"]);
        let rules: Value = serde_json::from_slice(&output.stdout).unwrap();
        // The agent counts a flow at its next sweep of the flow table.
        if rules["rules"][0]["flows"].as_u64().is_some_and(|flows| flows > 0) {
            break rules;
        }
        assert!(Instant::now() < deadline, "{rules}");
        std::thread::sleep(Duration::from_millis(200));
    };
    let (rule, nodes) = (&rules["rules"][0], &rules["nodes"]);
    assert_eq!((&rule["name"], nodes), (&json!("server"), &json!(["n1"])), "{rules}");
    assert!(rules["unanswered"]["n5"].is_string(), "{rules}");
    let output = netpold(server, admin, &["rules", "-n", "bank"]);
    assert_eq!(stdout(&output), "no matching rule on 1 nodes\n");
}

/// Checks that an open connection is listed, and named if a change cuts it.
fn connections_of_all_nodes(world: &World) {
    let (server, admin) = (&world.server, &world.server.admin());
    let to = SocketAddr::new(world.pod("server").ip4().unwrap(), PORT);
    let mut flow = world.pod("client").open_flow(ProbeProtocol::Tcp, to, PATIENCE).unwrap();
    assert!(flow.ping(PATIENCE));
    let from = flow.local().unwrap();
    let output = netpold(server, admin, &["flows", "-n", "shop", "--pod", "server", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "n5 has no agent: {}", stderr(&output));
    let flows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(flows["nodes"][0]["node"], "n1", "{flows}");
    let all = flows["nodes"][0]["flows"].as_array().unwrap();
    let own = all.iter().find(|it| it["remote_port"] == from.port()).unwrap();
    assert_eq!((&own["remote_name"], &own["state"]), (&json!("shop/client"), &json!("open")));

    let directory = TempDir::new().unwrap();
    let file = directory.path().join("closed.json");
    let closed = network_policy("server", &json!({ "podSelector": {} }));
    fs::write(&file, closed.to_string()).unwrap();
    let change = ["diff", "-f", file.to_str().unwrap(), "--live", "-o", "json"];
    let output = netpold(server, admin, &change);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let diff: Value = serde_json::from_slice(&output.stdout).unwrap();
    let live = &diff["live"];
    let groups = live["cut"].as_array().unwrap().iter();
    let cut = groups.flat_map(|group| group["connections"].as_array().unwrap());
    let ends = json!({ "from": from.to_string(), "to": to.to_string() });
    assert!(cut.into_iter().any(|it| *it == ends), "{live}");
    let problems = live["problems"].to_string();
    assert!(problems.contains("node n5: its agent does not answer"), "{live}");
}

/// Queries the cluster's objects and the agent on the pods' node, and no agent of another node.
fn verdicts_of_the_nodes(world: &World) {
    let (server, admin) = (&world.server, &world.server.admin());
    let port = PORT.to_string();
    let question = ["explain", "--from", "shop/client", "--to", "shop/server", "--port", &port];
    let ask = |more: &[&str]| netpold(server, admin, &[&question, more].concat());
    let output = ask(&["--nodes", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stderr(&output).contains("node n5"), "{}", stderr(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["verdict"], &answer["differs"]), (&json!("allow"), &json!(false)));
    let ends = answer["nodes"][0]["ends"].as_array().unwrap();
    let sides = ["objects", "tables", "kernel"];
    let said = |end: &Value| sides.map(|side| end[side].as_str().unwrap().to_owned());
    assert_eq!(ends.len(), 4, "both pods are on it, with two addresses each: {answer}");
    assert!(ends.iter().all(|end| said(end) == sides.map(|_| "allow")), "{answer}");
    let shown = stdout(&ask(&["--nodes"]));
    let compared = |line: &str| line.starts_with("node n1: ") && line.ends_with("kernel allow");
    assert!(shown.starts_with("allow: ") && shown.lines().any(compared), "{shown}");
}

/// Checks the history that agents keep: `observe` and `learn` ask all agents.
fn flows_that_were_seen(server: &ApiServer) {
    let admin = &server.admin();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let observe = ["observe", "--new-flows", "--pod", "shop/server", "-o", "json"];
        let output = netpold(server, admin, &observe);
        assert_eq!(output.status.code(), Some(1), "n5 has no agent: {}", stderr(&output));
        assert!(stderr(&output).contains("node n5"), "{}", stderr(&output));
        let text = stdout(&output);
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let events: Vec<Value> = lines.filter(|line| line["type"] == "event").collect();
        assert!(events.iter().all(|event| event["node"] == "n1"), "{events:?}");
        let learn = ["learn", "-n", "shop", "--recorded", "-o", "json"];
        let recorded = netpold(server, admin, &learn);
        let flows: Value = serde_json::from_slice(&recorded.stdout).unwrap_or_default();
        let flows = flows["flows"].as_array().cloned().unwrap_or_default();
        let is_event =
            |event: &&Value| event["peer"]["name"] == "client" && event["verdict"] == "allow";
        let is_flow = |flow: &&Value| flow["peer"]["workload"]["labels"]["app"] == "client";
        if events.iter().any(|event| is_event(&event)) && flows.iter().any(|flow| is_flow(&flow)) {
            return;
        }
        // The agent finds the flows at its next sweep.
        assert!(Instant::now() < deadline, "{events:?}\n{flows:?}\n{}", stderr(&recorded));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Checks that a command that runs until its standard input ends also ends when its client disconnects.
fn lines_come_while_a_command_runs(server: &ApiServer, kubelet: &Kubelet) {
    let args = ClusterArgs {
        kubeconfig: Some(server.admin()),
        agents_namespace: AGENTS.into(),
        ..ClusterArgs::default()
    };
    let manifests = TempDir::new().unwrap();
    let directory = manifests.path().to_str().unwrap();
    let asked = || {
        block_on(async {
            let agents = Agents::find(&args).await?;
            let all: Vec<_> = agents.stream(&["status", "-o", "json"]).collect().await;
            let of_n1 = all.iter().filter(|(node, _)| node == "n1");
            let lines: Vec<&str> = of_n1.map(|(_, line)| line.as_deref().unwrap()).collect();
            let whole: Value = serde_json::from_str(&lines.join("\n")).unwrap();
            assert_eq!(whole["node"], "n1");
            let failed =
                |(node, line): &(String, Result<_, NodeError>)| node == "n2" && line.is_err();
            assert!(all.iter().any(failed), "{all:?}");

            // The command waits for probes on its standard input.
            let mut lines =
                Box::pin(agents.stream(&["explain", "--probes", "-", "--manifests", directory]));
            let waits = async {
                while kubelet.commands() < 2 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::select! {
                () = waits => {}
                () = async { while lines.next().await.is_some() {} } => panic!("ended"),
            }
            drop(lines);
            Ok(())
        })
    };
    server.inside(asked).unwrap().unwrap();
    no_command_runs(kubelet);
}

/// Waits until every command in a pod has ended.
#[track_caller]
pub(crate) fn no_command_runs(kubelet: &Kubelet) {
    let still = || format!("{} still run", kubelet.commands());
    eventually(PATIENCE, || kubelet.commands() == 0, still);
}

fn rights_decide(server: &ApiServer) {
    let admin = &server.admin();
    let nobody = user(server, "nobody", &[]);
    let output = netpold(server, &nobody, &["status"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    let words = "list on pods in namespace netpold-system is required";
    assert!(stderr(&output).contains(words), "{}", stderr(&output));

    let viewer = user(server, "viewer", &[(VIEW, AGENTS)]);
    let output = netpold(server, &viewer, &["status", "-o", "json"]);
    let said = stderr(&output);
    assert!(said.contains("nodes without an agent are not named: cannot list nodes"), "{said}");
    let words = "cannot get resource \"pods/exec\"";
    assert!(said.contains(words) && said.contains("get and create on pods/exec"), "{said}");

    grant(server);
    let operator = user(server, "operator", &[("netpold-user", "")]);
    let bind = ["create", "rolebinding", "operator", "-n", AGENTS, "--role=netpold-ask"];
    let bind = [&bind[..], &["--serviceaccount=default:operator"]].concat();
    server.kubectl(&bind).unwrap();
    let [own, all] = [&operator, admin].map(|user| {
        let output = netpold(server, user, &["status", "-o", "json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        (status["nodes"][0]["policies"].clone(), status["unanswered"].clone())
    });
    assert_eq!(own, all, "what the example grants is enough");
}

/// Returns the objects of two namespaces, each with a policy.
fn objects() -> Vec<Value> {
    let namespace = |name: &str| {
        json!({ "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "labels": { "team": name } } })
    };
    let pod = |namespace: &str, name: &str, address: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "namespace": namespace, "name": name, "labels": { "app": name } },
            "spec": { "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }] },
            "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] },
        })
    };
    let policy = |namespace: &str, app: &str, peer: Value| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "namespace": namespace, "name": app },
            "spec": {
                "podSelector": { "matchLabels": { "app": app } },
                "policyTypes": ["Ingress"],
                "ingress": [{ "from": [peer], "ports": [{ "port": 80 }] }],
            },
        })
    };
    let team = |name: &str| json!({ "namespaceSelector": { "matchLabels": { "team": name } } });
    let app = json!({ "podSelector": { "matchLabels": { "app": "web" } } });
    vec![
        namespace("shop"),
        namespace("bank"),
        pod("shop", "web", "10.1.0.1"),
        pod("shop", "cart", "10.1.0.2"),
        pod("bank", "db", "10.1.0.3"),
        policy("shop", "cart", app),
        policy("bank", "db", team("shop")),
    ]
}

/// Checks that answers about a live cluster equal answers about its manifests, and that a user with fewer rights gets
/// the names of the missing ones.
#[test]
fn a_live_cluster_is_judged_as_its_manifests_are() {
    const TEST: &str = "a_live_cluster_is_judged_as_its_manifests_are";
    if !require_apiserver(TEST) {
        return;
    }
    let server = ApiServer::start().unwrap();
    let manifests = TempDir::new().unwrap();
    for (number, object) in objects().into_iter().enumerate() {
        let text = object.to_string();
        fs::write(manifests.path().join(format!("{number}.json")), &text).unwrap();
        server.create(&object).unwrap();
        if object["kind"] == "Pod" {
            server.write_status(&object).unwrap();
        }
    }
    let files = TempDir::new().unwrap();
    let file = |name: &str, text: String| {
        let path = files.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let mut change = objects().remove(5);
    change["spec"]["ingress"][0]["ports"][0]["port"] = json!(81);
    let change = file("change.json", change.to_string());
    let assertions = "assertions:\n- {from: shop/web, to: shop/cart, port: 80, expect: allow}\n\
                      - {from: {namespace: shop, labels: {}}, to: bank/db, port: 80, expect: allow}\n\
                      - {from: bank/db, to: shop/cart, port: 80, expect: deny}\n";
    let assertions = file("assertions.yaml", assertions.to_owned());
    let questions: [&[&str]; 5] = [
        &["explain", "--from", "shop/web", "--to", "bank/db", "--port", "80"],
        &["explain", "--from", "bank/db", "--to", "shop/cart", "--port", "80"],
        &["diff", "-f", &change],
        &["diff", "-f", &change, "--delete", "--fail-on", "cut"],
        &["test", "-f", &assertions],
    ];
    let admin = server.admin();
    for question in questions {
        let live = netpold(&server, &admin, question);
        let offline =
            [question, &["--manifests", manifests.path().to_str().unwrap(), "--local"]].concat();
        let offline = netpold(&server, &admin, &offline);
        assert_eq!(stdout(&live), stdout(&offline), "{question:?}: {}", stderr(&live));
        assert_eq!(live.status.code(), offline.status.code(), "{question:?}");
        assert!(live.status.code() != Some(2), "{question:?}: {}", stderr(&live));
    }
    as_kubectls_plugin(&server, questions[0]);
    in_the_namespace_that_is_meant(&server);
    completed::names_of_the_cluster(&server);
    as_an_ordinary_user(&server, questions[0], &change);
}

/// Runs `netpold` under the name of a kubectl plugin, with kubectl's kubeconfig.
fn as_kubectls_plugin(server: &ApiServer, question: &[&str]) {
    let directory = TempDir::new().unwrap();
    let plugin = directory.path().join("kubectl-netpold");
    std::os::unix::fs::symlink(binary(), &plugin).unwrap();
    let run = |name: &str, value: &Path| {
        let mut command = Command::new(&plugin);
        command.args(question).env_clear().env(name, value).output().unwrap()
    };
    let home = directory.path().join(".kube");
    fs::create_dir(&home).unwrap();
    fs::copy(server.admin(), home.join("config")).unwrap();
    let expected = stdout(&netpold(server, &server.admin(), question));
    assert_eq!(stdout(&run("KUBECONFIG", &server.admin())), expected);
    assert_eq!(stdout(&run("HOME", directory.path())), expected);
    let broken = run("KUBECONFIG", Path::new("/none"));
    assert_eq!(broken.status.code(), Some(2), "{}", stdout(&broken));
    assert!(stderr(&broken).contains("/none"), "{}", stderr(&broken));
}

/// Checks that an object without a namespace belongs to the namespace of -n, else of the context.
fn in_the_namespace_that_is_meant(server: &ApiServer) {
    let admin = server.admin();
    let mut kubeconfig: Value = serde_json::from_slice(&fs::read(&admin).unwrap()).unwrap();
    kubeconfig["contexts"][0]["context"]["namespace"] = json!("bank");
    let files = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = files.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let of_bank = PathBuf::from(file("bank.kubeconfig", &kubeconfig.to_string()));
    let mut change = objects().remove(5);
    change["spec"]["ingress"] = json!([]);
    let named = file("named.json", &change.to_string());
    change["metadata"].as_object_mut().unwrap().remove("namespace");
    let unnamed = file("unnamed.json", &change.to_string());
    let expect = "to: bank/db, port: 80, expect: allow";
    let named_pods = file("named.yaml", &format!("assertions: [{{from: shop/web, {expect}}}]"));
    let unnamed_pods = file("unnamed.yaml", &format!("assertions: [{{from: web, {expect}}}]"));
    let explain = ["explain", "--port", "80", "--to"];
    let with = |more: &[&'static str]| [&explain[..], more].concat();
    let shop = ["-n", "shop"];
    let questions: [(Vec<&str>, Vec<&str>); 4] = [
        (with(&["shop/cart", "--from", "bank/db"]), with(&["shop/cart", "--from", "db"])),
        (
            with(&["shop/cart", "--from", "shop/web"]),
            [with(&["cart", "--from", "web"]), shop.to_vec()].concat(),
        ),
        (vec!["diff", "-f", &named], [&["diff", "-f", &unnamed], &shop[..]].concat()),
        (vec!["test", "-f", &named_pods], [&["test", "-f", &unnamed_pods], &shop[..]].concat()),
    ];
    for (named, unnamed) in questions {
        let named = netpold(server, &admin, &named);
        let asked = netpold(server, &of_bank, &unnamed);
        assert_eq!(stdout(&asked), stdout(&named), "{unnamed:?}: {}", stderr(&asked));
        assert!(!stdout(&asked).is_empty(), "{}", stderr(&asked));
    }
    // The context's namespace bank has no such policy, so only its own pods change.
    let output = netpold(server, &of_bank, &["diff", "-f", &unnamed]);
    assert!(!stdout(&output).contains("shop/web -> shop/cart"), "{}", stdout(&output));
}

/// Returns an output of the page, adapted if this server's role `view` lacks EndpointSlices (before Kubernetes 1.21).
fn seen_by_view(server: &ApiServer, shown: String) -> String {
    const SLICES: &str = "endpointslices.discovery.k8s.io";
    if server
        .kubectl(&["get", "clusterrole", VIEW, "-o", "yaml"])
        .unwrap()
        .contains("endpointslices")
    {
        return shown;
    }
    let fewer = shown.replace(&format!("{SLICES}, "), "");
    format!(
        "{fewer}\nnetpold: {SLICES} is forbidden: User \"system:serviceaccount:default:ann\" cannot list resource \
         \"endpointslices\" in API group \"discovery.k8s.io\" in the namespace \"shop\"; Services count as without \
         backends"
    )
}

/// Checks the answers for a user with `view` in one namespace only.
fn as_an_ordinary_user(server: &ApiServer, elsewhere: &[&str], change: &str) {
    let ann = user(server, "ann", &[(VIEW, "shop")]);
    let pair = ["explain", "--from", "shop/web", "--to", "shop/cart", "--port", "80", "-n", "shop"];
    let output = netpold(server, &ann, &pair);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // The kind ClusterNetworkPolicy is not installed.
    assert!(!stderr(&output).contains("ClusterNetworkPolicies"), "{}", stderr(&output));
    assert_eq!(printed(server, &output), seen_by_view(server, shown(&pair.join(" "))));
    // A pod that the user may not see is unknown, so there is no verdict.
    let output = netpold(server, &ann, &[elsewhere, &["-n", "shop"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
    let output = netpold(server, &ann, &["diff", "-f", change, "-n", "shop"]);
    assert_eq!(stdout(&output).trim_end(), shown("diff -f change.json -n shop"));
    // The namespace of her context is default, where she has no rights.
    let output = netpold(server, &ann, &pair[..7]);
    assert_eq!(output.status.code(), Some(2));
    let words = "cannot list resource \"pods\" in API group \"\" in the namespace \"default\"";
    assert!(stderr(&output).contains(words), "{}", stderr(&output));

    // Once the kind is installed, the output warns that she may not read it.
    server.apply(include_str!("cluster-network-policy.yaml")).unwrap();
    eventually_says(server, &ann, &pair, "ClusterNetworkPolicies precede NetworkPolicies");
}

fn eventually_says(server: &ApiServer, user: &Path, question: &[&str], words: &str) {
    let said = || stderr(&netpold(server, user, question));
    eventually(PATIENCE, || said().contains(words), said);
}
