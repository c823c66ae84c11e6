//! Data pipes: one-way streams of bytes in shared memory.
//!
//! An end that C holds says in one word how many use it: calls that are under way, and room or bytes that were begun with. So an
//! end that is in use is not sent, whatever other threads do, and one that was sent is not used.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use strait::{DataConsumer, DataProducer, Error, PipeOptions, Room, Unread};

use crate::args;
use crate::deadline::{strait_deadline, until};
use crate::status::{Failure, call, call_or, strait_status};

const MOVED: u32 = 1 << 31;

/// An end, and what was begun with it.
struct Shell<End, Begun> {
    /// How many use it, and whether it was sent.
    state: AtomicU32,
    /// Dropped before the end that it borrows.
    begun: Mutex<Option<Begun>>,
    end: UnsafeCell<Option<End>>,
    /// Bytes of an element, and of the buffer.
    shape: (usize, usize),
}

impl<End, Begun> Shell<End, Begun> {
    fn new(end: End, shape: (usize, usize)) -> Self {
        Self { state: AtomicU32::new(0), begun: Mutex::new(None), end: UnsafeCell::new(Some(end)), shape }
    }

    /// The end, for a call.
    fn enter(&self) -> Result<Using<'_, End, Begun>, Failure> {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        let using = Using { shell: self };
        if before & MOVED != 0 { Err(Failure::Moved) } else { Ok(using) }
    }

    /// The same for a call that would wait for what its own caller holds.
    fn enter_idle(&self) -> Result<Using<'_, End, Begun>, Failure> {
        let using = self.enter()?;
        if using.begun().is_some() { Err(Failure::InUse) } else { Ok(using) }
    }

    /// Takes the end out, to send it.
    fn take_out(&self) -> Result<End, Failure> {
        match self.state.compare_exchange(0, MOVED, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: nobody uses it, and from now on nobody does: the state says that it has moved.
            Ok(_) => unsafe { &mut *self.end.get() }.take().ok_or(Failure::Moved),
            Err(state) if state & MOVED != 0 => Err(Failure::Moved),
            Err(_) => Err(Failure::InUse),
        }
    }

    /// Puts an end back that was not sent.
    fn put_back(&self, end: End) {
        // SAFETY: nobody looks at it while the state says that it has moved.
        unsafe { *self.end.get() = Some(end) };
        self.state.fetch_and(!MOVED, Ordering::AcqRel);
    }
}

/// That an end is in use.
struct Using<'a, End, Begun> {
    shell: &'a Shell<End, Begun>,
}

impl<'a, End, Begun> Using<'a, End, Begun> {
    fn end(&self) -> &'a End {
        // SAFETY: it is counted that it is in use, so it is not taken out, and it was there: the state did not say that it has
        // moved.
        unsafe { (*self.shell.end.get()).as_ref().unwrap_unchecked() }
    }

    fn begun(&self) -> MutexGuard<'a, Option<Begun>> {
        self.shell.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what was begun, and keeps the end in use beyond the call.
    fn begin(self, begun: Begun) {
        *self.begun() = Some(begun);
        std::mem::forget(self);
    }

    /// Takes out what was begun, of which `part` of `whole(begun)` bytes was written or read.
    fn finish(&self, part: usize, whole: impl FnOnce(&Begun) -> usize) -> Result<Begun, Failure> {
        let mut begun = self.begun();
        let len = whole(begun.as_ref().ok_or(Failure::Invalid("nothing was begun"))?);
        let element = self.shell.shape.0;
        if part > len {
            return Err(Error::OutOfRange { len }.into());
        }
        if !part.is_multiple_of(element) {
            return Err(Error::NotElements { element }.into());
        }
        // What it was begun with.
        drop(Using { shell: self.shell });
        begun.take().ok_or(Failure::Invalid("nothing was begun"))
    }
}

impl<End, Begun> Drop for Using<'_, End, Begun> {
    fn drop(&mut self) {
        self.shell.state.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The writing end of a data pipe. Any number of threads may use it at once; they take turns. It is freed, or sent, when none does
/// any more.
pub struct strait_producer(Shell<DataProducer, Room<'static>>);

/// The reading end of a data pipe. Any number of threads may use it at once; they take turns. It is freed, or sent, when none does
/// any more.
pub struct strait_consumer(Shell<DataConsumer, Unread<'static>>);

impl strait_producer {
    pub(crate) fn give(end: DataProducer) -> *mut Self {
        let shape = (end.element(), end.capacity());
        Box::into_raw(Box::new(Self(Shell::new(end, shape))))
    }

    pub(crate) fn take_out(&self) -> Result<DataProducer, Failure> {
        self.0.take_out()
    }

    pub(crate) fn put_back(&self, end: DataProducer) {
        self.0.put_back(end);
    }

    pub(crate) fn with<T>(&self, body: impl FnOnce(&DataProducer) -> Result<T, strait::Error>) -> Result<T, Failure> {
        Ok(body(self.0.enter()?.end())?)
    }
}

impl strait_consumer {
    pub(crate) fn give(end: DataConsumer) -> *mut Self {
        let shape = (end.element(), end.capacity());
        Box::into_raw(Box::new(Self(Shell::new(end, shape))))
    }

    pub(crate) fn take_out(&self) -> Result<DataConsumer, Failure> {
        self.0.take_out()
    }

    pub(crate) fn put_back(&self, end: DataConsumer) {
        self.0.put_back(end);
    }

    pub(crate) fn with<T>(&self, body: impl FnOnce(&DataConsumer) -> Result<T, strait::Error>) -> Result<T, Failure> {
        Ok(body(self.0.enter()?.end())?)
    }
}

/// # Safety
/// As the C API says of a producer.
pub(crate) unsafe fn producer<'a>(producer: *const strait_producer) -> Result<&'a strait_producer, Failure> {
    // SAFETY: as the caller says.
    unsafe { args::reference(producer, "producer is NULL") }
}

/// # Safety
/// As the C API says of a consumer.
pub(crate) unsafe fn consumer<'a>(consumer: *const strait_consumer) -> Result<&'a strait_consumer, Failure> {
    // SAFETY: as the caller says.
    unsafe { args::reference(consumer, "consumer is NULL") }
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
    if !producer.is_null() {
        // SAFETY: it was given out by `strait_producer::give`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(producer) }));
    }
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
    call(|| {
        // SAFETY: as the C API says of all three.
        let (written, producer, bytes) = unsafe {
            let written = args::out(written, 0, "written is NULL")?;
            (written, self::producer(producer)?, args::bytes(bytes.cast(), len)?)
        };
        *written = producer.0.enter_idle()?.end().write_by(bytes, until(deadline))?;
        Ok(())
    })
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
        let (producer, bytes) = unsafe { (self::producer(producer)?, args::bytes(bytes.cast(), len)?) };
        Ok(producer.0.enter_idle()?.end().write_whole(bytes, until(deadline))?)
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
    call(|| {
        // SAFETY: as the C API says of all three.
        let (producer, room, len) = unsafe {
            let room = args::out(room, ptr::null_mut(), "room is NULL");
            let len = args::out(len, 0, "len is NULL");
            (self::producer(producer)?, room?, len?)
        };
        let using = producer.0.enter_idle()?;
        let mut begun = using.end().begin_write(until(deadline))?;
        let place = begun.as_uninit_mut();
        (*room, *len) = (place.as_mut_ptr().cast(), place.len());
        // SAFETY: it is kept in the shell of its end, which stays in use meanwhile and drops it first.
        using.begin(unsafe { std::mem::transmute::<Room<'_>, Room<'static>>(begun) });
        Ok(())
    })
}

/// Ends writing in place: the first `len` bytes of the room were written. 0 writes nothing. The room is not valid any more.
///
/// `STRAIT_OUT_OF_RANGE` if there was less room, and `STRAIT_NOT_ELEMENTS` if these are not whole elements: then the room is still
/// held. `STRAIT_INVALID_ARGUMENT` if nothing was begun.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_commit(producer: *const strait_producer, len: usize) -> strait_status {
    call(|| {
        // SAFETY: as the C API says.
        let using = unsafe { self::producer(producer) }?.0.enter()?;
        using.finish(len, Room::len)?.commit(len);
        Ok(())
    })
}

/// How many bytes could be written now without waiting, in `room`. `STRAIT_PEER_CLOSED` if the consumer is known to be gone;
/// `STRAIT_WOULD_BLOCK` while another thread waits, or holds room. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_room(producer: *const strait_producer, room: *mut usize) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (room, producer) = unsafe { (args::out(room, 0, "room is NULL")?, self::producer(producer)?) };
        *room = producer.0.enter()?.end().room()?;
        Ok(())
    })
}

/// Bytes of the buffer, whole elements. 0 of `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_capacity(producer: *const strait_producer) -> usize {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { producer.as_ref() }.map_or(0, |producer| producer.0.shape.1)
}

/// Bytes of an element. 0 of `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_producer_element(producer: *const strait_producer) -> usize {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { producer.as_ref() }.map_or(0, |producer| producer.0.shape.0)
}

/// Frees a reading end; what is unread is lost. Bytes that were begun with are not valid any more. `NULL` is let pass. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_free(consumer: *mut strait_consumer) {
    if !consumer.is_null() {
        // SAFETY: it was given out by `strait_consumer::give`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(consumer) }));
    }
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
    call(|| {
        // SAFETY: as the C API says of all three.
        let (count, consumer, buffer) = unsafe {
            let count = args::out(count, 0, "count is NULL")?;
            (count, self::consumer(consumer)?, args::buffer(buffer.cast(), capacity)?)
        };
        *count = consumer.0.enter_idle()?.end().read_by(buffer, until(deadline))?;
        Ok(())
    })
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
        let (consumer, buffer) = unsafe { (self::consumer(consumer)?, args::buffer(buffer.cast(), len)?) };
        Ok(consumer.0.enter_idle()?.end().read_whole(buffer, until(deadline))?)
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
    call(|| {
        // SAFETY: as the C API says of all three.
        let (count, consumer, buffer) = unsafe {
            let count = args::out(count, 0, "count is NULL")?;
            (count, self::consumer(consumer)?, args::buffer(buffer.cast(), capacity)?)
        };
        *count = consumer.0.enter_idle()?.end().peek(buffer)?;
        Ok(())
    })
}

/// Drops up to `most` bytes that are there now, whole elements. `count` gets how many. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_discard(
    consumer: *const strait_consumer,
    most: usize,
    count: *mut usize,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (count, consumer) = unsafe { (args::out(count, 0, "count is NULL")?, self::consumer(consumer)?) };
        *count = consumer.0.enter_idle()?.end().discard(most)?;
        Ok(())
    })
}

/// Begins to read in place: `bytes` gets where, and `len` how many are there, at least one element, or 0 at the end of the stream; waits
/// for that until the deadline. What is behind the end of the buffer comes with the next call.
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
    call(|| {
        // SAFETY: as the C API says of all three.
        let (consumer, bytes, len) = unsafe {
            let bytes = args::out(bytes, ptr::null(), "bytes is NULL");
            let len = args::out(len, 0, "len is NULL");
            (self::consumer(consumer)?, bytes?, len?)
        };
        let using = consumer.0.enter_idle()?;
        let begun = using.end().begin_read(until(deadline))?;
        (*bytes, *len) = (begun.as_ptr().cast(), begun.len());
        // SAFETY: it is kept in the shell of its end, which stays in use meanwhile and drops it first.
        using.begin(unsafe { std::mem::transmute::<Unread<'_>, Unread<'static>>(begun) });
        Ok(())
    })
}

/// Ends reading in place: the first `len` bytes were read, and the rest stays unread. The bytes are not valid any more.
///
/// `STRAIT_OUT_OF_RANGE` if there were fewer, and `STRAIT_NOT_ELEMENTS` if these are not whole elements: then they are still held.
/// `STRAIT_INVALID_ARGUMENT` if nothing was begun.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_consume(consumer: *const strait_consumer, len: usize) -> strait_status {
    call(|| {
        // SAFETY: as the C API says.
        let using = unsafe { self::consumer(consumer) }?.0.enter()?;
        using.finish(len, Unread::len)?.consume(len);
        Ok(())
    })
}

/// How many bytes could be read now, in `count`. `STRAIT_WOULD_BLOCK` while another thread waits, or holds bytes. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_available(
    consumer: *const strait_consumer,
    count: *mut usize,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (count, consumer) = unsafe { (args::out(count, 0, "count is NULL")?, self::consumer(consumer)?) };
        *count = consumer.0.enter()?.end().available()?;
        Ok(())
    })
}

/// Bytes of the buffer, whole elements. 0 of `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_capacity(consumer: *const strait_consumer) -> usize {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { consumer.as_ref() }.map_or(0, |consumer| consumer.0.shape.1)
}

/// Bytes of an element. 0 of `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_consumer_element(consumer: *const strait_consumer) -> usize {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { consumer.as_ref() }.map_or(0, |consumer| consumer.0.shape.0)
}
