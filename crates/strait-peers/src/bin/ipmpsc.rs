//! ipmpsc: a ring in a mapped file, for many senders and one receiver.

use ipmpsc::{Receiver, Sender, SharedRingBuffer};
use strait_peers::{Client, Meeting, Peer, Result, serve_with};

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "ipmpsc",
        default: "SharedRingBuffer of four messages, send, recv of Vec<u8>",
        tuned: None,
        serve,
        connect,
    })
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let size = u32::try_from(4 * (meeting.size + 4096))?;
    let from = Receiver::new(SharedRingBuffer::create(&meeting.path("there"), size)?);
    let back = SharedRingBuffer::create(&meeting.path("back"), size)?;
    ready("");
    let to = Sender::new(back);
    serve_with(
        |message| {
            *message = from.recv::<Vec<u8>>()?;
            Ok(())
        },
        |message| Ok(to.send(&message)?),
    )
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let to = Sender::new(SharedRingBuffer::open(&meeting.path("there"))?);
    let from = Receiver::new(SharedRingBuffer::open(&meeting.path("back"))?);
    Ok(Box::new(Ipmpsc { to, from }))
}

struct Ipmpsc {
    to: Sender,
    from: Receiver,
}

impl Client for Ipmpsc {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        self.to.send(&request)?;
        *reply = self.from.recv::<Vec<u8>>()?;
        Ok(())
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        Ok(self.to.send(&message)?)
    }
}
