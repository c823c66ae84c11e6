//! Progress on standard error: a bar at a terminal, a plain line now and then elsewhere.
//!
//! It moves only between measurements. A bar that redraws itself from a thread of its own would take a processor
//! from what is being measured.

use std::io::{IsTerminal, stderr};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

/// How far a suite has come.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    steps: u64,
    done: u64,
    said: u64,
    since: Instant,
}

impl Progress {
    /// Nothing of `steps` is done.
    pub fn new(steps: usize) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed}, {eta} left  {wide_msg}")
                .expect("the template is valid");
            ProgressBar::new(steps as u64).with_style(style)
        });
        Self { bar, steps: steps as u64, done: 0, said: 0, since: Instant::now() }
    }

    /// The next step begins.
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

    /// Everything is done.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
