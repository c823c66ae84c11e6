//! A kernel that refuses system calls: the victim reports each refused call, or works without the call.

use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Outgoing};
use strait_hostile::RawPeer;

use crate::common::*;

/// Makes a system call fail with this error from now on, only in this thread.
fn refuse(call: libc::c_long, errno: i32) {
    const ALLOW: u32 = 0x7fff_0000;
    const ERRNO: u32 = 0x0005_0000;
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // The number of the call.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, ERRNO | errno as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel reads the program only during the call, and the program is as long as its length field.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Returns whether an error names the refused call, or reports that the call would have to wait.
fn is_clear(error: Error) -> bool {
    matches!(
        error,
        Error::System { .. }
            | Error::NoMemory { .. }
            | Error::NoDescriptors
            | Error::WouldBlock
            | Error::TimedOut
            | Error::PeerClosed
            | Error::HandlesLost { .. }
    )
}

attack! {
    /// Each system call of the library is refused, from the start, and once a channel is open.
    a31_calls_that_are_refused {
        let bystander = Bystander::new();
        let calls = [
            libc::SYS_memfd_create, libc::SYS_ftruncate, libc::SYS_fcntl, libc::SYS_madvise, libc::SYS_futex,
            libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_recvfrom, libc::SYS_ppoll, libc::SYS_setsockopt, libc::SYS_getsockopt,
            libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_getrandom, libc::SYS_socketpair, libc::SYS_epoll_create1,
            libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_eventfd2, libc::SYS_pidfd_open, libc::SYS_pwrite64, libc::SYS_dup, libc::SYS_shutdown,
        ];
        for call in calls {
            for errno in [libc::EPERM, libc::ENOSYS, libc::EACCES] {
                for later in [false, true] {
                    let (ours, theirs) = sockets();
                    let mut theirs = Some(theirs);
                    let mut early = later.then(|| Channel::over(theirs.take().unwrap()).unwrap());
                    let mut peer = RawPeer::meet(ours).unwrap();
                    peer.send(b"first").unwrap();
                    if let Some(channel) = &early {
                        assert_eq!(channel.try_recv().unwrap().bytes(), b"first");
                    }
                    let mut file = Some(file_with(b"x"));
                    let send = |channel: &Channel, message: Outgoing<'_>| channel.try_send(message).map_err(|failed| failed.error).err();
                    let play = || {
                        refuse(call, errno);
                        let mut errors = Vec::new();
                        let channel = match early.take() {
                            Some(channel) => channel,
                            None => match Channel::over(theirs.take().unwrap()) {
                                Ok(channel) => channel,
                                Err(error) => return vec![error],
                            },
                        };
                        errors.extend(channel.recv_by(Deadline::NOW).err());
                        errors.extend(send(&channel, Outgoing::new(b"small")));
                        errors.extend(send(&channel, Outgoing::new(&[1; 100_000])));
                        errors.extend(file.take().and_then(|file| send(&channel, Outgoing::new(b"").handle(file))));
                        errors.extend((0..100).find_map(|_| send(&channel, Outgoing::new(&[1; 500]))));
                        errors.extend(channel.recv_by(std::time::Duration::from_millis(2)).err());
                        errors.extend(channel.reserve_sealed(5).and_then(|room| room.commit(Deadline::NOW).map_err(Error::from)).err());
                        errors.extend(channel.peer_pidfd().err());
                        match WaitSet::new() {
                            Ok(set) => {
                                errors.extend(set.add(&channel, 1, Interest::Both, Mode::Level).err());
                                errors.extend(set.wait(&mut Vec::new(), Deadline::NOW).err());
                            }
                            Err(error) => errors.push(error),
                        }
                        errors
                    };
                    let errors = std::thread::scope(|scope| scope.spawn(play).join().unwrap());
                    for error in errors {
                        assert!(is_clear(error), "call {call}, {errno}, {later}: {error:?}");
                    }
                }
            }
        }
        bystander.assert_undisturbed();
    }
}
