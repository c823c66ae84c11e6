//! The names of shapes on the command line: `ping-pong`, `open-loop:50`, `out-of-line:cold:touched`.

use std::fmt;
use std::str::FromStr;

use super::{Sample, Shape, Step};
use crate::trouble::{Result, Trouble};

/// Every shape name with its meaning, for `strait bench shapes`.
pub const LISTING: &str = "\
ping-pong                messages there and back, one at a time
ack                      messages there, and 8 bytes back
stream[:BATCH]           one way, as fast as possible, BATCH messages in a call
open-loop:PERCENT        one way, at random intervals, at PERCENT of the capacity; timed from when each is due (24 B or more)
paced:RATE               as open-loop, at RATE messages per second, whatever the capacity (24 B or more)
producers:N              N processes send to one, each through an end of its own
shared-producers:N       N processes send to one, all through one end
fan-out:N                one process sends each message to N others, and waits until all have acknowledged it
mix, mix-stream          the message sizes of Chrome, there and back or one way (needs --sizes 16062)
hop[:direct]             ping-pong between handlers in threads of their own; direct: the handlers send by themselves
descriptors:N            ping-pong with N descriptors in each message
out-of-line[:cold][:touched]   a large message, acknowledged; cold: in new memory; touched: every byte is written and read
in-place                 filled and read in shared memory; timed from commit to the reader's first byte (needs --count)
vectored:PARTS           a message in PARTS pieces in one call, acknowledged
linearised:PARTS         as vectored, but assembled in new memory first
fidl[:linear]            a FIDL message with a vector, encoded, sent and decoded, acknowledged; linear: in one piece (44 B or more)
encode:VALUE             a value is encoded in memory: bytes, fields (256 or 4096 B) or vectors; with --mechanisms fidl,postcard,...
decode:VALUE             a value is decoded in memory
wake:MILLISECONDS        ping-pong after idle time
connect                  a new connection, one ping-pong, and closing
idle                     no messages; counts how often the receiver wakes (not with --count)";

impl fmt::Display for Shape {
    /// Writes the shape's name on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::PingPong { reply: 8 } => write!(f, "ack"),
            Self::PingPong { .. } => write!(f, "ping-pong"),
            Self::Stream { batch: 1 } => write!(f, "stream"),
            Self::Stream { batch } => write!(f, "stream:{batch}"),
            Self::OpenLoop { load } => write!(f, "open-loop:{load}"),
            Self::Paced { rate } => write!(f, "paced:{rate}"),
            Self::Producers { count, shared: true } => write!(f, "shared-producers:{count}"),
            Self::Producers { count, .. } => write!(f, "producers:{count}"),
            Self::FanOut { count } => write!(f, "fan-out:{count}"),
            Self::Mix { stream: false } => write!(f, "mix"),
            Self::Mix { stream: true } => write!(f, "mix-stream"),
            Self::Hop { direct: false } => write!(f, "hop"),
            Self::Hop { direct: true } => write!(f, "hop:direct"),
            Self::Descriptors { count } => write!(f, "descriptors:{count}"),
            Self::OutOfLine { cold, touched } => {
                let (cold, touched) = (if cold { ":cold" } else { "" }, if touched { ":touched" } else { "" });
                write!(f, "out-of-line{cold}{touched}")
            }
            Self::InPlace => write!(f, "in-place"),
            Self::Vectored { parts, linear: false } => write!(f, "vectored:{parts}"),
            Self::Vectored { parts, .. } => write!(f, "linearised:{parts}"),
            Self::Fidl { linear } => write!(f, "fidl{}", if linear { ":linear" } else { "" }),
            Self::Coded { step, value } => write!(f, "{}:{}", step.name(), value.name()),
            Self::Wake { after } => write!(f, "wake:{after}"),
            Self::Connect => write!(f, "connect"),
            Self::Idle => write!(f, "idle"),
            Self::Objects { .. } => write!(f, "objects"),
        }
    }
}

impl FromStr for Shape {
    type Err = Trouble;

    fn from_str(words: &str) -> Result<Self> {
        let unknown = || Trouble::new(format!("there is no shape {words:?}; `strait bench shapes` lists them"));
        let mut parts = words.split(':');
        let name = parts.next().unwrap_or_default();
        let rest: Vec<&str> = parts.collect();
        let number = |least: u32, most: u32| -> Result<u32> {
            let [number] = rest[..] else { return Err(unknown()) };
            let number: u32 = number.parse().map_err(|_| unknown())?;
            if (least..=most).contains(&number) {
                Ok(number)
            } else {
                Err(Trouble::new(format!("{name} takes a number from {least} to {most}")))
            }
        };
        let plain = |shape: Self| if rest.is_empty() { Ok(shape) } else { Err(unknown()) };
        match name {
            // 0 stands for the size of the message, which `Axes::works` fills in.
            "ping-pong" => plain(Self::PingPong { reply: 0 }),
            "ack" => plain(Self::PingPong { reply: 8 }),
            "stream" if rest.is_empty() => Ok(Self::Stream { batch: 1 }),
            "stream" => Ok(Self::Stream { batch: number(1, 1024)? as usize }),
            "open-loop" => Ok(Self::OpenLoop { load: number(1, 200)? as u8 }),
            "paced" => Ok(Self::Paced { rate: number(1, 100_000_000)? }),
            "producers" => Ok(Self::Producers { count: number(1, 64)? as u8, shared: false }),
            "shared-producers" => Ok(Self::Producers { count: number(1, 64)? as u8, shared: true }),
            "fan-out" => Ok(Self::FanOut { count: number(1, 64)? as u8 }),
            "mix" => plain(Self::Mix { stream: false }),
            "mix-stream" => plain(Self::Mix { stream: true }),
            "hop" if rest == ["direct"] => Ok(Self::Hop { direct: true }),
            "hop" => plain(Self::Hop { direct: false }),
            "descriptors" => Ok(Self::Descriptors { count: number(0, 253)? as u16 }),
            "out-of-line" => match rest[..] {
                [] => Ok(Self::OutOfLine { cold: false, touched: false }),
                ["cold"] => Ok(Self::OutOfLine { cold: true, touched: false }),
                ["touched"] => Ok(Self::OutOfLine { cold: false, touched: true }),
                ["cold", "touched"] => Ok(Self::OutOfLine { cold: true, touched: true }),
                _ => Err(unknown()),
            },
            "in-place" => plain(Self::InPlace),
            "vectored" => Ok(Self::Vectored { parts: number(1, 1024)? as u16, linear: false }),
            "linearised" => Ok(Self::Vectored { parts: number(1, 1024)? as u16, linear: true }),
            "fidl" if rest == ["linear"] => Ok(Self::Fidl { linear: true }),
            "fidl" => plain(Self::Fidl { linear: false }),
            "encode" | "decode" => {
                let step = if name == "encode" { Step::Encode } else { Step::Decode };
                let value = Sample::ALL.into_iter().find(|value| rest == [value.name()]).ok_or_else(unknown)?;
                Ok(Self::Coded { step, value })
            }
            "wake" => Ok(Self::Wake { after: number(1, 10_000)? }),
            "connect" => plain(Self::Connect),
            "idle" => plain(Self::Idle),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::shape::Shape;

    #[test]
    fn every_name_is_read_as_it_is_written() {
        for name in [
            "ping-pong",
            "ack",
            "stream",
            "stream:16",
            "open-loop:90",
            "paced:10000",
            "producers:3",
            "shared-producers:3",
            "fan-out:2",
            "mix",
            "mix-stream",
            "hop",
            "hop:direct",
            "descriptors:253",
            "out-of-line",
            "out-of-line:cold",
            "out-of-line:touched",
            "out-of-line:cold:touched",
            "in-place",
            "vectored:64",
            "linearised:1",
            "fidl",
            "fidl:linear",
            "encode:bytes",
            "decode:fields",
            "encode:vectors",
            "wake:100",
            "connect",
            "idle",
        ] {
            assert_eq!(name.parse::<Shape>().unwrap().to_string(), name);
        }
        for nonsense in ["", "sail", "open-loop", "open-loop:0", "producers:many", "hop:2", "out-of-line:lukewarm"] {
            assert!(nonsense.parse::<Shape>().is_err(), "{nonsense}");
        }
    }
}
