//! Processors that netpold is built for.

/// A processor, with its names elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arch {
    /// x86-64
    Amd64,
    /// 64-bit ARM; needs a cross compiler, which is installed on Debian
    Arm64,
}

impl Arch {
    /// This machine's.
    pub(crate) const fn own() -> Self {
        if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::Amd64 }
    }

    /// Whether this machine runs what is built for it.
    pub(crate) fn is_own(self) -> bool {
        self.cpu() == std::env::consts::ARCH
    }

    /// As Rust and qemu call it.
    pub(crate) const fn cpu(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// As Debian and OCI call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Rust's target.
    pub(crate) const fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }
}
