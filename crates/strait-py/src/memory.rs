//! The memory of arrays: private to this process, at one address for the life of the object.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use strait::Error;
use strait::region::{Access, RegionCopy, RegionError, RegionMap, RegionOptions, RegionView, RegionWriter};

use crate::errors;
use crate::region::Region;
use crate::sync::lock;
use crate::warm::Warm;

/// The memory of an array, as a buffer. Unless the program asks for shared memory, only this process can write to the
/// memory. `Memory(size)` makes memory of zeros, to be sealed into a region without a copy.
///
/// NumPy keeps the address of an array's memory and a reference to this object, but no buffer of it. So the memory is
/// unmapped when the object goes, never before.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct Memory {
    base: AtomicPtr<u8>,
    len: usize,
    readonly: bool,
    held: Mutex<Held>,
}

/// The least number of bytes that are unmapped without the interpreter lock.
const MANY: usize = 1 << 20;

enum Held {
    /// Memory of process `pid` alone.
    Filling { writer: RegionWriter, pid: u32 },
    /// Memory of this process alone, never in a region. Held for its drop.
    Warm { _warm: Warm },
    /// A private copy of a sealed region. Held for its drop.
    Private { _copy: RegionCopy },
    /// An unchangeable, sealed region, from `offset` on. The view is held for its drop.
    Viewed { _view: RegionView, region: strait::region::Region, offset: usize },
    /// A region that is writable for other processes. The map is held for its drop.
    Shared { _map: RegionMap, region: strait::region::Region, offset: usize },
    /// The state during a call of `seal`, which holds the lock.
    Sealing,
}

impl Memory {
    /// Makes the memory of an array whose bytes are, or were, in a message.
    pub(crate) fn warm(warm: Warm) -> Self {
        let (base, len) = (AtomicPtr::new(warm.base()), warm.len());
        Self { base, len, readonly: false, held: Mutex::new(Held::Warm { _warm: warm }) }
    }

    /// Makes the memory of a received array in a sealed region.
    pub(crate) fn private(mut copy: RegionCopy) -> Self {
        let (base, len) = (AtomicPtr::new(copy.as_mut_ptr()), copy.len());
        Self { base, len, readonly: false, held: Mutex::new(Held::Private { _copy: copy }) }
    }

    /// Makes the memory of a read-only array. `view` begins at `offset` of `region`.
    pub(crate) fn viewed(view: RegionView, region: strait::region::Region, offset: usize) -> Self {
        let (base, len) = (AtomicPtr::new(view.as_ptr().cast_mut()), view.len());
        Self { base, len, readonly: true, held: Mutex::new(Held::Viewed { _view: view, region, offset }) }
    }

    /// Maps a range of a region that is writable for other processes, for a program that trusts these processes.
    pub(crate) fn shared(
        region: strait::region::Region,
        range: Range<usize>,
        writable: bool,
    ) -> Result<Self, RegionError> {
        let readonly = !writable || region.access()? != Access::Writable;
        let map = if readonly { region.map(range.clone())? } else { region.map_writable(range.clone())? };
        let (base, len) = (AtomicPtr::new(map.as_ptr()), map.len());
        Ok(Self { base, len, readonly, held: Mutex::new(Held::Shared { _map: map, region, offset: range.start }) })
    }

    fn filling(mut writer: RegionWriter) -> Self {
        let (base, len) = (AtomicPtr::new(writer.as_mut_ptr()), writer.len());
        Self { base, len, readonly: false, held: Mutex::new(Held::Filling { writer, pid: std::process::id() }) }
    }

    /// Seals unsealed memory, at its address. Returns `None` for sealed memory.
    fn seal_in_place(&self) -> Result<Option<strait::region::Region>, RegionError> {
        let mut held = lock(&self.held);
        let (writer, pid) = match std::mem::replace(&mut *held, Held::Sealing) {
            Held::Filling { writer, pid } => (writer, pid),
            other => {
                *held = other;
                return Ok(None);
            }
        };
        match writer.seal() {
            Ok((region, copy)) => {
                *held = Held::Private { _copy: copy };
                Ok(Some(region))
            }
            Err((failed, writer)) => {
                // Arrays refer to the memory: nothing else may ever be mapped at its address.
                if failed.error != Error::Forked && writer.len() != self.len {
                    eprintln!("strait: the kernel has no memory to map an array again whose memory was to be sealed");
                    std::process::abort();
                }
                *held = Held::Filling { writer, pid };
                Err(failed)
            }
        }
    }

    /// Fails in a child of `fork` without the memory.
    fn check(&self) -> PyResult<()> {
        match &*lock(&self.held) {
            Held::Filling { pid, .. } if *pid != std::process::id() => Err(PyBufferError::new_err(
                "a child of fork has not got the memory of an array of strait.empty: it had no memory for a copy, or its parent was sealing the array",
            )),
            _ => Ok(()),
        }
    }
}

impl Drop for Memory {
    /// Unmaps the memory: without the interpreter lock if there are many bytes, since the kernel then takes long.
    fn drop(&mut self) {
        if self.len < MANY {
            return;
        }
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut held = Some(std::mem::replace(held, Held::Sealing));
        // An ending interpreter has no lock to release.
        Python::try_attach(|py| py.detach(|| held = None));
    }
}

#[pymethods]
impl Memory {
    #[new]
    #[pyo3(signature = (size, *, huge_pages=false))]
    fn new(py: Python<'_>, size: usize, huge_pages: bool) -> PyResult<Bound<'_, Self>> {
        let options = RegionOptions::new().huge_pages(huge_pages);
        let writer = py.detach(|| options.writer(size)).map_err(|error| errors::raise_region(py, &error))?;
        let memory = Bound::new(py, Self::filling(writer))?;
        py.import("strait._arrays")?.call_method1("copy_at_fork", (&memory,))?;
        Ok(memory)
    }

    /// Returns the region of the memory, and the place of the memory's first byte there. Returns `None` for private
    /// memory of this process.
    fn region(&self) -> Option<(Region, usize)> {
        match &*lock(&self.held) {
            Held::Viewed { region, offset, .. } | Held::Shared { region, offset, .. } => {
                Some((Region::new(region.clone()), *offset))
            }
            _ => None,
        }
    }

    /// Whether the memory cannot be written to.
    #[getter]
    fn readonly(&self) -> bool {
        self.readonly
    }

    /// Seals the memory, and returns a region of its bytes, unchangeable for ever. The memory stays at its address,
    /// private to this process. Returns `None`, and does nothing, after the first time: the memory may have changed
    /// since.
    fn seal(&self, py: Python<'_>) -> PyResult<Option<Region>> {
        let sealed = py.detach(|| self.seal_in_place()).map_err(|error| errors::raise_region(py, &error))?;
        Ok(sealed.map(Region::new))
    }

    /// Makes the memory in a new child of `fork`, which has not inherited the memory: private memory at the same
    /// address, with a copy of the bytes. Returns whether the memory can be used now.
    fn copy_in_child(&self) -> bool {
        // Another thread of the parent may have held the lock, for a call of `seal`.
        let Ok(mut held) = self.held.try_lock() else { return false };
        let (writer, pid) = match std::mem::replace(&mut *held, Held::Sealing) {
            Held::Filling { writer, pid } if pid != std::process::id() => (writer, pid),
            other => {
                *held = other;
                return true;
            }
        };
        match writer.copy_in_child() {
            Ok(copy) => {
                *held = Held::Private { _copy: copy };
                true
            }
            Err((_, writer)) => {
                *held = Held::Filling { writer, pid };
                false
            }
        }
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.base.load(Ordering::Relaxed).addr()
    }

    fn __len__(&self) -> usize {
        self.len
    }

    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = slf.get();
        memory.check()?;
        let base = memory.base.load(Ordering::Relaxed);
        // SAFETY: the interpreter gives a buffer to fill in. The memory is mapped for reading and writing as long as
        // the object lives (for reading only if `readonly`), and the buffer gets a reference to the object. Only this
        // process can write to the memory: the memory is private, sealed, or in no other process; or the program trusts
        // all processes with the memory. If a call loses the mapping, `seal_in_place` ends the process.
        unsafe { fill(&slf, view, base, memory.len, memory.readonly, flags) }
    }

    fn __repr__(&self) -> String {
        format!("<strait.Memory of {} bytes>", self.len)
    }
}

/// Fills in a buffer over the `len` bytes from `base` on.
///
/// # Safety
/// The interpreter gave `view`. The bytes can be read, and written unless `readonly`, as long as `owner` lives.
#[allow(unsafe_code)]
pub(crate) unsafe fn fill<T>(
    owner: &Bound<'_, T>,
    view: *mut ffi::Py_buffer,
    base: *mut u8,
    len: usize,
    readonly: bool,
    flags: c_int,
) -> PyResult<()> {
    let len = len.try_into()?;
    // SAFETY: the caller's promise; the call refuses a `view` that is null.
    let done = unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), base.cast(), len, c_int::from(readonly), flags) };
    if done == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}
