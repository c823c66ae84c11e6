//! The process that composes the window from the tiles of the renderers. The compositor trusts the browser, and no
//! renderer.

use strait::region::Region;
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Message, Outgoing};
use strait_examples::PIXEL;

use crate::{Result, TAB, TABS, TILE, TILES};

/// The browser's message with the channel to the renderer of a tab.
pub(crate) const ADOPT: u8 = 1;
/// The browser's request for the pixels of the window.
pub(crate) const SHOW: u8 = 2;

const BROWSER: u64 = u64::MAX;

/// The number of tiles that are taken from a renderer in a row: an honest renderer sends no more for a page.
const AT_A_TIME: usize = TILES * TILES;

pub(crate) fn main() -> Result<()> {
    let browser = strait::from_parent()?;
    let all = WaitSet::new()?;
    all.add(&browser, BROWSER, Interest::Readable, Mode::Level)?;
    let mut window = vec![0; usize::from(TABS) * TAB * TAB * PIXEL];
    let mut renderers: [Option<Channel>; TABS as usize] = Default::default();
    let mut events = Vec::new();
    loop {
        all.wait(&mut events, Deadline::NEVER)?;
        for event in &events {
            if event.key() != BROWSER {
                show(&mut renderers, event.key() as usize, &mut window);
                continue;
            }
            let mut message = match browser.try_recv() {
                Err(Error::WouldBlock) => continue,
                Err(_) => return Ok(()),
                Ok(message) => message,
            };
            match message.bytes() {
                &[ADOPT, tab] => {
                    let renderer = message.take_handles()?.pop().and_then(Handle::into_channel).ok_or("no renderer")?;
                    all.add(&renderer, tab.into(), Interest::Readable, Mode::Level)?;
                    // If the previous renderer is still alive, this line drops the channel to the old renderer, whose
                    // tiles are not needed any more.
                    renderers[usize::from(tab)] = Some(renderer);
                }
                _ => {
                    // All tiles painted before the browser's request have arrived.
                    (0..renderers.len()).for_each(|tab| show(&mut renderers, tab, &mut window));
                    browser.send(Outgoing::new(b"").handle(Region::sealed(&window)?))?;
                }
            }
        }
    }
}

/// Copies the arrived tiles into the window, at most [`AT_A_TIME`], so that a renderer that sends without end does not
/// keep the others waiting: the wait set reports the renderer again. If the renderer has died, its channel is dropped;
/// its tiles in the window stay.
fn show(renderers: &mut [Option<Channel>], tab: usize, window: &mut [u8]) {
    for _ in 0..AT_A_TIME {
        let Some(renderer) = &renderers[tab] else { return };
        match renderer.try_recv() {
            Ok(mut message) => {
                if let Err(why) = show_tile(&mut message, tab, window) {
                    // Closes the link to the process of the renderer. The browser notices the end of the renderer,
                    // and starts another.
                    message.report_bad(why);
                    renderers[tab] = None;
                }
            }
            Err(Error::WouldBlock) => return,
            Err(_) => renderers[tab] = None,
        }
    }
}

/// Copies a tile into the window. If the tile is wrong, returns the mistake. The message is checked, because a
/// renderer may be under the control of an attacker.
fn show_tile(message: &mut Message, tab: usize, window: &mut [u8]) -> std::result::Result<(), &'static str> {
    let &[column, row] = message.bytes() else { return Err("a tile has two numbers") };
    let (column, row) = (usize::from(column), usize::from(row));
    if column >= TILES || row >= TILES {
        return Err("a tile outside of the tab");
    }
    // Other handles stay in the message, and are closed with it: closing a descriptor of a stranger may take long.
    let [Handle::Region(_)] = message.handles() else { return Err("a tile needs one region") };
    let handle = message.take_handle(0).ok().flatten();
    let tile = handle.and_then(Handle::into_region).ok_or("a tile without a picture")?;
    // A sealed region cannot change during the read. Its size comes from the kernel, not from the renderer.
    let tile = tile.view(..).map_err(|_| "a tile that is not sealed")?;
    if tile.len() != TILE * TILE * PIXEL {
        return Err("a tile of another size");
    }
    for (line, pixels) in tile.chunks_exact(TILE * PIXEL).enumerate() {
        let across = usize::from(TABS) * TAB;
        let at = (row * TILE + line) * across + tab * TAB + column * TILE;
        window[at * PIXEL..][..pixels.len()].copy_from_slice(pixels);
    }
    Ok(())
}
