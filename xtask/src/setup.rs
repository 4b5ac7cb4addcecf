//! `cargo xtask setup`: installs the tools for building and testing netpold, other than Rust.
//!
//! - `ip` of iproute2, for the tests' network namespaces;
//! - a compiler with the sources of `core` that can build for the eBPF target: a nightly with rust-src, or Debian's own
//!   compiler (rustc-web, rust-web-src);
//! - bpf-linker, installed only into the user's cache;
//! - for checks of the sources, cargo-shear (unused dependencies) and typos (spelling), in the user's cache; the tests
//!   do not need them;
//! - for the tests alone: nft and iptables, which translate Services; dnsmasq; zsh and fish; chromium and its driver; in the
//!   user's cache kubectl, kube-apiserver, etcd, axe-core and Python's opentelemetry-proto; tools for `deploy/` (helm,
//!   lua, promtool, runc, ruby, shellcheck, skopeo) and the workflows (actionlint).
//!
//! `agent/dataplane/build.rs` searches the same places for the compiler and the linker.

mod actionlint;
mod axe;
mod crates;
mod cross;
mod deploy;
mod helm;
mod kube_apiserver;
mod kubectl;
mod otlp;
mod packages;
mod python;
mod release;
mod toolchain;

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use netpold_testbed::apiserver::KubeBinaries;

use crate::arch::Arch;
use crate::step;
pub(crate) use crates::{CrateProgram, SHEAR, TYPOS};
pub(crate) use cross::emulator;
use toolchain::{LINKER_VERSION, LLVM_MAJOR, MissingTools};
pub(crate) use toolchain::{Toolchain, cache as user_cache, on_path};

/// Packages for building bpf-linker.
const LLVM_PACKAGES: [&str; 4] = ["llvm-22-dev", "libpolly-22-dev", "libzstd-dev", "zlib1g-dev"];
const COMPILER_PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];
const LLVM_PREFIX: &str = "/usr/lib/llvm-22";
const NIGHTLY: [&str; 7] =
    ["toolchain", "install", "nightly", "--profile", "minimal", "--component", "rust-src"];

/// Whether [`run`] must install tools.
pub(crate) fn is_due() -> bool {
    !MissingTools::look().nothing()
}

/// Installs missing tools and returns the eBPF toolchain.
///
/// # Errors
/// The names of missing tools that cannot be installed.
pub(crate) fn run() -> Result<Toolchain> {
    let needs = MissingTools::look();
    if needs.nothing() {
        step::note("setup: all tools are installed");
        return Toolchain::find();
    }
    step::title(&format!("setup: missing {}", needs.names().join(", ")));
    install(&needs)?;
    let left = MissingTools::look();
    if !left.nothing() {
        bail!("still missing after setup: {}", left.names().join(", "));
    }
    touch_build_script()?;
    Toolchain::find()
}

/// Installs the tools for checks of `deploy/`, the workflows, the image and the export.
///
/// # Errors
/// When a tool cannot be installed.
pub(crate) fn for_deploy() -> Result<()> {
    deploy::install()?;
    actionlint::install()?;
    helm::install()?;
    otlp::install()
}

/// Returns the path of helm; fetches helm if it is missing.
///
/// # Errors
/// When helm cannot be fetched.
pub(crate) fn helm() -> Result<PathBuf> {
    helm::install()
}

/// Installs the tools for checks of the image.
///
/// # Errors
/// When a tool cannot be installed.
pub(crate) fn for_image() -> Result<()> {
    deploy::install_for_image()
}

/// Flag of rustc for a static binary.
pub(crate) const STATIC: &str = "-Ctarget-feature=+crt-static";

/// Adds the target of a processor to a cargo command; installs the cross tools for a processor other than this
/// machine's.
///
/// # Errors
/// When a tool cannot be installed.
pub(crate) fn build_for(arch: Arch, command: &mut Command) -> Result<()> {
    let target = arch.target();
    command.args(["--target", target]);
    if !arch.is_own() {
        let linker = cross::install(arch)?;
        let variable = target.replace('-', "_");
        command
            .env(format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), linker)
            .env(format!("CC_{variable}"), linker);
    }
    Ok(())
}

/// Programs that translate Services and resolve domain names in the namespaces of tests, and their packages.
const TRAFFIC: [(&str, &str); 3] =
    [("nft", "nftables"), ("iptables-restore", "iptables"), ("dnsmasq", "dnsmasq-base")];

/// Shells with completion other than bash, and their packages.
const SHELLS: [(&str, &str); 2] = [("zsh", "zsh"), ("fish", "fish")];

/// Installs the shells for tests of completion.
///
/// # Errors
/// When a shell cannot be installed.
pub(crate) fn for_completion() -> Result<()> {
    packages::install_programs(&SHELLS)
}

/// Browser and driver for the page of `netpold ui`, and their packages.
const BROWSER: [(&str, &str); 2] = [("chromium", "chromium"), ("chromedriver", "chromium-driver")];

/// Installs axe-core, and a browser for tests of the page unless a Chromium and its driver are installed.
///
/// # Errors
/// When one of them cannot be installed.
pub(crate) fn for_page() -> Result<()> {
    let others = ["google-chrome", "chromium-browser"];
    if others.iter().all(|name| on_path(name).is_none()) || on_path("chromedriver").is_none() {
        packages::install_programs(&BROWSER)?;
    }
    axe::install()
}

/// Installs the tools for checks of the sources.
///
/// # Errors
/// When a tool cannot be installed.
pub(crate) fn for_sources() -> Result<()> {
    SHEAR.install().and(TYPOS.install())
}

/// Installs the tools of tests with real traffic.
///
/// # Errors
/// When a tool cannot be installed.
pub(crate) fn for_traffic() -> Result<()> {
    packages::install_programs(&TRAFFIC)
}

/// Installs the programs of tests against a real API server.
///
/// # Errors
/// When a program cannot be installed, with the reason.
pub(crate) fn for_tests() -> Result<()> {
    kubectl::install()?;
    if KubeBinaries::without_server() {
        kube_apiserver::install()?;
    }
    KubeBinaries::find().map(|_| ())
}

fn install(needs: &MissingTools) -> Result<()> {
    let mut wanted: Vec<&str> = Vec::new();
    wanted.extend(needs.ip.then_some("iproute2"));
    wanted.extend(needs.cxx_for_linker.then_some("g++"));
    if needs.compiler {
        wanted.extend(COMPILER_PACKAGES);
    }
    if needs.linker {
        wanted.extend(LLVM_PACKAGES);
    }
    let missing = packages::not_installed(&wanted);
    if !missing.is_empty() {
        install_packages(&missing)?;
    }
    if MissingTools::look().linker {
        install_linker()?;
    }
    Ok(())
}

fn install_packages(missing: &[&str]) -> Result<()> {
    ensure!(
        packages::have_apt(),
        "this machine has no apt. Needed: iproute2; a nightly Rust with rust-src (rustup {}); bpf-linker \
         {LINKER_VERSION} for LLVM {LLVM_MAJOR} on the PATH",
        NIGHTLY.join(" ")
    );
    let unknown = packages::install(missing)?;
    if unknown.iter().any(|name| COMPILER_PACKAGES.contains(name)) {
        // Ubuntu has no rustc-web.
        step::quiet(Command::new("rustup").args(NIGHTLY)).context(
            "apt has no package rustc-web, and rustup could not install a nightly with rust-src",
        )?;
    }
    let rest: Vec<&str> =
        unknown.into_iter().filter(|name| !COMPILER_PACKAGES.contains(name)).collect();
    if rest.is_empty() {
        return Ok(());
    }
    let linker = if rest.iter().any(|name| LLVM_PACKAGES.contains(name)) {
        ". Without them bpf-linker cannot be built: put a released one (from \
         https://github.com/aya-rs/bpf-linker/releases) on the PATH and run this again"
    } else {
        ""
    };
    bail!("apt has no package {}{linker}", rest.join(", "))
}

/// Builds bpf-linker, in about half a minute: without optimization, because LLVM takes most of the linker's time.
fn install_linker() -> Result<()> {
    let folder = toolchain::linker_folder().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let feature = format!("llvm-{LLVM_MAJOR}");
    let features = ["--debug", "--no-default-features", "--features", &feature];
    let variables = [("LLVM_PREFIX", LLVM_PREFIX), ("CARGO_PROFILE_DEV_DEBUG", "false")];
    crates::install("bpf-linker", LINKER_VERSION, &folder, &features, &variables)
}

/// Makes the dataplane's build script run again at the next build, by its modification time: the script cannot watch
/// for a compiler that is not installed yet.
fn touch_build_script() -> Result<()> {
    let script = "agent/dataplane/build.rs";
    let file = File::options().append(true).open(crate::root().join(script));
    match file.and_then(|file| file.set_modified(SystemTime::now())) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot touch {script}"))
        }
        _ => Ok(()),
    }
}
