//! The chart: its schema, its table of values, and the manifests in `deploy` that are rendered from the chart.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::manifests::rendered::{
    can_render, chart, deploy, find, parse, render, run_helm, switches,
};

fn text(path: &str) -> String {
    std::fs::read_to_string(deploy().join(path)).unwrap()
}

#[test]
fn helm_lint_accepts_the_chart() {
    if !can_render("helm_lint_accepts_the_chart") {
        return;
    }
    for values in ["chart/values.yaml", "overlays/full/values.yaml", "overlays/kind/values.yaml"] {
        let values = format!("--values=deploy/{values}");
        let (clean, report) = run_helm(&["lint", "--strict", "deploy/chart", &values]);
        assert!(clean, "{report}");
    }
}

/// Checks that each committed rendering equals the output of the command in its first line.
#[test]
fn committed_manifests_are_renderings_of_the_chart() {
    if !can_render("committed_manifests_are_renderings_of_the_chart") {
        return;
    }
    let mut files =
        vec!["overlays/full/options.yaml".to_owned(), "overlays/kind/netpold.yaml".to_owned()];
    let base = ["crds", "namespace", "rbac", "daemonset", "controller"];
    files.extend(base.map(|name| format!("base/{name}.yaml")));
    for file in files {
        let committed = text(&file);
        let command = committed.lines().next().unwrap().strip_prefix("# helm ").unwrap().to_owned();
        let arguments = command.split(' ').map(|word| word.trim_matches('\'')).collect::<Vec<_>>();
        let (rendered, output) = run_helm(&arguments);
        assert!(rendered, "{file}: {output}");
        assert_eq!(parse(&committed), parse(&output), "{file}: render it again: helm {command}");
    }
}

/// The pages list the definitions that an uninstall leaves; the chart's metadata lists its own definitions.
#[test]
fn every_custom_resource_definition_is_listed() {
    if !can_render("every_custom_resource_definition_is_listed") {
        return;
    }
    let definitions =
        render("base").into_iter().filter(|it| it["kind"] == "CustomResourceDefinition");
    let mut names: Vec<_> =
        definitions.map(|it| it["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names.len(), 3);
    let command = format!("kubectl delete crd {}", names.join(" "));
    for page in ["README.md", "chart/README.md"] {
        assert!(text(page).contains(&command), "{page}: {command}");
    }
    let metadata = &parse(&text("chart/Chart.yaml"))[0]["annotations"]["artifacthub.io/crds"];
    let listed = parse(metadata.as_str().unwrap()).remove(0);
    let mut listed: Vec<_> =
        listed.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    listed.sort_unstable();
    assert_eq!(listed, names);
}

/// Values of all compatible options together, and of the one option that they exclude.
fn all_options() -> [String; 2] {
    let all = switches().collect::<Vec<_>>().join(",");
    [all, "readinessGate.mode=webhook".to_owned()]
}

/// An uninstall leaves the definitions; no other object of any option remains.
#[test]
fn an_uninstall_leaves_the_definitions() {
    if !can_render("an_uninstall_leaves_the_definitions") {
        return;
    }
    for values in all_options() {
        let objects = chart(&values);
        for object in &objects {
            let annotations = &object["metadata"]["annotations"];
            // Helm does not uninstall hooks.
            assert!(annotations.get("helm.sh/hook").is_none(), "{object}");
            let is_definition = object["kind"] == "CustomResourceDefinition";
            assert_eq!(annotations["helm.sh/resource-policy"] == "keep", is_definition, "{object}");
        }
        assert_eq!(objects.iter().filter(|it| it["kind"] == "CustomResourceDefinition").count(), 3);
    }
}

/// Values and definitions of the chart's first commit (26 November 2026), used in place of a previous release, which
/// does not exist yet.
const FIRST: &str = "../agent/tests/server/manifests/first";

/// Checks that the schema and the templates accept every value of the first chart, with every option: an upgrade with
/// `--reset-then-reuse-values` passes them all.
#[test]
fn values_of_the_first_chart_are_accepted() {
    if !can_render("values_of_the_first_chart_are_accepted") {
        return;
    }
    let first = deploy().join(FIRST).join("values.yaml");
    let first = format!("--values={}", first.display());
    for options in all_options() {
        let set = format!("--set={options}");
        let (rendered, text) = run_helm(&["template", "netpold", "deploy/chart", &first, &set]);
        assert!(rendered, "{text}");
        assert!(parse(&text).iter().any(|it| it["kind"] == "DaemonSet"), "{text}");
    }
}

/// Checks that objects of the first definitions stay valid: every version keeps its fields and their types.
#[test]
fn definitions_of_the_first_chart_only_gain_fields() {
    if !can_render("definitions_of_the_first_chart_only_gain_fields") {
        return;
    }
    let now = render("base");
    let first = parse(&text(&format!("{FIRST}/crds.yaml")));
    let first = first.iter().filter(|it| it["kind"] == "CustomResourceDefinition");
    let mut compared = 0;
    for before in first {
        let name = before["metadata"]["name"].as_str().unwrap();
        let after = find(&now, "CustomResourceDefinition", name);
        for version in before["spec"]["versions"].as_array().unwrap() {
            let is_same = |it: &&Value| it["name"] == version["name"];
            let later = after["spec"]["versions"].as_array().unwrap().iter().find(is_same);
            let later = later.unwrap_or_else(|| panic!("{name}: {}", version["name"]));
            compared += gains(
                &version["schema"]["openAPIV3Schema"],
                &later["schema"]["openAPIV3Schema"],
                name,
            );
        }
    }
    assert!(compared > 20, "{compared} fields");
}

/// Asserts that the later schema has every field of the former, with the same type, and requires no further ones;
/// returns the number of fields.
fn gains(before: &Value, after: &Value, path: &str) -> usize {
    assert_eq!(before["type"], after["type"], "{path}");
    let required = |it: &Value| it["required"].as_array().cloned().unwrap_or_default();
    for name in required(after) {
        assert!(required(before).contains(&name), "{path}: {name} was optional");
    }
    let mut fields = 1;
    for (name, schema) in before["properties"].as_object().into_iter().flatten() {
        fields += gains(schema, &after["properties"][name], &format!("{path}.{name}"));
    }
    if before["items"].is_object() {
        fields += gains(&before["items"], &after["items"], &format!("{path}[]"));
    }
    fields
}

/// Returns each documented key of `values.yaml` with its comment, in the order of the file.
fn documented() -> Vec<(String, String)> {
    let (mut rows, mut path, mut comment) = (Vec::new(), Vec::<String>::new(), None);
    for line in text("chart/values.yaml").lines() {
        let bare = line.trim_start();
        let depth = (line.len() - bare.len()) / 2;
        if let Some(text) = bare.strip_prefix("# -- ") {
            comment = Some(text.to_owned());
        } else if let Some((key, _)) =
            bare.split_once(':').filter(|_| !bare.starts_with(['#', '-']))
        {
            path.truncate(depth);
            path.push(key.to_owned());
            rows.extend(comment.take().map(|comment| (path.join("."), comment)));
        }
    }
    rows
}

#[test]
fn the_table_of_values_equals_the_comments_of_the_file() {
    let values = &parse(&text("chart/values.yaml"))[0];
    let page = text("chart/README.md");
    let table = page.split_once("<!-- values -->\n").unwrap().1;
    let table = table.split_once("<!-- /values -->").unwrap().0;
    let mut expected = String::from("| key | default | description |\n|---|---|---|\n");
    for (key, comment) in documented() {
        let default = key.split('.').fold(values, |value, part| &value[part]);
        expected.push_str(&format!("| `{key}` | `{default}` | {comment} |\n"));
    }
    assert_eq!(table, expected);
    let documented: Vec<_> = documented().into_iter().map(|(key, _)| key).collect();
    let mut leaves = Vec::new();
    collect(values, "", &documented, &mut leaves);
    assert_eq!(leaves, [""; 0], "keys without a row");
}

/// Collects the paths of leaves that are neither documented nor below a documented key.
fn collect(value: &Value, path: &str, documented: &[String], leaves: &mut Vec<String>) {
    if documented.iter().any(|key| key == path) {
        return;
    }
    match value.as_object().filter(|fields| !fields.is_empty()) {
        Some(fields) => fields.iter().for_each(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            collect(value, &path, documented, leaves);
        }),
        None => leaves.push(path.to_owned()),
    }
}

/// Checks that the schema refuses an unknown sibling key and a wrong type for every documented key.
#[test]
fn the_schema_refuses_unknown_keys_and_wrong_types() {
    if !can_render("the_schema_refuses_unknown_keys_and_wrong_types") {
        return;
    }
    let template = |values: &str| {
        let set = format!("--set-json={values}");
        run_helm(&["template", "netpold", "deploy/chart", "--show-only=templates/rbac.yaml", &set])
    };
    for level in ["debug", "off", "info,netpold_kube=debug", "netpold_kube::watch=trace"] {
        assert!(template(&format!("log.level=\"{level}\"")).0, "{level}");
    }
    // A set, since sibling keys yield the same unknown key.
    let mut wrong = BTreeSet::new();
    for (key, _) in documented() {
        let parent = key.rsplit_once('.').map_or("", |(parent, _)| parent);
        wrong.insert(format!("{parent}.unknownKey=true").trim_start_matches('.').to_owned());
        wrong.insert(format!("{key}=[[1]]"));
    }
    wrong.insert("log.level=\"loud\"".to_owned());
    for values in wrong {
        let (accepted, report) = template(&values);
        assert!(!accepted && report.contains("schema"), "{values}: {report}");
    }
}

/// Checks that `readinessGate.mode=auto` renders the newest kind that the API server serves.
#[test]
fn capabilities_choose_the_api_version() {
    if !can_render("capabilities_choose_the_api_version") {
        return;
    }
    for (served, expected) in [
        (&["v1", "v1beta1"][..], "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"),
        (&["v1beta1"], "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy"),
        (&[], "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration"),
    ] {
        let served = served.iter().map(|version| {
            format!("--api-versions=admissionregistration.k8s.io/{version}/MutatingAdmissionPolicy")
        });
        let served = served.collect::<Vec<_>>();
        let mut arguments =
            vec!["template", "netpold", "deploy/chart", "--set=readinessGate.mode=auto"];
        arguments.extend(["--show-only=templates/options/readiness-gate-*.yaml"]);
        arguments.extend(served.iter().map(String::as_str));
        let (rendered, output) = run_helm(&arguments);
        assert!(rendered, "{output}");
        let object = parse(&output).remove(0);
        let found = [&object["apiVersion"], &object["kind"]].map(|it| it.as_str().unwrap());
        assert_eq!(found.join("/"), expected);
    }
    assert_eq!(render("base").iter().filter(|it| it["kind"] == "DaemonSet").count(), 1);
}
