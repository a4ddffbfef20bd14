//! Large products in bf16 through cuBLASLt.
//!
//! Must not know what is multiplied, nor why.

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::size_of;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::cublaslt::{result, sys};
use fornax_backend::BackendError;

use crate::device::Device;
use crate::library::Library;
use crate::memory::Memory;

/// `out [n, stride] = x [n, cols] · weight [rows, cols]ᵀ`, both in bf16, sums in single precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    pub out: u64,
    /// Numbers from one row of the result to the next.
    pub stride: usize,
    /// Whether the result is bf16 too.
    pub narrow: bool,
    /// Whether the product is added to what is there.
    pub adds: bool,
    pub weight: u64,
    pub x: u64,
    pub n: usize,
    pub rows: usize,
    /// A multiple of 32.
    pub cols: usize,
}

/// The library on a device, for all who multiply there. With a handle each, which others made and
/// destroyed meanwhile, one in a thousand products or so failed where they were captured: 7 of 29 runs
/// of the conformance suite in eight threads, and none of 13 with a common one.
struct Handle {
    device: Arc<Device>,
    handle: sys::cublasLtHandle_t,
}

// SAFETY: the library allows products under one handle from several threads at once.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// Those that somebody uses. Locked while one is made or destroyed.
static HANDLES: Mutex<Vec<Weak<Handle>>> = Mutex::new(Vec::new());

impl Handle {
    fn of(device: &Arc<Device>) -> Result<Arc<Self>, BackendError> {
        // Given back behind the lock, which the last one who has a handle takes.
        let mut used = Vec::new();
        let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
        handles.retain(|handle| handle.strong_count() > 0);
        used.extend(handles.iter().filter_map(Weak::upgrade));
        let same = |handle: &&Arc<Self>| handle.device.context() == device.context();
        if let Some(handle) = used.iter().find(same) {
            return Ok(Arc::clone(handle));
        }
        let handle = result::create_handle().map_err(|error| failed("starting it", error))?;
        let device = Arc::clone(device);
        let handle = Arc::new(Self { device, handle });
        handles.push(Arc::downgrade(&handle));
        Ok(handle)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _alone = HANDLES.lock();
        self.device.bind();
        // SAFETY: nobody has it any more; it is destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// The library, its workspace, and what it found out about shapes.
pub(crate) struct Dense {
    device: Arc<Device>,
    handle: Arc<Handle>,
    workspace: Memory,
    plans: HashMap<(usize, usize, usize, usize, bool), Plan>,
}

// SAFETY: the library's plans may be used from any thread, one at a time.
unsafe impl Send for Dense {}

struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    weight: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

const WORKSPACE: usize = 32 << 20;

impl Dense {
    /// Starts the library.
    ///
    /// # Errors
    /// It is missing, or there is no room for its workspace.
    pub fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        Library::Products.load()?;
        let workspace = Memory::new(device, WORKSPACE, "the workspace of products")?;
        Ok(Self {
            device: Arc::clone(device),
            handle: Handle::of(device)?,
            workspace,
            plans: HashMap::new(),
        })
    }

    /// Finds the fastest way for a shape; never while a graph is captured.
    pub fn prepare(&mut self, product: &Product) -> Result<(), BackendError> {
        let key = key(product);
        if !self.plans.contains_key(&key) {
            let plan = self.plan(product);
            let plan = plan.map_err(|error| failed("planning a product", error))?;
            self.plans.insert(key, plan);
        }
        Ok(())
    }

    /// Starts a product that was prepared.
    pub fn start(&self, product: &Product) -> Result<(), BackendError> {
        let plan = &self.plans[&key(product)];
        let (one, before) = (1.0_f32, if product.adds { 1.0_f32 } else { 0.0 });
        let pointer = |number: &f32| std::ptr::from_ref(number).cast::<c_void>();
        // SAFETY: the layouts are those of the pointers' memory, which is the caller's promise.
        unsafe {
            result::matmul(
                self.handle.handle,
                plan.operation,
                pointer(&one),
                pointer(&before),
                product.weight as *const c_void,
                plan.weight,
                product.x as *const c_void,
                plan.x,
                product.out as *const c_void,
                plan.out,
                product.out as *mut c_void,
                plan.out,
                &plan.algorithm,
                self.workspace.pointer() as *mut c_void,
                WORKSPACE,
                self.device.stream().cast(),
            )
        }
        .map_err(|error| {
            let Product { n, rows, cols, .. } = product;
            failed(&format!("multiplying {n} rows by [{rows}, {cols}]"), error)
        })
    }

    /// The library counts columns first: its result is ours turned, so that the weight stands left.
    fn plan(&self, product: &Product) -> Result<Plan, result::CublasError> {
        let Product {
            stride,
            narrow,
            n,
            rows,
            cols,
            ..
        } = *product;
        let (bf16, f32) = (
            sys::cudaDataType_t::CUDA_R_16BF,
            sys::cudaDataType_t::CUDA_R_32F,
        );
        let operation =
            result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, f32)?;
        // `CUBLAS_OP_T`, which the bindings do not name.
        let turned = 1_i32;
        let layout = |kind, rows: usize, cols: usize, stride: usize| {
            result::create_matrix_layout(kind, rows as u64, cols as u64, stride as i64)
        };
        let weight = layout(bf16, cols, rows, cols)?;
        let x = layout(bf16, cols, n, cols)?;
        let out = layout(if narrow { bf16 } else { f32 }, rows, n, stride)?;
        let preference = result::create_matmul_pref()?;
        // SAFETY: every attribute is given a value of its own type and size, and all descriptors
        // were just made.
        let found = unsafe {
            result::set_matmul_desc_attribute(
                operation,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                std::ptr::from_ref(&turned).cast(),
                size_of::<i32>(),
            )?;
            result::set_matmul_pref_attribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                std::ptr::from_ref(&WORKSPACE).cast(),
                size_of::<usize>(),
            )?;
            let found = result::get_matmul_algo_heuristic(
                self.handle.handle,
                operation,
                weight,
                x,
                out,
                out,
                preference,
            );
            result::destroy_matmul_pref(preference)?;
            found?
        };
        Ok(Plan {
            operation,
            weight,
            x,
            out,
            algorithm: found.algo,
        })
    }
}

impl Drop for Dense {
    fn drop(&mut self) {
        let _ = self.device.synchronize();
        // SAFETY: nothing runs any more; each is destroyed once.
        unsafe {
            for plan in self.plans.values() {
                for layout in [plan.weight, plan.x, plan.out] {
                    let _ = result::destroy_matrix_layout(layout);
                }
                let _ = result::destroy_matmul_desc(plan.operation);
            }
        }
    }
}

fn key(product: &Product) -> (usize, usize, usize, usize, bool) {
    let Product {
        n,
        rows,
        cols,
        stride,
        narrow,
        ..
    } = *product;
    (n, rows, cols, stride, narrow)
}

fn failed(what: &str, error: result::CublasError) -> BackendError {
    BackendError(format!("cuda: cuBLASLt: {what}: {:?}", error.0))
}
