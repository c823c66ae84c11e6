//! Bytes in bulk: through a data pipe, and by a bare copy in and a copy out with a flag for each piece.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use strait::pipe::{DataConsumer, DataProducer, PipeOptions};
use strait::region::{Region, RegionMap};
use strait::{Channel, Deadline, Handle, Outgoing};

use super::super::parts::{Share, Steady, together, warm_up};
use crate::trouble::{Result, Trouble, While};
use crate::work::Report;

const PIECE: usize = 64 << 10;
const SLOTS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the first process of the task `Bulk`: writes `pieces` pieces, after a tenth of them as warm-up.
pub(super) fn fill(peer: &Channel, bare: bool, pieces: u64) -> Result<Report> {
    let (producer, consumer) =
        PipeOptions::new().capacity(SLOTS * PIECE).prefault(true).create().doing("making a pipe")?;
    let region = Region::new((SLOTS + 1) * PIECE).doing("making a region")?;
    peer.send(Outgoing::new(b"").handle(consumer).handle(region.clone())).doing("send")?;
    let source = vec![7; PIECE];
    let map = region.map_writable(..).doing("mapping")?;
    let write = |pieces| if bare { bare_in(&map, &source, pieces) } else { pipe_in(&producer, &source, pieces) };
    let done = || peer.recv_by(PATIENCE).doing("recv").map(drop);
    together(pieces, |pieces| write(pieces).and_then(|()| done()))
}

/// Runs the second process of the task `Bulk`: reads the pieces.
pub(super) fn drain(peer: &Channel, bare: bool, pieces: u64) -> Result<Share> {
    let mut handles = peer.recv_by(PATIENCE).doing("recv")?.take_handles().doing("take_handles")?;
    let region =
        handles.pop().and_then(Handle::into_region).ok_or_else(|| Trouble::new("the message has no region"))?;
    let consumer =
        handles.pop().and_then(Handle::into_consumer).ok_or_else(|| Trouble::new("the message has no data pipe"))?;
    let mut sink = vec![0; PIECE];
    let map = region.map_writable(..).doing("mapping")?;
    let mut steady = Steady::after(1)?;
    for pieces in [warm_up(pieces), pieces] {
        if bare {
            bare_out(&map, &mut sink, pieces)?;
        } else {
            pipe_out(&consumer, &mut sink, pieces)?;
        }
        if sink[0] != 7 || sink[PIECE - 1] != 7 {
            return Err(Trouble::new("the bytes read differ from the bytes written"));
        }
        sink.fill(0);
        peer.send(b"done").doing("send")?;
        steady.answered()?;
    }
    steady.share()
}

/// Waits until the flag of `slot` has the value `wanted`, and returns the flag. The flag is 1 while the slot is full.
fn flag(map: &RegionMap, slot: usize, wanted: u32) -> &AtomicU32 {
    let flag = map.word32(slot * 128).expect("inside");
    while flag.load(Ordering::Acquire) != wanted {
        std::hint::spin_loop();
    }
    flag
}

fn bare_in(map: &RegionMap, source: &[u8], pieces: u64) -> Result<()> {
    for slot in (0..SLOTS).cycle().take(pieces as usize) {
        let flag = flag(map, slot, 0);
        map.write_at(source, (1 + slot) * PIECE).doing("write")?;
        flag.store(1, Ordering::Release);
    }
    // The next call starts with the first slot again, so all slots must be empty.
    for slot in 0..SLOTS {
        flag(map, slot, 0);
    }
    Ok(())
}

fn bare_out(map: &RegionMap, sink: &mut [u8], pieces: u64) -> Result<()> {
    for slot in (0..SLOTS).cycle().take(pieces as usize) {
        let flag = flag(map, slot, 1);
        map.read_at(sink, (1 + slot) * PIECE).doing("read")?;
        flag.store(0, Ordering::Release);
    }
    Ok(())
}

fn pipe_in(producer: &DataProducer, source: &[u8], pieces: u64) -> Result<()> {
    let mut left = PIECE * pieces as usize;
    let deadline = Deadline::after(PATIENCE);
    while left > 0 {
        let mut room = producer.begin_write(deadline).doing("begin_write")?;
        let len = room.len().min(PIECE).min(left);
        room.write_at(&source[..len], 0);
        room.commit(len);
        left -= len;
    }
    Ok(())
}

fn pipe_out(consumer: &DataConsumer, sink: &mut [u8], pieces: u64) -> Result<()> {
    let mut left = PIECE * pieces as usize;
    let deadline = Deadline::after(PATIENCE);
    while left > 0 {
        let unread = consumer.begin_read(deadline).doing("begin_read")?;
        let len = unread.len().min(PIECE);
        unread.read_at(&mut sink[..len], 0);
        unread.consume(len);
        left -= len;
    }
    Ok(())
}
