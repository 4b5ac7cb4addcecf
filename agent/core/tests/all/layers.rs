//! Imports in core's `src/` point downwards in one list of modules. In no crate do two files, or two top modules of `src/`,
//! import each other, directly or indirectly.
#![expect(clippy::expect_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The layers, top to bottom; a module belongs to the entry with the longest matching prefix.
const LAYERS: [&str; 31] = [
    "compile",
    "compile::compiler",
    "compile::compiled",
    "compile::update",
    "compile::consumption",
    "compile::ordering",
    "compile::report",
    "compile::image",
    "compile::snapshot",
    "compile::tables",
    "compile::rules",
    "compile::sets",
    "compile::slots",
    "explain",
    "options",
    "ops",
    "bindings",
    "cluster",
    "budget",
    "ports",
    "owner",
    "probe",
    "prefix",
    "model",
    "lock",
    "labels",
    "error_chain",
    "first_names",
    "pattern",
    "printable",
    "turns",
];

type Modules = BTreeMap<String, String>;

/// Text of every module by its path, without comments and tests.
fn modules(folder: &Path, path: &str, found: &mut Modules) {
    for entry in fs::read_dir(folder).expect("a folder of modules") {
        let entry = entry.expect("an entry").path();
        let name = entry.file_stem().expect("a name").to_string_lossy().into_owned();
        let module = match (path, name.as_str()) {
            ("", _) => name.clone(),
            (folder, "mod") => folder.to_owned(),
            _ => format!("{path}::{name}"),
        };
        if entry.is_dir() {
            modules(&entry, &module, found);
        } else if name != "lib" && name != "tests" {
            let text = fs::read_to_string(&entry).expect("a module");
            let code = text.split("\n#[cfg(test)]").next().unwrap_or_default();
            let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            found.insert(module, code.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// The paths of a `use` tree: `a::{b, c::d}` are two.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((head, rest)) = tree.split_once('{') else {
        paths.push(format!("{prefix}{}", tree.trim()));
        return;
    };
    let prefix = format!("{prefix}{}", head.trim());
    let inner = rest.trim_end().strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut start) = (0, 0);
    for (at, letter) in inner.char_indices().chain([(inner.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[start..at].trim().is_empty() {
                    expand(&prefix, inner[start..at].trim(), paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The module of a path used in `module`, if it is another module of this crate.
fn target(module: &str, path: &str, all: &Modules) -> Option<String> {
    let mut base = module;
    let mut rest = path.strip_prefix("self::").unwrap_or(path);
    while let Some(above) = rest.strip_prefix("super::") {
        (base, rest) = (base.rsplit_once("::").map_or("", |(parent, _)| parent), above);
    }
    if let Some(absolute) = rest.strip_prefix("crate::") {
        (base, rest) = ("", absolute);
    }
    let absolute = format!("{base}::{rest}");
    let mut found = absolute.trim_start_matches(':');
    while !all.contains_key(found) {
        found = found.rsplit_once("::")?.0;
    }
    (found != module).then(|| found.to_owned())
}

/// Imports of each module, by `use` and by paths within the code.
fn imports(all: &Modules) -> BTreeMap<&str, BTreeSet<String>> {
    let of = |module: &str, code: &str| {
        let mut paths = Vec::new();
        for (at, _) in code.match_indices("use ") {
            let is_statement = code[..at].ends_with(['\n', ' ', ')']) || at == 0;
            if let Some((tree, _)) = code[at + 4..].split_once(';').filter(|_| is_statement) {
                expand("", tree, &mut paths);
            }
        }
        // Paths within the code, such as `super::a::b` or, for a child, `a::b`. `pub(in crate::…)` imports nothing.
        let within = code.replace("(in crate::", "(");
        let is_path = |letter: char| letter.is_alphanumeric() || matches!(letter, ':' | '_');
        let words = within.split(|letter| !is_path(letter));
        let words = words.filter(|word| word.contains("::") && !word.ends_with("::"));
        paths.extend(words.map(str::to_owned));
        paths.iter().filter_map(|path| target(module, path, all)).collect()
    };
    all.iter().map(|(module, code)| (module.as_str(), of(module, code))).collect()
}

fn layer(module: &str) -> usize {
    let holds = |layer: &&&str| module == **layer || module.starts_with(&format!("{layer}::"));
    let longest = LAYERS.iter().filter(holds).max_by_key(|layer| layer.len());
    let longest = longest.expect("every module has a layer");
    LAYERS.iter().position(|layer| layer == longest).expect("it is one of them")
}

#[test]
fn imports_point_down_and_make_no_circle() {
    let mut all = Modules::new();
    modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut all);
    let imports = imports(&all);
    let count: usize = imports.values().map(BTreeSet::len).sum();
    assert!(all.len() > 40 && count > 150, "{} modules, {count} imports", all.len());
    for (module, targets) in &imports {
        for target in targets {
            assert!(layer(module) <= layer(target), "{module} imports {target}, which is above it");
        }
    }
    let circles = circles(&imports);
    assert!(circles.is_empty(), "circles of files: {circles:#?}");
}

/// Sets of modules that import each other, directly or indirectly.
fn circles<M: AsRef<str>>(imports: &BTreeMap<M, BTreeSet<String>>) -> Vec<Vec<String>> {
    let by_name: BTreeMap<&str, _> = imports.iter().map(|(m, t)| (m.as_ref(), t)).collect();
    let mut all: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for module in by_name.keys() {
        let mut left = vec![*module];
        while let Some(next) = left.pop() {
            let reached = all.entry(module).or_default();
            let targets = by_name[next].iter().map(String::as_str);
            left.extend(targets.filter(|target| reached.insert(*target)));
        }
    }
    let circle = |(module, reached): (&&str, &BTreeSet<&str>)| {
        let back = |other: &&&str| all.get(**other).is_some_and(|there| there.contains(module));
        reached.iter().filter(back).map(|other| (*other).to_owned()).collect::<Vec<_>>()
    };
    let circles: BTreeSet<Vec<String>> = all.iter().map(circle).collect();
    circles.into_iter().filter(|circle| !circle.is_empty()).collect()
}

/// Imports between the top modules of a crate, from all their files.
fn imports_at_the_top(all: &Modules) -> BTreeMap<String, BTreeSet<String>> {
    let top = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
    let mut tops: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, targets) in imports(all) {
        let own = top(module);
        let targets = targets.iter().map(|t| top(t)).filter(|t| *t != own).collect::<Vec<_>>();
        tops.entry(own).or_default().extend(targets);
    }
    tops
}

#[test]
fn other_crates_have_no_circles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for name in [
        "agent",
        "agent/api",
        "agent/cli",
        "agent/client",
        "agent/controller",
        "agent/dataplane",
        "agent/discovery",
        "agent/doctor",
        "agent/engine",
        "agent/export",
        "agent/kube",
        "agent/review",
        "agent/slices",
        "agent/testbed",
        "agent/testkit",
        "bench",
        "ebpf",
        "xtask",
    ] {
        let mut all = Modules::new();
        modules(&root.join(name).join("src"), "", &mut all);
        all.retain(|module, _| module != "main" && !module.starts_with("bin::"));
        let tops = imports_at_the_top(&all);
        assert!(tops.len() > 1, "{name}: {} modules", tops.len());
        assert_eq!(circles(&tops), Vec::<Vec<String>>::new(), "at the top of {name}");
        let files = circles(&imports(&all));
        assert_eq!(files, Vec::<Vec<String>>::new(), "of files in {name}");
    }
}

/// Crates of the product, with the crates of this workspace that each depends on, tests aside.
const ARROWS: [(&str, &[&str]); 15] = [
    (
        "agent",
        &[
            "api",
            "cli",
            "client",
            "controller",
            "core",
            "dataplane",
            "discovery",
            "doctor",
            "ebpf",
            "engine",
            "export",
            "kube",
        ],
    ),
    ("agent/cli", &["api", "client", "core", "doctor", "ebpf", "kube", "review"]),
    ("agent/doctor", &["api", "client", "core", "kube"]),
    ("agent/review", &["api", "client", "core", "kube"]),
    ("agent/client", &["api", "core", "kube"]),
    ("agent/engine", &["api", "core", "dataplane", "discovery", "ebpf", "kube"]),
    ("agent/controller", &["api", "core", "kube", "slices"]),
    ("agent/export", &["api", "core"]),
    ("agent/kube", &["api", "core", "slices"]),
    ("agent/slices", &["api", "core"]),
    ("agent/discovery", &["core", "dataplane"]),
    ("agent/dataplane", &["core", "ebpf"]),
    ("agent/api", &["core"]),
    ("agent/core", &["ebpf"]),
    ("ebpf", &[]),
];

#[test]
fn crates_depend_on_those_below() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, below) in ARROWS {
        let manifest = fs::read_to_string(root.join(name).join("Cargo.toml")).expect("a manifest");
        let (_, rest) = manifest.split_once("\n[dependencies]\n").unwrap_or_default();
        let dependencies = rest.split("\n[").next().unwrap_or_default();
        let ours = dependencies.lines().filter_map(|line| line.strip_prefix("netpold-"));
        let ours = ours.filter_map(|line| line.split(['.', ' ']).next()).collect::<Vec<_>>();
        assert_eq!(ours, below, "dependencies of {name}");
    }
}
