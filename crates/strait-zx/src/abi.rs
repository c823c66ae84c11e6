//! The types and constants of the C interface, laid out as in `include/zircon/`.
//!
//! Types and constants have the names of the C headers, so that code written for those headers looks the same in Rust.

#![allow(non_camel_case_types, missing_docs)]

use std::ffi::c_void;

pub type zx_handle_t = u32;
pub type zx_status_t = i32;
pub type zx_koid_t = u64;
pub type zx_time_t = i64;
pub type zx_instant_mono_t = i64;
pub type zx_duration_t = i64;
pub type zx_signals_t = u32;
pub type zx_rights_t = u32;
pub type zx_obj_type_t = u32;
pub type zx_txid_t = u32;

pub const ZX_HANDLE_INVALID: zx_handle_t = 0;
/// The bits that are set in every valid handle.
pub const ZX_HANDLE_FIXED_BITS_MASK: zx_handle_t = 3;
pub const ZX_TIME_INFINITE: zx_time_t = i64::MAX;
pub const ZX_TIME_INFINITE_PAST: zx_time_t = i64::MIN;

pub const ZX_CHANNEL_READ_MAY_DISCARD: u32 = 1;
pub const ZX_CHANNEL_WRITE_USE_IOVEC: u32 = 2;
pub const ZX_CHANNEL_MAX_MSG_BYTES: u32 = 65536;
pub const ZX_CHANNEL_MAX_MSG_HANDLES: u32 = 64;
pub const ZX_CHANNEL_MAX_MSG_IOVECS: u32 = 8192;

pub const ZX_HANDLE_OP_MOVE: u32 = 0;
pub const ZX_HANDLE_OP_DUPLICATE: u32 = 1;
pub const ZX_WAIT_MANY_MAX_ITEMS: usize = 64;

pub const ZX_WAIT_ASYNC_ONCE: u32 = 0;
pub const ZX_WAIT_ASYNC_TIMESTAMP: u32 = 1;
pub const ZX_WAIT_ASYNC_EDGE: u32 = 2;
pub const ZX_WAIT_ASYNC_BOOT_TIMESTAMP: u32 = 4;
pub const ZX_PORT_BIND_TO_INTERRUPT: u32 = 1;
pub const ZX_PKT_TYPE_USER: u32 = 0;
pub const ZX_PKT_TYPE_SIGNAL_ONE: u32 = 1;
pub const ZX_VMO_RESIZABLE: u32 = 1 << 1;
pub const ZX_INFO_HANDLE_VALID: u32 = 1;
pub const ZX_INFO_HANDLE_BASIC: u32 = 2 | (1 << 28);
pub const ZX_INFO_HANDLE_COUNT: u32 = 19;

pub const ZX_OBJ_TYPE_NONE: zx_obj_type_t = 0;
pub const ZX_OBJ_TYPE_VMO: zx_obj_type_t = 3;
pub const ZX_OBJ_TYPE_CHANNEL: zx_obj_type_t = 4;
pub const ZX_OBJ_TYPE_EVENT: zx_obj_type_t = 5;
pub const ZX_OBJ_TYPE_PORT: zx_obj_type_t = 6;
pub const ZX_OBJ_TYPE_EVENTPAIR: zx_obj_type_t = 16;
/// The type of a handle for a file descriptor, unknown to Zircon: the last number that Zircon reserves for types.
pub const STRAIT_ZX_OBJ_TYPE_FD: zx_obj_type_t = 63;

pub const ZX_SIGNAL_NONE: zx_signals_t = 0;
pub const ZX_CHANNEL_READABLE: zx_signals_t = 1 << 0;
pub const ZX_CHANNEL_WRITABLE: zx_signals_t = 1 << 1;
pub const ZX_CHANNEL_PEER_CLOSED: zx_signals_t = 1 << 2;
pub const ZX_EVENTPAIR_PEER_CLOSED: zx_signals_t = 1 << 2;
pub const ZX_EVENT_SIGNALED: zx_signals_t = 1 << 3;
pub const ZX_EVENTPAIR_SIGNALED: zx_signals_t = 1 << 3;
pub const ZX_SIGNAL_HANDLE_CLOSED: zx_signals_t = 1 << 23;
pub const ZX_USER_SIGNAL_0: zx_signals_t = 1 << 24;
pub const ZX_USER_SIGNAL_7: zx_signals_t = 1 << 31;
pub const ZX_USER_SIGNAL_ALL: zx_signals_t = 0xff00_0000;

pub const ZX_RIGHT_NONE: zx_rights_t = 0;
pub const ZX_RIGHT_DUPLICATE: zx_rights_t = 1 << 0;
pub const ZX_RIGHT_TRANSFER: zx_rights_t = 1 << 1;
pub const ZX_RIGHT_READ: zx_rights_t = 1 << 2;
pub const ZX_RIGHT_WRITE: zx_rights_t = 1 << 3;
pub const ZX_RIGHT_MAP: zx_rights_t = 1 << 5;
pub const ZX_RIGHT_GET_PROPERTY: zx_rights_t = 1 << 6;
pub const ZX_RIGHT_SET_PROPERTY: zx_rights_t = 1 << 7;
pub const ZX_RIGHT_SIGNAL: zx_rights_t = 1 << 12;
pub const ZX_RIGHT_SIGNAL_PEER: zx_rights_t = 1 << 13;
pub const ZX_RIGHT_WAIT: zx_rights_t = 1 << 14;
pub const ZX_RIGHT_INSPECT: zx_rights_t = 1 << 15;
pub const ZX_RIGHT_RESIZE: zx_rights_t = 1 << 22;
pub const ZX_RIGHT_SAME_RIGHTS: zx_rights_t = 1 << 31;

pub const ZX_RIGHTS_BASIC: zx_rights_t = ZX_RIGHT_TRANSFER | ZX_RIGHT_DUPLICATE | ZX_RIGHT_WAIT | ZX_RIGHT_INSPECT;
pub const ZX_RIGHTS_IO: zx_rights_t = ZX_RIGHT_READ | ZX_RIGHT_WRITE;
pub const ZX_DEFAULT_CHANNEL_RIGHTS: zx_rights_t =
    (ZX_RIGHTS_BASIC & !ZX_RIGHT_DUPLICATE) | ZX_RIGHTS_IO | ZX_RIGHT_SIGNAL | ZX_RIGHT_SIGNAL_PEER;
pub const ZX_DEFAULT_EVENT_RIGHTS: zx_rights_t = ZX_RIGHTS_BASIC | ZX_RIGHT_SIGNAL;
pub const ZX_DEFAULT_EVENTPAIR_RIGHTS: zx_rights_t = ZX_DEFAULT_EVENT_RIGHTS | ZX_RIGHT_SIGNAL_PEER;
pub const ZX_DEFAULT_PORT_RIGHTS: zx_rights_t = (ZX_RIGHTS_BASIC & !ZX_RIGHT_WAIT) | ZX_RIGHTS_IO;
pub const ZX_DEFAULT_VMO_RIGHTS: zx_rights_t =
    ZX_RIGHTS_BASIC | ZX_RIGHTS_IO | ZX_RIGHT_MAP | ZX_RIGHT_GET_PROPERTY | ZX_RIGHT_SET_PROPERTY | ZX_RIGHT_SIGNAL;
/// The rights of a new handle of a file descriptor. There is no right to wait, since a descriptor cannot be waited for.
pub const STRAIT_ZX_DEFAULT_FD_RIGHTS: zx_rights_t = (ZX_RIGHTS_BASIC & !ZX_RIGHT_WAIT) | ZX_RIGHTS_IO;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct zx_channel_iovec_t {
    pub buffer: *const c_void,
    pub capacity: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct zx_handle_disposition_t {
    pub operation: u32,
    pub handle: zx_handle_t,
    pub type_: zx_obj_type_t,
    pub rights: zx_rights_t,
    pub result: zx_status_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct zx_handle_info_t {
    pub handle: zx_handle_t,
    pub type_: zx_obj_type_t,
    pub rights: zx_rights_t,
    pub unused: u32,
}

/// The arguments of `zx_channel_call`, where `W` and `R` are `zx_handle_t`, and of `zx_channel_call_etc`, where `W` is
/// a disposition and `R` is an info.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CallArgs<W, R> {
    pub wr_bytes: *const c_void,
    pub wr_handles: *mut W,
    pub rd_bytes: *mut c_void,
    pub rd_handles: *mut R,
    pub wr_num_bytes: u32,
    pub wr_num_handles: u32,
    pub rd_num_bytes: u32,
    pub rd_num_handles: u32,
}

pub type zx_channel_call_args_t = CallArgs<zx_handle_t, zx_handle_t>;
pub type zx_channel_call_etc_args_t = CallArgs<zx_handle_disposition_t, zx_handle_info_t>;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct zx_wait_item_t {
    pub handle: zx_handle_t,
    pub waitfor: zx_signals_t,
    pub pending: zx_signals_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct zx_packet_signal_t {
    pub trigger: zx_signals_t,
    pub observed: zx_signals_t,
    pub count: u64,
    pub timestamp: zx_time_t,
    pub reserved1: u64,
}

/// A packet of a port. Its union of 32 bytes is given as the longest member.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct zx_port_packet_t {
    pub key: u64,
    pub type_: u32,
    pub status: zx_status_t,
    pub signal: zx_packet_signal_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct zx_info_handle_basic_t {
    pub koid: zx_koid_t,
    pub rights: zx_rights_t,
    pub type_: zx_obj_type_t,
    pub related_koid: zx_koid_t,
    pub reserved: u32,
    pub padding1: [u8; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct zx_info_handle_count_t {
    pub handle_count: u32,
}

const _: () = {
    assert!(size_of::<zx_channel_iovec_t>() == 16);
    assert!(size_of::<zx_handle_disposition_t>() == 20);
    assert!(size_of::<zx_handle_info_t>() == 16);
    assert!(size_of::<zx_channel_call_args_t>() == 48);
    assert!(size_of::<zx_wait_item_t>() == 12);
    assert!(size_of::<zx_port_packet_t>() == 48);
    assert!(size_of::<zx_info_handle_basic_t>() == 32);
    assert!(size_of::<zx_info_handle_count_t>() == 4);
};
