//! The objects behind handles.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::abi::*;
use crate::channel::Chan;
use crate::event::EventEnd;
use crate::observer::Observer;
use crate::port::{self, PortHandle};
use crate::status::{Result, Status};
use crate::table::{Entry, Table, Taken, table};
use crate::vmo::Vmo;

/// An object, as held by one handle.
pub(crate) enum Object {
    Channel(Box<Chan>),
    Event(Arc<EventEnd>),
    Port(PortHandle),
    Vmo(Arc<Vmo>),
    Fd(Arc<Descriptor>),
}

/// A file descriptor, for any kernel object.
pub(crate) struct Descriptor {
    pub(crate) fd: OwnedFd,
    pub(crate) koid: zx_koid_t,
}

impl Object {
    /// Returns the type of the object.
    pub(crate) fn type_(&self) -> zx_obj_type_t {
        match self {
            Self::Channel(_) => ZX_OBJ_TYPE_CHANNEL,
            Self::Event(event) if event.is_pair() => ZX_OBJ_TYPE_EVENTPAIR,
            Self::Event(_) => ZX_OBJ_TYPE_EVENT,
            Self::Port(_) => ZX_OBJ_TYPE_PORT,
            Self::Vmo(_) => ZX_OBJ_TYPE_VMO,
            Self::Fd(_) => STRAIT_ZX_OBJ_TYPE_FD,
        }
    }

    /// Returns the koids of the object and of its other end; 0 if there is no other end.
    pub(crate) fn koids(&self) -> (zx_koid_t, zx_koid_t) {
        match self {
            Self::Channel(channel) => channel.koids(),
            Self::Event(event) => event.koids(),
            Self::Port(port) => (port.koid(), 0),
            Self::Vmo(vmo) => (vmo.koid(), 0),
            Self::Fd(fd) => (fd.koid, 0),
        }
    }

    /// Returns the end of a channel; `WRONG_TYPE` for other objects.
    #[inline]
    pub(crate) fn channel(&self) -> Result<&Chan> {
        match self {
            Self::Channel(channel) => Ok(channel),
            _ => Err(Status::WRONG_TYPE),
        }
    }

    /// Returns the port; `WRONG_TYPE` for other objects.
    pub(crate) fn port(&self) -> Result<&PortHandle> {
        match self {
            Self::Port(port) => Ok(port),
            _ => Err(Status::WRONG_TYPE),
        }
    }

    /// Returns the memory; `WRONG_TYPE` for other objects.
    pub(crate) fn vmo(&self) -> Result<&Arc<Vmo>> {
        match self {
            Self::Vmo(vmo) => Ok(vmo),
            _ => Err(Status::WRONG_TYPE),
        }
    }

    /// Returns the object for another handle. Fails with `ACCESS_DENIED` for an end of a channel, which has only a
    /// single handle.
    pub(crate) fn another(&self) -> Result<Self> {
        match self {
            Self::Channel(_) => Err(Status::ACCESS_DENIED),
            Self::Event(event) => Ok(Self::Event(event.clone())),
            Self::Port(port) => Ok(Self::Port(port.clone())),
            Self::Vmo(vmo) => Ok(Self::Vmo(vmo.clone())),
            Self::Fd(fd) => Ok(Self::Fd(fd.clone())),
        }
    }

    /// Returns the number of handles of the object in this process, including handles in messages of this process to
    /// itself. A call in progress in another thread may count as a further handle.
    pub(crate) fn handles(&self) -> usize {
        match self {
            Self::Channel(_) => 1,
            Self::Event(event) => Arc::strong_count(event),
            Self::Port(port) => port.handles(),
            Self::Vmo(vmo) => Arc::strong_count(vmo),
            Self::Fd(fd) => Arc::strong_count(fd),
        }
    }

    /// Returns a duplicate of the object's descriptor, for use outside of this library; `NOT_SUPPORTED` if the object
    /// is neither memory nor a file descriptor.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        let fd = match self {
            Self::Vmo(vmo) => vmo.as_fd(),
            Self::Fd(fd) => fd.fd.as_fd(),
            _ => return Err(Status::NOT_SUPPORTED),
        };
        fd.try_clone_to_owned().map_err(|_| Status::NO_RESOURCES)
    }
}

impl Entry {
    /// Returns the signals of the object. If there is an observer, and none of its signals is set, adds the observer.
    ///
    /// The caller has the entry's reading lock.
    pub(crate) fn observe(
        &self,
        handle: zx_handle_t,
        mask: zx_signals_t,
        observer: Option<Observer>,
    ) -> Result<zx_signals_t> {
        match &self.object {
            Object::Channel(channel) => channel.observe(handle, mask, observer),
            Object::Event(event) => event.observe(mask, observer),
            Object::Port(_) | Object::Vmo(_) | Object::Fd(_) => Err(crate::hub::NOT_WAITABLE),
        }
    }

    /// Removes an observer. The caller has the entry's reading lock.
    pub(crate) fn forget_observer(&self, id: u64) {
        match &self.object {
            Object::Channel(channel) => channel.forget_observer(id),
            Object::Event(event) => event.forget_observer(id),
            Object::Port(_) | Object::Vmo(_) | Object::Fd(_) => {}
        }
    }
}

/// Ends all waits and calls by a removed handle, and drops its object.
pub(crate) fn close(mut taken: Taken) {
    let handle = taken.handle();
    match &mut taken.entry().object {
        Object::Channel(channel) => channel.close(handle),
        Object::Event(event) => event.cancel(handle),
        Object::Port(_) | Object::Vmo(_) | Object::Fd(_) => {}
    }
    let related = match &taken.entry().object {
        Object::Channel(channel) => channel.koids().1,
        _ => 0,
    };
    drop(taken);
    if related != 0 {
        crate::channel::tell_peer(related);
    }
}

/// Closes a handle.
///
/// # Errors
/// `BAD_HANDLE`.
pub(crate) fn close_handle(handle: zx_handle_t) -> Result<()> {
    close(table().take(handle)?);
    Ok(())
}

/// Adds an object to the handle table, and returns its handle.
pub(crate) fn add(object: Object, rights: zx_rights_t) -> Result<zx_handle_t> {
    table().add(Entry { rights, object })
}

/// Returns the rights of a new handle with the wish `want`, made from a handle with the rights `have`.
///
/// # Errors
/// `INVALID_ARGS` if `have` lacks some of the wished rights.
pub(crate) fn reduce(have: zx_rights_t, want: zx_rights_t) -> Result<zx_rights_t> {
    match want {
        ZX_RIGHT_SAME_RIGHTS => Ok(have),
        want if want & !have != 0 => Err(Status::INVALID_ARGS),
        want => Ok(want),
    }
}

/// Makes another handle of an object.
pub(crate) fn duplicate(handle: zx_handle_t, rights: zx_rights_t) -> Result<zx_handle_t> {
    let source = table().get_kept(handle, Table::get)?;
    source.need(ZX_RIGHT_DUPLICATE)?;
    let rights = reduce(source.rights, rights)?;
    let object = source.object.another()?;
    drop(source);
    add(object, rights)
}

/// Replaces a handle by a new handle, and closes the old handle in any case.
pub(crate) fn replace(handle: zx_handle_t, rights: zx_rights_t) -> Result<zx_handle_t> {
    let mut taken = table().take(handle)?;
    let rights = match reduce(taken.entry().rights, rights) {
        Ok(rights) => rights,
        Err(error) => {
            close(taken);
            return Err(error);
        }
    };
    match &mut taken.entry().object {
        Object::Channel(channel) => channel.leave(handle),
        Object::Event(event) => event.cancel(handle),
        Object::Port(_) | Object::Vmo(_) | Object::Fd(_) => {}
    }
    let mut entry = taken.into_entry();
    entry.rights = rights;
    crate::channel::add(entry)
}

/// Returns the information of `ZX_INFO_HANDLE_BASIC` about a handle.
pub(crate) fn basic_info(handle: zx_handle_t) -> Result<zx_info_handle_basic_t> {
    let entry = table().get_kept(handle, Table::get)?;
    let (koid, related_koid) = entry.object.koids();
    Ok(zx_info_handle_basic_t {
        koid,
        rights: entry.rights,
        type_: entry.object.type_(),
        related_koid,
        ..Default::default()
    })
}

/// Returns the information of `ZX_INFO_HANDLE_COUNT` about a handle.
///
/// # Errors
/// `BAD_HANDLE`; `ACCESS_DENIED` without the right to inspect the object.
pub(crate) fn handle_count(handle: zx_handle_t) -> Result<zx_info_handle_count_t> {
    let entry = table().get_kept(handle, Table::get)?;
    entry.need(ZX_RIGHT_INSPECT)?;
    Ok(zx_info_handle_count_t { handle_count: u32::try_from(entry.object.handles()).unwrap_or(u32::MAX) })
}

/// Changes the signals of an object.
pub(crate) fn signal(handle: zx_handle_t, clear: zx_signals_t, set: zx_signals_t) -> Result<()> {
    let entry = table().get_kept(handle, Table::get_reading)?;
    entry.need(ZX_RIGHT_SIGNAL)?;
    match &entry.object {
        Object::Channel(channel) => channel.signal(handle, clear, set),
        Object::Event(event) => event.signal(clear, set),
        Object::Port(_) | Object::Vmo(_) | Object::Fd(_) => Err(Status::NOT_SUPPORTED),
    }
}

/// Changes the signals of the other end of an object.
pub(crate) fn signal_peer(handle: zx_handle_t, clear: zx_signals_t, set: zx_signals_t) -> Result<()> {
    let entry = table().get_kept(handle, Table::get)?;
    entry.need(ZX_RIGHT_SIGNAL_PEER)?;
    match &entry.object {
        Object::Channel(channel) => channel.signal_peer(clear, set),
        Object::Event(event) if event.is_pair() => {
            let event = event.clone();
            drop(entry);
            event.signal_peer(clear, set)
        }
        _ => Err(Status::NOT_SUPPORTED),
    }
}

/// Returns the port of a handle with the given rights.
pub(crate) fn port_of(handle: zx_handle_t, rights: zx_rights_t) -> Result<Arc<port::Port>> {
    let entry = table().get_kept(handle, Table::get)?;
    let port = entry.object.port()?.shared();
    entry.need(rights)?;
    Ok(port)
}
