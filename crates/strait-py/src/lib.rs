//! The native part of the Python package `strait-ipc`: connections, listeners, and the codec of objects.
//!
//! The Python sources in `python/strait` add the exceptions, the start of child processes, and waiting for several
//! objects. No lock is held here during a call of Python code.

mod buffers;
mod calls;
mod codec;
mod connection;
mod dlpack;
mod errors;
mod file;
mod handles;
mod held;
mod listener;
mod meet;
mod memory;
mod message;
mod options;
mod place;
mod region;
mod status;
mod streams;
mod sync;
mod task_objects;
mod tasks;
mod unopened;
mod waiting;
mod warm;
mod watch;

/// The module `strait._native`.
#[pyo3::pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::buffers::zeroed;
    #[pymodule_export]
    use crate::calls::{Caller, Request};
    #[pymodule_export]
    use crate::codec::{dumps, loads};
    #[pymodule_export]
    use crate::connection::Connection;
    #[pymodule_export]
    use crate::dlpack::dlpack;
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::handles::Opaque;
    #[pymodule_export]
    use crate::listener::{Invitation, Listener};
    #[pymodule_export]
    use crate::meet::{Inheritance, connect, inherit, invited, pair, parent};
    #[pymodule_export]
    use crate::memory::Memory;
    #[pymodule_export]
    use crate::message::{Message, Peer};
    #[pymodule_export]
    use crate::region::Region;
    #[pymodule_export]
    use crate::status::{Counters, Status, pool_held, pool_limit, set_limits, set_pool_limit, trim};
    #[pymodule_export]
    use crate::streams::{Consumer, DataPipe, Producer};
    #[pymodule_export]
    use crate::task_objects::{AsyncCall, AsyncCaller, AsyncConsumerEnd, AsyncProducerEnd};
    #[pymodule_export]
    use crate::tasks::{AsyncEnd, Draft, Reactor};
    #[pymodule_export]
    use crate::unopened::{pipe, unopened};
    #[pymodule_export]
    use crate::watch::Group;
}
