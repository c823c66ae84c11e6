//! Ends used by several threads: when an end closes, and when it can be taken out.

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use strait::Channel;
use strait::task::AsyncChannel;

use crate::errors;
use crate::sync::lock;

/// An end that can give its peer a reason when closing.
pub(crate) trait CloseWith {
    fn close_with(self, reason: u32);
}

impl CloseWith for Channel {
    fn close_with(self, reason: u32) {
        Self::close_with(self, reason);
    }
}

impl CloseWith for AsyncChannel {
    fn close_with(self, reason: u32) {
        self.into_inner().close_with(reason);
    }
}

/// An end, held by every call on the end. The last call to release the end closes it, and gives the reason if there is
/// one.
pub(crate) struct Held<C: CloseWith> {
    end: Option<C>,
    reason: OnceLock<u32>,
}

impl<C: CloseWith> Held<C> {
    pub(crate) fn new(end: C) -> Self {
        Self { end: Some(end), reason: OnceLock::new() }
    }

    /// Sets the reason for the peer when the end closes. Only the first reason counts.
    pub(crate) fn set_reason(&self, reason: u32) {
        let _ = self.reason.set(reason);
    }

    pub(crate) fn into_end(mut self) -> C {
        self.end.take().unwrap_or_else(|| unreachable!("the end is taken once, when the object goes"))
    }
}

impl<C: CloseWith> Deref for Held<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.end.as_ref().unwrap_or_else(|| unreachable!("the end is taken only when the object goes"))
    }
}

impl<C: CloseWith> Drop for Held<C> {
    fn drop(&mut self) {
        if let (Some(end), Some(reason)) = (self.end.take(), self.reason.get()) {
            end.close_with(*reason);
        }
    }
}

/// The end of an object of an event loop, until the program closes the end or takes it out.
pub(crate) struct Slot<T>(Mutex<Option<Arc<T>>>);

impl<T> Slot<T> {
    pub(crate) fn new(end: T) -> Self {
        Self(Mutex::new(Some(Arc::new(end))))
    }

    /// Returns the end for one call.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<Arc<T>> {
        let end = lock(&self.0).clone();
        end.ok_or_else(|| closed(py))
    }

    /// Takes the end out. Fails, and leaves the end, while a call of another thread uses the end.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<T> {
        let mut slot = lock(&self.0);
        let Some(end) = slot.take() else {
            drop(slot);
            return Err(closed(py));
        };
        Arc::try_unwrap(end).map_err(|end| {
            *slot = Some(end);
            PyValueError::new_err("a call of another thread uses this end")
        })
    }

    /// Empties the slot, and returns the end if there was an end. The end closes when the last call on the end returns.
    pub(crate) fn close(&self) -> Option<Arc<T>> {
        lock(&self.0).take()
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0).is_none()
    }
}

pub(crate) fn closed(py: Python<'_>) -> PyErr {
    errors::named(py, "Closed", "this end was closed or detached".to_owned())
}
