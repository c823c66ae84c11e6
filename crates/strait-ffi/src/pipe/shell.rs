//! What is the same for both ends of a data pipe.
//!
//! An end that C holds says in one word how many use it: calls that are under way, and room or bytes that were begun with. Whoever
//! sends it says that it has moved, ends what the others wait for, and goes on when they have left; unless room or bytes are held,
//! which nobody can end. So one that was sent is not used.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use strait::{Deadline, Error, Interrupter};

use crate::args;
use crate::deadline::{strait_deadline, until};
use crate::status::{Failure, call, call_or, strait_status};

const MOVED: u32 = 1 << 31;

/// An end of a data pipe, as C has a pointer to it.
pub(crate) trait Held: Sized {
    /// The end.
    type End: 'static;
    /// Room, or bytes, that were begun with.
    type Begun;
    /// What is said of a null pointer.
    const NULL: &'static str;

    fn new(shell: Shell<Self>) -> Self;
    fn shell(&self) -> &Shell<Self>;
    /// Bytes of an element, and of the buffer.
    fn shape(end: &Self::End) -> (usize, usize);
    fn len(begun: &Self::Begun) -> usize;
    fn interrupter(end: &Self::End) -> Interrupter;

    /// Gives an end out to C.
    fn give(end: Self::End) -> *mut Self {
        let shell = Shell {
            state: AtomicU32::new(0),
            begun: Mutex::new(None),
            shape: Self::shape(&end),
            // From the start, as it is about waits that begin later.
            interrupter: Self::interrupter(&end),
            end: UnsafeCell::new(Some(end)),
            at_end: AtomicBool::new(false),
        };
        Box::into_raw(Box::new(Self::new(shell)))
    }

    /// Takes the end out, to send it. Calls under way on it end.
    fn take_out(&self) -> Result<Self::End, Failure> {
        let shell = self.shell();
        if shell.state.fetch_or(MOVED, Ordering::AcqRel) & MOVED != 0 {
            return Err(Failure::Moved);
        }
        if !shell.drive_out() {
            shell.state.fetch_and(!MOVED, Ordering::AcqRel);
            return Err(Failure::InUse);
        }
        // SAFETY: nobody uses it, and from now on nobody does: the state says that it has moved.
        unsafe { &mut *shell.end.get() }.take().ok_or(Failure::Moved)
    }

    /// Puts an end back that was not sent.
    fn put_back(&self, end: Self::End) {
        let shell = self.shell();
        // SAFETY: nobody looks at it while the state says that it has moved.
        unsafe { *shell.end.get() = Some(end) };
        shell.state.fetch_and(!MOVED, Ordering::AcqRel);
    }

    /// Does something with the end, whatever was begun.
    fn with<T>(&self, body: impl FnOnce(&Self::End) -> Result<T, Error>) -> Result<T, Failure> {
        body(self.shell().enter()?.end()).map_err(failure)
    }

    /// The same for what would wait for what its own caller holds.
    fn with_idle<T>(&self, body: impl FnOnce(&Self::End) -> Result<T, Error>) -> Result<T, Failure> {
        body(self.shell().enter_idle()?.end()).map_err(failure)
    }
}

/// An end, and what was begun with it.
pub(crate) struct Shell<H: Held> {
    /// How many use it, and whether it was sent.
    state: AtomicU32,
    /// Dropped before the end that it borrows.
    begun: Mutex<Option<H::Begun>>,
    end: UnsafeCell<Option<H::End>>,
    shape: (usize, usize),
    interrupter: Interrupter,
    /// Whether reading was begun where there is nothing, and never will be: then nothing is held.
    at_end: AtomicBool,
}

impl<H: Held> Shell<H> {
    /// The end, for a call.
    fn enter(&self) -> Result<Using<'_, H>, Failure> {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        let using = Using { shell: self };
        if before & MOVED != 0 { Err(Failure::Moved) } else { Ok(using) }
    }

    /// The same for a call that ends what was begun: if something was, the end is there, whoever has just said that it has moved.
    fn enter_to_finish(&self) -> Using<'_, H> {
        self.state.fetch_add(1, Ordering::AcqRel);
        Using { shell: self }
    }

    /// The same for a call that would wait for what its own caller holds.
    fn enter_idle(&self) -> Result<Using<'_, H>, Failure> {
        let using = self.enter()?;
        if self.begun().is_some() { Err(Failure::InUse) } else { Ok(using) }
    }

    fn begun(&self) -> MutexGuard<'_, Option<H::Begun>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the calls under way on an end that was said to have moved. False if that cannot be: something was begun with it.
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
            // A call that begins something may come to it yet.
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

/// What a call on an end says that failed. Its wait is only ended by who sends it.
fn failure(error: Error) -> Failure {
    match error {
        Error::Interrupted => Failure::Moved,
        error => error.into(),
    }
}

/// That an end is in use.
struct Using<'a, H: Held> {
    shell: &'a Shell<H>,
}

impl<'a, H: Held> Using<'a, H> {
    fn end(&self) -> &'a H::End {
        // SAFETY: it is counted that it is in use, so it is not taken out, and it was there: the state did not say that it has
        // moved. (Who enters to finish does not come here.)
        unsafe { (*self.shell.end.get()).as_ref().unwrap_unchecked() }
    }

    fn begun(&self) -> MutexGuard<'a, Option<H::Begun>> {
        self.shell.begun()
    }

    /// Notes what was begun, and keeps the end in use beyond the call.
    fn begin(self, begun: H::Begun) {
        *self.begun() = Some(begun);
        std::mem::forget(self);
    }

    /// Takes out what was begun, of which so many bytes were written or read; nothing at the end of a stream.
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
        // What it was begun with.
        drop(Using { shell: self.shell });
        Ok(begun.take())
    }
}

impl<H: Held> Drop for Using<'_, H> {
    fn drop(&mut self) {
        self.shell.state.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a pointer points to.
///
/// # Safety
/// It is `NULL`, or one of the caller's that stays as long as the call.
pub(crate) unsafe fn held<'a, H: Held>(pointer: *const H) -> Result<&'a H, Failure> {
    // SAFETY: as the caller says.
    unsafe { args::reference(pointer, H::NULL) }
}

/// # Safety
/// It is `NULL`, or was given out by [`Held::give`], and the caller gives it up.
pub(super) unsafe fn free<H: Held>(pointer: *mut H) {
    if !pointer.is_null() {
        // SAFETY: as the caller says.
        call_or((), || drop(unsafe { Box::from_raw(pointer) }));
    }
}

/// Bytes of an element, and of the buffer; none of `NULL`.
///
/// # Safety
/// As for [`held`].
pub(super) unsafe fn shape<H: Held>(pointer: *const H) -> (usize, usize) {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.map_or((0, 0), |held| held.shell().shape)
}

/// A call that begins something: says where it is, and how long, and holds it. What has no length is the end of a stream, and is
/// not held.
///
/// # Safety
/// `pointer` as for [`held`]; `place` and `len` are `NULL`, or the caller's to write to. What `start` gives borrows the end, and
/// is only said to live longer.
pub(super) unsafe fn begin<H: Held, P: Copy>(
    pointer: *const H,
    (place, nowhere, what): (*mut P, P, &'static str),
    len: *mut usize,
    deadline: strait_deadline,
    start: impl FnOnce(&'static H::End, Deadline) -> Result<(H::Begun, P), Error>,
) -> strait_status {
    call(|| {
        // SAFETY: as the caller says.
        let (held, place, len) = unsafe {
            let place = args::out(place, nowhere, what);
            let len = args::out(len, 0, "len is NULL");
            (held(pointer)?, place?, len?)
        };
        let using = held.shell().enter_idle()?;
        // SAFETY: what is begun is kept in the shell of its end, which stays in use meanwhile and drops it first; or it is dropped
        // here.
        let end = unsafe { &*std::ptr::from_ref(using.end()) };
        let (begun, start) = start(end, until(deadline)).map_err(failure)?;
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

/// A call that ends what was begun.
///
/// # Safety
/// As for [`held`].
pub(super) unsafe fn finish<H: Held>(
    pointer: *const H,
    len: usize,
    done: impl FnOnce(H::Begun, usize),
) -> strait_status {
    call(|| {
        // SAFETY: as the caller says.
        let using = unsafe { held(pointer) }?.shell().enter_to_finish();
        if let Some(begun) = using.finish(len)? {
            done(begun, len);
        }
        Ok(())
    })
}

/// A call that says a number of bytes.
///
/// # Safety
/// `pointer` as for [`held`]; `count` is `NULL`, or the caller's to write to.
pub(super) unsafe fn count<H: Held>(
    pointer: *const H,
    (count, what): (*mut usize, &'static str),
    look: impl FnOnce(&H) -> Result<usize, Failure>,
) -> strait_status {
    call(|| {
        // SAFETY: as the caller says.
        let (count, held) = unsafe { (args::out(count, 0, what)?, held(pointer)?) };
        *count = look(held)?;
        Ok(())
    })
}
