//! An echo service and its clients in tasks, without tokio: the runtime `smol` does all waiting. Another runtime
//! needs only a way for a task to wait until a descriptor is readable.
//!
//! ```sh
//! cargo run --release -p strait-examples --bin without-tokio
//! ```
//!
//! * One task of each process runs its [`Reactor`], whose descriptor stands for all channels of the process.
//! * The service waits until its listener is readable, and accepts without blocking.
//! * A client connects in a thread of the runtime, since a connect has no descriptor on which a task could wait.

use std::io;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smol::Async;
use strait::task::{AsyncChannel, Driver, Reactor};
use strait::{Channel, Deadline, Error, Listener};

const PROCESSES: u64 = 3;
const CLIENTS: u64 = 10;
const MESSAGES: u64 = 200;
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> io::Result<()> {
    let name = std::env::args().nth(1);
    smol::block_on(async {
        let reactor = Reactor::new()?;
        // The task ends with the program.
        smol::spawn(drive(reactor.driver())).detach();
        match name {
            Some(name) => clients(&name, &reactor).await,
            None => service(&reactor).await,
        }
    })
}

/// Wakes the tasks of ready channels, whenever there are any. Between two turns other tasks run: a client that sends
/// without end gives each turn something to do.
async fn drive(driver: Driver) -> io::Result<()> {
    let driver = Async::new(driver)?;
    loop {
        driver.readable().await?;
        while driver.get_ref().turn()? > 0 || driver.get_ref().has_more() {
            smol::future::yield_now().await;
        }
    }
}

/// Waits for the next connecting process.
async fn accept(listener: &Async<Listener>) -> io::Result<Channel> {
    loop {
        match listener.get_ref().accept(Deadline::NOW) {
            Err(failed) if failed.error == Error::WouldBlock => listener.readable().await?,
            accepted => return Ok(accepted?),
        }
    }
}

async fn connect(name: &str) -> io::Result<Channel> {
    let name = name.to_owned();
    Ok(smol::unblock(move || strait::connect(&name, LIMIT)).await?)
}

// The service.

async fn service(reactor: &Reactor) -> io::Result<()> {
    let name = format!("without-tokio-{}", std::process::id());
    let listener = Async::new(Listener::bind(&name)?)?;
    let start = |_| Command::new(std::env::current_exe()?).arg(&name).spawn();
    let processes: Vec<Child> = (0..PROCESSES).map(start).collect::<io::Result<_>>()?;

    let echoed = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..PROCESSES * CLIENTS {
        let client = AsyncChannel::new(accept(&listener).await?, reactor)?;
        tasks.push(smol::spawn(echo(client, echoed.clone())));
    }
    for task in tasks {
        task.await?;
    }
    for mut process in processes {
        let ended = smol::unblock(move || process.wait()).await?;
        assert!(ended.success(), "a client process failed: {ended}");
    }
    println!("{} messages of {} clients came back", echoed.load(Ordering::Relaxed), PROCESSES * CLIENTS);
    Ok(())
}

/// Sends each message of a client back, until the client closes its channel.
async fn echo(client: AsyncChannel, echoed: Arc<AtomicU64>) -> io::Result<()> {
    loop {
        let message = match client.recv().await {
            Err(Error::PeerClosed) => return Ok(()),
            received => received?,
        };
        client.send(message.bytes()).await.map_err(Error::from)?;
        echoed.fetch_add(1, Ordering::Relaxed);
    }
}

// The clients.

async fn clients(name: &str, reactor: &Reactor) -> io::Result<()> {
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        let service = AsyncChannel::new(connect(name).await?, reactor)?;
        tasks.push(smol::spawn(client(service, number)));
    }
    for task in tasks {
        task.await?;
    }
    Ok(())
}

async fn client(service: AsyncChannel, number: u64) -> io::Result<()> {
    for message in 0..MESSAGES {
        let sent = [number, message].map(u64::to_le_bytes).concat();
        service.send(&sent[..]).await.map_err(Error::from)?;
        assert_eq!(service.recv().await?.bytes(), sent);
    }
    Ok(())
}
