//! The alphabet of byte-level BPE: each of the 256 bytes written as one visible
//! character, so that vocabularies and merges can be kept as text. Knows no vocabulary.
//!
//! Source: `bytes_to_unicode` of GPT-2 (Radford et al. 2019): the printable bytes of
//! Latin-1 stand for themselves, the others take the characters from U+0100 on, in order.

use std::sync::LazyLock;

/// The character that stands for `byte`.
pub(crate) fn letter_of(byte: u8) -> char {
    LETTERS[usize::from(byte)]
}

/// The bytes that `text` spells, or `None` where a character is not of the alphabet.
pub(crate) fn spelled_bytes(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of).collect()
}

fn byte_of(letter: char) -> Option<u8> {
    // The last of the 68 shifted letters is U+0143.
    BYTES.get(letter as usize).copied().flatten()
}

fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// [256] letter of each byte.
static LETTERS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut shifted = '\u{100}'..;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if stands_for_itself(byte) {
            char::from(byte)
        } else {
            shifted
                .next()
                .expect("invariant: the range of letters has no end")
        }
    })
});

/// [0x144] byte of each letter, by code point.
static BYTES: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let mut bytes = [None; 0x144];
    for byte in 0..=u8::MAX {
        bytes[letter_of(byte) as usize] = Some(byte);
    }
    bytes
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_letter() {
        for byte in 0..=u8::MAX {
            let letter = letter_of(byte).to_string();
            assert_eq!(spelled_bytes(&letter), Some(vec![byte]));
        }
    }

    #[test]
    fn known_letters() {
        assert_eq!(letter_of(b' '), 'Ġ');
        assert_eq!(letter_of(b'\n'), 'Ċ');
        assert_eq!(letter_of(0xAD), 'Ń');
        assert_eq!(letter_of(b'a'), 'a');
        assert_eq!(spelled_bytes("ĠÃ¤"), Some(" ä".as_bytes().to_vec()));
        assert_eq!(spelled_bytes(" "), None);
        assert_eq!(spelled_bytes("ń"), None);
    }
}
