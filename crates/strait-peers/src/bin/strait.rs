//! Strait, in the way of its README.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use strait::meet::Connector;
use strait::{Channel, Deadline, Listener, Options, Outgoing, Wait};
use strait_peers::{Client, Meeting, Peer, Result, Row, Service, Touch, serve_with};

const LIMIT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "Strait",
        default: "Channel::send and recv, default options",
        tuned: Some("send and recv_into, Wait::Spin"),
        serve,
        connect,
    })
}

fn options(meeting: &Meeting) -> Options {
    if meeting.tuned() { Options::new().wait(Wait::Spin) } else { Options::new() }
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let builder = Listener::builder().directory(&meeting.directory).options(options(meeting));
    let listener = builder.bind("peer")?;
    ready("");
    let channel = listener.accept(LIMIT)?;
    match meeting.row {
        Row::InPlace(touch) => serve_in_place(&channel, touch),
        Row::Descriptor => serve_descriptors(&channel),
        _ if meeting.tuned() => {
            serve_with(|request| receive_into(&channel, meeting.size, request), |reply| Ok(channel.send(reply)?))
        }
        _ => serve_with(
            |request| {
                *request = channel.recv()?.into_bytes();
                Ok(())
            },
            |reply| Ok(channel.send(reply)?),
        ),
    }
}

/// Receives each message in place. A message that the sender may still change is read with volatile reads.
fn serve_in_place(channel: &Channel, touch: Touch) -> Result<()> {
    let (mut service, mut reply) = (Service::default(), Vec::new());
    loop {
        let mut view = channel.recv_in_place(Deadline::NEVER)?;
        let mut head = [0; 16];
        let len = view.len();
        view.read_at(&mut head[..16.min(len)], 0);
        if len > 16 {
            let step = if touch == Touch::Pages { 4096 } else { len };
            for at in (0..len).step_by(step) {
                // SAFETY: the offset is within the view, which lives as long as this loop.
                std::hint::black_box(unsafe { view.as_ptr().add(at).read_volatile() });
            }
            // SAFETY: as above.
            std::hint::black_box(unsafe { view.as_ptr().add(len - 8).read_volatile() });
        }
        drop(view);
        service.answer(&head, &mut reply);
        channel.send(&reply)?;
    }
}

fn serve_descriptors(channel: &Channel) -> Result<()> {
    let (mut service, mut reply) = (Service::default(), Vec::new());
    loop {
        let mut message = channel.recv()?;
        drop(message.take_handles()?);
        service.answer(message.bytes(), &mut reply);
        channel.send(&reply)?;
    }
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let connector = Connector::new().directory(&meeting.directory).options(options(meeting));
    let channel = connector.connect("peer", LIMIT)?;
    Ok(Box::new(Strait { channel, size: meeting.size, tuned: meeting.tuned() }))
}

struct Strait {
    channel: Channel,
    size: usize,
    tuned: bool,
}

/// Receives into a vector with room for the longest message.
fn receive_into(channel: &Channel, size: usize, message: &mut Vec<u8>) -> Result<()> {
    message.resize(size, 0);
    let len = channel.recv_into(message, Deadline::NEVER)?.len();
    message.truncate(len);
    Ok(())
}

impl Strait {
    fn receive(&self, reply: &mut Vec<u8>) -> Result<()> {
        if self.tuned {
            return receive_into(&self.channel, self.size, reply);
        }
        *reply = self.channel.recv()?.into_bytes();
        Ok(())
    }
}

impl Client for Strait {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        self.channel.send(request)?;
        self.receive(reply)
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        Ok(self.channel.send(message)?)
    }

    fn in_place(&mut self, head: &[u8], len: usize, touch: Touch) -> Result<()> {
        let mut room = self.channel.reserve(len, Deadline::NEVER)?;
        let memory = room.as_uninit_mut();
        if touch == Touch::Pages {
            for at in (4096..len).step_by(4096) {
                memory[at].write(head[8]);
            }
        }
        for byte in &mut memory[len - 8..] {
            byte.write(head[8]);
        }
        room.write_at(head, 0);
        room.commit()?;
        self.channel.recv()?;
        Ok(())
    }

    fn pass(&mut self, request: &[u8], descriptor: BorrowedFd<'_>) -> Result<()> {
        self.channel.send(Outgoing::new(request).handle(descriptor.try_clone_to_owned()?))?;
        self.channel.recv()?;
        Ok(())
    }
}
