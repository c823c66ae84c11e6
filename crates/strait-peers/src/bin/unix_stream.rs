//! A Unix stream socket, with the length of a message before its bytes.

use std::os::unix::net::{UnixListener, UnixStream};

use strait_peers::{Client, Meeting, Peer, Result, frames};

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "Unix stream socket",
        default: "write_all of length and bytes, read_exact",
        tuned: None,
        serve,
        connect,
    })
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let listener = UnixListener::bind(meeting.path("socket"))?;
    ready("");
    let (stream, _) = listener.accept()?;
    frames::serve(&stream, &stream)
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let to = UnixStream::connect(meeting.path("socket"))?;
    Ok(Box::new(frames::Framed { from: to.try_clone()?, to, buffer: Vec::new() }))
}
