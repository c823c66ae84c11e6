//! Every public operation of the library is used by the worlds, or stands in a list of exceptions with its reason.
//!
//! An operation counts as used if the sources of the worlds name the operation and its type. [`REACHED`] lists types
//! that the worlds use without naming them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Types of values returned by other calls; no source names the type.
const REACHED: &[&str] = &[
    "DataProducer",
    "Interrupter",
    "Invitation",
    "ListenerBuilder",
    "Pump",
    "Received",
    "Receiver",
    "RegionMap",
    "RegionWriter",
    "Reservation",
    "Room",
    "SealedReservation",
    "Sender",
    "Status",
    "Unread",
    "Usage",
];

/// A type, or an operation of a type, unused by the worlds, and the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("AsyncCallEnd", "calls of tasks: not in the worlds yet; strait-tokio's tests have them"),
    ("AsyncChannel::get_ref", "returns a reference to the channel, which the worlds have"),
    ("AsyncChannel::poll_recv", "what `recv` of a task calls"),
    ("AsyncChannel::poll_recv_with", "what `recv_with` of a task calls; `strait.aio` uses it"),
    ("AsyncChannel::poll_send_with", "as `reserve` in a task: not in the worlds yet"),
    ("CallOptions::max_message", "a bad peer, which the worlds do not have; `calls.rs` has it"),
    ("CallOptions::request_bytes", "256 MiB of requests, or refusals; `calls.rs` and `waiting_tasks.rs` have it"),
    ("Channel::recv_message_or_view", "as `recv_message` or `recv_in_place`; strait-typed's tests have it"),
    ("Channel::set_close_reason", "as `close_with`, for an end that is dropped; strait-typed's tests have it"),
    ("DataConsumer::abort", "a reader of a world would lose count of the bytes; `pipe_aborts.rs` has it"),
    ("DataProducer::abort", "a reader of a world would lose count of the bytes; `pipe_aborts.rs` has it"),
    ("DataProducer::set_abort_reason", "as `DataProducer::abort`; `pipe_aborts.rs` has it"),
    ("Reactor::driver", "ends a reactor, for runtimes; `waiting_tasks.rs` and strait-tokio's tests have it"),
    ("DataConsumer::read_some_uninit", "as `read_some`; `data_pipes.rs` and strait-tokio's tests have it"),
    ("Error::is_temporary", "a property of an error; the worlds list the errors of each call"),
    ("InPlace::append_to", "as `read_at`; strait-typed's tests have it"),
    ("Message::has_only_bytes", "a look at a message that the worlds check whole"),
    ("RegionWriter::copy_in_child", "for the child of a fork, which the worlds do not have; `forked.rs` has it"),
    ("quota::pool_held", "warm memory of the process: `warm_memory.rs`"),
    ("quota::pool_limit", "warm memory of the process: `warm_memory.rs`"),
    ("quota::set_pool_limit", "warm memory of the process: `warm_memory.rs`"),
    ("quota::trim", "warm memory of the process: `warm_memory.rs`"),
    ("signals::guarded_if", "signals that end waits: `signals.rs`; a world's signals must not end waits"),
    ("AsyncChannel::recv_with", "as `recv_in_place` in a task: not in the worlds yet"),
    ("AsyncChannel::send_with", "as `reserve` in a task: not in the worlds yet"),
    (
        "AsyncConsumer",
        "data pipes of tasks: not in the worlds yet; `waiting_tasks.rs` and strait-tokio's tests have them",
    ),
    (
        "AsyncProducer",
        "data pipes of tasks: not in the worlds yet; `waiting_tasks.rs` and strait-tokio's tests have them",
    ),
    ("AsyncReceiver", "halves in tasks: not in the worlds yet; strait-tokio's tests have them"),
    ("AsyncSender", "halves in tasks: not in the worlds yet; strait-tokio's tests have them"),
    (
        "Channel::over",
        "the worlds meet by names, invitations and inheritance; `held.rs` and the hostile world pass sockets",
    ),
    ("Fd", "a descriptor of another library in a set: not in the worlds yet; `wait_sets.rs` has it"),
    ("Guard", "signals that end waits: `signals.rs` of strait-faults; a world's signals must not end waits"),
    ("InPlace::as_ptr", "a pointer, which only unsafe code reads"),
    ("Inheritance", "guests inherit by `Options::spawn`, which uses it"),
    ("ListenerBuilder::activated", "a socket of systemd: `meeting.rs`"),
    ("MeetError", "the text of an error"),
    (
        "Options::accept_descriptors",
        "an end that accepts no descriptors loses what the books count; `limits.rs` has it",
    ),
    ("Options::default_spin", "sets a field of the options to its default"),
    ("Options::inheritance", "guests inherit by `Options::spawn`, which uses it"),
    ("Options::peer_memory", "a limit that an honest peer would reach; the hostile world and `limits.rs` have it"),
    ("Reactor::has_more", "the reactor's own tests have it"),
    ("RegionError", "the text of an error"),
    ("RegionMap::as_ptr", "a pointer, which only unsafe code reads"),
    ("RegionMap::word32", "as `word64`"),
    ("Unread::as_ptr", "a pointer, which only unsafe code reads"),
    ("Unread::trusted", "unsafe: for peers that the program trusts"),
    (
        "WaitSet::await_room",
        "room for a large message: not in the worlds yet; `one_shot.rs` of the wait sets' tests has it",
    ),
    ("WaitSet::has_more", "`wait_sets.rs` has it; the worlds wait until nothing is left"),
    ("signals::guarded", "signals that end waits: `signals.rs` of strait-faults; a world's signals must not end waits"),
];

/// Returns the text of all sources in `folder`.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            text.push_str(&sources(&path));
        } else {
            text.push_str(&fs::read_to_string(path).expect("a source"));
        }
    }
    text
}

#[test]
fn every_public_operation_is_in_the_worlds_or_among_the_exceptions() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = sources(&here.join("src"));
    let words: BTreeSet<&str> = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let api = fs::read_to_string(here.join("../../docs/public-api.txt")).expect("the list of the public interface");
    let (mut missing, mut excused) = (Vec::new(), BTreeSet::new());
    for line in api.lines().filter(|line| line.starts_with("strait::")) {
        let Some((path, item)) = line.split_once(": pub ") else { continue };
        if !item.split(' ').take_while(|word| *word != "fn").all(|word| ["const", "unsafe", "async"].contains(&word)) {
            continue;
        }
        let parts: Vec<&str> = path.split("::").collect();
        let [.., of, name] = parts[..] else { continue };
        let is_type = of.starts_with(char::is_uppercase);
        let is_used = words.contains(name) && (!is_type || words.contains(of) || REACHED.contains(&of));
        let operation = format!("{of}::{name}");
        let exception = EXCEPTIONS.iter().find(|(what, _)| *what == of || *what == operation);
        match exception {
            Some((what, _)) => drop(excused.insert(*what)),
            None if is_used => {}
            None => missing.push(operation),
        }
    }
    assert!(missing.is_empty(), "use these in the worlds, or give the reason in EXCEPTIONS: {missing:#?}");
    let gone: Vec<_> = EXCEPTIONS.iter().map(|(what, _)| *what).filter(|what| !excused.contains(what)).collect();
    assert!(gone.is_empty(), "the library has none of these exceptions: {gone:#?}");
}
