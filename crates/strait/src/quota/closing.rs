//! Closes the descriptors that a peer sent and the program did not take, and descriptors of the library whose close
//! takes long.
//!
//! A descriptor that is [known](close::is_harmless) to close at once is closed in place. The [reaper] closes
//! every other descriptor, which stays charged to the peer until the close. A descriptor that the program has taken out
//! of a message is closed by the program.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{Ledger, Payer};
use crate::deferred;
use crate::error::Error;
use crate::os::fork::{Born, PerProcess};
use crate::os::process::background;
use crate::os::reaper::{self, PacketRemoval};
use crate::os::{close, socket};
use crate::sync::unpoisoned;

/// Closes `fd`, a descriptor from the peer of `payer`, without blocking. If closing the descriptor might block, a
/// thread of the library closes the descriptor; until then, the peer is charged for it.
pub(crate) fn close(fd: OwnedFd, payer: &Payer) {
    if !close::is_harmless(fd.as_fd()) {
        close_elsewhere(fd, payer);
    }
}

/// Closes `fd`, a descriptor from a process without an account, without blocking. No peer is charged for the
/// descriptor.
pub(crate) fn close_nobodys(fd: OwnedFd) {
    close(fd, &Payer::default());
}

/// Makes a thread of the library close `fd`, even if closing cannot block. The peer of `payer` is charged for the
/// descriptor until the close. While the calling thread [holds descriptors back](hold_back), `fd` is only stored, and
/// goes to the closing thread later, when the calling thread stops holding back.
pub(crate) fn close_elsewhere(fd: OwnedFd, payer: &Payer) {
    close_later(fd, payer.number(), Box::new(payer.charge_pending_close()));
}

/// Makes a thread of the library close `fd`, at the charge of the account with the number `account`, and then drop
/// `charge`; otherwise as [`close_elsewhere`].
fn close_later(fd: OwnedFd, account: usize, charge: Box<dyn Send>) {
    let mut closing = Some(Closing { fd, account, charge });
    let _ = HELD_BACK.try_with(|held| {
        if held.depth.get() > 0 {
            held.descriptors.borrow_mut().extend(closing.take());
        }
    });
    closing.into_iter().for_each(Closing::pass_on);
}

/// The account number under which the reaper closes the library's own descriptors. No peer has this number, so no
/// peer's descriptor delays the thread for the library's own.
const OWN: usize = usize::MAX - 1;

/// The most descriptors of the library that wait for a thread to close them. The kernel limits inotify instances, for
/// example, for all processes of a user together.
const MOST_OWN: usize = 8;

/// The number of descriptors of the library that wait for a thread to close them.
static OWN_WAITING: PerProcess<AtomicUsize> = PerProcess::new(|| AtomicUsize::new(0));

/// The count of one descriptor of the library that waits to be closed. Dropping the value ends the count.
struct OwnClose;

impl Drop for OwnClose {
    fn drop(&mut self) {
        OWN_WAITING.get().fetch_sub(1, Ordering::Relaxed);
    }
}

/// Closes `fd`, a descriptor of the library whose close takes long: a thread of the library closes the descriptor. If
/// [`MOST_OWN`] descriptors wait for the thread already, the call closes `fd` itself.
pub(crate) fn close_own(fd: OwnedFd) {
    let waiting = OWN_WAITING.get().fetch_add(1, Ordering::Relaxed);
    let count = OwnClose;
    if waiting < MOST_OWN && !reaper::close(fd, OWN, Box::new(count)) {
        deferred::try_later("closing", start_again);
    }
}

/// Makes a thread of the library run `job`, which another process can make block, after the descriptors and other jobs
/// of the account with the number `account`. Returns `false` if a thread was needed and could not be started: the job
/// runs when a later call of the library can start a thread.
pub(crate) fn run_elsewhere(account: usize, job: reaper::Job) -> bool {
    let has_thread = reaper::run(account, job);
    if !has_thread {
        deferred::try_later("closing", start_again);
    }
    has_thread
}

/// A descriptor that a thread of the library is to close, with the number of the charged account and with the charge.
struct Closing {
    fd: OwnedFd,
    account: usize,
    charge: Box<dyn Send>,
}

impl Closing {
    fn pass_on(self) {
        if !reaper::close(self.fd, self.account, self.charge) {
            deferred::try_later("closing", start_again);
        }
    }
}

/// The descriptors that one thread holds back: passed to [`close_elsewhere`], and not handed to the reaper yet.
struct HeldBack {
    /// The number of [`HoldingBack`] guards of this thread.
    depth: Cell<usize>,
    descriptors: RefCell<Vec<Closing>>,
}

thread_local! {
    static HELD_BACK: HeldBack = const { HeldBack { depth: Cell::new(0), descriptors: RefCell::new(Vec::new()) } };
}

/// A guard of [`hold_back`]. Until the guard is dropped, its thread holds back the descriptors to be closed.
pub(crate) struct HoldingBack(());

/// Makes the calling thread hold back the descriptors passed to [`close_elsewhere`], until the returned guard is
/// dropped; nested guards count as one.
///
/// A thread holds descriptors back while it takes a packet. The packet in the socket refers to the same open files as
/// the descriptors that the kernel has opened for the process. If another thread closed such a descriptor before the
/// packet is removed, the removal would be the last close of the file. The removal would then block the calling thread
/// as long as the sender likes.
pub(crate) fn hold_back() -> HoldingBack {
    let _ = HELD_BACK.try_with(|held| held.depth.set(held.depth.get() + 1));
    HoldingBack(())
}

impl Drop for HoldingBack {
    fn drop(&mut self) {
        let end = |held: &HeldBack| {
            held.depth.set(held.depth.get() - 1);
            if held.depth.get() == 0 { held.descriptors.take() } else { Vec::new() }
        };
        HELD_BACK.try_with(end).into_iter().flatten().for_each(Closing::pass_on);
    }
}

fn start_again() {
    if !reaper::start_again() {
        deferred::try_later("closing", start_again);
    }
}

/// The number of sockets of one listener that wait for a thread to close them, with a limit. The sockets are those of
/// processes that the listener did not accept, so no account is charged for them.
pub(crate) struct WaitingSockets {
    state: Mutex<Waiting>,
    most: usize,
    resume: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Waiting {
    sockets: usize,
    is_paused: bool,
}

impl WaitingSockets {
    /// Returns a count of no sockets with the limit `most`. After [`pause_if_full`](Self::pause_if_full) has paused the
    /// listener, a thread that has closed a socket calls `resume` once the number of sockets is below the limit.
    pub(crate) fn new(most: usize, resume: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), most, resume: Box::new(resume) })
    }

    /// If the number of sockets has reached the limit, calls `pause` and returns `true`. Otherwise returns `false`. A
    /// call of `resume` from before may follow `pause`, so the listener must call this again before it goes on.
    pub(crate) fn pause_if_full(&self, pause: impl FnOnce()) -> bool {
        let mut state = unpoisoned(&self.state);
        if state.sockets < self.most {
            return false;
        }
        pause();
        state.is_paused = true;
        true
    }

    fn count(self: Arc<Self>) -> WaitingSocket {
        unpoisoned(&self.state).sockets += 1;
        WaitingSocket(self)
    }
}

/// The count of one socket that waits for a thread to close it. Dropping the value ends the count.
struct WaitingSocket(Arc<WaitingSockets>);

impl Drop for WaitingSocket {
    fn drop(&mut self) {
        let mut state = unpoisoned(&self.0.state);
        state.sockets -= 1;
        let resumes = state.is_paused && state.sockets < self.0.most;
        state.is_paused &= !resumes;
        drop(state);
        if resumes {
            (self.0.resume)();
        }
    }
}

/// A socket to a process that the listener has not accepted yet. If unread packets may be in the socket when this value
/// is dropped, a thread of the library closes the socket: the close also closes the descriptors in the packets, and so
/// may block.
pub(crate) struct Unread {
    socket: Option<OwnedFd>,
    waiting: Arc<WaitingSockets>,
    born: Born,
}

impl Unread {
    /// Wraps `socket`, which counts in `waiting` while it waits for a thread to close it.
    pub(crate) fn new(socket: OwnedFd, waiting: &Arc<WaitingSockets>) -> Self {
        Self { socket: Some(socket), waiting: waiting.clone(), born: Born::here() }
    }

    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.socket.take().expect("taken once")
    }
}

impl AsFd for Unread {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("not taken yet").as_fd()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take()
            && !self.born.is_elsewhere()
            && !socket::ends_empty(socket.as_fd())
        {
            close_later(socket, Payer::default().number(), Box::new(self.waiting.clone().count()));
        }
    }
}

/// Removes the packet at the head of the queue of `socket`, without opening the packet's descriptors in this process.
/// `shown` holds the bytes of the packet, which the caller has read without removing the packet. A thread of the
/// library removes the packet, because dropping the packet's descriptors can take long. The call waits until the thread
/// has removed the packet, but not until the descriptors are dropped. Each peer has at most one such thread at a time.
///
/// # Errors
/// [`Error::BadPeer`] if the thread that removes an earlier packet of this peer still blocks; [`Error::PeerClosed`] if
/// the packet could not be removed, or if another packet was removed; [`Error::System`] if no thread could be started.
pub(crate) fn take_elsewhere(socket: Arc<OwnedFd>, shown: &[u8], payer: &Payer) -> Result<(), Error> {
    // Every link with packets to remove charges its peer.
    let Some(mut last) = payer.taking() else { return Err(Error::PeerClosed) };
    if last.as_ref().is_some_and(|last| !last.comes_back()) {
        return Err(Error::BadPeer("descriptors that take longer to close than to send"));
    }
    let taking = PacketRemoval::begin(socket, shown)?;
    *last = Some(taking.clone());
    drop(last);
    if taking.wait(shown) { Ok(()) } else { Err(Error::PeerClosed) }
}

/// A descriptor that a peer sent and the program has not taken. Dropping the value closes the descriptor without
/// blocking.
#[derive(Debug)]
pub(crate) struct ReceivedFd {
    fd: Option<OwnedFd>,
    payer: Payer,
}

impl ReceivedFd {
    pub(crate) fn new(fd: OwnedFd, payer: &Payer) -> Self {
        Self { fd: Some(fd), payer: payer.clone() }
    }

    /// Returns the descriptor. From now on the caller owns the descriptor and must close it.
    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.fd.take().expect("taken once")
    }
}

impl AsRawFd for ReceivedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for ReceivedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("not taken yet").as_fd()
    }
}

impl Drop for ReceivedFd {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            close(fd, &self.payer);
        }
    }
}

/// One half of a socket pair that this process made for two other processes. The process with the other half may have
/// sent packets into this half. Closing the half also closes the descriptors in these packets, and so may block.
/// Dropping this value makes a thread of the library close the half.
pub(crate) struct HalfForPeer {
    fd: Option<OwnedFd>,
    ledger: Arc<Ledger>,
    born: Born,
}

impl HalfForPeer {
    /// Wraps `fd`. `ledger` is the ledger of the link to the process that gets the other half.
    pub(crate) fn new(fd: OwnedFd, ledger: &Arc<Ledger>) -> Self {
        Self { fd: Some(fd), ledger: ledger.clone(), born: Born::here() }
    }
}

impl AsFd for HalfForPeer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("closed when it is dropped").as_fd()
    }
}

impl Drop for HalfForPeer {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take()
            && !self.born.is_elsewhere()
        {
            // A sandbox that forbids threads leaves only a close in place.
            if background::is_forbidden() {
                return drop(fd);
            }
            let charge = self.ledger.known_payer().charge_pending_close();
            close_later(fd, self.ledger.number(), Box::new(charge));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::deadline::Deadline;
    use crate::os::alone::is_alone;
    use crate::os::socket::Interest;

    fn is_closed(reader: &std::io::PipeReader, limit: Duration) -> bool {
        socket::wait(reader.as_fd(), Interest::Readable, Deadline::after(limit)).unwrap().hung_up
    }

    #[test]
    fn what_a_thread_holds_back_is_closed_after_its_last_guard() {
        let (reader, writer) = std::io::pipe().unwrap();
        let outer = hold_back();
        let inner = hold_back();
        close_nobodys(writer.into());
        drop(inner);
        assert!(!is_closed(&reader, Duration::from_millis(50)));
        drop(outer);
        assert!(is_closed(&reader, Duration::from_secs(60)));
    }

    /// Holds the thread that closes descriptors for the account with the number `account`, until the returned value is
    /// dropped, as a descriptor does whose close blocks.
    fn hold_thread_of(account: usize) -> mpsc::Sender<()> {
        struct Held(mpsc::Receiver<()>);
        impl Drop for Held {
            fn drop(&mut self) {
                let _ = self.0.recv();
            }
        }
        let (until, held) = mpsc::channel();
        let fd = std::fs::File::open("/dev/null").unwrap().into();
        assert!(reaper::close(fd, account, Box::new(Held(held))));
        until
    }

    #[test]
    fn few_descriptors_of_the_librarys_own_wait_for_a_thread_and_the_next_one_is_closed_in_place() {
        // Other tests close descriptors of the library's own as well.
        if !is_alone() {
            return;
        }
        for round in 0..2 {
            let until = hold_thread_of(OWN);
            let close = |_| {
                let (reader, writer) = std::io::pipe().unwrap();
                close_own(writer.into());
                reader
            };
            let waiting: Vec<_> = (0..MOST_OWN).map(close).collect();
            assert!(is_closed(&close(MOST_OWN), Duration::ZERO), "round {round}");
            assert!(waiting.iter().all(|reader| !is_closed(reader, Duration::ZERO)), "round {round}");
            drop(until);
            assert!(waiting.iter().all(|reader| is_closed(reader, Duration::from_secs(60))), "round {round}");
            // Once these are closed, the next ones may wait again.
            let begin = Instant::now();
            while OWN_WAITING.get().load(Ordering::Relaxed) > 0 {
                assert!(begin.elapsed() < Duration::from_secs(60), "round {round}");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_descriptor_of_a_stranger_that_blocks_its_thread_holds_up_no_descriptor_of_the_librarys_own() {
        if !is_alone() {
            return;
        }
        let _until = hold_thread_of(Payer::default().number());
        let (reader, writer) = std::io::pipe().unwrap();
        close_own(writer.into());
        assert!(is_closed(&reader, Duration::from_secs(60)));
    }
}
