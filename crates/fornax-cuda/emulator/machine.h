//! What a kernel finds on the emulated device: CUDA's types and functions, for the host's compiler. Before every
//! kernel's text, whose `asm` and `__shared__` `compile.cpp` has put other words for.

#pragma once
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core.h"

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// Bits.
template <class To, class From> To emu_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float x) { return emu_bits<unsigned>(x); }
inline int __float_as_int(float x) { return emu_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return emu_bits<float>(x); }
inline float __int_as_float(int x) { return emu_bits<float>(x); }
inline long long __double_as_longlong(double x) { return emu_bits<long long>(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned order) {
    uint64_t bytes = uint64_t(b) << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned which = order >> 4 * i & 15, byte = unsigned(bytes >> 8 * (which & 7)) & 255;
        out |= (which & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return out;
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += int(int8_t(a >> 8 * i)) * int(int8_t(b >> 8 * i));
    return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
    return c;
}

// Arithmetic.
template <class A, class B> std::common_type_t<A, B> min(A a, B b) { return a < b ? a : b; }
template <class A, class B> std::common_type_t<A, B> max(A a, B b) { return a > b ? a : b; }
/// A call of the host's library otherwise.
inline float emu_fmaxf(float a, float b) { return a > b || b != b ? a : b; }
#define fmaxf emu_fmaxf
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline int __float2int_rn(float x) {
    return std::isnan(x) ? 0 : x >= 2147483648.0f ? INT32_MAX : x < -2147483648.0f ? INT32_MIN : int(nearbyintf(x));
}
inline long long __float2ll_rn(float x) { return llrintf(x); }
inline float __ll2float_rn(long long x) { return float(x); }

// Memory.
inline size_t __cvta_generic_to_shared(const void* p) { return size_t((const char*)p - emu_now->block->memory); }
template <class T> T __ldcv(const T* p) { emu_yield(); return *(const volatile T*)p; }
template <class T, class U> T atomicAdd(T* p, U by) { T before = *p; *p += by; return before; }
template <class T, class U> T atomicMax(T* p, U other) { T before = *p; if (T(other) > before) *p = T(other); return before; }
inline void __nanosleep(unsigned) { emu_yield(); }

// Warps and blocks.
inline void __syncthreads() { emu_meet(0, emu_now->block->launch->threads.x); }
inline void __syncwarp() { emu_exchange(0); }
template <class T> T emu_lane(T x, unsigned from, bool there) {
    static_assert(sizeof(T) <= 8);
    uint64_t word = 0;
    memcpy(&word, &x, sizeof x);
    const uint64_t* words = emu_exchange(word);
    T out = x;
    if (there) memcpy(&out, &words[from % 32], sizeof out);
    return out;
}
inline unsigned emu_own_lane() { return emu_now->index.x % 32; }
template <class T> T __shfl_sync(unsigned, T x, unsigned from, unsigned width = 32) { return emu_lane(x, (emu_own_lane() & ~(width - 1)) | (from & (width - 1)), true); }
template <class T> T __shfl_xor_sync(unsigned, T x, unsigned far) { return emu_lane(x, emu_own_lane() ^ far, true); }
template <class T> T __shfl_up_sync(unsigned, T x, unsigned far) { return emu_lane(x, emu_own_lane() - far, emu_own_lane() >= far); }
template <class T> T __shfl_down_sync(unsigned, T x, unsigned far) { return emu_lane(x, emu_own_lane() + far, emu_own_lane() + far < 32); }
template <class Join> unsigned emu_all(unsigned x, Join join) {
    const uint64_t* words = emu_exchange(x);
    unsigned out = unsigned(words[0]);
    for (int lane = 1; lane < 32; lane++) out = join(out, unsigned(words[lane]));
    return out;
}
inline unsigned __reduce_min_sync(unsigned, unsigned x) { return emu_all(x, [](unsigned a, unsigned b) { return a < b ? a : b; }); }
inline unsigned __reduce_max_sync(unsigned, unsigned x) { return emu_all(x, [](unsigned a, unsigned b) { return a > b ? a : b; }); }
inline unsigned __reduce_or_sync(unsigned, unsigned x) { return emu_all(x, [](unsigned a, unsigned b) { return a | b; }); }
inline unsigned __reduce_add_sync(unsigned, unsigned x) { return emu_all(x, [](unsigned a, unsigned b) { return a + b; }); }
inline int __reduce_min_sync(unsigned, int x) { return int(emu_all(unsigned(x), [](unsigned a, unsigned b) { return int(a) < int(b) ? a : b; })); }
inline int __reduce_max_sync(unsigned, int x) { return int(emu_all(unsigned(x), [](unsigned a, unsigned b) { return int(a) > int(b) ? a : b; })); }
inline int __reduce_add_sync(unsigned, int x) { return int(__reduce_add_sync(~0u, unsigned(x))); }
inline unsigned __ballot_sync(unsigned, bool x) { return __reduce_or_sync(0, unsigned(x) << emu_own_lane()); }
inline bool __any_sync(unsigned, bool x) { return __ballot_sync(0, x) != 0; }
inline bool __all_sync(unsigned, bool x) { return __ballot_sync(0, x) == ~0u; }

// What is put for `asm`: operands in their order.
template <class T> EmuOperand emu_in(T x) {
    uint64_t word = 0;
    if constexpr (std::is_pointer_v<T>) word = uint64_t(uintptr_t(x));
    else memcpy(&word, &x, sizeof x);
    return {nullptr, word};
}
template <class T> EmuOperand emu_out(T& x) {
    uint64_t word = 0;
    memcpy(&word, &x, sizeof x);
    return {&x, word};
}

// What is put for `__shared__`: a place in the memory of each block, the same in all of them.
static std::atomic<size_t> emu_reserved = 0;
inline size_t emu_reserve(size_t bytes) {
    size_t whole = (bytes + 127) / 128 * 128, at = emu_reserved.fetch_add(whole);
    if (at + whole > EMU_DYNAMIC) emu_fail("kernels declare more shared memory than there is room for");
    return at;
}
template <class T> T& emu_shared() {
    static const size_t at = emu_reserve(sizeof(T));
    return *(T*)(emu_now->block->memory + at);
}
template <class T> T* emu_dynamic() { return (T*)(emu_now->block->memory + EMU_DYNAMIC); }

// How a kernel is called: by what its arguments are, which lie anywhere.
template <class T> T emu_argument(const void* from) {
    T out;
    memcpy((void*)&out, from, sizeof out);
    return out;
}
template <class... Arguments, size_t... I> void emu_call(void (*kernel)(Arguments...), void** arguments, std::index_sequence<I...>) {
    kernel(emu_argument<std::remove_cv_t<std::remove_reference_t<Arguments>>>(arguments[I])...);
}
template <class... Arguments> void emu_call(void (*kernel)(Arguments...), void** arguments) {
    emu_call(kernel, arguments, std::index_sequence_for<Arguments...>());
}
template <class... Arguments> size_t emu_sizes(void (*)(Arguments...), size_t* sizes) {
    size_t all[] = {sizeof(Arguments)..., 0};
    for (size_t i = 0; i < sizeof...(Arguments); i++) sizes[i] = all[i];
    return sizeof...(Arguments);
}
