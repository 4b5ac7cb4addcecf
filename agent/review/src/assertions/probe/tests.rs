//! Tests of the scripts with real tools, shells and sockets.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

/// Returns the path of a program in a system directory, where no wrapper shadows it.
fn program(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin"].iter().map(|it| Path::new(it).join(name)).find(|path| path.exists())
}

/// Creates a `PATH` directory with only these programs, as in an image.
fn image(programs: &[&str]) -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir().unwrap();
    for name in programs {
        symlink(program(name)?, directory.path().join(name)).unwrap();
    }
    Some(directory)
}

/// Returns the result of the shell script in such an image.
fn says(image: &Path, to: SocketAddr) -> Result<ConnectResult, String> {
    let (address, port) = (to.ip().to_string(), to.port().to_string());
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", SHELL, "netpold", &address, &port, "1", PYTHON]);
    // The proxy variable must have no effect.
    let shell = shell.env_clear().env("PATH", image).env("http_proxy", "http://192.0.2.1:1");
    let output = shell.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    parse_result(&String::from_utf8(output.stdout).unwrap())
}

/// Returns a listener with a full queue: the kernel drops packets that open a connection.
fn full() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: the file descriptor is a listening socket; the call changes the length of its queue.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let to = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&to, std::time::Duration::from_millis(200)).ok();
    let waiting = std::iter::from_fn(connect).collect();
    (listener, waiting)
}

#[test]
fn each_tool_tells_connected_from_refused_and_timed_out() {
    let listeners = ["127.0.0.1:0", "[::1]:0"].map(|at| TcpListener::bind(at).unwrap());
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (full, _waiting) = full();
    let mut images = 0;
    for tools in [&["python3"][..], &["bash", "timeout"], &["nc"], &["curl"], &["wget"]] {
        let Some(image) = image(tools) else {
            println!("SKIPPED: not all of {tools:?} is installed");
            continue;
        };
        images += 1;
        for listener in &listeners {
            let to = listener.local_addr().unwrap();
            assert_eq!(says(image.path(), to), Ok(ConnectResult::Connected), "{tools:?} {to}");
        }
        assert_eq!(says(image.path(), nobody), Ok(ConnectResult::Refused), "{tools:?}");
        let to = full.local_addr().unwrap();
        assert_eq!(says(image.path(), to), Ok(ConnectResult::TimedOut), "{tools:?}");
    }
    assert!(images > 0, "no tool at all");
}

#[test]
fn an_image_without_tools_says_so() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let image = image(&[]).unwrap();
    assert_eq!(says(image.path(), nobody), Err(NO_TOOL.to_owned()));
}

#[test]
fn what_a_container_says_otherwise_is_no_connection() {
    assert_eq!(parse_result("motd\nnetpold: connected\n"), Ok(ConnectResult::Connected));
    assert!(parse_result("connected").is_err() && parse_result("").is_err());
    assert_eq!(
        parse_result("netpold: failed status 1: no\n"),
        Err("failed status 1: no".to_owned())
    );
}
