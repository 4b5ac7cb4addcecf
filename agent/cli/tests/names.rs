//! Domain names in `test` and `diff`: answers from the policies alone.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const CLUSTER: &str = "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: shop}}
- {apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, status: {podIP: 10.0.0.1}}
- {apiVersion: v1, kind: Pod, metadata: {name: cart, namespace: shop, labels: {app: cart}}, status: {podIP: 10.0.0.2}}
";

/// A ClusterNetworkPolicy of the Admin tier with these egress rules, for pods with this label.
fn policy(app: &str, rules: &[&str]) -> String {
    let rules: Vec<String> = rules.iter().map(|rule| format!("  - {rule}\n")).collect();
    format!(
        "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {{name: names}}
spec:
  tier: Admin
  priority: 50
  subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: {app}}}}}}}}}
  egress:
{}",
        rules.concat()
    )
}

/// An Accept rule for names at TCP ports.
fn names(names: &str, ports: &[u16]) -> String {
    let ports: Vec<String> = ports
        .iter()
        .map(|port| format!("{{tcp: {{destinationPort: {{number: {port}}}}}}}"))
        .collect();
    format!(
        "{{action: Accept, to: [{{domainNames: [{names}]}}], protocols: [{}]}}",
        ports.join(", ")
    )
}

const INTERNAL: &str = "{action: Deny, to: [{networks: [10.0.0.0/8]}]}";
const NOTHING_ELSE: &str = "{action: Deny, to: [{networks: [0.0.0.0/0, '::/0']}]}";

fn directory(policies: &[String]) -> TempDir {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("cluster.yaml"), CLUSTER).unwrap();
    fs::write(directory.path().join("policies.yaml"), policies.join("\n---\n")).unwrap();
    directory
}

fn run(at: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-netpold"));
    command.args(args).env_clear().current_dir(at).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn test(rules: &[&str], assertions: &str, more: &[&str]) -> Output {
    let directory = directory(&[policy("web", rules)]);
    let own = TempDir::new().unwrap();
    fs::write(own.path().join("a.yaml"), format!("assertions:\n{assertions}")).unwrap();
    let manifests = directory.path().to_str().unwrap();
    run(own.path(), &[&["test", "-f", "a.yaml", "--manifests", manifests], more].concat())
}

#[test]
fn an_assertion_about_a_name() {
    let rules = [&names("api.example.com, '*.cdn.example.net'", &[443]), NOTHING_ELSE];
    let assertions = "
- {from: shop/web, to: {name: api.example.com}, port: 443, expect: allow}
- {from: shop/web, to: {name: API.example.com.}, port: 443, expect: allow}
- {from: shop/web, to: {name: api.example.com}, port: 80, expect: deny}
- {from: shop/web, to: {name: example.com}, port: 443, expect: deny}
- {from: shop/web, to: {name: a.b.cdn.example.net}, port: 443, expect: allow}
- {from: shop/web, to: {name: cdn.example.net}, port: 443, expect: deny}
- {from: 10.0.0.1, to: {name: '*.cdn.example.net'}, port: 443, expect: allow}
- {from: {namespace: shop}, to: {name: api.example.com}, port: 443, expect: allow}
- {from: shop/cart, to: {name: none.example.com}, protocol: ICMP, expect: allow}
";
    let output = test(&rules, assertions, &[]);
    let text = stdout(&output);
    assert!(text.ends_with("9 passed, 0 failed\n"), "{text}");
    assert_eq!(output.status.code(), Some(0));

    let wrong = "
- {name: closed, from: {namespace: shop}, to: {name: none.example.com}, port: 443, expect: allow}
- {name: open, from: shop/web, to: {name: x.cdn.example.net}, port: 443, expect: deny}
";
    let output = test(&rules, wrong, &[]);
    let text = stdout(&output);
    for line in [
        "FAIL closed: it is denied for 1 of 2 pairs (a.yaml:3)\n     deny: shop/web to none.example.com, TCP 443\n",
        "     egress of pod shop/web: denied, egress rule 2 of Admin policy names, priority 50, denies everything to \
         0.0.0.0/0 or ::/0; NetworkPolicy was not evaluated\n",
        "FAIL open: it is allowed (a.yaml:4)\n     allow: shop/web to x.cdn.example.net, TCP 443\n",
        "accepts TCP 443 to addresses of api.example.com or addresses of *.cdn.example.net; *.cdn.example.net matches \
         x.cdn.example.net; NetworkPolicy was not evaluated\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
    assert_eq!(output.status.code(), Some(1));
}

/// A rule about blocks before the names: neither allow nor deny is claimed.
#[test]
fn an_answer_that_depends_on_the_address_is_one_of_its_own() {
    let rules = [INTERNAL, &names("api.example.com", &[443]), NOTHING_ELSE];
    let assertions = "
- {name: anywhere, from: shop/web, to: {name: api.example.com}, port: 443, expect: allow}
- {from: shop/web, to: {name: api.example.com, at: public}, port: 443, expect: allow}
- {from: shop/web, to: {name: api.example.com, at: [10.1.0.0/16, 10.2.3.4]}, port: 443, expect: deny}
- {from: shop/web, to: {name: api.example.com, at: 203.0.113.7}, port: 443, expect: allow}
";
    let line = "shop/web to api.example.com, TCP 443: depends on the address: allowed in 0.0.0.0/0; denied in 10.0.0.0/8";
    let output = test(&rules, assertions, &[]);
    let text = stdout(&output);
    let start =
        format!("DEPENDS anywhere: it depends on the address (a.yaml:3)\n     {line}\npass ");
    assert!(text.starts_with(&start), "{text}");
    assert!(text.ends_with("3 passed, 0 failed, 1 depends on the address\n"), "{text}");
    assert_eq!(output.status.code(), Some(2));

    let output = test(&rules, assertions, &["-o", "json"]);
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let first = &document["assertions"][0];
    assert_eq!((&first["result"], &first["depends"][0]), (&"depends".into(), &line.into()));
    assert_eq!((&first["to"], &first["port"]), (&"api.example.com".into(), &443.into()));
    assert_eq!(document["assertions"][2]["to"], "api.example.com at 10.1.0.0/16 and 10.2.3.4/32");
    assert_eq!((&document["passed"], &document["depending"]), (&3.into(), &1.into()));
    assert_eq!(output.status.code(), Some(2));
    let output = test(&rules, assertions, &["-o", "junit"]);
    let text = stdout(&output);
    assert!(text.contains("failures=\"0\" errors=\"1\""), "{text}");
    assert!(text.contains("<error message=\"it depends on the address\">"), "{text}");
    let output = test(&rules, assertions, &["-o", "tap"]);
    assert!(stdout(&output).contains("\nnot ok 1 - anywhere\n"));

    // A failure weighs more.
    let failing =
        "- {from: shop/web, to: {name: api.example.com, at: public}, port: 80, expect: allow}\n";
    let output = test(&rules, &format!("{assertions}{failing}"), &[]);
    assert_eq!(output.status.code(), Some(1));
    let nowhere = "- {from: 10.9.9.9, to: {name: api.example.com}, port: 443, expect: allow}\n";
    let output = test(&rules, nowhere, &[]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("a.yaml:2: from: 10.9.9.9 is not a pod's address"), "{error}");
}
