//! The two sides of a product on the tensor cores, by the format of the weights: how a thread gets
//! its part of each, and the product of one block of 32 columns.
//!
//! A token is split into two halves, rows g and g + 8 of the left matrix, so that the product is
//! nearly that of single precision: of 11 bits each, of 8 with BF16 weights. Beside Q8_0 and Q4_0 they
//! are two signed bytes under a scale for each block of 32 columns, 16 bits in all: so quants are
//! multiplied as they are, the sums of a block are exact, and only they are scaled.

#if FORMAT != F32

#define SCALED (FORMAT == Q8_0 || FORMAT == Q4_0)
// Whether a token can be split as soon as a thread has its part of it: halves of 11 bits need the
// largest of all, for their range is small.
#define AT_ONCE (SCALED || FORMAT == BF16)

/// Adds the product of 16 rows by 16 columns with 16 by 8, of bf16 or of f16: `a` is this thread's two
/// words of row g and then of row g + 8.
template <bool BRAIN> DEVICE void multiply_halves(float* c, const uint4& a, u32 b0, u32 b1) {
    if (BRAIN)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a.x), "r"(a.z), "r"(a.y), "r"(a.w), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a.x), "r"(a.z), "r"(a.y), "r"(a.w), "r"(b0), "r"(b1));
}

/// This thread's 8 weights of a block of 32 columns: two steps of two words, or one of bytes. Which
/// columns they are is what `left_index` says.
DEVICE void fragment(const u8* row, u32 padded, u32 block, u32 t, u32* b) {
#if FORMAT == BF16 || FORMAT == F16
    uint4 v = *(const uint4*)(row + block * 64 + t * 16);
    b[0] = v.x; b[1] = v.y; b[2] = v.z; b[3] = v.w;
#elif FORMAT == Q8_0
    uint2 v = *(const uint2*)(row + block * 32 + t * 8);
    b[0] = v.x; b[1] = v.y;
#elif FORMAT == Q4_0
    u32 v = *(const u32*)(row + block * 16 + t * 4);
    b[0] = v & 0x0f0f0f0fu; b[1] = v >> 4 & 0x0f0f0f0fu;
#else
    float w[8];
    decode8(row, padded, block * 32 + t * 8, w);
    for (int i = 0; i < 4; i++) b[i] = f16_pair(w[2 * i], w[2 * i + 1]);
#endif
}

DEVICE float block_scale(const u8* row, u32 padded, u32 block) {
#if FORMAT == Q8_0
    return f32_of_f16(*(const u16*)(row + padded + 2 * block));
#elif FORMAT == Q4_0
    return f32_of_f16(*(const u16*)(row + padded / 2 + 2 * block));
#else
    return 1.0f;
#endif
}

/// Where four columns of a token, counted in fours, are in its left side: of a block the first and
/// the second four that each thread multiplies.
DEVICE u32 left_index(u32 four) {
#if FORMAT == Q4_0
    return four / 8 * 8 + four % 4 * 2 + four % 8 / 4;
#else
    return four;
#endif
}

/// What becomes of a token's 32 columns: their scale, and what their sum adds to a product, since
/// quants of Q4_0 stand 8 too high.
struct Scaled { float scale, excess; };

// Whole numbers on top of 1.5 · 2^23 are the bits of a float: sums begin there, and are numbers at once.
#define ON_TOP 12582912.0f

/// A block's sum out of those of the high and the low bytes.
template <bool FOUR_BITS = FORMAT == Q4_0> DEVICE float whole_sum(int high, int low, const Scaled& of_block) {
    float rest = __int_as_float(low) - ON_TOP;
    if (FOUR_BITS) rest -= of_block.excess;
    return fmaf(__int_as_float(high) - ON_TOP, 256.0f, rest);
}

/// Four columns of a token, out of a block of 32 that 8 lanes hold, as high and low bytes.
template <bool FOUR_BITS = FORMAT == Q4_0> DEVICE uint2 bytes(float4 v, Scaled& of_block) {
    float x[4] = {v.x, v.y, v.z, v.w};
    // As whole numbers, so that what is no number is the largest.
    u32 largest = 0;
    for (int i = 0; i < 4; i++) largest = max(largest, __float_as_uint(fabsf(x[i])));
    for (int lane = 4; lane > 0; lane >>= 1) largest = max(largest, __shfl_xor_sync(FULL, largest, lane));
    const float most = 32512.0f; // 127 · 256: the high byte is never rounded to 128
    float magnitude = __uint_as_float(largest), inverse = magnitude > 1e-30f ? __fdividef(most, magnitude) : 0.0f;
    of_block.scale = magnitude * (1.0f / most);
    int whole[4], sum = 0;
    u32 high[4];
    for (int i = 0; i < 4; i++) {
        whole[i] = __float2int_rn(x[i] * inverse);
        sum += whole[i];
        high[i] = (u32)(whole[i] + 128 >> 8);
    }
    if (FOUR_BITS)
        for (int lane = 4; lane > 0; lane >>= 1) sum += __shfl_xor_sync(FULL, sum, lane);
    of_block.excess = (float)(8 * sum);
    // The low byte is what is left below the high one: the lowest byte of the whole number.
    uint2 out;
    out.x = __byte_perm(__byte_perm(high[0], high[1], 0x0040), __byte_perm(high[2], high[3], 0x0040), 0x5410);
    out.y = __byte_perm(__byte_perm(whole[0], whole[1], 0x0040), __byte_perm(whole[2], whole[3], 0x0040), 0x5410);
    return out;
}

#if SCALED
DEVICE void multiply(int* c, const uint4& a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        // Rows g are the high bytes, rows g + 8 the low ones.
        : "r"(a.x), "r"(a.z), "r"(a.y), "r"(a.w), "r"(b0), "r"(b1));
}
#else
DEVICE void multiply(float* c, const uint4& a, u32 b0, u32 b1) {
    // Rows g are the high halves, rows g + 8 the low ones.
    multiply_halves<FORMAT == BF16>(c, a, b0, b1);
}

DEVICE u32 half_pair(float a, float b) { return FORMAT == BF16 ? bf16_pair(a, b) : f16_pair(a, b); }
DEVICE float2 f32_of_half_pair(u32 w) { return FORMAT == BF16 ? f32_of_bf16_pair(w) : f32_of_f16_pair(w); }

/// Four columns of a token as high and low halves: {high 01, high 23, low 01, low 23}.
DEVICE uint4 halves(float4 v) {
    u32 first = half_pair(v.x, v.y), second = half_pair(v.z, v.w);
    float2 x = f32_of_half_pair(first), y = f32_of_half_pair(second);
    return make_uint4(first, second, half_pair(v.x - x.x, v.y - x.y), half_pair(v.z - y.x, v.w - y.y));
}

/// A power of two that brings `largest` near 2^8, and its inverse: half precision has a small range.
DEVICE float2 half_scale(float largest) {
#if FORMAT == BF16
    return make_float2(1.0f, 1.0f);
#else
    u32 exponent = __float_as_uint(largest) >> 23 & 255;
    exponent = exponent < 24 ? 24 : exponent > 250 ? 250 : exponent;
    return make_float2(__uint_as_float((262 - exponent) << 23), __uint_as_float((exponent - 8) << 23));
#endif
}
#endif

#endif
