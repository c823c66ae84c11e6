//! The kinds of shared memory. Once mapped, all kinds are equal. The kinds differ in how the second process finds the
//! memory, and in what stays behind without a cleanup.

use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, Mode, fallocate};
use rustix::io::Errno;
use rustix::shm;

use super::bell;
use crate::mechanism::keeper::Keeper;
use crate::mechanism::{Opened, Side, exactly, note};
use crate::sys::shared::{PAGE, Shared};
use crate::sys::sysv;
use crate::trouble::{Result, While};

/// The kind of shared memory, for the name of the mechanism.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// System V shared memory.
    Sysv,
    /// POSIX shared memory.
    Posix,
    /// A memfd.
    Memfd,
}

/// Returns the name of the mechanism with the given kinds of memory and bell.
pub(super) const fn name(carrier: Kind, bell: bell::Kind) -> &'static str {
    match (carrier, bell) {
        (Kind::Sysv, bell::Kind::Spin) => "sysv-shm-spin",
        (Kind::Sysv, bell::Kind::Futex) => "sysv-shm-futex",
        (Kind::Sysv, _) => "sysv-shm-sem",
        (Kind::Posix, bell::Kind::Spin) => "posix-shm-spin",
        (Kind::Posix, bell::Kind::Futex) => "posix-shm-futex",
        (Kind::Posix, _) => "posix-shm-sem",
        (Kind::Memfd, bell::Kind::Spin) => "memfd-spin",
        (Kind::Memfd, bell::Kind::Futex) => "memfd-futex",
        (Kind::Memfd, _) => "eventfd",
    }
}

/// Returns the title, in tables, of the mechanism with the given kinds of memory and bell.
pub(super) const fn title(carrier: Kind, bell: bell::Kind) -> &'static str {
    match (carrier, bell) {
        (Kind::Sysv, bell::Kind::Spin) => "System V memory, spin",
        (Kind::Sysv, bell::Kind::Futex) => "System V memory + futex",
        (Kind::Sysv, _) => "System V memory + semaphores",
        (Kind::Posix, bell::Kind::Spin) => "POSIX memory, spin",
        (Kind::Posix, bell::Kind::Futex) => "POSIX memory + futex",
        (Kind::Posix, _) => "POSIX memory + semaphores",
        (Kind::Memfd, bell::Kind::Spin) => "memfd, spin",
        (Kind::Memfd, bell::Kind::Futex) => "memfd + futex",
        (Kind::Memfd, _) => "memfd + eventfd",
    }
}

/// New memory, mapped in this process, with the descriptors for finding the memory on both sides.
#[derive(Debug)]
pub(crate) struct Made {
    pub(super) memory: Shared,
    /// The descriptors for each side, for finding the memory.
    pub(super) opened: Opened,
    pub(super) keeper: Option<Keeper>,
}

/// A kind of shared memory.
pub(crate) trait Carrier: 'static {
    /// The kind of the memory, for the name of the mechanism.
    const KIND: Kind;
    /// Whether this kind of memory needs a keeper, a process for removing leftover names.
    const KEPT: bool;

    /// Returns the reason if this machine does not support this kind of memory.
    fn missing() -> Option<String> {
        None
    }

    /// Creates `len` bytes of memory, in the first process.
    fn make(len: usize) -> Result<Made>;

    /// Maps the `len` bytes of memory, in either process, from a side's descriptors.
    fn take(descriptors: Vec<OwnedFd>, side: Side, len: usize) -> Result<Shared>;
}

/// Memory from `shmget`, found by its number. The number is removed at once, and the memory stays while the keeper
/// has it attached: until then Linux lets other processes attach the memory.
#[derive(Debug)]
pub(crate) struct Sysv;

impl Carrier for Sysv {
    const KIND: Kind = Kind::Sysv;
    const KEPT: bool = true;

    fn missing() -> Option<String> {
        match sysv::make_memory(PAGE) {
            Ok(memory) => sysv::remove_memory(memory).err().map(|error| format!("shmctl(IPC_RMID): {error}")),
            Err(Errno::NOSYS) => Some("this kernel has no System V IPC (CONFIG_SYSVIPC)".to_owned()),
            Err(Errno::NOSPC) => {
                Some("the system has no System V memory left (kernel.shmmni, kernel.shmall; ipcs -m)".to_owned())
            }
            Err(error) => Some(format!("shmget: {error}")),
        }
    }

    fn make(len: usize) -> Result<Made> {
        let keeper = Keeper::start()?;
        let number = keeper.memory(len)?;
        let opened = Opened { first: vec![note::write(&number)?], second: vec![note::write(&number)?] };
        Ok(Made { memory: Shared::attach(number, len)?, opened, keeper: Some(keeper) })
    }

    fn take(descriptors: Vec<OwnedFd>, _: Side, len: usize) -> Result<Shared> {
        let [number] = exactly(descriptors)?;
        Shared::attach(note::read(number)?, len)
    }
}

/// Memory from `shm_open`, found by its name. The second process removes the name when it has opened the memory.
#[derive(Debug)]
pub(crate) struct Posix;

impl Carrier for Posix {
    const KIND: Kind = Kind::Posix;
    const KEPT: bool = true;

    fn missing() -> Option<String> {
        fs::metadata("/dev/shm").err().map(|error| format!("/dev/shm: {error}"))
    }

    fn make(len: usize) -> Result<Made> {
        let keeper = Keeper::start()?;
        let name = keeper.memory_name()?;
        let flags = shm::OFlags::CREATE | shm::OFlags::EXCL | shm::OFlags::RDWR;
        let memory = shm::open(&*name, flags, Mode::RUSR | Mode::WUSR).doing("shm_open")?;
        // Setting the size only would be wrong: without free memory `fallocate` fails, and a write to the mapping
        // would kill the process.
        fallocate(&memory, FallocateFlags::empty(), 0, len as u64).doing("fallocate")?;
        let mapped = Shared::map(&memory, len)?;
        Ok(Made {
            memory: mapped,
            opened: Opened { first: vec![memory], second: vec![note::write(&name)?] },
            keeper: Some(keeper),
        })
    }

    fn take(descriptors: Vec<OwnedFd>, side: Side, len: usize) -> Result<Shared> {
        let [descriptor] = exactly(descriptors)?;
        if side == Side::First {
            return Shared::map(descriptor, len);
        }
        let name: CString = note::read(descriptor)?;
        let memory = shm::open(&*name, shm::OFlags::RDWR, Mode::empty()).doing("shm_open")?;
        // Both sides have the memory open now, and no other process needs the name.
        shm::unlink(&*name).doing("shm_unlink")?;
        Shared::map(memory, len)
    }
}

/// Memory from `memfd_create`, which has no name. The descriptor is sent over a Unix socket (`SCM_RIGHTS`). When the
/// last descriptor is closed the memory is freed, whichever process died.
#[derive(Debug)]
pub(crate) struct Memfd;

impl Carrier for Memfd {
    const KIND: Kind = Kind::Memfd;
    const KEPT: bool = false;

    fn make(len: usize) -> Result<Made> {
        let memory = Shared::create(len)?;
        let mapped = Shared::map(&memory, len)?;
        let other = memory.try_clone().doing("dup")?;
        Ok(Made { memory: mapped, opened: Opened { first: vec![memory], second: vec![other] }, keeper: None })
    }

    fn take(descriptors: Vec<OwnedFd>, _: Side, len: usize) -> Result<Shared> {
        let [memory] = exactly(descriptors)?;
        Shared::map(memory, len)
    }
}
