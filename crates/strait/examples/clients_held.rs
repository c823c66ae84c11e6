//! Prints what each client costs a service: descriptors and mappings. The clients are connected over a link each, and
//! have one channel with small messages.
//!
//! ```sh
//! cargo run --release -p strait --example clients_held
//! ```

use std::process::Command;
use std::time::Duration;

use strait::{Listener, connect};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const LIMIT: Duration = Duration::from_secs(60);
/// The number of connections of each client process.
const EACH: usize = 100;
const PROCESSES: usize = 3;

/// Connects, and holds the connections until the service closes them.
fn client(name: &str) -> Result<()> {
    let channels = (0..EACH).map(|_| connect(name, LIMIT)).collect::<std::result::Result<Vec<_>, _>>()?;
    for channel in &channels {
        channel.send(b"here")?;
        channel.recv_by(LIMIT)?;
    }
    let _ = channels[0].recv();
    Ok(())
}

/// Returns the numbers of open descriptors and of mappings of this process.
fn held() -> Result<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    Ok((std::fs::read_dir("/proc/self/fd")?.count(), maps.lines().count()))
}

fn main() -> Result<()> {
    if let Some(name) = std::env::args().nth(1) {
        return client(&name);
    }
    let name = format!("clients-held-{}", std::process::id());
    let listener = Listener::bind(&name)?;
    let (mut channels, mut processes) = (Vec::new(), Vec::new());
    let before = held()?;
    for _ in 0..PROCESSES {
        processes.push(Command::new(std::env::current_exe()?).arg(&name).spawn()?);
        for _ in 0..EACH {
            channels.push(listener.accept(LIMIT)?);
        }
        let begin = channels.len() - EACH;
        for channel in &channels[begin..] {
            channel.recv_by(LIMIT)?;
            channel.send(b"welcome")?;
        }
        let now = held()?;
        println!("{} clients: {} descriptors, {} mappings", channels.len(), now.0 - before.0, now.1 - before.1);
    }
    drop(channels);
    for mut process in processes {
        process.wait()?;
    }
    Ok(())
}
