//! How the rows of a matrix lie in device memory, by format.
//!
//! Owns the counterpart of `kernels/formats.cu` on the host. Must not know devices.

use fornax_gguf::DType;

/// How kernels number the formats that they decode: as the file does.
const F32: u32 = 0;
const F16: u32 = 1;
const Q4_0: u32 = 2;
const Q8_0: u32 = 8;
const BF16: u32 = 30;
const Q6_K: u32 = 14;
const IQ4_NL: u32 = 20;
const MXFP4: u32 = 39;
/// Formats that lie on the device as in the file: Q4_1, Q5_0, Q5_1, Q2_K to Q5_K, IQ2_XXS and IQ4_XS.
const AS_IN_FILE: [u32; 9] = [3, 6, 7, 10, 11, 12, 13, 16, 23];

/// Whether a kernel decodes the format.
pub(crate) fn is_known(format: DType) -> bool {
    let number = format.ggml_number();
    [F32, F16, BF16].contains(&number) || AS_IN_FILE.contains(&number) || !fields(format).is_empty()
}

/// The fields of a block, in the order in which they lie on the device, all blocks' first field first: where in
/// a block of the file each begins, and its bytes. None of a format that lies as in the file.
fn fields(format: DType) -> &'static [(usize, usize)] {
    match format.ggml_number() {
        Q8_0 => &[(2, 32), (0, 2)],
        Q4_0 | IQ4_NL => &[(2, 16), (0, 2)],
        MXFP4 => &[(1, 16), (0, 1)],
        Q6_K => &[(0, 128), (128, 64), (192, 16), (208, 2)],
        _ => &[],
    }
}

/// Bytes of a row of `cols` numbers on the device: whole units of 16.
pub(crate) fn row_bytes(format: DType, cols: usize) -> usize {
    let padded = padded(cols);
    let bytes = match format.ggml_number() {
        F32 => 4 * padded,
        F16 | BF16 => 2 * padded,
        Q8_0 => padded + padded / 16,
        Q4_0 => padded / 2 + padded / 16,
        _ => format.row_bytes(cols),
    };
    bytes.next_multiple_of(16)
}

/// Numbers of a row with the zeros behind it.
pub(crate) fn padded(cols: usize) -> usize {
    cols.next_multiple_of(32)
}

/// Lays a row of the file out for the device. `to` is all zeros.
pub(crate) fn pack_row(format: DType, cols: usize, from: &[u8], to: &mut [u8]) {
    let fields = fields(format);
    if fields.is_empty() {
        to[..from.len()].copy_from_slice(from);
        return;
    }
    let blocks = from.chunks_exact(format.block_bytes());
    let all = padded(cols) / format.block_len();
    let mut rest = to;
    for &(begin, bytes) in fields {
        let (field, behind) = rest.split_at_mut(all * bytes);
        for (block, to) in blocks.clone().zip(field.chunks_exact_mut(bytes)) {
            to.copy_from_slice(&block[begin..begin + bytes]);
        }
        rest = behind;
    }
}

/// What a stage of the ring in shared memory takes for such a row: at least the row, and such that
/// the rows that a warp reads at once share no bank.
pub(crate) fn stage_pitch(format: DType, row_bytes: usize) -> usize {
    let apart = match format.ggml_number() {
        Q8_0 => 32,
        F32 | F16 | BF16 => 64,
        _ => 16,
    };
    (row_bytes - apart.min(row_bytes)).next_multiple_of(128) + apart
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quants_come_first_and_scales_behind_them() {
        let mut file = Vec::new();
        let values: Vec<f32> = (0..64).map(|i| i as f32 - 30.0).collect();
        DType::Q8_0.encode(&values, &mut file);
        let mut row = vec![0; row_bytes(DType::Q8_0, 64)];
        pack_row(DType::Q8_0, 64, &file, &mut row);
        assert_eq!(row[..32], file[2..34]);
        assert_eq!(row[32..64], file[36..68]);
        assert_eq!(row[64..68], [file[0], file[1], file[34], file[35]]);
        assert_eq!(row.len(), 80);
    }

    #[test]
    fn every_byte_of_a_block_has_one_place() {
        for &format in DType::all() {
            let fields = fields(format);
            if fields.is_empty() {
                continue;
            }
            let bytes: usize = fields.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(bytes, format.block_bytes(), "{format}");
            // Two blocks, every byte a number of its own but for its last bit.
            let cols = 2 * format.block_len();
            let file: Vec<u8> = (0..2 * bytes).map(|at| (at / 2) as u8).collect();
            let mut row = vec![0; row_bytes(format, cols)];
            pack_row(format, cols, &file, &mut row);
            let mut at = 0;
            for &(begin, len) in fields {
                for block in 0..2 {
                    let from = block * bytes + begin;
                    assert_eq!(row[at..at + len], file[from..from + len], "{format}");
                    at += len;
                }
            }
        }
    }

    #[test]
    fn kernels_decode_every_format_of_the_reader() {
        for &format in DType::all() {
            assert!(is_known(format), "{format}: add it to kernels/formats.cu");
        }
    }

    #[test]
    fn rows_at_once_share_no_bank() {
        for &format in DType::all() {
            for cols in [32_usize, 64, 96, 576, 1024, 1536, 3072] {
                if !cols.is_multiple_of(format.block_len()) {
                    continue;
                }
                let bytes = row_bytes(format, cols);
                let pitch = stage_pitch(format, bytes);
                assert!(
                    pitch >= bytes && pitch < bytes + 192,
                    "{format} {cols}: {pitch}"
                );
                assert!(bytes.is_multiple_of(16) && pitch.is_multiple_of(16));
            }
        }
    }
}
