//! The kernels: which source and which macros a function comes from, loaded on first use.
//!
//! Must not know operations.

pub(crate) mod all;
pub(crate) mod attend_stream;
mod files;
pub(crate) mod formats;

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::{result, sys};
use fornax_backend::BackendError;
use fornax_gguf::DType;

use crate::compiler::Compiler;
use crate::device::Device;
use crate::options::Progress;

use attend_stream::Stream;
use files::*;
use formats::Formats;

/// Functions that are compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Module {
    /// Words from and to the host.
    Ferry,
    /// Norms, rotation, activations, sums.
    Rows,
    /// Norm, rotation and storing of Q, K and V, for heads of so many elements and a cache's type.
    Turn { head: usize, kv: usize },
    /// The sampling chain.
    Sample,
    /// Attention for any sizes.
    AttendAny,
    /// Attention of single tokens for heads of so many elements, query heads a block and a cache's
    /// type; each warp takes `together` loads of positions at once. `plain` is here and below
    /// [without what few models have](crate::operation::AttendTable::is_plain).
    AttendRows {
        head: usize,
        group: usize,
        kv: usize,
        together: usize,
        plain: bool,
    },
    /// Attention of many rows of single tokens, likewise.
    AttendStream(Stream),
    /// Attention of many new tokens, by so many groups of warps a block.
    AttendTiles {
        head: usize,
        kv: usize,
        groups: usize,
        plain: bool,
    },
    /// Products with weights of a format in plain loops, and what else is made of these.
    Product(DType),
    /// Products of a single token, those with its experts among them, or of a few.
    Gemv { format: DType, one: bool },
    /// The largest of many products of a single token.
    Largest(DType),
    /// Products of more tokens.
    Gemm(DType),
    /// Products of so many rows at most, of which a token has one or two parts, with matrices in bf16 or as tiles.
    Skinny {
        rows: usize,
        parts: usize,
        tiled: bool,
    },
    /// Gates and ups of many tokens with matrices in bf16.
    Gates,
    /// Q, K and V of many tokens, likewise, for heads of so many elements, a cache's type and a way to turn.
    Turned {
        head: usize,
        kv: usize,
        style: usize,
    },
    /// Products of so many rows at most with the head, in bf16 or as tiles.
    Vocabulary { rows: usize, brains: bool },
    /// Products and attention of one token, for weights of some formats and attention as above.
    Chain {
        formats: Formats,
        head: usize,
        group: usize,
        kv: usize,
    },
    /// Whole layers of one token of so many rows, likewise, for all query heads of a KV head; each warp has
    /// room for so many slices of K or V.
    Layers {
        format: DType,
        head: usize,
        group: usize,
        kv: usize,
        halves: usize,
        rows: usize,
        plain: bool,
    },
}

/// A folder with other texts of these files.
const FOLDER: &str = "FORNAX_CUDA_KERNELS";

impl Module {
    fn name(self) -> String {
        match self {
            Module::Ferry => "ferry".into(),
            Module::Rows => "rows".into(),
            Module::Turn { head, kv } => format!("turn-{head}-{kv}"),
            Module::Sample => "sample".into(),
            Module::AttendAny => "attention".into(),
            Module::AttendRows { .. } => numbered("attention-rows", &self.defines()),
            Module::AttendStream(stream) => numbered("attention-stream", &stream.sizes()),
            Module::AttendTiles { .. } => numbered("attention-tiles", &self.defines()),
            Module::Product(format) => format!("product-{format}"),
            Module::Gemv { format, one } => {
                let tokens = if one { "one" } else { "few" };
                format!("gemv-{format}-{tokens}")
            }
            Module::Largest(format) => format!("largest-{format}"),
            Module::Gemm(format) => format!("gemm-{format}"),
            Module::Skinny { rows, parts, tiled } => {
                let weights = if tiled { "-tiles" } else { "" };
                format!("skinny-{rows}-{parts}{weights}")
            }
            Module::Gates => "gates".to_owned(),
            Module::Turned { head, kv, style } => format!("turned-{head}-{kv}-{style}"),
            Module::Vocabulary { rows, brains } => {
                let weights = if brains { "bf16" } else { "tiles" };
                format!("vocabulary-{rows}-{weights}")
            }
            Module::Chain {
                formats,
                head,
                group,
                kv,
            } => format!("chain-{formats}-{head}x{group}-{kv}"),
            Module::Layers { format, .. } => {
                // Its number is the format's, which is named.
                numbered(&format!("layers-{format}"), &self.defines()[1..])
            }
        }
    }

    fn files(self) -> &'static [File] {
        match self {
            Module::Ferry => &[PRELUDE, FERRY],
            Module::Rows => &[PRELUDE, TURN, ROUTE, ROWS],
            Module::Turn { .. } => &[PRELUDE, TURN],
            Module::Sample => &[PRELUDE, DRAWS, TILE, TILE_LOGITS, SEARCH, SAMPLE],
            Module::AttendAny => &[PRELUDE, ATTENTION],
            Module::AttendRows { .. } => &[PRELUDE, ATTENTION, HEADS, ATTEND_ROWS],
            Module::AttendStream(_) => &[
                PRELUDE,
                ATTENTION,
                WORDS,
                SLICES,
                SLICE_PRODUCTS,
                ATTEND_STREAM,
            ],
            Module::AttendTiles { .. } => &[PRELUDE, ATTENTION, ATTEND_TILES],
            Module::Product(_) => &[PRELUDE, FORMATS, PRODUCT, SKETCH, TILE, TILES],
            Module::Gemv { one: true, .. } => &[
                PRELUDE, FORMATS, OPERANDS, UNITS, STREAM, ONE_TOKEN, PEAK, GEMV, ROUTE, EXPERTS,
            ],
            Module::Gemv { one: false, .. } => &[
                PRELUDE, FORMATS, OPERANDS, UNITS, STREAM, ONE_TOKEN, PEAK, GEMV,
            ],
            Module::Largest(_) => &[
                PRELUDE, FORMATS, OPERANDS, UNITS, STREAM, ONE_TOKEN, LARGEST,
            ],
            Module::Gemm(_) => &[PRELUDE, FORMATS, OPERANDS, BRAINS, GEMM],
            Module::Skinny { .. } => &[PRELUDE, STREAM, WGMMA, TILE, TILE_WEIGHTS, SKINNY],
            Module::Gates => &[PRELUDE, STREAM, WGMMA, BROAD, GATES],
            Module::Turned { .. } => &[PRELUDE, STREAM, WGMMA, BROAD, TURNED],
            Module::Vocabulary { .. } => &[
                PRELUDE,
                STREAM,
                WGMMA,
                TILE,
                TILE_WEIGHTS,
                DRAWS,
                VOCABULARY,
            ],
            // What stands before that of each format.
            Module::Chain { .. } => &[PRELUDE, ATTENTION, HEADS, STREAM, PEAK, WORDS, LINKS],
            Module::Layers {
                format: DType::BF16,
                ..
            } => const { &layers_files(BRAIN_PANELS) },
            Module::Layers { .. } => const { &layers_files(BYTE_PANELS) },
        }
    }

    /// The text that it is compiled from.
    fn source(self) -> Result<String, BackendError> {
        let mut text = texts(self.files())?;
        if let Module::Chain { formats, .. } = self {
            let of_one = texts(&[FORMATS, OPERANDS, UNITS, ONE_TOKEN, MULTIPLY_LINK])?;
            text += &formats.in_namespaces(&of_one);
            text += &texts(&[ATTEND_LINK, CHAIN])?;
        }
        Ok(text)
    }

    fn defines(self) -> Vec<(&'static str, usize)> {
        match self {
            Module::Ferry | Module::Rows | Module::Sample => Vec::new(),
            Module::AttendAny => vec![("ANY", 1)],
            Module::AttendRows {
                head,
                group,
                kv,
                together,
                plain,
            } => {
                let sizes = [("HEAD", head), ("GROUP", group), ("TYPE", kv)];
                let more = [("TOGETHER", together), ("PLAIN", usize::from(plain))];
                sizes.into_iter().chain(more).collect()
            }
            Module::AttendStream(stream) => stream.defines(),
            Module::AttendTiles {
                head,
                kv,
                groups,
                plain,
            } => {
                let sizes = [("HEAD", head), ("TYPE", kv), ("GROUPS", groups)];
                let plain = ("PLAIN", usize::from(plain));
                sizes.into_iter().chain([plain]).collect()
            }
            Module::Turn { head, kv } => vec![("HEAD", head), ("TYPE", kv)],
            Module::Skinny { rows, parts, tiled } => {
                let tiled = ("TILED", usize::from(tiled));
                vec![("TOKENS", rows), ("PARTS", parts), tiled]
            }
            Module::Gates => vec![("TOKENS", 256)],
            Module::Turned { head, kv, style } => {
                let sizes = [("TOKENS", 256), ("HEAD", head), ("TYPE", kv)];
                sizes.into_iter().chain([("STYLE", style)]).collect()
            }
            Module::Vocabulary { rows, brains } => {
                vec![("TOKENS", rows), ("BRAINS", usize::from(brains))]
            }
            Module::Product(format) | Module::Largest(format) | Module::Gemm(format) => {
                vec![("FORMAT", format.ggml_number() as usize)]
            }
            Module::Gemv { format, one } => {
                let format = ("FORMAT", format.ggml_number() as usize);
                vec![format, ("ONE", usize::from(one))]
            }
            Module::Chain {
                head, group, kv, ..
            } => vec![("HEAD", head), ("GROUP", group), ("TYPE", kv)],
            Module::Layers {
                format,
                head,
                group,
                kv,
                halves,
                rows,
                plain,
            } => {
                let format = ("FORMAT", format.ggml_number() as usize);
                let sizes = [("HEAD", head), ("GROUP", group), ("TYPE", kv)];
                let plain = ("PLAIN", usize::from(plain));
                let more = [("HALVES", halves), ("ROWS", rows), plain];
                [format].into_iter().chain(sizes).chain(more).collect()
            }
        }
    }
}

/// A module's name, by what it is compiled for.
fn numbered(name: &str, defines: &[(&str, usize)]) -> String {
    let join = |name, (_, number): &(&str, usize)| format!("{name}-{number}");
    defines.iter().fold(name.to_owned(), join)
}

/// The texts of some files, one behind the other, out of a folder where one is named: who works on kernels need not
/// build this program anew.
fn texts(files: &[File]) -> Result<String, BackendError> {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return Ok(files.iter().map(|(_, text)| *text).collect());
    };
    let read = |(name, _): &File| {
        let path = folder.join(name);
        std::fs::read_to_string(&path)
            .map_err(|error| BackendError(format!("cuda: {FOLDER}: {}: {error}", path.display())))
    };
    files.iter().map(read).collect()
}

/// Numbers of rows that `skinny` is compiled for; with two parts the first alone.
pub(crate) const SKINNY_ROWS: [usize; 16] = [
    16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256,
];

/// A function on the device.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    pub function: sys::CUfunction,
    pub name: &'static str,
}

// SAFETY: a handle that any thread may pass to the driver.
unsafe impl Send for Kernel {}

/// All that were loaded so far.
pub(crate) struct Kernels {
    device: Arc<Device>,
    compiler: Compiler,
    modules: HashMap<Module, sys::CUmodule>,
    functions: HashMap<(Module, &'static str), Kernel>,
}

// SAFETY: handles that any thread may pass to the driver.
unsafe impl Send for Kernels {}

impl Kernels {
    pub fn new(device: &Arc<Device>, progress: Option<fn(Progress<'_>)>) -> Self {
        Self {
            device: Arc::clone(device),
            compiler: Compiler::new(device.architecture(), progress),
            modules: HashMap::new(),
            functions: HashMap::new(),
        }
    }

    /// A function, compiled and loaded where it is not yet.
    pub fn kernel(&mut self, module: Module, name: &'static str) -> Result<Kernel, BackendError> {
        if let Some(kernel) = self.functions.get(&(module, name)) {
            return Ok(*kernel);
        }
        let loaded = self.module(module)?;
        let c_name = CString::new(name).expect("invariant: names have no zero bytes");
        // SAFETY: the module is loaded, and stays so.
        let function =
            unsafe { result::module::get_function(loaded, c_name) }.map_err(|error| {
                self.device
                    .error(&format!("finding the kernel {name}"), error)
            })?;
        self.allow_all_shared_memory(function, name)?;
        let kernel = Kernel { function, name };
        self.functions.insert((module, name), kernel);
        Ok(kernel)
    }

    fn module(&mut self, module: Module) -> Result<sys::CUmodule, BackendError> {
        if let Some(loaded) = self.modules.get(&module) {
            return Ok(*loaded);
        }
        let code = self
            .compiler
            .compile(&module.name(), &module.source()?, &module.defines())?;
        self.device.bind();
        // SAFETY: the code is a whole cubin; the driver checks it.
        let loaded = unsafe { result::module::load_data(code.as_ptr().cast::<c_void>()) }.map_err(
            |error| {
                let what = format!("loading the kernels of {}", module.name());
                self.device.error(&what, error)
            },
        )?;
        self.modules.insert(module, loaded);
        Ok(loaded)
    }

    /// A kernel gets more than 48 KiB only where it was told so before.
    fn allow_all_shared_memory(
        &self,
        function: sys::CUfunction,
        name: &str,
    ) -> Result<(), BackendError> {
        use sys::CUfunction_attribute as Attribute;
        // SAFETY: the function is loaded.
        let own = unsafe {
            result::function::get_function_attribute(
                function,
                Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            )
        };
        let own = own.unwrap_or(0).unsigned_abs() as usize;
        let most = self.device.shared_memory().saturating_sub(own);
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        for (attribute, value) in [
            (
                Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                most,
            ),
            // In percent, and the same for every kernel: a multiprocessor divides its memory anew
            // only when nothing runs on it, and the blocks of two launches are to overlap.
            (
                Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                100,
            ),
        ] {
            // SAFETY: as above.
            unsafe { result::function::set_function_attribute(function, attribute, value) }
                .map_err(|error| {
                    self.device
                        .error(&format!("preparing the kernel {name}"), error)
                })?;
        }
        Ok(())
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = self.device.synchronize();
        for module in self.modules.values() {
            // SAFETY: nothing runs any more, and the module is unloaded once.
            let _ = unsafe { result::module::unload(*module) };
        }
    }
}
