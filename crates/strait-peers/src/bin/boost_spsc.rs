//! Boost.Lockfree: a queue of bytes for one producer and one consumer in each direction, in shared memory of
//! Boost.Interprocess, through a few functions of C++ in `boost_spsc.cpp`. Each message begins with its length.

use std::ffi::{CString, c_char, c_void};
use std::io::{Read, Write};

use strait_peers::{Client, Meeting, Peer, Result, frames};

unsafe extern "C" {
    /// Makes a queue; NULL on failure.
    fn spsc_make(name: *const c_char) -> *mut c_void;
    /// Opens a queue; NULL on failure.
    fn spsc_open(name: *const c_char) -> *mut c_void;
    /// Removes the name of a queue's memory.
    fn spsc_remove(name: *const c_char);
    /// Appends at most `len` bytes, and returns how many.
    fn spsc_push(queue: *mut c_void, bytes: *const u8, len: usize) -> usize;
    /// Takes at most `room` bytes, and returns how many.
    fn spsc_pop(queue: *mut c_void, bytes: *mut u8, room: usize) -> usize;
}

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "Boost.Lockfree SPSC queue",
        default: "spsc_queue of 256 KiB in shared memory, push and pop polled without end",
        tuned: None,
        serve,
        connect,
    })
}

/// One side of a queue, which lives until the process ends.
struct Queue(*mut c_void);

impl Queue {
    fn name(meeting: &Meeting, way: &str) -> Result<CString> {
        Ok(CString::new(format!("{}-{way}", meeting.name()))?)
    }

    fn make(meeting: &Meeting, way: &str) -> Result<Self> {
        let name = Self::name(meeting, way)?;
        // SAFETY: the name is a C string.
        Self::of(unsafe { spsc_make(name.as_ptr()) })
    }

    /// Opens a queue, and removes its name, since both processes have the queue now.
    fn open(meeting: &Meeting, way: &str) -> Result<Self> {
        let name = Self::name(meeting, way)?;
        // SAFETY: the name is a C string.
        let queue = unsafe { spsc_open(name.as_ptr()) };
        // SAFETY: as above.
        unsafe { spsc_remove(name.as_ptr()) };
        Self::of(queue)
    }

    fn of(queue: *mut c_void) -> Result<Self> {
        if queue.is_null() { Err("the queue could not be made or opened".into()) } else { Ok(Self(queue)) }
    }
}

/// Repeats an attempt until it moves a byte.
fn polled(mut attempt: impl FnMut() -> usize) -> usize {
    loop {
        match attempt() {
            0 => std::hint::spin_loop(),
            moved => return moved,
        }
    }
}

impl Read for Queue {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        // SAFETY: the queue lives until the process ends; pointer and length are those of a slice.
        Ok(polled(|| unsafe { spsc_pop(self.0, room.as_mut_ptr(), room.len()) }))
    }
}

impl Write for Queue {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // SAFETY: the queue lives until the process ends; pointer and length are those of a slice.
        Ok(polled(|| unsafe { spsc_push(self.0, bytes.as_ptr(), bytes.len()) }))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let (from, to) = (Queue::make(meeting, "there")?, Queue::make(meeting, "back")?);
    ready("");
    frames::serve(from, to)
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let (to, from) = (Queue::open(meeting, "there")?, Queue::open(meeting, "back")?);
    Ok(Box::new(frames::Framed { from, to, buffer: Vec::new() }))
}
