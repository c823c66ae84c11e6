//! A service that a service manager starts when the first client connects, and again after the service has died.
//! Clients that connect meanwhile wait; no client is refused.
//!
//! ```sh
//! cargo install --path crates/strait-examples --bin echo-service
//! cp crates/strait-examples/systemd/strait-echo.* ~/.config/systemd/user/
//! systemctl --user enable --now strait-echo.socket
//! echo-service hello                # a client: prints what comes back
//! ```
//!
//! Without a service manager, `echo-service &` binds the name without help.

use std::time::Duration;

use strait::{Channel, Deadline, Error, Listener, connect};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const NAME: &str = "echo";

/// How long the service waits before it goes on while it lacks descriptors, memory or threads.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns the listener of the service manager; without a service manager, a listener of this process.
fn listener() -> Result<Listener> {
    match Listener::builder().activated(None) {
        Err(failed) if failed.error == Error::NotActivated => Ok(Listener::bind(NAME)?),
        made => Ok(made?),
    }
}

/// Echoes each message until the client closes the channel.
fn serve(client: &Channel) {
    while let Ok(message) = client.recv() {
        if client.send(message.bytes()).is_err() {
            return;
        }
    }
}

fn main() -> Result<()> {
    if let Some(text) = std::env::args().nth(1) {
        // The argument may be a path, for a service outside this user's name directory.
        let name = std::env::args().nth(2).unwrap_or_else(|| NAME.to_owned());
        let service = connect(&name, Duration::from_secs(60))?;
        service.send(text.as_bytes())?;
        println!("{}", String::from_utf8_lossy(service.recv()?.bytes()));
        return Ok(());
    }
    let listener = listener()?;
    loop {
        let started = match listener.accept(Deadline::NEVER) {
            Ok(client) => std::thread::Builder::new().spawn(move || serve(&client)).map(drop),
            // The process has too few descriptors, or too little memory: its clients wait meanwhile.
            Err(failed) if failed.error.is_temporary() => Err(failed.into()),
            Err(failed) => return Err(failed.into()),
        };
        // Without a thread, the channel to the client is closed, and the service goes on.
        if let Err(error) = started {
            eprintln!("a client waits, or is turned away: {error}");
            std::thread::sleep(PAUSE);
        }
    }
}
