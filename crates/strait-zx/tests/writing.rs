//! Tests of failing writes: the returned status, the fate of the handles, and the values written back.

mod rig;

use std::ptr::{null, null_mut};

use rig::*;
use strait_zx::abi::*;

const ALL: zx_rights_t = ZX_DEFAULT_EVENT_RIGHTS;

/// Lets one test run at a time, since handles are counted.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Makes an event with the given rights.
fn event_with(rights: zx_rights_t) -> zx_handle_t {
    replace(event(), rights).unwrap()
}

/// A failing row: a disposition, and the state of its `result` and of the handle afterwards.
struct Row {
    name: &'static str,
    disposition: zx_handle_disposition_t,
    result: zx_status_t,
    is_kept: bool,
}

fn row(name: &'static str, disposition: zx_handle_disposition_t, result: zx_status_t, is_kept: bool) -> Row {
    Row { name, disposition, result, is_kept }
}

fn rows() -> Vec<Row> {
    let with = |mut disposition: zx_handle_disposition_t, type_, rights, operation| {
        disposition.type_ = type_;
        disposition.rights = rights;
        disposition.operation = operation;
        disposition
    };
    let (same, moves, copies) = (ZX_RIGHT_SAME_RIGHTS, ZX_HANDLE_OP_MOVE, ZX_HANDLE_OP_DUPLICATE);
    let closed = event();
    assert_eq!(close(closed), ZX_OK);
    let stay = ALL & !ZX_RIGHT_TRANSFER;
    let alone = ALL & !ZX_RIGHT_DUPLICATE;
    let mut rows = vec![
        row("WrongTypeFailure", with(moved(event()), ZX_OBJ_TYPE_CHANNEL, same, moves), ZX_ERR_WRONG_TYPE, false),
        row("WrongType, kept", with(moved(event()), ZX_OBJ_TYPE_CHANNEL, same, copies), ZX_ERR_WRONG_TYPE, true),
        row("MissingTransferRightFailure", moved(event_with(stay)), ZX_ERR_ACCESS_DENIED, false),
        row("HandleWithoutTransferRight, kept", copied(event_with(stay)), ZX_ERR_ACCESS_DENIED, true),
        row("MissingDuplicateRightFailure", copied(event_with(alone)), ZX_ERR_ACCESS_DENIED, true),
        row(
            "MoveHandlesWithRightsCheckFailure",
            with(moved(event_with(alone)), 0, ALL, moves),
            ZX_ERR_INVALID_ARGS,
            false,
        ),
        row("more rights, kept", with(moved(event()), 0, ALL | ZX_RIGHT_READ, copies), ZX_ERR_INVALID_ARGS, true),
        row("InvalidHandle", moved(ZX_HANDLE_INVALID), ZX_ERR_BAD_HANDLE, false),
        row("InvalidHandle, to be duplicated", copied(ZX_HANDLE_INVALID), ZX_ERR_BAD_HANDLE, false),
        row("a closed one", moved(closed), ZX_ERR_BAD_HANDLE, false),
        row("no handle at all", moved(4), ZX_ERR_BAD_HANDLE, false),
        row("InvalidOpArgShouldFail", with(moved(event()), 0, same, 2), ZX_ERR_INVALID_ARGS, false),
        row("an unknown operation on nothing", with(moved(0), 0, same, u32::MAX), ZX_ERR_BAD_HANDLE, false),
        // The checks come in this order: the right to transfer, the type, the rights, the right to duplicate.
        row("order", with(moved(event_with(0)), ZX_OBJ_TYPE_PORT, ALL, copies), ZX_ERR_ACCESS_DENIED, true),
        row(
            "order",
            with(moved(event_with(ZX_RIGHT_TRANSFER)), ZX_OBJ_TYPE_PORT, ALL, copies),
            ZX_ERR_WRONG_TYPE,
            true,
        ),
        row("order", with(moved(event_with(ZX_RIGHT_TRANSFER)), 0, ALL, copies), ZX_ERR_INVALID_ARGS, true),
    ];
    // HandleDoesNotMatchTypeShouldFail
    for type_ in (1..256).filter(|type_| *type_ != ZX_OBJ_TYPE_EVENT) {
        rows.push(row("type", with(moved(event()), type_, same, moves), ZX_ERR_WRONG_TYPE, false));
    }
    rows
}

/// Covers these test cases of Fuchsia: ChannelTest.WriteNonTransferableHandleReturnsAccessDeniedAndClosesHandle,
/// ChannelWriteEtcTest.WrongTypeFailure, ChannelWriteEtcTest.MissingTransferRightFailure,
/// ChannelWriteEtcTest.MissingDuplicateRightFailure, ChannelWriteEtcTest.MoveHandlesWithRightsCheckFailure,
/// ChannelWriteEtcTest.InvalidOpArgShouldFail, ChannelWriteEtcTest.HandleWithoutTransferRightShouldFail,
/// ChannelWriteEtcTest.InvalidHandleInTransferredHandlesShouldFail,
/// ChannelWriteEtcTest.HandleDoesNotMatchTypeShouldFail,
/// ChannelWriteEtcTest.HandleWithoutDuplicateRightsMoveOpSucceedsDuplicateOpFails,
/// ChannelWriteEtcTest.MultipleHandlesSomeInvalidResultsReportedCorrectly,
/// ChannelWriteEtcTest.ImproperlyInitalizedResultsArgReportedBackAsOriginallyInitalized,
/// ChannelTest.WriteEtcFirstErrorLatchedAndReturned,
/// ChannelTest.WriteEtcMixedMoveAndDuplicateOnFailurePreservesDuplicateHandles.
#[test]
fn each_wrong_handle_says_why_in_every_position() {
    let _alone = alone();
    let (a, b) = channel();
    for place in 0..3 {
        for Row { name, mut disposition, result, is_kept } in rows() {
            let (sent, kept) = (event(), event());
            disposition.result = 55;
            let mut list = vec![moved(sent), copied(kept)];
            list.iter_mut().for_each(|good| good.result = 33);
            list.insert(place, disposition);
            // A second wrong handle is tried too, and does not change the returned status.
            list.push(zx_handle_disposition_t { result: 44, ..moved(ZX_HANDLE_INVALID) });
            assert_eq!(write_etc(a, b"x", &mut list), result, "{name} in place {place}");
            assert_eq!(list[place].result, result, "{name}");
            assert_eq!(list[3].result, ZX_ERR_BAD_HANDLE, "{name}");
            list.remove(place);
            assert_eq!([list[0].result, list[1].result], [33, 33], "the result of a correct handle changed: {name}");
            assert_eq!((is_valid(sent), is_valid(kept)), (false, true), "{name}");
            assert_eq!(is_valid(disposition.handle), is_kept, "{name}");
            if is_kept {
                assert_eq!(close(disposition.handle), ZX_OK);
            }
            assert_eq!(close(kept), ZX_OK);
        }
    }
    // A handle that cannot be duplicated can be moved.
    assert_eq!(write_etc(a, b"x", &mut [moved(event_with(ALL & !ZX_RIGHT_DUPLICATE))]), ZX_OK);
    // Writes without dispositions act the same.
    let stay = event_with(ALL & !ZX_RIGHT_TRANSFER);
    assert_eq!(write(a, b"x", &[stay]), ZX_ERR_ACCESS_DENIED);
    assert!(!is_valid(stay));
    let last = read(b);
    assert_eq!(last.handles[0].rights, ALL & !ZX_RIGHT_DUPLICATE);
    assert_eq!(read(b).status, ZX_ERR_SHOULD_WAIT, "another message was queued");
    assert_eq!((close(a), close(b), close(last.handles[0].handle)), (ZX_OK, ZX_OK, ZX_OK));
}

/// Covers these test cases of Fuchsia: ChannelTest.WriteRepeatedHandlesReturnsBadHandlesAndClosesHandle,
/// ChannelWriteEtcTest.RepeatedHandlesWithOpMoveHandlesShouldFail.
#[test]
fn a_handle_is_moved_once() {
    let _alone = alone();
    let (a, b) = channel();
    let (witness, sent) = eventpair();
    assert_eq!(write(a, b"x", &[sent, sent]), ZX_ERR_BAD_HANDLE);
    assert!(!is_valid(sent));
    assert_eq!(wait(witness, ZX_EVENTPAIR_PEER_CLOSED, deadline()).0, ZX_OK);
    let twice = event();
    let mut list = [moved(twice), moved(twice), moved(twice)];
    assert_eq!(write_etc(a, b"x", &mut list), ZX_ERR_BAD_HANDLE);
    assert_eq!(list.map(|each| each.result), [0, ZX_ERR_BAD_HANDLE, ZX_ERR_BAD_HANDLE]);
    assert!(!is_valid(twice));
    assert_eq!((close(a), close(b), close(witness)), (ZX_OK, ZX_OK, ZX_OK));
}

/// Covers these test cases of Fuchsia: ChannelTest.WriteInvalidOptionsReturnsInvalidArgs,
/// ChannelWriteEtcTest.OptionsArgNonZeroShouldFail, ChannelWriteEtcTest.HandleArgNotAChannelHandleShouldFail,
/// ChannelWriteEtcTest.ChannelHandleNotValidShouldFail, ChannelWriteEtcTest.ChannelHandleWithoutWriteRightShouldFail,
/// ChannelWriteEtcTest.NullptrArgWhenSizeNonZeroShouldFail,
/// ChannelTest.WriteNullBytesWithNonZeroSizeReturnsInvalidArgs, ChannelWriteEtcTest.ByteCountIsMaxPlusOneShouldFail,
/// ChannelWriteEtcTest.HandleCountBoundaryChecks, ChannelTest.WriteIovecTooManyIovecsReturnsOutOfRange,
/// ChannelTest.WriteIovecTotalCapacityOverflowReturnsOutOfRange,
/// ChannelTest.WriteIovecUnboundedNonZeroReservedReturnsInvalidArgs, message_packet.create_too_many_handles,
/// message_packet.create_iovec_bounded_handles, message_packet.create_iovec_unbounded_handles.
#[test]
fn what_is_wrong_with_the_rest_is_found_in_order_and_consumes_all_handles() {
    let _alone = alone();
    let (a, b) = channel();
    let (quiet, other) = channel();
    let reader = replace(quiet, ZX_DEFAULT_CHANNEL_RIGHTS & !ZX_RIGHT_WRITE).unwrap();
    let not_a_channel = event();
    let big = vec![1u8; 65537];
    let io = ZX_CHANNEL_WRITE_USE_IOVEC;
    let bytes = big.as_ptr();
    let regions = |list: &[(usize, u32, u32)]| -> Vec<zx_channel_iovec_t> {
        let of = |&(address, capacity, reserved): &(usize, u32, u32)| zx_channel_iovec_t {
            buffer: address as *const _,
            capacity,
            reserved,
        };
        list.iter().map(of).collect()
    };
    let at = bytes as usize;
    let many = |tail: &[(usize, u32, u32)]| {
        let mut list = vec![(at, 1, 0); 20];
        list.extend_from_slice(tail);
        regions(&list)
    };
    let overflow = regions(&[(at, 0x8000_0000, 0), (at, 0x8000_0000, 0)]);
    let overflow_late = many(&[(at, 0x8000_0000, 0), (at, 0x8000_0000, 0)]);
    let too_long = regions(&[(at, 65536, 0), (at, 1, 0)]);
    let too_long_late = many(&[(at, 65517, 0)]);
    let reserved = regions(&[(at, 1, 0), (at, 1, 1)]);
    let reserved_late = many(&[(at, 1, 1)]);
    let reserved_before_size = regions(&[(at, 65537, 0), (at, 1, 1)]);
    let size_before_reserved = many(&[(at, 65537, 0), (at, 1, 1)]);
    let null_region = regions(&[(at, 1, 0), (0, 1, 0)]);
    let null_region_late = many(&[(0, 1, 0)]);
    let size_before_null = regions(&[(0, 1, 0), (at, 65536, 0)]);
    let fine = regions(&[(at, 1, 0)]);
    let fine_many = many(&[]);
    fn of(list: &[zx_channel_iovec_t]) -> (*const u8, u32) {
        (list.as_ptr().cast(), list.len() as u32)
    }
    let n = null();
    /// A description, the handle, the options, the bytes, the number of handles, and the status.
    type Case = (&'static str, zx_handle_t, u32, (*const u8, u32), usize, zx_status_t);
    let cases: Vec<Case> = vec![
        ("options", a, 1, (bytes, 1), 1, ZX_ERR_INVALID_ARGS),
        ("options", a, 4 | io, (bytes, 1), 1, ZX_ERR_INVALID_ARGS),
        ("options before the handle", 0, 1, (bytes, 1), 1, ZX_ERR_INVALID_ARGS),
        ("no handle", 0, 0, (bytes, 1), 1, ZX_ERR_BAD_HANDLE),
        ("no handle before sizes", 7, 0, (n, 65537), 1, ZX_ERR_BAD_HANDLE),
        ("another object", not_a_channel, 0, (bytes, 1), 1, ZX_ERR_WRONG_TYPE),
        ("no right", reader, 0, (n, 65537), 1, ZX_ERR_ACCESS_DENIED),
        ("one byte more", a, 0, (bytes, 65537), 1, ZX_ERR_OUT_OF_RANGE),
        ("one byte more before null", a, 0, (n, 65537), 1, ZX_ERR_OUT_OF_RANGE),
        ("one handle more", a, 0, (n, 1), 65, ZX_ERR_OUT_OF_RANGE),
        ("null", a, 0, (n, 1), 1, ZX_ERR_INVALID_ARGS),
        ("regions: count before null", a, io, (n, 8193), 1, ZX_ERR_OUT_OF_RANGE),
        ("regions: most, null", a, io, (n, 8192), 1, ZX_ERR_INVALID_ARGS),
        ("regions: few, null", a, io, (n, 4), 1, ZX_ERR_INVALID_ARGS),
        ("regions: handles before null", a, io, (n, 20), 65, ZX_ERR_OUT_OF_RANGE),
        ("regions: null before handles", a, io, (n, 4), 65, ZX_ERR_INVALID_ARGS),
        ("regions: handles, few", a, io, of(&fine), 65, ZX_ERR_OUT_OF_RANGE),
        ("regions: handles, many", a, io, of(&fine_many), 65, ZX_ERR_OUT_OF_RANGE),
        ("regions: sum of 2 to the 32", a, io, of(&overflow), 1, ZX_ERR_OUT_OF_RANGE),
        ("regions: the same, many", a, io, of(&overflow_late), 1, ZX_ERR_OUT_OF_RANGE),
        ("regions: too long", a, io, of(&too_long), 1, ZX_ERR_OUT_OF_RANGE),
        ("regions: too long, many", a, io, of(&too_long_late), 1, ZX_ERR_OUT_OF_RANGE),
        ("regions: reserved", a, io, of(&reserved), 1, ZX_ERR_INVALID_ARGS),
        ("regions: reserved, many", a, io, of(&reserved_late), 1, ZX_ERR_INVALID_ARGS),
        ("regions: reserved before size", a, io, of(&reserved_before_size), 1, ZX_ERR_INVALID_ARGS),
        ("regions: as they come, many", a, io, of(&size_before_reserved), 1, ZX_ERR_OUT_OF_RANGE),
        ("regions: null", a, io, of(&null_region), 1, ZX_ERR_INVALID_ARGS),
        ("regions: null, many", a, io, of(&null_region_late), 1, ZX_ERR_INVALID_ARGS),
        ("regions: size before null", a, io, of(&size_before_null), 1, ZX_ERR_OUT_OF_RANGE),
    ];
    let before = strait_zx::handle_count();
    for (name, handle, options, (pointer, count), handles, expected) in cases {
        let sent: Vec<_> = (0..handles).map(|_| event()).collect();
        // SAFETY: each pointer is null or valid, as the table says.
        let status = unsafe { zx_channel_write(handle, options, pointer.cast(), count, sent.as_ptr(), handles as u32) };
        assert_eq!(status, expected, "{name}");
        assert!(sent.iter().all(|handle| !is_valid(*handle)), "consumed: {name}");

        let (sent, kept) = (event(), event());
        let mut list = vec![moved(sent), copied(kept)];
        list.resize_with(handles.max(2), || copied(kept));
        // SAFETY: each pointer is null or valid, as the table says.
        let status = unsafe {
            zx_channel_write_etc(handle, options, pointer.cast(), count, list.as_mut_ptr(), list.len() as u32)
        };
        assert_eq!(status, expected, "{name}");
        assert_eq!((is_valid(sent), is_valid(kept)), (false, true), "{name}");
        assert_eq!(close(kept), ZX_OK);
        assert_eq!(strait_zx::handle_count(), before, "{name}");
    }
    // An array of handles that cannot be read is checked last: INVALID_ARGS; the first error is returned.
    // SAFETY: each pointer is null or valid.
    unsafe {
        assert_eq!(zx_channel_write(a, 0, bytes.cast(), 1, null(), 1), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_channel_write_etc(a, 0, bytes.cast(), 1, null_mut(), 1), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_channel_write(a, 0, bytes.cast(), 65537, null(), 1), ZX_ERR_OUT_OF_RANGE);
        assert_eq!(zx_channel_write(a, 0, bytes.cast(), 1, null(), u32::MAX), ZX_ERR_OUT_OF_RANGE);
    }
    assert_eq!(read(b).status, ZX_ERR_SHOULD_WAIT, "a message was queued");
    for handle in [a, b, reader, other, not_a_channel] {
        assert_eq!(close(handle), ZX_OK);
    }
}

/// Covers these test cases of Fuchsia: ChannelWriteEtcTest.ByteCountIsMaxShouldSucceed,
/// ChannelWriteEtcTest.MaximumNumberHandlesWithZeroCountArrayArgShouldSucceed,
/// ChannelWriteEtcTest.HandleCountBoundaryChecks.
#[test]
fn what_is_just_within_the_limits_goes() {
    let _alone = alone();
    let (a, b) = channel();
    assert_eq!(write(a, &[3; 65536], &[]), ZX_OK);
    assert_eq!(read(b).bytes, [3; 65536]);
    let mut list: Vec<_> = (0..64).map(|_| moved(event())).collect();
    assert_eq!(write_etc(a, b"", &mut list), ZX_OK);
    let received = read(b).handles;
    assert_eq!(received.len(), 64);
    let received: Vec<_> = received.iter().map(|info| info.handle).collect();
    // SAFETY: the pointer and the length are those of a slice.
    assert_eq!(unsafe { zx_handle_close_many(received.as_ptr(), 64) }, ZX_OK);
    // An array of which no element is to be sent is not read, nor is a pointer to no bytes.
    let kept: Vec<_> = (0..64).map(|_| moved(event())).collect();
    let nowhere = 8 as *const u8;
    // SAFETY: the array has no elements.
    unsafe {
        assert_eq!(zx_channel_write_etc(a, 0, nowhere.cast(), 0, kept.as_ptr().cast_mut(), 0), ZX_OK);
        assert_eq!(zx_channel_write(a, 0, null(), 0, nowhere.cast(), 0), ZX_OK);
    }
    assert!(kept.iter().all(|each| close(each.handle) == ZX_OK));
    assert_eq!((close(a), close(b)), (ZX_OK, ZX_OK));
}

/// Shows that null pointers everywhere give a status, and nothing leaks. PortTest.QueueNullPtrReturnsInvalidArgs
#[test]
fn null_pointers_are_found_out() {
    let _alone = alone();
    let before = strait_zx::handle_count();
    let (a, b) = channel();
    let event = event();
    let port = port();
    let vmo = vmo(4096);
    let mut out = 0;
    // SAFETY: each pointer is null or valid.
    unsafe {
        assert_eq!(zx_channel_create(0, null_mut(), &mut out), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_channel_create(0, &mut out, null_mut()), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_event_create(0, null_mut()), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_eventpair_create(0, null_mut(), &mut out), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_eventpair_create(0, &mut out, null_mut()), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_port_create(0, null_mut()), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_vmo_create(0, 0, null_mut()), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_handle_duplicate(event, ZX_RIGHT_SAME_RIGHTS, null_mut()), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_handle_close_many(null(), 1), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_handle_close_many(null(), 0), ZX_OK);
        assert_eq!(zx_object_wait_many(null_mut(), 1, 0), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_object_wait_many(null_mut(), 65, 0), ZX_ERR_OUT_OF_RANGE);
        assert_eq!(zx_object_wait_one(a, ZX_CHANNEL_WRITABLE, 0, null_mut()), ZX_OK);
        let size = size_of::<zx_info_handle_basic_t>();
        let basic = ZX_INFO_HANDLE_BASIC;
        assert_eq!(zx_object_get_info(a, basic, null_mut(), size, null_mut(), null_mut()), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_object_get_info(a, basic, null_mut(), 0, null_mut(), null_mut()), ZX_ERR_BUFFER_TOO_SMALL);
        assert_eq!(zx_object_get_info(a, 77, null_mut(), 0, null_mut(), null_mut()), ZX_ERR_NOT_SUPPORTED);
        assert_eq!(zx_port_queue(port, null()), ZX_ERR_INVALID_ARGS);
        assert_eq!(queue(port, 1), ZX_OK);
        assert_eq!(zx_port_wait(port, 0, null_mut()), ZX_ERR_INVALID_ARGS);
        assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT, "the packet is still queued");
        assert_eq!(zx_vmo_read(vmo, null_mut(), 0, 1), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_vmo_write(vmo, null(), 0, 1), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_vmo_read(vmo, null_mut(), 4096, 0), ZX_OK);
        assert_eq!(zx_vmo_get_size(vmo, null_mut()), ZX_ERR_INVALID_ARGS);
        assert_eq!(strait_zx_handle_from_fd(-1, &mut out), ZX_ERR_BAD_HANDLE);
        assert_eq!(strait_zx_handle_from_fd(0, null_mut()), ZX_ERR_INVALID_ARGS);
        assert_eq!(strait_zx_handle_to_fd(event, &mut 0), ZX_ERR_NOT_SUPPORTED);
        assert!(!is_valid(event));
        assert_eq!(strait_zx_handle_to_fd(vmo, null_mut()), ZX_ERR_INVALID_ARGS);
        assert!(!is_valid(vmo));
        assert_eq!(strait_zx_channel_from_socket(0, &mut out), ZX_ERR_INVALID_ARGS);
        assert_eq!(strait_zx_channel_from_parent(&mut out), ZX_ERR_NOT_FOUND);
        assert_eq!(strait_zx_spawn(null(), null_mut(), &mut out), ZX_ERR_INVALID_ARGS);
        let none = [null()];
        assert_eq!(strait_zx_spawn(none.as_ptr(), null_mut(), &mut out), ZX_ERR_INVALID_ARGS);
        let missing = [c"/no/such/program".as_ptr(), null()];
        assert_eq!(strait_zx_spawn(missing.as_ptr(), null_mut(), &mut out), ZX_ERR_NOT_FOUND);
        // The handle is gone, as after any failure.
        assert_eq!(zx_handle_replace(b, ZX_RIGHT_SAME_RIGHTS, null_mut()), ZX_ERR_INVALID_ARGS);
        assert!(!is_valid(b));
    }
    assert_eq!((close(a), close(port)), (ZX_OK, ZX_OK));
    assert_eq!(strait_zx::handle_count(), before);
}
