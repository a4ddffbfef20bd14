//! The logits of one token and one tile of the head once more, for a draw that came to need them: they are written
//! for nobody else. Must not know who draws.

/// The head and the tokens that it was multiplied with, as `vocabulary.cu` has them.
struct Head {
    const u16* x;      // [n, cols] in bf16; null where all logits were written
    const u16* brains; // [rows, cols], or null
    const u8* tiled;   // [tiles, cols / 64, TILE_BYTES], of `tile.cu`
    u32 cols, rows;
};

/// Adds the product of two neighbours, in bf16, to a sum.
DEVICE void add_pair(float& sum, u32 a, u32 b) {
    float2 v = f32_of_bf16_pair(a), w = f32_of_bf16_pair(b);
    sum = fmaf(v.x, w.x, fmaf(v.y, w.y, sum));
}

/// Two neighbours in bf16 of what `tiles.cu` made of them.
DEVICE u32 pair_of(u32 quants, u32 first, float scale) {
    return bf16_pair(((int)(quants >> 8 * first & 255) - 128) * scale, ((int)(quants >> 8 * (first + 1) & 255) - 128) * scale);
}

/// The logits of a tile for a token, `[TILE_ROWS]`. Called by 32 warps, of which each makes two.
DEVICE void tile_logits(const Head& head, u32 token, u32 tile, float* logits) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows[2];
    const u16* x = head.x + (u64)token * head.cols;
    float sums[2] = {};
    if (head.brains) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            rows[i] = 2 * warp + i;
            u32 row = min(tile * TILE_ROWS + rows[i], head.rows - 1);
            for (u32 k = 8 * lane; k < head.cols; k += 256) {
                uint4 v = *(const uint4*)(x + k), w = *(const uint4*)(head.brains + (u64)row * head.cols + k);
                add_pair(sums[i], v.x, w.x);
                add_pair(sums[i], v.y, w.y);
                add_pair(sums[i], v.z, w.z);
                add_pair(sums[i], v.w, w.w);
            }
        }
    } else {
        // What one thread of a product has of two rows that are eight apart; a lane in so many has each slab.
        u32 slabs = head.cols / 64, thread = warp * 4 + lane % 4;
        rows[0] = warp / 8 * 16 + warp % 8;
        rows[1] = rows[0] + 8;
        for (u32 slab = lane / 4; slab < slabs; slab += 8) {
            const u8* from = head.tiled + ((u64)tile * slabs + slab) * TILE_BYTES;
#pragma unroll
            for (u32 block = 0; block < 2; block++) {
                uint4 quants = *(const uint4*)(from + quants_at(thread, block));
                const u32* at = (const u32*)(x + slab * 64 + block * 32 + lane % 4 * 2);
                u32 of_row[2][2] = {{quants.x, quants.z}, {quants.y, quants.w}};
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    float scale = f32_of_f16(*(const u16*)(from + scales_at(rows[i]) + 2 * block));
#pragma unroll
                    for (u32 step = 0; step < 2; step++) {
                        add_pair(sums[i], at[8 * step], pair_of(of_row[i][step], 0, scale));
                        add_pair(sums[i], at[8 * step + 4], pair_of(of_row[i][step], 2, scale));
                    }
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        float sum = warp_sum(sums[i]);
        if (lane == 0) logits[rows[i]] = sum;
    }
}
