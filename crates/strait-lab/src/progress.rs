//! Progress on standard error: a bar on a terminal, and otherwise a line for each tenth of the suite.
//!
//! The output changes between measurements only. A bar with its own redrawing thread would take a processor from the
//! measurement.

use std::io::{IsTerminal, stderr};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

/// The progress of a suite, and its output.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    steps: u64,
    done: u64,
    said: u64,
    since: Instant,
}

impl Progress {
    /// Shows the progress of a suite with `steps` steps, none of which is done.
    pub fn new(steps: usize) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed}, {eta} left  {wide_msg}")
                .expect("the template is valid");
            ProgressBar::new(steps as u64).with_style(style)
        });
        Self { bar, steps: steps as u64, done: 0, said: 0, since: Instant::now() }
    }

    /// Shows that the next step, described by `what`, begins.
    pub fn step(&mut self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
            bar.set_message(what.to_owned());
            bar.tick();
        } else if self.done == 0 || (self.done - self.said) * 10 >= self.steps {
            self.said = self.done;
            let percent = 100 * self.done / self.steps.max(1);
            let elapsed = self.since.elapsed().as_secs();
            let left = (elapsed * (self.steps - self.done)).checked_div(self.done);
            let left = left.map_or(String::new(), |left| format!(", {left} s left"));
            eprintln!("{percent:3} %  {elapsed:3} s{left}  {what}");
        }
        self.done += 1;
    }

    /// Removes the bar: all steps are done, or the suite ends early.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
