//! 128 columns of a single token in a warp's registers, and their products with sixteen rows at a time
//! by the tensor cores, each number of the token in full: in parts, which are columns of the right side.
//! Must not know where rows lie, nor whose columns these are.
//!
//! A warp reads 64 bytes of each row at once, 16 a lane: lane `4g + j` has those from 16j on, of rows g
//! and g + 8. Which columns of the product those are is all the same, so long as both sides mean the same
//! ones. Rows that are 64 bytes apart, but for whole times 128, share no bank.

#define PANEL 128
#define TILE_ROWS 16

/// Bytes of 32 weights, without their scale.
#if FORMAT == Q8_0
#define BLOCK_BYTES 32
#elif FORMAT == Q4_0
#define BLOCK_BYTES 16
#elif FORMAT == BF16
#define BLOCK_BYTES 64
#else
#error "no panels of this format"
#endif
#define HAS_SCALES (FORMAT != BF16)

#if HAS_SCALES
/// Two signed bytes a number, 16 bits in all, under a scale for each block of 32 columns. High bytes of
/// block b are column 2b of the right side and low ones 2b + 1, zeros at other blocks' places, so that
/// one pass gives sums of four blocks, each in its own lanes.
struct Panel {
    u32 right[2][4]; // of each 64 bytes of a row, or with four bits of low and of high ones
    float scale;     // of block j
    int excess;      // what its quants stand too high in all
};

DEVICE void multiply_bytes(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Out of 128 numbers in shared memory.
DEVICE Panel panel_of(const float* x) {
    constexpr u32 OWN = FORMAT == Q8_0 ? 16 : 32; // numbers of a lane
    u32 lane = threadIdx.x % 32, n = lane / 4, j = lane % 4;
    const float4* from = (const float4*)(x + n / 2 * 32 + (FORMAT == Q8_0 ? j % 2 * 16 : 0));
    float v[OWN];
    // As whole numbers, so that what is no number is the largest.
    u32 largest = 0;
#pragma unroll
    for (u32 i = 0; i < OWN / 4; i++) {
        float4 w = from[i];
        v[4 * i] = w.x; v[4 * i + 1] = w.y; v[4 * i + 2] = w.z; v[4 * i + 3] = w.w;
    }
#pragma unroll
    for (u32 i = 0; i < OWN; i++) largest = max(largest, __float_as_uint(fabsf(v[i])));
    if (FORMAT == Q8_0) largest = max(largest, __shfl_xor_sync(FULL, largest, 1));
    const float most = 32512.0f; // 127 · 256: the high byte is never rounded to 128
    float magnitude = __uint_as_float(largest), inverse = magnitude > 1e-30f ? __fdividef(most, magnitude) : 0.0f;
    int sum = 0;
    u32 words[OWN / 4], shift = n % 2 ? 0 : 8, up = n % 2 ? 0 : 128;
#pragma unroll
    for (u32 i = 0; i < OWN / 4; i++) {
        u32 bytes[4];
#pragma unroll
        for (u32 b = 0; b < 4; b++) {
            int whole = __float2int_rn(v[4 * i + b] * inverse);
            sum += whole;
            bytes[b] = (u32)(whole + (int)up >> shift);
        }
        words[i] = __byte_perm(__byte_perm(bytes[0], bytes[1], 0x0040), __byte_perm(bytes[2], bytes[3], 0x0040), 0x5410);
    }
    Panel p;
#pragma unroll
    for (u32 part = 0; part < 2; part++) {
        bool own = FORMAT == Q8_0 ? n / 4 == part && n / 2 % 2 == j / 2 : n / 2 == j;
#pragma unroll
        for (u32 i = 0; i < 4; i++) p.right[part][i] = own ? words[FORMAT == Q8_0 ? i : 4 * part + i] : 0;
    }
    p.scale = __shfl_sync(FULL, magnitude * (1.0f / most), 8 * j);
    p.excess = FORMAT == Q4_0 ? __shfl_sync(FULL, 8 * sum, 8 * j) : 0;
    return p;
}

/// Products of rows g and g + 8 with the columns of a panel, which is the row's `panel`th: of each lane
/// those with block j. `scales` are the row's, `cols` all of its columns.
DEVICE float2 multiply_panel(const Panel& p, const u8* rows, u32 pitch, const u8* scales, u32 scale_pitch, u32 panel, u32 cols) {
    u32 lane = threadIdx.x % 32, g = lane / 4, j = lane % 4, block = panel * 4 + j;
    const u8 *upper = rows + g * pitch + panel * 4 * BLOCK_BYTES + 16 * j, *lower = upper + 8 * pitch;
    int c[4] = {};
#if FORMAT == Q8_0
#pragma unroll
    for (u32 part = 0; part < 2; part++) {
        uint4 a = *(const uint4*)(upper + 64 * part), b = *(const uint4*)(lower + 64 * part);
        multiply_bytes(c, a.x, b.x, a.y, b.y, p.right[part][0], p.right[part][1]);
        multiply_bytes(c, a.z, b.z, a.w, b.w, p.right[part][2], p.right[part][3]);
    }
#else
    uint4 a = *(const uint4*)upper, b = *(const uint4*)lower;
#pragma unroll
    for (u32 part = 0; part < 2; part++) {
        u32 shift = 4 * part, mask = 0x0f0f0f0fu;
        multiply_bytes(c, a.x >> shift & mask, b.x >> shift & mask, a.y >> shift & mask, b.y >> shift & mask, p.right[part][0], p.right[part][1]);
        multiply_bytes(c, a.z >> shift & mask, b.z >> shift & mask, a.w >> shift & mask, b.w >> shift & mask, p.right[part][2], p.right[part][3]);
    }
#endif
    // What lies behind the last block is no scale.
    float upper_scale = 0.0f, lower_scale = 0.0f;
    if (block * 32 < cols) {
        const u16* of_row = (const u16*)(scales + g * scale_pitch) + block;
        upper_scale = f32_of_f16(*of_row);
        lower_scale = f32_of_f16(*(const u16*)((const u8*)of_row + 8 * scale_pitch));
    }
    return make_float2((float)(256 * c[0] + c[1] - p.excess) * (p.scale * upper_scale), (float)(256 * c[2] + c[3] - p.excess) * (p.scale * lower_scale));
}
#else
/// Three numbers of 8 bits each, which are a number of single precision: the first three columns of the
/// right side.
struct Panel { u32 right[4][4]; };

DEVICE void multiply_brains(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE Panel panel_of(const float* x) {
    u32 lane = threadIdx.x % 32, n = lane / 4, j = lane % 4;
    Panel p;
#pragma unroll
    for (u32 part = 0; part < 4; part++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float2 v = *(const float2*)(x + 32 * part + 8 * j + 2 * i);
            u32 word = bf16_pair(v.x, v.y);
#pragma unroll
            for (u32 step = 1; step < 3; step++) {
                float2 taken = f32_of_bf16_pair(word);
                if (n < step) continue;
                v.x -= taken.x;
                v.y -= taken.y;
                word = bf16_pair(v.x, v.y);
            }
            p.right[part][i] = n < 3 ? word : 0;
        }
    return p;
}

DEVICE float2 multiply_panel(const Panel& p, const u8* rows, u32 pitch, const u8*, u32, u32 panel, u32 cols) {
    u32 lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
    const u8 *upper = rows + g * pitch + panel * 4 * BLOCK_BYTES + 16 * j, *lower = upper + 8 * pitch;
    float c[2][4] = {};
#pragma unroll
    for (u32 part = 0; part < 4; part++) {
        if (panel * PANEL + part * 32 >= cols) break;
        uint4 a = *(const uint4*)(upper + 64 * part), b = *(const uint4*)(lower + 64 * part);
        multiply_brains(c[part % 2], a.x, b.x, a.y, b.y, p.right[part][0], p.right[part][1]);
        multiply_brains(c[part % 2], a.z, b.z, a.w, b.w, p.right[part][2], p.right[part][3]);
    }
    return make_float2((c[0][0] + c[1][0]) + (c[0][1] + c[1][1]), (c[0][2] + c[1][2]) + (c[0][3] + c[1][3]));
}
#endif

/// The sum of four neighbouring lanes: of row g in the first of them, of row g + 8 in the second.
DEVICE float fold(float2 y) {
    bool odd = threadIdx.x % 2;
    float sum = (odd ? y.y : y.x) + __shfl_xor_sync(FULL, odd ? y.x : y.y, 1);
    return sum + __shfl_xor_sync(FULL, sum, 2);
}
