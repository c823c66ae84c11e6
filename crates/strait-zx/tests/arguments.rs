//! Tests of every function with wrong arguments, in each position: null pointers, invalid handles, handles of other
//! types, unknown options, and counts and offsets out of range. Each returns a status, and nothing is left behind. (The
//! order in which writes check their arguments is tested in `writing.rs`, and calls in `calls.rs`.)

mod rig;

use std::ptr::{null, null_mut};

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

const MOST: usize = usize::MAX;
const FAR: u64 = u64::MAX;

/// A row of the table: a description, the function call, and the status that it must return.
type Row<'a> = (&'a str, &'a dyn Fn() -> zx_status_t, zx_status_t);

fn check(rows: &[Row<'_>]) {
    for (what, call, expected) in rows {
        assert_eq!(call(), *expected, "{what}");
    }
}

fn close_all(handles: &[zx_handle_t]) {
    handles.iter().for_each(|handle| assert_eq!(close(*handle), ZX_OK));
}

/// Returns invalid handles: a closed handle, a number that never was a handle, and `ZX_HANDLE_INVALID`.
fn no_handles() -> [zx_handle_t; 3] {
    let gone = event();
    assert_eq!(close(gone), ZX_OK);
    [gone, 0x7fff_fffc, ZX_HANDLE_INVALID]
}

fn channels() {
    let (a, b) = channel();
    let wrong = event();
    let (mut x, mut y) = (0, 0);
    let (out0, out1) = (&raw mut x, &raw mut y);
    let byte = [0u8; 8];
    let bytes = byte.as_ptr().cast();
    let region = |capacity| zx_channel_iovec_t { buffer: bytes, capacity, reserved: 0 };
    let (huge, two) = ([region(u32::MAX); 2], [region(1 << 31); 2]);
    let io = ZX_CHANNEL_WRITE_USE_IOVEC;
    // SAFETY: each pointer is null, or points to as much memory as the function accesses.
    unsafe {
        check(&[
            ("create: null", &|| zx_channel_create(0, null_mut(), out1), ZX_ERR_INVALID_ARGS),
            ("create: null", &|| zx_channel_create(0, out0, null_mut()), ZX_ERR_INVALID_ARGS),
            ("create: options", &|| zx_channel_create(1, out0, out1), ZX_ERR_INVALID_ARGS),
            ("write: type", &|| zx_channel_write(wrong, 0, bytes, 1, null(), 0), ZX_ERR_WRONG_TYPE),
            ("write: null", &|| zx_channel_write(a, 0, null(), 1, null(), 0), ZX_ERR_INVALID_ARGS),
            ("write: far too much", &|| zx_channel_write(a, 0, null(), u32::MAX, null(), 0), ZX_ERR_OUT_OF_RANGE),
            ("write: null", &|| zx_channel_write(a, 0, bytes, 1, null(), 1), ZX_ERR_INVALID_ARGS),
            ("write: far too many", &|| zx_channel_write(a, 0, bytes, 1, null(), u32::MAX), ZX_ERR_OUT_OF_RANGE),
            ("regions: far too many", &|| zx_channel_write(a, io, null(), u32::MAX, null(), 0), ZX_ERR_OUT_OF_RANGE),
            ("regions: 8 GiB", &|| zx_channel_write(a, io, huge.as_ptr().cast(), 2, null(), 0), ZX_ERR_OUT_OF_RANGE),
            (
                "regions: 2 to the 32",
                &|| zx_channel_write(a, io, two.as_ptr().cast(), 2, null(), 0),
                ZX_ERR_OUT_OF_RANGE,
            ),
            ("write etc: type", &|| zx_channel_write_etc(wrong, 0, bytes, 1, null_mut(), 0), ZX_ERR_WRONG_TYPE),
            ("write etc: null", &|| zx_channel_write_etc(a, 0, bytes, 1, null_mut(), 1), ZX_ERR_INVALID_ARGS),
            (
                "write etc: far too many",
                &|| zx_channel_write_etc(a, 0, bytes, 1, null_mut(), u32::MAX),
                ZX_ERR_OUT_OF_RANGE,
            ),
            (
                "nothing was written",
                &|| zx_channel_read(b, 0, null_mut(), null_mut(), 0, 0, null_mut(), null_mut()),
                ZX_ERR_SHOULD_WAIT,
            ),
            (
                "read: options",
                &|| zx_channel_read(b, 2, null_mut(), null_mut(), 0, 0, null_mut(), null_mut()),
                ZX_ERR_NOT_SUPPORTED,
            ),
            (
                "read: type",
                &|| zx_channel_read(wrong, 0, null_mut(), null_mut(), 0, 0, null_mut(), null_mut()),
                ZX_ERR_WRONG_TYPE,
            ),
            (
                "read etc: type",
                &|| zx_channel_read_etc(wrong, 0, null_mut(), null_mut(), 0, 0, null_mut(), null_mut()),
                ZX_ERR_WRONG_TYPE,
            ),
            ("call: null", &|| zx_channel_call(a, 0, 0, null(), null_mut(), null_mut()), ZX_ERR_INVALID_ARGS),
            (
                "call etc: null",
                &|| zx_channel_call_etc(a, 0, 0, null_mut(), null_mut(), null_mut()),
                ZX_ERR_INVALID_ARGS,
            ),
            ("call: null", &|| zx_channel_call_noretry(a, 0, 0, null(), null_mut(), null_mut()), ZX_ERR_INVALID_ARGS),
        ]);
        for none in no_handles() {
            check(&[
                ("write: handle", &|| zx_channel_write(none, 0, bytes, 1, null(), 0), ZX_ERR_BAD_HANDLE),
                ("write: regions", &|| zx_channel_write(none, io, null(), 0, null(), 0), ZX_ERR_BAD_HANDLE),
                ("write etc: handle", &|| zx_channel_write_etc(none, 0, bytes, 1, null_mut(), 0), ZX_ERR_BAD_HANDLE),
                ("write: carried", &|| zx_channel_write(a, 0, bytes, 1, &none, 1), ZX_ERR_BAD_HANDLE),
                (
                    "read: handle",
                    &|| zx_channel_read(none, 0, null_mut(), null_mut(), 0, 0, null_mut(), null_mut()),
                    ZX_ERR_BAD_HANDLE,
                ),
                (
                    "read etc: handle",
                    &|| zx_channel_read_etc(none, 0, null_mut(), null_mut(), 0, 0, null_mut(), null_mut()),
                    ZX_ERR_BAD_HANDLE,
                ),
            ]);
        }
    }
    close_all(&[a, b, wrong]);
}

/// Shows that the results of a function may overlap, and may lie in the buffer for the bytes.
fn overlaps() {
    let (a, b) = channel();
    let mut place = [0u64; 4];
    let at = place.as_mut_ptr();
    for bytes in [b"12345678".as_slice(), b""] {
        assert_eq!(write(a, bytes, &[event()]), ZX_OK);
        // SAFETY: all pointers are valid.
        let status = unsafe { zx_channel_read(b, 0, at.cast(), at.cast(), 32, 8, at.cast(), at.cast()) };
        assert_eq!(status, ZX_OK);
        // The interface does not promise which result remains; here the handle remains, written last.
        assert_eq!(close(place[0] as zx_handle_t), ZX_OK);
    }
    close_all(&[a, b]);
}

fn handles() {
    let event = event();
    let mut x = 0;
    let out = &raw mut x;
    let gone = no_handles();
    // SAFETY: each pointer is null or valid.
    unsafe {
        check(&[
            ("close nothing", &|| zx_handle_close(ZX_HANDLE_INVALID), ZX_OK),
            ("close many: null", &|| zx_handle_close_many(null(), 1), ZX_ERR_INVALID_ARGS),
            ("close many: far too many", &|| zx_handle_close_many(null(), MOST), ZX_ERR_INVALID_ARGS),
            ("close many: none", &|| zx_handle_close_many(null(), 0), ZX_OK),
            ("close many: none of them is one", &|| zx_handle_close_many(gone.as_ptr(), 3), ZX_ERR_BAD_HANDLE),
            ("duplicate: null", &|| zx_handle_duplicate(event, ZX_RIGHT_SAME_RIGHTS, null_mut()), ZX_ERR_INVALID_ARGS),
            ("duplicate: rights", &|| zx_handle_duplicate(event, ZX_RIGHT_RESIZE, out), ZX_ERR_INVALID_ARGS),
            (
                "replace: null",
                &|| zx_handle_replace(rig::event(), ZX_RIGHT_SAME_RIGHTS, null_mut()),
                ZX_ERR_INVALID_ARGS,
            ),
            ("replace: rights", &|| zx_handle_replace(rig::event(), ZX_RIGHT_RESIZE, out), ZX_ERR_INVALID_ARGS),
        ]);
        for none in gone {
            check(&[
                ("duplicate", &|| zx_handle_duplicate(none, ZX_RIGHT_SAME_RIGHTS, out), ZX_ERR_BAD_HANDLE),
                ("replace", &|| zx_handle_replace(none, ZX_RIGHT_SAME_RIGHTS, out), ZX_ERR_BAD_HANDLE),
                ("to a descriptor", &|| strait_zx_handle_to_fd(none, out.cast()), ZX_ERR_BAD_HANDLE),
            ]);
            if none != ZX_HANDLE_INVALID {
                assert_eq!(zx_handle_close(none), ZX_ERR_BAD_HANDLE);
            }
        }
    }
    assert_eq!(x, 0, "a failed call returned a result");
    assert_eq!(close(event), ZX_OK);
}

fn objects() {
    let (event, vmo, port) = (event(), vmo(4096), port());
    let (a, b) = channel();
    let mut items = [zx_wait_item_t::default(); 65];
    let items = items.as_mut_ptr();
    let mut info = zx_info_handle_basic_t::default();
    let (room, size) = ((&raw mut info).cast(), size_of::<zx_info_handle_basic_t>());
    let n = null_mut();
    // SAFETY: each pointer is null, or points to as much memory as the function accesses.
    unsafe {
        check(&[
            ("wait: nothing comes", &|| zx_object_wait_one(event, ZX_EVENT_SIGNALED, 0, null_mut()), ZX_ERR_TIMED_OUT),
            ("wait: type", &|| zx_object_wait_one(vmo, 1, 0, null_mut()), ZX_ERR_NOT_SUPPORTED),
            ("wait many: null", &|| zx_object_wait_many(null_mut(), 1, 0), ZX_ERR_INVALID_ARGS),
            ("wait many: none", &|| zx_object_wait_many(null_mut(), 0, 0), ZX_ERR_TIMED_OUT),
            ("wait many: too many", &|| zx_object_wait_many(items, 65, 0), ZX_ERR_OUT_OF_RANGE),
            ("wait many: far too many", &|| zx_object_wait_many(null_mut(), MOST, 0), ZX_ERR_OUT_OF_RANGE),
            ("wait many: no handle", &|| zx_object_wait_many(items, 1, 0), ZX_ERR_BAD_HANDLE),
            ("wait async: port", &|| zx_object_wait_async(event, event, 0, 1, 0), ZX_ERR_WRONG_TYPE),
            ("wait async: type", &|| zx_object_wait_async(vmo, port, 0, 1, 0), ZX_ERR_NOT_SUPPORTED),
            ("wait async: options", &|| zx_object_wait_async(event, port, 0, 1, u32::MAX), ZX_ERR_INVALID_ARGS),
            ("signal: bits", &|| zx_object_signal(event, u32::MAX, 0), ZX_ERR_INVALID_ARGS),
            ("signal: bits", &|| zx_object_signal(a, 0, u32::MAX), ZX_ERR_INVALID_ARGS),
            ("signal: type", &|| zx_object_signal(vmo, 0, 0), ZX_ERR_NOT_SUPPORTED),
            ("signal peer: bits", &|| zx_object_signal_peer(a, u32::MAX, 0), ZX_ERR_INVALID_ARGS),
            ("info: topic", &|| zx_object_get_info(event, u32::MAX, room, size, n, n), ZX_ERR_NOT_SUPPORTED),
            (
                "info: null",
                &|| zx_object_get_info(event, ZX_INFO_HANDLE_BASIC, null_mut(), MOST, n, n),
                ZX_ERR_INVALID_ARGS,
            ),
            (
                "info: no room",
                &|| zx_object_get_info(event, ZX_INFO_HANDLE_BASIC, null_mut(), 0, n, n),
                ZX_ERR_BUFFER_TOO_SMALL,
            ),
            (
                "info: a byte less",
                &|| zx_object_get_info(event, ZX_INFO_HANDLE_BASIC, room, size - 1, n, n),
                ZX_ERR_BUFFER_TOO_SMALL,
            ),
            ("to a descriptor: null", &|| strait_zx_handle_to_fd(rig::vmo(1), null_mut()), ZX_ERR_INVALID_ARGS),
        ]);
        for none in no_handles() {
            check(&[
                ("wait", &|| zx_object_wait_one(none, 1, 0, null_mut()), ZX_ERR_BAD_HANDLE),
                ("wait async", &|| zx_object_wait_async(none, port, 0, 1, 0), ZX_ERR_BAD_HANDLE),
                ("wait async: port", &|| zx_object_wait_async(event, none, 0, 1, 0), ZX_ERR_BAD_HANDLE),
                ("signal", &|| zx_object_signal(none, 0, 0), ZX_ERR_BAD_HANDLE),
                ("signal peer", &|| zx_object_signal_peer(none, 0, 0), ZX_ERR_BAD_HANDLE),
                ("valid", &|| zx_object_get_info(none, ZX_INFO_HANDLE_VALID, n.cast(), 0, n, n), ZX_ERR_BAD_HANDLE),
                ("info", &|| zx_object_get_info(none, ZX_INFO_HANDLE_BASIC, room, size, n, n), ZX_ERR_BAD_HANDLE),
            ]);
        }
    }
    close_all(&[event, vmo, port, a, b]);
}

fn ports() {
    let (port, event) = (port(), event());
    let packet = zx_port_packet_t::default();
    let mut x = 0;
    let out = &raw mut x;
    // SAFETY: each pointer is null or valid.
    unsafe {
        check(&[
            ("create: null", &|| zx_port_create(0, null_mut()), ZX_ERR_INVALID_ARGS),
            ("create: options", &|| zx_port_create(u32::MAX, out), ZX_ERR_INVALID_ARGS),
            ("queue: null", &|| zx_port_queue(port, null()), ZX_ERR_INVALID_ARGS),
            ("queue: type", &|| zx_port_queue(event, &packet), ZX_ERR_WRONG_TYPE),
            ("wait: type", &|| zx_port_wait(event, 0, null_mut()), ZX_ERR_WRONG_TYPE),
            ("wait: null, nothing there", &|| zx_port_wait(port, 0, null_mut()), ZX_ERR_TIMED_OUT),
            ("cancel: type", &|| zx_port_cancel(event, event, 0), ZX_ERR_WRONG_TYPE),
            ("cancel key: options", &|| zx_port_cancel_key(port, 1, 0), ZX_ERR_INVALID_ARGS),
            ("cancel key: type", &|| zx_port_cancel_key(event, 0, 0), ZX_ERR_WRONG_TYPE),
        ]);
        for none in no_handles() {
            check(&[
                ("queue", &|| zx_port_queue(none, &packet), ZX_ERR_BAD_HANDLE),
                ("wait", &|| zx_port_wait(none, 0, null_mut()), ZX_ERR_BAD_HANDLE),
                ("cancel", &|| zx_port_cancel(none, event, 0), ZX_ERR_BAD_HANDLE),
                ("cancel: source", &|| zx_port_cancel(port, none, 0), ZX_ERR_BAD_HANDLE),
                ("cancel key", &|| zx_port_cancel_key(none, 0, 0), ZX_ERR_BAD_HANDLE),
            ]);
        }
    }
    assert_eq!(x, 0, "a failed call returned a result");
    close_all(&[port, event]);
}

fn events_and_memory() {
    let (vmo, event) = (vmo(4096), event());
    let (mut x, mut y, mut size) = (0, 0, 0);
    let (out0, out1, size_out) = (&raw mut x, &raw mut y, &raw mut size);
    let mut room = [0u8; 8];
    let room = room.as_mut_ptr().cast();
    // SAFETY: each pointer is null, or points to as much memory as the function accesses.
    unsafe {
        check(&[
            ("event: null", &|| zx_event_create(0, null_mut()), ZX_ERR_INVALID_ARGS),
            ("event: options", &|| zx_event_create(1, out0), ZX_ERR_INVALID_ARGS),
            ("eventpair: null", &|| zx_eventpair_create(0, null_mut(), out1), ZX_ERR_INVALID_ARGS),
            ("eventpair: null", &|| zx_eventpair_create(0, out0, null_mut()), ZX_ERR_INVALID_ARGS),
            ("eventpair: options", &|| zx_eventpair_create(1, out0, out1), ZX_ERR_NOT_SUPPORTED),
            ("vmo: null", &|| zx_vmo_create(1, 0, null_mut()), ZX_ERR_INVALID_ARGS),
            ("vmo: options", &|| zx_vmo_create(1, u32::MAX, out0), ZX_ERR_INVALID_ARGS),
            ("vmo: far too large", &|| zx_vmo_create(FAR, 0, out0), ZX_ERR_OUT_OF_RANGE),
            ("read: null", &|| zx_vmo_read(vmo, null_mut(), 0, 1), ZX_ERR_INVALID_ARGS),
            ("read: nothing", &|| zx_vmo_read(vmo, null_mut(), 4096, 0), ZX_OK),
            ("read: behind the end", &|| zx_vmo_read(vmo, room, 4096, 1), ZX_ERR_OUT_OF_RANGE),
            ("read: far behind the end", &|| zx_vmo_read(vmo, room, FAR, 1), ZX_ERR_OUT_OF_RANGE),
            ("read: far too much", &|| zx_vmo_read(vmo, room, 1, MOST), ZX_ERR_OUT_OF_RANGE),
            ("read: a sum that overflows", &|| zx_vmo_read(vmo, room, FAR - 3, 8), ZX_ERR_OUT_OF_RANGE),
            ("read: type", &|| zx_vmo_read(event, room, 0, 1), ZX_ERR_WRONG_TYPE),
            ("write: null", &|| zx_vmo_write(vmo, null(), 0, 1), ZX_ERR_INVALID_ARGS),
            ("write: behind the end", &|| zx_vmo_write(vmo, room, 4095, 2), ZX_ERR_OUT_OF_RANGE),
            ("write: far too much", &|| zx_vmo_write(vmo, room, 1, MOST), ZX_ERR_OUT_OF_RANGE),
            ("write: a sum that overflows", &|| zx_vmo_write(vmo, room, FAR - 3, 8), ZX_ERR_OUT_OF_RANGE),
            ("write: type", &|| zx_vmo_write(event, room, 0, 1), ZX_ERR_WRONG_TYPE),
            ("size: null", &|| zx_vmo_get_size(vmo, null_mut()), ZX_ERR_INVALID_ARGS),
            ("size: type", &|| zx_vmo_get_size(event, size_out), ZX_ERR_WRONG_TYPE),
        ]);
        for none in no_handles() {
            check(&[
                ("read", &|| zx_vmo_read(none, room, 0, 1), ZX_ERR_BAD_HANDLE),
                ("write", &|| zx_vmo_write(none, room, 0, 1), ZX_ERR_BAD_HANDLE),
                ("size", &|| zx_vmo_get_size(none, size_out), ZX_ERR_BAD_HANDLE),
            ]);
        }
    }
    assert_eq!((x, y, size), (0, 0, 0), "a failed call returned a result");
    close_all(&[vmo, event]);
}

fn bridges() {
    let mut x = 0;
    let out = &raw mut x;
    let no_program = [null()];
    // SAFETY: each pointer is null or valid. The test still owns descriptors after a failure; these are no open ones.
    unsafe {
        check(&[
            ("from a descriptor that is none", &|| strait_zx_handle_from_fd(-1, out), ZX_ERR_BAD_HANDLE),
            ("from one that is not open", &|| strait_zx_handle_from_fd(i32::MAX, out), ZX_ERR_BAD_HANDLE),
            ("from a descriptor: null", &|| strait_zx_handle_from_fd(0, null_mut()), ZX_ERR_INVALID_ARGS),
            ("over none", &|| strait_zx_channel_from_socket(-1, out), ZX_ERR_BAD_HANDLE),
            ("over one that is not open", &|| strait_zx_channel_from_socket(i32::MAX, out), ZX_ERR_BAD_HANDLE),
            ("over a socket: null", &|| strait_zx_channel_from_socket(0, null_mut()), ZX_ERR_INVALID_ARGS),
            ("spawn: null", &|| strait_zx_spawn(null(), null_mut(), out), ZX_ERR_INVALID_ARGS),
            ("spawn: nothing", &|| strait_zx_spawn(no_program.as_ptr(), null_mut(), out), ZX_ERR_INVALID_ARGS),
            ("spawn: null", &|| strait_zx_spawn(no_program.as_ptr(), null_mut(), null_mut()), ZX_ERR_INVALID_ARGS),
            ("from a parent: null", &|| strait_zx_channel_from_parent(null_mut()), ZX_ERR_INVALID_ARGS),
        ]);
    }
    assert_eq!(x, 0, "a failed call returned a result");
}

#[test]
fn whatever_is_passed_there_is_a_status_and_nothing_is_left() {
    let all = [channels, overlaps, handles, objects, ports, events_and_memory, bridges];
    // The first round makes objects kept for later rounds.
    all.iter().for_each(|part| part());
    let before = Counts::now();
    all.iter().for_each(|part| part());
    let now = Counts::now();
    assert_eq!((now.handles, now.descriptors), (before.handles, before.descriptors));
}
