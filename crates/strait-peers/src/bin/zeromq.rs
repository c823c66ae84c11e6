//! ZeroMQ (libzmq) over its `ipc` transport.

use strait_peers::{Client, Meeting, Peer, Result, serve_with};
use zmq::{Context, PAIR, REP, REQ, Socket};

fn main() -> Result<()> {
    strait_peers::main(Peer { title: "ZeroMQ ipc", default: "REQ and REP", tuned: Some("PAIR"), serve, connect })
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let socket = Context::new().socket(if meeting.tuned() { PAIR } else { REP })?;
    socket.bind(&format!("ipc://{}", meeting.path("socket")))?;
    ready("");
    serve_with(|message| receive(&socket, message), |message| Ok(socket.send(message, 0)?))
}

fn receive(socket: &Socket, message: &mut Vec<u8>) -> Result<()> {
    *message = socket.recv_bytes(0)?;
    Ok(())
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let socket = Context::new().socket(if meeting.tuned() { PAIR } else { REQ })?;
    socket.connect(&format!("ipc://{}", meeting.path("socket")))?;
    Ok(Box::new(Zeromq { socket, posts: meeting.tuned() }))
}

struct Zeromq {
    socket: Socket,
    posts: bool,
}

impl Client for Zeromq {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        self.socket.send(request, 0)?;
        receive(&self.socket, reply)
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        // A REQ socket sends nothing more before its reply has come.
        if !self.posts {
            return Err("not offered".into());
        }
        Ok(self.socket.send(message, 0)?)
    }
}
