//! Tests of owned views: each view is stored, moved to another thread and dropped there, and keeps its end open.

mod common;

use std::io::Write as _;
use std::sync::Arc;
use std::thread;

use common::{DEADLINE, file_with, parent, spawn};
use strait::pipe::DataPipe;
use strait::{Channel, Deadline, Error, Outgoing, owned};

#[test]
fn child() {
    common::play(&[("echo", |_| common::echo(&parent()))]);
}

/// Sizes of messages in the ring and in a block.
const SIZES: [usize; 2] = [8, 300_000];

/// Views of all kinds of a channel and a data pipe, as stored by a binding to another language.
#[derive(Debug, Default)]
struct Stored {
    room: Option<owned::Reservation>,
    sealed: Option<owned::SealedReservation>,
    view: Option<owned::InPlace>,
    draft: Option<owned::Draft>,
    free: Option<owned::Room>,
    unread: Option<owned::Unread>,
}

/// Returns the two ends of a channel within this process, and then the channel to a process that echoes, twice.
fn channels() -> Vec<(Option<common::Actor>, Arc<Channel>, Arc<Channel>)> {
    let (near, far) = Channel::pair().unwrap();
    let (actor, channel) = spawn("echo");
    let channel = Arc::new(channel);
    vec![(None, Arc::new(near), Arc::new(far)), (Some(actor), channel.clone(), channel)]
}

#[test]
fn messages_are_built_and_read_by_views_that_travel_between_threads() {
    for (_actor, near, far) in channels() {
        for len in SIZES {
            let bytes = common::pattern(7, len);
            let mut room = near.clone().reserve_owned(len, Deadline::NEVER).unwrap();
            assert!(Arc::ptr_eq(room.kept(), &near));
            room.write_at(&bytes, 0);
            let stored = Stored { room: Some(room), ..Stored::default() };
            thread::spawn(|| stored.room.unwrap().commit().unwrap()).join().unwrap();

            let view = far.clone().recv_in_place_owned(DEADLINE).unwrap();
            let stored = Stored { view: Some(view), ..Stored::default() };
            let read = thread::spawn(move || {
                let mut view = stored.view.unwrap();
                let mut read = vec![0; view.len()];
                view.read_at(&mut read, 0);
                read
            });
            assert!(read.join().unwrap() == bytes);

            let mut draft = near.clone().draft_owned();
            bytes.chunks(1000).for_each(|piece| draft.write_all(piece).unwrap());
            draft.handle(file_with(b"content"));
            assert_eq!(draft.is_shared(), len > 1000);
            let stored = Stored { draft: Some(draft), ..Stored::default() };
            thread::spawn(|| stored.draft.unwrap().send(DEADLINE).unwrap()).join().unwrap();
            let mut message = far.recv_by(DEADLINE).unwrap();
            assert!(message.bytes() == bytes);
            assert_eq!(common::content_of(message.take_handles().unwrap().remove(0)), b"content");

            let mut sealed = near.clone().reserve_sealed_owned(len).unwrap();
            sealed.bytes().copy_from_slice(&bytes);
            let stored = Stored { sealed: Some(sealed), ..Stored::default() };
            thread::spawn(|| stored.sealed.unwrap().commit(DEADLINE).unwrap()).join().unwrap();
            let mut view = far.clone().recv_in_place_owned(DEADLINE).unwrap();
            view.forward(&near, DEADLINE).unwrap();
            drop(view);
            assert!(far.recv_by(DEADLINE).unwrap().bytes() == bytes);
        }
    }
}

#[test]
fn bytes_go_through_a_pipe_by_views_that_travel_between_threads() {
    let (producer, consumer) = DataPipe::pair(4096).unwrap();
    let (producer, consumer) = (Arc::new(producer), Arc::new(consumer));
    let mut free = producer.clone().begin_write_owned(Deadline::NOW).unwrap();
    assert!(Arc::ptr_eq(free.kept(), &producer));
    free.write_at(b"in place", 0);
    let stored = Stored { free: Some(free), ..Stored::default() };
    assert_eq!(producer.write_some(b"meanwhile", Deadline::NOW), Err(Error::WouldBlock));
    thread::spawn(|| stored.free.unwrap().commit(8)).join().unwrap();

    let unread = consumer.clone().begin_read_owned(Deadline::NOW).unwrap();
    assert!(Arc::ptr_eq(unread.kept(), &consumer));
    let stored = Stored { unread: Some(unread), ..Stored::default() };
    let read = thread::spawn(|| {
        let unread = stored.unread.unwrap();
        let mut read = [0; 8];
        unread.read_at(&mut read, 0);
        unread.consume(8);
        read
    });
    assert_eq!(&read.join().unwrap(), b"in place");
    assert_eq!(consumer.available(), Ok(0));
    assert_eq!((Arc::strong_count(&producer), Arc::strong_count(&consumer)), (1, 1));
    assert_eq!(consumer.begin_read_owned(Deadline::NOW).unwrap_err(), Error::WouldBlock);
}

/// Shows that the end of a view stays open until the view is dropped, and is taken out of its `Arc` only then.
#[test]
fn a_view_keeps_its_end() {
    for len in SIZES {
        let (near, far) = Channel::pair().unwrap();
        let near = Arc::new(near);
        far.send(&vec![7; len]).unwrap();
        let view = near.clone().recv_in_place_owned(Deadline::NOW).unwrap();
        let room = near.clone().reserve_owned(len, Deadline::NOW).unwrap();
        assert_eq!(Arc::strong_count(&near), 3);
        drop(near);
        assert!(!far.is_peer_closed());
        room.commit().unwrap();
        let last = thread::spawn(move || {
            let mut view = view;
            let mut byte = [0];
            view.read_at(&mut byte, len - 1);
            byte
        });
        assert_eq!(last.join().unwrap(), [7]);
        assert_eq!(far.recv().unwrap().bytes().len(), len);
        assert_eq!(far.recv().unwrap_err(), Error::PeerClosed);
    }
    let (near, far) = Channel::pair().unwrap();
    let (over, other) = Channel::pair().unwrap();
    let near = Arc::new(near);
    let draft = near.clone().draft_owned();
    let near = Arc::try_unwrap(near).unwrap_err();
    drop(draft);
    over.send(Outgoing::new(b"").handle(Arc::into_inner(near).unwrap())).unwrap();
    let near = other.recv().unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    near.send(b"after a journey").unwrap();
    assert_eq!(far.recv().unwrap().bytes(), b"after a journey");
}

#[test]
fn a_view_that_is_dropped_or_not_made_leaves_nothing() {
    let (near, far) = Channel::pair().unwrap();
    let (near, far) = (Arc::new(near), Arc::new(far));
    for len in SIZES {
        drop(near.clone().reserve_owned(len, Deadline::NOW).unwrap());
        drop(near.clone().reserve_sealed_owned(len).unwrap());
    }
    assert!(matches!(near.clone().reserve_owned(usize::MAX, Deadline::NOW), Err(Error::MessageTooLarge { .. })));
    assert!(matches!(near.clone().reserve_sealed_owned(usize::MAX), Err(Error::MessageTooLarge { .. })));
    assert_eq!(far.clone().recv_in_place_owned(Deadline::NOW).unwrap_err(), Error::WouldBlock);
    assert_eq!((Arc::strong_count(&near), Arc::strong_count(&far)), (1, 1));
    // The last reference is given away.
    assert!(near.reserve_owned(usize::MAX, Deadline::NOW).is_err());
    assert_eq!(far.recv().unwrap_err(), Error::PeerClosed);
}
