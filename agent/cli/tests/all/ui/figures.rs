//! Figures and pictures on the page `deploy/ui.md`; by hand: `cargo nextest run -p netpold-cli --release --run-ignored all
//! -E 'test(figures)' --no-capture`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use netpold_testbed::browser::Browser;
use serde_json::{Value, json};

use crate::ui::client::Ui;
use crate::ui::clusters::{CHANGE, directory, generated, generated_with_services, pictured};

const READY: &str =
    "document.documentElement.dataset.ready && document.documentElement.dataset.drawn";

/// Writes pictures of the map and of a change, in both colour schemes.
#[test]
#[ignore = "writes files into deploy/"]
fn figures_pictures_of_the_page() {
    for (is_dark, scheme) in [(false, "light"), (true, "dark")] {
        let Some(browser) = Browser::start("figures_pictures_of_the_page", is_dark) else { return };
        let manifests = directory(&pictured());
        let ui = Ui::start(manifests.path());
        browser.resize(1120, 740);
        browser.open(&ui.address);
        browser.wait(READY);
        browser.run(
            "const source = document.getElementById('source'); source.textContent = source.textContent.replace(/^\\S+/, 'manifests');
             const search = document.querySelector('input[type=search]'); search.value = 'shop/web'; search.dispatchEvent(new Event('input'))",
            &Value::Null,
        );
        browser.wait("document.querySelectorAll('aside h3').length > 2");
        write_picture(&browser, &format!("ui-{scheme}.png"));
        browser.run(
            "document.getElementById('tab-what-if').click(); const yaml = document.getElementById('yaml');
             yaml.value = arguments[0]; yaml.dispatchEvent(new Event('input'))",
            &json!(CHANGE),
        );
        browser.wait("document.querySelector('.sum')");
        write_picture(&browser, &format!("ui-change-{scheme}.png"));
    }
}

/// Writes a picture of the page into `deploy/`.
fn write_picture(browser: &Browser, name: &str) {
    // Two frames, so that the canvas is painted.
    browser.run("window.painted = false; requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = true; }))", &Value::Null);
    browser.wait("window.painted");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name);
    let encoded = file.with_extension("base64");
    std::fs::write(&encoded, browser.picture()).unwrap();
    let decoded = Command::new("base64").arg("-d").arg(&encoded).output().unwrap();
    std::fs::write(&file, decoded.stdout).unwrap();
    std::fs::remove_file(&encoded).unwrap();
}

/// Prints the times of a large map and of a change of a large cluster.
#[test]
#[ignore = "figures for the page, of a release build"]
fn figures_of_large_clusters() {
    let Some(browser) = Browser::start("figures_of_large_clusters", false) else { return };
    let manifests = directory(&generated(1000, 2, 20));
    let began = Instant::now();
    let ui = Ui::start(manifests.path());
    eprintln!("1,000 workloads, 2,000 pods: read and evaluated in {:?}", began.elapsed());
    let began = Instant::now();
    let map = ui.ask("map", &json!({}));
    let edges = map.json()["edges"].as_array().unwrap().len();
    eprintln!("map: {edges} edges, {} kB in {:?}", map.body.len() / 1000, began.elapsed());
    browser.open(&ui.address);
    browser.wait(READY);
    let figures = browser.value(
        "[document.documentElement.dataset.drawn, document.documentElement.dataset.drawing]",
    );
    eprintln!(
        "page: first drawn {} ms after navigation, {} ms after the map arrived",
        figures[0], figures[1]
    );
    browser.run(
        "[...document.querySelectorAll('#map button')].find((it) => it.textContent === 'Unfold all').click()",
        &Value::Null,
    );
    std::thread::sleep(std::time::Duration::from_secs(2));
    for kind in ["still", "zoom", "move", "whole map", "pointer"] {
        let before = browser.processor_times();
        browser.run(include_str!("frames.js"), &json!(kind));
        browser.wait("window.frames?.median !== undefined");
        let (after, frames) = (browser.processor_times(), browser.value("window.frames"));
        let [ran, waited] = [0, 1].map(|i| after[i].saturating_sub(before[i]));
        eprintln!(
            "all unfolded, {kind}: {frames}; the page's thread ran {ran:?} and waited {waited:?} for a processor"
        );
    }

    figures_of_changes("20,000 pods", &generated(1000, 20, 20));
    let items = generated_with_services(1000, 20, 20);
    figures_of_changes("20,000 pods, 100 nodes, 1,000 Services", &items);
}

/// Prints the times of changes of a cluster.
#[expect(clippy::print_stderr, reason = "figures for the page")]
fn figures_of_changes(name: &str, items: &[Value]) {
    let manifests = directory(items);
    let began = Instant::now();
    let ui = Ui::start(manifests.path());
    eprintln!("{name}: read and evaluated in {:?}", began.elapsed());
    let of_one = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: service-0007, namespace: team-00}, \
                  spec: {podSelector: {matchLabels: {app: service-0007}}, ingress: [{from: [{podSelector: {}}]}]}}";
    let of_namespace = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: team-01}, \
                        spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}";
    let of_all = "{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: all}, spec: \
                  {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}";
    for (change, text) in
        [("a policy", of_one), ("a namespace", of_namespace), ("every workload", of_all)]
    {
        for _ in 0..5 {
            let began = Instant::now();
            let answer = ui.ask("what-if", &json!({ "yaml": text })).json();
            let (cut, opened, time) = (&answer["cut"], &answer["opened"], began.elapsed());
            eprintln!("{name}: change of {change}: {cut} cut, {opened} opened in {time:?}");
        }
    }
}
