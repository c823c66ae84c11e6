//! The victim of the hostile world calls every public operation of the library, or the operation stands in a list of
//! exceptions with its reason.

#[path = "../../strait-world/tests/common/mod.rs"]
mod common;

use std::path::Path;

use common::{Operations, sources};

/// Types of values returned by other calls; no source of the victim names the type.
const REACHED: &[&str] = &[
    "AsyncReceiver",
    "AsyncSender",
    "Draft",
    "Event",
    "Invitation",
    "ListenerBuilder",
    "Pump",
    "Received",
    "Receiver",
    "Replier",
    "Reservation",
    "Room",
    "SealedReservation",
    "Sender",
    "Status",
    "Unread",
    "Usage",
];

/// A type, or an operation of a type, that the victim does not call, and the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("Error::is_temporary", "a property of an error"),
    ("Guard", "signals that end waits; no peer has a part in them: `signals.rs`"),
    ("Handle", "the victim matches on the kinds of handles"),
    ("Inheritance", "as `Options::spawn`"),
    (
        "Invitation::spawn",
        "starts a process, whose channel the attacker does not have; the attacker's visits use tokens",
    ),
    ("ListenerBuilder::activated", "a socket of systemd: `meeting.rs`"),
    ("ListenerBuilder::invited_only", "would keep out the attacker's visits; `meeting.rs` has it"),
    ("ListenerBuilder::waiting", "the number of visitors at a time: `meeting.rs`"),
    ("MeetError", "the text of an error"),
    ("Options::default_spin", "sets a field of the options to its default"),
    ("Options::from_parent", "as `Options::over` for the socket of a parent, which the attacker is not"),
    ("Options::inheritance", "as `Options::spawn`"),
    ("Options::invited", "the side of the visitor; the attacker visits the victim"),
    ("Options::spawn", "starts a process, whose channel the attacker does not have"),
    ("Pump::run", "as `Pump::run_once`, without a deadline"),
    ("RegionError", "the text of an error"),
    ("RegionWriter::copy_in_child", "for the child of a fork: `forked.rs`"),
    ("Unread::trusted", "unsafe: for peers that the program trusts"),
    ("meet::connect", "as `Connector::connect`, in the folder of names of the user"),
    ("meet::from_parent", "as `Options::from_parent`"),
    ("meet::invited", "as `Options::invited`"),
    ("signals::guarded", "as `Guard`"),
    ("signals::guarded_if", "as `Guard`"),
    ("strait::connect", "as `Connector::connect`, in the folder of names of the user"),
    ("strait::from_parent", "as `Options::from_parent`"),
];

#[test]
fn the_victim_calls_every_public_operation_or_the_exceptions_say_why_not() {
    let world = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/world");
    let roles = sources(&world.join("roles.rs"));
    // The victim's process begins here, and the functions after it are of other processes.
    let begin = roles.find("fn play_victim").expect("the victim's process");
    let end = roles.find("fn echo").expect("the function after the victim's");
    let victim = sources(&world.join("victim")) + &roles[begin..end] + &sources(&world.join("plan.rs"));
    Operations { reached: REACHED, exceptions: EXCEPTIONS }.check(&victim);
}
