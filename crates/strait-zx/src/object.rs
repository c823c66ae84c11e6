//! What a handle can stand for.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::abi::*;
use crate::channel::Chan;
use crate::event::EventEnd;
use crate::observer::Observer;
use crate::port::{self, PortHandle};
use crate::status::{Result, Status};
use crate::table::{Entry, Taken, table};
use crate::vmo::Vmo;

/// An object, as one handle holds it.
pub(crate) enum Object {
    Channel(Box<Chan>),
    Event(Arc<EventEnd>),
    Port(PortHandle),
    Vmo(Arc<Vmo>),
    Fd(Arc<Descriptor>),
}

/// A file descriptor, for anything that the kernel knows.
pub(crate) struct Descriptor {
    pub(crate) fd: OwnedFd,
    pub(crate) koid: zx_koid_t,
}

impl Object {
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

    /// Its number, and that of what belongs to it: the other end.
    pub(crate) fn koids(&self) -> (zx_koid_t, zx_koid_t) {
        match self {
            Self::Channel(channel) => channel.koids(),
            Self::Event(event) => event.koids(),
            Self::Port(port) => (port.koid(), 0),
            Self::Vmo(vmo) => (vmo.koid(), 0),
            Self::Fd(fd) => (fd.koid, 0),
        }
    }

    #[inline]
    pub(crate) fn channel(&self) -> Result<&Chan> {
        match self {
            Self::Channel(channel) => Ok(channel),
            _ => Err(Status::WRONG_TYPE),
        }
    }

    pub(crate) fn port(&self) -> Result<&PortHandle> {
        match self {
            Self::Port(port) => Ok(port),
            _ => Err(Status::WRONG_TYPE),
        }
    }

    pub(crate) fn vmo(&self) -> Result<&Arc<Vmo>> {
        match self {
            Self::Vmo(vmo) => Ok(vmo),
            _ => Err(Status::WRONG_TYPE),
        }
    }

    /// The same object, for another handle; a channel's end has one handle only.
    pub(crate) fn another(&self) -> Result<Self> {
        match self {
            Self::Channel(_) => Err(Status::ACCESS_DENIED),
            Self::Event(event) => Ok(Self::Event(event.clone())),
            Self::Port(port) => Ok(Self::Port(port.clone())),
            Self::Vmo(vmo) => Ok(Self::Vmo(vmo.clone())),
            Self::Fd(fd) => Ok(Self::Fd(fd.clone())),
        }
    }

    /// How many handles of it this process has, those in messages of this process to itself included. A call of another thread
    /// that is under way may count as one more.
    pub(crate) fn handles(&self) -> usize {
        match self {
            Self::Channel(_) => 1,
            Self::Event(event) => Arc::strong_count(event),
            Self::Port(port) => port.handles(),
            Self::Vmo(vmo) => Arc::strong_count(vmo),
            Self::Fd(fd) => Arc::strong_count(fd),
        }
    }

    /// The descriptor that it is in the end, to be used outside of this library.
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
    /// The signals of its object. With an observer that waits for others, makes that wait.
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

    /// Ends a wait. The caller has the entry's reading lock.
    pub(crate) fn forget_observer(&self, id: u64) {
        match &self.object {
            Object::Channel(channel) => channel.forget_observer(id),
            Object::Event(event) => event.forget_observer(id),
            Object::Port(_) | Object::Vmo(_) | Object::Fd(_) => {}
        }
    }
}

/// Ends all that depends on a handle that was taken away, and lets go of its object.
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

/// Makes a handle of a new object.
pub(crate) fn add(object: Object, rights: zx_rights_t) -> Result<zx_handle_t> {
    table().add(Entry { rights, object })
}

/// The rights that a new handle is to have of those that there are.
///
/// # Errors
/// `INVALID_ARGS` if some of them are not there.
pub(crate) fn reduce(have: zx_rights_t, want: zx_rights_t) -> Result<zx_rights_t> {
    match want {
        ZX_RIGHT_SAME_RIGHTS => Ok(have),
        want if want & !have != 0 => Err(Status::INVALID_ARGS),
        want => Ok(want),
    }
}

/// Gives an object another handle.
pub(crate) fn duplicate(handle: zx_handle_t, rights: zx_rights_t) -> Result<zx_handle_t> {
    let source = table().get(handle)?;
    source.need(ZX_RIGHT_DUPLICATE)?;
    let rights = reduce(source.rights, rights)?;
    let object = source.object.another()?;
    drop(source);
    add(object, rights)
}

/// Gives an object another handle in place of this one, which is gone whatever comes of it.
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
    let koids = entry.object.koids();
    let is_channel = matches!(entry.object, Object::Channel(_));
    let new = table().add(entry)?;
    if is_channel {
        crate::channel::register(koids.0, new);
    }
    Ok(new)
}

/// As `zx_info_handle_basic_t`.
pub(crate) fn basic_info(handle: zx_handle_t) -> Result<zx_info_handle_basic_t> {
    let entry = table().get(handle)?;
    let (koid, related_koid) = entry.object.koids();
    Ok(zx_info_handle_basic_t {
        koid,
        rights: entry.rights,
        type_: entry.object.type_(),
        related_koid,
        ..Default::default()
    })
}

/// As `zx_info_handle_count_t`.
///
/// # Errors
/// `BAD_HANDLE`; `ACCESS_DENIED` without the right to inspect it.
pub(crate) fn handle_count(handle: zx_handle_t) -> Result<zx_info_handle_count_t> {
    let entry = table().get(handle)?;
    entry.need(ZX_RIGHT_INSPECT)?;
    Ok(zx_info_handle_count_t { handle_count: u32::try_from(entry.object.handles()).unwrap_or(u32::MAX) })
}

/// Changes an object's own signals.
pub(crate) fn signal(handle: zx_handle_t, clear: zx_signals_t, set: zx_signals_t) -> Result<()> {
    let entry = table().get_reading(handle)?;
    entry.need(ZX_RIGHT_SIGNAL)?;
    match &entry.object {
        Object::Channel(channel) => channel.signal(handle, clear, set),
        Object::Event(event) => event.signal(clear, set),
        Object::Port(_) | Object::Vmo(_) | Object::Fd(_) => Err(Status::NOT_SUPPORTED),
    }
}

/// Changes the signals of an object's other end.
pub(crate) fn signal_peer(handle: zx_handle_t, clear: zx_signals_t, set: zx_signals_t) -> Result<()> {
    let entry = table().get(handle)?;
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

/// Takes a handle's port, to wait for it.
pub(crate) fn port_of(handle: zx_handle_t, rights: zx_rights_t) -> Result<Arc<port::Port>> {
    let entry = table().get(handle)?;
    let port = entry.object.port()?.shared();
    entry.need(rights)?;
    Ok(port)
}
