//! Who is at the other end, what this end has done, and what is held for peers.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::IntoRawFd;
use std::sync::{Mutex, PoisonError};

use strait::bindings::PerProcess;
use strait::{BadPeer, Error, Level, Peer, Resource};

use crate::args;
use crate::channel::{enter, strait_channel};
use crate::status::{Failure, call, call_or, failed, strait_status};

/// The process at the other end, as the kernel describes it: never as it describes itself. Numbers are as seen from this process's
/// namespaces.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_peer {
    /// Its process number; 0 if it is in a process namespace that this one does not see. A number may be used again after its process
    /// has died; what `strait_channel_peer_pidfd` gives may not.
    pub pid: libc::pid_t,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// 1 if it lived when it was asked for, as far as could be found out; otherwise 0.
    pub is_alive: u32,
}

impl From<Peer> for strait_peer {
    fn from(peer: Peer) -> Self {
        Self { pid: peer.pid.map_or(0, u32::cast_signed), uid: peer.uid, gid: peer.gid, is_alive: peer.is_alive.into() }
    }
}

/// Who is at the other end. Within one process, this process. Fails with `STRAIT_WOULD_BLOCK` before the peer has opened its side. Does
/// not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_peer(channel: *const strait_channel, peer: *mut strait_peer) -> strait_status {
    call(|| {
        let nobody = strait_peer { pid: 0, uid: u32::MAX, gid: u32::MAX, is_alive: 0 };
        // SAFETY: as the C API says of both.
        let (peer, using) = unsafe { (args::out(peer, nobody, "peer is NULL")?, enter(channel)?) };
        *peer = using.channel().peer()?.ok_or(Error::WouldBlock)?.into();
        Ok(())
    })
}

/// A descriptor for the process at the other end, which stays its own even when its number is used again, and can be polled for its
/// death.
///
/// `pidfd` gets it, and it is the caller's to close; -1 on failure. Fails with `STRAIT_WOULD_BLOCK` before the peer has opened its side.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_peer_pidfd(channel: *const strait_channel, pidfd: *mut c_int) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (pidfd, using) = unsafe { (args::out(pidfd, -1, "pidfd is NULL")?, enter(channel)?) };
        *pidfd = using.channel().peer_pidfd()?.into_raw_fd();
        Ok(())
    })
}

/// What an end of a channel has done since it was made.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct strait_counters {
    /// Messages sent.
    pub messages_sent: u64,
    /// Bytes in them.
    pub bytes_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Bytes in them.
    pub bytes_received: u64,
    /// How often this end had to wake the other, by a system call.
    pub wake_ups: u64,
    /// How often this end went to sleep.
    pub sleeps: u64,
    /// Messages sent outside the ring.
    pub out_of_line: u64,
    /// Of those, how many found warm memory in the pool.
    pub pool_hits: u64,
    /// How often the ring this end sends through was replaced by a larger one.
    pub grown: u64,
    /// How often sending had to wait for room.
    pub stalls: u64,
    /// How often receiving failed since this process holds as much for the peer as it may.
    pub limits_reached: u64,
    /// For later; zeroes.
    pub reserved: [u64; 5],
}

/// What this end has done so far. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_counters(
    channel: *const strait_channel,
    counters: *mut strait_counters,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, using) =
            unsafe { (args::out(counters, strait_counters::default(), "counters is NULL")?, enter(channel)?) };
        let counters = using.channel().counters();
        *out = strait_counters {
            messages_sent: counters.messages_sent,
            bytes_sent: counters.bytes_sent,
            messages_received: counters.messages_received,
            bytes_received: counters.bytes_received,
            wake_ups: counters.wake_ups,
            sleeps: counters.sleeps,
            out_of_line: counters.out_of_line,
            pool_hits: counters.pool_hits,
            grown: counters.grown,
            stalls: counters.stalls,
            limits_reached: counters.limits_reached,
            reserved: [0; 5],
        };
        Ok(())
    })
}

/// What this process holds for a peer, and limits.
pub type strait_resource = u32;

/// Bytes of the peer's memory that are mapped here.
pub const STRAIT_MEMORY: strait_resource = 0;
/// Mappings of the peer's memory.
pub const STRAIT_MAPPINGS: strait_resource = 1;
/// Descriptors that came from the peer and that nobody has received yet, and sockets to processes to which it introduced this one.
pub const STRAIT_DESCRIPTORS: strait_resource = 2;
/// Lanes of which the peer had this process know.
pub const STRAIT_LANES: strait_resource = 3;
/// Bytes of messages that were taken out of shared memory when an end moved, and were not received yet.
pub const STRAIT_QUEUED_BYTES: strait_resource = 4;
/// Such messages.
pub const STRAIT_QUEUED_MESSAGES: strait_resource = 5;

fn resource(number: strait_resource) -> Result<Resource, Failure> {
    Ok(match number {
        STRAIT_MEMORY => Resource::Memory,
        STRAIT_MAPPINGS => Resource::Mappings,
        STRAIT_DESCRIPTORS => Resource::Descriptors,
        STRAIT_LANES => Resource::Lanes,
        STRAIT_QUEUED_BYTES => Resource::QueuedBytes,
        STRAIT_QUEUED_MESSAGES => Resource::QueuedMessages,
        _ => return Err(Failure::Invalid("resource is none of STRAIT_MEMORY to STRAIT_QUEUED_MESSAGES")),
    })
}

/// Limits are set one by one here, and all together in Rust.
static SETTING: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

/// Sets how much of something this process holds: for one peer process, whatever links lead to it, and for all peer processes of one
/// user. It holds for what is asked for from now on; what is held stays. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn strait_set_limit(resource: strait_resource, peer: u64, user: u64) -> strait_status {
    call(|| {
        let resource = self::resource(resource)?;
        let _one_at_a_time = SETTING.get().lock().unwrap_or_else(PoisonError::into_inner);
        strait::set_limits(strait::limits().peer(resource, peer).user(resource, user));
        Ok(())
    })
}

/// How much of a resource is held, and how much may be.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct strait_level {
    /// Held now.
    pub held: u64,
    /// The limit that is set now.
    pub limit: u64,
    /// How often something was refused, since more would have been held than may be.
    pub reached: u64,
}

impl From<Level> for strait_level {
    fn from(level: Level) -> Self {
        Self { held: level.held, limit: level.limit, reached: level.reached }
    }
}

/// What this process holds for the process at the other end of a channel, and for all peers of that one's user.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct strait_usage {
    /// For the process, over all links to it.
    pub peer: strait_level,
    /// For all processes of its user.
    pub user: strait_level,
    /// How many processes of the user something is held for.
    pub processes: u64,
    /// How often the process has woken this one and there was nothing.
    pub idle_wake_ups: u64,
    /// How many of those were too many, so that the peer was not listened to for a millisecond.
    pub pauses: u64,
    /// The user, if `has_uid` is 1.
    pub uid: u32,
    /// 0 for peers of which the kernel knows no user.
    pub has_uid: u32,
}

/// How much of a resource is held for the process at the other end and for its user. Fails with `STRAIT_WOULD_BLOCK` before the peer has
/// opened its side, and within one process. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_peer_usage(
    channel: *const strait_channel,
    resource: strait_resource,
    usage: *mut strait_usage,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, using) = unsafe { (args::out(usage, strait_usage::default(), "usage is NULL")?, enter(channel)?) };
        let resource = self::resource(resource)?;
        let usage = using.channel().peer_usage()?.ok_or(Error::WouldBlock)?;
        *out = strait_usage {
            peer: usage.peer(resource).into(),
            user: usage.user(resource).into(),
            processes: usage.processes(),
            idle_wake_ups: usage.idle_wake_ups(),
            pauses: usage.pauses(),
            uid: usage.uid().unwrap_or(u32::MAX),
            has_uid: usage.uid().is_some().into(),
        };
        Ok(())
    })
}

/// A peer that broke the protocol.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_bad_peer {
    /// Who it is, as the kernel says; `NULL` if it does not.
    pub peer: *const strait_peer,
    /// What it did.
    pub reason: *const c_char,
    /// 1 if its link is lost, and with it every channel over that link; 0 if it is one channel that has ended.
    pub link_lost: u32,
    /// Zero.
    pub reserved: u32,
}

/// Who is told of a peer that broke the protocol. What it points to is valid during the call.
pub type strait_tell_bad_peer = Option<unsafe extern "C" fn(bad: *const strait_bad_peer, context: *mut c_void)>;

/// A pointer of the caller's, which is handed back to its functions and otherwise never looked at.
#[derive(Clone, Copy)]
pub(crate) struct Context(*mut c_void);

// SAFETY: it is a number to us. What it points to may be used from any thread, as the caller was told.
unsafe impl Send for Context {}
// SAFETY: as before.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn new(context: *mut c_void) -> Self {
        Self(context)
    }

    pub(crate) fn get(self) -> *mut c_void {
        self.0
    }
}

/// Has `tell` called for each peer process that breaks the protocol, in place of what was called before; `NULL` for nothing. The library
/// writes no logs.
///
/// It is called in whichever thread is just in a call of this library, where that holds no lock: it may call anything. `context` is
/// handed to it, and must be good as long as the process lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_on_bad_peer(tell: strait_tell_bad_peer, context: *mut c_void) {
    let context = Context::new(context);
    call_or((), || {
        strait::on_bad_peer(move |bad: &BadPeer| {
            let Some(tell) = tell else { return };
            let peer = bad.peer.map(strait_peer::from);
            // Without a zero in it, which no reason has.
            let reason = std::ffi::CString::new(bad.reason).unwrap_or_default();
            let told = strait_bad_peer {
                peer: peer.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
                reason: reason.as_ptr(),
                link_lost: bad.link_lost.into(),
                reserved: 0,
            };
            // SAFETY: as the C API says of both.
            unsafe { tell(&told, context.get()) };
        });
    });
}

/// The failure of which a function of the caller's is told, to be asked for with `strait_last_error_text`.
pub(crate) fn say(error: Error) -> strait_status {
    failed(Failure::Strait(error))
}
