//! What the agent needs of its machine, checked before anything is touched.

use anyhow::{Context, Result, bail};
use tracing::warn;

use crate::dataplane::attach::Mode;
use crate::dataplane::features::Features;

/// Capabilities and what they are for, with their numbers in `linux/capability.h`.
const CAPABILITIES: [(u32, &str, &str); 4] = [
    (39, "CAP_BPF", "maps and programs"),
    (12, "CAP_NET_ADMIN", "attaching programs, and the pods' addresses"),
    (38, "CAP_PERFMON", "programs that compute with packet pointers"),
    (11, "CAP_NET_BROADCAST", "address events of all namespaces"),
];
/// Stands for `CAP_BPF` and `CAP_PERFMON` too.
const CAP_SYS_ADMIN: u32 = 21;
/// What there is to say of the processor.
const UNTRIED: Option<&str> = if cfg!(target_arch = "x86_64") {
    None
} else if cfg!(target_arch = "aarch64") {
    Some("on this kind of processor netpold was tested in an emulator only")
} else {
    Some("netpold has not enforced anything on this kind of processor yet")
};

/// Checks kernel and privileges, and warns of a processor that little or nothing was tested on.
///
/// # Errors
/// What is missing, and what to do.
pub fn check() -> Result<()> {
    if let Some(lack) = UNTRIED {
        warn!(processor = std::env::consts::ARCH, "{lack}");
    }
    privileges_here()?;
    match kernel()? {
        Some(lack) => bail!("{lack}"),
        None => Ok(()),
    }
}

/// Checks what this process may do.
///
/// # Errors
/// The privileges that are missing.
pub(crate) fn privileges_here() -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read /proc")?;
    privileges(&status)
}

/// What netpold cannot do without and the kernel lacks. Needs the privileges.
///
/// # Errors
/// The kernel does not say what it is.
pub(crate) fn kernel() -> Result<Option<String>> {
    let name = nix::sys::utsname::uname().context("cannot ask for the kernel's version")?;
    let lack = lacking(Features::probe(), interprets());
    Ok(lack.map(|lack| format!("this kernel ({}) {lack}", name.release().to_string_lossy())))
}

const JIT: &str = "/proc/sys/net/core/bpf_jit_enable";

/// Whether the kernel was told to compile no BPF program.
fn interprets() -> bool {
    std::fs::read_to_string(JIT).is_ok_and(|enabled| enabled.trim() == "0")
}

/// What netpold cannot do without and this kernel says that it lacks.
fn lacking(kernel: Features, interprets: bool) -> Option<&'static str> {
    if kernel.mappable_arrays == Some(false) {
        return Some(
            "cannot map BPF arrays into memory (Linux 5.5 can); netpold needs a later one",
        );
    }
    if kernel.atomics == Some(false) {
        return Some(
            "has no atomic BPF operations that return a value (Linux 5.12 has them, on arm64 5.18); \
             netpold needs a later one",
        );
    }
    if kernel.atomics_compiled == Some(false) && !interprets {
        return Some(
            "does not compile atomic BPF operations for this processor (Linux 5.18 does on arm64); \
             netpold needs a later one",
        );
    }
    if kernel.types == Some(false) {
        return Some(
            "has no BTF (no /sys/kernel/btf/vmlinux, or BPF_BTF_LOAD is refused), and its verifier \
             needs that for functions that take a packet; use one with CONFIG_DEBUG_INFO_BTF",
        );
    }
    None
}

/// Warns of what this kernel lacks that netpold can go without.
pub fn warn_of_lacks(mode: Mode) {
    for lack in lacks_here(mode) {
        tracing::warn!("{lack}");
    }
}

/// What this kernel lacks that netpold can go without.
pub(crate) fn lacks_here(mode: Mode) -> Vec<&'static str> {
    let jit = std::fs::read_to_string(JIT);
    lacks(mode, jit.ok().as_deref())
}

fn lacks(mode: Mode, jit: Option<&str>) -> Vec<&'static str> {
    let mut lacks = Vec::new();
    if mode == Mode::Clsact {
        lacks.push(
            "this kernel has no TCX (6.6): filters below a clsact qdisc take its place, which other \
             tools may delete with the qdisc; they are put back within --readback seconds",
        );
    }
    if jit.is_some_and(|enabled| enabled.trim() == "0") {
        lacks.push(
            "net.core.bpf_jit_enable is 0: eBPF programs are interpreted, which takes many times \
             longer for each packet; set it to 1",
        );
    }
    lacks
}

fn privileges(status: &str) -> Result<()> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(Ok(effective)) = effective.map(|hex| u64::from_str_radix(hex.trim(), 16)) else {
        return Ok(());
    };
    let has = |number: u32| effective >> number & 1 != 0;
    let missing: Vec<String> = CAPABILITIES
        .iter()
        .filter(|(number, ..)| !has(*number) && (*number < 38 || !has(CAP_SYS_ADMIN)))
        .map(|(_, name, purpose)| format!("{name} ({purpose})"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("missing privileges: {}; run netpold as root, or give it these", missing.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kernels answer. None is judged by its version: 5.14 of RHEL 9 has all that is needed.
    #[test]
    fn kernels() {
        let all = Features {
            atomics: Some(true),
            atomics_compiled: Some(true),
            mappable_arrays: Some(true),
            types: Some(true),
            xdp_fragments: Some(true),
        };
        let lack = |kernel| lacking(kernel, false);
        assert_eq!(lack(all), None);
        assert_eq!(lack(Features::default()), None, "what it does not say is tried");
        // 5.14 of RHEL 9, x86 5.15: XDP is an option, which says for itself what it lacks.
        assert_eq!(lack(Features { xdp_fragments: Some(false), ..all }), None);
        // 5.10; arm64's 5.15 where there is no interpreter.
        let old = Features { atomics: Some(false), atomics_compiled: None, ..all };
        assert!(lack(old).unwrap().starts_with("has no atomic BPF operations"));
        // arm64's 5.15 with an interpreter: it loads, and calls between functions do not.
        let arm = Features { atomics_compiled: Some(false), ..all };
        assert!(lack(arm).unwrap().starts_with("does not compile atomic BPF operations"));
        assert_eq!(lacking(arm, true), None, "nothing is compiled, which is warned of");
        let untyped = Features { types: Some(false), ..all };
        assert!(lack(untyped).unwrap().contains("/sys/kernel/btf/vmlinux"));
        let unmappable = Features { mappable_arrays: Some(false), ..old };
        assert!(lack(unmappable).unwrap().starts_with("cannot map BPF arrays"));
    }

    #[test]
    fn lacks_are_told() {
        assert!(lacks(Mode::Tcx, Some("1\n")).is_empty());
        // Where the compiler cannot be switched off there is no such file.
        assert!(lacks(Mode::Tcx, None).is_empty());
        let both = lacks(Mode::Clsact, Some("0\n"));
        assert!(both[0].contains("no TCX") && both[1].contains("interpreted"), "{both:?}");
    }

    #[test]
    fn capabilities() {
        let with = |bits: &[u32]| {
            let set = bits.iter().fold(0u64, |set, bit| set | 1 << bit);
            privileges(&format!("Name:\tx\nCapEff:\t{set:016x}\n"))
        };
        with(&[39, 12, 38, 11]).unwrap();
        with(&[21, 12, 11]).unwrap();
        let error = with(&[12, 38]).unwrap_err().to_string();
        assert!(error.starts_with("missing privileges: CAP_BPF (maps and programs), CAP_NET_B"));
    }
}
