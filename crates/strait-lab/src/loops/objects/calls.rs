//! Calls from several threads on one call end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use strait::call::CallEnd;
use strait::{Channel, Deadline};

use super::super::parts::{Share, paced};
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::shape::payload::{self, STEADY, STOP};
use crate::trouble::{Result, Trouble, While};
use crate::work::Report;

const SIZE: usize = 64;
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the first process of the task `Call`: makes calls from `threads` threads for `millis` milliseconds, after a
/// third of that time as warm-up.
pub(super) fn call(channel: Channel, threads: usize, millis: u64) -> Result<Report> {
    let end = CallEnd::over(channel);
    let (measured, over, count) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let call = |number: u64| -> Result<()> {
        let mut request = [0; SIZE];
        request[..8].copy_from_slice(&number.to_le_bytes());
        request[SIZE - 8..].copy_from_slice(&number.to_le_bytes());
        let reply = end.call(&request, PATIENCE).doing("call")?;
        if reply.bytes() != request {
            return Err(Trouble::new("a reply belongs to another call"));
        }
        Ok(())
    };
    let caller = |thread: usize| -> Result<()> {
        let mut number = thread as u64;
        while !over.load(Relaxed) {
            number += 256;
            call(number)?;
            if measured.load(Relaxed) {
                count.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    };
    let (elapsed, spent) = std::thread::scope(|scope| -> Result<_> {
        let callers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || caller(thread))).collect();
        std::thread::sleep(Duration::from_millis(millis / 3));
        call(STEADY)?;
        let gauge = Gauge::start()?;
        let begin = clock::now();
        measured.store(true, Relaxed);
        std::thread::sleep(Duration::from_millis(millis));
        measured.store(false, Relaxed);
        let elapsed = clock::now() - begin;
        let spent = gauge.spent()?;
        over.store(true, Relaxed);
        call(STOP)?;
        for caller in callers {
            caller.join().map_err(|_| Trouble::new("a caller panicked"))??;
        }
        Ok((elapsed, spent))
    })?;
    Ok(paced(count.into_inner(), elapsed, spent))
}

/// Runs the second process of the task `Call`: replies to each request with the request's bytes. The calls with the
/// numbers [`STEADY`] and [`STOP`] announce the measured part and the end.
pub(super) fn serve(channel: Channel) -> Result<Share> {
    let end = CallEnd::over(channel);
    let mut gauge = Gauge::start()?;
    let mut share = Share::default();
    while let Ok(request) = end.next_request(PATIENCE) {
        let mut answer = [0; SIZE];
        answer.copy_from_slice(request.bytes());
        match payload::number(&answer) {
            STEADY => gauge = Gauge::start()?,
            STOP => share.spent = gauge.spent()?,
            _ => {}
        }
        request.reply(&answer, Deadline::NEVER).doing("reply")?;
    }
    Ok(share)
}
