//! The loops of the measurements, one for each row.

use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::child::Server;
use crate::client::NOT_OFFERED;
use crate::command::{Meeting, Peer, Row, bind, lacking};
use crate::counters::{Held, cpu};
use crate::service::tag;
use crate::{Client, Result, Touch};

/// The maximum wait for an error after the death of a server.
const DEATH: Duration = Duration::from_secs(4);

/// Starts a server, connects to it, and measures one row for about this number of milliseconds.
pub(crate) fn run(peer: &Peer, meeting: &Meeting, milliseconds: u64) -> Result<Value> {
    let (mut server, word) = Server::start(meeting)?;
    bind(meeting.processors.map(|both| both[0]))?;
    let begin = Instant::now();
    let mut client = (peer.connect)(meeting, &word)?;
    let mut reply = Vec::new();
    let first = client.round_trip(&message(tag::CPU, 16), &mut reply);
    let connect = nanoseconds(begin.elapsed());
    let time = Duration::from_millis(milliseconds);
    let measured = match first {
        Err(error) => Err(error),
        Ok(()) => match meeting.row {
            Row::RoundTrip => round_trips(&mut *client, meeting.size, time),
            Row::InPlace(touch) => in_place(&mut *client, meeting.size, touch, time),
            Row::Stream => stream(&mut *client, meeting.size, time),
            Row::Descriptor => descriptors(&mut *client, time),
            Row::Idle => idle(&server, time),
            Row::Death => return death(client, &mut server, meeting),
        },
    };
    match measured {
        Ok(mut value) => {
            value["connect"] = json!(connect);
            Ok(value)
        }
        Err(error) if error.to_string() == NOT_OFFERED => Ok(lacking(NOT_OFFERED)),
        Err(error) => Err(error),
    }
}

/// Returns a message of `size` bytes that begins with a tag.
fn message(tag: u8, size: usize) -> Vec<u8> {
    let mut message: Vec<u8> = (0..size).map(|at| at as u8).collect();
    message[0] = tag;
    message
}

/// Writes a number into the bytes 8 to 15 of a message.
fn number(message: &mut [u8], number: u64) {
    message[8..16].copy_from_slice(&number.to_ne_bytes());
}

/// Asks the server for a number.
fn asked(client: &mut dyn Client, tag: u8) -> Result<u64> {
    let mut reply = Vec::new();
    client.round_trip(&message(tag, 16), &mut reply)?;
    let bytes = reply.get(8..16).ok_or("a reply is too short")?;
    Ok(u64::from_ne_bytes(bytes.try_into()?))
}

/// Measures round trips of copied messages. At the begin each reply is compared with its request; afterwards only its
/// number is.
fn round_trips(client: &mut dyn Client, size: usize, time: Duration) -> Result<Value> {
    let (mut request, mut reply) = (message(tag::ECHO, size), Vec::new());
    for count in 0..3 {
        number(&mut request, count);
        client.round_trip(&request, &mut reply)?;
        if reply != request {
            return Err("a reply differs from its request".into());
        }
    }
    let mut count = 0;
    timed(client, time, |client| {
        count += 1;
        number(&mut request, count);
        client.round_trip(&request, &mut reply)?;
        match reply.len() == request.len() && reply[8..16] == request[8..16] {
            true => Ok(()),
            false => Err("a reply differs from its request".into()),
        }
    })
}

/// Measures messages written and read in place.
fn in_place(client: &mut dyn Client, size: usize, touch: Touch, time: Duration) -> Result<Value> {
    let tag = if touch == Touch::Ends { tag::ENDS } else { tag::PAGES };
    let (mut head, mut count) = (message(tag, 16), 0);
    timed(client, time, |client| {
        count += 1;
        number(&mut head, count);
        client.in_place(&head, size, touch)
    })
}

/// Measures round trips of requests with a descriptor.
fn descriptors(client: &mut dyn Client, time: Duration) -> Result<Value> {
    let file = std::fs::File::open("/dev/null")?;
    let request = message(tag::ECHO, 16);
    timed(client, time, |client| client.pass(&request, file.as_fd()))
}

/// Repeats `once` for a while to warm up, and then for `time`. Returns the distribution of its durations, and the
/// processor time of both sides for each.
fn timed(
    client: &mut dyn Client,
    time: Duration,
    mut once: impl FnMut(&mut dyn Client) -> Result<()>,
) -> Result<Value> {
    let warm = Instant::now();
    while warm.elapsed() < time / 5 {
        once(client)?;
    }
    let mut samples: Vec<u64> = Vec::with_capacity(1 << 22);
    let server_before = asked(client, tag::CPU)?;
    let cpu_before = cpu();
    let begin = Instant::now();
    let mut last = begin;
    while last.duration_since(begin) < time && samples.len() < samples.capacity() {
        once(client)?;
        let now = Instant::now();
        samples.push(nanoseconds(now.duration_since(last)));
        last = now;
    }
    let elapsed = nanoseconds(last.duration_since(begin));
    let used = cpu() - cpu_before;
    let served = asked(client, tag::CPU)?.saturating_sub(server_before);
    let count = samples.len().max(1) as u64;
    samples.sort_unstable();
    let at = |share: f64| samples.get(((samples.len() - 1) as f64 * share) as usize).copied();
    Ok(json!({
        "count": count,
        "mean": elapsed / count,
        "p50": at(0.5),
        "p99": at(0.99),
        "p999": at(0.999),
        "max": samples.last(),
        "cpu": (used + served) / count,
    }))
}

/// Measures the number of messages that arrive in one direction.
fn stream(client: &mut dyn Client, size: usize, time: Duration) -> Result<Value> {
    let mut post = message(tag::POST, size);
    let warm = Instant::now();
    while warm.elapsed() < time / 5 {
        client.post(&post)?;
    }
    asked(client, tag::COUNT)?;
    let server_before = asked(client, tag::CPU)?;
    let cpu_before = cpu();
    let begin = Instant::now();
    let mut sent = 0;
    while sent % 64 != 0 || begin.elapsed() < time {
        number(&mut post, sent);
        client.post(&post)?;
        sent += 1;
    }
    let counted = asked(client, tag::COUNT)?;
    let elapsed = begin.elapsed().as_secs_f64();
    let used = cpu() - cpu_before + asked(client, tag::CPU)?.saturating_sub(server_before);
    Ok(json!({
        "count": sent,
        "lost": sent - counted.min(sent),
        "per_second": counted as f64 / elapsed,
        "cpu": used / sent.max(1),
    }))
}

/// Counts the use of both processes while nothing is sent.
fn idle(server: &Server, time: Duration) -> Result<Value> {
    let both = || [Held::of(std::process::id()), Held::of(server.id())];
    // Threads that still start, or spin for a moment, belong to the connection and not to the idle time.
    std::thread::sleep(Duration::from_millis(300));
    let before = both();
    std::thread::sleep(time);
    let now = both();
    // The sleep of this function is one wake-up of this process.
    let mut value = Held::both_since(now, before, time.as_secs_f64());
    value["sleeps"] = json!(value["sleeps"].as_u64().unwrap_or(0).saturating_sub(1));
    Ok(value)
}

/// Measures when a client that waits for a reply learns of the server's death. If the client gets no error within
/// four seconds, the row has no figure.
fn death(mut client: Box<dyn Client>, server: &mut Server, meeting: &Meeting) -> Result<Value> {
    // The waiting thread is the thread that connected: some libraries bind an end to its thread.
    let (tell, told) = mpsc::channel::<Instant>();
    let process = server.id();
    let directory = meeting.directory.clone();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let killed = Instant::now();
        // SAFETY: the call only sends a signal, to a child that was not waited for yet.
        unsafe { libc::kill(process as i32, libc::SIGKILL) };
        let _ = tell.send(killed);
        std::thread::sleep(DEATH);
        println!("{}", json!({ "not_noticed_within_ms": DEATH.as_millis() as u64 }));
        // The waiting thread never returns, so it cannot remove the directory.
        let _ = std::fs::remove_dir_all(directory);
        std::process::exit(0);
    });
    let heard = client.round_trip(&message(tag::SILENCE, 16), &mut Vec::new());
    let now = Instant::now();
    let killed = told.recv()?;
    server.kill()?;
    drop(killer);
    match heard {
        Ok(()) => Err("the server answered a request that it never answers".into()),
        Err(error) => Ok(json!({ "noticed": nanoseconds(now.duration_since(killed)), "as": error.to_string() })),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
