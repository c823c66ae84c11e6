//! Tests of the text that `{:?}` prints for each public object: one short line with the object's name. Also tests the
//! descriptors of objects.

mod common;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use common::{DEADLINE, finish, play, spawn};
use strait::call::*;
use strait::meet::*;
use strait::pipe::*;
use strait::quota::*;
use strait::region::*;
use strait::task::*;
use strait::view::*;
use strait::wait::*;
use strait::*;

#[test]
fn child() {
    play(&[("echoes", |_| common::echo(&common::parent()))]);
}

/// Traits, whose values have other types; enums, which print the name of a variant; `DataPipe`, which has no values;
/// and types given only to callbacks of this process.
const WITHOUT_NAME: &[&str] = &[
    "BadPeer",
    "Refused",
    "DataPipe",
    "Access",
    "BadPeer",
    "CallError",
    "CommandExt",
    "Dispatched",
    "Error",
    "Handle",
    "Interest",
    "Keep",
    "Level",
    "Mode",
    "Source",
    "Reason",
    "Refusal",
    "Reported",
    "Resource",
    "Sprung",
    "Value",
    "Wait",
];

/// The most characters that a line has: fewer than for the bytes of a message, which would fill the log.
const MOST: usize = 800;

/// The names of the printed types.
#[derive(Default)]
struct Printed(BTreeSet<&'static str>);

impl Printed {
    /// Prints `object`, of the type `name`.
    fn object(&mut self, name: &'static str, object: &impl Debug) {
        let line = format!("{object:?}");
        println!("{line}");
        assert!(!line.contains('\n'), "{name} is printed in several lines: {line}");
        assert!(line.contains(name) || WITHOUT_NAME.contains(&name), "{name} is printed without its name: {line}");
        assert!(line.len() <= MOST, "{name} is printed in {} characters: {line}", line.len());
        self.0.insert(name);
    }
}

/// Returns the names of all public types and traits, from the list of the public interface.
fn public_types() -> BTreeSet<String> {
    let listed = include_str!("../../../docs/public-api.txt").lines().filter(|line| line.starts_with("strait::"));
    let is_type = |text: &&str| ["pub struct ", "pub enum ", "pub trait "].iter().any(|kind| text.starts_with(kind));
    let types =
        listed.filter_map(|line| Some((line.split_once(": ")?.0, line.split_once(": ").map(|(_, text)| text)?)));
    let types = types.filter(|(_, text)| is_type(text));
    types.filter_map(|(path, _)| Some(path.rsplit_once("::")?.1.to_owned())).collect()
}

#[test]
fn each_object_is_printed_in_one_line_with_its_name() {
    let mut printed = Printed::default();
    channels(&mut printed);
    views(&mut printed);
    calls(&mut printed);
    pipes_and_regions(&mut printed);
    waiting(&mut printed);
    meeting(&mut printed);
    printed.object("SystemCalls", &sandbox::SYSCALLS);
    printed.object("SystemCall", &sandbox::SYSCALLS.running[0]);
    let argument = sandbox::SYSCALLS.running.iter().find_map(|call| call.arguments.first()?.first());
    printed.object("Argument", argument.unwrap());
    let all = public_types();
    assert!(all.len() > 70, "{all:?}");
    let is_left_out = |name: &&String| !printed.0.contains(name.as_str()) && !WITHOUT_NAME.contains(&name.as_str());
    let left: Vec<_> = all.iter().filter(is_left_out).collect();
    assert!(left.is_empty(), "these are not printed: {left:?}");
}

/// A value without bytes.
#[derive(Debug)]
struct Nothing;

impl Value for Nothing {
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        (Vec::new(), Vec::new())
    }
}

fn channels(printed: &mut Printed) {
    let (one, other) = Channel::pair().unwrap();
    printed.object("Channel", &one);
    printed.object("Options", &Options::new());
    printed.object("Deadline", &Deadline::NEVER);
    printed.object("Conditions", &Conditions::new());
    printed.object("Counters", &one.counters());
    printed.object("Status", &one.status().unwrap());
    printed.object("Interrupter", &one.interrupter());
    printed.object("Outgoing", &Outgoing::new(&[7; 10_000]));
    one.send(&[7; 10_000]).unwrap();
    printed.object("MessageInfo", &other.peek().unwrap().unwrap());
    printed.object("Message", &other.recv().unwrap());
    one.send(b"bytes").unwrap();
    printed.object("Received", &other.recv_into(&mut [0; 8], Deadline::NOW).unwrap());
    let (sender, receiver) = Channel::pair().unwrap().0.split();
    printed.object("Sender", &sender);
    printed.object("Receiver", &receiver);
    drop(other);
    printed.object("SendError", &one.send(b"bytes").unwrap_err());
    printed.object("SendManyError", &one.send_many([b"bytes".as_slice()], Deadline::NOW).unwrap_err());
    printed.object("ValueError", &one.send_value(Nothing, Deadline::NOW).unwrap_err());
    printed.object("Handle", &Handle::from(one));
}

fn views(printed: &mut Printed) {
    let (one, other) = Channel::pair().unwrap();
    let reservation = one.reserve(100, Deadline::NOW).unwrap();
    printed.object("Reservation", &reservation);
    reservation.commit().unwrap();
    printed.object("InPlace", &other.recv_in_place(Deadline::NOW).unwrap());
    printed.object("SealedReservation", &one.reserve_sealed(100).unwrap());
    let mut draft = one.draft();
    draft.append(&[7; 10_000]).unwrap();
    printed.object("Draft", &draft);
    drop(draft);
    let (one, other) = (Arc::new(one), Arc::new(other));
    let reservation = one.clone().reserve_owned(100, Deadline::NOW).unwrap();
    printed.object("Reservation", &reservation);
    reservation.commit().unwrap();
    printed.object("InPlace", &other.clone().recv_in_place_owned(Deadline::NOW).unwrap());
    printed.object("SealedReservation", &one.clone().reserve_sealed_owned(100).unwrap());
    printed.object("Draft", &one.clone().draft_owned());
    printed.object("PutBackError", &PutBackError { error: Error::PeerClosed, messages: Vec::new() });
    let (one, other) = Channel::pair().unwrap();
    printed.object("FuseError", &FuseError { error: Error::PeerClosed, channels: (one, other) });
}

fn calls(printed: &mut Printed) {
    let (one, other) = Channel::pair().unwrap();
    let (caller, server) = (CallEnd::over(one), CallEnd::over(other));
    printed.object("CallEnd", &caller);
    printed.object("CallOptions", &CallOptions::new());
    printed.object("CallCounters", &caller.counters());
    printed.object("PendingCall", &caller.begin_call(b"request", Deadline::NOW).unwrap());
    let pending = caller.begin_call(b"request", Deadline::NOW).unwrap();
    let request = server.next_request(Deadline::NOW).unwrap();
    printed.object("Request", &request);
    printed.object("Replier", &request.into_parts().1);
    drop(pending);
}

fn pipes_and_regions(printed: &mut Printed) {
    let (producer, consumer) = DataPipe::pair(4096).unwrap();
    printed.object("DataProducer", &producer);
    printed.object("DataConsumer", &consumer);
    printed.object("PipeOptions", &PipeOptions::new());
    producer.write_whole(b"bytes", Deadline::NOW).unwrap();
    printed.object("Room", &producer.begin_write(Deadline::NOW).unwrap());
    printed.object("Unread", &consumer.begin_read(Deadline::NOW).unwrap());
    let region = Region::sealed(b"bytes").unwrap();
    printed.object("Region", &region);
    printed.object("RegionOptions", &RegionOptions::new());
    printed.object("RegionWriter", &RegionOptions::new().writer(4096).unwrap());
    printed.object("RegionError", &region.map(6..9).unwrap_err());
    printed.object("RegionMap", &region.map(..).unwrap());
    printed.object("RegionView", &region.view(..).unwrap());
    printed.object("RegionCopy", &region.copy_on_write(..).unwrap());
    assert_eq!(region.as_raw_fd(), region.as_fd().as_raw_fd());
}

fn waiting(printed: &mut Printed) {
    let (set, reactor, traps) = (WaitSet::new().unwrap(), Reactor::new().unwrap(), Traps::new().unwrap());
    let (one, other) = Channel::pair().unwrap();
    set.add(&one, 7, Interest::Writable, Mode::Level).unwrap();
    printed.object("WaitSet", &set);
    let mut events = Vec::new();
    set.wait(&mut events, Deadline::NOW).unwrap();
    printed.object("Event", &events[0]);
    printed.object("Reactor", &reactor);
    printed.object("Driver", &Reactor::new().unwrap().driver());
    printed.object("Traps", &traps);
    printed.object("TrapId", &traps.arm(&other, Conditions::new().messages(1), |_| {}).unwrap());
    let refused = traps.arm(&other, Conditions::new().room(), |_| {}).unwrap_err();
    printed.object("NotArmed", &refused);
    let descriptors =
        [(set.as_raw_fd(), set.as_fd()), (reactor.as_raw_fd(), reactor.as_fd()), (traps.as_raw_fd(), traps.as_fd())];
    assert!(descriptors.iter().all(|(number, descriptor)| *number == descriptor.as_raw_fd()));
    printed.object("Fd", &Fd::new(std::fs::File::open("/dev/null").unwrap()).unwrap());
    printed.object("RegionWriter", &RegionWriter::new(4096).unwrap());
    printed.object("Guard", &signals::Guard::new());
    printed.object("Dispatcher", &Dispatcher::new().unwrap());
    printed.object("Pump", &Dispatcher::new().unwrap().pump());
    let (one, other) = Channel::pair().unwrap();
    let channel = AsyncChannel::new(one, &reactor).unwrap();
    printed.object("AsyncChannel", &channel);
    let (sender, receiver) = channel.split();
    printed.object("AsyncSender", &sender);
    printed.object("AsyncReceiver", &receiver);
    printed.object("AsyncCallEnd", &AsyncCallEnd::new(CallEnd::over(other), &reactor).unwrap());
    let (producer, consumer) = DataPipe::pair(4096).unwrap();
    printed.object("AsyncProducer", &AsyncProducer::new(producer, &reactor).unwrap());
    printed.object("AsyncConsumer", &AsyncConsumer::new(consumer, &reactor).unwrap());
}

fn meeting(printed: &mut Printed) {
    let name = format!("strait-printed-{}", std::process::id());
    printed.object("Connector", &Connector::new());
    printed.object("MeetError", &Connector::new().connect("nobody-there", Duration::ZERO).unwrap_err());
    printed.object("Inheritance", &Options::new().inheritance().unwrap().1);
    printed.object("ListenerBuilder", &Listener::builder());
    let listener = Listener::bind(&name).unwrap();
    printed.object("Listener", &listener);
    assert_eq!(listener.as_raw_fd(), listener.as_fd().as_raw_fd());
    printed.object("Invitation", &listener.invite(Duration::from_secs(60)).unwrap());
    let listening = names(None).unwrap();
    printed.object("Listening", &listening[0]);
    printed.object("Limits", &limits());
    let peer = Peer { pid: Some(1), uid: 2, gid: 3, is_alive: true };
    printed.object("Peer", &peer);
    let (child, channel) = spawn("echoes");
    channel.send(b"bytes").unwrap();
    channel.recv_by(DEADLINE).unwrap();
    printed.object("Channel", &channel);
    let usage = channel.peer_usage().unwrap().unwrap();
    printed.object("Usage", &usage);
    printed.object("Level", &usage.peer(Resource::Memory));
    drop(channel);
    finish(child);
}
