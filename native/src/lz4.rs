//! LZ4 blocks, with the rules of the reference decoder: what that one refuses is refused here.

use crate::wire::{Result, Unusual};

const MIN_MATCH: usize = 4;
/// The last bytes of a block are literals, and no match begins close to the end.
const LAST_LITERALS: usize = 5;
const MATCH_LIMIT: usize = 12;
/// What follows the literals of a sequence that is not the last: an offset and another sequence.
const MIN_REST: usize = 2 + 1 + LAST_LITERALS;
/// A length from here on goes on in the next bytes.
const LONG: usize = 15;
/// Bytes that are copied at once, even where fewer are wanted.
const PIECE: usize = 16;
/// A short sequence and what follows it.
const SHORT: usize = 1 + LONG - 1 + MIN_REST;

/// Put what `input` stands for into `out`: exactly `size` bytes.
pub fn decompress(input: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
    // Copies may reach beyond the end.
    let room = size.checked_add(2 * PIECE).ok_or(Unusual)?;
    out.try_reserve_exact(room.saturating_sub(out.len())).map_err(|_| Unusual)?;
    out.resize(room, 0);
    fill(input, size, out)?;
    out.truncate(size);
    Ok(())
}

fn fill(input: &[u8], size: usize, out: &mut [u8]) -> Result<()> {
    let (mut at, mut to) = (0, 0);
    loop {
        (at, to) = take_short(input, (at, to), size, out);
        let token = usize::from(*input.get(at).ok_or(Unusual)?);
        at += 1;
        let literals = length(token >> 4, input, &mut at)?;
        if literals > size - to {
            return Err(Unusual);
        }
        let found = input.get(at..at + literals).ok_or(Unusual)?;
        out[to..to + literals].copy_from_slice(found);
        (at, to) = (at + literals, to + literals);
        if at == input.len() {
            return if to == size && size > 0 { Ok(()) } else { Err(Unusual) };
        }
        if input.len() - at < MIN_REST || size - to < MATCH_LIMIT {
            return Err(Unusual);
        }
        let offset = usize::from(input[at]) | usize::from(input[at + 1]) << 8;
        at += 2;
        let count = length(token & 15, input, &mut at)?.saturating_add(MIN_MATCH);
        if offset == 0 || offset > to || count > size - to - LAST_LITERALS {
            return Err(Unusual);
        }
        repeat(out, to - offset, to, count);
        to += count;
    }
}

/// Take sequences as long as they are short, as nearly all are; return where they end.
///
/// Nothing has to be refused here: a sequence that is unusual or near an end is left.
fn take_short(
    input: &[u8],
    (mut at, mut to): (usize, usize),
    size: usize,
    out: &mut [u8],
) -> (usize, usize) {
    while let Some(sequence) = input[at..].first_chunk::<SHORT>() {
        let token = usize::from(sequence[0]);
        let (literals, count) = (token >> 4, token & 15);
        if literals == LONG || count == LONG || size - to < 4 * PIECE {
            break;
        }
        let offset = usize::from(sequence[1 + literals]) | usize::from(sequence[2 + literals]) << 8;
        if offset < PIECE || offset > to + literals {
            break;
        }
        put(out, to, taken(sequence, 1));
        (at, to) = (at + 1 + literals + 2, to + literals);
        put(out, to, taken(out, to - offset));
        put(out, to + PIECE, taken(out, to - offset + PIECE));
        to += count + MIN_MATCH;
    }
    (at, to)
}

#[inline]
fn length(nibble: usize, input: &[u8], at: &mut usize) -> Result<usize> {
    let mut length = nibble;
    if nibble == LONG {
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

/// Copy `count` bytes from `start` to `to`; bytes that are copied may be among them.
#[inline]
fn repeat(out: &mut [u8], start: usize, to: usize, count: usize) {
    let mut done = 0;
    while done < count {
        // Each time the piece that repeats is twice as long.
        let piece = (count - done).min(to + done - start);
        out.copy_within(start..start + piece, to + done);
        done += piece;
    }
}

#[inline]
fn taken(out: &[u8], at: usize) -> [u8; PIECE] {
    *out[at..].first_chunk().expect("there is room behind the end")
}

#[inline]
fn put(out: &mut [u8], at: usize, piece: [u8; PIECE]) {
    *out[at..].first_chunk_mut().expect("there is room behind the end") = piece;
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
