//! Objects borrowed from a value that keeps them alive: how a view holds its end.
//!
//! A view borrows an end. An owned view also holds the value that keeps the end alive, such as an `Arc`. The lifetime
//! of the borrow in an owned view is only claimed; the view drops the borrow before the value.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A value that keeps an object alive at a fixed address.
///
/// # Safety
/// As long as the value lives, and wherever it is moved, [`object`](Self::object) returns the same object, which is
/// neither moved nor dropped nor borrowed mutably.
pub unsafe trait Keep {
    /// The type of the object.
    type Object;

    /// Returns the object that the value keeps.
    fn object(&self) -> &Self::Object;
}

// SAFETY: an object in an `Arc` stays in place until the last reference is dropped. Taking the object out or borrowing
// it mutably requires the only reference.
unsafe impl<T> Keep for Arc<T> {
    type Object = T;

    fn object(&self) -> &T {
        self
    }
}

/// Returns the object that `kept` keeps, borrowed for longer than the compiler knows.
///
/// # Safety
/// The reference, and everything that borrows from it, must not be used after `kept` is dropped, wherever `kept` was
/// moved.
pub(crate) unsafe fn borrow<'a, K: Keep>(kept: &K) -> &'a K::Object
where
    K::Object: 'a,
{
    // SAFETY: by the trait, the object stays in place as long as `kept` lives; the caller does not use the object
    // later.
    unsafe { &*std::ptr::from_ref(kept.object()) }
}

/// A shared reference, stored beside the value that keeps its object alive. Unlike a plain reference, a `Borrowed` may
/// be passed to a function that drops both, and so outlive the object for a moment without being used.
pub(crate) struct Borrowed<'a, T> {
    object: NonNull<T>,
    borrow: PhantomData<&'a T>,
}

impl<T> Clone for Borrowed<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Borrowed<'_, T> {}

impl<'a, T> From<&'a T> for Borrowed<'a, T> {
    #[inline]
    fn from(object: &'a T) -> Self {
        Self { object: NonNull::from(object), borrow: PhantomData }
    }
}

impl<'a, T> Borrowed<'a, T> {
    /// Returns the reference, with its original lifetime.
    ///
    /// # Safety
    /// If the lifetime is only claimed, the reference is not used after the value that keeps the object is dropped.
    pub(crate) unsafe fn get(self) -> &'a T {
        // SAFETY: the reference was valid for its lifetime. If the lifetime is only claimed, the object still lives, as
        // the caller promises.
        unsafe { self.object.as_ref() }
    }
}

impl<T> Deref for Borrowed<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the reference was valid for its lifetime, which has not ended; for a claimed lifetime see [`borrow`].
        unsafe { self.object.as_ref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Borrowed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

// SAFETY: a `Borrowed` is a shared reference, and a shared reference to a `Sync` object may be sent.
unsafe impl<T: Sync> Send for Borrowed<'_, T> {}
// SAFETY: a `Borrowed` is a shared reference, and gives access by `&T` only.
unsafe impl<T: Sync> Sync for Borrowed<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that borrows from the keeper of its object.
    struct Owned {
        number: Borrowed<'static, u32>,
        _kept: Arc<u32>,
    }

    #[test]
    fn an_object_stays_until_the_value_that_borrows_it_is_dropped() {
        let kept = Arc::new(7);
        // SAFETY: the reference and the `Arc` are dropped together.
        let number = unsafe { borrow(&kept) }.into();
        let owned = Owned { number, _kept: kept };
        let moved = Box::new(owned);
        assert_eq!((*moved.number, format!("{:?}", moved.number)), (7, "7".to_owned()));
        drop(*moved);
    }
}
