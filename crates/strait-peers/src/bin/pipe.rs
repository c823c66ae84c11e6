//! Two named pipes, with the length of a message before its bytes.

use std::fs::{File, OpenOptions};

use strait_peers::{Client, Meeting, Peer, Result, frames};

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "pipe",
        default: "write_all of length and bytes, read_exact",
        tuned: None,
        serve,
        connect,
    })
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    for name in ["there", "back"] {
        let path = std::ffi::CString::new(meeting.path(name))?;
        // SAFETY: the path is a C string of this function.
        if unsafe { libc::mkfifo(path.as_ptr(), 0o600) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
    }
    ready("");
    let from = File::open(meeting.path("there"))?;
    frames::serve(from, OpenOptions::new().write(true).open(meeting.path("back"))?)
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let to = OpenOptions::new().write(true).open(meeting.path("there"))?;
    let from = File::open(meeting.path("back"))?;
    Ok(Box::new(frames::Framed { from, to, buffer: Vec::new() }))
}
