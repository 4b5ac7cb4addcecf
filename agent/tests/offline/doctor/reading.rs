//! Findings of `netpold doctor` about manifests that cannot be decoded or are not read.

use std::fs;
use std::process::Command;

use super::{BINARY, CLUSTER, doctor, examine, places, policy};

#[test]
fn problems_of_the_reader_are_findings() {
    let finds = |objects: &str| {
        let (status, report) = examine(&format!("{CLUSTER}{objects}"));
        let all: Vec<(String, Vec<String>)> = places(&report)
            .into_iter()
            .map(|(check, places)| {
                (check.to_owned(), places.iter().map(ToString::to_string).collect())
            })
            .collect();
        (status, all)
    };
    let one = |check: &str, place: &str| (1, vec![(check.to_owned(), vec![place.to_owned()])]);
    let web = "podSelector: {matchLabels: {app: web}}";
    let twice = policy("p", web) + &policy("p", &format!("{web}, ingress: [{{}}]"));
    let lines = CLUSTER.lines().count();
    let place = format!("NetworkPolicy x/p is defined twice; the one in line {} wins", lines + 3);
    assert_eq!(finds(&twice), one("defined-twice", &place));
    let number = "{apiVersion: v1, kind: Pod, metadata: {name: 'n', namespace: x, labels: {app: 7}}, spec: {}}\n---\n";
    let (status, found) = finds(number);
    let [(check, places)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((status, check.as_str()), (1, "object-not-read"), "{found:?}");
    assert!(
        places[0].starts_with("Pod x/n: ") && places[0].ends_with("(it counts as absent)"),
        "{places:?}"
    );
    // An unknown field of a policy is reported once, as a finding about the policy.
    let (_, found) = finds(&policy("p", &format!("{web}, ingres: []")));
    let checks: Vec<&str> = found.iter().map(|(check, _)| check.as_str()).collect();
    assert_eq!(checks, ["not-understood"], "{found:?}");
    assert_eq!(finds(&policy("p", web)), (0, vec![]));
}

/// Checks that each command reports subdirectories that it does not read, and refuses a directory with a
/// kustomization.
#[test]
fn subdirectories_and_kustomizations_are_named() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("all.yaml"), CLUSTER).unwrap();
    let path = directory.path().to_str().unwrap();
    let arguments: [&[&str]; 4] = [
        &["doctor", "--manifests", path],
        &["explain", "--manifests", path, "--from", "x/web", "--to", "y/client", "--port", "80"],
        &["test", "--manifests", path, "-f", &format!("{path}/assertions")],
        &["diff", "--from", path, "--to", path],
    ];
    fs::write(
        directory.path().join("assertions"),
        "assertions:\n- {from: x/web, to: y/client, port: 80, expect: allow}\n",
    )
    .unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(BINARY).args(arguments).env_clear().output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let named = format!("{path}: subdirectory not read: base (2 files)");
    for (below, is_named) in [
        ("base/notes.txt", false),
        (".git/a.yaml", false),
        ("base/a.yaml", false),
        ("base/deep/b.json", true),
    ] {
        let file = directory.path().join(below);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "{}").unwrap();
        for arguments in arguments {
            let (_, text) = run(arguments);
            assert_eq!(text.contains(&named), is_named, "{below}: {arguments:?}: {text}");
        }
    }
    let unknown = doctor(&mut Command::new(BINARY), &["--manifests", path]);
    assert_eq!((unknown.0, unknown.1.unknown.len()), (2, 1), "{unknown:?}");
    // Status 2: objects in a subdirectory may change connections, so the comparison is incomplete.
    assert_eq!(run(arguments[3]).0, 2);
    fs::write(directory.path().join("kustomization.yaml"), "kind: Kustomization\n").unwrap();
    for arguments in arguments {
        let (status, text) = run(arguments);
        let refused = format!("kubectl kustomize {path} | netpold {} ... ", arguments[0]);
        assert!(status == 2 && text.contains(&refused), "{status}: {text}");
    }
}
