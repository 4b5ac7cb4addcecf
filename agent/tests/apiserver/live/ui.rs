//! The page of `netpold ui` with a cluster: flows, rules, events and reports of the agents.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use netpold_testbed::cluster::network_policy;
use netpold_testbed::{KillOnDrop, Protocol};
use serde_json::{Value, json};

use crate::world::{PATIENCE, PORT, World, binary};

/// A server in the namespace from which the API server is reachable.
struct Ui<'w> {
    world: &'w World,
    _process: KillOnDrop,
    port: u16,
    token: String,
}

impl<'w> Ui<'w> {
    fn start(world: &'w World) -> Self {
        let mut command = Command::new(binary());
        command.arg("ui").env_clear().env("NETPOLD_KUBECONFIG", world.server.admin());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = world.server.inside(|| command.spawn()).unwrap().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (origin, token) = line.trim().rsplit_once("/#").unwrap();
        let port = origin.rsplit(':').next().unwrap().parse().unwrap();
        Self { world, _process: KillOnDrop(process), port, token: token.to_owned() }
    }

    /// Sends a question; returns the status and a reader of the body.
    fn send(&self, path: &str, question: &Value) -> (u16, BufReader<TcpStream>) {
        let connect = || TcpStream::connect(("127.0.0.1", self.port));
        let mut stream = self.world.server.inside(connect).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (port, token, body) = (self.port, &self.token, question.to_string());
        let length = body.len();
        let request = format!(
            "POST /api/{path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
        }
        (head.split(' ').nth(1).unwrap().parse().unwrap(), reader)
    }

    fn ask(&self, path: &str, question: &Value) -> Value {
        let (status, mut reader) = self.send(path, question);
        let mut body = String::new();
        reader.read_to_string(&mut body).unwrap();
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }
}

/// Checks the answers of the page about the pods `client` and `server`, of which the first may reach the second.
pub(super) fn the_page_is_fed_by_agents(world: &World) {
    let ui = Ui::start(world);
    let map = ui.ask("map", &json!({}));
    assert_eq!(map["live"], true);
    let index = |title: &str| {
        let nodes = map["nodes"].as_array().unwrap();
        nodes.iter().position(|node| node["title"] == title).unwrap()
    };
    let (client, server) = (index("shop/client"), index("shop/server"));

    let to = SocketAddr::new(world.pod("server").ip4().unwrap(), PORT);
    let mut flow = world.pod("client").open_flow(Protocol::Tcp, to, PATIENCE).unwrap();
    assert!(flow.ping(PATIENCE));
    let flows = ui.ask("flows", &json!({ "revision": 1 }));
    let is_pair = |it: &&Value| it[0] == json!(client) && it[1] == json!(server);
    let pair = flows["flows"].as_array().unwrap().iter().find(is_pair);
    assert!(pair.is_some_and(|it| it[2].as_u64() > Some(0)), "{flows}");
    assert!(flows["unanswered"]["n5"].is_string(), "{flows}");

    let rules = ui.ask("rules", &json!({}));
    let allowing = rules["rules"].as_array().unwrap().iter().find(|it| it["name"] == "server");
    assert!(allowing.is_some_and(|rule| rule["flows"].as_u64() > Some(0)), "{rules}");

    let closed = network_policy("server", &json!({ "podSelector": {} })).to_string();
    let change = ui.ask("what-if", &json!({ "yaml": closed, "live": true }));
    let from = flow.local().unwrap().to_string();
    let cut = &change["live"]["cut"];
    assert!(change["cut"].as_u64() > Some(0) && cut.to_string().contains(&from), "{change}");
    assert!(flow.ping(PATIENCE), "nothing is applied");

    let in_force = ui.ask("in-force", &json!({}));
    let nodes = in_force["agents"]["nodes"].as_array().unwrap();
    assert!(nodes.iter().any(|it| it["node"] == "n1" && it["in_sync"] == true), "{in_force}");

    // Kept events of new flows come first; then the stream stays open.
    let words = json!({ "verdict": "allow", "pod": "shop/server", "since": "1h" });
    let (status, events) = ui.send("follow", &json!({ "words": words }));
    assert_eq!(status, 200);
    let seen = events.lines().map_while(Result::ok).find(|line| {
        line.strip_prefix("data: ").is_some_and(|event| {
            let event: Value = serde_json::from_str(event).unwrap();
            event["line"]["verdict"] == "allow" && event["to"] == json!(server)
        })
    });
    assert!(
        seen.is_some_and(|line| line.contains(&format!("\"from\":{client}"))),
        "the sender has its place"
    );
    let (status, _) = ui.send("follow", &json!({ "words": { "direction": "sideways" } }));
    assert_eq!(status, 400, "the words are those of observe");
}
