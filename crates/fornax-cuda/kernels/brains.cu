//! A thread's weights of a product in bf16, by their format: as they come from memory, so that many
//! are on their way at once, and then unpacked in registers.
//!
//! Of each block of 32 columns thread t of four has columns 8 t to 8 t + 7, as two steps of two words.

#if FORMAT != F32

#if FORMAT == Q8_0 || FORMAT == Q4_0
/// Quants as they are, and the scale of their block.
struct Packed { uint2 quants; u16 scale; };
#elif FORMAT == Q4_K
/// d, dmin and twelve bytes of scales; eight bytes of which one half is ours.
struct Packed { uint4 head; uint2 quants; };
#elif FORMAT == Q6_K
/// The lower four bits, the upper two among those of other columns, d and the scale's byte.
struct Packed { uint2 low, high; u32 scales; };
#else
/// Two bytes each: those of the file, or bf16 already.
struct Packed { uint4 words; };
#endif

DEVICE Packed load_packed(const u8* row, u32 padded, u32 block, u32 t) {
#if FORMAT == BF16 || FORMAT == F16
    return {*(const uint4*)(row + block * 64 + t * 16)};
#elif FORMAT == Q8_0
    return {*(const uint2*)(row + block * 32 + t * 8), *(const u16*)(row + padded + 2 * block)};
#elif FORMAT == Q4_0
    // The upper halves of 16 bytes are their columns 16 to 31.
    return {*(const uint2*)(row + block * 16 + t % 2 * 8), *(const u16*)(row + padded / 2 + 2 * block)};
#elif FORMAT == Q4_K
    const u8* from = row + block / 8 * 144;
    return {*(const uint4*)from, *(const uint2*)(from + 16 + block % 8 / 2 * 32 + t * 8)};
#elif FORMAT == Q6_K
    const Fields of = fields_of(row, padded);
    u32 half = block % 8 / 4, part = block % 4;
    return {*(const uint2*)(of.low + block / 8 * 128 + 64 * half + 32 * (part % 2) + 8 * t), *(const uint2*)(of.high + block / 8 * 64 + 32 * half + 8 * t),
            of.steps[block / 8] | (u32)(u8)of.scales[block * 2 + t / 2] << 16};
#else
    float w[8];
    decode8(row, padded, block * 32 + t * 8, w);
    return {make_uint4(bf16_pair(w[0], w[1]), bf16_pair(w[2], w[3]), bf16_pair(w[4], w[5]), bf16_pair(w[6], w[7]))};
#endif
}

/// Eight bytes as numbers: those less `zero`, times a scale, less a minimum.
DEVICE void brains_of_bytes(uint2 bytes, float zero, float scale, float minimum, u32* b) {
    float x[8];
#pragma unroll
    // 0x4b000000 before a byte makes 2^23 and so many more.
    for (u32 i = 0; i < 8; i++)
        x[i] = (__uint_as_float(__byte_perm(i < 4 ? bytes.x : bytes.y, 0x4b000000u, 0x7440 + i % 4)) - (8388608.0f + zero)) * scale - minimum;
#pragma unroll
    for (u32 i = 0; i < 4; i++) b[i] = bf16_pair(x[2 * i], x[2 * i + 1]);
}

DEVICE void unpack(const Packed& v, u32 block, u32 t, u32* b) {
#if FORMAT == F16
    float w[8];
    widen_eight<false>(v.words, w);
#pragma unroll
    for (u32 i = 0; i < 4; i++) b[i] = bf16_pair(w[2 * i], w[2 * i + 1]);
#elif FORMAT == Q8_0
    brains_of_bytes(make_uint2(v.quants.x ^ 0x80808080u, v.quants.y ^ 0x80808080u), 128.0f, f32_of_f16(v.scale), 0.0f, b);
#elif FORMAT == Q4_0
    u32 shift = t / 2 * 4;
    brains_of_bytes(make_uint2(v.quants.x >> shift & 0x0f0f0f0fu, v.quants.y >> shift & 0x0f0f0f0fu), 8.0f, f32_of_f16(v.scale), 0.0f, b);
#elif FORMAT == Q4_K
    // Six bits of each group's scale and minimum; the upper two of the last four groups lie elsewhere.
    u32 group = block % 8, at = group % 4 * 8, s = v.head.y >> at & 63, m = v.head.z >> at & 63, shift = group % 2 * 4;
    if (group > 3) {
        s = (v.head.w >> at & 15) | (v.head.y >> (at + 6) & 3) << 4;
        m = (v.head.w >> (at + 4) & 15) | (v.head.z >> (at + 6) & 3) << 4;
    }
    float2 of_all = f32_of_f16_pair(v.head.x);
    brains_of_bytes(make_uint2(v.quants.x >> shift & 0x0f0f0f0fu, v.quants.y >> shift & 0x0f0f0f0fu), 0.0f, of_all.x * (float)s, of_all.y * (float)m, b);
#elif FORMAT == Q6_K
    u32 part = block % 4, shift = part / 2 * 4;
    u32 x = (v.low.x >> shift & 0x0f0f0f0fu) | (v.high.x >> 2 * part & 0x03030303u) << 4;
    u32 y = (v.low.y >> shift & 0x0f0f0f0fu) | (v.high.y >> 2 * part & 0x03030303u) << 4;
    brains_of_bytes(make_uint2(x, y), 32.0f, f32_of_f16(v.scales & 0xffff) * (float)(signed char)(v.scales >> 16), 0.0f, b);
#else
    b[0] = v.words.x; b[1] = v.words.y; b[2] = v.words.z; b[3] = v.words.w;
#endif
}

#endif
