//! Filters between pods: netpold and its alternatives.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use netpold_dataplane::attach::{Attacher, Hook};

use crate::packet::program;
use crate::world::LoadedCluster;

/// A filter between interfaces.
pub(crate) enum BenchFilter {
    /// No filter.
    None,
    /// An empty program at every hook.
    Empty(OwnedFd),
    /// The agent's programs and tables.
    Netpold(Box<LoadedCluster>),
    /// An nftables table `bench`, with its family.
    Nft(&'static str, String),
    /// A ruleset for iptables-restore with the chain FORWARD.
    Iptables(String),
}

impl BenchFilter {
    /// Installs the filter; programs are attached to these hooks.
    pub(crate) fn set(&mut self, hooks: &[Hook], attacher: &mut Attacher) -> Result<()> {
        match self {
            Self::None => {}
            Self::Empty(program) => {
                for hook in hooks {
                    attacher.attach(program.as_fd(), *hook)?;
                }
            }
            Self::Netpold(world) => {
                for hook in hooks {
                    let program = program(world, hook.direction)?;
                    attacher.attach(program.as_fd(), *hook)?;
                }
            }
            Self::Nft(_, rules) => _ = feed("nft", &["-f", "-"], rules)?,
            Self::Iptables(rules) => _ = feed("iptables-restore", &["--noflush"], rules)?,
        }
        Ok(())
    }

    /// Removes the filter.
    pub(crate) fn unset(&self, hooks: &[Hook], attacher: &mut Attacher) -> Result<()> {
        match self {
            Self::None => {}
            Self::Empty(_) | Self::Netpold(_) => {
                for hook in hooks {
                    attacher.detach(*hook)?;
                }
            }
            Self::Nft(family, _) => {
                feed("nft", &["-f", "-"], &format!("delete table {family} bench\n"))?;
            }
            Self::Iptables(_) => {
                feed("iptables-restore", &[], "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n")?;
            }
        }
        Ok(())
    }
}

/// One nftables base chain with these rules that drops all other packets.
pub(crate) fn nft_forward(rules: &str) -> BenchFilter {
    let table = format!(
        "table ip bench {{\nchain forward {{\ntype filter hook forward priority 0; policy \
         drop;\n{rules}\n}}\n}}\n"
    );
    BenchFilter::Nft("ip", table)
}

/// The iptables chain FORWARD with these rules that drops all other packets.
pub(crate) fn iptables_forward(rules: impl Iterator<Item = String>) -> BenchFilter {
    let rules: String = rules.map(|rule| format!("-A FORWARD {rule}\n")).collect();
    BenchFilter::Iptables(format!("*filter\n:FORWARD DROP [0:0]\n{rules}COMMIT\n"))
}

/// Address of a client that is in the rules but sends nothing.
pub(crate) fn other(number: u32) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from_bits(0x0a50_0001 + number)
}

/// Packets received and sent by an interface of the current namespace.
pub(crate) fn traffic(interface: &str) -> Result<(u64, u64)> {
    let devices = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = devices.lines().find_map(|line| line.trim().strip_prefix(interface));
    let fields = line.and_then(|line| line.strip_prefix(':')).context("no such interface")?;
    let field = |number| -> Result<u64> {
        let field = fields.split_ascii_whitespace().nth(number).context("no count of packets")?;
        Ok(field.parse()?)
    };
    Ok((field(1)?, field(9)?))
}

/// Whether a tool is installed.
pub(crate) fn installed(tool: &str) -> bool {
    let status =
        Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Runs a tool with this input; returns its output.
///
/// # Errors
/// The tool is missing or fails.
pub(crate) fn feed(tool: &str, arguments: &[&str], input: &str) -> Result<String> {
    use std::io::Write;
    let mut child = Command::new(tool)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {tool}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{tool}: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
