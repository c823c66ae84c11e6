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
//! A name is the name of a socket in a directory of the user. A user has these directories, in this order:
//!
//! 1. `strait` in `XDG_RUNTIME_DIR`, if that variable has an absolute path;
//! 2. `strait` in `/run/user/UID`;
//! 3. the fallback, which exists without a login session too: `/run/strait` for root, `/tmp/strait-UID` for other
//!    users.
//!
//! If `STRAIT_DIR` is set, the directory of that path is the only one, as for processes in two containers that share
//! one mounted directory.
//!
//! A listener takes its name in each of the user's name directories. So processes find each other even if their
//! environments differ, or a login session begins or ends between their starts. A listener makes a missing name
//! directory if the directory above it exists. A connecting process looks in the name directories in the same order,
//! and connects to the first live listener of the expected user. Both pass over a directory that belongs to another
//! user or gives other users access: another user cannot keep processes from meeting by making a directory first. If no
//! directory is left, the error says why.
//!
//! [`ListenerBuilder::directory`] and [`Connector::directory`] set another directory, and then no other is used. An
//! absolute path as the name does so too: `/run/service/echo` is the name `echo` in the directory `/run/service`.
//!
//! The crate root has the short forms for a program without special settings: [`Listener::bind`], [`connect`],
//! [`from_parent`].

// How two processes connect: by name, by invitation, or by an inherited descriptor.
//
// A [`Listener`] listens under a name in a directory that is checked before use. [`connect`] connects to the name, and
// checks that the answering process belongs to the expected user. There is no daemon. The only lasting files on disk
// are one socket for each name in each name directory, and these directories. An [`Invitation`] is a name and a
// one-time token for one process; the process gets both through its standard input. A child that inherits a descriptor
// ([`spawn`]) needs neither a name nor a token.
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
// a token. The listener receives the two packets into a buffer of fixed size, without descriptors, asks the kernel
// which process sent them, and then answers *accept* or *refuse*. Memory is made or mapped only after *accept*.

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
