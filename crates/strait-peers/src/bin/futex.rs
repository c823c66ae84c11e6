//! A floor and no product: a copy into shared memory, a futex, a copy out.

use std::sync::atomic::AtomicU32;

use strait_peers::memory::Shared;
use strait_peers::{Client, Meeting, Peer, Result, serve_with};

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "floor: futex and two copies",
        default: "sleeps at once",
        tuned: None,
        serve,
        connect,
    })
}

fn sleep(word: &AtomicU32, value: u32) {
    // SAFETY: the word is in shared memory that stays mapped during the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, std::ptr::null::<u8>()) };
}

fn send(shared: &mut Shared, message: &[u8]) -> Result<()> {
    let word = shared.send(message)?;
    // SAFETY: the word is in shared memory that stays mapped during the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
    Ok(())
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let shared = std::cell::RefCell::new(Shared::make(meeting)?);
    ready("");
    serve_with(|message| shared.borrow_mut().receive(message, sleep), |message| send(&mut shared.borrow_mut(), message))
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let shared = Shared::open(meeting)?;
    Shared::unlink(meeting)?;
    Ok(Box::new(Futex(shared)))
}

struct Futex(Shared);

impl Client for Futex {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        send(&mut self.0, request)?;
        self.0.receive(reply, sleep)
    }
}
