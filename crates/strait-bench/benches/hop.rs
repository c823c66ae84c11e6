//! The cost of a hop between threads: `cargo bench -p strait-bench --bench hop`.
//!
//! All three benchmarks make the same round trip between two threads. The first thread sends; the second answers. The
//! second thread receives the messages itself, or runs a `Dispatcher`, or has a third thread receive for its
//! dispatcher.

use std::thread;

use divan::Bencher;
use strait::wait::{Dispatched, Dispatcher};
use strait::{Channel, Deadline, Message};

fn main() {
    divan::main();
}

fn round_trips(bencher: Bencher<'_, '_>, channel: &Channel, size: usize) {
    let bytes = vec![7; size];
    let mut answer = Message::new();
    bencher.bench_local(|| {
        channel.send(&bytes).expect("the other thread is there");
        channel.recv_message(&mut answer, Deadline::NEVER).expect("the other thread answers");
    });
}

#[divan::bench(args = [56, 4096])]
fn received_where_it_is_handled(bencher: Bencher<'_, '_>, size: usize) {
    let (ours, theirs) = Channel::pair().expect("memory for a channel");
    let serving = thread::spawn(move || {
        let mut message = Message::new();
        while theirs.recv_message(&mut message, Deadline::NEVER).is_ok() {
            theirs.send(message.bytes()).expect("the other thread is there");
        }
    });
    round_trips(bencher, &ours, size);
    drop(ours);
    serving.join().expect("it ends with the channel");
}

#[divan::bench(args = [56, 4096])]
fn dispatched(bencher: Bencher<'_, '_>, size: usize) {
    served(bencher, size, false);
}

#[divan::bench(args = [56, 4096])]
fn handed_to_another_thread(bencher: Bencher<'_, '_>, size: usize) {
    served(bencher, size, true);
}

fn served(bencher: Bencher<'_, '_>, size: usize, pumped: bool) {
    let (ours, theirs) = Channel::pair().expect("memory for a channel");
    let serving = thread::spawn(move || {
        let dispatcher = Dispatcher::new().expect("descriptors for a wait set");
        let pumping = pumped.then(|| {
            let pump = dispatcher.pump();
            thread::spawn(move || pump.run())
        });
        let ended = std::rc::Rc::new(std::cell::Cell::new(false));
        let over = ended.clone();
        let answer = move |channel: &Channel, dispatched| match dispatched {
            Dispatched::Message(message) => channel.send(message.bytes()).expect("the other thread is there"),
            Dispatched::Ended(_) => over.set(true),
        };
        dispatcher.serve(theirs, 0, answer).expect("it is in no set");
        while !ended.get() {
            dispatcher.dispatch(Deadline::NEVER).expect("nobody forks");
        }
        drop(dispatcher);
        if let Some(pumping) = pumping {
            pumping.join().expect("it ends with the dispatcher").expect("it receives");
        }
    });
    round_trips(bencher, &ours, size);
    drop(ours);
    serving.join().expect("it ends with the channel");
}
