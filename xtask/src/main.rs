//! netpold's chores: `cargo xtask setup`, `cargo xtask test`, `cargo xtask demo`,
//! `cargo xtask bench`, `cargo xtask fuzz`, `cargo xtask vm-test`, `cargo xtask image`,
//! `cargo xtask cluster`.

mod arch;
mod bench;
mod checks;
mod cluster;
mod demo;
mod fuzz;
mod image;
mod setup;
mod step;
mod suites;
mod vm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install missing tools for building and testing
    Setup,
    /// Check format and lints, then run all tests (as root also those in network namespaces)
    Test {
        /// Run only the tests with this in their names, and no other checks
        #[arg(long, value_name = "NAME")]
        filter: Option<String>,
        /// Check format and lints, and run the tests without nodes, servers and fuzzing
        #[arg(long, conflicts_with = "filter")]
        quick: bool,
    },
    /// Write the table of test suites in CONTRIBUTING.md, from the last run of all tests
    Suites,
    /// Show enforcement of policies between pods in network namespaces (needs root)
    Demo {
        /// Use this netpold instead of building one
        #[arg(long, value_name = "PATH")]
        binary: Option<PathBuf>,
    },
    /// Build a container image from scratch: one static binary, as an OCI layout
    Image(image::ImageOptions),
    /// Measure: per packet, forwarding, control (needs root)
    Bench {
        /// Arguments for netpold-bench: --quick, --part NAME, --save-baseline; --help for all
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
        arguments: Vec<String>,
    },
    /// Run a fuzz target of agent/fuzz
    Fuzz(fuzz::FuzzOptions),
    /// Run the kernel tests and real traffic on Debian's kernels in qemu
    VmTest(vm::VmOptions),
    /// Run a real Kubernetes of two nodes with netpold, from a folder with its binaries (needs root)
    Cluster(cluster::ClusterOptions),
    /// First process of a node of that Kubernetes
    #[command(hide = true)]
    ClusterNode {
        /// The node's folder
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Setup => setup::run()
            .and_then(|_| setup::for_traffic())
            .and_then(|()| setup::for_completion())
            .and_then(|()| setup::for_page())
            .and_then(|()| setup::for_deploy())
            .and_then(|()| setup::for_tests())
            .and_then(|()| setup::for_sources()),
        Task::Test { quick: true, .. } => checks::quick(),
        Task::Test { filter, .. } => checks::run(filter.as_deref()),
        Task::Suites => suites::run(),
        Task::Demo { binary } => demo::run(binary),
        Task::Image(options) => image::run(&options),
        Task::Bench { arguments } => bench::run(&arguments),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::VmTest(options) => vm::run(&options),
        Task::Cluster(options) => cluster::run(&options),
        Task::ClusterNode { folder } => cluster::run_init(&folder),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            step::failure(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Top of the source tree.
fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Cargo's target directory.
fn target() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR");
    root().join(chosen.map_or("target".into(), PathBuf::from))
}

/// A run of the current cargo, at the top of the source tree.
fn cargo(arguments: &[&str]) -> std::process::Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command.args(arguments).current_dir(root());
    // Cargo sets these variables for xtask; inherited, they would cause rebuilds.
    for (name, _) in std::env::vars_os() {
        let inherited = name.to_str().is_some_and(|n| n.starts_with("CARGO_PKG_"));
        if inherited || name == "CARGO_MANIFEST_DIR" || name == "CARGO_MANIFEST_PATH" {
            command.env_remove(name);
        }
    }
    command
}
