//! Runs each example program, with all processes of the program, and checks the output and the written files.

use std::process::Command;

use strait_examples::{PIXEL, pixel};

/// Runs a program, and returns the output. The program must succeed.
fn run(program: &str, arguments: &[&std::path::Path]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    assert_eq!(complained, "");
    said.into_owned()
}

/// Returns the picture in a file: the width in pixels, and the bytes.
fn picture(path: &std::path::Path) -> (usize, Vec<u8>) {
    let file = std::fs::read(path).unwrap();
    let end = file.iter().position(|byte| *byte == b'\n').unwrap();
    let width = str::from_utf8(&file[..end]).unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    (width, file[end + 1..].to_vec())
}

#[test]
fn a_browser_replaces_a_renderer_that_dies_and_shows_all_of_both_pages() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("window.ppm");
    let said = run(env!("CARGO_BIN_EXE_browser"), &[&file]);
    // The browser starts two renderers, and a third to replace the killed one.
    let sandboxed = "in its sandbox; files are refused, sockets refused, processes refused";
    assert_eq!(said.matches(sandboxed).count(), 3, "{said}");
    assert_eq!(said.matches("its renderer is gone (").count(), 1, "{said}");
    assert!(said.contains("tab 1: its renderer is gone (") && said.contains("signal: 9"), "{said}");
    let (width, pixels) = picture(&file);
    assert_eq!((width, pixels.len()), (768, 768 * 384 * PIXEL));
    for (n, painted) in pixels.chunks_exact(PIXEL).enumerate() {
        let (x, y) = (n % width, n / width);
        assert_eq!(painted, pixel(x as u32 / 384 + 1, x % 384, y), "at {x}, {y}");
    }
}

#[test]
fn frames_go_through_three_processes_in_place() {
    let said = run(env!("CARGO_BIN_EXE_frames"), &["50".as_ref(), "1000000".as_ref()]);
    assert!(said.starts_with("50 frames of 1000000 bytes through three processes, every one right\n"), "{said}");
}

#[test]
fn four_processes_make_of_a_picture_what_one_does() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("small.ppm");
    let said = run(env!("CARGO_BIN_EXE_image-pipeline"), &[&file]);
    assert!(said.contains("4 processes") && said.contains("the same result"), "{said}");
    // Computes some points directly: each is the mean of four blurred pixels, and each blurred pixel is the mean of a
    // square.
    let (width, pixels) = picture(&file);
    assert_eq!((width, pixels.len()), (1600, 1600 * 1200 * PIXEL));
    for (x, y) in [(0, 0), (400, 599), (400, 600), (1599, 1199), (123, 456)] {
        let mut mean = [0; PIXEL];
        for (x, y) in [(2 * x, 2 * y), (2 * x + 1, 2 * y), (2 * x, 2 * y + 1), (2 * x + 1, 2 * y + 1)] {
            let (mut sums, mut count) = ([0; PIXEL], 0);
            for y in y.max(8) - 8..=(y + 8).min(2399) {
                for x in x.max(8) - 8..=(x + 8).min(3199) {
                    let colours = pixel(3, x, y);
                    (0..PIXEL).for_each(|n| sums[n] += u32::from(colours[n]));
                    count += 1;
                }
            }
            (0..PIXEL).for_each(|n| mean[n] += sums[n] / count);
        }
        assert_eq!(pixels[(y * width + x) * PIXEL..][..PIXEL], mean.map(|sum| (sum / 4) as u8), "at {x}, {y}");
    }
}

#[test]
fn a_thousand_clients_are_served() {
    let said = run(env!("CARGO_BIN_EXE_thousand-clients"), &[]);
    assert!(said.starts_with("1000 clients, 40000 calls, every reply right"), "{said}");
}

#[test]
fn tasks_wait_without_tokio() {
    assert_eq!(run(env!("CARGO_BIN_EXE_without-tokio"), &[]), "6000 messages of 30 clients came back\n");
}

#[test]
fn a_service_opens_files_for_its_client() {
    let said = run(env!("CARGO_BIN_EXE_rpc"), &[]);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "the service adds: 42");
    assert_eq!(lines[1], "the service opens a file of 0 bytes, and the client reads \"rpc\"");
    assert!(lines[2].contains("No such file or directory"), "{said}");
}

const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// A process, killed when this value is dropped.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Shows that a service manager starts the service when a client connects, and again after a kill of the service.
#[test]
fn a_service_manager_starts_the_service_at_each_first_client() {
    let service = env!("CARGO_BIN_EXE_echo-service");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("echo");
    let mut manager = Command::new("systemd-socket-activate");
    manager.args(["--seqpacket", "--listen"]).arg(&path).arg(service).stderr(std::process::Stdio::null());
    for _ in 0..2 {
        let Ok(manager) = manager.spawn() else {
            println!("left out: systemd-socket-activate is missing");
            return;
        };
        // The manager becomes the service at the first connection. No event reports that the manager listens.
        let _manager = Running(manager);
        let begin = std::time::Instant::now();
        let channel = loop {
            match strait::connect(path.to_str().unwrap(), LIMIT) {
                Err(failed) if failed.error == strait::Error::NobodyThere && begin.elapsed() < LIMIT => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                connected => break connected.unwrap(),
            }
        };
        channel.send(b"hello").unwrap();
        assert_eq!(channel.recv().unwrap().bytes(), b"hello");
        assert_eq!(run(service, &["again".as_ref(), &path]), "again\n");
    }
    for unit in ["strait-echo.socket", "strait-echo.service"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(unit);
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains("[Unit]") && !text.contains('\t'), "{unit}");
    }
}
