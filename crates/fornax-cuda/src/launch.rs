//! A launch: a kernel, its grid and its arguments, and how it is handed to the driver.
//!
//! Must not know which kernel does what.

use std::ffi::c_void;

use cudarc::driver::sys;
use fornax_backend::BackendError;

use crate::device::Device;
use crate::kernels::Kernel;

/// A kernel with all that it is launched with.
#[derive(Clone)]
pub(crate) struct Launch {
    kernel: Kernel,
    grid: [usize; 3],
    threads: usize,
    shared: usize,
    cluster: usize,
    together: bool,
    behind_all: bool,
    /// Every argument in words of its own.
    words: Vec<u64>,
    /// Where each argument begins in `words`.
    starts: Vec<usize>,
}

impl Launch {
    pub fn new(kernel: Kernel, grid: [usize; 3], threads: usize) -> Self {
        Self {
            kernel,
            grid,
            threads,
            shared: 0,
            cluster: 1,
            together: false,
            behind_all: false,
            words: Vec::new(),
            starts: Vec::new(),
        }
    }

    /// Bytes of shared memory beside the kernel's own.
    pub fn shared(mut self, bytes: usize) -> Self {
        self.shared = bytes;
        self
    }

    /// So many blocks along the grid's first side share their memory.
    pub fn cluster(mut self, blocks: usize) -> Self {
        self.cluster = blocks;
        self
    }

    /// All blocks run at once, and none before the launch before it has ended.
    pub fn together(mut self) -> Self {
        self.together = true;
        self
    }

    /// None of its blocks begins before the launch before it has ended.
    pub fn behind_all(&mut self) {
        self.behind_all = true;
    }

    /// A pointer or another number of 64 bits.
    pub fn wide(self, value: u64) -> Self {
        self.structure(&value)
    }

    pub fn number(self, value: usize) -> Self {
        let value = u32::try_from(value).expect("invariant: sizes of kernels fit 32 bits");
        self.structure(&u64::from(value))
    }

    pub fn float(self, value: f32) -> Self {
        self.structure(&u64::from(value.to_bits()))
    }

    /// A structure by value, laid out as in C.
    pub fn structure<T: Copy>(mut self, value: &T) -> Self {
        let words = std::mem::size_of::<T>().div_ceil(8);
        let start = self.words.len();
        self.words.resize(start + words, 0);
        // SAFETY: there is room for a `T`, which is plain data, at an aligned place.
        unsafe { self.words.as_mut_ptr().add(start).cast::<T>().write(*value) };
        self.starts.push(start);
        self
    }

    pub fn name(&self) -> &'static str {
        self.kernel.name
    }

    /// Hands it to the driver; it may begin before the launch before it has ended, unless all of its
    /// blocks run at once.
    pub fn start(&mut self, device: &Device) -> Result<(), BackendError> {
        if self.grid.contains(&0) {
            return Ok(());
        }
        let mut arguments: Vec<*mut c_void> = Vec::with_capacity(self.starts.len());
        let words = self.words.as_mut_ptr();
        for start in &self.starts {
            // SAFETY: every start is inside of `words`.
            arguments.push(unsafe { words.add(*start) }.cast());
        }
        let mut attributes = self.attributes();
        let first = usize::from(self.behind_all && !self.together);
        let range = match (device.is_hopper(), self.cluster > 1) {
            (true, true) => first..2,
            (true, false) => first..1,
            (false, _) => 0..0,
        };
        let config = self.config(device, &mut attributes[range]);
        // SAFETY: the arguments are those that the kernel is declared with, and point to words that
        // outlive the call, which copies them.
        unsafe {
            sys::cuLaunchKernelEx(
                &config,
                self.kernel.function,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
            .result()
        }
        .map_err(|error| {
            let what = format!(
                "launching {} with {:?} blocks of {} threads and {} bytes",
                self.kernel.name, self.grid, self.threads, self.shared
            );
            device.error(&what, error)
        })
    }

    /// How many of its clusters run at once.
    pub fn most_clusters(&self, device: &Device) -> Result<usize, BackendError> {
        let mut attributes = self.attributes();
        let config = self.config(device, &mut attributes[1..]);
        let mut count = 0;
        // SAFETY: the kernel is loaded, and both pointers outlive the call.
        unsafe {
            sys::cuOccupancyMaxActiveClusters(
                &raw mut count,
                self.kernel.function,
                &raw const config,
            )
            .result()
        }
        .map_err(|error| {
            let what = format!(
                "asking how many clusters of {} run at once",
                self.kernel.name
            );
            device.error(&what, error)
        })?;
        Ok(count.unsigned_abs() as usize)
    }

    /// How it may overlap with the launch before it, then its cluster.
    fn attributes(&self) -> [sys::CUlaunchAttribute; 2] {
        // SAFETY: a union of plain numbers; zero is a value of each.
        let mut attributes: [sys::CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
        attributes[0].id =
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[0].value.programmaticStreamSerializationAllowed = 1;
        if self.together {
            attributes[0].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attributes[0].value.cooperative = 1;
        }
        attributes[1].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let mut cluster = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: 1, y: 1, z: 1 };
        cluster.x = small(self.cluster);
        attributes[1].value.clusterDim = cluster;
        attributes
    }

    /// What the driver is told; it points to the attributes.
    fn config(
        &self,
        device: &Device,
        attributes: &mut [sys::CUlaunchAttribute],
    ) -> sys::CUlaunchConfig {
        let [x, y, z] = self.grid.map(small);
        sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: small(self.threads),
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: small(self.shared),
            hStream: device.stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: small(attributes.len()),
        }
    }
}

fn small(value: usize) -> u32 {
    u32::try_from(value).expect("invariant: sizes of a launch fit 32 bits")
}
