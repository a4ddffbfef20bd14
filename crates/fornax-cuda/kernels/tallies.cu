//! Places where several blocks add up numbers, so that who reads the sum sees whether it is whole: no flag
//! beside it, no barrier before it, and the same sum in whatever order they came. Must not know what is
//! summed.

/// What a place has: in its upper four bits how many numbers were added, in the lower sixty their sum in
/// units of a billionth. It is never cleared between two sums: the second is what the place has gained
/// since the first. So nobody may add to the next sum before all have read this one.
#define UNIT 0x1p-30f
#define COUNTED_ONCE (1ull << 60)
/// What counts as no number, for a sum of finite ones has no room for it: beyond a million, infinite, none.
/// It is so large that no sum of fifteen others hides it, and fifteen of it leave the count alone.
#define NO_NUMBER (1ull << 55)
#define LARGEST 0x1p20f
#define LARGEST_SUM 0x1p24f

DEVICE void add_to(u64* tally, float x) {
    u64 units = fabsf(x) <= LARGEST ? (u64)__float2ll_rn(x * (1.0f / UNIT)) : NO_NUMBER;
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(tally), "l"(units + COUNTED_ONCE) : "memory");
}
/// What two neighbouring places have.
DEVICE ulonglong2 look_at(const u64* tallies) {
    ulonglong2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(tallies) : "memory");
    return v;
}
/// Whether so many numbers were added by what a place gained. A negative sum takes one from the count.
DEVICE bool is_whole(u64 gained, u32 numbers) { return ((u32)(gained >> 32) + (1u << 27)) >> 28 == numbers; }
/// Their sum.
DEVICE float sum_of(u64 gained) {
    float sum = __ll2float_rn((long long)(gained << 4) >> 4) * UNIT;
    return sum <= LARGEST_SUM ? sum : __int_as_float(0x7fffffff);
}
DEVICE ulonglong2 shared_pair(u32 from) {
    ulonglong2 v;
    asm volatile("ld.shared.v2.u64 {%0,%1}, [%2];" : "=l"(v.x), "=l"(v.y) : "r"(from) : "memory");
    return v;
}
