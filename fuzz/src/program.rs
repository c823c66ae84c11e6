//! Decodes an input as a program: 8 bytes that choose options, then instructions of 8 bytes each.
//!
//! Bytes that an instruction does not use have no meaning. So every input is a program, and a change of one byte is a
//! small change.

use crate::world;

/// The number of bytes of an instruction.
pub const INSTRUCTION: usize = 8;

/// The greatest number of instructions of a program that are executed.
pub const LONGEST: usize = 192;

/// An instruction: one step of an input.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// What the instruction does.
    pub code: u8,
    /// The object on which the instruction works, for example the number of an end.
    pub who: u8,
    /// The first parameter of the instruction.
    pub a: u8,
    /// The second parameter of the instruction.
    pub b: u8,
    /// The third parameter of the instruction.
    pub word: u32,
}

impl Instruction {
    fn decode(bytes: [u8; INSTRUCTION]) -> Self {
        let [code, who, a, b, word @ ..] = bytes;
        Self { code, who, a, b, word: u32::from_le_bytes(word) }
    }

    /// Returns the bytes of the instruction in an input.
    pub fn encode(&self) -> [u8; INSTRUCTION] {
        let mut bytes = [self.code, self.who, self.a, self.b, 0, 0, 0, 0];
        bytes[4..].copy_from_slice(&self.word.to_le_bytes());
        bytes
    }
}

/// Returns the options and the instructions of an input.
pub fn decode(input: &[u8]) -> ([u8; INSTRUCTION], impl Iterator<Item = Instruction>) {
    let (options, rest) = input.split_first_chunk().map_or(([0; INSTRUCTION], input), |(head, rest)| (*head, rest));
    (options, rest.as_chunks().0.iter().take(LONGEST).map(|bytes| Instruction::decode(*bytes)))
}

/// Changes an input for the fuzzer: whole instructions as often as bytes. `size` is the length of the input in `data`,
/// `most` the greatest permitted length, and `any` the fuzzer's own mutation. Returns the new length.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    most: usize,
    seed: u32,
    any: impl FnOnce(&mut [u8], usize, usize) -> usize,
) -> usize {
    let mut state = u64::from(seed) | 1 << 32;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let count = size / INSTRUCTION;
    let size = count * INSTRUCTION;
    let place = |at: usize| at * INSTRUCTION..(at + 1) * INSTRUCTION;
    let room = (size + INSTRUCTION <= most).then_some(INSTRUCTION);
    if count < 2 {
        return any(data, size.max(1).min(data.len()), most);
    }
    match (random(12), room) {
        // Copies an instruction to another place.
        (0 | 1, Some(_)) => {
            let (from, to) = (random(count), 1 + random(count));
            let copied: [u8; INSTRUCTION] = data[place(from)].try_into().expect("eight bytes");
            data.copy_within(to * INSTRUCTION..size, (to + 1) * INSTRUCTION);
            data[place(to)].copy_from_slice(&copied);
            size + INSTRUCTION
        }
        // Inserts a random instruction.
        (2 | 3, Some(_)) => {
            let to = 1 + random(count);
            data.copy_within(to * INSTRUCTION..size, (to + 1) * INSTRUCTION);
            for byte in &mut data[place(to)] {
                *byte = random(256) as u8;
            }
            // The number of an object is small, so that it is valid more often. Codes of kinds with few codes are
            // chosen on purpose.
            data[to * INSTRUCTION + 1] = random(8) as u8;
            if random(3) == 0 {
                data[to * INSTRUCTION] = world::OTHERS + random(usize::from(world::ATTACKS - world::OTHERS)) as u8;
            }
            size + INSTRUCTION
        }
        // Removes an instruction.
        (4, _) => {
            let at = random(count);
            data.copy_within((at + 1) * INSTRUCTION..size, at * INSTRUCTION);
            size - INSTRUCTION
        }
        // Exchanges two instructions.
        (5, _) => {
            let (one, other) = (random(count), random(count));
            for byte in 0..INSTRUCTION {
                data.swap(one * INSTRUCTION + byte, other * INSTRUCTION + byte);
            }
            size
        }
        // Changes one byte.
        (6..=9, _) => {
            let at = random(size);
            data[at] = match random(3) {
                0 => random(256) as u8,
                1 => data[at] ^ 1 << random(8),
                _ => data[at].wrapping_add(random(7) as u8).wrapping_sub(3),
            };
            size
        }
        // Applies the fuzzer's own mutation, which uses the comparisons that it has seen. It changes one instruction
        // only, so that the others stay as they are.
        _ => {
            let at = random(count);
            any(&mut data[place(at)], INSTRUCTION, INSTRUCTION);
            size
        }
    }
}
