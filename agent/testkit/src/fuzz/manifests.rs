//! Manifests from a fuzzer's bytes: reading never panics, is deterministic, and its result can be enforced.

use netpold_core::compile::Compiler;
use netpold_core::options::Options;
use netpold_kube::manifests::read_text;

use crate::memory::MemoryTables;

/// Runs one input.
///
/// # Panics
/// The input shows a mistake.
pub fn run(bytes: &[u8]) {
    let lines = bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() as u32 + 1;
    let read = read_text("a.yaml", bytes);
    assert_eq!(read, read_text("a.yaml", bytes));
    let (changes, problems) = match read {
        Ok(read) => read,
        Err(error) => {
            assert!((1..=lines + 1).contains(&error.line), "{error} of {lines} lines");
            assert!(!error.reason.is_empty());
            return;
        }
    };
    for problem in problems {
        assert!((1..=lines + 1).contains(&problem.line), "{problem} of {lines} lines");
    }
    let mut compiler = Compiler::new(Options { node: "n1".into(), ..Options::default() });
    changes.iter().cloned().for_each(|change| compiler.ingest(change));
    if let Ok(ops) = compiler.update() {
        MemoryTables::new().fill(&ops);
    }
}
