//! The page of doctor lists exactly the existing checks.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Collects the names of the checks in the sources below a directory.
fn checks(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            checks(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for check in code.split(": Check = Check {\n").skip(1) {
            // One check may have two texts.
            let named = check.trim_start();
            let Some(name) = named.strip_prefix("name: \"") else {
                assert!(named.contains("\n    .."), "{named}");
                continue;
            };
            assert!(found.insert(name.split('"').next().unwrap().to_owned()), "twice: {name}");
        }
    }
}

#[test]
fn the_page_lists_every_check() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = BTreeSet::new();
    for half in ["src/doctor", "doctor/src"] {
        checks(&root.join(half), &mut code);
    }
    assert!(code.len() > 30, "{code:?}");
    let page = fs::read_to_string(root.join("../deploy/doctor.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let mut listed = BTreeSet::new();
    for row in rows {
        for name in row.split('`').filter(|it| !it.is_empty() && !it.contains([',', '[', '.'])) {
            listed.insert(name.to_owned());
        }
    }
    let known: BTreeSet<String> = ["findings", "unknown"].map(str::to_owned).into();
    let listed: BTreeSet<String> = listed.difference(&known).cloned().collect();
    assert_eq!(listed, code);
}
