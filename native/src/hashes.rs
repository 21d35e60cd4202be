//! 64-bit hashes of byte strings; what is right is said in
//! `pulsar_spark/schema/arrow/value_hashes.py`.

use crate::wire::{Result, Unusual};

/// Odd numbers.
const PER_BYTE: u64 = 0x9e37_79b9_7f4a_7c15;
const PER_HEAD: u64 = 0xd6e8_feb8_6659_fd93;

/// The hash of each value onto its word, which stays as it is where there is no value; the words
/// are numbers of 64 bits in the machine's own order, or all the same one.
pub fn hash_values<'a>(
    values: impl ExactSizeIterator<Item = Option<&'a [u8]>>,
    seed: u64,
    word: u64,
    words: Option<&[u8]>,
) -> Result<Vec<u64>> {
    let hashed = |value: Option<&[u8]>, word: u64| {
        value.map_or(word, |bytes| mix(summary(bytes).wrapping_add(seed).wrapping_add(word)))
    };
    let Some(words) = words else {
        return Ok(values.map(|value| hashed(value, word)).collect());
    };
    let parts = words.chunks_exact(8);
    if parts.len() != values.len() || !parts.remainder().is_empty() {
        return Err(Unusual);
    }
    let words = parts.map(|part| part.try_into().map_or(0, u64::from_ne_bytes));
    Ok(values.zip(words).map(|(value, word)| hashed(value, word)).collect())
}

/// What a value's hash is made of: up to 16 bytes are two numbers, more are two checksums.
fn summary(bytes: &[u8]) -> u64 {
    let size = bytes.len();
    let told = if size <= 16 {
        let (head, tail) = bytes.split_at(size.min(8));
        number(head).wrapping_mul(PER_HEAD).wrapping_add(number(tail))
    } else {
        u64::from(crc32c::crc32c(bytes)) << 32 | u64::from(crc32fast::hash(bytes))
    };
    told.wrapping_add((size as u64).wrapping_mul(PER_BYTE))
}

/// The little-endian number of up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk(), bytes.last_chunk()) {
        // Both have the bytes in the middle.
        (Some(first), Some(last)) => {
            let behind = 8 * (bytes.len() - 4) as u32;
            u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << behind
        }
        _ => bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
    }
}

/// The last step of splitmix64, which is not linear: sums of its results do not cancel.
fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_mixed_as_by_splitmix64() {
        // The first numbers of the generator with the seed 1234567.
        let seed = 1_234_567u64;
        let numbers: Vec<u64> =
            (1..=3).map(|count| mix(seed.wrapping_add(PER_BYTE.wrapping_mul(count)))).collect();
        assert_eq!(numbers, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn a_hash_has_both_checksums_the_length_the_seed_and_the_word() {
        let bytes = b"123456789".repeat(2);
        let values = [Some(&bytes[..]), None, Some(b"")];
        let checksums =
            u64::from(crc32c::crc32c(&bytes)) << 32 | u64::from(crc32fast::hash(&bytes));
        let told = checksums.wrapping_add(PER_BYTE.wrapping_mul(18));
        let expected = vec![mix(told.wrapping_add(5)), 0, mix(5)];
        assert_eq!(hash_values(values.into_iter(), 5, 0, None), Ok(expected));

        let expected = vec![mix(told.wrapping_add(12)), 7, mix(12)];
        assert_eq!(hash_values(values.into_iter(), 5, 7, None), Ok(expected));

        let words = [7, u64::MAX, 0].map(u64::to_ne_bytes).concat();
        let expected = vec![mix(told.wrapping_add(12)), u64::MAX, mix(5)];
        assert_eq!(hash_values(values.into_iter(), 5, 0, Some(&words)), Ok(expected));
    }

    #[test]
    fn a_short_value_is_two_numbers() {
        for size in 0..=16usize {
            let bytes: Vec<u8> = (0xe0..).take(size).collect();
            let mut padded = [0; 16];
            padded[..size].copy_from_slice(&bytes);
            let number = u128::from_le_bytes(padded);
            let told = (number as u64).wrapping_mul(PER_HEAD).wrapping_add((number >> 64) as u64);
            assert_eq!(summary(&bytes), told.wrapping_add(PER_BYTE.wrapping_mul(size as u64)));
        }
    }

    #[test]
    fn there_is_a_word_for_each_value() {
        for size in [0, 8, 15, 17, 24] {
            assert_eq!(
                hash_values([None, None].into_iter(), 0, 0, Some(&vec![0; size])),
                Err(Unusual)
            );
        }
    }
}
