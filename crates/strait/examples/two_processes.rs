//! Two processes use each kind of object once: a quick check of a new platform.
//!
//! ```sh
//! cargo run -p strait --example two_processes
//! STRAIT_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" ...    # starts the second process by this command
//! ```
//!
//! Each step prints a line. The exit code is not 0 if a step fails.

use std::io::{Read, Seek, SeekFrom, Write};
use std::process::Command;
use std::time::Duration;

use strait::pipe::DataPipe;
use strait::region::Region;
use strait::{Channel, CommandExt, Error, Handle, Listener, Outgoing, connect};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The limit of each wait. An emulated processor is slow.
const LIMIT: Duration = Duration::from_secs(60);

/// The size of a message that does not fit into a ring.
const LARGE: usize = 3 << 20;

/// Sends back everything that arrives. Ends when the other end is closed, or at the message `die`.
fn echo(channel: &Channel) -> Result<()> {
    loop {
        match channel.recv_by(LIMIT) {
            Ok(message) if message.bytes() == b"die" => std::process::abort(),
            Ok(mut message) => {
                let handles = message.take_handles()?;
                channel.send_by(Outgoing::new(message.bytes()).handles(handles), LIMIT)?;
            }
            Err(Error::PeerClosed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends one handle to the other process, and returns what comes back.
fn there_and_back(channel: &Channel, handle: impl Into<Handle>) -> Result<Handle> {
    channel.send_by(Outgoing::new(b"a handle").handle(handle), LIMIT)?;
    Ok(channel.recv_by(LIMIT)?.take_handles()?.pop().ok_or("no handle came back")?)
}

/// Uses a channel whose other process runs [`echo`].
fn use_all(channel: &Channel) -> Result<()> {
    for number in 0..1000_u32 {
        channel.send_by(&number.to_le_bytes(), LIMIT)?;
        assert_eq!(channel.recv_by(LIMIT)?.bytes(), number.to_le_bytes());
    }
    println!("small messages: 1000 round trips");

    let large: Vec<u8> = (0..LARGE).map(|index| (index * 31) as u8).collect();
    channel.send_by(&large, LIMIT)?;
    assert!(channel.recv_by(LIMIT)?.bytes() == large);
    println!("a large message: {LARGE} bytes");

    let mut file = scratch()?;
    file.write_all(b"written here")?;
    let mut file = std::fs::File::from(there_and_back(channel, file)?.into_fd().ok_or("not a descriptor")?);
    let mut text = String::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_string(&mut text)?;
    assert_eq!(text, "written here");
    println!("a descriptor: the file has its content");

    let region = Region::sealed(b"sealed")?;
    let region = there_and_back(channel, region)?.into_region().ok_or("not a region")?;
    assert_eq!(&region.view(..)?[..], b"sealed");
    println!("a region: sealed memory is read in place");

    let (ours, theirs) = Channel::pair()?;
    ours.send(b"unread")?;
    let theirs = there_and_back(channel, theirs)?.into_channel().ok_or("not an end")?;
    assert_eq!(theirs.recv_by(LIMIT)?.bytes(), b"unread");
    theirs.send(b"and back")?;
    assert_eq!(ours.recv_by(LIMIT)?.bytes(), b"and back");
    println!("an end: moved twice, with its unread message");

    let (producer, consumer) = DataPipe::pair(1 << 16)?;
    let consumer = there_and_back(channel, consumer)?.into_consumer().ok_or("not a consumer")?;
    producer.write_whole(b"a stream", LIMIT)?;
    let mut bytes = [0; 8];
    consumer.read_whole(&mut bytes, LIMIT)?;
    assert_eq!(&bytes, b"a stream");
    println!("a data pipe: its bytes arrive");
    Ok(())
}

/// Makes a file without a name.
fn scratch() -> std::io::Result<std::fs::File> {
    let path = std::env::temp_dir().join(format!("strait-two-processes-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// Returns a command that starts this program again, by the command in `STRAIT_RUNNER` if that is set.
fn again(arguments: &[&str]) -> Result<Command> {
    let program = std::env::current_exe()?;
    let runner = std::env::var("STRAIT_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let mut command = match words.next() {
        Some(first) => {
            let mut command = Command::new(first);
            command.args(words).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args(arguments);
    Ok(command)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["child"] => return echo(&strait::from_parent()?),
        ["client", name] => return echo(&connect(name, LIMIT)?),
        _ => {}
    }

    let (mut child, channel) = again(&["child"])?.spawn_with_channel()?;
    use_all(&channel)?;
    channel.send(b"the last message")?;
    channel.send(b"die")?;
    assert_eq!(channel.recv_by(LIMIT)?.bytes(), b"the last message");
    assert!(matches!(channel.recv_by(LIMIT), Err(Error::PeerClosed)));
    child.wait()?;
    println!("the death of the other process: seen after its last message");

    let name = format!("two-processes-{}", std::process::id());
    let listener = Listener::bind(&name)?;
    let mut client = again(&["client", &name])?.spawn()?;
    let channel = listener.accept(LIMIT)?;
    channel.send(b"by name")?;
    assert_eq!(channel.recv_by(LIMIT)?.bytes(), b"by name");
    drop(channel);
    assert!(client.wait()?.success());
    println!("a name: a client connected");
    println!("All works between two processes.");
    Ok(())
}
