//! Tests of interrupters: a thread ends the waits of other threads on an end.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{Actor, DEADLINE, SOON, Watched, file_with, parent_over_any, spawn_over_socket, spawn_with, wait_until};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Listener, Options, Outgoing, Wait};

#[test]
fn child() {
    common::play(&[("silent", silent), ("absent", absent), ("sleeps on", sleeps_on)]);
}

/// Opens the side and sends one message; receives nothing, so an end sent to this process stays in the channel.
fn silent(_: &str) {
    let channel = parent_over_any(&Options::new());
    channel.send(b"here").unwrap();
    std::thread::sleep(2 * DEADLINE);
}

/// Runs without opening its side of the channel.
fn absent(_: &str) {
    std::thread::sleep(2 * DEADLINE);
}

/// A waiting call on an end; returns the error at the end of the wait.
type Waits = fn(&Channel) -> Error;

fn to_receive(channel: &Channel) -> Error {
    channel.recv().unwrap_err()
}

fn to_look(channel: &Channel) -> Error {
    channel.recv_in_place(Deadline::NEVER).map(drop).unwrap_err()
}

fn for_room(channel: &Channel) -> Error {
    loop {
        if let Err(failed) = channel.send(&[1; 1000]) {
            return failed.error;
        }
    }
}

fn for_room_in_place(channel: &Channel) -> Error {
    loop {
        match channel.reserve(100_000, Deadline::NEVER) {
            Ok(room) => room.commit().unwrap(),
            Err(error) => return error,
        }
    }
}

fn to_send_files(channel: &Channel) -> Error {
    let file = file_with(b"content");
    loop {
        if let Err(failed) = channel.send(Outgoing::new(b"").handle(file.try_clone().unwrap())) {
            return failed.error;
        }
    }
}

/// Returns an end in this process, and the other end of the channel, for the test to wait on. The functions that follow
/// return the process with the first end in place of the first end.
fn within(options: &Options) -> (Box<dyn std::any::Any>, Channel) {
    let (a, b) = options.pair().unwrap();
    (Box::new(a), b)
}

fn elsewhere(options: &Options) -> (Box<dyn std::any::Any>, Channel) {
    let (actor, channel) = spawn_with("silent", "", options);
    channel.recv_by(DEADLINE).unwrap();
    (Box::new(actor), channel)
}

fn over_a_narrow_socket(options: &Options) -> (Box<dyn std::any::Any>, Channel) {
    let (actor, channel) = spawn_over_socket("silent", "", options);
    channel.recv_by(DEADLINE).unwrap();
    (Box::new(actor), channel)
}

fn not_opened(options: &Options) -> (Box<dyn std::any::Any>, Channel) {
    let (actor, channel) = spawn_with("absent", "", options);
    (Box::new(actor), channel)
}

/// Asserts that an interrupt ends a wait, and that a later call does not wait. With `after`, the thread has waited for
/// so long before the interrupt; without, the thread may not have begun to wait.
fn is_ended(
    setup: fn(&Options) -> (Box<dyn std::any::Any>, Channel),
    waits: Waits,
    wait: Wait,
    after: Option<Duration>,
) {
    let options = Options::new().wait(wait).ring(4096).ring_max(4096).queue_bytes(300_000);
    let (other, channel) = setup(&options);
    let interrupter = channel.interrupter();
    let (watched, ended) = (Watched::new(), std::sync::mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            watched.enter();
            ended.0.send(waits(&channel)).unwrap();
        });
        if let Some(after) = after {
            watched.wait_until_blocked();
            // A thread changes from one kind of sleep to the next over time; the interrupt must end each kind.
            std::thread::sleep(after);
            assert!(ended.1.try_recv().is_err(), "the call did not wait");
        }
        interrupter.interrupt();
        let error = ended.1.recv_timeout(SOON);
        if error.is_err() {
            // Otherwise the failed test would hang until the thread ends its wait.
            drop(other);
        }
        assert_eq!(error, Ok(Error::Interrupted));
        // Later calls do not wait either.
        assert_eq!(waits(&channel), Error::Interrupted);
    });
}

/// Shows that an interrupt ends the wait of a sending thread, although another thread has waited in `rehome` meanwhile.
#[test]
fn a_wait_for_room_is_ended_although_a_move_of_the_end_has_waited_meanwhile() {
    let options = Options::new().wait(Wait::Block).ring(4096).ring_max(4096);
    let (other, channel) = not_opened(&options);
    let interrupter = channel.interrupter();
    let (mover, sender, ended) = (Watched::new(), Watched::new(), std::sync::mpsc::channel());
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            mover.enter();
            channel.rehome(Duration::from_millis(500))
        });
        mover.wait_until_blocked();
        scope.spawn(|| {
            sender.enter();
            let failed = (0..).find_map(|_| channel.send(&[1; 100]).err()).unwrap();
            ended.0.send(failed.error).unwrap();
        });
        assert_eq!(moving.join().unwrap(), Err(Error::TimedOut));
        sender.wait_until_blocked();
        // By then the sender sleeps without a limit.
        std::thread::sleep(2 * AFTER[3].unwrap());
        interrupter.interrupt();
        let error = ended.1.recv_timeout(SOON);
        // The end of the other process ends the sender's wait in any case.
        drop(other);
        assert_eq!(error, Ok(Error::Interrupted));
    });
}

const WAITS: [Wait; 3] = [Wait::Block, Wait::Adaptive, Wait::Spin];
/// The time of the interrupt: before or while the wait begins; right after the beginning; during a sleep on the socket;
/// after a long sleep on the socket.
const AFTER: [Option<Duration>; 4] =
    [None, Some(Duration::ZERO), Some(Duration::from_millis(30)), Some(Duration::from_millis(150))];

#[test]
fn waits_within_a_process_are_ended() {
    for waits in [to_receive, to_look, for_room, for_room_in_place] {
        for wait in WAITS {
            for after in &AFTER[..2] {
                is_ended(within, waits, wait, *after);
            }
        }
    }
}

#[test]
fn waits_for_another_process_are_ended_however_they_sleep() {
    for waits in [to_receive, for_room, for_room_in_place] {
        for after in AFTER {
            is_ended(elsewhere, waits, Wait::Block, after);
        }
        is_ended(elsewhere, waits, Wait::Spin, AFTER[1]);
    }
}

#[test]
fn waits_for_a_process_that_has_not_opened_its_side_are_ended() {
    for after in AFTER {
        is_ended(not_opened, to_receive, Wait::Adaptive, after);
    }
}

#[test]
fn waits_for_room_for_descriptors_are_ended() {
    for after in [AFTER[0], AFTER[1], AFTER[3]] {
        is_ended(elsewhere, to_send_files, Wait::Adaptive, after);
        is_ended(over_a_narrow_socket, to_send_files, Wait::Adaptive, after);
    }
}

/// Shows that an interrupt ends the waits of threads that wait for their turn on an end. If the thread that has the
/// turn keeps it, neither that thread nor the peer wakes the others.
#[test]
fn waits_behind_another_thread_are_ended() {
    let (a, b) = Channel::pair().unwrap();
    let interrupter = b.interrupter();
    let watched: [Watched; 3] = std::array::from_fn(|_| Watched::new());
    std::thread::scope(|scope| {
        let waiting: Vec<_> = watched
            .iter()
            .map(|watched| {
                scope.spawn(|| {
                    watched.enter();
                    b.recv().unwrap_err()
                })
            })
            .collect();
        watched.iter().for_each(Watched::wait_until_blocked);
        interrupter.interrupt();
        wait_until("all calls have returned", || waiting.iter().all(|thread| thread.is_finished()));
        waiting.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Error::Interrupted));
    });

    a.send(b"looked at").unwrap();
    let (view, watched) = (b.recv_in_place(Deadline::NOW).unwrap(), Watched::new());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| b.recv().unwrap_err());
        wait_until("the call has returned", || waiting.is_finished());
        assert_eq!(waiting.join().unwrap(), Error::Interrupted);
    });
    drop((view, watched));

    let (a, b) = Channel::pair().unwrap();
    let interrupter = b.interrupter();
    a.send(b"looked at").unwrap();
    let (view, watched) = (b.recv_in_place(Deadline::NOW).unwrap(), Watched::new());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            watched.enter();
            b.recv().unwrap_err()
        });
        watched.wait_until_blocked();
        interrupter.interrupt();
        wait_until("the call has returned", || waiting.is_finished());
        assert_eq!(waiting.join().unwrap(), Error::Interrupted);
    });
    drop(view);
}

/// Returns a second channel to the process at the other end of `channel`.
fn second(channel: &Channel) -> Channel {
    let (mine, theirs) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"").handle(theirs)).unwrap();
    mine
}

/// Shows that an interrupt ends the wait of the interrupted end alone. Of the threads asleep on one link, one sleeps in
/// the kernel for all; the test interrupts both this thread and another thread.
#[test]
fn who_is_meant_is_woken_and_no_other() {
    for first_to_end in 0..2 {
        for interruptible in [[true, true], [false, true], [true, false]] {
            if !interruptible[first_to_end] {
                continue;
            }
            let (_actor, channel): (Actor, _) = spawn_with("silent", "", &Options::new().wait(Wait::Block));
            channel.recv_by(DEADLINE).unwrap();
            let ends = [second(&channel), channel];
            let interrupters = [0, 1].map(|end| interruptible[end].then(|| ends[end].interrupter()));
            let watched: [Watched; 2] = std::array::from_fn(|_| Watched::new());
            std::thread::scope(|scope| {
                let waiting: Vec<_> = (0..2)
                    .map(|end| {
                        let (ends, watched) = (&ends, &watched[end]);
                        let thread = scope.spawn(move || {
                            watched.enter();
                            ends[end].recv_by(2 * DEADLINE).unwrap_err()
                        });
                        watched.wait_until_blocked();
                        std::thread::sleep(Duration::from_millis(30));
                        thread
                    })
                    .collect();
                interrupters[first_to_end].as_ref().unwrap().interrupt();
                wait_until("the call has returned", || waiting[first_to_end].is_finished());
                let other = 1 - first_to_end;
                watched[other].wait_until_blocked();
                assert!(!waiting[other].is_finished());
                match &interrupters[other] {
                    Some(interrupter) => interrupter.interrupt(),
                    // The death of the peer ends the wait.
                    None => drop(_actor),
                }
                let errors: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
                assert_eq!(errors[first_to_end], Error::Interrupted);
                assert_eq!(errors[other], if interruptible[other] { Error::Interrupted } else { Error::PeerClosed });
            });
        }
    }
}

/// Shows that a thread waiting on another end of the link stays asleep when one end is interrupted. Runs in a process
/// of its own, because an interrupt in another test of this process wakes all threads for a moment.
#[test]
fn who_sleeps_on_has_no_wake_ups() {
    common::alone("sleeps on", "");
}

fn sleeps_on(_: &str) {
    let (_actor, channel) = spawn_with("silent", "", &Options::new());
    channel.recv_by(DEADLINE).unwrap();
    let ends = [second(&channel), channel];
    let interrupters = [ends[0].interrupter(), ends[1].interrupter()];
    let watched: [Watched; 2] = std::array::from_fn(|_| Watched::new());
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..2)
            .map(|end| {
                let (ends, watched) = (&ends, &watched[end]);
                scope.spawn(move || {
                    watched.enter();
                    ends[end].recv().unwrap_err()
                })
            })
            .collect();
        watched.iter().for_each(Watched::wait_until_blocked);
        interrupters[0].interrupt();
        wait_until("the call has returned", || waiting[0].is_finished());
        // Each kind of sleep ends once. A thread that polls would be woken far more often.
        let before = watched[1].switches();
        std::thread::sleep(Duration::from_secs(1));
        let wake_ups = watched[1].switches() - before;
        interrupters[1].interrupt();
        waiting.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Error::Interrupted));
        assert!(wake_ups <= 5, "the thread was woken {wake_ups} times");
    });
}

/// Shows that calls on an interrupted end work as before if they need not wait.
#[test]
fn what_needs_no_wait_is_done_as_before() {
    let (a, b) = Channel::pair().unwrap();
    let interrupter = b.interrupter();
    interrupter.clone().interrupt();
    assert_eq!(b.try_recv().unwrap_err(), Error::WouldBlock);
    assert_eq!(b.recv().unwrap_err(), Error::Interrupted);
    a.send(b"one").unwrap();
    assert_eq!(b.recv().unwrap().bytes(), b"one");
    b.send(b"two").unwrap();
    assert_eq!(a.recv().unwrap().bytes(), b"two");
    // An interrupter does not keep its end open, and has no effect once the end is closed.
    drop(b);
    assert_eq!(a.recv().unwrap_err(), Error::PeerClosed);
    interrupter.interrupt();
}

/// Shows that a message wakes the wait set of an end that was interrupted. The end's sleep word belongs to the wait set
/// as long as no thread sleeps on the end.
#[test]
fn an_end_in_a_set_that_is_interrupted_is_heard_of() {
    let set = WaitSet::new().unwrap();
    let (a, b) = Channel::pair().unwrap();
    let interrupter = b.interrupter();
    set.add(&b, 1, Interest::Readable, Mode::Level).unwrap();
    let mut events = Vec::new();
    assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap(), 0);
    interrupter.interrupt();
    a.send(b"one").unwrap();
    assert_eq!(set.wait(&mut events, SOON).unwrap(), 1);
}

/// Shows that calls wait again after `resume`.
#[test]
fn who_was_interrupted_waits_again_when_that_is_taken_back() {
    let (a, b) = Channel::pair().unwrap();
    let interrupter = b.interrupter();
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| b.recv().unwrap_err());
            interrupter.interrupt();
            assert_eq!(waits.join().unwrap(), Error::Interrupted);
        });
        assert_eq!(b.recv().unwrap_err(), Error::Interrupted);
        interrupter.resume();
        assert_eq!(b.recv_by(Deadline::after(Duration::from_millis(1))).unwrap_err(), Error::TimedOut);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| b.recv().unwrap());
            a.send(b"at last").unwrap();
            assert_eq!(waits.join().unwrap().bytes(), b"at last");
        });
    }
}

fn a_listener() -> (String, Listener) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("interrupts-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let listener = Listener::bind(&name).unwrap();
    (name, listener)
}

/// Returns whether an event loop finds the descriptor of `listener` readable.
fn is_readable(listener: &Listener) -> bool {
    let mut fds = [rustix::event::PollFd::new(listener, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::time::Timespec::default())).unwrap() > 0
}

#[test]
fn waits_for_processes_end_and_begin_again() {
    let (name, listener) = a_listener();
    let interrupter = listener.interrupter();
    let invitation = listener.invite(DEADLINE).unwrap();
    for _ in 0..20 {
        let watched: [Watched; 3] = std::array::from_fn(|_| Watched::new());
        std::thread::scope(|scope| {
            let by_listener = [&watched[0], &watched[1]].map(|watched| {
                scope.spawn(|| {
                    watched.enter();
                    listener.accept(Deadline::NEVER).map(drop).unwrap_err().error
                })
            });
            let by_invitation = scope.spawn(|| {
                watched[2].enter();
                invitation.accept(2 * DEADLINE).map(drop).unwrap_err().error
            });
            watched.iter().for_each(Watched::wait_until_blocked);
            interrupter.interrupt();
            for thread in by_listener.into_iter().chain([by_invitation]) {
                assert_eq!(thread.join().unwrap(), Error::Interrupted);
            }
        });
        assert!(!is_readable(&listener), "event loops are not woken as long as the interruption lasts");
        assert_eq!(listener.accept(DEADLINE).unwrap_err().error, Error::Interrupted);
        assert_eq!(listener.accept(Deadline::NOW).unwrap_err().error, Error::WouldBlock);
        interrupter.resume();
        assert_eq!(listener.accept(Duration::from_millis(1)).unwrap_err().error, Error::TimedOut);
    }
    let client = std::thread::spawn(move || strait::connect(&name, DEADLINE).unwrap().send(b"here").unwrap());
    assert_eq!(listener.accept(DEADLINE).unwrap().recv_by(DEADLINE).unwrap().bytes(), b"here");
    client.join().unwrap();
}

#[test]
fn processes_that_connect_during_an_interruption_are_accepted() {
    let (name, listener) = a_listener();
    let interrupter = listener.interrupter();
    interrupter.interrupt();
    let client = std::thread::spawn(move || strait::connect(&name, DEADLINE).unwrap().send(b"here").unwrap());
    wait_until("the client's request arrived", || is_readable(&listener));
    // The listener need not wait for this process.
    let accepted = std::iter::repeat_with(|| listener.accept(DEADLINE));
    let channel = accepted.take(100_000).find_map(|accepted| match accepted {
        Ok(channel) => Some(channel),
        Err(failed) => {
            assert_eq!(failed.error, Error::Interrupted);
            None
        }
    });
    assert_eq!(channel.expect("the client").recv_by(DEADLINE).unwrap().bytes(), b"here");
    client.join().unwrap();
    drop(listener);
    interrupter.interrupt();
    interrupter.resume();
}

/// Lets an interrupt and the acceptance of the last process meet, while another thread waits for an invited process.
#[test]
fn an_interrupt_is_not_lost_beside_an_accept() {
    for _ in 0..300 {
        let (name, listener) = a_listener();
        let (interrupter, invitation) = (listener.interrupter(), listener.invite(DEADLINE).unwrap());
        let client = std::thread::spawn(move || strait::connect(&name, DEADLINE).map(drop));
        let (watched, begins) = (Watched::new(), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                watched.enter();
                invitation.accept(2 * DEADLINE).map(drop).unwrap_err().error
            });
            wait_until("the client's request was read", || is_readable(&listener));
            let accepting = scope.spawn(|| {
                begins.wait();
                while listener.accept(Deadline::NOW).is_err() {}
            });
            begins.wait();
            interrupter.interrupt();
            assert_eq!(waiting.join().unwrap(), Error::Interrupted);
            accepting.join().unwrap();
        });
        client.join().unwrap().unwrap();
    }
}
