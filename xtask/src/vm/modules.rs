//! Kernel modules for the tests, in an order of loading.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Modules that the tests use. The guest has no modprobe for the kernel to call, so only these modules and their
/// dependencies are loaded. Modules that are built in or do not exist have no file and are left out.
const WANTED: [&str; 12] = [
    "veth",
    "bridge",
    "br_netfilter",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nf_defrag_ipv4",
    "nf_defrag_ipv6",
    "sch_ingress",
    "cls_bpf",
    "act_gact",
    "vxlan",
    "ipv6",
];

/// A module's name and uncompressed content.
pub(super) struct KernelModule {
    pub(super) name: String,
    pub(super) content: Vec<u8>,
}

/// The wanted modules with their dependencies, each after its dependencies.
///
/// # Errors
/// When a module cannot be read, or a dependency is missing.
pub(super) fn wanted(folder: &Path) -> Result<Vec<KernelModule>> {
    let mut files = BTreeMap::new();
    collect(&folder.join("kernel"), &mut files)?;
    let mut loader = Loader { files, taken: BTreeSet::new(), order: Vec::new() };
    for name in WANTED {
        if loader.files.contains_key(name) {
            loader.take(name)?;
        }
    }
    ensure!(!loader.order.is_empty(), "no modules in {}", folder.display());
    Ok(loader.order)
}

struct Loader {
    files: BTreeMap<String, PathBuf>,
    taken: BTreeSet<String>,
    order: Vec<KernelModule>,
}

impl Loader {
    fn take(&mut self, name: &str) -> Result<()> {
        if !self.taken.insert(name.to_owned()) {
            return Ok(());
        }
        let path = self.files.get(name).with_context(|| format!("no module {name}"))?;
        let content = read(path)?;
        for needed in depends(&content) {
            self.take(&needed)?;
        }
        self.order.push(KernelModule { name: name.to_owned(), content });
        Ok(())
    }
}

/// Module files below a folder, by name.
fn collect(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = path.file_name().and_then(|n| n.to_str())
            && let Some((name, _)) = name.split_once(".ko")
        {
            // File names may have dashes in place of underscores.
            files.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(path).with_context(|| format!("cannot read {}", path.display())),
    };
    let output = Command::new(program)
        .args(["--decompress", "--stdout", "--quiet"])
        .arg(path)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program} cannot read {}", path.display());
    Ok(output.stdout)
}

/// Names in a module's `depends=` of the section `.modinfo`, which has zero-terminated strings.
fn depends(content: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = content.windows(key.len()).position(|window| window == key) else {
        return Vec::new();
    };
    let value = content[at + key.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::depends;

    #[test]
    fn dependencies_are_read_from_modinfo() {
        assert_eq!(depends(b"\x7fELF\0license=GPL\0depends=stp,nf-x\0name=y\0"), ["stp", "nf_x"]);
        assert_eq!(depends(b"\0depends=\0name=veth\0"), [""; 0]);
        assert_eq!(depends(b"nothing of the kind"), [""; 0]);
    }
}
