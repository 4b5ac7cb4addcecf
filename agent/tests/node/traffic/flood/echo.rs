//! Server side of thousands of connections, as a process: echoes every byte.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Environment variable with the process's address; without it the "test" does nothing.
pub(crate) const ADDRESS: &str = "NETPOLD_TEST_ECHO";

#[test]
#[ignore = "a process that other tests start"]
fn serve() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    end_with_the_test();
    let listener = TcpListener::bind(address).unwrap();
    // SAFETY: a system call without pointers.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    // SAFETY: the descriptor is new and has no other owner.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    watch(&epoll, listener.as_raw_fd());
    let mut streams: HashMap<RawFd, TcpStream> = HashMap::new();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
    loop {
        // SAFETY: the buffer has the given length.
        let ready = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), 64, -1) };
        for event in events.iter().take(ready.max(0) as usize) {
            let fd = event.u64 as RawFd;
            if fd == listener.as_raw_fd() {
                let (stream, _) = listener.accept().unwrap();
                stream.set_nodelay(true).unwrap();
                watch(&epoll, stream.as_raw_fd());
                streams.insert(stream.as_raw_fd(), stream);
            } else if streams.get(&fd).is_none_or(|stream| !answered(stream)) {
                streams.remove(&fd);
            }
        }
    }
}

fn answered(mut stream: &TcpStream) -> bool {
    let mut byte = [0];
    stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok()
}

fn watch(epoll: &OwnedFd, fd: RawFd) {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
    // SAFETY: the event is valid for the call.
    let added =
        unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    assert_eq!(added, 0);
}

/// The test holds the other end of standard input, which closes when the test ends.
fn end_with_the_test() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
}
