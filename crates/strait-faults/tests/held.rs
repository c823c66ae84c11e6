//! Acts of one thread while another thread of its process is held at a step, and calls with a failed system call at a
//! certain step.

#![cfg(strait_fault_points)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use strait::pipe::PipeOptions;
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, CommandExt, Error, Options, Outgoing, Wait, fault, signals};

const DEADLINE: Duration = Duration::from_secs(60);

/// Returns a guard that only one test can have: a process has a single plan, and a single limit on descriptors. The
/// limit is low here, so that few messages reach the limit on descriptors in flight.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(1024), maximum }).unwrap();
    alone
}

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// Returns both ends of a channel over a socket of its own.
fn over_a_socket() -> (Channel, Channel) {
    over_a_socket_with(&Options::new())
}

/// Returns both ends of a channel over a new socket, with these options.
fn over_a_socket_with(options: &Options) -> (Channel, Channel) {
    let pair = sockets();
    let over = |socket| options.over(socket).unwrap();
    (over(pair.0), over(pair.1))
}

/// Sends `moved` over the channel from `from` to `to`, and returns the received end.
fn move_over(from: &Channel, to: &Channel, moved: Channel) -> Channel {
    from.send(Outgoing::new(b"an end").handle(moved)).unwrap();
    let handle = to.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0);
    handle.into_channel().unwrap()
}

fn wait_until_held() {
    let begin = Instant::now();
    while !fault::is_past() {
        assert!(begin.elapsed() < DEADLINE, "no thread came to the step");
        thread::yield_now();
    }
}

/// Runs `action` in a thread, and returns a receiver for its result.
fn in_a_thread<T: Send + 'static>(action: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(action()));
    result
}

const ROLE: &str = "STRAIT_FAULTS_ROLE";

/// A child process that plays a role, and is killed when the value is dropped.
struct Actor(Child);

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a process that plays `role`, and returns the process and a channel to it.
fn start(role: &str) -> (Actor, Channel) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["actor", "--exact", "--nocapture"]).env(ROLE, role);
    let (child, channel) = command.spawn_with_channel().unwrap();
    (Actor(child), channel)
}

#[test]
fn actor() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let parent = strait::from_parent().unwrap();
    match role.as_str() {
        "introducer" => introduce(&parent),
        "partner" => partner(&parent),
        other => panic!("no role: {other}"),
    }
}

fn take(channel: &Channel) -> Channel {
    channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap()
}

/// Gives one end of a new channel to the parent, and the other end over a road, a channel received from the parent.
fn introduce(parent: &Channel) {
    let road = take(parent);
    let (one, other) = Channel::pair().unwrap();
    road.send(Outgoing::new(b"an end").handle(other)).unwrap();
    parent.send(Outgoing::new(b"an end").handle(one)).unwrap();
    let _ = parent.recv();
}

/// Takes an end over each of the two roads, the channels received from the parent. Then obeys the parent: sends the
/// second end over the first, or fails to.
fn partner(parent: &Channel) {
    let mut ends = Vec::new();
    while ends.len() < 2 {
        // Some tests need only the first end.
        let Ok(mut message) = parent.recv_by(DEADLINE) else { return };
        let road = message.take_handles().unwrap().remove(0).into_channel().unwrap();
        let end = take(&road);
        end.send(b"hello").unwrap();
        parent.send(b"there").unwrap();
        ends.push(end);
    }
    let (second, first) = (ends.remove(1), ends.remove(0));
    let word = parent.recv_by(DEADLINE).unwrap();
    let second = if word.bytes() == b"send" {
        first.send(Outgoing::new(b"an end").handle(second)).unwrap();
        None
    } else {
        // A message with two ends cannot be sent if one of the ends is not open.
        let (not_open, _silent) = sockets();
        let not_open = Channel::over(not_open).unwrap();
        let message = Outgoing::new(b"two ends").handle(second).handle(not_open);
        let failed = first.try_send(message).unwrap_err();
        assert_eq!((failed.error, failed.handles.len()), (Error::WouldBlock, 2));
        let stays = failed.handles.into_iter().next().unwrap().into_channel().unwrap();
        stays.send(b"after that").unwrap();
        Some(stays)
    };
    parent.send(b"done").unwrap();
    let _ = parent.recv();
    drop((first, second));
}

/// Another process with two channels, each on its own introduced link. The introducers have ended.
struct Partner {
    actor: Actor,
    to: Channel,
    channels: [Channel; 2],
}

impl Partner {
    fn new() -> Self {
        let (actor, to) = start("partner");
        let channels = [(); 2].map(|()| {
            let (introducer, to_introducer) = start("introducer");
            let (road, others) = Channel::pair().unwrap();
            to.send(Outgoing::new(b"a road").handle(others)).unwrap();
            to_introducer.send(Outgoing::new(b"a road").handle(road)).unwrap();
            let channel = take(&to_introducer);
            // This message brings the other process's handshake.
            assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"hello");
            assert_eq!(to.recv_by(DEADLINE).unwrap().bytes(), b"there");
            drop((to_introducer, introducer));
            channel
        });
        Self { actor, to, channels }
    }

    /// Makes the other process do `word`.
    fn does(&self, word: &str) {
        self.to.send(word.as_bytes()).unwrap();
        assert_eq!(self.to.recv_by(DEADLINE).unwrap().bytes(), b"done");
    }
}

/// Shows that a search for unreachable links drops the links without holding a lock. Meanwhile another thread closes
/// all other ends, so the searching thread drops their links.
#[test]
fn a_thread_that_searches_for_unused_links_drops_those_that_another_thread_has_stopped_using() {
    let _alone = alone();
    let (partner, to_partner) = start("partner");
    let (introducer, to_introducer) = start("introducer");
    let (road, others) = Channel::pair().unwrap();
    to_partner.send(Outgoing::new(b"a road").handle(others)).unwrap();
    to_introducer.send(Outgoing::new(b"a road").handle(road)).unwrap();
    let channel = take(&to_introducer);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"hello");
    assert!(fault::follow("hold:before the links of a search are let go:1"));
    let search = in_a_thread(move || drop(to_introducer));
    wait_until_held();
    let close = in_a_thread(move || drop((channel, to_partner)));
    close.recv_timeout(DEADLINE).expect("the thread that closes does not wait for the one that searches");
    fault::go_on();
    search.recv_timeout(DEADLINE).expect("the search ends");
    drop((partner, introducer));
}

/// Drops `unread` in a thread, holds that thread at the step `point`, and receives from `staying` meanwhile. Returns
/// the received bytes.
fn received_while_dropping(unread: Channel, point: &str, staying: Channel) -> Result<Vec<u8>, Error> {
    assert!(fault::follow(&format!("hold:{point}:1")));
    let close = in_a_thread(move || drop(unread));
    wait_until_held();
    let receive = in_a_thread(move || (staying.recv_by(DEADLINE), staying));
    // If the receiving thread needs something from the held thread, it waits for up to 400 ms.
    let early = receive.recv_timeout(Duration::from_millis(50)).ok();
    fault::go_on();
    close.recv_timeout(DEADLINE).expect("the thread goes on");
    let (received, _staying) = early.unwrap_or_else(|| receive.recv_timeout(DEADLINE).expect("a result"));
    received.map(|message| message.bytes().to_vec())
}

/// Shows that a lane is found while the announcements of a link are being passed to another link of the same peer. An
/// end is sent over a link that its receiver stops using, and meanwhile the other end follows.
#[test]
fn a_lane_is_found_while_announcements_are_passed_on() {
    let _alone = alone();
    let partner = Partner::new();
    partner.does("send");
    let Partner { actor, to, channels: [unread, staying] } = partner;
    let point = "before announcements are passed on to another link";
    assert_eq!(received_while_dropping(unread, point, staying), Err(Error::PeerClosed));
    drop((actor, to));
}

/// Shows that a lane is found while the link of its announcement is being dropped. A message with two ends cannot be
/// sent, because only one of the ends is open; the open end continues in the lane made for the move.
#[test]
fn a_lane_is_found_while_the_link_over_which_it_was_announced_is_dropped() {
    let _alone = alone();
    let partner = Partner::new();
    partner.does("fail");
    let Partner { actor, to, channels: [unread, staying] } = partner;
    let received = received_while_dropping(unread, "before the socket of a link is closed", staying);
    assert_eq!(received, Ok(b"after that".to_vec()));
    drop((actor, to));
}

/// Shows that ends are handed over before the receiver of their message is woken: the sender may lose its processor to
/// the receiver, for a second on a busy machine. The receiver may send from such an end, whose other end only the
/// sender can wake until the end is handed over.
#[test]
fn ends_are_handed_over_before_the_receiver_of_their_message_is_woken() {
    let _alone = alone();
    let (near, far) = over_a_socket_with(&Options::new().wait(Wait::Block));
    // Opens both sides.
    for (from, to) in [(&near, &far), (&far, &near)] {
        from.send(b"first").unwrap();
        to.recv_by(DEADLINE).unwrap();
    }
    let (_stays, moves) = Channel::pair().unwrap();
    fault::record();
    let receive = in_a_thread(move || far.recv_by(DEADLINE).map(|_| far));
    let begin = Instant::now();
    while !fault::trace().contains(&"futex(WAIT)") {
        assert!(begin.elapsed() < DEADLINE, "the receiver does not sleep");
        thread::yield_now();
    }
    near.send(Outgoing::new(b"an end").handle(moves)).unwrap();
    receive.recv_timeout(DEADLINE).expect("the message comes").unwrap();
    let trace = fault::trace();
    fault::record();
    let place = |step: &str| trace.iter().position(|name| *name == step).expect("each step is made");
    let handed_over = place("before an end is handed over or its transfer is cancelled");
    assert!(handed_over < place("before a sleeper is woken"), "{trace:#?}");
}

/// Returns a message with this number of files.
fn with_files(count: usize) -> Outgoing<'static> {
    (0..count).fold(Outgoing::new(b"files"), |message, _| message.handle(File::open("/dev/null").unwrap()))
}

/// Shows that a send of ends does not sleep if the missing descriptors become free in between: after the attempt
/// found too few, and before the send notes the progress of the receiver.
#[test]
fn a_send_of_ends_does_not_sleep_if_descriptors_have_come_free_after_its_attempt() {
    let _alone = alone();
    let options = Options::new().queue_handles(usize::MAX);
    let (near, far) = over_a_socket_with(&options);
    // Makes `far` a receiver that takes messages, and opens both sides.
    near.send(b"first").unwrap();
    far.recv_by(DEADLINE).unwrap();
    // The socket has room for these few packets, so the sender lacks descriptors alone.
    for files in [60, 10, 1] {
        while near.try_send(with_files(files)).is_ok() {}
    }
    assert!(fault::follow("hold:before a sender notes that it lacks descriptors:1"));
    let send = in_a_thread(move || {
        let (_other, end) = Channel::pair().unwrap();
        near.send_by(with_files(1).handle(end), DEADLINE).map(|()| near).map_err(|failed| failed.error)
    });
    wait_until_held();
    while far.try_recv().is_ok() {}
    // The thread continues, because there is no plan any more.
    fault::record();
    let near = send.recv_timeout(DEADLINE).expect("the call returns").unwrap();
    let sleeps = fault::trace().iter().filter(|step| **step == "before it is said how an end sleeps").count();
    assert_eq!(sleeps, 0);
    drop((near, far));
}

/// Shows that a one-shot event for a new interest is not used up by a thread that has just found the member ready for
/// the old interest.
#[test]
fn an_interest_replaced_during_a_look_gets_its_own_event() {
    let _alone = alone();
    let (theirs, ours) = Options::new().ring_max(4096).pair().unwrap();
    let (set, ours) = (Arc::new(WaitSet::new().unwrap()), Arc::new(ours));
    while ours.try_send(b"no room is left").is_ok() {}
    set.add(&*ours, 1, Interest::Readable, Mode::OneShot).unwrap();
    theirs.send(b"hello").unwrap();
    assert!(fault::follow("hold:after a wait set has looked at a member:1"));
    let waiting = set.clone();
    let events = in_a_thread(move || {
        let mut events = Vec::new();
        waiting.wait(&mut events, DEADLINE).map(|_| events)
    });
    wait_until_held();
    set.modify(&*ours, 2, Interest::Writable, Mode::OneShot).unwrap();
    fault::record();
    while theirs.try_recv().is_ok() {}
    let events = events.recv_timeout(DEADLINE).expect("the wait returns").unwrap();
    assert_eq!(events.len(), 1, "no event for the new interest");
    assert!(events[0].key() == 2 && events[0].is_writable() && !events[0].is_readable(), "{events:?}");
}

/// Calls `wait` in another thread, under a guard against signals. Once a signal has interrupted the sleep, holds the
/// thread and calls `meanwhile`. Asserts that `wait` then returns, and that the signal ends the next wait of the
/// thread.
fn signal_ends_the_next_wait(wait: impl FnOnce() + Send + 'static, meanwhile: impl FnOnce()) {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all zeroes are a value of the structure; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    assert!(fault::follow("hold:after a sleep has failed:1"));
    let (tell, told) = mpsc::channel();
    let ended = in_a_thread(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        signals::guarded(|| {
            wait();
            let (_other, end) = Options::new().wait(Wait::Block).pair().unwrap();
            end.recv_by(Duration::from_secs(5)).map(drop)
        })
    });
    let thread = told.recv_timeout(DEADLINE).unwrap();
    let begin = Instant::now();
    // A signal before the thread sleeps ends no wait.
    while !fault::is_past() {
        // SAFETY: the arguments are plain numbers.
        assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) }, 0);
        assert!(begin.elapsed() < DEADLINE, "no signal ends the wait");
        thread::sleep(Duration::from_millis(1));
    }
    meanwhile();
    fault::go_on();
    assert_eq!(ended.recv_timeout(DEADLINE).expect("the waits end"), Err(Error::Signalled));
}

/// Returns the options of ends that sleep at once, and have room for few messages.
fn narrow() -> Options {
    Options::new().wait(Wait::Block).ring(4096).ring_max(4096)
}

/// Returns an end without room for another message, and the other end of its channel.
fn full() -> (Channel, Channel) {
    let (sender, receiver) = narrow().pair().unwrap();
    while sender.try_send(&[0; 1000]).is_ok() {}
    (sender, receiver)
}

/// Shows that a signal during a wait for room is remembered if the receiver is closed meanwhile.
#[test]
fn a_signal_is_not_forgotten_if_the_receiver_is_closed() {
    let _alone = alone();
    let (sender, receiver) = full();
    let send = move || assert_eq!(sender.send(&[0; 1000]).unwrap_err().error, Error::PeerClosed);
    signal_ends_the_next_wait(send, || drop(receiver));
}

/// Shows that a signal during a wait for room is remembered if the receiver moves meanwhile, and the call continues in
/// another ring.
#[test]
fn a_signal_is_not_forgotten_if_the_receiver_moves() {
    let _alone = alone();
    let (sender, receiver) = full();
    let (one, other) = over_a_socket();
    let (tell, told) = mpsc::channel();
    let send = move || {
        sender.send(&[1; 1000]).unwrap();
        tell.send(sender).unwrap();
    };
    let mut moved = None;
    signal_ends_the_next_wait(send, || moved = Some(move_over(&one, &other, receiver)));
    let (_sender, moved) = (told.recv().unwrap(), moved.unwrap());
    while moved.recv_by(DEADLINE).unwrap().bytes() != [1; 1000] {}
}

/// Shows that a signal during a wait for a message is remembered if the link goes down meanwhile.
#[test]
fn a_signal_is_not_forgotten_if_the_link_goes_down() {
    let _alone = alone();
    let (ours, theirs) = sockets();
    let copy = theirs.try_clone().unwrap();
    let (near, far) = (narrow().over(ours).unwrap(), narrow().over(theirs).unwrap());
    // Another end of the link learns that the link is down.
    let (beside, end) = Channel::pair().unwrap();
    let end = move_over(&near, &far, end);
    beside.send(b"here").unwrap();
    end.recv_by(DEADLINE).unwrap();
    let receive = move || assert_eq!(near.recv().unwrap_err(), Error::PeerClosed);
    signal_ends_the_next_wait(receive, || {
        rustix::net::shutdown(&copy, Shutdown::Both).unwrap();
        assert_eq!(beside.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    });
}

/// Shows that a signal during a wait for bytes of a data pipe is remembered if bytes are written meanwhile.
#[test]
fn a_signal_is_not_forgotten_if_a_pipe_gets_bytes() {
    let _alone = alone();
    let (producer, consumer) = PipeOptions::new().wait(Wait::Block).create().unwrap();
    let consume = move || assert_eq!(consumer.read_some(&mut [0; 9], DEADLINE).unwrap(), 5);
    signal_ends_the_next_wait(consume, || producer.write_whole(b"bytes", DEADLINE).unwrap());
}

/// Shows that a send sleeps for a tenth of a second if the kernel refuses its packet, because the user has too many
/// descriptors in flight. No event reports the end of this state.
#[test]
fn a_send_with_a_descriptor_too_many_for_the_user_is_tried_again_after_a_pause() {
    let _alone = alone();
    let (near, far) = over_a_socket();
    // Afterwards the sender's socket has no unread packet, which would wake the sender.
    for (from, to) in [(&near, &far), (&far, &near)] {
        from.send(with_files(1)).unwrap();
        to.recv_by(DEADLINE).unwrap();
    }
    assert_eq!(near.try_recv().unwrap_err(), Error::WouldBlock);
    assert!(fault::follow("fail:sendmsg:ETOOMANYREFS:1"));
    let failed = near.try_send(with_files(1)).unwrap_err();
    assert!(fault::is_past());
    assert_eq!((failed.error, failed.handles.len()), (Error::WouldBlock, 1));
    assert!(fault::follow("fail:sendmsg:ETOOMANYREFS:1"));
    let begin = Instant::now();
    near.send_by(with_files(1), DEADLINE).unwrap();
    assert!(fault::is_past());
    assert!(begin.elapsed() >= Duration::from_millis(100), "the next attempt came after {:?}", begin.elapsed());
    assert_eq!(far.recv_by(DEADLINE).unwrap().take_handles().unwrap().len(), 1);
}

/// Shows that a fuse succeeds even if one of its packets shows the death of a far end's process. The other far end
/// receives the messages of the dead process.
#[test]
fn a_fuse_succeeds_whichever_of_its_packets_shows_that_a_far_end_is_dead() {
    let _alone = alone();
    for step in 1.. {
        let [(a, ours), (theirs, b)] = [over_a_socket(), over_a_socket()];
        for far in [&a, &b] {
            far.send(with_files(1)).unwrap();
        }
        assert!(fault::follow(&format!("fail:sendmsg:EPIPE:{step}")));
        let fused = ours.fuse(theirs, DEADLINE).map_err(|failed| failed.error);
        let is_past = fault::is_past();
        fault::record();
        assert_eq!(fused, Ok(()), "packet {step}");
        let received = [&a, &b].map(|far| far.recv_by(DEADLINE).map(drop));
        assert!(received.contains(&Ok(())), "packet {step}: {received:?}");
        assert!(received.iter().all(|received| matches!(received, Ok(()) | Err(Error::PeerClosed))), "packet {step}");
        if !is_past {
            assert!(step > 1, "a fuse sends packets");
            break;
        }
    }
}

/// Takes all lanes within this process that need no further mapping, except for `spare` of them. Returns the channels
/// that have these lanes. Ends the plan of the process.
fn take_lanes_but(spare: usize) -> Vec<(Channel, Channel)> {
    assert!(fault::follow("fail:mmap:ENOMEM:1"));
    let mut taken: Vec<_> = std::iter::from_fn(|| Channel::pair().ok()).collect();
    assert!(fault::is_past());
    fault::record();
    taken.truncate(taken.len().saturating_sub(spare));
    taken
}

/// Makes two channels, each by its function in `make`, and fuses them with the plan that the mapping `failing` fails.
/// Only `spare` lanes within this process need no mapping then. If the fuse fails, fuses the returned ends again.
/// Checks that the far ends receive all messages. If `closes` is set, the first far end is closed before the fuse.
/// Returns whether the first fuse failed.
fn fuse_without_memory(make: [fn() -> (Channel, Channel); 2], closes: bool, failing: &str, spare: usize) -> bool {
    let [(a, ours), (theirs, b)] = make.map(|make| make());
    a.send(b"from a").unwrap();
    a.send(with_files(1)).unwrap();
    b.send(b"from b").unwrap();
    let a = (!closes).then_some(a);
    let taken = take_lanes_but(spare);
    assert!(fault::follow(&format!("fail:mmap:ENOMEM:{failing}")));
    let fused = ours.fuse(theirs, DEADLINE);
    fault::record();
    drop(taken);
    let has_failed = fused.is_err();
    if let Err(failed) = fused {
        assert_eq!(failed.error, Error::NoMemory { call: "mmap" });
        failed.channels.0.fuse(failed.channels.1, DEADLINE).unwrap();
    }
    let what = format!("closed: {closes}, mapping {failing}, {spare} spare lanes");
    let bytes = |end: &Channel| end.recv_by(DEADLINE).map(|message| message.bytes().to_vec());
    assert_eq!(bytes(&b), Ok(b"from a".to_vec()), "{what}");
    assert_eq!(b.recv_by(DEADLINE).unwrap().take_handles().unwrap().len(), 1, "{what}");
    match a {
        Some(a) => assert_eq!(bytes(&a), Ok(b"from b".to_vec()), "{what}"),
        None => assert_eq!(b.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed, "{what}"),
    }
    has_failed
}

/// Shows that a fuse that has no memory for a lane within this process loses no message, whichever lane it is. Each far
/// end is in this process or behind a socket, and the first one is open or closed.
#[test]
fn a_fuse_that_finds_no_memory_loses_no_message() {
    let _alone = alone();
    let within: fn() -> (Channel, Channel) = || Channel::pair().unwrap();
    let outside: fn() -> (Channel, Channel) = over_a_socket;
    // Each plan lets the mappings for larger lanes, and for lanes to other processes, succeed.
    let cases = [
        ([within, within], true, "2"),
        ([outside, outside], true, "1:after:before an arena is sent"),
        ([within, outside], false, "1:after:before an arena is sent"),
        ([outside, within], false, "2:after:before an arena is sent"),
        ([outside, outside], false, "3:after:before an arena is sent"),
    ];
    for (make, closes, failing) in cases {
        let failed = (0..8).filter(|spare| fuse_without_memory(make, closes, failing, *spare)).count();
        assert!(failed > 0, "no fuse found too little memory: closed: {closes}, mapping {failing}");
        assert!(failed < 8, "each fuse found too little memory: closed: {closes}, mapping {failing}");
    }
}

/// Shows that a call of `bind` that fails after it has made the socket file removes the file before it releases the
/// lock of the name. Without the lock, the file may be the socket of another process.
#[test]
fn a_failed_bind_removes_its_name_under_the_lock() {
    use rustix::fs::inotify;
    let _alone = alone();
    let directory = std::env::temp_dir().join(format!("strait-held-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, &directory, inotify::WatchFlags::DELETE).unwrap();
    assert!(fault::follow("fail:listen:EPERM:1"));
    let failed = strait::Listener::builder().directory(&directory).bind("name").unwrap_err();
    assert_eq!(failed.error, Error::System { call: "listen", code: libc::EPERM });
    let mut room = [std::mem::MaybeUninit::uninit(); 1024];
    let mut events = inotify::Reader::new(&watch, &mut room);
    let removed: Vec<_> =
        std::iter::from_fn(|| events.next().ok()?.file_name().map(|name| name.to_str().unwrap().to_owned())).collect();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(removed, ["name", ".name.lock"]);
}
