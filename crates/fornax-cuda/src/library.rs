//! Where the CUDA libraries are: found at run time, so that one binary runs with and without.
//!
//! Must not know what they do.

use std::path::PathBuf;

use fornax_backend::BackendError;

/// A library that is needed at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// Comes with the display driver.
    Driver,
    /// Compiles kernels.
    Compiler,
    /// Multiplies large matrices.
    Products,
}

/// A folder that is searched before all others.
const FOLDER: &str = "FORNAX_CUDA_LIBRARIES";

impl Library {
    /// Loads it for good, so that it is found by name from then on.
    ///
    /// # Errors
    /// It is nowhere; the message says where it was looked for.
    pub fn load(self) -> Result<(), BackendError> {
        let mut tried = Vec::new();
        for folder in folders() {
            for name in self.names() {
                let path = folder.join(name);
                // SAFETY: these are NVIDIA's libraries; what they do when loaded is theirs.
                if let Ok(library) = unsafe { libloading::Library::new(&path) } {
                    std::mem::forget(library);
                    return Ok(());
                }
            }
            tried.push(match folder.as_os_str().is_empty() {
                true => "the system's search path".to_owned(),
                false => folder.display().to_string(),
            });
        }
        Err(BackendError(format!(
            "cuda: {} is missing: none of {} is in {}. {}, or name its folder in {FOLDER}",
            self.what(),
            self.names().join(", "),
            tried.join(", "),
            self.remedy(),
        )))
    }

    fn what(self) -> &'static str {
        match self {
            Library::Driver => "NVIDIA's driver",
            Library::Compiler => "NVIDIA's run-time compiler (NVRTC)",
            Library::Products => "NVIDIA's matrix library (cuBLASLt)",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Library::Driver => "Install the driver of an NVIDIA GPU",
            Library::Compiler => "Install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`",
            Library::Products => "Install the CUDA toolkit, or `pip install nvidia-cublas`",
        }
    }

    fn names(self) -> &'static [&'static str] {
        if cfg!(windows) {
            match self {
                Library::Driver => &["nvcuda.dll"],
                Library::Compiler => &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"],
                Library::Products => &["cublasLt64_13.dll", "cublasLt64_12.dll"],
            }
        } else {
            match self {
                Library::Driver => &["libcuda.so.1", "libcuda.so"],
                Library::Compiler => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
                Library::Products => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
            }
        }
    }
}

/// Where to look, the first place first.
fn folders() -> Vec<PathBuf> {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut folders: Vec<PathBuf> = named(FOLDER).into_iter().collect();
    folders.push(PathBuf::new());
    let toolkits = ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"];
    let toolkits = toolkits.iter().filter_map(|name| named(name));
    for toolkit in toolkits.chain([PathBuf::from("/usr/local/cuda")]) {
        folders.push(toolkit.join("lib64"));
    }
    folders.push(PathBuf::from("/usr/local/nvidia/lib64"));
    folders.push(PathBuf::from("/usr/lib/wsl/lib"));
    if let Some(environment) = named("VIRTUAL_ENV")
        && let Ok(versions) = std::fs::read_dir(environment.join("lib"))
    {
        for version in versions.flatten() {
            let packages = version.path().join("site-packages/nvidia");
            for package in ["cu13", "cuda_nvrtc", "cublas"] {
                folders.push(packages.join(package).join("lib"));
            }
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_where_it_was_looked_for() {
        for library in [Library::Driver, Library::Compiler, Library::Products] {
            let Err(error) = library.load() else { continue };
            let error = error.to_string();
            for part in [
                "is missing",
                library.names()[0],
                "/usr/local/cuda/lib64",
                FOLDER,
            ] {
                assert!(error.contains(part), "{part} is not in: {error}");
            }
        }
    }
}
