//! `cargo xtask suites`: the table of test suites in CONTRIBUTING.md, from the report of the last run of all tests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};

/// Page with the table, between these two lines.
const PAGE: &str = "CONTRIBUTING.md";
const BEGIN: &str = "<!-- begin of the table by `cargo xtask suites` -->\n";
const END: &str = "<!-- end of the table -->\n";

/// Number of tests of a suite, and the sum of their durations in seconds.
#[derive(Debug, Default, PartialEq)]
struct Suite {
    tests: usize,
    seconds: f64,
}

/// Replaces the table by one of the `JUnit` report of nextest.
///
/// # Errors
/// When no report exists, or the page has no place for the table.
pub(crate) fn run() -> Result<()> {
    let report = crate::target().join("nextest/default/junit.xml");
    let report = fs::read_to_string(&report)
        .with_context(|| format!("{}: run `cargo xtask test` first", report.display()))?;
    let path = crate::root().join(PAGE);
    let page = fs::read_to_string(&path)?;
    fs::write(path, replaced(&page, &table(&suites(&report)?))?)?;
    Ok(())
}

/// Suites of a `JUnit` report by name. The suites of the agent's own test binaries, which have many tests, are the first
/// modules; elsewhere a suite is a crate.
fn suites(report: &str) -> Result<BTreeMap<String, Suite>> {
    let document = roxmltree::Document::parse(report).context("the JUnit report")?;
    let mut suites: BTreeMap<String, Suite> = BTreeMap::new();
    for case in document.descendants().filter(|node| node.has_tag_name("testcase")) {
        // `netpold::node`: the package and its test binary.
        let binary = case.attribute("classname").context("a test case without a class name")?;
        let name = case.attribute("name").context("a test case without a name")?;
        let seconds = case.attribute("time").context("a test case without a time")?;
        let suite = match binary.split_once("::") {
            Some(("netpold", binary)) if name.contains("::") => {
                let module = name.split("::").next().unwrap_or_default();
                format!("-p netpold --test {binary} {module}::")
            }
            Some((package, _)) => format!("-p {package}"),
            None => format!("-p {binary}"),
        };
        let suite = suites.entry(suite).or_default();
        suite.tests += 1;
        suite.seconds += seconds.parse::<f64>().context("the time of a test case")?;
    }
    Ok(suites)
}

fn table(suites: &BTreeMap<String, Suite>) -> String {
    let mut table = String::from("| suite | tests | seconds |\n|---|---:|---:|\n");
    for (name, Suite { tests, seconds }) in suites {
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| `{name}` | {tests} | {seconds:.0} |");
    }
    table
}

/// The page with another table.
fn replaced(page: &str, table: &str) -> Result<String> {
    let place = || format!("{PAGE} has no lines {BEGIN:?} and {END:?}");
    let (before, rest) = page.split_once(BEGIN).with_context(place)?;
    let (_, after) = rest.split_once(END).with_context(place)?;
    Ok([before, BEGIN, table, END, after].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_replaces_the_former_one() {
        let report = r#"<testsuites>
            <testsuite name="netpold-core::all">
                <testcase name="limits::a" classname="netpold-core::all" time="1.25"/>
            </testsuite>
            <testsuite name="netpold::node">
                <testcase name="kernel::a" classname="netpold::node" time="0.5"/>
                <testcase name="kernel::b::c" classname="netpold::node" time="2.2"><failure/></testcase>
                <testcase name="traffic::a" classname="netpold::node" time="7"/>
            </testsuite>
            <testsuite name="netpold-core">
                <testcase name="a" classname="netpold-core" time="1"/>
            </testsuite>
        </testsuites>"#;
        let table = table(&suites(report).unwrap());
        let page = format!("a\n{BEGIN}b\n{END}c\n");
        let expected = "| suite | tests | seconds |\n|---|---:|---:|\n\
            | `-p netpold --test node kernel::` | 2 | 3 |\n\
            | `-p netpold --test node traffic::` | 1 | 7 |\n\
            | `-p netpold-core` | 2 | 2 |\n";
        assert_eq!(replaced(&page, &table).unwrap(), format!("a\n{BEGIN}{expected}{END}c\n"));
    }

    #[test]
    fn the_page_has_a_place_for_the_table() {
        let page = fs::read_to_string(crate::root().join(PAGE)).unwrap();
        assert!(replaced(&page, "").is_ok());
        assert!(replaced("a page without the lines", "").is_err());
    }
}
