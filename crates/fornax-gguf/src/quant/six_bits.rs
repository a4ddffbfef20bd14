//! Eight scales and eight minima of 6 bits in 12 bytes, as Q4_K and Q5_K keep them. Must not know
//! what they scale.
//!
//! Layout: the first four scales lie in the low 6 bits of bytes 0 to 3, the first four minima in
//! those of bytes 4 to 7. Of the others, bytes 8 to 11 hold the low 4 bits (scales in the low,
//! minima in the high half), and their high 2 bits fill the free ones of bytes 0 to 7.

/// Bytes that they take.
pub(super) const BYTES: usize = 12;
/// How many of each.
pub(super) const GROUPS: usize = 8;

/// The scale and the minimum of group `group`.
pub(super) fn unpack(bytes: &[u8], group: usize) -> (u8, u8) {
    match group {
        0..4 => (bytes[group] & 63, bytes[group + 4] & 63),
        _ => (
            bytes[group + 4] & 15 | bytes[group - 4] >> 6 << 4,
            bytes[group + 4] >> 4 | bytes[group] >> 6 << 4,
        ),
    }
}

/// The inverse of [`unpack`], for all groups.
pub(super) fn pack(scales: &[u8; GROUPS], minima: &[u8; GROUPS], bytes: &mut [u8]) {
    for i in 0..4 {
        bytes[i] = scales[i] | scales[i + 4] >> 4 << 6;
        bytes[i + 4] = minima[i] | minima[i + 4] >> 4 << 6;
        bytes[i + 8] = scales[i + 4] & 15 | minima[i + 4] << 4;
    }
}
