//! Reasons for an update that is not enforced.

use netpold_core::compile::CompileError;
use netpold_dataplane::generation::GenerationError;
use netpold_dataplane::tables::TableError;

/// Reason why an update is not enforced yet.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The desired state does not fit or cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A new generation cannot be created.
    #[error(transparent)]
    Generation(#[from] GenerationError),
    /// The kernel refused a write.
    #[error(transparent)]
    Table(#[from] TableError),
    /// No thread can be started for the compiler.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}
