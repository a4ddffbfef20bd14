//! A matrix made tiles of bytes. Must not know who multiplies.

#if FORMAT == Q8_0 || FORMAT == Q4_0
/// A quant of a row.
DEVICE int quant(const u8* row, u32 k) {
#if FORMAT == Q8_0
    return (signed char)row[k];
#else
    return (int)(row[k / 32 * 16 + k % 16] >> (k % 32 < 16 ? 0 : 4) & 15) - 8;
#endif
}

/// The tiles of rows that are multiples of 64 numbers long; behind the last row there are zeros. A block for each
/// tile, 128 threads.
KERNEL __launch_bounds__(128) void tiles(u8* to, const u8* weight, u64 pitch, u32 padded, u32 rows) {
    let_next_begin();
    wait_for_previous();
    u32 tid = threadIdx.x, slabs = padded / 64;
    for (u32 slab = 0; slab < slabs; slab++) {
        u8* tile = to + ((u64)blockIdx.x * slabs + slab) * TILE_BYTES;
        for (u32 i = 0; i < 32; i++) {
            // Two neighbours and those 8 columns on of a row, the same of the row 8 on, and so of 16 columns on.
            u32 row = blockIdx.x * 64 + tid / 32 * 16 + tid % 32 / 4 + i / 4 % 2 * 8;
            u32 column = slab * 64 + i / 8 * 16 + tid % 4 * 2 + i % 2 + i % 4 / 2 * 8;
            int value = row < rows ? quant(weight + row * pitch, column) : 0;
            tile[quants_at(tid, i / 16) + i % 16] = (u8)(value + 128);
        }
        u32 row = blockIdx.x * 64 + tid / 2, block = slab * 2 + tid % 2;
        const u8* scales = weight + row * pitch + (FORMAT == Q8_0 ? padded : padded / 2);
        *(u16*)(tile + scales_at(tid / 2) + tid % 2 * 2) = row < rows ? *(const u16*)(scales + 2 * block) : (u16)0;
    }
}
#endif
