//! A browser without a window, driven by chromedriver (`WebDriver`, W3C), in the calling thread's network namespace.
//!
//! Functions return no errors: a step that fails, fails the test.

#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "helpers of tests fail as tests do"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::send;
use crate::skip;

/// Time for a condition on the page; a failure takes this long.
const PATIENCE: Duration = Duration::from_mins(1);
/// Names of the browser's program, in the order of preference.
const PROGRAMS: [&str; 3] = ["chromium", "google-chrome", "chromium-browser"];
/// The browser must contact no host except the page's.
const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,800",
];

/// Starts the driver; returns it with its port. `None`: the driver ended because another process took the port that it
/// had found free.
fn start_driver() -> Option<(Child, u16)> {
    let mut driver = Command::new("chromedriver");
    let mut driver = driver.arg("--port=0").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map(Result::unwrap);
    let port = lines.find_map(|line| {
        let (_, port) = line.split_once("successfully on port ")?;
        Some(port.trim_end_matches('.').parse().unwrap())
    });
    let Some(port) = port else {
        driver.wait().unwrap();
        return None;
    };
    // The driver continues to write, so its output must be drained.
    std::thread::spawn(move || lines.for_each(drop));
    Some((driver, port))
}

/// A session; browser and driver end with this value.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: TempDir,
}

impl Browser {
    /// Starts a browser; without one, skips the test, which CI does not allow.
    #[must_use]
    pub fn start(test: &str, is_dark: bool) -> Option<Self> {
        let runs = |name: &&str| Command::new(name).arg("--version").output().is_ok();
        let (Some(program), true) =
            (PROGRAMS.into_iter().find(|it| runs(it)), runs(&"chromedriver"))
        else {
            skip(test, "no chromium or chromedriver: `cargo xtask setup` installs them");
            return None;
        };
        let (driver, port) = (0..5).find_map(|_| start_driver()).unwrap();
        let profile = TempDir::new().unwrap();
        let mut flags: Vec<String> = FLAGS.map(str::to_owned).to_vec();
        flags.push(format!("--user-data-dir={}", profile.path().display()));
        flags.extend(is_dark.then(|| "--blink-settings=preferredColorScheme=0".to_owned()));
        let mut this = Self { driver, port, session: String::new(), profile };
        let options = json!({ "args": flags, "binary": path_of(program) });
        let logs = json!({ "browser": "ALL", "performance": "ALL" });
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs,
        } } });
        let session = this.call("POST", "/session", &wanted);
        session["sessionId"].as_str().unwrap().clone_into(&mut this.session);
        Some(this)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let text = if method == "GET" { String::new() } else { body.to_string() };
        let (port, length) = (self.port, text.len());
        let path = if self.session.is_empty() {
            path.to_owned()
        } else {
            format!("/session/{}{path}", self.session)
        };
        let reply = send(
            port,
            &format!(
                "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\nConnection: close\r\n\r\n{text}"
            ),
        );
        let value = reply.json()["value"].clone();
        assert_eq!(reply.status, 200, "{path}: {value}");
        value
    }

    /// Opens a page.
    pub fn open(&self, address: &str) {
        self.call("POST", "/url", &json!({ "url": address }));
    }

    /// Returns the value of an expression of the page.
    #[must_use]
    pub fn value(&self, expression: &str) -> Value {
        let script = format!("return {expression}");
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs a script with an argument.
    #[expect(clippy::must_use_candidate, reason = "most scripts run for their effect")]
    pub fn run(&self, script: &str, argument: &Value) -> Value {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": [argument] }))
    }

    /// Waits until an expression of the page is true.
    pub fn wait(&self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.value(&format!("Boolean({expression})")) != true {
            assert!(
                Instant::now() < deadline,
                "{expression}: {}",
                self.value("document.body.innerText")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses keys on the focused element, as the user does.
    pub fn press(&self, keys: &[&str]) {
        let actions: Vec<Value> = keys
            .iter()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })))
            .collect();
        let source = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.call("POST", "/actions", &json!({ "actions": [source] }));
    }

    /// Sets the size of the window.
    pub fn resize(&self, width: u32, height: u32) {
        self.call("POST", "/window/rect", &json!({ "width": width, "height": height }));
    }

    /// Returns the picture of the page, as PNG in base64.
    #[must_use]
    pub fn picture(&self) -> String {
        self.call("GET", "/screenshot", &Value::Null).as_str().unwrap().to_owned()
    }

    /// Returns the time for which the threads of the session's pages ran, and for which they waited for a processor.
    #[must_use]
    pub fn processor_times(&self) -> [Duration; 2] {
        let profile = self.profile.path().display().to_string();
        let mut times = [Duration::ZERO; 2];
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let read = |name: &str| std::fs::read_to_string(process.path().join(name));
            let (Ok(command), Ok(scheduled)) = (read("cmdline"), read("schedstat")) else {
                continue;
            };
            if !command.contains("--type=renderer") || !command.contains(&profile) {
                continue;
            }
            for (time, text) in times.iter_mut().zip(scheduled.split_whitespace()) {
                *time += Duration::from_nanos(text.parse().unwrap_or_default());
            }
        }
        times
    }

    /// Returns the messages of the browser's console: violations of the content security policy and errors.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let entries = self.call("POST", "/se/log", &json!({ "type": "browser" }));
        let entries = entries.as_array().unwrap().iter();
        entries.map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the addresses of all requests that pages of this session sent.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        let entries = self.call("POST", "/se/log", &json!({ "type": "performance" }));
        let mut requests = Vec::new();
        for entry in entries.as_array().unwrap() {
            let message: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
            let event = &message["message"];
            if event["method"] == "Network.requestWillBeSent" {
                requests.push(event["params"]["request"]["url"].as_str().unwrap().to_owned());
            }
        }
        requests
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The end of the session ends the browser, also after a failure; the driver's own end would not.
        if !self.session.is_empty()
            && let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port))
        {
            let (session, port) = (&self.session, self.port);
            let request = format!(
                "DELETE /session/{session} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.set_read_timeout(Some(PATIENCE));
            let _ = stream.write_all(request.as_bytes());
            let _ = stream.read(&mut [0; 64]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Returns the path of a program: the driver takes no name.
fn path_of(program: &str) -> String {
    let path = std::env::var("PATH").unwrap();
    let mut folders = std::env::split_paths(&path).map(|folder| folder.join(program));
    folders.find(|file| file.exists()).unwrap().display().to_string()
}
