//! LZ4 blocks, with the rules of the reference decoder: what that one refuses is refused here.

use crate::wire::{Result, Unusual};

const MIN_MATCH: usize = 4;
/// The last bytes of a block are literals, and no match begins close to the end.
const LAST_LITERALS: usize = 5;
const MATCH_LIMIT: usize = 12;
/// What follows the literals of a sequence that is not the last: an offset and another sequence.
const MIN_REST: usize = 2 + 1 + LAST_LITERALS;

/// Put what `input` stands for into `out`: exactly `size` bytes.
pub fn decompress(input: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    out.try_reserve_exact(size).map_err(|_| Unusual)?;
    let mut at = 0;
    loop {
        let token = usize::from(*input.get(at).ok_or(Unusual)?);
        at += 1;
        let literals = length(token >> 4, input, &mut at)?;
        let end = at.checked_add(literals).ok_or(Unusual)?;
        let found = input.get(at..end).ok_or(Unusual)?;
        if literals > size - out.len() {
            return Err(Unusual);
        }
        out.extend_from_slice(found);
        at = end;
        if at == input.len() {
            return if out.len() == size && size > 0 { Ok(()) } else { Err(Unusual) };
        }
        if input.len() - at < MIN_REST || size - out.len() < MATCH_LIMIT {
            return Err(Unusual);
        }
        let offset = usize::from(input[at]) | usize::from(input[at + 1]) << 8;
        at += 2;
        let count = length(token & 15, input, &mut at)?.saturating_add(MIN_MATCH);
        if offset == 0 || offset > out.len() || count > size - out.len() - LAST_LITERALS {
            return Err(Unusual);
        }
        copy(out, offset, count);
    }
}

#[inline]
fn length(nibble: usize, input: &[u8], at: &mut usize) -> Result<usize> {
    let mut length = nibble;
    if nibble == 15 {
        loop {
            let byte = usize::from(*input.get(*at).ok_or(Unusual)?);
            *at += 1;
            length += byte;
            if byte < 255 {
                break;
            }
        }
    }
    Ok(length)
}

/// Append `count` bytes that lie `offset` back; what is appended may be among them.
#[inline]
fn copy(out: &mut Vec<u8>, offset: usize, mut count: usize) {
    let start = out.len() - offset;
    while count > 0 {
        // Each time the piece that repeats is twice as long.
        let piece = count.min(out.len() - start);
        out.extend_from_within(start..start + piece);
        count -= piece;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undone(input: &[u8], size: usize) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        decompress(input, size, &mut out).map(|()| out)
    }

    #[test]
    fn literals_and_overlapping_matches() {
        assert_eq!(undone(&[0x30, b'a', b'b', b'c'], 3), Ok(b"abc".to_vec()));
        // Two literals, eight bytes that repeat them, and five literals more would be too few
        // behind the match's begin: it needs twelve.
        let block = [0x24, b'a', b'b', 2, 0, 0x50, b'v', b'w', b'x', b'y', b'z'];
        assert_eq!(
            undone(&block, 15),
            Ok(b"ababababab vwxyz".iter().filter(|c| **c != b' ').copied().collect())
        );
        assert_eq!(undone(&block, 14), Err(Unusual));
        assert_eq!(undone(&block, 16), Err(Unusual));
    }

    #[test]
    fn damage_is_refused() {
        for block in
            [&[][..], &[0x10], &[0], &[0xf0, 255], &[0x14, b'a', 0, 0], &[0x14, b'a', 9, 0]]
        {
            for size in [0, 1, 20] {
                assert_eq!(undone(block, size), Err(Unusual));
            }
        }
    }
}
