//! A 64-bit hash of byte strings, from two checksums; what is right is said in
//! `pulsar_spark/schema/arrow/value_hashes.py`.

/// An odd number: the golden ratio's.
const PER_BYTE: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of each value, 0 for none.
pub fn hash_values<'a>(values: impl Iterator<Item = Option<&'a [u8]>>, seed: u64) -> Vec<u64> {
    values.map(|value| value.map_or(0, |bytes| hash(bytes, seed))).collect()
}

fn hash(bytes: &[u8], seed: u64) -> u64 {
    let checksums = u64::from(crc32c::crc32c(bytes)) << 32 | u64::from(crc32fast::hash(bytes));
    mix(checksums.wrapping_add((bytes.len() as u64).wrapping_mul(PER_BYTE)).wrapping_add(seed))
}

/// The last step of splitmix64, which is not linear: sums of its results cannot cancel.
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
    fn a_hash_has_both_checksums_the_length_and_the_seed() {
        let found = hash_values([Some(&b"123456789"[..]), None, Some(b"")].into_iter(), 5);
        let checksums: u64 = 0xe306_9283_cbf4_3926;
        assert_eq!(found[0], mix(checksums.wrapping_add(PER_BYTE.wrapping_mul(9)).wrapping_add(5)));
        assert_eq!(found[1..], [0, mix(5)]);
    }
}
