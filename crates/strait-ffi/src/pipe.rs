//! Data pipes: one-way streams of bytes in shared memory. The common code of both ends is in `pipe/shell.rs`.

pub(crate) mod shell;

use std::ffi::c_void;
use std::fmt;
use std::ptr;

use strait::pipe::{DataConsumer, DataProducer, PipeOptions};
use strait::{Interrupter, owned};

use crate::args;
use crate::deadline::{strait_deadline, until};
use crate::status::{call, strait_status};
use shell::{Held, Shell, abort, begin, count, finish, free, held, shape};

/// The writing end of a data pipe. Any number of threads may use the end at once; they take turns. Free the end when no
/// thread uses it any more. When the end is sent in a message, calls in progress on it fail with `STRAIT_MOVED`.
pub struct strait_producer(Shell<Self>);

impl fmt::Debug for strait_producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("strait_producer").finish_non_exhaustive()
    }
}

/// The reading end of a data pipe. Any number of threads may use the end at once; they take turns. Free the end when no
/// thread uses it any more. When the end is sent in a message, calls in progress on it fail with `STRAIT_MOVED`.
pub struct strait_consumer(Shell<Self>);

impl fmt::Debug for strait_consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("strait_consumer").finish_non_exhaustive()
    }
}

impl Held for strait_producer {
    type End = DataProducer;
    type Begun = owned::Room;
    const NULL: &'static str = "producer is NULL";

    fn new(shell: Shell<Self>) -> Self {
        Self(shell)
    }

    fn shell(&self) -> &Shell<Self> {
        &self.0
    }

    fn shape(end: &DataProducer) -> (usize, usize) {
        (end.element(), end.capacity())
    }

    fn len(begun: &owned::Room) -> usize {
        begun.len()
    }

    fn interrupter(end: &DataProducer) -> Interrupter {
        end.interrupter()
    }
}

impl Held for strait_consumer {
    type End = DataConsumer;
    type Begun = owned::Unread;
    const NULL: &'static str = "consumer is NULL";

    fn new(shell: Shell<Self>) -> Self {
        Self(shell)
    }

    fn shell(&self) -> &Shell<Self> {
        &self.0
    }

    fn shape(end: &DataConsumer) -> (usize, usize) {
        (end.element(), end.capacity())
    }

    fn len(begun: &owned::Unread) -> usize {
        begun.len()
    }

    fn interrupter(end: &DataConsumer) -> Interrupter {
        end.interrupter()
    }
}

/// Makes a data pipe, a one-way stream of bytes with sendable ends.
///
/// The buffer has `capacity` bytes, rounded up to whole elements of `element` bytes each (0 counts as 1). Only whole
/// elements are written and read. `producer` and `consumer` receive the ends, which the caller owns, or `NULL` on
/// failure. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_pipe_new(
    capacity: usize,
    element: u32,
    producer: *mut *mut strait_producer,
    consumer: *mut *mut strait_consumer,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (one, other) = unsafe {
            let one = args::out(producer, ptr::null_mut(), "producer is NULL");
            let other = args::out(consumer, ptr::null_mut(), "consumer is NULL");
            (one?, other?)
        };
        let (writing, reading) = PipeOptions::new().capacity(capacity).element(element).create()?;
        *one = strait_producer::give(writing);
        *other = strait_consumer::give(reading);
        Ok(())
    })
}

/// Ends the stream, and frees its writing end. The consumer reads everything written before, and then the end of the
/// stream. Room from `strait_producer_begin` becomes invalid, and its bytes are not written. Ignores `NULL`. Does not
/// block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_free(producer: *mut strait_producer) {
    // SAFETY: `give` made the object, and the caller gives the object up.
    unsafe { free(producer) }
}

/// Aborts the stream, and frees its writing end. The consumer reads everything written before; then its reading
/// functions fail with `STRAIT_ABORTED`, and `strait_last_error` has `reason`. The program defines the meaning of the
/// number. Room from `strait_producer_begin` becomes invalid, and its bytes are not written. Ignores `NULL`. Does not
/// block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_abort(producer: *mut strait_producer, reason: u32) {
    // SAFETY: `give` made the object, and the caller gives the object up.
    unsafe { abort(producer, reason, DataProducer::abort) }
}

/// Writes as many bytes as there is room for, at least one element; waits for room until the deadline. `written`
/// receives the number of bytes: less than `len` if there was not enough room for all.
///
/// Fails with `STRAIT_PEER_CLOSED` if the consumer is gone, with `STRAIT_ABORTED` if it was closed with a reason, with
/// `STRAIT_NOT_ELEMENTS` if `len` is less than an element, and with `STRAIT_IN_USE` while room from
/// `strait_producer_begin` is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_write(
    producer: *const strait_producer,
    bytes: *const c_void,
    len: usize,
    written: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    // SAFETY: the header requires the pointer to be valid.
    unsafe {
        count(producer, (written, "written is NULL"), |producer| {
            let bytes = args::bytes(bytes.cast(), len)?;
            producer.with_idle(|end| end.write_some(bytes, until(deadline)))
        })
    }
}

/// Writes all `len` bytes at once, or nothing; waits for room for all of them until the deadline.
///
/// Fails with `STRAIT_OUT_OF_RANGE` if `len` is more than the capacity, and with `STRAIT_NOT_ELEMENTS` if it is no
/// multiple of the element size; otherwise like `strait_producer_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_write_whole(
    producer: *const strait_producer,
    bytes: *const c_void,
    len: usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (producer, bytes) = unsafe { (held(producer)?, args::bytes(bytes.cast(), len)?) };
        producer.with_idle(|end| end.write_whole(bytes, until(deadline)))
    })
}

/// Begins to write in place; waits until the deadline for room for at least one element. `room` receives the address,
/// and `len` the number of bytes that are free there. Room beyond the end of the buffer comes with the next call. On
/// failure `room` is `NULL` and `len` is 0.
///
/// Write to the room, but do not read from the room: the peer may change its bytes. The room is valid until
/// `strait_producer_commit`. Until then other writing functions fail with `STRAIT_IN_USE`, and so does sending the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_begin(
    producer: *const strait_producer,
    room: *mut *mut c_void,
    len: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    let place = (room, ptr::null_mut(), "room is NULL");
    // SAFETY: the header requires the pointer to be valid.
    unsafe {
        begin(producer, place, len, deadline, |end, deadline| {
            let mut begun = end.begin_write_owned(deadline)?;
            let start = begun.as_uninit_mut().as_mut_ptr().cast();
            Ok((begun, start))
        })
    }
}

/// Ends writing in place: the first `len` bytes of the room were written. With 0, nothing is written. The room is not
/// valid any more.
///
/// Fails with `STRAIT_OUT_OF_RANGE` if there was less room, and with `STRAIT_NOT_ELEMENTS` if `len` is no multiple of
/// the element size; then the room is still held. Fails with `STRAIT_INVALID_ARGUMENT` if no room is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_commit(producer: *const strait_producer, len: usize) -> strait_status {
    // SAFETY: the header requires the pointer to be valid.
    unsafe { finish(producer, len, owned::Room::commit) }
}

/// Writes to `room` how many bytes could be written now without waiting. Fails with `STRAIT_PEER_CLOSED` if the
/// consumer is known to be gone, and with `STRAIT_WOULD_BLOCK` while another thread waits on this end or holds room.
/// Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_room(producer: *const strait_producer, room: *mut usize) -> strait_status {
    // SAFETY: the header requires the pointer to be valid.
    unsafe { count(producer, (room, "room is NULL"), |producer| producer.with(DataProducer::room)) }
}

/// Returns the size of the buffer in bytes, a multiple of the element size; 0 for `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_capacity(producer: *const strait_producer) -> usize {
    // SAFETY: the header requires the pointer to be valid.
    unsafe { shape(producer) }.1
}

/// Returns the size of an element in bytes; 0 for `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_element(producer: *const strait_producer) -> usize {
    // SAFETY: the header requires the pointer to be valid.
    unsafe { shape(producer) }.0
}

/// Frees a reading end; unread bytes are lost. Bytes from `strait_consumer_begin` become invalid. Ignores `NULL`. Does
/// not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_free(consumer: *mut strait_consumer) {
    // SAFETY: `give` made the object, and the caller gives the object up.
    unsafe { free(consumer) }
}

/// Frees a reading end and tells the producer the reason: its writing functions fail with `STRAIT_ABORTED`, where they
/// would fail with `STRAIT_PEER_CLOSED` after `strait_consumer_free`, and `strait_last_error` has `reason`. The program
/// defines the meaning of the number. Bytes from `strait_consumer_begin` become invalid. Ignores `NULL`. Does not
/// block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_abort(consumer: *mut strait_consumer, reason: u32) {
    // SAFETY: `give` made the object, and the caller gives the object up.
    unsafe { abort(consumer, reason, DataConsumer::abort) }
}

/// Reads the available bytes, at least one element; waits for an element until the deadline. `count` receives the
/// number of bytes: 0 at the end of the stream.
///
/// If everything written was read, fails with `STRAIT_ABORTED` if the producer has aborted the stream, and with
/// `STRAIT_PEER_CLOSED` if the producer's process died. Fails with `STRAIT_NOT_ELEMENTS` if the buffer is shorter than
/// an element, and with `STRAIT_IN_USE` while bytes from `strait_consumer_begin` are held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_read(
    consumer: *const strait_consumer,
    buffer: *mut c_void,
    capacity: usize,
    count: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    // SAFETY: the header requires the pointer to be valid.
    unsafe {
        self::count(consumer, (count, "count is NULL"), |consumer| {
            let buffer = args::buffer(buffer.cast(), capacity)?;
            consumer.with_idle(|end| end.read_some(buffer, until(deadline)))
        })
    }
}

/// Fills all `len` bytes of the buffer, or reads nothing; waits for that many bytes until the deadline.
///
/// Fails with `STRAIT_OUT_OF_RANGE` if `len` is more than the capacity, or if the stream has ended and has fewer bytes
/// left, which can still be read. Otherwise like `strait_consumer_read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_read_whole(
    consumer: *const strait_consumer,
    buffer: *mut c_void,
    len: usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (consumer, buffer) = unsafe { (held(consumer)?, args::buffer(buffer.cast(), len)?) };
        consumer.with_idle(|end| end.read_whole(buffer, until(deadline)))
    })
}

/// Copies the readable bytes without consuming them: the next reading function returns the same bytes again. Otherwise
/// like `strait_consumer_read` with `STRAIT_NOW`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_peek(
    consumer: *const strait_consumer,
    buffer: *mut c_void,
    capacity: usize,
    count: *mut usize,
) -> strait_status {
    // SAFETY: the header requires the pointer to be valid.
    unsafe {
        self::count(consumer, (count, "count is NULL"), |consumer| {
            let buffer = args::buffer(buffer.cast(), capacity)?;
            consumer.with_idle(|end| end.peek(buffer))
        })
    }
}

/// Drops up to `most` bytes that are there now, in whole elements. `count` receives the number of bytes dropped. Does
/// not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_discard(
    consumer: *const strait_consumer,
    most: usize,
    count: *mut usize,
) -> strait_status {
    // SAFETY: the header requires the pointer to be valid.
    unsafe { self::count(consumer, (count, "count is NULL"), |consumer| consumer.with_idle(|end| end.discard(most))) }
}

/// Begins to read in place; waits until the deadline for at least one element. `bytes` receives the address, and `len`
/// the number of bytes that are there. Bytes beyond the end of the buffer come with the next call. At the end of the
/// stream `len` receives 0, and nothing is held. On failure `bytes` is `NULL` and `len` is 0.
///
/// The producer can change the bytes while this process reads them: copy the bytes on which a decision depends, once,
/// and decide on the copy. The bytes are valid until `strait_consumer_consume`. Until then other reading functions fail
/// with `STRAIT_IN_USE`, and so does sending the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_begin(
    consumer: *const strait_consumer,
    bytes: *mut *const c_void,
    len: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    let place = (bytes, ptr::null(), "bytes is NULL");
    // SAFETY: the header requires the pointer to be valid.
    unsafe {
        begin(consumer, place, len, deadline, |end, deadline| {
            let begun = end.begin_read_owned(deadline)?;
            let start = begun.as_ptr().cast();
            Ok((begun, start))
        })
    }
}

/// Ends reading in place: the first `len` bytes were read, and the rest stays unread. The bytes are not valid any more.
///
/// Fails with `STRAIT_OUT_OF_RANGE` if there were fewer bytes, and with `STRAIT_NOT_ELEMENTS` if `len` is no multiple
/// of the element size; then the bytes are still held. Fails with `STRAIT_INVALID_ARGUMENT` if nothing was begun. At
/// the end of the stream, 0 bytes may be consumed any number of times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_consume(consumer: *const strait_consumer, len: usize) -> strait_status {
    // SAFETY: the header requires the pointer to be valid.
    unsafe { finish(consumer, len, owned::Unread::consume) }
}

/// Writes to `count` how many bytes could be read now. Fails with `STRAIT_WOULD_BLOCK` while another thread waits on
/// this end or holds bytes. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_available(
    consumer: *const strait_consumer,
    count: *mut usize,
) -> strait_status {
    // SAFETY: the header requires the pointer to be valid.
    unsafe { self::count(consumer, (count, "count is NULL"), |consumer| consumer.with(DataConsumer::available)) }
}

/// Returns the size of the buffer in bytes, a multiple of the element size; 0 for `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_capacity(consumer: *const strait_consumer) -> usize {
    // SAFETY: the header requires the pointer to be valid.
    unsafe { shape(consumer) }.1
}

/// Returns the size of an element in bytes; 0 for `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_element(consumer: *const strait_consumer) -> usize {
    // SAFETY: the header requires the pointer to be valid.
    unsafe { shape(consumer) }.0
}
