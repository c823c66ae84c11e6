//! `strait demo`: a conversation between two processes, with a descriptor, an end of a channel and 256 MiB, until one
//! of the two is killed; then a few benchmarks.
//!
//! Every printed step has just happened. The words come from the other process, both sides compute the checksums, and
//! the times were measured in this run.

use std::env;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use strait::{Channel, Deadline, Error, Handle, Message, Options, Outgoing};
use strait_lab::process::clock;
use strait_lab::results::{Figure, Results, State};
use strait_lab::runner::{self, Plan};
use strait_lab::stats::{bytes, rate, time};
use strait_lab::trouble::{Result, Trouble, While};
use strait_lab::{Cpus, Extent, Mechanism, Placement, Shape, Wait, Work, machine, shape, table};

/// Size in bytes of the large message.
const LARGE: usize = 256 << 20;
/// Size in bytes of the pieces for writing and reading the large message.
const PIECE: usize = 64 << 10;
/// Size in bytes of the measured short messages.
const SHORT: usize = 56;
/// Number of messages from the killed process.
const LAST: u32 = 1000;
/// Maximum duration in seconds of the whole demo.
const BUDGET: f64 = 55.0;

/// A request of the first process to the second.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// Say who you are.
    Who,
    /// Read the file with the descriptor in this message, and reply with the text of the file.
    Read,
    /// Receive a message through the channel end in this message, and reply over the same channel.
    Answer,
    /// Receive the following large message.
    Take,
    /// Send a large message.
    Give,
    /// Send this many numbered messages, and end this process by SIGKILL.
    SendAndDie(u32),
}

/// A reply of the second process.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// A text.
    Words(String),
    /// Times and checksum of a large message, received or sent by the second process.
    Large(Large),
}

/// Times, in nanoseconds, and checksum of a large message on one side.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Large {
    /// Checksum of the bytes.
    sum: u64,
    /// Time from the commit until the reader had the first byte; 0 for the writer.
    wait: u64,
    /// Time to fill or to read the whole message.
    work: u64,
}

/// Returns default options, except for enough memory of the peer to map two large messages. Raises the limit of this
/// process on warm memory, so that two large messages stay warm.
fn options() -> Options {
    strait::quota::set_pool_limit(4 * LARGE);
    Options::new().peer_memory(4 * LARGE)
}

/// Runs the demo as the first process; only the conversation if `story_only` is set.
pub(crate) fn run(story_only: bool) -> Result<ExitCode> {
    let begin = Instant::now();
    let watch = machine::Watch::start();
    println!("Strait: message channels between processes\n{}\n", machine::describe());
    let story = story()?;
    let results = if story_only { None } else { Some(figures(begin)?) };
    if let Some(results) = &results {
        println!("\nIn short\n{}", summary(&results.figures, &story));
    }
    println!("\nAll this took {:.0} s; {}.", begin.elapsed().as_secs_f64(), watch.sentence());
    if !story.same {
        return Err(Trouble::new("a checksum or a message is not the one of the other side"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The results of the conversation.
struct Story {
    /// Whether all checksums and replies were as expected.
    same: bool,
    /// Time in nanoseconds from the commit of the large message, in warm memory, until the reader had its first byte.
    first_byte: u64,
    /// The number of messages received from the killed process.
    received: u32,
}

/// Runs the conversation.
fn story() -> Result<Story> {
    let here = std::process::id();
    let program = env::current_exe().doing("finding this program's file")?;
    let started = Instant::now();
    let (mut child, channel) =
        options().spawn(Command::new(program).arg("companion")).doing("starting the second process")?;
    let there = child.id();
    println!("Two processes");
    println!("  {here} is this one. It starts {there}, which inherits one descriptor: its end of a channel.");

    println!("\nA conversation");
    println!("  {here}: Who is there?");
    let words = words(&channel, &Ask::Who, None)?;
    println!("  {there}: {words}   (after {}, start included)", ago(started));
    println!("  {here}: Once more, now that you are awake?");
    let asked = Instant::now();
    let words = self::words(&channel, &Ask::Who, None)?;
    println!("  {there}: {words}   (after {})", ago(asked));

    println!("\nA file descriptor");
    let content = format!("Written by {here} into a file that has no name.");
    let file = nameless(&content)?;
    println!("  {here}: Here is a descriptor. What can you read through it?");
    let asked = Instant::now();
    let words = self::words(&channel, &Ask::Read, Some(file.into()))?;
    println!("  {there}: {words}   (after {})", ago(asked));
    let mut same = words.contains(&content);

    println!("\nAn end of another channel");
    let (mine, theirs) = Channel::pair().doing("making a channel")?;
    let question = "Who reads this?";
    mine.send(question).doing("sending")?;
    println!("  {here}: {question} (Said into a channel of which both ends are still here. Now one of them goes.)");
    let asked = Instant::now();
    ask(&channel, &Ask::Answer, Some(theirs.into()))?;
    let answer = mine.recv().doing("receiving")?;
    let words = String::from_utf8_lossy(answer.bytes()).into_owned();
    println!("  {there}, through that channel: {words}   (after {})", ago(asked));
    same &= words.contains(question) && words.contains(&there.to_string());
    drop(mine);

    println!("\n{}, filled in place and read in place", bytes(LARGE));
    let mut first_byte = 0;
    for memory in ["new memory, which the kernel gives page by page", "the same memory, now warm"] {
        ask(&channel, &Ask::Take, None)?;
        let filled = fill(&channel)?;
        let read = large(&channel)?;
        first_byte = read.wait;
        same &= report(&format!("{here} to {there}, {memory}"), filled, read);
    }
    ask(&channel, &Ask::Give, None)?;
    let read = look(&channel)?;
    let filled = large(&channel)?;
    same &= report(&format!("{there} to {here}, new memory of the other side"), filled, read);

    println!("\nA sender that is killed");
    ask(&channel, &Ask::SendAndDie(LAST), None)?;
    let status = child.wait().doing("wait")?;
    println!("  {there} has sent {LAST} messages and has ended with {status}. This process has read none of them yet.");
    let (received, end) = receive_all(&channel)?;
    println!("  {here}: {received} messages came, whole and in order. Then: {end}.");
    same &= received == LAST && status.signal() == Some(Signal::KILL.as_raw());
    Ok(Story { same, first_byte, received })
}

/// Receives numbered messages until there are no more. Returns the number of messages, and the error at their end.
fn receive_all(channel: &Channel) -> Result<(u32, String)> {
    let mut received = 0u32;
    loop {
        match channel.recv_by(Duration::from_secs(10)) {
            Ok(message) if message.bytes() == received.to_ne_bytes() => received += 1,
            Ok(_) => return Err(Trouble::new(format!("message {received} is not the one that was sent"))),
            Err(Error::PeerClosed) => return Ok((received, "peer closed".to_owned())),
            Err(error) => return Err(error).doing("receiving"),
        }
    }
}

/// Formats the time since `begin`.
fn ago(begin: Instant) -> String {
    time(begin.elapsed().as_nanos() as f64)
}

/// Prints the times of a large message. Returns whether both sides have the same checksum.
fn report(way: &str, filled: Large, read: Large) -> bool {
    let same = filled.sum == read.sum;
    let verdict = if same { "the same" } else { "NOT THE SAME" };
    println!("  {way}:");
    println!(
        "    written in {}, first byte read {} after the commit (the reader slept), all read in {}",
        time(filled.work as f64),
        time(read.wait as f64),
        time(read.work as f64)
    );
    println!("    checksum of the writer {:016x}, of the reader {:016x}: {verdict}", filled.sum, read.sum);
    same
}

/// Returns an anonymous file with this content.
fn nameless(content: &str) -> Result<File> {
    let memory = memfd_create("strait-demo", MemfdFlags::CLOEXEC).doing("memfd_create")?;
    let mut file = File::from(memory);
    file.write_all(content.as_bytes()).doing("writing the file")?;
    file.rewind().doing("rewinding the file")?;
    Ok(file)
}

/// Sends a request, with a handle if there is one.
fn ask(channel: &Channel, ask: &Ask, handle: Option<Handle>) -> Result<()> {
    let packet = serde_json::to_vec(ask).doing("encoding")?;
    let mut message = Outgoing::new(&packet);
    if let Some(handle) = handle {
        message = message.handle(handle);
    }
    channel.send(message).doing("sending")
}

/// Receives a reply.
fn answer(channel: &Channel) -> Result<Answer> {
    let message = channel.recv().doing("receiving")?;
    serde_json::from_slice(message.bytes()).doing("decoding")
}

/// Sends a request, and returns the text of the reply.
fn words(channel: &Channel, question: &Ask, handle: Option<Handle>) -> Result<String> {
    ask(channel, question, handle)?;
    match answer(channel)? {
        Answer::Words(words) => Ok(words),
        Answer::Large(_) => Err(Trouble::new("numbers came where words were due")),
    }
}

/// Receives a reply with the times of a large message.
fn large(channel: &Channel) -> Result<Large> {
    match answer(channel)? {
        Answer::Large(large) => Ok(large),
        Answer::Words(words) => Err(Trouble::new(format!("instead of numbers came: {words}"))),
    }
}

/// Writes the large message into the memory from which the other process will read. The first word of the message is
/// the time of the commit.
fn fill(channel: &Channel) -> Result<Large> {
    let begin = clock::now();
    let mut message = channel.reserve(LARGE, Deadline::NEVER).doing("reserve")?;
    let mut piece = vec![0; PIECE];
    let mut sum = 0u64;
    for place in (PIECE..LARGE).step_by(PIECE) {
        scribble(&mut piece, place as u64 ^ begin);
        sum = sum.wrapping_add(shape::sum(place as u64, &piece));
        message.write_at(&piece, place);
    }
    // The first piece is written last, since it contains the time of the commit.
    scribble(&mut piece, begin);
    let committed = clock::now();
    shape::stamp(&mut piece, committed);
    sum = sum.wrapping_add(shape::sum(0, &piece));
    message.write_at(&piece, 0);
    message.commit().doing("commit")?;
    Ok(Large { sum, wait: 0, work: committed - begin })
}

/// Fills `piece` with bytes without repetition, derived from `seed`.
fn scribble(piece: &mut [u8], seed: u64) {
    let (words, _) = piece.as_chunks_mut::<8>();
    for (index, word) in words.iter_mut().enumerate() {
        *word = (seed + index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    }
}

/// Reads a large message in place.
fn look(channel: &Channel) -> Result<Large> {
    let mut message = channel.recv_in_place(Deadline::NEVER).doing("recv_in_place")?;
    let mut first = [0; 8];
    message.read_at(&mut first, 0);
    let arrived = clock::now();
    if message.len() != LARGE {
        return Err(Trouble::new(format!("a message of {} bytes came", message.len())));
    }
    let mut piece = vec![0; PIECE];
    let mut sum = 0u64;
    for place in (0..LARGE).step_by(PIECE) {
        message.read_at(&mut piece, place);
        sum = sum.wrapping_add(shape::sum(place as u64, &piece));
    }
    Ok(Large { sum, wait: arrived.saturating_sub(u64::from_le_bytes(first)), work: clock::now() - arrived })
}

/// Runs the demo as the second process: replies to requests until the request to exit.
pub(crate) fn companion() -> Result<()> {
    let channel = options().from_parent().doing("taking the channel to the parent")?;
    let here = std::process::id();
    loop {
        let mut message = channel.recv().doing("receiving")?;
        let answer = match serde_json::from_slice(message.bytes()).doing("decoding")? {
            Ask::Who => Answer::Words(format!("Process {here}.")),
            Ask::Read => {
                let descriptor = handle(&mut message)?.into_fd();
                let descriptor = descriptor.ok_or_else(|| Trouble::new("no descriptor came"))?;
                let mut words = String::new();
                let mut file = File::from(descriptor);
                file.read_to_string(&mut words).doing("reading through the descriptor")?;
                Answer::Words(format!("{} bytes: \"{words}\"", words.len()))
            }
            Ask::Answer => {
                let end = handle(&mut message)?.into_channel();
                let end = end.ok_or_else(|| Trouble::new("no end came"))?;
                let question = end.recv().doing("receiving through the end")?;
                let words =
                    format!("\"{}\" came with it to process {here}.", String::from_utf8_lossy(question.bytes()));
                end.send(&words[..]).doing("sending through the end")?;
                continue;
            }
            Ask::Take => Answer::Large(look(&channel)?),
            Ask::Give => Answer::Large(fill(&channel)?),
            Ask::SendAndDie(count) => {
                for number in 0..count {
                    channel.send(&number.to_ne_bytes()).doing("sending")?;
                }
                return kill_process(getpid(), Signal::KILL).doing("kill");
            }
        };
        let packet = serde_json::to_vec(&answer).doing("encoding")?;
        channel.send(&packet).doing("sending")?;
    }
}

/// Returns the last handle of a message.
fn handle(message: &mut Message) -> Result<Handle> {
    let mut handles = message.take_handles().doing("taking what came with the message")?;
    handles.pop().ok_or_else(|| Trouble::new("nothing came with the message"))
}

/// Returns the figures to remember, in at most five lines of at most 80 columns.
fn summary(figures: &[Figure], story: &Story) -> String {
    let figure = |mechanism, wait, placed: fn(Placement) -> bool| {
        let of_row = |figure: &&Figure| {
            let work = &figure.work;
            (work.mechanism, work.wait, work.size) == (mechanism, wait, SHORT) && placed(work.placement)
        };
        figures.iter().filter(|figure| !is_stream(figure)).find(of_row)?.summary
    };
    let row = |words: &str, wait, placed| {
        let strait = figure(Mechanism::STRAIT, wait, placed)?;
        let pipe = figure(Mechanism::PIPE, if wait == Wait::Adaptive { Wait::Block } else { wait }, placed)?;
        let [strait_cpu, pipe_cpu] = [strait, pipe].map(|summary| time(summary.cpu));
        let [strait, pipe] = [strait, pipe].map(|summary| time(summary.median));
        Some(format!("  {words:<26}Strait {strait}, pipe {pipe}; CPU {strait_cpu}, {pipe_cpu}"))
    };
    let is_same = |placement| matches!(placement, Placement::Same(_));
    let large = format!("  {:<26}first byte read {} after the commit", bytes(LARGE), time(story.first_byte as f64));
    let killed = format!("  {:<26}{} of {LAST} messages received", "from a killed sender", story.received);
    let lines = [
        row("56 B and back, defaults", Wait::Adaptive, |placement| placement == Placement::Free),
        row("  spinning, two cores", Wait::Spin, Placement::is_two),
        row("  sleeping, one core", Wait::Block, is_same),
        Some(large),
        Some(killed),
    ];
    lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// Measures Strait and the mechanisms of the system, and prints tables.
fn figures(begin: Instant) -> Result<Results> {
    let cpus = Cpus::allowed()?;
    let sizes = [(SHORT, Mechanism::LINE), (4096, Mechanism::FLAG)];
    let works: Vec<Work> = sizes.iter().flat_map(|&(size, floor)| works(size, floor, cpus)).collect();
    println!("\nFigures, each from two fresh processes");
    let budget = BUDGET - begin.elapsed().as_secs_f64();
    let results = runner::run(&Plan { suite: "demo".to_owned(), works, repetitions: 3, budget, seed: 1, calls: false });
    for (size, _) in sizes {
        println!("\nMessages of {}", bytes(size));
        let heads = ["", "", "probe", "round trip", "p99", "CPU", "one way", "CPU"];
        let mut table = table::new(heads, 2..8);
        let mut before = String::new();
        let round_trips = |figure: &&Figure| figure.work.size == size && !is_stream(figure);
        for figure in results.figures.iter().filter(round_trips) {
            let work = &figure.work;
            let group = format!("{}, {}", work.wait.name(), work.placement.name());
            let mut row = vec![if group == before { String::new() } else { group.clone() }];
            before = group;
            row.push(work.mechanism.title().to_owned());
            row.extend(cells(figure, results.figure(&stream(work))));
            table.add_row(row);
        }
        println!("{table}");
    }
    println!(
        "\nCPU is processor time of both sides, per round trip or per message. The probe is a round trip of two empty \
         cache\nlines in the same processes: how near the processors were to each other just then."
    );
    if cpus.two().is_none() {
        println!("One processor only: nothing was measured on two cores.");
    }
    let broken = results.figures.iter().find_map(|figure| match &figure.state {
        State::Broken(why) => Some(format!("a measurement broke: {}: {why}", figure.work.words())),
        _ => None,
    });
    broken.map_or(Ok(results), |words| Err(Trouble::new(words)))
}

/// Returns the works of one table: a group for each wait strategy and placement. A mechanism that can stream has a
/// stream beside its round trips.
fn works(size: usize, floor: Mechanism, cpus: Cpus) -> Vec<Work> {
    let spinning = [Mechanism::STRAIT, Mechanism::PIPE, Mechanism::STREAM, Mechanism::SEQPACKET, floor];
    let blocking = [Mechanism::STRAIT, Mechanism::PIPE, Mechanism::STREAM, Mechanism::SEQPACKET, Mechanism::FUTEX];
    let groups: [(Wait, Option<Placement>, &[Mechanism]); 7] = [
        (Wait::Adaptive, Some(Placement::Free), &[Mechanism::STRAIT]),
        (Wait::Block, Some(Placement::Free), &[Mechanism::PIPE]),
        (Wait::Spin, cpus.two(), &spinning),
        (Wait::Block, cpus.two(), &blocking),
        (Wait::Block, Some(cpus.same()), &blocking),
        (Wait::Adaptive, cpus.two(), &[Mechanism::STRAIT]),
        (Wait::Adaptive, Some(cpus.same()), &[Mechanism::STRAIT]),
    ];
    let mut works = Vec::new();
    for (wait, placement, mechanisms) in groups {
        let Some(placement) = placement else { continue };
        for &mechanism in mechanisms {
            let extent = Extent::Time { warm: 20, steady: 80 };
            let round_trip = Work { extent, ..Work::round_trip(mechanism, size, wait, placement) };
            let stream = stream(&round_trip);
            works.push(round_trip);
            works.extend(mechanism.streams().then_some(stream));
        }
    }
    works
}

/// Returns the stream beside these round trips in the table.
fn stream(round_trip: &Work) -> Work {
    Work { shape: Shape::Stream { batch: 1 }, ..round_trip.clone() }
}

/// Returns whether the figure belongs to a stream.
fn is_stream(figure: &Figure) -> bool {
    matches!(figure.work.shape, Shape::Stream { .. })
}

/// Returns the cells of a row: probe, round trip, p99, CPU time, messages per second of the stream, and its CPU time.
fn cells(round_trip: &Figure, stream: Option<&Figure>) -> [String; 6] {
    let nothing = || "–".to_owned();
    let summary = round_trip.summary;
    let probe = summary.and_then(|summary| summary.probe);
    let p99 = round_trip.middle().map(|report| report.times.p99);
    let [times, cpu] = match summary {
        Some(summary) => [time(summary.median), time(summary.cpu)],
        None => [nothing(), nothing()],
    };
    let [pace, stream_cpu] = match stream.and_then(|figure| figure.summary) {
        Some(summary) => [rate(1e9 / summary.median), time(summary.cpu)],
        None => [nothing(), nothing()],
    };
    [probe.map_or_else(nothing, time), times, p99.map_or_else(nothing, time), cpu, pace, stream_cpu]
}

#[cfg(test)]
mod tests {
    use strait_lab::results::{Each, Figure, State, Summary};
    use strait_lab::{Cpus, Mechanism, shape};

    use super::{LAST, PIECE, SHORT, Story, scribble, summary, works};

    /// A time in nanoseconds that is as wide as any that the demo prints.
    const WIDE: f64 = 123_400.0;

    #[test]
    fn every_row_can_be_measured() {
        for cpus in [&[0][..], &[0, 1]] {
            let works = works(4096, Mechanism::FLAG, Cpus::named(cpus).unwrap());
            assert!(!works.is_empty());
            assert!(works.iter().all(|work| work.unfit().is_none()));
        }
    }

    #[test]
    fn the_summary_has_five_lines_of_80_columns() {
        let times = Summary {
            median: WIDE,
            interval: [WIDE; 2],
            confidence: 0.9,
            per_second: None,
            cpu: WIDE,
            sleeps: 1.0,
            probe: None,
            each: Each::default(),
        };
        let of =
            |work| Figure { work, state: State::Measured, summary: Some(times), repetitions: Vec::new(), calls: None };
        let works = works(SHORT, Mechanism::LINE, Cpus::named(&[0, 1]).unwrap());
        let figures: Vec<_> = works.into_iter().map(of).collect();
        let story = Story { same: true, first_byte: WIDE as u64, received: LAST };
        let said = summary(&figures, &story);
        assert_eq!(said.lines().count(), 5, "{said}");
        assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
        // Without figures, as if nothing could be measured, the two lines of the conversation are left.
        assert_eq!(summary(&[], &story).lines().count(), 2);
    }

    #[test]
    fn pieces_differ_and_so_do_their_sums() {
        let (mut one, mut two) = (vec![0; PIECE], vec![0; PIECE]);
        scribble(&mut one, 1);
        scribble(&mut two, 2 + PIECE as u64);
        assert_ne!(one, two);
        assert_ne!(shape::sum(0, &one), shape::sum(0, &two));
        assert_ne!(shape::sum(0, &one), shape::sum(1, &one));
    }
}
