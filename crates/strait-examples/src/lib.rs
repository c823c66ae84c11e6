//! What the programs in `src/bin` share: a picture to work on, and a file to see it in.
//!
//! * `browser`: a parent, two renderers in a sandbox, and a process that puts together what they paint.
//! * `image-pipeline`: a picture is blurred and shrunk by four processes.
//! * `thousand-clients`: a service in tasks, and a thousand clients of it.

use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Bytes of a pixel: red, green, blue.
pub const PIXEL: usize = 3;

/// The colour of a point of a picture that has no end, of which there is one for each `seed`.
pub fn pixel(seed: u32, x: usize, y: usize) -> [u8; PIXEL] {
    let (x, y) = (x as u32, y as u32);
    let rings = (x * x + y * y) >> 9;
    let weave = (x ^ y).wrapping_mul(seed * 2 + 1);
    [rings as u8, weave as u8, (x + 2 * y) as u8]
}

/// Writes a picture to a file that most viewers show (`.ppm`).
///
/// # Errors
/// As the file system has them.
pub fn save(path: impl AsRef<Path>, width: usize, pixels: &[u8]) -> io::Result<()> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    writeln!(file, "P6 {width} {} 255", pixels.len() / PIXEL / width)?;
    file.write_all(pixels)?;
    file.flush()
}
