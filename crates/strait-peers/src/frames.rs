//! Messages over a stream of bytes: each begins with its length.

use std::io::{Read, Write};

use crate::{Client, Result, serve_with};

/// Sends one message: its length and its bytes in one buffer, as one call if the stream takes it.
pub fn send(stream: &mut impl Write, message: &[u8], buffer: &mut Vec<u8>) -> Result<()> {
    buffer.clear();
    buffer.extend_from_slice(&(message.len() as u64).to_le_bytes());
    buffer.extend_from_slice(message);
    Ok(stream.write_all(buffer)?)
}

/// Receives one message.
pub fn receive(stream: &mut impl Read, message: &mut Vec<u8>) -> Result<()> {
    let mut len = [0; 8];
    stream.read_exact(&mut len)?;
    message.resize(usize::try_from(u64::from_le_bytes(len))?, 0);
    Ok(stream.read_exact(message)?)
}

/// A client over two streams of bytes.
#[derive(Debug)]
pub struct Framed<R, W> {
    /// The stream from the server.
    pub from: R,
    /// The stream to the server.
    pub to: W,
    /// The buffer of the message in sending.
    pub buffer: Vec<u8>,
}

impl<R: Read, W: Write> Client for Framed<R, W> {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        send(&mut self.to, request, &mut self.buffer)?;
        receive(&mut self.from, reply)
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        send(&mut self.to, message, &mut self.buffer)
    }
}

/// Serves one client over two streams of bytes.
pub fn serve(mut from: impl Read, mut to: impl Write) -> Result<()> {
    let mut buffer = Vec::new();
    serve_with(|message| receive(&mut from, message), |message| send(&mut to, message, &mut buffer))
}
