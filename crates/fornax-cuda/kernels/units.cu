//! A single token as bytes, and its products with quants as they lie in a row, for formats of which 16 bytes have the
//! lower four bits of 16 columns and the upper four those of 16 others: a unit, which a lane has at a time. Whole sums
//! of 16 columns are multiplied by scales, and nothing is decoded before. Must not know whose rows these are.

#define UNITS (FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == Q6_K || FORMAT == IQ4_NL || FORMAT == MXFP4)

#if UNITS

/// From the column that a unit's lower four bits begin with to that of its upper ones.
#define APART (FORMAT == Q6_K ? 64 : FORMAT == Q4_K || FORMAT == Q5_K ? 32 : 16)
#define ONES 0x01010101u

/// What the whole numbers of 16 columns of a token are multiplied by, and their sum.
struct Sixteen { float scale, sum; };

/// A token's columns beside a unit: high and low bytes of the first 16 and of the others.
struct OfUnit { uint4 high[2], low[2]; Sixteen own[2]; };

/// Keeps the `i`th four columns of a token, which eight neighbouring lanes have a block of, for `of_unit`: high bytes of
/// all columns, then low ones, then what is known of each 16.
DEVICE void keep_four(uint4* left, u32 padded, u32 i, bool there, float4 v) {
    Scaled of_block;
    uint2 split = bytes<false>(v, of_block);
    int sum = __dp4a((int)split.x, (int)ONES, 0) * 256 + __dp4a((int)split.y, (int)ONES, 0);
    sum += __shfl_xor_sync(FULL, sum, 1);
    sum += __shfl_xor_sync(FULL, sum, 2);
    if (!there) return;
    ((u32*)left)[i] = split.x;
    ((u32*)left)[padded / 4 + i] = split.y;
    if (i % 4 == 0) ((Sixteen*)(left + padded / 8))[i / 4] = {of_block.scale, (float)sum};
}

/// The first column of a unit.
DEVICE u32 first_of(u32 unit) {
    if (APART == 16) return unit * 32;
    u32 in_block = unit % 8, begin = unit / 8 * 256 + unit % 2 * 16;
    return FORMAT == Q6_K ? begin + in_block / 4 * 128 + in_block % 4 / 2 * 32 : begin + in_block / 2 * 64;
}

DEVICE OfUnit of_unit(const uint4* left, u32 padded, u32 unit) {
    u32 first = first_of(unit) / 16, second = first + APART / 16;
    const uint4* low = left + padded / 16;
    const Sixteen* own = (const Sixteen*)(low + padded / 16);
    return {{left[first], left[second]}, {low[first], low[second]}, {own[first], own[second]}};
}

/// A sum of products with 16 columns, out of words of four quants each.
DEVICE float sum_of_sixteen(const u32 (&quants)[4], const uint4& high, const uint4& low) {
    int a = __float_as_int(ON_TOP), b = a;
    a = __dp4a((int)high.x, (int)quants[0], a); b = __dp4a((int)low.x, (int)quants[0], b);
    a = __dp4a((int)high.y, (int)quants[1], a); b = __dp4a((int)low.y, (int)quants[1], b);
    a = __dp4a((int)high.z, (int)quants[2], a); b = __dp4a((int)low.z, (int)quants[2], b);
    a = __dp4a((int)high.w, (int)quants[3], a); b = __dp4a((int)low.w, (int)quants[3], b);
    return fmaf(__int_as_float(a) - ON_TOP, 256.0f, __int_as_float(b) - ON_TOP);
}

#if FORMAT == IQ4_NL || FORMAT == MXFP4
/// The levels of eight quants of four bits: of the lower ones of each byte, and of the upper ones.
DEVICE void levels_of(u32 quants, u32& lower, u32& upper) {
    const u32* levels = (const u32*)LEVELS;
    u32 four[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 those = quants >> 16 * half, which = those & 0x7777;
        u32 small = __byte_perm(levels[0], levels[1], which), large = __byte_perm(levels[2], levels[3], which);
        // The fourth bit of each says which of the two.
        four[half] = __byte_perm(small, large, 0x3210 | (those >> 1 & 0x4444));
    }
    lower = __byte_perm(four[0], four[1], 0x6420);
    upper = __byte_perm(four[0], four[1], 0x7531);
}
#endif

/// A unit's words of four quants each, lower and upper ones.
DEVICE void quants_of(const u8* row, u32 padded, u32 unit, u32 (&lower)[4], u32 (&upper)[4]) {
    u32 in_block = unit % 8;
#if FORMAT == Q4_K || FORMAT == Q5_K
    constexpr u32 BEFORE = FORMAT == Q4_K ? 16 : 48;
    const u8* block = row + unit / 8 * (BEFORE + 128);
    uint4 v = *(const uint4*)(block + BEFORE + in_block * 16);
#else
    uint4 v = *(const uint4*)(row + unit * 16);
#endif
    u32 words[4] = {v.x, v.y, v.z, v.w};
#if FORMAT == IQ4_NL || FORMAT == MXFP4
#pragma unroll
    for (u32 i = 0; i < 4; i++) levels_of(words[i], lower[i], upper[i]);
#else
#pragma unroll
    for (u32 i = 0; i < 4; i++) { lower[i] = words[i] & 0x0f0f0f0fu; upper[i] = words[i] >> 4 & 0x0f0f0f0fu; }
#if FORMAT == Q5_K
    uint4 fifth = *(const uint4*)(block + 16 + unit % 2 * 16);
    u32 bits[4] = {fifth.x, fifth.y, fifth.z, fifth.w}, from = in_block / 2 * 2;
#pragma unroll
    for (u32 i = 0; i < 4; i++) { lower[i] |= (bits[i] >> from & ONES) << 4; upper[i] |= (bits[i] >> (from + 1) & ONES) << 4; }
#elif FORMAT == Q6_K
    uint4 above = *(const uint4*)(fields_of(row, padded).high + unit / 8 * 64 + in_block / 4 * 32 + unit % 2 * 16);
    u32 bits[4] = {above.x, above.y, above.z, above.w}, from = in_block % 4 / 2 * 2;
#pragma unroll
    for (u32 i = 0; i < 4; i++) { lower[i] |= (bits[i] >> from & 3 * ONES) << 4; upper[i] |= (bits[i] >> (from + 4) & 3 * ONES) << 4; }
#endif
#endif
}

/// A row's product with a unit's columns.
DEVICE float unit_product(const u8* row, u32 padded, u32 unit, const OfUnit& x) {
    u32 lower[4], upper[4];
    quants_of(row, padded, unit, lower, upper);
    float a = sum_of_sixteen(lower, x.high[0], x.low[0]), b = sum_of_sixteen(upper, x.high[1], x.low[1]);
#if FORMAT == IQ4_NL || FORMAT == MXFP4
    return (a + b) * (x.own[0].scale * scale_of_levels(row, padded, unit));
#elif FORMAT == Q6_K
    const Fields of = fields_of(row, padded);
    const signed char* scales = of.scales + first_of(unit) / 16;
    a = (a - 32.0f * x.own[0].sum) * (x.own[0].scale * scales[0]);
    b = (b - 32.0f * x.own[1].sum) * (x.own[1].scale * scales[APART / 16]);
    return (a + b) * f32_of_f16(of.steps[unit / 8]);
#else
    // Steps of scales and of minimums, then twelve bytes with six bits of each of eight groups.
    uint4 head = *(const uint4*)(row + unit / 8 * (FORMAT == Q4_K ? 144 : 176));
    u32 group = unit % 8 / 2, from = group % 2 * 16, scales, minimums;
    if (group < 2) {
        scales = head.y >> from & 0x3f3f;
        minimums = head.z >> from & 0x3f3f;
    } else {
        scales = (head.w >> from & 0x0f0f) | (head.y >> from >> 2 & 0x3030);
        minimums = (head.w >> from >> 4 & 0x0f0f) | (head.z >> from >> 2 & 0x3030);
    }
    float2 steps = f32_of_f16_pair(head.x);
    a = x.own[0].scale * (a * (steps.x * (float)(scales & 255)) - x.own[0].sum * (steps.y * (float)(minimums & 255)));
    b = x.own[1].scale * (b * (steps.x * (float)(scales >> 8)) - x.own[1].sum * (steps.y * (float)(minimums >> 8)));
    return a + b;
#endif
}

#endif
