//! What cannot be run here is looked at by the tools of its language.

use std::path::PathBuf;
use std::process::Command;

use crate::rendered::deploy;
use netpold_testbed::skip;

/// Runs a tool over files; `None` if it is not installed.
fn run(tool: &str, arguments: &[&str], files: &[PathBuf]) -> Option<(bool, String)> {
    let output = Command::new(tool).args(arguments).args(files).output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

/// Shell scripts in `deploy/`.
fn scripts() -> Vec<PathBuf> {
    let folders =
        ["kind", "vagrant"].map(|folder| std::fs::read_dir(deploy().join(folder)).unwrap());
    let files = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "sh")).collect()
}

#[test]
fn shell_scripts_are_clean() {
    let scripts = scripts();
    assert!(scripts.len() >= 3, "{scripts:?}");
    match run("shellcheck", &["--severity=style", "--external-sources"], &scripts) {
        Some((clean, said)) => assert!(clean, "{said}"),
        None => skip("shell_scripts_are_clean", "needs shellcheck (`cargo xtask setup`)"),
    }
}

#[test]
fn the_vagrantfile_is_ruby() {
    match run("ruby", &["-wc"], &[deploy().join("vagrant/Vagrantfile")]) {
        Some((parsed, said)) => {
            assert!(parsed && !said.contains("warning"), "{said}");
        }
        None => skip("the_vagrantfile_is_ruby", "needs ruby (`cargo xtask setup`)"),
    }
}

/// The cluster of kind has what the script and the overlay count on.
#[test]
fn the_kind_cluster_is_one_without_another_enforcer() {
    let text = std::fs::read_to_string(deploy().join("kind/cluster.yaml")).unwrap();
    let cluster = &crate::rendered::parse(&text)[0];
    assert_eq!(
        (&cluster["kind"], &cluster["apiVersion"]),
        (&"Cluster".into(), &"kind.x-k8s.io/v1alpha4".into())
    );
    let roles = cluster["nodes"].as_array().unwrap().iter().map(|n| n["role"].as_str().unwrap());
    assert_eq!(roles.filter(|role| *role == "worker").count(), 2, "remote and local peers");
    assert_eq!(cluster["networking"]["ipFamily"], "dual");
}
