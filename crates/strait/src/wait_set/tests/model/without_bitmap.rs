//! A peer that does not have the notification area, or gets it late: [`Round`] and the shipped area under the model
//! checker.
//!
//! The model leaves out once each step that such a peer takes for its receiver ([`Broken`]). The checker then finds a
//! receiver that sleeps on.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use loom::sync::Mutex;
use loom::sync::atomic::fence;
use loom::thread;

use super::{Bitmap, NUMBER, new_bitmap};
use crate::lane::waiter;
use crate::ring::ready_bitmap::{self, Collector, ON_SOCKET, ON_WORD, Round, Words};
use crate::ring::tests::harness::{Fence, Futex, SharedTable, Tracked32, check_within, word32};
use crate::ring::{Word, announce, take_sleeper};

/// The step that the model leaves out or does in the wrong order, to show that the checker finds a receiver that is not
/// woken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The model leaves out this step, as a deliberate error: a peer without the notification area sends a wake packet.
    WakePacket,
    /// The model leaves out this step, as a deliberate error: a peer whose packet the kernel refused puts the value
    /// that it took back into the member's sleep word.
    GiveBack,
    /// The model leaves out this step, as a deliberate error: after sending a packet a peer checks whether its process
    /// has received the notification area in the meantime.
    Post,
    /// The model takes two steps in the wrong order, as a deliberate error: a peer acknowledges the notification area
    /// before its own threads can see the area.
    KnownFirst,
    /// The model leaves out this step, as a deliberate error: the receiving process looks at all members once more
    /// after the first packet since the peer has acknowledged the notification area.
    LastRound,
}

/// Says at which time the peer in the model gets the notification area.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// The peer gets the notification area at any time during the run: another thread of the peer's process receives
    /// the area.
    Late,
    Never,
}

/// A model of one member of a wait set and of its peer, which may lack the notification area.
struct World {
    broken: Broken,
    /// The number of messages that the peer has published.
    published: Tracked32,
    /// The sleep word of the member: armed, or 0 after the peer has taken the value.
    listening: Tracked32,
    bitmap: Arc<Bitmap>,
    /// 1 if the peer's process has received the notification area, and otherwise 0.
    has_bitmap: Tracked32,
    /// The number of packets in the socket, and how many of the next packets the kernel refuses.
    packets: Mutex<(u32, u32)>,
    /// The futex that stands for the socket, on which the waiting thread sleeps while the peer has no notification
    /// area. With the area the thread sleeps on `on_word`, the sleep word of the area.
    on_socket: Futex,
    on_word: Futex,
}

/// Returns the sleep word of a member of a wait set that is armed, because a look at the member found nothing.
fn listening() -> Tracked32 {
    let word = word32();
    word.store(waiter::on_set(NUMBER, false), SeqCst);
    word
}

impl World {
    fn new(broken: Broken, refused: u32) -> Arc<Self> {
        Arc::new(Self {
            broken,
            published: word32(),
            listening: listening(),
            bitmap: new_bitmap(),
            has_bitmap: word32(),
            packets: Mutex::new((0, refused)),
            on_socket: Futex::default(),
            on_word: Futex::default(),
        })
    }

    fn publish(&self, message: u32) {
        self.published.swap(message, SeqCst);
        fence(SeqCst);
        let how = take_sleeper(&self.listening);
        if how != 0 && !self.notify() && self.broken != Broken::GiveBack {
            // Models `waiter::wake`.
            let _ = self.listening.compare_exchange(0, how, SeqCst, SeqCst);
        }
    }

    /// Models `Link::notify`: the peer notifies the member. Returns `false` if the kernel refuses the packet.
    fn notify(&self) -> bool {
        ready_bitmap::before_notifying::<Arc<Bitmap>>();
        if self.has_bitmap.load(Acquire) == 0 {
            return self.notify_by_packet();
        }
        match ready_bitmap::notify(&self.bitmap, ready_bitmap::MemberId::new(NUMBER).unwrap()) {
            0 => {}
            ON_WORD => self.on_word.wake(),
            _ => assert!(self.wake()),
        }
        true
    }

    fn notify_by_packet(&self) -> bool {
        if self.broken == Broken::WakePacket {
            return true;
        }
        let sent = self.wake();
        if self.broken != Broken::Post && self.has_bitmap.load(Acquire) != 0 && ready_bitmap::post(&self.bitmap) {
            self.on_word.wake();
        }
        sent
    }

    /// Models `Link::wake`: the peer sends a wake packet. Returns `false`, and wakes no thread, if the kernel refuses
    /// the packet.
    fn wake(&self) -> bool {
        let mut packets = self.packets.lock().unwrap();
        if packets.1 > 0 {
            packets.1 -= 1;
            return false;
        }
        packets.0 += 1;
        drop(packets);
        self.on_socket.wake();
        true
    }

    /// Models `Link::learn_bitmap`: the peer's process receives the notification area, and then acknowledges the area
    /// in its words.
    fn learn_bitmap(&self) {
        if self.broken == Broken::KnownFirst {
            ready_bitmap::acknowledge(&self.bitmap);
            self.has_bitmap.store(1, Release);
        } else {
            self.has_bitmap.store(1, Release);
            ready_bitmap::acknowledge(&self.bitmap);
        }
    }

    fn is_known(&self) -> bool {
        self.bitmap.known().load(SeqCst) != 0
    }

    fn has_packet(&self) -> bool {
        self.packets.lock().unwrap().0 > 0
    }

    /// Models the receive from the socket, and `Link::begin_round`: takes all packets, and begins a round through the
    /// members if there was a packet.
    fn receive(&self, round: &mut Round) {
        if std::mem::take(&mut self.packets.lock().unwrap().0) > 0 {
            let known = self.is_known();
            if !known || self.broken != Broken::LastRound {
                round.begin(1, known);
            }
        }
    }

    /// Models the look at the member: checks for messages beyond `seen`, and arms the member if there are none. Returns
    /// `true` if there were some, or if some appeared while the member was armed.
    fn look(&self, seen: &mut u32) -> bool {
        let now = self.published.load(SeqCst);
        if std::mem::replace(seen, now) != now {
            return true;
        }
        announce::<SharedTable<Fence>>(&self.listening, waiter::on_set(NUMBER, false));
        self.published.load(SeqCst) != now
    }

    /// Runs the waiting thread of the model's wait set, which returns when it has seen `messages` messages.
    fn wait_for(&self, messages: u32) {
        let mut collector = Collector::new(self.bitmap.clone());
        let (mut round, mut seen, mut queued, mut hears_socket) = (Round::default(), 0, false, false);
        while seen < messages {
            if std::mem::take(&mut hears_socket) {
                self.receive(&mut round);
            }
            queued |= round.next(1).is_some();
            collector.collect(9, |_| queued = true);
            if std::mem::take(&mut queued) {
                queued = self.look(&mut seen);
                continue;
            }
            if self.is_known() {
                ready_bitmap::announce(&self.bitmap, ON_WORD);
                if collector.is_empty() && !ready_bitmap::has_post(&self.bitmap) {
                    self.on_word.wait(self.bitmap.sleeping(), ON_WORD);
                }
                hears_socket = ready_bitmap::take_post(&self.bitmap);
                ready_bitmap::leave(&self.bitmap);
            } else {
                ready_bitmap::announce(&self.bitmap, ON_SOCKET);
                if collector.is_empty() {
                    self.on_socket.wait_while(|| !self.has_packet());
                }
                hears_socket = true;
            }
        }
    }
}

/// Runs a model in which a peer sends `messages` messages and the kernel refuses the first `refused` of its wake
/// packets. Checks that the wait set finds all messages. `when` says when the peer gets the notification area. `broken`
/// is the step to leave out or misplace as a deliberate error, and then the check fails; [`Broken::Nothing`] changes
/// none.
fn all_are_heard(when: When, messages: u32, refused: u32, broken: Broken) {
    check_within(2, move || {
        let world = World::new(broken, refused);
        let peer = {
            let world = world.clone();
            thread::spawn(move || (1..=messages).for_each(|message| world.publish(message)))
        };
        let learner = (when == When::Late).then(|| {
            let world = world.clone();
            thread::spawn(move || world.learn_bitmap())
        });
        world.wait_for(messages);
        peer.join().unwrap();
        learner.into_iter().for_each(|learner| learner.join().unwrap());
    });
}

#[test]
fn a_peer_that_never_has_the_bitmap_is_heard() {
    all_are_heard(When::Never, 2, 0, Broken::Nothing);
}

#[test]
fn a_peer_that_gets_the_bitmap_late_is_heard() {
    all_are_heard(When::Late, 2, 0, Broken::Nothing);
}

#[test]
fn a_peer_whose_packet_is_refused_is_heard_with_its_next_message() {
    all_are_heard(When::Never, 2, 1, Broken::Nothing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_peer_without_the_bitmap_that_sends_no_wake_packet_is_not_heard() {
    all_are_heard(When::Never, 1, 0, Broken::WakePacket);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_peer_that_gets_the_bitmap_late_and_has_sent_no_wake_packet_is_not_heard() {
    all_are_heard(When::Late, 1, 0, Broken::WakePacket);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_peer_that_keeps_the_word_of_a_refused_packet_is_not_heard() {
    all_are_heard(When::Never, 2, 1, Broken::GiveBack);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_a_look_for_the_bitmap_after_a_packet_a_reader_on_the_word_does_not_hear_it() {
    all_are_heard(When::Late, 1, 0, Broken::Post);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_peer_that_says_too_early_that_it_has_the_bitmap_is_not_heard() {
    all_are_heard(When::Late, 2, 0, Broken::KnownFirst);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_last_round_a_message_is_not_heard() {
    all_are_heard(When::Late, 1, 0, Broken::LastRound);
}
