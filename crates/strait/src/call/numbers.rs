//! Hashes of call numbers, which the peer chooses. The hashes are cheap, and differ in each process, so that a peer
//! cannot choose call numbers with equal hashes.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

use crate::os::fork::PerProcess;

/// Makes hashers for call numbers. The field is the one random secret of this process for hashes of call numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct NumberHashing([u64; 2]);

impl Default for NumberHashing {
    fn default() -> Self {
        static KEY: PerProcess<OnceLock<[u64; 2]>> = PerProcess::new(OnceLock::new);
        Self(*KEY.get().get_or_init(|| {
            let random = RandomState::new();
            [random.hash_one(0), random.hash_one(1)]
        }))
    }
}

impl BuildHasher for NumberHashing {
    type Hasher = NumberHasher;

    #[inline]
    fn build_hasher(&self) -> NumberHasher {
        NumberHasher { key: self.0, hash: 0 }
    }
}

/// Hashes one call number, with the random secret of the [`NumberHashing`] that made the hasher.
#[derive(Clone, Copy, Debug)]
pub(super) struct NumberHasher {
    key: [u64; 2],
    hash: u64,
}

impl Hasher for NumberHasher {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        // The hash uses both halves of the product, so that each bit of the number changes the upper and the lower bits
        // of the hash.
        let product = u128::from(number ^ self.hash ^ self.key[0]) * u128::from(self.key[1] | 1);
        self.hash = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Hashes the call numbers 0, `step`, 2 × `step` and so on to 999 × `step` with the secret `numbers`. Returns the
    /// number of different hashes, and the number of different pairs of their upper 7 and lower 10 bits, which a hash
    /// table uses.
    fn spread(numbers: NumberHashing, step: u64) -> (usize, usize) {
        let hashes: HashSet<_> = (0..1000).map(|number| numbers.hash_one(number * step)).collect();
        let parts: HashSet<_> = hashes.iter().map(|hash| (hash >> 57, hash & 0x3ff)).collect();
        (hashes.len(), parts.len())
    }

    /// Shows that call numbers in a row, and call numbers that differ only in 16 of their bits, nearly all have
    /// different hashes: with at least 30 of 40 random secrets, 1000 numbers have more than 990 hashes. (One secret in
    /// a few hundred spreads some numbers less.)
    #[test]
    fn numbers_in_a_row_or_with_the_same_half_do_not_meet() {
        for step in [1u64, 1 << 16, 1 << 32, 1 << 48] {
            let keys = (0..40).map(|_| {
                let random = RandomState::new();
                NumberHashing([random.hash_one(0), random.hash_one(1)])
            });
            let spreads: Vec<_> = keys.map(|key| spread(key, step)).collect();
            let good = spreads.iter().filter(|(hashes, parts)| *hashes > 990 && *parts > 900).count();
            assert!(good >= 30, "{step}: {spreads:?}");
        }
    }
}
