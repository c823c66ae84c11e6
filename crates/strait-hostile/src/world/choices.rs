//! Where the choices of a world come from: a seed, or the input of a fuzzer.

/// A row of choices. The same source makes the same row.
#[derive(Clone, Debug)]
pub struct Choices(Source);

#[derive(Clone, Debug)]
enum Source {
    Seed(u64),
    Input { bytes: Vec<u8>, at: usize },
}

/// Numbers at which mistakes are made: borders of types, of cells and of pages.
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
    /// The choices of a seed. Parts of a world that must not disturb each other's choices have a `part` each.
    pub fn of_seed(seed: u64, round: u64, part: u64) -> Self {
        let mut choices = Self(Source::Seed(seed ^ round.rotate_left(24) ^ part.rotate_left(52)));
        for _ in 0..3 {
            choices.word();
        }
        choices
    }

    /// The choices that an input makes; when the input ends, each further choice is the first of its kind.
    pub fn of_input(bytes: &[u8]) -> Self {
        Self(Source::Input { bytes: bytes.to_vec(), at: 0 })
    }

    /// Whether an input has no more choices to make.
    pub fn are_over(&self) -> bool {
        matches!(&self.0, Source::Input { bytes, at } if *at >= bytes.len())
    }

    /// A word. (Splitmix64; of an input, the next four bytes, spread.)
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

    /// A number below `limit`. Of an input it takes one byte, if that is enough.
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

    /// True once in so many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) + 1 == times
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }

    /// A word of the kind that breaks things: borders, small numbers, nonsense.
    pub fn nasty(&mut self) -> u64 {
        match self.below(3) {
            0 => self.word(),
            1 => self.below(256) as u64,
            _ => self.pick(&NASTY),
        }
    }
}
