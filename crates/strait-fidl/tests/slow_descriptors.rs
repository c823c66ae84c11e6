//! Descriptors of a peer that are slow to close, in messages that are refused and in values that are dropped: no call
//! waits for the close.

#[path = "../../strait-typed/tests/common/slow.rs"]
mod slow;

use slow::{slow_to_close, soon};
use strait::{Channel, Message, Outgoing};
use strait_fidl::{Code, Encoder, Error, Fidl, FidlHandle, decode_call, decode_message, kind};

/// Returns a received message of `bytes` and a descriptor that is slow to close.
fn message(bytes: &[u8]) -> (Message, std::net::TcpStream) {
    let (a, b) = Channel::pair().unwrap();
    let (slow, other) = slow_to_close();
    a.send(Outgoing::new(bytes).handle(slow)).unwrap();
    (b.recv().unwrap(), other)
}

/// Returns the code of the error, after a check that the call which returned `result` did not wait.
fn code<T>(decode: impl FnOnce() -> Result<T, Error>) -> Option<Code> {
    soon("decoding", || decode().map(drop)).err().map(|error| error.code())
}

#[derive(Debug, Fidl)]
struct Opened {
    file: FidlHandle,
    bytes: u64,
}

#[derive(Debug, Fidl)]
#[fidl(union, flexible)]
enum Known {
    #[fidl(1)]
    Number(u64),
    #[fidl(unknown)]
    Unknown(u64),
}

#[derive(Debug, Fidl)]
#[fidl(union, strict)]
enum Newer {
    #[fidl(2)]
    Handle(FidlHandle),
}

#[test]
fn a_refused_message_is_closed_without_blocking() {
    let present = [0xFF; 4];
    let (mut garbage, _one) = message(&[0xFF; 11]);
    assert_eq!(code(|| decode_message::<u32>(&mut garbage)), Some(Code::InvalidPaddingByte));
    let (mut surplus, _two) = message(&[0; 8]);
    assert_eq!(code(|| decode_message::<u32>(&mut surplus)), Some(Code::TooManyHandlesInMessage));
    // The handle is in the value when the decoding fails.
    let (mut padding, _three) = message(&[&present[..], &[1; 4], &[0; 8]].concat());
    assert_eq!(code(|| decode_message::<Opened>(&mut padding)), Some(Code::InvalidPaddingByte));
    let (mut kind, _four) = message(&[&present[..], &[0; 4]].concat());
    let wrong = code(|| decode_message::<FidlHandle<kind::Channel>>(&mut kind));
    assert_eq!(wrong, Some(Code::IncorrectHandleType));
    let (mut header, _five) = message(&[0; 16]);
    assert_eq!(code(|| decode_call::<u32>(&mut header)), Some(Code::InvalidHeader));
}

#[test]
fn what_the_program_does_not_take_is_closed_without_blocking() {
    let (slow, _one) = slow_to_close();
    let newer = Newer::Handle(FidlHandle::from(slow));
    let (a, b) = Channel::pair().unwrap();
    Encoder::new().encode(&newer).unwrap().send(&a).unwrap();
    let mut unknown = b.recv().unwrap();
    assert!(matches!(soon("an unknown field", || decode_message(&mut unknown)), Ok(Known::Unknown(2))));

    let bytes = [&[0xFF; 4][..], &[0; 12]].concat();
    let (mut dropped, _two) = message(&bytes);
    let value: Opened = decode_message(&mut dropped).unwrap();
    soon("a drop", || drop(value));

    let (mut other, _three) = message(&bytes);
    let value: Opened = decode_message(&mut other).unwrap();
    assert!(soon("an object of another kind", || value.file.into_channel()).is_none());
}
