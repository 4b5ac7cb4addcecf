//! Single events: a cut connection, an explained drop.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netpold_testbed::{Agent, Manifests, ProbeProtocol, TestFlow, TestPod, interrupted};
use owo_colors::OwoColorize;

use super::cluster::{DemoCluster, HTTP};
use super::netpold::{self, DropRecord, OracleQuestion};
use crate::step;

/// Policies of the demo, with the names of their files.
pub(super) const POLICIES: [(&str, &str); 3] = [
    ("shop.yaml", include_str!("../../../deploy/example/shop.yaml")),
    ("billing.yaml", include_str!("../../../deploy/example/billing.yaml")),
    ("monitoring.yaml", include_str!("../../../deploy/example/monitoring.yaml")),
];
const TIMEOUT: Duration = Duration::from_secs(5);
/// A request on an open connection takes well under a millisecond here; without an answer in this time the connection
/// counts as cut.
const PATIENCE: Duration = Duration::from_millis(100);

/// Setting of the events.
pub(crate) struct DemoStage<'a> {
    pub(crate) binary: &'a Path,
    pub(crate) manifests: &'a Manifests,
    pub(crate) cluster: &'a DemoCluster,
}

impl DemoStage<'_> {
    /// Removes the rule under which a connection was opened, and asserts that another connection to the same pod
    /// continues.
    pub(crate) fn cut_a_connection(&self, agents: &mut [Agent]) -> Result<()> {
        step::title("a policy change and established connections");
        let api = self.cluster.pod("billing/api")?;
        let mut cut = open(self.cluster.pod("shop/web")?, api, HTTP)?;
        let mut kept = open(self.cluster.pod("monitoring/metrics")?, api, 9105)?;
        ensure!(cut.ping(TIMEOUT) && kept.ping(TIMEOUT), "a new connection carries no request");
        step::note("shop/web and monitoring/metrics each hold a connection to billing/api");

        let [_, (file, policies), _] = POLICIES;
        let without = policies.replace("team: shop", "team: nobody");
        ensure!(without != policies, "the demo's own policy has changed");
        let start = Instant::now();
        self.manifests.write(file, &without)?;
        let last_answer = wait_until_silent(&mut cut, start)?;
        step::note(&format!(
            "billing/shop-to-api no longer selects the shop: its connection is {}, the last answer \
             came {last_answer:.0?} after the file was written",
            "cut".red().bold()
        ));
        netpold::settle(agents)?;
        ensure!(!cut.ping(PATIENCE), "the connection answers again without its rule");
        ensure!(kept.ping(TIMEOUT), "the connection of monitoring/metrics was cut as well");
        step::note(&format!("the connection of monitoring/metrics {}", "goes on".green().bold()));

        self.manifests.write(file, policies)?;
        netpold::settle(agents)?;
        ensure!(cut.ping(TIMEOUT), "the connection does not go on after the rule is back");
        step::note("with the rule back, the connection that was cut goes on as well");
        Ok(())
    }

    /// Provokes a drop and prints its reason.
    pub(crate) fn reason_of_a_drop(&self, agents: &[Agent]) -> Result<()> {
        step::title("why was that dropped?");
        let (from, to) = (self.cluster.pod("outside/scanner")?, self.cluster.pod("shop/web")?);
        let (source, target) = (from.ip4().context("no IPv4")?, to.ip4().context("no IPv4")?);
        let result = from.probe(ProbeProtocol::Tcp, target, HTTP, Duration::from_millis(300));
        ensure!(result.dropped(), "outside/scanner to shop/web: {result}");
        step::note(&format!("outside/scanner ({source}) to shop/web, TCP {HTTP}: {result}"));

        let agent = agents.iter().find(|agent| agent.node() == "oak").context("no agent on oak")?;
        let seen = wait_for_drop(agent, &source.to_string())?;
        step::note(&format!("{} on {}:", "netpold status".bold(), agent.node()));
        let what = format!("{}, {} of {}: {}", seen.packet, seen.direction, seen.pod, seen.reason);
        anstream::println!("{}", indented(&what).trim_end());
        anstream::println!("{}", indented(&seen.explanation.join("\n")));

        let question = OracleQuestion {
            from: source.to_string(),
            to: to.name().into(),
            port: HTTP,
            protocol: ProbeProtocol::Tcp.to_string(),
        };
        step::note(&format!("{}:", "netpold explain".bold()));
        anstream::println!(
            "{}",
            indented(&netpold::explain(self.binary, self.manifests, &question)?)
        );
        Ok(())
    }
}

fn open(from: &TestPod, to: &TestPod, port: u16) -> Result<TestFlow> {
    let address = to.ip6().context("the demo's pods have IPv6")?;
    from.open_flow(ProbeProtocol::Tcp, SocketAddr::new(address, port), TIMEOUT)
}

/// Time of the last answer.
fn wait_until_silent(flow: &mut TestFlow, start: Instant) -> Result<Duration> {
    let mut last = start.elapsed();
    while flow.ping(PATIENCE) {
        go_on()?;
        last = start.elapsed();
        if last > TIMEOUT {
            bail!("the connection is still open {last:.0?} after its rule went");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(last)
}

/// Waits until the agent reports a drop, a moment after it.
fn wait_for_drop(agent: &Agent, source: &str) -> Result<DropRecord> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let drops = netpold::recent_drops(agent)?;
        if let Some(drop) = drops.into_iter().find(|drop| drop.packet.contains(source)) {
            return Ok(drop);
        }
        ensure!(Instant::now() < deadline, "netpold status does not tell of the drop");
        go_on()?;
        std::thread::sleep(PATIENCE);
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("      {line}\n")).collect()
}

/// Ends the demo on an interrupt.
///
/// # Errors
/// The process was interrupted.
pub(super) fn go_on() -> Result<()> {
    ensure!(!interrupted(), "interrupted");
    Ok(())
}
