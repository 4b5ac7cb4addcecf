//! Processors as build targets of netpold.

/// A processor, with its various names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arch {
    /// x86-64
    Amd64,
    /// 64-bit ARM; needs a cross compiler, installed automatically on Debian
    Arm64,
}

impl Arch {
    /// The processor of this machine.
    pub(crate) const fn own() -> Self {
        if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::Amd64 }
    }

    /// Whether this machine runs binaries for the processor.
    pub(crate) fn is_own(self) -> bool {
        self.cpu() == std::env::consts::ARCH
    }

    /// Name in Rust and qemu.
    pub(crate) const fn cpu(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Name in Debian and OCI.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Target of Rust.
    pub(crate) const fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }
}
