//! The sizes of Chrome's messages.

/// The histogram `IPC.MessageSize` in Chromium's design document "Mach based OS X Interprocess Communication": the
/// least number of bytes of a bucket, and how many of 37,573 messages of an hour of browsing fell into the bucket. A
/// bucket ends below the least size of the next one. Within a bucket the sizes are drawn evenly.
///
/// The smallest message has 12 bytes, so every message has room for its number.
pub const CHROME: [(usize, usize); 24] = [
    (0, 0),
    (12, 4387),
    (16, 990),
    (21, 9307),
    (28, 10),
    (37, 8),
    (49, 19123),
    (65, 614),
    (86, 38),
    (113, 113),
    (149, 34),
    (196, 110),
    (258, 663),
    (340, 783),
    (448, 653),
    (590, 443),
    (777, 198),
    (1023, 72),
    (1347, 6),
    (1774, 5),
    (2336, 1),
    (3077, 0),
    (12196, 15),
    (16063, 0),
];

/// The size of the largest message in bytes.
pub(crate) const LARGEST: usize = 16_062;
