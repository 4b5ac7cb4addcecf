//! Contents and steps of a guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use netpold_testbed::SLOWNESS;
use serde::Deserialize;
use tempfile::TempDir;

use super::archive::CpioArchive;
use super::kernel::UnpackedKernel;
use super::modules;
use super::userland::Userland;
use crate::arch::Arch;
use crate::setup::{self, Toolchain};
use crate::{cargo, root, step};

/// Tests with real traffic, by module of `agent/tests/node`. Tests without a prefix here concern the
/// agent rather than the kernel, and are slow when emulated.
const TRAFFIC: [&str; 9] = [
    "traffic::reach::",
    "traffic::established::",
    "traffic::errors::",
    "traffic::fragments::",
    "traffic::spoof::",
    "traffic::kernel::",
    "traffic::netkit::",
    "traffic::trace::filters",
    "traffic::uninstall::",
];

/// The first step; the others make no sense without it.
const LOAD: &str = "load";

/// One command in the guest.
pub(super) struct GuestStep {
    pub(super) name: &'static str,
    /// Seconds until the step is killed.
    pub(super) limit: u64,
    command: String,
}

/// The binaries under test.
pub(super) struct TestBinaries {
    netpold: PathBuf,
    tests: PathBuf,
}

impl TestBinaries {
    /// Builds the binaries; statically for another processor than this machine's.
    ///
    /// # Errors
    /// When a binary does not compile.
    pub(super) fn build(toolchain: &Toolchain, arch: Arch) -> Result<Self> {
        let build = || -> Result<Command> {
            let tests = ["test", "--workspace", "--test", "node"];
            let mut command = cargo(&tests);
            command.arg("--no-run");
            if !arch.is_own() {
                setup::build_for(arch, &mut command)?;
                command.env("CARGO_ENCODED_RUSTFLAGS", setup::STATIC);
            }
            toolchain.apply(&mut command);
            Ok(command)
        };
        step::show(&mut build()?)?;
        let messages = step::output(build()?.args(["--message-format=json", "--quiet"]))?;
        let built: Vec<Artifact> =
            messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let find = |name: &str, kind: &str| {
            let mut all = built.iter().filter(|a| a.target.name == name);
            let found = all.find(|a| a.executable.is_some() && a.target.kind == [kind]);
            found.and_then(|a| a.executable.clone()).with_context(|| format!("no binary {name}"))
        };
        Ok(Self { netpold: find("netpold", "bin")?, tests: find("node", "test")? })
    }
}

/// One of cargo's messages.
#[derive(Deserialize)]
struct Artifact {
    target: ArtifactTarget,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct ArtifactTarget {
    name: String,
    kind: Vec<String>,
}

/// A guest's initramfs, on disk until dropped.
pub(super) struct Guest {
    steps: Vec<GuestStep>,
    folder: TempDir,
}

impl Guest {
    /// Makes the initramfs for a kernel; a non-empty `only` selects tests with traffic.
    ///
    /// # Errors
    /// When a file for the initramfs cannot be read.
    pub(super) fn new(
        kernel: &UnpackedKernel,
        userland: &Userland,
        binaries: &TestBinaries,
        only: &[String],
    ) -> Result<Self> {
        let steps = steps(kernel, binaries, only);
        let mut archive = CpioArchive::default();
        archive.file("/init", 0o755, include_str!("init.sh"));
        archive.copy(&userland.busybox, Path::new("/busybox"))?;
        let lines = steps.iter().map(|s| format!("{} {} {}\n", s.limit, s.name, s.command));
        archive.file("/steps", 0o644, lines.collect::<String>());
        let modules = modules::wanted(&kernel.modules)?;
        let order: String = modules.iter().map(|module| format!("{}\n", module.name)).collect();
        archive.file("/modules/order", 0o644, order);
        for module in modules {
            archive.file(&format!("/modules/{}", module.name), 0o644, module.content);
        }
        for folder in ["/dev", "/proc", "/sys", "/tmp", "/run"] {
            archive.folder(folder);
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            archive.link(&format!("/{name}"), &format!("usr/{name}"));
        }
        let built = [&*binaries.netpold, &binaries.tests];
        for (to, from) in userland.files(&built)? {
            archive.copy(&from, &to)?;
        }
        let corpus = root().join("agent/fuzz/corpus/packets");
        for input in fs::read_dir(&corpus).with_context(|| corpus.display().to_string())? {
            let input = input?.path();
            archive.copy(&input, &input)?;
        }
        let folder = tempfile::Builder::new().prefix("netpold-vm-").tempdir()?;
        archive.write(&folder.path().join("initramfs"))?;
        Ok(Self { steps, folder })
    }

    pub(super) fn initramfs(&self) -> PathBuf {
        self.folder.path().join("initramfs")
    }

    pub(super) fn steps(&self) -> &[GuestStep] {
        &self.steps
    }
}

fn steps(kernel: &UnpackedKernel, binaries: &TestBinaries, only: &[String]) -> Vec<GuestStep> {
    let (netpold, tests) = (binaries.netpold.display(), binaries.tests.display());
    if kernel.too_old {
        let run = format!(
            "mkdir /tmp/m; {netpold} run --manifests /tmp/m --node-name n1 --bpffs /tmp/b 2>&1 | tee \
             /tmp/said; grep -q 'has no atomic BPF operations' /tmp/said"
        );
        return vec![GuestStep { name: "refuses", limit: 60, command: run }];
    }
    let filters = if only.is_empty() { TRAFFIC.join(" ") } else { only.join(" ") };
    let with_traffic = GuestStep {
        name: "traffic",
        limit: 5400,
        command: format!("{SLOWNESS}=6 {tests} --test-threads=2 {filters}"),
    };
    if !only.is_empty() {
        return vec![with_traffic];
    }
    let load = "programs_pass_the_verifier --nocapture";
    vec![
        GuestStep { name: LOAD, limit: 1200, command: format!("{tests} {load}") },
        GuestStep {
            name: "kernel",
            limit: 2400,
            command: format!("{tests} --test-threads=2 kernel:: --skip traffic::"),
        },
        with_traffic,
    ]
}
