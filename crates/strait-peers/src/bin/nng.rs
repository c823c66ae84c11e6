//! nng over its `ipc` transport.

use nng::options::{Options, RecvMaxSize};
use nng::{Protocol, Socket};
use strait_peers::{Client, Meeting, Peer, Result, serve_with};

fn main() -> Result<()> {
    strait_peers::main(Peer { title: "nng ipc", default: "REQ and REP", tuned: Some("PAIR"), serve, connect })
}

fn socket(protocol: Protocol) -> Result<Socket> {
    let socket = Socket::new(protocol)?;
    // Without this option, the library refuses messages of 1 MiB.
    socket.set_opt::<RecvMaxSize>(0)?;
    Ok(socket)
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let socket = socket(if meeting.tuned() { Protocol::Pair0 } else { Protocol::Rep0 })?;
    socket.listen(&format!("ipc://{}", meeting.path("socket")))?;
    ready("");
    serve_with(|message| receive(&socket, message), |message| send(&socket, message))
}

fn send(socket: &Socket, message: &[u8]) -> Result<()> {
    socket.send(message).map_err(|(_, error)| error.into())
}

fn receive(socket: &Socket, message: &mut Vec<u8>) -> Result<()> {
    let received = socket.recv()?;
    message.clear();
    message.extend_from_slice(&received);
    Ok(())
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let socket = socket(if meeting.tuned() { Protocol::Pair0 } else { Protocol::Req0 })?;
    socket.dial(&format!("ipc://{}", meeting.path("socket")))?;
    Ok(Box::new(Nng { socket, posts: meeting.tuned() }))
}

struct Nng {
    socket: Socket,
    posts: bool,
}

impl Client for Nng {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        send(&self.socket, request)?;
        receive(&self.socket, reply)
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        // A REQ socket drops its request when another request is sent.
        if !self.posts {
            return Err("not offered".into());
        }
        send(&self.socket, message)
    }
}
