//! Messages of up to 4 KiB are encoded, sent, received and decoded without an allocation, once memory is warm.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use strait::{Channel, Deadline, Message};
use strait_fidl::{Elements, Encoder, Fidl, Header, decode};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: each call goes to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Fidl)]
#[fidl(encode_only)]
struct Sent<'a> {
    name: &'a str,
    numbers: &'a [u32],
    bytes: Option<&'a [u8]>,
    pairs: [Pair; 2],
}

#[derive(Fidl)]
struct Received<'m> {
    name: &'m str,
    numbers: Elements<'m, u32>,
    bytes: Option<&'m [u8]>,
    pairs: [Pair; 2],
}

#[derive(Clone, Copy, Fidl)]
struct Pair {
    a: u8,
    b: u64,
}

#[test]
fn steady_messages_take_no_memory() {
    let (a, b) = Channel::pair().unwrap();
    let (mut encoder, mut message) = (Encoder::new(), Message::new());
    let (numbers, bytes) = ((0..512).collect::<Vec<u32>>(), vec![7; 1900]);
    for len in [0, 100, 1900] {
        let mut allocations = 0;
        for round in 0..200 {
            let sent = Sent {
                name: "a name",
                numbers: &numbers[..len / 4],
                bytes: (len > 0).then_some(&bytes[..len]),
                pairs: [Pair { a: 1, b: round }; 2],
            };
            let before = ALLOCATIONS.get();
            let header = Header { ordinal: 5, ..Header::default() };
            encoder.message(header, &sent).unwrap().send(&a).unwrap();
            b.recv_message(&mut message, Deadline::NEVER).unwrap();
            let (_, body) = Header::split(message.bytes()).unwrap();
            let received: Received<'_> = decode(body, []).unwrap();
            allocations = ALLOCATIONS.get() - before;
            assert_eq!((received.name, received.bytes.unwrap_or_default().len()), ("a name", len));
            assert!(received.numbers.iter().eq(numbers[..len / 4].iter().copied()));
            assert_eq!(received.pairs[1].b, round);
        }
        assert_eq!(allocations, 0, "{len}");
    }
}
