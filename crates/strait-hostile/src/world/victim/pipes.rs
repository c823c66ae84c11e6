//! The victim's use of data pipes and regions.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

use strait::pipe::{DataConsumer, DataPipe, DataProducer, PipeOptions};
use strait::region::{Region, RegionError, RegionOptions, RegionWriter};
use strait::{Deadline, Error, Wait};

use super::Driver;

/// Writes into a region in place, and seals the region.
fn sealed(mut writer: RegionWriter) -> Result<Region, RegionError> {
    writer[0] = 1;
    writer.seal().map(|(region, _)| region).map_err(|(error, _)| error)
}

impl Driver<'_> {
    pub(super) fn act_on_pipes(&mut self) {
        if self.choices.one_in(6) {
            let element = self.choices.pick(&[1, 1, 4]);
            let options = PipeOptions::new().capacity(8192).element(element).name("victim");
            let options = options.prefault(self.choices.one_in(2)).spin(Duration::from_micros(5)).wait(Wait::Adaptive);
            if let Some((producer, consumer)) = self.note("PipeOptions::create", options.create()) {
                self.keep(|pool| &mut pool.producers, Arc::new(producer));
                self.keep(|pool| &mut pool.consumers, Arc::new(consumer));
            }
        }
        if self.choices.one_in(2) {
            if let Some(consumer) = self.one_of(|pool| &pool.consumers) {
                match self.choices.one_in(10) {
                    true => self.use_consumer_owned(consumer),
                    false => self.use_consumer(&consumer),
                }
            }
        } else if let Some(producer) = self.one_of(|pool| &pool.producers) {
            match self.choices.one_in(10) {
                true => self.use_producer_owned(producer),
                false => self.use_producer(&producer),
            }
        }
    }

    /// Reads by a view that keeps the consumer.
    fn use_consumer_owned(&mut self, consumer: Arc<DataConsumer>) {
        let (deadline, allowed) = self.deadline();
        let read: Result<usize, Error> = self.call("begin_read_owned", allowed, || {
            let unread = consumer.begin_read_owned(deadline)?;
            let len = unread.len().min(64) / unread.kept().element() * unread.kept().element();
            unread.consume(len);
            Ok(len)
        });
        self.note("begin_read_owned", read);
    }

    /// Writes into room that keeps the producer.
    fn use_producer_owned(&mut self, producer: Arc<DataProducer>) {
        let (deadline, allowed) = self.deadline();
        let written: Result<usize, Error> = self.call("begin_write_owned", allowed, || {
            let mut room = producer.begin_write_owned(deadline)?;
            let len = room.len().min(64) / room.kept().element() * room.kept().element();
            room.write_at(&[7; 64][..len], 0);
            room.commit(len);
            Ok(len)
        });
        self.note("begin_write_owned", written);
    }

    fn use_consumer(&mut self, consumer: &DataConsumer) {
        let mut out = vec![0; self.choices.pick(&[1, 100, 8192, 20_000])];
        let (deadline, allowed) = self.deadline();
        let done: Result<usize, Error> = match self.choices.below(10) {
            8 => {
                let mut room = vec![MaybeUninit::uninit(); out.len()];
                let read = || consumer.read_some_uninit(&mut room, deadline).map(|bytes| bytes.len());
                self.call("read_some_uninit", allowed, read)
            }
            0 => self.call("available", Duration::ZERO, || consumer.available()),
            1 => self.call("read_some now", Duration::ZERO, || consumer.read_some(&mut out, Deadline::NOW)),
            2 => self.call("read_some", allowed, || consumer.read_some(&mut out, deadline)),
            3 => self.call("read_whole", allowed, || consumer.read_whole(&mut out, deadline)).map(|()| 0),
            4 => self.call("peek", Duration::ZERO, || consumer.peek(&mut out)),
            5 => self.call("discard", Duration::ZERO, || consumer.discard(out.len())),
            6 => {
                let Ok(null) = std::fs::File::options().write(true).open("/dev/null") else { return };
                self.call("splice_to", allowed, || consumer.splice_to(&null, out.len(), deadline))
            }
            7 => {
                let _ = (consumer.element(), consumer.capacity(), consumer.interrupter());
                Ok(0)
            }
            _ => self.call("begin_read", allowed, || {
                let unread = consumer.begin_read(deadline)?;
                let len = unread.len().min(out.len()) / consumer.element() * consumer.element();
                let _ = (unread.is_empty(), unread.as_ptr());
                unread.read_at(&mut out[..len], 0);
                unread.consume(len);
                Ok(len)
            }),
        };
        if let Some(len) = self.note("a consumer", done) {
            self.note_work(len);
        }
    }

    fn use_producer(&mut self, producer: &DataProducer) {
        let bytes = vec![5; self.choices.pick(&[4, 100, 8192, 20_000])];
        let (deadline, allowed) = self.deadline();
        let done: Result<usize, Error> = match self.choices.below(8) {
            0 => self.call("room", Duration::ZERO, || producer.room()),
            1 => self.call("write_some now", Duration::ZERO, || producer.write_some(&bytes, Deadline::NOW)),
            2 => self.call("write_some", allowed, || producer.write_some(&bytes, deadline)),
            3 => self.call("write_whole", allowed, || producer.write_whole(&bytes, deadline)).map(|()| 0),
            4 => {
                let Ok(zero) = std::fs::File::open("/dev/zero") else { return };
                self.call("splice_from", allowed, || producer.splice_from(&zero, bytes.len(), deadline))
            }
            5 if self.choices.one_in(4) => self.call("finish", allowed, || producer.finish(deadline)).map(|()| 0),
            6 => {
                let _ = (producer.element(), producer.capacity(), producer.interrupter());
                Ok(0)
            }
            _ => self.call("begin_write", allowed, || {
                let mut room = producer.begin_write(deadline)?;
                let len = room.len().min(bytes.len()) / producer.element() * producer.element();
                let _ = (room.is_empty(), room.as_uninit_mut().len());
                room.write_at(&bytes[..len], 0);
                room.commit(len);
                Ok(len)
            }),
        };
        self.note("a producer", done);
        if self.choices.one_in(30)
            && let Some(producer) = self.take(|pool| &mut pool.producers)
            && let Ok(producer) = Arc::try_unwrap(producer)
        {
            let how = self.choices.below(3);
            self.call("drop", Duration::ZERO, || match how {
                0 => producer.abort(1),
                1 => producer.set_abort_reason(2),
                _ => drop(producer),
            });
        }
    }

    pub(super) fn act_on_regions(&mut self) {
        if self.choices.one_in(4) {
            let made = match self.choices.below(5) {
                0 => Region::new(5000),
                3 => RegionWriter::new(5000).and_then(sealed),
                4 => RegionOptions::new().huge_pages(true).writer(5000).and_then(sealed),
                1 => Region::sealed(b"sealed"),
                _ => RegionOptions::new().name("victim").create_from(b"bytes"),
            };
            if let Some(region) = self.note("Region::new", made) {
                self.keep(|pool| &mut pool.regions, region);
            }
        }
        let Some(region) = self.one_of(|pool| &pool.regions) else { return };
        let len = region.len().min(8192);
        let mut bytes = vec![0; len];
        let done = match self.choices.below(12) {
            0 => self.call("read_at", Duration::ZERO, || region.read_at(&mut bytes, 0)),
            1 => self.call("write_at", Duration::ZERO, || region.write_at(&bytes, 0)),
            2 | 3 => {
                let map = match self.choices.one_in(2) {
                    true => self.call("map", Duration::ZERO, || region.map(..len)),
                    false => self.call("map_writable", Duration::ZERO, || region.map_writable(..len)),
                };
                map.map(|map| self.keep(|pool| &mut pool.maps, map))
            }
            4 => self.call("view", Duration::ZERO, || region.view(..len).map(|view| drop(view.to_vec()))),
            5 => self.call("copy_on_write", Duration::ZERO, || region.copy_on_write(..len).map(drop)),
            6 => self.call("seal", Duration::ZERO, || region.seal()),
            7 => self.call("admit_no_writer", Duration::ZERO, || region.admit_no_writer()),
            8 => self.call("reader", Duration::ZERO, || region.reader()).map(|reader| {
                self.keep(|pool| &mut pool.regions, reader);
            }),
            9 => self.call("access", Duration::ZERO, || region.access().and(region.is_sealed()).map(drop)),
            10 => {
                let _ = (region.name(), region.is_empty());
                let fd = self.call("to_fd", Duration::ZERO, || region.to_fd());
                fd.map(|fd| drop(Region::from_fd(fd)))
            }
            _ => {
                self.use_map();
                Ok(())
            }
        };
        self.note("a region", done);
    }

    fn use_map(&mut self) {
        let Some(map) = self.take(|pool| &mut pool.maps) else { return };
        let mut bytes = vec![0; map.len().min(4096)];
        self.call("a mapped region", Duration::ZERO, || {
            let _ = map.read_at(&mut bytes, 0);
            let _ = map.write_at(&bytes, 0);
            let _ = (map.word32(0).is_some(), map.word64(0).is_some(), map.as_ptr(), map.is_writable(), map.is_empty());
        });
        self.keep(|pool| &mut pool.maps, map);
    }

    /// Adds both ends of a new data pipe to the pool.
    pub(super) fn new_pipe(&mut self) {
        if let Some((producer, consumer)) = self.note("DataPipe::pair", DataPipe::pair(8192)) {
            self.keep(|pool| &mut pool.producers, Arc::new(producer));
            self.keep(|pool| &mut pool.consumers, Arc::new(consumer));
        }
    }
}
