//! Tests that need another process start this very test program again, to play a role.
//!
//! Each test file has a test named `child`, which does nothing in an ordinary run; started by [`spawn`], it looks up
//! its role in the table that it is given and plays it.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::process::{Child, Command};
use std::time::Duration;

use strait::{Channel, CommandExt, Options};

/// Long enough for a slow machine; a test that waits this long has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

const ROLE: &str = "STRAIT_TEST_ROLE";
const ARGUMENT: &str = "STRAIT_TEST_ARGUMENT";

/// A process that plays a role, killed when dropped.
pub(crate) struct Actor(pub(crate) Child);

impl Actor {
    pub(crate) fn wait_for_success(mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "the other process failed: {status}");
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command that plays `role` in this test program.
pub(crate) fn command(role: &str, argument: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads", "1"]);
    command.env(ROLE, role).env(ARGUMENT, argument);
    command.stdout(std::process::Stdio::null());
    command
}

/// Starts a process that plays `role`, with a channel to it.
pub(crate) fn spawn_with(role: &str, argument: &str, options: &Options) -> (Actor, Channel) {
    let (child, channel) = command(role, argument).spawn_with_channel(options).unwrap();
    (Actor(child), channel)
}

/// The same with default options.
pub(crate) fn spawn(role: &str) -> (Actor, Channel) {
    spawn_with(role, "", &Options::new())
}

/// The body of the test `child`.
pub(crate) fn play(roles: &[(&str, fn(&str))]) {
    if let Ok(role) = std::env::var(ROLE) {
        let argument = std::env::var(ARGUMENT).unwrap();
        let (_, play) = roles.iter().find(|(name, _)| *name == role).expect("a known role");
        play(&argument);
    }
}

/// The channel to the process that started this one.
pub(crate) fn parent() -> Channel {
    strait::from_parent(&Options::new()).unwrap()
}

/// Bytes that depend on their place and on `seed`, so that a byte out of place shows.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A checksum of bytes (FNV-1a over words).
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        sum = (sum ^ u64::from_le_bytes(word.try_into().unwrap())).wrapping_mul(0x0000_0100_0000_01b3);
    }
    for byte in words.remainder() {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    sum ^ bytes.len() as u64
}

/// Open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Mappings of this process that are Strait's memfds.
pub(crate) fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("memfd:strait")).count()
}
