//! The numbers of this crate, a second implementation of the protocol, equal those of docs/how-it-works/wire.md.

use strait_hostile::handshake::{MAGIC, REFUSE_VERSION, VERSIONS};
use strait_hostile::layout::{CONTROL, ON_SET, ON_SOCKET, ON_WORD, bitmap, control, transfer};
use strait_hostile::record::{self, BLOCK_PAYLOAD, CELL, HEADER};
use strait_hostile::wire::{HAS_TABLE, MOST_DESCRIPTORS, PACKET, PAYLOAD_BLOCK, PAYLOAD_SEALED, kind};

include!("../../strait/tests/common/wire_page.rs");

#[test]
fn the_packets_are_those_of_the_page() {
    let kinds = [
        ("open", kind::OPEN),
        ("ring", kind::RING),
        ("message", kind::MESSAGE),
        ("ahead", kind::AHEAD),
        ("retire", kind::RETIRE),
        ("wake", kind::WAKE),
        ("handshake", kind::HANDSHAKE),
        ("introduce", kind::INTRODUCE),
        ("arena", kind::ARENA),
        ("retract", kind::RETRACT),
        ("absent", kind::ABSENT),
        ("ready bitmap", kind::READY_BITMAP),
        ("refuse", kind::REFUSE),
        ("connect request", kind::CONNECT),
        ("accept", kind::ACCEPT),
    ];
    assert_page_has("packets", &kinds.map(|(name, kind)| (name, [kind.into()])));
    assert_eq!(kind::END, kinds.map(|(_, kind)| kind).into_iter().max().unwrap() + 1);
    assert_eq!(VERSIONS[0], VERSIONS[1]);
    assert_page_has(
        "constants",
        &[
            ("version", [VERSIONS[0]]),
            ("packet", [PACKET as u64]),
            ("magic", [MAGIC >> 32]),
            ("cell", [CELL as u64]),
            ("header", [HEADER as u64]),
            ("block payload", [BLOCK_PAYLOAD as u64]),
            ("block record", [record::Block::default().to_bytes().len() as u64]),
        ],
    );
    assert!(rows_of_page("refusals").contains(&("version".to_owned(), vec![REFUSE_VERSION])));
    assert_eq!((PAYLOAD_BLOCK, PAYLOAD_SEALED, HAS_TABLE, MOST_DESCRIPTORS), (1, 2, 1 << 8, 253));
}

#[test]
fn the_records_are_those_of_the_page() {
    use record::kind;
    let kinds = [
        ("message", kind::MESSAGE),
        ("block", kind::BLOCK),
        ("sealed", kind::SEALED),
        ("pad", kind::PAD),
        ("next", kind::NEXT),
        ("closed", kind::CLOSED),
        ("moved", kind::MOVED),
        ("frozen", kind::FROZEN),
        ("packed", kind::PACK),
        ("table", kind::TABLE),
        ("prepended", kind::PREPENDED),
    ];
    assert_page_has("records", &kinds.map(|(name, kind)| (name, [kind.into()])));
    assert_eq!(kind::END, kinds.map(|(_, kind)| kind).into_iter().max().unwrap() + 1);
    let handles = rows_of_page("handles");
    for (name, kind) in [("descriptor", record::DESCRIPTOR), ("end", record::AN_END), ("region", record::A_REGION)] {
        assert!(handles.contains(&(name.to_owned(), vec![kind.into()])), "{name}");
    }
}

#[test]
fn the_words_are_those_of_the_page() {
    let words = [
        ("waiting", control::WAITING, 4),
        ("cpu", control::CPU, 4),
        ("quota", control::QUOTA, 8),
        ("transfer", control::TRANSFER, 4),
        ("done", control::DONE, 4),
        ("moving", control::MOVING, 4),
        ("credit", control::CREDIT, 8),
        ("taken", control::TAKEN, 8),
        ("sleeping", control::SLEEPING, 4),
        ("forward", control::FORWARD, 16),
    ];
    assert_page_has("control", &words.map(|(name, offset, size)| (name, [offset as u64, size])));
    assert!(words.iter().all(|(_, offset, size)| offset + *size as usize <= CONTROL));
    let area = rows_of_page("area");
    for (name, offset) in [
        ("sleeping", bitmap::SLEEPING),
        ("posted", bitmap::POSTED),
        ("known", bitmap::KNOWN),
        ("top", bitmap::TOP),
        ("middle", bitmap::MIDDLE),
        ("leaves", bitmap::LEAVES),
        ("size", bitmap::BYTES),
    ] {
        assert!(area.iter().any(|(word, numbers)| word == name && numbers[0] == offset as u64), "{name}");
    }
    assert_eq!(bitmap::MEMBERS, 1 << 20);
    let states = [
        ("pending", transfer::PENDING),
        ("handed over", transfer::HANDED_OVER),
        ("claimed", transfer::CLAIMED),
        ("abandoned", transfer::ABANDONED),
        ("cancelled", transfer::CANCELLED),
    ];
    assert_page_has("transfer", &states.map(|(name, state)| (name, [state.into()])));
    assert_eq!((ON_WORD, ON_SOCKET, ON_SET), (1, 2, 3));
}
