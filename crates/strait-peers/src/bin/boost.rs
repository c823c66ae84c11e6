//! Boost.Interprocess: a message queue in each direction, through a few functions of C++ in `boost.cpp`.

use std::ffi::{CString, c_char, c_int, c_void};

use strait_peers::{Client, Meeting, Peer, Result, serve_with};

unsafe extern "C" {
    /// Makes a queue of four messages of `size` bytes; NULL on failure.
    fn queue_make(name: *const c_char, size: usize) -> *mut c_void;
    /// Opens a queue; NULL on failure.
    fn queue_open(name: *const c_char) -> *mut c_void;
    /// Removes a queue's name.
    fn queue_remove(name: *const c_char);
    /// Sends a message: 0, or -1.
    fn queue_send(queue: *mut c_void, bytes: *const u8, len: usize, polled: c_int) -> c_int;
    /// Receives a message into `room` bytes, and stores its length. Returns 0, or -1 on failure.
    fn queue_receive(queue: *mut c_void, bytes: *mut u8, room: usize, len: *mut usize, polled: c_int) -> c_int;
}

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "Boost.Interprocess",
        default: "message_queue of four messages, send and receive",
        tuned: Some("try_send and try_receive, polled without end"),
        serve,
        connect,
    })
}

/// A queue, which lives until the process ends.
struct Queue {
    queue: *mut c_void,
    size: usize,
    polled: c_int,
}

impl Queue {
    fn name(meeting: &Meeting, way: &str) -> Result<CString> {
        Ok(CString::new(format!("{}-{way}", meeting.name()))?)
    }

    fn make(meeting: &Meeting, way: &str) -> Result<Self> {
        let name = Self::name(meeting, way)?;
        // SAFETY: the name is a C string.
        Self::of(meeting, unsafe { queue_make(name.as_ptr(), meeting.size) })
    }

    /// Opens a queue, and removes its name, since both processes have the queue now.
    fn open(meeting: &Meeting, way: &str) -> Result<Self> {
        let name = Self::name(meeting, way)?;
        // SAFETY: the name is a C string.
        let queue = unsafe { queue_open(name.as_ptr()) };
        // SAFETY: as above.
        unsafe { queue_remove(name.as_ptr()) };
        Self::of(meeting, queue)
    }

    fn of(meeting: &Meeting, queue: *mut c_void) -> Result<Self> {
        if queue.is_null() {
            return Err("the queue could not be made or opened".into());
        }
        Ok(Self { queue, size: meeting.size, polled: meeting.tuned().into() })
    }

    fn send(&self, message: &[u8]) -> Result<()> {
        // SAFETY: the queue lives until the process ends; pointer and length are those of `message`.
        match unsafe { queue_send(self.queue, message.as_ptr(), message.len(), self.polled) } {
            0 => Ok(()),
            _ => Err("send failed".into()),
        }
    }

    fn receive(&self, message: &mut Vec<u8>) -> Result<()> {
        message.resize(self.size, 0);
        let mut len = 0;
        // SAFETY: the queue lives until the process ends; pointer and length are those of `message`.
        match unsafe { queue_receive(self.queue, message.as_mut_ptr(), message.len(), &mut len, self.polled) } {
            0 => {
                message.truncate(len);
                Ok(())
            }
            _ => Err("receive failed".into()),
        }
    }
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let (from, to) = (Queue::make(meeting, "there")?, Queue::make(meeting, "back")?);
    ready("");
    serve_with(|message| from.receive(message), |message| to.send(message))
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    Ok(Box::new(Boost { to: Queue::open(meeting, "there")?, from: Queue::open(meeting, "back")? }))
}

struct Boost {
    to: Queue,
    from: Queue,
}

impl Client for Boost {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        self.to.send(request)?;
        self.from.receive(reply)
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        self.to.send(message)
    }
}
