//! Shows the page in a real browser: at the widths of a phone, a tablet and a desktop screen, on a light and on a dark
//! page.
//!
//! On a machine without Chromium the tests are skipped, and `./run-tests` says so; `CHROMIUM` names another program.

mod common;

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use strait_report::page;

const WIDTHS: [u32; 3] = [360, 768, 1280];
const HEIGHT: u32 = 14_000;

/// A page that loads the report in frames of several widths and reports the contents of the frames. The report's own
/// policy forbids scripts, so the scripts of this page inspect the report from outside.
const FRAMES: &str = r#"<!doctype html><meta charset="utf-8"><body>FRAMES<pre id="found"></pre><script>
onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, all = query => [...page.querySelectorAll(query)];
    const ids = all("[id]").map(element => element.id);
    const place = plot => {
      const { x, y, width, height } = plot.getBoundingClientRect();
      const strait = plot.querySelector(".d.m0:not(.x):not(.i)") || plot.querySelector(".l.m0");
      return { x, y, width, height, words: plot.getAttribute("aria-label"), drawn: plot.querySelectorAll(".l:not(.g), .d").length,
               strait: !!strait, seen: plot.checkVisibility() };
    };
    return {
      width: frame.clientWidth,
      across: page.documentElement.scrollWidth,
      plots: all("figure svg").map(place),
      twice: ids.filter((id, index) => ids.indexOf(id) !== index),
      astray: all("nav a, .lead a").filter(link => !page.getElementById(link.hash.slice(1))).map(link => link.hash),
      unlabelled: all("label").filter(label => !label.control).length,
      tables: all("table").length, captions: all("table > caption").length,
      smallest: Math.min(...all("p, td, th, label, summary").map(e => parseFloat(frame.contentWindow.getComputedStyle(e).fontSize))),
    };
  });
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>"#;

fn browser() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("CHROMIUM") {
        return Some(PathBuf::from(named));
    }
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name))).find(|file| file.is_file())
}

/// Runs the browser, and once more after a failure: browsers sometimes hang on a busy machine, even after all work is
/// done.
fn run(browser: &Path, home: &Path, words: &[&str]) -> Vec<u8> {
    let mut output = try_to_run(browser, home, words);
    if !output.status.success() {
        output = try_to_run(browser, home, words);
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn try_to_run(browser: &Path, home: &Path, words: &[&str]) -> Output {
    let profile = home.join("profile");
    let profile = format!("--user-data-dir={}", profile.display());
    Command::new("timeout")
        .args(["--kill-after=5", "120"])
        .arg(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
        ])
        .args(["--force-device-scale-factor=1", &profile])
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("the browser starts")
}

/// Returns a picture of the page: its width in pixels, and three bytes for each pixel.
fn picture(browser: &Path, home: &Path, file: &Path, dark: bool) -> (usize, Vec<u8>) {
    let target = home.join("page.png");
    let [width, height] = [WIDTHS[2], HEIGHT];
    let (shot, size) = (format!("--screenshot={}", target.display()), format!("--window-size={width},{height}"));
    let scheme = format!("--blink-settings=preferredColorScheme={}", if dark { 0 } else { 1 });
    run(browser, home, &[&shot, &size, &scheme, &format!("file://{}", file.display())]);
    let mut decoder = png::Decoder::new(BufReader::new(File::open(&target).unwrap()));
    decoder.set_transformations(png::Transformations::STRIP_16 | png::Transformations::EXPAND);
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let pixels = match info.color_type {
        png::ColorType::Rgb => pixels,
        png::ColorType::Rgba => pixels.chunks_exact(4).flat_map(|pixel| pixel[..3].to_vec()).collect(),
        other => panic!("a picture in {other:?}"),
    };
    (info.width as usize, pixels)
}

/// Returns how many pixels in a rectangle have nearly this colour.
fn count(picture: &(usize, Vec<u8>), plot: &Value, colour: [u8; 3]) -> usize {
    let at = |name: &str| plot[name].as_f64().unwrap() as usize;
    let (width, pixels) = picture;
    let rows = at("y")..at("y") + at("height");
    rows.flat_map(|y| (at("x")..at("x") + at("width")).map(move |x| 3 * (y * width + x)))
        .filter_map(|index| pixels.get(index..index + 3))
        .filter(|pixel| pixel.iter().zip(colour).all(|(one, other)| one.abs_diff(other) <= 24))
        .count()
}

#[test]
fn the_page_is_whole_at_every_width_and_its_plots_are_drawn() {
    let Some(browser) = browser() else {
        eprintln!("no chromium: left out");
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let page = page(&[common::spoiled()]).unwrap();
    let file = home.path().join("report.html");
    fs::write(&file, &page).unwrap();
    let inside = page.replace('&', "&amp;").replace('"', "&quot;");
    let frames: String = WIDTHS
        .iter()
        .map(|width| {
            format!("<iframe style=\"border:0;width:{width}px;height:{HEIGHT}px\" srcdoc=\"{inside}\"></iframe>")
        })
        .collect();
    let outside = home.path().join("frames.html");
    fs::write(&outside, FRAMES.replace("FRAMES", &frames)).unwrap();

    let dom = run(&browser, home.path(), &["--dump-dom", &format!("file://{}", outside.display())]);
    let dom = String::from_utf8(dom).unwrap();
    let found = dom.split("<pre id=\"found\">").nth(1).unwrap().split("</pre>").next().unwrap();
    let found = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let found: Value = serde_json::from_str(&found).unwrap_or_else(|error| panic!("{error}: {found:.300}"));
    for (frame, width) in found.as_array().unwrap().iter().zip(WIDTHS) {
        assert_eq!(frame["width"], width);
        assert!(frame["across"].as_u64() <= Some(width.into()), "{width}: the page is {} wide", frame["across"]);
        assert_eq!(frame["plots"].as_array().unwrap().len(), page.matches("<figure>").count());
        for empty in ["twice", "astray"] {
            assert_eq!(frame[empty].as_array().unwrap().len(), 0, "{width}: {}", frame[empty]);
        }
        assert_eq!(frame["unlabelled"], 0, "{width}");
        assert!(frame["tables"].as_u64() > Some(5) && frame["tables"] == frame["captions"], "{width}");
        assert!(frame["smallest"].as_f64() >= Some(12.0), "{width}: words of {} pixels", frame["smallest"]);
    }

    let plots = found[2]["plots"].as_array().unwrap();
    let seen: Vec<&Value> = plots
        .iter()
        .filter(|plot| plot["seen"] == true)
        .filter(|plot| plot["y"].as_f64().unwrap() + plot["height"].as_f64().unwrap() < f64::from(HEIGHT))
        .collect();
    assert!(seen.len() > 20, "only {} of {} plots can be seen", seen.len(), plots.len());
    // Strait's colour and the background colour, as the style sheet has them.
    for (dark, strait, paper) in
        [(false, [0x00, 0x60, 0xb0], [0xfd, 0xfd, 0xfb]), (true, [0x5a, 0xb4, 0xff], [0x15, 0x18, 0x1b])]
    {
        let picture = picture(&browser, home.path(), &file, dark);
        for plot in &seen {
            let words = plot["words"].as_str().unwrap();
            assert!(plot["drawn"].as_u64() > Some(0), "{words}");
            let area = (plot["width"].as_f64().unwrap() * plot["height"].as_f64().unwrap()) as usize;
            let empty = count(&picture, plot, paper);
            assert!(empty < area - area / 100, "blank, dark {dark}: {words}");
            assert!(empty > area / 3, "no paper to be seen, dark {dark}: {words}");
            if plot["strait"] == true {
                assert!(count(&picture, plot, strait) > 20, "Strait is not drawn, dark {dark}: {words}");
            }
        }
    }
}
