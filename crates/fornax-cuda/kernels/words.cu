//! Words that say themselves who wrote them, so that who reads one sees whether it is there: no flag
//! beside it, no barrier before it. Must not know what they say.

/// A number and whom it is from, in one word: which of the writes to its place, counted on from launch to
/// launch, modulo 16. The number loses its lowest four bits, a millionth of it at most.
DEVICE u32 tagged(float x, u32 tag) { return (__float_as_uint(x) & ~15u) | tag; }
DEVICE float number_of(u32 word) { return __uint_as_float(word & ~15u); }
DEVICE void tell(u32* at, float x, u32 tag) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(tagged(x, tag)) : "memory");
}
DEVICE u32 look(const u32* at) {
    u32 word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}
DEVICE uint4 look_four(const u32* at) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}
DEVICE uint2 look_two(const u32* at) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at) : "memory");
    return v;
}
// The same with 32 bits to say it: for what not every launch writes.
DEVICE void tell_whole(u64* at, float x, u32 tag) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"((u64)tag << 32 | __float_as_uint(x)) : "memory");
}
DEVICE u64 look_whole(const u64* at) {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
DEVICE bool are_from(const uint4& a, const uint4& b, u32 tag) {
    return (((a.x ^ tag) | (a.y ^ tag) | (a.z ^ tag) | (a.w ^ tag) | (b.x ^ tag) | (b.y ^ tag) | (b.z ^ tag) | (b.w ^ tag)) & 15) == 0;
}
DEVICE bool is_from_whole(u64 word, u32 tag) { return (u32)(word >> 32) == tag; }

/// Counts looks in vain, and ends a launch that waits for what will never come: seconds, where a link
/// takes microseconds.
struct Patience {
    u32 looks = 0;
    __device__ __forceinline__ void wait() {
        if (++looks > 1 << 24) asm volatile("trap;");
    }
};
