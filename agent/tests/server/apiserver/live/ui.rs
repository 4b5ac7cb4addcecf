//! The page of `netpold ui` with a cluster: flows, rules, events and reports of the agents.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use netpold_testbed::browser::Browser;
use netpold_testbed::cluster::network_policy;
use netpold_testbed::{KillOnDrop, Kubelet, ProbeProtocol};
use serde_json::{Value, json};

use super::{agent_pod, container, running};
use crate::apiserver::world::{PATIENCE, PORT, World, allow_from, binary, isolated};

/// A server in the namespace from which the API server is reachable.
struct Ui<'w> {
    world: &'w World,
    _process: KillOnDrop,
    /// Address of the page with the token.
    address: String,
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
        let (address, token) = (format!("{origin}/#{token}"), token.to_owned());
        // The line begins with the source.
        let address = address.rsplit(' ').next().unwrap().to_owned();
        Self { world, _process: KillOnDrop(process), address, port, token }
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
    let mut flow = world.pod("client").open_flow(ProbeProtocol::Tcp, to, PATIENCE).unwrap();
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

/// A real agent denies a real packet: the page of a real browser shows it in each view.
#[test]
fn a_denied_packet_is_on_the_page() {
    const TEST: &str = "a_denied_packet_is_on_the_page";
    let Some(mut world) = World::new(TEST) else { return };
    ["server", "stranger"].into_iter().for_each(|name| world.add(name));
    world.policy("server", allow_from("server", "friend"));
    world.start_agent();
    world.wait("isolating the server", |status| isolated(status, "server"));
    let kubelet = Kubelet::start(&world.node).unwrap();
    let socket = world.agent().socket();
    world.create(agent_pod("netpold-a", "n1", running()));
    kubelet.runs("netpold-system/netpold-a/netpold", container(&socket));
    let ui = Ui::start(&world);
    let in_browser = || {
        if let Some(browser) = Browser::start(TEST, false) {
            shows_a_denied_packet(&browser, &ui);
        }
    };
    world.server.inside(in_browser).unwrap();
}

fn shows_a_denied_packet(browser: &Browser, ui: &Ui<'_>) {
    browser.open(&ui.address);
    let root = "document.documentElement.dataset";
    browser.wait(&format!("{root}.ready && {root}.drawn"));
    let click = |selector: &str, text: &str| {
        let script = "const [selector, text] = arguments[0];
            [...document.querySelectorAll(selector)].find((it) => it.textContent === text).click()";
        browser.run(script, &json!([selector, text]));
    };
    // Texts of the cells of the first row with all of the words.
    let row = |place: &str, words: &[&str]| {
        let words = json!(words);
        let row = format!(
            "[...document.querySelectorAll('{place} tbody tr')].find((row) => {words}.every((word) => row.textContent.includes(word)))"
        );
        browser.wait(&row);
        browser.value(&format!("[...{row}.cells].map((cell) => cell.textContent)"))
    };
    click("#tabs button", "Live");
    browser
        .wait("document.querySelector('#live [role=status]').textContent.startsWith('Following')");
    assert!(!ui.world.reaches("stranger", "server"));
    let cells = row("#live", &["shop/server"]);
    let port = format!("TCP {PORT}");
    let expected = ["n1", "denied", "shop/server", "ingress", "shop/stranger", &port];
    assert_eq!(cells.as_array().unwrap()[1..7], expected.map(Value::from));
    assert!(
        cells[7].as_str().unwrap().contains("shop/server"),
        "its policy is the reason: {cells}"
    );

    // No rule names the pair: the event alone draws its edge.
    click("#tabs button", "Map");
    click("#map button", "As a table");
    let cells = row(".table-view", &["shop/stranger", "seen"]);
    assert_eq!(
        cells.as_array().unwrap()[..3],
        ["shop/stranger", "shop/server", "denied"].map(Value::from)
    );
    browser.run("[...document.querySelectorAll('.table-view button.link')].find((it) => it.textContent.includes('seen')).click()", &Value::Null);
    browser.wait("document.querySelector('aside .why')");
    let why = browser.value("document.querySelector('aside .why').textContent");
    assert!(why.as_str().unwrap().contains("isolated by shop/server"), "{why}");
    click("#map button", "As a table");
    browser.wait("document.querySelector('.table-view').hidden");
    let red = "(() => {
        const canvas = document.querySelector('canvas');
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        let red = 0;
        for (let i = 0; i < pixels.length; i += 4) red += pixels[i + 3] > 0 && pixels[i] - pixels[i + 1] > 40;
        return red;
    })()";
    assert!(browser.value(red).as_u64() > Some(20), "the edge is drawn");

    click("#tabs button", "What if");
    let allowed = network_policy("server", &allow_from("server", "stranger")).to_string();
    let script = "const yaml = document.getElementById('yaml'); yaml.value = arguments[0]; yaml.dispatchEvent(new Event('input'))";
    browser.run(script, &json!(allowed));
    browser.wait("document.querySelector('.sum')?.textContent.includes('1 pair opened')");
    assert!(!ui.world.reaches("stranger", "server"), "nothing is applied");

    click("#tabs button", "In force");
    let agent = row("#in-force", &["n1", "enforced", "2 of 2"]);
    assert!(agent[4].as_str().unwrap().parse::<u32>().unwrap() > 0, "its drops: {agent}");
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
}
