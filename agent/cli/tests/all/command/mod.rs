//! Runs of the plugin in several tests.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::process::Command;

/// Returns the plugin's process with these arguments, without the environment.
pub(crate) fn plugin(arguments: &[&str]) -> Command {
    let mut process = Command::new(env!("CARGO_BIN_EXE_kubectl-netpold"));
    process.args(arguments).env_clear();
    process
}

/// Runs a process. Returns its exit status and its output.
pub(crate) fn run(process: &mut Command) -> (i32, String) {
    let output = process.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// Compares the exit status and parts of the text. Returns the text.
#[track_caller]
pub(crate) fn states((found, text): (i32, String), status: i32, parts: &[&str]) -> String {
    assert_eq!(found, status, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    text
}
