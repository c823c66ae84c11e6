//! Waiting for signals: `zx_object_wait_one`, `zx_object_wait_many` and `zx_object_wait_async`.

use std::sync::Arc;

use crate::abi::*;
use crate::hub;
use crate::object;
use crate::observer::{Observer, Target, next_id};
use crate::port::Port;
use crate::status::{Result, Status};
use crate::table::{Table, table};
use crate::time::Deadline;
use crate::user::Out;
use crate::waiter::Waiter;

/// Returns the signals of a handle's object, for a wait for the signals `mask`.
fn signals_of(handle: zx_handle_t, mask: zx_signals_t) -> Result<zx_signals_t> {
    let entry = table().get_kept(handle, Table::get_reading)?;
    entry.need(ZX_RIGHT_WAIT)?;
    entry.observe(handle, mask, None)
}

/// Returns the signals. If none of `mask` is set, begins a wait and returns its number.
fn begin(
    handle: zx_handle_t,
    mask: zx_signals_t,
    waiter: &Arc<Waiter>,
    item: usize,
) -> Result<(zx_signals_t, Option<u64>)> {
    let entry = table().get_kept(handle, Table::get_reading)?;
    entry.need(ZX_RIGHT_WAIT)?;
    let id = next_id();
    let target = Target::Thread { waiter: waiter.clone(), item };
    let now = entry.observe(handle, mask, Some(Observer { id, handle, mask, target }))?;
    Ok((now, (now & mask == 0).then_some(id)))
}

/// Ends a wait.
fn end(handle: zx_handle_t, id: u64) {
    if let Ok(entry) = table().get_kept(handle, Table::get_reading) {
        entry.forget_observer(id);
    }
}

/// `zx_object_wait_one`.
pub(crate) fn wait_one(
    handle: zx_handle_t,
    mask: zx_signals_t,
    deadline: Deadline,
    observed: Out<'_, zx_signals_t>,
) -> Result<()> {
    let now = signals_of(handle, mask)?;
    if now & mask != 0 {
        observed.set_if_wanted(now);
        return Ok(());
    }
    if deadline.has_passed() {
        observed.set_if_wanted(now);
        return Err(Status::TIMED_OUT);
    }
    let waiter = Waiter::new();
    let (now, id) = begin(handle, mask, &waiter, 0)?;
    let Some(id) = id else {
        observed.set_if_wanted(now);
        return Ok(());
    };
    hub::block(&waiter, deadline);
    end(handle, id);
    match waiter.take_fired().first() {
        Some(fired) => {
            observed.set_if_wanted(fired.observed);
            if fired.canceled { Err(Status::CANCELED) } else { Ok(()) }
        }
        None => {
            observed.set_if_wanted(signals_of(handle, mask).unwrap_or(now));
            Err(Status::TIMED_OUT)
        }
    }
}

/// `zx_object_wait_many`.
pub(crate) fn wait_many(items: Out<'_, zx_wait_item_t>, deadline: Deadline) -> Result<()> {
    let count = items.len();
    if count > ZX_WAIT_MANY_MAX_ITEMS {
        return Err(Status::OUT_OF_RANGE);
    }
    items.check()?;
    let list: Vec<_> = (0..count).map(|index| items.get(index)).collect();
    let mut pending = Vec::with_capacity(count);
    let mut ready = false;
    for item in &list {
        let now = signals_of(item.handle, item.waitfor)?;
        ready |= now & item.waitfor != 0;
        pending.push(now);
    }
    let tell = |pending: &[zx_signals_t]| {
        for (index, pending) in pending.iter().enumerate() {
            items.set(index, zx_wait_item_t { pending: *pending, ..list[index] });
        }
    };
    if ready {
        tell(&pending);
        return Ok(());
    }
    if deadline.has_passed() {
        tell(&pending);
        return Err(Status::TIMED_OUT);
    }
    // A wait without objects sleeps, too.
    hub::prepare()?;
    let waiter = Waiter::new();
    let mut ids = Vec::with_capacity(count);
    let mut failed = None;
    for (index, item) in list.iter().enumerate() {
        // A look at each object may take long if a peer keeps sending.
        if deadline.has_passed() {
            break;
        }
        match begin(item.handle, item.waitfor, &waiter, index) {
            Ok((now, id)) => {
                pending[index] = now;
                ready |= id.is_none();
                ids.push(id);
            }
            // The handle was closed since its signals were read.
            Err(status) => {
                failed = Some(status);
                break;
            }
        }
    }
    if failed.is_none() && !ready {
        hub::block(&waiter, deadline);
    }
    for (item, id) in list.iter().zip(&ids) {
        if let Some(id) = id {
            end(item.handle, *id);
        }
    }
    if let Some(status) = failed {
        return Err(status);
    }
    for (index, item) in list.iter().enumerate() {
        if let Ok(now) = signals_of(item.handle, item.waitfor) {
            pending[index] = now | (pending[index] & item.waitfor);
        }
    }
    let mut canceled = false;
    for fired in waiter.take_fired() {
        pending[fired.item] |= fired.observed;
        canceled |= fired.canceled;
        ready |= !fired.canceled;
    }
    tell(&pending);
    match (canceled, ready) {
        (true, _) => Err(Status::CANCELED),
        (false, true) => Ok(()),
        (false, false) => Err(Status::TIMED_OUT),
    }
}

/// `zx_object_wait_async`.
pub(crate) fn wait_async(
    handle: zx_handle_t,
    port: zx_handle_t,
    key: u64,
    mask: zx_signals_t,
    options: u32,
) -> Result<()> {
    const STAMPS: u32 = ZX_WAIT_ASYNC_TIMESTAMP | ZX_WAIT_ASYNC_BOOT_TIMESTAMP;
    if options & !(STAMPS | ZX_WAIT_ASYNC_EDGE) != 0 || options & STAMPS == STAMPS {
        return Err(Status::INVALID_ARGS);
    }
    let port = object::port_of(port, ZX_RIGHT_WRITE)?;
    let entry = table().get_kept(handle, Table::get_reading)?;
    entry.need(ZX_RIGHT_WAIT)?;
    let id = next_id();
    // The registration comes before the begin of the wait, since the wait may end at once.
    port.expect(id, key, handle);
    let target = Target::Port { port: Arc::downgrade(&port), options };
    match entry.observe(handle, mask, Some(Observer { id, handle, mask, target })) {
        Ok(now) if now & mask != 0 && options & ZX_WAIT_ASYNC_EDGE == 0 => {
            drop(entry);
            port.complete(id, mask, now, options);
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(status) => {
            port.forget(id);
            Err(status)
        }
    }
}

/// `zx_port_cancel`; without a source, `zx_port_cancel_key`.
pub(crate) fn cancel(port: &Port, source: Option<zx_handle_t>, key: u64) -> Result<()> {
    for (id, handle) in port.cancel(key, source)? {
        end(handle, id);
    }
    Ok(())
}
