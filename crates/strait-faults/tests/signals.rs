//! Signals that interrupt system calls: the library repeats each call. One test runs the part of the kill matrix in
//! which a signal interrupts each system call once; the others cover calls outside the matrix.

#![cfg(strait_fault_points)]

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek};
use std::process::Command;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use strait::pipe::DataPipe;
use strait::region::Region;
use strait::{Channel, Deadline, fault};

#[test]
fn every_system_call_that_a_signal_interrupts_is_made_again() {
    let mut matrix = Command::new(env!("CARGO_BIN_EXE_strait-faults"));
    matrix.args(["--actions", "fail", "--errors", "EINTR", "--deadline", "60"]);
    assert!(matrix.status().unwrap().success());
}

/// Runs `action`, in which a signal interrupts the first system call named `call`. The plan is for the whole process,
/// so only one test at a time has a plan.
fn interrupted<T>(call: &str, action: impl FnOnce() -> T) -> T {
    static PLAN: Mutex<()> = Mutex::new(());
    let _turn = PLAN.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(fault::follow(&format!("fail:{call}:EINTR:1")));
    let done = action();
    assert!(fault::is_past(), "no call of {call}");
    done
}

/// Returns a new file of this process alone, without a name.
fn file() -> File {
    rustix::fs::memfd_create("a file", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
}

#[test]
fn bytes_between_a_pipe_and_a_file_move_in_spite_of_a_signal() {
    let (producer, consumer) = DataPipe::pair(4096).unwrap();
    let zeroes = File::open("/dev/zero").unwrap();
    assert_eq!(interrupted("read", || producer.splice_from(&zeroes, 100, Deadline::NOW)), Ok(100));
    let mut copy = file();
    assert_eq!(interrupted("write", || consumer.splice_to(&copy, 100, Deadline::NOW)), Ok(100));
    let mut bytes = Vec::new();
    copy.rewind().unwrap();
    copy.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, [0; 100]);
}

#[test]
fn a_region_is_read_in_spite_of_a_signal() {
    let region = Region::new(100).unwrap();
    region.write_at(b"hello", 50).unwrap();
    let mut bytes = [0; 5];
    interrupted("pread", || region.read_at(&mut bytes, 50)).unwrap();
    assert_eq!(&bytes, b"hello");
}

/// Opens the memory of the only sealed message in the making in this process.
fn memory_of_message() -> File {
    let is_memory = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:strait-sealed"))
    };
    let mut paths = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let path = paths.find(is_memory).expect("memory of a message");
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Shows that a sealed message is sent even if the memory has another writable mapping. The kernel refuses to seal such
/// memory, so the library copies the message, in spite of a signal during the copying.
#[test]
fn memory_that_cannot_be_sealed_is_copied_in_spite_of_a_signal() {
    const LEN: usize = 100_000;
    let (a, b) = Channel::pair().unwrap();
    let mut message = a.reserve_sealed(LEN).unwrap();
    message.bytes().fill(7);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a null hint makes the kernel choose fresh address space.
    let mapping = unsafe { mmap(ptr::null_mut(), LEN, access, MapFlags::SHARED, memory_of_message(), 0) }.unwrap();
    interrupted("pread", || message.commit(Deadline::NEVER)).unwrap();
    // SAFETY: the mapping was made above and is not used.
    unsafe { munmap(mapping, LEN) }.unwrap();
    assert_eq!(b.recv().unwrap().bytes(), [7; LEN]);
}
