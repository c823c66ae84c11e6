//! Shared memory as an object.
//!
//! A [`Region`] is a memfd whose size is sealed. What its holders may do with it is the kernel's to say, by seals and by how
//! a descriptor was opened, and is asked of the kernel: a region that came from a peer is looked at anew, and what the peer
//! says of it only has to agree. [`map`] is what is mapped of it.

mod map;

pub use map::{RegionCopy, RegionMap, RegionView};

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::error::Error;
use crate::os::memory;
use crate::os::region::{self, Facts, How};
use crate::quota::Charge;
use crate::shm::RegionMapping;

/// Shared memory as an object: it can be mapped, whole or in part, by as many processes as have it, and travels in messages
/// as a [`Handle`](crate::Handle).
///
/// Its size is fixed when it is made. Who may write is enforced by the kernel, see [`Access`]; a region that was
/// [sealed](Self::seal) never changes again, and can be read in place by whoever has it, whoever made it:
///
/// ```
/// use strait::{Channel, Outgoing, Region};
/// let (a, b) = Channel::pair()?; // One of them may be in another process.
/// let region = Region::new(1 << 20)?;
/// region.map_writable(..)?.write(0, b"pixels")?;
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
/// What is mapped stays when the region is dropped. A clone is a handle for the same memory, with the same rights; it costs
/// no descriptor.
///
/// # Cost
/// One descriptor. Making one takes four or five system calls, mapping two or three. Pages come from the kernel as they are
/// first touched.
#[derive(Clone)]
pub struct Region {
    memory: Arc<Memory>,
}

struct Memory {
    fd: OwnedFd,
    len: usize,
    huge_pages: bool,
    /// For what a peer sent; mappings have it too.
    charge: Option<Arc<Charge>>,
}

/// What a region lets whoever holds it do. The kernel holds them to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read and write.
    Writable,
    /// Read. Others may write still: whoever had it mapped for writing when [`Region::admit_no_writer`] was called, or whoever
    /// has a writable handle, if this one is a [`Region::reader`].
    ReadOnly,
    /// Read, and it never changes again.
    Sealed,
}

/// How a region is made.
///
/// ```
/// use strait::RegionOptions;
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
    /// The defaults: the name `strait-region`, ordinary pages.
    pub fn new() -> Self {
        Self::default()
    }

    /// A name for debugging, as shown in `/proc/*/maps`: at most 249 bytes, none of them 0. Names need not differ.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Asks the kernel for huge pages wherever this process maps the region, through handles that were not received. Whether
    /// there are any for shared memory is up to `/sys/kernel/mm/transparent_hugepage/shmem_enabled`.
    #[must_use]
    pub fn huge_pages(mut self, wanted: bool) -> Self {
        self.huge_pages = wanted;
        self
    }

    /// A region of `len` zeroes, [writable](Access::Writable).
    ///
    /// # Errors
    /// [`Error::NoDescriptors`], [`Error::NoMemory`]; [`Error::System`] if the name is none, if `len` is more than a file can
    /// have, or what else the kernel refuses.
    pub fn create(&self, len: usize) -> Result<Region, Error> {
        let fd = memory::memfd(self.name.as_deref().unwrap_or("strait-region"), len)?;
        region::own_alone(&fd)?;
        region::fix_size(&fd)?;
        Ok(Region { memory: Arc::new(Memory { fd, len, huge_pages: self.huge_pages, charge: None }) })
    }

    /// A [writable](Access::Writable) region of these bytes.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_from(&self, bytes: &[u8]) -> Result<Region, Error> {
        let region = self.create(bytes.len())?;
        region.write_at(bytes, 0)?;
        Ok(region)
    }
}

impl Region {
    /// A region of `len` zeroes, [writable](Access::Writable). [`RegionOptions`] has more to say.
    ///
    /// # Errors
    /// As [`RegionOptions::create`].
    pub fn new(len: usize) -> Result<Self, Error> {
        RegionOptions::new().create(len)
    }

    /// A region of these bytes, which never changes again.
    ///
    /// # Errors
    /// As [`RegionOptions::create`].
    pub fn sealed(bytes: &[u8]) -> Result<Self, Error> {
        let region = RegionOptions::new().create_from(bytes)?;
        region.seal()?;
        Ok(region)
    }

    /// Takes a memfd, with the rights that it gives. Its size must be sealed, or it must let itself be sealed, which is
    /// done here.
    ///
    /// # Errors
    /// [`Error::NotARegion`] if it is no memfd or of huge pages of its own, or if its size could change; [`Error::System`].
    /// The descriptor comes back.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, (Error, OwnedFd)> {
        let check = |fd: &OwnedFd| {
            let mut facts = region::facts(fd.as_fd())?.ok_or(Error::NotARegion("it is not a memfd"))?;
            if !facts.fixed {
                if !facts.sealable {
                    return Err(Error::NotARegion("its size is not sealed, and it cannot be sealed"));
                }
                region::fix_size(fd)?;
                facts = region::facts(fd.as_fd())?.ok_or(Error::NotARegion("it is not a memfd"))?;
            }
            usize_len(&facts).ok_or(Error::NotARegion("it is larger than the address space of a process"))
        };
        match check(&fd) {
            Ok(len) => Ok(Self { memory: Arc::new(Memory { fd, len, huge_pages: false, charge: None }) }),
            Err(error) => Err((error, fd)),
        }
    }

    /// What a peer sent as a region of so many bytes, for which it was charged.
    pub(crate) fn received(fd: OwnedFd, len: u64, charge: Option<Charge>) -> Result<Self, (Error, OwnedFd)> {
        let facts = match region::facts(fd.as_fd()) {
            Ok(facts) => facts.filter(|facts| facts.fixed && facts.readable),
            Err(error) => return Err((error, fd)),
        };
        let Some(facts) = facts else {
            return Err((Error::BadPeer("a region that is not a memfd of sealed size"), fd));
        };
        let Some(len) = usize_len(&facts).filter(|_| facts.len == len) else {
            return Err((Error::BadPeer("a region of another size than it was said to have"), fd));
        };
        Ok(Self { memory: Arc::new(Memory { fd, len, huge_pages: false, charge: charge.map(Arc::new) }) })
    }

    /// Its descriptor, unless somebody else has the same region.
    pub(crate) fn into_only_fd(self) -> Option<OwnedFd> {
        Arc::into_inner(self.memory).map(|memory| memory.fd)
    }

    /// A descriptor of its own for the memory, as others take it.
    ///
    /// # Errors
    /// [`Error::NoDescriptors`].
    pub fn to_fd(&self) -> Result<OwnedFd, Error> {
        region::duplicate(self.as_fd())
    }

    /// Its size in bytes, which never changes.
    pub fn len(&self) -> usize {
        self.memory.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name with which it was made, if the kernel tells.
    pub fn name(&self) -> Option<String> {
        region::name(self.as_fd())
    }

    /// What may be done with it now. Others can take rights away at any time, if they may write; nobody can give any back.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn access(&self) -> Result<Access, Error> {
        let facts = self.facts()?;
        Ok(match facts {
            Facts { immutable: true, .. } => Access::Sealed,
            Facts { writable: true, .. } => Access::Writable,
            _ => Access::ReadOnly,
        })
    }

    /// Whether it never changes again.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn is_sealed(&self) -> Result<bool, Error> {
        Ok(self.facts()?.immutable)
    }

    fn facts(&self) -> Result<Facts, Error> {
        region::facts(self.as_fd())?.ok_or(Error::NotARegion("it is not a memfd"))
    }

    /// Seals it: nobody, in any process, can ever change it again. All handles of it are [sealed](Access::Sealed) then.
    ///
    /// Does nothing if it is.
    ///
    /// # Errors
    /// [`Error::StillMapped`] if it is mapped for writing, here or elsewhere (a mapping for reading through a handle that
    /// could write counts too). This waits 100 ms for such mappings to end: a child that another thread starts has all
    /// mappings of this process from its `fork` to its `exec`, also those that ended here meanwhile. [`Error::ReadOnly`] if
    /// this handle does not let it be sealed.
    pub fn seal(&self) -> Result<(), Error> {
        let facts = self.facts()?;
        if facts.immutable {
            return Ok(());
        }
        if !facts.sealable {
            return Err(Error::ReadOnly);
        }
        region::seal(&self.memory.fd)
    }

    /// Admits no new writer: whoever has the region mapped for writing now goes on, and nobody else can ever write, in
    /// whatever process. All handles of it are [read-only](Access::ReadOnly) then, and can be given to anybody.
    ///
    /// So one process writes and others look on:
    ///
    /// ```
    /// use strait::{Access, Error, Region};
    /// let region = Region::new(4096)?;
    /// let writer = region.map_writable(..)?;
    /// region.admit_no_writer()?;
    /// assert_eq!(region.access()?, Access::ReadOnly);
    /// assert_eq!(region.map_writable(..).unwrap_err(), Error::ReadOnly);
    /// writer.write(0, b"news")?;
    /// let mut seen = [0; 4];
    /// region.map(..)?.read(0, &mut seen)?;
    /// assert_eq!(&seen, b"news");
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if this handle does not let it be sealed.
    pub fn admit_no_writer(&self) -> Result<(), Error> {
        let facts = self.facts()?;
        if !facts.writable && facts.sealable || facts.immutable {
            return Ok(());
        }
        if !facts.sealable {
            return Err(Error::ReadOnly);
        }
        region::admit_no_writer(&self.memory.fd)
    }

    /// A handle that can only read, of a region that others go on writing. Needs `/proc`. Does not block.
    ///
    /// This handle cannot be written through. But the kernel lets a process of the user who made the region, if it has
    /// `/proc`, open the memory behind any handle anew: against such a receiver only
    /// [`admit_no_writer`](Self::admit_no_writer) and [`seal`](Self::seal) help.
    ///
    /// # Errors
    /// [`Error::NoDescriptors`]; [`Error::System`] without `/proc`, or for a region of another user; with `EAGAIN` if another process
    /// has a lease on the memory (`F_SETLEASE`), which the kernel takes from it within `fs.lease-break-time` seconds.
    pub fn reader(&self) -> Result<Self, Error> {
        let fd = region::reopen_for_reading(self.as_fd())?;
        let Memory { len, huge_pages, ref charge, .. } = *self.memory;
        Ok(Self { memory: Arc::new(Memory { fd, len, huge_pages, charge: charge.clone() }) })
    }

    /// Copies bytes from `offset` on, without mapping anything. While others write, there is no telling which of theirs
    /// are seen.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if there are fewer; [`Error::System`].
    pub fn read_at(&self, out: &mut [u8], offset: usize) -> Result<(), Error> {
        self.range(offset, out.len())?;
        region::read_at(&self.memory.fd, out, offset as u64)
    }

    /// Copies bytes to `offset`, without mapping anything: for memory that nobody has touched yet the fastest way. If the kernel
    /// refuses the call, the bytes are copied through a mapping: a process that was sent the region has the same open file, and can
    /// set it to append.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if they do not fit; [`Error::ReadOnly`]; [`Error::System`], as where `RLIMIT_FSIZE` forbids it, which a
    /// mapping does not ask for.
    pub fn write_at(&self, bytes: &[u8], offset: usize) -> Result<(), Error> {
        self.range(offset, bytes.len())?;
        // It may be larger than this process may make any.
        memory::check_file_size_limit("pwrite (RLIMIT_FSIZE)", offset + bytes.len())?;
        match memory::write_at(&self.memory.fd, bytes, offset as u64) {
            Err(error) if region::is_refusal(error) => self.map_writable(offset..offset + bytes.len())?.write(0, bytes),
            written => written,
        }
    }

    /// Maps it, or part of it, for reading what others may be writing: bytes are copied out.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::NoMemory`], [`Error::System`].
    pub fn map(&self, range: impl RangeBounds<usize>) -> Result<RegionMap, Error> {
        // Kernels before 6.7 refuse to share what is sealed. It needs no sharing either.
        let how = if self.is_sealed()? { How::Immutable } else { How::Read };
        self.map_as(range, how).map(RegionMap)
    }

    /// Maps it, or part of it, for reading and writing.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; otherwise as [`Region::map`].
    pub fn map_writable(&self, range: impl RangeBounds<usize>) -> Result<RegionMap, Error> {
        self.map_as(range, How::Write).map(RegionMap)
    }

    /// Maps it, or part of it, for reading in place, as ordinary bytes. Only for one that is [sealed](Self::seal), which the
    /// kernel is asked: whoever sent it may be anybody.
    ///
    /// # Errors
    /// [`Error::NotSealed`]; otherwise as [`Region::map`].
    pub fn view(&self, range: impl RangeBounds<usize>) -> Result<RegionView, Error> {
        self.sealed_only()?;
        self.map_as(range, How::Immutable).map(RegionView)
    }

    /// Maps it, or part of it, as private memory of this process, in which pages are copied as they are written to; the cost
    /// does not depend on the size. Only for one that is [sealed](Self::seal).
    ///
    /// ```
    /// let region = strait::Region::sealed(b"template")?;
    /// let mut copy = region.copy_on_write(..)?;
    /// copy[0] = b'T';
    /// assert_eq!(*copy, *b"Template");
    /// assert_eq!(*region.view(..)?, *b"template");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotSealed`]; otherwise as [`Region::map`].
    pub fn copy_on_write(&self, range: impl RangeBounds<usize>) -> Result<RegionCopy, Error> {
        self.sealed_only()?;
        self.map_as(range, How::Copy).map(RegionCopy)
    }

    fn sealed_only(&self) -> Result<(), Error> {
        let facts = self.facts()?;
        if facts.immutable && facts.fixed { Ok(()) } else { Err(Error::NotSealed) }
    }

    fn map_as(&self, range: impl RangeBounds<usize>, how: How) -> Result<map::Mapped, Error> {
        let outside = Error::OutOfRange { len: self.len() };
        let from = match range.start_bound() {
            Bound::Included(&from) => from,
            Bound::Excluded(&before) => before.checked_add(1).ok_or(outside)?,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&last) => last.checked_add(1).ok_or(outside)?,
            Bound::Excluded(&to) => to,
            Bound::Unbounded => self.len(),
        };
        let len = to.checked_sub(from).ok_or(outside)?;
        self.range(from, len)?;
        // SAFETY: the size was found sealed, and to be `len`, when the region was made or came here, and the range is inside;
        // whoever asks for an immutable mapping has just seen the seal against writes. No seal can be taken off.
        let mapping = unsafe { RegionMapping::new(self.as_fd(), from, len, how) };
        let mapping = mapping.map_err(|error| self.why_not(error, how))?;
        if self.memory.huge_pages {
            mapping.prefer_huge_pages();
        }
        Ok(map::Mapped::new(mapping, self.memory.charge.clone()))
    }

    /// Why the kernel did not map it: it gives the same error for what a sandbox refuses.
    fn why_not(&self, error: Error, how: How) -> Error {
        let asked = how == How::Write && region::is_refusal(error);
        if asked && self.facts().is_ok_and(|facts| !facts.writable) { Error::ReadOnly } else { error }
    }

    /// Whether so many bytes from an offset on are inside.
    fn range(&self, offset: usize, len: usize) -> Result<(), Error> {
        let inside = self.len().checked_sub(offset).is_some_and(|room| len <= room);
        if inside { Ok(()) } else { Err(Error::OutOfRange { len: self.len() }) }
    }
}

/// A size that a slice can have.
fn usize_len(facts: &Facts) -> Option<usize> {
    usize::try_from(facts.len).ok().filter(|len| isize::try_from(*len).is_ok())
}

impl AsFd for Region {
    /// The memfd.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.fd.as_fd()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("fd", &self.memory.fd).field("len", &self.len()).finish_non_exhaustive()
    }
}
