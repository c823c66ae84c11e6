//! Regions: shared memory as an object in messages.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use strait::Handle;
use strait::region::{Access, RegionError, RegionOptions, RegionView};

use crate::memory::{self, Memory};
use crate::{connection, errors};

/// Shared memory of a fixed size, which can be sent in messages. `Region(size)` makes a region of zeros, writable for
/// each holder.
///
/// `huge_pages` requests huge pages (`MADV_HUGEPAGE`). Shared memory gets them only if the administrator has set
/// `/sys/kernel/mm/transparent_hugepage/shmem_enabled` to `advise`, `within_size` or `always`.
///
/// A sealed region never changes again, and is a read-only buffer. The bytes of any other region can be copied only,
/// since another process may change them at any time.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct Region {
    region: strait::region::Region,
    /// The bytes, mapped when the program first asks for a buffer.
    view: OnceLock<RegionView>,
}

impl Region {
    pub(crate) fn new(region: strait::region::Region) -> Self {
        Self { region, view: OnceLock::new() }
    }

    /// Returns a handle of this region, to be sent. This object does not change.
    pub(crate) fn handle(&self) -> Handle {
        self.region.clone().into()
    }

    fn view(&self) -> Result<&RegionView, RegionError> {
        match self.view.get() {
            Some(view) => Ok(view),
            None => {
                let view = self.region.view(..)?;
                Ok(self.view.get_or_init(|| view))
            }
        }
    }
}

/// Calls `work` without the interpreter lock, and returns its result or its exception.
fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, RegionError> + Send) -> PyResult<T> {
    py.detach(work).map_err(|error| errors::raise_region(py, &error))
}

#[pymethods]
impl Region {
    #[new]
    #[pyo3(signature = (size, *, name=None, huge_pages=false))]
    fn of_size(py: Python<'_>, size: usize, name: Option<String>, huge_pages: bool) -> PyResult<Self> {
        let mut options = RegionOptions::new().huge_pages(huge_pages);
        if let Some(name) = name {
            options = options.name(name);
        }
        detached(py, || options.create(size)).map(Self::new)
    }

    /// Returns the region of the descriptor of a region: memory of a fixed size, made by `memfd_create`. The descriptor
    /// of the open file, or with this number, is duplicated.
    #[staticmethod]
    fn from_fd(py: Python<'_>, file: &Bound<'_, PyAny>) -> PyResult<Self> {
        let fd = crate::file::of(file)?.take(py)?.into_fd();
        let fd = fd.ok_or_else(|| errors::raise(py, strait::Error::BadHandle))?;
        let made = py.detach(|| strait::region::Region::from_fd(fd));
        made.map(Self::new).map_err(|(error, _)| errors::raise_region(py, &error))
    }

    /// Returns a sealed region with a copy of the bytes of a buffer.
    #[staticmethod]
    fn sealed(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let data = connection::steady(data)?;
        let bytes = data.as_bytes();
        detached(py, || strait::region::Region::sealed(bytes)).map(Self::new)
    }

    /// The rights of this process: "writable", "read-only" or "sealed".
    #[getter]
    fn access(&self, py: Python<'_>) -> PyResult<&'static str> {
        match self.region.access().map_err(|error| errors::raise_region(py, &error))? {
            Access::Sealed => Ok("sealed"),
            Access::Writable => Ok("writable"),
            _ => Ok("read-only"),
        }
    }

    /// Seals the region: no process can ever change the region again. Raises `StillMapped` if a process maps the region
    /// for writing.
    fn seal(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.region.seal())
    }

    /// Has the kernel refuse each later attempt to map the region for writing, by any process.
    fn admit_no_writer(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.region.admit_no_writer())
    }

    /// Returns a read-only handle of the region.
    fn reader(&self, py: Python<'_>) -> PyResult<Self> {
        detached(py, || self.region.reader()).map(Self::new)
    }

    /// The name given at the making of the region.
    #[getter]
    fn name(&self) -> Option<String> {
        self.region.name()
    }

    /// Returns the number of the descriptor; this object still owns the descriptor.
    fn fileno(&self) -> i32 {
        self.region.as_raw_fd()
    }

    /// Maps the bytes as memory that is writable for other processes at any time. By writing to such memory, a process
    /// can lead many operations of NumPy and other libraries out of bounds, so the program has to trust every process
    /// with the region.
    fn trusted(&self, py: Python<'_>) -> PyResult<Memory> {
        detached(py, || Memory::shared(self.region.clone(), 0..self.region.len(), true))
    }

    /// Returns an array over the bytes from `offset` on: of a sealed region a read-only array. An unsealed region needs
    /// `trust`, since another process may write to the region at any time. Without `trust`, raises `ValueError` for a
    /// truth value other than 0 and 1, and for a text with a character above U+10FFFF.
    #[pyo3(signature = (shape, dtype, *, offset=0, order="C", trust=false))]
    fn array<'py>(
        slf: &Bound<'py, Self>,
        shape: &Bound<'py, PyAny>,
        dtype: &Bound<'py, PyAny>,
        offset: usize,
        order: &str,
        trust: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("strait._arrays")?.call_method1("of_region", (slf, shape, dtype, offset, order, trust))
    }

    /// Maps the bytes of a sealed region as private memory of this process. Writes there change no other mapping of the
    /// region. Raises `NotSealed` if the region is not sealed.
    fn private(&self, py: Python<'_>) -> PyResult<Memory> {
        detached(py, || self.region.copy_on_write(..)).map(Memory::private)
    }

    /// Returns a copy of `size` bytes, or of all bytes, from `offset` on.
    #[pyo3(signature = (offset=0, size=None))]
    fn read<'py>(&self, py: Python<'py>, offset: usize, size: Option<usize>) -> PyResult<Bound<'py, PyBytes>> {
        let size = size.unwrap_or_else(|| self.region.len().saturating_sub(offset));
        if offset.checked_add(size).is_none_or(|end| end > self.region.len()) {
            let error = strait::Error::OutOfRange { len: self.region.len() };
            return Err(errors::raise(py, error));
        }
        PyBytes::new_with(py, size, |bytes| detached(py, || self.region.read_at(bytes, offset)))
    }

    /// Copies the bytes of a buffer into the region, from `offset` on.
    #[pyo3(signature = (data, offset=0))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: usize) -> PyResult<()> {
        let data = connection::steady(data)?;
        let bytes = data.as_bytes();
        detached(py, || self.region.write_at(bytes, offset))
    }

    fn __len__(&self) -> usize {
        self.region.len()
    }

    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = slf.get().view().map_err(|error| errors::raise_region(slf.py(), &error))?;
        // SAFETY: the interpreter gives a buffer to fill in. The bytes never change, and are mapped as long as the
        // object lives, to which the buffer gets a reference. The buffer is read-only.
        unsafe { memory::fill(&slf, view, bytes.as_ptr().cast_mut(), bytes.len(), true, flags) }
    }

    fn __repr__(&self) -> String {
        format!("<strait.Region of {} bytes>", self.region.len())
    }
}
