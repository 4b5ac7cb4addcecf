//! Location of the eBPF toolchain.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// The tested version of bpf-linker.
pub(super) const LINKER_VERSION: &str = "0.13.0";
/// The LLVM of that bpf-linker; a compiler's LLVM must not be newer.
pub(super) const LLVM_MAJOR: u32 = 22;
/// Debian's compiler.
pub(super) const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// Variables for overrides in `agent/dataplane/build.rs`.
const RUSTC_VARIABLE: &str = "NETPOLD_BPF_RUSTC";
const LINKER_VARIABLE: &str = "NETPOLD_BPF_LINKER";

/// Overrides for the agent's build where its own choice would be wrong.
pub(crate) struct Toolchain {
    rustc: Option<PathBuf>,
}

/// Missing tools.
pub(super) struct MissingTools {
    pub(super) ip: bool,
    pub(super) compiler: bool,
    pub(super) linker: bool,
    /// No C++ compiler for building bpf-linker against LLVM.
    pub(super) cxx_for_linker: bool,
}

impl Toolchain {
    /// Finds the installed toolchain.
    pub(super) fn find() -> Result<Self> {
        if env::var_os(RUSTC_VARIABLE).is_some() {
            return Ok(Self { rustc: None });
        }
        let newest = linker().and_then(|linker| llvm_of_linker(&linker)).unwrap_or(u32::MAX);
        match nightly_llvm() {
            Some(llvm) if llvm <= newest => Ok(Self { rustc: None }),
            // The build script prefers any nightly with rust-src; one too new for the linker needs an override.
            Some(_) if debian_usable() => Ok(Self { rustc: Some(DEBIAN_RUSTC.into()) }),
            None if debian_usable() => Ok(Self { rustc: None }),
            _ => bail!("no compiler for eBPF: run `cargo xtask setup`"),
        }
    }

    /// Applies the overrides to a run of cargo.
    pub(crate) fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if let Some(rustc) = &self.rustc {
            command.env(RUSTC_VARIABLE, rustc);
        }
        command
    }
}

impl MissingTools {
    /// Determines the missing tools.
    pub(super) fn look() -> Self {
        let linker = linker();
        let newest = linker.as_deref().and_then(llvm_of_linker).unwrap_or(LLVM_MAJOR);
        let chosen = env::var_os(RUSTC_VARIABLE).is_some();
        let nightly = nightly_llvm().is_some_and(|llvm| llvm <= newest);
        Self {
            ip: !["/usr/sbin/ip", "/sbin/ip"].iter().any(|p| Path::new(p).exists())
                && on_path("ip").is_none(),
            compiler: !(chosen || nightly || debian_usable()),
            linker: linker.is_none(),
            cxx_for_linker: linker.is_none() && on_path("c++").is_none(),
        }
    }

    pub(super) const fn nothing(&self) -> bool {
        !(self.ip || self.compiler || self.linker)
    }

    /// Names for messages.
    pub(super) fn names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        names.extend(self.ip.then_some("ip (iproute2)"));
        names.extend(self.compiler.then_some("a compiler for eBPF (rust-src)"));
        names.extend(self.linker.then_some("bpf-linker"));
        names
    }
}

/// Folder of the installed bpf-linker.
pub(super) fn linker_folder() -> Option<PathBuf> {
    Some(cache()?.join(format!("netpold/bpf-linker-{LINKER_VERSION}")))
}

/// The user's cache folder.
pub(crate) fn cache() -> Option<PathBuf> {
    env::var_os("XDG_CACHE_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| Some(home()?.join(".cache")))
}

fn linker() -> Option<PathBuf> {
    if let Some(chosen) = env::var_os(LINKER_VARIABLE) {
        return Some(chosen.into()).filter(|path: &PathBuf| path.is_file());
    }
    let in_home = home().map(|home| home.join(".cargo/bin/bpf-linker"));
    let cached = linker_folder().map(|folder| folder.join("bin/bpf-linker"));
    on_path("bpf-linker")
        .into_iter()
        .chain(in_home)
        .chain(cached)
        .find(|candidate| candidate.is_file())
}

/// LLVM of a dynamically linked bpf-linker; `None` if unknown.
fn llvm_of_linker(linker: &Path) -> Option<u32> {
    llvm_among(&output(Command::new("ldd").arg(linker))?)
}

/// Major version of libLLVM in the output of ldd.
fn llvm_among(libraries: &str) -> Option<u32> {
    let (_, name) = libraries.split_once("libLLVM")?;
    let digits: String =
        name.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// LLVM of rustup's nightly, if it has the sources of `core`.
fn nightly_llvm() -> Option<u32> {
    let rustc = |argument: &str| {
        output(Command::new("rustup").args(["run", "nightly", "rustc"]).args(argument.split(' ')))
    };
    if !has_core_sources(rustc("--print sysroot")?.trim()) {
        return None;
    }
    let version = rustc("-vV")?;
    let llvm = version.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    llvm.split('.').next()?.parse().ok()
}

fn debian_usable() -> bool {
    output(Command::new(DEBIAN_RUSTC).args(["--print", "sysroot"]))
        .is_some_and(|sysroot| has_core_sources(sysroot.trim()))
}

fn has_core_sources(sysroot: &str) -> bool {
    Path::new(sysroot).join("lib/rustlib/src/rust/library/core").is_dir()
}

/// A program on the `PATH`.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn home() -> Option<PathBuf> {
    env::var_os("HOME").map(PathBuf::from)
}

fn output(command: &mut Command) -> Option<String> {
    let result = command.output().ok()?;
    result.status.success().then(|| String::from_utf8_lossy(&result.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::llvm_among;

    #[test]
    fn llvm_of_both_ways_to_name_the_library() {
        let new = "\tlibLLVM.so.22.1 => /lib/x86_64-linux-gnu/libLLVM.so.22.1 (0x00007f)";
        let old = "\tlibLLVM-17.so.1 => /usr/lib/llvm-17/lib/libLLVM-17.so.1 (0x00007f)";
        assert_eq!(llvm_among(new), Some(22));
        assert_eq!(llvm_among(old), Some(17));
        assert_eq!(llvm_among("\tstatically linked"), None);
    }
}
