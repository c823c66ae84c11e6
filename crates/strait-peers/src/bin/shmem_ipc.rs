//! shmem-ipc: a ring of bytes in shared memory, with an eventfd for each side. Messages have their length before them.

use std::fs::File;
use std::os::fd::AsRawFd;

use shmem_ipc::sharedring::{Receiver, Sender};
use strait_peers::{Client, Meeting, Peer, Result, serve_with};

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "shmem-ipc",
        default: "a ring of 2 MiB, block_until_readable",
        tuned: None,
        serve,
        connect,
    })
}

const CAPACITY: usize = 2 << 20;

/// Returns the paths by which another process of this user can open the descriptors of a ring.
fn paths(files: [&File; 3]) -> String {
    let process = std::process::id();
    files.map(|file| format!("/proc/{process}/fd/{}", file.as_raw_fd())).join(" ")
}

/// Returns copies of another process's descriptors.
///
/// The library's own example passes the descriptors over D-Bus. An eventfd cannot be opened by a path, so this
/// function uses `pidfd_getfd`, which needs the right to trace the other process.
fn taken(words: &mut std::str::SplitWhitespace<'_>) -> Result<[File; 3]> {
    let mut next = || -> Result<File> {
        let path = words.next().ok_or("the server named too few descriptors")?;
        let mut parts = path.trim_start_matches("/proc/").split("/fd/");
        let mut number = || -> Result<i32> { Ok(parts.next().ok_or("no number in a path")?.parse()?) };
        let (process, descriptor) = (number()?, number()?);
        // SAFETY: the arguments are plain numbers, and nothing else owns the new descriptors.
        unsafe {
            let pidfd = libc::syscall(libc::SYS_pidfd_open, process, 0);
            let file = libc::syscall(libc::SYS_pidfd_getfd, pidfd, descriptor, 0);
            libc::close(pidfd as i32);
            match file {
                file if file < 0 => Err(std::io::Error::last_os_error().into()),
                file => Ok(std::os::fd::FromRawFd::from_raw_fd(file as i32)),
            }
        }
    };
    Ok([next()?, next()?, next()?])
}

fn serve(_: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let mut from = Receiver::<u8>::new(CAPACITY)?;
    let mut to = Sender::<u8>::new(CAPACITY)?;
    let there = paths([from.memfd().as_file(), from.empty_signal(), from.full_signal()]);
    let back = paths([to.memfd().as_file(), to.empty_signal(), to.full_signal()]);
    ready(&format!("{there} {back}"));
    serve_with(|message| receive(&mut from, message), |message| send(&mut to, message))
}

fn connect(_: &Meeting, word: &str) -> Result<Box<dyn Client>> {
    let mut words = word.split_whitespace();
    let [memory, empty, full] = taken(&mut words)?;
    let to = Sender::open(CAPACITY, memory, empty, full)?;
    let [memory, empty, full] = taken(&mut words)?;
    let from = Receiver::open(CAPACITY, memory, empty, full)?;
    Ok(Box::new(Ring { to, from }))
}

/// Writes all bytes, as room comes.
fn write(to: &mut Sender<u8>, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let mut written = 0;
        // SAFETY: the library gives room for `room` bytes.
        to.send_raw(|at, room| unsafe {
            written = room.min(bytes.len());
            at.copy_from_nonoverlapping(bytes.as_ptr(), written);
            written
        })?;
        bytes = &bytes[written..];
        if !bytes.is_empty() {
            to.block_until_writable()?;
        }
    }
    Ok(())
}

/// Reads exactly as many bytes as fit.
fn read(from: &mut Receiver<u8>, mut bytes: &mut [u8]) -> Result<()> {
    while !bytes.is_empty() {
        let mut read = 0;
        // SAFETY: the library gives `there` bytes.
        from.receive_raw(|at, there| unsafe {
            read = there.min(bytes.len());
            at.copy_to_nonoverlapping(bytes.as_mut_ptr(), read);
            read
        })?;
        bytes = &mut bytes[read..];
        if !bytes.is_empty() && read == 0 {
            from.block_until_readable()?;
        }
    }
    Ok(())
}

fn send(to: &mut Sender<u8>, message: &[u8]) -> Result<()> {
    write(to, &(message.len() as u64).to_le_bytes())?;
    write(to, message)
}

fn receive(from: &mut Receiver<u8>, message: &mut Vec<u8>) -> Result<()> {
    let mut len = [0; 8];
    read(from, &mut len)?;
    message.resize(usize::try_from(u64::from_le_bytes(len))?, 0);
    read(from, message)
}

struct Ring {
    to: Sender<u8>,
    from: Receiver<u8>,
}

impl Client for Ring {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        send(&mut self.to, request)?;
        receive(&mut self.from, reply)
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        send(&mut self.to, message)
    }
}
