//! Messages over the channels of `strait-zx`: within Rust, and with a program in C++ that reads and writes the wire
//! format by hand.

use std::path::{Path, PathBuf};
use std::process::Command;

use strait_fidl::zx::{WriteError, ZxHandle, ZxMessage};
use strait_fidl::{Code, Elements, Encoder, Fidl, FidlHandle, Gather, Header, decode, kind};
use strait_zx::abi::*;
use strait_zx::boundary::*;
use strait_zx::codes::*;

#[derive(Clone, Copy, Debug, PartialEq, Fidl)]
#[repr(C)]
struct Point {
    x: i32,
    y: i32,
}

#[derive(Debug, Default, Fidl)]
#[fidl(table)]
struct Style {
    #[fidl(1)]
    width: Option<u32>,
    #[fidl(3, max = 16)]
    name: Option<String>,
}

#[derive(Debug, PartialEq, Fidl)]
#[fidl(union, flexible)]
enum Fill {
    #[fidl(1)]
    Color(u32),
    #[fidl(2)]
    Pixels(Vec<u8>),
    #[fidl(unknown)]
    Unknown(u64),
}

/// The value that goes to the program and comes back. `cpp/peer.cpp` writes and reads it by hand.
#[derive(Debug, Fidl)]
struct Drawing {
    number: u64,
    points: Vec<Point>,
    title: String,
    style: Style,
    fill: Option<Fill>,
    visible: bool,
    event: Option<FidlHandle<kind::Event>>,
}

const HEADER: Header = Header { txid: 7, flexible: true, ordinal: 0x1122_3344_5566_7788 };

fn event() -> ZxHandle {
    let mut out = 0;
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { zx_event_create(0, &mut out) }, ZX_OK);
    ZxHandle::new(out).unwrap()
}

fn channel() -> (ZxHandle, ZxHandle) {
    let (mut a, mut b) = (0, 0);
    // SAFETY: the pointers lead to local variables.
    assert_eq!(unsafe { zx_channel_create(0, &mut a, &mut b) }, ZX_OK);
    (ZxHandle::new(a).unwrap(), ZxHandle::new(b).unwrap())
}

/// Waits until a channel has a message.
fn await_message(channel: &ZxHandle) {
    let mut observed = 0;
    let signals = ZX_CHANNEL_READABLE | ZX_CHANNEL_PEER_CLOSED;
    let deadline = zx_deadline_after(60_000_000_000);
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { zx_object_wait_one(channel.handle(), signals, deadline, &mut observed) }, ZX_OK);
}

fn drawing(event: Option<ZxHandle>) -> Drawing {
    let style = Style { width: Some(3), name: Some("dashed".into()) };
    let event = event.map(|event| FidlHandle::new(event).unwrap());
    let points = (0..100).map(|x| Point { x, y: -x }).collect();
    let fill = Some(Fill::Pixels((0..=255).cycle().take(1021).collect()));
    Drawing { number: 5, points, title: "two lines".into(), style, fill, visible: true, event }
}

fn check(received: &Drawing) {
    let expected = drawing(None);
    assert_eq!((received.number, &received.title, received.visible), (5, &expected.title, true));
    assert_eq!((&received.points, &received.fill), (&expected.points, &expected.fill));
    assert_eq!((received.style.width, received.style.name.as_deref()), (Some(3), Some("dashed")));
}

#[test]
fn a_value_with_a_handle_goes_over_a_channel_of_zircon() {
    let (a, b) = channel();
    let mut message = ZxMessage::new();
    assert_eq!(message.read(b.handle()).unwrap_err(), ZX_ERR_SHOULD_WAIT);
    for gather in [Gather::LINEAR, Gather::default(), Gather::FUCHSIA, Gather { parts: 64, threshold: 8 }] {
        let value = drawing(Some(event()));
        let mut encoder = Encoder::gathering(gather);
        encoder.message(HEADER, &value).unwrap().write(a.handle()).unwrap();
        assert!(value.event.as_ref().unwrap().is_sent());
        message.read(b.handle()).unwrap();
        let handles = message.take_handles();
        let (header, body) = Header::split(message.bytes()).unwrap();
        let received: Drawing = decode(body, handles).unwrap();
        check(&received);
        assert_eq!(header, HEADER);
        let event = received.event.unwrap().into_raw().unwrap().into_zx().unwrap();
        assert_eq!(event.kind(), ZX_OBJ_TYPE_EVENT);
    }
    drop((a, b));
}

#[test]
fn a_large_vector_is_written_from_where_it_lies() {
    let (a, b) = channel();
    let numbers: Vec<u64> = (0..8000).collect();
    let mut encoder = Encoder::new();
    let encoded = encoder.encode(&numbers).unwrap();
    assert_eq!(encoded.parts()[1].as_ptr(), numbers.as_ptr().cast());
    encoded.write(a.handle()).unwrap();
    let mut message = ZxMessage::new();
    message.read(b.handle()).unwrap();
    assert!(decode::<Elements<'_, u64>>(message.bytes(), []).unwrap().iter().eq(0..8000));

    // Longer than a message of Zircon.
    let numbers: Vec<u64> = (0..8200).collect();
    let error = encoder.encode(&numbers).unwrap().write(a.handle()).unwrap_err();
    assert_eq!(error, WriteError::Status(ZX_ERR_OUT_OF_RANGE));
}

#[test]
fn handles_of_another_kind_stay_in_the_value() {
    let (a, b) = channel();
    let strait: FidlHandle = std::fs::File::open("/dev/null").unwrap().into();
    let mixed = [FidlHandle::new(event()).unwrap(), strait];
    let mut encoder = Encoder::new();
    let encoded = encoder.encode(&mixed).unwrap();
    let WriteError::Handles(error) = encoded.write(a.handle()).unwrap_err() else { panic!() };
    assert_eq!(error.code(), Code::IncorrectHandleType);
    let (near, _far) = strait::Channel::pair().unwrap();
    assert!(encoded.send(&near).is_err());
    assert!(mixed.iter().all(|handle| !handle.is_sent()));
    let wrong = FidlHandle::<kind::Channel>::new(event());
    assert!(wrong.is_err());

    // A message that the channel did not write: the call has closed its handle.
    drop(b);
    let closed = FidlHandle::<kind::Event>::new(event()).unwrap();
    let error = encoder.encode(&closed).unwrap().write(a.handle()).unwrap_err();
    assert_eq!(error, WriteError::Status(ZX_ERR_PEER_CLOSED));
    assert!(closed.is_sent());
}

/// Returns the directory in which Cargo has put the library: that of the test programs.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_path_buf()
}

#[test]
fn a_program_in_cpp_reads_what_rust_encodes_and_the_reverse() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fidl-peer");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]);
    compiler.arg(root.join("../strait-zx/include")).arg(root.join("tests/cpp/peer.cpp")).arg("-o").arg(&out);
    compiler.arg(libraries().join("libstrait_zx.a")).args(["-lpthread", "-ldl", "-lm"]);
    assert!(compiler.status().expect("a C++ compiler").success(), "{compiler:?}");

    let program = std::ffi::CString::new(out.into_os_string().into_encoded_bytes()).unwrap();
    let (mut pid, mut handle) = (0, 0);
    let arguments = [program.as_ptr(), std::ptr::null()];
    // SAFETY: the array ends with a null pointer, and the other two lead to local variables.
    assert_eq!(unsafe { strait_zx_spawn(arguments.as_ptr(), &mut pid, &mut handle) }, ZX_OK);
    let peer = ZxHandle::new(handle).unwrap();
    let mut message = ZxMessage::new();
    for gather in [Gather::LINEAR, Gather::default(), Gather::FUCHSIA] {
        let value = drawing(Some(event()));
        Encoder::gathering(gather).message(HEADER, &value).unwrap().write(peer.handle()).unwrap();
        await_message(&peer);
        message.read(peer.handle()).unwrap();
        let handles = message.take_handles();
        let (header, body) = Header::split(message.bytes()).unwrap();
        assert_eq!(header, HEADER);
        let received: Drawing = decode(body, handles).unwrap();
        check(&received);
        let event = received.event.unwrap().into_raw().unwrap().into_zx().unwrap();
        // The program has signalled the event that it got.
        let mut observed = 0;
        // SAFETY: the pointer leads to a local variable.
        let status = unsafe { zx_object_wait_one(event.handle(), ZX_EVENT_SIGNALED, 0, &mut observed) };
        assert_eq!((status, observed & ZX_EVENT_SIGNALED), (ZX_OK, ZX_EVENT_SIGNALED));
    }
    drop(peer);
    let status =
        rustix::process::waitpid(rustix::process::Pid::from_raw(pid), rustix::process::WaitOptions::empty()).unwrap();
    assert_eq!(status.unwrap().1.exit_status(), Some(0));
}
