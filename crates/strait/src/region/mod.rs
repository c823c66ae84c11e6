//! Regions: shared memory as an object, which can be mapped and be sent in messages.
//!
//! ```
//! use strait::{Channel, Outgoing};
//! use strait::region::Region;
//!
//! let (parent, renderer) = Channel::pair()?;
//! let frame = Region::new(4 * 640 * 480)?;
//! parent.send(Outgoing::new(b"draw").handle(frame.clone()))?;
//!
//! let drawn = renderer.recv()?.take_handles()?.remove(0).into_region().expect("a region");
//! drawn.map_writable(..)?.write_at(&[255; 4], 0)?;
//!
//! let mut pixel = [0; 4];
//! frame.map(..)?.read_at(&mut pixel, 0)?;
//! assert_eq!(pixel, [255; 4]);
//! # Ok::<(), strait::Error>(())
//! ```
//!
//! [`Region::access`] says what the kernel lets a holder do with the memory. A [`RegionMap`] is a mapping of memory
//! that other processes may change at any time; a [`RegionView`] and a [`RegionCopy`] never change. A [`RegionError`]
//! names the size of the region, and the bytes of the failed call.

// Regions: shared memory as an object.
//
// A [`Region`] is a memfd whose size is sealed. The kernel enforces what each holder may do with the region, by seals
// and by the mode of the open descriptor. So this module asks the kernel about each region received from a peer; the
// peer's description of the region only has to agree. [`map`] contains the mappings of a region, and [`writer`] the
// memory that becomes a sealed region.

mod map;
mod region_error;
mod writer;

pub use map::{RegionCopy, RegionMap, RegionView};
pub use region_error::RegionError;
pub use writer::RegionWriter;

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;
use crate::os::memory;
use crate::os::region::{self, Facts, How};
use crate::os::sealing::seal_elsewhere;
use crate::quota::Charge;
use crate::shm::RegionMapping;
use region_error::Attempt;

/// Shared memory as an object: any number of processes can map the region, whole or in part, and a message carries it
/// as a [`Handle`](crate::Handle).
///
/// The size is fixed when the region is made. The kernel enforces which processes may write, see [`Access`]. A
/// [sealed](Self::seal) region never changes again; each process that has the region can read it in place without
/// trusting its maker:
///
/// ```
/// use strait::{Channel, Outgoing};
/// use strait::region::Region;
/// let (a, b) = Channel::pair()?; // One of them may be in another process.
/// let region = Region::new(1 << 20)?;
/// region.map_writable(..)?.write_at(b"pixels", 0)?;
/// region.seal()?;
/// a.send(Outgoing::new(b"a frame").handle(region))?;
///
/// let region = b.recv()?.take_handles()?.remove(0).into_region().expect("a region was sent");
/// // This asks the kernel whether it is sealed; the sender is not believed.
/// let view = region.view(..)?;
/// assert_eq!(view[..6], *b"pixels");
/// # Ok::<(), strait::Error>(())
/// ```
///
/// A mapping stays valid when the region is dropped. A clone is a handle for the same memory, with the same rights; a
/// clone costs no descriptor.
///
/// # Cost
/// A region needs one descriptor. Making a region takes five system calls, or six before Linux 6.3. Mapping a region
/// takes one system call for writing, and five for reading. The kernel allocates each page at its first use.
#[derive(Clone)]
pub struct Region {
    memory: Arc<Memory>,
}

struct Memory {
    fd: OwnedFd,
    len: usize,
    huge_pages: bool,
    /// The charge against the peer that sent the region; `None` if no peer is charged. All mappings of the region share
    /// the charge.
    charge: Option<Arc<Charge>>,
    /// Whether another process may have a descriptor of the memory. Such a process can hold the lock of the memory's
    /// file as long as the process likes, in a write that does not end, and so block each call that writes to the file
    /// or adds a seal. Readers of the region share the value.
    is_shared: Arc<AtomicBool>,
}

impl Memory {
    fn new(fd: OwnedFd, len: usize, charge: Option<Arc<Charge>>, is_shared: bool) -> Self {
        Self { fd, len, huge_pages: false, charge, is_shared: Arc::new(AtomicBool::new(is_shared)) }
    }

    /// Returns a number for the source of the memory: for memory of a peer the number of the peer's account.
    fn source(&self) -> usize {
        self.charge.as_ref().map_or(Arc::as_ptr(&self.is_shared).addr(), |charge| charge.ledger().payer().number())
    }
}

/// The memory as the owner of its descriptor, for a thread that adds seals.
struct Sealed(Arc<Memory>);

impl AsFd for Sealed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// The access that a handle of a region permits: writing, reading, or reading of memory that never changes. The kernel
/// enforces the access.
///
/// ```
/// use strait::region::{Access, Region};
/// let region = Region::new(4096)?;
/// assert_eq!(region.access()?, Access::Writable);
/// region.seal()?;
/// assert_eq!(region.access()?, Access::Sealed);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// `Writable`: the handle permits reading and writing.
    Writable,
    /// `ReadOnly`: the handle permits reading only, but the memory may still change. Two kinds of processes can still
    /// write to the memory: a process that had the region mapped for writing when [`Region::admit_no_writer`] was
    /// called; and, if [`Region::reader`] returned the handle, a process with a writable handle.
    ReadOnly,
    /// `Sealed`: the handle permits reading, and the memory never changes again.
    Sealed,
}

/// Options for making a region.
///
/// ```
/// use strait::region::RegionOptions;
/// let region = RegionOptions::new().name("frames").huge_pages(true).create(8 << 20)?;
/// assert_eq!(region.name().as_deref(), Some("frames"));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RegionOptions {
    name: Option<String>,
    huge_pages: bool,
}

impl RegionOptions {
    /// Returns the default options: the name `strait-region`, and ordinary pages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the region's name for debugging, which is shown in `/proc/*/maps`. A name has at most 249 bytes, none of
    /// them 0, and need not be unique.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets whether this process asks the kernel for huge pages when it maps the region. The setting applies to the
    /// created handle and to handles made from it in this process, not to a handle received in a message. Whether
    /// shared memory can have huge pages depends on `/sys/kernel/mm/transparent_hugepage/shmem_enabled`.
    #[must_use]
    pub fn huge_pages(mut self, wanted: bool) -> Self {
        self.huge_pages = wanted;
        self
    }

    /// Creates a [writable](Access::Writable) region of `len` bytes, all of them 0.
    ///
    /// # Errors
    /// [`Error::NoDescriptors`], [`Error::NoMemory`]; [`Error::System`] if the name is not valid, if a file cannot have
    /// `len` bytes, or if the kernel refuses for another reason.
    pub fn create(&self, len: usize) -> Result<Region, RegionError> {
        self.make(len).map_err(|error| RegionError::making(len, error))
    }

    fn make(&self, len: usize) -> Result<Region, Error> {
        let fd = memory::memfd(self.name.as_deref().unwrap_or("strait-region"), len)?;
        region::own_alone(&fd)?;
        region::fix_size(&fd)?;
        let memory = Memory { huge_pages: self.huge_pages, ..Memory::new(fd, len, None, false) };
        Ok(Region { memory: Arc::new(memory) })
    }

    /// Creates memory of `len` bytes, all of them 0, to be filled in place and then sealed without a copy.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create).
    pub fn writer(&self, len: usize) -> Result<RegionWriter, RegionError> {
        RegionWriter::over(self.create(len)?).map_err(|error| RegionError::making(len, error))
    }

    /// Creates a [writable](Access::Writable) region of as many bytes as `bytes`, filled with them.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create).
    pub fn create_from(&self, bytes: &[u8]) -> Result<Region, RegionError> {
        let region = self.create(bytes.len())?;
        region.write_at(bytes, 0)?;
        Ok(region)
    }
}

/// How often a call maps a region for writing again because a seal by another holder of the memory has failed
/// meanwhile.
const SEALS: usize = 16;

impl Region {
    /// Creates a [writable](Access::Writable) region of `len` bytes, all of them 0. [`RegionOptions`] can set more.
    ///
    /// # Errors
    /// The errors of [`RegionOptions::create`].
    pub fn new(len: usize) -> Result<Self, RegionError> {
        RegionOptions::new().create(len)
    }

    /// Creates a sealed region that holds `bytes` and never changes again.
    ///
    /// # Errors
    /// The errors of [`RegionOptions::create`].
    pub fn sealed(bytes: &[u8]) -> Result<Self, RegionError> {
        let region = RegionOptions::new().create_from(bytes)?;
        region.seal()?;
        Ok(region)
    }

    /// Makes a region from the memfd `fd`. The region permits the same accesses as the descriptor. The memfd's size
    /// must be sealed already, or the memfd must permit seals; then the call seals the size.
    ///
    /// # Errors
    /// [`Error::NotARegion`] if the descriptor is not a memfd, is a memfd of huge pages (`MFD_HUGETLB`), is open for
    /// writing only, or its size could change; [`Error::WouldBlock`] if the size is not sealed yet, and another process
    /// stands still in a write to the memory; [`Error::NoDescriptors`]; [`Error::System`]. The descriptor is returned
    /// with the error.
    ///
    /// # Cost
    /// If the size is not sealed yet, a thread of the library seals the size: the process that made the memory may
    /// block that call. Waits for the thread for at most 1 second.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, (RegionError, OwnedFd)> {
        let check = |fd: &OwnedFd| {
            let mut facts = region::facts(fd.as_fd())?.ok_or(Error::NotARegion("it is not a memfd"))?;
            // A process that received such a region would refuse it.
            if !facts.readable {
                return Err(Error::NotARegion("it is open for writing only"));
            }
            if !facts.fixed {
                if !facts.sealable {
                    return Err(Error::NotARegion("its size is not sealed, and it cannot be sealed"));
                }
                let fix_size = |fd: BorrowedFd<'_>| region::fix_size(fd);
                seal_elsewhere(region::duplicate(fd.as_fd())?, region::number(fd.as_fd())?, fix_size)?;
                facts = region::facts(fd.as_fd())?.ok_or(Error::NotARegion("it is not a memfd"))?;
            }
            usize_len(&facts).ok_or(Error::NotARegion("it is larger than the address space of a process"))
        };
        match check(&fd) {
            Ok(len) => Ok(Self { memory: Arc::new(Memory::new(fd, len, None, true)) }),
            Err(error) => Err((RegionError::new(Attempt::FromFd(fd.as_raw_fd()), error), fd)),
        }
    }

    /// Makes a region from the memfd `fd`, which a peer sent as a region of `len` bytes. Fails unless the memfd's size
    /// is sealed and is `len`; the descriptor is returned with the error. `charge` is the caller's charge against the
    /// peer, which the region keeps; `None` if no peer is charged.
    pub(crate) fn received(fd: OwnedFd, len: u64, charge: Option<Charge>) -> Result<Self, (Error, OwnedFd)> {
        let facts = match region::facts(fd.as_fd()) {
            Ok(facts) => facts.filter(|facts| facts.fixed && facts.readable),
            Err(error) => return Err((error, fd)),
        };
        let Some(facts) = facts else {
            return Err((Error::BadPeer("a region that is not a memfd of sealed size"), fd));
        };
        let Some(len) = usize_len(&facts).filter(|_| facts.len == len) else {
            return Err((Error::BadPeer("a region of another size than announced"), fd));
        };
        Ok(Self { memory: Arc::new(Memory::new(fd, len, charge.map(Arc::new), true)) })
    }

    /// Returns the region's descriptor if no clone of the handle shares the descriptor; otherwise drops the handle and
    /// returns `None`.
    pub(crate) fn into_only_fd(self) -> Option<OwnedFd> {
        Arc::into_inner(self.memory).map(|memory| memory.fd)
    }

    /// Returns the descriptor of the memory, for calls within this process.
    fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd.as_fd()
    }

    /// Returns whether another process may have a descriptor of the memory.
    fn is_shared(&self) -> bool {
        self.memory.is_shared.load(Ordering::Acquire)
    }

    /// Returns a new descriptor for the region's memory, which you can give to other libraries. Closing the descriptor
    /// does not affect the region.
    ///
    /// # Errors
    /// [`Error::NoDescriptors`].
    pub fn to_fd(&self) -> Result<OwnedFd, RegionError> {
        region::duplicate(self.as_fd()).map_err(|error| RegionError::of(self, Attempt::Duplicate, error))
    }

    /// Returns the size of the region in bytes, which never changes.
    pub fn len(&self) -> usize {
        self.memory.len
    }

    /// Returns whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the name with which the region was made; `None` if the name cannot be read from `/proc`.
    pub fn name(&self) -> Option<String> {
        region::name(self.fd())
    }

    /// Returns which access the handle permits now. A process with a writable handle can take away the right to write
    /// from all handles at any time, by sealing; no process can give the right back.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn access(&self) -> Result<Access, RegionError> {
        let facts = self.facts().map_err(|error| RegionError::of(self, Attempt::Inspect, error))?;
        Ok(match facts {
            Facts { immutable: true, .. } => Access::Sealed,
            Facts { writable: true, .. } => Access::Writable,
            _ => Access::ReadOnly,
        })
    }

    /// Returns whether the region is sealed: a sealed region never changes again.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn is_sealed(&self) -> Result<bool, RegionError> {
        let facts = self.facts().map_err(|error| RegionError::of(self, Attempt::Inspect, error))?;
        Ok(facts.immutable)
    }

    fn facts(&self) -> Result<Facts, Error> {
        region::facts(self.fd())?.ok_or(Error::NotARegion("it is not a memfd"))
    }

    /// Seals the region: no process can ever change it again. From then on all handles are [sealed](Access::Sealed).
    ///
    /// Does nothing if the region is sealed already. If the region is mapped for writing, waits up to 100 ms for the
    /// end of the mappings. Such a mapping can belong to a child process that another thread is just starting: between
    /// `fork` and `exec` the child has a copy of every mapping of this process.
    ///
    /// A process that has the region can block the kernel's call that seals, by a write to the region that does not
    /// end. So if the region was received, or the program has sent it or asked for its descriptor, a thread of the
    /// library makes the call, and this call waits for the thread for at most 1 second. (In a sandbox that refuses to
    /// start threads there is no such thread, and this call may block.)
    ///
    /// # Errors
    /// [`Error::StillMapped`] if the region is still mapped for writing after 100 ms, in this process or in another
    /// process (a mapping for reading through a writable handle counts too). [`Error::ReadOnly`] if the handle does not
    /// permit sealing. [`Error::WouldBlock`] if another process blocks the thread for too long: the thread seals the
    /// region as soon as it can. [`Error::System`], also if no thread could be started.
    pub fn seal(&self) -> Result<(), RegionError> {
        self.seal_memory().map_err(|error| RegionError::of(self, Attempt::Seal, error))
    }

    fn seal_memory(&self) -> Result<(), Error> {
        self.seal_unless(
            |facts| facts.immutable,
            || {
                // The program may share the region while the call tries again.
                let is_sealed = region::seal_while(self.fd(), || !self.is_shared())?;
                if is_sealed { Ok(()) } else { self.seal_elsewhere(|fd| region::seal(fd)) }
            },
        )
    }

    /// Makes a thread call `seal`, which adds seals to the memory; fails with [`Error::WouldBlock`] if that takes long.
    fn seal_elsewhere(&self, seal: fn(BorrowedFd<'_>) -> Result<(), Error>) -> Result<(), Error> {
        seal_elsewhere(Sealed(self.memory.clone()), self.memory.source(), seal)
    }

    /// Calls `seal`, which seals the memfd, unless `is_done` says that the region has the seals already. Fails with
    /// [`Error::ReadOnly`] if the handle does not permit sealing.
    fn seal_unless(
        &self,
        is_done: impl Fn(&Facts) -> bool,
        seal: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let check = || {
            let facts = self.facts()?;
            if is_done(&facts) || facts.sealable { Ok(is_done(&facts)) } else { Err(Error::ReadOnly) }
        };
        if check()? {
            return Ok(());
        }
        match seal() {
            // The memory was sealed after the check, through another handle or in another process.
            Err(Error::System { code: libc::EPERM, .. }) if check()? => Ok(()),
            done => done,
        }
    }

    /// Freezes the set of writers: processes that have the region mapped for writing now can go on, and no other
    /// process can ever write. From then on all handles are [read-only](Access::ReadOnly), and can be given to any
    /// process.
    ///
    /// For one process that writes and others that read:
    ///
    /// ```
    /// use strait::Error;
    /// use strait::region::{Access, Region};
    /// let region = Region::new(4096)?;
    /// let writer = region.map_writable(..)?;
    /// region.admit_no_writer()?;
    /// assert_eq!(region.access()?, Access::ReadOnly);
    /// assert_eq!(region.map_writable(..).unwrap_err().error, Error::ReadOnly);
    /// writer.write_at(b"news", 0)?;
    /// let mut seen = [0; 4];
    /// region.map(..)?.read_at(&mut seen, 0)?;
    /// assert_eq!(&seen, b"news");
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// As for [`seal`](Self::seal), a thread of the library makes the kernel's call if another process may have the
    /// region.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the handle does not permit sealing; [`Error::WouldBlock`] and [`Error::System`] as for
    /// [`seal`](Self::seal).
    pub fn admit_no_writer(&self) -> Result<(), RegionError> {
        let is_done = |facts: &Facts| !facts.writable && facts.sealable || facts.immutable;
        let seal: fn(BorrowedFd<'_>) -> Result<(), Error> = |fd| region::admit_no_writer(fd);
        let sealed =
            self.seal_unless(is_done, || if self.is_shared() { self.seal_elsewhere(seal) } else { seal(self.fd()) });
        sealed.map_err(|error| RegionError::of(self, Attempt::AdmitNoWriter, error))
    }

    /// Returns a read-only handle for a region that other handles can still write. Needs `/proc`. Does not block.
    ///
    /// The returned handle cannot be used for writing. But a process of the user who made the region, with `/proc`
    /// mounted, can reopen the memory behind any handle for writing. Against such a receiver only
    /// [`admit_no_writer`](Self::admit_no_writer) and [`seal`](Self::seal) help.
    ///
    /// # Errors
    /// [`Error::NoDescriptors`]; [`Error::System`] without `/proc`, for a region of another user, or with `EAGAIN` if
    /// another process has a lease on the memory (`F_SETLEASE`), which the kernel ends within `fs.lease-break-time`
    /// seconds.
    pub fn reader(&self) -> Result<Self, RegionError> {
        let opened = region::reopen_for_reading(self.fd());
        let fd = opened.map_err(|error| RegionError::of(self, Attempt::Reader, error))?;
        let Memory { len, huge_pages, ref charge, ref is_shared, .. } = *self.memory;
        let (charge, is_shared) = (charge.clone(), is_shared.clone());
        Ok(Self { memory: Arc::new(Memory { fd, len, huge_pages, charge, is_shared }) })
    }

    /// Fills `out` from the region, from byte `offset` on, without a mapping. If other processes write at the same
    /// time, `out` may get any mixture of old and new bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the region has fewer bytes there; [`Error::System`].
    pub fn read_at(&self, out: &mut [u8], offset: usize) -> Result<(), RegionError> {
        let len = out.len();
        let read = self.range(offset, len).and_then(|()| region::read_at(&self.memory.fd, out, offset as u64));
        read.map_err(|error| self.failed(offset, len, Attempt::Read, error))
    }

    /// Writes `bytes` to the region, from byte `offset` on. As long as no other process can have the region, writes
    /// without a mapping: the fastest way to fill untouched memory. Once the region was sent or received, or the
    /// program has asked for its descriptor, copies the bytes through a mapping, because a process with the region can
    /// block a write without a mapping as long as the process likes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the bytes do not fit; [`Error::ReadOnly`]; [`Error::WouldBlock`] while another holder
    /// of the region seals it, as for [`map_writable`](Self::map_writable); [`Error::NoMemory`]; [`Error::System`],
    /// also if `RLIMIT_FSIZE` forbids a write without a mapping.
    pub fn write_at(&self, bytes: &[u8], offset: usize) -> Result<(), RegionError> {
        self.write(bytes, offset).map_err(|error| {
            let attempt = Attempt::Write { sealed: self.is_sealed_after(error) };
            self.failed(offset, bytes.len(), attempt, error)
        })
    }

    fn write(&self, bytes: &[u8], offset: usize) -> Result<(), Error> {
        /// How many bytes are written between two looks whether another process can have the memory.
        const PIECE: usize = 1 << 20;
        self.range(offset, bytes.len())?;
        let mut done = 0;
        while done < bytes.len() && !self.is_shared() {
            let piece = &bytes[done..][..PIECE.min(bytes.len() - done)];
            // The region may be larger than any file that this process may make.
            memory::check_file_size_limit("pwrite (RLIMIT_FSIZE)", offset + bytes.len())?;
            match memory::write_at(&self.memory.fd, piece, (offset + done) as u64) {
                Err(error) if region::is_refusal(error) => break,
                written => written?,
            }
            done += piece.len();
        }
        if done == bytes.len() {
            return Ok(());
        }
        Ok(self.map_writable(offset + done..offset + bytes.len())?.write_at(&bytes[done..], 0)?)
    }

    /// Maps a range of the region, in bytes (`..` for all of it), for reading. Other processes may write to the region
    /// at the same time, so the mapping only copies bytes out.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range is not inside the region; [`Error::NoMemory`], [`Error::System`].
    pub fn map(&self, range: impl RangeBounds<usize>) -> Result<RegionMap, RegionError> {
        self.map_as(range, How::Read).map(RegionMap)
    }

    /// Maps a range of the region, in bytes (`..` for all of it), for reading and writing.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the handle does not permit writing; [`Error::WouldBlock`] while another holder of the
    /// memory seals it, which may take 150 ms and then fail, because the memory is in use; otherwise the errors of
    /// [`Region::map`].
    pub fn map_writable(&self, range: impl RangeBounds<usize>) -> Result<RegionMap, RegionError> {
        self.map_as(range, How::Write).map(RegionMap)
    }

    /// Maps a range of the region, in bytes (`..` for all of it), for reading in place, as ordinary bytes. The region
    /// must be [sealed](Self::seal). The call asks the kernel whether the region is sealed, so you need not trust the
    /// region's sender.
    ///
    /// # Errors
    /// [`Error::NotSealed`]; otherwise the errors of [`Region::map`].
    pub fn view(&self, range: impl RangeBounds<usize>) -> Result<RegionView, RegionError> {
        self.map_as(range, How::Immutable).map(RegionView)
    }

    /// Maps a range of the region (`..` for all of it) as private memory of this process. The kernel copies each page
    /// at the first write, so the cost of the call does not depend on the size. The region must be
    /// [sealed](Self::seal).
    ///
    /// ```
    /// let region = strait::region::Region::sealed(b"template")?;
    /// let mut copy = region.copy_on_write(..)?;
    /// copy[0] = b'T';
    /// assert_eq!(*copy, *b"Template");
    /// assert_eq!(*region.view(..)?, *b"template");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotSealed`]; otherwise the errors of [`Region::map`].
    pub fn copy_on_write(&self, range: impl RangeBounds<usize>) -> Result<RegionCopy, RegionError> {
        self.map_as(range, How::Copy).map(RegionCopy)
    }

    /// Maps a range of the region. For [`How::Immutable`] and [`How::Copy`] the region must be sealed.
    fn map_as(&self, range: impl RangeBounds<usize>, how: How) -> Result<map::Mapped, RegionError> {
        let from = match range.start_bound() {
            Bound::Included(&from) => Some(from),
            Bound::Excluded(&before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let to = match range.end_bound() {
            Bound::Included(&last) => last.checked_add(1),
            Bound::Excluded(&to) => Some(to),
            Bound::Unbounded => Some(self.len()),
        };
        self.map_between(from, to, how).map_err(|error| {
            let range = from.unwrap_or(usize::MAX)..to.unwrap_or(usize::MAX);
            let sealed = self.is_sealed_after(error);
            let attempt = if how == How::Write { Attempt::MapWritable { sealed } } else { Attempt::Map };
            RegionError::within(self.len(), range, attempt, error)
        })
    }

    /// Maps the bytes of the region between two offsets; `None` is an offset above `usize::MAX`.
    fn map_between(&self, from: Option<usize>, to: Option<usize>, how: How) -> Result<map::Mapped, Error> {
        let permitted = self.permitted(how)?;
        let outside = Error::OutOfRange { len: self.len() };
        let (from, to) = from.zip(to).ok_or(outside)?;
        let len = to.checked_sub(from).ok_or(outside)?;
        self.range(from, len)?;
        // SAFETY: the size was found to be sealed, and to be `len`, when the region was made or received, and the range
        // is inside. For an immutable mapping `permitted` has just seen the seal against writes. No seal can be
        // removed.
        let map = |how| unsafe { RegionMapping::new(self.fd(), from, len, how) };
        let mapping = match permitted {
            How::Write => self.map_for_writing(map),
            // The kernel refuses shared mappings through this descriptor while another holder seals the memory, which
            // may take 150 ms and fail.
            How::Read => match map(How::Read) {
                Err(error) if region::is_refusal(error) => map(How::ReadPrivately).map_err(|_| error),
                mapped => mapped,
            },
            how => map(how),
        }?;
        if self.memory.huge_pages {
            mapping.prefer_huge_pages();
        }
        Ok(map::Mapped::new(mapping, self.memory.charge.clone()))
    }

    /// Returns how to map the region for an access `how`. Fails with [`Error::NotSealed`] if the access needs a sealed
    /// region and the region is not sealed.
    fn permitted(&self, how: How) -> Result<How, Error> {
        if how == How::Write {
            return Ok(how);
        }
        let facts = self.facts()?;
        match how {
            // Kernels before 6.7 refuse shared mappings of sealed memory, and sealed memory needs no sharing.
            How::Read if facts.immutable => Ok(How::Immutable),
            How::Immutable | How::Copy if !(facts.immutable && facts.fixed) => Err(Error::NotSealed),
            how => Ok(how),
        }
    }

    /// Returns whether `error` is [`Error::ReadOnly`] and the region is sealed.
    fn is_sealed_after(&self, error: Error) -> bool {
        error == Error::ReadOnly && self.facts().is_ok_and(|facts| facts.immutable)
    }

    fn failed(&self, offset: usize, len: usize, attempt: Attempt, error: Error) -> RegionError {
        RegionError::within(self.len(), offset..offset.saturating_add(len), attempt, error)
    }

    /// Calls `map`, which maps the region for writing, in the way of its parameter. Fails with [`Error::ReadOnly`] if
    /// the handle does not permit writing, and with [`Error::WouldBlock`] while another holder seals the memory. (Both
    /// are checked because a refusal by a sandbox has the same error number.)
    fn map_for_writing<T>(&self, map: impl Fn(How) -> Result<T, Error>) -> Result<T, Error> {
        let mut mapped = map(How::Write);
        for _ in 0..SEALS {
            match mapped {
                Err(error) if region::is_refusal(error) => {
                    if self.facts().is_ok_and(|facts| !facts.writable) {
                        return Err(Error::ReadOnly);
                    }
                }
                mapped => return mapped,
            }
            // During a seal the kernel refuses shared mappings even for reading, but no private ones.
            if map(How::Read).is_err() && map(How::ReadPrivately).is_ok() {
                return Err(Error::WouldBlock);
            }
            // The seal may have failed since.
            mapped = map(How::Write);
        }
        mapped
    }

    /// Fails with [`Error::OutOfRange`] if the `len` bytes of the region from byte `offset` on are not all inside the
    /// region.
    fn range(&self, offset: usize, len: usize) -> Result<(), Error> {
        let inside = self.len().checked_sub(offset).is_some_and(|room| len <= room);
        if inside { Ok(()) } else { Err(Error::OutOfRange { len: self.len() }) }
    }
}

/// Returns the size in bytes of the file that `facts` describe; `None` if the size is too large for a slice in this
/// process.
fn usize_len(facts: &Facts) -> Option<usize> {
    usize::try_from(facts.len).ok().filter(|len| isize::try_from(*len).is_ok())
}

impl AsFd for Region {
    /// Returns the descriptor of the region's memory, a memfd. From now on the region counts as one that other
    /// processes have, which makes [`Region::seal`] and [`Region::write_at`] slower.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.is_shared.store(true, Ordering::Release);
        self.fd()
    }
}

impl AsRawFd for Region {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("fd", &self.memory.fd).field("len", &self.len()).finish_non_exhaustive()
    }
}
