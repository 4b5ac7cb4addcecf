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
/// A check fails for the input.
pub fn run(bytes: &[u8]) {
    if let Ok(Some(result)) = cache::parse(bytes) {
        assert!(!result.addresses.is_empty(), "{result:?}");
        assert!(result.addresses.is_sorted(), "{result:?}");
    }
    // Reads the input as a whole file, then as the content of a compressed file.
    read(bytes);
    let mut packed = GzEncoder::new(Vec::new(), Compression::none());
    packed.write_all(bytes).expect("room in memory");
    read(&packed.finish().expect("room in memory"));
}

/// Checks that a saved copy of a decoded state compiles with the same result, and is equal to the state if it compiles.
fn read(file: &[u8]) {
    let Ok(objects) = state::decode(file, Path::new("state"), NODE) else { return };
    assert!(objects.iter().all(Change::is_object), "{objects:?}");
    let (first, state_snapshot) = compiled(objects);
    let again = serde_json::from_value(state_snapshot.clone()).expect("a saved state is decoded");
    let (second, kept) = compiled(again);
    assert!(
        first == second && (!first || state_snapshot == kept),
        "{state_snapshot} became {kept}"
    );
}

/// Compiles objects, with an interface for each pod with addresses. Returns whether the update succeeded, and the state
/// to save.
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
