//! A small browser. Each tab has a renderer: a process that runs any code in the page. A renderer therefore enters a
//! sandbox before it reads the page. The renderer sends the picture, tile by tile, to the compositor: the process
//! that composes the window (in a real browser, the process that talks to the graphics card).
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
//! * The browser makes a channel between a renderer and the compositor, and sends one end to each of them. From then
//!   on the two talk directly, and the browser is not involved.
//! * A tile is a sealed [`Region`](strait::region::Region). The compositor trusts no renderer, but can read the tile
//!   in the memory in which the renderer painted it.
//! * The browser waits for all renderers at once, and replaces a dead renderer. Here the browser kills a renderer in
//!   the middle of its page. The tiles painted before stay, and neither the other tab nor the compositor is delayed.

mod compositor;
mod renderer;
mod sandbox;

use std::process::{Child, Command, ExitStatus};

use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, CommandExt, Deadline, Error, Outgoing};
use strait_examples::{PIXEL, save};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const TABS: u8 = 2;
/// The width and the height of a tile, in pixels.
const TILE: usize = 64;
/// The number of tiles in a row, and in a column, of a tab.
const TILES: usize = 6;
/// The width and the height of a tab, in pixels.
const TAB: usize = TILE * TILES;

/// The browser's request to a renderer: paint one more row of tiles.
const PAINT: u8 = 1;
/// The renderer's answer: one more row of tiles was painted.
const PAINTED: u8 = 2;
/// The renderer's message after the last row of the page.
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
                    // If the renderer has died, the next receive will say so. The browser does not wait for a renderer
                    // that reads nothing.
                    let _ = tab.renderer.try_send(&[PAINT]);
                    if number == 1 && std::mem::take(&mut to_kill) {
                        tab.process.kill()?;
                    }
                }
                Ok(message) if message.bytes() == [FINISHED] => tab.finished = true,
                Ok(message) => println!("tab {number}: {}", String::from_utf8_lossy(message.bytes())),
                Err(Error::WouldBlock) => {}
                // An error comes only after all messages of the renderer were received.
                Err(error) => {
                    println!("tab {number}: its renderer is gone ({error}, {}), and is replaced", tab.end()?);
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
    // A closed channel ends the process at the other end.
    drop(browser.compositor);
    for mut tab in tabs {
        tab.end()?;
    }
    browser.compositor_process.wait()?;
    Ok(())
}

struct Browser {
    compositor: Channel,
    compositor_process: Child,
    /// The wait set with the channels to all renderers. The key of a channel is the number of its tab.
    renderers: WaitSet,
}

struct Tab {
    page: u8,
    renderer: Channel,
    process: Child,
    finished: bool,
}

impl Tab {
    /// Ends the process of the renderer if it still runs: a renderer may close its channel, and go on.
    fn end(&mut self) -> Result<ExitStatus> {
        self.process.kill()?;
        Ok(self.process.wait()?)
    }
}

impl Browser {
    fn new() -> Result<Self> {
        let (compositor_process, compositor) = start("compositor")?;
        Ok(Self { compositor, compositor_process, renderers: WaitSet::new()? })
    }

    /// Starts a renderer for a tab, and lets it paint a page.
    fn open(&self, tab: u8, page: u8) -> Result<Tab> {
        let (process, renderer) = start("renderer")?;
        let (paints, shows) = Channel::pair()?;
        self.compositor.send(Outgoing::new(&[compositor::ADOPT, tab]).handle(shows))?;
        renderer.send(Outgoing::new(&[page]).handle(paints))?;
        renderer.send(&[PAINT])?;
        self.renderers.add(&renderer, tab.into(), Interest::Readable, Mode::Level)?;
        Ok(Tab { page, renderer, process, finished: false })
    }

    /// Asks the compositor for the window, and returns the pixels.
    fn window(&self) -> Result<Vec<u8>> {
        self.compositor.send(&[compositor::SHOW])?;
        let mut answer = self.compositor.recv()?;
        let window = answer.take_handles()?.pop().and_then(strait::Handle::into_region).ok_or("no picture")?;
        assert_eq!(window.len(), usize::from(TABS) * TAB * TAB * PIXEL);
        Ok(window.view(..)?.to_vec())
    }
}

/// Starts this program as another process with the given role, and returns the process and a channel to it.
fn start(role: &str) -> Result<(Child, Channel)> {
    Ok(Command::new(std::env::current_exe()?).arg(role).spawn_with_channel()?)
}
