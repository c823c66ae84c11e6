//! Handles in values: they are sent once, come back when sending fails, and are closed when decoding fails.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::fstat;
use rustix::io::Errno;
use strait::{Channel, Error as ChannelError};
use strait_fidl::{
    ClientEnd, Code, Encoder, Epitaph, Fidl, FidlHandle, Header, RawHandle, SendError, ServerEnd, decode, decode_call,
    decode_message, kind,
};

/// Returns a new descriptor.
fn descriptor() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

/// A protocol, which only serves as a name for ends of channels.
#[derive(Debug)]
enum Files {}

#[derive(Debug, Fidl)]
struct Mixed {
    any: FidlHandle,
    fd: Vec<FidlHandle<kind::Fd>>,
    client: ClientEnd<Files>,
    server: Option<ServerEnd<Files>>,
    absent: Option<FidlHandle<kind::Region>>,
}

fn mixed() -> (Mixed, Channel) {
    let (one, other) = Channel::pair().unwrap();
    let (two, _) = Channel::pair().unwrap();
    let any = FidlHandle::from(descriptor());
    let fd = vec![descriptor().into(), descriptor().into()];
    (Mixed { any, fd, client: one.into(), server: Some(two.into()), absent: None }, other)
}

/// Returns device and inode of the descriptor's file.
fn file(fd: &OwnedFd) -> (u64, u64) {
    let file = fstat(fd).unwrap();
    (file.st_dev, file.st_ino)
}

#[test]
fn handles_of_all_kinds_arrive_in_their_places() {
    let (a, b) = Channel::pair().unwrap();
    let (value, other) = mixed();
    Encoder::new().encode(&value).unwrap().send(&a).unwrap();
    assert!(value.any.is_sent() && value.fd.iter().all(FidlHandle::is_sent) && value.client.is_sent());

    let mut message = b.recv().unwrap();
    let received: Mixed = decode_message(&mut message).unwrap();
    assert!(received.any.into_fd().is_some() && received.server.unwrap().into_channel().is_some());
    assert!(received.fd.into_iter().all(|fd| fd.into_fd().is_some()) && received.absent.is_none());
    received.client.into_channel().unwrap().send(b"through").unwrap();
    assert_eq!(other.recv().unwrap().bytes(), b"through");
}

#[test]
fn handles_stand_in_the_order_of_the_values() {
    #[derive(Fidl)]
    struct Nested {
        inner: Option<Box<FidlStruct>>,
        last: FidlHandle,
        many: Vec<FidlHandle>,
    }
    #[derive(Fidl)]
    struct FidlStruct {
        h: FidlHandle,
    }
    let files: Vec<_> = (0..4)
        .map(|_| std::fs::File::from(rustix::fs::memfd_create("", rustix::fs::MemfdFlags::CLOEXEC).unwrap()))
        .collect();
    let copy = |index: usize| FidlHandle::from(files[index].try_clone().unwrap());
    let value =
        Nested { inner: Some(Box::new(FidlStruct { h: copy(0) })), last: copy(1), many: vec![copy(2), copy(3)] };
    // The inner struct is written at the place of its pointer in the order of fields, before `last`.
    let mut encoder = Encoder::new();
    let taken = encoder.encode(&value).unwrap().take_handles().unwrap();
    for (handle, original) in taken.into_iter().zip(files) {
        let fd = handle.into_strait().unwrap().into_fd().unwrap();
        assert_eq!(file(&fd), file(&original.into()));
    }
}

#[test]
fn handles_are_in_the_value_again_if_the_send_fails() {
    let (a, b) = Channel::pair().unwrap();
    drop(b);
    let (value, other) = mixed();
    let mut encoder = Encoder::new();
    let encoded = encoder.encode(&value).unwrap();
    assert_eq!(encoded.send(&a).unwrap_err(), SendError::Channel(ChannelError::PeerClosed));
    assert!(!value.any.is_sent() && !value.client.is_sent() && value.fd.iter().all(|fd| !fd.is_sent()));
    // The end still works, and the value can be sent elsewhere.
    let (a, b) = Channel::pair().unwrap();
    encoded.send(&a).unwrap();
    let received: Mixed = decode_message(&mut b.recv().unwrap()).unwrap();
    other.send(b"back").unwrap();
    assert_eq!(received.client.into_channel().unwrap().recv().unwrap().bytes(), b"back");
}

#[test]
fn a_handle_is_sent_once() {
    let (a, b) = Channel::pair().unwrap();
    let handle: FidlHandle = descriptor().into();
    let twice = [&handle, &handle];
    let mut encoder = Encoder::new();
    let error = encoder.encode(&twice).unwrap().send(&a).unwrap_err();
    assert!(matches!(error, SendError::Handles(error) if error.code() == Code::NonNullableTypeWithNullValue));
    assert!(!handle.is_sent());
    encoder.encode(&handle).unwrap().send(&a).unwrap();
    let error = encoder.encode(&handle).unwrap_err();
    assert_eq!(error.code(), Code::NonNullableTypeWithNullValue);
    assert!(error.to_string().contains("a handle that was sent"), "{error}");
    assert_eq!(b.recv().unwrap().handles().len(), 1);
}

/// Returns whether a descriptor is closed. No other thread of this process opens descriptors with such numbers.
fn is_closed(fd: i32) -> bool {
    rustix::io::fcntl_getfd(unsafe_borrow(fd)).is_err_and(|error| error == Errno::BADF)
}

fn unsafe_borrow(fd: i32) -> rustix::fd::BorrowedFd<'static> {
    // SAFETY: the descriptor is used only to check whether it is open.
    unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) }
}

/// Returns a descriptor with a high number, which no other test gets.
fn high(number: i32) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(descriptor(), number).unwrap()
}

#[derive(Debug, Fidl)]
struct Guarded {
    first: FidlHandle,
    #[fidl(max = 2)]
    text: String,
    second: FidlHandle<kind::Channel>,
}

#[test]
fn handles_of_a_refused_message_are_closed() {
    let present = u64::from(u32::MAX);
    let message = |count: u64, second: u64| -> Vec<u8> {
        [present, count, u64::MAX, second, 0x6161_6161].iter().flat_map(|word| word.to_le_bytes()).collect()
    };
    let cases = [
        (message(4, present), Code::StringTooLong),
        (message(2, present), Code::InvalidPaddingByte),
        (message(2, 3), Code::InvalidPaddingByte),
    ];
    for (index, (bytes, code)) in cases.into_iter().enumerate() {
        let fds = [700 + 2 * index as i32, 701 + 2 * index as i32].map(high);
        let numbers = fds.each_ref().map(AsRawFd::as_raw_fd);
        let error = decode::<Guarded>(&bytes, fds.map(RawHandle::from)).unwrap_err();
        assert_eq!(error.code(), code);
        assert!(numbers.into_iter().all(is_closed));
    }
    let mut bytes = message(2, present);
    bytes[32..].copy_from_slice(&[b'a', b'a', 0, 0, 0, 0, 0, 0]);
    let wrong_kind = decode::<Guarded>(&bytes, [high(720), high(721)].map(RawHandle::from)).unwrap_err();
    assert_eq!((wrong_kind.code(), wrong_kind.path().as_str()), (Code::IncorrectHandleType, "second"));
    let missing = decode::<Guarded>(&bytes, [RawHandle::from(high(722))]).unwrap_err();
    assert_eq!((missing.code(), missing.at()), (Code::TooFewHandles, 24));
    let end = RawHandle::from(Channel::pair().unwrap().0);
    assert!(decode::<Guarded>(&bytes, [high(723).into(), end]).is_ok());
    bytes[24] = 1;
    let forged = decode::<Guarded>(&bytes, [high(724), high(725)].map(RawHandle::from)).unwrap_err();
    assert_eq!(forged.code(), Code::InvalidHandlePresenceIndicator);
    assert!((720..=725).all(is_closed));
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
    Handles(Vec<FidlHandle>),
}

#[test]
fn handles_of_an_unknown_field_are_closed() {
    let value = Newer::Handles(vec![high(740).into(), high(741).into()]);
    let mut encoder = Encoder::new();
    let encoded = encoder.encode(&value).unwrap();
    let (bytes, handles) = (encoded.to_vec(), encoded.take_handles().unwrap());
    assert!(matches!(decode::<Known>(&bytes, handles).unwrap(), Known::Unknown(2)));
    assert!(is_closed(740) && is_closed(741));
}

#[test]
fn a_call_has_a_header() {
    let (a, b) = Channel::pair().unwrap();
    let header = Header { txid: 7, flexible: true, ordinal: 0x1234 };
    let mut encoder = Encoder::new();
    encoder.message(header, &"name").unwrap().send(&a).unwrap();
    let mut message = b.recv().unwrap();
    assert_eq!(message.bytes()[..16], [7, 0, 0, 0, 2, 0, 0x80, 1, 0x34, 0x12, 0, 0, 0, 0, 0, 0]);
    let (received, name): (Header, &str) = decode_call(&mut message).unwrap();
    assert_eq!((received, name), (header, "name"));

    // The offset of an error counts the header.
    a.send(&[&header.encode()[..], &[0; 16]].concat()).unwrap();
    let error = decode_call::<String>(&mut b.recv().unwrap()).unwrap_err();
    assert_eq!((error.code(), error.at()), (Code::NonNullableTypeWithNullValue, 24));
}

#[test]
fn a_header_of_another_format_is_refused() {
    let good = Header { txid: 1, flexible: false, ordinal: 5 }.encode();
    assert!(Header::split(&good).is_ok_and(|(header, body)| header.ordinal == 5 && body.is_empty()));
    assert_eq!(Header::split(&good[..15]).unwrap_err().code(), Code::TooFewBytesInPrimaryObject);
    // The magic number, version 1, an unknown flag, a value outside of the message.
    for (at, byte) in [(7, 2), (7, 0), (4, 0), (4, 3), (5, 1), (6, 0x40), (6, 0xc0), (6, 1)] {
        let mut wrong = good;
        wrong[at] = byte;
        let error = Header::split(&wrong).unwrap_err();
        assert_eq!((error.code(), error.at()), (Code::InvalidHeader, at));
    }
}

#[test]
fn an_epitaph_is_the_last_message() {
    let (a, b) = Channel::pair().unwrap();
    Encoder::new().message(Epitaph::HEADER, &Epitaph { status: -24 }).unwrap().send(&a).unwrap();
    drop(a);
    let mut message = b.recv().unwrap();
    let expected = [&[0, 0, 0, 0, 2, 0, 0, 1][..], &[0xff; 8], &[0xe8, 0xff, 0xff, 0xff, 0, 0, 0, 0]].concat();
    assert_eq!(message.bytes(), expected);
    let (header, epitaph): (Header, Epitaph) = decode_call(&mut message).unwrap();
    assert_eq!((header.ordinal, epitaph.status), (Epitaph::ORDINAL, -24));
    assert_eq!(b.recv().unwrap_err(), ChannelError::PeerClosed);
}
