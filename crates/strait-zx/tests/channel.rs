//! Channels: what Fuchsia's own tests of them assert, through the C calls, with the other end here and in another process.

mod rig;

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

/// A channel whose second end is on that side.
fn ends(side: &Side) -> (zx_handle_t, zx_handle_t) {
    let (a, b) = channel();
    (a, side.adopt(b))
}

both_sides! {
    /// CreateIsOkAndEndpointsAreRelated
    fn create_is_ok_and_ends_are_related(side: &Side) {
        let (a, b) = ends(side);
        let (of_a, of_b) = (info(a).1, side.info(b).1);
        assert_ne!(of_a.koid, of_b.koid);
        assert_eq!((of_a.related_koid, of_b.related_koid), (of_b.koid, of_a.koid));
        assert_eq!((of_a.type_, of_b.type_), (ZX_OBJ_TYPE_CHANNEL, ZX_OBJ_TYPE_CHANNEL));
        assert_eq!((of_a.rights, of_b.rights), (ZX_DEFAULT_CHANNEL_RIGHTS, ZX_DEFAULT_CHANNEL_RIGHTS));
        assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
    }

    /// IsWriteableByDefault
    fn is_writable_by_default(side: &Side) {
        let (a, b) = ends(side);
        assert_eq!(signals(a), ZX_CHANNEL_WRITABLE);
        assert_eq!(side.signals(b), ZX_CHANNEL_WRITABLE);
        assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
    }

    /// WriteToEndpointCausesOtherToBecomeReadable
    fn a_write_makes_the_other_end_readable(side: &Side) {
        let (a, b) = ends(side);
        assert_eq!(write(a, b"x", &[]), ZX_OK);
        assert_eq!(side.await_signal(b, ZX_CHANNEL_READABLE), ZX_CHANNEL_READABLE | ZX_CHANNEL_WRITABLE);
        assert_eq!(signals(a), ZX_CHANNEL_WRITABLE);
        assert_eq!(side.read(b).bytes, b"x");
        assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
    }

    /// CloseSignalsPeerClosed, CloseClearsSignalsWriteable
    fn closing_is_seen_at_the_other_end(side: &Side) {
        let (a, b) = ends(side);
        assert_eq!(side.close(b), ZX_OK);
        assert_eq!(wait(a, ZX_CHANNEL_PEER_CLOSED, deadline()), (ZX_OK, ZX_CHANNEL_PEER_CLOSED));
        assert_eq!(close(a), ZX_OK);
        let (a, b) = ends(side);
        assert_eq!(close(a), ZX_OK);
        assert_eq!(side.await_signal(b, ZX_CHANNEL_PEER_CLOSED), ZX_CHANNEL_PEER_CLOSED);
        assert_eq!(side.close(b), ZX_OK);
    }
}
