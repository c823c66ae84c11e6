//! Three processes pass large frames on: a camera fills a frame, a filter changes it in place, a screen looks at it.
//!
//! ```sh
//! cargo run --release -p strait-examples --bin frames [NUMBER [BYTES]]      # 200 frames of 8 MiB by default
//! ```
//!
//! ```text
//!   camera ──number──▶ filter ──number──▶ screen
//!      ▲                                     │
//!      └──────── number of a free frame ─────┘
//! ```
//!
//! * The frames lie in a few regions, which the camera makes once and gives to the other two processes. Each process
//!   maps each region once. From then on a message is the number of a region, so no frame is copied, and no frame costs
//!   a system call or a page fault.
//! * The process that has received a number owns the frame until it sends the number on. The processes trust each other
//!   in this respect: another process that writes to a frame out of turn breaks what [`Frame::bytes`] relies on.
//! * If one of the three processes dies, the other two are notified at once, and end.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use strait::region::{RegionMap, RegionOptions};
use strait::{Channel, CommandExt, Error, Outgoing};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The number of frames that go round.
const FRAMES: usize = 4;
/// The longest wait. No frame takes so long on a working machine; a stuck process ends with an error instead of a hang.
const LIMIT: Duration = Duration::from_secs(60);
/// The bytes of the number with which each frame begins.
const NUMBER: usize = 8;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let worked = match arguments.first().map(String::as_str) {
        Some("filter") => filter(),
        Some("screen") => screen(),
        count => {
            let count = count.map_or(Ok(200), str::parse)?;
            return camera(count, arguments.get(1).map_or(Ok(8 << 20), |bytes| bytes.parse())?);
        }
    };
    match worked {
        // The neighbour has ended, so the work has ended too.
        Err(error) if matches!(error.downcast_ref(), Some(Error::PeerClosed)) => Ok(()),
        worked => worked,
    }
}

/// A frame that this process has mapped.
struct Frame(RegionMap);

impl Frame {
    /// Returns the bytes of the frame.
    ///
    /// # Safety
    /// This process owns the frame: it has received the frame's number and has not sent the number on. The other
    /// processes keep to that rule, and the caller uses the bytes only until it sends the number on.
    unsafe fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is mapped as long as `self.0` lives. By the caller's promise no other process accesses
        // the memory meanwhile, and `&mut self` excludes other slices of this process.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }
}

/// The frames, mapped, and the channels to the two neighbours.
struct Work {
    frames: Vec<Frame>,
    from: Channel,
    to: Channel,
}

impl Work {
    /// Receives the frames and channels of this process from the camera.
    fn receive() -> Result<Self> {
        let mut message = strait::from_parent()?.recv_by(LIMIT)?;
        let mut handles = message.take_handles()?;
        let (Some(to), Some(from)) = (handles.pop(), handles.pop()) else { return Err("no channels".into()) };
        let frames = handles.into_iter().map(|handle| {
            let region = handle.into_region().ok_or("a frame that is no region")?;
            Ok(Frame(region.map_writable(..)?))
        });
        Ok(Self {
            frames: frames.collect::<Result<_>>()?,
            from: from.into_channel().ok_or("no channel to the process before")?,
            to: to.into_channel().ok_or("no channel to the next process")?,
        })
    }

    /// Waits for the number of a frame, which this process owns from then on.
    fn next(&self) -> Result<usize> {
        let mut number = [0];
        self.from.recv_into(&mut number, LIMIT)?;
        let [number] = number.map(usize::from);
        if number < self.frames.len() { Ok(number) } else { Err("there is no such frame".into()) }
    }

    /// Gives the frame `number` to the next process.
    fn pass_on(&self, number: usize) -> Result<()> {
        Ok(self.to.send_by(&[number as u8], LIMIT).map_err(Error::from)?)
    }
}

/// Runs the process that inverts each frame.
fn filter() -> Result<()> {
    let mut work = Work::receive()?;
    loop {
        let number = work.next()?;
        // SAFETY: this process owns the frame until `pass_on`.
        let pixels = unsafe { &mut work.frames[number].bytes()[NUMBER..] };
        pixels.iter_mut().for_each(|pixel| *pixel = !*pixel);
        work.pass_on(number)?;
    }
}

/// Runs the process that checks that every frame arrives, in order and whole.
fn screen() -> Result<()> {
    let mut work = Work::receive()?;
    for expected in 0u64.. {
        let number = work.next()?;
        // SAFETY: this process owns the frame until `pass_on`.
        let frame = unsafe { work.frames[number].bytes() };
        let pixel = !((expected % 251) as u8);
        let is_whole = frame[NUMBER] == pixel && frame.last() == Some(&pixel);
        if frame[..NUMBER] != expected.to_ne_bytes() || !is_whole {
            return Err("a wrong frame".into());
        }
        work.pass_on(number)?;
    }
    Ok(())
}

/// Starts the other two processes. Returns the processes, with the frames and channels of the camera.
fn start(size: usize) -> Result<([Child; 2], Work)> {
    let (to_filter, filter_from) = Channel::pair()?;
    let (filter_to, screen_from) = Channel::pair()?;
    let (screen_to, from_screen) = Channel::pair()?;
    let regions = (0..FRAMES).map(|_| RegionOptions::new().name("frames").huge_pages(true).create(size));
    let regions = regions.collect::<std::result::Result<Vec<_>, _>>()?;

    let start = |role, from: Channel, to: Channel| -> Result<Child> {
        let (child, channel) = Command::new(std::env::current_exe()?).arg(role).spawn_with_channel()?;
        let frames = regions.iter().map(|region| region.clone().into());
        channel.send(Outgoing::new(b"work").handles(frames).handle(from).handle(to)).map_err(Error::from)?;
        Ok(child)
    };
    let children = [start("filter", filter_from, filter_to)?, start("screen", screen_from, screen_to)?];
    let frames = regions.iter().map(|region| Ok(Frame(region.map_writable(..)?))).collect::<Result<_>>()?;
    Ok((children, Work { frames, from: from_screen, to: to_filter }))
}

/// Runs the process that fills `count` frames of `size` bytes.
fn camera(count: u64, size: usize) -> Result<()> {
    if size <= NUMBER {
        return Err(format!("a frame has more than {NUMBER} bytes").into());
    }
    let (children, mut work) = start(size)?;
    let begin = Instant::now();
    for number in 0..count {
        // The first frames are free from the beginning; later ones come back from the screen.
        let index = if number < FRAMES as u64 { number as usize } else { work.next()? };
        // SAFETY: this process owns the frame until `pass_on`.
        let frame = unsafe { work.frames[index].bytes() };
        frame.fill((number % 251) as u8);
        frame[..NUMBER].copy_from_slice(&number.to_ne_bytes());
        work.pass_on(index)?;
    }
    for _ in 0..count.min(FRAMES as u64) {
        work.next()?;
    }
    let took = begin.elapsed().as_secs_f64();
    println!("{count} frames of {size} bytes through three processes, every one right");
    println!("{:.0} frames a second", count as f64 / took);

    // The filter ends when the camera closes its channel, and the screen when the filter does.
    drop(work);
    for mut child in children {
        if !child.wait()?.success() {
            return Err("a process failed".into());
        }
    }
    Ok(())
}
