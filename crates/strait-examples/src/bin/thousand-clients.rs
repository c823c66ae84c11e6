//! A service with a thousand clients. Every client may add to the counters of the service. The service is one
//! process, with a task for each client. The clients are tasks in four other processes; each client has a channel of
//! its own.
//!
//! ```sh
//! cargo run --release -p strait-examples --bin thousand-clients
//! ```
//!
//! * Each client process connects once, by name. For each of its clients, the process makes a channel and sends the
//!   other end over that connection, so a thousand clients cost four sockets.
//! * A client makes calls; each reply goes to its call. The program checks every reply, and the counters at the end.
//! * tokio does all waiting, for channels and for everything else: here, for the ends of processes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use strait::call::CallEnd;
use strait::{Channel, Error, Handle, Outgoing};
use strait_tokio::{AsyncCallEnd, Listener, Reactor, connect};
use tokio::process::Command;
use tokio::task::JoinSet;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PROCESSES: u64 = 4;
const CLIENTS: u64 = 250;
const CALLS: u64 = 20;

/// The greatest number of counters, and the greatest number of bytes of a counter's name: the service holds no more for
/// its clients.
const COUNTERS: usize = 10_000;
const NAME: usize = 100;

/// The name of the counter shared by all clients.
const SHARED: &str = "everybody";

#[tokio::main]
async fn main() -> Result<()> {
    let reactor = Arc::new(Reactor::new()?);
    match &std::env::args().collect::<Vec<_>>()[..] {
        [_, name, process] => clients(&reactor, name, process.parse()?).await,
        _ => service(reactor).await,
    }
}

// The service.

type Counters = Mutex<HashMap<String, u64>>;

async fn service(reactor: Arc<Reactor>) -> Result<()> {
    let name = format!("thousand-clients-{}", std::process::id());
    let listener = Listener::bind(&name)?;
    let counters = Arc::<Counters>::default();
    let begin = Instant::now();
    let mut processes = JoinSet::new();
    for process in 0..PROCESSES {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args([&name, &process.to_string()]).kill_on_drop(true).spawn()?;
        processes.spawn(async move { child.wait().await });
    }
    let accepting = tokio::spawn(accept(listener, reactor, counters.clone()));
    while let Some(ended) = processes.join_next().await {
        if !ended??.success() {
            return Err("clients that were not served well".into());
        }
    }
    let took = begin.elapsed();
    accepting.await??;
    let counters = counters.lock().expect("no panic");
    let all = PROCESSES * CLIENTS;
    assert_eq!((counters[SHARED], counters.len() as u64), (all * CALLS, all + 1));
    println!("{all} clients, {} calls, every reply right, in {took:.1?}", 2 * all * CALLS);
    Ok(())
}

/// Accepts the client processes, and serves each client whose channel arrives from a client process.
async fn accept(listener: Listener, reactor: Arc<Reactor>, counters: Arc<Counters>) -> Result<()> {
    for _ in 0..PROCESSES {
        let process = listener.accept(&reactor).await?;
        let (reactor, counters) = (reactor.clone(), counters.clone());
        tokio::spawn(async move {
            for _ in 0..CLIENTS {
                let Ok(mut message) = process.recv().await else { return };
                // A message with other handles is dropped whole: closing a descriptor of a stranger may take long.
                let [Handle::Channel(_)] = message.handles() else { return };
                let handle = message.take_handle(0).ok().flatten();
                let Some(client) = handle.and_then(Handle::into_channel) else { return };
                tokio::spawn(serve(client, reactor.clone(), counters.clone()));
            }
        });
    }
    Ok(())
}

/// Serves one client until the channel is closed. For the request `name number`, the service adds the number to the
/// counter of this name, and replies with the new value. A client that reads no replies holds up only its own task.
async fn serve(client: Channel, reactor: Arc<Reactor>, counters: Arc<Counters>) -> Result<()> {
    let client = AsyncCallEnd::new(CallEnd::over(client), &reactor)?;
    while let Ok(request) = client.next_request().await {
        let (request, mut replier) = request.into_parts();
        // A request that the service cannot carry out is dropped, and the caller gets no reply.
        let Some(sum) = parse(request.bytes()).and_then(|(name, number)| add_to(&counters, name, number)) else {
            continue;
        };
        client.reply(&mut replier, &sum.to_le_bytes()).await.map_err(Error::from)?;
    }
    Ok(())
}

/// Adds a number to the counter of a name, and returns the new value. Returns `None` and changes nothing if the sum is
/// too large, or if the service has as many counters as it can have.
fn add_to(counters: &Counters, name: &str, number: u64) -> Option<u64> {
    let mut counters = counters.lock().expect("no panic");
    if let Some(counter) = counters.get_mut(name) {
        *counter = counter.checked_add(number)?;
        return Some(*counter);
    }
    if counters.len() >= COUNTERS {
        return None;
    }
    counters.insert(name.to_owned(), number);
    Some(number)
}

fn parse(request: &[u8]) -> Option<(&str, u64)> {
    let (name, number) = str::from_utf8(request).ok()?.split_once(' ')?;
    if name.len() > NAME {
        return None;
    }
    Some((name, number.parse().ok()?))
}

// The clients.

async fn clients(reactor: &Arc<Reactor>, name: &str, process: u64) -> Result<()> {
    let service = connect(name, reactor, Duration::from_secs(30)).await?;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (ours, theirs) = Channel::pair()?;
        service.send(Outgoing::new(b"").handle(theirs)).await.map_err(Error::from)?;
        let end = AsyncCallEnd::new(CallEnd::over(ours), reactor)?;
        clients.spawn(client(end, process * CLIENTS + number));
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    Ok(())
}

/// Runs one client: adds to a private counter and to the shared counter, and checks each reply.
async fn client(service: AsyncCallEnd, number: u64) -> Result<()> {
    let own = format!("client-{number}");
    let (mut own_sum, mut shared_sum) = (0, 0);
    for step in 1..=CALLS {
        // Two concurrent calls over one channel.
        let (own_now, shared_now) = tokio::try_join!(add(&service, &own, step), add(&service, SHARED, 1))?;
        own_sum += step;
        if own_now != own_sum || shared_now <= shared_sum {
            return Err(format!("client {number} was told {own_now} and {shared_now} in step {step}").into());
        }
        shared_sum = shared_now;
    }
    Ok(())
}

async fn add(service: &AsyncCallEnd, counter: &str, number: u64) -> Result<u64> {
    let reply = service.call(format!("{counter} {number}").as_str()).await?;
    Ok(u64::from_le_bytes(reply.bytes().try_into()?))
}
