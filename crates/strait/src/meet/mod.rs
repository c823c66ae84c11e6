//! Meeting: how two processes connect, by name, by invitation, or by an inherited descriptor.
//!
//! ```
//! use std::time::Duration;
//! use strait::Listener;
//! use strait::meet::Connector;
//!
//! # let directory = std::env::temp_dir().join(format!("strait-meet-{}", std::process::id()));
//! # std::fs::create_dir(&directory)?;
//! # std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
//! let listener = Listener::builder().directory(&directory).bind("echo")?;
//! let client = std::thread::spawn({
//!     let directory = directory.clone();
//!     move || Connector::new().directory(directory).connect("echo", Duration::from_secs(10)).unwrap()
//! });
//! let server = listener.accept(Duration::from_secs(10))?;
//! client.join().unwrap().send(b"hello")?;
//! assert_eq!(server.recv()?.bytes(), b"hello");
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Name directories
//! A name is the name of a socket in a directory of the user. The directories of a user are these, in this order:
//!
//! 1. `strait` in `XDG_RUNTIME_DIR`, if that variable has an absolute path;
//! 2. `strait` in `/run/user/UID`;
//! 3. the fallback, which exists without a login session too: `/run/strait` for root, `/tmp/strait-UID` for other
//!    users.
//!
//! If `STRAIT_DIR` is set, the directory of that path is the only one, as for processes in two containers that share
//! one mounted directory.
//!
//! A listener takes its name in each of these directories, so processes find each other also if their environments
//! differ, or a login session begins or ends between their starts. A listener makes a directory if the one above it
//! exists. A connecting process looks in them in the same order, and connects to the first live listener of the
//! expected user. Both pass over a directory that belongs to another user or gives other users access, so that nobody
//! keeps a user from meeting by making a directory first; if no directory is left, the error says why.
//!
//! [`ListenerBuilder::directory`] and [`Connector::directory`] name another directory, and then no other is used. A name
//! that is an absolute path does so too: `/run/service/echo` is the name `echo` in the directory `/run/service`.
//!
//! The crate root has the short forms of a program that needs no settings: [`Listener::bind`],
//! [`connect`], [`from_parent`].

// How two processes connect: by name, by invitation, or by an inherited descriptor.
//
// A [`Listener`] listens under a name in a directory that is checked before it is used. [`connect`] connects to the
// name, and checks that the process that answers belongs to the expected user. There is no daemon, and the only file on
// disk is one socket for each name. An [`Invitation`] is a name and a one-time token for one process, which gets both
// through its standard input. A child that inherits a descriptor ([`spawn`]) needs neither a name nor a token.
//
// | module | responsible for |
// |---|---|
// | [`name`] | which names are valid, in which directory they are, and which have a listener |
// | [`acceptor`] | the pending connections, and how many there may be |
// | [`listener`] | accepting and refusing connections |
// | [`connector`] | connecting |
// | [`invitation`] | tokens, and how a process gets a token |
// | [`activation`] | listening sockets that a service manager made |
//
// A connecting process sends two packets before there is a link: a *handshake* and a *connect request*, which may hold
// a token. The listener receives them into a buffer of fixed size, without descriptors, asks the kernel which process
// sent them, and then answers *accept* or *refuse*. Only then is memory made or mapped.

mod acceptor;
mod activation;
mod connector;
mod invitation;
mod listener;
mod meet_error;
mod name;
mod spawn;

pub use crate::error::Refusal;
pub use connector::{Connector, connect};
pub use invitation::{Invitation, invited};
pub use listener::{Listener, ListenerBuilder, Refused};
pub use meet_error::MeetError;
pub use name::{Listening, names, prune};
pub use spawn::{CommandExt, Inheritance, from_parent};
