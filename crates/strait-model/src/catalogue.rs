//! The explored configurations, and what each must show.
//!
//! Processes have numbers. Channel 0 is the watched channel; the other channels carry its ends.

use crate::configuration::{Configuration, User};
use crate::met::Met;
use crate::search;

/// A configuration, with its expected result.
pub type Case = search::Case<Configuration, Met>;

fn case(name: &'static str, states: usize, met: &[Met], configuration: Configuration) -> Case {
    Case { name, configuration, met: met.to_vec(), states }
}

fn writes(messages: u8) -> User {
    User::writes(messages)
}

/// Returns a configuration: both ends may be sent to process 2, `moves` times each, with `messages` messages in each
/// direction.
pub fn both_move(messages: u8, moves: u8) -> Configuration {
    Configuration::new(3)
        .channel((0, writes(messages).moves(moves, &[1, 2])), (1, writes(messages).moves(moves, &[1, 2])))
        .carrier(0, 2)
        .carrier(1, 2)
}

/// Returns a configuration: process 0 sends end 0a over channel 1 to process 1. Process 1 sends its end of channel 1
/// over channel 2 to process 2. End 0b is with process 3.
pub fn carrier_moves() -> Configuration {
    Configuration::new(4)
        .channel((0, writes(1).moves(1, &[1])), (3, writes(1)))
        .channel((0, User::idle()), (1, User::idle().moves(1, &[2])))
        .carrier(1, 2)
}

/// Returns a configuration: moves as in [`carrier_moves`]; process 0 also writes to channel 1, so process 0 learns
/// early that the other end of channel 1 moves.
pub fn busy_carrier_moves() -> Configuration {
    Configuration::new(4)
        .channel((0, writes(1).moves(1, &[1])), (3, writes(1)))
        .channel((0, writes(1)), (1, User::idle().moves(1, &[2])))
        .carrier(1, 2)
}

/// Returns a configuration: moves as in [`carrier_moves`]; end 0b also moves to process 2, at any time.
pub fn carrier_and_peer_move() -> Configuration {
    Configuration::new(4)
        .channel((0, writes(1).moves(1, &[1])), (3, writes(1).moves(1, &[3])))
        .channel((0, User::idle()), (1, User::idle().moves(1, &[2])))
        .carrier(1, 2)
        .carrier(3, 2)
}

/// Returns a configuration: end 0a moves to process 2. `a` and `b` are the other permissions of the users of the two
/// ends.
pub fn one_moves(a: User, b: User) -> Configuration {
    Configuration::new(3).channel((0, a.moves(1, &[1])), (1, b)).carrier(0, 2)
}

/// Returns a configuration: process 0 fuses two channels, whose far ends are with processes 1 and 2. `a` and `b` are
/// the permissions of the users of the far ends.
pub fn two_fused(a: User, b: User) -> Configuration {
    Configuration::new(4).channel((1, a), (2, b)).carrier(1, 3).carrier(2, 3).fused_by(0)
}

/// Returns the configurations with a fuse of two channels.
pub fn fuses() -> Vec<Case> {
    let (talks, sleeps) = (|| writes(1).closes(), || writes(1).sleeps());
    vec![
        case("two channels are fused, 2 messages each", 2_623, &[Met::PublishFrozen], two_fused(writes(2), writes(2))),
        case(
            "two are fused, far ends are closed, two deaths",
            91_064,
            &[Met::PublishFrozen, Met::CloseFrozen, Met::ReaderClosed, Met::Abandoned],
            two_fused(talks(), talks()).deaths(2, &[0, 1, 2]),
        ),
        case(
            "two are fused, far ends move on",
            8_552,
            &[Met::PublishFrozen, Met::Lost, Met::MarkFrozen],
            two_fused(writes(1).moves(1, &[1]), writes(1).moves(1, &[2])),
        ),
        case(
            "two are fused, far ends move on, a death",
            37_804,
            &[Met::Abandoned],
            two_fused(writes(1).moves(1, &[1]), writes(1).moves(1, &[2])).deaths(1, &[0, 1, 2]),
        ),
        case(
            "two are fused, both readers sleep",
            678_872,
            &[Met::SleptVia, Met::WokenVia, Met::LeftVia, Met::Woken],
            two_fused(sleeps(), sleeps()),
        ),
        case(
            "two are fused, both writers wait for room",
            330_277,
            &[Met::WokenForRoom],
            two_fused(writes(2).waits(), writes(2).waits()),
        ),
    ]
}

/// Returns the configurations with a fuse of two channels and larger bounds.
pub fn large_fuses() -> Vec<Case> {
    let sleeps = || writes(1).sleeps();
    vec![
        case(
            "two are fused, both readers sleep, a death",
            1_213_096,
            &[Met::SleptVia, Met::WokenVia, Met::LeftVia, Met::Woken],
            two_fused(sleeps(), sleeps()).deaths(1, &[0, 1, 2]),
        ),
        case(
            "two are fused, a reader sleeps, the other end is closed, two deaths",
            1_191_927,
            &[Met::SleptVia],
            two_fused(sleeps(), writes(1).closes()).deaths(2, &[0, 1, 2]),
        ),
    ]
}

/// Returns the configurations with moves, without deaths and without full sockets.
pub fn moves() -> Vec<Case> {
    vec![
        case(
            "both ends move, 2 messages each",
            8_772,
            &[Met::Lost, Met::PublishFrozen, Met::MarkFrozen],
            both_move(2, 1),
        ),
        case("the same, drained record by record", 9_544, &[Met::Lost], both_move(2, 1).one_by_one()),
        case("both ends move twice", 181_637, &[Met::Lost, Met::MarkFrozen], both_move(1, 2)),
        case(
            "a chain of three moves through four processes",
            82_324,
            &[Met::PublishFrozen],
            Configuration::new(4)
                .channel((0, writes(1).moves(3, &[1, 2, 3])), (1, writes(2)))
                .carrier(0, 2)
                .carrier(2, 3)
                .carrier(3, 0),
        ),
        case(
            "back again, and to the other end's process",
            10_287,
            &[Met::PublishFrozen],
            Configuration::new(3).channel((0, writes(1).moves(3, &[1, 2])), (1, writes(1))).carrier(0, 2).carrier(2, 1),
        ),
        case(
            "a chain of two moves, the other end moves too",
            15_785,
            &[Met::Lost, Met::ClaimedFirst],
            Configuration::new(4)
                .channel((0, writes(1).moves(2, &[1, 2])), (1, writes(1).moves(1, &[3])))
                .carrier(0, 2)
                .carrier(2, 3)
                .carrier(1, 3),
        ),
        case(
            "rings grow while both ends move",
            41_080,
            &[Met::Lost, Met::NextFrozen, Met::NextDrained],
            Configuration::new(3)
                .channel((0, writes(1).moves(1, &[1]).grows(1)), (1, writes(2).moves(1, &[2]).grows(1)))
                .carrier(0, 2)
                .carrier(1, 2),
        ),
        case(
            "each of two channels carries an end of the other",
            68_984,
            &[Met::Nested],
            Configuration::new(2)
                .channel((0, writes(1).moves(2, &[1])), (1, User::idle()))
                .channel((0, User::idle()), (1, writes(1).moves(2, &[0]))),
        ),
        case("the carrier's other end moves", 5_843, &[Met::Nested, Met::CommitFrozen], carrier_moves()),
        case(
            "the carrier's other end moves, and the peer",
            51_525,
            &[Met::Nested, Met::NestedRefused],
            carrier_and_peer_move(),
        ),
    ]
}

/// Returns the configurations with closed ends, full sockets, or deaths.
pub fn troubles() -> Vec<Case> {
    let closing = |user: User| user.closes();
    vec![
        case(
            "both ends move, all three may die",
            19_001,
            &[Met::Lost, Met::Abandoned],
            both_move(1, 1).deaths(3, &[0, 1, 2]),
        ),
        case(
            "both ends move or are closed; a full socket, a death",
            188_764,
            &[Met::Lost, Met::CloseFrozen, Met::ReaderClosed, Met::CalledOff, Met::Abandoned],
            Configuration::new(3)
                .channel((0, closing(writes(1).moves(1, &[1]))), (1, closing(writes(1).moves(1, &[2]))))
                .carrier(0, 2)
                .carrier(1, 2)
                .fulls(1)
                .deaths(1, &[0, 1, 2]),
        ),
        case(
            "the carrier is closed at either end, two deaths",
            357_746,
            &[Met::ReaderClosed, Met::CalledOff, Met::ClaimedDead],
            Configuration::new(3)
                .channel((0, closing(writes(1).moves(1, &[1]))), (1, closing(writes(1))))
                .channel((0, closing(User::idle())), (2, closing(User::idle())))
                .deaths(2, &[0, 1, 2]),
        ),
        case(
            "a chain of two moves, the other end moves too, a death",
            153_265,
            &[Met::Lost, Met::Abandoned, Met::ClaimedDead],
            Configuration::new(4)
                .channel((0, writes(1).moves(2, &[1, 2])), (1, writes(1).moves(1, &[3])))
                .carrier(0, 2)
                .carrier(2, 3)
                .carrier(1, 3)
                .deaths(1, &[0, 1, 2, 3]),
        ),
        case(
            "both ends move, a source lacks memory to drain; 2 messages each",
            15_293,
            &[Met::Stayed, Met::Lost, Met::PublishFrozen],
            both_move(2, 1).stays(1),
        ),
        case(
            "both ends move or are closed, sources lack memory to drain twice; a death",
            214_159,
            &[Met::Stayed, Met::Lost, Met::CloseFrozen, Met::Abandoned],
            Configuration::new(3)
                .channel((0, closing(writes(1).moves(1, &[1]))), (1, closing(writes(1).moves(1, &[2]))))
                .carrier(0, 2)
                .carrier(1, 2)
                .stays(2)
                .deaths(1, &[0, 1, 2]),
        ),
        case(
            "the carrier's other end moves; a full socket, two deaths",
            103_537,
            &[Met::Nested, Met::CommitFrozen, Met::CalledOff, Met::ClaimedDead],
            carrier_moves().fulls(1).deaths(2, &[0, 1, 2, 3]),
        ),
        case(
            "a busy carrier's other end moves; a full socket, a death",
            343_633,
            &[Met::Nested, Met::CommitFrozen],
            busy_carrier_moves().fulls(1).deaths(1, &[0, 1, 2]),
        ),
    ]
}

/// Returns the configurations in which consumers and producers sleep.
pub fn sleepers() -> Vec<Case> {
    vec![
        case(
            "the other end's reader sleeps",
            121_588,
            &[Met::SleptVia, Met::LeftVia, Met::Woken, Met::WokenVia],
            one_moves(writes(2), writes(1).sleeps()).fulls(1).deaths(1, &[0, 1, 2]),
        ),
        case(
            "the moved end's reader sleeps",
            41_786,
            &[Met::Woken],
            one_moves(writes(1).sleeps(), writes(2)).fulls(1).deaths(1, &[0, 1, 2]),
        ),
        case(
            "both readers sleep",
            106_684,
            &[Met::SleptVia, Met::Woken, Met::WokenVia],
            one_moves(writes(1).sleeps(), writes(1).sleeps()).deaths(1, &[0, 1, 2]),
        ),
        case(
            "both ends move, one reader sleeps, a death",
            264_444,
            &[Met::SleptVia, Met::Lost],
            Configuration::new(3)
                .channel((0, writes(1).moves(1, &[1])), (1, writes(1).moves(1, &[2]).sleeps()))
                .carrier(0, 2)
                .carrier(1, 2)
                .deaths(1, &[0, 1, 2]),
        ),
        case(
            "the carrier's other end moves, the peer's reader sleeps",
            132_322,
            &[Met::SleptVia, Met::Nested, Met::WokenVia],
            Configuration::new(4)
                .channel((0, writes(1).moves(1, &[1])), (3, User::idle().sleeps()))
                .channel((0, User::idle()), (1, User::idle().moves(1, &[2])))
                .carrier(1, 2),
        ),
        case(
            "the other end's reader sleeps, a source lacks memory to drain; a death",
            124_808,
            &[Met::Stayed, Met::SleptVia, Met::WokenVia],
            one_moves(writes(2), writes(1).sleeps()).stays(1).deaths(1, &[0, 1, 2]),
        ),
        case(
            "the other end's writer waits for room, a source lacks memory to drain",
            21_056,
            &[Met::Stayed, Met::SleptVia, Met::WokenForRoom],
            one_moves(writes(1), writes(3).waits()).stays(1),
        ),
        case(
            "the other end's writer waits for room",
            85_687,
            &[Met::SleptVia, Met::WokenForRoom, Met::WokenVia],
            one_moves(writes(1), writes(3).waits()).fulls(1).deaths(1, &[0, 1, 2]),
        ),
        case(
            "the other end's writer waits and its reader sleeps",
            187_693,
            &[Met::SleptVia, Met::WokenForRoom],
            one_moves(writes(1), writes(2).waits().sleeps()),
        ),
    ]
}

/// Returns the configurations with larger bounds. They take minutes, and are explored only on request.
pub fn large() -> Vec<Case> {
    vec![
        case(
            "both ends move twice over any of three channels",
            760_449,
            &[Met::Lost],
            Configuration::new(3)
                .channel((0, writes(1).moves(2, &[1, 2, 3])), (1, writes(1).moves(2, &[1, 2, 3])))
                .carrier(0, 2)
                .carrier(1, 2)
                .carrier(0, 1),
        ),
        case(
            "both ends move twice, 2 messages each, two deaths",
            1_946_930,
            &[Met::Lost, Met::Abandoned],
            both_move(2, 2).deaths(2, &[0, 1, 2]),
        ),
        case(
            "the carrier's other end moves, and the peer; a full socket, two deaths",
            1_499_430,
            &[Met::NestedRefused],
            carrier_and_peer_move().fulls(1).deaths(2, &[0, 1, 2, 3]),
        ),
        case(
            "the carrier and both ends move twice or are closed, a death",
            2_130_056,
            &[Met::Nested, Met::CloseFrozen],
            {
                Configuration::new(4)
                    .channel((0, writes(1).moves(2, &[1])), (3, writes(1).closes()))
                    .channel((0, writes(1)), (1, User::idle().moves(2, &[2]).closes()))
                    .carrier(1, 2)
                    .deaths(1, &[0, 1, 2, 3])
            },
        ),
        case(
            "the carrier's other end moves, the peer's reader sleeps, a death",
            563_896,
            &[Met::SleptVia],
            Configuration::new(4)
                .channel((0, writes(1).moves(1, &[1])), (3, User::idle().sleeps()))
                .channel((0, User::idle()), (1, User::idle().moves(1, &[2])))
                .carrier(1, 2)
                .deaths(1, &[0, 1, 2]),
        ),
        case(
            "there and back, the other end's reader sleeps, a death",
            1_491_068,
            &[Met::SleptVia],
            Configuration::new(3)
                .channel((0, writes(1).moves(2, &[1, 2])), (1, writes(1).sleeps()))
                .carrier(0, 2)
                .carrier(2, 0)
                .deaths(1, &[0, 1, 2]),
        ),
        case(
            "both ends move, both writers wait for room",
            846_163,
            &[Met::SleptVia, Met::WokenForRoom],
            Configuration::new(3)
                .channel((0, writes(2).moves(1, &[1]).waits()), (1, writes(2).moves(1, &[2]).waits()))
                .carrier(0, 2)
                .carrier(1, 2),
        ),
        case(
            "an end moves, either end of it and of the carrier is closed, the other end's reader sleeps; a full socket",
            1_639_536,
            &[Met::SleptVia, Met::CloseFrozen, Met::ReaderClosed],
            Configuration::new(3)
                .channel((0, writes(1).moves(1, &[1]).closes()), (1, writes(1).closes().sleeps()))
                .channel((0, User::idle().closes()), (2, User::idle().closes()))
                .fulls(1),
        ),
        case(
            "an end moves, ends are closed, the other end's writer waits for room; a death",
            1_671_277,
            &[Met::SleptVia, Met::CloseFrozen, Met::WokenForRoom],
            Configuration::new(3)
                .channel((0, writes(1).moves(1, &[1]).closes()), (1, writes(3).closes().waits()))
                .channel((0, User::idle()), (2, User::idle().closes()))
                .deaths(1, &[0, 1, 2]),
        ),
        case(
            "an end moves there and to the other end's process, whose writer waits for room; a full socket, a death",
            1_704_156,
            &[Met::SleptVia, Met::WokenForRoom, Met::CalledOff],
            Configuration::new(3)
                .channel((0, writes(1).moves(2, &[1, 2])), (1, writes(3).waits()))
                .carrier(0, 2)
                .carrier(2, 1)
                .fulls(1)
                .deaths(1, &[0, 1, 2]),
        ),
        case(
            "the carrier's other end moves, its reader sleeps; a full socket, a death",
            680_513,
            &[Met::Nested, Met::Woken],
            Configuration::new(4)
                .channel((0, writes(1).moves(1, &[1])), (3, writes(1)))
                .channel((0, User::idle()), (1, User::idle().moves(1, &[2]).sleeps()))
                .carrier(1, 2)
                .fulls(1)
                .deaths(1, &[0, 1, 2, 3]),
        ),
        case(
            "the carrier's other end moves, the end twice, the peer to the process between; a full socket, a death",
            2_042_048,
            &[Met::Nested, Met::NestedRefused, Met::Lost],
            Configuration::new(4)
                .channel((0, writes(1).moves(2, &[1, 2])), (3, writes(1).moves(1, &[3])))
                .channel((0, User::idle()), (1, User::idle().moves(1, &[2])))
                .carrier(1, 2)
                .carrier(3, 1)
                .fulls(1)
                .deaths(1, &[0, 1, 2, 3]),
        ),
        case(
            "each of two channels carries an end of the other, one is closed; a full socket, a death",
            1_888_257,
            &[Met::Nested, Met::CloseFrozen, Met::ClaimedDead],
            Configuration::new(2)
                .channel((0, writes(1).moves(2, &[1])), (1, User::idle().closes()))
                .channel((0, User::idle()), (1, writes(1).moves(2, &[0])))
                .fulls(1)
                .deaths(1, &[0, 1]),
        ),
        case(
            "rings grow while both ends move; a full socket, two deaths",
            696_345,
            &[Met::Lost, Met::NextFrozen, Met::NextDrained, Met::Abandoned],
            Configuration::new(3)
                .channel((0, writes(1).moves(1, &[1]).grows(1)), (1, writes(2).moves(1, &[2]).grows(1)))
                .carrier(0, 2)
                .carrier(1, 2)
                .deaths(2, &[0, 1, 2])
                .fulls(1),
        ),
        case(
            "ends in ends in ends",
            274_659,
            &[Met::Nested, Met::CommitFrozen],
            Configuration::new(4)
                .channel((0, writes(1).moves(1, &[1])), (3, writes(1)))
                .channel((0, User::idle()), (1, User::idle().moves(1, &[2])))
                .channel((1, User::idle()), (2, User::idle().moves(1, &[3])))
                .carrier(2, 3),
        ),
        case("both ends move twice, a socket is full", 349_993, &[Met::Lost, Met::CalledOff], both_move(1, 2).fulls(1)),
    ]
}
