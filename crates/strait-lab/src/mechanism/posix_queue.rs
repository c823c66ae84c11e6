//! Two POSIX message queues, one for each direction.
//!
//! A queue keeps messages whole, and messages of one priority in order. On Linux a queue is a descriptor, and a message
//! goes straight to a receiver that sleeps. A receiver must have room for the largest message that the queue takes, so
//! the queues are created for exactly the measured size.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::keeper::Keeper;
use super::{Ability, End, Hub, Opened, Receiving, Sending, Side, exactly, hub, note};
use crate::sys::posix;
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// The number of messages that a queue holds: as many as an unprivileged process may ask for (`fs.mqueue.msg_max`).
const HELD: usize = 10;

/// One process's end of two POSIX queues.
#[derive(Debug)]
pub(crate) struct PosixQueue {
    out: OwnedFd,
    inward: OwnedFd,
    /// A buffer for the largest message, used when a smaller one is expected.
    room: Vec<u8>,
    _keeper: Option<Keeper>,
}

impl End for PosixQueue {
    const NAME: &'static str = "posix-queue";
    const TITLE: &'static str = "POSIX message queue";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] = &[Ability::Stream, Ability::Shared, Ability::Hub, Ability::Threads];
    const MOST: usize = posix::QUEUE_MOST;

    fn missing() -> Option<String> {
        let limit = |name| fs::read_to_string(format!("/proc/sys/fs/mqueue/{name}")).ok()?.trim().parse::<usize>().ok();
        let Some(held) = limit("msg_max") else {
            return Some("this kernel has no POSIX message queues (CONFIG_POSIX_MQUEUE)".to_owned());
        };
        if held < HELD {
            return Some(format!("fs.mqueue.msg_max is {held}; {HELD} are needed"));
        }
        let size = limit("msgsize_max").unwrap_or(0);
        (size < Self::MOST).then(|| format!("fs.mqueue.msgsize_max is {size}; {} are needed", Self::MOST))
    }

    fn open(work: &Work) -> Result<Opened> {
        let keeper = Keeper::start()?;
        let make = |name: &CString| match posix::make_queue(name, HELD, work.size, work.wait == Wait::Spin) {
            Err(Errno::MFILE) => Err(Trouble::new("mq_open: the limit on queues is reached (ulimit -q)")),
            made => made.doing("mq_open"),
        };
        let names = [keeper.queue_name()?, keeper.queue_name()?];
        let (there, back) = (make(&names[0])?, make(&names[1])?);
        Ok(Opened { first: vec![there, back, keeper.into_descriptor()], second: vec![note::write(&names)?] })
    }

    fn join(work: &Work, side: Side, mut descriptors: Vec<OwnedFd>) -> Result<Self> {
        let keeper = Keeper::of(side, &mut descriptors);
        let [there, back] = match side {
            Side::First => exactly(descriptors)?,
            Side::Second => {
                let [names] = exactly(descriptors)?;
                let names: [CString; 2] = note::read(names)?;
                let open = |name: &CString| -> Result<OwnedFd> {
                    let queue = posix::open_queue(name, work.wait == Wait::Spin).doing("mq_open")?;
                    // Both sides have the queue open now, so the name is not needed, unless several processes share the
                    // queue.
                    if !work.shape.crowd().is_some_and(|crowd| crowd.shared) {
                        posix::unlink_queue(name).doing("mq_unlink")?;
                    }
                    Ok(queue)
                };
                [open(&names[0])?, open(&names[1])?]
            }
        };
        let (out, inward) = side.of(there, back);
        Ok(Self { out, inward, room: vec![0; work.size], _keeper: keeper })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        put(&self.out, message)
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        get(&self.inward, &mut self.room, buffer)
    }

    fn divide(&mut self) -> Result<(Sending<'_>, Receiving<'_>)> {
        let (out, inward, room) = (&self.out, &self.inward, &mut self.room);
        Ok((Box::new(move |message| put(out, message)), Box::new(move |buffer| get(inward, room, buffer))))
    }

    fn hub(ends: Vec<Self>, work: &Work) -> Result<Box<dyn Hub>> {
        hub::polled(ends, work)
    }
}

impl AsFd for PosixQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inward.as_fd()
    }
}

/// Sends `message` to `queue`.
#[inline]
fn put(queue: &OwnedFd, message: &[u8]) -> Result<()> {
    loop {
        match posix::send(queue.as_fd(), message) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("mq_send"),
        }
    }
}

/// Receives a message of the length of `buffer`. If the queue's messages may be larger, it is received into `room`
/// first.
#[inline]
fn get(queue: &OwnedFd, room: &mut [u8], buffer: &mut [u8]) -> Result<()> {
    let due = buffer.len();
    let short = due < room.len();
    loop {
        let place = if short { &mut *room } else { &mut *buffer };
        match posix::recv(queue.as_fd(), place) {
            Ok(got) if got == due => {
                if short {
                    buffer.copy_from_slice(&room[..due]);
                }
                return Ok(());
            }
            Ok(got) => return Err(Trouble::new(format!("a message of {got} bytes arrived"))),
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("mq_receive"),
        }
    }
}
