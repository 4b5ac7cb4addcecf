//! Requirements of the agent on its machine, checked before any change to it.

use anyhow::{Context, Result, bail};
use tracing::warn;

use netpold_dataplane::attach::AttachMode;
use netpold_dataplane::features::Features;
use netpold_dataplane::quiescence::preempts_programs;

/// Required capabilities with their numbers in `linux/capability.h` and their purposes.
const CAPABILITIES: [(u32, &str, &str); 4] = [
    (39, "CAP_BPF", "maps and programs"),
    (12, "CAP_NET_ADMIN", "attaching programs, and the pods' addresses"),
    (38, "CAP_PERFMON", "programs that compute with packet pointers"),
    (11, "CAP_NET_BROADCAST", "address events of all namespaces"),
];
/// Includes `CAP_BPF` and `CAP_PERFMON`.
const CAP_SYS_ADMIN: u32 = 21;
/// Warning about a processor architecture with few or no tests.
const UNTRIED: Option<&str> = if cfg!(target_arch = "x86_64") {
    None
} else if cfg!(target_arch = "aarch64") {
    Some("netpold was tested on this architecture in an emulator only")
} else {
    Some("netpold is untested on this architecture")
};

/// Checks kernel and privileges, and warns about a processor architecture with few or no tests.
///
/// # Errors
/// A requirement is missing; the error has the remedy.
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

/// Checks the privileges of this process.
///
/// # Errors
/// The error names the missing privileges.
pub(crate) fn privileges_here() -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read /proc")?;
    privileges(&status)
}

/// Returns a required feature that the kernel lacks. Needs the privileges.
///
/// # Errors
/// The kernel's version cannot be read.
pub(crate) fn kernel() -> Result<Option<String>> {
    let name = nix::sys::utsname::uname().context("cannot read the kernel's version")?;
    let lack = lacking(Features::probe(), interprets());
    Ok(lack.map(|lack| format!("this kernel ({}) {lack}", name.release().to_string_lossy())))
}

const JIT: &str = "/proc/sys/net/core/bpf_jit_enable";

/// Whether the kernel's BPF JIT is switched off.
fn interprets() -> bool {
    std::fs::read_to_string(JIT).is_ok_and(|enabled| enabled.trim() == "0")
}

/// Returns the description of a required feature that this kernel reports as missing.
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

/// Warns about optional features that this kernel lacks.
pub fn warn_of_lacks(mode: AttachMode) {
    for lack in lacks_here(mode) {
        tracing::warn!("{lack}");
    }
}

/// Returns warnings about optional features that this kernel lacks.
pub(crate) fn lacks_here(mode: AttachMode) -> Vec<&'static str> {
    let jit = std::fs::read_to_string(JIT);
    lacks(mode, jit.ok().as_deref(), preempts_programs() == Some(true))
}

fn lacks(mode: AttachMode, jit: Option<&str>, real_time: bool) -> Vec<&'static str> {
    let mut lacks = Vec::new();
    if mode == AttachMode::Clsact {
        lacks.push(
            "this kernel has no TCX (6.6): using filters below a clsact qdisc, which other tools may delete with the \
             qdisc; they are restored within --readback seconds",
        );
    }
    if jit.is_some_and(|enabled| enabled.trim() == "0") {
        lacks.push(
            "net.core.bpf_jit_enable is 0: eBPF programs are interpreted, which takes many times \
             longer for each packet; set it to 1",
        );
    }
    if real_time {
        lacks.push(
            "this kernel is a real-time one (PREEMPT_RT), on which netpold is untested: from 6.18 on, one packet's program \
             may preempt another's and overwrite its data; use another kernel",
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

    /// Probe results of real kernels. The version does not count: 5.14 of RHEL 9 has all required features.
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
        // 5.14 of RHEL 9, x86 5.15: XDP is an option, with a report of its own about missing features.
        assert_eq!(lack(Features { xdp_fragments: Some(false), ..all }), None);
        // 5.10, and arm64's 5.15 without an interpreter.
        let old = Features { atomics: Some(false), atomics_compiled: None, ..all };
        assert!(lack(old).unwrap().starts_with("has no atomic BPF operations"));
        // arm64's 5.15 with an interpreter: the probe loads, calls between functions do not.
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
        assert!(lacks(AttachMode::Tcx, Some("1\n"), false).is_empty());
        // Network namespaces other than the initial one have no such file.
        assert!(lacks(AttachMode::Tcx, None, false).is_empty());
        let both = lacks(AttachMode::Clsact, Some("0\n"), true);
        assert!(both[0].contains("no TCX") && both[1].contains("interpreted"), "{both:?}");
        assert!(both[2].contains("PREEMPT_RT"), "{both:?}");
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
