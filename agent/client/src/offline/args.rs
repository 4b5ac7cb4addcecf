//! Flags of several commands that read manifests.

use clap::Args;
use ipnet::IpNet;

/// Flag of commands that read directories.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Recursive {
    /// Read the files of subdirectories, too
    #[arg(short = 'R', long, env = "NETPOLD_RECURSIVE")]
    pub recursive: bool,
}

/// Flags of commands that judge connections by objects.
#[derive(Clone, Debug, Default, Args)]
pub struct ReviewArgs {
    /// Subdirectories of directories.
    #[command(flatten)]
    pub depth: Recursive,
    /// Comma-separated CIDRs of the addresses of pods without one, such as pod templates
    /// [default: private addresses]
    #[arg(long, value_name = "CIDR", env = "NETPOLD_POD_CIDRS", value_delimiter = ',')]
    pub pod_cidrs: Vec<IpNet>,
}
