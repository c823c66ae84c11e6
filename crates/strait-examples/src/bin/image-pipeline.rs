//! Four processes blur a picture and shrink it to half its width and height. One pair of processes works on the upper
//! half of the picture, another pair on the lower half.
//!
//! ```sh
//! cargo run --release -p strait-examples --bin image-pipeline [small.ppm]
//! ```
//!
//! ```text
//!                    ┌─▶ blur ══ rows ══▶ shrink ─┐
//!   picture (sealed) ┤                            ├▶ result
//!                    └─▶ blur ══ rows ══▶ shrink ─┘
//! ```
//!
//! * The picture is a sealed [`Region`]: every process reads it in place, and no process can change it.
//! * Blurred rows pass from process to process through a [`DataPipe`] of a fixed size; the faster process waits for
//!   the slower process.
//! * The result is a region. Each shrinking process writes its own half of the result; then the parent process seals
//!   it.

use std::process::{Child, Command};
use std::time::Instant;

use strait::pipe::DataPipe;
use strait::region::Region;
use strait::{Channel, CommandExt, Deadline, Handle, Message, Outgoing};
use strait_examples::{PIXEL, pixel, save};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const WIDTH: usize = 3200;
const HEIGHT: usize = 2400;
const ROW: usize = WIDTH * PIXEL;
const SMALL_ROW: usize = ROW / 2;
/// The blur radius: a blurred pixel is the mean of a square with this many pixels to each side.
const RADIUS: usize = 8;
const BANDS: usize = 2;
const BAND: usize = HEIGHT / BANDS;
/// The capacity of each data pipe, in bytes: 64 rows.
const UNDER_WAY: usize = 64 * ROW;

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("blur") => blur(),
        Some("shrink") => shrink(),
        file => parent(file),
    }
}

fn parent(file: Option<&str>) -> Result<()> {
    let picture: Vec<u8> = (0..WIDTH * HEIGHT).flat_map(|n| pixel(3, n % WIDTH, n / WIDTH)).collect();
    let picture = Region::sealed(&picture)?;
    let begin = Instant::now();
    let alone = alone(&picture.view(..)?);
    let alone_took = begin.elapsed();

    let mut workers = Vec::new();
    for role in ["blur", "shrink"].repeat(BANDS) {
        let (child, channel) = start(role)?;
        // The worker has started.
        channel.recv()?;
        workers.push((child, channel));
    }
    let begin = Instant::now();
    let result = Region::new(SMALL_ROW * HEIGHT / 2)?;
    for (band, pair) in workers.chunks(2).enumerate() {
        let [(_, blur), (_, shrink)] = pair else { unreachable!("two at a time") };
        let (producer, consumer) = DataPipe::pair(UNDER_WAY)?;
        let number = [band as u8];
        blur.send(Outgoing::new(&number).handle(picture.clone()).handle(producer))?;
        shrink.send(Outgoing::new(&number).handle(consumer).handle(result.clone()))?;
    }
    for (_, channel) in &workers {
        // The worker is done. If the worker has died, the call returns an error.
        channel.recv()?;
    }
    result.seal()?;
    let result = result.view(..)?;
    let together_took = begin.elapsed();

    for (child, _) in &mut workers {
        child.wait()?;
    }
    assert!(*result == *alone, "the processes came to something else than one alone");
    println!("{WIDTH} by {HEIGHT} pixels: alone {alone_took:.1?}, {} processes {together_took:.1?}", workers.len());
    println!("the same result");
    if let Some(file) = file {
        save(file, WIDTH / 2, &result)?;
    }
    Ok(())
}

/// Does all work in this process, for comparison, and returns the result.
fn alone(picture: &[u8]) -> Vec<u8> {
    let mut blurred = Blurred::new(picture, 0);
    let mut result = vec![0; SMALL_ROW * HEIGHT / 2];
    let mut rows = [0; 2 * ROW];
    for small in result.chunks_exact_mut(SMALL_ROW) {
        blurred.next(&mut rows[..ROW]);
        blurred.next(&mut rows[ROW..]);
        halve(&rows, small);
    }
    result
}

fn start(role: &str) -> Result<(Child, Channel)> {
    Ok(Command::new(std::env::current_exe()?).arg(role).spawn_with_channel()?)
}

/// Reports to the parent that this worker has started, and receives its task. Returns the number of the half to work
/// on, and the handles of the input and of the output.
fn task(parent: &Channel) -> Result<(usize, Handle, Handle)> {
    parent.send(b"here")?;
    let mut message: Message = parent.recv()?;
    let band = message.bytes()[0].into();
    let [from, to] = message.take_handles()?.try_into().map_err(|_| "two handles")?;
    Ok((band, from, to))
}

/// Runs the process that reads the picture and writes blurred rows.
fn blur() -> Result<()> {
    let parent = strait::from_parent()?;
    let (band, picture, rows) = task(&parent)?;
    let picture = picture.into_region().ok_or("a picture")?.view(..)?;
    let rows = rows.into_producer().ok_or("a way to write rows")?;
    let mut blurred = Blurred::new(&picture, band * BAND);
    let mut row = [0; ROW];
    for _ in 0..BAND {
        blurred.next(&mut row);
        rows.write_whole(&row, Deadline::NEVER)?;
    }
    // The finished stream tells the consumer that all rows have come; a crash would not.
    drop(rows);
    parent.send(b"done")?;
    Ok(())
}

/// Runs a shrinking process: reads blurred rows, and writes half of the result.
fn shrink() -> Result<()> {
    let parent = strait::from_parent()?;
    let (band, rows, result) = task(&parent)?;
    let rows = rows.into_consumer().ok_or("rows to read")?;
    let part = SMALL_ROW * BAND / 2;
    let result = result.into_region().ok_or("a result")?.map_writable(band * part..(band + 1) * part)?;
    let (mut pair, mut small) = ([0; 2 * ROW], [0; SMALL_ROW]);
    for n in 0..BAND / 2 {
        rows.read_whole(&mut pair, Deadline::NEVER)?;
        halve(&pair, &mut small);
        result.write_at(&small, n * SMALL_ROW)?;
    }
    // Unmaps the result before the report: a region cannot be sealed while mapped writable.
    drop(result);
    parent.send(b"done")?;
    Ok(())
}

/// Blurs a picture row by row: each blurred pixel is the mean of a square around it.
struct Blurred<'a> {
    picture: &'a [u8],
    next: usize,
    /// For each byte column, the sum over the rows around the next row.
    sums: [u32; ROW],
}

impl<'a> Blurred<'a> {
    fn new(picture: &'a [u8], first: usize) -> Self {
        let mut blurred = Self { picture, next: first, sums: [0; ROW] };
        for row in first.saturating_sub(RADIUS)..first + RADIUS {
            blurred.add(row);
        }
        blurred
    }

    fn row(&self, row: usize) -> &'a [u8] {
        &self.picture[row * ROW..][..ROW]
    }

    fn add(&mut self, row: usize) {
        let row = self.row(row);
        for (sum, value) in self.sums.iter_mut().zip(row) {
            *sum += u32::from(*value);
        }
    }

    /// Writes the next blurred row to `out`.
    fn next(&mut self, out: &mut [u8]) {
        let (first, end) = (self.next.saturating_sub(RADIUS), (self.next + RADIUS + 1).min(HEIGHT));
        if self.next + RADIUS < HEIGHT {
            self.add(self.next + RADIUS);
        }
        for colour in 0..PIXEL {
            let column = |x: usize| self.sums[x * PIXEL + colour];
            let mut sum: u32 = (0..RADIUS).map(column).sum();
            for x in 0..WIDTH {
                let (left, right) = (x.saturating_sub(RADIUS), (x + RADIUS + 1).min(WIDTH));
                if x + RADIUS < WIDTH {
                    sum += column(x + RADIUS);
                }
                out[x * PIXEL + colour] = (sum / ((right - left) * (end - first)) as u32) as u8;
                if x >= RADIUS {
                    sum -= column(left);
                }
            }
        }
        if self.next >= RADIUS {
            let leaving = self.row(first);
            for (sum, value) in self.sums.iter_mut().zip(leaving) {
                *sum -= u32::from(*value);
            }
        }
        self.next += 1;
    }
}

/// Makes one row of two: each pixel is the mean of four.
fn halve(two_rows: &[u8], small: &mut [u8]) {
    let (upper, lower) = two_rows.split_at(ROW);
    for (n, mean) in small.iter_mut().enumerate() {
        let at = n / PIXEL * 2 * PIXEL + n % PIXEL;
        let sum = [upper[at], upper[at + PIXEL], lower[at], lower[at + PIXEL]].map(u32::from).iter().sum::<u32>();
        *mean = (sum / 4) as u8;
    }
}
