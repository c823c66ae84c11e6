//! Mechanisms: the ways to send a message to another process, behind one small trait.
//!
//! Each module shows the best correct use of one primitive, polled or asleep, in about a page of code. All of them do
//! the same work: the sender's whole message is copied out of the sender's memory, and the receiver's whole message
//! into the receiver's memory. A *floor* is such a bare loop, without what a library has to do besides.
//!
//! To add a mechanism, implement `End` in a new module and add it to the catalogue.

mod empty;
mod end;
#[cfg(feature = "suites")]
pub(crate) mod faulty;
mod fifo;
mod flag;
mod futex;
mod hub;
mod keeper;
mod line;
mod mailbox;
mod meeting;
mod note;
mod packets;
pub(crate) mod peers;
mod pipe;
mod posix_queue;
mod process_vm;
mod rendezvous;
mod rights;
mod ring;
mod shm;
mod signal;
mod socket;
mod strait_modes;
mod strait_peer;
mod stream;
mod sysv_queue;
mod tcp;
mod uring;
mod vmsplice;

pub(crate) use self::empty::Empty;
use self::end::exactly;
pub(crate) use self::end::{End, Hub, Opened, Receiving, Sending};
#[cfg(feature = "suites")]
pub(crate) use self::faulty::Faulty;
pub(crate) use self::fifo::Fifo;
pub(crate) use self::flag::Flag;
pub(crate) use self::futex::Futex;
pub(crate) use self::keeper::{KEEPER, keep};
pub(crate) use self::line::{Line, probe};
pub(crate) use self::meeting::Named;
pub(crate) use self::packets::{Datagrams, Packets, Sequenced};
pub(crate) use self::pipe::Pipe;
pub(crate) use self::posix_queue::PosixQueue;
pub(crate) use self::process_vm::ProcessVm;
pub(crate) use self::rights::Rights;
pub(crate) use self::ring::Ring;
pub(crate) use self::shm::bell::{Eventfds, Futex as FutexBell, PosixSemaphores, Spin, SysvSemaphores};
pub(crate) use self::shm::{Shm, carrier};
pub(crate) use self::signal::{Read, Signal, Waited};
pub(crate) use self::socket::traveller;
pub(crate) use self::strait_modes::{InPlace, InSet, Sealed, Second, StraitUsed, Whole};
pub(crate) use self::strait_peer::{Strait, StraitWith, options};
pub(crate) use self::stream::Stream;
pub(crate) use self::sysv_queue::SysvQueue;
pub(crate) use self::tcp::Tcp;
pub(crate) use self::uring::Uring;
pub(crate) use self::vmsplice::Vmsplice;
pub(crate) use crate::shape::Ability;
pub(crate) use crate::work::Side;
