//! The NetworkPolicy tests of Kubernetes (`e2e.test`), in the cluster's version.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::binaries::ClusterBinaries;
use super::state::{ClusterFolder, NODES};
use super::{control, images};
use crate::step;

/// Interval of progress reports.
const PROGRESS: Duration = Duration::from_mins(1);
/// Number of log lines to print after a failure.
const LAST_LINES: usize = 60;

/// Runs the tests by `deploy/kind/conformance.sh`.
///
/// # Errors
/// The folder has no tests, a node lacks an image for them, or a test fails.
pub(super) fn run(state: &ClusterFolder, binaries: &ClusterBinaries, focus: &str) -> Result<()> {
    let folder = binaries.folder();
    ensure!(binaries.e2e().is_some(), "no e2e.test in {}", folder.display());
    for node in NODES {
        let present = images::listed(state, binaries, node)?;
        for name in images::wanted(binaries)? {
            ensure!(
                present.contains(&name),
                "node {node} has no image {name}, which the tests run: put it into {} as an archive \
                 (`skopeo copy docker://{name} docker-archive:agnhost.tar:{name}`), or the static \
                 program agnhost into {}, and start the cluster anew",
                folder.join("images").display(),
                folder.display()
            );
        }
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths([folder.to_owned()].into_iter().chain(std::env::split_paths(&path)))
            .context("PATH")?;
    let init = state.init(NODES[0])?;
    let script = crate::root().join("deploy/kind/conformance.sh");
    let log = state.log(NODES[0], "e2e");
    step::title(&format!("e2e: Kubernetes' NetworkPolicy tests, logged in {}", log.display()));
    let start = Instant::now();
    let mut child = Command::new("nsenter")
        .args([&format!("--target={init}"), "--net", "--", "sh"])
        .args([script.as_os_str(), focus.as_ref()])
        .env("PATH", path)
        .env("KUBECONFIG", control::admin(state))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(state.log(NODES[0], "e2e-errors"))?)
        .spawn()
        .context("cannot run nsenter (util-linux)")?;
    follow(child.stdout.take().context("no output")?, &log, start)?;
    let status = child.wait()?;
    let log = std::fs::read_to_string(&log)?;
    let lines: Vec<&str> = log.lines().collect();
    for line in lines.iter().filter(|line| line.starts_with("Ran ")) {
        step::note(line);
    }
    if !status.success() {
        step::note(&lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"));
    }
    ensure!(status.success(), "Kubernetes' NetworkPolicy tests failed ({status})");
    step::note(&format!("e2e passed in {:.0?}", start.elapsed()));
    Ok(())
}

/// Copies the output of the tests to a log, and reports the number of passed tests at intervals. The output has one dot
/// for each passed test.
fn follow(output: impl Read, log: &Path, start: Instant) -> Result<()> {
    let mut log = File::create(log)?;
    let mut output = BufReader::new(output);
    let (mut passed, mut reported, mut buffer) = (0, start, Vec::new());
    let mut block = [0; 4096];
    loop {
        let count = output.read(&mut block)?;
        if count == 0 {
            return Ok(());
        }
        log.write_all(&block[..count])?;
        // The dot has three bytes, possibly in two blocks.
        buffer.extend_from_slice(&block[..count]);
        passed += buffer.windows(3).filter(|bytes| *bytes == "•".as_bytes()).count();
        buffer.drain(..buffer.len().saturating_sub(2));
        if reported.elapsed() >= PROGRESS {
            reported = Instant::now();
            step::note(&format!("{passed} tests have passed after {:.0?}", start.elapsed()));
        }
    }
}
