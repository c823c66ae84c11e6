//! The peer of a channel, the counters of an end, and the limits and usage of resources held by this process for peers.

use std::collections::HashSet;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::IntoRawFd;
use std::sync::{Mutex, PoisonError};

use strait::bindings::PerProcess;
use strait::quota::{BadPeer, Level, Reported, Resource};
use strait::{Error, Peer};

use crate::args;
use crate::channel::{enter, strait_channel};
use crate::receive::strait_message;
use crate::status::{Failure, call, call_or, failed, strait_status};

/// The process at the other end. All fields come from the kernel, none from the process. Numbers are as seen from the
/// namespaces of this process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_peer {
    /// The process number; 0 if the process is in a PID namespace that this process does not see. The kernel may reuse
    /// the number after the process has died; the pidfd of `strait_channel_peer_pidfd` stays unambiguous.
    pub pid: libc::pid_t,
    /// The uid of the process.
    pub uid: u32,
    /// The gid of the process.
    pub gid: u32,
    /// 1 if the process was alive when this value was made, as far as could be found out; otherwise 0.
    pub is_alive: u32,
}

impl From<Peer> for strait_peer {
    fn from(peer: Peer) -> Self {
        Self { pid: peer.pid.map_or(0, u32::cast_signed), uid: peer.uid, gid: peer.gid, is_alive: peer.is_alive.into() }
    }
}

/// Writes the process at the other end to `peer`; for a channel within one process, this process. Fails with
/// `STRAIT_WOULD_BLOCK` before the peer has opened its side. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_peer(channel: *const strait_channel, peer: *mut strait_peer) -> strait_status {
    call(|| {
        let nobody = strait_peer { pid: 0, uid: u32::MAX, gid: u32::MAX, is_alive: 0 };
        // SAFETY: the header requires both pointers to be valid.
        let (peer, using) = unsafe { (args::out(peer, nobody, "peer is NULL")?, enter(channel)?) };
        *peer = using.channel().peer()?.ok_or(Error::WouldBlock)?.into();
        Ok(())
    })
}

/// Makes a pidfd for the process at the other end. It keeps meaning that process after the process number is reused,
/// and can be polled for the death of the process.
///
/// `pidfd` receives the descriptor, or -1 on failure; the caller has to close the descriptor. Fails with
/// `STRAIT_WOULD_BLOCK` before the peer has opened its side.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_peer_pidfd(channel: *const strait_channel, pidfd: *mut c_int) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (pidfd, using) = unsafe { (args::out(pidfd, -1, "pidfd is NULL")?, enter(channel)?) };
        *pidfd = using.channel().peer_pidfd()?.into_raw_fd();
        Ok(())
    })
}

/// The queued messages of an end, and whether there is room to send.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct strait_channel_state {
    /// Number of messages ready to be received.
    pub messages: u64,
    /// Number of bytes in the messages ready to be received.
    pub bytes: u64,
    /// Number of messages that have arrived at this end in this process, received or not. The number only grows, so two
    /// calls show whether a message arrived in between.
    pub arrived: u64,
    /// 1 if a small message with one descriptor can be sent now without blocking, or if a send would fail at once.
    pub has_room: u32,
    /// 1 if nothing more will come: the other end is closed, or its process is dead or a bad peer. Messages that were
    /// sent before can still be received.
    pub peer_closed: u32,
    /// Reserved; always zero.
    pub reserved: [u64; 4],
}

/// Writes the state of an end to `state`: how much is queued to be received, whether there is room to send, and whether
/// the other end is closed. Receives nothing and does not block.
///
/// Fails with `STRAIT_WOULD_BLOCK` if another thread waits for a message or for room, or holds a view or a reservation;
/// and with `STRAIT_LIMIT_REACHED` or `STRAIT_NO_MEMORY` if the messages in a ring that was just replaced cannot be
/// stored: receive, then ask again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_status(
    channel: *const strait_channel,
    state: *mut strait_channel_state,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, using) =
            unsafe { (args::out(state, strait_channel_state::default(), "state is NULL")?, enter(channel)?) };
        let state = using.channel().status()?;
        *out = strait_channel_state {
            messages: state.messages,
            bytes: state.bytes,
            arrived: state.arrived,
            has_room: state.has_room.into(),
            peer_closed: state.peer_closed.into(),
            reserved: [0; 4],
        };
        Ok(())
    })
}

/// The result of reporting a bad peer: the fate of the link.
pub type strait_reported = u32;

/// The report closed the link to the process, and with the link every channel over it, on both sides.
pub const STRAIT_REPORTED_CLOSED: strait_reported = 0;
/// The report closed no link: it had been closed before, or there is no such process.
pub const STRAIT_REPORTED_GONE: strait_reported = 1;
/// The report closed no link, because the message was sent from within this process: close the channel.
pub const STRAIT_REPORTED_WITHIN: strait_reported = 2;
/// The report closed no link, because the message was in the backlog of an end that was sent to this process: the
/// writer of the message and the sender of the end are different processes. Close the channel.
pub const STRAIT_REPORTED_BROUGHT: strait_reported = 3;

/// Reports the process at the other end as a bad peer, for the given reason: an invalid message, for example. Closes
/// the link to that process and every channel over the link, as if the peer had broken the library's own protocol; this
/// end always ends. Later functions on it fail with `STRAIT_BAD_PEER`, and their text names `reason`. The function of
/// `strait_on_bad_peer` is called; the peer gets `STRAIT_PEER_CLOSED`.
///
/// `reported` receives the fate of the link; it may be `NULL`. `reason` is a text in UTF-8. The library keeps a copy of
/// each text for the life of the process, so give only a few different texts: from the 1,025th different text on, a
/// standard text replaces the reason. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_report_bad(
    channel: *const strait_channel,
    reason: *const c_char,
    reported: *mut strait_reported,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointers to be valid.
        let (using, reason) = unsafe { (enter(channel)?, self::reason(reason)?) };
        let result = using.channel().report_bad(reason);
        // SAFETY: the header requires the pointer to be valid.
        unsafe { store(reported, result) };
        Ok(())
    })
}

/// Reports that the sender of a received message is a bad peer, as `strait_channel_report_bad` does, for a part of a
/// program that has the message and not the channel. Closes the link over which the message came. `reported` may be
/// `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_message_report_bad(
    message: *const strait_message,
    reason: *const c_char,
    reported: *mut strait_reported,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointers to be valid.
        let (message, reason) = unsafe { (args::reference(message, "message is NULL")?, self::reason(reason)?) };
        let result = message.report_bad(reason);
        // SAFETY: the header requires the pointer to be valid.
        unsafe { store(reported, result) };
        Ok(())
    })
}

/// Stores `result` at `reported`, unless `NULL`.
///
/// # Safety
/// `reported` is `NULL`, or the caller may write there.
unsafe fn store(reported: *mut strait_reported, result: Reported) {
    let result = match result {
        Reported::Closed => STRAIT_REPORTED_CLOSED,
        Reported::Within => STRAIT_REPORTED_WITHIN,
        Reported::Brought => STRAIT_REPORTED_BROUGHT,
        _ => STRAIT_REPORTED_GONE,
    };
    if !reported.is_null() {
        // SAFETY: the caller's promise.
        unsafe { reported.write(result) };
    }
}

/// Returns the reason of a report as a text that lives as long as the process.
///
/// # Errors
/// [`Failure::Invalid`] if the text is `NULL` or not UTF-8.
///
/// # Safety
/// `text` is `NULL`, or leads to a text that ends with a zero byte.
unsafe fn reason(text: *const c_char) -> Result<&'static str, Failure> {
    if text.is_null() {
        return Err(Failure::Invalid("reason is NULL"));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    let text = text.to_str().map_err(|_| Failure::Invalid("reason is not UTF-8"))?;
    Ok(kept(text))
}

/// Returns a copy of `text` that lives as long as the process. After [`MOST_REASONS`] different texts, returns another
/// text instead.
fn kept(text: &str) -> &'static str {
    static REASONS: PerProcess<Mutex<HashSet<&'static str>>> = PerProcess::new(Mutex::default);
    let mut reasons = REASONS.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = reasons.get(text) {
        return known;
    }
    if reasons.len() >= MOST_REASONS {
        return "the program has reported the peer";
    }
    let copy: &'static str = Box::leak(text.to_owned().into_boxed_str());
    reasons.insert(copy);
    copy
}

/// The greatest number of different reasons of which the library keeps a copy.
const MOST_REASONS: usize = 1024;

/// Counters of one end of a channel since the end was made.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct strait_counters {
    /// Number of messages sent by this end.
    pub messages_sent: u64,
    /// Number of payload bytes in the messages sent by this end.
    pub bytes_sent: u64,
    /// Number of messages received by this end.
    pub messages_received: u64,
    /// Number of payload bytes in the messages received by this end.
    pub bytes_received: u64,
    /// How often this end made a system call to wake the other end.
    pub wake_ups: u64,
    /// How often a waiting thread of this end went to sleep.
    pub sleeps: u64,
    /// Number of messages sent out of line, that is in memory outside the ring.
    pub out_of_line: u64,
    /// Number of messages sent out of line in memory of the pool that was already mapped.
    pub pool_hits: u64,
    /// How often a larger ring replaced this end's outgoing ring.
    pub grown: u64,
    /// How often a send on this end had to wait for room.
    pub stalls: u64,
    /// How often a receive on this end failed at a limit on the resources held for the peer.
    pub limits_reached: u64,
    /// Number of messages sent out of line in memory for a single use, because no more memory can be kept: raise
    /// `strait_set_pool_limit` or `strait_options.pool`.
    pub used_once: u64,
    /// Reserved; always zero.
    pub reserved: [u64; 4],
}

/// Writes the counters of an end to `counters`. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_counters(
    channel: *const strait_channel,
    counters: *mut strait_counters,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
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
            used_once: counters.used_once,
            reserved: [0; 4],
        };
        Ok(())
    })
}

/// A resource held by this process for peers, up to a limit.
pub type strait_resource = u32;

/// Bytes of the peer's memory mapped in this process.
pub const STRAIT_MEMORY: strait_resource = 0;
/// Mappings of the peer's memory.
pub const STRAIT_MAPPINGS: strait_resource = 1;
/// Descriptors from the peer that the program has not taken yet, and sockets to processes introduced by the peer.
pub const STRAIT_DESCRIPTORS: strait_resource = 2;
/// Lanes (the shared memory of one channel over one link) announced by the peer to this process.
pub const STRAIT_LANES: strait_resource = 3;
/// Bytes of unreceived messages that were taken out of shared memory by the move of an end.
pub const STRAIT_QUEUED_BYTES: strait_resource = 4;
/// Unreceived messages that were taken out of shared memory by the move of an end.
pub const STRAIT_QUEUED_MESSAGES: strait_resource = 5;
/// Bytes of regions from the peer. Each region counts whole, until the region and its mappings are freed.
pub const STRAIT_REGIONS: strait_resource = 6;

/// Converts the number of a resource to the Rust type.
fn resource(number: strait_resource) -> Result<Resource, Failure> {
    Ok(match number {
        STRAIT_MEMORY => Resource::Memory,
        STRAIT_MAPPINGS => Resource::Mappings,
        STRAIT_DESCRIPTORS => Resource::Descriptors,
        STRAIT_LANES => Resource::Lanes,
        STRAIT_QUEUED_BYTES => Resource::QueuedBytes,
        STRAIT_QUEUED_MESSAGES => Resource::QueuedMessages,
        STRAIT_REGIONS => Resource::Regions,
        _ => return Err(Failure::Invalid("resource is none of STRAIT_MEMORY to STRAIT_REGIONS")),
    })
}

/// Serialises calls of `strait_set_limit`: each sets one limit, but the Rust library sets all limits together.
static SETTING: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

/// Sets the limits of a resource in this process: `peer` for one peer process, over all links to it, and `user` for all
/// peer processes of one user together. The limits apply to later requests; this process keeps the resources already
/// held. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn strait_set_limit(resource: strait_resource, peer: u64, user: u64) -> strait_status {
    call(|| {
        let resource = self::resource(resource)?;
        let _one_at_a_time = SETTING.get().lock().unwrap_or_else(PoisonError::into_inner);
        strait::quota::set_limits(strait::quota::limits().peer(resource, peer).user(resource, user));
        Ok(())
    })
}

/// Sets the limit on the bytes of memory that this process keeps for outgoing large messages, over all channels.
/// Default: 256 MiB. If the memory already kept exceeds a lower limit, the excess is given back as by `strait_trim`.
///
/// The memory of a message is kept once the message was received, so that the next message finds warm memory. A message
/// for which no memory can be kept uses fresh memory once. Memory that was not used for 10 seconds is given back.
#[unsafe(no_mangle)]
pub extern "C" fn strait_set_pool_limit(bytes: usize) {
    call_or((), || strait::quota::set_pool_limit(bytes));
}

/// Returns the number of bytes set by `strait_set_pool_limit`, or the default.
#[unsafe(no_mangle)]
pub extern "C" fn strait_pool_limit() -> usize {
    call_or(0, strait::quota::pool_limit)
}

/// Returns the number of bytes of memory currently kept by this process for outgoing large messages, including messages
/// in flight.
#[unsafe(no_mangle)]
pub extern "C" fn strait_pool_held() -> usize {
    call_or(0, strait::quota::pool_held)
}

/// Gives back the unused part of the memory kept for outgoing large messages. Returns the number of bytes given back.
/// Takes some 0.2 ms for each MiB. A thread of the library gives back memory that a peer has. The call waits for the
/// thread, for at most 1 second and 1 ms for each MiB; what is not given back by then counts as kept until the thread
/// has given it back.
#[unsafe(no_mangle)]
pub extern "C" fn strait_trim() -> usize {
    call_or(0, strait::quota::trim)
}

/// The held amount of a resource, and the limit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct strait_level {
    /// The amount held now.
    pub held: u64,
    /// The limit in force now.
    pub limit: u64,
    /// How often a request was refused because the limit would have been exceeded.
    pub reached: u64,
}

impl From<Level> for strait_level {
    fn from(level: Level) -> Self {
        Self { held: level.held, limit: level.limit, reached: level.reached }
    }
}

/// The amounts of a resource held by this process for the process at the other end of a channel, and for all peer
/// processes of the peer's user.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct strait_usage {
    /// The amount for the peer process, over all links to it.
    pub peer: strait_level,
    /// The amount for all peer processes of the peer's user.
    pub user: strait_level,
    /// Number of processes of the peer's user with an account in this process.
    pub processes: u64,
    /// Number of idle wake-ups: how often the peer woke this process, and there was nothing to do.
    pub idle_wake_ups: u64,
    /// How often the peer was throttled: this process ignored the peer for a millisecond, because the peer caused too
    /// many idle wake-ups.
    pub pauses: u64,
    /// The uid of the peer's user, if `has_uid` is 1.
    pub uid: u32,
    /// 1 if `uid` is set; 0 for peers whose user the kernel does not name.
    pub has_uid: u32,
}

/// Writes to `usage` how much of a resource this process holds for the process at the other end, and for that process's
/// user. Fails with `STRAIT_WOULD_BLOCK` before the peer has opened its side, and on a channel within one process. Does
/// not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_peer_usage(
    channel: *const strait_channel,
    resource: strait_resource,
    usage: *mut strait_usage,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
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

/// A peer process that broke the protocol.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_bad_peer {
    /// The peer, as the kernel describes it; `NULL` if the kernel does not say.
    pub peer: *const strait_peer,
    /// A text about how the peer broke the protocol.
    pub reason: *const c_char,
    /// 1 if the link to the peer is lost, together with every channel over the link; 0 if only one channel has ended.
    pub link_lost: u32,
    /// 1 if another process has introduced the link to the peer. The introducer may have kept a copy of the link's
    /// socket, so the breach may be the introducer's. 0 otherwise.
    pub introduced: u32,
}

/// A function called for each peer that broke the protocol. `bad`, and the memory behind its pointers, are valid only
/// during the call.
pub type strait_tell_bad_peer = Option<unsafe extern "C" fn(bad: *const strait_bad_peer, context: *mut c_void)>;

/// A pointer of C code that the library passes to C functions, and never reads through.
#[derive(Clone, Copy)]
pub(crate) struct Context(*mut c_void);

// SAFETY: this code never follows the pointer. The header requires an object that any thread may use.
unsafe impl Send for Context {}
// SAFETY: this code never follows the pointer. The header requires an object that any thread may use.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn new(context: *mut c_void) -> Self {
        Self(context)
    }

    pub(crate) fn get(self) -> *mut c_void {
        self.0
    }
}

/// Registers a function to be called for each peer process that breaks the protocol. The new function replaces the
/// previous function; `NULL` registers no function. The library writes no logs.
///
/// The registered function runs in a thread that is in a call of this library, while the library holds no lock, so the
/// function may call any function. The function receives `context`, which must stay valid for the life of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_on_bad_peer(tell: strait_tell_bad_peer, context: *mut c_void) {
    let context = Context::new(context);
    call_or((), || {
        strait::quota::on_bad_peer(move |bad: &BadPeer| {
            let Some(tell) = tell else { return };
            let peer = bad.peer.map(strait_peer::from);
            // A reason has no zero byte, so the conversion does not fail.
            let reason = std::ffi::CString::new(bad.reason).unwrap_or_default();
            let told = strait_bad_peer {
                peer: peer.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
                reason: reason.as_ptr(),
                link_lost: bad.link_lost.into(),
                introduced: bad.introduced.into(),
            };
            // SAFETY: the header requires both pointers to be valid.
            unsafe { tell(&told, context.get()) };
        });
    });
}

/// Records `error` as the last failure of this thread, for `strait_last_error_text` in a function of C code. Returns
/// the status of the error.
pub(crate) fn say(error: Error) -> strait_status {
    failed(Failure::Strait(error))
}
