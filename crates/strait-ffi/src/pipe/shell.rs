//! The common code of both ends of a data pipe.
//!
//! A word of an end counts its users: function calls in progress, and room or bytes held by a function that has begun
//! to write or read in place. A thread that sends the end sets `MOVED` in the word, interrupts the waits of the other
//! threads, and continues when the other threads have left. If room or bytes are held, sending fails, since no thread
//! can end such a use. So a sent end has no user.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use strait::{Deadline, Error, Interrupter};

use crate::args;
use crate::deadline::{strait_deadline, until};
use crate::status::{Failure, call, call_or, strait_status};

/// Bit of the state word: the end was sent away, or a thread is about to send it. The lower bits count the users.
const MOVED: u32 = 1 << 31;

/// An end of a data pipe to which C code has a pointer.
pub(crate) trait Held: Sized {
    /// The end in the Rust library.
    type End: 'static;
    /// The room (of a producer) or the bytes (of a consumer) that reading or writing in place has begun with.
    type Begun;
    /// The error text for a null pointer.
    const NULL: &'static str;

    /// Wraps the shared part of an end.
    fn new(shell: Shell<Self>) -> Self;
    /// Returns the shared part of the end.
    fn shell(&self) -> &Shell<Self>;
    /// Returns the sizes in bytes of an element and of the buffer.
    fn shape(end: &Self::End) -> (usize, usize);
    /// Returns the number of bytes of the room, or of the bytes that are held.
    fn len(begun: &Self::Begun) -> usize;
    /// Returns the interrupter of the waits on the end.
    fn interrupter(end: &Self::End) -> Interrupter;

    /// Returns a new object with `end`, for C code.
    fn give(end: Self::End) -> *mut Self {
        let shell = Shell {
            state: AtomicU32::new(0),
            begun: Mutex::new(None),
            shape: Self::shape(&end),
            // Made at the start, so that even later waits can be interrupted.
            interrupter: Self::interrupter(&end),
            end: UnsafeCell::new(Some(Arc::new(end))),
            at_end: AtomicBool::new(false),
        };
        Box::into_raw(Box::new(Self::new(shell)))
    }

    /// Takes the end out of the object for sending. Interrupts the function calls in progress on the end, and returns
    /// once all have left.
    ///
    /// # Errors
    /// [`Failure::Moved`] if the end is not there; [`Failure::InUse`] if room or bytes are held.
    fn take_out(&self) -> Result<Self::End, Failure> {
        let shell = self.shell();
        if shell.state.fetch_or(MOVED, Ordering::AcqRel) & MOVED != 0 {
            return Err(Failure::Moved);
        }
        if !shell.drive_out() {
            shell.state.fetch_and(!MOVED, Ordering::AcqRel);
            return Err(Failure::InUse);
        }
        // SAFETY: the end has no user, and gets none, since the state says `MOVED`.
        let end = unsafe { &mut *shell.end.get() }.take();
        // No room or bytes are held, so this is the only reference.
        end.and_then(Arc::into_inner).ok_or(Failure::Moved)
    }

    /// Puts an unsent end back into the object.
    fn put_back(&self, end: Self::End) {
        let shell = self.shell();
        // SAFETY: no thread uses the end while the state says `MOVED`.
        unsafe { *shell.end.get() = Some(Arc::new(end)) };
        shell.state.fetch_and(!MOVED, Ordering::AcqRel);
    }

    /// Runs `body` with the end, also while room or bytes are held.
    fn with<T>(&self, body: impl FnOnce(&Self::End) -> Result<T, Error>) -> Result<T, Failure> {
        body(self.shell().enter()?.end()).map_err(failure)
    }

    /// Runs `body` with the end. Fails with [`Failure::InUse`] if room or bytes are held, since `body` would wait for
    /// them.
    fn with_idle<T>(&self, body: impl FnOnce(&Self::End) -> Result<T, Error>) -> Result<T, Failure> {
        body(self.shell().enter_idle()?.end()).map_err(failure)
    }
}

/// The shared part of both kinds of end: the end, and the room or bytes that are held.
pub(crate) struct Shell<H: Held> {
    /// Number of users of the end, and the bit [`MOVED`].
    state: AtomicU32,
    /// The held room or bytes.
    begun: Mutex<Option<H::Begun>>,
    /// The end; `None` after it was taken out for sending.
    end: UnsafeCell<Option<Arc<H::End>>>,
    /// Sizes in bytes of an element and of the buffer.
    shape: (usize, usize),
    /// Interrupts the waits on the end.
    interrupter: Interrupter,
    /// Whether reading in place has begun at the end of the stream. Then no bytes are held.
    at_end: AtomicBool,
}

impl<H: Held> Shell<H> {
    /// Starts a use of the end by a function call.
    ///
    /// # Errors
    /// [`Failure::Moved`] if the end was sent, or is being sent.
    fn enter(&self) -> Result<Using<'_, H>, Failure> {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        let using = Using { shell: self };
        if before & MOVED != 0 { Err(Failure::Moved) } else { Ok(using) }
    }

    /// Starts a use of the end by a function that ends reading or writing in place. Does not fail if another thread has
    /// just set `MOVED`: while room or bytes are held, the end is there.
    fn enter_to_finish(&self) -> Using<'_, H> {
        self.state.fetch_add(1, Ordering::AcqRel);
        Using { shell: self }
    }

    /// Starts a use of the end by a function that would otherwise wait for room or bytes held by its own caller.
    ///
    /// # Errors
    /// [`Failure::Moved`] if the end is not there; [`Failure::InUse`] if room or bytes are held.
    fn enter_idle(&self) -> Result<Using<'_, H>, Failure> {
        let using = self.enter()?;
        if self.begun().is_some() { Err(Failure::InUse) } else { Ok(using) }
    }

    /// Locks and returns the held room or bytes.
    fn begun(&self) -> MutexGuard<'_, Option<H::Begun>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Interrupts the function calls in progress on an end with the state `MOVED`, and waits until the calls have
    /// returned. Returns `false` if room or bytes are held, so that not all uses can end.
    fn drive_out(&self) -> bool {
        let in_use = || self.state.load(Ordering::Acquire) & !MOVED != 0;
        if !in_use() {
            return true;
        }
        self.interrupter.interrupt();
        let mut looks = 0;
        let all_left = loop {
            if !in_use() {
                break true;
            }
            // A function call that begins to read or write in place may have taken room or bytes meanwhile.
            if self.begun().is_some() {
                break false;
            }
            looks += 1;
            match looks {
                ..100 => std::hint::spin_loop(),
                100..200 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        };
        self.interrupter.resume();
        all_left
    }
}

/// Returns the failure of a function call on an end. Only sending the end interrupts a wait.
fn failure(error: Error) -> Failure {
    match error {
        Error::Interrupted => Failure::Moved,
        error => error.into(),
    }
}

/// A use of an end. The end is there until this guard is dropped.
struct Using<'a, H: Held> {
    shell: &'a Shell<H>,
}

impl<'a, H: Held> Using<'a, H> {
    /// Returns the end. Not to be called after [`Shell::enter_to_finish`].
    fn end(&self) -> &'a Arc<H::End> {
        // SAFETY: the use is counted, so the end is not taken out. The end was present, since the state was not `MOVED`
        // when the use began. (A function that used `enter_to_finish` does not call this function.)
        unsafe { (*self.shell.end.get()).as_ref().unwrap_unchecked() }
    }

    fn begun(&self) -> MutexGuard<'a, Option<H::Begun>> {
        self.shell.begun()
    }

    /// Holds `begun`, and keeps the end in use after the function call.
    fn begin(self, begun: H::Begun) {
        *self.begun() = Some(begun);
        std::mem::forget(self);
    }

    /// Takes out the room or bytes that are held, of which `part` bytes were written or read. Returns `None` at the end
    /// of a stream, where 0 bytes may be consumed.
    ///
    /// # Errors
    /// `OutOfRange` and `NotElements` if `part` does not fit; then the room or bytes are still held.
    /// [`Failure::Invalid`] if nothing is held.
    fn finish(&self, part: usize) -> Result<Option<H::Begun>, Failure> {
        let mut begun = self.begun();
        let Some(len) = begun.as_ref().map(H::len) else {
            if self.shell.state.load(Ordering::Acquire) & MOVED != 0 {
                return Err(Failure::Moved);
            }
            let at_end = part == 0 && self.shell.at_end.load(Ordering::Relaxed);
            return if at_end {
                Ok(None)
            } else {
                Err(Failure::Invalid("nothing was begun on this end: begin a read or a write first"))
            };
        };
        let element = self.shell.shape.0;
        if part > len {
            return Err(Error::OutOfRange { len }.into());
        }
        if !part.is_multiple_of(element) {
            return Err(Error::NotElements { element }.into());
        }
        // Ends the use kept by `begin`.
        drop(Using { shell: self.shell });
        Ok(begun.take())
    }
}

impl<H: Held> Drop for Using<'_, H> {
    fn drop(&mut self) {
        self.shell.state.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Returns the object at a pointer from C code.
///
/// # Errors
/// [`Failure::Invalid`] if `pointer` is `NULL`.
///
/// # Safety
/// `pointer` is `NULL`, or an end of the caller's that stays during the function call.
pub(crate) unsafe fn held<'a, H: Held>(pointer: *const H) -> Result<&'a H, Failure> {
    // SAFETY: the caller's promise.
    unsafe { args::reference(pointer, H::NULL) }
}

/// Frees an end. Ignores `NULL`.
///
/// # Safety
/// `pointer` is `NULL`, or came from [`Held::give`], and the caller does not use the pointer after this call.
pub(super) unsafe fn free<H: Held>(pointer: *mut H) {
    if !pointer.is_null() {
        // SAFETY: the caller's promise.
        call_or((), || drop(unsafe { Box::from_raw(pointer) }));
    }
}

/// Frees an end by `close`, called with the end and `reason`. Ignores `NULL`.
///
/// # Safety
/// As [`free`].
pub(super) unsafe fn abort<H: Held>(pointer: *mut H, reason: u32, close: impl FnOnce(H::End, u32)) {
    if !pointer.is_null() {
        call_or((), || {
            // SAFETY: the caller's promise.
            let held = unsafe { Box::from_raw(pointer) };
            // Held room or bytes keep the end alive.
            let begun = held.shell().begun().take();
            drop(begun);
            // SAFETY: the caller has given the object up, so the end has no user.
            let end = unsafe { &mut *held.shell().end.get() }.take();
            // A sent end is absent.
            if let Some(end) = end.and_then(Arc::into_inner) {
                close(end, reason);
            }
        });
    }
}

/// Returns the sizes in bytes of an element and of the buffer; zeroes for `NULL`.
///
/// # Safety
/// `pointer` is `NULL`, or an end of the caller's that stays during the function call.
pub(super) unsafe fn shape<H: Held>(pointer: *const H) -> (usize, usize) {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.map_or((0, 0), |held| held.shell().shape)
}

/// Begins to read or write in place: stores the address in `place` and the length in `len`, and holds the room or
/// bytes. At the end of the stream the length is 0, and nothing is held.
///
/// # Safety
/// `pointer` is `NULL`, or an end of the caller that stays valid during the function call. `place` and `len` are
/// `NULL`, or the caller may write there.
pub(super) unsafe fn begin<H: Held, P: Copy>(
    pointer: *const H,
    (place, nowhere, what): (*mut P, P, &'static str),
    len: *mut usize,
    deadline: strait_deadline,
    start: impl FnOnce(Arc<H::End>, Deadline) -> Result<(H::Begun, P), Error>,
) -> strait_status {
    call(|| {
        // SAFETY: the caller's promise.
        let (held, place, len) = unsafe {
            let place = args::out(place, nowhere, what);
            let len = args::out(len, 0, "len is NULL");
            (held(pointer)?, place?, len?)
        };
        let using = held.shell().enter_idle()?;
        let (begun, start) = start(Arc::clone(using.end()), until(deadline)).map_err(failure)?;
        *len = H::len(&begun);
        *place = start;
        if *len > 0 {
            using.begin(begun);
        } else {
            held.shell().at_end.store(true, Ordering::Relaxed);
        }
        Ok(())
    })
}

/// Ends reading or writing in place, of which `len` bytes were read or written, with the function `done`.
///
/// # Safety
/// `pointer` is `NULL`, or an end of the caller's that stays during the function call.
pub(super) unsafe fn finish<H: Held>(
    pointer: *const H,
    len: usize,
    done: impl FnOnce(H::Begun, usize),
) -> strait_status {
    call(|| {
        // SAFETY: the caller's promise.
        let using = unsafe { held(pointer) }?.shell().enter_to_finish();
        if let Some(begun) = using.finish(len)? {
            done(begun, len);
        }
        Ok(())
    })
}

/// Runs `look` with an end, and stores the returned number of bytes in `count`; 0 on failure.
///
/// # Safety
/// `pointer` is `NULL`, or an end of the caller that stays valid during the function call. `count` is `NULL`, or the
/// caller may write there.
pub(super) unsafe fn count<H: Held>(
    pointer: *const H,
    (count, what): (*mut usize, &'static str),
    look: impl FnOnce(&H) -> Result<usize, Failure>,
) -> strait_status {
    call(|| {
        // SAFETY: the caller's promise.
        let (count, held) = unsafe { (args::out(count, 0, what)?, held(pointer)?) };
        *count = look(held)?;
        Ok(())
    })
}
