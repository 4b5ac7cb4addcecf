//! `netpold test --probe`: connections from inside pods, through the API server's `exec`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use netpold_testbed::{Container, Kubelet};
use serde_json::json;
use tempfile::TempDir;

use super::{VIEW, netpold, shown, stderr, stdout, user};
use crate::apiserver::world::World;

const ASSERTIONS: &str = "assertions:
- {from: shop/client, to: shop/server, port: 80, expect: allow}
- {from: shop/client, to: shop/server, port: 81, expect: allow}
- {from: shop/stranger, to: shop/server, port: 80, expect: deny}
- {name: nobody reaches the server, from: shop/client, to: shop/server, port: 80, expect: deny}
- {from: shop/server, to: shop/client, port: 80, expect: allow}
- {from: shop/client, to: shop/server, port: 80, protocol: UDP, expect: allow}
";

/// Gives the pod a container that runs the named programs.
fn runs(world: &World, kubelet: &Kubelet, name: &str, programs: &[&str]) {
    let state = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
    let status = json!({ "name": "main", "image": "i", "imageID": "", "ready": true,
        "restartCount": 0, "state": state });
    let patch = json!({ "status": { "containerStatuses": [status] } }).to_string();
    let which = ["patch", "pod", name, "-n", "shop", "--subresource=status", "--type=merge"];
    world.server.kubectl(&[&which[..], &["-p", &patch]].concat()).unwrap();
    let programs = programs.iter().map(|it| ((*it).to_owned(), Path::new("/bin").join(it)));
    let container = Container {
        programs: programs.collect(),
        environment: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        netns: Some(Arc::clone(world.pod(name).netns())),
        ..Container::default()
    };
    kubelet.runs(&format!("shop/{name}/main"), container);
}

/// Checks that `test --probe` detects wrong assertions, by the objects and by real packets.
pub(super) fn connections_from_pods(world: &mut World, kubelet: &Kubelet) {
    world.add("stranger");
    world.wait("enforcing at the stranger", |status| {
        let endpoints = status["endpoints"].as_array().unwrap();
        endpoints.iter().any(|it| it["pod"]["name"] == "stranger" && !it["hook"].is_null())
    });
    runs(world, kubelet, "client", &["sh"]);
    // The runtime reports the same error for an image without a shell.
    runs(world, kubelet, "server", &[]);
    runs(world, kubelet, "stranger", &["sh"]);

    let (server, admin) = (&world.server, &world.server.admin());
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("assertions.yaml");
    fs::write(&file, ASSERTIONS).unwrap();
    let question = ["test", "-f", file.to_str().unwrap(), "--probe"];
    let output = netpold(server, admin, &question);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = stdout(&output);
    let said = said.replace(&format!("{}/", directory.path().display()), "");
    assert_eq!(said.trim_end(), shown("test -f assertions.yaml --probe"));
    let tap = stdout(&netpold(server, admin, &[&question[..], &["-o", "tap"]].concat()));
    let lines =
        ["ok 1 - allow shop/client to shop/server, TCP 80\n# probed: 2 connected\n", "not ok 4"];
    assert!(lines.iter().all(|it| tap.contains(it)), "{tap}");

    // A blackhole route between the pods, which is not a policy, drops their packets.
    let reader = user(server, "reader", &[(VIEW, "shop")]);
    fs::write(&file, ASSERTIONS.lines().take(2).collect::<Vec<_>>().join("\n")).unwrap();
    let to = world.pod("server").ip4().unwrap();
    let rule = |verb: &str| {
        world.node.netns().ip(&format!("rule {verb} pref 10 to {to}/32 blackhole\n")).unwrap();
    };
    rule("add");
    let junit = stdout(&netpold(server, admin, &[&question[..], &["-o", "junit"]].concat()));
    rule("del");
    let failure = format!(
        "<failure message=\"1 of 2 probed connections do not pass\">shop/client to shop/server, TCP 80: timed out at \
         {to}; the cluster&apos;s objects allow it</failure>\n      <system-out>probed: 1 connected, 1 timed out<"
    );
    assert!(junit.contains(&failure), "{junit}");

    // A user who may read objects but not exec gets the objects' answer.
    let output = netpold(server, &reader, &[&question[..], &["-n", "shop"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stdout(&output);
    let words = ["not probed: 2 (", "get and create on pods/exec in namespace shop"];
    assert!(words.iter().all(|it| said.contains(it)), "{said}");
}
