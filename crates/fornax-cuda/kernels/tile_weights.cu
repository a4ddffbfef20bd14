//! A thread's weights of a tile in registers, as products of tensor cores want them. Must not know what they are
//! multiplied with.

/// Two neighbouring quants, which stand 128 too high, by their scale; `below` is that scale times what is too much,
/// 128 and 2^15.
template <u32 FIRST> DEVICE u32 brains_of(u32 quants, float scale, float below) {
    // A byte behind 2^15 as a float is that much more.
    float a = __uint_as_float(__byte_perm(quants, 0x47000000, 0x7404 + FIRST * 16)), b = __uint_as_float(__byte_perm(quants, 0x47000000, 0x7414 + FIRST * 16));
    return bf16_pair(fmaf(a, scale, below), fmaf(b, scale, below));
}

/// The scales of a thread's two rows, of a tile in shared memory: the first block's of 32 columns, and the second's.
struct Scales { float2 upper, lower; };
DEVICE Scales scales_of(u32 tile) {
    u32 row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, scales[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(scales[i]) : "r"(tile + scales_at(row + 8 * i)) : "memory");
    return {f32_of_f16_pair(scales[0]), f32_of_f16_pair(scales[1])};
}

/// A thread's numbers of a tile in shared memory, four for each product of 16 columns. With scales that are ones
/// they are the quants, which bf16 holds.
DEVICE void unpack(u32 (*held)[4], u32 tile, Scales scales) {
#pragma unroll
    for (u32 block = 0; block < 2; block++) {
        uint4 v = shared16(tile + quants_at(threadIdx.x % 128, block));
        float a = block == 0 ? scales.upper.x : scales.upper.y, b = block == 0 ? scales.lower.x : scales.lower.y;
        float below_a = -32896.0f * a, below_b = -32896.0f * b;
        u32 (&first)[4] = held[2 * block], (&second)[4] = held[2 * block + 1];
        first[0] = brains_of<0>(v.x, a, below_a); first[1] = brains_of<0>(v.y, b, below_b); first[2] = brains_of<2>(v.x, a, below_a); first[3] = brains_of<2>(v.y, b, below_b);
        second[0] = brains_of<0>(v.z, a, below_a); second[1] = brains_of<0>(v.w, b, below_b); second[2] = brains_of<2>(v.z, a, below_a); second[3] = brains_of<2>(v.w, b, below_b);
    }
}

/// All of these before a product reads any, which does so later than it is asked for.
template <u32 count> DEVICE void hold(u32 (&held)[count][4]) {
#pragma unroll
    for (u32 i = 0; i < count; i++) asm volatile("" : "+r"(held[i][0]), "+r"(held[i][1]), "+r"(held[i][2]), "+r"(held[i][3])::"memory");
}
