//! Hosting: a thread starts a guest, with an invitation or with an inherited channel, and checks that every message
//! to the guest comes back.

use std::process::{Child, Command};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use strait::pipe::DataPipe;
use strait::{Channel, Error, Listener, Options, Outgoing};

use super::{About, Walker, bytes_of, said};
use crate::content::{check_file, file};
use crate::guest::PATIENCE;
use crate::ledger::faults;
use crate::trail::{Call, NO_END};

/// The stream number of messages to guests; the ledger has no record of that stream.
const TO_GUEST: u32 = u32::MAX;

impl Walker {
    /// Starts a guest, sends it some messages, and waits for its end. Does nothing in a world with shortages, because
    /// a process may fail to start in a shortage.
    pub(super) fn host_guest(&mut self) {
        let has_shortages = self.process.ledger.faults.load(SeqCst) & (faults::DESCRIPTORS | faults::MEMORY) != 0;
        if has_shortages || !self.random.one_in(4) {
            return;
        }
        let about = About { call: Call::HostGuest, end: NO_END, number: 0 };
        let directory = self.process.directory.clone();
        let name = format!("guest-{}-{}", self.process.number, self.number);
        let is_invited = self.random.one_in(2);
        let host = || if is_invited { invite(&directory, &name) } else { spawn() };
        let (child, channel) = match self.timed(about, PATIENCE, host, said) {
            Ok(hosted) => hosted,
            Err(error) => {
                self.process.wrong(None, &format!("a guest does not come (invited: {is_invited}): {error:?}"))
            }
        };
        for number in 0..1 + self.random.below(4) {
            let filling = self.filling();
            let about = About { call: Call::AskGuest, end: NO_END, number };
            let asked = self.timed(about, PATIENCE, || send_around(&channel, number, filling), |_| String::new());
            if let Err(what) = asked {
                self.process.wrong(None, &format!("message {number} to a guest (invited: {is_invited}): {what}"));
            }
        }
        let about = About { call: Call::EndGuest, end: NO_END, number: 0 };
        drop(channel);
        let ended = self.timed(about, PATIENCE, || await_end(child), |_| String::new());
        if let Err(what) = ended {
            self.process.wrong(None, &format!("a guest whose host has closed the channel {what}"));
        }
        self.process.ledger.guests.fetch_add(1, SeqCst);
    }
}

fn command(way: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--guest", way]);
    command
}

/// Starts a guest with an invitation to a listener that accepts only the guest.
fn invite(directory: &str, name: &str) -> Result<(Child, Channel), Error> {
    let listener = Listener::builder().directory(directory).invited_only().bind(name)?;
    let invitation = listener.invite(PATIENCE)?;
    let child = invitation.spawn(&mut command("invited"))?;
    let channel = invitation.accept(PATIENCE)?;
    Ok((child, channel))
}

/// Starts a guest that inherits its channel.
fn spawn() -> Result<(Child, Channel), Error> {
    Ok(Options::new().spawn(&mut command("spawned"))?)
}

/// Sends a guest a message with a file and an end, and checks that the message comes back with both.
fn send_around(channel: &Channel, number: u64, filling: usize) -> Result<(), String> {
    let failed = |error: Error| format!("{error:?}");
    let (stays, travels) = Channel::pair().map_err(failed)?;
    let bytes = bytes_of(TO_GUEST, number, &[], 1, filling);
    let file = file(TO_GUEST, number, 0).ok_or("no file")?;
    let (producer, consumer) = DataPipe::pair(bytes.len()).map_err(failed)?;
    stays.send_by(&bytes, PATIENCE).map_err(|failed| format!("{failed:?}"))?;
    let message = Outgoing::new(&bytes).handle(travels).handle(file).handle(producer);
    channel.send_by(message, PATIENCE).map_err(|failed| format!("{failed:?}"))?;
    let mut echo = channel.recv_by(PATIENCE).map_err(failed)?;
    let mut handles = echo.take_handles().map_err(failed)?.into_iter();
    let travels = handles.next().and_then(strait::Handle::into_channel).ok_or("the end has not come back")?;
    check_file(handles.next().ok_or("the file has not come back")?, TO_GUEST, number, 0, false)?;
    let producer = handles.next().and_then(strait::Handle::into_producer).ok_or("the pipe has not come back")?;
    producer.write_whole(&bytes, PATIENCE).map_err(failed)?;
    let mut piped = vec![0; bytes.len()];
    consumer.read_whole(&mut piped, PATIENCE).map_err(failed)?;
    let brought = travels.recv_by(PATIENCE).map_err(failed)?;
    stays.send_by(&bytes, PATIENCE).map_err(|failed| format!("{failed:?}"))?;
    let after = travels.recv_by(PATIENCE).map_err(failed)?;
    let all = [echo.bytes(), brought.bytes(), after.bytes(), &piped];
    if all.iter().all(|found| *found == bytes) { Ok(()) } else { Err("other bytes have come back".into()) }
}

/// Waits for a guest to end by itself.
fn await_end(mut child: Child) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("ended with {status}")),
            Ok(None) if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) => return Err("does not end".into()),
            Err(error) => return Err(error.to_string()),
        }
    }
}
