//! Descriptors whose last close blocks, for the tests of this crate, `strait-fidl`, `strait-zx` and `strait-tokio`.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long the last close of such a descriptor blocks.
const LINGER: Duration = Duration::from_secs(60);

/// Returns a connection whose last close blocks for a minute, or until the other side of the connection, which is
/// returned too, is dropped.
pub(crate) fn slow_to_close() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
    socket.set_nonblocking(false).unwrap();
    (socket.into(), other)
}

/// Runs `work`, which drops a descriptor that is slow to close. Checks that `work` does not wait for the close.
pub(crate) fn soon<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = work();
    assert!(begin.elapsed() < LINGER / 4, "{what} took {:?}", begin.elapsed());
    result
}
