//! A node of `cargo xtask cluster`: the work of its first process, and its isolation from the machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use netpold_testbed::require_root;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// A node that ends when dropped, also when the test fails.
struct Node(Pid);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

fn wait(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[test]
fn a_node_keeps_its_programs_running_and_leaves_the_machine_alone() {
    require_root!();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let panic = fs::read_to_string("/proc/sys/kernel/panic").unwrap();
    // Writes of a node's programs, and then a process that stays.
    let script = format!(
        "set -e; cd {}; mkdir /sys/fs/bpf/netpold-node-test; echo here > /etc/netpold-node-test; \
         echo here > /var/lib/netpold-node-test; echo 77 > /proc/sys/kernel/panic; \
         if (echo 77 > /proc/sys/kernel/printk_delay) 2> refused; then echo a setting is changed >&2; exit 1; fi; \
         ls /sys/class/net > interfaces; cat /proc/sys/kernel/hostname > hostname; exec sleep 1000",
        folder.path().display()
    );
    let ends = format!("echo again >> {}", file("ends").display());
    let program = |script: &str| json!({ "command": ["sh", "-c", script], "path": "/usr/bin:/bin", "log": file("output") });
    let plan = json!({ "name": "test-node", "programs": [program(&script), program(&ends)] });
    fs::write(file("plan.json"), plan.to_string()).unwrap();
    let log = fs::File::create(file("init-log")).unwrap();
    let mut child = Command::new("unshare")
        .args(["--fork", "--kill-child", "--pid", "--net", "--mount", "--uts", "--ipc"])
        .args(["--propagation", "private", env!("CARGO_BIN_EXE_xtask"), "cluster-node"])
        .arg(folder.path())
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    wait("the mounts", || {
        let log = fs::read_to_string(file("init-log")).unwrap();
        assert_eq!(log, "", "it said something");
        file("mounted").exists()
    });
    let process: Value =
        serde_json::from_str(&fs::read_to_string(file("init.json")).unwrap()).unwrap();
    let node = Node(Pid::from_raw(i32::try_from(process["pid"].as_i64().unwrap()).unwrap()));
    assert!(!file("ends").exists(), "it waits until it may go on");
    fs::write(file("go"), "").unwrap();
    let steady = |log: &str| {
        log.lines()
            .all(|line| line.starts_with("=== ended (Exited(Pid(") && line.contains("), 0))"))
    };
    wait("the program that stays", || {
        let log = fs::read_to_string(file("output")).unwrap_or_default();
        assert!(steady(&log), "{log}");
        lines(&file("hostname")) == 1
    });
    wait("the program that is started again", || lines(&file("ends")) >= 2);

    assert_eq!(fs::read_to_string(file("hostname")).unwrap(), "test-node\n");
    assert_eq!(fs::read_to_string(file("interfaces")).unwrap(), "lo\n", "no other interface");
    assert_ne!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), "test-node\n");
    assert_eq!(fs::read_to_string("/proc/sys/kernel/panic").unwrap(), panic);
    for path in ["/etc", "/var/lib", "/sys/fs/bpf"] {
        assert!(!Path::new(path).join("netpold-node-test").exists(), "{path} is the machine's");
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&*folder.path().to_string_lossy()), "a mount reached the machine");

    // All processes of the node end with its first.
    drop(node);
    child.wait().unwrap();
    let runs = lines(&file("ends"));
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(lines(&file("ends")), runs, "a program outlived the node");
}
