//! The server: its answer to each request.

use crate::counters::cpu;
use crate::{Result, Touch};

/// The first byte of each message, which tells the server what to do with the message.
pub(crate) mod tag {
    /// The reply has the bytes of the request.
    pub(crate) const ECHO: u8 = b'e';
    /// The reply has the processor time of the server's process, in nanoseconds.
    pub(crate) const CPU: u8 = b'c';
    /// The message is counted, and has no reply.
    pub(crate) const POST: u8 = b'p';
    /// The reply has the number of messages counted since the last such request.
    pub(crate) const COUNT: u8 = b'n';
    /// The message is read in place: its first and its last bytes.
    pub(crate) const ENDS: u8 = b'x';
    /// The message is read in place: one byte of each page.
    pub(crate) const PAGES: u8 = b'y';
    /// The server never replies.
    pub(crate) const SILENCE: u8 = b's';
}

/// The shortest message: a tag, and room for a number.
pub(crate) const SHORTEST: usize = 16;

/// The state of a server.
#[derive(Debug, Default)]
pub struct Service {
    posted: u64,
}

impl Service {
    /// Writes the reply to `request` into the emptied `reply`. Returns false if there is no reply.
    pub fn answer(&mut self, request: &[u8], reply: &mut Vec<u8>) -> bool {
        reply.clear();
        let number = match request.first() {
            Some(&tag::ECHO) => {
                reply.extend_from_slice(request);
                return true;
            }
            Some(&tag::POST) => {
                self.posted += 1;
                return false;
            }
            Some(&tag::SILENCE) => return false,
            Some(&tag::CPU) => cpu(),
            Some(&tag::COUNT) => std::mem::take(&mut self.posted),
            Some(&tag::ENDS) => Touch::Ends.read(request),
            Some(&tag::PAGES) => Touch::Pages.read(request),
            _ => 0,
        };
        reply.extend_from_slice(&[0; 8]);
        reply.extend_from_slice(&number.to_ne_bytes());
        true
    }
}

/// Serves one client: `receive` copies the next message into the buffer, `send` sends a reply. Returns the first
/// error; a client that leaves causes such an error.
pub fn serve_with(
    mut receive: impl FnMut(&mut Vec<u8>) -> Result<()>,
    mut send: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let (mut service, mut request, mut reply) = (Service::default(), Vec::new(), Vec::new());
    loop {
        receive(&mut request)?;
        // An echo is sent from the buffer of the request: a copy would belong to no library.
        if request.first() == Some(&tag::ECHO) {
            send(&request)?;
        } else if service.answer(&request, &mut reply) {
            send(&reply)?;
        }
    }
}
