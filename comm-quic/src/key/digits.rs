//! Bytes as digits of five bits (RFC 4648, in lower case), for people who copy them.

const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// The most digits that are read.
const MAX_DIGITS: usize = 1 << 10;

/// Writes bytes; the last digit is filled up with zeros.
pub(crate) fn written(bytes: &[u8]) -> String {
    let (mut text, mut bits, mut n_bits) = (String::new(), 0u32, 0);
    let mut digit = |bits: u32| text.push(char::from(DIGITS[(bits & 31) as usize]));
    for byte in bytes {
        (bits, n_bits) = (bits << 8 | u32::from(*byte), n_bits + 8);
        while n_bits >= 5 {
            n_bits -= 5;
            digit(bits >> n_bits);
        }
    }
    if n_bits > 0 {
        digit(bits << (5 - n_bits));
    }
    text
}

/// Reads bytes; `None` if a character is not a digit.
pub(crate) fn read(text: &str) -> Option<Vec<u8>> {
    let (mut bits, mut n_bits, mut bytes) = (0u32, 0, Vec::new());
    for digit in text.bytes().take(MAX_DIGITS) {
        let five = DIGITS.iter().position(|d| *d == digit.to_ascii_lowercase())?;
        (bits, n_bits) = (bits << 5 | five as u32, n_bits + 5);
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((bits >> n_bits) as u8);
        }
    }
    Some(bytes)
}
