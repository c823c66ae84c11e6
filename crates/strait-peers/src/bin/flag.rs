//! A floor and no product: a copy into shared memory, a flag polled by the other side, and a copy out.

use std::sync::atomic::AtomicU32;

use strait_peers::memory::Shared;
use strait_peers::{Client, Meeting, Peer, Result, serve_with};

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "floor: polled flag and two copies",
        default: "polls without end",
        tuned: Some("polls without end"),
        serve,
        connect,
    })
}

fn poll(_: &AtomicU32, _: u32) {
    std::hint::spin_loop();
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let shared = std::cell::RefCell::new(Shared::make(meeting)?);
    ready("");
    serve_with(
        |message| shared.borrow_mut().receive(message, poll),
        |message| shared.borrow_mut().send(message).map(drop),
    )
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let shared = Shared::open(meeting)?;
    Shared::unlink(meeting)?;
    Ok(Box::new(Flag(shared)))
}

struct Flag(Shared);

impl Client for Flag {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        self.0.send(request)?;
        self.0.receive(reply, poll)
    }
}
