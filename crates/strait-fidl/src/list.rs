//! A list without allocation while short.

/// A list with room for `N` values without allocation.
#[derive(Debug)]
pub(crate) struct List<T, const N: usize> {
    first: [T; N],
    len: usize,
    /// All values, once there are more than `N`.
    all: Vec<T>,
}

impl<T: Copy, const N: usize> List<T, N> {
    /// Creates an empty list; `nothing` fills the places of values that are not there.
    #[inline]
    pub(crate) fn new(nothing: T) -> Self {
        Self { first: [nothing; N], len: 0, all: Vec::new() }
    }

    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        match self.first.get_mut(self.len) {
            Some(place) => *place = value,
            None => {
                if self.all.is_empty() {
                    self.all.extend_from_slice(&self.first);
                }
                self.all.push(value);
            }
        }
        self.len += 1;
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        if self.len <= N { &self.first[..self.len] } else { &self.all }
    }
}

#[cfg(test)]
mod tests {
    use super::List;

    #[test]
    fn values_stay_in_their_order_beyond_the_first_places() {
        let mut list = List::<u32, 3>::new(0);
        for value in 0..10 {
            list.push(value);
            assert!(list.as_slice().iter().copied().eq(0..=value));
        }
    }
}
