//! The netpold binary as a program: agents, oracle, explanations.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use netpold_testbed::{Agent, AgentOptions, Manifests, TestNode, without_twins};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{cargo, setup, step};

/// Loading includes the kernel's verification, which is slow on a busy machine.
const START: Duration = Duration::from_secs(20);
/// An agent notices a changed file within 200 ms; twice that for a busy machine.
const PICKED_UP: Duration = Duration::from_millis(400);

/// Arguments of cargo for the agent, without debugging information and without optimizations that only tests need.
const BUILD: [&str; 15] = [
    "build",
    "--package",
    "netpold",
    "--bin",
    "netpold",
    "--config",
    "profile.dev.debug=false",
    "--config",
    "profile.dev.package.netpold-core.opt-level=0",
    "--config",
    "profile.dev.package.granit-parser.opt-level=0",
    "--config",
    "profile.dev.package.rustls.opt-level=0",
    "--config",
    "profile.dev.package.serde_json.opt-level=0",
];

/// Builds the agent, eBPF object included. While the toolchain is set up, the crates that need none are compiled.
pub(crate) fn build() -> Result<PathBuf> {
    let binary = crate::target().join("debug/netpold");
    let is_due = setup::is_due();
    if let Some(duration) = expected_duration(is_due, binary.exists()) {
        step::note(duration);
    }
    let early = is_due.then(|| step::BackgroundCommand::start(cargo(&BUILD).arg("--quiet")));
    let toolchain = setup::run()?;
    drop(early);
    step::show(toolchain.apply(&mut cargo(&BUILD)))?;
    Ok(binary)
}

/// Returns the time until the demo begins, of a run on two idle cores (CONTRIBUTING.md has its parts); `None` if it is
/// short.
fn expected_duration(without_tools: bool, is_built: bool) -> Option<&'static str> {
    match (without_tools, is_built) {
        (true, _) => Some("first run: 1 minute for tools, then 3 for the build, on two idle cores"),
        (false, false) => Some("first run: 3 minutes for the build, on two idle cores"),
        (false, true) => None,
    }
}

/// Starts an agent on each node and waits until all enforce.
pub(crate) fn start_agents(
    binary: &Path,
    nodes: &[TestNode],
    manifests: &Manifests,
) -> Result<Vec<Agent>> {
    let options = AgentOptions {
        binary: binary.into(),
        manifests: manifests.directory().into(),
        arguments: Vec::new(),
    };
    let start = |node: &TestNode| Agent::start(node, options.clone());
    let mut agents = nodes.iter().map(start).collect::<Result<Vec<_>>>()?;
    let everywhere = |status: &Value| {
        let endpoints = status["endpoints"].as_array();
        let judged = |all: &Vec<Value>| !all.is_empty() && all.iter().all(|e| !e["hook"].is_null());
        Agent::enforces(status) && endpoints.is_some_and(judged)
    };
    for agent in &mut agents {
        agent.wait_for("enforcing at every pod", START, everywhere)?;
    }
    Ok(agents)
}

/// Waits until all agents have noticed and enforced the last change.
pub(crate) fn settle(agents: &mut [Agent]) -> Result<()> {
    std::thread::sleep(PICKED_UP);
    agents.iter_mut().try_for_each(|agent| agent.wait_enforced(START).map(drop))
}

/// A question to the oracle.
pub(crate) struct OracleQuestion {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) port: u16,
    pub(crate) protocol: String,
}

/// Returns the oracle's answers: `true` for allowed.
pub(crate) fn judge(
    binary: &Path,
    manifests: &Manifests,
    questions: &[OracleQuestion],
) -> Result<Vec<bool>> {
    let mut child = without_twins(&mut Command::new(binary))
        .args(["explain", "--probes", "-", "--manifests"])
        .arg(manifests.directory())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run netpold explain")?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    let lines: String = questions.iter().map(|q| format!("{}\n", q.json())).collect();
    // A separate thread writes: the answers may fill their pipe before the last question is read.
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output()?;
    let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let said = String::from_utf8_lossy(&output.stderr);
    written.with_context(|| format!("netpold explain took not all probes: {said}"))?;
    let answers = String::from_utf8_lossy(&output.stdout).into_owned();
    let verdicts = answers.lines().map(verdict).collect::<Result<Vec<_>>>()?;
    ensure!(
        verdicts.len() == questions.len(),
        "netpold explain answered {} of {} probes: {said}",
        verdicts.len(),
        questions.len()
    );
    Ok(verdicts)
}

impl OracleQuestion {
    fn json(&self) -> Value {
        let mut line = json!({ "from": self.from, "to": self.to, "protocol": self.protocol });
        if self.port != 0 {
            line["port"] = self.port.into();
        }
        line
    }
}

fn verdict(line: &str) -> Result<bool> {
    let answer: Value = serde_json::from_str(line).context("netpold explain: not JSON")?;
    match answer["verdict"].as_str() {
        Some("allow") => Ok(true),
        Some("deny") => Ok(false),
        _ => bail!("netpold explain cannot tell: {line}"),
    }
}

/// Output of `netpold explain` in text form for one question.
pub(crate) fn explain(
    binary: &Path,
    manifests: &Manifests,
    question: &OracleQuestion,
) -> Result<String> {
    let mut command = Command::new(binary);
    without_twins(&mut command).args(["explain", "--manifests"]).arg(manifests.directory());
    command.args(["--from", &question.from, "--to", &question.to]);
    command.args(["--protocol", &question.protocol, "--port", &question.port.to_string()]);
    let output = command.output().context("cannot run netpold explain")?;
    ensure!(
        output.status.code() == Some(1),
        "netpold explain does not deny {} to {}: {}{}",
        question.from,
        question.to,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// A dropped packet in the JSON of `netpold status`.
#[derive(Deserialize)]
pub(crate) struct DropRecord {
    pub(crate) pod: String,
    pub(crate) direction: String,
    pub(crate) packet: String,
    pub(crate) reason: String,
    pub(crate) explanation: Vec<String>,
}

/// The recent drops of an agent, newest first.
pub(crate) fn recent_drops(agent: &Agent) -> Result<Vec<DropRecord>> {
    let mut status = agent.status()?;
    let drops = status["recent_drops"].take();
    serde_json::from_value(drops)
        .with_context(|| format!("the status of {} tells no recent drops", agent.node()))
}
