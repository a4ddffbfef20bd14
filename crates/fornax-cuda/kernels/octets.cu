//! Eight columns of a single token in registers, and their products with eight weights of a row, by the
//! format of the weights. Must not know which thread has which columns.

#if FORMAT == Q8_0 || FORMAT == Q4_0
/// Two signed bytes a number, 16 bits in all, under a scale for each block of 32 columns: quants are
/// multiplied as they are, and only whole sums are rounded. 32 bytes in every format.
struct Octet { u32 high[2], low[2]; float scale; int excess; u64 spare; };

/// Out of four neighbouring lanes' columns, which are a block.
DEVICE Octet octet_of(const float (&x)[8]) {
    // As whole numbers, so that what is no number is the largest.
    u32 largest = 0;
#pragma unroll
    for (u32 i = 0; i < 8; i++) largest = max(largest, __float_as_uint(fabsf(x[i])));
    largest = max(largest, __shfl_xor_sync(FULL, largest, 1));
    largest = max(largest, __shfl_xor_sync(FULL, largest, 2));
    const float most = 32512.0f; // 127 · 256: the high byte is never rounded to 128
    float magnitude = __uint_as_float(largest), inverse = magnitude > 1e-30f ? __fdividef(most, magnitude) : 0.0f;
    Octet o;
    o.scale = magnitude * (1.0f / most);
    int sum = 0;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        int whole[4];
        u32 high[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            whole[i] = __float2int_rn(x[4 * half + i] * inverse);
            sum += whole[i];
            high[i] = (u32)(whole[i] + 128 >> 8);
        }
        // The low byte is what is left below the high one: the lowest byte of the whole number.
        o.high[half] = __byte_perm(__byte_perm(high[0], high[1], 0x0040), __byte_perm(high[2], high[3], 0x0040), 0x5410);
        o.low[half] = __byte_perm(__byte_perm(whole[0], whole[1], 0x0040), __byte_perm(whole[2], whole[3], 0x0040), 0x5410);
    }
    // Quants of Q4_0 stand 8 too high.
    o.excess = FORMAT == Q4_0 ? 8 * sum : 0;
    return o;
}

/// The product with columns `k` to `k + 7` of a row.
DEVICE float product_of(const Octet& o, const u8* row, u32 padded, u32 k) {
#if FORMAT == Q8_0
    uint2 v = *(const uint2*)(row + k);
    float scale = f32_of_f16(*(const u16*)(row + padded + k / 32 * 2));
#else
    uint2 v = *(const uint2*)(row + k / 32 * 16 + k % 16);
    u32 shift = k % 32 < 16 ? 0 : 4;
    v.x = v.x >> shift & 0x0f0f0f0fu;
    v.y = v.y >> shift & 0x0f0f0f0fu;
    float scale = f32_of_f16(*(const u16*)(row + padded / 2 + k / 32 * 2));
#endif
    int high = __dp4a((int)o.high[1], (int)v.y, __dp4a((int)o.high[0], (int)v.x, 0));
    int low = __dp4a((int)o.low[1], (int)v.y, __dp4a((int)o.low[0], (int)v.x, -o.excess));
    return (float)(256 * high + low) * (o.scale * scale);
}
#else
struct Octet { float x[8]; };

DEVICE Octet octet_of(const float (&x)[8]) {
    Octet o;
#pragma unroll
    for (u32 i = 0; i < 8; i++) o.x[i] = x[i];
    return o;
}

DEVICE float product_of(const Octet& o, const u8* row, u32 padded, u32 k) {
    float w[8], sum = 0.0f;
    decode8(row, padded, k, w);
#pragma unroll
    for (u32 i = 0; i < 8; i++) sum += o.x[i] * w[i];
    return sum;
}
#endif
