//! Regions: shared memory as an object for messages.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;

use strait::Error;
use strait::region::{Access, Region, RegionCopy, RegionMap, RegionOptions, RegionView, RegionWriter};

use crate::args;
use crate::status::{Failure, call, call_or, strait_status};

/// The access allowed to the holder of a region, enforced by the kernel.
pub type strait_access = u32;

/// The holder can read and write the region.
pub const STRAIT_WRITABLE_REGION: strait_access = 0;
/// The holder can read the region; other processes may still write to the region.
pub const STRAIT_READ_ONLY_REGION: strait_access = 1;
/// The holder can read the region, and no process can change it any more.
pub const STRAIT_SEALED_REGION: strait_access = 2;

/// The way of mapping a region.
pub type strait_map = u32;

/// Map for reading memory that others may be writing: read each byte once, and decide on the copy.
pub const STRAIT_MAP_READ: strait_map = 0;
/// Map for reading and writing; others may read and write at the same time.
pub const STRAIT_MAP_WRITE: strait_map = 1;
/// Map for reading memory that no process can change: only for a sealed region.
pub const STRAIT_MAP_SEALED: strait_map = 2;
/// Map as private memory, with a copy of each page at the first write: only for a sealed region.
pub const STRAIT_MAP_COPY: strait_map = 3;

/// Shared memory of a fixed size, which can be sent in messages. Any number of threads may use a region at once. Free
/// it when no thread uses it any more. Mappings stay when the region is freed or sent.
#[derive(Debug)]
pub struct strait_region {
    region: Region,
}

impl strait_region {
    /// Returns a region object owned by C code.
    pub(crate) fn give(region: Region) -> *mut Self {
        Box::into_raw(Box::new(Self { region }))
    }

    /// Returns the region of the Rust library.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

/// Returns the region at a pointer from C code.
///
/// # Errors
/// [`Failure::Invalid`] if `region` is `NULL`.
///
/// # Safety
/// `region` is `NULL`, or a region of the caller's that stays during the function call.
unsafe fn get<'a>(region: *const strait_region) -> Result<&'a Region, Failure> {
    // SAFETY: the caller's promise.
    Ok(&unsafe { args::reference(region, "region is NULL") }?.region)
}

/// Makes a writable region of `len` zero bytes. `region` receives the region, which the caller owns, or `NULL` on
/// failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_new(len: usize, region: *mut *mut strait_region) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointer to be valid.
        let out = unsafe { args::out(region, ptr::null_mut(), "region is NULL") }?;
        *out = strait_region::give(Region::new(len)?);
        Ok(())
    })
}

/// Options of a region. Zero means the default of each option.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_region_options {
    /// The name of the region for debugging, which `/proc/*/maps` shows: at most 249 bytes of UTF-8. `NULL` for the
    /// default name. Copied.
    pub name: *const c_char,
    /// 1 to ask the kernel for huge pages when this process maps the region; otherwise 0. Whether shared memory can
    /// have huge pages depends on `/sys/kernel/mm/transparent_hugepage/shmem_enabled`.
    pub huge_pages: u32,
    /// Reserved; must be zero.
    pub reserved_flags: u32,
    /// Reserved; must be zero.
    pub reserved: [u64; 3],
}

/// Converts the options of C code.
///
/// # Safety
/// `given` is `NULL`, or points to options whose name is `NULL` or a text with a zero at the end.
unsafe fn options(given: *const strait_region_options) -> Result<RegionOptions, Failure> {
    let mut options = RegionOptions::new();
    // SAFETY: the caller's promise.
    let Some(given) = (unsafe { given.as_ref() }) else { return Ok(options) };
    if (given.reserved_flags, given.reserved) != (0, [0; 3]) || given.huge_pages > 1 {
        return Err(Failure::Invalid(
            "strait_region_options: reserved fields must be 0, flags 0 or 1: zero the struct first",
        ));
    }
    // SAFETY: the caller's promise.
    if let Some(name) = unsafe { args::text(given.name) } {
        let name = name.to_str().map_err(|_| Failure::Invalid("strait_region_options: the name is not UTF-8"))?;
        options = options.name(name);
    }
    Ok(options.huge_pages(given.huge_pages == 1))
}

/// Makes a writable region of `len` zero bytes with `options`, which may be `NULL`. `region` receives the region, or
/// `NULL` on failure; the caller owns the region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_create(
    options: *const strait_region_options,
    len: usize,
    region: *mut *mut strait_region,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, options) =
            unsafe { (args::out(region, ptr::null_mut(), "region is NULL")?, self::options(options)?) };
        *out = strait_region::give(options.create(len)?);
        Ok(())
    })
}

/// Makes a sealed region with a copy of `len` bytes. No process can ever change it. `region` receives the region, which
/// the caller owns, or `NULL` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_sealed(
    bytes: *const c_void,
    len: usize,
    region: *mut *mut strait_region,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, bytes) =
            unsafe { (args::out(region, ptr::null_mut(), "region is NULL")?, args::bytes(bytes.cast(), len)?) };
        *out = strait_region::give(Region::sealed(bytes)?);
        Ok(())
    })
}

/// Makes a region from a memfd, with the access that the descriptor allows. If the function succeeds, the region owns
/// `fd`; otherwise the caller still does. `region` receives the region, which the caller owns, or `NULL` on failure.
/// Fails with `STRAIT_WOULD_BLOCK` if the size is not sealed yet, and another process blocks the sealing for a second.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_from_fd(fd: c_int, region: *mut *mut strait_region) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointer to be valid.
        let out = unsafe { args::out(region, ptr::null_mut(), "region is NULL") }?;
        if fd < 0 {
            return Err(Failure::Strait(Error::NotARegion("it is negative, so not open")));
        }
        // SAFETY: the descriptor is given back below if the region does not take it.
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

/// Makes a new descriptor for the memory of a region, for other programs. `fd` receives the descriptor, which the
/// caller has to close, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_to_fd(region: *const strait_region, fd: *mut c_int) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, region) = unsafe { (args::out(fd, -1, "fd is NULL")?, get(region)?) };
        *out = region.to_fd()?.into_raw_fd();
        Ok(())
    })
}

/// Frees a region object. The memory stays until every process has freed it. Ignores `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_free(region: *mut strait_region) {
    if !region.is_null() {
        // SAFETY: `strait_region::give` made the object, and the caller gives the object up.
        call_or((), || drop(unsafe { Box::from_raw(region) }));
    }
}

/// Returns another region object for the same memory, with the same access, which can be sent to one more process. The
/// new object costs no descriptor in this process. The caller owns the new object. Returns `NULL` for `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_duplicate(region: *const strait_region) -> *mut strait_region {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    unsafe { region.as_ref() }.map_or(ptr::null_mut(), |shell| strait_region::give(shell.region.clone()))
}

/// Returns the size of a region in bytes, which never changes; 0 for `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_len(region: *const strait_region) -> usize {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    unsafe { region.as_ref() }.map_or(0, |shell| shell.region.len())
}

/// Writes the current access of a region to `access`. Other processes with write access can take access away; no
/// process can restore access.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_access(
    region: *const strait_region,
    access: *mut strait_access,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, region) = unsafe { (args::out(access, STRAIT_READ_ONLY_REGION, "access is NULL")?, get(region)?) };
        *out = match region.access()? {
            Access::Writable => STRAIT_WRITABLE_REGION,
            Access::ReadOnly => STRAIT_READ_ONLY_REGION,
            Access::Sealed => STRAIT_SEALED_REGION,
        };
        Ok(())
    })
}

/// Seals a region: no process can ever change it again. Fails with `STRAIT_STILL_MAPPED` as long as any process has the
/// region mapped for writing. Fails with `STRAIT_WOULD_BLOCK` if another process blocks the call for a second, in a
/// write to the region that does not end; the region is then sealed when that write ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_seal(region: *const strait_region) -> strait_status {
    // SAFETY: the header requires the pointer to be valid.
    call(|| Ok(unsafe { get(region) }?.seal()?))
}

/// Admits no new writer to a region. Processes that have it mapped for writing go on writing; no other mapping or
/// process can ever write. Fails with `STRAIT_WOULD_BLOCK` as `strait_region_seal` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_admit_no_writer(region: *const strait_region) -> strait_status {
    // SAFETY: the header requires the pointer to be valid.
    call(|| Ok(unsafe { get(region) }?.admit_no_writer()?))
}

/// Makes a read-only object of a region that other holders go on writing. `reader` receives the object, which the
/// caller owns, or `NULL` on failure. A process of the same user that has `/proc` can still gain write access; against
/// such a process only sealing helps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_reader(
    region: *const strait_region,
    reader: *mut *mut strait_region,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, region) = unsafe { (args::out(reader, ptr::null_mut(), "reader is NULL")?, get(region)?) };
        *out = strait_region::give(region.reader()?);
        Ok(())
    })
}

/// Copies `len` bytes of a region, from `offset` on, to `out`, without mapping the region. The arguments have the order
/// of those of `pread`. Fails with `STRAIT_OUT_OF_RANGE` if the region has fewer bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_read_at(
    region: *const strait_region,
    out: *mut c_void,
    len: usize,
    offset: usize,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (region, out) = unsafe { (get(region)?, args::buffer(out.cast(), len)?) };
        Ok(region.read_at(out, offset)?)
    })
}

/// Copies `len` bytes into a region at `offset`: without a mapping as long as no other process can have the region.
/// The arguments have the order of those of `pwrite`. Fails with `STRAIT_OUT_OF_RANGE` if the bytes do not fit, and
/// with `STRAIT_WOULD_BLOCK` while another process seals the region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_write_at(
    region: *const strait_region,
    bytes: *const c_void,
    len: usize,
    offset: usize,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (region, bytes) = unsafe { (get(region)?, args::bytes(bytes.cast(), len)?) };
        Ok(region.write_at(bytes, offset)?)
    })
}

/// A mapped part of a region. It stays when the region is freed or sent.
#[derive(Debug)]
pub struct strait_mapping {
    mapped: Mapped,
}

/// The mapping of the Rust library, by kind.
#[derive(Debug)]
enum Mapped {
    /// Shared memory, for reading or for writing.
    Shared(RegionMap),
    /// Sealed memory, for reading.
    Sealed(RegionView),
    /// A private, writable copy of sealed memory.
    Copy(RegionCopy),
    /// Memory of a future sealed region; `None` while being sealed.
    Writer(Option<RegionWriter>),
}

/// Maps `len` bytes of a region from `offset` on; `how` is `STRAIT_MAP_*`.
///
/// `mapping` receives the mapping, which the caller owns, or `NULL` on failure. Fails with `STRAIT_READ_ONLY`,
/// `STRAIT_NOT_SEALED` or `STRAIT_OUT_OF_RANGE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_map(
    region: *const strait_region,
    how: strait_map,
    offset: usize,
    len: usize,
    mapping: *mut *mut strait_mapping,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, region) = unsafe { (args::out(mapping, ptr::null_mut(), "mapping is NULL")?, get(region)?) };
        // No region reaches to the last address, so a sum that is too large is out of range too.
        let end = offset.saturating_add(len);
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

/// Makes `len` zero bytes of memory that no other process has, to be filled and then sealed with `strait_mapping_seal`.
/// A child of `fork` does not have the memory.
///
/// `mapping` receives the memory, or `NULL` on failure; the caller owns the mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_writer(len: usize, mapping: *mut *mut strait_mapping) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointer to be valid.
        let out = unsafe { args::out(mapping, ptr::null_mut(), "mapping is NULL") }?;
        let mapped = Mapped::Writer(Some(RegionWriter::new(len)?));
        *out = Box::into_raw(Box::new(strait_mapping { mapped }));
        Ok(())
    })
}

/// Makes memory like `strait_region_writer`, with `options`, which may be `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_region_create_writer(
    options: *const strait_region_options,
    len: usize,
    mapping: *mut *mut strait_mapping,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, options) =
            unsafe { (args::out(mapping, ptr::null_mut(), "mapping is NULL")?, self::options(options)?) };
        let mapped = Mapped::Writer(Some(options.writer(len)?));
        *out = Box::into_raw(Box::new(strait_mapping { mapped }));
        Ok(())
    })
}

/// Seals the memory of `strait_region_writer` or `strait_region_create_writer` without a copy. `region` receives a
/// region that no process can ever change. The mapping keeps its address, as private memory for further reading and
/// writing.
///
/// No other thread may use the mapping during the call. On failure `region` receives `NULL` and the memory can be
/// sealed later. The function fails with `STRAIT_INVALID_ARGUMENT` for any other mapping, and for one that was sealed
/// before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_mapping_seal(
    mapping: *mut strait_mapping,
    region: *mut *mut strait_region,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, mapping) = unsafe { (args::out(region, ptr::null_mut(), "region is NULL")?, mapping.as_mut()) };
        let mapping = mapping.ok_or(Failure::Invalid("mapping is NULL"))?;
        let Mapped::Writer(writer) = &mut mapping.mapped else {
            return Err(Failure::Invalid("mapping is not of strait_region_writer, or is sealed"));
        };
        match writer.take().expect("only this function takes the writer").seal() {
            Ok((region, copy)) => {
                mapping.mapped = Mapped::Copy(copy);
                *out = strait_region::give(region);
                Ok(())
            }
            Err((error, back)) => {
                *writer = Some(back);
                Err(error.into())
            }
        }
    })
}

/// Returns the address of the mapped bytes, valid until the mapping is freed. Write to them only if the mapping was
/// made for writing (`STRAIT_MAP_WRITE`, `STRAIT_MAP_COPY`, `strait_region_writer`). Returns `NULL` for `NULL`, and in
/// the child of a `fork` for memory of `strait_region_writer` that is not sealed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_mapping_data(mapping: *mut strait_mapping) -> *mut c_void {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    let Some(mapping) = (unsafe { mapping.as_mut() }) else { return ptr::null_mut() };
    call_or(ptr::null_mut(), || match &mut mapping.mapped {
        Mapped::Shared(map) => map.as_ptr().cast(),
        Mapped::Sealed(view) => view.as_ptr().cast_mut().cast(),
        Mapped::Copy(copy) => copy.as_mut_ptr().cast(),
        Mapped::Writer(Some(writer)) if writer.check_fork().is_ok() => writer.as_mut_ptr().cast(),
        Mapped::Writer(_) => ptr::null_mut(),
    })
}

/// Returns the number of mapped bytes; 0 if `strait_mapping_data` returns `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_mapping_len(mapping: *const strait_mapping) -> usize {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    let Some(mapping) = (unsafe { mapping.as_ref() }) else { return 0 };
    call_or(0, || match &mapping.mapped {
        Mapped::Shared(map) => map.len(),
        Mapped::Sealed(view) => view.len(),
        Mapped::Copy(copy) => copy.len(),
        Mapped::Writer(Some(writer)) if writer.check_fork().is_ok() => writer.len(),
        Mapped::Writer(_) => 0,
    })
}

/// Unmaps the memory, and frees the mapping. Ignores `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_mapping_free(mapping: *mut strait_mapping) {
    if !mapping.is_null() {
        // SAFETY: the object came from `strait_region_map` or `strait_region_writer`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(mapping) }));
    }
}
