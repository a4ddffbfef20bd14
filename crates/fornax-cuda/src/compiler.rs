//! From CUDA C++ to code for one architecture, kept on disk from run to run.
//!
//! Must not know what the kernels do.

use std::ffi::CString;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::nvrtc::{result, sys};
use fornax_backend::BackendError;

use crate::library::Library;
use crate::options::Progress;

/// Compiles for one architecture.
pub(crate) struct Compiler {
    architecture: String,
    /// Of the compiling library, once it was needed: major, minor.
    version: Option<(i32, i32)>,
    /// Where compiled code is kept; `None` where no folder can be named.
    cache: Option<PathBuf>,
    /// Told before something is compiled that is not kept yet.
    progress: Option<fn(Progress<'_>)>,
    /// Whether what is correct, and slow for a reason that the compiler tells of, is an error too.
    strict: bool,
}

/// What the compiler tells of where tensor cores would wait for each product before they begin the next.
const SERIALIZED: &str = "wgmma.mma_async instructions are serialized";

impl Compiler {
    pub fn new(architecture: String, progress: Option<fn(Progress<'_>)>) -> Self {
        Self {
            architecture,
            version: None,
            cache: cache_folder(),
            progress,
            strict: false,
        }
    }

    /// One that refuses code in which tensor cores wait for each product. What it keeps lies apart, for of
    /// other code nobody knows what the compiler said.
    pub fn strict(architecture: String) -> Self {
        Self {
            cache: cache_folder().map(|folder| folder.join("strict")),
            strict: true,
            ..Self::new(architecture, None)
        }
    }

    /// The code of `source` with some macros defined.
    pub fn compile(
        &mut self,
        name: &str,
        source: &str,
        defines: &[(&str, usize)],
    ) -> Result<Vec<u8>, BackendError> {
        let version = match self.version {
            Some(version) => version,
            None => {
                Library::Compiler.load()?;
                *self.version.insert(version()?)
            }
        };
        let mut options = vec![
            format!("--gpu-architecture={}", self.architecture),
            "--std=c++17".to_owned(),
        ];
        options.extend(
            defines
                .iter()
                .map(|(name, value)| format!("-D{name}={value}")),
        );
        let key = format!("{version:?} {options:?} {source}");
        let kept = self.cache.as_ref().map(|folder| {
            folder.join(format!(
                "{name}-{}-{:016x}.cubin",
                self.architecture,
                hash(&key)
            ))
        });
        if let Some(code) = kept.as_ref().and_then(|path| fs::read(path).ok()) {
            return Ok(code);
        }
        if let Some(progress) = self.progress {
            progress(Progress::Line(&format!(
                "compiling CUDA kernels: {name} for {}",
                self.architecture
            )));
        }
        let (code, log) = compile(name, source, &options)?;
        if let Some(slow) = log.lines().find(|line| line.contains(SERIALIZED))
            && self.strict
        {
            return Err(BackendError(format!("cuda: {name} is slow: {slow}")));
        }
        if let Some(path) = kept {
            keep(&path, &code);
        }
        Ok(code)
    }
}

/// Written beside, each time under another name, and then renamed, so that nobody reads half a file. Where that
/// fails the next run compiles again.
fn keep(path: &std::path::Path, code: &[u8]) {
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let own = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_extension(format!("{}-{own}", std::process::id()));
    let Some(folder) = path.parent() else { return };
    let _ = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&beside, code))
        .and_then(|()| fs::rename(&beside, path));
}

fn cache_folder() -> Option<PathBuf> {
    let named = |name: &str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    Some(cache?.join("fornax").join("cuda"))
}

/// FNV-1a: the same from version to version of this program, unlike the standard library's.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

fn version() -> Result<(i32, i32), BackendError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is loaded, and both pointers are ours.
    let asked = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    match asked {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok((major, minor)),
        error => Err(BackendError(format!(
            "cuda: the compiler names no version: {error:?}"
        ))),
    }
}

/// Code, and what the compiler has to say of it.
fn compile(
    name: &str,
    source: &str,
    options: &[String],
) -> Result<(Vec<u8>, String), BackendError> {
    let c_string = |text: &str| CString::new(text).expect("invariant: kernels have no zero bytes");
    let failed = |error: result::NvrtcError| {
        BackendError(format!(
            "cuda: the kernels of {name} cannot be compiled: {:?}",
            error.0
        ))
    };
    let (source, name_of_program) = (c_string(source), c_string(name));
    let program = result::create_program(&source, Some(&name_of_program)).map_err(failed)?;
    // SAFETY: the program was just made, and is destroyed once, at the end.
    unsafe {
        let compiled = result::compile_program(program, options);
        let log = result::get_program_log(program).unwrap_or_default();
        let log: Vec<u8> = log.iter().map(|c| c.to_ne_bytes()[0]).collect();
        let log = String::from_utf8_lossy(&log);
        let log = log.trim_matches('\0').to_owned();
        let answer = match compiled {
            Ok(()) => code(program).map(|code| (code, log)).map_err(failed),
            Err(error) => Err(BackendError(format!("{}\n{log}", failed(error)))),
        };
        let _ = result::destroy_program(program);
        answer
    }
}

/// # Safety
/// The program must have been compiled.
unsafe fn code(program: sys::nvrtcProgram) -> Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0;
    // SAFETY: the caller's promise; the buffer is as long as the library says.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &mut size).result()?;
        let mut code = vec![0_u8; size];
        sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result()?;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_depends_on_every_byte() {
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_ne!(hash("ab"), hash("ba"));
    }
}
