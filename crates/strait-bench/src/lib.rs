//! The scenes of the micro-benchmarks: the main paths of Strait, each as a scene of a thousand messages within one
//! process.
//!
//! `benches/time.rs` measures the time of each scene, meaningful on one machine only. `benches/instructions.rs` counts
//! the instructions of each scene, independent of other work on the machine, and compares each count with a recorded
//! count.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use strait::benchmarks::{Ring, Sleeper, table_is_sound};
use strait::call::CallEnd;
use strait::view::Value;
use strait::wait::{Event, Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Handle, Message, Outgoing};

/// The number of messages in a scene.
pub const COUNT: usize = 1000;

/// A benchmark case, ready to run any number of times.
pub struct Scene(Box<dyn FnMut()>);

impl fmt::Debug for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scene").finish_non_exhaustive()
    }
}

impl Scene {
    /// Returns the scene that runs `act`. The scene runs once here, so that one-time work is not measured.
    fn of(mut act: impl FnMut() + 'static) -> Self {
        act();
        Self(Box::new(act))
    }

    /// Plays the scene once.
    pub fn play(&mut self) {
        (self.0)();
    }
}

fn pair() -> (Channel, Channel) {
    Channel::pair().expect("a channel")
}

/// A record of 56 bytes is published and consumed: the ring alone.
pub fn ring() -> Scene {
    let mut ring = Ring::new(256);
    let mut buffer = [MaybeUninit::uninit(); 56];
    Scene::of(move || {
        for _ in 0..COUNT {
            assert!(ring.publish(&[7; 56]));
            assert_eq!(ring.take(&mut buffer), Some(56));
        }
    })
}

/// A sender checks a sleep word in which no receiver sleeps.
pub fn wake_check() -> Scene {
    let sleeper = Sleeper::default();
    Scene::of(move || {
        for _ in 0..COUNT {
            assert!(!std::hint::black_box(&sleeper).take());
        }
    })
}

/// A handle table of eight handles, four of them channel ends, is parsed.
pub fn table() -> Scene {
    let mut table = 8u32.to_le_bytes().to_vec();
    table.extend([0, 1, 0, 1, 0, 1, 0, 1]);
    for end in 0..4u8 {
        table.extend([end; 16]);
        table.extend([0, 0, 0, 0, 0, 0]);
    }
    assert!(table_is_sound(&table, 8));
    Scene::of(move || {
        for _ in 0..COUNT {
            assert!(table_is_sound(&table, 8));
        }
    })
}

/// A message of `size` bytes is sent and received into a buffer.
pub fn message(size: usize) -> Scene {
    let (one, other) = pair();
    let bytes = vec![7; size];
    let mut buffer = vec![0; size];
    Scene::of(move || {
        for _ in 0..COUNT {
            one.send(&bytes[..]).expect("room");
            other.recv_into(&mut buffer, Deadline::NEVER).expect("a message");
        }
    })
}

/// A message of `size` bytes is sent by a sending half and received into a buffer by a receiving half.
pub fn halves(size: usize) -> Scene {
    let (one, other) = pair();
    let ((mut sender, one), (two, mut receiver)) = (one.split(), other.split());
    let bytes = vec![7; size];
    let mut buffer = vec![0; size];
    Scene::of(move || {
        let _whole = (&one, &two);
        for _ in 0..COUNT {
            sender.send(&bytes[..]).expect("room");
            receiver.recv_into(&mut buffer, Deadline::NEVER).expect("a message");
        }
    })
}

/// A message of `size` bytes is sent, received into a buffer, and sent back and received: Mojo's ping-pong.
pub fn round_trip(size: usize) -> Scene {
    let (one, other) = pair();
    let bytes = vec![7; size];
    let mut buffer = vec![0; size];
    Scene::of(move || {
        for _ in 0..COUNT {
            one.send(&bytes[..]).expect("room");
            other.recv_into(&mut buffer, Deadline::NEVER).expect("a message");
            other.send(&buffer[..]).expect("room");
            one.recv_into(&mut buffer, Deadline::NEVER).expect("a message");
        }
    })
}

/// A call of 64 bytes, with its reply, in one thread.
pub fn call() -> Scene {
    let (one, other) = pair();
    let (client, server) = (CallEnd::over(one), CallEnd::over(other));
    Scene::of(move || {
        for _ in 0..COUNT {
            let pending = client.begin_call(&[7; 64], Deadline::NEVER).expect("room");
            server.next_request(Deadline::NEVER).expect("a request").reply(&[8; 64], Deadline::NEVER).expect("room");
            assert_eq!(pending.wait(Deadline::NEVER).expect("a reply").bytes(), [8; 64]);
        }
    })
}

/// Messages of 56 bytes, sent in batches of sixteen and received singly.
pub fn batch() -> Scene {
    let (one, other) = pair();
    let mut buffer = [0; 56];
    Scene::of(move || {
        for _ in 0..COUNT / 16 {
            one.send_many((0..16).map(|_| Outgoing::new(&[7; 56])), Deadline::NEVER).expect("room");
            for _ in 0..16 {
                other.recv_into(&mut buffer, Deadline::NEVER).expect("a message");
            }
        }
    })
}

/// A message of 4 KiB is filled and read in place.
pub fn in_place() -> Scene {
    let (one, other) = pair();
    let mut first = [0; 8];
    Scene::of(move || {
        for _ in 0..COUNT {
            let mut message = one.reserve(4096, Deadline::NEVER).expect("room");
            message.write_at(&[7; 8], 0);
            message.commit_first(4096).expect("a peer");
            other.recv_in_place(Deadline::NEVER).expect("a message").read_at(&mut first, 0);
        }
    })
}

/// A value that owns 64 KiB, and can be turned into bytes.
struct Owned(Box<[u8; 64 << 10]>);

impl Value for Owned {
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        (self.0.to_vec(), Vec::new())
    }

    fn size(&self) -> usize {
        self.0.len()
    }
}

/// A value is sent and received, then sent again in the next round; the memory of the value is not copied.
pub fn value() -> Scene {
    let (one, other) = pair();
    let mut held = Some(Owned(Box::new([7; 64 << 10])));
    Scene::of(move || {
        for _ in 0..COUNT {
            let value = held.take().expect("it came back");
            one.send_value(value, Deadline::NEVER).expect("room");
            held = other.recv().expect("a message").take_value();
        }
    })
}

/// A message of 56 bytes is received and forwarded to another channel.
pub fn forward() -> Scene {
    let ((one, from), (to, other)) = (pair(), pair());
    let mut message = Message::new();
    let mut buffer = [0; 56];
    Scene::of(move || {
        for _ in 0..COUNT {
            one.send(&[7; 56]).expect("room");
            from.recv_message(&mut message, Deadline::NEVER).expect("a message");
            to.forward(&mut message, Deadline::NEVER).expect("room");
            other.recv_into(&mut buffer, Deadline::NEVER).expect("a message");
        }
    })
}

/// A descriptor is sent, taken out of its message, and sent again in the next round.
pub fn descriptor() -> Scene {
    let (one, other) = pair();
    let mut held: Option<OwnedFd> = Some(std::fs::File::open("/dev/null").expect("/dev/null").into());
    Scene::of(move || {
        for _ in 0..COUNT {
            let fd = held.take().expect("it came back");
            one.send(Outgoing::new(b"take this").handle(fd)).expect("room");
            let mut handles = other.recv().expect("a message").take_handles().expect("a descriptor");
            held = handles.pop().and_then(Handle::into_fd);
        }
    })
}

/// A channel is made, one end is sent over another channel, and a message is received through the moved end.
pub fn end() -> Scene {
    let (one, other) = pair();
    Scene::of(move || {
        for _ in 0..COUNT {
            let (here, there) = pair();
            one.send(Outgoing::new(b"take this").handle(there)).expect("room");
            let mut handles = other.recv().expect("a message").take_handles().expect("an end");
            let there = handles.pop().and_then(Handle::into_channel).expect("an end");
            here.send(b"through it").expect("room");
            there.recv().expect("a message");
        }
    })
}

/// A wait set of a thousand channels reports the single ready channel.
pub fn wait_set() -> Scene {
    let set = WaitSet::new().expect("a wait set");
    let pairs: Vec<_> = (0..1000).map(|_| pair()).collect();
    for (key, (_, other)) in pairs.iter().enumerate() {
        set.add(other, key as u64, Interest::Readable, Mode::Level).expect("room");
    }
    let mut events: Vec<Event> = Vec::new();
    let mut buffer = [0; 56];
    Scene::of(move || {
        for turn in 0..COUNT {
            let key = turn * 7 % 1000;
            pairs[key].0.send(&[7; 56]).expect("room");
            events.clear();
            set.wait(&mut events, Deadline::NEVER).expect("an event");
            assert_eq!(events[0].key(), key as u64);
            pairs[key].1.recv_into(&mut buffer, Deadline::NEVER).expect("a message");
        }
    })
}
