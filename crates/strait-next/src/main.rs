//! A program of another build, with another protocol version than the programs of this workspace.
//!
//! ```text
//! speaks-next over               makes a channel from the socket at standard input
//! speaks-next listen DIRECTORY   listens, and answers the first message of the first accepted process
//! speaks-next connect DIRECTORY  connects, sends a message, and prints the answer
//! ```
//!
//! Prints the error of each refused call, in one line.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use strait_next::meet::Connector;
use strait_next::{Channel, Error, Listener};

const LONG: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A channel whose two ends are of this build always works.
    let (one, other) = Channel::pair()?;
    one.send(b"to myself")?;
    assert_eq!(other.recv_by(LONG)?.bytes(), b"to myself");

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["over"] => over()?,
        ["listen", directory] => listen(Path::new(directory))?,
        ["connect", directory] => connect(Path::new(directory))?,
        _ => return Err("over, listen DIRECTORY or connect DIRECTORY".into()),
    }
    Ok(())
}

fn over() -> Result<(), Box<dyn std::error::Error>> {
    let channel = Channel::over(std::io::stdin().as_fd().try_clone_to_owned()?)?;
    match channel.recv_by(LONG) {
        Ok(message) => println!("{}", String::from_utf8_lossy(message.bytes())),
        Err(error) => println!("{error:?}"),
    }
    Ok(())
}

fn listen(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let builder = Listener::builder().directory(directory);
    let listener = builder.on_refused(|refused| println!("{:?}", refused.why)).bind("service")?;
    println!("listening");
    let channel = listener.accept(LONG)?;
    channel.send(channel.recv_by(LONG)?.bytes())?;
    // The answer can be received after the process has ended.
    Ok(())
}

fn connect(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    match Connector::new().directory(directory).connect("service", LONG) {
        Ok(channel) => {
            channel.send(b"of the next build")?;
            println!("{}", String::from_utf8_lossy(channel.recv_by(LONG)?.bytes()));
        }
        Err(failed) => println!("{:?}", Error::from(failed)),
    }
    Ok(())
}
