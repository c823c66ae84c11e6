//! Shared by the example programs in `src/bin`: a picture to work on, and a file format to view it.
//!
//! * `browser`: a browser process, two sandboxed renderers, and a process that composes their tiles.
//! * `echo-service`: a service that a service manager starts when a client connects.
//! * `image-pipeline`: four processes blur a picture and shrink it.
//! * `rpc`: a service that opens files for its client, with typed calls.
//! * `thousand-clients`: an async service, and a thousand clients with calls to it.

use std::io::{self, BufWriter, Write};
use std::path::Path;

/// The number of bytes of a pixel: red, green, blue.
pub const PIXEL: usize = 3;

/// Returns the colour at one point of a test picture. Each `seed` gives another picture; a picture has no borders.
pub fn pixel(seed: u32, x: usize, y: usize) -> [u8; PIXEL] {
    let (x, y) = (x as u32, y as u32);
    let rings = (x * x + y * y) >> 9;
    let weave = (x ^ y).wrapping_mul(seed * 2 + 1);
    [rings as u8, weave as u8, (x + 2 * y) as u8]
}

/// Writes a picture to a file that most viewers can show (`.ppm`). `width` is the number of pixels in a row.
///
/// # Errors
/// Any error of creating or writing the file.
pub fn save(path: impl AsRef<Path>, width: usize, pixels: &[u8]) -> io::Result<()> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    writeln!(file, "P6 {width} {} 255", pixels.len() / PIXEL / width)?;
    file.write_all(pixels)?;
    file.flush()
}
