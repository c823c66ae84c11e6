//! The trailer of a message that belongs to a call: sixteen bytes behind the payload.
//!
//! ```text
//! offset from the end   what
//!    -16   u64   number of the call, chosen by the caller; unique among the caller's calls without an answer
//!     -8   u8    1 request, 2 reply, 3 there will be no reply, 4 the caller no longer waits
//!     -7   7×u8  0
//! ```

/// Length in bytes of the trailer, which follows the payload of each message of a call.
pub(super) const TRAILER: usize = 16;

/// The role of a message in a call: request, reply, no reply or cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    Request = 1,
    Reply = 2,
    /// `NoReply`: a message without a payload, by which the server says that there will be no reply to the call.
    NoReply = 3,
    /// `Cancel`: a message without a payload, by which the caller gives up the reply.
    Cancel = 4,
}

pub(super) fn encode(kind: CallKind, id: u64) -> [u8; TRAILER] {
    let mut bytes = [0; TRAILER];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8] = kind as u8;
    bytes
}

/// Cuts the trailer off the bytes of a message, and returns the role of the message and the number of the call. Returns
/// `None`, and leaves the bytes unchanged, if there is no valid trailer at the end.
pub(super) fn cut(bytes: &mut Vec<u8>) -> Option<(CallKind, u64)> {
    let (rest, trailer) = bytes.split_last_chunk::<TRAILER>()?;
    let kind = match trailer[8] {
        1 => CallKind::Request,
        2 => CallKind::Reply,
        3 => CallKind::NoReply,
        4 => CallKind::Cancel,
        _ => return None,
    };
    let id = u64::from_le_bytes(trailer[..8].try_into().expect("eight bytes"));
    let len = rest.len();
    if trailer[9..] != [0; 7] || (len > 0 && matches!(kind, CallKind::NoReply | CallKind::Cancel)) {
        return None;
    }
    bytes.truncate(len);
    Some((kind, id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    include!("../../tests/common/wire_page.rs");

    #[test]
    fn the_page_has_the_kinds_of_calls() {
        let kinds = [
            ("request", CallKind::Request),
            ("reply", CallKind::Reply),
            ("no reply", CallKind::NoReply),
            ("cancel", CallKind::Cancel),
        ];
        assert_page_has("calls", &kinds.map(|(name, kind)| (name, [kind as u64])));
        assert_page_has("constants", &[("trailer", [TRAILER as u64])]);
    }

    #[test]
    fn what_is_put_behind_is_cut_off() {
        for kind in [CallKind::Request, CallKind::Reply, CallKind::NoReply, CallKind::Cancel] {
            let mut bytes = encode(kind, 77).to_vec();
            assert_eq!((cut(&mut bytes), bytes.len()), (Some((kind, 77)), 0));
        }
        let mut bytes = [b"hello".as_slice(), &encode(CallKind::Reply, u64::MAX)].concat();
        assert_eq!(cut(&mut bytes), Some((CallKind::Reply, u64::MAX)));
        assert_eq!(bytes, b"hello");
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_trailer_or_none(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut rest = bytes.clone();
            match cut(&mut rest) {
                Some((kind, id)) => {
                    rest.extend_from_slice(&encode(kind, id));
                    prop_assert_eq!(rest, bytes);
                }
                None => prop_assert_eq!(rest, bytes),
            }
        }
    }
}
