//! Arrays in the codec: types of elements and shapes, possibly invented by a hostile peer.

/// The greatest number of dimensions.
const MAX_DIMENSIONS: usize = 32;

/// Returns the size in bytes of an element of the type `dtype`, written as NumPy's `dtype.str`, or of `bfloat16`;
/// `None` if arrays of this type do not travel.
pub(super) fn item_size(dtype: &str) -> Option<u64> {
    if dtype == "bfloat16" {
        return Some(2);
    }
    let rest = dtype.strip_prefix(['<', '>', '|'])?;
    let kind = rest.chars().next()?;
    let rest = rest.get(kind.len_utf8()..)?;
    match kind {
        'm' | 'M' => is_unit(rest.strip_prefix('8')?).then_some(8),
        'b' => number(rest).filter(|size| *size == 1),
        'i' | 'u' => number(rest).filter(|size| matches!(size, 1 | 2 | 4 | 8)),
        'f' => number(rest).filter(|size| matches!(size, 2 | 4 | 8)),
        'c' => number(rest).filter(|size| matches!(size, 8 | 16)),
        'S' | 'V' => number(rest),
        'U' => number(rest).map(|characters| 4 * characters),
        _ => None,
    }
}

/// Returns a size of at least 1 that fits 31 bits, from decimal digits.
fn number(digits: &str) -> Option<u64> {
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|size| is_number && (1..=1 << 29).contains(size))
}

/// Returns whether `text` may be the unit of a time: nothing, or a number and letters in brackets. NumPy divides by the
/// number, so it is not 0, and has no more digits than fit 31 bits.
fn is_unit(text: &str) -> bool {
    let Some(unit) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) else { return text.is_empty() };
    let letters = unit.trim_start_matches(|character: char| character.is_ascii_digit());
    let digits = unit.len() - letters.len();
    let is_number = digits <= 9 && !unit.starts_with('0');
    is_number && letters.len() <= 12 && letters.bytes().all(|byte| byte.is_ascii_alphabetic())
}

/// Returns the number of bytes of an array; `None` if there are too many dimensions, or if the product of all
/// dimensions other than 0 is over the address space.
pub(super) fn size(item: u64, shape: &[u64]) -> Option<usize> {
    if shape.len() > MAX_DIMENSIONS {
        return None;
    }
    let product = shape.iter().filter(|len| **len != 0).try_fold(item, |product, len| product.checked_mul(*len))?;
    isize::try_from(product).ok()?;
    let is_empty = shape.contains(&0);
    if is_empty { Some(0) } else { usize::try_from(product).ok() }
}
