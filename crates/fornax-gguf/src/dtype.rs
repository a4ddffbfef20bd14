//! The element types of tensors: one table, one row per type.
//!
//! Owns numbers, names and sizes of types; the bits of a block are in `quant/`. Must not know
//! tensors or files.

use crate::quant::{self, BlockFormat};

/// Declares [`DType`] and its table from one row per type.
macro_rules! table {
    ($($(#[$doc:meta])* $name:ident = ggml $number:literal in $format:ty;)+) => {
        /// How the values of a tensor are stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(non_camel_case_types, reason = "the names of the formats")]
        pub enum DType { $($(#[$doc])* $name,)+ }

        const ALL: &[DType] = &[$(DType::$name,)+];

        impl DType {
            const fn row(self) -> Row {
                match self { $(DType::$name => Row::of::<$format>(stringify!($name), $number),)+ }
            }
        }
    };
}

table! {
    /// Single precision.
    F32 = ggml 0 in quant::F32;
    /// Half precision.
    F16 = ggml 1 in quant::F16;
    /// Brain float: the upper half of single precision.
    BF16 = ggml 30 in quant::BF16;
    /// 8 bits and a scale per 32 values.
    Q8_0 = ggml 8 in quant::Q8_0;
    /// 4 bits and a scale per 32 values.
    Q4_0 = ggml 2 in quant::Q4_0;
    /// 4 bits, a scale and a minimum per 32 values.
    Q4_1 = ggml 3 in quant::Q4_1;
    /// 5 bits and a scale per 32 values.
    Q5_0 = ggml 6 in quant::Q5_0;
    /// 5 bits, a scale and a minimum per 32 values.
    Q5_1 = ggml 7 in quant::Q5_1;
    /// 2 bits, a scale and a minimum per 16 values, in blocks of 256.
    Q2_K = ggml 10 in quant::Q2_K;
    /// 3 bits and a scale per 16 values, in blocks of 256.
    Q3_K = ggml 11 in quant::Q3_K;
    /// 4 bits, a scale and a minimum per 32 values, in blocks of 256.
    Q4_K = ggml 12 in quant::Q4_K;
    /// 5 bits, a scale and a minimum per 32 values, in blocks of 256.
    Q5_K = ggml 13 in quant::Q5_K;
    /// 6 bits and a scale per 16 values, in blocks of 256.
    Q6_K = ggml 14 in quant::Q6_K;
    /// Eight values to a pattern and a scale per 32, in blocks of 256.
    IQ2_XXS = ggml 16 in quant::IQ2_XXS;
    /// 4 bits for uneven levels and a scale per 32 values.
    IQ4_NL = ggml 20 in quant::IQ4_NL;
    /// 4 bits for uneven levels and a scale per 32 values, in blocks of 256.
    IQ4_XS = ggml 23 in quant::IQ4_XS;
    /// Floats of 4 bits under a power of two per 32 values.
    MXFP4 = ggml 39 in quant::MXFP4;
}

/// What is known of a type.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    ggml_number: u32,
    block_len: usize,
    block_bytes: usize,
    decode: fn(&[u8], &mut [f32]),
    encode: fn(&[f32], &mut [u8]),
}

impl Row {
    const fn of<F: BlockFormat>(name: &'static str, ggml_number: u32) -> Self {
        let (block_len, block_bytes) = (F::ELEMENTS, F::BYTES);
        Self {
            name,
            ggml_number,
            block_len,
            block_bytes,
            decode: decode_blocks::<F>,
            encode: encode_blocks::<F>,
        }
    }
}

fn decode_blocks<F: BlockFormat>(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes
        .chunks_exact(F::BYTES)
        .zip(out.chunks_exact_mut(F::ELEMENTS))
    {
        F::decode(block, values);
    }
}

fn encode_blocks<F: BlockFormat>(values: &[f32], bytes: &mut [u8]) {
    for (values, block) in values
        .chunks_exact(F::ELEMENTS)
        .zip(bytes.chunks_exact_mut(F::BYTES))
    {
        F::encode(values, block);
    }
}

impl DType {
    /// Every type that can be read and written.
    pub fn all() -> &'static [DType] {
        ALL
    }

    /// The type's usual name, such as `Q8_0`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The type of that name, in either case.
    pub fn from_name(name: &str) -> Option<DType> {
        ALL.iter()
            .copied()
            .find(|dtype| dtype.name().eq_ignore_ascii_case(name))
    }

    /// The names of all types, for help and errors: `F32, F16, …`.
    pub fn list() -> String {
        ALL.iter()
            .map(|dtype| dtype.name())
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The number by which GGUF files name the type.
    pub fn ggml_number(self) -> u32 {
        self.row().ggml_number
    }

    /// The type that GGUF files name by that number.
    pub fn from_ggml_number(number: u32) -> Option<DType> {
        ALL.iter()
            .copied()
            .find(|dtype| dtype.ggml_number() == number)
    }

    /// Values per block.
    pub fn block_len(self) -> usize {
        self.row().block_len
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Bytes of a row of `cols` values.
    ///
    /// # Panics
    /// Where `cols` is not a multiple of [`Self::block_len`].
    pub fn row_bytes(self, cols: usize) -> usize {
        let Row {
            name,
            block_len,
            block_bytes,
            ..
        } = self.row();
        assert!(
            cols.is_multiple_of(block_len),
            "a row of {cols} values is not whole {name} blocks of {block_len}"
        );
        cols / block_len * block_bytes
    }

    /// Unpacks whole blocks.
    ///
    /// # Panics
    /// Where `bytes` are not exactly the blocks of `out.len()` values.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(
            bytes.len(),
            self.row_bytes(out.len()),
            "bytes of {} {} values",
            out.len(),
            self.name()
        );
        (self.row().decode)(bytes, out);
    }

    /// Packs whole blocks and appends them to `out`.
    ///
    /// # Panics
    /// Where `values` is not whole blocks.
    pub fn encode(self, values: &[f32], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.row_bytes(values.len()), 0);
        (self.row().encode)(values, &mut out[start..]);
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The name that ggml gives to type `number`, also to types that Fornax does not read; `None` where
/// it gives none.
pub fn ggml_type_name(number: u32) -> Option<&'static str> {
    let index = usize::try_from(number).ok()?;
    GGML_TYPE_NAMES
        .get(index)
        .copied()
        .filter(|name| !name.is_empty())
}

/// Names of ggml's types by number; types that were withdrawn keep theirs, so that old files can be
/// told why.
#[rustfmt::skip]
const GGML_TYPE_NAMES: [&str; 42] = [
    "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
    "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M",
    "BF16", "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",
    "NVFP4", "Q1_0",
];
