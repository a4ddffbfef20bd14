//! AMX: the matrix unit of newer Xeons, which multiplies squares of bytes or of brain floats. Must
//! not know operations, nor layouts other than that of its squares.
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

use crate::ahead::Ahead;

/// Whether the processor has the unit, and the system lets this process use it.
/// Asks it for that the first time.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| processor_has_it() && system_permits_it())
}

fn processor_has_it() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const BRAIN_FLOATS: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    const BYTES: u32 = 1 << 25;
    const TILE_STATE: u64 = 0b11 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    // SAFETY: the system has switched `xgetbv` on.
    let enabled = unsafe { xgetbv() };
    let wanted = BRAIN_FLOATS | TILES | BYTES;
    features & wanted == wanted && enabled & TILE_STATE == TILE_STATE
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

/// 16 rows of 16 numbers.
#[repr(C, align(64))]
pub(crate) struct Square<T>(pub [[T; 16]; 16]);

/// Panels that [`MatrixUnit::multiply_brains`] goes through at once.
pub(crate) const BRAIN_PANELS: usize = 4;

/// The unit, set up on this thread while it lives: for columns of activations, and as many bytes of
/// each at once as a product goes over.
pub(crate) struct MatrixUnit(());

impl MatrixUnit {
    /// For up to 16 columns and 16, 32 or 64 bytes.
    ///
    /// # Safety
    /// [`is_available`], and no other value lives on this thread.
    pub unsafe fn new(columns: usize, depth: usize) -> Self {
        assert!(columns <= 16 && depth <= 64 && depth.is_multiple_of(4));
        let mut shape = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        // Registers 0 to 3 are for sums, 4 for activations, 5 to 7 for weights; 5 also for
        // activations where these fill 16 rows and are as wide as it.
        for register in 0..8 {
            let (rows, bytes) = match register {
                0..4 => (columns, 64),
                4 => (columns, depth),
                _ => (depth / 4, 64),
            };
            shape.rows[register] = rows as u8;
            shape.row_bytes[register] = bytes as u16;
        }
        // SAFETY: reads a valid configuration; the registers are nobody else's.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shape, options(nostack, readonly)) };
        Self(())
    }

    /// `sums[column][row] = Σ a · weights`, exactly, over the bytes that the unit was set up for.
    ///
    /// # Safety
    /// `a` points to columns of signed bytes, 32 bytes from one to the next, `weights` to unsigned
    /// bytes `[depth / 4][16 rows][4]`.
    #[inline(always)]
    pub unsafe fn dot(&self, a: *const i8, weights: *const u8, sums: &mut Square<i32>) {
        // SAFETY: reads and writes what the caller vouches for, and the unit's registers.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm5, [{weights} + {row}]",
                "tileloadd tmm4, [{a} + {column}]",
                "tdpbsud tmm0, tmm4, tmm5",
                "tilestored [{sums} + {row}], tmm0",
                a = in(reg) a,
                weights = in(reg) weights,
                sums = in(reg) sums,
                column = in(reg) 32_usize,
                row = in(reg) 64_usize,
                out("tmm0") _, out("tmm4") _, out("tmm5") _,
                options(nostack),
            );
        }
    }

    /// `sums[2 * tile + panel][column][row] = Σ a[tile] · panels[panel]` over `blocks` blocks of 32
    /// brain floats, two tiles of 16 columns: each register that is loaded is multiplied twice. The
    /// unit was set up for 16 columns and 64 bytes. All of `ahead` is asked for meanwhile.
    ///
    /// # Safety
    /// Each `a` points to `[blocks][16 columns][32]`, each panel to `[blocks][16 pairs][16 rows][2]`
    /// brain floats.
    pub unsafe fn multiply_squares(
        &self,
        a: [*const u16; 2],
        panels: [*const u8; 2],
        blocks: usize,
        ahead: Ahead,
        sums: &mut [Square<f32>; 4],
    ) {
        let ([a, b], [first, second]) = (a, panels);
        // SAFETY: reads and writes what the caller vouches for, and the unit's registers.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "test {blocks}, {blocks}",
                "jz 3f",
                "2:",
                "tileloadd tmm4, [{a} + {row}]",
                "tileloadd tmm6, [{first} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{second} + {row}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{b} + {row}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "mov {left}, {lines}",
                "test {left}, {left}",
                "jz 5f",
                "4:",
                // Into the second level: the first one is full of tiles.
                "prefetcht1 [{ahead}]",
                "add {ahead}, 64",
                "dec {left}",
                "jnz 4b",
                "5:",
                "add {a}, 1024",
                "add {b}, 1024",
                "add {first}, 1024",
                "add {second}, 1024",
                "dec {blocks}",
                "jnz 2b",
                "3:",
                "tilestored [{sums} + {row}], tmm0",
                "tilestored [{sums} + {row} + 1024], tmm1",
                "tilestored [{sums} + {row} + 2048], tmm2",
                "tilestored [{sums} + {row} + 3072], tmm3",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                first = inout(reg) first => _,
                second = inout(reg) second => _,
                blocks = inout(reg) blocks => _,
                ahead = inout(reg) ahead.start() => _,
                lines = in(reg) ahead.lines_each(blocks.max(1)),
                left = out(reg) _,
                sums = in(reg) sums.as_mut_ptr(),
                row = in(reg) 64_usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// `sums[panel][column][row] = Σ a · panels[panel]` over `blocks` blocks of 32 brain floats.
    /// The unit was set up for 64 bytes.
    ///
    /// # Safety
    /// `a` points to `[blocks][columns][32]`, each panel to `[blocks][16 pairs][16 rows][2]` brain
    /// floats.
    pub unsafe fn multiply_brains(
        &self,
        a: *const u16,
        panels: [*const u8; BRAIN_PANELS],
        columns: usize,
        blocks: usize,
        sums: &mut [Square<f32>; BRAIN_PANELS],
    ) {
        let [first, second, third, fourth] = panels;
        // SAFETY: reads and writes what the caller vouches for, and the unit's registers.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "test {blocks}, {blocks}",
                "jz 3f",
                "2:",
                "tileloadd tmm4, [{a} + {row}]",
                "tileloadd tmm5, [{first} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tileloadd tmm6, [{second} + {row}]",
                "tdpbf16ps tmm1, tmm4, tmm6",
                "tileloadd tmm7, [{third} + {row}]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tileloadd tmm5, [{fourth} + {row}]",
                "tdpbf16ps tmm3, tmm4, tmm5",
                "add {a}, {a_step}",
                "add {first}, 1024",
                "add {second}, 1024",
                "add {third}, 1024",
                "add {fourth}, 1024",
                "dec {blocks}",
                "jnz 2b",
                "3:",
                "tilestored [{sums} + {row}], tmm0",
                "tilestored [{sums} + {row} + 1024], tmm1",
                "tilestored [{sums} + {row} + 2048], tmm2",
                "tilestored [{sums} + {row} + 3072], tmm3",
                a = inout(reg) a => _,
                first = inout(reg) first => _,
                second = inout(reg) second => _,
                third = inout(reg) third => _,
                fourth = inout(reg) fourth => _,
                blocks = inout(reg) blocks => _,
                a_step = in(reg) 64 * columns,
                sums = in(reg) sums.as_mut_ptr(),
                row = in(reg) 64_usize,
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
