//! The server: access, limits and answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use netpold_testbed::http::send;
use serde_json::json;

use crate::ui::client::Ui;
use crate::ui::clusters::{directory, generated, pod, shop};

const QUESTIONS: [&str; 11] = [
    "map", "flows", "edge", "workload", "rules", "what-if", "preset", "learn", "in-force",
    "doctor", "follow",
];

#[test]
fn no_question_is_answered_without_the_token() {
    let manifests = directory(&shop());
    let ui = Ui::start(manifests.path());
    let without: Vec<String> =
        ui.headers().into_iter().filter(|line| !line.starts_with("Authorization")).collect();
    let wrong = format!("Authorization: Bearer {}", "0".repeat(64));
    for question in QUESTIONS {
        let request = format!("POST /api/{question}");
        assert_eq!(ui.send(&request, &without, "{}").status, 401, "{question}");
        let guessed = [&without[..], std::slice::from_ref(&wrong)].concat();
        assert_eq!(ui.send(&request, &guessed, "{}").status, 401, "{question}");
        assert_ne!(ui.ask(question, &json!({})).status, 401, "{question}");
    }
    // A token in the URL is not accepted: browsers keep URLs in their history.
    let address = format!("POST /api/map?token={}", ui.token);
    assert_eq!(ui.send(&address, &without, "{}").status, 401);
    assert_eq!(ui.ask("map", &json!({})).status, 200);
}

#[test]
fn names_that_were_rebound_to_loopback_get_nothing() {
    let manifests = directory(&shop());
    let ui = Ui::start(manifests.path());
    for host in ["evil.example", &format!("evil.example:{}", ui.port), "127.0.0.1", "[::1]"] {
        let mut headers = ui.headers();
        headers[0] = format!("Host: {host}");
        headers[1] = format!("Origin: http://{host}");
        for request in ["GET /", "GET /main.js", "POST /api/map"] {
            let reply = ui.send(request, &headers, "{}");
            assert_eq!(reply.status, 403, "{host} {request}");
            assert!(!String::from_utf8_lossy(&reply.body).contains("netpold</h1>"));
        }
    }
    let localhost = vec![format!("Host: localhost:{}", ui.port)];
    assert_eq!(ui.send("GET /", &localhost, "").status, 403);
}

#[test]
fn pages_of_other_sites_cannot_ask() {
    let manifests = directory(&shop());
    let ui = Ui::start(manifests.path());
    for origin in [
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        &format!("http://localhost:{}", ui.port),
    ] {
        let mut headers = ui.headers();
        headers[1] = format!("Origin: {origin}");
        assert_eq!(ui.send("POST /api/map", &headers, "{}").status, 403, "{origin}");
    }
    let mut headers = ui.headers();
    headers[1] = "Sec-Fetch-Site: cross-site".to_owned();
    assert_eq!(ui.send("POST /api/map", &headers, "{}").status, 403);
    // A form on another site can send this content type; only netpold's own page can send the token.
    let mut headers = ui.headers();
    headers[3] = "Content-Type: text/plain".to_owned();
    assert_eq!(ui.send("POST /api/map", &headers, "{}").status, 415);
    let preflight = ui.send("OPTIONS /api/map", &ui.headers(), "");
    assert_eq!(preflight.status, 405);
    assert!(!preflight.head.contains("access-control-allow"), "{}", preflight.head);
}

#[test]
fn every_response_forbids_foreign_content_and_other_methods_are_refused() {
    let manifests = directory(&shop());
    let ui = Ui::start(manifests.path());
    let get = |path: &str| ui.send(&format!("GET {path}"), &ui.headers(), "");
    for path in [
        "/",
        "/main.js",
        "/page.css",
        "/icon.svg",
        "/none",
        "/api/map",
        "/../etc/passwd",
        "/api/%2e%2e",
    ] {
        let head = get(path).head;
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
            "x-frame-options: deny",
        ] {
            assert!(head.contains(part), "{path} lacks {part}: {head}");
        }
        assert!(!head.contains("unsafe"), "{head}");
    }
    assert_eq!(
        (get("/").status, get("/none").status, get("/../etc/passwd").status),
        (200, 404, 404)
    );
    assert_eq!(get("/api/map").status, 405);
    for request in ["POST /", "PUT /api/map", "DELETE /api/what-if", "TRACE /"] {
        assert_eq!(ui.send(request, &ui.headers(), "{}").status, 405, "{request}");
    }
}

#[test]
fn requests_are_bounded() {
    let manifests = directory(&shop());
    let ui = Ui::start(manifests.path());
    let large = json!({ "yaml": "#".repeat(4 << 20) });
    assert_eq!(ui.ask("what-if", &large).status, 413);
    assert_eq!(ui.ask("edge", &json!({ "revision": 1, "from": 9999, "to": 0 })).status, 422);
    assert_eq!(ui.ask("workload", &json!({ "revision": 7, "id": 0 })).status, 409);
    assert_eq!(ui.ask("edge", &json!({ "revision": 1 })).status, 400);
    assert_eq!(ui.ask("preset", &json!({ "preset": "tenant", "namespace": "../x" })).status, 422);
    // These questions need agents, which a directory of manifests does not have.
    for question in ["flows", "rules", "learn", "follow"] {
        let body = json!({ "revision": 1, "namespace": "shop", "words": {} });
        assert_eq!(ui.ask(question, &body).status, 404, "{question}");
    }
    let not_http = send(ui.port, "\u{0} / HTTP/1.1\r\n\r\n");
    assert_eq!(not_http.status, 400);
}

#[test]
fn answers_are_those_of_the_commands() {
    let manifests = directory(&shop());
    let ui = Ui::start(manifests.path());
    let map = ui.ask("map", &json!({})).json();
    let index = |title: &str| {
        map["nodes"].as_array().unwrap().iter().position(|node| node["title"] == title).unwrap()
    };
    let (web, cart, db) = (index("shop/web"), index("shop/cart"), index("shop/db"));
    let edge = |from, to| {
        let edges = map["edges"].as_array().unwrap();
        edges.iter().find(|edge| edge[0] == json!(from) && edge[1] == json!(to)).cloned()
    };
    let ports =
        &map["texts"][usize::try_from(edge(web, cart).unwrap()[3].as_u64().unwrap()).unwrap()];
    assert_eq!((&edge(web, cart).unwrap()[2], ports), (&json!("allow"), &json!("TCP 8080")));
    // The sender's rule names the database, which admits nobody.
    assert_eq!(edge(web, db).unwrap()[2], "deny");
    assert_eq!(edge(cart, db), None, "no rule names them");
    let asked = |more: serde_json::Value| {
        let mut question = json!({ "revision": 1, "from": web, "to": db });
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ui.ask("edge", &question).json()
    };
    let why = asked(json!({}));
    assert_eq!(
        (&why["explanation"]["verdict"], &why["port"]),
        (&json!("deny"), &json!(8080)),
        "{why}"
    );
    assert!(why["explanation"]["lines"].to_string().contains("shop/default-deny"), "{why}");
    assert_eq!(asked(json!({ "protocol": "UDP", "port": 53 }))["explanation"]["protocol"], "UDP");
    let workload = ui.ask("workload", &json!({ "revision": 1, "id": web })).json();
    assert_eq!(workload["egress"][0]["policy"], "shop/web", "{workload}");

    let open = json!({ "yaml": "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: default-deny, \
        namespace: shop}, spec: {podSelector: {}}}", "delete": true });
    let what_if = ui.ask("what-if", &open).json();
    assert_eq!(
        (&what_if["cut"], what_if["open"][0]["workload"].as_str()),
        (&json!(0), Some("shop/db")),
        "{what_if}"
    );
    let broken = ui.ask("what-if", &json!({ "yaml": "kind: [" }));
    assert_eq!(broken.status, 422);
    assert!(broken.json()["error"].as_str().unwrap().starts_with("line 1"), "{:?}", broken.json());
    let preset = ui.ask("preset", &json!({ "preset": "default-deny", "namespace": "shop" })).json();
    let text = preset["yaml"].as_str().unwrap();
    assert!(
        text.contains("\n  namespace: \"shop\"\n") && text.contains("netpold.io/enforcement"),
        "{text}"
    );
    let in_force = ui.ask("in-force", &json!({})).json();
    assert_eq!(in_force["policies"].as_array().unwrap().len(), 3, "{in_force}");
    assert!(ui.ask("doctor", &json!({})).json()["findings"].is_array());

    // The directory is read again on request; indexes of the former reading are refused.
    std::fs::remove_file(manifests.path().join("all.json")).unwrap();
    let fresh = ui.ask("map", &json!({ "fresh": true })).json();
    assert_eq!((&fresh["revision"], fresh["pods"].as_u64()), (&json!(2), Some(0)));
    assert_eq!(ui.ask("workload", &json!({ "revision": 1, "id": web })).status, 409);
}

/// Concurrent readings run one after another: each revision belongs to one reading, even while the objects change.
#[test]
fn a_revision_is_of_one_reading() {
    let manifests = directory(&shop());
    let ui = Ui::start(manifests.path());
    let file = manifests.path().join("all.json");
    let done = AtomicBool::new(false);
    let ask = || {
        let reply = ui.ask("map", &json!({ "fresh": true }));
        // A file that is replaced while it is read is refused.
        (reply.status == 200).then(|| {
            let map = reply.json();
            (map["revision"].as_u64().unwrap(), map["nodes"].to_string())
        })
    };
    let answers: Vec<(u64, String)> = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 2.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                let mut items = shop();
                items.push(pod("shop", &format!("new-{number}"), 1, "10.0.0.9"));
                let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
                let next = file.with_extension("next");
                std::fs::write(&next, list.to_string()).unwrap();
                std::fs::rename(&next, &file).unwrap();
            }
        });
        let asked: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| (0..6).filter_map(|_| ask()).collect::<Vec<_>>()))
            .collect();
        let answers = asked.into_iter().flat_map(|it| it.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        answers
    });
    let mut known: HashMap<u64, &String> = HashMap::new();
    for (revision, nodes) in &answers {
        assert_eq!(*known.entry(*revision).or_insert(nodes), nodes, "revision {revision}");
    }
    assert!(known.len() > 1, "{known:?}");
}

/// Each of several concurrent changes is answered or replaced by a newer one, and at least one is answered.
#[test]
fn newer_changes_replace_waiting_ones() {
    let manifests = directory(&generated(60, 2, 5));
    let ui = Ui::start(manifests.path());
    let question = json!({ "yaml": "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: x, \
        namespace: team-00}, spec: {podSelector: {}}}" });
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            (0..8).map(|_| scope.spawn(|| ui.ask("what-if", &question).status)).collect();
        asked.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert!(statuses.iter().all(|status| [200, 409].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&200), "{statuses:?}");
    // Another page's change is not replaced.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..4)
            .map(|number| {
                let mut question = question.clone();
                question["page"] = json!(format!("page-{number}"));
                let ui = &ui;
                scope.spawn(move || ui.ask("what-if", &question).status)
            })
            .collect();
        asked.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert_eq!(statuses, [200; 4]);
    let long = json!({ "yaml": "", "page": "x".repeat(65) });
    assert_eq!(ui.ask("what-if", &long).status, 400);
}

#[test]
fn what_if_has_the_gaps_and_notes_of_diff() {
    let manifests = directory(&shop());
    let ui = Ui::start(manifests.path());
    let ask = |yaml: &str, delete: bool| {
        ui.ask("what-if", &json!({ "yaml": yaml, "delete": delete })).json()
    };
    let policy = |namespace: &str, annotations: &str| {
        format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: x, namespace: {namespace}, \
             annotations: {annotations}}}, spec: {{podSelector: {{}}}}}}"
        )
    };
    let notes = |answer: &serde_json::Value| answer["notes"].to_string();
    let trial = ask(&policy("shop", "{netpold.io/enforcement: audit}"), false);
    assert!(notes(&trial).contains("on trial"), "{trial}");
    let lost = ask(&policy("nowhere", "{}"), false);
    assert!(notes(&lost).contains("in a namespace without an object"), "{lost}");
    let absent = ask(&policy("shop", "{}"), true);
    let gaps = absent["not_compared"].to_string();
    assert!(gaps.contains("not among the objects, so not deleted"), "{absent}");
    let foreign = ask(
        "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: x, namespace: shop}, spec: {}}",
        false,
    );
    assert!(foreign["not_compared"].to_string().contains("not enforced by netpold"), "{foreign}");
}

#[test]
fn what_if_compares_services() {
    let service = |target: u16| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{namespace: shop, name: front}}, spec: {{selector: {{app: web}}, \
             ports: [{{port: 80, targetPort: {target}}}]}}}}"
        )
    };
    let pods = ["web", "cart"].map(|name| {
        format!(
            "{{apiVersion: apps/v1, kind: Deployment, metadata: {{namespace: shop, name: {name}}}, spec: {{template: \
             {{metadata: {{labels: {{app: {name}}}}}, spec: {{containers: [{{name: c}}]}}}}}}}}"
        )
    });
    let rule = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: web}, spec: \
                {podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 8080}]}]}}";
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";
    let all = [&pods[0], &pods[1], rule, namespace, &service(8080)].join("\n---\n");
    let manifests = directory(&[]);
    std::fs::write(manifests.path().join("shop.yaml"), all).unwrap();
    let ui = Ui::start(manifests.path());
    let cut = ui.ask("what-if", &json!({ "yaml": service(9090) })).json();
    let line = json!({ "from": ["shop/cart", "shop/web"], "to": ["svc/shop/front"], "loses": "TCP 80", "gains": null, "some": false });
    assert_eq!(cut["lines"], json!([line]), "{cut}");
    let gone = ui.ask("what-if", &json!({ "yaml": service(8080), "delete": true })).json();
    let gaps = gone["not_compared"].to_string();
    assert!(gaps.contains("connections to Service shop/front: it is gone"), "{gone}");
}

#[test]
fn ctrl_c_ends_the_server() {
    let manifests = directory(&shop());
    let mut ui = Ui::start(manifests.path());
    assert_eq!(ui.interrupt(), Some(0));
}
