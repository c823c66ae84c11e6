//! The process of one tab, in which the page is painted.

use std::fs::File;
use std::net::TcpListener;
use std::process::Command;

use strait::region::Region;
use strait::{Channel, Handle, Outgoing};
use strait_examples::pixel;

use crate::{FINISHED, PAINTED, Result, TILE, TILES, sandbox};

pub(crate) fn main() -> Result<()> {
    let browser = strait::from_parent()?;
    let mut message = browser.recv()?;
    let page = message.bytes()[0];
    let compositor = message.take_handles()?.pop().and_then(Handle::into_channel).ok_or("no compositor")?;

    // From here on, even a page that controls this process can only compute, and talk over the open channels.
    sandbox::enter()?;
    browser.send(what_is_left().as_str())?;

    for row in 0..TILES {
        // The browser asks for each row.
        browser.recv()?;
        paint(page, row, &compositor)?;
        browser.send(&[PAINTED])?;
    }
    browser.send(&[FINISHED])?;
    // Waits until the tab is closed.
    while browser.recv().is_ok() {}
    Ok(())
}

/// Paints a row of tiles and sends them to the compositor.
fn paint(page: u8, row: usize, compositor: &Channel) -> Result<()> {
    for column in 0..TILES {
        let point = |n| pixel(page.into(), column * TILE + n % TILE, row * TILE + n / TILE);
        let pixels: Vec<u8> = (0..TILE * TILE).flat_map(point).collect();
        compositor.send(Outgoing::new(&[column as u8, row as u8]).handle(Region::sealed(&pixels)?))?;
    }
    Ok(())
}

/// Tries what an attacker would try in a renderer, and returns the refusals of the sandbox, as text.
fn what_is_left() -> String {
    let refused = |worked: bool| if worked { "allowed" } else { "refused" };
    format!(
        "in its sandbox; files are {}, sockets {}, processes {}",
        refused(File::open("/etc/passwd").is_ok()),
        refused(TcpListener::bind("127.0.0.1:0").is_ok()),
        refused(Command::new("true").spawn().is_ok()),
    )
}
