//! Zircon's functions for tests, called in this process or in another process.
//!
//! A [`Side`] calls them: in this process, or in a child. The child is this same test program, and executes requests
//! that come over a channel. A test that is written for a side holds for both; handles are numbers of the side's
//! process.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::process::Child;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicIsize, Ordering};

use strait_zx::abi::*;
pub(crate) use strait_zx::boundary::*;
pub(crate) use strait_zx::codes::*;

/// Time limit of waits in seconds, long enough for a slow machine: a test that waits this long has failed.
pub(crate) const SECONDS: i64 = 60;

const ROLE: &str = "STRAIT_ZX_TEST_ROLE";

/// Returns a deadline 60 seconds from now, which only a failing test reaches.
pub(crate) fn deadline() -> zx_time_t {
    zx_deadline_after(SECONDS * 1_000_000_000)
}

/// The result of a read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) status: zx_status_t,
    pub(crate) bytes: Vec<u8>,
    pub(crate) handles: Vec<zx_handle_info_t>,
    pub(crate) actual: (u32, u32),
}

pub(crate) fn channel() -> (zx_handle_t, zx_handle_t) {
    let (mut a, mut b) = (0, 0);
    // SAFETY: the pointers lead to local variables.
    assert_eq!(unsafe { zx_channel_create(0, &mut a, &mut b) }, ZX_OK);
    (a, b)
}

pub(crate) fn event() -> zx_handle_t {
    let mut out = 0;
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { zx_event_create(0, &mut out) }, ZX_OK);
    out
}

pub(crate) fn eventpair() -> (zx_handle_t, zx_handle_t) {
    let (mut a, mut b) = (0, 0);
    // SAFETY: the pointers lead to local variables.
    assert_eq!(unsafe { zx_eventpair_create(0, &mut a, &mut b) }, ZX_OK);
    (a, b)
}

pub(crate) fn port() -> zx_handle_t {
    let mut out = 0;
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { zx_port_create(0, &mut out) }, ZX_OK);
    out
}

pub(crate) fn vmo(size: u64) -> zx_handle_t {
    let mut out = 0;
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { zx_vmo_create(size, 0, &mut out) }, ZX_OK);
    out
}

pub(crate) fn write(handle: zx_handle_t, bytes: &[u8], handles: &[zx_handle_t]) -> zx_status_t {
    let (count, len) = (handles.len() as u32, bytes.len() as u32);
    // SAFETY: the pointers and the lengths are those of slices.
    unsafe { zx_channel_write(handle, 0, bytes.as_ptr().cast(), len, handles.as_ptr(), count) }
}

pub(crate) fn write_etc(
    handle: zx_handle_t,
    bytes: &[u8],
    dispositions: &mut [zx_handle_disposition_t],
) -> zx_status_t {
    let (count, len) = (dispositions.len() as u32, bytes.len() as u32);
    // SAFETY: the pointers and the lengths are those of slices.
    unsafe { zx_channel_write_etc(handle, 0, bytes.as_ptr().cast(), len, dispositions.as_mut_ptr(), count) }
}

/// Returns a disposition that moves a handle.
pub(crate) fn moved(handle: zx_handle_t) -> zx_handle_disposition_t {
    zx_handle_disposition_t { handle, rights: ZX_RIGHT_SAME_RIGHTS, ..Default::default() }
}

/// Returns a disposition that duplicates a handle.
pub(crate) fn copied(handle: zx_handle_t) -> zx_handle_disposition_t {
    zx_handle_disposition_t { operation: ZX_HANDLE_OP_DUPLICATE, ..moved(handle) }
}

pub(crate) fn write_iovec(handle: zx_handle_t, regions: &[zx_channel_iovec_t]) -> zx_status_t {
    let options = ZX_CHANNEL_WRITE_USE_IOVEC;
    // SAFETY: the pointer and the length are those of a slice of valid regions.
    unsafe { zx_channel_write(handle, options, regions.as_ptr().cast(), regions.len() as u32, null(), 0) }
}

pub(crate) fn region(bytes: &[u8]) -> zx_channel_iovec_t {
    zx_channel_iovec_t { buffer: bytes.as_ptr().cast(), capacity: bytes.len() as u32, reserved: 0 }
}

/// Reads with room for this number of bytes and handles.
pub(crate) fn read_with(handle: zx_handle_t, options: u32, bytes: usize, handles: usize) -> Read {
    let mut buffer = vec![0u8; bytes];
    let mut infos = vec![zx_handle_info_t::default(); handles];
    let mut actual = (0, 0);
    // SAFETY: the pointers lead to local variables.
    let status = unsafe {
        zx_channel_read_etc(
            handle,
            options,
            buffer.as_mut_ptr().cast(),
            infos.as_mut_ptr(),
            bytes as u32,
            handles as u32,
            &mut actual.0,
            &mut actual.1,
        )
    };
    if status == ZX_OK {
        buffer.truncate(actual.0 as usize);
        infos.truncate(actual.1 as usize);
    } else {
        buffer.clear();
        infos.clear();
    }
    Read { status, bytes: buffer, handles: infos, actual }
}

/// Reads with room for the largest message.
pub(crate) fn read(handle: zx_handle_t) -> Read {
    read_with(handle, 0, 65536, 64)
}

/// Waits for a message, and reads the message.
pub(crate) fn await_read(handle: zx_handle_t) -> Read {
    wait(handle, ZX_CHANNEL_READABLE | ZX_CHANNEL_PEER_CLOSED, deadline());
    read(handle)
}

pub(crate) fn close(handle: zx_handle_t) -> zx_status_t {
    zx_handle_close(handle)
}

pub(crate) fn wait(handle: zx_handle_t, mask: zx_signals_t, deadline: zx_time_t) -> (zx_status_t, zx_signals_t) {
    let mut observed = 0;
    // SAFETY: the pointer leads to a local variable.
    let status = unsafe { zx_object_wait_one(handle, mask, deadline, &mut observed) };
    (status, observed)
}

/// Returns the signals now.
pub(crate) fn signals(handle: zx_handle_t) -> zx_signals_t {
    wait(handle, 0, 0).1
}

pub(crate) fn info(handle: zx_handle_t) -> (zx_status_t, zx_info_handle_basic_t) {
    let mut info = zx_info_handle_basic_t::default();
    let size = size_of_val(&info);
    let buffer: *mut c_void = (&raw mut info).cast();
    // SAFETY: each pointer is null or valid.
    let status = unsafe { zx_object_get_info(handle, ZX_INFO_HANDLE_BASIC, buffer, size, null_mut(), null_mut()) };
    (status, info)
}

pub(crate) fn is_valid(handle: zx_handle_t) -> bool {
    // SAFETY: all pointers are null.
    let status = unsafe { zx_object_get_info(handle, ZX_INFO_HANDLE_VALID, null_mut(), 0, null_mut(), null_mut()) };
    status == ZX_OK
}

pub(crate) fn duplicate(handle: zx_handle_t, rights: zx_rights_t) -> Result<zx_handle_t, zx_status_t> {
    let mut out = 0;
    // SAFETY: the pointer leads to a local variable.
    match unsafe { zx_handle_duplicate(handle, rights, &mut out) } {
        ZX_OK => Ok(out),
        status => Err(status),
    }
}

pub(crate) fn replace(handle: zx_handle_t, rights: zx_rights_t) -> Result<zx_handle_t, zx_status_t> {
    let mut out = 0;
    // SAFETY: the pointer leads to a local variable.
    match unsafe { zx_handle_replace(handle, rights, &mut out) } {
        ZX_OK => Ok(out),
        status => Err(status),
    }
}

/// The result of a call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Called {
    pub(crate) status: zx_status_t,
    pub(crate) bytes: Vec<u8>,
    pub(crate) handles: Vec<zx_handle_t>,
}

pub(crate) fn call_with(
    handle: zx_handle_t,
    until: zx_time_t,
    bytes: &[u8],
    handles: &[zx_handle_t],
    room: (usize, usize),
) -> Called {
    let mut buffer = vec![0u8; room.0];
    let mut answers = vec![0; room.1];
    let (mut actual_bytes, mut actual_handles) = (0, 0);
    let args = zx_channel_call_args_t {
        wr_bytes: bytes.as_ptr().cast(),
        wr_handles: handles.as_ptr().cast_mut(),
        rd_bytes: buffer.as_mut_ptr().cast(),
        rd_handles: answers.as_mut_ptr(),
        wr_num_bytes: bytes.len() as u32,
        wr_num_handles: handles.len() as u32,
        rd_num_bytes: room.0 as u32,
        rd_num_handles: room.1 as u32,
    };
    // SAFETY: the pointers lead to local variables.
    let status = unsafe { zx_channel_call(handle, 0, until, &args, &mut actual_bytes, &mut actual_handles) };
    buffer.truncate(if status == ZX_OK { actual_bytes as usize } else { 0 });
    answers.truncate(if status == ZX_OK { actual_handles as usize } else { 0 });
    Called { status, bytes: buffer, handles: answers }
}

pub(crate) fn call(handle: zx_handle_t, bytes: &[u8], handles: &[zx_handle_t]) -> Called {
    call_with(handle, deadline(), bytes, handles, (65536, 64))
}

/// Returns the number of open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    // The descriptor that reads the directory counts each time.
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// An allocator with a count of the allocated bytes.
struct Counting;

static ALLOCATED: AtomicIsize = AtomicIsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system allocator does everything; this only adds up sizes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The resources of a process that must not leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) handles: usize,
    pub(crate) descriptors: usize,
    /// Number of bytes of private memory.
    pub(crate) allocated: isize,
    /// Number of bytes of memory that could be shared with other processes.
    pub(crate) mapped: usize,
}

impl Counts {
    pub(crate) fn now() -> Self {
        Self {
            handles: strait_zx::handle_count(),
            descriptors: descriptors(),
            allocated: ALLOCATED.load(Ordering::Relaxed),
            mapped: mapped(),
        }
    }
}

/// Returns the number of mapped bytes of memfds.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let size = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        Some(usize::from_str_radix(to, 16).ok()? - usize::from_str_radix(from, 16).ok()?)
    };
    maps.lines().filter(|line| line.contains("/memfd:")).filter_map(size).sum()
}

/// The process for calling functions.
pub(crate) enum Side {
    Here,
    /// In another process, which gets requests over the channel.
    There {
        control: zx_handle_t,
        child: Child,
    },
}

const ADOPT: u32 = 0;
const WRITE: u32 = 1;
const READ: u32 = 2;
const CLOSE: u32 = 3;
const WAIT: u32 = 4;
const SIGNAL: u32 = 5;
const SIGNAL_PEER: u32 = 6;
const INFO: u32 = 7;
const COUNTS: u32 = 8;
const CREATE: u32 = 9;
const DUPLICATE: u32 = 10;
const AWAIT_READ: u32 = 11;
const VMO_READ: u32 = 12;
const GIVE: u32 = 13;
const QUEUE: u32 = 14;

impl Side {
    pub(crate) fn here() -> Self {
        Self::Here
    }

    pub(crate) fn there() -> Self {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture", "--test-threads", "1"]).env(ROLE, "side");
        command.stdout(std::process::Stdio::null());
        let (child, channel) = strait_zx::channel_options().spawn(&mut command).unwrap();
        Self::There { control: strait_zx::handle_from_channel(channel).unwrap(), child }
    }

    /// Sends a request to the other process, with at most one handle. Returns the numbers and bytes that come back.
    fn tell(&self, words: &[u64], bytes: &[u8], handles: &[zx_handle_t]) -> (Vec<u64>, Vec<u8>, Vec<zx_handle_t>) {
        let Self::There { control, .. } = self else { unreachable!() };
        say(*control, words, bytes, handles);
        let (words, bytes, infos) = hear(*control).expect("the other process has failed");
        (words, bytes, infos.iter().map(|info| info.handle).collect())
    }

    /// Moves a handle of the test's process to this side.
    pub(crate) fn adopt(&self, handle: zx_handle_t) -> zx_handle_t {
        match self {
            Self::Here => handle,
            Self::There { .. } => self.tell(&[ADOPT.into()], &[], &[handle]).0[0] as u32,
        }
    }

    /// Moves a handle of this side to the test's process.
    pub(crate) fn give(&self, handle: zx_handle_t) -> zx_handle_t {
        match self {
            Self::Here => handle,
            Self::There { .. } => self.tell(&[GIVE.into(), handle.into()], &[], &[]).2[0],
        }
    }

    pub(crate) fn write(&self, handle: zx_handle_t, bytes: &[u8], handles: &[zx_handle_t]) -> zx_status_t {
        match self {
            Self::Here => write(handle, bytes, handles),
            Self::There { .. } => {
                let words = [WRITE.into(), u64::from(handle)];
                let words: Vec<u64> = words.into_iter().chain(handles.iter().map(|handle| (*handle).into())).collect();
                self.tell(&words, bytes, &[]).0[0] as i32
            }
        }
    }

    pub(crate) fn read_with(&self, handle: zx_handle_t, options: u32, bytes: usize, handles: usize) -> Read {
        self.read_by(READ, handle, options, bytes, handles)
    }

    pub(crate) fn read(&self, handle: zx_handle_t) -> Read {
        self.read_with(handle, 0, 65536, 64)
    }

    pub(crate) fn await_read(&self, handle: zx_handle_t) -> Read {
        self.read_by(AWAIT_READ, handle, 0, 65536, 64)
    }

    fn read_by(&self, how: u32, handle: zx_handle_t, options: u32, bytes: usize, handles: usize) -> Read {
        match self {
            Self::Here if how == AWAIT_READ => await_read(handle),
            Self::Here => read_with(handle, options, bytes, handles),
            Self::There { .. } => {
                let words = [how.into(), handle.into(), options.into(), bytes as u64, handles as u64];
                let (words, bytes, _) = self.tell(&words, &[], &[]);
                let infos = words[3..].as_chunks::<3>().0.iter().map(|info| zx_handle_info_t {
                    handle: info[0] as u32,
                    type_: info[1] as u32,
                    rights: info[2] as u32,
                    unused: 0,
                });
                Read {
                    status: words[0] as i32,
                    actual: (words[1] as u32, words[2] as u32),
                    bytes,
                    handles: infos.collect(),
                }
            }
        }
    }

    pub(crate) fn close(&self, handle: zx_handle_t) -> zx_status_t {
        match self {
            Self::Here => close(handle),
            Self::There { .. } => self.tell(&[CLOSE.into(), handle.into()], &[], &[]).0[0] as i32,
        }
    }

    /// Waits for signals for at most this number of nanoseconds.
    pub(crate) fn wait(&self, handle: zx_handle_t, mask: zx_signals_t, limit: i64) -> (zx_status_t, zx_signals_t) {
        match self {
            Self::Here => wait(handle, mask, zx_deadline_after(limit)),
            Self::There { .. } => {
                let (words, ..) = self.tell(&[WAIT.into(), handle.into(), mask.into(), limit as u64], &[], &[]);
                (words[0] as i32, words[1] as u32)
            }
        }
    }

    pub(crate) fn await_signal(&self, handle: zx_handle_t, mask: zx_signals_t) -> zx_signals_t {
        let (status, observed) = self.wait(handle, mask, SECONDS * 1_000_000_000);
        assert_eq!(status, ZX_OK);
        observed
    }

    pub(crate) fn signals(&self, handle: zx_handle_t) -> zx_signals_t {
        self.wait(handle, 0, i64::MIN / 2).1
    }

    pub(crate) fn signal(&self, handle: zx_handle_t, clear: u32, set: u32) -> zx_status_t {
        match self {
            Self::Here => zx_object_signal(handle, clear, set),
            Self::There { .. } => {
                self.tell(&[SIGNAL.into(), handle.into(), clear.into(), set.into()], &[], &[]).0[0] as i32
            }
        }
    }

    pub(crate) fn signal_peer(&self, handle: zx_handle_t, clear: u32, set: u32) -> zx_status_t {
        match self {
            Self::Here => zx_object_signal_peer(handle, clear, set),
            Self::There { .. } => {
                self.tell(&[SIGNAL_PEER.into(), handle.into(), clear.into(), set.into()], &[], &[]).0[0] as i32
            }
        }
    }

    pub(crate) fn info(&self, handle: zx_handle_t) -> (zx_status_t, zx_info_handle_basic_t) {
        match self {
            Self::Here => info(handle),
            Self::There { .. } => {
                let (words, ..) = self.tell(&[INFO.into(), handle.into()], &[], &[]);
                let info = zx_info_handle_basic_t {
                    koid: words[1],
                    related_koid: words[2],
                    rights: words[3] as u32,
                    type_: words[4] as u32,
                    ..Default::default()
                };
                (words[0] as i32, info)
            }
        }
    }

    /// Returns the resources of the process; not meaningful for a process that other tests use too.
    pub(crate) fn counts(&self) -> Option<Counts> {
        match self {
            Self::Here => None,
            Self::There { .. } => {
                let (words, ..) = self.tell(&[COUNTS.into()], &[], &[]);
                Some(Counts {
                    handles: words[0] as usize,
                    descriptors: words[1] as usize,
                    allocated: words[2] as isize,
                    mapped: words[3] as usize,
                })
            }
        }
    }

    /// Makes a channel with both ends on this side.
    pub(crate) fn channel(&self) -> (zx_handle_t, zx_handle_t) {
        match self {
            Self::Here => channel(),
            Self::There { .. } => {
                let (words, ..) = self.tell(&[CREATE.into()], &[], &[]);
                (words[0] as u32, words[1] as u32)
            }
        }
    }

    pub(crate) fn duplicate(&self, handle: zx_handle_t, rights: zx_rights_t) -> Result<zx_handle_t, zx_status_t> {
        match self {
            Self::Here => duplicate(handle, rights),
            Self::There { .. } => {
                let (words, ..) = self.tell(&[DUPLICATE.into(), handle.into(), rights.into()], &[], &[]);
                if words[0] == 0 { Ok(words[1] as u32) } else { Err(words[0] as i32) }
            }
        }
    }

    pub(crate) fn vmo_read(&self, handle: zx_handle_t, offset: u64, len: usize) -> (zx_status_t, Vec<u8>) {
        match self {
            Self::Here => vmo_read(handle, offset, len),
            Self::There { .. } => {
                let (words, bytes, _) = self.tell(&[VMO_READ.into(), handle.into(), offset, len as u64], &[], &[]);
                (words[0] as i32, bytes)
            }
        }
    }

    pub(crate) fn queue(&self, handle: zx_handle_t, key: u64) -> zx_status_t {
        match self {
            Self::Here => queue(handle, key),
            Self::There { .. } => self.tell(&[QUEUE.into(), handle.into(), key], &[], &[]).0[0] as i32,
        }
    }

    /// Kills the process, unless it is this process.
    pub(crate) fn kill(&mut self) {
        if let Self::There { child, .. } = self {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Self::There { control, child } = self {
            let _ = close(*control);
            if std::thread::panicking() {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}

pub(crate) fn vmo_read(handle: zx_handle_t, offset: u64, len: usize) -> (zx_status_t, Vec<u8>) {
    let mut bytes = vec![0; len];
    // SAFETY: the pointer leads to a local variable.
    let status = unsafe { zx_vmo_read(handle, bytes.as_mut_ptr().cast(), offset, len) };
    (status, bytes)
}

pub(crate) fn vmo_write(handle: zx_handle_t, offset: u64, bytes: &[u8]) -> zx_status_t {
    // SAFETY: the pointer leads to a local variable.
    unsafe { zx_vmo_write(handle, bytes.as_ptr().cast(), offset, bytes.len()) }
}

pub(crate) fn queue(port: zx_handle_t, key: u64) -> zx_status_t {
    let packet = zx_port_packet_t { key, ..Default::default() };
    // SAFETY: the pointer leads to a local variable.
    unsafe { zx_port_queue(port, &packet) }
}

pub(crate) fn port_wait(port: zx_handle_t, deadline: zx_time_t) -> (zx_status_t, zx_port_packet_t) {
    let mut packet = zx_port_packet_t::default();
    // SAFETY: the pointer leads to a local variable.
    let status = unsafe { zx_port_wait(port, deadline, &mut packet) };
    (status, packet)
}

/// Sends two messages, since the bytes may fill one: numbers and handles, then bytes.
fn say(control: zx_handle_t, words: &[u64], bytes: &[u8], handles: &[zx_handle_t]) {
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(write(control, &words, handles), ZX_OK);
    assert_eq!(write(control, bytes, &[]), ZX_OK);
}

fn hear(control: zx_handle_t) -> Option<(Vec<u64>, Vec<u8>, Vec<zx_handle_info_t>)> {
    let (words, bytes) = (await_read(control), await_read(control));
    if words.status == ZX_ERR_PEER_CLOSED || bytes.status == ZX_ERR_PEER_CLOSED {
        return None;
    }
    assert_eq!((words.status, bytes.status), (ZX_OK, ZX_OK));
    let numbers = words.bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    Some((numbers, bytes.bytes, words.handles))
}

/// The body of the test `child`: executes requests until the channel is closed.
pub(crate) fn serve() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let mut control = 0;
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { strait_zx_channel_from_parent(&mut control) }, ZX_OK);
    loop {
        let Some((words, bytes, told)) = hear(control) else { return };
        let (answer, bytes, handles) = obey(&words, &bytes, &told);
        say(control, &answer, &bytes, &handles);
    }
}

fn obey(words: &[u64], bytes: &[u8], told: &[zx_handle_info_t]) -> (Vec<u64>, Vec<u8>, Vec<zx_handle_t>) {
    let handle = words.get(1).map_or(0, |handle| *handle as zx_handle_t);
    let word = |status: zx_status_t| status as i64 as u64;
    let mut handles = Vec::new();
    let mut back = Vec::new();
    let answer = match words[0] as u32 {
        ADOPT => vec![told[0].handle.into()],
        GIVE => {
            handles.push(handle);
            Vec::new()
        }
        WRITE => {
            let handles: Vec<_> = words[2..].iter().map(|handle| *handle as zx_handle_t).collect();
            vec![word(write(handle, bytes, &handles))]
        }
        how @ (READ | AWAIT_READ) => {
            if how == AWAIT_READ {
                wait(handle, ZX_CHANNEL_READABLE | ZX_CHANNEL_PEER_CLOSED, deadline());
            }
            let read = read_with(handle, words[2] as u32, words[3] as usize, words[4] as usize);
            back = read.bytes;
            let sizes = [word(read.status), read.actual.0.into(), read.actual.1.into()];
            let infos = read.handles.iter().flat_map(|info| [info.handle, info.type_, info.rights].map(u64::from));
            sizes.into_iter().chain(infos).collect()
        }
        CLOSE => vec![word(close(handle))],
        WAIT => {
            let (status, observed) = wait(handle, words[2] as u32, zx_deadline_after(words[3] as i64));
            vec![word(status), observed.into()]
        }
        SIGNAL => vec![word(zx_object_signal(handle, words[2] as u32, words[3] as u32))],
        SIGNAL_PEER => vec![word(zx_object_signal_peer(handle, words[2] as u32, words[3] as u32))],
        INFO => {
            let (status, info) = info(handle);
            vec![word(status), info.koid, info.related_koid, info.rights.into(), info.type_.into()]
        }
        COUNTS => {
            let counts = Counts::now();
            vec![counts.handles as u64, counts.descriptors as u64, counts.allocated as u64, counts.mapped as u64]
        }
        CREATE => {
            let (a, b) = channel();
            vec![a.into(), b.into()]
        }
        DUPLICATE => match duplicate(handle, words[2] as u32) {
            Ok(handle) => vec![0, handle.into()],
            Err(status) => vec![word(status), 0],
        },
        VMO_READ => {
            let (status, bytes) = vmo_read(handle, words[2], words[3] as usize);
            back = bytes;
            vec![word(status)]
        }
        QUEUE => vec![word(queue(handle, words[2]))],
        other => panic!("unknown request {other}"),
    };
    (answer, back, handles)
}

/// Makes two tests of a case: with the other end in this process, and in another one.
#[macro_export]
macro_rules! both_sides {
    ($($(#[$doc:meta])* fn $name:ident($side:ident: &Side) $body:block)*) => {
        $(
            $(#[$doc])*
            fn $name($side: &Side) $body
        )*
        mod one_process {
            $(#[test] fn $name() { super::$name(&super::Side::here()); })*
        }
        mod two_processes {
            $(#[test] fn $name() { super::$name(&super::Side::there()); })*
        }
    };
}
