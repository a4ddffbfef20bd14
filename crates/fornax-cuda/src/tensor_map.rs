//! Tensors as the copy engine of Hopper is told of them.
//!
//! Must not know what they hold, nor who reads them.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use cudarc::driver::sys;
use fornax_backend::BackendError;

use crate::device::Device;

/// Bytes of a word: 256 of them are the longest row of a box.
const WORD: usize = 8;

/// `CUtensorMap`: what a kernel passes to the copy engine, in words of its own.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct TensorMap([u64; 16]);

impl TensorMap {
    /// Of brain floats at `at`: their numbers by dimension, the innermost first, the bytes from one to
    /// the next in all dimensions but that, and a box of them that is copied at once. Rows of a box are
    /// 128 bytes, swizzled as tensor cores want them; what lies outside of the tensor is zero.
    ///
    /// # Errors
    /// The driver does not take such a tensor.
    pub fn of_brains<const DIMENSIONS: usize, const OUTER: usize>(
        device: &Device,
        at: u64,
        numbers: [usize; DIMENSIONS],
        strides: [usize; OUTER],
        of_box: [usize; DIMENSIONS],
    ) -> Result<Self, BackendError> {
        let kind = sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
        let swizzle = sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B;
        Self::encode(device, kind, swizzle, at, numbers, strides, of_box)
    }

    /// Of rows of whole words at `at`, each of `pitch` bytes, and a box of `bytes` of each of `box_rows`,
    /// which lie one behind the other as they are copied. A word is eight bytes; what lies outside of the
    /// tensor is zero.
    ///
    /// # Errors
    /// The driver does not take such a tensor.
    pub fn of_words(
        device: &Device,
        at: u64,
        [pitch, rows]: [usize; 2],
        [bytes, box_rows]: [usize; 2],
    ) -> Result<Self, BackendError> {
        let kind = sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_INT64;
        let swizzle = sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE;
        let (numbers, of_box) = ([pitch / WORD, rows], [bytes / WORD, box_rows]);
        Self::encode(device, kind, swizzle, at, numbers, [pitch], of_box)
    }

    fn encode<const DIMENSIONS: usize, const OUTER: usize>(
        device: &Device,
        kind: sys::CUtensorMapDataType,
        swizzle: sys::CUtensorMapSwizzle,
        at: u64,
        numbers: [usize; DIMENSIONS],
        strides: [usize; OUTER],
        of_box: [usize; DIMENSIONS],
    ) -> Result<Self, BackendError> {
        const {
            assert!(
                OUTER + 1 == DIMENSIONS,
                "a stride for all dimensions but one"
            )
        };
        let (numbers, strides) = (numbers.map(|n| n as u64), strides.map(|n| n as u64));
        let (of_box, each) = (of_box.map(|n| n as u32), [1_u32; DIMENSIONS]);
        let mut map = MaybeUninit::<sys::CUtensorMap>::zeroed();
        // SAFETY: every pointer is to as many numbers as there are dimensions, or one less of strides.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                map.as_mut_ptr(),
                kind,
                DIMENSIONS as u32,
                at as *mut c_void,
                numbers.as_ptr(),
                strides.as_ptr(),
                of_box.as_ptr(),
                each.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
            .result()
        }
        .map_err(|error| device.error(&format!("describing a tensor of {numbers:?}"), error))?;
        // SAFETY: the driver wrote all of its words.
        Ok(Self(unsafe { map.assume_init() }.opaque))
    }
}
