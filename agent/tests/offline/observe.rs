//! `netpold observe` and `netpold top` compared with their page, and on a pseudo-terminal.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use netpold_api::events::{LostEvents, TrafficVerdict};
use netpold_api::filter::ObserveRequest;
use netpold_api::observe::{
    Attribution, OBSERVE_REQUEST, ObserveLine, ObservedEvent, PolicyName, RuleName,
};
use netpold_cli::top::{Choice, EventCounts, Terminal, draw};
use netpold_core::cluster::AddressOwner;
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use netpold_engine::admin::{self, Admin};
use netpold_engine::lines::{LineSender, line};
use netpold_testbed::cluster::eventually;
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::{Pid, setsid};
use ratatui::backend::TestBackend;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(20);
const SIZE: (u16, u16) = (80, 24);

fn side_of(length: u16) -> NonZero<u16> {
    NonZero::new(length).unwrap()
}

/// Returns an event at the given second after 10:00, about a pod, its verdict and its peer.
fn event(second: u32, pod: &str, verdict: TrafficVerdict, peer: AddressOwner) -> ObservedEvent {
    let remote = match &peer {
        AddressOwner::Outside => [203, 0, 113, 7].into(),
        AddressOwner::Pod(_) | AddressOwner::Node { .. } | AddressOwner::Service(_) => {
            [10, 1, 1, 9].into()
        }
    };
    ObservedEvent {
        time: format!("2026-11-23T10:00:{second:02}.250Z"),
        node: "node-1".into(),
        verdict,
        reason: match verdict {
            TrafficVerdict::Deny => "policy".into(),
            TrafficVerdict::Audit => "audit".into(),
            TrafficVerdict::Allow => "allowed".into(),
        },
        direction: Direction::Ingress,
        pod: Some(Key::new("shop", pod)),
        workload: None,
        interface: None,
        local: Some([10, 1, 1, 5].into()),
        local_port: 5432,
        peer: Some(peer),
        peer_workload: None,
        remote: Some(remote),
        remote_port: 40_000 + u16::try_from(second).unwrap(),
        protocol: Some(IpProtocol::TCP),
        port: Some(5432),
        attribution: Attribution::default(),
    }
}

fn rule(matches: &str) -> RuleName {
    let policy = PolicyName::new(&Key::new("shop", "db"));
    RuleName { policy, index: 0, matches: matches.into() }
}

/// Returns a stream as an agent might send it.
fn stream() -> Vec<ObserveLine> {
    let pod = |name: &str| AddressOwner::Pod(Key::new("shop", name));
    let allowed = "TCP 5432 from pods app=web of namespace shop";
    let mut events = Vec::new();
    for second in 0..12 {
        let mut denied = event(second, "db-0", TrafficVerdict::Deny, pod("report-7x2"));
        denied.attribution = Attribution {
            policies: vec![rule("").policy],
            nearest: Some(rule(allowed)),
            lacks: vec!["pod has app=report, expected app=web".into()],
            ..Attribution::default()
        };
        events.push(denied);
    }
    let mut opened = event(12, "db-0", TrafficVerdict::Allow, pod("web-5c9"));
    opened.attribution = Attribution {
        policies: vec![rule("").policy],
        rule: Some(rule(allowed)),
        ..Attribution::default()
    };
    events.push(opened);
    let mut audited = event(13, "web-5c9", TrafficVerdict::Audit, AddressOwner::Outside);
    (audited.direction, audited.local_port) = (Direction::Egress, 51_000);
    (audited.remote_port, audited.port) = (443, Some(443));
    audited.attribution.policies = vec![PolicyName::new(&Key::new("shop", "no-egress"))];
    events.push(audited);
    let mut spoofed = event(14, "job-1", TrafficVerdict::Deny, AddressOwner::Outside);
    (spoofed.direction, spoofed.reason) = (Direction::Egress, "spoofed_source".into());
    (spoofed.remote_port, spoofed.port) = (53, Some(53));
    (spoofed.protocol, spoofed.local_port) = (Some(IpProtocol::UDP), 40_001);
    events.push(spoofed);
    let lost = ObserveLine::Lost {
        node: "node-1".into(),
        lost: LostEvents { kernel: 4321, ..LostEvents::default() },
    };
    events.into_iter().map(|event| ObserveLine::Event(Box::new(event))).chain([lost]).collect()
}

/// Socket that answers each client's request with the stream, then closes or keeps the connection.
struct Agent {
    directory: TempDir,
    requests: Arc<Mutex<Vec<ObserveRequest>>>,
    _admin: Admin,
    _runtime: Runtime,
}

impl Agent {
    fn new(lines: Vec<ObserveLine>, follows: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let requests = Arc::<Mutex<Vec<ObserveRequest>>>::default();
        let heard = Arc::clone(&requests);
        let texts: Vec<Vec<u8>> = lines.iter().map(|it| line(it).unwrap()).collect();
        let stream = admin::stream(move |request, lines: LineSender| {
            heard.lock().unwrap().push(request);
            let texts = texts.concat();
            std::future::ready(Ok(async move {
                lines.send(texts).await?;
                if follows {
                    lines.closed().await;
                }
                Ok(())
            }))
        });
        let runtime = Runtime::new().unwrap();
        let _inside = runtime.enter();
        let router = Router::new().route(OBSERVE_REQUEST, stream);
        let admin = Admin::serve(&directory.path().join("socket"), router).unwrap();
        Self { directory, requests, _admin: admin, _runtime: runtime }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }
}

fn page() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::read_to_string(root.join("deploy/observe.md")).unwrap()
}

/// Returns the blocks of the page between fences.
fn blocks(page: &str) -> Vec<&str> {
    page.split("\n```").skip(1).step_by(2).filter_map(|it| Some(it.split_once('\n')?.1)).collect()
}

fn observe(agent: &Agent, arguments: &[&str]) -> String {
    let mut netpold = Command::new(env!("CARGO_BIN_EXE_netpold"));
    let netpold = netpold.env_clear().arg("observe").args(arguments).arg("--socket");
    let output = netpold.arg(agent.socket()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that the binary's output equals the sessions on the page.
#[test]
fn the_sessions_on_the_page_are_real() {
    let agent = Agent::new(stream().split_off(11), false);
    let page = page();
    let sessions = blocks(&page).into_iter().filter_map(|it| it.strip_prefix("$ netpold observe"));
    let mut shown = 0;
    for session in sessions {
        let (arguments, expected) = session.split_once('\n').unwrap();
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        assert_eq!(observe(&agent, &arguments).trim_end(), expected.trim_end(), "{arguments:?}");
        shown += 1;
    }
    assert_eq!(shown, 1, "sessions on the page");
    let lines = observe(&agent, &["-o", "json"]);
    let lines = lines.lines().map(|line| serde_json::from_str::<ObserveLine>(line).unwrap());
    assert_eq!(lines.collect::<Vec<_>>(), stream().split_off(11));
}

/// Checks that the screenshot on the page equals the screen for this stream.
#[test]
fn the_screen_on_the_page_is_real() {
    let mut board = EventCounts::default();
    stream().iter().for_each(|line| board.count_line(line));
    let choice = Choice { source: "node-1".into(), ..Choice::default() };
    let mut terminal = ratatui::Terminal::new(TestBackend::new(SIZE.0, SIZE.1)).unwrap();
    let now = "2026-11-23T10:00:15Z".parse::<k8s_openapi::jiff::Timestamp>().unwrap();
    terminal.draw(|frame| draw(frame, &board, &choice, now.as_millisecond())).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = buffer.content().chunks(SIZE.0.into()).map(|cells| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned()
    });
    let screen = lines.collect::<Vec<_>>().join("\n");
    let page = page();
    let shown = blocks(&page).into_iter().find(|block| block.starts_with("netpold top"));
    assert_eq!(shown.map(str::trim_end), Some(screen.trim_end()), "\n{screen}");
}

/// Process on a terminal of 80 by 24.
struct OnTerminal {
    child: Child,
    keys: File,
    screen: Arc<Mutex<vt100::Parser>>,
    slave: OwnedFd,
    before: LocalFlags,
}

impl OnTerminal {
    fn start(command: &mut Command) -> Self {
        let (ws_col, ws_row) = SIZE;
        let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
        let side = || Stdio::from(slave.try_clone().unwrap());
        command.env_clear().env("TERM", "xterm-256color");
        command.stdin(side()).stdout(side()).stderr(side());
        // SAFETY: setsid is safe between fork and exec. In a session without a terminal, only this terminal sets the
        // size.
        unsafe { command.pre_exec(|| setsid().map(drop).map_err(Into::into)) };
        let before = tcgetattr(&slave).unwrap().local_flags;
        let child = command.spawn().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(side_of(ws_row), side_of(ws_col), 0)));
        let (keys, shown) = (File::from(master), Arc::clone(&screen));
        let mut output = keys.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..length]);
            }
        });
        Self { child, keys, screen, slave, before }
    }

    fn top(agent: &Agent) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netpold"));
        Self::start(command.arg("top").arg("--socket").arg(agent.socket()))
    }

    fn contents(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until all parts are on the screen.
    #[track_caller]
    fn shows(&self, parts: &[&str]) {
        let all = || parts.iter().all(|part| self.contents().contains(part));
        eventually(PATIENCE, all, || format!("{parts:?} are not all in\n{}", self.contents()));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    fn is_raw(&self) -> bool {
        let now = tcgetattr(&self.slave).unwrap().local_flags;
        !now.contains(LocalFlags::ICANON) && !now.contains(LocalFlags::ECHO)
    }

    /// Asserts that the process ends, and that the terminal has its old settings.
    #[track_caller]
    fn ends(mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.contents());
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(tcgetattr(&self.slave).unwrap().local_flags, self.before);
        let restored = || {
            let screen = self.screen.lock().unwrap();
            !screen.screen().alternate_screen() && !screen.screen().hide_cursor()
        };
        eventually(PATIENCE, restored, || format!("the screen is not back:\n{}", self.contents()));
        status
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn top_on_a_terminal_of_80_by_24() {
    let agent = Agent::new(stream(), true);
    let mut top = OnTerminal::top(&agent);
    top.shows(&["netpold top", "13 denied", "shop/db-0", "<- shop/report-7x2", "TCP 5432", "4321"]);
    top.shows(&["COUNTv", "nearest is rule 1 of", "q quit"]);
    let lines: Vec<String> = top.contents().lines().map(str::to_owned).collect();
    assert!(lines.len() <= 24 && lines.iter().all(|line| line.chars().count() <= 80));
    let row = |contents: &str, name: &str| contents.lines().position(|line| line.contains(name));
    let contents = top.contents();
    assert!(row(&contents, "shop/db-0") < row(&contents, "shop/job-1"), "{contents}");
    assert!(top.is_raw());
    top.press("r");
    top.shows(&["COUNT^"]);
    let contents = top.contents();
    assert!(row(&contents, "shop/db-0") > row(&contents, "shop/job-1"), "{contents}");
    top.press("s");
    top.shows(&["/10S^"]);
    top.press("2");
    top.shows(&["<- shop/web-5c9", "-> 203.0.113.7", "TCP 443", "audit"]);
    top.press("\t");
    top.shows(&["DENIED", "AUDITED", "shop/job-1"]);
    top.press("4");
    top.shows(&["POLICY", "shop/no-egress"]);
    // The selected row is shown in full.
    top.press("1\u{1b}[B");
    top.shows(&["REASON", "shop/db-0 <- shop/report-7x2 TCP 5432 policy: shop/db; nearest"]);
    top.press("p");
    top.shows(&["PAUSED"]);
    top.press("c");
    top.shows(&["no events of this kind yet", "0 denied"]);
    top.press("q");
    assert!(top.ends().success());
    let requests = agent.requests.lock().unwrap().clone();
    assert!(
        requests[0].follow && requests[0].filter.verdicts.contains(&TrafficVerdict::Allow),
        "{requests:?}"
    );
}

#[test]
fn the_terminal_is_as_it_was_whatever_ends_top() {
    let agent = Agent::new(stream(), true);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let top = OnTerminal::top(&agent);
        top.shows(&["13 denied"]);
        assert!(top.is_raw());
        top.signal(signal);
        assert!(top.ends().success(), "{signal}");
    }
    // In raw mode Ctrl-C is an ordinary key.
    let mut top = OnTerminal::top(&agent);
    top.shows(&["13 denied"]);
    top.press("\u{3}");
    assert!(top.ends().success());
    // The end of the agent is shown, and `top` keeps running.
    let ends = Agent::new(stream(), false);
    let mut top = OnTerminal::top(&ends);
    top.shows(&["the agent closed the stream"]);
    top.press("q");
    assert!(top.ends().success());
    // No agent listens on the socket.
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpold"));
    let top = OnTerminal::start(command.args(["top", "--socket", "/nonexistent/socket"]));
    top.shows(&["no agent is listening on /nonexistent/socket"]);
    assert!(!top.ends().success());
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new(this);
    let arguments = ["--exact", "observe::panics_on_a_terminal", "--ignored", "--nocapture"];
    let top = OnTerminal::start(command.args(arguments));
    top.shows(&["panicked at", "FAILED"]);
    assert!(!top.ends().success());
}

#[test]
#[ignore = "a process that another test runs on a terminal of its own"]
fn panics_on_a_terminal() {
    let _terminal = Terminal::enter().unwrap();
    assert!(std::env::args().len() == 0, "a panic on the terminal");
}

#[test]
fn without_a_terminal_top_says_what_to_use() {
    let agent = Agent::new(Vec::new(), true);
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpold"));
    let output = command.env_clear().arg("top").arg("--socket").arg(agent.socket()).output();
    let error = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(error.contains("must be a terminal; `netpold observe` needs none"), "{error}");
}
