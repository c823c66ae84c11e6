//! The descriptors on which a wait set sleeps: an epoll instance, and an eventfd that only this process has.
//!
//! No eventfd is ever shared with a peer: a peer could fill the counter of the eventfd, and then a write by this
//! process would block.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{self, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use super::process::held;
use super::{Named, call};
use crate::error::Error;

/// Creates an epoll instance, which is closed on `exec`.
pub(crate) fn create() -> Result<OwnedFd, Error> {
    call("epoll_create1", || epoll::create(epoll::CreateFlags::CLOEXEC)).named("epoll_create1")
}

/// Makes the epoll instance watch `fd` for reading and for a hang-up. Events of the descriptor carry `number`. Fails if
/// the instance watches the descriptor already.
pub(crate) fn add(epoll: &OwnedFd, fd: impl AsFd, number: u64) -> Result<(), Error> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
    call("epoll_ctl", || epoll::add(epoll, fd, epoll::EventData::new_u64(number), flags)).named("epoll_ctl")
}

/// Makes the epoll instance report `fd` once, under `number`, when the descriptor is readable or writable, as `wanted`
/// asks; always also on an error or a hang-up. A file that epoll does not support is left out: such a file is always
/// ready. Fails if the instance watches the descriptor already.
pub(crate) fn add_once(epoll: &OwnedFd, fd: impl AsFd, number: u64, wanted: Wanted) -> Result<(), Error> {
    match call("epoll_ctl", || epoll::add(epoll, fd, epoll::EventData::new_u64(number), wanted.once())) {
        Err(Errno::PERM) => Ok(()),
        added => added.named("epoll_ctl"),
    }
}

/// Makes the epoll instance, which watches `fd`, report the descriptor once more under `number`: now, if `fd` is ready
/// now.
pub(crate) fn watch_once(epoll: &OwnedFd, fd: impl AsFd, number: u64, wanted: Wanted) -> Result<(), Error> {
    let data = epoll::EventData::new_u64(number);
    call("epoll_ctl(MOD)", || epoll::modify(epoll, fd.as_fd(), data, wanted.once())).named("epoll_ctl")
}

/// The events of a descriptor of the program for which a wait set waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

impl Wanted {
    fn once(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::ONESHOT;
        flags.set(epoll::EventFlags::IN | epoll::EventFlags::RDHUP, self.readable);
        flags.set(epoll::EventFlags::OUT, self.writable);
        flags
    }
}

/// Returns the `wanted` events of `fd` that have come, without waiting. An error or a hang-up counts as both events:
/// the next read or write returns at once.
pub(crate) fn look(fd: impl AsFd, wanted: Wanted) -> Result<Wanted, Error> {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN | PollFlags::RDHUP, wanted.readable);
    flags.set(PollFlags::OUT, wanted.writable);
    let mut fds = [PollFd::new(&fd, flags)];
    loop {
        match call("ppoll", || poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(super::failed("poll", errno)),
        }
    }
    let found = fds[0].revents();
    let over = found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
    Ok(Wanted {
        readable: wanted.readable && (over || found.intersects(PollFlags::IN | PollFlags::RDHUP)),
        writable: wanted.writable && (over || found.contains(PollFlags::OUT)),
    })
}

/// Changes the events for which the epoll instance watches `fd`: reading, a hang-up and, if `for_room` is set, room to
/// write. Events of the descriptor then carry `number`. Returns whether the change succeeded.
pub(crate) fn watch(epoll: &OwnedFd, fd: impl AsFd, number: u64, for_room: bool) -> bool {
    let mut flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
    flags.set(epoll::EventFlags::OUT, for_room);
    call("epoll_ctl(MOD)", || epoll::modify(epoll, fd.as_fd(), epoll::EventData::new_u64(number), flags)).is_ok()
}

/// Makes the epoll instance, which watches `fd` under `number`, report no event of the descriptor but an error or a
/// hang-up, until [`resume`]. Needs no memory, so that the kernel refuses the call only if a filter of system calls
/// does.
pub(crate) fn pause(epoll: &OwnedFd, fd: impl AsFd, number: u64) -> Result<(), Error> {
    let (data, flags) = (epoll::EventData::new_u64(number), epoll::EventFlags::empty());
    call("epoll_ctl(MOD)", || epoll::modify(epoll, fd.as_fd(), data, flags)).named("epoll_ctl")
}

/// Makes the epoll instance report `fd` as after [`add`], after [`pause`].
pub(crate) fn resume(epoll: &OwnedFd, fd: impl AsFd, number: u64) {
    watch(epoll, fd, number, false);
}

/// Makes the epoll instance watch `fd` for reading, with `number` in its events; changes nothing if the instance
/// watches the descriptor already. Returns whether the instance watches the descriptor now.
pub(crate) fn add_again(epoll: &OwnedFd, fd: impl AsFd, number: u64) -> bool {
    let flags = epoll::EventFlags::IN;
    matches!(epoll::add(epoll, fd, epoll::EventData::new_u64(number), flags), Ok(()) | Err(Errno::EXIST))
}

/// Makes the epoll instance `epoll` no longer watch `fd`. Does nothing if the instance does not watch the descriptor.
pub(crate) fn remove(epoll: &OwnedFd, fd: impl AsFd) {
    let _ = call("epoll_ctl(DEL)", || epoll::delete(epoll, fd));
}

/// Buffer into which [`wait`] puts the events of one call: at most 64.
pub(crate) type Found = [std::mem::MaybeUninit<epoll::Event>; 64];

/// Sleeps until a descriptor that the epoll instance watches is ready, for at most `limit` (`None`: without a limit).
/// Returns the numbers in the events of the ready descriptors: none if `limit` has passed or a signal ended the sleep.
pub(crate) fn wait<'a>(
    epoll: &OwnedFd,
    found: &'a mut Found,
    limit: Option<Duration>,
) -> Result<impl Iterator<Item = u64> + 'a, Error> {
    let mut limit = limit
        .map(|d| Timespec { tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), tv_nsec: d.subsec_nanos().into() });
    if held::is_holding() {
        // The sleep in `held::poll` lets signals through; the call of `epoll_wait` below does not sleep.
        match call("ppoll", || held::poll(&mut [PollFd::new(epoll, PollFlags::IN)], limit.as_ref())) {
            Ok(_) => {}
            Err(Errno::INTR) => {
                crate::signals::interrupted();
            }
            Err(errno) => return Err(super::failed("poll", errno)),
        }
        limit = Some(Timespec { tv_sec: 0, tv_nsec: 0 });
    }
    let found = match call("epoll_wait", || epoll::wait(epoll, &mut found[..], limit.as_ref())) {
        Ok((found, _)) => &*found,
        Err(Errno::INTR) => {
            crate::signals::interrupted();
            &[]
        }
        Err(errno) => return Err(super::failed("epoll_wait", errno)),
    };
    Ok(found.iter().map(|event| event.data.u64()))
}

/// Creates a timer: a descriptor that becomes readable once, when the time given to [`set_timer`] has passed.
pub(crate) fn timer() -> Result<OwnedFd, Error> {
    time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
        .named("timerfd_create")
}

/// Makes the timer readable when `after` has passed from now, and not readable until then. Returns `false` if the
/// kernel refused.
pub(crate) fn set_timer(timer: &OwnedFd, after: Duration) -> bool {
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let it_value = Timespec { tv_nsec: after.subsec_nanos().max(1).into(), tv_sec: after.as_secs() as i64 };
    let once = Itimerspec { it_interval: never, it_value };
    time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &once).is_ok()
}

/// Creates a wake fd: an eventfd that only threads of this process use.
pub(crate) fn wake_fd() -> Result<OwnedFd, Error> {
    call("eventfd", || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)).named("eventfd")
}

/// Makes the wake fd `fd` readable: a sleep in `poll` or `epoll` on the wake fd ends.
pub(crate) fn signal(fd: &OwnedFd) {
    // Only a full counter refuses the write, and then the wake fd is readable anyway.
    let _ = call("write", || rustix::io::write(fd, &1u64.to_ne_bytes()));
}

/// Makes the wake fd or timer `fd` not readable, until it is signalled again or its time has passed again.
pub(crate) fn reset(fd: &OwnedFd) {
    let mut count = [0; 8];
    let _ = call("read", || rustix::io::read(fd, &mut count));
}
