//! How two processes meet: by name, by invitation, or by a descriptor that one inherits.
//!
//! A [`Listener`] listens under a name in a directory that is looked at before it is used; [`connect`] goes there and makes
//! sure that whoever answers is who it expects. There is no daemon, and nothing is on disk but one socket for each name.
//! An [`Invitation`] is a name and a token that is good for one process once, told over its standard input. A child that
//! inherits a descriptor ([`spawn`]) needs neither.
//!
//! | module | what it knows |
//! |---|---|
//! | [`name`] | which names there can be, where they are, and who listens |
//! | [`acceptor`] | those that sent a connect request and were not let in yet, and for how much of this process they are good |
//! | [`listener`] | letting them in |
//! | [`connector`] | knocking |
//! | [`invitation`] | tokens, and how a process is told of one |
//! | [`activation`] | listeners that a service manager made |
//!
//! Whoever connects says two things before there is a link: a *handshake* and a *connect*, which may hold a token. The listener
//! receives them into a buffer of fixed size, without descriptors, asks the kernel who sent them, and then answers *accept*
//! or *refuse*. Only then is memory made or mapped.

mod acceptor;
mod activation;
mod connector;
mod invitation;
mod listener;
mod name;
mod spawn;

pub use connector::{Connector, connect};
pub use invitation::{Invitation, invited};
pub use listener::{Listener, ListenerBuilder, Refused};
pub use name::{Listening, names};
pub use spawn::{CommandExt, from_parent};
