//! A type name means one thing: no two files of the workspace declare types with equal names.
#![expect(clippy::expect_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Names with several declarations. New types need names of their own, so this list only shrinks.
const SHARED: [&str; 8] = [
    // Command lines of separate binaries.
    "Arguments",
    "Cli",
    "Command",
    // Options of core, and their values on the command line with help texts.
    "CheckSource",
    "Denial",
    "NewPods",
    "ObserveFlows",
    "SecondaryInterfaces",
];

type Declarations = BTreeMap<String, BTreeSet<PathBuf>>;

/// Name of the type that a line declares; `None` for associated types.
fn declared(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let public = code.strip_prefix("pub").map(|rest| match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')').map_or(scope, |(_, rest)| rest),
        None => rest,
    });
    let (keyword, rest) = public.unwrap_or(code).trim_start().split_once(' ')?;
    let is_associated = keyword == "type" && public.is_none() && code.len() < line.len();
    if is_associated || !["struct", "enum", "trait", "union", "type"].contains(&keyword) {
        return None;
    }
    let end = rest.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(rest.len());
    rest.starts_with(char::is_uppercase).then_some(&rest[..end])
}

/// Collects the types in the files below a folder, tests aside.
fn collect(folder: &Path, found: &mut Declarations) {
    for entry in fs::read_dir(folder).expect("a folder of modules") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() && !["tests", "target"].contains(&name.as_str()) {
            collect(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") && name != "tests.rs" {
            let text = fs::read_to_string(&path).expect("a module");
            let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            for name in code.lines().filter_map(declared) {
                found.entry(name.to_owned()).or_default().insert(path.clone());
            }
        }
    }
}

#[test]
fn a_type_name_is_declared_in_one_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Declarations::new();
    for folder in ["agent", "bench", "ebpf", "xtask"] {
        collect(&root.join(folder), &mut found);
    }
    assert!(found.len() > 1000, "only {} types were found", found.len());
    let mut several = found.clone();
    several.retain(|_, files| files.len() > 1);
    let added: Vec<_> =
        several.iter().filter(|(name, _)| !SHARED.contains(&name.as_str())).collect();
    assert!(added.is_empty(), "types of different files need different names: {added:#?}");
    let ended: Vec<_> = SHARED.iter().filter(|name| !several.contains_key(**name)).collect();
    assert!(ended.is_empty(), "not shared any more, so they leave the list: {ended:?}");
}

#[test]
fn declarations_are_found_and_associated_types_are_not() {
    let lines = [
        ("pub(in crate::cluster) struct Known<'a> {", Some("Known")),
        ("    enum Local {", Some("Local")),
        ("pub type Name = (bool, String);", Some("Name")),
        ("type Key6 = (u128, u8);", Some("Key6")),
        ("    pub type InModule = u32;", Some("InModule")),
        ("    type Output = Verdict;", None),
        ("/// struct Comment", None),
        ("public struct", None),
        ("let union = Sets::new();", None),
    ];
    for (line, name) in lines {
        assert_eq!(declared(line), name, "{line}");
    }
}
