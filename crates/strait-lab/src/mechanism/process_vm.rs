//! `process_vm_readv`: the receiver copies the message straight out of the sender's memory.
//!
//! There is one copy instead of two. Only two words are shared: the place of the message, and the receipt from the
//! receiver. At each call the kernel checks whether the receiver may access the sender's memory, so the call pays for
//! large messages only. A process that may make the call may read all other memory of the sender too.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{PTracer, Pid, getpid, getppid, set_ptracer};

use super::rendezvous::Rendezvous;
use super::{Ability, End, Opened, Side};
use crate::sys::memory::read_from;
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// One process's end: the peer's process id, and the shared words.
#[derive(Debug)]
pub(crate) struct ProcessVm {
    peer: Pid,
    words: Rendezvous,
}

impl End for ProcessVm {
    const NAME: &'static str = "process-vm";
    const TITLE: &'static str = "process_vm_readv";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] = &[];

    fn missing() -> Option<String> {
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
        if let Ok(scope @ (2 | 3)) = scope.trim().parse::<u32>() {
            return Some(format!("kernel.yama.ptrace_scope is {scope}: no process may read the memory of another"));
        }
        let (there, mut here) = ([7u8; 8], [0; 8]);
        match read_from(getpid(), there.as_ptr().addr() as u64, &mut here) {
            Ok(_) => None,
            Err(Errno::NOSYS) => Some("this kernel does not support it (CONFIG_CROSS_MEMORY_ATTACH)".to_owned()),
            Err(error) => Some(format!("process_vm_readv: {error}; perhaps a sandbox forbids it")),
        }
    }

    fn open(_: &Work) -> Result<Opened> {
        Rendezvous::open()
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        // Yama may restrict the call to children, so each side allows its peer. Without Yama `prctl` does not know
        // the request, and it is not needed.
        let _ = set_ptracer(PTracer::Any);
        let mut words = Rendezvous::join(work, side, descriptors)?;
        // Each side sends its process id, and thereby confirms that it has allowed the call.
        let own = getpid().as_raw_nonzero().get();
        let peer = match side {
            Side::First => {
                let peer = words.borrow()?;
                words.take()?;
                words.lend(own as u64)?;
                words.wait_until_taken()?;
                Pid::from_raw(peer as i32)
            }
            Side::Second => {
                words.lend(own as u64)?;
                words.wait_until_taken()?;
                words.borrow()?;
                words.take()?;
                getppid()
            }
        };
        Ok(Self { peer: peer.ok_or_else(|| Trouble::new("the other process has no valid process id"))?, words })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.words.lend(message.as_ptr().expose_provenance() as u64)?;
        self.words.wait_until_taken()
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut address = self.words.borrow()?;
        let mut rest = &mut buffer[..];
        while !rest.is_empty() {
            let got = read_from(self.peer, address, rest).doing("process_vm_readv")?;
            if got == 0 {
                return Err(Trouble::new("no byte of the message could be read"));
            }
            address += got as u64;
            rest = &mut rest[got..];
        }
        self.words.take()
    }
}
