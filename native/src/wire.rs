//! Numbers and sizes as protobuf and Pulsar's frames write them, each checked before it is believed.

/// What is read is not usual: the caller leaves it to Python's opener, which tells why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unusual;

pub type Result<T> = std::result::Result<T, Unusual>;

/// Digits of seven bits that a number of 64 bits has at most; of the last one a bit counts.
const MAX_DIGITS: usize = 10;

/// Reads the fields of a protobuf message one after the other.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Reader { data, at: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.at >= self.data.len()
    }

    /// How many bytes are left.
    pub fn len(&self) -> usize {
        self.data.len() - self.at
    }

    /// Whether the next byte is `tag`; then it is passed.
    #[inline]
    pub fn has(&mut self, tag: u8) -> bool {
        let found = self.data.get(self.at) == Some(&tag);
        self.at += usize::from(found);
        found
    }

    /// Pass the byte `tag`, which has to be next.
    #[inline]
    pub fn expect(&mut self, tag: u8) -> Result<()> {
        self.has(tag).then_some(()).ok_or(Unusual)
    }

    /// A number below 2^64.
    #[inline]
    pub fn number(&mut self) -> Result<u64> {
        let first = *self.data.get(self.at).ok_or(Unusual)?;
        self.at += 1;
        if first < 128 {
            return Ok(u64::from(first));
        }
        let mut value = u64::from(first & 127);
        for place in 1..MAX_DIGITS {
            let digit = *self.data.get(self.at).ok_or(Unusual)?;
            self.at += 1;
            value |= u64::from(digit & 127) << (7 * place);
            if digit < 128 {
                return (place < MAX_DIGITS - 1 || digit < 2).then_some(value).ok_or(Unusual);
            }
        }
        Err(Unusual)
    }

    /// A number below 2^63 without needless digits: of tags, sizes, and what is copied into ids.
    #[inline]
    pub fn shortest(&mut self) -> Result<u64> {
        let start = self.at;
        let value = self.number()?;
        if self.at - start > 1 && self.data[self.at - 1] == 0 || value > i64::MAX as u64 {
            return Err(Unusual);
        }
        Ok(value)
    }

    /// A number that protobuf keeps in 31 bits without loss.
    #[inline]
    pub fn int(&mut self) -> Result<i32> {
        i32::try_from(self.number()?).map_err(|_| Unusual)
    }

    #[inline]
    pub fn flag(&mut self) -> Result<bool> {
        Ok(self.number()? != 0)
    }

    /// A size and as many bytes.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let size = usize::try_from(self.shortest()?).map_err(|_| Unusual)?;
        self.take(size)
    }

    #[inline]
    pub fn take(&mut self, size: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(size).ok_or(Unusual)?;
        let found = self.data.get(self.at..end).ok_or(Unusual)?;
        self.at = end;
        Ok(found)
    }

    /// As many bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Unusual)
    }

    /// The next field: its tag, and its value as it is written, with its size.
    #[inline]
    pub fn field(&mut self) -> Result<(u64, &'a [u8])> {
        let tag = self.shortest()?;
        let start = self.at;
        match tag & 7 {
            0 => drop(self.number()?),
            2 => drop(self.bytes()?),
            _ => return Err(Unusual),
        }
        Ok((tag, &self.data[start..self.at]))
    }

    /// The next tag, which has to be higher than `last`, or the same where that is `repeated`.
    #[inline]
    pub fn tag(&mut self, last: &mut u64, repeated: &[u64]) -> Result<u64> {
        let tag = self.shortest()?;
        if tag < *last || tag == *last && !repeated.contains(&tag) {
            return Err(Unusual);
        }
        *last = tag;
        Ok(tag)
    }
}

/// As many bytes at a place.
#[inline]
pub fn bytes_at<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N]> {
    data.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Unusual)
}

/// The 32 bits, big endian, at a place.
#[inline]
pub fn be32(data: &[u8], at: usize) -> Result<usize> {
    bytes_at(data, at).map(|bytes| u32::from_be_bytes(bytes) as usize)
}

/// Append a number in its shortest form.
#[inline]
pub fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Append a signed number with zigzag: 0, -1, 1, -2, … become 0, 1, 2, 3, …
#[inline]
pub fn put_zigzag(out: &mut Vec<u8>, number: i64) {
    put_number(out, (number << 1 ^ number >> 63) as u64);
}

/// Append bytes behind their size.
#[inline]
pub fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Append what padded base64 of the standard alphabet stands for.
pub fn put_base64(out: &mut Vec<u8>, text: &[u8]) -> Result<()> {
    if text.len() % 4 != 0 {
        return Err(Unusual);
    }
    let last = (text.len() / 4).wrapping_sub(1);
    for (number, quad) in text.chunks_exact(4).enumerate() {
        let padding = match quad {
            [_, _, b'=', b'='] if number == last => 2,
            [_, _, _, b'='] if number == last => 1,
            _ => 0,
        };
        let mut bits = 0u32;
        for &character in &quad[..4 - padding] {
            bits = bits << 6 | u32::from(base64_digit(character)?);
        }
        bits <<= 6 * padding;
        out.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
    }
    Ok(())
}

fn base64_digit(character: u8) -> Result<u8> {
    Ok(match character {
        b'A'..=b'Z' => character - b'A',
        b'a'..=b'z' => character - b'a' + 26,
        b'0'..=b'9' => character - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return Err(Unusual),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for value in [0, 1, 127, 128, 300, 16_383, 16_384, (1 << 63) - 1] {
            let mut data = Vec::new();
            put_number(&mut data, value);
            assert_eq!(Reader::new(&data).shortest(), Ok(value));
            data.pop();
            assert_eq!(Reader::new(&data).number(), Err(Unusual));
        }
    }

    #[test]
    fn needless_digits_are_a_number_but_no_size() {
        for data in [&[0x80, 0][..], &[0x81, 0], &[0x80, 0x80, 0]] {
            assert!(Reader::new(data).number().is_ok());
            assert_eq!(Reader::new(data).shortest(), Err(Unusual));
        }
        assert_eq!(Reader::new(&[0x80; 10]).number(), Err(Unusual));
    }

    #[test]
    fn no_size_is_believed_beyond_the_data() {
        assert_eq!(Reader::new(&[3, 1, 2]).bytes(), Err(Unusual));
        let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0];
        assert_eq!(Reader::new(&huge).bytes(), Err(Unusual));
        assert_eq!(Reader::new(&[2, 1, 2]).bytes(), Ok(&[1, 2][..]));
    }

    #[test]
    fn base64_is_undone_or_refused() {
        let undone = |text: &[u8]| {
            let mut out = Vec::new();
            put_base64(&mut out, text).map(|()| out)
        };
        assert_eq!(undone(b""), Ok(vec![]));
        assert_eq!(undone(b"/w=="), Ok(vec![0xff]));
        assert_eq!(undone(b"YWJjZA=="), Ok(b"abcd".to_vec()));
        assert_eq!(undone(b"AP/+"), Ok(vec![0, 255, 254]));
        for text in [&b"@"[..], b"YWJ", b"Y===", b"/w==/w==", b"====", b"YW=j", b"/w=", b"/w"] {
            assert_eq!(undone(text), Err(Unusual));
        }
        for text in [&b"=w=="[..], b"a-=="] {
            assert_eq!(undone(text), Err(Unusual));
        }
    }
}
