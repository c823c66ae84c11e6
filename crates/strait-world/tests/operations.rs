//! Every public operation of the library is called by the worlds, or stands in a list of exceptions with its reason.

mod common;

use std::path::Path;

use common::{Operations, sources};

/// Types of values returned by other calls; no source names the type.
const REACHED: &[&str] = &[
    "AsyncReceiver",
    "AsyncSender",
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

/// A type, or an operation of a type, that the worlds do not call, and the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("AsyncCallEnd::poll_reply", "as `AsyncCallEnd::reply`"),
    ("AsyncCallEnd::reply", "replies of tasks: not in the worlds yet; `waiting_tasks.rs` has them"),
    ("CallOptions::max_message", "a bad peer, which the worlds do not have; `calls.rs` has it"),
    ("CallOptions::request_bytes", "256 MiB of requests, or refusals; `calls.rs` and `waiting_tasks.rs` have it"),
    (
        "Channel::over",
        "the worlds meet by names, invitations and inheritance; `held.rs` and the hostile world pass sockets",
    ),
    ("Deadline::after", "as a `Duration` for a deadline"),
    ("Error::is_temporary", "a property of an error; the worlds list the errors of each call"),
    ("Guard", "signals that end waits: `signals.rs` of strait-faults; a world's signals must not end waits"),
    ("InPlace::as_ptr", "a pointer, which only unsafe code reads"),
    ("Inheritance", "guests inherit by `Options::spawn`, which uses it"),
    ("ListenerBuilder::activated", "a socket of systemd: `meeting.rs`"),
    ("ListenerBuilder::waiting", "would refuse honest processes: `meeting.rs`"),
    ("MeetError", "the text of an error"),
    ("Message::has_only_bytes", "a look at a message that the worlds check whole"),
    (
        "Options::accept_descriptors",
        "an end that accepts no descriptors loses what the books count; `limits.rs` has it",
    ),
    ("Options::default_spin", "sets a field of the options to its default"),
    ("Options::inheritance", "guests inherit by `Options::spawn`, which uses it"),
    ("Options::peer_memory", "a limit that an honest peer would reach; the hostile world and `limits.rs` have it"),
    ("Reactor::driver", "ends a reactor, for runtimes; `waiting_tasks.rs` and strait-tokio's tests have it"),
    ("Reactor::has_ended", "as `Reactor::driver`"),
    ("RegionError", "the text of an error"),
    ("RegionMap::as_ptr", "a pointer, which only unsafe code reads"),
    ("RegionMap::word32", "as `word64`"),
    ("RegionWriter::copy_in_child", "for the child of a fork, which the worlds do not have; `forked.rs` has it"),
    ("Unread::as_ptr", "a pointer, which only unsafe code reads"),
    ("Unread::trusted", "unsafe: for peers that the program trusts"),
    ("Usage::pauses", "a count of pauses that only a bad peer causes; the hostile world has it"),
    ("meet::from_parent", "as `Options::from_parent`"),
    ("meet::invited", "as `Options::invited`"),
    ("strait::from_parent", "as `Options::from_parent`"),
    ("meet::connect", "as `Connector::connect`, in the folder of names of the user"),
    ("quota::pool_held", "warm memory of the process: `warm_memory.rs`"),
    ("quota::pool_limit", "warm memory of the process: `warm_memory.rs`"),
    ("quota::set_pool_limit", "warm memory of the process: `warm_memory.rs`"),
    ("quota::trim", "warm memory of the process: `warm_memory.rs`"),
    ("signals::guarded", "signals that end waits: `signals.rs` of strait-faults; a world's signals must not end waits"),
    ("signals::guarded_if", "signals that end waits: `signals.rs`; a world's signals must not end waits"),
    ("strait::connect", "as `Connector::connect`, in the folder of names of the user"),
];

#[test]
fn the_worlds_call_every_public_operation_or_the_exceptions_say_why_not() {
    let text = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    Operations { reached: REACHED, exceptions: EXCEPTIONS }.check(&text);
}
