use netpold_core::compile::Compiler;
use netpold_core::model::{
    Action, ClusterPolicy, ClusterRule, Enforcement, NamespacedPods, Pod, PolicyVersion, Rule,
    Selector, Tier,
};
use netpold_core::options::Options;
use netpold_testkit::objects;
use tempfile::TempDir;

use super::*;

/// Returns a node with a pod that a policy isolates.
fn objects() -> Vec<Change> {
    let pod = objects::pod("shop", "web", &[("app", "web")], &["10.0.0.1", "fd00::1"]);
    let policy = objects::policy("shop", "deny", Selector::default(), Some(Vec::new()), None);
    let namespace = objects::namespace("shop", &[]);
    let everyone = Rule { peers: None, ports: None };
    let deny = ClusterRule { name: "deny".into(), action: Action::Deny, matches: everyone };
    let cluster_policy = ClusterPolicy {
        name: "tenants".into(),
        tier: Tier::Admin,
        priority: 7,
        subject: NamespacedPods::default(),
        ingress: vec![deny],
        egress: Vec::new(),
        problems: vec!["spec: wrong".into()],
        version: PolicyVersion { uid: "u".into(), generation: 3 },
        enforcement: Enforcement::Enforce,
        denial: None,
    };
    vec![
        Change::Namespace(namespace),
        Change::Pod(Pod { uid: "u".into(), ..pod }),
        Change::Policy(policy),
        Change::ClusterPolicy(cluster_policy),
    ]
}

fn state_snapshot(objects: &[Change]) -> StateSnapshot {
    let mut compiler = Compiler::new(Options { node: "here".into(), ..Options::default() });
    objects.iter().cloned().for_each(|object| compiler.ingest(object));
    compiler.update().unwrap();
    compiler.state_snapshot(std::iter::empty())
}

/// Writes a state to a file of its own.
fn kept() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("sub/state");
    write(&path, "here", &state_snapshot(&objects())).unwrap();
    (directory, path)
}

#[test]
fn what_is_written_is_read() {
    let (directory, path) = kept();
    assert_eq!(read(&path, "here").unwrap(), Some(objects()));
    assert_eq!(read(&directory.path().join("none"), "here").unwrap(), None);
    let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "nothing is left beside it");
}

#[test]
fn nothing_is_kept_where_nothing_is_isolated() {
    let mut objects = objects();
    objects.truncate(2);
    let written = serde_json::to_string(&state_snapshot(&objects)).unwrap();
    assert_eq!(written, "[]");
}

#[test]
fn another_nodes_state_is_none() {
    let (_directory, path) = kept();
    let error = read(&path, "there").unwrap_err();
    assert!(matches!(&error, StateError::Foreign { found, .. } if found == "here"), "{error}");
}

/// A state is refused if it is truncated anywhere, or changed in any significant byte.
#[test]
fn a_damaged_state_is_none() {
    let (_directory, path) = kept();
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(read(&path, "here").is_err(), "cut off after {length} bytes");
    }
    // RFC 1952: time, extra flags and system (bytes 4 to 9) do not affect the content.
    for at in (0..4).chain(10..whole.len()) {
        for bit in [0x01, 0x10, 0x80] {
            let mut damaged = whole.clone();
            damaged[at] ^= bit;
            fs::write(&path, &damaged).unwrap();
            let read = read(&path, "here");
            let same = matches!(&read, Ok(Some(read)) if *read == objects());
            assert!(read.is_err() || same, "byte {at}: {read:?}");
        }
    }
    for text in ["", "netpold", "\0\0\0\0"] {
        fs::write(&path, text).unwrap();
        assert!(read(&path, "here").is_err(), "{text:?}");
    }
}

#[test]
fn another_format_is_none() {
    let (_directory, path) = kept();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(b"{\"format\":2,\"node\":\"here\",\"things\":7}").unwrap();
    fs::write(&path, packed.finish().unwrap()).unwrap();
    assert!(matches!(read(&path, "here"), Err(StateError::Format { found: 2, .. })));
}
