//! Results of probes.

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// An answer from the host of this name (empty for ICMP, which does not carry it).
    Connected(String),
    /// No answer, as for a dropped packet.
    Timeout,
    /// A closed port (RST, ABORT, ICMP port or protocol unreachable): the packet was not dropped.
    Refused,
    /// No route, or a router reports that the host is unreachable.
    Unreachable,
    /// The probe could not be sent.
    Failed(String),
}

impl ProbeResult {
    /// Whether an answer arrived.
    #[must_use]
    pub const fn connected(&self) -> bool {
        matches!(self, Self::Connected(_))
    }

    /// Whether the packet or its answer disappeared.
    #[must_use]
    pub const fn dropped(&self) -> bool {
        matches!(self, Self::Timeout)
    }
}

impl std::fmt::Display for ProbeResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connected(name) if name.is_empty() => f.write_str("connected"),
            Self::Connected(name) => write!(f, "connected to {name}"),
            Self::Timeout => f.write_str("timed out"),
            Self::Refused => f.write_str("refused"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}
