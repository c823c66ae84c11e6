//! Counters, by `perf_event_open`.

use std::io;
use std::sync::Mutex;

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Tracepoint};
use perf_event::{Builder, Counter};

use super::Events;

struct Counters {
    calls: Option<Counter>,
    instructions: Option<Counter>,
    branches: Option<Counter>,
    mispredictions: Option<Counter>,
    instruction_misses: Option<Counter>,
}

static COUNTERS: Mutex<Option<Counters>> = Mutex::new(None);

/// Starts the counters for this process and all its threads from now on. Counters that are not available are left out.
pub(crate) fn open() {
    let count = |builder: &mut Builder<'_>| -> Option<Counter> {
        let mut counter = builder.inherit(true).build().ok()?;
        counter.enable().ok()?;
        Some(counter)
    };
    let hardware = |event: Hardware| count(&mut Builder::new(event));
    let misses = Cache { which: CacheId::L1I, operation: CacheOp::READ, result: CacheResult::MISS };
    let calls = || -> io::Result<Tracepoint> { Tracepoint::with_name("raw_syscalls/sys_enter") };
    let counters = Counters {
        calls: calls().ok().and_then(|calls| count(Builder::new(calls).include_kernel())),
        instructions: hardware(Hardware::INSTRUCTIONS),
        branches: hardware(Hardware::BRANCH_INSTRUCTIONS),
        mispredictions: hardware(Hardware::BRANCH_MISSES),
        instruction_misses: count(&mut Builder::new(misses)),
    };
    if let Ok(mut place) = COUNTERS.lock() {
        *place = Some(counters);
    }
}

/// Returns the counters that are not available here, each with the reason.
pub(crate) fn missing() -> Vec<[String; 2]> {
    let why = |what: &str, error: io::Error| [what.to_owned(), format!("perf_event_open: {error}")];
    let try_hardware = |event: Hardware| Builder::new(event).inherit(true).build().err();
    let mut missing = Vec::new();
    let misses = Cache { which: CacheId::L1I, operation: CacheOp::READ, result: CacheResult::MISS };
    missing.extend(try_hardware(Hardware::INSTRUCTIONS).map(|error| why("instructions", error)));
    missing.extend(try_hardware(Hardware::BRANCH_INSTRUCTIONS).map(|error| why("branches", error)));
    missing.extend(try_hardware(Hardware::BRANCH_MISSES).map(|error| why("mispredictions", error)));
    let cache = Builder::new(misses).inherit(true).build().err();
    missing.extend(cache.map(|error| why("instruction cache misses", error)));
    missing
}

/// Returns the counts since [`open`].
pub(crate) fn now() -> Events {
    let mut counters = match COUNTERS.lock() {
        Ok(counters) => counters,
        Err(_) => return Events::default(),
    };
    let Some(counters) = counters.as_mut() else {
        return Events::default();
    };
    let read = |counter: &mut Option<Counter>| counter.as_mut().and_then(reading);
    Events {
        calls: read(&mut counters.calls),
        instructions: read(&mut counters.instructions),
        branches: read(&mut counters.branches),
        mispredictions: read(&mut counters.mispredictions),
        instruction_misses: read(&mut counters.instruction_misses),
    }
}

/// Returns a counter's value, scaled up for the time in which other programs used the processor's few counters.
fn reading(counter: &mut Counter) -> Option<u64> {
    let read = counter.read_count_and_time().ok()?;
    match read.time_running {
        0 => (read.time_enabled == 0).then_some(read.count),
        running => Some((u128::from(read.count) * u128::from(read.time_enabled) / u128::from(running)) as u64),
    }
}
