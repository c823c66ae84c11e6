//! The counters of a data pipe against a queue, and against words with arbitrary values.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use proptest::prelude::*;

use crate::ring::stream::{Corrupt, LATEST, Reading, Shape, Words, Writing};

#[derive(Default)]
struct Table {
    words32: [AtomicU32; 4],
    words64: [AtomicU64; 2],
}

impl Words for Table {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;
    fn written(&self) -> &AtomicU64 {
        &self.words64[0]
    }
    fn finished(&self) -> &AtomicU32 {
        &self.words32[0]
    }
    fn taken(&self) -> &AtomicU64 {
        &self.words64[1]
    }
    fn done(&self) -> &AtomicU32 {
        &self.words32[1]
    }
    fn sleeping(&self) -> &AtomicU32 {
        &self.words32[2]
    }
    fn waiting(&self) -> &AtomicU32 {
        &self.words32[3]
    }
}

/// Generates values for shared counters that are likely to reveal mistakes: any value, values below 200, and values
/// near [`LATEST`] and near the greatest `u64`.
fn nasty() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0u64..200, (LATEST - 100)..(LATEST + 100), (u64::MAX - 100)..u64::MAX]
}

proptest! {
    #[test]
    fn it_is_a_queue(
        element in 1u32..5,
        elements in 1u64..9,
        start in 0u64..50,
        steps in prop::collection::vec((any::<bool>(), 0u64..40), 1..200),
    ) {
        let element_bytes = u64::from(element);
        let shape = Shape::new(element, elements * element_bytes).unwrap();
        let table = Table::default();
        let start = start * element_bytes;
        table.written().store(start, Ordering::Relaxed);
        table.taken().store(start, Ordering::Relaxed);
        let (mut writing, mut reading) = (Writing::at(shape, start).unwrap(), Reading::at(shape, start).unwrap());
        let mut buffer = vec![0u8; shape.capacity as usize];
        let (mut queue, mut next) = (VecDeque::new(), 0u8);
        for (write, amount) in steps {
            if write {
                let room = writing.refresh(&table).unwrap();
                prop_assert_eq!(room, shape.capacity - queue.len() as u64);
                let span = writing.span(amount / element_bytes * element_bytes);
                prop_assert!([span.len, span.at].iter().all(|number| (*number as u64).is_multiple_of(element_bytes)));
                for place in &mut buffer[span.at..span.at + span.len] {
                    *place = next;
                    queue.push_back(next);
                    next = next.wrapping_add(1);
                }
                prop_assert!(!writing.publish(&table, span.len as u64));
            } else {
                prop_assert_eq!(reading.refresh(&table).unwrap(), queue.len() as u64);
                prop_assert_eq!(reading.is_at_end(&table), Ok(false));
                // The second span begins with the bytes skipped by the first.
                let skip = (amount / 2).min(reading.available());
                let peeked = reading.span(skip, 1);
                if peeked.len > 0 {
                    prop_assert_eq!(buffer[peeked.at], queue[skip as usize]);
                }
                let span = reading.span(0, amount / element_bytes * element_bytes);
                for place in &buffer[span.at..span.at + span.len] {
                    prop_assert_eq!(Some(*place), queue.pop_front());
                }
                prop_assert!(!reading.advance(&table, span.len as u64));
            }
        }
    }

    #[test]
    fn whatever_stands_in_the_words_stays_inside_the_buffer(
        element in 1u32..5,
        elements in 1u64..9,
        start in nasty(),
        steps in prop::collection::vec((any::<bool>(), nasty(), 0u64..40, any::<u32>()), 1..100),
    ) {
        let shape = Shape::new(element, elements * u64::from(element)).unwrap();
        let table = Table::default();
        let Some(mut writing) = Writing::at(shape, start) else {
            prop_assert!(Reading::at(shape, start).is_none());
            return Ok(());
        };
        let mut reading = Reading::at(shape, start).unwrap();
        for (write, word, amount, word32) in steps {
            // Many of the values are close to a valid value.
            let word = if word < 200 { start.wrapping_add(word).wrapping_sub(100) } else { word };
            table.words32.iter().for_each(|place| place.store(word32, Ordering::Relaxed));
            let amount = amount / u64::from(element) * u64::from(element);
            if write {
                table.taken().store(word, Ordering::Relaxed);
                let _: Result<_, Corrupt> = writing.refresh(&table);
                let span = writing.span(amount);
                prop_assert!(span.at as u64 + span.len as u64 <= shape.capacity && writing.room() <= shape.capacity);
                let _ = writing.publish(&table, shape.whole(span.len) as u64);
            } else {
                table.written().store(word, Ordering::Relaxed);
                let _ = reading.is_at_end(&table);
                let span = reading.span(0, amount);
                prop_assert!(span.at as u64 + span.len as u64 <= shape.capacity && reading.available() <= shape.capacity);
                let _ = reading.advance(&table, shape.whole(span.len) as u64);
            }
        }
    }
}

#[test]
fn what_is_no_shape_is_none() {
    assert!(Shape::new(0, 64).is_none());
    assert!(Shape::new(3, 64).is_none());
    assert!(Shape::new(1, 0).is_none());
    assert!(Shape::new(1, u64::MAX).is_none());
}
