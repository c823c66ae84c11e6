//! The source of a world's choices: a seed, or the input of a fuzzer.

/// A sequence of choices. Two sequences from the same source are equal.
#[derive(Clone, Debug)]
pub struct Choices(Source);

#[derive(Clone, Debug)]
enum Source {
    Seed(u64),
    Input { bytes: Vec<u8>, at: usize },
}

/// Numbers at which mistakes are likely: the limits of types, of cells and of pages.
const NASTY: [u64; 20] = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    63,
    64,
    255,
    256,
    4095,
    4096,
    1 << 20,
    u32::MAX as u64,
    1 << 32,
    1 << 47,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];

impl Choices {
    /// Returns the choices of a seed and a round. Parts of a world with independent choices use different values of
    /// `part`.
    pub fn of_seed(seed: u64, round: u64, part: u64) -> Self {
        let mut choices = Self(Source::Seed(seed ^ round.rotate_left(24) ^ part.rotate_left(52)));
        for _ in 0..3 {
            choices.word();
        }
        choices
    }

    /// Returns the choices made by an input. After the end of the input, each further choice is the first of its
    /// kind.
    pub fn of_input(bytes: &[u8]) -> Self {
        Self(Source::Input { bytes: bytes.to_vec(), at: 0 })
    }

    /// Returns whether the choices come from an input that has ended. Always false for a seed.
    pub fn are_over(&self) -> bool {
        matches!(&self.0, Source::Input { bytes, at } if *at >= bytes.len())
    }

    /// Returns a 64-bit number: of a seed by Splitmix64, of an input its next four bytes as the lower half.
    pub fn word(&mut self) -> u64 {
        match &mut self.0 {
            Source::Seed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                mixed ^ mixed >> 31
            }
            Source::Input { bytes, at } => {
                let mut word = [0; 8];
                let rest = bytes.get(*at..).unwrap_or_default();
                let len = rest.len().min(4);
                word[..len].copy_from_slice(&rest[..len]);
                *at += 4;
                u64::from_le_bytes(word)
            }
        }
    }

    /// Returns a number below `limit` (0 if `limit` is 0). Of an input, one byte is used if `limit` is at most 256.
    pub fn below(&mut self, limit: usize) -> usize {
        match &mut self.0 {
            Source::Input { bytes, at } if limit <= 256 => {
                let byte = bytes.get(*at).copied().unwrap_or(0);
                *at += 1;
                usize::from(byte) % limit.max(1)
            }
            _ => (self.word() % limit.max(1) as u64) as usize,
        }
    }

    /// Returns true with a probability of 1 in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) + 1 == times
    }

    /// Returns one of the elements of `among`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }

    /// Returns a number that is likely to find mistakes: the limit of a type, a small number, or any number.
    pub fn nasty(&mut self) -> u64 {
        match self.below(3) {
            0 => self.word(),
            1 => self.below(256) as u64,
            _ => self.pick(&NASTY),
        }
    }
}
