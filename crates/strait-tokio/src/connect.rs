//! Connecting without blocking a task.

use std::io;

use strait::Deadline;
use strait::meet::Connector;
use tokio::sync::oneshot;

use crate::{AsyncChannel, Reactor};

/// Connects to the listener named `name` in this user's name directories, as [`strait::connect`] does; `reactor`
/// watches for the events of the channel.
///
/// The deadline is kept without the runtime's timer. [`connect_channel`] has further options, such as waiting for a
/// service that is not there yet.
///
/// ```
/// use std::time::Duration;
/// use strait_tokio::{Listener, Reactor, connect};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let name = format!("tokio-connect-{}", std::process::id());
/// let reactor = Reactor::new()?;
/// let listener = Listener::bind(&name)?; // Usually in another process.
/// let connect = connect(&name, &reactor, Duration::from_secs(10));
/// let (client, server) = tokio::join!(connect, listener.accept(&reactor));
/// client?.send(b"hello").await?;
/// assert_eq!(server?.recv().await?.bytes(), b"hello");
/// # Ok(())
/// # }
/// ```
///
/// # Cost
/// A thread until the listener has accepted, or until the deadline. A program that wants many channels to one process
/// connects once, and sends ends of further channels over the first channel.
///
/// # Cancel safety
/// If the future is dropped, the connection is closed as soon as it is made. Neither the drop nor the end of the
/// runtime waits for the thread.
///
/// # Errors
/// The errors of [`strait::connect`] and of [`AsyncChannel::new`]; the error of the system if it gives no thread.
pub async fn connect(name: &str, reactor: &Reactor, deadline: impl Into<Deadline>) -> io::Result<AsyncChannel> {
    Ok(AsyncChannel::new(connect_channel(Connector::new(), name, deadline).await?, reactor)?)
}

/// Connects with the options of `connector`, as [`Connector::connect`] does, and returns a [`strait::Channel`]: for an
/// [`AsyncCallEnd`](crate::AsyncCallEnd) or a [wait set](crate::AsyncWaitSet), for a thread, or to send it on.
///
/// Example: [`connect`].
///
/// # Cost
/// A thread, as [`connect`].
///
/// # Cancel safety
/// As [`connect`].
///
/// # Errors
/// The errors of [`Connector::connect`]; the error of the system if it gives no thread.
pub async fn connect_channel(
    connector: Connector,
    name: &str,
    deadline: impl Into<Deadline>,
) -> io::Result<strait::Channel> {
    let (name, deadline) = (name.to_owned(), deadline.into());
    let (done, connected) = oneshot::channel();
    // A thread of the runtime's pool would hold up the end of the runtime until the deadline.
    std::thread::Builder::new().name("strait-connect".to_owned()).spawn(move || {
        // If no task waits any more, the channel is closed here.
        let _ = done.send(connector.connect(&name, deadline));
    })?;
    // The thread always answers, except after a panic.
    Ok(connected.await.map_err(io::Error::other)??)
}
