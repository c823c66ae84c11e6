//! tokio's Unix stream socket, with the length of a message before its bytes.

use strait_peers::{Client, Meeting, Peer, Result, Service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "tokio's Unix socket",
        default: "multi-threaded runtime, read_exact and write_all",
        tuned: Some("current-thread runtime"),
        serve,
        connect,
    })
}

fn runtime(meeting: &Meeting) -> Result<Runtime> {
    let mut builder = if meeting.tuned() { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    Ok(builder.enable_all().build()?)
}

async fn send(stream: &mut UnixStream, message: &[u8], buffer: &mut Vec<u8>) -> Result<()> {
    buffer.clear();
    buffer.extend_from_slice(&(message.len() as u64).to_le_bytes());
    buffer.extend_from_slice(message);
    Ok(stream.write_all(buffer).await?)
}

async fn receive(stream: &mut UnixStream, message: &mut Vec<u8>) -> Result<()> {
    let len = stream.read_u64_le().await?;
    message.resize(usize::try_from(len)?, 0);
    stream.read_exact(message).await?;
    Ok(())
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let runtime = runtime(meeting)?;
    let task = async {
        let listener = UnixListener::bind(meeting.path("socket"))?;
        ready("");
        let (mut stream, _) = listener.accept().await?;
        let (mut service, mut request, mut reply, mut buffer) =
            (Service::default(), Vec::new(), Vec::new(), Vec::new());
        loop {
            receive(&mut stream, &mut request).await?;
            if service.answer(&request, &mut reply) {
                send(&mut stream, &reply, &mut buffer).await?;
            }
        }
    };
    runtime.block_on(task)
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let runtime = runtime(meeting)?;
    let stream = runtime.block_on(UnixStream::connect(meeting.path("socket")))?;
    Ok(Box::new(Tokio { stream, buffer: Vec::new(), runtime }))
}

struct Tokio {
    stream: UnixStream,
    buffer: Vec<u8>,
    runtime: Runtime,
}

impl Client for Tokio {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        self.runtime.block_on(async {
            send(&mut self.stream, request, &mut self.buffer).await?;
            receive(&mut self.stream, reply).await
        })
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        self.runtime.block_on(send(&mut self.stream, message, &mut self.buffer))
    }
}
