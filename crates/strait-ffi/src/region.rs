//! Regions: shared memory as an object that travels in messages.

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;

use strait::{Access, Error, Region, RegionCopy, RegionMap, RegionView};

use crate::args;
use crate::status::{Failure, call, call_or, strait_status};

/// What a region lets whoever holds it do. The kernel holds them to it.
pub type strait_access = u32;

/// Read and write.
pub const STRAIT_WRITABLE_REGION: strait_access = 0;
/// Read; others may write still.
pub const STRAIT_READ_ONLY_REGION: strait_access = 1;
/// Read, and it never changes again.
pub const STRAIT_SEALED_REGION: strait_access = 2;

/// How a region is mapped.
pub type strait_map = u32;

/// For reading what others may be writing: look at each byte once, and decide on the copy.
pub const STRAIT_MAP_READ: strait_map = 0;
/// For reading and writing, as others may do at the same time.
pub const STRAIT_MAP_WRITE: strait_map = 1;
/// For reading what nobody can change: only for a region that is sealed.
pub const STRAIT_MAP_SEALED: strait_map = 2;
/// As private memory, in which pages are copied as they are written to: only for a region that is sealed.
pub const STRAIT_MAP_COPY: strait_map = 3;

/// Shared memory of a fixed size, which can be sent in messages. Any number of threads may use it at once; free it when none does any
/// more. What is mapped stays when it is freed or sent.
#[derive(Debug)]
pub struct strait_region {
    region: Region,
}

impl strait_region {
    pub(crate) fn give(region: Region) -> *mut Self {
        Box::into_raw(Box::new(Self { region }))
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

/// # Safety
/// As the C API says of a region.
unsafe fn get<'a>(region: *const strait_region) -> Result<&'a Region, Failure> {
    // SAFETY: as the caller says.
    Ok(&unsafe { args::reference(region, "region is NULL") }?.region)
}

/// Makes a region of `len` zeroes, writable. `region` gets it, and it is the caller's; `NULL` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_new(len: usize, region: *mut *mut strait_region) -> strait_status {
    call(|| {
        // SAFETY: as the C API says.
        let out = unsafe { args::out(region, ptr::null_mut(), "region is NULL") }?;
        *out = strait_region::give(Region::new(len)?);
        Ok(())
    })
}

/// Makes a region of these bytes, which are copied, and which nobody can ever change again. `region` gets it, and it is the caller's;
/// `NULL` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_sealed(
    bytes: *const c_void,
    len: usize,
    region: *mut *mut strait_region,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, bytes) =
            unsafe { (args::out(region, ptr::null_mut(), "region is NULL")?, args::bytes(bytes.cast(), len)?) };
        *out = strait_region::give(Region::sealed(bytes)?);
        Ok(())
    })
}

/// Makes a region of a memfd, with the rights that it gives. `fd` is taken if the call succeeds; otherwise it stays the caller's.
/// `region` gets it, and it is the caller's; `NULL` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_from_fd(fd: c_int, region: *mut *mut strait_region) -> strait_status {
    call(|| {
        // SAFETY: as the C API says.
        let out = unsafe { args::out(region, ptr::null_mut(), "region is NULL") }?;
        if fd < 0 {
            return Err(Failure::Strait(Error::NotARegion("it is negative, so not open")));
        }
        // SAFETY: it is given back if it is not taken.
        match Region::from_fd(unsafe { OwnedFd::from_raw_fd(fd) }) {
            Ok(region) => *out = strait_region::give(region),
            Err((error, theirs)) => {
                let _ = theirs.into_raw_fd();
                return Err(error.into());
            }
        }
        Ok(())
    })
}

/// A descriptor of its own for the memory, as other programs take it. `fd` gets it, and it is the caller's to close; -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_to_fd(region: *const strait_region, fd: *mut c_int) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, region) = unsafe { (args::out(fd, -1, "fd is NULL")?, get(region)?) };
        *out = region.to_fd()?.into_raw_fd();
        Ok(())
    })
}

/// Frees a region; the memory stays as long as anybody else has it. `NULL` is let pass.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_free(region: *mut strait_region) {
    if !region.is_null() {
        // SAFETY: it was given out by `strait_region::give`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(region) }));
    }
}

/// Another handle for the same memory, with the same rights, to send to one more process. It costs no descriptor here, and is the caller's.
/// `NULL` stays `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_duplicate(region: *const strait_region) -> *mut strait_region {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { region.as_ref() }.map_or(ptr::null_mut(), |shell| strait_region::give(shell.region.clone()))
}

/// Its size in bytes, which never changes. 0 of `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_len(region: *const strait_region) -> usize {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { region.as_ref() }.map_or(0, |shell| shell.region.len())
}

/// What may be done with it now. Others can take rights away, if they may write; nobody can give any back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_access(
    region: *const strait_region,
    access: *mut strait_access,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, region) = unsafe { (args::out(access, STRAIT_READ_ONLY_REGION, "access is NULL")?, get(region)?) };
        *out = match region.access()? {
            Access::Writable => STRAIT_WRITABLE_REGION,
            Access::ReadOnly => STRAIT_READ_ONLY_REGION,
            Access::Sealed => STRAIT_SEALED_REGION,
        };
        Ok(())
    })
}

/// Seals it: nobody, in any process, can ever change it again. Fails with `STRAIT_STILL_MAPPED` as long as it is mapped for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_seal(region: *const strait_region) -> strait_status {
    // SAFETY: as the C API says.
    call(|| Ok(unsafe { get(region) }?.seal()?))
}

/// Admits no new writer: whoever has it mapped for writing now goes on, and nobody else can ever write, in whatever process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_admit_no_writer(region: *const strait_region) -> strait_status {
    // SAFETY: as the C API says.
    call(|| Ok(unsafe { get(region) }?.admit_no_writer()?))
}

/// A handle that can only read, of a region that others go on writing. `reader` gets it, and it is the caller's; `NULL` on failure. Against
/// a process of the same user that has `/proc` only sealing helps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_reader(
    region: *const strait_region,
    reader: *mut *mut strait_region,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, region) = unsafe { (args::out(reader, ptr::null_mut(), "reader is NULL")?, get(region)?) };
        *out = strait_region::give(region.reader()?);
        Ok(())
    })
}

/// Copies `len` bytes from `offset` on to `out`, without mapping anything. Fails with `STRAIT_OUT_OF_RANGE` if there are fewer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_read(
    region: *const strait_region,
    offset: usize,
    out: *mut c_void,
    len: usize,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (region, out) = unsafe { (get(region)?, args::buffer(out.cast(), len)?) };
        Ok(region.read_at(out, offset)?)
    })
}

/// Copies `len` bytes to `offset`, without mapping anything. Fails with `STRAIT_OUT_OF_RANGE` if they do not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_write(
    region: *const strait_region,
    offset: usize,
    bytes: *const c_void,
    len: usize,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (region, bytes) = unsafe { (get(region)?, args::bytes(bytes.cast(), len)?) };
        Ok(region.write_at(bytes, offset)?)
    })
}

/// A part of a region that is mapped. It stays when the region is freed or sent.
#[derive(Debug)]
pub struct strait_mapping {
    mapped: Mapped,
}

#[derive(Debug)]
enum Mapped {
    Shared(RegionMap),
    Sealed(RegionView),
    Copy(RegionCopy),
}

/// Maps `len` bytes of a region from `offset` on; `how` is one of `STRAIT_MAP_*`.
///
/// `mapping` gets it, and it is the caller's; `NULL` on failure: `STRAIT_READ_ONLY`, `STRAIT_NOT_SEALED`, `STRAIT_OUT_OF_RANGE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_map(
    region: *const strait_region,
    how: strait_map,
    offset: usize,
    len: usize,
    mapping: *mut *mut strait_mapping,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, region) = unsafe { (args::out(mapping, ptr::null_mut(), "mapping is NULL")?, get(region)?) };
        let end = offset.checked_add(len).ok_or(Error::OutOfRange { len: region.len() })?;
        let mapped = match how {
            STRAIT_MAP_READ => Mapped::Shared(region.map(offset..end)?),
            STRAIT_MAP_WRITE => Mapped::Shared(region.map_writable(offset..end)?),
            STRAIT_MAP_SEALED => Mapped::Sealed(region.view(offset..end)?),
            STRAIT_MAP_COPY => Mapped::Copy(region.copy_on_write(offset..end)?),
            _ => return Err(Failure::Invalid("how is none of STRAIT_MAP_*")),
        };
        *out = Box::into_raw(Box::new(strait_mapping { mapped }));
        Ok(())
    })
}

/// Where the bytes are, valid until the mapping is freed; to be written to only if it was made for that. `NULL` of `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_mapping_data(mapping: *mut strait_mapping) -> *mut c_void {
    // SAFETY: `NULL`, or one of the caller's.
    match unsafe { mapping.as_mut() }.map(|mapping| &mut mapping.mapped) {
        Some(Mapped::Shared(map)) => map.as_ptr().cast(),
        Some(Mapped::Sealed(view)) => view.as_ptr().cast_mut().cast(),
        Some(Mapped::Copy(copy)) => copy.as_mut_ptr().cast(),
        None => ptr::null_mut(),
    }
}

/// Bytes that are mapped. 0 of `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_mapping_len(mapping: *const strait_mapping) -> usize {
    // SAFETY: `NULL`, or one of the caller's.
    match unsafe { mapping.as_ref() }.map(|mapping| &mapping.mapped) {
        Some(Mapped::Shared(map)) => map.len(),
        Some(Mapped::Sealed(view)) => view.len(),
        Some(Mapped::Copy(copy)) => copy.len(),
        None => 0,
    }
}

/// Takes a mapping away. `NULL` is let pass.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_mapping_free(mapping: *mut strait_mapping) {
    if !mapping.is_null() {
        // SAFETY: it came from `strait_region_map`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(mapping) }));
    }
}
