//! Programs of two builds that have no version of the protocol in common: this test with `strait`, and the program
//! `speaks-next` with the copy of the library in this crate. Both sides of each attempt learn both versions, and the
//! programs of each build go on among themselves.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait::meet::{Connector, Refusal};
use strait::{Channel, Error, Listener};

const LONG: Duration = Duration::from_secs(60);

/// The error of this build; the program prints [`THEIRS`].
const OURS: Error = Error::Refused(Refusal::Version { ours: (2, 2), theirs: (3, 3) });
const THEIRS: &str = "Refused(Version { ours: (3, 3), theirs: (2, 2) })";

/// A running program of the other build, which is killed if the test fails.
struct Other {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Other {
    fn start(arguments: &[&str], directory: Option<&Path>, socket: Option<OwnedFd>) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_speaks-next"));
        program.args(arguments).args(directory).stdin(socket.map_or_else(Stdio::null, Stdio::from));
        let mut child = program.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("a line of the other program").unwrap()
    }

    fn ends(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory for the names of a single test.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("strait-next-{test}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn each_copy_of_this_process_works_for_itself() {
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = strait_next::Channel::pair().unwrap();
    a.send(b"ours").unwrap();
    c.send(b"theirs").unwrap();
    assert_eq!((b.recv().unwrap().bytes(), d.recv().unwrap().bytes()), (&b"ours"[..], &b"theirs"[..]));
}

#[test]
fn a_socket_between_two_builds_tells_both_of_both_versions() {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let mut other = Other::start(&["over"], None, Some(theirs));
    let channel = Channel::over(ours).unwrap();
    assert_eq!(channel.recv_by(LONG).unwrap_err(), OURS);
    assert_eq!(other.line(), THEIRS);
    other.ends();
    each_copy_of_this_process_works_for_itself();
}

#[test]
fn a_listener_refuses_a_client_of_another_build_and_goes_on() {
    let directory = Directory::new("listener");
    let (told, refusals) = mpsc::channel();
    let builder = Listener::builder().directory(&directory.0);
    let listener = builder.on_refused(move |refused| told.send(refused.why).unwrap()).bind("service").unwrap();
    let mut other = Other::start(&["connect"], Some(&directory.0), None);
    let why = loop {
        if let Ok(why) = refusals.try_recv() {
            break why;
        }
        // The listener takes packets only while it accepts.
        assert_eq!(listener.accept(Duration::from_millis(10)).unwrap_err().error, Error::TimedOut);
    };
    assert_eq!(why, OURS);
    assert_eq!(other.line(), THEIRS);
    other.ends();

    let path = directory.0.clone();
    let client = std::thread::spawn(move || Connector::new().directory(path).connect("service", LONG).unwrap());
    let channel = listener.accept(LONG).unwrap();
    client.join().unwrap().send(b"of this build").unwrap();
    assert_eq!(channel.recv_by(LONG).unwrap().bytes(), b"of this build");
}

#[test]
fn a_client_is_refused_by_a_listener_of_another_build_which_goes_on() {
    let directory = Directory::new("client");
    let mut listener = Other::start(&["listen"], Some(&directory.0), None);
    assert_eq!(listener.line(), "listening");
    let failed = Connector::new().directory(&directory.0).connect("service", LONG).unwrap_err();
    assert_eq!(Error::from(failed), OURS);
    assert_eq!(listener.line(), THEIRS);

    let mut client = Other::start(&["connect"], Some(&directory.0), None);
    assert_eq!(client.line(), "of the next build");
    client.ends();
    listener.ends();
}
