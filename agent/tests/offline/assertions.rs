//! The command `netpold test`, and the binary as a kubectl plugin.
#![expect(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const CLUSTER: &str = "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: x}}
- {apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x, labels: {app: web}}, status: {podIP: 10.0.0.1}}
- {apiVersion: v1, kind: Pod, metadata: {name: b, namespace: x, labels: {app: client}}, status: {podIP: 10.0.0.2}}
- {apiVersion: v1, kind: Pod, metadata: {name: c, namespace: x, labels: {app: client}}, status: {podIP: 10.0.0.3}}
- {apiVersion: v1, kind: Pod, metadata: {name: h, namespace: x, labels: {app: host}}, spec: {hostNetwork: true}, status: {podIP: 192.168.0.1}}
- apiVersion: v1
  kind: Service
  metadata: {name: s, namespace: x}
  spec: {clusterIP: 10.96.0.1, ports: [{port: 8000}]}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: s-1, namespace: x, labels: {kubernetes.io/service-name: s}}
  addressType: IPv4
  ports: [{port: 80, protocol: TCP, name: ''}]
  endpoints: [{addresses: [10.0.0.1]}]
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: web, namespace: x}
  spec:
    podSelector: {matchLabels: {app: web}}
    ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}]}]
";

/// Writes a directory with the manifests of the cluster, and one with the file of assertions.
fn files(assertions: &str) -> (TempDir, TempDir) {
    let (cluster, own) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(cluster.path().join("all.yaml"), CLUSTER).unwrap();
    fs::write(own.path().join("a.yaml"), format!("assertions:\n{assertions}")).unwrap();
    (cluster, own)
}

fn test(assertions: &str, more: &[&str]) -> Output {
    let (cluster, own) = files(assertions);
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpold"));
    command.args(["test", "-f", "a.yaml", "--manifests"]).arg(cluster.path()).args(more);
    command.env_clear().current_dir(own.path()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn prints(output: &Output, status: i32, expected: &str) {
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(stdout(output), expected);
    assert_eq!(output.status.code(), Some(status));
}

#[test]
fn true_assertions_pass() {
    let assertions = "
- {name: clients, from: {namespace: x, labels: {app: client}}, to: x/a, port: 80, expect: allow}
- {from: 203.0.113.1, to: x/a, port: 80, expect: deny}
- {from: x/b, to: svc/x/s, port: 8000, expect: allow}
- {from: {namespace: '*'}, to: {namespace: x, labels: {app: client}}, protocol: ICMP, expect: allow}
";
    let expected = "pass clients\npass deny 203.0.113.1 to x/a, TCP 80\npass allow x/b to svc/x/s, TCP 8000\n\
                    pass allow pods of every namespace to pods of x with app=client, ICMP\n4 passed, 0 failed\n\
                    left out of selections, on the host's network: x/h\n";
    prints(&test(assertions, &[]), 0, expected);
}

const FAILING: &str = "
- {name: \"a <b> & \\\"c\\\" #1\", from: {namespace: x, labels: {app: client}}, to: x/a, port: 81, expect: allow}
- {name: fine, from: x/b, to: x/c, port: 1, protocol: SCTP, expect: allow}
- {name: half, from: {namespace: x}, to: 10.0.0.1, port: 80, expect: deny}
";

#[test]
fn false_assertions_fail_with_the_pairs() {
    let output = test(FAILING, &[]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    for line in [
        "FAIL a <b> & \"c\" #1: it is denied for 2 of 2 pairs (a.yaml:3)\n     deny: x/b to x/a, TCP 81\n",
        "\n     deny: x/c to x/a, TCP 81\n",
        "\npass fine\nFAIL half: ",
        "\n     allow: x/b to 10.0.0.1, TCP 80\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
    let end = "\n1 passed, 2 failed\nleft out of selections, on the host's network: x/h\n";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn tap() {
    let output = test(FAILING, &["-o", "tap"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    let start = "TAP version 14\n1..3\nnot ok 1 - a <b> & \"c\" \\#1\n  ---\n  at: \"a.yaml:3\"\n  \
                 message: \"it is denied for 2 of 2 pairs\"\n  data: |\n    deny: x/b to x/a, TCP 81\n";
    assert!(text.starts_with(start), "{text}");
    assert!(text.contains("\n  ...\nok 2 - fine\nnot ok 3 - half\n  ---\n"), "{text}");
    // Each block between the marks is valid YAML.
    for block in text.split("  ---\n").skip(1).map(|rest| rest.split("  ...\n").next().unwrap()) {
        let block: serde_json::Value = serde_saphyr::from_str(block).unwrap();
        assert!(block["at"].is_string() && block["data"].is_string(), "{block}");
    }
}

#[test]
fn junit() {
    let output = test(FAILING, &["-o", "junit"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    let start = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
        <testsuites tests=\"3\" failures=\"2\" errors=\"0\">\n  \
        <testsuite name=\"a.yaml\" tests=\"3\" failures=\"2\" errors=\"0\">\n    \
        <testcase classname=\"a.yaml:3\" name=\"a &lt;b&gt; &amp; &quot;c&quot; #1\">\n      \
        <failure message=\"it is denied for 2 of 2 pairs\">deny: x/b to x/a, TCP 81\n";
    assert!(text.starts_with(start), "{text}");
    let passed = "    <testcase classname=\"a.yaml:4\" name=\"fine\"/>\n";
    assert!(text.contains(passed) && text.ends_with("  </testsuite>\n</testsuites>\n"), "{text}");
}

#[test]
fn assertions_about_no_pod_or_connection_are_unknown() {
    for (assertion, message) in [
        (
            "{from: {namespace: x, labels: {app: absent}}, to: x/a, port: 1, expect: deny}",
            "from: no pod with an address and no pod template matches: pods of x with app=absent (a.yaml:2)",
        ),
        // A pod on the host network has its node's address.
        (
            "{from: x/a, to: {namespace: x, labels: {app: host}}, port: 1, expect: deny}",
            "to: only pods on the host's network match (x/h), which no selection contains: name them (a.yaml:2)",
        ),
        (
            "{from: x/z, to: x/a, port: 1, expect: deny}",
            "x/z to x/a, TCP 1: pod x/z not found (a.yaml:2)",
        ),
        (
            "{from: {namespace: x, labels: {app: web}}, to: x/a, port: 1, expect: allow}",
            "from and to select only the same pod: no connection to evaluate (a.yaml:2)",
        ),
        (
            "{from: x/a, to: svc/web, port: 1, expect: allow}",
            "pod svc/web not found; a Service is svc/namespace/name (a.yaml:2)",
        ),
        (
            "{from: x/a, to: 127.0.0.1, port: 1, expect: allow}",
            "127.0.0.1 is a loopback address: no packet to it leaves its pod or node (a.yaml:2)",
        ),
    ] {
        let output = test(&format!("- {assertion}\n"), &[]);
        let printed = stdout(&output);
        assert!(
            printed.starts_with("UNKNOWN ") && printed.contains(message),
            "{message:?}: {printed:?}"
        );
        assert!(printed.contains("\n0 passed, 0 failed, 1 unknown\n"), "{printed}");
        assert_eq!(output.status.code(), Some(2), "{printed}");
    }
    let wrong = test("- {from: x/a, to: x/b, port: 1, expect: maybe}\n", &[]);
    let printed = String::from_utf8(wrong.stderr).unwrap();
    assert!(printed.contains("a.yaml:2: expect: \"maybe\" is neither allow nor deny"), "{printed}");
    assert_eq!(wrong.status.code(), Some(2));
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("kustomization.yaml"), "kind: Kustomization\n").unwrap();
    let directory = folder.path().to_str().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpold"));
    let refused = command
        .args(["test", "-f", "a.yaml", "--manifests", directory])
        .env_clear()
        .output()
        .unwrap();
    let printed = String::from_utf8(refused.stderr).unwrap();
    assert!(
        printed.ends_with(&format!(
            "kubectl kustomize {directory} | netpold test ... --manifests -\n"
        )),
        "{printed}"
    );
    assert_eq!(refused.status.code(), Some(2));
    let none = test("  []\n", &[]);
    assert!(String::from_utf8(none.stderr).unwrap().contains("no assertion found"));
    assert_eq!(none.status.code(), Some(2));
}

#[test]
fn an_unknown_assertion_hides_no_other() {
    let mixed = "
- {from: x/b, to: x/a, port: 80, expect: allow}
- {name: absent, from: x/z, to: x/a, port: 80, expect: allow}
- {from: x/b, to: x/a, port: 80, expect: deny}
";
    let output = test(mixed, &[]);
    let text = stdout(&output);
    let start = "pass allow x/b to x/a, TCP 80\nUNKNOWN absent: x/z to x/a, TCP 80: pod x/z not found (a.yaml:4)\n\
                 FAIL deny x/b to x/a, TCP 80: it is allowed (a.yaml:5)\n";
    assert!(text.starts_with(start), "{text}");
    assert!(text.ends_with("\n1 passed, 1 failed, 1 unknown\n"), "{text}");
    assert_eq!(output.status.code(), Some(1));
    let junit = stdout(&test(mixed, &["-o", "junit"]));
    assert!(junit.contains("tests=\"3\" failures=\"1\" errors=\"1\""), "{junit}");
    assert!(junit.contains("<error message=\"x/z to x/a, TCP 80: pod x/z not found\">"), "{junit}");
    let tap = stdout(&test(mixed, &["-o", "tap"]));
    let block = "not ok 2 - absent\n  ---\n  at: \"a.yaml:4\"\n  message: \"x/z to x/a, TCP 80: pod x/z not found\"\n  ...\n";
    assert!(tap.contains(block), "{tap}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&test(mixed, &["-o", "json"]))).unwrap();
    assert_eq!(
        (&json["unknown"], &json["assertions"][1]["result"]),
        (&1.into(), &"unknown".into())
    );
}

#[test]
fn an_address_family_that_no_pod_has_is_skipped() {
    let six = "- {from: {namespace: '*'}, to: 'fd00::1', port: 80, expect: deny}\n";
    let four = "- {from: {namespace: '*'}, to: 203.0.113.1, port: 80, expect: allow}\n";
    let both = test(&format!("{six}{four}"), &[]);
    let skipped = "skip deny pods of every namespace to fd00::1, TCP 80: no pod of the cluster has an IPv6 address (a.yaml:2)\n\
                   pass allow pods of every namespace to 203.0.113.1, TCP 80\n1 passed, 0 failed, 1 skipped\n\
                   left out of selections, on the host's network: x/h\n";
    prints(&both, 0, skipped);
    let tap = stdout(&test(&format!("{six}{four}"), &["-o", "tap"]));
    assert!(
        tap.contains("\nok 1 - deny pods of every namespace to fd00::1, TCP 80 # SKIP no pod of"),
        "{tap}"
    );
    // With every assertion skipped, nothing is verified.
    assert_eq!(test(six, &[]).status.code(), Some(2));
}

#[test]
fn names_with_line_breaks_forge_no_line() {
    let name = r#"- {"name": "a\n1 passed", "from": {namespace: x, labels: {app: web}}, to: x/b, port: 1, expect: deny}"#;
    let absent = r#"- {from: {namespace: x, labels: {app: "\e[2J\nok 9 - forged"}}, to: x/b, port: 1, expect: deny}"#;
    for output in ["text", "tap", "junit"] {
        let text = stdout(&test(&format!("{name}\n{absent}\n"), &["-o", output]));
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(
            !text.lines().any(|line| line.starts_with("1 passed") || line.starts_with("ok 9")),
            "{text}"
        );
    }
    let broken = test("- {\"\\e[2J\\n5 passed, 0 failed\": x}\n", &[]);
    let printed = String::from_utf8(broken.stderr).unwrap();
    assert_eq!((printed.lines().count(), printed.contains('\u{1b}')), (1, false), "{printed:?}");
}

const CHART: &str = "---
# Source: shop/templates/all.yaml
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{ports: [{name: http, containerPort: 8080}]}]}}}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: sync}, spec: {jobTemplate: {spec: {template: {metadata: {labels: {app: sync}}}}}}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web}, spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: sync}}}], ports: [{port: http}]}]}}
";
const CHART_ASSERTIONS: &str = "assertions:
- {from: sync, to: web, port: 8080, expect: allow}
- {from: {namespace: default, labels: {app: sync}}, to: deployment/web, port: 80, expect: deny}
- {from: {namespace: '*'}, to: {namespace: default, labels: {app: web}}, port: 8080, expect: allow}
";

/// Returns the output of `netpold test` with the given standard input, in a directory with the chart and its
/// assertions.
fn piped(arguments: &[&str], input: &str) -> Output {
    let own = TempDir::new().unwrap();
    fs::create_dir(own.path().join("chart")).unwrap();
    fs::write(own.path().join("chart/all.yaml"), CHART).unwrap();
    fs::write(own.path().join("a.yaml"), CHART_ASSERTIONS).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpold"));
    let command = command.arg("test").args(arguments).env_clear().current_dir(own.path());
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that refuses its arguments does not read standard input.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn a_chart_is_judged_from_standard_input() {
    // A template represents any two pods of its workload, so web to web is one of the pairs.
    let start = "pass allow default/sync to default/web, TCP 8080\n\
        pass deny pods of default with app=sync to deployment/web, TCP 80\n\
        FAIL allow pods of every namespace to pods of default with app=web, TCP 8080: it is denied for 1 of 2 pairs";
    let end = "2 passed, 1 failed\nby pod template, no pods exist: CronJob default/sync (template), \
        Deployment default/web (template)\n";
    let both = format!("{CHART_ASSERTIONS}{CHART}");
    for (arguments, input) in [
        (&["-f", "a.yaml", "--manifests", "-"][..], CHART),
        (&["-f", "-", "--manifests", "chart"], CHART_ASSERTIONS),
        (&["-f", "a.yaml", "-f", "-"], CHART),
        (&["-f", "a.yaml,-"], CHART),
        (&["-f", "-"], &both),
    ] {
        let output = piped(arguments, input);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
        let text = stdout(&output);
        assert!(text.starts_with(start) && text.ends_with(end), "{arguments:?}: {text}");
        assert_eq!(output.status.code(), Some(1));
    }
    let tap = stdout(&piped(&["-f", "a.yaml", "-f", "-", "-o", "tap"], CHART));
    assert!(tap.ends_with("\n# by pod template, no pods exist: CronJob default/sync (template), Deployment default/web (template)\n"), "{tap}");
    let junit = stdout(&piped(&["-f", "a.yaml", "-f", "-", "-o", "junit"], CHART));
    assert!(junit.contains("<system-out>by pod template, no pods exist: CronJob"), "{junit}");
    for (arguments, input, message) in [
        (
            &["-f", "-", "--manifests", "-"][..],
            CHART_ASSERTIONS,
            "--manifests -: standard input is read once, and --file - reads it",
        ),
        (&["-f", "-"], CHART, "standard input: no assertion found"),
        (&["-f", "a.yaml", "-f", "-"], "kind: [\n", "standard input:1: unclosed bracket"),
    ] {
        let output = piped(arguments, input);
        let printed = String::from_utf8(output.stderr.clone()).unwrap();
        assert!(printed.contains(message), "{message:?} is not in {printed:?}");
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{printed}");
    }
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: default}}\n";
    let absent = piped(&["-f", "a.yaml", "-f", "-"], namespace);
    let message = "UNKNOWN allow default/sync to default/web, TCP 8080: default/sync to default/web, TCP 8080: pod \
                   default/sync not found (a.yaml:2)\n";
    assert!(stdout(&absent).starts_with(message), "{}", stdout(&absent));
    assert_eq!(absent.status.code(), Some(2));
}

#[test]
fn a_verdict_that_depends_on_a_templates_address_is_unknown() {
    let block = |cidr: &str| {
        CHART.replace(
            "podSelector: {matchLabels: {app: sync}}}], ports",
            &format!("ipBlock: {{cidr: {cidr}}}}}], ports"),
        )
    };
    let assertion = "assertions: [{from: sync, to: web, port: 8080, expect: deny}]\n";
    let output = piped(&["-f", "-"], &(assertion.to_owned() + &block("10.0.0.0/16")));
    let printed = stdout(&output);
    let message = "it depends on the address that CronJob default/sync (template) gets, which labels do not \
                   determine: allowed in 10.0.0.0/16, denied in 10.0.0.0/8";
    assert!(printed.contains(message), "{printed}");
    assert_eq!(output.status.code(), Some(2));
    for (cidr, pods, status) in [
        ("0.0.0.0/0", "10.0.0.0/8", 1),
        ("203.0.113.0/24", "10.0.0.0/8", 0),
        ("10.0.0.0/16", "10.0.8.0/24", 1),
        ("10.0.0.0/16", "10.1.0.0/16", 0),
    ] {
        let output =
            piped(&["-f", "-", "--pod-cidrs", pods], &(assertion.to_owned() + &block(cidr)));
        assert_eq!(output.status.code(), Some(status), "{cidr} {pods}: {}", stdout(&output));
    }
}

#[test]
fn usage_as_a_kubectl_plugin_names_kubectl() {
    let directory = TempDir::new().unwrap();
    let plugin = directory.path().join("kubectl-netpold");
    symlink(env!("CARGO_BIN_EXE_netpold"), &plugin).unwrap();
    for (program, usage) in [
        (plugin.as_os_str(), "Usage: kubectl netpold diff "),
        (env!("CARGO_BIN_EXE_netpold").as_ref(), "Usage: netpold diff "),
    ] {
        let output = Command::new(program).args(["diff", "--help"]).env_clear().output().unwrap();
        assert!(stdout(&output).contains(usage), "{}", stdout(&output));
    }
}
