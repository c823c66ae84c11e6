//! What a wait set sleeps on: an epoll instance, and an eventfd that is this process's alone.
//!
//! No eventfd is ever shared with a peer, which could fill its counter so that our write to it blocks.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{self, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use super::{Named, call};
use crate::error::Error;

/// A new epoll instance, closed on `exec`.
pub(crate) fn create() -> Result<OwnedFd, Error> {
    call("epoll_create1", || epoll::create(epoll::CreateFlags::CLOEXEC)).named("epoll_create1")
}

/// Has it watch a descriptor for reading and for a hang-up, by this number.
pub(crate) fn add(epoll: &OwnedFd, fd: impl AsFd, number: u64) -> Result<(), Error> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
    call("epoll_ctl", || epoll::add(epoll, fd, epoll::EventData::new_u64(number), flags)).named("epoll_ctl")
}

/// Has it watch one that it watches already for room to write as well, or no longer. Whether it does as asked.
pub(crate) fn watch(epoll: &OwnedFd, fd: impl AsFd, number: u64, for_room: bool) -> bool {
    let mut flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
    flags.set(epoll::EventFlags::OUT, for_room);
    call("epoll_ctl(MOD)", || epoll::modify(epoll, fd.as_fd(), epoll::EventData::new_u64(number), flags)).is_ok()
}

/// Has it watch one that it may watch already. Whether it does.
pub(crate) fn add_again(epoll: &OwnedFd, fd: impl AsFd, number: u64) -> bool {
    let flags = epoll::EventFlags::IN;
    matches!(epoll::add(epoll, fd, epoll::EventData::new_u64(number), flags), Ok(()) | Err(Errno::EXIST))
}

/// Has it watch a descriptor no more. One that is not watched is none.
pub(crate) fn remove(epoll: &OwnedFd, fd: impl AsFd) {
    let _ = call("epoll_ctl(DEL)", || epoll::delete(epoll, fd));
}

/// Room for what is found at a time.
pub(crate) type Found = [std::mem::MaybeUninit<epoll::Event>; 64];

/// Sleeps until something it watches is ready, for at most `limit`; the numbers of what is. A signal ends it with none.
pub(crate) fn wait<'a>(
    epoll: &OwnedFd,
    found: &'a mut Found,
    limit: Option<Duration>,
) -> Result<impl Iterator<Item = u64> + 'a, Error> {
    let limit = limit
        .map(|d| Timespec { tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), tv_nsec: d.subsec_nanos().into() });
    let found = match call("epoll_wait", || epoll::wait(epoll, &mut found[..], limit.as_ref())) {
        Ok((found, _)) => &*found,
        Err(Errno::INTR) => &[],
        Err(errno) => return Err(super::failed("epoll_wait", errno)),
    };
    Ok(found.iter().map(|event| event.data.u64()))
}

/// A clock that makes itself readable once, some time after it was [set](set_timer).
pub(crate) fn timer() -> Result<OwnedFd, Error> {
    time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
        .named("timerfd_create")
}

/// Makes it readable in so long, and not before. False if that cannot be.
pub(crate) fn set_timer(timer: &OwnedFd, after: Duration) -> bool {
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let it_value = Timespec { tv_nsec: after.subsec_nanos().max(1).into(), tv_sec: after.as_secs() as i64 };
    let once = Itimerspec { it_interval: never, it_value };
    time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &once).is_ok()
}

/// A bell for the threads of this process.
pub(crate) fn bell() -> Result<OwnedFd, Error> {
    call("eventfd", || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)).named("eventfd")
}

/// Makes it readable.
pub(crate) fn ring(bell: &OwnedFd) {
    // Only a full counter refuses it, and that is readable.
    let _ = call("write", || rustix::io::write(bell, &1u64.to_ne_bytes()));
}

/// Makes it readable no more.
pub(crate) fn silence(bell: &OwnedFd) {
    let mut count = [0; 8];
    let _ = call("read", || rustix::io::read(bell, &mut count));
}
