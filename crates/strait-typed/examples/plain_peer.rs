//! A program whose peer is written in Python: typed values on this side, the codec `plain` of `strait-ipc` on the
//! other. The tests of the Python package run it in both roles:
//!
//! ```text
//! plain_peer                  the child of a Python program: carries out jobs
//! plain_peer PYTHON SCRIPT    starts a Python program, and gives jobs to it
//! plain_peer echo             sends each message of its parent back, with the handles
//! plain_peer echo PROGRAM     starts a program, and sends the messages through it
//! ```

use std::error::Error;
use std::io::Read;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strait::pipe::DataPipe;
use strait::region::Region;
use strait::{Channel, CommandExt, Outgoing};
use strait_typed::codec::MsgPack;
use strait_typed::{Array, End, Fd, Order, RawEnd, Reader, Shared, Typed, Writer};

/// How long each step may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A job: numbers to compute with, and handles of every kind.
#[derive(Serialize, Deserialize)]
struct Job {
    name: String,
    numbers: Array,
    #[serde(default)]
    file: Option<Fd>,
    #[serde(default)]
    region: Option<Shared>,
    #[serde(default)]
    from: Option<Reader>,
    #[serde(default)]
    to: Option<Writer>,
    /// An end over which the answer is sent a second time.
    #[serde(default)]
    copy: Option<End<Answer, (), MsgPack>>,
    /// An end to return in the answer.
    #[serde(default)]
    back: Option<RawEnd>,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    name: String,
    sum: f64,
    /// Each number doubled.
    doubled: Array,
    text: Option<String>,
    bytes_in_region: Option<u64>,
    #[serde(default)]
    back: Option<RawEnd>,
}

/// Carries out a job.
fn serve(job: &mut Job) -> Result<Answer, Box<dyn Error>> {
    let numbers = job.numbers.to_vec::<f64>()?;
    let doubled: Vec<_> = numbers.iter().map(|number| number * 2.0).collect();
    let mut text = None;
    if let Some(file) = job.file.take().and_then(Fd::into_fd) {
        std::fs::File::from(file).read_to_string(text.insert(String::new()))?;
    }
    let region = job.region.take().and_then(Shared::into_region);
    if let (Some(from), Some(to)) = (job.from.take(), job.to.take()) {
        let mut bytes = [0; 6];
        from.into_consumer().ok_or("a reader")?.read_whole(&mut bytes, LIMIT)?;
        to.into_producer().ok_or("a writer")?.write_whole(&bytes, LIMIT)?;
    }
    Ok(Answer {
        name: job.name.to_uppercase(),
        sum: numbers.iter().sum(),
        doubled: Array::from_slice(job.numbers.shape(), &doubled)?,
        text,
        bytes_in_region: region.map(|region| region.len() as u64),
        back: job.back.take(),
    })
}

/// Serves the Python program that has started this program, until the other end is closed.
fn child() -> Result<(), Box<dyn Error>> {
    let parent = Typed::<Answer, Job, MsgPack>::from_parent()?;
    loop {
        let mut job = match parent.recv_by(LIMIT) {
            Err(strait_typed::RecvError::Channel(strait::Error::PeerClosed)) => return Ok(()),
            job => job?,
        };
        let copy = job.copy.take().and_then(End::into_typed);
        let mut answer = serve(&mut job)?;
        if let Some(copy) = copy {
            let back = answer.back.take();
            copy.send_by(&answer, LIMIT)?;
            answer.back = back;
        }
        parent.send_by(&answer, LIMIT)?;
    }
}

/// Starts a Python program and sends jobs to the program.
fn parent(python: &str, script: &str) -> Result<(), Box<dyn Error>> {
    let (mut child, typed) = Typed::<Job, Answer, MsgPack>::spawn(Command::new(python).arg(script))?;
    // Few numbers are in the bytes of the message; many are in a region.
    let bytes: Vec<_> = (0..1 << 20).flat_map(|number| f64::from(number).to_le_bytes()).collect();
    let many = Array::in_region("<f8", &[1 << 10, 1 << 10], Order::C, Region::sealed(&bytes)?, 0)?;
    let few = Array::from_slice(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0_f64])?;
    for (numbers, sum) in [(few, 15.0), (many, f64::from((1 << 20) - 1) * f64::from(1 << 19))] {
        let shape = numbers.shape().to_vec();
        let (copies, copy) = Typed::<(), Answer, MsgPack>::pair()?;
        let (ours, back) = Channel::pair()?;
        let (into, from) = DataPipe::pair(4096)?;
        let (to, out) = DataPipe::pair(4096)?;
        into.write_whole(b"stream", LIMIT)?;
        typed.send_by(
            &Job {
                name: "straße".into(),
                numbers,
                file: Some(std::fs::File::open(script)?.into()),
                region: Some(Region::sealed(b"12345")?.into()),
                from: Some(from.into()),
                to: Some(to.into()),
                copy: Some(copy.into()),
                back: Some(back.into()),
            },
            LIMIT,
        )?;
        for answer in [copies.recv_by(LIMIT)?, typed.recv_by(LIMIT)?] {
            assert_eq!((answer.name.as_str(), answer.sum), ("STRASSE", sum));
            assert_eq!(answer.doubled.shape(), shape);
            let doubled = answer.doubled.to_vec::<f64>()?;
            assert!(doubled.iter().enumerate().all(|(index, number)| *number == 2.0 * index as f64));
            assert_eq!(answer.text, Some(std::fs::read_to_string(script)?));
            assert_eq!(answer.bytes_in_region, Some(5));
            if let Some(back) = answer.back {
                back.into_channel().ok_or("an end")?.send_by(b"round trip", LIMIT).map_err(|failed| failed.error)?;
                assert_eq!(ours.recv_by(LIMIT)?.bytes(), b"round trip");
            }
        }
        let mut bytes = [0; 6];
        out.read_whole(&mut bytes, LIMIT)?;
        assert_eq!(&bytes, b"stream");
    }
    drop(typed);
    assert!(child.wait()?.success());
    println!("all right");
    Ok(())
}

/// Sends each message of the parent back: itself, or through another program.
fn echo(program: &[String]) -> Result<(), Box<dyn Error>> {
    let parent = strait::from_parent()?;
    let mut child = match program {
        [] => None,
        [program, arguments @ ..] => Some(Command::new(program).args(arguments).spawn_with_channel()?),
    };
    let pass_on = |mut message: strait::Message, channel: &Channel| -> Result<(), Box<dyn Error>> {
        let handles = message.take_handles()?;
        let outgoing = Outgoing::new(message.bytes()).handles(handles);
        Ok(channel.send_by(outgoing, LIMIT).map_err(|failed| failed.error)?)
    };
    while let Ok(mut message) = parent.recv() {
        if let Some((_, child)) = &child {
            pass_on(message, child)?;
            message = child.recv_by(LIMIT)?;
        }
        pass_on(message, &parent)?;
    }
    if let Some((mut process, channel)) = child.take() {
        drop(channel);
        assert!(process.wait()?.success());
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => child(),
        [word, program @ ..] if word == "echo" => echo(program),
        [python, script] => parent(python, script),
        _ => Err("give no arguments, or a Python and a script".into()),
    }
}
