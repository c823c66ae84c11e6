//! The files that options such as `-o` name.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use strait_lab::trouble::{Result, While};

/// A file that is written after a measurement, and was checked before it.
#[derive(Debug)]
pub(crate) struct Output {
    name: PathBuf,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// A device, a FIFO or another special file. The file is opened before the measurement, so the reader of a FIFO
    /// does not find the end of the file before the text.
    Straight(File),
    /// The file at this path is replaced by a new file. The path contains no symbolic link.
    Replaced(PathBuf),
}

impl Output {
    /// Opens or checks the file `name`, without a change of its content. Makes an empty file if there is none. If
    /// `name` is a FIFO, blocks until a process opens it for reading.
    ///
    /// # Errors
    /// If [`write`](Self::write) could not write the file, or could not make a new file beside it.
    pub(crate) fn open(name: &Path) -> Result<Self> {
        let opening = format!("opening {}", name.display());
        let file = OpenOptions::new().append(true).create(true).open(name).doing(&opening)?;
        let way = if file.metadata().doing(&opening)?.is_file() {
            let path = fs::canonicalize(name).doing(&opening)?;
            let new = new_beside(&path);
            make(&new).and_then(|_| fs::remove_file(&new)).doing(&format!("making {}", new.display()))?;
            Way::Replaced(path)
        } else {
            Way::Straight(file)
        };
        Ok(Self { name: name.to_owned(), way })
    }

    /// Returns the name of the file as given on the command line.
    pub(crate) fn name(&self) -> std::path::Display<'_> {
        self.name.display()
    }

    /// Writes `text` to the file. A regular file is never incomplete: the text goes to a new file, which then replaces
    /// the old file.
    ///
    /// # Errors
    /// If the file cannot be written. A regular file that was there before is unchanged then.
    pub(crate) fn write(&mut self, text: &str) -> Result<()> {
        let written = match &mut self.way {
            Way::Straight(file) => file.write_all(text.as_bytes()),
            Way::Replaced(path) => {
                let new = new_beside(path);
                let mut file = make(&new).doing(&format!("making {}", new.display()))?;
                file.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, path)).inspect_err(|_| {
                    // The new file is incomplete.
                    let _ = fs::remove_file(&new);
                })
            }
        };
        written.doing(&format!("writing {}", self.name()))
    }
}

/// Makes the new file `path`. Fails if there is such a file or link: another user may have put it there.
fn make(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Returns the path of the new file that replaces the file at `path`. The path differs from process to process.
fn new_beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    path.with_file_name(name)
}
