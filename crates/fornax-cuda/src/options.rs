//! What a caller may choose of the backend, and what it is told meanwhile.
//!
//! Must not know how any of it is done.

/// How the device is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaOptions {
    /// Which device, as `nvidia-smi` counts them.
    pub device: usize,
    /// How products of many rows are multiplied.
    pub large_products: LargeProducts,
    /// Whether each launch is waited for, so that an error names its kernel.
    pub check_launches: bool,
    /// Whether all that a single token goes through is launches of its own, and not one for as much of
    /// it as can be: slower, and what that one is measured against.
    pub apart: bool,
    /// Told what takes long.
    pub progress: Option<fn(Progress<'_>)>,
}

/// How products of many rows are multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LargeProducts {
    /// In bf16, on copies of quantised matrices that are kept beside them.
    #[default]
    Copied,
    /// In bf16, decoded anew for each product: slower, and no memory for copies.
    Decoded,
    /// In single precision throughout, in plain loops.
    Single,
}

/// What takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// Something that deserves a line: kernels being compiled, what memory is taken for.
    Line(&'a str),
    /// Weights that are on the device.
    Weights {
        /// Bytes of them, as the file has them.
        done: u64,
        /// Bytes that the file has.
        all: u64,
    },
}
