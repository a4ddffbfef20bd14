//! Large products in bf16 through cuBLASLt.
//!
//! Must not know what is multiplied, nor why.

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::cublaslt::{result, sys};
use cudarc::driver::result::memset_d8_async;
use fornax_backend::BackendError;

use crate::device::Device;
use crate::event::Event;
use crate::library::Library;
use crate::memory::Memory;

/// An algorithm, as the library tells of it.
type Found = sys::cublasLtMatmulHeuristicResult_t;

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
    plans: HashMap<Shape, Plan>,
    /// What was fastest for a matrix with [`MANY`] tokens or more, by its shape with as many.
    of_many: HashMap<Shape, sys::cublasLtMatmulAlgo_t>,
}

// SAFETY: the library's plans may be used from any thread, one at a time.
unsafe impl Send for Dense {}

struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    weight: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
    /// Others that may be faster, until they were timed.
    others: Vec<sys::cublasLtMatmulAlgo_t>,
}

const WORKSPACE: usize = 32 << 20;
/// Algorithms of the library that are asked for.
const ALGORITHMS: usize = 8;
/// Products by which algorithms are timed at most: of different layers, so that no cache has their weights.
const TIMED: usize = 8;
/// Tokens of all of these together, but for a single one: with many tokens a product takes so long, and reads
/// so much beside its weights, that one is enough. A step of 16,384 tokens took 130 ms to time eight.
const TIMED_TOKENS: usize = 8192;
/// Tokens from which on what is fastest for some of them is taken to be so for any: each multiprocessor has
/// several tiles then, however many there are. Prompts would else be tuned for at each length anew, or not at all.
pub(crate) const MANY: usize = 4096;
/// What another algorithm has to take of the time of the library's first choice.
const FASTER: f32 = 0.98;

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
            of_many: HashMap::new(),
        })
    }

    /// Finds a way for a shape; never while a graph is captured.
    pub fn prepare(&mut self, product: &Product) -> Result<(), BackendError> {
        let key = key(product);
        if !self.plans.contains_key(&key) {
            let plan = self.plan(product);
            let mut plan = plan.map_err(|error| failed("planning a product", error))?;
            if let Some(&known) = self.of_many.get(&key_of_many(product))
                && product.n >= MANY
                && self.takes(&plan, &known)
            {
                plan.algorithm = known;
                plan.others.clear();
            }
            self.plans.insert(key, plan);
        }
        Ok(())
    }

    /// Finds the fastest way for each shape of some products of a step, by running them: what they read or
    /// overwrite must not be wanted any more, what they add to stays. Never while a graph is captured.
    pub fn tune(&mut self, products: &[Product]) -> Result<(), BackendError> {
        for product in products {
            let key = key(product);
            let Some(plan) = self.plans.get_mut(&key) else {
                continue;
            };
            let others = std::mem::take(&mut plan.others);
            let mut fastest = plan.algorithm;
            if others.is_empty() {
                continue;
            }
            let same = products.iter().filter(|other| self::key(other) == key);
            let enough = (TIMED_TOKENS / product.n).clamp(1, TIMED);
            let same: Vec<Product> = same.take(enough).copied().collect();
            if same.iter().any(|product| product.adds) {
                // Sums that others may still want gain nothing by zeros.
                self.clear(&same)?;
            }
            let mut least = FASTER * self.time(&same)?;
            for other in others {
                self.choose(&key, other);
                // What it lists for a shape it may still refuse for an address.
                if let Ok(time) = self.time(&same)
                    && time < least
                {
                    (fastest, least) = (other, time);
                }
            }
            self.choose(&key, fastest);
            if product.n >= MANY {
                self.of_many.insert(key_of_many(product), fastest);
            }
        }
        Ok(())
    }

    /// Whether an algorithm that was found for another number of tokens can stand in for a plan's own: it
    /// works for that one too, and adds in the same order.
    fn takes(&self, plan: &Plan, algorithm: &sys::cublasLtMatmulAlgo_t) -> bool {
        let mut found = MaybeUninit::<Found>::zeroed();
        // SAFETY: all descriptors live as long as the plan, and the result is ours.
        let status = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                self.handle.handle,
                plan.operation,
                plan.weight,
                plan.x,
                plan.out,
                plan.out,
                algorithm,
                found.as_mut_ptr().cast(),
            )
        };
        // SAFETY: zeros are a value of each of its fields.
        let found = unsafe { found.assume_init() };
        let same = matches!((pieces(algorithm), pieces(&plan.algorithm)), (Ok(its), Ok(own)) if its == own);
        status.result().is_ok() && found.workspaceSize <= WORKSPACE && same
    }

    /// Zeros the inputs of some products.
    fn clear(&self, products: &[Product]) -> Result<(), BackendError> {
        for Product { x, n, cols, .. } in products {
            // SAFETY: rows of an input are `cols` brain floats, of which there are `n`.
            unsafe { memset_d8_async(*x, 0, 2 * n * cols, self.device.stream()) }
                .map_err(|error| self.device.error("clearing an input", error))?;
        }
        Ok(())
    }

    fn choose(&mut self, key: &Shape, algorithm: sys::cublasLtMatmulAlgo_t) {
        if let Some(plan) = self.plans.get_mut(key) {
            plan.algorithm = algorithm;
        }
    }

    /// Milliseconds that some products take, one after another, which ran before.
    fn time(&self, products: &[Product]) -> Result<f32, BackendError> {
        let run = || products.iter().try_for_each(|product| self.start(product));
        let (begin, end) = (Event::timed(&self.device)?, Event::timed(&self.device)?);
        run()?;
        begin.record()?;
        run()?;
        end.record()?;
        end.since(&begin)
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
            let mut found = [const { MaybeUninit::<Found>::zeroed() }; ALGORITHMS];
            let mut count = 0;
            let asked = sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle.handle,
                operation,
                weight,
                x,
                out,
                out,
                preference,
                ALGORITHMS as i32,
                found.as_mut_ptr().cast(),
                &mut count,
            );
            result::destroy_matmul_pref(preference)?;
            asked.result()?;
            let found = found.iter().take(count as usize);
            found.map(|found| found.assume_init()).collect::<Vec<_>>()
        };
        let works = |found: &Found| found.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS;
        let mut found = found.into_iter().filter(works).map(|found| found.algo);
        let algorithm = found.next().ok_or(result::CublasError(
            sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
        ))?;
        let pieces = pieces(&algorithm)?;
        let others = found.filter(|other| self::pieces(other).is_ok_and(|other| other == pieces));
        Ok(Plan {
            operation,
            weight,
            x,
            out,
            algorithm,
            others: others.collect(),
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

/// In how many pieces an algorithm adds up a product, and how these come together. Those that agree in
/// it add in the same order, so that which of them was faster cannot be seen in a result.
fn pieces(algorithm: &sys::cublasLtMatmulAlgo_t) -> Result<[u32; 2], result::CublasError> {
    use sys::cublasLtMatmulAlgoConfigAttributes_t::{
        CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
    };
    let mut pieces = [0_u32; 2];
    let attributes = [
        CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
        CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
    ];
    for (piece, attribute) in pieces.iter_mut().zip(attributes) {
        // SAFETY: both attributes are words of 32 bits.
        unsafe {
            sys::cublasLtMatmulAlgoConfigGetAttribute(
                algorithm,
                attribute,
                std::ptr::from_mut(piece).cast(),
                size_of::<u32>(),
                std::ptr::null_mut(),
            )
        }
        .result()?;
    }
    Ok(pieces)
}

/// What a plan is for: rows of the input, the weight's shape, the result's stride and precision.
type Shape = (usize, usize, usize, usize, bool);

fn key(product: &Product) -> Shape {
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

/// What shapes of many tokens have in common.
fn key_of_many(product: &Product) -> Shape {
    key(&Product {
        n: MANY,
        ..*product
    })
}

fn failed(what: &str, error: result::CublasError) -> BackendError {
    BackendError(format!("cuda: cuBLASLt: {what}: {:?}", error.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` brain floats between -1 and 1.
    fn brains(count: usize, seed: u32) -> Vec<u16> {
        let number = |index: u32| {
            let bits = (index ^ seed).wrapping_mul(2_654_435_761);
            let number = (bits >> 8) as f32 / (1 << 23) as f32 - 1.0;
            (number.to_bits() >> 16) as u16
        };
        (0..count as u32).map(number).collect()
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
    fn algorithms_that_are_timed_give_the_same_bits() {
        let device = Device::open(0).unwrap();
        device.bind();
        let mut dense = Dense::new(&device).unwrap();
        let (mut compared, mut reused) = (0, 0);
        for (rows, cols) in [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)] {
            for n in [16, 48, 128, 256, 512, 1000, 8192] {
                let memory = |bytes| Memory::new(&device, bytes, "a test").unwrap();
                let (weight, x) = (memory(2 * rows * cols), memory(2 * n * cols));
                weight.write(0, &brains(rows * cols, 1)).unwrap();
                x.write(0, &brains(n * cols, 2)).unwrap();
                let out = memory(4 * n * rows);
                let product = Product {
                    out: out.pointer(),
                    stride: rows,
                    narrow: false,
                    adds: false,
                    weight: weight.pointer(),
                    x: x.pointer(),
                    n,
                    rows,
                    cols,
                };
                let bits = |dense: &Dense| {
                    dense.start(&product).unwrap();
                    let mut bits = vec![0_u32; n * rows];
                    out.read(&mut bits).unwrap();
                    bits
                };
                dense.prepare(&product).unwrap();
                let first = bits(&dense);
                let others = dense.plans[&key(&product)].others.clone();
                compared += others.len();
                for other in others {
                    dense.choose(&key(&product), other);
                    assert!(bits(&dense) == first, "{n} rows by [{rows}, {cols}]");
                }
                dense.tune(&[product]).unwrap();
                assert!(dense.plans[&key(&product)].others.is_empty());
                assert!(bits(&dense) == first, "{n} rows by [{rows}, {cols}]");
                // A number of tokens beside one that was tuned for: what was found is taken, or its own stays.
                if n >= MANY {
                    let mut fresh = Dense::new(&device).unwrap();
                    let fewer = Product {
                        n: n - 1000,
                        ..product
                    };
                    let bits = |dense: &mut Dense| {
                        dense.prepare(&fewer).unwrap();
                        dense.start(&fewer).unwrap();
                        let mut bits = vec![0_u32; fewer.n * rows];
                        out.read(&mut bits).unwrap();
                        bits
                    };
                    assert!(bits(&mut dense) == bits(&mut fresh), "[{rows}, {cols}]");
                    reused += usize::from(dense.plans[&key(&fewer)].others.is_empty());
                }
            }
        }
        assert!(compared > 28, "{compared} algorithms beside the first ones");
        assert!(
            reused > 0,
            "what was found for many tokens was never taken for others"
        );
    }
}
