//! LZ4 blocks. The reference implementation does the work, as it does in Python: what
//! one of the two refuses, the other refuses.

use lz4::block::decompress_to_buffer;

use crate::wire::{Result, Unusual};

/// Put what `input` stands for into `out`: exactly `size` bytes.
pub fn decompress(input: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
    let wanted = i32::try_from(size).map_err(|_| Unusual)?;
    i32::try_from(input.len()).map_err(|_| Unusual)?;
    out.try_reserve_exact(size.saturating_sub(out.len())).map_err(|_| Unusual)?;
    out.resize(size, 0);
    match decompress_to_buffer(input, Some(wanted), out) {
        Ok(written) if written == size && size > 0 => Ok(()),
        _ => Err(Unusual),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_exactly_its_size() {
        let mut out = b"longer than what comes".to_vec();
        // Two literals, eight bytes that repeat them, five literals.
        let block = [0x24, b'a', b'b', 2, 0, 0x50, b'v', b'w', b'x', b'y', b'z'];
        assert_eq!(decompress(&block, 15, &mut out), Ok(()));
        assert_eq!(out, b"ababababab".iter().chain(b"vwxyz").copied().collect::<Vec<_>>());
        for size in [0, 14, 16, usize::MAX] {
            assert_eq!(decompress(&block, size, &mut out), Err(Unusual));
        }
        assert_eq!(decompress(&[0], 0, &mut out), Err(Unusual));
    }
}
