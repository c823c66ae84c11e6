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
        let client = listener.accept(Deadline::NEVER)?;
        std::thread::spawn(move || serve(&client));
    }
}
