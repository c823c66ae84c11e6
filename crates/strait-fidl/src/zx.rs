//! Messages over the channels of the crate `strait-zx`.

use std::fmt;
use std::ptr::{null, null_mut};

use strait_zx::abi::{
    ZX_CHANNEL_MAX_MSG_BYTES, ZX_CHANNEL_MAX_MSG_HANDLES, ZX_CHANNEL_WRITE_USE_IOVEC, ZX_HANDLE_INVALID,
    zx_channel_iovec_t, zx_handle_info_t, zx_handle_t, zx_info_handle_basic_t, zx_obj_type_t, zx_status_t,
};
use strait_zx::boundary::{zx_channel_read_etc, zx_channel_write, zx_handle_close, zx_object_get_info};
use strait_zx::{abi, codes};

use crate::encode::Encoded;
use crate::error::{Code, Error};
use crate::handle::RawHandle;
use crate::list::List;

/// A handle of `strait-zx`, closed on drop.
#[derive(Debug)]
pub struct ZxHandle {
    handle: zx_handle_t,
    kind: zx_obj_type_t,
}

impl ZxHandle {
    /// Takes ownership of a handle.
    ///
    /// # Errors
    /// The status of `zx_object_get_info` if the handle is invalid.
    pub fn new(handle: zx_handle_t) -> Result<Self, zx_status_t> {
        let mut info = zx_info_handle_basic_t::default();
        let size = size_of_val(&info);
        // SAFETY: the pointer leads to a local variable of this size; the other two may be null.
        let status = unsafe {
            zx_object_get_info(handle, abi::ZX_INFO_HANDLE_BASIC, (&raw mut info).cast(), size, null_mut(), null_mut())
        };
        if status == codes::ZX_OK { Ok(Self { handle, kind: info.type_ }) } else { Err(status) }
    }

    /// Returns the type of the object.
    pub fn kind(&self) -> zx_obj_type_t {
        self.kind
    }

    /// Returns the handle, which stays open and owned by `self`.
    pub fn handle(&self) -> zx_handle_t {
        self.handle
    }

    /// Returns the handle, to be closed by the caller.
    pub fn into_handle(mut self) -> zx_handle_t {
        std::mem::replace(&mut self.handle, ZX_HANDLE_INVALID)
    }
}

impl Drop for ZxHandle {
    fn drop(&mut self) {
        if self.handle != ZX_HANDLE_INVALID {
            zx_handle_close(self.handle);
        }
    }
}

impl From<ZxHandle> for RawHandle {
    fn from(handle: ZxHandle) -> Self {
        Self::Zx(handle)
    }
}

/// The reason why an encoded value was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// A handle of the value cannot be written: the value has it twice, or it is none of `strait-zx`. The handles are
    /// in the value again.
    Handles(Error),
    /// The status of `zx_channel_write`. After `ZX_ERR_SHOULD_WAIT` the handles are in the value again; after any
    /// other, the call has closed them.
    Status(zx_status_t),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handles(error) => write!(f, "a handle of the value cannot be written: {}", error.code()),
            Self::Status(status) => write!(f, "zx_channel_write returned the status {status}"),
        }
    }
}

impl std::error::Error for WriteError {}

/// The number of regions without allocation.
const REGIONS: usize = 16;

impl Encoded<'_> {
    /// Writes the message to a channel of `strait-zx`, with `ZX_CHANNEL_WRITE_USE_IOVEC` if it has several parts. Never
    /// blocks.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn write(&self, channel: zx_handle_t) -> Result<(), WriteError> {
        const NOTHING: zx_channel_iovec_t = zx_channel_iovec_t { buffer: null(), capacity: 0, reserved: 0 };
        let mut regions = List::<_, REGIONS>::new(NOTHING);
        for part in self.parts() {
            let capacity = u32::try_from(part.len()).map_err(|_| WriteError::Status(codes::ZX_ERR_OUT_OF_RANGE))?;
            regions.push(zx_channel_iovec_t { buffer: part.as_ptr().cast(), capacity, reserved: 0 });
        }
        let handles = self.take_zx().map_err(WriteError::Handles)?;
        let raw: Vec<zx_handle_t> = handles.iter().map(ZxHandle::handle).collect();
        let (options, bytes, count) = match regions.as_slice() {
            [one] => (0, one.buffer, one.capacity),
            all => (ZX_CHANNEL_WRITE_USE_IOVEC, all.as_ptr().cast(), all.len() as u32),
        };
        let raw_handles = if raw.is_empty() { null() } else { raw.as_ptr() };
        // SAFETY: the bytes are a part of the message or an array of such parts, with this length; the handles are an
        // array with this length.
        let status = unsafe { zx_channel_write(channel, options, bytes, count, raw_handles, raw.len() as u32) };
        match status {
            codes::ZX_ERR_SHOULD_WAIT => self.put_back(handles.into_iter().map(RawHandle::Zx)),
            _ => handles.into_iter().for_each(|handle| _ = handle.into_handle()),
        }
        if status == codes::ZX_OK { Ok(()) } else { Err(WriteError::Status(status)) }
    }

    /// Takes all handles out of the value, if all are of `strait-zx`.
    fn take_zx(&self) -> Result<Vec<ZxHandle>, Error> {
        let mut handles = Vec::with_capacity(self.handle_count());
        let mut rest = self.take_handles()?.into_iter();
        while let Some(handle) = rest.next() {
            match handle.into_zx() {
                Ok(handle) => handles.push(handle),
                Err(other) => {
                    self.put_back(handles.into_iter().map(RawHandle::Zx).chain([other]).chain(rest));
                    return Err(Error::new(Code::IncorrectHandleType, 0));
                }
            }
        }
        Ok(handles)
    }
}

/// A message read from a channel of `strait-zx`.
#[derive(Debug, Default)]
pub struct ZxMessage {
    /// Room for the longest message.
    room: Vec<u8>,
    len: usize,
    handles: Vec<RawHandle>,
}

impl ZxMessage {
    /// Creates an empty message, for [`ZxMessage::read`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a message from a channel into this object, in place of the previous message, and reuses the memory. Never
    /// blocks.
    ///
    /// # Errors
    /// The status of `zx_channel_read_etc`, for example `ZX_ERR_SHOULD_WAIT`. The message is then empty.
    pub fn read(&mut self, channel: zx_handle_t) -> Result<(), zx_status_t> {
        self.room.resize(ZX_CHANNEL_MAX_MSG_BYTES as usize, 0);
        self.len = 0;
        self.handles.clear();
        let mut infos = [zx_handle_info_t::default(); ZX_CHANNEL_MAX_MSG_HANDLES as usize];
        let mut actual = (0, 0);
        // SAFETY: the pointers lead to memory of these lengths, and to local variables.
        let status = unsafe {
            zx_channel_read_etc(
                channel,
                0,
                self.room.as_mut_ptr().cast(),
                infos.as_mut_ptr(),
                ZX_CHANNEL_MAX_MSG_BYTES,
                ZX_CHANNEL_MAX_MSG_HANDLES,
                &mut actual.0,
                &mut actual.1,
            )
        };
        if status != codes::ZX_OK {
            return Err(status);
        }
        self.len = actual.0 as usize;
        let handles = infos.iter().take(actual.1 as usize);
        self.handles.extend(handles.map(|info| RawHandle::Zx(ZxHandle { handle: info.handle, kind: info.type_ })));
        Ok(())
    }

    /// Returns the bytes of the message.
    pub fn bytes(&self) -> &[u8] {
        &self.room[..self.len]
    }

    /// Takes the handles out of the message.
    pub fn take_handles(&mut self) -> Vec<RawHandle> {
        std::mem::take(&mut self.handles)
    }
}
