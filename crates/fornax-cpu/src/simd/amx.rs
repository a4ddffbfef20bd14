//! AMX: the matrix unit of newer Xeons, which multiplies squares of brain floats. Must not know
//! operations or layouts other than that of its squares.
//!
//! The unit has 8 registers of 16 rows of 64 bytes, set up by every thread before use. The system
//! asks a process for its wish to have them once, for they make every thread's state 8 KiB larger
//! (Intel SDM 1, chapter 18; Linux `Documentation/arch/x86/xstate.rst`).

use std::{
    arch::{
        asm,
        x86_64::{__cpuid, __cpuid_count, _xgetbv},
    },
    sync::OnceLock,
};

/// Bytes of a square: 16 rows of 32 brain floats, or of 16 pairs of them.
pub(crate) const SQUARE_BYTES: usize = 1024;

/// Whether the processor has the unit for brain floats, and the system lets this process use it.
/// Asks it for that the first time.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| processor_has_it() && system_permits_it())
}

fn processor_has_it() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const BRAIN_FLOATS: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    const TILE_STATE: u64 = 0b11 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    // SAFETY: the system has switched `xgetbv` on.
    let enabled = unsafe { xgetbv() };
    features & BRAIN_FLOATS != 0 && features & TILES != 0 && enabled & TILE_STATE == TILE_STATE
}

/// # Safety
/// The processor has `xsave`, and the system uses it.
#[target_feature(enable = "xsave")]
unsafe fn xgetbv() -> u64 {
    // SAFETY: the caller's.
    unsafe { _xgetbv(0) }
}

#[cfg(target_os = "linux")]
fn system_permits_it() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: asks for a permission and touches no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn system_permits_it() -> bool {
    false
}

/// Shape of the registers.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row, by register.
    row_bytes: [u16; 16],
    /// Rows, by register.
    rows: [u8; 16],
}

static SQUARES: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// The unit, set up for squares on this thread while it lives.
pub(crate) struct MatrixUnit(());

impl MatrixUnit {
    /// # Safety
    /// [`is_available`], and no other value lives on this thread.
    pub unsafe fn new() -> Self {
        // SAFETY: reads a valid configuration; the registers are nobody else's.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &SQUARES, options(nostack, readonly)) };
        Self(())
    }

    /// `out = a · [b0, b1]` over `blocks` blocks of 32 values: 32 columns times 32 rows.
    ///
    /// # Safety
    /// `a` points to `[blocks][2][16 columns][32]`, `b0` and `b1` to `[blocks][16 pairs][16 rows][2]`
    /// brain floats, `out` to room for `[32 columns][32 rows]` floats.
    pub unsafe fn multiply(
        &self,
        a: *const u16,
        b0: *const u8,
        b1: *const u8,
        blocks: usize,
        out: *mut f32,
    ) {
        if blocks == 0 {
            // SAFETY: the caller's.
            return unsafe { out.write_bytes(0, 32 * 32) };
        }
        // SAFETY: reads and writes what the caller vouches for, and the unit's registers.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{a} + {stride}]",
                "tileloadd tmm6, [{b0} + {stride}]",
                "tileloadd tmm5, [{a} + {stride} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b1} + {stride}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048",
                "add {b0}, 1024",
                "add {b1}, 1024",
                "dec {blocks}",
                "jnz 2b",
                "tilestored [{out} + {row}], tmm0",
                "tilestored [{out} + {row} + 64], tmm1",
                "tilestored [{out} + {row} + 2048], tmm2",
                "tilestored [{out} + {row} + 2112], tmm3",
                a = inout(reg) a => _,
                b0 = inout(reg) b0 => _,
                b1 = inout(reg) b1 => _,
                blocks = inout(reg) blocks => _,
                out = in(reg) out,
                stride = in(reg) 64_usize,
                row = in(reg) 128_usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for MatrixUnit {
    fn drop(&mut self) {
        // SAFETY: gives the registers back, so that the system need not save them.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
