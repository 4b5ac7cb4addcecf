//! Files that the agent reads from the node's disk: the last good state, and CNI results.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use netpold_core::compile::Compiler;
use netpold_core::model::{Change, Interface};
use netpold_core::options::Options;
use netpold_kube::cni_results::cache;
use netpold_kube::state;
use serde_json::Value;

const NODE: &str = "n1";

/// Runs one input.
///
/// # Panics
/// The input shows a mistake.
pub fn run(bytes: &[u8]) {
    if let Ok(Some(result)) = cache::parse(bytes) {
        assert!(!result.addresses.is_empty(), "{result:?}");
        assert!(result.addresses.is_sorted(), "{result:?}");
    }
    // The input is a whole file first, then the content of a compressed one.
    read(bytes);
    let mut packed = GzEncoder::new(Vec::new(), Compression::none());
    packed.write_all(bytes).expect("room in memory");
    read(&packed.finish().expect("room in memory"));
}

/// Any state that can be read can be compiled, and is saved with the same content.
fn read(file: &[u8]) {
    let Ok(objects) = state::decode(file, Path::new("state"), NODE) else { return };
    assert!(objects.iter().all(Change::is_object), "{objects:?}");
    let (first, state_snapshot) = compiled(objects);
    let again = serde_json::from_value(state_snapshot.clone()).expect("what was written is read");
    let (second, kept) = compiled(again);
    assert!(
        first == second && (!first || state_snapshot == kept),
        "{state_snapshot} became {kept}"
    );
}

/// Compiles objects with an interface for each pod of this node. Returns whether that succeeded, and the saved state.
fn compiled(objects: Vec<Change>) -> (bool, Value) {
    let mut compiler = Compiler::new(Options { node: NODE.into(), ..Options::default() });
    for (object, index) in objects.into_iter().zip(1..) {
        if let Change::Pod(pod) = &object
            && !pod.addresses.is_empty()
        {
            let addresses = pod.addresses.clone();
            compiler.ingest(Change::Interface(Interface {
                index,
                incarnation: 1,
                addresses,
                ..Interface::default()
            }));
        }
        compiler.ingest(object);
    }
    let updated = compiler.update().is_ok();
    (
        updated,
        serde_json::to_value(compiler.state_snapshot(std::iter::empty())).expect("serializable"),
    )
}
