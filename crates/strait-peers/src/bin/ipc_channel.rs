//! Servo's ipc-channel.

use ipc_channel::ipc::{
    IpcBytesReceiver, IpcBytesSender, IpcOneShotServer, IpcReceiver, IpcSender, bytes_channel, channel,
};
use serde::{Deserialize, Serialize};
use strait_peers::{Client, Meeting, Peer, Result, serve_with};

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "ipc-channel",
        default: "ipc::channel of Vec<u8>",
        tuned: Some("bytes_channel"),
        serve,
        connect,
    })
}

/// The first message of the client to the server: the server's ends of both directions, in both forms.
#[derive(Serialize, Deserialize)]
enum Ends {
    Values(IpcReceiver<Vec<u8>>, IpcSender<Vec<u8>>),
    Bytes(IpcBytesReceiver, IpcBytesSender),
}

fn serve(_: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let (server, name) = IpcOneShotServer::<Ends>::new()?;
    ready(&name);
    match server.accept()?.1 {
        Ends::Values(from, to) => serve_with(
            |message| {
                *message = from.recv()?;
                Ok(())
            },
            |message| Ok(to.send(message.to_vec())?),
        ),
        Ends::Bytes(from, to) => serve_with(
            |message| {
                *message = from.recv()?;
                Ok(())
            },
            |message| Ok(to.send(message)?),
        ),
    }
}

fn connect(meeting: &Meeting, name: &str) -> Result<Box<dyn Client>> {
    let server = IpcSender::<Ends>::connect(name.to_owned())?;
    if meeting.tuned() {
        let ((to, there), (back, from)) = (bytes_channel()?, bytes_channel()?);
        server.send(Ends::Bytes(there, back))?;
        return Ok(Box::new(Bytes { to, from }));
    }
    let ((to, there), (back, from)) = (channel()?, channel()?);
    server.send(Ends::Values(there, back))?;
    Ok(Box::new(Values { to, from }))
}

struct Values {
    to: IpcSender<Vec<u8>>,
    from: IpcReceiver<Vec<u8>>,
}

impl Client for Values {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        self.to.send(request.to_vec())?;
        *reply = self.from.recv()?;
        Ok(())
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        Ok(self.to.send(message.to_vec())?)
    }
}

struct Bytes {
    to: IpcBytesSender,
    from: IpcBytesReceiver,
}

impl Client for Bytes {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        self.to.send(request)?;
        *reply = self.from.recv()?;
        Ok(())
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        Ok(self.to.send(message)?)
    }
}
