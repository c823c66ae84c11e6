//! Data pipes: one-way streams of bytes in shared memory. What is the same for both ends is in `pipe/shell.rs`.

pub(crate) mod shell;

use std::ffi::c_void;
use std::ptr;

use strait::{DataConsumer, DataProducer, Interrupter, PipeOptions, Room, Unread};

use crate::args;
use crate::deadline::{strait_deadline, until};
use crate::status::{call, strait_status};
use shell::{Held, Shell, begin, count, finish, free, held, shape};

/// The writing end of a data pipe. Any number of threads may use it at once; they take turns. It is freed when none does any more, and
/// sent when none will: calls that are under way then end with `STRAIT_MOVED`.
pub struct strait_producer(Shell<Self>);

/// The reading end of a data pipe. Any number of threads may use it at once; they take turns. It is freed when none does any more, and
/// sent when none will: calls that are under way then end with `STRAIT_MOVED`.
pub struct strait_consumer(Shell<Self>);

impl Held for strait_producer {
    type End = DataProducer;
    type Begun = Room<'static>;
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

    fn len(begun: &Room<'static>) -> usize {
        begun.len()
    }

    fn interrupter(end: &DataProducer) -> Interrupter {
        end.interrupter()
    }
}

impl Held for strait_consumer {
    type End = DataConsumer;
    type Begun = Unread<'static>;
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

    fn len(begun: &Unread<'static>) -> usize {
        begun.len()
    }

    fn interrupter(end: &DataConsumer) -> Interrupter {
        end.interrupter()
    }
}

/// Makes a data pipe, a one-way stream of bytes whose ends can be sent to other processes.
///
/// Its buffer has `capacity` bytes, rounded up to whole elements of `element` bytes each (0 is 1): only whole elements are written and
/// read. `producer` and `consumer` get the ends, which are the caller's; `NULL` on failure. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_pipe_new(
    capacity: usize,
    element: u32,
    producer: *mut *mut strait_producer,
    consumer: *mut *mut strait_consumer,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
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

/// Ends the stream, and frees its writing end: the consumer reads what was written, and then the end. Room that was begun with is not
/// valid any more, and nothing of it was written. `NULL` is let pass. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_free(producer: *mut strait_producer) {
    // SAFETY: it was given out by `give`, and the caller gives it up.
    unsafe { free(producer) }
}

/// Writes what there is room for, at least one element; waits for room until the deadline. `written` gets how many bytes that was: less
/// than `len` if there was not more room.
///
/// `STRAIT_PEER_CLOSED` if the consumer is gone; `STRAIT_NOT_ELEMENTS` if there is less than an element; `STRAIT_IN_USE` while room is held
/// that was begun with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_write(
    producer: *const strait_producer,
    bytes: *const c_void,
    len: usize,
    written: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    // SAFETY: as the C API says.
    unsafe {
        count(producer, (written, "written is NULL"), |producer| {
            let bytes = args::bytes(bytes.cast(), len)?;
            producer.with_idle(|end| end.write_by(bytes, until(deadline)))
        })
    }
}

/// Writes all of it at once, or nothing; waits for room for all until the deadline.
///
/// `STRAIT_OUT_OF_RANGE` if it is more than the capacity; `STRAIT_NOT_ELEMENTS` if it is not whole elements; otherwise as
/// `strait_producer_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_write_whole(
    producer: *const strait_producer,
    bytes: *const c_void,
    len: usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (producer, bytes) = unsafe { (held(producer)?, args::bytes(bytes.cast(), len)?) };
        producer.with_idle(|end| end.write_whole(bytes, until(deadline)))
    })
}

/// Begins to write in place: `room` gets where, and `len` how many bytes are free there, at least one element; waits for that until the
/// deadline. What is behind the end of the buffer comes with the next call.
///
/// The room is to be written to and not read, as the peer may change what is in it, and is valid until `strait_producer_commit` ends
/// this. Until then other calls that write fail with `STRAIT_IN_USE`, and the end is not sent. `NULL` and 0 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_begin(
    producer: *const strait_producer,
    room: *mut *mut c_void,
    len: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    let place = (room, ptr::null_mut(), "room is NULL");
    // SAFETY: as the C API says.
    unsafe {
        begin(producer, place, len, deadline, |end, deadline| {
            let mut begun = end.begin_write(deadline)?;
            let start = begun.as_uninit_mut().as_mut_ptr().cast();
            Ok((begun, start))
        })
    }
}

/// Ends writing in place: the first `len` bytes of the room were written. 0 writes nothing. The room is not valid any more.
///
/// `STRAIT_OUT_OF_RANGE` if there was less room, and `STRAIT_NOT_ELEMENTS` if these are not whole elements: then the room is still
/// held. `STRAIT_INVALID_ARGUMENT` if nothing was begun.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_commit(producer: *const strait_producer, len: usize) -> strait_status {
    // SAFETY: as the C API says.
    unsafe { finish(producer, len, Room::commit) }
}

/// How many bytes could be written now without waiting, in `room`. `STRAIT_PEER_CLOSED` if the consumer is known to be gone;
/// `STRAIT_WOULD_BLOCK` while another thread waits, or holds room. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_room(producer: *const strait_producer, room: *mut usize) -> strait_status {
    // SAFETY: as the C API says.
    unsafe { count(producer, (room, "room is NULL"), |producer| producer.with(DataProducer::room)) }
}

/// Bytes of the buffer, whole elements. 0 of `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_capacity(producer: *const strait_producer) -> usize {
    // SAFETY: as the C API says.
    unsafe { shape(producer) }.1
}

/// Bytes of an element. 0 of `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_element(producer: *const strait_producer) -> usize {
    // SAFETY: as the C API says.
    unsafe { shape(producer) }.0
}

/// Frees a reading end; what is unread is lost. Bytes that were begun with are not valid any more. `NULL` is let pass. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_free(consumer: *mut strait_consumer) {
    // SAFETY: it was given out by `give`, and the caller gives it up.
    unsafe { free(consumer) }
}

/// Reads what is there, at least one element; waits for it until the deadline. `count` gets how many bytes: 0 at the end of the stream.
///
/// `STRAIT_PEER_CLOSED` if the producer's process died and all that it wrote was read; `STRAIT_NOT_ELEMENTS` if the buffer is shorter than
/// an element; `STRAIT_IN_USE` while bytes are held that were begun with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_read(
    consumer: *const strait_consumer,
    buffer: *mut c_void,
    capacity: usize,
    count: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    // SAFETY: as the C API says.
    unsafe {
        self::count(consumer, (count, "count is NULL"), |consumer| {
            let buffer = args::buffer(buffer.cast(), capacity)?;
            consumer.with_idle(|end| end.read_by(buffer, until(deadline)))
        })
    }
}

/// Fills all `len` bytes of the buffer, or reads nothing; waits for so many until the deadline.
///
/// `STRAIT_OUT_OF_RANGE` if that is more than the capacity, or if the stream has ended and has fewer left, which can still be read;
/// otherwise as `strait_consumer_read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_read_whole(
    consumer: *const strait_consumer,
    buffer: *mut c_void,
    len: usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (consumer, buffer) = unsafe { (held(consumer)?, args::buffer(buffer.cast(), len)?) };
        consumer.with_idle(|end| end.read_whole(buffer, until(deadline)))
    })
}

/// As `strait_consumer_read` with `STRAIT_NOW`, and the next call that reads gets the same bytes again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_peek(
    consumer: *const strait_consumer,
    buffer: *mut c_void,
    capacity: usize,
    count: *mut usize,
) -> strait_status {
    // SAFETY: as the C API says.
    unsafe {
        self::count(consumer, (count, "count is NULL"), |consumer| {
            let buffer = args::buffer(buffer.cast(), capacity)?;
            consumer.with_idle(|end| end.peek(buffer))
        })
    }
}

/// Drops up to `most` bytes that are there now, whole elements. `count` gets how many. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_discard(
    consumer: *const strait_consumer,
    most: usize,
    count: *mut usize,
) -> strait_status {
    // SAFETY: as the C API says.
    unsafe { self::count(consumer, (count, "count is NULL"), |consumer| consumer.with_idle(|end| end.discard(most))) }
}

/// Begins to read in place: `bytes` gets where, and `len` how many are there, at least one element; waits for that until the deadline.
/// What is behind the end of the buffer comes with the next call. At the end of the stream `len` gets 0, and nothing is begun: the end is
/// free for whatever is done with it.
///
/// The producer can change the bytes while they are looked at: copy what you decide on, once, and decide on the copy. They are valid until
/// `strait_consumer_consume` ends this. Until then other calls that read fail with `STRAIT_IN_USE`, and the end is not sent. `NULL` and
/// 0 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_begin(
    consumer: *const strait_consumer,
    bytes: *mut *const c_void,
    len: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    let place = (bytes, ptr::null(), "bytes is NULL");
    // SAFETY: as the C API says.
    unsafe {
        begin(consumer, place, len, deadline, |end, deadline| {
            let begun = end.begin_read(deadline)?;
            let start = begun.as_ptr().cast();
            Ok((begun, start))
        })
    }
}

/// Ends reading in place: the first `len` bytes were read, and the rest stays unread. The bytes are not valid any more.
///
/// `STRAIT_OUT_OF_RANGE` if there were fewer, and `STRAIT_NOT_ELEMENTS` if these are not whole elements: then they are still held.
/// `STRAIT_INVALID_ARGUMENT` if nothing was begun; but the 0 bytes at the end of the stream may be consumed as often as one likes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_consume(consumer: *const strait_consumer, len: usize) -> strait_status {
    // SAFETY: as the C API says.
    unsafe { finish(consumer, len, Unread::consume) }
}

/// How many bytes could be read now, in `count`. `STRAIT_WOULD_BLOCK` while another thread waits, or holds bytes. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_available(
    consumer: *const strait_consumer,
    count: *mut usize,
) -> strait_status {
    // SAFETY: as the C API says.
    unsafe { self::count(consumer, (count, "count is NULL"), |consumer| consumer.with(DataConsumer::available)) }
}

/// Bytes of the buffer, whole elements. 0 of `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_capacity(consumer: *const strait_consumer) -> usize {
    // SAFETY: as the C API says.
    unsafe { shape(consumer) }.1
}

/// Bytes of an element. 0 of `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_element(consumer: *const strait_consumer) -> usize {
    // SAFETY: as the C API says.
    unsafe { shape(consumer) }.0
}
