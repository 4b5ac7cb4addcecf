//! Debian's kernels.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::apt::{COMPLETE, DebianSuite};
use crate::arch::Arch;

/// A kernel to test.
pub(super) struct KernelChoice {
    /// Debian suite; its newest kernel is tested.
    pub(super) suite: &'static str,
    /// Whether the kernel is older than netpold supports; netpold must refuse to run on it.
    pub(super) too_old: bool,
}

/// 5.10, 6.1 (no TCX), 6.12 and the newest kernel for Debian's stable release. No Debian suite has a kernel from 5.12,
/// the oldest supported version, to 6.0.
pub(super) const WANTED: [KernelChoice; 4] = [
    KernelChoice { suite: "bullseye", too_old: true },
    KernelChoice { suite: "bookworm", too_old: false },
    KernelChoice { suite: "trixie", too_old: false },
    KernelChoice { suite: "trixie-backports", too_old: false },
];

/// An unpacked kernel.
pub(super) struct UnpackedKernel {
    /// Output of `uname -r`.
    pub(super) release: String,
    pub(super) image: PathBuf,
    /// Folder of the kernel's modules.
    pub(super) modules: PathBuf,
    pub(super) too_old: bool,
}

impl UnpackedKernel {
    /// Returns the suite's kernel from the cache; downloads it if it is missing, or always with `update`.
    ///
    /// # Errors
    /// When the kernel cannot be fetched or its packages differ from the expected ones.
    pub(super) fn fetch(
        wanted: &KernelChoice,
        cache: &Path,
        arch: Arch,
        update: bool,
    ) -> Result<Self> {
        let root = cache.join("kernels").join(wanted.suite);
        if update || !root.join(COMPLETE).exists() {
            if root.exists() {
                fs::remove_dir_all(&root)?;
            }
            let suite = DebianSuite::update(cache, wanted.suite, arch)?;
            suite.unpack(&packages(&suite, arch)?, &root)?;
        }
        Self::find(wanted, &root)
    }

    fn find(wanted: &KernelChoice, root: &Path) -> Result<Self> {
        // Older suites keep modules in /lib instead of /usr/lib.
        let modules = ["usr/lib/modules", "lib/modules"]
            .iter()
            .filter_map(|folder| fs::read_dir(root.join(folder)).ok()?.next()?.ok())
            .map(|entry| entry.path())
            .next()
            .with_context(|| format!("no modules below {}", root.display()))?;
        let release = modules.file_name().context("modules without a release")?;
        let release = release.to_string_lossy().into_owned();
        let images = [root.join(format!("boot/vmlinuz-{release}")), modules.join("vmlinuz")];
        let image = images.into_iter().find(|image| image.is_file());
        let image = image.with_context(|| format!("no vmlinuz of {release}"))?;
        Ok(Self { release, image, modules, too_old: wanted.too_old })
    }
}

/// Names of the image package, and of the packages that newer releases split off.
fn packages(suite: &DebianSuite, arch: Arch) -> Result<Vec<String>> {
    // Metapackage that depends on the suite's newest kernel for virtual machines.
    let meta = format!("linux-image-cloud-{}", arch.name());
    let mut found: Vec<String> = suite.depends(&meta)?;
    found.retain(|name| name.starts_with("linux-image-"));
    ensure!(found.len() == 1, "{meta} depends on {found:?} instead of one kernel");
    let parts = suite.depends(&found[0])?;
    let is_part =
        |name: &String| ["linux-binary-", "linux-modules-"].iter().any(|p| name.starts_with(p));
    found.extend(parts.into_iter().filter(is_part));
    Ok(found)
}
