//! The binary's command line: answers, exit statuses and errors about bad input.

#![expect(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

use std::fs;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const CLUSTER: &str = "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: x}}
- apiVersion: v1
  kind: Pod
  metadata: {name: a, namespace: x, labels: {app: web}}
  spec: {nodeName: 'n', containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}
  status: {podIP: 10.0.0.1}
- apiVersion: v1
  kind: Pod
  metadata: {name: b, namespace: x, labels: {app: client}}
  status: {podIP: 10.0.0.2}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: x}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: http}]
";

fn cluster() -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("all.yaml"), CLUSTER).unwrap();
    dir
}

fn netpold(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpold"));
    // With the state of an agent of this machine, an agent that cannot reach its source would begin to enforce.
    command.args(args).env_clear().env("NETPOLD_STATE", "/none/state");
    command
}

fn explain(dir: &Path, args: &[&str]) -> Output {
    netpold(&[&["explain", "--manifests", dir.to_str().unwrap()], args].concat())
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[track_caller]
fn refused(output: &Output, status: i32, message: &str) {
    let said = stderr(output);
    assert!(said.contains(message), "{message:?} is not in {said:?}");
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(output.stdout.is_empty(), "{}", stdout(output));
}

#[test]
fn explain_answers_with_its_exit_status() {
    let dir = cluster();
    let output = explain(dir.path(), &["--from", "x/b", "--to", "x/a", "--port", "80"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("allow: x/b to x/a, TCP 80\n"), "{}", stdout(&output));
    assert!(!stdout(&output).contains('\x1b'), "colour without a terminal");
    let output = explain(dir.path(), &["--from", "10.0.0.2", "--to", "x/a", "--port", "81"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("isolated by x/web"), "{}", stdout(&output));
    let output = explain(dir.path(), &["--from", "x/b", "--to", "x/a", "--protocol", "ICMP"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn explain_in_json() {
    let dir = cluster();
    for (port, verdict) in [("80", "allow"), ("81", "deny")] {
        let output =
            explain(dir.path(), &["--from", "x/b", "--to", "x/a", "--port", port, "-o", "json"]);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["verdict"], verdict);
    }
    let output =
        explain(dir.path(), &["--from", "x/b", "--to", "x/z", "--port", "1", "-o", "json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((json.get("verdict"), &json["error"]), (None, &"pod x/z not found".into()));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot tell: pod x/z not found"));
}

#[test]
fn explain_takes_workloads() {
    let template = "---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: x}, spec: {template: {metadata: {labels: {app: client}}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api-5f6-abcde, namespace: x, labels: {app: client, pod-template-hash: 5f6}}, status: {podIP: 10.0.0.3}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api-5f6-fghij, namespace: x, labels: {app: client, pod-template-hash: 5f6}}, status: {podIP: 10.0.0.4}}
---
{apiVersion: v1, kind: Pod, metadata: {name: job-1-abcde, namespace: x, labels: {job-name: job-1}}, status: {podIP: 10.0.0.5}}
---
{apiVersion: v1, kind: Pod, metadata: {name: job-1-fghij, namespace: x, labels: {job-name: job-1, app: client}}, status: {podIP: 10.0.0.6}}
";
    let dir = cluster();
    fs::write(dir.path().join("more.yaml"), template).unwrap();
    for from in ["x/db", "x/api", "db", "statefulset/db", "sts/db", "deployments/api"] {
        let output =
            explain(dir.path(), &["--from", from, "--to", "x/a", "--port", "80", "-n", "x"]);
        assert_eq!(output.status.code(), Some(0), "{from}: {}{}", stdout(&output), stderr(&output));
    }
    let output = explain(dir.path(), &["--from", "x/db", "--to", "x/a", "--port", "81"]);
    let expected = "deny: x/db to x/a, TCP 81
by pod template, no pods exist: StatefulSet x/db (template)
egress of pod x/db: allowed, no policy isolates its egress
ingress of pod x/a: denied, no rule allows it
  isolated by x/web
  nearest: ingress rule 1 of x/web allows TCP http from pods app=client of namespace x
    port 81 is not in it: http is 80 on pod x/a
";
    assert_eq!((stdout(&output).as_str(), output.status.code()), (expected, Some(1)));
    let output =
        explain(dir.path(), &["--from", "x/db", "--to", "x/a", "--port", "81", "-o", "json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["templates"][0]["title"], "StatefulSet x/db (template)");
    assert!(json["ingress"].get("remote").is_none(), "it has no address: {json}");
    let output = explain(dir.path(), &["--from", "x/job-1", "--to", "x/a", "--port", "80"]);
    refused(
        &output,
        2,
        "the pods of x/job-1 differ in labels, ports or network: name one of them, as x/job-1-abcde",
    );
    let output =
        explain(dir.path(), &["--from", "daemonset/db", "--to", "x/a", "--port", "80", "-n", "x"]);
    assert!(stderr(&output).contains("pod daemonset/db not found"), "{}", stderr(&output));
}

#[test]
fn explain_reads_either_manifests_or_probes_from_standard_input() {
    let dir = cluster();
    let probe = r#"{"from":"x/b","to":"x/a","port":80}"#;
    fs::write(dir.path().join("probes"), probe).unwrap();
    let probes = dir.path().join("probes");
    let piped = |arguments: &[&str], input: &str| {
        let mut command = command(arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A command that refuses its arguments does not read standard input.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().unwrap()
    };
    let given =
        piped(&["explain", "--manifests", "-", "--probes", probes.to_str().unwrap()], CLUSTER);
    assert_eq!(given.status.code(), Some(0), "{}", stderr(&given));
    assert!(stdout(&given).contains("\"verdict\":\"allow\""), "{}", stdout(&given));
    let both = piped(&["explain", "--manifests", "-", "--probes", "-"], CLUSTER);
    refused(&both, 2, "--probes -: standard input is read once, and --manifests - reads it");
    let doctor = piped(&["doctor", "--manifests", "-"], CLUSTER);
    assert!(matches!(doctor.status.code(), Some(0 | 1)), "{}", stderr(&doctor));
    assert_eq!(stderr(&doctor), "");
}

#[test]
fn explain_takes_flags_from_the_environment() {
    let dir = cluster();
    let output = command(&["explain"])
        .env("NETPOLD_MANIFESTS", dir.path())
        .envs([("NETPOLD_FROM", "x/b"), ("NETPOLD_TO", "x/a"), ("NETPOLD_PORT", "81")])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[test]
fn probes_are_answered_line_by_line() {
    let dir = cluster();
    let probes = dir.path().join("probes");
    let good = r#"{"from":"x/b","to":"x/a","port":80,"protocol":"TCP","note":"kept"}"#;
    let denied = r#"{"from":"x/b","to":"x/a","port":80,"protocol":"UDP","verdict":"allow"}"#;
    fs::write(&probes, format!("{good}\n\n{denied}\n")).unwrap();
    let output = explain(dir.path(), &["--probes", probes.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines: Vec<Value> =
        stdout(&output).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((&lines[0]["verdict"], &lines[0]["note"]), (&"allow".into(), &"kept".into()));
    assert_eq!((lines.len(), &lines[1]["verdict"]), (2, &"deny".into()));
}

#[test]
fn bad_probes_get_an_error_each_and_the_others_an_answer() {
    let dir = cluster();
    let mut child = command(&["explain", "--probes", "-", "--manifests"])
        .arg(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = [
        r#"{"from":"x/b","to":"x/a","port":80}"#,
        r#"{"from":"x/b","to":"x/a"}"#,
        "nonsense",
        r#"{"from":"x/b","to":"nobody","port":1}"#,
        r#"{"from":"x/b","to":"x/z","port":1,"verdict":"allow"}"#,
        r#"{"from":"x/b","to":"x/a","port":70000}"#,
    ];
    child.stdin.take().unwrap().write_all(lines.join("\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let answers: Vec<Value> =
        stdout(&output).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(answers[0]["verdict"], "allow");
    let errors: Vec<&str> = answers[1..]
        .iter()
        .map(|a| {
            assert!(a.get("verdict").is_none(), "{a}");
            a["error"].as_str().unwrap()
        })
        .collect();
    for (error, part) in errors.iter().zip([
        "TCP needs a port",
        "not a JSON object",
        "\"nobody\" is neither namespace/pod nor an address",
        "pod x/z not found",
        "70000",
    ]) {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
    assert_eq!(errors.len(), 5);
}

#[test]
fn bad_flags() {
    let dir = cluster();
    let ask = |args: &[&str]| explain(dir.path(), args);
    let pair = ["--from", "x/b", "--to", "x/a"];
    let with = |more: &[&'static str]| ask(&[&pair[..], more].concat());
    refused(&with(&[]), 2, "TCP needs a port: give --port");
    refused(&with(&["--port", "0"]), 2, "0 is not in 1..=65535");
    refused(&with(&["--port", "70000"]), 2, "70000 is not in 1..=65535");
    refused(
        &with(&["--port", "1", "--protocol", "TCPX"]),
        2,
        "\"TCPX\" is not a protocol: use TCP,",
    );
    refused(&with(&["--probes", "-"]), 2, "cannot be used with");
    refused(&ask(&["--from", "x/b"]), 2, "--to <WHO>");
    let output = ask(&["--from", "B", "--to", "x/a", "--port", "1"]);
    refused(&output, 2, "\"B\" is neither namespace/pod nor an address");
    let output = ask(&["--from", "b", "--to", "x/a", "--port", "1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).contains("pod default/b not found"), "{}", stdout(&output));
    let named = ask(&["--from", "x/b", "--to", "x/a", "--port", "80"]);
    let of_namespace = ask(&["--from", "b", "--to", "a", "--port", "80", "-n", "x"]);
    assert_eq!(stdout(&of_namespace), stdout(&named));
    refused(&ask(&["--probes", "/does/not/exist"]), 2, "cannot read --probes /does/not/exist");
    let nowhere = ["explain", "--from", "x/b", "--to", "x/a", "--port", "1"];
    refused(&netpold(&nowhere), 2, "--manifests <DIR> for a directory");
    refused(&netpold(&["run", "--manifests", "/"]), 2, "--node-name <NAME>");
    let run = |more: &[&str]| netpold(&[&["run", "--manifests", "/none"], more].concat());
    refused(&run(&["--node-name", "Node_1"]), 2, "--node-name \"Node_1\" cannot be a node's name");
    refused(
        &run(&["--node-name", "n", "--log", "loud=x=y"]),
        2,
        "--log loud=x=y: a level is error",
    );
    refused(&run(&["--node-name", "n", "--check-source", "some"]), 2, "off, isolated, all");
    let long = format!("/run/{}", "x".repeat(110));
    refused(&run(&["--node-name", "n", "--socket", &long]), 2, "choose a shorter one");
    refused(&run(&["--node-name", "n"]), 1, "--manifests /none: No such file or directory");
}

#[test]
fn a_cluster_that_cannot_be_asked_is_named() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("config");
    let config = path.to_str().unwrap();
    let run = |more: &[&str]| netpold(&[&["run", "--node-name", "n"], more].concat());
    refused(&run(&[]), 1, "not in a cluster (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT");
    refused(&run(&["--context", "a"]), 2, "--kubeconfig <FILE>");
    refused(&run(&["--manifests", "/", "--kubeconfig", "/none"]), 2, "cannot be used with");
    refused(&run(&["--kubeconfig", "/none"]), 1, "--kubeconfig /none: No such file or directory");
    fs::write(&path, "clusters: 7").unwrap();
    refused(&run(&["--kubeconfig", config]), 1, "failed to parse kubeconfig YAML");
    let contexts = "contexts: [{name: a, context: {cluster: c, user: u}}]\n";
    fs::write(&path, contexts).unwrap();
    refused(&run(&["--kubeconfig", config]), 1, "no current-context: choose one with --context");
    let other = run(&["--kubeconfig", config, "--context", "b"]);
    refused(&other, 1, &format!("--context b: not found in {config}; known contexts: a"));
    let none = run(&["--kubeconfig", config, "--context", "a"]);
    refused(&none, 1, "failed to load the cluster of context");
    let cluster = "clusters: [{name: c, cluster: {server: 'https://[::1]:1', certificate-authority: /none}}]\n\
                   users: [{name: u, user: {}}]\n";
    fs::write(&path, format!("{contexts}{cluster}")).unwrap();
    let none = run(&["--kubeconfig", config, "--context", "a"]);
    refused(&none, 1, "failed to load certificate authority");
}

#[test]
fn bad_manifests_are_named_and_no_verdict_is_given_without_them() {
    let dir = cluster();
    let pair = ["--from", "x/b", "--to", "x/a", "--port", "80"];
    refused(&explain(Path::new("/none"), &pair), 2, "--manifests /none: No such file");
    let file = dir.path().join("all.yaml");
    refused(&explain(&file, &pair), 2, "name the directory, not a file in it");
    fs::write(dir.path().join("z.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: [\n").unwrap();
    let output = explain(dir.path(), &pair);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let named = format!("netpold: {}:", dir.path().join("z.yaml").display());
    let depends = "cannot tell: the answer may depend on a document that cannot be read: ";
    assert!(stderr(&output).contains(&named), "{}", stderr(&output));
    assert!(stderr(&output).contains(depends), "{}", stderr(&output));
}

#[test]
fn a_slip_in_a_policy_is_named_and_decides_nothing() {
    let dir = cluster();
    let slip = CLUSTER.replace("  - from:", "  - form:");
    fs::write(dir.path().join("all.yaml"), slip).unwrap();
    let output = explain(dir.path(), &["--from", "x/b", "--to", "x/a", "--port", "80"]);
    assert_eq!(output.status.code(), Some(2));
    let named = dir.path().join("all.yaml").display().to_string();
    let problem = "spec.ingress[0].form: unknown field; known fields: from, ports";
    assert_eq!(
        stderr(&output),
        format!(
            "netpold: {named}:22: NetworkPolicy x/web: {problem}\n\
             netpold: cannot tell: the answer depends on NetworkPolicy x/web, which API servers refuse or change: \
             {problem}\n"
        )
    );
}

#[test]
fn status_without_an_agent() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s");
    let socket = path.to_str().unwrap();
    refused(&netpold(&["status", "--socket", socket]), 1, "no agent is listening on");
    drop(UnixListener::bind(&path).unwrap());
    refused(&netpold(&["status", "--socket", socket]), 1, "no agent is listening on");
}

#[test]
fn status_of_something_else() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _): (UnixStream, _) = listener.accept().unwrap();
        let mut request = [0; 256];
        let length = std::io::Read::read(&mut stream, &mut request).unwrap();
        stream.write_all(b"hello").unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    let output = netpold(&["status", "--socket", path.to_str().unwrap()]);
    refused(&output, 1, "cannot parse the agent's answer; is it another version?");
    assert!(server.join().unwrap().starts_with("POST /status HTTP/1.0\r\n"));
}
