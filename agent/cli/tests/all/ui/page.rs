//! The page in a browser.

use netpold_testbed::browser::Browser;
use netpold_testbed::{axe, skip};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ui::client::Ui;
use crate::ui::clusters::{admits, directory, generated, namespace, pod, shop};

const READY: &str =
    "document.documentElement.dataset.ready && document.documentElement.dataset.drawn";

/// Checks that the page broke no rule of its content security policy, and contacted only its own server.
fn asked_nobody_else(browser: &Browser, ui: &Ui) {
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
    let own = format!("http://127.0.0.1:{}/", ui.port);
    let requests = browser.requests();
    assert!(requests.len() > 10, "{requests:?}");
    let is_own = |request: &&String| request.starts_with(&own);
    let others: Vec<&String> = requests.iter().filter(|request| !is_own(request)).collect();
    let others: Vec<_> =
        others.iter().filter(|it| !it.starts_with("data:") && !it.starts_with("chrome:")).collect();
    assert!(others.is_empty(), "{others:?}");
}

fn texts(browser: &Browser, selector: &str) -> Vec<String> {
    let script = "return [...document.querySelectorAll(arguments[0])].map((it) => it.textContent)";
    let found = browser.run(script, &json!(selector));
    found.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// Starts a browser with the page of a shop; `None` without a browser. The directory holds the manifests.
fn opened(test: &str, is_dark: bool) -> Option<(Browser, Ui, TempDir)> {
    let browser = Browser::start(test, is_dark)?;
    let manifests = directory(&shop());
    let ui = Ui::start(manifests.path());
    browser.open(&ui.address);
    browser.wait(READY);
    Some((browser, ui, manifests))
}

#[test]
fn the_map_is_drawn_and_has_a_table_and_keys_reach_every_view() {
    let Some((browser, ui, _manifests)) =
        opened("the_map_is_drawn_and_has_a_table_and_keys_reach_every_view", false)
    else {
        return;
    };
    assert_eq!(
        browser.value("location.href"),
        json!(format!("http://127.0.0.1:{}/", ui.port)),
        "no token stays"
    );
    // Both colours of verdicts are among the pixels: the edges are drawn, not only the boxes.
    let colours = "(() => {
        const canvas = document.querySelector('canvas');
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        let [green, red] = [0, 0];
        for (let i = 0; i < pixels.length; i += 4) {
            if (pixels[i + 3] && pixels[i + 1] - pixels[i] > 40) green += 1;
            if (pixels[i + 3] && pixels[i] - pixels[i + 1] > 40) red += 1;
        }
        return [green, red];
    })()";
    let drawn = browser.value(colours);
    assert!(drawn[0].as_u64() > Some(20) && drawn[1].as_u64() > Some(20), "{drawn}");

    // Keys alone: the tabs, then the table, then the explanation of a pair.
    browser.run("document.getElementById('tab-map').focus()", &Value::Null);
    for tab in ["live", "what-if", "in-force", "map"] {
        browser.press(&["\u{e014}"]);
        let shown = format!(
            "document.activeElement.id === 'tab-{tab}' && !document.getElementById('{tab}').hidden"
        );
        browser.wait(&shown);
    }
    browser.run(
        "[...document.querySelectorAll('#map button')].find((it) => it.textContent === 'As a table').focus()",
        &Value::Null,
    );
    browser.press(&["\u{e007}"]);
    let rows = texts(&browser, ".table-view tbody:first-of-type tr");
    let has = |row: &str| rows.iter().any(|it| it == row);
    assert!(has("shop/webshop/cartallowedTCP 8080"), "{rows:?}");
    assert!(has("shop/webshop/dbdenieddenied at every port"), "{rows:?}");
    browser.run(
        "[...document.querySelectorAll('.table-view tr')].find((it) => it.textContent.includes('shop/db')).querySelector('td:last-child button').focus()",
        &Value::Null,
    );
    browser.press(&["\u{e007}"]);
    browser.wait("document.querySelector('aside .why')");
    let why = texts(&browser, "aside .why li");
    assert!(why.iter().any(|line| line.contains("isolated by shop/default-deny")), "{why:?}");
    // The canvas takes keys, and shows where the focus is.
    browser.run("document.querySelector('canvas').focus()", &Value::Null);
    browser.press(&["+", "\u{e012}", "0"]);
    assert_eq!(browser.value("document.activeElement.tagName"), "CANVAS");
    asked_nobody_else(&browser, &ui);
}

#[test]
fn a_change_shows_its_cuts_while_it_is_typed() {
    let Some((browser, _ui, _manifests)) =
        opened("a_change_shows_its_cuts_while_it_is_typed", false)
    else {
        return;
    };
    browser.run(
        "document.getElementById('tab-what-if').click(); document.getElementById('yaml').focus()",
        &Value::Null,
    );
    let closed = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: cart, namespace: shop}, \
                  spec: {podSelector: {}}}";
    let keys: Vec<String> = closed.chars().map(String::from).collect();
    browser.press(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    browser.wait("document.querySelector('.sum')?.textContent === '1 pair cut0 pairs opened'");
    assert_eq!(texts(&browser, ".result td")[..3], ["shop/web", "shop/cart", "TCP 8080"]);
    // A preset replaces the text; a text that is not YAML has a reason.
    browser.run("[...document.querySelectorAll('#what-if button')].find((it) => it.textContent === 'Insert preset').click()", &Value::Null);
    browser.wait("document.getElementById('yaml').value.includes('netpold.io/enforcement')");
    browser.run("const yaml = document.getElementById('yaml'); yaml.value = 'kind: ['; yaml.dispatchEvent(new Event('input'))", &Value::Null);
    browser.wait("document.querySelector('.result .bad')?.textContent.startsWith('line 1')");
    let complaints = browser.complaints();
    let expected = |it: &String| it.contains("422");
    assert!(complaints.iter().all(expected), "{complaints:?}");
}

#[test]
fn an_answer_to_an_earlier_text_is_marked() {
    let Some((browser, _ui, _manifests)) = opened("an_answer_to_an_earlier_text_is_marked", false)
    else {
        return;
    };
    let set = "const yaml = document.getElementById('yaml'); yaml.value = arguments[0]; yaml.dispatchEvent(new Event('input'));
        const result = document.querySelector('.result');
        return [result.classList.contains('stale'), result.getAttribute('aria-busy'), result.previousElementSibling.textContent]";
    let policy = |app: &str| {
        json!(format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {app}, namespace: shop}}, \
             spec: {{podSelector: {{}}}}}}"
        ))
    };
    let first = browser.run(set, &policy("cart"));
    assert_eq!(first, json!([false, "true", "Judging…"]));
    browser.wait("document.querySelector('.sum')");
    let second = browser.run(set, &policy("web"));
    assert_eq!(second, json!([true, "true", "Judging… The answer below is of an earlier text."]));
    browser.wait("document.querySelector('.result:not(.stale) .sum')");
    browser.wait("document.querySelector('.effect').textContent.includes('1 object judged')");
}

#[test]
fn a_late_answer_is_not_shown_beside_a_later_map() {
    let Some((browser, _ui, _manifests)) =
        opened("a_late_answer_is_not_shown_beside_a_later_map", false)
    else {
        return;
    };
    // The answer about a workload waits until the page lets it go.
    browser.run(
        "const ask = window.fetch; window.answered = 0;
         const held = new Promise((resolve) => { window.letGo = resolve; });
         window.fetch = async (path, options) => {
             const answer = await ask(path, options);
             if (path === '/api/map') window.reloaded = true;
             if (path !== '/api/workload') return answer;
             const body = await answer.json();
             await held;
             setTimeout(() => { window.answered += 1; });
             return { ok: answer.ok, status: answer.status, json: async () => body };
         };
         const search = document.querySelector('input[type=search]'); search.value = 'shop/web';
         search.dispatchEvent(new Event('input'));
         document.getElementById('reload').click()",
        &Value::Null,
    );
    browser.wait("window.reloaded && !document.getElementById('reload').disabled");
    browser.run("window.letGo()", &Value::Null);
    browser.wait("window.answered === 1");
    assert_eq!(texts(&browser, "aside h2"), ["Overview"]);
}

#[test]
fn tiers_parts_and_folded_pairs_are_named() {
    let Some(browser) = Browser::start("tiers_parts_and_folded_pairs_are_named", false) else {
        return;
    };
    let mut items = shop();
    let mut other = pod("shop", "web", 2, "10.0.0.4");
    other["metadata"]["labels"]["canary"] = json!("true");
    let mut closed = admits("shop", "cart", &[], 1);
    closed["metadata"]["name"] = json!("canary");
    closed["spec"] = json!({
        "podSelector": { "matchLabels": { "app": "db" } }, "policyTypes": ["Ingress"],
        "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "canary": "true" } } }] }],
    });
    let tier = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": "closed" },
        "spec": {
            "tier": "Baseline", "priority": 1, "subject": { "namespaces": {} },
            "egress": [{ "action": "Deny", "to": [{ "namespaces": {} }] }],
        },
    });
    items.extend([other, closed, tier]);
    let manifests = directory(&items);
    let ui = Ui::start(manifests.path());
    browser.open(&ui.address);
    browser.wait(READY);
    let overview = texts(&browser, "aside")[0].clone();
    // Egress of every workload: web's own policy isolates it, and the tier comes after that.
    assert!(overview.contains("ClusterNetworkPolicies decide (3)"), "{overview}");
    assert!(overview.contains("Open in a direction (0)"), "{overview}");
    assert!(overview.contains("denied in part1 pair"), "{overview}");
    let press = "[...document.querySelectorAll('#map button')].find((it) => it.textContent === arguments[0]).click()";
    browser.run(press, &json!("As a table"));
    let rows = texts(&browser, ".table-view tbody:first-of-type tr");
    let part = rows.iter().find(|row| row.starts_with("shop/webshop/db"));
    assert!(part.is_some_and(|row| row.contains("denied in part")), "{rows:?}");
    // The two toggles under which a pair in part is shown.
    let toggle = "document.querySelector(`.toggle.${arguments[0]} input`).click()";
    browser.run(toggle, &json!("deny"));
    let shown = |browser: &Browser| texts(browser, ".table-view tbody:first-of-type tr").concat();
    assert!(shown(&browser).contains("denied in part"));
    browser.run(toggle, &json!("allow"));
    assert!(!shown(&browser).contains("denied in part"));
    assert!(texts(&browser, ".table-view caption")[0].contains("the toggles hide"));
    browser.run("for (const word of ['deny', 'allow']) document.querySelector(`.toggle.${word} input`).click()", &Value::Null);
    browser.run(press, &json!("As a table"));
    browser.run(press, &json!("Fold namespaces"));
    browser.run(
        "const canvas = document.querySelector('canvas');
         canvas.dispatchEvent(new PointerEvent('pointermove', { clientX: canvas.getBoundingClientRect().x + canvas.clientWidth / 2,
             clientY: canvas.getBoundingClientRect().y + canvas.clientHeight / 2, bubbles: true }))",
        &Value::Null,
    );
    browser.wait("document.querySelector('.tip').textContent.includes('pairs inside')");
    let tip = texts(&browser, ".tip")[0].clone();
    assert!(tip.contains("1 allowed") && tip.contains("1 denied in part"), "{tip}");
}

#[test]
fn focus_stays_in_the_details() {
    let Some((browser, _ui, _manifests)) = opened("focus_stays_in_the_details", false) else {
        return;
    };
    browser.run(
        "const search = document.querySelector('input[type=search]'); search.value = 'shop/web';
         search.dispatchEvent(new Event('input'))",
        &Value::Null,
    );
    browser.wait("document.querySelector('aside h2').textContent === 'shop/web'");
    browser.run("[...document.querySelectorAll('aside button.link')].find((it) => it.textContent === 'shop/cart').focus()", &Value::Null);
    browser.press(&["\u{e007}"]);
    browser.wait("document.querySelector('aside h2').textContent === 'shop/cart'");
    assert_eq!(browser.value("document.activeElement.tagName"), "H2");
}

#[test]
fn hostile_names_are_shown_as_text() {
    let Some(browser) = Browser::start("hostile_names_are_shown_as_text", false) else { return };
    let markup = "<img src=x onerror=alert(1)><script>document.title='pwned'</script>\"'`";
    let turned = "\u{202e}txt.evil\u{2066}\u{200b}";
    let long = "a".repeat(5000);
    let named = |name: &str, labels: &[(&str, &str)], address: &str| {
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "shop", "labels": labels },
            "spec": { "nodeName": markup }, "status": { "phase": "Running", "podIP": address },
        })
    };
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": markup, "namespace": "shop" },
        "spec": {
            "podSelector": {}, "policyTypes": ["Ingress"],
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": markup } } }] }],
        },
    });
    let manifests = directory(&[
        namespace("shop"),
        named(markup, &[("app", markup)], "10.0.0.1"),
        named(turned, &[("app", turned)], "10.0.0.2"),
        named(&long, &[("app", "long")], "10.0.0.3"),
        policy,
    ]);
    let ui = Ui::start(manifests.path());
    browser.open(&ui.address);
    browser.wait(READY);
    browser.run(
        "[...document.querySelectorAll('#map button')].find((it) => it.textContent === 'As a table').click();
         [...document.querySelectorAll('.table-view button.link')].find((it) => it.textContent.includes('<img')).click()",
        &Value::Null,
    );
    browser.wait("document.querySelector('aside h2')?.textContent.includes('<script>')");
    let body = browser.value("document.body.textContent");
    let body = body.as_str().unwrap();
    assert!(body.contains(&format!("shop/{markup}")), "shown as it is written");
    assert!(body.contains(r"\u{202e}txt.evil\u{2066}"), "marks of direction are escaped");
    assert!(
        !body.contains(['\u{202e}', '\u{2066}', '\u{200b}']),
        "no mark turns the text around it"
    );
    for tab in ["in-force", "what-if"] {
        browser.run(&format!("document.getElementById('tab-{tab}').click()"), &Value::Null);
    }
    browser.run(
        "const yaml = document.getElementById('yaml');
         yaml.value = JSON.stringify({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: arguments[0], labels: 7 } });
         yaml.dispatchEvent(new Event('input'))",
        &json!(markup),
    );
    browser.wait("document.querySelector('.effect').textContent.length > 80");
    browser.wait("document.getElementById('in-force').textContent.includes('shop/<img')");
    assert_eq!(browser.value("document.title"), "netpold");
    assert_eq!(
        browser.value("document.querySelectorAll('main img, main script, main iframe').length"),
        0
    );
    // No element is wider than the page.
    assert_eq!(browser.value("document.documentElement.scrollWidth <= innerWidth"), true);
    asked_nobody_else(&browser, &ui);
}

/// WCAG 2.2: names of controls (4.1.2), contrast of text (1.4.3) in both colour schemes, captions and headers of tables
/// (1.3.1).
#[test]
fn controls_have_names_and_text_has_contrast() {
    for_each_view("controls_have_names_and_text_has_contrast", |browser, view| {
        let found = browser.run(include_str!("essentials.js"), &Value::Null);
        assert_eq!(found["problems"], json!([]), "{view}");
        assert!(
            found["texts"].as_u64() > Some(5) && found["controls"].as_u64() > Some(4),
            "{found}"
        );
    });
}

/// All rules of axe-core, without its open questions: these are texts above others, which it cannot judge.
#[test]
fn axe_finds_no_violation_in_any_view() {
    let test = "axe_finds_no_violation_in_any_view";
    let Some(axe) = axe::script() else {
        return skip(test, "no axe-core: `cargo xtask setup` fetches it");
    };
    let axe = std::fs::read_to_string(axe).unwrap();
    for_each_view(test, |browser, view| {
        browser.run(&axe, &Value::Null);
        let found = browser.run(
            "return axe.run(document).then(({ violations, passes }) => ({ rules: passes.length,
                 violations: violations.map((it) => `${it.id}: ${it.nodes.map((node) => node.html.slice(0, 120)).join(' ')}`) }))",
            &Value::Null,
        );
        assert_eq!(found["violations"], json!([]), "{view}");
        assert!(found["rules"].as_u64() > Some(20), "{found}");
    });
}

/// Shows each view in both colour schemes, with a table and a change.
fn for_each_view(test: &str, check: impl Fn(&Browser, &str)) {
    for is_dark in [false, true] {
        let Some((browser, _ui, _manifests)) = opened(test, is_dark) else { return };
        assert_eq!(browser.value("matchMedia('(prefers-color-scheme: dark)').matches"), is_dark);
        browser.run(
            "[...document.querySelectorAll('#map button')].find((it) => it.textContent === 'As a table').click();
             const yaml = document.getElementById('yaml'); yaml.value = '{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: cart, namespace: shop}, spec: {podSelector: {}}}';
             yaml.dispatchEvent(new Event('input'));",
            &Value::Null,
        );
        browser.wait("document.querySelector('.sum')");
        for tab in ["map", "live", "what-if", "in-force"] {
            browser.run(&format!("document.getElementById('tab-{tab}').click()"), &Value::Null);
            browser.wait(&format!(
                "!document.getElementById('{tab}').textContent.includes('Reading')"
            ));
            check(&browser, &format!("{tab}, dark {is_dark}"));
        }
    }
}

/// Frames go on while a map with 4,000 curves is painted: a single picture of all curves took seconds.
#[test]
fn a_large_map_is_painted_in_parts() {
    let name = "a_large_map_is_painted_in_parts";
    let Some(browser) = Browser::start(name, false) else { return };
    let manifests = directory(&generated(400, 1, 10));
    let ui = Ui::start(manifests.path());
    browser.open(&ui.address);
    browser.wait(READY);
    browser.run(
        "const buttons = [...document.querySelectorAll('#map button')];
         buttons.find((it) => it.textContent === 'Unfold all').click()",
        &Value::Null,
    );
    let is_rested = "!document.querySelector('canvas').dataset.painting";
    std::thread::sleep(std::time::Duration::from_millis(300));
    browser.wait(is_rested);
    // Counts the frames between a move and the complete picture, and the frames in which the picture is not blank.
    browser.run(
        "const canvas = document.querySelector('canvas');
         window.parts = null;
         let [parts, shown, began] = [0, 0, false];
         const colours = () => new Set(canvas.getContext('2d').getImageData(300, 200, 400, 1).data).size;
         const step = () => {
           const painting = Boolean(canvas.dataset.painting);
           began ||= painting;
           if (painting) parts += 1;
           if (painting && parts === 2) shown = colours();
           if (began && !painting) window.parts = { parts, shown };
           else requestAnimationFrame(step);
         };
         canvas.dispatchEvent(new KeyboardEvent('keydown', { key: '0', bubbles: true }));
         canvas.dispatchEvent(new KeyboardEvent('keydown', { key: '+', bubbles: true }));
         requestAnimationFrame(step)",
        &Value::Null,
    );
    browser.wait("window.parts");
    let found = browser.value("window.parts");
    assert!(found["parts"].as_u64() > Some(3), "one frame has the whole picture: {found}");
    assert!(found["shown"].as_u64() > Some(4), "the map is blank while it is painted: {found}");
}
