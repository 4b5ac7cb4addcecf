//! Output on pages equals the binary's output, and links between pages resolve.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use axum::Router;
use netpold_api::rules::RULES_REQUEST;
use netpold_ebpf::names::ignored::IgnoredAnswer;
use netpold_ebpf::reason::Reason;
use netpold_engine::admin::{self, Admin};
use serde_json::json;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// Returns the blocks between fences that begin with a prompt: the command after `$ `, and the lines after it.
fn sessions(page: &str) -> Vec<(&str, &str)> {
    let blocks = page.split("\n```").skip(1).step_by(2);
    let blocks = blocks.filter_map(|block| block.split_once('\n')?.1.strip_prefix("$ "));
    blocks.filter_map(|session| session.split_once('\n')).collect()
}

#[test]
fn the_output_on_pages_is_real() {
    for name in ["README.md", "deploy/doctor.md", "deploy/learn.md", "deploy/review.md"] {
        let page = page(name);
        let sessions = sessions(&page);
        assert!(!sessions.is_empty(), "{name} shows no output");
        for (command, shown) in sessions {
            let arguments = command.strip_prefix("netpold ").unwrap().split(' ');
            let mut netpold = Command::new(env!("CARGO_BIN_EXE_netpold"));
            let output = netpold.args(arguments).env_clear().current_dir(root()).output().unwrap();
            let printed = String::from_utf8(output.stdout).unwrap();
            assert_eq!(printed.trim_end(), shown.trim_end(), "{name}: {command}");
        }
    }
}

/// Checks that the binary renders an agent's answer as on the page.
#[test]
fn the_list_of_rules_is_real() {
    let text = page("deploy/troubleshooting.md");
    let (command, shown) = sessions(&text)[0];
    let rule = |namespace: &str, direction: &str, index: u32, rule: &str| {
        json!({
            "kind": "NetworkPolicy", "namespace": namespace, "name": "web", "direction": direction,
            "index": index, "rule": rule, "flows": 0, "last_used": null, "watched_since": 1_000_000,
        })
    };
    let mut rules = vec![
        rule("other", "ingress", 0, "everything from anyone"),
        rule("shop", "ingress", 0, "TCP 80 from pods app=client of namespace shop"),
        rule("shop", "ingress", 1, "TCP 9090 from pods app=monitor of namespace shop"),
        rule("shop", "egress", 0, "UDP 53 to anyone"),
    ];
    let as_of = 1_000_000 + 9 * 86_400;
    for (index, flows, ago) in [(1, 1204, 2), (3, 88, 3 * 3600)] {
        rules[index]["flows"] = flows.into();
        rules[index]["last_used"] = (as_of - ago).into();
    }
    let answer = json!({ "node": "n", "as_of": as_of, "rules": rules });
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let rules = admin::answer(move |()| answer.clone());
    let _agent = Admin::serve(&socket, Router::new().route(RULES_REQUEST, rules)).unwrap();
    let arguments = command.strip_prefix("netpold ").unwrap().split(' ');
    let mut netpold = Command::new(env!("CARGO_BIN_EXE_netpold"));
    let output = netpold.args(arguments).arg("--socket").arg(&socket).env_clear().output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed.trim_end(), shown.trim_end(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// All pages of the project.
const PAGES: [&str; 32] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "agent/README.md",
    "agent/THREATS.md",
    "agent/core/conformance/README.md",
    "bench/README.md",
    "deploy/README.md",
    "deploy/audit.md",
    "deploy/chart/README.md",
    "deploy/cli.md",
    "deploy/clusters.md",
    "deploy/cluster-network-policy.md",
    "deploy/doctor.md",
    "deploy/export.md",
    "deploy/learn.md",
    "deploy/limits.md",
    "deploy/live.md",
    "deploy/metrics.md",
    "deploy/names.md",
    "deploy/observe.md",
    "deploy/places.md",
    "deploy/reject.md",
    "deploy/review.md",
    "deploy/scale.md",
    "deploy/status.md",
    "deploy/trace.md",
    "deploy/troubleshooting.md",
    "deploy/ui.md",
    "deploy/verify.md",
    "ebpf/README.md",
];

/// Returns the anchors of a page's headings, as GitHub generates them.
fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut links = 0;
    for name in PAGES {
        let text = page(name);
        let folder = root().join(name).parent().unwrap().to_owned();
        let following =
            |mark, end| text.split(mark).skip(1).map(move |rest| rest.split(end).next().unwrap());
        let markdown = following("](", ')');
        // Pictures with a dark scheme, and links around them.
        let html = ["href=\"", "src=\"", "srcset=\""].into_iter().flat_map(|it| following(it, '"'));
        for target in markdown.chain(html).filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { root().join(name) } else { folder.join(file) };
            assert!(path.exists(), "{name}: {target}");
            if !anchor.is_empty() {
                let there = anchors(&fs::read_to_string(&path).unwrap());
                assert!(there.iter().any(|it| it == anchor), "{name}: {target}");
            }
            links += 1;
        }
    }
    assert!(links > 30, "only {links} links were found");
}

/// Checks that the table of ignored answers has exactly the labels of their counter.
#[test]
fn every_reason_of_an_ignored_answer_is_documented() {
    let text = page("deploy/names.md");
    let table = text.split("| reason | counted | what to do |\n").nth(1).unwrap();
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let documented: Vec<&str> =
        rows.map(|row| row.split('|').nth(1).unwrap().trim().trim_matches('`')).collect();
    assert_eq!(documented, IgnoredAnswer::ALL.map(IgnoredAnswer::as_str));
}

/// Checks that the page's table of reasons has exactly the labels of the drop counter.
#[test]
fn every_reason_of_a_drop_is_documented() {
    let text = page("deploy/metrics.md");
    let table = text.split("| reason | meaning |\n").nth(1).unwrap();
    let rows = table.lines().skip(1).map_while(|line| line.strip_prefix("| "));
    let documented: BTreeSet<&str> =
        rows.flat_map(|row| row.split(" |").next().unwrap().split(", ")).collect();
    let served = Reason::ALL.into_iter().filter(|reason| reason.is_drop()).map(Reason::as_str);
    assert_eq!(documented, served.collect());
}

/// Checks that workflows are YAML, run the developer's checks, and pin actions by major version or by commit.
#[test]
fn workflows_are_well_formed() {
    let folder = root().join(".github");
    for name in
        ["ISSUE_TEMPLATE/bug.yml", "ISSUE_TEMPLATE/feature.yml", "ISSUE_TEMPLATE/config.yml"]
    {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let form: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert!(form["body"].is_array() || form["contact_links"].is_array(), "{name}");
    }
    for (name, runs) in [("ci.yaml", ".ci/run"), ("release.yaml", "cargo xtask image")] {
        let text = fs::read_to_string(folder.join("workflows").join(name)).unwrap();
        let workflow: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        let jobs = workflow["jobs"].as_object().unwrap().values();
        let steps: Vec<_> = jobs.flat_map(|job| job["steps"].as_array().unwrap()).collect();
        let commands = steps.iter().filter_map(|step| step["run"].as_str());
        assert!(commands.into_iter().any(|command| command.contains(runs)), "{name}");
        for action in steps.iter().filter_map(|step| step["uses"].as_str()) {
            let (_, version) = action.split_once('@').unwrap();
            let major = version.strip_prefix('v').is_some_and(|it| it.parse::<u8>().is_ok());
            let commit = version.len() == 40 && version.chars().all(|c| c.is_ascii_hexdigit());
            assert!(major || commit, "{name}: {action}");
        }
    }
}
