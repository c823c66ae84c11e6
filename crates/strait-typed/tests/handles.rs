//! Handles as fields: each kind, between processes; errors give them back; killed peers leave none behind.

mod common;

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use common::{LIMIT, Scratch};
use serde::{Deserialize, Serialize};
use strait::pipe::DataPipe;
use strait::region::Region;
use strait::{Handle, Outgoing};
use strait_typed::codec::{Json, MsgPack};
use strait_typed::{Encoded, End, Fd, RawEnd, Reader, RecvError, SendError, Shared, Typed, Writer};

/// A request to the child: with each kind of handle, or to be killed.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    ReadFile(Fd),
    Answer { number: u32, reply: End<u32, ()> },
    Sum(Shared),
    Copy { from: Reader, to: Writer },
    Echo(RawEnd),
    All(Vec<Fd>, Option<Shared>, (Reader, Writer), Box<End<u32, ()>>),
    Keep(Vec<Fd>),
}

/// The result of the child's work.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Reply {
    Read(String),
    Sum(u64),
    Done,
}

struct Actor(Child);

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn() -> (Actor, Typed<Request, Reply, MsgPack>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child"]).env("STRAIT_TYPED_CHILD", "1").stdout(Stdio::null());
    let (child, typed) = Typed::spawn(&mut command).unwrap();
    (Actor(child), typed)
}

/// The program for the tests below: this test binary, with only this test.
#[test]
fn child() {
    if std::env::var_os("STRAIT_TYPED_CHILD").is_none() {
        return;
    }
    let parent = Typed::<Reply, Request, MsgPack>::from_parent().unwrap();
    let mut kept = Vec::new();
    while let Ok(request) = parent.recv_by(LIMIT) {
        parent.send_by(&serve(request, &mut kept), LIMIT).unwrap();
    }
}

fn read(fd: Fd) -> String {
    let mut text = String::new();
    std::fs::File::from(fd.into_fd().unwrap()).read_to_string(&mut text).unwrap();
    text
}

fn sum(shared: Shared) -> u64 {
    let region = shared.into_region().unwrap();
    let mut bytes = vec![0; region.len()];
    region.read_at(&mut bytes, 0).unwrap();
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

fn copy(from: Reader, to: Writer) {
    let (mut from, mut to) = (from.into_consumer().unwrap(), to.into_producer().unwrap());
    let mut text = Vec::new();
    from.read_to_end(&mut text).unwrap();
    to.write_all(&text).unwrap();
}

fn serve(request: Request, kept: &mut Vec<Fd>) -> Reply {
    match request {
        Request::ReadFile(fd) => Reply::Read(read(fd)),
        Request::Answer { number, reply } => {
            reply.into_typed().unwrap().send_by(&(number + 1), LIMIT).unwrap();
            Reply::Done
        }
        Request::Sum(shared) => Reply::Sum(sum(shared)),
        Request::Copy { from, to } => {
            copy(from, to);
            Reply::Done
        }
        Request::Echo(end) => {
            let channel = end.into_channel().unwrap();
            channel.send(channel.recv().unwrap().bytes()).unwrap();
            Reply::Done
        }
        Request::All(fds, shared, (from, to), reply) => {
            copy(from, to);
            reply.into_typed().unwrap().send_by(&7, LIMIT).unwrap();
            let texts: String = fds.into_iter().map(read).collect();
            Reply::Read(format!("{texts} {}", shared.map_or(0, sum)))
        }
        Request::Keep(fds) => {
            kept.extend(fds);
            Reply::Done
        }
    }
}

fn call(typed: &Typed<Request, Reply, MsgPack>, request: &Request) -> Reply {
    typed.send_by(request, LIMIT).unwrap();
    typed.recv_by(LIMIT).unwrap()
}

#[test]
fn each_kind_of_handle_travels_to_another_process() {
    let (_actor, typed) = spawn();
    let file = Scratch::new(b"a file");
    assert_eq!(call(&typed, &Request::ReadFile(file.open().into())), Reply::Read("a file".into()));

    let (ours, theirs) = Typed::<(), u32>::pair().unwrap();
    assert_eq!(call(&typed, &Request::Answer { number: 41, reply: theirs.into() }), Reply::Done);
    assert_eq!(ours.recv_by(LIMIT).unwrap(), 42);

    let region = Region::new(100).unwrap();
    region.write_at(&[2; 100], 0).unwrap();
    assert_eq!(call(&typed, &Request::Sum(region.into())), Reply::Sum(200));

    let (mut into, from) = DataPipe::pair(4096).unwrap();
    let (to, mut out) = DataPipe::pair(4096).unwrap();
    into.write_all(b"through another process").unwrap();
    drop(into);
    assert_eq!(call(&typed, &Request::Copy { from: from.into(), to: to.into() }), Reply::Done);
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through another process");

    let (ours, theirs) = strait::Channel::pair().unwrap();
    ours.send(b"bytes").unwrap();
    assert_eq!(call(&typed, &Request::Echo(theirs.into())), Reply::Done);
    assert_eq!(ours.recv_by(LIMIT).unwrap().bytes(), b"bytes");
    assert_eq!(file.held(), 0);
}

#[test]
fn all_kinds_travel_in_one_message() {
    let (_actor, typed) = spawn();
    let files = ["a", "b", "c"].map(|text| Scratch::new(text.as_bytes()));
    let fds = files.iter().map(|file| Fd::new(file.open())).collect();
    let region = Region::sealed(&[1; 10]).unwrap();
    let (into, from) = DataPipe::pair(4096).unwrap();
    let (to, mut out) = DataPipe::pair(4096).unwrap();
    drop(into);
    let (ours, theirs) = Typed::<(), u32>::pair().unwrap();
    let request = Request::All(fds, Some(region.into()), (from.into(), to.into()), Box::new(theirs.into()));
    assert_eq!(call(&typed, &request), Reply::Read("abc 10".into()));
    assert_eq!(ours.recv_by(LIMIT).unwrap(), 7);
    assert_eq!(out.read(&mut [0; 1]).unwrap(), 0);
    assert!(files.iter().all(|file| file.held() == 0));
}

#[test]
fn a_typed_end_goes_on_where_it_was_after_several_moves() {
    let (near, far) = Typed::<u32, String>::pair().unwrap();
    let (carrier, other) = Typed::<End<String, u32>>::pair().unwrap();
    let mut end: End<String, u32> = far.into();
    for n in 0..5 {
        near.send(&n).unwrap();
        // The end receives a message only every second time, so that a growing backlog moves with the end.
        if n % 2 == 0 {
            let far = end.into_typed().unwrap();
            assert_eq!(far.recv_by(LIMIT).unwrap(), n / 2);
            far.send(&n.to_string()).unwrap();
            end = far.into();
        }
        carrier.send(&end).unwrap();
        assert!(end.is_sent());
        end = other.recv_by(LIMIT).unwrap();
    }
    let far = end.into_typed().unwrap();
    assert_eq!([far.recv_by(LIMIT).unwrap(), far.recv_by(LIMIT).unwrap()], [3, 4]);
    let texts = [(); 3].map(|()| near.recv_by(LIMIT).unwrap());
    assert_eq!(texts, ["0", "2", "4"]);
}

#[test]
fn a_handle_outside_of_a_typed_channel_is_an_error_and_stays() {
    let file = Scratch::new(b"");
    let fd = Fd::new(file.open());
    let error = serde_json::to_string(&fd).unwrap_err().to_string();
    assert!(error.contains("only into a message of a typed channel"), "{error}");
    assert!(!fd.is_sent());
    assert!(serde_json::from_str::<Fd>("0").is_err());
    assert!(rmp_serde::to_vec(&fd).is_err() && postcard::to_allocvec(&fd).is_err());
    assert!(fd.into_fd().is_some());
}

#[test]
fn a_send_that_fails_puts_the_handles_back() {
    /// A value whose last field cannot be serialized.
    #[derive(Serialize)]
    struct Broken {
        first: Fd,
        second: Fd,
        #[serde(serialize_with = "fail")]
        last: (),
    }
    fn fail<S: serde::Serializer>((): &(), _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("this field is broken"))
    }
    let file = Scratch::new(b"");
    let broken = Broken { first: file.open().into(), second: file.open().into(), last: () };
    let (near, _far) = Typed::<Broken, (), MsgPack>::pair().unwrap();
    let error = near.send(&broken).unwrap_err();
    assert!(matches!(&error, SendError::Encode(what) if what.contains("this field is broken")), "{error}");
    assert!(!broken.first.is_sent() && !broken.second.is_sent());

    let (near, far) = Typed::<(Fd, Fd), ()>::pair().unwrap();
    drop(far);
    let value = (broken.first, broken.second);
    assert_eq!(near.send(&value), Err(SendError::Channel(strait::Error::PeerClosed)));
    assert!(!value.0.is_sent() && !value.1.is_sent());

    let (one, other) = strait::Options::new().max_handles(1).pair().unwrap();
    let near = Typed::<(Fd, Fd), ()>::over(one);
    assert!(matches!(near.send(&value), Err(SendError::Channel(strait::Error::TooManyHandles { .. }))));
    assert!(!value.0.is_sent() && !value.1.is_sent());
    assert_eq!(file.held(), 2);
    drop((other, value));
    assert_eq!(file.held(), 0);
}

#[test]
fn a_handle_is_sent_once() {
    let file = Scratch::new(b"");
    let fd = Fd::new(file.open());
    let (near, far) = Typed::<Fd, Fd>::pair().unwrap();
    near.send(&fd).unwrap();
    let error = near.send(&fd).unwrap_err();
    assert!(error.to_string().contains("was sent already"), "{error}");
    assert!(fd.is_sent() && fd.into_fd().is_none());
    assert!(far.recv_by(LIMIT).unwrap().into_fd().is_some());
}

#[test]
fn a_panic_while_a_value_is_encoded_gives_the_handles_back() {
    #[derive(Serialize)]
    struct Panics {
        fd: Fd,
        #[serde(serialize_with = "panics")]
        last: (),
    }
    fn panics<S: serde::Serializer>((): &(), _: S) -> Result<S::Ok, S::Error> {
        std::panic::resume_unwind(Box::new("on purpose"))
    }
    let file = Scratch::new(b"text");
    let value = Panics { fd: file.open().into(), last: () };
    let (near, _far) = Typed::<Panics, ()>::pair().unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| near.send(&value)));
    assert!(panicked.is_err() && !value.fd.is_sent());
    // The thread is not inside a message any more.
    assert!(serde_json::to_string(&value.fd).is_err());
    assert_eq!(read(value.fd), "text");
}

#[test]
fn a_value_that_sends_another_one_while_it_is_encoded_keeps_its_own_handles() {
    struct Nested {
        inner: Fd,
        channel: Typed<Fd, ()>,
    }
    impl Serialize for Nested {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.channel.send(&self.inner).map_err(serde::ser::Error::custom)?;
            serializer.serialize_unit()
        }
    }
    let (one, other) = (Scratch::new(b"one"), Scratch::new(b"other"));
    let (channel, receives) = Typed::<Fd, ()>::pair().unwrap();
    let (near, far) = Typed::<(Fd, Nested), (Fd, ())>::pair().unwrap();
    let nested = Nested { inner: other.open().into(), channel };
    near.send(&(one.open().into(), nested)).unwrap();
    let far: Typed<(), (Fd, ())> = Typed::over(far.into_channel());
    assert_eq!(read(far.recv_by(LIMIT).unwrap().0), "one");
    assert_eq!(read(receives_fd(&receives)), "other");
}

fn receives_fd(channel: &Typed<(), Fd>) -> Fd {
    channel.recv_by(LIMIT).unwrap()
}

/// Sends forged bytes with the given handles to an end that expects `Vec<Fd>`, and returns the error.
fn forged(bytes: &[u8], handles: Vec<Handle>) -> Result<Vec<Fd>, RecvError> {
    let (near, far) = Typed::<Vec<Fd>, Vec<Fd>, Json>::pair().unwrap();
    near.send(&vec![]).unwrap();
    assert!(far.recv_by(LIMIT).unwrap().is_empty());
    near.channel().send(Outgoing::new(bytes).handles(handles)).unwrap();
    let received = far.recv_by(LIMIT);
    // The channel can be used further.
    near.send(&vec![]).unwrap();
    assert!(far.recv_by(LIMIT).unwrap().is_empty());
    received
}

#[test]
fn forged_indexes_kinds_and_counts_of_handles_are_errors_that_close_all() {
    let file = Scratch::new(b"");
    let files = |count| (0..count).map(|_| Handle::Fd(file.open().into())).collect::<Vec<_>>();
    let channel = || Handle::Channel(strait::Channel::pair().unwrap().0);
    let cases: [(&[u8], usize, &str); 8] = [
        (b"[0,1]", 1, "out of range"),
        (b"[0]", 0, "out of range"),
        (b"[4294967295]", 2, "out of range"),
        (b"[0,0]", 2, "used twice"),
        (b"[1]", 2, "no field of the value takes"),
        (b"[]", 63, "no field of the value takes"),
        (b"[0,3]", 3, "another kind"),
        (b"[0,1,2", 3, "EOF"),
    ];
    for (bytes, count, expected) in cases {
        // The handle behind the files is of another kind.
        let handles = files(count).into_iter().chain((count > 2).then(channel)).collect();
        let error = forged(bytes, handles).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        file.wait_until_closed();
    }
    assert_eq!(forged(b"[1,0]", files(2)).unwrap().len(), 2);
}

#[test]
fn the_handles_of_a_refused_first_message_are_closed() {
    let (one, other) = strait::Channel::pair().unwrap();
    Typed::<u64, (), MsgPack>::over(one).send(&1).unwrap();
    let of_another_codec = other.recv().unwrap();
    let untyped = |error: &RecvError| *error == RecvError::Untyped;
    let mismatch = |error: &RecvError| matches!(error, RecvError::Schema(_));
    let mut encoded = Encoded::new();
    for (first, is_expected) in [(&b"no types"[..], untyped as fn(&_) -> _), (of_another_codec.bytes(), mismatch)] {
        for into_encoded in [false, true] {
            let (one, other) = strait::Channel::pair().unwrap();
            let (x, y) = strait::Channel::pair().unwrap();
            one.send(Outgoing::new(first).handle(x)).unwrap();
            let far = Typed::<(), u32>::over(other);
            let error = match into_encoded {
                false => far.recv_by(LIMIT).unwrap_err(),
                true => far.recv_encoded(&mut encoded, LIMIT).unwrap_err(),
            };
            assert!(is_expected(&error), "{error}");
            assert_eq!(y.recv_by(LIMIT).unwrap_err(), strait::Error::PeerClosed);
        }
        assert_eq!(encoded.bytes(), b"");
    }
}

#[test]
fn a_killed_peer_loses_and_leaks_no_descriptor() {
    let file = Scratch::new(b"text");
    for round in 0..8 {
        let (actor, typed) = spawn();
        let three = || Request::Keep((0..3).map(|_| file.open().into()).collect());
        // The peer is killed with so many requests carried out, or on their way.
        for _ in 0..round {
            typed.send_by(&three(), LIMIT).unwrap();
        }
        if round % 2 == 0 {
            (0..round).for_each(|_| assert_eq!(typed.recv_by(LIMIT).unwrap(), Reply::Done));
        }
        drop(actor);
        let begin = Instant::now();
        let request = loop {
            let request = three();
            match typed.send_by(&request, LIMIT) {
                Err(SendError::Channel(strait::Error::PeerClosed)) => break request,
                Err(error) => panic!("{error}"),
                Ok(()) => assert!(begin.elapsed() < LIMIT, "the peer was killed"),
            }
        };
        // The handles of the failed send are still in the request.
        let Request::Keep(fds) = request else { unreachable!() };
        assert!(fds.into_iter().all(|fd| read(fd) == "text"));
        while typed.recv_by(LIMIT).is_ok() {}
        drop(typed);
        file.wait_until_closed();
    }
}

#[test]
fn handles_from_a_peer_that_is_killed_have_arrived_or_are_closed() {
    /// Sends files to the parent until killed.
    fn flood() {
        let parent = Typed::<Vec<Fd>, ()>::from_parent().unwrap();
        let open = || Fd::new(std::fs::File::open(std::env::var_os("STRAIT_TYPED_FILE").unwrap()).unwrap());
        while parent.send_by(&vec![open(), open()], LIMIT).is_ok() {}
    }
    if std::env::var_os("STRAIT_TYPED_FILE").is_some() {
        return flood();
    }
    let file = Scratch::new(b"text");
    for taken in [0, 1, 10, 100] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "handles_from_a_peer_that_is_killed_have_arrived_or_are_closed"]);
        command.env("STRAIT_TYPED_FILE", &file.0).stdout(Stdio::null());
        let (child, typed) = Typed::<(), Vec<Fd>>::spawn(&mut command).unwrap();
        let child = Actor(child);
        for _ in 0..taken {
            assert_eq!(typed.recv_by(LIMIT).unwrap().len(), 2);
        }
        drop(child);
        let error = loop {
            match typed.recv_by(LIMIT) {
                Ok(fds) => assert!(fds.into_iter().all(|fd| read(fd) == "text")),
                Err(error) => break error,
            }
        };
        assert_eq!(error, RecvError::Channel(strait::Error::PeerClosed));
        drop(typed);
        file.wait_until_closed();
    }
}
