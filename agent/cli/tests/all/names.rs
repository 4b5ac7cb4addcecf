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

    // A failure takes precedence.
    let failing =
        "- {from: shop/web, to: {name: api.example.com, at: public}, port: 80, expect: allow}\n";
    let output = test(&rules, &format!("{assertions}{failing}"), &[]);
    assert_eq!(output.status.code(), Some(1));
    let nowhere = "- {from: 10.9.9.9, to: {name: api.example.com}, port: 443, expect: allow}\n";
    let output = test(&rules, nowhere, &[]);
    let text = stdout(&output);
    assert!(text.contains(": from: 10.9.9.9 is not a pod's address (a.yaml:2)\n"), "{text}");
    assert_eq!(output.status.code(), Some(2));
}

/// Compares the rules of pods with `app: web` before and after; returns the output in text.
fn diff(before: &[&str], after: &[&str], status: i32, more: &[&str]) -> String {
    let [before, after] = [before, after].map(|rules| directory(&[policy("web", rules)]));
    let [from, to] = [&before, &after].map(|directory| directory.path().to_str().unwrap());
    let output = run(before.path(), &[&["diff", "--from", from, "--to", to], more].concat());
    assert_eq!(output.status.code(), Some(status), "{}", stdout(&output));
    stdout(&output)
}

#[test]
fn an_edit_of_names_is_a_change() {
    let api = names("api.example.com", &[443]);
    let both = names("api.example.com, '*.example.net'", &[443]);
    let gains = "shop/web -> *.example.net: gains TCP 443\ncut: 0 pairs, opened: 1 pair\n";
    assert_eq!(diff(&[&api, NOTHING_ELSE], &[&both, NOTHING_ELSE], 1, &[]), gains);
    let loses = "shop/web -> *.example.net: loses TCP 443\ncut: 1 pair, opened: 0 pairs\n";
    assert_eq!(diff(&[&both, NOTHING_ELSE], &[&api, NOTHING_ELSE], 1, &[]), loses);
    let only_open = ["--fail-on", "open"];
    assert_eq!(diff(&[&both, NOTHING_ELSE], &[&api, NOTHING_ELSE], 0, &only_open), loses);
    // The ports of a name.
    let ports = names("api.example.com", &[443, 8443]);
    assert_eq!(
        diff(&[&api, NOTHING_ELSE], &[&ports, NOTHING_ELSE], 1, &[]),
        "shop/web -> api.example.com: gains TCP 8443\ncut: 0 pairs, opened: 1 pair\n"
    );
    // The order, and another spelling.
    let same = names("'*.Example.net.', API.example.com", &[443]);
    let nothing = "no connection is cut or opened\n";
    assert_eq!(diff(&[&both, NOTHING_ELSE], &[&same, NOTHING_ELSE], 0, &[]), nothing);
    // A name below a wildcard.
    let below = names("'*.example.net'", &[443]);
    let one = names("api.example.net", &[443]);
    assert_eq!(
        diff(&[&below, NOTHING_ELSE], &[&one, NOTHING_ELSE], 1, &[]),
        "shop/web -> *.example.net: loses TCP 443\ncut: 1 pair, opened: 0 pairs\n"
    );
    let document = diff(&[&both, NOTHING_ELSE], &[&api, NOTHING_ELSE], 1, &["-o", "json"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    let to = &document["changes"][0]["to"];
    assert_eq!((&to["kind"], &to["name"]), (&"name".into(), &"*.example.net".into()));
    assert_eq!((&document["cut"], &document["changes"][0]["some"]), (&1.into(), &false.into()));
}

/// A change of a name is reported only where the name decides: not where another rule allows or denies the address.
#[test]
fn a_name_is_compared_where_it_decides() {
    let api = names("api.example.com", &[443]);
    // Blocks open the same addresses as the name did; this is a separate change.
    let open = "{action: Accept, to: [{networks: [0.0.0.0/0]}], protocols: [{tcp: {destinationPort: {number: 443}}}]}";
    assert_eq!(
        diff(&[&api, NOTHING_ELSE], &[open, NOTHING_ELSE], 1, &[]),
        "shop/web -> shop/cart, outside: gains TCP 443\ncut: 0 pairs, opened: 2 pairs\n"
    );
    // Names after a rule that denies everything, or next to a rule that allows everything, decide nothing.
    let nothing = "no connection is cut or opened\n";
    assert_eq!(diff(&[NOTHING_ELSE], &[NOTHING_ELSE, &api], 0, &[]), nothing);
    assert_eq!(diff(&[], &[&api], 0, &[]), nothing);
    // A Deny before the name, for some addresses and for all.
    let lost = diff(&[&api, NOTHING_ELSE], &[INTERNAL, &api, NOTHING_ELSE], 1, &[]);
    let expected = "shop/web -> api.example.com: loses TCP 443 (some pods or addresses)\n";
    assert!(lost.starts_with(expected), "{lost}");
    let lost = diff(&[INTERNAL, &api, NOTHING_ELSE], &[INTERNAL, NOTHING_ELSE], 1, &[]);
    assert!(lost.starts_with("shop/web -> api.example.com: loses TCP 443\n"), "{lost}");
    // Groups beyond the limit.
    let many = |last: &str| -> Vec<String> {
        let rules = (0..15).map(|n| names(&format!("n{n}.example.org"), &[1000 + n]));
        rules.chain([names(last, &[443]), NOTHING_ELSE.to_owned()]).collect()
    };
    let [before, after] = ["a.example.com", "b.example.com"].map(many);
    let [before, after] =
        [&before, &after].map(|rules| rules.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(diff(&before, &after, 0, &[]), nothing);
}

const SERVERS: &str = "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}
- {apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: dns, namespace: kube-system, labels: {k8s-app: kube-dns}}, spec: {nodeName: n1}, status: {podIP: 10.0.9.1}}
- apiVersion: v1
  kind: Service
  metadata: {name: kube-dns, namespace: kube-system}
  spec: {clusterIP: 10.96.0.10, selector: {k8s-app: kube-dns}, ports: [{name: dns, port: 53, protocol: UDP}]}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: kube-dns-1, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
  addressType: IPv4
  ports: [{name: dns, port: 53, protocol: UDP}]
  endpoints: [{addresses: [10.0.9.1], targetRef: {kind: Pod, namespace: kube-system, name: dns}}]
- {apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}}
- {apiVersion: v1, kind: Service, metadata: {name: db, namespace: data}, spec: {clusterIP: None, ports: [{port: 80}]}}
- {apiVersion: v1, kind: Service, metadata: {name: old, namespace: data}, spec: {clusterIP: 10.96.0.12, ports: [{port: 80}]}}
";

/// Findings of doctor about names: check and place, without files.
fn doctor(objects: &[&str], rules: &[&str]) -> Vec<(String, String)> {
    let policies = [policy("web", rules), objects.join("\n---\n")];
    let directory = directory(&policies);
    let manifests = directory.path().to_str().unwrap();
    let output = run(directory.path(), &["doctor", "-o", "json", "--manifests", manifests]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let places = findings.flat_map(|finding| {
        let check = text(&finding["check"]);
        let places = finding["places"].as_array().unwrap().iter();
        places.map(move |place| (check.clone(), text(place).split(" (").next().unwrap().to_owned()))
    });
    places.filter(|(check, _)| check.contains("name") && check != "name-server").collect()
}

fn found(check: &str, place: &str) -> (String, String) {
    (check.to_owned(), format!("ClusterNetworkPolicy names: spec.egress{place}"))
}

#[test]
fn names_need_a_resolver() {
    let api = names("api.example.com", &[443]);
    let finding = [found("names-without-dns", ": Pod shop/web")];
    assert_eq!(doctor(&[SERVERS], &[&api, NOTHING_ELSE]), finding);
    let udp = "protocols: [{udp: {destinationPort: {number: 53}}}]";
    let tcp = "protocols: [{tcp: {destinationPort: {number: 53}}}]";
    let pods = "pods: {namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}";
    let rule = |to: &str, ports: &str| format!("{{action: Accept, to: [{{{to}}}], {ports}}}");
    assert_eq!(doctor(&[SERVERS], &[&rule(pods, udp), &api, NOTHING_ELSE]), []);
    assert_eq!(doctor(&[SERVERS], &[&rule(pods, tcp), &api, NOTHING_ELSE]), finding);
    // Another resolver, which an option of the agents may trust.
    let other = "networks: [169.254.20.10/32]";
    assert_eq!(doctor(&[SERVERS], &[&rule(other, udp), &api, NOTHING_ELSE]), []);
    assert_eq!(doctor(&[SERVERS], &[&api]), [], "nothing is denied");
    assert_eq!(doctor(&[], &[&api, NOTHING_ELSE]), [], "the objects have no DNS");
    // A NetworkPolicy that isolates the pods.
    let closed = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed, namespace: shop}, \
                  spec: {podSelector: {}, policyTypes: [Egress]}}";
    assert_eq!(doctor(&[SERVERS, closed], &[&api]), finding);
}

#[test]
fn names_of_services_allow_nothing() {
    let of = |name: &str| doctor(&[SERVERS], &[&names(name, &[443])]);
    let finding = |name: &str| [found("name-of-service", &format!("[0]: {name}"))];
    for name in ["web.shop.svc.cluster.local", "*.shop.svc.cluster.local"] {
        assert_eq!(of(&format!("'{name}'")), finding(name));
    }
    for name in [
        // A headless Service, and a Service next to a headless one.
        "db.data.svc.cluster.local",
        "*.data.svc.cluster.local",
        "*.svc.cluster.local",
        "none.shop.svc.cluster.local",
        "a.web.shop.svc.cluster.local",
        "web.shop.svc.example.com",
        "svc.cluster.local",
    ] {
        assert_eq!(of(&format!("'{name}'")), [], "{name}");
    }
}

#[test]
fn names_beyond_the_limit_are_an_error() {
    let rules: Vec<String> =
        (0..16).map(|n| names(&format!("n{n}.example.org"), &[1000 + n])).collect();
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    assert_eq!(doctor(&[], &rules), [found("names-beyond-limit", "[15]: Pod shop/web")]);
    assert_eq!(doctor(&[], &rules[1..]), []);
}

/// A flow by name becomes a rule of a ClusterNetworkPolicy, and no block.
#[test]
fn flows_by_name_are_learned_as_names() {
    let directory = directory(&[]);
    let flow = |peer: &str, port: u16, names: &str| {
        format!(
            "{{\"workload\": {{\"namespace\": \"shop\", \"labels\": {{\"app\": \"web\"}}}}, \"direction\": \"egress\", \
             \"peer\": {{\"address\": \"{peer}\"}}, \"protocol\": \"TCP\", \"port\": {port}, \"flows\": 2, \"on_trial\": 0, \
             \"denied\": 0, \"first\": 1, \"last\": 2{names}}}"
        )
    };
    let flows = [
        flow("192.0.2.7", 443, ", \"names\": [\"*.example.com\", \"api.example.com\"]"),
        flow("192.0.2.8", 443, ", \"names\": [\"*.example.com\"]"),
        flow("192.0.2.9", 8443, ", \"names\": [\"api.example.com\"]"),
        flow("192.0.2.10", 443, ""),
    ];
    let records = format!(
        "{{\"node\": \"oak\", \"as_of\": 3, \"since\": 1, \"flows\": [{}]}}",
        flows.join(", ")
    );
    fs::write(directory.path().join("records.json"), records).unwrap();
    fs::remove_file(directory.path().join("policies.yaml")).unwrap();
    let cluster =
        ["learn", "-n", "shop", "--manifests", "cluster.yaml", "--records", "records.json"];
    fs::create_dir(directory.path().join("in")).unwrap();
    fs::rename(directory.path().join("cluster.yaml"), directory.path().join("in/cluster.yaml"))
        .unwrap();
    let cluster = cluster.map(|arg| if arg == "cluster.yaml" { "in" } else { arg });
    let output = run(directory.path(), &cluster);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let expected = "\
---
# Domain names of shop app=web. In force at once: it denies nothing, and names in audit mode match no address.
# api.example.com, TCP 443,8443: 4 flows, the last at 1970-01-01T00:00:02Z
# *.example.com, TCP 443: 2 flows, the last at 1970-01-01T00:00:02Z
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: learned-web.shop
spec:
  tier: Admin
  priority: 900
  subject:
    pods:
      namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: shop
      podSelector:
        matchLabels:
          app: web
  egress:
";
    assert!(text.contains(expected), "{text}");
    let rule = "  - action: Accept\n    to:\n    - domainNames: [\"*.example.com\"]\n    protocols:\n    - {tcp: \
                {destinationPort: {number: 443}}}\n";
    assert!(text.contains(rule), "{text}");
    assert!(text.contains("192.0.2.10/32") && !text.contains("192.0.2.7"), "{text}");

    // netpold reads the written policy, which accepts the names.
    let written = directory.path().join("written");
    fs::create_dir(&written).unwrap();
    fs::write(written.join("learned.yaml"), &text).unwrap();
    fs::copy(directory.path().join("in/cluster.yaml"), written.join("cluster.yaml")).unwrap();
    let enforced = text.replace("netpold.io/enforcement: audit", "netpold.io/enforcement: enforce");
    fs::write(written.join("learned.yaml"), enforced).unwrap();
    let assertions = "assertions:
- {from: shop/web, to: {name: api.example.com, at: public}, port: 8443, expect: allow}
- {from: shop/web, to: {name: x.example.com, at: 203.0.113.0/24}, port: 443, expect: allow}
- {from: shop/web, to: {name: x.example.com, at: public}, port: 8443, expect: deny}
- {from: shop/web, to: {name: example.com, at: 203.0.113.0/24}, port: 443, expect: deny}
";
    fs::write(directory.path().join("a.yaml"), assertions).unwrap();
    let output = run(directory.path(), &["test", "-f", "a.yaml", "--manifests", "written"]);
    assert!(stdout(&output).ends_with("4 passed, 0 failed\n"), "{}", stdout(&output));

    let json = run(directory.path(), &[&cluster[..], &["-o", "json"]].concat());
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let items = json["policies"]["items"].as_array().unwrap();
    let of_names = items.iter().find(|item| item["kind"] == "ClusterNetworkPolicy").unwrap();
    assert_eq!(of_names["spec"]["egress"][0]["action"], "Accept");
}
