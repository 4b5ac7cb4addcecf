//! Tests named on the page of threats exist.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Collects the names of all test functions below a folder.
fn tests(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            tests(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(tests_in(&fs::read_to_string(path).unwrap()));
        }
    }
}

/// Returns the names of the functions with a test attribute, also inside `proptest!`.
fn tests_in(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(rest) = line.trim_start_matches("async ").strip_prefix("fn ") {
            if is_test {
                names.extend(rest.split('(').next().map(str::to_owned));
            }
            is_test = false;
        }
    }
    names
}

/// Returns the words in backquotes with at least two underscores, which can only be names of tests.
fn named(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let is_name = |word: &&str| {
        word.matches('_').count() >= 2
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    quoted.filter(is_name).collect()
}

#[test]
fn every_test_that_the_page_names_exists() {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = BTreeSet::new();
    for folder in [agent.to_owned(), agent.join("../ebpf")] {
        tests(&folder, &mut names);
    }
    let page = fs::read_to_string(agent.join("THREATS.md")).unwrap();
    let named = named(&page);
    assert!(named.len() > 40, "only {} tests are named", named.len());
    let missing: Vec<&&str> = named.iter().filter(|name| !names.contains(**name)).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

#[test]
fn a_row_without_a_test_is_found() {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(agent.join("THREATS.md")).unwrap();
    let mut rows = 0;
    for table in page.split("\n\n").filter(|part| part.starts_with("| tries |")) {
        // The rows follow the head and the separator of the table.
        for row in table.lines().skip(2) {
            assert!(!named(row).is_empty(), "no test shows this: {row}");
            rows += 1;
        }
    }
    assert!(rows > 25, "only {rows} rows were looked at");
}
