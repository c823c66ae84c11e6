//! The trail: the last calls of each thread, in shared memory, to be printed after a mistake.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use crate::ledger::{EVENTS, Ledger, Walk};

/// The number of words of text in an event.
const WORDS: usize = 4;

/// The record of a call that returned.
#[derive(Debug)]
pub(crate) struct Event {
    begin: AtomicU64,
    took: AtomicU64,
    call: AtomicU64,
    number: AtomicU64,
    outcome: [AtomicU64; WORDS],
}

/// Stands for the end in an event without an end.
pub(crate) const NO_END: u32 = u32::MAX;

/// Declares the kinds of calls, with their names in the trail.
macro_rules! calls {
    ($($name:ident $text:literal)*) => {
        /// A kind of call, for the trail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum Call { $(#[doc = $text] $name),* }

        impl Call {
            const ALL: &[(Self, &str)] = &[$((Self::$name, $text)),*];
        }
    };
}

calls! {
    Pair "pair" Connect "connect" Accept "accept" Listen "listen"
    Send "send" SendVectored "send vectored" SendWithEnds "send with ends" SendMany "send_many"
    Reserve "reserve" Sealed "reserve_sealed" Draft "draft" Forward "forward" Value "send_value" PutBack "put_back" InPlace "recv_in_place"
    Rehome "rehome" Fuse "fuse" Look "status, counters and peer"
    Recv "recv" RecvInto "recv_into" RecvMany "recv_many" RecvBytes "try_recv_bytes" RecvMessage "recv_message" RecvOrView "recv_message_or_view" Peek "peek and recv" Half "split, recv and join" Drain "drain"
    Add "set: add" Remove "set: remove" Wait "set: wait" NewSet "set: new"
    Interrupted "recv, interrupted" Rearm "set: rearm" AwaitRoom "set: await_room" AddFd "set: add a descriptor" NewTraps "traps: new" Arm "traps: arm" Dispatch "traps: dispatch"
    Request "call" Begin "begin_call" Poll "poll a call" Await "wait for a call" Cancel "cancel a call"
    NextRequest "next_request" Reply "reply" NoReply "drop a request"
    NewReactor "reactor: new" EnterReactor "reactor: enter" LeaveReactor "reactor: leave" TaskRecv "task: recv" TaskSend "task: send" TaskAsk "task: call" TaskServe "task: next_request"
    NewDispatcher "dispatcher: new" Serve "dispatcher: serve" RunDispatcher "dispatcher: dispatch" RunPump "dispatcher: pump"
    StopServing "dispatcher: stop" DropDispatcher "dispatcher: drop"
    SetLimits "set_limits" ReportBad "report_bad" Disconnect "disconnect" Prune "prune"
    HostGuest "start a guest" AskGuest "send a guest a message" EndGuest "await the end of a guest"
    Close "close" Shortage "begins a shortage" Plenty "ends a shortage"
}

impl Call {
    pub(crate) fn of(number: u32) -> &'static str {
        Self::ALL.get(number as usize).map_or("?", |(_, text)| text)
    }
}

/// Records a call that returned, with the first 32 bytes of its outcome.
pub(crate) fn note(walk: &Walk, begin: u64, took: u64, call: Call, end: u32, number: u64, outcome: &str) {
    let event = &walk.events[walk.next_event.load(Relaxed) as usize % EVENTS];
    event.begin.store(begin, Relaxed);
    event.took.store(took, Relaxed);
    event.call.store(u64::from(call as u32) << 32 | u64::from(end), Relaxed);
    event.number.store(number, Relaxed);
    let mut text = [0; 8 * WORDS];
    let len = outcome.len().min(text.len());
    text[..len].copy_from_slice(&outcome.as_bytes()[..len]);
    for (word, bytes) in event.outcome.iter().zip(text.chunks_exact(8)) {
        word.store(u64::from_le_bytes(bytes.try_into().unwrap_or_default()), Relaxed);
    }
    walk.next_event.fetch_add(1, SeqCst);
}

/// The number of faults in the trail: the last ones.
const LOGGED: usize = 40;

fn seconds(time: u64, origin: u64) -> f64 {
    time.saturating_sub(origin) as f64 / 1e9
}

/// Returns the begin of a call, and a line about the call. `origin` is the time from which the line counts seconds.
fn line(event: &Event, origin: u64, who: &str) -> (u64, String) {
    let begin = event.begin.load(Relaxed);
    let call = event.call.load(Relaxed);
    let text: Vec<u8> = event.outcome.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    let text = String::from_utf8_lossy(&text);
    let end = if call as u32 == NO_END { String::new() } else { format!(" end {}", call as u32) };
    let line = format!(
        "{:>10.6} s  {who:<10} {}{end} [{}] -> {} ({} us)",
        seconds(begin, origin),
        Call::of((call >> 32) as u32),
        event.number.load(Relaxed),
        text.trim_end_matches('\0'),
        event.took.load(Relaxed) / 1000,
    );
    (begin, line)
}

/// Returns the trail: the last `last` calls of every living thread, all recorded calls about the channels `about`,
/// and the last faults of `log`, in the order of their begin.
pub(crate) fn trail(
    ledger: &Ledger,
    lives: usize,
    origin: u64,
    about: &[u32],
    last: u64,
    log: &[(u64, String)],
) -> String {
    let said = |(time, what): &(u64, String)| (*time, format!("{:>10.6} s  process {what}", seconds(*time, origin)));
    let mut lines: Vec<_> = log.iter().rev().take(LOGGED).map(said).collect();
    for (number, life) in ledger.lives[..lives].iter().enumerate() {
        let is_alive = !life.is_doomed();
        for (walker, walk) in life.walks.iter().enumerate() {
            let next = walk.next_event.load(SeqCst);
            let who = format!("{number}.{walker}{}", if is_alive { "" } else { "+" });
            for at in next.saturating_sub(EVENTS as u64)..next {
                let event = &walk.events[at as usize % EVENTS];
                let end = event.call.load(Relaxed) as u32;
                let is_about = about.contains(&(end / 2));
                if is_about || is_alive && at + last >= next {
                    lines.push(line(event, origin, &who));
                }
            }
        }
    }
    lines.sort();
    lines.into_iter().map(|(_, line)| line + "\n").collect()
}
