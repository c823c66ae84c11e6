//! A task waits for a wait set: together with sockets, with channels and data pipes of other threads, and with futures
//! that are dropped before they are complete.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use strait::pipe::DataPipe;
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Deadline, Error, Options};
use strait_tokio::{AsyncWaitSet, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

const MESSAGES: u64 = 2000;
const CHANNELS: u64 = 10;
const PIPE: u64 = 100;

#[tokio::test]
async fn a_task_serves_channels_and_pipes_by_their_keys_beside_a_socket() {
    let set = AsyncWaitSet::new(WaitSet::new().unwrap()).unwrap();
    let pairs: Vec<_> = (0..CHANNELS).map(|_| Options::new().ring_max(4096).pair().unwrap()).collect();
    let (theirs, ours): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    for (key, end) in (0..).zip(&ours) {
        // Half of the members are one-shot.
        let mode = if key % 2 == 0 { Mode::Level } else { Mode::OneShot };
        set.get_ref().add(end, key, Interest::Readable, mode).unwrap();
    }
    let (mut producer, consumer) = DataPipe::pair(1000).unwrap();
    set.get_ref().add(&consumer, PIPE, Interest::Both, Mode::Level).unwrap();
    let (mut socket, mut other) = tokio::net::UnixStream::pair().unwrap();
    let senders = std::thread::spawn(move || {
        for n in 0..MESSAGES {
            theirs[(n * 7 % CHANNELS) as usize].send(&n.to_le_bytes()).unwrap();
            producer.write_all(&[n as u8]).unwrap();
        }
    });
    let (mut messages, mut ended, mut bytes, mut from_socket) = (0, 0, 0, 0);
    let mut events = Vec::new();
    let mut out = [0; 100];
    let (mut byte, mut under_way) = ([0], false);
    let serves = async {
        while ended <= CHANNELS {
            // One byte at a time, or the socket would become full.
            if !under_way {
                other.write_all(b"x").await.unwrap();
                under_way = true;
            }
            // After the first of the two events, the other future is dropped before it is complete.
            tokio::select! {
                count = set.wait(&mut events) => assert!(count.unwrap() > 0),
                read = socket.read_exact(&mut byte) => { read.unwrap(); (under_way, from_socket) = (false, from_socket + 1); continue; }
            }
            for event in &events {
                if event.key() == PIPE {
                    match consumer.read_some(&mut out, Deadline::NOW).unwrap() {
                        0 => {
                            ended += 1;
                            set.get_ref().remove(&consumer).unwrap();
                        }
                        read => bytes += read as u64,
                    }
                    continue;
                }
                let end = &ours[event.key() as usize];
                match end.try_recv() {
                    Ok(_) => {
                        messages += 1;
                        set.get_ref().modify(end, event.key(), Interest::Readable, Mode::OneShot).unwrap();
                    }
                    Err(Error::PeerClosed) => {
                        ended += 1;
                        set.get_ref().remove(end).unwrap();
                    }
                    Err(error) => assert_eq!(error, Error::WouldBlock),
                }
            }
        }
    };
    timeout(DEADLINE, serves).await.expect("a wake-up was lost");
    assert_eq!((messages, bytes), (MESSAGES, MESSAGES));
    assert!(from_socket > 0, "no byte arrived over the socket");
    senders.join().unwrap();
    // The wait set is usable again without tokio.
    assert!(set.into_inner().is_empty());
}

#[tokio::test]
async fn sets_and_listeners_of_tasks_have_the_descriptors_of_the_objects_in_them() {
    let set = AsyncWaitSet::new(WaitSet::new().unwrap()).unwrap();
    assert_eq!(set.as_fd().as_raw_fd(), set.get_ref().as_raw_fd());
    assert_eq!(set.as_raw_fd(), set.get_ref().as_raw_fd());
    let listener = Listener::bind(&format!("tokio-descriptors-{}", std::process::id())).unwrap();
    assert_eq!(listener.as_fd().as_raw_fd(), listener.get_ref().as_raw_fd());
    assert_eq!(listener.as_raw_fd(), listener.get_ref().as_raw_fd());
}
