//! A small browser. Each tab has a renderer: a process that runs whatever the page brings along, and so has given up
//! all rights before it looks at it. What it paints it hands, tile by tile, to a process that puts the window together
//! (in a real browser: the one that talks to the graphics card).
//!
//! ```sh
//! cargo run --release -p strait-examples --bin browser [window.ppm]
//! ```
//!
//! ```text
//!             ┌──────── renderer of tab 0 ────────┐ tiles
//!   browser ──┼──────── renderer of tab 1 ────────┼──────▶ compositor
//!             └───────────────────────────────────┴────────────┘
//! ```
//!
//! * The browser makes the channel between a renderer and the compositor, and sends each of the two one end of it. From
//!   then on they talk to each other, with nothing of the browser's in between.
//! * A tile is a sealed [`Region`](strait::Region): the compositor, which trusts no renderer, reads it where the
//!   renderer painted it.
//! * The browser waits for all renderers at once. One that dies (here it is killed in the middle of its page) is
//!   replaced; what it had painted stays, and neither the other tab nor the compositor stops for it.

mod compositor;
mod renderer;
mod sandbox;

use std::process::{Child, Command};

use strait::{Channel, CommandExt, Deadline, Error, Interest, Mode, Options, Outgoing, WaitSet};
use strait_examples::{PIXEL, save};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const TABS: u8 = 2;
/// The side of a tile, and the tiles in a row and in a column of a tab.
const TILE: usize = 64;
const TILES: usize = 6;
/// The side of a tab, in pixels.
const TAB: usize = TILE * TILES;

/// What the browser asks a renderer for: one row of tiles more.
const PAINT: u8 = 1;
/// What a renderer answers: that it has painted one, or that there are no more.
const PAINTED: u8 = 2;
const FINISHED: u8 = 3;

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("compositor") => compositor::main(),
        Some("renderer") => renderer::main(),
        file => browser(file),
    }
}

fn browser(file: Option<&str>) -> Result<()> {
    let mut browser = Browser::new()?;
    let mut tabs = (0..TABS).map(|tab| browser.open(tab, tab + 1)).collect::<Result<Vec<_>>>()?;
    let mut to_kill = true;
    let mut events = Vec::new();
    while tabs.iter().any(|tab| !tab.finished) {
        browser.renderers.wait(&mut events, Deadline::NEVER)?;
        for event in &events {
            let number = event.key() as u8;
            let tab = &mut tabs[usize::from(number)];
            match tab.renderer.try_recv() {
                Ok(message) if message.bytes() == [PAINTED] => {
                    // One that is gone is found when it is received from.
                    let _ = tab.renderer.send(&[PAINT]);
                    if number == 1 && std::mem::take(&mut to_kill) {
                        tab.process.kill()?;
                    }
                }
                Ok(message) if message.bytes() == [FINISHED] => tab.finished = true,
                Ok(message) => println!("tab {number}: {}", String::from_utf8_lossy(message.bytes())),
                Err(Error::WouldBlock) => {}
                // What it had said before was received before.
                Err(error) => {
                    println!("tab {number}: its renderer is gone ({error}, {}), and is replaced", tab.process.wait()?);
                    *tab = browser.open(number, tab.page)?;
                }
            }
        }
    }
    let window = browser.window()?;
    println!("window of {} by {TAB} pixels, complete", TAB * usize::from(TABS));
    if let Some(file) = file {
        save(file, TAB * usize::from(TABS), &window)?;
    }
    // Each process ends when it sees its channel closed.
    drop(browser.compositor);
    for mut tab in tabs {
        drop(tab.renderer);
        tab.process.wait()?;
    }
    browser.compositor_process.wait()?;
    Ok(())
}

struct Browser {
    compositor: Channel,
    compositor_process: Child,
    /// All renderers, by the number of their tab.
    renderers: WaitSet,
}

struct Tab {
    page: u8,
    renderer: Channel,
    process: Child,
    finished: bool,
}

impl Browser {
    fn new() -> Result<Self> {
        let (compositor_process, compositor) = start("compositor")?;
        Ok(Self { compositor, compositor_process, renderers: WaitSet::new()? })
    }

    /// Starts a renderer for a tab, and has it paint a page.
    fn open(&self, tab: u8, page: u8) -> Result<Tab> {
        let (process, renderer) = start("renderer")?;
        let (paints, shows) = Channel::pair()?;
        self.compositor.send(Outgoing::new(&[compositor::ADOPT, tab]).handle(shows))?;
        renderer.send(Outgoing::new(&[page]).handle(paints))?;
        renderer.send(&[PAINT])?;
        self.renderers.add(&renderer, tab.into(), Interest::Readable, Mode::Level)?;
        Ok(Tab { page, renderer, process, finished: false })
    }

    /// What the window shows.
    fn window(&self) -> Result<Vec<u8>> {
        self.compositor.send(&[compositor::SHOW])?;
        let mut answer = self.compositor.recv()?;
        let window = answer.take_handles()?.pop().and_then(strait::Handle::into_region).ok_or("no picture")?;
        assert_eq!(window.len(), usize::from(TABS) * TAB * TAB * PIXEL);
        Ok(window.view(..)?.to_vec())
    }
}

/// This program as another process.
fn start(role: &str) -> Result<(Child, Channel)> {
    Ok(Command::new(std::env::current_exe()?).arg(role).spawn_with_channel(&Options::new())?)
}
