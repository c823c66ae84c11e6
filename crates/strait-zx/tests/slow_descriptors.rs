//! Descriptors of a peer that are slow to close, in malformed messages: neither the call that finds the message nor a
//! wait for another channel waits for the close.

#[path = "../../strait-typed/tests/common/slow.rs"]
mod slow;

mod rig;

use rig::*;
use slow::{slow_to_close, soon};
use strait::{Channel, Handle, Outgoing};
use strait_zx::abi::*;

/// Returns the record of a handle of this type without rights, and 0 in all other fields.
fn record(type_: u32) -> Vec<u8> {
    let mut record = type_.to_le_bytes().to_vec();
    record.resize(32, 0);
    record
}

/// Returns an end of a channel with one message, which has these descriptors.
fn carrier(cargo: Vec<Handle>) -> Handle {
    let (into, out) = Channel::pair().unwrap();
    into.send(Outgoing::new(b"").handles(cargo)).unwrap();
    out.into()
}

fn memory() -> Handle {
    let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&memory, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&memory, rustix::fs::SealFlags::SHRINK).unwrap();
    Handle::Fd(memory)
}

#[test]
fn descriptors_of_malformed_messages_are_closed_without_blocking() {
    let mut others = Vec::new();
    let mut slow = || {
        let (slow, other) = slow_to_close();
        others.push(other);
        Handle::Fd(slow)
    };
    let (file, memory_record) = (record(STRAIT_ZX_OBJ_TYPE_FD), record(ZX_OBJ_TYPE_VMO));
    let cases: Vec<(&str, Vec<u8>, Vec<Handle>)> = vec![
        ("no bytes", Vec::new(), vec![slow()]),
        ("no record", b"x".to_vec(), vec![slow()]),
        ("memory that is a socket", memory_record.clone(), vec![slow()]),
        ("a descriptor beside such memory", [file, memory_record].concat(), vec![slow(), slow()]),
        ("an event of a socket", record(ZX_OBJ_TYPE_EVENT), vec![carrier(vec![slow(), slow(), slow()])]),
        ("a bell of another kind", record(ZX_OBJ_TYPE_EVENT), vec![carrier(vec![memory(), slow(), slow()])]),
        ("a port of sockets", record(ZX_OBJ_TYPE_PORT), vec![carrier(vec![slow(), slow()])]),
    ];
    for (name, bytes, handles) in cases {
        let (peer, end) = strait_zx::channel_options().pair().unwrap();
        let a = strait_zx::handle_from_channel(end).unwrap();
        let (_honest, end) = strait_zx::channel_options().pair().unwrap();
        let b = strait_zx::handle_from_channel(end).unwrap();
        std::thread::scope(|scope| {
            // One of the two waiting threads looks at both channels.
            let waits = scope.spawn(|| soon(name, || wait(b, ZX_CHANNEL_READABLE, zx_deadline_after(1_000_000_000)).0));
            let finds = scope.spawn(|| {
                soon(name, || {
                    wait(a, ZX_CHANNEL_READABLE | ZX_CHANNEL_PEER_CLOSED, deadline());
                    read(a).status
                })
            });
            peer.send(Outgoing::new(&bytes).handles(handles)).unwrap();
            assert_eq!(finds.join().unwrap(), ZX_ERR_PEER_CLOSED, "{name}");
            assert_eq!(waits.join().unwrap(), ZX_ERR_TIMED_OUT, "{name}");
        });
        assert_eq!((soon(name, || close(a)), close(b)), (ZX_OK, ZX_OK));
    }
}

/// Shows that a read into a null array closes no descriptor in place either.
#[test]
fn descriptors_of_a_lost_message_are_closed_without_blocking() {
    let (peer, end) = strait_zx::channel_options().pair().unwrap();
    let a = strait_zx::handle_from_channel(end).unwrap();
    let nowhere = std::ptr::null_mut();
    let (slow, _other) = slow_to_close();
    peer.send(Outgoing::new(&record(STRAIT_ZX_OBJ_TYPE_FD)[..]).handle(slow)).unwrap();
    // SAFETY: the pointers are null.
    let read = || unsafe { zx_channel_read(a, 0, nowhere, nowhere.cast(), 0, 1, nowhere.cast(), nowhere.cast()) };
    assert_eq!(soon("a read", read), ZX_ERR_INVALID_ARGS);
    assert_eq!(close(a), ZX_OK);
}
