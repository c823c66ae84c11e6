//! The child of a `fork` of a process with objects that its runtime watches.

use std::time::Duration;

use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline};
use strait_tokio::{AsyncChannel, AsyncWaitSet, Listener, Reactor};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

/// The number of seconds after which a hanging child is killed.
const HANGS: u32 = 50;

/// Shows that a child that drops a listener, a wait set and a reactor of its parent does not keep the runtime of the
/// parent from watching them.
#[tokio::test]
async fn a_child_that_drops_objects_leaves_them_to_its_parent() {
    let name = format!("tokio-forks-{}", std::process::id());
    let listener = Listener::bind(&name).unwrap();
    let set = AsyncWaitSet::new(WaitSet::new().unwrap()).unwrap();
    let (theirs, ours) = Channel::pair().unwrap();
    set.get_ref().add(&ours, 7, Interest::Readable, Mode::Level).unwrap();
    let reactor = Reactor::new().unwrap();
    let (far, near) = Channel::pair().unwrap();
    let near = AsyncChannel::new(near, &reactor).unwrap();
    // SAFETY: the child only drops the objects and ends.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: both are plain system calls; `_exit` does not return.
        unsafe { libc::alarm(HANGS) };
        drop((listener, set, near, reactor));
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child ended with {status:#x}");

    let client = std::thread::spawn(move || strait::connect(&name, DEADLINE).map(drop));
    timeout(DEADLINE, listener.accept_channel()).await.expect("the listener is watched").unwrap();
    client.join().unwrap().unwrap();
    theirs.send(b"to the set").unwrap();
    timeout(DEADLINE, set.wait(&mut Vec::new())).await.expect("the set is watched").unwrap();
    assert_eq!(ours.try_recv().unwrap().bytes(), b"to the set");
    far.send_by(b"to the reactor", Deadline::NOW).unwrap();
    assert_eq!(timeout(DEADLINE, near.recv()).await.expect("the reactor runs").unwrap().bytes(), b"to the reactor");
}
